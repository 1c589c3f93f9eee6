"""The service: REST, server-sent events and WebSockets in front of a store. Needs holdfast[server].

`asgi` returns the application; ``holdfast serve`` runs it.
"""

from holdfast.server.asgi import ServerApp, asgi
from holdfast.server.options import JwtOptions, Rate, ServerOptions

__all__ = ["JwtOptions", "Rate", "ServerApp", "ServerOptions", "asgi"]
