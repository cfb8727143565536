"""The guard on real trainers with a tiny model, on a CPU: its plan, its verdict, what it measures, and its faults."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from memcheck.configs.answers import Beside  # noqa: E402
from memcheck.configs.importing import import_config  # noqa: E402
from memcheck.configs.types import ReadSetting  # noqa: E402
from memcheck.guard import MemcheckCallback, WillNotFit, before_training  # noqa: E402
from memcheck.guard import callback as guards  # noqa: E402  # after the check for what it needs

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

GPU = "a100-80gb"
SAVED = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """16 rows of 32 tokens."""

    def __len__(self) -> int:
        """Rows."""
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One row with its labels."""
        return {"input_ids": torch.arange(32), "labels": torch.arange(32)}


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of this machine is not the one that is named."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def llama(**changes: Any) -> Any:
    """A Llama of two layers, with random weights."""
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**{**sizes, "num_attention_heads": 4, "num_key_value_heads": 2, **changes})
    return transformers.LlamaForCausalLM(config)


def arguments(folder: Path, **changes: Any) -> Any:
    """TrainingArguments of four steps."""
    return transformers.TrainingArguments(str(folder), **{**SAVED, "max_steps": 4, **changes})


def test_a_trainer_is_judged_before_its_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict of a job that fits comes first; after three steps every resident term is measured and within 2 %."""
    callback = MemcheckCallback(gpu=GPU)
    assert isinstance(callback, transformers.TrainerCallback)
    trainer = transformers.Trainer(model=llama(), args=arguments(tmp_path), train_dataset=Rows(), callbacks=[callback])
    trainer.train()
    said = capsys.readouterr().err
    assert re.search(r"memcheck: Fits\. Needs .* GiB of each a100-80gb", said)
    assert all(term in said for term in ("weights", "gradients", "optimizer states"))
    assert "no term is off by more than 2%" in said
    assert callback.guard.result is not None


def test_a_job_that_does_not_fit_never_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exception comes before the first step and holds the verdict; `warn` says it and lets the job run."""
    vast = {"per_device_train_batch_size": 8}
    steps: list[int] = []

    class Count(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps.append(state.global_step)

    def run(action: str) -> None:
        watch = MemcheckCallback(gpu="t4", action=action, sequence_length=1_000_000)
        trainer = transformers.Trainer(
            model=llama(), args=arguments(tmp_path, max_steps=1, **vast), train_dataset=Rows(), callbacks=[watch, Count]
        )
        trainer.train()

    with pytest.raises(WillNotFit, match=r"Does not fit\. Needs .* GiB on each t4, which has .* GiB too much"):
        run("fail")
    assert steps == []
    run("warn")
    assert steps == [0]
    assert capsys.readouterr().err.count("memcheck: Does not fit.") == 2


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bf16": True, "gradient_checkpointing": True, "per_device_train_batch_size": 2, "optim": "adafactor"},
        {"gradient_accumulation_steps": 4, "max_grad_norm": 0.0, "optim": "adamw_torch"},
        {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 3, "label_smoothing_factor": 0.0},
    ],
)
def test_the_plan_is_what_the_reader_makes_of_the_same_file(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The objects give the plan that the transformers reader makes of a file with the same arguments."""
    model = llama()
    guard = before_training(model, arguments(tmp_path, **changes), gpu=GPU, sequence_length=64)
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict()))
    written = {"per_device_train_batch_size": 8, "max_length": 64, "optim": "adamw_torch_fused", "dtype": "float32"}
    stated = {"model.config": "config.json", "hardware.gpu": GPU, "hardware.gpus_per_node": 1, "hardware.nodes": 1}
    imported = import_config(
        "train.json",
        json.dumps({**written, **SAVED, "use_cpu": False, "max_steps": 4, **changes}).encode(),
        {key: ReadSetting(value, "stated") for key, value in stated.items()},
        "transformers",
        Beside(version=".".join(transformers.__version__.split(".")[:2])),
        str(tmp_path),
    )
    assert imported.problems == ()
    own = yaml.safe_load(guard.plan)
    file = yaml.safe_load(imported.text)
    for values in (own, file):
        values.pop("model")
        values.pop("hardware")
    assert own == file


def test_adapters_are_read_off_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank, targets, dtypes and what trains come from PEFT's own objects, and the counts agree with the plan's."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
    model = peft.get_peft_model(llama().to(torch.bfloat16), config)
    trainer = transformers.Trainer(
        model=model,
        args=arguments(tmp_path, bf16=True, label_names=["labels"]),
        train_dataset=Rows(),
        callbacks=[callback := MemcheckCallback(gpu=GPU)],
    )
    trainer.train()
    training = yaml.safe_load(callback.guard.plan)["training"]
    assert training["method"] == "lora"
    assert training["lora"]["rank"] == 4
    assert training["lora"]["target_modules"] == ["q_proj", "v_proj"]
    assert training["lora"]["dtype"] == "fp32"
    said = capsys.readouterr().err
    assert "parameters and its plan" not in said
    assert "warning" not in said


def test_frozen_layers_are_read_off_the_model(tmp_path: Path) -> None:
    """Whole parts that do not train become `training.freeze`; half a layer is a note, and never ends a job."""
    model = llama()
    for name, each in model.named_parameters():
        each.requires_grad = "layers.1." in name
    guard = before_training(model, arguments(tmp_path), gpu=GPU, sequence_length=64)
    assert yaml.safe_load(guard.plan)["training"]["freeze"] == ["embed", "norm", "head", "layers:0-1"]
    assert guard.result is not None
    assert guard.result.estimate is not None
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert guard.result.estimate.trainable_parameters == trained
    model.model.layers[1].mlp.requires_grad_(requires_grad=False)
    before_training(model, arguments(tmp_path), gpu="t4", sequence_length=1_000_000)


def test_a_loop_of_your_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Without TrainingArguments the optimizer and the keywords state the job, and steps are counted by the loop."""
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    guard = before_training(model, optimizer=optimizer, gpu=GPU, micro_batch_size=2, sequence_length=32)
    training = yaml.safe_load(guard.plan)["training"]
    assert (training["micro_batch_size"], training["optimizer"]["implementation"]) == (2, "foreach")
    for _ in range(3):
        ids = torch.randint(0, 512, (2, 32))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        guard.step()
        optimizer.zero_grad()
    said = capsys.readouterr().err
    assert "no term is off by more than 2%" in said


def test_a_term_that_is_off_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """An optimizer that holds another state than the plan says is the term that the comparison names."""
    model = llama()
    guard = before_training(model, gpu=GPU, arguments={"optim": "sgd"}, micro_batch_size=1, sequence_length=32)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        ids = torch.randint(0, 512, (1, 32))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        guard.step(optimizer)
    assert "furthest off: optimizer states" in capsys.readouterr().err


def test_without_a_gpu_nothing_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A run on a CPU that names no GPU is told so in one line."""
    guard = before_training(llama(), arguments(tmp_path))
    assert guard.result is None
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("memcheck")]
    assert "names one" in line
    guard.step()


def test_a_length_that_nobody_states_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy is a keyword of the guard, no option of the command line."""
    before_training(llama(), gpu=GPU, micro_batch_size=1)
    said = capsys.readouterr().err
    assert "warning: this job is not checked" in said
    assert "sequence_length=4096" in said


def test_what_others_hold_is_taken_off_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a GPU the driver's figures lower the capacity. Here they are stated in its place, and 79 of 80 GiB are in use.

    The comparison then has the allocator's peaks, of which the resident terms leave the activations.
    """
    gib = 2**30
    stated = {
        "is_available": True,
        "device_count": 1,
        "get_device_name": "NVIDIA A100-SXM4-80GB",
        "memory_reserved": 0,
        "max_memory_allocated": gib,
        "max_memory_reserved": gib,
    }
    for name, value in stated.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    model = llama()
    said = {}
    for free in (79.5, 1):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_, free=free: (free * gib, 80 * gib))
        guard = before_training(model, micro_batch_size=8, sequence_length=2048, action="warn", steps=1)
        said[free] = capsys.readouterr().err
    assert "of the 79.15 GiB" in said[79.5]
    assert "memcheck: Fits." in said[79.5]
    assert "others hold 78.4" in said[1]
    assert "memcheck: Does not fit." in said[1]
    guard.step(torch.optim.SGD(model.parameters()))
    assert "allocated 1.000 and" in capsys.readouterr().err


def test_sharding_is_read_off_the_engine(tmp_path: Path) -> None:
    """DeepSpeed's config as the Trainer holds it, and FSDP as Accelerate runs it, become the plan's."""
    args = arguments(tmp_path)
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    args.hf_deepspeed_config = SimpleNamespace(config={"zero_optimization": zero, "bf16": {"enabled": True}})
    plan = yaml.safe_load(before_training(llama(), args, gpu=GPU, sequence_length=64).plan)
    assert plan["training"]["framework"] == "deepspeed"
    assert plan["parallelism"]["zero_stage"] == 2
    accelerate = pytest.importorskip("accelerate")
    args = arguments(tmp_path)
    shared = accelerate.state.AcceleratorState._shared_state  # what a launcher sets up
    shared["fsdp_plugin"] = SimpleNamespace(fsdp_version=2, reshard_after_forward=True, activation_checkpointing=True)
    try:
        plan = yaml.safe_load(before_training(llama(), args, gpu=GPU, sequence_length=64).plan)
    finally:
        del shared["fsdp_plugin"]
    assert plan["parallelism"]["zero_stage"] == 3
    assert plan["training"]["activation_checkpointing"]["mode"] == "full"


class Hostile:
    """Every attribute is a fault."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("\x1b[31mno\x1b[0m\nsecond line")


@pytest.mark.parametrize("model", [Hostile, type(None), lambda: torch.nn.Linear(2, 2), object])
@pytest.mark.parametrize("args", [type(None), Hostile, dict])
def test_faults_never_escape(model: Any, args: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Objects of any kind make one line of warning, without escape sequences, and the job goes on."""
    guard = before_training(model(), args(), gpu=GPU, micro_batch_size=1, sequence_length=8)
    assert guard.result is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memcheck: warning: ")
    assert "\x1b" not in line


def test_a_fault_inside_never_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A defect of memcheck, in judging or in comparing, is one line of warning, and every step runs."""

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("defect")

    monkeypatch.setattr(guards, "compared", fails)
    trainer = transformers.Trainer(
        model=llama(), args=arguments(tmp_path), train_dataset=Rows(), callbacks=[MemcheckCallback(gpu=GPU)]
    )
    trainer.train()
    monkeypatch.setattr(guards, "read_job", fails)
    trainer.train()
    said = [line for line in capsys.readouterr().err.splitlines() if "the guard failed and the job goes on" in line]
    assert len(said) == 2


def test_the_plan_is_written_and_passes_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`write` leaves a plan that `memcheck check` reads by itself; a file that is there is not overwritten."""
    plan = tmp_path / "plan.yaml"
    before_training(llama(), arguments(tmp_path), gpu=GPU, sequence_length=64, write=str(plan))
    command = [sys.executable, "-m", "memcheck", "check", "plan.yaml"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    first = plan.read_text()
    capsys.readouterr()
    before_training(llama(), arguments(tmp_path), gpu=GPU, sequence_length=64, write=str(plan))
    assert "differs" not in capsys.readouterr().err
    before_training(llama(), arguments(tmp_path), gpu=GPU, sequence_length=128, write=str(plan))
    assert "plan.yaml exists and differs from this job" in capsys.readouterr().err
    assert plan.read_text() == first


def test_it_takes_less_than_a_second(tmp_path: Path) -> None:
    """A model of 7 billion parameters, on the meta device, is judged within a second."""
    with torch.device("meta"):
        model = llama(
            vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
        )
    args = arguments(tmp_path)
    begun = time.process_time()
    with pytest.raises(WillNotFit):
        before_training(model, args, gpu=GPU, sequence_length=2048)
    assert time.process_time() - begun < 1


def test_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TRL's SFTTrainer: its defaults, read off the config, and the resident terms of its first steps."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    table = datasets.table.InMemoryTable.from_pydict({"input_ids": [list(range(1, 33))] * 16})
    rows = datasets.Dataset(table, fingerprint="rows")
    args = trl.SFTConfig(str(tmp_path), **SAVED, max_steps=4, max_length=32, packing=False, bf16=False)
    special = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<e>")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=_tokenizer(), **special)
    callback = MemcheckCallback(gpu=GPU)
    trainer = trl.SFTTrainer(
        model=llama(), args=args, train_dataset=rows, processing_class=tokenizer, callbacks=[callback]
    )
    trainer.train()
    training = yaml.safe_load(callback.guard.plan)["training"]
    assert training["trainer"]["name"] == "trl"
    assert training["activation_checkpointing"]["mode"] == ("full" if args.gradient_checkpointing else "none")
    assert training["sequence_length"] == 32
    said = capsys.readouterr().err
    assert "memcheck: Fits." in said
    assert "no term is off by more than 2%" in said
    with pytest.raises(AttributeError):
        guards.nothing_of_this_name  # noqa: B018
    rollouts = trl.GRPOConfig(str(tmp_path), **SAVED, bf16=False)
    before_training(llama(), rollouts, gpu=GPU)
    assert "TRL's GRPOConfig has no memory model here" in capsys.readouterr().err


def _tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({"<e>": 0, "a": 1}, unk_token="<e>"))  # noqa: S106  # no password


DDP = """
import os, sys, torch, transformers
from memcheck.guard import MemcheckCallback
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return {"input_ids": torch.arange(32), "labels": torch.arange(32)}
config = transformers.LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2)
args = transformers.TrainingArguments(sys.argv[1], max_steps=4, report_to=[], save_strategy="no", use_cpu=True,
    ddp_backend="gloo", disable_tqdm=True)
callback = MemcheckCallback(gpu="a100-80gb", write=sys.argv[1] + "/plan.yaml")
transformers.Trainer(model=transformers.LlamaForCausalLM(config), args=args, train_dataset=Rows(),
    callbacks=[callback]).train()
assert callback.guard.result is not None
torch.distributed.barrier()
torch.distributed.destroy_process_group()
sys.stderr.flush()
os._exit(0)  # gloo's threads may abort an interpreter that ends by itself
"""


def test_ddp_on_two_processes(tmp_path: Path, root: Path) -> None:
    """Two processes over gloo: the plan has two GPUs, and only the first process speaks and writes."""
    script = tmp_path / "train.py"
    script.write_text(DDP)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    command = [*launcher, str(script), str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("memcheck: Fits.") == 1
    assert run.stderr.count("memcheck: measured and predicted GiB") == 1
    assert "no term is off by more than 2%" in run.stderr
    assert "gpus_per_node: 2" in (tmp_path / "plan.yaml").read_text()
