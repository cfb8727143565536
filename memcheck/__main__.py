"""The command line's entry. Kept almost free of imports: ``--version`` and the ``check`` of a hook must start fast."""

from __future__ import annotations

import gc
import sys

from memcheck import __version__


def main(argv: list[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code.

    0 clean, 1 findings, 2 usage, configuration or nothing to check, 3 a defect of memcheck, 130 interrupted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments in (["--version"], ["-V"]) and sys.stdout is not None:
        try:
            sys.stdout.write(f"memcheck {__version__}\n")
            sys.stdout.flush()
        except OSError:
            pass  # the guard says why
        else:
            return 0
    # Importing makes tens of thousands of objects that live to the end; collecting in between finds nothing.
    gc.set_threshold(100_000)
    if sys.implementation.name == "cpython":
        from memcheck.edge.imports import shorten

        shorten()
    from memcheck.cli.guard import guarded

    code = guarded(arguments)
    if argv is None:
        gc.freeze()  # the process ends: it need not look for cycles among what goes all at once
    return code


if __name__ == "__main__":
    sys.exit(main())
