"""The short benchmarks: their commands work and resume; their tables by hand."""

import numpy as np
import pytest

from mapie_claps.benchmarks.__main__ import main
from mapie_claps.benchmarks.epistemic import SCALES, Parts, report
from mapie_claps.benchmarks.tradeoff import report as tradeoff_report


@pytest.mark.parametrize("command", ["epistemic", "tradeoff"])
def test_commands_run_and_resume(command, tmp_path, capsys):
    arguments = [command, "--smoke", "--out", str(tmp_path)]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert first.startswith("| ")
    rows = (tmp_path / "rows.jsonl").read_text()
    assert main(arguments) == 0
    assert (tmp_path / "rows.jsonl").read_text() == rows
    assert capsys.readouterr().out == first


def test_scales_by_hand():
    part = Parts(
        np.array([[0.0, 1.0], [2.0, 1.0]]),
        np.array([[1.0, 1.0], [3.0, 1.0]]),
        np.array([[0.5, 0.0], [0.5, 0.2]]),
        np.array([0.25, 0.75]),
    )
    (((mu, v), _),) = SCALES["all members, all"](part, part)
    np.testing.assert_allclose(mu, [1.5, 1])
    np.testing.assert_allclose(v, [3**0.75 + 0.75 + 0.5, 1 + 0 + 0.15])
    alone = SCALES["one member, h² + Laplace"](part, part)
    np.testing.assert_allclose(alone[1][0][1], [3.5, 1.2])


def test_ratios_are_paired():
    fields = ("interval_score", "coverage", "region_score", "region_coverage")
    rows = [
        {"dataset": "a", "seed": seed, "method": f"{mode}, {method}"}
        | dict.fromkeys(fields, (2.0 if "Laplace" in method else 4.0) * 10**seed)
        for seed in (0, 1)
        for mode in ("sparse", "ordinary")
        for method in SCALES
    ]
    text = report(rows)
    assert "| sparse | one member, h² + Laplace | 0.500 ± 0.000 | 0.500" in text
    assert "Laplace on top of the spread (sparse): 1.000 ± 0.000, inside" in text


def test_tradeoff_table_by_hand():
    row = {"dataset": "a", "seed": 0, "interval_score": 2.0, "fit_seconds": 1.0}
    rows = [
        row | {"method": m, "interval_score": s}
        for m, s in (("default (n_members=6)", 2.0), ("n_members=1", 3.0))
    ]
    text = tradeoff_report(rows)
    assert "n_members=12" not in text
    assert "| `n_members=1` | 1.500 | 1.000 |" in text
