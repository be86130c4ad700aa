"""scikit-learn before 1.6, which MAPIE 0.9 needs: names and arguments that changed."""

import inspect
from typing import Any

from sklearn.utils import check_array

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn < 1.6 has it as a method

    def validate_data(_estimator: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Validate input and set ``n_features_in_`` and ``feature_names_in_``."""
        return _estimator._validate_data(*args, **kwargs)


_FINITE = ("ensure_all_finite", "force_all_finite")
# Argument of check_array that leaves NaN and infinity to the caller.
ANY_NUMBER = {
    k: False for k in _FINITE if k in inspect.signature(check_array).parameters
}

__all__ = ["ANY_NUMBER", "validate_data"]
