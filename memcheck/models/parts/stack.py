"""The stack of layers: runs of equal blocks, and which layers are windowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

from memcheck.models.reader import ConfigReader
from memcheck.models.types import Block

Kind = TypeVar("Kind")

LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")


def stack(kinds: Iterable[Kind], build_layer: Callable[[Kind], Block]) -> tuple[tuple[Block, int], ...]:
    """Return the layers as runs of (layer, how many): consecutive layers of equal kind are one run.

    ``kinds``: a hashable description of each layer. ``build_layer``: called once for each different kind.
    """
    blocks: dict[Kind, Block] = {}
    runs = []
    for kind, members in groupby(kinds):
        if kind not in blocks:
            blocks[kind] = build_layer(kind)
        runs.append((blocks[kind], sum(1 for _ in members)))
    return tuple(runs)


def layer_types(
    config: ConfigReader, layers: int, default: Callable[[int], str], known: tuple[str, ...] = LAYER_TYPES
) -> tuple[str, ...]:
    """Return the kind of mixer of every layer: the key ``layer_types``, or ``default(layer index)`` where it is absent.

    Fails for a kind that is not in ``known``, and for a list of another length than ``layers``.
    """
    stated = config.texts("layer_types")
    if stated is None:
        return tuple(default(i) for i in range(layers))
    if len(stated) != layers:
        config.fail("layer_types", f"layer_types names {len(stated)} layers, the model has {layers}")
    unknown = next((t for t in stated if t not in known), None)
    if unknown is not None:
        config.fail("layer_types", f"unknown layer type {unknown!r}", f"known: {', '.join(known)}")
    return stated


def sparse_types(config: ConfigReader, layers: int, dense: int) -> tuple[bool, ...]:
    """Say for each layer whether it has routed experts.

    They are those that ``mlp_layer_types`` calls sparse; if it is absent, all but the first ``dense`` layers.
    """
    stated = config.texts("mlp_layer_types")
    if stated is None:
        return tuple(i >= dense for i in range(layers))
    if len(stated) != layers:
        config.fail("mlp_layer_types", f"mlp_layer_types names {len(stated)} layers, the model has {layers}")
    unknown = next((t for t in stated if t not in ("dense", "sparse")), None)
    if unknown is not None:
        config.fail("mlp_layer_types", f"unknown kind {unknown!r} in mlp_layer_types", "known: dense, sparse")
    return tuple(t == "sparse" for t in stated)


def rotary_layers(config: ConfigReader, layers: int, period: int) -> tuple[bool, ...]:
    """Say for each layer whether it rotates queries and keys.

    ``no_rope_layers`` has a 1 for each layer that does. If it is absent, all but every ``period``-th layer do.
    """
    period = config.integer("no_rope_layer_interval", default=period, null=period)
    stated = config.integers("no_rope_layers")
    if not stated:
        return tuple((i + 1) % period != 0 for i in range(layers))
    if len(stated) != layers:
        config.fail("no_rope_layers", f"no_rope_layers names {len(stated)} layers, the model has {layers}")
    return tuple(bool(v) for v in stated)


def windows(types: Iterable[str], window: int | None) -> list[int | None]:
    """Return the sliding window of each layer in tokens; None for full attention."""
    return [window if t in ("sliding_attention", "chunked_attention") else None for t in types]
