"""Which parameters ZeRO-3 has gathered at once: a model's modules, and the coordinator replayed over one step.

Read off DeepSpeed 0.19.8, runtime/zero/parameter_offload.py (``_register_deepspeed_module``: a module without
parameters has hooks, too; what is below a leaf has none) and leaf_module_config.py (``DEFAULT_LEAF_MODULE_CLASSES``).

Read off DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (``_fetch_sub_module_impl``,
``__params_to_release``) and partition_parameters.py (``_all_gather_dtype``, ``AllGatherCoalescedHandle.wait``: several
parameters come in one flat buffer, out of which all are copied when the first is used, and which stays until the last
is; one comes by itself; ``NoGatherHandle``: a single rank gathers nothing).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate, chain, zip_longest
from math import inf

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.tensor import round_up
from memcheck.record import Record

LEAVES = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Families whose sparse blocks are leaves by default."""

PEFT_WRAPPERS = 2
"""Modules that PEFT puts around the model: PeftModel and its LoraModel."""

SAVED = ".modules_to_save."
"""In the name of a parameter of PEFT's trained copy of a module (``modules_to_save``)."""


class Module(Record):
    """One ``nn.Module``, by the numbers of its parameters, which are counted over the whole model."""

    own_parameters: tuple[int, ...] = ()
    """Numbers of the parameters that the module itself holds, without its submodules."""
    all_parameters: tuple[int, ...] = ()
    """Numbers of the module's own parameters and of those in all its submodules."""
    is_leaf: bool = False
    """Whether the module is a leaf of ZeRO-3 (``set_z3_leaf_modules``), which gathers all its submodules at once."""


class ModuleUnit(Record):
    """A layer, or what precedes or follows all layers: modules that run one by one, each with its submodules."""

    layer: tuple[Module, ...]
    """The layer's own module; nothing for the ends of a model."""
    parts: tuple[tuple[Module, ...], ...]
    """The modules that run one after the other, each with the submodules that it calls."""

    @property
    def forward(self) -> list[Module]:
        """The modules in the order of the forward, without the layer's own module."""
        return [module for part in self.parts for module in part]

    @property
    def backward(self) -> list[Module]:
        """List the modules in the order of the backward, the layer's own module first.

        Parts are reversed. Within a part the parent comes first, then its submodules in reverse order.
        """
        modules = list(self.layer)
        for part in reversed(self.parts):
            modules += (part[0], *part[:0:-1])
        return modules

    @property
    def all_parameters(self) -> tuple[int, ...]:
        """Numbers of all parameters of the unit."""
        return tuple(sorted({number for part in self.parts for number in part[0].all_parameters}))


def module_units(units: Sequence[Sequence[LocalTensor]], *, leaves: bool, tied: bool) -> tuple[ModuleUnit, ...]:
    """Return the modules of a model, unit by unit, derived from the names of its parameters.

    ``units``: parameters in the order in which they are registered. ``leaves``: MoE blocks are leaf modules of ZeRO-3.
    ``tied``: the head multiplies by the embedding, which is the first parameter.
    """
    result, first_number = list[ModuleUnit](), 0
    parts_by_tensors: dict[int, list[tuple[Module, ...]]] = {}  # layers that are alike share their tensors
    for index, tensors in enumerate(units):
        if id(tensors) not in parts_by_tensors:
            parts_by_tensors[id(tensors)] = _parts(tensors, leaves)
        numbered_parts = _numbered_from(parts_by_tensors[id(tensors)], first_number)
        first_number += len(tensors)
        if index in (0, len(units) - 1):
            if tied and index:
                numbered_parts.append((Module((0,), (0,)),))
            # the module of rotary embeddings has no parameters
            result.append(ModuleUnit((), tuple(numbered_parts) if index else (*numbered_parts, (Module(),))))
        else:
            unit = ModuleUnit((), tuple(numbered_parts))
            result.append(unit._replace(layer=(Module((), unit.all_parameters),)))
    return tuple(result)


def _numbered_from(parts: list[tuple[Module, ...]], first: int) -> list[tuple[Module, ...]]:
    """Return the modules with ``first`` added to the numbers of their parameters.

    ``parts``: as :func:`_parts` returns them.
    """

    def renumbered(module: Module) -> Module:
        own_parameters = tuple([number + first for number in module.own_parameters])
        all_parameters = tuple([number + first for number in module.all_parameters])
        return Module(own_parameters, all_parameters, module.is_leaf)

    return [tuple([renumbered(module) for module in part]) for part in parts]


def _parts(tensors: Sequence[LocalTensor], leaves: bool) -> list[tuple[Module, ...]]:
    """Group the parameters of a layer into modules by their names.

    Returns parts in forward order: norms alone, and attention or MLP with their linear layers as submodules. Each part
    is its parent module followed by its submodules.
    """
    numbers_by_parent: dict[str, dict[str, list[int]]] = {}  # name of the parent, then of the module
    replaced = {t.name.replace(SAVED, ".") for t in tensors if SAVED in t.name}
    for number, tensor in enumerate(tensors):
        if tensor.name in replaced:  # PEFT trains a copy of this module, and the original does not run
            continue
        base, is_adapter, _ = tensor.name.partition(".lora_")
        layer_name = base if is_adapter else base.rpartition(".")[0]
        module_name = tensor.name if is_adapter else layer_name  # an adapter's matrices are modules of their own
        siblings = numbers_by_parent.setdefault(layer_name.rpartition(".")[0], {})
        siblings.setdefault(module_name, []).append(number)
    leaf_names = {t.name.partition(".")[0] for t in tensors if t.expert} if leaves else set[str]()
    norms = [(Module(tuple(numbers), tuple(numbers)),) for numbers in numbers_by_parent.pop("", {}).values()]
    blocks, leaf_numbers = list[tuple[Module, ...]](), list[int]()
    for parent, numbers_by_module in numbers_by_parent.items():
        all_parameters = tuple(chain.from_iterable(numbers_by_module.values()))
        if parent.partition(".")[0] in leaf_names:
            leaf_numbers += all_parameters
            continue
        submodules: list[Module] = []
        for module_name, own_parameters in numbers_by_module.items():
            submodules += _with_adapter(module_name, own_parameters, numbers_by_module)
        if blocks and len(submodules) > 1:
            submodules.insert(-1, Module())  # an activation
        blocks.append((Module((), all_parameters), *submodules))
    if leaf_numbers:
        blocks.append((Module((), tuple(leaf_numbers), is_leaf=True),))
    parts: list[tuple[Module, ...]] = []
    for norm, block in zip_longest(norms, blocks):  # a norm before each block
        parts += [part for part in (norm, block) if part is not None]
    return parts


def _with_adapter(name: str, numbers: list[int], siblings: Collection[str]) -> list[Module]:
    """Return the modules that run for one linear layer; PEFT's wrapper and dropout, which have no parameters, too.

    ``name``: the layer's name. ``numbers``: its parameters. ``siblings``: names of all modules and parameters of its
    parent.
    """
    module = Module(tuple(numbers), tuple(numbers))
    has_adapter = any(sibling.startswith(f"{name}.lora_") for sibling in siblings)
    return [Module(), module, Module()] if has_adapter else [module]


class GatheredWeight(Record):
    """One parameter, as ZeRO-3's coordinator sees it."""

    numel: int
    is_never_released: bool
    """Whether the engine never releases the gathered parameter (``stage3_param_persistence_threshold``)."""
    autograd_saves_view: bool
    """Autograd saves a view of it in forward: its storage lives until its backward, gathered again or not."""


class GatherLimits(Record):
    """The options of ZeRO-3 that limit how much is gathered; sizes are elements."""

    ranks: int
    """Ranks that each parameter is divided over."""
    prefetch_elements: int
    """``stage3_prefetch_bucket_size``: elements that are gathered before their module runs."""
    max_live_elements: int
    """``stage3_max_live_parameters``: gathered elements above which nothing is prefetched."""
    max_reuse_elements: int
    """``stage3_max_reuse_distance``: a parameter that is used again within so many elements is not released."""
    gathers_one_by_one: bool
    """``stage3_allgather_sequential``: each parameter is gathered on its own, without a flat buffer."""


class GatheredMost(Record):
    """The most elements of gathered parameters and their flat buffers that are alive at once, in each phase."""

    forward: int = 0
    """In the forward, until the last module has gathered its parameters."""
    head: int = 0
    """While the last module runs, forward and backward."""
    backward: int = 0
    """Gathered in the backward, after that of the last unit."""
    end: int = 0
    """Gathered in the first unit's backward, and after it."""


STACKED = 3
"""Dimensions of the matrices of all experts."""


def persists(numels: Sequence[int], threshold: int, limit: int | None) -> list[bool]:
    """Return, for each parameter, whether ZeRO-3 never releases it after its first gathering.

    ``numels``: elements of each parameter. Those of at most ``threshold`` elements persist, up to ``limit`` elements in
    total, or any number if it is None.
    """
    persistent, total = list[bool](), 0
    for numel in numels:
        persistent.append(numel <= threshold and (limit is None or total + numel <= limit))
        if persistent[-1]:
            total += numel
    return persistent


UnitRuns = tuple[tuple[tuple[LocalTensor, ...], int], ...]
"""The parameters of equal consecutive units, and how many such units there are."""


def _weights(
    runs: UnitRuns, persisting: tuple[int, int | None], *, recomputes: bool
) -> tuple[list[tuple[LocalTensor, ...]], list[GatheredWeight]]:
    """Return the parameters of each unit, and all of them as the coordinator sees them. Parameters: see
    :func:`most_gathered`.
    """
    units = list(chain.from_iterable([unit] * times for unit, times in runs))
    tensors = list(chain.from_iterable(units))
    weights = [
        GatheredWeight(
            t.numel, is_persistent, autograd_saves_view=t.expert and len(t.shape) == STACKED and not recomputes
        )
        for t, is_persistent in zip(tensors, persists([t.numel for t in tensors], *persisting), strict=True)
    ]
    return units, weights


@lru_cache(maxsize=64)
def most_gathered(
    runs: UnitRuns,
    persisting: tuple[int, int | None],
    limits: GatherLimits,
    *,
    leaves: bool,
    tied: bool,
    recomputes: bool,
    wrappers: int,
) -> GatheredMost:
    """Return the most elements that ZeRO-3 has gathered at once in each phase of a step.

    ``runs``: the parameters of equal consecutive units, and how many units there are. ``persisting``: the arguments of
    :func:`persists`. ``recomputes``: layers are checkpointed, so that autograd saves no view of stacked experts.
    ``leaves``, ``tied``: see :func:`module_units`. ``wrappers``: modules that PEFT puts around the model.
    """
    units, weights = _weights(runs, persisting, recomputes=recomputes)
    trained_units = [index for index, unit in enumerate(units) if any(t.trained for t in unit)]
    # units before the first trained one have no backward, unless they are recomputed: their input may be a trained leaf
    first_backward = 0 if recomputes or not trained_units else trained_units[0]
    modules = module_units(units, leaves=leaves, tied=tied)
    return gathered(weights, modules, limits, recompute=recomputes, without_backward=first_backward, wrappers=wrappers)


def gathered(
    weights: Sequence[GatheredWeight],
    units: Sequence[ModuleUnit],
    limits: GatherLimits,
    *,
    recompute: bool,
    without_backward: int = 0,
    wrappers: int = 0,
) -> GatheredMost:
    """Replay the fetches and releases of one forward and backward, and return the most elements alive in each phase.

    ``weights``: all parameters of the model. ``units``: modules in forward order. ``recompute``: units between the ends
    run twice. ``without_backward``: the number of first units without a backward, since nothing in them or before them
    is trained. ``wrappers``: the number of modules that PEFT puts around the model. Modules without parameters, such as
    the model or a layer, prefetch as well.
    """
    outer, body = _outer(weights, units, wrappers)
    forward = _forward(outer, body, units)
    uses, before_first_unit = _backward_uses(units[without_backward:], recompute=recompute)
    backward = [*(ModuleUse(module, True) for module in outer), *uses[:1], ModuleUse(body, True), *uses[1:]]
    coordinator = _Coordinator(weights, [*forward, *(use.module for use in backward)], limits)
    most = dict.fromkeys(GatheredMost._fields, 0)
    for index, module in enumerate(forward):
        while_gathering, while_running = coordinator.step(module, forward=True, last=False)
        most["forward"] = max(most["forward"], while_gathering)
        phase = "head" if index == len(forward) - 1 else "forward"
        most[phase] = max(most[phase], while_running)
    for index, use in enumerate(backward):
        # an embedding's input has no gradient, so that no hook runs after its backward
        is_end = index > before_first_unit + len(outer) and not without_backward
        highest = max(coordinator.step(use.module, forward=False, last=use.is_last_use, keeps=is_end))
        phase = "end" if is_end else "backward"
        if index <= len(outer):
            phase = "head"
        most[phase] = max(most[phase], highest)
    most["end"] = max(most["end"], coordinator.live)
    return GatheredMost(**most)


@lru_cache(maxsize=64)
def most_without_backward(
    runs: UnitRuns, persisting: tuple[int, int | None], limits: GatherLimits, *, leaves: bool, tied: bool
) -> tuple[int, int, int]:
    """Return the most elements gathered at once in a pass that no backward follows: around its layers, in them, in its
    head.

    The pass before had the same order, so that parameters are prefetched. Parameters: see :func:`most_gathered`.
    """
    tensors, weights = _weights(runs, persisting, recomputes=True)
    units = module_units(tensors, leaves=leaves, tied=tied)
    first, last = ([*unit.layer, *unit.forward] for unit in (units[0], units[-1]))
    outer, body = _outer(weights, units, 0)
    forward = _forward(outer, body, units)
    coordinator = _Coordinator(weights, forward, limits)
    found = [coordinator.step(module, forward=True, last=False) for module in forward]
    start, end = len(outer) + 1 + len(first), len(forward) - len(last)
    around = max(gathering for gathering, _ in (*found[:start], *found[end:]))
    return around, max((gathering for gathering, _ in found[start:end]), default=0), found[-1][1]


def _outer(
    weights: Sequence[GatheredWeight], units: Sequence[ModuleUnit], wrappers: int
) -> tuple[list[Module], Module]:
    """Return the modules around a model: PEFT's ``wrappers`` with the model itself, and its body without the head."""
    body = Module((), tuple(sorted(set(chain.from_iterable(unit.all_parameters for unit in units[:-1])))))
    return (1 + wrappers) * [Module((), tuple(range(len(weights))))], body


def _forward(outer: Sequence[Module], body: Module, units: Sequence[ModuleUnit]) -> list[Module]:
    """List the modules in the order of the forward."""
    return [*outer, body, *chain.from_iterable((*unit.layer, *unit.forward) for unit in units)]


class ModuleUse(Record):
    """A module that runs while backward does: its own backward, or its forward in a recompute."""

    module: Module
    is_last_use: bool
    """The step uses the module's parameters no more after it."""


def _backward_uses(units: Sequence[ModuleUnit], *, recompute: bool) -> tuple[list[ModuleUse], int]:
    """List the modules in the order of the backward, and say how many come before those of the first unit.

    ``units``: in forward order. ``recompute``: a layer runs again when the backward of its last module unpacks the
    first saved tensor.
    """
    uses, before_first_unit = list[ModuleUse](), 0
    for unit in reversed(units):
        before_first_unit = len(uses)
        unit_uses = [ModuleUse(module, True) for module in unit.backward]
        if recompute and unit.layer and unit.parts:
            recomputed_at = min(len(unit_uses), 1 + min(2, len(unit.parts[-1])))
            unit_uses[recomputed_at:recomputed_at] = [ModuleUse(module, False) for module in unit.forward]
        uses += unit_uses
    return uses, before_first_unit


class _Coordinator:
    """Replays ``PartitionedParameterCoordinator``: gathers, prefetches and releases the parameters of one step.

    ``live``: elements of gathered parameters and flat buffers that are alive now.
    """

    def __init__(self, weights: Sequence[GatheredWeight], steps: Sequence[Module], limits: GatherLimits) -> None:
        """Prepare a replay of ``steps``, the modules in the order of one forward and backward.

        ``weights``: the model's parameters, by their numbers.
        """
        self.limits = limits
        self._persists = [weight.is_never_released for weight in weights]
        self._kept = [weight.autograd_saves_view for weight in weights]
        self._numels = [weight.numel for weight in weights]
        self._padded = [round_up(n, limits.ranks) for n in self._numels]
        """Elements of each gathered parameter with the padding that makes the ranks' shards equal."""
        self.live = self._most = 0
        self._available = 0
        """Elements that DeepSpeed counts as gathered, without flat buffers (``__n_available_params``)."""
        self._step = self._next = 0
        """The number of the running step, and of the next entry of ``_queue``."""
        self._gathered, self._in_flight = set[int](), dict[int, list[int]]()
        """Parameters that are gathered, and those whose all-gather runs, each with all parameters in the same flat
        buffer."""
        self._copied_out, self._saved_views = set[int](), dict[int, int]()
        """Parameters that are copied out of their flat buffer before their first use. Then elements of released
        parameters that autograd's saved views keep alive."""
        self._queue: list[tuple[int, int]] = []
        """The trace by which parameters are prefetched: the number of each parameter, and the step that reads it."""
        for step, module in enumerate(steps):
            self._queue += [(number, step) for number in sorted(_fetched(module))]
        self._fetched_for = dict.fromkeys(range(len(weights)), -1)
        """The latest step that each parameter has been gathered for."""
        numels = self._numels
        self._reuse = self._leaf_reuse = _Reuse([module.own_parameters for module in steps], numels)
        if any(module.is_leaf for module in steps):
            self._leaf_reuse = _Reuse([module.all_parameters for module in steps], numels)

    def step(self, module: Module, *, forward: bool, last: bool, keeps: bool = False) -> tuple[int, int]:
        """Run one module: gather its parameters, prefetch later ones, then release those that are not used soon.

        Returns the most elements alive while it gathers, and those alive while it runs. ``last``: this is the
        parameters' last use in the backward. ``keeps``: nothing is released afterwards, as no hook runs after this
        backward.
        """
        self._most, numbers = self.live, _fetched(module)
        if not numbers:
            self._prefetch()
            self._step += 1
            return self._most, self.live
        missing = [number for number in numbers if self._is_missing(number)]
        if missing:
            self._gather(missing)
        for number in numbers:
            if number in self._in_flight:
                self._wait(number)
        self._advance_queue(numbers)
        self._prefetch()
        self._step += 1
        while_running, max_reuse = self.live, self._leaf_reuse if module.is_leaf else self._reuse
        for number in numbers:
            if not keeps and number in self._gathered and self._is_released(number, max_reuse):
                self._release(number, is_saved=forward and self._kept[number])
            if last and self._saved_views:
                self.live -= self._saved_views.pop(number, 0)
        return self._most, while_running

    def _advance_queue(self, numbers: Sequence[int]) -> None:
        """Skip the entries of the prefetch queue up to those of the parameters that the running step has fetched."""
        not_passed = {number for number in numbers if self._fetched_for[number] < self._step}
        while not_passed and self._next < len(self._queue):
            number, step = self._queue[self._next]
            self._fetched_for[number] = step
            not_passed.discard(number)
            self._next += 1

    def _is_missing(self, number: int) -> bool:
        """Whether a parameter has to be gathered: it is neither on the GPU nor on its way."""
        return not (self._persists[number] or number in self._gathered or number in self._in_flight)

    def _gather(self, numbers: list[int]) -> None:
        """Start to gather parameters, several of them into one flat buffer unless they are gathered one by one."""
        self._available += sum([self._numels[number] for number in numbers])
        self.live += sum([self._padded[number] for number in numbers])
        together = len(numbers) > 1 and not self.limits.gathers_one_by_one
        for number in numbers:
            self._in_flight[number] = numbers if together else [number]
        self._most = max(self._most, self.live)

    def _wait(self, number: int) -> None:
        """Wait for the gathering of a parameter. Its first use copies all parameters out of their flat buffer.

        The flat buffer is freed once the last parameter in it has been used.
        """
        gathered_together = self._in_flight.pop(number)
        self._gathered.add(number)
        if len(gathered_together) == 1 and number not in self._copied_out:
            return
        if number not in self._copied_out:
            self.live += sum([self._numels[member] for member in gathered_together])
            self._copied_out.update(gathered_together)
            self._most = max(self._most, self.live)
        self._copied_out.discard(number)
        if self._copied_out.isdisjoint(gathered_together):
            self.live -= sum([self._padded[member] for member in gathered_together])

    def _prefetch(self) -> None:
        """Gather parameters of later modules, up to ``stage3_prefetch_bucket_size`` elements."""
        limit = min(self.limits.max_live_elements - self._available, self.limits.prefetch_elements)
        if limit <= 0 or self._next == len(self._queue):
            return
        numbers, count = list[int](), 0
        while count < limit and self._next < len(self._queue):
            number, step = self._queue[self._next]
            self._next += 1
            self._fetched_for[number] = max(self._fetched_for[number], step)
            if self._is_missing(number) and number not in numbers:
                numbers.append(number)
                count += self._numels[number]
        if numbers:
            self._gather(numbers)

    def _is_released(self, number: int, max_reuse: _Reuse) -> bool:
        """Return whether a gathered parameter is released after its use.

        It stays if it persists, was prefetched for a later module, or is used again within
        ``stage3_max_reuse_distance``.
        """
        if self._persists[number] or self._fetched_for[number] > self._step:
            return False
        return max_reuse.distance(number, self._step) >= self.limits.max_reuse_elements

    def _release(self, number: int, *, is_saved: bool) -> None:
        """Release a gathered parameter. Its storage stays alive if ``is_saved``: autograd keeps a view of it."""
        self._gathered.discard(number)
        self._available -= self._numels[number]
        if is_saved:
            self._saved_views[number] = self._saved_views.get(number, 0) + self._numels[number]
        else:
            self.live -= self._numels[number]


class _Reuse:
    """The distance to the next use of each parameter, in elements of the parameters that are used until then."""

    def __init__(self, steps: Sequence[tuple[int, ...]], numels: Sequence[int]) -> None:
        """Index the uses of each parameter.

        ``steps``: numbers of the parameters that each step uses. ``numels``: elements of each parameter.
        """
        self._uses: dict[int, list[int]] = {}
        for step in range(len(steps) - 1, -1, -1):
            for number in steps[step]:
                self._uses.setdefault(number, []).append(step)
        self._before = [0, *accumulate(sum([numels[number] for number in numbers]) for numbers in steps)]
        """Elements of the modules before each step."""

    def distance(self, number: int, step: int) -> float:
        """Return the elements between a step and the next use; infinite without one."""
        uses = self._uses[number]
        while uses and uses[-1] < step:
            uses.pop()
        return self._before[uses[-1]] - self._before[step] if uses else inf


def _fetched(module: Module) -> tuple[int, ...]:
    """Return the numbers of the parameters that a module gathers when it runs: a leaf's include its submodules'."""
    return module.all_parameters if module.is_leaf else module.own_parameters
