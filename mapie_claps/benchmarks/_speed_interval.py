"""Speed and memory of intervals: MAPIE's ``predict_interval`` with our score."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from mapie.conformity_scores import StdConformityScore
from mapie.regression import SplitConformalRegressor

from .. import ClapsRegressor, ClapsScore
from ..studies.data import Array
from ..studies.fitted import Fitted
from ._networks import make_rows
from ._speed_timing import Result, Settings, best_of, peak_above, run_child

PLAIN_ROWS = 1024  # rows at a time of the plain pass
AGAINST_PLAIN, ALLOWED_MB, AGAINST_STD = 1.3, 200.0, 1000.0


def in_mapie(model: Any, score: Any, X: Array, y: Array) -> SplitConformalRegressor:
    """A fitted model, calibrated by MAPIE."""
    mapie = SplitConformalRegressor(model, 0.9, score, prefit=True)
    return mapie.conformalize(X, y)


def calibrated(n_cal: int, **params: Any) -> SplitConformalRegressor:
    """A briefly trained regressor of the default size, in MAPIE."""
    settings = {"max_steps": 30, "tol": None, "kernel": False, "random_state": 0}
    settings |= {"target_map": None, "two_sided_noise": False, "residual_shape": False}
    model = ClapsRegressor(**(settings | params))
    return in_mapie(
        model.fit(*make_rows(2000)), ClapsScore(), *make_rows(n_cal, seed=1)
    )


@torch.no_grad()
def plain_interval(model: ClapsRegressor, X: Array, q: float) -> Array:
    """μ ± q√v: the forward pass and the quadratic form, written down plainly."""
    network, posterior = model.network_, model.model_.posterior
    weights, factor = posterior.mean[..., None], posterior.scale
    w = model.model_.member_weight
    mean = torch.from_numpy(model.scaler_X_.mean_)
    scale = torch.from_numpy(model.scaler_X_.scale_)
    out = torch.empty(len(X), 2, dtype=torch.float64)
    for part, rows in zip(
        torch.from_numpy(X).split(PLAIN_ROWS), out.split(PLAIN_ROWS), strict=True
    ):
        features = network(((part - mean) / scale).clamp(-6, 6))
        phi, h2 = features.phi, features.h2
        mu = (phi @ weights[:, :-1] + weights[:, -1:]).squeeze(-1)
        root = phi @ factor[:, :-1] + factor[:, -1:]
        centre = w @ mu
        v = (w @ h2.log()).exp() + w @ root.square().sum(-1)
        v += w @ (mu - centre).square()
        half = q * v.sqrt()
        rows[:] = torch.stack([centre - half, centre + half], dim=1)
    unit, shift = float(model.scaler_y_.scale_[0]), float(model.scaler_y_.mean_[0])
    return (out * unit + shift).numpy()


def intervals(settings: Settings) -> Iterator[Result]:
    """Time against a plain pass, memory, and the interval step against MAPIE's own."""
    n = settings.size(10**6, 2000)
    X = make_rows(n, seed=2)[0]
    for members in (1, ClapsRegressor().n_members):
        mapie = calibrated(1000, n_members=members)
        model = mapie._mapie_regressor.estimator_.single_estimator_
        calls = {
            "ours": partial(mapie.predict_interval, X),
            "plain": partial(plain_interval, model, X, 2.0),
        }
        times = best_of(calls, settings)
        case = f"predict_interval, {n:,} rows, {members} member(s)"
        against = "forward pass + quadratic form"
        both = times["ours"], times["plain"]
        yield Result(case, against, *both, "s", "cost", AGAINST_PLAIN)
    sizes = [(10**5, 10**3), (10**6, 10**3), (10**6, 10**6)]
    for n_test, n_cal in [(2000, 100)] if settings.smoke else sizes:
        case = f"memory, {n_test:,} test and {n_cal:,} calibration rows"
        against = f"allowed {ALLOWED_MB:.0f} MB above input and output"
        peak = run_child(settings, interval_peak, n_test=n_test, n_cal=n_cal)
        yield Result(case, against, peak, ALLOWED_MB, "MB", "cost", 1.0)
    yield _against_std(settings)


def interval_peak(n_test: int, n_cal: int) -> float:
    """MB at the peak of ``predict_interval`` above input and output; in a child."""
    mapie = calibrated(1000)
    inner = mapie._mapie_regressor
    # Scores alone: to calibrate on as many rows would have a peak of its own.
    inner.conformity_scores_ = np.resize(inner.conformity_scores_, n_cal)
    X = make_rows(n_test, seed=2)[0]
    mapie.predict_interval(X[:100])
    peak, out = peak_above(lambda: mapie.predict_interval(X))
    output = sum(array.nbytes for array in out) / 2**20
    return float(max(0.0, peak - output))


def _against_std(settings: Settings) -> Result:
    """The interval step alone: μ and √v are read from the only column of X."""
    n_cal, n_test = settings.size(5000, 200), settings.size(20_000, 300)
    rng = np.random.default_rng(0)
    X_cal, X_test = rng.standard_normal((n_cal, 1)), rng.standard_normal((n_test, 1))
    y_cal = rng.standard_normal(n_cal)
    model = Fitted(lambda X: X[:, 0], lambda X: np.abs(X[:, 0]) + 0.1)
    times = []
    for score, repeats in ((ClapsScore(), 20), (StdConformityScore(), 2)):
        inner = in_mapie(model, score, X_cal, y_cal)._mapie_regressor
        step = partial(  # the call that MAPIE makes on its score for the bounds
            inner.conformity_score_function_.get_bounds,
            *(X_test, np.array([0.1]), inner.estimator_, inner.conformity_scores_),
            method=inner.method,
        )
        times.append(best_of({"": step}, settings, repeats)[""])
    case = f"interval step, {n_cal:,} calibration × {n_test:,} test rows"
    against = "MAPIE's StdConformityScore"
    return Result(case, against, times[0], times[1], "s", "faster", AGAINST_STD)
