"""The kinds of files that wrap a launch: how each is recognised, and what it is called. One row per kind.

A YAML file is recognised by keys that its platform alone has, a build file by its name. docs/reference/wrappers.md has
the same rows with where each kind states its GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from memcheck.configs.serve_lines import is_dockerfile
from memcheck.record import Record

Values = Mapping[str, Any]


class YamlKind(Record):
    """A platform whose files are YAML."""

    title: str
    """What a file of it is called; ``{0}`` is the word that the file has for its own kind."""
    word: Callable[[Values], str]
    """The word for a file of this kind, and an empty text for any other file."""


def _kubernetes(values: Values) -> str:
    kind = values.get("kind")
    if not isinstance(values.get("apiVersion"), str) or not isinstance(kind, str):
        return ""
    return kind[:40] if kind.isidentifier() else "object"


def _dstack(values: Values) -> str:
    return str(values["type"]) if values.get("type") in ("task", "service", "dev-environment") else ""


def _skypilot(values: Values) -> str:
    resources = values.get("resources")
    return "task" if isinstance(resources, dict) and ("run" in values or "setup" in values) else ""


def _compose(values: Values) -> str:
    services = values.get("services")
    each = services.values() if isinstance(services, dict) else ()
    return "file" if any(isinstance(one, dict) and {"image", "build"} & one.keys() for one in each) else ""


def _workflow(values: Values) -> str:
    return "workflow" if isinstance(values.get("jobs"), dict) and "on" in values else ""


def _gitlab(values: Values) -> str:
    jobs = [each for each in values.values() if isinstance(each, dict) and isinstance(each.get("script"), (list, str))]
    return "pipeline" if jobs and ("stages" in values or any("stage" in each for each in jobs)) else ""


def _azure(values: Values) -> str:
    schema = values.get("$schema")
    return "job" if isinstance(schema, str) and "azureml" in schema else ""


def _determined(values: Values) -> str:
    resources = values.get("resources")
    return "experiment" if isinstance(resources, dict) and "slots_per_trial" in resources else ""


def _mosaic(values: Values) -> str:
    compute = values.get("compute")
    return "run" if isinstance(compute, dict) and isinstance(values.get("command"), str) else ""


YAML_KINDS = (
    YamlKind("a Kubernetes {0}", _kubernetes),
    YamlKind("a dstack {0}", _dstack),
    YamlKind("a Determined {0}", _determined),
    YamlKind("a SkyPilot {0}", _skypilot),
    YamlKind("a Docker Compose {0}", _compose),
    YamlKind("a {0} of GitHub Actions", _workflow),
    YamlKind("a GitLab {0}", _gitlab),
    YamlKind("an Azure ML {0}", _azure),
    YamlKind("a MosaicML {0}", _mosaic),
)
"""In the order in which they are asked: what is more special first."""
PLATFORM = re.compile(
    r"^(?:apiVersion|kind|type|services|run|setup|jobs|resources|stages|compute|\"?\$schema\"?| {1,8}stage)\s*:",
    re.MULTILINE,
)
"""A line that every file of these kinds has."""


def title_of(values: Values) -> str:
    """What a platform's file is called, such as ``a Kubernetes Job``; empty for any other file."""
    return next((kind.title.format(word) for kind in YAML_KINDS if (word := kind.word(values))), "")


MAKE, JUST, DOCKER = "a Makefile", "a justfile", "a Dockerfile"
_BUILD_FILES = {"makefile": MAKE, "gnumakefile": MAKE, "justfile": JUST, ".justfile": JUST}
_MAKE_SUFFIXES = {".mk": MAKE, ".mak": MAKE, ".just": JUST}


def build_title(path: str, text: str) -> str:
    """What a file of recipes for a shell is called; empty for any other file. Makefiles are known by their names."""
    name = os.path.basename(path).lower()
    found = _BUILD_FILES.get(name) or _MAKE_SUFFIXES.get(os.path.splitext(name)[1], "")
    if found:
        return found
    return DOCKER if is_dockerfile(text) and not name.endswith((".yaml", ".yml", ".json", ".toml", ".py")) else ""
