"""Files that train nothing, or under something else: none of them becomes a plan, and each is called by its name."""

from __future__ import annotations

import pytest

from memcheck.configs.detect import detect
from memcheck.configs.types import ConfigError
from tests.configs.test_readers import MEGATRON
from tests.configs.test_readers import read as read_arguments
from tests.configs.test_trainers import FACTORY, read, values

ADAPTED = "model_name_or_path: meta-llama/Llama-3.1-8B\nadapter_name_or_path: saves/a\ntemplate: llama3\nfinetuning_type: lora\n"


@pytest.mark.parametrize(
    "text",
    [
        ADAPTED,
        f"{ADAPTED}infer_backend: huggingface\n",
        f"{ADAPTED}export_dir: models/a\nexport_size: 2\n",
        f"{ADAPTED}stage: sft\ndo_predict: true\neval_dataset: identity\ncutoff_len: 2048\n",
        FACTORY.replace("do_train: true", "do_train: false"),
    ],
)
def test_a_chat_an_export_and_an_evaluation_train_nothing(text: str) -> None:
    """LLaMA-Factory's files for them name a model and its adapters, as a training's do."""
    assert any("trains nothing" in each.message for each in read("f.yaml", text).problems)


def test_a_training_may_leave_out_that_it_trains() -> None:
    """A file with data and rates is one for a training, whoever adds the switch."""
    text = FACTORY.replace("do_train: true", "dataset: alpaca")
    assert not read("f.yaml", text).problems


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("--task LAMBADA --strict-lambada", "an evaluation"),
        ("--retro-tasks build", "RETRO"),
        ("--skip-train", "an evaluation"),
        ("--patch-size 16", "a multimodal model"),
        ("--mrope-section 24 20 20", "a multimodal model"),
    ],
)
def test_megatrons_arguments_of_other_jobs_are_refused(said: str, what: str) -> None:
    """Evaluations, preprocessing and towers take the dimensions of a decoder, too."""
    problems = read_arguments("run.sh", f"{MEGATRON.rstrip()} {said}\n").problems
    assert any(what in each.message for each in problems)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.json", '{"pipe-parallel-size": 1, "num-layers": 12, "zero_optimization": {"stage": 1}}', "GPT-NeoX"),
        ("a.yml", "pipe_parallel_size: 1\nmodel_parallel_size: 2\nzero_optimization: {stage: 1}\n", "GPT-NeoX"),
        (
            "a.sh",
            "uv run examples/run_sft.py \\\n    --config $CONFIG \\\n    policy.model_name=a/b \\\n    $@\n",
            "NeMo-RL",
        ),
        ("a.sh", "uv run run_dpo.py cluster.gpus_per_node=2 policy.train_global_batch_size=8\n", "NeMo-RL"),
    ],
)
def test_other_frameworks_are_called_by_their_names(name: str, text: str, what: str) -> None:
    """A part of their keys is DeepSpeed's, and their scripts are called as TRL's are."""
    with pytest.raises(ConfigError, match=what) as found:
        detect(name, text)
    assert found.value.location is not None


def test_the_state_of_a_trainer_is_no_engines_config() -> None:
    """It says `train_batch_size`, as DeepSpeed's configs do."""
    text = '{"epoch": 1.0, "global_step": 10, "log_history": [{"loss": 1.0}], "train_batch_size": 4}'
    with pytest.raises(ConfigError, match="state of a Trainer"):
        detect("trainer_state.json", text)


CLM = (
    "python run_clm.py --model_name_or_path gpt2 --block_size 512 --per_device_train_batch_size 4 --learning_rate 1e-5"
)


@pytest.mark.parametrize(
    ("said", "trains"), [("", True), ("--do_train --do_eval", True), ("--do_eval", False), ("--do_train False", False)]
)
def test_an_example_of_transformers_trains_where_it_says_so(said: str, trains: bool) -> None:
    """With `--do_eval` alone it evaluates."""
    problems = read("run.sh", f"{CLM} {said}\n").problems
    assert any("trains nothing" in each.message for each in problems) != trains


@pytest.mark.parametrize(
    ("script", "head"), [("run_glue", "classification"), ("run_ner", "token-classification"), ("run_clm", None)]
)
def test_an_examples_name_says_its_head(script: str, head: str | None) -> None:
    """A classifier has no logits over the vocabulary."""
    found = read("run.sh", f"{CLM.replace('run_clm', script)} --do_train\n")
    assert not found.problems
    assert values(found).get("training.head") == head
