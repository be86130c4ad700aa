"""X → v around somebody's model: CLAPS learns what the model leaves of y."""

import warnings
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_random_state, column_or_1d, indexable
from sklearn.utils.validation import _num_samples, check_is_fitted, has_fit_parameter

from .._validation import check_choice, check_integer, import_extra, raise_for
from ..network.batches import NEEDS_Y, column
from ..network.rows import divide, rows_together
from ..network.tables import as_table, records_of
from .base import MAX_SEEN_ROWS
from .predictive import DistributionRegressor, PredictiveDistribution, TargetRange
from .regressor import ClapsRegressor

Array = NDArray[np.float64]
# Attributes and methods that are those of the model of the residuals.
OF_RESIDUAL = {"_equal_share", "n_features_in_", "prefers_two_ranks_"}
OF_RESIDUAL |= {"count_seen", "embed"}


class ClapsResidualRegressor(DistributionRegressor):
    r"""Predictions of any regressor, with CLAPS for its errors.

    :math:`y = m(x) + r`: m is the regressor given, and a ``ClapsRegressor`` learns the
    distribution of r, its mean, noise, lack of data and shape.

    Residuals come from rows that the regressor has not seen: ``fit`` divides the rows
    into folds, and predicts each fold by a copy that was fitted on the others. Then the
    regressor is fitted on all rows. ``predict`` gives its predictions, to the last bit;
    intervals are its predictions plus those of the residual, which need not be centred
    on zero. ``CalibratedRegressor(regressor)`` makes one of these by itself.

    Parameters
    ----------
    estimator : regressor
        Any regressor of scikit-learn's kind, also a ``Pipeline``. It gets X as it is,
        and so does CLAPS: each encodes text, dates and gaps in its own way.
    residual_regressor : ClapsRegressor or None, default=None
        What learns the residuals; None for one with its defaults. Residuals have both
        signs, so that its ``target_map`` is the identity.
    cv : int, default=5
        Number of folds. Rows that are equal in X and y, or of one group, share one.
    prefit : bool, default=False
        Whether the regressor is fitted already and stays as it is. ``fit`` then takes
        rows that it **has not seen**: errors on rows of its own fit are too small, and
        so would be all that is learned from them. It is kept, not copied: fitted again,
        it must be calibrated again.
    random_state : int, RandomState or None, default=None
        Seed of the folds, and of a default ``residual_regressor``.

    Attributes
    ----------
    estimator_ : regressor
        The fitted regressor, which makes the predictions.
    residual_regressor_ : ClapsRegressor
        Fitted on its residuals.
    fit_id_ : str
        Identity of the fit.

    Notes
    -----
    ``embed`` and ``count_seen`` are those of ``residual_regressor_``.

    Lack of data is that of the model of the residuals. It grows far from the training
    rows whatever the regressor does there, be it constant like a tree or linear; but it
    knows nothing of how the regressor extrapolates, and says how large errors may
    become only by what they were near the training rows.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsResidualRegressor
    >>> from sklearn.linear_model import LinearRegression
    >>> X = np.linspace(-2, 2, 200)[:, None]
    >>> y = X[:, 0] + np.random.default_rng(0).normal(0, 0.1, 200)
    >>> line = LinearRegression()
    >>> model = ClapsResidualRegressor(line, random_state=0).fit(X[:150], y[:150])
    >>> same = line.fit(X[:150], y[:150])
    >>> np.array_equal(model.predict(X), same.predict(X))
    True
    >>> model = CalibratedRegressor(model).conformalize(X[150:], y[150:])
    >>> model.predict_interval(X[:3])[1].shape
    (3, 2, 1)
    """

    estimator_: Any
    residual_regressor_: ClapsRegressor
    target_range_: TargetRange

    def __init__(
        self,
        estimator: Any,
        residual_regressor: ClapsRegressor | None = None,
        *,
        cv: int = 5,
        prefit: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.residual_regressor = residual_regressor
        self.cv = cv
        self.prefit = prefit
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> Self:
        """Fit the regressor, and CLAPS on its residuals out of fold.

        A fit that fails leaves the estimator as it was.

        Parameters
        ----------
        X, y : array-like of shape (n, p) and (n,)
            Training rows; with ``prefit`` rows that the regressor has not seen.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows, for both.
        groups : array-like of shape (n,), optional
            Labels of rows that belong together: they share a fold.
        """
        if y is None:
            raise ValueError(NEEDS_Y)
        # Some have ``predict`` once they are fitted.
        if not hasattr(self.estimator, "predict" if self.prefit else "fit"):
            hint = "Pass for example HistGradientBoostingRegressor()."
            raise_for("estimator", self.estimator, "a regressor", hint)
        X = indexable(X)[0]
        n, random = _num_samples(X), check_random_state(self.random_state)
        given, weight = column_or_1d(y, warn=True), None
        target = column("y", given, n).numpy()
        given = given if given.dtype.kind in "fiu" else target  # as the user has it
        if sample_weight is not None:
            weight = column("sample_weight", sample_weight, n, "non-negative").numpy()
        of_residual = self._residual_template(random.randint(2**31 - 1))
        if check_choice("prefit", self.prefit, (True, False), "Use False."):
            check_is_fitted(self.estimator)
            model = self.estimator
            predicted = _predictions(model, X)
            _warn_if_exact(predicted, target)
        else:
            n_folds = check_integer("cv", self.cv, low=2, hint="Use 5 if unsure.")
            labels = rows_together(X, target, groups)
            folds = divide(labels, max(2, min(n_folds, labels.max() + 1)), random)
            predicted = np.empty(n)
            for fold in range(folds.max() + 1):
                rest, own = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
                part = _safe_indexing(X, rest), given[rest]
                some = None if weight is None else weight[rest]
                fitted = _fit_clone(self.estimator, *part, some)
                predicted[own] = _predictions(fitted, _safe_indexing(X, own))
            model = _fit_clone(self.estimator, X, given.copy(), weight)
        residual = of_residual.fit(X, target - predicted, weight, groups)
        # Rows are known again by y: residuals out of fold never come back.
        residual._seen_rows = np.unique(residual._hashes(X, target))[:MAX_SEEN_ROWS]
        self.estimator_, self.residual_regressor_ = model, residual
        self.target_range_ = TargetRange.fit(target, learn=residual.recipe_.noise_shape)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict y as the regressor does, and √v if asked for, (n,) each."""
        check_is_fitted(self, "residual_regressor_")
        if return_std:
            return super().predict(X, True)
        return np.ravel(self.estimator_.predict(self._as_table(X)))

    def predict_distribution(self, X: Any) -> PredictiveDistribution:
        """Predict the distribution of y: that of the residual, moved by the prediction.

        Its ``prediction`` is the regressor's; its mean need not be.
        """
        check_is_fitted(self, "residual_regressor_")
        rows = self.residual_regressor_.predict_distribution(X)
        point = _predictions(self.estimator_, self._as_table(X))
        return replace(
            rows, centre=rows.centre + point, point=point, targets=self.target_range_
        )

    def _as_table(self, X: Any) -> Any:
        """X as the regressor takes it: dicts and a Series become a DataFrame."""
        if records_of(X) is None:
            return X
        names = getattr(self.residual_regressor_, "feature_names_in_", None)
        table = as_table(X, names=names), None, names
        return import_extra("cli", "pandas").DataFrame(*table).infer_objects()

    @property
    def fit_id_(self) -> str:
        """Text that differs between fits."""
        return self.residual_regressor_.fit_id_

    def __getattr__(self, name: str) -> Any:
        if name not in OF_RESIDUAL:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        check_is_fitted(self)
        return getattr(self.residual_regressor_, name)

    def __sklearn_clone__(self) -> Self:
        params = self.get_params(deep=False)
        kept = {"estimator": params.pop("estimator")} if self.prefit else {}
        copies = {name: clone(value, safe=False) for name, value in params.items()}
        return type(self)(**copies | kept)  # a clone of it would not be fitted

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "residual_regressor_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = self.estimator.__sklearn_tags__().input_tags
        tags.input_tags.sparse = False  # CLAPS takes tables
        return tags

    def _residual_template(self, seed: int) -> ClapsRegressor:
        """A ClapsRegressor, not fitted, whose targets stay residuals."""
        given = self.residual_regressor
        if given is None:
            given = ClapsRegressor(random_state=seed)
        named = getattr(given, "target_map", "no ClapsRegressor")
        if named not in (None, "auto", "identity"):
            hint = "Or wrap the estimator in a TransformedTargetRegressor."
            expected = "a ClapsRegressor with target_map='identity'"
            raise_for("residual_regressor", given, expected, hint)
        template: ClapsRegressor = clone(given).set_params(target_map="identity")
        return template


def _fit_clone(estimator: Any, X: Any, y: Array, weight: Array | None) -> Any:
    """A fitted copy; weights reach the last step of a pipeline."""
    model, params = clone(estimator), {}
    if weight is not None:
        last = model[-1] if isinstance(model, Pipeline) else model
        kinds = {p.kind for p in signature(last.fit).parameters.values()}
        handed_on = Parameter.VAR_KEYWORD in kinds  # by a search
        if not (has_fit_parameter(last, "sample_weight") or handed_on):
            raise ValueError(
                f"Got sample_weight for a {type(last).__name__}, whose fit takes none. "
                "Leave it out, or use a regressor that weighs rows."
            )
        step = f"{model.steps[-1][0]}__" if last is not model else ""
        params[f"{step}sample_weight"] = weight
    return model.fit(X, y, **params)


def _warn_if_exact(predicted: Array, target: Array) -> None:
    """Warn if a fitted model knows most targets that no other row has."""
    _, place, count = np.unique(target, return_inverse=True, return_counts=True)
    exact = (predicted == target)[count[place] == 1]
    if len(exact) >= 10 and exact.mean() > 0.5:
        warnings.warn(
            f"Got a fitted model that predicts {exact.sum()} of {len(exact)} targets "
            "exactly, as on rows of its own fit: errors there are too small, and so "
            "are intervals. Pass rows that it has not seen.",
            stacklevel=3,
        )


def _predictions(model: Any, X: Any) -> Array:
    """One finite number per row, (n,)."""
    found = column("predictions of the estimator", model.predict(X), _num_samples(X))
    return found.numpy()
