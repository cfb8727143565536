"""The part of rpds-py that jsonschema and referencing use, for a machine without its compiled wheel.

Each container is copied where rpds-py shares its parts: the results are the same, and the registries of schemas here
hold some ten entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class HashTrieMap(Mapping[Any, Any]):
    """A mapping that never changes; ``insert``, ``remove`` and ``update`` return a changed copy."""

    def __init__(self, value: Any = (), **named: Any) -> None:
        self._entries = dict(value, **named)

    @classmethod
    def convert(cls, value: Any) -> HashTrieMap:
        """The value itself if it is one, else a map of its entries."""
        return value if isinstance(value, cls) else cls(value)

    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return f"HashTrieMap({self._entries!r})"

    def insert(self, key: Any, value: Any) -> HashTrieMap:
        """A copy with one more entry."""
        return HashTrieMap({**self._entries, key: value})

    def remove(self, key: Any) -> HashTrieMap:
        """A copy without an entry; a KeyError where it has none."""
        entries = dict(self._entries)
        del entries[key]
        return HashTrieMap(entries)

    def discard(self, key: Any) -> HashTrieMap:
        """A copy without an entry, if it has one."""
        return self.remove(key) if key in self._entries else self

    def update(self, *others: Any, **named: Any) -> HashTrieMap:
        """A copy with the entries of others, of which the last counts."""
        entries = dict(self._entries)
        for other in others:
            entries.update(other)
        return HashTrieMap({**entries, **named})


class HashTrieSet(frozenset[Any]):
    """A set that never changes; ``insert``, ``remove`` and ``update`` return a changed copy."""

    def insert(self, value: Any) -> HashTrieSet:
        """A copy with one more member."""
        return HashTrieSet(self | {value})

    def remove(self, value: Any) -> HashTrieSet:
        """A copy without a member; a KeyError where it has none."""
        if value not in self:
            raise KeyError(value)
        return HashTrieSet(self - {value})

    def discard(self, value: Any) -> HashTrieSet:
        """A copy without a member, if it has it."""
        return HashTrieSet(self - {value})

    def update(self, *others: Iterable[Any]) -> HashTrieSet:
        """A copy with the members of others."""
        return HashTrieSet(self.union(*others))


class List(tuple[Any, ...]):
    """A list that grows at its front and never changes."""

    __slots__ = ()

    def __new__(cls, *values: Any) -> List:  # noqa: PYI034 - `Self` is newer than Python 3.10
        """Of one iterable, or of several values."""
        return super().__new__(cls, values[0] if len(values) == 1 else values)

    @property
    def first(self) -> Any:
        """The value that was pushed last; an IndexError where there is none."""
        if not self:
            raise IndexError("empty list has no first element")
        return self[0]

    @property
    def rest(self) -> List:
        """All values but the first."""
        return List(self[1:])

    def push_front(self, value: Any) -> List:
        """A copy with one more value at its front."""
        return List((value, *self))

    def drop_first(self) -> List:
        """A copy without the first value."""
        if not self:
            raise IndexError("empty list has no first element")
        return self.rest

    def __repr__(self) -> str:
        return f"List({list(self)!r})"
