"""The name of a script says what it optimizes, wherever the word stands in it; a name that does not is asked about."""

from __future__ import annotations

import pytest

from tests.configs.test_trainers import read, values

JOB = (
    "torchrun --nproc_per_node 8 {} --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 512 --dataset_name a/b"
    " --per_device_train_batch_size 2 --learning_rate 1e-6\n"
)
OBJECTIVE = "training.objective.name"


@pytest.mark.parametrize(
    ("script", "objective"),
    [
        ("dpo.py", "dpo"),
        ("train_dpo.py", "dpo"),
        ("scripts/dpo_train.py", "dpo"),
        ("TrainDPO.py", "dpo"),
        ("traindpo2.py", "dpo"),
        ("my-orpo-run.py", "orpo"),
        ("orpo_trainer.py", "orpo"),
        ("train_rm.py", "reward"),
        ("run_reward_modeling.py", "reward"),
        ("llama_kto.py", "kto"),
        ("-m mine.train_simpo", "simpo"),
        ("train_sft.py", None),
    ],
)
def test_a_word_of_the_name_is_the_objective(script: str, objective: str | None) -> None:
    """`train_dpo.py` is DPO as `dpo.py` is."""
    found = read("run.sh", JOB.format(script))
    assert not found.problems
    assert values(found).get(OBJECTIVE) == objective


@pytest.mark.parametrize(
    "script",
    [
        "train_grpo.py",
        "my-grpo-run.py",
        "grpotrainer.py",
        "run_online_dpo.py",
        "dapo_v2.py",
        "nash_md.py",
        "train_rloo.py",
    ],
)
def test_jobs_that_generate_are_refused_by_name(script: str) -> None:
    """None of them is taken for supervised training."""
    assert any("generates between its steps" in each.message for each in read("run.sh", JOB.format(script)).problems)


@pytest.mark.parametrize("script", ["endpoint.py", "linkto.py", "prm.py", "train.py"])
def test_other_names_are_asked_about(script: str) -> None:
    """A word that only holds the letters of an objective is none."""
    assert any("training.objective" in each.keys for each in read("run.sh", JOB.format(script)).problems)


def test_two_objectives_are_asked_about() -> None:
    """A name with both says neither; the answer is accepted."""
    (problem,) = read("run.sh", JOB.format("dpo_from_sft.py")).problems
    assert "dpo and sft" in problem.message
    answered = read("run.sh", JOB.format("dpo_from_sft.py"), training__objective="dpo")
    assert not answered.problems
