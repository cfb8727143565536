from __future__ import annotations

import pytest

from tests.plan.samples import SMALL, changed, findings, fixed, marked, one


@pytest.mark.parametrize("key", ["micro-batch-size", "microBatchSize", "Micro_Batch_Size", "MICRO_BATCH_SIZE"])
def test_another_spelling_is_corrected(key):
    """Kebab case, camel case and capitals have one right outcome, and the key does not count as missing."""
    text = changed("micro_batch_size", key)
    finding = one(text)
    assert (finding.code, finding.message) == ("MEM011", f"`training` has no key `{key}`")
    assert (marked(text, finding), finding.help) == (key, "write `micro_batch_size`")
    assert fixed(text) == SMALL


def test_another_spelling_beside_the_right_one_is_not_renamed():
    """An edit never makes a duplicate."""
    finding = one(SMALL + "  micro-batch-size: 2\n")
    assert finding.fix == ()


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("  micro_batchsize: 1", "write `micro_batch_size`"),
        ("  attnetion: sdpa", "did you mean `attention`?"),
        ("  mbs: 1", "did you mean `micro_batch_size`?"),
        ("  recompute: true", "did you mean `activation_checkpointing`?"),
        ("  lora: {rank:16}", "write `rank: 16`, with a space after the colon"),
        ("  tensor: 4", "it is written `parallelism.tensor: 4`"),
        ("  rank: 4", "it is written `training.lora.rank: 4`"),
        ("  offload: {optimizer: cpu}", "it is written `training.optimizer.offload: cpu`"),
        ("  wibble: 4", "`memcheck schema` prints every key"),
        ("tp: 4", "it is written `parallelism.tensor: 4`"),
        ("paralelism: {}", "did you mean `parallelism`?"),
        ("x: 4", "`a plan` has"),
    ],
)
def test_unknown_keys_are_explained(line, help):
    """Typos, names of other tools and keys in the wrong section are told apart."""
    text = f"{SMALL}{line}\n"
    found = [finding for finding in findings(text) if finding.code == "MEM011"]
    assert len(found) == 1
    assert found[0].help.startswith(help.replace("`a plan`", "a plan"))


def test_a_misspelled_key_is_not_also_missing():
    """`sequence_lenght` is one mistake."""
    finding = one(changed("sequence_length", "sequence_lenght"))
    assert (finding.code, finding.help) == ("MEM011", "did you mean `sequence_length`?")


def test_a_misspelled_choice_is_not_also_missing():
    """The same for keys of which one is needed."""
    finding = one(changed("training:", "trainings:"))
    assert (finding.code, finding.help) == ("MEM011", "did you mean `training`?")


def test_what_an_unknown_key_holds_is_not_judged():
    """A value behind an unknown key may be anything, traps included."""
    assert [finding.code for finding in findings(f"{SMALL}  wibble: {{a: on, b: 1e5, c: .nan}}\n")] == ["MEM011"]
