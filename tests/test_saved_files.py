"""Files that earlier versions wrote load for ever, with equal predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
import saved_networks
from conftest import NEWEST
from safetensors import safe_open

from mapie_claps import ClapsRegressor, load, save, update_posterior
from mapie_claps.files.codec import schema
from mapie_claps.files.container import FORMAT_VERSION

pytestmark = pytest.mark.usefixtures("own_random_state")
FOLDER = Path(__file__).parent / "saved_files"
KEPT = sorted(FOLDER.rglob("*.claps"))
# Monitors need the martingales of the newest MAPIE.
FILES = [path for path in KEPT if NEWEST or not path.stem.startswith("monitor")]
X = saved_networks.rows(150)[120:]
Y = saved_networks.targets(X)
PARTS = {
    "module_head": {"network": saved_networks.mean_alone},
    "module_output": {"network": saved_networks.mean_and_variance},
    "module_callable": {"network": saved_networks.mean_alone},
    "module_diagonal": {"network": saved_networks.mean_and_variance},
    "module_grid": {"network": saved_networks.mean_and_variance},
    "streaming_module": {"network": saved_networks.mean_and_variance},
}


def loaded(path):
    parts = {name: make() for name, make in PARTS.get(path.stem, {}).items()}
    if path.stem == "module_callable":
        parts["noise_variance"] = saved_networks.noise_variance
    return load(path, **parts)


def expected(path):
    with np.load(path.with_name("expected.npz")) as stored:
        found = {k: stored[k] for k in stored.files if k.startswith(f"{path.stem}.")}
    assert found
    return {k.partition(".")[2]: v for k, v in found.items()}


def rows_for(path):
    if path.stem.endswith("table"):
        return saved_networks.table(150)[120:]
    if path.stem.endswith("names"):
        rows = saved_networks.named(X)
        return rows[["a", "b", "c"]] if path.parent.name == "version_1" else rows
    return X


def kinds_of(model):
    """What is compared of an object, in files from version 2 on."""
    if hasattr(model, "wealth"):
        return ["wealth"]
    if hasattr(model, "conformalize"):
        return ["prediction", "interval"]
    kinds = ["claps", "aleatoric", "constant"]
    if isinstance(model, ClapsRegressor) or model.scale == "posterior":
        kinds.append("posterior")
    mapped = getattr(model, "target_map", None) not in (None, "spline")
    return kinds if mapped else [*kinds, "updated"]


def found(model, kind, rows):
    if kind == "wealth":
        return np.array(list(model.update(rows, np.exp(0.3 * Y)).wealth.values()))
    if kind in ("prediction", "interval"):
        return model.predict_interval(rows)[kind == "interval"]
    if kind == "updated":
        return np.stack(update_posterior(model, rows, Y).predict(rows, return_std=True))
    model.set_params(scale=kind)
    mu, std = model.predict(rows, return_std=True)
    variance = model.predict_variance(rows)
    model.set_params(scale="claps")
    return np.stack([mu, std, variance.aleatoric, variance.epistemic])


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_predictions_of_a_kept_file(path):
    model, rows = loaded(path), rows_for(path)
    for kind, values in expected(path).items():
        # After an update σ² of the scales may differ; mean and √v of claps do not.
        np.testing.assert_allclose(found(model, kind, rows), values, rtol=1e-8)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_kept_file_can_be_saved_again(path, tmp_path):
    model, rows = loaded(path), rows_for(path)
    save(model, tmp_path / path.name)
    with safe_open(tmp_path / path.name, framework="np") as file:
        assert file.metadata()["format_version"] == str(FORMAT_VERSION)
    again = loaded(tmp_path / path.name)
    if path.stem.startswith("monitor"):
        assert again.wealth == model.wealth
    else:
        np.testing.assert_array_equal(again.predict(rows), model.predict(rows))


def tags_in(node):
    """Tags of all objects in a configuration."""
    if isinstance(node, list):
        return set().union(*map(tags_in, node))
    if not isinstance(node, dict):
        return set()
    return set(node).union(*map(tags_in, node.values()))


def test_every_class_that_can_be_saved_is_kept():
    found = set()
    for path in KEPT:
        with safe_open(path, framework="np") as file:
            if file.metadata()["format_version"] == str(FORMAT_VERSION):
                found |= tags_in(json.loads(file.metadata()["config"]))
    assert set(schema()) - found == set()


@pytest.mark.parametrize("version", ["version_1", "version_2", "version_3"])
def test_input_clip_of_an_old_file_is_that_of_its_fit(version):
    """Files without the attribute: a parameter set later must wait for a fit."""
    conformal = load(FOLDER / version / "streaming_regressor.claps")
    before = conformal.predict_interval(3 * X)[1]
    conformal.estimator.set_params(input_clip=0.1)
    np.testing.assert_array_equal(conformal.predict_interval(3 * X)[1], before)
