"""Damaged and hostile files, full disks and sudden death."""

import errno
import json
import os
import pathlib
import pickle
import resource
import signal
import stat
import struct
import time

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny
from safetensors import safe_open
from safetensors.torch import save_file

from mapie_claps import files, load, save
from mapie_claps.exceptions import FileFormatError

X, Y = heteroscedastic(60)


def predictions(model):
    return np.stack(model.predict(X, return_std=True))


@pytest.fixture(scope="module")
def model():
    return tiny(n_members=2, n_bins=4, views=("bins", "raw")).fit(X, Y)


@pytest.fixture
def path(model, tmp_path):
    save(model, tmp_path / "model.claps")
    return tmp_path / "model.claps"


def content_of(path):
    with safe_open(path, framework="pt") as file:
        tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118
        return dict(file.metadata()), tensors


def rewrite(path, change=lambda config, tensors, metadata: None):
    """Change a file as a hostile hand would: the hash is made right again."""
    metadata, tensors = content_of(path)
    config = json.loads(metadata["config"])
    text = change(config, tensors, metadata)
    metadata["config"] = json.dumps(config) if text is None else text
    metadata["sha256"] = files._hash(metadata["config"], tensors)
    save_file(tensors, path, metadata)


def test_every_changed_byte_is_noticed(path):
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(len(content), size=60):
        changed = bytearray(content)
        changed[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        with pytest.raises(FileFormatError, match="Cannot load"):
            load(path)


@pytest.mark.parametrize("length", [0, 5, 8, 9, 1000, -1])
def test_truncated_files(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        load(tmp_path / "nothing")


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def test_a_pickle_is_refused_unopened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.claps"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Malicious(), protocol=protocol))
        with pytest.raises(FileFormatError, match="SafetensorError"):
            load(path)
    torch.save(torch.zeros(3), path)
    with pytest.raises(FileFormatError, match="SafetensorError"):
        load(path)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]},
        {"dtype": "F64", "shape": [2**31, 2**31], "data_offsets": [0, 64]},
        {"dtype": "F64", "shape": [-1], "data_offsets": [0, 64]},
        {"dtype": "F64", "shape": [8], "data_offsets": [64, 0]},
        {"dtype": "F64", "shape": [8], "data_offsets": [0, 2**63]},
        {"dtype": "PICKLE", "shape": [8], "data_offsets": [0, 64]},
    ],
    ids=["giant", "overflow", "negative", "backwards", "beyond the end", "unknown"],
)
def test_headers_that_lie(tmp_path, entry):
    path = tmp_path / "model.claps"
    header = json.dumps({"__metadata__": {"format": "mapie_claps"}, "a": entry})
    raw = header.encode()
    for length in (len(raw), 2**62):
        path.write_bytes(struct.pack("<Q", length) + raw + bytes(64))
        with pytest.raises(FileFormatError, match="Cannot load"):
            load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "does not match its hash"),
        ({"colour": "red"}, "does not match its hash"),
        ({"sha256": None}, "does not match its hash"),
        ({"format": "mapie_claps 99"}, "format 'mapie_claps 99', .* version"),
        ({"format": ""}, "format ''"),
        ({"format": None}, "format None"),
        ({"config": None}, "config"),
        ({"config": "{}"}, "does not match its hash"),
    ],
)
def test_metadata_that_lies(path, change, message):
    metadata, tensors = content_of(path)
    metadata = {k: v for k, v in (metadata | change).items() if v is not None}
    save_file(tensors, path, metadata)
    with pytest.raises(FileFormatError, match=f"Cannot load .*{message}"):
        load(path)


def attribute(node, name):
    return dict(node["state"])[name]


def state_with(**values):
    def change(config, tensors, metadata):
        config["state"] += list(map(list, values.items()))

    return change


def tensor_with(ending, value):
    """A tensor replaced by what a function makes of it."""

    def change(config, tensors, metadata):
        (name,) = (k for k in tensors if k.endswith(ending))
        tensors[name] = value(tensors[name]).contiguous()

    return change


def part_with(part, **changes):
    """A part of the model whose node, or whose attributes, are others."""

    def change(config, tensors, metadata):
        node = attribute(config, part)
        own = {k: v for k, v in changes.items() if k in node}
        node.update(own)
        node.get("state", []).extend([k, v] for k, v in changes.items() if k not in own)

    return change


def renamed(name, other):
    """A tensor under another name."""

    def change(config, tensors, metadata):
        tensors[other] = tensors.pop(name)

    return change


def unknown_field(config, tensors, metadata):
    attribute(config, "sums_")["state"][0][0] = "colour"


def not_finite(tensor):
    tensor.view(-1)[0] = np.nan
    return tensor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, *_: c.update({"class": "os.system"}), "unknown class 'os.system'"),
        (lambda *_: '{"class": "Spread", "state": []}', "type Spread, but save knows"),
        (lambda *_: "[1, 2, 3]", "type list, but save knows CalibratedRegressor"),
        (lambda *_: "{'class': open('x', 'w')}", "JSONDecodeError"),
        (lambda *_: "[" * 100_000 + "]" * 100_000, "RecursionError"),
        (lambda c, *_: c.__delitem__("state"), "KeyError: 'class'"),
        (lambda c, *_: c["state"].append(["colour", 1, 2]), "length 3"),
        (state_with(scale={"class": "Popen", "state": []}), "unknown class 'Popen'"),
        (state_with(scale={"class": "../../os", "state": []}), "unknown class"),
        (state_with(scale={"class": ["os"], "state": []}), "unhashable"),
        (state_with(scale={"dict": ["a"]}), "length 1"),
        (state_with(scale={"a": 1, "b": 2}), "ValueError: too many"),
        (state_with(scale={"eval": "1"}), "KeyError: 'eval'"),
        (state_with(scale={}), "ValueError: not enough"),
        (state_with(scale={"same": 10**9}), "IndexError"),
        (state_with(scale={"dtype": "f8,(2)O"}), "unknown type"),
        (
            state_with(scale={"objects": ["a"], "shape": [10**12], "text": True}),
            "reshape",
        ),
        (state_with(__class__=3), "attribute '__class__'"),
        (state_with(predict=3), "attribute 'predict' of a ClapsRegressor"),
        (state_with(fit_id_="x"), "attribute 'fit_id_'"),
        (
            part_with("scaler_X_", transform=3),
            "attribute 'transform' of a StandardScaler",
        ),
        (
            part_with("forward_", _forward_hooks={"dict": []}),
            "attribute '_forward_hooks' of a ForwardPass",
        ),
        (unknown_field, "colour"),
        (renamed("sums_.gram", "../../outside"), r"sums_\.gram"),
        (
            lambda c, t, _: t.update(outside=torch.zeros(3)),
            "Got .'outside'., which nothing",
        ),
        # Numbers of a file, taken for addresses of objects.
        (part_with("_seen_rows", kind="|O8"), "as an array of object"),
        (part_with("_seen_rows", kind="<U1"), "as an array of <U1"),
        (tensor_with("last_layers.mean", lambda t: t[:, :-1]), "RuntimeError"),
        (tensor_with("last_layers.scale", lambda t: t[:, :-1]), "RuntimeError"),
        (tensor_with("last_layers.scale", lambda t: t.float()), "RuntimeError"),
        (tensor_with("member_weight", lambda t: t[:1]), "RuntimeError"),
        (tensor_with("encoding.column", lambda t: t + 10**8), "IndexError"),
        (tensor_with("last_layers.scale", not_finite), "without a finite"),
    ],
)
def test_files_with_a_right_hash_and_wrong_content(path, change, message):
    rewrite(path)
    load(path)
    rewrite(path, change)
    before = sorted(os.listdir(path.parent))
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match=f"Cannot load .*{message}"):
        load(path)
    assert time.perf_counter() - start < 20
    assert sorted(os.listdir(path.parent)) == before


def link_to_a_pipe(path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, link_to_a_pipe])
def test_only_files_are_replaced(make, model, tmp_path):
    path = tmp_path / "here"
    make(path)
    before = {p.name: stat.S_IFMT(p.lstat().st_mode) for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"Got path=.* is no regular file"):
        save(model, path)
    after = {p.name: stat.S_IFMT(p.lstat().st_mode) for p in tmp_path.iterdir()}
    assert after == before


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_leaves_the_old_file(path, model, function, code, monkeypatch):
    before = path.read_bytes()

    def full(*args):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        with pytest.raises(OSError, match=os.strerror(code)):
            save(model.with_prior_precision(9.0), path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    np.testing.assert_array_equal(predictions(load(path)), predictions(model))


def test_a_disk_that_fills_while_writing(path, model):
    """The kernel itself refuses, after the first kilobyte."""
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(model, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("moment", ["half written", "fsync", "replace"])
def test_a_process_killed_while_saving_leaves_the_old_file(path, model, moment):
    before = path.read_bytes()
    content = bytes(len(before))  # what the dying process would have put there
    child = os.fork()
    if child == 0:
        _die_while_writing(path, content, moment)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert path.read_bytes() == before
    np.testing.assert_array_equal(predictions(load(path)), predictions(model))
    save(model.with_prior_precision(9.0), path)  # what it left is not in the way
    assert load(path).prior_precision_ == 9.0


def _die_while_writing(path, content, moment):
    """In the child: write as ``save`` does, and be killed at the moment."""

    def die(*args):
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "half written":
        original = pathlib.Path.open

        def half(self, mode):
            file = original(self, mode)
            file.write(content[: len(content) // 2])
            file.flush()
            die()

        pathlib.Path.open = half
    else:
        setattr(os, moment, die)
    files._write_atomically(path, content)
    os._exit(1)
