"""Dates, as dates or as text → parts of them, and differences of two."""

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..files.codec import saved_as
from .columns import INDICATOR, NUMBER, Array, Encoded, Output, even_quantiles
from .frames import Column, local_time

ISO_DATE = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?"
)
# Month before day, as pandas reads it, unless some row has a month above 12.
DATE_FORMATS = ("%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d %b %Y", "%b %d, %Y")
TIME_FORMATS = ("", " %H:%M", " %H:%M:%S")
DAY = 86_400.0  # seconds
YEAR = 365.2425 * DAY
IN_ZONE = " in "


@saved_as("dates")
@dataclass(frozen=True)
class Dates:
    """The parts of a date that varied in training, and a flag where there were gaps."""

    positions: list[int]
    form: str  # of dates given as text; "iso in ZONE" for dates that know their zone
    parts: list[str]
    fill: float  # seconds since 1970
    flagged: bool
    donors: Array  # (N_DONORS, number of parts and flag)

    @classmethod
    def fit(
        cls, positions: list[int], form: str, seconds: Array, rng: np.random.Generator
    ) -> "Dates":
        """Parts that vary, and the median date."""
        gap = np.isnan(seconds)
        known = seconds[~gap]
        span = float(np.ptp(known))
        parts = [
            name
            for name, part in DATE_PARTS.items()
            if span >= part.least_span and np.ptp(part.of(known)) > 0
        ]
        fitted = cls(
            positions,
            form,
            parts or ["days"],
            float(np.median(known)),
            bool(gap.any()),
            np.empty((0, 0)),
        )
        draws = rng.permutation(even_quantiles(known))
        return replace(fitted, donors=fitted.encode(draws).values)

    def outputs(self, names: list[str]) -> list[Output]:
        """The parts, then the flag."""
        name = names[self.positions[0]]
        outputs = [Output(NUMBER, self.positions, f"{name}_{p}") for p in self.parts]
        if self.flagged:
            outputs.append(Output(INDICATOR, self.positions, f"{name}_missing"))
        return outputs

    def read(self, column: Column) -> Array:
        """Seconds since 1970, NaN for gaps."""
        form, _, zone = self.form.partition(IN_ZONE)
        if column.kind == "text":
            return seconds_since_1970(parsed(column, form))
        if column.kind == "date":
            if zone and column.zone not in (None, zone):
                raise ValueError(
                    f"Got dates in the time zone {column.zone!r} in {column.label}, "
                    f"but {zone!r} in fit, and the hour of the day is that of the "
                    f"clock. Convert them with dt.tz_convert({zone!r}), in polars "
                    "dt.convert_time_zone."
                )
            return seconds_since_1970(column.values)
        if not column.plain:
            column.refuse_kind(
                "date", "Convert it, for example with pandas.to_datetime."
            )
        return column.values

    def encode(self, seconds: Array) -> Encoded:
        """Parts of the date or of the median date, then the flag."""
        gap = np.isnan(seconds)
        filled = np.where(gap, self.fill, seconds)
        inputs = [DATE_PARTS[name].of(filled) for name in self.parts]
        if self.flagged:
            inputs.append(gap.astype(np.float64))
        unseen = (gap & (not self.flagged))[:, None]
        return Encoded(np.column_stack(inputs), np.repeat(unseen, len(inputs), axis=1))


@saved_as("difference of dates")
@dataclass(frozen=True)
class Difference:
    """Days from one date to another."""

    positions: list[int]  # two
    fill: float
    flagged: bool  # gaps in training, which have their flags with the dates
    donors: Array  # (N_DONORS, 1)

    @classmethod
    def fit(
        cls, positions: list[int], first: Array, second: Array, rng: np.random.Generator
    ) -> "Difference | None":
        """Median and quantiles of the differences; None where no row has both."""
        days = (second - first) / DAY
        known = days[~np.isnan(days)]
        if len(known) == 0:
            return None
        donors = rng.permutation(even_quantiles(known))[:, None]
        return cls(positions, float(np.median(known)), len(known) < len(days), donors)

    def outputs(self, names: list[str]) -> list[Output]:
        """One."""
        first, second = (names[j] for j in self.positions)
        return [Output(NUMBER, self.positions, f"{first}_to_{second}")]

    def encode(self, first: Array, second: Array) -> Encoded:
        """The difference, or the median where a date is missing."""
        days = (second - first) / DAY
        gap = np.isnan(days)
        values = np.where(gap, self.fill, days)[:, None]
        return Encoded(values, (gap & (not self.flagged))[:, None])


class DatePart(NamedTuple):
    """A number of each date, for dates that span at least this many seconds."""

    of: Callable[[Array], Array]
    least_span: float = 0.0


def _day_of_month(seconds: Array) -> Array:
    days = np.floor(seconds / DAY).astype("datetime64[D]")
    first = days.astype("datetime64[M]").astype("datetime64[D]")
    day: Array = (days - first).astype(np.float64) + 1
    return day


def _turn(wave: Callable[[Array], Array], period: float) -> Callable[[Array], Array]:
    """Position in a cycle, by a sine or cosine."""
    return lambda seconds: wave(2 * np.pi * np.mod(seconds, period) / period)


# The season can be told from the trend after a year only, the day of the month after
# two months.
DATE_PARTS = {
    "days": DatePart(lambda s: s / DAY),
    "season_sin": DatePart(_turn(np.sin, YEAR), YEAR),
    "season_cos": DatePart(_turn(np.cos, YEAR), YEAR),
    "day": DatePart(_day_of_month, 60 * DAY),
    "weekday": DatePart(lambda s: np.mod(np.floor(s / DAY) + 3, 7)),  # Monday is 0
    "hour": DatePart(lambda s: np.mod(s, DAY) / 3600),
    "hour_sin": DatePart(_turn(np.sin, DAY)),
    "hour_cos": DatePart(_turn(np.cos, DAY)),
}


def seconds_since_1970(dates: NDArray[np.datetime64]) -> Array:
    """Seconds as float64, NaN for NaT."""
    seconds: Array = dates.astype("datetime64[us]").view(np.int64) / 1e6
    seconds[np.isnat(dates)] = np.nan
    return seconds


def parsed(column: Column, form: str) -> NDArray[np.datetime64]:
    """Dates of a column of text, in the format of the training rows or in ISO's."""
    dates = np.full(len(column.values), "NaT", dtype="datetime64[us]")
    rows = np.flatnonzero(~column.gap)
    texts = column.values[rows].tolist()
    for attempt in dict.fromkeys((form, "iso")):
        found = parse_dates(texts, attempt)
        if found is not None:
            dates[rows] = found
            return dates
    bad = next(i for i, t in zip(rows, texts, strict=True) if not is_date(t, form))
    column.refuse(
        int(bad),
        f"a date in the format of fit ({'ISO 8601' if form == 'iso' else form})",
        "Correct the value, or leave it empty, which is taken as a gap.",
    )


FORMATS = ("iso", *(date + time for date in DATE_FORMATS for time in TIME_FORMATS))


def date_format(texts: Sequence[str]) -> str | None:
    """The format in which all texts are dates, "iso" for ISO 8601; None if none."""
    if not texts:
        return None
    for form in FORMATS:
        # The first text rules most formats out at once.
        if is_date(texts[0], form) and parse_dates(texts, form) is not None:
            return form
    return None


def usual_date_format(texts: Sequence[str]) -> str | None:
    """A format in which most of the first texts are dates; None if there is none."""
    first = texts[:20]
    most = (f for f in FORMATS if sum(is_date(t, f) for t in first) > len(first) / 2)
    return next(most, None)


def parse_dates(texts: Sequence[str], form: str) -> NDArray[np.datetime64] | None:
    """Texts as datetime64[us]; None unless all are dates of this format."""
    if form == "iso" and not all(map(ISO_DATE.fullmatch, texts)):
        return None
    try:
        if form == "iso":
            dates = [datetime.datetime.fromisoformat(text) for text in texts]
        else:
            dates = [datetime.datetime.strptime(text, form) for text in texts]
    except ValueError:
        return None
    return np.array([local_time(date) for date in dates], dtype="datetime64[us]")


def is_date(text: str, form: str) -> bool:
    """Whether one text is a date of this format."""
    return parse_dates([text], form) is not None
