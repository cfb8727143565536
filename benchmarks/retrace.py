"""Trace the recorded cases again with ``memcheck verify`` and compare: needs the extra ``verify``.

    python -m benchmarks.retrace [--all] [ID...]     # trace, and write what was seen to retraced.json and RETRACED.md
    python -m benchmarks.retrace --check             # whether those are of today's cases and predictions

Without IDs: the sample below. A case passes when its peak is within 0.1 % of the recorded one; with other versions of
the libraries than the recorded ones, what fails is what moved, and nothing is written. torchtitan's cases need one that
can be imported. Models with tied embeddings come twice in the recorded traces, which first did not tie them: the later
record, of the model as transformers builds it, is the one that is traced again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benchmarks.asked import request_of, trace_of
from benchmarks.cases import HERE, Case, kept
from benchmarks.score import Failed, score
from benchmarks.traced import cases
from memcheck.errors import MemcheckError
from memcheck.verify.compare import RankComparison
from memcheck.verify.observe import compare_all, versions

TOLERANCE = 0.001
MIB = 2**20
TABLE = os.path.join(HERE, "RETRACED.md")
FILE = os.path.join(HERE, "retraced.json")

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


def retrace(case: Case) -> RankComparison:
    """Trace one case.

    Raises:
        MemcheckError: it cannot be priced or run.
    """
    request = request_of(case.id, case.plan)
    if request.replaced:
        raise MemcheckError("; ".join(f"cannot be run: {r.key} {r.asked} ({r.why})" for r in request.replaced))
    ranks = () if case.pipeline_rank is None else (case.pipeline_rank,)
    return compare_all(request, trace_of(request, *ranks))[0]


def seen(case: Case) -> dict[str, Any]:
    """What one case's trace shows, for the file."""
    start = time.monotonic()
    found = retrace(case)
    return {
        "observed_bytes": found.observed_bytes,
        "recorded_bytes": case.truth_bytes,
        "predicted_bytes": found.predicted_bytes,
        "operators": found.observed.operators,
        "seconds": round(time.monotonic() - start),
        "versions": {k: v for k, v in versions().items() if k in ("torch", "transformers", "peft")},
    }


def moved(row: dict[str, Any]) -> float:
    """Traced again over recorded, minus one."""
    return float(row["observed_bytes"] / row["recorded_bytes"] - 1)


def error(row: dict[str, Any]) -> float:
    """Predicted over traced again, minus one."""
    return float(row["predicted_bytes"] / row["observed_bytes"] - 1)


def read() -> dict[str, dict[str, Any]]:
    """What was seen so far."""
    found: dict[str, dict[str, Any]] = kept(FILE)
    return found


def write(rows: dict[str, dict[str, Any]]) -> None:
    """Keep what was seen, in the order of the cases, and its table."""
    ordered = {name: rows[name] for name in recorded() if name in rows}
    with open(FILE, "w", encoding="utf-8") as file:
        json.dump(ordered, file, indent=1)
        file.write("\n")
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(table(ordered))


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The page."""
    known = recorded()
    worst = max(abs(moved(r)) for r in rows.values())
    off = max(abs(error(r)) for r in rows.values())
    lines = [
        "# Recorded traces, traced again",
        "",
        "<!-- Written by `python -m benchmarks.retrace`; its --check compares with today's cases and predictions. -->",
        "",
        f"`memcheck verify` traced {len(rows)} recorded cases again, of {len(known)}. Another program recorded them.",
        f"Furthest from the record: {worst:.3%}; furthest predicted: {off:.3%}.",
        "",
        "| case | recorded (MiB) | traced again (MiB) | moved | predicted | operators | torch |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    lines += [
        f"| {name} | {r['recorded_bytes'] / MIB:,.3f} | {r['observed_bytes'] / MIB:,.3f} | {moved(r):+.4%}"
        f" | {error(r):+.3%} | {r['operators']:,} | {r['versions']['torch']} |"
        for name, r in rows.items()
    ]
    return "\n".join(lines) + "\n"


def stale() -> list[str]:
    """Why the file and its table are not of today; nothing when they are."""
    rows, known = read(), recorded()
    found = [f"{name}: no such case" for name in rows if name not in known]
    if not rows:
        found.append("no case was traced again")
    for name in rows.keys() & known.keys():
        row, case = rows[name], known[name]
        if row["recorded_bytes"] != case.truth_bytes:
            found.append(f"{name}: the recorded peak is another one")
        if abs(moved(row)) > TOLERANCE:
            found.append(f"{name}: {moved(row):+.3%} from the recorded peak")
        today = score(case)
        if isinstance(today, Failed) or abs(today.predicted_bytes / row["predicted_bytes"] - 1) > TOLERANCE:
            found.append(f"{name}: predicted otherwise today than when it was traced again")
    with open(TABLE, encoding="utf-8") as file:
        if file.read() != table(rows):
            found.append("RETRACED.md is not the table of retraced.json")
    return found


def main(arguments: list[str]) -> int:
    """Trace, print one line per case, and say how many are as they were."""
    if "--check" in arguments:
        found = stale()
        print("\n".join(found) or f"{len(read())} cases traced again: as recorded, and as predicted today")
        return bool(found)
    known = recorded()
    chosen = [a for a in arguments if not a.startswith("-")] or (list(known) if "--all" in arguments else SAMPLE)
    failed, rows = [], read()
    for name in chosen:
        try:
            row = seen(known[name])
        except MemcheckError as problem:
            print(f"{name:<56} {problem}", flush=True)
            failed.append(name)
            continue
        print(
            f"{name:<56} {row['observed_bytes'] / MIB:>11.3f} MiB, recorded {row['recorded_bytes'] / MIB:>11.3f}"
            f" {moved(row):+.4%}; predicted {error(row):+.3%}; {row['seconds']} s",
            flush=True,
        )
        if abs(moved(row)) > TOLERANCE:
            failed.append(name)
            continue
        rows[name] = row
        write(rows)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} as recorded, within {TOLERANCE:.1%}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
