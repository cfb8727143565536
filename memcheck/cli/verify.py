"""``memcheck verify``: the estimate against real PyTorch, or against a figure from a run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from memcheck.cli.parameters import COLOR, setting, typed
from memcheck.cli.values import share
from memcheck.cli.write import is_terminal, screen_of, write_stdout
from memcheck.errors import UsageError
from memcheck.record import Record
from memcheck.report.full import alone
from memcheck.rules.result import PlanResult
from memcheck.verify.observe import Progress, compare_all, fullest, observe, require_extra, runnable
from memcheck.verify.recording import append, as_json, drifts, read, records, render
from memcheck.verify.report import render_json, render_text
from memcheck.verify.subject import load_document, load_subject, with_layers
from memcheck.why.observed import answer

if TYPE_CHECKING:
    from memcheck.verify.subject import Subject

DIFFERS = 1


class VerifyOptions(Record):
    """The options of one ``verify`` command line."""

    plan: str | None
    mode: str
    """``traced`` | ``measured``."""
    observed: str | None
    record: str | None
    drift: str | None
    settings: tuple[tuple[str, object], ...]
    ranks: tuple[int, ...]
    layers: int | None
    document: int | None
    tolerance: float
    form: str
    color: str


@click.command("verify")
@click.argument("plan", required=False, metavar="PLAN")
@click.option(
    "--trace", "mode", flag_value="traced", default="traced", help="On fake tensors, without a GPU (default)."
)
@click.option("--measure", "mode", flag_value="measured", help="On the GPU at hand, or under torchrun on several.")
@click.option(
    "--observed", metavar="SIZE|FILE|LINE", help="A figure of a run: 61.3GiB, reserved=61.3GiB, a log, a snapshot."
)
@click.option("--record", metavar="FILE", help="Append what was observed, with all versions, as JSON lines.")
@click.option("--drift", metavar="FILE", help="Compare the versions in a file that --record wrote; needs no PLAN.")
@click.option(
    "--set", "settings", type=setting, metavar="KEY=VALUE", multiple=True, help="Use another value of the plan."
)
@click.option("--layers", type=click.IntRange(1), metavar="N", help="With fewer layers, in prediction and run alike.")
@click.option(
    "--rank", "ranks", type=int, metavar="N", multiple=True, help="This pipeline rank, not the fullest; repeatable."
)
@click.option("--document", type=int, metavar="N", help="Which plan of a file with several, from 0.")
@click.option(
    "--tolerance",
    type=typed(share),
    default="1.5%",
    show_default=True,
    metavar="SHARE",
    help="How far off a peak may be predicted.",
)
@click.option(
    "--format", "form", type=click.Choice(["full", "json"]), default="full", help="For people or for programs."
)
@COLOR
def command(**given: Any) -> int:
    """Run the plan's step in real PyTorch and compare it with the estimate, term by term.

    Exit code 0 if they agree, 1 if they differ (or the plan is not valid), 2 if the step cannot be run here.
    Needs the extra: pip install 'memcheck[verify]'; --observed and --drift do not.
    """
    options = VerifyOptions(**given)
    if options.drift is not None:
        return _drift(options, options.drift)
    if options.plan is None:
        raise UsageError("no plan to verify", "memcheck verify PLAN")
    if options.observed is None:
        require_extra()
    document = load_document(options.plan, dict(options.settings), options.document)
    if options.layers is not None:
        document = with_layers(document, options.layers)
    subject = load_subject(document)
    if isinstance(subject, PlanResult):
        write_stdout(alone(subject, screen_of(sys.stdout, options.color)) + "\n")
        return DIFFERS
    if options.observed is None:
        return _run(options, subject)
    if options.record is not None:
        raise UsageError("--record keeps what memcheck itself observed, not figures of other runs")
    text, consistent = answer(subject, options.observed, options.form, screen_of(sys.stdout, options.color))
    write_stdout(text)
    return 0 if consistent else DIFFERS


def _run(options: VerifyOptions, subject: Subject) -> int:
    """Trace or measure, keep it if asked to, and compare."""
    request = runnable(subject)
    progress = Progress(sys.stderr, terminal=is_terminal(sys.stderr))
    ranks = options.ranks or fullest(request)
    observation = observe(request, options.mode, progress, ranks)
    if not observation.ranks:
        return 0  # one of several processes: the first one reports for all
    comparisons = compare_all(request, observation)
    if options.record is not None:
        append(options.record, records(request.subject, observation, comparisons))
    if options.form == "json":
        write_stdout(render_json(request, observation, comparisons, options.tolerance))
    else:
        screen = screen_of(sys.stdout, options.color)
        write_stdout(render_text(request, observation, comparisons, options.tolerance, screen))
    return 0 if all(c.agrees(options.tolerance) for c in comparisons) else DIFFERS


def _drift(options: VerifyOptions, path: str) -> int:
    """Compare what a file has kept."""
    if options.plan is not None:
        raise UsageError("--drift compares the plans of its file and takes no PLAN")
    found = drifts(read(path), os.path.dirname(path))
    if not found:
        raise UsageError(f"{path} holds no record", "write some with verify --record")
    screen = screen_of(sys.stdout, options.color)
    write_stdout(
        as_json(found, options.tolerance) if options.form == "json" else render(found, options.tolerance, screen)
    )
    return DIFFERS if any(d.error is not None and abs(d.error) > options.tolerance for d in found) else 0
