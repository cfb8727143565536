"""``memcheck estimate``: where the memory goes, without a verdict."""

from __future__ import annotations

from collections.abc import Iterable

import click

from memcheck import __version__
from memcheck.cli.check_options import ANSWERS, HARDWARE_ANSWERS, HARDWARE_HEADING, JOB_ANSWERS, JOB_HEADING
from memcheck.cli.job import JOB, job_of
from memcheck.cli.nothing import UnreadAnswers
from memcheck.cli.options import CheckOptions, Output, stated_answers, stated_beside, stated_changes
from memcheck.cli.parameters import AFTER_DASHES, COLOR, CONFIG, LaunchCommand, files, options, outputs
from memcheck.cli.write import complain, prepare, write_bug_report, write_document, write_each
from memcheck.config.find import EVERY, Configurations, Gate, PlanFile, find_plans
from memcheck.edge.screen import Screen
from memcheck.errors import DEFECT, UsageError
from memcheck.judge import check_file
from memcheck.report import WITH_DOSSIER, renderer
from memcheck.report.full import alone
from memcheck.report.json import render_estimates
from memcheck.report.screens import breakdown
from memcheck.rules.result import PlanResult, Report, Unreadable
from memcheck.what_if import make_dossier, with_remedies

FORMATS = ("full", "json", "csv", "html", "pdf", "story")
"""Formats of ``estimate``: the formats of ``check`` that can show figures without a verdict."""


SECTIONS = {
    HARDWARE_HEADING: tuple(option.key for option in HARDWARE_ANSWERS),
    JOB_HEADING: tuple(option.key for option in JOB_ANSWERS),
    "A model by its name": ("method", "zero_stage"),
    "Output": ("formulas", "outputs", "color"),
}


@click.command("estimate", cls=LaunchCommand, sections=SECTIONS)
@click.argument("paths", nargs=-1, required=True, metavar="PLAN|MODEL|-- COMMAND...", shell_complete=files)
@click.option("--formulas", is_flag=True, help="Show each formula with its numbers and its source.")
@outputs(FORMATS)
@options(ANSWERS)
@JOB
@CONFIG
@COLOR
def command(
    paths: tuple[str, ...],
    formulas: bool,
    outputs: tuple[Output, ...],
    config: str | None,
    color: str,
    method: str | None,
    zero_stage: int | None,
    **answers: object,
) -> int:
    """Show where the memory goes: components, instants of a step, pipeline ranks, largest tensors, assumptions.

    Four kinds of jobs are estimated. A plan. A framework's own config, with --gpu, --gpus-per-node and --nodes. A
    model's name or its config.json, with --gpu and --gpus; the plan that was assumed is printed. The command that
    launches a job, after --.

    The exit code is 0 if every job could be estimated, whether it fits or not.
    """
    said = CheckOptions(**answers)  # type: ignore[arg-type]
    changes, beside = stated_changes(said), stated_beside(said)
    outputs = outputs or (Output("full"),)
    prepare(outputs)
    gate = Gate(changes=changes, hardware=beside, answers=stated_answers(said), inventory=True, grounds=EVERY)
    if any(each.format == "csv" or each.format in WITH_DOSSIER for each in outputs):
        gate = gate._replace(dossier=make_dossier, remedies=with_remedies)
    launch = tuple(click.get_current_context().meta.get(AFTER_DASHES, ()))
    told = job_of(paths, said, method, zero_stage, launch)
    if told is not None and told.plan and said.model is not None:
        raise UsageError(f"--model in addition to the model {paths[0]}", "name it once")
    unread = UnreadAnswers(said)
    if told is None:
        report = estimate_files(unread.met(find_plans(paths)), gate, Configurations(config))
        unread.settle()
    else:
        report = estimate_files(
            unread.met([told.file]), gate._replace(changes=dict(said.settings), answers={}), Configurations(config)
        )
        unread.settle()
        if told.plan and any(each.format == "full" and each.file is None for each in outputs):
            write_document(told.plan)
    for item in report.unreadable:
        complain(f"cannot read {item.path}: {item.message}")
    if not report.plans and not report.unreadable:
        raise UsageError(f"nothing to estimate: no plan in {', '.join(paths)}")
    write_each(outputs, color, lambda form, screen: rendered(form, report, screen, formulas=formulas))
    if report.defects:
        write_bug_report(["estimate", *paths], report.defects)
        return DEFECT
    if report.unreadable:
        return 2
    return 1 if any(plan.estimate is None for plan in report.plans) else 0


def estimate_files(files: Iterable[PlanFile | Unreadable], gate: Gate, configurations: Configurations) -> Report:
    """Estimate every plan of the files, and every config that a project maps to hardware."""
    plans: list[PlanResult] = []
    unreadable: list[Unreadable] = []
    defects: list[str] = []
    for found in files:
        if isinstance(found, Unreadable):
            unreadable.append(found)
            continue
        settings = configurations.of(found.path)
        hardware = {**(settings.hardware_of(found.path) or {}), **gate.hardware}
        results, traces = check_file(found.path, found.data, gate._replace(settings=settings, hardware=hardware))
        plans += results
        defects += traces
    return Report(version=__version__, plans=tuple(plans), unreadable=tuple(unreadable), defects=tuple(defects))


def rendered(form: str, report: Report, screen: Screen, *, formulas: bool) -> str | bytes:
    """The report in one of :data:`FORMATS`, without a verdict."""
    if form == "json":
        return render_estimates(report)
    if form == "full":
        return "\n".join(section(plan, screen, formulas=formulas) for plan in report.plans)
    return renderer(form)(report, screen, checked=False)


def section(plan: PlanResult, screen: Screen, *, formulas: bool) -> str:
    """The breakdown of one plan, or why there is none."""
    if plan.estimate is None:
        return alone(plan, screen) + "\n"
    return breakdown(plan, plan.estimate, screen, formulas=formulas)
