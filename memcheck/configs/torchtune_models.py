"""torchtune's model builders, and the catalog's models that they build.

Source: ``torchtune/models/*/_model_builders.py`` at bd2a0fc7c.
"""

from __future__ import annotations

from memcheck.configs.torchtune_keys import KEYS
from memcheck.record import Record

MODELS = "torchtune.models."


class Builder(Record):
    """One ``model._component_``."""

    name: str
    """The name of the builder function in torchtune."""
    model: str
    """The catalog's model; empty for a builder of any size, and for one that is not known."""
    adapter: str = ""
    """``lora`` | ``qlora``; empty: the whole model is trained."""
    general: bool = False
    other: str = ""
    """What the builder makes instead of a text decoder; empty for a text decoder."""


def builder_of(component: str) -> Builder:
    """What a component of torchtune builds."""
    path = component.removeprefix(MODELS)
    folder, _, name = path.rpartition(".")
    adapter = next((each for each in ("qlora", "lora") if name.startswith(f"{each}_")), "")
    plain = name.removeprefix(f"{adapter}_") if adapter else name
    if not component.startswith("torchtune."):
        return Builder(name, "", adapter)
    other = next((what for part, what in KEYS.words["others"].items() if part in path), "")
    general = f"{folder}.{plain}" in KEYS.names["general"]
    model = KEYS.words["catalog"].get(plain.removesuffix("_base").removesuffix("_instruct"), "")
    return Builder(name=name, model=model, adapter=adapter, general=general, other=other)


def default_width(hidden: int) -> int:
    """Llama 2's ``scale_hidden_dim_for_mlp``: two thirds of four times the width, up to a multiple of 256."""
    return -(-4 * int(2 * hidden / 3) // 256) * 256
