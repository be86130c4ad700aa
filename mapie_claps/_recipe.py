"""Rules by which the defaults of ``ClapsRegressor`` adapt to the data."""

MIN_ROWS_TO_HOLD_OUT = 20
MAX_HELD_OUT_ROWS = 4_000


def batch_size(n_rows: int) -> int:
    """An eighth of the rows, between 16 and 64; larger where rows abound."""
    return max(16, min(64, n_rows // 8), n_rows // 500)


def max_steps(n_rows: int) -> int:
    """Steps grow with the rows, from 300 to 2,000."""
    return max(300, min(2000, 4 * n_rows))


def n_held_out(n_rows: int, validation_fraction: float) -> int:
    """Rows that each member holds out; none of very few, capped for very many."""
    if n_rows < MIN_ROWS_TO_HOLD_OUT or validation_fraction == 0:
        return 0
    return min(MAX_HELD_OUT_ROWS, max(2, round(validation_fraction * n_rows)))
