"""Muse Glimmer, text (modeling_muse_glimmer.py): gated attention between Gemma 2's four norms, and normed words."""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    head_norms,
    layer_types,
    linear,
    read_attention,
    read_sizes,
    rms_norm,
    stack,
)
from memcheck.models.families.gemma import has_softcap, sandwich_block
from memcheck.models.module_types import LateGateAttention, TableNorm
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block

NORM = "rmsnorm-fp32-weight"
PERIOD = 4
"""By default every fourth layer, counted from the last, has neither a window nor a rotation."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: muse_glimmer_text``.

    Windowed attention that rotates, and full attention that does not, with a gate on its output.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    hidden, window = size.hidden, config.window()
    config.ignore("post_norm_eps", "qk_scale_factor", "output_multiplier")
    attention = read_attention(
        config,
        size,
        **head_norms(NORM, size.head_dim, weight=False),
        query_scale="constant",
        gate_matrix="adaptable",
        tensors=linear("self_attn.gate_proj", size.heads * size.head_dim, hidden, "attention", "column"),
    )
    attention = LateGateAttention(*attention)
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), config.activation("hidden_activation", "hidden_act"))
    is_full = [(size.layers - 1 - i) % PERIOD == 0 for i in range(size.layers)]
    attention_types = layer_types(
        config, size.layers, lambda i: "full_attention" if is_full[i] else "sliding_attention"
    )
    rotates = _turned(config, [not is_full_layer for is_full_layer in is_full])

    def build_layer(kind: tuple[str, bool]) -> Block:
        """Build one layer. ``kind``: its kind of attention, and whether it rotates queries and keys."""
        attention_type, is_rotated = kind
        mixer = attention._replace(window=window if attention_type == "sliding_attention" else None)
        return sandwich_block(hidden, mixer if is_rotated else mixer._replace(rotary_dim=0), mlp)

    return decoder(
        config,
        size,
        stack(zip(attention_types, rotates, strict=True), build_layer),
        tied=False,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        embedding_norm=TableNorm(NORM, hidden, weight=False, name="model.embed_tokens.embed_norm"),
        mask_windows=(None, window),
        final_softcap=has_softcap(config, "final_logit_softcapping", 20.0),
        logit_scale=True,
    )


def _turned(config: ConfigReader, default: list[bool]) -> list[bool]:
    """Say for each layer whether it rotates queries and keys: where its base in ``layer_rope_theta`` is not 0.

    ``default``: the same without that key.
    """
    stated = config.raw("layer_rope_theta")
    if stated is None:
        return default
    if not isinstance(stated, list) or len(stated) != len(default):
        config.fail("layer_rope_theta", f"layer_rope_theta is no list of {len(default)} numbers, one for each layer")
    return [bool(base) for base in stated]
