"""From the names in a plan to one accelerator and to architectures, with every problem at its place."""

from __future__ import annotations

from memcheck.catalog.config_file import ConfigFileError
from memcheck.catalog.gpus import find_gpu
from memcheck.catalog.names import AmbiguousNameError, Gpu, UnknownNameError
from memcheck.families.registry import architecture_of
from memcheck.job.defaults import JobProblem, ResolutionError
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types

GIB = 2**30
_RATES = ("bf16_tflops", "fp16_tflops", "fp8_tflops", "hbm_gbs", "nvlink_gbs")


def resolve_gpu(stated: plan_types.GpuSpec) -> Gpu:
    """Return the catalog's record of a GPU; numbers that the plan states replace the catalog's.

    A GPU that the catalog does not know is accepted if the plan states its memory.

    Raises:
        ResolutionError: the name is unknown, or that of several cards, and ``memory_gib`` is not given.
    """
    try:
        gpu: Gpu | None = named_card(stated)
    except UnknownNameError as error:
        if stated.memory_gib is None:
            help = _counted(stated.name) or error.help
            raise ResolutionError((JobProblem("gpu", "/hardware/gpu", error.message, help=help),)) from None
        gpu = None
    if gpu is None:
        gpu = Gpu(name=stated.name, memory_bytes=0, source="the plan")
    changed: dict[str, object] = {rate: getattr(stated, rate) for rate in _RATES if getattr(stated, rate) is not None}
    if stated.memory_gib is not None:
        changed["memory_bytes"] = round(stated.memory_gib * GIB)
    if changed:
        gpu = gpu._replace(from_catalog=False, source="the plan", **changed)  # type: ignore[arg-type]
    return gpu


def _counted(name: str) -> str:
    """Say what to write in place of ``8xH100`` or ``H100:8``; empty for a name without a number of GPUs."""
    import re

    count_first = re.fullmatch(r"(?P<count>[0-9]{1,4}) ?[x*] ?(?P<card>.+)", name)
    match = count_first or re.fullmatch(r"(?P<card>.+?) ?[x:*] ?(?P<count>[0-9]{1,4})", name)
    if match is None:
        return ""
    card, count = match["card"], match["count"]
    try:
        known = find_gpu(card).name
    except AmbiguousNameError as error:
        known = " or ".join(error.close)
    except UnknownNameError:
        return ""
    return f"write `gpu: {known}` and the number as `gpus_per_node: {count}`"


def named_card(stated: plan_types.GpuSpec) -> Gpu:
    """Return the catalog's card of that name; of several, the one whose memory is nearest to the stated memory.

    Raises:
        UnknownNameError: there is none, or there are several and no memory is stated.
    """
    try:
        return find_gpu(stated.name)
    except AmbiguousNameError as error:
        if stated.memory_gib is None:
            raise
        wanted = stated.memory_gib * GIB
        return min((find_gpu(name) for name in error.close), key=lambda card: abs(card.memory_bytes - wanted))


def resolve_model(model: plan_types.ModelSpec, *, base_dir: str) -> Architecture | Rough:
    """Return the architecture that the plan names; ``base_dir`` is where relative config paths start.

    Raises:
        ResolutionError: unknown name, unreadable config.json, or a configuration that no family reads.
    """
    if model == plan_types.ModelSpec(overrides=model.overrides):
        raise ResolutionError(
            (JobProblem("missing", "/model", "the plan names no model", help="write `model: llama-3.1-8b`"),)
        )
    try:
        return architecture_of(model, base_dir)
    except UnknownNameError as error:
        raise ResolutionError((JobProblem("model", _name_pointer(model), error.message, help=error.help),)) from None
    except ConfigFileError as error:
        raise ResolutionError((JobProblem("config", "/model/config", error.message, help=error.help),)) from None
    except ArchitectureError as error:
        pointer = _key_pointer(error.key, model)
        kind = "architecture" if error.key in {"", "model_type"} else "config-key"
        raise ResolutionError((JobProblem(kind, pointer, error.message, help=error.help),)) from None


def _name_pointer(model: plan_types.ModelSpec) -> str:
    return "/model" if model.overrides is None else "/model/name"


def _key_pointer(key: str, model: plan_types.ModelSpec) -> str:
    """Return the JSON pointer to a configuration key in the plan, or to what brought the configuration."""
    head = key.split(".", maxsplit=1)[0]
    if model.overrides and head in model.overrides:
        return "/model/overrides/" + key.replace(".", "/")
    if model.architecture is not None:
        where = "/model/architecture"
        return where + "/" + key.replace(".", "/") if head in model.architecture else where
    return "/model/config" if model.config is not None else _name_pointer(model)


PLACE = "/training/teacher"


def resolve_teacher(stated: plan_types.TeacherSpec, base_dir: str) -> Architecture | Rough:
    """Return the architecture of the teacher of a distillation.

    Raises:
        ResolutionError: like :func:`resolve_model`, with pointers under ``/training/teacher``.
    """
    try:
        return resolve_model(stated.model, base_dir=base_dir)
    except ResolutionError as error:
        problems = tuple(problem._replace(pointer=PLACE + problem.pointer) for problem in error.problems)
        raise ResolutionError(problems) from None
