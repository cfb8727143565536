"""Where in a config a value is edited, and where it is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.sourced_edits import sourced_edits
from memcheck.job.changes import spelled
from memcheck.plan.finding import Edit, FileEdits
from memcheck.plan.read import with_changes
from memcheck.plan.value_edits import edited
from tests.configs.sourced_plans import DEEPSPEED, LLAMA, MEGATRON, PLANS, load, resolved, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edits_of(format: str, text: str, changes: dict[str, object]) -> tuple[tuple[Edit, ...], tuple[FileEdits, ...]]:
    """Edits of a plan whose config has another text."""
    _, config = write(format)
    config.write_text(text)
    document = load()
    wanted = resolved(with_changes(document, spelled(document, changes, None)))
    assert wanted is not None
    return sourced_edits(document, spelled(document, changes, None), wanted)


@pytest.mark.parametrize(
    ("format", "old", "new", "changes"),
    [
        ("accelerate", "tp_size: 1", "tp_size: &one 1\nmachine_rank: 0", {"parallelism.tensor": 2}),
        (
            "torchtitan",
            "[training]",
            "[debug]\nseeds = [\n  1,\n  2,\n]\n[training]",
            {"training.sequence_length": 4096},
        ),
        ("torchtitan", "seq_len = 8192", "'seq_len' = 8_192", {"training.sequence_length": 4096}),
        ("deepspeed", '"steps_per_print": 10', '"steps_per_print": 10, "wandb": {}', {"parallelism.zero_stage": 2}),
        ("megatron", "--seq-length=4096", "--seq-length '4096'", {"training.sequence_length": 2048}),
        ("megatron", "TP=2", "TP=2  # two", {"parallelism.tensor": 4}),
    ],
)
def test_spellings_are_edited_in_their_place(format: str, old: str, new: str, changes: dict[str, object]) -> None:
    """Anchors, long lists, quotes, underscores, empty sections, variables: one value changes."""
    text = PLANS[format][1]
    assert old in text
    own, (file,) = edits_of(format, text.replace(old, new), changes)
    assert not own
    (edit,) = file.edits
    (value,) = changes.values()
    assert edit.text == str(value)


def test_a_variable_that_is_used_twice_is_left_alone() -> None:
    """The argument gets the number, and the other use keeps the variable."""
    text = MEGATRON.replace("--cp-comm-type p2p", "--context-parallel-size ${TP}")
    _, (file,) = edits_of("megatron", text, {"parallelism.tensor": 4, "parallelism.context": 2})
    (edit,) = file.edits
    assert (edit.text, edit.span.line) == ("4", 10)


@pytest.mark.parametrize(
    ("format", "old", "new", "changes"),
    [
        ("accelerate", "tp_size: 1", "tp_size: &n 1\n  parallelism_config_cp_size: *n", {"parallelism.context": 2}),
        ("deepspeed", "  ", "\t", {"parallelism.zero_stage": 2}),
        (
            "deepspeed",
            '"train_micro_batch_size_per_gpu": 8',
            '"train_micro_batch_size_per_gpu":\n  8',
            {"training.micro_batch_size": 4, "training.gradient_accumulation_steps": 2},
        ),
    ],
    ids=["alias", "tabs", "another line"],
)
def test_uncertain_places_are_left_alone(format: str, old: str, new: str, changes: dict[str, object]) -> None:
    """An alias may serve other keys: the change is listed, not made. Tabs and lines of their own do no harm."""
    own, elsewhere = edits_of(format, PLANS[format][1].replace(old, new), changes)
    if elsewhere:
        assert [edit.text for edit in elsewhere[0].edits] == [str(next(iter(changes.values())))]
    else:
        assert own == ()


def test_the_engines_file_behind_accelerate_is_edited() -> None:
    """Where Accelerate's config names a DeepSpeed file, its values are changed there."""
    Path("ds.json").write_text(DEEPSPEED)
    Path("launch.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    Path("plan.yaml").write_text(
        f"memcheck: 1\nsource: {{accelerate: ./launch.yaml}}\n{LLAMA}hardware: {{gpu: rtx-4090}}\n"
        "training: {sequence_length: 4096, activation_checkpointing: full}\n"
    )
    document = load()
    wanted = resolved(with_changes(document, {"parallelism.zero_stage": 3}))
    assert wanted is not None
    own, (file,) = sourced_edits(document, {"parallelism.zero_stage": 3}, wanted)
    assert not own
    assert file == FileEdits("ds.json", (Edit(file.edits[0].span, "3"),))


def test_auto_is_left_to_the_trainer() -> None:
    """What DeepSpeed's JSON leaves to TrainingArguments is stated in the plan, and the JSON keeps its ``auto``."""
    text = DEEPSPEED.replace('  "train_batch_size": 64,\n', '  "gradient_accumulation_steps": "auto",\n')
    changes: dict[str, object] = {"training.micro_batch_size": 4, "training.gradient_accumulation_steps": 2}
    own, (file,) = edits_of("deepspeed", text, changes)
    assert [edit.text for edit in file.edits] == ["4"]
    assert "gradient_accumulation_steps: 2" in own[0].text


def test_text_inside_a_string_is_no_table() -> None:
    """Lines of a long string that look like a table and its key are left alone: the value itself is edited."""
    note = 'note = """\n[training]\nseq_len = 8192\n"""\n\n'
    text = PLANS["torchtitan"][1].replace("[model]\n", f"[model]\n{note}")
    own, (file,) = edits_of("torchtitan", text, {"training.sequence_length": 4096})
    assert not own
    after = edited(text.encode(), file.edits).decode()
    assert after == text.replace("\nseq_len = 8192\ndataset", "\nseq_len = 4096\ndataset")


def test_a_new_key_goes_below_the_header_and_not_into_a_string() -> None:
    """A table's missing key is written below its header, though a long string above holds the same header."""
    text = PLANS["torchtitan"][1].replace("[model]\n", "[model]\nnote = '''\n[parallelism]\n'''\n")
    own, (file,) = edits_of("torchtitan", text, {"parallelism.tensor": 2})
    assert not own
    after = edited(text.encode(), file.edits).decode()
    assert after.rpartition("[parallelism]\n")[2].startswith("tensor_parallel_degree = 2\n")
    assert after.count("tensor_parallel_degree") == 1


@pytest.mark.parametrize("written", ['{ mode = "none" }', "{}"], ids=["with the key", "without it"])
def test_a_table_in_braces_is_edited_in_its_braces_or_not_at_all(written: str) -> None:
    """A value inside braces is replaced; for a key that they lack there is no edit, never a second table."""
    head, _, _ = PLANS["torchtitan"][1].partition("[activation_checkpoint]")
    text = f"activation_checkpoint = {written}\n{head}"
    _, elsewhere = edits_of("torchtitan", text, {"training.activation_checkpointing.mode": "full"})
    texts = [edit.text for file in elsewhere for edit in file.edits]
    assert texts == (['"full"'] if "mode" in written else [])
