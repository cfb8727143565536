"""The catalogs' records with their names, matched without regard to case, and the catalog of GPUs.

Close names are suggested for an unknown one. A GPU's architecture says what it can compute, as far as training needs.

Reads a model's ``config.json``, or says what is wrong with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from memcheck.edge.json_text import read_own_json
from memcheck.edge.opener import is_folder, is_inside, read_start, real_path, repository
from memcheck.edge.screen import whole_number
from memcheck.errors import MemcheckError, closest
from memcheck.plan.compose import Composer
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Gpu(Record):
    """One accelerator. Rates are dense; None = not known."""

    name: str
    """Canonical plan name: ``h100-80gb``."""
    memory_bytes: int
    """What torch can reach at best: the lowest total seen on real machines (never the number on the box)."""
    arch: str | None = None
    """``sm_90``, ``gfx942``, ..."""
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    hbm_gbs: float | None = None
    nvlink_gbs: float | None = None
    """Bandwidth of NVLink per GPU in GB/s, the sum of both directions, as in datasheets."""
    gpus_per_node: int | None = None
    source: str = ""
    from_catalog: bool = True
    """False when the plan gave the figures itself."""
    fp32_tflops: float | None = None
    """TFLOPS of fp32 outside the tensor cores, which torch uses unless TF32 is allowed."""
    multiprocessors: int | None = None
    """Streaming multiprocessors (NVIDIA) or compute units (AMD)."""
    bf16_efficiency: float | None = None
    """The fastest matrix product that was measured, as a share of ``bf16_tflops``."""
    fp8_efficiency: float | None = None
    nvlink_gpus: int | None = None
    """GPUs that NVLink joins where that is not the node: pairs under a bridge, whole racks."""
    pcie_gbs: float | None = None
    """The link to the host, one direction."""
    network_gbs: float | None = None
    """The network between nodes, per GPU and direction, in the vendor's reference system."""
    peer_access: bool = True
    """Whether GPUs of a node are sure to reach each other's memory. GeForce cards without a bridge between them do not:
    NCCL's buffers are then shared memory of the host (``src/transport/shm.cc``, ``shmRecvSetup``).
    """
    context_read: bool = False
    """Whether the driver's context was read on this very GPU, and not on one of its architecture."""


class Model(Record):
    """One model of the catalog."""

    name: str
    """Canonical short name: ``llama-3.1-8b``."""
    id: str
    """Hugging Face id."""
    config: dict[str, Any]
    """Configuration in Hugging Face's key names, ``model_type`` included."""
    parameters: int
    """Exact count of the instantiated model (a test compares it with the count from dimensions)."""
    source: str = ""
    note: str = ""
    read_as: str = ""
    """Why this record was found for a name that is not in the catalog; empty for one that is."""


DATA = os.path.join(os.path.dirname(__file__), "data")
"""The records: one file each, and per folder an index of names."""


class UnknownNameError(MemcheckError):
    """No record has this name. ``close`` holds names that are similar."""

    def __init__(self, kind: str, name: str, close: tuple[str, ...]) -> None:
        help = f"did you mean {' or '.join(close)}?" if close else f"`memcheck list {kind}s` shows the known ones"
        super().__init__(f"unknown {kind} {name!r}", help)
        self.close = close


class AmbiguousNameError(UnknownNameError):
    """Several records share this name. ``close`` holds all of them."""

    def __init__(self, kind: str, name: str, records: tuple[str, ...]) -> None:
        super().__init__(kind, name, records)
        self.message = f"{kind} {name!r} is the name of several: {', '.join(records)}"
        self.help = f"write {' or '.join(records)}"


def find_record(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Canonical name and record of the ``kind`` (``model`` | ``gpu``) that is called ``name``. Reads one record.

    Raises:
        UnknownNameError: nothing is called so.
        AmbiguousNameError: several are.
    """
    folder = os.path.join(DATA, kind + "s")
    wanted = normal(name)
    canonical = wanted
    if not _is_file_name(wanted) or not os.path.isfile(os.path.join(folder, wanted + ".yaml")):
        found = _read_names(kind).get(wanted)
        if found is None:
            raise UnknownNameError(kind, name, _close(kind, wanted))
        if isinstance(found, list):
            raise AmbiguousNameError(kind, name, tuple(found))
        canonical = found
    return canonical, read_record(os.path.join(folder, canonical + ".yaml"))


def normal(name: str) -> str:
    """The form in which names are compared: lower case, hyphens for spaces (``NVIDIA H100 80GB HBM3``)."""
    return name.strip().lower().replace(" ", "-")


def read_index(kind: str) -> dict[str, str]:
    """Every name of a kind (lower case, aliases included) and the record it stands for; none that several share."""
    return {name: found for name, found in _read_names(kind).items() if isinstance(found, str)}


def _read_names(kind: str) -> dict[str, str | list[str]]:
    index: dict[str, str | list[str]] = read_own_json(os.path.join(DATA, kind + "s", "index.json"))
    return index


def canonical_names(kind: str) -> tuple[str, ...]:
    """The record names of a kind, sorted."""
    return tuple(sorted(set(read_index(kind).values())))


def read_record(path: str) -> dict[str, Any]:
    """One YAML file of the catalog."""
    with open(path, encoding="utf-8") as stream:
        record: dict[str, Any] = next(Composer(stream.read()).documents()).values  # type: ignore[assignment]
    return record


def _is_file_name(name: str) -> bool:
    return bool(name) and not name.startswith(".") and "/" not in name and "\\" not in name and "\0" not in name


@lru_cache(maxsize=64)
def _close(kind: str, wanted: str) -> tuple[str, ...]:
    """Up to three record names; an alias that is close counts for its record.

    Kept: a plan's own GPU, whose memory it states, is looked for by whoever would like to know more of it.
    """
    index = read_index(kind)
    short = without_storage(wanted.rpartition("/")[2])
    found: list[str] = []
    for match in closest(short, index, 12):
        if index[match] not in found:
            found.append(index[match])
    return tuple(found[:3])


STORED = frozenset(
    {
        *("bnb", "4bit", "8bit", "int4", "int8", "nf4", "fp4", "mxfp4", "nvfp4", "fp8", "fp16", "fp32", "bf16"),
        *("unsloth", "awq", "gptq", "hqq", "eetq", "aqlm", "autoround", "torchao", "quantized", "quant", "marlin"),
        *("w4a16", "w8a8", "w8a16", "quantized.w4a16", "quantized.w8a8", "quantized.w8a16", "gguf", "mlx", "hf"),
        *("dynamic", "block", "kv", "128g", "sym", "sharded"),
    }
)
"""Words at the end of an id that say how weights are stored, which changes no dimension."""
TUNED = frozenset({"instruct", "it", "chat", "base", "pt", "thinking", "reasoning", "sft", "mixture", "dpo", "rlvr"})
"""Words at the end of an id for a stage of training on the same dimensions."""
LONGEST_ID = 96
"""Characters of a repository's name on the Hub."""


class Copy(Record):
    """What an id that the catalog lacks is a copy of."""

    name: str
    """The catalog's record."""
    without: tuple[str, ...]
    """What was left out of the id until it was a name: the organisation with its slash, words with their hyphen."""


def copied(written: str, index: Mapping[str, str]) -> Copy | None:
    """The record whose copy ``written`` is by its name: ``unsloth/Llama-3.1-8B-Instruct-bnb-4bit``.

    ``index``: every known name, in lower case -> record. None unless what is left is one of them exactly.
    """
    organisation, slash, name = written.rpartition("/")
    if not name or len(name) > LONGEST_ID or (slash and not _is_word(organisation)):
        return None
    left = name
    while left.lower() not in index:
        left = _without_last_word(left, STORED | TUNED)
        if not left:
            return None
    return Copy(index[left.lower()], tuple(part for part in (organisation + slash, name[len(left) :]) if part))


def without_storage(name: str) -> str:
    """``name``, which has no organisation, without words at its end that say how weights are stored."""
    while shorter := _without_last_word(name, STORED):
        name = shorter
    return name


def _without_last_word(name: str, words: frozenset[str]) -> str:
    """``name`` up to a last word that is one of ``words``; empty where it is not."""
    for joint in ("-", "_"):
        shorter, _, word = name.rpartition(joint)
        if shorter and word.lower() in words:
            return shorter
    return ""


def _is_word(organisation: str) -> bool:
    """Whether ``organisation`` can be the name of an account on the Hub: it is neither a path nor empty."""
    return organisation.replace("-", "").replace("_", "").replace(".", "").isalnum() and organisation[0] != "."


@lru_cache(maxsize=512)
def find_model(name: str) -> Model:
    """The model called ``name``: short name, Hugging Face id or alias, in any case, or the id of a copy of one.

    A copy has the name of a model under another organisation, or with words after it that say how its weights are
    stored or tuned; ``Model.read_as`` says so then.

    Raises:
        UnknownNameError: the catalog has no such model.
    """
    read_as = ""
    try:
        canonical, record = find_record("model", name)
    except UnknownNameError:
        copy = copied(name.strip(), read_index("model"))
        if copy is None:
            raise
        canonical, record = find_record("model", copy.name)
        read_as = f"{name.strip()} is read as {canonical}: the same name but for {' and '.join(copy.without)}"
    return Model(
        name=canonical,
        id=record["id"],
        config=record["config"],
        parameters=record["parameters"],
        source=record["source"],
        note=record.get("note", ""),
        read_as=read_as,
    )


def model_names() -> tuple[str, ...]:
    """Short names of every model, sorted."""
    return canonical_names("model")


SIZES = os.path.join(DATA, "gpus", "sizes.json")


class GpuSize(Record):
    """What a GPU is chosen by among others; the rest of it is in its record."""

    name: str
    memory_bytes: int
    arch: str | None
    bf16_tflops: float | None
    gpus_per_node: int | None


@lru_cache(maxsize=512)
def find_gpu(name: str) -> Gpu:
    """The GPU called ``name``: catalog name, device name or marketing name, in any case.

    Raises:
        UnknownNameError: the catalog has no such GPU.
        AmbiguousNameError: the name stands for cards of different memory.
    """
    try:
        canonical, record = find_record("gpu", name)
    except UnknownNameError as error:
        _explain(error, name)
        raise
    return Gpu(name=canonical, **{field: record[field] for field in Gpu._fields if field in record})


def _explain(error: UnknownNameError, name: str) -> None:
    """Set the help of ``error``, if ``name`` is a cloud's machine type, or a GPU with a scheduler's count after it."""
    from memcheck.plan.foreign import counted, instance

    machine, several = instance(name), counted(name)
    if machine is not None:
        error.help = f"it is a machine with {machine[1]} x {machine[0]}: name the GPU"
    elif several is not None:
        error.help = f"name the GPU alone, {several[0]}; the number of GPUs in a node is `gpus_per_node: {several[1]}`"


def gpu_names() -> tuple[str, ...]:
    """Names of every GPU, sorted."""
    return canonical_names("gpu")


@lru_cache(maxsize=1)
def gpu_sizes() -> tuple[GpuSize, ...]:
    """Every GPU of the catalog by name, from one table: to read all records takes longer than to judge a plan."""
    return tuple(GpuSize(*row) for row in read_own_json(SIZES))


NO_BF16_GFX = ("gfx900", "gfx906")
"""AMD generations before the bf16 matrix instructions of gfx908 (MI100)."""
FP8_GFX = ("gfx94", "gfx95", "gfx12")
"""AMD generations with fp8 matrix instructions: MI300 and later."""


def compute_capability(gpu: Gpu) -> int | None:
    """NVIDIA's compute capability as one number (``sm_89`` is 89); None for others and unknown ones."""
    if gpu.arch is None or not gpu.arch.startswith("sm_"):
        return None
    return whole_number(gpu.arch[3:].rstrip("abf"))


def lacks_bf16(gpu: Gpu) -> bool:
    """True when it is known that there are no bf16 matrix products (before Ampere)."""
    capability = compute_capability(gpu)
    if capability is not None:
        return capability < 80
    return (gpu.arch or "").startswith(NO_BF16_GFX)


def lacks_fp8(gpu: Gpu) -> bool:
    """True when it is known that there are no fp8 matrix products (before Ada and Hopper, before MI300)."""
    capability = compute_capability(gpu)
    if capability is not None:
        return capability < 89
    arch = gpu.arch or ""
    return arch.startswith("gfx") and not arch.startswith(FP8_GFX)


class ConfigFileError(MemcheckError):
    """A ``config.json`` that cannot be read. ``line`` and ``column`` (1-based) are 0 for the whole file."""

    def __init__(self, message: str, help: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(message, help)
        self.line = line
        self.column = column


MAX_BYTES = 4 * 2**20
"""The most bytes of a ``config.json``, which usually has a few kilobytes; a larger file is something else."""


def read_config(path: str, base_dir: str = ".") -> dict[str, Any]:
    """The configuration in ``path`` (relative to ``base_dir``), or in ``config.json`` of the folder it names.

    Raises:
        ConfigFileError: unreadable, outside of the repository, larger than :data:`MAX_BYTES`, no JSON, or no object.
    """
    return parse_config(*read_config_bytes(path, base_dir))


def read_config_bytes(path: str, base_dir: str = ".") -> tuple[bytes, str]:
    """The bytes that :func:`read_config` parses, and the file's name in messages.

    Raises:
        ConfigFileError: unreadable, outside of the repository, or larger than :data:`MAX_BYTES`.
    """
    base_dir = base_dir or os.curdir
    full = os.path.join(base_dir, path)
    if is_folder(full):
        full, path = os.path.join(full, "config.json"), os.path.join(path, "config.json")
    root, in_git = repository(real_path(base_dir))
    if not is_inside(real_path(full), root):
        limit = "the repository" if in_git else "the plan's folder, which is in no git repository"
        raise ConfigFileError(f"{path} lies outside {limit}", "keep the model's config.json in the plan's folder")
    try:
        data = read_start(full, MAX_BYTES)
    except OSError as error:
        raise ConfigFileError(f"cannot read {path}: {error.strerror}", "the path is relative to the plan") from None
    if len(data) > MAX_BYTES:
        raise ConfigFileError(f"{path} is larger than {MAX_BYTES} bytes", "name a Hugging Face config.json")
    return data, path


def parse_config(data: bytes, path: str) -> dict[str, Any]:
    """The object of a config. ``Infinity`` and ``NaN``, as Python's json writes them, become text, which is no size.

    Raises:
        ConfigFileError: no JSON, or no object.
    """
    import json

    try:
        config = json.loads(data, parse_constant=str)
    except json.JSONDecodeError as error:
        message = f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}"
        raise ConfigFileError(message, "name a Hugging Face config.json", error.lineno, error.colno) from None
    except (ValueError, RecursionError) as error:
        raise ConfigFileError(f"{path}: not JSON: {error}", "name a Hugging Face config.json") from None
    if not isinstance(config, dict):
        kind = type(config).__name__
        raise ConfigFileError(f"{path} holds a JSON {kind}, not an object", "name a Hugging Face config.json", 1, 1)
    return config
