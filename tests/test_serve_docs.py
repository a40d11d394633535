"""What docs/serve.md, the unit and the Dockerfile say, held against what is there."""

import re
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import tyro
from starlette.testclient import TestClient

from pellucid.cli.verbs import VERBS, ServeOptions
from pellucid.serve.app import create_app
from pellucid.serve.connections import RESERVED
from pellucid.serve.limits import Limits

ROOT = Path(__file__).parents[1]
UNIT = (ROOT / "docs" / "pellucid.service").read_text()
DOCKER = (ROOT / "docs" / "Dockerfile").read_text()
PAGE = (ROOT / "docs" / "serve.md").read_text()


def settings(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def options(words: list[str]) -> ServeOptions:
    """What these words mean to the command, which must be `serve`."""
    assert words[0] == "serve"
    return tyro.extras.subcommand_cli_from_dict(VERBS, args=words)  # type: ignore[return-value]


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    whole = re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in whole.splitlines() if line.strip()]


def test_the_unit_starts_what_there_is():
    program, *words = shlex.split(settings(UNIT)["ExecStart"][0])
    given = options(words)
    assert Path(program).name == "pellucid"
    assert str(given.runs) in UNIT.partition("ReadOnlyPaths=-")[2].splitlines()[0]
    assert str(given.log).startswith(f"/var/log/{settings(UNIT)['LogsDirectory'][0]}/")


def test_the_unit_leaves_room_for_the_bounds():
    limits, unit = Limits(), settings(UNIT)
    assert int(unit["LimitNOFILE"][0]) >= limits.connections + RESERVED
    assert int(unit["TimeoutStopSec"][0]) > limits.upload + limits.seconds + 5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze: it is not on this machine")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    program = settings(UNIT)["ExecStart"][0].split()[0]
    unit = tmp_path / "pellucid.service"
    unit.write_text(UNIT.replace(program, shutil.which("true") or "/bin/true"))  # it isn't installed here
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)]
    assert subprocess.run(judged, capture_output=True, check=False).returncode == 0
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=very"))
    wrong = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "Failed to parse" in wrong.stderr


def test_the_dockerfile_starts_what_there_is_as_nobody_with_a_read_only_root():
    steps = instructions(DOCKER)
    stage = steps[max(i for i, (name, _) in enumerate(steps) if name == "FROM") :]
    last = dict(stage)
    given = options([*eval(last["ENTRYPOINT"])[1:], *eval(last["CMD"])])
    assert str(given.port) == last["EXPOSE"]
    assert f"mkdir {given.runs}" in last["RUN"]
    assert f"http://127.0.0.1:{given.port}/healthz" in last["HEALTHCHECK"]
    with TestClient(create_app({}), base_url="http://127.0.0.1:8000") as client:
        assert client.get("/healthz").status_code == 200
    uid = re.search(r"--uid (\d+)", last["RUN"])
    assert uid
    assert last["USER"] == f"{uid[1]}:{uid[1]}"
    names = [name for name, _ in stage]
    assert names.index("USER") < names.index("ENTRYPOINT")
    written = re.findall(r"(?:CACHE|CONFIGDIR)=(\S+)", last["ENV"])
    assert len(written) == 2
    assert all(place.startswith("/tmp/") for place in written)
    assert "--read-only --tmpfs /tmp" in PAGE


def test_the_dockerfile_copies_and_installs_what_there_is():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, rest in instructions(DOCKER):
        if name == "COPY" and "--from" not in rest:
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
    assert set(re.findall(r"\.\[(\w+)\]", DOCKER)) <= extras.keys()
    build = re.search(r"docker build .*--file (\S+)", PAGE)
    assert build
    assert (ROOT / build[1]).is_file()


def test_the_page_names_options_and_bounds_that_are():
    known = {f"--{field.name}" for field in fields(ServeOptions)}
    ours = PAGE.replace(PAGE[PAGE.index("```text") : PAGE.index("```\n\nAll of")], "")
    assert set(re.findall(r"(?<![\w-])--\w+", ours)) - {"--now"} <= known
    limits = Limits()
    for sentence in (
        f"{limits.bytes >> 20} MB, {limits.pixels / 1e6:.0f} million pixels; {limits.upload:.0f} s to arrive, "
        f"{limits.seconds:.0f} s to be answered",
        f"{limits.uploads}, {limits.uploads_each} from one address, {limits.held >> 20} MB",
        f"{limits.connections:,}, {limits.connections_each} from one address",
        f"{limits.head:.0f} s from the opening of the connection or its first byte, {limits.idle:.0f} s of silence",
        f"| {limits.stalled:.0f} s |",
        f"{limits.log >> 20} MB in four files",
    ):
        assert sentence in PAGE, sentence
