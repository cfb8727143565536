"""Sizes of clusters, from one GPU up."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import Layout


def clusters(layout: Layout, most: int, above: int = 0) -> Iterator[tuple[int, int]]:
    """(nodes, GPUs per node) with more than ``above`` and at most ``most`` GPUs, ascending.

    Parts of one node by powers of two, then whole nodes by powers of two and, as written, their own number.
    """
    whole = layout.gpus_per_node
    within = [1 << n for n in range(whole.bit_length()) if 1 << n < whole]
    more = [1 << n for n in range(most.bit_length())]
    sizes = {(1, n) for n in within} | {(n, whole) for n in (*more, layout.nodes)}
    if whole < 8:  # one GPU was asked for: nodes have more
        sizes = {(1, 1 << n) for n in range(4)} | {(1, whole)} | {(n, 8) for n in more}
    for nodes, each in sorted(sizes, key=lambda size: (size[0] * size[1], size[0])):
        if above < nodes * each <= most:
            yield nodes, each
