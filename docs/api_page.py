"""The API reference: a page with every public name, so that none can be missing."""

import importlib
import inspect
import pkgutil
from types import ModuleType

import mapie_claps

# Commands, described where they are used.
NOT_IN_THE_REFERENCE = {"benchmarks", "demo", "experiments", "studies"}


def public_modules() -> list[ModuleType]:
    """The package and its public modules."""
    names = [info.name for info in pkgutil.iter_modules(mapie_claps.__path__)]
    shown = [n for n in names if n[0] != "_" and n not in NOT_IN_THE_REFERENCE]
    return [mapie_claps, *(importlib.import_module(f"mapie_claps.{n}") for n in shown)]


def public_names(module: ModuleType) -> list[str]:
    """``__all__``, or the classes that a module defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    classes = inspect.getmembers(module, inspect.isclass)
    return [name for name, value in classes if value.__module__ == module.__name__]


def api_page() -> str:
    """Text of api.rst; a name that is in two modules is shown in the first."""
    parts = ["API reference", "=============", ""]
    done: set[int] = set()
    for module in public_modules():
        names = [n for n in public_names(module) if id(getattr(module, n)) not in done]
        done.update(id(getattr(module, n)) for n in names)
        if not names:
            continue
        parts += [module.__name__, "-" * len(module.__name__), ""]
        parts += [f".. currentmodule:: {module.__name__}", "", ".. autosummary::"]
        parts += ["   :toctree: api_generated", ""]
        parts += [f"   {name}" for name in names] + [""]
    return "\n".join(parts)
