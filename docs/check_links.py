"""Check the built site: every link inside it leads to a page, and every anchor exists.

python docs/check_links.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links and anchors of one page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what points out and what can be pointed at."""
        found = dict(attrs)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        for key in ("href", "src"):
            if found.get(key):
                self.links.append(found[key])


def dead_links(root: Path) -> list[str]:
    """Links of all pages under root that lead nowhere."""
    pages = {file.resolve(): Page(file) for file in root.rglob("*.html")}
    dead = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = file
            if parts.path:
                target = (file.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target = target / "index.html"
            anchor = unquote(parts.fragment)
            missing = not target.exists() or (
                anchor and target in pages and anchor not in pages[target].anchors
            )
            if missing:
                dead.append(f"{file.relative_to(root.resolve())}: {link}")
    return sorted(set(dead))


if __name__ == "__main__":
    root = Path(sys.argv[1])
    found = dead_links(root)
    n_pages = len(list(root.rglob("*.html")))
    print("\n".join(found) or f"No dead link in {n_pages} pages.")
    sys.exit(bool(found) or not n_pages)
