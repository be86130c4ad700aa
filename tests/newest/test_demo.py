"""``python -m mapie_claps.demo``, with small models in place of the large ones."""

import numpy as np
from conftest import tiny
from sklearn.ensemble import HistGradientBoostingRegressor

from mapie_claps import demo


def test_two_tables_and_a_figure(tmp_path, monkeypatch, capsys):
    def booster(**params):
        return HistGradientBoostingRegressor(**params, max_iter=5)

    monkeypatch.setattr(demo, "ClapsRegressor", lambda **_: tiny(max_steps=150))
    monkeypatch.setattr(demo, "HistGradientBoostingRegressor", booster)
    demo.main(["--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    np.random.seed(1)  # no figure may hang on it
    assert demo.table("Diabetes", demo.diabetes_split()).splitlines() == lines[-8:-2]
    for method in ("CLAPS", "absolute", "residual-normalised", "quantile regression"):
        found = [line.split()[-3:] for line in lines if line.startswith(method)]
        assert len(found) == 2  # synthetic rows and diabetes
        for coverage, width, score in found:
            assert 0.8 < float(coverage) < 0.98
            assert 0 < float(width) < float(score)
    assert (tmp_path / "interval.png").read_bytes().startswith(b"\x89PNG")
