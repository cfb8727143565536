"""Launch lines that leave out the batch: the reader of the script is found, and its answers are the ones that count."""

from __future__ import annotations

import pytest

from memcheck.__main__ import main
from memcheck.configs.detect import detect
from tests.configs.test_trainers import read, values

Capture = pytest.CaptureFixture[str]
START = "torchrun --nproc_per_node 8"


@pytest.mark.parametrize(
    ("script", "reader"),
    [
        ("sft.py --model_name_or_path Qwen/Qwen2.5-7B --max_length 2048", "trl"),
        ("sft.py --model-name-or-path Qwen/Qwen2.5-7B --max-length 2048", "trl"),
        ("train_dpo.py --model_name_or_path Qwen/Qwen2.5-7B --seed 1", "trl"),
        ("run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --block_size 1024", "transformers"),
        ("mine.py --model_name_or_path Qwen/Qwen2.5-7B --max_steps 20", "transformers"),
    ],
)
def test_a_model_and_one_argument_are_enough(script: str, reader: str) -> None:
    """The batch that is missing is the trainer's default."""
    text = f"{START} {script}\n"
    assert detect("run.sh", text) == reader
    assert values(read("run.sh", text))["training.micro_batch_size"] == 8


def test_a_missing_batch_is_the_default_one(capsys: Capture) -> None:
    """The figure is that of the same line with the batch written out."""
    line = [*START.split(), *["sft.py", "--model_name_or_path", "Qwen/Qwen2.5-7B", "--max_length", "2048"]]
    figures = []
    for more in ([], ["--per_device_train_batch_size", "8"]):
        assert main(["estimate", "--gpu", "a100-80gb", "--", *line, *more]) == 0
        figures.append(next(each for each in capsys.readouterr().out.splitlines() if each.startswith("device memory")))
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("script", "reader", "named"),
    [
        ("sft.py --lr 3", "trl", False),
        ("kto_mine.py --lr 3", "trl", False),
        ("mine.py --lr 3", "transformers", False),
        ("mine.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 512", "transformers", True),
        ("mine.py --model_name Qwen/Qwen2.5-0.5B", "transformers", True),
    ],
)
def test_the_help_asks_for_what_the_line_does_not_say(script: str, reader: str, named: bool, capsys: Capture) -> None:
    """It never names another model than the line's, and following it gives a figure."""
    line = [*START.split(), *script.split()]
    assert main(["estimate", "--gpu", "b300", "--", *line]) == 1
    said = " ".join(capsys.readouterr().out.split())
    answers = said.partition("state what it does: ")[2].partition(" more:")[0].split()
    assert answers[:2] == ["--from", reader]
    assert ("--model" in answers) != named
    assert main(["estimate", "--gpu", "b300", *answers, "--", *line]) == 0
