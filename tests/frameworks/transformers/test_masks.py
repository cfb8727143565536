"""Masks that a model makes once."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.catalog.names import find_model
from memcheck.families.registry import read_architecture
from memcheck.frameworks.transformers.kernel_choice import Masks, model_masks
from memcheck.models.types import Architecture
from tests.frameworks.transformers.layers import TRANSFORMERS
from tests.frameworks.transformers.test_closed_forms import GEMMA3, config

S = 2048


def _bytes(mapping: dict[str, object], **how: object) -> int:
    architecture = read_architecture(mapping)
    setting = Setting(TRANSFORMERS, 2, S, architecture.hidden_size)._replace(**how)  # type: ignore[arg-type]
    return model_masks(architecture.layers(), setting).held_by_variables


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
    assert _bytes(config("llama"), attention="eager", param_dtype="fp32") == 2 * S * S * 4


def _masks(name: str, *windows: int | None, **how: object) -> Masks:
    architecture = find_architecture(name)
    setting = Setting(TRANSFORMERS, 2, S, architecture.hidden_size)._replace(**how)  # type: ignore[arg-type]
    return model_masks(architecture.layers()[:4], setting, windows)


def find_architecture(name: str) -> Architecture:
    """A model of the catalog."""
    return read_architecture(find_model(name).config)


def test_a_biased_mask_is_kept_by_every_kernel_or_cast_for_each() -> None:
    """Falcon adds ALiBi's bias to the mask of every head: bf16 kernels keep that one, autocast casts it for each."""
    config = {**find_model("falcon-7b").config, "alibi": True, "multi_query": False}
    architecture = read_architecture(config)
    heads = architecture.layers()[0].mixer.heads  # type: ignore[union-attr]
    setting = Setting(TRANSFORMERS, 2, S, architecture.hidden_size)
    kept = model_masks(architecture.layers(), setting)
    assert (kept.held_by_graph, kept.held_by_variables) == (2 * heads * S * S * 2, 2 * heads * S * 2)
    cast = model_masks(architecture.layers(), setting._replace(param_dtype="fp32", autocast_dtype="bf16"))
    assert (cast.held_by_graph, cast.held_by_variables) == (0, 2 * heads * S * S * 4 + 2 * heads * S * 4)
    ragged = model_masks(architecture.layers(), setting._replace(sequence=S - 1))
    assert ragged.held_by_graph == 0


def test_mpt_keeps_a_boolean_mask_for_its_backward() -> None:
    """Scores are filled by it; the bias is one of fp32 for all sequences."""
    found = _masks("mpt-7b")
    assert found.held_by_graph == 2 * S * S
    assert found.held_by_variables == 32 * S * 4


def test_a_mask_that_no_layer_is_given_is_a_variable() -> None:
    """Qwen 1.5 MoE makes a windowed mask of no window beside the full one."""
    assert _masks("qwen1.5-moe-a2.7b", None, 0).unused_variables == S * S
    assert _masks("qwen1.5-moe-a2.7b", None, 0, attention="eager").unused_variables == 2 * S * S * 2
    assert _masks("qwen1.5-moe-a2.7b", None, 0, attention="flash").unused_variables == 0
