"""One matrix product: bounded by arithmetic, by memory, or by the multiprocessors that its last wave leaves idle.

Source: NVIDIA, "Matrix Multiplication Background User's Guide" (arithmetic intensity, tile and wave quantisation; tiles
of 256 x 128 and 128 x 128). Products with fewer tiles than multiprocessors are cut along the inner dimension.
"""

from __future__ import annotations

from memcheck.remembered import lru_cache
from memcheck.timing.rates import Rates

TILES = ((256, 128), (128, 256), (128, 128))
INNER = 512
"""A slice along the inner dimension is no shorter: below that its sum costs more than it gains."""


def filled(m: int, n: int, k: int, batch: int, multiprocessors: int) -> float:
    """Share of the multiprocessors' time that is spent on elements of the result, for the best tile; 1 = all of it."""
    if not multiprocessors:
        return 1.0
    best = 0.0
    for rows, columns in TILES:
        tiles = -(-m // rows) * -(-n // columns) * batch
        useful = m * n * batch / (tiles * rows * columns)
        if tiles < multiprocessors:
            slices = max(1, min(multiprocessors // tiles, k // INNER))
            share = tiles * slices / multiprocessors
        else:
            share = tiles / (-(-tiles // multiprocessors) * multiprocessors)
        best = max(best, useful * share)
    return best


@lru_cache(maxsize=16384)
def matmul(m: int, n: int, k: int, rates: Rates, batch: int = 1, item: int = 2) -> tuple[float, bool]:
    """Seconds of ``[m, k] x [k, n]``, ``batch`` times, and whether memory bounds them; ``item``: bytes an element of
    what is multiplied. Results of fp8 are written in 16 bits.
    """
    if m <= 0 or n <= 0 or k <= 0:
        return 0.0, False
    arithmetic = 2.0 * m * n * k * batch / (rates.linear * filled(m, n, k, batch, rates.multiprocessors))
    memory = float(item * (m * k + k * n) + max(2, item) * m * n) * batch / rates.hbm
    return (memory, True) if memory > arithmetic else (arithmetic, False)
