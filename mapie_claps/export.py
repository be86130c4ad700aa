"""A calibrated model as one file that runs without this library.

From the columns of a table of numbers to the prediction, both ends of the intervals and
both parts of the variance: a program of ``torch.export``, or an ONNX graph. Needs
``pip install mapie-claps[export]`` for ONNX.

Numbers that are not exact in float32 enter as tensors: onnxscript 0.7 turns Python's
scalars into float32 before it widens them.
"""

import copy
import json
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ._validation import import_extra
from .conformal.calibrated import CalibratedRegressor
from .conformal.distribution import ScoreBounds
from .conformal.support import Support, check_support
from .estimators.predictive import PredictiveDistribution
from .estimators.regressor import ClapsRegressor
from .network.target import NoiseShape

__all__ = ["to_onnx", "to_torch"]

OUTPUTS = ("prediction", "lower", "upper", "aleatoric", "epistemic")
METADATA = "mapie_claps"
# Of both terms of an end, by which it moves outwards: sums in another order than in
# Python may differ in the last digits.
OUTWARDS = 1e-12


def to_onnx(model: CalibratedRegressor, path: str | Path) -> Path:
    """Write a calibrated model as an ONNX graph.

    Parameters
    ----------
    model : CalibratedRegressor
        Calibrated, over a ``ClapsRegressor`` that was fitted with ``kernel=False`` on
        numbers without gaps.
    path : str or Path
        File to write.

    Returns
    -------
    Path
        The file. The input ``X`` is float64 of shape (n, p), the columns of the table;
        outputs are ``prediction``, ``aleatoric`` and ``epistemic`` (n,) and ``lower``
        and ``upper`` (n, n_levels), those of Python to 1e-6 of their size. A row with a
        gap or an infinite number gives NaN. The entry "mapie_claps" of the metadata is
        JSON with the levels and the names of columns and outputs.

    Examples
    --------
    >>> from mapie_claps.export import to_onnx
    >>> path = to_onnx(model, "model.onnx")  # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession(path)  # doctest: +SKIP
    >>> session.run(["lower", "upper"], {"X": X[:5]})  # doctest: +SKIP
    """
    onnx = import_extra("export", "onnx", "onnxscript")
    graph, description = _intervals_of(model)
    if graph.forward_pass.kernel is not None:
        raise ValueError(
            "Got a model with a kernel member, which solves a system of equations for "
            "every row and cannot be written as ONNX. Fit with "
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
    proto.metadata_props.add(key=METADATA, value=description)
    onnx.save(proto, str(path))
    return Path(path)


def to_torch(model: CalibratedRegressor, path: str | Path) -> Path:
    """Write a calibrated model as a program of ``torch.export``.

    Parameters
    ----------
    model, path
        As for :func:`to_onnx`, by custom with the ending ``.pt2``; a kernel member may
        be there.

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
    graph, description = _intervals_of(model)
    torch.export.save(_program(graph), str(path), extra_files={METADATA: description})
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
            self.forward_pass.kernel = copy.copy(kernel)
            vars(self.forward_pass.kernel)["predict"] = kernel.block
        self.x_mean = _constant(estimator.scaler_X_.mean_)
        self.x_scale = _constant(estimator.scaler_X_.scale_)
        self.clip = estimator.recipe_.input_clip
        self.centre, self.unit = map(_constant, estimator._target_units()[:2])
        curve = estimator.noise_shape_.curve
        self.target_map = _of_tensors(estimator.target_map_)
        self.support = _of_tensors(support)
        self.shape = NoiseShape(nodes=_constant(estimator.noise_shape_.nodes))
        self.ends = [curve.end(ends.lower[0], -1.0), curve.end(ends.upper[0], 1.0)]

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        """Arrays (n,) and, for both ends, (n, n_levels); NaN for what is no row."""
        x = (X - self.x_mean) / self.x_scale
        if self.clip is not None:
            x = x.clamp(_constant(-self.clip), _constant(self.clip))
        mu, *parts = self.forward_pass(x, self.scale)
        centre = mu * self.unit + self.centre
        noise, lack = (part * self.unit**2 for part in parts)
        scale, T = (noise + lack).sqrt(), self.target_map
        rows = PredictiveDistribution(centre, scale, noise, lack, self.shape, T)
        ends = []
        for r, side in zip(self.ends, (-1.0, 1.0), strict=True):
            step = scale[:, None] * _constant(r)
            away = _constant(side * OUTWARDS) * (centre.abs()[:, None] + step.abs())
            z: Any = centre[:, None] + step + away
            ends.append(self.support.nearest(T.inverse(z), side))
        # Not isfinite, for which onnxscript makes float32 of 1e300: infinity.
        nan = torch.where((X.abs() < torch.inf).all(dim=1), 0.0, torch.nan)
        outputs: Any = (rows.mean, *ends, *rows.variance)
        return tuple(out + (nan if out.ndim == 1 else nan[:, None]) for out in outputs)


def _constant(values: Any) -> Any:
    return torch.as_tensor(np.array(values, dtype=np.float64))


def _of_tensors(made: Any) -> Any:
    """The same formula, of a dataclass of numbers and arrays, for tensors."""
    cls: Any = type(type(made).__name__, (type(made),), {"xp": torch})
    found = {f.name: getattr(made, f.name) for f in fields(made)}
    numbers = {k: v for k, v in found.items() if isinstance(v, float | np.ndarray)}
    return cls(**found | {name: _constant(v) for name, v in numbers.items()})


def _intervals_of(model: Any) -> tuple[IntervalModule, str]:
    """What is to be written, and its description; refuse what cannot be."""
    ours = isinstance(model, CalibratedRegressor)
    estimator = model._single("an export") if ours else model
    if not (ours and isinstance(estimator, ClapsRegressor)):
        raise TypeError(
            f"Got a {type(estimator).__name__}, but expected a CalibratedRegressor, "
            "with a ClapsRegressor. Take over MAPIE's object with from_mapie. Export a "
            "network of yours yourself, with the scores of quantiles() beside it."
        )
    if not estimator.table_.is_plain:
        raise ValueError(
            f"Got a model whose inputs are {estimator.table_.output_names}, made of "
            "text, categories, dates, gaps or by a preprocessor, which cannot be "
            "exported. Fit it on columns of numbers without gaps."
        )
    rows = model._one_rank("an export")
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
    return IntervalModule(estimator, ends, support), json.dumps(description)


def _program(module: IntervalModule) -> Any:
    """The traced module."""
    example = torch.zeros(3, len(module.x_mean), dtype=torch.float64)
    shapes = ({0: torch.export.Dim("rows")},)
    with torch.no_grad():
        return torch.export.export(
            module.eval(), (example,), dynamic_shapes=shapes, strict=False
        )


def _cosine(x: Tensor) -> Tensor:
    """A sine instead, since onnxruntime has no cosine of float64.

    onnxscript makes float32 of scalars, so that π/2 comes in two of them.
    """
    return torch.sin(x + 1.5707963705062866 - 4.371139006309477e-08)


def _searchsorted(edges: Tensor, values: Tensor, side: str = "left", **_: Any) -> Any:
    """How many edges are below each value, or at it, which ONNX does not know."""
    column = values.flatten()[:, None]
    found = column >= edges if side == "right" else column > edges
    return found.sum(1).reshape(values.shape)


_REPLACED: dict[Any, Any] = {
    torch.ops.aten.cos.default: _cosine,
    torch.ops.aten.searchsorted.Tensor: _searchsorted,
}
