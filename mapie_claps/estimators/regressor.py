"""``ClapsRegressor``: networks with a last-layer Laplace posterior, from table to v."""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._validation import check_choice, check_integer, warn_once
from ..network.batches import batches_of, draw_seed, items_of, row_hashes
from ..network.ensemble import (
    LITTLE_EVIDENCE,
    HeteroscedasticNetwork,
    PiecewiseLinearEncoding,
    bin_edges,
    fit_line,
)
from ..network.kernel import KernelMember, fit_kernel
from ..network.preprocessing import (
    EncodedRows,
    TableEncoder,
    check_columns,
    check_training_data,
    fit_scaler,
    fit_table,
    merge_equal_rows,
    tame_targets,
)
from ..network.rows import EQUAL_ROWS, MANY_EQUAL
from ..network.tables import as_table
from ..network.target import (
    MonotoneMap,
    NoiseShape,
    fit_noise_shape,
    fit_target_map,
    prefers_two_ranks,
)
from ..network.training import (
    Rows,
    TrainingConfig,
    batch_size_for,
    max_steps_for,
    members_for,
    n_held_out,
    split_rows,
    train,
)
from ..posterior.forward import SCALES, ForwardPass, Predicted
from ..posterior.last_layer import (
    CONSTANT,
    SHARPNESS,
    FittedLastLayers,
    LastLayerSums,
    fit_last_layers,
    mean_noise,
)
from .base import SCALE_HINT, Hashes, LastLayerEstimator, choose_device
from .predictive import TargetRange
from .recipe import RECIPES, Recipe
from .target_choice import choose_target_map

Array = NDArray[np.float64]
# A kernel member is for tables with next to no noise: it is tried where the best view
# has a held-out negative log-likelihood of at most this (h = 0.14 in standardised
# units), and kept with half of the weight or more. Elsewhere it would take noise for
# lack of data.
LITTLE_NOISE, MIN_KERNEL_WEIGHT = -1.5, 0.5
# Rows per input up to which λ of Σ is least; it grows with their square, up to 1. From
# many rows on, a mean without evidence counts as known to be constant.
FEW_ROWS, MANY_ROWS = 7, 30
KERNEL_FLOOR = 1e-3  # of the variance floor: a kernel may be nearly free of noise


class ClapsRegressor(LastLayerEstimator):
    r"""Heteroscedastic networks with a last-layer Laplace posterior.

    :math:`v(x) = h^2(x) + \varphi(x)^\top \Sigma \varphi(x)`, with
    :math:`\Sigma = (\lambda I + H^\top W H)^{-1}`, :math:`W = \mathrm{diag}(1/h^2)`.

    Networks with features φ(x), mean μ(x) = φ(x)ᵀw and noise variance h²(x) are
    trained by maximum likelihood; laplace-torch then gives the posterior of w with φ
    and h² held fixed. √v is the local scale of the conformal score
    :class:`~mapie_claps.ClapsScore`. The scale decides where intervals are wide;
    that they cover is the doing of the calibration, on rows not seen in ``fit``.

    X may be a table as it is, of pandas, polars or pyarrow, or an array, with gaps in
    any column; :mod:`mapie_claps.network.preprocessing` says what becomes of text,
    categories and dates. X and y are standardised inside. A value that never occurred
    in training (a new category, a gap where there was none) counts as lack of data:
    the row is predicted with known values in its place, and what the predictions vary
    by is added to the epistemic part.

    Parameters
    ----------
    n_members : int, optional
        Networks trained side by side; by default 6, and 12 under 500 rows. μ is their
        mean, aleatoric variance the geometric mean of their h², epistemic variance
        their mean φᵀΣφ plus the variance of μ over them; all are weighted by held-out
        likelihood.
    target_map : str, optional
        Strictly increasing map z = T(y), fitted on training targets, in whose units
        networks, h², Σ and v live. "auto", the default, takes the identity, Yeo and
        Johnson's power or, where X explains less than three quarters of the variance,
        a monotone spline towards a normal distribution, whichever has the best interval
        score on held-out training rows; the identity unless the gain is clear or if
        there are fewer than 250 rows. "identity", "spline", "yeo-johnson", "log"
        (y > 0) and "sqrt" (y ≥ 0) are taken as said.
    categorical_features : "from_dtype" or array-like, default="from_dtype"
        Columns of text, truth values and categorical type are always categories. More
        columns, such as numbers that are codes, can be named: by their names,
        positions, or a mask.
    random_state : int, RandomState or None, default=None
        Seed of initial weights, hold-outs and batches.
    verbose : int, default=0
        1 shows the progress of training.
    hidden_layer_sizes : tuple of int, optional
        Widths of the hidden layers, (64, 64, 64) by default; the last one is φ(x).
    max_steps, batch_size : int, optional
        Steps of the optimiser, and rows in one step of one member; by default they
        grow with the number of rows.
    learning_rate : float, optional
        Peak learning rate, 0.01 by default.
    prior_precision : float, "grid" or "marglik", optional
        λ, in standardised units. "grid", the default, minimises the predictive negative
        log-likelihood on held-out training rows (under 6 rows nothing is held out, and
        λ is 1), "marglik" maximises the marginal likelihood. A λ that is chosen is that
        of ŵ; Σ has at most 0.03 for 7 rows per input, up to 1 for many, since what is
        best for the mean says too little about what is not known.
    kernel : bool, optional
        Whether a Gaussian process on the nearest training rows may join the networks,
        True by default. It does where there is next to no noise, with a weight of one
        half or more by held-out likelihood; the fitted estimator then **keeps training
        rows** (at most 20,000, also in saved files).
    scale : {"claps", "aleatoric", "posterior", "constant"}, default="claps"
        What v is: h² + φᵀΣφ; h² (LACP); σ² + φᵀΣφ with W = I/σ²; or σ², where σ² is
        the mean squared training residual. "posterior" has to be chosen before ``fit``;
        the others may be changed on a fitted estimator with ``set_params``, after which
        it must be calibrated again.
    preprocessor : transformer or None, default=None
        A scikit-learn transformer, such as a ``ColumnTransformer``, that turns X into
        finite numbers, those that are 0 or 1 best last; it is cloned and fitted. None
        for our own.
    recipe : {"default", "paper"} or Recipe, default="default"
        All other numbers, and the defaults of the parameters above that are None.
    device : str, default="auto"
        Where to train: "auto" takes CUDA if torch finds it (not tested by the
        project, which has none). Everything after training runs on the CPU.

    Attributes
    ----------
    laplace_ : list of laplace.BaseLaplace
        laplace-torch's last-layer posterior of each member, on its features, in
        standardised units.
    forward_ : ForwardPass
        The torch module from standardised inputs to mean and both parts of v.
    sums_ : LastLayerSums
        HᵀWH and companions over the training rows, in standardised units.
    preprocessor_ : transformer
        The fitted transformer that turns a table into numbers.
    target_map_ : MonotoneMap
        T in use.
    prior_precision_ : float
        λ of Σ.
    posterior_covariance_ : ndarray of shape (n_members, d + 1, d + 1)
        Σ of every member, in units of y.
    kernel_ : KernelMember or None
        The kernel member with the training rows it keeps.
    recipe_ : Recipe
        Every number of the fit.
    prefers_two_ranks_ : bool
        Whether held-out training rows are served better by a rank for each end.
    fit_id_ : str
        Identity of the fit.
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

    table_: TableEncoder
    recipe_: Recipe
    target_map_: MonotoneMap
    noise_shape_: NoiseShape
    target_range_: TargetRange

    def __init__(
        self,
        n_members: int | None = None,
        *,
        target_map: Any = None,
        categorical_features: Any = "from_dtype",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        hidden_layer_sizes: tuple[int, ...] | None = None,
        max_steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        prior_precision: float | str | None = None,
        kernel: bool | None = None,
        scale: str = "claps",
        preprocessor: Any = None,
        recipe: str | Recipe = "default",
        device: str = "auto",
    ) -> None:
        self.n_members = n_members
        self.target_map = target_map
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.verbose = verbose
        self.hidden_layer_sizes = hidden_layer_sizes
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.prior_precision = prior_precision
        self.kernel = kernel
        self.scale = scale
        self.preprocessor = preprocessor
        self.recipe = recipe
        self.device = device

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None
    ) -> Self:
        """Train the networks, and compute the posterior of their last layers.

        Rows that are equal in X and y count as one row with a weight, unless there are
        so few values that equal rows are natural; see
        :mod:`mapie_claps.network.rows`.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Training inputs: numbers, text, truth values and dates, with gaps.
        y : array-like of shape (n,)
            Training targets.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows: a row of weight 2 counts as two, zero leaves it out.
        groups : array-like of shape (n,), optional
            Labels of rows that belong together, such as those of one subject, or a row
            and its augmented copies. They stay on one side wherever rows are held out.

        Returns
        -------
        ClapsRegressor
            The estimator. If anything fails it is left as it was.
        """
        return self._refit(X, y, sample_weight, groups)

    @classmethod
    def paper(cls, **params: Any) -> Self:
        """Return the small network of the CLAPS paper.

        One member of three layers of 64, the last of which is φ, without a constant in
        φ, h² with a floor of 1e-3, λ = 1, weights as trained. X is not clipped, initial
        weights are torch's, and 150 full-batch steps of Adam at a constant 1e-3 go by
        the plain Gaussian likelihood. The same as ``ClapsRegressor(recipe="paper")``.

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
        >>> ClapsRegressor.paper(random_state=0)
        ClapsRegressor(random_state=0, recipe='paper')
        """
        return cls(**({"recipe": "paper"} | params))

    def input_columns(self, X: Any) -> dict[str, Array]:
        """Inputs of the networks for X, by name, before they are standardised.

        Numbers are as they were; categories, gaps and dates as the networks see them.
        """
        check_is_fitted(self, "forward_")
        values = self._encoded(X).values
        return dict(zip(self.table_.output_names, values.T, strict=True))

    @property
    def laplace_(self) -> list[Any]:
        """laplace-torch's posterior of each member, on its features."""
        check_is_fitted(self, "forward_")
        layers = self.forward_.last_layers
        return [layers.laplace(k) for k in range(len(layers.trained))]

    @property
    def preprocessor_(self) -> Any:
        """The fitted transformer that turns a table into numbers."""
        check_is_fitted(self, "forward_")
        return self.table_.transformer

    @property
    def kernel_(self) -> KernelMember | None:
        """The kernel member, if it has earned its place."""
        check_is_fitted(self, "forward_")
        return self.forward_.kernel

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def _resolved_recipe(self) -> Recipe:
        """The recipe with the parameters that were given in its place, checked."""
        recipe = self.recipe
        if not isinstance(recipe, Recipe):
            name = check_choice("recipe", recipe, tuple(RECIPES), "Or pass a Recipe.")
            recipe = RECIPES[name]
        names = {f.name for f in fields(Recipe)}.intersection(
            self.get_params(deep=False)
        )
        given = {k: v for k in names if (v := getattr(self, k)) is not None}
        return replace(recipe, **given).check()

    def _fit(self, X: Any, y: Any, sample_weight: Any, *groups: Any) -> Hashes:
        """Fit this object, a copy that nobody else sees; return hashes of the rows."""
        recipe = self.recipe_ = self._resolved_recipe()
        check_choice("scale", self.scale, SCALES, SCALE_HINT)
        device = choose_device(self.device)
        check_integer("verbose", self.verbose, low=0, hint="Use 0 or 1.")
        data = check_training_data(self, X, y, sample_weight, *groups)
        remarks: list[str] = []
        n_rows, seed = len(data.y), draw_seed(self.random_state)
        if recipe.robust:
            data, remarks = tame_targets(merge_equal_rows(data))
        table, y_, weight, labels, _ = data
        self._equal_share = 1 - len(y_) / n_rows
        if self._equal_share > MANY_EQUAL:
            remarks.append(EQUAL_ROWS)
        n_members = members_for(recipe.n_members, len(y_))
        self.table_, values = fit_table(
            data, self.categorical_features, self.preprocessor, seed
        )
        for text in (*remarks, *self.table_.remarks):
            warn_once(text, self.table_.output_names, stacklevel=4)
        names = [f"the column {name!r} of X" for name in self.table_.output_names]
        self.scaler_X_ = fit_scaler(values, weight, names)
        self.scaler_y_ = fit_scaler(y_[:, None], weight, ["y"])
        x = self._scaled(values)
        self.target_range_ = TargetRange.fit(y_, learn=recipe.noise_shape)
        if isinstance(recipe.target_map, str) and recipe.target_map == "auto":
            together = None if labels is None else labels.numpy()
            self.target_map_ = choose_target_map(x.numpy(), y_, together, seed)
        else:
            self.target_map_ = fit_target_map(recipe.target_map, y_)
        z = self.target_map_.forward(y_)
        if not self.target_map_.is_identity:
            self.scaler_y_ = fit_scaler(z[:, None], weight, ["y"])
        target, weights = self._scaled_target(y_), torch.from_numpy(weight)
        # The order of draws is part of the recipe: hold-outs, weights, batches.
        generator = torch.Generator().manual_seed(seed)
        held_out = n_held_out(len(x), recipe.validation_fraction)
        rows = split_rows(len(x), held_out, n_members, generator, labels)
        network = self._new_network(x, generator, n_members)
        line = fit_line(x, target, weights) if recipe.linear else None
        learned, shift = target, None
        if line is not None:
            network.linear, learned = line
            shift = learned - (target - network.linear(x))
        result = train(
            network,
            network.encoding(x.float()),
            learned.float().expand(n_members, -1),
            None if bool((weights == 1).all()) else weights.float(),
            rows,
            self._training_config(len(x)),
            generator,
            device,
        )
        self.loss_curve_ = result.loss_curve
        self.validation_curve_ = result.validation_curve
        self.n_iter_ = result.n_iter
        network = network.cpu().double().eval().requires_grad_(False)
        per_input, largest = len(x) / x.shape[1], math.inf
        if isinstance(recipe.prior_precision, str):  # a number holds for Σ too
            least = recipe.variance_precision
            grown = least * max(1.0, per_input / FEW_ROWS) ** 2
            largest = min(grown, max(least, 1.0))
        settings: dict[str, Any] = {
            "prior_precision": recipe.prior_precision,
            "variance_precision": largest,
            "last_layer": recipe.last_layer,
            "with_bias": recipe.bias_in_posterior,
            "variance_floor": recipe.variance_floor,
            "homoscedastic": self.scale == "posterior",
            "fit_id": self._fit_id,
            "calibrate_noise": recipe.noise_shape,
            "left_out_shift": shift,
        }
        found, known = (
            fit_last_layers(network, x, target, weights, rows, **settings),
            0.0,
        )
        if line is None and found.evidence < LITTLE_EVIDENCE:
            if recipe.linear and (line := fit_line(x, target, weights, True)):
                network.linear, learned = line
                settings["left_out_shift"] = learned - (target - network.linear(x))
            elif per_input >= MANY_ROWS:
                settings["prior_precision"] = CONSTANT
                known = found.usual_epistemic
            if line is not None or known:
                found = fit_last_layers(network, x, target, weights, rows, **settings)
        kernel, kernel_weight = None, 0.0
        if recipe.kernel:
            own = torch.Generator().manual_seed(seed + 2)
            kernel, kernel_weight = _fit_kernel_member(
                network, found, x, target, weights, rows, own
            )
        self.sums_ = found.sums
        self.noise_shape_, self.prefers_two_ranks_ = NoiseShape(), False
        if recipe.noise_shape and found.held_out_residual is not None:
            residual = found.held_out_residual.numpy()
            shape = self.noise_shape_ = fit_noise_shape(residual)
            self.prefers_two_ranks_ = prefers_two_ranks(residual, shape)
        self.forward_ = ForwardPass(
            network,
            found.last_layers,
            found.member_weight,
            found.residual_variance,
            kernel,
            kernel_weight,
            known,
        )
        # Not of the training inputs, some of which are cross-fitted.
        return row_hashes(self.table_.encode(table).values, y_)

    def _training_config(self, n_rows: int) -> TrainingConfig:
        """How to train, with every "auto" resolved."""
        recipe = self.recipe_
        names = [f.name for f in fields(TrainingConfig) if hasattr(recipe, f.name)]
        given = {name: getattr(recipe, name) for name in names}
        if recipe.max_steps == "auto":
            given["max_steps"] = max_steps_for(n_rows)
        if recipe.batch_size == "auto":
            given["batch_size"] = batch_size_for(n_rows)
        return TrainingConfig(**given, verbose=self.verbose)

    def _new_network(
        self, X: Tensor, generator: torch.Generator, n_members: int
    ) -> HeteroscedasticNetwork:
        """Untrained members in float32."""
        recipe, n_numbers = self.recipe_, self.table_.n_numbers
        n_bins = recipe.n_bins if "bins" in recipe.views else 0
        edges = bin_edges(X, n_bins, n_numbers)
        return HeteroscedasticNetwork(
            PiecewiseLinearEncoding(edges, n_numbers),
            recipe.hidden_layer_sizes,
            n_members,
            float(recipe.variance_floor),
            generator,
            recipe.views,
            float(recipe.scaling_rate),
            recipe.initial_bias,
        )

    def _scaled(self, values: Array) -> Tensor:
        """Standardised, clipped inputs in float64."""
        scaled = values - self.scaler_X_.mean_
        scaled /= self.scaler_X_.scale_
        clip = self.recipe_.input_clip
        if clip is not None:
            np.clip(scaled, -clip, clip, out=scaled)
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

    def _target_units(self) -> tuple[float, float, dict[str, Any]]:
        settings = {
            "shape": self.noise_shape_,
            "target_map": self.target_map_,
            "targets": self.target_range_,
        }
        centre, unit = self.scaler_y_.mean_[0], self.scaler_y_.scale_[0]
        return float(centre), float(unit), settings

    def _encoded(self, X: Any, min_rows: int = 1) -> EncodedRows:
        """Rows of X as numbers, its columns, their names and values checked."""
        table = as_table(X, min_rows, getattr(self, "feature_names_in_", None))
        check_columns(self, X, table, reset=False)
        return self.table_.encode(table)

    def _batches(self, X: Any) -> Iterator[EncodedRows]:
        """As many rows at a time as fit into the cache."""
        values, unseen = self._encoded(X)
        size = self.forward_.network.rows_per_batch()
        for start in range(0, len(values), size):
            part = slice(start, start + size)
            yield EncodedRows(values[part], None if unseen is None else unseen[part])

    def _inputs(self, X: Any) -> Iterator[Tensor]:
        return (self._scaled(rows.values) for rows in self._batches(X))

    def _predicted(self, X: Any, scale: str) -> Iterator[Predicted]:
        for values, unseen in self._batches(X):
            found = self.forward_(self._scaled(values), scale)
            if unseen is not None and (rows := unseen.any(axis=1)).any():
                filled = self._predict_unseen(values[rows], unseen[rows], scale)
                for part, replacement in zip(found, filled, strict=True):
                    part[torch.from_numpy(rows)] = replacement
            yield found

    def _predict_unseen(
        self, values: Array, unseen: NDArray[np.bool_], scale: str
    ) -> Predicted:
        """Predict rows with values that never occurred in training.

        Such a value is taken as one more draw from the K values that did: μ and h² are
        means over draws with known values in its place, and the variance of the next
        draw, (V + h²/K)(1 + 1/K) with V the variance of μ over the draws, is lack of
        data. h²/K keeps one prior observation as large as the noise, without which a
        column of a single value would pass for one that does not matter.
        """
        known = self.table_.donors[:, None]
        draws = [
            self.forward_(self._scaled(draw), scale)
            for draw in self.table_.replace(values, unseen, known)
        ]
        mu, aleatoric, epistemic = map(torch.stack, zip(*draws, strict=True))
        mean, noise, lack = mu.mean(0), aleatoric.mean(0), epistemic.mean(0)
        if scale in ("claps", "posterior"):
            n_known = torch.from_numpy(self.table_.n_known(unseen))
            spread = (mu - mean).square().mean(0)
            lack = lack + (spread + noise / n_known) * (1 + 1 / n_known)
        return Predicted(mean, noise, lack)

    def _hashes(self, X: Any, y: Any) -> Hashes:
        parts = items_of(X, y, None, need_y=True)
        found = [row_hashes(self._encoded(x).values, target) for x, target, _ in parts]
        return np.concatenate(found)

    def _sum(self, X: Any, y: Any, sample_weight: Any) -> LastLayerSums:
        forward = self.forward_
        batches = batches_of(
            X,
            y,
            sample_weight,
            size=forward.network.rows_per_batch(),
            need_y=True,
            check=lambda part: self._encoded(part, min_rows=0).values,
        )
        rows = (
            (self._scaled(b.x.numpy()), self._scaled_target(b.y.numpy()), b.weight)
            for b in batches
        )
        return forward.sum_rows(rows, self.sums_)

    def _set_sums(self, sums: LastLayerSums) -> None:
        """Posteriors from other sums; λ, unless it is a number, and weights stay."""
        value = self.prior_precision
        ruled = value is None or isinstance(value, str)
        self.forward_ = self.forward_.with_sums(sums, None if ruled else float(value))
        self.sums_ = sums


def _fit_kernel_member(
    network: HeteroscedasticNetwork,
    found: FittedLastLayers,
    X: Tensor,
    y: Tensor,
    weight: Tensor,
    rows: Rows,
    generator: torch.Generator,
) -> tuple[KernelMember | None, float]:
    """A kernel member and its weight, as of one more view; None where it earns none."""
    nll = found.held_out_nll
    if nll is None or float(nll.min()) > LITTLE_NOISE:
        return None, 0.0
    h2 = [network(part).h2 for part in X.split(network.rows_per_batch())]
    kernel = fit_kernel(
        X,
        y,
        weight,
        mean_noise(torch.cat(h2, dim=1), found.member_weight),
        rows,
        network(X[rows.held_out]).h2,
        KERNEL_FLOOR * network.variance_floor,
        generator,
    )
    if kernel is None:
        return None, 0.0
    sizes = nll.new_tensor([v.stop - v.start for v in network.members_by_view()])
    logits = (sizes / sizes.mean()).log() - SHARPNESS * nll
    gap = -SHARPNESS * kernel.held_out_nll - torch.logsumexp(logits, dim=0)
    share = float(torch.sigmoid(gap))
    return (kernel, share) if share >= MIN_KERNEL_WEIGHT else (None, 0.0)
