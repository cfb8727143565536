"""Softmax attention: separate or fused projections, and multi-head latent attention."""

from __future__ import annotations

from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.parts.sizes import StackDimensions
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Attention, LatentAttention, Norm, ParameterTensor
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Projections(Record):
    """How a module names and stores its matrices."""

    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Three matrices, or one that makes all of q, k and v."""
    output: str = "o_proj"
    module: str = "self_attn"
    transposed: bool = False
    output_gate: bool = False
    """The queries' matrix is twice as wide, and its second half gates the output."""


LLAMA = Projections()


def grouped_attention(
    size: StackDimensions,
    projections: Projections = LLAMA,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    rotary_dim: int | None = None,
    query_norm: Norm | None = None,
    key_norm: Norm | None = None,
    **fields: Any,
) -> Attention:
    """Build softmax attention with ``size.heads`` query heads and ``size.kv_heads`` key-value heads.

    ``projections``: names and layout of its matrices. ``rotary_dim``: rotated elements of each head; None: all.
    ``qkv_bias``: of the input matrices; ``out_bias``: of the output's. ``query_norm``, ``key_norm``: norms on queries
    and keys. ``fields``: further ones of :class:`Attention`; ``tensors`` among them are appended to those built here.
    """
    layout, hidden = projections, size.hidden
    query_width, kv_width = size.heads * size.head_dim, size.kv_heads * size.head_dim
    first_width = 2 * query_width if layout.output_gate else query_width
    # rows of the input matrices: one for q, k and v together, or three
    widths = (first_width + 2 * kv_width,) if len(layout.inputs) == 1 else (first_width, kv_width, kv_width)
    tensors: tuple[ParameterTensor, ...] = ()
    for i, width in enumerate(widths):
        path = f"{layout.module}.{layout.inputs[i]}"
        tensors += linear(path, width, hidden, "attention", "column", bias=qkv_bias, transposed=layout.transposed)
    tensors += linear(
        f"{layout.module}.{layout.output}",
        hidden,
        query_width,
        "attention",
        "row",
        bias=out_bias,
        transposed=layout.transposed,
    )
    tensors += norm_tensors(query_norm) + norm_tensors(key_norm) + fields.pop("tensors", ())
    return Attention(
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        fused_qkv=fields.pop("fused_qkv", "split") if len(layout.inputs) == 1 else "",
        query_norm=query_norm,
        key_norm=key_norm,
        rotary_dim=size.head_dim if rotary_dim is None else rotary_dim,
        output_gate=layout.output_gate,
        tensors=tensors,
        dropout=fields.pop("dropout", 0.0),
        window=fields.pop("window", None),
        **fields,
    )


def head_norm(kind: str, size: int, which: str, *, rows: int = 1, bias: bool = False, weight: bool = True) -> Norm:
    """Build a norm on queries (``which`` = ``q``) or keys (``k``), named as Llama-like modules do.

    ``kind``: such as ``rmsnorm``. ``size``: normalised elements. ``rows``: number of heads that have weights of their
    own.
    """
    return Norm(kind, size, weight=weight, bias=bias, rows=rows, name=f"self_attn.{which}_norm")


def latent_attention(
    config: ConfigReader,
    size: StackDimensions,
    *,
    interleaved: bool = True,
    v_head_dim: int | None = None,
    whole_queries: bool = False,
) -> LatentAttention:
    """Build DeepSeek's multi-head latent attention (MLA) from its usual keys.

    Tensor parallelism replicates the low-rank projections and their norms (shard ``none``). ``interleaved``: the rotary
    part is stored as pairs of neighbours. ``v_head_dim``: the class's default, if it has one. ``whole_queries``: by
    default the class has one query matrix, without a low rank (``q_lora_rank`` may be absent).
    """
    q_rank = config.optional_integer("q_lora_rank")
    if q_rank is None and "q_lora_rank" not in config.config and not whole_queries:
        config.integer("q_lora_rank")  # null is a statement (no low-rank query), absence is not
    kv_rank = config.integer("kv_lora_rank")
    nope, rope = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    v_dim = (
        config.integer("v_head_dim")
        if v_head_dim is None
        else config.integer("v_head_dim", default=v_head_dim, null=v_head_dim)
    )
    bias = config.flag("attention_bias")
    q_width, prefix = size.heads * (nope + rope), "self_attn."
    if q_rank is None:
        query = linear(prefix + "q_proj", q_width, size.hidden, "attention", "column")
    else:
        query = (
            *linear(prefix + "q_a_proj", q_rank, size.hidden, "attention", "none", bias=bias),
            ParameterTensor(prefix + "q_a_layernorm.weight", (q_rank,), "norm"),
            *linear(prefix + "q_b_proj", q_width, q_rank, "attention", "column"),
        )
    tensors = (
        *query,
        *linear(prefix + "kv_a_proj_with_mqa", kv_rank + rope, size.hidden, "attention", "none", bias=bias),
        ParameterTensor(prefix + "kv_a_layernorm.weight", (kv_rank,), "norm"),
        *linear(prefix + "kv_b_proj", size.heads * (nope + v_dim), kv_rank, "attention", "column"),
        *linear(prefix + "o_proj", size.hidden, size.heads * v_dim, "attention", "row", bias=bias),
    )
    dropout = config.dropout("attention_dropout")
    return LatentAttention(
        heads=size.heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=v_dim,
        bias=bias,
        tensors=tensors,
        rotary_interleaved=interleaved,
        dropout=dropout,
    )
