"""A training framework: what it supports, and what its code decides where frameworks differ."""

from __future__ import annotations

from memcheck.job.profile import Profile


class Framework(Profile):
    """One training framework, the single object that its folder defines.

    The fields, of :class:`Profile`, are what several frameworks state. A method is a decision that one framework's code
    takes in its own way: its folder overrides it in a subclass. A job carries its framework, so two of them are equal
    only if they are the same object, and its hash costs nothing in a cache key.
    """

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
