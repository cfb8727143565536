"""MiniMax Text 01 and M2 (modeling_minimax.py, modeling_minimax_m2.py)."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    grouped_attention,
    head_norm,
    layer_types,
    linear,
    pre_norm_block,
    read_sizes,
    routed,
    stack,
)
from memcheck.models.module_types import NORMALISED_SCORES
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import generation_bytes
from memcheck.models.types import Architecture, Block, Mixer, ParameterTensor


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: minimax``: lightning attention, with softmax attention in between; the
    norms' outputs carry on.
    """
    size = read_sizes(config, kv_heads="required")
    for half in ("full_attn", "linear_attn", "mlp"):
        config.ignore(f"{half}_alpha_factor", f"{half}_beta_factor")
    config.ignore("rotary_dim", "postnorm", "layernorm_full_attention_alpha", "shared_intermediate_size")
    softmax = grouped_attention(size, window=config.window(), dropout=config.dropout("attention_dropout"))
    activation = config.activation()
    lightning = _lightning(config, size)
    moe = routed(
        size.hidden,
        _choice(config),
        config.integer("intermediate_size"),
        activation,
        routing=NORMALISED_SCORES._replace(scores_fp32=True),
    )
    layer_kinds = layer_types(config, size.layers, lambda i: "linear_attention" if i % 2 else "full_attention")

    def build_layer(kind: str) -> Block:
        """Build one layer. ``kind``: ``linear_attention`` or ``full_attention``."""
        mixer = lightning if kind == "linear_attention" else softmax
        block = pre_norm_block(size.hidden, mixer, moe)
        return block._replace(branch_scale="constant", residual="normed")

    return decoder(config, size, stack(layer_kinds, build_layer), tied=False, mask_windows=(softmax.window,))


def read_m2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: minimax_m2``: norms over all queries and all keys, sigmoid router with a
    correction bias.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    rotary_dim = config.optional_integer("rotary_dim")
    config.ignore(
        "attn_type_list",
        "mlp_intermediate_size",
        "mtp_transformer_layers",
        "num_mtp_modules",
        "qk_norm_type",
        "shared_intermediate_size",
        "shared_moe_mode",
        "use_mtp",
        "use_qk_norm",
        "use_routing_bias",
    )
    attention = grouped_attention(
        size,
        rotary_dim=rotary_dim or int(size.head_dim * config.rotary_fraction()),
        query_norm=head_norm("rmsnorm", size.heads * size.head_dim, "q"),
        key_norm=head_norm("rmsnorm", size.kv_heads * size.head_dim, "k"),
        dropout=config.dropout("attention_dropout"),
    )
    width = config.integer("intermediate_size")
    moe = routed(
        size.hidden,
        _choice(config),
        width,
        config.activation(),
        router="sigmoid",
        routing=NORMALISED_SCORES._replace(scores_fp32=True),
    )
    block = pre_norm_block(size.hidden, attention, moe)
    return decoder(config, size, ((block, size.layers),), tied=False, rotary_dim=attention.rotary_dim)


def _choice(config: ConfigReader) -> tuple[int, int]:
    return config.integer("num_local_experts", "num_experts"), config.integer("num_experts_per_tok")


def _lightning(config: ConfigReader, size: StackDimensions) -> Mixer:
    """Build MiniMax's lightning attention: linear attention with constant decay tables per layer.

    For generation, each sequence keeps a state of [heads, head_dim, head_dim].
    """
    width, hidden, module = size.heads * size.head_dim, size.hidden, "self_attn"
    block = config.integer("block_size", default=256)
    tensors = (
        *linear(f"{module}.qkv_proj", 3 * width, hidden, "mixer", "column"),
        *linear(f"{module}.output_gate", width, hidden, "mixer", "column"),
        *linear(f"{module}.out_proj", hidden, width, "mixer", "row"),
        ParameterTensor(f"{module}.norm.weight", (width,), "norm"),
    )
    tables = size.heads * (block * block + 2 * block + 1)
    state = generation_bytes(state=width * size.head_dim)
    return Mixer(
        kind="lightning",
        heads=size.heads,
        head_dim=size.head_dim,
        state_bytes_per_sequence=state,
        width=3 * width,
        tensors=tensors,
        buffer_numel=tables,
        key_heads=0,
        key_dim=0,
        kernel=0,
        chunk=0,
    )
