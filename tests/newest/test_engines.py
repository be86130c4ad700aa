"""The recipes for Ray and Spark in docs/production.md, where the engine installs."""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mapie_claps import CalibratedRegressor, ClapsRegressor

PAGE = Path(__file__).parents[2] / "docs" / "production.md"
RECIPES = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), flags=re.S | re.M)


def recipe(engine):
    (code,) = (text for text in RECIPES if engine in text)
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"rooms": rng.normal(size=120), "age": rng.normal(size=120)})
    y = X["rooms"] + rng.normal(0, 0.1, 120)
    model = CalibratedRegressor(
        ClapsRegressor.paper(random_state=0), [0.8, 0.9], random_state=0
    ).fit(X, y)
    names = {"X": X, "y": y, "model": model, "CalibratedRegressor": CalibratedRegressor}
    exec(compile(code, "production.md", "exec"), names)
    return names


def check(names, intervals):
    X, y, model = names["X"], names["y"], names["model"]
    found = intervals.sort_values("rooms")[["y_pred", "lower", "upper"]].to_numpy(float)
    y_pred, bounds = model.predict_interval(X)
    expected = np.column_stack([y_pred, bounds[:, 0, 1], bounds[:, 1, 1]])
    expected = expected[np.argsort(X["rooms"].to_numpy())]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    scores = np.sort(model.score_rows(X, y, signed=True))
    found = np.sort(names["again"].signed_scores_)
    np.testing.assert_allclose(found, scores, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_ray():
    ray = pytest.importorskip("ray", reason="the recipe needs ray[data]")
    pytest.importorskip("ray.data")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        names = recipe("import ray")
        check(names, names["intervals"].to_pandas())
    finally:
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_spark(monkeypatch):
    pytest.importorskip("pyspark", reason="the recipe needs pyspark and Java")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # workers of this environment
    names = recipe("pyspark")
    try:
        check(names, names["intervals"].toPandas())
    finally:
        names["spark"].stop()
