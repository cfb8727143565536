"""Where the configuration says where the page is, reports link each plan to it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.live.link import read_link

URL = "https://page.example/memcheck/"
PLAN = """memcheck: 1
model: llama-3.1-8b
hardware: {gpu: l4}
training: {framework: huggingface, micro_batch_size: 1, sequence_length: 2048}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN + "---\n" + PLAN, encoding="utf-8")
    return tmp_path


def reported(capsys: pytest.CaptureFixture[str], form: str) -> str:
    """The report of the folder's plan in one format."""
    main(["check", "plan.yaml", "--format", form, "--no-cache"])
    return capsys.readouterr().out


@pytest.mark.parametrize("form", ["html", "markdown", "story"])
def test_a_report_opens_each_plan_in_the_page(folder: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """The link holds the whole file, and the number of the second plan."""
    (folder / "memcheck.toml").write_text(f'page-url = "{URL}"\n', encoding="utf-8")
    links = re.findall(rf"{URL}#[\w=.&;-]+", reported(capsys, form))
    found = [read_link(link.replace("&amp;", "&")) for link in dict.fromkeys(links)]
    assert [(each.plan, each.document) for each in found] == [(PLAN + "---\n" + PLAN, number) for number in (0, 1)]


@pytest.mark.parametrize("form", ["html", "markdown", "json"])
def test_without_an_address_no_report_has_a_link(folder: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """There is no page by default, and JSON has no link at all."""
    assert "#p=1." not in reported(capsys, form)


def test_a_comment_names_the_host_of_its_links(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pull request may bring a configuration: readers of a comment see where a link leads, as plain text."""
    (folder / "memcheck.toml").write_text('page-url = "https://[x](y)@*evil*.example/a/"\n', encoding="utf-8")
    assert "[Open this plan in the page at &#91;x&#93;(y)@\u200b&#42;evil&#42;.example](<" in reported(
        capsys, "markdown"
    )


@pytest.mark.parametrize("address", ["https://exämple.org/", "javascript:alert(1)", "https://a b/", "//x.org/"])
def test_what_is_no_address_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], address: str) -> None:
    """An address is ASCII and of the web; look-alike letters and other schemes are an error of the configuration."""
    (folder / "memcheck.toml").write_text(f'page-url = "{address}"\n', encoding="utf-8")
    assert main(["check", "plan.yaml"]) == 2
    assert "page-url" in capsys.readouterr().err


def test_a_plan_too_long_for_a_link_has_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link that chat programs would cut is left out."""
    noise = "".join(map(hex, range(20_000)))  # what deflate cannot shorten by much
    (folder / "memcheck.toml").write_text(f'page-url = "{URL}"\n', encoding="utf-8")
    (folder / "plan.yaml").write_text(f"{PLAN}# {noise}\n", encoding="utf-8")
    assert {plan["page_link"] for plan in json.loads(reported(capsys, "story"))["plans"]} == {""}
