"""Which kernel runs for a module of softmax attention on CUDA, and what it is given.

Sources: transformers 5.23 integrations/sdpa_attention.py; kernel choice of
torch.nn.functional.scaled_dot_product_attention (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context, Patched, Setting, Style
from memcheck.autograd.kernels import MASK_ALIGNMENT
from memcheck.autograd.tensor import Storage, ceil_div
from memcheck.frameworks.transformers.rotary import concatenates
from memcheck.job.types import TrainingJob
from memcheck.models.module_types import (
    KERNELS,
    BlockIndexer,
    ExpandedFalconAttention,
    FalconAttention,
    WhisperAttention,
)
from memcheck.models.types import Architecture, Attention, LatentAttention


def chosen_kernel(attention: str, dtype: str, attention_config: Attention, sequence: int, style: Style) -> str:
    """Return the attention kernel that runs for this module on CUDA: ``flash``, ``efficient``, ``math`` or ``eager``.

    ``attention``: the plan's setting. ``dtype``: of q, k and v. ``attention_config``: heads, window and the family's
    restrictions. ``sequence``: in tokens. Source: sdp_utils.cpp of aten/native/transformers/cuda.
    """
    if attention in ("flash", "flex") and attention_config.kernels.flash and not attention_config.alibi:
        return "flash"
    if attention == "eager" or not attention_config.kernels.sdpa or attention_config.softcap or attention_config.sinks:
        return "eager"
    if attention_config.position_bias:
        return "efficient"  # the biases are a mask that needs a gradient, which flash does not compute
    masked = needs_mask(attention_config, sequence, style)
    grouped = attention_config.kv_heads != attention_config.heads and not isinstance(
        attention_config, ExpandedFalconAttention
    )
    if grouped and attention_config.fused_qkv == "index":
        # the fused kernels refuse fewer key heads than query heads without enable_gqa, which Falcon does not pass
        return "math"
    if masked:
        return "efficient"
    if dtype in ("bf16", "fp16") and attention_config.head_dim <= 256:
        return "flash"
    return "math" if grouped and attention_config.head_dim <= 256 else "efficient"


def grouping_of(attention: LatentAttention, heads: int) -> Attention:
    """Return latent attention with expanded keys and values as a module of plain softmax attention."""
    width = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    return Attention(
        heads,
        heads,
        width,
        dropout=attention.dropout,
        kernels=KERNELS._replace(explicit_mask=attention.extension is not None),
        row_masks=attention.row_masks,
        rotary_dim=0,
        tensors=(),
        qkv_bias=False,
        out_bias=False,
        query_norm=None,
        key_norm=None,
        window=None,
    )


def keeps_strides(ctx: Context, attention: Attention) -> bool:
    """Tell whether gradients return in the layout of q, k and v, as fused kernels do; matmuls return heads before
    tokens.
    """
    return kernel_of(ctx, attention) in ("flash", "efficient") and not repeats_kv(ctx, attention)


FUSED_NORMS = Patched(rope=False, glu=False, norm_in_place=False)
"""torch.nn.RMSNorm and Transformer Engine's keep their input and a figure a row, as Liger's does (aten/native/cuda/
layer_norm_kernel.cu, ``_fused_rms_norm``; transformer_engine/pytorch/ops/basic/rmsnorm.py)."""


def fused_kernels(job: TrainingJob, architecture: Architecture) -> Patched | None:
    """Return which of the model's modules run in fused kernels instead of transformers' code, or None."""
    if not job.liger:
        return FUSED_NORMS if job.option("fused_norms", False) else None
    from memcheck.frameworks.transformers.liger import liger_of

    return liger_of(job, architecture)


def turns_in_place(ctx: Context) -> bool:
    """Tell whether Liger's kernel rotates q, k and their gradients in place."""
    return ctx.setting.liger is not None and ctx.setting.liger.rope


def kernel_of(ctx: Context, attention: Attention) -> str:
    """Return the attention kernel of this module in this setting, as in :func:`chosen_kernel`."""
    s = ctx.setting
    return chosen_kernel(s.attention, ctx.tape.autocast or s.compute_dtype, attention, s.sequence, s.style)


def repeats_kv(ctx: Context, attention: Attention) -> bool:
    """Tell whether transformers repeats k and v: for eager attention, under a mask, and for wide heads
    (use_gqa_in_sdpa).
    """
    if attention.kv_heads == attention.heads or isinstance(attention, ExpandedFalconAttention):
        return False
    masked = needs_mask(attention, ctx.setting.sequence, ctx.setting.style)
    return kernel_of(ctx, attention) in ("efficient", "eager") and (
        masked or attention.head_dim > 256 or kernel_of(ctx, attention) == "eager"
    )


def needs_mask(attention: Attention, sequence: int, style: Style) -> bool:
    """Tell whether transformers builds an explicit mask: for padding, or a sliding window not longer than the sequence.

    Source: transformers 5.23 masking_utils.py.
    """
    if not style.modeling_files:
        return False
    always_masked = (
        attention.kernels.explicit_mask
        or bool(attention.row_masks)
        or attention.alibi
        or isinstance(attention.extension, BlockIndexer)
    )
    return always_masked or (attention.window is not None and sequence >= attention.window)


def shares_mask(attention: Attention, setting: Setting) -> bool:
    """Tell whether each layer's kernel keeps the model's own mask: additive, aligned and in q's dtype."""
    kernel = chosen_kernel(
        setting.attention, setting.autocast_dtype or setting.compute_dtype, attention, setting.sequence, setting.style
    )
    additive = attention.alibi and isinstance(
        attention, FalconAttention
    )  # Falcon adds ALiBi's bias to the mask of every head
    narrow = setting.autocast_dtype in (None, setting.param_dtype)
    return additive and kernel == "efficient" and narrow and not setting.sequence % MASK_ALIGNMENT


def copied_operands(ctx: Context, attention: Attention, heads: int) -> kernels.Copied:
    """Tell which of q, k and v torch.matmul copies, because it folds batch and heads into one dimension.

    With several sequences it copies operands with heads that are not contiguous. A transposed view is not, and a
    rotation keeps its input's strides unless it ends in ``cat``. Repeated heads are contiguous; a single repeated head
    is a view with stride 0. Source: aten LinearAlgebra.cpp, _matmul_impl.
    """
    if ctx.setting.batch == 1 or isinstance(attention, WhisperAttention):
        return False, False, False
    ends_in_cat = attention.rotary_dim > 0 and (concatenates(attention) or attention.rotation.form == "chunks")
    not_contiguous = turns_in_place(ctx) or not ends_in_cat
    if repeats_kv(ctx, attention):
        expanded_head = max(1, ceil_div(attention.kv_heads, ctx.tp)) == 1 < heads
        return not_contiguous, expanded_head, expanded_head
    return not_contiguous, not_contiguous, True


def additive_mask(ctx: Context, attention: Attention, dtype: str) -> Storage | None:
    """Make the mask that a kernel adds to its scores, unless it is the model's own: an additive copy of a boolean mask.

    For Falcon it is the mask with ALiBi's bias, [batch, heads, sequence, sequence], as autocast casts it.
    """
    if not attention.alibi:
        return ctx.tape.new((ctx.batch, 1, ctx.sequence, ctx.sequence), dtype, "attention mask")
    if ctx.setting.autocast_dtype is None:
        return None
    return ctx.tape.new(
        (ctx.batch, ceil_div(attention.heads, ctx.tp), ctx.sequence, ctx.sequence), dtype, "attention mask"
    )
