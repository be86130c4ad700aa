"""The calibrated object of the library: ``CalibratedRegressor``."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import _num_samples

from .._validation import check_choice, check_share
from ..estimators.regressor import ClapsRegressor
from ..network.batches import check_has_target
from ..network.inputs import check_lengths, check_target
from ..network.table import check_rows
from . import mapie as _mapie
from .calibrated_file import register_calibrated
from .calibration import Calibrated
from .calibration_state import State
from .parts import check_unchanged
from .row_rule import CalibrationRows, RowValues
from .score import ClapsScore


class CalibratedRegressor(Calibrated, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Calibrated intervals and predictive distributions, from ``fit`` to a file.

    :math:`C_\alpha(x) = \{y : |s(x, y)| \le q_\alpha\}`, with :math:`q_\alpha` the
    :math:`\lceil(n+1)(1-\alpha)\rceil`-th smallest of the calibration rows' scores.

    ``fit`` keeps back some rows, fits the estimator on the others and calibrates on
    those kept back. With a fitted estimator, ``conformalize`` calibrates on rows that
    it has not seen; they may come in batches and need not fit in memory. Intervals are
    those of ``SplitConformalRegressor(estimator, conformity_score=ClapsScore(),
    prefit=True)`` of MAPIE, to the last bit; beyond them the same scores give
    quantiles, probabilities and draws.

    Parameters
    ----------
    estimator : estimator or None, default=None
        With ``predict(X, return_std=True)``; None for a ``ClapsRegressor``. To be
        fitted on a copy by ``fit``, or fitted already. Of a search, such as
        ``GridSearchCV``, ``fit`` takes the model that it chose.
    confidence_level : float or sequence of float, default=0.9
        Levels 1 − α of the intervals.
    sym : bool, default=True
        One rank for both ends, or one rank at α/2 for each; see
        :class:`~mapie_claps.ClapsScore`.
    support : str, tuple, array-like or None, default="auto"
        Values that y can take; see :class:`~mapie_claps.ClapsScore`.
    calibration_fraction : float, default=0.25
        Share of the rows that ``fit`` keeps back.
    keep_training_rows : bool, default=False
        Whether ``fit`` keeps the rows that it fitted on, for
        :func:`~mapie_claps.diagnostics.nearest_rows`. They stay in memory and in
        pickles; ``save`` never writes them.
    random_state : int, RandomState or None, default=None
        Seed of the split, and of a default estimator.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator.
    signed_scores_ : ndarray of shape (n_cal,)
        Signed scores of the calibration rows, in the order in which they came.
    conformity_scores_ : ndarray of shape (n_cal,)
        Their absolute values.
    training_rows_ : tuple of X and y
        The rows that ``fit`` fitted on, if ``keep_training_rows``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (400, 1))
    >>> y = np.exp(X[:, 0] + rng.normal(0, 0.3, 400))
    >>> model = CalibratedRegressor(
    ...     ClapsRegressor(n_members=2, target_map="log"), random_state=0).fit(X, y)
    >>> y_pred, y_interval = model.predict_interval(X[:5])
    >>> y_interval.shape, bool((y_interval > 0).all())
    ((5, 2, 1), True)
    >>> model.predict_quantiles(X[:5], [0.05, 0.5, 0.95]).shape
    (5, 3)
    >>> bool(model.probability([[0.0]], above=5.0)[0] < 0.1)
    True
    """

    _HOW_TO_CALIBRATE = "fit, or conformalize with a fitted estimator"

    def __init__(
        self,
        estimator: Any = None,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        sym: bool = True,
        support: Any = "auto",
        calibration_fraction: float = 0.25,
        keep_training_rows: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(estimator, confidence_level, sym=sym, support=support)
        self.calibration_fraction = calibration_fraction
        hint = "Use 0.25 if unsure."
        check_share("calibration_fraction", calibration_fraction, hint=hint)
        self.keep_training_rows = keep_training_rows
        check_choice(
            "keep_training_rows", keep_training_rows, (True, False), "Use False."
        )
        self.random_state = random_state

    @classmethod
    def from_mapie(
        cls, mapie: Any, confidence_level: float | Sequence[float] | None = None
    ) -> Self:
        """Take over model and scores of a calibrated MAPIE object, to save them.

        Parameters
        ----------
        mapie : object
            A calibrated ``SplitConformalRegressor`` (``MapieRegressor`` of MAPIE 0.9
            with ``cv="prefit"`` or ``"split"``) with a ``ClapsScore``.
        confidence_level : float or sequence of float, optional
            Levels of the intervals; None for those of the object. MAPIE 0.9 keeps
            none.

        Returns
        -------
        CalibratedRegressor
            Object with the same intervals. MAPIE keeps absolute scores, so that it
            has no distribution unless the score was made with ``sym=False``.

        Examples
        --------
        >>> import numpy as np
        >>> from mapie.regression import SplitConformalRegressor
        >>> from mapie_claps import CalibratedRegressor, ClapsRegressor, ClapsScore
        >>> X = np.linspace(-2, 2, 200)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> mapie = SplitConformalRegressor(
        ...     ClapsRegressor.paper(random_state=0), confidence_level=0.8,
        ...     conformity_score=ClapsScore(), prefit=False)
        >>> mapie = mapie.fit(X[::2], y[::2]).conformalize(X[1::2], y[1::2])
        >>> model = CalibratedRegressor.from_mapie(mapie)
        >>> model.levels, len(model.conformity_scores_)
        ([0.8], 100)
        """
        ensemble = _mapie.ensemble_of(mapie)
        if ensemble is None or not isinstance(_mapie.score_of(mapie), ClapsScore):
            with_what = "" if ensemble is None else ", whose score is another one"
            raise TypeError(
                f"Got a {type(mapie).__name__}{with_what}, but expected a calibrated "
                "SplitConformalRegressor of MAPIE with conformity_score=ClapsScore()."
            )
        if not _mapie.is_split(ensemble):
            raise TypeError(
                f"Got a {type(mapie).__name__}, whose scores come from one model per "
                "fold, but expected one model. Use SplitConformalRegressor, or "
                "keep the rows and calibrate again."
            )
        levels: Any = _mapie.levels_of(mapie)
        if confidence_level is not None:
            levels = confidence_level
        if levels is None:
            raise ValueError(
                "Got confidence_level=None, but MapieRegressor of MAPIE 0.9 keeps no "
                "level. Pass for example confidence_level=0.9."
            )
        score, scores = _mapie.score_of(mapie), _mapie.conformity_scores_of(mapie)
        score.check_known(scores)
        model = _mapie.point_model(ensemble)
        check_unchanged(model, getattr(scores, "fingerprint", None))
        made = cls(model, levels, sym=score.sym, support=score.support)
        rows = CalibrationRows(np.array(scores, dtype=np.float64), not score.sym)
        return made._set_rows(rows)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        weights: Any = None,
        groups: Any = None,
    ) -> Self:
        """Fit the estimator on a part of the rows, and calibrate on the rest.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Inputs; rows must be exchangeable, since which are kept back is random.
        y : array-like of shape (n,)
            Targets.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows in the fit. Calibration counts every row once.
        weights, groups : callable or array-like of shape (n,), optional
            Likelihood ratios and groups for calibration; see ``conformalize``.

        Returns
        -------
        CalibratedRegressor
            The calibrated object. If anything fails it is left as it was.
        """
        check_has_target(y)
        check_target(y)
        check_lengths(X, y, sample_weight)
        if isinstance(self.estimator, ClapsRegressor | None):
            check_rows(X)  # here, where rows have the numbers that the user knows
        n = _num_samples(X)
        n_cal = round(self.calibration_fraction * n)
        if n_cal < 1 or n - n_cal < 2:
            raise ValueError(
                f"Got {n} rows, of which calibration_fraction="
                f"{self.calibration_fraction!r} keeps back {n_cal}, but expected at "
                "least 1 to calibrate on and 2 to fit on. Collect more rows."
            )
        random = check_random_state(self.random_state)
        order = random.permutation(n)
        template = self.estimator
        if template is None:
            template = ClapsRegressor(random_state=random.randint(2**31 - 1))
        kept, rest = order[:n_cal], order[n_cal:]
        weight = {}
        if sample_weight is not None:
            weight["sample_weight"] = _safe_indexing(sample_weight, rest)
        training = _safe_indexing(X, rest), _safe_indexing(y, rest)
        fitted = clone(template).fit(*training, **weight)
        fitted = getattr(fitted, "best_estimator_", fitted)  # of a search
        values = RowValues(weights, groups)
        values.check_all_used(n)
        values.keep(kept)
        fresh = self._restarted(fitted, State())
        rows = fresh._rows_of(_safe_indexing(X, kept), np.asarray(y)[kept], values)
        if self.keep_training_rows:
            fresh.training_rows_ = training
        self.__dict__ = fresh._set_rows(rows).__dict__
        return self


register_calibrated(CalibratedRegressor, "calibrated")
