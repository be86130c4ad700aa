"""Commands for rows that are not exchangeable: what they print, of a few rows."""

import pytest

from mapie_claps.benchmarks import _coverage_drift, drift


@pytest.mark.parametrize(
    ("part", "n_findings"), [("shift", 8), ("groups", 10), ("time", 8), ("monitor", 3)]
)
def test_parts_of_coverage(part, n_findings, monkeypatch):
    monkeypatch.setattr(_coverage_drift, "N_STREAM", 40)
    monkeypatch.setattr(_coverage_drift, "N_WATCHED", 40)
    monkeypatch.setattr(_coverage_drift, "N_DELAY", 60)
    found = _coverage_drift.findings(part, 30, seed=0)
    assert len(found) == n_findings
    for row in found:
        assert row["part"] == part
        assert 0 <= row["found"] <= 1
    if part != "shift":  # of 30 rows no coverage is too low for certain
        assert all(row["holds"] for row in found)
    table = _coverage_drift.table_of(found)
    assert table.startswith(f"{n_findings} findings, ")
    assert _coverage_drift.findings(part, 30, seed=0) == found


def test_cost_of_weights():
    lines = drift.cost(sizes=(300, 70_000), n_cal=50).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| unweighted", "| weighted", "| unweighted", "| weighted",
    ]  # fmt: skip
    in_batches = [float(line.rstrip(" |").split(" | ")[-1]) for line in lines[2:]]
    assert max(in_batches) < 3


def test_smoke_of_tilted_rows(tmp_path, capsys):
    from mapie_claps.benchmarks.__main__ import main

    assert main(["drift", "--smoke", "--out", str(tmp_path)]) == 0
    found = capsys.readouterr().out
    for method in ("split", "true", "estimated", "estimated φ", "crepes"):
        assert f"| {method} |" in found


def test_false_alarms_of_both_bets_are_those_of_one_stream(monkeypatch):
    streams = iter([{"inputs": None, "noise": 7}, {"inputs": 3, "noise": 5}] * 20)
    watched = []

    def watch(model, rng, n, *change):
        watched.append(n)
        return next(streams)

    monkeypatch.setattr(_coverage_drift, "_watch", watch)
    false_alarms, *_ = _coverage_drift.findings("monitor", 30, seed=0)
    assert false_alarms["found"] == 1
    assert watched == 10 * [_coverage_drift.N_WATCHED] + 20 * [_coverage_drift.N_DELAY]
