"""One line per finding."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.report.brief import concise
from tests.report import samples

LINES = """\
plans/llama-3.1-8b-docs-sft.yaml:11:3: MEM101 needs 54.31 GiB per GPU, 14.93 GiB more than an a100-40gb has (39.38 GiB)
plans/llama-3.1-8b-docs-sft.yaml:8:11: MEM203 tensor: 16 spans 2 nodes of 8 GPUs
plans/llama-3.1-8b-docs-sft.yaml:11:3: MEM010 unknown key `micro_batchsize` in training; did you mean `micro_batch_size`?
checked 4 plans: 2 passed, 2 failed (2 errors, 1 warning)
1 of 3 findings can be fixed with --fix --unsafe-fixes
"""


def test_lines_are_what_editors_parse() -> None:
    """``path:line:col: CODE message`` and the summary."""
    assert concise(samples.mixed(), Screen(60)) == LINES


def test_message_stays_on_its_line() -> None:
    """Line breaks and control characters of a message do not break the format."""
    spoiled = samples.over()._replace(message="one\ntwo\r\x1b[31m")
    text = concise(samples.report(samples.result("failed", (spoiled,))), Screen(quiet=True))
    assert text == "plans/llama-3.1-8b-docs-sft.yaml:11:3: MEM101 one two \\x1b[31m\n"


def test_quiet_is_silent_about_what_is_in_order() -> None:
    """Nothing found, nothing printed."""
    assert concise(samples.report(samples.result()), Screen(quiet=True)) == ""
