"""A guard where the job runs: reads the real objects, predicts the peak, and ends a job that does not fit.

``MemcheckCallback`` is for every trainer that takes transformers' callbacks, ``before_training`` for loops of your own.
Nothing but ``WillNotFit`` leaves this module: a fault of its own is one line of warning. Neither torch nor transformers
is imported here, and no network is used.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from memcheck.catalog.names import UnknownNameError, find_gpu
from memcheck.config.find import Configurations
from memcheck.configs.answers import Beside
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.plan_text import plan_text
from memcheck.configs.types import ReadSetting
from memcheck.edge.imports import import_module
from memcheck.edge.opener import read_start
from memcheck.edge.screen import gib, one_line, put
from memcheck.errors import MemcheckError
from memcheck.guard.live_job import (
    GIB,
    LiveGpu,
    LiveJob,
    UnreadJobError,
    device,
    local_bytes,
    read_job,
    state_tensors,
    unwrapped,
    world,
)
from memcheck.judge import Gate, check_file
from memcheck.memory.fit import DOES_NOT_FIT
from memcheck.record import Record
from memcheck.report.verdict import lead, verdict
from memcheck.rules.result import PlanResult

TYPE_CHECKING = False

FAIL, WARN = "fail", "warn"
STEPS = 3
"""Steps after which measured memory is compared: the optimizer's states exist after the first one."""
HELD = 256 * 2**20
"""Bytes in use by others from which they are named: less is within what contexts differ by."""
SAME = 0.02
"""Relative difference of two sizes that are called equal."""
MOST_NOTES = 5


class WillNotFit(MemcheckError):  # noqa: N818  # it says what the job does, as StopIteration does
    """The job needs more memory than its GPU has; raised before the first step."""

    exit_code = 1


class Guard:
    """One job that is watched: its plan, its verdict, and what its first steps take."""

    def __init__(self, *, rank: int = 0, steps: int = STEPS) -> None:
        self.result: PlanResult | None = None
        """The verdict; None where the job was not judged."""
        self.plan = ""
        """The plan as YAML; empty where there is none."""
        self._rank, self._left = rank, steps
        self._model: Any = None
        self._optimizer: Any = None
        self._gradient_bytes = 0

    def step(self, optimizer: Any = None) -> None:
        """Count a step. Call it after ``optimizer.step()``, before gradients are set to None."""
        if self._left > 0 and self.result is not None:
            _safely(lambda: self._step(optimizer), self._rank)

    def gradients(self) -> None:
        """Take the size of the gradients, for trainers that set them to None before a step is counted."""
        if self._left > 0 and self.result is not None:
            _safely(self._measure_gradients, self._rank)

    def _measure_gradients(self) -> None:
        held = [each.grad for each in self._model.parameters() if each.grad is not None]
        self._gradient_bytes = max(self._gradient_bytes, local_bytes(held))

    def _step(self, optimizer: Any) -> None:
        self._measure_gradients()
        self._optimizer = self._optimizer if optimizer is None else optimizer
        self._left -= 1
        if self._left:
            return
        _say(compared(self), self._rank)

    def measured_bytes(self) -> dict[str, int]:
        """What is resident in this process, by component; a component that cannot be seen is left out."""
        tensors = [*self._model.parameters(), *self._model.buffers()]
        found = {"weights": local_bytes(tensors), "gradients": self._gradient_bytes}
        found["optimizer states"] = local_bytes(state_tensors(self._optimizer))
        return {name: count for name, count in found.items() if count}


def before_training(  # noqa: PLR0913  # what a loop states, each by its keyword
    model: Any,
    args: Any = None,
    *,
    optimizer: Any = None,
    gpu: str = "",
    action: str = FAIL,
    sequence_length: int | None = None,
    micro_batch_size: int | None = None,
    arguments: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    fail_above: float | None = None,
    steps: int = STEPS,
    write: str = "",
    rows: Any = None,
) -> Guard:
    """Predict a job's peak from its objects, say the verdict on stderr, and end a job that does not fit.

    Args:
        model: The model, wrapped or not. Its configuration is one of transformers'.
        args: ``TrainingArguments`` or a config of TRL's; None for a loop of one's own.
        optimizer: The optimizer, where there is one already.
        gpu: A GPU of the catalog to judge for. Without it: the GPU of this process; without that, nothing is judged.
        action: ``fail`` raises where the job does not fit; ``warn`` only says so.
        sequence_length: Tokens of the longest row, where the arguments do not say it.
        micro_batch_size: Sequences per GPU, where the arguments do not say it.
        arguments: Further keys of ``TrainingArguments``, such as ``bf16``, for a loop of one's own.
        settings: Dotted keys of a plan and their values, where nothing else says them.
        fail_above: The share of the GPU above which a job does not fit; None: as ``memcheck check``.
        steps: Steps after which predicted and measured memory are compared; 0: never.
        write: A path for the plan; the model's configuration is written next to it. No other file is overwritten.
        rows: A data set or loader, whose rows are looked at where nothing states their length.

    Returns:
        The guard. A loop of one's own calls ``guard.step()`` after each ``optimizer.step()``.

    Raises:
        WillNotFit: the job does not fit, and ``action`` is ``fail``.
    """
    guard = Guard(steps=steps)
    stated = dict(arguments or {})
    if micro_batch_size is not None:
        stated["per_device_train_batch_size"] = micro_batch_size

    def judge() -> WillNotFit | None:
        rank, local, nodes = world()
        guard._rank = rank  # noqa: SLF001  # its own maker
        place = device(gpu)
        if place is None:
            _say('no GPU here and none is named, so that nothing is checked: gpu="a100-80gb" names one', rank)
            return None
        guard._model, guard._optimizer = unwrapped(model), optimizer  # noqa: SLF001  # its own maker
        job = read_job(model, args, optimizer, rows, stated, sequence_length)
        hardware = {"hardware.gpus_per_node": local, "hardware.nodes": nodes}
        return _judged(guard, job, place, {**hardware, **(settings or {})}, _Order(action, fail_above, write))

    refusal = _safely(judge, 0)
    if refusal is not None:
        raise refusal
    return guard


class _Order(Record):
    """What the caller wants done with the verdict."""

    action: str
    fail_above: float | None
    write: str


def _judged(
    guard: Guard, job: LiveJob, place: LiveGpu, settings: Mapping[str, object], order: _Order
) -> WillNotFit | None:
    """Judge the job, say it, write its plan; the exception to raise where it does not fit.

    Raises:
        UnreadJobError: there is no plan of the job.
    """
    rank = guard._rank  # noqa: SLF001  # the class above
    imported = plan_of_job(job, place, settings)
    for note in [*(each.message for each in imported.notes), *job.notes, *job.above][:MOST_NOTES]:
        _say(f"note: {note}", rank)
    guard.plan = imported.text
    result = check_plan(imported, job, order.fail_above)
    held = _held_by_others(place, result)
    if held:
        _say(f"others hold {gib(held)} GiB of this GPU, which the verdict leaves out", rank)
    free = place.total_bytes - held
    if place.total_bytes and result.estimate is not None and free < result.estimate.capacity_bytes:
        result = check_plan(_with(imported, {"hardware.gpu.memory_gib": round(free / GIB, 2)}), job, order.fail_above)
    if order.write and not rank:
        write_plan(order.write, imported, job)
    if result.estimate is None:
        raise UnreadJobError(lead(result))
    guard.result = result
    differs = _count_differs(job, result)
    if differs:
        _say(differs, rank)
    told = f"{verdict(result).word}. {lead(result)}"
    _say(told, rank)
    over = job.above or (result.estimate.parameters > job.parameters > 0 and differs)
    if result.verdict != DOES_NOT_FIT or order.action != FAIL or over:
        return None
    return WillNotFit(told, '`memcheck suggest` finds what fits, of the plan that write="plan.yaml" writes')


def plan_of_job(job: LiveJob, place: LiveGpu, settings: Mapping[str, object] = {}) -> Imported:
    """The plan of a job that was read off its objects, as the reader of its trainer makes it.

    ``settings``: dotted keys of the plan that the caller states.

    Raises:
        UnreadJobError: the reader has no plan of it; the text is the first reason.
    """
    stated = {**job.settings, "model.config": CONFIG, "hardware.gpu.name": place.name, **settings}
    if place.total_bytes and not _known(place.name):
        stated["hardware.gpu.memory_gib"] = round(place.total_bytes / GIB, 2)
    data = json.dumps(job.arguments, indent=1).encode()
    format = "trl" if job.objective else "transformers"
    # The reader takes the objective from the names of folders, where keys leave it open.
    path = "/".join([job.objective or "sft"] * 2 + ["arguments.json"])
    with tempfile.TemporaryDirectory(prefix="memcheck-") as folder:
        _write_config(folder, job)
        imported = import_config(
            path,
            data,
            {key: ReadSetting(value, "the running job") for key, value in stated.items()},
            format,
            Beside(version=job.version),
            folder,
        )
    if imported.problems:
        first = imported.problems[0]
        raise UnreadJobError(f"{first.message}{': ' if first.help else ''}{_in_keywords(first.help)}")
    place_of = re.compile(rf"{re.escape(path)}:\d+ ")
    named = {
        key: each._replace(why=place_of.sub(f"{job.source}: ", each.why)) for key, each in imported.settings.items()
    }
    return imported._replace(settings=named)


def _in_keywords(help: str) -> str:
    """A remedy of the command line in the keywords of :func:`before_training`."""
    help = re.sub(r"--set ([\w.]{1,80})=(\S+)", r'settings={"\1": "\2"}', help)
    return re.sub(
        r"--(sequence|micro-batch)-(length|size) ", lambda found: f"{found[0][2:-1].replace('-', '_')}=", help
    )


CONFIG = "model.json"
"""The file of the model's configuration, as a plan that is not written names it."""


def _write_config(folder: str, job: LiveJob) -> None:
    with open(os.path.join(folder, CONFIG), "w", encoding="utf-8") as file:
        json.dump(job.model_config, file, indent=1)


def _known(name: str) -> bool:
    try:
        find_gpu(name)
    except UnknownNameError:
        return False
    return True


def _with(imported: Imported, values: Mapping[str, object]) -> Imported:
    added = {key: ReadSetting(value, "the running job") for key, value in values.items()}
    return imported._replace(settings={**imported.settings, **added})


def check_plan(imported: Imported, job: LiveJob, fail_above: float | None) -> PlanResult:
    """The verdict on a plan, as ``memcheck check`` gives it under the project's configuration.

    Raises:
        UnreadJobError: memcheck itself failed on the plan.
    """
    settings = Configurations(None).of("plan.yaml")
    with tempfile.TemporaryDirectory(prefix="memcheck-") as folder:
        _write_config(folder, job)
        path = os.path.join(folder, "job.yaml")
        gate = Gate(settings=settings, fail_above=fail_above)
        (result,), traces = check_file(path, imported.text.encode(), gate)
    if traces:
        raise UnreadJobError(f"memcheck failed on the plan: {traces[0].rpartition(chr(10))[2]}")
    return result


def _held_by_others(place: LiveGpu, result: PlanResult) -> int:
    """Bytes of the GPU that neither this process's allocator nor its context holds; 0 for less than :data:`HELD`."""
    if not place.total_bytes or result.estimate is None:
        return 0
    own = place.reserved_bytes + result.estimate.components_bytes.get("context_and_nccl", 0)
    held = place.total_bytes - place.free_bytes - own
    return held if held >= HELD else 0


def _count_differs(job: LiveJob, result: PlanResult) -> str:
    """That the model has another number of parameters than its plan; empty where they agree."""
    estimate = result.estimate
    if estimate is None or not job.parameters:
        return ""
    found = []
    pairs = (("has", job.parameters, estimate.parameters), ("trains", job.trainable, estimate.trainable_parameters))
    for verb, real, planned in pairs:
        if abs(real - planned) > max(real, planned) / 1000:
            found.append(f"the model {verb} {real:,} parameters and its plan {planned:,}")
    return "; ".join(found)


def write_plan(path: str, imported: Imported, job: LiveJob) -> None:
    """Write the plan, and the model's configuration next to it; a file that is there stays as it is."""
    config = f"{os.path.splitext(path)[0]}.model.json"
    named = ReadSetting(f"./{os.path.basename(config)}", "the running job")
    settings = {key: named if key == "model.config" else each for key, each in imported.settings.items()}
    for name, text in ((config, json.dumps(job.model_config, indent=1) + "\n"), (path, plan_text(settings))):
        if not os.path.lexists(name):
            with open(name, "x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            continue
        data = text.encode()
        if read_start(name, len(data)) != data:
            _say(f"{name} exists and differs from this job: it stays as it is", 0)


TERMS = {
    "weights": ("parameters", "master_weights", "adapters"),
    "gradients": ("gradients",),
    "optimizer states": ("optimizer_states",),
}
"""What is measured in a process, and the components of an estimate that it is."""


def compared(guard: Guard) -> str:
    """One line: predicted and measured memory, and the term that is furthest off."""
    result = guard.result
    assert result is not None and result.estimate is not None  # noqa: S101, PT018  # the guard's own condition
    estimate = result.estimate
    instants = [each for rank in estimate.ranks for each in rank.step.instants]
    predicted = {
        term: max((sum(each.components_bytes.get(name, 0) for name in names) for each in instants), default=0)
        for term, names in TERMS.items()
    }
    measured = guard.measured_bytes()
    torch = sys.modules["torch"]
    told = []
    if torch.cuda.is_available():
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        told.append(f"allocated {_pair(peak, estimate.allocated_bytes)}")
        told.append(f"reserved {_pair(reserved, estimate.reserved_bytes)}")
        measured["activations and temporaries"] = peak - sum(measured.values())
        predicted["activations and temporaries"] = estimate.allocated_bytes - sum(predicted.values())
    off = {term: abs(count - predicted[term]) for term, count in measured.items()}
    worst = max(off, key=lambda term: off[term], default="")
    if not told:
        told = [f"{term} {_pair(count, predicted[term])}" for term, count in measured.items()]
    if not worst or off[worst] <= SAME * max(measured[worst], predicted[worst]):
        told.append(f"no term is off by more than {SAME:.0%}")
    else:
        told.append(f"furthest off: {worst}, {_pair(measured[worst], predicted[worst])}")
    where = "" if torch.cuda.is_available() else ", without a GPU"
    return f"measured and predicted GiB{where}: {'; '.join(told)}"


def _pair(measured: int, predicted: int) -> str:
    share = f" ({(predicted - measured) / measured:+.1%})" if measured > 0 else ""
    return f"{measured / GIB:.3f} and {predicted / GIB:.3f}{share}"


def _safely(work: Callable[[], Any], rank: int) -> Any:
    """The result of ``work``. Its own fault is one line of warning, whatever it is, and None."""
    try:
        return work()
    except UnreadJobError as error:
        _warn(f"this job is not checked: {error}", rank)
    except Exception as error:  # noqa: BLE001  # a fault of the guard never ends a job
        _warn(f"the guard failed and the job goes on: {type(error).__name__}: {error}", rank)
    return None


def _warn(text: str, rank: int) -> None:
    with suppress(Exception):  # nobody reads stderr
        _say(f"warning: {text}", rank)


def _say(text: str, rank: int) -> None:
    """One line on stderr, of the first process alone."""
    if not rank:
        put(sys.stderr, f"memcheck: {one_line(text)}\n")


class _Callback:
    """transformers' callback: judges the job as training begins, and compares after the first steps.

    Takes the keywords of :func:`before_training`, except ``rows`` and ``optimizer``, which the trainer has.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.guard: Guard | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:  # theirs
        """Judge the job. Raises ``WillNotFit`` if it does not fit."""
        own = {"optimizer": of_trainer.get("optimizer"), "rows": of_trainer.get("train_dataloader")}
        self.guard = before_training(of_trainer.get("model"), args, **{**own, **self.options})

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Take the size of the gradients, which the trainer sets to None before a step ends."""
        if self.guard is not None:
            self.guard.gradients()

    def on_step_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:  # theirs
        """Count a step; after the last one that is watched, compare."""
        if self.guard is not None:
            self.guard.step(of_trainer.get("optimizer"))


if TYPE_CHECKING:
    MemcheckCallback = _Callback


def __getattr__(name: str) -> Any:
    """``MemcheckCallback``: made when it is asked for, because its base class is transformers'."""
    if name != "MemcheckCallback":
        raise AttributeError(name)
    try:
        base = import_module("transformers.trainer_callback").TrainerCallback
    except ImportError:
        base = object
    made = type(name, (_Callback, base), {"__doc__": _Callback.__doc__, "__module__": __name__})
    globals()[name] = made
    return made
