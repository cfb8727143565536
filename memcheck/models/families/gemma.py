"""Gemma 1, 2 and 3, text (modeling_gemma.py, modeling_gemma2.py, modeling_gemma3.py)."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    head_norms,
    layer_types,
    pre_norm_block,
    read_attention,
    read_sizes,
    rms_norm,
    stack,
    windows,
)
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Mlp, Moe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NORM = "rmsnorm-unit-offset"
TANH_GELU = "gelu_pytorch_tanh"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gemma``. The released files say ``gelu`` and mean its tanh
    approximation.
    """
    size = read_sizes(config, kv_heads="required", head_dim=256)
    activation = config.activation(default=TANH_GELU)
    config.ignore("hidden_activation", "use_bidirectional_attention", "num_image_tokens")
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), TANH_GELU if activation == "gelu" else activation)
    block = pre_norm_block(size.hidden, _attention(config, size), mlp, kind=NORM)
    return _decoder(config, size, ((block, size.layers),))


def read_2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gemma2``: norms around both halves, capped logits, every other layer
    windowed.
    """
    size = read_sizes(config, kv_heads="required", head_dim=256)
    softcap = has_softcap(config, "attn_logit_softcapping", 50.0)
    attention = _attention(config, size, softcap=softcap)
    attention_types = layer_types(config, size.layers, lambda i: "full_attention" if i % 2 else "sliding_attention")
    return _sandwich(config, size, attention, attention_types, 30.0)


def read_vault(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: vaultgemma``: Gemma 2 without the norms after both halves."""
    gemma2 = read_2(config)
    return gemma2._replace(blocks=tuple((_without_output_norms(block), n) for block, n in gemma2.blocks))


def _without_output_norms(block: Block) -> Block:
    """Return the layer without the norms after attention and MLP, as VaultGemma has it.

    Its class offers no scaled_dot_product_attention.
    """
    mixer = (
        block.mixer._replace(kernels=block.mixer.kernels._replace(sdpa=False))
        if isinstance(block.mixer, Attention)
        else block.mixer
    )
    return block._replace(mixer=mixer, mixer_output_norm=None, mlp_output_norm=None)


def read_3(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gemma3_text``: as Gemma 2, with query and key norms; five of six layers are
    windowed.
    """
    size = read_sizes(config, kv_heads="required", head_dim=256)
    softcap = has_softcap(config, "attn_logit_softcapping", None)
    attention = _attention(config, size, softcap=softcap, **head_norms(NORM, size.head_dim))
    period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=6, null=6)
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if (i + 1) % period else "full_attention"
    )
    return _sandwich(config, size, attention, attention_types, None)._replace(rotary_tables=len(set(attention_types)))


def _attention(config: ConfigReader, size: StackDimensions, **fields: Any) -> Attention:
    """Build grouped-query attention. ``fields``: as of :func:`memcheck.models.decoder.read_attention`."""
    config.ignore("query_pre_attn_scalar")
    return read_attention(config, size, **fields)


def has_softcap(config: ConfigReader, key: str, default: float | None) -> bool:
    """Say whether the configuration caps logits (``cap * tanh(logits / cap)``) under ``key``.

    Null or 0 means no cap. A missing key leaves ``default``, the cap of the class; None for none.
    """
    if key in config.config:
        return config.raw(key) is not None and config.number(key, default=0.0) > 0
    config.raw(key)
    return default is not None


def _sandwich(
    config: ConfigReader,
    size: StackDimensions,
    attention: Attention,
    attention_types: tuple[str, ...],
    final_cap: float | None,
) -> Architecture:
    """Build a decoder whose layers have a norm before and after attention and MLP.

    ``attention_types``: attention type of each layer. ``final_cap``: default of ``final_logit_softcapping``; None for
    no cap.
    """
    window = config.window()
    if window is None and "sliding_attention" in attention_types:
        config.integer("sliding_window")
    config.ignore("hidden_act", "use_bidirectional_attention", "sliding_window_size", "num_image_tokens")
    activation = config.activation("hidden_activation", default=TANH_GELU)
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), activation)

    def build_layer(span: int | None) -> Block:
        return sandwich_block(size.hidden, attention._replace(window=span), mlp)

    caps = has_softcap(config, "final_logit_softcapping", final_cap)
    architecture = _decoder(config, size, stack(windows(attention_types, window), build_layer))
    return architecture._replace(final_softcap=caps, mask_windows=(None, window))


def sandwich_block(hidden: int, attention: Attention, mlp: Mlp | Moe, norm: str = NORM) -> Block:
    """Build a layer with an RMSNorm before and after attention, and before and after the MLP. ``norm``: their kind."""
    return Block(
        mixer=attention,
        mlp=mlp,
        input_norm=rms_norm(hidden, "input_layernorm", norm),
        mlp_norm=rms_norm(hidden, "pre_feedforward_layernorm", norm),
        mixer_output_norm=rms_norm(hidden, "post_attention_layernorm", norm),
        mlp_output_norm=rms_norm(hidden, "post_feedforward_layernorm", norm),
    )


def _decoder(config: ConfigReader, size: StackDimensions, blocks: tuple[tuple[Block, int], ...]) -> Architecture:
    """Build a decoder with tied embeddings, which are multiplied by the square root of the hidden size."""
    final_norm = rms_norm(size.hidden, "model.norm", NORM)
    return decoder(config, size, blocks, tied=True, final_norm=final_norm, embedding_scale="module")
