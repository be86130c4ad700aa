"""``ClapsRegressor``: its parameters, and its place in scikit-learn and in files."""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ..files.codec import Context, register
from ..network import stored
from ..network.views import VIEWS
from .ensemble_training import EnsembleTraining
from .parameters import PAPER
from .stored import check_columns, estimator_to_fields, refuse_parts, set_fitted

Array = NDArray[np.float64]


class ClapsRegressor(EnsembleTraining, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Heteroscedastic networks with a last-layer Laplace posterior.

    :math:`v(x) = h^2(x) + \varphi(x)^\top \Sigma \varphi(x)`, with
    :math:`\Sigma = (\lambda I + H^\top W H)^{-1}`, :math:`W = \mathrm{diag}(1/h^2)`.

    Networks with features φ(x), mean μ(x) = φ(x)ᵀw and noise variance h²(x) are
    trained by maximum likelihood; laplace-torch then gives the posterior of w with φ
    and h² held fixed. √v is the local scale of the conformal score
    :class:`~mapie_claps.ClapsScore`. The scale decides where intervals are wide;
    that they cover is the doing of the calibration, on rows not seen in ``fit``.

    X and y are standardised inside (X is clipped at ± ``input_clip`` standard
    deviations: beyond, v does not grow further); ``variance_floor`` and
    ``prior_precision`` live in these units. φ carries a constant 1 as its last entry
    (the bias of the last layer is part of the posterior) unless ``bias_in_posterior``
    is False.

    X may be a table as it is, of pandas, polars or pyarrow, or an array, with gaps in
    any column. A column of at most 20 categories gives one input for each; of more,
    what the category adds to y beyond a linear model of the other columns, in normal
    scores, shrunk by the number of its rows and cross-fitted, and that number. Dates,
    and text that all parses as dates, give their parts and their differences. A gap is
    filled in and flagged. Text that is nearly unique is left out with a warning. A
    value that never occurred in training (a new category, a gap where there was none)
    counts as lack of data: the row is predicted with known values in its place, and
    what the predictions vary by is added to the epistemic part.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(64, 64)
        Widths of the hidden layers before the representation.
    representation_size : int, default=64
        Size d of φ(x), the layer that both heads share.
    n_members : int, default=6
        Networks trained side by side as one batched network, divided among ``views``.
        μ is their mean, aleatoric variance the geometric mean of their h², epistemic
        variance their mean φᵀΣφ plus the variance of μ over them; all are weighted by
        the likelihood of the views on held-out rows.
    views : tuple of {"bins", "periodic", "raw"}, default=("bins", "periodic", "raw")
        What members see beside the standardised features: their piecewise-linear
        encoding, sines with learned frequencies (of numbers, not of categories), or
        nothing. With fewer members than views, the first views are taken.
    scaling_rate : float, default=3.0
        Each network gives each of its inputs a factor, which starts at one and learns
        this many times as fast as the weights. 0 for no factors.
    n_bins : int, default=16
        Most quantile bins of the piecewise-linear encoding of each feature, for the
        view "bins"; fewer where there are many columns, 0 for none. Columns
        of few distinct values are encoded value by value.
    max_steps : int or "auto", default="auto"
        Steps of the optimiser (AdamW). "auto" grows with the number of rows.
    batch_size : int or "auto", default="auto"
        Rows in one step of one member; more than there are means all.
    learning_rate : float, default=1e-2
        Peak learning rate.
    schedule : {"cosine", "constant"}, default="cosine"
        Cosine decay to zero after a short warm-up, or a constant learning rate.
    weight_decay : float, default=1e-3
        Decoupled weight decay.
    dropout : float, default=0.0
        Share of hidden units dropped in training.
    beta : float, default=0.5
        Exponent of the β-NLL loss, which weighs each row by h²ᵝ; 0 is the Gaussian
        likelihood.
    validation_fraction : float, default=0.12
        Share of the training rows that each member holds out (each its own) to keep
        its best state, to weigh the views and to choose ``prior_precision="grid"``. 0
        holds out none, and all members weigh the same.
    patience : int, "auto" or None, default="auto"
        Evaluations (there are about 20 in a full run) without a better state after
        which a member stops; where nothing is held out, by the training loss. None
        trains all members to the end. "auto" is 4, or 6 for a member whose held-out
        loss is at most −0.5 (little noise), and lets a view stop whose held-out loss is
        behind that of the best view by more than 0.5 after 6 evaluations or more; where
        nothing is held out or there are fewer than 400 steps it is None. It saves about
        a third of the time.
    tol : float or None, default=0.05
        A ``ConvergenceWarning`` is given where more than this share of the whole gain
        in the loss fell into the last tenth of training. None never warns.
    variance_floor : float, default=1e-6
        Added to h², in standardised units.
    input_clip : float or None, default=6.0
        Standard deviations beyond which a feature counts as an outlier and is clipped.
        None leaves X as it is.
    max_gradient_norm : float or None, default=5.0
        Largest norm of the gradient of a member in one step; None for no limit.
    initial_bias : float or None, default=0.1
        Initial biases are uniform within ± this number; None for 1/√fan_in, as torch
        and the initial weights have it.
    prior_precision : float, "grid" or "marglik", default="grid"
        λ. "grid" minimises the predictive negative log-likelihood on the held-out
        part of the training rows (under 20 rows nothing is held out, and λ is 1),
        "marglik" maximises the marginal likelihood. One value for all members.
    last_layer : {"ridge", "trained"}, default="ridge"
        ŵ: the posterior mean under λ, in closed form, or the weights as trained.
    bias_in_posterior : bool, default=True
        Whether φ carries a constant, so that the bias of the last layer is uncertain
        too. False needs ``last_layer="trained"``.
    hessian_structure : {"full", "diag"}, default="full"
        Structure of HᵀWH; "diag" for representations of many thousands, with
        ``last_layer="trained"``.
    kernel : bool, default=True
        Whether a Gaussian process on the 32 nearest training rows joins the networks,
        weighted by held-out likelihood like a view. Its mean is that of all rows where
        it has most of the weight, rows are at most 4,000 and that is better. It helps
        most where there is next to no noise, where rows repeat and where training rows
        are sparse. The fitted
        estimator then **keeps training rows** (at most 20,000, in ``kernel_`` and in
        saved files). There is none with fewer than 150 rows, with no rows held out, or
        where its weight would be under 0.01.
    scale : {"claps", "aleatoric", "posterior", "constant"}, default="claps"
        What v is: h² + φᵀΣφ; h² (LACP); σ² + φᵀΣφ with W = I/σ²; or σ², where σ² is
        the mean squared training residual. May be changed on a fitted estimator with
        ``set_params``; an object that was calibrated with another scale must then be
        calibrated again.
    target_map : "auto", None, str or transformer, default="auto"
        Strictly increasing map z = T(y), fitted on training targets, in whose units
        networks, h², Σ and v live. "auto" takes the identity, a monotone spline
        towards a normal law or Yeo and Johnson's power, whichever has the best
        interval score on held-out training rows; the identity unless the gain is clear
        or if there are fewer than 250 rows. None or "identity", "spline",
        "yeo-johnson", "log" (y > 0) and "sqrt" (y ≥ 0) are taken as said, as is a
        scikit-learn transformer with ``inverse_transform`` that increases strictly
        also beyond the training targets. A calibration target outside the domain of T
        has the score +∞.
    two_sided_noise : bool, default=True
        Whether noise may have two sides, h±² = h²(1 ± d) with d(x) linear in φ(x),
        v± = h±² + φᵀΣφ. Symmetric (d = 0) unless the held-out rows speak for skew. W
        and μ are those of h², the mean of both sides.
    residual_shape : bool, default=True
        Whether scores take the shape of the residuals of held-out rows, so that both
        ends of an interval leave equal shares outside. Symmetric where nothing is held
        out; shrunk towards symmetry where little is. Also whether bounds and grades
        are learned from training targets; see ``support="auto"`` of
        :class:`~mapie_claps.ClapsScore`.
    device : str, default="auto"
        Where to train: "auto" takes CUDA if torch finds it (not tested by the
        project, which has none). Everything after training runs on the CPU.
    random_state : int, RandomState or None, default=None
        Seed of initial weights, hold-outs and batches.
    verbose : int, default=0
        1 shows a progress bar where tqdm is installed, else the losses at each
        evaluation; 2 prints the losses.
    categorical_features : "from_dtype" or array-like, default="from_dtype"
        Columns of text, truth values and categorical type are always categories. More
        columns, such as numbers that are codes, can be named: by their names,
        positions, or a mask.
    n_jobs : int or None, default=None
        Cores to train on. With a number members are trained side by side in threads,
        three at a time, and the kernel's length scales beside them; −1 is all cores,
        −2 all but one; never more than torch may use in this process
        (``torch.get_num_threads``), a number that joblib and Dask set in their workers.
        Fits that run at the same time in threads share them. The result is the same for
        every number. None trains all members in one batch on one core, which differs
        from that by rounding.

    Attributes
    ----------
    network_ : HeteroscedasticNetwork
        The members, in float64, in standardised units of X and y.
    sums_ : LastLayerSums
        HᵀWH and companions over the training rows, in standardised units.
    model_ : LastLayerModel
        Posteriors of the last layers, σ², and the weight of each member, likewise.
    residual_law_ : ResidualLaw
        Map of the target, weights of the skew and shape of the residuals.
    target_map_ : TargetMap
        T in use.
    prior_precision_ : float
        λ in use.
    posterior_covariance_ : ndarray of shape (n_members, d + 1, d + 1)
        Σ of every member, in units of y; zero along the constant of φ if
        ``bias_in_posterior`` is False.
    residual_variance_ : float
        σ², mean squared training residual, in squared units of y.
    kernel_ : KernelMixture or None
        The kernel member with the training rows it keeps, and its ``weight``.
    table_ : TableEncoder
        How the columns of X become the inputs of the networks.
    input_clip_ : float or None
        ``input_clip`` of the fit.
    fingerprint_ : str
        Changes with everything that predictions depend on.
    loss_curve_, validation_curve_ : list of float
        Training and held-out loss at each evaluation, mean over the members.
    n_iter_ : int
        Steps of the members that took most.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are all strings.

    References
    ----------
    Kim, Choi, Rasool, Oh: CLAPS: Aleatoric-Epistemic Scaling via Last-Layer Laplace
    for Conformal Regression.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import ClapsRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (200, 1))
    >>> y = np.sin(2 * X[:, 0]) + rng.normal(0, 0.1, 200)
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(X, y)
    >>> mu, std = model.predict([[0.5]], return_std=True)
    >>> bool(abs(mu[0] - np.sin(1.0)) < 0.3), bool(std[0] > 0)
    (True, True)
    """

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (64, 64),
        representation_size: int = 64,
        n_members: int = 6,
        views: tuple[str, ...] = VIEWS,
        scaling_rate: float = 3.0,
        n_bins: int = 16,
        max_steps: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 1e-2,
        schedule: str = "cosine",
        weight_decay: float = 1e-3,
        dropout: float = 0.0,
        beta: float = 0.5,
        validation_fraction: float = 0.12,
        patience: int | Literal["auto"] | None = "auto",
        tol: float | None = 0.05,
        variance_floor: float = 1e-6,
        input_clip: float | None = 6.0,
        max_gradient_norm: float | None = 5.0,
        initial_bias: float | None = 0.1,
        prior_precision: float | str = "grid",
        last_layer: str = "ridge",
        bias_in_posterior: bool = True,
        hessian_structure: str = "full",
        kernel: bool = True,
        scale: str = "claps",
        target_map: Any = "auto",
        two_sided_noise: bool = True,
        residual_shape: bool = True,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        categorical_features: Any = "from_dtype",
        n_jobs: int | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.representation_size = representation_size
        self.n_members = n_members
        self.views = views
        self.scaling_rate = scaling_rate
        self.n_bins = n_bins
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.beta = beta
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.tol = tol
        self.variance_floor = variance_floor
        self.input_clip = input_clip
        self.max_gradient_norm = max_gradient_norm
        self.initial_bias = initial_bias
        self.prior_precision = prior_precision
        self.last_layer = last_layer
        self.bias_in_posterior = bias_in_posterior
        self.hessian_structure = hessian_structure
        self.kernel = kernel
        self.scale = scale
        self.target_map = target_map
        self.two_sided_noise = two_sided_noise
        self.residual_shape = residual_shape
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.categorical_features = categorical_features
        self.n_jobs = n_jobs

    @classmethod
    def paper(cls, **params: Any) -> Self:
        """Return the small network of the CLAPS paper.

        One member of three layers of 64, the last of which is φ, without a constant in
        φ, h² with a floor of 1e-3, λ = 1, weights as trained. X is not clipped, initial
        weights are torch's, and 150 full-batch steps of Adam at a constant 1e-3 go by
        the plain Gaussian likelihood. The paper is silent on much of this: it was found
        by searching for what lies nearest to its tables, and says nothing about how
        good the method can be. No warning tells that training is brief.

        Parameters
        ----------
        **params : dict
            Parameters that override those of the paper.

        Returns
        -------
        ClapsRegressor
            An unfitted regressor.

        Examples
        --------
        >>> from mapie_claps import ClapsRegressor
        >>> ClapsRegressor.paper(random_state=0).prior_precision
        1.0
        """
        return cls(**(PAPER | params))

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train the networks and compute the posterior of their last layers.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Training inputs: numbers, text, truth values, dates; gaps are allowed,
            infinite numbers are not.
        y : array-like of shape (n,)
            Training targets.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows in the loss and in W. A weight of zero leaves the row
            out.

        Returns
        -------
        ClapsRegressor
            The estimator. If anything fails it is left as it was.
        """
        return self._fit_on_a_copy(X, y, sample_weight)

    def input_columns(self, X: Any) -> dict[str, Array]:
        """Inputs of the networks, by name, before they are standardised.

        Parameters
        ----------
        X : array-like of shape (n, p)
            A table, as in ``predict``.

        Returns
        -------
        dict of ndarray of shape (n,)
            Numbers as they are; categories, gaps and dates as the networks see them.
            The names are those of the columns, or positions if they have none, with
            a suffix for what was made of a column.
        """
        check_is_fitted(self, "model_")
        values = self._read(X).encode().values
        names = [out.name for out in self.table_.outputs()]
        if not hasattr(self, "feature_names_in_"):
            names = [name.removeprefix("x") for name in names]
        return dict(zip(names, values.T, strict=True))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags


def _from_fields(values: dict[str, Any], context: Context) -> ClapsRegressor:
    """A fitted regressor from a file."""
    refuse_parts(context, "ClapsRegressor")
    estimator = ClapsRegressor(**values["params"])
    set_fitted(estimator, values["fitted"])
    check_columns(estimator)
    return estimator


FILE_FORMAT = stored  # imported for what it registers
register(
    ClapsRegressor, "regressor", estimator_to_fields, _from_fields, ("params", "fitted")
)
