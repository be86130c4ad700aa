"""The border: ``ClapsRegressor``, where arrays become tensors and come back."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..exceptions import FileFormatError
from ..files.codec import Context, register
from ..network import stored
from ..network.batches import batches_of
from ..network.defaults import training_config
from ..network.encoding import PiecewiseLinearEncoding, bin_edges
from ..network.ensemble import HeteroscedasticNetwork
from ..network.hold_out import n_held_out, split_rows
from ..network.inputs import (
    check_columns,
    check_training_data,
    draw_seed,
    fit_scalers,
)
from ..network.interface import Features
from ..network.losses import Loss
from ..network.table import EncodedRows, TableRows, as_table
from ..network.table_fit import fit_table, plain_encoder
from ..network.target_choice import choose_target_map, fit_target_map
from ..network.target_map import Identity, TargetMap
from ..network.trainer import train
from ..network.views import VIEWS
from ..posterior.members import feature_rows, fit_last_layers, rows_of_ensemble
from ..posterior.mixture import KernelMixture, fit_mixture
from ..posterior.scales import (
    LastLayerRecipe,
    PredictiveParts,
    Units,
    make_model,
    residuals_of_mean,
)
from ..posterior.skew import skew_of
from ..posterior.sums import LastLayerSums, SummedRows, last_layer_sums
from .base import LastLayerEstimator, estimator_to_fields, refuse_parts, set_fitted
from .parameters import check_parameters, choose_device, layer_sizes
from .residual_law import ResidualLaw
from .residual_shape import fit_residual_shape
from .target_range import TargetRange
from .unseen import mu_over_draws, parts_over_draws

__all__ = ["ClapsRegressor"]

Array = NDArray[np.float64]


class ClapsRegressor(LastLayerEstimator, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Heteroscedastic networks with a last-layer Laplace posterior.

    :math:`v(x) = h^2(x) + \varphi(x)^\top \Sigma \varphi(x)`, with
    :math:`\Sigma = (\lambda I + H^\top W H)^{-1}`, :math:`W = \mathrm{diag}(1/h^2)`.

    Networks with features φ(x), mean μ(x) = φ(x)ᵀw and noise variance h²(x) are
    trained by maximum likelihood; laplace-torch then gives the posterior of w with φ
    and h² held fixed. √v is the local scale of the conformal score
    :class:`~mapie_claps.ClapsScore`. The scale decides where intervals are wide;
    that they cover is the doing of the calibration, on rows not seen in ``fit``.

    X and y are standardised inside (X is clipped at ±``input_clip`` standard
    deviations: beyond, v does not grow further); ``variance_floor`` and
    ``prior_precision`` live in these units. φ carries a constant 1 as its last entry
    (the bias of the last layer is part of the posterior) unless ``bias_in_posterior``
    is False.

    X may be a table as it is, of pandas, polars or pyarrow, or an array, with gaps in
    any column. A column of at most 20 categories gives one input for each; of more, the
    mean of y in the category, shrunk by the number of its rows and cross-fitted, and
    that number. Dates, and text that all parses as dates, give their parts and their
    differences. A gap is filled in and flagged. Text that is nearly unique is left out
    with a warning. A value that never occurred in training (a new category, a gap where
    there was none) counts as lack of data: the row is predicted with known values in
    its place, and what the predictions vary by is added to the epistemic part.

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
    patience : int or None, default=None
        Evaluations (there are about 20 in a full run) without a better member after
        which training stops; where nothing is held out, by the training loss. None
        trains to the end.
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
        weighted by held-out likelihood like a view. It helps most where there is next
        to no noise, where rows repeat and where training rows are sparse. The fitted
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
    fingerprint_ : str
        Changes with everything that predictions depend on.
    loss_curve_, validation_curve_ : list of float
        Training and held-out loss at each evaluation, mean over the members.
    n_iter_ : int
        Steps taken.
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

    network_: HeteroscedasticNetwork
    residual_law_: ResidualLaw
    kernel_: KernelMixture | None = None  # also in files from before there was one

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
        patience: int | None = None,
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
        paper: dict[str, Any] = {
            "hidden_layer_sizes": (64, 64),
            "representation_size": 64,
            "n_members": 1,
            "views": ("raw",),
            "scaling_rate": 0.0,
            "max_steps": 150,
            "batch_size": 2**31,
            "learning_rate": 1e-3,
            "schedule": "constant",
            "weight_decay": 0.0,
            "beta": 0.0,
            "validation_fraction": 0.0,
            "tol": None,
            "variance_floor": 1e-3,
            "input_clip": None,
            "max_gradient_norm": None,
            "initial_bias": None,
            "prior_precision": 1.0,
            "last_layer": "trained",
            "bias_in_posterior": False,
            "target_map": None,
            "two_sided_noise": False,
            "residual_shape": False,
            "kernel": False,
        }
        return cls(**(paper | params))

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

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Fit this object, which is a copy that nobody else sees."""
        Xs, ys, ws, held_out, generator = self._fit_network(X, y, sample_weight)
        rows = Xs, ys, ws, held_out
        recipe = self._recipe()
        self.model_, sums, found = fit_last_layers(
            self.network_, *rows, self.hessian_structure, recipe, self.two_sided_noise
        )
        self.sums_ = sums.with_held_out()
        if found is not None:
            shape = fit_residual_shape(found.residual.numpy(), self.residual_shape)
            law = self.residual_law_
            self.residual_law_ = replace(law, skew=found.skew, shape=shape)
        if self.kernel:
            self.kernel_ = fit_mixture(
                self.network_, self.model_, sums, recipe, *rows, generator
            )

    def _fit_network(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        loss: Loss | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, torch.Generator]:
        """Scale and train; returns scaled rows, targets, weights and the held-out.

        The last is the generator, for what is fitted next.
        """
        check_parameters(self.get_params(deep=False))
        table, kept, y_, weight = check_training_data(self, X, y, sample_weight)
        seed = draw_seed(self.random_state)
        self.table_, X_ = fit_table(
            table, y_, weight, self.categorical_features, seed, kept
        )
        for text in self.table_.left_out:
            warnings.warn(text, UserWarning, stacklevel=5)
        names = [out.name for out in self.table_.outputs()]
        self.scaler_X_, self.scaler_y_ = fit_scalers(X_, y_, weight, names)
        generator, Xs = torch.Generator().manual_seed(seed), self._scaled(X_)
        target_map = Identity() if loss else self._fit_target_map(Xs, y_, seed)
        targets = TargetRange.of(y_, learn=self.residual_shape)
        self.residual_law_ = ResidualLaw(target_map, targets=targets)
        if not isinstance(target_map, Identity):
            self.scaler_y_ = fit_scalers(X_, target_map.forward(y_), weight, names)[1]
        ys = self._scaled_target(y_)
        ws = torch.from_numpy(weight)
        held_out = n_held_out(len(Xs), self.validation_fraction)
        rows = split_rows(len(Xs), held_out, self.n_members, generator)
        network = self._new_network(Xs, generator)
        result = train(
            network,
            network.encoding(Xs.float()),
            ys.float(),
            None if bool((ws == 1).all()) else ws.float(),
            rows,
            training_config(self.get_params(deep=False), len(Xs), loss),
            generator,
            choose_device(self.device),
        )
        self.loss_curve_ = result.loss_curve
        self.validation_curve_ = result.validation_curve
        self.n_iter_ = result.n_iter
        self.network_ = network.cpu().double().eval().requires_grad_(False)
        if not result.converged:
            warnings.warn(
                f"The loss still fell in the last tenth of {result.n_iter} steps, by "
                f"more than a share tol={self.tol!r} of its whole fall. "
                f"Raise max_steps (now {self.max_steps!r}) or learning_rate (now "
                f"{self.learning_rate!r}), or set tol=None to accept it.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return Xs, ys, ws, rows.held_out, generator

    @property
    def target_map_(self) -> TargetMap:
        """T in use."""
        check_is_fitted(self, "scaler_y_")
        return self._law_of_residuals().target_map

    def _fit_target_map(self, X: Tensor, y: Array, seed: int) -> TargetMap:
        """T as asked for, or the one that pays."""
        if not (isinstance(self.target_map, str) and self.target_map == "auto"):
            return fit_target_map(self.target_map, y)
        views = self.views[: self.n_members]
        # Its own generator: where T is the identity, all else is as if not asked.
        generator = torch.Generator().manual_seed(seed + 1)

        def new_network(X: Tensor, n_maps: int) -> HeteroscedasticNetwork:
            return self._new_network(X, generator, views, n_maps * len(views))

        config = training_config(self.get_params(deep=False), len(X))
        device = choose_device(self.device)
        return choose_target_map(X, y, new_network, config, generator, device)

    def _scaled(self, X: Array) -> Tensor:
        """Standardised, clipped inputs in float64."""
        scaler = self.scaler_X_
        scaled = np.array(X, dtype=np.float64, order="C")
        scaled -= scaler.mean_
        scaled /= scaler.scale_
        if self.input_clip is not None:
            np.clip(scaled, -self.input_clip, self.input_clip, out=scaled)
        return torch.from_numpy(scaled)

    def _scaled_target(self, y: Array) -> Tensor:
        """Standardised z = T(y) in float64."""
        z = self.target_map_.forward(y)
        if np.isnan(z).any():
            raise ValueError(
                f"Got the target {float(y[np.isnan(z)][0])!r}, which is outside the "
                f"domain of target_map={self.target_map!r}. Leave this row out, or fit "
                "with target_map='auto'."
            )
        return torch.from_numpy((z - self.scaler_y_.mean_) / self.scaler_y_.scale_)

    def _new_network(
        self,
        X: Tensor,
        generator: torch.Generator,
        views: tuple[str, ...] | None = None,
        n_members: int | None = None,
    ) -> HeteroscedasticNetwork:
        """Untrained members in float32."""
        n_bins, n_numbers = self.n_bins, self.table_.n_numbers
        edges = bin_edges(X, n_bins if "bins" in self.views else 0, n_numbers)
        return HeteroscedasticNetwork(
            PiecewiseLinearEncoding(edges, n_numbers),
            layer_sizes(self.get_params(deep=False)),
            n_members or self.n_members,
            float(self.variance_floor),
            generator,
            views or self.views,
            float(self.scaling_rate),
            self.initial_bias,
        )

    def _recipe(self) -> LastLayerRecipe:
        """How the posterior is made in ``fit``."""
        return LastLayerRecipe(
            self.last_layer,
            self.prior_precision,
            float(self.variance_floor),
            self.bias_in_posterior,
        )

    def _set_sums(self, sums: LastLayerSums) -> None:
        """Posteriors from other sums; λ, unless it is a number, and weights stay."""
        value = self.prior_precision
        recipe = replace(
            self._recipe(),
            prior_precision=self.prior_precision_ if isinstance(value, str) else value,
            member_weight=self.model_.member_weight,
        )
        network = self.network_
        self.model_ = make_model(
            sums,
            network.trained_weights(),
            recipe,
            network.members_by_view(),
            Units(),
        )
        self.sums_ = sums

    @torch.no_grad()
    def _sum(self, X: Any, y: Any, sample_weight: Any) -> LastLayerSums:
        """Sums over some rows for all members, in standardised units."""
        batches = batches_of(
            X,
            y,
            sample_weight,
            size=rows_of_ensemble(self.network_),
            need_y=True,
            check=partial(self._read, min_rows=0),
        )
        parts = (self._summed(b.x, b.target, b.row_weight) for b in batches)
        sums = last_layer_sums(
            parts, self.hessian_structure, self.sums_.network, fraction=0.0
        )
        if sums is None:
            raise ValueError("Got X without rows, but expected at least one.")
        return sums

    def _summed(self, X: TableRows, y: Tensor, weight: Tensor) -> SummedRows:
        """Features of some rows, and what is summed beside them."""
        target = self._scaled_target(y.numpy())
        by_member = weight.expand(self.network_.n_members, -1)
        inputs = self._scaled(X.encode().values)
        rows = feature_rows(self.network_, inputs, target, by_member)
        return SummedRows(rows, target, residuals_of_mean(self.model_, rows), weight)

    def _target_units(self) -> Units:
        """Mean and standard deviation of z = T(y) over the training targets."""
        return Units(float(self.scaler_y_.mean_[0]), float(self.scaler_y_.scale_[0]))

    def _read(self, X: Any, min_rows: int = 1) -> TableRows:
        """Rows of X, its columns, their names and values checked."""
        table = as_table(X, min_rows)
        check_columns(self, X, table, reset=False)
        return self.table_.read(table)

    def _mu_of(self, out: Features) -> Tensor:
        if self.kernel_ is None or out.x is None:
            return super()._mu_of(out)
        return self.kernel_.mu(self.model_, out, out.x)

    def _parts_of(self, out: Features, scale: str) -> PredictiveParts:
        if self.kernel_ is None or out.x is None:
            parts = super()._parts_of(out, scale)
        else:
            parts = self.kernel_.parts(self.model_, out, out.x, scale)
        weights = self._law_of_residuals().skew
        if weights is None:
            return parts
        skew = skew_of(out.phi, weights, self.model_.member_weight)
        return parts._replace(skew=skew)

    def _further_tensors(self) -> dict[str, Tensor]:
        return {} if self.kernel_ is None else self.kernel_.tensors()

    def _encoded(self, X: Any) -> Iterator[EncodedRows]:
        """As many rows at a time as fit into the cache."""
        rows, size = self._read(X), rows_of_ensemble(self.network_)
        for start in range(0, len(rows), size):
            yield rows[start : start + size].encode()

    @torch.no_grad()
    def _network(self, inputs: Array) -> Features:
        x = self._scaled(inputs)
        out: Features = self.network_(x)
        return out._replace(x=x)

    def _features(self, X: Any) -> Iterator[Features]:
        """φ, μ and h²; a value that was not seen is filled in."""
        return (self._network(rows.values) for rows in self._encoded(X))

    def _mu(self, X: Any) -> Iterator[Tensor]:
        """μ; where values were not seen, the mean over known ones in their place."""

        def mu(inputs: Array) -> Tensor:
            return self._mu_of(self._network(inputs))

        for values, unseen in self._encoded(X):
            found = mu(values)
            if unseen is not None:
                rows = unseen.any(axis=1)
                found[torch.from_numpy(rows)] = mu_over_draws(
                    self.table_, values[rows], unseen[rows], mu
                )
            yield found

    def _parts(self, X: Any, scale: str) -> Iterator[PredictiveParts]:
        """μ and both parts of v; values that were not seen count as lack of data."""

        def parts(inputs: Array) -> PredictiveParts:
            return self._parts_of(self._network(inputs), scale)

        for values, unseen in self._encoded(X):
            found = parts(values)
            if unseen is not None:
                rows = unseen.any(axis=1)
                over_draws = parts_over_draws(
                    self.table_,
                    values[rows],
                    unseen[rows],
                    parts,
                    counts_lack_of_data=scale in ("claps", "posterior"),
                )
                for part, replacement in zip(found, over_draws, strict=True):
                    if part is not None and replacement is not None:
                        part[torch.from_numpy(rows)] = replacement
            yield found


def _from_fields(values: dict[str, Any], context: Context) -> ClapsRegressor:
    """A fitted regressor from a file."""
    refuse_parts(context, "ClapsRegressor")
    estimator = ClapsRegressor(**values["params"])
    set_fitted(estimator, values["fitted"])
    n_columns, n_inputs = estimator.n_features_in_, estimator.network_.encoding.n_raw
    for name, n in (("scaler_X_", n_inputs), ("scaler_y_", 1)):
        found = getattr(estimator, name).n_features_in_
        if found != n:
            raise FileFormatError(
                f"Got a {name} for {found} columns, but expected {n}, as the network "
                f"has {n_inputs} inputs."
            )
    if not hasattr(estimator, "table_"):  # version 1 took numbers only
        if n_columns != n_inputs:
            raise FileFormatError(
                f"Got {n_columns} columns, but a network of {n_inputs} inputs."
            )
        names = getattr(estimator, "feature_names_in_", range(n_columns))
        labels = [f"x{name}" if isinstance(name, int) else name for name in names]
        scaler = estimator.scaler_X_
        estimator.table_ = plain_encoder(labels, scaler.mean_, scaler.scale_)
    estimator.table_.check_sizes(n_columns, n_inputs)
    if estimator.kernel_ is not None:
        estimator.kernel_.check(n_inputs)
    return estimator


FILE_FORMAT = stored  # imported for what it registers
register(
    ClapsRegressor, "regressor", estimator_to_fields, _from_fields, ("params", "fitted")
)
