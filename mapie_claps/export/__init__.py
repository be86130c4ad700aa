"""A calibrated model as one file that runs without this library.

From a row of the table to the prediction, both ends of the intervals and both parts of
the variance: an ONNX graph, or a program of ``torch.export``.
"""

from .inputs import InputColumn, graph_inputs
from .writing import to_onnx, to_torch

__all__ = ["InputColumn", "graph_inputs", "to_onnx", "to_torch"]
