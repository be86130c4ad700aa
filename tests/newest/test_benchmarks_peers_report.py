"""The benchmark against peers: tables and headlines from rows."""

import numpy as np
import pytest

from mapie_claps.benchmarks._peer_report import (
    aggregate,
    compare,
    headline,
    score_table,
    write_report,
)
from mapie_claps.studies.scoring import SplitSize, coverage_limits


def row(dataset, seed, method, score, cv_score, coverage=0.9):
    return {
        "dataset": dataset,
        "seed": seed,
        "method": method,
        "alpha": 0.1,
        "max_rows": 5000,
        "quick": False,
        "n_train": 60,
        "n_cal": 19,
        "n_test": 20,
        "params": {} if cv_score is None else {"rate": 0.1},
        "cv_score": cv_score,
        "coverage": coverage,
        "width": score / 2,
        "interval_score": score,
        "crps": None,
        "tune_seconds": 3.0,
        "fit_seconds": 1.0,
        "predict_seconds": 0.1,
        "warnings": [],
    }


@pytest.fixture
def hand_made():
    """Two data sets, two seeds, two peers and CLAPS."""
    return [
        row("naval", 0, "split-histgb", 10.0, cv_score=1.0),
        row("naval", 0, "gp", 2.0, cv_score=5.0),
        row("naval", 0, "claps", 4.0, cv_score=None),
        row("naval", 1, "split-histgb", 10.0, cv_score=5.0),
        row("naval", 1, "gp", 6.0, cv_score=1.0),
        row("naval", 1, "claps", 4.0, cv_score=None),
        row("mine", 0, "split-histgb", 1.0, cv_score=1.0),
        row("mine", 0, "gp", 8.0, cv_score=2.0),
        row("mine", 0, "claps", 2.0, cv_score=None, coverage=0.1),
        row("mine", 1, "split-histgb", 3.0, cv_score=1.0),
        row("mine", 1, "gp", 8.0, cv_score=2.0),
        row("mine", 1, "claps", 2.0, cv_score=None, coverage=0.1),
    ]


def test_peer_is_picked_by_its_score_on_training_rows(hand_made):
    c = compare(hand_made, "naval")
    assert c.picked == {"split-histgb": 1, "gp": 1}
    assert c.peer.mean == pytest.approx((10 + 6) / 2)
    assert (c.best_peer, c.best_score) == ("gp", 4.0)
    assert c.ratio.mean == pytest.approx(0.5)
    # Differences 4 − 0.5 · 10 = −1 and 4 − 0.5 · 6 = 1: standard error 1, over 8.
    assert c.ratio.error == pytest.approx(1 / 8)
    assert c.limits == coverage_limits([SplitSize(19, 20)] * 2, 0.1)


def test_catboost_is_picked_in_the_second_ratio_only(hand_made):
    scores = {"naval": 2.0, "mine": 4.0}
    rows = hand_made + [
        row(name, seed, "cqr-catboost", score, cv_score=0.5)
        for name, score in scores.items()
        for seed in (0, 1)
    ]
    c = compare(rows, "naval")
    assert c.picked == {"split-histgb": 1, "gp": 1}
    assert c.ratio.mean == pytest.approx(0.5)
    # CatBoost, with a score of 2, is picked for both seeds.
    assert c.ratio_to_all.mean == pytest.approx(2.0)
    text = headline([compare(rows, name) for name in scores])
    # Ratios to CatBoost 4 / 2 and 2 / 4.
    words = "With CatBoost among the peers: better on 1 of 2, geometric mean 1.000, "
    assert words + "without naval 0.500." in text


def test_seeds_that_lack_a_method_do_not_count(hand_made):
    c = compare(hand_made[:-1], "mine")
    assert c.n_seeds == 1
    assert c.ratio.mean == pytest.approx(2.0)
    assert compare(hand_made[:1] + hand_made[5:6], "naval") is None


def test_headline_counts(hand_made):
    text = headline([compare(hand_made, name) for name in ("naval", "mine")])
    # Ratios 0.5 and 2 / 2.
    assert "better than the picked peer on 1 of 2 data sets" in text
    assert f"Geometric mean of the ratio: {np.sqrt(0.5):.3f}." in text
    assert "The same without naval: 1.000." in text
    assert "inside its limits on 1 of 2" in text
    assert "below its published score on 0 of 1" in text
    assert "| 0.5 ± 0.12 |" in text


def test_headline_without_claps(hand_made):
    peers = [r for r in hand_made if r["method"] != "claps"]
    assert "CLAPS was not run" in headline([compare(peers, "mine")])


def test_tables_of_hand_made_rows(hand_made, tmp_path):
    table = aggregate(hand_made)
    assert table["mine", "split-histgb"]["interval_score"].mean == 2.0
    assert table["mine", "split-histgb"]["interval_score"].error == pytest.approx(1.0)
    text = score_table(hand_made, table)
    assert "| naval | 10 ± 0 | **4 ± 2** | **4 ± 0** |" in text
    write_report(hand_made, tmp_path)
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[0].startswith("dataset,method,seeds,coverage_mean,coverage_se,width")
    assert lines[1].split(",")[:3] == ["naval", "split-histgb", "2"]
    assert "rate=0.1 | 4 |" in (tmp_path / "report.md").read_text()


def test_report_of_nothing(tmp_path):
    assert write_report([], tmp_path) == "No finished runs.\n"
