"""What the data loader must check, and what ruff's security rules do not find."""

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mapie_claps
from mapie_claps.datasets import DATASETS, load_dataset

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
    assert len(SOURCES) > 40
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


@pytest.mark.parametrize("name", ["../yacht", "/etc/passwd", "yacht.csv", "", None])
def test_a_name_is_no_path(name, tmp_path):
    with pytest.raises(ValueError, match="Got name=.*one of 'concrete'"):
        load_dataset(name, tmp_path)


def yacht(**changes):
    table = np.random.default_rng(0).normal(size=(308, 7))
    for position, value in changes.get("values", ()):
        table[position] = value
    return table[: changes.get("rows", 308), : changes.get("columns", 7)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 307}, "Got 307 rows and 6 columns"),
        ({"columns": 6}, "Got 308 rows and 5 columns"),
        ({"values": [((3, 2), np.nan)]}, "missing or infinite values"),
        ({"values": [((3, 6), np.inf)]}, "missing or infinite values"),
    ],
)
def test_a_file_is_checked(changes, message, tmp_path):
    np.savetxt(tmp_path / "yacht.csv", yacht(**changes), delimiter=",", header="h")
    with pytest.raises(ValueError, match=message):
        load_dataset("yacht", tmp_path)


def test_a_file_of_something_else(tmp_path):
    (tmp_path / "yacht.csv").write_bytes(b"\x80\x04K\x01.\n" * 3)
    with pytest.raises(ValueError, match=r"no table of numbers|utf-8"):
        load_dataset("yacht", tmp_path)
    with pytest.raises(FileNotFoundError, match="which is not a folder"):
        load_dataset("yacht", tmp_path / "nowhere")


def serve(monkeypatch, table):
    """A server that sends this table."""
    bunch = SimpleNamespace(
        data=table[:, :-1],
        target=table[:, -1],
        feature_names=[f"c{j}" for j in range(table.shape[1] - 1)],
        get=lambda name: None,
    )
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: bunch)
    monkeypatch.delenv("MAPIE_CLAPS_DATA", raising=False)


def test_a_download_is_checked(monkeypatch):
    serve(monkeypatch, yacht())
    X, y = load_dataset("yacht")
    assert X.shape == (308, 6)
    assert y.shape == (308,)
    serve(monkeypatch, yacht(rows=300))
    with pytest.raises(ValueError, match="Got 300 rows and 6 columns .* the download"):
        load_dataset("yacht")
    serve(monkeypatch, yacht(values=[((0, 0), np.nan)]))
    with pytest.raises(ValueError, match="missing or infinite values in the download"):
        load_dataset("yacht")
    serve(monkeypatch, yacht().astype(str).astype(object) + "x")
    with pytest.raises(RuntimeError, match=r"Could not download 'yacht' \(ValueError"):
        load_dataset("yacht")


def test_every_table_has_its_size_on_record():
    assert all(s.n_rows > 0 and s.n_features > 0 for s in DATASETS.values())
