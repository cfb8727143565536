"""Bytes that a layer's element-wise operations read and write in device memory, per token.

Counted from the code that runs: what each operation reads and writes, at the width of its operands. transformers'
RMSNorm is ten operations on an fp32 copy (``models/llama/modeling_llama.py``); torchtitan's is one kernel
(``torch.nn.RMSNorm``); Transformer Engine and ``torch.compile`` read a tensor once and write what the next product
needs.
Backward passes: each operation's gradient reads the incoming gradient and what was saved, and writes one gradient per
input.
"""

from __future__ import annotations

from memcheck.architecture.types import Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm
from memcheck.record import Record

UNFUSED_NORM = 36
"""transformers' RMSNorm, bytes per element: float 2 + 4, pow 4 + 4, mean 4, product 4 + 4, cast 4 + 2, weight 2 + 2."""
UNFUSED_NORM_FP32 = 28
"""The same on an fp32 stream: the two casts are no operations."""


class Traffic(Record):
    """Bytes of one pass over one token."""

    stream: tuple[float, float]
    """On the residual stream, forward and backward: divided by the tensor ranks under sequence parallelism."""
    inner: tuple[float, float]
    """Inside attention and feed-forward, whole model: divided by the tensor ranks."""
    experts: tuple[float, float] = (0.0, 0.0)
    """Per token and chosen expert."""


def block_traffic(block: Block, hidden: int, *, style: str, fused: bool, item: int) -> Traffic:
    """What one layer moves. ``fused``: compiled, or Transformer Engine. ``item``: bytes of the residual stream."""
    one_kernel = fused or style != "transformers"
    norms = [_norm(n, hidden, item, one_kernel=one_kernel) for n in block.norms]
    halves = (block.mixer is not None) + (block.mlp is not None)
    add = 2 * item if fused else 3 * item  # the sum is read by the norm behind it in the same kernel
    forward = sum(f for f, _ in norms) + halves * add * hidden
    backward = sum(b for _, b in norms) + halves * 3 * item * hidden
    inner_forward, inner_backward = _mixer(block.mixer, fused=fused, one_kernel=one_kernel)
    experts = (0.0, 0.0)
    if isinstance(block.mlp, Mlp):
        f, b = _activation(block.mlp, block.mlp.width, fused=fused)
        inner_forward, inner_backward = inner_forward + f, inner_backward + b
    elif isinstance(block.mlp, Moe):
        f, b = _activation(block.mlp, block.mlp.width, fused=fused)
        moved = 4.0 * hidden * 2  # gathered for the experts, and weighted and summed behind them
        experts = (f + moved, b + moved)
        if block.mlp.shared_width:
            f, b = _activation(block.mlp, block.mlp.shared_width, fused=fused)
            inner_forward, inner_backward = inner_forward + f, inner_backward + b
    return Traffic((forward, backward), (inner_forward, inner_backward), experts)


def _norm(norm: Norm, hidden: int, item: int, *, one_kernel: bool) -> tuple[float, float]:
    size = norm.size * norm.rows if norm.rows > 1 else norm.size
    width = max(hidden, size)
    if one_kernel or norm.kind == "layernorm":
        return 2.0 * item * width, 3.0 * item * width
    forward = (UNFUSED_NORM if item == 2 else UNFUSED_NORM_FP32) * width
    return forward, 2.0 * forward


def _mixer(mixer: Attention | LatentAttention | Mixer | None, *, fused: bool, one_kernel: bool) -> tuple[float, float]:
    """Rotary embedding and norms of queries and keys."""
    if isinstance(mixer, LatentAttention):
        turned = mixer.heads * mixer.qk_rope_head_dim + mixer.qk_rope_head_dim
        copied = 2 * mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)  # q and k are put together
        moved = (4 if fused else 18) * turned + 4 * copied
        return float(moved), float(moved)
    if isinstance(mixer, Mixer):
        return 8.0 * mixer.width, 16.0 * mixer.width
    if mixer is None:
        return 0.0, 0.0
    width = (mixer.heads + mixer.kv_heads) * mixer.head_dim
    forward = backward = 0.0
    if mixer.rotary_dim:
        forward = backward = float((4 if fused else 18) * width)
    if mixer.query_norm is not None:
        forward += (4 if one_kernel else UNFUSED_NORM) * width
        backward += (6 if one_kernel else 2 * UNFUSED_NORM) * width
    return forward, backward


def _activation(m: Mlp | Moe, width: int, *, fused: bool) -> tuple[float, float]:
    """``act(gate) * up`` or ``act(up)``."""
    if m.gated:
        return (6.0 * width, 10.0 * width) if fused else (10.0 * width, 16.0 * width)
    pieces = 8 if m.activation == "gelu_new" and not fused else 1
    return 4.0 * width * pieces, 6.0 * width * pieces


def merge_traffic(
    mixer: Attention | LatentAttention | Mixer | None, ranks: int, *, tensor: int, fused: bool, repeats: bool
) -> tuple[float, float]:
    """torch's ring attention, per token of the rank: what merging the partial outputs of ``ranks`` blocks moves.

    ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``, _SDPAMerger: an output is cast to fp32
    2 + 4, subtracted 8 + 4, scaled 4 + 4 and subtracted 8 + 4; where only the second half of the queries saw the block,
    half of that, and both halves are put together again 4 + 4. Compiled, one kernel reads 2 + 4 and writes 4. Backward:
    gradients are summed in fp32, of queries 4 + 2 + 4 (or half, and put together 4 + 4), of keys and values 4 + 2 + 4
    and, to be sent on, 4 + 4.
    """
    if isinstance(mixer, Attention):
        queries = -(-mixer.heads // tensor) * mixer.head_dim
        kept = 2 * -(-(mixer.heads if repeats else mixer.kv_heads) // tensor) * mixer.head_dim
    elif isinstance(mixer, LatentAttention):
        heads = -(-mixer.heads // tensor)
        queries = heads * mixer.v_head_dim
        kept = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
    else:
        return 0.0, 0.0
    forward = 10.0 if fused else (38 + 19 + 8) / 2
    others = ranks - 1
    return queries * (12.0 + others * forward), (queries * (10 + 5 + 8) / 2 + kept * 18.0) * others


def repeat_traffic(mixer: Attention | LatentAttention | Mixer | None, *, tensor: int, item: int) -> float:
    """Bytes per token of repeating keys and values for every query head, and of adding up their gradients again."""
    if not isinstance(mixer, Attention) or mixer.heads == mixer.kv_heads:
        return 0.0
    few, many = -(-mixer.kv_heads // tensor), -(-mixer.heads // tensor)
    return 2.0 * item * (few + many) * mixer.head_dim if many > few else 0.0


def loss_traffic(kind: str, *, fused: bool, upcast: bool) -> tuple[float, float]:
    """Bytes per logit, forward and backward.

    Standard loss: logits written 2, ``float()`` 2 + 4, log-softmax 4 + 4, its gradient 4 + 4 + 4, the one-hot gradient
    4, cast back 4 + 2. One kernel (Liger, Transformer Engine, compiled): logits 2, read twice, gradient written.
    """
    if fused or kind == "fused-linear":
        return 2.0 + 2.0, 2.0 + 2.0
    if kind == "vocab-parallel":
        return 2.0 + 6.0 + 4.0 * 5, 4.0 * 3 + 6.0  # maximum, difference, exponential, sum: each reads or writes a copy
    return (2.0 + 6.0 + 8.0, 16.0 + 6.0) if upcast else (2.0 + 4.0, 8.0)
