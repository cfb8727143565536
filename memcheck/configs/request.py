"""What is exported: a resolved plan and the names it goes by."""

from __future__ import annotations

from memcheck.configs.types import Notice
from memcheck.job.types import TrainingJob
from memcheck.record import Record

KINDS = {
    "lost": "What this format cannot say:",
    "elsewhere": "What is said elsewhere:",
    "remark": "Remarks:",
}


class Export(Record):
    """A job for a writer."""

    job: TrainingJob
    plan: str
    """The name of the plan's file in comments."""
    model: str
    """The catalog's name of the model; empty when the plan describes an architecture of its own."""

    notices: tuple[Notice, ...] = ()
    """Plan keys that no writer can put into a config."""

    def header(self, version: str, notices: tuple[Notice, ...], sign: str = "#") -> str:
        """The comment at the top of a written config."""
        lines = [f"{sign} Written by memcheck from {self.plan} for {version}."]
        for kind, title in KINDS.items():
            found = [notice for notice in notices if notice.kind == kind]
            if found:
                lines += [sign, f"{sign} {title}"]
                lines += [f"{sign}   {notice.key}: {notice.message}" for notice in found]
        return "\n".join([*lines, ""])
