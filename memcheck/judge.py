"""The pipeline: from the bytes of one file to a verdict on every plan in it."""

from __future__ import annotations

import os
from collections.abc import Callable

from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE, UNCERTAIN, Gate, Settings
from memcheck.configs.documents import load_plans
from memcheck.edge.opener import begin_reading_once, end_reading_once
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.memory.fit import RUNS, gpu_fit
from memcheck.memory.fit import UNCERTAIN as UNSETTLED
from memcheck.plan import finding as codes
from memcheck.plan.finding import SEVERITIES, Finding, Location, Span
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan, with_changes
from memcheck.plan.types import Plan, PolicySpec
from memcheck.rules import GATE
from memcheck.rules.checks import CHECKS
from memcheck.rules.grounds import rests_on
from memcheck.rules.result import (
    BASELINE,
    COMMENT,
    ERROR,
    FAILED,
    PASSED,
    SELECTION,
    Hidden,
    PlanResult,
    Unreadable,
    defect_result,
)
from memcheck.rules.run import check_layout, check_memory, make_context, rules_for
from memcheck.rules.types import LockedLimits, located, no_document, traced
from memcheck.rules.when import rows_have_limit

CLOSE, UNSURE = "MEM103", "MEM104"
MOST_OF_A_CODE = 5000
"""Findings of one code about one file. The last of them counts those that follow."""
MARK = "memcheck: ignore"
"""What every suppressing comment holds; without it in the text, nothing looks for comments."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from memcheck.config.suppressions import Suppressions  # imported only for a file with such a comment

    Stated = TypeVar("Stated")

__all__ = ["Gate", "check_file", "refused"]

WARN, FAIL = UNCERTAIN


def check_file(
    path: str, data: bytes, gate: Gate, read: list[Document] | None = None
) -> tuple[list[PlanResult], list[str]]:
    """The results of every document, and a traceback for each one on which memcheck itself failed.

    ``read``: the documents are added to it, for whoever looks into them after the check.
    """
    begin_reading_once()
    try:
        return _check_file(path, data, gate, [] if read is None else read)
    finally:
        end_reading_once()


def _check_file(path: str, data: bytes, gate: Gate, read: list[Document]) -> tuple[list[PlanResult], list[str]]:
    results: list[PlanResult] = []
    traces: list[str] = []

    def failed(error: Exception, index: int, name: str) -> None:
        import traceback

        traces.append("".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip())
        results.append(defect_result(path, index, name, error))

    # An exception of memcheck itself must not hide the verdict on the other plans.
    try:
        documents = load_plans(path, data, gate.texts, gate.hardware, gate.answers)
    except Exception as error:  # noqa: BLE001
        failed(error, 0, stem(path))
        return results, traces
    read += documents
    if not documents:
        results.append(PlanResult(path=path, document=0, name=stem(path), status=ERROR, findings=(no_document(path),)))
    comments = None
    marked: dict[int, bool] = {}
    for document in documents:
        try:
            if comments is None and is_marked(document, data, marked):
                from memcheck.config.suppressions import Suppressions

                comments = Suppressions(gate.as_written)
            results.append(check_document(document, gate, comments))
        except Exception as error:  # noqa: BLE001, PERF203
            failed(error, document.index, plan_name(document))
    if comments is not None:
        try:
            judged = {each.document for each in results if each.estimate is not None}
            about = comments.reported(judged, gate.counts, gate.settings.policy)
            results = [with_findings(each, [*each.findings, *about.get(each.document, ())], gate) for each in results]
        except Exception as error:  # noqa: BLE001
            failed(error, 0, stem(path))
    if sum(len(each.findings) for each in results) > MOST_OF_A_CODE:
        results = _bounded(results)
    return results, traces


def _bounded(results: list[PlanResult]) -> list[PlanResult]:
    """The results of one file with the first findings of each code. Of the others, those that a fix needs stay."""
    counts: dict[str, int] = {}
    more: dict[str, int] = {}
    last: dict[str, Finding] = {}
    kept: list[list[Finding]] = []
    for result in results:
        own: list[Finding] = []
        for finding in result.findings:
            counts[finding.code] = counts.get(finding.code, 0) + 1
            if counts[finding.code] <= MOST_OF_A_CODE or finding.fix or finding.remedies or not own:
                own.append(finding)
            else:
                more[finding.code] = more.get(finding.code, 0) + 1
            if counts[finding.code] == MOST_OF_A_CODE:
                last[finding.code] = finding
        kept.append(own)

    def counted(finding: Finding) -> Finding:
        if last.get(finding.code) is not finding or finding.code not in more:
            return finding
        others = f"so it is in {more[finding.code]:,} more places of this file"
        return finding._replace(message=f"{finding.message}; {others}")

    return [
        result._replace(findings=tuple(counted(each) for each in own))
        for result, own in zip(results, kept, strict=True)
    ]


def is_marked(document: Document, data: bytes, known: dict[int, bool]) -> bool:
    """Whether the file, or one that the plan extends, may hold a suppressing comment.

    ``known``: the answers for the lines of files, by identity, which many documents share.
    """
    if len(document.sources) <= 1:
        return MARK.encode() in data
    for lines in document.sources.values():
        if id(lines) not in known:
            known[id(lines)] = any(MARK in line for line in lines)
        if known[id(lines)]:
            return True
    return False


def check_document(document: Document, gate: Gate, comments: Suppressions | None = None) -> PlanResult:
    """Judge one plan: read it, resolve it, check its layout, predict its memory, check that."""
    if gate.changes and document.values is not None:
        document = with_changes(document, gate.changes)
    plan, findings = read_plan(document)
    result = PlanResult(
        path=document.path,
        document=document.index,
        name=plan_name(document),
        status=ERROR,
        sources=document.sources,
        values=document.values,
    )
    if plan is not None:
        try:
            result, judged = judge(plan, document, result, gate)
            findings += judged
        except (ResolutionError, UnsupportedError) as error:
            findings += located(error, document)
    if findings:
        findings = traced(findings, document)
    return with_findings(result, findings, gate, comments.begin(document) if comments is not None else None)


def judge(plan: Plan, document: Document, result: PlanResult, gate: Gate) -> tuple[PlanResult, list[Finding]]:
    """The result with its estimate, and what the rules say.

    Raises:
        ResolutionError: the plan names something that does not exist.
        UnsupportedError: there is no memory model for what the plan asks.
    """
    stated, governance = plan.policy, gate.settings.policy
    plan = plan._replace(policy=effective_policy(stated, gate))
    resolved = resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(document.path))
    context = make_context(plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE)
    if governance is not None:
        limits = configured_limits(gate.settings) if governance.locked else None
        context = context._replace(governance=governance, limits=limits, stated=stated)
    job = resolved.job
    engine = None if isinstance(job, TrainingJob) else job.engine
    result = result._replace(
        assumptions=resolved.assumptions,
        model=plan.model.name or plan.model.config or "",
        gpu=resolved.gpu.name,
        gpus=job.layout.world_size,
        framework=job.framework.name if isinstance(job, TrainingJob) else "inference",
        host_capacity_bytes=context.host_bytes,
        fail_above=context.fail_above if engine is None else 1.0,  # the share of an engine is its own limit
    )
    rules = rules_for(gate.counts) if gate.profile != GATE or gate.select else CHECKS
    findings, possible = check_layout(context, rules)
    if not possible:
        return result, findings
    detailed = gate.inventory or gate.dossier is not None
    answer = estimate(job, resolved.gpu, resolved.overhead, inventory=detailed)
    if answer.padded_bytes:
        from memcheck.rules.defaulted import with_effects  # for plans that leave open how rows lie

        result = result._replace(assumptions=with_effects(result.assumptions, answer))
    if gpu_fit(answer, context.fail_above) not in RUNS and rows_have_limit(context):
        from memcheck.rules.settling import with_longest

        answer = with_longest(context, answer)
    context = context._replace(estimate=answer)
    if gate.hours:
        from memcheck.rules.mem605_too_many_gpu_hours import gpu_hours

        result = result._replace(gpu_hours=gpu_hours(context))
    if gate.grounds is not None:
        known = frozenset(finding.code for finding in findings)
        if result._replace(estimate=answer).verdict == UNSETTLED:
            from memcheck.rules.settling import settled_by

            context = context._replace(settled_by=settled_by(context, known))
            result = result._replace(settled_by=context.settled_by)
        if gate.grounds and (gate.inventory or gpu_fit(answer, context.fail_above) in RUNS):
            moving, untried = rests_on(context, known, gate.grounds)
            result = result._replace(rests_on=moving, untried=untried)
    memory = check_memory(context, rules)
    if len(memory) > 1 and gate.counts(UNSURE):  # the finding says how close the plan is to its limit, too
        memory = [each for each in memory if each.code != CLOSE or not any(other.code == UNSURE for other in memory)]
    if memory:
        # What a report of a full GPU needs and a passing plan does not pay for.
        if not detailed:
            row = answer.longest_row
            answer = estimate(job, resolved.gpu, resolved.overhead, inventory=True)._replace(longest_row=row).shown
        if gate.remedies is not None:
            memory = gate.remedies(memory, context._replace(estimate=answer))
    if gate.dossier is not None:
        result = result._replace(dossier=gate.dossier(context, answer, gate))
    return result._replace(estimate=answer), findings + memory


def with_findings(
    result: PlanResult, findings: list[Finding], gate: Gate, hides: Callable[[Finding], str] | None = None
) -> PlanResult:
    """The result with the findings that were asked for, in the order of the file, and the status they lead to.

    What keeps a plan from being estimated can neither be ignored away nor be made milder: the plan would pass unjudged.
    """
    judged = result.estimate is not None
    shown, hidden = [], list(result.hidden)
    for finding in findings:
        if judged or finding.severity != "error":
            if not gate.counts(finding.code):
                hidden.append(Hidden(finding, SELECTION))
                continue
            if hides is not None and (reason := hides(finding)) and gate.hides(finding.code):
                hidden.append(Hidden(finding, COMMENT, reason))
                continue
            if gate.baseline is not None and judged:
                held = gate.baseline(result, finding)
                if held is None:
                    hidden.append(Hidden(finding, BASELINE, gate.baseline_file))
                    continue
                finding = held
            if gate.settings.severity:
                finding = finding._replace(severity=gate.settings.severity_of(finding.code, finding.severity))
        shown.append(finding)
    shown.sort(key=lambda finding: (-SEVERITIES.index(finding.severity), finding.location.span))
    least = SEVERITIES.index("warning" if gate.fail_on == "warning" else "error")
    fails = any(SEVERITIES.index(finding.severity) >= least for finding in shown)
    status = ERROR if not judged else FAILED if fails else PASSED
    return result._replace(findings=tuple(shown), hidden=tuple(hidden), status=status)


def effective_policy(stated: PolicySpec, gate: Gate) -> PolicySpec:
    """The plan's policy under the command line's and over the configuration's."""
    settings = gate.settings
    if settings.policy is not None and settings.policy.locked:
        stated = held(stated, configured_limits(settings))

    def first(*values: Stated | None) -> Stated | None:
        return next((value for value in values if value is not None), None)

    uncertain = first(gate.uncertain, stated.uncertain, settings.uncertain)
    strict = FAIL if uncertain == FAIL else None  # a plan that fits only with shorter rows is uncertain, too
    return stated._replace(
        fail_above=first(gate.fail_above, stated.fail_above, settings.fail_above, DEFAULT_FAIL_ABOVE),
        warn_above=first(gate.warn_above, stated.warn_above, settings.warn_above, DEFAULT_WARN_ABOVE),
        waste_below=first(stated.waste_below, settings.waste_below),
        overhead=settings.overhead if stated.overhead is None else stated.overhead,
        uncertain=uncertain,
        unpacked=first(gate.unpacked, stated.unpacked, settings.unpacked, strict),
    )


def held(stated: PolicySpec, limits: LockedLimits) -> PolicySpec:
    """Return a plan's policy where it is stricter than the limits, and the limits where it is not."""
    fail, warn = stated.fail_above, stated.warn_above
    return stated._replace(
        fail_above=None if fail is None else min(fail, limits.fail_above),
        warn_above=None if warn is None else min(warn, limits.warn_above),
        overhead=None,
        uncertain=limits.uncertain if limits.uncertain == "fail" else stated.uncertain,
        unpacked=limits.unpacked if limits.unpacked == "fail" else stated.unpacked,
    )


def configured_limits(settings: Settings) -> LockedLimits:
    """The limits that a locked policy holds plans to."""
    fail, warn = settings.fail_above, settings.warn_above
    return LockedLimits(
        fail_above=DEFAULT_FAIL_ABOVE if fail is None else fail,
        warn_above=DEFAULT_WARN_ABOVE if warn is None else warn,
        overhead=settings.overhead,
        uncertain=settings.uncertain or WARN,
        unpacked=settings.unpacked or settings.uncertain or WARN,
    )


def plan_name(document: Document) -> str:
    """The stated name, or the file's stem with the number of the document where there are several."""
    values = document.values
    stated = values.get("name") if isinstance(values, dict) else None
    if isinstance(stated, str) and stated:
        return stated
    return f"{stem(document.path)}#{document.index}" if document.index else stem(document.path)


def refused(item: Unreadable, gate: Gate) -> PlanResult:
    """A file that is not read, because of what lies under its name: it must neither pass nor hide the others."""
    at = Location(item.path, Span(1, 1, 1, 1))
    help = item.help or "commit the file itself"
    finding = codes.UNREADABLE_FILE.at(at, f"the file is not read: {item.message}", help=help)
    return with_findings(PlanResult(path=item.path, document=0, name=stem(item.path), status=ERROR), [finding], gate)


def stem(path: str) -> str:
    """The file's name without folder and suffix."""
    return os.path.splitext(os.path.basename(path))[0]
