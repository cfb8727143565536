"""The plan files of one machine, where several machines judge a repository together (``check --shard I/N``)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from memcheck.config.discover import PlanFile
from memcheck.record import Record
from memcheck.result import Unreadable


class Share(Record):
    """One of several shares of the plan files."""

    number: int
    """The number of this share, from 1."""
    shares: int
    """How many shares there are."""

    def __str__(self) -> str:
        return f"{self.number}/{self.shares}"

    def takes(self, path: str) -> bool:
        """Whether a file, by its shown path, belongs to this share.

        The path alone decides: a file that comes or goes moves no other file to another machine.
        """
        import hashlib

        digest = hashlib.sha256(os.fsencode(path)).digest()
        return int.from_bytes(digest[:8], "big") % self.shares == self.number - 1


def only_share(
    files: Iterator[PlanFile | Unreadable], share: Share, elsewhere: list[str]
) -> Iterator[PlanFile | Unreadable]:
    """The files of one share; the paths of all others are added to ``elsewhere``."""
    for file in files:
        if share.takes(file.path):
            yield file
        else:
            elsewhere.append(file.path)
