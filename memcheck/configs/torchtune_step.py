"""What torchtune's configs say of a step: the optimizer, recompute and offload, the loss."""

from __future__ import annotations

from memcheck.configs import torchtune_keys as keys
from memcheck.configs import trainer_parts as parts
from memcheck.configs.draft import Draft
from memcheck.configs.torchtune_keys import KEYS
from memcheck.configs.trainer_parts import RECOMPUTE, on, text
from memcheck.configs.types import KeyRow
from memcheck.edge.digits import whole_number

IMPLEMENTATION = "training.optimizer.implementation"


def optimizer(draft: Draft) -> None:
    """``optimizer._component_``, how torch's steps, and whether each tensor is stepped in backward."""
    path = f"optimizer.{keys.COMPONENT}"
    component_optimizer(draft, path, text(draft, path), "optimizer.")
    if draft.config.has("optimizer_in_bwd"):
        in_backward = on(draft, "optimizer_in_bwd")
        draft.set("training.optimizer.in_backward", in_backward, "optimizer_in_bwd")


def component_optimizer(draft: Draft, path: str, component: str, section: str, usual: str = "foreach") -> None:
    """An optimizer by the class that a config names, and how torch's steps.

    torch.optim chooses foreach where neither ``fused`` nor ``foreach`` is stated, and a loop where either is false
    (torch/optim/adamw.py). ``path``: where the class stands; ``section``: what stands before the names of its
    arguments; ``usual``: the implementation of one without them.
    """
    config = draft.config
    name = KEYS.words["optimizers"].get(component, "")
    if not name:
        message = f"the states of `{path}: {component}` have no memory model"
        help = parts.STATE_IT.format("training.optimizer")
        draft.refuse(path, message, help, ("training.optimizer.name", "training.optimizer"))
    else:
        if name == "sgd" and str(config.values.get(f"{section}momentum") or 0) not in ("0", "0.0"):
            name = "sgd-momentum"
        draft.set("training.optimizer.name", name, path)
        if component.startswith("torch.optim."):
            _implementation(draft, section, usual)
    parts.third_state(draft, f"{section}amsgrad")
    config.see(*(f"{section}{name}" for name in ("fused", "foreach", "momentum")))


def _implementation(draft: Draft, section: str, usual: str) -> None:
    config = draft.config
    for switch in ("fused", "foreach"):
        if on(draft, f"{section}{switch}"):
            draft.set(IMPLEMENTATION, switch, f"{section}{switch}")
            return
    stated = next((each for each in ("fused", "foreach") if config.has(f"{section}{each}")), "")
    if stated:
        draft.set(IMPLEMENTATION, "for-loop", f"{section}{stated}")
    elif usual == "fused":
        draft.assume(IMPLEMENTATION, usual, "the script asks torch.optim for it on a GPU")
    else:
        draft.assume(IMPLEMENTATION, usual, "neither `fused` nor `foreach`: torch.optim's own choice on a GPU")


def checkpointing(draft: Draft) -> None:
    """``enable_activation_checkpointing``, or the newer ``ac_mode`` where that is off; both together are neither."""
    config = draft.config
    mode, key = f"{RECOMPUTE}.mode", "enable_activation_checkpointing"
    enabled, kind = on(draft, key), text(draft, "ac_mode").lower()
    config.see(key, "ac_mode", "ac_option")
    if kind in ("", "none"):
        draft.set(mode, "full" if enabled else "none", key)
    elif enabled:
        draft.set(mode, "none", "ac_mode")
        draft.note("ac_mode", f"with `{key}` it turns recompute off")
        return
    elif kind == "full":
        draft.set(mode, "full", "ac_mode")
    elif kind == "selective" and whole_number(text(draft, "ac_option")) is not None:
        every = draft.whole("ac_option", RECOMPUTE) or 1
        draft.set(mode, "full", "ac_mode")
        draft.set(f"{RECOMPUTE}.every_n_layers", every, "ac_option")
    else:
        message = f"`ac_mode: {kind}` with `ac_option: {text(draft, 'ac_option')}` has no memory model here"
        draft.refuse("ac_mode", message, "state a number of layers", (RECOMPUTE, mode))
    _offloading(draft)


def _offloading(draft: Draft) -> None:
    key = "enable_activation_offloading"
    if not on(draft, key):
        draft.config.see(key)
    elif draft.value(f"{RECOMPUTE}.mode") == "full":
        draft.set(f"{RECOMPUTE}.offload", "cpu", key)
    else:
        message = f"`{key}` needs `enable_activation_checkpointing`: the recipe stops without it"
        draft.refuse(key, message, "turn both on", (RECOMPUTE,))


def loss(draft: Draft) -> None:
    """``loss._component_`` and its chunks."""
    config, path = draft.config, f"loss.{keys.COMPONENT}"
    name = text(draft, path).rpartition(".")[2]
    kind = KEYS.words["losses"].get(name, "")
    if kind:
        draft.set("training.loss.kind", kind, path)
        if kind != "standard":
            draft.rows((KeyRow(f"loss.{keys.CHUNKS}", "training.loss.chunks"),))
    elif name not in (*KEYS.words["objectives"], keys.PREFERENCES):
        written = text(draft, path)
        message = f"the loss `{written}` has no memory model here" if written else "the recipe does not say which loss"
        draft.refuse(path, message, parts.STATE_IT.format("training.loss"), ("training.loss", "training.loss.kind"))
    config.see(*(each for each in config.values if each.startswith("loss.")))
