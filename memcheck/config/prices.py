"""What the hour of a GPU costs, as the team writes it down: memcheck ships no prices."""

from __future__ import annotations

from math import isfinite

from memcheck.catalog.gpus import find_gpu
from memcheck.errors import MemcheckError

EXAMPLE = "[prices]\nh100-80gb = 2.50   # money per GPU-hour, in any currency\nl40s = 0.90"
"""A table of prices, as a message shows it."""


def read_prices(written: object) -> tuple[tuple[str, float], ...]:
    """The price of an hour of each GPU, by its catalog name, in the order of the table.

    Raises:
        ValueError: it is no table of GPUs and positive numbers, or names a GPU that the catalog does not have.
    """
    if not isinstance(written, dict):
        raise ValueError(f"{written!r} is not a table of GPUs and prices per GPU-hour: h100-80gb = 2.50")  # noqa: TRY004 - a wrong value like the others
    found: dict[str, float] = {}
    for name, price in written.items():
        try:
            gpu = find_gpu(name).name
        except MemcheckError as error:
            raise ValueError(f"{error.message}; {error.help}") from error
        number = isinstance(price, int | float) and not isinstance(price, bool)
        if not number or not isfinite(price) or price <= 0:
            raise ValueError(f"{name} costs {price!r}, which is not a positive number per GPU-hour")
        if gpu in found:
            raise ValueError(f"{gpu} has two prices")
        found[gpu] = float(price)
    return tuple(found.items())
