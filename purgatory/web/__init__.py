"""Long polls and streams in ASGI: a hang-up ends the wait, and a server that stops answers every client first.

Start at :class:`LongPolls`. Needs the extra ``[web]``.
"""

from purgatory._distribution import missing

try:
    from purgatory.web._hang_up import HungUp, unless_hung_up
    from purgatory.web._polls import LongPolls, Unavailable
    from purgatory.web._streams import KEEP_ALIVE, KeepAlive
except ModuleNotFoundError as _error:
    raise missing(_error, "web") from _error

__all__ = ["KEEP_ALIVE", "HungUp", "KeepAlive", "LongPolls", "Unavailable", "unless_hung_up"]
