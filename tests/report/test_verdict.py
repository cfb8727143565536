"""What every report says of a plan that fails, whatever it fails by: the same verdict, the same figures."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from memcheck.edge.screen import Screen, between, gib, percent
from memcheck.memory.fit import host_excess
from memcheck.report.html import render
from memcheck.report.screens import fullest
from memcheck.report.story.build import story
from memcheck.report.story.remedies import (
    ASKS,
    SILENT,
    all_remedies,
    change_lines,
    ends_the_finding,
    on_the_host,
    step,
    time,
)
from memcheck.report.verdict import lead, verdict
from memcheck.rules.result import COMMENT, Hidden, PlanResult, Report
from tests.report import samples
from tests.report.failing import PLANS, judged, said
from tests.report.html_page import Element, Page

WORDS = {
    "host-load": "Does not fit: host memory",
    "host-step": "Does not fit: host memory",
    "host-and-gpu": "Does not fit",
    "host-and-rule": "Does not fit: host memory",
    "gpu-load": "Does not fit",
    "gpu-save": "Does not fit",
    "gpu-step": "Does not fit",
    "above-limit": "Uncertain, fails the check",
    "uncertain": "Uncertain",
    "rule": "Fits, fails the check",
    "illegal": "Not estimated",
    "serving": "Does not fit",
    "serving-fits": "Fits",
}
SHORT = tuple(name for name in PLANS if name.startswith("host"))
HOST_ONLY = ("host-load", "host-step")


def page(name: str) -> Element:
    """The HTML report of one plan."""
    return Page(render(Report("0.1.0", (judged(name),)))).root


def missing(plan: PlanResult) -> str:
    """What a node lacks, in GiB."""
    (worst, *_) = host_excess(plan.estimate, plan.host_capacity_bytes)
    return gib(worst.bytes - plan.host_capacity_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_the_word_is_the_same_everywhere(name: str) -> None:
    """HTML, Markdown, CSV and the card of the plan's own GPU say one word; JSON says what it is made of."""
    plan, word = judged(name), WORDS[name]
    assert verdict(plan).word == word
    badges = [each.text for each in page(name).all("span") if "badge" in each.classes]
    assert badges[0] == word
    assert f" | {word}" in said("markdown", name)
    row = next(csv.DictReader(io.StringIO(said("csv", name))))
    assert row["verdict"] == word
    if plan.estimate is None:
        return
    cards = next(each for each in page(name).all("ul") if "grid" in each.classes).all("li")
    assert word in cards[0].text
    (record,) = json.loads(said("json", name))["plans"]
    fits = record["estimate"]["fits"]
    assert fits["host"] == (name not in SHORT)
    gpu = {"Does not fit": "does-not-fit", "Uncertain, fails the check": "above-limit", "Uncertain": "uncertain"}
    assert fits["gpu"] == gpu.get(word, "fits")
    answer = record["estimate"]["verdict"]
    assert answer.replace("_", " ") == word.lower().partition(",")[0].partition(":")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_node_that_lacks_memory_is_told_with_its_figures(name: str) -> None:
    """Every report says how much a node needs of how much, and when; people are told what is missing."""
    plan = judged(name)
    worst = host_excess(plan.estimate, plan.host_capacity_bytes)[0]
    need, has = gib(worst.bytes), gib(plan.host_capacity_bytes)
    for form in ("full", "markdown", "github", "html", "junit"):
        text = said(form, name)
        assert need in text, form
        assert has in text, form
        assert missing(plan) in text, form
        assert worst.operation in text, form
    assert f"{need} GiB of host memory" in lead(plan)
    assert f"{missing(plan)} GiB are missing" in lead(plan)
    row = next(csv.DictReader(io.StringIO(said("csv", name))))
    assert int(row["host_bytes_per_node"]) == worst.bytes
    assert int(row["host_capacity_bytes"]) == plan.host_capacity_bytes
    (record,) = json.loads(said("json", name))["plans"]
    assert record["estimate"]["host_capacity_bytes"] == plan.host_capacity_bytes


@pytest.mark.parametrize("name", HOST_ONLY)
def test_where_only_a_node_fails_remedies_show_its_memory(name: str) -> None:
    """Before and after are GiB of host memory, first of all; each remedy ends below what a node has."""
    plan = judged(name)
    found = all_remedies(plan)
    assert found
    before = gib(plan.estimate.host_bytes_per_node)
    for remedy in found:
        assert ends_the_finding(plan, remedy)
        after = gib(remedy.host_bytes_per_node)
        assert remedy.host_bytes_per_node <= plan.host_capacity_bytes
        assert step(plan, remedy).effect.startswith(f"host {before} -> {after} GiB, GPU ")
        for form in ("full", "github", "sarif"):
            assert f"{before} -> {after}" in said(form, name), form
        assert f"{before} → {after}" in said("markdown", name)
    assert found[0].host_bytes_per_node == min(r.host_bytes_per_node for r in found if r.set == found[0].set)
    finding = next(each for each in plan.findings if each.code == "MEM106")
    assert f"{before} -> {gib(found[0].host_bytes_per_node)} GiB of host memory" in finding.help
    told = story(samples.report(plan)).plans[0]
    assert f"Host memory of a node goes from {before} to {gib(found[0].host_bytes_per_node)} GiB" in told.advice


@pytest.mark.parametrize("name", HOST_ONLY)
def test_bars_of_remedies_are_host_memory(name: str) -> None:
    """The page draws the host before and after on one axis, and the GPU's share below it."""
    plan = judged(name)
    first = next(each for each in page(name).all("ol") if "steps" in each.classes).all("li")[0]
    labels = [each.text for each in first.all("span") if "badge" not in each.classes]
    assert labels == ["host now", "host then", "GPU now", "GPU then"]
    bars = [svg for svg in first.all("svg") if "bar" in svg.classes]
    widths = [
        float(next(r for r in svg.all("rect") if r.attributes["class"].startswith("c-")).attributes["width"][:-1])
        for svg in bars[:2]
        if any(r.attributes["class"].startswith("c-") for r in svg.all("rect"))
    ]
    remedy = all_remedies(plan)[0]
    assert widths[0] == pytest.approx(100, abs=0.1)
    if remedy.host_bytes_per_node:
        share = remedy.host_bytes_per_node / plan.estimate.host_bytes_per_node
        assert widths[1] == pytest.approx(100 * share, abs=0.1)


@pytest.mark.parametrize("name", HOST_ONLY)
def test_the_large_bar_is_of_the_memory_that_fails(name: str) -> None:
    """A node's bar comes before the GPU's, and its line stands at what a node has."""
    plan = judged(name)
    first, second = [each for each in page(name).all("svg") if "big" in each.classes]
    assert f"memory of a node {gib(plan.host_capacity_bytes)} GiB" in first.text
    assert f"capacity of a GPU {gib(plan.estimate.capacity_bytes)} GiB" in second.text
    (line,) = [each for each in first.all("line") if "line" in each.classes]
    share = plan.host_capacity_bytes / plan.estimate.host_bytes_per_node
    assert float(line.attributes["x1"].rstrip("%")) == pytest.approx(100 * share, abs=0.01)


@pytest.mark.parametrize("name", HOST_ONLY)
def test_no_other_gpu_gives_a_node_more_memory(name: str) -> None:
    """Cards of GPUs that would have room say what fails there as well; their bars show the room."""
    cards = next(each for each in page(name).all("ul") if "grid" in each.classes).all("li")
    assert len(cards) > 5
    for card in cards:
        assert "Does not fit" in card.text
        assert "Fits" not in card.text
    assert "None of them gives a node more host memory" in page(name).text


def test_gpu_cards_of_a_plan_that_a_rule_fails() -> None:
    """The plan's own GPU lacks bf16 and says so; the others have it, and fit."""
    cards = next(each for each in page("rule").all("ul") if "grid" in each.classes).all("li")
    assert "Fits, fails the check" in cards[0].text
    assert "MEM301" in cards[0].text
    assert all("Fits" in card.text for card in cards[1:])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "when"), [("gpu-load", "is loaded"), ("gpu-save", "is saved"), ("gpu-step", "")])
def test_moments_outside_the_steps_are_named(name: str, when: str) -> None:
    """A GPU that overflows before or after the steps is told with that moment; in a step nothing more is said."""
    plan = judged(name)
    assert ("while" in lead(plan)) == bool(when)
    assert when in lead(plan)
    assert f"{gib(plan.estimate.needed_bytes - plan.estimate.capacity_bytes)} GiB too much" in lead(plan)
    heading = "Memory over a step" if not when else "Memory from loading to saving"
    assert heading in [each.text for each in page(name).all("h3")]


def test_an_error_that_is_not_about_memory_comes_first() -> None:
    """The sentence names the rule and what it says, then the room that there would be."""
    assert lead(judged("rule")).startswith("Fails by MEM301 no-bf16: bf16-mixed needs bf16 arithmetic")
    assert "GiB remain" in lead(judged("rule"))
    assert "It also fails by MEM301 no-bf16" in lead(judged("host-and-rule"))
    assert re.match(r"1 error to mend before .* predicted: MEM201 world-size: ", lead(judged("illegal")))


def test_both_memories_are_told() -> None:
    """A plan that overflows the GPU and a node says both, the GPU first, and draws both."""
    plan = judged("host-and-gpu")
    told = lead(plan)
    assert told.index("GiB too much") < told.index("GiB are missing")
    assert len(story(samples.report(plan)).plans[0].pictures) == 2
    assert story(samples.report(plan)).plans[0].used == percent(plan.estimate.utilization)


def test_uncertain_says_by_how_much() -> None:
    """The upper end of the interval, and how far it reaches beyond the capacity."""
    plan = judged("uncertain")
    low, high = plan.estimate.needed_interval_bytes
    assert low < plan.estimate.needed_bytes <= plan.estimate.capacity_bytes < high
    over = gib(high - int(plan.estimate.capacity_bytes * plan.fail_above))
    assert f"It may be {between((low, high))} GiB, which is up to {over} GiB more than " in lead(plan)


def test_what_a_comment_accepts_is_told_all_the_same() -> None:
    """A hidden finding fails nothing and is said to be accepted; no GPU's card contradicts the plan's."""
    plan = judged("rule")
    hidden = plan._replace(status="passed", findings=(), hidden=(Hidden(plan.findings[0], COMMENT, "known"),))
    assert verdict(hidden).word == "Accepted"
    root = Page(render(Report("0.1.0", (hidden,)))).root
    assert "fails the check" not in root.text
    host = judged("host-load")
    accepted = host._replace(status="passed", findings=(), hidden=(Hidden(host.findings[0], COMMENT, "known"),))
    assert verdict(accepted).word == "Accepted"
    assert "Accepted: MEM106 host-memory by a comment: known." in lead(accepted)


def test_estimates_judge_figures_alone() -> None:
    """Without findings the page still says what the figures do: a node that lacks memory, and no rule."""
    assert verdict(judged("host-load"), checked=False).word == "Does not fit: host memory"
    assert verdict(judged("rule"), checked=False).word == "Fits"
    assert "MEM301" not in lead(judged("rule"), checked=False)


def test_host_memory_is_a_price() -> None:
    """A remedy that makes room on the GPU with memory of a node says how much it takes; others do not."""
    plan = judged("gpu-step")
    remedy = all_remedies(plan)[0]._replace(host_bytes_per_node=plan.estimate.host_bytes_per_node)
    assert on_the_host(plan, remedy) == ""
    more = remedy._replace(host_bytes_per_node=plan.estimate.host_bytes_per_node + 2**31)
    assert on_the_host(plan, more) == f"a node then needs {gib(more.host_bytes_per_node)} GiB of host memory"


@pytest.mark.parametrize(
    ("slowdown", "told"),
    [(None, "unknown"), (0.004, "0%"), (-0.004, "0%"), (0.18, "+18%"), (-0.25, "-25%"), (25.34, "+2,534%")],
)
def test_no_time_has_a_sign_without_a_difference(slowdown: float | None, told: str) -> None:
    """Neither ``+0%`` nor ``-0%``."""
    assert time(slowdown) == told


@pytest.mark.parametrize("name", ["host-load", "gpu-step", "rule", "illegal"])
def test_a_folded_group_says_what_fails(name: str) -> None:
    """The title of a group in the log of GitHub names the rules, and how full the memory is that decides."""
    plan = judged(name)
    title = said("github", name).splitlines()[0].replace("%25", "%")
    codes = ", ".join(dict.fromkeys(each.code for each in plan.findings))
    assert title.startswith(f"::group::{name}.yaml: failed by {codes}")
    if name == "host-load":
        need, has = gib(plan.estimate.host_bytes_per_node), gib(plan.host_capacity_bytes)
        assert f"host memory {need} of {has} GiB a node" in title
    elif plan.estimate is not None:
        assert title.endswith(f"{percent(plan.estimate.utilization)} of capacity")


def test_annotations_say_what_a_remedy_costs() -> None:
    """Where no table is shown, a remedy's line has its time, and that it changes results."""
    plan = judged("host-load")
    lines = said("github", "host-load").replace("%25", "%").replace("%0A", "\n").splitlines()
    told = [line for line in lines if line.startswith("remedy (")]
    assert len(told) == len(all_remedies(plan))
    for line, remedy in zip(told, all_remedies(plan), strict=True):
        assert f"; time {time(remedy.slowdown)}" in line
        assert line.startswith(f"remedy ({ASKS[remedy.group]}): ")
        assert ("other results" in line) == (not remedy.safe)


def test_statistics_rank_the_memory_that_decides() -> None:
    """A node that lacks memory stands above a GPU with room, with its own figures."""
    report = Report("0.1.0", (judged("serving-fits"), judged("host-load")))
    first, second = fullest(report, Screen())[1:]
    plan = judged("host-load")
    assert f"{gib(plan.estimate.host_bytes_per_node)} of {gib(plan.host_capacity_bytes)}".replace(" ", "") in (
        first.replace(" ", "")
    )
    assert first.lstrip().startswith(percent(plan.estimate.host_bytes_per_node / plan.host_capacity_bytes))
    assert "host-load (host memory of a node)" in first
    assert second.lstrip().startswith(percent(judged("serving-fits").estimate.utilization))


def test_speeds_name_what_they_assume() -> None:
    """The page says which GPUs' speeds rest on rates that nobody has stated."""
    dossier = judged("gpu-step").dossier
    assumed = {text: gpu.gpu for gpu in dossier.gpus for text in gpu.assumed}
    assert assumed
    text = page("gpu-step").text
    assert "These speeds assume: " in text
    for told, gpu in assumed.items():
        assert told in text
        assert gpu in text


def test_warnings_of_a_plan_that_passes_are_named() -> None:
    """The badge says that there is one, the sentence which; what its figures say already is not said twice."""
    warning = samples.mixed().plans[2]
    assert verdict(warning).word == "Fits, with a warning"
    (found,) = warning.findings
    assert lead(warning).endswith(f"It passes with a warning: {found.code} {found.name}: {found.message}.")
    two = warning._replace(findings=(found, found))
    assert "It passes with 2 warnings, the first: MEM203" in lead(two)
    assert "MEM104" not in lead(judged("uncertain"))
    assert "warning" not in lead(warning, checked=False)


def test_a_degree_that_is_not_written_is_what_silence_means(root: Path) -> None:
    """Remedies show the schema's default where a plan is silent about a degree, and never a value of their own."""
    schema = json.loads((root / "schemas" / "plan.schema.json").read_text(encoding="utf-8"))
    degrees = schema["definitions"]["parallelism"]["properties"]
    for key, silent in SILENT.items():
        assert degrees[key.rpartition(".")[2]]["default"] == silent, key
    remedy = samples.REMEDIES[0]._replace(set={"parallelism.context": 2, "training.offload": {"parameters": "cpu"}})
    assert change_lines(step(samples.result(), remedy)) == [
        "parallelism.context: 1 -> 2",
        "training.offload: unset -> {parameters: cpu}",
    ]


def test_remedies_of_an_uncertain_plan_show_where_its_interval_ends() -> None:
    """What fails is the upper end, so that is measured before and after, in text, on bars and in the advice."""
    plan = judged("uncertain")
    now = percent(plan.estimate.interval_bytes[1] / plan.estimate.capacity_bytes)
    found = all_remedies(plan)
    assert found
    for remedy in found:
        then = percent(remedy.high_utilization)
        assert remedy.sure
        assert remedy.interval_bytes[0] <= remedy.device_bytes <= remedy.interval_bytes[1]
        assert remedy.utilization <= remedy.high_utilization <= 1
        assert step(plan, remedy).effect.startswith(f"up to {now} -> {then}, predicted ")
        assert f"{now} -> {then}" in said("full", "uncertain")
        assert f"{now} → {then}" in said("markdown", "uncertain")
    first = next(each for each in page("uncertain").all("ol") if "steps" in each.classes).all("li")[0]
    labels = [each.text for each in first.all("span") if "badge" not in each.classes]
    assert labels == ["up to, now", "up to, then", "predicted now", "predicted then"]
    ends = percent(found[0].high_utilization)
    assert f"It then needs up to {ends} of the capacity instead of {now}" in story(samples.report(plan)).plans[0].advice
    (finding,) = plan.findings
    assert finding.help.endswith(f"up to {ends} of the capacity instead of {now}")


@pytest.mark.parametrize("name", SHORT)
def test_one_figure_of_host_memory(name: str) -> None:
    """The finding, the sentence and the JSON report name the same need of a node: that of its fullest moment."""
    plan = judged(name)
    (finding,) = (each for each in plan.findings if each.code == "MEM106")
    need = f"{gib(plan.estimate.host_bytes_per_node)} GiB of host memory"
    assert finding.message.startswith(f"a node needs {need}")
    assert f"A node needs {need}" in lead(plan)
