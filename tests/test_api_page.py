"""The API reference shows every public name."""

import importlib
import importlib.util
import pkgutil
from itertools import pairwise
from pathlib import Path

import mapie_claps

FILE = Path(__file__).parents[1] / "docs" / "api_page.py"
# Commands (`python -m mapie_claps.demo` and the like) and the engine below them.
COMMANDS = {"benchmarks", "demo", "experiments", "studies"}


def page_by_module():
    spec = importlib.util.spec_from_file_location("api_page", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {}
    for section in module.api_page().split(".. currentmodule:: ")[1:]:
        name, *lines = section.split("\n")
        found.setdefault(name, set()).update(line.strip() for line in lines)
    return found


def test_every_name_of_every_public_module_is_shown():
    shown = page_by_module()
    seen = {
        id(getattr(importlib.import_module(module), name))
        for module, lines in shown.items()
        for name in lines
        if name.isidentifier()
    }
    modules = [mapie_claps] + [
        importlib.import_module(f"mapie_claps.{info.name}")
        for info in pkgutil.iter_modules(mapie_claps.__path__)
        if not info.name.startswith("_") and info.name not in COMMANDS
    ]
    missing = [
        f"{module.__name__}.{name}"
        for module in modules
        for name in getattr(module, "__all__", ())
        if id(getattr(module, name)) not in seen
    ]
    assert len(modules) > 10
    assert missing == []


def test_modules_without_all_show_their_classes():
    assert "FileFormatError" in page_by_module()["mapie_claps.exceptions"]


def test_the_page_has_four_groups_and_no_name_twice():
    spec = importlib.util.spec_from_file_location("api_page", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = module.api_page().split("\n")
    titles = [line for line, under in pairwise(lines) if set(under) == {"-"}]
    assert titles == [*(group[0] for group in module.GROUPS), module.REST[0]]
    named = [f"{m}.{n}" for m, n in module.all_names()]
    for _, _, members in module.GROUPS:
        for member in members:
            assert member in named or any(n.startswith(f"{member}.") for n in named)
