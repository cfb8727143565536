"""Choosing the family, and what multimodal models are told."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from memcheck.families.registry import FAMILIES, NOT_MODELLED, read_architecture
from memcheck.models import families
from memcheck.models.reader import ArchitectureError
from tests.models.configs import DEEPSEEK_V3, GEMMA3, LLAMA, without


def test_unknown_model_type_shows_close_ones() -> None:
    """A model_type that nothing reads is an error with names that are close, never read as something else."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture({**LLAMA, "model_type": "lama"})
    assert caught.value.key == "model_type"
    assert "llama" in caught.value.help


def test_unknown_model_type_names_what_its_keys_are_like() -> None:
    """The families that read its keys are named, with every key that they miss or leave, and both ways out."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture({**LLAMA, "model_type": "zzz", "new_rank": 5, "other_width": 7})
    assert "llama (does not read new_rank, other_width)" in caught.value.help
    assert "architecture:" in caught.value.help
    assert "rough:" in caught.value.help
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(without({**DEEPSEEK_V3, "model_type": "zzz"}, "kv_lora_rank", "v_head_dim"))
    assert "deepseek_v3 (misses kv_lora_rank, v_head_dim)" in caught.value.help


@pytest.mark.parametrize("kind", ["jetmoe", "inkling_mm_model", "fuyu"])
def test_a_family_without_a_model_is_refused_by_name(kind: str) -> None:
    """The refusal names the family and the way out, and no other family that its keys happen to fit."""
    with pytest.raises(ArchitectureError, match=f"does not model the family '{kind}'") as caught:
        read_architecture({**LLAMA, "model_type": kind})
    assert caught.value.key == "model_type"
    assert caught.value.help == "`model: {rough: ...}` takes the number of parameters"


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": 3}, {"model_type": ["llama"]}])
def test_model_type_must_be_stated(config: dict[str, Any]) -> None:
    """Without a model_type nothing says which names the keys have."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(config)
    assert caught.value.key == "model_type"


def test_every_family_function_exists() -> None:
    """Each line of the registry leads to a function with a docstring, and no file of the folder is without a line."""
    for target in FAMILIES.values():
        module, function = target.split(":")
        found = getattr(import_module("memcheck.models.families." + module), function)
        assert found.__doc__, target
    files = {path.stem for path in Path(families.__file__).parent.glob("[a-z]*.py")}
    assert files == {target.partition(":")[0] for target in FAMILIES.values()}


def test_no_family_is_read_and_refused() -> None:
    """A name is in one of both lists."""
    assert not NOT_MODELLED & FAMILIES.keys()


def test_only_the_asked_family_is_imported() -> None:
    """Reading a Llama imports Llama's file and no other family: the clean path stays short."""
    code = (
        "import sys; from memcheck.families.registry import read_architecture;"
        f"read_architecture({LLAMA!r});"
        "print([m.rpartition('.')[2] for m in sys.modules if m.startswith('memcheck.models.families.')],"
        "'difflib' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert printed.strip() == "['llama'] False"


def test_language_model_of_a_multimodal_one() -> None:
    """With the vision tower switched off, the text configuration is read, under the wrapper's tie."""
    text = without(GEMMA3, "model_type")
    wrapped = {"model_type": "gemma3", "text_config": text, "vision_config": None, "image_token_index": 5}
    assert read_architecture(wrapped) == read_architecture(GEMMA3)
    untied = read_architecture({**wrapped, "tie_word_embeddings": False})
    assert not untied.tie_word_embeddings


def test_text_config_must_be_a_mapping() -> None:
    """A wrapper without a language model is an error about that key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture({"model_type": "gemma3", "vision_config": None, "text_config": None})
    assert caught.value.key == "text_config"
