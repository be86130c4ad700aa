"""Which members have nothing to gain from further steps.

Noisy targets are learned in a fraction of the steps, and a member that stops falling
there rises; where there is little noise a plateau at a high learning rate may be left
later. So the patience depends on the noise that is left. All numbers were chosen
together, see docs/recipe.md.
"""

from collections.abc import Sequence

# Evaluations without a better state, of a member whose best held-out loss is above or
# below LITTLE_NOISE. In standardised units that is h = 0.37.
PATIENCE, PATIENCE_WITH_LITTLE_NOISE, LITTLE_NOISE = 4, 6, -0.5
# A view is given up after this many evaluations if its loss is worse by this much than
# that of the best view, next to which it has a weight of exp(-5) = 0.007.
LOST_FROM, LOST_BY = 6, 0.5
# In shorter runs, which are those of few rows, a handful of held-out rows would decide.
MIN_STEPS_TO_STOP = 400
AUTO = "auto"


def members_that_stop(
    losses: Sequence[Sequence[float]],  # of all members, at each evaluation so far
    active: Sequence[int],
    patience: int | str | None,  # AUTO for the rule, None for no end
    views: Sequence[slice] = (),
) -> set[int]:
    """Members that wait too long for a better loss, and those of a view that lost."""
    if patience is None:
        return set()
    found = {k for k in active if _waits_too_long([e[k] for e in losses], patience)}
    if patience == AUTO and len(losses) >= LOST_FROM:
        found |= set(active) & _members_of_lost_views(losses, views)
    return found


def _waits_too_long(losses: Sequence[float], patience: int | str) -> bool:
    best = min(range(len(losses)), key=losses.__getitem__)
    if isinstance(patience, str):
        little_noise = losses[best] <= LITTLE_NOISE
        patience = PATIENCE_WITH_LITTLE_NOISE if little_noise else PATIENCE
    return len(losses) - 1 - best >= patience


def _members_of_lost_views(
    losses: Sequence[Sequence[float]], views: Sequence[slice]
) -> set[int]:
    """Members of views whose best losses are on average far from the best view's."""
    best = [min(column) for column in zip(*losses, strict=True)]
    by_view = [sum(best[view]) / len(best[view]) for view in views]
    return {
        k
        for view, loss in zip(views, by_view, strict=True)
        if loss > min(by_view) + LOST_BY
        for k in range(view.start, view.stop)
    }
