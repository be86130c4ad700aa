"""Hostile files, full disks and sudden death, beyond test_persistence.py."""

import errno
import hashlib
import json
import os
import pathlib
import resource
import signal
import socket
import stat
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


def fitted_of(config):
    return config["regressor"]["fitted"]["dict"]


def clip_with(value):
    def change(config, tensors, metadata):
        fitted_of(config)["input_clip_"] = value

    return change


def last_layer_of(config):
    return fitted_of(config)["model_"]["last layer"]


def tensor_with(name, value):
    """The first number of a tensor replaced."""

    def change(config, tensors, metadata):
        (found,) = (k for k in tensors if k.endswith(name))
        tensors[found].view(-1)[0] = value

    return change


def number_with(name, value):
    """A number of the last layer replaced."""

    def change(config, tensors, metadata):
        last_layer_of(config)[name] = value

    return change


def scaler_of_another_shape(config, tensors, metadata):
    """One mean for three columns would be broadcast."""
    scaler = fitted_of(config)["scaler_X_"]["standard scaler"]
    for name in ("mean_", "scale_", "var_"):
        tensors[f"fitted.scaler_X_.{name}"] = tensors[f"fitted.scaler_X_.{name}"][:1]
    scaler["n_features_in_"] = 1


def scaler_that_disagrees_with_itself(config, tensors, metadata):
    tensors["fitted.scaler_X_.mean_"] = tensors["fitted.scaler_X_.mean_"][:1].clone()


def scaler_of_y_for_three(config, tensors, metadata):
    scaler = fitted_of(config)["scaler_y_"]["standard scaler"]
    for name in ("mean_", "scale_", "var_"):
        full = tensors[f"fitted.scaler_y_.{name}"].repeat(3)
        tensors[f"fitted.scaler_y_.{name}"] = full
    scaler["n_features_in_"] = 3


def floor_with(value):
    def change(config, tensors, metadata):
        network_of(config)["variance_floor"] = value

    return change


def rate_with(value):
    def change(config, tensors, metadata):
        network_of(config)["scaling_rate"] = value

    return change


def billion_columns(config, tensors, metadata):
    fitted_of(config)["n_features_in_"] = 10**9


def billion_columns_in_version_1(config, tensors, metadata):
    billion_columns(config, tensors, metadata)
    del fitted_of(config)["table_"]
    for name in [k for k in tensors if k.startswith("fitted.table_")]:
        del tensors[name]


NAN = float("nan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (scaler_of_another_shape, "Got a scaler_X_ for 1 columns, but expected 3"),
        (scaler_that_disagrees_with_itself, r"scaler whose mean_ has shape \(1,\)"),
        (scaler_of_y_for_three, "Got a scaler_y_ for 3 columns, but expected 1"),
        (tensor_with("scaler_X_.mean_", NAN), "numbers that are not finite"),
        (tensor_with("scaler_y_.scale_", 0.0), "a scale that is not positive"),
        (tensor_with("scaler_y_.scale_", -1.0), "a scale that is not positive"),
        (tensor_with("trunk.0.weight", NAN), "trunk.0.weight is not finite"),
        (tensor_with("noise_head.bias", np.inf), "noise_head.bias is not finite"),
        (tensor_with("encoding.width", NAN), "encoding.width is not finite"),
        (tensor_with("posterior.scale", NAN), "posterior whose scale is not finite"),
        (tensor_with("member_weight", NAN), "member_weight .*shares of one"),
        (tensor_with("member_weight", -1.0), "member_weight .*shares of one"),
        (tensor_with("member_weight", 2.0), "member_weight .*shares of one"),
        (floor_with(-1.0), "variance_floor=-1.0 .*a positive floor"),
        (floor_with(NAN), "variance_floor=nan .*a positive floor"),
        (floor_with(0.0), "variance_floor=0.0 .*a positive floor"),
        (rate_with(-1.0), "scaling_rate=-1.0"),
        (number_with("residual_variance", -1.0), "residual_variance=-1.0"),
        (number_with("residual_variance", NAN), "residual_variance=nan"),
        (number_with("unit", 0.0), "unit=0.0, but expected a positive"),
        (number_with("unit", np.inf), "unit=inf, but expected a positive"),
        (number_with("centre", NAN), "centre=nan"),
        (clip_with(-1.0), "input_clip=-1.0, but expected a number above 0"),
        (clip_with("all"), "input_clip='all', but expected a number above 0"),
        (billion_columns, "a table of 3 columns, but expected 1000000000"),
        (billion_columns_in_version_1, "1000000000 columns, but a network of 3 inputs"),
    ],
)
def test_forged_numbers_are_refused(path, change, message):
    rewrite(path, change)
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match=message):
        load(path)
    assert time.perf_counter() - start < 20


def numbers_in(node, path=()):
    """Places of all numbers of a configuration."""
    if isinstance(node, dict | list):
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in pairs:
            yield from numbers_in(value, (*path, key))
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path


def test_no_forged_number_gives_a_scale_that_is_none(path):
    """Every tensor and every fitted number in turn, by NaN, −1000 and 0."""
    found = []

    def look(config, tensors, metadata):
        found.extend((name,) for name in tensors if ".sums_." not in name)
        fitted = numbers_in(fitted_of(config))
        found.extend(p for p in fitted if not p[0].endswith("curve_"))

    def forge(place, value):
        def change(config, tensors, metadata):
            node = fitted_of(config)
            if place[0] in tensors:
                first = tensors[place[0]].view(-1)
                first[0] = value if first.is_floating_point() else 1
                return
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = value

        return change

    rewrite(path, look)
    content, loaded = path.read_bytes(), 0
    assert len(found) > 40
    for place in found:
        for value in (NAN, -1000.0, 0.0):
            path.write_bytes(content)
            rewrite(path, forge(place, value))
            try:
                other = load(path)
            except FileFormatError:
                continue
            loaded += 1
            for scale in ("claps", "posterior"):
                _, std = other.set_params(scale=scale).predict(X, return_std=True)
                assert (std > 0).all(), place
                assert np.isfinite(std).all(), place
    assert loaded  # wrong numbers that are numbers do load


def pipe(path):
    os.mkfifo(path)


def socket_file(path):
    here = os.getcwd()
    os.chdir(path.parent)  # addresses have to be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def folder(path):
    path.mkdir()


def link_to_a_pipe(path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize("make", [pipe, socket_file, folder, link_to_a_pipe])
def test_only_files_are_replaced(make, model, tmp_path):
    path = tmp_path / "here"
    make(path)
    before = {p.name: stat.S_IFMT(p.lstat().st_mode) for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"Got path=.* is no regular file"):
        save(model, path)
    after = {p.name: stat.S_IFMT(p.lstat().st_mode) for p in tmp_path.iterdir()}
    assert after == before


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
