"""Granite 3, dense and routed, and HyperCLOVA X (modeling_granite.py, modeling_granitemoe.py,
modeling_granitemoeshared.py, modeling_hyperclovax.py): Llama with constant multipliers.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    layer_types,
    pre_norm_block,
    read_attention,
    read_sizes,
    rms_norm,
    routed,
    stack,
    vector,
    windows,
)
from memcheck.models.families.bamba import granite_feed_forward
from memcheck.models.families.llama import intermediate_size
from memcheck.models.module_types import NORMALISED_SCORES
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Mlp, Moe


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: granite``."""
    size = read_sizes(config)
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation(), bias=config.flag("mlp_bias"))
    return _assemble(config, size, mlp)


def read_moe(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: granitemoe``."""
    size = read_sizes(config)
    moe = routed(
        size.hidden,
        (config.integer("num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("intermediate_size"),
        config.activation(),
        module="block_sparse_moe",
        names=("router", "shared_experts"),
        router="softmax-topk",
        routing=NORMALISED_SCORES._replace(normalised=False),
    )
    return _assemble(config, size, moe)


def read_shared(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: granitemoeshared``: a shared network in addition to the experts."""
    size = read_sizes(config)
    shared = config.integer("shared_intermediate_size", default=0, minimum=0)
    return _assemble(config, size, granite_feed_forward(config, size.hidden, shared))


def read_swa(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: granite_swa``: three of four layers are windowed, with sinks; some do not
    rotate.
    """
    size = read_sizes(config)
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation(), bias=config.flag("mlp_bias"))
    return _with_windows_and_sinks(config, size, _assemble(config, size, mlp))


def read_moe_swa(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: granitemoe_swa``: the same attention over experts."""
    size = read_sizes(config)
    shared = config.integer("shared_intermediate_size", default=0, minimum=0)
    return _with_windows_and_sinks(
        config, size, _assemble(config, size, granite_feed_forward(config, size.hidden, shared))
    )


def _with_windows_and_sinks(config: ConfigReader, size: StackDimensions, architecture: Architecture) -> Architecture:
    """Give each layer its sliding window and rotary base, and attention sinks.

    A ``layer_rope_theta`` of 0 switches rotary embedding off. scaled_dot_product_attention takes no sinks, so it is not
    used.
    """
    window = config.window()
    attention_types = layer_types(config, size.layers, lambda i: "sliding_attention" if i % 4 else "full_attention")
    bases = config.raw("layer_rope_theta")
    if bases is None:
        bases = [1.0] * size.layers
    if not isinstance(bases, list) or len(bases) != size.layers:
        config.fail("layer_rope_theta", f"layer_rope_theta must be a list of {size.layers} numbers")
    ((block, _),) = architecture.blocks

    def build_layer(kind: tuple[int | None, bool]) -> Block:
        """Build one layer. ``kind``: its window in tokens (None: full attention), and whether it rotates."""
        layer_window, is_rotated = kind
        if not isinstance(block.mixer, Attention):
            return block
        mixer = block.mixer._replace(
            window=layer_window,
            rotary_dim=block.mixer.rotary_dim if is_rotated else 0,
            sinks="scale",
            kernels=block.mixer.kernels._replace(sdpa=False),
            tensors=(*block.mixer.tensors, vector("self_attn.sinks", size.heads, "attention", "column")),
        )
        return block._replace(mixer=mixer)

    rotates = [bool(base) for base in bases]
    rotary_tables = len({base for base in bases if base})
    return architecture._replace(
        blocks=stack(zip(windows(attention_types, window), rotates, strict=True), build_layer),
        mask_windows=(None, window),
        rotary_tables=rotary_tables,
    )


def read_hyperclovax(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: hyperclovax``: Granite with a norm after each half, too."""
    size = read_sizes(config)
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation(), bias=config.flag("mlp_bias"))
    architecture = _assemble(config, size, mlp)
    if not config.flag("use_post_norm", default=True):
        return architecture
    ((block, layers),) = architecture.blocks
    first, last = rms_norm(size.hidden, "post_norm1"), rms_norm(size.hidden, "post_norm2")
    block = block._replace(mixer_output_norm=first, mlp_output_norm=last)
    return architecture._replace(blocks=((block, layers),))


def _assemble(config: ConfigReader, size: StackDimensions, mlp: Mlp | Moe) -> Architecture:
    """Build a decoder of equal pre-norm layers with Granite's multipliers. ``mlp``: the feed-forward of each layer."""
    attention = read_attention(config, size)
    config.ignore("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")
    block = pre_norm_block(size.hidden, attention, mlp)._replace(branch_scale="constant")
    return decoder(config, size, ((block, size.layers),), tied=False, embedding_scale="model", logit_scale=True)
