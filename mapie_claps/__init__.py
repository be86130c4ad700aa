"""CLAPS for MAPIE: intervals that say why they are wide.

The folders are the arrows of the method; a module imports only from those above it::

    X → φ, μ, h²   network       a table becomes numbers; members, training, kernel
      → HᵀWH → Σ   posterior     likelihood adapter and last layers of laplace-torch
      → v          estimators    ClapsRegressor, ClapsModule; PredictiveDistribution
      → score      conformal     ClapsScore, and the one file that knows MAPIE
      → interval                 CalibratedRegressor: ranks, groups, weights, levels
      → evaluation metrics       coverage, width, score
      → why        diagnostics   explain, by column, tables
      → pictures   plots
      → page       report        one HTML file of all that

    elsewhere      files         save and load, without pickle
                   export        torch.export and ONNX
                   distributed   the same over Dask collections
                   datasets      a real table; problems with known noise
                   demo          python -m mapie_claps.demo
                   __main__      python -m mapie_claps fit, predict, report

``import mapie_claps`` loads neither torch nor MAPIE: names are imported when asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conformal.calibrated import CalibratedRegressor, StreamingConformalRegressor
    from .conformal.quantile import conformal_quantile, conformal_rank
    from .conformal.scale_estimator import ClapsScaleEstimator
    from .conformal.score import ClapsScore
    from .conformal.shift import (
        ColumnGroups,
        EpistemicGroups,
        likelihood_ratio,
    )
    from .diagnostics import Explanation, explain
    from .estimators.module import ClapsModule
    from .estimators.predictive import PredictiveDistribution, PredictiveVariance
    from .estimators.recipe import Recipe
    from .estimators.regressor import ClapsRegressor
    from .files import load, save
    from .posterior.curvature import HeteroscedasticGGN
    from .posterior.last_layer import LastLayerSums

    __version__: str

__all__ = [
    "CalibratedRegressor",
    "ClapsModule",
    "ClapsRegressor",
    "ClapsScaleEstimator",
    "ClapsScore",
    "ColumnGroups",
    "EpistemicGroups",
    "Explanation",
    "HeteroscedasticGGN",
    "LastLayerSums",
    "PredictiveDistribution",
    "PredictiveVariance",
    "Recipe",
    "StreamingConformalRegressor",
    "conformal_quantile",
    "conformal_rank",
    "explain",
    "likelihood_ratio",
    "load",
    "save",
]

_MODULES = {
    "conformal.calibrated": ("CalibratedRegressor", "StreamingConformalRegressor"),
    "conformal.quantile": ("conformal_quantile", "conformal_rank"),
    "conformal.scale_estimator": ("ClapsScaleEstimator",),
    "conformal.score": ("ClapsScore",),
    "conformal.shift": (
        "ColumnGroups",
        "EpistemicGroups",
        "likelihood_ratio",
    ),
    "diagnostics": ("Explanation", "explain"),
    "estimators.module": ("ClapsModule",),
    "estimators.predictive": ("PredictiveDistribution", "PredictiveVariance"),
    "estimators.recipe": ("Recipe",),
    "estimators.regressor": ("ClapsRegressor",),
    "files": ("load", "save"),
    "posterior.curvature": ("HeteroscedasticGGN",),
    "posterior.last_layer": ("LastLayerSums",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("mapie-claps")
    elif name in _MODULE_OF:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
