"""The one command that goes on, where memcheck cannot judge what it was given: to be pasted into a shell as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from memcheck.catalog.gpus import find_gpu
from memcheck.catalog.models import find_model
from memcheck.catalog.names import AmbiguousNameError, UnknownNameError
from memcheck.plan.foreign import instance
from memcheck.record import Record

EXAMPLE = "h100-80gb"
"""The GPU in an example command, where the user stated none."""
LIKE = "llama-3.1-8b"
"""The model of a command that only shows how one is written."""
LONGEST = 1100
"""Characters of a launch that is repeated whole: a longer one is named by its line."""
_MADE = re.compile(r"^nvidia-|^tesla-|-mega(?=-)|-sxm\d?(?=-|$)|-hbm\d\w?$|-141gb$")
"""What platforms add to the name of a GPU."""
INDENT = "    "
"""Before a command in a help, as code has it in Markdown."""


class Machine(Record):
    """What runs a job, as far as it is said."""

    gpu: str = ""
    """A name of the catalog."""
    gpus_per_node: int = 0
    """GPUs per node; 0 where it is not stated."""
    nodes: int = 1

    def stated(self, beside: Mapping[str, object]) -> Machine:
        """With what the command line says, which goes first."""
        gpu, per_node, nodes = (beside.get(key) for key in ("gpu", "gpus_per_node", "nodes"))
        return Machine(
            gpu=str(gpu) if isinstance(gpu, str) else self.gpu,
            gpus_per_node=per_node if isinstance(per_node, int) else self.gpus_per_node,
            nodes=nodes if isinstance(nodes, int) else self.nodes,
        )

    @property
    def said(self) -> dict[str, object]:
        """What is known, by the names of the command line."""
        counts = {"gpus_per_node": self.gpus_per_node, "nodes": self.nodes if self.nodes > 1 else 0}
        said: dict[str, object] = {key: count for key, count in counts.items() if count}
        return {"gpu": self.gpu, **said} if self.gpu else said

    def flags(self) -> list[str]:
        """For a config or a command."""
        per_node = ["--gpus-per-node", str(self.gpus_per_node)] if self.gpus_per_node else []
        return ["--gpu", self.gpu or EXAMPLE, *per_node, *(["--nodes", str(self.nodes)] if self.nodes > 1 else [])]

    def counted(self) -> list[str]:
        """For a model by its name."""
        if self.nodes > 1:
            return [*Machine(gpu=self.gpu, nodes=self.nodes, gpus_per_node=self.gpus_per_node or 1).flags()]
        return ["--gpu", self.gpu or EXAMPLE, "--gpus", str(self.gpus_per_node or 1)]

    @property
    def advice(self) -> str:
        """What is left to the reader to put in; empty where the GPU is said."""
        return "" if self.gpu else f", with your GPU in place of {EXAMPLE}"


NO_MACHINE = Machine()


def command(intro: str, *words: str) -> str:
    """A help of a sentence and a command below it."""
    return f"{intro}:\n{INDENT}{shlex.join(words)}"


def model_named(name: object) -> str:
    """The catalog's name of a model, or of one that the last part of a path is called by; empty where it has none."""
    if not isinstance(name, str) or not 0 < len(name) < 200:
        return ""
    return _model(name) or _model(name.rstrip("/").rpartition("/")[2])


def _model(name: str) -> str:
    try:
        return find_model(name).name
    except UnknownNameError:
        return ""


def gpu_named(name: object) -> tuple[str, int]:
    """The catalog's name of a GPU, and how many a machine of this name has; empty and 0 where nothing says it."""
    text = str(name).strip().replace("_", "-") if isinstance(name, str) else ""
    machine = instance(str(name)) if text else None
    plain = _MADE.sub("", text.lower())
    return machine or (next(filter(None, map(_gpu, (text, plain, f"{plain}gb", plain.rpartition("-")[0]))), ""), 0)


def _gpu(name: str) -> str:
    try:
        return find_gpu(name).name if name else ""
    except AmbiguousNameError as error:
        return min(error.close)  # A100: the smaller card, in a command that shows which it is
    except UnknownNameError:
        return ""


def of_model(
    intro: str, name: object, machine: Machine, *, method: str = "", length: int = 0, batch: int = 0, zero: int = 0
) -> str:
    """Estimate a model by its name, or find out what it is called here."""
    known = model_named(name)
    if not known:
        unknown = isinstance(name, str) and bool(name)
        what = f"`{str(name)[:80]}` is not in the catalog" if unknown else "memcheck finds no model's name in it"
        intro = f"{what}. `memcheck estimate MODEL --gpu NAME` estimates each model that this command lists"
        return command(intro, "memcheck", "list", "models")
    said = [*machine.counted()]
    for flag, value in (("--method", method), ("--zero-stage", zero), ("--micro-batch-size", batch)):
        said += [flag, str(value)] if value else []
    said += ["--sequence-length", str(length)] if length else []
    return command(intro + machine.advice, "memcheck", "estimate", known, *said)


def of_command(intro: str, words: Sequence[str], machine: Machine) -> str:
    """Help text with the command that estimates a launch line, ``memcheck estimate -- ...``.

    ``intro``: the first words of the text. A long launch line is not repeated, but named.
    """
    whole = ["memcheck", "estimate", *machine.flags(), "--", *words]
    if len(shlex.join(whole)) > LONGEST:
        start = ["memcheck", "estimate", *machine.flags(), "--"]
        return f"{intro}{machine.advice}: paste it after `{shlex.join(start)}`"
    return command(intro + machine.advice, *whole)


def of_file(intro: str, path: str, machine: Machine) -> str:
    """Help text with the command that estimates another file. ``intro``: its first words."""
    return command(intro + machine.advice, "memcheck", "estimate", path, *machine.flags())


def of_serving(intro: str, name: object, machine: Machine, *, weights: str, length: int, kv: str, tensor: int) -> str:
    """Judge a plan of inference, which stands in the command."""
    known = model_named(name)
    if not known:
        return of_model(intro, name, machine)
    gpus = machine.gpus_per_node or tensor
    plan = (
        f"memcheck: 1, model: {known}, hardware: {{gpu: {machine.gpu or EXAMPLE}, gpus_per_node: {max(gpus, tensor)}}}"
    )
    plan += f", parallelism: {{tensor: {tensor}}}" if tensor > 1 else ""
    served = f"batch_size: 1, context_length: {length or 4096}, weights: {weights or 'bf16'}"
    served += f", kv_cache: {kv}" if kv else ""
    text = shlex.quote(f"{{{plan}, inference: {{{served}}}}}")
    return f"{intro}{machine.advice}:\n{INDENT}echo {text} | memcheck estimate -"
