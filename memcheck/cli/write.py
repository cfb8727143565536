"""Where output goes: streams and files, what the terminal of a stream understands, and what is said on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from memcheck import __version__
from memcheck.cli.options import Output
from memcheck.edge.opener import refuse_way_out
from memcheck.edge.screen import Screen, clean, document, inert, one_line, put, silence, whole_number, wrap
from memcheck.errors import UsageError
from memcheck.report import BINARY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


DEFAULT_WIDTH = 100


def screen_of(stream: TextIO, color: str = "auto", environment: Mapping[str, str] = os.environ) -> Screen:
    """The screen that a stream writes to. ``color`` is ``auto``, ``always`` or ``never``.

    With ``auto``: no colour if ``NO_COLOR`` is set, colour if ``FORCE_COLOR`` is, else colour on a terminal only.
    """
    return Screen(
        width_of(stream, environment),
        use_color(stream, color, environment),
        speaks_unicode(stream),
        links=use_links(stream, color, environment),
    )


def has_width(stream: TextIO) -> bool:
    """Whether lines have to fit somewhere: not in a file or a pipe, unless ``COLUMNS`` says so."""
    return bool(os.environ.get("COLUMNS")) or stream.isatty()


def width_of(stream: TextIO, environment: Mapping[str, str]) -> int:
    """``COLUMNS`` if set, else the terminal's width, else 100."""
    stated = whole_number(environment.get("COLUMNS", ""))
    if stated:
        return stated
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    except (OSError, ValueError, AttributeError):
        return DEFAULT_WIDTH


def use_color(stream: TextIO, color: str, environment: Mapping[str, str]) -> bool:
    """Whether to send colours."""
    if color != "auto":
        return color == "always"
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal(stream) and environment.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def use_links(stream: TextIO, color: str, environment: Mapping[str, str]) -> bool:
    """Whether to send hyperlinks: to terminals known to understand them, or as ``FORCE_HYPERLINK`` says."""
    forced = environment.get("FORCE_HYPERLINK", "")
    if color == "never" or forced:
        return color != "never" and forced != "0"
    if not is_terminal(stream):
        return False
    return understood(environment)


def speaks_unicode(stream: TextIO) -> bool:
    """Whether bars can be drawn with block characters."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "").replace("_", "") in ("utf8", "utf8sig")


PROGRAMS = ("ghostty", "iTerm.app", "vscode", "WezTerm")
"""Values of ``TERM_PROGRAM`` of terminals that show hyperlinks."""
TERMS = ("alacritty", "foot", "xterm-ghostty", "xterm-kitty")
"""Beginnings of ``TERM`` of terminals that show hyperlinks."""
MARKS = ("KITTY_WINDOW_ID", "KONSOLE_VERSION", "WT_SESSION")
"""Variables that only such terminals set."""
MULTIPLEXERS = ("TMUX", "STY")
"""tmux drops hyperlinks before 3.4, and screen always."""
FIRST_VTE = 5000
"""GNOME Terminal and its relatives: hyperlinks work since VTE 0.50."""


def understood(environment: Mapping[str, str]) -> bool:
    """Whether the terminal that this environment describes shows hyperlinks."""
    if environment.get("CI") or environment.get("TERM") == "dumb":
        return False
    if any(environment.get(name) for name in MULTIPLEXERS):
        return False
    vte = environment.get("VTE_VERSION", "")
    return (
        environment.get("TERM_PROGRAM") in PROGRAMS
        or environment.get("TERM", "").startswith(TERMS)
        or any(environment.get(name) for name in MARKS)
        or (whole_number(vte) or 0) >= FIRST_VTE
    )


APPENDED = ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")
"""Files of the runner that other tools of the same step write too."""


def prepare(outputs: Iterable[Output]) -> None:
    """Fail before the work, not after it.

    Raises:
        MissingPdfExtraError: a format needs what is not installed.
    """
    if any(output.format in BINARY for output in outputs):
        from memcheck.report.pdf import require_extra

        require_extra()


def write_each(
    outputs: Iterable[Output],
    color: str,
    render: Callable[[str, Screen], str | bytes],
    *,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Render each format and send it where it was asked for; files first: a closed pipe must not lose one.

    ``quiet`` is for stdout: a file names every plan.
    """
    for output, screen in shown_on(outputs, color, quiet=quiet, verbose=verbose):
        write(output.file, render(output.format, screen), commands=output.format == "github")


def shown_on(
    outputs: Iterable[Output], color: str, *, quiet: bool = False, verbose: bool = False
) -> list[tuple[Output, Screen]]:
    """What is written in this order, each with how it may look."""

    def screen(file: str | None) -> Screen:
        if file is not None:
            return Screen(verbose=verbose)
        return screen_of(sys.stdout, color)._replace(quiet=quiet, verbose=verbose)

    ordered = sorted(outputs, key=lambda item: item.file is None)
    return [(output, screen(output.file)) for output in ordered]


def write(file: str | None, report: str | bytes, *, commands: bool = False) -> None:
    """Send a report to a file, or print it; text as :func:`~memcheck.edge.screen.inert` lets it leave.

    Raises:
        UsageError: the file cannot be written.
    """
    if file is None:
        write_stdout(report if isinstance(report, str) else report.decode(), commands=commands)
    else:
        write_file(file, inert(report, commands=commands) if isinstance(report, str) else report)


def write_stdout(text: str, *, commands: bool = False) -> None:
    """Print text in which nothing drives the terminal or a CI runner; ``commands`` are memcheck's own."""
    _print(inert(text, commands=commands))


def write_document(text: str) -> None:
    """Print a config or a patch: byte for byte for a file or a program, as text for people where it would be a log."""
    _print(document(text))


def _print(text: str) -> None:
    """Characters that the encoding lacks become escapes, and a reader that left is no error.

    Raises:
        UsageError: stdout is closed, or takes no more.
    """
    stream = sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        silence()
    except OSError as error:
        silence()
        raise UsageError(f"cannot write to stdout: {error.strerror or error}") from error


def write_file(path: str, report: str | bytes) -> None:
    """Write a report file, text as UTF-8: the old one stays until the new one is whole.

    The runner's own files are appended to, and a device or a pipe takes the report as it comes.

    Raises:
        UsageError: the file cannot be written, or is a committed link out of the repository.
    """
    data = report.encode("utf-8", "backslashreplace") if isinstance(report, str) else report
    try:
        if os.path.abspath(path).startswith(_OPEN_FILES):
            _send(path, data, "wb")
            return
        refuse_way_out(path)
        if path in {os.environ.get(name) for name in APPENDED}:
            _send(path, data, "ab")
        elif os.path.exists(path) and not os.path.isfile(path):
            _send(path, data, "wb")
        else:
            from memcheck.cli.replace import put_in_place

            put_in_place(path, data)
    except OSError as error:
        raise UsageError(f"cannot write the report to {path}: {error.strerror or error}") from error


_OPEN_FILES = ("/dev/", "/proc/self/fd/")
"""Where a path is another name of a device or of a file that the process has open: ``/dev/stdout`` is a link."""


def _send(path: str, data: bytes, mode: str) -> None:
    with open(path, mode) as file:
        file.write(data)


HANGS = 2
"""Columns that what goes on from the line before is moved by."""


def tell(text: str) -> None:
    """Write a message: on a terminal broken between words, elsewhere each line whole, so that ``grep`` finds it."""
    stream = sys.stderr
    put(stream, filled(text, width_of(stream, os.environ)) if is_terminal(stream) else text)


def filled(text: str, columns: int) -> str:
    """The text in lines of at most ``columns`` cells; the rest of a broken line is indented."""
    lines: list[str] = []
    for line in clean(text).split("\n"):
        start = line.lstrip(" ")
        lead = " " * (len(line) - len(start))
        first, *rest = wrap(start, max(columns - len(lead) - HANGS, 1), -HANGS)
        lines += [lead + first, *(lead + " " * HANGS + part for part in rest)]
    return "\n".join(lines)


def complain(message: str, help: str = "") -> None:
    """One error on stderr, with what to do about it."""
    text = f"memcheck: error: {message}\n" + (f"  help: {help}\n" if help else "")

    try:
        tell(text)
    except BrokenPipeError:
        silence()


def first(paths: Sequence[str]) -> str:
    """The first paths, and how many more there are."""
    return ", ".join(map(one_line, paths[:5])) + (f" and {len(paths) - 5:,} more" if len(paths) > 5 else "")


TEMPLATE = """\
### memcheck failed

What I did:

```
memcheck {command}
```

What happened:

```
{trace}
```

| | |
|---|---|
| memcheck | {version} |
| Python | {python} |
| platform | {platform} |

The plan, if it can be shown (the smallest that still fails):

```yaml

```
"""


def write_bug_report(arguments: list[str], traces: tuple[str, ...] = ()) -> None:
    """Write the report (of the exception being handled, or of the given traces) and say where it is."""
    import platform
    import shlex
    import tempfile
    import traceback

    text = TEMPLATE.format(
        command=shlex.join(arguments),
        trace="\n\n".join(traces or (traceback.format_exc().rstrip(),)),
        version=__version__,
        python=sys.version.split()[0],
        platform=platform.platform(),
    )
    last = (traces[0] if traces else traceback.format_exc()).rstrip().rpartition("\n")[2]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="memcheck-defect-", suffix=".md", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError as error:
        complain(f"this is a defect of memcheck, and no report could be written ({error}): {last}")
        return
    complain(f"this is a defect of memcheck: {last}", f"please open an issue with the text of {file.name}")
