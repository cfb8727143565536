"""BLIP-2's Q-Former: learned rows that read a tower's in some layers. InstructBLIP's reads a text, too.

modeling_blip_2.py, modeling_instructblip.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import norm_pair
from memcheck.models.types import ParameterTensor
from memcheck.record import Record


class QFormer(Record):
    """The sizes of a Q-Former, which reads a tower's rows with learned queries."""

    width: int
    inner: int
    depth: int
    each: int
    """Layers from one that reads the tower's rows to the next."""
    read: int
    """Width of the tower's rows."""
    heads: int
    vocab: int = 0
    """Tokens of a text that it reads; 0: none."""
    words: int = 0
    """Rows of the table of text positions."""

    def tensors(self, prefix: str) -> tuple[ParameterTensor, ...]:
        """Every tensor of the Q-Former, with names that begin with ``prefix``."""
        norm = f"{prefix}embeddings.layernorm" if self.words else f"{prefix}layernorm"
        found: tuple[ParameterTensor, ...] = norm_pair(norm, self.width)
        if self.words:
            for name, rows in (("word", self.vocab), ("position", self.words)):
                at = f"{prefix}embeddings.{name}_embeddings.weight"
                found += (ParameterTensor(at, (rows, self.width), "projector"),)
        for i in range(self.depth):
            found += self.layer(f"{prefix}encoder.layer.{i}.", reads=i % self.each == 0)
        return found

    def layer(self, at: str, *, reads: bool) -> tuple[ParameterTensor, ...]:
        """The tensors of one layer."""
        found = self._attention(f"{at}attention.", self.width)
        if reads:
            found += self._attention(f"{at}crossattention.", self.read)
        for kind in ("", "_query") if self.words else ("_query",):
            found += linear(f"{at}intermediate{kind}.dense", self.inner, self.width, "projector", "none", bias=True)
            found += linear(f"{at}output{kind}.dense", self.width, self.inner, "projector", "none", bias=True)
            found += norm_pair(f"{at}output{kind}.LayerNorm", self.width)
        return found

    def _attention(self, at: str, read: int) -> tuple[ParameterTensor, ...]:
        width = self.width
        found = linear(f"{at}attention.query", width, width, "projector", "none", bias=True)
        for name in ("key", "value"):
            found += linear(f"{at}attention.{name}", width, read, "projector", "none", bias=True)
        found += linear(f"{at}output.dense", width, width, "projector", "none", bias=True)
        return found + norm_pair(f"{at}output.LayerNorm", width)


def instructed(config: ConfigReader, read: int) -> QFormer:
    """InstructBLIP's, which has a table of words and one of their places."""
    stated = config.integer("encoder_hidden_size", default=1408)
    if stated != read:
        config.fail("encoder_hidden_size", f"encoder_hidden_size = {stated} is not the tower's width {read}")
    vocab, words = config.integer("vocab_size", default=30522), config.integer("max_position_embeddings", default=512)
    return qformer(config, read)._replace(vocab=vocab, words=words)


def qformer(config: ConfigReader, read: int) -> QFormer:
    """Read the sizes of a Q-Former from ``qformer_config``. ``read``: the width of the tower rows that it reads."""
    if config.flag("use_qformer_text_input"):
        config.fail("use_qformer_text_input", "a Q-Former that reads text has no memory model here", "it is false")
    config.ignore(
        "model_type", "vocab_size", "max_position_embeddings", "initializer_range", "layer_norm_eps", "pad_token_id",
        "hidden_dropout_prob", "attention_probs_dropout_prob", "encoder_hidden_size", "classifier_dropout",
        "position_embedding_type", "hidden_act",
    )  # fmt: skip
    return QFormer(
        width=config.integer("hidden_size", default=768),
        inner=config.integer("intermediate_size", default=3072),
        depth=config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS),
        each=config.integer("cross_attention_frequency", default=2),
        read=read,
        heads=config.integer("num_attention_heads", default=12),
    )
