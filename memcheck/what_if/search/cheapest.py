"""The least money for a token: over the GPUs that have a price, and over how many of them there are."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.errors import UsageError
from memcheck.what_if.compare import per_million_tokens
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.remedies.types import EQUIVALENT, HARDWARE, UNCHANGED, CandidateChange, Priced
from memcheck.what_if.search.cluster import clusters
from memcheck.what_if.search.explore import fastest_first
from memcheck.what_if.search.rank import changed
from memcheck.what_if.search.space import Space, space_of, together

LARGEST_CLUSTER = 8192
"""GPUs at which the search for a cluster of one kind of GPU gives up."""
WORSE = 2
"""Sizes of a cluster that may cost more than the best one before the search goes on with another GPU."""
OF_A_CLUSTER = 0.4
"""The share of a GPU's time for one size of a cluster."""
FULL_NODE = 8


def money(priced: Priced, pricer: Pricer, prices: Mapping[str, float]) -> float | None:
    """What a million tokens cost: the price of an hour of all GPUs times the hours that the tokens take.

    None where the GPU has no price, or no rates from which its time would follow.
    """
    step, price = pricer.clock.step(priced.resolved), prices.get(priced.resolved.gpu.name)
    return None if step is None else per_million_tokens(price, step.tokens_per_second_per_gpu)


def cheapest(pricer: Pricer, prices: Mapping[str, float], enough: int) -> tuple[list[Priced], list[CandidateChange]]:
    """Plans with the same results, those that cost least per token first, and all changes that were tried.

    Of one kind of GPU ever more are taken, until twice in a row more of them cost more per token.

    Raises:
        UsageError: there are no prices.
    """
    from memcheck.config.read import EXAMPLE

    if not prices:
        raise UsageError(
            "--goal cheapest needs prices, and the configuration has none: memcheck ships no prices",
            "write what an hour of a GPU costs into memcheck.toml, or into [tool.memcheck.prices] of pyproject.toml:\n"
            + EXAMPLE,
        )
    found: list[tuple[float, Priced]] = []
    tried: list[CandidateChange] = []
    for position, gpu in enumerate(prices):
        with pricer.budget.part(1 / (len(prices) - position)):
            _on(gpu, pricer, prices, enough, found, tried)
    found.sort(key=lambda each: (float(f"{each[0]:.3g}"), each[1].resolved.job.layout.world_size, changed(each[1])))
    return [priced for _, priced in found], tried


def on_each_card(pricer: Pricer, prices: Mapping[str, float]) -> list[Priced]:
    """The plan with nothing changed but the GPU, on every GPU that has a price: those that cost least and fit first."""
    found: list[tuple[bool, float, int, Priced]] = []
    for position, gpu in enumerate(prices):
        priced = pricer.price(_card(gpu), prune=False)
        cost = None if priced is None else money(priced, pricer, prices)
        if priced is not None and cost is not None:
            found.append((not pricer.fits(priced), cost, position, priced))
    return [priced for *_, priced in sorted(found, key=lambda each: each[:3])]


def _card(gpu: str) -> CandidateChange:
    return CandidateChange("gpu", f"use {gpu}", {"hardware.gpu": gpu}, cost=HARDWARE, numerics=EQUIVALENT)


def _on(
    gpu: str,
    pricer: Pricer,
    prices: Mapping[str, float],
    enough: int,
    found: list[tuple[float, Priced]],
    tried: list[CandidateChange],
) -> None:
    """Put plans on one kind of GPU into ``found``, from the smallest cluster on."""
    layout = pricer.context.layout._replace(nodes=1, gpus_per_node=max(FULL_NODE, pricer.context.layout.gpus_per_node))
    least: float | None = None
    worse = 0
    for nodes, gpus_per_node in clusters(layout, LARGEST_CLUSTER):
        space = _with_gpu(gpu, space_of(pricer.context, UNCHANGED, nodes, gpus_per_node, faster=True))
        tried += space.every
        some: list[Priced] = []
        with pricer.budget.part(OF_A_CLUSTER):
            some = fastest_first(pricer, space, enough)
        costs = [(cost, each) for each in some if (cost := money(each, pricer, prices)) is not None]
        found += costs
        if not costs:
            if least is not None:
                return
            continue
        best = min(cost for cost, _ in costs)
        if least is not None and best >= least:
            worse += 1
            if worse == WORSE:
                return
        least = best if least is None else min(least, best)


def _with_gpu(gpu: str, space: Space) -> Space:
    """The space on another GPU."""
    return space._replace(layouts=tuple(together(each, _card(gpu)) for each in space.layouts))
