"""Mixers that carry a state along the sequence: Mamba-2's and Mamba-1's tensors."""

from __future__ import annotations

from memcheck.models.parts.matrices import linear, vector
from memcheck.models.types import Mixer, ParameterTensor
from memcheck.record import Record


class StateSpace(Record):
    """Dimensions of a Mamba-2 mixer."""

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    chunk: int
    bias: bool = False
    out_bias: bool | None = None
    """Whether the output's matrix has a bias; None: the value of ``bias``."""
    conv_bias: bool = True
    norm: bool = True


class SelectiveScan(Record):
    """Dimensions of a mixer with Mamba's first scan."""

    inner: int
    state: int
    rank: int
    kernel: int
    bias: bool = False
    conv_bias: bool = True
    norms: bool = False
    """Time steps, B and C have norms with weights (Jamba)."""


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
        state_bytes_per_sequence=scan.inner * scan.state * 4 + scan.inner * scan.kernel * 2,
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
        state_bytes_per_sequence=inner * state_space.state * 4 + convolved * state_space.kernel * 2,
        width=inner + convolved + state_space.heads,
        tensors=tuple(tensors),
        key_dim=state_space.state,
        groups=state_space.groups,
        kernel=state_space.kernel,
        chunk=state_space.chunk,
        key_heads=0,
    )
