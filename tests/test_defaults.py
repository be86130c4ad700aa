"""Rules by which the defaults adapt to the number of rows."""

import pytest

from mapie_claps.network.defaults import batch_size, max_steps


@pytest.mark.parametrize(
    ("n_rows", "steps", "batch"),
    [
        (20, 120, 16),
        (100, 150, 16),
        (150, 450, 18),
        (600, 1_800, 64),
        (3_000, 2_000, 64),
        (10_000, 2_000, 64),
        (40_000, 4_000, 200),
        (160_000, 8_000, 256),
        (1_000_000, 8_000, 256),
    ],
)
def test_steps_and_batch(n_rows, steps, batch):
    assert (max_steps(n_rows), batch_size(n_rows)) == (steps, batch)


def test_more_rows_never_mean_fewer_steps_or_smaller_batches():
    sizes = [150, 600, 9_999, 10_000, 10_001, 12_800, 51_200, 10**5, 10**6]
    for rule in (max_steps, batch_size):
        found = [rule(n) for n in sizes]
        assert found == sorted(found)
