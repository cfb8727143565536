"""Megatron's mixture of experts: route, dispatch, experts, combine, shared experts.

Megatron's router: gating product, scores, top-k, capacity, auxiliary loss.

Source: Megatron-core ``transformer/moe/router.py`` (TopKRouter), ``transformer/moe/moe_utils.py``
(RouterGatingLinearFunction, topk_routing_with_score_function, apply_router_token_dropping,
compute_routing_scores_for_aux_loss).

Sources: Megatron-core ``transformer/moe/moe_layer.py``, ``token_dispatcher.py``, ``experts.py`` (TEGroupedMLP,
SequentialMLP), ``shared_experts.py``, ``moe_utils.py`` (permute, unpermute, sort_chunks_by_idxs); TransformerEngine
``pytorch/permutation.py``, ``pytorch/module/grouped_linear.py``.
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.operator import GRAD_UNCHANGED, Gradient, add, cast, mul, operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value, ceil_div
from memcheck.frameworks.megatron.adapters import ROW_PARALLEL, column_adapter, row_adapter, wraps
from memcheck.frameworks.megatron.bridge_adapters import bridged_experts, is_bridged
from memcheck.frameworks.megatron.fusions import activate, fuses_activation, mlp, several_outputs, weighted_swiglu
from memcheck.frameworks.megatron.linear import (
    gather_sequence,
    in_fp8,
    is_sequence_parallel,
    product_gradients,
    quantizes,
    rows_in_fp8,
    uses_te,
)
from memcheck.frameworks.megatron.recompute import Discarded, checkpoint
from memcheck.models.types import Mlp, Moe


def capacity(tokens: int, moe: Moe, setting: Setting) -> int | None:
    """Return the number of tokens that each expert takes (``get_capacity``), or None when no token is dropped.

    That is ``ceil(tokens * top_k / experts * moe_expert_capacity_factor)``.
    """
    capacity_factor = setting.option("moe_expert_capacity_factor")
    if capacity_factor is None:
        return None
    return math.ceil(tokens * moe.experts_per_token / moe.experts * float(str(capacity_factor)))


def pads(setting: Setting) -> bool:
    """Whether every expert's input is padded to its capacity."""
    return bool(setting.option("moe_pad_expert_input_to_capacity"))


def routed_tokens(tokens: int, moe: Moe, setting: Setting) -> int:
    """Return how many token copies this rank sends to experts: top-k copies per token, cut or padded to capacity."""
    per_expert = capacity(tokens, moe, setting)
    if per_expert is None:
        return tokens * moe.experts_per_token
    return per_expert * moe.experts if pads(setting) else min(per_expert * moe.experts, tokens * moe.experts_per_token)


def route(ctx: Context, moe: Moe, x: Value) -> Value:
    """Compute the routing probabilities [tokens, experts] of the tokens ``x`` [tokens, hidden].

    Records what the router saves: its input, the top-k indices (int64), its scores (fp32) and the routing map (bool).
    ``moe_router_dtype`` sets the dtype of the logits.
    """
    tape = ctx.tape
    all_experts = (x.shape[0], moe.experts)
    dtype = str(ctx.setting.option("moe_router_dtype") or x.dtype)
    weight = ctx.parameter("mlp.router", (moe.experts, ctx.hidden))
    logits = tape.value(all_experts, dtype, "router logits")
    logits = operator(tape, logits, (x, tape.parameter(weight)), ["router dX", "router dW"], saves=(x,))
    saved = _saved_scores(ctx, moe, logits)
    probs = tape.value(all_experts, dtype, "routing probabilities")
    scattered = [tape.new(all_experts, "int32", "zeros_like(logits).int()"), tape.new(all_experts, "int32", "scatter")]
    del scattered
    saved.append(tape.new(all_experts, "bool", "routing map"))
    return operator(
        tape,
        probs,
        logits,
        (all_experts, dtype, "router scores backward"),
        saves=saved,
        temporaries=[(all_experts, "fp32", "router softmax backward")],
    )


def _saved_scores(ctx: Context, moe: Moe, logits: Value) -> list[Storage | None]:
    """Allocate what the router saves of its ``logits`` [tokens, experts]: the experts it chooses, and its scores."""
    tape, setting, tokens = ctx.tape, ctx.setting, logits.shape[0]
    all_experts, top_k = (tokens, moe.experts), (tokens, moe.experts_per_token)
    saved: list[Storage | None] = [tape.new(top_k, "int64", "top-k experts")]
    if setting.option("moe_z_loss_coeff") is not None:  # moe_utils.py, z_loss_func: logsumexp keeps both its ends
        saved += [logits.storage, tape.new((tokens,), logits.dtype, "logsumexp of router logits")]
    if moe.router == "softmax-topk":
        saved.append(tape.new(top_k, "fp32", "softmax of the chosen"))
    else:
        saved.append(tape.new(all_experts, "fp32", "router scores"))
        saved.append(tape.new(top_k, "fp32", "scores of the chosen"))
    if setting.option("moe_expert_capacity_factor") is not None:
        saved.append(tape.new(all_experts, "bool", "capacity mask"))
    if _balanced_by_loss(setting):
        saved.append(tape.new(all_experts, "fp32", "scores for the auxiliary loss"))
    return saved


def _balanced_by_loss(setting: Setting) -> bool:
    """Whether the router adds a load-balancing loss (``moe_router_load_balancing_type``; aux_loss by default)."""
    return str(setting.option("moe_router_load_balancing_type", "aux_loss")).endswith("aux_loss")


def moe(ctx: Context, moe: Moe, x: Value, modules: tuple[str, ...]) -> Value:
    """Compute the output [tokens, hidden] of the routed and the shared experts for this rank's tokens ``x``.

    ``modules``: the layer parts that selective recompute runs again (``recompute_modules``).
    """
    tape, setting = ctx.tape, ctx.setting
    probs = route(ctx, moe, x)
    dispatcher = str(setting.option("moe_token_dispatcher_type", "allgather"))
    dispatch = {"allgather": _dispatch_all_gather, "flex": _dispatch_flex, "alltoall": _dispatch_all_to_all}[dispatcher]
    shared_output = _shared_experts(ctx, moe, x, modules) if moe.shared.width else None
    tokens, weights, combine = dispatch(ctx, moe, x, probs)
    del probs
    expert_output = experts(ctx, moe, tokens, weights, recompute_activation="moe_act" in modules)
    output = combine.preprocess(expert_output)
    del tokens, weights, expert_output  # local variables of routed_experts_compute, which returns here
    output = combine.communicate(output)
    output = combine.postprocess(output)
    del combine  # and with it the dispatcher's variables
    if shared_output is not None:
        output = add(tape, output, shared_output, "routed + shared")
    return output


class _Combine:
    """Brings expert outputs back to their tokens, in the dispatcher's three calls.

    Each call returns a new tensor before the caller drops the previous one. The base class returns its input unchanged.
    """

    def __init__(self, ctx: Context, moe: Moe, rows: int, kept_tensors: tuple[Value, ...]) -> None:
        """``rows``: tokens of this rank. ``kept_tensors``: variables of the layer's forward until it returns."""
        self.ctx, self.moe, self.rows = ctx, moe, rows
        self.kept_tensors = kept_tensors

    def preprocess(self, out: Value) -> Value:
        """``combine_preprocess``."""
        return out

    def communicate(self, out: Value) -> Value:
        """``token_combine``."""
        return out

    def postprocess(self, out: Value) -> Value:
        """``combine_postprocess``."""
        return out


def permute(ctx: Context, moe: Moe, x: Value, probs: Value, rows: int) -> tuple[Value, Value]:
    """Copy the tokens of ``x`` into expert order: [rows, hidden], with their routing weights [rows].

    Backward keeps the index maps, not the tokens (moe_utils.py, permute). ``rows``: token copies after the permutation.
    """
    tape = ctx.tape
    permuted = tape.value((rows, x.shape[-1]), x.dtype, "permuted tokens")
    weights = tape.value((rows,), probs.dtype, "permuted probabilities")
    if ctx.setting.option("moe_permute_fusion"):
        saved: list[Storage] = [tape.new((x.shape[0], 2 * moe.experts + 1), "int32", "row id map")]
    else:
        saved = [tape.new((rows,), "int64", "sorted indices"), tape.new((moe.experts, x.shape[0]), "bool", "mask")]
    gradients: list[Gradient] = ["unpermuted gradient", "probability gradient"]
    permuted, weights = several_outputs(tape, (permuted, weights), (x, probs), gradients, saved)
    return permuted, weights


def unpermute(ctx: Context, moe: Moe, x: Value, rows: int) -> Value:
    """Sum the expert outputs of each token into a new tensor [rows, hidden].

    Backward uses the maps that :func:`permute` has saved, so this adds no saved tensor.
    """
    tape = ctx.tape
    return operator(tape, tape.value((rows, x.shape[-1]), x.dtype, "unpermuted tokens"), x, "permuted gradient")


def _new_rows(tape: Tape, x: Value, rows: int, label: str) -> Value:
    """Record a collective or a sort that writes a new tensor of ``rows`` rows; backward keeps nothing of size."""
    return operator(tape, tape.value((rows, *x.shape[1:]), x.dtype, label), x, label + " backward")


def _reduce_scatter(tape: Tape, x: Value, rows: int, dtype: str, label: str) -> Value:
    """Reduce-scatter ``x`` in ``dtype``, that of the routing probabilities, and cast the result back to x's dtype."""
    reduced = _new_rows(tape, cast(tape, x, dtype, "hidden_states.to(probs.dtype)"), rows, label)
    return cast(tape, reduced, x.dtype)


def _into_global_buffer(tape: Tape, x: Value, rows: int) -> Value:
    """All-gather tokens of all ranks, [rows, hidden], into Megatron's global memory buffer.

    Nothing is allocated: the buffer is counted with the rank's workspaces. Backward reduce-scatters into a new tensor.
    """
    return operator(tape, Value(None, (rows, *x.shape[1:]), x.dtype), x, "reduce-scatter tokens' gradient")


Dispatched = tuple[Value, Value, _Combine]
"""Token copies [copies, hidden] for the experts of this rank, their routing weights [copies], and how to combine."""


class _AllToAllCombine(_Combine):
    """Combines for ``MoEAlltoAllTokenDispatcher``: restores the order, reduce-scatters over the expert-tensor group,
    runs the all-to-all and unpermutes.
    """

    def __init__(
        self, ctx: Context, moe: Moe, rows: int, kept_tensors: tuple[Value, ...], sent: int, received: int, dtype: str
    ) -> None:
        """``sent``, ``received``: token copies that leave and reach this rank. ``dtype``: of the probabilities."""
        super().__init__(ctx, moe, rows, kept_tensors)
        self.sent, self.received, self.dtype = sent, received, dtype

    def preprocess(self, out: Value) -> Value:
        """Restore the order in which copies arrived, and reduce-scatter them over the expert-tensor group."""
        tape, setting = self.ctx.tape, self.ctx.setting
        if self.moe.experts // setting.expert_parallel > 1:
            out = _new_rows(tape, out, out.shape[0], "unsort chunks")
        if setting.expert_tensor_parallel > 1:
            return _reduce_scatter(tape, out, self.received, self.dtype, "reduce-scatter over the expert-tensor group")
        return out

    def communicate(self, out: Value) -> Value:
        """Return the copies to the ranks of their tokens by an all-to-all."""
        if self.ctx.setting.expert_parallel == 1:
            return out
        return _new_rows(self.ctx.tape, out, self.sent, "combine all-to-all")

    def postprocess(self, out: Value) -> Value:
        """Add up the copies of each token: [tokens, hidden]."""
        return unpermute(self.ctx, self.moe, out, self.rows)


def _dispatch_all_to_all(ctx: Context, moe: Moe, x: Value, probs: Value) -> Dispatched:
    """Send token copies to the ranks of their experts by an all-to-all (``MoEAlltoAllTokenDispatcher``).

    Returns the received tokens [received * expert_tensor, hidden], their routing weights, and how to combine them. The
    plan's expert imbalance scales the number of received copies.
    """
    tape, setting = ctx.tape, ctx.setting
    sent = routed_tokens(x.shape[0], moe, setting)
    received = sent if setting.expert_parallel == 1 or pads(setting) else int(sent * setting.expert_imbalance)
    permuted, weights = permute(ctx, moe, x, probs, sent)
    tokens = permuted
    if setting.expert_parallel > 1:
        tokens = _new_rows(tape, tokens, received, "dispatch all-to-all")
        weights = _new_rows(tape, weights, received, "dispatch all-to-all")
    kept_tensors = (permuted, tokens)
    if setting.expert_tensor_parallel > 1:
        gathered_rows = received * setting.expert_tensor_parallel
        tokens = _new_rows(tape, tokens, gathered_rows, "all-gather over the expert-tensor group")
        weights = _new_rows(tape, weights, gathered_rows, "all-gather over the expert-tensor group")
    if moe.experts // setting.expert_parallel > 1:
        tokens = _new_rows(tape, tokens, tokens.shape[0], "sort chunks by expert")
        weights = _new_rows(tape, weights, weights.shape[0], "sort chunks by expert")
    return tokens, weights, _AllToAllCombine(ctx, moe, x.shape[0], kept_tensors, sent, received, probs.dtype)


class _AllGatherCombine(_Combine):
    """Combines for ``MoEAllGatherTokenDispatcher``: unpermutes over all tokens of the group, then reduce-scatters in
    the dtype of the routing probabilities.
    """

    def __init__(self, ctx: Context, moe: Moe, rows: int, kept_tensors: tuple[Value, ...], dtype: str) -> None:
        super().__init__(ctx, moe, rows, kept_tensors)
        self.dtype = dtype

    def preprocess(self, out: Value) -> Value:
        """Add up the local copies of each token of the whole expert group."""
        setting = self.ctx.setting
        return unpermute(self.ctx, self.moe, out, self.rows * setting.expert_parallel * setting.expert_tensor_parallel)

    def communicate(self, out: Value) -> Value:
        """Reduce-scatter the sums over the expert group: [this rank's tokens, hidden]."""
        tape, setting = self.ctx.tape, self.ctx.setting
        if setting.expert_parallel * setting.expert_tensor_parallel == 1:
            return out
        return _reduce_scatter(tape, out, self.rows, self.dtype, "reduce-scatter over the expert group")


def _dispatch_all_gather(ctx: Context, moe: Moe, x: Value, probs: Value) -> Dispatched:
    """Gather the tokens of all ranks of the group and keep the copies for local experts.

    ``MoEAllGatherTokenDispatcher``. Returns the local copies [copies, hidden], their routing weights, and how to
    combine them.
    """
    tape, setting = ctx.tape, ctx.setting
    group = setting.expert_parallel * setting.expert_tensor_parallel
    rows = x.shape[0]
    gathered, gathered_probs = x, probs
    if group > 1:
        gathered = _into_global_buffer(tape, x, rows * group)
        gathered_probs = _new_rows(tape, probs, rows * group, "all-gather probabilities")
    copies = routed_tokens(rows * group, moe, setting) // setting.expert_parallel
    if setting.expert_parallel > 1 and not pads(setting):
        copies = int(copies * setting.expert_imbalance)
    tokens, weights = permute(ctx, moe, gathered, gathered_probs, copies)
    return tokens, weights, _AllGatherCombine(ctx, moe, rows, (gathered,), gathered_probs.dtype)


class _FlexCombine(_Combine):
    """Combines for the flex dispatcher: unpermutes on the expert's rank, then runs DeepEP's fused combine."""

    def __init__(self, ctx: Context, moe: Moe, rows: int, kept_tensors: tuple[Value, ...], received: int) -> None:
        super().__init__(ctx, moe, rows, kept_tensors)
        self.received = received

    def preprocess(self, out: Value) -> Value:
        """Add up the copies of each received token on the expert's rank."""
        return unpermute(self.ctx, self.moe, out, self.received)

    def communicate(self, out: Value) -> Value:
        """Return the sums to the ranks of their tokens by DeepEP's fused combine."""
        single_rank = self.ctx.setting.expert_parallel * self.ctx.setting.expert_tensor_parallel == 1
        return out if single_rank else _new_rows(self.ctx.tape, out, self.rows, "fused combine")


def _dispatch_flex(ctx: Context, moe: Moe, x: Value, probs: Value) -> Dispatched:
    """Send each token once to every rank that has one of its experts, and copy it there (flex dispatcher, DeepEP).

    ``probs``: the router's probabilities. With n expert ranks a token reaches ``n * (1 - (1 - 1 / n) ** top_k)`` of
    them on average. All ranks of an expert-tensor group hold a slice of each expert, so that a token is sent to all of
    them (``_DeepepManager``: ``router_topk=self.tp_size * self.config.moe_router_topk``).
    """
    tape, setting = ctx.tape, ctx.setting
    expert_ranks, expert_tensor_ranks = setting.expert_parallel, setting.expert_tensor_parallel
    exchanges = expert_ranks * expert_tensor_ranks > 1
    rows = x.shape[0]
    ranks_per_token, load_factor = 1.0, float(expert_tensor_ranks)
    if expert_ranks > 1:
        is_missed_by_all = (1 - 1 / expert_ranks) ** moe.experts_per_token  # probability that a rank gets no copy
        ranks_per_token = expert_ranks * (1 - is_missed_by_all)
        load_factor = expert_tensor_ranks * setting.expert_imbalance
    received = int(rows * ranks_per_token * load_factor)
    received_tokens = _new_rows(tape, x, received, "fused dispatch") if exchanges else x
    received_probs = _new_rows(tape, probs, received, "fused dispatch") if exchanges else probs
    copies = int(routed_tokens(rows, moe, setting) * load_factor)
    tokens, weights = permute(ctx, moe, received_tokens, received_probs, copies)
    return tokens, weights, _FlexCombine(ctx, moe, rows, (received_tokens,), received)


def experts(ctx: Context, moe: Moe, tokens: Value, weights: Value, *, recompute_activation: bool) -> Value:
    """Compute linear_fc1, the activation times the routing weight, and linear_fc2 of this rank's experts.

    ``tokens``: [copies, hidden], sorted by expert. ``weights``: [copies]. Returns [copies, hidden].
    ``recompute_activation``: discard the activation's output and compute it again in backward (``moe_act``).
    """
    setting = ctx.setting
    local_experts = max(1, ceil_div(moe.experts, setting.expert_parallel))
    width = ceil_div(moe.width, setting.expert_tensor_parallel)
    fc1_width = 2 * width if moe.gated else width  # gate and up in one matrix
    fc1 = _expert_weights(ctx, "linear_fc1", local_experts, fc1_width, ctx.hidden)
    fc2 = _expert_weights(ctx, "linear_fc2", local_experts, ctx.hidden, width)
    fc1_output = _grouped_linear(ctx, tokens, fc1, "experts.linear_fc1")
    del tokens
    discarded = Discarded(ctx) if recompute_activation else None
    if discarded is not None:
        (activated,) = discarded.run(
            lambda ctx, inputs: (_weighted_activation(ctx, moe, *inputs),), (fc1_output, weights)
        )
    else:
        activated = _weighted_activation(ctx, moe, fc1_output, weights)
    del fc1_output
    output = _grouped_linear(ctx, activated, fc2, "experts.linear_fc2")
    del activated
    if local_experts > 1 and not _uses_grouped_gemm(setting):
        # SequentialMLP: torch.cat(output_local_list), whose backward are slices
        expert_outputs, output = output, ctx.tape.value(output.shape, output.dtype, "cat of the experts' outputs")
        output = operator(ctx.tape, output, expert_outputs, GRAD_UNCHANGED)
        del expert_outputs
    return discarded.discard(output) if discarded is not None else output


def _uses_grouped_gemm(setting: Setting) -> bool:
    """Whether one grouped product computes all local experts (TEGroupedMLP)."""
    return uses_te(setting) and bool(setting.option("moe_grouped_gemm", default=True))


def _weighted_activation(ctx: Context, moe: Moe, x: Value, weights: Value) -> Value:
    """Apply the activation to ``x`` [copies, width] and multiply each row by its routing weight."""
    if fuses_activation(ctx.setting, moe.activation, gated=moe.gated, bias=False):
        return weighted_swiglu(ctx, x, weights)
    tape = ctx.tape
    activated = activate(ctx, x, None, gated=moe.gated, activation=moe.activation)
    return mul(tape, activated, weights.view(weights.shape[0], 1), "activation * probability")


def _expert_weights(ctx: Context, name: str, local: int, rows: int, columns: int) -> Parameter:
    """Register the matrices of all local experts as one parameter, as backward makes their gradients together."""
    return ctx.parameter("mlp.experts." + name, (local, rows, columns))


def _grouped_linear(ctx: Context, x: Value, weight: Parameter, label: str) -> Value:
    """Multiply each expert's rows of ``x`` by its matrix, and add the LoRA adapter if there is one.

    TE's GroupedLinear saves its input. Backward makes dX, then all experts' dW unless the product adds them to
    main_grad.
    """
    tape = ctx.tape
    x_shape, dtype = x.shape, x.dtype
    saved_input = x.storage if weight.requires_grad else None
    if quantizes(ctx.setting) and tape.grad_enabled and weight.requires_grad:
        saved_input = in_fp8(ctx, x_shape, label + " input")
    by_rows = rows_in_fp8(ctx, x_shape, label)
    out = tape.value((x_shape[0], weight.shape[1]), dtype, label)
    del by_rows

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX and dW of all experts at once; dW is added to main_grad if that is fused."""
        return product_gradients(ctx, grad, (x_shape, dtype), weight, label)

    result = tape.record(out, (x, tape.parameter(weight)), run, saves=(saved_input,))
    if not wraps(ctx.setting.adapter, weight.name):
        return result
    if is_bridged(ctx.setting):
        return bridged_experts(ctx, x, result, weight)
    add_adapter = row_adapter if label.rpartition(".")[2] in ROW_PARALLEL else column_adapter
    return add_adapter(ctx, x, result, weight.name, weight.shape[1], ctx.setting.expert_tensor_parallel)


def _shared_experts(ctx: Context, moe: Moe, x: Value, modules: tuple[str, ...]) -> Value:
    """Compute the shared experts: a dense MLP over the layer's own tokens, with a gate per token where there is one."""
    dense = Mlp(moe.shared.width, moe.gated, moe.activation, bias=False, tensors=())

    def forward(ctx: Context, inputs: tuple[Value, ...]) -> Value:
        """Run the shared experts, on all tokens if they gather these themselves, and gate their output."""
        (x,) = inputs
        if overlaps_shared_experts(ctx) and is_sequence_parallel(ctx):
            out = _on_all_tokens(ctx, dense, x)
        else:
            out, _ = mlp(ctx, dense, x, None, "mlp.shared_experts")
        return _gate_shared_experts(ctx, x, out) if moe.shared.gate else out

    if "shared_experts" in modules and not overlaps_shared_experts(ctx):
        return checkpoint(ctx, forward, (x,))
    return forward(ctx, (x,))


def _on_all_tokens(ctx: Context, dense: Mlp, x: Value) -> Value:
    """Gather the tokens of the tensor group, run the shared experts' MLP, and reduce-scatter the result.

    Under ``moe_shared_expert_overlap`` linear_fc1 saves the gathered tokens of every rank.
    """
    gathered = gather_sequence(ctx, x, "gather shared experts' input")
    setting, ctx.setting = ctx.setting, ctx.setting._replace(sequence_parallel=False)
    out, _ = mlp(ctx, dense, gathered, None, "mlp.shared_experts")
    ctx.setting = setting
    return _new_rows(ctx.tape, out, x.shape[0], "reduce-scatter shared experts")


def overlaps_shared_experts(ctx: Context) -> bool:
    """Whether ``moe_shared_expert_overlap`` is set, which excludes recomputing the shared experts."""
    return bool(ctx.setting.option("moe_shared_expert_overlap"))


def _gate_shared_experts(ctx: Context, x: Value, out: Value) -> Value:
    """Multiply the shared experts' output by ``sigmoid(linear(x, gate_weight))``."""
    tape = ctx.tape
    weight = ctx.parameter("mlp.shared_experts.gate_weight", (1, ctx.hidden))
    score = tape.value((x.shape[0], 1), x.dtype, "shared expert gate")
    score = operator(tape, score, (x, tape.parameter(weight)), ["gate dX", "gate dW"], saves=(x,))
    return mul(tape, out, score, "gated shared experts")


__all__ = ["experts", "is_sequence_parallel", "moe", "permute", "unpermute"]
