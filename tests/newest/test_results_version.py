"""Stored runs are found again only while the code still gives their results."""

import numpy as np
import pytest
from conftest import heteroscedastic

from mapie_claps import ClapsRegressor
from mapie_claps.studies.store import RESULTS_VERSION

X, Y = heteroscedastic(320)
# Three predictions and standard deviations by RESULTS_VERSION["claps"]. Where they
# change although no parameter did, raise the version and write down the new ones.
EXPECTED = {
    3: {
        "default": [-0.086866, -1.7948, -0.46814, 0.30443, 0.44637, 0.24921],
        "paper": [0.20337, -2.0347, -0.32857, 0.9709, 1.0001, 0.98694],
    },
}


@pytest.mark.parametrize("name", ["default", "paper"])
def test_results_change_only_with_their_version(name):
    make = {"default": ClapsRegressor, "paper": ClapsRegressor.paper}[name]
    model = make(max_steps=30, tol=None, random_state=0).fit(X[:300], Y[:300])
    found = np.concatenate(model.predict(X[300:303], return_std=True))
    expected = EXPECTED[RESULTS_VERSION["claps"]][name]
    np.testing.assert_allclose(
        found,
        expected,
        rtol=2e-3,  # training is in single precision
        err_msg="Raise RESULTS_VERSION['claps'] in mapie_claps/studies/store.py.",
    )
