"""A calibrated model → a file for onnxruntime or torch, with what a service checks."""

import copy
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._validation import check_choice
from ..conformal.calibration import Calibrated
from ..conformal.frozen import frozen_rule
from .graph import OUTPUTS, IntervalGraph
from .inputs import input_columns

METADATA = "mapie_claps"
ROWS = 3  # of the example that the graph is traced with
OPSET = 18


def to_onnx(
    model: Calibrated,
    path: str | Path,
    confidence_level: float | Sequence[float] | None = None,
    unseen: str = "nan",
) -> Path:
    """Write a calibrated model as an ONNX graph.

    Parameters
    ----------
    model : CalibratedRegressor or StreamingConformalRegressor
        Calibrated, over a ``ClapsRegressor`` fitted with ``kernel=False``.
    path : str or Path
        File to write.
    confidence_level : float or sequence of float, optional
        Levels of the intervals; None for those of the model.
    unseen : {"nan", "draws"}, default="nan"
        What a row gives with a value that never occurred in training: NaN, so that the
        service sees it, or what Python gives, for which each row is computed with 16
        known values in its place, at 17 times the cost.

    Returns
    -------
    Path
        The file. Inputs are the columns of the table, float64 or int64 of shape (n,);
        outputs are ``prediction``, ``aleatoric`` and ``epistemic`` (n,) and ``lower``
        and ``upper`` (n, n_levels), float64. The entry "mapie_claps" of its metadata is
        JSON with levels, inputs (their columns, types, categories) and outputs.

    Notes
    -----
    Outputs are those of Python to 1e-6 of their size. An infinite number, or a code
    that no category has, gives NaN.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> from mapie_claps.export import graph_inputs, to_onnx
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = CalibratedRegressor(
    ...     ClapsRegressor.paper(random_state=0), random_state=0).fit(X, X[:, 0])
    >>> path = to_onnx(model, "model.onnx")  # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession(path)  # doctest: +SKIP
    >>> session.run(["lower", "upper"], graph_inputs(model, X[:5]))  # doctest: +SKIP
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "to_onnx needs onnx and onnxscript: pip install 'mapie-claps[export]'."
        ) from error
    program, description = _exported(model, confidence_level, unseen)
    written = torch.onnx.export(
        program.run_decompositions(_REPLACED),
        dynamo=True,
        opset_version=OPSET,
        input_names=[column["name"] for column in description["inputs"]],
        output_names=list(OUTPUTS),
        verbose=False,
    )
    if written is None:
        raise RuntimeError("Got no program from torch.onnx.export.")
    graph = written.model_proto
    # torch names the number of rows by a number of its own.
    values = [*graph.graph.input, *graph.graph.output, *graph.graph.value_info]
    symbol = graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_param = "rows"
    graph.metadata_props.add(key=METADATA, value=json.dumps(description))
    onnx.save(graph, str(path))
    return Path(path)


def to_torch(
    model: Calibrated,
    path: str | Path,
    confidence_level: float | Sequence[float] | None = None,
    unseen: str = "nan",
) -> Path:
    """Write a calibrated model as a program of ``torch.export``.

    Parameters
    ----------
    model : CalibratedRegressor or StreamingConformalRegressor
        As for :func:`to_onnx`.
    path : str or Path
        File to write, by custom with the ending ``.pt2``.
    confidence_level : float or sequence of float, optional
        Levels of the intervals; None for those of the model.
    unseen : {"nan", "draws"}, default="nan"
        As for :func:`to_onnx`.

    Returns
    -------
    Path
        The file, for ``torch.export.load(path).module()``. It takes a dictionary of
        the columns, in the order of the description, and gives the outputs of
        :func:`to_onnx` in their order. The description is the extra file "mapie_claps".

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> from mapie_claps.export import graph_inputs, to_torch
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = CalibratedRegressor(
    ...     ClapsRegressor.paper(random_state=0), random_state=0).fit(X, X[:, 0])
    >>> rows = graph_inputs(model, X[:5])
    >>> path = to_torch(model, "model.pt2")  # doctest: +SKIP
    >>> program = torch.export.load(path).module()  # doctest: +SKIP
    >>> program({k: torch.tensor(v) for k, v in rows.items()})  # doctest: +SKIP
    """
    program, description = _exported(model, confidence_level, unseen)
    files = {METADATA: json.dumps(description)}
    torch.export.save(program, str(path), extra_files=files)
    return Path(path)


def _cosine(x: Tensor) -> Tensor:
    """A sine instead, since onnxruntime has no cosine of float64.

    onnxscript makes float32 of scalars, so that π/2 comes in two of them.
    """
    return torch.sin(x + 1.5707963705062866 - 4.371139006309477e-08)


_REPLACED: dict[Any, Any] = {torch.ops.aten.cos.default: _cosine}


def _exported(
    model: Calibrated, levels: Any, unseen: str
) -> tuple[Any, dict[str, Any]]:
    """A traced program, and its description as plain data."""
    if not isinstance(model, Calibrated):
        raise TypeError(
            f"Got a {type(model).__name__}, but expected a calibrated "
            "CalibratedRegressor or StreamingConformalRegressor. Take over MAPIE's "
            "object with CalibratedRegressor.from_mapie."
        )
    check_choice("unseen", unseen, ("nan", "draws"), "Use 'nan' if unsure.")
    if levels is not None:
        model = copy.copy(model)
        model.confidence_level = levels
    rule, estimator = frozen_rule(model, "an export"), model._fitted()
    if estimator.kernel_ is not None:
        raise ValueError(
            f"Got a model with a kernel member (weight {estimator.kernel_.weight:.2f}),"
            " which solves a system of equations for every row and cannot be exported. "
            "Fit with ClapsRegressor(kernel=False)."
        )
    columns = input_columns(estimator.table_)
    graph = IntervalGraph(estimator, rule, columns, unseen == "draws").eval()
    rows = torch.export.Dim("rows")
    example: dict[str, Tensor] = {
        c.name: torch.zeros(ROWS, dtype=getattr(torch, c.dtype)) for c in columns
    }
    with torch.no_grad():
        program = torch.export.export(
            graph,
            (example,),
            dynamic_shapes=({c.name: {0: rows} for c in columns},),
        )
    by_level = {"lower", "upper"}
    description = {
        "library": version("mapie-claps"),
        "fingerprint": estimator.fingerprint_,
        "levels": rule.levels,
        "unseen": unseen,
        "inputs": [column.as_dict() for column in columns],
        "outputs": [
            {
                "name": name,
                "dtype": "float64",
                "shape": ["rows", len(rule.levels)] if name in by_level else ["rows"],
            }
            for name in OUTPUTS
        ],
    }
    return program, description
