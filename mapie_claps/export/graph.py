"""The whole way from the columns of a table to intervals, as one module of torch.

Numbers that are not exact in float32 enter as tensors: onnxscript 0.7 turns Python's
scalars into float32 before it widens them.
"""

import copy
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..conformal.frozen import ROUND_OUT_SHARE, FrozenRule
from ..conformal.support import Support
from ..estimators.regressor import ClapsRegressor
from ..network.columns import FewValues, ManyValues, Numbers
from ..network.dates import DAY, YEAR, Dates, Difference
from ..network.target_map import Identity
from ..posterior.scales import PredictiveParts
from ..posterior.skew import LARGEST_SKEW
from .inputs import InputColumn
from .maps import constant, inverse_of, number_left

OUTPUTS = ("prediction", "lower", "upper", "aleatoric", "epistemic")


class IntervalGraph(nn.Module):
    """Named columns (n,) → prediction, lower, upper, aleatoric, epistemic."""

    def __init__(
        self,
        estimator: ClapsRegressor,
        rule: FrozenRule,
        columns: Sequence[InputColumn],
        draw_unseen: bool,
    ) -> None:
        super().__init__()
        self.columns, self.draw_unseen = list(columns), draw_unseen
        self.table = estimator.table_
        self.network = copy.deepcopy(estimator.network_)
        self.model, self.scale = estimator.model_, estimator.scale
        self.skew = estimator._law_of_residuals().skew
        self.units, self.clip = estimator._target_units(), estimator._clip()
        self.rule, self.inverse = rule, inverse_of(rule.target_map)
        self.x_mean = constant(estimator.scaler_X_.mean_)
        self.x_scale = constant(estimator.scaler_X_.scale_)
        self.donors = constant(self.table.donors())
        self.n_known = constant([out.n_values for out in self.table.outputs()])

    def forward(self, columns: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Arrays (n,) and, for both ends, (n, n_levels); NaN for what is no row."""
        by_position = {c.position: columns[c.name] for c in self.columns}
        values, unseen, wrong = self._encode(by_position)
        rows_unseen = unseen.any(dim=1)
        parts = self._parts(values)
        if self.draw_unseen:
            drawn = self._parts_over_draws(values, unseen)
            parts = _each(lambda a, b: torch.where(rows_unseen, a, b), drawn, parts)
        else:
            wrong = wrong | rows_unseen
        outputs = self._intervals(parts)
        nan = torch.tensor(float("nan"), dtype=torch.float64)
        return tuple(
            torch.where(wrong if out.ndim == 1 else wrong[:, None], nan, out)
            for out in outputs
        )

    def _encode(self, columns: dict[int, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of the networks (n, q), which are unseen, rows that are no rows."""
        found = [
            _ENCODERS[type(block)](block, *(columns[j] for j in block.positions))
            for block in self.table.blocks
        ]
        values, unseen, wrong = zip(*found, strict=True)
        inputs, masks = (list(chain(*of_blocks)) for of_blocks in (values, unseen))
        order = self.table.order()
        both = (torch.stack([v[i] for i in order], dim=1) for v in (inputs, masks))
        return *both, reduce(torch.logical_or, wrong)  # type: ignore[return-value]

    def _parts(self, values: Tensor) -> PredictiveParts:
        """μ and both parts of v, in the network's units."""
        x = (values - self.x_mean) / self.x_scale
        if self.clip is not None:
            limit = constant(self.clip)
            x = torch.minimum(torch.maximum(x, -limit), limit)
        out = self.network(x)
        parts = self.model.parts(out, self.scale)
        if self.scale in ("posterior", "constant"):
            sigma2 = constant(self.model.residual_variance * self.model.unit**2)
            parts = parts._replace(aleatoric=torch.ones_like(parts.mu) * sigma2)
        if self.skew is None:
            return parts
        weight, bias = self.skew[:, None, :-1], self.skew[:, None, -1:]
        raw = torch.baddbmm(bias, weight, out.phi.mT).squeeze(1)
        largest = constant(LARGEST_SKEW)
        skew = self.model.member_weight @ (largest * torch.tanh(raw / largest))
        return parts._replace(skew=skew)

    def _parts_over_draws(self, values: Tensor, unseen: Tensor) -> PredictiveParts:
        """The same with known values in place of unseen ones; see estimators.unseen."""
        drawn = torch.where(unseen, self.donors[:, None], values)  # (16, n, q)
        parts = self._parts(drawn.flatten(0, 1))
        parts = _each(lambda part: part.reshape(len(drawn), -1), parts)
        mean = _each(lambda part: part.mean(0), parts)
        if self.scale not in ("claps", "posterior"):
            return mean
        n_known = torch.where(unseen, self.n_known, self.n_known.max()).amin(1)
        spread = (parts.mu - mean.mu).square().mean(0)
        added = (spread + mean.aleatoric / n_known) * (1 + 1 / n_known)
        return mean._replace(epistemic=mean.epistemic + added)

    def _intervals(self, parts: PredictiveParts) -> tuple[Tensor, ...]:
        """All outputs, in units of y."""
        rule, unit = self.rule, constant(self.units.unit)
        centre = parts.mu * unit + constant(self.units.centre)
        square = constant(self.units.unit**2)
        aleatoric, epistemic = parts.aleatoric * square, parts.epistemic * square
        skew = torch.zeros_like(centre) if parts.skew is None else parts.skew
        sides = (
            (aleatoric * (1 - skew) + epistemic).sqrt()[:, None],
            (aleatoric * (1 + skew) + epistemic).sqrt()[:, None],
        )
        steps = [_steps(r, sides) for r in (rule.lower, rule.upper)]
        centre_ = centre[:, None]
        ends = [
            centre_ + step + constant(outwards) * (centre_.abs() + step.abs())
            for step, outwards in zip(
                steps, (-ROUND_OUT_SHARE, ROUND_OUT_SHARE), strict=True
            )
        ]
        lower, upper = (self.inverse(z) for z in ends)
        if rule.support is not None:
            lower, upper = (_nearest(rule.support, end) for end in (lower, upper))
        if isinstance(rule.target_map, Identity):
            return centre, lower, upper, aleatoric, epistemic
        largest = constant(np.finfo(np.float64).max / len(rule.nodes))
        nodes = self.inverse(centre_ + _steps(rule.nodes, sides))
        nodes = torch.minimum(torch.maximum(nodes, -largest), largest)
        mean = nodes.mean(1)
        variance = (nodes - mean[:, None]).square().mean(1)
        variance = torch.maximum(variance, constant(np.finfo(np.float64).tiny))
        share = epistemic / (aleatoric + epistemic)
        return mean, lower, upper, variance * (1 - share), variance * share


def _each(function: Callable[..., Tensor], *parts: PredictiveParts) -> PredictiveParts:
    """The function of each part, but of a skew that is not there."""
    columns = zip(*parts, strict=True)
    return PredictiveParts(
        *(None if column[0] is None else function(*column) for column in columns)  # type: ignore[arg-type]
    )


def _infinite(x: Tensor) -> Tensor:
    """Not ``isinf``, for which onnxscript 0.7 makes float32 of 1e300: infinity."""
    return x.abs() > constant(np.finfo(np.float64).max)


def _steps(residuals: Any, sides: tuple[Tensor, Tensor]) -> Tensor:
    """Residuals (m,) in units of z, by the scale on their side, (n, m)."""
    r = constant(residuals)
    return torch.where(r < 0, *sides) * r


def _nearest(support: Support, y: Tensor) -> Tensor:
    """Possible value nearest to each number; see ``Support.nearest``."""
    inside = y
    if support.low > -np.inf:
        inside = torch.maximum(inside, constant(support.low))
    if support.high < np.inf:
        inside = torch.minimum(inside, constant(support.high))
    if support.values is not None:
        between = constant((support.values[1:] + support.values[:-1]) / 2)
        values = constant(support.values)
        inside = values[number_left(inside, between)]
    elif support.integer:
        inside = inside.round()
    return torch.where(_infinite(y), y, inside)


Found = tuple[Sequence[Tensor], Sequence[Tensor], Tensor]  # inputs, unseen, wrong rows


def _numbers(block: Numbers, *columns: Tensor) -> Found:
    gaps = [torch.isnan(column) for column in columns]
    values = [
        torch.where(gap, constant(fill), column)
        for gap, fill, column in zip(gaps, block.fill, columns, strict=True)
    ]
    flags = [gaps[k].double() for k in block.flagged]
    seen = torch.zeros_like(gaps[0])
    unseen = [seen if k in block.flagged else gap for k, gap in enumerate(gaps)]
    wrong = reduce(torch.logical_or, map(_infinite, columns))
    return [*values, *flags], [*unseen, *[seen] * len(flags)], wrong


def _categories(block: FewValues | ManyValues, codes: Tensor) -> Found:
    n = len(block.categories)
    if isinstance(block, FewValues):
        known = [(codes == c).double() for c in (range(n) if n != 2 else [1])]
    else:
        tables = (block.mean, block.log_count)
        known = [constant(table)[codes.clamp(0, n - 1)] for table in tables]
    unseen, mean = codes == n, block.donors.mean(axis=0)
    values = [
        torch.where(unseen, constant(fill), value)
        for fill, value in zip(mean, known, strict=True)
    ]
    return values, [unseen] * len(values), (codes < 0) | (codes > n)


def _dates(block: Dates, seconds: Tensor) -> Found:
    gap = torch.isnan(seconds)
    filled = torch.where(gap, constant(block.fill), seconds)
    values = [_date_part(name, filled) for name in block.parts]
    if block.flagged:
        values.append(gap.double())
    return values, [gap & (not block.flagged)] * len(values), _infinite(seconds)


def _difference(block: Difference, first: Tensor, second: Tensor) -> Found:
    days = (second - first) / DAY
    gap = torch.isnan(days)
    value = torch.where(gap, constant(block.fill), days)
    return [value], [gap & (not block.flagged)], torch.zeros_like(gap)


_ENCODERS: dict[type, Any] = {
    Numbers: _numbers,
    FewValues: _categories,
    ManyValues: _categories,
    Dates: _dates,
    Difference: _difference,
}


def _modulo(x: Tensor, period: float) -> Tensor:
    by = constant(period)
    return x - (x / by).floor() * by


def _date_part(name: str, seconds: Tensor) -> Tensor:
    """What ``DATE_PARTS`` of network.dates has under this name."""
    if name == "days":
        return seconds / DAY
    if name == "hour":
        return _modulo(seconds, DAY) / 3600
    if name == "weekday":
        return _modulo((seconds / DAY).floor() + 3, 7)
    if name == "day":
        return _day_of_month((seconds / DAY).floor())
    period = DAY if name.startswith("hour") else YEAR
    angle = _modulo(seconds, period) * constant(2 * np.pi / period)
    return angle.sin() if name.endswith("sin") else angle.cos()


def _day_of_month(days: Tensor) -> Tensor:
    """From days since 1970, by the calendar that starts on the first of March.

    Eras of 400 years have 146,097 days; 719,468 days lie between 0000-03-01 and 1970.
    """

    def whole(x: Tensor, by: float) -> Tensor:
        return (x / constant(by)).floor()

    of_era = _modulo(days + 719_468, 146_097)
    year = whole(
        of_era - whole(of_era, 1460) + whole(of_era, 36_524) - whole(of_era, 146_096),
        365,
    )
    of_year = of_era - (365 * year + whole(year, 4) - whole(year, 100))
    month = whole(5 * of_year + 2, 153)  # from March on
    return of_year - whole(153 * month + 2, 5) + 1
