"""A calibrated model as one file that runs without this library.

From the columns of a table of numbers to the prediction, both ends of the intervals and
both parts of the variance: a program of ``torch.export``, or an ONNX graph. Needs
``pip install mapie-claps[export]`` for ONNX.

Numbers that are not exact in float32 enter as tensors: onnxscript 0.7 turns Python's
scalars into float32 before it widens them.
"""

import copy
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ._validation import import_extra
from .conformal.calibrated import CalibratedRegressor
from .conformal.ends import ScoreBounds
from .conformal.support import Support, check_support
from .estimators.regressor import ClapsRegressor
from .network.target import MonotoneMap

__all__ = ["to_onnx", "to_torch"]

OUTPUTS = ("prediction", "lower", "upper", "aleatoric", "epistemic")
METADATA = "mapie_claps"
# Of both terms of an end, by which it moves outwards: sums in another order than in
# Python may differ in the last digits.
OUTWARDS = 1e-12
LARGEST = np.finfo(np.float64).max


def to_onnx(
    model: CalibratedRegressor,
    path: str | Path,
    confidence_level: float | Sequence[float] | None = None,
) -> Path:
    """Write a calibrated model as an ONNX graph.

    Parameters
    ----------
    model : CalibratedRegressor
        Calibrated, over a ``ClapsRegressor`` that was fitted with ``kernel=False`` on
        numbers without gaps.
    path : str or Path
        File to write.
    confidence_level : float or sequence of float, optional
        Levels of the intervals; None for those of the model.

    Returns
    -------
    Path
        The file. The input ``X`` is float64 of shape (n, p), the columns of the table;
        outputs are ``prediction``, ``aleatoric`` and ``epistemic`` (n,) and ``lower``
        and ``upper`` (n, n_levels), float64. The entry "mapie_claps" of its metadata is
        JSON with the levels and the names of columns and outputs.

    Notes
    -----
    Outputs are those of Python to 1e-6 of their size. A row with a gap or an infinite
    number gives NaN.

    Examples
    --------
    >>> from mapie_claps.export import to_onnx
    >>> path = to_onnx(model, "model.onnx")  # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession(path)  # doctest: +SKIP
    >>> session.run(["lower", "upper"], {"X": X[:5]})  # doctest: +SKIP
    """
    onnx = import_extra("export", "onnx", "onnxscript")
    graph, description = _intervals_of(model, confidence_level)
    if graph.forward_pass.kernel is not None:
        raise ValueError(
            "Got a model with a kernel member (weight "
            f"{graph.forward_pass.kernel_weight:.2f}), which solves a system of "
            "equations for every row and cannot be written as ONNX. Fit with "
            "ClapsRegressor(kernel=False), or use to_torch."
        )
    written = torch.onnx.export(
        _program(graph).run_decompositions(_REPLACED),
        dynamo=True,
        opset_version=18,
        input_names=["X"],
        output_names=list(OUTPUTS),
        verbose=False,
    )
    proto = written.model_proto  # type: ignore[union-attr]
    proto.metadata_props.add(key=METADATA, value=json.dumps(description))
    onnx.save(proto, str(path))
    return Path(path)


def to_torch(
    model: CalibratedRegressor,
    path: str | Path,
    confidence_level: float | Sequence[float] | None = None,
) -> Path:
    """Write a calibrated model as a program of ``torch.export``.

    Parameters
    ----------
    model : CalibratedRegressor
        Calibrated, over a ``ClapsRegressor`` that was fitted on numbers without gaps.
    path : str or Path
        File to write, by custom with the ending ``.pt2``.
    confidence_level : float or sequence of float, optional
        Levels of the intervals; None for those of the model.

    Returns
    -------
    Path
        The file, for ``torch.export.load(path).module()``, which takes X and gives the
        outputs of :func:`to_onnx` in their order. The JSON is its extra file
        "mapie_claps".

    Examples
    --------
    >>> from mapie_claps.export import to_torch
    >>> path = to_torch(model, "model.pt2")  # doctest: +SKIP
    >>> program = torch.export.load(path).module()  # doctest: +SKIP
    >>> prediction, lower, upper, *_ = program(torch.tensor(X))  # doctest: +SKIP
    """
    graph, description = _intervals_of(model, confidence_level)
    files = {METADATA: json.dumps(description)}
    torch.export.save(_program(graph), str(path), extra_files=files)
    return Path(path)


class IntervalModule(nn.Module):
    """Columns (n, p) → prediction, lower, upper, aleatoric, epistemic."""

    def __init__(
        self, estimator: ClapsRegressor, ends: ScoreBounds, support: Support
    ) -> None:
        super().__init__()
        self.forward_pass, self.scale = copy.copy(estimator.forward_), estimator.scale
        if (kernel := estimator.kernel_) is not None:
            # All rows at once: the loop over blocks cannot be traced.
            self.forward_pass._modules = dict(estimator.forward_._modules)
            self.forward_pass.kernel = copy.copy(kernel)
            vars(self.forward_pass.kernel)["predict"] = kernel.block
        self.x_mean = _constant(estimator.scaler_X_.mean_)
        self.x_scale = _constant(estimator.scaler_X_.scale_)
        self.clip = estimator.recipe_.input_clip
        self.centre, self.unit, _ = estimator._target_units()
        self.target_map, self.support = estimator.target_map_, support
        self.nodes = estimator.noise_shape_.nodes
        curve = estimator.noise_shape_.curve
        self.ends = [curve.end(ends.lower[0], -1.0), curve.end(ends.upper[0], 1.0)]

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        """Arrays (n,) and, for both ends, (n, n_levels); NaN for what is no row."""
        x = (X - self.x_mean) / self.x_scale
        if self.clip is not None:
            x = x.clamp(_constant(-self.clip), _constant(self.clip))
        mu, aleatoric, epistemic = self.forward_pass(x, self.scale)
        centre = mu * _constant(self.unit) + _constant(self.centre)
        square = _constant(self.unit**2)
        outputs = self._intervals(centre, aleatoric * square, epistemic * square)
        # Not isfinite, for which onnxscript makes float32 of 1e300: infinity.
        row = (X.abs() <= _constant(LARGEST)).all(dim=1)
        nan = _constant(np.nan)
        return tuple(
            torch.where(row if out.ndim == 1 else row[:, None], out, nan)
            for out in outputs
        )

    def _intervals(
        self, centre: Tensor, aleatoric: Tensor, epistemic: Tensor
    ) -> tuple[Tensor, ...]:
        """All outputs; see ``PredictiveDistribution``."""
        middle, scale = centre[:, None], (aleatoric + epistemic).sqrt()[:, None]
        ends = []
        for r, side in zip(self.ends, (-OUTWARDS, OUTWARDS), strict=True):
            step = scale * _constant(r)
            z = middle + step + _constant(side) * (middle.abs() + step.abs())
            ends.append(_nearest(self.support, _inverse(self.target_map, z)))
        if self.target_map.is_identity:
            return centre, *ends, aleatoric, epistemic
        limit = _constant(LARGEST / len(self.nodes))
        y = _inverse(self.target_map, middle + scale * _constant(self.nodes))
        y = y.clamp(-limit, limit)
        mean = y.mean(1)
        variance = (y - mean[:, None]).square().mean(1)
        variance = variance.clamp(_constant(np.finfo(np.float64).tiny))
        share = epistemic / (aleatoric + epistemic)
        return mean, *ends, variance * (1 - share), variance * share


def _constant(values: Any) -> Tensor:
    return torch.as_tensor(np.array(values, dtype=np.float64))


def _n_left(values: Tensor, edges: Tensor) -> Tensor:
    """How many edges are at or below each value, as searchsorted, of ONNX's own."""
    return (values.flatten()[:, None] >= edges).sum(-1).reshape(values.shape)


def _inverse(target_map: MonotoneMap, z: Tensor) -> Tensor:
    """T⁻¹(z); see ``MonotoneMap.inverse``."""
    if target_map.is_identity:
        return z
    knots, slope = target_map.z, target_map.slope
    width, rise = np.diff(target_map.x), np.diff(knots)
    left, right = slope[:-1] * width / rise, slope[1:] * width / rise
    pieces = [target_map.x[:-1], knots[:-1], width, rise, left, right]
    inside = z.clamp(_constant(knots[0]), _constant(knots[-1]))
    i = _n_left(inside, _constant(knots[1:-1]))
    x0, z0, width_, rise_, left_, right_ = (_constant(part)[i] for part in pieces)
    share = (inside - z0) / rise_
    bend = share * (left_ + right_ - 2)
    a, b = 1 - left_ + bend, left_ - bend
    t = 2 * share / (b + (b * b + 4 * a * share).clamp(min=0).sqrt())
    tail = torch.where(z < inside, _constant(slope[0]), _constant(slope[-1]))
    x = x0 + width_ * t.clamp(0, 1) + (z - inside) / tail
    y = _constant(target_map.centre) + _constant(target_map.unit) * x
    low, high = target_map.domain
    return _finite_only(z, y.clamp(_constant(low), _constant(high)))


def _nearest(support: Support, y: Tensor) -> Tensor:
    """Possible value nearest to each number; see ``Support.nearest``."""
    if support.is_everything:
        return y
    inside = y.clamp(_constant(support.low), _constant(support.high))
    if support.values is not None:
        between = (support.values[1:] + support.values[:-1]) / 2
        # Half way between two values the lower one is taken.
        after = _constant(np.nextafter(between, np.inf))
        inside = _constant(support.values)[_n_left(inside, after)]
    elif support.integer:
        inside = inside.round()
    return _finite_only(y, inside)


def _finite_only(before: Tensor, after: Tensor) -> Tensor:
    """Infinite numbers stay what they were."""
    return torch.where(before.abs() > _constant(LARGEST), before, after)


def _intervals_of(model: Any, levels: Any) -> tuple[IntervalModule, dict[str, Any]]:
    """What is to be written, and its description; refuse what cannot be."""
    if not isinstance(model, CalibratedRegressor):
        raise TypeError(
            f"Got a {type(model).__name__}, but expected a calibrated "
            "CalibratedRegressor. Take over MAPIE's object with "
            "CalibratedRegressor.from_mapie."
        )
    if levels is not None:
        model = copy.copy(model)
        model.confidence_level = levels
    estimator = model._single("an export")
    rows = model._one_rank("an export")
    if not isinstance(estimator, ClapsRegressor):
        raise TypeError(
            f"Got a {type(estimator).__name__} in an export, but expected a "
            "ClapsRegressor. Export your network yourself, and put the scores of "
            "quantiles() beside it."
        )
    if not estimator.table_.is_plain:
        raise ValueError(
            f"Got a model whose inputs are {estimator.table_.output_names}, made of "
            "text, categories, dates, gaps or by a preprocessor, which cannot be "
            "exported. Fit it on columns of numbers without gaps."
        )
    one = model._takes_one_rank(rows)
    ends: Any = rows.bounds(1 - np.asarray(model.levels), sym=one)
    support = check_support(model.support).of(estimator.target_range_)
    description = {
        "library": version("mapie-claps"),
        "fit_id": estimator.fit_id_,
        "levels": model.levels,
        "columns": estimator.table_.output_names,
        "outputs": OUTPUTS,
    }
    return IntervalModule(estimator, ends, support), description


def _program(module: IntervalModule) -> Any:
    """The traced module."""
    example = torch.zeros(3, len(module.x_mean), dtype=torch.float64)
    shapes = ({0: torch.export.Dim("rows")},)
    with torch.no_grad():
        return torch.export.export(module.eval(), (example,), dynamic_shapes=shapes)


def _cosine(x: Tensor) -> Tensor:
    """A sine instead, since onnxruntime has no cosine of float64.

    onnxscript makes float32 of scalars, so that π/2 comes in two of them.
    """
    return torch.sin(x + 1.5707963705062866 - 4.371139006309477e-08)


_REPLACED: dict[Any, Any] = {torch.ops.aten.cos.default: _cosine}
