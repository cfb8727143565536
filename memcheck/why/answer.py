"""What ``memcheck why`` answers, and how it is shown: text and HTML from the same blocks, JSON for programs."""

from __future__ import annotations

from typing import Any

from memcheck import __version__
from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, clean, gib, plural, value
from memcheck.plan.finding import Remedy
from memcheck.record import Record
from memcheck.report import text
from memcheck.report.html.document import body
from memcheck.report.html.shell import page
from memcheck.report.story import Prose
from memcheck.report.story.blocks import (
    Bar,
    Block,
    Chart,
    Fact,
    Facts,
    Item,
    PlanFact,
    PlanStory,
    Scale,
    Section,
    Segment,
    Story,
    Table,
    Verdict,
)
from memcheck.report.story.remedies import new_values
from memcheck.rules.result import PlanResult
from memcheck.why.engine_start import ENGINES, SGLANG, VLLM, EngineStart, flags
from memcheck.why.evidence import (
    ALLOCATED,
    CERTAIN,
    DEVICE,
    FIGURES,
    FREE,
    HOST,
    IN_USE,
    KINDS,
    LIKELY,
    NOT_OOM,
    OTHERS,
    POSSIBLE,
    RESERVED,
    SHARED,
    TOTAL,
    TRIED,
    UNALLOCATED,
    UNEXPLAINED,
    UNKNOWN,
    Message,
    TensorReading,
)
from memcheck.why.explained import AS_PREDICTED, WORDS, Explained
from memcheck.why.live import Mapped, device_sections, devices_data
from memcheck.why.log import LogEvidence
from memcheck.why.readings import Statement, allocator_setting, size
from memcheck.why.shapes import TensorFit
from memcheck.why.snapshots import DeviceMemory

WORTH = 2**26
"""Bytes from which a remainder of printed figures is worth showing."""
SHOWN_READINGS, SHOWN_CAUSES, SHOWN_REMEDIES, SHOWN_STATEMENTS = 3, 3, 3, 4


class Drafted(Record):
    """A value of the plan that was read from the log."""

    key: str
    value: object
    line: int


class Diagnosis(Record):
    """Everything that the evidence says, with a plan or without."""

    source: str
    """The file, ``<stdin>`` or ``the command line``."""
    log: LogEvidence
    statements: tuple[Statement, ...] = ()
    fit: TensorFit | None = None
    """Readings of the size that failed; None where no model is known."""
    model: str = ""
    explained: Explained | None = None
    drafted: tuple[Drafted, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read or said, and why."""
    devices: tuple[DeviceMemory, ...] = ()
    """Devices of a snapshot."""
    mapped: Mapped | None = None
    """Live blocks of the device that failed next to the plan's ledger; None without a plan or a snapshot."""

    start: EngineStart | None = None
    """What the log says of a serving engine that ended at its start; None for other ends."""

    @property
    def message(self) -> Message | None:
        """The message that names the reason first."""
        return self.log.first

    @property
    def kind(self) -> str:
        """The kind of death."""
        return self.log.first.kind if self.log.first is not None else UNKNOWN

    @property
    def is_explained(self) -> bool:
        """Whether the run died of a lack of memory, and the evidence says which."""
        return self.kind in (DEVICE, HOST, SHARED)


def headline(answer: Diagnosis) -> str:
    """The kind of death in one sentence that needs no knowledge of memcheck."""
    message = answer.message
    if message is None and answer.devices:
        return "The snapshot holds no allocation that failed: it shows what was in use."
    if message is None and answer.log.survived:
        return "The run went on after memory was short, and the text does not say why it ended."
    if message is None:
        return "The text does not say why the run ended: no message of a lack of memory, and no other error."
    if answer.start is not None and message.pattern in ENGINES:
        name = {VLLM: "vLLM", SGLANG: "SGLang"}[ENGINES[message.pattern]]
        version = answer.start.value("inference.version")
        return f"{name}{'' if version is None else f' {version}'} did not start. {message.means}"
    sure = {CERTAIN: "", LIKELY: "Likely: ", POSSIBLE: "Not certain: "}[message.certainty]
    return sure + message.means


def place(answer: Diagnosis) -> str:
    """Which GPU, rank, phase and step, and on which line."""
    message = answer.message
    if message is None:
        return ""
    parts = []
    if message.gpu_index is not None:
        parts.append(f"GPU {message.gpu_index}")
    if message.rank is not None:
        parts.append(f"rank {message.rank}")
    if message.phase is not None:
        parts.append(f"phase {message.phase}")
    if answer.log.step is not None:
        parts.append(f"after step {answer.log.step:,}")
    parts.append(f"line {message.line:,} of {answer.source}")
    said = ", ".join(parts)
    if answer.log.echoes:
        verb = "goes" if answer.log.echoes == 1 else "go"
        said += f"; {plural(answer.log.echoes, 'other line')} {verb} with it"
    return said


def figures(message: Message) -> str:
    """What the message prints of the GPU, in one line."""
    f = message.figures
    names = (
        (FREE, "free"),
        (ALLOCATED, "in tensors"),
        (UNALLOCATED, "reserved and unused"),
        (OTHERS, "of other processes"),
        (UNEXPLAINED, "of something else"),
    )
    said = [f"{size(f[key])} {name}" for key, name in names if key in f and (f[key].bytes >= WORTH or key == FREE)]
    if IN_USE in f and ALLOCATED not in f:
        said.append(f"{size(f[IN_USE])} of this process")
    total = size(f[TOTAL]) if TOTAL in f else ""
    return ": ".join(part for part in (total, ", ".join(said)) if part)


def bar(message: Message) -> Chart | None:
    """The GPU at the moment of the failure, as one bar; None where the message does not print its size."""
    f = message.figures
    if TOTAL not in f or message.kind != DEVICE or not f[TOTAL].bytes:
        return None
    held = sum(f[name].bytes for name in (ALLOCATED, UNALLOCATED) if name in f)
    outside = max(0, f[IN_USE].bytes - held) if IN_USE in f and held else 0
    others = sum(f[name].bytes for name in (OTHERS, UNEXPLAINED) if name in f)
    parts = {
        "activations": f[ALLOCATED].bytes if ALLOCATED in f else 0,
        "fragmentation": f[UNALLOCATED].bytes if UNALLOCATED in f else 0,
        "context_and_nccl": outside,
        "temporaries": others,
    }
    segments = tuple(Segment(key, count) for key, count in parts.items() if count)
    if not segments:
        return None
    total = f[TOTAL].bytes
    drawn = Bar("GPU", segments, f"{gib(sum(s.bytes for s in segments))} GiB")
    full = max(total, drawn.bytes)
    return Chart(
        id="gpu",
        title="The GPU when the allocation failed",
        bars=(drawn,),
        scale=Scale(full, total),
        capacity_name="when it failed: the GPU has",
    )


STEPS = {
    "shm": (
        (
            "Give the container more of it: `docker run --shm-size=16g` or `--ipc=host`. Kubernetes: an `emptyDir` "
            "with `medium: Memory` at /dev/shm."
        ),
        "Or start fewer data loader workers (`num_workers`), and hand over smaller batches (`prefetch_factor`).",
    ),
    "waited": (
        (
            "Look at the end of the other ranks' logs: the one that this rank waited for stopped first, and a common "
            "cause is that it ran out of memory."
        ),
        "If no rank failed, one was slow: longer data loading, a checkpoint, or rows of different lengths.",
    ),
    "time": ("Ask for more time (Slurm: --time), or save checkpoints so that the next job goes on from the last one.",),
    "stopped": (
        "Start the job again from its last checkpoint. The scheduler says why it ended: `sacct -j JOB -o State`.",
    ),
    "disk": (
        (
            "Free the disk, or write somewhere else: `df -h` shows which is full. Checkpoints, caches (HF_HOME, "
            "TMPDIR) and logs fill it."
        ),
    ),
}
"""What to do about ends that are no lack of the memory of a GPU or of a process."""
STEPS_OF = {
    "shm-bus": "shm",
    "shm-nccl": "shm",
    "shm-full": "shm",
    "watchdog": "waited",
    "timed-out": "waited",
    "time-limit": "time",
    "lsf-time": "time",
    "preempted": "stopped",
    "disk": "disk",
}
"""Patterns of messages and their rows of :data:`STEPS`."""


def next_steps(answer: Diagnosis) -> list[str]:
    """What to do now, as far as the evidence alone says it."""
    kind, message = answer.kind, answer.message
    explained = answer.explained
    if message is not None and message.pattern in STEPS_OF:
        return list(STEPS[STEPS_OF[message.pattern]])
    if message is not None and answer.start is not None:
        step = "`memcheck why LOG --plan plan.yaml` gives the engine's own answer, and changes that fit."
        return [*flags(message, answer.start), *([step] if explained is None else [])]
    if kind == HOST:
        return [
            "Ask for more host memory (Slurm: --mem), or start fewer data loader workers and fewer processes per node.",
            "Load the checkpoint on one process, or shard by shard: each process that reads it whole holds a copy.",
        ]
    if kind == SHARED:
        return ["Use smaller blocks or fewer stages (`num_stages`) for the kernel. A smaller batch does not change it."]
    if kind == NOT_OOM:
        return ["Look at the traceback above this line: less memory would not have helped."]
    if message is None and answer.devices:
        return [
            "Record the history from the first step: `torch.cuda.memory._record_memory_history()`.",
            "Write the snapshot where the error is caught: `torch.cuda.memory._dump_snapshot(FILE)`.",
        ]
    if kind == UNKNOWN or message is None:
        return [
            "Look at the end of the logs of all ranks, at `dmesg` and at the scheduler: `sacct -j JOB -o State,MaxRSS`."
        ]
    steps = []
    ids = {statement.id for statement in answer.statements}
    if "fragmentation" in ids:
        steps.append(f"Set {allocator_setting(message)} in the environment of the run.")
    if "other-process" in ids:
        steps.append("Run `nvidia-smi` and end what else is on the GPU, or plan for what it holds.")
    if explained is None:
        missing = f" Missing: {', '.join(answer.missing)}." if answer.missing else ""
        steps.append(
            "`memcheck why LOG --plan plan.yaml` says which number of a plan was wrong, and which changes fit."
            + missing
        )
        if answer.fit is None and TRIED in message.figures:
            steps.append("`memcheck why LOG --model NAME` says which tensor the allocation was.")
    return steps


def _reading(reading: TensorReading) -> str:
    shape = " x ".join(f"{n:,}" for n in reading.shape)
    said = f"{reading.tensor}: {shape} {reading.dtype}, {size(reading.bytes)}"
    low, high = reading.free_range
    if reading.free_name:
        said += f" ({reading.free_name}: {low:,} to {high:,})" if low != high else f" ({reading.free_name}: {low:,})"
    if reading.note:
        said += f"; {reading.note}"
    return f"{reading.certainty}: {said}"


def sections(answer: Diagnosis) -> tuple[Section, ...]:
    """What the answer shows below its headline."""
    found: list[Section] = []
    message = answer.message
    rows = [Fact("where", place(answer))] if message is not None else []
    printed = message is not None and answer.start is None
    if message is not None and printed and TRIED in message.figures:
        tried = message.figures[TRIED]
        exact = "" if tried.resolution_bytes else " exactly"
        rows.append(Fact("asked for", f"{size(tried)}{exact}"))
    if message is not None and printed and figures(message):
        rows.append(Fact("the GPU" if message.kind == DEVICE else "memory", figures(message)))
    if message is not None:
        rows.append(Fact("message", message.text[:160] + ("…" if len(message.text) > 160 else "")))
    if rows:
        found.append(Section("evidence", "Evidence", (Facts(tuple(rows)),)))
    if answer.statements:
        told = tuple(Prose(f"{s.certainty}: {s.text}") for s in answer.statements[:SHOWN_STATEMENTS])
        found.append(Section("figures", "What the figures say", told))
    found += _tensor(answer)
    found += device_sections(answer.devices, answer.mapped)
    if answer.explained is not None:
        found += _plan(answer, answer.explained)
    if answer.notes or answer.drafted or answer.missing:
        said = [Prose(note) for note in answer.notes]
        if answer.drafted:
            values = ", ".join(f"`{d.key}: {value(d.value)}` (line {d.line})" for d in answer.drafted[:8])
            said.append(Prose(values, "dim"))
        if answer.missing and answer.explained is not None:
            said.append(Prose(f"missing: {', '.join(answer.missing)}", "warn"))
        if said:
            found.append(Section("notes", "Read from the log", tuple(said)))
    steps = next_steps(answer)
    if steps:
        found.append(Section("next", "What to do", tuple(Prose(step) for step in steps)))
    return tuple(found)


def _tensor(answer: Diagnosis) -> list[Section]:
    fit = answer.explained.fit if answer.explained is not None else answer.fit
    if fit is None or not fit.readings:
        return []
    shown = fit.readings[: min(SHOWN_READINGS, fit.spoken or SHOWN_READINGS)]
    told = [Prose(_reading(reading)) for reading in shown]
    said: list[str] = []
    if fit.word:
        others = "rules out others" if fit.spoken <= len(shown) else "puts these first"
        said.append(f"`{fit.word}` in the log {others}.")
    if len(shown) > 1 and fit.readings[0].certainty != LIKELY:
        said.append("Nothing decides between those listed.")
    opened = sum(bool(reading.free_name) for reading in fit.readings)
    counted = [f"Of {plural(fit.tried, 'tensor')} of known size {fit.fitting or 'none'} {_fit(fit.fitting)}"]
    if opened:
        counted.append(f"{opened} of open size {_fit(opened)} with the number in brackets")
    said.append("; ".join(counted) + ".")
    if len(fit.readings) > len(shown):
        said.append("All are in --format json.")
    return [Section("tensor", "Which tensor", (*told, Prose(" ".join(said), "dim")))]


def _fit(count: int) -> str:
    return "fit" if count > 1 else "fits"


def _plan(answer: Diagnosis, explained: Explained) -> list[Section]:
    plan = explained.plan
    found: list[Section] = []
    if plan.estimate is None:
        wrong = [f for f in plan.findings if f.severity == "error"][:SHOWN_STATEMENTS]
        told = tuple(Prose(f"{f.code}: {f.message}" + (f"; {f.help}" if f.help else ""), "bad") for f in wrong)
        return [Section("causes", f"The plan {clean(plan.name)} cannot be estimated", told)]
    causes = [
        Prose(f"{c.certainty}: {c.text}", "strong" if n == 0 else "")
        for n, c in enumerate(explained.causes[:SHOWN_CAUSES])
    ]
    same: dict[str, list[str]] = {}
    for each in explained.excluded:
        same.setdefault(each.text, []).append(each.id)
    ruled = [
        Prose(f"excluded: {', '.join(WORDS.get(id, id) for id in ids)}. {why}", "dim")
        for why, ids in [*same.items()][:SHOWN_CAUSES]
    ]
    if not causes and not ruled:
        e = plan.estimate
        text = f"The plan needs {size(e.needed_bytes)} of {size(e.capacity_bytes)}. It does not explain this end."
        causes = [Prose(text)]
    found.append(Section("causes", _title(answer, plan), (*causes, *ruled)))
    if explained.differences:
        rows = tuple(
            (
                d.term,
                f"{gib(d.observed_bytes)}",
                f"{gib(d.predicted_bytes)}",
                _signed(d.observed_bytes - d.predicted_bytes),
            )
            for d in explained.differences
        )
        table = Table("", ("GiB", "observed", "predicted", "difference"), rows, right=(1, 2, 3))
        found.append(Section("differences", "Term by term", (table,)))
    if explained.remedies:
        told = tuple(Prose(_remedy(r)) for r in explained.remedies[:SHOWN_REMEDIES])
        found.append(Section("remedies", "Changes that fit, computed again", told))
    elif answer.start is None and answer.kind == DEVICE and explained.causes and explained.causes[0].id == AS_PREDICTED:
        said = Prose("No single change that was tried fits: `memcheck suggest PLAN` searches further.")
        found.append(Section("remedies", "Changes that fit", (said,)))
    return found


def _title(answer: Diagnosis, plan: PlanResult) -> str:
    """What the run is compared with."""
    return (
        "Compared with the plan in the log's command"
        if answer.drafted and answer.start is None
        else f"Compared with the plan {clean(plan.name)}"
    )


def _signed(count: int) -> str:
    return f"{'+' if count > 0 else '-' if count < 0 else ''}{gib(abs(count))}"


def _remedy(remedy: Remedy) -> str:
    slower = (
        ""
        if not remedy.slowdown
        else f", about {abs(remedy.slowdown):.0%} {'slower' if remedy.slowdown > 0 else 'faster'}"
    )
    return f"{remedy.title} ({', '.join(new_values(remedy))}): {gib(remedy.needed_bytes)} GiB needed{slower}"


def render_text(answer: Diagnosis, screen: Screen) -> str:
    """The answer for a terminal: the kind of death first."""
    tone = {DEVICE: "bad", HOST: "bad", SHARED: "bad"}.get(answer.kind, "warn")
    groups: list[tuple[Block, ...]] = [(Prose(headline(answer), tone),)]
    for section in sections(answer):
        if section.id == "evidence":
            groups[0] = (*groups[0], *section.blocks)
            continue
        groups.append((Item(Prose(section.title, "strong"), section.blocks),))
    return text.document(groups, screen) + "\n"


def as_story(answer: Diagnosis) -> PlanStory:
    """The answer as the story of one plan: observed and predicted as bars on one scale."""
    message = answer.message
    pictures = [chart for chart in (bar(message) if message is not None else None, _predicted(answer)) if chart]
    full = max((chart.scale.full_bytes for chart in pictures), default=0)
    pictures = [chart._replace(scale=chart.scale._replace(full_bytes=full)) for chart in pictures]
    tone = "bad" if answer.is_explained else "note"
    return PlanStory(
        id="why",
        name=clean(answer.source),
        path=clean(answer.source),
        status="failed",
        verdict=Verdict(answer.kind, tone),
        lead=headline(answer),
        advice="",
        facts=tuple(_facts(answer)),
        pictures=tuple(pictures),
        used="",
        sections=sections(answer),
    )


def render_html(answer: Diagnosis) -> str:
    """The answer as one page."""
    told = as_story(answer)
    title = "Why the run ended"
    return page(
        title,
        body(Story(title=title, summary=headline(answer), plans=(told,), unreadable=(), version=__version__)),
        version=__version__,
        basis="Read by memcheck {} from the log or snapshot of a run."
        + (" What the plan needs is predicted." if answer.explained is not None else ""),
    )


def _facts(answer: Diagnosis) -> list[PlanFact]:
    message = answer.message
    if message is None:
        return []
    found = [PlanFact("GPU", str(message.gpu_index))] if message.gpu_index is not None else []
    found += [PlanFact("rank", str(message.rank))] if message.rank is not None else []
    found += [PlanFact("phase", message.phase)] if message.phase is not None else []
    return [*found, PlanFact("line", f"{message.line:,}")]


def _predicted(answer: Diagnosis) -> Chart | None:
    plan = answer.explained.plan if answer.explained is not None else None
    if plan is None or plan.estimate is None or answer.kind != DEVICE:
        return None
    e = plan.estimate
    segments = tuple(Segment(name, count) for name, count in e.needed_parts_bytes.items())
    drawn = Bar("plan", segments, f"{gib(e.needed_bytes)} GiB")
    scale = Scale(max(e.capacity_bytes, e.needed_bytes), e.capacity_bytes)
    return Chart(
        id="predicted",
        title="What the plan predicts",
        bars=(drawn,),
        scale=scale,
        interval_bytes=e.needed_interval_bytes,
        capacity_name="predicted: the GPU has",
    )


def render_json(answer: Diagnosis) -> str:
    """The document for programs: ``schemas/why.schema.json``, version 1."""
    return dumps(as_data(answer), indent=1) + "\n"


def as_data(answer: Diagnosis) -> dict[str, Any]:
    """The answer as plain data; what the evidence does not say is null."""
    message, explained = answer.message, answer.explained
    printed = message.figures if message is not None else {}
    shown: dict[str, int | None] = {name: printed[name].bytes if name in printed else None for name in FIGURES}
    shown["tried_resolution_bytes"] = printed[TRIED].resolution_bytes if TRIED in printed else None
    fit = explained.fit if explained is not None and explained.fit.readings else answer.fit
    return {
        "why": 1,
        "memcheck": __version__,
        "source": answer.source,
        "kind": answer.kind,
        "certainty": message.certainty if message is not None else None,
        "text": headline(answer),
        "first": None
        if message is None
        else {
            "line": message.line,
            "rank": message.rank,
            "gpu_index": message.gpu_index,
            "phase": message.phase,
            "step": answer.log.step,
            "pattern": message.pattern,
            "message": message.text,
        },
        "others": answer.log.echoes,
        "figures": shown,
        "statements": [{**s._asdict(), "lines": list(s.lines)} for s in answer.statements],
        "readings": [_reading_data(r) for r in fit.readings] if fit is not None else [],
        "shapes": {"fitting": fit.fitting, "tried": fit.tried} if fit is not None else None,
        "causes": [
            {
                "id": c.id,
                "certainty": c.certainty,
                "text": c.text,
                "instant": c.instant,
                "pipeline_rank": c.pipeline_rank,
                "set": c.changes,
                "lines": list(c.lines),
            }
            for c in (explained.causes if explained is not None else ())
        ],
        "excluded": [
            {**e._asdict(), "lines": list(e.lines)} for e in (explained.excluded if explained is not None else ())
        ],
        "differences": [d._asdict() for d in (explained.differences if explained is not None else ())],
        "drafted": [d._asdict() for d in answer.drafted],
        "missing": list(missing(answer)),
        "notes": list(answer.notes),
        "devices": devices_data(answer.devices, answer.mapped),
        "remedies": [_remedy_data(r) for r in (explained.remedies if explained is not None else ())],
    }


def missing(answer: Diagnosis) -> tuple[str, ...]:
    """What neither the evidence nor an option says, and what keeps the plan from being estimated."""
    plan = answer.explained.plan if answer.explained is not None else None
    wrong = [f.message for f in plan.findings if f.severity == "error"] if plan and plan.estimate is None else []
    return tuple(dict.fromkeys((*answer.missing, *wrong)))


def _reading_data(reading: TensorReading) -> dict[str, Any]:
    data = {**reading._asdict(), "shape": list(reading.shape), "free_range": list(reading.free_range)}
    return data if reading.free_name else {**data, "free_name": None, "free_range": None}


def _remedy_data(remedy: Remedy) -> dict[str, Any]:
    return {
        "title": remedy.title,
        "set": remedy.set,
        "needed_bytes": remedy.needed_bytes,
        "utilization": remedy.utilization,
        "slowdown": remedy.slowdown,
        "safe": remedy.safe,
        "group": remedy.group,
    }


__all__ = ["KINDS", "RESERVED", "Diagnosis", "Drafted", "render_html", "render_json", "render_text"]
