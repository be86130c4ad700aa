"""Hostile files, full disks and sudden death, beyond test_persistence.py."""

import errno
import hashlib
import json
import os
import pathlib
import resource
import signal
import struct
import time

import numpy as np
import pytest
import torch
from conftest import heteroscedastic, tiny
from safetensors import safe_open
from safetensors.torch import save_file

from mapie_claps import load, save
from mapie_claps.exceptions import FileFormatError
from mapie_claps.files import container as _file_format
from mapie_claps.network import stored

X, Y = heteroscedastic(60)


def predictions(model):
    return np.stack(model.predict(X, return_std=True))


@pytest.fixture(scope="module")
def model():
    return tiny(n_bins=4).fit(X, Y)


@pytest.fixture
def path(model, tmp_path):
    save(model, tmp_path / "model.claps")
    return tmp_path / "model.claps"


def rewrite(path, change):
    """Change a file as a hostile hand would, with hashes made right again."""
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118
    config = json.loads(metadata["config"])
    text = change(config, tensors, metadata)
    text = json.dumps(config) if text is None else text
    metadata["config"] = text
    metadata["config_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    metadata["tensors_sha256"] = _file_format.hash_tensors(tensors)
    save_file(tensors, path, metadata)


def network_of(config):
    return config["regressor"]["fitted"]["dict"]["network_"]["ensemble"]


def climbing_names(config, tensors, metadata):
    """Tensor names that look like paths out of the folder."""
    name = "fitted.model_.posterior.mean"
    tensors["../../outside"] = tensors.pop(name)


def climbing_class(config, tensors, metadata):
    config["../../outside/regressor"] = config.pop("regressor")


def terabytes(config, tensors, metadata):
    network_of(config)["n_columns"] = 10**12


def hundred_million_columns(config, tensors, metadata):
    """Few enough to be allocated, were they not compared with the tensors."""
    network_of(config)["n_columns"] = 10**8


def bins_of_a_far_column(config, tensors, metadata):
    (name,) = (k for k in tensors if k.endswith("encoding.column"))
    tensors[name][-1] = 10**8


def wide_layer_without_bytes(config, tensors, metadata):
    """A tensor with an empty axis may declare any size for the others."""
    (name,) = (k for k in tensors if k.endswith("trunk.0.weight"))
    tensors[name] = torch.empty(0, tensors[name].shape[1], 10**8)


def no_members(config, tensors, metadata):
    for name, tensor in tensors.items():
        if ".network_.state." in name and not name.rpartition(".encoding.")[0]:
            tensors[name] = tensor[:0].clone()


def negative_columns(config, tensors, metadata):
    network_of(config)["n_columns"] = -1


def text_for_a_number(config, tensors, metadata):
    network_of(config)["variance_floor"] = "__import__('os').system('true')"


def not_json(config, tensors, metadata):
    return "{'class': open('x', 'w')}"


def deep_json(config, tensors, metadata):
    return "[" * 100_000 + "]" * 100_000


def a_list(config, tensors, metadata):
    return "[1, 2, 3]"


def no_state(config, tensors, metadata):
    del config["regressor"]["params"]


@pytest.mark.parametrize(
    "change",
    [
        climbing_names,
        climbing_class,
        terabytes,
        negative_columns,
        text_for_a_number,
        not_json,
        deep_json,
        a_list,
        no_state,
    ],
)
def test_crafted_configuration(path, change):
    rewrite(path, lambda *args: None)
    load(path)
    rewrite(path, change)
    files = sorted(os.listdir(path.parent))
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(path)
    assert time.perf_counter() - start < 20
    assert sorted(os.listdir(path.parent)) == files


@pytest.mark.parametrize(
    "change",
    [
        terabytes,
        hundred_million_columns,
        bins_of_a_far_column,
        wide_layer_without_bytes,
        no_members,
        negative_columns,
    ],
)
def test_sizes_are_refused_before_anything_is_made(path, change, monkeypatch):
    def make(*args, **kwargs):
        raise MemoryError("a network was made")

    rewrite(path, change)
    with monkeypatch.context() as patch:
        patch.setattr(stored, "HeteroscedasticNetwork", make)
        patch.setattr(torch, "bincount", make)
        with pytest.raises(FileFormatError, match="Got (a network of|bins for)"):
            load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"config_sha256": "0" * 64},
        {"tensors_sha256": "0" * 64},
        {"format_version": "1; import os"},
        {"format_version": "99"},
        {"format": ""},
    ],
)
def test_metadata_that_lies(path, change):
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata()) | change
        tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata)
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(path)


@pytest.mark.parametrize("missing", ["format", "format_version", "config"])
def test_metadata_that_lacks_something(path, missing):
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118
    del metadata[missing]
    save_file(tensors, path, metadata)
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F64", "shape": [2**31, 2**31], "data_offsets": [0, 64]},
        {"dtype": "F64", "shape": [-1], "data_offsets": [0, 64]},
        {"dtype": "F64", "shape": [8], "data_offsets": [64, 0]},
        {"dtype": "F64", "shape": [8], "data_offsets": [0, 2**63]},
        {"dtype": "PICKLE", "shape": [8], "data_offsets": [0, 64]},
    ],
    ids=["overflow", "negative", "backwards", "beyond the end", "unknown type"],
)
def test_headers_that_lie(path, entry):
    header = json.dumps({"__metadata__": {"format": "mapie_claps"}, "a": entry})
    raw = header.encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(64))
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(path)


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
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
    _file_format._write_atomically(path, content)
    os._exit(1)
