"""Gradients that meet in autograd's buffers are added in place, as without a dispatch mode.

torch/csrc/autograd/input_buffer.cpp reuses a gradient that has no other reference (can_accumulate_inplace), except for
tensor subclasses. While a dispatch mode is active it takes every tensor for one. A trace then shows a third tensor at
each such moment that no real run has. The recorded traces have it, and a trace has to equal them. It is put right where
FSDP2 makes the gradients of the head fp32: none of the recorded traces has this case, and the third tensor would be its
peak.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Uses = tuple[int, int]
"""References to a tensor, and to its storage, as an intercepted operator sees them."""


def uses(tensor: torch.Tensor) -> Uses:
    """How many refer to it now."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # noqa: SLF001


class _Probe(TorchDispatchMode):
    """Sees the engine add two gradients, the first of which it alone holds."""

    seen: Uses | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Remember the references of a sum in backward."""
        if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
            self.seen = uses(args[0])
        return func(*args, **(kwargs or {}))


def alone() -> Uses | None:
    """The references of a gradient that only the engine's buffer holds; None where they cannot be told."""
    if not hasattr(torch.Tensor, "_use_count"):
        return None
    x = torch.ones(4, requires_grad=True)
    with torch.enable_grad(), _Probe() as probe:
        y = x * 2
        (torch.sin(y) + torch.cos(y)).sum().backward(inputs=[x])
    seen: Uses | None = probe.seen
    return seen
