"""The plan gives a GPU of the catalog more than the catalog knows it to have.

## What it does

Reports figures under `hardware.gpu` that exceed those of the catalog's GPU of that name by more than 0.5 %: an error
for `memory_gib`, a warning for rates, which decide no verdict. Lower figures make a stricter plan and are left alone,
and so is what an option of the command line changed.

## Why it matters

The name says which card the job runs on, and the verdict uses the figure that the plan states. A plan that writes
`memory_gib: 100000` fits every time, and fails on the card.

## Example

    hardware: {gpu: {name: h100-80gb, memory_gib: 94}}

## How to fix

Leave the figure out, or name the GPU that has it (`memcheck list gpus`). A GPU that the catalog lacks takes a name of
its own, which a reader of the plan can ask about.

## Options

None.

## Source

The catalog (`memcheck list gpus`): its usable memory is the lowest that was read on real machines, each with its
source, and 0.5 % leaves room for a driver that takes less.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.catalog.names import UnknownNameError
from memcheck.job.lookup import named_card
from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import foreign_card

TOLERANCE = 0.005
GIB = 2**30
RATES = {
    "bf16_tflops": "TFLOPS in bf16",
    "fp16_tflops": "TFLOPS in fp16",
    "fp8_tflops": "TFLOPS in fp8",
    "hbm_gbs": "GB/s of memory bandwidth",
    "nvlink_gbs": "GB/s of NVLink",
}


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for each figure that is more than the catalog's."""
    if context.resolved.gpu.from_catalog:
        return
    stated = context.plan.hardware.gpu
    try:
        known = named_card(stated)
    except UnknownNameError:
        return
    figures = [("memory_gib", "GiB of usable memory", known.memory_bytes / GIB)]
    figures += [(key, unit, getattr(known, key)) for key, unit in RATES.items() if getattr(known, key) is not None]
    for key, unit, figure in figures:
        pointer = f"/hardware/gpu/{key}"
        written = getattr(stated, key)
        if written is None or written <= figure * (1 + TOLERANCE) or context.document.is_changed(pointer):
            continue
        yield RULE.finding(
            context,
            f"{known.name} has {_number(figure)} {unit}, and the plan says {_number(written)}",
            pointer,
            help=f"leave `{key}` out, or name the GPU that has it",
            related=(("the GPU", "/hardware/gpu/name"),),
            severity="" if key == "memory_gib" else "warning",
        )


def _number(figure: float) -> str:
    return f"{figure:,.2f}".rstrip("0").rstrip(".")


RULE = Rule(
    code="MEM601",
    name="overridden-gpu",
    severity="error",
    summary="The plan gives a GPU of the catalog more than the catalog knows it to have.",
    doc=__doc__,
    check=check,
    when=foreign_card,
)
