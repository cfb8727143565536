"""What the towers of several families have in common: pre-norm layers with separate projections, square tiles."""

from __future__ import annotations

from memcheck.models.decoder import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Block, Mlp, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention
from memcheck.record import Record

IRRELEVANT_KEYS = (
    "model_type",
    "initializer_range",
    "initializer_factor",
    "layer_norm_eps",
    "rope_parameters",
    "rope_theta",
)


class LayerNames(Record):
    """What a family calls the modules of a layer."""

    queries: str = "self_attn.q_proj"
    keys: str = "self_attn.k_proj"
    values: str = "self_attn.v_proj"
    output: str = "self_attn.out_proj"
    norms: tuple[str, str] = ("layer_norm1", "layer_norm2")
    mlp: tuple[str, ...] = ("mlp.fc1", "mlp.fc2")


SIGLIP = LayerNames()


def tower_layer(  # noqa: PLR0913 - what families differ in
    width: int,
    heads: int,
    mlp: Mlp,
    kind: str,
    names: LayerNames = SIGLIP,
    *,
    bias: bool = True,
    norm: str = "layernorm",
    extra: tuple[ParameterTensor, ...] = (),
    softmax_fp32: bool = True,
) -> Block:
    """Build a pre-norm layer of a tower.

    ``kind``: the form of its attention, or ``module:function``. ``bias``: of q, k and v; the output has one except with
    RMSNorms. ``extra``: tensors of layer scales. ``softmax_fp32``: eager attention computes its softmax in fp32.
    """
    out_bias = norm == "layernorm" or bool(extra)
    tensors: tuple[ParameterTensor, ...] = ()
    for name in (names.queries, names.keys, names.values):
        tensors += linear(name, width, width, "attention", "column", bias=bias)
    tensors += linear(names.output, width, width, "attention", "row", bias=out_bias)
    mixer = TowerAttention(heads=heads, head_dim=width // heads, kind=kind, tensors=tensors, bias=bias)
    return Block(
        mixer=mixer._replace(softmax_fp32=softmax_fp32),
        mlp=mlp,
        input_norm=Norm(norm, width, bias=norm == "layernorm", name=names.norms[0]),
        mlp_norm=Norm(norm, width, bias=norm == "layernorm", name=names.norms[1]),
        extra_tensors=extra,
        branch_scale="vector" if extra else "",
    )


def tower_mlp(width: int, inner: int, activation: str, names: tuple[str, ...], *, bias: bool = True) -> Mlp:
    """Build the feed-forward of a tower's layer: two matrices, or three if it is gated. ``names``: the down projection
    last.
    """
    tensors: tuple[ParameterTensor, ...] = ()
    for name in names[:-1]:
        tensors += linear(name, inner, width, "mlp", "column", bias=bias)
    tensors += linear(names[-1], width, inner, "mlp", "row", bias=bias)
    return Mlp(inner, len(names) > 2, activation, bias=bias, tensors=tensors)


def norm_pair(name: str, width: int) -> tuple[ParameterTensor, ParameterTensor]:
    """Weight and bias of a LayerNorm."""
    return ParameterTensor(name + ".weight", (width,), "norm"), ParameterTensor(name + ".bias", (width,), "norm")


def square_side(config: ConfigReader, key: str, default: int) -> int:
    """Read the side of a square in pixels, stated as one number or as two equal ones."""
    value = config.raw(key)
    if isinstance(value, (list, tuple)):
        sides = config.integers(key) or ()
        if len(set(sides)) != 1:
            config.fail(key, f"{key} = {list(sides)} is no square", "only square tiles and patches are read")
        return sides[0]
    return config.integer(key, default=default)


def require_divisible_heads(config: ConfigReader, width: int, heads: int) -> None:
    """Fail unless ``heads`` divides the tower's ``width``."""
    if width % heads:
        config.fail("num_attention_heads", f"the tower's width {width} is no multiple of {heads} heads")
