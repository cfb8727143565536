"""The one place where exceptions become exit codes."""

from __future__ import annotations

import errno
import os
import sys

from memcheck.edge.screen import open_missing, silence
from memcheck.errors import DEFECT, MemcheckError, UsageError

INTERRUPTED = 130


def guarded(arguments: list[str]) -> int:
    """Run a command line. Every exception becomes a message on stderr and an exit code, never a traceback."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        open_missing()
    try:
        return dispatch(arguments)
    except BrokenPipeError:
        silence()
        return 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every exception of memcheck itself ends in a report
        return _told(error, arguments)


def dispatch(arguments: list[str]) -> int:
    """Plain ``check`` lines run at once; every other line goes through click, which costs as much as a whole check."""
    if arguments[:1] in (["hook"], ["check"]):
        from memcheck.cli.plain import check_line, checked

        if arguments[0] == "hook":
            arguments = check_line(arguments[1:])
        code = checked(arguments)
        if code is not None:
            return code
    from memcheck.cli.app import run_app

    return run_app(arguments)


def _told(error: BaseException, arguments: list[str]) -> int:
    """Say on stderr what ended a run, and return the exit code; what writes it is loaded only where something did."""
    from memcheck.cli.write import complain, write_bug_report

    if isinstance(error, MemcheckError):
        complain(error.message, error.help)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        complain("interrupted")
        return INTERRUPTED
    outside = _outside(error)
    if outside:
        complain(outside)
        return UsageError.exit_code
    write_bug_report(arguments)
    return DEFECT


UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG)
"""What the system says when a stream takes no more."""


def _outside(error: BaseException) -> str:
    """What is wrong around memcheck, when that is why it failed; empty for a defect."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if not isinstance(error, OSError) or error.filename is not None:
        return ""
    if error.errno in UNWRITABLE:
        silence()
        return f"cannot write to stdout: {error.strerror}"
    try:
        os.getcwd()
    except OSError as gone:
        return f"cannot read the working directory: {gone.strerror}"
    return ""
