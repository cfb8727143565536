"""Score every known case: python -m benchmarks.accuracy [--check | --write] [--only REGEX] [--verbose]

Without options: print the figures per group, and of published jobs that ran or died how many the gate judges wrongly.
``--write`` regenerates what follows from the cases: RESULTS.md, peers.md and the plots beside this file,
``recorded.json``, ``recorded_outcomes.json``, the table in README.md and ``memcheck/memory/data/residuals.json``.
``--check`` fails when a group or an error rate is worse than recorded or when one of those files is stale.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from typing import Any, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)  # so that a checkout is measured, not what is installed

from benchmarks import (  # noqa: E402
    base_cases,
    deepspeed_cases,
    drawn,
    job_cases,
    measured,
    objective_cases,
    outcomes,
    peers,
    picture_cases,
    plots,
    replayed,
    report,
    traced,
)
from benchmarks.cases import HERE, Case, Reading, Unpriced, load  # noqa: E402
from benchmarks.megatron_arguments import ranks_of  # noqa: E402
from benchmarks.score import Failed, Row, as_traced, priced, rank_of, resolved, score  # noqa: E402
from benchmarks.summary import (  # noqa: E402
    Figures,
    Kept,
    as_json,
    by_group,
    figures,
    in_halves,
    leave_one_family_out,
    leave_one_source_out,
    tables,
)
from memcheck.catalog.names import find_gpu  # noqa: E402
from memcheck.errors import MemcheckError  # noqa: E402
from memcheck.frameworks.torch.data_parallel import uses_flat_parameters  # noqa: E402
from memcheck.job.types import Layout, TrainingJob  # noqa: E402
from memcheck.memory import allocator as stored_residuals  # noqa: E402
from memcheck.memory.allocator import allocator_group, blocks_group, optimizer_group, remainder_group, stuck_group  # noqa: E402
from memcheck.memory.estimate import estimate  # noqa: E402
from memcheck.memory.overhead import ProcessGroup, context_terms, group_bytes, surroundings  # noqa: E402  # noqa: E402
from memcheck.models.types import Architecture  # noqa: E402

RESIDUALS = os.path.join(ROOT, "memcheck", "memory", "data", "residuals.json")
RECORDED = os.path.join(HERE, "recorded.json")
RECORDED_OUTCOMES = os.path.join(HERE, "recorded_outcomes.json")
README = os.path.join(ROOT, "README.md")
GPUS = {"a100": "a100-80gb", "h100": "h100-80gb", "gb200": "gb200"}
WORSE = 0.0005
"""How much a figure may grow before it counts as worse: 0.05 percentage points."""


class Run(NamedTuple):
    """All cases, priced."""

    rows: list[Row]
    failed: list[Failed]
    unpriced: list[Unpriced]
    verdicts: list[outcomes.Verdict]
    apart: list[tuple[str, Row]]
    """Published rows of kinds that something is not known of yet, each with what: in no figure, and in no table."""


def run(only: str = "") -> Run:
    """Price every case whose group and id match."""
    rows: list[Row] = []
    failed: list[Failed] = []
    unpriced: list[Unpriced] = []

    def sort(found: Row | Failed) -> None:
        if isinstance(found, Row):
            rows.append(found)
        else:
            failed.append(found)

    retraced = [*drawn.cases(), *deepspeed_cases.cases(), *objective_cases.cases(), *base_cases.cases()]
    retraced += [*picture_cases.cases(), *job_cases.cases()]
    for case in [*traced.cases(), *measured.cases(), *outcomes.cases(), *retraced]:
        if isinstance(case, Unpriced):
            unpriced.append(case)
        elif re.search(only, f"{case.group} {case.id}"):
            sort(score(case))
    golden, without = measured.golden()
    for case, facts, gpu in golden:
        if re.search(only, f"{case.group} {case.id}"):
            sort(_golden(case, facts, gpu))
    published = [job for job in outcomes.outcomes() if re.search(only, f"outcomes {job.kind} {job.id}")]
    apart = []
    for what, case in measured.apart():
        if re.search(only, f"{case.group} {case.id}"):
            found = score(case)
            if isinstance(found, Row):
                apart.append((what, found))
            else:
                failed.append(found)
    return Run(rows, failed, unpriced + without, [outcomes.judged(job) for job in published], apart)


def _golden(case: Case, facts: dict[str, Any], gpu: str) -> Row | Failed:
    try:
        job, ranks = ranks_of(facts, gpu)
    except MemcheckError as error:
        return Failed(case, str(error))
    # TensorBoard values are written by the last rank
    return priced(case, job, find_gpu(GPUS[gpu]), ranks[-1])


def kept() -> list[Kept]:
    """What the allocator held in every replayed step, with and without expandable segments.

    Of a step that is highest in the optimizer, what cannot be returned tells of the moment that fails first.
    """
    jobs = {}
    for case in replayed.steps().values():
        job, gpu, overhead = resolved(case.plan)
        job = as_traced(case, job)
        if isinstance(job, TrainingJob) and isinstance(job.architecture, Architecture):
            rank = rank_of(case, estimate(job._replace(expandable_segments=False), gpu, overhead))
            jobs[case.id] = (job.architecture.model_type, job, rank)
    found, apart = [], replayed.held_out()
    for step in load("allocator.json")["steps"]:
        if step["id"].startswith("serving."):
            found.append(Kept(step["id"], "serving", "serving", *step["default"], 0.0, 0.0, "serving", "serving"))
        if step["id"] not in jobs or step["id"] in apart:
            continue
        family, job, rank = jobs[step["id"]]
        peak, before = rank.peak.allocated_bytes, rank.pools.before
        pools = sum(step["streams"]) / step["allocated"] if "streams" in step else 1.0
        for setting in ("default", "expandable"):
            under = job._replace(expandable_segments=setting == "expandable")
            reserved, tight = step[setting]
            name, group = family.split("_")[0].rstrip("0123456789."), allocator_group(under)
            of = [stuck_group(group), remainder_group(under), blocks_group(under)]
            live = peak
            if before and "fails" not in step:
                continue
            if before and step["fails"][setting] == "optimizer":
                of = [optimizer_group(group), "", ""]
            elif before:
                live = before
            left = (rank.pools.unfilled or 0, rank.pools.unfilled_most) if setting == "default" else (0, 0)
            if of[0] == optimizer_group(group):
                left = left[1], left[1]
            sizes = reserved / pools, tight * peak / live, *(size / live for size in left)
            held = optimizer_group(group) if before else group
            if uses_flat_parameters(job):
                held = ""  # few layers were replayed, each large beside the step; readings say what is held
            found.append(Kept(step["id"], name, group, *sizes, held, *of, block=rank.pools.largest / live))
    return found


def outside() -> list[Reading]:
    """Readings of what lies outside the allocator."""
    found = []
    for reading in load("measured.json")["outside"]:
        gpu, measured_bytes, kind = find_gpu(reading["gpu"]), reading["bytes"], "communicators"
        if "group" in reading:
            predicted = group_bytes(ProcessGroup(**reading["group"]), gpu) + reading.get("then_bytes", 0)
        elif "layout" in reading:
            around = surroundings(_bare_job(Layout(**reading["layout"])), gpu).outside
            predicted = around.communicators
            measured_bytes -= around.total - predicted
        else:
            kind = "context, read" if gpu.context_read else "context"
            predicted = sum(size for _, size, _ in context_terms(gpu))
        found.append(Reading(kind, reading["what"], predicted, measured_bytes, reading["source"]))
    return found


def ratios(readings: list[Reading]) -> list[tuple[str, float]]:
    """Each kind of reading, measured over predicted."""
    return [(each.kind, each.measured_bytes / each.predicted_bytes) for each in readings]


def _bare_job(layout: Layout) -> TrainingJob:
    plan = {
        "memcheck": 1,
        "model": "llama-3.2-1b",
        "hardware": {"gpu": "h100-80gb"},
        "training": {"framework": "torchtitan", "micro_batch_size": 1, "sequence_length": 8},
    }
    job, _, _ = resolved(plan)
    if not isinstance(job, TrainingJob):
        raise TypeError
    return job._replace(layout=layout)


def record(groups: dict[str, Figures]) -> dict[str, Any]:
    """What ``--check`` compares with."""
    return {
        name: {
            "n": f.n,
            "median": round(f.median, 5),
            "p95": round(f.p95, 5),
            "worst": round(f.worst, 5),
            "unsafe": f.unsafe,
            "inside": f.inside,
            "moments": [f.agree, f.phases],
        }
        for name, f in groups.items()
    }


def regressions(groups: dict[str, Figures], rates: dict[str, outcomes.Rates]) -> list[str]:
    """Groups and error rates that are worse than recorded."""
    with open(RECORDED, encoding="utf-8") as file:
        before = json.load(file)
    found = []
    for name, old in before.items():
        now = groups.get(name)
        if now is None or now.n < old["n"]:
            found.append(f"{name}: {old['n']} cases recorded, {now.n if now else 0} priced")
            continue
        for what, value in (("median", now.median), ("p95", now.p95), ("worst", now.worst)):
            if value > old[what] + WORSE:
                found.append(f"{name}: {what} {value:.2%}, recorded {old[what]:.2%}")
        if now.unsafe > old["unsafe"]:
            found.append(f"{name}: {now.unsafe} truths above the interval, recorded {old['unsafe']}")
        if now.phases - now.agree > old["moments"][1] - old["moments"][0]:
            found.append(f"{name}: {now.agree} of {now.phases} moments agree, recorded {old['moments'][0]}")
    with open(RECORDED_OUTCOMES, encoding="utf-8") as file:
        return found + outcomes.regressions(rates, json.load(file), WORSE)


def written(done: Run) -> dict[str, str]:
    """Every generated file and its text."""
    groups = {name: figures(rows) for name, rows in by_group(done.rows).items()}
    steps, readings = kept(), outside()
    halves = in_halves(done.rows, steps, ratios(readings))
    left_out = leave_one_family_out(done.rows, steps, ratios(readings))
    sources = leave_one_source_out(done.rows, steps, ratios(readings))
    table = peers.table()
    return {
        os.path.join(HERE, "RESULTS.md"): report.results(done, groups, left_out, sources, halves, readings),
        os.path.join(HERE, "peers.md"): peers.markdown(table),
        os.path.join(HERE, "predicted.svg"): plots.predicted_against_truth(done.rows),
        os.path.join(HERE, "errors.svg"): plots.errors_by_group(by_group(done.rows)),
        RECORDED: json.dumps(record(groups), indent=1) + "\n",
        RECORDED_OUTCOMES: json.dumps(outcomes.record(outcomes.by_kind(done.verdicts)), indent=1) + "\n",
        README: outcomes.in_readme(_text(README), done.verdicts),
    }


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def made_residuals(done: Run) -> str:
    """The residuals file. Many traces of one kind say no more of other people's jobs than a few: those on pictures and
    of whole jobs, which were made by the dozen, would narrow the intervals of published ones.
    """
    rows = [row for row in done.rows if row.case.group not in (picture_cases.GROUP, job_cases.GROUP)]
    return json.dumps(as_json(tables(rows, kept(), ratios(outside()))), indent=1) + "\n"


def stale(files: dict[str, str]) -> list[str]:
    """Files whose text is not what the cases give."""
    found = []
    for path, text in files.items():
        try:
            with open(path, encoding="utf-8") as file:
                same = file.read() == text
        except FileNotFoundError:
            same = False
        if not same:
            found.append(os.path.relpath(path, ROOT))
    return found


def write(only: str = "") -> Run:
    """Regenerate everything: the residuals first, because intervals and allocator shares come from them."""
    text = made_residuals(run(only))
    with open(RESIDUALS, "w", encoding="utf-8") as file:
        file.write(text)
    stored_residuals.forget()
    done = run(only)
    for path, content in written(done).items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    return done


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail when a group is worse than recorded")
    parser.add_argument("--write", action="store_true", help="regenerate the files")
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose group and id match")
    parser.add_argument("--verbose", action="store_true", help="also print every case")
    options = parser.parse_args(argv)
    done = write() if options.write else run(options.only)
    groups = {name: figures(rows) for name, rows in by_group(done.rows).items()}
    if options.verbose:
        for row in sorted(done.rows, key=lambda r: (r.case.group, abs(r.error))):
            print(report.line(row))
    for failure in done.failed:
        print(f"not priced: {failure.case.group} {failure.case.id}: {failure.problem}")
    for name, found in groups.items():
        print(report.summary(name, found))
    rates = outcomes.by_kind(done.verdicts)
    for kind, judged in rates.items():
        print(outcomes.line(kind, judged))
    if options.verbose:
        for verdict in done.verdicts:
            if verdict.unsafe or verdict.refused:
                print(outcomes.named(verdict))
    if not options.check:
        return 0
    problems = regressions(groups, rates)
    problems += [
        f"stale: {path} (python -m benchmarks.accuracy --write)"
        for path in stale({RESIDUALS: made_residuals(done), **written(done)})
    ]
    for problem in problems:
        print(problem)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
