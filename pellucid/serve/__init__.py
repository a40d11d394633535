"""The HTTP API and the page: `app` joins them, `server` runs them."""
