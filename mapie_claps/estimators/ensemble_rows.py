"""Rows → φ, μ, h² → v and sums: how a fitted ``ClapsRegressor`` answers."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..network.batches import batches_of
from ..network.ensemble import HeteroscedasticNetwork
from ..network.inputs import check_columns
from ..network.interface import Features
from ..network.table import EncodedRows, TableEncoder, TableRows, as_table
from ..network.target_map import TargetMap
from ..posterior.measuring import mixture_covariance, mixture_variance
from ..posterior.members import feature_rows, rows_of_ensemble
from ..posterior.mixture import KernelMixture
from ..posterior.scales import (
    LastLayerRecipe,
    PredictiveParts,
    Units,
    make_model,
    residuals_of_mean,
)
from ..posterior.skew import skew_of
from ..posterior.sums import LastLayerSums, SummedRows, last_layer_sums
from .base import LastLayerEstimator
from .residual_law import ResidualLaw, digest_of
from .unseen import mu_over_draws, parts_over_draws

Array = NDArray[np.float64]


class EnsembleRows(LastLayerEstimator):
    """Encodes and standardises rows, and adds what the kernel and skew know."""

    network_: HeteroscedasticNetwork
    table_: TableEncoder
    scaler_X_: Any
    scaler_y_: Any
    residual_law_: ResidualLaw
    kernel_: KernelMixture | None = None  # also in files from before there was one
    # Parameters of ClapsRegressor.
    input_clip: float | None
    variance_floor: float
    last_layer: str
    bias_in_posterior: bool
    hessian_structure: str
    target_map: Any

    @property
    def target_map_(self) -> TargetMap:
        """T in use."""
        check_is_fitted(self, "scaler_y_")
        return self._law_of_residuals().target_map

    def _scaled(self, X: Array) -> Tensor:
        """Standardised, clipped inputs in float64."""
        scaler = self.scaler_X_
        scaled = np.array(X, dtype=np.float64, order="C")
        scaled -= scaler.mean_
        scaled /= scaler.scale_
        clip = self._clip()
        if clip is not None:
            np.clip(scaled, -clip, clip, out=scaled)
        return torch.from_numpy(scaled)

    def _clip(self) -> float | None:
        """``input_clip`` of the fit: set later it waits for the next one."""
        return self.__dict__.get("input_clip_", self.input_clip)

    def _scaled_target(self, y: Array) -> Tensor:
        """Standardised z = T(y) in float64."""
        z = self.target_map_.forward(y)
        if np.isnan(z).any():
            raise ValueError(
                f"Got the target {float(y[np.isnan(z)][0])!r}, which is outside the "
                f"domain of target_map={self.target_map!r}. Leave this row out, or fit "
                "with target_map='auto'."
            )
        return torch.from_numpy((z - self.scaler_y_.mean_) / self.scaler_y_.scale_)

    def _recipe(self) -> LastLayerRecipe:
        """How the posterior is made in ``fit``."""
        return LastLayerRecipe(
            self.last_layer,
            self.prior_precision,
            float(self.variance_floor),
            self.bias_in_posterior,
        )

    def _set_sums(self, sums: LastLayerSums) -> None:
        """Posteriors from other sums; λ, unless it is a number, and weights stay."""
        value = self.prior_precision
        recipe = replace(
            self._recipe(),
            prior_precision=self.prior_precision_ if isinstance(value, str) else value,
            member_weight=self.model_.member_weight,
        )
        network = self.network_
        self.model_ = make_model(
            sums,
            network.trained_weights(),
            recipe,
            network.members_by_view(),
            Units(),
        )
        self.sums_ = sums

    @torch.no_grad()
    def _sum(self, X: Any, y: Any, sample_weight: Any) -> LastLayerSums:
        """Sums over some rows for all members, in standardised units."""
        batches = batches_of(
            X,
            y,
            sample_weight,
            size=rows_of_ensemble(self.network_),
            need_y=True,
            check=partial(self._read, min_rows=0),
        )
        parts = (self._summed(b.x, b.target, b.row_weight) for b in batches)
        return last_layer_sums(
            parts, self.hessian_structure, self.sums_.network, fraction=0.0
        )

    def _summed(self, X: TableRows, y: Tensor, weight: Tensor) -> SummedRows:
        """Features of some rows, and what is summed beside them."""
        target = self._scaled_target(y.numpy())
        by_member = weight.expand(self.network_.n_members, -1)
        inputs = self._scaled(X.encode().values)
        rows = feature_rows(self.network_, inputs, target, by_member)
        return SummedRows(rows, target, residuals_of_mean(self.model_, rows), weight)

    def _target_units(self) -> Units:
        """Mean and standard deviation of z = T(y) over the training targets."""
        return Units(float(self.scaler_y_.mean_[0]), float(self.scaler_y_.scale_[0]))

    def _read(self, X: Any, min_rows: int = 1) -> TableRows:
        """Rows of X, its columns, their names and values checked."""
        table = as_table(X, min_rows)
        check_columns(self, X, table, reset=False)
        return self.table_.read(table)

    def _mu_of(self, out: Features) -> Tensor:
        if self.kernel_ is None or out.x is None:
            return super()._mu_of(out)
        return self.kernel_.mu(self.model_, out, out.x)

    def _parts_of(self, out: Features, scale: str) -> PredictiveParts:
        if self.kernel_ is None or out.x is None:
            parts = super()._parts_of(out, scale)
        else:
            parts = self.kernel_.parts(self.model_, out, out.x, scale)
        weights = self._law_of_residuals().skew
        if weights is None:
            return parts
        skew = skew_of(out.phi, weights, self.model_.member_weight)
        return parts._replace(skew=skew)

    def _remoteness(self, X: Any) -> Iterator[Array]:
        """Infinite where a value was not seen."""
        for values, unseen in self._encoded(X):
            out = self._network(values)
            if self.kernel_ is None or out.x is None:
                found = self.model_.remoteness(out).numpy()
            else:
                found = self.kernel_.remoteness(self.model_, out, out.x).numpy()
            if unseen is not None:
                found[unseen.any(axis=1)] = np.inf
            yield found

    def _covariance_of(self, out: Features, other: Features, scale: str) -> Tensor:
        if self.kernel_ is None:
            return super()._covariance_of(out, other, scale)
        return mixture_covariance(self.kernel_, self.model_, out, other, scale)

    def _own_covariance(self, out: Features, scale: str) -> Tensor:
        if self.kernel_ is None:
            return super()._own_covariance(out, scale)
        return mixture_variance(self.kernel_, self.model_, out, scale)

    def _sums_belong_to(self) -> str:
        """Equal networks may see other units of X and y, or other categories."""
        units = digest_of(self.table_, self.target_map_, *self._units_of_columns())
        return f"{self.network_.fingerprint()} {units}"

    def _units_of_columns(self) -> tuple[Array, ...]:
        X, y = self.scaler_X_, self.scaler_y_
        return X.mean_, X.scale_, y.mean_, y.scale_

    def _versions(self) -> tuple[Any, ...]:
        units = (numbers.tobytes() for numbers in self._units_of_columns())
        return (*super()._versions(), *units, self._clip(), id(self.kernel_))

    def _own_tensors(self) -> dict[str, Tensor]:
        kernel = {} if self.kernel_ is None else self.kernel_.tensors()
        return super()._own_tensors() | kernel

    def _encoded(self, X: Any) -> Iterator[EncodedRows]:
        """As many rows at a time as fit into the cache."""
        rows, size = self._read(X), rows_of_ensemble(self.network_)
        for start in range(0, len(rows), size):
            yield rows[start : start + size].encode()

    @torch.no_grad()
    def _network(self, inputs: Array) -> Features:
        x = self._scaled(inputs)
        out: Features = self.network_(x)
        return out._replace(x=x)

    def _features(self, X: Any) -> Iterator[Features]:
        """φ, μ and h²; a value that was not seen is filled in."""
        return (self._network(rows.values) for rows in self._encoded(X))

    def _mu(self, X: Any) -> Iterator[Tensor]:
        """μ; where values were not seen, the mean over known ones in their place."""

        def mu(inputs: Array) -> Tensor:
            return self._mu_of(self._network(inputs))

        for values, unseen in self._encoded(X):
            found = mu(values)
            if unseen is not None:
                rows = unseen.any(axis=1)
                found[torch.from_numpy(rows)] = mu_over_draws(
                    self.table_, values[rows], unseen[rows], mu
                )
            yield found

    def _parts(self, X: Any, scale: str) -> Iterator[PredictiveParts]:
        """μ and both parts of v; values that were not seen count as lack of data."""

        def parts(inputs: Array) -> PredictiveParts:
            return self._parts_of(self._network(inputs), scale)

        for values, unseen in self._encoded(X):
            found = parts(values)
            if unseen is not None:
                rows = unseen.any(axis=1)
                over_draws = parts_over_draws(
                    self.table_,
                    values[rows],
                    unseen[rows],
                    parts,
                    counts_lack_of_data=scale in ("claps", "posterior"),
                )
                for part, replacement in zip(found, over_draws, strict=True):
                    if part is not None and replacement is not None:
                        part[torch.from_numpy(rows)] = replacement
            yield found
