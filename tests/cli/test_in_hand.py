"""What people hold when they ask: a line, a script, a manifest, a file of their own; each in small, with its answer.

Sizes of published jobs: a plan of Gemma 3 on text (unsloth#2366: 14,000 tokens fit in 80 GB, 15,000 do not), and a
quantised Mixtral, whose experts transformers 5 keeps in 16 bits and 4 does not (transformers
``quantizers/quantizer_bnb_4bit.py``).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memcheck.__main__ import main

OWN = "torchrun --nproc_per_node 1 my_sft.py --model_name_or_path meta-llama/Meta-Llama-3-8B --bf16 "
OWN += "--per_device_train_batch_size 1 --max_seq_length 512 --torch_dtype bfloat16 --lora_rank 64"
STATED = "--set training.objective=sft --set training.method=lora --set training.lora.rank=64"
MIXTRAL = """\
base_model: mistralai/Mixtral-8x7B-v0.1
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_target_linear: true
datasets: [{path: d.jsonl, type: alpaca}]
sequence_len: 2048
sample_packing: true
micro_batch_size: 1
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
deepspeed: deepspeed_configs/zero2.json
"""
LONG = """\
base_model: NousResearch/Meta-Llama-3-8B
load_in_8bit: true
adapter: lora
lora_r: 16
lora_target_linear: true
lora_modules_to_save: [embed_tokens, lm_head]
datasets: [{path: d.jsonl, type: alpaca}]
sequence_len: 4096
micro_batch_size: 32
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
"""
GEMMA = """\
memcheck: 1
model: gemma-3-12b-it
hardware: {gpu: h100-80gb}
training: {framework: huggingface, method: lora, base: {held_in: int8}, micro_batch_size: 1, sequence_length: 14000,
  lora: {rank: 8, target_modules: all-linear}, activation_checkpointing: {mode: full}, loss: fused-linear}
"""
JOB = """\
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
      - command: [torchrun, --nproc_per_node=4, -m, trl.scripts.sft]
        args: [--model_name_or_path, Qwen/Qwen2.5-7B-Instruct, --per_device_train_batch_size, "2", --max_length, "4096"]
        resources: {limits: {nvidia.com/gpu: 4}}
"""
TASK = """\
type: task
env: [MODEL_ID=Qwen/Qwen2.5-1.5B-Instruct]
commands:
  - trl sft --model_name_or_path $MODEL_ID --per_device_train_batch_size 2 --max_length 2048 --use_peft --lora_r 32 --lora_target_modules all-linear
resources: {gpu: 24GB}
"""
KEYS = "model: {base_model: unsloth/Qwen2.5-7B-Instruct, load_in_4bit: true}\n"
KEYS += "training: {per_device_train_batch_size: 2, max_seq_length: 2048}\n"
SCRIPT = """\
from trl import SFTConfig, SFTTrainer
SFTTrainer("Qwen/Qwen2.5-7B-Instruct", args=SFTConfig(per_device_train_batch_size=2, max_length=4096)).train()
"""
MEGATRON = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
MEGATRON += "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 8 --fp16"
SEEN = "accelerate launch --num_processes $(( 4 * $N )) --num_machines $N run_clm.py --model_name_or_path gpt2 "
SEEN += "--per_device_train_batch_size 2 --block_size 1024 --bf16"
FIGURE = r"device memory needed"
HELD: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a script that is not there": ("", "estimate --gpu a100-80gb -- python t.py", ("names no model and no batch",)),
    "a release beside DeepSpeed": (
        MIXTRAL,
        "estimate c.yml --gpu a100-80gb --gpus-per-node 2 --framework-version 4.40",
        (r"parameters +22\.",),
    ),
    "no release beside DeepSpeed": (
        MIXTRAL,
        "estimate c.yml --gpu a100-80gb --gpus-per-node 2",
        (r"parameters +85\.", r"transformers 4 quantises \(4\.57"),
    ),
    "a variable of the caller": (SEEN, "estimate c.sh --gpu a100-80gb", ("say what its caller does: --define N=8",)),
    "its value": (SEEN, "estimate c.sh --gpu a100-80gb --define N=8", ("32 x a100-80gb", FIGURE)),
    "an adapter that is stated": (OWN, f"estimate c.sh --gpu a100-80gb {STATED}", ("167,772,160 trained", FIGURE)),
    "layers that are saved": (
        f"{OWN} --modules_to_save embed_tokens,lm_head",
        f"estimate c.sh --gpu a100-80gb {STATED}",
        ("1,218,445,312 trained",),
    ),
    "a vocabulary": (
        MEGATRON,
        "estimate c.sh --gpu a100-80gb --set model.architecture.vocab_size=50257",
        ("8 x a100-80gb; ?megatron|8 x a100-80gb, megatron", FIGURE),
    ),
    "text for a model that sees": (GEMMA, "estimate c.yaml", (r"activations +(?:\d{2}|1[0-3]\d)\.",)),
    "a manifest of Kubernetes": (JOB, "estimate c.yaml --gpu a100-80gb", ("4 x a100-80gb", FIGURE)),
    "a task of dstack": (TASK, "estimate c.dstack.yml --gpu rtx-4090", ("1 x rtx-4090", FIGURE)),
    "a file of one's own": (KEYS, "estimate c.yaml --gpu rtx-4090", ("--from keys", r"micro-batch 2 \(line 2\)")),
    "a script": (SCRIPT, "estimate c.py --gpu a100-80gb", ("7,615,616,512 parameters, 1 x", FIGURE)),
    "a limit of rows": (LONG, "check c.yml --gpu a100-80gb --gpus-per-node 2", ("MEM108", "longest row of a micro-batch")),
    "a row": (LONG, "check c.yml --gpu a100-80gb --gpus-per-node 2 --sequence-length 400", ("1 passed",)),
    "a job of verl": (
        "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct\n",
        "estimate c.sh --gpu h100-80gb",
        ("this is a verl job", "estimate the training step alone"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words", "said"), HELD.values(), ids=HELD)
def test_what_people_hold_has_its_answer(
    text: str,
    words: str,
    said: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A figure, or what to add; the file is the one that the command names."""
    monkeypatch.chdir(tmp_path)
    arguments = words.split()
    if text:
        Path(arguments[1]).write_text(text, encoding="utf-8")
    main(arguments)
    answer = "".join(capsys.readouterr())
    plain = " ".join(answer.split())
    assert all(re.search(each, plain) for each in said), answer
