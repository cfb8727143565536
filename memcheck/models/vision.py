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

    copies: int
    elements: int
    """Numbers in each."""
    is_fp32: bool = True
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
    layers_path: str = "encoder.layers"
    """Path of its layers in it."""


class Embedder(Record):
    """A table of the tokens of pictures or sounds, a norm and a matrix, which every token goes through (Gemma 3n)."""

    name: str
    """Name of the module, such as ``embed_vision``."""
    rows: int
    """Rows of the table."""
    width: int
    """Columns of the table."""
    image_tokens: int = 0
    """Rows that the tower makes of a picture, which a norm of their own and the matrix make image tokens; 0 = the tower
    has no memory model as it runs.
    """
    side_pixels: int = 0
    """Pixels of the side of every picture."""


class IdleTowers(Record):
    """Towers that have no memory model of their run: they are idle, in steps of text alone."""

    other_towers: tuple[OtherTower, ...]
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

    text_layers: tuple[int, ...]
    """Numbers of those layers. Image tokens take no places among those of the text."""
    tiles_per_picture: int
    """Tiles of a picture, for each of which those layers have a number of every token in their mask."""


class Between(Record):
    """What runs once between the first kind of layers and the second (Llama 3.2 Vision, MiniCPM-V)."""

    tensors: tuple[ParameterTensor, ...]
    rows_per_merged_row: int = 1
    """Rows of which one row is made."""


class Vision(Record):
    """A vision tower, and the projector that makes image tokens of its rows."""

    kind: str
    """``module:name`` of its forward passes: in ``FORWARDS`` of a module of :mod:`memcheck.families.towers`."""
    hidden: int
    """Elements of one of the tower's rows."""
    blocks: tuple[tuple[Block, int], ...]
    """Runs of equal layers that run with a graph, in order."""
    values_per_patch: int
    """Elements of one patch in ``pixel_values``: its pixels times colours, and frames of a clip."""
    patches_per_token: int
    """Patches that become one image token."""
    token_width: int
    """Width of an image token: the language model's."""
    stem_tensors: tuple[ParameterTensor, ...]
    """Patch embedding, positions, and what else runs before the layers."""
    projector_tensors: tuple[ParameterTensor, ...]
    """Parameters of what makes image tokens of the tower's rows."""
    embedding_can_be_hooked: bool
    """Whether ``enable_input_require_grads`` finds the patch embedding (``_input_embed_layer``). Its hook makes the
    output require a gradient, so that a checkpointed tower is part of the graph even if it is frozen."""
    cross_attention: CrossReading | None = None
    """How layers of cross attention read the image tokens; None: these take places among those of the text."""
    middle: Between | None = None
    """What runs between the first kind of layers and the second; None: the layers are of one kind."""
    feature_layers: tuple[int, ...] = ()
    """Layers whose rows the projector reads in addition to those of the last."""
    residual_in_autocast_dtype: bool = False
    """Under autocast its residual stream is in autocast's dtype: nothing in fp32 joins the patches (Qwen)."""
    closing_tensors: tuple[ParameterTensor, ...] = ()
    """What runs after the layers and belongs to the tower: a last norm."""
    idle_blocks: tuple[tuple[Block, int], ...] = ()
    """Layers after the features that are read: they run, and get no gradient. Their graph is in the tower's output."""
    unused_tensors: tuple[ParameterTensor, ...] = ()
    """Tensors that the forward pass of a picture never meets."""
    perceiver: Perceiver | None = None
    """What makes image tokens of the projected rows, where they are not these rows."""
    tokens_per_picture: int = 0
    """Image tokens that a resampler makes of every picture, whatever its rows; 0: one of ``patches_per_token`` rows."""
    rows_per_tile: int = 0
    """Rows of a tile, class token included; 0 = pictures have as many as their size gives."""
    tokens_per_tile: int = 0
    """Image tokens of a tile, at most."""
    token_budgets: tuple[int, ...] = ()
    """Image tokens to which processors pad a picture: it has rows of all of them, and image tokens of its own
    (Gemma 4).
    """
    position_bytes_per_patch: int = 0
    """Bytes of position ids that a batch has for each patch, in addition to ``pixel_values``."""
    pixels_arrive_in_fp32: bool = True
    """Pixels reach the model in fp32, and the model casts them. False: they arrive in the dtype of its parameters."""
    buffers: tuple[Buffers, ...] = ()
    """The tower's buffers, such as tables of sines."""
    other_towers: tuple[OtherTower, ...] = ()
    """Other towers in the same configuration, which hold weights and do not run."""
    class_tokens_per_tile: int = 0
    """Class tokens among the rows of a tile."""
    returns_image_tokens: bool = True
    """The model's output has the image tokens (``image_hidden_states``): they live as long as the loop refers to it."""
    placement: str = "scatter"
    """How image tokens come to their places: ``scatter`` (``masked_scatter``) | ``put`` (``index_put``; no variable of
    the model's forward refers to them or to the tower's output while the language model runs: Phi-4) | ``added`` to
    what was looked up there, where every layer's rows live until the projector has run (Molmo 2).
    """
    outputs_live_until_loss: bool = False
    """The language model inside has a head of its own: the tower's outputs live until the loss is computed."""
    mask_bytes_per_pixel: int = 0
    """Bytes of the padding mask that a batch has for each pixel, in addition to ``pixel_values``."""
    deepstack_layers: tuple[int, ...] = ()
    """Layers whose rows have mergers of their own, whose image tokens are added after the first layers of text."""
    largest_picture: int = 0
    """What the released checkpoint's processor leaves of a large picture: pixels of its longest side; where a resampler
    follows (Aria, Idefics 2), patches of the whole picture."""
    patch_side: int = 0
    """Pixels of a patch's side."""
    processor: str = ""
    """``module:function`` in :mod:`memcheck.families.towers`; empty: nothing is known of the image processor."""
    separator_tokens: int = 0
    """Tokens that the processor puts around the tokens of a picture, at least."""
    heads: int = 0
    """Heads of the tower's attention, where its stem makes rotary tables of one head's width; else 0."""
    activation: str = "gelu"
    """Hugging Face's name of the activation function of the projector."""
    path: str = "visual"
    """Path of the tower: what module patterns match."""
    layers_path: str = "encoder.layers"
    """Path of the layers in the tower."""
    without_model_prefix: bool = False
    """The model's class has no ``model.`` in front of its parts (Llama 4, Nemotron 3 Nano Omni)."""
    projector_path: str = "visual.merger"
    """Path of the projector: what module patterns match."""

    @property
    def checkpointed(self) -> bool:
        """Whether activation checkpointing reaches the layers: not those of ``MllamaVisionModel``."""
        return self.cross_attention is None

    @property
    def text_layers_that_read_images(self) -> tuple[int, ...]:
        """Layers of the language model that read the image tokens by cross attention."""
        return self.cross_attention.text_layers if self.cross_attention is not None else ()

    @property
    def middle_tensors(self) -> tuple[ParameterTensor, ...]:
        """The tensors between the two kinds of layers."""
        return self.middle.tensors if self.middle is not None else ()
