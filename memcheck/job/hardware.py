"""From ``hardware.gpu`` to one accelerator with all its figures."""

from __future__ import annotations

from memcheck.catalog.gpus import find_gpu
from memcheck.catalog.names import AmbiguousNameError, UnknownNameError
from memcheck.catalog.types import Gpu
from memcheck.job.errors import JobProblem, ResolutionError
from memcheck.plan import types as plan_types

GIB = 2**30
_RATES = ("bf16_tflops", "fp16_tflops", "fp8_tflops", "hbm_gbs", "nvlink_gbs")


def resolve_gpu(stated: plan_types.GpuSpec) -> Gpu:
    """The catalog's record, with what the plan states in its place.

    A GPU that the catalog does not know is fine as long as the plan gives its memory.

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
    changed: dict[str, object] = {r: getattr(stated, r) for r in _RATES if getattr(stated, r) is not None}
    if stated.memory_gib is not None:
        changed["memory_bytes"] = round(stated.memory_gib * GIB)
    if changed:
        gpu = gpu._replace(from_catalog=False, source="the plan", **changed)  # type: ignore[arg-type]
    return gpu


def _counted(name: str) -> str:
    """What to write for ``8xH100`` and ``H100:8``; empty for a name without a number of GPUs."""
    import re

    ahead = re.fullmatch(r"(?P<count>[0-9]{1,4}) ?[x*] ?(?P<card>.+)", name)
    found = ahead or re.fullmatch(r"(?P<card>.+?) ?[x:*] ?(?P<count>[0-9]{1,4})", name)
    if found is None:
        return ""
    card, count = found["card"], found["count"]
    try:
        known = find_gpu(card).name
    except AmbiguousNameError as error:
        known = " or ".join(error.close)
    except UnknownNameError:
        return ""
    return f"write `gpu: {known}` and the number as `gpus_per_node: {count}`"


def named_card(stated: plan_types.GpuSpec) -> Gpu:
    """The catalog's card that is named; of several with that name, the one whose memory is nearest to what is stated.

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
