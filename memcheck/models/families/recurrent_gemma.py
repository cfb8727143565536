"""RecurrentGemma (modeling_recurrent_gemma.py): two recurrent layers, then one of windowed attention."""

from __future__ import annotations

from memcheck.models.families.gemma import NORM, TANH_GELU
from memcheck.models.parts.attention import Projections, grouped_attention
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.parts.stack import stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Mixer, ParameterTensor

TYPES = ("recurrent", "attention")
ROTATED = 0.5
MODULE = "temporal_block"


def read(config: ConfigReader) -> Architecture:
    """``model_type: recurrent_gemma``: ``block_types`` is repeated over the layers; the logits are always capped."""
    size = read_sizes(config, head_dim_key=False)
    config.ignore("w_init_variance_scale", "final_w_init_variance_scale", "logits_soft_cap", "head_dim")
    config.ignore("layers_block_type", "layer_types", "embeddings_scale_by_sqrt_dim")
    h, window = size.hidden, config.integer("attention_window_size", "sliding_window", default=2048)
    if config.activation("hidden_activation", default=TANH_GELU) != TANH_GELU:
        config.fail("hidden_activation", f"only {TANH_GELU} has a memory model here")
    attention = grouped_attention(
        size,
        Projections(module=MODULE),
        qkv_bias=config.flag("attention_bias"),
        out_bias=True,
        rotary_dim=int(size.head_dim * config.rotary_fraction(ROTATED)),
        rotary_form="half-own",
        dropout=config.dropout("attention_dropout"),
        window=window,
    )
    recurrent = _recurrent(config, h, size.heads)
    mlp = gated_mlp(h, config.integer("intermediate_size") // 2, TANH_GELU, bias=True, module="mlp_block")

    def make(kind: str) -> Block:
        return Block(
            mixer=attention if kind == "attention" else recurrent,
            mlp=mlp,
            input_norm=rms_norm(h, "temporal_pre_norm", NORM),
            mlp_norm=rms_norm(h, "channel_pre_norm", NORM),
            named_norm=True,
        )

    types = config.texts("block_types") or ("recurrent", "recurrent", "attention")
    strange = next((t for t in types if t not in TYPES), None)
    if strange is not None:
        config.fail("block_types", f"unknown kind of layer {strange!r}", f"known: {', '.join(TYPES)}")
    found = decoder(
        config,
        size,
        stack((types[i % len(types)] for i in range(size.layers)), make),
        tied=True,
        final_norm=rms_norm(h, "model.final_norm", NORM),
        mask_windows=(window,),
        final_softcap=True,
        embedding_scale=True,
        scales_behind=True,
    )
    return found._replace(rotary_tables=0, rotary_dim=0)


def _recurrent(config: ConfigReader, hidden: int, heads: int) -> Mixer:
    width = config.integer("lru_width", default=hidden, null=hidden)
    if width % heads:
        config.fail("lru_width", f"a recurrence of {width} channels has no {heads} equal heads", "use a multiple")
    kernel, each, gates = config.integer("conv1d_width", default=4), width // heads, f"{MODULE}.rg_lru"
    tensors = [
        *linear(f"{MODULE}.linear_y", width, hidden, "mixer", "column", bias=True),
        *linear(f"{MODULE}.linear_x", width, hidden, "mixer", "column", bias=True),
        *linear(f"{MODULE}.linear_out", hidden, width, "mixer", "row", bias=True),
        ParameterTensor(f"{MODULE}.conv_1d.weight", (width, 1, kernel), "mixer"),
        vector(f"{MODULE}.conv_1d.bias", width, "mixer"),
        vector(f"{gates}.recurrent_param", width, "mixer"),
    ]
    for name in ("input_gate", "recurrent_gate"):
        tensors += [
            ParameterTensor(f"{gates}.{name}_weight", (heads, each, each), "mixer"),
            ParameterTensor(f"{gates}.{name}_bias", (heads, each), "mixer"),
        ]
    return Mixer(
        kind="rg-lru",
        heads=heads,
        head_dim=each,
        state_bytes_per_sequence=4 * width + 2 * width * (kernel - 1),
        width=width,
        tensors=tuple(tensors),
        kernel=kernel,
    )
