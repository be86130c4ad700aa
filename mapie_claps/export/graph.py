"""The whole way from the columns of a table to intervals, as one module of torch.

Numbers that are not exact in float32 enter as tensors: onnxscript 0.7 turns Python's
scalars into float32 before it widens them.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..conformal.frozen import ROUND_OUT, FrozenRule
from ..conformal.support import Support
from ..estimators.regressor import ClapsRegressor
from ..network.columns import FewValues, ManyValues, Numbers
from ..network.dates import DAY, YEAR, Dates, Difference
from ..network.target_map import Identity
from ..posterior.scales import PredictiveParts
from ..posterior.skew import LARGEST_SKEW
from .inputs import InputColumn
from .maps import inverse_of, number_left

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
        self.x_mean = _constant(estimator.scaler_X_.mean_)
        self.x_scale = _constant(estimator.scaler_X_.scale_)
        self.donors = _constant(self.table.donors())
        self.n_known = _constant([out.n_values for out in self.table.outputs()])

    def forward(self, columns: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Arrays (n,) and, for both ends, (n, n_levels); NaN for what is no row."""
        by_position = {c.position: columns[c.name] for c in self.columns}
        values, unseen, wrong = self._encode(by_position)
        rows_unseen = unseen.any(dim=1)
        parts = self._parts(values)
        if self.draw_unseen:
            drawn = self._parts_over_draws(values, unseen)
            parts = PredictiveParts(
                torch.where(rows_unseen, drawn.mu, parts.mu),
                torch.where(rows_unseen, drawn.aleatoric, parts.aleatoric),
                torch.where(rows_unseen, drawn.epistemic, parts.epistemic),
                _either(rows_unseen, drawn.skew, parts.skew),
            )
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
        values, unseen, wrong = [], [], None
        for block in self.table.blocks:
            codes = [columns[j] for j in block.positions]
            found, mask, bad = _ENCODERS[type(block)](block, *codes)
            values += list(found)
            unseen += list(mask)
            wrong = bad if wrong is None else wrong | bad
        order = self.table.order()
        both = (torch.stack([v[i] for i in order], dim=1) for v in (values, unseen))
        return *both, wrong  # type: ignore[return-value]

    def _parts(self, values: Tensor) -> PredictiveParts:
        """μ and both parts of v, in the network's units."""
        x = (values - self.x_mean) / self.x_scale
        if self.clip is not None:
            limit = _constant(self.clip)
            x = torch.minimum(torch.maximum(x, -limit), limit)
        out = self.network(x)
        parts = self.model.parts(out, self.scale)
        if self.scale in ("posterior", "constant"):
            sigma2 = _constant(self.model.residual_variance * self.model.unit**2)
            parts = parts._replace(aleatoric=torch.ones_like(parts.mu) * sigma2)
        if self.skew is None:
            return parts
        weight, bias = self.skew[:, None, :-1], self.skew[:, None, -1:]
        raw = torch.baddbmm(bias, weight, out.phi.mT).squeeze(1)
        largest = _constant(LARGEST_SKEW)
        skew = self.model.member_weight @ (largest * torch.tanh(raw / largest))
        return parts._replace(skew=skew)

    def _parts_over_draws(self, values: Tensor, unseen: Tensor) -> PredictiveParts:
        """The same with known values in place of unseen ones; see estimators.unseen."""
        n_draws = len(self.donors)
        drawn = torch.where(unseen, self.donors[:, None], values)  # (16, n, q)
        parts = self._parts(drawn.flatten(0, 1))
        mu, aleatoric, epistemic, skew = (
            None if part is None else part.reshape(n_draws, -1) for part in parts
        )
        mean, noise = mu.mean(0), aleatoric.mean(0)  # type: ignore[union-attr]
        lack = epistemic.mean(0)  # type: ignore[union-attr]
        if self.scale in ("claps", "posterior"):
            n_known = torch.where(unseen, self.n_known, self.n_known.max()).amin(1)
            spread = (mu - mean).square().mean(0)  # type: ignore[operator]
            lack = lack + (spread + noise / n_known) * (1 + 1 / n_known)
        return PredictiveParts(
            mean, noise, lack, None if skew is None else skew.mean(0)
        )

    def _intervals(self, parts: PredictiveParts) -> tuple[Tensor, ...]:
        """All outputs, in units of y."""
        rule, unit = self.rule, _constant(self.units.unit)
        centre = parts.mu * unit + _constant(self.units.centre)
        square = _constant(self.units.unit**2)
        aleatoric, epistemic = parts.aleatoric * square, parts.epistemic * square
        skew = torch.zeros_like(centre) if parts.skew is None else parts.skew
        sides = (
            (aleatoric * (1 - skew) + epistemic).sqrt()[:, None],
            (aleatoric * (1 + skew) + epistemic).sqrt()[:, None],
        )
        steps = [_steps(r, sides) for r in (rule.lower, rule.upper)]
        centre_ = centre[:, None]
        ends = [
            centre_ + step + _constant(outwards) * (centre_.abs() + step.abs())
            for step, outwards in zip(steps, (-ROUND_OUT, ROUND_OUT), strict=True)
        ]
        lower, upper = (self.inverse(z) for z in ends)
        if rule.support is not None:
            lower, upper = (_nearest(rule.support, end) for end in (lower, upper))
        if isinstance(rule.target_map, Identity):
            return centre, lower, upper, aleatoric, epistemic
        largest = _constant(np.finfo(np.float64).max / len(rule.nodes))
        nodes = self.inverse(centre_ + _steps(rule.nodes, sides))
        nodes = torch.minimum(torch.maximum(nodes, -largest), largest)
        mean = nodes.mean(1)
        variance = (nodes - mean[:, None]).square().mean(1)
        variance = torch.maximum(variance, _constant(np.finfo(np.float64).tiny))
        share = epistemic / (aleatoric + epistemic)
        return mean, lower, upper, variance * (1 - share), variance * share


def _constant(values: Any) -> Tensor:
    return torch.as_tensor(np.array(values, dtype=np.float64))


def _infinite(x: Tensor) -> Tensor:
    """Not ``isinf``, for which onnxscript 0.7 makes float32 of 1e300: infinity."""
    return x.abs() > _constant(np.finfo(np.float64).max)


def _either(mask: Tensor, a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else torch.where(mask, a, b)


def _steps(residuals: Any, sides: tuple[Tensor, Tensor]) -> Tensor:
    """Residuals (m,) in units of z, by the scale on their side, (n, m)."""
    r = _constant(residuals)
    return torch.where(r < 0, *sides) * r


def _nearest(support: Support, y: Tensor) -> Tensor:
    """Possible value nearest to each number; see ``Support.nearest``."""
    inside = y
    if support.low > -np.inf:
        inside = torch.maximum(inside, _constant(support.low))
    if support.high < np.inf:
        inside = torch.minimum(inside, _constant(support.high))
    if support.values is not None:
        between = _constant((support.values[1:] + support.values[:-1]) / 2)
        values = _constant(support.values)
        inside = values[number_left(inside, between)]
    elif support.integer:
        inside = inside.round()
    return torch.where(_infinite(y), y, inside)


Found = tuple[Sequence[Tensor], Sequence[Tensor], Tensor]  # inputs, unseen, wrong rows


def _numbers(block: Numbers, *columns: Tensor) -> Found:
    values, unseen, flags = [], [], []
    wrong = torch.zeros_like(columns[0], dtype=torch.bool)
    for k, (column, fill) in enumerate(zip(columns, block.fill, strict=True)):
        gap = torch.isnan(column)
        wrong = wrong | _infinite(column)
        values.append(torch.where(gap, _constant(fill), column))
        if k in block.flagged:
            flags.append(gap.double())
        unseen.append(gap & (k not in block.flagged))
    return (
        [*values, *flags],
        [*unseen, *(torch.zeros_like(wrong) for _ in flags)],
        wrong,
    )


def _few(block: FewValues, codes: Tensor) -> Found:
    n = len(block.categories)
    unseen, mean = codes == n, block.donors.mean(axis=0)
    categories = range(n) if n != 2 else [1]
    values = [
        torch.where(unseen, _constant(mean[i]), (codes == c).double())
        for i, c in enumerate(categories)
    ]
    return values, [unseen] * len(values), (codes < 0) | (codes > n)


def _many(block: ManyValues, codes: Tensor) -> Found:
    n, mean = len(block.categories), block.donors.mean(axis=0)
    unseen, known = codes == n, codes.clamp(0, n - 1)
    values = [
        torch.where(unseen, _constant(mean[i]), _constant(table)[known])
        for i, table in enumerate((block.mean, block.log_count))
    ]
    return values, [unseen, unseen], (codes < 0) | (codes > n)


def _dates(block: Dates, seconds: Tensor) -> Found:
    gap = torch.isnan(seconds)
    filled = torch.where(gap, _constant(block.fill), seconds)
    values = [_date_part(name, filled) for name in block.parts]
    if block.flagged:
        values.append(gap.double())
    return values, [gap & (not block.flagged)] * len(values), _infinite(seconds)


def _difference(block: Difference, first: Tensor, second: Tensor) -> Found:
    days = (second - first) / DAY
    gap = torch.isnan(days)
    value = torch.where(gap, _constant(block.fill), days)
    return [value], [gap & (not block.flagged)], torch.zeros_like(gap)


_ENCODERS: dict[type, Any] = {
    Numbers: _numbers,
    FewValues: _few,
    ManyValues: _many,
    Dates: _dates,
    Difference: _difference,
}


def _modulo(x: Tensor, period: float) -> Tensor:
    by = _constant(period)
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
    angle = _modulo(seconds, period) * _constant(2 * np.pi / period)
    return angle.sin() if name.endswith("sin") else angle.cos()


def _day_of_month(days: Tensor) -> Tensor:
    """From days since 1970, by the calendar that starts on the first of March.

    Eras of 400 years have 146,097 days; 719,468 days lie between 0000-03-01 and 1970.
    """

    def whole(x: Tensor, by: float) -> Tensor:
        return (x / _constant(by)).floor()

    of_era = _modulo(days + 719_468, 146_097)
    year = whole(
        of_era - whole(of_era, 1460) + whole(of_era, 36_524) - whole(of_era, 146_096),
        365,
    )
    of_year = of_era - (365 * year + whole(year, 4) - whole(year, 100))
    month = whole(5 * of_year + 2, 153)  # from March on
    return of_year - whole(153 * month + 2, 5) + 1
