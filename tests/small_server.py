"""A server with a small random model and bounds of its own: python tests/small_server.py '{"head": 0.5}' '{}'"""

import json
import sys

import torch

from pellucid.models import ViT, ViTConfig
from pellucid.ready import ReadyClassifier
from pellucid.serve.app import create_app
from pellucid.serve.limits import Limits, Room
from pellucid.serve.server import bound, run

ROOMS = ("look", "runs", "drawings", "lab")
SMALL = ViTConfig(classes=3, image=(8, 8), width=16, depth=1, heads=2, mean=(0.5,) * 3, std=(0.2,) * 3)

if __name__ == "__main__":
    bounds = {name: Room(*value) if name in ROOMS else value for name, value in json.loads(sys.argv[1]).items()}
    torch.manual_seed(0)
    models = {"small": ReadyClassifier(ViT(SMALL), name="small")}
    with bound("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        app = create_app(models, limits=Limits(**bounds), **json.loads(sys.argv[2]))
        run(app, listening, lambda: print(f"open http://127.0.0.1:{port}/ (Ctrl-C stops the server)", flush=True))
