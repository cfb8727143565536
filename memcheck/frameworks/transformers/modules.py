"""Which function runs a module of a type that one family or few have.

The file that has the function is imported when the first module of its type is run.
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd.tensor import Value
from memcheck.edge.imports import import_module

FORWARDS: dict[str, str] = {
    "AltUpBlock": "altup:altup_block",
    "AveragedMoe": "moe:averaged",
    "Compressed": "compressed:compressed_attention",
    "DenseDispatchMoe": "looped_experts:dense_dispatch",
    "Disentangled": "disentangled:disentangled_attention",
    "DualAttentionBlock": "shared_block:dual_attention_block",
    "LatentMoe": "moe:between_projections",
    "NoisyMoe": "moe:noisy",
    "SharedTransformerBlock": "shared_block:shared_block",
    "WideSumMoe": "moe:summed_wide",
}
"""Name of a module's type -> ``file:function`` in this folder. The function takes the context, the module and rows.
That of an attention's ``own`` record takes the attention and the record."""

FAMILIES = "memcheck.models.families."
HERE = "memcheck.frameworks.transformers."
_found: dict[type, Callable[..., Value] | None] = {}


def forward_of(module: object) -> Callable[..., Value] | None:
    """Return the forward function for an odd module, by its type; None: it runs as in most models.

    ``module``: a description of a module, such as an ``Attention``. The function is looked up in :data:`FORWARDS`, then
    in the table ``FORWARDS`` of the file in this folder that is named like the family's file which defines the type.
    """
    kind = type(module)
    if kind not in _found:
        _found[kind] = _look_up(kind)
    return _found[kind]


def _look_up(kind: type) -> Callable[..., Value] | None:
    """Find the forward function of a module's type, or of its nearest base that has one; None without one."""
    for base in kind.__mro__:
        file, _, function = FORWARDS.get(base.__name__, "").partition(":")
        if file:
            function_found: Callable[..., Value] = getattr(import_module(HERE + file), function)
            return function_found
        if base.__module__.startswith(FAMILIES):
            forwards_by_type: dict[type, Callable[..., Value]] = import_module(
                HERE + base.__module__.removeprefix(FAMILIES)
            ).FORWARDS
            return forwards_by_type[base]
    return None
