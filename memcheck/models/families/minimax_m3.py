"""MiniMax M3, text (modeling_minimax_m3_vl.py): clamped gates everywhere, sigmoid experts and a shared one, and in
sparse layers an indexer that chooses blocks of keys.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    gated_tensors,
    grouped_attention,
    head_norms,
    linear,
    pre_norm_block,
    read_sizes,
    rms_norm,
    routed,
    sparse_types,
    stack,
    vector,
)
from memcheck.models.module_types import NORMALISED_SCORES, BlockIndexer, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe

NORM = "rmsnorm-unit-offset"
SPARSE = "minimax_m3_sparse"
NESTED_KEYS = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim"}
"""Keys of ``sparse_attention_config`` in files of before."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: minimax_m3_vl_text``.

    Grouped attention, in sparse layers with an indexer, and clamped gates in experts and dense MLPs.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    hidden = size.hidden
    config.ignore("swiglu_alpha", "swiglu_limit", "routed_scaling_factor", "hidden_act", "router_jitter_noise")
    config.ignore("index_block_size", "index_topk_blocks", "index_local_blocks", "router_aux_loss_coef")
    nested = config.raw("sparse_attention_config")
    nested_keys = nested if isinstance(nested, dict) else {}
    attention = grouped_attention(
        size,
        rotary_dim=config.integer("rotary_dim", default=64, null=64),
        **head_norms(NORM, size.head_dim),
        dropout=config.dropout("attention_dropout"),
    )
    indexed_layers = _indexed_layers(config, size.layers, nested_keys.get("sparse_attention_freq"))
    indexed_attention = _with_indexer(config, hidden, nested_keys, attention)
    moe = _experts(config, hidden)
    mlp = gated_mlp(hidden, config.integer("dense_intermediate_size", default=12288), "silu", fused=True)
    mlp = mlp._replace(clamp="oai")
    moe_layers = _moe_layers(config, size.layers)

    def build_layer(kind: tuple[bool, bool]) -> Block:
        """Build one layer. ``kind``: whether it has an indexer, and whether it has experts."""
        is_indexed, has_experts = kind
        return pre_norm_block(
            hidden, indexed_attention if is_indexed else attention, moe if has_experts else mlp, kind=NORM
        )

    return decoder(
        config,
        size,
        stack(zip(indexed_layers, moe_layers, strict=True), build_layer),
        tied=False,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        rotary_dim=attention.rotary_dim,
    )


def _moe_layers(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Say for each layer whether it has experts: ``mlp_layer_types``, or ``moe_layer_freq`` in earlier files.

    Raises:
        ArchitectureError: ``first_k_dense_replace`` names another number of dense layers than the list begins with.
    """
    older = config.raw("moe_layer_freq")
    dense_layers = config.integer("first_k_dense_replace", default=0, null=0, minimum=0)
    if isinstance(older, list) and len(older) == layers and not config.has("mlp_layer_types"):
        has_experts = tuple(map(bool, older))
    else:
        has_experts = sparse_types(config, layers, dense_layers)
    leading_dense = has_experts.index(True) if True in has_experts else layers
    if config.has("first_k_dense_replace") and leading_dense != min(dense_layers, layers):
        stated = f"first_k_dense_replace is {dense_layers}"
        message = f"{stated}, and the list of layers begins with {leading_dense} dense ones"
        config.fail("first_k_dense_replace", message, "remove one of the two")
    return has_experts


def _indexed_layers(config: ConfigReader, layers: int, sparse_attention_freq: object) -> tuple[bool, ...]:
    """Say for each layer whether its indexer chooses blocks of keys: ``layer_types``.

    ``sparse_attention_freq``: of the nested section that earlier files have, a list of 0 and 1.
    """
    types = config.texts("layer_types")
    if types is None:
        if isinstance(sparse_attention_freq, list) and len(sparse_attention_freq) == layers:
            return tuple(bool(flag) for flag in sparse_attention_freq)
        return (False,) * layers
    unknown = next((layer_type for layer_type in types if layer_type not in (SPARSE, "full_attention")), None)
    if unknown is not None or len(types) != layers:
        known = f"known: {SPARSE}, full_attention, one of each of {layers} layers"
        config.fail("layer_types", f"{len(types)} layers, among them {unknown!r}", known)
    return tuple(layer_type == SPARSE for layer_type in types)


def _with_indexer(config: ConfigReader, hidden: int, nested_keys: dict[str, object], attention: Attention) -> Attention:
    """Return the attention with an indexer, whose parameters get no gradient.

    ``nested_keys``: the section ``sparse_attention_config``, with the older names of the indexer's keys.
    """
    sizes = []
    for key, default in (("index_n_heads", 4), ("index_head_dim", 128)):
        nested = nested_keys.get(NESTED_KEYS[key])
        stated = nested if isinstance(nested, int) and not isinstance(nested, bool) and nested > 0 else default
        sizes.append(config.integer(key, default=stated, null=stated))
    heads, width = sizes
    module = "self_attn.indexer"
    tensors = (
        *linear(f"{module}.q_proj", heads * width, hidden, "attention", "none"),
        *linear(f"{module}.k_proj", width, hidden, "attention", "none"),
        vector(f"{module}.q_norm.weight", width, "norm"),
        vector(f"{module}.k_norm.weight", width, "norm"),
    )
    fixed = tuple(t._replace(fixed=True) for t in tensors)
    return attention._replace(tensors=attention.tensors + fixed, extension=BlockIndexer(heads, width))


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build routed experts with one shared expert, whose SwiGLU gates are clamped."""
    shared_width = config.integer("shared_intermediate_size", default=3072)
    if config.integer("n_shared_experts", default=1, null=1, minimum=0) != 1:
        config.fail("n_shared_experts", "the class builds one shared expert, of shared_intermediate_size")
    moe = routed(
        hidden,
        (config.integer("num_local_experts", "num_experts"), config.integer("num_experts_per_tok")),
        config.integer("intermediate_size"),
        "silu",
        router="sigmoid",
        routing=NORMALISED_SCORES._replace(scores_fp32=True),
        scaled_output=True,
        clamp="oai",
    )
    tensors = gated_tensors("mlp.shared_experts", hidden, shared_width, "shared_experts", fused=True)
    return moe._replace(shared=SharedExperts(shared_width, gate=False, runs_first=True), tensors=moe.tensors + tensors)
