"""Which of MAPIE's tests do not hold for our score and estimator, and why.

A failure is an exception if its name (file::test) and its message both match a line.
None of the reasons is a wrong interval.
"""

from typing import NamedTuple


class Exempt(NamedTuple):
    """A pattern of tests, one of their messages, and the reason."""

    test: str
    message: str
    reason: str


OUT_OF_SAMPLE = "rows without an out-of-sample prediction"

REASONS = {
    "private split": (
        "MAPIE's private class leaves half of the rows without an out-of-sample "
        "prediction; the public SplitConformalRegressor never does, and a score of NaN "
        "has no rank"
    ),
    "never out of bag": (
        "some rows belong to every resampling: MAPIE warns and drops them, "
        "ours asks for more resamplings"
    ),
    "numbers": "the test expects numbers of least squares or of the mean of y",
    "no model": (
        "the test calls the score's methods by hand, by position or with a stand-in "
        "that has no models; our score needs the scale of each row"
    ),
    "no scale": (
        "the test fits gradient boosting, whose predict knows no return_std; "
        "such a model needs ResidualNormalisedScore or ClapsScaleEstimator"
    ),
    "n = 1/α − 1": (
        "MAPIE asks for one calibration row more than the rank ⌈(n + 1)(1 − α)⌉ needs"
    ),
    "level 1.0": "a level of 1 is refused: only the whole line covers every row",
    "wording": "the same error in other words",
    "two rows": "a network needs two rows to learn a scale, the test gives it one",
    "time series": (
        "MAPIE's TimeSeriesRegressor refuses every score that asks for a standard "
        "deviation; ResidualNormalisedScore(ClapsScaleEstimator(model)) works there"
    ),
    "another score": "the test takes MAPIE's own score, which is not replaced",
    "parts of folds": (
        "the point prediction comes from a model of all rows, the interval from "
        "models of the folds, which a network may make differ by more than the width"
    ),
}

EXCEPTIONS = (
    Exempt(
        r"test_not_enough_resamplings|after_bootstrap",
        OUT_OF_SAMPLE,
        "never out of bag",
    ),
    Exempt(r"test_regression\.py::.*(split|cv5|cv6)", OUT_OF_SAMPLE, "private split"),
    Exempt(
        r"test_linear_data_confidence_interval|test_linear_regression_results",
        "Not equal",
        "numbers",
    ),
    Exempt(
        r"test_results_prefit(_naive)?$|test_results_with_groups",
        "not equal|Not equal",
        "numbers",
    ),
    Exempt(r"test_residual_normalised_prefit_conformity_score", "Not equal", "numbers"),
    Exempt(
        r"test_residual_normalised_score_pipe$", "minimum of 2 is required", "two rows"
    ),
    Exempt(
        r"bounds\.py::test_(absolute|std)_",
        r"ClapsScore\(\) without an estimator",
        "no model",
    ),
    Exempt(
        r"test_std_(bounds_plus|bounds_base|predict_set)",
        "DummyStdEstimator",
        "no model",
    ),
    Exempt(r"test_calibration_data_size_a?symmetric", "DID NOT RAISE", "n = 1/α − 1"),
    Exempt(r"param(eter)?s?_", "keyword argument 'return_std'", "no scale"),
    Exempt(r"param(eter)?s?_", "takes no return_std", "no scale"),
    Exempt(r"infinite_intervals$", "confidence_level=1", "level 1.0"),
    Exempt(r"signed_scores_raises_without_std", "did not match", "wording"),
    Exempt(r"test_time_series_regressor", "enbpi", "time series"),
    Exempt(
        r"test_conformity_score\[conformity_score1-split", "too low", "another score"
    ),
    Exempt(r"test_prediction_between_low_up\[cv", "np.False_", "parts of folds"),
)
