"""Matrices, floors and targets at which arithmetic could give way."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny

from mapie_claps.exceptions import NumericalWarning, TrainingDivergedError
from mapie_claps.network import units
from mapie_claps.network.losses import GaussianLoss
from mapie_claps.posterior import gaussian as _posterior
from mapie_claps.posterior.moments import FeatureRows, sum_rows


def features(kind, n=50, d=6):
    """Feature matrices (1, n, d) from harmless to hopeless."""
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if kind == "duplicates":
        phi[:, 1:] = phi[:, :1]
    if kind == "nearly duplicates":
        phi[:, 1:] = phi[:, :1] * (1 + 1e-9 * phi[:, 1:])
    if kind == "dead":
        phi[:, 1:] = 0
    if kind == "unequal":
        phi *= torch.logspace(-8, 8, d, dtype=torch.float64)
    return phi[None]


@pytest.mark.parametrize(
    "kind", ["harmless", "duplicates", "nearly duplicates", "dead", "unequal"]
)
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_variance_stays_positive_and_finite(kind, structure):
    """Weights up to 1e8 rows' worth, floors down to 1e-12, λ over 24 decades."""
    phi = features(kind)
    shape = phi.shape[:2]
    for weight, h2, prior_precision in itertools.product(
        (1.0, 1e8), (1e-12, 1.0), (1e-12, 1e-6, 1.0, 1e12)
    ):
        batch = FeatureRows(
            phi,
            torch.full(shape, h2).double(),
            phi.sum(-1),
            torch.full(shape, weight).double(),
        )
        trained = torch.zeros(1, phi.shape[-1] + 1, dtype=torch.float64)
        moments = sum_rows([batch], structure)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            last_layer = "ridge" if structure == "full" else "trained"
            posterior = _posterior.make_posterior(
                moments, trained, last_layer, prior_precision
            )
        epistemic = posterior.epistemic(phi)
        v = h2 + epistemic
        assert epistemic.dtype == posterior.scale.dtype == torch.float64
        assert bool((epistemic >= 0).all())
        assert bool((v > 0).all())
        assert bool(torch.isfinite(v).all())
        assert bool(torch.isfinite(posterior.mu(phi)).all())


@pytest.mark.parametrize("weight", [1.0, 1e8])
def test_a_direction_that_data_fix_is_right_however_bad_the_matrix(weight):
    """For d equal features, φᵀΣφ = d / (λ + d Σ s φ²) along them, by hand."""
    d, n, prior_precision = 5, 40, 1e-3
    gram = torch.full((1, d, d), weight * n, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        scale = _posterior.posterior_scale(gram, prior_precision)
    ones = torch.ones(d, dtype=torch.float64)
    got = float((ones @ scale[0]).square().sum())
    assert got == pytest.approx(d / (prior_precision + d * weight * n), rel=1e-3)


def test_jitter_says_how_much_and_is_not_added_where_it_is_not_needed():
    duplicated = torch.full((1, 4, 4), 1e18, dtype=torch.float64)
    with pytest.warns(NumericalWarning, match=r"Added \d\.\de[+-]\d+ .* 1\.0e\+18"):
        _posterior.posterior_scale(duplicated, 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _posterior.posterior_scale(torch.eye(4).double()[None] * 1e8, 1e-9)


def test_posterior_and_predictions_are_in_double_precision(fitted):
    model = fitted.model_
    assert model.posterior.scale.dtype == model.posterior.mean.dtype == torch.float64
    assert fitted.sums_.moments.gram.dtype == torch.float64
    assert {p.dtype for p in fitted.network_.parameters()} == {torch.float64}


@pytest.mark.parametrize("variance_floor", [1e-300, 1e-12, 1e6])
@pytest.mark.parametrize("prior_precision", [1e-300, 1e-12, 1e12, 1e300])
def test_extreme_parameters(variance_floor, prior_precision):
    X, y = heteroscedastic(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        model = tiny(
            max_steps=5, variance_floor=variance_floor, prior_precision=prior_precision
        ).fit(X, y)
    mu, std = model.predict(X, return_std=True)
    assert np.isfinite(mu).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()


@pytest.mark.parametrize(
    ("columns", "target"),
    [
        (lambda X: X[:, :1], lambda y: y),
        (lambda X: np.zeros_like(X), lambda y: y),
        (lambda X: np.column_stack([X, X, X]), lambda y: y),
        (lambda X: 1e150 * X, lambda y: y),
        (lambda X: 1e-150 * X, lambda y: 1e-150 * y),
        (lambda X: X, np.zeros_like),
        (lambda X: X, lambda y: np.full_like(y, -1e100)),
        (lambda X: 0 * X + 3, lambda y: 0 * y + 5),
    ],
    ids=[
        "one feature",
        "dead features",
        "tripled features",
        "huge features",
        "tiny units",
        "zero target",
        "huge constant target",
        "nothing varies",
    ],
)
def test_degenerate_tables(columns, target):
    X, y = heteroscedastic(60)
    X, y = columns(X), target(y)
    mu, std = tiny(max_steps=20, n_bins=4).fit(X, y).predict(X, return_std=True)
    assert np.isfinite(mu).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()


@pytest.mark.parametrize("held_out", [True, False])
def test_nan_in_the_loss_stops_the_fit(held_out, monkeypatch):
    original = GaussianLoss.with_gradient

    def spoiled(self, *args):
        return original(self, *args) * float("nan")

    monkeypatch.setattr(GaussianLoss, "with_gradient", spoiled)
    model = tiny(validation_fraction=0.2 if held_out else 0.0, prior_precision=1.0)
    with pytest.raises(
        TrainingDivergedError,
        match=r"the loss is nan \(on held-out rows .*learning_rate=",
    ):
        model.fit(*heteroscedastic(60))
    assert vars(model).keys() == vars(tiny()).keys()


def test_nan_on_held_out_rows_stops_the_fit(monkeypatch):
    original = units.Unit._held_out_loss
    monkeypatch.setattr(
        units.Unit, "_held_out_loss", lambda self: original(self) * torch.nan
    )
    model = tiny(validation_fraction=0.2)
    with pytest.raises(TrainingDivergedError, match=r"\(on held-out rows nan\)"):
        model.fit(*heteroscedastic(60))


def test_fit_in_the_inference_mode_of_a_caller():
    X, y = heteroscedastic(60)
    expected = tiny(validation_fraction=0.2).fit(X, y).predict(X)
    with torch.inference_mode():
        model = tiny(validation_fraction=0.2).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), expected)
