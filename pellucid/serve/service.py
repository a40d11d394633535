"""What the rooms of one server share, how full it is at a moment, and how it ends."""

from collections.abc import Iterable, Mapping
from typing import Any

from pellucid.serve.callers import Callers
from pellucid.serve.confusion import ConfusionPicture
from pellucid.serve.desk import Desk
from pellucid.serve.doors import Doors
from pellucid.serve.killable import KillableWorker
from pellucid.serve.limits import Limits
from pellucid.serve.metrics import Counters, resident_memory
from pellucid.serve.shared import Shared
from pellucid.serve.uploads import Uploads
from pellucid.serve.worker import Worker


class Service:
    """Made once for an application. proxies: addresses that are believed when they say whom they speak for."""

    def __init__(self, limits: Limits, proxies: Iterable[str] = ()):
        self.limits = limits
        self.callers = Callers(limits.unbounded, proxies)
        self.metrics = Counters()
        self.doors = Doors(limits, self.callers)
        self.uploads = Uploads(limits, self.callers)
        self.desk = Desk(self.uploads, Worker(limits.gather, self.metrics.batches.add), limits)
        self.killable = KillableWorker(limits.longest)
        self.drawings: Shared[ConfusionPicture] = Shared(limits.linger)
        self.pages: Shared[dict[str, Any]] = Shared(limits.linger)
        self.connections: Mapping[Any, Any] = {}  # those that are open, where the process counts them
        self.is_draining = False

    @property
    def pictures(self) -> int:
        """Pictures that are arriving, waiting or looked at."""
        return self.uploads.arriving.total() + self.doors.look.waiting + self.doors.look.inside

    def gauges(self) -> dict[str, dict[str, float]]:
        """States of this moment, by their name and what they are of."""
        doors = vars(self.doors)
        return {
            "queue_length": {name: door.waiting for name, door in doors.items()},
            "requests_inside": {name: door.inside for name, door in doors.items()},
            "uploads": {"arriving": self.uploads.arriving.total()},
            "upload_bytes": {"held": self.uploads.held},
            "connections": {"open": len(self.connections)},
            "memory_bytes": {"resident": resident_memory()},
        }

    def drain(self) -> None:
        """Pictures that are here are still looked at; what takes long is ended, and nothing long is begun."""
        self.is_draining = True
        self.pages.close()
        self.drawings.close()

    def close(self) -> None:
        """After `drain`, when nothing is being answered any more."""
        self.drain()
        self.killable.close()
        self.desk.close()
