"""Hy 4 (modeling_hy_v4.py): streams that nothing mixes, gated latent attention with sinks to keys that an indexer
chooses, clamped sigmoid experts.
"""

from __future__ import annotations

from memcheck.models.families.deepseek import mtp_layers, sigmoid_experts
from memcheck.models.families.deepseek_v32 import NOTE, indexed
from memcheck.models.parts.attention import latent_attention
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.parts.stack import layer_types, sparse_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, LatentAttention, ParameterTensor

KIND = "indexed_attention"
PERIOD = 4
"""Layers after the first one that share an indexer's choice, by default."""
WIDE = ("_hc.", "hc_head", "sinks", "k_norm", "weights_proj", "lm_head")
"""``_keep_in_fp32_modules_strict`` of the class."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: hy_v4``. The class makes as many key heads as query heads, whatever the configuration says."""
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "hc_eps", "hc_magnitude", "swiglu_limit")
    config.ignore("learnable_sink_init")
    size = read_sizes(config, kv_heads="none", head_dim=1, head_dim_key=False)
    h, streams = size.hidden, config.integer("hc_mult", default=4, minimum=2)
    layer_types(config, size.layers, lambda i: KIND, (KIND,))
    attention = _attention(config, size)
    choosing = indexed(config, h, attention)
    moe = sigmoid_experts(config, h, "n_routed_experts", "n_shared_experts", aliases=("num_local_experts",))
    if not moe.shared_width:
        config.fail("n_shared_experts", "the class builds shared experts: their number must be at least 1")
    moe = moe._replace(clamp="act-routed")
    mlp = gated_mlp(h, config.integer("intermediate_size"), moe.activation)
    sparse = sparse_types(config, size.layers, 1)
    mixing = (*_connection("attn_hc", h, streams), *_connection("ffn_hc", h, streams))
    mtp = mtp_layers(config)
    config.note(NOTE)

    def make(kind: tuple[bool, bool]) -> Block:
        return Block(
            mixer=choosing if kind[0] else attention,
            mlp=moe if kind[1] else mlp,
            input_norm=rms_norm(h, "input_layernorm"),
            mlp_norm=rms_norm(h, "post_attention_layernorm"),
            extra_tensors=mixing,
            connections=0,
        )

    return decoder(
        config,
        size,
        stack(zip(_indexers(config, size.layers), sparse, strict=True), make),
        tied=False,
        rotary_dim=attention.qk_rope_head_dim,
        streams=streams,
        head_tensors=(
            ParameterTensor("model.hc_head.hc_fn", (streams, streams * h), "mixer"),
            ParameterTensor("model.hc_head.hc_base", (streams,), "mixer"),
            ParameterTensor("model.hc_head.hc_scale", (1,), "mixer"),
        ),
        mtp_layers=mtp,
        kept_wide=WIDE,
    )


def _attention(config: ConfigReader, size: StackDimensions) -> LatentAttention:
    found = latent_attention(config, size, interleaved=False)
    if found.q_lora_rank is None:
        config.fail("q_lora_rank", "the indexer reads low-rank queries: q_lora_rank must be a number")
    sinks = vector("self_attn.sinks", size.heads, "attention", "column")
    gate = linear("self_attn.gate_proj", size.heads * found.v_head_dim, size.hidden, "attention", "column")
    return found._replace(
        tensors=(sinks, *found.tensors, *gate),  # a module's own parameters come before those of its children
        masked=True,
        passes_choice=True,
        sdpa=False,
        sinks=True,
        early_gate=True,
        index_topk=config.integer("index_topk", default=2048),
    )


def _indexers(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers choose keys, and do not take the choice of one before them: the first one has to."""
    stated = config.texts("indexer_types")
    if stated is None:
        return tuple(i == 0 or (i - 1) % PERIOD == 0 for i in range(layers))
    if len(stated) != layers:
        config.fail("indexer_types", f"indexer_types names {len(stated)} layers, the model has {layers}")
    strange = next((t for t in stated if t not in ("full", "shared")), None)
    if strange is not None:
        config.fail("indexer_types", f"unknown indexer {strange!r}", "known: full, shared")
    if stated[0] != "full":
        config.fail("indexer_types", "the first layer has no choice before it to share", "write full for it")
    return tuple(t == "full" for t in stated)


def _connection(module: str, hidden: int, streams: int) -> tuple[ParameterTensor, ...]:
    """What makes the weights of ``HYV4HyperConnection``: of the streams, and of what is added to each."""
    return (
        ParameterTensor(f"{module}.fn", (2 * streams, streams * hidden), "mixer"),
        ParameterTensor(f"{module}.base", (2 * streams,), "mixer"),
        ParameterTensor(f"{module}.scale", (2,), "mixer"),
    )
