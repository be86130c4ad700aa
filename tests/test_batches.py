"""Arrays, tensors and loaders as batches; checks of arguments and of rows."""

import datetime

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mapie_claps._validation import (
    check_choice,
    check_integer,
    check_number,
    check_real,
    check_share,
    new_tensors_on,
    warn_if_reordered,
)
from mapie_claps.network.batches import (
    batches_of,
    column,
    draw_seed,
    inputs,
    is_batches,
    row_hashes,
)

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10.0)


def loader():
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return DataLoader(data, batch_size=4, generator=torch.Generator())


def joined(found):
    parts = list(found)
    return (
        torch.cat([b.x for b in parts]),
        torch.cat([b.y for b in parts]),
        torch.cat([b.weight for b in parts]),
    )


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_arrays_tensors_and_loaders_give_the_same_rows(size):
    weight = np.linspace(1, 2, 10)
    triples = [(X[:7], Y[:7], weight[:7]), (X[7:], Y[7:], weight[7:])]
    for found, w in (
        (batches_of(X, Y, size=size), np.ones(10)),
        (batches_of(X.tolist(), Y[:, None], weight, size=size), weight),
        (batches_of(torch.from_numpy(X), torch.from_numpy(Y), size=size), np.ones(10)),
        (batches_of(loader(), size=size, need_y=True), np.ones(10)),
        (batches_of(iter(triples), size=size), weight),
        (batches_of(triples, size=size), weight),
    ):
        for values, expected in zip(joined(found), (X, Y, w), strict=True):
            np.testing.assert_array_equal(values, expected)
    sizes = [len(b.weight) for b in batches_of(X, size=4)]
    assert sizes == [4, 4, 2]


def test_what_counts_as_batches():
    pairs = [(X, Y), (X, Y)]
    for yes in (
        loader(),
        pairs,
        tuple(pairs),
        iter(pairs),
        [(X, Y, Y)],
        (x for x in X),
    ):
        assert is_batches(yes)
    frame = pd.DataFrame(X)
    for no in (X, X.tolist(), torch.ones(2, 2), frame, [[1.0, 2.0]], [], list(X)):
        assert not is_batches(no)


def test_the_type_of_x_stays_and_odd_memory_is_copied():
    integer = np.arange(6, dtype=np.int32).reshape(3, 2)
    assert inputs(integer).dtype == torch.int32
    assert inputs(torch.ones(3, 2, 2).half()).dtype == torch.float16
    frozen = X.copy()
    frozen.flags.writeable = False
    for odd in (frozen, X[::-1], np.asfortranarray(X), X.astype(">f8")):
        np.testing.assert_array_equal(inputs(odd), odd)


def test_a_check_sees_what_the_user_gave_and_may_replace_it():
    seen = []

    def check(part):
        seen.append(type(part))
        return np.asarray(part) + 1

    frame = pd.DataFrame(X)
    found = list(batches_of([(frame, Y), (X, Y)], size=6, check=check))
    assert seen == [pd.DataFrame, np.ndarray]
    assert [len(b.x) for b in found] == [6, 4, 6, 4]
    np.testing.assert_array_equal(found[1].x, X[6:] + 1)


def first(*args, **options):
    return next(batches_of(*args, **({"size": 4} | options)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: first(X, need_y=True), "the target y is None"),
        (lambda: first([(X, None)], need_y=True), r"batch \(ndarray, NoneType\), but"),
        (lambda: first(loader(), Y), "Got y together with batches as X"),
        (lambda: first(loader(), weight=Y), "Got sample_weight together with batches"),
        (lambda: first(iter([X]), need_y=True), r"batch \(ndarray\), but expected"),
        (
            lambda: first(iter([(X, Y, Y, Y)])),
            r"batch \(n.*, n.*, n.*, n.*\).*or X alone",
        ),
        (
            lambda: first(iter([({"a": 1}, Y)])),
            r"batch \(dict, ndarray\).* as one array",
        ),
        (lambda: first(X, Y[:3]), r"Got y of shape \(3,\) for 10 rows of X"),
        (lambda: first(X, Y, -Y), r"Got sample_weight=-9.0 in row"),
        (lambda: first(np.ones(3)), "Reshape"),
        (lambda: first(torch.ones(3)), r"Got X of shape \(3,\)"),
        (lambda: first(X * np.nan), "X contains NaN"),
        (lambda: first(np.ma.masked_equal(X, 3)), "masked array with 1 masked"),
        (lambda: first(torch.eye(2).to_sparse()), "torch.sparse_coo, on"),
        (lambda: first(torch.eye(2) * 1j), "tensor of torch.complex64"),
        (lambda: first(torch.empty(2, 2, device="meta")), "the device 'meta'"),
        (lambda: column("y", [1.0, "a"], 2), "Got 'a' in y, row 1"),
        (lambda: column("y", torch.tensor([1.0, torch.inf]), 2), "Got inf in y, row 1"),
        (lambda: column("y", [1.0, None], 2), "Got None in y, row 1"),
        (lambda: column("y", [[1.0], [1.0, 2.0]], 2), "different lengths"),
        (lambda: column("y", [1j, 2], 2), "complex128, but expected real"),
        (lambda: column("y", pd.to_datetime(["2024-01-01"]), 1), "datetime64"),
        (
            lambda: column("y", [datetime.date(2024, 1, 1)], 1),
            r"Got datetime.date\(2024",
        ),
    ],
)
def test_rows_that_are_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_hashes_of_rows():
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(5_000, 3)), rng.normal(size=5_000)
    hashes = row_hashes(rows, y)
    assert hashes.dtype == np.uint64
    assert len(np.unique(hashes)) == len(rows)
    order = rng.permutation(len(rows))
    np.testing.assert_array_equal(row_hashes(rows[order], y[order]), hashes[order])
    np.testing.assert_array_equal(row_hashes(torch.from_numpy(rows), y), hashes)
    assert not np.isin(row_hashes(rows, y + 1), hashes).any()
    assert not np.isin(row_hashes(rows), hashes).any()
    assert row_hashes(np.zeros((1, 2))) == row_hashes(-np.zeros((1, 2)))
    assert len(row_hashes(rows.reshape(1_000, 5, 3))) == 1_000
    # The smallest hashes are of rows like all, also where rows are small integers.
    whole = np.arange(4_000.0)
    chosen = whole[np.argsort(row_hashes(whole[:, None]))[:500]]
    np.testing.assert_allclose(np.quantile(chosen, [0.25, 0.5]), [1000, 2000], rtol=0.1)


def test_seeds():
    assert draw_seed(3) == draw_seed(3)
    assert draw_seed(3) != draw_seed(4)
    state = np.random.get_state()[1].copy()
    assert draw_seed(None) != draw_seed(None)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    generator = np.random.RandomState(0)
    assert draw_seed(generator) != draw_seed(generator)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_number("a", 2, low=0, high=1, hint="Do."), r"a=2.*\[0, 1\]. Do"),
        (lambda: check_number("a", 0, low=0, low_open=True, hint=""), r"in \(0, inf\)"),
        (lambda: check_number("a", True, hint=""), r"a=True.*\(-inf, inf\)"),
        (lambda: check_number("a", np.nan, hint=""), "a=nan"),
        (lambda: check_share("a", 1.0, hint=""), r"a=1.0.*\(0, 1\)"),
        (lambda: check_integer("a", 2.0, low=1, hint=""), "integer of at least 1"),
        (lambda: check_integer("a", 0, low=1, hint=""), "a=0"),
        (lambda: check_integer("a", False, low=0, hint=""), "a=False"),
        (lambda: check_choice("a", 1, [True, "b"], ""), "a=1.*one of True, 'b'"),
        (lambda: check_real("a", np.ma.masked_equal([1, 2], 2)), "leave rows out"),
    ],
)
def test_arguments_that_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rows_in_another_order_are_told():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=[0, 1, 2])
    with pytest.warns(UserWarning, match=r"same index in another order.*y.loc"):
        warn_if_reordered(frame, pd.Series([1.0, 2, 3], index=[2, 1, 0]))
    for index in ([0, 1, 2], [5, 6, 7], pd.Index([0, 1, 2], dtype="Int64")):
        warn_if_reordered(frame, pd.Series([1.0, 2, 3], index=index))
    warn_if_reordered(frame, np.ones(3))
    warn_if_reordered(frame, pd.Series([1.0]))


def test_new_tensors_are_on_the_device_that_is_asked_for():
    torch.set_default_device("meta")
    try:
        with new_tensors_on("cpu"):
            assert torch.empty(1).device.type == "cpu"
        with new_tensors_on("meta"):
            assert torch.empty(1).device.type == "meta"
    finally:
        torch.set_default_device(None)
    with new_tensors_on("cpu"):
        assert torch.empty(1).device.type == "cpu"
