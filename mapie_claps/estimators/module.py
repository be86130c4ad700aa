"""``ClapsModule``: CLAPS for a network that is already trained."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from torch import Tensor, nn

from .._compat import validate_data
from .._validation import check_integer, check_real, check_some_weight
from ..files.codec import Context, register
from ..network.batches import Batch, batches_of, check_is_reiterable, is_batches
from ..network.inputs import draw_seed, is_probe
from ..network.interface import Features
from ..network.noise_head import OwnNetwork
from ..network.own_pass import are_tokens
from ..network.own_search import wrap
from ..posterior.moments import with_gram
from ..posterior.scales import LastLayerRecipe, Units, make_model
from ..posterior.sums import LastLayerSums, Spread, last_layer_sums
from .base import LastLayerEstimator
from .module_rows import NoiseRatio, first_rows, joined_inputs, summed
from .parameters import check_module_parameters, choose_device
from .stored import check_sums, estimator_to_fields, set_fitted
from .updating import partial_sums, update_posterior

Array = NDArray[np.float64]
VARIANCE_FLOOR = 1e-12  # of σ², in units of the variance of y


class ClapsModule(LastLayerEstimator, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Last-layer Laplace posterior on a trained ``torch.nn.Module``.

    :math:`v(x) = h^2(x) + \varphi(x)^\top \Sigma \varphi(x)`, with
    :math:`\Sigma = (\lambda I + H^\top W H)^{-1}`, :math:`W = \mathrm{diag}(1/h^2)`.

    The network's mean must be a linear layer on features, μ(x) = φ(x)ᵀw. ``fit``
    never trains the network: it takes one pass over training rows for the posterior,
    after a few for a variance head if the network has none. It works on a copy; the
    module given is left as it is. Calibrate afterwards on rows that neither the
    network nor ``fit`` has seen: with MAPIE, or with
    :class:`~mapie_claps.StreamingConformalRegressor` from batches.

    X may be an array, data frame or tensor of any shape (rows first), with y beside
    it, or a ``DataLoader`` or other iterable of ``(X, y)`` batches.

    Parameters
    ----------
    module : torch.nn.Module
        Trained network. ``forward(x)`` returns the mean, shape (n,) or (n, 1), or a
        pair (mean, noise).
    last_layer_name : str or None, default=None
        Name of the ``nn.Linear`` whose output is the mean. With None it is found by
        watching a forward pass; an error lists the candidates if it is not unique.
    noise_variance : None, str or callable, default=None
        Where h²(x) comes from. None: from the second output of ``forward`` if there
        is one, or else from a method ``noise_variance_from_features(phi)`` or
        ``noise_variance(x)`` of the module; without these a head is fitted. "output":
        the second output (or output column) of ``forward``. "fit": always fit a head.
        Another string: the submodule of that name, on what it sees in ``forward``, or
        on the features. A callable: x → h²(x).
    noise_output : {"variance", "log_variance", "std"}, default="variance"
        What the module's noise is: h², log h² or h.
    prior_precision : float, "grid" or "marglik", default="marglik"
        λ, for standardised targets. "marglik" maximises the marginal likelihood of
        the last layer. "grid" minimises the predictive negative log-likelihood on a
        part of the rows; use it with rows that the network was not trained on, since
        on rows that it knows no epistemic variance looks best.
    last_layer : {"trained", "ridge"}, default="trained"
        ŵ: the weights as trained (predictions stay those of the module), or the
        posterior mean.
    hessian_structure : {"full", "diag"}, default="full"
        Structure of HᵀWH; "diag" for features of many thousands, with
        ``last_layer="trained"``.
    scale : {"claps", "aleatoric", "posterior", "constant"}, default="claps"
        What v is: h² + φᵀΣφ; h²; σ² + φᵀΣφ with W = I/σ²; or σ², the mean squared
        residual. May be changed on a fitted estimator with ``set_params``; "posterior"
        needs a second HᵀWH, which ``fit`` computes only if it is asked for before (or
        if ``last_layer="ridge"``).
    validation_fraction : float, default=0.12
        Share of the rows (at most 4,000 rows) on which "grid" chooses λ. Which rows
        these are depends on their content alone, not on their order or batches.
    variance_penalty : float, default=1.0
        Penalty of a fitted variance head log h² = aᵀφ + b: a priori log h² varies with
        variance 1 / variance_penalty over the rows.
    precision : {"float64", "module"}, default="float64"
        Arithmetic of the forward pass: the copy of the module in double precision, or
        in the dtype that it has, which is faster and makes results depend on the
        batches in the last digits of that dtype. All else is done in float64.
    batch_size : int, default=1024
        Rows in one forward pass; larger batches are cut.
    device : str, default="cpu"
        Where the forward pass runs. The posterior is on the CPU.
    random_state : int, RandomState or None, default=0
        Seed of the choice of rows for "grid".

    Attributes
    ----------
    network_ : FeatureNetwork
        The copy of the module, and the variance head if one was fitted.
    sums_ : LastLayerSums
        Sums over the rows seen so far.
    model_ : ModulePredictive
        Posteriors and units.
    last_layer_name_ : str
        Name of the layer of the mean.
    prior_precision_ : float
        λ in use.
    posterior_covariance_ : ndarray of shape (d + 1, d + 1)
        Σ in units of y, the bias last.
    residual_variance_ : float
        σ², mean squared residual, in units of y².
    n_features_in_ : int
        Number of columns, only where X is a table. MAPIE probes an estimator that has
        it with a row of floating-point zeros, so integers for an embedding go without.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X is a data frame.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie.regression import SplitConformalRegressor
    >>> from mapie_claps import ClapsModule, ClapsScore
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = X[:, 0] + rng.normal(0, 0.1 + 0.2 * (X[:, 1] > 0), 300)
    >>> net = torch.nn.Sequential(
    ...     torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    >>> # ... train net here, then:
    >>> model = ClapsModule(net).fit(X[:150], y[:150])
    >>> mapie = SplitConformalRegressor(
    ...     model, confidence_level=0.9, conformity_score=ClapsScore(), prefit=True)
    >>> mapie = mapie.conformalize(X[150:250], y[150:250])
    >>> mapie.predict_interval(X[250:])[1].shape
    (50, 2, 1)
    """

    accepts_tensors = True  # rows need not become NumPy arrays on their way here
    network_: OwnNetwork

    def __init__(
        self,
        module: nn.Module,
        last_layer_name: str | None = None,
        noise_variance: str | Callable[[Tensor], Tensor] | None = None,
        noise_output: str = "variance",
        prior_precision: float | str = "marglik",
        last_layer: str = "trained",
        hessian_structure: str = "full",
        scale: str = "claps",
        validation_fraction: float = 0.12,
        variance_penalty: float = 1.0,
        precision: str = "float64",
        batch_size: int = 1024,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.module = module
        self.last_layer_name = last_layer_name
        self.noise_variance = noise_variance
        self.noise_output = noise_output
        self.prior_precision = prior_precision
        self.last_layer = last_layer
        self.hessian_structure = hessian_structure
        self.scale = scale
        self.validation_fraction = validation_fraction
        self.variance_penalty = variance_penalty
        self.precision = precision
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Compute the posterior; the network is not trained.

        Parameters
        ----------
        X : array-like or tensor of shape (n, ...), or iterable of batches
            Training inputs; batches are (X, y) or (X, y, sample_weight).
        y : array-like of shape (n,), optional
            Training targets, unless X is an iterable of batches.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows: a row of weight 2 counts as two.

        Returns
        -------
        ClapsModule
            The estimator. If anything fails it is left as it was.
        """
        return self._fit_on_a_copy(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to the posterior; network and variance head stay as they are.

        The result is that of one ``fit`` on all rows, for the variance head in use.

        Parameters
        ----------
        X, y, sample_weight : array-like, tensor or batches
            As in ``fit``.

        Returns
        -------
        ClapsModule
            The estimator, fitted for the first time if it was not.
        """
        if not hasattr(self, "sums_"):
            return self.fit(X, y, sample_weight)
        self.__dict__ = update_posterior(self, X, y, sample_weight).__dict__
        return self

    def partial_sums(
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> LastLayerSums:
        """Sums over some rows, to be added to others; the estimator stays as it is.

        Parameters
        ----------
        X, y, sample_weight : array-like, tensor or batches
            As in ``fit``.

        Returns
        -------
        LastLayerSums
            Sums for :func:`~mapie_claps.with_sums`.
        """
        return partial_sums(self, X, y, sample_weight)

    @property
    def posterior_covariance_(self) -> Array:
        """Σ in units of y, shape (d + 1, d + 1)."""
        return np.asarray(super().posterior_covariance_[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Fit this object, which is a copy that nobody else sees."""
        check_module_parameters(self.get_params(deep=False))
        self.seed_ = draw_seed(self.random_state)
        size, check = self.batch_size, self._checked
        batches = partial(
            batches_of, X, y, sample_weight, size=size, need_y=True, check=check
        )
        rows = batches()
        first = next(rows, None)
        if first is None:
            raise ValueError("Got X without rows, but expected at least one.")
        start = first_rows(first, rows)
        self.row_ndim_ = first.x.ndim - 1
        backbone = wrap(
            self.module,
            joined_inputs(start),
            last_layer_name=self.last_layer_name,
            noise_variance=self.noise_variance,
            noise_output=self.noise_output,
            precision=self.precision,
            device=str(choose_device(self.device)),
        )
        if self.row_ndim_ == 1 and not are_tokens(backbone.network, first.x):
            self.n_features_in_ = first.x.shape[1]
        else:  # set by scikit-learn's check of a table
            self.__dict__.pop("n_features_in_", None)
        self.last_layer_name_ = backbone.last_layer_name
        self.network_ = OwnNetwork(backbone)
        rows = chain(start, rows)
        if self.network_.needs_head:
            check_is_reiterable(X)
            spreads = (Spread.of(b.target, b.row_weight) for b in batches())
            variance = sum(spreads, Spread()).variance
            penalty = float(self.variance_penalty)
            self.network_ = self.network_.with_head(batches, variance, penalty)
            rows = batches()
        self._set_sums(self._sums_of_batches(rows))
        self.fitted_ = True

    def _checked(self, X: Any) -> Any:
        """X, its columns and their names checked as scikit-learn does.

        The first rows that ``fit`` sees set them.
        """
        first = not hasattr(self, "row_ndim_")
        if _has_rows_of_its_own(X) or not (first or self.row_ndim_ == 1):
            return X
        if not first and is_probe(X) and X.shape[1:] == (self.n_features_in_,):
            return X
        check_real("X", X)
        return validate_data(
            self, X, reset=first, dtype="numeric", ensure_min_samples=0
        )

    def _batches(self, X: Any, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        """Batches whose rows have as many dimensions as those that were fitted."""
        hint = "Use 1024 if unsure."
        size = check_integer("batch_size", self.batch_size, low=1, hint=hint)
        check = self._checked
        for batch in batches_of(X, *args, size=size, check=check, **kwargs):
            if batch.x.ndim != self.row_ndim_ + 1:
                raise ValueError(
                    f"Got X of shape {tuple(batch.x.shape)}, but expected rows first "
                    f"and {self.row_ndim_ + 1} dimensions, as in fit."
                )
            yield batch

    def _sum(self, X: Any, y: Any, sample_weight: Any) -> LastLayerSums:
        """Sums over some rows."""
        batches = self._batches(X, y, sample_weight, need_y=True)
        return self._sums_of_batches(batches)

    def _sums_of_batches(self, batches: Iterable[Batch]) -> LastLayerSums:
        """Sums over batches, for the network and variance head in use."""
        seed = self.seed_ if self.prior_precision == "grid" else None
        ratio = NoiseRatio()
        sums = last_layer_sums(
            (ratio.see(summed(self.network_, batch, seed)) for batch in batches),
            self.hessian_structure,
            self.network_.fingerprint(),
            float(self.validation_fraction),
            # HᵀH costs as much as HᵀWH; beyond this scale only the σ² of a refitted
            # last layer comes from it.
            self.scale == "posterior" or self.last_layer == "ridge",
        )
        ratio.warn()
        return sums

    def _set_sums(self, sums: LastLayerSums) -> None:
        """Posteriors from sums; λ is chosen again unless it is a number."""
        check_some_weight(sums.targets.weight)
        recipe = LastLayerRecipe(self.last_layer, self.prior_precision, VARIANCE_FLOOR)
        if self.scale == "posterior":
            with_gram(sums.homoscedastic)
        units = Units(sums.targets.mean, sums.targets.variance**0.5 or 1.0)
        trained = self.network_.trained_weights()
        self.model_ = make_model(sums, trained, recipe, [slice(0, 1)], units)
        self.sums_ = sums

    def _features(self, X: Any) -> Iterator[Features]:
        """Batch by batch."""
        return (self.network_(batch.x) for batch in self._batches(X))


def _has_rows_of_its_own(X: Any) -> bool:
    """Whether X is more, or other, than a table that scikit-learn can check."""
    if is_batches(X) or isinstance(X, Tensor):
        return True
    # np.ndim would ask containers that have nothing but __array__ for a dispatch.
    return (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) > 2


def _from_fields(values: dict[str, Any], context: Context) -> ClapsModule:
    """A fitted module from a file, around the network that the caller passed."""
    params = values["params"]
    if context.noise_variance is not None:
        params = {**params, "noise_variance": context.noise_variance}
    estimator = ClapsModule(context.network, **params)
    set_fitted(estimator, values["fitted"])
    check_sums(estimator)
    return estimator


register(ClapsModule, "module", estimator_to_fields, _from_fields, ("params", "fitted"))
