"""What a visit asks for now and then: import, export, comparison, sweep, suggestions, log, report, link, catalog."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from memcheck import __version__
from memcheck.catalog.names import find_gpu, find_model, gpu_sizes, model_names
from memcheck.config.find import QUICK
from memcheck.configs.documents import load_plans
from memcheck.configs.formats import FORMATS as CONFIGS
from memcheck.configs.formats import WRITTEN
from memcheck.configs.importing import exported, import_config
from memcheck.configs.types import ReadSetting
from memcheck.edge.screen import Screen
from memcheck.errors import UsageError
from memcheck.judge import check_file
from memcheck.live.answer import Places, Slices
from memcheck.live.link import SharedPlan, shareable, warning, write_link
from memcheck.live.replies import (
    AssumedValue,
    Catalog,
    CatalogGpu,
    CatalogModel,
    Drawn,
    Exported,
    ImportedPlan,
    Linked,
    Remark,
    Reported,
    Searching,
)
from memcheck.live.requests import Workspace
from memcheck.plan.finding import Location
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.live.protocol import Fields, Session

MOST_PLANS = 8
"""Plans that are compared with each other."""
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
PLAIN = Screen()


def imported(session: Session, fields: Fields) -> Iterator[Record]:
    """The plan of a framework's config, a script or a launch line; without one, what has to be said.

    Raises:
        UsageError: memcheck does not know the format.
    """
    hardware, settings = (cast("Fields", fields.get(name) or {}) for name in ("hardware", "settings"))
    format = str(fields.get("format", ""))
    if format and format not in CONFIGS:
        raise UsageError(f"no config has the format {format[:50]!r}", f"one of: {', '.join(CONFIGS)}")
    workspace, path = session.workspace, session.path
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


def written_config(session: Session, fields: Fields) -> Iterator[Record]:
    """The config of a framework that runs the plan.

    Raises:
        RefusedPlanError: the plan is wrong, or trains nothing.
    """
    document, format = session.document_of(fields), str(fields["format"])
    with session.workspace.reading():
        written = exported(document, format)
    yield Exported(
        format=format,
        name=FILE_NAMES.get(format, f"{format}.txt"),
        text=written.text,
        notices=tuple(f"{each.kind}: {each.key}: {each.message}" for each in written.notices),
    )


def compared_subjects(session: Session, fields: Fields) -> Iterator[Record]:
    """The plan on several GPUs as a table, or next to other plans."""
    gate, workspace = session.gate_of(fields), session.workspace
    plans = [ComparedPlan(session.document_of(fields), gate)]
    others = cast("Sequence[str]", fields.get("plans") or ())
    if not others:
        names = [find_gpu(each).name for each in cast("Sequence[str]", fields.get("gpus") or ())]
        with workspace.reading():
            found = compared(compare(plans, names or None))
        yield Drawn(of="compare", title="On several GPUs", html=drawn(found), remedies=())
        return
    with workspace.reading():
        for name in others:
            read = load_plans(name, workspace.data(name), hardware=gate.hardware)
            plans += [ComparedPlan(each, gate) for each in read[:MOST_PLANS]]
    yield side_by_side(workspace, plans[:MOST_PLANS])


def side_by_side(workspace: Workspace, plans: Sequence[ComparedPlan]) -> Drawn:
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
    return Drawn(of="compare", title="Plans side by side", html=bars + table, remedies=())


def drawn(*blocks: Block) -> str:
    """Blocks as the report draws them."""
    return "".join(block(each, "") for each in blocks)


def swept(session: Session, fields: Fields) -> Iterator[Record]:
    """A heat map over values of one, two or more keys.

    Raises:
        UsageError: no axis, one without values, a key twice, or too many points.
    """
    document = session.document_of(fields)
    values = cast("Mapping[str, Sequence[object]]", fields["values"])
    axes = tuple(Axis(key, tuple(each)) for key, each in values.items())
    for axis in axes:
        if not axis.values or not all(axis.key.split(".")):
            raise UsageError(f"{axis.key[:50]!r} has no values to sweep", "such as training.micro_batch_size: [1, 2]")
    points = grid(axes)
    if points.size > MOST_POINTS:
        raise UsageError(f"{points.size:,} points are more than {MOST_POINTS:,}", "`memcheck sweep` takes more")
    evaluator, slices, found = Evaluator(document, session.gate_of(fields)), Slices(), []
    for changes in points.points():
        with session.workspace.reading():
            found.append(evaluator.point(changes))
        if slices.is_due:
            yield Searching(part="sweep", tried=len(found), fits=0)
    sweep = Sweep(
        version=__version__,
        plan=document.path,
        path=document.path,
        axes=points.axes,
        points=tuple(found),
    )
    told = "".join(
        section(each, f"sweep-{each.id}", "", half=False)
        for each in (fastest(sweep), refusals(sweep))
        if each is not None
    )
    yield Drawn(of="sweep", title=headline(sweep), html=drawn(*grids(sweep)) + told, remedies=())


def suggested(session: Session, fields: Fields) -> Iterator[Record]:
    """The best plans for a goal, each of which passes once it is written.

    Raises:
        UsageError: the goal makes no sense for this plan.
    """
    from memcheck.what_if.suggest.report import document as told  # brings the search of every layout
    from memcheck.what_if.suggest.run import suggest

    workspace, document, gate = session.workspace, session.document_of(fields), session.gate_of(fields)
    goal = str(fields.get("goal", "fit"))
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


def explained(session: Session, fields: Fields) -> Iterator[Record]:
    """Why a run ended, from its log or its message."""
    from memcheck.why.answer import as_story  # brings the readers of logs
    from memcheck.why.run import answer

    workspace, gpu = session.workspace, str(fields.get("gpu", ""))
    with workspace.reading():
        found = answer(("-",), stdin=lambda limit: workspace.data(session.path)[:limit], gpu=gpu or None)
    told = as_story(found)
    html = "".join(parts(told)) + "".join(section(each, f"why-{each.id}", "", half=False) for each in told.sections)
    yield Drawn(of="why", title="Why the run ended", html=html, remedies=())


def reported(session: Session, fields: Fields) -> Iterator[Record]:
    """A report in one of the formats of ``check``."""
    workspace, path, format = session.workspace, session.path, str(fields["format"])
    gate = session.gate_of(fields)._replace(inventory=True, grounds=QUICK, remedies=with_remedies)
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


def link(session: Session, fields: Fields) -> Iterator[Record]:
    """Put the plan into a link."""
    texts, flat = [], False
    for path in (session.path, fields.get("compared")):
        if path is None:
            texts.append("")
            continue
        data = session.workspace.data(str(path))
        with session.workspace.reading():
            documents = load_plans(str(path), data, hardware=session.gate_of(fields).hardware)
            text, is_flat = shareable(str(path), data, documents)
        texts.append(text)
        flat |= is_flat
    section = str(fields.get("section", ""))
    shared = SharedPlan(
        plan=texts[0], compared=texts[1], document=session.document, version=__version__, section=section[:100]
    )
    found = write_link(shared)
    yield Linked(fragment=found, flattened=flat, warning=warning(found))


def catalog(session: Session, fields: Fields) -> Iterator[Record]:
    """What can be chosen by name."""
    del session, fields
    models = []
    for name in model_names():
        model = find_model(name)
        family = str(model.config.get("model_type", ""))
        models.append(CatalogModel(name=name, id=model.id, family=family, parameters=model.parameters))
    yield Catalog(
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


ASKED: Mapping[str, Callable[[Session, Fields], Iterator[Record]]] = {
    "import": imported,
    "export": written_config,
    "compare": compared_subjects,
    "sweep": swept,
    "suggest": suggested,
    "why": explained,
    "report": reported,
    "link": link,
    "catalog": catalog,
}
"""What answers each of these requests."""
