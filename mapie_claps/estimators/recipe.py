"""Every inner number of ``ClapsRegressor``: the default recipe and the paper's."""

import math
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args

from .._validation import check_choice, check_integer, check_number, raise_for
from ..network.ensemble import VIEWS

AUTO = Literal["auto"]
HINT = "Use the default if unsure."
LAST_LAYERS = ("ridge", "trained")
CHOICES = {
    "schedule": ("cosine", "constant"),
    "last_layer": LAST_LAYERS,
    "prior_precision": ("grid", "marglik"),  # or a number
}
MAY_BE_ZERO = {"n_bins", "scaling_rate", "weight_decay", "initial_bias", "beta"}
MAY_BE_ZERO |= {"validation_fraction"}
HIGHEST = {"beta": 1.0, "validation_fraction": 0.5}


@dataclass(frozen=True)
class Recipe:
    """How the networks of a ``ClapsRegressor`` are made and trained.

    Numbers that hardly anybody has to change. To change one, pass
    ``ClapsRegressor(recipe=dataclasses.replace(DEFAULT, beta=0.0))``.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int
        Widths of the hidden layers; the last one is φ(x), which both heads share.
    n_members : int or "auto"
        Networks trained side by side, divided among the views; "auto" for 6, and 12
        under 500 rows.
    views : tuple of {"bins", "periodic", "raw"}
        What members see beside the standardised features: a piecewise-linear encoding,
        sines with learned frequencies (of numbers, not of categories), or nothing.
    n_bins : int
        Most quantile bins of the piecewise-linear encoding of each feature.
    scaling_rate : float
        How many times as fast as the weights the factor of each input learns.
    max_steps, batch_size : int or "auto"
        Steps of AdamW, and rows in one step of a member; "auto" grows with the rows.
    learning_rate, weight_decay : float
        Peak learning rate, and decoupled weight decay.
    schedule : {"cosine", "constant"}
        Cosine decay to zero after a short warm-up, or a constant learning rate.
    beta : float
        Exponent of the β-NLL loss, which weighs each row by h²ᵝ.
    max_gradient_norm, initial_bias : float or None
        Largest norm of the gradient of a member, and largest initial bias; None for
        no limit, and for 1/√fan_in as in torch.
    validation_fraction : float
        Share of the training rows that each member holds out (each its own) to keep
        its best state, to weigh the views and to choose ``prior_precision="grid"``.
    patience : int, "auto" or None
        Evaluations, of about 20, without a better state after which a member stops.
    variance_floor : float
        Added to h², in standardised units.
    input_clip : float or None
        Standard deviations beyond which a feature is clipped.
    prior_precision, target_map, kernel
        See :class:`~mapie_claps.ClapsRegressor`.
    variance_precision : float
        Largest λ of Σ, where λ is chosen and not given as a number, for few rows per
        input; for many it is up to 1.
    linear : bool
        Whether a line may stand in the mean: up to 500 rows, where a curve predicts
        clearly worse, or where networks have learned nothing that a line tells.
    robust : bool
        Whether rows that are equal in X and y count as one row with a weight, and wild
        targets as the nearest of the others.
    last_layer : {"ridge", "trained"}
        ŵ: the posterior mean under λ, in closed form, or the weights as trained.
    bias_in_posterior : bool
        Whether φ carries a constant, so that the bias is uncertain too.
    noise_shape : bool
        Whether scores take the shape of the residuals of held-out rows, and bounds and
        grades are learned from training targets.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from mapie_claps import ClapsRegressor, Recipe
    >>> plain = replace(Recipe(), beta=0.0, weight_decay=0.0)
    >>> ClapsRegressor(recipe=plain).recipe.beta
    0.0
    """

    hidden_layer_sizes: tuple[int, ...] = (64, 64, 64)
    n_members: int | AUTO = "auto"
    views: tuple[str, ...] = VIEWS
    n_bins: int = 16
    scaling_rate: float = 3.0
    max_steps: int | AUTO = "auto"
    batch_size: int | AUTO = "auto"
    learning_rate: float = 1e-2
    schedule: str = "cosine"
    weight_decay: float = 1e-3
    beta: float = 0.5
    max_gradient_norm: float | None = 5.0
    initial_bias: float | None = 0.1
    validation_fraction: float = 0.12
    patience: int | AUTO | None = "auto"
    variance_floor: float = 1e-6
    input_clip: float | None = 6.0
    prior_precision: float | str = "grid"
    variance_precision: float = 0.03
    linear: bool = True
    robust: bool = True
    last_layer: str = "ridge"
    bias_in_posterior: bool = True
    kernel: bool = True
    target_map: Any = "auto"
    noise_shape: bool = True

    def check(self) -> "Recipe":
        """Return the recipe if every number in it makes sense."""
        _check_layer_sizes(self.hidden_layer_sizes)
        _check_views(self.views)
        for each in fields(self):
            name, value = each.name, getattr(self, each.name)
            types = get_args(each.type) or (each.type,)
            if isinstance(each.default, tuple) or (value is None and NoneType in types):
                continue
            if isinstance(value, str) and value == "auto" and AUTO in types:
                continue
            if name in CHOICES and (isinstance(value, str) or float not in types):
                check_choice(name, value, CHOICES[name], HINT)
            elif bool in types:
                check_choice(name, value, (True, False), HINT)
            elif int in types:
                check_integer(name, value, low=int(name not in MAY_BE_ZERO), hint=HINT)
            elif float in types:
                high, is_open = HIGHEST.get(name, math.inf), name not in MAY_BE_ZERO
                check_number(name, value, low=0, high=high, low_open=is_open, hint=HINT)
        if not self.bias_in_posterior and self.last_layer == "ridge":
            raise_for(
                "bias_in_posterior",
                self.bias_in_posterior,
                "True with last_layer='ridge'",
                "A refit moves the bias with the weights; or use last_layer='trained'.",
            )
        if self.prior_precision == "grid" and self.validation_fraction == 0:
            raise_for(
                "validation_fraction",
                self.validation_fraction,
                "a share above 0 with prior_precision='grid'",
                "Hold out some rows, for example 0.12, or give prior_precision a "
                "number.",
            )
        return self


DEFAULT = Recipe()
# The paper is silent on much of this: it was found by searching for what lies nearest
# to its tables, and says nothing about how good the method can be.
PAPER = Recipe(
    n_members=1,
    views=("raw",),
    n_bins=0,
    scaling_rate=0.0,
    max_steps=150,
    batch_size=2**31,
    learning_rate=1e-3,
    schedule="constant",
    weight_decay=0.0,
    beta=0.0,
    max_gradient_norm=None,
    initial_bias=None,
    validation_fraction=0.0,
    patience=None,
    variance_floor=1e-3,
    input_clip=None,
    prior_precision=1.0,
    linear=False,
    robust=False,
    last_layer="trained",
    bias_in_posterior=False,
    kernel=False,
    target_map="identity",
    noise_shape=False,
)
RECIPES = {"default": DEFAULT, "paper": PAPER}


def _check_layer_sizes(sizes: Any) -> None:
    hint = "Use for example (64, 64, 64)."
    if isinstance(sizes, str) or not hasattr(sizes, "__iter__") or not tuple(sizes):
        raise_for("hidden_layer_sizes", sizes, "a tuple of one or more integers", hint)
    for size in sizes:
        check_integer("hidden_layer_sizes", size, low=1, hint=hint)


def _check_views(views: Any) -> None:
    names = () if isinstance(views, str) else tuple(views)
    if not names or sorted(set(names) & set(VIEWS)) != sorted(names):
        expected = f"a tuple of one or more of {VIEWS}, each at most once"
        hint = "Use ('raw',) for networks on the features alone."
        raise_for("views", views, expected, hint)
