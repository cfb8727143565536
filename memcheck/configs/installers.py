"""Commands of a launch script that install, fetch, log in or cancel, whose arguments are none of the training's."""

from __future__ import annotations

import re

_FETCHES = re.compile(
    r"\s*!?\s*(?:sudo\s+)?(?:"
    r"(?:uv\s+|python3?\s+-m\s+)?pip3?\s+(?:install|download|uninstall)"
    r"|(?:conda|mamba|apt|apt-get|yum|dnf)\s+(?:-y\s+)?(?:install|update|create)"
    r"|(?:huggingface-cli|hf|modelscope)\s+download"
    r"|git\s+clone|wget|curl|rsync|nvcc|wandb|scancel|squeue|scontrol|nvidia-smi|ray\s+(?:start|stop)"
    r")(?=\s|$)"
)
_JOINED = re.compile(r"[;&|]")
"""Signs that separate two commands on one line."""


def without_installers(text: str) -> str:
    """The script with blank lines in their place. One that shares its line with another command stays."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        end = number + 1
        while lines[end - 1].rstrip().endswith("\\") and end < len(lines):
            end += 1
        if _FETCHES.match(lines[number][:2000]) and not any(map(_JOINED.search, lines[number:end])):
            lines[number:end] = [""] * (end - number)
        number = end
    return "\n".join(lines)
