"""Holds findings against the baseline: what was accepted is hidden as long as it does not get worse."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from memcheck.edge.opener import read_whole
from memcheck.finding import Finding, key_of
from memcheck.result import PlanResult
from memcheck.review.baseline.file import AcceptedFinding, read_entries, relative

FULLNESS = ("MEM101", "MEM102", "MEM103", "MEM104")
"""Rules on how full the GPU is, from the worst to the mildest. An accepted one covers the milder ones after it."""
WASTE, HOST = "MEM105", "MEM106"
TOLERANCE = 0.001
"""A tenth of a percent of the capacity, so that rounding is no change."""


class Baseline:
    """One baseline file in one run."""

    def __init__(self, file: str, read: Callable[[str, int], bytes] = read_whole) -> None:
        """Read the file through ``read``; raises ConfigurationError."""
        self.file = file
        self.folder = os.path.dirname(file) or "."
        self._entries: dict[tuple[str, str], list[AcceptedFinding]] = {}
        for entry in read_entries(file, read):
            self._entries.setdefault((entry.path, entry.plan), []).append(entry)
        self._met: set[AcceptedFinding] = set()

    def judge(self, result: PlanResult, finding: Finding) -> Finding | None:
        """None for an accepted finding; one that got worse says what was accepted."""
        for entry in self._entries.get((relative(result.path, self.folder), result.name), ()):
            if not _same(entry, finding):
                continue
            self._met.add(entry)
            worse = _worse(entry, result)
            if not worse:
                return None
            if worse not in finding.message:
                finding = finding._replace(message=f"{finding.message}; {worse}")
        return finding

    def entries_of(self, path: str) -> tuple[AcceptedFinding, ...]:
        """The entries for the plans of one file."""
        inside = relative(path, self.folder)
        return tuple(entry for (where, _), mine in self._entries.items() if where == inside for entry in mine)

    def take_met(self) -> set[AcceptedFinding]:
        """The entries that accepted something since the last call."""
        met, self._met = self._met, set()
        return met

    def add_met(self, entries: set[AcceptedFinding]) -> None:
        """Entries that accepted something in another process."""
        self._met |= entries

    def stale(self, results: Sequence[PlanResult], counts: Callable[[str, str], bool]) -> list[AcceptedFinding]:
        """Entries that accept nothing any more: the file or plan is gone, or the finding is.

        Only files of this run, and rules that took part (``counts`` of a path and a code), can be spoken of.
        """
        seen: dict[str, list[PlanResult]] = {}
        for result in results:
            seen.setdefault(relative(result.path, self.folder), []).append(result)
        found = []
        for (path, name), entries in self._entries.items():
            plans = seen.get(path, [])
            if not plans:
                if not os.path.exists(os.path.join(self.folder, path)):
                    found += entries
                continue
            mine = [plan for plan in plans if plan.name == name] or plans
            if all(plan.estimate is not None for plan in mine):
                found += [e for e in entries if e not in self._met and counts(mine[0].path, e.code)]
        return found


def _same(entry: AcceptedFinding, finding: Finding) -> bool:
    if entry.code in FULLNESS and finding.code in FULLNESS:
        return entry.code <= finding.code
    return (entry.code, entry.pointer) == (finding.code, key_of(finding.code, finding.pointer))


def _worse(entry: AcceptedFinding, result: PlanResult) -> str:
    """What was accepted, when the plan is further from it than rounding explains; empty when it is not."""
    estimate, accepted = result.estimate, entry.utilization
    if estimate is None or accepted is None:
        return ""
    if entry.code in FULLNESS:
        more = estimate.utilization > accepted + TOLERANCE
        return f"the baseline accepts {accepted:.1%}" if more else ""
    if entry.code == WASTE:
        return f"the baseline accepts {accepted:.1%}" if estimate.utilization < accepted - TOLERANCE else ""
    if entry.code == HOST and estimate.host_bytes_per_node > entry.host_bytes_per_node * (1 + TOLERANCE):
        return f"the baseline accepts {entry.host_bytes_per_node / 2**30:.2f} GiB"
    return ""
