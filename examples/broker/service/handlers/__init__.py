"""One method per API, by family: from the request to the values that the broker works with, and back.

``nodes`` has the requests between nodes. A method that bears the name of an API, in small letters, answers its
requests. It may raise a ``BrokerError`` if the response has one error code for the whole request. The connection
answers with it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from examples.broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from examples.broker.service.reply import Handler

__all__ = ["by_api"]


def by_api(handlers: object) -> dict[int, Handler]:
    """The methods of a family by the numbers of the APIs that they are named after."""
    methods = {
        name for name, value in vars(type(handlers)).items() if inspect.isfunction(value)
    }  # not what attrs keeps
    return {key: getattr(handlers, name) for key in ApiKey if (name := key.name.lower()) in methods}
