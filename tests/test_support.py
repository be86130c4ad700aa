"""End points on the values that y can take."""

import numpy as np
import pytest
from conftest import heteroscedastic, tiny
from mapie_api import prefit_intervals

from mapie_claps import ClapsScore
from mapie_claps.conformal.support import snap_to_support


def test_end_points_by_hand():
    lower = np.array([[0.2, -1.0, 2.2, -np.inf, 4.0]])
    upper = np.array([[3.9, 1.0, 2.7, np.inf, 4.0 + 1e-13]])
    low, up = snap_to_support(lower, upper, "integer")
    np.testing.assert_array_equal(low, [[1, -1, 2, -np.inf, 4]])
    np.testing.assert_array_equal(up, [[3, 1, 2, np.inf, 4]])
    low, up = snap_to_support(lower, upper, np.array([0.0, 2.5, 4.0]))
    np.testing.assert_array_equal(low, [[2.5, 0, 2.5, 0, 4]])
    np.testing.assert_array_equal(up, [[2.5, 0, 2.5, 4, 4]])


@pytest.mark.parametrize("seed", range(5))
def test_no_supported_value_is_lost(seed):
    rng = np.random.default_rng(seed)
    lower = rng.normal(0, 3, (200, 2))
    upper = lower + rng.exponential(2, (200, 2))
    for support, values in (
        ("integer", np.arange(-60, 60.0)),
        (v := np.sort(rng.normal(0, 3, 9)), v),
    ):
        low, up = snap_to_support(lower, upper, support)
        for value in values:
            inside = (lower <= value) & (value <= upper)
            assert ((low <= value) & (value <= up))[inside].all()
        assert np.isin(low, values).all()
        assert np.isin(up, values).all()
        assert (low <= up).all()


def test_rounding_does_not_lose_the_end_point():
    low, up = snap_to_support(
        np.array([[0.1 * 3 * 10]]), np.array([[2.9999999999999996]]), "integer"
    )
    assert (low[0, 0], up[0, 0]) == (3, 3)


def test_integer_targets_through_mapie():
    X, y = heteroscedastic(400)
    y = np.round(4 * y)
    model = tiny().fit(X[:150], y[:150])
    cal, test = (X[150:280], y[150:280]), (X[280:], y[280:])
    _, plain = prefit_intervals(model, ClapsScore(model), cal, test[0], 0.9)
    score = ClapsScore(model, support="integer")
    _, whole = prefit_intervals(model, score, cal, test[0], 0.9)
    np.testing.assert_array_equal(whole, np.round(whole))

    def inside(b):
        return (b[:, 0, 0] <= test[1]) & (test[1] <= b[:, 1, 0])

    assert (inside(whole) >= inside(plain)).all()
    assert np.mean(whole[:, 1] - whole[:, 0]) < np.mean(plain[:, 1] - plain[:, 0])


@pytest.mark.parametrize("support", ["float", [], [np.nan, 1.0], [[1.0]], 3, ["a"]])
def test_bad_support(support):
    with pytest.raises(ValueError, match=r"Got support=.*'integer' or a list"):
        ClapsScore(support=support)


def test_values_of_any_unit():
    low, up = snap_to_support(
        np.array([[2.5e-10]]), np.array([[3.5e-10]]), np.arange(11) * 1e-10
    )
    np.testing.assert_allclose([low, up], [[[3e-10]], [[3e-10]]])
