"""timm's models by their names, at a small size of picture; wide ones are made narrow.

timm has three ways: "fused" (as it comes), "experimental" (the fused kernel in more places, for those that read that
setting or might) and "unfused" (its own softmax). 64 pixels for plain transformers, 128 where later stages see a
quarter of the tokens, so that no attention has one key only.
"""

from functools import partial
from typing import Any

from torch import nn

from zoo import Entry, Inputs
from zoo.inputs import images
from zoo.stubs import load

NARROW: dict[str, Any] = {"embed_dim": 96, "num_heads": 3}
SHALLOW = NARROW | {"depth": 2}
FIXED: dict[str, Any] = {"img_size": None}  # takes no size, or any


def make(model: str, size: int, settings: dict[str, Any], implementation: str) -> tuple[nn.Module, Inputs]:
    timm, layers = load("timm"), load("timm.layers")
    given = {"img_size": size} | settings
    layers.set_fused_attn(implementation != "unfused", experimental=implementation == "experimental")
    try:
        made = timm.create_model(
            model, pretrained=False, num_classes=10, **{name: x for name, x in given.items() if x is not None}
        )
    finally:
        layers.set_fused_attn(True)
    return made, {"x": images(size)}


Row = tuple[str, str, int, int, dict[str, Any]]  # family, model, attentions, size of the picture, settings
MODELS: list[Row] = [
    ("vision_transformer", "vit_tiny_patch16_224", 12, 64, {}),
    ("deit", "deit_tiny_distilled_patch16_224", 12, 64, {}),
    ("beit", "beit_base_patch16_224", 2, 64, SHALLOW),
    ("eva", "eva02_tiny_patch14_224", 12, 64, {}),
    ("swin_transformer", "swin_tiny_patch4_window7_224", 12, 128, {}),
    ("swin_transformer_v2", "swinv2_tiny_window8_256", 12, 128, {}),
    ("swin_transformer_v2_cr", "swinv2_cr_tiny_224", 12, 128, {}),
    ("cait", "cait_xxs24_224", 26, 64, {}),  # 24 with talking heads, 2 of the class token
    ("xcit", "xcit_nano_12_p16_224", 14, 64, {}),  # 12 over channels, 2 of the class token
    ("coat", "coat_lite_tiny", 8, 128, {}),  # softmax(k) over the tokens, then kᵀv: no map of queries by keys
    ("levit", "levit_128s", 11, 128, {}),
    ("maxxvit", "maxvit_tiny_tf_224", 22, 128, {}),
    ("mvitv2", "mvitv2_tiny", 10, 128, {}),
    ("pvt_v2", "pvt_v2_b0", 8, 128, FIXED),
    ("twins", "twins_svt_small", 18, 128, {}),
    ("crossvit", "crossvit_tiny_240", 21, 64, FIXED),  # resizes to 240 and 224
    ("volo", "volo_d1_224", 20, 128, {}),  # 4 outlook attentions, whose weights are a linear map of the query, 14 + 2
    ("naflexvit", "naflexvit_base_patch16_gap", 2, 64, SHALLOW),
    ("efficientformer", "efficientformer_l1", 1, 224, FIXED),  # its table of biases is for 7 × 7
    ("efficientformer_v2", "efficientformerv2_s0", 5, 128, {}),
    ("hiera", "hiera_tiny_224", 12, 128, {}),
    ("davit", "davit_tiny", 12, 128, FIXED),  # 6 over windows, 6 over channels
    ("nextvit", "nextvit_small", 4, 128, FIXED),
    ("metaformer", "caformer_s18", 12, 128, FIXED),
    ("mobilevit", "mobilevit_xxs", 9, 128, {}),
    ("byoanet", "botnet26t_256", 3, 128, {}),
    ("vision_transformer_sam", "samvit_base_patch16_224", 4, 64, NARROW | {"depth": 4}),
    ("vision_transformer_relpos", "vit_relpos_small_patch16_224", 12, 64, NARROW),
    ("vision_transformer_hybrid", "vit_tiny_r_s16_p8_224", 12, 64, {}),
    ("vitamin", "vitamin_small_224", 14, 64, {}),
    ("tnt", "tnt_s_legacy_patch16_224", 24, 64, {}),
    ("visformer", "visformer_tiny", 8, 128, {}),
    ("tiny_vit", "tiny_vit_5m_224", 10, 128, FIXED),
    ("repvit", "repvit_m0_9", 0, 64, FIXED),
    ("efficientvit_mit", "efficientvit_b0", 0, 64, FIXED),  # linear attention through ReLU: no softmax
    ("efficientvit_msra", "efficientvit_m0", 24, 128, {}),  # 6 blocks × 4 heads, one after the other
    ("fastvit", "fastvit_t8", 0, 64, FIXED),
    ("convit", "convit_tiny", 12, 64, {}),  # 10 maps are mixed of two softmaxes, of content and of positions; 2 are one
    ("nest", "nest_tiny", 12, 128, {}),
    ("pit", "pit_ti_224", 12, 128, {}),
    ("gcvit", "gcvit_xxtiny", 12, 128, {}),
    ("edgenext", "edgenext_xx_small", 3, 128, FIXED),  # over channels
    ("swiftformer", "swiftformer_xs", 0, 64, FIXED),  # additive attention, normalised by length: no softmax
    ("shvit", "shvit_s1", 9, 128, FIXED),
    ("sequencer", "sequencer2d_s", 0, 64, {}),
    ("focalnet", "focalnet_tiny_srf", 0, 64, FIXED),
    ("mobilenetv3", "mobilenetv4_hybrid_medium", 8, 128, FIXED),
    ("starnet", "starnet_s1", 0, 64, FIXED),
    ("rdnet", "rdnet_tiny", 0, 64, FIXED),
    ("hieradet_sam2", "sam2_hiera_tiny", 12, 128, FIXED),
    ("resnet", "resnet18", 0, 64, FIXED),
    ("mambaout", "mambaout_femto", 0, 64, FIXED),
    ("extra", "mobilevitv2_050", 9, 128, {}),  # one query: softmax over the tokens, which weighs the keys
    ("extra", "coatnet_nano_rw_224", 9, 128, {}),
    ("extra", "coat_tiny", 26, 128, {}),
    ("extra", "poolformer_s12", 0, 64, FIXED),
    ("extra", "halonet26t", 3, 256, {}),
    ("extra", "lambda_resnet26t", 3, 128, {}),  # softmax(k) over the tokens
    ("extra", "vit_base_patch16_siglip_224", 3, 64, SHALLOW),  # one of them pools
    ("extra", "vit_base_patch16_rope_reg1_gap_256", 2, 64, SHALLOW),
    ("extra", "vit_small_patch14_reg4_dinov2", 12, 56, NARROW),
    ("extra", "vit_small_patch16_dinov3", 12, 64, NARROW),
    ("extra", "resnet50_clip", 1, 64, {}),
    ("extra", "beitv2_base_patch16_224", 2, 64, SHALLOW),
    ("extra", "eva_giant_patch14_224", 2, 56, SHALLOW),
    ("extra", "twins_pcpvt_small", 16, 128, {}),
    ("extra", "vit_pe_core_tiny_patch16_384", 13, 64, {}),
    ("extra", "aimv2_large_patch14_224", 2, 56, SHALLOW),
    ("extra", "vit_wee_patch16_reg1_gap_256", 14, 64, {}),
    ("extra", "vit_medium_patch16_rope_reg1_gap_256", 12, 64, NARROW),
    ("extra", "vit_small_patch16_18x2_224", 36, 64, NARROW),
    ("extra", "vit_relpos_base_patch16_plus_240", 12, 64, NARROW),
    ("extra", "test_vit", 6, 64, {}),
    ("extra", "test_vit2", 8, 64, {}),
    ("extra", "test_vit3", 10, 64, {}),
    ("extra", "crossvit_9_dagger_240", 18, 64, FIXED),
    ("extra", "eva02_small_patch14_224", 12, 56, NARROW),
]

EXPERIMENTAL = """
    swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 mvitv2_tiny levit_128s cait_xxs24_224 xcit_nano_12_p16_224
    crossvit_tiny_240 volo_d1_224 davit_tiny visformer_tiny tnt_s_legacy_patch16_224 gcvit_xxtiny efficientformer_l1
    convit_tiny coat_tiny edgenext_xx_small botnet26t_256
"""
UNFUSED = "vit_tiny_patch16_224"
COUNTED = {"convit_tiny": 22}  # softmaxes
QUICK = """
    beit_base_patch16_224 fused, swin_tiny_patch4_window7_224 experimental, cait_xxs24_224 fused,
    xcit_nano_12_p16_224 fused, coat_lite_tiny fused, levit_128s fused, naflexvit_base_patch16_gap fused,
    efficientvit_m0 fused, convit_tiny fused, edgenext_xx_small fused, mobilevitv2_050 fused, lambda_resnet26t fused,
    botnet26t_256 fused, mobilenetv4_hybrid_medium fused, vit_base_patch16_siglip_224 fused, resnet18 fused,
    vit_tiny_patch16_224 unfused
"""


def entry(family: str, row: Row, implementation: str) -> Entry:
    _, model, attentions, size, settings = row
    quick = f"{model} {implementation}" in {part.strip() for part in QUICK.split(",")}
    build = partial(make, model, size, settings, implementation)
    return Entry("timm", family, model, implementation, attentions, build, quick, counted=COUNTED.get(model))


ENTRIES = [entry(f"timm/{row[0]}", row, "fused") for row in MODELS]
ENTRIES += [
    entry(f"timm+experimental/{name}", row, "experimental")
    for name in EXPERIMENTAL.split()
    for row in MODELS
    if row[1] == name
]
ENTRIES += [entry("timm unfused", row, "unfused") for row in MODELS if row[1] in UNFUSED.split()]
