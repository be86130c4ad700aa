"""The numbers of the paper's protocol; imports nothing slow."""

from typing import Any

CONFIDENCE_LEVEL = 0.9
METHODS = ("Split CP", "CV+", "LACP", "CQR", "DCP", "CLAPS")
N_FOLDS = 5
# Of ``make_heteroscedastic_sparse``; "keep" is for training rows in the sparse region.
SYNTHETIC: dict[str, Any] = {"n_train": 500, "n_calibration": 500, "n_test": 2000}
SYNTHETIC |= {"keep": 0.1}
SYNTHETIC_STEPS, SMOKE_STEPS = 250, 5
# Parts of the rows of a real data set; the rest is for testing.
FRACTIONS: dict[str, Any] = {"max_rows": 5000, "training": 0.6, "calibration": 0.2}
# Of the two targets of this table, the one that the published figures fit.
FILES = {"naval": "naval_turbine"}
GRIDS: dict[str, tuple[float, ...]] = {
    "prior_precision": (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0),
    "calibration_size": (0.10, 0.15, 0.20, 0.30),
    "representation_size": (16, 32, 64, 128),
    "variance_floor": (1e-6, 1e-5, 1e-4, 1e-3),
}
#: The grid value that width and score are relative to.
REFERENCES = {
    "prior_precision": 1.0,
    "calibration_size": 0.20,
    "representation_size": 64,
    "variance_floor": 1e-3,
}
