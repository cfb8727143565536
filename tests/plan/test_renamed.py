"""Keys under the names that other tools give them."""

from __future__ import annotations

import pytest
import yaml

from memcheck.plan.foreign import KEYS, RENAMED, Renamed, rewritten
from memcheck.plan.schema import branches, conforms, load_schema
from tests.plan.samples import SMALL, changed, findings, fixed, marked, one, read

VALUES = {
    "hardware": "hardware: {{gpu: h100-80gb, {key}: {value}}}\n",
    "parallelism": "parallelism: {{{key}: {value}}}\n",
    "training.lora": "  method: lora\n  lora: {{{key}: {value}}}\n",
}
NEEDED = {"micro_batch_size": "  micro_batch_size: 1\n", "sequence_length": "  sequence_length: 4096\n"}


def plan(entry: Renamed, value: str) -> str:
    """A plan that has the key and is otherwise right."""
    if entry.section == "inference":
        return (
            f"memcheck: 1\nmodel: llama-3.1-8b\nhardware: {{gpu: h100-80gb}}\ninference:\n  batch_size: 1\n  {entry.old}: {value}\n"
            + ("" if entry.new == "context_length" else "  context_length: 8192\n")
        )
    if entry.section == "training":
        return SMALL.replace(NEEDED.get(entry.new, "\0"), "") + f"  {entry.old}: {value}\n"
    part = VALUES[entry.section].format(key=entry.old, value=value)
    return SMALL.replace("hardware: {gpu: h100-80gb}\n", part) if entry.section == "hardware" else SMALL + part


def example(entry: Renamed) -> str:
    """A value that the other tool takes."""
    if entry.values:
        return next(iter(entry.values))
    return "[q_proj]" if entry.new == "target_modules" else "4096"


def test_every_entry_leads_to_a_key_of_the_plan() -> None:
    """The section has the new name and not the old one, and every value it may write conforms."""
    for entry in RENAMED:
        root = load_schema()
        schema = root
        for token in entry.section.split("."):
            schema = next(each for each in branches(schema["properties"][token], root) if "properties" in each)
        assert entry.new in schema["properties"], entry.old
        assert entry.old not in schema["properties"], entry.old
        for value in entry.values.values():
            assert conforms(yaml.safe_load(value), schema["properties"][entry.new], root), entry.old


def test_every_entry_is_mended() -> None:
    """It is one finding at the key, whose edits make the plan valid with the same meaning."""
    for entry in RENAMED:
        text = plan(entry, example(entry))
        finding = one(text)
        assert (finding.code, marked(text, finding)) == ("MEM016", entry.old), entry.old
        assert entry.origin in finding.message, entry.old
        mended = fixed(text)
        assert read(mended)[0] is not None, mended
        assert f"{entry.new}: {rewritten(entry, example(entry))}" in mended, entry.old


def test_names_are_unique_and_no_suggestion_contradicts_one() -> None:
    """No key stands twice, and a table of suggestions that has it too says the same."""
    names = [(entry.section, entry.old) for entry in RENAMED]
    assert len(set(names)) == len(names)
    for entry in RENAMED:
        suggested = KEYS.get(entry.old)
        assert (
            suggested is None
            or suggested.rpartition(".")[2] == entry.new
            or suggested.partition(".")[0] != (entry.section.partition(".")[0])
        )


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("  optim: galore_adamw", "write `optimizer`, which has a value for `adamw_torch`, "),
        ("  mixed_precision: int8", "write `precision`, which has a value for `no`, `bf16`, `fp16` and `fp8` only"),
        (
            "  gradient_checkpointing: [true]",
            "write `activation_checkpointing`, which has a value for `true` and `false`",
        ),
        (
            "  gradient_checkpointing: {use_reentrant: false}",
            "write `activation_checkpointing`, which has a value for ",
        ),
    ],
)
def test_a_value_without_an_equal_is_left_alone(line: str, help: str) -> None:
    """Then the key is explained, and nothing is edited."""
    finding = one(f"{SMALL}{line}\n")
    assert finding.code == "MEM016"
    assert finding.help.startswith(help)
    assert finding.fix == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  max_seq_length: 8192\n", 1),
        ("  gradient_checkpointing: true\n  recompute_granularity: full\n", 2),
        ("  activation_checkpointing: none\n  gradient_checkpointing: false\n", 1),
    ],
)
def test_the_same_setting_twice_is_left_alone(line: str, expected: int) -> None:
    """An edit never makes a duplicate key, whichever two names stand beside each other."""
    found = [finding for finding in findings(f"{SMALL}{line}") if finding.code == "MEM016"]
    assert len(found) == expected
    assert all(finding.fix == () for finding in found)


def test_a_quoted_or_yaml_word_keeps_its_meaning() -> None:
    """Accelerate's `'no'` is text, and its value is replaced with its quotes."""
    text = SMALL + "  mixed_precision: 'no'  # full\n"
    assert fixed(text) == SMALL + "  precision: fp32  # full\n"


def test_what_is_renamed_is_not_missing() -> None:
    """`max_seq_length` is one mistake."""
    assert one(changed("sequence_length", "max_seq_length")).code == "MEM016"


def test_another_section_is_named_and_not_edited() -> None:
    """Moving a key between sections is for its author: the line that it belongs to is not known."""
    finding = one(f"{SMALL}  tensor_model_parallel_size: 2\n")
    assert (finding.code, finding.help, finding.fix) == ("MEM011", "it is written `parallelism.tensor: 2`", ())
