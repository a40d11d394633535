"""The HTTP API and the page: `app` joins them, `server` runs them."""

from pellucid.extras import require

for _package in ("fastapi", "uvicorn"):
    require(_package, "pellucid serve")
