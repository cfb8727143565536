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
from itertools import accumulate
from math import inf

from memcheck.accounts.state import LocalTensor
from memcheck.record import Record

LEAVES = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Families whose sparse blocks are leaves by default."""

SAVED = ".modules_to_save."


class Module(Record):
    """One ``nn.Module``, by the numbers of its parameters, which are counted over the whole model."""

    own: tuple[int, ...] = ()
    """Numbers of the parameters that the module itself holds, without its submodules."""
    under: tuple[int, ...] = ()
    """Numbers of the module's own parameters and of those in all its submodules."""
    whole: bool = False
    """Whether the module is a leaf of ZeRO-3 (``set_z3_leaf_modules``), which gathers all its submodules at once."""


class ModuleUnit(Record):
    """A layer, or what precedes or follows all layers: modules that run one by one, each with its submodules."""

    layer: tuple[Module, ...]
    """The layer's own module; nothing for the ends of a model."""
    parts: tuple[tuple[Module, ...], ...]

    @property
    def forward(self) -> list[Module]:
        """The modules in the order of the forward, without the layer's own module."""
        return [module for part in self.parts for module in part]

    @property
    def backward(self) -> list[Module]:
        """The modules in the order of the backward, the layer's own module first.

        Parts are reversed. Within a part the parent comes first, then its submodules in reverse order.
        """
        modules = [module for part in reversed(self.parts) for module in (part[0], *part[:0:-1])]
        return [*self.layer, *modules]

    @property
    def under(self) -> tuple[int, ...]:
        """Numbers of all parameters of the unit."""
        return tuple(sorted({number for part in self.parts for number in part[0].under}))


def module_units(units: Sequence[Sequence[LocalTensor]], *, leaves: bool, tied: bool) -> tuple[ModuleUnit, ...]:
    """Return the modules of a model, unit by unit, derived from the names of its parameters.

    ``units``: parameters in the order in which they are registered. ``leaves``: MoE blocks are leaf modules of ZeRO-3.
    ``tied``: the head multiplies by the embedding, which is the first parameter.
    """
    found, first = list[ModuleUnit](), 0
    alike: dict[int, list[tuple[Module, ...]]] = {}  # layers that are alike share their tensors
    for place, tensors in enumerate(units):
        if id(tensors) not in alike:
            alike[id(tensors)] = _parts(tensors, leaves)
        parts = _numbered_from(alike[id(tensors)], first)
        first += len(tensors)
        if place in (0, len(units) - 1):
            if tied and place:
                parts.append((Module((0,), (0,)),))
            # the module of rotary embeddings has no parameters
            found.append(ModuleUnit((), tuple(parts) if place else (*parts, (Module(),))))
        else:
            unit = ModuleUnit((), tuple(parts))
            found.append(unit._replace(layer=(Module((), unit.under),)))
    return tuple(found)


def _numbered_from(parts: list[tuple[Module, ...]], first: int) -> list[tuple[Module, ...]]:
    """Return the modules with their parameters numbered from ``first`` on."""
    return [
        tuple([Module(tuple([n + first for n in m.own]), tuple([n + first for n in m.under]), m.whole) for m in part])
        for part in parts
    ]


def _parts(tensors: Sequence[LocalTensor], leaves: bool) -> list[tuple[Module, ...]]:
    """Group the parameters of a layer into modules by their names.

    Returns parts in forward order: norms alone, and attention or MLP with their linear layers as submodules. Each part
    is its parent module followed by its submodules.
    """
    by_parent: dict[str, dict[str, list[int]]] = {}
    copied = {t.name.replace(SAVED, ".") for t in tensors if SAVED in t.name}
    for number, tensor in enumerate(tensors):
        if tensor.name in copied:  # PEFT trains a copy of this module, and the original does not run
            continue
        base, adapts, _ = tensor.name.partition(".lora_")
        own = base if adapts else base.rpartition(".")[0]
        by_parent.setdefault(own.rpartition(".")[0], {}).setdefault(tensor.name if adapts else own, []).append(number)
    experts = {t.name.partition(".")[0] for t in tensors if t.expert} if leaves else set[str]()
    norms = [(Module(tuple(n), tuple(n)),) for n in by_parent.pop("", {}).values()]
    found, leaf = list[tuple[Module, ...]](), list[int]()
    for name, inside in by_parent.items():
        under = tuple([number for numbers in inside.values() for number in numbers])
        if name.partition(".")[0] in experts:
            leaf += under
            continue
        submodules = [module for own, n in inside.items() for module in _with_adapter(own, n, inside)]
        if found and len(submodules) > 1:
            submodules.insert(-1, Module())  # an activation
        found.append((Module((), under), *submodules))
    if leaf:
        found.append((Module((), tuple(leaf), whole=True),))
    # a norm before each
    return [part for k in range(max(len(norms), len(found))) for part in (*norms[k : k + 1], *found[k : k + 1])]


def _with_adapter(name: str, numbers: list[int], siblings: Collection[str]) -> list[Module]:
    """Return the module of a linear layer; if it has an adapter, with PEFT's wrapper before and its dropout after."""
    module = Module(tuple(numbers), tuple(numbers))
    return [Module(), module, Module()] if any(other.startswith(f"{name}.lora_") for other in siblings) else [module]


class GatheredWeight(Record):
    """One parameter, as ZeRO-3's coordinator sees it."""

    numel: int
    persists: bool
    """Whether the engine never releases the gathered parameter (``stage3_param_persistence_threshold``)."""
    is_kept: bool
    """Autograd saves a view of it in forward: its storage lives until its backward, gathered again or not."""


class GatherLimits(Record):
    """The options of ZeRO-3 that limit how much is gathered; sizes are elements."""

    ways: int
    """Ranks that each parameter is divided over."""
    ahead: int
    """``stage3_prefetch_bucket_size``"""
    live: int
    """``stage3_max_live_parameters``"""
    reuse: int
    """``stage3_max_reuse_distance``"""
    one_by_one: bool
    """``stage3_allgather_sequential``"""


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


def persists(every: Sequence[int], threshold: int, most: int | None) -> list[bool]:
    """Return, for each parameter, whether ZeRO-3 never releases it after its first gathering.

    ``every``: elements of each parameter. Those of at most ``threshold`` elements persist, up to ``most`` in total.
    """
    stays, total = list[bool](), 0
    for n in every:
        stays.append(n <= threshold and (most is None or total + n <= most))
        total += n if stays[-1] else 0
    return stays


@lru_cache(maxsize=64)
def most_gathered(
    runs: tuple[tuple[tuple[LocalTensor, ...], int], ...],
    persisting: tuple[int, int | None],
    limits: GatherLimits,
    *,
    leaves: bool,
    tied: bool,
    recomputes: bool,
    around: int,
) -> GatheredMost:
    """Return the most elements that ZeRO-3 has gathered at once in each phase of a step.

    ``runs``: the parameters of equal consecutive units, and how many units there are. ``persisting``: the arguments of
    :func:`persists`. ``recomputes``: layers are checkpointed, so that autograd saves no view of stacked experts.
    ``leaves``, ``tied``: see :func:`module_units`. ``around``: modules that PEFT puts around the model.
    """
    units = [unit for unit, times in runs for _ in range(times)]
    tensors = [t for unit in units for t in unit]
    stays = persists([t.numel for t in tensors], *persisting)
    kept = [t.expert and len(t.shape) == STACKED and not recomputes for t in tensors]
    weights = [GatheredWeight(t.numel, stay, keep) for t, stay, keep in zip(tensors, stays, kept, strict=True)]
    trained = [number for number, unit in enumerate(units) if any(t.trained for t in unit)]
    idle = 0 if recomputes or not trained else trained[0]  # the input of recomputed layers may be a trained leaf
    modules = module_units(units, leaves=leaves, tied=tied)
    return gathered(weights, modules, limits, recompute=recomputes, idle=idle, around=around)


def gathered(
    weights: Sequence[GatheredWeight],
    units: Sequence[ModuleUnit],
    limits: GatherLimits,
    *,
    recompute: bool,
    idle: int = 0,
    around: int = 0,
) -> GatheredMost:
    """Replay the fetches and releases of one forward and backward, and return the most elements alive in each phase.

    ``units``: modules in forward order. ``recompute``: units between the ends run twice. ``idle``: the number of first
    units without a backward. ``around``: the number of modules that PEFT puts around the model. Modules without
    parameters, such as the model or a layer, prefetch as well.
    """
    every = tuple(range(len(weights)))
    model, body = Module((), every), Module((), tuple(sorted({n for unit in units[:-1] for n in unit.under})))
    forward = [*(1 + around) * [model], body, *(module for unit in units for module in (*unit.layer, *unit.forward))]
    backward, ended = list[tuple[Module, bool]](), 0
    for number in range(len(units) - 1, idle - 1, -1):
        ended = len(backward)
        steps = [(module, True) for module in units[number].backward]
        if recompute and units[number].layer and units[number].parts:
            # the layer runs again when the backward of its last module unpacks the first saved tensor
            recomputed_at = min(len(steps), 1 + min(2, len(units[number].parts[-1])))
            steps[recomputed_at:recomputed_at] = [(module, False) for module in units[number].forward]
        backward += steps
    outer = (1 + around) * [(model, True)]
    backward = [*outer, *backward[:1], (body, True), *backward[1:]]
    coordinator = _Coordinator(weights, [*forward, *(module for module, _ in backward)], limits)
    most = [0, 0, 0, 0]
    for number, module in enumerate(forward):
        fetching, runs = coordinator.step(module, forward=True, last=False)
        most[0] = max(most[0], fetching)
        phase = int(number == len(forward) - 1)
        most[phase] = max(most[phase], runs)
    for number, (module, last) in enumerate(backward):
        # what looks up rows has no input with a gradient, and so no hook after its backward
        ends = number > ended + len(outer) and not idle
        highest = max(coordinator.step(module, forward=False, last=last, stays=ends))
        phase = 1 if number <= len(outer) else 3 if ends else 2
        most[phase] = max(most[phase], highest)
    most[3] = max(most[3], coordinator.live)
    return GatheredMost(*most)


class _Coordinator:
    """Replays ``PartitionedParameterCoordinator``: gathers, prefetches and releases the parameters of one step.

    ``live``: elements of gathered parameters and flat buffers that are alive now.
    """

    def __init__(self, weights: Sequence[GatheredWeight], steps: Sequence[Module], limits: GatherLimits) -> None:
        self.limits = limits
        self._persists = [weight.persists for weight in weights]
        self._kept = [weight.is_kept for weight in weights]
        self._numels = [weight.numel for weight in weights]
        self._padded = [-(-n // limits.ways) * limits.ways for n in self._numels]
        """Elements of what all ranks' parts are gathered into."""
        self.live = self._most = 0
        self._step = self._available = self._next = 0
        self._there, self._flying = set[int](), dict[int, list[int]]()
        """Parameters that are gathered, and those under way, each with all that come with it and are not used yet."""
        self._copied, self._held = set[int](), dict[int, int]()
        self._queue = [(number, step) for step, module in enumerate(steps) for number in sorted(_fetched(module))]
        self._fetched_for = dict.fromkeys(range(len(weights)), -1)
        numels = self._numels
        own = _Reuse([module.own for module in steps], numels)
        leaves = any(module.whole for module in steps)
        self._reuse = (own, _Reuse([module.under for module in steps], numels) if leaves else own)

    def step(self, module: Module, *, forward: bool, last: bool, stays: bool = False) -> tuple[int, int]:
        """Run one module: gather its parameters, prefetch later ones, then release those that are not used soon.

        Returns the most elements alive while it gathers, and those alive while it runs. ``last``: this is the
        parameters' last use in the backward. ``stays``: nothing is released afterwards.
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
            if number in self._flying:
                self._wait(number)
        now, fetched_for = self._step, self._fetched_for
        not_passed = {number for number in numbers if fetched_for[number] < now}
        while not_passed and self._next < len(self._queue):
            number, step = self._queue[self._next]
            fetched_for[number] = step
            not_passed.discard(number)
            self._next += 1
        self._prefetch()
        self._step += 1
        runs, reuse = self.live, self._reuse[module.whole]
        for number in numbers:
            if not stays and number in self._there and self._is_released(number, reuse):
                self._release(number, keeps=forward and self._kept[number])
            if last and self._held:
                self.live -= self._held.pop(number, 0)
        return self._most, runs

    def _is_missing(self, number: int) -> bool:
        return not (self._persists[number] or number in self._there or number in self._flying)

    def _gather(self, numbers: list[int]) -> None:
        self._available += sum([self._numels[number] for number in numbers])
        self.live += sum([self._padded[number] for number in numbers])
        together = len(numbers) > 1 and not self.limits.one_by_one
        for number in numbers:
            self._flying[number] = numbers if together else [number]
        self._most = max(self._most, self.live)

    def _wait(self, number: int) -> None:
        """Wait for the gathering of a parameter. Its first use copies all parameters out of their flat buffer.

        The flat buffer is freed once the last parameter in it has been used.
        """
        group = self._flying.pop(number)
        self._there.add(number)
        if len(group) == 1 and number not in self._copied:
            return
        if number not in self._copied:
            self.live += sum([self._numels[other] for other in group])
            self._copied.update(group)
            self._most = max(self._most, self.live)
        self._copied.discard(number)
        if self._copied.isdisjoint(group):
            self.live -= sum([self._padded[other] for other in group])

    def _prefetch(self) -> None:
        """Gather parameters of later modules, up to ``stage3_prefetch_bucket_size`` elements."""
        most = min(self.limits.live - self._available, self.limits.ahead)
        if most <= 0 or self._next == len(self._queue):
            return
        numbers, count = list[int](), 0
        while count < most and self._next < len(self._queue):
            number, step = self._queue[self._next]
            self._next += 1
            self._fetched_for[number] = max(self._fetched_for[number], step)
            if self._is_missing(number) and number not in numbers:
                numbers.append(number)
                count += self._numels[number]
        if numbers:
            self._gather(numbers)

    def _is_released(self, number: int, reuse: _Reuse) -> bool:
        """Return whether a gathered parameter is released after its use.

        It stays if it persists, was prefetched for a later module, or is used again within
        ``stage3_max_reuse_distance``.
        """
        if self._persists[number] or self._fetched_for[number] > self._step:
            return False
        return reuse.distance(number, self._step) >= self.limits.reuse

    def _release(self, number: int, *, keeps: bool) -> None:
        self._there.discard(number)
        self._available -= self._numels[number]
        if keeps:
            self._held[number] = self._held.get(number, 0) + self._numels[number]
        else:
            self.live -= self._numels[number]


class _Reuse:
    """The distance to the next use of each parameter, in elements of the parameters that are used until then."""

    def __init__(self, steps: Sequence[tuple[int, ...]], numels: Sequence[int]) -> None:
        self._uses: dict[int, list[int]] = {}
        for step in range(len(steps) - 1, -1, -1):
            for number in steps[step]:
                self._uses.setdefault(number, []).append(step)
        self._before = [0, *accumulate(sum([numels[number] for number in numbers]) for numbers in steps)]
        """Elements of the modules before each step."""

    def distance(self, number: int, step: int) -> float:
        """Elements between a step and the next use; infinite without one."""
        uses = self._uses[number]
        while uses and uses[-1] < step:
            uses.pop()
        return self._before[uses[-1]] - self._before[step] if uses else inf


def _fetched(module: Module) -> tuple[int, ...]:
    return module.under if module.whole else module.own
