"""One decoder layer as transformers writes it, with cross-attention, and the door to its other layers."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.curve import Forward, checkpointed
from memcheck.autograd.modules import normalise as norm
from memcheck.autograd.operator import add, add_in_place, cast, clamp, dropout, mul, scale, scale_in_place, unary
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.attention import attention
from memcheck.frameworks.transformers.head import head_unit, loss_in_pieces
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.modules import forward_of
from memcheck.frameworks.transformers.rotary import rotary_caches, rotary_tables
from memcheck.models.module_types import BloomAttention, StreamMoe
from memcheck.models.types import (
    Attention,
    Block,
    ClampedBlock,
    CrossAttention,
    Gemma4Block,
    HyperConnections,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    NormsFirstBlock,
    PerLayer,
    PictureBlock,
    SharedTransformerBlock,
    WideStreamBlock,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.vision import TowerAttention


PARTS = "parts:"
"""In front of the modules that are recomputed, in a recompute mode."""
MIXER, FEED_FORWARD = 0, 1
"""The halves of a layer."""
LEARNED = ("vector", "tanh")
"""Scales of a layer's branches that are parameters (``Block.branch_scale``)."""
__all__ = [
    "PARTS",
    "block",
    "block_parts",
    "feed_forward",
    "head_unit",
    "loss_in_pieces",
    "norm",
    "recomputing",
    "rotary_caches",
    "rotary_tables",
]


def mixer_forward(
    ctx: Context, mixer: Attention | LatentAttention | Mixer | TowerAttention, x: Value, stream: str
) -> Value:
    """Run the token mixer of a block: attention, latent attention, a recurrent mixer or a vision tower's attention.

    ``x``: [tokens, hidden]; so is what is returned. ``stream``: dtype of the residual stream.
    """
    own_forward = forward_of(mixer)
    if own_forward is not None:
        return own_forward(ctx, mixer, x, stream)
    if isinstance(mixer, Attention):
        return attention(ctx, mixer, x, stream)
    if isinstance(mixer, LatentAttention):
        from memcheck.frameworks.transformers.latent import latent_attention

        return latent_attention(ctx, mixer, x, stream)
    if isinstance(mixer, Mixer):
        from memcheck.frameworks.transformers.mixer import recurrent_mixer

        return recurrent_mixer(ctx, mixer, x)
    from memcheck.families.towers.attention import tower_attention

    return tower_attention(ctx, mixer, x)


def feed_forward(ctx: Context, mlp_config: Mlp | Moe, x: Value) -> Value:
    """Run the feed-forward half of a block, dense or routed. ``x``: [tokens, hidden]."""
    if isinstance(mlp_config, Mlp):
        own_forward = forward_of(mlp_config)
        return mlp(ctx, mlp_config, x) if own_forward is None else own_forward(ctx, mlp_config, x)
    from memcheck.frameworks.transformers.moe import moe

    return moe(ctx, mlp_config, x)


def block(ctx: Context, layer: Block, x: Value) -> Value:
    """Run one decoder layer, ``hidden_states = layer(hidden_states)``, and drop what lived only to its end.

    ``x``: [tokens, hidden]. Layers that share their weights with another layer are marked, so that the weights count
    once.
    """
    is_shared_transformer = isinstance(
        layer, SharedTransformerBlock
    )  # the class itself separates shared from own tensors
    ctx.weights_of_later_layer, ctx.weights_of_earlier_layer = (
        layer.shared_with.later and not is_shared_transformer,
        layer.shared_with.earlier and not is_shared_transformer,
    )
    try:
        return block_parts(ctx, layer, x)
    finally:  # a recompute may end early
        ctx.weights_of_later_layer = ctx.weights_of_earlier_layer = False
        ctx.unused_outputs = []
        ctx.position_biases = []


def block_parts(ctx: Context, block: Block, x: Value) -> Value:
    """Run the halves of one decoder layer in transformers' order: mixer, cross-attention, feed-forward.

    ``x``: [tokens, hidden]. Parallel blocks give both halves the same input. A family with an order of its own brings
    its own forward.
    """
    stream = x.dtype
    own_forward = forward_of(block)
    if own_forward is not None:
        return own_forward(ctx, block, x)
    if isinstance(block.extension, HyperConnections):
        from memcheck.frameworks.transformers.hyper_connections import hyper_block

        return hyper_block(ctx, block, x)
    if block.parallel:
        return _parallel(ctx, block, x, stream)
    if block.mixer is not None:
        x = _clamped(ctx, block, _mixer_half(ctx, block, x, stream))
    if block.cross is not None:
        x = _clamped(ctx, block, cross_half(ctx, block, block.cross, x))
        del ctx.unused_outputs[:-1]  # `hidden_states, _ = ...`: one name for both modules' weights
    if block.mlp is not None:
        x = _clamped(ctx, block, _mlp_half(ctx, block, block.mlp, x))
    if isinstance(block.extension, PerLayer):
        from memcheck.frameworks.transformers.per_layer import with_per_layer_input

        x = with_per_layer_input(ctx, block, x)
    return scale_in_place(ctx.tape, x) if isinstance(block, Gemma4Block) else x


def _clamped(ctx: Context, block: Block, x: Value) -> Value:
    """Clamp fp16 hidden states, as T5Block does after each half: it looks for infinities in an absolute copy.

    Source: transformers 5.23 models/t5/modeling_t5.py.
    """
    if not isinstance(block, ClampedBlock) or x.dtype != "fp16":
        return x
    absolute = ctx.tape.new(x.shape, x.dtype, "absolute values")
    is_inf = ctx.tape.new(x.shape, "bool", "infinities")
    del absolute, is_inf
    return clamp(ctx.tape, x, 2)


def recomputing(layer: Block, mode: str) -> tuple[Forward, bool]:
    """Return the layer's forward under a recompute mode, and whether the whole layer is checkpointed.

    ``mode``: ``full``, or for example ``parts:self_attn,mlp``, where each of these modules is checkpointed by itself.
    """
    if not mode.startswith(PARTS):
        return lambda ctx, x: block(ctx, layer, x), mode == "full"
    parts = frozenset(mode.removeprefix(PARTS).split(","))

    def forward(ctx: Context, x: Value) -> Value:
        ctx.checkpointed_modules = parts
        return block(ctx, layer, x)

    return forward, False


def _part(ctx: Context, name: str, forward: Forward, x: Value) -> Value:
    """Run one module of the layer, under torch's ``checkpoint_wrapper`` if the plan names the module."""
    return checkpointed(ctx, forward, x) if name in ctx.checkpointed_modules else forward(ctx, x)


def _mixer_half(ctx: Context, block: Block, x: Value, stream: str) -> Value:
    """Run the first half of a layer: input norm, token mixer, dropout, residual addition.

    ``x``: [tokens, hidden]. ``stream``: dtype of the residual stream. With a ``post-norm`` residual the norm follows
    the addition. Variables of transformers' code are kept as long as it keeps them.
    """
    if block.mixer is None:
        return x
    norm_input = cast(ctx.tape, x, ctx.setting.param_dtype) if isinstance(block, WideStreamBlock) else x
    if ctx.setting.rotary_table_rows:  # FSDP2 has cast what the layer is given (``cast_forward_inputs``)
        x = norm_input
    hidden_states = norm_input
    if block.residual != "post-norm":
        hidden_states = _part(ctx, "input_layernorm", lambda ctx, x: norm(ctx, block.input_norm, x), norm_input)
    del norm_input
    residual = hidden_states if block.residual == "normed" else x
    if isinstance(block, WideStreamBlock):  # the first layer's input is as narrow as the weights
        residual = x = cast(ctx.tape, x, "fp32")
    if block.lives_to_forward_end.input_norm_output:
        ctx.unused_outputs.append(hidden_states)
    if isinstance(block.mixer, BloomAttention):
        ctx.attention_locals.append(hidden_states)
    module_input = hidden_states if block.dropout_place == "inner" else None
    hidden_states = _part(ctx, "self_attn", lambda ctx, x: _mixed(ctx, block, x, stream), hidden_states)
    hidden_states = norm(ctx, block.mixer_output_norm, hidden_states)
    hidden_states = dropout(ctx.tape, hidden_states, block.dropout)
    del module_input
    if block.lives_to_forward_end.mixer_output and block.branch_scale not in LEARNED:
        ctx.unused_outputs.append(hidden_states)
    x = _residual(ctx, block, residual, hidden_states, half=MIXER)
    ctx.attention_locals = []
    return norm(ctx, block.input_norm, x) if block.residual == "post-norm" else x


def _mixed(ctx: Context, block: Block, h: Value, stream: str) -> Value:
    """Run the block's token mixer, or attention and a recurrent mixer in parallel."""
    if block.mixer is None or block.second_mixer is not None:
        return _both_mixers(ctx, block, h, stream)
    return mixer_forward(ctx, block.mixer, h, stream)


def _both_mixers(ctx: Context, block: Block, hidden_states: Value, stream: str) -> Value:
    """Run Falcon-H1's recurrent mixer and its attention on the same input, and add both outputs.

    ``hidden_states``: [tokens, hidden]. Each output is multiplied by a constant first. Source: modeling_falcon_h1.py.
    """
    tape = ctx.tape
    if block.second_mixer is None or block.mixer is None:
        return hidden_states
    recurrent = scale(
        tape, mixer_forward(ctx, block.second_mixer, scale(tape, hidden_states, "ssm multiplier"), stream), "multiplier"
    )
    attended = scale(tape, mixer_forward(ctx, block.mixer, hidden_states, stream), "multiplier")
    return add(tape, recurrent, attended, "both mixers")


def _mlp_half(ctx: Context, block: Block, mlp: Mlp | Moe, x: Value) -> Value:
    """Run the second half of a layer: norm, feed-forward, dropout, residual addition.

    ``x``: [tokens, hidden]. With a ``post-norm`` residual the norm follows the addition. Variables of transformers'
    code are kept as long as it keeps them.
    """
    if block.residual == "post-norm":
        hidden_states = x.view(*x.shape)
    else:
        hidden_states = _part(ctx, "post_attention_layernorm", lambda ctx, x: norm(ctx, block.mlp_norm, x), x)
    residual = hidden_states if block.residual == "normed" else x
    module_input = hidden_states if block.dropout_place == "inner" else None
    input_variable = hidden_states if block.lives_to_forward_end.mlp_input else None
    if isinstance(mlp, StreamMoe):
        from memcheck.frameworks.transformers.moe import experts_beside

        hidden_states = experts_beside(ctx, mlp, hidden_states, x)
    else:
        hidden_states = _part(ctx, "mlp", lambda ctx, x: feed_forward(ctx, mlp, x), hidden_states)
    hidden_states = norm(ctx, block.mlp_output_norm, hidden_states)
    hidden_states = dropout(ctx.tape, hidden_states, 0.0 if block.dropout_place == "mixer" else block.dropout)
    if isinstance(block, PictureBlock):
        row_mask = Value(None, (hidden_states.shape[0], 1), ctx.setting.param_dtype)
        hidden_states = mul(ctx.tape, row_mask, hidden_states, "masked rows")
    del module_input
    x = _residual(ctx, block, residual, hidden_states, half=FEED_FORWARD)
    del input_variable
    return norm(ctx, block.mlp_norm, x) if block.residual == "post-norm" else x


def _residual(ctx: Context, block: Block, residual: Value, hidden_states: Value, *, half: int) -> Value:
    """Add the output of a half to the residual: ``residual + h``, both [tokens, hidden], scaled as the family does.

    Granite multiplies h by a constant, MiniMax multiplies both. InternViT multiplies h by a learned vector, Llama 3.2
    Vision by the tanh of a learned number. ``half``: MIXER or FEED_FORWARD, which is the factor's place in
    ``extra_tensors``.
    """
    tape = ctx.tape
    if block.extra_tensors and block.branch_scale in LEARNED:
        learned = block.extra_tensors[half]
        factor = tape.parameter(ctx.parameter(learned.name, learned.shape))
        if block.branch_scale == "tanh":
            factor = unary(tape, factor, "tanh")
        scaled = mul(tape, factor, hidden_states, "layer scale")
        if block.lives_to_forward_end.mixer_output:  # a variable of the layer's forward has it, though nothing reads it
            ctx.unused_outputs.append(scaled)
        return add(tape, scaled, residual, "residual")
    if block.branch_scale == "constant":
        if block.residual == "normed":
            residual = scale(tape, residual, "residual * alpha")
        scaled = scale(tape, hidden_states, "hidden * multiplier")
        return add(tape, residual, scaled, "residual")
    return add(tape, residual, hidden_states, "residual")


def _parallel(ctx: Context, block: Block, x: Value, stream: str) -> Value:
    """Run a parallel block: attention and MLP read the same residual stream (GPT-NeoX, GPT-J, Phi, Cohere, Falcon).

    ``x``: [tokens, hidden]; so is the result, ``mlp_output + attn_output + hidden_states``. The three terms and the
    first sum live until the second sum exists. ``stream``: dtype of the residual stream.
    """
    tape = ctx.tape
    normed = norm(ctx, block.input_norm, x)
    # the MLP reads the same norm's output, or that of its own norm, which runs before or after the attention
    mlp_input = None
    if block.mlp_norm is None:
        mlp_input = normed
    elif isinstance(block, NormsFirstBlock):
        mlp_input = norm(ctx, block.mlp_norm, x)
    if block.lives_to_forward_end.input_norm_output:
        ctx.unused_outputs.append(normed)
    attn_output = mixer_forward(ctx, block.mixer, normed, stream) if block.mixer is not None else None
    del normed
    if attn_output is not None:
        attn_output = dropout(tape, attn_output, block.dropout)
    if mlp_input is None:
        mlp_input = norm(ctx, block.mlp_norm, x)
    mlp_output = feed_forward(ctx, block.mlp, mlp_input) if block.mlp is not None else None
    if mlp_output is None:
        return x if attn_output is None else add(tape, attn_output, x, "residual")
    mlp_output = dropout(tape, mlp_output, block.dropout)
    halves_sum = mlp_output
    if attn_output is not None:
        # Falcon: `mlp_output += attention_output`
        sum_halves = add_in_place if isinstance(block, NormsFirstBlock) else add
        halves_sum = sum_halves(tape, mlp_output, attn_output, "residual")
    return add(tape, halves_sum, x, "residual")


def cross_half(ctx: Context, block: Block, cross: CrossAttention, x: Value) -> Value:
    """Run cross-attention to the encoder's output, between the layer's self-attention and its feed-forward network.

    ``x``: [tokens, hidden]; so is what is returned. With a ``post-norm`` residual the norm follows the addition.
    """
    hidden_states = x.view(*x.shape) if block.residual == "post-norm" else norm(ctx, cross.norm, x)
    module_input = hidden_states if block.dropout_place == "inner" else None
    hidden_states = attention(ctx, cross.attention, hidden_states, x.dtype)
    hidden_states = dropout(ctx.tape, norm(ctx, cross.output_norm, hidden_states), block.dropout)
    del module_input
    x = add(ctx.tape, x, hidden_states, "residual")
    return norm(ctx, cross.norm, x) if block.residual == "post-norm" else x
