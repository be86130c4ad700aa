"""Write a file of every class that can be saved, in the present version of the format.

    python tests/write_saved_files.py

Needs the newest MAPIE. To be run once, when a version of the format is new: the files
are then loaded for ever. What networks are trained to does not matter, so training is
brief.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import saved_networks
from test_saved_files import FOLDER, found, kinds_of, rows_for

from mapie_claps import (
    CalibratedRegressor,
    ClapsModule,
    ClapsRegressor,
    ColumnGroups,
    EpistemicGroups,
    ExchangeabilityMonitor,
    StreamingConformalRegressor,
    likelihood_ratio,
    save,
)
from mapie_claps.files.container import FORMAT_VERSION

BRIEF = {"hidden_layer_sizes": (4,), "representation_size": 3, "n_members": 3}
BRIEF |= {"max_steps": 8, "tol": None, "n_bins": 4, "random_state": 0}
PLAIN = BRIEF | {"n_members": 1, "kernel": False, "residual_shape": False}


def models():
    """Fitted objects by the name of their file."""
    X = saved_networks.rows(300)
    y = np.exp(0.3 * saved_networks.targets(X))
    names = saved_networks.named(X)
    table, targets = saved_networks.table(300), saved_networks.table_targets(300)
    train, cal = slice(0, 160), slice(200, 300)
    output, head = saved_networks.mean_and_variance, saved_networks.mean_alone

    plain = ClapsRegressor(**PLAIN, target_map=None).fit(X[train], y[train])
    yield "regressor", plain
    yield "regressor_names", ClapsRegressor(**PLAIN, target_map="log").fit(names, y)
    small = {k: BRIEF[k] for k in ("hidden_layer_sizes", "representation_size")}
    paper = ClapsRegressor.paper(**small, max_steps=3, target_map="sqrt")
    yield "regressor_paper", paper.fit(X, y)
    diagonal = {"hessian_structure": "diag", "last_layer": "trained"}
    diagonal |= {"target_map": "yeo-johnson"}
    yield "regressor_diagonal", ClapsRegressor(**PLAIN, **diagonal).fit(X, y)
    whole = ClapsRegressor(**BRIEF, target_map="spline")
    whole.fit(table[train], targets[train])
    yield "regressor_table", whole

    own = ClapsModule(output()).fit(X[train], y[train])
    yield "module_output", own
    yield "module_head", ClapsModule(head()).fit(X, y)
    noise = saved_networks.noise_variance
    yield "module_callable", ClapsModule(head(), noise_variance=noise).fit(X, y)
    grid = {"prior_precision": "grid", "scale": "posterior"}
    yield "module_grid", ClapsModule(output(), **grid).fit(X, y)
    yield (
        "module_diagonal",
        ClapsModule(output(), hessian_structure="diag").fit(X, y),
    )

    def calibrated(kind, model, rows=X, targets=y, **options):
        made = kind(model, [0.5, 0.8])
        return made.conformalize(rows[cal], targets[cal], **options)

    yield "streaming_regressor", calibrated(StreamingConformalRegressor, plain)
    yield "streaming_module", calibrated(StreamingConformalRegressor, own)
    yield (
        "calibrated_table",
        calibrated(CalibratedRegressor, whole, table, targets),
    )
    ratio = likelihood_ratio(X[train], X[:50], estimator=plain)
    yield "calibrated_weights", calibrated(CalibratedRegressor, plain, weights=ratio)
    groups = EpistemicGroups.from_training(plain, X[train], n_groups=2)
    yield "calibrated_lack", calibrated(CalibratedRegressor, plain, groups=groups)
    by_name = ClapsRegressor(**PLAIN, target_map=None).fit(names[train], y[train])
    side = ColumnGroups("side")
    follows = calibrated(CalibratedRegressor, by_name, names, y, groups=side)
    follows.observe(names[:30], y[:30], gamma=0.02, window=90)
    yield "calibrated_names", follows
    watched = calibrated(CalibratedRegressor, plain)
    yield "monitor", ExchangeabilityMonitor(watched, X[cal]).update(X[:20], y[:20])


def main():
    folder = FOLDER / f"version_{FORMAT_VERSION}"
    folder.mkdir(exist_ok=True)
    expected = {}
    for name, model in models():
        path = Path(folder, f"{name}.claps")
        save(model, path)
        for kind in kinds_of(model):
            expected[f"{name}.{kind}"] = found(model, kind, rows_for(path))
        sys.stdout.write(f"{path} {path.stat().st_size / 1024:.0f} kB\n")
    np.savez_compressed(folder / "expected.npz", **expected)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
