"""Pictures for people: figures, the trace as a file, and the viewer. They know nothing of the server."""
