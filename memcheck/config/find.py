"""The settings of a configuration, and the search for the one of a file. No file is parsed unless it may hold one.

How strictly a file is checked: what the command line and the configuration come to.

Rules are selected by profile, and by ``--select`` and ``--ignore`` with a code, the prefix of a code, or a name.

From the paths of a command line to the bytes of plan files.

Which files a pattern of the configuration means.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from memcheck.edge.opener import RefusedError, begin_search, end_search, read_whole, resolved
from memcheck.errors import UsageError, closest
from memcheck.plan.finding import Finding
from memcheck.plan.text import MAX_BYTES, read_bytes
from memcheck.record import Record
from memcheck.rules import GATE, PROFILES
from memcheck.rules.result import PlanResult, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.accounts.dossier import Dossier
    from memcheck.accounts.estimate import Estimate
    from memcheck.rules.types import Governance, RuleContext


class ConfigHardware(Record):
    """``[[configs]]``: configs of frameworks, and what they do not say."""

    path: str
    """A pattern of paths, relative to the configuration's folder."""
    gpu: str | None = None
    gpus_per_node: int | None = None
    nodes: int | None = None
    host_memory: float | None = None
    """GiB of a node."""
    sequence_length: int | None = None
    """Tokens of a row, of configs that state none."""
    images: dict[str, int] | None = None
    """The pictures of a sample, of configs that train on them: keys of ``training.images``."""
    framework_version: str | None = None
    """The framework's release, whose defaults count; None for the newest."""

    @property
    def stated(self) -> dict[str, object]:
        """The stated values by name: hardware, sequence length for configs without one, images, and the release."""
        names = {"sequence_length": "default_sequence_length"}
        found = {names.get(key, key): value for key, value in self._asdict().items() if key != "path"}
        return {key: value for key, value in found.items() if value is not None}


class Settings(Record):
    """One configuration file, or the defaults. None means: not configured."""

    paths: tuple[str, ...] = ()
    """What ``check`` without paths checks, relative to the working directory."""
    fail_above: float | None = None
    warn_above: float | None = None
    waste_below: float | None = None
    overhead: str | float | None = None
    """``modeled`` or a flat fraction."""
    uncertain: str | None = None
    """One of ``UNCERTAIN``."""
    unpacked: str | None = None
    """One of ``UNCERTAIN``: whether a plan whose unpacked rows fit only up to a length gets a warning or fails."""
    profile: str | None = None
    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    """Rules besides those of ``select``, or besides the profile's."""
    ignore: tuple[str, ...] = ()
    fail_on: str | None = None
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Patterns of paths, relative to the configuration's folder, and the rules that do not count for them."""
    severity: tuple[tuple[str, str], ...] = ()
    """Codes or prefixes of codes, and the severity that their findings get."""
    baseline: str = ""
    """The baseline file, relative to the working directory."""
    configs: tuple[ConfigHardware, ...] = ()
    """Configs of frameworks that are judged like plans; the first pattern that fits a file counts."""
    policy: Governance | None = None
    """What the configuration lays down for every plan."""
    prices: tuple[tuple[str, float], ...] = ()
    """GPUs by their catalog names, and the price of an hour of each."""
    page_url: str = ""
    """The address of the page that links open; empty: there is none."""
    file: str = ""
    """Where the settings come from; empty for the defaults."""

    def hardware_of(self, path: str) -> dict[str, object] | None:
        """What a framework's config runs on; None for a file that no pattern means."""
        if not self.configs:
            return None

        folder = self.file.rpartition("/")[0] or "."
        return next((each.stated for each in self.configs if matches(path, each.path, folder)), None)

    def ignored_for(self, path: str) -> tuple[str, ...]:
        """The rules that do not count for a file, besides those that count nowhere."""
        if not self.per_file_ignores:
            return ()

        folder = self.file.rpartition("/")[0] or "."
        found = [rules for pattern, rules in self.per_file_ignores if matches(path, pattern, folder)]
        return sum(found, ())

    def severity_of(self, code: str, usual: str) -> str:
        """The configured severity of a rule's findings; of several entries the longest counts."""
        return max(
            ((prefix, level) for prefix, level in self.severity if code.startswith(prefix)), default=("", usual)
        )[1]


UNCERTAIN = ("warn", "fail")
"""What a plan does whose interval crosses the limit or the capacity, or that fits up to a row, the milder first."""
FAIL_ON = ("error", "warning", "never")
DEFAULT_FAIL_ON = "error"


LARGEST = 4 * 2**20
"""Bytes of a configuration file."""

TOOL, MINE, QUOTES = b"tool", b"memcheck", (b'"', b"'")


class Files:
    """Where configurations and baselines are read: here the working tree. Paths are as any command takes them."""

    origin = ""
    """The text that messages add after a file's name; empty for the working tree."""

    def holds(self, path: str) -> bool:
        """Whether anything but a folder has this name, readable or not."""
        return os.path.lexists(path) and not os.path.isdir(path)

    def read(self, path: str, limit: int) -> bytes:
        """Every byte of a file; see :func:`~memcheck.edge.opener.read_whole`."""
        return read_whole(path, limit)

    def is_top(self, folder: str) -> bool:
        """Whether an absolute folder is the top of a repository."""
        return os.path.exists(os.path.join(folder, ".git"))


class Configurations:
    """The settings of every folder met in one run; each file is read once."""

    def __init__(self, only: str | None = None, files: Files | None = None) -> None:
        """With ``only``, that file governs everything."""
        self.files = files or Files()
        self._only = only
        self._files: dict[str, Settings] = {}
        self._folders: dict[str, Settings] = {}

    def of(self, path: str) -> Settings:
        """The settings for a file: those of the nearest folder above it that has any, up to the repository's root."""
        folder = os.path.dirname(path)
        settings = self._folders.get(folder)
        if settings is None:
            settings = self._folders[folder] = self.of_folder(os.path.dirname(os.path.abspath(path)))
        return settings

    def of_folder(self, folder: str) -> Settings:
        """The settings for what lies in an absolute folder."""
        if self._only is not None:
            return self._read(self._only)
        below: list[str] = []  # no recursion: folders may be deeper than the interpreter's stack
        settings = self._folders.get(folder)
        while settings is None:
            below.append(folder)
            settings = self._stated(folder)
            if settings is None:
                folder = os.path.dirname(folder)
                settings = self._folders.get(folder)
        self._folders.update(dict.fromkeys(below, settings))
        return settings

    def _stated(self, folder: str) -> Settings | None:
        """What a folder says; None where the folder above it has the word."""
        own = os.path.join(folder, "memcheck.toml")
        if self.files.holds(own):
            return self._read(own)
        shared = os.path.join(folder, "pyproject.toml")
        if self._may_configure(shared):
            settings = self._read(shared)
            if settings.file:
                return settings
        is_top = os.path.dirname(folder) == folder or self.files.is_top(folder)
        return Settings() if is_top else None

    def _read(self, path: str) -> Settings:
        if path not in self._files:
            from memcheck.config.read import read_settings  # brings a TOML parser

            self._files[path] = read_settings(path, self.files)
        return self._files[path]

    def _may_configure(self, path: str) -> bool:
        if not self.files.holds(path):
            return False
        try:
            return may_hold_table(self.files.read(path, LARGEST))
        except RefusedError:  # the reader says what is wrong: what it links to may not switch a configuration off
            return True
        except OSError:
            return False


def may_hold_table(data: bytes) -> bool:
    """Whether the bytes of a ``pyproject.toml`` have to be parsed to know."""
    return MINE in data and any(TOOL in line and _begins_table(line) for line in data.splitlines())


def _begins_table(line: bytes) -> bool:
    """Whether a line may be ``[tool.memcheck]``, or say so in any other way that TOML has.

    Without patterns: the engine for them takes longer to import than a whole project file to look through.
    """
    rest = line.lstrip().removeprefix(b"[").lstrip()
    rest = rest[rest[:1] in QUOTES :]
    if not rest.startswith(TOOL):
        return False
    rest = rest[len(TOOL) :]
    rest = rest[rest[:1] in QUOTES :].lstrip()
    if rest[:1] != b".":
        return rest[:1] in (b"]", b"=")
    rest = rest[1:].lstrip()
    rest = rest[rest[:1] in QUOTES :]
    behind = rest[len(MINE) : len(MINE) + 1]
    return rest.startswith(MINE) and not (behind.isalnum() or behind == b"_")


DEFAULT_FAIL_ABOVE = 0.95
DEFAULT_WARN_ABOVE = 0.9
"""Shares of a GPU that a plan may need; docs/internals/accuracy.md has the jobs they come from."""


def fraction(written: object) -> float:
    """``0.9`` or ``90%`` as a number in (0, 1].

    Raises:
        ValueError: anything else; the message says what was written and what is allowed.
    """
    number = _number(written)
    if number is None or not 0 < number <= 1:
        raise ValueError(
            f"{written!r} is not a share of capacity: write a number in (0, 1] or a percentage such as 90%"
        )
    return number


def _number(written: object) -> float | None:
    if isinstance(written, bool):
        return None
    if isinstance(written, (int, float)):
        return float(written)
    if not isinstance(written, str):
        return None
    text = written.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def known(selectors: Sequence[str]) -> tuple[str, ...]:
    """The selectors as codes or prefixes of codes.

    Raises:
        UsageError: one of them matches no rule.
    """
    if not selectors:
        return ()
    from memcheck.rules.registry import RULES

    codes = {rule.name: rule.code for rule in RULES}
    found = []
    for selector in selectors:
        prefix = codes.get(selector, selector.upper())
        if not any(code.startswith(prefix) for code in codes.values()):
            close = closest(prefix, codes.values()) + closest(selector, codes)
            hint = f"; did you mean {close[-1]}?" if close else ""
            raise UsageError(f"no rule matches {selector!r}{hint}", "memcheck list rules")
        found.append(prefix)
    return tuple(found)


def counts(code: str, select: Sequence[str], ignore: Sequence[str], profile: str = GATE, own: str = GATE) -> bool:
    """Whether findings of a rule are shown: the longest matching prefix decides, and ``ignore`` wins a tie.

    A rule whose ``own`` profile is beyond the chosen one counts only where it is named in full: a prefix picks among
    the rules of a profile, and brings in none that a later version adds to another.
    """
    if PROFILES.index(own) > PROFILES.index(profile) and code not in select:
        return False
    chosen = _longest(code, select) if select else 0
    return chosen >= 0 and chosen > _longest(code, ignore)


def _longest(code: str, prefixes: Sequence[str]) -> int:
    """Length of the longest prefix that matches; -1 if none does."""
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=-1)


if TYPE_CHECKING:
    Remedies = Callable[[list[Finding], RuleContext], list[Finding]]
    """The findings about an amount of memory, each with what would end it. The context holds the estimate."""
    DossierMaker = Callable[[RuleContext, Estimate, "Gate"], Dossier]


QUICK, EVERY = 3, 1000
"""Estimates for the line of a plan that passes, each of which costs a tenth of what judging the plan does or more; and
as many as there are assumptions."""


class Gate(Record):
    """How strictly to judge, and what to judge instead of what is written."""

    settings: Settings = Settings()
    fail_on: str = DEFAULT_FAIL_ON
    fail_above: float | None = None
    """From the command line: goes before the plan's own policy, so that a stricter gate cannot be talked out of it."""
    warn_above: float | None = None
    uncertain: str | None = None
    """From the command line, as ``fail_above``."""
    unpacked: str | None = None
    """What to do with rows that are not packed, from the command line: goes before the plan's own policy."""
    profile: str = GATE
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    changes: Mapping[str, object] = {}
    """Dotted plan keys and the values to use instead, as if they were written in the file."""
    suppressions: bool = True
    """Whether comments hide findings; what is wrong with a comment is said either way."""
    inventory: bool = False
    """Whether to list the largest live tensors of plans that pass, too."""
    hours: bool = False
    """Whether to say how many GPU hours a run takes whose steps the plan states."""
    grounds: int | None = None
    """How many estimates may be made to find the assumptions that a passing plan depends on. None: no such estimates,
    and no word on what would settle an uncertain plan."""
    baseline: Callable[[PlanResult, Finding], Finding | None] | None = None
    """What was accepted before becomes None, what got worse says so."""
    baseline_file: str = ""
    remedies: Remedies | None = None
    """Puts remedies on the findings of a full GPU, which takes many estimates; None: they have none."""
    hardware: Mapping[str, object] = {}
    """What a framework's own config does not say: ``gpu``, ``gpus_per_node``, ``nodes``, ``sequence_length``."""
    answers: Mapping[str, object] = {}
    """What options say of a plan's job besides, by option: a plan takes it in the place of what it states."""
    texts: Mapping[str, bytes] = {}
    """Configs, by path, that plans take values from as if they held these bytes: edits that are not written yet."""
    dossier: DossierMaker | None = None
    """Adds what reports to pass on show: formulas, every rank's device bytes, the plan on other GPUs."""

    def counts(self, code: str) -> bool:
        """Whether findings of a rule are shown."""
        from memcheck.rules.checks import BEYOND_GATE  # brings the rules, which a verdict that was kept does without

        return counts(code, self.select, self.ignore, self.profile, BEYOND_GATE.get(code, GATE))

    def hides(self, code: str) -> bool:
        """Whether a comment can hide findings of a rule."""
        policy = self.settings.policy
        return self.suppressions and (policy is None or not policy.locks(code))

    @property
    def as_written(self) -> bool:
        """Whether plans are judged as their files and the configuration have it."""
        stated = (self.fail_above, self.warn_above, self.uncertain, self.unpacked)
        return not (self.changes or self.answers) and all(each is None for each in stated)


SUFFIXES = (".yaml", ".yml")
CONFIG_SUFFIXES = (".json", ".toml", ".sh")
"""Suffixes of configs that are no YAML: looked at only where the project's configuration means them."""
SKIPPED_FOLDERS = {"node_modules", "__pycache__"}
"""Names of folders that a search skips, in addition to names that start with a dot."""
STDIN = "-"
LeftOut = Callable[[Sequence[str], Sequence[str]], Iterable[Unreadable]]
"""A function from the folders that a search left out, and those that it searched, to the problems to report."""


class PlanFile(Record):
    """One file to check: its path and its bytes."""

    path: str
    """The file's path as the user wrote it, with forward slashes. A file found in a folder begins with the folder."""
    data: bytes


class Candidate(Record):
    """One file that may hold plans."""

    file: PlanFile
    must_be_marked: bool
    """Whether the file is checked only if it has the mark of a plan: a top-level key ``memcheck``."""
    stdin: bool = False


def find_plans(paths: Sequence[str]) -> Iterator[PlanFile | Unreadable]:
    """Every plan file of the paths, sorted and each once; paths that cannot be read come as :class:`Unreadable`.

    Folders are searched recursively for YAML files that carry the mark of a plan. A file that was named is taken
    whatever it holds. Files are read one at a time.
    """
    return plans_among(find_candidates(paths))


def plans_among(
    candidates: Iterable[Candidate | Unreadable], unmarked: list[str] | None = None
) -> Iterator[PlanFile | Unreadable]:
    """The files that are plans, or meant as such; ``unmarked`` takes the paths of those that lack the mark."""
    for found in candidates:
        if isinstance(found, Unreadable):
            yield found
        else:
            if found.must_be_marked:
                from memcheck.plan.sniff import is_meant

                if not is_meant(*found.file, unmarked, has_more=not found.stdin):
                    continue
            yield found.file


def find_candidates(
    paths: Sequence[str],
    *,
    skip_unmarked: bool = False,
    stdin_filename: str | None = None,
    configured: Callable[[str], bool] | None = None,
    left_out: LeftOut | None = None,
) -> Iterator[Candidate | Unreadable]:
    """Every file of the paths that may hold plans, with its bytes; see :func:`find_plans`.

    ``skip_unmarked``: a file that was named must carry the mark of a plan, too. ``configured``: files in folders that
    are taken for what the project's configuration says of them, whatever they hold. ``left_out`` is told what the
    search does not look into, and gives what fails for that.
    """
    named: dict[str, bool] = {}
    skipped: list[str] = []
    stdin = False
    for path in paths:
        if path == STDIN:
            stdin = True
        elif os.path.isdir(path):
            try:
                resolved(path)
            except RefusedError as error:
                yield _unreadable(_shown(path), error)
                continue
            for found in walk(path, SUFFIXES if configured is None else (*SUFFIXES, *CONFIG_SUFFIXES), skipped=skipped):
                if isinstance(found, Unreadable):
                    yield found
                    continue
                shown = _shown(found)
                if configured is not None and configured(shown):
                    named.setdefault(shown, True)
                elif found.lower().endswith(SUFFIXES):
                    named.setdefault(shown, False)
        else:
            named[_shown(path)] = True
    if stdin:
        yield _read(stdin_filename or "<stdin>", must_be_marked=skip_unmarked, stdin=True)
    if skipped and left_out is not None:
        yield from left_out(skipped, [path for path in paths if path != STDIN and os.path.isdir(path)])
    begin_search()
    try:
        for path in sorted(named):
            yield _read(path, must_be_marked=skip_unmarked or not named[path])
    finally:
        end_search()


def _shown(path: str) -> str:
    """One spelling per file: ``./a.yaml`` and ``plans/../a.yaml`` are ``a.yaml``."""
    return os.path.normpath(path).replace(os.sep, "/")


def is_skipped(name: str) -> bool:
    """Whether a search leaves out folders of this name."""
    return name.startswith(".") or name in SKIPPED_FOLDERS


def walk(
    folder: str, suffixes: tuple[str, ...], *, shallow_first: bool = False, skipped: list[str] | None = None
) -> Iterator[str | Unreadable]:
    """Files with these suffixes below a folder; links to folders are not followed, so that no loop can arise.

    ``shallow_first``: the files of a folder before those of any folder inside it. ``skipped`` takes the folders, and
    links to folders, that are left out, but for git's own.
    """
    waiting = deque([folder])  # no recursion: folders may be deeper than the interpreter's stack
    while waiting:
        folder = waiting.popleft() if shallow_first else waiting.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name, reverse=not shallow_first)
        except OSError as error:
            yield _unreadable(_shown(folder), error)
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not is_skipped(entry.name):
                    waiting.append(entry.path)
                elif skipped is not None and entry.name != ".git":
                    skipped.append(_shown(entry.path))
            elif entry.is_symlink() and os.path.isdir(entry.path):
                if skipped is not None:
                    skipped.append(_shown(entry.path))
            elif entry.name.lower().endswith(suffixes):
                yield entry.path  # a link to nowhere, a pipe or a device, too: that the user must be told


def _read(path: str, *, must_be_marked: bool, stdin: bool = False) -> Candidate | Unreadable:
    """One file, or stdin under a name."""
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if stdin else read_bytes(path)
    except OSError as error:
        return _unreadable(path, error)
    return Candidate(PlanFile(path, data), must_be_marked, stdin)


def _unreadable(path: str, error: OSError) -> Unreadable:
    return Unreadable(path, error.strerror or str(error), isinstance(error, RefusedError))


def matches(path: str, pattern: str, folder: str) -> bool:
    """Whether the pattern fits the file's name, or its path relative to ``folder``; ``*`` also spans slashes."""
    from fnmatch import fnmatchcase  # brings the pattern engine

    relative = os.path.relpath(path, folder).replace(os.sep, "/")
    return fnmatchcase(os.path.basename(path), pattern) or fnmatchcase(
        relative, os.path.normpath(pattern).replace(os.sep, "/")
    )
