"""``memcheck suggest`` from the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from memcheck.__main__ import main
from memcheck.what_if.remedies.price import LayoutTally
from memcheck.what_if.suggest.report import became
from tests.report.failing import written

Capture = pytest.CaptureFixture[str]

OVER = """\
# what we run on the new machine
memcheck: 1
model: llama-3.1-8b      # the base model
hardware: {gpu: a100-40gb, gpus_per_node: 4}

parallelism:
  tensor: 4              # one node
training:
  framework: megatron
  micro_batch_size: 4    # per GPU
  sequence_length: 8192
  gradient_accumulation_steps: 8
  optimizer: adamw
"""
FITS = """\
memcheck: 1
model: llama-3.2-1b
hardware: {gpu: h100-80gb}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 2048}
"""
HOPELESS = """\
memcheck: 1
model: llama-3.1-70b
hardware: {gpu: rtx-2080-ti}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 2048, precision: fp16-mixed, global_batch_size: 64}
"""


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty repository, on a screen of 100 columns without colours."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    Path("over.yaml").write_text(OVER)
    Path("fits.yaml").write_text(FITS)
    Path("hopeless.yaml").write_text(HOPELESS)


def suggestions(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, object]:
    """The JSON answer."""
    assert main(["suggest", *arguments, "--format", "json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_text_says_what_to_change_and_what_it_costs(capsys: Capture) -> None:
    """Changes, memory before and after, time, numerics, what was searched and how to go on, on 100 columns."""
    assert main(["suggest", "over.yaml"]) == 0
    out = capsys.readouterr().out
    for part in (
        "goal fit",
        "  1. ",
        "% -> ",
        "% time",
        "equivalent numbers",
        "searched: ",
        "--apply N",
        "a roofline",
    ):
        assert part in out
    assert max(map(len, out.splitlines())) <= 100


def test_counts_of_one_are_singular() -> None:
    """A single plan breaks a rule or fits; more of them break and fit, with thousands apart."""
    assert became(LayoutTally(fitting=1)) == "1 plan: 1 that fits"
    told = became(LayoutTally(illegal=1, too_large=1198, fitting=2))
    assert told == (
        "1,201 plans: 1 excluded by a rule, the global batch or --keep, 1,198 estimated and too large, 2 that fit"
    )


def test_a_plan_that_fits_needs_nothing(capsys: Capture) -> None:
    """Nothing is to be done, and that is no failure."""
    assert main(["suggest", "fits.yaml"]) == 0
    assert "nothing to do: the plan fits" in capsys.readouterr().out
    assert suggestions(capsys, "fits.yaml")["status"] == "fits"
    assert main(["suggest", "fits.yaml", "--apply", "1"]) == 0
    assert Path("fits.yaml").read_text() == FITS


@pytest.mark.slow
def test_nothing_fits_is_a_finding_with_a_way_out(capsys: Capture) -> None:
    """Exit code 1; the answer says how many plans were judged, and which cluster would do."""
    answer = suggestions(capsys, "hopeless.yaml", code=1)
    assert answer["status"] == "nothing-fits"
    assert answer["remedies"] == []
    space = answer["space"]
    assert isinstance(space, dict)
    assert space["exhausted"] is True
    assert space["fitting"] == 0
    assert main(["suggest", "hopeless.yaml"]) == 1
    out = capsys.readouterr().out
    assert "no plan of the space below fits on 1 x rtx-2080-ti: all " in out
    assert "the smallest cluster of this GPU that would do has" in out


@pytest.mark.parametrize("number", [1, 2])
def test_apply_writes_a_plan_that_passes_and_nothing_else(capsys: Capture, number: int) -> None:
    """Only the changed values differ; comments, order and spacing stay; ``check`` passes."""
    answer = suggestions(capsys, "over.yaml")
    remedies = answer["remedies"]
    assert isinstance(remedies, list)
    assert main(["suggest", "over.yaml", "--diff", "--apply", str(number)]) == 0
    shown = capsys.readouterr().out
    assert Path("over.yaml").read_text() == OVER
    assert main(["suggest", "over.yaml", "--apply", str(number)]) == 0
    text = Path("over.yaml").read_text()
    assert text != OVER
    added = [line[1:] for line in shown.splitlines() if line.startswith("+") and not line.startswith("+++")]
    gone = [line[1:] for line in shown.splitlines() if line.startswith("-") and not line.startswith("---")]
    kept = [line for line in OVER.splitlines() if line not in gone]
    assert [line for line in text.splitlines() if line not in added] == kept
    for comment in ("# what we run on the new machine", "# the base model", "# one node"):
        assert comment in text
    written = yaml.safe_load(text)
    for key, value in remedies[number - 1]["set"].items():
        found = written
        for part in key.split("."):
            found = found[part]
        assert found == value
    assert main(["check", "over.yaml"]) == 0


@pytest.mark.slow
def test_json_has_the_edits_and_the_costs(capsys: Capture) -> None:
    """A remedy is what ``check`` reports, and beside it what it costs."""
    answer = suggestions(capsys, "over.yaml", "--goal", "throughput", "--top", "2")
    remedies = answer["remedies"]
    assert isinstance(remedies, list)
    assert len(remedies) == 2
    for remedy in remedies:
        assert remedy["utilization"] <= 0.95
        assert remedy["edits"]
        assert remedy["numerics"] in {"none", "equivalent"}
        assert remedy["gpus"] == 4
        assert remedy["tokens_per_second_per_gpu"] > 0
    first, second = (remedy["slowdown"] for remedy in remedies)
    assert first <= second


def test_csv_has_a_row_for_each(capsys: Capture) -> None:
    """The table has the same suggestions as the JSON."""
    assert main(["suggest", "over.yaml", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    answer = suggestions(capsys, "over.yaml")
    remedies = answer["remedies"]
    assert isinstance(remedies, list)
    assert [row["title"] for row in rows] == [remedy["title"] for remedy in remedies]
    assert [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))


KEPT = tuple(
    each
    for key in ("training.optimizer", "hardware.gpu", "training.method", "training.sequence_length")
    for each in ("--keep", key)
)


@pytest.mark.slow
def test_keep_pins_keys(capsys: Capture) -> None:
    """What is kept is in no suggestion; a key that no plan has is an error with the one that was meant."""
    answer = suggestions(capsys, "over.yaml", *KEPT, code=1)
    assert answer["remedies"] == []
    assert main(["suggest", "over.yaml", "--keep", "training.optimiser"]) == 2
    assert "did you mean training.optimizer?" in capsys.readouterr().err


def test_a_broken_plan_is_shown_as_check_shows_it(capsys: Capture) -> None:
    """What cannot be judged cannot be mended: the findings come first."""
    Path("over.yaml").write_text(OVER.replace("micro_batch_size", "micro_batch"))
    assert main(["suggest", "over.yaml"]) == 1
    assert "MEM011" in capsys.readouterr().out
    answer = suggestions(capsys, "over.yaml", code=1)
    assert answer["status"] == "error"
    diagnostics = answer["diagnostics"]
    assert isinstance(diagnostics, list)
    assert diagnostics[0]["code"] == "MEM011"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.yaml"], "cannot read"),
        (["."], "name one plan"),
        (["over.yaml", "--goal", "fastest"], "fastest"),
        (["over.yaml", "--apply", "99"], "there is no suggestion 99"),
        (["over.yaml", "--document", "3"], "has no document 3"),
        (["over.yaml", "--apply", "1", "--gpu", "h200"], "leave out --gpu"),
    ],
)
def test_wrong_usage_is_explained(capsys: Capture, arguments: list[str], said: str) -> None:
    """Exit code 2 and a sentence."""
    assert main(["suggest", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_one_of_several_plans(capsys: Capture) -> None:
    """A file with several plans needs a number; only that plan is changed."""
    Path("two.yaml").write_text(f"{FITS}---\n{OVER}")
    assert main(["suggest", "two.yaml"]) == 2
    assert "--document 0 to 1" in capsys.readouterr().err
    assert main(["suggest", "two.yaml", "--document", "1", "--apply", "1"]) == 0
    assert Path("two.yaml").read_text().startswith(f"{FITS}---\n")
    assert main(["check", "two.yaml"]) == 0


def test_another_gpu_and_another_limit(capsys: Capture) -> None:
    """``--gpu`` and ``--fail-above`` judge as they do for ``check``."""
    assert suggestions(capsys, "over.yaml", "--gpu", "b200")["status"] == "fits"
    strict = suggestions(capsys, "fits.yaml", "--fail-above", "30%")
    remedies = strict["remedies"]
    assert isinstance(remedies, list)
    assert all(remedy["utilization"] <= 0.3 for remedy in remedies)


def test_inherited_values_are_written_over(capsys: Capture) -> None:
    """A value that comes from an extended file is set in the plan's own file, which alone changes."""
    Path("base.yaml").write_text(OVER)
    Path("own.yaml").write_text("memcheck: 1\nextends: base.yaml\nname: own   # mine\n")
    assert main(["suggest", "own.yaml", "--apply", "1"]) == 0
    assert Path("base.yaml").read_text() == OVER
    assert "name: own   # mine" in Path("own.yaml").read_text()
    assert main(["check", "own.yaml"]) == 0


@pytest.mark.slow
def test_a_change_of_the_results_is_said_when_it_is_written(capsys: Capture) -> None:
    """Adapters instead of full training pass, and are another experiment: whoever applies them hears it."""
    Path("one.yaml").write_text(
        "memcheck: 1\nmodel: llama-3.1-8b\nhardware: {gpu: rtx-4090}\n"
        "training: {framework: pytorch, micro_batch_size: 8, sequence_length: 4096}\n"
    )
    first = suggestions(capsys, "one.yaml")["remedies"][0]  # type: ignore[index]
    assert first["numerics"] == "changes results"
    assert main(["suggest", "one.yaml", "--apply", "1"]) == 0
    assert "it changes the results of the training" in capsys.readouterr().err
    assert main(["suggest", "over.yaml", "--apply", "1"]) == 0
    assert "changes the results" not in capsys.readouterr().err


def test_a_read_only_file_is_left_alone(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that may not be written is not replaced by another, though its folder would allow it."""
    asked = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **k: mode != os.W_OK and asked(path, mode, **k))
    assert main(["suggest", "over.yaml", "--apply", "1"]) == 2
    assert "cannot write over.yaml: the file is read-only" in capsys.readouterr().err
    assert Path("over.yaml").read_text() == OVER
    assert sorted(os.listdir()) == [".git", "fits.yaml", "hopeless.yaml", "over.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host-load", "host-step"])
def test_a_node_that_lacks_memory_is_no_plan_that_fits(capsys: Capture, name: str) -> None:
    """Where only host memory is missing, changes are searched that end below what a node has, in those figures."""
    Path("host.yaml").write_text(written(name), encoding="utf-8")
    found = suggestions(capsys, "host.yaml")
    assert found["status"] == "suggested"
    now = found["as_written"]
    assert now["host_bytes_per_node"] > now["host_capacity_bytes"]
    for remedy in found["remedies"]:
        assert remedy["host_bytes_per_node"] <= now["host_capacity_bytes"]
    assert main(["suggest", "host.yaml"]) == 0
    text = capsys.readouterr().out
    assert "nothing to do" not in text
    assert f"host {now['host_bytes_per_node'] / 2**30:,.2f} -> " in text
    assert f"{(now['host_bytes_per_node'] - now['host_capacity_bytes']) / 2**30:,.2f} missing" in " ".join(text.split())


@pytest.mark.parametrize("goal", ["fit", "throughput"])
def test_what_no_memory_would_end_is_mended_first(capsys: Capture, goal: str) -> None:
    """A plan that a rule fails is neither one that fits nor one for which nothing fits: the rule is shown, with 1."""
    Path("rule.yaml").write_text(written("rule"), encoding="utf-8")
    found = suggestions(capsys, "rule.yaml", "--goal", goal, code=1)
    assert found["status"] == "error"
    assert [each["code"] for each in found["diagnostics"]] == ["MEM301"]
    assert main(["suggest", "rule.yaml", "--goal", goal]) == 1
    text = capsys.readouterr().out
    assert "error[MEM301]" in text
    assert "not about memory" in text
    assert "nothing to do" not in text


def test_an_uncertain_plan_is_told_with_its_interval(capsys: Capture) -> None:
    """The plan passes as predicted; what is suggested makes its whole interval fit."""
    Path("uncertain.yaml").write_text(written("uncertain"), encoding="utf-8")
    answer = suggestions(capsys, "uncertain.yaml")
    assert (answer["status"], answer["as_written"]["verdict"]) == ("suggested", "uncertain")
    assert main(["suggest", "uncertain.yaml"]) == 0
    assert "it is uncertain: it may need up to 27.06 of 25.00 GiB (MEM104)" in " ".join(capsys.readouterr().out.split())
    keeps = [part for key in ("parallelism", "training", "hardware") for part in ("--keep", key)]
    answer = suggestions(capsys, "uncertain.yaml", *keeps)
    assert (answer["status"], answer["remedies"]) == ("uncertain", [])


def test_a_plan_that_fails_because_it_is_uncertain_has_suggestions(capsys: Capture) -> None:
    """Under `uncertain: fail`, `check` fails it, and there was nothing to do."""
    text = written("uncertain").replace("policy: {", "policy: {uncertain: fail, ")
    Path("uncertain.yaml").write_text(text, encoding="utf-8")
    assert main(["check", "uncertain.yaml"]) == 1
    capsys.readouterr()
    answer = suggestions(capsys, "uncertain.yaml")
    assert answer["status"] == "suggested"
    assert all(each["sure"] for each in answer["remedies"])


@pytest.mark.slow
def test_a_search_that_is_cut_short_says_so(capsys: Capture) -> None:
    """With next to no time there is no proof, and the answer says that plans were not looked at."""
    assert main(["suggest", "over.yaml", "--goal", "throughput", "--budget", "0.000001"]) == 1
    shown = capsys.readouterr().out
    assert "not searched: " in shown
    assert "of the space below" not in shown
    assert main(["suggest", "over.yaml", "--goal", "throughput", "--budget", "0.000001", "--format", "json"]) == 1
    space = json.loads(capsys.readouterr().out)["space"]
    assert (space["exhausted"], space["budget_seconds"]) == (False, 1e-06)


@pytest.mark.slow
def test_a_log_hears_of_a_long_search(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no terminal, a line is written now and then: how many plans, in how many of so many seconds."""
    monkeypatch.setattr("memcheck.cli.progress.LOG_S", 0.0)
    assert main(["suggest", "over.yaml", "--goal", "throughput", "--budget", "600"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"suggest: [\d,]+ plans looked at in \d+ of 600 s", line) for line in lines)
