"""Draws the document on a terminal. What a plan that passes does not need is in :mod:`memcheck.report.text_blocks`."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.edge.screen import Screen, clean, one_line, width, wrap
from memcheck.report.story import Fitting, Gauge, PlanHead, PlanSummary, Prose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.report.story.blocks import Block


STYLES = {"bad": "error", "warn": "warning", "note": "info"}
"""The terminal's name of a tone, where it is another one."""
INDENT = 6
"""Columns on the left of what is said of a plan, below its name."""
BAR = 40
LEAST_BAR = 12


def document(groups: Iterable[Iterable[Block | None]], screen: Screen) -> str:
    """Groups of blocks with an empty line between them; groups without any lines are left out."""
    shown = (lines(group, screen) for group in groups)
    return "\n\n".join("\n".join(found) for found in shown if found)


def lines(blocks: Iterable[Block | None], screen: Screen, indent: int = 0) -> list[str]:
    """Blocks one below the other. ``indent``: columns on the left of every line."""
    return [line for each in blocks if each is not None for line in block(each, screen, indent)]


def block(item: Block, screen: Screen, indent: int = 0) -> list[str]:
    """The lines of one block."""
    if isinstance(item, Prose):
        pad, tone = " " * indent, item.tone
        return [pad + painted(screen, line, tone) for line in wrap(clean(item.text), screen.columns - indent)]
    if isinstance(item, Fitting):
        return [" " * indent + line for line in fitting(item, screen.columns - indent)]
    if isinstance(item, PlanSummary):
        told = [line for each in item.lines for line in block(each, screen, INDENT)]
        return [*head(item.head, screen), *gauge(item.gauge, screen), *told]
    if isinstance(item, Gauge):
        return gauge(item, screen)
    if isinstance(item, PlanHead):
        return head(item, screen)
    # Imported here because a run without findings needs none of it.
    from memcheck.report.text_blocks import drawn

    return drawn(item, screen, indent)


def style(tone: str) -> str:
    """The terminal's style of a tone."""
    return STYLES.get(tone, tone)


def painted(screen: Screen, text: str, tone: str) -> str:
    """Text in the colour of a tone."""
    return screen.paint(text, STYLES.get(tone, tone))


def head(item: PlanHead, screen: Screen) -> list[str]:
    """A plan's verdict, name and file: on one line, or the file on a second one where there is no room."""
    name, path = one_line(item.name), one_line(item.path)
    word = f"{painted(screen, item.word, item.tone)}  " if item.word else ""
    first, used = word + screen.paint(name, "strong"), len(item.word) + 2 if item.word else 0
    if path == name:  # a command line has no file
        return [first]
    place = screen.paint(path, "dim")
    if used + width(name) + 2 + width(path) <= screen.columns:
        return [f"{first}  {place}"]
    return [first, " " * (INDENT if item.word else 0) + place]


def fitting(item: Fitting, columns: int) -> list[str]:
    """The line with as many parts as fit into ``columns``."""
    for count in range(len(item.parts), item.least - 1, -1):
        line = clean(item.with_parts(count))
        if width(line) <= columns:
            break
    return wrap(line, columns)


def gauge(item: Gauge, screen: Screen) -> list[str]:
    """Lines of a bar and its numbers: on one line, or the numbers on a second line where there is no room."""
    used = item.share.rjust(6)
    cells = min(screen.columns - 64, BAR)  # the same for every plan, so that bars can be compared
    if cells >= LEAST_BAR and INDENT + cells + 1 + len(used) + 2 + len(item.numbers) <= screen.columns:
        return [f"{' ' * INDENT}{bar(item, cells, screen)} {screen.paint(used, 'strong')}  {item.numbers}"]
    shown = bar(item, screen.columns - INDENT - len(used) - 1, screen)
    return [f"{' ' * INDENT}{shown} {screen.paint(used, 'strong')}", f"{' ' * INDENT}{item.numbers.strip()}"]


def bar(item: Gauge, cells: int, screen: Screen) -> str:
    """One horizontal bar: the needed memory, then the cache, then the free memory, with a mark at the limit."""
    full = max(item.seen_bytes, item.needed_bytes, item.capacity_bytes, 1)
    used = min(cells, max(1, round(item.needed_bytes / full * cells)))
    seen = max(used, min(cells, round(item.seen_bytes / full * cells)))
    at = min(cells - 1, round(item.limit_bytes / full * cells))
    chars = [screen.glyph("full")] * used + [screen.glyph("tail")] * (seen - used)
    chars += [screen.glyph("track")] * (cells - seen)
    chars[at] = screen.glyph("limit")
    fill = bar_style(item.tone)
    parts = [(0, min(at, used), fill), (min(at, used), at + 1, "dim")]
    parts += [(at + 1, max(used, at + 1), fill), (max(used, at + 1), cells, "dim")]
    return "".join(screen.paint("".join(chars[first:last]), shade) for first, last, shade in parts)


def bar_style(tone: str) -> str:
    """The style of a bar of this tone, or of a component without one."""
    return {"good": "good-bar", "warn": "warning-bar", "bad": "bad-bar"}.get(tone, "bar")
