"""Marks of a plan in letters that only look like the mark's: such a file is judged, and never passed over."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.edge.lookalikes import skeleton
from memcheck.plan.sniff import looks_like_plan
from tests.cli.plans import GOOD

Capture = pytest.CaptureFixture[str]
MARKS = {
    "a Cyrillic letter": "mem\u0441heck",
    "Cyrillic capitals": "\u041c\u0415\u041c\u0421\u041d\u0415\u0421\u041a",
    "Greek letters": "\u03bc\u03b5mcheck",
    "full width": "\uff4d\uff45\uff4d\uff43\uff48\uff45\uff43\uff4b",
    "mathematical letters": "\U0001d426\U0001d41e\U0001d426\U0001d41c\U0001d421\U0001d41e\U0001d41c\U0001d424",
    "small capitals": "\u1d0d\u1d07\u1d0d\u1d04\u029c\u1d07\u1d04\u1d0b",
    "an accent": "m\u00e9mcheck",
    "a combining accent": "me\u0301mcheck",
    "a grapheme joiner": "mem\u034fcheck",
    "no width": "mem\u200bcheck",
    "a word joiner": "mem\u2060check",
    "a soft hyphen": "mem\u00adcheck",
    "a variation selector": "memcheck\ufe0f",
    "a tag": "memcheck\U000e0061",
    "a direction mark": "\u202ememcheck",
    "a filler": "mem\u3164check",
    "an escape": '"mem\\u0441heck"',
    "a long escape": '"mem\\U00000441heck"',
    "quotes": "'mem\u0441heck'",
    "a slip as well": "m\u0435mchek",
    "a space": "mem check",
}


@pytest.mark.parametrize("kind", MARKS)
def test_a_mark_in_other_letters_fails(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The hook, which shows nothing where it passes, and a folder check fail with the mark as it is written."""
    monkeypatch.chdir(tmp_path)
    text = GOOD.format(name="a").replace("memcheck", MARKS[kind])
    Path("a.yaml").write_text(text, encoding="utf-8")
    assert main(["hook", "a.yaml"]) == 1
    assert main(["check", "--format", "concise", "."]) == 1
    assert "memcheck`" in capsys.readouterr().out


def test_sections_in_other_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections may be written so as well."""
    monkeypatch.chdir(tmp_path)
    text = GOOD.format(name="a").replace("memcheck", "mem\u0441hek").replace("model", "m\u043edel")
    Path("a.yaml").write_text(text.replace("training", "tr\u0430ining"), encoding="utf-8")
    assert main(["hook", "a.yaml"]) == 1


def test_keys_in_other_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A key says which of its letters is another one, and `--fix` writes it in plain letters."""
    monkeypatch.chdir(tmp_path)
    text = GOOD.format(name="a")
    Path("a.yaml").write_text(text.replace("micro_batch_size", "micro_b\u0430tch_size"), encoding="utf-8")
    assert main(["check", "a.yaml"]) == 1
    assert "write `micro_batch_size` in plain letters, not with U+0430" in " ".join(capsys.readouterr().out.split())
    assert main(["check", "--fix", "a.yaml"]) == 0
    assert Path("a.yaml").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "text", ["\u6f22\u5b57: 1\nmodel: x\n", "m\u00e9moire: 1\n", "memo: \u0441heck\n", "x: '\u200b'\n"]
)
def test_other_files_in_other_letters(text: str) -> None:
    """YAML of other languages is no plan."""
    assert not looks_like_plan(text.encode())


def test_a_skeleton_keeps_plain_text() -> None:
    """Plain letters stay, small; and a long text costs what its length does."""
    assert skeleton("Micro_Batch-Size: 1\n") == "micro_batch-size: 1\n"
    assert skeleton("\u6f22\u5b57") == "\u6f22\u5b57"
    spent = []
    for count in (20_000, 80_000):
        start = time.process_time()
        skeleton("m\u0301\u0441\u200b\u6f22" * count)
        spent.append(time.process_time() - start)
    assert spent[1] < 12 * spent[0]
