"""The folders are the arrows: each room imports earlier ones only, without cycles."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mapie_claps

ROOT = Path(mapie_claps.__file__).parent
NAME = "mapie_claps"
# Rooms of one line may not import one another; `__init__` is the door to all of them.
ORDER = [
    ("exceptions", "_validation", "_compat", "_devices"),
    ("files", "datasets"),
    ("network",),
    ("posterior",),
    ("estimators",),
    ("conformal",),
    ("metrics", "distributed", "persistence", "export"),
    ("reasons",),
    ("diagnostics",),
    ("plots",),
    ("studies",),
    ("experiments", "demo"),
    ("benchmarks",),
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
COMMANDS = (*ORDER[-3], *ORDER[-2], *ORDER[-1])


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
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


EDGES = {module: set(imports_of(module, path)) for module, path in SOURCES.items()}


def test_every_room_has_its_place():
    assert {room_of(module) for module in SOURCES} - {None} <= RANK.keys()


@pytest.mark.parametrize("room", [room for rooms in ORDER for room in rooms])
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


def test_only_commands_come_in_by_the_front_door():
    through = [m for m in SOURCES if NAME in EDGES[m] and room_of(m) not in COMMANDS]
    assert through == []


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


def test_reasons_metrics_and_plots_do_without_torch():
    rooms = ("reasons", "metrics", "plots")
    modules = [m for m in SOURCES if room_of(m) in rooms]
    modules += [f"{NAME}.diagnostics", f"{NAME}.estimators.variance"]
    code = "import importlib, sys\n"
    code += f"for name in {modules}: importlib.import_module(name)\n"
    code += "print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent
    )
    assert run.stdout.split() == ["False"], run.stderr


def test_a_user_who_trains_nothing_loads_no_training():
    code = "import sys\nfrom mapie_claps import ClapsModule, ClapsScore\n"
    code += "print(*(m for m in sys.modules if m.startswith('mapie_claps.network')))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent
    )
    loaded = {name.rpartition(".")[2] for name in run.stdout.split()}
    assert "own" in loaded, run.stderr
    assert not loaded & {"gradient", "trainer", "units", "stopping", "target_choice"}


def test_importing_every_public_name_shows_no_warning_of_other_libraries():
    run = subprocess.run(
        [sys.executable, "-c", "from mapie_claps import *"],
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


CONTRIBUTING = ROOT.parent / "docs" / "contributing.md"
TABLE = [
    line.split("|")[1:3]
    for line in CONTRIBUTING.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and "`" in line
]


def test_the_table_of_changes_names_twelve():
    assert len(TABLE) == 12


@pytest.mark.parametrize(("change", "files"), TABLE, ids=[row[0] for row in TABLE])
def test_files_named_in_the_table_of_changes_exist(change, files):
    named = re.findall(r"`([\w/.]+)`", files)
    assert named
    assert [name for name in named if not (ROOT.parent / name).is_file()] == []
