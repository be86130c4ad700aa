"""The small core number by number, so that no change of it passes unseen.

What mutation testing (`make mutants`) found untested elsewhere, and direct tests that
make it fast: each runs in milliseconds.
"""

import math
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from laplace.utils.feature_extractor import FeatureExtractor
from sklearn.base import BaseEstimator, RegressorMixin
from torch import nn

from mapie_claps import ClapsScore, HeteroscedasticGGN, metrics
from mapie_claps.conformal import quantile, support
from mapie_claps.estimators.local_law import LocalLaw
from mapie_claps.estimators.target_range import TargetRange
from mapie_claps.estimators.variance import with_fingerprint
from mapie_claps.exceptions import NotPositiveDefiniteError, NumericalWarning
from mapie_claps.metrics import _checks
from mapie_claps.posterior import curvature, gaussian
from mapie_claps.posterior.moments import Moments


def exactly(text):
    """A pattern for this text and nothing before it."""
    return "^" + re.escape(text)


# Rank


def test_rank_and_its_limits():
    assert [quantile.conformal_rank(n, 0.1) for n in (0, 8, 9, 10, 19)] == [
        1,
        9,
        9,
        10,
        18,
    ]
    assert quantile.conformal_rank(99, 1e-9) == 100
    assert quantile.conformal_rank(10**6 - 1, 0.3) == 700_000
    for alpha in (0.0, 1.0, -0.5, 1.5, math.nan):
        with pytest.raises(ValueError, match="Got confidence_level="):
            quantile.conformal_rank(5, alpha)


def test_quantile_of_many_scores():
    scores = np.random.default_rng(0).permutation(1000.0 + np.arange(1000))
    found = quantile.conformal_quantile(scores, [0.5, 0.1, 0.9, 0.25])
    assert found.tolist() == [1500, 1900, 1100, 1750]
    assert quantile.conformal_quantile([3, 1, 2], [0.01], True).tolist() == [math.inf]
    few = quantile.conformal_quantile([3, 1, 2], [0.25, 0.01], True)
    assert few.tolist() == [3, math.inf]
    with pytest.raises(ValueError, match="Got 3 calibration scores"):
        quantile.conformal_quantile([3, 1, 2], [0.01])


@pytest.mark.parametrize("scores", [[1.0, np.nan], [[1.0, 2.0]], 3.0])
def test_scores_without_a_rank(scores):
    with pytest.raises(ValueError, match="one number per calibration row"):
        quantile.conformal_quantile(scores, [0.5])


def test_ends_of_one_and_of_two_ranks():
    scores = [-4.0, 1.0, 2.0, 3.0, -0.5, 0.25, 8.0]
    lower, upper = quantile.score_ends(scores, [0.25, 0.5])
    assert upper.tolist() == [4, 2]
    assert lower.tolist() == [-4, -2]
    lower, upper = quantile.score_ends(scores, [0.25, 0.5], sym=False)
    assert lower.tolist() == [-4, -0.5]
    assert upper.tolist() == [8, 3]
    # One score of +∞ is missed on both sides.
    lower, upper = quantile.score_ends([*scores[:-1], np.inf], [0.5], sym=False)
    assert (lower.tolist(), upper.tolist()) == ([-4], [3])
    lower, upper = quantile.score_ends([-1.0, 1.0], [0.5], False, True)
    assert (lower.tolist(), upper.tolist()) == ([-math.inf], [math.inf])
    # Two ranks at 0.4: ⌈4 · 0.8⌉ = 4 of 3 scores are not there; one at 0.5 is.
    with pytest.raises(ValueError, match="with sym=False needs at least 4"):
        quantile.score_ends([1.0, 2.0, 3.0], [0.4], sym=False)
    with pytest.raises(ValueError, match="calibration scores"):
        quantile.score_ends([1.0], [0.1])
    assert quantile.score_ends([1.0], [0.5]).upper.tolist() == [1]


def test_message_of_too_few_scores():
    quantile.check_rank(9, 9, 0.1, False)
    quantile.check_rank(10, 9, 0.1, True)
    message = "Got 8 calibration scores, but confidence_level=0.9 needs at least 9. Cal"
    with pytest.raises(ValueError, match=exactly(message)):
        quantile.check_rank(9, 8, 0.1, False)
    message = (
        "Got 8 calibration scores, but confidence_level=0.9 with sym=False needs at "
        "least 19. Cal"
    )
    with pytest.raises(ValueError, match=exactly(message)):
        quantile.check_rank(9, 8, 0.1, False, 2)


# Support

POINTS = np.array([-np.inf, -1.0, -0.4, 0.0, 0.6, 1.0, 2.0, 2.4, 3.0, np.inf])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("integer", [-np.inf, -1, 0, 0, 1, 1, 2, 2, 3, np.inf]),
        ("count", [-np.inf, 0, 0, 0, 1, 1, 2, 2, 3, np.inf]),
        ("non-negative", [-np.inf, 0, 0, 0, 0.6, 1, 2, 2.4, 3, np.inf]),
        ((-0.5, 2.2), [-np.inf, -0.5, -0.4, 0, 0.6, 1, 2, 2.2, 2.2, np.inf]),
        ((None, 1), [-np.inf, -1, -0.4, 0, 0.6, 1, 1, 1, 1, np.inf]),
        ((0.5, None), [-np.inf, 0.5, 0.5, 0.5, 0.6, 1, 2, 2.4, 3, np.inf]),
        ([2.5, 0.0, 1.0, 1.0], [-np.inf, 0, 0, 0, 1, 1, 2.5, 2.5, 2.5, np.inf]),
        ([1.0], [-np.inf, 1, 1, 1, 1, 1, 1, 1, 1, np.inf]),
    ],
)
def test_nearest_possible_value(given, expected):
    known = support.check_support(given)
    np.testing.assert_array_equal(known.nearest(POINTS), expected)
    low, high = known.snap(POINTS, POINTS[::-1])
    np.testing.assert_array_equal(low, expected)
    np.testing.assert_array_equal(high, expected[::-1])


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        ("integer", [-3, 0, 7, 1e9 + 0.5, 2 + 1e-9], [0.5, 2 + 1e-8, -0.01, np.inf]),
        ("count", [0, 7], [-1, 0.5]),
        ("non-negative", [0, 0.5, 1e300], [-1e-12]),
        ((1, 2), [1, 1.5, 2], [1 - 1e-9, 2 + 1e-9]),
        ([1.0, 2.0, 1e-12], [1e-12, 1 - 1e-10, 2], [0.9e-12, 1.5, 2 - 1e-8]),
        ([0.1, 0.3], [0.1 - 1e-11, 0.1 * 3], [0.1 - 1e-9, 0.31, np.inf, -np.inf]),
    ],
)
def test_possible_targets(given, inside, outside):
    known = support.check_support(given)
    assert known.contains(np.array(inside, dtype=float)).all()
    assert not known.contains(np.array(outside, dtype=float)).any()
    law = LocalLaw.symmetric(np.zeros(len(outside)), np.ones(len(outside)))
    scores = support.score_rows(law, np.array(outside, dtype=float), known)
    assert (scores == np.inf).all()
    plain = support.score_rows(law, np.array(outside, dtype=float), None)
    np.testing.assert_array_equal(plain, outside)


def test_supports_as_given():
    fields = {
        "integer": (-np.inf, np.inf, True, "integer"),
        "count": (0, np.inf, True, None),
        "non-negative": (0, np.inf, False, None),
        "auto": (-np.inf, np.inf, False, "auto"),
        "training": (-np.inf, np.inf, False, "training"),
    }
    for name, (low, high, integer, learned) in fields.items():
        found = support.check_support(name)
        assert (found.low, found.high, found.integer) == (low, high, integer)
        assert (found.learned, found.values) == (learned, None)
        assert support.check_support(found) is found
    assert support.check_support(None) is None
    found = support.check_support([3, 1, 2, 2])
    assert (found.low, found.high, found.integer) == (1, 3, False)
    assert found.values.tolist() == [1, 2, 3]
    found = support.check_support((1, "2.5"))
    assert (found.low, found.high, found.values) == (1, 2.5, None)
    # A tuple of another length is a list of values.
    assert support.check_support((1, 2, 3)).values.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "given",
    [
        *("grade", (1, 1), (2, 1), (1, "x"), ([1], 2), (np.nan, 1)),
        *([], [[1.0]], 4.0, [1, np.inf], ["x"]),
    ],
)
def test_supports_that_are_none(given):
    message = (
        f"Got support={given!r}, but expected 'auto', 'integer', 'non-negative', "
        "'count', 'training', a tuple (low, high) or a list of finite numbers. Use "
        "'count', a range as a tuple, for example (0, 100), or list the values, for "
        "example np.arange(11)."
    )
    with pytest.raises(ValueError, match=exactly(message) + "$"):
        support.check_support(given)


def test_supports_that_training_targets_tell():
    targets = TargetRange.of(np.array([1.0, 2.0, 2.5]), learn=True)
    law = LocalLaw(np.zeros(3), np.ones(3), np.ones(3), targets=targets)
    found = support.check_support("training").of(law)
    assert (found.low, found.high, found.integer) == (1, 2.5, False)
    assert (found.learned, found.values) == (None, None)
    grades = np.repeat([0.0, 1.0, 2.0], 20)
    targets = TargetRange.of(grades, learn=True)
    law = LocalLaw(np.zeros(3), np.ones(3), np.ones(3), targets=targets)
    found = support.check_support("auto").of(law)
    assert (found.low, found.high) == (targets.floor, targets.ceiling)
    assert found.integer is targets.grades is True
    plain = LocalLaw.symmetric(np.zeros(3), np.ones(3))
    found = support.check_support("auto").of(plain)
    assert (found.low, found.high, found.integer) == (-np.inf, np.inf, False)
    fixed = support.check_support((0, 1))
    assert fixed.of(law) is fixed


# Score


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


# Curvature


class Features(nn.Module):
    """φ = x; noise 0.5 + x₀², also from features."""

    def __init__(self, size=2, bias=True):
        super().__init__()
        self.mean_head = nn.utils.skip_init(nn.Linear, size, 1, bias=bias)
        for p in self.parameters():
            p.data.fill_(0.5)
        self.double()

    def forward(self, x):
        return self.mean_head(x)


class Noisy(Features):
    def noise_variance(self, x):
        return 0.5 + x[:, :1] ** 2


class Sharing(Features):
    def noise_variance_from_features(self, phi):
        return 0.5 + phi[:, :1] ** 2

    def noise_variance(self, x):
        raise AssertionError


def backend(net, **kwargs):
    extractor = FeatureExtractor(net, last_layer_name="mean_head")
    return HeteroscedasticGGN(extractor, "regression", last_layer=True, **kwargs)


X2 = torch.tensor([[1.0, 2.0], [0.5, -1.0], [-2.0, 0.25]], dtype=torch.float64)
Y2 = torch.tensor([[1.0], [-0.5], [2.0]], dtype=torch.float64)


def sums_by_hand(X, y, w=1.0, bias=True):
    """Loss, HᵀWH and HᵀWy in NumPy."""
    X, y = X.numpy(), y.numpy()[:, 0]
    h2 = 0.5 + X[:, 0] ** 2
    H = np.column_stack([X, np.ones(len(X))]) if bias else X
    residual = y - H @ np.full(H.shape[1], 0.5)
    s = np.broadcast_to(w, len(X))
    loss = 0.5 * (s * (residual**2 / h2 + np.log(h2))).sum()
    return loss, (H.T * (s / h2)) @ H, (H.T * (s / h2)) @ y


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("net", [Noisy, Sharing])
def test_sums_by_hand(net, bias):
    loss, H, cross = sums_by_hand(X2, Y2, bias=bias)
    found = torch.ones(len(cross), dtype=torch.float64)
    got_loss, got = backend(net(bias=bias), cross_moment=found).full(X2, Y2)
    np.testing.assert_allclose(got, H, rtol=1e-12)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-12)
    np.testing.assert_allclose(found, 1 + cross, rtol=1e-12)
    got_loss, got = backend(net(bias=bias)).diag(X2, Y2)
    np.testing.assert_allclose(got, np.diag(H), rtol=1e-12)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-12)


def test_row_weights_and_given_noise():
    s = torch.tensor([[2.0], [0.0], [0.5]], dtype=torch.float64)
    loss, H, cross = sums_by_hand(X2, Y2, s[:, 0].numpy())
    with_noise = torch.cat([Y2, s, 0.5 + X2[:, :1] ** 2], dim=1)
    for net, y in ((Noisy(), with_noise[:, :2]), (Features(), with_noise)):
        found = torch.zeros(3, dtype=torch.float64)
        got_loss, got = backend(net, cross_moment=found).full(X2, y)
        np.testing.assert_allclose(got, H, rtol=1e-12)
        np.testing.assert_allclose(got_loss, loss, rtol=1e-12)
        np.testing.assert_allclose(found, cross, rtol=1e-12)
    given = backend(Features(), noise_variance=lambda x: 0.5 + x[:, 0] ** 2)
    np.testing.assert_allclose(given.full(X2, with_noise[:, :2])[1], H, rtol=1e-12)


def test_many_rows_and_wide_features_in_blocks_and_strips(monkeypatch):
    monkeypatch.setattr(curvature, "BLOCK_ROWS", 2)
    monkeypatch.setattr(curvature, "BLOCK_BYTES", 0)
    monkeypatch.setattr(curvature, "STRIPS_PAY_FROM", 5)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(7, 1, generator=generator, dtype=torch.float64)
    loss, H, cross = sums_by_hand(X, y)
    asked = []

    def noise(x):
        asked.append(len(x))
        return 0.5 + x[:, 0] ** 2

    found = torch.zeros(6, dtype=torch.float64)
    ggn = backend(Features(5), noise_variance=noise, cross_moment=found)
    got_loss, got = ggn.full(X, y)
    assert asked == [2, 2, 2, 1]
    np.testing.assert_allclose(got, H, rtol=1e-10)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-10)
    np.testing.assert_allclose(found, cross, rtol=1e-10)
    np.testing.assert_allclose(ggn.diag(X, y)[1], np.diag(H), rtol=1e-10)


def test_size_of_blocks_and_strips(monkeypatch):
    def blocks(n, row_bytes):
        X, y = torch.zeros(n, 1), torch.zeros(n, 1)
        return [len(part) for part, _ in curvature._parts(X, y, row_bytes)]

    assert blocks(1024, 2**20) == [1024]
    assert blocks(1025, 2**20) == [1024, 1]
    assert blocks(4096, 256) == [4096]
    assert blocks(4097, 256) == [4096, 1]
    whole = {"a": torch.zeros(3000, 1)}, torch.zeros(3000, 1)
    assert list(curvature._parts(*whole, 2**20)) == [whole]
    assert list(curvature._strips(127)) == [(0, 127)]
    assert list(curvature._strips(128)) == [(0, 32), (32, 64), (64, 96), (96, 128)]
    assert list(curvature._strips(130)) == [(0, 32), (32, 65), (65, 97), (97, 130)]


def test_features_coarser_than_weights():
    coarse = backend(Noisy(), noise_variance=lambda x: (0.5 + x[:, 0] ** 2).float())
    found, H = coarse.full(X2, Y2)
    assert found.dtype == H.dtype == torch.float64
    np.testing.assert_allclose(H, sums_by_hand(X2, Y2)[1], rtol=1e-6)


class Pair(Noisy):
    def forward(self, x):
        return self.mean_head(x).expand(-1, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: backend(Pair()).full(X2, Y2), r"output has shape \(3, 2\) for 3 rows"),
        (lambda: backend(Noisy()).full(X2, Y2[:2]), r"shape \(2, 1\) for 3 rows"),
        (lambda: backend(Noisy()).full(X2, X2.repeat(1, 2)), r"shape \(3, 4\) for 3"),
        (lambda: backend(Noisy()).full(X2, Y2[:, :0]), r"shape \(3, 0\) for 3 rows"),
        (
            lambda: backend(Noisy(), noise_variance=lambda x: x).full(X2, Y2),
            r"noise_variance of shape \(3, 2\) for 3 rows",
        ),
        (
            lambda: backend(Features()).full(X2, Y2),
            "class Features without noise_variance",
        ),
        (lambda: backend(Noisy()).kron(X2, Y2, 3), "hessian_structure='kron'"),
        (
            lambda: HeteroscedasticGGN(Noisy(), "classification", last_layer=True),
            "likelihood='classification', last_layer=True",
        ),
        (
            lambda: HeteroscedasticGGN(Noisy(), "regression"),
            "likelihood='regression', last_layer=False",
        ),
    ],
)
def test_calls_that_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("h2", [0.0, -1.0, math.inf, math.nan])
def test_noise_that_is_none(h2):
    noise = torch.tensor([1.0, h2, 2.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="Got noise_variance between"):
        backend(Features(), noise_variance=lambda x: noise).full(X2, Y2)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((0, math.nan), (0, math.inf), (0, -math.inf)),
        *((1, -1e-9), (1, math.nan), (1, math.inf)),
    ],
)
def test_targets_and_weights_that_are_none(column, value):
    y = torch.cat([Y2, torch.ones_like(Y2)], dim=1)
    backend(Noisy()).full(X2, y)
    y[1, column] = value
    with pytest.raises(ValueError, match="Got targets or row weights that are NaN"):
        backend(Noisy()).full(X2, y)


def test_a_batch_of_no_rows_adds_nothing():
    loss, H = backend(Noisy()).full(X2[:0], Y2[:0])
    assert float(loss) == 0
    assert not H.any()
    curvature._check_targets(Y2[:0])
    curvature._check_noise_variance(Y2[:0])


# Posterior

GRAM = torch.tensor([[[4.0, 1.0], [1.0, 3.0]], [[9.0, 0.0], [0.0, 1.0]]]).double()
CROSS = torch.tensor([[1.0, 2.0], [3.0, -1.0]]).double()
TRAINED = torch.tensor([[0.5, -0.5], [2.0, 1.0]]).double()
PHI = torch.tensor([[[1.0], [-2.0]], [[0.5], [3.0]]]).double()  # (K, n, d)


def moments(gram=GRAM):
    return Moments(gram, CROSS, torch.tensor([1.5, 2.5]).double(), 7)


def test_posterior_by_hand():
    found = gaussian.make_posterior(moments(), TRAINED, "ridge", 2.0)
    H = np.concatenate([PHI.numpy(), np.ones((2, 2, 1))], axis=2)
    for k in range(2):
        sigma = np.linalg.inv(GRAM[k].numpy() + 2 * np.eye(2))
        mean = sigma @ (CROSS[k].numpy() + GRAM[k].numpy() @ TRAINED[k].numpy())
        np.testing.assert_allclose(found.covariance()[k], sigma, rtol=1e-12)
        np.testing.assert_allclose(found.mean[k], mean, rtol=1e-12)
        np.testing.assert_allclose(found.mu(PHI)[k], H[k] @ mean, rtol=1e-12)
        expected = np.einsum("ni,ij,nj->n", H[k], sigma, H[k])
        np.testing.assert_allclose(found.epistemic(PHI)[k], expected, rtol=1e-12)
    assert found.structure == "full"
    assert found.scale.is_contiguous()
    assert (found.prior_precision, found.last_layer) == (2.0, "ridge")
    assert found.trained is TRAINED
    kept = gaussian.make_posterior(moments(), TRAINED, "trained", 2.0)
    assert kept.mean is TRAINED
    torch.testing.assert_close(kept.scale, found.scale, rtol=0, atol=0)


def test_posterior_without_the_bias_by_hand():
    found = gaussian.make_posterior(moments(), TRAINED, "trained", 2.0, with_bias=False)
    expected = 1 / (GRAM[:, 0, 0] + 2)
    np.testing.assert_allclose(found.covariance()[:, 0, 0], expected, rtol=1e-12)
    assert found.covariance()[:, 1].abs().max() == 0
    assert found.covariance()[:, :, 1].abs().max() == 0
    variance = PHI[..., 0] ** 2 * expected[:, None]
    np.testing.assert_allclose(found.epistemic(PHI), variance, rtol=1e-12)
    diagonal = moments(GRAM.diagonal(dim1=1, dim2=2))
    found = gaussian.make_posterior(diagonal, TRAINED, "trained", 2.0, with_bias=False)
    assert found.scale.shape == (2, 2)
    np.testing.assert_allclose(found.epistemic(PHI), variance, rtol=1e-12)


def test_diagonal_posterior_by_hand():
    diagonal = moments(GRAM.diagonal(dim1=1, dim2=2))
    found = gaussian.make_posterior(diagonal, TRAINED, "trained", 2.0)
    variance = 1 / (diagonal.gram + 2)
    assert found.structure == "diag"
    np.testing.assert_allclose(
        found.covariance(), torch.diag_embed(variance), rtol=1e-12
    )
    expected = PHI[..., 0] ** 2 * variance[:, :1] + variance[:, 1:]
    np.testing.assert_allclose(found.epistemic(PHI), expected, rtol=1e-12)
    mu = PHI[..., 0] * TRAINED[:, :1] + TRAINED[:, 1:]
    np.testing.assert_allclose(found.mu(PHI), mu, rtol=1e-12)


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_evidence_by_hand(structure):
    full = structure == "full"
    sums = moments(GRAM if full else GRAM.diagonal(dim1=1, dim2=2))
    last_layer = "ridge" if full else "trained"
    found = gaussian.make_posterior(sums, TRAINED, last_layer, 2.0)
    expected = 0.0
    for k in range(2):
        A = GRAM[k].numpy() if full else np.diag(GRAM[k].diagonal().numpy())
        w = found.mean[k].numpy()
        step = w - TRAINED[k].numpy()
        loss = float(sums.loss[k]) + step @ (0.5 * A @ step - CROSS[k].numpy())
        expected -= loss + 0.5 * (2.0 * w @ w)
        expected -= 0.5 * (np.linalg.slogdet(A + 2 * np.eye(2))[1] - 2 * np.log(2.0))
    # laplace-torch adds the constant of a Gaussian of noise 1.
    expected -= 2 * 0.5 * 7 * math.log(2 * math.pi)
    got = gaussian.log_marginal_likelihood(found, sums)
    assert got == pytest.approx(expected, rel=1e-10)


def test_jitter_where_rounding_wins():
    singular = torch.ones(1, 2, 2, dtype=torch.float64) * 1e8
    singular[0, 0, 0] -= 1e-7
    with pytest.warns(NumericalWarning, match=r"Added 1\.0e-0[67] to the diagonal"):
        scale = gaussian.posterior_scale(singular, 1e-300)
    assert torch.isfinite(scale).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sound = gaussian.posterior_scale(GRAM, 1e-300)
    np.testing.assert_allclose(
        torch.linalg.inv(sound @ sound.mT), GRAM, rtol=1e-10, atol=1e-12
    )
    # One member fails: the others come out as by themselves.
    both = torch.cat([GRAM[:1], singular])
    with pytest.warns(NumericalWarning, match="Added"):
        mixed = gaussian.posterior_scale(both, 1e-300)
    np.testing.assert_allclose(mixed[0], sound[0], rtol=1e-12, atol=1e-14)
    with pytest.raises(NotPositiveDefiniteError, match="largest entry 1.0"):
        gaussian.posterior_scale(torch.tensor([[[1.0, 0], [0, -1.0]]]).double(), 1e-9)


# Metrics


def test_numbers_that_are_not_alike():
    for call, name in (
        (lambda: metrics.width_ratio([1.0, 2.0], [[1.0], [2.0]]), "reference_width"),
        (lambda: metrics.score_difference([1.0], [1.0, 2.0]), "reference_score"),
        (lambda: metrics.epistemic_fraction([1.0], [[1.0]]), "epistemic"),
        (lambda: metrics.scale_ratio([1.0, 2.0], [1.0]), "epistemic"),
    ):
        with pytest.raises(ValueError, match=rf"Got {name}\.shape=.*but expected the"):
            call()
    for call, name in (
        (lambda: metrics.width_ratio([1.0], [np.nan]), "reference_width"),
        (lambda: metrics.relative_width_reduction([np.nan], [1.0]), "widths"),
        (lambda: metrics.violation_rate([0.9, np.nan], 0.9), "coverages"),
        (lambda: metrics.average_ranks([[1.0, np.nan]]), "values"),
        (lambda: metrics.noise_floor_diagnostics([np.nan], 1.0), "aleatoric"),
        (lambda: metrics.predictive_nll([1.0], [np.nan], [1.0]), "mu"),
    ):
        with pytest.raises(ValueError, match=f"^Got {name}='1 NaN in shape"):
            call()
    for parts in (([0.0], [1.0]), ([1.0], [-1e-9]), ([-1.0], [3.0])):
        for call in (metrics.epistemic_fraction, metrics.scale_ratio):
            with pytest.raises(ValueError, match="Got a smallest aleatoric part of"):
                call(*parts)
    for call in (
        lambda: metrics.crps([1.0], [[np.nan]]),
        lambda: metrics.crps([np.inf], [[1.0]]),
        lambda: metrics.quantile_loss([np.nan], [[1.0]], [0.5]),
    ):
        with pytest.raises(ValueError, match="^Got y with . values that are not finit"):
            call()


def test_rates_and_ranks_by_hand():
    assert metrics.violation_rate([0.89, 0.91, 0.9, 0.9 - 2e-9], 0.9) == 0.5
    two = metrics.violation_rate([[0.7, 0.9], [0.9, 0.9], [0.9, 0.94]], [0.8, 0.95])
    np.testing.assert_allclose(two, [1 / 3, 1])
    np.testing.assert_allclose(
        metrics.relative_width_reduction([[1.0, 4.0], [3.0, 4.0]], np.full((2, 2), 4)),
        [0.5, 0],
    )
    ranks = metrics.average_ranks([[3.0, 1.0, 1.0 + 4e-10], [1.0, 2.0, 2.1]])
    np.testing.assert_array_equal(ranks, [[3, 1.5, 1.5], [1, 2, 3]])
    np.testing.assert_array_equal(metrics.average_ranks([1.04, 1.0], 1), [[1.5, 1.5]])
    assert metrics.width_ratio([3.0], [2.0]).tolist() == [1.5]
    assert metrics.score_difference([3.0], [2.0]).tolist() == [1.0]


def test_variance_metrics_by_hand():
    assert metrics.epistemic_fraction([3.0, 1.0], [1.0, 3.0]) == 0.5
    assert metrics.scale_ratio([1.0, 2.0], [3.0, 16.0]) == 2.5
    h2 = np.r_[1.0, 1.01, 1.02, np.full(97, 5.0)]
    found = metrics.noise_floor_diagnostics(h2, 1.0)
    assert found["min"] == 1.0
    assert found["floor_active"] == 0.02
    assert found["p01"] == pytest.approx(np.quantile(h2, 0.01))
    assert metrics.noise_floor_diagnostics(h2, 1.0, rtol=0.02)["floor_active"] == 0.03
    y, mu, std = [1.0, 2.0], [0.0, 4.0], [1.0, 2.0]
    expected = 0.5 * (math.log(2 * math.pi) + 1 + math.log(2 * math.pi * 4) + 1) / 2
    assert metrics.predictive_nll(y, mu, std) == pytest.approx(expected)
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match=f"Got std={bad}, but expected positive"):
            metrics.predictive_nll(y, mu, [1.0, bad])
    assert metrics.predictive_nll([[1.0], [2.0]], mu, std) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"Got y.shape=\(1, 2\)"):
        metrics.predictive_nll([y], mu, std)
    with pytest.raises(ValueError, match=r"Got mu.shape=\(2, 2\)"):
        metrics.predictive_nll(y, [mu, mu], std)
    with pytest.raises(ValueError, match=r"Got std.shape=\(\)"):
        metrics.predictive_nll(y, mu, 1.0)
    rows = np.array([[0.0], [2.0]])
    got = metrics.neg_predictive_nll(Plain().fit(None, None), rows, [1.0, 2.0])
    assert got == -metrics.predictive_nll([1.0, 2.0], [0.0, 2.0], [1.0, 5.0])


def test_distribution_metrics_by_hand():
    y, values = [0.0, 4.0], [[1.0, -1.0, 3.0], [0.0, 2.0, 4.0]]
    # By the definition, over all pairs.
    expected = []
    for target, row in zip(y, values, strict=True):
        row = np.array(row)
        pairs = np.abs(row[:, None] - row[None, :]).mean()
        expected.append(np.abs(row - target).mean() - pairs / 2)
    assert metrics.crps(y, values) == pytest.approx(np.mean(expected), rel=1e-12)
    found = metrics.quantile_loss(y, [[1.0, 1.0], [2.0, 5.0]], [0.1, 0.9])
    np.testing.assert_allclose(found, [(0.9 + 0.2) / 2, (0.1 + 0.1) / 2])
    assert metrics.quantile_loss([0.0], [[np.inf]], [0.5]).tolist() == [math.inf]
    for levels in ([0.5], [0.0, 0.5], [0.5, 1.0], [[0.1, 0.9]]):
        with pytest.raises(ValueError, match=r"Got levels=.*expected 2 numbers betw"):
            metrics.quantile_loss(y, [[1.0, 1.0], [2.0, 5.0]], levels)
    for bad in ([[1.0, 2.0]], [1.0, 2.0], np.empty((2, 0))):
        with pytest.raises(ValueError, match=r"Got y of shape \(2,\) and y_values of"):
            metrics.crps(y, bad)
    with pytest.raises(ValueError, match=r"y_quantiles of shape \(1, 1\)"):
        metrics.quantile_loss(y, [[1.0]], [0.5])
    with pytest.raises(ValueError, match=r"Got y of shape \(1, 2\)"):
        metrics.crps([y], [[1.0]])


BOUNDS = np.array([[-1.0, 1.0], [2.0, 6.0], [0.0, 1.0], [1.0, 2.5]])
TARGETS = np.array([0.0, 5.0, 2.0, 3.0])


def test_interval_metrics_by_hand():
    two = np.stack([BOUNDS, BOUNDS + np.array([-3.0, 3.0])], axis=2)
    assert metrics.coverage(TARGETS, BOUNDS).tolist() == [0.5]
    assert metrics.coverage(TARGETS, two).tolist() == [0.5, 1.0]
    assert metrics.coverage([1.0], [[1.0, 1.0]]).tolist() == [1.0]
    assert metrics.mean_width(two).tolist() == [8.5 / 4, 8.5 / 4 + 6]
    score = metrics.interval_score(TARGETS, two, [0.8, 0.9])
    np.testing.assert_allclose(score, [8.5 / 4 + 10 * 1.5 / 4, 8.5 / 4 + 6])
    np.testing.assert_allclose(
        metrics.coverage_error(TARGETS, two, [0.8, 0.9]), [0.3, 0.1]
    )
    assert metrics.crossed_intervals(two).tolist() == [0, 0]
    left = {"left": TARGETS < 1, "right": TARGETS >= 2}
    found = metrics.regional_coverage(TARGETS, two, left)
    assert found["left"].tolist() == [1, 1]
    np.testing.assert_allclose(found["right"], [1 / 3, 1])
    gap = metrics.region_gap(TARGETS, two, left, [0.8, 0.9])
    np.testing.assert_allclose(gap, [0.8 - 1 / 3, 0.1])
    with pytest.raises(ValueError, match="Got regions={}, but expected at least one"):
        metrics.region_gap(TARGETS, two, {}, 0.9)
    for mask, n in ((TARGETS > 9, 0), ([True], 1)):
        with pytest.raises(ValueError, match=rf"Got regions\['r'\]='{n} of "):
            metrics.regional_coverage(TARGETS, two, {"r": mask})


def test_infinite_and_swapped_intervals_by_hand():
    infinite = np.array([[-np.inf, np.inf], [0.0, 1.0]])
    assert metrics.coverage([5.0, 2.0], infinite).tolist() == [0.5]
    assert metrics.coverage([-9.0, 9.0], [[-np.inf, -9.0], [9.0, np.inf]]) == [1.0]
    assert metrics.mean_width(infinite).tolist() == [math.inf]
    assert metrics.interval_score([5.0, 2.0], infinite, 0.9).tolist() == [math.inf]
    found = metrics.evaluate_intervals([5.0, 2.0], infinite, 0.9)
    assert found["cwc"].tolist() == [-math.inf]
    assert math.isnan(found["ssc"][0])
    swapped = np.array([[0.0, 1.0], [3.0, 2.0], [5.0, 4.0]])
    assert metrics.crossed_intervals(swapped).tolist() == [2]
    with pytest.warns(Warning, match="Got 2 of 3 rows .* the first in row 1"):
        assert metrics.mean_width(swapped).tolist() == [pytest.approx(1 / 3)]
    with pytest.warns(Warning, match="Got 2 of 3 rows"):
        found = metrics.interval_score([0.5, 2.5, 7.0], swapped, 0.8)
    # Ends as they are: 1; −1 + 10·(0.5 + 0.5); −1 + 10·3.
    np.testing.assert_allclose(found, [(1 + 9 + 29) / 3])
    assert metrics.evaluate_intervals([0.5, 2.5, 7.0], swapped, 0.8)["crossed"] == [2]
    assert metrics.coverage([0.5, 2.5, 7.0], swapped).tolist() == [pytest.approx(1 / 3)]


def test_evaluation_by_hand():
    found = metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75)
    assert set(found) == {
        "coverage",
        "coverage_error",
        "width",
        "score",
        "crossed",
        "ssc",
        "cwc",
    }
    assert found["coverage"].tolist() == [0.5]
    assert found["coverage_error"].tolist() == [0.25]
    assert found["width"].tolist() == [8.5 / 4]
    assert found["score"].tolist() == [pytest.approx(8.5 / 4 + 8 * 1.5 / 4)]
    # Widths 2, 4, 1, 1.5 in three groups of like width.
    assert found["ssc"].tolist() == [0.0]
    four = metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75, num_bins=4)
    assert math.isnan(four["ssc"][0])
    assert metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75, num_bins=1)["ssc"] == [0.5]
    small = metrics.evaluate_intervals(1e-7 * TARGETS, 1e-7 * BOUNDS, 0.75)
    assert small["ssc"].tolist() == [0.0]
    assert (
        found["cwc"][0]
        != metrics.evaluate_intervals(TARGETS, BOUNDS, 0.75, eta=1.0)["cwc"][0]
    )


def test_checks_of_metrics():
    bounds = _checks.checked_bounds(BOUNDS)
    assert bounds.shape == (4, 2, 1)
    for bad in (
        np.zeros((4, 3)),
        np.zeros(4),
        np.zeros((0, 2)),
        np.zeros((1, 2, 1, 1)),
    ):
        message = f"Got y_interval of shape {bad.shape}, but"
        with pytest.raises(ValueError, match=exactly(message)):
            _checks.checked_bounds(bad)
    with pytest.raises(ValueError, match="^Got y_interval with 2 NaN"):
        _checks.checked_bounds([[np.nan, np.nan]])
    with pytest.raises(ValueError, match=r"Got y of shape \(4,\) with 1 values that"):
        _checks.checked_rows([0, 1, np.inf, 2], BOUNDS)
    with pytest.raises(ValueError, match=r"Got y of shape \(3,\) with 0 values"):
        _checks.checked_rows([0, 1, 2], BOUNDS)
    assert _checks.checked_levels(0.9, 3).tolist() == [0.9] * 3
    assert _checks.checked_levels([0.8, 0.9], 2).tolist() == [0.8, 0.9]
    for bad in ([0.8, 0.9], [[0.8]]):
        with pytest.raises(ValueError, match="one number or 1, one for each level"):
            _checks.checked_levels(bad, 1)
    for bad in (0.0, 1.0, -1, np.nan):
        with pytest.raises(ValueError, match=r"finite number in \(0, 1\). Use 0.9 for"):
            _checks.checked_levels([bad], 1)
    levels = np.zeros((2, 2, 3))
    levels[0, 0, 1] = np.inf
    levels[1, 1, 2] = -np.inf
    assert _checks.finite_levels(levels).tolist() == [True, False, False]
