"""The machine that a platform's file asks for, by whatever words, and the launch in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memcheck.configs.launch_devices import hinted_gpu
from memcheck.configs.next_command import gpu_named, seen
from memcheck.configs.syntax import ARGUMENTS, load_config
from memcheck.configs.wrapper_command import CALLS, LEARNS, RUNS, STARTS, TRAINS, YAML_KINDS, build_title, rank
from memcheck.configs.wrappers import of_build_file, wrapped
from memcheck.judge import Gate, check_file
from memcheck.rules.result import PlanResult

SFT = (
    "-m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 1 --max_length 1024 --bf16"
)

K8S = "apiVersion: batch/v1\nkind: Job\nspec: {{{spec}}}\ncommand: [torchrun, train.py]\n"


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        (K8S.format(spec="resources: {limits: {nvidia.com/gpu: '4'}}"), ("", 4, 1)),
        (K8S.format(spec="nodeSelector: {node.kubernetes.io/instance-type: p4de.24xlarge}"), ("a100-80gb", 8, 1)),
        (
            K8S.format(spec="limits: {nvidia.com/gpu: 2}, nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}"),
            ("l4", 2, 1),
        ),
        (
            K8S.format(spec="nprocPerNode: '8', pytorchReplicaSpecs: {Master: {replicas: 1}, Worker: {replicas: 3}}"),
            ("", 8, 4),
        ),
        (K8S.format(spec="mpiReplicaSpecs: {Launcher: {replicas: 1}, Worker: {replicas: 2}}"), ("", 0, 2)),
        (K8S.format(spec="replicatedJobs: [{replicas: 2, template: {spec: {parallelism: 3}}}]"), ("", 0, 6)),
        (K8S.format(spec="completionMode: Indexed, parallelism: 4"), ("", 0, 4)),
        (K8S.format(spec="parallelism: 4"), ("", 0, 1)),
        (K8S.format(spec="trainer: {numNodes: 2, numProcPerNode: 8}"), ("", 8, 2)),
        ("resources: {accelerators: 'H100:8'}\nnum_nodes: 2\nrun: torchrun a.py\n", ("h100-80gb", 8, 2)),
        ("resources: {accelerators: {A100-80GB: 4}}\nrun: torchrun a.py\n", ("a100-80gb", 4, 1)),
        ("resources: {accelerators: [L4, A10G]}\nrun: torchrun a.py\n", ("l4", 1, 1)),
        ("type: task\ncommands: [torchrun a.py]\nresources: {gpu: 24GB}\n", ("", 1, 1)),
        ("type: task\ncommands: [torchrun a.py]\nresources: {gpu: 'A100:80GB:4'}\nnodes: 2\n", ("a100-80gb", 4, 2)),
        ("type: task\ncommands: [torchrun a.py]\nresources: {gpu: {name: H100, count: 8}}\n", ("h100-80gb", 8, 1)),
        ("type: task\ncommands: [torchrun a.py]\nresources: {gpu: 2}\n", ("", 2, 1)),
        (
            "services:\n  a: {image: x, command: torchrun a.py, deploy: {devices: [{count: 2}]}}\n",
            ("", 2, 1),
        ),
        (
            K8S.format(
                spec="headGroupSpec: {a: 1}, workerGroupSpecs: [{replicas: 3, limits: {nvidia.com/gpu: 8}}, {replicas: 5}]"
            ),
            ("", 8, 3),
        ),
        (K8S.format(spec="tasks: [{replicas: 2, limits: {nvidia.com/gpu: 4}}, {replicas: 1}]"), ("", 4, 2)),
        (K8S.format(spec="limits: {nvidia.com/a100: 2}"), ("a100-40gb", 2, 1)),
        (
            K8S.format(
                spec="affinity: [{key: gpu.nvidia.com/class, operator: In, values: [A40]}], limits: {nvidia.com/gpu: 8}"
            ),
            ("a40", 8, 1),
        ),
        (K8S.format(spec="paddleReplicaSpecs: {Worker: {replicas: 4}}"), ("", 0, 4)),
        (
            "services:\n  a: {image: x, command: torchrun a.py, deploy: {devices: [{device_ids: ['0', '3']}]}}\n",
            ("", 2, 1),
        ),
        (
            "on: push\njobs:\n  a:\n    runs-on: [self-hosted, gpu, h200]\n    steps: [{run: torchrun a.py}]\n",
            ("h200", 0, 1),
        ),
        ("stages: [train]\na:\n  stage: train\n  script: [torchrun --nproc_per_node 2 a.py]\n", ("", 2, 1)),
        ("compute: {gpus: 16, gpu_type: h100_80gb}\ncommand: torchrun a.py\n", ("h100-80gb", 16, 1)),
        (K8S.format(spec="a: b").replace("[torchrun, ", "[torchrun, --nproc-per-node=4, --nnodes, '3', "), ("", 4, 3)),
        (K8S.format(spec="limits: {nvidia.com/gpu: 99999999}, numNodes: 999"), ("", 0, 64)),
        (K8S.format(spec="limits: {nvidia.com/gpu: -3}, numNodes: x"), ("", 0, 1)),
    ],
)
def test_the_machine_is_what_the_file_asks_for(text: str, machine: tuple[str, int, int]) -> None:
    """A GPU of the catalog, how many a node has (0: not said), and how many nodes."""
    found = wrapped("a.yaml", text)
    assert found is not None
    assert found.words[:1] == ("torchrun",)
    assert tuple(found.machine) == machine


@pytest.mark.parametrize(
    "text",
    ["model: a\ntraining: {x: 1}\n", "kind: a\n", "type: lora\nr: 8\n", "- torchrun a.py\n", "a: [\n", "run: {a: 1}\n"],
)
def test_other_files_start_nothing(text: str) -> None:
    """Keys that a platform's files have as well are no evidence."""
    found = wrapped("a.yaml", text)
    assert found is None or not found.titled


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("nvidia-h100-mega-80gb", "h100-80gb"),
        ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
        ("nvidia-h200-141gb", "h200"),
        ("nvidia-tesla-t4", "t4"),
        ("a100", "a100-40gb"),
        ("p5.48xlarge", "h100-80gb"),
        ("apple-m3", ""),
        (8, ""),
    ],
)
def test_a_gpu_has_many_names(name: object, gpu: str) -> None:
    """The smaller card where a name stands for two."""
    assert gpu_named(name)[0] == gpu


def test_a_files_own_names_are_seen_at_any_depth() -> None:
    """Those of a plan as well as any tool's."""
    found = seen(
        {"a": {"b": [{"sequence_length": 512, "gpus": 4}]}, "qlora": {"r": 8}, "batch": 3, "llm": "x/qwen2.5-7b"}
    )
    assert (found.length, found.gpus, found.method, found.batch) == (512, 4, "qlora", 3)


@pytest.mark.parametrize(
    ("text", "rank_of"),
    [
        ("torchrun x.py --per_device_train_batch_size 1", TRAINS),
        ("python train.py --config a.yaml", TRAINS),
        ("torchrun x.py", STARTS),
        ("oumi train -c a", LEARNS),
        ("python -m src.training.pipeline", LEARNS),
        ("$TORCHRUN scripts/train.py", LEARNS),
        ("bash scripts/finetune.sh", CALLS),
        ("python server.py", RUNS),
        ("kube-linter lint --config .kube-linter.yaml", 0),
        ("echo python train.py", 0),
        ("if ! command -v torchrun >/dev/null", 0),
        ("pip install -r train.txt", 0),
        ("bash setup.sh", 0),
    ],
)
def test_a_command_is_ranked_by_what_it_launches(text: str, rank_of: int) -> None:
    """A stated training before a launcher, a program of that name, a script, and any other Python."""
    assert rank(text) == rank_of


MAKEFILE = f"""\
PYTHON ?= python
MODEL := Qwen/Qwen2.5-0.5B
GPUS = 2
.PHONY: train lint
lint:
\t@ruff check --config x.yaml .
train: data
\t@echo "python train.py"
\t-torchrun --nproc_per_node=$(GPUS) \\
\t  {SFT.replace("Qwen/Qwen2.5-0.5B", "$(MODEL)")}
"""


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("Makefile", MAKEFILE, 9),
        ("build/train.mk", MAKEFILE, 9),
        (
            "justfile",
            f"gpus := '2'\nlint:\n    ruff check .\ntrain:\n    torchrun --nproc_per_node={{{{gpus}}}} {SFT}\n",
            5,
        ),
        ("Dockerfile", f"FROM a/b:1\nENV N=2\nRUN pip install trl\nCMD torchrun --nproc_per_node=$N {SFT}\n", 4),
        (
            "Dockerfile.train",
            'FROM a/b:1\nENTRYPOINT ["torchrun", "--nproc_per_node=2"]\nCMD ["' + SFT.replace(" ", '", "') + '"]\n',
            3,
        ),
    ],
    ids=["make", "mk", "just", "docker", "docker json"],
)
def test_the_launch_of_a_build_file_is_checked_on_its_line(path: str, text: str, line: int) -> None:
    """Variables of make and just are those of the shell, and a command over two instructions is one."""
    found = of_build_file(path, text)
    assert found is not None
    assert (found.location.span.line, found.machine.gpus_per_node) == (line, 2)
    (result,), _ = check_file(path, text.encode(), Gate(hardware={"gpu": "h100-80gb"}))
    assert result.estimate is not None
    assert result.status == "passed"


def test_targets_that_train_differently_are_named() -> None:
    """None of them is chosen in silence."""
    text = MAKEFILE + f"big:\n\ttorchrun --nproc_per_node=2 {SFT.replace('0.5B', '1.5B')}\n"
    (result,), _ = check_file("Makefile", text.encode(), Gate(hardware={"gpu": "h100-80gb"}))
    assert "starts 2 jobs, at lines 9 and 12" in result.findings[0].message


def test_a_variable_that_a_condition_sets_is_asked_for() -> None:
    """Which branch of make holds is not known."""
    text = MAKEFILE.replace("GPUS = 2\n", "ifdef BIG\nGPUS = 8\nendif\n")
    (result,), _ = check_file("Makefile", text.encode(), Gate(hardware={"gpu": "h100-80gb"}))
    assert any("--define GPUS=" in each.help for each in result.findings)


@pytest.mark.parametrize("text", ["all:\n\tcc a.c\n", "train:\n\techo python train.py\n", "", "\t\n" * 50])
def test_a_build_file_without_a_training_is_called_by_its_name(text: str) -> None:
    """It is no YAML with mistakes."""
    (result,), _ = check_file("Makefile", text.encode(), Gate())
    assert "this is a Makefile, in which no command launches a training" in result.findings[0].message


def test_no_other_file_is_a_build_file() -> None:
    """Their names decide, and a Dockerfile's first instruction."""
    assert [build_title(name, "FROM x\n") for name in ("a.yaml", "Makefile.md", "a.py")] == ["", "a Dockerfile", ""]


def test_every_platform_has_a_row_on_the_page() -> None:
    """docs/reference/wrappers.md has all kinds that are recognised."""
    page = (Path(__file__).parents[2] / "docs/reference/wrappers.md").read_text()
    words = [re.sub(r"^an? |\{0\}|of ", "", kind.title).strip() for kind in YAML_KINDS]
    assert [word for word in [*words, "Makefile", "justfile", "Dockerfile", "Slurm"] if word not in page] == []


SLURM = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:a100-80gb:4\n"


def checked(text: str, name: str = "job.slurm") -> PlanResult:
    """The verdict on a batch script."""
    (result,), traces = check_file(name, text.encode(), Gate())
    assert traces == []
    return result


def test_the_part_of_a_heterogeneous_job_is_named() -> None:
    """GPUs of the part that ``--het-group`` names; the part is a note."""
    text = f"{SLURM}#SBATCH hetjob\n#SBATCH --gres=gpu:h200:2\nsrun --het-group=1 torchrun --nproc_per_node 2 {SFT}\n"
    result = checked(text)
    assert result.gpu == "h200"
    assert any("only part 1, of lines 4 to 6, is checked" in each.message for each in result.findings)
    assert checked(text.replace("srun --het-group=1 ", "")).gpu == "a100-80gb"


@pytest.mark.parametrize(
    "start",
    ["srun --container-image=a/b:1 --container-mounts=/a:/b", "ray job submit --address http://a:1 --working-dir . --"],
)
def test_what_submits_a_launch_adds_no_argument(start: str) -> None:
    """Options of Pyxis and of Ray are none of the script's."""
    assert checked(f"{SLURM}{start} torchrun --nproc_per_node 4 {SFT}\n").estimate is not None


@pytest.mark.parametrize(
    ("asks", "gpu"),
    [
        ("--constraint=v100-32g", "v100-32gb"),
        ("-C h200", "h200"),
        ("--partition=kisski-h100", "h100-80gb"),
        ("-p gpu", ""),
    ],
)
def test_a_constraint_is_a_hint(asks: str, gpu: str) -> None:
    """The GPU of a command that is proposed."""
    assert hinted_gpu(load_config("a.sh", f"#SBATCH {asks}\npython a.py --x 1\n", ARGUMENTS)) == gpu


def test_the_program_that_trains_is_named_with_what_the_script_asks_for() -> None:
    """Not the first program of a script."""
    result = checked(SLURM.replace("nodes=1", "nodes=2") + "python make_splits.py\nsrun python qlora_train.py\n")
    assert result.findings[0].location.span.line == 5
    assert "`qlora_train.py`; the script asks for 2 nodes with 4 x a100-80gb each" in result.findings[0].message


TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n'


def test_the_file_that_a_launcher_names_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TOML beside its launcher is checked on the launcher's GPUs; without it, it is named."""
    monkeypatch.chdir(tmp_path)
    text = "torchrun --nproc_per_node=8 train.py --job.config_file ./debug.toml\n"
    (result,), _ = check_file("run.sh", text.encode(), Gate(hardware={"gpu": "h100-80gb"}))
    assert "the job's config is `./debug.toml`" in result.findings[0].message
    (tmp_path / "debug.toml").write_text(TITAN)
    (result,), _ = check_file("run.sh", text.encode(), Gate(hardware={"gpu": "h100-80gb"}))
    assert result.estimate is not None
    assert result.gpus == 8


def test_megatron_deepspeed_has_a_way_out() -> None:
    """It is named, with the plan that comes closest."""
    text = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --deepspeed --deepspeed_config ds.json\n"
    finding = next(each for each in checked(text, "run.sh").findings if "DeepSpeed's engine" in each.message)
    assert "for Megatron-DeepSpeed write a plan" in finding.help
