#!/usr/bin/env bash
# Makes a book of the documents and of the commands' help: build/book/index.html, which needs no network.
# mdBook is built once, and then making the book needs none either.
. "$(dirname "$0")/lib.sh"
export PATH=/usr/bin:$PATH
mdbook=$BUILD/tools/bin/mdbook
tool=$BUILD/bin/kvmtrace
[ -x "$tool" ] || die "$tool is missing, whose help is a part of the book: run 'make tools'"
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
# mdBook names the page of a README.md index.html, and leaves links to it as they are.
find "$stage/src" -name '*.md' ! -name SUMMARY.md -exec sed -i 's,](README\.md,](index.md,g' {} +

# The reference of commands is their own help: a page for each group of `kvmtrace --help`, below docs/commands.md.
python3 - "$tool" "$stage/src" <<'PYTHON' || die "the help of $tool is not as scripts/book.sh reads it"
import os
import pathlib
import re
import subprocess
import sys

tool, src = sys.argv[1], pathlib.Path(sys.argv[2])
groups = []


def help_of(*command):
    environment = os.environ | {"COLUMNS": "100"}
    run = subprocess.run([tool, *command, "--help"], env=environment, capture_output=True, text=True, check=True)
    return run.stdout.strip()


# A group is a line that ends with a colon, and then a line for each command.
for line in help_of().split("\nOptions:\n")[0].splitlines():
    if group := re.fullmatch(r"([A-Z].*):", line):
        groups.append((group[1], {}))
    elif (command := re.fullmatch(r"  ([a-z-]+) +(\S.*)", line)) and command[1] != "help":
        groups[-1][1][command[1]] = command[2]

chapters = []
for title, commands in groups:
    page = f"commands-{title.lower().replace(' ', '-')}.md"
    list_of_all = [f"- [{name}](#kvmtrace-{name}): {about}" for name, about in commands.items()]
    helps = [f"## kvmtrace {name}\n\n```text\n{help_of(name)}\n```" for name in commands]
    (src / page).write_text("\n\n".join([f"# {title}", "\n".join(list_of_all), *helps]) + "\n")
    chapters.append(f"- [{title}]({page})")

for name, mark, indent in (("commands.md", "<!-- the groups of commands -->\n", ""),
                           ("SUMMARY.md", "- [Commands](commands.md)\n", "  ")):
    before, after = (src / name).read_text().split(mark)
    links = "".join(f"{indent}{chapter}\n" for chapter in chapters)
    (src / name).write_text(before + (mark if indent else "") + links + after)
sys.exit(sum(len(commands) for _, commands in groups) < 20 or not all(commands for _, commands in groups))
PYTHON

step "$BUILD/log/book.log" "making the book" "$mdbook" build "$stage"
if grep -q WARN "$BUILD/log/book.log"; then
	grep WARN "$BUILD/log/book.log" >&2
	die "mdBook has warned: $BUILD/log/book.log"
fi

# What the book's pages link to is in the book: files, and places in pages. They load nothing from elsewhere.
found=$(python3 "$TOP/scripts/book_links.py" "$BUILD/book") ||
	die "the book has links that lead nowhere, or needs a network: see above"
((found >= 100)) || die "scripts/book_links.py has found only $found links in the book"
echo "the book    ${BUILD#"$PWD"/}/book/index.html"
