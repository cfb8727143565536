"""What a run found: one record per plan, one for the whole run. Written by ``check``, read by ``report``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.accounts.estimate import Estimate
from memcheck.job.types import Assumption, Ground
from memcheck.memory.fit import VERDICTS, verdict_of
from memcheck.plan.finding import OTHER_HARDWARE, SEVERITIES, Finding, Location, Remedy, Span
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:  # made only for reports that show it
    from memcheck.accounts.dossier import Dossier

PASSED = "passed"
FAILED = "failed"
ERROR = "error"

DEFECT = "MEM000"
"""The code of a failure of memcheck itself; no rule, so it has no page."""


COMMENT, BASELINE, SELECTION = "comment", "baseline", "selection"
"""What hides a finding: a comment in the file, the baseline, or the choice of rules."""


class Hidden(Record):
    """A finding that is not shown and does not fail a plan, but that is counted."""

    finding: Finding
    by: str
    """``COMMENT``, ``BASELINE`` or ``SELECTION``."""
    why: str = ""
    """The comment's reason, or the name of the baseline file."""


class PlanResult(Record):
    """The verdict on one plan."""

    path: str
    """The plan file's path as the user wrote it, with forward slashes."""
    document: int
    """Number of the document in its file, from 0."""
    name: str
    status: str
    """``passed`` | ``failed`` (a finding that counts) | ``error`` (the plan could not be estimated)."""
    estimate: Estimate | None = None
    assumptions: tuple[Assumption, ...] = ()
    findings: tuple[Finding, ...] = ()
    hidden: tuple[Hidden, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Path to lines: what snippets are cut from."""
    values: object = None
    """The merged plan as plain data: what a remedy changes from."""
    model: str = ""
    gpu: str = ""
    gpus: int = 0
    framework: str = ""
    host_capacity_bytes: int | None = None
    """Host memory of a node; None where the plan does not state it, so that it is not judged."""
    fail_above: float = 1.0
    """The fraction of capacity from which this plan fails; drawn as a mark on the bars."""
    gpu_hours: float | None = None
    """What the whole run takes; None unless that was asked for, and the plan states its steps."""
    rests_on: tuple[Ground, ...] = ()
    """The assumptions that move the need by more than 1 %, the largest first; empty unless a report shows them."""
    untried: int = 0
    """How many more assumptions may move it."""
    settled_by: str = ""
    """What would settle whether an uncertain plan fits; empty where that is certain, or was not asked for."""
    dossier: Dossier | None = None
    """Facts that only a detailed report shows, such as the basis of the interval; None unless one was asked for."""

    @property
    def accepted(self) -> tuple[Hidden, ...]:
        """Errors that are hidden, where the plan passes only because they are."""
        return tuple(each for each in self.hidden if each.finding.severity == "error" and self.status == PASSED)

    @property
    def verdict(self) -> str:
        """``fits`` | ``uncertain`` | ``does_not_fit``: what the figures say, whatever the findings do; empty without
        an estimate.
        """
        estimate = self.estimate
        return "" if estimate is None else verdict_of(estimate, self.fail_above, self.host_capacity_bytes)

    def fixable(self, finding: Finding) -> bool:
        """Whether ``--fix`` mends a finding: it has text edits with one right outcome, in the plan's own file."""
        return bool(finding.fix) and finding.location.path == self.path

    def written_by_unsafe_fixes(self, finding: Finding) -> Remedy | None:
        """The remedy that ``--fix --unsafe-fixes`` writes for a finding.

        A warning is no reason to edit. No edit changes the hardware: whether GPUs are bought is not decided by one.
        """
        if finding.severity != SEVERITIES[-1]:
            return None
        return next((each for each in finding.remedies if each.is_edit and each.group != OTHER_HARDWARE), None)

    def count(self, severity: str) -> int:
        """Findings of one severity."""
        return sum(finding.severity == severity for finding in self.findings)


def defect_result(path: str, document: int, name: str, error: Exception) -> PlanResult:
    """The result of a plan that memcheck could not judge through its own fault."""
    finding = Finding(
        code=DEFECT,
        name="defect",
        severity="error",
        message=f"memcheck itself failed on this plan: {type(error).__name__}: {error}",
        location=Location(path, Span(1, 1, 1, 1)),
        help="the other plans were checked; please open an issue with the report whose place is printed below",
    )
    return PlanResult(path=path, document=document, name=name, status=ERROR, findings=(finding,))


class Unreadable(Record):
    """A path that the user named and that could not be checked."""

    path: str
    message: str
    refused: bool = False
    """What lies under the path is not read, whatever its permissions: a finding on the file, not a wrong command."""
    help: str = ""
    """What to do about it; empty: to commit the file itself."""


class Report(Record):
    """Everything one run has to say."""

    version: str
    plans: tuple[PlanResult, ...]
    unreadable: tuple[Unreadable, ...] = ()
    defects: tuple[str, ...] = ()
    """Tracebacks of memcheck's own failures; never part of a report for users, only of the bug report."""
    unchanged: int = 0
    """Plan files that were left out, because nothing that decides them changed."""
    elsewhere: int = 0
    """Plan files that were left to other shares of the run."""
    stated: tuple[str, ...] = ()
    """What the command line states of the jobs, as words of a command that repeats it."""
    page_links: Mapping[str, str] = MappingProxyType({})
    """File to the address that opens it in the page. Empty if the configuration has no ``page-url``."""

    def page_link(self, plan: PlanResult) -> str:
        """The address that opens a plan in the page; empty where there is none."""
        link = self.page_links.get(plan.path, "")
        return f"{link}&d={plan.document}" if link and plan.document else link

    @property
    def passed(self) -> int:
        """Plans without a finding that counts."""
        return sum(plan.status == PASSED for plan in self.plans)

    @property
    def accepted(self) -> int:
        """Plans that pass because something hides their errors."""
        return sum(bool(plan.accepted) for plan in self.plans)

    @property
    def failed(self) -> int:
        """Plans that failed or could not be estimated."""
        return len(self.plans) - self.passed

    @property
    def verdicts(self) -> dict[str, int]:
        """How many plans have each verdict; those without an estimate have none."""
        found = [plan.verdict for plan in self.plans]
        return {each: found.count(each) for each in VERDICTS}

    def count(self, severity: str) -> int:
        """Findings of one severity in all plans."""
        return sum(plan.count(severity) for plan in self.plans)

    def hidden(self, by: str) -> int:
        """Findings of all plans that one thing hides."""
        return sum(hidden.by == by for plan in self.plans for hidden in plan.hidden)
