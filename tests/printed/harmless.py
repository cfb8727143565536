"""What a terminal or a CI runner would obey, looked for in what memcheck prints."""

from __future__ import annotations

import re

HOSTILE = (
    "\x1b[31mred",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x9b31m",
    "a\n::error::pwned",
    "a\r::warning::pwned",
    "::set-env name=X::y",
    "   ::add-mask::a",
    "##[error]pwned",
    "x ##vso[task.setvariable variable=a]b",
    "\u202eevil\u2066",
    "a\u2028::error::b\u2029\x85c",
    "\ud800\udc80",
    "\x00\x07\x7f",
)
"""Text of a plan's author, or a file's name."""
ALLOWED = re.compile(r"\x1b\[[0-9;]*m")
DRIVES = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def harm(text: str, *, colors: bool = False) -> list[str]:
    """The lines of a printed text that do something; with ``colors``, memcheck's own are none of them."""
    seen = ALLOWED.sub("", text) if colors else text
    return [line for line in seen.split("\n") if DRIVES.search(line) or is_command(line)]


def is_command(line: str) -> bool:
    """Whether a runner reads a command, as ``ActionCommand`` of actions/runner and Azure's agent do."""
    start = line.lstrip()
    if start.startswith("::") and not start.startswith("::: "):
        return True
    return re.search(r"##[A-Za-z]*\[", line) is not None
