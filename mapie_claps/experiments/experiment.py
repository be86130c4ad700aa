"""What an experiment is, and its runs; imports neither torch nor scikit-learn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import Any

from ..studies import data as _data
from ..studies.data import PAPER_DATASETS, Dataset
from ..studies.runner import Run
from ..studies.store import Row, run_key

SYNTHETIC = {"n_train": 500, "n_calibration": 500, "n_test": 2000}
KEEP_PROBABILITY = 0.1
SYNTHETIC_TRAINING = {"max_steps": 250}
SIZES = ("100", "250", "500", "1000", "2000")
MAX_ROWS = 5000
TRAINING_FRACTION, CALIBRATION_FRACTION = 0.6, 0.2  # the rest is for testing
FRACTIONS = {"max_rows": MAX_ROWS, "training": TRAINING_FRACTION} | (
    {"calibration": CALIBRATION_FRACTION}
)
# Of the two targets of this table, the one that the published figures fit.
FILES = {"naval": "naval_turbine"}
SENSITIVITY_CASES = ("concrete", "energy", "bike", "california")
GRIDS: dict[str, tuple[float, ...]] = {
    "prior_precision": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0),
    "calibration_size": (0.10, 0.15, 0.20, 0.30),
    "representation_size": (16, 32, 64, 128),
    "variance_floor": (1e-6, 1e-5, 1e-4, 1e-3),
}


@dataclass(frozen=True)
class Options:
    """What a run needs to know beside its case and seed."""

    data_home: str | None = None
    smoke: bool = False  # few steps, stand-in data: shows that it works, no more


@dataclass(frozen=True)
class Experiment:
    """Cases, and the function that makes the rows of one of them."""

    name: str
    title: str
    cases: tuple[str, ...]  # data sets, or sizes of a synthetic training set
    n_seeds: int  # where the command line says nothing
    # Function "module.name" of this package with the arguments data set (or case, if
    # synthetic), seed, and overrides of ``ClapsRegressor.paper``; what follows after
    # another dot is its first argument.
    rows: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # for the key
    # Overrides of ``ClapsRegressor.paper``.
    training: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False  # drawn by make_heteroscedastic_sparse
    first_seed: int = 0

    def n_runs(self, n_seeds: int | None) -> int:
        """Number of planned runs."""
        return len(self.cases) * (n_seeds or self.n_seeds)

    def plan(self, n_seeds: int | None, options: Options) -> list[Run]:
        """All runs, seed by seed."""
        training = dict(self.training) | ({"max_steps": 5} if options.smoke else {})
        first, n = self.first_seed, n_seeds or self.n_seeds
        return [
            self._run(case, seed, options, training)
            for seed in range(first, first + n)
            for case in self.cases
        ]

    def _run(
        self, case: str, seed: int, options: Options, training: dict[str, Any]
    ) -> Run:
        data = case if self.synthetic else load_rows(case, options)
        content = data.key if isinstance(data, Dataset) else _drawn(seed)
        key = run_key(
            self.name,
            data={"case": case} | content,
            split={"seed": seed} | dict(self.settings),
            method=_method_key(tuple(sorted(training.items()))),
        )
        label = f"{self.name} {case}, seed {seed}"
        return Run(label, key, partial(_rows, self.rows, case, data, seed, training))


def _rows(
    name: str, case: str, data: Any, seed: int, training: dict[str, Any]
) -> list[Row]:
    """Rows of one run, with its case and seed."""
    module, function, *given = name.split(".")
    rows = getattr(import_module(f".{module}", __package__), function)
    found = rows(*given, data, seed, training)
    return [{"case": case, "seed": seed} | row for row in found]


@cache
def _drawn(seed: int) -> dict[str, str]:
    """Hash of some synthetic rows: another generator is another data set."""
    from ..datasets import make_heteroscedastic_sparse

    rows = make_heteroscedastic_sparse(
        100, keep_probability=KEEP_PROBABILITY, random_state=3 * seed
    )
    return {"sha256": _data.content_hash(rows.X, rows.y)}


@cache
def _method_key(training: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Parameters of all networks, which share layers and training with CLAPS."""
    from .. import ClapsRegressor
    from .methods import CONFIDENCE_LEVEL, METHODS, N_FOLDS

    parameters = ClapsRegressor.paper(**dict(training)).get_params()
    del parameters["random_state"]
    return {
        "name": list(METHODS),
        "confidence_level": CONFIDENCE_LEVEL,
        "folds": N_FOLDS,
        "networks": parameters,
    }


@cache
def load_rows(name: str, options: Options) -> Dataset:
    """The table, or for a smoke run rows that scikit-learn ships."""
    if options.smoke:
        return _data.load_diabetes_rows(250)
    return _data.load_paper_dataset(FILES.get(name, name), options.data_home)


def _sensitivity(name: str, title: str) -> Experiment:
    rows, settings = f"sensitivity.grid_rows.{name}", FRACTIONS | {"grid": GRIDS[name]}
    return Experiment(name, title, SENSITIVITY_CASES, 5, rows, settings)


def _real(name: str, title: str, n_seeds: int, first_seed: int = 0) -> Experiment:
    rows = "benchmark.benchmark_rows"
    return Experiment(
        *(name, title, PAPER_DATASETS, n_seeds, rows, FRACTIONS), first_seed=first_seed
    )


def _synthetic(name: str, title: str, cases: tuple[str, ...]) -> Experiment:
    rows, settings = f"synthetic.{name}_rows", SYNTHETIC | {"keep": KEEP_PROBABILITY}
    return Experiment(
        name, title, cases, 20, rows, settings, SYNTHETIC_TRAINING, synthetic=True
    )


EXPERIMENTS = {
    e.name: e
    for e in (
        _synthetic(
            "mechanism", "Experiment 1: controlled synthetic mechanism", ("synthetic",)
        ),
        _synthetic("contraction", "Experiment 2: posterior contraction", SIZES),
        _real("benchmark", "Experiment 3: real regression benchmark", 5),
        _real(
            "further_seeds",
            "Experiment 3 with seeds that the protocol was not chosen with",
            *(10, 5),
        ),
        _sensitivity("prior_precision", "Prior precision"),
        _sensitivity("calibration_size", "Calibration size"),
        _sensitivity("representation_size", "Representation dimension"),
        _sensitivity("variance_floor", "Variance floor"),
    )
}
