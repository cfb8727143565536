"""Which function runs a module of a type that one family or few have.

Each family's file of this folder has the function; it is imported when the first module of its type is run.
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd.tensor import Value
from memcheck.edge.modules import import_module

FORWARDS: dict[str, str] = {
    "AltUpBlock": "altup:altup_block",
    "AveragedMoe": "moe:averaged",
    "Compressed": "compressed:compressed_attention",
    "DenseDispatchMoe": "dense_dispatch:dense_dispatch",
    "Disentangled": "disentangled:disentangled_attention",
    "DualAttentionBlock": "dual_attention:dual_attention_block",
    "LatentMoe": "moe:between_projections",
    "NoisyMoe": "moe:noisy",
    "SharedTransformerBlock": "shared_block:shared_block",
    "UnscaledAltUpBlock": "altup:altup_block",
    "WideSumMoe": "moe:summed_wide",
}
"""Name of a module's type -> ``file:function`` in this folder. The function takes the context, the module and rows.
That of an attention's ``own`` record takes the attention and the record."""

_found: dict[str, Callable[..., Value] | None] = {}


def forward_of(module: object) -> Callable[..., Value] | None:
    """The function of the module's own type; None: it runs as its kind does in most models."""
    name = type(module).__name__
    if name not in _found:
        file, _, function = FORWARDS.get(name, "").partition(":")
        _found[name] = getattr(import_module("memcheck.frameworks.transformers." + file), function) if file else None
    return _found[name]
