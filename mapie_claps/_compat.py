"""``validate_data`` also for scikit-learn before 1.6, which MAPIE 0.9 needs."""

from typing import Any

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn < 1.6 has it as a method

    def validate_data(_estimator: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Validate input and set ``n_features_in_`` and ``feature_names_in_``."""
        return _estimator._validate_data(*args, **kwargs)


__all__ = ["validate_data"]
