"""A loop of one's own, with Accelerate, Lightning or neither, is read as the job that it states."""

from __future__ import annotations

import pytest

from memcheck.configs.types import ConfigError
from tests.configs.test_read_python import read, values

HEAD = """\
import torch, lightning as pl, bitsandbytes as bnb
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")
rows = load().map(lambda x: tokenizer(x["text"], truncation=True, max_length=1024))
"""
LOAD = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.{dtype})\n'
DATA = "loader = DataLoader(rows, batch_size=4, shuffle=True)\n"
OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)\n"
LOOP = "for batch in loader:\n    {loss}\n    optimizer.step()\n"
PLAIN = HEAD + LOAD + DATA + OPTIMIZER + LOOP
ACCELERATE = (
    HEAD + "a = Accelerator(mixed_precision='bf16', gradient_accumulation_steps=8)\n" + LOAD + DATA + OPTIMIZER
    + "model, optimizer, loader = a.prepare(model, optimizer, loader)\n" + LOOP
)  # fmt: skip
LIGHTNING = HEAD + (
    "class M(pl.LightningModule):\n    def __init__(self):\n        self.model = AutoModelForCausalLM.from_pretrained("
    "'Qwen/Qwen2.5-0.5B')\n    def training_step(self, batch, n):\n        return self.model(**batch).loss\n"
    "    def configure_optimizers(self):\n        return torch.optim.AdamW(self.parameters())\n"
    + DATA
    + "pl.Trainer(precision='bf16-mixed', accumulate_grad_batches=8, gradient_clip_val=1.0{more}).fit(M(), loader)\n"
)
BACKWARD, CLIP = (
    "model(**batch).loss.backward()",
    "a.backward(model(**batch).loss); a.clip_grad_norm_(model.parameters(), 1.0)",
)


def of(code: str, dtype: str = "float32", loss: str = BACKWARD) -> str:
    """The code of one job."""
    return code.replace("{dtype}", dtype).replace("{loss}", loss).replace("{more}", "")


@pytest.mark.parametrize(
    ("code", "recipe", "steps", "clipped"),
    [
        (of(ACCELERATE, loss=CLIP), "bf16-mixed", 8, True),
        (of(LIGHTNING), "bf16-mixed", 8, True),
        (of(PLAIN), "fp32", 2, False),
        (of(PLAIN, "bfloat16"), "bf16-pure", 2, False),
        (of(PLAIN, loss=f"with torch.autocast('cuda', torch.float16):\n        {BACKWARD}"), "fp16-mixed", 2, False),
    ],
)
def test_a_loop_is_a_job(code: str, recipe: str, steps: int, clipped: bool) -> None:
    """Model, rows, batch, dtype, optimizer, and whether gradients are clipped."""
    found = values(code)
    assert (found["model.name"], found["training.sequence_length"]) == ("Qwen/Qwen2.5-0.5B", 1024)
    assert (found["training.micro_batch_size"], found["training.optimizer.name"]) == (4, "adamw")
    assert (found["training.precision.recipe"], found["training.gradient_accumulation_steps"]) == (recipe, steps)
    assert found["training.clip_grad_norm"] == clipped


def test_what_is_done_to_the_model_counts() -> None:
    """Checkpointing, adapters, an optimizer of bitsandbytes, a wrapper that copies, and a loader that evaluates."""
    more = "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(model, LoraConfig(r=4, target_modules='all-linear'))\n"
    code = of(PLAIN, "bfloat16").replace("optimizer =", f"{more}model.gradient_checkpointing_enable()\noptimizer =")
    code = code.replace("torch.optim.AdamW(", "bnb.optim.PagedAdamW8bit(").replace(
        "for batch", "model = DDP(model)\nfor batch"
    )
    found = values(code.replace("loader =", "test = DataLoader(rows, batch_size=16)\nloader ="))
    assert (found["training.method"], found["training.lora.rank"]) == ("lora", 4)
    assert found["training.activation_checkpointing.mode"] == "full"
    assert found["training.optimizer.name"] == "paged-adamw-8bit"
    assert (found["training.micro_batch_size"], found["training.evaluation.micro_batch_size"]) == (4, 16)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (of(LIGHTNING.replace("{more}", ", strategy='fsdp'")), "what shards the model"),
        (of(LIGHTNING.replace("{more}", ", devices=4")), "a process on each of 4 GPUs"),
        (of(PLAIN).replace("for batch", "model = FSDP(model)\nfor batch"), "`FSDP`, whose units are not read"),
        (of(ACCELERATE, loss=CLIP).replace("bf16'", "bf16', fsdp_plugin=plugin"), "what shards the model"),
    ],
)
def test_what_a_loop_leaves_open_is_asked_for(code: str, message: str) -> None:
    """How the model is split over GPUs."""
    (problem,) = read(code).problems
    assert message in problem.message


@pytest.mark.parametrize(
    "code",
    [
        of(PLAIN, loss="loss_of(model(**batch)).backward()"),
        of(PLAIN) + of(PLAIN),
        of(PLAIN).replace("torch.optim.AdamW", "Mine"),
        of(PLAIN).replace("AutoModelForCausalLM.from_pretrained", "Mine"),
    ],
)
def test_a_loop_of_another_kind_is_refused(code: str) -> None:
    """A loss of one's own, two models, another optimizer, a model of one's own."""
    with pytest.raises(ConfigError, match="it trains in a loop of its own"):
        read(code.replace(", lightning as pl", ""))
