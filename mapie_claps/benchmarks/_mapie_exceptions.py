"""Which of MAPIE's tests do not hold for our score and estimator, and why.

A failure is an exception if its name (file::test) and its message both match a pair of
patterns; the first that does gives the reason. None of these is a wrong interval.
"""

NOT_OUT_OF_SAMPLE = "rows without an out-of-sample prediction"

#: Reason → what it is in words, and pairs of patterns of tests and messages.
EXCEPTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "never out of bag": (
        "some rows belong to every resampling: MAPIE warns and drops them, "
        "ours asks for more resamplings",
        {r"test_not_enough_resamplings|after_bootstrap": NOT_OUT_OF_SAMPLE},
    ),
    "private split": (
        "MAPIE's private class leaves half of the rows without an out-of-sample "
        "prediction; the public SplitConformalRegressor never does, and a score of NaN "
        "has no rank",
        {r"test_regression\.py::.*(split|cv5|cv6)": NOT_OUT_OF_SAMPLE},
    ),
    "numbers": (
        "the test expects numbers of least squares or of the mean of y",
        {
            r"test_linear_data_confidence_interval": "Not equal",
            r"test_linear_regression_results": "Not equal",
            r"test_results_prefit(_naive)?$|test_results_with_groups": "[nN]ot equal",
            r"test_residual_normalised_prefit_conformity_score": "Not equal",
        },
    ),
    "two rows": (
        "a network needs two rows to learn a scale, the test gives it one",
        {r"test_residual_normalised_score_pipe$": "minimum of 2 is required"},
    ),
    "no model": (
        "the test calls the score's methods by hand, by position or with a stand-in "
        "that has no models; our score needs the scale of each row",
        {
            r"bounds\.py::test_(absolute|std)_": r"ClapsScore\(\) without an estimator",
            r"test_std_(bounds_plus|bounds_base|predict_set)": "DummyStdEstimator",
        },
    ),
    "n = 1/α − 1": (
        "MAPIE asks for one calibration row more than the rank ⌈(n + 1)(1 − α)⌉ needs",
        {r"test_calibration_data_size_a?symmetric": "DID NOT RAISE"},
    ),
    "no scale": (
        "the test fits gradient boosting, whose predict knows no return_std; "
        "such a model needs ResidualNormalisedScore or ClapsScaleEstimator",
        {r"param(eter)?s?_": "keyword argument 'return_std'|takes no return_std"},
    ),
    "level 1.0": (
        "a level of 1 is refused: only the whole line covers every row",
        {r"infinite_intervals$": "confidence_level=1"},
    ),
    "wording": (
        "the same error in other words",
        {r"signed_scores_raises_without_std": "did not match"},
    ),
    "time series": (
        "MAPIE's TimeSeriesRegressor refuses every score that asks for a standard "
        "deviation; ResidualNormalisedScore(ClapsScaleEstimator(model)) works there",
        {r"test_time_series_regressor": "enbpi"},
    ),
    "another score": (
        "the test takes MAPIE's own score, which is not replaced",
        {r"test_conformity_score\[conformity_score1-split": "too low"},
    ),
    "parts of folds": (
        "the point prediction comes from a model of all rows, the interval from "
        "models of the folds, which a network may make differ by more than the width",
        {r"test_prediction_between_low_up\[cv": "np.False_"},
    ),
}
