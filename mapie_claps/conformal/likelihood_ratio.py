"""Source and target rows → p_target(x) / p_source(x), by a probabilistic classifier."""

import warnings
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import _num_samples

from .._validation import check_choice, check_number
from ..exceptions import EffectiveSampleSizeWarning
from ..files.codec import Context, register, saved_as
from .parts import last_step, split_pipeline
from .row_keys import keys_to_keep, known_rows
from .weighted import effective_sample_size

Array = NDArray[np.float64]
N_COMPONENTS = 32  # of φ, which has hundreds of columns
BY_CHANCE = 1e-6  # probability below which rows are not equal to others by chance
MANY_CLIPPED = 0.01


def likelihood_ratio(
    X_source: Any,
    X_target: Any,
    *,
    estimator: Any = None,
    features: str = "inputs",
    classifier: Any = None,
    clip: float = 20.0,
) -> "LikelihoodRatio":
    r"""Estimate how much more frequent rows are in the target than in the source.

    :math:`w(x) = p_{\mathrm{target}}(x) / p_{\mathrm{source}}(x)`, from a classifier
    that tells the two apart: :math:`w(x) = \frac{\hat p(x)}{1 - \hat p(x)} \cdot
    \frac{n_{\mathrm{source}}}{n_{\mathrm{target}}}`.

    Parameters
    ----------
    X_source : array-like of shape (n_source, p)
        Rows from where the calibration rows come: training rows, for example.
    X_target : array-like of shape (n_target, p)
        Rows from where the rows to predict come; their targets are not needed. None of
        the rows given here may be used for calibration or be predicted.
    estimator : estimator, optional
        A fitted ``ClapsRegressor``, whose encoding turns text, dates and gaps into
        numbers. By default X is taken as numbers.
    features : {"inputs", "phi"}, default="inputs"
        What the classifier sees: the encoded inputs, or the features φ of the
        estimator's networks. A ratio of φ is right only if the shift acts through φ.
    classifier : classifier, optional
        Any classifier of scikit-learn with ``predict_proba``; it is fitted on a copy.
        By default a logistic regression on standardised columns, which is right if
        the logarithm of the ratio is linear in them.
    clip : float, default=20.0
        Ratios are clipped to [1/clip, clip].

    Returns
    -------
    LikelihoodRatio
        A function of X, for ``conformalize(X, y, weights=...)``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import likelihood_ratio
    >>> rng = np.random.default_rng(0)
    >>> ratio = likelihood_ratio(
    ...     rng.normal(0, 1, (500, 2)), rng.normal(0.5, 1, (500, 2)))
    >>> ratio([[0.0, 0.0], [1.0, 1.0]]).round(1)
    array([0.8, 2.3])
    >>> ratio
    LikelihoodRatio of 500 source and 500 target rows
    clipped to [0.05, 20]: 0 source rows, 1 target rows
    source rows are worth 294.2 rows of equal weight
    """
    check_choice("features", features, ("inputs", "phi"), "Use 'inputs'.")
    clip = check_number("clip", clip, low=1, low_open=True, hint="Use 20 if unsure.")
    if features == "phi" and not hasattr(last_step(estimator), "_features"):
        raise ValueError(
            f"Got features='phi' with estimator={estimator!r}, but φ needs a fitted "
            "ClapsRegressor or ClapsModule. Pass estimator=, or use 'inputs'."
        )
    source, target = (
        _features_of(estimator, X, features) for X in (X_source, X_target)
    )
    for name, values in (("X_source", source), ("X_target", target)):
        if len(values) < 2 or not np.isfinite(values).all():
            raise ValueError(
                f"Got {name} with {len(values)} rows, of which "
                f"{int((~np.isfinite(values)).any(axis=1).sum())} hold NaN or "
                "infinity, but expected at least two, all of them numbers. Pass "
                "estimator= to encode gaps and text."
            )
    if source.shape[1] != target.shape[1]:
        raise ValueError(
            f"Got X_source with {source.shape[1]} columns and X_target with "
            f"{target.shape[1]}, but expected the same columns."
        )
    linear = classifier is None
    fitted = _linear(features, min(source.shape)) if linear else clone(classifier)
    if not hasattr(fitted, "predict_proba"):
        raise TypeError(
            f"Got a classifier of type {type(fitted).__name__} without predict_proba. "
            "Use LogisticRegression or HistGradientBoostingClassifier, for example."
        )
    labels = np.r_[np.zeros(len(source)), np.ones(len(target))]
    fitted.fit(np.concatenate([source, target]), labels)
    made = LikelihoodRatio(
        Logit.of(fitted) if linear else fitted,
        clip,
        len(source),
        len(target),
        features,
        estimator,
        np.concatenate([keys_to_keep(X) for X in (X_source, X_target)], axis=1),
    )
    made._report(source, target)
    return made


@dataclass(frozen=True, eq=False)
class Logit:
    """A logistic regression on columns as they are: log-odds x·a + b."""

    coef: Array  # (d,)
    intercept: float

    @classmethod
    def of(cls, pipeline: Pipeline) -> "Logit":
        """One linear map in place of several in a row."""
        *steps, last = pipeline.named_steps.values()
        coef, intercept = last.coef_[0], float(last.intercept_[0])
        for step in reversed(steps):
            is_pca = isinstance(step, PCA)
            coef = coef @ step.components_ if is_pca else coef / step.scale_
            intercept -= float(step.mean_ @ coef)
        return cls(np.asarray(coef, dtype=np.float64), intercept)

    def predict_proba(self, X: Array) -> Array:
        """Probabilities of source and target, (n, 2)."""
        chance = expit(X @ self.coef + self.intercept)
        return np.stack([1 - chance, chance], axis=1)


@dataclass(eq=False, repr=False)
class LikelihoodRatio:
    """A function of X that gives clipped likelihood ratios; see ``likelihood_ratio``.

    Attributes
    ----------
    n_clipped_ : tuple of int
        Source and target rows whose ratio was clipped.
    effective_sample_size_ : float
        Rows of equal weight that the source rows are worth.
    """

    classifier: Any
    clip: float
    n_source: int
    n_target: int
    features: str
    estimator: Any
    keys: NDArray[np.int64]  # (2, n_source + n_target)
    n_clipped_: tuple[int, int] = (0, 0)
    effective_sample_size_: float = np.nan
    encodes: bool = False  # whether rows pass through an estimator first

    def __post_init__(self) -> None:
        self.encodes = self.encodes or self.estimator is not None

    def __call__(self, X: Any) -> Array:
        """Ratios of rows to calibrate on or to predict.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Rows that the ratio was not estimated on; a row that was is an error. Where
            source and target rows repeat each other, as rows of few different values
            do, it is one if more rows are known than chance explains.

        Returns
        -------
        ndarray of shape (n,)
            Ratios.
        """
        n, found = _num_samples(X), known_rows(X, None, self._known)
        if len(found) and binom.sf(len(found) - 1, n, self._chance) < BY_CHANCE:
            raise ValueError(
                f"Got {len(found)} of {n} rows, the first of them row {found[0]}, on "
                "which the likelihood ratio was estimated. Source and target rows must "
                "be neither calibration nor test rows: set some aside for "
                "likelihood_ratio. (If these only happen to be equal to them, pass "
                "weights=ratio.predict.)"
            )
        return self.predict(X)

    @cached_property
    def _known(self) -> NDArray[np.int64]:
        return np.unique(self.keys)

    @cached_property
    def _chance(self) -> float:
        """Share of source or of target rows that equal another of these rows."""
        _, place, count = np.unique(
            self.keys[0], return_inverse=True, return_counts=True
        )
        repeated = np.split(count[place] > 1, [self.n_source])
        return float(max(part.mean() for part in repeated))

    def predict(self, X: Any) -> Array:
        """Ratios of any rows.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Rows.

        Returns
        -------
        ndarray of shape (n,)
            Ratios.
        """
        values = _features_of(self.estimator, X, self.features)
        return np.clip(self._raw(values), 1 / self.clip, self.clip)

    def __repr__(self) -> str:
        source, target = self.n_clipped_
        return (
            f"LikelihoodRatio of {self.n_source} source and {self.n_target} target "
            f"rows\nclipped to [{1 / self.clip:.4g}, {self.clip:.4g}]: {source} source "
            f"rows, {target} target rows\nsource rows are worth "
            f"{self.effective_sample_size_:.1f} rows of equal weight"
        )

    def check_saveable(self) -> None:
        """Raise for a classifier that a file cannot hold."""
        if not isinstance(self.classifier, Logit):
            raise TypeError(
                f"Got weights from a {type(self.classifier).__name__}, which a file "
                "cannot hold. Use likelihood_ratio with its default classifier, or "
                "pass numbers as weights."
            )

    def _raw(self, values: Array) -> Array:
        chance = self.classifier.predict_proba(values)[:, 1]
        with np.errstate(divide="ignore"):
            odds = chance / (1 - chance)
        return np.asarray(odds * (self.n_source / self.n_target))

    def _report(self, source: Array, target: Array) -> None:
        """Count what is clipped, and warn if it is much."""
        raw = self._raw(source), self._raw(target)
        low, high = 1 / self.clip, self.clip
        counts = [int(((r < low) | (r > high)).sum()) for r in raw]
        self.n_clipped_ = counts[0], counts[1]
        self.effective_sample_size_ = effective_sample_size(np.clip(raw[0], low, high))
        n_high = int((raw[1] > high).sum())
        if n_high > MANY_CLIPPED * len(target):
            warnings.warn(
                f"Got {n_high} of {len(target)} target rows whose likelihood ratio "
                f"exceeds clip={high:g} (the largest is {raw[1].max():.3g}): the "
                "source hardly has such rows. Clipped weights cover them too rarely; "
                "collect calibration rows there, or raise clip and expect wider "
                "intervals.",
                EffectiveSampleSizeWarning,
                stacklevel=3,
            )


def _linear(features: str, size: int) -> Pipeline:
    """Logistic regression on standardised columns, of φ on its main components."""
    steps = [StandardScaler()]
    if features == "phi":
        steps += [PCA(min(N_COMPONENTS, size), svd_solver="randomized", random_state=0)]
    return make_pipeline(*steps, LogisticRegression(max_iter=1000))


def _features_of(estimator: Any, X: Any, features: str) -> Array:
    """What the classifier sees, (n, d) float64."""
    if estimator is None:
        values = np.asarray(X, dtype=np.float64)
        return values.reshape(len(values), -1)
    last, seen = split_pipeline(estimator, X)
    if features == "phi":
        parts = [out.phi.numpy() for out in last._features(seen)]  # (K, n, d)
        phi = np.concatenate(parts, axis=1)
        return np.moveaxis(phi, 0, 1).reshape(phi.shape[1], -1).astype(np.float64)
    if hasattr(last, "input_columns"):
        return np.stack(list(last.input_columns(seen).values()), axis=1)
    return _features_of(None, seen, features)


def _to_fields(ratio: LikelihoodRatio) -> dict[str, Any]:
    ratio.check_saveable()
    return {name: getattr(ratio, name) for name in FIELDS}


def _from_fields(values: dict[str, Any], context: Context) -> LikelihoodRatio:
    return LikelihoodRatio(**values, estimator=None)


# All but the estimator, which the calibrated object holds.
FIELDS = tuple(f.name for f in fields(LikelihoodRatio) if f.name != "estimator")
saved_as("logit")(Logit)
register(LikelihoodRatio, "likelihood ratio", _to_fields, _from_fields, FIELDS)
