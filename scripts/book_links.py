"""Checks a book of HTML: what its pages link to is in it, and no page loads anything from elsewhere.

Use: book_links.py DIRECTORY. It prints the number of links that it has followed. It exits with 1 if something is
wrong, and says on standard error what. A link that a reader may follow can lead elsewhere. What a browser fetches
by itself cannot: scripts, pictures, fonts and style sheets, also those that style sheets load."""
import html.parser
import pathlib
import re
import sys
import urllib.parse

# The attributes whose files a browser fetches without being asked, and those that lead a reader to a file.
LOADS = {"src", "srcset", "poster", "data", "background", "xlink:href"}
IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]*)|@import\s+["']([^"']*)""", re.IGNORECASE)


def is_elsewhere(link):
    parts = urllib.parse.urlsplit(link.strip())
    return bool(parts.scheme and parts.scheme != "data" or parts.netloc)


def of_style(text):
    return [url or imported for url, imported in IN_STYLE.findall(text)]


class Page(html.parser.HTMLParser):
    """What a page, or a picture in SVG, links to and loads, and the places in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.ids, self.within = [], [], set(), None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.within = tag
        for name, value in attributes:
            value = value or ""
            if name == "id":
                self.ids.add(value)
            elif name == "style":
                self.loads += of_style(value)
            elif name == "class" and "playground" in value.split():
                # mdBook's script asks this server about code in Rust.
                self.loads.append("https://play.rust-lang.org")
            elif name in LOADS or name == "href" and tag != "a":
                self.loads += re.findall(r"[^\s,]\S*", value) if name == "srcset" else [value]
            if name in ("href", "src"):
                self.links.append(value)

    def handle_endtag(self, _tag):
        self.within = None

    def handle_data(self, text):
        if self.within == "style":
            self.loads += of_style(text)


def loaded_by(file, pages):
    if file in pages:
        return pages[file].loads
    text = file.read_text(errors="replace")
    return of_style(text) if file.suffix == ".css" else Page(text).loads


def main(book):
    wrong, found = set(), 0
    files = [file.resolve() for kind in ("html", "css", "svg") for file in book.rglob(f"*.{kind}")]
    pages = {file: Page(file.read_text()) for file in files if file.suffix == ".html"}
    for file in files:
        wrong |= {f"{file.name}: loads {link}" for link in loaded_by(file, pages) if is_elsewhere(link)}
    for file, page in pages.items():
        # print.html has all pages again, and 404.html is for servers.
        if file.name in ("print.html", "404.html"):
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
            place = urllib.parse.unquote(parts.fragment)
            found += 1
            if not target.exists() or place and target in pages and place not in pages[target].ids:
                wrong.add(f"{file.name}: {link} leads nowhere")
    print(found)
    print(*sorted(wrong), sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return bool(wrong)


sys.exit(main(pathlib.Path(sys.argv[1])))
