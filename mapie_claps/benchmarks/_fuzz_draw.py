"""Cases drawn by number: each is the same on every machine and stands by itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._fuzz_attacks import ATTACKS, AttackCase
from ._fuzz_cases import CALIBRATION_MODES, FuzzCase, TableSpec

Generator = np.random.Generator

DTYPES = ("float64", "float32", "float16", "int64", "uint8", "bool", "object", "str")
CORRUPTIONS = (None, None, None, "nan", "inf", "huge", "tiny", "constant", "duplicates")
HARMLESS = (None, None, None, "constant", "duplicates", "tiny")
NUMBERS = ("float64", "float64", "float32", "int64")
# Fields of TableSpec: for tables that are fit for use, and for any.
TABLES: dict[str, tuple[Any, Any]] = {
    "n": (range(4, 41), range(41)),
    "container": (
        ("array", "array", "list", "fortran", "read-only", "strided", "swapped"),
        ("array", "list", "frame", "sparse", "fortran", "nullable", "masked"),
    ),
    "dtype": (NUMBERS, DTYPES),
    "corruption": (HARMLESS, CORRUPTIONS),
    "y_dtype": (NUMBERS, DTYPES),
    "y_corruption": (HARMLESS, CORRUPTIONS),
    "y_shape": (("flat",), ("flat", "flat", "flat", "column", "pair", "short", "long")),
    "surprise": (
        (None, None, "gaps", "unseen", "polars"),
        ("gaps", "unseen", "polars", "order", "renamed", "retyped", "objects"),
    ),
}
WIDTHS = (1, 2, 2, 3, 4, 9)  # columns; a wild table may have another number of them
# Parameters with values that are valid, and with others.
PARAMETERS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "hidden_layer_sizes": (((4,), (), (3, 2)), (4, (0,), "4")),
    "representation_size": ((3, 1, 8), (0, 2.5)),
    "n_members": ((1, 2, 3), (0, None)),
    "views": (
        (("bins",), ("periodic",), ["raw"], ("bins", "periodic", "raw")),
        ((), "raw", (1,)),
    ),
    "scaling_rate": ((0.0, 3.0, 1e6), (-1.0,)),
    "n_bins": ((0, 4, 16, 10**6), (-1,)),
    "max_steps": ((1, 3, 6), (0, True)),
    "batch_size": (("auto", 1, 7, 10**6), ("all",)),
    "learning_rate": ((1e-2, 1.0, 1e-300), (1e30, 0.0, float("nan"))),
    "schedule": (("cosine", "constant"), ("linear",)),
    "weight_decay": ((0.0, 1e-3, 10.0), (-1.0,)),
    "dropout": ((0.0, 0.5, 0.99), (1.0,)),
    "beta": ((0.0, 0.5, 1.0), (2.0,)),
    "validation_fraction": ((0.12, 0.5), (0.0, 0.9)),
    "patience": ((None, 1), (0,)),
    "tol": ((None, 0.05), (-1.0,)),
    "variance_floor": ((1e-6, 1e-3, 1e-300, 1e6), (0.0,)),
    "prior_precision": (("grid", "marglik", 1.0, 1e-300, 1e300), (0.0, "best")),
    "last_layer": (("ridge", "trained"), ("none",)),
    "hessian_structure": (("full",), ("diag", "kron")),
    "scale": (("claps", "aleatoric", "posterior", "constant"), ("total",)),
    "device": (("cpu", "auto"), ("abacus",)),
    "kernel": ((False, True), ("yes",)),
    "target_map": (
        (None, "auto", "yeo-johnson", "spline", "log", "sqrt"),
        ("cube",),
    ),
    "two_sided_noise": ((True, False), (1.5,)),
    "residual_shape": ((True, False), (None,)),
    "categorical_features": (("from_dtype", [0], [-1]), (["nowhere"], 7)),
    "random_state": ((0, None, 2**32 - 1), (-1, "seed")),
}
# Further fields of FuzzCase, likewise.
CALLS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "weights": (
        (None, None, "ones", "random"),
        ("zeros", "negative", "short", "long"),
    ),
    "mode": (CALIBRATION_MODES, ()),
    "level": (
        (0.9, 0.5, 0.7, [0.5, 0.8], [0.7, 0.6, 0.7]),
        (0.999, 0.0, 1.0, 1.5, -0.1),
    ),
    "support": (
        (None, "auto", "integer", "training", "count", (None, 3.0), [0.0, 1.0, 2.0]),
        ("counts", [], (2.0, 1.0), float("nan")),
    ),
}
OFTEN = ("prior_precision", "target_map", "two_sided_noise", "residual_shape")


def _pick(rng: Generator, values: Sequence[Any]) -> Any:
    """One of the values, each as likely."""
    return values[int(rng.integers(len(values)))]


def _some(rng: Generator, values: Sequence[Any], most: int) -> list[Any]:
    """Up to so many of the values, without repetition."""
    n = rng.integers(most + 1)
    return [values[i] for i in rng.permutation(len(values))[:n]]


def draw_case(seed: int, number: int) -> FuzzCase | AttackCase:
    """Case of a number: one in four is an attack on a promise."""
    rng = np.random.default_rng([seed, number])
    if number % 4 != 3:
        return _table_case(rng)
    return AttackCase(
        attack=_pick(rng, ATTACKS),
        seed=_pick(rng, range(2**16)),
        n=_pick(rng, range(8, 41)),
        batch=_pick(rng, range(1, 51)),
        size=_pick(rng, range(1, 7)),
        level=_pick(rng, [0.5, 0.8, 0.9, 0.99]),
        variant=_pick(rng, range(12)),
    )


def _table_case(rng: Generator) -> FuzzCase:
    """A valid case, up to two of whose parts are drawn again from all values.

    So about half of the cases get as far as an interval.
    """
    parts = ("train", "cal", "test", "params", "weights", "level", "support")
    wild = _some(rng, parts, 2) if rng.random() < 0.5 else []
    width = _pick(rng, WIDTHS)
    tables: Any = {name: _table(rng, width, name in wild) for name in parts[:3]}
    return FuzzCase(
        **tables,
        params=_parameters(rng, "params" in wild),
        **{name: _pick(rng, pools[name in wild]) for name, pools in CALLS.items()},
        sym=rng.random() < 0.5,
        allow_infinite=rng.random() < 0.5,
        kinds=_pick(rng, range(1, 10)) if rng.random() < 0.5 else 0,
        further=rng.random() < 0.25,
    )


def _table(rng: Generator, width: int, wild: bool) -> TableSpec:
    fields = {name: _pick(rng, pools[wild]) for name, pools in TABLES.items()}
    if wild and rng.random() < 0.2:
        width = _pick(rng, range(6))
    return TableSpec(p=width, seed=_pick(rng, range(2**16)), **fields)


def _parameters(rng: Generator, wild: bool) -> dict[str, Any]:
    """Up to four parameters and some of OFTEN, and always one view of the inputs."""
    found = {"views": _pick(rng, PARAMETERS["views"][0][:3])}
    for name in [*_some(rng, OFTEN, 2), *_some(rng, sorted(PARAMETERS), 4)]:
        valid, others = PARAMETERS[name]
        found[name] = _pick(rng, valid + others if wild else valid)
    return found
