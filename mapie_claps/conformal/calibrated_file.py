"""Calibrated objects ↔ files: scores, and all that rows have brought since."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files.codec import Context, check_saveable, register, saved_as
from .calibration_state import State
from .groups import ColumnGroups, EpistemicGroups
from .likelihood_ratio import LikelihoodRatio
from .online import AdaptiveLevels
from .parts import fingerprint_of
from .row_rule import CalibrationRows
from .support import Support, check_support

if TYPE_CHECKING:
    from .calibration import Calibrated

FIELDS = ("estimator", "confidence_level", "scores", "signed", "sym", "support")
OF_ROWS = ("scores", "weights", "groups", "weights_of", "groups_of")
OF_LEVELS = ("alpha", "gamma", "window", "n_observed", "n_missed", "time")


def _check_functions(rows: CalibrationRows, estimator: Any) -> None:
    """Raise for functions of x which a file cannot hold."""
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
    if ratio is None or not ratio.encodes:
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
        state = replace(calibrated._state, followed=calibrated._adaptive())
        rows = state.rows
        fresh = state.followed is None and not len(state.in_posterior)
        if fresh and (rows is None or rows.is_plain):
            calibrated._scores()  # raises if not calibrated
        check_saveable(calibrated._fitted())
        if rows is not None:
            calibrated._check_estimator()  # a file must not make old scores look new
            _check_functions(rows, calibrated._fitted())
        # from_scores reads nothing but scores, and at least one.
        plain = fresh and rows is not None and rows.is_plain and len(rows) > 0
        return {
            "estimator": calibrated._fitted(),
            "confidence_level": calibrated.confidence_level,
            "scores": calibrated._scores() if plain else state,
            "signed": True if rows is None else rows.signed,
            "sym": calibrated.sym,
            "support": check_support(calibrated.support),
        }

    def from_fields(values: dict[str, Any], context: Context) -> Any:
        options = {k: values[k] for k in ("sym", "support")}
        basic = values["estimator"], values["confidence_level"]
        state, signed = values["scores"], values["signed"]
        if not isinstance(state, State):
            return cls.from_scores(basic[0], state, basic[1], signed=signed, **options)
        made = cls(*basic, **options)
        made._state = state
        if state.rows is not None:
            ratio = state.rows.weights_of
            if isinstance(ratio, LikelihoodRatio) and ratio.encodes:
                ratio.estimator = made._fitted()
            made._set_rows(replace(state.rows, signed=signed), state.followed)
        return made

    register(cls, tag, to_fields, from_fields, FIELDS)


def _state_to_fields(state: State) -> dict[str, Any]:
    rows, keys = state.rows, state.in_posterior
    found = {name: getattr(rows, name, None) for name in OF_ROWS}
    if found["groups"] is not None:
        found["groups"] = found["groups"].tolist()
    return found | {
        "adaptive": state.followed,
        "posterior_rows": keys if len(keys) else None,
    }


def _state_from_fields(values: dict[str, Any], context: Context) -> State:
    of_rows, keys = {k: values[k] for k in OF_ROWS}, values["posterior_rows"]
    if of_rows["groups"] is not None:
        of_rows["groups"] = np.array(of_rows["groups"], dtype=object)
    return State(
        None if of_rows["scores"] is None else CalibrationRows(**of_rows),
        values["adaptive"],
        State().in_posterior if keys is None else keys,
    )


def _levels_to_fields(levels: AdaptiveLevels) -> dict[str, Any]:
    return {name: getattr(levels, name) for name in OF_LEVELS} | {
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
    State,
    "calibration state",
    _state_to_fields,
    _state_from_fields,
    (*OF_ROWS, "adaptive", "posterior_rows"),
)
register(
    AdaptiveLevels,
    "adaptive levels",
    _levels_to_fields,
    _levels_from_fields,
    (*OF_LEVELS, "labels", "current"),
)
