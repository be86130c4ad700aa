"""The benchmark of large data prints its table, here for few rows."""

import re

import pytest

from mapie_claps.benchmarks import large
from mapie_claps.benchmarks.__main__ import main


@pytest.mark.parametrize("estimator", ["ClapsRegressor", "ClapsModule"])
def test_out_of_core(estimator, capsys, monkeypatch):
    monkeypatch.setattr(large, "TRAINING_ROWS", 400)
    monkeypatch.setattr(large, "run_code", lambda code: 0.0)
    options = ["--rows", "3000", "--chunk", "700", "--estimator", estimator]
    assert main(["large", "out_of_core", *options]) == 0
    printed = capsys.readouterr().out
    for stage in ("posterior", "calibration", "intervals"):
        assert re.search(rf"\| {stage} \| \d+\.\d \| \d+\.\d \| \d+ \|", printed)
    coverage = float(re.search(r"level 0.9: (\d\.\d+)", printed)[1])
    assert 0.86 < coverage < 0.94


def test_chunks_are_the_same_in_every_pass():
    rows = large.Chunks(1000, 3, 300, seed=1)
    assert [len(y) for _, y in rows] == [300, 300, 300, 100]
    for (a, _), (b, _) in zip(rows, rows, strict=True):
        assert (a == b).all()
