"""The shape of the noise through MAPIE's classes, against crepes, and its benchmark."""

import numpy as np
import pytest
from conftest import tiny
from mapie.regression import (
    CrossConformalRegressor,
    JackknifeAfterBootstrapRegressor,
    SplitConformalRegressor,
)
from sklearn.base import BaseEstimator, RegressorMixin, clone
from test_shape import LEVEL, SHAPED, claims

from mapie_claps import CalibratedRegressor, ClapsRegressor, ClapsScore, explain
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.benchmarks._shape_methods import DEFAULT, claps
from mapie_claps.benchmarks.shape import report
from mapie_claps.network.target_map import Identity
from mapie_claps.studies.data import Split
from mapie_claps.studies.store import Store


@pytest.fixture(scope="module")
def rows():
    return claims(600, 0), claims(150, 1), claims(80, 2)


def split_regressor(estimator, prefit, **options):
    return SplitConformalRegressor(
        estimator, LEVEL, ClapsScore(**options), prefit=prefit
    )


@pytest.mark.parametrize("sym", [True, False])
def test_mapie_sees_the_shape_prefit_or_not(rows, sym):
    train, cal, (X, _) = rows
    fitted = tiny(**SHAPED).fit(*train)
    assert not fitted.predict_law(X).is_plain
    prefit = split_regressor(fitted, True, sym=sym).conformalize(*cal)
    own = split_regressor(tiny(**SHAPED), False, sym=sym).fit(*train).conformalize(*cal)
    expected = CalibratedRegressor(fitted, LEVEL, sym=sym).conformalize(*cal)
    bounds = expected.predict_interval(X)[1]
    for mapie in (prefit, own):
        np.testing.assert_array_equal(mapie.predict_interval(X)[1], bounds)
        why = explain(mapie, X)
        np.testing.assert_allclose(why.aleatoric_width + why.epistemic_width, why.width)
        np.testing.assert_array_equal(why.upper, bounds[:, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda model: CrossConformalRegressor(
            model, LEVEL, ClapsScore(), cv=3, random_state=0
        ),
        lambda model: JackknifeAfterBootstrapRegressor(
            model, LEVEL, ClapsScore(), resampling=25, random_state=0
        ),
    ],
)
def test_methods_that_cannot_see_the_shape_take_the_symmetric_scale(rows, make):
    """Their bounds are those of models which give nothing but mean and √v of y."""
    X, y = rows[0][0][:240], rows[0][1][:240]
    short = SHAPED | {"max_steps": 8, "n_members": 2}
    mapie = make(tiny(**short)).fit_conformalize(X, y)
    bounds = mapie.predict_interval(rows[2][0])[1]
    plain = make(MeanAndStdAlone(tiny(**short))).fit_conformalize(X, y)
    np.testing.assert_array_equal(plain.predict_interval(rows[2][0])[1], bounds)


class MeanAndStdAlone(RegressorMixin, BaseEstimator):
    """The same model, of which nobody sees the law."""

    def __init__(self, model):
        self.model = model

    def fit(self, X, y):
        self.model_ = clone(self.model).fit(X, y)
        return self

    def predict(self, X, return_std=False):
        mu, std = self.model_.predict(X, return_std=True)
        return (mu, np.array(std)) if return_std else mu


def test_predictive_system_is_that_of_crepes(rows):
    """μ and √v of a symmetric model: quantiles at the ranks, p-values, intervals."""
    from crepes import ConformalPredictiveSystem

    train, (X_cal, y_cal), (X, y) = rows
    model = tiny().fit(*train)
    ours = CalibratedRegressor(model, 0.9, sym=False, support=None)
    ours.conformalize(X_cal, y_cal)
    mu_cal, std_cal = model.predict(X_cal, return_std=True)
    mu, std = map(np.asarray, model.predict(X, return_std=True))
    theirs = ConformalPredictiveSystem().fit(y_cal - mu_cal, sigmas=np.array(std_cal))
    p = theirs.predict_p(mu, y, sigmas=std, smoothing=False)
    n = len(y_cal)
    # Without smoothing crepes counts the scores up to y's own; ours is the middle.
    np.testing.assert_allclose(np.abs(p - ours.cdf(X, y)).max(), 0.5 / (n + 1))
    k = np.array([3, 20, 100, 149])
    levels = k / (n + 1)
    found = ours.predict_quantiles(X, levels)
    low, high = 100 * levels[:2] + 1e-9, 100 * levels[2:] - 1e-9  # k, not k ± 1
    lower = theirs.predict_percentiles(mu, std, lower_percentiles=low)
    np.testing.assert_allclose(found[:, :2], lower)
    upper = theirs.predict_percentiles(mu, std, higher_percentiles=high)
    np.testing.assert_allclose(found[:, 2:], upper)


@pytest.fixture(scope="module")
def small():
    """A skewed set on which a map is chosen."""
    X, y = claims(700, 5)
    parts = slice(0, 420), slice(420, 560), slice(560, 700)
    return Split(*(a for part in parts for a in (X[part], y[part] + 1)))


def test_variants_are_those_of_a_fit_with_the_device_off(small):
    params = {"n_members": 2, "max_steps": 60, "tol": None, "kernel": False}
    params |= {"views": ("raw",), "hidden_layer_sizes": (16,)}
    found = {row["method"]: row for row in claps(params, small, 0, 0.1)}
    assert found[DEFAULT]["map"] != Identity.__name__
    off = {
        "target_map=None": {"target_map": None},
        "two_sided_noise=False": {"two_sided_noise": False},
        "residual_shape=False": {"residual_shape": False},
        "none of these": {
            "target_map": None,
            "two_sided_noise": False,
            "residual_shape": False,
        },
    }
    for name, switched in off.items():
        model = ClapsRegressor(random_state=0, **params, **switched)
        conformal = CalibratedRegressor(model.fit(*small[:2])).conformalize(*small[2:4])
        bounds = conformal.predict_interval(small.X_test)[1]
        width = (bounds[:, 1] - bounds[:, 0]).mean()
        np.testing.assert_allclose(found[name]["width"], width)


def test_command_runs_and_resumes(tmp_path, capsys):
    arguments = ["shape", "--smoke", "--out", str(tmp_path)]
    arguments += ["--methods", "CLAPS", "CQR HistGB", "quantile forest"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.count("| diabetes |") == 3
    before = (tmp_path / "runs.jsonl").read_text()
    assert main(arguments) == 0
    assert (tmp_path / "runs.jsonl").read_text() == before
    assert len(Store(tmp_path).lines()) == 3
    with pytest.raises(SystemExit):
        main(["shape", "--smoke", "--methods", "nobody"])
    assert "--methods nobody" in capsys.readouterr().err


def test_tables_by_hand(tmp_path):
    rows = [
        {"dataset": "d", "seed": s, "method": m, "interval_score": v, "crps": v / 2}
        for s, values in enumerate([(1.0, 2.0, 4.0), (2.0, 2.0, 2.0)])
        for m, v in zip((DEFAULT, "sym=False", "NGBoost"), values, strict=True)
    ]
    text = report(rows, tmp_path)
    assert "| d | 1.5 | 1.414 |" in text  # a mean, and a geometric mean of ratios
    assert "| d | 0.75 | 1.5 |" in text
    assert "| ratio to the first | 1.000 | 2.000 |" in text
