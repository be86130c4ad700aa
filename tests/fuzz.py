"""Throw random tables, parameters, calls and attacks at fit, conformalize and predict.

Every outcome must be a valid interval (right shape, no NaN, lower below upper, nested
in the level, infinite only if allowed) or one of the documented exceptions, with a
message. In one case in four the explanation, the distribution and the saved file have
to agree with the intervals, too. Tables are arrays of any layout, lists and data frames
of numbers, text, dates, truth values and categories, with gaps, masks, values that
training never saw, and columns that change their order, name or type. One case in four
is an attack on a promise, which has one right outcome.

A case depends on the seed and its number alone. Ends with 1 if there are failures.

    python tests/fuzz.py --cases 5000
    python tests/fuzz.py --first 1234 --cases 1
"""

import argparse
import copy
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import TestCase

import numpy as np
import pandas as pd
import polars as pl
import torch
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn.functional import softplus

from mapie_claps import (
    CalibratedRegressor,
    ClapsModule,
    ClapsRegressor,
    ClapsScore,
    Recipe,
    explain,
    load,
    save,
)
from mapie_claps.exceptions import (
    FileFormatError,
    NotPositiveDefiniteError,
    TrainingDivergedError,
)

Generator = np.random.Generator
Case = dict[str, Any]
# What the documentation names; NotFittedError is a ValueError.
DOCUMENTED = (ValueError, TypeError, TrainingDivergedError, NotPositiveDefiniteError)

DTYPES = ("float64", "float32", "float16", "int64", "uint8", "bool", "object", "str")
HARMLESS = (None, None, None, "constant", "duplicates", "tiny")
NUMBERS = ("float64", "float64", "float32", "int64")
Pools = dict[str, tuple[Sequence[Any], Sequence[Any]]]
LAYOUTS = ("array", "array", "list", "fortran", "read-only", "strided", "swapped")
GOOD_FRAMES = (None, None, "gaps", "unseen", "polars")
MAPS = ("identity", "auto", "yeo-johnson", "spline", "log", "sqrt")
SUPPORTS = (None, "auto", "integer", "count", (None, 3.0), [0.0, 1.0, 2.0])
#: Fields of a table: values that are fit for use, and others.
TABLES: Pools = {
    "n": (range(4, 41), range(4)),
    "container": (LAYOUTS, ("frame", "sparse", "nullable", "masked")),
    "dtype": (NUMBERS, DTYPES),
    "corruption": (HARMLESS, ("nan", "inf", "huge")),
    "y_dtype": (NUMBERS, DTYPES),
    "y_corruption": (HARMLESS, ("nan", "inf", "huge")),
    "y_shape": (("flat",), ("flat", "column", "pair", "short", "long")),
    "surprise": (GOOD_FRAMES, ("order", "renamed", "retyped", "objects")),
}
#: Parameters: values that are valid, and others.
PARAMETERS: Pools = {
    "hidden_layer_sizes": (((4, 3), (3,), (3, 2, 1)), (4, (0,), "4", ())),
    "n_members": ((1, 2, 3), (0, 1.5)),
    "max_steps": ((1, 3, 6), (0, True)),
    "batch_size": (("auto", 1, 7, 10**6), ("all",)),
    "learning_rate": ((1e-2, 1.0, 1e-300), (1e30, 0.0, float("nan"))),
    "prior_precision": (("grid", "marglik", 1.0, 1e-300, 1e300), (0.0, "best")),
    "kernel": ((False, True), ("yes",)),
    "target_map": (MAPS, ("cube", 3)),
    "scale": (("claps", "aleatoric", "posterior", "constant"), ("total",)),
    "categorical_features": (("from_dtype", [0], [-1]), (["nowhere"], 7)),
    "device": (("cpu", "auto"), ("abacus",)),
    "random_state": ((0, None, 2**32 - 1), (-1, "seed")),
}
RECIPE: Pools = {
    "views": ((("bins",), ("periodic",), ("raw",), ("bins", "raw")), ((), "raw")),
    "scaling_rate": ((0.0, 3.0, 1e6), (-1.0,)),
    "n_bins": ((0, 4, 10**6), (-1,)),
    "schedule": (("cosine", "constant"), ("linear",)),
    "weight_decay": ((0.0, 1e-3, 10.0), (-1.0,)),
    "beta": ((0.0, 0.5, 1.0), (2.0,)),
    "validation_fraction": ((0.12, 0.5), (0.0, 0.9)),
    "patience": ((None, 1), (0,)),
    "variance_floor": ((1e-6, 1e-3, 1e-300, 1e6), (0.0,)),
    "last_layer": (("ridge", "trained"), ("none",)),
    "noise_shape": ((True, False), (None,)),
}
CROSS = ("plus", "minmax", "base")
#: Further fields of a case, likewise.
CALLS: Pools = {
    "weights": ((None, None, "ones", "random"), ("zeros", "negative", "short", "long")),
    "mode": (("split", "prefit", "held", *CROSS, "calibrated", "batches"), ()),
    "level": ((0.9, 0.5, 0.7, [0.5, 0.8], [0.7, 0.6, 0.7]), (0.999, 0.0, 1.0, 1.5)),
    "support": (SUPPORTS, ("counts", [], (2.0, 1.0), float("nan"))),
}
FAST = {"hidden_layer_sizes": (4, 3), "n_members": 1, "max_steps": 3, "kernel": False}
FAST |= {"prior_precision": 1.0, "target_map": "identity", "random_state": 0}


def pick(rng: Generator, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def some(rng: Generator, values: Sequence[Any], most: int) -> list[Any]:
    return [values[i] for i in rng.permutation(len(values))[: rng.integers(most + 1)]]


def draw_case(seed: int, number: int) -> Case:
    """The case of a number: one in four is an attack on a promise.

    Of the others half are valid; in the rest up to two parts are drawn from all values.
    """
    rng = np.random.default_rng([seed, number])
    if number % 4 == 3:
        case = {"attack": pick(rng, ATTACKS), "seed": pick(rng, range(2**16))}
        case |= {"n": pick(rng, range(8, 41)), "batch": pick(rng, range(1, 51))}
        case |= {"size": pick(rng, range(1, 7)), "variant": pick(rng, range(12))}
        return case | {"level": pick(rng, [0.5, 0.8, 0.9])}
    parts = ("train", "cal", "test", "params", "weights", "level", "support")
    wild = some(rng, parts, 2) if rng.random() < 0.5 else []
    width = pick(rng, (1, 2, 2, 3, 4, 9))
    case = {name: draw_table(rng, width, name in wild) for name in parts[:3]}
    case["params"] = draw_values(rng, PARAMETERS, "params" in wild, 4)
    case["recipe"] = draw_values(rng, RECIPE, "params" in wild, 2)
    for name in CALLS:
        case |= draw_values(rng, {name: CALLS[name]}, name in wild)
    case["kinds"] = pick(rng, range(1, 10)) if rng.random() < 0.5 else 0
    for name, share in (("sym", 0.5), ("allow_infinite", 0.5), ("further", 0.25)):
        case[name] = bool(rng.random() < share)
    return case


def draw_table(rng: Generator, width: int, wild: bool) -> Case:
    table = draw_values(rng, TABLES, wild)
    width = pick(rng, range(6)) if wild and rng.random() < 0.2 else width
    return table | {"p": width, "seed": pick(rng, range(2**16))}


def draw_values(rng: Generator, pools: Pools, wild: bool, most: int = 99) -> Case:
    """A value of each field, or of up to so many of them."""
    names = some(rng, sorted(pools), most) if most < len(pools) else list(pools)
    return {n: pick(rng, [*pools[n][0], *(pools[n][1] if wild else ())]) for n in names}


def make_table(spec: Case, kinds: int) -> tuple[Any, Any]:
    """X and y as the specification says; the same each time."""
    rng, n, p = np.random.default_rng(spec["seed"]), spec["n"], spec["p"]
    X = corrupted(3 * rng.standard_normal((n, p)), spec["corruption"], rng)
    with np.errstate(all="ignore"):
        y = np.nan_to_num(X[:, 0] if p else np.zeros(n)) + rng.standard_normal(n)
    y = cast(corrupted(y, spec["y_corruption"], rng), spec["y_dtype"])
    shapes = {
        "flat": y,
        "column": y[:, None],
        "pair": np.column_stack([y, y]),
        "short": y[:-1],
        "long": np.concatenate([y, y[:1]]) if n else np.zeros(1),
    }
    if kinds:
        table = surprising(mixed_frame(X, kinds, rng), spec["surprise"], rng)
    else:
        table = contained(cast(X, spec["dtype"]), spec)
    return table, shapes[spec["y_shape"]]


def corrupted(values: Any, corruption: str | None, rng: Generator) -> Any:
    if corruption is None or values.size == 0:
        return values
    if corruption == "constant":
        return np.full_like(values, 7.0)
    if corruption == "duplicates":
        return values[rng.integers(0, len(values), len(values)) // 2]
    special = {"nan": np.nan, "inf": np.inf, "huge": 1e300, "tiny": 5e-324}
    values.flat[rng.integers(0, values.size)] = special[corruption]
    return values


def cast(values: Any, dtype: str) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return values.astype(dtype)


def contained(X: Any, spec: Case) -> Any:
    """The array in another layout, or in another kind of table."""
    X.flags.writeable = spec["container"] != "read-only"
    match spec["container"]:
        case "list":
            return X.tolist()
        case "frame":
            return pd.DataFrame(X).add_prefix("column ")
        case "nullable" if X.dtype.kind in "fi" and X.dtype.itemsize > 2:
            return pd.DataFrame(X).add_prefix("column ").convert_dtypes()
        case "sparse" if X.dtype.kind == "f" and X.dtype.itemsize > 2:
            return csr_array(X)
        case "masked":
            return np.ma.masked_array(X, np.arange(X.size).reshape(X.shape) == 0)
        case "swapped":
            return X.astype(X.dtype.newbyteorder())
        case "strided":
            return np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2]
        case "fortran":
            return np.asfortranarray(X)
    return X


def mixed_frame(X: Any, first: int, rng: Generator) -> Any:
    """Numbers become text, dates, truth values, categories, gaps, or names of rows."""
    columns = {}
    for j, column in enumerate(X.T):
        sign = np.where(column > 0, "above", "below")
        day = np.datetime64("2024-01-01") + rng.integers(0, 500, len(X))
        whole = np.clip(np.nan_to_num(column), -9, 9).astype(int)
        columns[f"c{j}"] = (
            column,
            sign,
            day,
            column > 0,
            rng.integers(0, 60, len(X)).astype(str),
            pd.array(whole, dtype="Int64"),
            pd.Categorical(sign, categories=["above", "below", "never"]),
            day.astype(str),
            [f"row {i} {rng.integers(10**6)}" for i in range(len(X))],
        )[(j + first) % 9]
    return pd.DataFrame(columns, index=range(len(X)))


def surprising(frame: Any, surprise: str | None, rng: Generator) -> Any:
    """The table with something that tables of users have, or should not have."""
    if surprise is None or frame.empty:
        return frame
    last = frame.columns[-1]
    text = [name for name in frame if frame[name].dtype.kind in "OUT"]
    forms: dict[str, Callable[[], Any]] = {
        "polars": lambda: pl.from_pandas(frame),
        "gaps": lambda: frame.where(rng.random(frame.shape) < 0.7),
        "order": lambda: frame[frame.columns[::-1]],
        "renamed": lambda: frame.rename(columns={last: "other"}),
        "objects": lambda: frame.astype(object),
        "retyped": lambda: frame.assign(**{last: list(range(len(frame)))}),
        "unseen": lambda: frame.assign(**dict.fromkeys(text, "never seen")),
    }
    return forms[surprise]()


# From fit to interval -----------------------------------------------------------------


def calibrated(case: Case) -> Any:
    """An object with intervals, by MAPIE or by the library."""
    X, y = make_table(case["train"], case["kinds"])
    level, mode, n = case["level"], case["mode"], case["train"]["n"]
    weights = {
        "ones": np.ones(n),
        "random": np.random.default_rng(n).uniform(0, 1e6, n),
        "zeros": np.zeros(n),
        "negative": -np.ones(n),
        "short": np.ones(max(0, n - 1)),
        "long": np.ones(n + 1),
    }.get(case["weights"])
    fit_params = {} if weights is None else {"sample_weight": weights}
    recipe = replace(Recipe(), **({"views": ("raw",)} | case["recipe"]))
    model = ClapsRegressor(**(FAST | {"recipe": recipe} | case["params"]))
    shape = {"support": case["support"], "sym": case["sym"]}
    if mode in CROSS:
        cross = CrossConformalRegressor(model, level, ClapsScore(**shape), mode, cv=2)
        return cross.fit_conformalize(X, y, fit_params=fit_params)
    if mode == "calibrated":
        whole = CalibratedRegressor(model, level, random_state=0, **shape)
        return whole.fit(X, y, **fit_params)
    X_cal, y_cal = make_table(case["cal"], case["kinds"])
    if mode != "split":
        model.fit(X, y, **fit_params)
    if mode == "batches":
        batches = [(X_cal[:9], y_cal[:9]), (X_cal[9:], y_cal[9:])]
        return CalibratedRegressor(model, level, **shape).conformalize(batches)
    score = ClapsScore(model if mode == "held" else None, **shape)
    mapie = SplitConformalRegressor(model, level, score, prefit=mode != "split")
    if mode == "split":
        mapie.fit(X, y, fit_params=fit_params)
    return mapie.conformalize(X_cal, y_cal)


def faults(case: Case) -> Iterator[tuple[str, Any]]:
    """What can be wrong with intervals from end to end, and whether or where it is."""
    conformal = calibrated(case)
    train, test, levels = case["train"], case["test"], np.atleast_1d(case["level"])
    X, _ = make_table(test, case["kinds"])
    infinite = {"allow_infinite_bounds": case["allow_infinite"]}
    points, bounds = conformal.predict_interval(X, **infinite)
    if case["further"]:
        yield from further_faults(conformal, X, bounds, infinite)
    fitted = [train]
    if case["mode"] not in (*CROSS, "calibrated"):  # these split the training rows
        fitted.append(case["cal"])
    # Tables without rows are drawn without a surprise.
    first, last = (t["surprise"] if t["n"] else None for t in (train, test))
    changes = {"order", "renamed"} if train["p"] > 1 else {"renamed"}
    moved = case["kinds"] and first != last and {first, last} & changes
    yield "columns in another order or of other names, without a word", bool(moved)
    odd = case["weights"] in ("zeros", "negative", "short", "long")
    odd |= any(t["y_shape"] in ("pair", "short", "long") for t in fitted)
    yield "targets or weights of other length or sign, without a word", odd
    hidden = any(
        t["container"] == "masked" and t["n"] * t["p"] for t in (*fitted, test)
    )
    yield "values behind a mask, without a word", not case["kinds"] and hidden
    expected = (test["n"],), (test["n"], 2, len(levels))
    yield (
        f"shapes {points.shape}, {bounds.shape}",
        (points.shape, bounds.shape) != expected,
    )
    yield "a prediction that is not finite", ~np.isfinite(points)
    yield "NaN in the bounds", np.isnan(bounds)
    # Calibration targets outside a support or a domain score +∞.
    outside = case["params"].get("target_map") in ("log", "sqrt")
    outside |= case["support"] is not None
    refused = not (case["allow_infinite"] or outside)
    yield "infinite bounds that were not allowed", np.isinf(bounds) & refused
    lower, upper = np.moveaxis(bounds[:, :, np.argsort(levels)], 1, 0)
    yield "a lower bound above its upper one", lower > upper
    yield "upper bounds that fall as the level rises", upper[:, 1:] < upper[:, :-1]
    yield "lower bounds that rise with the level", lower[:, 1:] > lower[:, :-1]


def further_faults(
    conformal: Any, X: Any, bounds: Any, infinite: Any
) -> Iterator[tuple[str, Any]]:
    """Reasons, distribution and file must agree with the intervals."""
    why = explain(conformal, X, **infinite)
    explained = np.stack([why.lower, why.upper], axis=1)
    yield "an explanation of other bounds", not np.array_equal(explained, bounds)
    sound = (why.aleatoric > 0) & (why.epistemic >= 0)
    yield "parts of the variance that are not positive", ~sound
    if not isinstance(conformal, CalibratedRegressor):
        return
    quantiles = conformal.predict_quantiles(X, [0.3, 0.5, 0.7])
    yield "quantiles that fall as the level rises", quantiles[:, :-1] > quantiles[:, 1:]
    shares = conformal.cdf(X, np.array([-1.0, 0.0, 1.0]) + np.zeros((len(bounds), 1)))
    yield "probabilities that are none", ~((shares > 0) & (shares < 1))
    yield "probabilities that fall", np.diff(shares) < 0
    yield "quantiles that are no numbers", np.isnan(quantiles)
    with tempfile.TemporaryDirectory() as folder:
        save(conformal, Path(folder) / "model")
        loaded = load(Path(folder) / "model").predict_interval(X, **infinite)[1]
    yield "a file that gives other bounds", not np.array_equal(loaded, bounds)


def run_case(case: Case) -> tuple[str, str, str | None]:
    """Outcome of a case, its message, and what is wrong with it, if anything is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if "attack" in case:
                getattr(Attack(case), case["attack"])()
                return f"attack: {case['attack']}", "", None
            failure = next(
                (what for what, wrong in faults(case) if np.any(wrong)), None
            )
        except Exception as error:
            name, message, failure = type(error).__name__, str(error), None
            if is_empty_list_in_mapie(error):
                return "IndexError of MAPIE, empty list", message, None
            if "attack" in case:
                return f"attack: {case['attack']}", "", f"{name}: {message}"
            if not isinstance(error, DOCUMENTED):
                last = traceback.extract_tb(error.__traceback__)[-1]
                failure = f"undocumented {name} at {last.name}: {message}"
            elif not message.strip():
                failure = f"{name} without a message"
            return name, message, failure
    for w in caught:  # whether NumPy complains about arithmetic in this package
        if issubclass(w.category, RuntimeWarning) and "mapie_claps" in w.filename:
            failure = failure or f"{w.filename}:{w.lineno}: {w.message}"
    return "interval", "", failure


def is_empty_list_in_mapie(error: Exception) -> bool:
    """Whether MAPIE (1.6) counted the columns of an empty list, before it called us."""
    where = traceback.extract_tb(error.__traceback__)
    ours = any("/mapie_claps/" in frame.filename for frame in where)
    return where[-1].name == "_num_features" and not ours


# Attacks ------------------------------------------------------------------------------

must_raise = TestCase().assertRaisesRegex
#: What a network makes of the rows of a batch before it looks at them.
MIXING: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: (x - x.mean(0)) / (x.std(0, correction=0) + 0.1),
    lambda x: torch.softmax(x @ x.T, dim=1) @ x,  # attention to other rows
    lambda x: x.cumsum(0) / 10,  # a little of the rows before
    lambda x: x - x.mean(0),  # see rows_that_mix
)


class Pair(nn.Module):
    def __init__(self, size: int, mix: Any = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, size), nn.Tanh())
        self.mean, self.noise = nn.Linear(size, 1), nn.Linear(size, 1)
        self.mix = mix

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        phi = self.body(self.mix(x) if self.mix else x)
        return self.mean(phi), softplus(self.noise(phi)) + 1e-2


class Attack:
    """Each public method is an attack; any error says that a promise was broken."""

    def __init__(self, case: Case) -> None:
        self._case, self._seed = case, case["seed"]
        rng = self._rng = np.random.default_rng(self._seed)
        self._X = rng.normal(size=(case["n"], 3))
        self._y = self._X[:, 0] + rng.normal(size=case["n"])
        self._X_cal, self._X_test = rng.normal(size=(40, 3)), rng.normal(size=(9, 3))
        self._y_cal = self._X_cal[:, 0] + rng.normal(size=40)

    def _one_of(self, forms: Any) -> Any:
        return forms[self._case["variant"] % len(forms)]

    def _network(self, mix: Any = None) -> Pair:
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            return Pair(self._case["size"], mix)

    def _fitted(self, network: Any = None) -> ClapsModule:
        model = ClapsModule(network or self._network(), batch_size=self._case["batch"])
        return model.fit(self._X, self._y)

    def _calibrated(self, model: Any) -> CalibratedRegressor:
        conformal = CalibratedRegressor(model, self._case["level"])
        return conformal.conformalize(self._X_cal, self._y_cal)

    def _intervals(self, model: Any) -> Any:
        return self._calibrated(model).predict_interval(self._X_test, True)[1]

    def rows_that_mix(self) -> None:
        """A network whose output for a row depends on the batch."""
        mix = self._one_of(MIXING)
        network = self._network(mix)
        if mix is MIXING[-1]:  # in features of which neither head makes use
            nn.init.zeros_(network.mean.weight)
            nn.init.zeros_(network.noise.weight)
        fit = ClapsModule(network).fit
        must_raise(ValueError, "depends on the other rows", fit, self._X, self._y)

    def batches_of_any_size(self) -> None:
        """Batches, some of no rows, give what the table gives."""
        X, y, step = self._X, self._y, self._case["batch"]
        parts = [(X[i : i + step], y[i : i + step]) for i in range(0, len(X), step)]
        variant, net = self._case["variant"], self._network()
        parts.insert(variant % (len(parts) + 1), (X[:0], y[:0]))
        one = self._intervals(ClapsModule(net).fit(X, y))
        other = ClapsModule(net, batch_size=1 + variant).fit(parts)
        assert_allclose(self._intervals(other), one, rtol=1e-6)

    def another_default_device(self) -> None:
        """New tensors go where there are no numbers."""
        expected, net = self._intervals(self._fitted()), self._network()
        torch.set_default_device("meta")
        try:
            model = self._fitted(net)
            found = self._intervals(model)
            model.update_posterior(self._X_cal, self._y_cal).predict(self._X_test)
        finally:
            torch.set_default_device(None)
        assert_array_equal(found, expected)

    def models_that_change(self) -> None:
        """Fitted again, or with another scale, after calibration."""
        model = self._fitted()
        predict = self._calibrated(model).predict_interval
        predict(self._X_test, True)
        changes: list[Callable[[], Any]] = [
            lambda: model.fit(self._X_cal, self._y_cal),
            lambda: model.set_params(scale="aleatoric"),
            lambda: model.set_params(prior_precision=7.0).fit(self._X, self._y),
        ]
        self._one_of(changes)()
        must_raise(ValueError, "onformalize again", predict, self._X_test, True)

    def files_with_a_wrong_byte(self) -> None:
        """One byte of a file changed, or its end cut off."""
        model = self._fitted()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            save(model, path)
            content = bytearray(path.read_bytes())
            place = int(self._rng.integers(len(content)))
            if self._case["variant"] % 2:
                content[place] ^= 1 << self._seed % 8
            else:
                del content[place:]
            path.write_bytes(bytes(content))
            try:
                found = load(path, network=self._network())
            except FileFormatError:
                return
        # A space or the like: whatever loads is what was saved.
        assert_array_equal(self._intervals(found), self._intervals(model))

    def interrupts(self) -> None:
        """Ctrl-C at a line of ours: the old or the new fit is there as a whole."""
        model, new = self._fitted(), self._fitted().fit(self._X_cal, self._y_cal)
        old, stop, seen = copy.deepcopy(model), 1 + self._seed % 600, 0

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal seen
            if "/mapie_claps/" not in frame.f_code.co_filename:
                return None
            seen += event == "line"
            if seen == stop:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            model.fit(self._X_cal, self._y_cal)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        found, *possible = (
            m.predict(self._X_test, return_std=True) for m in (model, old, new)
        )
        if not any(np.array_equal(found, one) for one in possible):
            raise AssertionError("an interrupt left neither the old nor the new fit")


ATTACKS = sorted(name for name in vars(Attack) if not name.startswith("_"))


def without_numbers(message: str) -> str:
    """First line of a message with its numbers and lists taken out, to count alike."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    line = re.sub(r"[\[(][^\])]*[\])]", "(…)", line)
    return re.sub(r"-?\d[\d.e+-]*", "#", line)[:110].replace("|", "/")


def main(given: Sequence[str] | None = None) -> int:
    """Try the cases and print outcomes, messages and failures; 1 if any failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("cases", 2000), ("seed", 0), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"({value})")
    arguments = parser.parse_args(given)
    outcomes: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    failures: dict[str, list[str]] = {}
    for number in range(arguments.first, arguments.first + arguments.cases):
        case = draw_case(arguments.seed, number)
        kind, message, failure = run_case(case)
        outcomes[kind] += 1
        if message:
            messages[f"{kind} | {without_numbers(message)}"] += 1
        if failure:
            alike = failures.setdefault(without_numbers(failure), [])
            alike.append(f"FAILURE in case {number}: {failure}\n    {case!r}")
    n_failed = sum(map(len, failures.values()))
    parts = [
        f"{arguments.cases} cases of seed {arguments.seed} from {arguments.first} on, "
        f"{n_failed} failures.\n\n| outcome | cases |\n|---|---:|",
        *(f"| {kind} | {n} |" for kind, n in outcomes.most_common()),
        f"\nCommonest of {len(messages)} messages (numbers replaced):\n",
        "| exception | message begins | cases |\n|---|---|---:|",
        *(f"| {text} | {n} |" for text, n in messages.most_common(25)),
        *(f"{len(alike)} × {alike[0]}" for alike in failures.values()),
    ]
    sys.stdout.write("\n".join(parts) + "\n")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
