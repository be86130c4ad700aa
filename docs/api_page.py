"""The API reference: a page with every public name, so that none can be missing."""

import importlib
import inspect
import pkgutil
from types import ModuleType

import mapie_claps

# Groups in the order of the page: a title, a sentence, and names with their module, or
# modules as a whole. What is in no group comes last, so that nothing is left out.
GROUPS = [
    (
        "Everyday",
        "A model, its intervals, and why they are wide.",
        [
            "mapie_claps.ClapsRegressor",
            "mapie_claps.CalibratedRegressor",
            "mapie_claps.ClapsScore",
            "mapie_claps.explain",
            "mapie_claps.Explanation",
            "mapie_claps.PredictiveVariance",
            "mapie_claps.PredictiveDistribution",
            "mapie_claps.save",
            "mapie_claps.load",
            "mapie_claps.diagnostics",
            "mapie_claps.plots",
            "mapie_claps.metrics",
        ],
    ),
    (
        "Own networks and other models",
        "CLAPS for a network that you have trained, and around any other model.",
        [
            "mapie_claps.ClapsModule",
            "mapie_claps.ClapsResidualRegressor",
            "mapie_claps.ClapsScaleEstimator",
        ],
    ),
    (
        "Large data and production",
        "Rows in batches, sums that add up, a cluster, and a file that runs alone.",
        [
            "mapie_claps.LastLayerSums",
            "mapie_claps.distributed",
            "mapie_claps.export",
        ],
    ),
]
REST = ("Building blocks", "What the above is made of, and what it raises.")


def public_modules() -> list[ModuleType]:
    """The package and its public modules."""
    names = [info.name for info in pkgutil.iter_modules(mapie_claps.__path__)]
    shown = [name for name in names if name[0] != "_"]
    return [mapie_claps, *(importlib.import_module(f"mapie_claps.{n}") for n in shown)]


def public_names(module: ModuleType) -> list[str]:
    """``__all__``, or the classes that a module defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    classes = inspect.getmembers(module, inspect.isclass)
    own = [name for name, value in classes if value.__module__ == module.__name__]
    return [name for name in own if name[0] != "_"]


def all_names() -> list[tuple[str, str]]:
    """Module and name of all that is public; of two places the first."""
    done: set[int] = set()
    found = []
    for module in public_modules():
        for name in public_names(module):
            if id(getattr(module, name)) not in done:
                done.add(id(getattr(module, name)))
                found.append((module.__name__, name))
    return found


def api_page() -> str:
    """Text of api.rst."""
    parts = ["API reference", "=============", ""]
    left = all_names()
    for title, text, members in GROUPS:
        chosen = [
            pair
            for member in members
            for pair in left
            if member in (pair[0], ".".join(pair)) and member != "mapie_claps"
        ]
        left = [pair for pair in left if pair not in chosen]
        parts += _section(title, text, chosen)
    return "\n".join(parts + _section(*REST, left))


def _section(title: str, text: str, pairs: list[tuple[str, str]]) -> list[str]:
    """One group, module by module."""
    lines = [title, "-" * len(title), "", text, ""]
    for module in dict.fromkeys(module for module, _ in pairs):
        if module != "mapie_claps":
            lines += [f"``{module}``", ""]
        lines += [f".. currentmodule:: {module}", "", ".. autosummary::"]
        lines += ["   :toctree: api_generated", "   :nosignatures:", ""]
        lines += [f"   {name}" for found, name in pairs if found == module] + [""]
    return lines
