"""The encoder of an encoder-decoder, as a memory model sees it."""

from __future__ import annotations

from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.record import Record

MAX_LAYERS = 1_000
"""Layers that an encoder, or a stack whose layers share tensors, may have: each is a unit of its own."""


class Words(Record):
    """The decoder's table, as an encoder of words looks it up."""

    rows: int
    """Rows of the table."""
    width: int
    """Columns of the table."""
    trained: bool
    """The table gets a gradient."""
    rows_are_leaf: bool
    """Looked-up rows are made to want a gradient (``enable_input_require_grads``)."""


class Encoder(Record):
    """Layers whose output every layer of the decoder reads."""

    blocks: tuple[tuple[Block, int], ...]
    """Runs of equal layers, in order."""
    rows_per_sample: int = 0
    """Rows that the encoder has of every sample; 0 = as many as ``sequence_length`` says."""
    decoder_tokens: int = 0
    """Positions of the decoder in tokens, if ``sequence_length`` is the encoder's alone (Whisper). 0 = the decoder
    reads as many tokens as the encoder, unless the plan states ``target_length``."""
    mel_bins: int = 0
    """Mel bins of a sound, from which two convolutions make rows; 0 = the encoder reads words."""
    position_rows: int = 0
    """Rows of a table of positions; 0 = none."""
    sinusoid_rows: int = 0
    """Rows of a table of positions that is a buffer; 0 = none."""
    positions_are_frozen: bool = False
    """The table of positions is a parameter without a gradient."""
    embedding_norm: Norm | None = None
    """The norm of the embedding's output; None: there is none."""
    embedding_scale: str = ""
    """Who multiplies the looked-up rows by a constant, in the words of ``Architecture.embedding_scale``."""
    own_word_rows: int = 0
    """Rows of a table of words of its own, the first of ``tensors``; 0 = it looks words up in the decoder's."""
    rotary_dim: int = 0
    """Width of the rotary tables that its forward makes; 0 = none."""
    mask_windows: tuple[int | None, ...] = ()
    """Windows of the attention masks that the encoder makes; None: the full mask."""
    dropout: float = 0.0
    """Probability of the dropout before the first layer."""
    final_norm: Norm | None = None
    """The norm after the last layer; None: there is none."""
    final_dropout: float = 0.0
    """Probability of the dropout after the last norm."""
    tensors: tuple[ParameterTensor, ...] = ()
    """Every parameter outside the layers: first those before the layers, then those after them."""
    closing_tensors: int = 0
    """How many of the last ``tensors`` belong to modules that run after the layers: the final norm's."""
    position_bias_heads: int = 0
    """Heads for which a layer makes position biases that others read; 0 = none does."""
    layers_path: str = "model.encoder.layers"
    """Module path of the list of layers."""

    @property
    def stem(self) -> tuple[ParameterTensor, ...]:
        """Parameters of the encoder before its layers: embeddings and their norm."""
        return self.tensors[: len(self.tensors) - self.closing_tensors]

    @property
    def end(self) -> tuple[ParameterTensor, ...]:
        """Parameters of the encoder after its layers, such as a final norm."""
        return self.tensors[len(self.tensors) - self.closing_tensors :]

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return sum(n for _, n in self.blocks)
