"""Models whose language model reads pictures by cross attention: which layers a step runs."""

from __future__ import annotations

from memcheck.families.registry import catalog_architecture
from memcheck.models.parameters import count_parameters
from memcheck.models.variants import reads_pictures, with_pictures, without_pictures

LAYERS = (3, 8, 13, 18, 23, 28, 33, 38)


def test_without_pictures_crossing_layers_rest() -> None:
    """They hold their weights, and no step of text runs them."""
    whole = catalog_architecture("llama-3.2-11b-vision")
    text = without_pictures(whole)
    assert [i for i, block in enumerate(whole.layers()) if reads_pictures(block)] == list(LAYERS)
    assert text.num_layers == whole.num_layers - len(LAYERS)
    assert count_parameters(text) == count_parameters(whole) == 10_642_941_475
    assert with_pictures(text, LAYERS) == whole


def test_the_language_model_alone_has_them_resting() -> None:
    """``part: language`` is MllamaForCausalLM, which holds them and is given nothing that they could read."""
    language = catalog_architecture("llama-3.2-11b-vision", "language")
    assert language.vision is None
    assert language.blocks == without_pictures(catalog_architecture("llama-3.2-11b-vision")).blocks
    assert count_parameters(language) == 9_775_192_080
