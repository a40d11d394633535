"""Pictures for people. They know nothing of the server."""
