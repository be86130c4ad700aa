"""Edges of the small core: limits that are just met, coarse types, words of messages.

What mutation testing (`make mutants`) found untested elsewhere; see
docs/trust/mutants.md.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import objects, tiny
from sklearn import config_context
from test_core_posterior import GRAM, TRAINED, Noisy, backend, moments
from test_core_score import ROWS, STD, Plain, Y

from mapie_claps import ClapsScore, StreamingConformalRegressor, metrics
from mapie_claps.conformal import quantile, support
from mapie_claps.estimators.local_law import LocalLaw
from mapie_claps.estimators.variance import with_law
from mapie_claps.metrics import _across_runs
from mapie_claps.posterior import curvature, gaussian

INF = math.inf


# The score


def test_rows_that_can_be_known_are_compared_with_their_targets():
    seen = []
    rows = SimpleNamespace(warn_if_fitted=seen.append)
    std = with_law(STD, LocalLaw.symmetric(ROWS[:, 0], STD), None, rows)
    ClapsScore().get_conformity_scores(Y, ROWS[:, 0], y_std=std)
    np.testing.assert_array_equal(seen, [Y])


def test_predictions_and_scores_of_objects_are_numbers():
    found = ClapsScore().get_estimation_distribution(
        objects(*ROWS[:, 0]), np.ones(4), y_std=STD
    )
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, ROWS[:, 0] + STD)


def folds():
    """Two models that differ, and MAPIE's table of who saw which of four rows."""
    models = [Plain(0.0).fit(None, None), Plain(1.0).fit(None, None)]
    return SimpleNamespace(
        estimators_=models,
        single_estimator_=models[0],
        k_=None,
        _aggregate_with_mask=lambda by_fold, _: by_fold[:, [0, 1, 0, 1]],
        agg_function="mean",
        method="plus",
        use_split_method_=False,
    )


def test_bounds_without_further_arguments_are_of_one_model_and_no_ensemble():
    scores, alpha = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5])
    score = ClapsScore(support=None)
    plain = score.get_bounds(ROWS, alpha, folds(), scores)
    base = score.get_bounds(ROWS, alpha, folds(), scores, False, "base")
    for found, expected in zip(plain, base, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(plain[2][:, 0], ROWS[:, 0] + 3 * STD, rtol=1e-12)
    for method in ("plus", "base"):
        points = score.get_bounds(ROWS, alpha, folds(), scores, method=method)[0]
        np.testing.assert_array_equal(points, ROWS[:, 0])  # not the mean of the folds


# Ranks and supports


def test_scores_of_small_types_do_not_wrap_round():
    found = quantile.score_bounds(np.array([1, 2, 3, 4], dtype=np.uint8), [0.5], False)
    np.testing.assert_array_equal(np.ravel(found), [1, 4])


def test_targets_and_cuts_just_within_rounding():
    assert support.check_support("integer").contains(np.array([1e-9])).all()
    assert not support.check_support("integer").contains(np.array([2e-9])).any()
    listed = support.check_support([0.0, 1e12, 2e12])
    at, beyond = np.array([1e12 + 1]), np.array([1e12 + 2])
    np.testing.assert_array_equal(listed.cut(at, strict=True), [5e11])
    np.testing.assert_array_equal(listed.cut(beyond, strict=True), [1.5e12])


# Metrics


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.violation_rate([1.5], 0.9), "coverages=1.5 shares between 0"),
        (
            lambda: metrics.relative_width_reduction([-1.0], [2.0]),
            "widths=-1.0 widths that are not negative",
        ),
        (
            lambda: metrics.width_ratio([-1.0], [2.0]),
            "width=-1.0 widths that are not negative",
        ),
        (
            lambda: metrics.score_difference([1.0], [INF]),
            "reference_score=inf finite scores",
        ),
        (
            lambda: metrics.width_ratio([1.0], [0.0]),
            "reference_width=0.0 positive finite widths",
        ),
        (
            lambda: metrics.epistemic_fraction([0.0], [1.0]),
            "aleatoric=0.0 positive finite variances",
        ),
        (
            lambda: metrics.epistemic_fraction([1.0], [-1.0]),
            "epistemic=-1.0 finite variances that are not negative",
        ),
        (
            lambda: metrics.noise_floor_diagnostics([0.0], 1.0),
            "aleatoric=0.0 positive finite variances",
        ),
        (lambda: metrics.predictive_nll([INF], [0.0], [1.0]), "y=inf finite numbers"),
        (lambda: metrics.predictive_nll([0.0], [INF], [1.0]), "mu=inf finite numbers"),
    ],
)
def test_messages_say_what_is_expected(call, message):
    found, expected = message.split(maxsplit=1)
    with pytest.raises(ValueError, match=f"^Got {found}, but expected {expected}"):
        call()


def test_a_rate_just_below_the_level_by_rounding():
    level = 0.9
    at = level - _across_runs.ROUNDING
    assert metrics.violation_rate([at], level) == 0.0
    assert metrics.violation_rate([np.nextafter(at, 0)], level) == 1.0


def test_metrics_of_small_types_do_not_wrap_round():
    y, mu = np.array([0], dtype=np.uint8), np.array([1], dtype=np.uint8)
    expected = 0.5 * math.log(2 * math.pi) + 0.5
    assert metrics.predictive_nll(y, mu, [1.0]) == pytest.approx(expected, rel=1e-12)


# The posterior


def test_exactly_two_blocks_are_put_together(monkeypatch):
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 0)
    monkeypatch.setattr(curvature, "BLOCK_ROWS", 2)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(4, 1, generator=generator, dtype=torch.float64)
    blocked = backend(Noisy(2)).full(X, y)
    monkeypatch.undo()
    for found, expected in zip(blocked, backend(Noisy(2)).full(X, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_evidence_of_a_prior_precision_that_single_precision_rounds():
    found = gaussian.make_posterior(moments(), TRAINED, "trained", 0.1)
    change = gaussian.make_posterior(moments(), TRAINED, "trained", 0.2)
    expected = 0.0
    for k in range(2):
        A, w = GRAM[k].numpy(), TRAINED[k].numpy()
        for prior, sign in ((0.1, 1), (0.2, -1)):
            logdet = np.linalg.slogdet(A + prior * np.eye(2))[1] - 2 * np.log(prior)
            expected -= sign * 0.5 * (prior * w @ w + logdet)
    got = gaussian.log_marginal_likelihood(found, moments())
    got -= gaussian.log_marginal_likelihood(change, moments())
    assert got == pytest.approx(expected, rel=1e-11)


def test_a_factor_by_itself_keeps_all_digits_of_its_jitter(monkeypatch):
    """As a batch first, then each matrix, then with jitter in float64."""
    seen = []

    def fails_without(precision):
        seen.append(precision.clone())
        if len(seen) < 3:
            raise torch.linalg.LinAlgError
        return precision

    monkeypatch.setattr(gaussian, "invsqrt_precision", fails_without)
    with pytest.warns(gaussian.NumericalWarning, match="Added 3.0e-15"):
        found = gaussian.posterior_scale(2 * torch.eye(2, dtype=torch.float64)[None], 1)
    jitter = 3.0 * 10.0**-15
    assert found.dtype == torch.float64
    assert float(found[0, 0, 0]) == 3.0 + jitter
    assert float(found[0, 0, 1]) == 0.0


# What no estimator and no caller may hand over


def hidden(values):
    mask = np.arange(values.size).reshape(values.shape) == 1
    return np.ma.masked_array(values, mask)


class Broken(Plain):
    """One prediction is none, once it is told so."""

    value = 0.0

    def predict(self, X, return_std=False):
        mu, std = super().predict(X, True)
        mu = np.where(np.arange(len(mu)) == 2, mu + self.value, mu)
        return (mu, std) if return_std else mu


@pytest.mark.parametrize("value", [np.nan, INF, -INF])
def test_predictions_that_are_no_numbers_make_no_interval(value):
    model = Broken().fit(None, None)
    conformal = StreamingConformalRegressor(model, 0.5).conformalize(ROWS, Y)
    model.value = value
    for call in (
        lambda: conformal.predict_interval(ROWS),
        lambda: next(conformal.iter_intervals(ROWS)),
        lambda: StreamingConformalRegressor(model, 0.5).conformalize(ROWS, Y),
        lambda: conformal.predict_quantiles(ROWS, [0.5]),
    ):
        with pytest.raises(ValueError, match="Got a prediction of .* in row 2, but"):
            call()


def test_targets_that_are_no_numbers_have_no_score():
    """MAPIE looks at them, unless scikit-learn is told to assume that all is well."""
    for bad in (np.nan, INF):
        with pytest.raises(ValueError, match="NaN or infinity. Got (nan|inf) in y, ro"):
            ClapsScore().get_conformity_scores(np.r_[Y[:3], bad], ROWS[:, 0], y_std=STD)
    with (
        config_context(assume_finite=True),
        pytest.raises(ValueError, match="sample_weight with NaN.*Got nan in .* row 1"),
    ):
        tiny().fit(ROWS, Y, [1.0, np.nan, 1.0, 1.0])


def test_masks_are_refused_wherever_numbers_come_in():
    model = Plain().fit(None, None)
    conformal = StreamingConformalRegressor(model, 0.5).conformalize(ROWS, Y)
    for call in (
        lambda: quantile.conformal_quantile(hidden(STD), [0.5]),
        lambda: StreamingConformalRegressor.from_scores(model, hidden(STD)),
        lambda: StreamingConformalRegressor(model).conformalize(
            ROWS, Y, groups=hidden(Y)
        ),
        lambda: ClapsScore().get_conformity_scores(hidden(Y), ROWS[:, 0], y_std=STD),
        lambda: ClapsScore().get_conformity_scores(Y, ROWS[:, 0], y_std=hidden(STD)),
        lambda: conformal.cdf(ROWS, hidden(Y)),
    ):
        with pytest.raises(ValueError, match="as a masked array with 1 masked"):
            call()


def test_no_levels_are_refused():
    with pytest.raises(ValueError, match=r"confidence_level=\[\], .*at least one lev"):
        StreamingConformalRegressor(Plain(), [])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: metrics.coverage(hidden(Y), np.c_[Y, Y]), "y"),
        (lambda: metrics.coverage(Y, hidden(np.c_[Y, Y])), "y_interval"),
        (lambda: metrics.scale_ratio(STD, hidden(STD)), "epistemic"),
        (lambda: metrics.width_ratio(hidden(STD), STD), "width"),
        (lambda: metrics.width_ratio(STD, hidden(STD)), "reference_width"),
        (lambda: quantile.conformal_quantile(hidden(STD), [0.5]), "scores"),
    ],
)
def test_a_mask_is_refused_by_the_name_of_what_it_is_in(call, name):
    with pytest.raises(ValueError, match=f"^Got {name} as a masked array with 1 mask"):
        call()


def test_what_a_score_has_calibrated_with_stays():
    score = ClapsScore(support=(-9, 9))
    score.sym, score.support = False, None  # nothing has been scored yet
    assert (score.sym, score.support) == (False, None)
    score.get_conformity_scores(Y, ROWS[:, 0], y_std=STD)
    for name, value in (("sym", True), ("support", "count")):
        with pytest.raises(AttributeError, match=f"Got {name}={value!r} for a score t"):
            setattr(score, name, value)
    assert (score.sym, score.support) == (False, None)
    score.estimator = None  # asked each time
    assert score.estimator is None


def test_supports_are_equal_where_their_values_are():
    def key(given):
        return support.check_support(given).key

    different = [
        "auto",
        "training",
        "integer",
        "count",
        "non-negative",
        (0, 5),
        (0, 6),
        (1, 5),
        [0, 5],
        [0, 1, 5],
        [0, 2, 5],
    ]
    assert len({key(given) for given in different}) == len(different)
    for given in different:
        assert key(given) == key(given)
    assert key([5, 0, 1]) == key(np.array([0.0, 1.0, 5.0]))
