"""pytest plugin: MAPIE's tests meet our estimator and score in place of its own.

Loaded with ``-p``, before any of MAPIE's tests are imported. ``LinearRegression`` and
``DummyRegressor`` become a small ``ClapsRegressor``, the absolute score and the score
by standard deviations become ``ClapsScore``, also where they are defaults. The process
belongs to the command: nothing is put back.
"""

import inspect
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import sklearn.datasets
import sklearn.dummy
import sklearn.linear_model
from sklearn.exceptions import ConvergenceWarning

from ..estimators.regressor import ClapsRegressor
from .mapie_tests import REPORT, ROWS

OWN_ROWS = 500  # of the tables that most of MAPIE's tests share
# The paper's network with one layer: a fit takes hundredths of a second.
FAST: dict[str, Any] = ClapsRegressor.paper(
    hidden_layer_sizes=(),
    representation_size=16,
    max_steps=30,
    learning_rate=0.05,
    last_layer="ridge",
    bias_in_posterior=True,
    random_state=0,
).get_params()


class SmallClapsRegressor(ClapsRegressor):
    """``ClapsRegressor`` with other defaults."""

    def __init__(self, **params: Any) -> None:
        params.pop("strategy", None)  # of DummyRegressor
        super().__init__(**(FAST | params))

    # scikit-learn reads the names of parameters from it.
    __init__.__signature__ = inspect.signature(ClapsRegressor.__init__)  # type: ignore[attr-defined]


def _swap() -> None:
    """Replace what MAPIE and its tests are about to import."""
    sklearn.linear_model.LinearRegression = SmallClapsRegressor
    sklearn.dummy.DummyRegressor = SmallClapsRegressor
    make_regression, rows = sklearn.datasets.make_regression, int(os.environ[ROWS])

    def small(n_samples: int = 100, *args: Any, **kwargs: Any) -> Any:
        n = rows if n_samples == OWN_ROWS else n_samples
        return make_regression(n, *args, **kwargs)

    sklearn.datasets.make_regression = small

    import mapie.regression  # noqa: F401, with the new defaults
    from mapie import conformity_scores
    from mapie.conformity_scores import bounds, utils

    from ..conformal.score import ClapsScore

    class Score(ClapsScore):
        """``ClapsScore`` with the arguments of MAPIE's scores."""

        def __init__(self, sym: bool = True, **_: Any) -> None:
            super().__init__(sym=sym)

    for module in (conformity_scores, bounds, utils):
        module.AbsoluteConformityScore = Score
        module.StdConformityScore = Score
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
    """Swap before tests are collected; worker processes of joblib do without."""
    if any(name.startswith("mapie.") for name in sys.modules):
        raise ImportError("Got MAPIE imported before the swap, which has to be first.")
    _swap()


def pytest_runtest_setup() -> None:
    """A network of one step tells that it could train longer."""
    warnings.simplefilter("ignore", ConvergenceWarning)


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
