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
    """A filter of each channel. The classes make it before any matrix; parameters of their own come first of all."""
    weight = ParameterTensor(f"{module}.conv1d.weight", (channels, 1, kernel), "mixer", shard="column")
    return (weight, vector(f"{module}.conv1d.bias", channels, "mixer", "column")) if bias else (weight,)


def mamba1(hidden: int, s: SelectiveScan, module: str = "mamba") -> Mixer:
    """A state of each channel in the weights' dtype, and the last columns of the convolution's input."""
    tensors = [
        ParameterTensor(f"{module}.A_log", (s.inner, s.state), "mixer", shard="column"),
        vector(f"{module}.D", s.inner, "mixer", "column"),
        *_convolution(module, s.inner, s.kernel, bias=s.conv_bias),
        *linear(f"{module}.in_proj", 2 * s.inner, hidden, "mixer", "column", bias=s.bias),
        *linear(f"{module}.x_proj", s.rank + 2 * s.state, s.inner, "mixer", "row"),
        *linear(f"{module}.dt_proj", s.inner, s.rank, "mixer", "column", bias=True),
        *linear(f"{module}.out_proj", hidden, s.inner, "mixer", "row", bias=s.bias),
    ]
    if s.norms:
        sizes = {"dt": s.rank, "b": s.state, "c": s.state}
        tensors += [vector(f"{module}.{name}_layernorm.weight", size, "norm") for name, size in sizes.items()]
    return Mixer(
        kind="mamba1",
        heads=s.inner,
        head_dim=1,
        state_bytes_per_sequence=s.inner * s.state * 4 + s.inner * s.kernel * 2,
        width=2 * s.inner,
        tensors=tuple(tensors),
        key_dim=s.state,
        kernel=s.kernel,
        normed_inputs=s.norms,
    )


def mamba2(hidden: int, s: StateSpace, module: str = "mamba") -> Mixer:
    """A heads x head_dim x state matrix in fp32, and the last columns of the convolution's input."""
    inner = s.heads * s.head_dim
    convolved = inner + 2 * s.groups * s.state
    out_bias = s.bias if s.out_bias is None else s.out_bias
    tensors = [
        vector(f"{module}.dt_bias", s.heads, "mixer", "column"),
        vector(f"{module}.A_log", s.heads, "mixer", "column"),
        vector(f"{module}.D", s.heads, "mixer", "column"),
        *_convolution(module, convolved, s.kernel, bias=s.conv_bias),
        *linear(f"{module}.in_proj", inner + convolved + s.heads, hidden, "mixer", "column", bias=s.bias),
    ]
    if s.norm:
        tensors.append(vector(f"{module}.norm.weight", inner, "norm", "column"))
    tensors += linear(f"{module}.out_proj", hidden, inner, "mixer", "row", bias=out_bias)
    return Mixer(
        kind="mamba2",
        heads=s.heads,
        head_dim=s.head_dim,
        state_bytes_per_sequence=inner * s.state * 4 + convolved * s.kernel * 2,
        width=inner + convolved + s.heads,
        tensors=tuple(tensors),
        key_dim=s.state,
        groups=s.groups,
        kernel=s.kernel,
        chunk=s.chunk,
    )
