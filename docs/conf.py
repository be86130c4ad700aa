"""Sphinx: pages in Markdown, API from the docstrings, gallery from ../examples."""

import importlib
import inspect
import os
import pkgutil
import warnings
from pathlib import Path

import mapie_claps

HERE = Path(__file__).parent
# The examples train small networks: one thread is fastest.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# laplace-torch reaches torch.jit through torchmetrics on import.
warnings.filterwarnings("ignore", message="`torch.jit", category=FutureWarning)

project = "mapie_claps"
author = "The mapie_claps developers"
copyright = author
release = version = mapie_claps.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "benchmarks/peers_summary.md", "trust/*"]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]

html_theme = "furo"
html_title = "mapie_claps"
html_static_path = ["_static"]
if (HERE / "_static" / "mathjax.js").exists():  # see the Makefile
    mathjax_path = "mathjax.js"

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath", "substitution"]
myst_heading_anchors = 3


def peers_summary() -> str:
    """Tables of the benchmark, once they have been made."""
    file = HERE / "benchmarks" / "peers_summary.md"
    if file.exists():
        return file.read_text()
    return (
        "*The tables stand here once `python -m mapie_claps.benchmarks peers` has been "
        "run and its summary saved as `docs/benchmarks/peers_summary.md`.*"
    )


myst_substitutions = {"peers_summary": peers_summary()}

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

NOT_IN_THE_REFERENCE = {"benchmarks", "demo", "experiments"}


def public_names(module: object) -> list[str]:
    """``__all__``, or the classes that a module defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    classes = inspect.getmembers(module, inspect.isclass)
    return [name for name, value in classes if value.__module__ == module.__name__]


def write_api_page() -> None:
    """api.rst: all public names, so that the reference is complete by construction."""
    parts = ["API reference", "=============", ""]
    done: set[int] = set()
    modules = [mapie_claps]
    for info in pkgutil.iter_modules(mapie_claps.__path__):
        if not info.name.startswith("_") and info.name not in NOT_IN_THE_REFERENCE:
            modules.append(importlib.import_module(f"mapie_claps.{info.name}"))
    for module in modules:
        names = [n for n in public_names(module) if id(getattr(module, n)) not in done]
        documented = [n for n in names if callable(getattr(module, n))]
        done.update(id(getattr(module, n)) for n in names)
        if not documented:
            continue
        parts += [module.__name__, "-" * len(module.__name__), ""]
        parts += [f".. currentmodule:: {module.__name__}", "", ".. autosummary::"]
        parts += ["   :toctree: api_generated", ""]
        parts += [f"   {name}" for name in documented] + [""]
    text = "\n".join(parts)
    file = HERE / "api.rst"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def _pages(pattern: str) -> list[Path]:
    """Pages that a pattern of a table of contents matches."""
    excluded = {HERE / name for name in exclude_patterns}
    return [file for file in HERE.glob(pattern + ".md") if file not in excluded]


def drop_empty_patterns(app: object, page: str, source: list[str]) -> None:
    """Take patterns that match no page out of the landing page's tables of contents."""
    if page == "index":
        lines = source[0].splitlines()
        source[0] = "\n".join(x for x in lines if not x.endswith("*") or _pages(x))


def escape_trailing_underscores(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """A shape such as (n_features_in_,) is no link."""
    lines[:] = [x.replace("(n_features_in_,)", "(n_features_in\\_,)") for x in lines]


def setup(app: object) -> None:
    """Connect the above; numpydoc reads docstrings with priority 500."""
    app.connect("source-read", drop_empty_patterns)
    app.connect("autodoc-process-docstring", escape_trailing_underscores, priority=400)


write_api_page()
