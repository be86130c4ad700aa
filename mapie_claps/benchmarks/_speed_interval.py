"""Speed and memory of intervals: MAPIE's ``predict_interval`` with our score."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from mapie.conformity_scores import StdConformityScore
from mapie.regression import SplitConformalRegressor
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from torch import Tensor

from ..conformal.score import ClapsScore
from ..estimators.regressor import ClapsRegressor
from ._speed_timing import Result, Settings, best_of, peak_above, run_child

Array = NDArray[np.float64]
P = 8
PLAIN_ROWS = 1024  # rows at a time of the plain pass
AGAINST_PLAIN, ALLOWED_MB, AGAINST_STD = 1.3, 200.0, 1000.0


def make_rows(n: int, seed: int) -> tuple[Array, Array]:
    """Random rows in float64."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, P))
    return X, np.sin(X[:, 0]) + 0.3 * rng.standard_normal(n)


def calibrated(n_cal: int, **params: Any) -> SplitConformalRegressor:
    """A briefly trained regressor of the default size, in MAPIE."""
    model = ClapsRegressor(max_steps=30, tol=None, random_state=0, **params)
    mapie = SplitConformalRegressor(
        model.fit(*make_rows(2000, 0)),
        confidence_level=0.9,
        conformity_score=ClapsScore(),
        prefit=True,
    )
    return mapie.conformalize(*make_rows(n_cal, 1))


@torch.no_grad()
def plain_interval(model: ClapsRegressor, X: Array, q: float) -> Array:
    """μ ± q√v: the forward pass and the quadratic form, written down plainly."""
    network, posterior = model.model_.network, model.model_.posterior
    weights, factor = posterior.mean[..., None], posterior.scale
    w = model.model_.member_weight
    mean = torch.from_numpy(model.scaler_X_.mean_)
    scale = torch.from_numpy(model.scaler_X_.scale_)
    out = torch.empty(len(X), 2, dtype=torch.float64)
    for part, rows in zip(
        torch.from_numpy(X).split(PLAIN_ROWS), out.split(PLAIN_ROWS), strict=True
    ):
        z = ((part - mean) / scale).clamp(-6, 6)
        phi = network.features(network.encoding(z))
        mu = (phi @ weights[:, :-1] + weights[:, -1:]).squeeze(-1)
        root = phi @ factor[:, :-1] + factor[:, -1:]
        centre = w @ mu
        v = (w @ network.noise_variance(phi).log()).exp() + w @ root.square().sum(-1)
        v += w @ (mu - centre).square()
        half = q * v.sqrt()
        rows[:] = _ends(centre, half, model.scaler_y_)
    return out.numpy()


def _ends(centre: Tensor, half: Tensor, scaler: Any) -> Tensor:
    unit, mean = float(scaler.scale_[0]), float(scaler.mean_[0])
    return torch.stack([centre - half, centre + half], dim=1) * unit + mean


def intervals(settings: Settings) -> Iterator[Result]:
    """Item 2."""
    yield from _against_plain(settings)
    yield from _memory(settings)
    yield from _against_std(settings)


def _against_plain(settings: Settings) -> Iterator[Result]:
    n = settings.size(10**6, 2000)
    X = make_rows(n, 2)[0]
    for members in (1, ClapsRegressor().n_members):
        mapie = calibrated(1000, n_members=members)
        model = mapie._mapie_regressor.estimator_.single_estimator_
        times = best_of(
            {
                "ours": partial(mapie.predict_interval, X),
                "plain": partial(plain_interval, model, X, 2.0),
            },
            settings,
        )
        yield Result(
            "intervals",
            f"predict_interval, {n:,} rows, {members} member(s)",
            "forward pass + quadratic form",
            times["ours"],
            times["plain"],
            "s",
            "cost",
            AGAINST_PLAIN,
        )


def _memory(settings: Settings) -> Iterator[Result]:
    sizes = [(10**5, 10**3), (10**6, 10**3), (10**6, 10**6)]
    for n_test, n_cal in [(2000, 100)] if settings.smoke else sizes:
        yield Result(
            "intervals",
            f"memory, {n_test:,} test and {n_cal:,} calibration rows",
            f"allowed {ALLOWED_MB:.0f} MB above input and output",
            run_child(settings, interval_peak, n_test=n_test, n_cal=n_cal),
            ALLOWED_MB,
            "MB",
            "cost",
            1.0,
        )


def interval_peak(n_test: int, n_cal: int) -> float:
    """MB at the peak of ``predict_interval`` above input and output; in a child."""
    mapie = calibrated(1000)
    inner = mapie._mapie_regressor
    # Scores alone: to calibrate on as many rows would have a peak of its own.
    inner.conformity_scores_ = np.resize(inner.conformity_scores_, n_cal)
    X = make_rows(n_test, 2)[0]
    mapie.predict_interval(X[:100])
    peak, out = peak_above(lambda: mapie.predict_interval(X))
    output = sum(array.nbytes for array in out) / 2**20
    return float(max(0.0, peak - output))


class Columns(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """μ and √v are columns of X: what remains is the interval step."""

    n_features_in_ = 2

    def fit(self, X: Array, y: Array) -> "Columns":
        """Nothing to learn."""
        return self

    def predict(self, X: Array, return_std: bool = False) -> Any:
        """First column, and the second."""
        return (X[:, 0], np.abs(X[:, 1]) + 0.1) if return_std else X[:, 0]


def _against_std(settings: Settings) -> Iterator[Result]:
    n_cal, n_test = settings.size(5000, 200), settings.size(20_000, 300)
    rng = np.random.default_rng(0)
    X_cal, X_test = rng.standard_normal((n_cal, 2)), rng.standard_normal((n_test, 2))
    calls = {}
    for name, score in (("ours", ClapsScore()), ("std", StdConformityScore())):
        mapie = SplitConformalRegressor(
            Columns(), confidence_level=0.9, conformity_score=score, prefit=True
        ).conformalize(X_cal, rng.standard_normal(n_cal))
        calls[name] = _interval_step(mapie, X_test)
    quick = best_of({"ours": calls["ours"]}, settings, 20)
    slow = best_of({"std": calls["std"]}, settings, 2)
    yield Result(
        "intervals",
        f"interval step, {n_cal:,} calibration × {n_test:,} test rows",
        "MAPIE's StdConformityScore",
        quick["ours"],
        slow["std"],
        "s",
        "faster",
        AGAINST_STD,
    )


def _interval_step(mapie: SplitConformalRegressor, X: Array) -> Any:
    """The call that MAPIE makes on its score for the bounds."""
    inner = mapie._mapie_regressor
    score, ensemble = inner.conformity_score_function_, inner.estimator_
    return lambda: score.get_bounds(
        X, np.array([0.1]), ensemble, inner.conformity_scores_, method=inner.method
    )
