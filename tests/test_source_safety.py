"""Data never become code: what ruff's security rules do not find."""

import ast
from pathlib import Path

import pytest

import mapie_claps

SOURCES = sorted(Path(mapie_claps.__file__).parent.rglob("*.py"))


def unsafe(tree):
    """Built-in functions by which data could become code, and switches for it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in (
            "compile",
            "__import__",
        ):
            yield node.func.id
        for option in node.keywords:
            if option.arg == "allow_pickle" and ast.unparse(option.value) != "False":
                yield "allow_pickle"


def test_data_never_become_code():
    """Most of it is checked by ruff, see the rules in pyproject.toml."""
    assert len(SOURCES) > 25
    found = {
        path.name: names
        for path in SOURCES
        if (names := list(unsafe(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line", ["compile(text, '', 'exec')", "__import__(name)", "f(allow_pickle=True)"]
)
def test_the_search_finds_what_it_looks_for(line):
    assert list(unsafe(ast.parse(line)))
