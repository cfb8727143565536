"""Files of a team's own: what is taken from their usual names, what is asked for, and what is never guessed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.configs.config_file import load_toml, load_yaml
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.read_keys import MOST_LISTED, NAMES, proposal, taken
from memcheck.configs.types import ReadSetting
from memcheck.judge import Gate, check_file

OWN = """\
experiment: a1
model:
  name: Qwen/Qwen2.5-7B-Instruct
lora: {r: 16, dropout: 0.0, target_modules: all-linear}
training:
  batch_size: 2
  grad_accum: 8
  max_seq_length: 2048
  bf16: true
  gradient_checkpointing: true
  optim: paged_adamw_8bit
eval:
  batch_size: 64
data:
  batch_size: 1000
inference: {max_length: 100000}
"""


def read(text: str, stated: dict[str, object] | None = None, path: str = "own.yaml") -> Imported:
    """A file with its usual names, on a known GPU."""
    settings = {"hardware.gpu": "a100-80gb", **(stated or {})}
    return import_config(path, text.encode(), {k: ReadSetting(v, "test") for k, v in settings.items()}, "keys")


def test_usual_names_are_taken_from_their_lines() -> None:
    """Each value has the file's own key and line; sections of other jobs are not looked at."""
    found = read(OWN)
    assert found.problems == ()
    said = {key: (each.value, each.why) for key, each in found.settings.items()}
    assert said["model.name"] == ("Qwen/Qwen2.5-7B-Instruct", "own.yaml:3 model.name")
    assert said["training.micro_batch_size"] == (2, "own.yaml:6 training.batch_size")
    assert said["training.gradient_accumulation_steps"] == (8, "own.yaml:7 training.grad_accum")
    assert said["training.sequence_length"] == (2048, "own.yaml:8 training.max_seq_length")
    assert said["training.lora.rank"] == (16, "own.yaml:4 lora.r")
    assert said["training.optimizer.name"] == ("paged-adamw-8bit", "own.yaml:11 training.optim")


def test_nothing_is_taken_in_silence() -> None:
    """Without ``--from keys`` a file is refused, with what its keys say and the command that takes them."""
    (result,), _ = check_file("own.yaml", OWN.encode(), Gate(hardware={"gpu": "a100-80gb"}))
    (finding,) = result.findings
    assert "its keys say: model Qwen/Qwen2.5-7B-Instruct (line 3), micro-batch 2 (line 6)" in finding.message
    assert finding.help.endswith("memcheck estimate own.yaml --from keys --gpu a100-80gb")


@pytest.mark.parametrize(
    ("gone", "asked"),
    [
        ("  name: Qwen/Qwen2.5-7B-Instruct\n", "--model"),
        ("  batch_size: 2\n", "--micro-batch-size"),
        ("  max_seq_length: 2048\n", "--sequence-length"),
        ("  bf16: true\n", "training.precision.recipe"),
    ],
)
def test_what_decides_the_size_is_asked_for(gone: str, asked: str) -> None:
    """A value that no key says is no default of anybody."""
    text = OWN.replace(gone, "")
    assert any(asked in each.help for each in read(text).problems)
    assert any(asked in each for each in proposal(load_yaml("own.yaml", text))[1])


def test_an_adapter_without_a_rank_is_asked_about() -> None:
    """4-bit weights are trained with adapters, whose rank no key says."""
    found = read(OWN.replace("lora: {r: 16, dropout: 0.0, target_modules: all-linear}\n", "quantization: 4bit\n"))
    assert [each.help for each in found.problems if "lora.rank" in each.help]


def test_a_name_with_two_values_is_asked_about() -> None:
    """None of two batches is chosen; the more special name goes before both."""
    twice = OWN + "phase2: {batch_size: 8}\n"
    (problem,) = read(twice).problems
    assert "`training.batch_size` has another value on lines 17" in problem.message
    assert read(twice, {"training.micro_batch_size": 8}).problems == ()
    special = read(twice.replace("grad_accum: 8", "grad_accum: 8\n  per_device_train_batch_size: 4"))
    assert special.settings["training.micro_batch_size"].value == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lora_r", "[1, 2]"),
        ("batch_size", "true"),
        ("batch_size", "-1"),
        ("max_length", "'2048 tokens'"),
        ("gpus", "1.5"),
    ],
)
def test_a_value_of_another_kind_is_not_taken(key: str, value: str) -> None:
    """What its name does not fit is left to the note."""
    config = load_yaml("own.yaml", f"a: {{{key}: {value}}}\n")
    assert not {"lora_r", "per_device_train_batch_size", "max_length", "gpus"} & taken(config).keys()


def test_reinforcement_learning_is_refused() -> None:
    """An algorithm with rollouts, whatever its other keys say."""
    assert any("rollouts" in each.message for each in read(OWN + "algorithm: grpo\n").problems)


def test_what_was_not_looked_at_is_one_note() -> None:
    """A long file has a short answer."""
    text = OWN + "".join(f"own_{number}: {number}\n" for number in range(500))
    found = read(text)
    assert len(found.notes) <= 3
    assert f"and {500 + 5 - MOST_LISTED} more" in found.notes[-1].message or "more" in found.notes[-1].message
    (result,), _ = check_file("own.yaml", text.encode(), Gate(hardware={"gpu": "a100-80gb"}))
    assert len(result.findings) == 1


def test_keys_that_move_no_memory_are_not_listed() -> None:
    """Rates, seeds and folders have no usual name of a value that counts, and are no reason for a note."""
    found = read(OWN + "lr: 1e-5\nseed: 1\nweight_decay: 0.1\noutput_dir: a\nscheduler: {warmup_ratio: 0.1}\n")
    assert [note.message for note in found.notes] == [note.message for note in read(OWN).notes]


def test_a_plan_takes_such_a_file_as_its_source(tmp_path: Path) -> None:
    """The same values, as ``source: {keys: ...}``."""
    (tmp_path / "own.yaml").write_text(OWN)
    plan: dict[str, Any] = {"memcheck": 1, "source": {"keys": "./own.yaml"}, "hardware": {"gpu": "a100-80gb"}}
    (result,), _ = check_file(str(tmp_path / "plan.yaml"), yaml.safe_dump(plan).encode(), Gate())
    assert result.estimate is not None


def test_no_usual_name_stands_for_two_things() -> None:
    """The table has each name once."""
    names = [name for each in NAMES.values() for name in each]
    assert sorted({name for name in names if names.count(name) > 1}) == []


RECORD: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("own_files.yaml").read_text())
FOLDER = Path(os.environ.get("MEMCHECK_SCRIPTS", "/nonexistent"))
MOST_ASKED, LEAST = 3, 0.8


def test_most_public_files_ask_for_little() -> None:
    """Up to three values in addition to the GPU, in four of five files."""
    assert len(RECORD) >= 30
    assert len({each["repository"] for each in RECORD}) >= 15
    assert sum(0 <= each["asked"] <= MOST_ASKED for each in RECORD) >= LEAST * len(RECORD)


def test_public_files_ask_for_as_much() -> None:
    """The recorded number, where ``MEMCHECK_SCRIPTS`` names a folder with a checkout of its repository."""
    if not FOLDER.is_dir():
        pytest.skip("MEMCHECK_SCRIPTS names no folder of checkouts")
    for each in RECORD:
        path = FOLDER / each["repository"].replace("/", "__") / each["path"]
        if path.is_file():
            load = load_toml if path.suffix == ".toml" else load_yaml
            said, options = proposal(load(path.name, path.read_text(encoding="utf-8")))
            assert (len(options) if said else -1) == each["asked"], path
