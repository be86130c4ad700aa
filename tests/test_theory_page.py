"""Pages name functions, tests and files that exist."""

import importlib
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
PAGE = (DOCS / "theory.md").read_text(encoding="utf-8")


def resolve(path):
    """Object behind a dotted path: a module, then attributes."""
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for name in parts[n:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(path)


def test_every_test_on_the_page_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    files = [f.read_text(encoding="utf-8") for f in TESTS.rglob("test_*.py")]
    defined = {name for text in files for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 15
    assert named - defined == set()


def test_every_function_on_the_page_exists():
    public = re.findall(r"\{(?:class|func|meth)\}`~?([\w.]+)`", PAGE)
    private = re.findall(r"`([\w.]+)` in `([\w/]+)\.py`", PAGE)
    assert len(public) > 5
    assert len(private) > 1
    for path in public:
        assert callable(resolve(path)), path
    for name, module in private:
        path = f"mapie_claps/{module}/{name}".replace("/", ".")
        assert callable(resolve(path)), name


def test_every_formula_has_a_test_beside_it():
    sections = re.split(r"^## ", PAGE, flags=re.M)[1:]
    with_formula = [s for s in sections if "$$" in s]
    assert len(with_formula) > 6
    assert [s.split("\n")[0] for s in with_formula if "`test_" not in s] == []


@pytest.mark.parametrize(
    ("page", "pattern", "folder"),
    [
        ("contributing", r"`((?:mapie_claps|docs|tests)/[\w/.]+)`", TESTS.parent),
        ("trust", r"`((?:newest/)?(?:test_|reference)\w*\.py)`", TESTS),
    ],
)
def test_every_file_on_the_page_exists(page, pattern, folder):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(pattern, text))
    assert len(named) > 15
    assert [name for name in named if not (folder / name).exists()] == []


def test_every_room_is_on_the_map():
    package = TESTS.parent / "mapie_claps"
    rooms = {file.stem for file in package.iterdir() if file.suffix in ("", ".py")}
    text = (DOCS / "contributing.md").read_text(encoding="utf-8")
    missing = {room for room in rooms if room[0] != "_" and f"`{room}`" not in text}
    assert missing == {"data", "exceptions"}
