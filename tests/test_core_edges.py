"""What mutation testing (`make mutants`) found untested after test_core.py."""

import math
import sys
from types import SimpleNamespace

import mapie.metrics
import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from test_core import ROWS, STD, Noisy, Plain, Y, backend, ensemble

from mapie_claps import ClapsScore, conformal_quantile, metrics
from mapie_claps.conformal import quantile, support
from mapie_claps.estimators.local_law import LocalLaw
from mapie_claps.estimators.variance import with_fingerprint
from mapie_claps.metrics import _checks, mapie_metrics
from mapie_claps.posterior import curvature, gaussian
from mapie_claps.posterior.moments import Moments

MU = ROWS[:, 0]


def objects(*numbers):
    """Numbers as pandas hands them over where a column is mixed."""
    return np.array(numbers, dtype=object)


# Rank and support


def test_numbers_of_any_type_become_float64():
    assert conformal_quantile(objects(3, 1, 2), [0.5]).tolist() == [2]
    ends = quantile.score_ends(objects(3, -1, 2), [0.5])
    assert (ends.lower.tolist(), ends.upper.tolist()) == ([-2], [2])
    small = np.array([0.1, 0.2, 0.3], dtype=np.float32)
    assert conformal_quantile(small, [0.5]).dtype == np.float64


AT = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
INF = math.inf


@pytest.mark.parametrize(
    ("given", "up_to", "below"),
    [
        (
            [0.0, 1.0, 3.0],
            [-INF, 0.5, 0.5, 2, 2, INF, INF],
            [-INF, -INF, 0.5, 0.5, 2, 2, INF],
        ),
        (
            (0, 3),
            [-INF, 0, 0.5, 1, 2, INF, INF],
            [-INF, -INF, 0.5, 1, 2, 3, INF],
        ),
        (
            "count",
            [-INF, 0.5, 0.5, 1.5, 2.5, 3.5, 4.5],
            [-INF, -INF, 0.5, 0.5, 1.5, 2.5, 3.5],
        ),
    ],
)
def test_where_the_line_is_cut(given, up_to, below):
    chosen = support.check_support(given)
    np.testing.assert_array_equal(chosen.cut(AT), up_to)
    np.testing.assert_array_equal(chosen.cut(AT, strict=True), below)


def test_targets_at_the_edge_of_rounding():
    listed = support.check_support([1.0, 2.0])
    assert listed.contains(np.array([0.0, 1.0])).tolist() == [False, True]
    assert support.check_support([-1.0, 0.0]).contains(np.array([0.0])).all()
    whole = support.check_support("integer")
    near = np.array([0.5, 1.0]) + 1.5 * support.TOLERANCE
    assert whole.contains(near).tolist() == [False, False]
    # Half way the lower value is taken.
    assert listed.nearest(np.array([1.5])).tolist() == [1.0]
    assert listed.nearest(np.array([-7.0, 1.4, 9.0])).tolist() == [1.0, 1.0, 2.0]
    assert support.check_support([1.0]).nearest(np.array([0.0])).tolist() == [1.0]


# Score


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


# Curvature and posterior


def test_layer_and_options_reach_laplace_torch():
    ggn = backend(Noisy(2), stochastic=True)
    assert ggn.last_layer is True
    assert ggn.stochastic is True


def test_rows_of_two_blocks_are_put_together(monkeypatch):
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 0)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 1, generator=generator, dtype=torch.float64)
    blocked = backend(Noisy(2)).full(X, y)
    monkeypatch.undo()
    for found, expected in zip(blocked, backend(Noisy(2)).full(X, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def _three_features():
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    gram = root @ root.mT
    cross = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    trained = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    phi = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    return gram, cross, trained, phi


@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_posterior_of_three_features_by_hand(structure, with_bias):
    gram, cross, trained, phi = _three_features()
    given = gram if structure == "full" else gram.diagonal(dim1=1, dim2=2)
    sums = Moments(given, cross, torch.zeros(2).double(), 9)
    found = gaussian.make_posterior(sums, trained, "trained", 0.7, with_bias)
    H = np.concatenate([phi.numpy(), np.ones((2, 5, 1))], axis=2)
    for k in range(2):
        A = gram[k].numpy()
        A = (A if structure == "full" else np.diag(A.diagonal())) + 0.7 * np.eye(4)
        if with_bias:
            sigma = np.linalg.inv(A)
        else:
            sigma = np.zeros((4, 4))
            sigma[:3, :3] = np.linalg.inv(A[:3, :3])
        np.testing.assert_allclose(found.covariance()[k], sigma, atol=1e-12)
        products = H[k] @ sigma @ H[k].T
        white = found.whitened(phi)[k]
        assert white.shape == (5, 4)
        np.testing.assert_allclose(white @ white.T, products, atol=1e-12)
        np.testing.assert_allclose(
            found.epistemic(phi)[k], products.diagonal(), rtol=1e-10
        )
        np.testing.assert_allclose(found.mu(phi)[k], H[k] @ trained[k].numpy())
    assert found.scale.dtype == torch.float64


def test_precision_keeps_its_type_and_its_digits():
    fine = torch.eye(2, dtype=torch.float64)[None]
    scale = gaussian.posterior_scale(fine, 1 / 3)
    expected = 1 / math.sqrt(1 + 1 / 3)
    assert float(scale[0, 0, 0]) == pytest.approx(expected, rel=1e-15)
    coarse = gaussian.posterior_scale(torch.eye(2)[None], 1 / 3)
    assert coarse.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:Added")
def test_factors_are_sound_or_refused(monkeypatch):
    """An infinite factor is no factor: jitter is tried, from 1e-15 to 1e-9."""
    tried = []

    def infinite(precision):
        tried.append(float(precision.flatten()[0] - 1))
        return torch.full_like(precision, torch.inf)

    monkeypatch.setattr(gaussian, "invsqrt_precision", infinite)
    with pytest.raises(gaussian.NotPositiveDefiniteError):
        gaussian.posterior_scale(torch.zeros(1, 2, 2, dtype=torch.float64), 1.0)
    # As a batch, by itself, then with jitter.
    assert tried[:2] == [0, 0]
    np.testing.assert_allclose(tried[2:], 10.0 ** np.arange(-15, -8), rtol=0.2)


# Metrics


BOUNDS = np.array([[-1.0, 1.0], [2.0, 6.0], [0.0, 1.0], [1.0, 2.5]])
TARGETS = [0.0, 5.0, 2.0, 2.75]


def test_metrics_of_objects_are_those_of_numbers():
    y, ends = objects(*TARGETS), BOUNDS.astype(object)
    found = metrics.evaluate_intervals(y, ends, objects(0.75))
    expected = metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75)
    for name, value in expected.items():
        assert found[name].dtype == np.float64
        np.testing.assert_array_equal(found[name], value)
    regions = {"all": objects(1, 1, 1, 0)}
    assert metrics.regional_coverage(y, ends, regions)["all"] == [pytest.approx(2 / 3)]
    np.testing.assert_array_equal(
        metrics.score_difference(objects(1, 2, 4), objects(1, 1, 1)),
        metrics.score_difference([1, 2, 4], [1, 1, 1]),
    )
    assert metrics.quantile_loss(y, y[:, None], objects(0.5)) == 0
    assert metrics.crps(y, y[:, None]) == 0
    assert metrics.scale_ratio(objects(1, 2), objects(2, 4)) == metrics.scale_ratio(
        [1, 2], [2, 4]
    )
    np.testing.assert_array_equal(
        metrics.epistemic_fraction(objects(1, 2), objects(2, 4)),
        metrics.epistemic_fraction([1, 2], [2, 4]),
    )


def test_crps_of_unequal_rows_by_hand():
    values = np.array([[3.0, 1.0], [0.0, 10.0]])
    y = [2.0, 0.0]
    expected = []
    for row, target in zip(values, y, strict=True):
        pairs = np.abs(row[:, None] - row).mean()
        expected.append(np.abs(row - target).mean() - pairs / 2)
    assert metrics.crps(y, values) == pytest.approx(np.mean(expected))


def test_points_are_no_swapped_ends():
    points = np.array([[1.0, 1.0], [2.0, 1.0]])
    assert _checks.crossed_rows(points[:, :, None]).tolist() == [1]
    with pytest.warns(Warning, match="Got 1 of 2 rows .* the first in row 1"):
        metrics.mean_width(points)


def test_rates_at_the_level_itself_and_of_one_level():
    level = 0.9
    assert metrics.violation_rate([level - 1e-15, level], level) == 0
    assert metrics.violation_rate([0.8, 0.95], [level]) == 0.5
    message = "one number or 1, one for each level"
    with pytest.raises(ValueError, match=message):
        metrics.violation_rate([0.8, 0.95], [0.9, 0.8])
    assert np.shape(metrics.violation_rate([0.8, 0.95], level)) == ()


def test_default_weight_of_coverage():
    found = metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75)["cwc"]
    given = metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75, eta=30.0)["cwc"]
    assert found.tolist() == given.tolist()
    # MAPIE: (1 − mean width / range) · exp(−η (coverage − level)²).
    width = np.diff(BOUNDS, axis=1).mean() / np.ptp(TARGETS)
    expected = (1 - width) * math.exp(-30 * (0.5 - 0.75) ** 2)
    assert found[0] == pytest.approx(expected)
    points = np.column_stack([TARGETS, TARGETS])
    assert math.isnan(metrics.evaluate_intervals(TARGETS, points, 0.75)["ssc"][0])


def test_a_floor_of_none_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"Use 1e-3\.$"):
        metrics.noise_floor_diagnostics([1.0], 0.0)


def test_metrics_of_the_oldest_release(monkeypatch):
    """Stand-ins with the names and arguments of MAPIE 0.9, one level or 1 − level."""
    asked = {}

    def keep(name, value):
        def metric(*given):
            asked[name] = given
            return value

        monkeypatch.setattr(mapie.metrics, name, metric, raising=False)

    monkeypatch.setitem(sys.modules, "mapie.metrics.regression", None)
    keep("regression_coverage_score_v2", [[0.5]])
    keep("regression_mwi_score", 7)
    keep("coverage_width_based", 8)

    def one_level(lower, upper):
        return np.mean(upper - lower)

    monkeypatch.setattr(
        mapie.metrics, "regression_mean_width_score", one_level, raising=False
    )
    both = np.stack([BOUNDS, 2 * BOUNDS], axis=2)
    assert mapie_metrics.mean_width(both).tolist() == [8.5 / 4, 17 / 4]
    y = np.array(TARGETS)
    assert mapie_metrics.coverage(y, both).dtype == np.float64
    assert asked["regression_coverage_score_v2"] == (y, both)
    assert mapie_metrics.interval_score(y, both, 0.75) == 7.0
    assert asked["regression_mwi_score"] == (y, both, 0.25)
    found = mapie_metrics.coverage_width(y, both[:, 0, 0], both[:, 1, 0], 30.0, 0.75)
    assert found == 8.0
    given = asked["coverage_width_based"]
    assert given[0] is y
    assert given[1].tolist() == BOUNDS[:, 0].tolist()
    assert given[2].tolist() == BOUNDS[:, 1].tolist()
    assert given[3:] == (30.0, 0.25)


def test_what_a_metric_returns_becomes_float64(monkeypatch):
    monkeypatch.setitem(
        sys.modules,
        "mapie.metrics.regression",
        SimpleNamespace(
            regression_coverage_score=lambda y, bounds: [1],
            regression_mean_width_score=lambda bounds: [2],
        ),
    )
    assert mapie_metrics.coverage(None, None).dtype == np.float64
    assert mapie_metrics.mean_width(None).dtype == np.float64
