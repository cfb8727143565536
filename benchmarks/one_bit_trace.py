"""Traces DeepSpeed's compressing optimizers (``data/one_bit.json``): python -m benchmarks.one_bit_trace CHECKOUT.

DeepSpeed's own classes step tensors on the CPU, around its own NcclBackend, in a process that stands for one rank of
several. CuPy is stood in for by torch: its packing and unpacking make tensors of the same bytes, the collectives move
nothing. ``CHECKOUT``: DeepSpeed's sources. Run with PyTorch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
import weakref
from pathlib import Path
from typing import Any

RANKS = 8
SIZES = ((2**20,), (2**20 + 1000,), (2**19, 2**19), (2**18,) * 4, (700_000, 5_000, 5_000, 300_000))
CLASSES = {
    "onebit-adam": ("adam", "OnebitAdam", {"freeze_step": 2}),
    "zero-one-adam": (
        "zoadam",
        "ZeroOneAdam",
        {"var_freeze_step": 2, "var_update_scaler": 1, "local_step_scaler": 1},
    ),
    "onebit-lamb": ("lamb", "OnebitLamb", {"freeze_step": 2}),
}
STEPS = 6


def module(name: str, **members: Any) -> Any:
    """A module that imports find."""
    found: Any = types.ModuleType(name)
    found.__dict__.update(members)
    sys.modules[name] = found
    return found


def stand_ins(torch: Any) -> None:
    """CuPy, and the parts of DeepSpeed that need a GPU or other processes."""

    def zeros(shape: list[Any], dtype: Any = None) -> Any:
        sizes = [each.__self__.numel() if callable(each) else each for each in shape]  # CuPy's `size` is a number
        return torch.zeros(sizes, dtype=dtype or torch.uint8)

    nothing = lambda *args, **kwargs: None  # noqa: E731
    stream, device = types.SimpleNamespace(synchronize=nothing), types.SimpleNamespace(use=nothing)
    module(
        "cupy",
        packbits=lambda t: torch.empty(-(-t.numel() // 8), dtype=torch.uint8),
        unpackbits=lambda t: torch.empty(t.numel() * 8, dtype=torch.uint8),
        split=lambda t, count: list(t.chunk(count)),
        zeros=zeros,
        from_dlpack=lambda t: t,
        cuda=types.SimpleNamespace(Device=lambda _: device, get_current_stream=lambda: stream),
    )
    comm: Any = types.SimpleNamespace(
        is_initialized=lambda: True,
        get_rank=lambda group=None: 0,
        get_world_size=lambda group=None: RANKS,
        new_group=nothing,
        all_to_all_single=nothing,
        all_gather=nothing,
        all_reduce=nothing,
    )
    accelerator = types.SimpleNamespace(empty_cache=nothing, device_name=lambda _: "cpu")
    module("deepspeed", comm=comm)
    sys.modules["deepspeed.comm"] = comm
    module("deepspeed.accelerator", get_accelerator=lambda: accelerator)
    for name in ("utils", "runtime", "runtime.comm", "runtime.compression"):
        module(f"deepspeed.{name}")
    module("deepspeed.utils.torch", required_torch_version=lambda **_: True)
    module("deepspeed.runtime.utils", filter_empty_parameters=lambda parameters: parameters)
    module("torch.utils.dlpack", to_dlpack=lambda t: t, from_dlpack=lambda t: t)


def loaded(checkout: Path, name: str) -> Any:
    """One of DeepSpeed's own modules."""
    where = checkout / "deepspeed" / "runtime" / f"{name}.py"
    full = f"deepspeed.runtime.{name.replace('/', '.')}"
    spec = importlib.util.spec_from_file_location(full, where)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(where)
    found = importlib.util.module_from_spec(spec)
    sys.modules[full] = found
    spec.loader.exec_module(found)
    return found


def recorder(torch: Any) -> Any:
    """Counts the storages of tensors while they live, in blocks of 512 bytes."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        live = peak = 0

        def __init__(self) -> None:
            super().__init__()
            self.seen: Any = weakref.WeakKeyDictionary()

        def gone(self, size: int) -> None:
            self.live -= size

        def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            for tensor in (*tree_iter(out), *tree_iter(args)):
                storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
                if storage is None or storage in self.seen or not storage.nbytes():
                    continue
                size = self.seen[storage] = -(-storage.nbytes() // 512) * 512
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self.gone, size)
            return out

    return Recorder()


def traced(torch: Any, kind: Any, options: dict[str, Any], sizes: tuple[int, ...]) -> dict[str, int]:
    """Bytes beside parameters and gradients: between steps that compress, and at the highest in one of them."""
    engine = types.SimpleNamespace(mpu=None, local_rank=0, enable_backward_allreduce=True)
    record = recorder(torch)
    with record:
        parameters = [torch.nn.Parameter(torch.zeros(n)) for n in sizes]
        for parameter in parameters:
            parameter.grad = torch.rand(parameter.shape)
        optimizer = kind(parameters, engine, lr=1e-3, weight_decay=0.01, **options)
        base, highest = record.live, 0
        for step in range(STEPS):
            record.peak = record.live
            optimizer.step()
            highest = max(highest, record.peak - base) if step > 1 else 0
    return {"rests_bytes": record.live - base, "peak_bytes": highest}


def main(checkout: Path) -> None:
    """Write the records."""
    import torch

    stand_ins(torch)
    for name in ("comm/utils", "compression/cupy", "comm/nccl"):
        loaded(checkout, name)
    records = []
    for name, (file, kind, options) in CLASSES.items():
        optimizer = getattr(loaded(checkout, f"fp16/onebit/{file}"), kind)
        for sizes in SIZES if name == "onebit-lamb" else SIZES[:2]:
            found = traced(torch, optimizer, options, sizes)
            records.append({"optimizer": name, "ranks": RANKS, "sizes": list(sizes), **found})
    source = f"DeepSpeed's runtime/fp16/onebit and comm/nccl.py, PyTorch {torch.__version__}, CPU"
    place = Path(__file__).parent / "data" / "one_bit.json"
    rows = ",\n".join("    " + json.dumps(record) for record in records)
    place.write_text(f'{{\n  "source": {json.dumps(source)},\n  "cases": [\n{rows}\n  ]\n}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
