"""Every message that the FAQ quotes as a heading is really given."""

import copy
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import tiny
from mapie.regression import JackknifeAfterBootstrapRegressor, SplitConformalRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from mapie_claps import ClapsScaleEstimator, ClapsScore
from mapie_claps.diagnostics import diagnose
from mapie_claps.metrics import mean_width

FAQ = Path(__file__).parents[2] / "docs" / "faq.md"
HEADINGS = re.findall(r"^## (.+)$", FAQ.read_text(encoding="utf-8"), flags=re.M)
QUOTED = [h for h in HEADINGS if h.startswith(("Got ", "The loss ", "Left "))]


def split(model, score, prefit=True, **options):
    return SplitConformalRegressor(model, 0.9, score, prefit=prefit, **options)


def no_standard_deviation(fitted, data):
    X, y = data[1]
    ClapsScore().get_signed_conformity_scores(y, fitted.predict(X), X=X)


def fitted_again_by_mapie(fitted, data):
    mapie = split(tiny(random_state=1), ClapsScore(fitted), prefit=False)
    mapie.fit(*data[0]).conformalize(*data[1])


def a_copy(fitted, data):
    mapie = split(copy.deepcopy(fitted), ClapsScore(fitted)).conformalize(*data[1])
    mapie.predict_interval(data[2][0])


def few_rows(fitted, data):
    X, y = data[1]
    split(fitted, ClapsScore()).conformalize(X[:5], y[:5]).predict_interval(X)


def minimised(fitted, data):
    mapie = split(fitted, ClapsScore()).conformalize(*data[1])
    mapie.predict_interval(data[2][0], minimize_interval_width=True)


class NoScale:
    def predict(self, X, return_std=False):
        zero = np.zeros(len(X))
        return (zero, zero) if return_std else zero


def zero_scale(fitted, data):
    X, y = data[1]
    ClapsScore(NoScale()).get_signed_conformity_scores(y, np.zeros(len(y)), X=X)


def tiny_unit(fitted, data):
    X, y = data[0]
    ClapsScaleEstimator(tiny().fit(X, 1e-12 * y)).predict(X)


def rows_in_all_resamplings(fitted, data):
    X, y = data[0]
    mapie = JackknifeAfterBootstrapRegressor(
        tiny(max_steps=10), conformity_score=ClapsScore(), resampling=2
    )
    with warnings.catch_warnings():
        # MAPIE warns of them, NumPy of the mean over no model.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        mapie.fit_conformalize(X[:40], y[:40])


def short_training(fitted, data):
    tiny(max_steps=20, tol=1e-6).fit(*data[0])


def changed(fitted, data):
    model = copy.deepcopy(fitted)
    mapie = split(model, ClapsScore()).conformalize(*data[1])
    model.set_params(scale="constant")
    mapie.predict_interval(data[2][0])


def crossed(fitted, data):
    mean_width([[0.0, 1.0], [3.0, 2.0]])


def beyond(fitted, data):
    diagnose(fitted, data[2][0] + 10, X_calibration=data[1][0])


def infinite(fitted, data):
    fitted.predict(np.full((2, 3), np.inf))


def with_an_id(fitted, data):
    X, y = data[0]
    table = pd.DataFrame(X).assign(id=[f"u{i}" for i in range(len(X))])
    tiny().fit(table.rename(columns=str), y)


def in_a_search(fitted, data):
    search = GridSearchCV(tiny(max_steps=5), {"beta": [0.5]}, cv=2)
    mapie = split(search, ClapsScore(), prefit=False).fit(*data[0])
    mapie.conformalize(*data[1])


def rows_of_the_fit(fitted, data):
    split(fitted, ClapsScore()).conformalize(*data[0])


TRIGGERS = {
    "Got ClapsScore() without an estimator": no_standard_deviation,
    "Got ClapsScore(ClapsRegressor) whose": fitted_again_by_mapie,
    "Got ClapsScore(ClapsRegressor), but": a_copy,
    "Got 5 calibration scores": few_rows,
    "Got minimize_interval_width": minimised,
    "Got a standard deviation": zero_scale,
    "Got a scale": tiny_unit,
    "Got … rows without": rows_in_all_resamplings,
    "Got a ClapsRegressor that has changed": changed,
    "Got … rows whose lower end": crossed,
    "The loss still fell": short_training,
    "Got … rows of X with": beyond,
    "Got … in column …": infinite,
    "Left column … out": with_an_id,
    "Got a GridSearchCV, whose": in_a_search,
    "Got calibration rows on which": rows_of_the_fit,
}


def test_every_quoted_message_has_a_trigger():
    found = {h: [key for key in TRIGGERS if h.startswith(key)] for h in QUOTED}
    assert all(len(keys) == 1 for keys in found.values()), found
    assert len(QUOTED) == len(TRIGGERS)


@pytest.mark.parametrize("heading", QUOTED)
def test_the_message_is_given(heading, fitted, data):
    (trigger,) = (do for key, do in TRIGGERS.items() if heading.startswith(key))
    text = re.sub(r" \(\w+Warning\)$", "", heading)
    pattern = re.escape(text).replace("…", ".+")
    # Warnings are errors in these tests.
    kinds = (ValueError, TypeError, UserWarning, ConvergenceWarning)
    with pytest.raises(kinds, match=pattern):
        trigger(fitted, data)
