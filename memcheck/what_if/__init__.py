"""What would be otherwise: variants of a plan, searched, priced and laid side by side.

The two doors that ``check`` is handed load the search only for a plan that needs it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.accounts.dossier import Dossier
    from memcheck.accounts.estimate import Estimate
    from memcheck.judge import Gate
    from memcheck.plan.finding import Finding
    from memcheck.rules.types import RuleContext


def with_remedies(findings: list[Finding], context: RuleContext) -> list[Finding]:
    """Return findings about an amount of memory with what would end them: see :mod:`memcheck.what_if.search.attach`."""
    from memcheck.what_if.search.attach import attach

    return attach(findings, context)


def make_dossier(context: RuleContext, answer: Estimate, gate: Gate) -> Dossier:
    """Return what reports to pass on show of one plan: see :mod:`memcheck.what_if.dossier`."""
    from memcheck.what_if.dossier import dossier

    return dossier(context, answer, gate)
