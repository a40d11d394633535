"""pellucid serve: the page and the API, on this machine unless told otherwise."""

import os
from pathlib import Path

from pellucid.cli.verbs import Serve

RUNS = Path("runs")  # where `pellucid train` puts them


def serve(asked: Serve) -> None:
    """Load the models, bind the address, and serve until told to stop."""
    from pellucid.serve.app import create_app
    from pellucid.serve.guard import check_token, own_names
    from pellucid.serve.limits import Limits
    from pellucid.serve.served import load_all
    from pellucid.serve.server import bound, run
    from pellucid.training.distributed import pick_device

    token = asked.token or os.environ.get("PELLUCID_TOKEN") or None
    check_token(token, asked.host)
    if asked.runs is not None and not asked.runs.is_dir():
        raise ValueError(f"the folder {str(asked.runs)!r} doesn't exist; give the folder that holds the runs")
    limits = Limits()
    with bound(asked.host, asked.port) as listening:
        models = load_all(asked.models, pick_device(asked.device))
        app = create_app(models, asked.runs or RUNS, limits=limits, token=token, names=own_names(asked.host))
        run(
            app,
            listening,
            limits,
            lambda: print(f"open {_address(asked, listening.getsockname()[1], token)}", flush=True),
        )


def _address(asked: Serve, port: int, token: str | None) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
        asked.host, f"[{asked.host}]" if ":" in asked.host else asked.host
    )
    return f"http://{host}:{port}/" + (f"?token={token}" if token else "") + " (Ctrl-C stops the server)"
