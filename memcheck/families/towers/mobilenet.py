"""MobileNet-V5, Gemma 3n's tower: what is resident of it in a step without pictures.

timm 1.0 models/mobilenetv5.py (``mobilenetv5_300m_enc``: edge residuals, universal inverted bottlenecks, attention with
one head of keys), models/_efficientnet_blocks.py, layers/layer_scale.py.
"""

from __future__ import annotations

from memcheck.models.types import ParameterTensor
from memcheck.record import Record

ARCHITECTURE = "mobilenetv5_300m_enc"
SIDE = 768
"""Pixels of a picture's side as Gemma 3n's processor leaves it."""


class _Bottleneck(Record):
    """``uir``: a kernel in front, a widening, a kernel, a narrowing; a kernel of 0 is none."""

    kernels: tuple[int, int]
    ratio: int
    outputs: int


class _Attention(Record):
    """``mqa``, and the bottleneck after it. ``down``: keys and values are read at every second place."""

    heads: int
    width: int
    down: bool


EDGE = (256, 512, 512)
"""Channels inside the first stage's blocks, of 128 outputs."""
STAGES: tuple[tuple[_Bottleneck | _Attention, ...], ...] = (
    (
        _Bottleneck((3, 5), 6, 256), _Bottleneck((5, 0), 4, 256), _Bottleneck((3, 0), 4, 256),
        _Bottleneck((5, 0), 4, 256), _Bottleneck((3, 0), 4, 256),
    ),
    (
        _Bottleneck((5, 5), 6, 640), *(7 * (_Bottleneck((5, 0), 4, 640),)), _Bottleneck((0, 0), 1, 640),
        *(14 * (_Attention(12, 64, down=True), _Bottleneck((0, 0), 2, 640))),
    ),
    (_Bottleneck((5, 5), 6, 1280), *(19 * (_Attention(16, 96, down=False), _Bottleneck((0, 0), 2, 1280)))),
)  # fmt: skip
STEM, FIRST, LAST = 64, 128, 2048
"""Channels of the first convolution, of the first stage, and of what the last two stages become together."""


def tensors() -> tuple[ParameterTensor, ...]:
    """Every parameter of the tower."""
    found = _conv("conv_stem.conv", STEM, 3, 3)
    found += (*_vectors(STEM, "conv_stem.conv.bias", "conv_stem.bn.weight"),)
    width = STEM
    for i, inner in enumerate(EDGE):
        name = f"blocks.0.{i}"
        found += _conv(f"{name}.conv_exp", inner, width, 3) + _vectors(inner, f"{name}.bn1.weight")
        found += _conv(f"{name}.conv_pwl", FIRST, inner, 1) + _vectors(FIRST, f"{name}.bn2.weight")
        width = FIRST
    for stage, blocks in enumerate(STAGES, 1):
        for i, block in enumerate(blocks):
            name = f"blocks.{stage}.{i}"
            if isinstance(block, _Attention):
                found += _attention(name, width, block)
            else:
                found += _bottleneck(name, width, block)
                width = block.outputs
    joined = STAGES[-2][0], STAGES[-1][0]
    inputs = sum(block.outputs for block in joined if isinstance(block, _Bottleneck))
    found += _conv("msfa.ffn.pw_exp.conv", 2 * inputs, inputs, 1) + _vectors(2 * inputs, "msfa.ffn.pw_exp.bn.weight")
    found += _conv("msfa.ffn.pw_proj.conv", LAST, 2 * inputs, 1)
    return found + _vectors(LAST, "msfa.ffn.pw_proj.bn.weight", "msfa.norm.weight")


def _conv(name: str, outputs: int, inputs: int, kernel: int) -> tuple[ParameterTensor, ...]:
    return (ParameterTensor(name + ".weight", (outputs, inputs, kernel, kernel), "vision"),)


def _vectors(size: int, *names: str) -> tuple[ParameterTensor, ...]:
    return tuple(ParameterTensor(name, (size,), "norm") for name in names)


def _bottleneck(name: str, inputs: int, b: _Bottleneck) -> tuple[ParameterTensor, ...]:
    found: tuple[ParameterTensor, ...] = ()
    inner, (start, middle) = inputs * b.ratio, b.kernels
    if start:
        found += _conv(f"{name}.dw_start.conv", inputs, 1, start) + _vectors(inputs, f"{name}.dw_start.bn.weight")
    found += _conv(f"{name}.pw_exp.conv", inner, inputs, 1) + _vectors(inner, f"{name}.pw_exp.bn.weight")
    if middle:
        found += _conv(f"{name}.dw_mid.conv", inner, 1, middle) + _vectors(inner, f"{name}.dw_mid.bn.weight")
    found += _conv(f"{name}.pw_proj.conv", b.outputs, inner, 1)
    return found + _vectors(b.outputs, f"{name}.pw_proj.bn.weight", f"{name}.layer_scale.gamma")


def _attention(name: str, width: int, a: _Attention) -> tuple[ParameterTensor, ...]:
    found = _vectors(width, f"{name}.norm.weight", f"{name}.layer_scale.gamma")
    found += _conv(f"{name}.attn.query.proj", a.heads * a.width, width, 1)
    for part in ("key", "value"):
        if a.down:
            found += _conv(f"{name}.attn.{part}.down_conv", width, 1, 3)
            found += _vectors(width, f"{name}.attn.{part}.norm.weight")
        found += _conv(f"{name}.attn.{part}.proj", a.width, width, 1)
    return found + _conv(f"{name}.attn.output.proj", width, a.heads * a.width, 1)
