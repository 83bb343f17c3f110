"""An inbox with long polls: ``uvicorn examples.longpoll.app:app``.

POST /inbox/ann?text=hello             leave a message
GET  /inbox/ann?timeout_ms=30000       take what is there, waiting for the first; [] if the time is up
"""

from collections import defaultdict
from typing import Annotated

from fastapi import FastAPI, Query, Request

from purgatory import DelayedOperation, metrics
from purgatory.aio import AsyncPurgatory
from purgatory.web import LongPolls

inbox: defaultdict[str, list[str]] = defaultdict(list)
purgatory: AsyncPurgatory[DelayedOperation] = AsyncPurgatory("inbox", max_parked=10_000)
polls = LongPolls(purgatory)

app = FastAPI(lifespan=polls.lifespan)
app.add_route("/metrics", metrics.app())


@app.post("/inbox/{user}")
async def leave(user: str, text: str) -> None:
    inbox[user].append(text)  # change the state,
    purgatory.check_and_complete(user)  # then have its key checked


@app.get("/inbox/{user}")
async def take(
    user: str,
    request: Request,
    timeout_ms: Annotated[int, Query(ge=0, le=300_000)] = 30_000,
) -> list[str]:
    def put_back(messages: list[str]) -> None:  # their client hung up: they are for the next
        inbox[user][:0] = messages
        purgatory.check_and_complete(user)

    try:
        return await polls.wait_for_result(
            request, lambda: inbox.pop(user, None), keys=[user], timeout_ms=timeout_ms, give_back=put_back
        )
    except TimeoutError:
        return []
