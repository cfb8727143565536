"""What is asked for by name: import, export, comparison, sweep, suggestions, the end of a run, report, catalog."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence

from memcheck import __version__
from memcheck.catalog.names import find_model, gpu_sizes, model_names
from memcheck.config.find import QUICK, Gate
from memcheck.configs.formats import WRITTEN
from memcheck.configs.importing import exported, import_config
from memcheck.configs.types import ReadSetting
from memcheck.edge.screen import Screen
from memcheck.errors import UsageError
from memcheck.judge import check_file
from memcheck.live.answer import Places, Slices
from memcheck.live.replies import (
    AssumedValue,
    Catalog,
    CatalogGpu,
    CatalogModel,
    Drawn,
    Exported,
    ImportedPlan,
    Remark,
    Reported,
    Searching,
)
from memcheck.live.requests import Workspace
from memcheck.plan.finding import Location
from memcheck.plan.places import Document
from memcheck.record import Record
from memcheck.report import FORMATS, WITH_DOSSIER, renderer
from memcheck.report.html.document import block, index, parts, section
from memcheck.report.story import Prose
from memcheck.report.story.blocks import Block
from memcheck.report.story.build import story
from memcheck.rules.result import Report
from memcheck.what_if import make_dossier, with_remedies
from memcheck.what_if.compare import ComparedPlan, compare
from memcheck.what_if.compare.report import document as compared
from memcheck.what_if.points import Evaluator
from memcheck.what_if.sweep import Axis, Sweep, grid
from memcheck.what_if.sweep.report import fastest, grids, headline, refusals

MOST_POINTS = 2_500
"""Points of a heat map on a page."""
BUDGET_S = 1.5
"""Seconds that a search for suggestions may take, in which nothing else is answered."""
FILE_NAMES = {
    "deepspeed": "ds_config.json",
    "accelerate": "accelerate.yaml",
    "torchtitan": "train.toml",
    "megatron": "megatron_args.sh",
}
"""What an exported config is usually called."""
LENGTH = "training.sequence_length"
PLAIN = Screen()


def imported(
    workspace: Workspace, path: str, hardware: Mapping[str, object], format: str, settings: Mapping[str, object]
) -> Iterator[Record]:
    """The plan of a framework's config, a script or a launch line; without one, what has to be said."""
    stated = {
        f"hardware.{key}": ReadSetting(value, "the page") for key, value in hardware.items() if key != "sequence_length"
    }
    if "sequence_length" in hardware:
        stated["training.sequence_length"] = ReadSetting(hardware["sequence_length"], "the page")
    stated.update((key, ReadSetting(value, "the page")) for key, value in settings.items())
    with workspace.reading():
        found = import_config(path, workspace.data(path), stated, format)
    places = Places(workspace, found.sources)
    yield ImportedPlan(
        format=found.format,
        text="" if found.problems else found.text,
        notes=tuple(remark(places, each.location, each.message, "") for each in found.notes),
        problems=tuple(
            remark(places, each.location, each.message, each.help)._replace(keys=each.keys) for each in found.problems
        ),
        assumed=tuple(AssumedValue(key=key, value=each.value, why=each.why) for key, each in found.assumed),
    )


def remark(places: Places, where: Location, message: str, help: str) -> Remark:
    """A sentence about a place of a file."""
    return Remark(path=where.path, place=places.at(where)[0], message=message, help=help, keys=())


def written_config(workspace: Workspace, document: Document, format: str) -> Iterator[Record]:
    """The config of a framework that runs the plan.

    Raises:
        RefusedPlanError: the plan is wrong, or trains nothing.
    """
    with workspace.reading():
        written = exported(document, format)
    yield Exported(
        format=format,
        name=FILE_NAMES.get(format, f"{format}.txt"),
        text=written.text,
        notices=tuple(f"{each.kind}: {each.key}: {each.message}" for each in written.notices),
    )


def compared_gpus(workspace: Workspace, subject: ComparedPlan, gpus: Sequence[str] | None) -> Iterator[Record]:
    """The plan on several GPUs as a table."""
    with workspace.reading():
        found = compared(compare([subject], gpus))
    yield Drawn(of="compare", title="On several GPUs", html=drawn(found), remedies=())


def compared_plans(workspace: Workspace, plans: Sequence[ComparedPlan]) -> Iterator[Record]:
    """Plans next to each other: their bars on one axis, then their figures."""
    with workspace.reading():
        results = []
        for each in plans:
            own, _ = check_file(each.document.path, workspace.data(each.document.path), each.gate)
            results += [result for result in own if result.document == each.document.index]
        names = list(dict.fromkeys(result.gpu for result in results if result.gpu))
        comparison = compare(plans, names) if names else None
    bars = index(story(Report(version=__version__, plans=tuple(results))))
    table = ""
    if comparison is not None:
        own_rows = tuple(row for row in comparison.rows if row.as_written)
        told = compared(comparison._replace(rows=own_rows))
        named = tuple(each._replace(label=f"{each.name} on {each.label}", own=False) for each in told.subjects)
        table = drawn(told._replace(subject="Plan", subjects=named))
    yield Drawn(of="compare", title="Plans side by side", html=bars + table, remedies=())


def drawn(*blocks: Block) -> str:
    """Blocks as the report draws them."""
    return "".join(block(each, "") for each in blocks)


def swept(workspace: Workspace, subject: ComparedPlan, axes: Sequence[Axis]) -> Iterator[Record]:
    """A heat map over values of one, two or more keys.

    Raises:
        UsageError: no axis, a key twice, or too many points.
    """
    points = grid(tuple(axes))
    if points.size > MOST_POINTS:
        raise UsageError(f"{points.size:,} points are more than {MOST_POINTS:,}", "`memcheck sweep` takes more")
    evaluator, slices, found = Evaluator(subject.document, subject.gate), Slices(), []
    for changes in points.points():
        with workspace.reading():
            found.append(evaluator.point(changes))
        if slices.is_due:
            yield Searching(part="sweep", tried=len(found), fits=0)
    sweep = Sweep(
        version=__version__,
        plan=str(subject.document.path),
        path=subject.document.path,
        axes=points.axes,
        points=tuple(found),
    )
    told = "".join(
        section(each, f"sweep-{each.id}", "", half=False)
        for each in (fastest(sweep), refusals(sweep))
        if each is not None
    )
    yield Drawn(of="sweep", title=headline(sweep), html=drawn(*grids(sweep)) + told, remedies=())


def suggested(workspace: Workspace, document: Document, gate: Gate, goal: str) -> Iterator[Record]:
    """The best plans for a goal, each of which passes once it is written.

    Raises:
        UsageError: the goal makes no sense for this plan.
    """
    from memcheck.what_if.suggest.report import document as told  # brings the search of every layout
    from memcheck.what_if.suggest.run import suggest

    with workspace.reading():
        found = suggest(document, workspace.data(document.path), gate, goal=goal, budget=BUDGET_S)
    places = Places(workspace, document.sources)
    groups = [[each for each in group if each is not None] for group in told(found)]
    html = "".join(drawn(*group) for group in groups) or drawn(
        Prose("What fails is not about memory, which is all that a search changes: mend it first.", "bad")
    )
    yield Drawn(
        of="suggest",
        title="Suggestions",
        html=html,
        remedies=tuple(places.remedy(each.remedy, document.path) for each in found.found),
    )


def explained(workspace: Workspace, path: str, gpu: str) -> Iterator[Record]:
    """Why a run ended, from its log or its message."""
    from memcheck.why.answer import as_story  # brings the readers of logs
    from memcheck.why.run import answer

    with workspace.reading():
        found = answer(("-",), stdin=lambda limit: workspace.data(path)[:limit], gpu=gpu or None)
    told = as_story(found)
    html = "".join(parts(told)) + "".join(section(each, f"why-{each.id}", "", half=False) for each in told.sections)
    yield Drawn(of="why", title="Why the run ended", html=html, remedies=())


def reported(workspace: Workspace, path: str, gate: Gate, format: str) -> Iterator[Record]:
    """A report in one of the formats of ``check``."""
    gate = gate._replace(inventory=True, grounds=QUICK, remedies=with_remedies)
    if format in WITH_DOSSIER:
        gate = gate._replace(dossier=make_dossier)
    with workspace.reading():
        results, traces = check_file(path, workspace.data(path), gate)
        report = Report(version=__version__, plans=tuple(results), defects=tuple(traces))
        try:
            made = renderer(format)(report, PLAIN)
        except ImportError as error:
            raise UsageError(f"`{format}` is not in this build: {error.name} is missing", "choose another") from None
    text = made if isinstance(made, str) else base64.b64encode(made).decode("ascii")
    yield Reported(format=format, text=text, encoded=not isinstance(made, str))


def catalog() -> Catalog:
    """What can be chosen by name."""
    models = []
    for name in model_names():
        model = find_model(name)
        family = str(model.config.get("model_type", ""))
        models.append(CatalogModel(name=name, id=model.id, family=family, parameters=model.parameters))
    return Catalog(
        models=tuple(models),
        gpus=tuple(
            CatalogGpu(
                name=each.name,
                memory_bytes=each.memory_bytes,
                arch=each.arch or "",
                bf16_tflops=each.bf16_tflops,
                gpus_per_node=each.gpus_per_node,
            )
            for each in gpu_sizes()
        ),
        exports=tuple(WRITTEN),
        reports=tuple(FORMATS),
    )
