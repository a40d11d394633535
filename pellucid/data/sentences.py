"""What went wrong with a file, in one line."""

from pellucid.config import one_line

__all__ = ["one_line", "reason"]


def reason(error: BaseException) -> str:
    """Why it failed, in a few words."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
