"""What stands below a memory budget: the peak, the largest tensors, the assumptions, the remedies."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate, TensorGroup
from memcheck.edge.screen import Screen
from memcheck.edge.text import between, clean, gib, one_line, value, width, words, wrap
from memcheck.finding import Remedy
from memcheck.result import PlanResult

SHORT_FORMS = ("mode", "name", "kind", "recipe", "parameters", "rank")
"""The field that a key stands for when it is written as one word."""
SILENT: dict[str, object] = {
    "parallelism.tensor": 1,
    "parallelism.context": 1,
    "parallelism.pipeline": 1,
    "parallelism.virtual_stages": 1,
    "parallelism.expert": 1,
    "parallelism.zero_stage": 0,
}
"""What a plan means that does not write a degree: the defaults of its schema, which are no assumptions."""
NUMBER = 5
"""Columns of a remedy's number, with the space around it."""
COMMAND = "    "
"""In front of a line of a help that is a command."""
LARGEST = 5
"""Tensor groups shown: the rest is in the JSON report."""


def labelled(label: str, text: str, screen: Screen, style: str = "strong", indent: int = 0) -> list[str]:
    """``label: text``, wrapped, with the continuation lines under the text."""
    head = f"{label}: "
    room = screen.columns - indent - len(head)
    lines = [line for part in clean(text).split("\n") for line in _part(part, room)]
    pad = " " * (indent + len(head))
    return [f"{' ' * indent}{screen.paint(label + ':', style)} {lines[0]}", *(f"{pad}{line}" for line in lines[1:])]


def _part(text: str, room: int) -> list[str]:
    """Lines of a text. A command, which is indented, can be copied with its line ends: only a shell's words are parted.

    A plan in quotes is parted as well, where YAML may go on in the next line.
    """
    if not text.startswith(COMMAND):
        return wrap(text, room)
    import re

    lines, line = [], ""
    for word in re.findall(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+|['"]""", text):
        for number, part in enumerate(re.findall(r"[^,]+,?|,", word) if word.startswith("'{") else [word]):
            glue = "" if number or not line.strip() else " "
            if line.strip() and len(line) + len(glue) + len(part) + 2 > room:
                lines.append(line if number else f"{line} \\")
                line = "  " + part.strip()
            else:
                line += glue + part
    return [*lines, line]


def name_and_place(name: str, path: str, screen: Screen) -> list[str]:
    """A plan's name and its file: on one line, or on two where there is no room."""
    name, path = one_line(name), one_line(path)
    if name == path:
        return [screen.paint(name, "strong")]
    first, place = screen.paint(name, "strong"), screen.paint(path, "dim")
    if name == path:  # a command line has no file
        return [first]
    return [f"{first}  {place}"] if width(name) + width(path) + 2 <= screen.columns else [first, place]


def peak(estimate: Estimate) -> str:
    """When and where memory is highest, in words."""
    where = f" on pipeline rank {estimate.pipeline_rank} of {len(estimate.ranks)}" if len(estimate.ranks) > 1 else ""
    during = f", during {estimate.operation}" if estimate.operation and estimate.operation != estimate.instant else ""
    return f"{estimate.instant}{where}{during}"


def host_line(estimate: Estimate) -> str:
    """How much memory of a node is needed, when, and for what."""
    parts = ", ".join(f"{words(name)} {gib(count)}" for name, count in estimate.host_components)
    moment = estimate.host_moment
    when = f" in {moment.name}, {moment.operation}" if moment is not None else ""
    return f"{gib(estimate.host_bytes_per_node)} GiB of host memory per node{when}: {parts}"


def interval(estimate: Estimate) -> str:
    """The interval of what is needed: ``between 56.1 and 57.9 GiB (95%)``."""
    return span(estimate.needed_interval_bytes)


def span(ends: tuple[int, int]) -> str:
    """The two ends of a 95 % interval, in bytes, as a text in GiB."""
    return f"{between(ends)} GiB (95%)"


def largest(groups: tuple[TensorGroup, ...], screen: Screen) -> list[str]:
    """The biggest live tensors: size, count, name, shape, component, in columns as wide as their content."""
    rows = [
        (gib(group.bytes), f"{group.copies:,} x", clean(group.name), clean(group.shape), words(group.component))
        for group in groups[:LARGEST]
    ]
    if not rows:
        return []
    size, count, name, shape, component = (max(width(row[i]) for row in rows) for i in range(5))
    # Narrow screens lose the component first, then the end of the longest names.
    with_component = size + count + name + shape + component + 8 <= screen.columns
    name = min(name, max(12, screen.columns - size - count - shape - 6))
    lines = [screen.paint("largest live tensors at the peak (GiB)", "dim")]
    for row in rows:
        text = f"{row[0].rjust(size)}  {row[1].rjust(count)}  {_fit(row[2], name, screen)}  {_pad(row[3], shape)}"
        lines.append((f"{text}  {row[4]}" if with_component else text)[: screen.columns].rstrip())
    return lines


def _pad(text: str, cells: int) -> str:
    return text + " " * (cells - width(text))


def _fit(text: str, cells: int, screen: Screen) -> str:
    if width(text) <= cells:
        return _pad(text, cells)
    dots = screen.glyph("ellipsis")
    return dots + text[len(text) - cells + len(dots) :]


def assumptions(plan: PlanResult, screen: Screen) -> list[str]:
    """Everything that was used and not stated, grouped by the reason, in as few lines as possible."""
    reasons: dict[str, list[str]] = {}
    for item in plan.assumptions:
        reasons.setdefault(item.why, []).append(f"{item.key}: {value(item.value)}")
    if not reasons:
        return []
    parts = [f"{', '.join(items)} ({why})" if why else ", ".join(items) for why, items in reasons.items()]
    return labelled("assumed", "; ".join(parts), screen, "dim")


def remedies(plan: PlanResult, options: tuple[Remedy, ...], screen: Screen) -> list[str]:
    """Numbered changes with what each does to the memory, below what the changes of their group ask for."""
    if not options or plan.estimate is None:
        return []
    from memcheck.report.effect import ASKS, cost, effect, effects, mends, on_the_host

    heads = [head for head, _ in effects(plan, options[0])]
    rows = [
        ([*change(plan, each), *([f"({paid})"] if (paid := on_the_host(plan, each)) else [])],
         [told for _, told in effects(plan, each)], cost(each)) for each in options
    ]  # fmt: skip
    wide = [max(len(head), *(len(told[i]) for _, told, _ in rows)) for i, head in enumerate(heads)]
    costs = max(len(price) for _, _, price in rows)
    changes = max(width(line) for keys, _, _ in rows for line in keys)
    in_columns = NUMBER + changes + sum(2 + each for each in wide) + 2 + costs <= screen.columns
    title = "remedies, each re-computed"
    named = "".join(f"  {head.ljust(cells)}" for head, cells in zip(heads, wide, strict=True))
    head = f"{_pad(title, NUMBER + changes)}{named}  time" if in_columns else f"{title}:"
    lines = [screen.paint(title, "strong") + screen.paint(head[len(title) :], "dim")]
    group = ""
    for number, (remedy, (keys, told, price)) in enumerate(zip(options, rows, strict=True), 1):
        if remedy.group != group:
            group = remedy.group
            lines.append("  " + screen.paint(ASKS[group], "dim"))
        style = "good" if mends(plan, remedy) else "warning"
        first = f"{number}. ".rjust(NUMBER)
        if in_columns:
            shown = "  ".join(each.ljust(cells) for each, cells in zip(told, wide, strict=True))
            lines.append(f"{first}{_pad(keys[0], changes)}  {screen.paint(shown, style)}  {price}".rstrip())
            lines += [" " * NUMBER + line for line in keys[1:]]
        else:  # too narrow for columns: the effect goes below its change
            wrapped = [part for line in keys for part in wrap(line, screen.columns - NUMBER)]
            tail = wrap(f"{effect(plan, remedy)}  time {price}", screen.columns - NUMBER)
            lines += [first + wrapped[0], *(" " * NUMBER + line for line in wrapped[1:])]
            lines += [" " * NUMBER + screen.paint(line, style) for line in tail]
    return lines


def change(plan: PlanResult, remedy: Remedy) -> list[str]:
    """``key: old -> new``, one line per key that the remedy sets."""
    return [clean(f"{key}: {value(stated(plan, key))} -> {value(new)}") for key, new in remedy.set.items()]


def stated(plan: PlanResult, key: str) -> object:
    """The value of a dotted key as the plan states it, else as it was assumed, else what silence means; or None."""
    found: object = plan.values
    parts = key.split(".")
    for index, part in enumerate(parts):
        if not isinstance(found, dict):
            # `optimizer: adamw` is short for `optimizer: {name: adamw}`.
            return found if index == len(parts) - 1 and part in SHORT_FORMS else _assumed(plan, key)
        if part not in found:
            return _assumed(plan, key)
        found = found[part]
    return found


def _assumed(plan: PlanResult, key: str) -> object:
    keys = {key, *(f"{key}.{short}" for short in SHORT_FORMS)}
    return next((item.value for item in plan.assumptions if item.key in keys), SILENT.get(key))
