#!/usr/bin/env bash
# Makes a book of the documents: build/book/index.html, which needs no network. mdBook is built
# once, and then making the book needs none either.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH
mdbook=$BUILD/tools/bin/mdbook
# It runs for seconds, so that optimizing it takes longer than what it saves.
[ -x "$mdbook" ] || CARGO_PROFILE_RELEASE_OPT_LEVEL=1 step "$BUILD/log/mdbook.log" "building mdBook" \
	cargo install --locked mdbook --version 0.4.52 --no-default-features --features search --root "$BUILD/tools"

# All pages are in one directory of the book: those of docs/, and those at the top.
stage=$BUILD/book-src
rm -rf "$stage" "$BUILD/book"
mkdir -p "$stage/src"
cp -R "$TOP"/docs/. "$TOP"/{README,ARCHITECTURE,CONTRIBUTING,CHANGELOG}.md "$TOP/LICENSE" "$stage/src"
mv "$stage/src/book.toml" "$stage"
sed -i -E 's,\]\(\.\./,](,g; s,\]\(docs/,](,g' "$stage"/src/*.md
step "$BUILD/log/book.log" "making the book" "$mdbook" build "$stage"
if grep -q WARN "$BUILD/log/book.log"; then
	grep WARN "$BUILD/log/book.log" >&2
	die "mdBook has warned: $BUILD/log/book.log"
fi

# What the book's pages link to is in the book: files, and places in pages.
python3 - "$BUILD/book" <<'PYTHON' || die "the book has links that lead nowhere"
import pathlib
import re
import sys
import urllib.parse

book, wrong, found = pathlib.Path(sys.argv[1]), [], 0
# print.html has all pages again, and 404.html is for servers.
pages = {page.resolve(): page.read_text() for page in book.rglob("*.html") if page.name not in ("print.html", "404.html")}
ids = {page: set(re.findall(r'\bid="([^"]*)"', text)) for page, text in pages.items()}
for page, text in pages.items():
    for link in re.findall(r'\b(?:href|src)="([^"]*)"', text):
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else page
        place = urllib.parse.unquote(parts.fragment)
        found += 1
        if not target.exists() or place and place not in ids.get(target, {place}):
            wrong.append(f"{page.name}: {link}")
print(*sorted(set(wrong)), sep="\n", file=sys.stderr)
sys.exit(bool(wrong) or found < 100)
PYTHON
echo "the book    ${BUILD#"$PWD"/}/book/index.html"
