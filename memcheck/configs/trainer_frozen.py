"""Jobs that train some layers and freeze the rest."""

from __future__ import annotations

from memcheck.configs.draft import Draft
from memcheck.configs.trainer_parts import text
from memcheck.errors import MemcheckError
from memcheck.families.architecture import architecture_of
from memcheck.models.types import Architecture
from memcheck.plan.types import ModelSpec

KEY = "training.freeze"


def last_layers(draft: Draft, kind: str = "finetuning_type", section: str = "") -> None:
    """Read freeze tuning: the last or the first N layers train, and embedding, final norm and head are frozen.

    ``kind``: the key that asks for freeze tuning; ``section``: the prefix of the other keys' names. A negative
    ``freeze_trainable_layers`` means the first layers. Named modules, or an unknown number of layers, are refused.
    """
    path = f"{section}freeze_trainable_layers"
    count = draft.whole(path, KEY)
    count = 2 if count is None else count
    layers = layers_of(draft)
    modules, extra = (text(draft, f"{section}freeze_{which}_modules") for which in ("trainable", "extra"))
    if modules not in ("", "all") or extra or layers is None or not 0 < abs(count) <= layers:
        at = path if draft.config.has(path) else kind
        help = "state what is frozen: --set training.freeze=[embed, head, norm, layers:0-30]"
        draft.refuse(at, "which part is trained is not read from here", help, (KEY,))
        return
    frozen = f"layers:0-{layers - count}" if count > 0 else f"layers:{-count}-{layers}"
    parts = ["embed", "head", "norm", *([frozen] if abs(count) < layers else [])]
    draft.set(KEY, parts, path if draft.config.has(path) else kind)


def layers_of(draft: Draft) -> int | None:
    """How many blocks the model has, if the catalog knows it."""
    found = architecture_named(draft)
    return found.num_layers if found is not None else None


def architecture_named(draft: Draft) -> Architecture | None:
    """The model that the config names, if the catalog knows it."""
    return known_architecture(str(draft.value("model.name") or draft.value("model")))


def same_dimensions(one: Architecture, other: Architecture) -> bool:
    """Whether two models have as wide and as many layers of the same kinds."""
    return (one.hidden_size, one.blocks) == (other.hidden_size, other.blocks)


def known_architecture(name: str) -> Architecture | None:
    """The model of this name, if the catalog knows it."""
    try:
        architecture = architecture_of(ModelSpec(name=name))
    except MemcheckError:
        return None
    return architecture if isinstance(architecture, Architecture) else None
