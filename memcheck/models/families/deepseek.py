"""DeepSeek V2 and V3, Kimi K2, Moonlight (modeling_deepseek_v2.py, modeling_deepseek_v3.py)."""

from __future__ import annotations

from memcheck.models.decoder import (
    LLAMA_NAMES,
    Names,
    StackDimensions,
    decoder,
    gated_mlp,
    latent_attention,
    pre_norm_block,
    read_sizes,
    routed,
    stack,
)
from memcheck.models.module_types import ComplexLatentAttention, Routing, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, LatentAttention, Moe


def read_v2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: deepseek_v2``: softmax router; the rotary part is multiplied as complex
    numbers.
    """
    config.ignore("mlp_bias", "aux_loss_alpha", "ep_size")
    size = latent_dimensions(config)
    attention = ComplexLatentAttention(*latent_attention(config, size))
    return _assemble(config, size, attention, _routed_experts(config, size, "softmax", ("num_experts",)))


def read_v3(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: deepseek_v3``: sigmoid router with a correction bias per expert."""
    config.ignore("ep_size", "aux_loss_alpha")
    size = latent_dimensions(config)
    attention = latent_attention(config, size, interleaved=config.flag("rope_interleave", default=True))
    moe = _routed_experts(config, size, "sigmoid", ("num_local_experts",))
    return _assemble(config, size, attention, moe)


def latent_dimensions(config: ConfigReader, names: Names = LLAMA_NAMES) -> StackDimensions:
    """Read the dimensions of a model with latent attention (MLA), whose heads are never grouped."""
    config.ignore("head_dim", "qk_head_dim")
    size = read_sizes(config, names, head_dim=1, head_dim_key=False)
    if size.kv_heads != size.heads:
        config.fail(
            "num_key_value_heads", f"{size.kv_heads} key-value heads: latent attention has {size.heads}, ungrouped"
        )
    return size


def _routed_experts(config: ConfigReader, size: StackDimensions, router: str, aliases: tuple[str, ...]) -> Moe:
    """Build routed experts with shared ones. ``router``: ``softmax`` (V2) or ``sigmoid`` (V3). ``aliases``: further
    keys of the number of experts.
    """
    config.ignore("topk_method", "scoring_func", "routed_scaling_factor")
    groups = config.integer("n_group", default=1, null=1)
    width = config.integer("moe_intermediate_size")
    shared = config.integer("n_shared_experts", minimum=0, null=0)
    return routed(
        size.hidden,
        (config.integer("n_routed_experts", *aliases), config.integer("num_experts_per_tok")),
        width,
        config.activation(),
        SharedExperts(shared * width, gate=False, first=False),
        experts_first=True,
        router=router,
        routing=Routing(
            input_fp32=True,
            scores_fp32=True,
            # modeling_deepseek_v2.py reads norm_topk_prob nowhere
            normalised=config.flag("norm_topk_prob", default=True) and router == "sigmoid",
            groups=(groups, config.integer("topk_group", default=groups, null=groups)),
        ),
    )


def sigmoid_experts(
    config: ConfigReader, hidden: int, experts: str, shared: str, *, aliases: tuple[str, ...] = ()
) -> Moe:
    """Build DeepSeek V3's routed experts, for families that name their keys otherwise.

    ``experts``: key of the number of routed experts. ``shared``: key of the number of shared experts; empty for none.
    """
    config.ignore("routed_scaling_factor")
    groups = config.integer("n_group", default=1, null=1)
    width = config.integer("moe_intermediate_size")
    return routed(
        hidden,
        (config.integer(experts, *aliases), config.integer("num_experts_per_tok")),
        width,
        config.activation(),
        SharedExperts(config.integer(shared, minimum=0, null=0) * width if shared else 0, gate=False, first=False),
        experts_first=True,
        router="sigmoid",
        routing=Routing(
            input_fp32=True,
            scores_fp32=True,
            normalised=config.flag("norm_topk_prob", default=True),
            groups=(groups, config.integer("topk_group", default=groups, null=groups)),
        ),
    )


MTP_NAMES = ("num_nextn_predict_layers", "num_mtp_layers")


def note_mtp_layers(config: ConfigReader, names: tuple[str, ...] = MTP_NAMES) -> None:
    """Note the multi-token-prediction layers that the configuration names, which transformers does not build."""
    mtp = config.integer(*names, default=0, null=0, minimum=0)
    if mtp:
        config.note(f"{mtp} multi-token-prediction layer(s) are left out: transformers does not build them")


def _assemble(config: ConfigReader, size: StackDimensions, attention: LatentAttention, moe: Moe) -> Architecture:
    """Build a decoder whose first ``first_k_dense_replace`` layers have a dense MLP, and all others the experts."""
    dense_layers = config.integer("first_k_dense_replace", minimum=0)
    if config.integer("moe_layer_freq", default=1, null=1) != 1:
        config.fail("moe_layer_freq", "moe_layer_freq other than 1 is not read by transformers")
    note_mtp_layers(config)
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), moe.activation)

    def build_layer(layer: int) -> Block:
        """Build one layer. ``layer``: 1 if it has experts, else 0."""
        return pre_norm_block(size.hidden, attention, moe if layer else mlp)

    blocks = stack((int(i >= dense_layers) for i in range(size.layers)), build_layer)
    return decoder(config, size, blocks, tied=False, rotary_dim=attention.qk_rope_head_dim)
