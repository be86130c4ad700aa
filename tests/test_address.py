"""The public address is set in one place, and is then everywhere."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = "https://example.org/claps"


@pytest.fixture
def address():
    spec = importlib.util.spec_from_file_location("address", ROOT / "docs/address.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metadata(address, folder):
    """What a build of the project in a folder would say."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    hook = address.AddressHook.__new__(address.AddressHook)
    config = tomllib.loads(text)["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    vars(hook).update({"root": str(folder), "config": config})
    if hasattr(type(hook), "root"):  # hatchling is installed, and has properties
        hook = type(hook)(str(folder), config)
    found = {}
    hook.update(found)
    return found


@pytest.fixture
def project(tmp_path):
    """A copy whose address can be set."""
    for name in ("pyproject.toml", "README.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def set_address(project, **address):
    file = project / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    for key, value in address.items():
        text, n = re.subn(rf'(?m)^{key} = ".*"$', f'{key} = "{value}"', text)
        assert n == 1
    file.write_text(text, encoding="utf-8")


def test_an_address_reaches_readme_urls_and_site(address, project):
    set_address(project, documentation=SITE, repository="https://example.org/source")
    found = metadata(address, project)
    assert found["urls"] == {
        "Documentation": f"{SITE}/",
        "Source": "https://example.org/source",
        "Changelog": f"{SITE}/changelog.html",
    }
    links = re.findall(r"\]\(([^)]+)\)", found["readme"]["text"])
    assert all(link.startswith("https://") for link in links)
    assert f"{SITE}/limits.html" in links
    assert f"{SITE}/_static/interval.png" in links
    assert f"{SITE}/auto_examples/plot_08_groups.html" in links
    assert address.documentation(project) == f"{SITE}/"


def test_without_an_address_nothing_is_made_up(address, project):
    set_address(project, documentation="", repository="")
    found = metadata(address, project)
    assert found["urls"] == {}
    assert found["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")
    assert address.documentation(project) == ""


def test_links_keep_their_anchors_and_others_stay(address):
    text = "[a](docs/x.md#y) [b](https://a.org/c.md) [d](#e)"
    assert address.absolute_links(text, SITE + "/") == (
        f"[a]({SITE}/x.html#y) [b](https://a.org/c.md) [d](#e)"
    )


def test_a_link_to_what_the_site_lacks_is_named(address):
    with pytest.raises(ValueError, match=r"a link to mapie_claps/demo\.py"):
        address.absolute_links("[demo](mapie_claps/demo.py)", SITE)


def test_conf_asks_for_it():
    text = (ROOT / "docs/conf.py").read_text(encoding="utf-8")
    assert "html_baseurl = documentation(HERE.parent)" in text
