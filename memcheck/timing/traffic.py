"""Bytes that a layer's element-wise operations read and write in device memory, per token.

Counted from the code that runs: what each operation reads and writes, at the width of its operands. transformers'
RMSNorm is ten operations on an fp32 copy (``models/llama/modeling_llama.py``); torchtitan's is one kernel
(``torch.nn.RMSNorm``); Transformer Engine and ``torch.compile`` read a tensor once and write what the next product
needs.
Backward passes: each operation's gradient reads the incoming gradient and what was saved, and writes one gradient per
input.
"""

from __future__ import annotations

from memcheck.autograd.tensor import ceil_div
from memcheck.models.types import Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm
from memcheck.record import Record

UNFUSED_NORM = 36
"""transformers' RMSNorm, bytes per element: float 2 + 4, pow 4 + 4, mean 4, product 4 + 4, cast 4 + 2, weight 2 + 2."""
UNFUSED_NORM_FP32 = 28
"""Bytes per element of transformers' RMSNorm on an fp32 stream, where the two casts are no operations."""


class Traffic(Record):
    """Bytes of one pass over one token."""

    stream: tuple[float, float]
    """On the residual stream, forward and backward: divided by the tensor ranks under sequence parallelism."""
    inner: tuple[float, float]
    """Inside attention and feed-forward, whole model: divided by the tensor ranks."""
    experts: tuple[float, float] = (0.0, 0.0)
    """Per token and chosen expert."""


def block_traffic(block: Block, hidden: int, *, fused: bool, fused_norms: bool, item_bytes: int) -> Traffic:
    """Compute the bytes per token that the element-wise operations of one layer read and write.

    ``fused``: the layer is compiled, or runs in Transformer Engine. ``fused_norms``: a norm is one kernel anyway.
    ``item_bytes``: bytes per element of the residual stream.
    """
    one_kernel = fused or fused_norms
    norms = [_norm(n, hidden, item_bytes, one_kernel=one_kernel) for n in block.norms]
    halves = (block.mixer is not None) + (block.mlp is not None)
    # a residual addition reads two tensors and writes one; fused, the next norm reads the sum in the same kernel
    add = 2 * item_bytes if fused else 3 * item_bytes
    forward = sum(norm_forward for norm_forward, _ in norms) + halves * add * hidden
    backward = sum(norm_backward for _, norm_backward in norms) + halves * 3 * item_bytes * hidden
    inner_forward, inner_backward = _mixer(block.mixer, fused=fused, one_kernel=one_kernel)  # type: ignore[arg-type]  # towers are timed as text
    experts = (0.0, 0.0)
    if isinstance(block.mlp, Mlp):
        activation_forward, activation_backward = _activation(block.mlp, block.mlp.width, fused=fused)
        inner_forward, inner_backward = inner_forward + activation_forward, inner_backward + activation_backward
    elif isinstance(block.mlp, Moe):
        activation_forward, activation_backward = _activation(block.mlp, block.mlp.width, fused=fused)
        moved = 4.0 * hidden * 2  # gathered for the experts, then weighted and summed: each reads 2 and writes 2
        experts = (activation_forward + moved, activation_backward + moved)
        if block.mlp.shared.width:
            activation_forward, activation_backward = _activation(block.mlp, block.mlp.shared.width, fused=fused)
            inner_forward, inner_backward = inner_forward + activation_forward, inner_backward + activation_backward
    return Traffic((forward, backward), (inner_forward, inner_backward), experts)


def _norm(norm: Norm, hidden: int, item_bytes: int, *, one_kernel: bool) -> tuple[float, float]:
    """Compute the bytes per token that a norm reads and writes, forward and backward.

    ``one_kernel``: the norm is one kernel, not separate operations. ``item_bytes``: bytes per element of the stream.
    """
    size = norm.size * norm.rows if norm.rows > 1 else norm.size
    width = max(hidden, size)
    if one_kernel or norm.kind == "layernorm":
        return 2.0 * item_bytes * width, 3.0 * item_bytes * width
    forward = (UNFUSED_NORM if item_bytes == 2 else UNFUSED_NORM_FP32) * width
    return forward, 2.0 * forward


def _mixer(mixer: Attention | LatentAttention | Mixer | None, *, fused: bool, one_kernel: bool) -> tuple[float, float]:
    """Compute the bytes per token, forward and backward, of rotary embedding and norms of queries and keys.

    Bytes per rotated element: 4 in one kernel (read 2, write 2), else 18 (product with cos 2 + 2, swapped halves 2 + 2,
    product with sin 2 + 2, sum 2 + 2 + 2). Queries and keys that are concatenated are read and written once more. A
    recurrent mixer is estimated as two reads and two writes per element of its width, and twice that in backward.
    """
    if isinstance(mixer, LatentAttention):
        rotated = mixer.heads * mixer.qk_rope_head_dim + mixer.qk_rope_head_dim
        copied = 2 * mixer.heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)  # q and k are put together
        moved = (4 if fused else 18) * rotated + 4 * copied
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


def _activation(mlp: Mlp | Moe, width: int, *, fused: bool) -> tuple[float, float]:
    """Compute the bytes per token, forward and backward, of ``act(gate) * up``, or of ``act(up)`` without a gate.

    ``width``: elements per token of the up product. Elements have two bytes.
    """
    if mlp.gated:
        # fused: reads gate and up, writes the product; backward reads these and the gradient, writes two gradients;
        # each of these accesses is 2 bytes per element.
        # Else the activation reads and writes, and the product reads two tensors and writes one; so does backward.
        return (6.0 * width, 10.0 * width) if fused else (10.0 * width, 16.0 * width)
    operators = 8 if mlp.activation == "gelu_new" and not fused else 1  # NewGELUActivation's elementwise operators
    # each operator reads 2 and writes 2; its backward reads the gradient and the saved input, and writes one gradient
    return 4.0 * width * operators, 6.0 * width * operators


def recomputed_traffic(block: Block, hidden: int, modules: tuple[str, ...], *, fused: bool) -> Traffic:
    """Compute the bytes per token that Megatron's ``recompute_modules`` move once more in backward.

    ``modules``: these modules. ``layernorm`` are norms that are not fused with a linear layer: before latent attention
    and before experts, and all norms without Transformer Engine. ``mla_up_proj`` also rotates and concatenates queries
    and keys (``multi_latent_attention.py``, qkv_up_proj_and_rope_apply). ``fused``: Transformer Engine's kernels run.
    """
    mixer, mlp = block.mixer, block.mlp
    stream = inner = experts = 0.0
    if "layernorm" in modules:
        separate_norms = []
        if not fused or isinstance(mixer, LatentAttention):
            separate_norms.append(block.input_norm)
        if not fused or isinstance(mlp, Moe):
            separate_norms.append(block.mlp_norm)
        stream = sum(_norm(norm, hidden, 2, one_kernel=True)[0] for norm in separate_norms if norm is not None)
    if "mla_up_proj" in modules and isinstance(mixer, LatentAttention):
        inner += _mixer(mixer, fused=fused, one_kernel=True)[0]
    if isinstance(mlp, Mlp) and "mlp" in modules:
        inner += _activation(mlp, mlp.width, fused=fused)[0]
    if isinstance(mlp, Moe):
        if mlp.shared.width and ("moe" in modules or "shared_experts" in modules):
            inner += _activation(mlp, mlp.shared.width, fused=fused)[0]
        if "moe" in modules or "moe_act" in modules:
            experts += _activation(mlp, mlp.width, fused=fused)[0]
        if "moe" in modules:
            experts += 4.0 * hidden * 2  # dispatch and combine: each reads and writes the token
    return Traffic((stream, 0.0), (inner, 0.0), (experts, 0.0))


def kept_width(block: Block) -> int:
    """Return the elements per token of the input of a layer's activation function, routed experts left out."""
    mlp = block.mlp
    width = 0
    if isinstance(mlp, Mlp):
        width = mlp.width
    elif isinstance(mlp, Moe):
        width = mlp.shared.width
    return 2 * width if mlp is not None and mlp.gated else width


def kept_expert_width(block: Block) -> int:
    """Return the elements of the activation function's input in a routed expert, per token that it gets; 0 without
    experts.
    """
    mlp = block.mlp
    return (2 if mlp.gated else 1) * mlp.width if isinstance(mlp, Moe) else 0


def merge_traffic(
    kind: str,
    mixer: Attention | LatentAttention | Mixer | None,
    ranks: int,
    *,
    tensor: int,
    fused: bool,
    repeats_kv_heads: bool,
) -> tuple[float, float]:
    """Compute the bytes per token, forward and backward, of merging the outputs of ring attention's ``ranks`` steps.

    ``kind``: whose ring runs, ``engine`` (Transformer Engine) or ``torch``. Numbers are bytes read + written per
    element.

    Transformer Engine (``dot_product_attention/context_parallel.py``): keys and values are concatenated 2 + 2, the
    first output is scaled 2 + 2, each other one scaled and added 2 + 2 + 2; in backward they are copied once more, and
    each step's gradients of queries, keys and values are copied 2 + 2 or added 2 + 2 + 2. Under the causal mask half of
    the other steps have only half of the queries, the other half only half of the keys.

    torch (``torch/distributed/tensor/experimental/_context_parallel/_attention.py``, _SDPAMerger): an output is cast to
    fp32 2 + 4, subtracted 8 + 4, scaled 4 + 4 and subtracted 8 + 4; with half of the queries, half of that, and both
    halves are concatenated 4 + 4. Compiled, one kernel reads 2 + 4 and writes 4. In backward gradients are summed in
    fp32, of queries 4 + 2 + 4 (or half, and concatenated 4 + 4), of keys and values 4 + 2 + 4 and, to be sent, 4 + 4.
    """
    if isinstance(mixer, Attention):
        queries = ceil_div(mixer.heads, tensor) * mixer.head_dim
        keys_values = 2 * ceil_div(mixer.heads if repeats_kv_heads else mixer.kv_heads, tensor) * mixer.head_dim
    elif isinstance(mixer, LatentAttention):
        heads = ceil_div(mixer.heads, tensor)
        queries = heads * mixer.v_head_dim
        keys_values = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
    else:
        return 0.0, 0.0
    if kind == "engine":
        merged = 6.0 * 0.75 * (ranks - 1)
        of_queries = queries * (4.0 + merged)
        return keys_values * 4.0 + of_queries, keys_values * (4.0 + 6.0 + merged) + of_queries
    if kind != "torch":
        return 0.0, 0.0
    forward = 10.0 if fused else (38 + 19 + 8) / 2
    other_blocks = ranks - 1
    return queries * (12.0 + other_blocks * forward), (queries * (10 + 5 + 8) / 2 + keys_values * 18.0) * other_blocks


def repeat_traffic(mixer: Attention | LatentAttention | Mixer | None, *, tensor: int, item_bytes: int) -> float:
    """Return the bytes per token of repeating keys and values for every query head, and of adding up their gradients
    again.
    """
    if not isinstance(mixer, Attention) or mixer.heads == mixer.kv_heads:
        return 0.0
    few, many = ceil_div(mixer.kv_heads, tensor), ceil_div(mixer.heads, tensor)
    return 2.0 * item_bytes * (few + many) * mixer.head_dim if many > few else 0.0


def loss_traffic(kind: str, *, fused: bool, upcast: bool) -> tuple[float, float]:
    """Return the bytes per logit that the loss reads and writes, forward and backward.

    ``kind``: the plan's loss. ``fused``: one kernel (Liger, Transformer Engine, compiled) writes logits 2, reads them
    2, and in backward reads them 2 and writes the gradient 2. The standard loss writes logits 2, ``float()`` 2 + 4
    (``upcast``), log-softmax 4 + 4, its gradient 4 + 4 + 4, the one-hot gradient 4, and casts back 4 + 2.
    """
    if fused or kind in ("fused-linear", "in-place"):
        return 2.0 + 2.0, 2.0 + 2.0
    if kind == "vocab-parallel":
        # forward: logits written 2, cast 2 + 4, then about five 4-byte reads and writes of the fp32 copy by maximum,
        # difference, exponential and sum. Backward: three for softmax minus one-hot and its scaling; cast back 4 + 2
        return 2.0 + 6.0 + 4.0 * 5, 4.0 * 3 + 6.0
    if upcast:  # logits 2, float() 2 + 4, log-softmax 4 + 4; backward 12 and one-hot 4, then the cast back 4 + 2
        return 2.0 + 6.0 + 8.0, 16.0 + 6.0
    return 2.0 + 4.0, 8.0  # without casts the same operations on two bytes each: half of 8, half of 16
