"""Commands in the process of the tests: what a command says is no different, and the start of a process is saved."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from pathlib import Path

from memcheck.__main__ import main


def memcheck(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command in a folder, with streams of its own."""
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = main([*arguments])
    finally:
        os.chdir(before)
    out, err = (stream.buffer.getvalue().decode() for stream in (stdout, stderr))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["memcheck", *arguments], code, out, err)
