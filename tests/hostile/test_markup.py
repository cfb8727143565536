"""Names and values that would be links, mentions, images, HTML or emoji where Markdown is read."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.report.forge import neutral
from memcheck.report.markdown import code, escape

Capture = pytest.CaptureFixture[str]
HOSTILE = (
    "[click](https://e.invalid/x) @octocat",
    "![x](http://e.invalid/i.png)",
    "<img src=x onerror=alert(1)>",
    "</details><script>",
    "[a][b] #12 GH-12 www.e.invalid mailto:a@e.invalid",
    "&commat;octocat &#60;img&#62;",
    "`<b>` @team/name",
    "`` ` [x](http://e.invalid)",
    "**PASSED** __yes__ ~~no~~ deadbeef1",
    "org/repo#1 @a-b",
)
ACTIVE = re.compile(
    r"\]\(|\]\[|!\[|<[A-Za-z/!?]|://|@[A-Za-z]|#\d|GH-\d|www\.|mailto:|\*\*|__|~~|deadbeef1|&(?!#\d+;)[#\w]"
)
PLAN = """\
memcheck: 1
name: {name}
model: gpt2
hardware: {{gpu: {{name: {gpu}, memory_gib: 1}}}}
training: {{micro_batch_size: 1, sequence_length: 128}}
"""
EMOJI = (":white_check_mark: pass", ":100:", ":+1:", ":-1: x :heavy_check_mark:", "a:x:b", ":e-mail:", "::smile::")


def check(form: str, text: str, folder: Path, capsys: Capture) -> str:
    """What one format says of a plan that fails."""
    (folder / "a.yaml").write_text(text, encoding="utf-8")
    assert main(["check", "--format", form, str(folder / "a.yaml")]) == 1
    return capsys.readouterr().out


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("form", ["rdjson", "gitlab", "checkstyle"])
def test_a_message_is_no_markup(form: str, text: str, tmp_path: Path, capsys: Capture) -> None:
    """A GPU's name, which messages repeat, is text to whoever posts the messages as Markdown."""
    out = check(form, PLAN.format(name="a", gpu=json.dumps(text)), tmp_path, capsys)
    if form == "rdjson":
        said = [each["message"] for each in json.loads(out)["diagnostics"]]
    elif form == "gitlab":
        said = [each["description"] for each in json.loads(out)]
    else:
        said = [html.unescape(each) for each in re.findall(r'message="([^"]*)"', out)]
    assert said
    for message in said:
        assert not ACTIVE.search(re.sub(r"&#\d+;", "", message)), message


@pytest.mark.parametrize("text", EMOJI)
def test_no_emoji_is_drawn(text: str, tmp_path: Path, capsys: Capture) -> None:
    """GitHub draws an emoji after it has read entities: the colons are not next to the word."""
    out = check("markdown", PLAN.format(name=json.dumps(text), gpu="h"), tmp_path, capsys)
    for shown in (out, escape(text), code(text), neutral(text)):
        assert not re.search(r":[\w+-]*[A-Za-z][\w+-]*:|:100:|:[+-]1:", html.unescape(shown).replace("https:", ""))


def test_no_sign_of_a_verdict() -> None:
    """A name's own signs are codes, so that the only marks are memcheck's."""
    assert escape("\u2705 pass \U0001f7e2") == "&#92;u2705 pass &#92;U0001f7e2"
    assert "\u2705" not in neutral("\u2705 pass")


def test_plain_messages_stay() -> None:
    """What has no markup is written as it is, code, places and keys included."""
    for text in (
        "needs 3.02 GiB of `h100-80gb` (301.7%)",
        "a.yaml:5:17 and gpus_per_node",
        "tensor `a * b_`: 10:20:30",
    ):
        assert neutral(text) == text
