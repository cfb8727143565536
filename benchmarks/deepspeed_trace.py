"""Trace DeepSpeed's engine: python -m benchmarks.deepspeed_trace [--only REGEX] (deepspeed, einops, a C++ compiler).

One rank of a world whose collectives return at once, on the CPU, with real tensors of a small model: every storage is
followed from birth to death, rounded up as CUDA's allocator does, while transformers' model runs two steps in the
engine. What is recorded are the highest bytes of each instant of the second step, in ``data/deepspeed.json``. What is
offloaded cannot be told from the rest there, because both are memory of the CPU: of the cases under ``offloaded`` the
sum is recorded. They step with torch's Adam, because DeepSpeed's own is to be compiled, and pin nothing. The cases
under ``objectives`` were traced likewise, with the losses of TRL's trainers in place of the model's own, and its
``prepare_deepspeed`` around the reference; this command leaves them as they are. Of a case with
``ranks`` each of so many is traced, and the highest recorded: which tensors a rank owns differs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.cases import HERE, load
from benchmarks.deepspeed_cases import dims

PATH = os.path.join(HERE, "data", "deepspeed.json")
INSTANTS = ("forward", "backward", "optimizer")
STEPS = 2


def main() -> int:
    """Trace the recorded cases again, each in a process of its own, and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose id matches")
    only = parser.parse_args().only
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch
    import transformers

    data = load("deepspeed.json")
    data["source"] = (
        f"traces of DeepSpeed {deepspeed.__version__} on torch {torch.__version__.partition('+')[0]}, "
        f"transformers {transformers.__version__}"
    )
    for record in (*data["cases"], *data["offloaded"]):
        if not re.search(only, record["id"]):
            continue
        record.update(_highest([_apart(record, dims(record), rank) for rank in range(record.get("ranks", 1))]))
        print(record["id"], record["instants_bytes"], flush=True)
        with open(PATH, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
    return 0


def _highest(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each instant the highest bytes that a rank has."""
    each = [rank["instants_bytes"] for rank in ranks]
    return {**ranks[0], "instants_bytes": {name: max(one[name] for one in each) for name in each[0]}}


def _apart(record: dict[str, Any], model: dict[str, Any], rank: int) -> dict[str, Any]:
    """The trace in a forked process: DeepSpeed keeps state between engines."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            with os.fdopen(writer, "w") as out:
                json.dump(_trace(record, model, rank), out)
        finally:
            if sys.exc_info()[0]:
                traceback.print_exc()
            os._exit(0)  # whatever happened, the parent's work is not ours
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        sys.exit(f"{record['id']} failed")
    found: dict[str, Any] = json.loads(text)
    return found


def _trace(record: dict[str, Any], model: dict[str, Any], rank: int) -> dict[str, Any]:
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator
    from transformers import AutoConfig, AutoModelForCausalLM

    from memcheck.verify.trace.tracer import Account

    torch.set_num_threads(1)
    # no collective runs, and those of shared memory wait for ranks that are not there
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    type(get_accelerator()).is_fp16_supported = lambda self: True  # the CPU computes in it, slowly
    account = Account()
    config = {
        "train_micro_batch_size_per_gpu": record["batch"],
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        **record["config"],
    }
    if record["dtype"] != "fp32":
        config[record["dtype"]] = {"enabled": True}
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[record["dtype"]]
    shapes = AutoConfig.for_model(model["model_type"], **{k: v for k, v in model.items() if k != "model_type"})
    shapes._attn_implementation = "sdpa"  # noqa: SLF001
    with _world(record["world"], rank), _following(account) as phase:
        network = AutoModelForCausalLM.from_config(shapes).to(dtype)
        if "lora" in record:
            network = _adapted(network, record["lora"])
        parameters = sum(p.numel() for p in network.parameters())
        if record["recompute"] == "full":
            network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        made = {"model_parameters": _trained(record, network), **_sequence_ranks(record, network)}
        engine, *_ = deepspeed.initialize(model=network, config=config, **made)
        ids = torch.randint(0, shapes.vocab_size, (record["batch"], record["sequence"]))
        for _ in range(STEPS):
            gc.collect()
            rests = account.total
            account.begin_step()
            for _ in range(config.get("gradient_accumulation_steps", 1)):
                phase[0] = "forward"
                loss = _loss(engine, ids, record.get("context", 1))
                phase[0] = "backward"
                engine.backward(loss)
                del loss
                phase[0] = "optimizer"
                engine.step()
        tops = {name: account.tops[name].bytes for name in INSTANTS}
    return {"parameters": parameters, "instants_bytes": {"init": rests, **tops}}


def _sequence_ranks(record: dict[str, Any], network: Any) -> dict[str, Any]:
    """Ulysses around attention, where ranks share a sequence."""
    if "context" not in record:
        return {}
    import deepspeed
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    deepspeed.init_distributed(dist_backend="ccl", auto_mpi_discovery=False)
    of = (network, "sdpa", record["context"], record["batch"])
    return {"mpu": UlyssesSPAttentionHF.register_with_transformers(*of)}


def _loss(engine: Any, ids: Any, ways: int) -> Any:
    """The model's own; where ranks share a sequence that of this one's tokens, as the Trainer asks for it."""
    import torch

    if ways == 1:
        return engine(input_ids=ids, labels=ids, use_cache=False).loss
    mine = ids[:, : ids.shape[1] // ways].contiguous()
    positions = torch.arange(mine.shape[1]).expand(mine.shape)
    logits = engine(input_ids=mine, position_ids=positions, use_cache=False).logits
    model = engine.module
    return model.loss_function(logits=logits, labels=None, shift_labels=mine, vocab_size=model.config.vocab_size)


def _trained(record: dict[str, Any], network: Any) -> list[Any]:
    """What the optimizer gets: all trained parameters, or the Trainer's ``groups`` of those that decay and the rest."""
    trained = [p for p in network.parameters() if p.requires_grad]
    groups = [[p for p in trained if (p.ndim > 1) is decays] for decays in (True, False)]
    return [{"params": found} for found in groups if found] if "groups" in record else trained


def _adapted(network: Any, lora: dict[str, Any]) -> Any:
    """With PEFT's adapters, which are fp32 until the engine casts the whole model."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=lora["rank"], target_modules=lora["target_modules"], task_type="CAUSAL_LM")
    return get_peft_model(network, config)


@contextmanager
def _world(size: int, rank: int) -> Iterator[None]:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29511")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    yield


@contextmanager
def _following(account: Any) -> Iterator[list[str]]:
    """Count every storage that an operation returns; the list holds the name of the instant."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    phase = ["init"]

    class Following(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            for tensor in tree_iter(found):
                if isinstance(tensor, torch.Tensor):
                    account.add(tensor, str(func), phase[0], "", "")
            account.note(phase[0], str(func))
            return found

    with Following():
        yield phase


if __name__ == "__main__":
    sys.exit(main())
