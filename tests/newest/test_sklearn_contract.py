"""scikit-learn's own checks."""

from conftest import tiny
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from mapie_claps import CalibratedRegressor, ClapsRegressor, ClapsResidualRegressor

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "mini-batches and hold-outs are drawn by row, so that a row of weight 2 is not "
        "drawn as two rows are; the sums of the posterior are equivalent"
    ),
}
# Every part of the default, trained briefly. The tables of the checks are so small that
# CalibratedRegressor would take five folds.
ESTIMATORS = [
    ClapsRegressor(n_members=3, max_steps=200),
    ClapsResidualRegressor(LinearRegression(), tiny(), cv=2, random_state=0),
    CalibratedRegressor(tiny(), 0.5, cv=2, random_state=0),
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learn_compatible(estimator, check):
    check(estimator)
