"""What went wrong with a file, in one line."""


def reason(error: BaseException) -> str:
    """Why it failed, in a few words."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def one_line(text: str) -> str:
    """Names of files may hold line breaks; a sentence may not."""
    return " ".join(text.split())
