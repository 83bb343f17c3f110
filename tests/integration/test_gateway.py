"""The gateway of the docs under uvicorn: twenty tenants, hang-ups, and the end of the server."""

import asyncio
import json
import re
import signal

import httpx
import pytest

from tests.support.served import ROOT, python_files, served
from tests.support.threads import PATIENCE_S

TENANTS = [f"t{number}" for number in range(20)]
#: What the test knows by itself: how many requests are inside, and who was answered.
TRUTH = """
import collections
import json as _json
_truth = {"inside": 0, "most": 0, "answered": collections.Counter()}
async def generate(prompt):
    _truth["inside"] += 1
    _truth["most"] = max(_truth["most"], _truth["inside"])
    try:
        await asyncio.sleep(0.1)
        _truth["answered"][prompt] += 1
        return prompt
    finally:
        _truth["inside"] -= 1
@app.get("/truth")
async def truth() -> dict:
    return {**_truth, "gate": model.statistics().in_use, "waiting": model.statistics().waiting}
"""


@pytest.fixture
def server(tmp_path):
    """The service of the page, with a model that is faster, and that counts."""
    files = dict(python_files(ROOT / "docs/recipes/gateway.md"))
    text, replaced = re.subn(
        r"async def generate.*?\n\n\n", f"{TRUTH}\n\n", files["service.py"], count=1, flags=re.DOTALL
    )
    assert replaced == 1
    (tmp_path / "service.py").write_text(text, encoding="utf-8")
    command = ("uvicorn", "service:app", "--port", "{port}", "--log-level", "warning")
    with served(*command, cwd=tmp_path, ready="/truth", PYTHONPATH=f"{tmp_path}:{ROOT}") as server:
        yield server


def clients(server):
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # the server closes idle ones
    return httpx.AsyncClient(base_url=server.url, timeout=2 * PATIENCE_S, limits=limits)


def ask(client, tenant):
    return client.post("/generate", params={"prompt": tenant}, headers={"x-tenant": tenant})


async def truth(client):
    return json.loads((await client.get("/truth")).text)


async def until(client, condition):
    """Ask the server until its truth is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition(await truth(client)):  # noqa: ASYNC110  # the server has no event for it
            await asyncio.sleep(0.1)


def jain(shares):
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def test_tenants_get_fair_shares_beside_a_flood(server):
    """One tenant with many callers and nineteen with four each get equal shares, and no permit is used twice."""

    async def caller(client, tenant):
        while True:
            answer = await ask(client, tenant)
            if answer.status_code != 200:
                assert answer.status_code in {429, 503}
                assert int(answer.headers["retry-after"]) >= 1
                await asyncio.sleep(1)

    async def main():
        async with clients(server) as client:
            tenants = ["t0"] * 40 + [tenant for tenant in TENANTS[1:] for _ in range(4)]
            callers = [asyncio.create_task(caller(client, tenant)) for tenant in tenants]
            await until(client, lambda found: min(found["answered"].get(tenant, 0) for tenant in TENANTS) >= 8)
            found = await truth(client)
            for task in callers:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            assert 4 == found["most"]
            assert jain([found["answered"][tenant] for tenant in TENANTS]) > 0.95, found
            await until(client, lambda found: not found["gate"] and not found["waiting"])

    asyncio.run(main())


def test_hang_ups_leave_the_queue(server):
    """Clients that hang up while they wait or are served leave no permit and no place behind."""

    async def main():
        async with clients(server) as client:
            for _ in range(3):
                requests = [asyncio.create_task(ask(client, tenant)) for tenant in TENANTS * 4]
                await asyncio.sleep(0.1)
                for request in requests[::2]:
                    request.cancel()
                answers = await asyncio.gather(*requests, return_exceptions=True)
                assert {200} == {answer.status_code for answer in answers[1::2]}
            await until(client, lambda found: not found["gate"] and not found["waiting"])

    asyncio.run(main())


def test_server_that_stops_answers_those_that_wait(server):
    """At SIGTERM the requests that wait get 503 at once, and those inside are answered."""

    async def main():
        async with clients(server) as client:
            # Four per tenant: the last one is inside after 2 s, so a slow machine does not have it rejected.
            requests = [asyncio.create_task(ask(client, tenant)) for tenant in TENANTS * 4]
            await until(client, lambda found: found["waiting"] >= 40)
            server.tell(signal.SIGTERM)
            codes = [answer.status_code for answer in await asyncio.gather(*requests)]
            assert {200, 503} == set(codes)

    asyncio.run(main())
    server.end()
    assert "Traceback" not in server.output


def test_streams_are_admitted_before_they_begin(tmp_path):
    """A stream that is rejected gets 429 or 503, and clients that hang up in the middle leave no permit behind."""
    text = dict(python_files(ROOT / "docs/recipes/gateway.md"))["streams.py"]
    state = '\n\n@app.get("/truth")\nasync def truth() -> dict:\n    return {"inside": model.statistics().in_use}\n'
    (tmp_path / "streams.py").write_text(text.replace("max_waiting=400", "max_waiting=20") + state, encoding="utf-8")

    async def hang_up(client, tenant):
        async with client.stream(*request(tenant), headers={"x-tenant": tenant}) as answer:
            assert answer.status_code in {200, 429, 503}
            async for _ in answer.aiter_text():
                break

    def request(tenant):
        return "POST", f"/generate?prompt={tenant}%20and%20more"

    async def main(server):
        async with clients(server) as client:
            asked = [client.request(*request(tenant), headers={"x-tenant": tenant}) for tenant in TENANTS * 3]
            _, *answers = await asyncio.gather(asyncio.gather(*(hang_up(client, "t0") for _ in range(10))), *asked)
            whole = [answer for answer in answers if answer.status_code == 200]
            assert whole
            assert all(answer.text.endswith(" and more ") for answer in whole)
            assert {429, 503} & {answer.status_code for answer in answers}
            assert {200, 429, 503} >= {answer.status_code for answer in answers}
            await until(client, lambda found: not found["inside"])

    command = ("uvicorn", "streams:app", "--port", "{port}", "--log-level", "warning")
    with served(*command, cwd=tmp_path, ready="/truth", PYTHONPATH=f"{tmp_path}:{ROOT}") as server:
        asyncio.run(main(server))
        assert "Traceback" not in server.output
