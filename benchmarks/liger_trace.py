"""Trace steps whose modules run in Liger's kernels: python -m benchmarks.liger_trace [--only REGEX].

Needs the extra ``verify`` and liger-kernel with Triton. Each record of ``data/liger.json`` is a plan. transformers'
model is built on fake tensors and patched by Liger itself, and three steps are followed as ``memcheck
verify`` follows them. Liger allocates in Python; the Triton kernels that would fill what it allocated are not launched.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
from contextlib import ExitStack
from typing import Any

from benchmarks.cases import HERE, load

PATH = os.path.join(HERE, "data", "liger.json")
INSTANTS = ("init", "forward", "loss", "backward", "optimizer")


def main() -> int:
    """Trace the recorded cases again, each in a process of its own, and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose id matches")
    only = parser.parse_args().only
    from importlib.metadata import version

    data = load("liger.json")
    data["source"] = "traces of " + ", ".join(
        f"{name} {version(name).partition('+')[0]}" for name in ("liger-kernel", "transformers", "torch")
    )
    for record in data["cases"]:
        if not re.search(only, record["id"]):
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # Liger patches classes for good
            record["instants_bytes"] = pool.apply(traced, (record["plan"],))
        print(record["id"], record["instants_bytes"], flush=True)
        with open(PATH, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
    return 0


def traced(plan: dict[str, Any]) -> dict[str, int]:
    """The highest bytes of each instant of one plan's step."""
    from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance
    from triton.runtime.jit import JITFunction

    from memcheck.plan.load import load_documents
    from memcheck.verify.build import single
    from memcheck.verify.build.model import build_model
    from memcheck.verify.progress import Progress
    from memcheck.verify.subject import Subject, hugging_face_config, load_subject
    from memcheck.verify.trace.picture import resting_tensors
    from memcheck.verify.trace.run import _steps
    from memcheck.verify.trace.tracer import Tracer
    from memcheck.verify.trace.world import fake_tensors

    JITFunction.run = lambda *_, **__: None
    (document,) = load_documents("plan.yaml", json.dumps(plan).encode())
    subject = load_subject(document)
    if not isinstance(subject, Subject):
        sys.exit("; ".join(f.message for f in subject.findings))
    job: Any = subject.job
    config = hugging_face_config(subject.plan.model, subject.base_dir)
    wanted = {"rope": "rope" in job.liger, "rms_norm": "rms_norm" in job.liger}
    glu = dict.fromkeys(("swiglu", "geglu"), "glu" in job.liger)

    def patched(*arguments: Any) -> Any:  # as transformers.Trainer does it: the model that it is given
        model = build_model(*arguments)
        _apply_liger_kernel_to_instance(model, fused_linear_cross_entropy=False, cross_entropy=False, **wanted, **glu)
        return model

    single.build_model = patched
    progress = Progress(sys.stderr, terminal=False)
    with ExitStack() as stack:
        stack.enter_context(fake_tensors())
        tracer = Tracer(lambda: False, lambda *_: None, in_place=True)
        parts = single.build_single(job, job.architecture, config, None, tracer)
        tracer.follow(parts.inner)
        tracer.hold([resting_tensors(parts.inner), parts.inputs])
        instants, _ = _steps(tracer, parts, progress)
    return {instant.name: instant.allocated_bytes for instant in instants if instant.name in INSTANTS}


if __name__ == "__main__":
    sys.exit(main())
