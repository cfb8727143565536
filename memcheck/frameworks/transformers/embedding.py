"""The first unit of a model: token embedding, learned positions, embedding norm, scale and dropout."""

from __future__ import annotations

from memcheck.autograd import Tape, Value
from memcheck.autograd.context import Adapter, Context, Setting
from memcheck.autograd.curve import Curve, curve_without_input, peak_of
from memcheck.autograd.kernels import embedding, linear
from memcheck.autograd.operator import GRAD_UNCHANGED, add, dropout, operator, scale
from memcheck.autograd.tensor import Leaf, Parameter, Storage, rounded_bytes
from memcheck.frameworks.registry import layers_of
from memcheck.models.module_types import Disentangled, TableNorm
from memcheck.models.types import Norm, ParameterTensor, PerLayer
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.vision import Embedder


class Embedding(Record):
    """What the first unit consists of. Hashable."""

    vocab: int
    """Rows of the token table."""
    width: int
    """Columns of the token table."""
    position_rows: int = 0
    """Rows of a learned position table; 0: none."""
    norm: Norm | None = None
    """The norm of the looked-up rows; None: there is none."""
    scale: str = ""
    """Who multiplies the rows by a constant, in the words of ``Architecture.embedding_scale``; empty: nobody."""
    dropout: float = 0.0
    """Probability of the dropout of the rows."""
    trained: bool = True
    """The tables get gradients."""
    tied: bool = False
    """The head multiplies by the token table."""
    projects_rows: bool = False
    """A matrix makes the looked-up rows as wide as the stream (OPT-350m)."""
    positions_each: bool = False
    """Positions are looked up for every sequence."""
    takes_image_tokens: bool = False
    """Image tokens take the places that the text left them, in a new tensor."""
    trains_copy_of_table: bool = False
    """A copy of the table is trained in a frozen model (peft's ``modules_to_save``)."""
    token_type_rows: int = 0
    """Rows of a table of token types (BERT); 0: there is none."""
    relative_positions: Disentangled | None = None
    """What all layers read of a table of relative positions (DeBERTa)."""
    bias_table_shape: tuple[int, int] = (0, 0)
    """Rows and heads of a table of relative positions that biases of all layers' scores are made of (MPNet)."""
    is_separate_module: bool = False
    """A module looks the rows up, whose variables die when it returns (encoders)."""
    masks_rows: bool = False
    """The normed rows are multiplied by the mask of padding."""
    per_layer: PerLayer | None = None
    """Embeddings of every layer, looked up in a second table (Gemma 3n); None: there are none."""
    per_layer_rows: int = 0
    """Rows of the table of all layers' embeddings."""
    streams: int = 1
    """Streams of hidden states that the first layer gets."""
    streams_are_copies: bool = False
    """Each stream is a copy of the rows (DeepSeek V4), no projection of them."""
    layers_read_copy: bool = False
    """Layers read a copy of the rows."""
    adds_to_head_gradient: bool = False
    """The tied head's gradient is no transpose of a product but a tensor of its own, to which the table's is added."""
    is_encoder_lookup: bool = False
    """The encoder's look-up: its gradient is added in place to that of the decoder's."""
    positions_are_buffer: bool = False
    """Positions are copied out of a buffer (M2M-100)."""
    positions_are_frozen: bool = False
    """The position table wants no gradient."""
    embedders: tuple[Embedder, ...] = ()
    """Tables of other tokens, which every token goes through."""
    embedders_trained: bool = False
    """Whether the tables of ``embedders`` get gradients."""
    pictures_without_graph: int = 0
    """Pictures whose rows take the places that the text left them, from a tower without a graph."""
    embedders_adapter: Adapter | None = None
    """Adapters of the matrices of ``embedders``; None: there are none."""
    table_frozen: bool = False
    """The table of words is frozen, while the positions, types and norms around it are trained."""
    rows_are_leaf: bool = False
    """enable_input_require_grads makes the looked-up rows a leaf, which its AccumulateGrad keeps with the graph."""
    leaf_is_unsaved: bool = False
    """No checkpoint of the first block saves that leaf as its input."""


def embedding_curve(embedding: Embedding, setting: Setting, dtype: str, *, inventory: bool = False) -> Curve:
    """Replay the embedding unit, and return its memory curve in bytes.

    Its output, [tokens, hidden], is counted with the first block. ``saved`` is what else backward needs (masks, norms).
    """
    tape = Tape(autocast=setting.autocast_dtype, inventory=inventory)
    tape.dtensor_gradients = setting.uses_dtensor
    ctx = Context(tape, setting)
    output_value = embedding_forward(ctx, embedding, dtype)
    forward_peak = peak_of(tape)
    output_spec = (output_value.shape, output_value.dtype)
    live_after_forward = tape.live
    if ctx.model_outputs and ctx.model_outputs[0].storage is not output_value.storage:
        ctx.model_outputs.clear()
    freed = live_after_forward - tape.live
    ctx.model_outputs.clear()
    curve = curve_without_input(tape, ctx, output_value, forward_peak)._replace(freed_input_bytes=freed)
    if not (embedding.rows_are_leaf and embedding.takes_image_tokens):
        return curve
    leaf_bytes = gradient_bytes = rounded_bytes(*output_spec)
    return curve._replace(until_backward_ends=leaf_bytes + gradient_bytes)


def _clone(ctx: Context, x: Value) -> Value:
    """Clone the embedding's output, [tokens, hidden], as Zamba 2 does: ``torch.clone(inputs_embeds)``.

    Layers hold the clone as an argument and send it gradients. Clone and gradients live from the first such layer to
    the embedding, and are counted outside the units. Source: modeling_zamba2.py.
    """
    tape = ctx.tape
    if not x.needs_grad:  # a variable of the model's forward and an argument of checkpoints, without a graph
        ctx.inner_checkpoint_saved.append(tape.new(x.shape, x.dtype, "original hidden states"))
        return x
    originals = [tape.new(x.shape, x.dtype, "original hidden states") for _ in range(2)]
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, GRAD_UNCHANGED, saves=originals)


def _token_table(ctx: Context, embedding_config: Embedding) -> Parameter:
    """Register the token table [vocabulary, width] on this rank.

    The head's gradient of a tied table waits in AccumulateGrad's buffer. Both gradients are added into a third tensor
    (aten::add, never add_, for a leaf that is used twice: seen in torch 2.13 with plain tensors), which is the result.
    """
    tape, setting = ctx.tape, ctx.setting
    has_grad = setting.has_grad or embedding_config.tied or embedding_config.is_encoder_lookup
    shape = (embedding_config.vocab, embedding_config.width)
    trained = _trains_tables(ctx, embedding_config) and not embedding_config.table_frozen
    table = ctx.register(Parameter("embed_tokens", shape, ctx.dtype_of("embed_tokens"), trained, has_grad=has_grad))
    if embedding_config.tied:
        in_backward = setting.optimizer_in_backward
        optimizer_step = ctx.step(in_backward) if in_backward is not None else _forget
        if embedding_config.adds_to_head_gradient:
            table.consume_gradient = optimizer_step
        else:
            table.consume_gradient = lambda grad: optimizer_step(
                tape.new(grad.shape, grad.dtype, "sum of tied gradients")
            )
    return table


def embedding_forward(ctx: Context, embedding_config: Embedding, dtype: str) -> Value:
    """Compute ``inputs_embeds`` on this rank: token look-up, scale, positions, token types, norm, dropout.

    Returns [residual tokens, hidden], or [residual tokens * streams, hidden]. ``dtype``: of the looked-up rows. The
    order of the steps, and what variables keep alive, is that of each family's ``forward``.
    """
    tape, is_inline = ctx.tape, not embedding_config.is_separate_module
    x = _look_up(ctx, embedding_config, dtype)
    if embedding_config.scale in ("module", "model"):
        x = scale(tape, x, "embedding scale")
    # modeling_opt.py, `inputs_embeds = self.project_in(inputs_embeds)`
    if embedding_config.projects_rows and is_inline:
        shape = (ctx.setting.hidden, embedding_config.width)
        matrix = ParameterTensor("project_in.weight", shape, "embedding", linear=True)
        x = linear(tape, x, ctx.weights(matrix, bias=False), "project_in")
    if embedding_config.embedders:
        x = _with_other_tokens(ctx, embedding_config, x)
    if embedding_config.per_layer is not None:
        x = _with_per_layer_inputs(ctx, embedding_config, embedding_config.per_layer, x)
    if embedding_config.layers_read_copy:
        x = _clone(ctx, x)
    if is_inline:
        ctx.model_outputs.append(x)  # `inputs_embeds`, a variable of the model's forward
    if embedding_config.scale == "named":  # T5Gemma: the result is another variable
        x = scale(tape, x, "embedding scale")
    if embedding_config.streams > 1:
        x = _parallel_streams(ctx, embedding_config, x)
    if embedding_config.token_type_rows:
        x = add(tape, x, _token_types(ctx, embedding_config, dtype), "add token types")
    if embedding_config.position_rows or embedding_config.positions_are_buffer:
        position = _positions(ctx, embedding_config, dtype)
        if is_inline:
            ctx.model_outputs.append(position)  # a variable, too
        x = _add_positions(tape, x, position)
        del position
    return _after_sum(ctx, embedding_config, x)


def _trains_tables(ctx: Context, embedding: Embedding) -> bool:
    """Say whether the tables get gradients in this unit."""
    return embedding.trained and (ctx.setting.trained or embedding.trains_copy_of_table)


def _look_up(ctx: Context, embedding_config: Embedding, dtype: str) -> Value:
    """Look the tokens up in the table: [residual tokens, width]. Hooks and tensor parallelism change the output."""
    tape = ctx.tape
    table = _token_table(ctx, embedding_config)
    x = embedding(tape, table, (ctx.tokens,), dtype)
    table_norm = embedding_config.norm if isinstance(embedding_config.norm, TableNorm) else None
    x = layers_of(ctx.setting.style).norm(ctx, table_norm, x)
    # without a later step the leaf is the first block's input, which is counted there
    if embedding_config.rows_are_leaf and (
        _has_later_steps(embedding_config, ctx.tp) or embedding_config.leaf_is_unsaved
    ):
        x = _require_grad(tape, x)
    if ctx.tp == 1:
        return x
    reduced = tape.value((ctx.residual_tokens, embedding_config.width), dtype, "reduce embedding")
    return operator(tape, reduced, x, (x.shape, dtype, "gather embedding gradient"))


def _has_later_steps(embedding: Embedding, tp: int) -> bool:
    """Tell whether an operation outside of the table's module follows the look-up."""
    has_norm = embedding.norm is not None and not isinstance(embedding.norm, TableNorm)
    is_scaled = embedding.scale in ("model", "named", "tokens")
    is_changed = has_norm or is_scaled or embedding.position_rows > 0 or embedding.dropout > 0
    return is_changed or embedding.takes_image_tokens or embedding.streams_are_copies or tp > 1


def _with_per_layer_inputs(ctx: Context, embedding: Embedding, per_layer: PerLayer, x: Value) -> Value:
    """Look up Gemma 3n's inputs of every layer, which ``x`` [tokens, hidden] contributes to; return ``x``."""
    from memcheck.frameworks.transformers.per_layer import look_up

    if embedding.rows_are_leaf and not _has_later_steps(embedding, ctx.tp):
        x = _require_grad(ctx.tape, x)  # the hook is on the table's module, which has scaled its rows
    return look_up(ctx, per_layer, embedding.per_layer_rows, x, trained=_trains_tables(ctx, embedding))


def _token_types(ctx: Context, embedding_config: Embedding, dtype: str) -> Value:
    """Look up BERT's token types, [tokens, width], in ``dtype``."""
    setting = ctx.setting
    shape = (embedding_config.token_type_rows, _width_of_sum(ctx, embedding_config))
    trained = _trains_tables(ctx, embedding_config)
    table = Parameter("token_type_embeddings", shape, setting.param_dtype, trained, has_grad=setting.has_grad)
    return embedding(ctx.tape, ctx.register(table), (ctx.tokens,), dtype, "token types")


def _width_of_sum(ctx: Context, embedding: Embedding) -> int:
    """Return the columns of what token types and positions are added to."""
    return embedding.width if embedding.is_separate_module else ctx.setting.hidden


def _with_other_tokens(ctx: Context, embedding: Embedding, x: Value) -> Value:
    """Run the embedders of other modalities, whose rows replace or join those of the text."""
    from memcheck.frameworks.transformers.per_layer import through_embedders

    inside = ctx.setting._replace(
        trained=embedding.embedders_trained, adapter=embedding.embedders_adapter, frozen_modules=()
    )
    return through_embedders(ctx, embedding.embedders, inside, embedding.pictures_without_graph, x)


def _parallel_streams(ctx: Context, embedding: Embedding, x: Value) -> Value:
    """Return one hidden state for each parallel residual stream, [tokens * streams, hidden].

    DeepSeek V4 repeats the embedding, Gemma 3n's AltUp projects it.
    """
    if embedding.streams_are_copies:
        from memcheck.frameworks.transformers.hyper_connections import repeated_streams

        return repeated_streams(ctx, x, embedding.streams)
    from memcheck.frameworks.transformers.altup import spread_streams

    return spread_streams(ctx, x, embedding.streams)


def _positions(ctx: Context, embedding_config: Embedding, dtype: str) -> Value:
    """Look up learned positions, or copy sinusoidal ones out of a buffer (``index_select(...).detach()``).

    ``dtype``: of learned positions. Returns [sequence, width], or [tokens, width] if the family looks them up for each
    sequence.
    """
    setting, width = ctx.setting, _width_of_sum(ctx, embedding_config)
    if embedding_config.positions_are_buffer:
        return ctx.tape.value((ctx.tokens, width), setting.param_dtype, "positions")
    trained = embedding_config.trained and setting.trained and not embedding_config.positions_are_frozen
    shape = (embedding_config.position_rows, width)
    table = Parameter("embed_positions", shape, setting.param_dtype, trained, has_grad=setting.has_grad)
    rows = ctx.tokens if embedding_config.positions_each else ctx.sequence
    return embedding(ctx.tape, ctx.register(table), (rows,), dtype, "positions")


def _after_sum(ctx: Context, embedding: Embedding, x: Value) -> Value:
    """Apply what follows the sum of words, types and positions: norm, dropout, a projection, DeBERTa's mask and table.

    ``x``: [tokens, width]. Returns [tokens, hidden].
    """
    tape, setting = ctx.tape, ctx.setting
    trained = embedding.trained and setting.trained
    x = layers_of(setting.style).norm(ctx, None if isinstance(embedding.norm, TableNorm) else embedding.norm, x)
    if embedding.masks_rows:
        from memcheck.frameworks.transformers.disentangled import masked_rows, with_relative_rows

        x = masked_rows(ctx, x)
        x = dropout(tape, x, embedding.dropout)
        if embedding.relative_positions is None or not embedding.relative_positions.rows:
            return x
        return with_relative_rows(ctx, embedding.relative_positions, x, trained)
    x = dropout(tape, x, embedding.dropout)
    if embedding.bias_table_shape[0]:
        from memcheck.frameworks.transformers.position_bias import with_biases

        return with_biases(ctx, embedding.bias_table_shape, x, trained)
    if not (embedding.projects_rows and embedding.is_separate_module):
        return x
    matrix = ParameterTensor("embeddings_project.weight", (setting.hidden, embedding.width), "embedding", linear=True)
    return linear(tape, x, ctx.weights(matrix, bias=True), "embeddings_project")


def _require_grad(tape: Tape, x: Value) -> Value:
    """Make the looked-up rows a leaf that needs a gradient, as the hook of ``enable_input_require_grads`` does."""
    x.origin = Leaf()
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, GRAD_UNCHANGED, saves=(x,))


def _forget(storage: Storage) -> None:
    """Do not count these bytes: they take the place of the pending gradient, which is already counted."""


def _add_positions(tape: Tape, x: Value, position: Value) -> Value:
    """Add positions to ``x``, [tokens, width]. If sequences share them, their gradient is a sum over sequences."""
    if position.numel == x.numel:
        return add(tape, x, position, "add positions")
    out = tape.value(x.shape, x.dtype, "add positions")
    shape, dtype = position.shape, position.dtype
    return tape.record(out, (x, position), lambda grad: [grad, tape.new(shape, dtype, "sum")])
