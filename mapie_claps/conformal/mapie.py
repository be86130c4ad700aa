"""The one place that knows MAPIE's inner workings.

Facts, as of MAPIE 0.9.2 to 1.6.0:

- A calibrated MAPIE object keeps its models in an ``EnsembleRegressor``: ``estimator_``
  of ``MapieRegressor`` (0.9) and of the hidden ``_mapie_regressor`` (1.x). Its
  ``single_estimator_`` makes the point predictions; ``estimators_`` are the models of
  the folds, and column j of ``k_`` marks the calibration rows of fold j with 1.
  Beside it, ``conformity_score_function_`` is the score in use.
- From 1.5 on, MAPIE asks the models for ``predict(X, return_std=True)`` if, and only
  if, the score is a ``StdConformityScore``. That class's own bounds take one order
  statistic too few below, and are not used here.
- In split mode the score receives the very array of standard deviations that the model
  returned, subclass and attributes included; with folds it is copied. What the score
  returns is kept as it is and handed back when predicting.
- Rows without an out-of-sample prediction reach the score as NaN.
- ``cv.split`` is called to fit and again to score: without a seed, folds are others.
- From 1.4 on ``score.get_effective_calibration_samples`` checks the number of rows; it
  refuses n = 1/alpha − 1, for which the rank exists. The consistency check, on by
  default before 1.5, compares in absolute terms, which large targets fail.
- ``predict_params`` of ``conformalize`` reach ``get_bounds`` as keyword arguments, or
  (1.5) as one argument of that name.
- MAPIE 1.x takes levels in the constructor and keeps them as ``_alphas``; 0.9 takes
  them when predicting.
"""

from typing import Any, NamedTuple

import numpy as np
from mapie.aggregation_functions import aggregate_all
from mapie.conformity_scores import BaseRegressionScore
from numpy.typing import NDArray

from .._validation import check_integer

try:
    from mapie.conformity_scores import StdConformityScore
except ImportError:  # MAPIE < 1.5
    StdConformityScore = None

Array = NDArray[np.float64]

MAPIE_PASSES_STD = StdConformityScore is not None
ScoreBase: Any = StdConformityScore if MAPIE_PASSES_STD else BaseRegressionScore
SCORE_OPTIONS = {} if MAPIE_PASSES_STD else {"consistency_check": False}
RESIDUAL_SCORE_CLIP = 1e-8


class Ensemble:
    """The models of a MAPIE object."""

    def __init__(self, ensemble: Any) -> None:
        self._ensemble = ensemble
        self.point_model = ensemble.single_estimator_
        self.fold_models = list(getattr(ensemble, "estimators_", ()))
        # Whether the model that makes the bounds made the scores on rows kept back.
        self.is_split = bool(ensemble.use_split_method_)

    def check_folds(self) -> None:
        """Raise if folds were drawn anew to score rows."""
        cv = getattr(self._ensemble, "cv", None)
        seed = getattr(cv, "random_state", 0) if getattr(cv, "shuffle", True) else 0
        hint = "MAPIE draws folds to fit, and others to score. Pass one and fit again."
        check_integer("random_state", seed, low=0, hint=hint)

    def uses_folds(self, method: str | None = None) -> bool:
        """Whether bounds come from the models of the folds."""
        plus = (method or self._ensemble.method) in ("plus", "minmax")
        return plus and not self.is_split

    @property
    def folds(self) -> NDArray[np.intp] | None:
        """Fold of each calibration row; None if some were left out by several."""
        marked = np.asarray(self._ensemble.k_) == 1
        one_each = bool((marked.sum(axis=1) == 1).all())
        return marked.argmax(axis=1) if one_each else None

    def by_row(self, by_fold: Array) -> Array:
        """From one column per fold to one per calibration row, (n_test, n_cal)."""
        found = self._ensemble._aggregate_with_mask(by_fold, self._ensemble.k_)
        return np.asarray(found)

    def aggregate(self, by_row: Array) -> Array:
        """Point predictions from those of the folds, by MAPIE's own function."""
        return np.asarray(aggregate_all(self._ensemble.agg_function, by_row))


class CalibratedMapie(NamedTuple):
    """What a calibrated MAPIE object is made of."""

    ensemble: Ensemble
    score: Any
    conformity_scores: Array  # as the score returned them
    levels: list[float] | None  # None in MAPIE 0.9, which takes them when it predicts
    has_std_score: bool  # whether MAPIE's own score makes widths in proportion to √v
    residual_estimator: Any  # predicts the scale of a ``ResidualNormalisedScore``

    @classmethod
    def of(cls, mapie: Any) -> "CalibratedMapie | None":
        """Parts of a calibrated MAPIE regressor; None for other objects."""
        inner = getattr(mapie, "_mapie_regressor", mapie)
        if type(inner).__module__.split(".")[0] != "mapie":
            return None
        ensemble = getattr(inner, "estimator_", None)
        scores = getattr(inner, "conformity_scores_", None)
        if scores is None or not hasattr(ensemble, "single_estimator_"):
            raise ValueError(
                f"Got a {type(mapie).__name__} that is not calibrated or holds no "
                "single regressor. Call conformalize (or fit, in MAPIE 0.9) first."
            )
        alphas = getattr(mapie, "_alphas", None)
        # Levels are kept as 1 − level; twelve digits undo the rounding.
        levels = None if alphas is None else [round(1 - float(a), 12) for a in alphas]
        score = inner.conformity_score_function_
        passes = MAPIE_PASSES_STD and isinstance(score, StdConformityScore)
        scale = getattr(score, "residual_estimator_", None)
        by_std = passes and score.pow == 1
        return cls(Ensemble(ensemble), score, scores, levels, by_std, scale)

    def checked_levels(self, alpha: Any) -> list[float]:
        """Confidence levels: the object's, or those that MAPIE 0.9 is to be given."""
        if self.levels is None:
            if alpha is None:
                raise ValueError(
                    "Got no level, and MapieRegressor of MAPIE 0.9 keeps none. Pass "
                    "for example alpha=0.1 (from_mapie: confidence_level=0.9)."
                )
            return [1 - float(a) for a in np.atleast_1d(np.asarray(alpha))]
        if alpha is not None:
            raise ValueError(
                f"Got alpha={alpha!r}, but the MAPIE object was made with "
                f"confidence_level={self.levels}. Leave alpha out."
            )
        return self.levels
