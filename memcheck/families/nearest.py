"""Which families a configuration of an unknown ``model_type`` is nearest to, by what its keys say.

Each family reads the configuration as if it were its own. One that finds every key it needs, and leaves few unread, is
near. The names are only a hint for the author of the plan: no estimate uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memcheck.models.leftovers import may_carry_size
from memcheck.models.reader import REQUIRED, ArchitectureError, ConfigReader, Required
from memcheck.models.types import Architecture
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SHOWN = 3
USUAL = ("llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3")
"""Named first of those that are as near."""
MISSING_WEIGHS = 4
"""A key that a family needs and does not find tells more than one that it does not read."""


class Near(Record):
    """How a family reads the configuration."""

    model_type: str
    missing: tuple[str, ...]
    unread: tuple[str, ...]
    """Keys that may carry a size."""

    @property
    def distance(self) -> int:
        """0: everything was found and read."""
        return MISSING_WEIGHS * len(self.missing) + len(self.unread)


class Collecting(ConfigReader):
    """A reader that notes missing whole numbers and goes on."""

    def __init__(self, config: Mapping[str, Any], model_type: str) -> None:
        super().__init__(config, model_type)
        self.missing: list[str] = []

    def integer(
        self,
        key: str,
        *aliases: str,
        default: int | Required = REQUIRED,
        null: int | Required = REQUIRED,
        minimum: int = 1,
        maximum: int = 2**40,
    ) -> int:
        """Return the number, or ``minimum`` if the key is missing, so that reading can go on."""
        if self.raw(key, *aliases) is None and isinstance(default, Required) and isinstance(null, Required):
            self.missing.append(key)
            return max(minimum, 1)
        return super().integer(key, *aliases, default=default, null=null, minimum=minimum, maximum=maximum)

    def _missing(self, key: str) -> NoReturn:
        self.missing.append(key)
        raise ArchitectureError(f"{key} is missing", key=key)


Family = Callable[[str], Callable[[ConfigReader], Architecture]]


def nearest(config: Mapping[str, Any], families: Mapping[str, str], family: Family) -> list[Near]:
    """List the families whose reader leaves the fewest keys open, the nearest first.

    ``family``: imports a reader by its name.
    """
    candidates = []
    for name in families:
        near = _read_as(config, name, family(name))
        if near is not None:
            candidates.append(near)
    candidates.sort(key=lambda near: (near.distance, near.model_type not in USUAL, near.model_type))
    return candidates[:SHOWN]


def _read_as(config: Mapping[str, Any], name: str, read: Callable[[ConfigReader], Architecture]) -> Near | None:
    """Return how the family ``name`` reads a configuration; None where its reader fails, as the structures differ.

    ``read``: the family's reader. A missing whole number is no failure.
    """
    reader = Collecting(config, name)
    try:
        read(reader)
    except (ArchitectureError, ArithmeticError, LookupError, TypeError, ValueError):
        return None  # a list of another length, a word that the family does not know: not its structure
    reader.ignore("rope_scaling", "rope_parameters", "quantization_config", "quantization")
    unread = tuple(sorted(key for key, value in reader.unread() if may_carry_size(value)))
    return Near(name, tuple(dict.fromkeys(reader.missing)), unread)


def described(near: list[Near]) -> str:
    """``qwen3 (reads every key), llama (does not read q_norm)``, every key by its name."""
    return "; ".join(f"{n.model_type} ({_differences(n)})" for n in near)


def _differences(near: Near) -> str:
    """Say what keeps a configuration from being read as the family ``near``, as a part of a sentence."""
    differences = []
    if near.missing:
        differences.append("misses " + ", ".join(near.missing))
    if near.unread:
        differences.append("does not read " + ", ".join(near.unread))
    return ", ".join(differences) or "reads every key that may carry a size"
