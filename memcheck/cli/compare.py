"""``memcheck compare``: plans against GPUs, side by side."""

from __future__ import annotations

import click

from memcheck.cli.judging import Gates
from memcheck.cli.options import CheckOptions, Output
from memcheck.cli.parameters import COLOR, CONFIG, files, gpus, outputs
from memcheck.cli.parameters import gpu as known_gpu
from memcheck.cli.write import complain, write_each
from memcheck.config.find import Configurations, find_plans
from memcheck.configs.documents import is_config, load_plans
from memcheck.errors import UsageError
from memcheck.rules.result import Unreadable
from memcheck.what_if.compare import ComparedPlan, compare
from memcheck.what_if.compare.report import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def subjects(
    paths: tuple[str, ...], config: str | None, verb: str, names: tuple[str, ...] | None = None
) -> tuple[list[ComparedPlan], bool]:
    """Every plan of the paths, and whether all files could be read.

    ``names``: GPUs. A framework's config or a script is read for each of them, since what it does may hang on its GPU.

    Raises:
        UsageError: there is no plan.
    """
    gates = Gates(CheckOptions(), Configurations(config))
    found: list[ComparedPlan] = []
    readable = True
    for file in find_plans(paths):
        if isinstance(file, Unreadable):
            complain(f"cannot read {file.path}: {file.message}")
            readable = False
            continue
        gate = gates.of(file.path)
        for name in names if names and is_config(file.path, file.data) else ("",):
            hardware = {**gate.hardware, "gpu": name} if name else gate.hardware
            loaded = load_plans(file.path, file.data, hardware=hardware)
            found += [ComparedPlan(document, gate, name) for document in loaded]
    if not found and readable:
        raise UsageError(f"nothing to {verb}: no plan in {', '.join(paths)}")
    return found, readable


UNREADABLE, NOTHING_PRICED = 2, 1


def gpu_list(written: str) -> tuple[str, ...]:
    """Names of the catalog, separated by commas, each once."""
    names = [known_gpu(part.strip()) for part in written.split(",") if part.strip()]
    if not names:
        raise click.BadParameter(f"{written!r} names no GPU")
    return tuple(dict.fromkeys(names))


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The last name of a list."""
    from click.shell_completion import CompletionItem

    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(before + comma + name) for name, _ in gpus() if name.startswith(last.lower())]


@click.command("compare")
@click.argument("paths", nargs=-1, required=True, metavar="PLAN...", shell_complete=files)
@click.option(
    "--gpu",
    "names",
    type=gpu_list,
    metavar="A,B,C",
    shell_complete=_complete,
    help="These GPUs; failing ones come first. Default: the plan's own, those of data centres and workstations.",
)
@outputs(tuple(FORMATS))
@CONFIG
@COLOR
def command(
    paths: tuple[str, ...], names: tuple[str, ...] | None, outputs: tuple[Output, ...], config: str | None, color: str
) -> int:
    """Compare plans on GPUs: peak memory, what is left, whether it fits, relative speed and TFLOPS.

    Nothing but the GPU changes: batch, layout and number of GPUs stay as the plan has them. Speeds come from a
    roofline model, which ranks.

    Exit code 0 if every plan could be estimated on some GPU, whether it fits or not; 1 if one could on none.
    """
    found, readable = subjects(paths, config, "compare", names)
    comparison = compare(found, names)
    write_each(outputs or (Output("full"),), color, lambda form, screen: FORMATS[form](comparison, screen))
    if not readable:
        return UNREADABLE
    priced = {(row.path, row.document) for row in comparison.rows if row.point.estimated}
    return 0 if len(priced) == comparison.plans else NOTHING_PRICED
