"""The towers of a multimodal model, as a memory model sees them."""

from __future__ import annotations

from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.record import Record


class TowerAttention(Record):
    """Bidirectional attention of a vision tower, over the rows of each picture by themselves."""

    heads: int
    head_dim: int
    kind: str
    """How its module is written: a name in :mod:`memcheck.families.towers.attention`, or ``module:function``."""
    tensors: tuple[ParameterTensor, ...] = ()
    bias: bool = True
    """Whether the projections of attention have biases."""
    window: int = 0
    """Rows that attend to each other: Qwen2.5-VL's windows; 0 = all of a picture."""
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    rotary_dim: int = 0
    """Channels of each head that are rotated, where its form has it (MiniMax M3)."""
    softmax_fp32: bool = True
    """Eager attention asks for its softmax in fp32 (InternViT's and Llama 4's do not)."""


class Buffers(Record):
    """Equal buffers that a tower holds in addition to its parameters."""

    number: int
    elements: int
    """Numbers in each."""
    fp32: bool = True
    """Whether they are fp32, whatever the dtype of the weights is."""


class ClippedTowerAttention(TowerAttention):
    """A tower's attention that clamps inputs and outputs of its matrices between learned bounds (Gemma 4)."""


class OtherTower(Record):
    """A tower that a step without its inputs holds and never runs: the audio tower of a Gemma."""

    part: str
    """What ``training.freeze`` calls it."""
    blocks: tuple[tuple[Block, int], ...]
    tensors: tuple[ParameterTensor, ...]
    buffers: tuple[Buffers, ...] = ()
    path: str = "model."
    """Where the model keeps it: what module patterns match, with the dot."""
    layers: str = "encoder.layers"
    """Path of its layers in it."""


class Embedder(Record):
    """A table of the tokens of pictures or sounds, a norm and a matrix, which every token goes through (Gemma 3n)."""

    name: str
    rows: int
    width: int
    tokens: int = 0
    """Rows that the tower makes of a picture, which a norm of their own and the matrix make image tokens; 0 = the tower
    has no memory model as it runs.
    """
    side: int = 0
    """Pixels of the side of every picture."""


class IdleTowers(Record):
    """Towers that have no memory model of their run: they are idle, in steps of text alone."""

    others: tuple[OtherTower, ...]
    embedders: tuple[Embedder, ...] = ()


class Perceiver(Record):
    """A projector that reads the rows of each picture by a few learned ones (Idefics 2)."""

    latents: int
    """Image tokens of a picture."""
    heads: int
    kv_heads: int
    head_dim: int
    activation: str


class CrossReading(Record):
    """How a language model reads pictures by layers of cross attention (Llama 3.2 Vision)."""

    layers: tuple[int, ...]
    """Numbers of those layers. Image tokens take no places among those of the text."""
    tiles: int
    """Tiles of a picture, for each of which those layers have a number of every token in their mask."""


class Between(Record):
    """What runs once between the first kind of layers and the second (Llama 3.2 Vision, MiniCPM-V)."""

    tensors: tuple[ParameterTensor, ...]
    merges: int = 1
    """Rows of which one row is made."""


class Vision(Record):
    """A vision tower, and the projector that makes image tokens of its rows."""

    kind: str
    """``module:name`` of its forward passes: in ``FORWARDS`` of a module of :mod:`memcheck.families.towers`."""
    hidden: int
    """Elements of one of the tower's rows."""
    blocks: tuple[tuple[Block, int], ...]
    """Runs of equal layers that run with a graph, in order."""
    channels: int
    """Numbers of one patch in ``pixel_values``, which arrive in fp32."""
    merge: int
    """Patches that become one image token."""
    outputs: int
    """Width of an image token: the language model's."""
    stem: tuple[ParameterTensor, ...]
    """Patch embedding, positions, and what else runs before the layers."""
    projector: tuple[ParameterTensor, ...]
    """Parameters of what makes image tokens of the tower's rows."""
    hooked: bool
    """``enable_input_require_grads`` finds its patch embedding (``_input_embed_layer``), so that checkpointing makes a
    frozen tower part of the graph."""
    cross: CrossReading | None = None
    """How layers of cross attention read the image tokens; None: these take places among those of the text."""
    between: Between | None = None
    gathered: tuple[int, ...] = ()
    """Layers whose rows the projector reads in addition to those of the last."""
    narrow: bool = False
    """Under autocast its residual stream is in autocast's dtype: nothing in fp32 joins the patches (Qwen)."""
    closing: tuple[ParameterTensor, ...] = ()
    """What runs after the layers and belongs to the tower: a last norm."""
    idle: tuple[tuple[Block, int], ...] = ()
    """Layers after the features that are read: they run, and get no gradient. Their graph is in the tower's output."""
    unused: tuple[ParameterTensor, ...] = ()
    """Tensors that the forward pass of a picture never meets."""
    perceiver: Perceiver | None = None
    """What makes image tokens of the projected rows, where they are not these rows."""
    resampled: int = 0
    """Image tokens that are made of every picture, whatever its rows; 0 = as many as ``merge`` says."""
    tile: int = 0
    """Rows of a tile, class token included; 0 = pictures have as many as their size gives."""
    tile_tokens: int = 0
    """Image tokens of a tile, at most."""
    budgets: tuple[int, ...] = ()
    """Image tokens to which processors pad a picture: it has rows of all of them, and image tokens of its own
    (Gemma 4).
    """
    position_bytes: int = 0
    """Bytes of position ids for each row, in addition to ``pixel_values``."""
    cast: bool = True
    """The model casts ``pixel_values`` to its own dtype; one that does not is given them in it."""
    buffers: tuple[Buffers, ...] = ()
    others: tuple[OtherTower, ...] = ()
    """Other towers in the same configuration."""
    classes: int = 0
    """Class tokens among the rows of a tile."""
    gives_out: bool = True
    """The model's output carries the image tokens (``image_hidden_states``), as long as the training loop has it."""
    placement: str = "scatter"
    """How image tokens come to their places: ``scatter`` (``masked_scatter``) | ``put`` (``index_put``; no variable of
    the model's forward refers to them or to the tower's output while the language model runs: Phi-4) | ``added`` to
    what was looked up there, where every layer's rows live until the projector has run (Molmo 2).
    """
    to_loss: bool = False
    """The language model inside has a head of its own: the tower's outputs live until the loss is computed."""
    mask_bytes: int = 0
    """Bytes of a padding mask for each pixel, in addition to ``pixel_values``."""
    deepstack: tuple[int, ...] = ()
    """Layers whose rows have mergers of their own, whose image tokens are added after the first layers of text."""
    side: int = 0
    """Pixels of the longest side that the released checkpoint's processor leaves."""
    patch: int = 0
    """Pixels of a patch's side."""
    processor: str = ""
    """``module:function`` in :mod:`memcheck.families.towers`; empty: nothing is known of the image processor."""
    separators: int = 0
    """Tokens that the processor puts around the tokens of a picture, at least."""
    heads: int = 0
    activation: str = "gelu"
    path: str = "visual"
    """Path of the tower: what module patterns match."""
    layers: str = "encoder.layers"
    """Path of the layers in the tower."""
    bare: bool = False
    """The model's class has no ``model.`` in front of its parts (Llama 4, Nemotron 3 Nano Omni)."""
    projector_path: str = "visual.merger"

    @property
    def checkpointed(self) -> bool:
        """Whether activation checkpointing reaches the layers: not those of ``MllamaVisionModel``."""
        return self.cross is None

    @property
    def crosses(self) -> tuple[int, ...]:
        """Layers of the language model that read the image tokens by cross attention."""
        return self.cross.layers if self.cross is not None else ()

    @property
    def between_tensors(self) -> tuple[ParameterTensor, ...]:
        """The tensors between the two kinds of layers."""
        return self.between.tensors if self.between is not None else ()
