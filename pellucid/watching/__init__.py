"""See every attention of a model while it runs: records that check themselves, and a word on what was missed."""

from pellucid.watching.missed import Missed, MissedAttention
from pellucid.watching.record import Record
from pellucid.watching.watcher import Seen, watch

__all__ = ["Missed", "MissedAttention", "Record", "Seen", "watch"]
