"""The folders are the arrows: who may import whom, without what, and how large."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import mapie_claps

ROOT = Path(mapie_claps.__file__).parent
PROJECT = ROOT.parent
NAME = "mapie_claps"
# Rooms of one line may not import one another; `__init__` is the door to all of them.
ORDER = [
    ("exceptions", "_validation"),
    ("datasets", "network"),
    ("posterior",),
    ("estimators",),
    ("conformal",),
    ("metrics", "distributed", "files", "export"),
    ("diagnostics",),
    ("plots",),
    ("report",),
    ("__main__",),
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
# Methods of objects as short ways to later rooms, which they import when called.
DOORS = {
    ("mapie_claps.estimators.base", "mapie_claps.files"),
    ("mapie_claps.conformal.calibrated", "mapie_claps.files"),
    ("mapie_claps.conformal.calibrated", "mapie_claps.diagnostics"),
}
WITHOUT_TORCH = ("metrics", "plots", "diagnostics", "datasets")
WITHOUT_TORCH += ("conformal.quantile", "estimators.predictive", "network.target")


def module_name(path):
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def resolved(name):
    """Longest beginning of a dotted name that is a module of the package."""
    while name and name not in SOURCES:
        name = name.rpartition(".")[0]
    return name


def imports_of(module, path, tree=None):
    """Modules of the package that a module imports, also inside functions."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = tree or ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            above = above[: len(above) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == NAME:
                yield resolved(name)


def room_of(module):
    return module.split(".")[1] if "." in module else None


EDGES = {
    module: {m for m in imports_of(module, path) if (module, m) not in DOORS}
    for module, path in SOURCES.items()
}


def test_every_room_has_its_place():
    assert {room_of(module) for module in SOURCES} - {None} <= RANK.keys()


@pytest.mark.parametrize("room", RANK)
def test_a_room_imports_earlier_rooms_only(room):
    wrong = [
        f"{module} imports {other}"
        for module in SOURCES
        for other in EDGES[module]
        if room_of(module) == room
        and room_of(other) not in (room, None)
        and RANK[room_of(other)] >= RANK[room]
    ]
    assert wrong == []


def test_nobody_comes_in_by_the_front_door():
    assert [module for module in SOURCES if NAME in EDGES[module]] == []


def test_modules_import_one_another_without_a_cycle():
    """Lazy imports count: a function that imports what imports it is a cycle too."""
    left = set(SOURCES) - {NAME}
    while True:
        wanted = {other for m in left for other in EDGES[m] - {m}}
        kept = {m for m in left & wanted if EDGES[m] & (left - {m})}
        if kept == left:
            break
        left = kept
    assert sorted(left) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from .quantile import conformal_rank", f"{NAME}.conformal.quantile"),
        ("from . import mapie", f"{NAME}.conformal.mapie"),
        ("from .. import metrics", f"{NAME}.metrics"),
        ("from ..estimators.module import ClapsModule", f"{NAME}.estimators.module"),
        ("def f():\n    import mapie_claps.plots", f"{NAME}.plots"),
        ("from mapie_claps import explain", NAME),
    ],
)
def test_the_search_finds_every_form_of_an_import(text, found):
    path = ROOT / "conformal" / "score.py"
    assert list(imports_of(f"{NAME}.conformal.score", path, ast.parse(text))) == [found]


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT
    )


def test_rooms_without_torch():
    prefixes = tuple(f"{NAME}.{room}" for room in WITHOUT_TORCH)
    modules = [m for m in SOURCES if m.startswith(prefixes)]
    assert len(modules) > len(WITHOUT_TORCH)
    code = "import importlib, sys\n"
    code += f"for name in {modules}: importlib.import_module(name)\n"
    done = run(code + "print('torch' in sys.modules)")
    assert done.stdout.split() == ["False"], done.stderr


def test_the_package_itself_loads_nothing_heavy():
    heavy = "{'torch', 'mapie', 'sklearn', 'numpy'}"
    done = run(f"import sys, mapie_claps\nprint({heavy} & set(sys.modules))")
    assert done.stdout.split() == ["set()"], done.stderr


def test_laplace_torch_is_loaded_with_the_first_posterior_only():
    names = "CalibratedRegressor, ClapsModule, ClapsRegressor"
    found = "print({'laplace', 'torchvision'} & set(sys.modules))"
    done = run(f"import sys\nfrom mapie_claps import {names}\n{found}")
    assert done.stdout.split() == ["set()"], done.stderr


def test_importing_every_public_name_shows_no_warning_of_other_libraries():
    done = run("from mapie_claps import *")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_names_of_the_package():
    assert sorted(mapie_claps._MODULE_OF) == sorted(mapie_claps.__all__)
    for name in mapie_claps.__all__:
        found = getattr(mapie_claps, name)
        assert found.__module__.startswith(NAME)
    assert {*mapie_claps.__all__, "__version__"} <= set(dir(mapie_claps))
    assert mapie_claps.__version__.count(".") >= 1
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mapie_claps.nothing


def lines(paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_the_budget():
    """A package that grows beyond these has to lose a concept first."""
    package = list(ROOT.rglob("*.py"))
    assert len(package) <= 60
    assert lines(package) <= 12_000
    assert lines((PROJECT / "tests").rglob("*.py")) <= 12_000
    assert lines((PROJECT / "docs" / "studies").rglob("*.py")) <= 3_500
    assert len(inspect.signature(mapie_claps.ClapsRegressor).parameters) <= 18
