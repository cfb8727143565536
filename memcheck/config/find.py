"""The settings of a configuration, and the search for the one of a file. No file is parsed unless it may hold one."""

from __future__ import annotations

import os

from memcheck.edge.opener import RefusedError, read_whole
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.rules.governance import Governance


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
        from memcheck.config.patterns import matches

        folder = self.file.rpartition("/")[0] or "."
        return next((each.stated for each in self.configs if matches(path, each.path, folder)), None)

    def ignored_for(self, path: str) -> tuple[str, ...]:
        """The rules that do not count for a file, besides those that count nowhere."""
        if not self.per_file_ignores:
            return ()
        from memcheck.config.patterns import matches

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
