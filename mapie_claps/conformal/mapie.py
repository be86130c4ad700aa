"""The one place that knows MAPIE's inner workings.

Facts, as of MAPIE 0.9.2 to 1.6.0:

- A fitted MAPIE object keeps its models in an ``EnsembleRegressor``: ``estimator_`` of
  ``MapieRegressor`` (0.9) and of the hidden ``_mapie_regressor`` (1.x). Its
  ``single_estimator_`` makes the point predictions; ``estimators_`` are the models of
  the folds, and column j of ``k_`` marks the calibration rows of fold j with 1.
  Beside it, ``conformity_score_function_`` is the score in use.
- From 1.5 on, MAPIE asks the models for ``predict(X, return_std=True)`` if, and only
  if, the score is an instance of ``StdConformityScore``. That class's own bounds take
  one order statistic too few below, build an n_test × n_cal matrix and ignore
  ``minimize_interval_width``; none of them is used here.
- In split mode the score receives the very array of standard deviations that the model
  returned, subclass and attributes included; what the score returns is kept as it is
  (its absolute value) and handed back when predicting. With folds both are copied.
- The first thing that MAPIE (1.6) wants of a score while it calibrates is the attribute
  ``multi_output``; only then the model's ``predict`` is called, and a model that takes
  no ``return_std`` ends there, in Python's words. Whoever reads that attribute is the
  object that holds the model.
- Rows without an out-of-sample prediction reach the score as NaN.
- The number of calibration rows is checked by
  ``score.get_effective_calibration_samples`` from 1.4 on; the check refuses
  n = 1/alpha − 1 rows, for which the rank exists.
- The score's consistency check, on by default before 1.5, compares in absolute terms,
  which large targets fail.
- ``predict_params`` of ``conformalize`` reach ``get_bounds`` as keyword arguments, or
  (1.5) as one argument of that name.
- MAPIE 1.x takes levels in the constructor and keeps them as ``_alphas``; 0.9 takes
  them when predicting.
- ``OnlineMartingaleTest`` (1.6) computes p-values and the wealth of its bets by public
  methods that need no MAPIE estimator; its own ``update`` wants one, and copies it. Its
  p-value compares with every earlier score, and takes one number from ``rng``.
- ``TimeSeriesRegressor`` refuses scores that are ``StdConformityScore``, as ours is
  from 1.5 on; it takes ``ResidualNormalisedScore(ClapsScaleEstimator(...))``.
- ``ResidualNormalisedScore`` clips the scale when it calibrates, but not when it
  predicts; below the clip, intervals lose their coverage without a word.
"""

import sys
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from mapie.aggregation_functions import aggregate_all
from mapie.conformity_scores import BaseRegressionScore
from numpy.typing import NDArray

try:
    from mapie.conformity_scores import StdConformityScore
except ImportError:  # MAPIE < 1.5
    StdConformityScore = None

Array = NDArray[np.float64]

MAPIE_PASSES_STD = StdConformityScore is not None
ScoreBase: Any = StdConformityScore if MAPIE_PASSES_STD else BaseRegressionScore
SCORE_OPTIONS: dict[str, Any] = (
    {"sym": True} if MAPIE_PASSES_STD else {"sym": True, "consistency_check": False}
)
RESIDUAL_SCORE_CLIP = 1e-8


def point_model(ensemble: Any) -> Any:
    """Model that makes the point predictions."""
    return ensemble.single_estimator_


def fold_models(ensemble: Any) -> list[Any]:
    """Models of the folds."""
    return list(ensemble.estimators_)


def is_split(ensemble: Any) -> bool:
    """Whether the model that makes the bounds made the scores, on rows kept back."""
    return bool(ensemble.use_split_method_)


def uses_folds(ensemble: Any, method: str) -> bool:
    """Whether bounds come from the models of the folds."""
    return method in ("plus", "minmax") and not is_split(ensemble)


def scale_models(ensemble: Any) -> list[Any]:
    """Models whose scale makes the bounds."""
    if uses_folds(ensemble, ensemble.method):
        return fold_models(ensemble)
    return [point_model(ensemble)]


def aggregate_folds(ensemble: Any, by_fold: Array) -> Array:
    """From one column per fold to one per calibration row, (n_test, n_cal)."""
    return np.asarray(ensemble._aggregate_with_mask(by_fold, ensemble.k_))


def aggregate_points(ensemble: Any, by_row: Array) -> Array:
    """Point predictions from those of the folds, by MAPIE's aggregation function."""
    return np.asarray(aggregate_all(ensemble.agg_function, by_row))


def predict_params_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the models' ``predict`` among the arguments of ``get_bounds``."""
    rest = dict(arguments)
    return {**(rest.pop("predict_params", None) or {}), **rest}


def check_out_of_sample(y_pred: Array) -> None:
    """Raise if there are rows that no model predicted out of sample."""
    missing = int(np.isnan(y_pred).sum())
    if missing:
        raise ValueError(
            f"Got {missing} of {len(y_pred)} rows without an out-of-sample prediction "
            "(NaN in y_pred), so that they have no score. With CrossConformalRegressor "
            "use a splitter whose test folds hold every row, such as KFold; with "
            "JackknifeAfterBootstrapRegressor raise the number of resamplings "
            "(resampling=...)."
        )


def calibrating_model() -> Any:
    """Model of the MAPIE object that is reading an attribute of its score, or None.

    To be called from a property of the score: two frames up is its reader.
    """
    reader = sys._getframe(2).f_locals.get("self")
    inner = None if reader is None else regressor_of(reader)
    return None if inner is None else getattr(inner, "estimator", None)


def regressor_of(mapie: Any) -> Any:
    """The object that holds ``estimator_``; None if this is no MAPIE regressor."""
    inner = getattr(mapie, "_mapie_regressor", mapie)
    is_mapie = type(inner).__module__.split(".")[0] == "mapie"
    return inner if is_mapie else None


def ensemble_of(mapie: Any) -> Any:
    """Models of a calibrated MAPIE object; None if this is no MAPIE regressor."""
    inner = regressor_of(mapie)
    if inner is None:
        return None
    ensemble = getattr(inner, "estimator_", None)
    if not hasattr(ensemble, "single_estimator_"):
        raise ValueError(
            f"Got a {type(mapie).__name__} that is not calibrated or holds no single "
            "regressor. Call conformalize (or fit, in MAPIE 0.9) first."
        )
    return ensemble


def score_of(mapie: Any) -> Any:
    """Score of a calibrated MAPIE object."""
    return regressor_of(mapie).conformity_score_function_


def conformity_scores_of(mapie: Any) -> Array:
    """Scores of the calibration rows, as the score function returned them."""
    scores: Array = regressor_of(mapie).conformity_scores_
    return scores


def levels_of(mapie: Any) -> list[float] | None:
    """Confidence levels; None for MAPIE 0.9, which takes them when it predicts."""
    alphas = getattr(mapie, "_alphas", None)
    # Levels are kept as 1 − level; twelve digits undo the rounding.
    return None if alphas is None else [round(1 - float(a), 12) for a in alphas]


def is_std_score(score: Any) -> bool:
    """Whether widths are proportional to the models' standard deviation."""
    return MAPIE_PASSES_STD and isinstance(score, StdConformityScore) and score.pow == 1


def residual_estimator_of(score: Any) -> Any:
    """What predicts the scale of a ``ResidualNormalisedScore``; None for others."""
    return getattr(score, "residual_estimator_", None)


def predict_interval(
    mapie: Any, X: Any, alpha: Any, params: dict[str, Any]
) -> tuple[Array, Array, Sequence[float]]:
    """Predictions (n,), bounds (n, 2, n_levels) and levels of either MAPIE."""
    alphas = getattr(mapie, "_alphas", None)
    if alphas is None:
        if alpha is None:
            raise ValueError(
                "Got alpha=None, but MapieRegressor of MAPIE 0.9 keeps no level. Pass "
                "explain(mapie, X, alpha=0.1)."
            )
        points, bounds = mapie.predict(X, alpha=alpha, **params)
        return points, bounds, [1 - float(a) for a in np.atleast_1d(np.asarray(alpha))]
    levels = [1 - float(a) for a in alphas]
    if alpha is not None:
        raise ValueError(
            f"Got alpha={alpha!r}, but {type(mapie).__name__} was made with "
            f"confidence_level={levels}. Leave alpha out."
        )
    points, bounds = mapie.predict_interval(X, **params)
    return points, bounds, levels


class JumperMartingale:
    """MAPIE's bet against exchangeability, on any numbers, from a reference on.

    Under exchangeability the smoothed ranks of new values among all earlier ones are
    independent and uniform, so that the wealth exceeds 1/level with a probability of at
    most ``level``, ever. Reference values are not bet on.

    A bet that has lost nearly all is given up for a new one: after 10,000 exchangeable
    rows MAPIE's wealth is about 10⁻¹⁵, after 200,000 it is 0 in double precision, and
    no change would be seen any more. Bet k has 1/(k(k + 1)) of the wealth at the start;
    all bets and what is not yet spent are one martingale.
    """

    GIVEN_UP = 0.01

    def __init__(
        self,
        reference: Array,
        level: float,
        rng: np.random.Generator,
        p_values: Sequence[float] = (),
    ) -> None:
        try:
            from mapie.exchangeability_testing import OnlineMartingaleTest
        except ImportError as error:
            raise ImportError(
                "The monitor needs the martingales of MAPIE 1.6 or later: pip install "
                "'mapie>=1.6'."
            ) from error
        self.level, self.rng = level, rng
        self.p_values: list[float] = []
        self.alarm: int | None = None
        self._new_bet = partial(OnlineMartingaleTest, task="regression", warn=False)
        self._values = np.array(reference, dtype=np.float64)
        self._n = len(self._values)
        self._lost, self._n_bets = 0.0, 0
        self._start_bet()
        for p in p_values:
            self._bet(p)

    @property
    def values(self) -> Array:
        """Reference and new values, in the order in which they came."""
        return self._values[: self._n]

    def after(self, values: Array) -> "JumperMartingale":
        """After bets on new values, one after another; this object stays as it is."""
        new = copy(self)
        new.p_values, new._test = list(self.p_values), copy(self._test)
        room = self._n + len(values)
        if room > len(self._values):
            new._values = np.empty(2 * room)
            new._values[: self._n] = self.values
        for value in values.tolist():
            new._bet(new._test.compute_p_value(value, new.values))
            new._values[new._n] = value
            new._n += 1
        return new

    def _bet(self, p: float) -> None:
        with np.errstate(over="ignore"):  # wealth may become infinite
            self._test.update_simple_jumper_martingale(p)
        self.p_values.append(p)
        if self.alarm is None and self.wealth > 1 / self.level:
            self.alarm = self.n_rows
        if self._test.current_martingale_value < self.GIVEN_UP:
            self._lost += self._share * self._test.current_martingale_value
            self._start_bet()

    def _start_bet(self) -> None:
        self._test = self._new_bet()
        self._test.rng = self.rng
        self._n_bets += 1

    @property
    def _share(self) -> float:
        return 1 / (self._n_bets * (self._n_bets + 1))

    @property
    def wealth(self) -> float:
        """Wealth, from 1 on."""
        unspent = 1 / (self._n_bets + 1)
        own = self._share * float(self._test.current_martingale_value)
        return self._lost + own + unspent

    @property
    def n_rows(self) -> int:
        """Values bet on."""
        return len(self.p_values)
