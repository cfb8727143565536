"""Hostile messages: no exception leaves, nothing is a defect, and work grows with what was sent."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memcheck.live.protocol import Session, handle
from memcheck.live.requests import REQUESTS

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
PLAN = "memcheck: 1\nmodel: gpt2\nhardware: {gpu: h100-80gb}\ntraining: {micro_batch_size: 1, sequence_length: 64}\n"
WORDS = [
    "",
    "plan.yaml",
    "../up",
    "\0",
    "\ud800",
    "\U0001f600",
    "<script>alert(1)</script>",
    "training.micro_batch_size",
    "training.lora.rank",
    "hardware.gpu",
    "model",
    "a" * 5000,
    "fit",
    "json",
    "deepspeed",
    "h100-80gb",
    "*a",
    "{[",
    "1e999",
    "${x}",
    "%s%n",
]
TEXTS = [
    PLAN,
    "",
    "\ufeff" + PLAN,
    PLAN.replace("\n", "\r\n"),
    PLAN + "---\n" + PLAN,
    "a: &a [*a]\n",
    "[" * 400,
    "- " * 400,
    "!!python/object/apply:os.system [ls]",
    "memcheck: 1\nextends: plan.yaml\n",
    "memcheck: 1\nsource: {axolotl: plan.yaml}\n",
    "memcheck: 1\nmodel: {config: plan.yaml}\nhardware: {gpu: h200}\ntraining: {micro_batch_size: 1, sequence_length: 8}\n",
    "base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 1\n",
    "import torch\nfrom transformers import Trainer\n",
    "#!/bin/bash\ntorchrun --nproc_per_node 8 train.py\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    '{"model_type": "llama", "hidden_size": -1}',
    PLAN.replace("1, seq", "99999999999999999999, seq"),
    PLAN.replace("gpt2", "{architecture: {model_type: llama}}"),
]


def value(chance: random.Random, depth: int = 0) -> Any:
    """Something that a message may hold where anything may be."""
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chance.choice([True, False]),
        lambda: chance.choice([0, 1, -1, 2, 8, 2**31, 2**53, 10**30]),
        lambda: chance.choice([0.5, -0.0, 1e308, float("inf"), float("nan")]),
        lambda: chance.choice(WORDS),
        lambda: chance.choice(TEXTS),
    ]
    if depth < 3:
        kinds += [
            lambda: [value(chance, depth + 1) for _ in range(chance.randrange(4))],
            lambda: {chance.choice(WORDS): value(chance, depth + 1) for _ in range(chance.randrange(4))},
        ]
    return chance.choice(kinds)()


def message(chance: random.Random) -> Any:
    """A message: mostly of a known kind with some fields of the right kind, sometimes anything."""
    if chance.random() < 0.05:
        return value(chance)
    word = chance.choice([word for word in REQUESTS if word not in ("catalog", "suggest")])
    found: dict[Any, Any] = {"id": chance.choice([1, "x", None, -5, 10**40, [], "y" * 200, 7, 8, 9]), "do": word}
    if chance.random() < 0.7:
        found |= {"id": chance.randrange(100), "path": "plan.yaml", "text": chance.choice(TEXTS)}
    for name, field in REQUESTS[word].fields.items():
        if name in found or chance.random() > 0.5 + field.required:
            continue
        right: dict[str, Callable[[], Any]] = {
            "text": lambda field=field: chance.choice([*field.words, *WORDS]),
            "whole": lambda: chance.choice([0, 0, 0, 1, 5, 2**40]),
            "id": lambda: chance.randrange(100),
            "files": lambda: {chance.choice([*WORDS[:4], "b.yaml"]): chance.choice(TEXTS)},
            "keys": lambda: {chance.choice(WORDS): value(chance) for _ in range(chance.randrange(3))},
            "words": lambda field=field: [chance.choice([*field.words, *WORDS]) for _ in range(chance.randrange(3))],
            "lists": lambda: {chance.choice(WORDS): [value(chance) for _ in range(2)] for _ in range(2)},
        }
        found[name] = right[field.kind]() if chance.random() < 0.8 else value(chance)
    if chance.random() < 0.1:
        found[chance.choice([1, None, "nobody", "text", "path"])] = value(chance)
    return found


def fuzz(seed: int, count: int) -> None:
    """Send messages of a few visits, and look at every reply."""
    chance = random.Random(seed)  # noqa: S311 - the same messages on every machine
    session = Session()
    for number in range(count):
        if number % 100 == 0:
            session = Session()
        sent = message(chance)
        steps = list(session.handle(sent))
        assert steps[-1]["step"] == "done", sent
        for each in steps:
            assert not (each["step"] == "failed" and each["kind"] == "defect"), (sent, each["report"])
            assert not each.get("defects"), (sent, each["defects"])
            assert "<script>" not in repr([part for part in (each.get("sections"), each.get("html")) if part])


def test_hostile_messages_end_in_replies() -> None:
    """A few hundred of them, with every kind of request."""
    fuzz(1, 300)


@pytest.mark.slow
def test_ten_thousand_hostile_messages_end_in_replies() -> None:
    """No exception and no defect among them."""
    for seed in range(2, 12):
        fuzz(seed, 1000)


def test_values_that_cannot_be_written_are_refused() -> None:
    """Half of a pair of Unicode, and a thousand levels of lists."""
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for changes in ({"\ud800": 1}, {"name": "\ud800"}, {"training.freeze": deep}):
        sent = {"id": 1, "do": "set", "path": "plan.yaml", "text": PLAN, "changes": changes}
        assert next(Session().handle(sent))["kind"] == "refused"


def test_one_visit_of_a_process() -> None:
    """The function that a worker calls keeps its files from one request to the next."""
    list(handle({"id": 1, "do": "answer", "path": "plan.yaml", "text": PLAN}))
    assert next(handle({"id": 2, "do": "answer"}))["path"] == "plan.yaml"


GROWING: dict[str, Callable[[int], str]] = {
    "documents": lambda n: (PLAN + "---\n") * n,
    "comments": lambda n: PLAN + "# memcheck: ignore[MEM101] x\n" * n,
    "long line": lambda n: PLAN + "# " + "x" * (50 * n),
    "unknown keys": lambda n: PLAN + "".join(f"k{number}: 1\n" for number in range(n)),
    "options": lambda n: PLAN.replace("}\ntraining", ", " + "a: 1, " * n + "}\ntraining"),
    "broken": lambda n: "[" * n,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GROWING)
def test_time_grows_with_the_text(kind: str) -> None:
    """Four times the text takes at most about four times as long."""

    def seconds(size: int) -> float:
        best = 1e9
        for _ in range(3):
            session, start = Session(), time.process_time()
            list(session.handle({"id": 1, "do": "answer", "path": "plan.yaml", "text": GROWING[kind](size)}))
            best = min(best, time.process_time() - start)
        return best

    seconds(10)
    small, large = seconds(100), seconds(400)
    assert large < 7 * small + 0.02
