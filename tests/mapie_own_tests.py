"""Run MAPIE's own tests with our estimator and score in place of MAPIE's.

MAPIE's wheel brings its tests along. Those of regression, scores, the life cycle and
conditional coverage run here in a process of their own, where ``LinearRegression`` and
``DummyRegressor`` are a small ``ClapsRegressor`` and the absolute score and the score
by standard deviations are ``ClapsScore``. Tables of 500 rows are cut to 60.

Prints how many tests passed, and every exception with its reason. A failure that is not
in the list of exceptions is printed as such, and the command ends with 1.

    python tests/mapie_own_tests.py
    python tests/mapie_own_tests.py --files test_common.py
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FILES = (
    "test_common.py",
    "test_regression.py",
    "test_conformity_scores_bounds.py",
    "test_conformity_scores_property.py",
    "test_conformity_scores_utils.py",
    "test_conditional.py",
)
REPORT = "MAPIE_CLAPS_REPORT"  # variable with the file that the plugin writes
MANY, FEW = 500, 60  # rows of the tables that most of MAPIE's tests share, and here
NOT_OUT_OF_SAMPLE = "rows without an out-of-sample prediction"
#: Why a test of MAPIE does not hold for ours. None of them is a wrong interval.
REASONS = {
    "never out of bag": "some rows belong to every resampling: ours asks for more",
    "private split": "MAPIE's private class leaves half of the rows without an "
    "out-of-sample prediction, which its public classes never do",
    "numbers": "the test expects numbers of least squares or of the mean of y",
    "two rows": "a network needs two rows to learn a scale, the test gives it one",
    "no model": "the test calls the score by hand, without a model that has a scale",
    "n = 1/α − 1": "MAPIE asks for one calibration row more than the rank "
    "⌈(n + 1)(1 − α)⌉ needs",
    "no scale": "the test fits gradient boosting, whose predict knows no return_std",
    "level 1.0": "a level of 1 is refused: only the whole line covers every row",
    "wording": "the same error in other words",
    "time series": "TimeSeriesRegressor refuses scores by standard deviations",
    "another score": "the test takes MAPIE's own score, which is not replaced",
    "parts of folds": "the prediction comes from a model of all rows, intervals from "
    "models of the folds, which may differ by more than the width",
}
#: Reasons by patterns of a test (file::test) and of its message; the first one counts.
EXCEPTIONS = (
    ("never out of bag", r"not_enough_resamplings|after_bootstrap", NOT_OUT_OF_SAMPLE),
    ("private split", r"test_regression\.py::.*(split|cv5|cv6)", NOT_OUT_OF_SAMPLE),
    ("numbers", r"linear_(data_confidence_interval|regression_results)", "Not equal"),
    ("numbers", r"results_prefit(_naive)?$|results_with_groups", "[nN]ot equal"),
    ("numbers", r"residual_normalised_prefit_conformity_score", "Not equal"),
    ("two rows", r"residual_normalised_score_pipe$", "minimum of 2 is required"),
    ("no model", r"bounds\.py::test_(absolute|std)_", r"ClapsScore\(\) without an est"),
    ("no model", r"std_(bounds_plus|bounds_base|predict_set)", "DummyStdEstimator"),
    ("n = 1/α − 1", r"calibration_data_size_a?symmetric", "DID NOT RAISE"),
    ("no scale", r"param(eter)?s?_", "argument 'return_std'|takes no return_std"),
    ("level 1.0", r"infinite_intervals$", "confidence_level=1"),
    ("wording", r"signed_scores_raises_without_std", "did not match"),
    ("time series", r"test_time_series_regressor", "enbpi"),
    ("another score", r"conformity_score\[conformity_score1-split", "too low"),
    ("parts of folds", r"prediction_between_low_up\[cv", "np.False_"),
)


# The plugin: this file is loaded by pytest with -p, before MAPIE is imported ----------


def swap() -> None:
    """Replace what MAPIE and its tests are about to import; nothing is put back."""
    import sklearn.datasets
    import sklearn.dummy
    import sklearn.linear_model

    from mapie_claps import ClapsRegressor
    from mapie_claps.estimators.recipe import PAPER

    # The paper's recipe with one layer: a fit takes hundredths of a second.
    recipe = replace(PAPER, last_layer="ridge", bias_in_posterior=True)
    size = {"hidden_layer_sizes": (16,), "max_steps": 30, "learning_rate": 0.05}
    fast = ClapsRegressor(**size, recipe=recipe, random_state=0).get_params()

    class SmallClapsRegressor(ClapsRegressor):
        """``ClapsRegressor`` with other defaults."""

        def __init__(self, **params: Any) -> None:
            params.pop("strategy", None)  # of DummyRegressor
            super().__init__(**(fast | params))

        # scikit-learn reads the names of parameters from it.
        __init__.__signature__ = inspect.signature(ClapsRegressor.__init__)

    sklearn.linear_model.LinearRegression = SmallClapsRegressor
    sklearn.dummy.DummyRegressor = SmallClapsRegressor
    make_regression = sklearn.datasets.make_regression

    def small(n_samples: int = 100, *args: Any, **kwargs: Any) -> Any:
        n = FEW if n_samples == MANY else n_samples
        return make_regression(n, *args, **kwargs)

    sklearn.datasets.make_regression = small

    import mapie.regression  # noqa: F401, with the new defaults
    from mapie import conformity_scores
    from mapie.conformity_scores import bounds, utils

    from mapie_claps import ClapsScore

    class Score(ClapsScore):
        """``ClapsScore`` with the arguments of MAPIE's scores."""

        def __init__(self, sym: bool = True, **_: Any) -> None:
            super().__init__(sym=sym, support=None)

    for module in (conformity_scores, bounds, utils):
        module.AbsoluteConformityScore = module.StdConformityScore = Score
    by_name = utils.CONFORMITY_SCORES_STRING_MAP[conformity_scores.BaseRegressionScore]
    by_name |= {"absolute": Score, "std_normalized": Score}

    # Imported with the new scores.
    from mapie.conditional_conformal_prediction import (
        ConditionalSplitConformalRegressor as Conditional,
    )

    conformalize = Conditional.conformalize

    def with_estimator(self: Any, *args: Any, **kwargs: Any) -> Any:
        # MAPIE asks no estimator for its scale here: the score has to hold it.
        if isinstance(self._conformity_score, Score):
            self._conformity_score.estimator = self._mapie_regressor.estimator
        return conformalize(self, *args, **kwargs)

    Conditional.conformalize = with_estimator


def pytest_configure() -> None:
    if any(name.startswith("mapie.") for name in sys.modules):
        raise ImportError("Got MAPIE imported before the swap, which has to be first.")
    swap()


def pytest_runtest_logreport(report: Any) -> None:
    """Write what became of a test, a line of JSON each."""
    if report.when != "call" and report.passed:
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    line = {
        "file": Path(report.location[0]).name,
        "test": report.location[2],
        "outcome": report.outcome,
        "message": str(crash.message if crash else report.longrepr or ""),
    }
    with Path(os.environ[REPORT]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


# The command --------------------------------------------------------------------------


def outcomes(names: Sequence[str]) -> list[dict[str, str]]:
    """What became of each test, in a process of its own."""
    spec = find_spec("mapie")
    folders = [] if spec is None else spec.submodule_search_locations or []
    tests = [Path(folder) / "tests" / name for folder in folders for name in names]
    if not tests or not all(path.is_file() for path in tests):
        raise ValueError(
            f"Got MAPIE {version('mapie')} without {', '.join(names)}. Install a wheel "
            'that brings its tests along, for example "mapie>=1.6".'
        )
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--tb=no"]
    command += ["-p", Path(__file__).stem, "-p", "no:cacheprovider"]
    command += [f"--rootdir={tests[0].parent}", *map(str, tests)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.jsonl"
        env = os.environ | {REPORT: str(path), "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        # pytest ends with 0 if all passed, with 1 if some failed.
        if done.returncode not in (0, 1) or not path.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout}")
        return [json.loads(line) for line in path.read_text().splitlines()]


def reason_of(line: dict[str, str]) -> str | None:
    """Why a failure is an exception; None if it is none."""
    name = f"{line['file']}::{line['test']}"
    for reason, test, message in EXCEPTIONS:
        if re.search(test, name) and re.search(message, line["message"]):
            return reason
    return None


def report(lines: Sequence[dict[str, str]]) -> tuple[str, int]:
    """Counts by file, exceptions by reason and test, and how many have no reason."""
    counts = Counter((line["file"], line["outcome"]) for line in lines)
    failed = [(line, reason_of(line)) for line in lines if line["outcome"] == "failed"]
    unlisted = [line for line, reason in failed if reason is None]
    tests = Counter((r, line["test"].split("[")[0]) for line, r in failed if r)
    passed = sum(line["outcome"] == "passed" for line in lines)
    parts = [
        f"MAPIE {version('mapie')}: {passed} passed, {len(failed)} failed, of which "
        f"{len(failed) - len(unlisted)} are exceptions with a reason and "
        f"{len(unlisted)} are not.\n",
        "| MAPIE's tests | passed | failed |\n|---|---:|---:|",
        *(
            f"| {name} | {counts[name, 'passed']} | {counts[name, 'failed']} |"
            for name in dict.fromkeys(line["file"] for line in lines)
        ),
        "\nExceptions:\n\n| reason | test | cases |\n|---|---|---:|",
        *(f"| {reason} | `{test}` | {n} |" for (reason, test), n in tests.items()),
        "",
        *(f"- {r}: {REASONS[r]}." for r in dict.fromkeys(r for r, _ in tests)),
        *(
            f"NO REASON: {line['file']}::{line['test']}: {line['message'][:300]}"
            for line in unlisted
        ),
    ]
    return "\n".join(parts) + "\n", len(unlisted)


def main(given: Sequence[str] | None = None) -> int:
    """Run the tests and print the report; 1 if a failure is not an exception."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    text = "of MAPIE's tests"
    parser.add_argument("--files", nargs="+", default=FILES, metavar="NAME", help=text)
    lines = outcomes(parser.parse_args(given).files)
    text, unlisted = report(lines)
    sys.stdout.write(text)
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
