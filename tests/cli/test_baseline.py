"""``memcheck baseline``, and ``check`` with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.cli.review.baseline import DEFAULT_FILE, read_entries
from tests.cli.plans import write, write_broken, write_over

Capture = pytest.CaptureFixture[str]
CONFIGURED = f'baseline = "{DEFAULT_FILE}"\n'


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a repository with a configured baseline that does not exist yet."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memcheck.toml").write_text(CONFIGURED)
    return tmp_path


def accept(*paths: str) -> None:
    """Write the baseline of some paths."""
    assert main(["baseline", "write", *paths]) == 0


def check(capsys: Capture, *arguments: str) -> tuple[int, list[str], str]:
    """Exit code, codes found, and what stderr says."""
    capsys.readouterr()
    code = main(["check", "--format", "json", *arguments])
    streams = capsys.readouterr()
    plans = json.loads(streams.out)["plans"]
    return code, [each["code"] for plan in plans for each in plan["diagnostics"]], streams.err


def test_accepted_findings_are_hidden(tmp_path: Path, capsys: Capture) -> None:
    """After writing a baseline, everything that was there passes, and the plans are still judged."""
    write(tmp_path)
    write_over(tmp_path)
    accept(".")
    out = capsys.readouterr().out
    assert out == f"wrote {DEFAULT_FILE}: 1 finding of 1 plan\n"
    assert check(capsys) == (0, [], "")
    assert check(capsys, "--baseline", "") == (1, ["MEM101"], "")
    (entry,) = read_entries(DEFAULT_FILE)
    assert entry[:4] == ("over.yaml", "over", "MEM101", "")
    assert entry.utilization > 1


@pytest.mark.slow
def test_edits_elsewhere_do_not_matter(tmp_path: Path, capsys: Capture) -> None:
    """Keys have no line numbers: comments and moved keys change nothing."""
    path = write_over(tmp_path)
    path.write_text(
        path.read_text().replace("parallelism:\n  zero_stage: 0", "parallelism:\n  zero_stage: 1\n  context: 1")
    )
    accept(".")
    path.write_text("# moved\n\n" + path.read_text().replace("name: over\n", "") + "name: over\n")
    assert check(capsys) == (0, [], "")


@pytest.mark.slow
def test_a_plan_may_only_get_better(tmp_path: Path, capsys: Capture) -> None:
    """More memory than was accepted is a finding again, with the accepted number; less is not."""
    path = write(tmp_path, "plan", gpu="a100-40gb", zero_stage="1", micro_batch_size="8")
    accept(".")
    text = path.read_text()
    path.write_text(text.replace("micro_batch_size: 8", "micro_batch_size: 16"))
    code, codes, _ = check(capsys)
    assert (code, codes) == (1, ["MEM101"])
    assert main(["check", "--format", "concise"]) == 1
    accepted = read_entries(DEFAULT_FILE)[0].utilization
    assert f"; the baseline accepts {accepted:.1%}" in capsys.readouterr().out
    path.write_text(text.replace("micro_batch_size: 8", "micro_batch_size: 4"))
    assert check(capsys) == (0, [], "")


def test_rounding_is_no_change(tmp_path: Path, capsys: Capture) -> None:
    """A tenth of a percent of the capacity is allowed, twice that is not."""
    write_over(tmp_path)
    accept(".")
    stored = json.loads(Path(DEFAULT_FILE).read_text())
    for less, code in ((0.0009, 0), (0.002, 1)):
        changed = {
            **stored,
            "findings": [{**each, "utilization": each["utilization"] - less} for each in stored["findings"]],
        }
        Path(DEFAULT_FILE).write_text(json.dumps(changed))
        assert check(capsys)[0] == code


@pytest.mark.slow
def test_what_does_not_fit_may_become_what_nearly_does_not(tmp_path: Path, capsys: Capture) -> None:
    """A plan over capacity that shrinks to above the threshold got better; the other way round it got worse."""
    path = write(tmp_path, "plan")
    text = path.read_text()
    over, above = (text + f"policy: {{fail_above: 5%, overhead: {share}%}}\n" for share in (99, 10))
    path.write_text(over.replace("micro_batch_size: 1", "micro_batch_size: 64").replace("2048", "8192"))
    accept(".")
    assert read_entries(DEFAULT_FILE)[0].code == "MEM101"
    path.write_text(above)
    assert check(capsys) == (0, [], "")
    accept(".")
    assert read_entries(DEFAULT_FILE)[0].code == "MEM102"
    path.write_text(over.replace("micro_batch_size: 1", "micro_batch_size: 64").replace("2048", "8192"))
    assert check(capsys)[:2] == (1, ["MEM101"])


def test_new_findings_are_not_accepted(tmp_path: Path, capsys: Capture) -> None:
    """Another rule, key, plan or file is new."""
    path = write(tmp_path)
    one = path.read_text().replace("gpus_per_node: 8", "gpus_per_node: 1")
    path.write_text(one)
    (tmp_path / "memcheck.toml").write_text(CONFIGURED + 'fail-on = "warning"\nignore = ["MEM1"]\n')
    assert main(["baseline", "write", "."]) == 0
    assert check(capsys) == (0, [], "")
    (tmp_path / "copy.yaml").write_text(one)
    assert check(capsys) == (1, ["MEM208"], "")
    path.write_text(one.replace("name: good", "name: better"))
    (tmp_path / "copy.yaml").unlink()
    code, codes, err = check(capsys)
    assert (code, codes) == (1, ["MEM208"])
    assert "MEM208 of good" in err


def test_stale_entries_are_named(tmp_path: Path, capsys: Capture) -> None:
    """What is gone is said on stderr, for the files of the run and for deleted ones; writing again takes it out."""
    path, other = write_over(tmp_path), write_over(tmp_path, "other")
    gone = write_over(tmp_path, "gone")
    accept(".")
    path.write_text(write(tmp_path).read_text().replace("name: good", "name: over"))
    assert check(capsys, "other.yaml") == (0, [], "")
    assert "accepts what is gone: MEM101 of over\n" in check(capsys)[2]
    assert check(capsys, "--select", "MEM2")[2] == ""
    gone.unlink()
    assert "MEM101 of gone" in check(capsys, "other.yaml")[2]
    capsys.readouterr()
    accept(".")
    assert capsys.readouterr().out == f"wrote {DEFAULT_FILE}: 1 finding of 1 plan (2 gone)\n"
    assert check(capsys) == (0, [], "")
    assert other.exists()


def test_writing_some_files_keeps_the_others(tmp_path: Path, capsys: Capture) -> None:
    """Entries of files that were not named stay as they are."""
    write_over(tmp_path)
    write_over(tmp_path, "other")
    accept("over.yaml")
    accept("other.yaml")
    assert [entry.plan for entry in read_entries(DEFAULT_FILE)] == ["other", "over"]
    assert "(1 new)" in capsys.readouterr().out


def test_what_prevents_the_estimate_cannot_be_accepted(tmp_path: Path, capsys: Capture) -> None:
    """A plan that was not judged has no number to hold it to."""
    write_broken(tmp_path)
    assert main(["baseline", "write", "."]) == 1
    assert "not checked, so nothing of it is accepted: broken.yaml" in capsys.readouterr().err
    assert check(capsys) == (1, ["MEM011"], "")


def test_another_gpu_is_another_question(tmp_path: Path, capsys: Capture) -> None:
    """Accepted numbers are of the plan's own GPU."""
    write_over(tmp_path)
    accept(".")
    assert check(capsys, "--gpu", "l40s") == (1, ["MEM101"], "")


def test_paths_are_relative_to_the_baseline(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file serves from every working directory."""
    (tmp_path / "plans").mkdir()
    write_over(tmp_path / "plans")
    accept(".")
    monkeypatch.chdir(tmp_path / "plans")
    assert check(capsys, ".") == (0, [], "")


def test_show(tmp_path: Path, capsys: Capture) -> None:
    """What is accepted, as a table."""
    write_over(tmp_path)
    accept(".")
    capsys.readouterr()
    assert main(["baseline", "show"]) == 0
    out = capsys.readouterr().out
    assert "MEM101" in out
    assert f"{read_entries(DEFAULT_FILE)[0].utilization:.1%}" in out
    (tmp_path / "over.yaml").unlink()
    write(tmp_path)
    accept(".")
    capsys.readouterr()
    assert main(["baseline", "show"]) == 0
    assert capsys.readouterr().out == f"{DEFAULT_FILE} accepts nothing\n"


def test_show_on_a_narrow_screen(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule and the figure stay; what gives way is in the file, which is named."""
    monkeypatch.setenv("COLUMNS", "60")
    (tmp_path / "a-folder-with-a-long-name").mkdir()
    write_over(tmp_path / "a-folder-with-a-long-name")
    accept(".")
    capsys.readouterr()
    assert main(["baseline", "show"]) == 0
    head, row, *rest = capsys.readouterr().out.splitlines()
    assert "code" in head
    assert "MEM101" in row
    assert " ".join(rest).endswith(f"widen the terminal, or read {DEFAULT_FILE}.")


def test_hint_where_nothing_is_configured(tmp_path: Path, capsys: Capture) -> None:
    """Writing a file that ``check`` does not read says how it would."""
    (tmp_path / "memcheck.toml").unlink()
    write_over(tmp_path)
    accept(".")
    assert f"--baseline {DEFAULT_FILE}" in capsys.readouterr().out
    assert check(capsys)[0] == 1
    assert check(capsys, "--baseline", DEFAULT_FILE) == (0, [], "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the baseline .memcheck-baseline.json: No such file"),
        ("{", "is no baseline"),
        ("[]", "is no baseline"),
        ("[" * 200_000, "is no baseline"),
        ('{"baseline": 2, "findings": []}', "is a baseline of format 2"),
        ('{"baseline": 1, "findings": [{"path": "a"}]}', "is no baseline"),
        ('{"baseline": 1, "findings": [{"path": "a", "plan": "a", "code": 1}]}', "is no baseline: code is 1"),
        ('{"baseline": 1, "findings": [{"path": "a", "plan": "a", "code": "MEM101", "line": 1}]}', "is no baseline"),
    ],
)
def test_unusable_baselines_are_refused(tmp_path: Path, capsys: Capture, text: str | None, message: str) -> None:
    """A baseline that cannot be read stops the run: without it everything would look different."""
    write(tmp_path)
    if text is not None:
        (tmp_path / DEFAULT_FILE).write_text(text)
    assert main(["check", "."]) == 2
    assert message in capsys.readouterr().err


def test_nothing_to_accept(tmp_path: Path, capsys: Capture) -> None:
    """Writing a baseline of no plan, or of one that cannot be read, is an error and leaves the file alone."""
    assert main(["baseline", "write", "."]) == 2
    assert main(["baseline", "write", "no.yaml"]) == 2
    assert not (tmp_path / DEFAULT_FILE).exists()
