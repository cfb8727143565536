"""Renders suggestions as text for the terminal."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, gib, one_line, percent, plural, value, width, wrap
from memcheck.memory.fit import UNCERTAIN as UNSETTLED
from memcheck.memory.fit import gpu_fit
from memcheck.report.block import block
from memcheck.report.details import change, labelled
from memcheck.report.effect import PURPOSES, effect, on_the_host
from memcheck.report.effect import time as relative_time
from memcheck.what_if.remedies.price import LayoutTally
from memcheck.what_if.suggest.types import FITS, NOT_JUDGED, NOTHING_FITS, UNCERTAIN, Suggestion, Suggestions

GOALS = {
    "fit": "the least change that makes it fit",
    "throughput": "the fastest layout on this hardware",
    "gpus": "the fewest GPUs",
    "cheapest": "the least money per token",
    "max-batch": "the largest batch that fits",
    "max-sequence": "the longest sequences that fit",
}
NUMBER = 5
LONG = 8
"""Values of a key that are listed one by one."""


def render(answer: Suggestions, screen: Screen) -> str:
    """The plan, what is suggested, and what was searched."""
    if answer.status == NOT_JUDGED or answer.plan.estimate is None:
        from memcheck.report.full import alone

        shown = alone(answer.plan, screen) + "\n"
        if answer.plan.estimate is None:
            return shown
        text = "what fails is not about memory, which is all that suggest changes: mend it first"
        return shown + "\n" + "".join(f"{screen.paint(line, 'error')}\n" for line in wrap(text, screen.columns))
    lines = [*block(answer.plan, answer.plan.estimate, screen), ""]
    lines += _cards(answer, screen)
    lines += _verdict(answer, screen)
    for number, item in enumerate(answer.found, 1):
        lines += _item(answer, number, item, screen)
    if answer.found:
        lines.append("")
    lines += _searched(answer, screen)
    if answer.found and any(item.remedy.slowdown is not None for item in answer.found):
        lines += labelled("time", _time(answer), screen, "dim")
    if answer.found:
        lines += labelled("next", _next(answer), screen, "dim")
    return "\n".join(lines) + "\n"


def _cards(answer: Suggestions, screen: Screen) -> list[str]:
    """The plan as it is written on each GPU that has a price, the cheapest that fits first."""
    if not answer.cards:
        return []
    first = answer.cards[0]
    told = f"the cheapest GPU is {first.gpu}" if first.fits else "no GPU that has a price fits"
    rows = [
        (
            card.gpu,
            percent(card.utilization),
            "does not fit" if not card.fits else "fits" if card.sure else "uncertain",
            f"{card.price_per_million_tokens:,.3g}" if card.price_per_million_tokens is not None else "-",
            f"{card.price_per_hour:,.2f}",
            relative_time(card.slowdown),
        )
        for card in answer.cards
    ]
    heads = ("GPU", "used", "", "per M tokens", "per hour", "time")
    wide = [max(width(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    lines = wrap(f"the plan as it is written, with nothing changed but the GPU: {told}", screen.columns)
    for index, row in enumerate((heads, *rows)):
        shown = [cell.ljust(wide[c]) if c in (0, 2) else cell.rjust(wide[c]) for c, cell in enumerate(row)]
        style = "dim" if index == 0 else "good" if answer.cards[index - 1].fits else "error"
        lines.append(" " * NUMBER + screen.paint("  ".join(shown), style))
    return [*lines, ""]


def _next(answer: Suggestions) -> str:
    """How a suggestion gets into the file: which of them memcheck writes, and what to do with the others."""
    if answer.config:
        return f"memcheck edits plans, not configs. Change the config itself, or write a plan: {_imported(answer)}"
    written = [number for number, item in enumerate(answer.found, 1) if item.remedy.is_edit]
    if not written:
        return "memcheck cannot write these changes: they have no certain place in the file. Set the values yourself"
    if len(written) == len(answer.found):
        return "write one into the file: --apply N; show it: --diff --apply N"
    numbers = " or ".join(map(str, written))
    return f"write one into the file: --apply {numbers}; show it: --diff --apply {written[0]}. Set the others yourself"


def _imported(answer: Suggestions) -> str:
    """The command that makes a plan of a config, which suggest then edits."""
    return f"`memcheck import {one_line(answer.plan.path)} --output plan.yaml`, then `memcheck suggest plan.yaml`"


def _verdict(answer: Suggestions, screen: Screen) -> list[str]:
    """What the search comes to, in a sentence."""
    goal = f"goal {answer.goal}, {GOALS[answer.goal]}"
    if answer.goal == "fit" and _uncertain(answer):
        goal = f"{_passes(answer)}. The least change after which the whole interval fits"
    if answer.status in (FITS, UNCERTAIN) and not answer.found:
        text = _fits(answer) if answer.goal == "fit" else f"{goal}: nothing is better than the plan"
        return [*(screen.paint(line, "good") for line in wrap(text, screen.columns)), ""]
    if answer.status == NOTHING_FITS:
        return [*_nothing(answer, screen), ""]
    lead = "the plan as written is the best of those that fit; then" if answer.best_as_written else "each checked again"
    if answer.best_as_written and not answer.found:
        lead = "the plan as written is the best of those that fit"
    return wrap(f"{goal}; {lead}", screen.columns)


def _fits(answer: Suggestions) -> str:
    """That nothing is to be done, or that no change was found that makes an uncertain plan sure."""
    if not _uncertain(answer):
        return "nothing to do: the plan fits"
    return f"{_passes(answer)}. No change was found after which the whole interval fits"


def _passes(answer: Suggestions) -> str:
    """That a plan passes with an interval that does not fit."""
    estimate = answer.plan.estimate
    if estimate is None:
        return ""
    high, has = gib(estimate.needed_interval_bytes[1]), gib(estimate.capacity_bytes)
    code = "MEM108" if estimate.longest_row else "MEM104"
    return f"the plan passes, but it is uncertain: it may need up to {high} of {has} GiB ({code})"


def _uncertain(answer: Suggestions) -> bool:
    estimate = answer.plan.estimate
    return estimate is not None and gpu_fit(estimate, answer.plan.fail_above) == UNSETTLED


def _nothing(answer: Suggestions, screen: Screen) -> list[str]:
    """That nothing fits, how sure that is, and the smallest cluster on which something would."""
    plan, tally = answer.plan, answer.tally
    where = f"{plan.gpus:,} x {plan.gpu}"
    kept = "" if answer.goal == "fit" else " that keeps the results as they are"
    if answer.exhausted:
        text = f"no plan of the space below{kept} fits on {where}: all {tally.considered:,} were checked"
    else:
        text = f"no plan{kept} was found that fits on {where}, among {tally.considered:,}"
    text += "; --goal fit also tries changes of the results" if kept else ""
    lines = [screen.paint(line, "error") for line in wrap(text, screen.columns)]
    if answer.smallest is None:
        stays = ["the global batch"] if plan.framework != "inference" else []
        stays += [key for key in answer.keep if key.partition(".")[0] != "hardware"]
        while_ = f" while {' and '.join(stays)} {'stays' if len(stays) == 1 else 'stay'}" if stays else ""
        text = f"no larger cluster of this GPU was found that does{while_}; take GPUs with more memory"
        return [*lines, *wrap(text, screen.columns)]
    lines.append("")
    lines += wrap(f"the smallest cluster of this GPU that would do has {answer.smallest.gpus:,}:", screen.columns)
    return lines + _item(answer, 0, answer.smallest, screen)


def _item(answer: Suggestions, number: int, item: Suggestion, screen: Screen) -> list[str]:
    """The changes with what they do to memory and time, and below them what they cost."""
    keys = change(answer.plan, item.remedy)
    told = effect(answer.plan, item.remedy)
    time = f"time {taken}" if (taken := relative_time(item.remedy.slowdown)) == "unknown" else f"{taken} time"
    tail = f"{screen.paint(told, 'good')}  {time}"
    head = f"{number}. ".rjust(NUMBER) if number else " " * NUMBER
    room = screen.columns - NUMBER
    wide = max(width(key) for key in keys)
    if wide + 2 + width(told) + 2 + width(time) <= room:
        pad = " " * (room - width(keys[0]) - width(told) - 2 - width(time))
        lines = [f"{head}{keys[0]}{pad}{tail}", *(" " * NUMBER + key for key in keys[1:])]
    else:
        wrapped = [part for key in keys for part in wrap(key, room)]
        lines = [head + wrapped[0], *(" " * NUMBER + part for part in [*wrapped[1:], tail])]
    return [*lines, *(" " * NUMBER + screen.paint(part, "dim") for part in wrap(costs(item, answer), room))]


def costs(item: Suggestion, answer: Suggestions) -> str:
    """What a suggestion costs in addition to time."""
    numbers = {
        "none": "same numbers",
        "equivalent": "equivalent numbers",
        "changes results": "changes the results of the training",
    }
    parts = [numbers[item.numerics] if answer.plan.framework != "inference" else _serving(item)]
    if item.serves:
        parts.append(f"changes what can be served: {item.serves}")
    if item.remedy.role in PURPOSES:
        parts.insert(0, PURPOSES[item.remedy.role])
    if not item.remedy.sure:
        parts.append("uncertain whether it fits (MEM104)")
    if item.gpus != answer.plan.gpus:
        parts.append(f"{plural(item.gpus, 'GPU')} instead of {answer.plan.gpus:,}")
    parts.append(on_the_host(answer.plan, item.remedy))
    if item.tokens_per_second_per_gpu:
        parts.append(f"about {item.tokens_per_second_per_gpu:,.0f} tokens/s per GPU")
    if item.price_per_million_tokens is not None and item.price_per_gpu_hour is not None:
        hour = item.price_per_gpu_hour * item.gpus
        parts.append(f"{item.price_per_million_tokens:,.3g} per million tokens, {hour:,.2f} per hour")
    if not item.remedy.is_edit and not answer.config:
        parts.append("memcheck cannot write it into the file")
    if item.remedy.elsewhere:
        parts.append(f"edits {', '.join(one_line(file.path) for file in item.remedy.elsewhere)}")
    return "; ".join(part for part in parts if part)


def _serving(item: Suggestion) -> str:
    return "changes the results" if item.numerics == "changes results" else "same results"


def _searched(answer: Suggestions, screen: Screen) -> list[str]:
    """The space and what became of its plans."""
    tally = answer.tally
    cut = labelled("not searched", unsearched(answer), screen, "warning") if answer.budget is not None else []
    if not tally.considered:
        return cut
    lines = labelled("searched", became(tally), screen, "dim")
    lines += cut
    keys = "; ".join(f"{key}: {_values(values)}" for key, values in answer.space.items())
    lines += labelled("space", f"{keys}; and the plan's own values", screen, "dim") if keys else []
    return lines + (labelled("kept", ", ".join(answer.keep), screen, "dim") if answer.keep else [])


def became(tally: LayoutTally) -> str:
    """``19 plans: 2 excluded by a rule, the global batch or --keep, 1 estimated and too large, 16 that fit``."""
    counts = [
        (tally.illegal, "excluded by a rule, the global batch or --keep"),
        (tally.repeated, "equal to an earlier one"),
        (tally.below_floor, "with states that alone are too large"),
        (tally.slower, "slower than those shown"),
        (tally.too_large, "estimated and too large"),
        (tally.fitting, f"that {_verb('fit', tally.fitting)}"),
    ]
    told = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    return f"{plural(tally.considered, 'plan')}: {told}"


def _verb(word: str, count: int) -> str:
    """``1 breaks``, ``2 break``."""
    return f"{word}s" if count == 1 else word


def unsearched(answer: Suggestions) -> str:
    """What a search that was cut short leaves open."""
    left = f"{plural(answer.unsearched, 'plan')} more" if answer.unsearched else "further plans"
    return f"{left}, because {answer.budget:g} s were up: there may be better answers; --budget SECONDS gives more time"


def _values(values: tuple[object, ...]) -> str:
    shown = [clean(value(each)) for each in values]
    if len(shown) > LONG:
        shown = [*shown[: LONG - 1], "...", shown[-1]]
    return ", ".join(shown)


def _time(answer: Suggestions) -> str:
    note = f"; {answer.plan.gpu} has no known rates and is timed as {answer.timed_as}" if answer.timed_as else ""
    return f"a roofline model per token, for ranking, not a measurement{note}"
