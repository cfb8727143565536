"""What remedies tell the owner of a config to write: written into the config, it is read as the changed plan."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from memcheck.configs.config_words import said_so
from memcheck.configs.direct import config_document
from memcheck.configs.edits import edit_toml
from memcheck.configs.key_table import formats, key_table
from memcheck.configs.plan_text import spelled_out, value_at
from memcheck.configs.sourced_edits import alike
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.changes import spelled
from memcheck.job.resolve import Resolved, resolve
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan, with_changes
from memcheck.plan.value_edits import edited

MODE, OFFLOAD = "training.activation_checkpointing.mode", "training.activation_checkpointing.offload"
MICRO, STEPS, LENGTH = "training.micro_batch_size", "training.gradient_accumulation_steps", "training.sequence_length"
STAGE, LOSS, OPTIMIZER = "parallelism.zero_stage", "training.loss.kind", "training.optimizer.name"
PARAMETERS, METHOD, PRECISION = "training.offload.parameters", "training.method", "training.precision.recipe"
EIGHT = {"gpu": "a100-80gb", "gpus_per_node": 8}
ALONE = {"gpu": "a100-80gb"}


class Job(NamedTuple):
    """A config, and the lines for changes of its plan."""

    path: str
    text: str
    stated: Mapping[str, object]
    lines: tuple[tuple[dict[str, object], str], ...]


JOBS = {
    "trl": Job(
        "sft.yaml",
        "model_name_or_path: Qwen/Qwen2.5-7B\ndataset_name: a\nper_device_train_batch_size: 8\nmax_length: 4096\n"
        "bf16: true\ngradient_checkpointing: false\neval_strategy: steps\n",
        EIGHT,
        (
            ({MICRO: 2, STEPS: 4}, "per_device_train_batch_size: 2; gradient_accumulation_steps: 4"),
            ({LENGTH: 2048}, "max_length: 2048"),
            ({"training.attention": "flash"}, "attn_implementation: flash_attention_2"),
            ({OPTIMIZER: "adamw-8bit"}, "optim: adamw_bnb_8bit"),
            ({MODE: "full"}, "gradient_checkpointing: true"),
            ({MODE: "full", OFFLOAD: "cpu"}, "gradient_checkpointing: true; activation_offloading: true"),
            ({LOSS: "chunked"}, "loss_type: chunked_nll"),
            ({PRECISION: "bf16-pure"}, "bf16: false, dtype: bfloat16"),
            ({METHOD: "lora"}, "use_peft: true, lora_target_modules: all-linear, lora_dropout: 0.0"),
            ({"training.evaluation.micro_batch_size": 4}, "per_device_eval_batch_size: 4"),
            ({"training.evaluation.logits": "dropped"}, "prediction_loss_only: true"),
            ({"training.checkpoint.optimizer": False}, "save_only_model: true"),
            ({STAGE: 3}, "fsdp: full_shard auto_wrap"),
            ({PARAMETERS: "cpu", STAGE: 3}, "fsdp: full_shard auto_wrap offload"),
            ({"training.expandable_segments": True}, "PYTORCH_ALLOC_CONF=expandable_segments:True in the environment"),
            ({"hardware.gpu": "b300"}, "memcheck --gpu b300"),
        ),
    ),
    "transformers": Job(
        "train.sh",
        "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --do_train --block_size 1024"
        " --per_device_train_batch_size 8 --bf16 --dtype bfloat16 --gradient_checkpointing true",
        ALONE,
        (
            ({MICRO: 2, STEPS: 4}, "--per_device_train_batch_size 2; --gradient_accumulation_steps 4"),
            ({LENGTH: 512}, "--block_size 512"),
            ({OFFLOAD: "cpu"}, "--gradient_checkpointing_kwargs '{\"offload\": true}'"),
            ({STAGE: 3}, '--fsdp "full_shard auto_wrap"'),
            ({LOSS: "fused-linear"}, "--use_liger_kernel true"),
        ),
    ),
    "axolotl": Job(
        "axolotl.yaml",
        "base_model: Qwen/Qwen2.5-7B\ndatasets: [{path: a}]\nmicro_batch_size: 4\nsequence_len: 4096\nbf16: true\n"
        "optimizer: adamw_torch\n",
        EIGHT,
        (
            ({MICRO: 2, STEPS: 2}, "micro_batch_size: 2; gradient_accumulation_steps: 2"),
            ({LENGTH: 2048}, "sequence_len: 2048"),
            ({"training.optimizer.implementation": "fused"}, "optimizer: adamw_torch_fused"),
            ({OPTIMIZER: "adamw-8bit"}, "optimizer: adamw_bnb_8bit"),
            ({MODE: "full", OFFLOAD: "cpu"}, "gradient_checkpointing: true; activation_offloading: true"),
            ({LOSS: "chunked"}, "chunked_cross_entropy: true"),
            ({LOSS: "fused-linear"}, "liger_fused_linear_cross_entropy: true"),
            ({PRECISION: "bf16-pure"}, "bf16: full"),
            ({METHOD: "lora"}, "adapter: lora, lora_target_linear: true"),
            ({STAGE: 3}, "fsdp_version: 2, fsdp_config.auto_wrap_policy: TRANSFORMER_BASED_WRAP"),
            ({"parallelism.context": 2}, "context_parallel_size: 2"),
        ),
    ),
    "llamafactory": Job(
        "lf.yaml",
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len: 4096\n"
        "per_device_train_batch_size: 4\nbf16: true\ndisable_gradient_checkpointing: true\n",
        EIGHT,
        (
            ({MICRO: 2, STEPS: 2}, "per_device_train_batch_size: 2; gradient_accumulation_steps: 2"),
            ({LENGTH: 2048}, "cutoff_len: 2048"),
            ({"training.attention": "flash"}, "flash_attn: fa2"),
            ({MODE: "full", OFFLOAD: "cpu"}, "disable_gradient_checkpointing: false; use_unsloth_gc: true"),
            ({LOSS: "fused-linear"}, "enable_liger_kernel: true"),
            ({PRECISION: "bf16-pure"}, "pure_bf16: true"),
            ({METHOD: "lora"}, "finetuning_type: lora"),
            ({METHOD: "qlora"}, "finetuning_type: lora, quantization_bit: 4"),
            ({STAGE: 3}, "fsdp: full_shard auto_wrap"),
        ),
    ),
    "ms-swift": Job(
        "swift.sh",
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --train_type full --torch_dtype bfloat16"
        " --per_device_train_batch_size 4 --max_length 4096 --gradient_checkpointing false",
        ALONE,
        (
            ({MICRO: 2, STEPS: 2}, "--per_device_train_batch_size 2; --gradient_accumulation_steps 2"),
            ({LENGTH: 2048}, "--max_length 2048"),
            ({"training.attention": "flash"}, "--attn_impl flash_attn"),
            ({MODE: "full"}, "--gradient_checkpointing true"),
            ({METHOD: "lora"}, "--train_type lora, --lora_dropout 0.0"),
            ({STAGE: 3}, "--fsdp fsdp2"),
            ({"parallelism.context": 2}, "--sequence_parallel_size 2"),
        ),
    ),
    "python": Job(
        "train.py",
        "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig(output_dir='a', per_device_train_batch_size=4,"
        " max_length=4096, bf16=True, gradient_checkpointing=False)\n"
        "SFTTrainer(model='Qwen/Qwen2.5-7B', args=args).train()\n",
        EIGHT,
        (
            ({MICRO: 2, STEPS: 2}, "per_device_train_batch_size=2; gradient_accumulation_steps=2"),
            ({LENGTH: 2048}, "max_length=2048"),
            ({OPTIMIZER: "adamw-8bit"}, 'optim="adamw_bnb_8bit"'),
            ({MODE: "full", OFFLOAD: "cpu"}, "gradient_checkpointing=True; activation_offloading=True"),
            ({LOSS: "chunked"}, 'loss_type="chunked_nll"'),
            ({STAGE: 3}, 'fsdp="full_shard auto_wrap"'),
            ({METHOD: "lora"}, ""),
            ({"training.attention": "flash"}, 'model_init_kwargs={"attn_implementation": "flash_attention_2"}'),
        ),
    ),
    "torchtune": Job(
        "tune.yaml",
        "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\ntokenizer: {max_seq_len: 4096}\n"
        "dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}\n"
        "optimizer: {_component_: torch.optim.AdamW}\nbatch_size: 4\ndtype: bf16\n"
        "loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}\n",
        EIGHT,
        (
            ({MICRO: 2, STEPS: 2}, "batch_size: 2; gradient_accumulation_steps: 2"),
            ({LENGTH: 2048}, "tokenizer.max_seq_len: 2048"),
            (
                {MODE: "full", OFFLOAD: "cpu"},
                "enable_activation_checkpointing: true; enable_activation_offloading: true",
            ),
            ({"training.optimizer.in_backward": True}, "optimizer_in_bwd: true"),
            ({"training.optimizer.implementation": "fused"}, "optimizer.fused: true"),
            ({OPTIMIZER: "adamw-8bit"}, "optimizer._component_: bitsandbytes.optim.AdamW8bit"),
            ({LOSS: "fused-linear"}, "loss._component_: torchtune.modules.loss.LinearCrossEntropyLoss"),
            ({PARAMETERS: "cpu"}, "fsdp_cpu_offload: true"),
        ),
    ),
    "litgpt": Job(
        "full.yaml",
        "checkpoint_dir: checkpoints/meta-llama/Llama-3.1-8B\nout_dir: out/full\nresume: false\ndevices: 1\n"
        "precision: bf16-mixed\ntrain: {max_seq_length: 4096, micro_batch_size: 4, global_batch_size: 64}\n",
        ALONE,
        (
            ({MICRO: 2, STEPS: 32}, "train.micro_batch_size: 2"),
            ({LENGTH: 2048}, "train.max_seq_length: 2048"),
            ({PRECISION: "bf16-pure"}, "precision: bf16-true"),
            ({OPTIMIZER: "adamw-8bit"}, "optimizer.class_path: bitsandbytes.optim.AdamW8bit"),
        ),
    ),
    "deepspeed": Job(
        "ds.json",
        '{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}',
        {**EIGHT, "model": "llama-3.1-8b", "sequence_length": 4096},
        (
            ({MICRO: 2, STEPS: 4}, "train_micro_batch_size_per_gpu: 2; gradient_accumulation_steps: 4"),
            ({STAGE: 3}, "zero_optimization.stage: 3"),
            ({"training.optimizer.offload": "cpu"}, "zero_optimization.offload_optimizer.device: cpu"),
            (
                {STAGE: 3, PARAMETERS: "cpu"},
                "zero_optimization.stage: 3; zero_optimization.offload_param.device: cpu",
            ),
            ({"training.options.reduce_bucket_size": 50000000}, "zero_optimization.reduce_bucket_size: 50000000"),
            ({LENGTH: 2048}, "memcheck --sequence-length 2048"),
        ),
    ),
    "torchtitan": Job(
        "titan.toml",
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\nseq_len = 8192\n'
        '[activation_checkpoint]\nmode = "none"\n',
        EIGHT,
        (
            ({LENGTH: 4096}, "training.seq_len = 4096"),
            ({MODE: "full"}, 'activation_checkpoint.mode = "full"'),
            ({"parallelism.tensor": 2}, "parallelism.tensor_parallel_degree = 2"),
            ({PARAMETERS: "cpu"}, "training.enable_cpu_offload = true"),
        ),
    ),
    "megatron": Job(
        "megatron.sh",
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
        " --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm"
        " --disable-bias-linear --position-embedding-type rope --seq-length 8192 --max-position-embeddings 8192"
        " --vocab-size 128256 --micro-batch-size 4 --global-batch-size 128 --tensor-model-parallel-size 2 --bf16",
        ALONE,
        (
            ({MICRO: 1}, "--micro-batch-size 1"),
            ({LENGTH: 4096}, "--seq-length 4096"),
            ({STAGE: 1}, "--use-distributed-optimizer"),
            ({"parallelism.tensor": 4}, "--tensor-model-parallel-size 4"),
            ({"parallelism.sequence": True}, "--sequence-parallel"),
            ({MODE: "selective"}, "--recompute-granularity selective"),
        ),
    ),
    "megatron-swift": Job(
        "swift.sh",
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --micro_batch_size 8 --global_batch_size 64"
        " --max_length 8192 --train_type full --packing true",
        ALONE,
        (
            ({MICRO: 2}, "--micro_batch_size 2"),
            ({LENGTH: 4096}, "--max_length 4096"),
            ({"parallelism.tensor": 2}, "--tensor_model_parallel_size 2, --sequence_parallel true"),
            ({"parallelism.context": 4}, "--context_parallel_size 4"),
        ),
    ),
    "Megatron-Bridge": Job(
        "bridge.sh",
        "torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config train.micro_batch_size=8",
        ALONE,
        (
            ({MICRO: 1}, "train.micro_batch_size=1"),
            ({"parallelism.tensor": 4}, "model.tensor_model_parallel_size=4, model.sequence_parallel=true"),
        ),
    ),
    "nanotron": Job(
        "nano.yaml",
        "parallelism: {dp: 2, tp: 2, pp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}\n"
        "tokens: {sequence_length: 8192, micro_batch_size: 8, batch_accumulation_per_replica: 2}\n"
        "model: {dtype: bfloat16, model_config: {is_llama_config: true, hidden_size: 4096, intermediate_size: 14336,"
        " num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256}}\n"
        "optimizer: {zero_stage: 0, accumulate_grad_in_fp32: true, optimizer_factory: {name: adamW}}\n",
        ALONE,
        (
            ({MICRO: 1, STEPS: 16}, "tokens.micro_batch_size: 1; tokens.batch_accumulation_per_replica: 16"),
            ({"parallelism.tensor": 4, "parallelism.data": 1}, "parallelism.tp: 4; parallelism.dp: 1"),
            ({MODE: "full"}, "parallelism.recompute_layer: true"),
            ({STAGE: 1}, "optimizer.zero_stage: 1"),
        ),
    ),
    "automodel": Job(
        "recipe.yaml",
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
        "step_scheduler: {global_batch_size: 64, local_batch_size: 8}\ndistributed: {strategy: fsdp2, tp_size: 1}\n"
        "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained,"
        " pretrained_model_name_or_path: meta-llama/Llama-3.1-8B}\n"
        "packed_sequence: {packed_sequence_size: 8192}\noptimizer: {_target_: torch.optim.AdamW}\n",
        EIGHT,
        (
            ({MICRO: 1}, "step_scheduler.local_batch_size: 1"),
            ({LENGTH: 4096}, "packed_sequence.packed_sequence_size: 4096"),
            ({"parallelism.tensor": 2}, "distributed.tp_size: 2"),
            ({"parallelism.context": 2}, "distributed.cp_size: 2"),
            ({OPTIMIZER: "adamw-8bit"}, "optimizer._target_: bitsandbytes.optim.AdamW8bit"),
        ),
    ),
    "vllm": Job(
        "serve.sh",
        "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 2 --max-model-len 8192",
        ALONE,
        (
            ({"inference.tensor": 4, "hardware.gpus_per_node": 4}, "--tensor-parallel-size 4"),
            ({"inference.max_model_len": 4096}, "--max-model-len 4096"),
            ({"inference.enforce_eager": True}, "--enforce-eager"),
            ({"inference.kv_cache": "fp8"}, "--kv-cache-dtype fp8"),
            ({"inference.max_num_seqs": 64}, "--max-num-seqs 64"),
        ),
    ),
    "keys": Job(
        "own.yaml",
        "model_name: Qwen/Qwen2.5-7B\ntrain: {batch_size: 4, max_seq_len: 4096, grad_accum: 2}\nbf16: true\nlr: 1e-5\n",
        {**EIGHT, "format": "keys"},
        (
            ({MICRO: 2, STEPS: 4}, "train.batch_size: 2; train.grad_accum: 4"),
            ({LENGTH: 2048}, "train.max_seq_len: 2048"),
            ({MODE: "full"}, ""),
        ),
    ),
}
CASES = [(name, *line) for name, job in JOBS.items() for line in job.lines]


def read(job: Job, text: str = "") -> Document:
    """The document of a config."""
    found = config_document(job.path, (text or job.text).encode(), job.stated)
    assert found is not None
    return found


def resolved(document: Document) -> Resolved:
    """The job of a document."""
    plan, findings = read_plan(document)
    assert plan is not None, findings
    return resolve(plan, FRAMEWORKS, base_dir="")


def written(job: Job, line: str) -> str:
    """The text of a config in which somebody wrote a line."""
    text = job.text
    for part in line.split(", ") if not job.path.endswith(".sh") else re.split(r", (?=--|\w+\.)", line):
        if job.path.endswith(".toml"):
            key, _, value = part.partition(" = ")
            text = edited(text.encode(), edit_toml(job.path, text, {key: json.loads(value)})).decode()
        elif job.path.endswith(".sh"):
            old = re.escape(part.split()[0].partition("=")[0])
            text = re.sub(rf"{old}\b(?:=\S+| [^-\s]\S*)?", "", text) + f" {part}"
        elif job.path.endswith(".py"):
            text = re.sub(rf" {part.partition('=')[0]}=[^,)]+,?", "", text).replace("SFTConfig(", f"SFTConfig({part}, ")
        else:
            key, _, value = part.partition(": ")
            text = yaml.safe_dump(_set(yaml.safe_load(text), key.split("."), yaml.safe_load(value)))
            text = json.dumps(yaml.safe_load(text)) if job.path.endswith(".json") else text
        job = job._replace(text=text)
    return text


def _set(values: Any, parts: list[str], value: object) -> Any:
    table = values
    for part in parts[:-1]:
        table = table.setdefault(part, {})
    table[parts[-1]] = value
    return values


@pytest.mark.parametrize(("name", "changes", "line"), CASES, ids=[f"{name}-{line}" for name, _, line in CASES])
def test_words_are_read_as_the_change(name: str, changes: dict[str, object], line: str) -> None:
    """What is said of a change, written into the config, gives the plan its new values."""
    job = JOBS[name]
    before = read(job)
    spelling = spelled(before, changes, resolved(before).job)
    wanted = resolved(with_changes(before, spelling))
    found = said_so(before, spelling, wanted)
    assert "; ".join(each for each in found.values() if each) == line
    words = [each for each in found.values() if each and not each.startswith("memcheck ") and "environment" not in each]
    for each in words:
        job = job._replace(text=written(job, each))
    after = read(job)
    if words:
        for key, value in changes.items():
            now = value_at(after.values, key) or value_at(after.values, spelled_out(key.rpartition(".")[0]))
            assert now == value or alike(resolved(after), wanted), key


def test_a_launch_says_what_its_recipe_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the YAML that a launch names are said as YAML, and an argument of the launch as an argument."""
    monkeypatch.chdir(tmp_path)
    recipe = JOBS["trl"].text
    Path("sft.yaml").write_text(recipe)
    launch = "torchrun --nproc_per_node 8 sft.py --config sft.yaml --per-device-train-batch-size 8\n"
    before = read(Job("go.sh", launch, ALONE, ()))
    changes: dict[str, object] = {MICRO: 4, LENGTH: 2048}
    found = said_so(before, changes, resolved(with_changes(before, changes)))
    assert found == {MICRO: "--per-device-train-batch-size 4", LENGTH: "max_length: 2048"}


def test_a_launch_says_what_its_script_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keywords of the script that a launch runs, which has the values."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(JOBS["python"].text)
    before = read(Job("go.sh", "torchrun --nproc_per_node 1 train.py\n", ALONE, ()))
    changes: dict[str, object] = {MICRO: 2}
    assert said_so(before, changes, resolved(with_changes(before, changes))) == {MICRO: "per_device_train_batch_size=2"}


def test_each_table_of_words_has_cases() -> None:
    """A format whose table proposes words is among the configs here."""
    assert {name for name in formats() if key_table(name).written} <= set(JOBS)
