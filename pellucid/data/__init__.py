"""Images, captions, and where they come from: named sets, folders, shards, tables. What is read is checked first."""

from pellucid.data.caption_sources import CaptionData, load_captions
from pellucid.data.captions import CaptionSet, CaptionSplits
from pellucid.data.images import ImageSet, decode
from pellucid.data.inspection import Inspection, inspect_images
from pellucid.data.lazy import LazyImageSet
from pellucid.data.listings import Images
from pellucid.data.own import as_image_set
from pellucid.data.sources import DataConfig, Splits, load_images, statistics

__all__ = [
    "CaptionData",
    "CaptionSet",
    "CaptionSplits",
    "DataConfig",
    "ImageSet",
    "Images",
    "Inspection",
    "LazyImageSet",
    "Splits",
    "as_image_set",
    "decode",
    "inspect_images",
    "load_captions",
    "load_images",
    "statistics",
]
