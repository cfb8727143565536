"""Trace adapters over a quantised base: python -m benchmarks.base_trace [--only REGEX] (needs the extra, bitsandbytes).

Each record of ``data/base.json`` is a plan. transformers' model is built on fake tensors, its linear layers become
bitsandbytes' (``base_kernels.py``), peft adapts them, and three steps are followed as ``memcheck verify`` follows them;
what is recorded are the highest bytes of each instant.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import groupby
from typing import Any, NamedTuple

from benchmarks.cases import HERE, load

INSTANTS = ("init", "forward", "loss", "backward", "optimizer")


def main() -> int:
    """Trace the recorded cases again, and write what was seen."""
    return trace_again("base.json", ("bitsandbytes", "peft", "transformers", "torch"), traced, __doc__)


def trace_again(
    name: str, packages: tuple[str, ...], traced: Callable[[dict[str, Any]], dict[str, int]], doc: str | None
) -> int:
    """Trace the cases of a file again, those whose id matches ``--only``, and write what was seen after each.

    ``traced``: the highest bytes of each instant of one plan's step.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--only", default="", help="cases whose id matches")
    only = parser.parse_args().only
    data = load(name)
    data["source"] = "traces of " + ", ".join(f"{each} {version(each).partition('+')[0]}" for each in packages)
    for record in data["cases"]:
        if not re.search(only, record["id"]):
            continue
        record["instants_bytes"] = traced(record["plan"])
        print(record["id"], record["instants_bytes"], flush=True)
        with open(os.path.join(HERE, "data", name), "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
    return 0


def followed(parts: Any, tracer: Any, held: list[Any]) -> dict[str, int]:
    """Follow three steps, as ``memcheck verify`` does. ``held``: tensors that rest beside the model and its inputs."""
    from memcheck.verify.observe import Progress
    from memcheck.verify.trace.run import _steps, resting_tensors

    tracer.follow(parts.inner)
    tracer.hold([resting_tensors(parts.inner), parts.inputs, *held])
    instants, _ = _steps(tracer, parts, Progress(sys.stderr, terminal=False))
    return {instant.name: instant.allocated_bytes for instant in instants if instant.name in INSTANTS}


def subject_of(plan: dict[str, Any]) -> Any:
    """A plan with its job, as ``memcheck verify`` reads it."""
    from memcheck.plan.read import load_documents
    from memcheck.verify.subject import Subject, load_subject

    (document,) = load_documents("plan.yaml", json.dumps(plan).encode())
    subject = load_subject(document)
    if not isinstance(subject, Subject):
        sys.exit("; ".join(f.message for f in subject.findings))
    return subject


def traced(plan: dict[str, Any]) -> dict[str, int]:
    """The highest bytes of each instant of one plan's step."""
    return run(plan)[0]


class Asked(NamedTuple):
    """Every block that came and went in three steps: see ``memcheck.verify.replay.runs.AllocationSequence``."""

    events: list[tuple[int, int, int]]
    steps: list[int]
    phases: list[tuple[int, str]]


def run(plan: dict[str, Any]) -> tuple[dict[str, int], Asked]:
    """Likewise, and every block that came and went."""
    import torch

    from benchmarks import base_kernels
    from memcheck.verify.build import step as single
    from memcheck.verify.build.step import build_single
    from memcheck.verify.build.tensors import DTYPES
    from memcheck.verify.build.trained import adapt
    from memcheck.verify.replay.runs import FREED, AllocationSequence
    from memcheck.verify.subject import hugging_face_config
    from memcheck.verify.trace.tracer import Tracer
    from memcheck.verify.trace.world import fake_tensors

    subject = subject_of(plan)
    job, config = subject.job, hugging_face_config(subject.plan.model, subject.base_dir)
    beside: list[torch.Tensor] = []

    def adapted(model: Any, job: Any, lora: Any) -> Any:
        compute = DTYPES[job.recipe.compute]
        beside.extend(base_kernels.quantised(model, job.base_format, compute))
        if job.option("quantize_experts", default=False):
            beside.extend(base_kernels.quantised_experts(model, job.base_format, compute))
        if job.prepares_kbit:
            base_kernels.prepared(model)
        for parameter in model.parameters():
            parameter.requires_grad_(requires_grad=False)
        return adapt(model, job, base_kernels.with_whole_paths(model, lora))

    base_kernels.as_on_cuda()
    with fake_tensors():
        tracer = Tracer(lambda: False, lambda *_: None, in_place=True)
        asked = tracer.account.sequence = AllocationSequence()
        single.adapt = adapted
        try:
            parts = build_single(job, job.architecture, config, None, tracer)
        finally:
            single.adapt = adapt
        instants = followed(parts, tracer, beside)
        # before the model itself goes; tensors that are freed together are so in no order
        together = groupby(asked.events, key=lambda event: event[1] == FREED)
        events = [event for freed, group in together for event in (sorted(group) if freed else group)]
        return instants, Asked(events, asked.steps, asked.phases)


if __name__ == "__main__":
    sys.exit(main())
