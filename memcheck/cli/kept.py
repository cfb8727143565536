"""Judges files of a run, or takes the verdicts that an earlier run kept."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.cli.cache.verdicts import Verdicts
from memcheck.cli.gate import Gates
from memcheck.cli.jobs import FileVerdict
from memcheck.config.discover import PlanFile
from memcheck.edge.observed import heard, listen
from memcheck.result import PlanResult, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Answer = tuple[list[PlanResult], list[str]]


class Keeper:
    """The kept verdicts of a run, which need no new check, and the gates that the others are checked with."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._verdicts = Verdicts()

    def found(self, files: Iterator[PlanFile | Unreadable]) -> Iterator[PlanFile | Unreadable | FileVerdict]:
        """The files, those with a kept verdict as that."""
        for file in files:
            known = self._found(file) if isinstance(file, PlanFile) and self._verdicts.usable else None
            yield file if known is None else known

    def _found(self, file: PlanFile) -> FileVerdict | None:
        found = self._verdicts.find(self._name(file))
        if found is None:
            return None
        results, met = found
        self._gates.add_met(_read_met(met))
        return FileVerdict(file, results, [])

    def judge(self, file: PlanFile) -> Answer:
        """Judge a file, and keep the verdict."""
        from memcheck.judge import check_file

        gate = self._gates.of(file.path)
        if not self._verdicts.usable:
            return check_file(file.path, file.data, gate)
        before = self._gates.take_met()
        listen()
        try:
            results, traces = check_file(file.path, file.data, gate)
        finally:
            notes, met = heard(), self._gates.take_met()
            self._gates.add_met(before)
            self._gates.add_met(met)
        if not traces:
            self._verdicts.keep(self._name(file), results, notes, _written_met(met))
        return results, traces

    @property
    def verdicts(self) -> Verdicts:
        """What is kept."""
        return self._verdicts

    def close(self) -> None:
        """End the run."""
        self._verdicts.close()

    def _name(self, file: PlanFile) -> str:
        gate = self._gates.of(file.path)
        accepted = () if gate.baseline is None else self._gates.accepted(file.path)
        return self._verdicts.name(file.path, file.data, gate, accepted)


def _written_met(met: dict[str, Any]) -> dict[str, list[list[object]]]:
    return {file: [list(entry) for entry in sorted(entries, key=repr)] for file, entries in met.items() if entries}


def _read_met(met: Any) -> dict[str, Any]:
    """What baselines accepted; raises TypeError for anything else."""
    if not met:
        return {}
    from memcheck.review.baseline.file import AcceptedFinding

    return {file: {AcceptedFinding(*entry) for entry in entries} for file, entries in met.items()}
