"""``python -m mapie_claps.demo``, with small models in place of the large ones."""

import sys

import numpy as np
import pytest
from conftest import tiny
from sklearn.ensemble import HistGradientBoostingRegressor

from mapie_claps import demo


@pytest.mark.parametrize("with_matplotlib", [True, False])
def test_two_tables_and_a_figure(with_matplotlib, tmp_path, monkeypatch, capsys):
    def booster(**params):
        return HistGradientBoostingRegressor(**params, max_iter=5)

    monkeypatch.setattr(demo, "ClapsRegressor", lambda **_: tiny(max_steps=150))
    monkeypatch.setattr(demo, "HistGradientBoostingRegressor", booster)
    if not with_matplotlib:
        monkeypatch.setattr(demo, "find_spec", lambda name: None)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    demo.main(["--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    for method in ("CLAPS", "absolute", "residual-normalised", "quantile regression"):
        found = [line.split()[-3:] for line in lines if line.startswith(method)]
        assert len(found) == 2  # diabetes and synthetic rows
        for coverage, width, score in found:
            assert 0.8 < float(coverage) < 0.98
            assert 0 < float(width) < float(score)
    if with_matplotlib:
        assert lines[-1] == f"Figure: {tmp_path / 'interval.png'}"
        assert (tmp_path / "interval.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "pip install 'mapie-claps[plot]'" in lines[-1]
        assert not list(tmp_path.iterdir())
        np.random.seed(1)  # no figure may hang on it
        demo.main(["--out", str(tmp_path)])
        assert capsys.readouterr().out.splitlines() == lines
