"""What a model says of y at each row: centre, scale on both sides, shape, map.

One object for every way to an interval: in memory, in batches, on a cluster, through
MAPIE. It is fixed before calibration and turns targets into scores and scores into
targets, row by row. NumPy only.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..network.target_map import Identity, TargetMap
from .residual_shape import ResidualShape
from .target_range import TargetRange
from .variance import Parts

Array = NDArray[np.float64]

# A score takes two roundings and its inverse two more, so that μ + q·√v may fall short
# of a y whose score is q. Where y is discrete many rows have that score, and coverage
# would suffer. Four units in the last place of q, and one of the sum, make up for it.
ROUND_OUT = 1 + 4 * np.finfo(np.float64).eps


def residual_end(shape: ResidualShape, score: Array, side: float) -> Array:
    """Residuals with these signed scores, rounded outwards."""
    r = shape.curve.end(score, side)
    # Away from the centre outwards is further, on the other side it is nearer.
    rounded: Array = r * np.where(r * side > 0, ROUND_OUT, 2 - ROUND_OUT)
    return rounded


@dataclass(frozen=True, eq=False)
class LocalLaw:
    r"""Predictive law of n rows, from which scores are made.

    With z = T(y), the residual is r = (z − c)/√v₋ below the centre c and (z − c)/√v₊
    above it, and the signed score is s = g(r). Symmetric and unmapped, v₋ = v₊ = v and
    T and g are the identity: s = (y − μ)/√v.

    Parameters
    ----------
    centre : ndarray of shape (n,)
        c, in units of z.
    below, above : ndarray of shape (n,)
        √v₋ and √v₊.
    aleatoric, epistemic : ndarray of shape (n,), optional
        Parts of v = (v₋ + v₊)/2.
    skew : ndarray of shape (n,), optional
        d with h±² = h²(1 ± d); None where noise is symmetric.
    shape : ResidualShape, optional
        g, and the law of the residuals; symmetric by default.
    target_map : TargetMap, optional
        T; the identity by default.
    targets : TargetRange, optional
        What training targets were, for the ``support`` of scores.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps.estimators.local_law import LocalLaw
    >>> law = LocalLaw.symmetric(np.array([1.0, 5.0]), np.array([0.5, 2.0]))
    >>> law.score([2.0, 3.0])
    array([ 2., -1.])
    >>> lower, upper = law.interval(np.array([-1.0]), np.array([1.0]))
    >>> lower.round(6).ravel(), upper.round(6).ravel()
    (array([0.5, 3. ]), array([1.5, 7. ]))
    """

    centre: Array
    below: Array
    above: Array
    aleatoric: Array | None = None
    epistemic: Array | None = None
    skew: Array | None = None
    shape: ResidualShape = field(default_factory=ResidualShape)
    target_map: TargetMap = field(default_factory=Identity)
    targets: TargetRange | None = None

    @classmethod
    def symmetric(cls, mu: Array, std: Array) -> Self:
        """The law of a model that gives μ and √v alone."""
        return cls(mu, std, std)

    @classmethod
    def from_parts(
        cls,
        mu: Array,
        aleatoric: Array,
        epistemic: Array,
        skew: Array | None = None,
        shape: ResidualShape | None = None,
        target_map: TargetMap | None = None,
        targets: TargetRange | None = None,
    ) -> Self:
        """The law of both parts of v: v± = h²(1 ± d) + φᵀΣφ."""
        return cls(
            mu,
            *_sides(aleatoric, epistemic, skew),
            aleatoric,
            epistemic,
            skew,
            shape or ResidualShape(),
            target_map or Identity(),
            targets,
        )

    def __len__(self) -> int:
        return len(self.centre)

    @property
    def is_plain(self) -> bool:
        """Whether it is symmetric and unmapped, so that μ and √v say it all."""
        same = (self.shape.curve, self.target_map)
        return self.below is self.above and all(isinstance(f, Identity) for f in same)

    def score(self, y: ArrayLike) -> Array:
        """Signed scores of targets (n,) or (n, m); +∞ outside the domain of T."""
        z = self.target_map.forward(y)
        centre, below, above = self.centre, self.below, self.above
        if z.ndim == 2:
            centre, below, above = centre[:, None], below[:, None], above[:, None]
        scale = above
        if self.below is not self.above:
            scale = np.where(z < centre, below, above)
        score = self.shape.curve.forward((z - centre) / scale)
        return np.where(np.isnan(score), np.inf, score)

    def position(self, y: ArrayLike) -> Array:
        """Scores of any values: −∞ below the domain of T, +∞ above it."""
        score = self.score(y)
        values = np.asarray(y, dtype=np.float64)
        middle = self.median if values.ndim == 1 else self.median[:, None]
        below = np.isnan(self.target_map.forward(values)) & (values < middle)
        return np.where(below, -np.inf, score)

    def quantile(self, score: ArrayLike) -> Array:
        """Targets (n, m) with the signed scores (m,) or (n, m)."""
        r = self.shape.curve.inverse(np.atleast_1d(np.asarray(score, dtype=np.float64)))
        return self._back(self.centre[:, None] + self._scale(r) * r)

    def interval(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Ends (n, m) at signed scores (m,), rounded outwards."""
        ends = []
        for score, side in ((lower, -1.0), (upper, 1.0)):
            r = residual_end(self.shape, score, side)
            step = self._scale(r) * r
            z = self.centre[:, None] + step
            inner = (step != 0) & np.isfinite(z)
            moved = np.where(inner, np.nextafter(z, side * np.inf), z)
            ends.append(self.target_map.end(moved, side))
        return ends[0], ends[1]

    @property
    def noise_alone(self) -> "LocalLaw":
        """The law with v± = h±², as if there were no lack of data."""
        if self.aleatoric is None or self.epistemic is None:
            return self
        none = np.zeros_like(self.epistemic)
        below, above = _sides(self.aleatoric, none, self.skew)
        return replace(self, below=below, above=above, epistemic=none)

    @property
    def prediction(self) -> Array:
        """Mean of y: μ, or under a map the mean over the law of the residuals."""
        if isinstance(self.target_map, Identity):
            return self.centre
        return np.asarray(self._nodes().mean(axis=1))

    @property
    def median(self) -> Array:
        """Target whose signed score is zero: half of the law lies on each side."""
        return self.quantile(0.0)[:, 0]

    @property
    def std(self) -> Array:
        """√v, or under a map the standard deviation of y over the law."""
        return self.parts.std if self.aleatoric is not None else self.above

    @property
    def parts(self) -> Parts:
        """Prediction and both parts of its variance, in units of y.

        Under a map they are the variance of y over the law, divided as v is in z.
        """
        if self.aleatoric is None or self.epistemic is None:
            raise ValueError("Got a law of μ and √v alone, without the parts of v.")
        if isinstance(self.target_map, Identity):
            return Parts(self.centre, self.aleatoric, self.epistemic)
        nodes = self._nodes()
        variance = np.maximum(nodes.var(axis=1), np.finfo(np.float64).tiny)
        share = self.epistemic / (self.aleatoric + self.epistemic)
        return Parts(nodes.mean(axis=1), variance * (1 - share), variance * share)

    def take(self, rows: slice) -> "LocalLaw":
        """The law of some of the rows."""
        names = ("centre", "below", "above", "aleatoric", "epistemic", "skew")
        some = {k: v[rows] for k in names if (v := getattr(self, k)) is not None}
        if self.below is self.above:
            some["below"] = some["above"]
        return replace(self, **some)

    def _nodes(self) -> Array:
        """Targets (n, n_nodes) of equal probability, finite."""
        r = self.shape.nodes
        z = self.centre[:, None] + self._scale(r) * r
        y = self._back(z)
        if np.isnan(y).any():  # beyond the image of a transformer: the last value known
            y = np.fmax.accumulate(y, axis=1)
            y = np.fmin.accumulate(y[:, ::-1], axis=1)[:, ::-1]
        largest = np.finfo(np.float64).max / len(r)
        return np.clip(y, -largest, largest)

    def _scale(self, r: Array) -> Array:
        """Scale (n, m) on the side of each residual (m,) or (n, m)."""
        if self.below is self.above:
            return self.above[:, None]
        return np.where(r < 0, self.below[:, None], self.above[:, None])

    def _back(self, z: Array) -> Array:
        """T⁻¹(z), infinite where z is."""
        finite = np.isfinite(z)
        return np.where(finite, self.target_map.inverse(np.where(finite, z, 0.0)), z)


def _sides(
    aleatoric: Array, epistemic: Array, skew: Array | None
) -> tuple[Array, Array]:
    """√v₋ and √v₊; one array where noise is symmetric."""
    if skew is None:
        std: Array = np.sqrt(aleatoric + epistemic)
        return std, std
    return (
        np.sqrt(aleatoric * (1 - skew) + epistemic),
        np.sqrt(aleatoric * (1 + skew) + epistemic),
    )
