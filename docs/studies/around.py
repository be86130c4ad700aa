"""CLAPS around models that people keep: intervals, reasons and cost.

scores   interval score at level 0.9 around four models, beside their own residuals
         (absolute), a boosted scale of them (residual-normalised), CQR of the same
         family, and CLAPS alone
sparse   coverage in a region that lost 99 % of its training rows, around boosting
reasons  rank correlation of the lack of data with the squared error of the model, on
         data whose mean is known, beside CatBoost's virtual ensembles
cost     time to fit beside six fits of the model, to predict beside the model alone

around_bounds.csv says what must hold for means over seeds. FOLDER is that of truth.py.
The same command goes on where it was stopped.

    python docs/studies/around.py --data FOLDER --out docs/benchmarks/around --jobs 2
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import process_time
from timeit import repeat
from typing import Any

import numpy as np
import parts
import speed
import truth
from engine import Array
from parts import ALPHA, SCORE, Model, Part, Rows, Table, told
from peers import Band, centred, ordered
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import mapie_claps
from mapie_claps import conformal_quantile

AROUND, ALONE, NORMALISED = "CLAPS around it", "CLAPS alone", "residual-normalised"
ENSEMBLES, QUANTILES = "virtual ensembles", (ALPHA / 2, 1 - ALPHA / 2)
N_ROWS = 4000


# Models -------------------------------------------------------------------------------


def boosting(**options: Any) -> Any:
    return HistGradientBoostingRegressor(random_state=0, **options)


def catboost(loss: str = "RMSE") -> Any:
    from catboost import CatBoostRegressor

    options = {"allow_writing_files": False, "thread_count": 1, "verbose": False}
    return CatBoostRegressor(300, loss_function=loss, random_seed=0, **options)


def quantile_forest(level: float) -> Any:
    from quantile_forest import RandomForestQuantileRegressor

    return RandomForestQuantileRegressor(default_quantiles=level, random_state=0)


MODELS: dict[str, Callable[[], Any]] = {
    "HistGradientBoosting": boosting,
    "CatBoost": catboost,
    "random forest": partial(RandomForestRegressor, random_state=0),
    "ridge": partial(RidgeCV, np.logspace(-3, 3, 13)),
}
#: Level → model of that quantile, of the same family.
QUANTILE_MODELS: dict[str, Callable[[float], Any]] = {
    "HistGradientBoosting": lambda a: boosting(loss="quantile", quantile=a),
    "CatBoost": lambda a: catboost(f"Quantile:alpha={a:.12g}"),
    "random forest": quantile_forest,
}


def piped(model: Any) -> Any:
    """The model behind an encoder, since not all models take text and gaps."""
    text = OneHotEncoder(
        max_categories=20, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    encoder = make_column_transformer(
        (text, make_column_selector(dtype_exclude="number")),
        (SimpleImputer(), make_column_selector(dtype_include="number")),
    )
    return make_pipeline(encoder, StandardScaler(), model)


def around(model: Any, seed: int, X: Any, y: Array) -> Any:
    return mapie_claps.ClapsResidualRegressor(model, random_state=seed).fit(X, y)


# Intervals: (model, X, y, i, j) → bounds of the rows from j on ------------------------


def widened(band: Band, y: Array, n: int) -> Array:
    """Bounds of all rows but the first n, with which the band is calibrated."""
    old, new = (Band(*(b[own] for b in band)) for own in (np.s_[:n], np.s_[n:]))
    (q,) = conformal_quantile(old.scores(y[:n]), [ALPHA])
    return np.stack(new.widened(q), axis=1)


def residual_ends(
    model: Any, seed: int, X: Any, y: Array, i: int, j: int
) -> Iterator[tuple[str, Array]]:
    """A fitted model with its absolute residuals, and with a boosted scale of them.

    The scale is learned on residuals of models that had not seen the rows, by the gamma
    loss, which needs positive targets and predicts positive ones.
    """
    centre = model.predict(X[i:])
    yield "absolute", widened(centred(centre, np.ones(len(centre))), y[i:], j - i)
    folds = KFold(5, shuffle=True, random_state=seed)
    residual = np.abs(y[:i] - cross_val_predict(clone(model), X[:i], y[:i], cv=folds))
    spread = piped(boosting(loss="gamma"))
    spread.fit(X[:i], np.maximum(residual / residual.mean(), 1e-3))
    yield NORMALISED, widened(centred(centre, spread.predict(X[i:])), y[i:], j - i)


def cqr_ends(name: str, X: Any, y: Array, i: int, j: int) -> Array:
    models = [piped(QUANTILE_MODELS[name](a)).fit(X[:i], y[:i]) for a in QUANTILES]
    return widened(ordered(*(model.predict(X[i:]) for model in models)), y[i:], j - i)


# Parts --------------------------------------------------------------------------------


def scores(seed: int, new: Model, table: Table, *, model: str) -> Rows:
    """Ratios are to CLAPS around the model; CLAPS alone has a line of its own."""
    X, y, i, j = parts.shuffled(table, seed, N_ROWS)
    if model == ALONE:
        ends = truth.split_ends(new().fit(X[:i], y[:i]), X, y, i, j)
        yield {"kind": ALONE} | parts.scored(ends, y[j:], np.std(y))
        return
    base = piped(MODELS[model]()).fit(X[:i], y[:i])
    ours = around(clone(base), seed, X[:i], y[:i])
    found = {AROUND: truth.split_ends(ours, X, y, i, j)}
    found |= dict(residual_ends(base, seed, X, y, i, j))
    if model in QUANTILE_MODELS:
        found["CQR"] = cqr_ends(model, X, y, i, j)
    rows = {k: parts.scored(ends, y[j:], np.std(y)) for k, ends in found.items()}
    same = float(np.array_equal(ours.predict(X[j:]), base.predict(X[j:])))
    for kind, row in rows.items():
        row["around/it"] = rows[AROUND][SCORE] / row[SCORE]
        yield {"kind": kind} | row | ({"same": same} if kind == AROUND else {})


def sparse(seed: int, new: Model, table: Table) -> Rows:
    X, y, i, j, inside = truth.thinned(table, seed)
    base, unit = piped(boosting()).fit(X[:i], y[:i]), np.std(table.iloc[:, -1])
    ours = around(clone(base), seed, X[:i], y[:i])
    found = {AROUND: truth.split_ends(ours, X, y, i, j)}
    for kind, ends in (found | dict(residual_ends(base, seed, X, y, i, j))).items():
        yield {"kind": kind} | truth.scored_inside(ends, y[j:], inside[j:], unit)


def reasons(seed: int, new: Model, _: Table, *, model: str, **case: Any) -> Rows:
    X, mean, _, y, n = truth.problem(seed, **case)
    if model == ENSEMBLES:
        found = truth.tell_catboost(X[:n], y[:n], X[n:], seed)
    else:
        found = told(around(MODELS[model](), seed, X[:n], y[:n]), X[n:])
    error = (found.mean - mean[n:]) ** 2
    row = {"ρ": float(spearmanr(found.lack, error).statistic)}
    yield row | {"lack/true": float(np.mean(found.lack) / np.mean(error))}


def cost(seed: int, new: Model, table: Table, *, model: str, size: str) -> Rows:
    """Processor time, the shortest of three; the model as it is, without a pipeline."""
    X, y = speed.make_rows(*map(int, size.split(" × ")))
    base, ours = MODELS[model]().fit(X, y), around(MODELS[model](), seed, X, y)
    fit, fits, tell, predict = (
        min(repeat(call, timer=process_time, number=1, repeat=3))
        for call in (
            partial(around, MODELS[model](), seed, X, y),
            lambda: [clone(base).fit(X, y) for _ in range(6)],
            partial(told, ours, X),
            partial(base.predict, X),
        )
    )
    yield {"fit (s)": fit, "fit/six fits": fit / fits} | {
        "explain (s)": tell,
        "explain/predict": tell / predict,
    }


NOISE = {
    "model": (*MODELS, ENSEMBLES),
    "size": ("400 × 10", "3000 × 10"),
    "kind": (*truth.MEANS, truth.UNEVEN),
    "r2": (0.3, 0.8),
}
FILES = truth.CHOICE, "tables/*.csv"
SIZES = {"model": (*MODELS,), "size": ("300 × 12", "3000 × 12")}
PARTS = {
    "scores": Part(scores, ["model kind"], "set", FILES, {"model": (*MODELS, ALONE)}),
    "sparse": Part(sparse, ["kind"], "set", truth.SPARSE),
    "reasons": Part(reasons, ["model size"], "kind r2", (), NOISE),
    "cost": Part(cost, ["model size"], "", (), SIZES, n_seeds=1),
}


def main(given: Sequence[str] | None = None) -> int:
    return parts.main("around", __doc__, PARTS, given)


if __name__ == "__main__":
    sys.exit(main())
