"""A hook of the package's build: a wheel carries the page of its own version, or none.

``npm --prefix site run release`` puts the built page into ``memcheck/live/page``. Without it the package builds as
well, and ``memcheck ui`` says what is missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = Path("memcheck") / "live" / "page"


class PageHook(BuildHookInterface[Any]):
    """Checks the page before anything is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Refuse a page of another version, or one that is not whole.

        Raises:
            ValueError: there is such a page.
        """
        page = Path(self.root) / PAGE
        if not page.is_dir():
            return
        own = self.metadata.version
        try:
            built = json.loads((page / "version.json").read_text(encoding="utf-8"))["version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{PAGE} is no built page: remove it, or run npm --prefix site run release") from error
        if built != own:
            raise ValueError(
                f"{PAGE} is of version {built}, and the package is {own}: run npm --prefix site run release"
            )
        if not (page / "index.html").is_file():
            raise ValueError(f"{PAGE} has no index.html: run npm --prefix site run release")
