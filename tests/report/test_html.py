"""The HTML report, as strictly as a browser, a screen reader and an attacker would take it."""

from __future__ import annotations

import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from memcheck.edge.screen import between, clean, gib, percent, words
from memcheck.judge import Gate, check_file
from memcheck.report.html import render
from memcheck.report.html.shell import base_styles, stylesheet
from memcheck.rules.result import Report
from memcheck.what_if import make_dossier, with_remedies
from tests.report import formats, samples
from tests.report.forwarded import forwarded, result
from tests.report.html_page import Element, Page
from tests.report.regenerate import HTML

NAMES = (*formats.NAMES, "forwarded")
FIVE = (
    "llama-3.1-8b-fsdp-8xh100",
    "llama-3.1-8b-tp4-a100-40gb",
    "deepseek-v3-1024xh100",
    "llama-3.1-8b-lora-l40s",
    "llama-3.3-70b-inference-4xh100",
)
"""Examples: one that fits, one that fails, a pipeline of experts, adapters, inference."""


@cache
def text(name: str) -> str:
    """A report as a file holds it."""
    return render(forwarded()) if name == "forwarded" else formats.rendered("html", name)


@cache
def page(name: str) -> Element:
    """A report as a browser sees it."""
    return Page(text(name)).root


def body(plan_text: str) -> str:
    """A page without its style sheet."""
    return re.sub("<style>.*?</style>", "", plan_text, flags=re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_markup_is_strict(name: str) -> None:
    """A doctype, a language, one main part, and ids that are there once and found by whoever names them."""
    parsed = Page(text(name))
    assert parsed.doctype == "DOCTYPE html"
    (html,) = parsed.root.children
    assert html.attributes == {"lang": "en"}
    assert [len(html.all(tag)) for tag in ("head", "body", "main", "footer", "h1")] == [1] * 5
    ids = [each.attributes["id"] for each in html.all() if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    named = {each.attributes["href"].removeprefix("#") for each in html.all("a")}
    named |= {each.attributes["aria-labelledby"] for each in html.all() if "aria-labelledby" in each.attributes}
    assert named <= set(ids)


@pytest.mark.parametrize("name", NAMES)
def test_page_loads_and_runs_nothing(name: str) -> None:
    """No script, no handler, no inline style, no image, no address but places in the page itself."""
    for element in page(name).all():
        assert element.tag not in {"script", "link", "img", "iframe", "object", "embed", "form", "input", "base", "use"}
        for key, value in element.attributes.items():
            assert not key.startswith("on"), element.tag
            assert key not in {"src", "srcset", "style", "action", "xlink:href", "data", "background"}
            assert key != "href" or value.startswith("#")
    assert "@import" not in text(name)
    assert "url(" not in text(name).partition("</style>")[0]


@pytest.mark.parametrize("name", NAMES)
def test_headings_are_in_order(name: str) -> None:
    """One h1, first; no level is skipped on the way down, and none is empty."""
    headings = page(name).all("h1", "h2", "h3", "h4", "h5", "h6")
    levels = [int(heading.tag[1]) for heading in headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    assert all(heading.text for heading in headings)


@pytest.mark.parametrize("name", NAMES)
def test_tables_have_heads(name: str) -> None:
    """A caption, a head for every column, a head at the start of every row, and as many cells as heads."""
    for table in page(name).all("table"):
        assert table.children[0].tag == "caption"
        columns = table.all("thead")[0].all("th")
        assert columns
        assert all(head.attributes["scope"] == "col" and head.text for head in columns)
        for row in [row for part in table.all("tbody", "tfoot") for row in part.all("tr")]:
            assert len(row.children) == len(columns)
            assert (row.children[0].tag, row.children[0].attributes["scope"]) == ("th", "row")
            assert {cell.tag for cell in row.children[1:]} <= {"td"}


@pytest.mark.parametrize("name", NAMES)
def test_pictures_have_titles(name: str) -> None:
    """An SVG says in its title what it shows; a swatch, whose name stands beside it, is hidden from screen readers."""
    for svg in page(name).all("svg"):
        if svg.parent is not None and svg.parent.tag == "svg":
            continue
        if svg.attributes.get("aria-hidden") == "true":
            assert svg.parent is not None
            assert svg.parent.text
            continue
        assert svg.attributes["role"] == "img"
        assert svg.children[0].tag == "title"
        assert svg.children[0].text
    for element in page(name).all():
        if "tabindex" in element.attributes:
            assert element.attributes["role"] == "group"
            assert element.attributes["aria-label"]


@pytest.mark.parametrize("name", NAMES)
def test_every_class_has_a_style(name: str) -> None:
    """Nothing carries a class that the style sheet does not know."""
    known = set(re.findall(r"\.([a-z][\w-]*)", stylesheet() + base_styles()))
    used = {word for element in page(name).all() for word in element.classes}
    assert used - known <= {"index", "bar", "chart", "formula"}


def test_user_text_is_never_markup() -> None:
    """A script in a plan's name, path, GPU, values, messages and source stays text, and is shown as such."""
    script = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    where = samples.at(1, 1, 5, path=script, note=script)
    finding = samples.over()._replace(message=script, help=script, location=where, related=((script, where),))
    remedy = samples.REMEDIES[0]._replace(title=script, set={script: script})
    plain = result(54.31, ranks=2, status="failed")
    assert plain.estimate is not None
    answer = plain.estimate._replace(
        operation=script,
        largest=tuple(group._replace(name=script, shape=script) for group in plain.estimate.largest),
        formulas=tuple(f._replace(formula=script, numbers=script, source=script) for f in plain.estimate.formulas),
    )
    assert plain.dossier is not None
    dossier = plain.dossier._replace(
        basis=script, gpus=tuple(gpu._replace(gpu=script, refused=script) for gpu in plain.dossier.gpus)
    )
    plan = plain._replace(
        path=script, name=script, gpu=script, model=script, framework=script, estimate=answer, dossier=dossier,
        findings=(finding._replace(remedies=(remedy,)),), sources={script: (script, script)},
        assumptions=tuple(item._replace(key=script, value=script, why=script) for item in plain.assumptions),
    )  # fmt: skip
    shown = render(samples.report(plan, plan))
    root = Page(shown).root
    assert not root.all("script", "img")
    assert "<script" not in body(shown)
    assert "<img" not in shown
    assert not [key for element in root.all() for key in element.attributes if key.startswith("on")]
    assert root.all("title")[0].text == "GPU memory of 2 plans"
    assert root.all("h2")[0].text == script
    assert root.text.count("<script>alert(1)</script>") > 20


def test_control_characters_are_shown_not_sent() -> None:
    """Escapes, null and lone surrogates appear as their codes; the file is valid UTF-8."""
    shown = text("evil")
    assert not set(map(ord, shown)) & {*range(9), *range(11, 32), 0xFFFE, 0xD800}
    assert "\\x1b[31m" in shown
    shown.encode("utf-8")


@pytest.mark.slow
def test_report_is_deterministic() -> None:
    """The same results are the same bytes, and no date or machine is in them."""
    assert render(forwarded()) == text("forwarded")
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text("forwarded"))
    assert os.uname().nodename not in text("forwarded") if hasattr(os, "uname") else True


def test_golden_file_is_unchanged() -> None:
    """Byte for byte; ``python -m tests.report.regenerate`` after a change that is meant."""
    assert text("forwarded") == HTML.read_text(encoding="utf-8")


def test_everything_is_told() -> None:
    """Verdicts, figures, components, remedies, GPUs, assumptions, formulas, the interval's basis, findings."""
    said = page("forwarded").text
    for word in ("Fits", "Uncertain", "Does not fit", "Fits, with a warning", "Not estimated"):
        assert word in said
    for plan in forwarded().plans:
        assert plan.name in said
        for finding in plan.findings:
            assert finding.code in said
            assert finding.message in said
            for remedy in finding.remedies:
                assert all(key in said for key in remedy.set)
                assert percent(remedy.utilization) in said
        if plan.estimate is None or plan.dossier is None:
            continue
        assert percent(plan.estimate.utilization) in said
        assert f"{between(plan.estimate.interval_bytes)} GiB" in said
        for name, count in plan.estimate.components_bytes.items():
            assert f"{words(name)} {gib(count)}" in said
        for instant in plan.estimate.ranks[0].instants:
            assert instant.operation in said
        for group in plan.estimate.largest:
            assert group.name in said
        for item in plan.assumptions:
            assert item.why in said
        for formula in plan.estimate.formulas:
            assert formula.numbers in said
            assert formula.source in said
        for gpu in plan.dossier.gpus:
            assert gpu.gpu in said
            assert gpu.refused in said
        assert plan.dossier.basis in said
    assert "gone.yaml" in said
    assert all(clean(line) in said for line in ("micro_batch_size: 4", "39.38 GiB usable of 40 GB"))


def test_index_leads_to_every_plan() -> None:
    """Several plans have an index with their verdicts; a single one has none."""
    root = page("forwarded")
    found = {link.attributes["href"]: link.text for link in root.all("nav")[0].all("a")}
    anchors = [section.attributes["id"] for section in root.all("section") if "plan" in section.classes]
    assert found == {f"#{anchor}": plan.name for anchor, plan in zip(anchors, forwarded().plans, strict=True)}
    assert not page("clean").all("nav")


def test_index_has_the_worst_first_on_one_axis() -> None:
    """What fails stands above what passes, the fuller above; a card ends at the same place in every line."""
    plans = tuple(
        result(need, status="failed" if need > 72 else "passed")._replace(name=str(need))
        for need in (30.0, 200.0, 96.0)
    )
    nav = Page(render(Report("", plans))).root.all("nav")[0]
    assert [link.text for link in nav.all("a")] == ["200.0", "96.0", "30.0"]
    ends = {line.attributes["x1"] for line in nav.all("line") if "line" in line.classes}
    assert len(ends) == 1
    shown = {rect.attributes["class"] for rect in nav.all("ol")[0].all("rect")} - {"track", "gap"}
    (legend,) = [each for each in nav.all("p") if "legend" in each.classes]
    assert {rect.attributes["class"] for rect in legend.all("rect")} == shown


def test_bars_end_where_the_figures_say() -> None:
    """The stretches of the large bar add up to the need, and the capacity line stands at the capacity."""
    plan = result(54.31, status="failed")
    svg = next(each for each in Page(render(samples.report(plan))).root.all("svg") if "big" in each.classes)
    widths = [
        float(r.attributes["width"].rstrip("%")) for r in svg.all("rect") if r.attributes["class"].startswith("c-")
    ]
    estimate = plan.estimate
    assert estimate is not None
    full = estimate.needed_interval_bytes[1]
    assert sum(widths) == pytest.approx(100 * estimate.device_bytes / full, abs=0.1)
    (line,) = [each for each in svg.all("line") if "line" in each.classes]
    assert float(line.attributes["x1"].rstrip("%")) == pytest.approx(100 * estimate.capacity_bytes / full, abs=0.01)


def test_every_colour_of_a_bar_is_explained_beside_it() -> None:
    """Also the cache, which is no part of what is needed: a grey that nothing names would be a riddle."""
    plan = result(30.0)
    answer = plan.estimate
    assert answer is not None
    parts = {**answer.components_bytes, "fragmentation": 2**31}
    with_cache = answer._replace(components_bytes=parts, cache_bytes=2**30)
    shown = Page(render(Report("", (plan._replace(estimate=with_cache),)))).root
    (section,) = [each for each in shown.all("section") if "plan" in each.classes]
    drawn = {each.attributes["class"] for each in section.all("svg")[0].all("rect")} - {"track", "gap"}
    named = {rect.attributes["class"] for table in section.all("table") for rect in table.all("rect")}
    assert "c-cache" in drawn
    assert drawn <= named


def test_estimates_have_figures_and_no_findings() -> None:
    """What ``estimate`` shows: everything but the findings, except for a plan of which they are all there is."""
    parsed = Page(render(forwarded(), checked=False)).root
    headings = [heading.text for heading in parsed.all("h3")]
    assert [heading for heading in headings if "finding" in heading] == ["1 finding in the plan"]
    assert "What would help" in headings
    assert "estimated 6 plans" in parsed.text


@pytest.mark.parametrize("name", FIVE)
def test_real_plans_make_modest_pages(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """At most 150 kB a plan, with every section that the plan has something for."""
    monkeypatch.chdir(root)
    path = f"examples/{name}.yaml"
    plans, traces = check_file(path, Path(path).read_bytes(), Gate(dossier=make_dossier, remedies=with_remedies))
    assert not traces
    shown = render(Report("0.1.0", tuple(plans)))
    assert len(shown.encode()) < 150_000 * len(plans)
    parsed = Page(shown).root
    headings = {heading.text for heading in parsed.all("h3")}
    assert headings >= {
        "Where the memory goes",
        "On other GPUs",
        "Largest live tensors at the peak",
        "Formulas and their sources",
        "How sure this is",
        "Assumptions",
    }
    several = any(plan.dossier is not None and len(plan.dossier.ranks) > 1 for plan in plans)
    assert ("Every rank" in headings) == several
    assert ("What would help" in headings) == any(plan.status == "failed" for plan in plans)
