"""A serving engine that ended at its start: what its log says of version, limits and memory, and a plan's answer to it.

The engine's own arithmetic decides, so the plan is judged as ``check`` does, then again with what the log states.
"""

from __future__ import annotations

import re

from memcheck.edge.screen import clean
from memcheck.judge import Gate, check_document
from memcheck.plan.finding import Remedy
from memcheck.plan.places import Document
from memcheck.record import Record
from memcheck.rules.result import PlanResult
from memcheck.verify.subject import changed
from memcheck.what_if import with_remedies
from memcheck.why.evidence import CERTAIN, LIKELY, POSSIBLE, Message
from memcheck.why.explained import AS_PREDICTED, UNKNOWN_CAUSE, Cause, Difference, Explained
from memcheck.why.readings import Statement, size

VLLM, SGLANG = "vllm", "sglang"
ENGINES = {
    "vllm-no-blocks": VLLM,
    "vllm-kv-tokens": VLLM,
    "vllm-startup": VLLM,
    "sglang-fraction": SGLANG,
}
"""Patterns of messages with which an engine ends before it serves, and whose they are."""
READ = 2**20
"""Bytes at the start and at the end of a log that are read for settings and figures."""
HOLDS = 2**28
"""Bytes by which a run may have less for its KV cache than computed, so that changes computed by the same terms hold."""

SETTINGS: tuple[tuple[str, type, str], ...] = (
    ("inference.version", str, r"vLLM API server version ([0-9][\w.]{0,20})|LLM engine \(v([0-9][\w.]{0,20})\)"),
    ("model", str, r"['\"]model(?:_tag)?['\"]: ['\"]([\w./-]{1,120})|\bmodel='([\w./-]{1,120})'|vllm serve ([\w./-]{1,120})"),
    ("inference.max_model_len", int, r"['\"]?max[_-]model[_-]len['\"]?(?::|=| ) ?([0-9]{1,9})\b|max seq(?:uence)? len \(([0-9]{1,9})\)"),
    ("inference.gpu_memory_utilization", float, r"gpu[_-]memory[_-]utilization['\"]?(?::|=| ) ?([01]?\.[0-9]{1,6}|1)\b"),
    ("inference.tensor", int, r"tensor[_-]parallel[_-]size['\"]?(?::|=| ) ?([0-9]{1,4})\b"),
    ("inference.max_num_seqs", int, r"max[_-]num[_-]seqs['\"]?(?::|=| ) ?([0-9]{1,7})\b"),
    ("inference.max_num_batched_tokens", int, r"max[_-]num[_-]batched[_-]tokens['\"]?(?::|=| ) ?([0-9]{1,9})\b"),
)  # fmt: skip
"""Keys of a plan, their types, and where vLLM prints them: ``non-default args``, the command, its first lines."""

WEIGHTS, POOL, NEEDED = "engine-weights", "engine-pool", "engine-request"
FIGURES: tuple[tuple[str, str, str], ...] = (
    (WEIGHTS, r"[Ll]oading (?:model weights )?took ([0-9]{1,6}(?:\.[0-9]{1,6})?) (?:GiB|GB)\b", "Loading the weights took {} GiB."),
    (POOL, r"[Aa]vailable KV cache memory:? \(?(-?[0-9]{1,6}(?:\.[0-9]{1,6})?) GiB", "{} GiB were left for the KV cache within the engine's share of the GPU."),
    (NEEDED, r"([0-9]{1,6}(?:\.[0-9]{1,6})?) GiB KV cache is needed", "One request of the longest length needs {} GiB of KV cache."),
    ("engine-longest", r"estimated maximum model length is ([0-9]{1,9})", "By the engine's own estimate, {} tokens of one request fit."),
    ("engine-free", r"Free memory on device (?:cuda:[0-9]{1,3} )?\(([0-9.]{1,12}/[0-9.]{1,12}) GiB", "Free and total memory of the GPU at the start: {} GiB."),
)  # fmt: skip
"""Statements about what an engine measured, with the line that prints it (vLLM ``v1/worker``, ``v1/core``)."""
SEARCHED = tuple((key, kind, re.compile(expression.encode())) for key, kind, expression in SETTINGS)
MEASURED = tuple((id, re.compile(expression.encode()), text) for id, expression, text in FIGURES)


class EngineStart(Record):
    """What a log says of an engine's start."""

    settings: tuple[tuple[str, str | int | float, int], ...]
    """Key of a plan, value and line."""
    statements: tuple[Statement, ...]
    numbers: dict[str, float]
    """By identifier of the statement, GiB or tokens."""

    def value(self, key: str) -> str | int | float | None:
        """A setting's value; None where no line has it."""
        return next((value for name, value, _ in self.settings if name == key), None)


def read_start(data: bytes) -> EngineStart:
    """Settings and measured figures of an engine, from the start and the end of its log."""
    part = data if len(data) <= 2 * READ else data[:READ] + data[-READ:]
    tail = None if part is data else data.count(b"\n", 0, len(data) - READ)
    settings: list[tuple[str, str | int | float, int]] = []
    for key, kind, expression in SEARCHED:
        match = expression.search(part)
        if match is not None:
            text = next(group for group in match.groups() if group is not None).decode("utf-8", "replace")
            settings.append((key, kind(clean(text)), _line(part, match.start(), tail)))
    statements, numbers = [], {}
    for id, measured, text in MEASURED:
        match = measured.search(part)
        if match is not None:
            said = match[1].decode()
            line = _line(part, match.start(), tail)
            statements.append(Statement(id=id, certainty=CERTAIN, text=text.format(said), lines=(line,)))
            if "/" not in said:
                numbers[id] = float(said)
    return EngineStart(settings=tuple(settings), statements=tuple(statements), numbers=numbers)


def _line(part: bytes, place: int, tail: int | None) -> int:
    """The line of a place; ``tail``: lines before the end of the log, where only that and the start were read."""
    if tail is None or place < READ:
        return part.count(b"\n", 0, place) + 1
    return tail + part.count(b"\n", READ, place) + 1


def judge_start(document: Document, message: Message, start: EngineStart) -> Explained:
    """A plan's answer to an engine that ended at its start: as stated, then with what the log says instead."""
    gate = Gate(inventory=True, remedies=with_remedies)
    plan = check_document(document, gate)
    if plan.estimate is None or plan.estimate.engine is None:
        text = "The plan names no engine: state `inference.engine: vllm` to have its own answer."
        unknown = _cause(UNKNOWN_CAUSE, POSSIBLE, text, {}, message)
        return Explained(plan=plan, causes=(unknown,) if plan.estimate is not None else ())
    stated = _flat(document.values)
    changes = {k: v for k, v, _ in start.settings if k != "model" and stated.get(k) != v}
    on = check_document(changed(document, changes), gate) if changes else plan
    told = ", ".join(f"`{key}: {value}`" for key, value in changes.items())
    before = f"The plan differs from the log, which has {told}. With that, " if changes else ""
    cause = _of_answer(on, changes, before, message)
    advised = on
    if cause is None:
        advised = plan
        fails = _of_answer(plan, {}, "", message) is not None
        text = f"The plan's engine {'does not start' if fails else 'starts'}"
        text += f", {'but starts' if fails else 'also'} with what the log says: {told}." if changes else "."
        text += " Compare the figures: what else is on the GPU, and its kind, decide."
        cause = _cause(UNKNOWN_CAUSE, POSSIBLE, text, {}, message)
    if not _remedies(advised):
        advised = plan
    judged = on if on.estimate is not None and on.estimate.engine is not None else plan
    engine = judged.estimate.engine if judged.estimate is not None else None
    less = 0 if engine is None or POOL not in start.numbers else engine.pool_bytes - int(start.numbers[POOL] * 2**30)
    if less > HOLDS:
        text = (
            f"The run had {size(less)} less for the KV cache than computed, so no change computed here is sure to fit."
        )
        cause = cause._replace(text=f"{cause.text} {text}")
    return Explained(
        plan=plan,
        causes=(cause,),
        differences=_differences(judged, start),
        remedies=_remedies(advised) if less <= HOLDS else (),
        on=on if changes and advised is on else None,
    )


def _remedies(result: PlanResult) -> tuple[Remedy, ...]:
    return tuple({repr(r.set): r for f in result.findings for r in f.remedies}.values())


def _cause(id: str, certainty: str, text: str, changes: dict[str, str | int | float], message: Message) -> Cause:
    return Cause(id=id, certainty=certainty, text=text, changes=dict(changes), lines=(message.line,))


def _of_answer(
    result: PlanResult, changes: dict[str, str | int | float], before: str, message: Message
) -> Cause | None:
    """The engine's refusal, as a cause; None where it starts with the plan."""
    answer = result.estimate.engine if result.estimate is not None else None
    if answer is None or answer.answer == "boots":
        return None
    settings, refusal = answer.settings, answer.refusal
    words = f": {refusal.words}" if refusal is not None else "."
    if answer.answer == "depends":
        may = f"{settings.name} {settings.version} may not start, which depends on {', '.join(answer.depends_on)}"
        pool, request = f"{answer.pool_bytes / 2**30:.2f}", f"{answer.request_bytes / 2**30:.2f}"
        may += f". The KV cache is expected at {pool} GiB, and one request needs {request} GiB."
        return _cause(AS_PREDICTED, POSSIBLE, before + may, changes, message)
    verb = "does not start" if before else "does not start, as predicted"
    return _cause(AS_PREDICTED, LIKELY, f"{before}{settings.name} {settings.version} {verb}{words}", changes, message)


def _flat(values: object) -> dict[str, object]:
    inference = values.get("inference") if isinstance(values, dict) else None
    return {f"inference.{key}": item for key, item in inference.items()} if isinstance(inference, dict) else {}


def _differences(result: PlanResult, start: EngineStart) -> tuple[Difference, ...]:
    """Measured bytes next to the engine's terms."""
    answer = result.estimate.engine if result.estimate is not None else None
    if answer is None:
        return ()
    weights = max(
        (sum(t.expected_bytes for t in terms if t.name in ("weights", "buffers", "towers")) for terms in answer.ranks),
        default=0,
    )
    predicted = ((WEIGHTS, "weights", weights), (POOL, "left for the KV cache", answer.pool_bytes), (NEEDED, "one request", answer.request_bytes))  # fmt: skip
    return tuple(
        Difference(name, round(start.numbers[id] * 2**30), count)
        for id, name, count in predicted
        if id in start.numbers
    )


def flags(message: Message, start: EngineStart) -> list[str]:
    """What to change in the command, without a plan."""
    if ENGINES[message.pattern] == SGLANG:
        return [
            "Raise `--mem-fraction-static`, the share for weights and KV cache, or lower `--context-length`.",
            "Lower `--chunked-prefill-size` and `--cuda-graph-max-bs`, or split the model with `--tp-size`.",
        ]
    share, length = start.value("inference.gpu_memory_utilization"), start.value("inference.max_model_len")
    now = "" if share is None else f" (now {share})"
    if message.pattern == "vllm-startup":
        return [
            f"End what else is on the GPU (`nvidia-smi`), or lower `--gpu-memory-utilization`{now} to what is free.",
        ]
    longest = int(start.numbers.get("engine-longest", 0))
    of = "" if length is None else f" (now {length})"
    shorter = f"Lower `--max-model-len`{of}" + (f" to {longest} or less." if longest else ".")
    larger = f"Raise `--gpu-memory-utilization`{now}, the share of the GPU for weights, work space and KV cache."
    first = [shorter, larger] if message.pattern == "vllm-kv-tokens" else [larger]
    rest = [] if message.pattern == "vllm-kv-tokens" else [
        f"{shorter} That helps once anything is left for the KV cache.",
        "Lower `--max-num-batched-tokens` and `--max-num-seqs`, which the measured work space grows with.",
    ]  # fmt: skip
    return [
        *first,
        *rest,
        "Or use more GPUs (`--tensor-parallel-size`), `--kv-cache-dtype fp8`, or a quantised checkpoint.",
    ]
