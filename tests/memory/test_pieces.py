"""Losses in very many pieces: what is replayed of them, and that it is all there is to see."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.autograd import loss
from memcheck.autograd.context import Adapter, Setting, Style
from memcheck.autograd.curve import Curve
from memcheck.autograd.loss import Pieces, in_pieces
from memcheck.autograd.tensor import Tape
from memcheck.autograd.weight_formats import NF4
from memcheck.frameworks.torchtitan.loss import HeadShard, chunked_head_curve
from memcheck.frameworks.transformers.head import Head, head_curve
from memcheck.job.types import Loss
from memcheck.models.types import Norm

CHUNKED = Style(folder="transformers", activation_layout="batch-first", source="")
LITGPT = Style(folder="litgpt", activation_layout="batch-first", source="")


def head(loss: Loss, vocab: int) -> Head:
    return Head(vocab, False, Norm("rmsnorm", 64), False, False, loss)


def setting(style: Style, sequence: int, **others: Any) -> Setting:
    return Setting(batch=2, sequence=sequence, hidden=64, style=style, **others)


def one_by_one(length: int, size: int) -> list[Pieces]:
    return [Pieces(min(size, length - at), 1) for at in range(0, length, size)]


def both(monkeypatch: pytest.MonkeyPatch, head: Head, setting: Setting) -> tuple[Curve, Curve]:
    """The head's curve the short way and the long one."""
    short = head_curve(head, setting, setting.param_dtype, inventory=True)
    with monkeypatch.context() as patched:
        for module in ("transformers.head", "litgpt.layers"):
            patched.setattr(f"memcheck.frameworks.{module}.in_pieces", one_by_one)
        return short, head_curve(head, setting, setting.param_dtype, inventory=True)


def unrolled(curve: Curve) -> Curve:
    """The curve with copies written out, each a tensor of its own, in no order."""

    def each(inventory: Any) -> tuple[Any, ...]:
        rows = [(*row[:3], row[3] // row[5], row[4]) for row in inventory for _ in range(row[5])]
        return tuple(sorted(rows, key=repr))

    highs = {
        name: high._replace(inventory=each(high.inventory))
        for name in ("forward_peak", "backward_peak", "peak_before_loss")
        if (high := getattr(curve, name)) is not None
    }
    return curve._replace(saved_inventory=each(curve.saved_inventory), **highs)


ADAPTER = Adapter(rank=8, targets="all-linear", dtype="bf16")


@pytest.mark.parametrize("vocab", [16, 1000])
@pytest.mark.parametrize("sequence", [128 * 20, 128 * 31 + 5])
@pytest.mark.parametrize(
    "others",
    [
        {"param_dtype": "bf16"},
        {"param_dtype": "fp32", "autocast_dtype": "bf16"},
        {"param_dtype": "bf16", "adapter": ADAPTER, "trained": False},
        {"param_dtype": "bf16", "adapter": ADAPTER._replace(base_format=NF4), "trained": False},
        {"param_dtype": "bf16", "needs_input_gradient": False},
    ],
)
def test_litgpts_pieces_are_those_of_the_long_way(
    monkeypatch: pytest.MonkeyPatch, vocab: int, sequence: int, others: dict[str, Any]
) -> None:
    """Bytes, labels and live tensors of each highest point are those of a replay of piece after piece."""
    short, long = both(monkeypatch, head(Loss("standard", upcast=True), vocab), setting(LITGPT, sequence, **others))
    assert unrolled(short) == unrolled(long)


@pytest.mark.parametrize("vocab", [16, 1000])
@pytest.mark.parametrize("chunks", [8, 9, 10, 33])
@pytest.mark.parametrize(
    "others",
    [
        {"param_dtype": "bf16"},
        {"param_dtype": "bf16", "grad_dtype": "fp32"},
        {"param_dtype": "fp32", "autocast_dtype": "bf16"},
        {"param_dtype": "bf16", "has_grad": True},
        {"param_dtype": "bf16", "main_grad_dtype": "fp32"},
        {"param_dtype": "bf16", "needs_input_gradient": False},
    ],
)
def test_chunks_are_those_of_the_long_way(
    monkeypatch: pytest.MonkeyPatch, vocab: int, chunks: int, others: dict[str, Any]
) -> None:
    """A checkpointed chunk in the middle leaves behind what the one before it did, however many there are."""
    loss = Loss("chunked", chunks, upcast=True)
    short, long = both(monkeypatch, head(loss, vocab), setting(CHUNKED, 330, **others))
    assert unrolled(short) == unrolled(long)


@pytest.mark.parametrize("shard", [HeadShard(0, 0), HeadShard(64_000, 32_000)])
def test_torchtitans_chunks_settle_with_the_second(shard: HeadShard) -> None:
    """Three chunks of as many tokens, the second of which no other differs from, have the curve of eleven."""
    made = [
        chunked_head_curve(
            head(Loss("chunked", chunks, upcast=True), 1000),
            setting(CHUNKED._replace(folder="torchtitan"), 32 * chunks, param_dtype="bf16"),
            "bf16",
            shard,
        )
        for chunks in (3, 7, 11)
    ]
    grown = [(each.saved_bytes, each.forward_peak.bytes, each.backward_peak.bytes) for each in made]
    assert [b - a for a, b in zip(*grown[:2], strict=True)] == [b - a for a, b in zip(*grown[1:], strict=True)]


def test_a_replay_does_not_grow_with_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence a thousand times as long allocates as many times."""
    made: list[Tape] = []
    begin = Tape.__init__

    def counted(tape: Tape, **options: Any) -> None:
        begin(tape, **options)
        made.append(tape)

    monkeypatch.setattr(Tape, "__init__", counted)
    for sequence in (2**20, 2**30):
        head_curve(head(Loss("standard", upcast=True), 1000), setting(LITGPT, sequence, param_dtype="bf16"), "bf16")
    for chunks in (64, 4096):
        loss = Loss("chunked", chunks, upcast=True)
        head_curve(head(loss, 1000), setting(CHUNKED, 2**20, param_dtype="bf16"), "bf16")
        titan = setting(CHUNKED._replace(folder="torchtitan"), 2**20, param_dtype="bf16")
        chunked_head_curve(head(loss, 1000), titan, "bf16", HeadShard(0, 0))
    events = [tape.events for tape in made]
    assert events[0] == events[1]
    assert events[2:4] == events[4:6]


@pytest.mark.parametrize("length", [1, 128, 129, 1024, 1025, 5000])
def test_pieces_are_all_of_the_length(length: int) -> None:
    """However they are counted, the pieces make up the whole, and one by one they are what is cut."""
    found = in_pieces(length, 128)
    assert sum(piece.size * piece.copies for piece in found) == length
    assert [piece.size for piece in found for _ in range(piece.copies)] == [p.size for p in one_by_one(length, 128)]
    assert len(found) <= loss.FIRST + loss.LAST + 1
