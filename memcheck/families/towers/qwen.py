"""The towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches of all pictures in one row, merged by fours.

modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.stack import stack
from memcheck.models.reader import MAX_LAYERS, REQUIRED, ConfigReader, Required
from memcheck.models.types import Block, Mlp, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record

HARMLESS = ("model_type", "tokens_per_second", "temporal_patch_size", "rope_parameters", "initializer_range", "dtype")


def read_2(config: ConfigReader, around: AroundTower) -> Vision:
    """Qwen2-VL: LayerNorm, QuickGELU. ``hidden_size`` repeats the language model's."""
    hidden = around.language.hidden_size
    width = config.integer("embed_dim")
    heads = heads_of(config, width)
    outputs = config.integer("hidden_size")
    if outputs != hidden:
        config.fail("hidden_size", f"hidden_size = {outputs} of the tower is not the language model's {hidden}")
    config.ignore("spatial_patch_size")
    activation = config.activation(default="quick_gelu")
    mlp = packed_mlp(width, int(width * config.number("mlp_ratio", default=4)), activation, ("fc1", "fc2"), gated=False)
    block = packed_block(width, heads, mlp, "layernorm")
    merge = config.integer("spatial_merge_size", default=2) ** 2
    depth = config.integer("depth", maximum=MAX_LAYERS)
    return Vision(
        kind="qwen",
        hidden=width,
        blocks=((block, depth),),
        channels=channels(config, 14),
        merge=merge,
        outputs=outputs,
        stem=patch_embedding(config, width, 14),
        projector=merger("merger", width, merge, outputs, "ln_q", ("mlp.0", "mlp.2"), bias=True),
        hooked=True,
        narrow=True,
        patch=config.integer("patch_size", default=14),
        processor="qwen:see_2",
        separators=2,
        gives_out=False,
        heads=heads,
        activation="gelu",
    )


def read_2_5(config: ConfigReader, around: AroundTower) -> Vision:
    """Qwen2.5-VL: RMSNorm, gated MLP with biases, windows of 112 pixels but in ``fullatt_block_indexes``."""
    tower = windowed(config, around, "merger")
    outputs_of(config, around.language.hidden_size)
    return tower


def windowed(config: ConfigReader, around: AroundTower, merger_path: str) -> Vision:
    """Qwen2.5-VL's tower, whose image tokens may be of another width than the language model's."""
    width, outputs = config.integer("hidden_size"), config.integer("out_hidden_size")
    heads = heads_of(config, width)
    config.ignore("spatial_patch_size")
    names = ("gate_proj", "up_proj", "down_proj")
    mlp = packed_mlp(width, config.integer("intermediate_size"), config.activation(), names)
    depth = config.integer("depth", maximum=MAX_LAYERS)
    merge = config.integer("spatial_merge_size", default=2) ** 2
    side = config.integer("window_size", default=112) // config.integer("patch_size", default=14)
    stated = config.integers("fullatt_block_indexes")
    unwindowed = (7, 15, 23, 31) if stated is None else stated
    made = {
        window: packed_block(width, heads, mlp, "rmsnorm", side * side if window else 0) for window in (True, False)
    }
    return Vision(
        kind="qwen2_5",
        hidden=width,
        blocks=stack([i not in unwindowed for i in range(depth)], made.__getitem__),
        channels=channels(config, 14),
        merge=merge,
        outputs=outputs,
        stem=patch_embedding(config, width, 14),
        projector=merger(merger_path, width, merge, outputs, "ln_q", ("mlp.0", "mlp.2"), bias=False),
        hooked=True,
        narrow=True,
        patch=config.integer("patch_size", default=14),
        processor="qwen:see_2",
        separators=2,
        gives_out=False,
        heads=heads,
        activation="gelu",
    )


class MergerNames(Record):
    """What a class calls the modules of its mergers."""

    norm: str = "norm"
    matrices: tuple[str, str] = ("linear_fc1", "linear_fc2")
    stacked: str = "deepstack_merger_list"


def read_3(config: ConfigReader, around: AroundTower) -> Vision:
    """Qwen3-VL and Qwen3.5."""
    stacks = around.outer.model_type.startswith(("cosmos3_omni", "qwen3_vl"))
    return positioned(config, around, MergerNames(), (8, 16, 24) if stacks else ())


def positioned(config: ConfigReader, around: AroundTower, names: MergerNames, default: tuple[int, ...]) -> Vision:
    """LayerNorm, learned positions, and mergers of the layers in ``deepstack_visual_indexes``."""
    width = config.integer("hidden_size", default=1152)
    heads, outputs = heads_of(config, width, 16), outputs_of(config, around.language.hidden_size)
    inner = config.integer("intermediate_size", default=4304)
    activation = config.activation(default="gelu_pytorch_tanh")
    mlp = packed_mlp(width, inner, activation, ("linear_fc1", "linear_fc2"), gated=False)
    merge = config.integer("spatial_merge_size", default=2) ** 2
    depth = config.integer("depth", default=27, maximum=MAX_LAYERS)
    stated = config.integers("deepstack_visual_indexes")
    stacked = default if stated is None else stated
    positions = config.integer("num_position_embeddings", default=2304)
    projector = merger("merger", width, merge, outputs, names.norm, names.matrices, bias=True)
    runs = tuple(sorted(index for index in stacked if index < depth))
    for index in range(len(runs)):
        path = f"{names.stacked}.{index}"
        projector += merger(path, width, merge, outputs, names.norm, names.matrices, bias=True, rows=merge)
    unused: tuple[ParameterTensor, ...] = ()
    for index in range(len(runs), len(stacked)):
        path = f"{names.stacked}.{index}"
        unused += merger(path, width, merge, outputs, names.norm, names.matrices, bias=True, rows=merge)
    table = ParameterTensor("pos_embed.weight", (positions, width), "position")
    return Vision(
        kind="qwen3",
        hidden=width,
        blocks=((packed_block(width, heads, mlp, "layernorm"), depth),),
        channels=channels(config, 16),
        merge=merge,
        outputs=outputs,
        stem=(*patch_embedding(config, width, 16, bias=True), table),
        projector=projector,
        hooked=False,
        narrow=True,
        deepstack=runs,
        unused=unused,
        patch=config.integer("patch_size", default=16),
        processor="qwen:see_3",
        separators=2,
        gives_out=False,
        heads=heads,
        activation="gelu",
    )


def packed_block(
    width: int,
    heads: int,
    mlp: Mlp,
    norm: str,
    window: int = 0,
    attention: TowerAttention | None = None,
) -> Block:
    """A pre-norm layer on the rows of all pictures; ``attention``: another than one with a matrix for q, k and v."""
    attention = attention or TowerAttention(
        heads=heads,
        head_dim=width // heads,
        kind="qwen",
        tensors=linear("attn.qkv", 3 * width, width, "attention", "column", bias=True)
        + linear("attn.proj", width, width, "attention", "row", bias=True),
        window=window,
    )
    bias = norm == "layernorm"
    return Block(
        mixer=attention,
        mlp=mlp,
        input_norm=Norm(norm, width, bias=bias, name="norm1"),
        mlp_norm=Norm(norm, width, bias=bias, name="norm2"),
    )


def packed_mlp(
    width: int, inner: int, activation: str, names: tuple[str, ...], *, gated: bool = True, bias: bool = True
) -> Mlp:
    """The feed-forward network of such a layer."""
    tensors: tuple[ParameterTensor, ...] = ()
    for name in names[:-1]:
        tensors += linear(f"mlp.{name}", inner, width, "mlp", "column", bias=bias)
    tensors += linear(f"mlp.{names[-1]}", width, inner, "mlp", "row", bias=bias)
    return Mlp(inner, gated, activation, bias=bias, tensors=tensors)


def merger(
    path: str, width: int, merge: int, outputs: int, norm: str, names: tuple[str, str], *, bias: bool, rows: int = 1
) -> tuple[ParameterTensor, ...]:
    """Norm over ``rows`` patches, two matrices. Its tensors in the order of the forward pass."""
    wide = width * merge
    found = [ParameterTensor(f"{path}.{norm}.weight", (width * rows,), "norm")]
    if bias:
        found.append(ParameterTensor(f"{path}.{norm}.bias", (width * rows,), "norm"))
    first = linear(f"{path}.{names[0]}", wide, wide, "mlp", "none", bias=True)
    return (*found, *first, *linear(f"{path}.{names[1]}", outputs, wide, "mlp", "none", bias=True))


def patch_embedding(config: ConfigReader, width: int, patch: int, *, bias: bool = False) -> tuple[ParameterTensor, ...]:
    """A convolution over the pixels of a patch, in two frames."""
    side = config.integer("patch_size", default=patch)
    shape = (width, _colours(config), config.integer("temporal_patch_size", default=2), side, side)
    found = (ParameterTensor("patch_embed.proj.weight", shape, "vision"),)
    return (*found, ParameterTensor("patch_embed.proj.bias", (width,), "vision")) if bias else found


def _colours(config: ConfigReader) -> int:
    return config.integer("in_channels", "in_chans", default=3)


def channels(config: ConfigReader, patch: int) -> int:
    """Numbers of one patch: of two frames."""
    side, frames = config.integer("patch_size", default=patch), config.integer("temporal_patch_size", default=2)
    config.ignore(*HARMLESS)
    return _colours(config) * frames * side * side


def heads_of(config: ConfigReader, width: int, default: int | Required = REQUIRED) -> int:
    """Heads of the tower."""
    heads = config.integer("num_heads", default=default)
    if width % heads:
        config.fail("num_heads", f"the tower's width {width} is no multiple of {heads} heads")
    return heads


def outputs_of(config: ConfigReader, hidden: int) -> int:
    """Width of an image token, which is the language model's."""
    outputs = config.integer("out_hidden_size")
    if outputs != hidden:
        config.fail("out_hidden_size", f"out_hidden_size = {outputs} is not the language model's width {hidden}")
    return outputs
