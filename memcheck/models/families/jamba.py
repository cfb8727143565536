"""Jamba (modeling_jamba.py): Mamba's first mixer, attention in one layer of each period, experts in every second."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, grouped_attention, read_sizes, rms_norm, routed, stack
from memcheck.models.families.mamba import hybrid_scan, refuse_mambapy
from memcheck.models.module_types import NORMALISED_SCORES
from memcheck.models.reader import ConfigReader
from memcheck.models.recurrent import mamba1
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: jamba``.

    Mamba layers, attention in one layer of each period, and experts in one layer of another period.
    """
    size = read_sizes(config, kv_heads="required")
    hidden, width, activation = size.hidden, config.integer("intermediate_size"), config.activation()
    config.ignore("use_mamba_kernels", "use_associative_scan", "layer_types", "layers_block_type", "layers_num_experts")
    config.ignore("num_logits_to_keep", "mamba_inner_layernorms", "sliding_window", "calc_logits_for_entire_prompt")
    refuse_mambapy(config)
    sizes = hybrid_scan(config, hidden)._replace(norms=True)
    mamba = mamba1(hidden, sizes)
    attention = grouped_attention(size, rotary_dim=0, dropout=config.dropout("attention_dropout"))
    experts = config.integer("num_experts", "num_local_experts", default=16)
    experts_per_token = config.integer("num_experts_per_tok", default=2)
    dense = gated_mlp(hidden, width, activation, module="feed_forward")
    sparse = routed(
        hidden,
        (experts, experts_per_token),
        width,
        activation,
        module="feed_forward",
        names=("router", "shared_experts"),
        routing=NORMALISED_SCORES._replace(normalised=False),
    )
    attention_period, attention_offset = _period(config, "attn_layer", 8, 4)
    expert_period, expert_offset = _period(config, "expert_layer", 2, 1)

    def build_layer(kind: tuple[bool, bool]) -> Block:
        """Build one layer. ``kind``: whether it has attention in place of Mamba, and whether it may have experts."""
        has_attention, has_experts = kind
        return Block(
            mixer=attention if has_attention else mamba,
            mlp=sparse if has_experts and experts > 1 else dense,
            input_norm=rms_norm(hidden, "input_layernorm"),
            mlp_norm=rms_norm(hidden, "pre_ff_layernorm"),
        )

    kinds = [(i % attention_period == attention_offset, i % expert_period == expert_offset) for i in range(size.layers)]
    final_norm = rms_norm(hidden, "model.final_layernorm")
    return decoder(config, size, stack(kinds, build_layer), tied=False, final_norm=final_norm, rotary_dim=0)


def _period(config: ConfigReader, name: str, period: int, offset: int) -> tuple[int, int]:
    """Return the distance between two layers of a kind, and the index of the first: ``<name>_period``,
    ``<name>_offset``.

    ``period``, ``offset``: defaults.
    """
    layers_apart = config.integer(f"{name}_period", default=period)
    first = config.integer(f"{name}_offset", default=offset, minimum=0)
    if first >= layers_apart:
        config.fail(f"{name}_offset", f"{name}_offset = {first} is not below {name}_period = {layers_apart}")
    return layers_apart, first
