"""The paper's data: known truth, and tables that are checked."""

import numpy as np
import pytest
import sklearn.datasets
from sklearn.utils import Bunch

from mapie_claps import datasets
from mapie_claps.datasets import load_dataset, make_heteroscedastic_sparse


def write_csv(folder, name):
    source = datasets.DATASETS[name]
    n, p = source.n_rows, source.n_features
    table = np.random.default_rng(0).normal(size=(n, p + 1)).round(3)
    header = ",".join(f"x{j}" for j in range(p)) + ",y"
    file = folder / f"{name}.csv"
    np.savetxt(file, table, delimiter=",", header=header, comments="", fmt="%.3f")
    return table


@pytest.fixture(autouse=True)
def no_network_and_no_folder(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.delenv(datasets.DATA_VARIABLE, raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", refuse)
    monkeypatch.setattr(sklearn.datasets, "fetch_california_housing", refuse)


def test_synthetic_truth():
    data = make_heteroscedastic_sparse(20_000, random_state=0)
    x = data.X[:, 0]
    assert data.X.shape == (20_000, 1)
    assert -4 < x.min() < -3.99
    assert 3.99 < x.max() < 4
    np.testing.assert_allclose(data.mean, np.sin(1.5 * x) + 0.3 * x)
    z = (data.y - data.mean) / np.sqrt(data.noise_variance)
    assert z.std() == pytest.approx(1, abs=0.02)
    noisy, sparse = data.regions["noisy"], data.regions["sparse"]
    assert set(data.noise_variance[noisy]) == {0.25}
    assert np.allclose(data.noise_variance[~noisy], 0.04)
    assert noisy.mean() == pytest.approx(2 / 8, abs=0.01)
    assert sparse.mean() == pytest.approx(1.5 / 8, abs=0.01)
    assert ((x[sparse] > -3) & (x[sparse] < -1.5)).all()


def test_synthetic_thinning_keeps_the_number_of_rows():
    data = make_heteroscedastic_sparse(20_000, keep_probability=0.1, random_state=0)
    assert len(data.y) == 20_000
    # 1.5 of 8 kept with 0.1, of 6.5 + 0.15 in all.
    assert data.regions["sparse"].mean() == pytest.approx(0.15 / 6.65, abs=0.005)
    none = make_heteroscedastic_sparse(500, keep_probability=0, random_state=0)
    assert not none.regions["sparse"].any()


def test_synthetic_seed():
    first, again, other = (
        make_heteroscedastic_sparse(50, random_state=s).y for s in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", list(datasets.DATASETS))
def test_local_folder_comes_first(tmp_path, name):
    table = write_csv(tmp_path, name)
    X, y = load_dataset(name, tmp_path)
    assert np.array_equal(X, table[:, :-1])
    assert np.array_equal(y, table[:, -1])


def test_environment_variable(tmp_path, monkeypatch):
    write_csv(tmp_path, "yacht")
    monkeypatch.setenv(datasets.DATA_VARIABLE, str(tmp_path))
    X, _ = load_dataset("yacht")
    assert X.shape == (308, 6)


def test_a_file_is_checked(tmp_path):
    table = write_csv(tmp_path, "yacht")
    file = tmp_path / "yacht.csv"
    short, thin, gap, infinite = table[:307], table[:, 1:], table.copy(), table.copy()
    gap[3, 2], infinite[3, 6] = np.nan, np.inf
    for bad, message in (
        (short, "Got 307 rows and 6 columns in .*but yacht has 308 rows and 6"),
        (thin, "Got 308 rows and 5 columns"),
        (gap, "missing or infinite values"),
        (infinite, "missing or infinite values"),
    ):
        np.savetxt(file, bad, delimiter=",", header="h")
        with pytest.raises(ValueError, match=message):
            load_dataset("yacht", tmp_path)
    for content in (b"a,b\n1,two\n", b"\x80\x04K\x01.\n" * 3):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"no table of numbers|utf-8"):
            load_dataset("yacht", tmp_path)


@pytest.mark.parametrize("name", ["boston", "../yacht", "/etc/passwd", "", None])
def test_a_name_is_no_path(name, tmp_path):
    with pytest.raises(ValueError, match="Got name=.*one of 'concrete'"):
        load_dataset(name, tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load_dataset("yacht", tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["yacht", "california", "bike"])
def test_failing_download_names_the_file_and_the_place(tmp_path, name):
    message = (
        f"(no route to host|not at OpenML).*{name}.csv .*data_home.*MAPIE_CLAPS_DATA"
    )
    with pytest.raises(RuntimeError, match=message):
        load_dataset(name, tmp_path)


def fake_openml(monkeypatch, columns):
    """A server that hands out these columns; returns what was asked of it."""
    asked = {}

    def fetch(**arguments):
        asked.update(arguments)
        data = np.column_stack(list(columns.values()))
        return Bunch(
            data=data, target=np.arange(len(data)), feature_names=list(columns)
        )

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    return asked


def test_openml_without_the_second_target(monkeypatch):
    columns = {f"x{j}": np.full(768, float(j)) for j in range(8)}
    columns["cooling_load"] = np.zeros(768)
    asked = fake_openml(monkeypatch, columns)
    X, y = load_dataset("energy")
    assert np.array_equal(X[0], np.arange(8.0))
    assert y[-1] == 767
    assert asked["data_id"] == 44960
    assert asked["target_column"] == "heating_load"
    assert asked["as_frame"] is False


def test_openml_with_another_number_of_columns(monkeypatch):
    fake_openml(monkeypatch, {f"x{j}": np.zeros(1030) for j in range(7)})
    with pytest.raises(ValueError, match=r"1030 rows and 7 columns in the download"):
        load_dataset("concrete")
    fake_openml(monkeypatch, {f"x{j}": np.full(1030, "x") for j in range(8)})
    with pytest.raises(RuntimeError, match=r"Could not download 'concrete' \(ValueErr"):
        load_dataset("concrete")


def test_california_comes_from_its_own_fetcher(monkeypatch):
    table = np.zeros((20640, 8)), np.ones(20640)
    monkeypatch.setattr(
        sklearn.datasets, "fetch_california_housing", lambda return_X_y: table
    )
    X, y = load_dataset("california")
    assert X.shape == (20640, 8)
    assert y.sum() == 20640
