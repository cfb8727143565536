"""Inkling, text (modeling_inkling.py): attention with biases of distances, short convolutions after keys, values,
attention and feed-forward network, experts that shared ones are weighted with.
"""

from __future__ import annotations

from memcheck.models.attention_types import Relative
from memcheck.models.families.deepseek import mtp_layers
from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp, routed
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.sizes import Names, StackDimensions, check_groups, read_sizes
from memcheck.models.parts.stack import layer_types, sparse_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Mlp, Moe, ParameterTensor

NAMES = Names(positions=("max_position_embeddings", "model_max_length"))
SLIDING, FULL = "hybrid_sliding", "hybrid"
PERIOD = 6
"""By default every sixth layer has no window."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: inkling_text``, with the keys of the hub's files, too."""
    config.ignore("log_scaling_alpha", "route_scale", "rms_norm_eps_moe_gate", "shared_expert_sink")
    config.ignore("number_of_conv_states", "mtp_local_layer_ids", "chain_hidden_post_norm", "mtp_hidden_states_first")
    config.ignore("embedding_multiplier", "logits_mup_width_multiplier", "use_embed_norm", "use_sconv", "use_gate_bias")
    config.ignore("gate_activation", "norm_after_topk", "use_global_scale")  # of the hub's files: the class reads none
    size = read_sizes(config, NAMES, kv_heads="required", head_dim=128)
    h, layers = size.hidden, size.layers
    kernel = config.integer("conv_kernel_size", "sconv_kernel_size", default=4)
    width, extent = config.integer("d_rel", default=16), config.integer("rel_extent", default=1024)
    window = config.integer("sliding_window_size", "sliding_window", default=512)
    scaled = config.optional_integer("log_scaling_n_floor") is not None
    narrow = windowed_sizes(config, size, (64, 16))
    full = _attention(config, size, Relative(width, extent, kernel, scaled=scaled))
    sliding = _attention(config, narrow, Relative(width, window, kernel))._replace(window=window)
    dense, experts = config.optional_integer("dense_intermediate_size"), config.integer("intermediate_size")
    activation = config.activation()
    moe = _experts(config, h, experts if dense else config.integer("moe_intermediate_size"), activation)
    mlp = _dense(h, dense or experts, activation)
    sparse = sparse_types(config, layers, config.integer("dense_mlp_idx", default=0, null=0, minimum=0))
    mtp = mtp_layers(config, ("num_mtp_layers",))
    if config.flag("tie_word_embeddings"):
        config.fail("tie_word_embeddings", "the class has an embedding and a head of their own", "write false")
    behind = tuple(ParameterTensor(f"{n}_sconv.conv1d.weight", (h, 1, kernel), "mixer") for n in ("attn", "mlp"))

    def make(kind: tuple[bool, bool]) -> Block:
        return Block(
            mixer=full if kind[0] else sliding,
            mlp=moe if kind[1] else mlp,
            input_norm=rms_norm(h, "input_layernorm"),
            mlp_norm=rms_norm(h, "post_attention_layernorm"),
            extra_tensors=behind,
            convolutions=True,
        )

    kept = config.integer("unpadded_vocab_size", default=size.vocab, null=size.vocab)
    return decoder(
        config,
        size,
        stack(zip(_kinds(config, layers), sparse, strict=True), make),
        tied=False,
        rotary_dim=0,
        embedding_norm=rms_norm(h, "model.embed_tokens.embed_norm"),
        table_norm=True,
        head_input_scale=True,
        kept_words=kept if kept < size.vocab else 0,
        mask_windows=(None, window),
        mtp_layers=mtp,
        kept_wide=("_sconv.", "gate.global_scale"),
    )


def _kinds(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers see every token: those of ``layer_types``, else those that ``local_layer_ids`` does not name."""
    local = config.integers("local_layer_ids")
    named = {i for i in range(layers) if (i + 1) % PERIOD} if local is None else set(local)
    types = layer_types(config, layers, lambda i: SLIDING if i in named else FULL, (SLIDING, FULL))
    return tuple(t == FULL for t in types)


def windowed_sizes(config: ConfigReader, size: StackDimensions, default: tuple[int, int]) -> StackDimensions:
    """Heads of the windowed layers, which have their own. ``default``: the class's."""
    heads = config.integer("swa_num_attention_heads", default=default[0])
    kv_heads = config.integer("swa_num_key_value_heads", default=default[1])
    check_groups(config, heads, kv_heads, "swa_num_key_value_heads")
    return size._replace(heads=heads, kv_heads=kv_heads, head_dim=config.integer("swa_head_dim", default=128))


def _attention(config: ConfigReader, size: StackDimensions, relative: Relative) -> Attention:
    keys, a = size.kv_heads * size.head_dim, "self_attn."
    return grouped_attention(
        size,
        rotary_dim=0,
        query_norm=head_norm("rmsnorm", size.head_dim, "q"),
        key_norm=head_norm("rmsnorm", size.head_dim, "k"),
        flash=False,
        dropout=config.dropout("attention_dropout"),
        relative=relative,
        tensors=(
            *linear(a + "r_proj", size.heads * relative.width, size.hidden, "attention", "none"),
            ParameterTensor(a + "k_sconv.conv1d.weight", (keys, 1, relative.kernel), "attention"),
            ParameterTensor(a + "v_sconv.conv1d.weight", (keys, 1, relative.kernel), "attention"),
            ParameterTensor(a + "rel_logits_proj.proj", (relative.width, relative.extent), "attention"),
        ),
    )


def _dense(hidden: int, width: int, activation: str) -> Mlp:
    found = gated_mlp(hidden, width, activation)
    scale = ParameterTensor("mlp.global_scale", (1,), "mlp")
    return found._replace(scaled_output=True, tensors=(*found.tensors, scale))


def _experts(config: ConfigReader, hidden: int, width: int, activation: str) -> Moe:
    number = config.integer("n_routed_experts", "num_local_experts")
    shared = config.integer("n_shared_experts", default=2)
    found = routed(hidden, (number, config.integer("num_experts_per_tok")), width, activation, router="sigmoid-sink")
    tensors = tuple(t for t in found.tensors if t.group != "router")
    stacked = ((shared, width, hidden), (shared, width, hidden), (shared, hidden, width))
    return found._replace(
        correction_bias=True,
        shared_width=shared * width,
        tensors=(
            ParameterTensor("mlp.gate.weight", (number + shared, hidden), "router"),
            ParameterTensor("mlp.gate.global_scale", (1,), "router"),
            *tensors,
            *(
                ParameterTensor(f"mlp.shared_experts.{name}_proj", shape, "shared_experts")
                for name, shape in zip(("gate", "up", "down"), stacked, strict=True)
            ),
        ),
    )
