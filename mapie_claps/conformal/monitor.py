"""Is the guarantee still there? Two bets against exchangeability, one on each cause."""

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._validation import check_share
from ..exceptions import ExchangeabilityWarning
from ..files.codec import Context, check_saveable, register
from ..files.methods import SaveMixin
from .dask import conformity_scores
from .dask_partitions import fractions_of_partition, fractions_of_rows
from .mapie import JumperMartingale
from .parts import check_splits_variance, check_unchanged, fingerprint_of
from .row_parts import row_parts

Array = NDArray[np.float64]
MEANING = {
    "nothing": "Nothing speaks against exchangeable rows so far.",
    "inputs": (
        "Rows come from elsewhere: the model knows more or less of them than of the "
        "calibration rows. Calibrate with likelihood_ratio weights or on new rows."
    ),
    "noise": (
        "Targets lie nearer to or farther from their predictions than at calibration, "
        "in units of the scale: the noise or the relation to x has changed. Calibrate "
        "on new rows; fit again if intervals become too wide."
    ),
    "both": (
        "Rows come from elsewhere, and their targets do not fit the scale any more. "
        "Fit and calibrate on new rows."
    ),
}


class ExchangeabilityMonitor(SaveMixin):
    r"""Watch a calibrated model in use, and say what has changed.

    Two martingales of MAPIE bet against exchangeability: one on the conformity scores,
    which sees changed noise once targets arrive, one on the epistemic fraction
    :math:`\varphi^\top\Sigma\varphi / v`, which sees rows from elsewhere before. Each
    raises an alarm when its wealth exceeds 2 / ``test_level``: with a probability of at
    most ``test_level`` for both together, however long exchangeable rows are watched.

    Parameters
    ----------
    calibrated : CalibratedRegressor or StreamingConformalRegressor
        Calibrated, around an estimator with ``predict_variance``. Its scores are the
        reference.
    X_calibration : array-like of shape (n_cal, p), or iterable of batches
        Inputs of the calibration rows, whose epistemic fractions are the reference;
        also as a Dask array or DataFrame.
    test_level : float, default=0.05
        Probability of a false alarm.
    random_state : int or None, default=0
        Seed of the random numbers that break ties.

    Attributes
    ----------
    changed : str
        "nothing", "inputs", "noise" or "both".
    wealth : dict
        Wealth of both bets by now; 1 at the start.
    n_rows : dict
        Rows that each bet has seen.
    alarm_rows : dict
        Number of rows after which each alarm came; None without one.

    Notes
    -----
    Needs MAPIE 1.6, for its martingales. A shift of x that leaves both the epistemic
    fraction and the scores alone is not seen, and need not be: intervals stay as they
    were.

    Examples
    --------
    >>> import numpy as np
    >>> from mapie_claps import (
    ...     CalibratedRegressor, ClapsRegressor, ExchangeabilityMonitor)
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (600, 1))
    >>> y = X[:, 0] + rng.normal(0, 0.1, 600)
    >>> model = ClapsRegressor(n_members=2, random_state=0).fit(X[:200], y[:200])
    >>> calibrated = CalibratedRegressor(model).conformalize(X[200:400], y[200:400])
    >>> monitor = ExchangeabilityMonitor(calibrated, X[200:400])
    >>> monitor.update(X[400:], y[400:]).changed
    'nothing'
    """

    def __init__(
        self,
        calibrated: Any,
        X_calibration: Any,
        *,
        test_level: float = 0.05,
        random_state: int | None = 0,
    ) -> None:
        self.test_level = check_share("test_level", test_level, hint="Use 0.05.")
        self.calibrated = calibrated
        calibrated._scores()  # raises if the model changed since calibration
        scores = calibrated.conformity_scores_
        self._made_with = fingerprint_of(calibrated._fitted())
        check_splits_variance(calibrated._fitted())
        references = {"inputs": self._fractions(X_calibration), "noise": scores}
        rngs = np.random.default_rng(random_state).spawn(2)
        for name, reference in references.items():
            if not len(reference):
                raise ValueError(
                    f"Got no calibration rows as a reference of the {name}, but "
                    "expected at least one. Pass the inputs of the calibration rows."
                )
        self._bets = {
            name: JumperMartingale(reference, self.test_level / 2, rng)
            for (name, reference), rng in zip(references.items(), rngs, strict=True)
        }

    def update(self, X: Any, y: Any = None, *, inputs_seen: bool = False) -> Self:
        """Watch new rows, in their order.

        Parameters
        ----------
        X : array-like of shape (n, p), iterable of batches, or Dask collection
            Inputs. Of a Dask array or DataFrame, workers compute fractions and scores.
        y : array-like of shape (n,), optional
            Targets; without them the inputs alone are watched.
        inputs_seen : bool, default=False
            Whether the inputs of these rows were watched before, when the targets had
            not yet arrived.

        Returns
        -------
        ExchangeabilityMonitor
            This object. A first alarm is also a warning, which comes when the rows have
            been counted.
        """
        # Fractions and scores of another model would look like a change of the rows.
        check_unchanged(self._model(), self._made_with)
        self.calibrated._check_estimator()
        rows, scores = list(X) if y is None and hasattr(X, "__next__") else X, None
        if hasattr(X, "to_delayed"):
            if y is not None:
                support = self.calibrated.support
                scores = conformity_scores(self._model(), X, y, support=support)
        elif y is not None or any(
            target is not None for _, target in row_parts(self._model(), rows)
        ):
            scores = self.calibrated.score_rows(rows, y)
        return self._watch(None if inputs_seen else self._fractions(rows), scores)

    def _watch(self, fractions: Array | None, scores: Array | None) -> Self:
        """Bet on the fractions and scores of new rows, as far as they are there."""
        if fractions is None and scores is None:
            raise ValueError(
                "Got inputs_seen=True without y: there is nothing new to watch. Pass "
                "the targets, or leave inputs_seen out for new inputs."
            )
        before, bets = self.changed, dict(self._bets)
        for name, values in (("inputs", fractions), ("noise", scores)):
            if values is not None:
                bets[name] = bets[name].after(values)
        self._bets = bets  # both or none
        if self.changed != before:
            warnings.warn(
                f"Exchangeability is rejected ({self.changed}; wealth "
                + ", ".join(f"{k}: {v:.3g}" for k, v in self.wealth.items())
                + f"; limit {2 / self.test_level:.3g}). {MEANING[self.changed]}",
                ExchangeabilityWarning,
                stacklevel=3,
            )
        return self

    @property
    def changed(self) -> str:
        """What has changed, as far as the bets tell."""
        alarms = [name for name, bet in self._bets.items() if bet.alarm is not None]
        return "both" if len(alarms) == 2 else (alarms or ["nothing"])[0]

    @property
    def wealth(self) -> dict[str, float]:
        """Wealth of both bets."""
        return {name: bet.wealth for name, bet in self._bets.items()}

    @property
    def n_rows(self) -> dict[str, int]:
        """Rows seen by both bets."""
        return {name: bet.n_rows for name, bet in self._bets.items()}

    @property
    def alarm_rows(self) -> dict[str, int | None]:
        """Number of rows after which each alarm came."""
        return {name: bet.alarm for name, bet in self._bets.items()}

    def __repr__(self) -> str:
        seen = ", ".join(f"{n} {name}" for name, n in self.n_rows.items())
        return (
            f"ExchangeabilityMonitor(test_level={self.test_level:g}): {self.changed} "
            f"after {seen}\n{MEANING[self.changed]}"
        )

    def _model(self) -> Any:
        return self.calibrated._fitted()

    def _fractions(self, X: Any) -> Array:
        model = self._model()
        if hasattr(X, "to_delayed"):
            return fractions_of_rows(model, X)
        parts = [fractions_of_partition(model, X_) for X_, _ in row_parts(model, X)]
        return np.concatenate([np.empty(0), *parts])


def _to_fields(monitor: ExchangeabilityMonitor) -> dict[str, Any]:
    check_saveable(monitor.calibrated)
    check_unchanged(monitor._model(), monitor._made_with)
    return {
        "calibrated": monitor.calibrated,
        "test_level": monitor.test_level,
        "bets": {
            name: {
                "values": bet.values,
                "p_values": np.array(bet.p_values, dtype=np.float64),
                "generator": bet.rng.bit_generator.state,
            }
            for name, bet in monitor._bets.items()
        },
    }


def _from_fields(values: dict[str, Any], context: Context) -> ExchangeabilityMonitor:
    monitor = ExchangeabilityMonitor.__new__(ExchangeabilityMonitor)
    monitor.calibrated, monitor.test_level = values["calibrated"], values["test_level"]
    monitor._made_with = fingerprint_of(monitor._model())
    monitor._bets = {}
    for name, saved in values["bets"].items():
        rng = np.random.default_rng()
        rng.bit_generator.state = saved["generator"]
        monitor._bets[name] = JumperMartingale(
            saved["values"], monitor.test_level / 2, rng, saved["p_values"].tolist()
        )
    return monitor


register(
    ExchangeabilityMonitor,
    "exchangeability monitor",
    _to_fields,
    _from_fields,
    ("calibrated", "test_level", "bets"),
)
