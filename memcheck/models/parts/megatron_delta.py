"""The gated delta nets of Megatron-LM's own GPT: ``--experimental-attention-variant gated_delta_net`` and dimensions.

Source: Megatron-core ``transformer/transformer_config.py`` (linear_attention_freq and what follows it),
``models/gpt/experimental_attention_variant_module_specs.py`` (get_linear_attention_pattern: every n-th layer is softmax
attention) and ``ssm/gated_delta_net/common.py`` at commit d98e8a64dd.
"""

from __future__ import annotations

from memcheck.models.parts.matrices import linear, vector
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Mixer, ParameterTensor

VARIANT, FREQUENCY = "experimental_attention_variant", "linear_attention_freq"
GATED_DELTA_NET = ("gdn", "gated_delta_net")
"""The name and its older spelling; ``gdn2`` has other gates, ``dsa`` is sparse attention."""
DIMENSIONS = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
"""Defaults of transformer_config.py for dimensions that are not stated."""


def has_delta_nets(config: ConfigReader) -> bool:
    """Say whether some layers are gated delta nets; refuse other variants, which have no memory model."""
    if not config.has(VARIANT):
        config.ignore(*DIMENSIONS)
        if config.has(FREQUENCY):
            config.fail(FREQUENCY, f"{FREQUENCY} without {VARIANT} says nothing of what the layers are", "state both")
        return False
    variant = config.text(VARIANT, default="")
    if variant not in GATED_DELTA_NET:
        config.fail(VARIANT, f"{variant!r} has no memory model", f"of these there is one: {', '.join(GATED_DELTA_NET)}")
    return True


def delta_net(config: ConfigReader, hidden: int, *, biased: bool) -> Mixer:
    """Build Megatron's gated delta net (``ssm/gated_delta_net/common.py``).

    One input projection makes queries, keys, values, the output's gate, beta and alpha. ``hidden``: width of the
    residual stream. ``biased``: the norm on the output's heads is a LayerNorm with a bias, as the layers' norms are.
    """
    key_heads, heads, key, value, kernel = (config.integer(name, default=usual) for name, usual in DIMENSIONS.items())
    if heads % key_heads:
        config.fail("linear_num_value_heads", f"{heads} heads of values are no multiple of {key_heads} of keys")
    keys, values, owner = key_heads * key, heads * value, "self_attention"
    tensors = (
        vector(f"{owner}.dt_bias", heads, "mixer", "column"),
        vector(f"{owner}.A_log", heads, "mixer", "column"),
        *linear(f"{owner}.in_proj", 2 * keys + 2 * values + 2 * heads, hidden, "mixer", "column"),
        ParameterTensor(f"{owner}.conv1d.weight", (2 * keys + values, 1, kernel), "mixer", shard="column"),
        vector(f"{owner}.out_norm.weight", value, "norm"),
        *([vector(f"{owner}.out_norm.bias", value, "norm")] if biased else []),
        *linear(f"{owner}.out_proj", hidden, values, "mixer", "row"),
    )
    return Mixer(
        kind="gated-delta-net",
        heads=heads,
        head_dim=value,
        state_bytes_per_sequence=heads * key * value * 4 + (2 * keys + values) * kernel * 2,
        width=2 * keys + 2 * values,
        tensors=tensors,
        key_heads=key_heads,
        key_dim=key,
        kernel=kernel,
        chunk=0,
    )
