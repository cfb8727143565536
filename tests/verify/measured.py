"""What a process of PyTorch holds while it loads, builds or gathers a model: ``python -m tests.verify.measured WHAT ...``.

Prints one JSON object with bytes. Anonymous memory is what /proc says of the process (RssAnon); that of mapped files is
apart (RssFile).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def resident() -> dict[str, int]:
    """Anonymous and file-backed bytes of this process that are in memory."""
    found = {}
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssFile"):
                found[name] = int(value.split()[0]) * 1024
    return found


def load(folder: str, dtype: str) -> dict[str, Any]:
    """from_pretrained without a device map; then every value is read once."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):  # imports the model's modules, which are no part of it
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    torch.ones(2**22).sum()
    before = resident()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    loaded = resident()
    for parameter in model.parameters():
        float(parameter.detach().view(-1)[::512].float().sum())  # touches every page
    read = resident()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "experts": sum(p.numel() for name, p in model.named_parameters() if ".experts." in name),
        "anonymous": loaded["RssAnon"] - before["RssAnon"],
        "anonymous_read": read["RssAnon"] - before["RssAnon"],
        "mapped_read": read["RssFile"] - before["RssFile"],
    }


def load_with_fsdp(folder: str, dtype: str, rank: str, meeting: str) -> dict[str, Any]:
    """The same in one of two processes, as accelerate's launcher sets them up for ``cpu_ram_efficient_loading``."""
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_CPU_RAM_EFFICIENT_LOADING="true", LOCAL_RANK=rank)
    _meet(rank, meeting)
    from transformers.distributed.fsdp import is_fsdp_enabled

    return {**load(folder, dtype), "enabled": is_fsdp_enabled()}


def gather(rank: str, meeting: str) -> dict[str, Any]:
    """FSDP2 over two processes: from the meta device to shards, and from shards to a full state dict."""
    _meet(rank, meeting)
    import torch
    from torch import nn
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(4)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(2, 256)).sum().backward()
    optimizer.step()
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "sharded": sum(_bytes(p.to_local()) for p in model.parameters()),  # type: ignore[attr-defined]
    }
    for name, offload in (("offloaded", True), ("kept", False)):
        options = StateDictOptions(full_state_dict=True, cpu_offload=offload)
        states = get_model_state_dict(model, options=options)
        found[name] = _total(states)
        found[f"{name}_states"] = _total(get_optimizer_state_dict(model, optimizer, options=options))
    return found


def stage(rank: str, meeting: str) -> dict[str, Any]:
    """What torch.distributed.checkpoint.async_save copies before training goes on."""
    _meet(rank, meeting)
    import torch
    from torch.distributed.checkpoint.staging import BlockingAsyncStager

    state = {"a": torch.ones(1000, 1000), "nested": {"b": torch.ones(500, 100)}}
    staged = BlockingAsyncStager(cache_staged_state_dict=False).stage(state)
    shared = staged["a"].data_ptr() == state["a"].data_ptr()
    return {"state": _total(state), "staged": _total(staged), "shared": shared}


def _meet(rank: str, meeting: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _total(state: Any) -> int:
    """Bytes of the matrices in a state dict; without the optimizer's scalars."""
    if isinstance(state, dict):
        return sum(_total(value) for value in state.values())
    return _bytes(state) if hasattr(state, "element_size") and state.dim() > 0 else 0


WHAT: dict[str, Callable[..., dict[str, Any]]] = {
    "load": load,
    "load_with_fsdp": load_with_fsdp,
    "gather": gather,
    "stage": stage,
}


def _end() -> None:
    """Ends this process when the others have what they need, without Python's own end.

    Gloo's threads drop Python objects whenever they are done with them; one that does so while the interpreter ends
    aborts the process.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(WHAT[sys.argv[1]](*sys.argv[2:])))
    _end()
