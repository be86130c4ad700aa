"""CLAPS for MAPIE: intervals that say why they are wide.

The folders are the arrows; each imports only those above it::

    to a file and back: files

    X → φ, μ, h²   network      encoding, views, members, training; your own network
      → HᵀWH → Σ   posterior    likelihood adapter for laplace-torch, sums, Gaussian
      → v                       the four scales
                   estimators   ClapsRegressor, ClapsModule: arrays in, arrays out
      → score      conformal    ClapsScore and all that knows MAPIE
      → interval                made by MAPIE, or from batches, or on a cluster
      → evaluation metrics      coverage, width, score
      → why        reasons      explain, diagnose
      → pictures   plots
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conformal.calibrated import CalibratedRegressor
    from .conformal.explanation import Explanation
    from .conformal.groups import ColumnGroups, EpistemicGroups
    from .conformal.likelihood_ratio import LikelihoodRatio, likelihood_ratio
    from .conformal.monitor import ExchangeabilityMonitor
    from .conformal.quantile import conformal_quantile, conformal_rank
    from .conformal.scale_estimator import ClapsScaleEstimator
    from .conformal.score import ClapsScore
    from .conformal.streaming import StreamingConformalRegressor
    from .conformal.weighted import effective_sample_size
    from .estimators.module import ClapsModule
    from .estimators.regressor import ClapsRegressor
    from .estimators.updating import partial_sums, sums_of, update_posterior, with_sums
    from .estimators.variance import PredictiveVariance
    from .network.batch_training import train_on_batches
    from .persistence import load, save
    from .posterior.curvature import HeteroscedasticGGN
    from .posterior.loaders import TensorLoader
    from .posterior.sums import LastLayerSums
    from .reasons.explain import explain

    __version__: str

__all__ = [
    "CalibratedRegressor",
    "ClapsModule",
    "ClapsRegressor",
    "ClapsScaleEstimator",
    "ClapsScore",
    "ColumnGroups",
    "EpistemicGroups",
    "ExchangeabilityMonitor",
    "Explanation",
    "HeteroscedasticGGN",
    "LastLayerSums",
    "LikelihoodRatio",
    "PredictiveVariance",
    "StreamingConformalRegressor",
    "TensorLoader",
    "conformal_quantile",
    "conformal_rank",
    "effective_sample_size",
    "explain",
    "likelihood_ratio",
    "load",
    "partial_sums",
    "save",
    "sums_of",
    "train_on_batches",
    "update_posterior",
    "with_sums",
]

# Lazy imports: torch is loaded with the first name that needs it.
_MODULES = {
    "conformal.quantile": ("conformal_quantile", "conformal_rank"),
    "posterior.sums": ("LastLayerSums",),
    "conformal.score": ("ClapsScore",),
    "posterior.curvature": ("HeteroscedasticGGN",),
    "posterior.loaders": ("TensorLoader",),
    "conformal.explanation": ("Explanation",),
    "reasons.explain": ("explain",),
    "estimators.module": ("ClapsModule",),
    "persistence": ("load", "save"),
    "estimators.regressor": ("ClapsRegressor",),
    "estimators.variance": ("PredictiveVariance",),
    "conformal.scale_estimator": ("ClapsScaleEstimator",),
    "conformal.calibrated": ("CalibratedRegressor",),
    "conformal.streaming": ("StreamingConformalRegressor",),
    "conformal.groups": ("ColumnGroups", "EpistemicGroups"),
    "conformal.likelihood_ratio": ("LikelihoodRatio", "likelihood_ratio"),
    "conformal.monitor": ("ExchangeabilityMonitor",),
    "conformal.weighted": ("effective_sample_size",),
    "network.batch_training": ("train_on_batches",),
    "estimators.updating": ("partial_sums", "sums_of", "update_posterior", "with_sums"),
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
