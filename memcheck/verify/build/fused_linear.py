"""What Liger's fused linear cross entropy allocates (linkedin/Liger-Kernel ops/fused_linear_cross_entropy.py).

Tokens are taken in chunks; a chunk's logits are overwritten by their gradient in the kernel, so that one chunk of them
is all there is. The gradients of hidden states and head are made in the forward and kept for backward.
"""

from __future__ import annotations

from typing import Any

import torch


def rows_per_chunk(rows: int, vocabulary: int, hidden: int) -> int:
    """Liger's rule: as many chunks as the vocabulary is wider than the hidden size, rounded up to a power of two."""
    parts = -(-vocabulary // hidden)
    each = -(-rows // parts)
    return 1 << max(0, (each - 1).bit_length())


class FusedLinearCrossEntropy(torch.autograd.Function):
    """``apply(hidden, weight, labels)``: the summed loss."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss and both gradients, chunk by chunk."""
        del labels  # they decide no size
        rows, width = hidden.shape
        each = rows_per_chunk(rows, weight.shape[0], width)
        hidden_gradient = torch.zeros_like(hidden)
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # a frozen head has none
        losses = torch.zeros(rows, dtype=torch.float32, device=hidden.device)
        for start in range(0, rows, each):
            part = hidden[start : start + each]
            logits = part @ weight.t()
            hidden_gradient[start : start + each] = logits @ weight
            if weight_gradient is not None:
                weight_gradient += logits.t() @ part
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """The gradients are there already; the kernel scales them in place."""
        del gradient
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient, weight_gradient, None
