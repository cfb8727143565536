"""The report of a defect of memcheck itself: a file that is ready to paste into an issue."""

from __future__ import annotations

import sys
import traceback

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

    from memcheck import __version__
    from memcheck.cli.guard import complain

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
