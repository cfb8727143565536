"""What a command says on stderr: messages, errors, defects of memcheck itself, notices, and how far it is.

Which terminals understand hyperlinks (OSC 8). There is no way to ask one; others would show rubbish.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from memcheck import __version__
from memcheck.cli.options import CheckOptions
from memcheck.cli.write import is_terminal, width_of
from memcheck.edge.screen import clean, one_line, put, put_over, silence, whole_number, wrap
from memcheck.rules.result import PlanResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.cli.review.baseline import AcceptedFinding
    from memcheck.config.unseen import Unseen


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


def tell_of_empty_share(elsewhere: int, options: CheckOptions) -> None:
    """Say on stderr, where reports for programs do not get it, that other shares have every file."""
    if not options.quiet:
        where = (
            "the only plan file is in another shard"
            if elsewhere == 1
            else f"all {elsewhere} plan files are in other shards"
        )
        tell(f"memcheck: nothing to check in shard {options.shard}: {where}\n")


def warn_of_unmarked(unmarked: Sequence[str], plans: Sequence[PlanResult]) -> bool:
    """Say which files look like plans and were not judged, but for those that plans extend; whether there are any."""
    bases = {os.path.normpath(path) for plan in plans for path in plan.sources}
    left = [path for path in unmarked if os.path.normpath(path) not in bases]
    if left:
        tell(
            f"memcheck: warning: not checked, because `memcheck: 1` is not at the top: {_first(left)}\n"
            "  help: a plan has that key; a file that plans extend needs none\n",
        )
    return bool(left)


def warn_of_unseen(unseen: Unseen) -> None:
    """Say which plans, and which folders, the search of a folder left out."""
    said = []
    if unseen.plans:
        count = len(unseen.plans)
        what = f"{count:,} {'plan' if count == 1 else 'plans'} in folders that a search leaves out"
        said.append(f"{what}: {_first(unseen.plans)}")
    if unseen.left:
        said.append(f"not looked into, for too many files or a link out of the repository: {_first(unseen.left)}")
    tell(f"memcheck: warning: not checked: {'; '.join(said)}\n  help: name the folder in the paths to check it\n")


def _first(paths: Sequence[str]) -> str:
    """The first paths, and how many more there are."""
    return ", ".join(map(one_line, paths[:5])) + (f" and {len(paths) - 5:,} more" if len(paths) > 5 else "")


def tell_of_stale(file: str, stale: Sequence[AcceptedFinding]) -> None:
    """Say which entries of a baseline accept nothing any more."""
    shown = ", ".join(f"{entry.code} of {entry.plan}" for entry in stale[:5])
    more = f" and {len(stale) - 5} more" if len(stale) > 5 else ""
    tell(
        f"memcheck: warning: {file} accepts what is gone: {shown}{more}\n"
        "  help: `memcheck baseline write` takes it out\n",
    )


QUIET_S = 1.0
"""A search that answers sooner shows nothing."""
SECONDS = 0.1
"""Between two updates of a terminal's line."""
LOG_S = 5.0
"""Between two lines of a log, where there is no terminal."""


@contextmanager
def counting(noun: str, things: str, of_s: float) -> Iterator[Callable[[int], None]]:
    """A function that shows how many things an open-ended search has looked at; ``of_s``: when it ends at the latest.

    On a terminal a line appears after a second, is rewritten, and is gone at the end; in a log one is written every few
    seconds.
    """
    stream = sys.stderr
    if not is_terminal(stream):
        yield _logging(noun, things, of_s)
        return
    begun = time.monotonic()
    last, shown = [begun], [0]

    def show(done: int) -> None:
        now = time.monotonic()
        if now - begun < QUIET_S or now - last[0] < SECONDS:
            return
        last[0] = now
        text = f"{noun}: {done:,} {things} looked at"
        shown[0] = len(text)
        put_over(stream, text)

    try:
        yield show
    finally:
        if shown[0]:
            put_over(stream, " " * shown[0])
            put_over(stream, "")


def _logging(noun: str, things: str, of_s: float) -> Callable[[int], None]:
    begun = time.monotonic()
    next_s = [LOG_S]

    def tell(done: int) -> None:
        passed = time.monotonic() - begun
        if passed >= next_s[0]:
            next_s[0] = passed + LOG_S
            put(sys.stderr, f"{noun}: {done:,} {things} looked at in {passed:.0f} of {of_s:g} s\n")

    return tell


def progress(noun: str, total: int, *, wanted: bool) -> Callable[[int], None] | None:
    """A function that shows how many of ``total`` are done; None unless stderr is a terminal or ``wanted``.

    On a terminal one line is rewritten and gone at the end; elsewhere (``wanted`` alone) one is written at every tenth.
    """
    stream = sys.stderr
    live = is_terminal(stream)
    if not (live or wanted):
        return None
    last = [0.0, 0.0]
    shown = [0]

    def show(done: int) -> None:
        if live and done < total:
            now = time.monotonic()
            if now - last[0] < SECONDS:
                return
            last[0] = now
            text = f"{noun}: {done:,} of {total:,} ({done / total:.0%})"
            shown[0] = len(text)
            put_over(stream, text)
        elif live:
            if shown[0]:
                put_over(stream, " " * shown[0])
                put_over(stream, "")
        elif done == total or done / total >= last[1] + 0.1:
            last[1] = done / total
            put(stream, f"{noun}: {done:,} of {total:,}\n")

    return show


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
