"""The plan that is verified: one of a file, with changes, fewer layers, and transformers' configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.errors import MemcheckError, UsageError
from memcheck.models.types import Architecture
from memcheck.plan.read import load_documents
from memcheck.rules.result import PlanResult
from memcheck.verify.subject import (
    Subject,
    changed,
    hugging_face_config,
    load_document,
    load_subject,
    with_layers,
)
from tests.verify.plans import TINY, plan, subject, write


def test_one_plan_of_a_file(tmp_path: Path) -> None:
    """A file with one plan needs no number; one with two does."""
    path = write(tmp_path, plan())
    assert load_document(str(path), {}).index == 0
    path.write_text(f"{json.dumps(plan())}\n---\n{json.dumps(plan(micro_batch_size=7))}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="holds 2 plans") as error:
        load_document(str(path), {})
    assert "--document 0 to 1" in error.value.help
    assert load_document(str(path), {}, 1).values["training"]["micro_batch_size"] == 7
    with pytest.raises(UsageError, match="no document 2"):
        load_document(str(path), {}, 2)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_path_without_one_plan_is_a_usage_error(tmp_path: Path, name: str) -> None:
    """Missing files and folders without exactly one plan are refused."""
    with pytest.raises(UsageError):
        load_document(str(tmp_path / name), {})


def test_changes_set_and_take_away(tmp_path: Path) -> None:
    """None takes a key away, and a key that is not there stays away."""
    document = load_document(str(write(tmp_path, plan())), {})
    after = changed(document, {"training.micro_batch_size": 3, "training.precision": None, "training.x.y": None})
    assert after.values["training"]["micro_batch_size"] == 3
    assert "precision" not in after.values["training"]
    assert document.values["training"]["precision"] == "bf16-pure"


def test_a_plan_that_cannot_be_priced_keeps_its_findings() -> None:
    """The caller shows what is wrong with it."""
    (document,) = load_documents("p.yaml", json.dumps(plan(sequence_length="long")).encode())
    result = load_subject(document)
    assert isinstance(result, PlanResult)
    assert [f.code for f in result.findings if f.severity == "error"] == ["MEM013"]


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("llama-3.1-8b", "num_hidden_layers"),
        ({"name": "llama-3.1-8b", "overrides": {"hidden_size": 1024}}, "num_hidden_layers"),
        ({"architecture": TINY}, "num_hidden_layers"),
        ("gpt2-xl", "n_layer"),
    ],
)
def test_fewer_layers(model: object, key: str) -> None:
    """The number is written in the family's own key, beside other overrides; the configuration follows."""
    (document,) = load_documents("p.yaml", json.dumps(plan(model=model)).encode())
    loaded = load_subject(with_layers(document, 1))
    assert isinstance(loaded, Subject)
    assert loaded.job.architecture.num_layers == 1
    assert hugging_face_config(loaded.plan.model, ".")[key] == 1


def test_configuration_of_a_config_file(tmp_path: Path) -> None:
    """A config.json beside the plan is read, overrides applied."""
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    path = write(tmp_path, plan(model={"config": "./config.json", "overrides": {"vocab_size": 512}}))
    loaded = load_subject(load_document(str(path), {}))
    assert isinstance(loaded, Subject)
    assert hugging_face_config(loaded.plan.model, loaded.base_dir) == {**TINY, "vocab_size": 512}


def test_configuration_of_the_language_model_alone() -> None:
    """A multimodal configuration without its vision tower is that of its text model."""
    wrapped = {"model_type": "gemma3", "vision_config": None, "text_config": {"hidden_size": 64}}
    found = subject(plan()).plan.model._replace(architecture=wrapped)
    assert hugging_face_config(found, ".") == {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "tie_word_embeddings": True,
    }


def test_configuration_of_a_named_models_language_part() -> None:
    """``part: language`` of a catalog name leaves the tower out; without it the model is whole, unless it hears."""
    named = subject(plan()).plan.model._replace(architecture=None, name="gemma-3-4b")
    assert hugging_face_config(named._replace(part="language"), ".")["model_type"] == "gemma3_text"
    assert "vision_config" in hugging_face_config(named, ".")
    hears = {"model_type": "voxtral", "audio_config": {}, "text_config": {}}
    with pytest.raises(MemcheckError, match="audio tower"):
        hugging_face_config(named._replace(name=None, architecture=hears), ".")


def test_a_parameter_count_builds_no_model() -> None:
    """``model: {rough: ...}`` has no configuration."""
    rough = subject(plan()).plan.model._replace(architecture=None)
    with pytest.raises(UsageError, match="too little"):
        hugging_face_config(rough, ".")


def test_fewer_layers_of_a_language_model_beside_a_tower() -> None:
    """``--layers`` cuts the stack of text, which has a section of its own there."""
    named = {**plan(images={"per_sample": 0}), "model": {"name": "gemma-3-4b"}}
    (document,) = load_documents("plan.yaml", json.dumps(named).encode())
    cut = load_subject(with_layers(document, 2))
    assert isinstance(cut, Subject)
    assert isinstance(cut.job.architecture, Architecture)
    assert cut.job.architecture.num_layers == 2
