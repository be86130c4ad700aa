"""One calibration per group, and groups by how unknown a row is."""

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from mapie_claps import (
    CalibratedRegressor,
    ColumnGroups,
    EpistemicGroups,
    load,
)

X, Y = heteroscedastic(600, seed=5)
CAL, TEST = slice(150, 400), slice(400, 600)
LABEL = np.where(X[:, 1] > 0.5, "high", np.where(X[:, 1] > -0.5, "middle", "low"))


@pytest.fixture(scope="module")
def model():
    return tiny().fit(X[:150], Y[:150])


def by_x(X):
    X = np.asarray(X)
    return np.where(X[:, 1] > 0.5, "high", np.where(X[:, 1] > -0.5, "middle", "low"))


@pytest.mark.parametrize("sym", [True, False])
def test_each_group_is_calibrated_as_if_alone(model, sym):
    levels = [0.5, 0.8]
    cal = CalibratedRegressor(model, levels, sym=sym)
    cal.conformalize(X[CAL], Y[CAL], groups=LABEL[CAL])
    bounds = cal.predict_interval(X[TEST], groups=LABEL[TEST])[1]
    for label in ("low", "middle", "high"):
        alone = CalibratedRegressor(model, levels, sym=sym)
        rows = LABEL[CAL] == label
        alone.conformalize(X[CAL][rows], Y[CAL][rows])
        test = LABEL[TEST] == label
        np.testing.assert_allclose(
            bounds[test], alone.predict_interval(X[TEST][test])[1], rtol=1e-10
        )
    assert cal.effective_sample_size_["high"] == (LABEL[CAL] == "high").sum()


def test_labels_a_function_and_a_column_agree(model):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = tiny().fit(frame[:150], Y[:150])
    frame["b"] = X[:, 1]
    given = CalibratedRegressor(named).conformalize(
        frame[CAL], Y[CAL], groups=pd.Series(LABEL[CAL])
    )
    expected = given.predict_interval(frame[TEST], groups=LABEL[TEST])[1]
    function = CalibratedRegressor(named).conformalize(
        frame[CAL], Y[CAL], groups=lambda X: by_x(X.to_numpy())
    )
    np.testing.assert_array_equal(function.predict_interval(frame[TEST])[1], expected)
    rounded = X.copy()
    rounded[:, 2] = X[:, 2] > 0
    column = CalibratedRegressor(model).conformalize(rounded[CAL], Y[CAL], groups=2)
    assert set(column.effective_sample_size_) == {0.0, 1.0}
    assert np.isfinite(column.predict_interval(rounded[TEST])[1]).all()


def test_groups_with_weights(model):
    cal = CalibratedRegressor(model, 0.8).conformalize(
        X[CAL], Y[CAL], groups=by_x, weights=lambda X: np.exp(0.2 * X[:, 0])
    )
    bounds = cal.predict_interval(X[TEST])[1]
    rows, test = LABEL[CAL] == "low", LABEL[TEST] == "low"
    alone = CalibratedRegressor(model, 0.8).conformalize(
        X[CAL][rows], Y[CAL][rows], weights=lambda X: np.exp(0.2 * X[:, 0])
    )
    np.testing.assert_allclose(
        bounds[test], alone.predict_interval(X[TEST][test])[1], rtol=1e-10
    )


def test_bins_of_the_epistemic_fraction(model):
    groups = EpistemicGroups.from_training(model, X[:150], n_groups=3)
    fraction = model.predict_variance(X[:150]).epistemic_fraction
    np.testing.assert_allclose(groups.edges, np.quantile(fraction, [1 / 3, 2 / 3]))
    cal = CalibratedRegressor(model, 0.8).conformalize(X[CAL], Y[CAL], groups=groups)
    own = np.searchsorted(
        groups.edges, model.predict_variance(X[TEST]).epistemic_fraction, side="right"
    )
    labels = np.searchsorted(
        groups.edges, model.predict_variance(X[CAL]).epistemic_fraction, side="right"
    )
    given = CalibratedRegressor(model, 0.8).conformalize(X[CAL], Y[CAL], groups=labels)
    np.testing.assert_array_equal(
        cal.predict_interval(X[TEST])[1],
        given.predict_interval(X[TEST], groups=own)[1],
    )


def test_scores_of_bins_that_come_from_elsewhere(model):
    bins = EpistemicGroups.from_training(model, X[:150], n_groups=3)
    cal = CalibratedRegressor(model, 0.8).conformalize(X[CAL], Y[CAL], groups=bins)
    with pytest.raises(TypeError, match=r"groups of type EpistemicGroups.*\.labels"):
        CalibratedRegressor.from_scores(
            model, cal.signed_scores_, 0.8, signed=True, groups=bins
        )
    given = CalibratedRegressor.from_scores(
        model, cal.signed_scores_, 0.8, signed=True, groups=bins.labels(model, X[CAL])
    )
    np.testing.assert_array_equal(
        given.predict_interval(X[TEST], groups=bins)[1],
        cal.predict_interval(X[TEST])[1],
    )


def test_no_rows_of_groups_change_nothing(model):
    cal = CalibratedRegressor(model).conformalize(X[CAL], Y[CAL], groups=LABEL[CAL])
    before = cal.predict_interval(X[TEST], groups=LABEL[TEST])[1]
    cal.partial_conformalize(X[:0], Y[:0], groups=[])
    cal.observe(X[:0], Y[:0], groups=[])
    np.testing.assert_array_equal(
        cal.predict_interval(X[TEST], groups=LABEL[TEST])[1], before
    )


def test_merges_come_from_training_rows():
    frame = pd.DataFrame({"g": list("aaaabbbc")})
    groups = ColumnGroups.from_training(frame, "g", min_rows=3)
    assert groups.values == ("a", "b")
    assert groups(pd.DataFrame({"g": ["a", "c", "z"]})).tolist() == [
        "a", "other", "other",
    ]  # fmt: skip


def test_an_unknown_group_is_named(model):
    cal = CalibratedRegressor(model).conformalize(X[CAL], Y[CAL], groups=LABEL[CAL])
    labels = LABEL[TEST].copy()
    labels[3] = "new"
    with pytest.raises(ValueError, match="the group 'new' in row 3.*'high', 'low', 'm"):
        cal.predict_interval(X[TEST], groups=labels)
    bounds = cal.predict_interval(X[TEST], True, groups=labels)[1]
    assert np.isinf(bounds[3]).all()
    assert np.isfinite(np.delete(bounds, 3, axis=0)).all()


def test_a_group_with_too_few_rows_is_named(model):
    labels = np.where(np.arange(250) < 8, "few", "many")
    cal = CalibratedRegressor(model).conformalize(X[CAL], Y[CAL], groups=labels)
    with pytest.raises(ValueError, match="Got 8 calibration scores of the group 'few'"):
        cal.predict_interval(X[:1], groups=["few"])
    assert np.isfinite(cal.predict_interval(X[:1], groups=["many"])[1]).all()
    assert np.isinf(cal.predict_interval(X[:1], True, groups=["few"])[1]).all()
    nine = np.where(np.arange(250) < 9, "few", "many")  # ⌈10 · 0.9⌉ = 9
    cal.conformalize(X[CAL], Y[CAL], groups=nine)
    assert np.isfinite(cal.predict_interval(X[:1], groups=["few"])[1]).all()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (LABEL[:3], "groups of 3 rows, but X has 250"),
        (np.array(["a", None] * 125), "missing label None in row 1"),
        (np.array([1.0, np.nan] * 125), "missing label nan in row 1"),
        (LABEL.reshape(300, 2), "one label per row"),
        ("district", "X has no columns with names"),
        (lambda X: LABEL[:7], r"groups of shape \(7,\) for 250 rows"),
        ([(1, 2)] * 250, "one label per row"),
    ],
)
def test_bad_groups_are_refused_and_nothing_is_lost(model, groups, message):
    cal = CalibratedRegressor(model).conformalize(X[CAL], Y[CAL])
    before = cal.predict_interval(X[TEST])[1]
    with pytest.raises(ValueError, match=message):
        cal.conformalize(X[CAL], Y[CAL], groups=groups)
    np.testing.assert_array_equal(cal.predict_interval(X[TEST])[1], before)


@pytest.mark.parametrize("edges", [[], [0.5, 0.2], [0.0], [1.2], [0.3, 0.3]])
def test_bad_edges(edges):
    with pytest.raises(ValueError, match="ascending numbers between 0 and 1"):
        EpistemicGroups(edges)


def test_bins_need_both_parts_of_the_variance():
    gp = GaussianProcessRegressor(RBF() + WhiteKernel(), optimizer=None)
    gp.fit(X[:30], Y[:30])
    with pytest.raises(TypeError, match="does not split its variance"):
        CalibratedRegressor(gp).conformalize(
            X[CAL], Y[CAL], groups=EpistemicGroups([0.1])
        )


def test_saved_with_its_groups(model, tmp_path):
    for groups in (EpistemicGroups.from_training(model, X[:150], 2), None):
        labels = LABEL[CAL] if groups is None else groups
        cal = CalibratedRegressor(model).conformalize(X[CAL], Y[CAL], groups=labels)
        cal.save(tmp_path / "c.claps")
        given = {"groups": LABEL[TEST]} if groups is None else {}
        np.testing.assert_array_equal(
            load(tmp_path / "c.claps").predict_interval(X[TEST], **given)[1],
            cal.predict_interval(X[TEST], **given)[1],
        )
    cal.conformalize(X[CAL], Y[CAL], groups=by_x)
    with pytest.raises(TypeError, match="groups as a function, which a file cannot"):
        cal.save(tmp_path / "c.claps")


@pytest.mark.parametrize("grouped", [False, True])
def test_ends_follow_sym(model, grouped):
    """Ends that were found for one rank do not serve two."""
    given = [{"groups": LABEL[rows]} if grouped else {} for rows in (CAL, TEST)]
    cal = CalibratedRegressor(model, 0.8).conformalize(X[CAL], Y[CAL], **given[0])
    one = cal.predict_interval(X[TEST], **given[1])[1]
    cal.set_params(sym=False)
    assert not np.allclose(cal.predict_interval(X[TEST], **given[1])[1], one)


def test_a_file_does_not_make_old_scores_new(tmp_path):
    model = tiny().fit(X[:150], Y[:150])
    cal = CalibratedRegressor(model).conformalize(X[CAL], Y[CAL], groups=LABEL[CAL])
    model.fit(X[:150], -Y[:150])
    with pytest.raises(ValueError, match="changed since calibration"):
        cal.save(tmp_path / "model")


@pytest.mark.parametrize("labels", [["a", np.nan] * 125, ["a", None] * 125])
def test_gaps_in_a_list_of_labels(model, labels):
    with pytest.raises(ValueError, match="missing label .* in row 1"):
        CalibratedRegressor(model).conformalize(X[CAL], Y[CAL], groups=labels)
