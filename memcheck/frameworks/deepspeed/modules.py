"""The modules of a model as ZeRO-3's hooks meet them, in the order in which they run.

Read off DeepSpeed 0.19.8, runtime/zero/parameter_offload.py (``_register_deepspeed_module``: a module without
parameters has hooks, too; what is below a leaf has none) and leaf_module_config.py (``DEFAULT_LEAF_MODULE_CLASSES``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from memcheck.accounts.state import LocalTensor
from memcheck.record import Record

LEAVES = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Families whose sparse blocks are leaves by default."""

SAVED = ".modules_to_save."


class Module(Record):
    """One module. Parameters are numbers, counted over the whole model."""

    own: tuple[int, ...] = ()
    """Numbers of the parameters that the module itself holds, without its submodules."""
    under: tuple[int, ...] = ()
    """Numbers of the module's own parameters and of those in all its submodules."""
    whole: bool = False
    """A leaf: it fetches all beneath it at once."""


class ModuleUnit(Record):
    """A layer, or what precedes or follows all layers: modules that run one by one, each with its submodules."""

    layer: tuple[Module, ...]
    """The layer's own module; nothing for the ends of a model."""
    parts: tuple[tuple[Module, ...], ...]

    @property
    def forward(self) -> list[Module]:
        """In the order of the forward, without the layer's own."""
        return [module for part in self.parts for module in part]

    @property
    def backward(self) -> list[Module]:
        """In the order of the backward, the layer's own first."""
        found = [module for part in reversed(self.parts) for module in (part[0], *part[:0:-1])]
        return [*self.layer, *found]

    @property
    def under(self) -> tuple[int, ...]:
        """Numbers of all parameters of the unit."""
        return tuple(sorted({number for part in self.parts for number in part[0].under}))


def module_units(units: Sequence[Sequence[LocalTensor]], *, leaves: bool, tied: bool) -> tuple[ModuleUnit, ...]:
    """``units``: parameters in the order in which they are registered; ``leaves``: sparse blocks are; ``tied``: the
    last unit multiplies by the first parameter.
    """
    found, first = list[ModuleUnit](), 0
    alike: dict[int, list[tuple[Module, ...]]] = {}  # layers that are alike share their tensors
    for place, tensors in enumerate(units):
        if id(tensors) not in alike:
            alike[id(tensors)] = _parts(tensors, leaves)
        parts = _behind(alike[id(tensors)], first)
        first += len(tensors)
        if place in (0, len(units) - 1):
            if tied and place:
                parts.append((Module((0,), (0,)),))
            # tables of rotary embeddings are made by a module, too
            found.append(ModuleUnit((), tuple(parts) if place else (*parts, (Module(),))))
        else:
            unit = ModuleUnit((), tuple(parts))
            found.append(unit._replace(layer=(Module((), unit.under),)))
    return tuple(found)


def _behind(parts: list[tuple[Module, ...]], first: int) -> list[tuple[Module, ...]]:
    """The modules with numbers that follow those of ``first`` other parameters."""
    return [
        tuple([Module(tuple([n + first for n in m.own]), tuple([n + first for n in m.under]), m.whole) for m in part])
        for part in parts
    ]


def _parts(tensors: Sequence[LocalTensor], leaves: bool) -> list[tuple[Module, ...]]:
    """Modules by the names of their parameters: norms by themselves, linear layers within attention and an MLP."""
    above: dict[str, dict[str, list[int]]] = {}
    copied = {t.name.replace(SAVED, ".") for t in tensors if SAVED in t.name}
    for number, tensor in enumerate(tensors):
        if tensor.name in copied:  # the original of what PEFT trains a copy of does not run
            continue
        base, adapts, _ = tensor.name.partition(".lora_")
        own = base if adapts else base.rpartition(".")[0]
        above.setdefault(own.rpartition(".")[0], {}).setdefault(tensor.name if adapts else own, []).append(number)
    experts = {t.name.partition(".")[0] for t in tensors if t.expert} if leaves else set[str]()
    alone = [(Module(tuple(n), tuple(n)),) for n in above.pop("", {}).values()]
    found, leaf = list[tuple[Module, ...]](), list[int]()
    for name, inside in above.items():
        under = tuple([number for numbers in inside.values() for number in numbers])
        if name.partition(".")[0] in experts:
            leaf += under
            continue
        each = [module for own, n in inside.items() for module in _with_adapter(own, n, inside)]
        if found and len(each) > 1:
            each.insert(-1, Module())  # an activation
        found.append((Module((), under), *each))
    if leaf:
        found.append((Module((), tuple(leaf), whole=True),))
    # a norm before each
    return [part for k in range(max(len(alone), len(found))) for part in (*alone[k : k + 1], *found[k : k + 1])]


def _with_adapter(name: str, numbers: list[int], beside: Collection[str]) -> list[Module]:
    """A module; around one that is adapted is PEFT's own, and a dropout stands between it and the adapter."""
    module = Module(tuple(numbers), tuple(numbers))
    return [Module(), module, Module()] if any(other.startswith(f"{name}.lora_") for other in beside) else [module]
