"""Mixers that carry a state along the sequence: tensors of Mamba, Mamba-2 and of Megatron-LM's gated delta nets."""

from __future__ import annotations

from memcheck.models.decoder import linear, vector
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Mixer, ParameterTensor
from memcheck.record import Record


class StateSpace(Record):
    """Dimensions of a Mamba-2 mixer."""

    heads: int
    head_dim: int
    state: int
    """Elements of the state per channel."""
    groups: int
    kernel: int
    """Tokens that the convolution sees."""
    chunk: int
    bias: bool = False
    """The input's matrix has a bias."""
    out_bias: bool | None = None
    """Whether the output's matrix has a bias; None: the value of ``bias``."""
    conv_bias: bool = True
    """The convolution has a bias."""
    norm: bool = True
    """A gated norm runs before the output's matrix."""


class SelectiveScan(Record):
    """Dimensions of a mixer with Mamba's first scan."""

    inner: int
    """Channels of the scan."""
    state: int
    """Elements of the state per channel."""
    rank: int
    """Width of the low-rank time steps."""
    kernel: int
    """Tokens that the convolution sees."""
    bias: bool = False
    """The matrices of input and output have a bias."""
    conv_bias: bool = True
    """The convolution has a bias."""
    norms: bool = False
    """Time steps, B and C have norms with weights (Jamba)."""


STATE_BYTES, CONVOLUTION_BYTES = 4, 2
"""Bytes of an element of a recurrent state (fp32), and of a convolution's inputs (16 bits)."""


def generation_bytes(*, state: int = 0, convolution: int = 0) -> int:
    """Return the bytes that a mixer keeps per sequence in generation: its state, and its convolution's last inputs.

    ``state``, ``convolution``: elements of each.
    """
    return state * STATE_BYTES + convolution * CONVOLUTION_BYTES


def _convolution(module: str, channels: int, kernel: int, *, bias: bool) -> tuple[ParameterTensor, ...]:
    """List the weight and bias of a depthwise convolution over time: one filter of ``kernel`` tokens per channel.

    The classes create it after the bare parameters and before all matrices.
    """
    weight = ParameterTensor(f"{module}.conv1d.weight", (channels, 1, kernel), "mixer", shard="column")
    return (weight, vector(f"{module}.conv1d.bias", channels, "mixer", "column")) if bias else (weight,)


def mamba1(hidden: int, scan: SelectiveScan, module: str = "mamba") -> Mixer:
    """Return Mamba's first mixer: a selective scan over ``scan.inner`` channels after a short convolution.

    ``hidden``: channels of the residual stream. ``module``: the mixer's path in the layer. For generation, each
    sequence keeps the scan's state in fp32, and the convolution's last inputs in 16 bits.
    """
    tensors = [
        ParameterTensor(f"{module}.A_log", (scan.inner, scan.state), "mixer", shard="column"),
        vector(f"{module}.D", scan.inner, "mixer", "column"),
        *_convolution(module, scan.inner, scan.kernel, bias=scan.conv_bias),
        *linear(f"{module}.in_proj", 2 * scan.inner, hidden, "mixer", "column", bias=scan.bias),
        *linear(f"{module}.x_proj", scan.rank + 2 * scan.state, scan.inner, "mixer", "row"),
        *linear(f"{module}.dt_proj", scan.inner, scan.rank, "mixer", "column", bias=True),
        *linear(f"{module}.out_proj", hidden, scan.inner, "mixer", "row", bias=scan.bias),
    ]
    if scan.norms:
        sizes = {"dt": scan.rank, "b": scan.state, "c": scan.state}
        tensors += [vector(f"{module}.{name}_layernorm.weight", size, "norm") for name, size in sizes.items()]
    return Mixer(
        kind="mamba1",
        heads=scan.inner,
        head_dim=1,
        state_bytes_per_sequence=generation_bytes(state=scan.inner * scan.state, convolution=scan.inner * scan.kernel),
        width=2 * scan.inner,
        tensors=tuple(tensors),
        key_dim=scan.state,
        kernel=scan.kernel,
        normed_inputs=scan.norms,
        key_heads=0,
        chunk=0,
    )


def mamba2(hidden: int, state_space: StateSpace, module: str = "mamba") -> Mixer:
    """Build a Mamba-2 mixer.

    ``hidden``: width of the residual stream. ``module``: the mixer's path in the layer. For generation, each sequence
    keeps a state of [heads, head_dim, state] in fp32, and the convolution's last inputs in 16 bits.
    """
    inner = state_space.heads * state_space.head_dim
    convolved = inner + 2 * state_space.groups * state_space.state
    out_bias = state_space.bias if state_space.out_bias is None else state_space.out_bias
    tensors = [
        vector(f"{module}.dt_bias", state_space.heads, "mixer", "column"),
        vector(f"{module}.A_log", state_space.heads, "mixer", "column"),
        vector(f"{module}.D", state_space.heads, "mixer", "column"),
        *_convolution(module, convolved, state_space.kernel, bias=state_space.conv_bias),
        *linear(
            f"{module}.in_proj", inner + convolved + state_space.heads, hidden, "mixer", "column", bias=state_space.bias
        ),
    ]
    if state_space.norm:
        tensors.append(vector(f"{module}.norm.weight", inner, "norm", "column"))
    tensors += linear(f"{module}.out_proj", hidden, inner, "mixer", "row", bias=out_bias)
    return Mixer(
        kind="mamba2",
        heads=state_space.heads,
        head_dim=state_space.head_dim,
        state_bytes_per_sequence=generation_bytes(
            state=inner * state_space.state, convolution=convolved * state_space.kernel
        ),
        width=inner + convolved + state_space.heads,
        tensors=tuple(tensors),
        key_dim=state_space.state,
        groups=state_space.groups,
        kernel=state_space.kernel,
        chunk=state_space.chunk,
        key_heads=0,
    )


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
    key_heads, heads, key, value, kernel = (
        config.integer(name, default=default) for name, default in DIMENSIONS.items()
    )
    if heads % key_heads:
        config.fail("linear_num_value_heads", f"{heads} heads of values are no multiple of {key_heads} of keys")
    keys, values, owner = key_heads * key, heads * value, "self_attention"
    conv_channels = 2 * keys + values  # q, k and v
    tensors = (
        vector(f"{owner}.dt_bias", heads, "mixer", "column"),
        vector(f"{owner}.A_log", heads, "mixer", "column"),
        *linear(f"{owner}.in_proj", 2 * keys + 2 * values + 2 * heads, hidden, "mixer", "column"),
        ParameterTensor(f"{owner}.conv1d.weight", (conv_channels, 1, kernel), "mixer", shard="column"),
        vector(f"{owner}.out_norm.weight", value, "norm"),
        *([vector(f"{owner}.out_norm.bias", value, "norm")] if biased else []),
        *linear(f"{owner}.out_proj", hidden, values, "mixer", "row"),
    )
    return Mixer(
        kind="gated-delta-net",
        heads=heads,
        head_dim=value,
        state_bytes_per_sequence=generation_bytes(state=heads * key * value, convolution=conv_channels * kernel),
        width=2 * keys + 2 * values,
        tensors=tensors,
        key_heads=key_heads,
        key_dim=key,
        kernel=kernel,
        chunk=0,
    )
