"""Which kernel runs for a module of softmax attention on CUDA, and what it is given.

Sources: transformers 5.23 integrations/sdpa_attention.py; kernel choice of
torch.nn.functional.scaled_dot_product_attention (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).

Scores, softmax and product of softmax attention, by the kernel that runs.

FlashAttention over padded rows packs the real tokens for the kernel, and puts them back after it (transformers 5.23
modeling_flash_attention_utils.py, ``_flash_attention_forward``, ``_upad_input``, ``_pad_input``). Every row is as long
as the longest, so that each copy is as large as the rows.

Attention masks that transformers makes once per model (masking_utils.py, create_causal_mask and its relatives).

They are variables of the stack's forward; checkpointed layers hold them, as arguments, to their backward, and so do
layers whose backward reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.autograd import kernels
from memcheck.autograd.context import Context, Patched, Setting
from memcheck.autograd.kernels import MASK_ALIGNMENT, flash
from memcheck.autograd.operator import cast, copy, index, operator, repeat_kv
from memcheck.autograd.tensor import ITEM_BYTES, Storage, Value, ceil_div, round_up, rounded
from memcheck.frameworks.transformers.rotary import concatenates
from memcheck.job.types import TrainingJob
from memcheck.models.module_types import (
    KERNELS,
    BlockIndexer,
    Disentangled,
    ExpandedFalconAttention,
    FalconAttention,
    MptAttention,
    WhisperAttention,
)
from memcheck.models.types import Architecture, Attention, Block, LatentAttention
from memcheck.record import Record

FLASH_HEAD_DIM = 256
"""The largest head dimension of FlashAttention's kernels (sdp_utils.cpp, check_head_dim_size_flash)."""


def chosen_kernel(attention: Attention, setting: Setting, autocast: str | None) -> str:
    """Return the attention kernel that runs for this module on CUDA: ``flash``, ``efficient``, ``math`` or ``eager``.

    ``autocast``: the dtype of autocast where the module runs; None: it is off. Source: sdp_utils.cpp of
    aten/native/transformers/cuda.
    """
    if setting.attention in ("flash", "flex") and attention.kernels.flash and not attention.alibi:
        return "flash"
    has_sdpa = attention.kernels.sdpa and not attention.softcap and not attention.sinks
    if setting.attention == "eager" or not has_sdpa:
        return "eager"
    if attention.position_bias:
        return "efficient"  # the biases are a mask that needs a gradient, which flash does not compute
    expands_keys = isinstance(attention, ExpandedFalconAttention)
    grouped = attention.kv_heads != attention.heads and not expands_keys
    if grouped and attention.fused_qkv == "index":
        # the fused kernels refuse fewer key heads than query heads without enable_gqa, which Falcon does not pass
        return "math"
    if needs_mask(attention, setting):
        return "efficient"
    fits_flash = attention.head_dim <= FLASH_HEAD_DIM
    if fits_flash and (autocast or setting.compute_dtype) in ("bf16", "fp16"):
        return "flash"
    return "math" if grouped and fits_flash else "efficient"


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
        return FUSED_NORMS if job.option("fused_norms", default=False) else None
    from memcheck.frameworks.transformers.liger import liger_of

    return liger_of(job, architecture)


def turns_in_place(ctx: Context) -> bool:
    """Tell whether Liger's kernel rotates q, k and their gradients in place."""
    return ctx.setting.liger is not None and ctx.setting.liger.rope


def kernel_of(ctx: Context, attention: Attention) -> str:
    """Return the attention kernel of this module in this setting, as in :func:`chosen_kernel`."""
    return chosen_kernel(attention, ctx.setting, ctx.tape.autocast)


def repeats_kv(ctx: Context, attention: Attention) -> bool:
    """Tell whether transformers repeats k and v: for eager attention, under a mask, and for wide heads
    (use_gqa_in_sdpa).
    """
    if attention.kv_heads == attention.heads or isinstance(attention, ExpandedFalconAttention):
        return False
    kernel = kernel_of(ctx, attention)
    if kernel == "efficient":
        return needs_mask(attention, ctx.setting) or attention.head_dim > FLASH_HEAD_DIM
    return kernel == "eager"


def needs_mask(attention: Attention, setting: Setting) -> bool:
    """Tell whether transformers builds an explicit mask: for padding, or a sliding window not longer than the sequence.

    Source: transformers 5.23 masking_utils.py.
    """
    if not setting.style.runs_transformers_modules:
        return False
    always_masked = (
        attention.kernels.explicit_mask
        or bool(attention.row_masks)
        or attention.alibi
        or isinstance(attention.extension, BlockIndexer)
    )
    return always_masked or (attention.window is not None and setting.sequence >= attention.window)


def shares_mask(attention: Attention, setting: Setting) -> bool:
    """Tell whether each layer's kernel keeps the model's own mask: additive, aligned and in q's dtype."""
    kernel = chosen_kernel(attention, setting, setting.autocast_dtype)
    is_additive = attention.alibi and isinstance(attention, FalconAttention)  # with ALiBi's bias, for every head
    has_kernel_dtype = setting.autocast_dtype in (None, setting.param_dtype)
    is_aligned = setting.sequence % MASK_ALIGNMENT == 0
    return is_additive and kernel == "efficient" and has_kernel_dtype and is_aligned


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


def attend(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Compute softmax(q k^T) v with the kernel that runs on CUDA, and return what the output projection reads.

    ``q``: [batch, heads, sequence, head_dim]; ``k`` and ``v`` have ``kv_heads`` heads. Returns [batch, heads, sequence,
    v_head_dim], contiguous for the projection.
    """
    if ctx.setting.ulysses:
        from memcheck.frameworks.transformers.ulysses import attend_to_heads

        return attend_to_heads(ctx, attention, q, k, v, attend)
    tape = ctx.tape
    kernel = kernel_of(ctx, attention)
    if repeats_kv(ctx, attention):
        if isinstance(attention, FalconAttention) and tape.autocast:  # Falcon's products repeat what autocast has cast
            k, v = cast(tape, k, tape.autocast), cast(tape, v, tape.autocast)
        k, v = repeat_kv(tape, k, q.shape[1]), repeat_kv(tape, v, q.shape[1])
    if kernel == "eager":
        from memcheck.frameworks.transformers.eager import attend_eagerly

        return attend_eagerly(ctx, attention, q, k, v)
    if kernel == "math":
        from memcheck.frameworks.transformers.eager import broadcasting, math_kernel

        run_math = broadcasting if attention.fused_qkv == "index" else math_kernel
        return run_math(ctx, attention, q, k, v)
    return _fused_attention(ctx, attention, kernel, q, k, v)


def _fused_attention(ctx: Context, attention: Attention, kernel: str, q: Value, k: Value, v: Value) -> Value:
    """Run FlashAttention or the memory-efficient kernel on q, k and v, which stay variables while it runs.

    ``kernel``: ``flash`` or ``efficient``. Shapes are those of :func:`attend`.
    """
    tape, setting = ctx.tape, ctx.setting
    fused_q, fused_k, fused_v = (cast(tape, t, tape.autocast) for t in (q, k, v)) if tape.autocast else (q, k, v)
    mask = None
    if kernel == "efficient" and needs_mask(attention, setting):
        mask = _kernel_mask(ctx, attention, fused_v.dtype)
    if attention.row_masks == "padding" and setting.attention == "flash":
        return flash_of_real_tokens(ctx, fused_q, fused_k, fused_v)
    label, ring = f"{kernel} attention", setting.context_parallel
    out = kernels.flash(tape, fused_q, fused_k, fused_v, v.shape[-1], label=label, extra=mask, ring=ring)
    if attention.sinks:
        from memcheck.frameworks.transformers.eager import kernel_with_sinks

        out = kernel_with_sinks(ctx, attention, out)
    # flash writes its output in q's strides: a q that was built contiguous (cat of rotated and plain parts) makes
    # transpose(1, 2) non-contiguous, so o_proj's input is one more copy; the memory-efficient kernel's is not.
    joined = concatenates(attention) and attention.rotation.form != "pairs-each" and not turns_in_place(ctx)
    q_is_contiguous = joined or isinstance(attention, WhisperAttention)
    return copy(tape, out, "contiguous") if kernel == "flash" and q_is_contiguous else out


def _kernel_mask(ctx: Context, attention: Attention, dtype: str) -> Storage | None:
    """Return the mask that the memory-efficient kernel keeps as ``attn_bias``, or None if it is the model's own.

    ``convert_boolean_attn_mask`` makes a boolean mask additive. ``pad_bias`` pads rows to a multiple of 8. autocast
    casts an additive mask. Source: aten/src/ATen/native/transformers/attention.cpp.
    """
    if attention.cross:
        return _cross_attention_mask(ctx, dtype, additive=attention.row_masks != "padding")
    if shares_mask(attention, ctx.setting):
        return None
    mask = additive_mask(ctx, attention, dtype)
    if ctx.sequence % MASK_ALIGNMENT:
        padded_keys = round_up(ctx.sequence, MASK_ALIGNMENT)
        mask_heads = ceil_div(attention.heads, ctx.tp) if attention.alibi else 1
        mask = ctx.tape.new((ctx.batch, mask_heads, ctx.sequence, padded_keys), dtype, "padded attention mask")
    return mask


def _cross_attention_mask(ctx: Context, dtype: str, *, additive: bool) -> Storage | None:
    """Return the mask of cross-attention that the kernel keeps, [batch, 1, sequence, encoded], or None if the model
    holds it.

    The mask over picture rows is ``additive`` and in the model's dtype. The mask over padded words is boolean.
    """
    rows = ctx.setting.encoder_length
    padded_rows = round_up(rows, MASK_ALIGNMENT)
    if additive and ctx.setting.autocast_dtype is None and padded_rows == rows:
        return None
    return ctx.tape.new((ctx.batch, 1, ctx.sequence, padded_rows), dtype, "mask of encoded rows")


def flash_of_real_tokens(ctx: Context, q: Value, k: Value, v: Value) -> Value:
    """Run FlashAttention on the tokens that are not padding. It keeps unpadded copies of q, k and v.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. The projection reads a padded copy of the output.
    """
    tape = ctx.tape
    real_tokens = tape.new((q.shape[0] * q.shape[2],), "int64", "real tokens")
    k, v, q = (index(tape, x, real_tokens, x.shape, "unpadded") for x in (k, v, q))
    out = flash(tape, q, k, v, v.shape[-1])
    return operator(
        tape, tape.value(out.shape, out.dtype, "padded attention"), out, "padded backward", saves=(real_tokens,)
    )


class LayerMask(Record):
    """The attention mask of a layer: ``masks`` of [sequence, sequence], one per sequence or head if they differ.

    ``window``: size of the sliding window; None: the mask is causal, or of padding alone.
    """

    window: int | None
    dtype: str
    masks: int

    def bytes(self, sequence: int) -> int:
        """Return the bytes of all masks."""
        return rounded(self.masks * sequence * sequence * ITEM_BYTES[self.dtype])


class Masks(Record):
    """Bytes of a model's masks and biases, by what holds them."""

    held_by_variables: int = 0
    """Bytes that only variables of the model's forward hold."""
    held_by_graph: int = 0
    """Backward functions of layers, too."""
    unused_variables: int = 0
    """Variables that no layer is given."""
    bias_gradient: int = 0
    """The gradient of such a variable, to which layers add theirs."""


def model_masks(blocks: Iterable[Block], setting: Setting, windows: tuple[int | None, ...] = ()) -> Masks:
    """Return the bytes of the attention masks that a model's forward makes, one for each window size, and of ALiBi.

    ``windows``: window sizes of masks that no layer uses. Eager attention has an additive mask [batch, 1, sequence,
    sequence] in the stream's dtype; scaled_dot_product_attention has a boolean mask of one sequence if a window needs
    one, or of each sequence if padding shifts its chunks (masking_utils.py, chunked_overlay). Masks are held by
    variables, or saved in the graph where scores are filled by them, as in MPT (modeling_mpt.py).
    """
    blocks = tuple(blocks)
    attentions = [block.mixer for block in blocks if isinstance(block.mixer, Attention)]
    layer_masks = [mask for mask in (_layer_mask(block, setting) for block in blocks) if mask is not None]
    bytes_by_window = {mask.window: mask.bytes(setting.sequence) for mask in layer_masks}
    mask_bytes = sum(bytes_by_window.values())
    variable_bytes = max((_bias(attention, setting) for attention in attentions), default=0)
    if any(block.cross is not None and block.cross.attention.row_masks == "padding" for block in blocks):
        dtype = setting.param_dtype if setting.attention == "eager" else "bool"
        variable_bytes += rounded(setting.batch * setting.sequence * setting.encoder_length * ITEM_BYTES[dtype])
    unused = _unused_mask_bytes([window for window in windows if window not in bytes_by_window], setting)
    if any(_saves_mask(attention, setting) for attention in attentions):
        return Masks(held_by_variables=variable_bytes, held_by_graph=mask_bytes, unused_variables=unused)
    table_bytes = max((_table(attention, setting) for attention in attentions), default=0)
    return Masks(held_by_variables=variable_bytes + mask_bytes, unused_variables=unused, bias_gradient=table_bytes)


def _unused_mask_bytes(windows: list[int | None], setting: Setting) -> int:
    """Return the bytes of masks that the model's forward makes for ``windows``, window sizes that no layer has."""
    sequence = setting.sequence
    if setting.attention == "eager":
        return len(windows) * rounded(setting.batch * sequence * sequence * ITEM_BYTES[setting.param_dtype])
    if setting.attention != "sdpa":
        return 0
    # a full causal mask, or one of a window beyond the sequence, is not made
    made = [window for window in windows if window is not None and sequence >= window]
    return len(made) * rounded(sequence * sequence)


def _saves_mask(attention: Attention, setting: Setting) -> bool:
    """Say whether backward of a layer keeps the model's mask.

    MPT fills its scores by it. ``torch.where``, which takes a position bias or the lowest value, keeps its condition.
    """
    has_padded_bias = bool(attention.position_bias) and attention.row_masks == "padding"
    where_keeps_mask = has_padded_bias and attention.kernels.sdpa and setting.attention == "sdpa"
    return where_keeps_mask or isinstance(attention, MptAttention) or shares_mask(attention, setting)


def _table(attention: Attention, setting: Setting) -> int:
    """Return the bytes of DeBERTa's ``rel_embeddings``, or of their gradient (modeling_deberta_v2.py)."""
    rows = attention.extension.rows if isinstance(attention.extension, Disentangled) else 0
    return rounded(rows * setting.hidden * ITEM_BYTES[setting.param_dtype])


def _bias(attention: Attention, setting: Setting) -> int:
    """Return the bytes of position biases: ALiBi's, MPNet's, or DeBERTa's relative positions and their table.

    ``alibi`` is [batch * heads, 1, sequence] in the stream's dtype (modeling_bloom.py, modeling_falcon.py). MPT's is in
    fp32, once for all sequences (modeling_mpt.py). MPNet's ``position_bias`` is [batch, heads, sequence, sequence].
    """
    if isinstance(attention.extension, Disentangled):
        if not attention.extension.rows:
            return 0
        # `relative_pos`, [S, S], and the normed table: every layer is given both
        return rounded(setting.sequence**2 * ITEM_BYTES["int64"]) + _table(attention, setting)
    if attention.position_bias == "given":
        return rounded(setting.batch * attention.heads * setting.sequence**2 * ITEM_BYTES[setting.param_dtype])
    if not attention.alibi:
        return 0
    heads = ceil_div(attention.heads, setting.tensor_parallel)
    if isinstance(attention, MptAttention):
        return rounded(heads * setting.sequence * ITEM_BYTES["fp32"])
    return rounded(setting.batch * heads * setting.sequence * ITEM_BYTES[setting.param_dtype])


def _layer_mask(block: Block, setting: Setting) -> LayerMask | None:
    """Return the mask that the model's forward makes for this layer, or None without one."""
    mixer, batch = block.mixer, setting.batch
    if isinstance(mixer, LatentAttention):
        mixer = grouping_of(mixer, mixer.heads)
    if not isinstance(mixer, Attention):
        return None
    masks_padding = mixer.row_masks == "padding"
    if mixer.bidirectional and isinstance(mixer.extension, Disentangled):
        return LayerMask(None, "int64" if masks_padding else "fp32", batch)
    if mixer.position_bias == "given" and masks_padding:
        return LayerMask(None, setting.param_dtype, batch)  # additive, of every sequence
    if mixer.bidirectional and mixer.window is None and not masks_padding:
        return None
    if isinstance(mixer, FalconAttention) and mixer.alibi:  # Falcon adds its bias to the mask: one of every head
        return LayerMask(mixer.window, setting.param_dtype, batch * ceil_div(mixer.heads, setting.tensor_parallel))
    kernel = chosen_kernel(mixer, setting, setting.autocast_dtype)
    if kernel == "eager":
        return LayerMask(mixer.window, "bool" if isinstance(mixer, MptAttention) else setting.param_dtype, batch)
    is_layers_own = isinstance(mixer.extension, BlockIndexer)  # the mask of scaled_dot_product_attention
    if kernel == "flash" or is_layers_own or not needs_mask(mixer, setting):
        return None
    per_sequence = mixer.chunked_window or bool(mixer.row_masks)
    return LayerMask(mixer.window, "bool", batch if per_sequence else 1)
