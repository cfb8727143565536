"""DeepSeek V3.2 and GLM 5 (modeling_deepseek_v32.py, modeling_glm_moe_dsa.py): an indexer chooses each token's keys."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    linear,
    pre_norm_block,
    sparse_types,
    stack,
    vector,
)
from memcheck.models.families.deepseek import latent_attention, latent_dimensions, note_mtp_layers, sigmoid_experts
from memcheck.models.module_types import Indexer
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Fp32Params, LatentAttention

NOTE = "the indexer gets no gradient: transformers makes a mask of every token and key of its choice"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: deepseek_v32``: DeepSeek V3 with a sparse-attention indexer in every
    layer.
    """
    size = latent_dimensions(config)
    return _assemble(config, size, (True,) * size.layers)


def read_glm(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: glm_moe_dsa``: ``indexer_types`` says which layers reuse the indexer's
    choice of an earlier layer.
    """
    size = latent_dimensions(config)
    indexer_types = config.texts("indexer_types")
    period = config.integer("index_topk_freq", default=1, null=1)
    offset = config.integer("index_skip_topk_offset", default=2, null=2, minimum=0)
    default_indexed = tuple(max(i - offset + 1, 0) % period == 0 for i in range(size.layers))
    if indexer_types is not None and len(indexer_types) != size.layers:
        config.fail("indexer_types", f"indexer_types names {len(indexer_types)} layers, the model has {size.layers}")
    unknown = next((t for t in indexer_types or () if t not in ("full", "shared")), None)
    if unknown is not None:
        config.fail("indexer_types", f"unknown indexer {unknown!r}", "known: full, shared")
    indexed_layers = default_indexed if indexer_types is None else tuple(t == "full" for t in indexer_types)
    return _assemble(config, size, indexed_layers)


def _assemble(
    config: ConfigReader, size: StackDimensions, indexed_layers: tuple[bool, ...], first_dense: int = 3
) -> Architecture:
    """Build a decoder with an indexer in the layers where ``indexed_layers`` is true.

    ``first_dense``: default of ``first_k_dense_replace``, the number of dense layers before those with experts.
    """
    hidden = size.hidden
    config.ignore("mlp_bias", "layer_types", "ep_size", "moe_layer_freq", "rope_interleave")
    config.ignore("partial_rotary_factor", "indexer_rope_interleave")
    config.ignore("index_share_for_mtp_iteration")  # of multi-token-prediction layers, which transformers leaves out
    attention = latent_attention(config, size)
    if attention.q_lora_rank is None:
        config.fail("q_lora_rank", "the indexer reads low-rank queries: q_lora_rank must be a number")
    topk = config.integer("index_topk", default=2048, null=2048)
    returns_choice = config.model_type == "glm_moe_dsa"
    heads, width = config.integer("index_n_heads"), config.integer("index_head_dim")
    indexer = Indexer(heads=0, head_dim=width, topk=topk, passes=returns_choice)
    attention = attention._replace(extension=indexer)
    indexed_attention = _indexed(hidden, attention, indexer._replace(heads=heads))
    moe = sigmoid_experts(config, hidden, "n_routed_experts", "n_shared_experts", aliases=("num_local_experts",))
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), moe.activation)
    dense_layers = config.integer("first_k_dense_replace", default=first_dense, null=first_dense, minimum=0)
    moe_layers = sparse_types(config, size.layers, dense_layers)
    note_mtp_layers(config)
    config.note(NOTE)

    def build_layer(kind: tuple[bool, bool]) -> Block:
        """Build one layer. ``kind``: whether it has an indexer of its own, and whether it has experts."""
        is_indexed, has_experts = kind
        return pre_norm_block(hidden, indexed_attention if is_indexed else attention, moe if has_experts else mlp)

    blocks = stack(zip(indexed_layers, moe_layers, strict=True), build_layer)
    rotary_dim, fp32_params = attention.qk_rope_head_dim, ("indexer.weights_proj",)
    return decoder(
        config,
        size,
        blocks,
        tied=False,
        rotary_dim=rotary_dim,
        fp32_params=Fp32Params(always=(), of_fp16=fp32_params),
    )


def _indexed(hidden: int, attention: LatentAttention, indexer: Indexer) -> LatentAttention:
    """Return the attention with an indexer, whose parameters get no gradient from the language model's loss."""
    heads, width = indexer.heads, indexer.head_dim
    module = "self_attn.indexer"
    tensors = (
        *linear(f"{module}.wq_b", heads * width, attention.q_lora_rank or 0, "attention", "none"),
        *linear(f"{module}.wk", width, hidden, "attention", "none"),
        vector(f"{module}.k_norm.weight", width, "norm"),
        vector(f"{module}.k_norm.bias", width, "norm"),
        *linear(f"{module}.weights_proj", heads, hidden, "attention", "none"),
    )
    fixed = tuple(t._replace(fixed=True) for t in tensors)
    return attention._replace(tensors=attention.tensors + fixed, extension=indexer)
