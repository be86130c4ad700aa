"""Cases drawn by number: each is the same on every machine and stands by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._fuzz_attacks import ATTACKS
from ._fuzz_cases import CALIBRATION_MODES, FuzzCase, TableSpec
from ._fuzz_scene import AttackCase

Case = FuzzCase | AttackCase

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
# Levels and supports: valid, and others.
LEVELS = ((0.9, 0.5, 0.7, [0.5, 0.8], [0.7, 0.6, 0.7]), (0.999, 0.0, 1.0, 1.5, -0.1))
SUPPORTS: tuple[tuple[Any, ...], tuple[Any, ...]] = (
    (None, "auto", "integer", "training", "count", (None, 3.0), [0.0, 1.0, 2.0]),
    ("counts", [], (2.0, 1.0), float("nan")),
)
OFTEN = ("prior_precision", "target_map", "two_sided_noise", "residual_shape")
WEIGHTS = ((None, None, "ones", "random"), ("zeros", "negative", "short", "long"))


@dataclass(frozen=True)
class Draw:
    """Choices of one case, from its seed and number."""

    rng: np.random.Generator

    def pick(self, values: Sequence[Any] | range) -> Any:
        """One of the values, each as likely."""
        return values[int(self.rng.integers(len(values)))]

    def chance(self, share: float) -> bool:
        """Whether something happens that happens in this share of cases."""
        return bool(self.rng.random() < share)

    def some(self, values: Sequence[Any], most: int) -> list[Any]:
        """Up to so many of the values, without repetition."""
        n = int(self.rng.integers(most + 1))
        return [values[i] for i in self.rng.permutation(len(values))[:n]]


def draw_case(seed: int, number: int) -> Case:
    """Case of a number: one in four is an attack on a promise."""
    draw = Draw(np.random.default_rng([seed, number]))
    return _attack(draw) if number % 4 == 3 else _table_case(draw)


def _attack(draw: Draw) -> AttackCase:
    return AttackCase(
        attack=draw.pick(sorted(ATTACKS)),
        seed=draw.pick(range(2**16)),
        n=draw.pick(range(8, 41)),
        batch=draw.pick(range(1, 51)),
        size=draw.pick(range(1, 7)),
        level=draw.pick([0.5, 0.8, 0.9, 0.99]),
        variant=draw.pick(range(12)),
    )


def _table_case(draw: Draw) -> FuzzCase:
    """A valid case, up to two of whose parts are drawn again from all values.

    So about half of the cases get as far as an interval.
    """
    parts = ("train", "cal", "test", "params", "weights", "level", "support")
    wild = draw.some(parts, 2) if draw.chance(0.5) else []
    width = draw.pick(WIDTHS)
    tables = {name: _table(draw, width, name in wild) for name in parts[:3]}
    return FuzzCase(
        **tables,
        params=_parameters(draw, "params" in wild),
        weights=draw.pick(WEIGHTS["weights" in wild]),
        mode=draw.pick(CALIBRATION_MODES),
        level=draw.pick(LEVELS["level" in wild]),
        support=draw.pick(SUPPORTS["support" in wild]),
        sym=draw.chance(0.5),
        allow_infinite=draw.chance(0.5),
        kinds=draw.pick(range(1, 10)) if draw.chance(0.5) else 0,
        further=draw.chance(0.25),
    )


def _table(draw: Draw, width: int, wild: bool) -> TableSpec:
    fields = {name: draw.pick(values[wild]) for name, values in TABLES.items()}
    if wild and draw.chance(0.2):
        width = draw.pick(range(6))
    return TableSpec(p=width, seed=draw.pick(range(2**16)), **fields)


def _parameters(draw: Draw, wild: bool) -> dict[str, Any]:
    """Up to four parameters and some of OFTEN, and always one view of the inputs."""
    found = {"views": draw.pick(PARAMETERS["views"][0][:3])}
    often = draw.some(OFTEN, 2)
    for name in [*often, *draw.some(sorted(PARAMETERS), 4)]:
        valid, others = PARAMETERS[name]
        found[name] = draw.pick(valid + others if wild else valid)
    return found
