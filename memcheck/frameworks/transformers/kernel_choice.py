"""Which kernel runs for a module of softmax attention on CUDA, and what it is given.

Sources: transformers 5.23 integrations/sdpa_attention.py; kernel choice of
torch.nn.functional.scaled_dot_product_attention (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context, Patched, Setting
from memcheck.autograd.style import Style
from memcheck.autograd.tensor import Storage
from memcheck.frameworks.transformers.rotary import concatenates
from memcheck.job.types import TrainingJob
from memcheck.models.attention_types import BlockIndexer, ExpandedFalconAttention, FalconAttention, WhisperAttention
from memcheck.models.types import Architecture, Attention, LatentAttention


def chosen_kernel(attention: str, dtype: str, a: Attention, sequence: int, style: Style) -> str:
    """``flash`` | ``efficient`` | ``math`` | ``eager``: what runs for this module on CUDA."""
    if attention in ("flash", "flex") and a.flash and not a.alibi:
        return "flash"
    if attention == "eager" or not a.sdpa or a.softcap or a.sinks:
        return "eager"
    if a.bias:
        return "efficient"  # the biases are a mask that wants a gradient
    masked = needs_mask(a, sequence, style)
    grouped = a.kv_heads != a.heads and not isinstance(a, ExpandedFalconAttention)
    if grouped and a.fused_form == "index":
        # the fused kernels refuse fewer key heads than query heads without enable_gqa, which Falcon does not pass
        return "math"
    if masked:
        return "efficient"
    if dtype in ("bf16", "fp16") and a.head_dim <= 256:
        return "flash"
    return "math" if grouped and a.head_dim <= 256 else "efficient"


def grouping_of(a: LatentAttention, heads: int) -> Attention:
    """The module of softmax attention that expanded keys and values amount to."""
    width = a.qk_nope_head_dim + a.qk_rope_head_dim
    return Attention(
        heads, heads, width, dropout=a.dropout, masked=a.own is not None, padded=a.padded,
        sdpa=a.sdpa, flash=a.sdpa,
    )  # fmt: skip


def keeps_strides(ctx: Context, a: Attention) -> bool:
    """The fused kernels return gradients in the layout of their inputs; matmuls return them head by head."""
    return kernel_of(ctx, a) in ("flash", "efficient") and not repeats_kv(ctx, a)


FUSED_NORMS = Patched(rope=False, glu=False, norm_in_place=False)
"""torch.nn.RMSNorm and Transformer Engine's keep their input and a figure a row, as Liger's does (aten/native/cuda/
layer_norm_kernel.cu, ``_fused_rms_norm``; transformer_engine/pytorch/ops/basic/rmsnorm.py)."""


def fused_kernels(job: TrainingJob, a: Architecture) -> Patched | None:
    """What of the model runs in fused kernels instead of transformers' modules; None: nothing."""
    if not job.liger:
        return FUSED_NORMS if job.option("fused_norms", False) else None
    from memcheck.frameworks.transformers.liger import liger_of

    return liger_of(job, a)


def turns_in_place(ctx: Context) -> bool:
    """Whether Liger's kernel rotates q, k and their gradients where they lie, token by token."""
    return ctx.setting.liger is not None and ctx.setting.liger.rope


def kernel_of(ctx: Context, a: Attention) -> str:
    """The kernel of this module in this setting."""
    s = ctx.setting
    return chosen_kernel(s.attention, ctx.tape.autocast or s.compute, a, s.sequence, s.style)


def repeats_kv(ctx: Context, a: Attention) -> bool:
    """transformers repeats k and v for eager attention, under a mask, and for wide heads (use_gqa_in_sdpa)."""
    if a.kv_heads == a.heads or isinstance(a, ExpandedFalconAttention):
        return False
    masked = needs_mask(a, ctx.setting.sequence, ctx.setting.style)
    return kernel_of(ctx, a) in ("efficient", "eager") and (masked or a.head_dim > 256 or kernel_of(ctx, a) == "eager")


def needs_mask(a: Attention, sequence: int, style: Style) -> bool:
    """transformers builds an explicit mask for padding, and for a sliding window not longer than the sequence
    (masking_utils.py).
    """
    if not style.modeling_files:
        return False
    every = a.masked or a.padded or a.alibi or a.pictures or isinstance(a.own, BlockIndexer)
    return every or (a.window is not None and sequence >= a.window)


def shares_mask(a: Attention, setting: Setting) -> bool:
    """Whether the kernel of every layer keeps the model's own mask: additive, in the queries' dtype, and aligned."""
    kernel = chosen_kernel(setting.attention, setting.autocast or setting.compute, a, setting.sequence, setting.style)
    additive = a.alibi and isinstance(a, FalconAttention)  # Falcon adds ALiBi's bias to the mask of every head
    narrow = setting.autocast in (None, setting.params)
    return additive and kernel == "efficient" and narrow and not setting.sequence % MASK_ALIGNMENT


def copied_operands(ctx: Context, a: Attention, heads: int) -> kernels.Copied:
    """Which of q, k and v torch.matmul copies because it folds batch and heads into one dimension (aten
    LinearAlgebra.cpp, _matmul_impl): of several sequences those whose heads are not contiguous.

    A transposed view's are not, and a rotation keeps the strides of what it is given, unless it ends in a ``cat``.
    Repeated heads are; a single head that is repeated is a view with stride 0.
    """
    if ctx.setting.batch == 1 or isinstance(a, WhisperAttention):
        return False, False, False
    joined = a.rotary_dim > 0 and (concatenates(a) or a.rotary_form == "chunks")
    turned = turns_in_place(ctx) or not joined
    if repeats_kv(ctx, a):
        single = max(1, -(-a.kv_heads // ctx.tp)) == 1 < heads
        return turned, single, single
    return turned, turned, True


def additive_mask(ctx: Context, a: Attention, dtype: str) -> Storage | None:
    """What a kernel adds to its scores, where that is not the model's own mask: a boolean one made additive, or
    Falcon's with ALiBi's bias as autocast casts it.
    """
    if not a.alibi:
        return ctx.tape.new((ctx.batch, 1, ctx.sequence, ctx.sequence), dtype, "attention mask")
    if ctx.setting.autocast is None:
        return None
    return ctx.tape.new((ctx.batch, -(-a.heads // ctx.tp), ctx.sequence, ctx.sequence), dtype, "attention mask")
