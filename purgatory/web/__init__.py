"""Long polls in FastAPI and Starlette: a hang-up ends the wait, and a server that stops answers every client first.

Start at :class:`LongPolls`. Needs the extra ``[web]``.
"""

from purgatory._distribution import missing

try:
    from purgatory.web._hang_up import HungUp, unless_hung_up
    from purgatory.web._polls import LongPolls, Unavailable
except ModuleNotFoundError as error:
    raise missing(error, "web") from error

__all__ = ["HungUp", "LongPolls", "Unavailable", "unless_hung_up"]
