"""An inbox with long polls: ``uvicorn examples.webpoll.app:app``.

POST /inbox/ann?text=hello             leave a message
GET  /inbox/ann?timeout_ms=30000       take what is there, waiting for the first; [] if the time is up
"""

from collections import defaultdict

from fastapi import FastAPI, Request

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
async def take(user: str, request: Request, timeout_ms: int = 30_000) -> list[str]:
    await polls.wait_for(request, lambda: inbox[user], keys=[user], timeout_ms=timeout_ms)
    return inbox.pop(user, [])
