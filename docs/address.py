"""The project's public address, set in one place: pyproject.toml.

``[tool.hatch.metadata.hooks.custom]`` there holds ``documentation``, where the site can
be read, and ``repository``; both are empty as long as there is none. From them come the
URLs of the package, the links of the README in the package, which lead to the site
instead of to files beside it, and Sphinx's own base address.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # conf.py and the tests read this file, too, and build nothing
    MetadataHookInterface = object

LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)]*)?\)")
# Files that the README may link to, and the pages that the site makes of them.
PAGES = [
    (re.compile(r"docs/(.+)\.md"), r"\1.html"),
    (re.compile(r"docs/(_static/.+)"), r"\1"),
    (re.compile(r"examples/(.+)\.py"), r"auto_examples/\1.html"),
]


def documentation(root: Path) -> str:
    """Address of the site, ending in a slash; empty as long as there is none."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    hook = tomllib.loads(text)["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    return _folder(hook["documentation"])


def urls(documentation: str, repository: str) -> dict[str, str]:
    """URLs of the package, those that there are."""
    found = {"Documentation": _folder(documentation), "Source": repository}
    if documentation:
        found["Changelog"] = _folder(documentation) + "changelog.html"
    return {name: address for name, address in found.items() if address}


def absolute_links(text: str, documentation: str) -> str:
    """Let links to files lead to their pages of the site, if there is a site."""
    if not documentation:
        return text
    return LINK.sub(
        lambda found: f"]({_folder(documentation)}{_page(found[1])}{found[2] or ''})",
        text,
    )


def _page(file: str) -> str:
    for pattern, page in PAGES:
        if pattern.fullmatch(file):
            return pattern.sub(page, file)
    raise ValueError(
        f"Got a link to {file} in README.md, but the site has no page of it. Link to a "
        "page of docs/, a picture of docs/_static/ or an example."
    )


def _folder(address: str) -> str:
    return address.rstrip("/") + "/" if address else ""


class AddressHook(MetadataHookInterface):  # type: ignore[misc]
    """What hatchling asks for when it builds the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the README and the URLs."""
        given = {key: self.config[key] for key in ("documentation", "repository")}
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, given["documentation"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(**given)
