"""Files: what was saved comes back to the bit, and nothing else comes in."""

import hashlib
import json
import os
import pickle
import struct

import numpy as np
import pandas as pd
import pytest
import torch
from own_networks import Convolution, Pair, mse_network, seeded, table
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.exceptions import NotFittedError

from mapie_claps import (
    ClapsModule,
    ClapsRegressor,
    StreamingConformalRegressor,
    load,
    save,
    update_posterior,
)
from mapie_claps.exceptions import FileFormatError

pytestmark = pytest.mark.usefixtures("own_random_state")
X, y = table(150)
X_NEW = table(20, seed=1)[0]


def tiny(**params):
    return ClapsRegressor(
        max_steps=40,
        n_members=2,
        hidden_layer_sizes=(8,),
        representation_size=6,
        tol=None,
        random_state=0,
        **params,
    )


@pytest.fixture(scope="module")
def fitted():
    return tiny().fit(X, y)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.claps"


@pytest.fixture
def saved(fitted, path):
    save(fitted, path)
    return path


def same(a, b, X=X_NEW):
    np.testing.assert_array_equal(
        a.predict(X, return_std=True), b.predict(X, return_std=True)
    )


def test_regressor_comes_back_to_the_bit(fitted, saved):
    again = load(saved)
    same(again, fitted)
    assert again.get_params() == fitted.get_params()
    # Keys of training rows stay out of files.
    assert vars(again).keys() == vars(fitted).keys() - {"_fitted_rows"}
    assert again.loss_curve_ == fitted.loss_curve_
    same(again.with_prior_precision(3.0), fitted.with_prior_precision(3.0))
    same(update_posterior(again, X, y), update_posterior(fitted, X, y))
    for scale in ("posterior", "constant"):
        a, b = (m.set_params(scale=scale) for m in (again, fitted))
        same(a, b)
    fitted.set_params(scale="claps")


@pytest.mark.parametrize(
    "params",
    [
        {"n_bins": 0},
        {"hessian_structure": "diag", "last_layer": "trained"},
        {"views": ("periodic",), "scaling_rate": 0.0},
        {"views": ["raw", "bins"]},
    ],
)
def test_other_configurations(params, path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["c"] = 1.0  # a constant column has no bins
    model = tiny(**params).fit(frame, y)
    save(model, path)
    again = load(path)
    same(again, model, frame)
    assert list(again.feature_names_in_) == ["a", "b", "c"]


@pytest.mark.parametrize("size", [5, 8, 16])
@pytest.mark.parametrize("n_members", [1, 4])
def test_every_size_and_scale_comes_back_to_the_bit(n_members, size, path):
    model = tiny().set_params(n_members=n_members, representation_size=size).fit(X, y)
    save(model, path)
    again = load(path)
    for scale in ("claps", "aleatoric", "posterior", "constant"):
        same(again.set_params(scale=scale), model.set_params(scale=scale), X)


@pytest.mark.parametrize("prior_precision", [2.0, "grid"])
def test_module_with_the_network_given_at_load_time(prior_precision, path):
    net = seeded(Convolution)
    images = np.random.default_rng(0).normal(size=(60, 1, 8, 8))
    model = ClapsModule(net, prior_precision=prior_precision).fit(images, y[:60])
    save(model, path)
    again = load(path, network=net)
    same(again, model, images)
    same(
        again.partial_fit(images[:9], y[:9]),
        model.partial_fit(images[:9], y[:9]),
        images,
    )
    assert again.module is net
    with pytest.raises(TypeError, match="network=None"):
        load(path)
    with torch.no_grad():
        net.head.bias.add_(1e-3)
    with pytest.raises(FileFormatError, match="other weights"):
        load(path, network=net)
    with pytest.raises(FileFormatError, match=r"'0\.bias' is float64"):
        load(path, network=mse_network())


def test_module_with_a_callable_noise(path):
    def noise(x):
        return 1 + x[:, 0] ** 2

    net = mse_network()
    model = ClapsModule(net, noise_variance=noise).fit(X, y)
    save(model, path)
    same(load(path, network=net, noise_variance=noise), model)
    with pytest.raises(TypeError, match="noise_variance=None"):
        load(path, network=net)


def test_calibrated_state(fitted, path):
    conformal = StreamingConformalRegressor(fitted, [0.8, 0.9])
    save(conformal.conformalize(X, y[::-1].copy()), path)
    again = load(path)
    np.testing.assert_array_equal(
        again.predict_interval(X_NEW)[1], conformal.predict_interval(X_NEW)[1]
    )
    net = seeded(Pair)
    conformal = StreamingConformalRegressor(ClapsModule(net).fit(X, y), 0.9)
    with pytest.raises(ValueError, match="not calibrated"):
        save(conformal, path)
    save(conformal.conformalize(X, y), path)
    np.testing.assert_array_equal(
        load(path, network=net).predict_interval(X_NEW)[1],
        conformal.predict_interval(X_NEW)[1],
    )


def test_methods(fitted, path):
    net = seeded(Pair)
    model = ClapsModule(net).fit(X, y)
    model.save(path)
    same(ClapsModule.load(path, network=net), model)
    with pytest.raises(FileFormatError, match="with a ClapsModule, but expected"):
        StreamingConformalRegressor.load(path, network=net)
    conformal = StreamingConformalRegressor(model).conformalize(X, y)
    conformal.save(path)
    again = StreamingConformalRegressor.load(path, network=net)
    np.testing.assert_array_equal(again.quantiles(), conformal.quantiles())


def test_what_cannot_be_saved(fitted, path):
    with pytest.raises(TypeError, match="type dict"):
        save({}, path)
    with pytest.raises(NotFittedError, match="not fitted"):
        save(ClapsRegressor(), path)
    odd = tiny().set_params(random_state=np.random.RandomState(0)).fit(X, y)
    with pytest.raises(TypeError, match=r"params\.random_state of type RandomState"):
        save(odd, path)
    assert not path.exists()
    with pytest.raises(TypeError, match="type list"):
        save(StreamingConformalRegressor.from_scores([], [1.0] * 20), path)


def test_a_failed_write_leaves_the_old_file_and_no_other(saved, fitted, monkeypatch):
    before = saved.read_bytes()

    def full(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        save(fitted, saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_every_changed_byte_is_noticed(saved):
    content = saved.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(len(content), size=60):
        changed = bytearray(content)
        changed[position] ^= 1 << int(rng.integers(8))
        saved.write_bytes(bytes(changed))
        with pytest.raises(FileFormatError, match="Cannot load"):
            load(saved)


@pytest.mark.parametrize("length", [0, 5, 8, 9, 1000, -1])
def test_truncated_files(saved, length):
    saved.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(saved)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        load(tmp_path / "nothing")


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def test_a_pickle_is_refused_unopened(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(Malicious(), protocol=protocol))
        with pytest.raises(FileFormatError, match="no safetensors file"):
            load(path)
    torch.save(torch.zeros(3), path)
    with pytest.raises(FileFormatError, match="no safetensors file"):
        load(path)
    assert os.listdir(tmp_path) == [path.name]


def test_a_header_that_declares_a_giant_tensor(path):
    header = json.dumps(
        {
            "__metadata__": {"format": "mapie_claps"},
            "a": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]},
        }
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(path)
    path.write_bytes(struct.pack("<Q", 2**62) + b"{" + bytes(64))
    with pytest.raises(FileFormatError, match="Cannot load"):
        load(path)


def rewrite(path, change=lambda config, tensors, metadata: None):
    """Change a file the way a hostile hand would: hashes are made right again."""
    from mapie_claps.files.container import hash_tensors

    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118
    config = json.loads(metadata["config"])
    change(config, tensors, metadata)
    text = json.dumps(config)
    metadata["config"] = text
    metadata["config_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    metadata["tensors_sha256"] = hash_tensors(tensors)
    save_file(tensors, path, metadata)


def fitted_of(config):
    return config["regressor"]["fitted"]["dict"]


def params_of(config):
    return config["regressor"]["params"]["dict"]


def foreign_class(config, tensors, metadata):
    config["os.system"] = config.pop("regressor")


def foreign_type(config, tensors, metadata):
    fitted_of(config)["model_"] = {"subprocess.Popen": {"args": "ls"}}


def dunder(config, tensors, metadata):
    fitted_of(config)["__class__"] = 3


def method(config, tensors, metadata):
    fitted_of(config)["predict"] = 3


def newer(config, tensors, metadata):
    metadata["format_version"] = "4"


def foreign_format(config, tensors, metadata):
    metadata["format"] = "pt"


def wrong_dtype(config, tensors, metadata):
    name = "fitted.model_.posterior.mean"
    tensors[name] = tensors[name].float()


def wrong_shape(config, tensors, metadata):
    name = "fitted.model_.posterior.scale"
    tensors[name] = tensors[name][:, :-1].contiguous()


def wrong_member_weight(config, tensors, metadata):
    name = "fitted.model_.member_weight"
    tensors[name] = tensors[name][:-1].contiguous()


def wrong_network(config, tensors, metadata):
    name = "fitted.network_.state.trunk.0.bias"
    tensors[name] = tensors[name][:, :, :-1].contiguous()


def missing_tensor(config, tensors, metadata):
    del tensors["fitted.model_.posterior.mean"]


def unknown_parameter(config, tensors, metadata):
    params_of(config)["colour"] = "red"


def two_keys(config, tensors, metadata):
    params_of(config)["tol"] = {"a": 1, "b": 2}


def deep(config, tensors, metadata):
    node = 1.0
    for _ in range(400):
        node = {"tuple": [node]}
    params_of(config)["tol"] = node


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (foreign_class, r"a file with \['os\.system'\]"),
        (foreign_type, r"unknown type 'subprocess\.Popen'"),
        (dunder, "attribute '__class__'"),
        (method, "attribute 'predict'"),
        (newer, "format version 4"),
        (foreign_format, "did not write"),
        (wrong_dtype, r"mean has shape .* torch\.float32"),
        (wrong_shape, "scale has shape"),
        (wrong_member_weight, "Cannot load"),
        (wrong_network, "Cannot load"),
        (missing_tensor, r"posterior\.mean"),
        (unknown_parameter, "colour"),
        (two_keys, "with the keys"),
        (deep, "RecursionError"),
    ],
)
def test_files_with_right_hashes_and_wrong_content(saved, change, match):
    rewrite(saved)
    load(saved)
    rewrite(saved, change)
    with pytest.raises(FileFormatError, match=match):
        load(saved)


def test_the_format_is_open(saved):
    """The file can be read without mapie_claps, as docs/persistence.md says."""
    with safe_open(saved, framework="np") as file:
        metadata = file.metadata()
        config = json.loads(metadata["config"])
        gram = file.get_tensor("fitted.sums_.moments.gram")
    assert metadata["format"] == "mapie_claps"
    assert list(config) == ["regressor"]
    assert gram.shape == (2, 7, 7)


def test_without_safetensors(fitted, path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install mapie-claps\[save\]"):
        save(fitted, path)


def test_what_the_file_has_no_use_for_is_refused(fitted, saved, tmp_path):
    net = mse_network()
    with pytest.raises(TypeError, match="Got network of type Sequential"):
        load(saved, network=net)
    with pytest.raises(TypeError, match="Got noise_variance of type"):
        load(saved, noise_variance=torch.square)
    own = tmp_path / "own.claps"
    save(ClapsModule(net).fit(X, y), own)
    with pytest.raises(TypeError, match="was no callable"):
        load(own, network=net, noise_variance=torch.square)


def test_permissions_and_links(fitted, tmp_path):
    target, link, plain = (tmp_path / n for n in ("target", "link", "plain"))
    plain.touch()
    save(fitted, target)
    assert target.stat().st_mode == plain.stat().st_mode
    target.chmod(0o640)
    link.symlink_to(target)
    save(fitted, link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    same(load(link), fitted)
    assert sorted(os.listdir(tmp_path)) == ["link", "plain", "target"]
