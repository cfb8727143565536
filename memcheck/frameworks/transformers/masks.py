"""Attention masks that transformers makes once per model (masking_utils.py, create_causal_mask and its relatives).

They are variables of the stack's forward; checkpointed layers hold them, as arguments, to their backward, and so do
layers whose backward reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, ceil_div, rounded
from memcheck.frameworks.transformers.kernel_choice import chosen_kernel, grouping_of, needs_mask, shares_mask
from memcheck.models.module_types import BlockIndexer, Disentangled, FalconAttention, MptAttention
from memcheck.models.types import Attention, Block, LatentAttention
from memcheck.record import Record


class Masks(Record):
    """Bytes of a model's masks and biases, by what holds them."""

    variables: int = 0
    """Bytes that only variables of the model's forward hold."""
    graph: int = 0
    """Backward functions of layers, too."""
    unused: int = 0
    """Variables that no layer is given."""
    gathered: int = 0
    """The gradient of such a variable, to which layers add theirs."""


def model_masks(blocks: Iterable[Block], setting: Setting, windows: tuple[int | None, ...] = ()) -> Masks:
    """Return the bytes of the attention masks that a model's forward makes, one for each window size, and of ALiBi.

    ``windows``: window sizes of masks that no layer uses. Eager attention has an additive mask [batch, 1, sequence,
    sequence] in the stream's dtype; scaled_dot_product_attention has a boolean mask of one sequence if a window needs
    one, or of each sequence if padding shifts its chunks (masking_utils.py, chunked_overlay). Masks are held by
    variables, or saved in the graph where scores are filled by them, as in MPT (modeling_mpt.py).
    """
    sequence = setting.sequence
    bytes_by_window: dict[int | None, int] = {}
    bias_bytes, in_graph, cross_bytes = 0, False, 0
    blocks = tuple(blocks)
    for block in blocks:
        layer_mask = _mask(block, setting)
        if layer_mask is not None:
            window, dtype, sequences = layer_mask
            bytes_by_window[window] = rounded(sequences * sequence * sequence * ITEM_BYTES[dtype])
        if block.cross is not None and block.cross.attention.row_masks == "padding":
            dtype = setting.param_dtype if setting.attention == "eager" else "bool"
            cross_bytes = rounded(setting.batch * sequence * setting.encoder_length * ITEM_BYTES[dtype])
        if isinstance(block.mixer, Attention):
            bias_bytes = max(bias_bytes, _bias(block.mixer, setting))
            # torch.where, which takes the bias or the lowest value, keeps its condition, the mask, for backward
            where_keeps_mask = bool(block.mixer.position_bias) and block.mixer.row_masks == "padding"
            where_keeps_mask = where_keeps_mask and block.mixer.kernels.sdpa and setting.attention == "sdpa"
            in_graph = (
                in_graph
                or where_keeps_mask
                or isinstance(block.mixer, MptAttention)
                or shares_mask(block.mixer, setting)
            )
    gathered = max((_table(b.mixer, setting) for b in blocks if isinstance(b.mixer, Attention)), default=0)
    masks = sum(bytes_by_window.values())
    unused_windows = [window for window in windows if window not in bytes_by_window]
    unused = 0
    if setting.attention == "eager":
        unused = len(unused_windows) * rounded(setting.batch * sequence * sequence * ITEM_BYTES[setting.param_dtype])
    elif setting.attention == "sdpa":  # a full causal mask, or one of a window beyond the sequence, is not made
        made = [window for window in unused_windows if window is not None and sequence >= window]
        unused = len(made) * rounded(sequence * sequence)
    if in_graph:
        return Masks(variables=bias_bytes + cross_bytes, graph=masks, unused=unused)
    return Masks(variables=bias_bytes + masks + cross_bytes, unused=unused, gathered=gathered)


def _table(attention: Attention, setting: Setting) -> int:
    """Return the bytes of DeBERTa's ``rel_embeddings``, or of their gradient (modeling_deberta_v2.py)."""
    rows = attention.extension.rows if isinstance(attention.extension, Disentangled) else 0
    return rounded(rows * setting.hidden * ITEM_BYTES[setting.param_dtype])


def _bias(attention: Attention, setting: Setting) -> int:
    """Return the bytes of position biases: ALiBi's, MPNet's, or DeBERTa's relative positions and their table.

    ``alibi`` is [batch * heads, 1, sequence] in the stream's dtype (modeling_bloom.py, modeling_falcon.py). MPT's is in
    fp32, once for all sequences (modeling_mpt.py). MPNet's ``position_bias`` is [batch, heads, sequence, sequence].
    """
    if isinstance(
        attention.extension, Disentangled
    ):  # `relative_pos`, [S, S], and the normed table: every layer is given both
        return (
            rounded(setting.sequence**2 * ITEM_BYTES["int64"]) + _table(attention, setting)
            if attention.extension.rows
            else 0
        )
    if attention.position_bias == "given":
        return rounded(setting.batch * attention.heads * setting.sequence**2 * ITEM_BYTES[setting.param_dtype])
    if not attention.alibi:
        return 0
    heads = ceil_div(attention.heads, setting.tensor_parallel)
    if isinstance(attention, MptAttention):
        return rounded(heads * setting.sequence * ITEM_BYTES["fp32"])
    return rounded(setting.batch * heads * setting.sequence * ITEM_BYTES[setting.param_dtype])


def _mask(block: Block, setting: Setting) -> tuple[int | None, str, int] | None:
    """Return window, dtype and number of [sequence, sequence] masks of this layer's mask, or None without one."""
    mixer = block.mixer
    if (
        isinstance(mixer, Attention) and isinstance(mixer.extension, Disentangled) and mixer.bidirectional
    ):  # of every pair
        return None, "int64" if mixer.row_masks == "padding" else "fp32", setting.batch
    if isinstance(mixer, Attention) and mixer.position_bias == "given" and mixer.row_masks == "padding":
        return None, setting.param_dtype, setting.batch  # additive, of every sequence
    if isinstance(mixer, LatentAttention):
        mixer = grouping_of(mixer, mixer.heads)
    if not isinstance(mixer, Attention) or (
        mixer.bidirectional and mixer.window is None and mixer.row_masks != "padding"
    ):
        return None
    compute = setting.autocast_dtype or setting.compute_dtype
    kernel = chosen_kernel(setting.attention, compute, mixer, setting.sequence, setting.style)
    if isinstance(mixer, FalconAttention) and mixer.alibi:  # Falcon adds its bias to the mask: one of every head
        return mixer.window, setting.param_dtype, setting.batch * ceil_div(mixer.heads, setting.tensor_parallel)
    if kernel == "eager":
        return mixer.window, "bool" if isinstance(mixer, MptAttention) else setting.param_dtype, setting.batch
    if isinstance(mixer.extension, BlockIndexer):  # scaled_dot_product_attention's mask is the layer's own
        return None
    if kernel != "flash" and needs_mask(mixer, setting.sequence, setting.style):
        per_sequence = mixer.chunked_window or bool(mixer.row_masks)
        return mixer.window, "bool", setting.batch if per_sequence else 1
    return None
