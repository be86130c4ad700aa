"""why → page: coverage, widths and reasons of a table as one HTML file."""

import base64
import io
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ._validation import import_extra
from .conformal.distribution import last_step, transformed
from .diagnostics import explain
from .diagnostics.by_column import as_table
from .diagnostics.explanation import models_of
from .diagnostics.tables import group_columns
from .metrics import is_missing
from .plots import ColumnsDisplay, CoverageDisplay, IntervalDisplay, WidestRowsDisplay

__all__ = ["write_report"]

N_WIDEST = 8  # rows in words
N_SPREAD = 50  # rows over which contributions of columns are averaged
MAX_GROUPS = 8  # of one column; more could not be told apart in a picture
SHOWN = {
    "group": "group",
    "n": "rows",
    "confidence_level": "level",
    "coverage": "coverage",
    "coverage_low": "from",
    "coverage_high": "to",
    "width": "width",
    "aleatoric_width": "noise",
    "epistemic_width": "lack",
}


def write_report(
    model: Any,
    X: Any,
    y: Any,
    path: str | os.PathLike[str],
    *,
    groups: str | Sequence[str] = (),
) -> None:
    """Write a page on how intervals do on rows that the model has not seen.

    It has the coverage, of all rows and by group, the width and its two parts, the
    widest rows in words, and pictures. It is one HTML file that loads nothing, for
    light and dark screens. Needs ``pip install mapie-claps[plot] pandas``.

    Parameters
    ----------
    model : object
        A ``CalibratedRegressor``, or a calibrated MAPIE regressor with ``ClapsScore``.
    X, y : DataFrame or array, and array-like of shape (n,)
        New rows and their targets.
    path : path-like
        File to write or replace.
    groups : str or sequence of str, default=()
        Columns of X to show the coverage by, beside the width of the intervals. Numbers
        of many values are cut at their quartiles; rare values are counted together.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from mapie_claps import CalibratedRegressor, ClapsRegressor
    >>> from mapie_claps.report import write_report
    >>> X, y = np.random.default_rng(0).normal(size=(2, 300, 1))
    >>> model = CalibratedRegressor(ClapsRegressor.paper()).fit(X[:250], y[:250, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = os.path.join(folder, "report.html")
    ...     write_report(model, X[250:], y[250:, 0], page)
    ...     os.path.getsize(page) > 10_000
    True
    """
    pd = import_extra("cli", "pandas")
    if not hasattr(X, "iloc"):
        X = X.to_pandas() if hasattr(X, "to_pandas") else pd.DataFrame(X)
    groups = [groups] if isinstance(groups, str) else groups
    if unknown := [name for name in groups if name not in X]:
        raise ValueError(
            f"Got groups={unknown}, but X has the columns {', '.join(map(str, X))}."
        )
    why, target = explain(model, X), np.asarray(y, dtype=np.float64)
    name = escape(str(getattr(y, "name", None) or "y"))
    table = group_columns(why, target, None)
    body = [_table(table), _picture(IntervalDisplay(why, X, target), "Intervals")]
    (fitted,) = models_of(model, folds=False)
    if hasattr(last_step(fitted), "count_seen"):
        known, n = last_step(fitted).count_seen(transformed(fitted, X), target)
        if known > n / 2:
            seen = f"The model was fitted on {known} of {n} rows. Take new ones."
            body.insert(0, f"<p><b>{seen}</b></p>")
            warnings.warn(seen, UserWarning, stacklevel=2)
    by = {"width of the interval": pd.Series(why.width[:, 0])}
    for column, values in (by | {str(group): X[group] for group in groups}).items():
        drawn = CoverageDisplay(why, None, target, groups=_labels(values))
        body += [f"<h2>By {escape(column)}</h2>"]
        body += [_table(group_columns(why, target, drawn.groups))]
        body += [_picture(drawn, f"Coverage and width by {column}")]
    order = np.argsort(-why.width[:, 0], kind="stable")[:N_WIDEST]
    widest: Any = explain(model, X.iloc[order], background=X)
    lines = [
        f"<b>row {escape(str(label))}: {_short(widest.prediction[i])}, from "
        f"{_short(widest.lower[i, 0])} to {_short(widest.upper[i, 0])}; it was "
        f"{_short(target[order[i]])}</b><br>{escape(widest.by_column.sentence(i))}"
        for i, label in enumerate(widest.index)
    ]
    spread = np.linspace(0, len(X) - 1, min(len(X), N_SPREAD)).astype(int)
    columns = ColumnsDisplay(explain(model, X.iloc[spread], background=X))
    body += [f"<h2>The widest rows</h2><ul><li>{'<li>'.join(lines)}</ul>"]
    body += [_picture(WidestRowsDisplay(replace(widest, by_column=None)), "Widths")]
    body += ["<h2>What each column adds</h2>", _picture(columns, "Mean contributions")]
    first = {k: _short(v[0]) if "width" in k else v[0] for k, v in table.items()}
    template = (Path(__file__).parent / "data" / "report.html").read_text("utf-8")
    page = template.format(name=name, body="\n".join(body), **first)
    Path(path).write_text(page, encoding="utf-8")


def _table(columns: dict[str, Any]) -> str:
    """What ``summarise`` gives, in short."""
    shown = as_table(columns)[list(SHOWN)].rename(columns=SHOWN)
    n_levels = shown["level"].nunique()
    if len(shown) > n_levels:  # all rows together are shown once
        shown = shown[n_levels:]
    if n_levels == 1:  # the first sentence has it
        shown = shown.drop(columns="level")
    return f"<div>{shown.to_html(index=False, border=0, float_format=_short)}</div>"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _labels(values: Any) -> list[Any]:
    """Groups of a column: quartiles of many numbers, else its most frequent values."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(values) and values.nunique() > MAX_GROUPS:
        ends = values.quantile([0.25, 0.5, 0.75]).unique()
        values = pd.cut(values, [-np.inf, *ends, np.inf], precision=2)
    labels = ["missing" if is_missing(value) else value for value in values]
    counts = Counter(labels)
    n_shown = MAX_GROUPS - 1 if len(counts) > MAX_GROUPS else MAX_GROUPS
    common = {label for label, _ in counts.most_common(n_shown)}
    rest = f"{len(counts) - len(common)} others"
    return [label if label in common else rest for label in labels]


def _picture(display: Any, text: str) -> str:
    """A display as an image inside the page, with type for a narrow screen."""
    mpl = import_extra("plot", "matplotlib", "matplotlib.figure")
    # "$" begins no formula here, and the font need not have every letter.
    with mpl.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure = mpl.figure.Figure((5.2, 2.6 + display.n_axes), layout="constrained")
        display.plot(figure.subplots(display.n_axes, sharex=display.n_axes > 1))
        figure.axes[0].title.set_fontsize(9)
        if display.n_axes > 1:  # names of groups
            figure.axes[-1].tick_params(axis="x", labelsize=8, rotation=20)
        file = io.BytesIO()
        figure.savefig(file, format="svg")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<p><img alt="{escape(text)}" src="data:image/svg+xml;base64,{data}"></p>'
