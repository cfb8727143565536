"""The plans of one side of a comparison, judged: of files and folders, or of an earlier commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from memcheck.config.discover import PlanFile, find_plans
from memcheck.config.find import Configurations
from memcheck.errors import ConfigurationError
from memcheck.judge import Gate, check_file
from memcheck.report.story.remedies import remedy_line
from memcheck.result import PASSED, PlanResult, Unreadable
from memcheck.review.diff.compare import FAILS_NOW, PlanDiff, Side, side_of

GateOf = Callable[[str], Gate]
"""How strictly to judge the file of a path."""


class SideReader:
    """Judges plans and remembers what went wrong."""

    def __init__(
        self, configurations: Configurations, gates: Callable[[Configurations], GateOf], *, governed: bool
    ) -> None:
        """``configurations`` are those of the working tree, or where ``governed`` those of both sides."""
        self._governed = governed
        self._gates = gates
        self._gate_of = gates(configurations)
        self.unreadable: list[Unreadable] = []
        self.defects: list[str] = []
        self._failing: dict[str, tuple[PlanFile, Gate]] = {}
        """Files with a plan that fails, by the path that is shown; of both sides, the later one stays."""

    def baseline_of(self, path: str) -> str:
        """The baseline file for a plan's findings; empty for none."""
        return self._gate_of(path).baseline_file

    def of_path(self, path: str) -> list[Side]:
        """The plans of a file or below a folder; what they are paired by is their path inside it."""
        folder = os.path.isdir(path)

        def key(shown: str) -> str:
            return os.path.relpath(shown, path).replace(os.sep, "/") if folder else ""

        return self.of_files(find_plans((path,)), lambda shown: shown, key)

    def of_files(
        self,
        files: Iterable[PlanFile | Unreadable],
        shown: Callable[[str], str],
        key: Callable[[str], str],
        gate_of: GateOf | None = None,
    ) -> list[Side]:
        """The plans of files; ``shown`` and ``key`` take a file's path."""
        gate_of = gate_of or self._gate_of
        sides: list[Side] = []
        for found in files:
            if isinstance(found, Unreadable):
                self.unreadable.append(found)
                continue
            gate = gate_of(found.path)._replace(hours=True)
            results, traces = check_file(found.path, found.data, gate._replace(remedies=None, grounds=None))
            sides += [side_of(result, shown(found.path), key(found.path)) for result in results]
            if any(result.status != PASSED for result in results):
                self._failing[shown(found.path)] = found, gate
            self.defects += traces
        return sides

    def with_remedies(self, comparison: PlanDiff) -> PlanDiff:
        """The comparison with the first remedy of each plan that fails now, for the first few of them."""
        changes, left = [], MOST_REMEDIES
        for change in comparison.changes:
            after = change.after
            if after is not None and change.verdict == FAILS_NOW and after.path in self._failing and left:
                left -= 1
                found, gate = self._failing[after.path]
                results, _ = check_file(found.path, found.data, gate._replace(grounds=None))
                change = change._replace(remedy=first_remedy(results, after))
            changes.append(change)
        return comparison._replace(changes=tuple(changes))

    def earlier_gates(self, now: Callable[[str], str]) -> GateOf:
        """Gates of earlier plans: by the settings of their time, or by today's where those are of no use any more.

        ``now`` gives the path that an earlier plan has in the working tree.
        """
        if self._governed:
            return lambda path: _moved(self._gate_of(now(path)), now)
        then = self._gates(Configurations())

        def of(path: str) -> Gate:
            try:
                return then(path)
            except ConfigurationError:
                return self._gate_of(now(path))

        return of


MOST_REMEDIES = 20
"""Searches in one comparison: each takes as long as judging a plan that fails."""


def first_remedy(results: Iterable[PlanResult], after: Side) -> str:
    """What ``check`` offers first for a plan, in one line; empty where it offers nothing."""
    for result in results:
        if result.document == after.document:
            for finding in result.findings:
                if finding.remedies:
                    return remedy_line(result, finding.remedies[0])
    return ""


def _moved(gate: Gate, now: Callable[[str], str]) -> Gate:
    """The gate for a plan that lies elsewhere than the paths of its baseline say."""
    held = gate.baseline
    if held is None:
        return gate
    return gate._replace(baseline=lambda result, finding: held(result._replace(path=now(result.path)), finding))
