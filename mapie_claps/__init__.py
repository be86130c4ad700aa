"""CLAPS for MAPIE: intervals that say why they are wide.

The data flow through the modules in this order::

    X → φ, μ, h²   _network, _training,     heteroscedastic networks
                   _backpropagation         and their gradient
      → HᵀWH       curvature                likelihood adapter for laplace-torch
      → Σ → v      _posterior               last-layer posterior, predictive variance
                   regressor                ClapsRegressor: arrays in, arrays out
      → score      conformity_score         ClapsScore for MAPIE
                   scale_estimator          ClapsScaleEstimator for MAPIE's own score
      → interval   made by MAPIE
      → why        explanation              explain
      → evaluation metrics

    the same for a network of the user's own: module; with more rows: updating; from
    batches: streaming; on a cluster: distributed; to a file and back: persistence
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._quantile import conformal_quantile, conformal_rank
    from ._sums import LastLayerSums
    from .conformity_score import ClapsScore
    from .curvature import HeteroscedasticGGN, TensorLoader
    from .explanation import Explanation, explain
    from .module import ClapsModule
    from .persistence import load, save
    from .regressor import ClapsRegressor, PredictiveVariance
    from .scale_estimator import ClapsScaleEstimator
    from .streaming import StreamingConformalRegressor
    from .training import train_on_batches
    from .updating import partial_sums, sums_of, update_posterior, with_sums

    __version__: str

__all__ = [
    "ClapsModule",
    "ClapsRegressor",
    "ClapsScaleEstimator",
    "ClapsScore",
    "Explanation",
    "HeteroscedasticGGN",
    "LastLayerSums",
    "PredictiveVariance",
    "StreamingConformalRegressor",
    "TensorLoader",
    "conformal_quantile",
    "conformal_rank",
    "explain",
    "load",
    "partial_sums",
    "save",
    "sums_of",
    "train_on_batches",
    "update_posterior",
    "with_sums",
]

# Loaded when first asked for: who needs one name does not wait for all modules.
_MODULES = {
    "_quantile": ("conformal_quantile", "conformal_rank"),
    "_sums": ("LastLayerSums",),
    "conformity_score": ("ClapsScore",),
    "curvature": ("HeteroscedasticGGN", "TensorLoader"),
    "explanation": ("Explanation", "explain"),
    "module": ("ClapsModule",),
    "persistence": ("load", "save"),
    "regressor": ("ClapsRegressor", "PredictiveVariance"),
    "scale_estimator": ("ClapsScaleEstimator",),
    "streaming": ("StreamingConformalRegressor",),
    "training": ("train_on_batches",),
    "updating": ("partial_sums", "sums_of", "update_posterior", "with_sums"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("mapie-claps")
    elif name in _MODULE_OF:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    elif name in _MODULES:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
