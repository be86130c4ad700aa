"""The checks of the claims, fed with the paper's own tables."""

import pytest

from mapie_claps.experiments import report, tables


def published_rows(name):
    """A published experiment as if it were one run of ours."""
    rows = []
    for table in tables.TABLES:
        # The aggregate table is made of the others, but for the ranks.
        if table.experiment != name or table.name == "exp3_real_benchmark":
            continue
        for line in tables.published(table.name):
            label = next(iter(line.values()))
            row = {"case": "all", "seed": 0, table.key: label} | table.where
            if table.key == "value":
                row["value"] = float(label)
            row |= {ours: float(line[column]) for column, ours in table.columns.items()}
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
    return rows


@pytest.fixture(scope="module")
def claims():
    return report.check({name: published_rows(name) for name in report.CLAIMS})


def test_every_analysis_of_the_paper_has_claims(claims):
    sources = list(dict.fromkeys(claim.source for claim in claims))
    assert len(sources) == 8
    assert len(claims) == 61


def test_claims_hold_on_the_paper_s_own_tables(claims):
    """All but those that its printed figures do not bear out."""
    failed = [claim.text for claim in claims if not claim.holds]
    # The paper's mean scale ratio is 1.0452 at λ = 1e-3 and 1.0467 at 1e-2.
    assert failed == ["A larger prior precision moves the scale ratio towards one."]


def test_claims_fail_where_methods_are_swapped():
    swap = {"CLAPS": "Split CP", "Split CP": "CLAPS"}
    rows = [
        row | {"method": swap.get(row["method"], row["method"])}
        for row in published_rows("mechanism")
    ]
    failed = [c.text for c in report.check({"mechanism": rows}) if not c.holds]
    assert "CLAPS has the smallest interval score." in failed
    assert "CQR covers the regions more evenly than Split CP and CV+." in failed
