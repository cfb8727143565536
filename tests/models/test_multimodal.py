"""Configurations with a vision tower: read whole, or as the language model alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memcheck.families.registry import FAMILIES, TOWERS, WRAPPERS, architecture_of, read_architecture
from memcheck.models.parameters import count_parameters, parameters_by_group
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Architecture
from memcheck.plan.types import ModelSpec
from tests.models.configs import GEMMA3, LLAMA, without
from tests.models.multimodal import MODELS, QWEN2_5_VL


def test_parameters_are_those_of_the_meta_model() -> None:
    """Language model, tower and projector have as many parameters as transformers' class on the meta device."""
    for name in MODELS:
        model = MODELS[name]
        found = read_architecture(model.config)
        groups = parameters_by_group(found)
        assert count_parameters(found) == model.parameters, name
        assert sum(groups.values()) == model.parameters, name
        assert found.model_type == model.config["model_type"], name


def test_flat_and_nested_files_are_one_model() -> None:
    """The language model's keys lie beside vision_config in early files, and in text_config in later ones."""
    inside = {key: value for key, value in QWEN2_5_VL.items() if key not in ("vision_config", "model_type")}
    nested = {"model_type": "qwen2_5_vl", "text_config": inside, "vision_config": QWEN2_5_VL["vision_config"]}
    assert read_architecture(nested) == read_architecture(QWEN2_5_VL)


def test_null_is_the_language_model_alone() -> None:
    """``vision_config: null``, and ``part: language`` in a plan, leave the language model."""
    alone = read_architecture({**QWEN2_5_VL, "vision_config": None})
    spec = ModelSpec(architecture=QWEN2_5_VL, part="language")
    assert alone.vision is None
    assert architecture_of(spec) == alone
    whole = read_architecture(QWEN2_5_VL)
    assert whole.vision is not None
    assert whole.blocks == alone.blocks


def test_part_language_of_a_text_model_changes_nothing() -> None:
    """A model that is nothing but a language model is its own language part."""
    spec = ModelSpec(architecture=LLAMA, part="language")
    assert architecture_of(spec) == read_architecture(LLAMA)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"vision_config": {"depht": 3}}, "vision_config.depht"),
        ({"vision_config": {"window_sizes": 3}}, "vision_config.window_sizes"),
        ({"hidden_sizes": 3}, "hidden_sizes"),
    ],
)
def test_unread_keys_are_errors(change: dict[str, Any], key: str) -> None:
    """A key of the tower or of what is around it that nobody reads and that may be a size is an error at its path."""
    config = {**QWEN2_5_VL, **change}
    if "vision_config" in change:
        config["vision_config"] = {**QWEN2_5_VL["vision_config"], **change["vision_config"]}
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(config)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("minimax_m3_vl", {"attention_dropout": 0.1}, "attention_dropout"),
        ("minimax_m3_vl", {"num_attention_heads": 7}, "num_attention_heads"),
        ("minimax_m3_vl", {"num_experts": 8}, "num_experts"),
        ("gemma4_unified", {"output_proj_dims": 512}, "output_proj_dims"),
        ("gemma4_unified", {"model_patch_size": 32}, "model_patch_size"),
        ("glmga", {"out_hidden_size": 1024}, "out_hidden_size"),
    ],
)
def test_variants_of_towers_without_a_model_are_errors(name: str, change: dict[str, Any], key: str) -> None:
    """What a tower's code does otherwise, or cannot build, is refused at its key."""
    config = MODELS[f"transformers/{name}"].config
    config = {**config, "vision_config": {**config["vision_config"], **change}}
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(config)
    assert caught.value.key == f"vision_config.{key}"


def test_errors_of_the_language_model_have_their_path() -> None:
    """A bad value in text_config is located there."""
    inside = {**without(GEMMA3, "model_type"), "hidden_size": "wide"}
    config = {"model_type": "qwen2_5_vl", "text_config": inside, "vision_config": QWEN2_5_VL["vision_config"]}
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(config)
    assert caught.value.key == "text_config.hidden_size"


def test_a_missing_tower_is_an_error() -> None:
    """Without vision_config nothing says how large the tower is; the way out is named."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(without(QWEN2_5_VL, "vision_config"))
    assert caught.value.key == "vision_config"
    assert "null" in caught.value.help


def test_the_tower_fits_the_language_model() -> None:
    """Image tokens are as wide as the stream; a tower of another width is an error."""
    tower = {**QWEN2_5_VL["vision_config"], "out_hidden_size": 1024}
    with pytest.raises(ArchitectureError) as caught:
        read_architecture({**QWEN2_5_VL, "vision_config": tower})
    assert caught.value.key == "vision_config.out_hidden_size"


@pytest.mark.parametrize(
    ("name", "around", "inside", "tied"),
    [
        ("shieldgemma2", None, None, True),
        ("shieldgemma2", None, False, False),
        ("shieldgemma2", True, False, True),
    ],
)
def test_classes_that_tie_where_either_says_so(name: str, around: bool | None, inside: bool | None, tied: bool) -> None:
    """Their ``__post_init__`` takes what ``text_config`` says where nothing ties around it."""
    config = {**MODELS[f"transformers/{name}"].config, "tie_word_embeddings": around}
    config["text_config"] = {**config["text_config"], "tie_word_embeddings": inside}
    assert read_architecture(config).tie_word_embeddings is tied


def test_every_tower_is_a_wrapper_around_a_family() -> None:
    """Each model with a tower has a language model whose family is read."""
    assert TOWERS.keys() <= WRAPPERS.keys()
    assert {WRAPPERS[name] for name in TOWERS} - {""} <= FAMILIES.keys()


def test_a_model_that_speaks_is_read_as_its_thinker() -> None:
    """A hub file with a talker beside ``thinker_config`` is the thinker, and says so; without one it is an error."""
    thinker = MODELS["Qwen/Qwen2.5-Omni-3B"].config
    whole = {"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": {"hidden_size": 896}}
    found = read_architecture(whole)
    assert count_parameters(found) == MODELS["Qwen/Qwen2.5-Omni-3B"].parameters
    assert any("talker" in note for note in found.notes)
    alone = architecture_of(ModelSpec(architecture=whole, part="language"))
    assert isinstance(alone, Architecture)
    assert alone.vision is None
    with pytest.raises(ArchitectureError, match="thinker_config is missing"):
        read_architecture({"model_type": "qwen2_5_omni"})


def test_towers_are_not_imported_for_text(tmp_path: Path) -> None:
    """A check of a text plan reads no tower: its start does not pay for them."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    code = (
        "import sys; from memcheck.families.registry import read_architecture;"
        f"read_architecture({LLAMA!r});"
        "print([m for m in sys.modules if 'vision' in m or 'towers' in m or 'multimodal' in m])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert printed.strip() == "[]"


def test_a_whole_model_is_another_than_its_language_model() -> None:
    """Parameters of the tower and its projector are counted under names of their own."""
    whole: Architecture = read_architecture(QWEN2_5_VL)
    assert parameters_by_group(whole)["vision"] == 631_975_680
    assert parameters_by_group(whole)["projector"] == 36_708_608
