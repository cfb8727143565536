"""Recipes of pictures: estimated as the most that a sequence holds, with the parts that each framework freezes."""

from __future__ import annotations

import pytest

from memcheck.judge import Gate, check_file
from tests.configs import test_read_automodel as automodel
from tests.configs.test_trainers import AXOLOTL, FACTORY, QLORA, SWIFT, read

SEES = "Qwen/Qwen2.5-VL-7B-Instruct"
VLM = AXOLOTL.replace("meta-llama/Llama-3.1-8B", SEES).replace("sample_packing: true", "val_set_size: 0.1")
FULL = FACTORY.replace("meta-llama/Llama-3.1-8B", SEES)
LORA = FULL.replace("finetuning_type: full", "finetuning_type: lora\nlora_target: all")
LAUNCH = SWIFT.replace("Qwen/Qwen2.5-7B-Instruct", SEES).replace("NPROC_PER_NODE=4 ", "").rstrip()

VISUAL = (
    f"accelerate launch --num_processes 8 trl/scripts/sft_vlm.py --model_name_or_path {SEES} "
    "--max_length 2048 --per_device_train_batch_size 1 --bf16"
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("f.yaml", f"{FULL}image_max_pixels: 262144\n", {"training.freeze": ["vision", "projector"]}),
        ("f.yaml", f"{FULL}freeze_vision_tower: false\n", {"training.freeze": ["projector"]}),
        ("f.yaml", LORA, {"training.lora.parts": ["language"]}),
        ("f.yaml", f"{LORA}freeze_vision_tower: false\n", {"training.lora.parts": ["vision", "language"]}),
        ("s.sh", f"{LAUNCH} --max_pixels 1003520\n", {"training.lora.parts": ["language"]}),
        ("s.sh", f"{LAUNCH}\n", {"training.options.vit_gradient_checkpointing": True}),
        (
            "s.sh",
            f"{LAUNCH} --vit_gradient_checkpointing false\n",
            {"training.options.vit_gradient_checkpointing": False},
        ),
        (
            "s.sh",
            f"{LAUNCH} --gradient_checkpointing false --vit_gradient_checkpointing false\n",
            {"training.options.vit_gradient_checkpointing": None},
        ),
        ("s.sh", f"{LAUNCH} --freeze_aligner false\n", {"training.lora.parts": ["projector", "language"]}),
        ("a.yml", f"{VLM}processor_type: AutoProcessor\n", {"training.images.per_sample": "fill"}),
        ("f.yaml", f"{FULL}dataset: mllm_demo,identity\n", {"training.images.per_sample": "fill"}),
        ("f.yaml", f"{FULL}dataset: identity,alpaca_en_demo\n", {"training.images.per_sample": None}),
        ("s.sh", f"{LAUNCH} --dataset AI-ModelScope/LaTeX_OCR\n", {"training.images.per_sample": "fill"}),
        ("s.sh", f"{LAUNCH}\n", {"training.images.per_sample": None}),
        ("t.sh", f"{VISUAL} --dataset_name trl-lib/tldr\n", {"training.images.per_sample": "fill"}),
        (
            "t.sh",
            f"{VISUAL.replace('sft_vlm', 'sft')} --dataset_name HuggingFaceH4/llava-instruct-mix-vsft\n",
            {"training.images.per_sample": "fill"},
        ),
        (
            "t.sh",
            f"{VISUAL.replace('sft_vlm', 'sft')} --dataset_name HuggingFaceH4/ultrachat_200k\n",
            {"training.images.per_sample": None},
        ),
        ("a.yml", VLM, {"training.images.per_sample": 0}),
        (
            "a.yml",
            f"{VLM}{QLORA.replace('lora_target_linear: true', '')}processor_type: AutoProcessor\n"
            r"lora_target_modules: model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|q|v)_proj" + "\n",
            {"training.lora.parts": ["language"]},
        ),
    ],
)
def test_what_is_trained_of_a_model_with_a_tower(name: str, text: str, expected: dict[str, object]) -> None:
    """LLaMA-Factory and ms-swift freeze tower and projector by default; Axolotl's text recipes have no pictures."""
    found = read(name, text)
    assert not found.problems
    for key, value in expected.items():
        setting = found.settings.get(key)
        assert (setting.value if setting is not None else None) == value


def test_a_recipe_of_pictures_is_priced_as_if_they_filled_the_sequence() -> None:
    """The plan says so, needs more than the same job on text, and an evaluation of no more rows is left out."""
    needed = []
    for text in (f"{VLM}processor_type: AutoProcessor\n", VLM):
        found = read("a.yml", text)
        assert not found.problems
        (result,), _ = check_file("plan.yaml", found.text.encode(), Gate())
        assert result.estimate is not None
        needed.append(result.estimate.needed_bytes)
        said = [each.message for each in found.notes]
        assert any("as many pictures as fill the sequence" in each for each in said) == ("processor_type" in text)
    assert needed[0] > needed[1]


def test_a_model_without_a_tower_that_is_known_gets_no_pictures() -> None:
    """The recipe of pictures of a model of text, or of an unknown one, is an error at its key."""
    (problem,) = read("a.yml", f"{AXOLOTL}processor_type: AutoProcessor\n").problems
    assert problem.keys == ("training.images",)


def test_automodels_recipe_of_pictures_freezes_its_tower() -> None:
    """`freeze_config` is on for the tower unless it says otherwise; a pack of pictures has a name of its own."""
    found = automodel.read(
        recipe="FinetuneRecipeForVLM",
        model={"pretrained_model_name_or_path": "Qwen/Qwen3-VL-4B-Instruct"},
        freeze_config={"freeze_language_model": False},
        dataset={"seq_len": None},
        packed_sequence={"pack_size": 4096},
    )
    assert not found.problems
    assert found.settings["training.freeze"].value == ["vision"]
    assert found.settings["training.sequence_length"].value == 4096
    text = automodel.read(model={"pretrained_model_name_or_path": "Qwen/Qwen3-VL-4B-Instruct"})
    assert text.settings["training.images.per_sample"].value == 0


LARGE = {"per_sample": 2, "width": 2000, "height": 1000}
LONG = FULL.replace("cutoff_len: 2048", "cutoff_len: 32768")
WIDE = LAUNCH.replace("--max_length 2048", "--max_length 32768")
RECIPE = """
recipe: FinetuneRecipeForVLM
model: {pretrained_model_name_or_path: Qwen/Qwen3-VL-4B-Instruct}
processor: {max_pixels: 1003520}
step_scheduler: {local_batch_size: 1, global_batch_size: 8}
dataset: {seq_length: 8192}
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("f.yaml", FULL, {"width": 1086, "height": 543}),  # 768 x 768 pixels, LLaMA-Factory's default
        ("f.yaml", f"{FULL}image_max_pixels: 262144\n", {"width": 724, "height": 362}),
        ("f.yaml", f"{LONG}image_max_pixels: 8000000\nimage_min_pixels: 8000000\n", {"width": 4000, "height": 2000}),
        ("s.sh", f"{WIDE} --max_pixels 1003520\n", {"width": 1416, "height": 708}),
        ("s.sh", f"MAX_PIXELS=1003520 {WIDE}\n", {"width": 2000, "height": 1000, "max_pixels": 1003520}),
        ("a.yml", f"{VLM}processor_type: AutoProcessor\nimage_size: [560, 280]\n", {"width": 560, "height": 280}),
        ("r.yaml", RECIPE, {"width": 2000, "height": 1000, "max_pixels": 1003520}),
    ],
)
def test_stated_pictures_meet_the_limits_of_the_config(name: str, text: str, expected: dict[str, int]) -> None:
    """What a framework scales before the processor sees it is scaled; a limit of Qwen's processors is a limit."""
    found = read(name, text, images=LARGE)
    assert not found.problems
    assert {"per_sample": 2, **expected} == {
        key.rpartition(".")[2]: each.value for key, each in found.settings.items() if key.startswith("training.images")
    }


def test_sound_is_refused_unless_the_job_is_said_to_be_of_pictures() -> None:
    """A model that hears may train on sound: stated pictures, or none, say that it does not."""
    text = VLM.replace(SEES, "google/gemma-4-E2B-it") + "processor_type: AutoProcessor\n"
    (problem,) = read("a.yml", text).problems
    assert "sound" in problem.message
    assert "--images" in problem.help
    assert not read("a.yml", text, images={"per_sample": 0}).problems


def test_pictures_beside_a_job_of_text_are_an_error() -> None:
    """Of a model without a tower, and of a recipe that trains on text alone."""
    for text in (AXOLOTL, VLM):
        (problem,) = read("a.yml", text, images=LARGE).problems
        assert "does not train on pictures" in problem.message


def test_axolotl_freezes_towers_by_a_switch_or_by_patterns() -> None:
    """Patterns that name the language model leave tower and projector frozen; beside adapters all of it is."""
    text = VLM.replace(SEES, "google/gemma-3-4b-it")
    patterns = "unfrozen_parameters: ['^model.language_model.*', '^lm_head.*']\n"
    for switch in (patterns, "freeze_mm_modules: true\n"):
        found = read("a.yml", text + switch)
        assert not found.problems
        assert found.settings["training.freeze"].value == ["vision", "projector"]
        assert "training.freeze" not in read("a.yml", text + QLORA + switch).settings
    (problem,) = read("a.yml", f"{text}unfrozen_parameters: [model.language_model.layers.1]\n").problems
    assert problem.keys == ("training.freeze",)


def test_targets_that_the_model_has_not_are_passed_over() -> None:
    """PEFT adapts the layers that are there (GLM-4 has one matrix for gate and up); a name without any is an error."""
    text = AXOLOTL.replace("meta-llama/Llama-3.1-8B", "zai-org/GLM-4-32B-0414") + "adapter: lora\nlora_r: 8\n"
    found = read("a.yml", f"{text}lora_target_modules: [gate_proj, q_proj, down_proj]\n")
    assert found.settings["training.lora.target_modules"].value == ["q_proj", "down_proj"]
    assert ["`gate_proj`" in each.message for each in found.notes].count(True) == 1
    (result,), _ = check_file("plan.yaml", read("a.yml", f"{text}lora_target_modules: [q]\n").text.encode(), Gate())
    assert "MEM413" in {each.code for each in result.findings}


def test_automodels_made_up_pictures_are_stated_by_the_config() -> None:
    """Its datasets of pictures have no sound; the one that makes them up says how many and how large they are."""
    hears = {"pretrained_model_name_or_path": "google/gemma-4-E4B-it"}
    data = "nemo_automodel.components.datasets.vlm."
    drawn = {"_target_": f"{data}mock.build_mock_vlm_dataset", "num_images_per_sample": 2, "image_size": [896, 448]}
    found = automodel.read(recipe="FinetuneRecipeForVLM", model=hears, dataset={**drawn, "max_length": 4096})
    assert not found.problems
    sizes = {"per_sample": 2, "width": 896, "height": 448}
    assert sizes == {key: found.settings[f"training.images.{key}"].value for key in sizes}
    pictures = {"_target_": f"{data}datasets.make_medpix_dataset", "seq_len": 4096}
    assert not automodel.read(recipe="FinetuneRecipeForVLM", model=hears, dataset=pictures).problems
    sound = {"_target_": "nemo_automodel.components.datasets.audio.datasets.make_cv17_dataset", "seq_len": 4096}
    (problem,) = automodel.read(recipe="FinetuneRecipeForVLM", model=hears, dataset=sound).problems
    assert "sound" in problem.message


def test_text_alone_is_said_of_towers_that_only_rest() -> None:
    """Gemma 3n's towers have no graph of their own: a recipe of text says that there are no pictures, as of others."""
    found = read("a.yml", VLM.replace(SEES, "google/gemma-3n-E2B-it"))
    assert found.settings["training.images.per_sample"].value == 0
    assert not found.problems
