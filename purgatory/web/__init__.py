"""Long polls in FastAPI and Starlette: who hangs up is let go, and a server that stops answers everybody first.

Start at :class:`LongPolls`. Needs the extra ``[web]``.
"""

from purgatory.web._hang_up import HungUp, unless_hung_up
from purgatory.web._polls import LongPolls, Unavailable

__all__ = ["HungUp", "LongPolls", "Unavailable", "unless_hung_up"]
