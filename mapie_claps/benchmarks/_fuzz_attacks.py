"""Attacks on promises: what must be refused, named or unharmed.

``_fuzz_cases`` draws tables and parameters for one path from fit to interval. Here
each attack knows its right outcome: an error with a certain text, a warning, or
the same numbers as without the attack.
"""

import copy
import operator
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import TestCase

import numpy as np
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor, nn
from torch.nn.functional import softplus

from .. import (
    ClapsModule,
    StreamingConformalRegressor,
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

Mix = Callable[[Tensor], Tensor]
#: What a network makes of the rows of a batch before it looks at them.
MIXING: tuple[Mix, ...] = (
    lambda x: (x - x.mean(0)) / (x.std(0, correction=0) + 0.1),
    lambda x: torch.softmax(x @ x.T, dim=1) @ x,  # attention to other rows
    lambda x: x.argsort(0).argsort(0).to(x.dtype),  # ranks
    lambda x: x.cumsum(0) / 10,  # a little of the rows before
    lambda x: x - x[0],
    lambda x: x - x.mean(0),  # see rows_that_mix
)
must_raise = TestCase().assertRaisesRegex


class Pair(nn.Module):
    """Mean and noise, of a size that makes fits fast."""

    def __init__(self, size: int, mix: Mix | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, size), nn.Tanh())
        self.mean, self.noise = nn.Linear(size, 1), nn.Linear(size, 1)
        self.mix = mix

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        phi = self.body(self.mix(x) if self.mix else x)
        return self.mean(phi), softplus(self.noise(phi)) + 1e-2


class Broken:
    """An estimator whose standard deviations are multiplied by a factor."""

    factor: Any = 1.0

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, X: Any, return_std: bool = False) -> Any:
        mu, std = self.model.predict(X, return_std=True)
        return (mu, std * self.factor) if return_std else mu


@dataclass
class Scene:
    """The numbers that an attack plays with, rows, networks and estimators."""

    attack: str
    seed: int
    n: int  # rows to fit
    batch: int  # rows in one batch
    size: int  # of φ
    level: float
    variant: int  # which of several forms

    def __post_init__(self) -> None:
        self.rng = rng = np.random.default_rng(self.seed)
        self.X = rng.normal(size=(self.n, 3))
        self.y = self.X[:, 0] + rng.normal(size=self.n)
        self.X_cal, self.X_test = rng.normal(size=(40, 3)), rng.normal(size=(9, 3))
        self.y_cal = self.X_cal[:, 0] + rng.normal(size=40)

    def one_of(self, forms: Any) -> Any:
        return forms[self.variant % len(forms)]

    def network(self, mix: Mix | None = None) -> Pair:
        """A network whose weights depend on the case alone."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return Pair(self.size, mix)

    def fitted(self, network: Pair | None = None) -> ClapsModule:
        model = ClapsModule(network or self.network(), batch_size=self.batch)
        return model.fit(self.X, self.y)

    def calibrated(self, model: Any) -> StreamingConformalRegressor:
        conformal = StreamingConformalRegressor(model, self.level)
        return conformal.conformalize(self.X_cal, self.y_cal)

    def intervals(self, model: Any) -> Any:
        return self.calibrated(model).predict_interval(self.X_test, True)[1]


class AttackCase(Scene):
    """Each method is an attack; any error says that a promise was broken."""

    def rows_that_mix(self) -> None:
        """A network whose output for a row depends on the batch."""
        mix = self.one_of(MIXING)
        network = self.network(mix)
        if mix is MIXING[-1]:  # in features of which neither head makes use
            nn.init.zeros_(network.mean.weight)
            nn.init.zeros_(network.noise.weight)
        fit = ClapsModule(network).fit
        must_raise(ValueError, "depends on the other rows", fit, self.X, self.y)

    def networks_that_cannot_be_watched(self) -> None:
        """Compiled, lazy, without numbers, complex, or of another width."""
        net = self.network()
        # One output is taken for a mean, two for mean and noise: another message.
        outputs = "forward pass that returns|output of none of its"
        bad: list[tuple[Callable[[], nn.Module], str]] = [
            (lambda: torch.jit.script(nn.Linear(3, 1)), "compiled by torch.jit"),
            (lambda: nn.Sequential(nn.LazyLinear(1)), "lazy layers"),
            (lambda: net.to("meta"), "holds no numbers"),
            (lambda: nn.Linear(3, 1, dtype=torch.complex64), "complex weights"),
            (lambda: nn.Linear(4, 1), "forward pass fails"),
            (lambda: nn.Sequential(net.body, nn.Tanh()), outputs),
        ]
        make, message = self.one_of(bad)
        with torch.random.fork_rng():
            fit = ClapsModule(make()).fit
        must_raise((TypeError, ValueError), message, fit, self.X, self.y)

    def batches_of_any_size(self) -> None:
        """Batches, some of no rows, give what the table gives."""
        X, y, step = self.X, self.y, self.batch
        parts = [(X[i : i + step], y[i : i + step]) for i in range(0, len(X), step)]
        parts.insert(self.variant % (len(parts) + 1), (X[:0], y[:0]))
        net = self.network()
        one = self.intervals(ClapsModule(net).fit(X, y))
        other = ClapsModule(net, batch_size=1 + self.variant).fit(parts)
        assert_allclose(self.intervals(other), one, rtol=1e-6)

    def another_default_device(self) -> None:
        """New tensors go where there are no numbers."""
        expected, net = self.intervals(self.fitted()), self.network()
        torch.set_default_device("meta")
        try:
            model = self.fitted(net)
            found = self.intervals(model)
            update_posterior(model, self.X_cal, self.y_cal).predict(self.X_test)
        finally:
            torch.set_default_device(None)
        assert_array_equal(found, expected)

    def scales_that_break_when_predicting(self) -> None:
        """A standard deviation that is none, after a sound calibration."""
        broken = Broken(self.fitted())
        predict = self.calibrated(broken).predict_interval
        broken.factor = np.ones(len(self.X_test))
        broken.factor[self.variant % 9] = (-1.0, 0.0, np.nan, np.inf)[self.seed % 4]
        must_raise(ValueError, "standard deviation of", predict, self.X_test, True)

    def swapped_ends(self) -> None:
        """Intervals that are upside down in some rows."""
        bounds = np.sort(self.rng.normal(size=(20, 2, 1)), axis=1)
        rows = self.rng.choice(20, 1 + self.variant, replace=False)
        bounds[rows] = bounds[rows, ::-1]
        y, told = self.rng.normal(size=20), f"Got {len(rows)} of 20 rows"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            must_raise(UserWarning, told, mean_width, bounds)
            must_raise(UserWarning, told, interval_score, y, bounds, 0.9)

    def numbers_that_are_none(self) -> None:
        """NaN, infinity and columns among rows, where a number would come of them."""
        good = 1 + self.rng.random(self.n)
        gap, end, column = good.copy(), good.copy(), good[:, None]
        gap[self.seed % self.n] = np.nan
        end[self.seed % self.n] = (np.inf, -1.0)[self.seed % 2]
        calls: list[tuple[Any, ...]] = [
            (metrics.epistemic_fraction, good, gap),
            (metrics.scale_ratio, good, column),
            (metrics.width_ratio, good, column),
            (metrics.score_difference, gap, good),
            (metrics.violation_rate, gap, 0.9),
            (metrics.relative_width_reduction, gap, good),
            (metrics.quantile_loss, gap, column, [0.5]),
            (metrics.crps, good, gap[:, None]),
            (metrics.predictive_nll, good, gap, good),
            (metrics.noise_floor_diagnostics, gap, 1e-3),
            (conformal_quantile, gap, [0.5]),
            (metrics.coverage, gap, np.column_stack([good, good])),
            (metrics.epistemic_fraction, good, end),
            (metrics.scale_ratio, end, good),
            (metrics.width_ratio, good, end),
            (metrics.relative_width_reduction, good, end),
            (metrics.violation_rate, good, 0.9),
            (metrics.predictive_nll, good, good, end),
            (metrics.noise_floor_diagnostics, end, 1e-3),
            (metrics.regional_coverage, good, np.c_[good, good], {"a": good}),
        ]
        call = calls[self.rng.integers(len(calls))]
        must_raise(ValueError, "NaN|shape|not finite|are not|a mask", *call)

    def questions_without_answer(self) -> None:
        """Probabilities of NaN, and of more or fewer values than rows."""
        conformal, X = self.calibrated(self.fitted()), self.X_test
        y = np.zeros(len(X))
        y[self.seed % len(y)] = np.nan
        bad = (y, np.zeros(len(X) + 1), np.zeros(1), np.full((len(X), 2), np.nan))
        must_raise(ValueError, "Got y", conformal.cdf, X, self.one_of(bad))

    def hands_in_the_calibration(self) -> None:
        """What is handed out is a copy; what cannot change any more is refused."""
        conformal = self.calibrated(self.fitted())
        predict = conformal.predict_interval
        expected = predict(self.X_test, True)[1]
        conformal.quantiles(True)[...] /= 2
        conformal.conformity_scores_[...] = 0
        conformal.signed_scores_[...] = 0
        assert_array_equal(predict(self.X_test, True)[1], expected)
        conformal.support = self.one_of(("integer", (0.0, 1.0), [0.0, 3.0]))
        must_raise(ValueError, "were scored with", predict, self.X_test, True)

    def foreign_sums(self) -> None:
        """Sums of a network that differs in one weight."""
        model, net = self.fitted(), self.network()
        with torch.no_grad():
            weights = self.one_of(list(net.parameters()))
            weights.view(-1)[self.seed % weights.numel()] += 1e-3
        other = ClapsModule(net).fit(self.X, self.y)
        more = partial_sums(other, self.X_cal, self.y_cal)
        must_raise(ValueError, "another network", operator.add, sums_of(model), more)
        must_raise(ValueError, "another network", with_sums, model, more)

    def models_that_change(self) -> None:
        """Fitted again, changed in place, or with another scale, after calibration."""
        model = self.fitted()
        predict = self.calibrated(model).predict_interval
        predict(self.X_test, True)
        changes: list[Callable[[], Any]] = [
            lambda: model.fit(self.X_cal, self.y_cal),
            lambda: model.set_params(scale="aleatoric"),
            lambda: model.partial_fit(self.X_cal, self.y_cal),
            lambda: model.set_params(prior_precision=7.0).fit(self.X, self.y),
            lambda: model.network_.tensors()[self.seed % 6].mul_(1.001),
            lambda: model.model_.posterior.scale.mul_(1.001),
        ]
        self.one_of(changes)()
        must_raise(ValueError, "changed since calibration", predict, self.X_test, True)

    def targets_that_are_no_numbers(self) -> None:
        """Gaps, complex numbers, dates, infinity."""
        import pandas as pd

        row, bad = self.seed % self.n, self.y.astype(object)
        forms: list[tuple[Any, str]] = [
            (None, f"None in row {row}"),
            (pd.NA, f"<NA> in row {row}"),
            (pd.NaT, f"NaT in row {row}"),
            (np.nan, "NaN or infinity"),
            (-np.inf, "NaN or infinity"),
            ("text", "could not convert"),
        ]
        bad[row], message = self.one_of(forms)
        fit = ClapsModule(self.network()).fit
        for y in (bad, bad.tolist(), pd.Series(bad)):
            must_raise(ValueError, message, fit, self.X, y)
        must_raise(ValueError, "of type complex128", fit, self.X, self.y + 1j)

    def files_that_are_none(self) -> None:
        """A pipe or a folder where a file is to be written."""
        model = self.fitted()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            os.mkfifo(path) if self.variant % 2 else path.mkdir()
            must_raise(ValueError, "no regular file", save, model, path)
            if path.is_file() or len(os.listdir(folder)) != 1:
                raise AssertionError("something was replaced or left")

    def files_with_a_wrong_byte(self) -> None:
        """One byte of a file changed, or its end cut off."""
        model = self.fitted()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            save(model, path)
            content = bytearray(path.read_bytes())
            place = int(self.rng.integers(len(content)))
            if self.variant % 2:
                content[place] ^= 1 << self.seed % 8
            else:
                del content[place:]
            path.write_bytes(bytes(content))
            try:
                found = load(path, network=self.network())
            except FileFormatError:
                return
        # A space or the like: whatever loads is what was saved.
        assert_array_equal(self.intervals(found), self.intervals(model))

    def interrupts(self) -> None:
        """Ctrl-C at a line of ours: the old or the new fit is there as a whole."""
        model, new = self.fitted(), self.fitted().fit(self.X_cal, self.y_cal)
        old = copy.deepcopy(model)
        stop = 1 + self.seed % 600
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
            model.fit(self.X_cal, self.y_cal)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        found, *possible = (
            m.predict(self.X_test, return_std=True) for m in (model, old, new)
        )
        if not any(np.array_equal(found, one) for one in possible):
            raise AssertionError("an interrupt left neither the old nor the new fit")


ATTACKS = sorted(name for name in vars(AttackCase) if not name.startswith("_"))


def run_attack(case: AttackCase) -> str | None:
    """What went wrong, or None if all came as it has to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those that count are caught where they do
        try:
            getattr(case, case.attack)()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None
