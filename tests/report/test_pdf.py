"""The report on paper: the same content, drawn by ReportLab behind an extra."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.edge.screen import gib, percent
from memcheck.report.story.build import story
from memcheck.rules.result import Report
from tests.cli.plans import write, write_over
from tests.report import formats, samples
from tests.report.forwarded import forwarded, result

reportlab = pytest.importorskip("reportlab", reason="the extra pdf is not installed")

NAMES = (*formats.NAMES, "forwarded")
STRING = re.compile(rb"\(((?:[^()\\]|\\.)*)\) Tj")
OCTAL = re.compile(r"\\([0-7]{3}|.)")


@pytest.fixture(autouse=True)
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are written as they are, so that their text can be read here."""
    monkeypatch.setattr("reportlab.rl_config.pageCompression", 0)


def render(report: Report, *, judged: bool = True) -> bytes:
    """The file."""
    from memcheck.report import pdf

    return pdf.render(report, checked=judged)


def report(name: str) -> Report:
    """One of the reports that every format is held against."""
    return forwarded() if name == "forwarded" else formats.report(name)


def said(data: bytes) -> str:
    """All text of all pages, in order."""
    found = (match[1].decode("cp1252") for match in STRING.finditer(data))
    parts = (
        OCTAL.sub(lambda m: bytes([int(m[1], 8)]).decode("cp1252") if m[1].isdigit() else m[1], text) for text in found
    )
    return " ".join(" ".join(parts).split())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_report_can_be_drawn(name: str) -> None:
    """A complete file with a page at least, and an entry in its outline for every plan."""
    data = render(report(name))
    assert data.startswith(b"%PDF-1.")
    assert data.rstrip().endswith(b"%%EOF")
    assert len(re.findall(rb"/Type /Page\b", data)) >= max(1, len(report(name).plans))
    assert data.count(b"/Title") >= 1 + len(report(name).plans)


@pytest.mark.slow
def test_paper_says_what_the_page_says() -> None:
    """Every sentence, figure, cell, change and card of the story is there."""
    told, text = story(forwarded()), said(render(forwarded()))
    squeezed = text.replace(" ", "")

    def there(words: str) -> bool:
        return words.replace("→", "->").replace(" ", "") in squeezed

    for plan in told.plans:
        assert there(plan.name)
        assert there(plan.verdict.word)
        assert there(plan.lead)
        assert there(plan.advice)
        for label, value in plan.facts:
            assert there(label)
            assert there(value)
        for section in plan.sections:
            assert there(section.title)
    for plan in forwarded().plans:
        for item in plan.assumptions:
            assert there(item.key)
            assert there(item.why)
        for finding in plan.findings:
            assert there(finding.code)
            assert there(finding.message)
            for remedy in finding.remedies:
                assert there(remedy.title)
                assert all(there(key) for key in remedy.set)
                assert there(percent(remedy.utilization))
        if plan.estimate is not None and plan.dossier is not None:
            assert all(there(gib(count)) for count in plan.estimate.components_bytes.values())
            assert all(there(group.name) for group in plan.estimate.largest)
            assert all(there(formula.numbers) for formula in plan.estimate.formulas)
            assert all(there(gpu.gpu) and there(gpu.refused) for gpu in plan.dossier.gpus)


@pytest.mark.slow
def test_the_same_report_is_the_same_file() -> None:
    """No date and no random identifier is in it."""
    assert render(forwarded()) == render(forwarded())


def test_user_text_is_never_markup() -> None:
    """ReportLab's own tags in a name are shown; what its fonts lack appears as a code."""
    name = "<b>x</b> <a href='file:///etc/passwd'>y</a> \u6a21\u578b &amp; <img src='x.png'/>"
    text = said(render(samples.report(result(28.1, name=name), result(28.1, name=name)))).replace(" ", "")
    assert "<b>x</b><ahref='file:///etc/passwd'>y</a>" in text
    assert "<imgsrc='x.png'/>" in text
    assert "&amp;" in text
    assert "\\u6a21\\u578b" in text


@pytest.mark.slow
def test_long_text_goes_on_over_pages() -> None:
    """A name, a value or a message that is longer than a page does not stop the report."""
    words = "word " * 1500
    finding = samples.over()._replace(message=words, help="x" * 9000)
    assumptions = tuple(item._replace(value=words) for item in samples.ASSUMPTIONS)
    plan = result(54.31, status="failed", name="n" * 3000, model=words, assumptions=assumptions, findings=(finding,))
    assert render(samples.report(plan)).count(b"/Type /Page\n") > 10


@pytest.mark.slow
def test_check_and_estimate_write_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--format pdf=FILE`` beside other formats; the exit code is that of the verdict."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    write_over(tmp_path)
    assert main(["check", "over.yaml", "--format", "pdf=check.pdf", "--format", "json=check.json"]) == 1
    assert main(["estimate", "over.yaml", "--format", "pdf=estimate.pdf"]) == 0
    assert "MEM101" in said((tmp_path / "check.pdf").read_bytes())
    assert "MEM101" not in said((tmp_path / "estimate.pdf").read_bytes())


@pytest.mark.parametrize("command", ["check", "estimate"])
def test_terminal_gets_no_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Without a file name it is a usage error that says how to write one."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    assert main([command, "good.yaml", "--format", "pdf"]) == 2
    assert "pdf=report.pdf" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "estimate"])
def test_missing_extra_is_said_in_a_line(tmp_path: Path, command: str) -> None:
    """Without ReportLab: exit code 2, one line with the command that installs it, and no report half written."""
    write(tmp_path)
    without = (
        "import sys; sys.modules['reportlab'] = None; from memcheck.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    line = [command, "good.yaml", "--format", "html=a.html", "--format", "pdf=a.pdf"]
    done = subprocess.run(
        [sys.executable, "-c", without, *line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'memcheck[pdf]'" in done.stderr
    assert not list(tmp_path.glob("a.*"))
