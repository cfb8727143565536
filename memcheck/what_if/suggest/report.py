"""Suggestions for people and for programs: one document, and the formats that draw it or list its figures."""

from __future__ import annotations

import csv
import io

from memcheck import __version__
from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, clean, gib, one_line, percent, plural, value
from memcheck.memory.fit import UNCERTAIN as UNSETTLED
from memcheck.memory.fit import gpu_fit
from memcheck.report import text
from memcheck.report.csv import cell
from memcheck.report.full import alone
from memcheck.report.json import diagnostic, remedy
from memcheck.report.story import Prose
from memcheck.report.story.blocks import Block, Cost, Fact, Facts, Remedies, RemedyStep, Table
from memcheck.report.story.remedies import PURPOSES, on_the_host, step, time
from memcheck.report.story.summary import plan_summary
from memcheck.what_if.remedies.price import LayoutTally
from memcheck.what_if.suggest.run import FITS, NOT_JUDGED, NOTHING_FITS, UNCERTAIN, Suggestion, Suggestions

GOALS = {
    "fit": "the least change that makes it fit",
    "throughput": "the fastest layout on this hardware",
    "gpus": "the fewest GPUs",
    "cheapest": "the least money per token",
    "max-batch": "the largest batch that fits",
    "max-sequence": "the longest sequences that fit",
}
LONG = 8
"""Values of a key that are listed one by one."""


COLUMNS = (
    "path",
    "document",
    "plan",
    "goal",
    "rank",
    "title",
    "changes",
    "utilization",
    "device_bytes",
    "needed_bytes",
    "slowdown",
    "numerics",
    "serves",
    "sure",
    "gpus",
    "host_bytes_per_node",
    "tokens_per_second_per_gpu",
    "price_per_gpu_hour",
    "price_per_million_tokens",
    "safe",
)


def full(answer: Suggestions, screen: Screen) -> str:
    """Return the plan, the suggestions, and what was searched, for a terminal."""
    plan = answer.plan
    if answer.status != NOT_JUDGED and plan.estimate is not None:
        return text.document(document(answer), screen) + "\n"
    shown = alone(plan, screen) + "\n"
    if plan.estimate is None:
        return shown
    told = Prose("what fails is not about memory, which is all that suggest changes: mend it first", "bad")
    return shown + "\n" + "\n".join(text.block(told, screen)) + "\n"


def document(answer: Suggestions) -> list[tuple[Block | None, ...]]:
    """Return groups of blocks: the plan, GPUs with a price, the suggestions, and what was searched."""
    plan, found = answer.plan, answer.found
    if plan.estimate is None:
        return []
    timed = any(item.remedy.slowdown is not None for item in found)
    close = [
        *searched(answer),
        *([Fact("time", _time(answer), "dim")] if timed else []),
        *([Fact("next", _next(answer), "dim")] if found else []),
    ]
    listed = ranked(answer, found, first=1) if found else None
    groups: list[tuple[Block | None, ...]] = [(plan_summary(plan, plan.estimate),), cards(answer)]
    if answer.status in (FITS, UNCERTAIN) and not found:
        goal = _goal(answer)
        told = _fits(answer) if answer.goal == "fit" else f"{goal}: nothing is better than the plan"
        groups.append((Prose(told, "good"),))
    elif answer.status == NOTHING_FITS:
        groups += nothing_fits(answer, listed)
    elif found:
        groups.append((_lead(answer), listed))
    else:
        return [*groups, (_lead(answer), Facts(tuple(close)))]
    return [*groups, (Facts(tuple(close)),)] if close else groups


def ranked(answer: Suggestions, found: tuple[Suggestion, ...], first: int) -> Remedies:
    """Return suggestions as numbered changes; ``first``: the number of the first one, or 0 for no numbers."""
    steps = tuple(_step(answer, item) for item in found)
    return Remedies("suggestions", "suggestions", steps, layout="ranked", first=first)


def _step(answer: Suggestions, item: Suggestion) -> RemedyStep:
    return step(answer.plan, item.remedy)._replace(costs=tuple(Cost("dim", text) for text in costs(item, answer)))


def cards(answer: Suggestions) -> tuple[Block, ...]:
    """Return the plan as it is written on each GPU that has a price, the cheapest that fits first."""
    if not answer.cards:
        return ()
    first = answer.cards[0]
    told = f"the cheapest GPU is {first.gpu}" if first.fits else "no GPU that has a price fits"
    rows = tuple(
        (
            card.gpu,
            percent(card.utilization),
            "does not fit" if not card.fits else "fits" if card.sure else "uncertain",
            f"{card.price_per_million_tokens:,.3g}" if card.price_per_million_tokens is not None else "-",
            f"{card.price_per_hour:,.2f}",
            time(card.slowdown),
        )
        for card in answer.cards
    )
    heads = ("GPU", "used", "", "per M tokens", "per hour", "time")
    tones = tuple("good" if card.fits else "bad" for card in answer.cards)
    lead = Prose(f"the plan as it is written, with nothing changed but the GPU: {told}")
    return lead, Table("", heads, rows, right=(1, 3, 4, 5), tones=tones, indent=5)


def _next(answer: Suggestions) -> str:
    """Return how a suggestion gets into the file: which of them memcheck writes, and what to do with the others."""
    if answer.config:
        return f"memcheck edits plans, not configs. Change the config itself, or write a plan: {import_command(answer)}"
    written = [number for number, item in enumerate(answer.found, 1) if item.remedy.is_edit]
    if not written:
        return "memcheck cannot write these changes: they have no certain place in the file. Set the values yourself"
    if len(written) == len(answer.found):
        return "write one into the file: --apply N; show it: --diff --apply N"
    numbers = " or ".join(map(str, written))
    return f"write one into the file: --apply {numbers}; show it: --diff --apply {written[0]}. Set the others yourself"


def import_command(answer: Suggestions) -> str:
    """Return the commands that make a plan of a config, with the hardware that is stated for it, and edit the plan."""
    hardware = "".join(f" --{name.replace('_', '-')} {one_line(str(each))}" for name, each in answer.stated.items())
    path = one_line(answer.plan.path)
    return f"`memcheck import {path}{hardware} --output plan.yaml`, then `memcheck suggest plan.yaml`"


def _goal(answer: Suggestions) -> str:
    """Return the goal in words."""
    if answer.goal == "fit" and _uncertain(answer):
        return f"{_passes(answer)}. The least change after which the whole interval fits"
    return f"goal {answer.goal}, {GOALS[answer.goal]}"


def _lead(answer: Suggestions) -> Prose:
    """Return the result of the search in a sentence."""
    best = "the plan as written is the best of those that fit"
    lead = f"{best}; then" if answer.best_as_written else "each checked again"
    return Prose(f"{_goal(answer)}; {best if answer.best_as_written and not answer.found else lead}")


def _fits(answer: Suggestions) -> str:
    """Write a sentence for a plan that fits, or for an uncertain plan that no change makes sure."""
    if not _uncertain(answer):
        return "nothing to do: the plan fits"
    return f"{_passes(answer)}. No change was found after which the whole interval fits"


def _passes(answer: Suggestions) -> str:
    """Write a sentence for a plan that passes with an interval that does not fit."""
    estimate = answer.plan.estimate
    if estimate is None:
        return ""
    if estimate.engine is not None:
        return "the plan passes, but it is uncertain whether the engine boots (MEM702)"
    high, has = gib(estimate.needed_interval_bytes[1]), gib(estimate.capacity_bytes)
    code = "MEM108" if estimate.longest_row else "MEM104"
    return f"the plan passes, but it is uncertain: it may need up to {high} of {has} GiB ({code})"


def _uncertain(answer: Suggestions) -> bool:
    estimate = answer.plan.estimate
    return estimate is not None and gpu_fit(estimate, answer.plan.fail_above) == UNSETTLED


def nothing_fits(answer: Suggestions, listed: Remedies | None) -> list[tuple[Block | None, ...]]:
    """Write sentences for a search that found nothing: how sure that is, and the smallest cluster that would do."""
    plan, tally = answer.plan, answer.tally
    where = f"{plan.gpus:,} x {plan.gpu}"
    kept = "" if answer.goal == "fit" else " that keeps the results as they are"
    if answer.exhausted:
        text = f"no plan of the space below{kept} fits on {where}: all {tally.considered:,} were checked"
    else:
        text = f"no plan{kept} was found that fits on {where}, among {tally.considered:,}"
    text += "; --goal fit also tries changes of the results" if kept else ""
    lead = Prose(text, "bad")
    if answer.smallest is None:
        stays = ["the global batch"] if plan.framework != "inference" else []
        stays += [key for key in answer.keep if key.partition(".")[0] != "hardware"]
        while_ = f" while {' and '.join(stays)} {'stays' if len(stays) == 1 else 'stay'}" if stays else ""
        told = f"no larger cluster of this GPU was found that does{while_}; take GPUs with more memory"
        return [(lead, Prose(told)), *([(listed,)] if listed else [])]
    cluster = Prose(f"the smallest cluster of this GPU that would do has {answer.smallest.gpus:,}:")
    return [(lead,), (cluster, ranked(answer, (answer.smallest,), first=0)), *([(listed,)] if listed else [])]


def costs(item: Suggestion, answer: Suggestions) -> list[str]:
    """Return what a suggestion costs in addition to time."""
    numbers = {
        "none": "same numbers",
        "equivalent": "equivalent numbers",
        "changes results": "changes the results of the training",
    }
    parts = [numbers[item.numerics]] if answer.plan.framework != "inference" else _serving(item)
    if item.serves:
        parts.append(f"changes what can be served: {item.serves}")
    if item.remedy.role in PURPOSES:
        parts.insert(0, PURPOSES[item.remedy.role])
    if not item.remedy.sure:
        estimate = answer.plan.estimate
        serves = estimate is not None and estimate.engine is not None
        parts.append("uncertain whether it boots (MEM702)" if serves else "uncertain whether it fits (MEM104)")
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
    return [part for part in parts if part]


def _serving(item: Suggestion) -> list[str]:
    """Say whether the answers change. One that serves less is not said to have the same results, as in `check`."""
    if item.numerics == "changes results":
        return ["changes the results"]
    return [] if item.serves else ["same results"]


def searched(answer: Suggestions) -> list[Fact]:
    """Return the space and what became of its plans."""
    tally = answer.tally
    cut = [Fact("not searched", unsearched(answer), "warn")] if answer.budget is not None else []
    if not tally.considered:
        return cut
    facts = [Fact("searched", became(tally), "dim"), *cut]
    keys = "; ".join(f"{key}: {_values(values)}" for key, values in answer.space.items())
    facts += [Fact("space", f"{keys}; and the plan's own values", "dim")] if keys else []
    return facts + ([Fact("kept", ", ".join(answer.keep), "dim")] if answer.keep else [])


def became(tally: LayoutTally) -> str:
    """Return ``19 plans: 2 excluded by a rule, the global batch or --keep, 1 estimated and too large, 16 that fit``."""
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
    """Return what a search that was cut short leaves open."""
    left = f"{plural(answer.unsearched, 'plan')} more" if answer.unsearched else "further plans"
    return f"{left}, because {answer.budget:g} s were up: there may be better answers; --budget SECONDS gives more time"


def _values(values: tuple[object, ...]) -> str:
    """Return the values of a key as text; long lists are cut in the middle."""
    shown = [clean(value(each)) for each in values]
    if len(shown) > LONG:
        shown = [*shown[: LONG - 1], "...", shown[-1]]
    return ", ".join(shown)


def _time(answer: Suggestions) -> str:
    note = f"; {answer.plan.gpu} has no known rates and is timed as {answer.timed_as}" if answer.timed_as else ""
    return f"a roofline model per token, for ranking, not a measurement{note}"


def json(answer: Suggestions, screen: Screen | None = None) -> str:
    """The document for programs: ``schemas/suggest.schema.json``, version 1. The screen plays no part."""
    return dumps(as_data(answer), indent=1) + "\n"


def as_data(answer: Suggestions) -> dict[str, object]:
    """Return remedies as in the report of ``check``, with what each costs, as plain data."""
    plan, estimate, tally = answer.plan, answer.plan.estimate, answer.tally
    return {
        "suggest": 1,
        "memcheck": __version__,
        "path": plan.path,
        "document": plan.document,
        "name": plan.name,
        "goal": answer.goal,
        "status": answer.status,
        "as_written": None
        if estimate is None
        else {
            "status": plan.status,
            "verdict": plan.verdict,
            "gpus": plan.gpus,
            "device_bytes": estimate.device_bytes,
            "needed_bytes": estimate.needed_bytes,
            "capacity_bytes": estimate.capacity_bytes,
            "utilization": round(estimate.utilization, 6),
            "host_bytes_per_node": estimate.host_bytes_per_node,
            "host_capacity_bytes": plan.host_capacity_bytes,
            "best": answer.best_as_written,
        },
        "cards": [card._asdict() for card in answer.cards],
        "remedies": [suggestion(each) for each in answer.found],
        "space": {
            "keys": {key: list(values) for key, values in answer.space.items()},
            "kept": list(answer.keep),
            "considered": tally.considered,
            **tally._asdict(),
            "exhausted": answer.exhausted,
            "unsearched": answer.unsearched,
            "budget_seconds": answer.budget,
            "timed_as": answer.timed_as or None,
        },
        "smallest_cluster": None if answer.smallest is None else suggestion(answer.smallest),
        "diagnostics": [diagnostic(plan, finding) for finding in plan.findings] if answer.status == NOT_JUDGED else [],
    }


def suggestion(item: Suggestion) -> dict[str, object]:
    """Return one remedy and its costs."""
    return {
        **remedy(item.remedy),
        "numerics": item.numerics,
        "serves": item.serves or None,
        "gpus": item.gpus,
        "tokens_per_second_per_gpu": item.tokens_per_second_per_gpu,
        "price_per_gpu_hour": item.price_per_gpu_hour,
        "price_per_million_tokens": item.price_per_million_tokens,
    }


def spreadsheet(answer: Suggestions, screen: Screen | None = None) -> str:
    """Return the rows under one line of names; the screen plays no part."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    plan = answer.plan
    for rank, item in enumerate(answer.found, 1):
        change = item.remedy
        row = {
            "path": plan.path,
            "document": plan.document,
            "plan": plan.name,
            "goal": answer.goal,
            "rank": rank,
            "title": change.title,
            "changes": "; ".join(f"{key}={value(new)}" for key, new in change.set.items()),
            "utilization": round(change.utilization, 6),
            "device_bytes": change.device_bytes,
            "needed_bytes": change.needed_bytes,
            "slowdown": change.slowdown,
            "numerics": item.numerics,
            "serves": item.serves,
            "sure": change.sure,
            "gpus": item.gpus,
            "host_bytes_per_node": change.host_bytes_per_node,
            "tokens_per_second_per_gpu": item.tokens_per_second_per_gpu,
            "price_per_gpu_hour": item.price_per_gpu_hour,
            "price_per_million_tokens": item.price_per_million_tokens,
            "safe": change.safe,
        }
        writer.writerow({key: cell(each) for key, each in row.items()})
    return out.getvalue()


FORMATS = {"full": full, "json": json, "csv": spreadsheet}
