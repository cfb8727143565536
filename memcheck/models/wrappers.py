"""Multimodal models: the language model inside each."""

from __future__ import annotations

WRAPPERS: dict[str, str] = {
    "aria": "aria_text",
    "audioflamingo3": "qwen2",
    "aya_vision": "cohere2",
    "blip-2": "opt",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "glmga": "glm4v_text",
    "got_ocr2": "qwen2",
    "granite_speech": "granite",
    "hunyuan_vl": "hunyuan_vl_text",
    "hyperclovax_vision_v2": "hyperclovax",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "minicpmv4_6": "qwen3_5_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "molmo2": "molmo2_text",
    "ovis2": "qwen2",
    "paddleocr_vl": "paddleocr_vl_text",
    "paligemma": "gemma",
    "perception_lm": "llama",
    "phi4_multimodal": "phi3",
    "qianfan_ocr": "qwen3",
    "qwen2_5_omni_thinker": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "smolvlm": "llama",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
"""Multimodal models: the ``model_type`` of the language model inside; its own says it where that is a family."""

HEARING: dict[str, str] = {
    "audioflamingo3": "audio_config",
    "granite_speech": "encoder_config",
    "qwen2_audio": "audio_config",
    "voxtral": "audio_config",
}
"""Those whose tower is for sounds: the key of its section."""

THINKERS: dict[str, str] = {
    "qwen2_5_omni": "qwen2_5_omni_thinker",
    "qwen3_omni_moe": "qwen3_omni_moe_thinker",
}
"""Models that speak: the ``model_type`` of the part in ``thinker_config``, which understands and is trained."""
MUTE = "priced is the thinker; a run that loads the talker, too, holds its weights beside it"
