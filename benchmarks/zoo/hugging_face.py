"""Hugging Face transformers: every family as it comes, asked for sdpa where it takes that, and asked for eager."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from zoo import Entry, Inputs, inputs
from zoo.inputs import captioned, gemma_tokens, left_padded, padded, pair, pixels, text, with_image_tokens
from zoo.stubs import load

Settings = dict[str, Any]

# Two layers of width 32 with four heads, in the words that most configs use.
LAYERS: Settings = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
TEXT = LAYERS | {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION = LAYERS | {"image_size": 32, "patch_size": 8}
CAUSAL = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = CAUSAL | {"sliding_window": 4}
EXPERTS: Settings = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 32}
MAMBA: Settings = {
    "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_n_groups": 1,
}  # fmt: skip
# The same in other words.
GPT: Settings = {
    "vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 64, "rotary_dim": 4,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DISTILLED: Settings = {
    "vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip
SHORT: Settings = {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_layers": 2, "n_head": 4, "n_heads": 4}
TRANSLATOR: Settings = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
T5: Settings = {
    "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
SPEECH = LAYERS | {
    "conv_dim": [16, 16], "conv_stride": [4, 4], "conv_kernel": [8, 8], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
# Four stages, or two, of growing width.
STAGES: Settings = {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}
WINDOWS: Settings = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip
SWIN = WINDOWS | {
    "model_type": "swin", "image_size": 64, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 4, 4],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip
RESNET: Settings = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
DETECTOR: Settings = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 6,
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": RESNET,
}  # fmt: skip
MASKS: Settings = {"mask_feature_size": 32, "backbone_config": SWIN}
CLIP: Settings = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16}
IMAGE_TOKEN = {"image_token_index": 98}

# What belongs to one family alone.
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}
FUNNEL = {"d_head": 8, "d_inner": 64, "block_sizes": [1, 1], "num_decoder_layers": 1}
SPARSE = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}
DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "shared_expert_intermediate_size": 32,
}  # fmt: skip
JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
GRIFFIN = {"block_types": ["recurrent", "attention"], "lru_width": 32, "attention_window_size": 4}
GPT_NEO = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4}
OPT = {"ffn_dim": 64, "word_embed_proj_dim": 32}
LATENT_KEYS = {
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 8, "head_dim": 4,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
}  # fmt: skip
WHISPER = {"num_mel_bins": 16, "max_source_positions": 10, "max_target_positions": 20}
AST = {"patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 24, "num_mel_bins": 16}
SPEAKER = {
    "encoder": VISION | {"model_type": "vit"},
    "decoder": TEXT | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
}
LAYOUT = {
    "input_size": 32, "patch_size": 8, "coordinate_size": 5, "shape_size": 6, "max_2d_position_embeddings": 64,
}  # fmt: skip
MAE = {
    "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 64,
}  # fmt: skip
RT_DETR = {
    "encoder_hidden_dim": 32, "encoder_in_channels": [16, 16, 32], "decoder_in_channels": [32, 32, 32],
    "hidden_expansion": 0.5, "feat_strides": [8, 16, 32],
}  # fmt: skip
MASK2FORMER = {
    "feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 64, "dim_feedforward": 64, "encoder_layers": 1,
    "decoder_layers": 3, "num_attention_heads": 4, "num_queries": 6,
}  # fmt: skip
SAM_DECODER = {
    "hidden_size": 32, "num_attention_heads": 2, "mlp_dim": 64, "iou_head_hidden_dim": 16, "iou_head_depth": 2,
    "num_hidden_layers": 2,
}  # fmt: skip
SAM = {
    "vision_config": VISION | {"output_channels": 32, "window_size": 2, "global_attn_indexes": [1],
                               "num_pos_feats": 16, "mlp_dim": 64},
    "prompt_encoder_config": {"hidden_size": 32, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": SAM_DECODER,
}  # fmt: skip
SAM2 = {
    "vision_config": {
        "backbone_config": {"model_type": "sam2_hiera_det_model", "hidden_size": 8, "image_size": [64, 64],
                            "embed_dim_per_stage": [8, 16, 32, 64]},
        "backbone_channel_list": [64, 32, 16, 8], "fpn_hidden_size": 32,
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    },
    "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "mask_input_channels": 4},
    "mask_decoder_config": SAM_DECODER,
}  # fmt: skip
VIT_DET = {
    "window_block_indices": [0], "window_size": 2, "use_relative_position_embeddings": True, "pretrain_image_size": 32,
}  # fmt: skip
LEVIT = {
    "image_size": 128, "hidden_sizes": [16, 32, 48], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1],
    "key_dim": [8, 8, 8],
}  # fmt: skip
MOBILE = {
    "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "num_attention_heads": 4,
    "image_size": 64,
}  # fmt: skip
HIERA = {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8]}
LLAVA = {
    "text_config": CAUSAL | {"model_type": "llama"}, "vision_config": VISION | {"model_type": "clip_vision_model"},
}  # fmt: skip
PALIGEMMA = {
    "text_config": CAUSAL | {"model_type": "gemma"}, "vision_config": VISION | {"model_type": "siglip_vision_model"},
    "projection_dim": 32,
}  # fmt: skip
BLIP2 = {
    "vision_config": VISION, "qformer_config": TEXT | {"encoder_hidden_size": 32, "cross_attention_frequency": 2},
    "text_config": TEXT | OPT | {"model_type": "opt"}, "num_query_tokens": 4,
}  # fmt: skip
FLAVA = {
    "image_config": VISION, "text_config": TEXT, "multimodal_config": LAYERS, "projection_dim": 16, "hidden_size": 32,
}  # fmt: skip
PERCEIVER = {
    "d_model": 24, "d_latents": 32, "num_latents": 6, "num_blocks": 1, "num_self_attends_per_block": 2,
    "num_self_attention_heads": 4, "num_cross_attention_heads": 2,
}  # fmt: skip
SERIES = {
    "prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2, 7], "num_time_features": 1, "input_size": 1,
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip
QWEN_TOWER = {"depth": 2, "embed_dim": 32, "num_heads": 4, "hidden_size": 32, "patch_size": 8, "mlp_ratio": 2}
KOSMOS = {
    "text_config": {"vocab_size": 99, "embed_dim": 32, "layers": 2, "attention_heads": 4, "ffn_dim": 64,
                    "max_position_embeddings": 64},
    "vision_config": VISION, "latent_query_num": 4,
}  # fmt: skip
PIX2STRUCT = {"d_ff": 64, "d_kv": 8, "patch_embed_hidden_size": 192, "seq_len": 32}

HIDDEN = {"Qwen2VisionTransformerPretrainedModel": "transformers.models.qwen2_vl.modeling_qwen2_vl"}
QUICK = """
    ViT default, Swin eager, Swinv2 default, SigLIP eager, SigLIP2-v default, CLIP eager, BLIP default, GPT-2 eager,
    GPT-2-leftpad default, BERT-pad eager, DeBERTa-v2 default, XLNet default, Longformer default, BigBird default,
    BigBird-sparse extra, Longformer-global extra, Funnel default, ModernBERT eager, T5 eager, mT5/LongT5 default,
    T5Gemma default, BART eager, Llama eager, Mistral eager, Mixtral eager, Qwen3-Next eager, Gemma2-softcap default,
    Gemma3-text eager, GPT-OSS-sinks default, Falcon eager, BLOOM-alibi default, MPT default, GPT-Neo-local default,
    CodeGen default, BigCode eager, Whisper eager, LayoutLMv3 default, TimeSformer default, Deformable-DETR default,
    Conditional-DETR default, RT-DETR eager, Mask2Former default, MaskFormer default, Segformer eager, SAM2 eager,
    ViT-Det default, PVTv2 default, LeViT default, MobileViT default, Hiera default, BLIP-2 default, Perceiver default,
    Mamba(none) default, Informer/TimeSeries default, DeepSeek-V3-MLA eager, Qwen2-VL default
"""


def make(model: str, implementation: str, settings: Settings, given: Callable[[], Inputs]) -> tuple[nn.Module, Inputs]:
    """A model of random weights by the name of its class; the class knows its config."""
    kind = getattr(load(HIDDEN.get(model, "transformers")), model)
    asked = {} if implementation in ("default", "extra") else {"attn_implementation": implementation}
    return kind._from_config(kind.config_class(**settings), **asked), given()


def family(
    name: str,
    model: str,
    attentions: int,
    given: Callable[[], Inputs],
    settings: Settings,
    implementations: str = "default sdpa eager",
    *,
    counted: int | None = None,
) -> Iterator[Entry]:
    """One family in each implementation that it takes."""
    quick = {part.strip() for part in QUICK.split(",")}
    for implementation in implementations.split():
        yield Entry(
            "HF", f"HF/{name}", model, implementation, attentions,
            partial(make, model, implementation, settings, given), f"{name} {implementation}" in quick, counted=counted,
        )  # fmt: skip


OWN = "default eager"  # refuses sdpa: it always writes attention out, or its backbone does
FAMILIES = [
    # Vision. SigLIP pools by an attention; its text has none of that.
    family("ViT", "ViTModel", 2, pixels, VISION),
    family("ViT-cls", "ViTForImageClassification", 2, pixels, VISION),
    family("DeiT", "DeiTModel", 2, pixels, VISION),
    family("DINOv2", "Dinov2Model", 2, pixels, VISION),
    family("DINOv2reg", "Dinov2WithRegistersModel", 2, pixels, VISION),
    family("DINOv3", "DINOv3ViTModel", 2, pixels, VISION | {"num_register_tokens": 2}),
    family("BEiT", "BeitModel", 2, pixels, VISION | {"use_relative_position_bias": True}),
    family("Swin", "SwinModel", 4, pixels, WINDOWS),
    family("Swinv2", "Swinv2Model", 4, pixels, WINDOWS, OWN),
    family("SigLIP-v", "SiglipVisionModel", 3, pixels, VISION),
    family("SigLIP-t", "SiglipTextModel", 2, text, TEXT),
    family("SigLIP", "SiglipModel", 5, captioned, CLIP),
    family("SigLIP2-v", "Siglip2VisionModel", 3, inputs.patches, VISION | {"num_patches": 16}),
    family("CLIP-v", "CLIPVisionModel", 2, pixels, VISION),
    family("CLIP-t", "CLIPTextModel", 2, text, TEXT),
    family("CLIP", "CLIPModel", 4, captioned, CLIP),
    # The picture 2, and each of two layers of text attends to text and picture.
    family("BLIP", "BlipForConditionalGeneration", 6, captioned, CLIP | {"image_text_hidden_size": 16}, OWN),
    # Text, read.
    family("GPT-2", "GPT2LMHeadModel", 2, text, GPT),
    family("GPT-2-leftpad", "GPT2LMHeadModel", 2, left_padded, GPT),
    family("BERT", "BertModel", 2, text, TEXT),
    family("BERT-pad", "BertModel", 2, padded, TEXT),
    family("RoBERTa", "RobertaModel", 2, text, TEXT),
    family("DistilBERT", "DistilBertModel", 2, text, DISTILLED),
    family("ALBERT", "AlbertModel", 2, text, TEXT | {"embedding_size": 16}),  # one layer, run twice
    family("ELECTRA", "ElectraModel", 2, text, TEXT | {"embedding_size": 16}),
    family("DeBERTa-v2", "DebertaV2Model", 2, padded, TEXT | DEBERTA, OWN),
    family("XLNet", "XLNetModel", 2, text, SHORT | {"d_inner": 64}, OWN),
    family("Longformer", "LongformerModel", 2, partial(text, 16), TEXT | {"attention_window": 4}, OWN),
    family("BigBird", "BigBirdModel", 2, text, TEXT | {"attention_type": "original_full"}, OWN),
    family("Funnel", "FunnelModel", 3, text, SHORT | FUNNEL, OWN),
    family("ModernBERT", "ModernBertModel", 2, padded, TEXT | {"local_attention": 4, "global_attn_every_n_layers": 2}),
    # An encoder and a decoder: each decoder layer attends twice.
    family("T5", "T5Model", 6, pair, T5),
    family("mT5/LongT5", "LongT5Model", 6, pair, T5 | {"local_radius": 3}, OWN),
    family("UMT5", "UMT5Model", 6, pair, T5),
    family("T5Gemma", "T5GemmaModel", 6, pair, {"encoder": CAUSAL, "decoder": CAUSAL}, OWN),
    family("BART", "BartModel", 6, pair, TRANSLATOR),
    family("Marian", "MarianModel", 6, pair, TRANSLATOR),
    family("Pegasus", "PegasusModel", 6, pair, TRANSLATOR),
    family("M2M100/NLLB", "M2M100Model", 6, pair, TRANSLATOR),
    # Text, continued. Where count.py counts more, these are the routers of experts.
    family("Llama", "LlamaForCausalLM", 2, text, CAUSAL, "default sdpa eager flex_attention"),
    family("Mistral", "MistralForCausalLM", 2, text, WINDOW),
    family("Mixtral", "MixtralForCausalLM", 2, text, CAUSAL | EXPERTS, counted=4),
    family("Qwen2", "Qwen2ForCausalLM", 2, text, CAUSAL),
    family("Qwen2-sliding", "Qwen2ForCausalLM", 2, text, WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    family("Qwen3", "Qwen3ForCausalLM", 2, text, CAUSAL),
    family("Qwen3-MoE", "Qwen3MoeForCausalLM", 2, text, CAUSAL | EXPERTS, counted=4),
    family("Qwen3-Next", "Qwen3NextForCausalLM", 1, text, CAUSAL | EXPERTS | DELTA_NET, counted=3),
    family("Gemma", "GemmaForCausalLM", 2, text, CAUSAL),
    family("Gemma2-softcap", "Gemma2ForCausalLM", 2, text, WINDOW, OWN),
    family("Gemma3-text", "Gemma3ForCausalLM", 2, text, WINDOW),
    family("Phi", "PhiForCausalLM", 2, text, CAUSAL),
    family("Phi3", "Phi3ForCausalLM", 2, text, CAUSAL),
    family("GPT-OSS-sinks", "GptOssForCausalLM", 2, text, WINDOW | EXPERTS, OWN, counted=4),
    family("OLMo2", "Olmo2ForCausalLM", 2, text, CAUSAL),
    family("Cohere", "CohereForCausalLM", 2, text, CAUSAL),
    family("StableLM", "StableLmForCausalLM", 2, text, CAUSAL),
    family("Granite", "GraniteForCausalLM", 2, text, CAUSAL),
    family("Starcoder2", "Starcoder2ForCausalLM", 2, text, CAUSAL),
    family("SmolLM3", "SmolLM3ForCausalLM", 2, text, CAUSAL),
    family("GLM4", "Glm4ForCausalLM", 2, text, CAUSAL),
    family(
        "Llama4-text", "Llama4ForCausalLM", 2, text,
        CAUSAL | EXPERTS | {"intermediate_size_mlp": 64, "attention_chunk_size": 4},
    ),
    family("Jamba", "JambaForCausalLM", 1, text, CAUSAL | EXPERTS | MAMBA | JAMBA, counted=2),
    family("Falcon-H1", "FalconH1ForCausalLM", 2, text, CAUSAL | MAMBA | {"mamba_d_ssm": 64}),
    family("Bamba", "BambaForCausalLM", 1, text, CAUSAL | MAMBA | {"attn_layer_indices": [1]}),
    family("RecurrentGemma", "RecurrentGemmaForCausalLM", 1, text, CAUSAL | GRIFFIN),
    family("Llama-leftpad", "LlamaForCausalLM", 2, left_padded, CAUSAL),
    family("GPT-NeoX", "GPTNeoXForCausalLM", 2, text, CAUSAL),
    family("GPT-Neo-local", "GPTNeoForCausalLM", 2, text, TEXT | GPT_NEO, OWN),
    family("GPT-J", "GPTJForCausalLM", 2, text, GPT, OWN),
    family("OPT", "OPTForCausalLM", 2, text, TEXT | OPT),
    family("BLOOM-alibi", "BloomForCausalLM", 2, text, SHORT | {"hidden_size": 32}, OWN),
    family("Falcon", "FalconForCausalLM", 2, text, TEXT),
    family("MPT", "MptForCausalLM", 2, text, SHORT, OWN),
    family("CodeGen", "CodeGenForCausalLM", 2, text, GPT, OWN),
    family("BigCode", "GPTBigCodeForCausalLM", 2, text, GPT),
    family("DeepSeek-V3-MLA", "DeepseekV3ForCausalLM", 2, text, CAUSAL | LATENT_KEYS),
    # Sound.
    family("Whisper", "WhisperModel", 6, inputs.spectrogram, TRANSLATOR | WHISPER),
    family("Wav2Vec2", "Wav2Vec2Model", 2, inputs.waveform, SPEECH),
    family("HuBERT", "HubertModel", 2, inputs.waveform, SPEECH),
    family("AST", "ASTModel", 2, inputs.audio_patches, LAYERS | AST),
    # Documents, films, pictures with holes.
    family("VisionEncoderDecoder", "VisionEncoderDecoderModel", 6, inputs.drawn_and_told, SPEAKER),
    family("TrOCR", "TrOCRForCausalLM", 2, text, TRANSLATOR, OWN),
    family("LayoutLM", "LayoutLMModel", 2, inputs.document, TEXT),
    family("LayoutLMv3", "LayoutLMv3Model", 2, inputs.drawn_document, TEXT | LAYOUT, OWN),
    family("MAE", "ViTMAEModel", 2, pixels, VISION),
    family("MAE-pretrain", "ViTMAEForPreTraining", 3, pixels, VISION | MAE),
    family("VideoMAE", "VideoMAEModel", 2, inputs.video, VISION | {"num_frames": 2, "tubelet_size": 2}),
    family("TimeSformer", "TimesformerModel", 4, inputs.video, VISION | {"num_frames": 2}, OWN),  # time, then space
    family("ViT-MSN", "ViTMSNModel", 2, pixels, VISION),
    # Boxes and segments. Deformable: the softmax weighs points that are sampled, in encoder and decoder.
    family("DETR", "DetrModel", 3, partial(pixels, 64), DETECTOR, OWN),
    family("DETR-seg", "DetrForObjectDetection", 3, partial(pixels, 64), DETECTOR, OWN),
    family("Conditional-DETR", "ConditionalDetrModel", 3, partial(pixels, 64), DETECTOR, OWN),
    family("Deformable-DETR", "DeformableDetrModel", 3, partial(pixels, 64), DETECTOR | {"num_feature_levels": 3}, OWN),
    family("RT-DETR", "RTDetrModel", 3, partial(pixels, 64), DETECTOR | RT_DETR, OWN),
    family("YOLOS", "YolosModel", 2, pixels, VISION | {"num_detection_tokens": 4, "image_size": [32, 32]}),
    # Swin's 4 as a backbone; then 1 deformable layer and 2 × (cross, self), or a DETR's 1 × (self, cross).
    family("Mask2Former", "Mask2FormerModel", 9, partial(pixels, 64), MASKS | MASK2FORMER, OWN),
    family(
        "MaskFormer", "MaskFormerModel", 6, partial(pixels, 64),
        MASKS | {"decoder_config": DETECTOR | {"model_type": "detr"}, "fpn_feature_size": 32}, OWN,
    ),
    family("Segformer", "SegformerModel", 4, partial(pixels, 64), STAGES | {"decoder_hidden_size": 32}),
    # The tower 2 or 12, then 2 × (self, tokens to picture, picture to tokens) and once more to the picture. In each of
    # SAM2's 12 blocks a softmax is computed and thrown away beside the one that counts.
    family("SAM", "SamModel", 9, inputs.clicked, SAM),
    family("SAM2", "Sam2Model", 19, partial(inputs.clicked, 64), SAM2),
    family("ViT-Det", "VitDetModel", 2, pixels, VISION | VIT_DET, OWN),
    family("DPT", "DPTModel", 2, pixels, VISION | {"is_hybrid": False, "backbone_out_indices": [0, 1]}),
    family("PVTv2", "PvtV2Model", 4, partial(pixels, 64), STAGES, OWN),
    family("LeViT", "LevitModel", 5, partial(pixels, 128), LEVIT, OWN),  # two of them between stages
    family("MobileViT", "MobileViTModel", 9, partial(pixels, 64), MOBILE, OWN),  # 2 + 4 + 3 layers, not to be set
    family("Hiera", "HieraModel", 4, partial(pixels, 64), HIERA, OWN),
    # Pictures and text.
    family("LLaVA", "LlavaForConditionalGeneration", 4, partial(with_image_tokens, 16), LLAVA | IMAGE_TOKEN),
    family("PaliGemma", "PaliGemmaForConditionalGeneration", 5, gemma_tokens, PALIGEMMA | IMAGE_TOKEN),
    family("BLIP-2", "Blip2Model", 7, partial(with_image_tokens, 4), BLIP2 | IMAGE_TOKEN),
    family("ViLT", "ViltModel", 2, captioned, TEXT | VISION, OWN),
    family("FLAVA", "FlavaModel", 6, inputs.masked_picture, FLAVA, OWN),
    family("Perceiver", "PerceiverModel", 3, inputs.latents, PERCEIVER, OWN),
    family("Informer/TimeSeries", "TimeSeriesTransformerModel", 3, inputs.series, SERIES, OWN),
    family("Qwen2-VL", "Qwen2VisionTransformerPretrainedModel", 4, inputs.video_patches, QWEN_TOWER),  # 2 × 2 pictures
    family(
        "Gemma3-VL", "Gemma3ForConditionalGeneration", 5, partial(gemma_tokens, 4),
        {"text_config": WINDOW, "vision_config": VISION, "mm_tokens_per_image": 4} | IMAGE_TOKEN,
    ),
    family("Idefics3-SmolVLM", "SmolVLMVisionTransformer", 2, pixels, VISION),
    family("Kosmos-2", "Kosmos2Model", 5, inputs.kosmos_tokens, KOSMOS),
    family("Pix2Struct-v", "Pix2StructVisionModel", 2, inputs.flattened_patches, VISION | PIX2STRUCT),
    # No attention at all.
    family("Mamba(none)", "MambaForCausalLM", 0, text, TEXT | {"state_size": 8}, OWN),
    family("RWKV(none)", "RwkvForCausalLM", 0, text, TEXT | {"attention_hidden_size": 32, "context_length": 64}, OWN),
    # Further ways of families that are above. BigBird's first two, middle and last two blocks of rows have a softmax
    # each; Longformer's global tokens have one of their own.
    family("BigBird-sparse", "BigBirdModel", 10, partial(text, 40), TEXT | SPARSE, "extra"),
    family("Longformer-global", "LongformerModel", 4, inputs.globally, TEXT | {"attention_window": 4}, "extra"),
]  # fmt: skip

ENTRIES = [entry for entries in FAMILIES for entry in entries]
