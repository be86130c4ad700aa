"""Text that changes with everything that predictions of a fitted model depend on."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..files.container import hash_tensors


def digest_of_fit(estimator: Any) -> str:
    """Hash of a fit; computed once, and again after a change in place."""
    model, seen, digest = estimator.__dict__.get("_digest", (None, None, ""))
    now = estimator._versions()
    # A copy with another λ or other sums holds another model.
    if model is not estimator.model_ or seen != now:
        text = f"{estimator._sums_belong_to()} {estimator._target_units()}"
        law = estimator._law_of_residuals().text()
        digest = hash_tensors(estimator._own_tensors(), f"{text} {law}")
        estimator.__dict__["_digest"] = estimator.model_, now, digest
    found: str = digest
    return found


def versions(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """How often torch has changed each tensor in place.

    Tensors of inference mode are not counted, nor are changes through ``.data``.
    """
    return tuple(0 if t.is_inference() else t._version for t in tensors)
