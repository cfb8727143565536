"""Which plans of the working tree are not what they were at an earlier commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

from memcheck.cli.review.baseline import Acceptances
from memcheck.cli.review.history.checkout import Tree, configuration_files, files_of, is_broken
from memcheck.cli.review.history.git import Base, differing, inside_of, open_base
from memcheck.config.find import LARGEST, PlanFile, may_hold_table
from memcheck.configs.documents import load_plans
from memcheck.edge.opener import RefusedError, read_whole
from memcheck.errors import UsageError
from memcheck.rules.result import Unreadable


class Changes:
    """What differs between the base and the working tree."""

    def __init__(self, base: Base, tree: Tree, baseline_of: Callable[[str], str]) -> None:
        """``baseline_of``: from a plan file to the baseline file for its findings now; empty for none."""
        self.base = base
        self._tree = tree
        self._baseline_of = baseline_of
        self._acceptances: Acceptances | None = None
        self._differing = differing(base)
        self._settings: dict[str, bool] = {}

    def touches(self, plan: PlanFile) -> bool:
        """Whether a plan file may mean something else now: one of the files that decide it is new, changed or gone."""
        inside = inside_of(self.base, plan.path)
        if self._differs(inside) or any(self._configures(each) for each in configuration_files(inside)):
            return True
        if self._accepts_otherwise(plan.path, inside):
            return True
        documents = load_plans(plan.path, plan.data)
        if any(is_broken(document) for document in documents):
            return True
        files = {file for document in documents for file in files_of(document)}
        try:
            return any(self._differs(each) for file in files for each in self._names(file))
        except UsageError:  # a config outside of the repository: its old text is not known
            return True

    def _accepts_otherwise(self, path: str, inside: str) -> bool:
        """Whether the baseline accepts something else of a plan file than it did."""
        file = self._baseline_of(path)
        if not file:
            return False
        if self._acceptances is None:
            self._acceptances = Acceptances(self.base, self._tree)
        return self._acceptances.touches(file, inside)

    def _differs(self, inside: str) -> bool:
        """A file that git does not know at the base is new, even if it is ignored."""
        return inside in self._differing or inside not in self._tree

    def _names(self, file: str) -> Iterator[str]:
        """The paths from the root under which a file of the plan goes: its own and, through links, the real one."""
        if not os.path.isfile(file):  # a folder, or a file that is gone: then git lists it
            inside = inside_of(self.base, file)
            if inside in self._differing:
                yield inside
            return
        yield inside_of(self.base, file)
        real = os.path.realpath(file)
        if os.path.commonpath((real, self.base.root)) == self.base.root:
            yield os.path.relpath(real, self.base.root).replace(os.sep, "/")

    def _configures(self, inside: str) -> bool:
        """Whether a configuration file of this name changed; a pyproject.toml only if it can hold one."""
        if inside not in self._settings:
            now = _bytes(os.path.join(self.base.root, inside))
            differs = inside in self._differing or (now is not None and inside not in self._tree)
            if differs and os.path.basename(inside) == "pyproject.toml":
                before = self._tree.read(inside, LARGEST)
                differs = any(data is not None and may_hold_table(data) for data in (now, before))
            self._settings[inside] = differs
        return self._settings[inside]


def only_changed(
    found: Iterable[PlanFile | Unreadable],
    ref: str,
    left_out: list[str],
    baseline_of: Callable[[str], str],
    stdin: bool = False,
) -> Iterator[PlanFile | Unreadable]:
    """The plan files that changed against ``ref``, and every path that cannot be read; the others go to ``left_out``.

    Raises:
        UsageError: the ref cannot be compared with, or a plan has no earlier state to compare.
    """
    if stdin:
        raise UsageError("--from-ref cannot be used with -", "what stdin holds has no earlier state in git")
    base = open_base(ref)
    with closing(Tree(base)) as tree:
        changes = Changes(base, tree, baseline_of)
        for item in found:
            if isinstance(item, Unreadable) or changes.touches(item):
                yield item
            else:
                left_out.append(item.path)


def _bytes(path: str) -> bytes | None:
    try:
        return read_whole(path, LARGEST)
    except RefusedError:  # whatever it was, it may decide something now, and reading it will say what is wrong
        return b"[tool.memcheck]"
    except OSError:
        return None
