"""Speed of training: against skorch, scikit-learn's MLP and gradient boosting."""

import cProfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..estimators.regressor import ClapsRegressor
from ..network import defaults as _recipe
from ._data import PAPER_DATASETS, Dataset, load_named, split_rows
from ._speed_timing import CLOCKS, Result, Settings, best_of

Rows = NDArray[np.float32]
WIDTH = 64
AGAINST_SKORCH, AGAINST_MLP = 3.0, 1.0
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-3


def make_rows(n: int, p: int) -> tuple[Rows, Rows]:
    """Standard normal rows in float32."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p), dtype=np.float32)
    noise = 0.3 * rng.standard_normal(n, dtype=np.float32)
    return X, np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + noise


class Network(nn.Module):
    """The default network of one member: three layers of 64 and two heads."""

    def __init__(self, p: int) -> None:
        super().__init__()
        layers = [nn.Linear(p, WIDTH), nn.SiLU()]
        for _ in range(2):
            layers += [nn.Linear(WIDTH, WIDTH), nn.SiLU()]
        self.body = nn.Sequential(*layers)
        self.mean, self.noise = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        phi = self.body(x)
        return self.mean(phi), softplus(self.noise(phi)) + 1e-6


class GaussianLoss(nn.Module):
    """Negative log-likelihood of mean and variance."""

    def forward(self, out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        """Mean over the rows."""
        return nn.functional.gaussian_nll_loss(out[0], y, out[1])


def ours(n_members: int, batch_size: int, steps: int) -> ClapsRegressor:
    """The same network and optimiser in ClapsRegressor, without hold-out."""
    return ClapsRegressor(
        hidden_layer_sizes=(WIDTH, WIDTH),
        representation_size=WIDTH,
        n_members=n_members,
        views=("raw",),
        scaling_rate=0.0,
        batch_size=batch_size,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        schedule="constant",
        beta=0.0,
        validation_fraction=0.0,
        prior_precision=1.0,
        tol=None,
        random_state=0,
    )


def skorch_regressor(p: int, batch_size: int, epochs: int) -> Any:
    """The same network and optimiser in skorch, silent and without hold-out."""
    from skorch import NeuralNetRegressor

    return NeuralNetRegressor(
        Network(p),
        criterion=GaussianLoss,
        optimizer=torch.optim.AdamW,
        optimizer__fused=True,
        optimizer__weight_decay=WEIGHT_DECAY,
        lr=LEARNING_RATE,
        batch_size=batch_size,
        iterator_train__shuffle=True,
        iterator_train__drop_last=True,
        max_epochs=epochs,
        train_split=None,
        callbacks__print_log=None,
    )


def mlp_regressor(batch_size: int, epochs: int) -> MLPRegressor:
    """scikit-learn's network: ReLU and squared loss, as it has no others."""
    return MLPRegressor(
        hidden_layer_sizes=(WIDTH, WIDTH, WIDTH),
        alpha=WEIGHT_DECAY,
        batch_size=batch_size,
        learning_rate_init=LEARNING_RATE,
        max_iter=epochs,
        tol=0.0,
        n_iter_no_change=epochs + 1,
        random_state=0,
    )


def fit_new(
    make: Callable[..., Any], arguments: tuple[int, ...], X: Any, y: Any
) -> None:
    """Make an estimator and fit it."""
    make(*arguments).fit(X, y)


def fit_default(X: Any, y: Any) -> ClapsRegressor:
    """ClapsRegressor as it comes; its warning would only disturb the table."""
    return ClapsRegressor(tol=None, random_state=0).fit(X, y)


def training(settings: Settings) -> Iterator[Result]:
    """Item 3: whole calls of ``fit``, with about as many steps as the defaults take."""
    for n, p in [(200, 3)] if settings.smoke else [(5000, 8), (100_000, 32)]:
        X, y = make_rows(n, p)
        batch_size = _recipe.batch_size(n)
        in_epoch = n // batch_size
        epochs = settings.size(_recipe.max_steps(n) // in_epoch, 1)
        steps = epochs * in_epoch
        members = ClapsRegressor().n_members
        calls: dict[str, Callable[[], Any]] = {
            "one": partial(fit_new, ours, (1, batch_size, steps), X, y),
            "many": partial(fit_new, ours, (members, batch_size, steps), X, y),
            "skorch": partial(
                fit_new, skorch_regressor, (p, batch_size, epochs), X, y[:, None]
            ),
            "mlp": partial(fit_new, mlp_regressor, (batch_size, epochs), X, y),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            times = best_of(calls, settings)
        times["many"] /= members
        passed = batch_size * steps / 1e3
        case = f"training, {n:,} × {p}, batches of {batch_size}"
        for name, other, bound in (
            ("one", "skorch", AGAINST_SKORCH),
            ("one", "mlp", None),
            ("many", "skorch", AGAINST_SKORCH),
            ("many", "mlp", AGAINST_MLP),
        ):
            who = "one network" if name == "one" else f"per member of {members}"
            yield Result(
                "training",
                f"{case}, {who}",
                {"skorch": "skorch", "mlp": "MLPRegressor"}[other],
                1e3 * times[name] / passed,
                1e3 * times[other] / passed,
                "µs per row",
                "faster",
                bound,
            )


def default_fit(settings: Settings) -> Iterator[Result]:
    """Item 7: the default ``fit`` against that of MAPIE's CQR, with its profile."""
    for data in _datasets(settings):
        split = split_rows(data, 0, 5000)
        X, y = split.X_train, split.y_train
        times = best_of(
            {"ours": partial(fit_default, X, y), "cqr": partial(fit_cqr, X, y)},
            settings,
            min(2, settings.repeats),
        )
        yield Result(
            "default",
            f"default fit, {data.name}, {len(X):,} × {X.shape[1]}",
            "MAPIE CQR, HistGradientBoosting",
            times["ours"],
            times["cqr"],
            "s",
            "cost",
            note=profile(partial(fit_default, X, y), settings.clock),
        )
    yield from _target_sizes(settings)


def _datasets(settings: Settings) -> Iterator[Dataset]:
    if settings.data is not None and not settings.smoke:
        for name in PAPER_DATASETS:
            yield load_named(name, settings.data)
        return
    for n, p in [(100, 3)] if settings.smoke else [(500, 8), (5000, 8), (5000, 16)]:
        X, y = make_rows(n, p)
        yield Dataset("generated", X.astype(np.float64), y.astype(np.float64))


def _target_sizes(settings: Settings) -> Iterator[Result]:
    """Goals of the project for the default ``fit``: seconds at two sizes."""
    for n, p, seconds in [(60, 3, 0.5)] if settings.smoke else GOALS:
        X, y = make_rows(n, p)
        times = best_of({"": partial(fit_default, X, y)}, settings, 2)
        yield Result(
            "default",
            f"default fit, {n:,} × {p}",
            f"goal of {seconds:g} s",
            times[""],
            seconds,
            "s",
            "cost",
            1.0,
        )


GOALS = [(100, 8, 0.5), (3000, 12, 10.0)]


def fit_cqr(X: Any, y: Any) -> Any:
    """MAPIE's conformalised quantile regression: three models."""
    from mapie.regression import ConformalizedQuantileRegressor

    return ConformalizedQuantileRegressor(
        HistGradientBoostingRegressor(loss="quantile", quantile=0.5, random_state=0),
        confidence_level=0.9,
    ).fit(X, y)


# What the profile tells apart: names of torch's functions, or a function of ours in
# its file with all that it calls.
OPERATIONS = {
    "matrix products": ("torch.mm", "torch.bmm", "torch.addmm", "torch.baddbmm"),
    "activations and slopes": ("torch._ops.aten.", "torch.sin", "torch.cos"),
    "optimiser": ("torch._fused_adamw_",),
}
PHASES = {
    "evaluation": ("_training.py", "_evaluate"),
    "training in all": ("_training.py", "train"),
    "posterior": ("_predictive.py", "fit_predictive_model"),
}


def profile(function: Callable[[], Any], clock: str) -> str:
    """Shares of one call's time, by cProfile."""
    profiler = cProfile.Profile(CLOCKS[clock])
    profiler.runcall(function)
    # Not pstats: it keeps one entry of a name, and many of torch's functions share one.
    stats = profiler.getstats()
    total = sum(entry.inlinetime for entry in stats)
    spent = dict.fromkeys([*OPERATIONS, *PHASES], 0.0)
    for entry in stats:
        if isinstance(entry.code, str):
            for operation, names in OPERATIONS.items():
                if entry.code in [f"<built-in method {name}>" for name in names]:
                    spent[operation] += entry.inlinetime
            continue
        for phase, (file, name) in PHASES.items():
            path = Path(entry.code.co_filename)
            if path.name == file and entry.code.co_name == name:
                spent[phase] += entry.totaltime
    return ", ".join(f"{what} {100 * t / total:.0f} %" for what, t in spent.items())
