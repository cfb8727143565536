"""A model as the memory engine sees it: blocks of components of tensors, and further inputs.

A family file (``families/<model_type>.py``) turns a configuration in Hugging Face's key names into an
:class:`Architecture`. Nothing here knows frameworks, parallelism or bytes. A rough model has sums in place of blocks.

What a model ends in instead of logits over its vocabulary: labels, and an encoder's pooling in front of them.
"""

from __future__ import annotations

from itertools import chain, repeat

from memcheck.models.module_types import (
    Attention,
    Disentangled,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    Norm,
    ParameterTensor,
)
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from memcheck.models.encoder import Encoder
    from memcheck.models.vision import Embedder, OtherTower, TowerAttention, Vision


class Rough(Record):
    """What ``model: {rough: ...}`` states when no architecture is known."""

    parameters: int
    layers: int
    hidden_size: int
    activation_multiplier: float
    vocab_size: int | None
    """None: the loss is left out."""


class PerLayer(Record):
    """Per-layer embeddings: a table's row has a part for each layer."""

    width: int
    """Elements of one layer's part."""
    total: int
    """Elements of all layers' parts together."""
    activation: str
    """Hugging Face's name of the function that a layer's gate goes through."""


class HyperConnections(Record):
    """What mixes the streams around each half of a layer (DeepSeek V4)."""

    rounds: int
    """Rounds in which the mixture is normed (``hc_sinkhorn_iters``)."""


class SparePairs(Record):
    """Low-rank pairs that a layer's own module over shared tensors holds for peft to adapt (Zamba 2)."""

    layers: int
    """Number of other layers whose pairs these are."""


__all__ = [
    "Architecture",
    "Attention",
    "Block",
    "Disentangled",
    "LatentAttention",
    "Mixer",
    "Mlp",
    "Moe",
    "Norm",
    "ParameterTensor",
    "Paths",
    "PerLayer",
    "Rough",
]


class CrossAttention(Record):
    """Attention to the encoder's output, between a layer's mixer and its feed-forward network."""

    attention: Attention
    norm: Norm
    output_norm: Norm | None
    """Before the residual sum (T5Gemma)."""


class LayerVariables(Record):
    """Which results have a variable of their own to the end of the layer's forward, and so live until then."""

    input_norm_output: bool
    """What ``input_norm`` returns (StableLM, Falcon)."""
    mixer_output: bool
    """What attention returns, after its multiplication by ``branch_scale`` if there is one (GPT-2, MPT)."""
    mlp_input: bool
    """What the feed-forward network reads (GPT-2, BLOOM, MPT)."""


class SharedWith(Record):
    """Which other layers use the tensors of a layer's mixer, feed-forward network and norms."""

    later: bool
    """A later layer holds the tensors (Zamba 2)."""
    earlier: bool
    """An earlier layer has used the same tensors, for which autocast already holds its copies."""


UNSHARED = SharedWith(later=False, earlier=False)
"""A layer whose weights are its own."""


class Block(Record):
    """One layer of the stack."""

    mixer: Attention | LatentAttention | Mixer | TowerAttention | None
    """What mixes tokens: attention or a recurrence; None: the layer has a feed-forward network alone."""
    mlp: Mlp | Moe | None
    """The feed-forward network; None: the layer has a mixer alone."""
    input_norm: Norm | None
    """The norm before the mixer."""
    mlp_norm: Norm | None
    """The norm before the feed-forward network (``post_attention_layernorm`` of Llama)."""
    mixer_output_norm: Norm | None = None
    """The norm after the mixer, before the residual sum (Gemma 2/3, GLM-4, OLMo 2)."""
    mlp_output_norm: Norm | None = None
    """The norm after the feed-forward network, before the residual sum (Gemma 2/3, GLM-4, OLMo 2)."""
    cross: CrossAttention | None = None
    """Cross attention between mixer and feed-forward network; None: there is none."""
    parallel: bool = False
    """Attention and feed-forward read the same residual and are added together."""
    residual: str = ""
    """How norms and residual sums alternate: ``post-norm`` (``input_norm`` and ``mlp_norm`` come after the sums:
    OPT-350m, BERT) | ``normed`` (the stream continues from the norm's output, not from its input: MiniMax, BLOOM on
    request); empty: norms read the stream and leave it as it is.
    """
    dropout: float = 0.0
    """Probability of the dropout before the residual sums; ``dropout_place`` says where it is."""
    dropout_place: str = ""
    """Where the dropout is: ``mixer`` (after the mixer alone: XLM-RoBERTa XL, ALBERT) | ``inner`` (the last statement
    of both halves, whose arguments live until then: GPT-2, StarCoder 2); empty: after each half.
    """
    extra_tensors: tuple[ParameterTensor, ...] = ()
    """Parameters of the layer outside mixer, feed-forward network and norms."""
    extension: PerLayer | HyperConnections | SparePairs | None = None
    """What one family's layer has in addition; what runs it is found by its type."""
    second_mixer: Mixer | LatentAttention | None = None
    """A recurrent mixer that reads what attention reads; both outputs are multiplied and added (Falcon-H1)."""
    shared_with: SharedWith = UNSHARED
    """Whether earlier or later layers use the same tensors."""
    branch_scale: str = ""
    """What multiplies each branch before the residual sum: ``constant`` (Granite, MiniMax) | ``vector`` (InternViT:
    learned, in ``extra_tensors``) | ``tanh`` (Llama 3.2 Vision: tanh of one learned number per branch); empty: nothing.
    """
    lives_to_forward_end: LayerVariables = LayerVariables(input_norm_output=False, mixer_output=False, mlp_input=False)
    """Which results live to the end of the layer's forward, because a variable of their own refers to them."""

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The block's own norms, without those inside its components."""
        halves = (self.input_norm, self.mlp_norm, self.mixer_output_norm, self.mlp_output_norm)
        norms = halves if self.cross is None else (*halves, self.cross.norm, self.cross.output_norm)
        return tuple(n for n in norms if n is not None)


class AltUpBlock(Block):
    """A layer that predicts several streams and corrects them by what it makes of the first (Gemma 3n).

    The corrected first stream is multiplied by a vector before the per-layer input.
    """


class Gemma4Block(Block):
    """A layer whose output is multiplied in place by a buffer of one number (Gemma 4)."""


class UnscaledAltUpBlock(AltUpBlock):
    """Gemma 3n's layer without that vector."""


class DualAttentionBlock(Block):
    """A layer of two attentions, ``mixer`` and ``second_mixer``, and two dense networks in turn (LongCat Flash).

    Experts run in parallel with both networks, and their output is added at the end. ``mixer_output_norm`` and
    ``mlp_output_norm`` are the norms before the second attention and the second network.
    """


class SharedTransformerBlock(Block):
    """A layer whose attention and feed-forward network read the stream and the embedding, without residual sums.

    The result is added to what ``second_mixer`` reads after its norm, ``mixer_output_norm`` (Zamba 2).
    """


class ClampedBlock(Block):
    """A layer that clamps the residual stream after each of its parts while the stream is fp16 (T5)."""


class WideStreamBlock(Block):
    """A layer whose residual stream is fp32, whatever the weights are (Mamba 2)."""


class NormsFirstBlock(Block):
    """A parallel layer that runs both norms before attention and adds the halves in place (Falcon)."""


class PictureBlock(Block):
    """A layer that reads pictures by cross attention; a mask of rows multiplies what its network makes (Llama 3.2
    Vision).
    """


class Paths(Record):
    """Module paths at which transformers keeps the parts of the model, which module patterns match."""

    layers: str
    """The list of layers, such as ``model.layers``."""
    embedding: str
    """The token embedding, such as ``model.embed_tokens``."""
    positions: str
    """The position embedding; empty: there is none."""
    head: str
    """The output layer, such as ``lm_head``."""


class Modalities(Record):
    """What a class around the language model adds for pictures and sounds."""

    vision: Vision | None
    """The tower whose rows become image tokens; None: text alone."""
    other_towers: tuple[OtherTower, ...]
    """Towers that hold weights and do not run."""
    embedders: tuple[Embedder, ...]
    """Tables of other tokens than words, which every token goes through."""


TEXT_ALONE = Modalities(None, (), ())
"""A model that reads text alone."""


class HeadLayer(Record):
    """A layer before the head, with a norm after its activation (BERT)."""

    activation: str
    """Empty: the head has parameters of its own and no such layer (DeepSeek V4)."""
    tensors: tuple[ParameterTensor, ...]


NO_HEAD_LAYER = HeadLayer("", ())
"""No layer before the head's matrix."""


class Fp32Params(Record):
    """Parts of the names of parameters that transformers loads in fp32, whatever the dtype of the others."""

    always: tuple[str, ...]
    """``_keep_in_fp32_modules_strict`` of the class."""
    of_fp16: tuple[str, ...]
    """Parameters that stay fp32 if the model is loaded in fp16, and are never quantised (``_keep_in_fp32_modules``)."""


class EmbeddingModule(Record):
    """What looks the words up before the first layer."""

    is_separate: bool
    """A module of its own looks the words up and norms them (encoders): its variables are not the model's. A projection
    of the rows comes after that norm, and the head's layer narrows the rows again (ELECTRA).
    """
    token_types: int
    """Rows of a table of token types, which are looked up in addition to the words (BERT); 0 = none."""


INLINE = EmbeddingModule(is_separate=False, token_types=0)
"""The model's own forward looks the words up."""


class LogitCasts(Record):
    """Where logits become fp32."""

    in_model: bool
    """The model casts its logits to fp32 by itself (Nemotron-H, Mamba)."""
    in_loss: bool
    """The model's own loss casts the logits to fp32; False: it takes them in their dtype (encoders)."""


CAST_IN_LOSS = LogitCasts(in_model=False, in_loss=True)
"""Logits that the loss casts to fp32, as most models' are."""


class Architecture(Record):
    """A whole causal language model."""

    model_type: str
    """Hugging Face's name of the family, such as ``llama``."""
    hidden_size: int
    """Elements per token of the residual stream."""
    vocab_size: int
    """Rows of the output layer; the token embedding has ``extra_rows`` more."""
    blocks: tuple[tuple[Block, int], ...]
    """Runs of equal consecutive blocks, in order: ``((dense, 3), (moe, 58))``."""
    embedding_size: int
    """Width of the token embedding; differs from hidden_size only with a projection (OPT-350m)."""
    tie_word_embeddings: bool
    """The head multiplies by the token embedding's matrix."""
    final_norm: Norm | None
    """The norm after the last layer; None: there is none."""
    max_position_embeddings: int
    """0 = unbounded (ALiBi, no positions)."""
    rotary_dim: int
    """Width of the rotary tables, where no block says it."""
    task: TaskHead | None
    """What a job trains in place of the head to the vocabulary; None: that head."""
    modalities: Modalities
    extra_rows: int = 0
    """Rows of the embedding that the head has not (Llama 3.2 Vision)."""
    embedding_norm: Norm | None = None
    """The norm of the embedding's output; None: there is none."""
    learned_positions: int = 0
    """Rows of a learned position table; 0 = none."""
    head_bias: bool = False
    """The head's matrix has a bias."""
    head: bool = True
    """Whether the model has a matrix to the vocabulary: its own, or the embedding's if they are tied."""
    final_softcap: bool = False
    """tanh soft-capping of the logits (Gemma 2)."""
    embedding_scale: str = ""
    """Who multiplies the looked-up rows by a constant: ``module`` (the embedding's own: Gemma) | ``model`` (the model's
    forward: Granite) | ``named`` (the model's forward, with a variable of the rows' own as well: T5Gemma) | ``tokens``
    (ESM: the model's forward, by the share of tokens that are not masked); empty: nobody.
    """
    embedding_dropout: float = 0.0
    """Probability of the dropout of the embedding's output."""
    rotary_tables: int | tuple[int, ...] = 1
    """Pairs of rotary tables: one for each kind of layer (Gemma 3, OLMo 3), else one. Widths, where these differ."""
    mask_windows: tuple[int | None, ...] = ()
    """Windows of the masks that the model makes whatever its layers are; None: the full one."""
    positions_each: bool = False
    """Positions are looked up for every sequence (OPT), not once for all."""
    extra_tensors: tuple[ParameterTensor, ...] = ()
    """Tensors outside blocks, embedding, head and final norm (OPT's projections)."""
    streams: int = 1
    """Streams of hidden states that layers hand to each other (Gemma 3n, DeepSeek V4)."""
    embedding_module: EmbeddingModule = INLINE
    head_layer: HeadLayer = NO_HEAD_LAYER
    pooling: Pooling | None = None
    """What an encoder has in front of labels."""
    logit_casts: LogitCasts = CAST_IN_LOSS
    head_input_scale: bool = False
    """What the head reads is divided by a constant (MiniCPM 3)."""
    logit_scale: bool = False
    """The logits are multiplied or divided by a constant (Cohere, Granite)."""
    paths: Paths = Paths(layers="model.layers", embedding="model.embed_tokens", positions="", head="lm_head")
    encoder: Encoder | None = None
    """What makes the rows that every layer's cross attention reads; None: there is none."""
    final_dropout: float = 0.0
    """Probability of the dropout after the final norm (T5)."""
    fp32_params: Fp32Params = Fp32Params((), ())
    notes: tuple[str, ...] = ()
    """What a reader of the estimate should know about how the configuration was read."""

    @property
    def vision(self) -> Vision | None:
        """The tower whose rows become image tokens; None: text alone."""
        return self.modalities.vision

    @property
    def others(self) -> tuple[OtherTower, ...]:
        """Towers that hold weights and do not run."""
        return self.modalities.other_towers

    @property
    def embedders(self) -> tuple[Embedder, ...]:
        """Tables of other tokens than words, which every token goes through."""
        return self.modalities.embedders

    @property
    def table_rows(self) -> int:
        """Rows of the embedding table."""
        return self.vocab_size + self.extra_rows

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return sum(n for _, n in self.blocks)

    @property
    def checkpointable(self) -> bool:
        """Whether the class's layers can be checkpointed."""
        return True

    @property
    def biases(self) -> tuple[int, int]:
        """Rows and heads of a table of relative positions, of which the model makes biases of all layers' scores;
        (0, 0): there is no such table.
        """
        return (0, 0)

    @property
    def per_layer(self) -> PerLayer | None:
        """What every layer adds of one table of per-layer embeddings (Gemma 3n and 4); None: there is no such table."""
        extension = self.blocks[0][0].extension
        return extension if isinstance(extension, PerLayer) else None

    @property
    def embedding_cloned(self) -> bool:
        """Whether layers read a copy of the embedding as well as the stream (Zamba 2)."""
        return any(isinstance(block, SharedTransformerBlock) for block, _ in self.blocks)

    @property
    def relative_positions(self) -> Disentangled | None:
        """What all layers read of one table of relative positions (DeBERTa); None: there is no such table."""
        mixer = self.blocks[0][0].mixer
        return mixer.extension if isinstance(mixer, Attention) and isinstance(mixer.extension, Disentangled) else None

    @property
    def sinusoids(self) -> int:
        """Rows of a table of positions that is a buffer, as the encoder has one, of which every sequence's rows are
        copied (M2M-100); 0 = none.
        """
        return self.encoder.sinusoid_rows if self.encoder is not None else 0

    @property
    def collapses(self) -> bool:
        """Whether hyper-connections collapse several streams, which start as copies of the embedding (DeepSeek V4)."""
        return self.streams > 1 and isinstance(self.blocks[0][0].extension, HyperConnections)

    def layers(self) -> tuple[Block, ...]:
        """Every block, one entry per layer."""
        return tuple(chain.from_iterable(repeat(block, n) for block, n in self.blocks))


class UncheckpointedModel(Architecture):
    """A model whose class refuses ``gradient_checkpointing_enable`` (ALBERT)."""

    @property
    def checkpointable(self) -> bool:
        """False: the class refuses it."""
        return False


class MpnetModel(UncheckpointedModel):
    """A model that looks biases of all layers' scores up in a table [rows, heads], the first of ``extra_tensors``."""

    @property
    def biases(self) -> tuple[int, int]:
        """Rows and heads of that table."""
        rows, heads = self.extra_tensors[0].shape
        return rows, heads


class DebertaModel(Architecture):
    """A model that multiplies the normed rows by the mask of padding, and keeps every layer's output in a list."""


class ModernBertDecoder(Architecture):
    """A model whose rotary tables have rows for every sequence of the batch, not once for all."""


class GptBigCodeModel(Architecture):
    """A model that holds a boolean causal mask with a row and a column for each learned position."""


class Qwen2AudioModel(Architecture):
    """A model whose own loss copies the logits but the last."""


class T5GemmaModel(Architecture):
    """A model whose output always has the last hidden states as well as the logits."""


class BartModel(Architecture):
    """A model that adds a buffer of one number per word to the logits."""


class PegasusModel(BartModel):
    """BART's model with a position table that is a parameter without a gradient (Pegasus, Marian)."""


class Pooling(Record):
    """How an encoder's class for labels of sequences pools: the rows that it takes, a layer, an activation."""

    activation: str
    tensors: tuple[ParameterTensor, ...]
    """The layer's matrix and bias, and its norm's weight and bias."""
    rows: Literal["first", "mean", "labels"] = "first"
    """Input of the layer: the first row of each sequence, or the mean of its rows. ``labels``: every row; the mean of
    the labels is taken instead (EuroBERT)."""
    dropout: float = 0.0
    """In front of the labels' matrix."""
    dropout_before: bool = False
    """In front of the layer, too."""
    also_in: tuple[Literal["token-classification", "embedding"], ...] = ()
    """Further classes that have the layer: the one for labels of tokens; the one without a head, which leaves the
    layer's result unused (BERT, RoBERTa)."""


class NormedPooling(Pooling):
    """Pooling whose activation is followed by a LayerNorm, the last of ``tensors`` (ModernBERT)."""


class TaskHead(Record):
    """The layers of a task in place of the head over the vocabulary."""

    kind: str
    """``classification`` (one answer a sequence) | ``token-classification`` | ``embedding`` (pooled hidden states)."""
    labels: int
    """Outputs of the classifier's matrix; 0: there is none."""
    bias: bool
    """The classifier's matrix has a bias."""
    dropout: float
    unused: tuple[ParameterTensor, ...]
    """Tensors of a layer whose result is unused: they stay allocated, and never have a gradient."""
    pooling: Pooling | None = None
    """An encoder's own layer in front of the labels."""


SAVED = ("classifier", "score")
"""Ends of the names of modules that peft trains whole under labels (task types SEQ_CLS and TOKEN_CLS)."""


def is_saved(name: str) -> bool:
    """Say whether peft trains a copy of this tensor's module, or of one around it, and keeps the frozen one.

    peft 0.21 peft_model.py (PeftModelForSequenceClassification, PeftModelForTokenClassification) adds both names to
    ``modules_to_save``; utils/other.py (_set_trainable) takes every path that ends so, ``pre_classifier`` among them.
    """
    return any(module.endswith(SAVED) for module in name.split(".")[:-1])
