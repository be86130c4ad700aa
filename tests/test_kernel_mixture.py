"""ClapsRegressor with a kernel member: mixing, scales, updates, files."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny

from mapie_claps import (
    ClapsRegressor,
    StreamingConformalRegressor,
    explain,
    load,
    save,
    sums_of,
    update_posterior,
)
from mapie_claps.exceptions import FileFormatError
from mapie_claps.network import kernel
from mapie_claps.posterior import mixture
from mapie_claps.posterior.mixture import KernelMixture, kernel_weight
from mapie_claps.posterior.prior import SHARPNESS
from mapie_claps.posterior.scales import SCALES

X, Y = heteroscedastic(260)
X_NEW = heteroscedastic(40, seed=1)[0]


def fit(**params):
    """Two networks and a kernel member that took few steps."""
    params = {"n_members": 2, "views": ("raw",), "kernel": True} | params
    return tiny(**params).fit(X, Y)


@pytest.fixture(scope="module")
def model():
    """Tiny networks earn next to no weight; here they get some."""
    found = fit()
    found.kernel_ = replace(found.kernel_, weight=0.4)
    return found


def without_kernel(model):
    """The same networks alone."""
    other = copy.copy(model)
    other.__dict__.pop("_digest", None)
    other.kernel_ = None
    return other


def kernel_parts(model, rows):
    """What the kernel member alone says, in units of y."""
    x = model._scaled(rows)
    g = model.model_.aleatoric(model.network_(x))
    mu, aleatoric, epistemic = model.kernel_.member.predict(x, g)
    centre, unit = model._target_units()
    usual = model.kernel_.member.usual_epistemic * unit**2
    parts = mu * unit + centre, aleatoric * unit**2, epistemic * unit**2
    return *(part.numpy() for part in parts), usual


def test_networks_are_those_without_the_member(model):
    alone = fit(kernel=False)
    assert alone.kernel_ is None
    np.testing.assert_array_equal(
        alone.predict(X_NEW), without_kernel(model).predict(X_NEW)
    )
    assert alone.prior_precision_ == model.prior_precision_


def test_mixture_of_means_and_variances(model):
    w = model.kernel_.weight
    nets = without_kernel(model).predict_parts(X_NEW)
    mu, aleatoric, epistemic, usual = kernel_parts(model, X_NEW)
    found = model.predict_parts(X_NEW)
    mean = (1 - w) * nets.prediction + w * mu
    np.testing.assert_allclose(found.prediction, mean)
    np.testing.assert_allclose(model.predict(X_NEW), mean)
    np.testing.assert_allclose(
        found.aleatoric, nets.aleatoric ** (1 - w) * aleatoric**w
    )
    spread = (1 - w) * (nets.prediction - mean) ** 2 + w * (mu - mean) ** 2
    excess = mixture.FAR_FACTOR * w * np.maximum(epistemic - usual, 0)
    np.testing.assert_allclose(
        found.epistemic,
        (1 - w) * nets.epistemic + w * epistemic + spread + excess,
        rtol=1e-6,
    )


@pytest.mark.parametrize("scale", SCALES)
def test_scales(model, scale):
    model = copy.copy(model).set_params(scale=scale)
    nets = without_kernel(model).predict_parts(X_NEW)
    found = model.predict_parts(X_NEW)
    np.testing.assert_allclose(found.prediction, model.predict(X_NEW))
    same_noise = scale in ("posterior", "constant")
    assert np.array_equal(found.aleatoric, nets.aleatoric) == same_noise
    if scale in ("aleatoric", "constant"):
        assert not found.epistemic.any()
    else:
        assert (found.epistemic > 0).all()
    claps = copy.copy(model).set_params(scale="claps").predict(X_NEW)
    np.testing.assert_array_equal(found.prediction, claps)


def test_variance_grows_away_from_the_rows(model):
    away = np.array([[0.0, 0, 0], [4, 4, 4]])
    near, far = kernel_parts(model, away)[2]
    assert far > 10 * near
    near, far = model.predict_variance(away).epistemic
    assert far > 10 * near


def test_weight_is_that_of_one_more_view():
    nll = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
    views = [slice(0, 2), slice(2, 4), slice(4, 6)]
    expected = np.exp(-SHARPNESS * np.array([0.1, 0.3, 0.2, 0.15]))
    np.testing.assert_allclose(
        kernel_weight(0.15, nll, views), expected[-1] / expected.sum()
    )
    uneven = [slice(0, 4), slice(4, 5), slice(5, 6)]
    sizes = np.array([4, 1, 1, 2])
    np.testing.assert_allclose(
        kernel_weight(0.15, nll, uneven),
        2 * expected[-1] / (sizes * expected).sum(),
    )


def test_a_member_without_weight_is_dropped(monkeypatch):
    found = []

    def weight(nll, nll_of_views, views):
        found.append(nll)
        return mixture.MIN_WEIGHT - 1e-6

    monkeypatch.setattr(mixture, "kernel_weight", weight)
    assert fit().kernel_ is None
    assert len(found) == 1


def test_no_member_for_few_rows_or_without_held_out_rows():
    few = tiny(kernel=True).fit(X[: kernel.MIN_ROWS - 1], Y[: kernel.MIN_ROWS - 1])
    assert few.kernel_ is None
    none = fit(validation_fraction=0.0, prior_precision=1.0)
    assert none.kernel_ is None
    assert ClapsRegressor.paper().kernel is False


def test_kernel_is_checked():
    with pytest.raises(ValueError, match="Got kernel='yes'.*True, False"):
        fit(kernel="yes")


def test_units_of_y_are_irrelevant(model):
    other = tiny(n_members=2, views=("raw",), kernel=True).fit(X, 1e6 * Y + 1e9)
    other.kernel_ = replace(other.kernel_, weight=0.4)
    np.testing.assert_allclose(
        other.predict(X_NEW), 1e6 * model.predict(X_NEW) + 1e9, rtol=1e-6
    )
    np.testing.assert_allclose(
        other.predict_variance(X_NEW).total,
        1e12 * model.predict_variance(X_NEW).total,
        rtol=1e-4,
    )


def test_rows_of_weight_zero_are_not_kept():
    weight = np.ones(260)
    weight[:60] = 0
    model = tiny(kernel=True).fit(X, Y, sample_weight=weight)
    assert len(model.kernel_.member.X) == 200
    kept = model.kernel_.member.X.numpy() * model.scaler_X_.scale_
    kept += model.scaler_X_.mean_
    assert not np.isclose(kept[:, None], X[None, :60]).all(-1).any()


def test_other_prior_precision_keeps_the_member(model):
    other = model.with_prior_precision(1e3)
    assert other.kernel_ is model.kernel_
    assert not np.allclose(other.predict(X_NEW), model.predict(X_NEW))


def test_updates_reach_the_networks_only(model):
    more = update_posterior(model, X_NEW, np.sin(X_NEW[:, 0]))
    assert more.kernel_ is model.kernel_
    assert sums_of(more).n_rows == 300
    assert more.fingerprint_ != model.fingerprint_


def test_fingerprint_knows_the_member(model):
    assert without_kernel(model).fingerprint_ != model.fingerprint_
    other = without_kernel(model)
    other.kernel_ = replace(model.kernel_, weight=0.5)
    assert other.fingerprint_ != model.fingerprint_


def test_copies_and_files(model, tmp_path):
    save(model, tmp_path / "model.claps")
    again = load(tmp_path / "model.claps")
    assert isinstance(again.kernel_, KernelMixture)
    for other in (again, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        for a, b in zip(
            other.predict_parts(X_NEW), model.predict_parts(X_NEW), strict=True
        ):
            np.testing.assert_array_equal(a, b)
        assert other.fingerprint_ == model.fingerprint_


def changed(model, **fields):
    """A model with another member."""
    other = copy.copy(model)
    other.kernel_ = replace(
        model.kernel_, member=replace(model.kernel_.member, **fields)
    )
    return other


DAMAGE = {
    "X": lambda m: {"X": m.X[:, :2]},
    "y": lambda m: {"y": m.y[1:]},
    "noise": lambda m: {"noise": m.noise.float()},
    "inverse_scale": lambda m: {
        "covariance": replace(
            m.covariance, inverse_scale=m.covariance.inverse_scale[:1]
        )
    },
    "finite numbers": lambda m: {"X": m.X * np.nan},
    "positive numbers": lambda m: {"noise": -m.noise},
}


@pytest.mark.parametrize("match", DAMAGE)
def test_files_with_a_wrong_member_are_refused(model, tmp_path, match):
    save(changed(model, **DAMAGE[match](model.kernel_.member)), tmp_path / "bad.claps")
    with pytest.raises(FileFormatError, match=match):
        load(tmp_path / "bad.claps")


def test_explanations_and_intervals(model):
    y_new = np.sin(X_NEW[:, 0]) + X_NEW[:, -1]
    conformal = StreamingConformalRegressor(model, confidence_level=0.8)
    conformal.conformalize(X_NEW, y_new)
    mu, _ = conformal.predict_interval(X_NEW)
    np.testing.assert_array_equal(mu, model.predict(X_NEW))
    why = explain(conformal, X_NEW)
    variance = model.predict_variance(X_NEW)
    np.testing.assert_allclose(why.epistemic_fraction, variance.epistemic_fraction)


def test_fit_is_reproducible(model):
    again = fit()
    again.kernel_ = replace(again.kernel_, weight=0.4)
    np.testing.assert_array_equal(again.predict(X_NEW), model.predict(X_NEW))
