"""Turns the docstrings of rules into pages: one for each hundred of codes, an anchor for each rule, and an index."""

from __future__ import annotations

from memcheck.report.forge import family_of
from memcheck.rules.types import Rule

FAMILIES = {
    "MEM0xx": "What is written",
    "MEM1xx": "Memory",
    "MEM2xx": "Parallelism",
    "MEM3xx": "GPUs",
    "MEM4xx": "Settings",
    "MEM5xx": "Configs of frameworks",
    "MEM6xx": "Policy of a repository",
    "MEM7xx": "Serving engines",
}
"""The page of each hundred of codes, and its title."""
HEADINGS = {
    "What it does": "",
    "Why it matters": "**Why.** ",
    "Example": "",
    "How to fix": "**Fix.** ",
}
"""How a section of a docstring begins on the page. Options and sources are for `memcheck explain`."""


def family_page(family: str, every: list[Rule]) -> str:
    """The page of one hundred of codes."""
    of_family = [rule for rule in every if family_of(rule.code) == family]
    lines = [f"# {family}: {FAMILIES[family].lower()}", ""]
    lines += ["`memcheck explain CODE` prints a rule with its options and sources.", ""]
    return "\n".join([*lines, *("\n".join(section(rule)) for rule in of_family)]).rstrip() + "\n"


def section(rule: Rule) -> list[str]:
    """One rule. The heading is its code alone, so that the anchor is `#mem101`."""
    title, _, body = rule.doc.strip().partition("\n")
    facts = [f"`{rule.name}`", rule.severity, rule.precision]
    if profile := asked(rule):
        facts.append(profile)
    lines = [f"## {rule.code}", "", f"**{title.strip()}** ({', '.join(facts)})", ""]
    for part in body.split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        text = text.strip("\n")
        if heading in HEADINGS:
            start = HEADINGS[heading]
            lines += [f"{start.rstrip()}\n\n{text}" if start and text.startswith("- ") else start + text, ""]
    return lines


def asked(rule: Rule) -> str:
    """What makes the rule look, if it does not by itself."""
    if rule.opt_in:
        return "only where the plan or the configuration asks"
    return "" if rule.profile == "gate" else f"`--profile {rule.profile}`"


def rules_index(every: list[Rule]) -> str:
    """The list of all rules."""
    lines = ["# Rules", ""]
    lines += ["Rules without a profile are on by default; [profiles](../reference/cli.md#profiles) add the others."]
    lines += ["`memcheck explain CODE` prints a rule, `memcheck list rules` this list with their precision.", ""]
    for family, title in FAMILIES.items():
        lines += [f"## [{title}]({family}.md)", ""]
        for rule in every:
            if family_of(rule.code) == family:
                profile = f", {rule.profile}" if asked(rule) else ""
                where = f"{family}.md#{rule.code.lower()}"
                lines.append(f"- [{rule.code}]({where}) {rule.name}: {rule.severity}{profile}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
