"""``memcheck why``: what ended a run, from its log, an error message or a memory snapshot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from memcheck.cli.parameters import COLOR, files, setting
from memcheck.cli.parameters import gpu as known_gpu
from memcheck.cli.write import is_terminal, screen_of, write_stdout
from memcheck.errors import UsageError
from memcheck.record import Record
from memcheck.why.answer import render_html, render_json, render_text
from memcheck.why.run import answer

EXPLAINED, NOT_EXPLAINED = 0, 1
FORMATS = ("full", "json", "html")
SOURCES = (".yaml", ".yml", ".toml", ".py", ".ipynb", ".sh", ".slurm", ".sbatch")  # a plan, a config or a script
HELP = "memcheck why job.out; or paste the message: memcheck why - and Ctrl-D; or: cat job.out | memcheck why"


class WhyOptions(Record):
    """The options of one ``why`` command line."""

    evidence: tuple[str, ...]
    plan: str | None
    document: int | None
    model: str | None
    gpu: str | None
    gpus_per_node: int | None
    nodes: int | None
    settings: tuple[tuple[str, object], ...]
    form: str
    color: str


@click.command("why")
@click.argument("evidence", nargs=-1, metavar="[LOG|SNAPSHOT|MESSAGE]...", shell_complete=files)
@click.option("--plan", metavar="PLAN", shell_complete=files, help="The plan or config of the run that died.")
@click.option("--document", type=click.IntRange(0), metavar="N", help="Which plan of a file with several, from 0.")
@click.option("--model", metavar="NAME", help="The model, where neither a plan nor the log names it.")
@click.option("--gpu", type=known_gpu, metavar="NAME", help="The GPU that the run was meant for.")
@click.option(
    "--gpus-per-node", type=click.IntRange(1), metavar="N", help="GPUs in each node, where a config does not say."
)
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Nodes, where a config does not say.")
@click.option(
    "--set", "settings", type=setting, metavar="KEY=VALUE", multiple=True, help="Use another value of the plan."
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="full", help="For people, for programs or as a page."
)
@COLOR
def command(**given: Any) -> int:
    """Say why a run ended: out of GPU memory, out of host memory, or neither; which tensor, and what helps.

    Takes a job's whole log, an error message, or a memory snapshot of PyTorch: as files, as text, or from stdin.
    No plan is needed. With --plan, or a plan, config or script named with the log, the answer names the number of the
    plan that explains the failure.

    Exit code 0 if a lack of memory is explained. Exit code 1 if nothing is explained, or memory was not the reason.
    """
    options = WhyOptions(**given)
    evidence = options.evidence
    if not evidence:
        if sys.stdin is None or is_terminal(sys.stdin):
            raise UsageError("nothing to read: name a log, a memory snapshot, or an error message", HELP)
        evidence = ("-",)
    evidence, plan = _plan_apart(evidence, options.plan)

    found = answer(
        evidence,
        stdin=_stdin,
        plan=plan,
        document=options.document,
        model=options.model,
        settings={**_hardware(options), **dict(options.settings)},
        gpu=options.gpu,
    )

    if options.form == "json":
        write_stdout(render_json(found))
    elif options.form == "html":
        write_stdout(render_html(found))
    else:
        write_stdout(render_text(found, screen_of(sys.stdout, options.color)))
    return EXPLAINED if found.is_explained else NOT_EXPLAINED


def _plan_apart(evidence: tuple[str, ...], plan: str | None) -> tuple[tuple[str, ...], str | None]:
    """The logs of the evidence, and the plan: a file named like a plan or a script, where ``--plan`` names none."""
    sources = [each for each in evidence if each.lower().endswith(SOURCES) and Path(each).is_file()]
    logs = tuple(each for each in evidence if each not in sources)
    if not sources:
        return evidence, plan
    if plan is not None or not logs or len(sources) > 1:
        raise UsageError(f"{sources[0]} is a plan or a script, and no log", f"memcheck why LOG --plan {sources[0]}")
    return logs, sources[0]


def _hardware(options: WhyOptions) -> dict[str, object]:
    """The numbers of GPUs and nodes that the options state, by the plan's keys."""
    stated = {"hardware.gpus_per_node": options.gpus_per_node, "hardware.nodes": options.nodes}
    return {key: count for key, count in stated.items() if count is not None}


def _stdin(limit: int) -> bytes:
    """What stdin holds, up to a number of bytes."""
    return sys.stdin.buffer.read(limit) if sys.stdin is not None else b""
