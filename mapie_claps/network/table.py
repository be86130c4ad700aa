"""X as people have it → a matrix of finite numbers for the networks.

An array of numbers without gaps stays as it is. Categories, gaps and dates become
numbers by rules that are learned from training rows. Values that never occurred there
are marked, so that prediction can count them as lack of data.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import check_array
from torch import Tensor

from .._compat import ANY_NUMBER
from .._validation import check_unmasked
from ..exceptions import FileFormatError
from ..files.codec import saved_as
from .columns import (
    N_DONORS,
    NUMBER,
    Array,
    Codes,
    Encoded,
    FewValues,
    ManyValues,
    Mask,
    Numbers,
    Output,
)
from .dates import Dates, Difference
from .frames import Column, is_frame, read_columns, refuse_names

Block = Numbers | FewValues | ManyValues | Dates | Difference


class EncodedRows(NamedTuple):
    """Inputs of the networks for some rows."""

    values: Array  # (n, p)
    unseen: Mask | None  # (n, p), inputs that rest on unseen values; None if none do


@saved_as("table", remarks="left_out")
@dataclass(frozen=True)
class TableEncoder:
    """How the columns of X become the inputs of the networks.

    Plain data: numbers, strings, lists and arrays, in small dataclasses.
    """

    names: list[str]  # of the columns of X, x0 … where they have none
    blocks: list[Block]  # each column that is used is in one of them
    remarks: list[str]  # on columns that are not used, or not as one may expect

    @property
    def is_identity(self) -> bool:
        """Whether the inputs are the columns of X, all of them numbers without gaps."""
        return all(
            isinstance(block, Numbers) and not block.flagged for block in self.blocks
        ) and len(self.outputs()) == len(self.names)

    @property
    def n_numbers(self) -> int:
        """How many of the inputs, the first ones, are not 0 or 1."""
        return sum(out.rank == NUMBER for out in self._unordered())

    def outputs(self) -> list[Output]:
        """Inputs of the networks, with the columns that they come from."""
        outputs = self._unordered()
        return [outputs[i] for i in self.order()]

    def order(self) -> list[int]:
        """Numbers of the outputs of all blocks, in the order of the inputs."""
        outputs = self._unordered()
        return sorted(
            range(len(outputs)), key=lambda i: (outputs[i].rank, outputs[i].positions)
        )

    def _unordered(self) -> list[Output]:
        return [out for block in self.blocks for out in block.outputs(self.names)]

    def read(self, X: Any) -> "TableRows":
        """Rows of a table, checked and ready to be encoded a few at a time."""
        if is_plain(X) and self.is_identity:
            check_finite(X)
            return TableRows(self, X, {})
        columns = read_columns(X)
        codes = {
            j: block.read(columns[j])
            for block in self.blocks
            if not isinstance(block, Difference)
            for j in block.positions
        }
        return TableRows(self, np.empty((len(columns[0].values), 0)), codes)

    def donors(self) -> Array:  # (N_DONORS, p)
        """Inputs for values that occurred in training, one row per draw."""
        return np.hstack([block.donors for block in self.blocks])[:, self.order()]

    def alternatives(self, values: Array, unseen: Mask) -> Iterator[Array]:
        """The rows with their unseen values replaced by known ones, draw by draw."""
        for donor in self.donors():
            yield np.where(unseen, donor, values)

    def check_sizes(self, n_columns: int, n_inputs: int) -> None:
        """Raise unless a stored encoding fits its table and its network."""
        if len(self.names) != n_columns:  # before anything of that size is made
            raise FileFormatError(
                f"Got a table of {len(self.names)} columns, but expected {n_columns}."
            )
        codes = np.empty(0, dtype=np.int64)
        empty = TableRows(
            self, np.empty((0, n_columns)), dict.fromkeys(range(n_columns), codes)
        )
        donors, values = self.donors(), empty.encode().values
        used = {j for block in self.blocks for j in block.positions}
        if (
            not used <= set(range(n_columns))
            or donors.shape != (N_DONORS, n_inputs)
            or values.shape != (0, n_inputs)
            or not np.isfinite(donors).all()
        ):
            raise FileFormatError(
                f"Got a table of {n_columns} columns with {values.shape[1]} inputs, "
                f"but expected {n_inputs} inputs, and all numbers finite."
            )

    def n_known(self, unseen: Mask) -> NDArray[np.int64]:  # (n, p) → (n,)
        """How many values are known where one is not: of such columns the fewest."""
        counts = np.array([out.n_values for out in self.outputs()])
        fewest: NDArray[np.int64] = np.where(unseen, counts, counts.max()).min(axis=1)
        return fewest


class TableRows:
    """Rows of one table: an array of numbers as it came, or codes of each column."""

    def __init__(
        self, encoder: TableEncoder, plain: NDArray[Any], codes: dict[int, Codes]
    ) -> None:
        self.encoder, self.plain, self.codes = encoder, plain, codes
        self._order = encoder.order()
        self._as_it_is = encoder.is_identity and not codes

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, rows: slice) -> "TableRows":
        """Some of the rows."""
        part = copy.copy(self)
        part.plain = self.plain[rows]
        part.codes = {j: column[rows] for j, column in self.codes.items()}
        return part

    def encode(self) -> EncodedRows:
        """Inputs of the networks."""
        codes = self.codes
        if self._as_it_is:
            if not np.isnan(self.plain).any():
                return EncodedRows(self.plain, None)
            codes = dict(enumerate(self.plain.T))
        blocks = self.encoder.blocks
        return joined(
            [block.encode(*(codes[j] for j in block.positions)) for block in blocks],
            self._order,
        )


def joined(parts: Sequence[Encoded], order: list[int]) -> EncodedRows:
    """Inputs of all blocks in their order."""
    unseen = np.hstack([part.unseen for part in parts])[:, order]
    values = np.hstack([part.values for part in parts])[:, order]
    # One order in memory, or sums over rows would differ between kinds of tables.
    return EncodedRows(np.ascontiguousarray(values), unseen if unseen.any() else None)


def as_table(X: Any, min_rows: int = 1) -> Any:
    """X as a frame, or as an array of numbers, text or objects with two axes."""
    if is_frame(X):
        limits = ((min_rows, "sample(s)"), (1, "feature(s)"))
        for n, (least, what) in zip(X.shape, limits, strict=True):
            if n < least:
                raise ValueError(
                    f"Found array with {n} {what} (shape={X.shape}) while a minimum of "
                    f"{least} is required. Pass a larger table."
                )
        refuse_names(X)
        return X
    if isinstance(X, Tensor):
        X = X.detach().cpu().numpy()
    if type(X).__name__ in ("Series", "ChunkedArray") and np.ndim(X) == 1:
        raise ValueError(
            f"Got X as a {type(X).__name__} of {len(X)} values, but expected a table "
            "of rows and columns (Reshape your data). For one column pass "
            "X.to_frame(); one row of a table is table.iloc[[i]], in polars table[[i]]."
        )
    if hasattr(X, "collect_schema"):
        raise TypeError(
            f"Got X of type {type(X).__name__}, but expected a table in memory. Pass "
            "X.collect()."
        )
    # A sparse matrix by keys is a mapping too; check_array refuses it by name.
    if (isinstance(X, Mapping) and not issparse(X)) or (
        isinstance(X, list | tuple) and len(X) and isinstance(X[0], Mapping)
    ):
        raise TypeError(
            f"Got X as a {type(X).__name__} with named values, but expected a table. "
            "Pass pandas.DataFrame(X), for one record pandas.DataFrame([record])."
        )
    check_unmasked("X", X)
    if isinstance(X, list | tuple) and np.asarray(X).dtype.kind in "US":
        X = np.asarray(X, dtype=object)  # or its numbers would become text
    return check_array(
        X, dtype=None, ensure_min_samples=min_rows, input_name="X", **ANY_NUMBER
    )


def check_rows(X: Any) -> None:
    """Raise for values that no column may hold, whatever is fitted on them."""
    table = as_table(X)
    if is_plain(table):
        check_finite(table)
    else:
        read_columns(table)


def is_plain(X: Any) -> bool:
    """Whether a table is an array of numbers."""
    return isinstance(X, np.ndarray) and X.dtype.kind in "fiub"


def check_finite(X: NDArray[Any]) -> None:
    """Raise for the first infinite number of an array."""
    with np.errstate(over="ignore", invalid="ignore"):
        if X.dtype.kind != "f" or np.isfinite(X.sum(dtype=np.float64)):
            return
    infinite = np.argwhere(np.isinf(X))
    if len(infinite):
        row, column = infinite[0].tolist()
        Column(f"column {column}", "number", X[:, column]).refuse_infinity(row)
