"""RealMLP of pytabkit as a peer: a strong network of others, with its own defaults.

It is no part of the first table: it is not tuned, costs more than all other peers
together, and comes with an extra of its own.
"""

from typing import Any

import numpy as np

from ..studies.data import Array, Table
from ._peer_tuning import Band, Method, Params, ordered


def _fit(X: Table, y: Array, params: Params, seed: int, alpha: float) -> Any:
    """Both quantiles with one network, also judged by the quantile loss."""
    from pytabkit import RealMLP_TD_Regressor

    loss = f"multi_pinball({alpha / 2:.12g},{1 - alpha / 2:.12g})"
    model = RealMLP_TD_Regressor(
        device="cpu",
        n_threads=1,
        random_state=seed,
        train_metric_name=loss,
        val_metric_name=loss,
    )
    return model.fit(X, y)


def _band(model: Any, X: Table, params: Params) -> Band:
    return ordered(*np.asarray(model.predict(X), dtype=np.float64).T)


REALMLP = Method(
    "realmlp",
    "RealMLP + CQR",
    *(_fit, _band, "mapie_cqr"),
    [{}],
    requires="pytabkit",
    text=True,
)
