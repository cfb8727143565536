from __future__ import annotations

import re

import pytest

from tests.plan.samples import SMALL, changed, findings, fixed, marked, one, read


@pytest.mark.parametrize(
    ("line", "code", "severity", "place", "message", "help", "better"),
    [
        ("compile: on", "MEM005", "warning", "on", "`compile` is `on`, which is `true` to YAML 1.1 and text to YAML 1.2", "write `true`", "true"),
        ("compile: No", "MEM005", "warning", "No", "`compile` is `No`, which is `false` to YAML 1.1 and text to YAML 1.2", "write `false`", "false"),
        ("expandable_segments: off", "MEM005", "warning", "off", "`expandable_segments` is `off`, which is `false` to YAML 1.1 and text to YAML 1.2", "write `false`", "false"),
        ("attention: on", "MEM005", "error", "on", "`attention` must be one of `flash`, `sdpa`, `flex` or `eager`, and YAML reads `on` as the boolean true", "write `flash`, `sdpa`, `flex` or `eager`", None),
        ("activation_checkpointing: no", "MEM005", "error", "no", "`activation_checkpointing` must be one of `none`, `selective` or `full`, and YAML reads `no` as the boolean false", "write `none`", "none"),
        ("gradient_accumulation_steps: 012", "MEM004", "error", "012", "`gradient_accumulation_steps` is `012`, which is `10` to YAML 1.1 and `12` to YAML 1.2", "write `10` or `12`", None),
        ("gradient_accumulation_steps: 1:30", "MEM004", "error", "1:30", "`gradient_accumulation_steps` is `1:30`, which is `90` to YAML 1.1 and text to YAML 1.2", "write `90`", None),
        ("expert_imbalance: 1:30.5", "MEM004", "error", "1:30.5", "`expert_imbalance` is `1:30.5`, which is `90.5` to YAML 1.1 and text to YAML 1.2", "write `90.5`", None),
        ("gradient_accumulation_steps: 0o17", "MEM004", "error", "0o17", "`gradient_accumulation_steps` must be a whole number of at least 1, and YAML reads `0o17` as text", "write `15`", "15"),
        ("gradient_accumulation_steps: 1e3", "MEM004", "error", "1e3", "`gradient_accumulation_steps` must be a whole number of at least 1, and YAML reads `1e3` as text", "write `1000`", "1000"),
        ("expert_imbalance: 1.05e0", "MEM004", "error", "1.05e0", "`expert_imbalance` must be a number of at least 1, and YAML reads `1.05e0` as text", "write `1.05e+0`", "1.05e+0"),
        ("expert_imbalance: 1e-5", "MEM004", "error", "1e-5", "`expert_imbalance` must be a number of at least 1, and YAML reads `1e-5` as text", "a number is written `1.0e-5`", None),
        ("expert_imbalance: .nan", "MEM014", "error", ".nan", "`expert_imbalance` must be a finite number, not `.nan`", "", None),
        ("framework_version: 5.20", "MEM004", "error", "5.20", "`framework_version` must be text, and YAML reads `5.20` as a number", 'quote it: `"5.20"`', '"5.20"'),
        ("options: {bucket: 5e8}", "MEM004", "error", "5e8", "`bucket` looks like a number, and YAML reads `5e8` as text", "write `500000000`, or quote it if text is meant", "500000000"),
        ("options: {deep: [[{eps: 1E-5}]]}", "MEM004", "error", "1E-5", "`eps` looks like a number, and YAML reads `1E-5` as text", "write `1.0e-5`, or quote it if text is meant", "1.0e-5"),
        ("options: {count: 0o17}", "MEM004", "error", "0o17", "`count` looks like a number, and YAML reads `0o17` as text", "write `15`, or quote it if text is meant", "15"),
        ("options: {flag: yes}", "MEM005", "warning", "yes", "`flag` is `yes`, which is `true` to YAML 1.1 and text to YAML 1.2", "write `true`", "true"),
        ("options: {mode: 0755}", "MEM004", "error", "0755", "`mode` is `0755`, which is `493` to YAML 1.1 and `755` to YAML 1.2", "write `493` or `755`", None),
        ("options: {size: .inf}", "MEM014", "error", ".inf", "`size` must be a finite number, not `.inf`", "", None),
        ("options: {size: !!float .inf}", "MEM014", "error", ".inf", "`size` must be a finite number, not `.inf`", "", None),
        ("options: {size: 1.0e+400}", "MEM014", "error", "1.0e+400", "`size` must be a finite number, not `1.0e+400`", "", None),
        ("options: {size: 99999999999999999999}", "MEM014", "error", "99999999999999999999", "`size` is `99999999999999999999`, more than any size can be", "", None),
    ],
)  # fmt: skip
def test_traps_of_yaml(line, code, severity, place, message, help, better):
    """A scalar that YAML reads differently from what it looks like is named, with the text to write instead."""
    text = f"{SMALL}  {line}\n"
    finding = one(text)
    assert (finding.code, finding.severity, marked(text, finding)) == (code, severity, place)
    assert (finding.message, finding.help or "") == (message, help)
    assert [edit.text for edit in finding.fix] == ([] if better is None else [better])
    if better is not None:
        assert findings(fixed(text)) == []


@pytest.mark.parametrize(
    "line",
    [
        "name: 1e-5",
        "name: 0o17",
        "name: 2026-11-20",
        "name: 1f1b",
        'name: "012"',
        "description: 'on'",
        "description: y",
        "description: =",
        "description: 12.5.1",
    ],
)
def test_text_is_no_trap(line):
    """Where text is right, text that could be something else is left alone."""
    assert findings(f"{SMALL}{line}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "compile: True",
        "compile: FALSE",
        "expert_imbalance: 1_000.5",
        "gradient_accumulation_steps: 0x10",
        "gradient_accumulation_steps: 1_000",
        'options: {a: "1e5", b: "on"}',
    ],
)
def test_what_every_reader_understands_is_no_trap(line):
    """Spellings with one meaning are not reported."""
    assert findings(f"{SMALL}  {line}\n") == []


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("name: 012", '"012"'),
        ("name: 12:30", '"12:30"'),
        ("description: on", '"on"'),
        ("description: 5", '"5"'),
        ("description: true", '"true"'),
    ],
)
def test_text_that_yaml_does_not_read_as_text_is_quoted(line, quoted):
    """A name that YAML turns into something else has one right outcome: quotes."""
    text = f"{SMALL}{line}\n"
    finding = one(text)
    assert finding.help == f"quote it: `{quoted}`"
    assert fixed(text).endswith(f" {quoted}\n")
    assert findings(fixed(text)) == []


def test_an_octal_number_is_an_error_and_yamls_reading_is_used():
    """The plan is judged as YAML 1.1 reads it, and fails until the number is clear."""
    plan, (finding,) = read(f"{SMALL}  gradient_accumulation_steps: 012\n")
    assert plan is not None
    assert plan.training is not None
    assert (plan.training.gradient_accumulation_steps, finding.severity) == (10, "error")


def test_traps_are_reported_beside_other_mistakes():
    """A plan that is invalid elsewhere still hears of its traps."""
    text = changed("4096", "-1") + "  compile: on\n"
    assert [finding.code for finding in findings(text)] == ["MEM014", "MEM005"]


@pytest.mark.parametrize(
    ("value", "help"),
    [
        ("128k", "write `131072` (128 x 1024), or `128000` if thousands are meant"),
        ("8K", "write `8192` (8 x 1024), or `8000` if thousands are meant"),
        ("1,024", "write `1024`"),
        ("8192 tokens", "write the number alone; the key's name says its unit"),
    ],
)
def test_lengths_are_numbers(value, help):
    """`128k` is refused with the number to write: it means two different lengths."""
    finding = one(changed("4096", value))
    assert (finding.code, finding.help, finding.fix) == ("MEM013", help, ())


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("attention: flash_attention_2", "did you mean `flash`?"),
        ("precision: bf16", "did you mean `bf16-mixed` or `bf16-pure`?"),
        ("optimizer: adamw_torch_fused", "did you mean `adamw`?"),
        ("framework: transformers", "did you mean `huggingface`?"),
        ("precision: {params: bfloat16}", "did you mean `bf16`?"),
    ],
)
def test_words_of_other_tools_are_translated(line, help):
    """What the frameworks call it leads to what the plan calls it."""
    finding = one(f"{SMALL}  {line}\n")
    assert finding.code == "MEM014"
    assert finding.help.startswith(help)


@pytest.mark.parametrize("key", ["memory_gib", "host_memory_gib", "activation_multiplier", "overhead"])
def test_nan_is_no_plan(key):
    """JSON Schema lets NaN pass every bound; nothing may be computed from it."""
    text = (
        "memcheck: 1\n"
        "model: {rough: {parameters: 1B, layers: 8, hidden_size: 64, activation_multiplier: 10}}\n"
        "hardware: {gpu: {name: mine, memory_gib: 40}, host_memory_gib: 100}\n"
        "training: {micro_batch_size: 1, sequence_length: 1024}\n"
        "policy: {overhead: 0.1}\n"
    )
    plan, found = read(re.sub(rf"\b{key}: [0-9.]+", f"{key}: .nan", text))
    assert plan is None
    assert [(finding.code, finding.severity) for finding in found] == [("MEM014", "error")]
