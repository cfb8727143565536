"""Placeholders in a reduced job for values that later code must not read.

A reduced job is a key: what follows from it is kept, and shared by all jobs that reduce to it. A value that was taken
out and is read all the same would give every one of them the number of the first, in silence. Here that is an error.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["UNREAD"]


class _Unread:
    """Raises where it is looked into, compared, counted with or asked whether it is true."""

    __slots__ = ()

    def _read(self, *_others: object) -> NoReturn:
        raise AssertionError("a reduced job was asked for a value that it was reduced by")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._read()

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __int__ = __index__ = __str__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _read
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _read

    def __hash__(self) -> int:
        return id(_Unread)

    def __repr__(self) -> str:
        return "UNREAD"


UNREAD: Any = _Unread()
