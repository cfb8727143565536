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
    except MemcheckError as error:
        _say(error.message, error.help)
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        silence()
        return 0
    except Exception as error:  # noqa: BLE001 - every exception of memcheck itself must end in a report
        outside = _outside(error)
        if outside:
            _say(outside)
            return UsageError.exit_code
        from memcheck.cli.tell import write_bug_report

        write_bug_report(arguments)
        return DEFECT


def dispatch(arguments: list[str]) -> int:
    """Plain ``check`` lines run at once; every other line goes through click, which costs as much as a whole check."""
    if arguments[:1] == ["hook"]:
        from memcheck.cli.hook import check_line

        arguments = check_line(arguments[1:])
    if arguments[:1] == ["check"]:
        from memcheck.cli.plain import parse_plain

        options = parse_plain(arguments)
        if options is not None:
            from memcheck.cli.gate import run_check

            return run_check(options)
    from memcheck.cli.app import run_app

    return run_app(arguments)


UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG)
"""What the system says when a stream takes no more."""


def _outside(error: Exception) -> str:
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


def _say(message: str, help: str = "") -> None:
    """One error on stderr; what writes it is loaded only where there is one."""
    from memcheck.cli.tell import complain

    complain(message, help)
