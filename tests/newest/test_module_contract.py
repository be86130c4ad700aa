"""scikit-learn's own checks of ``ClapsModule``.

The checks fit tables of many widths, where a user's network has one: here it takes any
number of columns, the missing ones as zeros. ``fit`` trains no network: the last layer
alone learns, by ``last_layer="ridge"``.
"""

import copy

import joblib
import torch
from own_networks import seeded
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from mapie_claps import ClapsModule

WIDTH = 64

EXPECTED_FAILURES = {
    "check_estimators_overwrite_params": (
        "joblib.hash, by which it compares, gives a network and its deep copy two "
        "hashes; test_module.py compares the weights"
    ),
    "check_supervised_y_2d": (
        "y of shape (n, 1) is what torch's loaders give; it is taken without a warning"
    ),
}


def test_the_reason_of_the_first_expected_failure():
    net = seeded(AnyWidth)
    assert joblib.hash(net) != joblib.hash(copy.deepcopy(net))


class AnyWidth(nn.Module):
    """Columns and random features of them, from tables of up to WIDTH columns."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 16)
        self.mean = nn.Linear(WIDTH + 16, 1)

    def forward(self, x):
        x = nn.functional.pad(x, (0, WIDTH - x.shape[1]))
        return self.mean(torch.cat([x, torch.tanh(self.hidden(x))], dim=1))


@parametrize_with_checks(
    [ClapsModule(seeded(AnyWidth), last_layer="ridge")],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learn_compatible(estimator, check):
    check(estimator)
