"""A page that shows the live purgatories of a process, and the same facts as JSON: read-only, on loopback.

>>> from purgatory.console import serve
>>> with serve(0) as console:
...     console.url.startswith("http://127.0.0.1:")
True

``app`` is the same as an ASGI app, to be mounted in a service that has a server already. Needs the extra ``[console]``.
"""

from purgatory._distribution import missing

try:
    from purgatory._serving import AddressUnusable
    from purgatory.console._app import app
    from purgatory.console._serve import ConsoleServer, serve
except ModuleNotFoundError as _error:
    raise missing(_error, "console") from _error

__all__ = ["AddressUnusable", "ConsoleServer", "app", "serve"]
