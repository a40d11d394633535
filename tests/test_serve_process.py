"""The server as a process: how it begins, what it says, and how it ends."""

import json
import signal
import socket
import urllib.error
import urllib.request
from contextlib import closing

import pytest
from serving import serving, wait_until

from pellucid.cli import main
from pellucid.serve.samples import samples

TOKEN = "a-token-of-some-length"
SHIP = samples()["ship"].data


def get(address, **headers):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=20) as response:
        return json.load(response)


def request(body_length, extra=""):
    return (
        "POST /api/classify?model=vit-cifar10 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Length: {body_length}\r\n{extra}\r\n"
    ).encode()


def read_all(connection):
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with serving("--models", "vit-cifar10", "--token", TOKEN, log=folder / "log.txt") as found:
        yield found


def test_it_answers_where_it_says(server):
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert [model["name"] for model in get(f"{server.address}/api/models", **bearer)] == ["vit-cifar10"]
    assert server.query == f"?token={TOKEN}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(f"{server.address}/api/models")
    with refused.value:
        assert refused.value.code == 401


def test_a_port_that_is_taken_is_one_sentence(server, capsys):
    assert main(["serve", "--port", str(server.port)]) == 2
    said = capsys.readouterr()
    assert said.err == (
        f"pellucid: can't listen on 127.0.0.1 port {server.port}: address already in use; "
        "choose another --port or --host\n"
    )


def test_what_is_no_http_breaks_nothing(server):
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 10,
    ):
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            assert "Traceback" not in read_all(connection)
    assert "Traceback" not in server.log.read_text()


def test_sigterm_answers_what_is_in_flight_and_refuses_the_rest(server):
    """Last of this file: the server of the others ends here."""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)) as connection:
        connection.sendall(request(len(SHIP), f"Authorization: Bearer {TOKEN}\r\n") + SHIP[:1000])
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        wait_until(lambda: get(f"{server.address}/api/health", **bearer)["requests"] == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: _refused(server.port))
        assert server.process.poll() is None
        connection.sendall(SHIP[1000:])
        head, _, body = read_all(connection).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert json.loads(body)["classes"][0]["label"] == "ship"
    assert server.ended() == 0
    assert "Traceback" not in server.log.read_text()


def _refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


WRONG = {
    ("--host", "0.0.0.0"): "bound to 0.0.0.0, others can reach the server: give it a --token",
    ("--token", "short"): "the token is too short or has other characters",
    ("--port", "70000"): "--port is 70000; expected 0…65535",
    ("--runs", "nowhere"): "the folder 'nowhere' doesn't exist; give the folder that holds the runs",
    ("--port", "0", "--models", "nothing"): "no model 'nothing': as a path it is not there",
    ("--port", "0", "--host", "256.0.0.1", "--token", TOKEN): "can't listen on 256.0.0.1 port 0: ",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_mistakes_are_one_sentence(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PELLUCID_TOKEN", raising=False)
    assert main(["serve", *words]) == 2
    said = capsys.readouterr().err
    assert WRONG[words] in said
    assert said.count("\n") == 1


def test_two_models_of_one_name_are_told_apart_or_refused(tmp_path):
    from pellucid.models import ViT, ViTConfig
    from pellucid.serve.served import load_all

    small = ViT(ViTConfig(classes=2, image=(8, 8), width=8, depth=1, heads=1, mean=(0.5,) * 3, std=(0.3,) * 3))
    for place in ("a/mine", "b/mine", "b/other"):
        small.save_pretrained(tmp_path / place)
    assert list(load_all([f"{tmp_path}/a/mine", f"{tmp_path}/b/other"])) == ["mine", "other"]
    with pytest.raises(ValueError, match="several models are called 'mine'"):
        load_all([f"{tmp_path}/a/mine", f"{tmp_path}/b/mine"])
