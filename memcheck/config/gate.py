"""How strictly a file is checked: what the command line and the configuration come to.

Rules are selected by profile, and by ``--select`` and ``--ignore`` with a code, the prefix of a code, or a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from memcheck.config.find import DEFAULT_FAIL_ON, Settings
from memcheck.errors import UsageError
from memcheck.plan.finding import Finding
from memcheck.record import Record
from memcheck.result import PlanResult
from memcheck.rules import GATE, PROFILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.accounts.dossier import Dossier
    from memcheck.accounts.estimate import Estimate
    from memcheck.rules.types import RuleContext

DEFAULT_FAIL_ABOVE = 0.95
DEFAULT_WARN_ABOVE = 0.9
"""Shares of a GPU that a plan may need; docs/internals/accuracy.md has the jobs they come from."""


def known(selectors: Sequence[str]) -> tuple[str, ...]:
    """The selectors as codes or prefixes of codes.

    Raises:
        UsageError: one of them matches no rule.
    """
    if not selectors:
        return ()
    from memcheck.rules.registry import RULES

    codes = {rule.name: rule.code for rule in RULES}
    found = []
    for selector in selectors:
        prefix = codes.get(selector, selector.upper())
        if not any(code.startswith(prefix) for code in codes.values()):
            from memcheck.edge.closest import closest

            close = closest(prefix, codes.values()) + closest(selector, codes)
            hint = f"; did you mean {close[-1]}?" if close else ""
            raise UsageError(f"no rule matches {selector!r}{hint}", "memcheck list rules")
        found.append(prefix)
    return tuple(found)


def counts(code: str, select: Sequence[str], ignore: Sequence[str], profile: str = GATE, own: str = GATE) -> bool:
    """Whether findings of a rule are shown: the longest matching prefix decides, and ``ignore`` wins a tie.

    A rule whose ``own`` profile is beyond the chosen one counts only where it is named in full: a prefix picks among
    the rules of a profile, and brings in none that a later version adds to another.
    """
    if PROFILES.index(own) > PROFILES.index(profile) and code not in select:
        return False
    chosen = _longest(code, select) if select else 0
    return chosen >= 0 and chosen > _longest(code, ignore)


def _longest(code: str, prefixes: Sequence[str]) -> int:
    """Length of the longest prefix that matches; -1 if none does."""
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=-1)


if TYPE_CHECKING:
    Remedies = Callable[[list[Finding], RuleContext], list[Finding]]
    """The findings about an amount of memory, each with what would end it. The context holds the estimate."""
    DossierMaker = Callable[[RuleContext, Estimate, "Gate"], Dossier]


QUICK, EVERY = 3, 1000
"""Estimates for the line of a plan that passes, each of which costs a tenth of what judging the plan does or more; and
as many as there are assumptions."""


class Gate(Record):
    """How strictly to judge, and what to judge instead of what is written."""

    settings: Settings = Settings()
    fail_on: str = DEFAULT_FAIL_ON
    fail_above: float | None = None
    """From the command line: goes before the plan's own policy, so that a stricter gate cannot be talked out of it."""
    warn_above: float | None = None
    uncertain: str | None = None
    """From the command line, as ``fail_above``."""
    unpacked: str | None = None
    """What to do with rows that are not packed, from the command line: goes before the plan's own policy."""
    profile: str = GATE
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    changes: Mapping[str, object] = {}
    """Dotted plan keys and the values to use instead, as if they were written in the file."""
    suppressions: bool = True
    """Whether comments hide findings; what is wrong with a comment is said either way."""
    inventory: bool = False
    """Whether to list the largest live tensors of plans that pass, too."""
    hours: bool = False
    """Whether to say how many GPU hours a run takes whose steps the plan states."""
    grounds: int | None = None
    """How many estimates may be made to find the assumptions that a passing plan depends on. None: no such estimates,
    and no word on what would settle an uncertain plan."""
    baseline: Callable[[PlanResult, Finding], Finding | None] | None = None
    """What was accepted before becomes None, what got worse says so."""
    baseline_file: str = ""
    remedies: Remedies | None = None
    """Puts remedies on the findings of a full GPU, which takes many estimates; None: they have none."""
    hardware: Mapping[str, object] = {}
    """What a framework's own config does not say: ``gpu``, ``gpus_per_node``, ``nodes``, ``sequence_length``."""
    answers: Mapping[str, object] = {}
    """What options say of a plan's job besides, by option: a plan takes it in the place of what it states."""
    texts: Mapping[str, bytes] = {}
    """Configs, by path, that plans take values from as if they held these bytes: edits that are not written yet."""
    dossier: DossierMaker | None = None
    """Adds what reports to pass on show: formulas, every rank's device bytes, the plan on other GPUs."""

    def counts(self, code: str) -> bool:
        """Whether findings of a rule are shown."""
        from memcheck.rules.checks import BEYOND_GATE  # brings the rules, which a verdict that was kept does without

        return counts(code, self.select, self.ignore, self.profile, BEYOND_GATE.get(code, GATE))

    def hides(self, code: str) -> bool:
        """Whether a comment can hide findings of a rule."""
        policy = self.settings.policy
        return self.suppressions and (policy is None or not policy.locks(code))

    @property
    def as_written(self) -> bool:
        """Whether plans are judged as their files and the configuration have it."""
        stated = (self.fail_above, self.warn_above, self.uncertain, self.unpacked)
        return not (self.changes or self.answers) and all(each is None for each in stated)
