"""How far rows are from the training rows: the formula, and shares among known rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import network_output, tiny
from mapie_api import calibrated_prefit
from own_networks import Pair
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapie_claps import CalibratedRegressor, ClapsModule, ClapsScore, load
from mapie_claps.diagnostics import remoteness


def test_one_member_against_numpy(fitted, data):
    """φᵀ(λI + HᵀH/σ²)⁻¹φ in standardised units."""
    phi, rows = (network_output(fitted, part[0])[0] for part in (data[2], data[0]))
    unit = data[0][1].std()
    sigma2 = fitted.residual_variance_ / unit**2
    precision = np.eye(phi.shape[1]) + rows.T @ rows / sigma2
    expected = np.einsum("ij,jk,ik->i", phi, np.linalg.inv(precision), phi)
    np.testing.assert_allclose(fitted.predict_remoteness(data[2][0]), expected)
    posterior = tiny(**fitted.get_params() | {"scale": "posterior"}).fit(*data[0])
    np.testing.assert_allclose(
        posterior.predict_variance(data[2][0]).epistemic, expected * unit**2
    )


def test_a_kernel_counts_as_much_as_the_networks(data):
    X, y = (np.concatenate(parts) for parts in zip(data[0], data[1], strict=True))
    model = tiny(kernel=True, n_members=2).fit(X, y)
    new = data[2][0]
    x = model._scaled(new)
    member = model.kernel_.member
    noise = torch.full_like(member.noise, np.exp(np.log(member.noise.numpy()).mean()))
    of_kernel = replace(member, noise=noise).posterior(x)[1].numpy()
    kernel, model.kernel_ = model.kernel_, None
    of_networks = model.predict_remoteness(new)
    model.kernel_ = kernel
    expected = (of_networks + of_kernel) / 2
    np.testing.assert_allclose(model.predict_remoteness(new), expected)
    assert np.abs(of_kernel / member.posterior(x)[1].numpy() - 1).max() > 0.05


def test_far_rows_come_first_with_the_share_of_known_rows_beyond(fitted, data):
    X_cal, near = data[1][0], data[2][0][:3]
    X = np.concatenate([near, near + 20])
    table = pd.DataFrame(remoteness(fitted, X, X_cal))
    assert set(table["row"][:3]) == {3, 4, 5}
    assert (table["remoteness"].diff()[1:] <= 0).all()
    known = fitted.predict_remoteness(X_cal)
    for _, (_, value, share) in table.iterrows():
        assert share == (1 + np.sum(known >= value)) / (1 + len(X_cal))
    assert "share_beyond" not in remoteness(fitted, X)


def test_a_value_that_was_never_seen_is_infinitely_far(data, tmp_path):
    X = pd.DataFrame(data[0][0], columns=list("abc"))
    X["kind"] = np.where(X["a"] > 0, "x", "y")
    model = CalibratedRegressor(tiny(), random_state=0).fit(X, data[0][1])
    new = X[:3].assign(kind=["x", "z", "y"])
    table = remoteness(model, new, X)
    assert table["row"][0] == 1
    assert np.isinf(table["remoteness"][0])
    assert np.isfinite(table["remoteness"][1:]).all()
    model.save(tmp_path / "model.claps")
    loaded = load(tmp_path / "model.claps")
    pd.testing.assert_frame_equal(remoteness(loaded, new, X), table)


def test_pipelines_hosts_and_own_networks(fitted, data):
    X = data[2][0]
    expected = remoteness(fitted, X)
    mapie, _ = calibrated_prefit(fitted, ClapsScore(fitted), data[1], 0.9)
    pd.testing.assert_frame_equal(remoteness(mapie, X), expected)
    pipe = make_pipeline(StandardScaler(), tiny()).fit(*data[0])
    assert np.isfinite(remoteness(pipe, X)["remoteness"]).all()
    with torch.random.fork_rng():
        own = ClapsModule(Pair()).fit(*data[0])
    far = remoteness(own, np.concatenate([X[:3], X[:3] + 9]), data[1][0])
    assert set(far["row"][:3]) == {3, 4, 5}
    plain = LinearRegression().fit(*data[0])
    with pytest.raises(TypeError, match="LinearRegression, which has no predict_remot"):
        remoteness(plain, X)
