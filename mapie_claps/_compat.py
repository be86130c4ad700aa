"""scikit-learn before 1.6, which MAPIE 0.9 needs: names and arguments that changed."""

import inspect
from typing import Any

from sklearn.utils import check_array

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn < 1.6 has it as a method

    def validate_data(_estimator: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Validate input and set ``n_features_in_`` and ``feature_names_in_``."""
        if not kwargs.pop("skip_check_array", False):
            return _estimator._validate_data(*args, **kwargs)
        (X,) = args
        _estimator._check_feature_names(X, reset=kwargs["reset"])
        _estimator._check_n_features(X, reset=kwargs["reset"])
        return X


_NAMES = ("ensure_all_finite", "force_all_finite")
_KNOWN = inspect.signature(check_array).parameters
# Arguments of check_array that leave NaN and infinity to the caller.
ANY_NUMBER = {name: False for name in _NAMES if name in _KNOWN}

__all__ = ["ANY_NUMBER", "validate_data"]
