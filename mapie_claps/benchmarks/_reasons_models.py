"""Models that split their variance: ours, and four that people use."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..studies.data import Array

__all__ = [
    "MODELS",
    "Claps",
    "Predicted",
    "fit_model",
    "parameters_of",
]


class Predicted(NamedTuple):
    """Mean and both parts of the variance of some rows, in units of y."""

    mu: Array
    aleatoric: Array
    epistemic: Array
    remoteness: Array | None = None  # of CLAPS, a second opinion on foreign rows


Predict = Callable[[Array], Predicted]
# Deep ensemble (Lakshminarayanan et al.): five networks that see the inputs as they
# are, Gaussian likelihood, early stopping; trained by our trainer.
ENSEMBLE: dict[str, Any] = {
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
}
CATBOOST: dict[str, Any] = {
    "loss_function": "RMSEWithUncertainty",
    "posterior_sampling": True,
    "iterations": 500,
    "learning_rate": 0.1,
    "depth": 6,
    "thread_count": 1,
    "verbose": False,
    "allow_writing_files": False,
}
LAPLACE: dict[str, Any] = {
    "sizes": (64, 64, 64),
    "steps": 1000,
    "learning_rate": 1e-2,
    "decay": 1e-3,
}


class Claps:
    """A fitted ``ClapsRegressor``, which also tells what measurements would bring."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, rows: Array) -> Predicted:
        mu, aleatoric, epistemic = self.model.predict_parts(rows)
        remote = self.model.predict_remoteness(rows)
        return Predicted(mu, aleatoric, epistemic, remote)


def _claps(X: Array, y: Array, seed: int, params: dict[str, Any]) -> Predict:
    from .. import ClapsRegressor

    return Claps(ClapsRegressor(random_state=seed, tol=None, **params).fit(X, y))


def _ensemble(X: Array, y: Array, seed: int, params: dict[str, Any]) -> Predict:
    from .. import ClapsRegressor
    from .epistemic import member_parts

    model = ClapsRegressor(random_state=seed, **(ENSEMBLE | params)).fit(X, y)

    def predict(rows: Array) -> Predicted:
        parts = member_parts(model, rows)
        return Predicted(
            parts.mu.mean(axis=0), parts.aleatoric.mean(axis=0), parts.mu.var(axis=0)
        )

    return predict


def _gaussian_process(X: Array, y: Array, seed: int, params: dict[str, Any]) -> Predict:
    """The covariance of our kernel member, constant noise, all training rows."""
    import torch

    from ..network.covariance import exact_posterior, fit_covariance

    standard = _Standardised(X, y)
    Xs, ys = torch.from_numpy(standard.inputs(X)), torch.from_numpy(standard.targets(y))
    generator, ones = torch.Generator().manual_seed(seed), torch.ones_like(ys)
    covariance, noise = fit_covariance(Xs, ys, ones, generator)

    def predict(rows: Array) -> Predicted:
        x = torch.from_numpy(standard.inputs(rows))
        mu, v = exact_posterior(covariance, Xs, ys, noise * ones, x)
        return standard.back(mu.numpy(), np.full(len(rows), noise), v.numpy())

    return predict


def _catboost(X: Array, y: Array, seed: int, params: dict[str, Any]) -> Predict:
    """Virtual ensembles: knowledge uncertainty is epistemic, data uncertainty noise."""
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(random_seed=seed, **(CATBOOST | params)).fit(X, y)

    def predict(rows: Array) -> Predicted:
        found = model.virtual_ensembles_predict(
            rows, prediction_type="TotalUncertainty", virtual_ensembles_count=10
        )
        mu, knowledge, noise = np.asarray(found).T
        return Predicted(mu, noise, knowledge)

    return predict


def _laplace(X: Array, y: Array, seed: int, params: dict[str, Any]) -> Predict:
    """Last-layer Laplace as laplace-torch documents it: squared error, evidence."""
    import torch
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    settings, standard = LAPLACE | params, _Standardised(X, y)
    Xs = torch.from_numpy(standard.inputs(X))
    ys = torch.from_numpy(standard.targets(y))[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        widths = (Xs.shape[1], *settings["sizes"])
        layers: list[torch.nn.Module] = []
        for n_in, n_out in pairwise(widths):
            layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
        network = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1)).double()
        optimiser = torch.optim.AdamW(
            network.parameters(),
            settings["learning_rate"],
            weight_decay=settings["decay"],
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimiser, settings["steps"]
        )
        for _ in range(settings["steps"]):
            rows = torch.randperm(len(Xs))[:128]
            optimiser.zero_grad()
            loss = (network(Xs[rows]) - ys[rows]).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
        la = Laplace(
            network.eval(),
            "regression",
            subset_of_weights="last_layer",
            hessian_structure="full",
        )
        la.fit(DataLoader(TensorDataset(Xs, ys), batch_size=256))
        prior = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        sigma = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        evidence = torch.optim.Adam([prior, sigma], lr=0.1)
        for _ in range(150):
            evidence.zero_grad()
            (-la.log_marginal_likelihood(prior.exp(), sigma.exp())).backward()
            evidence.step()

    def predict(rows: Array) -> Predicted:
        mu, v = la(torch.from_numpy(standard.inputs(rows)))
        noise = np.full(len(rows), float(la.sigma_noise.detach()) ** 2)
        parts = mu.detach().numpy().ravel(), v.detach().numpy().ravel()
        return standard.back(parts[0], noise, parts[1])

    return predict


class _Standardised:
    """Units of the networks and the Gaussian process."""

    def __init__(self, X: Array, y: Array) -> None:
        self._centre, self._scale = X.mean(axis=0), X.std(axis=0)
        self._scale = np.where(self._scale > 0, self._scale, 1.0)
        self._mean, self._unit = float(y.mean()), float(y.std()) or 1.0

    def inputs(self, X: Array) -> Array:
        return np.ascontiguousarray((X - self._centre) / self._scale, dtype=np.float64)

    def targets(self, y: Array) -> Array:
        return np.asarray((y - self._mean) / self._unit, dtype=np.float64)

    def back(self, mu: Array, aleatoric: Array, epistemic: Array) -> Predicted:
        square = self._unit**2
        return Predicted(
            mu * self._unit + self._mean, aleatoric * square, epistemic * square
        )


MODELS = {
    "CLAPS": _claps,
    "GP": _gaussian_process,
    "CatBoost": _catboost,
    "deep ensemble": _ensemble,
    "laplace-torch": _laplace,
}


def fit_model(name: str, X: Array, y: Array, seed: int, smoke: bool) -> Predict:
    """Fit a model, or in a trial a quick version of it."""
    params: dict[str, Any] = {}
    if smoke:
        params = {
            "CLAPS": {"max_steps": 20, "n_members": 2},
            "CatBoost": {"iterations": 20},
            "deep ensemble": {"max_steps": 20},
            "laplace-torch": {"steps": 20},
        }.get(name, {})
    return MODELS[name](X, y, seed, params)


def parameters_of(name: str, smoke: bool) -> dict[str, Any]:
    """What the key of a run says of the model."""
    from ._peer_table import claps_parameters

    settings: dict[str, Any] = {"name": name, "smoke": smoke}
    if name == "CLAPS":
        return settings | claps_parameters(tol=None)
    if name == "deep ensemble":
        return settings | claps_parameters(**ENSEMBLE)
    return settings | {"CatBoost": CATBOOST, "laplace-torch": LAPLACE}.get(name, {})
