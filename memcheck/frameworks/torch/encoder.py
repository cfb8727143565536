"""What runs in front of an encoder-decoder's decoder: the encoder's look-up or convolutions, its layers, its last norm.

What stacks share is live while their units run: the encoder's output, its gradient, to which every decoder layer adds,
and the position biases that the first layer makes, with their gradient.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Run, Unit, UnitRuns
from memcheck.autograd.context import Context, Setting, require_covered, touched, whole
from memcheck.autograd.curve import Curve, keeping, replay
from memcheck.autograd.tensor import ITEM_BYTES, Dim, Value, rounded, rounded_bytes
from memcheck.frameworks.registry import encoder_code
from memcheck.frameworks.torch.data_parallel import casts_inputs
from memcheck.frameworks.torch.rank_tensors import as_block, is_hooked, recompute_mode, stream_dtype, widens_inside
from memcheck.frameworks.torch.tower_tensors import part_setting, part_tensors, reaches
from memcheck.frameworks.torch.units import block_unit
from memcheck.job.training import encoder_length, target_length
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.encoder import Encoder, Words
from memcheck.models.types import Architecture, Attention, Block
from memcheck.record import Record


def encoder_units(
    job: TrainingJob,
    architecture: Architecture,
    encoder: Encoder,
    base: Setting,
    *,
    table_trained: bool,
    adds: bool,
    inventory: bool,
) -> UnitRuns:
    """Return the units of an encoder in forward order: its input, its layers, its last norm.

    ``base``: the setting of the decoder. ``table_trained``: the embedding is trained. ``adds``: some micro-batch adds
    to existing gradients. Equal consecutive layers are one unit with a count; they differ if their inputs need
    gradients or not, which begins after the first trained module.
    """
    narrowed = bool(encoder.mel_bins) and casts_inputs(job, job.recipe.params)
    setting = encoder_setting(job, encoder, base)._replace(casts_batch_features=narrowed)
    entry = setting._replace(residual_dtype=None) if widens_inside(architecture, setting) else setting
    source = _source(job, architecture, encoder, entry, table_trained=table_trained, adds=adds, inventory=inventory)
    input_bytes = source.first_curve.extra_output_bytes
    runs = [Run(source, 1)]
    rows_need_grad = not encoder.mel_bins and (table_trained or is_hooked(job, architecture))  # of looked-up words
    input_needs_grad = rows_need_grad or setting.trained
    index, last = 0, encoder.num_layers - 1
    for block, count_of_block in encoder.blocks:
        layers_left = count_of_block
        while layers_left:
            layer = setting if index else entry
            layer = layer._replace(needs_input_gradient=input_needs_grad, starts_shared_gradients=index == last)
            mode = recompute_mode(job, index)
            unit = sharing(block_unit(job, block, layer, mode, adds, inventory), block, layer, mode, input_bytes)
            output_grad = input_needs_grad or setting.trained or reaches(setting, block)
            is_entry = index == 0 and entry is not setting
            if index == last or is_entry or output_grad != input_needs_grad:
                count = 1  # the layer differs from the next one
            else:
                count = min(layers_left, last - index)  # the last layer is a run of its own
            runs.append(Run(unit._replace(kind="encoder", name=f"encoder layer {index}"), count, index))
            input_needs_grad, index, layers_left = output_grad, index + count, layers_left - count
    end_setting = setting._replace(needs_input_gradient=input_needs_grad)
    runs.append(Run(_end(job, encoder, end_setting, adds=adds, inventory=inventory), 1))
    return UnitRuns(tuple(runs), input_needs_grad or setting.trained)


def encoder_setting(job: TrainingJob, encoder: Encoder, base: Setting) -> Setting:
    """The setting of the encoder's layers."""
    return part_setting(job, base, "encoder")._replace(sequence=encoder_length(job, encoder), encoder_length=0)


def _source(
    job: TrainingJob,
    architecture: Architecture,
    encoder: Encoder,
    setting: Setting,
    *,
    table_trained: bool,
    adds: bool,
    inventory: bool,
) -> Unit:
    """Return the unit that computes the input of the encoder's first layer: an embedding, or convolutions of audio.

    ``table_trained``: the embedding is trained. ``adds``: some micro-batch adds to existing gradients. Bytes of masks,
    and of the variable ``inputs_embeds``, are in ``extra_output_bytes``: they live while the layers run.
    """
    code = encoder_code(setting.style)
    hooked = not table_trained and is_hooked(job, architecture)
    trained = table_trained and (setting.trained or not encoder.own_word_rows)
    words = Words(
        rows=architecture.vocab_size, width=architecture.embedding_size, trained=trained, rows_are_leaf=hooked
    )
    expected_numel = sum(t.count for t in encoder.stem)
    if not encoder.mel_bins and not encoder.own_word_rows:  # the decoder's table
        expected_numel += words.rows * words.width
    touched_tensors = touched(lambda ctx: code.source(ctx, encoder, words), whole(setting))
    require_covered(touched_tensors, expected_numel, "what stands in front of the encoder", job.framework.name)
    biases = _bias_bytes(encoder.position_bias_heads, setting) if setting.trained else 0
    settings = [setting, setting.for_later_micro_batches()] if adds else [setting]
    curves = [
        code.source_curve(encoder, words, curve_setting, inventory)._replace(gradient_bytes_of_later_units=biases)
        for curve_setting in settings
    ]
    masks = _mask_bytes(job, encoder, setting).in_forward
    curves = [curve._replace(extra_output_bytes=curve.extra_output_bytes + masks) for curve in curves]
    tensors = part_tensors(as_block(encoder.stem), setting)
    return Unit(kind="source", name="encoder's input", tensors=tensors, first_curve=curves[0], later_curve=curves[-1])


def _end(job: TrainingJob, encoder: Encoder, setting: Setting, *, adds: bool, inventory: bool) -> Unit:
    """Return the unit of the encoder's last norm, whose output all layers of the decoder read."""
    require_covered(
        touched(lambda ctx: encoder_code(setting.style).end(ctx, encoder, _rows(ctx)), whole(setting)),
        sum(t.count for t in encoder.end),
        "the encoder's last norm",
        job.framework.name,
    )
    first_curve = end_curve(encoder, setting, job.loss.keep_logits, inventory)
    later_curve = (
        end_curve(encoder, setting.for_later_micro_batches(), job.loss.keep_logits, inventory) if adds else first_curve
    )
    tensors = part_tensors(as_block(encoder.end), setting)
    return Unit(
        kind="encoded", name="encoder's output", tensors=tensors, first_curve=first_curve, later_curve=later_curve
    )


def _rows(ctx: Context) -> Value:
    shape, dtype = (ctx.tokens, ctx.hidden), stream_dtype(ctx.setting)
    return ctx.tape.leaf(shape, dtype, "last layer's rows")


@lru_cache(maxsize=512)
def end_curve(encoder: Encoder, setting: Setting, is_returned: bool, inventory: bool) -> Curve:
    """Replay the encoder's last norm and return its memory curve.

    Its output stays until every layer of the decoder has read it. The gradient of its output sums the gradients of all
    of these layers, which leave it for this unit's backward (``gradient_bytes_of_later_units``). ``is_returned``: the
    model's output refers to the encoder's output as well (``encoder_last_hidden_state``). ``inventory``: list each
    tensor.
    """
    shape, dtype = (Dim(setting.batch * setting.sequence, "E"), Dim(setting.hidden, "h")), stream_dtype(setting)
    code = encoder_code(setting.style)
    curve = replay(lambda ctx, x: code.end(ctx, encoder, x), setting, shape, dtype, inventory=inventory)
    dtype = setting.encoder_output_dtype or dtype
    output = rounded_bytes(shape, dtype)
    entry = ("encoder's output", shape, dtype, output, "activations", 1)  # 1: one copy
    curve = keeping(curve, output, (entry,))
    return curve._replace(
        gradient_bytes_of_later_units=curve.output_gradient_bytes, until_backward_ends=output if is_returned else 0
    )


def sharing(unit: Unit, block: Block, setting: Setting, mode: str, rows: int = 0) -> Unit:
    """Return a layer's unit with the tensors that its stack shares, such as position biases and the encoder's output.

    ``mode``: the recompute mode. ``rows``: bytes of a variable of the stack's forward.
    """
    first_curve = _sharing(unit.first_curve, block, setting, mode, rows)
    later_curve = (
        first_curve if unit.later_curve is unit.first_curve else _sharing(unit.later_curve, block, setting, mode, rows)
    )
    return unit._replace(first_curve=first_curve, later_curve=later_curve)


@lru_cache(maxsize=1024)
def _sharing(curve: Curve, block: Block, setting: Setting, mode: str, rows: int) -> Curve:
    """Return a layer's curve with the bytes of shared tensors: who keeps them alive, and where their gradients are
    summed.

    ``rows``: bytes of a variable of the stack's forward. ``mode``: the recompute mode.
    """
    biases, zeros = shared_biases(block, setting)
    computes_biases = isinstance(block.mixer, Attention) and block.mixer.position_bias == "table"
    recomputes = mode != "none"
    returned = curve.extra_output_bytes + rows
    if recomputes and computes_biases:
        # arguments of the checkpointed layers that follow, which hold them to their backward; zeros are a leaf that
        # wants a gradient: its AccumulateGrad holds both until the loop lets go of the loss
        until_backward_ends = curve.until_backward_ends + zeros
        curve = keeping(curve, curve.extra_output_bytes, (), zeros)._replace(until_backward_ends=until_backward_ends)
        returned = rows
    elif not recomputes and not computes_biases:
        returned += biases
        masked = block.cross is not None and block.cross.attention.row_masks == "padding"
        if masked or setting.attention == "eager":
            returned += zeros  # the kernel keeps a copy of the zeros, with the mask
    # gradients that the last layer's backward starts, and that an earlier unit completes
    started_gradients = 0
    if setting.starts_shared_gradients:
        if setting.trained:
            started_gradients += biases + given_biases(block, setting)
        if recomputes:
            started_gradients += zeros
        if setting.encoder_output_grad and reads_encoded(block):
            started_gradients += encoded_bytes(setting)
    gradients = curve.gradient_bytes
    if computes_biases and not setting.starts_shared_gradients and setting.trained and not setting.has_grad:
        mixer = block.mixer
        tables = [t for t in mixer.tensors if t.group == "position"] if isinstance(mixer, Attention) else []
        gradients += sum(rounded_bytes(t.shape, setting.param_dtype) for t in tables)
    return curve._replace(
        extra_output_bytes=returned, gradient_bytes_for_earlier_units=started_gradients, gradient_bytes=gradients
    )


def reads_encoded(block: Block) -> bool:
    """Say whether the layer reads the encoder's output."""
    return block.cross is not None or (isinstance(block.mixer, Attention) and block.mixer.cross)


def shared_biases(block: Block, setting: Setting) -> tuple[int, int]:
    """Return the bytes of the position bias that one layer computes for its stack, and of cross attention's zeros."""
    mixer, cross = block.mixer, block.cross.attention if block.cross is not None else None
    biases = zeros = 0
    if isinstance(mixer, Attention) and mixer.position_bias in ("table", "shared"):
        biases = _bias_bytes(mixer.heads, setting)
    if cross is not None and cross.position_bias in ("zeros", "shared-zeros"):
        item_bytes = ITEM_BYTES[setting.autocast_dtype or setting.param_dtype]
        zeros = rounded(cross.heads * setting.sequence * setting.encoder_length * item_bytes)
    return biases, zeros


def given_biases(block: Block, setting: Setting) -> int:
    """Return the bytes of the gradient of biases that the model makes for every sequence (MPNet); 0: it makes none."""
    mixer = block.mixer
    if not isinstance(mixer, Attention) or mixer.position_bias != "given":
        return 0
    return rounded(setting.batch * mixer.heads * setting.sequence**2 * ITEM_BYTES[setting.param_dtype])


def _bias_bytes(heads: int, setting: Setting) -> int:
    return rounded(heads * setting.sequence * setting.sequence * ITEM_BYTES[setting.param_dtype])


def encoded_bytes(setting: Setting) -> int:
    """Return the bytes of the encoder's output; its gradient has the same size."""
    dtype = setting.encoder_output_dtype or stream_dtype(setting)
    return rounded(setting.batch * setting.encoder_length * setting.hidden * ITEM_BYTES[dtype])


def decoder_embedding(unit: Unit, architecture: Architecture, base: Setting, *, table_trained: bool, mode: str) -> Unit:
    """Return the decoder's embedding unit with the gradients that are pending until its backward.

    ``unit``: the embedding without them. Position biases are shared by all layers, so that their gradient is complete
    only after the last layer's backward. The gradient of a table that the encoder shares (``table_trained``) waits in
    AccumulateGrad's buffer for the encoder's gradient. ``base``: the decoder's setting. ``mode``: the recompute mode.
    """
    encoder = architecture.encoder
    first_layer, _ = architecture.blocks[0]
    biases, zeros = shared_biases(first_layer, base)
    kept_zeros = zeros if mode != "none" else 0  # the gradient of a recompute's unused output of biases
    pending_gradients = (biases if base.trained else 0) + kept_zeros
    first_curve, later_curve = (
        curve._replace(
            gradient_bytes_of_later_units=pending_gradients, until_backward_ends=curve.until_backward_ends + kept_zeros
        )
        for curve in (unit.first_curve, unit.later_curve)
    )
    encoder_shares_table = encoder is not None and not encoder.mel_bins and not encoder.own_word_rows
    if table_trained and unit.later_curve is not unit.first_curve and encoder_shares_table:
        table = rounded(architecture.vocab_size * architecture.embedding_size * ITEM_BYTES[base.param_dtype])
        later_curve = later_curve._replace(until_backward_ends=later_curve.until_backward_ends + table)
    return unit._replace(
        first_curve=first_curve, later_curve=first_curve if unit.later_curve is unit.first_curve else later_curve
    )


def encoder_inputs(job: TrainingJob, architecture: Architecture, encoder: Encoder) -> int:
    """Return the bytes of the encoder's inputs in a micro-batch: token ids or audio features.

    The labels that are shifted to the right count as well (``_shift_right``). The decoder's token ids do not.
    """
    rows, id_bytes = job.rows * encoder_length(job, encoder), ITEM_BYTES["int64"]
    if not encoder.mel_bins:
        return rounded(rows * id_bytes)
    feature_rows = 2 * rows  # the encoder's second convolution has a stride of two
    input_bytes = rounded(feature_rows * encoder.mel_bins * DTYPE_BYTES[job.recipe.params])
    if architecture.positions_each:
        input_bytes += rounded(job.rows * target_length(job, encoder) * id_bytes)
    return input_bytes


def encoder_tables(job: TrainingJob, encoder: Encoder, base: Setting) -> int:
    """Return the bytes of the encoder's rotary tables (cos, sin), and of the masks that its layers keep."""
    setting = encoder_setting(job, encoder, base)
    table = rounded(setting.sequence * encoder.rotary_dim * ITEM_BYTES[setting.param_dtype])
    return 2 * table + _mask_bytes(job, encoder, setting).until_backward


class MaskBytes(Record):
    """Bytes of the encoder's masks."""

    until_backward: int
    """Masks that layers hold to their backward."""
    in_forward: int
    """Masks that only variables of the forward hold."""


def _mask_bytes(job: TrainingJob, encoder: Encoder, setting: Setting) -> MaskBytes:
    """Return the bytes of the encoder's masks by their lifetime: checkpointed layers also hold their arguments."""
    graph, variables, unused = encoder_code(setting.style).masks(encoder, setting)
    if job.checkpointing.mode != "none":
        return MaskBytes(until_backward=graph + variables, in_forward=unused)
    return MaskBytes(until_backward=graph, in_forward=variables + unused)
