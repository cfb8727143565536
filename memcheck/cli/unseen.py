"""Plans in the folders that a search leaves out: when ``check`` looks for them, and what it says of them."""

from __future__ import annotations

import os

from memcheck.cli.options import CheckOptions
from memcheck.config.unseen import UnseenPlans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.config.find import Configurations


class UnseenSearch(UnseenPlans):
    """The plans that one run of ``check`` does not search for, and the warning about them."""

    def tell(self) -> None:
        """Print one warning that names plans and folders; print nothing where the folders hold no plan."""
        if self.found.plans or self.found.left:
            from memcheck.cli.notices import warn_of_unseen

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
