"""A rule whose module is loaded once a plan says what the rule is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memcheck.edge.modules import import_module
from memcheck.finding import Finding
from memcheck.record import Record
from memcheck.rules.types import Rule, RuleContext


class Gated(Record):
    """What has to be known of a rule before it is asked."""

    code: str
    module: str
    """The name of the rule's module in ``memcheck.rules``."""
    when: Callable[[RuleContext], bool]
    """The rule's own (``Rule.when``): where it does not hold, the check finds nothing and is not loaded."""
    needs_estimate: bool = False
    blocking: bool = False
    batch: bool = False

    @property
    def rule(self) -> Rule:
        """The rule, loaded from its module."""
        found: Rule = import_module(f"memcheck.rules.{self.module}").RULE
        return found

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """The rule's findings."""
        if not self.when(context):
            return ()
        check = _checks.get(self.module)
        if check is None:
            check = _checks[self.module] = self.rule.check or (lambda _: iter(()))
        return check(context)


_checks: dict[str, Callable[[RuleContext], Iterable[Finding]]] = {}
"""The check of each rule that was loaded, by code: a search asks for them thousands of times."""
