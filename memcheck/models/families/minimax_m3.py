"""MiniMax M3, text (modeling_minimax_m3_vl.py): clamped gates everywhere, sigmoid experts and a shared one, and in
sparse layers an indexer that chooses blocks of keys.
"""

from __future__ import annotations

from memcheck.models.attention_types import BlockIndexer
from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, pre_norm_block, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp, gated_tensors, routed
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.parts.stack import sparse_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe

NORM = "rmsnorm-unit-offset"
SPARSE = "minimax_m3_sparse"
OLDER = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim"}
"""Keys of ``sparse_attention_config`` in files of before."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: minimax_m3_vl_text``."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    hidden = size.hidden
    config.ignore("swiglu_alpha", "swiglu_limit", "routed_scaling_factor", "hidden_act", "router_jitter_noise")
    config.ignore("index_block_size", "index_topk_blocks", "index_local_blocks", "router_aux_loss_coef")
    nested = config.raw("sparse_attention_config")
    older = nested if isinstance(nested, dict) else {}
    attention = grouped_attention(
        size,
        rotary_dim=config.integer("rotary_dim", default=64, null=64),
        query_norm=head_norm(NORM, size.head_dim, "q"),
        key_norm=head_norm(NORM, size.head_dim, "k"),
        dropout=config.dropout("attention_dropout"),
    )
    types = _types(config, size.layers, older.get("sparse_attention_freq"))
    sparse = _indexed(config, hidden, older, attention)
    moe = _experts(config, hidden)
    mlp = gated_mlp(hidden, config.integer("dense_intermediate_size", default=12288), "silu", fused=True)
    mlp = mlp._replace(clamp="oai")
    freq = config.raw("moe_layer_freq")
    given = isinstance(freq, list) and len(freq) == size.layers and not config.has("mlp_layer_types")
    dense_layers = config.integer("first_k_dense_replace", default=0, null=0, minimum=0)
    routes = tuple(bool(f) for f in freq) if given else sparse_types(config, size.layers, dense_layers)
    leading = next((i for i, routed in enumerate(routes) if routed), size.layers)
    if config.has("first_k_dense_replace") and leading != min(dense_layers, size.layers):
        stated = f"first_k_dense_replace is {dense_layers}, and the list of layers begins with {leading} dense ones"
        config.fail("first_k_dense_replace", stated, "remove one of the two")

    def build_layer(kind: tuple[bool, bool]) -> Block:
        return pre_norm_block(hidden, sparse if kind[0] else attention, moe if kind[1] else mlp, kind=NORM)

    return decoder(
        config,
        size,
        stack(zip(types, routes, strict=True), build_layer),
        tied=False,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        rotary_dim=attention.rotary_dim,
    )


def _types(config: ConfigReader, layers: int, older: object) -> tuple[bool, ...]:
    """Which layers choose blocks of keys."""
    stated = config.texts("layer_types")
    if stated is None:
        if isinstance(older, list) and len(older) == layers:
            return tuple(bool(f) for f in older)
        return (False,) * layers
    unknown = next((t for t in stated if t not in (SPARSE, "full_attention")), None)
    if unknown is not None or len(stated) != layers:
        known = f"known: {SPARSE}, full_attention, one of each of {layers} layers"
        config.fail("layer_types", f"{len(stated)} layers, among them {unknown!r}", known)
    return tuple(t == SPARSE for t in stated)


def _indexed(config: ConfigReader, hidden: int, older: dict[str, object], attention: Attention) -> Attention:
    """The attention with an indexer, none of whose parameters a gradient reaches."""
    sizes = []
    for key, usual in (("index_n_heads", 4), ("index_head_dim", 128)):
        nested = older.get(OLDER[key])
        given = nested if isinstance(nested, int) and not isinstance(nested, bool) and nested > 0 else usual
        sizes.append(config.integer(key, default=given, null=given))
    heads, width = sizes
    module = "self_attn.indexer"
    tensors = (
        *linear(f"{module}.q_proj", heads * width, hidden, "attention", "none"),
        *linear(f"{module}.k_proj", width, hidden, "attention", "none"),
        vector(f"{module}.q_norm.weight", width, "norm"),
        vector(f"{module}.k_norm.weight", width, "norm"),
    )
    fixed = tuple(t._replace(fixed=True) for t in tensors)
    return attention._replace(tensors=attention.tensors + fixed, own=BlockIndexer(heads, width))


def _experts(config: ConfigReader, hidden: int) -> Moe:
    shared = config.integer("shared_intermediate_size", default=3072)
    if config.integer("n_shared_experts", default=1, null=1, minimum=0) != 1:
        config.fail("n_shared_experts", "the class builds one shared expert, of shared_intermediate_size")
    moe = routed(
        hidden,
        (config.integer("num_local_experts", "num_experts"), config.integer("num_experts_per_tok")),
        config.integer("intermediate_size"),
        "silu",
        router="sigmoid",
        correction_bias=True,
        scores_fp32=True,
        shared_first=True,
        scaled_output=True,
        clamp="oai",
    )
    tensors = gated_tensors("mlp.shared_experts", hidden, shared, "shared_experts", fused=True)
    return moe._replace(shared_width=shared, tensors=moe.tensors + tensors)
