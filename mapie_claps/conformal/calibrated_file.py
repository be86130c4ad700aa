"""Calibrated objects ↔ files: scores, and all that rows have brought since."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..files.codec import Context, check_saveable, register, saved_as
from .groups import ColumnGroups, EpistemicGroups
from .likelihood_ratio import LikelihoodRatio
from .online import AdaptiveLevels
from .parts import fingerprint_of
from .row_rule import CalibrationRows
from .support import Support

if TYPE_CHECKING:
    from .calibration import Calibrated

FIELDS = ("estimator", "confidence_level", "scores", "signed", "sym", "support")


@saved_as("calibration state")
@dataclass(frozen=True, eq=False)
class State:
    """What stands in the place of the scores where there is more than scores."""

    scores: NDArray[np.float64] | None  # None: dropped since
    weights: NDArray[np.float64] | None
    groups: list[Any] | None  # label of each calibration row
    weights_of: Any
    groups_of: Any
    adaptive: Any
    posterior_rows: NDArray[np.int64] | None

    @classmethod
    def of(cls, calibrated: "Calibrated") -> "State":
        """State of an object."""
        kept = calibrated._rows_or_none()
        rows = CalibrationRows(np.empty(0)) if kept is None else kept
        _check_functions(rows)
        return cls(
            None if kept is None else rows.scores,
            rows.weights,
            None if rows.groups is None else rows.groups.tolist(),
            rows.weights_of,
            rows.groups_of,
            calibrated._adaptive(),
            keys if len(keys := calibrated._posterior_rows()) else None,
        )

    def give_to(self, calibrated: "Calibrated", signed: bool) -> None:
        """Let an object that has nothing but its estimator go on from here."""
        if self.scores is not None:
            labels = None
            if self.groups is not None:
                labels = np.empty(len(self.groups), dtype=object)
                labels[:] = self.groups
            rows = CalibrationRows(
                self.scores,
                signed,
                self.weights,
                labels,
                self.weights_of,
                self.groups_of,
            )
            ratio = rows.weights_of
            if isinstance(ratio, LikelihoodRatio) and ratio.encodes:
                ratio.estimator = calibrated._fitted()
            calibrated._set_rows(rows, self.adaptive)
        calibrated.__dict__["_followed"] = self.adaptive
        if self.posterior_rows is not None:
            calibrated.__dict__["_in_posterior"] = self.posterior_rows


def _check_functions(rows: CalibrationRows) -> None:
    """Raise for functions of the user's own, which a file cannot hold."""
    known = (ColumnGroups, EpistemicGroups)
    if rows.groups_of is not None and not isinstance(rows.groups_of, known):
        raise TypeError(
            f"Got groups as a {type(rows.groups_of).__name__}, which a file cannot "
            "hold. Use ColumnGroups or EpistemicGroups, or pass labels: conformalize("
            "X, y, groups=labels), predict_interval(X, groups=labels)."
        )
    ratio = rows.weights_of
    if ratio is not None and not isinstance(ratio, LikelihoodRatio):
        raise TypeError(
            f"Got weights as a {type(ratio).__name__}, which a file cannot "
            "hold. Use likelihood_ratio with its default classifier, or pass numbers: "
            "conformalize(X, y, weights=...), predict_interval(X, weights=...)."
        )


def _check_ratio(ratio: Any, estimator: Any) -> None:
    """Raise for a ratio that encodes rows with another model, which is not saved."""
    if not (isinstance(ratio, LikelihoodRatio) and ratio.encodes):
        return
    if fingerprint_of(ratio.estimator) != fingerprint_of(estimator):
        raise TypeError(
            "Got weights of a likelihood_ratio whose estimator is not the one that is "
            "calibrated; a file holds one of them. Make the ratio with the calibrated "
            "estimator, or pass numbers: conformalize(X, y, weights=...), "
            "predict_interval(X, weights=...)."
        )


def register_calibrated(cls: "type[Calibrated]", tag: str) -> None:
    """Let objects of a class be saved."""

    def to_fields(calibrated: "Calibrated") -> dict[str, Any]:
        rows = calibrated._rows_or_none()
        if calibrated._is_plain():
            calibrated._scores()  # raises if not calibrated
        # from_scores reads nothing but scores, and at least one.
        plain = calibrated._is_plain() and bool(len(calibrated._kept()))
        check_saveable(calibrated._fitted())
        if rows is not None:
            calibrated._check_estimator()  # a file must not make old scores look new
            _check_ratio(rows.weights_of, calibrated._fitted())
        return {
            "estimator": calibrated._fitted(),
            "confidence_level": calibrated.confidence_level,
            "scores": calibrated._scores() if plain else State.of(calibrated),
            "signed": True if rows is None else rows.signed,
            "sym": calibrated.sym,
            "support": calibrated._support(),
        }

    def from_fields(values: dict[str, Any], context: Context) -> Any:
        options = {k: values[k] for k in ("sym", "support")}
        basic = values["estimator"], values["confidence_level"]
        scores, signed = values["scores"], values["signed"]
        if not isinstance(scores, State):
            return cls.from_scores(basic[0], scores, basic[1], signed=signed, **options)
        made = cls(*basic, **options)
        scores.give_to(made, signed)
        return made

    register(cls, tag, to_fields, from_fields, FIELDS)


def _levels_to_fields(levels: AdaptiveLevels) -> dict[str, Any]:
    known = vars(levels)
    names = ("alpha", "gamma", "window", "n_observed", "n_missed", "time")
    return {name: known[name] for name in names} | {
        "labels": list(levels.current),
        "current": [a.tolist() for a in levels.current.values()],
    }


def _levels_from_fields(values: dict[str, Any], context: Context) -> AdaptiveLevels:
    labels, found = values.pop("labels"), values.pop("current")
    current = {k: np.array(a) for k, a in zip(labels, found, strict=True)}
    return AdaptiveLevels(**values, current=current)


saved_as("support")(Support)
saved_as("column groups")(ColumnGroups)
saved_as("epistemic groups")(EpistemicGroups)
register(
    AdaptiveLevels,
    "adaptive levels",
    _levels_to_fields,
    _levels_from_fields,
    ("alpha", "gamma", "window", "n_observed", "n_missed", "time", "labels", "current"),
)
