"""The one place where exceptions become exit codes."""

from __future__ import annotations

import os
import sys

from memcheck.errors import MemcheckError

DEFECT = 3
INTERRUPTED = 130


def guarded(arguments: list[str]) -> int:
    """Run a command line; whatever happens becomes a message on stderr and an exit code, never a traceback."""
    try:
        return dispatch(arguments)
    except MemcheckError as error:
        complain(error.message, error.help)
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        silence()
        return 0
    except Exception:  # noqa: BLE001 - a defect of ours, whatever it is, must end in a report
        from memcheck.cli.defect import write_bug_report

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


def complain(message: str, help: str = "") -> None:
    """One error on stderr, with what to do about it."""
    from memcheck.edge.streams import put

    text = f"memcheck: error: {message}\n" + (f"  help: {help}\n" if help else "")
    try:
        put(sys.stderr, text)
    except BrokenPipeError:
        silence()


def silence() -> None:
    """Nobody reads any more: let the interpreter's last flush go nowhere instead of failing."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # noqa: PERF203 - two streams
            os.dup2(devnull, stream.fileno())
