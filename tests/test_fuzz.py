"""Ten thousand hostile inputs in all formats that are opened, and every one that ever failed: `make fuzz` has more."""

from pathlib import Path

import fuzz
import fuzz_formats
import pytest
from fuzz_child import Reader

CORPUS = Path(__file__).parent / "corpus"
INPUTS, SEED = 10_000, 20261118


@pytest.fixture(scope="module")
def reader():
    with Reader() as reading:
        yield reading


def test_hostile_inputs_are_read_or_refused_in_a_sentence():
    """Each within 1 GB and 10 s; no traceback, no crash, no file but those that were there."""
    batches = fuzz.plan(INPUTS)
    assert sum(batch.count for batch in batches) >= INPUTS
    results = list(fuzz.run(SEED, batches))
    failures = [failure for result in results for failure in result.failures]
    assert not failures, "\n".join(f"{fuzz.keep(failure)}: {failure.failed}" for failure in failures[:20])
    read = dict.fromkeys(fuzz_formats.schedule(), 0)
    for result in results:
        read[result.batch.format] += result.read
    never = {name for name, count in read.items() if not count}
    assert never <= NEVER_READ, f"no input of {never} was near enough to a sound one to be read"
    refused = sum(batch.count for batch in batches) - sum(read.values())
    assert refused > INPUTS // 2


# Whose damage is always seen, because a checksum tells.
NEVER_READ = {"cache"}


def test_sound_files_are_read(reader, tmp_path):
    files = []
    for i, name in enumerate(fuzz_formats.FORMATS):
        if fuzz_formats.FORMATS[name].weight:
            (tmp_path / str(i)).write_bytes(fuzz_formats.sound(name))
            files.append((name, str(tmp_path / str(i))))
    for (name, _), outcome in zip(files, reader.outcomes(files=files), strict=True):
        assert (outcome["said"], outcome["failed"]) == (None, None), name


def test_an_input_follows_from_its_format_its_seed_and_its_index():
    for name in ("png", "tar.xz", "pt", "model config"):
        first, again = (fuzz_formats.make_input(name, 3, 7) for _ in range(2))
        assert first == again != fuzz_formats.sound(name)
        assert first != fuzz_formats.make_input(name, 4, 7) or first != fuzz_formats.make_input(name, 3, 8)
    assert fuzz.plan(5000) == fuzz.plan(5000)


def test_every_input_that_ever_failed_is_read_or_refused(reader):
    files = [(path.parent.name, str(path)) for path in sorted(CORPUS.glob("*/*"))]
    assert len(files) > 20
    known = {name.replace("/", "-").replace(" ", "-"): name for name in fuzz_formats.FORMATS}
    told = (CORPUS / "README.md").read_text()
    outcomes = reader.outcomes(files=[(known[folder], path) for folder, path in files])
    for (folder, path), outcome in zip(files, outcomes, strict=True):
        assert outcome["failed"] is None, (path, outcome)
        assert f"`{folder}/{Path(path).name}`" in told


@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        ("an error", "IndexError: list index out of range"),
        ("two lines", "it said 'two\\nlines"),
        ("a crash", "it was ended by SIGABRT"),
        ("a circle", "it was ended by the limit of its time"),
        ("too much", "MemoryError"),
    ],
)
def test_failures_are_seen_and_the_rest_goes_on(fault, failed, reader, tmp_path):
    """The twin: a fault between two that are sound."""
    (tmp_path / "a.png").write_bytes(fuzz_formats.sound("png"))
    png = ("picture", str(tmp_path / "a.png"))
    before, between, after = reader.outcomes(paths=[png, (fault, "nowhere"), png], seconds=1)
    assert before["failed"] is after["failed"] is None
    assert failed in between["failed"]
