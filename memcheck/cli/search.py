"""Which of the files that were found a run takes: one machine's share of them, and what the search leaves out."""

from __future__ import annotations

import os
from collections.abc import Iterator

from memcheck.cli.options import CheckOptions
from memcheck.cli.tell import warn_of_unseen
from memcheck.config.discover import PlanFile
from memcheck.config.unseen import UnseenPlans
from memcheck.record import Record
from memcheck.result import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.config.find import Configurations


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


class UnseenSearch(UnseenPlans):
    """The plans that one run of ``check`` does not search for, and the warning about them."""

    def tell(self) -> None:
        """Print one warning that names plans and folders; print nothing where the folders hold no plan."""
        if self.found.plans or self.found.left:
            warn_of_unseen(self.found)


def search_of(options: CheckOptions, configurations: Configurations) -> UnseenSearch:
    """The search of a run over folders.

    A plan that it finds fails under ``forbid-unseen``, and where the configuration is read from a commit: there no
    plan may avoid the check.
    """

    def strict(folder: str) -> bool:
        policy = configurations.of_folder(os.path.abspath(folder)).policy
        return options.config_from_ref is not None or (policy is not None and policy.forbid_unseen)

    return UnseenSearch(strict)
