"""Megatron's router: gating product, scores, top-k, capacity, auxiliary loss.

Source: Megatron-core ``transformer/moe/router.py`` (TopKRouter), ``transformer/moe/moe_utils.py``
(RouterGatingLinearFunction, topk_routing_with_score_function, apply_router_token_dropping,
compute_routing_scores_for_aux_loss).
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.models.types import Moe


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
