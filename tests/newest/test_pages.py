"""The Python of the documentation's pages runs, in order, page by page."""

import re
import tempfile
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot as plt

DOCS = Path(__file__).parents[2] / "docs"
QUICK_START = DOCS.parent / "examples" / "plot_00_walkthrough.py"
PYTHON = re.compile(r"^```python\n(.*?)^```", flags=re.S | re.M)
# The pages show the defaults; here the networks are small.
FAST = "ClapsRegressor(n_members=1, max_steps=40, tol=None, views=('raw',), "


def blocks(page):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [code.replace("ClapsRegressor(", FAST) for code in PYTHON.findall(text)]


PAGES = sorted(
    str(file.relative_to(DOCS).with_suffix(""))
    for file in DOCS.rglob("*.md")
    if "```python" in file.read_text(encoding="utf-8") and "_build" not in file.parts
)


def test_the_pages_with_code_are_there():
    known = {"index", "reasons", "user_guide", "own_model", "laplace", "large_data"}
    assert known <= set(PAGES)


def test_the_quick_start_runs(tmp_path, monkeypatch, capsys):
    """The example is the page, and its last lines check the loaded file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plt.switch_backend("agg")
    text = QUICK_START.read_text(encoding="utf-8")
    text = text.replace("n_members=3, max_steps=400", "n_members=1, max_steps=40")
    exec(compile(text, QUICK_START.name, "exec"), {})
    plt.close("all")
    printed = capsys.readouterr().out
    assert "Left column 'listing' out" in printed
    assert "Got 'large' in column 'area', row 0" in printed
    assert QUICK_START.stem in (DOCS / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some blocks write files
    names: dict = {}
    with torch.random.fork_rng():
        for text in blocks(page):
            exec(compile(text, f"{page}.md", "exec"), names)
    assert names


@pytest.mark.parametrize("page", PAGES)
def test_what_a_block_prints_is_shown_under_it(page):
    """`python docs/outputs.py` writes it."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```\n(\n```text$)?", text, flags=re.S | re.M)
    assert [code for code, output in shown if "print(" in code and not output] == []
