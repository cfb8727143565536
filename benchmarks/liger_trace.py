"""Trace steps whose modules run in Liger's kernels: python -m benchmarks.liger_trace [--only REGEX].

Needs the extra ``verify`` and liger-kernel with Triton. Each record of ``data/liger.json`` is a plan. transformers'
model is built on fake tensors and patched by Liger itself, and three steps are followed as ``memcheck
verify`` follows them. Liger allocates in Python; the Triton kernels that would fill what it allocated are not launched.
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

from benchmarks.base_trace import followed, subject_of, trace_again


def main() -> int:
    """Trace the recorded cases again, each in a process of its own, and write what was seen."""
    return trace_again("liger.json", ("liger-kernel", "transformers", "torch"), apart, __doc__)


def apart(plan: dict[str, Any]) -> dict[str, int]:
    """One plan's step in a process of its own: Liger patches modules for good."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(traced, (plan,))


def traced(plan: dict[str, Any]) -> dict[str, int]:
    """The highest bytes of each instant of one plan's step."""
    from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance
    from triton.runtime.jit import JITFunction

    from memcheck.verify.build import step as single
    from memcheck.verify.build.model import build_model
    from memcheck.verify.subject import hugging_face_config
    from memcheck.verify.trace.tracer import Tracer
    from memcheck.verify.trace.world import fake_tensors

    JITFunction.run = lambda *_, **__: None
    subject = subject_of(plan)
    job, config = subject.job, hugging_face_config(subject.plan.model, subject.base_dir)
    wanted = {"rope": "rope" in job.liger, "rms_norm": "rms_norm" in job.liger}
    glu = dict.fromkeys(("swiglu", "geglu"), "glu" in job.liger)

    def patched(*arguments: Any) -> Any:  # as transformers.Trainer does it: the model that it is given
        model = build_model(*arguments)
        _apply_liger_kernel_to_instance(model, fused_linear_cross_entropy=False, cross_entropy=False, **wanted, **glu)
        return model

    single.build_model = patched
    with fake_tensors():
        tracer = Tracer(lambda: False, lambda *_: None, in_place=True)
        parts = single.build_single(job, job.architecture, config, None, tracer)
        return followed(parts, tracer, [])


if __name__ == "__main__":
    sys.exit(main())
