"""What lives at a moment, by component, and the largest groups of equal tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from memcheck.accounts.estimate import TensorGroup
from memcheck.record import Record
from memcheck.verify.build.dtypes import short
from memcheck.verify.build.step import StepParts
from memcheck.verify.build.subclass import plain_tensors
from memcheck.verify.trace.account import Account, LiveStorage

TOP = 12
"""Groups that are kept."""


class Picture(Record):
    """Live bytes at one moment."""

    total: int
    components: dict[str, int]
    largest: tuple[TensorGroup, ...]


def take(account: Account, parts: StepParts) -> Picture:
    """Who owns what right now. Names of components are those of the estimate."""
    owners = _owners(parts)
    components: dict[str, int] = {}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for key, entry in list(account.live.items()):
        if not entry.block:
            continue
        name, component = owners.get(key) or _born(entry)
        components[component] = components.get(component, 0) + entry.block
        shape = f"[{', '.join(map(str, entry.shape))}] {short(entry.dtype)}"
        group = groups.setdefault((name, shape, component), [0, 0])
        group[0] += 1
        group[1] += entry.block
    rows = sorted(groups.items(), key=lambda row: -row[1][1])[:TOP]
    largest = tuple(TensorGroup(name=k[0], shape=k[1], copies=v[0], bytes=v[1], component=k[2]) for k, v in rows)
    return Picture(account.total, components, largest)


def _born(entry: LiveStorage) -> tuple[str, str]:
    """The component of a storage without an owner: autograd, an operator or a collective holds it."""
    where = f" in {generic(entry.module)}" if entry.module else ""
    name = f"{entry.operation}{where}"
    if entry.region:
        return f"{entry.operation} ({entry.region.replace('_', '-')})", "communication_buffers"
    if entry.phase in ("init", "forward"):
        return name, "activations"
    if entry.phase == "loss":
        return name, "logits_and_loss"
    if entry.recomputed:
        return f"{name}, recomputed", "activations"
    return f"{name} ({entry.phase})", "temporaries"


def generic(name: str) -> str:
    """``layers.7.mlp`` and ``layers.8.mlp`` as one."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _owners(parts: StepParts) -> dict[int, tuple[str, str]]:
    """Storage identity -> (name, component), read from the model, the optimizers and the inputs themselves."""
    found: dict[int, tuple[str, str]] = {}

    def put(tensors: object, name: str, component: str) -> None:
        for tensor in plain_tensors(tensors):
            found.setdefault(tensor.untyped_storage()._cdata, (name, component))  # noqa: SLF001

    gathered = set()
    for name, sharded in _fsdp_parameters(parts.inner):
        resting = _resting(name)
        put(getattr(sharded, "_sharded_param_data", None), name, resting)
        shard, whole = getattr(sharded, "sharded_param", None), getattr(sharded, "_unsharded_param", None)
        if shard is not None:
            put(shard, name, resting)
            put(shard.grad, f"{name}.grad", "gradients")
        if whole is not None:
            gathered.add(id(whole))
            put(whole.grad, f"{name}.grad (unsharded)", "gradients")
        put(getattr(sharded, "unsharded_accumulated_grad", None), f"{name}.grad (unsharded)", "gradients")
        put(getattr(sharded, "all_gather_outputs", None), f"{name} (gathered)", "communication_buffers")
        put(whole, f"{name} (gathered)", "communication_buffers")
    for name, parameter in parts.inner.named_parameters():
        name = generic(name)
        unsharded = id(parameter) in gathered
        put(parameter, name, "communication_buffers" if unsharded else _resting(name))
        put(parameter.grad, f"{name}.grad", "gradients")
    for optimizer in parts.optimizers:
        for inner in (optimizer, getattr(optimizer, "optim", None)):
            for states in inner.state.values() if inner is not None else ():
                for kind, value in states.items():
                    put(value, f"optimizer's {kind}", "optimizer_states")
    put(parts.received(), "pipeline receive buffers", "communication_buffers")
    put(parts.inputs, parts.brought, "activations")
    for name, buffer in parts.inner.named_buffers():
        put(buffer, generic(name), "activations")
    return found


def _resting(name: str) -> str:
    return "adapters" if "lora_" in name else "parameters"


def _fsdp_parameters(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """FSDP2's own records of its parameters."""
    names = {id(m): n for n, m in model.named_modules()}
    for module in model.modules():
        get = getattr(module, "_get_fsdp_state", None)
        if get is None:
            continue
        state = get()
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            for sharded in group.fsdp_params if group is not None else ():
                info = sharded._module_info  # noqa: SLF001
                owner = names.get(id(info.module), "")
                yield generic(f"{owner}.{info.param_name}".lstrip(".")), sharded


def resting_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Shards that FSDP2 holds in addition to the module's own parameters."""
    found = []
    for _, sharded in _fsdp_parameters(model):
        found += [sharded.sharded_param, getattr(sharded, "_sharded_param_data", None)]
    return [t for t in found if t is not None]
