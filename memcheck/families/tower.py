"""What a kind of vision tower runs, how trainers treat its modules, and a picture's patches and tokens.

What the towers of several families have in common: pre-norm layers with separate projections, square tiles.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.edge.imports import import_module
from memcheck.errors import MemcheckError
from memcheck.models.decoder import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, Mlp, Norm, ParameterTensor
from memcheck.models.vision import OtherTower, TowerAttention, Vision
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from memcheck.autograd.context import Context
    from memcheck.autograd.tensor import Value


def _as_they_are(ctx: Context, vision: Vision, rows: Value) -> Value:
    """The rows of a tower whose layers are of one kind."""
    return rows


def _unmerged(ctx: Context, vision: Vision, tensors: tuple[ParameterTensor, ...], rows: Value) -> Value:
    """The rows of a tower without mergers of earlier layers."""
    return rows


class TowerForward(Record):
    """The forward passes of a kind of tower, in ``FORWARDS`` of its file in :mod:`memcheck.families.towers`."""

    stem: Callable[[Context, Vision, bool], tuple[Value, list[Value]]]
    """From ``pixel_values`` to the rows of the first layer, followed by what every layer reads: rotary tables, masks.
    With the flag the patch embedding's output is made a leaf, which AccumulateGrad keeps. It is among the others, too.
    """
    project: Callable[[Context, Vision, Value], Value]
    """Image tokens of the last layer's rows. Tensors that the model's variables hold go to ``ctx.extra_outputs``."""
    middle: Callable[[Context, Vision, Value], Value] = _as_they_are
    """What runs between the first kind of layers and the second (Llama 3.2 Vision, MiniCPM-V)."""
    early_tokens: Callable[[Context, Vision, tuple[ParameterTensor, ...], Value], Value] = _unmerged
    """Image tokens of rows that an earlier layer made, by a merger of those tensors (Qwen3-VL)."""
    runs_layers_itself: bool = False
    """The tower's own forward loops over the layers with one variable for the rows. Other towers have an encoder."""
    wrapped_modules: tuple[str, ...] = ("layers",)
    """Modules that ``_no_split_modules`` of transformers 5.24 names: ``layers``, or their ``attention`` alone,
    ``embedding`` of patches, ``projector``.
    """
    hooked_by_swift: bool = False
    """Only ms-swift names the patch embedding for ``enable_input_require_grads``."""


@lru_cache(maxsize=32)
def tower_forward(kind: str) -> TowerForward:
    """Return the forward passes of a tower, by ``module:name`` in ``FORWARDS`` of :mod:`memcheck.families.towers`."""
    module, name = kind.split(":")
    forwards: dict[str, TowerForward] = import_module("memcheck.families.towers." + module).FORWARDS
    return forwards[name]


class Limits(Record):
    """Least and most pixels that a picture is scaled to, where the plan states them."""

    least_pixels: int | None = None
    most_pixels: int | None = None


class PictureError(MemcheckError):
    """No processor takes such a picture, or takes such a setting."""


class ProcessedPicture(Record):
    """What a processor makes of one picture or clip."""

    pictures: int
    """Tiles, or pictures that the tower sees apart: a clip's pairs of frames."""
    patches: int
    """Rows of the tower, class tokens included."""
    image_tokens: int
    """Image tokens of the sequence."""
    separator_tokens: int = 0
    """Further tokens that the processor's text part puts around them."""
    defaults: tuple[tuple[str, object, str], ...] = ()
    """Settings of the checkpoint's processor that were taken: key, value, why."""
    each_of_several: tuple[int, int, int] | None = None
    """Pictures, patches and tokens of each of several pictures of a sample, where that is not what one alone has."""
    patches_by_picture: tuple[int, ...] = ()
    """Rows of each of what the tower sees apart, where these differ; none: they are alike."""


def tokens_of(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Compute the patches and image tokens that the released checkpoint's processor makes of a picture or a clip.

    ``height``, ``width``: in pixels. ``frames``: of a clip; None for a picture. ``limits``: on pixels, from the plan.
    """
    if not vision.processor:
        raise PictureError(
            "memcheck does not know this model's image processor",
            "write `patches` and `tokens` as the processor counts them",
        )
    module, function = vision.processor.split(":")
    process: Callable[[Vision, int, int, int | None, Limits], ProcessedPicture] = getattr(
        import_module("memcheck.families.towers." + module), function
    )
    return process(vision, height, width, frames, limits)


def no_limits(limits: Limits) -> None:
    """Check that the plan states no limits that this processor does not have.

    Raises:
        PictureError: the plan states such a limit.
    """
    if limits != Limits():
        raise PictureError(
            "this model's processor scales pictures to sizes of its own: it has no limit in pixels",
            "remove max_pixels and min_pixels, or write `patches` and `tokens`",
        )


def no_clips(frames: int | None) -> None:
    """Check that the plan states no frames if this processor takes none.

    Raises:
        PictureError: the plan states frames.
    """
    if frames is not None:
        raise PictureError(
            "memcheck has no arithmetic of this model's video processor",
            "write `patches` and `tokens` as the processor counts them",
        )


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

    ``kind``: the form of its attention, as :attr:`TowerAttention.kind`. ``bias``: of q, k and v; the output has one
    except with RMSNorms. ``extra``: learned vectors that multiply both halves (InternViT, C-RADIO). ``softmax_fp32``:
    eager attention computes its softmax in fp32.
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


class LayerSizes(Record):
    """Dimensions of a tower's layers, also as the defaults of a class."""

    width: int
    """Elements of a row."""
    heads: int
    inner: int
    """Elements between the matrices of the feed-forward network."""
    depth: int
    """Number of layers."""


def read_layer_sizes(config: ConfigReader, default: LayerSizes, heads_keys: tuple[str, ...] = ()) -> LayerSizes:
    """Read a tower's width, heads, inner width and number of layers, in Hugging Face's usual names of these keys.

    ``default``: what the class takes where a key is absent. ``heads_keys``: other names of the number of heads.

    Raises:
        ArchitectureError: the heads do not divide the width.
    """
    width = config.integer("hidden_size", default=default.width)
    heads = config.integer(*(heads_keys or ("num_attention_heads",)), default=default.heads)
    require_divisible_heads(config, width, heads)
    inner = config.integer("intermediate_size", default=default.inner)
    depth = config.integer("num_hidden_layers", default=default.depth, maximum=MAX_LAYERS)
    return LayerSizes(width=width, heads=heads, inner=inner, depth=depth)


class Pixels(Record):
    """Squares of pixels that a tower reads, and the square patches of each."""

    colours: int
    side_pixels: int
    """Pixels of a square's side."""
    patch_side: int
    """Pixels of a patch's side."""

    @property
    def patches(self) -> int:
        """Patches of a square."""
        return (self.side_pixels // self.patch_side) ** 2

    @property
    def channels(self) -> int:
        """Numbers of one patch."""
        return self.colours * self.patch_side * self.patch_side


def read_pixels(config: ConfigReader, default: Pixels) -> Pixels:
    """Read ``num_channels``, ``image_size`` and ``patch_size``. ``default``: what the class takes for absent keys."""
    colours = config.integer("num_channels", default=default.colours)
    side = square_side(config, "image_size", default.side_pixels)
    return Pixels(colours, side, square_side(config, "patch_size", default.patch_side))


def patch_convolution_tensors(
    name: str, width: int, pixels: Pixels, *, bias: bool = True
) -> tuple[ParameterTensor, ...]:
    """List the tensors of a convolution that makes a row of ``width`` elements of each patch. ``name``: its module."""
    weight = ParameterTensor(f"{name}.weight", (width, pixels.colours, pixels.patch_side, pixels.patch_side), "vision")
    return (weight, ParameterTensor(f"{name}.bias", (width,), "vision")) if bias else (weight,)


def two_matrices(
    names: tuple[str, str], inputs: int, inner: int, outputs: int, *, bias: bool = True
) -> tuple[ParameterTensor, ...]:
    """List the matrices of a projector, from ``inputs`` to ``inner`` and from ``inner`` to ``outputs`` elements."""
    first = linear(names[0], inner, inputs, "projector", "none", bias=bias)
    return first + linear(names[1], outputs, inner, "projector", "none", bias=bias)


def refuse_dropout(config: ConfigReader, key: str, help: str = "remove it") -> None:
    """Fail if a tower's dropout ``key`` is above 0."""
    if config.dropout(key):
        config.fail(key, f"{key} in a vision tower has no memory model", help)


def idle_layer(tensors: tuple[ParameterTensor, ...]) -> Block:
    """Build a layer that holds ``tensors`` and never runs."""
    return Block(mixer=None, mlp=None, input_norm=None, mlp_norm=None, extra_tensors=tensors)


def idle_projector(tensors: tuple[ParameterTensor, ...]) -> OtherTower:
    """Return what makes tokens of an idle tower's rows: ``tensors`` that never run."""
    return OtherTower(part="projector", blocks=(), tensors=tensors)


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
