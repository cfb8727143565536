"""``training.target_length``: the labels of an encoder-decoder."""

from __future__ import annotations

import json

from memcheck.plan.read import load_documents
from memcheck.verify.subject import Subject, load_subject


def judged(model: str, **training: object) -> Subject | str:
    """The plan's estimate, or what is wrong with it and where."""
    plan = {
        "memcheck": 1,
        "name": "p",
        "model": model,
        "hardware": {"gpu": "h100-80gb"},
        "training": {"framework": "pytorch", "micro_batch_size": 4, "sequence_length": 1500, **training},
    }
    (document,) = load_documents("p.yaml", json.dumps(plan).encode())
    found = load_subject(document)
    if isinstance(found, Subject):
        return found
    return "; ".join(f"{f.pointer}: {f.message}" for f in found.findings)


def test_a_decoder_alone_has_no_target_length() -> None:
    """The key is refused where it lies, not passed over."""
    assert "/training/target_length: " in str(judged("gpt2", sequence_length=512, target_length=128))


def test_whisper_reads_as_many_rows_whatever_the_plan_says() -> None:
    """Another length than its encoder's is refused, and more labels than its decoder has positions for, too."""
    assert "reads 1,500 rows" in str(judged("whisper-tiny", sequence_length=448))
    assert "448 learned positions" in str(judged("whisper-tiny", target_length=449))


def test_shorter_labels_need_less() -> None:
    """Without the key, Whisper's labels fill its positions, and T5's are as long as the input."""
    cases: tuple[tuple[str, int], ...] = (("whisper-tiny", 448), ("t5-small", 1500))
    for model, whole in cases:
        bytes_of = []
        for stated in ({}, {"target_length": whole}, {"target_length": 64}):
            found = judged(model, **stated)
            assert isinstance(found, Subject)
            bytes_of.append(found.estimate.allocated_bytes)
        assert bytes_of[0] == bytes_of[1] > bytes_of[2]


def test_a_frozen_encoder_keeps_nothing_for_a_backward() -> None:
    """``freeze: [encoder]`` leaves its layers without graph, gradients and states."""
    whole, frozen = (judged("whisper-tiny", target_length=64, **more) for more in ({}, {"freeze": ["encoder"]}))
    assert isinstance(whole, Subject)
    assert isinstance(frozen, Subject)
    assert frozen.estimate.allocated_bytes < 0.7 * whole.estimate.allocated_bytes
