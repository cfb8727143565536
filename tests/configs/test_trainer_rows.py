"""Which rows a launched script makes: full ones are no reason to pass with short ones."""

from __future__ import annotations

import pytest

from memcheck.__main__ import main
from tests.configs.test_trainers import read, values

JOB = "torchrun --nproc_per_node 2 {} --model_name_or_path {} --per_device_train_batch_size 4 --learning_rate 1e-5"
ROWS, LONGEST, LENGTH = "training.sequences", "training.longest_row", "training.sequence_length"


def _read(script: str, model: str = "meta-llama/Llama-3.2-1B") -> dict[str, object]:
    return values(read("run.sh", JOB.format(script, model) + "\n"))


@pytest.mark.parametrize(
    "script",
    [
        "run_clm.py --block_size 512",
        "examples/language-modeling/run_clm_no_trainer.py --block_size 512",
        "run_fim.py --block_size 512",
        "run_clm.py --block_size 512 --line_by_line",  # no argument of its own
        "run_mlm.py --max_seq_length 512",
        "run_mlm.py --max_seq_length 512 --line_by_line False",
        "run_plm.py --max_seq_length 512",
        "run_language_modeling.py --block_size 512",
        "pretrain.py --block_size 512",
        "train.py --model_max_length 512",
        "finetune.py --max_seq_length 512",
    ],
)
def test_grouped_texts_are_full_rows(script: str) -> None:
    """Scripts that join texts make full rows; rows of unknown scripts are taken as full."""
    found = _read(script)
    assert (found[ROWS], found[LENGTH]) == ("packed", 512)
    assert LONGEST not in found


@pytest.mark.parametrize(
    "script",
    [
        "run_mlm.py --max_seq_length 512 --line_by_line",
        "run_ner.py --max_seq_length 512",
        "run_glue.py --max_seq_length 512 --pad_to_max_length False",
        "run_glue_no_trainer.py --max_length 512",
        "run_seq2seq_qa.py --max_seq_length 512",
        "scripts/sft.py --max_length 512",
        "dpo.py --max_length 512",
        "open_instruct/finetune.py --max_seq_length 512 --use_slow_tokenizer",
    ],
)
def test_one_text_per_row_is_padded(script: str) -> None:
    """The limit is only the longest that a row can be."""
    found = _read(script)
    assert found[ROWS] in ("padded", "unpacked")
    assert (found[LENGTH], found.get(LONGEST)) == (512, None)


@pytest.mark.parametrize(
    ("script", "limit"),
    [
        ("run_glue.py", 128),
        ("run_glue.py --max_seq_length 256", 256),
        ("run_qa.py", 384),
        ("run_xnli.py --pad_to_max_length True", 128),
        ("run_ner.py --max_seq_length 200 --pad_to_max_length", 200),
        ("run_mlm.py --max_seq_length 512 --line_by_line --pad_to_max_length", 512),
    ],
)
def test_rows_that_are_padded_to_the_limit_have_its_length(script: str, limit: int) -> None:
    """Every row is the longest one, with a mask."""
    found = _read(script, "google-bert/bert-base-uncased")
    assert (found[ROWS], found[LENGTH], found[LONGEST]) == ("padded", limit, limit)


def test_choices_of_a_question_are_refused() -> None:
    """A row of `run_swag.py` is four rows of the model."""
    problems = read("run.sh", JOB.format("run_swag.py --max_seq_length 128", "bert-base-uncased")).problems
    assert any("every choice of a question" in each.message for each in problems)


def test_full_rows_do_not_pass_for_short_ones(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` fails at the length that every row has."""
    path = f"{tmp_path}/clm.sh"
    with open(path, "w", encoding="utf-8") as file:
        file.write(JOB.format("run_clm.py --block_size 4096", "meta-llama/Llama-3.2-1B") + "\n")
    assert main(["check", path, "--gpu", "a100-40gb"]) == 1
    assert "MEM108" not in capsys.readouterr().out
