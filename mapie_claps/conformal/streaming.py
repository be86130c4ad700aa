"""Split conformal prediction from batches, for data beyond memory."""

from .calibrated_file import register_calibrated
from .calibration import Calibrated


class StreamingConformalRegressor(Calibrated):
    r"""Split conformal prediction with ``ClapsScore``, calibrated batch by batch.

    :math:`C_\alpha(x) = \mu(x) \pm q_\alpha\sqrt{v(x)}`, with :math:`q_\alpha` the
    :math:`\lceil(n+1)(1-\alpha)\rceil`-th smallest calibration score.

    Does what ``SplitConformalRegressor(estimator, conformity_score=ClapsScore(),
    prefit=True)`` of MAPIE does, with the same scores and the same rank, where the
    rows do not fit in memory, are not an array (a ``DataLoader``), or where the scores
    come from elsewhere (a file, a cluster). As there, calibration rows must not have
    been used to train or fit the estimator. Like MAPIE's class it is no scikit-learn
    estimator: it has no ``fit`` and no ``get_params``, and the estimator inside is the
    one to tune and clone.

    Parameters
    ----------
    estimator : estimator
        Fitted, with ``predict(X, return_std=True)``: ``ClapsModule``,
        ``ClapsRegressor`` or another.
    confidence_level : float or sequence of float, default=0.9
        Levels 1 − α of the intervals.
    sym : bool, default=True
        One rank for both ends, or one rank at α/2 for each; see
        :class:`~mapie_claps.ClapsScore`.
    support : str, tuple, array-like or None, default="auto"
        Values that y can take; see :class:`~mapie_claps.ClapsScore`.

    Attributes
    ----------
    conformity_scores_ : ndarray of shape (n_cal,)
        Scores ``|y − μ| / √v``, in the order in which they came.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from mapie_claps import ClapsModule, StreamingConformalRegressor
    >>> rng = np.random.default_rng(0)
    >>> def batches(n):
    ...     for _ in range(n):
    ...         X = rng.normal(size=(50, 2))
    ...         yield X, X[:, 0] + rng.normal(0, 0.1, 50)
    >>> model = ClapsModule(torch.nn.Linear(2, 1)).fit(list(batches(2)))
    >>> conformal = StreamingConformalRegressor(model, confidence_level=[0.8, 0.9])
    >>> conformal = conformal.conformalize(batches(4))
    >>> len(conformal.conformity_scores_)
    200
    >>> for y_pred, y_interval in conformal.iter_intervals(batches(2)):
    ...     print(y_interval.shape)
    (50, 2, 2)
    (50, 2, 2)
    """


register_calibrated(StreamingConformalRegressor, "streaming")
