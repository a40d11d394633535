"""pellucid serve: the page and the API, on this machine unless told otherwise."""

import os
from pathlib import Path

from pellucid.cli.verbs import ServeOptions

RUNS = Path("runs")  # where `pellucid train` puts them


def serve(options: ServeOptions) -> None:
    """Load the models, bind the address, and serve until told to stop."""
    from pellucid.devices import pick_device
    from pellucid.serve.app import create_app
    from pellucid.serve.guard import check_token, own_names
    from pellucid.serve.served import load_all
    from pellucid.serve.server import bound, run

    token = options.token or os.environ.get("PELLUCID_TOKEN") or None
    check_token(token, options.host)
    if options.runs is not None and not options.runs.is_dir():
        raise ValueError(f"the folder {str(options.runs)!r} doesn't exist; give the folder that holds the runs")
    with bound(options.host, options.port) as listening:
        models = load_all(options.models, pick_device(options.device))
        app = create_app(
            models,
            options.runs or RUNS,
            token=token,
            names=own_names(options.host) | set(options.names),
            proxies=options.proxies,
            log=options.log,
        )
        port = listening.getsockname()[1]
        run(app, listening, lambda: print(f"open {_address(options, port, token)}", flush=True))


def _address(options: ServeOptions, port: int, token: str | None) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
        options.host, f"[{options.host}]" if ":" in options.host else options.host
    )
    return f"http://{host}:{port}/" + (f"?token={token}" if token else "") + " (Ctrl-C stops the server)"
