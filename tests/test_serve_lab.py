"""The lab behind the server: every parameter that its description allows, and the process that runs it."""

import asyncio
import os
import re
import time
import traceback
from functools import partial
from pathlib import Path
from threading import Thread

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from serving import wait_until
from starlette.testclient import TestClient

import pellucid
from pellucid.lab import EXPERIMENTS
from pellucid.serve import schemas
from pellucid.serve.app import create_app
from pellucid.serve.experiments import LONG, run_page
from pellucid.serve.killable import KillableWorker
from pellucid.serve.problems import Problem
from pellucid.serve.shared import Shared

HOME = "http://127.0.0.1:8000"
OURS = Path(pellucid.__file__).parent
FOREIGN = re.compile(r"torch|[Tt]ensor|\bdim\b|dimension|reduction|Size\(|arg is|division|Expected|from=|probability")


@pytest.fixture(scope="module")
def client():
    with TestClient(create_app({}), base_url=HOME) as found:
        yield found


def described(name: str) -> dict[str, dict]:
    """What OpenAPI says of the parameters of an experiment."""
    operation = create_app({}).openapi()["paths"][f"/api/lab/{name}"]["get"]
    return {each["name"]: each["schema"] for each in operation.get("parameters", [])}


def values(schema: dict) -> st.SearchStrategy:
    low, high = schema["minimum"], schema["maximum"]
    if schema["type"] == "integer":
        return st.integers(int(low), int(high))
    return st.floats(low, high)


# ---- parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - LONG))
def test_all_parameters_within_their_bounds_give_a_page_or_a_sentence_of_ours(name):
    schema = described(name)
    assert schema
    edges = [{each: edge} for each in schema for edge in (schema[each]["minimum"], schema[each]["maximum"])]

    @settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries({}, optional={each: values(schema[each]) for each in schema}))
    def tried(changes):
        whole = {each for each in changes if schema[each]["type"] == "integer"}
        changes = {each: int(value) if each in whole else value for each, value in changes.items()}
        try:
            schemas.ExperimentPage(**run_page(name, changes))
            return
        except ValueError as error:
            sentence, cause = str(error), error.__cause__
        assert isinstance(cause, ValueError), f"{changes}: {cause!r}"
        raised = Path(traceback.extract_tb(cause.__traceback__)[-1].filename)
        assert raised.is_relative_to(OURS), f"{changes}: {cause} at {raised}"
        assert sentence.startswith(f"{name} can't run with these parameters: ")

    for edge in edges:
        tried = example(edge)(tried)
    tried()


@pytest.mark.parametrize(
    "asked",
    [
        "shapes?column_tokens=1", "perturbation?keys=1", "sinusoids?positions=1", "sinusoids?width=2",
        "sinusoids?base=0", "norms?tokens=1", "dropout?p=1.2", "dropout?draws=1", "forcing?vocabulary=1",
    ],
)  # fmt: skip
def test_what_cant_be_run_is_said_in_words_of_ours(client, asked):
    response = client.get(f"/api/lab/{asked}")
    assert response.status_code == 422
    assert not FOREIGN.search(response.json()["error"]), response.json()


def test_the_description_names_each_experiment_with_its_parameters_and_no_others(client):
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {path.removeprefix("/api/lab/") for path in paths if path.startswith("/api/lab/")} == EXPERIMENTS.keys()
    listed = {each["name"]: each["parameters"] for each in client.get("/api/lab").json()}
    for name, parameters in listed.items():
        bounds = {each: (about["minimum"], about["maximum"]) for each, about in described(name).items()}
        assert bounds == {each["name"]: (each["low"], each["high"]) for each in parameters}


def test_an_error_of_pytorchs_is_not_told_to_who_asks(monkeypatch):
    def broken(self, parameters=None):
        raise RuntimeError("max(): Expected reduction dim")

    monkeypatch.setattr("pellucid.lab.frame.Experiment.__call__", broken)
    with pytest.raises(ValueError, match=r"choose some nearer to its own$") as caught:
        run_page("graph", {})
    assert not FOREIGN.search(str(caught.value))


# ---- the process


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_cancelled_is_ended_and_the_next_is_run():
    worker = KillableWorker(longest=60.0)

    async def tried():
        process = await worker.run(os.getpid)
        assert is_alive(process)
        task = asyncio.create_task(worker.run(time.sleep, 50))
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while is_alive(process):
            assert time.monotonic() - begun < 1.0
            await asyncio.sleep(0.01)
        assert await worker.run(os.getpid) != process

    asyncio.run(tried())
    worker.close()


def test_a_process_is_used_again_and_errors_come_over():
    worker = KillableWorker(longest=60.0)

    async def tried():
        first = await worker.run(os.getpid)
        with pytest.raises(ValueError, match="invalid literal") as caught:
            await worker.run(int, "x")
        assert "in the process that was asked" in caught.value.__notes__[0]
        assert await worker.run(os.getpid) == first != os.getpid()
        with pytest.raises(Problem) as ended:
            await worker.run(os._exit, 3)
        assert ended.value.status == 503
        assert await worker.run(os.getpid) not in (first, os.getpid())

    asyncio.run(tried())
    worker.close()


def test_what_takes_too_long_is_ended():
    worker = KillableWorker(longest=0.2)
    with pytest.raises(Problem, match=r"ended after 0.2 s"):
        asyncio.run(worker.run(time.sleep, 50))


# ---- sharing


def test_two_who_want_the_same_share_it_and_who_leaves_last_ends_it():
    ran, ended = [], []

    async def work(seconds=60):
        ran.append(1)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append(1)
            raise
        return 42

    async def tried():
        shared = Shared(linger=0.05)
        assert await asyncio.gather(*(shared.get("a", partial(work, 0.01)) for _ in range(5))) == [42] * 5
        assert await shared.get("a", partial(work, 0.01)) == 42
        assert len(ran) == 1
        one, other = (asyncio.create_task(shared.get("b", work)) for _ in range(2))
        await asyncio.sleep(0.01)
        one.cancel()
        await asyncio.sleep(0.1)
        assert not ended  # the other still waits
        other.cancel()
        await asyncio.sleep(0.01)
        assert not ended  # somebody may come back
        again = asyncio.create_task(shared.get("b", work))
        await asyncio.sleep(0.07)
        assert not ended
        again.cancel()
        await asyncio.sleep(0.1)
        assert ended == [1]
        stopped = asyncio.create_task(shared.get("c", work))
        await asyncio.sleep(0.01)
        shared.close()
        with pytest.raises(Problem, match="stopping"):
            await stopped
        with pytest.raises(Problem, match="stopping"):
            await shared.get("d", work)

    asyncio.run(tried())


def test_a_reader_who_leaves_ends_the_experiment():
    app = create_app({})
    service = app.state.service
    with TestClient(app, base_url=HOME) as client:
        assert client.get("/api/lab/graph").status_code == 200
        process = service.killable.idle[0].process.pid
        scope = {
            "type": "http", "method": "GET", "path": "/api/lab/depth", "raw_path": b"/api/lab/depth",
            "query_string": b"", "headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        leaves, sent = anyio.Event(), []

        async def receive():
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        asking = Thread(target=client.portal.call, args=(app, scope, receive, send))
        asking.start()
        wait_until(lambda: service.doors.lab.inside == 1, 60)
        assert is_alive(process)
        client.portal.call(leaves.set)
        asking.join(10)
        wait_until(lambda: service.doors.lab.inside == 0 and not is_alive(process), service.limits.linger + 30)
    assert sent == []
