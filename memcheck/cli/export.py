"""``memcheck export``: a framework's config out of a plan."""

from __future__ import annotations

from typing import NoReturn

import click

from memcheck.cli.parameters import files, setting
from memcheck.cli.write import complain, tell, write_document, write_file
from memcheck.config.find import Configurations
from memcheck.configs.documents import load_plans
from memcheck.configs.formats import WRITTEN
from memcheck.configs.importing import RefusedPlanError, exported
from memcheck.edge.screen import plural
from memcheck.errors import MemcheckError, UsageError
from memcheck.judge import Gate
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import with_changes
from memcheck.plan.text import read_bytes, shown_path
from memcheck.what_if.suggest.run import FITS, UNCERTAIN, suggest


class PlanError(MemcheckError):
    """The plan cannot be exported as it is."""

    exit_code = 1


@click.command("export")
@click.argument("path", metavar="PLAN", shell_complete=files)
@click.option("--to", "format", type=click.Choice(list(WRITTEN)), required=True, help="Whose config to write.")
@click.option(
    "--set",
    "settings",
    type=setting,
    metavar="KEY=VALUE",
    multiple=True,
    help="Export with another value, e.g. training.micro_batch_size=4.",
)
@click.option(
    "--apply-remedy",
    "remedy",
    type=click.IntRange(1),
    metavar="N",
    help="Export the plan with the N-th suggestion of `memcheck suggest`, where it does not fit as it is.",
)
@click.option("--document", type=click.IntRange(0), help="Which plan of a file of several, from 0.")
@click.option("--output", "-o", metavar="FILE", shell_complete=files, help="Write the config there.")
@click.option("--strict", is_flag=True, help="Exit 1 if the format cannot say something that the plan does.")
def command(
    path: str,
    format: str,
    settings: tuple[tuple[str, object], ...],
    remedy: int | None,
    document: int | None,
    output: str | None,
    strict: bool,
) -> int:
    """Write the config that runs PLAN: DeepSpeed JSON, Accelerate YAML, torchtitan TOML or Megatron-LM arguments.

    What the format cannot say is listed in a comment at its top and on stderr. So is what belongs elsewhere, such as
    the model of a DeepSpeed job.
    """
    chosen, data = _document(path, document)
    if settings:
        chosen = with_changes(chosen, dict(settings))
    if remedy is not None:
        chosen = remedied(chosen, data, remedy)
    try:
        written = exported(chosen, format)
    except RefusedPlanError as refused:
        _refuse(chosen.path, refused)
    for notice in written.notices:
        if notice.kind == "lost" or format == "deepspeed":
            tell(f"memcheck: {WORDS[notice.kind]}: {notice.key}: {notice.message}\n")
    if output is None:
        write_document(written.text)
    else:
        write_file(output, written.text)
    return 1 if strict and written.lost else 0


WORDS = {"lost": "not in the config", "elsewhere": "said elsewhere", "remark": "note"}


def _refuse(path: str, refused: RefusedPlanError) -> NoReturn:
    """Say every error of a plan, and end with the first one.

    Raises:
        PlanError: always.
    """
    if not refused.errors:
        raise PlanError(f"{path} is a plan for inference", refused.help)
    for finding in refused.errors[1:]:
        complain(_shown(finding), finding.help)
    first = refused.errors[0]
    raise PlanError(_shown(first), first.help or f"memcheck check {path}")


def _shown(finding: Finding) -> str:
    span = finding.location.span
    return f"{finding.location.path}:{span.line}:{span.column}: {finding.code} {finding.message}"


def remedied(document: Document, data: bytes, number: int) -> Document:
    """The plan with one of the changes that make it fit; as it is when it fits.

    Raises:
        PlanError: nothing fits, or there are fewer suggestions.
    """
    gate = Gate(settings=Configurations(None).of(document.path))
    answer = suggest(document, data, gate, top=number)
    if answer.status in (FITS, UNCERTAIN):
        certain = "fits" if answer.status == FITS else "passes, but it is uncertain whether it fits"
        tell(f"memcheck: the plan {certain}: exported as it is\n")
        return document
    if number > len(answer.found):
        found = plural(len(answer.found), "suggestion") if answer.found else "no suggestion"
        raise PlanError(f"{document.path} has {found}", f"memcheck suggest {document.path}")
    chosen = answer.found[number - 1].remedy
    tell(f"memcheck: with suggestion {number}: {chosen.title}\n")
    return with_changes(document, chosen.set)


def _document(path: str, index: int | None) -> tuple[Document, bytes]:
    try:
        data = read_bytes(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    documents = load_plans(shown_path(path), data)
    if index is not None:
        documents = [each for each in documents if each.index == index]
    if not documents:
        raise UsageError(f"{path} holds no such plan", "a plan starts with `memcheck: 1`")
    if len(documents) > 1:
        names = ", ".join(str(each.index) for each in documents)
        raise UsageError(f"{path} holds {len(documents)} plans", f"choose one with --document: {names}")
    return documents[0], data
