"""Trace the recorded cases again with ``memcheck verify`` and compare: needs the extra ``verify``.

    python -m benchmarks.retrace [--all] [ID...]

Without IDs: the sample below. A case passes when its peak is within 0.1 % of the recorded one; with other versions of
the libraries than the recorded ones, what fails is what moved. torchtitan's cases need one that can be imported.
"""

from __future__ import annotations

import io
import json
import sys
import time

from benchmarks.cases import Case
from benchmarks.traced import cases
from memcheck.errors import MemcheckError
from memcheck.source.load import load_documents
from memcheck.verify.compare import Comparison
from memcheck.verify.observe import compare_all, observe
from memcheck.verify.progress import Progress
from memcheck.verify.request import runnable
from memcheck.verify.subject import Subject, load_subject
from memcheck.verify.types import TRACED

TOLERANCE = 0.001

SAMPLE = """
    llama-3.2-1b.bf16.s4096 llama-3.2-1b.amp.b2.s2048 llama-3.2-1b.amp.single.s512 llama-3.2-1b.fp32.fused.eager.s2048
    llama-3.2-1b.bf16.sgd.b4.s1024 llama-3.2-1b.bf16.adafactor.foreach.s512 llama-3.2-1b.bf16.full.chunked8.s16384
    llama-3.2-1b.bf16.flce.b4.s4096 llama-3.2-1b.bf16.native.s4096 llama-3.2-1b.bf16.hfdrop.s4096
    llama-3.2-1b.bf16.accum4.s4096 llama-3.2-1b.amp.clip.fused.s512 llama-3.2-1b.ddp8.amp.s2048
    llama-3.2-1b.ddp8.view.amp.s2048 llama-3.2-1b.ddp8.zero1.amp.s2048 llama-3.1-8b.bf16.reentrant.b2.s8192
    llama-3.1-8b.lora.s4096 llama-3.1-8b.lora.bf16ad.s4096 llama-3.1-8b.freeze24.s2048 gemma-3-1b.bf16.s4096
    gpt2-xl.bf16.b4.s1024 pythia-1.4b.amp.eager.b2.s2048 opt-1.3b.bf16.b2.s2048 qwen3-30b-a3b.L6.bf16.single.s2048
    mixtral-8x7b.L8.bf16.s2048 gpt-oss-20b.L8.bf16.s2048 deepseek-v2-lite.bf16.s4096 llama-3.1-70b.fsdp8.L8.none.s2048
    llama-3.1-8b.fsdp8.s4096 llama-3.1-8b.hsdp2x8.full.s8192 llama-3.1-8b.fsdp8.purebf16.reducefp32.b2.s2048
    llama-3.1-8b.tp4.nosp.bf16.s4096 llama-3.1-8b.tp8.sp.lossparallel.bf16.s8192 llama-3.1-8b.fsdp4tp2.full.s8192
    pp.llama-3.1-8b.s0of4.1f1b.m8.s4096 pp.llama-3.1-8b.s3of4.gpipe.full.m8.s2048
    pp.llama-3.1-8b.s2of4.fsdp8.full.m8.s4096
""".split()  # noqa: SIM905  # a list of quoted ids is harder to read
"""Every kind of model, precision, loss, optimizer, recompute, adapter, freeze and layout that is traced."""


def recorded() -> dict[str, Case]:
    """The last record of each id: those with tied embeddings, as transformers ties them, come after the others."""
    return {case.id: case for case in cases() if isinstance(case, Case)}


def retrace(case: Case) -> Comparison:
    """Trace one case.

    Raises:
        MemcheckError: it cannot be priced or run.
    """
    (document,) = load_documents(f"{case.id}.yaml", json.dumps(case.plan).encode())
    subject = load_subject(document)
    if not isinstance(subject, Subject):
        raise MemcheckError("; ".join(f.message for f in subject.findings))
    request = runnable(subject)
    if request.replaced:
        raise MemcheckError("; ".join(f"cannot be run: {r.key} {r.asked} ({r.why})" for r in request.replaced))
    ranks = () if case.pipeline_rank is None else (case.pipeline_rank,)
    observation = observe(request, TRACED, Progress(io.StringIO(), terminal=False), ranks)
    return compare_all(request, observation)[0]


def main(arguments: list[str]) -> int:
    """Trace, print one line per case, and say how many are as they were."""
    known = recorded()
    chosen = [a for a in arguments if not a.startswith("-")] or (list(known) if "--all" in arguments else SAMPLE)
    failed, worst = [], 0.0
    for name in chosen:
        case, start = known[name], time.monotonic()
        try:
            found = retrace(case)
        except MemcheckError as error:
            print(f"{name:<56} {error}", flush=True)
            failed.append(name)
            continue
        moved = found.observed_bytes / case.truth_bytes - 1
        worst = max(worst, abs(moved))
        failed += [name] if abs(moved) > TOLERANCE else []
        print(
            f"{name:<56} {found.observed_bytes / 2**20:>11.3f} MiB, recorded {case.truth_bytes / 2**20:>11.3f}"
            f" {moved:+.4%}; predicted {found.error:+.3%}; {time.monotonic() - start:.0f} s",
            flush=True,
        )
    print(f"{len(chosen) - len(failed)} of {len(chosen)} as recorded, within {TOLERANCE:.1%}; worst {worst:.4%}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
