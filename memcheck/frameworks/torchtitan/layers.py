"""Tensors that torchtitan's models hold in addition to their parameters: rotary caches, one in each layer.

torchtitan's transformer block: one-kernel norms, fused qkv, flash attention over packed tokens, SwiGLU.

Sources: torchtitan models/common/{attention,rope,feed_forward}.py, models/llama3/model.py, models/qwen3/model.py,
distributed/activation_checkpoint.py. Tokens are one dimension: tensor parallelism gathers and scatters along dim 0.

DeepSeek V3's latent attention in torchtitan (models/deepseek_v3/model.py).

torchtitan's mixture of experts: fp32 weighting of expert outputs, all-to-alls under expert parallelism.

Sources: torchtitan models/common/moe.py (TokenChoiceTopKRouter, GroupedExperts, MoE) and token_dispatcher.py
(LocalTokenDispatcher, AllToAllTokenDispatcher). Ranks are taken to receive ``expert_imbalance`` times their even share.
"""

from __future__ import annotations

import math

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import LocalTensor
from memcheck.autograd import kernels
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Forward
from memcheck.autograd.engine import KeptOutputs, checkpoint_whole
from memcheck.autograd.kernels import linear, rotate_complex, rotate_half, softmax
from memcheck.autograd.modules import enter_tensor_parallel, fused_norm, leave_tensor_parallel
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    add,
    cast,
    cat,
    copy,
    gather,
    grouped_mm,
    index,
    mul,
    operator,
    scale,
    topk,
    unary,
)
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div, rounded
from memcheck.frameworks.torch.compiled import compiled_block, is_traced
from memcheck.frameworks.transformers.head import Head, loss_in_pieces
from memcheck.frameworks.transformers.head import head_unit as whole_head_unit
from memcheck.frameworks.transformers.mixer import recurrent_mixer
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.moe import expert_tensors, shared_mlp
from memcheck.frameworks.transformers.rotary import rotary_width
from memcheck.frameworks.transformers.router import router_tensor
from memcheck.job.types import TrainingJob
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    Norm,
    ParameterTensor,
)


def rotates_complex(mixer: Attention | LatentAttention) -> bool:
    """Return ComplexRoPE, whose table is complex64 [S, dim / 2], or CosSinRoPE with fp32 [S, 2 dim]
    (models/common/rope.py).

    ``llama3`` and ``deepseek_v3`` configure the one, ``qwen3`` and ``gpt_oss`` the other (models/*/__init__.py).
    """
    return isinstance(mixer, LatentAttention) or (mixer.query_norm is None and not mixer.sinks)


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """Rows are picked from the layers' caches: a forward makes no table."""
    return 0


def rotary_caches(architecture: Architecture, sequence: int, layers: int, *, adapted: bool) -> int:
    """Return the bytes of the rotary tables of ``layers`` layers, each of which has a buffer by itself.

    A table is complex64 [sequence, width / 2], or fp32 cos and sin [sequence, 2 * width]. ``adapted``: not used.
    """
    mixers = [block.mixer for block, _ in architecture.blocks]
    all_complex = all(rotates_complex(mixer) for mixer in mixers if isinstance(mixer, (Attention, LatentAttention)))
    bytes_per_width = 4 if all_complex else 8
    return layers * rounded(sequence * rotary_width(architecture) * bytes_per_width)


__all__ = ["block", "head_unit", "loss_in_pieces", "norm", "recomputing", "rotary_caches", "rotary_tables"]

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
        return latent_attention(ctx, mixer, x)
    if isinstance(mixer, Attention):
        return _attention(ctx, mixer, x)

    return recurrent_mixer(ctx, mixer, x)


def _feed_forward(ctx: Context, module: Mlp | Moe, x: Value) -> Value:
    """Run a layer's dense MLP or its experts on ``x`` [tokens, hidden]; so is the result."""
    if isinstance(module, Mlp):
        return mlp(ctx, module, x)

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
    *qkv_tensors, _output = linear_tensors(attention.tensors)
    rows, columns = sum(t.shape[0] for t in qkv_tensors), qkv_tensors[0].shape[1]
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


def latent_attention(ctx: Context, attention: LatentAttention, x: Value) -> Value:
    """Run multi-head latent attention as torchtitan writes it, ``x``: [tokens, hidden]; so is what is returned.

    Unlike in transformers, a norm is one kernel, ``cat`` assembles the key, and flash attention takes heads of unequal
    width. Source: torchtitan models/deepseek_v3/model.py.
    """
    tape = ctx.tape
    tensors = {tensor.name.split(".")[-2]: tensor for tensor in linear_tensors(attention.tensors)}
    tokens = ctx.tokens
    heads = ceil_div(attention.heads, ctx.tp)
    nope, rope, v_dim = attention.qk_nope_head_dim, attention.qk_rope_head_dim, attention.v_head_dim
    x = enter_tensor_parallel(ctx, x)
    q = _queries(ctx, attention, tensors, x).view(tokens, heads, nope + rope)
    q_pass, q_rot = tape.views(q, (tokens, heads, nope), (tokens, heads, rope))
    tensor = tensors["kv_a_proj_with_mqa"]
    compressed = linear(tape, x, ctx.replicated(tensor, attention.bias), tensor.name)
    latent, k_rot = tape.views(compressed, (tokens, attention.kv_lora_rank), (tokens, 1, rope))
    table_rows = tape.new((tokens, rope), "fp32", "rope rows (complex)")
    q_rotated, k_rotated = rotate_complex(tape, q_rot, k_rot, table_rows)
    query = cat(tape, (q_pass, q_rotated), (tokens, heads, nope + rope), "cat queries")
    latent = _norm(ctx, attention.kv_lora_rank, latent, "kv_norm")
    tensor = tensors["kv_b_proj"]
    expanded = linear(tape, latent, ctx.weights(tensor, bias=False), tensor.name).view(tokens, heads, nope + v_dim)
    k_pass, value = tape.views(expanded, (tokens, heads, nope), (tokens, heads, v_dim))
    key = _cat_key(ctx, k_pass, k_rotated, (tokens, heads, nope + rope))
    out = kernels.flash(tape, query, key, value, v_dim, label="varlen attention", ring=ctx.setting.context_parallel)
    tensor = tensors["o_proj"]
    result = linear(tape, out.view(tokens, heads * v_dim), ctx.weights(tensor, attention.bias), tensor.name)
    return leave_tensor_parallel(ctx, result)


def _queries(ctx: Context, attention: LatentAttention, tensors: dict[str, ParameterTensor], x: Value) -> Value:
    """Compute the queries [tokens, heads * head_dim]: one matrix, or a down projection, a norm and an up projection."""
    tape = ctx.tape
    if attention.q_lora_rank is None:
        return linear(tape, x, ctx.weights(tensors["q_proj"], bias=False), tensors["q_proj"].name)
    latent = linear(tape, x, ctx.replicated(tensors["q_a_proj"], attention.bias), tensors["q_a_proj"].name)
    latent = _norm(ctx, attention.q_lora_rank, latent, "q_norm")
    return linear(tape, latent, ctx.weights(tensors["q_b_proj"], bias=False), tensors["q_b_proj"].name)


def _norm(ctx: Context, size: int, x: Value, name: str) -> Value:
    """Apply a fused RMSNorm over ``size`` channels."""
    weight, bias = ctx.norm_weight(Norm("rmsnorm", size), name)
    return fused_norm(ctx.tape, x, weight, bias, "rmsnorm")


def _cat_key(ctx: Context, k_pass: Value, k_rotated: Value, shape: tuple[int, ...]) -> Value:
    """Concatenate each head's key, ``cat([k_nope, k_pe.expand(...)])``: [tokens, heads, width], which is ``shape``.

    ``k_pass``: without rotary embedding, per head. ``k_rotated``: with it, shared by all heads, so that its gradient is
    a sum over heads.
    """
    tape = ctx.tape
    expanded = Value(k_rotated.storage, (*shape[:-1], k_rotated.shape[-1]), k_rotated.dtype)
    expanded = operator(tape, expanded, k_rotated, "sum over heads")
    return cat(tape, (k_pass, expanded), shape, "cat keys")


def moe(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run torchtitan's MoE: router, routed experts, shared experts, sum. ``x``: [tokens, hidden] on this tensor rank.

    With expert parallelism the tokens stay sharded over tensor ranks (sequence parallelism) on their way to the
    experts. Without it each tensor rank has a slice of every expert, which needs all tokens. So has expert-tensor
    parallelism (``ExpertTensorParallel`` of releases up to April 2026).
    """
    tape = ctx.tape
    tokens_sharded = ctx.tp == 1 or (ctx.setting.expert_parallel > 1 and ctx.setting.expert_tensor_parallel == 1)
    expert_input = x if tokens_sharded else enter_tensor_parallel(ctx, x)
    scores, ids = _route(ctx, moe, expert_input)
    routing_map = tape.new((expert_input.shape[0], moe.experts), "bool", "routing map")
    out = _routed(ctx, moe, expert_input, scores, ids)
    if not tokens_sharded:
        out = leave_tensor_parallel(ctx, out)
    del expert_input
    if moe.shared.width:
        shared = mlp(ctx, shared_mlp(moe), x)
        out = add(tape, out, shared, "routed + shared")
    del routing_map
    return out


def _route(ctx: Context, moe: Moe, x: Value) -> tuple[Value, Storage]:
    """Replay TokenChoiceTopKRouter, and return scores and expert ids, [tokens, experts_per_token].

    Its gate runs under ``torch.autocast(dtype=torch.float32)``. CUDA accepts that dtype: the gate keeps an fp32 copy of
    its input and makes fp32 scores. The CPU does not accept it; option ``fp32_gate`` says which applies.
    """
    tape = ctx.tape
    tensor = router_tensor(moe)
    outer_autocast = tape.autocast
    if ctx.setting.option("fp32_gate", default=False):
        tape.autocast = "fp32"
    logits = linear(tape, x, ctx.replicated(tensor), "router.gate")
    tape.autocast = outer_autocast
    probabilities = unary(tape, logits, "sigmoid") if moe.router == "sigmoid" else softmax(tape, logits)
    del logits
    biased_scores = tape.value(probabilities.shape, "fp32", "scores + expert_bias")
    scores_for_choice = operator(tape, biased_scores, probabilities, GRAD_UNCHANGED)
    values, ids = topk(tape, scores_for_choice, moe.experts_per_token)
    scores = gather(tape, probabilities, ids)
    if moe.routing.normalised:
        scores = _divide_by_sum(tape, scores)
    scores = scale(tape, scores, "route scale")
    del values, scores_for_choice, biased_scores
    return scores, ids


def _divide_by_sum(tape: Tape, x: Value) -> Value:
    """Compute ``x / (x.sum(-1, keepdim=True) + 1e-20)``; autograd keeps x and the denominator."""
    shape, dtype = x.shape, x.dtype
    total = tape.new((*shape[:-1], 1), dtype, "denominator")
    return operator(tape, tape.value(shape, dtype, "div"), x, "div backward", saves=(x, total))


def _routed(ctx: Context, moe: Moe, x: Value, scores: Value, ids: Storage) -> Value:
    """Dispatch tokens to their experts, run the experts, and combine their outputs. ``x``: [tokens, hidden].

    Rows between are [tokens * experts_per_token, hidden]. After the all-to-all of expert parallelism a rank has
    ``expert_imbalance`` times its even share.
    """
    tape = ctx.tape
    hidden, k = x.shape[-1], moe.experts_per_token
    sent_rows = x.shape[0] * k
    order = tape.new((sent_rows,), "int64", "argsort")
    sorted_scores = index(tape, scores.view(sent_rows), order, (sent_rows,), "sorted scores")
    token_of_row = tape.new((sent_rows,), "int64", "token of each row")
    rows = index(tape, x, token_of_row, (sent_rows, hidden), "gather tokens")
    del order
    received_rows = sent_rows
    permutation = None
    if ctx.setting.expert_parallel > 1:
        received_rows = math.ceil(sent_rows * ctx.setting.expert_imbalance)
        rows = _all_to_all(tape, rows, (received_rows, hidden))
        permutation = tape.new((received_rows,), "int64", "permuted indices")
        rows = index(tape, rows, permutation, (received_rows, hidden), "permute")
    # a local variable of RoutedExperts.forward, like rows: both live to its end
    expert_output = _experts(ctx, moe, rows)
    out = expert_output
    if permutation is not None:
        out = _unpermute(tape, out, permutation)
        out = _all_to_all(tape, out, (sent_rows, hidden))
    return _combine(tape, out, sorted_scores, token_of_row, x)


def _all_to_all(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Replay all_to_all_single, which makes a new tensor in forward and in backward."""
    out = Value(tape.output("all-to-all", shape, x.dtype, "all-to-all"), shape, x.dtype)
    return operator(tape, out, x, "all-to-all backward")


def _unpermute(tape: Tape, x: Value, permutation: Storage) -> Value:
    """Replay ``new_empty(...)[permutation] = x``; autograd keeps the permutation."""
    return operator(tape, tape.value(x.shape, x.dtype, "unpermute"), x, "unpermute backward", saves=(permutation,))


def _experts(ctx: Context, moe: Moe, x: Value) -> Value:
    """Run GroupedExperts: ``w2(silu(w1 x) * w3 x)``, each one grouped product over the local experts.

    ``x``: rows sorted by expert, [rows, hidden]; so is what is returned.
    """
    tape, setting = ctx.tape, ctx.setting
    hidden = x.shape[-1]
    local = ceil_div(moe.experts, setting.expert_parallel)
    width = ceil_div(moe.width, setting.expert_tensor_parallel)
    up, down = expert_tensors(moe)
    offsets = tape.new((local,), "int32", "group offsets")
    up_shape, down_shape = (local, width, hidden), (local, hidden, width)
    gate = grouped_mm(tape, x, _weight(ctx, up.name + ".w1", up_shape), width, offsets, "experts.w1", up_shape)
    activated_gate = unary(tape, gate, "silu")
    del gate
    up_out = grouped_mm(tape, x, _weight(ctx, up.name + ".w3", up_shape), width, offsets, "experts.w3", up_shape)
    inner = mul(tape, activated_gate, up_out)
    del activated_gate, up_out
    return grouped_mm(tape, inner, _weight(ctx, down.name, down_shape), hidden, offsets, "experts.w2", down_shape)


def _weight(ctx: Context, name: str, shape: tuple[int, int, int]) -> Value:
    return ctx.tape.parameter(ctx.parameter(name, shape))


def _combine(tape: Tape, rows: Value, scores: Value, token_of_row: Storage, x: Value) -> Value:
    """Multiply expert outputs by their scores in fp32, cast back, and add them to their tokens: [tokens, hidden].

    ``rows``: outputs of the experts, a row for each token and expert. ``token_of_row``: indices for the scatter-add.
    Autograd saves the fp32 copy of the outputs for the scores' gradient. ``x``: gives the result's shape.
    """
    zeros = tape.new(x.shape, x.dtype, "zeros_like")
    dtype, shape = rows.dtype, rows.shape
    fp32_rows = cast(tape, rows, "fp32")
    weighted = mul(tape, fp32_rows, scores.view(shape[0], 1))
    del fp32_rows
    narrow = cast(tape, weighted, dtype)
    del weighted, rows
    out = tape.value(x.shape, x.dtype, "scatter_add")
    del zeros
    return operator(tape, out, narrow, (shape, dtype, "gather"), saves=(token_of_row,))
