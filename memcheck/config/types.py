"""The settings that a configuration file can make."""

from __future__ import annotations

from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:  # made only for a configuration that has it
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
