"""CLAPS for MAPIE: intervals that say why they are wide.

The folders are the arrows of the method; a module imports only from those above it::

    X → φ, μ, h²   network       a table becomes numbers; members, training, kernel
      → HᵀWH → Σ   posterior     likelihood adapter and last layers of laplace-torch
      → v          estimators    ClapsRegressor, ClapsModule, ClapsResidualRegressor
                                 around any model; PredictiveDistribution
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
                   __main__      python -m mapie_claps fit, predict, report

``import mapie_claps`` loads neither torch nor MAPIE: names are imported when asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` makes a name public
    from .conformal.calibrated import CalibratedRegressor as CalibratedRegressor
    from .conformal.quantile import conformal_quantile as conformal_quantile
    from .conformal.quantile import conformal_rank as conformal_rank
    from .conformal.score import ClapsScaleEstimator as ClapsScaleEstimator
    from .conformal.score import ClapsScore as ClapsScore
    from .conformal.shift import ColumnGroups as ColumnGroups
    from .conformal.shift import EpistemicGroups as EpistemicGroups
    from .conformal.shift import likelihood_ratio as likelihood_ratio
    from .diagnostics import Explanation as Explanation
    from .diagnostics import explain as explain
    from .estimators.module import ClapsModule as ClapsModule
    from .estimators.predictive import PredictiveDistribution as PredictiveDistribution
    from .estimators.predictive import PredictiveVariance as PredictiveVariance
    from .estimators.recipe import Recipe as Recipe
    from .estimators.regressor import ClapsRegressor as ClapsRegressor
    from .estimators.residual import ClapsResidualRegressor as ClapsResidualRegressor
    from .files import load as load
    from .files import save as save
    from .posterior.curvature import HeteroscedasticGGN as HeteroscedasticGGN
    from .posterior.last_layer import LastLayerSums as LastLayerSums

    __version__: str

_MODULES = {
    "conformal.calibrated": "CalibratedRegressor",
    "conformal.quantile": "conformal_quantile conformal_rank",
    "conformal.score": "ClapsScaleEstimator ClapsScore",
    "conformal.shift": "ColumnGroups EpistemicGroups likelihood_ratio",
    "diagnostics": "Explanation explain",
    "estimators.module": "ClapsModule",
    "estimators.predictive": "PredictiveDistribution PredictiveVariance",
    "estimators.recipe": "Recipe",
    "estimators.regressor": "ClapsRegressor",
    "estimators.residual": "ClapsResidualRegressor",
    "files": "load save",
    "posterior.curvature": "HeteroscedasticGGN",
    "posterior.last_layer": "LastLayerSums",
}
_MODULE_OF = {name: at for at, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


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
