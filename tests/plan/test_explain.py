from __future__ import annotations

import pytest

from tests.plan.samples import ARCHITECTURE, SERVING, SMALL, changed, findings, fixed, marked, one, read

MODEL = "model: llama-3.1-8b"
GPU = "gpu: h100-80gb"


@pytest.mark.parametrize(
    ("text", "code", "place", "message", "help"),
    [
        (changed("4096", "-5"), "MEM014", "-5", "`sequence_length` must be a whole number of at least 1, not the number `-5`", ""),
        (changed("4096", "many"), "MEM013", "many", "`sequence_length` must be a whole number of at least 1, not the text `many`", "for example `8192`"),
        (changed("4096", "4096.5"), "MEM013", "4096.5", "`sequence_length` must be a whole number of at least 1, not the number `4096.5`", "for example `8192`"),
        (changed("4096", "9999999999"), "MEM014", "9999999999", "`sequence_length` must be a whole number of at most 1073741824, not the number `9999999999`", ""),
        (changed("4096", "true"), "MEM013", "true", "`sequence_length` must be a whole number of at least 1, not the boolean `true`", "for example `8192`"),
        (changed(" 4096", ""), "MEM013", "sequence_length", "`sequence_length` must be a whole number of at least 1, but it is empty", "for example `8192`"),
        (changed("4096", "null"), "MEM013", "null", "`sequence_length` must be a whole number of at least 1, not `null`", "for example `8192`"),
        (changed("4096", "[1]"), "MEM013", "[1]", "`sequence_length` must be a whole number of at least 1, not a list", "for example `8192`"),
        (changed("4096", ".nan"), "MEM013", ".nan", "`sequence_length` must be a whole number of at least 1, not the number `.nan`", "for example `8192`"),
        (changed("4096", ".inf"), "MEM013", ".inf", "`sequence_length` must be a whole number of at most 1073741824, not the number `.inf`", "for example `8192`"),
        (changed(MODEL, "model: [a]"), "MEM013", "[a]", "`model` must be a model's name or a mapping with one of name, config, architecture, rough, not a list", "for example `llama-3.1-8b`"),
        (changed(MODEL, 'model: ""'), "MEM014", '""', "`model` must be a model's name, but it is empty", ""),
        (changed(MODEL, "model: {}"), "MEM012", "{}", "`model` needs one of `name`, `config`, `architecture` or `rough`", ""),
        (changed(MODEL, "model: {name: 5}"), "MEM004", "5", "`name` must be text, and YAML reads `5` as a number", 'quote it: `"5"`'),
        (changed(f"{{{GPU}}}", "h100"), "MEM013", "h100", "`hardware` must be a mapping, not the text `h100`", "for example `{gpu: h100-80gb, gpus_per_node: 8, nodes: 4}`"),
        (changed(GPU, "gpu: {memory_gib: 80}"), "MEM012", "{memory_gib: 80}", "`gpu` needs `name`", "add `name: mi455x`"),
        (changed("memcheck: 1", "memcheck: 2"), "MEM014", "2", "the plan is written in format `2`, and this memcheck reads format `1`", "upgrade memcheck, or write `memcheck: 1`"),
        (changed("memcheck: 1", "memcheck: v1"), "MEM014", "v1", "`memcheck` must be `1`, not the text `v1`", ""),
        (changed("memcheck: 1\n", ""), "MEM012", "model", "a plan needs `memcheck`", "add `memcheck: 1`"),
        ("a: 1\nb: 2\n", "MEM010", "a", "this document has no `memcheck: 1`, the mark of a plan", "`memcheck init` writes a first plan"),
        ("- memcheck: 1\n", "MEM010", "- memcheck: 1", "a plan is a mapping, and this document is a list", "start it with `memcheck: 1`"),
        ("just text\n", "MEM010", "just text", "a plan is a mapping, and this document is the text `just text`", "start it with `memcheck: 1`"),
        (SMALL + "parallelism: {zero_stage: 4}\n", "MEM014", "4", "`zero_stage` must be a whole number from 0 to 3, not the number `4`", ""),
        (SMALL + "parallelism: {pipeline_schedule: gpip}\n", "MEM014", "gpip", "`pipeline_schedule` must be one of `gpipe`, `1f1b`, `interleaved-1f1b`, `zero-bubble` or `dualpipe`, not the text `gpip`", "did you mean `gpipe`?"),
        (SMALL + "parallelism: {data: 0}\n", "MEM014", "0", "`data` must be a whole number of at least 1 or `auto`, not the number `0`", ""),
        (SMALL + "policy: {fail_above: 1.5}\n", "MEM014", "1.5", "`fail_above` must be a number in (0, 1] or a percentage such as 90%, not the number `1.5`", "write `1.5%`"),
        (SMALL + "  freeze: ['layers:5']\n", "MEM014", "'layers:5'", "item 1 of `freeze` must be a range such as layers:0-24, not the text `'layers:5'`", ""),
        (SMALL + "  teacher: {model: {part: language}}\n", "MEM012", "{part: language}", "`model` needs one of `name`, `config`, `architecture` or `rough`", ""),
        (SMALL + "  teacher: {model: {rough: {parameters: 7B, layers: 2, hidden_size: 8}}}\n", "MEM012", "{parameters: 7B, layers: 2, hidden_size: 8}", "`rough` needs `activation_multiplier`", ""),
        (SMALL + "  loss: {}\n", "MEM014", "{}", "`loss` is empty", "for example `{kind: standard, upcast: true, keep_logits: false}`"),
        (SMALL + "  lora: {target_modules: []}\n", "MEM014", "[]", "`target_modules` is empty", "remove the key, or fill it"),
        (changed("700M", "7 hundred", SERVING), "MEM013", "7 hundred", "`parameters` must be a whole number or a count such as 700M or 8B, not the text `7 hundred`", "write the number alone; the key's name says its unit"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_finding(text, code, place, message, help):
    """The finding points at the text to change, says what is expected and what was found, and what to do."""
    finding = one(text)
    assert (finding.code, marked(text, finding), finding.message) == (code, place, message)
    if help:
        assert finding.help == help


def test_every_mistake_is_reported_at_once():
    """All errors of a file, in the order of its lines."""
    text = "memcheck: 1\nmodel: 5\nhardware: {gpus: 8}\ntraining:\n  micro_batch_size: x\n  attention: no\npolicy: []\n"
    found = findings(text)
    assert [(finding.location.span.line, finding.code, finding.pointer) for finding in found] == [
        (2, "MEM004", "/model"),
        (3, "MEM012", "/hardware"),
        (3, "MEM011", "/hardware/gpus"),
        (4, "MEM012", "/training"),
        (5, "MEM013", "/training/micro_batch_size"),
        (6, "MEM005", "/training/attention"),
        (7, "MEM013", "/policy"),
    ]


def test_only_the_branch_that_was_meant_is_explained():
    """A mapping where a name would do is checked as a mapping: not one word about the other way to write it."""
    text = SMALL + "  optimizer: {name: adamw, implementation: fuse, offlaod: cpu}\n"
    found = findings(text)
    assert [finding.message for finding in found] == [
        "`implementation` must be one of `foreach`, `fused` or `for-loop`, not the text `fuse`",
        "`optimizer` has no key `offlaod`",
    ]
    assert [finding.help for finding in found] == ["did you mean `fused`?", "did you mean `offload`?"]


def test_a_union_names_only_its_scalars_to_a_scalar():
    """Who wrote a word is told the words."""
    finding = one(SMALL + "  activation_checkpointing: every\n")
    assert finding.message.startswith("`activation_checkpointing` must be one of `none`, `selective` or `full`, ")


@pytest.mark.parametrize(
    ("text", "names", "place"),
    [
        (changed("micro_batch_size: 1", "micro_batch_size: 1\n  gradient_accumulation_steps: 2\n  global_batch_size: 8"), "`gradient_accumulation_steps` and `global_batch_size`", "global_batch_size"),
        (SMALL + "inference: {batch_size: 1, context_length: 1}\n", "`training` and `inference`", "inference"),
        (changed(MODEL, "model: {name: a, config: b}"), "`name` and `config`", "config"),
        (SMALL + "  activation_checkpointing: {modules: [mlp], every_n_layers: 2}\n", "`every_n_layers` and `modules`", "modules"),
        (ARCHITECTURE.replace("  architecture:", "  overrides: {a: 1}\n  architecture:"), "`architecture` and `overrides`", "overrides"),
    ],
)  # fmt: skip
def test_keys_that_exclude_each_other(text, names, place):
    """Both keys are shown, and the remedy is to remove one."""
    finding = one(text)
    assert (finding.code, finding.help) == ("MEM015", "remove one of them")
    assert finding.message.endswith(f"takes only one of {names}")
    assert marked(text, finding) == place
    assert len(finding.related) == 1


def test_missing_keys_are_reported_at_their_section():
    """What is missing has no place of its own; the section's key has."""
    text = "memcheck: 1\nmodel: a\nhardware:\n  nodes: 2\ntraining:\n  compile: true\n"
    found = findings(text)
    assert [(marked(text, finding), finding.message, finding.help) for finding in found] == [
        ("hardware", "`hardware` needs `gpu`", "add `gpu`"),
        ("training", "`training` needs `micro_batch_size`", "add `micro_batch_size: 1`"),
        ("training", "`training` needs `sequence_length`", "add `sequence_length: 8192`"),
    ]


def test_a_value_through_an_alias_is_shown_at_both_places():
    """The definition is what to change; the use is what makes it wrong."""
    text = "memcheck: 1\nmodel: a\nhardware: {gpu: b, nodes: &n 8}\ninference: {batch_size: 1, context_length: 1}\nparallelism: {zero_stage: *n}\n"
    finding = one(text)
    assert (finding.location.span.line, finding.location.note) == (3, "set at line 3 through `*n`")
    ((label, used),) = finding.related
    assert (label, used.span.line) == ("used here", 5)


def test_the_same_mistake_through_a_merge_is_named_with_its_provenance():
    """A finding about a merged key says which merge brought it in."""
    text = SMALL.replace("hardware: {", "hardware: &base {nodes: 1, ") + "parallelism:\n  <<: *base\n"
    notes = {finding.location.note for finding in findings(text)}
    assert notes == {"set at line 3 through `<<: *base`"}


def test_long_values_are_cut():
    """A message stays readable whatever was written."""
    finding = one(changed("4096", "9" * 5000))
    assert len(finding.message) < 150


def test_fixes_make_the_plan_valid():
    """Where every mistake has one right outcome, applying all edits leaves nothing to report."""
    text = """\
memcheck: "1"
model: {name: llama-3.1-8b, overrides: {rms_norm_eps: 1e-5, tie_word_embeddings: no}}
hardware: {gpu: {name: x, memory_gib: 80 GiB}, gpus-per-node: 8}
training:
  microBatchSize: 1
  sequence_length: "4096"
  framework_version: 5.20
  precision: BF16_Mixed
  optimizer: AdamW
  activation_checkpointing: off
  compile: on
  freeze: embed
  clip_grad_norm: "true"
policy: {fail_above: 90, warn_above: 85 %}
"""
    assert len(findings(text)) == 16
    after = fixed(text)
    assert findings(after) == []
    plan, _ = read(after)
    assert plan is not None
    assert plan.training is not None
    assert plan.training.framework_version == "5.20"
    assert plan.policy.fail_above == 0.9
