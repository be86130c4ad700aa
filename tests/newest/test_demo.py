"""``make demo``, with small models in place of the large ones."""

from pathlib import Path

from conftest import tiny
from sklearn.ensemble import HistGradientBoostingRegressor


def test_two_tables_and_a_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    import demo

    def booster(**params):
        return HistGradientBoostingRegressor(**params, max_iter=5)

    monkeypatch.setattr(demo, "ClapsRegressor", lambda **_: tiny(max_steps=150))
    monkeypatch.setattr(demo, "HistGradientBoostingRegressor", booster)
    demo.main(["--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    for method in ("CLAPS", "absolute", "residual-normalised", "quantile regression"):
        found = [line.split()[-3:] for line in lines if line.startswith(method)]
        assert len(found) == 2  # diabetes and synthetic rows
        for coverage, width, score in found:
            assert 0.8 < float(coverage) < 0.98
            assert 0 < float(width) < float(score)
    assert lines[-1] == f"Figure: {tmp_path / 'interval.png'}"
    assert (tmp_path / "interval.png").read_bytes().startswith(b"\x89PNG")
