"""UltraBERT (modeling_ultrabert.py): EuroBERT's layers, two of three with a window, and a head of two layers."""

from __future__ import annotations

from memcheck.models.families import llama
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Paths

PERIOD = 3
KINDS = ("full_attention", "sliding_attention")


def read(config: ConfigReader) -> Architecture:
    """``model_type: ultrabert``: with a head for masked words. ``attention_windows`` names the window of each layer."""
    config.ignore("mask_token_id", "classifier_pooling", "classifier_dropout")
    found = llama.read(config)
    ((block, layers),) = found.blocks
    h, width = found.hidden_size, config.integer("prediction_head_size", default=768)
    window = config.integer("sliding_window", default=128)
    each = config.integers("attention_windows")
    if each is not None and len(each) != layers:
        config.fail("attention_windows", f"attention_windows names {len(each)} layers, the model has {layers}")
    if each is not None:
        window = next((w for w in each if w), window)
    types = layer_types(
        config,
        layers,
        lambda i: KINDS[bool(each[i]) if each is not None else bool((i + 1) % PERIOD)],
        KINDS,
    )

    def make(kind: str) -> Block:
        if not isinstance(block.mixer, Attention):
            return block
        span = window + 1 if kind == "sliding_attention" else None
        return block._replace(mixer=block.mixer._replace(bidirectional=True, window=span))

    return found._replace(
        blocks=stack(types, make),
        rotary_tables=len(set(types)),
        head_transform="gelu_pytorch_tanh",
        head_tensors=(
            *linear("head.linear1", width, h, "head", "none"),
            *linear("head.linear2", h, width, "head", "none"),
        ),
        paths=Paths(head="head.decoder"),
    )
