"""Speed of intervals: MAPIE's ``predict_interval``, one row, and exported models."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mapie.conformity_scores import StdConformityScore
from mapie.regression import SplitConformalRegressor

from .. import CalibratedRegressor, ClapsRegressor, ClapsScore, load
from ..conformal.mapie import ensemble_of, point_model, regressor_of
from ..export import graph_inputs, to_onnx
from ..studies.data import Array, split_rows
from ..studies.fitted import Fitted
from ._networks import make_rows
from ._speed_timing import (
    Result,
    Settings,
    as_note,
    best_of,
    compare,
    peak_above,
    run_child,
    time_shares,
)
from ._speed_training import datasets

PLAIN_ROWS = 1024  # rows at a time of the plain pass
PLAIN, STD = "forward pass + quadratic form", "MAPIE's StdConformityScore"
MAPIE = "MAPIE's predict_interval"
BOUNDS = {PLAIN: 1.3, STD: 1000.0, MAPIE: 8.0}
ALLOWED_MB = 200.0
ALLOWED_GAP = 1e-6  # of the size of an output
# Functions by file and name; the score calls all others.
PHASES_OF_A_ROW = {
    "the score in all": ("score.py", "get_bounds"),
    "networks": ("ensemble.py", "forward"),
    "kernel": ("kernel.py", "predict"),
    "checks of the row": ("ensemble_rows.py", "_read"),
    "whether the model is unchanged": ("parts.py", "check_unchanged"),
    "score, quantile, map of the target": ("local_law.py", "interval"),
}
CALLS = 50  # of which a measurement of single rows consists


def in_mapie(model: Any, score: Any, X: Array, y: Array) -> SplitConformalRegressor:
    """A fitted model, calibrated by MAPIE."""
    mapie = SplitConformalRegressor(model, 0.9, score, prefit=True)
    return mapie.conformalize(X, y)


def calibrated(n_cal: int, **params: Any) -> SplitConformalRegressor:
    """A briefly trained regressor of the default size, in MAPIE."""
    settings = {"max_steps": 30, "tol": None, "kernel": False, "random_state": 0}
    settings |= {"target_map": None, "two_sided_noise": False, "residual_shape": False}
    model = ClapsRegressor(**(settings | params)).fit(*make_rows(2000))
    return in_mapie(model, ClapsScore(), *make_rows(n_cal, seed=1))


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
        model = point_model(ensemble_of(mapie))
        calls = {
            "ours": partial(mapie.predict_interval, X),
            PLAIN: partial(plain_interval, model, X, 2.0),
        }
        case = f"predict_interval, {n:,} rows, {members} member(s)"
        yield from compare(case, best_of(calls, settings), "cost", BOUNDS)
    sizes = [(10**5, 10**3), (10**6, 10**3), (10**6, 10**6)]
    for n_test, n_cal in settings.size(sizes, [(2000, 100)]):
        case = f"memory, {n_test:,} test and {n_cal:,} calibration rows"
        against = f"allowed {ALLOWED_MB:.0f} MB above input and output"
        peak = run_child(settings, interval_peak, n_test=n_test, n_cal=n_cal)
        yield Result(case, against, peak, ALLOWED_MB, "MB", "cost", 1.0)
    n_cal, n_test = settings.size((5000, 20_000), (200, 300))
    steps = {
        name: interval_step(score, n_cal, n_test)
        for name, score in (("ours", ClapsScore()), (STD, StdConformityScore()))
    }
    case = f"interval step, {n_cal:,} calibration × {n_test:,} test rows"
    yield from compare(case, best_of(steps, settings), "faster", BOUNDS)


def interval_peak(n_test: int, n_cal: int) -> float:
    """MB at the peak of ``predict_interval`` above input and output; in a child."""
    mapie = calibrated(1000)
    inner = regressor_of(mapie)
    # Scores alone: to calibrate on as many rows would have a peak of its own.
    inner.conformity_scores_ = np.resize(inner.conformity_scores_, n_cal)
    X = make_rows(n_test, seed=2)[0]
    mapie.predict_interval(X[:100])
    peak, out = peak_above(lambda: mapie.predict_interval(X))
    output = sum(array.nbytes for array in out) / 2**20
    return float(max(0.0, peak - output))


def interval_step(score: Any, n_cal: int, n_test: int) -> partial[Any]:
    """The call that MAPIE makes on its score for the bounds, with μ and √v at hand."""
    rng = np.random.default_rng(0)
    X_cal, X_test = rng.standard_normal((n_cal, 1)), rng.standard_normal((n_test, 1))
    model = Fitted(lambda X: X[:, 0], lambda X: np.abs(X[:, 0]) + 0.1)
    inner = regressor_of(in_mapie(model, score, X_cal, rng.standard_normal(n_cal)))
    return partial(
        inner.conformity_score_function_.get_bounds,
        *(X_test, np.array([0.1]), inner.estimator_, inner.conformity_scores_),
        method=inner.method,
    )


def one_row(settings: Settings) -> Iterator[Result]:
    """One NumPy row of the default model, with and without kernel and map."""
    n, steps = settings.size((3000, 300), (160, 5))
    X, y = make_rows(n, 12)
    train, x = n * 2 // 3, X[:1]
    for name, kernel, target in (
        ("default model", True, y),
        ("default model, skewed target", True, np.exp(y / y.std())),
        ("kernel=False", False, y),
    ):
        model = ClapsRegressor(
            max_steps=steps, tol=None, random_state=0, kernel=kernel
        ).fit(X[:train], target[:train])
        rest = X[train:], target[train:]
        conformal = CalibratedRegressor(model).conformalize(*rest)
        mapie = in_mapie(model, ClapsScore(), *rest)
        calls = {
            "row_predictor": partial(conformal.row_predictor(), x),
            MAPIE: partial(mapie.predict_interval, x),
            "predict_interval": partial(conformal.predict_interval, x),
        }
        parts = [type(model.target_map_).__name__]
        parts += [] if model.kernel_ is None else ["kernel"]
        case = f"one row, {name} ({', '.join(parts)})"
        times = best_of(calls, settings, calls=CALLS)
        note = f"{MAPIE}: {where_it_goes(calls[MAPIE], settings.clock)}"
        for found in compare(case, times, "faster", BOUNDS, "µs"):
            yield found._replace(note=note if found.against == MAPIE else "")


def where_it_goes(predict: Callable[[], Any], clock: str) -> str:
    """Shares of the time that one row takes through MAPIE, as cProfile sees them."""

    def many() -> None:
        for _ in range(CALLS):
            predict()

    shares = time_shares(many, PHASES_OF_A_ROW, clock)
    ours = shares.pop("the score in all")
    rest = ours - sum(shares.values())
    return as_note(shares | {"the rest of ours": rest, "MAPIE's own": 1 - ours})


def exports(settings: Settings) -> Iterator[Result]:
    """The default settings but for the kernel member, which cannot be exported."""
    steps: Any = settings.size("auto", 5)
    for data in datasets(settings, (settings.size(3000, 200), 8)):
        split = split_rows(data, 0)
        model = ClapsRegressor(
            kernel=False, max_steps=steps, tol=None, random_state=0
        ).fit(split.X_train, split.y_train)
        conformal = CalibratedRegressor(model).conformalize(split.X_cal, split.y_cal)
        with tempfile.TemporaryDirectory() as folder:
            yield from _exported(conformal, data.name, split.X_test, folder, settings)


def _exported(
    model: CalibratedRegressor, name: str, X: Array, folder: str, settings: Settings
) -> Iterator[Result]:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = settings.threads
    file, saved = (
        to_onnx(model, Path(folder, "model.onnx")),
        Path(folder, "model.claps"),
    )
    model.save(saved)
    sizes = file.stat().st_size / 1024, saved.stat().st_size / 1024
    yield Result(f"size, {name}", "saved file", *sizes, "kB", "cost")
    start = partial(InferenceSession, str(file), options)
    loads = {"ours": start, "load of the saved file": partial(load, saved)}
    times = best_of(loads, settings)
    yield from compare(f"load, {name}", times, "faster", unit="ms")
    session = start()
    case = f"largest difference to Python, {name}"
    allowed, gap = f"allowed {ALLOWED_GAP:g} of the size", difference(session, model, X)
    yield Result(case, allowed, gap, ALLOWED_GAP, "", "cost", 1.0)
    calls = {
        "ours": partial(session.run, None, graph_inputs(model, X[:1])),
        "row_predictor": partial(model.row_predictor(), X[:1]),
        "predict_interval": partial(model.predict_interval, X[:1]),
    }
    times = best_of(calls, settings, calls=CALLS)
    yield from compare(f"one row, {name}", times, "faster", unit="µs")
    n = settings.size(10**5, 200)
    many = np.resize(X, (n, X.shape[1]))
    calls = {
        "ours": partial(session.run, None, graph_inputs(model, many)),
        "explain": partial(model.explain, many),
    }
    yield from compare(f"{n:,} rows, {name}", best_of(calls, settings), "faster")


def difference(session: Any, model: CalibratedRegressor, X: Array) -> float:
    """Largest difference of an output to Python's, in units of its size."""
    prediction, lower, upper, aleatoric, epistemic = session.run(
        None, graph_inputs(model, X)
    )
    points, bounds = model.predict_interval(X)
    parts = model.estimator.predict_parts(X)
    size = np.abs(bounds).max(axis=(1, 2))
    gaps = [
        np.abs(prediction - points) / size,
        np.abs(np.stack([lower, upper], 1) - bounds).max(axis=(1, 2)) / size,
        np.abs(aleatoric / parts.aleatoric - 1),
        np.abs(epistemic / parts.epistemic - 1),
    ]
    return float(np.max(gaps))
