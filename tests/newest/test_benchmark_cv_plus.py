"""The benchmark of CV+ prints its table, here for few rows."""

import re

from mapie_claps.benchmarks import large
from mapie_claps.benchmarks.__main__ import main


def test_cv_plus(capsys, monkeypatch):
    monkeypatch.setattr(large, "CV_PLUS_ROWS", 200)
    monkeypatch.setattr(large, "run_code", lambda code: 0.0)
    monkeypatch.setattr(
        large, "regressor", lambda: large.ClapsRegressor.paper(max_steps=60)
    )
    assert main(["large", "cv_plus", "--rows", "500", "--columns", "4"]) == 0
    printed = capsys.readouterr().out
    assert "five folds of 500 rows x 4 columns, 200 rows to predict" in printed
    for stage in ("six fits and the scores", "intervals"):
        assert re.search(rf"\| {stage} \| \d+\.\d \| \d+\.\d \| \d+ \|", printed)
    assert float(re.search(r"level 0.9: (\d\.\d+)", printed)[1]) > 0.8
