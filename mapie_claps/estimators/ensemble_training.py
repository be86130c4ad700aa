"""Table → networks → Σ: how ``ClapsRegressor`` is fitted."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ..network.defaults import training_config
from ..network.encoding import PiecewiseLinearEncoding, bin_edges
from ..network.ensemble import HeteroscedasticNetwork
from ..network.hold_out import n_held_out, split_rows
from ..network.inputs import check_training_data, draw_seed, fit_scalers
from ..network.kernel import LengthScales, fit_length_scales
from ..network.losses import Loss
from ..network.table_fit import fit_table
from ..network.target_choice import choose_target_map, fit_target_map
from ..network.target_map import Identity, TargetMap
from ..network.threads import Crew, resolve_jobs, side_by_side, threads_for
from ..network.trainer import multiply_adds, train
from ..network.units import number_of_units
from ..posterior.members import fit_last_layers, rows_of_ensemble
from ..posterior.mixture import fit_mixture
from .ensemble_rows import EnsembleRows
from .fitted_rows import FittedRows, fitted_rows
from .parameters import check_parameters, choose_device, layer_sizes
from .residual_law import ResidualLaw
from .residual_shape import fit_residual_shape
from .target_range import TargetRange

Array = NDArray[np.float64]


class Trained(NamedTuple):
    """What training leaves behind for the posterior."""

    rows: tuple[Tensor, Tensor, Tensor, Tensor]  # X, y, weights; held-out row numbers
    generator: torch.Generator
    length_scales: Callable[[], LengthScales | None] | None  # of a kernel, if wanted


class EnsembleTraining(EnsembleRows):
    """Scalers, map of the target, networks, posterior and kernel, in this order."""

    input_clip_: float | None
    loss_curve_: list[float]
    validation_curve_: list[float]
    n_iter_: int
    _fitted_rows: FittedRows
    # Parameters of ClapsRegressor, and how scikit-learn reads them.
    get_params: Callable[..., dict[str, Any]]
    n_members: int
    views: tuple[str, ...]
    n_bins: int
    scaling_rate: float
    initial_bias: float | None
    max_steps: Any
    learning_rate: float
    tol: float | None
    validation_fraction: float
    kernel: bool
    two_sided_noise: bool
    residual_shape: bool
    categorical_features: Any
    device: str
    n_jobs: int | None
    random_state: Any

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Fit this object, which is a copy that nobody else sees."""
        check_parameters(self.get_params(deep=False))
        n_tasks = number_of_units(self.n_members) + self.kernel
        with side_by_side(resolve_jobs(self.n_jobs) or 1, n_tasks) as crew:
            trained = self._fit_network(X, y, sample_weight, crew=crew)
            network = self.network_
            with threads_for(multiply_adds(network, rows_of_ensemble(network))):
                self._fit_posterior(trained, crew)

    def _fit_posterior(self, trained: Trained, crew: Crew) -> None:
        """Σ, the law of the residuals and the kernel, the networks being trained."""
        recipe, rows = self._recipe(), trained.rows
        self.model_, sums, found, noise = fit_last_layers(
            self.network_,
            *rows,
            self.hessian_structure,
            recipe,
            self.two_sided_noise,
            trained.length_scales is not None,
            crew,
        )
        belong_to = self._sums_belong_to()
        self.sums_ = replace(sums.with_held_out(), network=belong_to)
        if found is not None:
            shape = fit_residual_shape(found.residual.numpy(), self.residual_shape)
            law = self.residual_law_
            self.residual_law_ = replace(law, skew=found.skew, shape=shape)
        if trained.length_scales is not None:
            scales = trained.length_scales()
            self.kernel_ = fit_mixture(
                self.network_, self.model_, sums, recipe, *rows, noise, scales, crew
            )

    def _fit_network(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        loss: Loss | None = None,
        crew: Crew | None = None,
    ) -> Trained:
        """Scale and train."""
        crew = crew or Crew()
        table, kept, y_, weight = check_training_data(self, X, y, sample_weight)
        seed = draw_seed(self.random_state)
        self.table_, X_ = fit_table(
            table, y_, weight, self.categorical_features, seed, kept
        )
        self._fitted_rows = fitted_rows(self.table_.read(table), kept, y_)
        for text in self.table_.remarks:
            warnings.warn(text, UserWarning, stacklevel=5)
        names = [out.name for out in self.table_.outputs()]
        self.scaler_X_, self.scaler_y_ = fit_scalers(X_, y_, weight, names)
        self.input_clip_ = self.input_clip
        generator, Xs = torch.Generator().manual_seed(seed), self._scaled(X_)
        target_map = Identity() if loss else self._fit_target_map(Xs, y_, seed, crew)
        targets = TargetRange.of(y_, learn=self.residual_shape)
        self.residual_law_ = ResidualLaw(target_map, targets=targets)
        if not isinstance(target_map, Identity):
            self.scaler_y_ = fit_scalers(X_, target_map.forward(y_), weight, names)[1]
        ys = self._scaled_target(y_)
        ws = torch.from_numpy(weight)
        held_out = n_held_out(len(Xs), self.validation_fraction)
        rows = split_rows(len(Xs), held_out, self.n_members, generator)
        network = self._new_network(Xs, generator)
        length_scales = None
        if self.kernel and held_out and loss is None:
            # Its own generator: it may run beside the training.
            own = torch.Generator().manual_seed(seed + 2)
            length_scales = crew.start(partial(fit_length_scales, Xs, ys, ws, own))
        result = train(
            network,
            network.encoding(Xs.float()),
            ys.float(),
            None if bool((ws == 1).all()) else ws.float(),
            rows,
            training_config(self.get_params(deep=False), len(Xs), held_out, loss),
            generator,
            choose_device(self.device),
            None if self.n_jobs is None else crew,
        )
        self.loss_curve_ = result.loss_curve
        self.validation_curve_ = result.validation_curve
        self.n_iter_ = result.n_iter
        self.network_ = network.cpu().double().eval().requires_grad_(False)
        if not result.converged:
            warnings.warn(
                f"The loss still fell in the last tenth of {result.n_iter} steps, by "
                f"more than a share tol={self.tol!r} of its whole fall. "
                f"Raise max_steps (now {self.max_steps!r}) or learning_rate (now "
                f"{self.learning_rate!r}), or set tol=None to accept it.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return Trained((Xs, ys, ws, rows.held_out), generator, length_scales)

    def _fit_target_map(self, X: Tensor, y: Array, seed: int, crew: Crew) -> TargetMap:
        """T as asked for, or the one that pays."""
        if not (isinstance(self.target_map, str) and self.target_map == "auto"):
            return fit_target_map(self.target_map, y)
        views = self.views[: self.n_members]
        # Its own generator: where T is the identity, all else is as if not asked.
        generator = torch.Generator().manual_seed(seed + 1)

        def new_network(X: Tensor, n_maps: int) -> HeteroscedasticNetwork:
            return self._new_network(X, generator, views, n_maps * len(views))

        config = training_config(self.get_params(deep=False), len(X), 0)
        return choose_target_map(
            X,
            y,
            new_network,
            config,
            generator,
            choose_device(self.device),
            None if self.n_jobs is None else crew,
            self.kernel,
        )

    def _new_network(
        self,
        X: Tensor,
        generator: torch.Generator,
        views: tuple[str, ...] | None = None,
        n_members: int | None = None,
    ) -> HeteroscedasticNetwork:
        """Untrained members in float32."""
        n_bins, n_numbers = self.n_bins, self.table_.n_numbers
        edges = bin_edges(X, n_bins if "bins" in self.views else 0, n_numbers)
        return HeteroscedasticNetwork(
            PiecewiseLinearEncoding(edges, n_numbers),
            layer_sizes(self.get_params(deep=False)),
            n_members or self.n_members,
            float(self.variance_floor),
            generator,
            views or self.views,
            float(self.scaling_rate),
            self.initial_bias,
        )
