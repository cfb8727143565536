"""Whether a plan fits the memory of each GPU and of each node. Every verdict is computed here."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate, HostMoment

FITS, UNCERTAIN, ABOVE, TOO_LARGE = "fits", "uncertain", "above-limit", "does-not-fit"
"""What MEM101 (more than the capacity), MEM102 (more than the plan may use) and MEM104 (the interval reaches beyond
what the plan may use) say; the gravest counts."""
RUNS = frozenset({FITS, UNCERTAIN})
"""Answers for which the predicted need itself is within the limit."""
DOES_NOT_FIT = "does_not_fit"
VERDICTS = (FITS, UNCERTAIN, DOES_NOT_FIT)
"""What the whole interval of the need says, from good to bad."""
GIB = 2**30


def on_gpu(needed_bytes: int, high_bytes: int, capacity_bytes: int, fail_above: float) -> str:
    """Return the verdict on one GPU: does not fit, above the plan's limit, uncertain, or fits.

    ``needed_bytes``: the predicted need; ``high_bytes``: the upper end of its interval. ``fail_above``: the share of
    the capacity that the plan may use, 0 to 1.
    """
    if needed_bytes > capacity_bytes:
        return TOO_LARGE
    if capacity_bytes and needed_bytes / capacity_bytes > fail_above:
        return ABOVE
    return FITS if within(high_bytes, capacity_bytes, fail_above) else UNCERTAIN


def within(count: int, capacity_bytes: int, fail_above: float) -> bool:
    """Whether ``count`` bytes are within the capacity of a GPU and within the share of it that a plan may need."""
    return count <= capacity_bytes and (not capacity_bytes or count / capacity_bytes <= fail_above)


def verdict_of(estimate: Estimate, fail_above: float, host_bytes: int | None = None) -> str:
    """Return one of :data:`VERDICTS`: whether the interval of the need is below the limit, includes it, or is above.

    ``fail_above``: the share of the GPU that the plan may use. ``host_bytes``: the memory of a node; a plan that needs
    more of it does not fit. None: not checked.
    """
    if not on_host(estimate.host_bytes_per_node, host_bytes):
        return DOES_NOT_FIT
    if estimate.engine is not None:
        return {FITS: FITS, UNCERTAIN: UNCERTAIN}.get(_engine_fit(estimate), DOES_NOT_FIT)
    if estimate.longest_row:
        return UNCERTAIN
    return verdict_in(estimate.needed_interval_bytes, estimate.capacity_bytes, fail_above)


def verdict_in(needed: tuple[int, int], capacity_bytes: int, fail_above: float) -> str:
    """Return one of :data:`VERDICTS` for an interval of needed bytes on one GPU: its low and its high end."""
    if not within(needed[0], capacity_bytes, fail_above):
        return DOES_NOT_FIT
    return FITS if within(needed[1], capacity_bytes, fail_above) else UNCERTAIN


def gpu_fit(estimate: Estimate, fail_above: float) -> str:
    """Return the verdict on an estimate's GPU memory, as :func:`on_gpu` does; uncertain if row lengths are unknown."""
    if estimate.longest_row:
        return UNCERTAIN
    if estimate.engine is not None:
        return _engine_fit(estimate)
    return on_gpu(estimate.needed_bytes, estimate.needed_interval_bytes[1], estimate.capacity_bytes, fail_above)


def _engine_fit(estimate: Estimate) -> str:
    """Return the verdict on a serving engine's plan: whether vLLM boots, and whether a stated KV cache fits the GPU.

    vLLM always takes ``gpu_memory_utilization`` of the GPU, whatever it needs. So the GPU's capacity is the only limit.
    """
    if estimate.engine is None or estimate.engine.answer == "does_not_boot":
        return TOO_LARGE
    low, high = estimate.needed_interval_bytes
    if low > estimate.capacity_bytes:
        return TOO_LARGE
    return UNCERTAIN if estimate.engine.answer == "depends" or high > estimate.capacity_bytes else FITS


def hangs(estimate: Estimate, fail_above: float) -> bool:
    """Say whether the verdict depends on padding: the plan is within its limit, and would not be with padded rows.

    ``padded_bytes`` of an estimate is set only if the plan does not say whether rows are padded.
    """
    allowed = min(fail_above, 1.0) * estimate.capacity_bytes
    return estimate.needed_bytes <= allowed < estimate.padded_bytes


def host_capacity(gib: float | None) -> int | None:
    """The bytes of a node that states its memory in GiB; None where it states none, so that nothing is checked."""
    return None if gib is None else int(gib * GIB)


def host_excess(estimate: Estimate, capacity_bytes: int | None) -> tuple[HostMoment, ...]:
    """Return the moments of a run that need more host memory than a node has, the highest first."""
    if capacity_bytes is None:
        return ()
    above = [moment for moment in estimate.host_moments if moment.bytes > capacity_bytes]
    return tuple(sorted(above, key=lambda moment: -moment.bytes))


def on_host(host_bytes: int, capacity_bytes: int | None) -> bool:
    """Whether a node's host memory holds ``host_bytes``; True if its capacity is not known."""
    return capacity_bytes is None or host_bytes <= capacity_bytes
