"""The table of experiments, and their runs; imports neither torch nor scikit-learn."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from ..studies import data as _data
from ..studies.data import PAPER_DATASETS, Dataset
from ..studies.runner import Run
from ..studies.store import Row, run_key
from . import protocol


@dataclass(frozen=True)
class Options:
    """What a run needs to know beside its case and seed."""

    data_home: str | None = None
    smoke: bool = False  # few steps, stand-in data: shows that it works, no more

    def training(self, synthetic: bool) -> dict[str, Any]:
        """Overrides of ``ClapsRegressor.paper``."""
        if self.smoke:
            return {"max_steps": protocol.SMOKE_STEPS}
        return {"max_steps": protocol.SYNTHETIC_STEPS} if synthetic else {}


@dataclass(frozen=True)
class Experiment:
    """Cases and seeds; ``runs.rows_of`` makes the rows of one of them."""

    name: str
    title: str
    cases: tuple[str, ...]  # data sets, or sizes of a synthetic training set
    n_seeds: int  # where the command line says nothing
    first_seed: int = 0

    def n_runs(self, n_seeds: int | None) -> int:
        """Number of planned runs."""
        return len(self.cases) * (n_seeds or self.n_seeds)

    def plan(self, n_seeds: int | None, options: Options) -> list[Run]:
        """All runs, seed by seed."""
        seeds = range(self.first_seed, self.first_seed + (n_seeds or self.n_seeds))
        return [self._run(c, seed, options) for seed in seeds for c in self.cases]

    def _run(self, case: str, seed: int, options: Options) -> Run:
        synthetic, grid = case not in PAPER_DATASETS, protocol.GRIDS.get(self.name)
        data = None if synthetic else load_rows(case, options)
        settings = protocol.SYNTHETIC if synthetic else protocol.FRACTIONS
        training = options.training(synthetic)
        key = run_key(
            self.name,
            data={"case": case} | (data.key if data else _drawn(seed)),
            split={"seed": seed} | settings | ({"grid": grid} if grid else {}),
            method=_method_key(**training),
        )
        compute = partial(_rows, self.name, case, data, seed, training)
        return Run(f"{self.name} {case}, seed {seed}", key, compute)


def _rows(*run: Any) -> list[Row]:
    """Rows of one run, by a module that imports torch."""
    from .runs import rows_of

    return rows_of(*run)


@cache
def _drawn(seed: int) -> dict[str, str]:
    """Hash of some synthetic rows: another generator is another data set."""
    from ..datasets import make_heteroscedastic_sparse

    keep = protocol.SYNTHETIC["keep"]
    rows = make_heteroscedastic_sparse(
        100, keep_probability=keep, random_state=3 * seed
    )
    return {"sha256": _data.content_hash(rows.X, rows.y)}


@cache
def _method_key(**training: Any) -> dict[str, Any]:
    """Parameters of all networks, which share layers and training with CLAPS."""
    from .. import ClapsRegressor

    parameters = ClapsRegressor.paper(**training).get_params()
    del parameters["random_state"]
    return {
        "name": protocol.METHODS,
        "confidence_level": protocol.CONFIDENCE_LEVEL,
        "folds": protocol.N_FOLDS,
        "networks": parameters,
    }


@cache
def load_rows(name: str, options: Options) -> Dataset:
    """The table, or for a smoke run rows that scikit-learn ships."""
    if options.smoke:
        return _data.load_diabetes_rows(250)
    file = protocol.FILES.get(name, name)
    return _data.load_paper_dataset(file, options.data_home)


SIZES = ("100", "250", "500", "1000", "2000")
GRID_CASES = ("concrete", "energy", "bike", "california")
MECHANISM = "Experiment 1: controlled synthetic mechanism"
FURTHER = "Experiment 3 with seeds that the protocol was not chosen with"
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("mechanism", MECHANISM, ("synthetic",), 20),
        Experiment("contraction", "Experiment 2: posterior contraction", SIZES, 20),
        Experiment(
            "benchmark", "Experiment 3: real regression benchmark", PAPER_DATASETS, 5
        ),
        Experiment("further_seeds", FURTHER, PAPER_DATASETS, 10, first_seed=5),
        Experiment("prior_precision", "Prior precision", GRID_CASES, 5),
        Experiment("calibration_size", "Calibration size", GRID_CASES, 5),
        Experiment("representation_size", "Representation dimension", GRID_CASES, 5),
        Experiment("variance_floor", "Variance floor", GRID_CASES, 5),
    )
}
