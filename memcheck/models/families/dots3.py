"""Dots 3 Note, text (modeling_dots3_note.py): indexed and windowed latent attention of different sizes, a gate of each
head, DeepSeek V3's experts.
"""

from __future__ import annotations

from memcheck.edge.digits import whole_number
from memcheck.models.families.deepseek import latent_sizes, sigmoid_experts
from memcheck.models.families.deepseek_v32 import NOTE, indexed
from memcheck.models.parts.attention import latent_attention
from memcheck.models.parts.decoder import decoder, pre_norm_block
from memcheck.models.parts.feed_forward import Shared, gated_mlp, routed
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.parts.sizes import StackDimensions
from memcheck.models.parts.stack import sparse_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, LatentAttention, Moe

KINDS = ("indexed_attention", "full_attention", "sliding_attention")
SLIDING = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""The class's own sizes of windowed layers."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: dots3_note_text``. Windowed layers state their sizes in ``per_layer_config`` or as ``swa_*``."""
    size = latent_sizes(config)
    h = size.hidden
    config.ignore("mlp_bias", "ep_size", "rope_interleave", "partial_rotary_factor")
    config.ignore("use_sliding_window", "use_dsa", "swa_head_dim", "swa_qk_rope_head_dim", "swa_rope_theta")
    window = config.window() or config.integer("sliding_window_size", default=512)
    types = config.texts("layer_types") or tuple(
        KINDS[0] if i < 2 or i % 4 == 1 else KINDS[2] for i in range(size.layers)
    )
    if len(types) != size.layers or any(t not in KINDS for t in types):
        config.fail("layer_types", f"{len(types)} layer types", f"one of each of {size.layers} layers: {KINDS}")
    wide = _gated(latent_attention(config, size), size)
    own = indexed(config, h, wide._replace(masked=True, wide_tables=True))
    narrow = _gated(_windowed(config, size, types.index(KINDS[2]) if KINDS[2] in types else None), size)
    mixers = {KINDS[0]: own, KINDS[1]: wide, KINDS[2]: narrow._replace(window=window)}
    moe = _experts(config, h)
    mlp = gated_mlp(h, config.integer("intermediate_size"), moe.activation)
    sparse = sparse_types(config, size.layers, config.integer("first_k_dense_replace", default=1, null=1, minimum=0))
    config.note(NOTE)

    def make(kind: tuple[str, bool]) -> Block:
        return pre_norm_block(h, mixers[kind[0]], moe if kind[1] else mlp)

    turned = tuple(mixers[kind].qk_rope_head_dim for kind in sorted(set(types)))
    return decoder(
        config, size, stack(zip(types, sparse, strict=True), make), tied=False, rotary_dims=turned,
        rotary_tables=len(turned),
    )  # fmt: skip


def _gated(attention: LatentAttention, size: StackDimensions) -> LatentAttention:
    more = (
        vector("self_attn.k_rope_only_layernorm.weight", attention.qk_rope_head_dim, "norm"),
        *linear("self_attn.g_proj", attention.heads, size.hidden, "attention", "column"),
    )
    return attention._replace(tensors=attention.tensors + more, scaled_latents=True, head_gate=True)


def _windowed(config: ConfigReader, size: StackDimensions, layer: int | None) -> LatentAttention:
    """Latent attention with the sizes of the first windowed layer, which all of them have."""
    every = config.raw("per_layer_config")
    layers = every if isinstance(every, dict) else {}
    numbered = {whole_number(str(key)): value for key, value in layers.items()}
    stated = numbered.get(-1 if layer is None else layer)
    own = dict(stated) if isinstance(stated, dict) else {}
    if not own:
        keys = {key: config.raw(f"swa_{key}") for key in SLIDING}
        own = {key: SLIDING[key] if value is None else value for key, value in keys.items()}
    if any(value != own for value in numbered.values()):
        config.fail("per_layer_config", "memcheck has one size of windowed layers", "state the same for each")
    known = {**config.config, **own}
    inner = ConfigReader(known, config.model_type, "per_layer_config.")
    heads = inner.integer("num_attention_heads")
    return latent_attention(inner, size._replace(heads=heads, kv_heads=heads))


def _experts(config: ConfigReader, hidden: int) -> Moe:
    width = config.integer("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size", default=1536)
    number = config.integer("n_shared_experts", minimum=0)
    moe = sigmoid_experts(config, hidden, "n_routed_experts", "", aliases=("num_local_experts",))
    shared = routed(hidden, (1, 1), 1, moe.activation, Shared(number * width))
    tensors = tuple(t for t in shared.tensors if t.group == "shared_experts")
    return moe._replace(shared_width=number * width, tensors=moe.tensors + tensors)
