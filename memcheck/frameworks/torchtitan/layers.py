"""torchtitan's transformer block: one-kernel norms, fused qkv, flash attention over packed tokens, SwiGLU.

Sources: torchtitan models/common/{attention,rope,feed_forward}.py, models/llama3/model.py, models/qwen3/model.py,
distributed/activation_checkpoint.py. Tokens are one dimension: tensor parallelism gathers and scatters along dim 0.
"""

from __future__ import annotations

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import LocalTensor
from memcheck.autograd import kernels
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Forward
from memcheck.autograd.engine import KeptOutputs, checkpoint_whole
from memcheck.autograd.kernels import linear, rotate_complex, rotate_half
from memcheck.autograd.modules import enter_tensor_parallel, fused_norm, leave_tensor_parallel
from memcheck.autograd.operator import add, cast, copy
from memcheck.autograd.tensor import Value, ceil_div
from memcheck.frameworks.torch.compiled import compiled_block, is_traced
from memcheck.frameworks.torchtitan.states import rotates_complex
from memcheck.frameworks.transformers.head import Head, loss_in_pieces
from memcheck.frameworks.transformers.head import head_unit as whole_head_unit
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.job.types import TrainingJob
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm, ParameterTensor

__all__ = ["block", "head_unit", "loss_in_pieces", "norm", "recomputing"]

KEEPS = frozenset({"mm", "addmm", "bmm", "attention", "topk", "reduce-scatter", "all-to-all"})
"""SelectiveAC's operators: compute_intensive_ops of torch._functorch.partitioners and torchtitan's own additions.
``_grouped_mm`` is in neither list."""
BEFORE_EXCHANGES = KEEPS - {"all-to-all", "topk"}
"""Operators whose results are saved in releases before 0.2: ``all_to_all_single`` came with #1672 of September 2025,
``topk`` later.
"""


def block(ctx: Context, layer: Block, x: Value) -> Value:
    """Run torchtitan's TransformerBlock: ``h = x + attention(norm(x)); h + feed_forward(norm(h))``."""
    if ctx.setting.compiled and is_traced(layer, ctx.setting):
        return compiled_block(ctx, layer, x, "none")
    return _eager_block(ctx, layer, x)


def recomputing(layer: Block, mode: str) -> tuple[Forward, bool]:
    """Return the layer's forward under a recompute mode, and False: the forward checkpoints itself.

    torchtitan's recompute runs to the end of the layer, and may keep outputs of chosen operators.
    """
    if mode == "none":
        return lambda ctx, x: block(ctx, layer, x), False
    return lambda ctx, x: checkpointed_block(ctx, layer, x, mode), False


def _eager_block(ctx: Context, block: Block, x: Value) -> Value:
    """Run both halves of a layer without compile; each norm's output dies when its module returns."""
    tape = ctx.tape
    if block.mixer is not None:
        normed = norm(ctx, block.input_norm, x)
        attn_output = _mixer(ctx, block.mixer, normed)  # type: ignore[arg-type]  # no tower is built here
        del normed
        x = add(tape, x, attn_output, "residual")
        del attn_output
    if block.mlp is not None:
        normed = norm(ctx, block.mlp_norm, x)
        mlp_output = _feed_forward(ctx, block.mlp, normed)
        del normed
        x = add(tape, x, mlp_output, "residual")
    return x


def checkpointed_block(ctx: Context, block: Block, x: Value, mode: str) -> Value:
    """Run the block under FullAC (``full``) or SelectiveAC (``selective``); both recompute the block to its end."""
    kept_outputs = None
    if mode == "selective":
        if ctx.setting.compiled and is_traced(block, ctx.setting):
            return compiled_block(ctx, block, x, mode)
        saved_operators = BEFORE_EXCHANGES if ctx.setting.recomputes_all_to_all else KEEPS
        kept_outputs = KeptOutputs(saved_operators, frozenset(_gates(block)))
    return checkpoint_whole(ctx.tape, lambda value: _eager_block(ctx, block, value), x, kept_outputs)


def _gates(block: Block) -> list[tuple[int, ...]]:
    """Return the shapes of the router's gate (``force_recompute_mm_shapes_by_fqns``)."""
    if not isinstance(block.mlp, Moe):
        return []
    experts = block.mlp.experts
    return [t.shape for t in block.mlp.tensors if t.group == "router" and t.shape[0] == experts]


def norm(ctx: Context, spec: Norm | None, x: Value, name: str = "norm") -> Value:
    """Apply a norm, which is one kernel in torchtitan. ``x``: [tokens, hidden], or heads of it."""
    if spec is None:
        return x
    weight, bias = ctx.norm_weight(spec, name)
    return fused_norm(ctx.tape, x, weight, bias, spec.kind)


def head_unit(
    job: TrainingJob, head: Head, setting: Setting, tensors: tuple[LocalTensor, ...], adds: bool, inventory: bool
) -> Unit:
    """Build the account of final norm, head and loss; the chunked loss reduces the head's gradient by itself."""
    if job.loss.kind == "chunked":
        from memcheck.frameworks.torchtitan.loss import chunked_head_unit

        return chunked_head_unit(job, head, setting, tensors, adds, inventory)
    return whole_head_unit(job, head, setting, tensors, adds, inventory)


def _mixer(ctx: Context, mixer: Attention | LatentAttention | Mixer, x: Value) -> Value:
    """Run the token mixer: latent attention, grouped-query attention or a recurrent mixer. ``x``: [tokens, hidden]."""
    if isinstance(mixer, LatentAttention):
        from memcheck.frameworks.torchtitan.latent import latent_attention

        return latent_attention(ctx, mixer, x)
    if isinstance(mixer, Attention):
        return _attention(ctx, mixer, x)
    from memcheck.frameworks.transformers.mixer import recurrent_mixer

    return recurrent_mixer(ctx, mixer, x)


def _feed_forward(ctx: Context, module: Mlp | Moe, x: Value) -> Value:
    """Run a layer's dense MLP or its experts on ``x`` [tokens, hidden]; so is the result."""
    if isinstance(module, Mlp):
        return mlp(ctx, module, x)
    from memcheck.frameworks.torchtitan.moe import moe

    return moe(ctx, module, x)


def _attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Run GQAttention, ``x``: [tokens, hidden]; so is what is returned.

    One matrix makes q, k and v, which are copied to be contiguous. Rotary embedding runs in fp32.
    """
    tape = ctx.tape
    x = enter_tensor_parallel(ctx, x)
    q, k, v = _fused_qkv(ctx, attention, x)
    del x
    q = norm(ctx, attention.query_norm, q, "q_norm")
    k = norm(ctx, attention.key_norm, k, "k_norm")
    q, k = _rotary(ctx, attention, q, k)
    out = kernels.flash(tape, q, k, v, attention.head_dim, label="varlen attention", ring=ctx.setting.context_parallel)
    width = ceil_div(attention.heads, ctx.tp) * attention.head_dim
    tensor = linear_tensors(attention.tensors)[-1]
    result = linear(tape, out.view(ctx.tokens, width), ctx.weights(tensor, attention.out_bias), tensor.name)
    del out, q, k, v
    return leave_tensor_parallel(ctx, result)


def _fused_qkv(ctx: Context, attention: Attention, x: Value) -> tuple[Value, Value, Value]:
    """Run FusedQKVLinear: ``split`` along the heads of each group, then ``.contiguous()`` of each part.

    ``x``: [tokens, hidden]. Returns q, k, v as [tokens, heads, head_dim].
    """
    tape = ctx.tape
    tensors = linear_tensors(attention.tensors)[:-1]
    rows, columns = sum(tokens.shape[0] for tokens in tensors), tensors[0].shape[1]
    fused = ParameterTensor("self_attn.qkv_linear.wqkv", (rows, columns), "attention", shard="column", linear=True)
    qkv = linear(tape, x, ctx.weights(fused, attention.qkv_bias), fused.name)
    heads, kv_heads = ceil_div(attention.heads, ctx.tp), max(1, ceil_div(attention.kv_heads, ctx.tp))
    tokens, head_dim = ctx.tokens, attention.head_dim
    q, k, v = tape.views(qkv, (tokens, heads, head_dim), (tokens, kv_heads, head_dim), (tokens, kv_heads, head_dim))
    del qkv
    return copy(tape, q, "contiguous q"), copy(tape, k, "contiguous k"), copy(tape, v, "contiguous v")


def _rotary(ctx: Context, attention: Attention, q: Value, k: Value) -> tuple[Value, Value]:
    """Apply rotary embedding to q and k, [tokens, heads, head_dim].

    Each layer picks its rows of the table and keeps them. The complex form multiplies complex numbers, the other one
    uses cos and sin; both run in fp32.
    """
    tape = ctx.tape
    if rotates_complex(attention):
        table_rows = tape.new((ctx.tokens, attention.head_dim), "fp32", "rope rows (complex)")
        return rotate_complex(tape, q, k, table_rows)
    table_rows = tape.new((ctx.tokens, 2 * attention.head_dim), "fp32", "rope rows (cos, sin)")
    fp32_q, fp32_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    rotated_q = rotate_half(tape, fp32_q, "fp32", (table_rows,))
    rotated_k = rotate_half(tape, fp32_k, "fp32", (table_rows,))
    return cast(tape, rotated_q, q.dtype), cast(tape, rotated_k, k.dtype)
