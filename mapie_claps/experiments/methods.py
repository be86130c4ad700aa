"""The six methods, on MAPIE's own classes."""

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from mapie import regression

from .. import ClapsRegressor, ClapsScore, metrics
from ..studies.data import Array, Split
from .distributional import DistributionalScore
from .networks import QuantileNetworkRegressor, SquaredErrorRegressor

CONFIDENCE_LEVEL = 0.9
METHODS = ("Split CP", "CV+", "LACP", "CQR", "DCP", "CLAPS")
N_FOLDS = 5


@dataclass
class PaperMethods:
    """The methods on one split and seed; networks are trained when first needed.

    LACP, DCP and CLAPS share one heteroscedastic network: their scales alone differ.
    """

    split: Split
    seed: int
    paper: dict[str, Any] = field(default_factory=dict)  # overrides of the paper's

    @cached_property
    def heteroscedastic(self) -> ClapsRegressor:
        """The network of CLAPS, fitted on the training rows."""
        model = ClapsRegressor.paper(**self.paper, random_state=self.seed)
        return model.fit(self.split.X_train, self.split.y_train)

    @property
    def template(self) -> ClapsRegressor:
        """Layers and training of all networks."""
        return ClapsRegressor.paper(**self.paper)

    def scaled_by(self, scale: str) -> ClapsRegressor:
        """The heteroscedastic network with another scale."""
        model = copy.copy(self.heteroscedastic)
        model.set_params(scale=scale)
        return model

    def interval(self, method: str) -> Array:
        """Bounds of the test rows, shape (n_test, 2)."""
        make = {
            "Split CP": self._split_cp,
            "CV+": self._cv_plus,
            "LACP": lambda: self._score_of("aleatoric", ClapsScore),
            "CQR": self._cqr,
            "DCP": lambda: self._score_of("aleatoric", DistributionalScore),
            "CLAPS": lambda: self._score_of("claps", ClapsScore),
        }
        bounds: Array = make[method]()[:, :, 0]
        return bounds

    def _split_cp(self) -> Array:
        model = SquaredErrorRegressor(self.template, self.seed)
        model.fit(self.split.X_train, self.split.y_train)
        return split_interval(model, self.split, "absolute")

    def _cv_plus(self) -> Array:
        """Training and calibration rows together, five folds."""
        split = self.split
        mapie = regression.CrossConformalRegressor(
            SquaredErrorRegressor(self.template, self.seed),
            confidence_level=CONFIDENCE_LEVEL,
            conformity_score="absolute",
            method="plus",
            cv=N_FOLDS,
            random_state=self.seed,
        )
        mapie.fit_conformalize(
            np.concatenate([split.X_train, split.X_cal]),
            np.concatenate([split.y_train, split.y_cal]),
        )
        return np.asarray(mapie.predict_interval(split.X_test)[1])

    def _cqr(self) -> Array:
        split, alpha = self.split, 1 - CONFIDENCE_LEVEL
        levels = (alpha / 2, 1 - alpha / 2)
        network = QuantileNetworkRegressor(levels, self.template, self.seed)
        network.fit(split.X_train, split.y_train)
        mapie = regression.ConformalizedQuantileRegressor(
            network.models_for_mapie(), confidence_level=CONFIDENCE_LEVEL, prefit=True
        )
        mapie.conformalize(split.X_cal, split.y_cal)
        _, bounds = mapie.predict_interval(split.X_test, symmetric_correction=True)
        return np.asarray(bounds)

    def _score_of(self, scale: str, score: Any) -> Array:
        model = self.scaled_by(scale)
        return split_interval(model, self.split, score(model))


def variance_metrics(model: ClapsRegressor, X: Array) -> dict[str, float]:
    """Epistemic fraction in both readings, and scale ratio."""
    variance = model.predict_variance(X)
    parts = variance.aleatoric, variance.epistemic
    means = np.mean(parts, axis=1)
    return {
        "epistemic_fraction": metrics.epistemic_fraction(*parts),
        "epistemic_fraction_of_means": float(means[1] / means.sum()),
        "scale_ratio": metrics.scale_ratio(*parts),
    }


def split_interval(model: Any, split: Split, score: Any) -> Array:
    """Calibrate a fitted model; bounds of the test rows, shape (n_test, 2, 1)."""
    mapie = regression.SplitConformalRegressor(
        model,
        confidence_level=CONFIDENCE_LEVEL,
        conformity_score=score,
        prefit=True,
    )
    mapie.conformalize(split.X_cal, split.y_cal)
    return np.asarray(mapie.predict_interval(split.X_test)[1])
