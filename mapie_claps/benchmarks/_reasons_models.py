"""Models that split their variance: ours, and four that people use.

Each is fitted to X and y and predicts the rows ``new``.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..studies.data import Array
from ._peer_table import claps_parameters


class Predicted(NamedTuple):
    """Mean and both parts of the variance of some rows, in units of y."""

    mu: Array
    aleatoric: Array
    epistemic: Array
    remoteness: Array | None = None  # of CLAPS, a second opinion on foreign rows
    model: Any = None  # of CLAPS, which also tells what measurements would bring


def _claps(X: Array, y: Array, new: Array, seed: int, **params: Any) -> Predicted:
    from .. import ClapsRegressor

    model = ClapsRegressor(random_state=seed, **params).fit(X, y)
    return Predicted(*model.predict_parts(new), model.predict_remoteness(new), model)


def _ensemble(X: Array, y: Array, new: Array, seed: int, **params: Any) -> Predicted:
    from .epistemic import member_parts

    parts = member_parts(_claps(X, y, new, seed, **params).model, new)
    noise = parts.aleatoric.mean(axis=0)
    return Predicted(parts.mu.mean(axis=0), noise, parts.mu.var(axis=0))


def _catboost(X: Array, y: Array, new: Array, seed: int, **params: Any) -> Predicted:
    """Virtual ensembles: knowledge uncertainty is epistemic, data uncertainty noise."""
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(random_seed=seed, **params).fit(X, y)
    found = model.virtual_ensembles_predict(
        new, prediction_type="TotalUncertainty", virtual_ensembles_count=10
    )
    mu, knowledge, noise = np.asarray(found).T
    return Predicted(mu, noise, knowledge)


def _standardised(
    fit: Callable[..., Any], X: Array, y: Array, new: Array, seed: int, **params: Any
) -> Predicted:
    """A model of standardised tensors that gives μ, one noise and v."""
    import torch

    centre, scale = X.mean(axis=0), X.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    mean, unit = float(y.mean()), float(y.std()) or 1.0
    standard = ((X - centre) / scale, (y - mean) / unit, (new - centre) / scale)
    tensors = (torch.from_numpy(np.ascontiguousarray(values)) for values in standard)
    mu, noise, v = fit(*tensors, seed, **params)
    aleatoric = np.full(len(new), noise * unit**2)
    return Predicted(mu.numpy() * unit + mean, aleatoric, v.numpy() * unit**2)


def _gaussian_process(X: Any, y: Any, new: Any, seed: int) -> tuple[Any, Any, Any]:
    """The covariance of our kernel member, constant noise, all training rows."""
    import torch

    from ..network.covariance import exact_posterior, fit_covariance

    generator, ones = torch.Generator().manual_seed(seed), torch.ones_like(y)
    covariance, noise = fit_covariance(X, y, ones, generator)
    mu, v = exact_posterior(covariance, X, y, noise * ones, new)
    return mu, noise, v


def _laplace(
    X: Any,
    y: Any,
    new: Any,
    seed: int,
    *,
    sizes: tuple[int, ...],
    steps: int,
    learning_rate: float,
    decay: float,
) -> tuple[Any, Any, Any]:
    """Last-layer Laplace as laplace-torch documents it: squared error, evidence."""
    import torch
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    y = y[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[torch.nn.Module] = []
        for n_in, n_out in pairwise((X.shape[1], *sizes)):
            layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
        network = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1)).double()
        optimiser = torch.optim.AdamW(
            network.parameters(), learning_rate, weight_decay=decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(steps):
            rows = torch.randperm(len(X))[:128]
            optimiser.zero_grad()
            loss = (network(X[rows]) - y[rows]).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
        la = Laplace(
            network.eval(),
            "regression",
            subset_of_weights="last_layer",
            hessian_structure="full",
        )
        la.fit(DataLoader(TensorDataset(X, y), batch_size=256))
        prior = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        sigma = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        evidence = torch.optim.Adam([prior, sigma], lr=0.1)
        for _ in range(150):
            evidence.zero_grad()
            (-la.log_marginal_likelihood(prior.exp(), sigma.exp())).backward()
            evidence.step()
    mu, v = la(new)
    noise = float(la.sigma_noise.detach()) ** 2
    return mu.detach().ravel(), noise, v.detach().ravel()


class Model(NamedTuple):
    """How a model is fitted, with settings that are part of the key of a run."""

    fit: Callable[..., Predicted]
    settings: dict[str, Any]
    short: dict[str, Any]  # other settings for a trial


MODELS = {
    "CLAPS": Model(_claps, {"tol": None}, {"max_steps": 20, "n_members": 2}),
    "GP": Model(partial(_standardised, _gaussian_process), {}, {}),
    "CatBoost": Model(
        _catboost,
        {
            "loss_function": "RMSEWithUncertainty",
            "posterior_sampling": True,
            "iterations": 500,
            "learning_rate": 0.1,
            "depth": 6,
            "thread_count": 1,
            "verbose": False,
            "allow_writing_files": False,
        },
        {"iterations": 20},
    ),
    # Lakshminarayanan et al.: five networks that see the inputs as they are, Gaussian
    # likelihood, early stopping; trained by our trainer.
    "deep ensemble": Model(
        _ensemble,
        {
            "n_members": 5,
            "views": ("raw",),
            "scaling_rate": 0.0,
            "beta": 0.0,
            "last_layer": "trained",
            "kernel": False,
            "target_map": None,
            "two_sided_noise": False,
            "residual_shape": False,
            "tol": None,
        },
        {"max_steps": 20},
    ),
    "laplace-torch": Model(
        partial(_standardised, _laplace),
        {"sizes": (64, 64, 64), "steps": 1000, "learning_rate": 1e-2, "decay": 1e-3},
        {"steps": 20},
    ),
}


def fit_model(
    name: str, seed: int, smoke: bool, X: Array, y: Array, new: Array
) -> Predicted:
    """Fit a model, or in a trial a quick version of it, and predict new rows."""
    model = MODELS[name]
    params = model.settings | (model.short if smoke else {})
    return model.fit(X, y, new, seed, **params)


def parameters_of(name: str, smoke: bool) -> dict[str, Any]:
    """What the key of a run says of the model."""
    settings = MODELS[name].settings
    if name in ("CLAPS", "deep ensemble"):
        settings = claps_parameters(**settings)
    return {"name": name, "smoke": smoke} | settings
