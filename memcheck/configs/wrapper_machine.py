"""The GPUs and nodes that a platform's YAML asks for, under any of the keys that platforms have for them.

The kind of GPU stands in eight places: the name of a resource or of a machine, a label that selects nodes, the values
of an affinity, a key for accelerators, the runner of a workflow, an Azure size, and the number of a Determined slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memcheck.configs.next_command import Machine, gpu_named
from memcheck.plan.places import escape

_GPU_COUNT = re.compile(
    r"(?:\w+[.\w-]*/gpu|gpus_per_node|nprocpernode|numprocpernode|gpu_count|num_gpus|gpus|slots_per_trial"
    r"|entrypointnumgpus)\Z",
    re.IGNORECASE,
)
_RESOURCE = re.compile(r"(?:nvidia|amd|intel|habana)\.(?:com|ai)/([a-z]*\d+\w*)\Z")
"""A resource that is named after its GPU: ``nvidia.com/a100``."""
_NODES = ("num_nodes", "numNodes", "nodes", "nnodes", "node_count", "instance_count")
_TYPES = (
    *("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type", "instance_type", "instanceType"),
    *("vm_size", "machineType", "instance_types", "size"),
)
"""Keys that name a machine, which has a number of GPUs."""
_LABEL = re.compile(
    r"(?:[\w.-]+/)?(?:gpu[._-]?(?:product|type|name|class|model)|gpuType|gke-accelerator|instance-gpu-name|accelerator-type"
    r"|gpu\.nvidia\.com/(?:class|model))\Z"
)
"""Keys that name a GPU: labels of nodes, and settings of platforms."""
_REPLICAS = re.compile(r"[a-zA-Z]+ReplicaSpecs\Z")
_IDLE = ("Launcher", "PS", "Evaluator", "Chief")
"""Roles of a replicated job that hold no GPU."""
_RUNNER = re.compile(r"[\s_,-]+")
MOST_NODES = 64
"""Nodes that a list of replicas may ask for."""
MOST_WORDS = 12
"""Words of a runner's name that are looked up in the catalog."""


class _Found:
    """What was found so far; the first statement of each kind counts."""

    def __init__(self) -> None:
        self.gpu = ""
        self.counted = self.whole = self.nodes = self.replicas = 0
        self.sets: set[str] = set()
        """Names of the lists of groups that were counted."""

    def name(self, value: object, *, machine: bool = False) -> None:
        """Take the name of a GPU, or of a machine with all of its GPUs."""
        first = value[0] if isinstance(value, list) and value else value
        named, count = gpu_named(first)
        if named and (count or not machine or not self.gpu):
            self.gpu, self.whole = self.gpu or named, self.whole or count

    def machine(self) -> Machine:
        """What a job runs on."""
        nodes = min(max(self.nodes, self.replicas, 1), MOST_NODES)
        return Machine(gpu=self.gpu, gpus_per_node=self.counted or self.whole, nodes=nodes)


def machine_of(values: Mapping[str, Any]) -> Machine:
    """The GPU, the GPUs per node and the nodes that a file asks for."""
    found = _Found()
    for _, holder in mappings(values):
        for name, value in holder.items():
            _take(found, str(name), value, holder)
    return found.machine()


def _take(found: _Found, name: str, value: Any, holder: Mapping[str, Any]) -> None:
    """One key of a mapping."""
    if _GPU_COUNT.match(name) and not isinstance(value, (dict, list)):
        found.counted = found.counted or _whole(value)
    elif (resource := _RESOURCE.match(name)) is not None and not isinstance(value, (dict, list)):
        found.counted = found.counted or _whole(value)
        found.name(resource[1])
    elif name in _NODES:
        found.nodes = found.nodes or _whole(value)
    elif _REPLICAS.match(name) and isinstance(value, dict):
        working = [each for role, each in value.items() if isinstance(each, dict) and role not in _IDLE]
        found.replicas = sum(_whole(each.get("replicas", 1)) for each in working)
    elif name in _SETS and isinstance(value, list) and name not in found.sets:
        found.sets.add(name)
        found.replicas = found.replicas or _SETS[name]([each for each in value if isinstance(each, dict)])
    elif name == "leaderWorkerTemplate" and isinstance(value, dict):
        found.nodes = found.nodes or _whole(value.get("size"))
    elif name == "completionMode" and value == "Indexed":
        found.nodes = found.nodes or _whole(holder.get("parallelism"))
    elif name in ("accelerators", "gpu", "accelerator"):
        named, count = asked(value)
        found.gpu, found.counted = found.gpu or named, found.counted or count
    elif name in _TYPES:
        found.name(value, machine=True)
    elif _LABEL.match(name):
        found.name(value)
    elif name == "values" and isinstance(value, list) and isinstance(holder.get("key"), str):
        _take(found, holder["key"], value, {})
    elif name == "devices" and isinstance(value, list):
        found.counted = found.counted or sum(_devices(each) for each in value if isinstance(each, dict))
    elif name == "runs-on":
        _runner(found, value)


def _devices(reserved: Mapping[str, Any]) -> int:
    """GPUs of one reservation of Docker Compose: a count, or a list of devices."""
    listed = reserved.get("device_ids")
    return _whole(reserved.get("count")) or (len(listed) if isinstance(listed, list) else 0)


def _runner(found: _Found, value: Any) -> None:
    """The labels of a workflow's runner, of which a word may be a GPU: ``[self-hosted, gpu, a100-80gb]``."""
    for label in value if isinstance(value, list) else [value]:
        text = str(label)[:200]
        for word in (text, *_RUNNER.split(text)[:MOST_WORDS]):
            if not found.gpu and any(each.isdigit() for each in word):
                found.name(word)


def _pods(jobs: list[dict[str, Any]]) -> int:
    """Pods of all jobs of a JobSet."""
    count = 0
    for each in jobs:
        template = each.get("template")
        spec = template.get("spec") if isinstance(template, dict) else None
        count += _whole(each.get("replicas", 1)) * (_whole(spec.get("parallelism", 1)) if isinstance(spec, dict) else 1)
    return count


def _workers(groups: list[dict[str, Any]]) -> int:
    """Pods of the groups of a Ray cluster that ask for GPUs."""
    return sum(
        _whole(each.get("replicas", each.get("minReplicas", 1))) * (_whole(each.get("numOfHosts", 1)) or 1)
        for each in groups
        if asks_for_gpus(each)
    )


def _tasks(tasks: list[dict[str, Any]]) -> int:
    """Pods of the tasks of a Volcano job that ask for GPUs."""
    return sum(_whole(each.get("replicas", 1)) for each in tasks if asks_for_gpus(each))


_SETS = {"replicatedJobs": _pods, "workerGroupSpecs": _workers, "tasks": _tasks}
"""Lists of groups of pods, and how many pods each list is."""


def asks_for_gpus(values: Mapping[str, Any]) -> bool:
    """Whether a part of a manifest has a number of GPUs above 0."""
    return any(
        _GPU_COUNT.match(str(name)) and not isinstance(value, (dict, list)) and _whole(value)
        for _, holder in mappings(values)
        for name, value in holder.items()
    )


def mappings(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with its pointer, in the order of the text."""
    waiting: list[tuple[str, Any]] = [("", values)]
    while waiting:
        pointer, value = waiting.pop()
        items: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            yield pointer, value
            items = list(value.items())
        elif isinstance(value, list):
            items = list(enumerate(value))
        below = [(f"{pointer}/{escape(str(name))}", each) for name, each in items if isinstance(each, (dict, list))]
        waiting += reversed(below)


def asked(value: object) -> tuple[str, int]:
    """``H100:8``, ``{H100: 8}``, ``A100:80GB:4``, ``24GB``, ``{name: H100, count: 8}``: the GPU and how many."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        named = value.get("name") or next(iter(value), "")
        if isinstance(named, list):
            named = next(iter(named), "")
        count = _whole(value.get("count")) or _whole(value.get(named))
        return asked(
            f"{named}:{value['memory']}:{count or 1}"
            if isinstance(value.get("memory"), str)
            else f"{named}:{count or 1}"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        return "", _whole(value)
    parts = str(value).split(":")
    sizes = [each for each in parts if re.fullmatch(r"\d+\s*GB(?:\.\.\d*.*)?", each, re.IGNORECASE)]
    counts = [_whole(each) for each in parts if each.isdecimal()]
    names = [each for each in parts if each not in sizes and not each.isdecimal()]
    name = names[0] if names else ""
    gpu = gpu_named(f"{name}-{sizes[0].lower()}")[0] if name and sizes else ""
    return gpu or gpu_named(name)[0], counts[0] if counts else 1 if name or sizes else 0


def _whole(value: object) -> int:
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 4 else 0
