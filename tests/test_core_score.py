"""The score number by number, so that no change passes unseen.

What mutation testing (`make mutants`) found untested elsewhere, and direct tests that
make it fast: each runs in milliseconds.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import exactly, objects
from sklearn.base import BaseEstimator, RegressorMixin

from mapie_claps import ClapsScore
from mapie_claps.estimators.local_law import LocalLaw
from mapie_claps.estimators.variance import with_fingerprint


class Plain(RegressorMixin, BaseEstimator):
    """Mean x and standard deviation 1 + x²."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def fit(self, X, y):
        self.n_features_in_ = 1
        return self

    def predict(self, X, return_std=False):
        x = np.asarray(X, dtype=float)[:, 0]
        mu = x + self.shift
        return (mu, 1 + x**2) if return_std else mu


ROWS = np.array([[0.0], [1.0], [-2.0], [3.0]])
STD = np.array([1.0, 2.0, 5.0, 10.0])
Y = np.array([1.0, -1.0, 3.0, 3.0])


@pytest.fixture
def plain():
    return Plain().fit(None, None)


def test_scores_by_hand(plain):
    mu = ROWS[:, 0]
    expected = [1.0, -1.0, 1.0, 0.0]
    for score in (ClapsScore(plain), ClapsScore(plain, sym=False)):
        found = score.get_signed_conformity_scores(Y, mu, X=ROWS)
        np.testing.assert_array_equal(found, expected)
    found = ClapsScore().get_signed_conformity_scores(Y, mu, y_std=STD)
    np.testing.assert_array_equal(found, expected)
    found = ClapsScore().get_conformity_scores(Y, mu, y_std=STD)
    np.testing.assert_array_equal(found, np.abs(expected))
    found = ClapsScore(sym=False).get_conformity_scores(Y, mu, y_std=STD)
    np.testing.assert_array_equal(found, expected)
    found = ClapsScore(plain).get_conformity_scores(Y, mu, X=ROWS)
    np.testing.assert_array_equal(found, np.abs(expected))
    found = ClapsScore(support=(0, None)).get_conformity_scores(Y, mu, y_std=STD)
    np.testing.assert_array_equal(found, [1, np.inf, 1, 0])


def test_scores_know_their_model(plain):
    std = with_fingerprint(STD, "of some model", True)
    found = ClapsScore().get_conformity_scores(Y, ROWS[:, 0], y_std=std)
    assert found.fingerprint == "of some model"
    assert found.shaped is False
    held = ClapsScore(plain).get_conformity_scores(Y, ROWS[:, 0], X=ROWS)
    assert getattr(held, "fingerprint", None) is None  # the model has none


def test_scores_that_cannot_be(plain):
    mu = ROWS[:, 0]
    with pytest.raises(ValueError, match=r"Got ClapsScore\(\) without an estimator, a"):
        ClapsScore().get_signed_conformity_scores(Y, mu)
    with pytest.raises(ValueError, match="1 of 4 rows without an out-of-sample"):
        ClapsScore().get_conformity_scores(Y, np.r_[np.nan, mu[1:]], y_std=STD)
    with pytest.raises(ValueError, match=r"Got ClapsScore\(Plain\) whose predictions"):
        ClapsScore(plain).get_conformity_scores(Y, mu + 1e-9, X=ROWS)
    with pytest.raises(ValueError, match="Got predictions of shape"):
        ClapsScore().get_conformity_scores(Y[:3], mu, y_std=STD)
    with pytest.raises(ValueError, match="Got sym=1, but expected one of True, False"):
        ClapsScore(sym=1)


def test_values_of_a_score_by_hand(plain):
    mu, q = ROWS[:, 0], np.array([[-1.0, 2.0]])
    held, free = ClapsScore(plain), ClapsScore()
    by_row = np.array([1.0, 0.5, -1.0, 2.0])
    expected = mu + by_row * STD
    for found in (
        held.get_estimation_distribution(mu, by_row, X=ROWS),
        free.get_estimation_distribution(mu, by_row, y_std=STD),
    ):
        np.testing.assert_array_equal(found, expected)
        assert type(found) is np.ndarray
    found = free.get_estimation_distribution(mu[:, None], q, y_std=STD)
    np.testing.assert_array_equal(found, mu[:, None] + q * STD[:, None])
    one = free.get_estimation_distribution(3.0, -2.0, y_std=[10.0])
    assert one.shape == ()
    assert one == -17
    message = "Got ClapsScore() without an estimator where the scale at X is needed."
    with pytest.raises(ValueError, match=exactly(message)):
        free.get_estimation_distribution(mu, by_row)
    with pytest.raises(ValueError, match="Got a standard deviation of shape"):
        free.get_estimation_distribution(mu, by_row, y_std=STD[:3])


def test_values_of_a_score_with_a_law():
    law = LocalLaw(ROWS[:, 0], below=STD, above=2 * STD)

    class Carrying(np.ndarray):
        pass

    std = STD.view(Carrying)
    std.law = law
    score, mu = ClapsScore(), ROWS[:, 0]
    by_row = np.array([1.0, -0.5, -1.0, 2.0])
    found = score.get_estimation_distribution(mu, by_row, y_std=std)
    np.testing.assert_allclose(found, mu + np.array([2.0, -1.0, -5.0, 40.0]))
    many = np.column_stack([by_row, -by_row])
    found = score.get_estimation_distribution(mu[:, None], many, y_std=std)
    assert found.shape == (4, 2)
    np.testing.assert_allclose(found[:, 1], mu + np.array([-1.0, 2.0, 10.0, -20.0]))
    made = score.get_conformity_scores(Y, mu, y_std=std)
    assert made.shaped is True
    np.testing.assert_allclose(made, np.abs(law.score(Y)))


def ensemble(model, **fields):
    return SimpleNamespace(single_estimator_=model, use_split_method_=True, **fields)


ALPHAS = np.array([0.5, 0.25])


def test_bounds_by_hand(plain):
    scores = np.array([0.5, 1.0, 2.0])  # ranks 2 and 3
    for score in (ClapsScore(plain), ClapsScore()):
        mu, low, high = score.get_bounds(ROWS, ALPHAS, ensemble(plain), scores)
        np.testing.assert_array_equal(mu, ROWS[:, 0])
        np.testing.assert_allclose(low, mu[:, None] - STD[:, None] * [1, 2])
        np.testing.assert_allclose(high, mu[:, None] + STD[:, None] * [1, 2])
    score = ClapsScore(support="integer", sym=False)
    signed = np.array([-3.0, -1.0, -0.3, 0.2, 0.4, 1.0, 5.0])
    mu, low, high = score.get_bounds(ROWS, ALPHAS, ensemble(plain), signed)
    np.testing.assert_array_equal(low, np.round(mu[:, None] - STD[:, None] * [1, 3]))
    np.testing.assert_array_equal(high, np.round(mu[:, None] + STD[:, None] * [1, 5]))
    few = scores[:1]
    with pytest.raises(ValueError, match="Got 1 calibration scores"):
        ClapsScore().get_bounds(ROWS, ALPHAS, ensemble(plain), few)
    _, low, high = ClapsScore().get_bounds(
        ROWS, ALPHAS, ensemble(plain), few, allow_infinite_bounds=True
    )
    assert (high[:, 1] == np.inf).all()
    assert np.isfinite(high[:, 0]).all()
    assert ClapsScore().get_effective_calibration_samples(few) == np.inf


def test_bounds_that_are_refused(plain):
    scores = np.array([0.5, 1.0, 2.0])
    arguments = (ROWS, ALPHAS, ensemble(plain), scores)
    with pytest.raises(ValueError, match="Got minimize_interval_width=True"):
        ClapsScore().get_bounds(*arguments, optimize_beta=True)
    message = (
        r"Got ClapsScore\(Plain\), but MAPIE predicts with another object, a Plain"
    )
    with pytest.raises(ValueError, match=message):
        ClapsScore(Plain().fit(None, None)).get_bounds(*arguments)
    other = with_fingerprint(scores, "of another model", False)
    plain.fingerprint_ = "of this model"
    with pytest.raises(ValueError, match="changed since calibration"):
        ClapsScore().get_bounds(ROWS, ALPHAS, ensemble(plain), other)
    score = ClapsScore()
    score._made_shaped = True
    with pytest.raises(ValueError, match="do not say how they were made"):
        score.get_bounds(*arguments)
    marked = with_fingerprint(scores, plain.fingerprint_, False)
    score.get_bounds(ROWS, ALPHAS, ensemble(plain), marked)


def test_name_of_a_score(plain):
    assert repr(ClapsScore()) == "ClapsScore()"
    assert repr(ClapsScore(plain, support=None)) == "ClapsScore(Plain(), support=None)"
    found = repr(ClapsScore(plain, support="integer", sym=False))
    assert found == "ClapsScore(Plain(), support='integer', sym=False)"


MU = ROWS[:, 0]


def test_a_score_says_what_to_pass():
    with pytest.raises(ValueError, match=r"Use True for one rank\.$"):
        ClapsScore(sym="both")


class Known(Plain):
    """A model with a fingerprint."""

    fingerprint_ = "mine"


def test_scores_of_a_held_model_carry_its_fingerprint():
    model = Known().fit(None, None)
    made = ClapsScore(model).get_conformity_scores(Y, MU, X=ROWS)
    assert made.fingerprint == "mine"


def _carrying(law):
    class Carrying(np.ndarray):
        pass

    std = STD.view(Carrying)
    std.law = law
    return std


LAW = LocalLaw(MU, below=STD, above=2 * STD)


def test_scores_without_their_making_are_refused_only_after_a_shaped_law():
    plain, score = Plain().fit(None, None), ClapsScore()
    bare = np.array([0.5, 1.0, 2.0])
    score.check_known(bare)
    score.get_conformity_scores(Y, MU, y_std=_carrying(LAW))
    message = "Got conformity scores that do not say how they were made"
    with pytest.raises(ValueError, match=message):
        score.check_known(bare)
    # Once is enough: plain scores made later do not make it forget.
    score.get_conformity_scores(Y, MU, y_std=STD)
    with pytest.raises(ValueError, match=message):
        score.get_bounds(ROWS, np.array([0.5]), ensemble(plain), bare)
    score.check_known(with_fingerprint(bare, "any", False))


class Lawful(Plain):
    """Its standard deviation carries a law, twice as wide above."""

    def predict(self, X, return_std=False, factor=1.0):
        mu, std = super().predict(X, return_std=True)
        law = LocalLaw(mu, below=factor * std, above=2 * factor * std)

        class Carrying(np.ndarray):
            pass

        carrying = std.view(Carrying)
        carrying.law = law
        return (mu, carrying) if return_std else mu


def test_bounds_follow_the_law_that_made_the_scores():
    model = Lawful().fit(None, None)
    made = with_fingerprint(np.array([0.5, 1.0, 2.0]), "any", True)
    for score, scores in (
        (ClapsScore(), made),
        (ClapsScore(model), np.asarray(made)),
    ):
        _, low, high = score.get_bounds(ROWS, np.array([0.5]), ensemble(model), scores)
        np.testing.assert_allclose(low[:, 0], MU - STD, rtol=1e-12)
        np.testing.assert_allclose(high[:, 0], MU + 2 * STD, rtol=1e-12)
    plain = with_fingerprint(np.asarray(made), "any", False)
    _, low, high = ClapsScore().get_bounds(
        ROWS, np.array([0.5]), ensemble(model), plain
    )
    # Without its aleatoric part, the upper side stands for the scale of a law.
    np.testing.assert_allclose(low[:, 0], MU - 2 * STD, rtol=1e-12)
    objects_too = objects(0.5, 1.0, 2.0)
    _, low, high = ClapsScore().get_bounds(
        ROWS, np.array([0.5]), ensemble(Plain().fit(None, None)), objects_too
    )
    np.testing.assert_allclose(high[:, 0], MU + STD, rtol=1e-12)


def test_values_of_a_score_of_any_shape():
    std, score = _carrying(LAW), ClapsScore()
    by_row = np.array([1.0, -0.5, -1.0, 2.0])
    expected = MU + np.array([2.0, -1.0, -5.0, 40.0])
    found = score.get_estimation_distribution(MU[:, None], by_row[:, None], y_std=std)
    np.testing.assert_allclose(found, expected[:, None])
    found = score.get_estimation_distribution(MU, by_row[:, None], y_std=std)
    np.testing.assert_allclose(found, expected[:, None])
    found = score.get_estimation_distribution(MU[:, None], by_row, y_std=std)
    np.testing.assert_allclose(found, expected[:, None])
    found = score.get_estimation_distribution(objects(*MU), objects(*by_row), y_std=std)
    assert found.dtype == np.float64
    # One quantile for all rows stays one.
    found = score.get_estimation_distribution(MU[:, None], np.array([[1.0]]), y_std=std)
    np.testing.assert_allclose(found[:, 0], MU + 2 * STD)
    # Two numbers for each row, one after the other.
    found = score.get_estimation_distribution(
        MU[:, None], np.repeat(by_row, 2), y_std=std
    )
    np.testing.assert_allclose(found, np.column_stack([expected, expected]))


class Mean(RegressorMixin, BaseEstimator):
    """Mean of the targets, and a scale that grows with x."""

    def fit(self, X, y, sample_weight=None):
        self.mean_, self.n_features_in_ = float(np.mean(y)), 1
        return self

    def predict(self, X, return_std=False, shift=0.0):
        mu = np.full(len(X), self.mean_ + shift)
        return (mu, 1 + np.abs(np.asarray(X)[:, 0])) if return_std else mu


class Folds:
    """What MAPIE hands to a score: the models of three folds."""

    use_split_method_ = False

    def __init__(self, means):
        self.single_estimator_ = Mean().fit(None, [0.0])
        self.estimators_ = [Mean().fit(None, [m]) for m in means]


def test_bounds_of_folds_get_all_that_was_passed(monkeypatch):
    """``cross_bounds`` has its own tests; here, what is handed on to it."""
    asked = {}

    def cross_bounds(*given):
        asked["given"] = given
        return MU, MU[:, None] - 1.3, MU[:, None] + 1.3

    monkeypatch.setattr("mapie_claps.conformal.score.cross_bounds", cross_bounds)
    folds, alphas = Folds([0.0, 1.0, 2.0]), np.array([0.5])
    scores = objects(0.5, 1.0, 2.0)
    for method, ensembled, infinite in (("plus", True, False), ("minmax", False, True)):
        score = ClapsScore(sym=infinite)
        mu, low, high = score.get_bounds(
            ROWS, alphas, folds, scores, ensembled, method, False, infinite, shift=2.0
        )
        given = asked["given"]
        assert given[0] is ROWS
        assert given[1] is alphas
        assert given[2] is folds
        assert given[3].dtype == np.float64
        assert given[3].tolist() == [0.5, 1, 2]
        assert given[4:] == (ensembled, method, infinite, {"shift": 2.0}, infinite)
        assert mu is MU
        assert low[:, 0].tolist() == (MU - 1.3).tolist()
        assert high[:, 0].tolist() == (MU + 1.3).tolist()
    whole = ClapsScore(support="integer")
    _, low, high = whole.get_bounds(ROWS, alphas, folds, scores, False, "plus")
    assert low[:, 0].tolist() == np.round(MU - 1.3).tolist()
    assert high[:, 0].tolist() == np.round(MU + 1.3).tolist()
    _, low, _ = ClapsScore(support=None).get_bounds(
        ROWS, alphas, folds, scores, False, "plus"
    )
    assert low[:, 0].tolist() == (MU - 1.3).tolist()


def test_one_model_needs_no_folds_and_takes_parameters():
    model = Mean().fit(None, [0.0])
    mapie = SimpleNamespace(single_estimator_=model, use_split_method_=True)
    scores = np.array([0.5, 1.0, 2.0])
    mu, low, high = ClapsScore().get_bounds(
        ROWS, np.array([0.5]), mapie, scores, shift=2.0
    )
    scale = 1 + np.abs(MU)
    assert mu.tolist() == [2.0] * 4
    np.testing.assert_allclose(high[:, 0], 2 + scale, rtol=1e-12)
    np.testing.assert_allclose(low[:, 0], 2 - scale, atol=1e-12)
