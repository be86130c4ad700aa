"""Attacks on promises: what must be refused, named or unharmed.

``_fuzz_cases`` draws tables and parameters for one path from fit to interval. Here
each attack knows its right outcome: an error with a certain text, a warning, or
the same numbers as without the attack.
"""

import copy
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import (
    ClapsModule,
    conformal_quantile,
    load,
    metrics,
    partial_sums,
    save,
    sums_of,
    update_posterior,
    with_sums,
)
from ..exceptions import FileFormatError
from ..metrics import interval_score, mean_width
from ._fuzz_scene import MIXING, AttackCase, Scene


class Unharmed(Exception):
    """An attack that had to have an effect had none."""


def _must_raise(
    call: Callable[[], Any], message: str, *errors: type[Exception]
) -> None:
    """Raise ``Unharmed`` unless the call ends in such an error."""
    expected = errors or (ValueError,)
    try:
        call()
    except expected as error:
        if not re.search(message, str(error)):
            raise Unharmed(f"another message: {error}") from error
        return
    raise Unharmed("no error")


def _must_be_equal(found: Any, expected: Any, rtol: float = 0.0) -> None:
    if not np.allclose(found, expected, rtol=rtol, atol=0.0, equal_nan=True):
        raise Unharmed(f"{found!r} in place of {expected!r}")


def rows_that_mix(scene: Scene) -> None:
    """A network whose output for a row depends on the batch."""
    cls = MIXING[scene.case.variant % len(MIXING)]
    model = ClapsModule(scene.network(cls))
    _must_raise(lambda: model.fit(scene.X, scene.y), "depends on the other rows")


def networks_that_cannot_be_watched(scene: Scene) -> None:
    """Compiled, lazy, without numbers, complex, or of another width."""
    net = scene.network()
    bad: list[tuple[Callable[[], nn.Module], str]] = [
        (lambda: torch.jit.script(nn.Linear(3, 1)), "compiled by torch.jit"),
        (lambda: nn.Sequential(nn.LazyLinear(1)), "lazy layers"),
        (lambda: net.to("meta"), "holds no numbers"),
        (lambda: nn.Linear(3, 1, dtype=torch.complex64), "complex weights"),
        (lambda: nn.Linear(4, 1), "forward pass fails"),
        # One output is taken for a mean, two for mean and noise: another message.
        (
            lambda: nn.Sequential(net.body, nn.Tanh()),
            "forward pass that returns|output of none of its",
        ),
    ]
    make, message = bad[scene.case.variant % len(bad)]
    with torch.random.fork_rng():
        network = make()
    fit = ClapsModule(network).fit
    _must_raise(lambda: fit(scene.X, scene.y), message, TypeError, ValueError)


def batches_of_any_size(scene: Scene) -> None:
    """Batches, some of no rows, give what the table gives."""
    X, y, step = scene.X, scene.y, scene.case.batch
    parts = [(X[i : i + step], y[i : i + step]) for i in range(0, len(X), step)]
    parts.insert(scene.case.variant % (len(parts) + 1), (X[:0], y[:0]))
    net = scene.network()
    one = scene.intervals(ClapsModule(net).fit(X, y))
    other = ClapsModule(net, batch_size=1 + scene.case.variant).fit(parts)
    _must_be_equal(scene.intervals(other), one, rtol=1e-6)


def another_default_device(scene: Scene) -> None:
    """New tensors go where there are no numbers."""
    expected = scene.intervals(scene.fitted())
    net = scene.network()
    torch.set_default_device("meta")
    try:
        model = ClapsModule(net, batch_size=scene.case.batch).fit(scene.X, scene.y)
        found = scene.intervals(model)
        update_posterior(model, scene.X_cal, scene.y_cal).predict(scene.X_test)
    finally:
        torch.set_default_device(None)
    _must_be_equal(found, expected)


class _Broken:
    """An estimator that gives a bad scale in one row when it is told to."""

    value: float | None = None

    def __init__(self, model: Any, row: int) -> None:
        self.model, self.row = model, row

    def predict(self, X: Any, return_std: bool = False) -> Any:
        mu, std = self.model.predict(X, return_std=True)
        std = np.array(std)
        if self.value is not None:
            std[self.row] = self.value
        return (mu, std) if return_std else mu


def scales_that_break_when_predicting(scene: Scene) -> None:
    """A standard deviation that is none, after a sound calibration."""
    broken = _Broken(scene.fitted(), scene.case.variant % 9)
    conformal = scene.calibrated(broken)
    broken.value = (-1.0, 0.0, np.nan, np.inf)[scene.case.seed % 4]
    predict = conformal.predict_interval
    _must_raise(lambda: predict(scene.X_test, True), "standard deviation of")


def swapped_ends(scene: Scene) -> None:
    """Intervals that are upside down in some rows."""
    bounds = np.sort(scene.rng.normal(size=(20, 2, 1)), axis=1)
    rows = scene.rng.choice(20, 1 + scene.case.variant, replace=False)
    bounds[rows] = bounds[rows, ::-1]
    y = scene.rng.normal(size=20)
    calls: list[Callable[[], Any]] = [
        lambda: mean_width(bounds),
        lambda: interval_score(y, bounds, 0.9),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        if not any(f"Got {len(rows)} of 20 rows" in str(w.message) for w in caught):
            raise Unharmed("swapped ends without a warning")


def numbers_that_are_none(scene: Scene) -> None:
    """NaN, infinity and columns among rows, where a number would come of them."""
    good = 1 + scene.rng.random(scene.case.n)
    gap, row = good.copy(), scene.case.seed % scene.case.n
    gap[row] = np.nan
    end, column = good.copy(), good[:, None]
    end[row] = (np.inf, -1.0)[scene.case.seed % 2]
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (metrics.epistemic_fraction, (good, gap)),
        (metrics.scale_ratio, (good, column)),
        (metrics.width_ratio, (good, column)),
        (metrics.score_difference, (gap, good)),
        (metrics.violation_rate, (gap, 0.9)),
        (metrics.relative_width_reduction, (gap, good)),
        (metrics.quantile_loss, (gap, column, [0.5])),
        (metrics.crps, (good, gap[:, None])),
        (metrics.predictive_nll, (good, gap, good)),
        (metrics.noise_floor_diagnostics, (gap, 1e-3)),
        (conformal_quantile, (gap, [0.5])),
        (metrics.coverage, (gap, np.column_stack([good, good]))),
        (metrics.epistemic_fraction, (good, end)),
        (metrics.scale_ratio, (end, good)),
        (metrics.width_ratio, (good, end)),
        (metrics.relative_width_reduction, (good, end)),
        (metrics.violation_rate, (good, 0.9)),
        (metrics.predictive_nll, (good, good, end)),
        (metrics.noise_floor_diagnostics, (end, 1e-3)),
        (metrics.regional_coverage, (good, np.c_[good, good], {"a": good})),
    ]
    call, arguments = calls[scene.rng.integers(len(calls))]
    _must_raise(lambda: call(*arguments), "NaN|shape|not finite|are not|a mask")


def questions_without_answer(scene: Scene) -> None:
    """Probabilities of NaN, and of more or fewer values than rows."""
    conformal, X = scene.calibrated(scene.fitted()), scene.X_test
    y = np.zeros(len(X))
    y[scene.case.seed % len(y)] = np.nan
    bad = (y, np.zeros(len(X) + 1), np.zeros(1), np.full((len(X), 2), np.nan))
    asked = bad[scene.case.variant % len(bad)]
    _must_raise(lambda: conformal.cdf(X, asked), "Got y")


def hands_in_the_calibration(scene: Scene) -> None:
    """What is handed out is a copy; what cannot change any more is refused."""
    conformal = scene.calibrated(scene.fitted())
    expected = conformal.predict_interval(scene.X_test, True)[1]
    conformal.quantiles(True)[...] /= 2
    conformal.conformity_scores_[...] = 0
    conformal.signed_scores_[...] = 0
    _must_be_equal(conformal.predict_interval(scene.X_test, True)[1], expected)
    conformal.support = ("integer", (0.0, 1.0), [0.0, 3.0])[scene.case.variant % 3]
    predict = conformal.predict_interval
    _must_raise(lambda: predict(scene.X_test, True), "were scored with")


def foreign_sums(scene: Scene) -> None:
    """Sums of a network that differs in one weight."""
    model, net = scene.fitted(), scene.network()
    with torch.no_grad():
        weights = list(net.parameters())[scene.case.variant % 6]
        weights.view(-1)[scene.case.seed % weights.numel()] += 1e-3
    other = ClapsModule(net).fit(scene.X, scene.y)
    more = partial_sums(other, scene.X_cal, scene.y_cal)
    _must_raise(lambda: sums_of(model) + more, "another network")
    _must_raise(lambda: with_sums(model, more), "another network")


def models_that_change(scene: Scene) -> None:
    """Fitted again, changed in place, or with another scale, after calibration."""
    model = scene.fitted()
    conformal = scene.calibrated(model)
    conformal.predict_interval(scene.X_test, True)
    changes: list[Callable[[], Any]] = [
        lambda: model.fit(scene.X_cal, scene.y_cal),
        lambda: model.set_params(scale="aleatoric"),
        lambda: model.partial_fit(scene.X_cal, scene.y_cal),
        lambda: model.set_params(prior_precision=7.0).fit(scene.X, scene.y),
        lambda: model.network_.tensors()[scene.case.seed % 6].mul_(1.001),
        lambda: model.model_.posterior.scale.mul_(1.001),
    ]
    changes[scene.case.variant % len(changes)]()
    predict = conformal.predict_interval
    _must_raise(lambda: predict(scene.X_test, True), "changed since calibration")


def targets_that_are_no_numbers(scene: Scene) -> None:
    """Gaps, complex numbers, dates, infinity."""
    import pandas as pd

    row, bad = scene.case.seed % scene.case.n, scene.y.astype(object)
    forms: list[tuple[Any, str]] = [
        (None, f"None in row {row}"),
        (pd.NA, f"<NA> in row {row}"),
        (pd.NaT, f"NaT in row {row}"),
        (np.nan, "NaN or infinity"),
        (-np.inf, "NaN or infinity"),
        ("text", "could not convert"),
    ]
    bad[row], message = forms[scene.case.variant % len(forms)]
    model = ClapsModule(scene.network())
    for y in (bad, bad.tolist(), pd.Series(bad)):
        _must_raise(lambda y=y: model.fit(scene.X, y), message)  # type: ignore[misc]
    _must_raise(lambda: model.fit(scene.X, scene.y + 1j), "of type complex128")


def files_that_are_none(scene: Scene) -> None:
    """A pipe or a folder where a file is to be written."""
    model = scene.fitted()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        os.mkfifo(path) if scene.case.variant % 2 else path.mkdir()
        _must_raise(lambda: save(model, path), "no regular file")
        if path.is_file() or len(os.listdir(folder)) != 1:
            raise Unharmed("something was replaced or left")


def files_with_a_wrong_byte(scene: Scene) -> None:
    """One byte of a file changed, or its end cut off."""
    model = scene.fitted()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save(model, path)
        content = bytearray(path.read_bytes())
        place = int(scene.rng.integers(len(content)))
        if scene.case.variant % 2:
            content[place] ^= 1 << scene.case.seed % 8
        else:
            del content[place:]
        path.write_bytes(bytes(content))
        try:
            found = load(path, network=scene.network())
        except FileFormatError:
            return
    # A space or the like: whatever loads is what was saved.
    _must_be_equal(scene.intervals(found), scene.intervals(model))


def interrupts(scene: Scene) -> None:
    """Ctrl-C at some line of ours: the old fit, or the new one, is there as a whole."""
    model, new = scene.fitted(), scene.fitted().fit(scene.X_cal, scene.y_cal)
    old = copy.deepcopy(model)
    stop = 1 + scene.case.seed % 600
    seen = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal seen
        if "mapie_claps" not in frame.f_code.co_filename:
            return None
        seen += event == "line"
        if seen == stop:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        model.fit(scene.X_cal, scene.y_cal)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    found = model.predict(scene.X_test, return_std=True)
    for possible in (old, new):
        if np.array_equal(found, possible.predict(scene.X_test, return_std=True)):
            return
    raise Unharmed("an interrupt left neither the old nor the new fit")


ATTACKS: dict[str, Callable[[Scene], None]] = {
    attack.__name__: attack
    for attack in (
        rows_that_mix,
        networks_that_cannot_be_watched,
        batches_of_any_size,
        another_default_device,
        scales_that_break_when_predicting,
        swapped_ends,
        numbers_that_are_none,
        questions_without_answer,
        hands_in_the_calibration,
        foreign_sums,
        models_that_change,
        targets_that_are_no_numbers,
        files_that_are_none,
        files_with_a_wrong_byte,
        interrupts,
    )
}


def run_attack(case: AttackCase) -> str | None:
    """What went wrong, or None if all came as it has to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those that count are caught where they do
        try:
            ATTACKS[case.attack](Scene(case))
        except Unharmed as error:
            return str(error)
        except Exception as error:
            return f"undocumented {type(error).__name__}: {error}"
    return None
