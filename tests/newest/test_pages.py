"""The Python of the pages and of the README runs; what pages say is there is there."""

import ast
import re
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot as plt

import mapie_claps
from mapie_claps.estimators.recipe import RECIPES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
QUICK_START = ROOT / "examples" / "plot_00_walkthrough.py"
PYTHON = re.compile(r"^```python\n(.*?)^```\n(\n```text$)?", flags=re.S | re.M)
# The pages show the defaults; here the networks are small.
COMES_WITH_CLI = {"mapie_claps", "mapie", "laplace", "torch", "sklearn", "numpy"}
COMES_WITH_CLI |= {"matplotlib", "pandas", "safetensors"}
FAST = {"n_members": 1, "max_steps": 40, "views": ("raw",)}


def text_of(page):
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


PAGES = sorted(
    str(file.relative_to(DOCS).with_suffix(""))
    for file in DOCS.rglob("*.md")
    if "_build" not in file.parts
)
WITH_CODE = [page for page in PAGES if "```python" in text_of(page)]


@pytest.fixture
def small_networks(monkeypatch, tmp_path):
    monkeypatch.setitem(RECIPES, "default", replace(RECIPES["default"], **FAST))
    monkeypatch.setattr(mapie_claps, "Recipe", partial(mapie_claps.Recipe, **FAST))
    monkeypatch.chdir(tmp_path)  # some blocks write files
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plt.switch_backend("agg")
    with torch.random.fork_rng():
        yield
    plt.close("all")


@pytest.mark.usefixtures("small_networks")
@pytest.mark.parametrize("page", WITH_CODE)
def test_every_block_runs_and_shows_what_it_prints(page, capsys):
    """`python docs/outputs.py` writes what is shown, with the true defaults."""
    names: dict = {}
    for code, shown in PYTHON.findall(text_of(page)):
        exec(compile(code, f"{page}.md", "exec"), names)
        assert bool(capsys.readouterr().out.strip()) == bool(shown), code


@pytest.mark.usefixtures("small_networks")
def test_the_quick_start_runs(capsys):
    """The example is the page."""
    text = QUICK_START.read_text(encoding="utf-8")
    assert "catch_warnings" not in text
    exec(compile(text, QUICK_START.name, "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("row ")  # a sentence is what is seen first
    assert "Got 'far' in column 'distance', row 0" in printed
    assert QUICK_START.stem in text_of("index")


@pytest.mark.parametrize("page", WITH_CODE)
def test_pages_name_the_extras_that_they_import(page):
    """`cli` brings what all pages may use; see docs/install.md."""
    text = text_of(page)
    code = "".join(block for block, _ in PYTHON.findall(text))
    names = re.findall(r"^ *(?:import|from) (\w+)", code, flags=re.M)
    used = set(names) - sys.stdlib_module_names - COMES_WITH_CLI
    extras = {"dask": "dask", "onnxruntime": "export"}
    wanted = {f"[{extras[name]}]" for name in used & set(extras)}
    wanted |= {f"pip install {name}`" for name in used - set(extras)}
    assert {word for word in wanted if word not in text} == set()


def test_links_to_files_lead_somewhere():
    assert {"index", "reasons", "user_guide"} <= set(WITH_CODE)
    for file in [ROOT / "README.md", *(DOCS / f"{page}.md" for page in PAGES)]:
        links = re.findall(r"\]\((?!\w+:)([^)#\s]+\.(?:md|png|py))", file.read_text())
        dead = [link for link in links if not (file.parent / link).exists()]
        assert (file.name, dead) == (file.name, [])


def test_commands_are_there():
    """Scripts and targets of make that pages tell people, or workflows, to run."""
    files = [*ROOT.glob("*.md"), *ROOT.glob(".github/workflows/*.yml")]
    text = "\n".join([*map(text_of, PAGES), *(file.read_text() for file in files)])
    scripts = re.findall(r"python ((?:docs|tests)/[\w/]+\.py)", text)
    assert {name for name in scripts if (ROOT / name).exists()} == set(scripts) != set()
    targets = set(re.findall(r"(?:^\$ |`|run: )make ([\w-]+)", text, flags=re.M))
    known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert targets - set(known) == set()
    assert re.findall(r"python -m mapie_claps\.(?!demo)\w+", text) == []
    options = set(re.findall(r"`(--\w+)", text_of("command")))
    source = (ROOT / "mapie_claps" / "__main__.py").read_text()
    assert {name for name in options if f'"{name}"' in source} == options != set()


def test_messages_that_are_quoted_are_given():
    """Each heading of the FAQ that is a message has its words, in their order."""
    sources = [file.read_text() for file in (ROOT / "mapie_claps").rglob("*.py")]
    nodes = [node for text in sources for node in ast.walk(ast.parse(text))]
    texts = [n.values for n in nodes if isinstance(n, ast.JoinedStr)]
    texts += [[n] for n in nodes if isinstance(n, ast.Constant)]
    fixed = [[p for p in text if isinstance(p, ast.Constant)] for text in texts]
    messages = ["".join(str(part.value) for part in parts) for parts in fixed]
    headings = re.findall(r"^## ((?:Got|Left) .+)$", text_of("faq"), flags=re.M)
    assert len(headings) > 10
    for heading in headings:
        text = re.sub(r" \(\w+Warning\)$", "", heading)
        varies = r"…|ClapsRegressor|GridSearchCV|standard deviation|\d[\d.]*"
        words = ".*".join(map(re.escape, re.split(varies, text)))
        assert any(re.search(words, m, flags=re.S) for m in messages), heading


def test_every_public_name_is_in_the_reference(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import api_page

    page = api_page.api_page()
    for name in mapie_claps.__all__:
        assert page.count(f"\n   {name}\n") == 1, name
    assert "\n   _" not in page
