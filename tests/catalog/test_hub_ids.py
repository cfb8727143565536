"""Ids of copies: matched by what is left of a name, never by likeness, and always with a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memcheck.catalog.names import UnknownNameError, find_model
from memcheck.judge import Gate, check_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "llama-3.2-1b"),
        ("unsloth/Qwen2.5-7B-Instruct-unsloth-bnb-4bit", "qwen2.5-7b"),
        ("unsloth/llama-3-8b-bnb-4bit", "llama-3-8b"),
        ("unsloth/Qwen3-14B-Base-unsloth-bnb-4bit", "qwen3-14b"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b"),
        ("Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4", "qwen2.5-32b"),
        ("Qwen/Qwen3-8B-FP8", "qwen3-8b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b-2507"),
        ("TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "llama-3-8b"),
        ("hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16", "llama-3.1-405b"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "llama-3.1-70b"),
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b"),
        ("unsloth/gpt-oss-20b-unsloth-bnb-4bit", "gpt-oss-20b"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-r1"),
        ("TheBloke/Mistral-7B-v0.1-GPTQ", "mistral-7b-v0.1"),
        ("NousResearch/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("allenai/OLMo-2-1124-13B-SFT", "olmo-2-13b"),
        ("OpenRLHF/Llama-3-8b-sft-mixture", "llama-3-8b"),
        ("someone/qwen2.5-7b", "qwen2.5-7b"),
        ("qwen2.5-7b-awq", "qwen2.5-7b"),
    ],
)
def test_copies_lead_to_their_model(written: str, canonical: str) -> None:
    """An organisation of a mirror and words for how weights are stored or tuned leave the dimensions as they are."""
    assert find_model(written).name == canonical


@pytest.mark.parametrize(
    "written",
    [
        "axolotl-quants/Llama-4-Scout-17B-16E-Linearized-bnb-nf4-bf16",
        "someone/my-llama-3.1-8b",
        "someone/Llama-3.1-8B-pruned",
        "someone/Llama-3.1-9B-bnb-4bit",
        "Qwen/Qwen2.5-7B-Instruct-1M",
        "../llama-3.1-8b-bnb-4bit",
        "/data/models/llama-3.1-8b",
        "data/models/llama-3.1-8b",
        "./llama-3.1-8b",
        "someone/",
        "/llama-3.1-8b",
        "someone/-bnb-4bit",
        "-4bit" * 50_000,
        "someone/llama-3.1-8b" + "-4bit" * 20,
    ],
)
def test_anything_else_stays_unknown(written: str) -> None:
    """A word that may change the model, a path, or a name that is only like another is an unknown model."""
    with pytest.raises(UnknownNameError):
        find_model(written)


def test_suggestions_look_past_the_words_for_storage() -> None:
    """A misspelt id of a quantised copy gets the models that are like what is left of it."""
    with pytest.raises(UnknownNameError) as caught:
        find_model("unsloth/Llama3.1-8B-unsloth-bnb-4bit")
    assert caught.value.close[0] == "llama-3.1-8b"


@pytest.mark.parametrize("name", ["llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "NousResearch/Meta-Llama-3.1-8B"])
def test_names_of_the_catalog_need_no_note(name: str) -> None:
    """What the catalog lists itself, mirrors included, was compared with its source: nothing is assumed."""
    assert find_model(name).read_as == ""


@pytest.mark.parametrize("model", ["{id}", "{{name: {id}, overrides: {{num_hidden_layers: 4}}}}"])
def test_the_report_says_what_was_assumed(model: str, tmp_path: Path) -> None:
    """A plan with a copy's id is estimated as its model, and that is among the assumptions."""
    name = "unsloth/Llama-3.2-1B-Instruct-bnb-4bit"
    plan = f"""memcheck: 1
model: {model.format(id=name)}
hardware: {{gpu: l4}}
training: {{framework: huggingface, method: qlora, micro_batch_size: 1, sequence_length: 512}}
"""
    (result,), _ = check_file(str(tmp_path / "plan.yaml"), plan.encode(), Gate())
    notes = [str(each.value) for each in result.assumptions if each.key == "model"]
    assert notes[0] == f"{name} is read as llama-3.2-1b: the same name but for unsloth/ and -bnb-4bit"
