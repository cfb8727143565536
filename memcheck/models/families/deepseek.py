"""DeepSeek V2 and V3, Kimi K2, Moonlight (modeling_deepseek_v2.py, modeling_deepseek_v3.py)."""

from __future__ import annotations

from memcheck.models.decoder import (
    LLAMA_NAMES,
    Names,
    StackDimensions,
    decoder,
    gated_mlp,
    linear,
    pre_norm_block,
    read_sizes,
    routed,
    stack,
)
from memcheck.models.module_types import ComplexLatentAttention, Routing, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, LatentAttention, Moe, ParameterTensor
from memcheck.record import Record


class LatentNames(Record):
    """Paths of the matrices and norms of latent attention in its layer."""

    query: str
    """The matrix of queries, where they have no latent."""
    query_down: str
    query_norm: str
    query_up: str
    kv_down: str
    """Makes the latent of keys and values, and the rotated elements of keys."""
    kv_norm: str
    kv_up: str
    output: str


DEEPSEEK_NAMES = LatentNames(
    query="self_attn.q_proj",
    query_down="self_attn.q_a_proj",
    query_norm="self_attn.q_a_layernorm",
    query_up="self_attn.q_b_proj",
    kv_down="self_attn.kv_a_proj_with_mqa",
    kv_norm="self_attn.kv_a_layernorm",
    kv_up="self_attn.kv_b_proj",
    output="self_attn.o_proj",
)


def read_v2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: deepseek_v2``: softmax router; the rotary part is multiplied as complex
    numbers.
    """
    config.ignore("mlp_bias", "aux_loss_alpha", "ep_size")
    size = latent_dimensions(config)
    attention = ComplexLatentAttention(*latent_attention(config, size))
    moe = _experts(config, size.hidden, "num_experts")
    # modeling_deepseek_v2.py reads norm_topk_prob nowhere
    moe = moe._replace(router="softmax", routing=moe.routing._replace(normalised=False))
    return _assemble(config, size, attention, moe)


def read_v3(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: deepseek_v3``: sigmoid router with a correction bias per expert."""
    config.ignore("ep_size", "aux_loss_alpha")
    size = latent_dimensions(config)
    attention = latent_attention(config, size, interleaved=config.flag("rope_interleave", default=True))
    moe = _experts(config, size.hidden, "num_local_experts")
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


def latent_tensors(hidden: int, attention: LatentAttention, names: LatentNames) -> tuple[ParameterTensor, ...]:
    """List the tensors of latent attention in forward order.

    ``hidden``: width of the residual stream. Tensor parallelism replicates the low-rank matrices (shard ``none``).
    """
    heads, bias = attention.heads, attention.bias
    query_rank, kv_rank = attention.q_lora_rank, attention.kv_lora_rank
    nope, rope = attention.qk_nope_head_dim, attention.qk_rope_head_dim
    if query_rank is None:
        query = linear(names.query, heads * (nope + rope), hidden, "attention", "column")
    else:
        query = (
            *linear(names.query_down, query_rank, hidden, "attention", "none", bias=bias),
            ParameterTensor(names.query_norm + ".weight", (query_rank,), "norm"),
            *linear(names.query_up, heads * (nope + rope), query_rank, "attention", "column"),
        )
    return (
        *query,
        *linear(names.kv_down, kv_rank + rope, hidden, "attention", "none", bias=bias),
        ParameterTensor(names.kv_norm + ".weight", (kv_rank,), "norm"),
        *linear(names.kv_up, heads * (nope + attention.v_head_dim), kv_rank, "attention", "column"),
        *linear(names.output, hidden, heads * attention.v_head_dim, "attention", "row", bias=bias),
    )


def latent_attention(
    config: ConfigReader,
    size: StackDimensions,
    *,
    interleaved: bool = True,
    v_head_dim: int | None = None,
    whole_queries: bool = False,
) -> LatentAttention:
    """Build DeepSeek's multi-head latent attention (MLA) from its usual keys.

    ``interleaved``: the rotary part is stored as pairs of neighbours. ``v_head_dim``: the class's default, if it has
    one (MiniCPM 3). ``whole_queries``: by default the class has one query matrix, without a low rank, so that
    ``q_lora_rank`` may be absent (Kimi Linear, Ling 3).
    """
    q_rank = config.optional_integer("q_lora_rank")
    if q_rank is None and "q_lora_rank" not in config.config and not whole_queries:
        config.integer("q_lora_rank")  # null is a statement (no low-rank query), absence is not
    kv_rank = config.integer("kv_lora_rank")
    nope, rope = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    v_dim = (
        config.integer("v_head_dim")
        if v_head_dim is None
        else config.integer("v_head_dim", default=v_head_dim, null=v_head_dim)
    )
    attention = LatentAttention(
        heads=size.heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=v_dim,
        bias=config.flag("attention_bias"),
        tensors=(),
        rotary_interleaved=interleaved,
        dropout=config.dropout("attention_dropout"),
    )
    return attention._replace(tensors=latent_tensors(size.hidden, attention, DEEPSEEK_NAMES))


def _experts(config: ConfigReader, hidden: int, alias: str) -> Moe:
    """Build DeepSeek's own experts. ``alias``: a further key of their number."""
    config.ignore("topk_method", "scoring_func")
    # read first: what is missing is then not taken for a misspelling of the other key
    config.integer("n_shared_experts", minimum=0, null=0)
    return sigmoid_experts(config, hidden, "n_routed_experts", "n_shared_experts", aliases=(alias,))


def sigmoid_experts(
    config: ConfigReader, hidden: int, experts: str, shared: str, *, aliases: tuple[str, ...] = ()
) -> Moe:
    """Build DeepSeek V3's routed experts and shared ones, from a family's names of the keys.

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
        SharedExperts(config.integer(shared, minimum=0, null=0) * width if shared else 0, gate=False, runs_first=False),
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
