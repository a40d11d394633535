"""The server among strangers: who is slow, silent, many, or sent by another site keeps nobody from an answer."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from serving import Serving, serving, serving_small, wait_until

from pellucid.serve.samples import samples

SHIP = samples()["ship"].data
TOKEN = "a-token-of-some-length"
HOST = "Host: 127.0.0.1\r\n"
FAR = {"unbounded": []}  # bounds hold for this machine, too


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Serving]:
    """As anybody starts it."""
    with serving("--models", "vit-cifar10", log=tmp_path_factory.mktemp("server") / "log.txt") as found:
        yield found


class Asking(socket.socket):
    """A connection that has sent something."""

    def __init__(self, server: Serving, sent: bytes = b""):
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.settimeout(60)
        self.connect(("127.0.0.1", server.port))
        self.sendall(sent)

    def answer(self) -> tuple[int, str]:
        """Status and text of one answer; (0, "") if the connection was ended without one."""
        data = b""
        try:
            while b"\r\n\r\n" not in data:
                part = self.recv(1 << 16)
                if not part:
                    return 0, ""
                data += part
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
            while len(body) < length:
                body += self.recv(1 << 16)
        except ConnectionResetError:
            return 0, ""
        return int(head.split(b" ", 2)[1]), body.decode("utf-8", "replace")

    def ended_after(self) -> float:
        """Seconds until the server ends it."""
        begun = time.monotonic()
        try:
            while self.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return time.monotonic() - begun


def get(path: str, *headers: str) -> bytes:
    return (f"GET {path} HTTP/1.1\r\n{HOST}" + "".join(f"{each}\r\n" for each in headers) + "\r\n").encode()


def post(model: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    head = f"POST /api/classify?model={model} HTTP/1.1\r\n{HOST}Content-Length: {length or len(body)}\r\n"
    return (head + "".join(f"{each}\r\n" for each in headers) + "\r\n").encode() + body


def asked(server: Serving, request: bytes) -> tuple[int, str]:
    with closing(Asking(server, request)) as connection:
        return connection.answer()


def looked_at(server: Serving, model: str = "vit-cifar10") -> tuple[int, float]:
    """Status of the answer to one picture, and its seconds."""
    begun = time.monotonic()
    status, _ = asked(server, post(model, SHIP))
    return status, time.monotonic() - begun


# ---- rooms


def test_the_lab_keeps_no_picture_waiting_at_the_door(server):
    with ExitStack() as many:
        for _ in range(140):
            many.enter_context(closing(Asking(server, get("/api/lab/depth"))))
        time.sleep(0.5)
        assert [looked_at(server)[0] for _ in range(5)] == [200] * 5


def test_slow_uploads_keep_no_picture_out(server):
    with ExitStack() as many:
        for _ in range(200):
            many.enter_context(closing(Asking(server, post("vit-cifar10", b"\x89", length=10_000))))
        time.sleep(0.5)
        assert [looked_at(server)[0] for _ in range(5)] == [200] * 5


def test_each_room_has_its_own_line(tmp_path):
    """A lab that is full refuses its own; who wants the same experiment shares it, and is none too many."""
    with serving_small({"lab": [1, 1]}, tmp_path / "log.txt") as server, ExitStack() as many:
        for path in ("leaking", "leaking", "depth", "leaking"):
            many.enter_context(closing(Asking(server, get(f"/api/lab/{path}"))))
        wait_until(lambda: 'queue_length{of="lab"} 1' in asked(server, get("/metrics"))[1], 60)
        status, text = asked(server, get("/api/lab/heads"))
        assert (status, "the server is full" in text) == (503, True)
        assert looked_at(server, "small")[0] == 200
        assert asked(server, get("/api/runs"))[0] == 200


# ---- connections


def test_silent_sockets_beyond_the_files_it_may_open(tmp_path):
    with serving("--models", "vit-cifar10", log=tmp_path / "log.txt", files=250) as server, ExitStack() as many:
        for _ in range(400):
            many.enter_context(closing(Asking(server)))
        for _ in range(5):
            assert looked_at(server)[0] == 200
        time.sleep(2)
        assert processor_seconds(server, 1.0) < 0.5  # it doesn't spin
        assert looked_at(server)[0] == 200
        assert server.log.stat().st_size < 10_000


def processor_seconds(server: Serving, wait: float) -> float:
    """What it computes while we wait."""

    def ticks() -> int:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(wait)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def hasty(tmp_path_factory) -> Iterator[Serving]:
    """Waits for nothing longer than a second."""
    limits = {"head": 0.5, "idle": 1, "upload": 1.0}
    with serving_small(limits, tmp_path_factory.mktemp("hasty") / "log.txt") as found:
        yield found


def test_a_head_must_come_in_time_however_it_trickles(hasty):
    with closing(Asking(hasty)) as silent:
        assert 0.2 < silent.ended_after() < 3
    with closing(Asking(hasty, b"GET / HT")) as slow:
        begun = time.monotonic()
        with pytest.raises(OSError, match=r"."):  # noqa: PT012
            while time.monotonic() - begun < 10:
                slow.sendall(b"T")
                time.sleep(0.1)
        assert time.monotonic() - begun < 4


def test_a_body_must_come_in_time_a_byte_a_second_is_too_slow(hasty):
    with closing(Asking(hasty, post("small", b"", length=1000))) as slow:
        slow.settimeout(0.1)
        begun, said = time.monotonic(), b""
        while b"\r\n\r\n{" not in said and time.monotonic() - begun < 10:
            if not said:
                slow.sendall(b"x")
            try:
                said += slow.recv(1 << 16)
            except TimeoutError:
                continue
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in said.lower()
        assert b"the picture took longer than 1 s to arrive" in said
        assert 0.5 < time.monotonic() - begun < 5


def test_a_body_that_nobody_reads_keeps_no_connection_open(hasty):
    """The answer has been given; what the body still sends, byte by byte, gives it no more time."""
    head = f"POST /api/nothing HTTP/1.1\r\n{HOST}Content-Length: 100000\r\n\r\n".encode()
    with closing(Asking(hasty, head)) as slow:
        assert slow.answer()[0] == 404
        begun = time.monotonic()
        with pytest.raises(OSError, match=r"."):  # noqa: PT012
            while time.monotonic() - begun < 20:
                slow.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - begun < 10


def test_between_two_requests_it_waits_and_not_for_ever(hasty):
    with closing(Asking(hasty, get("/healthz"))) as connection:
        assert connection.answer() == (200, "ready")
        time.sleep(0.7)  # longer than a head may take
        connection.sendall(get("/healthz"))
        assert connection.answer() == (200, "ready")
        assert 0.5 < connection.ended_after() < 4


@pytest.mark.parametrize("near", [False, True])
def test_one_address_has_so_many_connections_and_uploads_but_not_this_machine(tmp_path, near):
    bounds = {"connections_each": 20, "uploads_each": 5} | ({} if near else FAR)
    with serving_small(bounds, tmp_path / "log.txt") as server:
        with ExitStack() as many:
            asking = [many.enter_context(closing(Asking(server, get("/healthz")))) for _ in range(30)]
            statuses = [each.answer()[0] for each in asking]
            assert statuses == [200] * 30 if near else [200] * 20 + [503] * 10
        wait_until(lambda: asked(server, get("/healthz"))[0] == 200)
        with ExitStack() as many:
            for _ in range(5):
                many.enter_context(closing(Asking(server, post("small", b"x", length=1000))))
            wait_until(lambda: 'pellucid_uploads{of="arriving"} 5' in asked(server, get("/metrics"))[1])
            assert looked_at(server, "small")[0] == (200 if near else 503)
        wait_until(lambda: looked_at(server, "small")[0] == 200)


def test_a_full_house_ends_who_never_asked_for_anything_first(tmp_path):
    with serving_small({"connections": 30}, tmp_path / "log.txt") as server, ExitStack() as many:
        known = many.enter_context(closing(Asking(server, get("/healthz"))))
        assert known.answer()[0] == 200
        for _ in range(60):
            many.enter_context(closing(Asking(server)))
        assert asked(server, get("/healthz"))[0] == 200
        known.sendall(get("/healthz"))
        assert known.answer()[0] == 200
        for _ in range(29):
            many.enter_context(closing(Asking(server, post("small", b"x", length=1000))))

        def arriving() -> bool:
            known.sendall(get("/metrics"))
            return 'pellucid_uploads{of="arriving"} 29' in known.answer()[1]

        wait_until(arriving)
        known.sendall(post("small", b"x", length=1000))
        time.sleep(1)
        for _ in range(5):  # now all that are open have asked for something
            status, text = asked(server, get("/healthz"))
            assert (status, "the server is full" in text) == (503, True)


# ---- other sites


ELSEWHERE = [("cross-site", "no-cors", "image"), ("same-site", "cors", "empty"), ("cross-site", "navigate", "document"),
             ("cross-site", "navigate", "iframe")]  # fmt: skip


def fetched(site: str, mode: str, kind: str) -> list[str]:
    return [f"Sec-Fetch-Site: {site}", f"Sec-Fetch-Mode: {mode}", f"Sec-Fetch-Dest: {kind}"]


@pytest.mark.parametrize("path", ["/api/lab/graph", "/api/runs/x/confusion.png", "/api/models", "/metrics"])
@pytest.mark.parametrize("how", ELSEWHERE, ids=" ".join)
def test_other_sites_start_nothing(server, path, how):
    status, text = asked(server, get(path, *fetched(*how)))
    assert (status, "another site" in text) == (403, True)


def test_other_sites_may_lead_to_the_page_and_not_hold_it_in_a_frame(server):
    assert asked(server, get("/", *fetched("cross-site", "navigate", "document")))[0] == 200
    assert asked(server, get("/", *fetched("cross-site", "navigate", "iframe")))[0] == 403
    for own in (fetched("same-origin", "cors", "empty"), fetched("none", "navigate", "document"), []):
        assert asked(server, get("/api/lab/graph", *own))[0] == 200


# ---- what it says


@pytest.mark.parametrize(
    "path",
    ["/" + "x" * 10_000, "/api/lab/" + "x" * 10_000, "/api/runs/" + "x" * 10_000, "/api/samples/" + "x" * 10_000,
     "/page/" + "x" * 10_000, f"/api/runs/{'x' * 10_000}/confusion.png", "/api/lab/graph?" + "x" * 10_000 + "=1",
     "/api/lab/graph?nodes=" + "x" * 10_000],
    ids=lambda path: path[:30],
)  # fmt: skip
def test_a_refusal_repeats_no_more_than_a_line(server, path):
    status, text = asked(server, get(path))
    assert status in (404, 422)
    assert 10 < text.count("x") < 100
    assert len(text) < 300


# ---- the end


def test_sigterm_ends_a_running_experiment_at_once(tmp_path):
    with serving("--models", "vit-cifar10", log=tmp_path / "log.txt") as server:
        with closing(Asking(server, get("/api/lab/leaking"))) as connection:
            wait_until(lambda: asked(server, get("/api/lab"))[0] == 200, 60)
            time.sleep(3)
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            status, text = connection.answer()
            assert (status, "stopping" in text) == (503, True)
            assert time.monotonic() - begun < 3
        assert server.ended() == 0
        assert time.monotonic() - begun < 15  # of which most is Python's own end; the experiment takes a minute
        assert "Traceback" not in server.log.read_text()


# ---- what those see who run it


def test_healthz_is_for_all_and_metrics_for_who_has_the_token(tmp_path):
    with serving_small({}, tmp_path / "log.txt", token=TOKEN) as server:
        assert asked(server, get("/healthz")) == (200, "ready")
        assert asked(server, get("/metrics"))[0] == 401
        bearer = f"Authorization: Bearer {TOKEN}"
        assert asked(server, post("small", SHIP, bearer))[0] == 200
        status, text = asked(server, get("/metrics", bearer))
        assert status == 200
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert samples['pellucid_requests_total{route="/api/classify",status="200"}'] == "1"
        assert samples['pellucid_requests_total{route="none",status="401"}'] == "1"
        assert samples['pellucid_request_seconds_bucket{route="/api/classify",le="+Inf"}'] == "1"
        assert samples["pellucid_batch_size_sum"] == "1"
        assert samples['pellucid_queue_length{of="look"}'] == "0"
        assert float(samples['pellucid_memory_bytes{of="resident"}']) > 1e8
        assert int(samples['pellucid_connections{of="open"}']) >= 1


def test_each_request_is_a_line_of_the_log_whoever_it_is_forwarded_for(tmp_path):
    log = tmp_path / "access.jsonl"
    with serving_small({}, tmp_path / "log.txt", log=str(log), proxies=["127.0.0.1"]) as server:
        asked(server, post("small", SHIP, "X-Forwarded-For: 10.9.9.9, 192.0.2.7"))
        asked(server, get("/healthz?secret=1"))
        for _ in range(20):
            asked(server, get("/api/nothing"))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    first, second, *rest = lines
    assert {name: first[name] for name in ("address", "method", "path", "status")} == {
        "address": "192.0.2.7", "method": "POST", "path": "/api/classify", "status": 200,
    }  # fmt: skip
    assert first["time"].endswith("Z")
    assert first["bytes"] > 50
    assert 0 <= first["queue"] <= first["seconds"] < 30
    assert (second["path"], second["address"], second["queue"]) == ("/healthz", "127.0.0.1", None)
    assert {each["status"] for each in rest} == {404}
    assert sum(each["times"] for each in rest) == 20
    assert len(rest) < 10  # refusals of one kind, within a second


def test_the_log_never_grows_beyond_its_bound(tmp_path):
    log = tmp_path / "access.jsonl"
    with serving_small({"log": 8000}, tmp_path / "log.txt", log=str(log)) as server:
        for _ in range(150):
            assert asked(server, get("/healthz"))[0] == 200
    files = sorted(tmp_path.glob("access.jsonl*"))
    assert len(files) == 4
    assert sum(file.stat().st_size for file in files) <= 8000
    assert all(json.loads(line)["path"] == "/healthz" for file in files for line in file.read_text().splitlines())
