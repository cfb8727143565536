"""``memcheck explain``: a rule's page."""

from __future__ import annotations

import sys

import click

from memcheck.cli.list import table
from memcheck.cli.parameters import COLOR, one_of, rules
from memcheck.cli.write import screen_of, write_stdout
from memcheck.errors import UsageError, closest
from memcheck.report.forge import styled
from memcheck.rules.registry import RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.rules.types import Rule

OTHER_WORDS = {
    "oom": "exceeds-capacity",
    "out of memory": "exceeds-capacity",
    "cuda out of memory": "exceeds-capacity",
    "outofmemoryerror": "exceeds-capacity",
    "torch.outofmemoryerror": "exceeds-capacity",
    "does not fit": "exceeds-capacity",
}
"""What people call a finding -> the rule's name."""


@click.command("explain")
@click.argument("rule", metavar="CODE|NAME|WORD...", nargs=-1, required=True, shell_complete=one_of(rules))
@COLOR
def command(rule: tuple[str, ...], color: str) -> int:
    """Explain rules: what each does, why, an example, how to fix it.

    Several codes show the page of each. A word that several rules have in them lists those.
    """
    screen = screen_of(sys.stdout, color)
    found = tuple(each for word in rule if (each := coded(word, RULES)) is not None)
    named = len(found) == len(rule)
    found = found if named else about(" ".join(rule), RULES)
    if named or len(found) == 1:
        write_stdout("\n".join(styled(each.explain(), screen) for each in found))
        return 0
    if found:
        rows = [(each.code, each.name, each.summary) for each in found]
        instead = "take `memcheck list rules --format json`"
        write_stdout(table(("code", "name", "summary"), rows, screen, frozenset(), instead))
        return 0
    written = " ".join(rule)
    close = closest("-".join(rule).lower(), [known.name for known in RULES])
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"no rule {written!r}{hint}", "`memcheck list rules` shows every rule")


def coded(word: str, known: tuple[Rule, ...]) -> Rule | None:
    """The rule of a code or a name."""
    return next((rule for rule in known if word.lower() in (rule.code.lower(), rule.name)), None)


def about(written: str, known: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules that somebody means: by code, number or name, else those of a family, else those with every word."""
    text = written.lower().replace("_", " ").replace("-", " ").strip()
    name = OTHER_WORDS.get(text, text.replace(" ", "-"))
    code = "mem" + name if name.isdecimal() else name
    exact = tuple(rule for rule in known if name == rule.name or code == rule.code.lower())
    if exact or not text:
        return exact
    family = code.rstrip("x")
    if family.startswith("mem") and family[3:].isdecimal():
        return tuple(rule for rule in known if rule.code.lower().startswith(family))
    words = text.split()
    for part in (_title, _page):
        found = tuple(rule for rule in known if all(word in part(rule) for word in words))
        if found:
            return found
    return ()


def _title(rule: Rule) -> str:
    return f"{rule.name} {rule.summary}".lower()


def _page(rule: Rule) -> str:
    return (rule.doc or "").lower()
