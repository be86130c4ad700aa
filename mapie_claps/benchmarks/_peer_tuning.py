"""Choosing parameters on training rows only, by one criterion for all methods.

A fitted method says for each row of X a :class:`Band`: the interval for a conformal
quantile q is [lower − q·unit, upper + q·unit]. Quantile methods have unit 1; methods
with a centre and a scale have lower = upper = centre and unit = scale. The criterion is
the interval score of the calibrated band: in each of three folds the model is fitted
on the other two, and the rows held out are cut into five parts, each scored with q from
the other four. Calibration and test rows of the benchmark take no part.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np

from ..studies.data import Array, Split, Table, content_hash, take_rows
from ..studies.scoring import score_intervals

Params = Mapping[str, Any]
Bounds = tuple[Array, Array]

N_FOLDS = 3
N_PARTS = 5


class Band(NamedTuple):
    """Interval before calibration, and by what one unit of q widens it."""

    lower: Array
    upper: Array
    unit: Array

    @property
    def middle(self) -> Any:
        """Halfway between the two."""
        return (self.lower + self.upper) / 2

    def scores(self, y: Array) -> Array:
        """Conformity scores max(lower − y, y − upper) / unit."""
        scores: Array = np.maximum(self.lower - y, y - self.upper) / self.unit
        return scores

    def widened(self, q: float | Array) -> Bounds:
        """Bounds for the conformal quantile q, one or one for each row."""
        return self.lower - q * self.unit, self.upper + q * self.unit


def centred(centre: Any, unit: Any) -> Band:
    """Band of a centre and a scale."""
    return Band(np.asarray(centre), np.asarray(centre), np.asarray(unit))


def ordered(lower: Array, upper: Array) -> Band:
    """Band of two quantiles, which may cross."""
    return Band(np.minimum(lower, upper), np.maximum(lower, upper), np.ones(len(lower)))


def grid_of(**values: tuple[Any, ...]) -> list[dict[str, Any]]:
    """All combinations, the last parameter fastest."""
    rows = product(*values.values())
    return [dict(zip(values, row, strict=True)) for row in rows]


@dataclass(frozen=True)
class Method:
    """A method of the benchmark."""

    name: str  # on the command line
    label: str  # in tables
    # (X, y, params, seed, alpha) → a function (X, params) → Band, or a fitted
    # estimator whose ``predict`` has ``return_std``
    fit: Callable[..., Any]
    calibration: str  # a function of _peer_calibration
    grid: Sequence[Params]  # to choose from; one entry alone is not tuned
    # Parameters that one fitted model can vary when predicting, last in the grid. Of
    # entries that differ in these alone, the last is fitted in cross-validation.
    free: tuple[str, ...] = ()
    # Whether the grid is compared on the first fold only; the entry chosen is then
    # scored on all folds, so that the scores of methods compare.
    slow: bool = False
    after: "Method | None" = None  # tuned first; its parameters join each grid entry
    requires: str | None = None  # module that must be installed
    text: bool = True  # takes data frames with categories and gaps
    # Those of ClapsRegressor, for the key; None for methods that do without it.
    parameters: Callable[[], dict[str, Any]] | None = None

    @property
    def key(self) -> dict[str, Any]:
        """Name and all parameters, for the key of a run."""
        key = {"name": self.name, "grid": list(self.grid), "slow": self.slow}
        if self.after is not None:
            key["after"] = self.after.key
        return key | ({"parameters": self.parameters()} if self.parameters else {})

    def band(self, model: Any, X: Table, params: Params) -> Band:
        """Band of what ``fit`` returned."""
        if callable(model):
            return Band(*model(X, params))
        return centred(*model.predict(X, return_std=True))

    def crps(self, model: Any, split: Split, params: Params) -> float | None:
        """CRPS of the calibrated distribution; None for methods that have none."""
        measure = _library().CRPS.get(self.calibration)
        return measure(self._seen(model, params), split) if measure else None

    def calibrate(
        self, model: Any, X_cal: Table, y_cal: Array, params: Params, alpha: float
    ) -> Callable[[Table], Bounds]:
        """Return a function from X to bounds."""
        calibrate = getattr(_library(), self.calibration)
        seen = self._seen(model, params)
        predict: Callable[[Table], Bounds] = calibrate(seen, X_cal, y_cal, alpha)
        return predict

    def _seen(self, model: Any, params: Params) -> Any:
        """What is calibrated: the band, or CLAPS itself, which says more."""
        whole = self.calibration == "mapie_claps"
        return model if whole else partial(self.band, model, params=params)


def _library() -> Any:
    return import_module("._peer_calibration", __package__)


def shortened(method: Method, n_entries: int = 2) -> Method:
    """Return the method with the front of its grid, for quick trials."""
    after = shortened(method.after, n_entries) if method.after else None
    return replace(method, grid=method.grid[:n_entries], after=after)


@dataclass(frozen=True)
class Choice:
    """Parameters chosen on training rows, their interval score, the time it took."""

    params: dict[str, Any]
    cv_score: float | None
    seconds: float = field(default=0.0, compare=False)


def calibrated_score(band: Band, y: Array, alpha: float) -> float:
    """Interval score of a band on rows that the model has not seen.

    Each of five parts of the rows is scored with the conformal quantile of the other
    four (their largest score, if the rank exceeds their number).

    Examples
    --------
    >>> import numpy as np
    >>> y = np.tile([-1.0, 1.0], 50)
    >>> float(calibrated_score(Band(0 * y, 0 * y, 1 + 0 * y), y, alpha=0.1))
    2.0
    """
    from .. import conformal_quantile

    scores, part = band.scores(y), np.arange(len(y)) % N_PARTS
    q = np.empty(len(y))
    for i in range(N_PARTS):
        others = scores[part != i]
        q[part == i] = min(conformal_quantile(others, [alpha], True)[0], others.max())
    return score_intervals(y, *band.widened(q), alpha)["interval_score"]


def tune(method: Method, X: Table, y: Array, alpha: float, seed: int) -> Choice:
    """Choose the grid entry with the lowest cross-validated interval score.

    The seed is that of the folds and of the fits; a grid without a choice has no score.
    """
    if len(method.grid) == 1:
        return Choice(dict(method.grid[0]), None)
    # A method that comes after another often runs after it in the same process.
    key = (method.fit, repr(method.grid), content_hash(X, y), alpha, seed)
    if key not in _last:
        choice = _tune(method, X, y, alpha, seed)
        _last.clear()
        _last[key] = choice
    return _last[key]


_last: dict[Any, Choice] = {}


def _tune(method: Method, X: Table, y: Array, alpha: float, seed: int) -> Choice:
    """Choose, without a look at what was chosen last."""
    from sklearn.model_selection import KFold

    first = tune(method.after, X, y, alpha, seed) if method.after else Choice({}, None)
    start = time.perf_counter()
    grid = [{**first.params, **entry} for entry in method.grid]
    folds = list(KFold(N_FOLDS, shuffle=True, random_state=seed).split(X))
    n_compared = 1 if method.slow else N_FOLDS

    def scores_of(grid: list[dict[str, Any]], folds: Any) -> Array:
        """Interval scores (grid entry, fold)."""
        scores = np.empty((len(grid), len(folds)))
        for j, (fit_rows, held_out) in enumerate(folds):
            X_fit, X_out = take_rows(X, fit_rows), take_rows(X, held_out)
            for _, group in groupby(range(len(grid)), lambda i: fixed(grid[i])):
                members = list(group)
                model = method.fit(X_fit, y[fit_rows], grid[members[-1]], seed, alpha)
                for i in members:
                    band = method.band(model, X_out, grid[i])
                    scores[i, j] = calibrated_score(band, y[held_out], alpha)
        return scores

    def fixed(entry: Params) -> list[Any]:
        return [value for name, value in entry.items() if name not in method.free]

    scores = scores_of(grid, folds[:n_compared])
    best = int(np.argmin(scores.mean(axis=1)))
    rest = scores_of([grid[best]], folds[n_compared:])
    seconds = first.seconds + time.perf_counter() - start
    return Choice(grid[best], float(np.append(scores[best], rest).mean()), seconds)
