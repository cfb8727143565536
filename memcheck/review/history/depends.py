"""Which files decide what a plan means: itself, what it extends, the configs it names, memcheck's configuration."""

from __future__ import annotations

import os

from memcheck.plan import codes
from memcheck.plan.document import Document

CONFIGURATION = ("memcheck.toml", "pyproject.toml")


def files_of(document: Document) -> set[str]:
    """Paths, spelled like the document's own, of what the plan was read from and of what it names."""
    folder = os.path.dirname(document.path)
    return set(document.sources) | {os.path.normpath(os.path.join(folder, name)) for name in named(document.values)}


def named(values: object) -> set[str]:
    """The other files that the values of a plan name, relative to the plan; a folder may stand for its config.json.

    An Accelerate config that a plan takes as its source names DeepSpeed's in turn.
    """
    if not isinstance(values, dict):
        return set()
    model, source, engine = values.get("model"), values.get("source"), values.get("deepspeed_config")
    names = [values.get("extends"), model.get("config") if isinstance(model, dict) else None]
    names += list(source.values()) if isinstance(source, dict) else []
    names.append(engine.get("deepspeed_config_file") if isinstance(engine, dict) else None)
    found = {name for name in names if isinstance(name, str) and name and not os.path.isabs(name)}
    if isinstance(model, dict) and isinstance(config := model.get("config"), str) and config in found:
        found.add(os.path.join(config, "config.json"))
    return found


def is_broken(document: Document) -> bool:
    """Whether a file that the plan extends could not be read, so that the plan's files are not all known."""
    return any(finding.code == codes.BROKEN_EXTENDS.code for finding in document.findings)


def configuration_files(path: str) -> list[str]:
    """Where the configuration of a file may be: its folder, given from the repository's root, and those above it."""
    folder, found = os.path.dirname(path), []
    while True:
        found += [os.path.join(folder, name) for name in CONFIGURATION]
        if not folder:
            return found
        folder = os.path.dirname(folder)
