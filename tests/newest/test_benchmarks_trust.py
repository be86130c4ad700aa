"""The commands behind docs/trust.md, on a small scale, and what they rest on."""

import dataclasses
import re

import numpy as np
import pytest
from mapie.regression import SplitConformalRegressor
from scipy.stats import betabinom, binom

from mapie_claps import ClapsRegressor, ClapsScore
from mapie_claps.benchmarks import (
    _coverage,
    _fuzz_attacks,
    _fuzz_cases,
    _fuzz_draw,
    coverage,
    fuzz,
    mapie_tests,
)
from mapie_claps.benchmarks.__main__ import main
from mapie_claps.conformal import calibration_state
from mapie_claps.metrics import _intervals
from mapie_claps.network import batches, own_search
from mapie_claps.posterior import sums
from mapie_claps.studies.scoring import SplitSize, covered_limits

CLEAN = _fuzz_cases.TableSpec(
    20, 2, "array", "float64", None, "float64", None, "flat", 0
)
OTHER = dataclasses.replace(CLEAN, seed=CLEAN.seed + 1)
VALID = _fuzz_cases.FuzzCase(CLEAN, OTHER, CLEAN)


def test_a_replication_is_what_mapie_does():
    rng = np.random.default_rng(0)
    learned = _coverage.Case("skewed", law="learned", ranks="two ranks")
    for case in (_coverage.Case("heteroscedastic"), _coverage.CASES[5], learned):
        model = _coverage.fit_network(case, rng)
        X, y = case.draw(rng, 31)
        law = _coverage.law_of(case, model, X, rng)
        got = _coverage.bounds_of_last_row(case, y, law, 30, (0.8, 0.9))
        mapie = SplitConformalRegressor(
            model,
            confidence_level=[0.8, 0.9],
            conformity_score=ClapsScore(
                support=case.support, sym=case.ranks != "two ranks"
            ),
            prefit=True,
        ).conformalize(X[:30], y[:30])
        expected = mapie.predict_interval(X[30:])[1][0]
        np.testing.assert_allclose(np.stack(got), expected, rtol=1e-12)


def counted(*values):
    return dict(zip(coverage.FIELDS, values, strict=True))


def test_limits_of_one_refit_are_those_of_the_beta_binomial_law():
    low, high = covered_limits([SplitSize(19, 50)], 0.1, 0.01)
    assert (low, high) == tuple(betabinom.ppf([0.01, 0.99], 50, 18, 2))
    # One test row per refit: a plain binomial count.
    low, high = covered_limits([SplitSize(39, 50)], 0.1, 0.01, n_ranks=2)
    # ⌈40 · 0.95⌉ = 38 from each end: 36 of the 40 gaps are inside.
    assert (low, high) == tuple(betabinom.ppf([0.01, 0.99], 50, 36, 4))
    got = covered_limits([SplitSize(19, 1)] * 400, 0.1, 0.01)
    assert got == tuple(binom.ppf([0.01, 0.99], 400, 0.9))
    line = counted("fixed", "gaussian", 19, 0.9, 400, 400, 360, 0.9)
    (verdict,) = coverage.judged([line])
    limits = binom.ppf([0.005, 0.995], 400, 0.9) / 400
    assert (verdict["low"], verdict["high"]) == tuple(limits)


def test_a_score_that_does_not_cover_is_found():
    """A wrong rank, as in MAPIE's own std score, moves a count out of its limits."""
    exact = 19 / 21
    for covered, holds in ((round(10_000 * exact), True), (8_571, False)):
        line = counted("fixed", "gaussian", 20, 0.9, 10_000, 10_000, covered, 0.0)
        (verdict,) = coverage.judged([line])
        assert verdict["promised"] == exact
        assert verdict["holds"] is holds


def test_cv_plus_is_held_against_one_minus_two_alpha():
    line = counted("cv+", "heteroscedastic", 60, 0.9, 200, 200, 190, 0.95)
    (verdict,) = coverage.judged([line])
    assert verdict["promised"] == pytest.approx(0.8)
    assert verdict["high"] == 1
    assert verdict["low"] == binom.ppf(0.01, 200, 0.8) / 200


@pytest.fixture
def small(monkeypatch):
    (*fixed, _, n_test), (refits, cases, *sizes) = list(coverage.PARTS.values())[:2]
    monkeypatch.setitem(coverage.PARTS, "fixed", (*fixed, (20,), n_test))
    monkeypatch.setitem(coverage.PARTS, "split", (refits, cases[:1], *sizes))


def test_coverage_command_counts_and_resumes(small, tmp_path, capsys, monkeypatch):
    options = ["--replications", "40", "--split-refits", "2", "--cross-refits", "1"]
    parts = ["--parts", *coverage.PARTS]
    command = ["coverage", *parts, *options, "--out", str(tmp_path)]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "72 counts, 0 outside their limits." in first
    assert (tmp_path / "coverage.md").read_text(encoding="utf-8") in first

    def no_more(*args):
        raise AssertionError("counted again")

    monkeypatch.setattr(coverage, "count", no_more)
    assert main(command) == 0
    assert capsys.readouterr().out == first


def test_coverage_of_rows_that_are_not_exchangeable(tmp_path, capsys):
    parts = ["--parts", "shift", "groups"]
    command = ["coverage", *parts, "--replications", "1500", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "18 findings, 0 outside their limits." in capsys.readouterr().out


def test_coverage_command_refuses_bad_numbers(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["coverage", "--replications", "0", "--out", str(tmp_path)])
    message = "Got --replications 0, but expected at least 1"
    assert message in capsys.readouterr().err


def test_fuzz_command(tmp_path, capsys, monkeypatch):
    assert main(["fuzz", "--cases", "12", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "12 cases, 0 failures" in out
    assert (tmp_path / "fuzz.md").exists()
    assert main(["fuzz", "--cases", "12", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == out  # found again, to the second
    monkeypatch.setattr(fuzz, "digest_of_package", lambda: "other code")
    monkeypatch.setattr(
        fuzz, "outcome_of", lambda case: _fuzz_cases.Outcome("x", failure="new")
    )
    assert main(["fuzz", "--cases", "12", "--out", str(tmp_path)]) == 1
    assert "12 cases, 12 failures" in capsys.readouterr().out
    for option in ("--cases", "--first", "--seed"):
        with pytest.raises(SystemExit, match="2"):
            main(["fuzz", option, "-1"])


def test_cases_depend_on_seed_and_number_alone():
    first = [_fuzz_draw.draw_case(0, number) for number in range(40)]
    assert first == [_fuzz_draw.draw_case(0, number) for number in range(40)]
    assert first[20:30] != [_fuzz_draw.draw_case(1, number) for number in range(20, 30)]
    assert len({repr(case) for case in first}) == 40
    attacks = [isinstance(case, _fuzz_attacks.AttackCase) for case in first]
    assert attacks == [number % 4 == 3 for number in range(40)]


@pytest.mark.parametrize("kinds", range(1, 10))
def test_a_frame_of_any_types_gives_intervals_reasons_and_a_file(kinds):
    table = dataclasses.replace(CLEAN, p=9)
    case = _fuzz_cases.FuzzCase(
        table, table, table, mode="batches", kinds=kinds, further=True
    )
    assert _fuzz_cases.run_case(case) == _fuzz_cases.Outcome("interval")


@pytest.mark.parametrize("mode", ["split", "calibrated", "batches", "plus"])
@pytest.mark.parametrize("shape", ["short", "long", "pair"])
def test_targets_of_another_length_are_refused(mode, shape):
    wrong = dataclasses.replace(CLEAN, y_shape=shape)
    case = _fuzz_cases.FuzzCase(wrong, CLEAN, CLEAN, mode=mode)
    assert _fuzz_cases.run_case(case).kind == "ValueError"


@pytest.mark.parametrize("mode", sorted(set(_fuzz_cases.CALIBRATION_MODES)))
def test_a_valid_case_gives_an_interval(mode):
    case = _fuzz_cases.FuzzCase(CLEAN, CLEAN, CLEAN, mode=mode, level=0.5)
    assert _fuzz_cases.run_case(case) == _fuzz_cases.Outcome("interval")


@pytest.mark.parametrize(("n", "changed"), [(9, True), (0, False)])
def test_a_table_without_rows_is_drawn_without_a_surprise(n, changed):
    test = dataclasses.replace(CLEAN, n=n, surprise="renamed")
    case = _fuzz_cases.FuzzCase(CLEAN, CLEAN, test, kinds=1)
    assert _fuzz_cases.other_columns(case) is changed


@pytest.mark.parametrize(
    "error", [IndexError("x"), ZeroDivisionError("x"), ValueError()]
)
def test_an_undocumented_exception_is_a_failure(error, monkeypatch):
    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr(ClapsRegressor, "fit", broken)
    outcome = _fuzz_cases.run_case(VALID)
    assert outcome.kind == type(error).__name__
    assert outcome.failure

    monkeypatch.setattr(fuzz, "outcome_of", lambda case: outcome)
    line = fuzz.try_cases(2, seed=0, first=7)
    failures = [row for row in line["rows"] if row["cells"][0] == "failure"]
    assert [row["cases"] for row in failures] == [1, 1]
    text, n_failures = fuzz.report([line])
    assert "FAILURE: case 8: " in text
    assert n_failures == 2


def test_an_empty_list_ends_in_an_error_of_mapie_that_is_counted(monkeypatch):
    empty = dataclasses.replace(CLEAN, n=0, container="list")
    case = dataclasses.replace(VALID, cal=empty)
    outcome = _fuzz_cases.run_case(case)
    assert outcome.kind == "IndexError of MAPIE, empty list"
    assert outcome.failure is None

    def broken(*args, **kwargs):
        raise IndexError("ours")

    monkeypatch.setattr(ClapsRegressor, "fit", broken)
    assert "ours" in _fuzz_cases.run_case(case).failure


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        (lambda b: b[:, ::-1], "a lower bound above its upper one"),
        (lambda b: b * np.nan, "NaN in the bounds"),
        (lambda b: b * np.inf, "infinite bounds that were not allowed"),
        (lambda b: b[:-1], "shapes"),
    ],
)
def test_a_bad_interval_is_a_failure(change, failure, monkeypatch):
    original = SplitConformalRegressor.predict_interval

    def changed(self, *args, **kwargs):
        points, bounds = original(self, *args, **kwargs)
        return points, change(bounds)

    monkeypatch.setattr(SplitConformalRegressor, "predict_interval", changed)
    assert _fuzz_cases.run_case(VALID).failure.startswith(failure)


@pytest.mark.parametrize("variant", range(4))
@pytest.mark.parametrize("attack", sorted(_fuzz_attacks.ATTACKS))
def test_attacks_have_their_outcome(attack, variant):
    case = _fuzz_attacks.AttackCase(attack, 7 + variant, 20, 6, 3, 0.8, variant)
    assert fuzz.outcome_of(case) == _fuzz_cases.Outcome(f"attack: {attack}")


@pytest.mark.parametrize(
    ("attack", "broken", "found"),
    [
        ("rows_that_mix", (own_search, "_check_rows_alone"), "ValueError not raised"),
        (
            "models_that_change",
            (calibration_state, "check_unchanged"),
            "Error not raised",
        ),
        ("foreign_sums", (sums.LastLayerSums, "check_network"), "Error not raised"),
        ("targets_that_are_no_numbers", (batches, "check_real"), "TypeError|not match"),
        ("swapped_ends", (_intervals, "warn_of_crossed"), "UserWarning not raised"),
    ],
)
def test_an_attack_that_succeeds_is_a_failure(attack, broken, found, monkeypatch):
    """Each guard taken away in turn."""
    monkeypatch.setattr(*broken, lambda *args: None)
    case = _fuzz_attacks.AttackCase(attack, 7, 20, 6, 3, 0.8, 1)
    assert re.search(found, str(_fuzz_attacks.run_attack(case)))


def test_stray_arithmetic_is_a_failure(monkeypatch):
    original = ClapsScore.get_bounds

    def divides(self, *args, **kwargs):
        import warnings

        warnings.warn_explicit(
            "divide by zero", RuntimeWarning, "mapie_claps/somewhere.py", 1
        )
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ClapsScore, "get_bounds", divides)
    assert "somewhere.py:1: divide by zero" in _fuzz_cases.run_case(VALID).failure


def test_mapies_own_tests_run_with_our_estimator_and_score(tmp_path, capsys):
    command = ["mapie_tests", "--files", "test_conformity_scores_utils.py"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"MAPIE [\d.]+: [1-9]\d* passed, 0 failed", out)
    assert (tmp_path / "mapie_tests.md").read_text(encoding="utf-8") == out


def test_a_failure_without_a_reason_is_told(monkeypatch, capsys):
    line = {"file": "test_regression.py", "outcome": "failed", "message": "wrong"}
    listed = line | {
        "test": "test_calibration_data_size_symmetric_score[0.6]",
        "message": "Failed: DID NOT RAISE ValueError",
    }
    lines = [listed, line | {"test": "test_new", "message": "wrong"}]
    monkeypatch.setattr(mapie_tests, "outcomes", lambda *given: lines)
    assert main(["mapie_tests"]) == 1
    out = capsys.readouterr().out
    assert "NO REASON: test_regression.py::test_new: wrong" in out
    assert "| n = 1/α − 1 | `test_calibration_data_size_symmetric_score` | 1 |" in out
    lines.pop()
    assert main(["mapie_tests"]) == 0
    # The message counts, too.
    listed["message"] = "another"
    assert main(["mapie_tests"]) == 1
    for text, patterns in mapie_tests.EXCEPTIONS.values():
        assert text
        assert patterns


@pytest.mark.parametrize("files", [["--files", "test_none.py"], ["--rows", "3"]])
def test_mapies_tests_that_are_not_there(files, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["mapie_tests", *files])
    assert re.search("without test_none|at least 20", capsys.readouterr().err)
