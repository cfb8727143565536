"""The ends of a pipeline, which hold the embedding and the head in addition to layers, and fewer layers."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.defaults import Defaults
from memcheck.job.framework import Framework


def fewer_layers(framework: Framework, options: Mapping[str, object], defaults: Defaults) -> tuple[int, int]:
    """Layers that the first and the last stage have less than others."""
    found = []
    for end, usual in zip(("first", "last"), framework.fewer_layers, strict=True):
        name = f"pipeline_parallel_{end}_stage_less_layers"
        stated = options.get(name) if name in framework.options else usual
        counted = stated if isinstance(stated, int) else None
        found.append(defaults.take(f"training.options.{name}", counted, usual, f"default of {framework.name}"))
    return found[0], found[1]
