"""scikit-learn's checks of ``ClapsScaleEstimator``.

It wraps a fitted estimator, so that ``fit`` refuses by design and ``check_estimator``,
all of whose other checks begin with ``fit``, cannot run as a whole. Here are the checks
that need no fit, and in their own words those that need one.
"""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from conftest import heteroscedastic, tiny
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

from mapie_claps import ClapsScaleEstimator

WITHOUT_FIT = (
    "check_no_attributes_set_in_init",
    "check_get_params_invariance",
    "check_set_params",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimators_unfitted",
)


@pytest.mark.parametrize("name", WITHOUT_FIT)
def test_checks_that_need_no_fit(name):
    check = getattr(estimator_checks, name, None)
    if check is None:  # renamed between releases
        pytest.fail(f"scikit-learn has no {name}")
    check("ClapsScaleEstimator", ClapsScaleEstimator(tiny()))


@pytest.fixture(scope="module")
def model():
    X, y = heteroscedastic(60)
    return tiny().fit(pd.DataFrame(X, columns=["a", "b", "c"]), y)


def test_fit_is_refused_and_changes_nothing(model):
    X, y = heteroscedastic(60)
    scale = ClapsScaleEstimator(model)
    with pytest.raises(TypeError, match="nothing to fit"):
        scale.fit(X, y)
    assert vars(scale) == {"estimator": model}


def test_predictions(model):
    X = pd.DataFrame(heteroscedastic(20, seed=1)[0], columns=["a", "b", "c"])
    scale = ClapsScaleEstimator(model)
    before = X.copy()
    got = scale.predict(X)
    assert got.shape == (20,)
    assert got.dtype == np.float64
    assert (got > 0).all()
    pd.testing.assert_frame_equal(X, before)
    np.testing.assert_array_equal(scale.predict(X), got)
    order = np.random.default_rng(0).permutation(20)
    np.testing.assert_allclose(scale.predict(X.iloc[order]), got[order], rtol=1e-12)
    one_by_one = [scale.predict(X.iloc[[i]])[0] for i in range(20)]
    np.testing.assert_allclose(one_by_one, got, rtol=1e-10)


def test_bad_input_is_that_of_the_wrapped_estimator(model):
    scale = ClapsScaleEstimator(model)
    with pytest.raises(ValueError, match="feature names should match"):
        scale.predict(pd.DataFrame({"a": [0.0], "b": [0.0]}))
    with pytest.raises(ValueError, match="Got inf in column 'a', row 0"):
        scale.predict(pd.DataFrame({"a": [np.inf], "b": [0.0], "c": [0.0]}))
    with pytest.raises(NotFittedError, match="not fitted"):
        ClapsScaleEstimator(tiny()).predict(np.zeros((3, 2)))


def test_copies(model):
    X = pd.DataFrame(heteroscedastic(20, seed=1)[0], columns=["a", "b", "c"])
    scale = ClapsScaleEstimator(model)
    expected = scale.predict(X)
    for other in (
        clone(scale),
        copy.deepcopy(scale),
        pickle.loads(pickle.dumps(scale)),
    ):
        np.testing.assert_array_equal(other.predict(X), expected)
    assert is_regressor(scale)
    assert scale.n_features_in_ == 3
