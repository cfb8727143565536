"""``training.loss.upcast`` of a model whose own class takes its loss of logits as they are: an encoder's."""

from __future__ import annotations

import pytest

from memcheck.families.registry import read_architecture
from memcheck.verify.subject import Subject
from tests.job.test_target import judged

ROWS, VOCABULARY = 4 * 512, 30522


def estimated(**loss: object) -> Subject:
    """BERT in bf16 on rows of 512 tokens."""
    found = judged("bert-base-uncased", sequence_length=512, precision="bf16-pure", **loss)
    assert isinstance(found, Subject), found
    return found


def test_its_own_loss_is_what_is_assumed() -> None:
    """The assumption says that nothing is upcast, and why."""
    (said,) = (each for each in estimated().assumptions if each.key == "training.loss.upcast")
    assert (said.value, "as they are" in said.why) == (False, True)


def test_a_plan_that_says_so_is_priced_with_fp32_logits() -> None:
    """A loop of its own, or the class for causal language: two more bytes for each logit at least."""
    own, wide = (
        {i.name: i.allocated_bytes for i in each.estimate.ranks[0].instants}
        for each in (estimated(), estimated(loss={"upcast": True}))
    )
    assert wide["loss"] - own["loss"] >= 2 * ROWS * VOCABULARY
    assert wide["forward"] == own["forward"]


def test_a_plan_that_leaves_the_class_open_says_which_it_is_priced_as() -> None:
    """Neither the plan nor an encoder's file has to name a class; what is said of the loss settles it."""
    assert [a.value for a in estimated().assumptions if a.key == "training.head.kind"] == ["lm"]
    assert not [a for a in estimated(loss={"upcast": True}).assumptions if a.key == "training.head.kind"]


@pytest.mark.parametrize(("named", "narrow"), [("BertLMHeadModel", False), ("BertForMaskedLM", True)])
def test_a_file_that_names_the_class_for_causal_language_is_priced_with_its_loss(named: str, narrow: bool) -> None:
    """``architectures`` decides between the two heads for words, and the class that widens logits is said."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    found = read_architecture(
        {"model_type": "bert", "vocab_size": 100, "max_position_embeddings": 64, "architectures": [named], **sizes}
    )
    assert found.logit_casts.in_loss != narrow
    assert any(named in note for note in found.notes) != narrow


def test_a_model_of_an_encoder_and_a_decoder_has_no_class_for_masked_words() -> None:
    """T5's own loss takes logits as they are, too, and nothing is left open about its head."""
    found = judged("flan-t5-small", sequence_length=512, precision="bf16-pure")
    assert isinstance(found, Subject), found
    assert not [a for a in found.assumptions if a.key == "training.head.kind"]
