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
from memcheck.autograd.elementwise import add, cast, mul
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.frameworks.megatron.fusions import activate, fuses_activation, weighted_swiglu
from memcheck.frameworks.megatron.linear import (
    fuses_wgrad,
    gather_sequence,
    gradient_in_fp8,
    in_fp8,
    quantizes,
    rows_in_fp8,
    scatters,
    uses_te,
)
from memcheck.frameworks.megatron.mlp import mlp
from memcheck.frameworks.megatron.recompute import Discarded, checkpoint
from memcheck.models.types import Mlp, Moe


def capacity(tokens: int, m: Moe, setting: Setting) -> int | None:
    """Tokens per expert under ``moe_expert_capacity_factor`` (get_capacity); None when nothing is dropped."""
    factor = setting.option("moe_expert_capacity_factor")
    if factor is None:
        return None
    return math.ceil(tokens * m.experts_per_token / m.experts * float(str(factor)))


def pads(setting: Setting) -> bool:
    """Every expert is filled up to its capacity."""
    return bool(setting.option("moe_pad_expert_input_to_capacity"))


def routed_tokens(tokens: int, m: Moe, setting: Setting) -> int:
    """Rows that leave this rank for the experts: top-k copies, cut or padded to capacity."""
    limit = capacity(tokens, m, setting)
    if limit is None:
        return tokens * m.experts_per_token
    return limit * m.experts if pads(setting) else min(limit * m.experts, tokens * m.experts_per_token)


def route(ctx: Context, m: Moe, x: Value) -> Value:
    """Routing probabilities [tokens, experts] of the tokens ``x``."""
    tape, setting = ctx.tape, ctx.setting
    rows = x.shape[0]
    dtype = str(setting.option("moe_router_dtype") or x.dtype)
    weight = ctx.parameter("mlp.router", (m.experts, ctx.hidden))
    everyone, chosen = (rows, m.experts), (rows, m.experts_per_token)
    logits = tape.value(everyone, dtype, "router logits")
    kept_x = x.storage
    logits = operator(tape, logits, (x, tape.parameter(weight)), ["router dX", "router dW"], saves=(x,))
    del kept_x, x
    kept: list[Storage | None] = [tape.new(chosen, "int64", "top-k experts")]
    if setting.option("moe_z_loss_coeff") is not None:  # moe_utils.py, z_loss_func: logsumexp keeps both its ends
        kept += [logits.storage, tape.new((rows,), dtype, "logsumexp of router logits")]
    if m.router == "softmax-topk":
        kept.append(tape.new(chosen, "fp32", "softmax of the chosen"))
    else:
        kept.append(tape.new(everyone, "fp32", "router scores"))
        kept.append(tape.new(chosen, "fp32", "scores of the chosen"))
    if setting.option("moe_expert_capacity_factor") is not None:
        kept.append(tape.new(everyone, "bool", "capacity mask"))
    if _balanced_by_loss(setting):
        kept.append(tape.new(everyone, "fp32", "scores for the auxiliary loss"))
    probs = tape.value(everyone, dtype, "routing probabilities")
    temporary = [tape.new(everyone, "int32", "zeros_like(logits).int()"), tape.new(everyone, "int32", "scatter")]
    del temporary
    kept.append(tape.new(everyone, "bool", "routing map"))
    return operator(
        tape,
        probs,
        logits,
        (everyone, dtype, "router scores backward"),
        saves=kept,
        temporaries=[(everyone, "fp32", "router softmax backward")],
    )


def _balanced_by_loss(setting: Setting) -> bool:
    """``moe_router_load_balancing_type``: aux_loss unless the plan says otherwise."""
    return str(setting.option("moe_router_load_balancing_type", "aux_loss")).endswith("aux_loss")


def moe(ctx: Context, m: Moe, x: Value, modules: tuple[str, ...]) -> Value:
    """Output of the routed and the shared experts for this rank's tokens."""
    tape, setting = ctx.tape, ctx.setting
    probs = route(ctx, m, x)
    kind = str(setting.option("moe_token_dispatcher_type", "allgather"))
    dispatch = {"allgather": _gathered, "flex": _deduplicated, "alltoall": _exchanged}[kind]
    shared = _shared(ctx, m, x, modules) if m.shared_width else None
    tokens, weights, way = dispatch(ctx, m, x, probs)
    del probs
    out = experts(ctx, m, tokens, weights, "moe_act" in modules)
    after = way.unsort(out)
    del tokens, weights  # local variables around both (routed_experts_compute)
    for stage in (way.travel, way.settle):
        out = after
        after = stage(out)
    out = after
    del way, stage, after
    if shared is not None:
        out = add(tape, out, shared, "routed + shared")
    return out


class _Way:
    """How tokens come back from the experts: three calls, each of which frees the result before the last."""

    def __init__(self, ctx: Context, m: Moe, rows: int, held: tuple[Value, ...]) -> None:
        self.ctx, self.m, self.rows = ctx, m, rows
        self.held = held
        """Local variables of the layer's forward, which live until it returns."""

    def unsort(self, out: Value) -> Value:
        """``combine_preprocess``."""
        return out

    def travel(self, out: Value) -> Value:
        """``token_combine``."""
        return out

    def settle(self, out: Value) -> Value:
        """``combine_postprocess``."""
        return out


def _fused(setting: Setting) -> bool:
    return bool(setting.option("moe_permute_fusion"))


def permute(ctx: Context, m: Moe, x: Value, probs: Value, rows: int) -> tuple[Value, Value]:
    """Copies of tokens sorted by expert, with their routing weights; keeps maps, not tokens."""
    tape = ctx.tape
    out = tape.value((rows, x.shape[-1]), x.dtype, "permuted tokens")
    weights = tape.value((rows,), probs.dtype, "permuted probabilities")
    if _fused(ctx.setting):
        kept: list[Storage] = [tape.new((x.shape[0], 2 * m.experts + 1), "int32", "row id map")]
    else:
        kept = [tape.new((rows,), "int64", "sorted indices"), tape.new((m.experts, x.shape[0]), "bool", "mask")]
    carrier = operator(
        tape, Value(None, (), x.dtype), (x, probs), ["unpermuted gradient", "probability gradient"], saves=kept
    )
    if carrier.origin is None:
        return out, weights
    carrier.origin.held = []  # type: ignore[union-attr]
    out = operator(tape, out, carrier, PASSED)
    return out, operator(tape, weights, carrier, PASSED)


def unpermute(ctx: Context, m: Moe, out: Value, rows: int) -> Value:
    """Sums each token's copies: a new tensor; keeps the same maps as the permutation."""
    tape = ctx.tape
    return operator(tape, tape.value((rows, out.shape[-1]), out.dtype, "unpermuted tokens"), out, "permuted gradient")


def _move(tape: Tape, x: Value, rows: int, label: str) -> Value:
    """A collective or a sort that makes a new tensor of ``rows`` rows and keeps nothing of size."""
    return operator(tape, tape.value((rows, *x.shape[1:]), x.dtype, label), x, label + " backward")


def _summed(tape: Tape, x: Value, rows: int, dtype: str, label: str) -> Value:
    """``reduce_scatter(hidden_states.to(probs.dtype)).to(hidden_states.dtype)``."""
    wide = _move(tape, cast(tape, x, dtype, "hidden_states.to(probs.dtype)"), rows, label)
    return cast(tape, wide, x.dtype)


def _into_global_buffer(tape: Tape, x: Value, rows: int) -> Value:
    """An all-gather into the global memory buffer, which is counted with the workspaces."""
    return operator(tape, Value(None, (rows, *x.shape[1:]), x.dtype), x, "reduce-scatter tokens' gradient")


Dispatched = tuple[Value, Value, _Way]


class _Exchange(_Way):
    """Sort back, reduce-scatter over the expert-tensor group; all-to-all; unpermute."""

    def __init__(
        self, ctx: Context, m: Moe, rows: int, held: tuple[Value, ...], sent: int, received: int, dtype: str
    ) -> None:
        super().__init__(ctx, m, rows, held)
        self.sent, self.received, self.dtype = sent, received, dtype

    def unsort(self, out: Value) -> Value:
        tape, setting = self.ctx.tape, self.ctx.setting
        if self.m.experts // setting.expert > 1:
            out = _move(tape, out, out.shape[0], "unsort chunks")
        if setting.expert_tensor > 1:
            return _summed(tape, out, self.received, self.dtype, "reduce-scatter over the expert-tensor group")
        return out

    def travel(self, out: Value) -> Value:
        return _move(self.ctx.tape, out, self.sent, "combine all-to-all") if self.ctx.setting.expert > 1 else out

    def settle(self, out: Value) -> Value:
        return unpermute(self.ctx, self.m, out, self.rows)


def _exchanged(ctx: Context, m: Moe, x: Value, probs: Value) -> Dispatched:
    """MoEAlltoAllTokenDispatcher."""
    tape, setting = ctx.tape, ctx.setting
    sent = routed_tokens(x.shape[0], m, setting)
    received = sent if setting.expert == 1 or pads(setting) else int(sent * setting.expert_imbalance)
    permuted, weights = permute(ctx, m, x, probs, sent)
    tokens = permuted
    if setting.expert > 1:
        tokens = _move(tape, tokens, received, "dispatch all-to-all")
        weights = _move(tape, weights, received, "dispatch all-to-all")
    held = (permuted, tokens)
    if setting.expert_tensor > 1:
        rows = received * setting.expert_tensor
        tokens = _move(tape, tokens, rows, "all-gather over the expert-tensor group")
        weights = _move(tape, weights, rows, "all-gather over the expert-tensor group")
    if m.experts // setting.expert > 1:
        tokens = _move(tape, tokens, tokens.shape[0], "sort chunks by expert")
        weights = _move(tape, weights, weights.shape[0], "sort chunks by expert")
    return tokens, weights, _Exchange(ctx, m, x.shape[0], held, sent, received, probs.dtype)


class _Gather(_Way):
    """Unpermute over all tokens of the group; reduce-scatter in the dtype of the routing probabilities."""

    def __init__(self, ctx: Context, m: Moe, rows: int, held: tuple[Value, ...], dtype: str) -> None:
        super().__init__(ctx, m, rows, held)
        self.dtype = dtype

    def unsort(self, out: Value) -> Value:
        setting = self.ctx.setting
        return unpermute(self.ctx, self.m, out, self.rows * setting.expert * setting.expert_tensor)

    def travel(self, out: Value) -> Value:
        tape, setting = self.ctx.tape, self.ctx.setting
        if setting.expert * setting.expert_tensor == 1:
            return out
        return _summed(tape, out, self.rows, self.dtype, "reduce-scatter over the expert group")


def _gathered(ctx: Context, m: Moe, x: Value, probs: Value) -> Dispatched:
    """MoEAllGatherTokenDispatcher: every rank of the group sees every token and keeps its experts' copies."""
    tape, setting = ctx.tape, ctx.setting
    group = setting.expert * setting.expert_tensor
    rows = x.shape[0]
    everyone, everyones = x, probs
    if group > 1:
        everyone = _into_global_buffer(tape, x, rows * group)
        everyones = _move(tape, probs, rows * group, "all-gather probabilities")
    copies = routed_tokens(rows * group, m, setting) // setting.expert
    if setting.expert > 1 and not pads(setting):
        copies = int(copies * setting.expert_imbalance)
    tokens, weights = permute(ctx, m, everyone, everyones, copies)
    return tokens, weights, _Gather(ctx, m, rows, (everyone,), everyones.dtype)


class _Deduplicated(_Way):
    """Unpermute on the expert's rank; combine."""

    def __init__(self, ctx: Context, m: Moe, rows: int, held: tuple[Value, ...], received: int) -> None:
        super().__init__(ctx, m, rows, held)
        self.received = received

    def unsort(self, out: Value) -> Value:
        return unpermute(self.ctx, self.m, out, self.received)

    def travel(self, out: Value) -> Value:
        alone = self.ctx.setting.expert * self.ctx.setting.expert_tensor == 1
        return out if alone else _move(self.ctx.tape, out, self.rows, "fused combine")


def _deduplicated(ctx: Context, m: Moe, x: Value, probs: Value) -> Dispatched:
    """Flex dispatcher (DeepEP): a token travels once to each rank that has one of its experts, and is copied there.

    Every rank of an expert-tensor group has a part of the expert: the routing map names all of them
    (``_DeepepManager``: ``router_topk=self.tp_size * self.config.moe_router_topk``).
    """
    tape, setting = ctx.tape, ctx.setting
    ways, parts = setting.expert, setting.expert_tensor
    exchanges = ways * parts > 1
    rows = x.shape[0]
    reached = ways * (1 - (1 - 1 / ways) ** m.experts_per_token) if ways > 1 else 1.0
    busiest = parts * (setting.expert_imbalance if ways > 1 else 1.0)
    received = int(rows * reached * busiest)
    arrived = _move(tape, x, received, "fused dispatch") if exchanges else x
    arrived_probs = _move(tape, probs, received, "fused dispatch") if exchanges else probs
    copies = int(routed_tokens(rows, m, setting) * busiest)
    tokens, weights = permute(ctx, m, arrived, arrived_probs, copies)
    return tokens, weights, _Deduplicated(ctx, m, rows, (arrived,), received)


def experts(ctx: Context, m: Moe, tokens: Value, weights: Value, recompute_activation: bool) -> Value:
    """linear_fc1, activation times routing weight, linear_fc2 over this rank's experts."""
    setting = ctx.setting
    local = max(1, -(-m.experts // setting.expert))
    width = -(-m.width // setting.expert_tensor)
    fc1 = _expert_weights(ctx, "linear_fc1", local, width * (2 if m.gated else 1), ctx.hidden)
    fc2 = _expert_weights(ctx, "linear_fc2", local, ctx.hidden, width)
    inner = _grouped(ctx, tokens, fc1, "experts.linear_fc1")
    del tokens
    dropped = Discarded(ctx) if recompute_activation else None
    if dropped is not None:
        (acted,) = dropped.run(lambda c, t: (_weighted(c, m, t[0], t[1]),), (inner, weights))
    else:
        acted = _weighted(ctx, m, inner, weights)
    del inner
    out = _grouped(ctx, acted, fc2, "experts.linear_fc2")
    del acted
    if local > 1 and not _is_grouped(setting):  # SequentialMLP: torch.cat(output_local_list), whose backward are slices
        pieces, out = out, ctx.tape.value(out.shape, out.dtype, "cat of the experts' outputs")
        out = operator(ctx.tape, out, pieces, PASSED)
        del pieces
    return dropped.discard(out) if dropped is not None else out


def _is_grouped(setting: Setting) -> bool:
    """The experts' products are one (TEGroupedMLP)."""
    return uses_te(setting) and bool(setting.option("moe_grouped_gemm", True))


def _weighted(ctx: Context, m: Moe, x: Value, weights: Value) -> Value:
    if fuses_activation(ctx.setting, m.gated, m.activation, False):
        return weighted_swiglu(ctx, x, weights)
    tape = ctx.tape
    acted = activate(ctx, x, None, gated=m.gated, activation=m.activation)
    return mul(tape, acted, weights.view(weights.shape[0], 1), "activation * probability")


def _expert_weights(ctx: Context, name: str, local: int, rows: int, columns: int) -> Parameter:
    """All local experts' matrices as one parameter: their gradients are made together."""
    return ctx.parameter("mlp.experts." + name, (local, rows, columns))


def _grouped(ctx: Context, x: Value, weight: Parameter, label: str) -> Value:
    """TE's GroupedLinear: keeps its input; dX, then all experts' dW unless they go to main_grad."""
    tape = ctx.tape
    rows = x.shape[0]
    x_shape, dtype = x.shape, x.dtype
    kept = x.storage if weight.requires_grad else None
    if quantizes(ctx.setting) and tape.grad_enabled and weight.requires_grad:
        kept = in_fp8(ctx, x_shape, label + " input")
    by_rows = rows_in_fp8(ctx, x_shape, label)
    out = tape.value((rows, weight.shape[1]), dtype, label)
    del by_rows
    fused = fuses_wgrad(ctx.setting)

    def run(grad: Storage) -> list[Storage | None]:
        cast = gradient_in_fp8(ctx, grad, label)
        gx = tape.new(x_shape, dtype, label + " dX")
        gw = tape.new(weight.shape, weight.dtype, label + " dW") if not fused and weight.requires_grad else None
        del cast
        return [gx, gw]

    result = tape.record(out, (x, tape.parameter(weight)), run, saves=(kept,))
    if ctx.setting.adapter is None:
        return result
    from memcheck.frameworks.megatron.adapters import ROWS, column_adapter, row_adapter, wraps
    from memcheck.frameworks.megatron.bridge_adapters import bridged_experts, is_bridged

    if not wraps(ctx.setting.adapter, weight.name):
        return result
    if is_bridged(ctx.setting):
        return bridged_experts(ctx, x, result, weight)
    add_adapter = row_adapter if label.rpartition(".")[2] in ROWS else column_adapter
    return add_adapter(ctx, x, result, weight.name, weight.shape[1], ctx.setting.expert_tensor)


def _shared(ctx: Context, m: Moe, x: Value, modules: tuple[str, ...]) -> Value:
    """Shared experts are a dense MLP over the layer's own tokens, gated per token where the model says so."""
    dense = Mlp(m.shared_width, m.gated, m.activation)

    def forward(c: Context, t: tuple[Value, ...]) -> Value:
        alone = scatters_away(c) and scatters(c)
        out = _on_all_tokens(c, dense, t[0]) if alone else mlp(c, dense, t[0], None, "mlp.shared_experts")[0]
        return _gate(c, t[0], out) if m.shared_gate else out

    if "shared_experts" in modules and not scatters_away(ctx):
        return checkpoint(ctx, forward, (x,))
    return forward(ctx, (x,))


def _on_all_tokens(ctx: Context, dense: Mlp, x: Value) -> Value:
    """Shared experts outside the dispatcher gather and reduce by themselves: linear_fc1 keeps every rank's tokens."""
    whole = gather_sequence(ctx, x, "gather shared experts' input")
    setting, ctx.setting = ctx.setting, ctx.setting._replace(sequence_parallel=False)
    out, _ = mlp(ctx, dense, whole, None, "mlp.shared_experts")
    ctx.setting = setting
    return _move(ctx.tape, out, x.shape[0], "reduce-scatter shared experts")


def scatters_away(ctx: Context) -> bool:
    """``moe_shared_expert_overlap`` excludes recomputing the shared experts."""
    return bool(ctx.setting.option("moe_shared_expert_overlap"))


def _gate(ctx: Context, x: Value, out: Value) -> Value:
    """``output * sigmoid(linear(x, gate_weight))``."""
    tape = ctx.tape
    weight = ctx.parameter("mlp.shared_experts.gate_weight", (1, ctx.hidden))
    score = tape.value((x.shape[0], 1), x.dtype, "shared expert gate")
    score = operator(tape, score, (x, tape.parameter(weight)), ["gate dX", "gate dW"], saves=(x,))
    return mul(tape, out, score, "gated shared experts")


__all__ = ["experts", "moe", "permute", "scatters", "unpermute"]
