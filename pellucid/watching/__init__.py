"""See every attention of a model while it runs: records that check themselves, and a word on what was missed."""

from pellucid.watching.missed import ChangedOutput, Missed, MissedAttention
from pellucid.watching.record import Record
from pellucid.watching.steering import Change
from pellucid.watching.towers import Edge, Tower
from pellucid.watching.watcher import Seen, watch

__all__ = ["Change", "ChangedOutput", "Edge", "Missed", "MissedAttention", "Record", "Seen", "Tower", "watch"]
