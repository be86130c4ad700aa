"""μ and both parts of v of any fitted model, as few passes as the model allows."""

from inspect import Parameter, signature
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline

from ..estimators.variance import Parts


def split_pipeline(model: Any, X: Any) -> tuple[Any, Any]:
    """Last step of a fitted pipeline, and X as that step sees it."""
    if isinstance(model, Pipeline):
        return model[-1], model[:-1].transform(X) if len(model) > 1 else X
    return model, X


def last_step(model: Any) -> Any:
    """Last step of a pipeline, or the model itself."""
    return model[-1] if isinstance(model, Pipeline) else model


def fingerprint_of(model: Any) -> str | None:
    """Fingerprint of a fitted model; None if it offers none."""
    fingerprint: str | None = getattr(last_step(model), "fingerprint_", None)
    return fingerprint


def check_unchanged(model: Any, calibrated_with: str | None) -> None:
    """Raise if the model is another one than the scores were computed with.

    Models without ``fingerprint_`` pass.
    """
    if calibrated_with is None or fingerprint_of(model) in (None, calibrated_with):
        return
    raise ValueError(
        f"Got a {type(last_step(model)).__name__} that has changed since calibration "
        "(fitted again, updated, or with another scale or prior_precision), so its "
        "intervals would not be calibrated. Calibrate again with the estimator as it "
        "is now, or use a copy.deepcopy of it for changes."
    )


def check_gives_std(model: Any) -> None:
    """Raise unless ``predict`` of the model takes ``return_std``."""
    last = last_step(model)
    name = type(last).__name__
    searches = GridSearchCV | RandomizedSearchCV
    if isinstance(last, searches) or hasattr(last, "best_estimator_"):
        raise TypeError(
            f"Got a {name}, whose predict takes no return_std. Pass the model that it "
            "chose, fitted: search.best_estimator_, with prefit=True; or let "
            "CalibratedRegressor(search).fit(X, y) do both."
        )
    if isinstance(last, TransformedTargetRegressor):
        raise TypeError(
            f"Got a {name}, which cannot bring a standard deviation back to the units "
            "of y. Let the regressor transform y itself, "
            "ClapsRegressor(target_map='log'), or fit and calibrate on the transformed "
            "target and transform the bounds back."
        )
    if not _takes_return_std(last):
        raise TypeError(
            f"Got a {name}, whose predict takes no return_std. Use an estimator that "
            "gives a standard deviation, such as ClapsRegressor or a Gaussian process; "
            f"to scale intervals of a {name}, use ClapsScaleEstimator."
        )


def _takes_return_std(model: Any) -> bool:
    """Whether ``predict`` has such an argument, or takes any."""
    try:
        parameters = signature(model.predict).parameters
    except (AttributeError, ValueError, TypeError):
        return hasattr(model, "predict")  # what cannot be told is tried
    kinds = {p.kind for p in parameters.values()}
    return "return_std" in parameters or Parameter.VAR_KEYWORD in kinds


def check_splits_variance(model: Any) -> None:
    """Raise unless the model splits its variance into two parts."""
    last = last_step(model)
    if not hasattr(last, "predict_parts") and not hasattr(last, "predict_variance"):
        raise TypeError(
            f"Got a {type(last).__name__}, which does not split its variance. explain "
            "needs an estimator with predict_variance, such as ClapsRegressor."
        )


def parts_of(model: Any, X: Any) -> Parts:
    """One pass where the model offers ``predict_parts``, otherwise two."""
    check_splits_variance(model)
    last, seen = split_pipeline(model, X)
    if hasattr(last, "predict_parts"):
        return Parts(*last.predict_parts(seen))
    variance = last.predict_variance(seen)
    mu = np.asarray(last.predict(seen), dtype=np.float64)
    return Parts(mu, variance.aleatoric, variance.epistemic)
