"""The catalog of models: every record is exact, complete and reachable."""

from __future__ import annotations

import pytest

from benchmarks.added import added
from memcheck.catalog.names import find_model, model_names
from memcheck.families.registry import FAMILIES, read_architecture
from memcheck.models.parameters import count_parameters, parameters_by_group


def test_parameter_counts_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """The count computed from the dimensions equals the recorded one, for every model."""
    wrong = {}
    names = model_names()
    for name in names:
        model = find_model(name)
        count = count_parameters(read_architecture(model.config, strict=True))
        if count != model.parameters:
            wrong[name] = (count, model.parameters)
    with capsys.disabled():
        print(f" {len(names) - len(wrong)} equal / {len(names)} total ", end="")  # noqa: T201  # the figure is asked for
    assert wrong == {}


def test_groups_add_up_for_every_model() -> None:
    """The groups of each model's parameters are a partition of them."""
    for name in model_names():
        architecture = read_architecture(find_model(name).config)
        assert sum(parameters_by_group(architecture).values()) == count_parameters(architecture), name


def test_every_family_has_a_model() -> None:
    """No family is without a model that proves it, in the catalog or on the meta device, but those that rename one."""
    configs = [find_model(name).config for name in model_names()]
    proven = {config.get("text_config", config).get("model_type") for config in configs} | set(added())
    # these texts beside towers: their traced steps hold their counts, in tests/frameworks/torch/test_towers.py
    traced = {"glm_ocr_text", "step3p5"}
    assert set(FAMILIES) - proven == {*traced, "kimi_k2", "megatron-gpt", "megatron-lm"}


def test_records_are_complete() -> None:
    """Each record has an id with an organisation, a configuration and a source; dimensions are whole numbers."""
    for name in model_names():
        model = find_model(name)
        assert model.name == name
        assert model.id.count("/") == 1, name
        assert len(model.source) > 20, name
        assert model.parameters > 7 * 10**6, name


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("NousResearch/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("qwen2.5-14b", "qwen2.5-14b"),
        ("Qwen/Qwen2.5-14B-Instruct", "qwen2.5-14b"),
        ("deepseek-v3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("llama-3.2-1b", "llama-3.2-1b"),
        ("mistral-7b", "mistral-7b"),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"),
        ("mixtral-8x7b", "mixtral-8x7b"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("gpt2", "gpt2"),
        ("openai-community/gpt2", "gpt2"),
        ("gemma-3-1b-pt", "gemma-3-1b"),
        (" llama-2-7b-hf ", "llama-2-7b"),
    ],
)
def test_names(name: str, canonical: str) -> None:
    """Short names, ids and variants of the same shape lead to one record, in any case."""
    assert find_model(name).name == canonical


@pytest.mark.slow
def test_every_id_is_a_name() -> None:
    """The full id, and the id without its organisation, name the record."""
    for name in model_names():
        model_id = find_model(name).id
        assert find_model(model_id).name == name
        assert find_model(model_id.partition("/")[2]).name == name
