"""The checks of the claims, fed with the paper's own tables."""

import math

import pytest

from mapie_claps.experiments import report, tables
from mapie_claps.experiments.claims import Check, Relation, check_claims
from mapie_claps.experiments.experiment import EXPERIMENTS
from mapie_claps.studies.scoring import stratified_estimate


def published_rows(name):
    """A published experiment as if it were two equal runs of ours."""
    rows = []
    for table in tables.TABLES:
        # The aggregate table is made of the others, but for the ranks.
        if table.experiment != name or table.name == "exp3_real_benchmark":
            continue
        for line in tables.published(table.name):
            label = next(iter(line.values()))
            row = {"case": table.case or "all", "seed": 0, table.key: label}
            if table.key == "value":
                row["value"] = float(label)
            row |= {
                ours: float(line[tables.PUBLISHED_LABEL.get(column, column)])
                for column, ours in table.columns.items()
            }
            rows.append(row)
    for row in rows:
        if name == "benchmark":
            aggregate = tables.published("exp3_real_benchmark")
            line = next(a for a in aggregate if a["Method"] == row["method"])
            row["width_rank"] = float(line["Width Rank"])
            row["score_rank"] = float(line["Score Rank"])
        if "score_difference" in row:
            # A typical score of the four data sets, whose mean is about 130.
            row["relative_score"] = row["score_difference"] / 130
    return rows + [row | {"seed": 1} for row in rows]


@pytest.fixture(scope="module")
def claims():
    return check_claims({name: published_rows(name) for name in EXPERIMENTS})


def test_every_analysis_of_the_paper_has_claims(claims):
    sources = list(dict.fromkeys(claim.source for claim in claims))
    assert len(sources) == 8
    assert len(claims) == 61


def test_claims_hold_on_the_paper_s_own_tables(claims):
    """All but those that its printed figures do not support."""
    failed = [claim.text for claim in claims if not claim.holds]
    # The paper's mean scale ratio is 1.0452 at λ = 1e-3 and 1.0467 at 1e-2.
    assert failed == ["A larger prior precision moves the scale ratio towards one."]


def test_claims_fail_where_methods_are_swapped():
    swap = {"CLAPS": "Split CP", "Split CP": "CLAPS"}
    rows = [
        row | {"method": swap.get(row["method"], row["method"])}
        for row in published_rows("mechanism")
    ]
    failed = [c.text for c in check_claims({"mechanism": rows}) if not c.holds]
    assert "CLAPS has the smallest interval score." in failed
    assert "CQR covers the regions more evenly than Split CP and CV+." in failed


def test_every_failing_claim_says_why():
    """Each claim of a difference fails, with a reason, where all methods are alike."""
    rows = published_rows("benchmark")
    alike = [
        row | dict.fromkeys(("width", "score", "violation", "width_reduction"), 1.0)
        for row in rows
    ]
    failed = [c for c in check_claims({"benchmark": alike}) if not c.holds]
    assert len(failed) >= 8
    assert all(claim.why for claim in failed)


def test_reason_names_the_best_method():
    rows = [
        row | {"width_reduction": 0.5 if row["method"] == "CQR" else 0.1}
        for row in published_rows("benchmark")
    ]
    found = check_claims({"benchmark": rows})
    claim = next(c for c in found if "largest relative width reduction" in c.text)
    assert not claim.holds
    assert claim.why.startswith("Largest mean: CQR")


def test_reason_names_the_run_that_is_far_from_one():
    rows = published_rows("calibration_size")
    far = next(r for r in rows if r["value"] == 0.15 and r["seed"] == 1)
    far["width_ratio"] = 2.5
    found = check_claims({"calibration_size": rows})
    claim = next(c for c in found if c.text == "Width ratios stay close to one.")
    assert not claim.holds
    assert "seed 1, with 2.50" in claim.why


def test_nothing_is_clear_with_one_seed():
    rows = [row for row in published_rows("mechanism") if row["seed"] == 0]
    found = {c.text: c.holds for c in check_claims({"mechanism": rows})}
    assert not found["CLAPS has the smallest interval score."]
    one = stratified_estimate({"a": [1.0]})
    assert math.isnan(one.error)
    assert not any([one.above(0), one.below(0)])
    assert not Relation("not clearly below 0").holds(one)


def test_each_data_set_may_be_one():
    """Once, the rows of a data set named "each" were looked for."""
    rows = [row for row in published_rows("benchmark") if row["case"] == "yacht"]
    line = {"experiment": "benchmark", "measure": "width", "of": "CLAPS", "needed": ""}
    line |= {"against": "/ CV+", "on": "each", "relation": "clearly below 0"}
    figures, missing = Check(line, rows).result()
    assert figures.startswith("clearly below 0 on 1 of 1 data sets (yacht); width: ")
    assert missing == ""


def test_unfinished_experiments_are_listed_and_not_checked():
    rows = {name: published_rows(name) for name in ("mechanism", "benchmark")}
    rows["benchmark"] = [r for r in rows["benchmark"] if r["case"] == "yacht"]
    text = report.report_of(rows, {"benchmark": (2, 40)})
    assert "unfinished: benchmark (2 of 40 runs)." in text
    assert "## Experiment 1" in text
    assert "## Experiment 3" not in text
