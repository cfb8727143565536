"""Masks that a model makes once."""

from __future__ import annotations

from memcheck.architecture.registry import read_architecture
from memcheck.memory.ledger.context import Setting
from memcheck.memory.ledger.masks import model_mask_bytes
from tests.memory.ledger.test_closed_forms import GEMMA3, config

S = 2048


def _bytes(mapping: dict[str, object], **how: object) -> int:
    architecture = read_architecture(mapping)
    setting = Setting("transformers", 2, S, architecture.hidden_size)._replace(**how)  # type: ignore[arg-type]
    return model_mask_bytes(architecture.layers(), setting)


def test_flash_attention_needs_no_mask() -> None:
    """A causal model without windows passes is_causal instead of a mask."""
    assert _bytes(config("llama")) == 0


def test_a_window_needs_one_boolean_mask_for_all_sequences() -> None:
    """Gemma 3's sliding layers share S x S booleans; its full layers need none."""
    assert _bytes(GEMMA3) == S * S


def test_eager_attention_gets_one_additive_mask_per_kind_of_layer() -> None:
    """Eager Gemma 3 has a full and a sliding mask in the stream's dtype, for each of two sequences."""
    assert _bytes(GEMMA3, attention="eager") == 2 * 2 * S * S * 2
    assert _bytes(config("llama"), attention="eager") == 2 * S * S * 2
    assert _bytes(config("llama"), attention="eager", params="fp32") == 2 * S * S * 4
