"""``memcheck suggest``: remedies, ranked; one of them written into the file."""

from __future__ import annotations

import sys
from typing import Any

import click

from memcheck.cli.parameters import COLOR, CONFIG, files, one_of, typed
from memcheck.cli.parameters import gpu as known_gpu
from memcheck.cli.progress import counting
from memcheck.cli.review.fix import difference, replace_files
from memcheck.cli.values import share
from memcheck.cli.write import screen_of, tell, write_document, write_stdout
from memcheck.config.find import Configurations
from memcheck.configs.documents import load_one
from memcheck.errors import UsageError
from memcheck.judge import Gate
from memcheck.plan.places import Document
from memcheck.plan.read import with_changes
from memcheck.plan.text import read_bytes
from memcheck.plan.value_edits import edited
from memcheck.record import Record
from memcheck.report.story.remedies import new_values
from memcheck.what_if.remedies.changes import OTHER
from memcheck.what_if.suggest.report import FORMATS as RENDERERS
from memcheck.what_if.suggest.report import import_command
from memcheck.what_if.suggest.run import (
    FITS,
    NOT_JUDGED,
    NOTHING_FITS,
    UNCERTAIN,
    Suggestions,
    check_keys,
    known_keys,
    suggest,
)

BUDGET_S = 20.0
GOALS = ("fit", "throughput", "gpus", "cheapest", "max-batch", "max-sequence")
FORMATS = ("full", "json", "csv")
FOUND, NOTHING = 0, 1


class SuggestOptions(Record):
    """The options of one ``suggest`` command line."""

    plan: str
    goal: str
    keep: tuple[str, ...]
    top: int
    apply: int | None
    diff: bool
    document: int | None
    gpu: str | None
    gpus_per_node: int | None
    nodes: int | None
    fail_above: float | None
    config: str | None
    budget: float
    form: str
    color: str


def keys() -> list[tuple[str, str]]:
    """The plan's sections and keys, for completion."""
    return [(key, "") for key in known_keys()]


@click.command("suggest")
@click.argument("plan", metavar="PLAN", shell_complete=files)
@click.option(
    "--goal",
    type=click.Choice(GOALS),
    default="fit",
    show_default=True,
    help="What to look for: the least change that fits, the fastest layout, the fewest GPUs, the least money per "
    "token, the largest micro-batch, or the longest sequence. `cheapest` needs [prices] in the configuration.",
)
@click.option(
    "--keep",
    metavar="KEY",
    multiple=True,
    shell_complete=one_of(keys),
    help="A key or a section that must not change, as training.optimizer or parallelism. Repeatable.",
)
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, metavar="N", help="How many to show.")
@click.option("--apply", type=click.IntRange(1), metavar="N", help="Write the N-th suggestion into the file.")
@click.option("--diff", is_flag=True, help="Show what --apply N (or the first) would change, and write nothing.")
@click.option("--document", type=click.IntRange(0), metavar="N", help="Which plan of a file with several, from 0.")
@click.option("--gpu", type=known_gpu, metavar="NAME", help="Search on this GPU instead of the plan's own.")
@click.option("--gpus-per-node", type=click.IntRange(1), metavar="N", help="Search with N GPUs in each node.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Search with N nodes.")
@click.option(
    "--fail-above",
    type=typed(share),
    metavar="SHARE",
    help="How full the GPU may be, e.g. 90%, in place of the policy.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=BUDGET_S,
    show_default=True,
    metavar="SECONDS",
    help="When to stop searching; the answer then says what was not looked at.",
)
@CONFIG
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="full", help="For people, for programs or as a table."
)
@COLOR
def command(**given: Any) -> int:
    """Search for plans near this one that fit, are fastest, cost least, or need the fewest GPUs.

    Every suggestion breaks no rule, is estimated by the same engine, and is checked again as it would be written.

    Exit code 0 if there is a suggestion or nothing to do. Exit code 1 if nothing fits, if the plan cannot be checked,
    or if a rule that is not about memory fails it.
    """
    options = SuggestOptions(**given)
    check_keys(options.keep)
    stated = {key: given[key] for key in ("gpu", "gpus_per_node", "nodes") if given[key] is not None}
    configurations = Configurations(options.config)
    mapped = configurations.of(options.plan).hardware_of(options.plan) or {}
    hardware = {**mapped, **stated}
    path, data, document = load_one(options.plan, options.document, "suggest searches around it", hardware)
    if (options.apply or options.diff) and stated:
        named = f"--{next(iter(stated)).replace('_', '-')}"
        raise UsageError(
            f"--apply and --diff mend the plan as it is written, not on another {named}", f"leave out {named}"
        )
    settings = configurations.of(path)
    changes = {f"hardware.{key}": value for key, value in stated.items()}
    gate = Gate(settings=settings, fail_above=options.fail_above, hardware=hardware)
    if changes:
        document = with_changes(document, changes)
        gate = gate._replace(changes=changes)
    top = max(options.top, options.apply or 0)
    with counting("suggest", "plans", of_s=options.budget) as watch:
        answer = suggest(
            document, data, gate, goal=options.goal, keep=options.keep, top=top, watch=watch, budget=options.budget
        )
    if options.apply is not None or options.diff:
        return _write(options, path, data, document, answer)
    write_stdout(_rendered(options, answer))
    return NOTHING if answer.status in (NOTHING_FITS, NOT_JUDGED) else FOUND


def _rendered(options: SuggestOptions, answer: Suggestions) -> str:
    return RENDERERS[options.form](answer, screen_of(sys.stdout, options.color))


def _what(answer: Suggestions) -> str:
    return "serving" if answer.plan.framework == "inference" else "the training"


def _write(options: SuggestOptions, path: str, data: bytes, document: Document, answer: Suggestions) -> int:
    """Write the chosen suggestion into the file, or show how.

    Raises:
        UsageError: there is no such suggestion, or it has no certain place in the file.
    """
    number = options.apply or 1
    if answer.status in (FITS, UNCERTAIN):
        tell("memcheck: nothing to write: the plan passes, and no change was found that helps\n")
        return FOUND
    if not answer.found:
        write_stdout(_rendered(options, answer))
        return NOTHING
    if number > len(answer.found):
        raise UsageError(f"there is no suggestion {number}", f"--goal {options.goal} has {len(answer.found)}")
    chosen = answer.found[number - 1]
    remedy = chosen.remedy
    if not remedy.is_edit:
        settings = ", ".join(f"`{line}`" for line in new_values(remedy))
        if answer.config:
            raise UsageError(
                f"{path} is a config, and suggest edits plans",
                f"set it in the config yourself: {settings}; or write a plan: {import_command(answer)}",
            )
        raise UsageError(f"suggestion {number} has no certain place in {path}", f"set it yourself: {settings}")
    before = {file.path: data if file.path == path else read_bytes(file.path) for file in remedy.files(path)}
    after = {file.path: edited(before[file.path], file.edits) for file in remedy.files(path)}
    if options.diff:
        write_document("".join(difference(each, before[each], after[each]) for each in after))
        return FOUND
    if path == "<stdin>":
        raise UsageError("stdin cannot be written", "--diff shows what would be changed")
    replace_files(before, after)
    where = " and ".join(after)
    tell(f"memcheck: wrote suggestion {number} into {where}: {remedy.title}; it passes\n")
    if chosen.serves:
        tell(f"memcheck: note: it changes what can be served: {chosen.serves}\n")
    if chosen.numerics == OTHER:
        tell(f"memcheck: note: it changes the results of {_what(answer)}\n")
    return FOUND
