"""Why a model answered as it did: maps from watched attention, and whether they mean anything."""

from pellucid.explain.ablation import ablate
from pellucid.explain.classes import explain
from pellucid.explain.faithfulness import Faithfulness, faithfulness
from pellucid.explain.heads import CaptionHealth, LayerReport, caption_health, report_heads
from pellucid.explain.maps import METHODS, Look, Map, Method
from pellucid.explain.timelapse import Moment, timelapse, timelapse_caption
from pellucid.explain.trace import Layer, SeenPicture, Stream, Trace, trace, trace_caption
from pellucid.explain.words import Unsaid, WordLook, explain_caption, explain_word

__all__ = [
    "METHODS",
    "CaptionHealth",
    "Faithfulness",
    "Layer",
    "LayerReport",
    "Look",
    "Map",
    "Method",
    "Moment",
    "SeenPicture",
    "Stream",
    "Trace",
    "Unsaid",
    "WordLook",
    "ablate",
    "caption_health",
    "explain",
    "explain_caption",
    "explain_word",
    "faithfulness",
    "report_heads",
    "timelapse",
    "timelapse_caption",
    "trace",
    "trace_caption",
]
