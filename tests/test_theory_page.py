"""The theory page names functions and tests that exist."""

import importlib
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "theory.md").read_text(encoding="utf-8")


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
