"""Scripts of unsloth: its own defaults, what it writes over, and what has no memory model."""

from __future__ import annotations

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

LOAD = """\
from unsloth import FastLanguageModel, FastModel, FastVisionModel, is_bfloat16_supported
from transformers import TrainingArguments
from trl import SFTConfig, SFTTrainer, DPOTrainer
import torch
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Meta-Llama-3.1-8B", max_seq_length=4096)
"""
ADAPT = "model = FastLanguageModel.get_peft_model(model)\n"
TRAIN = "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2)).train()\n"
MODE = "training.activation_checkpointing"


def read(code: str, gpu: str = "a100-80gb") -> Imported:
    """The import of a file that is trained on one GPU."""
    return import_config("train.py", code.encode(), {"hardware.gpu": ReadSetting(gpu, "test")})


def values(code: str, gpu: str = "a100-80gb") -> dict[str, object]:
    """The plan's values; there has to be a plan."""
    found = read(code, gpu)
    assert found.problems == (), found.problems
    return {key: each.value for key, each in found.settings.items()}


def test_a_script_is_answered_with_unsloths_own_defaults() -> None:
    """Its loader's, its adapters' and those of its copy of SFTConfig."""
    found = values(LOAD + ADAPT + TRAIN)
    assert {
        "training.trainer.name": "unsloth",
        "training.method": "qlora",
        "training.lora.rank": 16,
        "training.sequence_length": 4096,
        "training.micro_batch_size": 2,
        "training.gradient_accumulation_steps": 2,
        "training.optimizer.name": "adamw-8bit",
        "training.precision.recipe": "bf16-mixed",
        f"{MODE}.mode": "full",
        f"{MODE}.offload": "cpu",
    }.items() <= found.items()
    assert "training.loss.kind" not in found
    assert len(str(found["training.lora.target_modules"]).split(",")) == 7


def test_the_arguments_of_transformers_keep_their_defaults() -> None:
    """Only TRL's configs are copied."""
    found = values(LOAD + ADAPT + "SFTTrainer(model=model, args=TrainingArguments('out', bf16=True)).train()\n")
    assert found["training.micro_batch_size"] == 8
    assert found["training.optimizer.name"] == "adamw"


@pytest.mark.parametrize(
    ("switch", "mode"),
    [("'unsloth'", ("full", "cpu")), ("True", ("full", None)), ("False", ("none", None))],
)
def test_checkpoints_are_those_of_the_adapters_call(switch: str, mode: tuple[str, str | None]) -> None:
    """``use_gradient_checkpointing`` decides, whatever a keyword of the arguments says."""
    adapt = f"model = FastLanguageModel.get_peft_model(model, use_gradient_checkpointing={switch})\n"
    found = values(LOAD + adapt + "SFTTrainer(model, args=SFTConfig(gradient_checkpointing=False)).train()\n")
    assert (found[f"{MODE}.mode"], found.get(f"{MODE}.offload")) == mode


@pytest.mark.parametrize(
    ("arguments", "length"),
    [("", 4096), ("max_seq_length=1024", 1024), ("max_seq_length=8192", 4096), ("max_length=512", 4096)],
)
def test_a_row_is_as_long_as_the_model_allows(arguments: str, length: int) -> None:
    """The shorter of the model's and ``max_seq_length``; ``max_length`` is written over."""
    assert values(LOAD + ADAPT + f"SFTTrainer(model, args=SFTConfig({arguments})).train()\n")[
        "training.sequence_length"
    ] == (length)


def test_sixteen_bits_are_those_of_the_gpu() -> None:
    """Weights and autocast are bf16 where the GPU computes in it, else fp16."""
    for gpu, recipe in (("t4", "fp16-mixed"), ("a100-80gb", "bf16-mixed")):
        assert values(LOAD + ADAPT + TRAIN, gpu)["training.precision.recipe"] == recipe


def test_a_model_that_is_trained_whole_is_held_in_fp32() -> None:
    """``full_finetuning`` turns 4 bits and adapters off."""
    code = LOAD.replace("max_seq_length=4096", "max_seq_length=4096, full_finetuning=True")
    found = values(code + ADAPT + TRAIN)
    assert found["training.method"] == "full"
    assert found.get("training.precision.params", "fp32") == "fp32"
    assert found[f"{MODE}.offload"] == "cpu"


def test_an_embedding_among_the_targets_is_trained_whole() -> None:
    """It is moved to the modules that are saved."""
    adapt = "model = FastLanguageModel.get_peft_model(model, target_modules=['q_proj', 'embed_tokens'])\n"
    found = values(LOAD + adapt + TRAIN)
    assert found["training.lora.target_modules"] == ["q_proj"]
    assert found["training.lora.modules_to_save"] == ["embed_tokens"]


def test_the_checkpoint_that_is_loaded_is_named() -> None:
    """Most models are loaded from a copy, of which some matrices stay in 16 bits; plain 4-bit copies say so."""

    def notes(code: str) -> str:
        return " ".join(each.message for each in read(code).notes)

    assert "-unsloth-bnb-4bit" in notes(LOAD + ADAPT + TRAIN)
    assert "-unsloth-bnb-4bit" not in notes(LOAD.replace("3.1-8B", "3.1-8B-bnb-4bit") + ADAPT + TRAIN)


@pytest.mark.parametrize(
    ("code", "gpu", "message"),
    [
        (LOAD + ADAPT + "DPOTrainer(model=model, ref_model=None).train()\n", "a100-80gb", "loss of `dpo`"),
        (LOAD.replace("unsloth/Meta-Llama-3.1-8B", "unsloth/gemma-3-4b-it") + ADAPT + TRAIN, "t4", "in fp32 on a GPU"),
    ],
)
def test_what_has_no_memory_model_is_refused_by_name(code: str, gpu: str, message: str) -> None:
    """With the way to an upper bound."""
    (problem,) = read(code, gpu).problems
    assert message in problem.message
    assert "--set training.trainer.name=trl" in problem.help


def test_the_name_of_a_4_bit_copy_stands_for_the_model_without_4_bits() -> None:
    """``load_in_4bit=False`` loads the weights in 16 bits, whatever the name says."""
    code = LOAD.replace("3.1-8B", "3.1-8B-bnb-4bit").replace("=4096)", "=4096, load_in_4bit=False)")
    found = values(code + ADAPT + TRAIN)
    assert (found["model.name"], found["training.method"]) == ("unsloth/Meta-Llama-3.1-8B", "lora")
    assert "training.base.held_in" not in found


def test_an_evaluation_is_no_wider_than_the_training() -> None:
    """The default of 8 is lowered to the batch of the training."""
    train = (
        "SFTTrainer(model, args=TrainingArguments('out', per_device_train_batch_size=2, eval_strategy='steps')).train()"
    )
    assert values(LOAD + ADAPT + train)["training.evaluation.micro_batch_size"] == 2


def test_fp16_over_weights_in_bf16_stops_the_job() -> None:
    """unsloth raises, so that no estimate is made."""
    (problem,) = read(LOAD + ADAPT + "SFTTrainer(model, args=SFTConfig(fp16=True)).train()").problems
    assert "stops at `fp16`" in problem.message
    assert "--set training.precision.recipe=bf16-mixed" in problem.help
