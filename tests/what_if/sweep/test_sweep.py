"""``memcheck sweep``: every point is what the plan with those values would be."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest

from memcheck.__main__ import main
from memcheck.judge import Gate
from memcheck.plan.read import load_documents, read_plan, with_changes
from memcheck.what_if.variants import Variants
from tests.cli.plans import write, write_broken
from tests.cli.test_fix import no_git

Capture = pytest.CaptureFixture[str]

SETS = [
    "--set",
    "training.micro_batch_size=1,16",
    "--set",
    "parallelism.tensor=1..3",
    "--set",
    "training.activation_checkpointing=none,full",
]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs beside a plan, on a screen of 100 columns without colours."""
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def swept(capsys: Capture, *arguments: str) -> dict[str, object]:
    """The JSON of a sweep that succeeds."""
    assert main(["sweep", "good.yaml", *arguments, "--format", "json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_points_are_what_set_would_be(capsys: Capture) -> None:
    """Each point has the bytes of ``estimate --set`` with its values."""
    for point in swept(capsys, *SETS)["points"]:
        changes = [f"--set={key}={value}" for key, value in point["set"].items()]
        code = main(["estimate", "good.yaml", *changes, "--format", "json"])
        (plan,) = json.loads(capsys.readouterr().out)["plans"]
        if point["verdict"] == "illegal":
            codes = {found["code"] for found in plan["diagnostics"]} if code else set()
            assert {problem["code"] for problem in point["problems"]} <= codes | {"MEM203", "MEM210"}
        else:
            assert point["device_bytes"] == plan["estimate"]["device_bytes"]
            assert point["interval_bytes"] == plan["estimate"]["interval_bytes"]


def test_illegal_points_name_the_rule(capsys: Capture) -> None:
    """32 heads cannot be cut in three, and a value of the wrong type is no plan."""
    points = swept(capsys, "--set", "parallelism.tensor=1,3,many")["points"]
    assert [point["verdict"] for point in points] == ["fits", "illegal", "illegal"]
    assert "MEM202" in [problem["code"] for problem in points[1]["problems"]]
    assert "MEM013" in [problem["code"] for problem in points[2]["problems"]]


def test_keys_that_the_plan_lacks_and_wrong_ones(capsys: Capture) -> None:
    """A section or key that the plan does not write can be swept; one that no plan has is illegal everywhere."""
    assert swept(capsys, "--set", "training.loss.kind=standard,chunked,lossy")["summary"]["illegal"] == 1
    assert swept(capsys, "--set", "policy.fail_above=10%,90%")["summary"] == {
        "fits": 1,
        "uncertain": 0,
        "above-limit": 1,
        "does-not-fit": 0,
        "host-memory": 0,
        "illegal": 0,
    }
    assert main(["sweep", "good.yaml", "--set", "training.micro_batch=1,2"]) == 1
    assert "MEM011 (2)" in capsys.readouterr().out


def test_sections_are_put_together(tmp_path: Path) -> None:
    """A plan read section by section is the plan read as a whole, also where a section is not valid alone."""
    (document,) = load_documents("good.yaml", (tmp_path / "good.yaml").read_bytes())
    variants = Variants(document)
    for changes in (
        {},
        {"training.micro_batch_size": 3, "hardware.nodes": 2, "parallelism.zero_stage": 1},
        {"training.loss": {"kind": "chunked", "chunks": 4}, "model": "qwen2.5-14b"},
        {"training.micro_batch_size": "x", "hardware.nodes": 2},
        {"training": {"micro_batch_size": 1, "sequence_length": 8, "framework": "pytorch"}, "name": "other"},
        {"inference": {"batch_size": 1, "context_length": 10}},
    ):
        whole, findings = read_plan(with_changes(document, changes))
        again, found = variants.read(changes)
        assert again == whole
        assert [f.code for f in found] == [f.code for f in findings]


def test_rules_that_are_ignored_refuse_nothing(tmp_path: Path, capsys: Capture) -> None:
    """An error that the configuration ignores does not make a point illegal, as it does not fail ``check``."""
    sets = ["--set", "training.sequence_length=8192,262144"]
    assert swept(capsys, *sets)["summary"]["illegal"] == 0
    (tmp_path / "memcheck.toml").write_text('ignore = ["MEM2"]\n')
    assert Gate().counts("MEM208")
    assert swept(capsys, *sets)["summary"]["illegal"] == 0


def test_every_format_holds_every_point(tmp_path: Path, capsys: Capture) -> None:
    """CSV has a line per point, JSON is valid by its schema, the heat map has a cell per point."""
    assert main(["schema", "sweep"]) == 0
    schema = json.loads(capsys.readouterr().out)
    formats = ["--format", "json=s.json", "--format", "csv=s.csv", "--format", "html=s.html"]
    assert main(["sweep", "good.yaml", *SETS, *formats]) == 0
    document = json.loads((tmp_path / "s.json").read_text())
    jsonschema.Draft7Validator(schema).validate(document)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "s.csv").read_text())))
    page = (tmp_path / "s.html").read_text()
    assert len(lines) == len(document["points"]) == 12
    assert len(re.findall(r'<td class="(?:h|x)', page)) == 12
    for point, line in zip(document["points"], lines, strict=True):
        assert line["training.micro_batch_size"] == str(point["set"]["training.micro_batch_size"])
        assert line["device_bytes"] == str(point["device_bytes"] or "")
        if point["device_bytes"]:
            assert f"{point['utilization']:,.1%}" in page


def test_the_heat_map_loads_nothing(tmp_path: Path, capsys: Capture) -> None:
    """One file: no script, no address, no style outside of its sheet; user text is no markup."""
    text = (tmp_path / "good.yaml").read_text().replace("name: good", 'name: "<script>alert(1)</script>"')
    (tmp_path / "good.yaml").write_text(text)
    assert main(["sweep", "good.yaml", *SETS, "--format", "html"]) == 0
    page = capsys.readouterr().out
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert " style=" not in page
    assert "prefers-color-scheme:dark" in page
    assert page.count("<details") == 2
    assert main(["sweep", "good.yaml", "--set", "training.micro_batch_size=1,2", "--format", "html"]) == 0
    assert capsys.readouterr().out.count('<td class="h') == 2


def test_large_grids_show_the_fastest(capsys: Capture) -> None:
    """Of more points than anybody reads, the terminal shows the fastest that fit, and says so."""
    sets = ["--set", "training.micro_batch_size=1,2", "--set", "training.gradient_accumulation_steps=1..40"]
    assert main(["sweep", "good.yaml", *sets]) == 0
    out = capsys.readouterr().out
    assert "20 points are not shown" in out
    speeds = [float(line.split()[-2].replace(",", "")) for line in out.splitlines() if " fits " in line]
    assert len(speeds) == 60
    assert speeds == sorted(speeds, reverse=True)
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.slow
def test_ten_thousand_points_are_a_page(tmp_path: Path) -> None:
    """The heat map of a large grid has every point, stays below 1.5 MB and holds each map in a box that scrolls."""
    sets = ["--set", "training.gradient_accumulation_steps=1..100", "--set", "training.micro_batch_size=1..100"]
    assert main(["sweep", "good.yaml", *sets, "--format", "html=map.html"]) == 0
    page = (tmp_path / "map.html").read_text()
    assert len(page.encode()) < 1_500_000
    assert page.count("<td") >= 10_000
    assert page.count('<div class="wide" tabindex="0"') == page.count("<table")
    assert ".heat th:first-child{position:sticky" in page  # names of rows stay while the columns scroll


@pytest.mark.slow
def test_progress_is_for_those_who_look(root: Path, tmp_path: Path) -> None:
    """A pipe on stderr stays silent unless ``--progress`` is given; the answer is the same."""
    command = ["memcheck", "sweep", "good.yaml", "--set", "training.gradient_accumulation_steps=1..130"]
    entry = "import sys; from memcheck.__main__ import main; sys.exit(main(sys.argv[1:]))"
    import sys

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", entry, *command[1:], *more]
        environment = {**no_git(), "PYTHONPATH": str(root)}
        return subprocess.run(argv, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)

    silent, told = run(), run("--progress")
    assert silent.stderr == ""
    assert told.stderr.splitlines()[-1] == "sweep: 130 of 130"
    assert told.stdout == silent.stdout


def test_heads_of_the_fastest_points_can_be_broken(capsys: Capture) -> None:
    """Long keys go on in the next line, so that a phone shows the figures behind them."""
    assert main(["sweep", "good.yaml", "--set", "training.micro_batch_size=1,2", "--format", "html"]) == 0
    page = capsys.readouterr().out
    assert '<th scope="col">micro_<wbr>batch_<wbr>size</th>' in page
    assert '<th scope="col" class="num">tokens/<wbr>s/<wbr>GPU</th>' in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good.yaml"], "--set"),
        (["good.yaml", "--set", "a"], "not of the form"),
        (["good.yaml", "--set", "training.micro_batch_size=1", "--set", "training.micro_batch_size=2"], "same key"),
        (["missing.yaml", "--set", "a=1"], "missing.yaml"),
        (["good.yaml", "--set", "a=1", "--format", "sarif"], "sarif"),
    ],
)
def test_usage_errors(capsys: Capture, arguments: list[str], message: str) -> None:
    """Exit code 2, and what is wrong."""
    assert main(["sweep", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_one_plan_at_a_time(tmp_path: Path, capsys: Capture) -> None:
    """A file of several plans is a usage error; a plan that is broken has only illegal points."""
    text = (tmp_path / "good.yaml").read_text()
    (tmp_path / "two.yaml").write_text(f"{text}\n---\n{text}")
    assert main(["sweep", "two.yaml", "--set", "training.micro_batch_size=1"]) == 2
    assert "has 2" in capsys.readouterr().err
    write_broken(tmp_path)
    assert main(["sweep", "broken.yaml", "--set", "training.micro_batch_size=1,2"]) == 1
    assert "2 illegal" in capsys.readouterr().out
