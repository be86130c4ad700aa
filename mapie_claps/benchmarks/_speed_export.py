"""Exported models: size, time to load and to predict, and whether they are equal."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import CalibratedRegressor, ClapsRegressor, load
from ..export import graph_inputs, to_onnx
from ..studies.data import PAPER_DATASETS, Array, Dataset, load_named, split_rows
from ._networks import make_rows
from ._speed_timing import Result, Settings, best_of, microseconds

ALLOWED = 1e-6  # of the size of an output


def exports(settings: Settings) -> Iterator[Result]:
    """The default settings but for the kernel member, which cannot be exported."""
    for data in _datasets(settings):
        split = split_rows(data, 0)
        model = ClapsRegressor(
            kernel=False,
            max_steps=5 if settings.smoke else "auto",
            tol=None,
            random_state=0,
        ).fit(split.X_train, split.y_train)
        conformal = CalibratedRegressor(model).conformalize(split.X_cal, split.y_cal)
        with tempfile.TemporaryDirectory() as folder:
            yield from _of_one(
                data.name, conformal, split.X_test, Path(folder), settings
            )


def _of_one(
    name: str, model: CalibratedRegressor, X: Array, folder: Path, settings: Settings
) -> Iterator[Result]:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = settings.threads
    file, saved = to_onnx(model, folder / "model.onnx"), folder / "model.claps"
    model.save(saved)
    sizes = file.stat().st_size / 1024, saved.stat().st_size / 1024
    yield Result(f"size, {name}", "saved file", *sizes, "kB", "cost")
    start = partial(InferenceSession, str(file), options)
    times = best_of({"ours": start, "load": partial(load, saved)}, settings)
    both = 1e3 * times["ours"], 1e3 * times["load"]
    yield Result(f"load, {name}", "load of the saved file", *both, "ms", "faster")
    session = start()
    yield Result(
        f"largest difference to Python, {name}",
        f"allowed {ALLOWED:g} of the size",
        difference(session, model, X),
        ALLOWED,
        "",
        "cost",
        1.0,
    )
    one, row = graph_inputs(model, X[:1]), X[:1]
    calls: dict[str, Any] = {
        "ours": partial(session.run, None, one),
        "row_predictor": partial(model.row_predictor(), row),
        "predict_interval": partial(model.predict_interval, row),
    }
    found = microseconds(calls, settings)
    for against in ("row_predictor", "predict_interval"):
        both = found["ours"], found[against]
        yield Result(f"one row, {name}", against, *both, "µs", "faster")
    n = settings.size(10**5, 200)
    many = np.resize(X, (n, X.shape[1]))
    columns = graph_inputs(model, many)
    times = best_of(
        {
            "ours": partial(session.run, None, columns),
            "python": partial(model.explain, many),
        },
        settings,
    )
    both = times["ours"], times["python"]
    yield Result(f"{n:,} rows, {name}", "explain", *both, "s", "faster")


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


def _datasets(settings: Settings) -> Iterator[Dataset]:
    if settings.data is not None and not settings.smoke:
        yield from (load_named(name, settings.data) for name in PAPER_DATASETS)
    else:
        n = settings.size(3000, 200)
        yield Dataset("generated", *make_rows(n, 8))
