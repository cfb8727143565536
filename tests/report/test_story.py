"""The report as data: valid, complete, with ids that stay."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks.over_budget import plans as over_budget
from docs.story_schema import story_schema
from memcheck.edge.screen import Screen, gib
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Edit, FileEdits, Span
from memcheck.plan.value_edits import edited
from memcheck.report import story, text
from memcheck.report.html import render as page
from memcheck.report.html.document import block as draw_html
from memcheck.report.story import blocks
from memcheck.report.story.build import BLOCKS, LONGEST_LINE, document, render
from memcheck.report.story.build import story as told
from memcheck.rules.result import Report
from memcheck.what_if import make_dossier, with_remedies
from tests.report import formats, samples
from tests.report.forwarded import forwarded

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
OVER = over_budget()


@cache
def validator() -> jsonschema.Draft7Validator:
    """The schema as it ships, in which a field that it does not name is an error."""
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "story.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    for each in (schema, *schema["definitions"].values()):
        if "properties" in each:
            each["additionalProperties"] = False
    return jsonschema.Draft7Validator(schema)


def checked(path: str, data: bytes, **more: Any) -> Report:
    """The report on one file, with everything that a page shows."""
    results, traces = check_file(path, data, Gate(remedies=with_remedies, grounds=3, inventory=True, **more))
    assert traces == []
    return Report("0.0.0", tuple(results))


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object of a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(each)


def test_the_schema_is_written_from_the_records() -> None:
    """``python -m docs.generate`` after a change of the records."""
    assert (Path(__file__).parents[2] / "schemas" / "story.schema.json").read_text(encoding="utf-8") == story_schema()


@pytest.mark.slow
@pytest.mark.parametrize("name", formats.NAMES)
def test_reports_follow_the_schema(name: str) -> None:
    """Hand-made reports of every kind, broken and hostile ones among them."""
    validator().validate(json.loads(formats.rendered("story", name)))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES[::2], ids=lambda path: path.stem)
def test_examples_follow_the_schema(path: Path) -> None:
    """Every second example with its remedies; half of these with the findings left out."""
    report = checked(str(path), path.read_bytes())
    validator().validate(json.loads(render(report, checked=EXAMPLES.index(path) % 4 == 0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", OVER)
def test_plans_that_are_too_large_follow_the_schema(name: str) -> None:
    """Remedies of 1 to 2,048 GPUs, and the same plan on other GPUs."""
    found = json.loads(render(checked(f"{name}.yaml", OVER[name].encode(), dossier=make_dossier)))
    validator().validate(found)
    ids = [each["id"] for each in nodes(found["plans"]) if "id" in each]
    assert len(ids) == len(set(ids))


def test_every_block_has_a_kind_and_a_place_in_the_schema() -> None:
    """A new block is in the union that sections hold, and has a word of its own."""
    kinds = set(blocks.Block.__args__)  # type: ignore[attr-defined]
    assert kinds == set(BLOCKS)
    assert len(set(BLOCKS.values())) == len(BLOCKS)


EDIT = Edit(Span(1, 1, 1, 2), "b")
LINE = blocks.SourceLine(1, "tensor: 4", (blocks.SourceMark(column=1, end_column=7, label="here", primary=True),))
CHART = blocks.Chart(
    id="c", title="t", bars=(blocks.Bar("one", (blocks.Segment("parameters", 5),), "5.00"),), scale=blocks.Scale(9, 9)
)
TABLE = blocks.Table("caption", ("key", "GiB"), (("word of the table", "1.00"),), right=(1,))
EXCERPT = blocks.Excerpt(
    id="e",
    severity="error",
    tone="bad",
    code="MEM203",
    name="rule",
    message="word of the excerpt",
    files=(blocks.SourceFile("a.yaml", 1, 1, (LINE,)),),
)
STEP = blocks.RemedyStep(
    id="r",
    title="word of the step",
    group="other_hardware",
    asks="other hardware",
    changes=(blocks.KeyChange(key="hardware.nodes", before="1", after="2", value=2),),
    measures=(blocks.Measure(name="of capacity", title="of capacity", before="110%", after="55%"),),
    effect="110% -> 55%",
    time="0%",
    purpose="",
    takes=(),
    paid="",
    costs=(blocks.Cost("good", "same results"),),
    tone="good",
    edits=(FileEdits("a.yaml", (EDIT,)),),
)
GAUGE = story.Gauge(
    needed_bytes=4,
    seen_bytes=5,
    capacity_bytes=9,
    limit_bytes=8,
    tone="good",
    share="44.4%",
    numbers="word of the gauge",
)
HEAD = story.PlanHead(name="word of the head", path="a.yaml", word="pass", tone="good")
CELL = blocks.GridCell("44.4%", "fits-50", "1,234", "detail")
SAMPLES = {
    story.Prose: (story.Prose("word of the text"), "word of the text"),
    story.Fitting: (story.Fitting("word of", (" the line",)), "word of the line"),
    story.Gauge: (GAUGE, "word of the gauge"),
    story.PlanHead: (HEAD, "word of the head"),
    story.PlanSummary: (story.PlanSummary(HEAD, GAUGE, (story.Prose("word below"),)), "word below"),
    blocks.Facts: (blocks.Facts((blocks.Fact("label", "word of the fact"),)), "word of the fact"),
    blocks.Item: (blocks.Item(story.Prose("head"), (story.Prose("word of the item"),)), "word of the item"),
    blocks.Chart: (CHART, "5.00"),
    blocks.Table: (TABLE, "word of the table"),
    blocks.Cards: (blocks.Cards((blocks.Card("g", "word of the card", "Fits", "good", ("1 of 2 GiB",)),)), "Fits"),
    blocks.Remedies: (blocks.Remedies("rs", "remedies", (STEP,)), "hardware.nodes"),
    blocks.Ledger: (
        blocks.Ledger(
            title="memory",
            caption="caption",
            share_head="of capacity",
            parts=(blocks.LedgerRow("parameters", 2**30, "parameters"),),
            needed=blocks.LedgerRow("word of the need", 2**30),
            capacity=blocks.LedgerRow("capacity", 2**31),
        ),
        "word of the need",
    ),
    blocks.Excerpt: (EXCERPT, "word of the excerpt"),
    blocks.Excerpts: (blocks.Excerpts((EXCERPT,)), "word of the excerpt"),
    blocks.Formulas: (
        blocks.Formulas(
            "formulas",
            (
                blocks.ComponentFormula(
                    key="parameters", name="parameters", figure="1", lines=("word of the formula",), source=""
                ),
            ),
        ),
        "word of the formula",
    ),
    blocks.Comparison: (
        blocks.Comparison(
            id="comparison",
            subject="GPU",
            quantities=(blocks.Quantity("verdict"), blocks.Quantity("used", "low")),
            subjects=(
                blocks.Compared("h100", ("fits", "40%"), (None, 0.4)),
                blocks.Compared("word of the subject", ("fits", "60%"), (None, 0.6)),
            ),
        ),
        "word of the subject",
    ),
    blocks.Grid: (
        blocks.Grid(
            id="grid-0",
            title="word of the map",
            caption="caption",
            row_key="batch",
            rows=("1",),
            columns=("2048",),
            cells=((CELL,),),
        ),
        "44.4%",
    ),
}


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.__name__)
def test_every_medium_draws_every_block(kind: type) -> None:
    """Terminal, page and paper show the words of each kind of block, and its data follows the schema."""
    block, words = SAMPLES[kind]
    assert type(block) is kind
    assert words in "\n".join(text.lines([block], Screen()))
    assert words in re.sub("<[^>]+>", "", draw_html(block, "name")).replace("<wbr>", "")
    pdf = pytest.importorskip("memcheck.report.pdf.document")
    assert pdf.block(block, 500.0)
    section = blocks.Section("s", "title", (block,))
    plan = told(forwarded()).plans[0]._replace(sections=(section,))
    validator().validate(document(told(forwarded())._replace(plans=(plan,))))


def test_a_comparison_marks_the_best() -> None:
    """The least of what should be low stands in bold on the page, and what cannot be compared does not."""
    found, _ = SAMPLES[blocks.Comparison]
    assert isinstance(found, blocks.Comparison)
    assert (found.best(0), found.best(1)) == ((), (0,))
    assert "<b>40%</b>" in draw_html(found, "name")
    assert "<b>60%</b>" not in draw_html(found, "name")


def test_ids_are_unique_and_stay() -> None:
    """Within a plan no id comes twice; lines above a plan's keys move none of its ids, and another value moves one."""
    path = "examples/llama-3.1-8b-tp4-a100-40gb.yaml"
    data = (EXAMPLES[0].parents[1] / path).read_bytes()

    def ids(changed: bytes) -> list[str]:
        found = document(told(checked(path, changed, dossier=make_dossier)))
        return [each["id"] for each in nodes(found["plans"]) if "id" in each]

    before = ids(data)
    assert len(before) == len(set(before))
    assert ids(b"# one more line\n\n" + data) == before
    assert any(each.startswith("remedy-") for each in before)
    assert {"memory", "step", "remedies", "gpus", "findings", "gpu-h100-80gb"} <= set(before)


def test_remedies_can_be_applied() -> None:
    """The edits of a remedy are those of the finding: written into the plan, they set the values that it names."""
    path = EXAMPLES[0].parent / "llama-3.1-8b-tp4-a100-40gb.yaml"
    report = checked(str(path), path.read_bytes())
    (section,) = (each for each in told(report).plans[0].sections if each.id == "remedies")
    steps = [step for block in section.blocks if isinstance(block, blocks.Remedies) for step in block.steps]
    assert steps
    for step in steps:
        for file in step.edits:
            after = checked(str(path), edited(path.read_bytes(), file.edits)).plans[0]
            for change in step.changes:
                value: Any = after.values
                for part in change.key.split("."):
                    value = value[part] if isinstance(value, dict) else value
                assert value == change.value


def test_marks_are_columns_of_the_source() -> None:
    """A program that draws an excerpt needs no other text than the document's."""
    report = samples.mixed()
    for plan in report.plans:
        for finding in plan.findings:
            span = finding.location.span
            files = told(samples.report(plan)).plans[0].sections
            (section,) = (each for each in files if each.id == "findings")
            (block,) = section.blocks
            assert isinstance(block, blocks.Excerpts)
            excerpt = next(each for each in block.excerpts if each.message == finding.message)
            marks = [
                (line.number, mark.column)
                for file in excerpt.files
                for line in file.lines
                for mark in line.marks
                if mark.primary
            ]
            assert marks == [(span.line, span.column)] or not marks


def test_a_long_line_is_cut() -> None:
    """A line of a mebibyte takes no more room in the document than the most that a reader looks at."""
    line = blocks.SourceLine(1, "x" * 2**20, (blocks.SourceMark(1, 2**20, "", primary=True),))
    story_ = told(forwarded())
    found = json.loads(render(forwarded()))
    assert found["plans"][0]["id"]
    from memcheck.report.story.build import as_data

    cut = as_data(line)
    assert isinstance(cut, dict)
    assert len(str(cut["text"])) == LONGEST_LINE
    assert cut["marks"] == [
        {"column": 1, "end_column": LONGEST_LINE + 1, "label": "", "primary": True, "goes_on": False}
    ]
    assert story_.plans


def test_the_page_shows_the_figures_of_the_document() -> None:
    """Every amount of a ledger stands on the page as the document has it."""
    html = page(forwarded())
    amounts = [
        each["bytes"] for each in nodes(document(told(forwarded()))["plans"]) if each.keys() >= {"label", "bytes"}
    ]
    assert len(amounts) > 20
    assert [count for count in amounts if gib(count) not in html] == []
