"""Sphinx: pages in Markdown, API from the docstrings, gallery from ../examples."""

import csv
import os
import shutil
import sys
from pathlib import Path

import mapie_claps

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from address import documentation
from api_page import api_page

# The examples train small networks: one thread is fastest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "mapie_claps"
author = "The mapie_claps developers"
copyright = author
release = version = mapie_claps.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "benchmarks/peers_summary.md",
    "benchmarks/[!p]*/*.md",  # by commands; pages quote them, all but that of the peers
    "trust/*",
]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]

html_theme = "furo"
html_title = f"mapie_claps {version}"
html_baseurl = documentation(HERE.parent)  # set in pyproject.toml
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
if (HERE / "_static" / "mathjax.js").exists():  # see the Makefile
    mathjax_path = "mathjax.js"

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath", "substitution"]
myst_heading_anchors = 3


PEERS = {
    "claps": "**CLAPS**",
    "normalised-histgb": "normalised HistGB",
    "crepes": "crepes, random forest",
    "gp": "Gaussian process",
    "split-histgb": "absolute HistGB",
    "ngboost": "NGBoost",
    "cqr-forest": "quantile forest",
    "std-catboost": "CatBoost, its variance",
    "cqr-histgb": "CQR HistGB",
    "cqr-catboost": "CQR CatBoost",
}


def peers_ratios() -> str:
    """Interval scores of the benchmark over that of CLAPS, a line for each data set."""
    file = HERE / "benchmarks" / "peers" / "table.csv"
    if not file.exists():
        return "*The table will be here once `make peers` has been run.*"
    with file.open(encoding="utf-8") as rows:
        scores = {
            (row["dataset"], row["method"]): float(row["interval_score_mean"])
            for row in csv.DictReader(rows)
        }
    lines = ["| data | " + " | ".join(PEERS.values()) + " |", "|---" * 11 + "|"]
    for name in dict.fromkeys(name for name, _ in scores):
        if name != "naval":  # apart: without noise scores differ by orders of magnitude
            ratios = [scores[name, peer] / scores[name, "claps"] for peer in PEERS]
            cells = ["**1**", *(f"{ratio:.2f}" for ratio in ratios[1:])]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


myst_substitutions = {"peers_ratios": peers_ratios()}

# What is copied is code, without prompts and without what it prints.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

# Links into other libraries' pages need their inventories. The site is built without a
# network too: an inventory counts if it was put into docs/_inventories, as
# `make docs-inventories` does, and names are plain text without it.
INVENTORIES = {
    "sklearn": "https://scikit-learn.org/stable",
    "mapie": "https://mapie.readthedocs.io/en/stable",
    "torch": "https://docs.pytorch.org/docs/stable",
    "numpy": "https://numpy.org/doc/stable",
}
intersphinx_mapping = {
    name: (address + "/", str(file))
    for name, address in INVENTORIES.items()
    if (file := HERE / "_inventories" / f"{name}.inv").exists()
}

autosummary_generate = True
numpydoc_show_class_members = False
autodoc_typehints = "none"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "copyfile_regex": r".*\.rst",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "capture_repr": (),
    "min_reported_time": 1,
    "abort_on_example_error": False,
}


def write_api_page() -> None:
    """api.rst, where it has changed; pages of names that are gone go with it."""
    file, text = HERE / "api.rst", api_page()
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
        shutil.rmtree(HERE / "api_generated", ignore_errors=True)


def _pages(pattern: str) -> list[Path]:
    """Pages that a pattern of a table of contents matches."""
    excluded = {HERE / name for name in exclude_patterns}
    return [file for file in HERE.glob(pattern + ".md") if file not in excluded]


def drop_empty_patterns(app: object, page: str, source: list[str]) -> None:
    """Take patterns that match no page out of the landing page's tables of contents."""
    if page == "index":
        lines = source[0].splitlines()
        source[0] = "\n".join(x for x in lines if not x.endswith("*") or _pages(x))


def keep_signs_with_figures(app: object, page: str, source: list[str]) -> None:
    """In narrow columns a line may end before a sign, but not after it."""
    source[0] = source[0].replace(" ± ", " ±\u00a0")


def escape_trailing_underscores(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """A shape such as (n_features_in_,) is no link."""
    lines[:] = [x.replace("(n_features_in_,)", "(n_features_in\\_,)") for x in lines]


# Of ClapsRegressor, what people set; they come first in its docstring.
USUALLY_SET = ("n_members", "target_map", "categorical_features", "random_state")
USUALLY_SET += ("verbose",)


def two_groups_of_parameters(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Parameters that are rarely set have a heading of their own."""
    if name.endswith(".ClapsRegressor") and "Parameters" in lines:
        starts = [
            i
            for i, line in enumerate(lines)
            if i > lines.index("Parameters") + 1
            and " : " in line
            and line[0] != " "
            and line.partition(" : ")[0] not in USUALLY_SET
        ]
        lines[starts[0] : starts[0]] = ["", "Other Parameters", "-" * 16]


def examples_first(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """The example of a class follows its first sentence."""
    heading = ".. rubric:: Examples"
    if what == "class" and heading in lines:
        start = lines.index(heading)
        ends = (
            i
            for i, line in enumerate(lines[start + 1 :], start + 1)
            if line.startswith((".. rubric::", ":"))
        )
        end = next(ends, len(lines))
        example = [*lines[start + 1 : end], ""]
        del lines[start:end]
        first = next(i for i, line in enumerate(lines) if i and not line.strip())
        lines[first:first] = example
    if ":Other Parameters:" in lines:
        start = lines.index(":Other Parameters:")
        ends = (
            i for i, line in enumerate(lines) if i > start and line[:1] in (":", ".")
        )
        end = next(ends, len(lines))
        rarely = [":Parameters, rarely set:", *lines[start + 1 : end]]
        del lines[start:end]
        at = lines.index(":Attributes:")
        lines[at:at] = rarely
        lines[lines.index(":Parameters:")] = ":Parameters, usually set:"


def setup(app: object) -> None:
    """Connect the above; numpydoc reads docstrings with priority 500."""
    app.connect("autodoc-process-docstring", two_groups_of_parameters, priority=410)
    app.connect("autodoc-process-docstring", examples_first, priority=600)
    app.connect("source-read", drop_empty_patterns)
    app.connect("source-read", keep_signs_with_figures)
    app.connect("autodoc-process-docstring", escape_trailing_underscores, priority=400)


write_api_page()
