"""The paths of a model's linear layers as transformers 5.23 names them: what PEFT matches a pattern against."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.edge.expressions import Expression, ExpressionError
from memcheck.models.parameters import block_tensors
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Architecture, Block
from memcheck.models.vision import OtherTower, Vision
from memcheck.record import Record

OUTSIDE = ("embed_audio.", "generation_")
"""Beginnings of the names of modules outside a tower that stay idle with it."""
PROJECTIONS = ("per_layer_model_projection", "altup_projections", "altup_unembed_projections")
"""Linear layers of Gemma 4 and 3n outside their decoder layers."""


class Linear(Record):
    """A linear layer."""

    part: str
    name: str
    """Path of the linear layer inside its layer or part, such as ``self_attn.q_proj``. Adapter targets are compared
    with this path.
    """
    path: str


def matching(pattern: str, layers: tuple[Linear, ...]) -> list[Linear]:
    """List the layers whose whole module path a pattern matches."""
    try:
        compiled = Expression(pattern)
        return [layer for layer in layers if compiled.fullmatch(layer.path)]
    except ExpressionError as error:
        raise ArchitectureError(f"`{pattern}` cannot be matched: {error}") from None


def linear_layers(architecture: Architecture) -> Iterator[Linear]:
    """Yield every linear layer of the model with its module path: the language model's first, then the towers'."""
    index = 0
    layers, head = architecture.paths.layers, architecture.paths.head
    if architecture.vision is not None and architecture.vision.without_model_prefix:
        layers, head = "language_model.model.layers", "language_model.lm_head"
    for block, times in architecture.blocks:
        names = [t.name.removesuffix(".weight") for t in block_tensors(block) if t.linear]
        for _ in range(times):
            for name in names:
                yield Linear("language", name, f"{layers}.{index}.{name}")
            index += 1
    if architecture.head:
        yield Linear("language", "lm_head", head)
    model_path = layers.removesuffix("layers")
    for tensor in architecture.extra_tensors:
        name = tensor.name.removesuffix(".weight").removeprefix("model.")
        if any(projection in name for projection in PROJECTIONS):
            yield Linear("language", name, model_path + name)
        elif tensor.linear:
            yield Linear("language", tensor.name.removesuffix(".weight"), tensor.name.removesuffix(".weight"))
    for tensor in (t for t in architecture.head_layer.tensors if architecture.head_layer.activation and t.linear):
        yield Linear("language", tensor.name.removesuffix(".weight"), tensor.name.removesuffix(".weight"))
    if architecture.vision is not None:
        yield from _of_tower(architecture.vision)
    for tower in architecture.others:
        yield from _of_idle(tower)
    for embedder in architecture.embedders:  # Gemma 3n's
        name = f"{embedder.name}.embedding_projection"
        yield Linear("projector", name, f"model.{name}")


def _of_tower(vision: Vision) -> Iterator[Linear]:
    """Yield the linear layers of the vision tower and its projector, with the module path of each."""
    model_root = "" if vision.without_model_prefix else "model."
    root = f"{model_root}{vision.path}." if vision.path else model_root
    index = 0
    for block, times in (*vision.blocks, *vision.idle_blocks):
        for _ in range(times):
            for name in _names(block):
                yield Linear("vision", name, f"{root}{vision.layers_path}.{index}.{name}")
            index += 1
    for tensor in (*vision.stem_tensors, *vision.middle_tensors, *vision.closing_tensors, *vision.unused_tensors):
        if tensor.linear:
            name = tensor.name.removesuffix(".weight")
            yield Linear("vision", name, root + name)
    projector_module = vision.projector_path.rpartition(".")[2]
    for tensor in vision.projector_tensors:
        if tensor.linear:
            name = tensor.name.removesuffix(".weight")
            path = model_root + name
            if "_list." in name:  # DeepStack's mergers, which are in the tower
                path = root + name
            elif vision.projector_path:
                path = f"{model_root}{vision.projector_path}.{name.removeprefix(projector_module + '.')}"
            yield Linear("projector", name, path)


def _of_idle(tower: OtherTower) -> Iterator[Linear]:
    """Yield the linear layers of a tower that is idle in the step, with the module path of each."""
    index = 0
    blocks = tower.blocks if tower.part != "language" else ()
    for block, times in blocks:
        for _ in range(times):
            for name in _names(block):
                yield Linear(tower.part, name, f"{tower.path}{tower.layers_path}.{index}.{name}")
            index += 1
    for tensor in tower.tensors:
        if tensor.linear:
            name = tensor.name.removesuffix(".weight")
            yield Linear(tower.part, name, ("model." if name.startswith(OUTSIDE) else tower.path) + name)


def _names(block: Block) -> list[str]:
    """Return the names of a layer's linear layers."""
    return [t.name.removesuffix(".weight") for t in block_tensors(block) if t.linear]
