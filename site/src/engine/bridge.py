"""What the worker calls of Python: one request in, its steps out one after the other, all as JSON text.

A start from a snapshot answers before the files of memcheck and of Python's own library are there: what it needs is in
memory. Whatever else would be read ends with :class:`NotYet`, and the worker asks again when the files have come.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator

PACKAGES = "/lib/python3.14/site-packages/"
LIBRARY = "/lib/python314.zip"


class NotYet(BaseException):
    """A file of the engine is needed that has not come. No handler of the engine may take it for an error of a plan."""


class Files:
    """Whether the files of the engine are there."""

    arrived = True


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse to read the engine's files, and to import what is not in memory, until they have come."""
    if Files.arrived or event not in {"open", "import"}:
        return
    path = str(arguments[0])
    if event == "import" or path == LIBRARY or path.startswith(PACKAGES):
        raise NotYet(path)


def enter() -> None:
    """The folder of the visit, in which every name of a plan lies."""
    os.makedirs("/work", exist_ok=True)
    os.chdir("/work")


def resume() -> None:
    """After a start from a snapshot: the files have gone with the machine that made it, and chance needs a new seed."""
    import random

    Files.arrived = False
    random.seed()
    enter()


def arrive() -> None:
    """The files have come."""
    import importlib

    Files.arrived = True
    importlib.invalidate_caches()


def settle() -> None:
    """Before a snapshot: leave nothing in memory that no answer needs."""
    gc.collect()


def steps(request: str) -> Iterator[str]:
    """The answers to one request of the page, each as soon as it is known."""
    from memcheck.live.protocol import handle

    for step in handle(json.loads(request)):
        yield json.dumps(step, ensure_ascii=False)


def import_packages(names: str) -> Iterator[str]:
    """Import the modules of some packages, one for each step, so that the models that come next need no wait."""
    from importlib import import_module
    from pkgutil import walk_packages

    for name in names.split():
        for module in walk_packages(import_module(name).__path__, f"{name}."):
            if module.name not in sys.modules:
                import_module(module.name)
                yield "{}"


sys.addaudithook(watch)
# Importing makes tens of thousands of objects that live to the end; collecting in between finds nothing.
gc.set_threshold(100_000)
enter()
