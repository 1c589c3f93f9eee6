"""The graphs, workers and quotas of a server, and its runs that need attention."""

from __future__ import annotations

from typing import Any

from holdfast.client.connection import ServerConnection
from holdfast.client.reading import objects_of

__all__ = ["RemoteFleet"]


class RemoteFleet:
    """Reads the fleet of a server. Every answer is as the server's JSON has it."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def graphs(self) -> list[dict[str, Any]]:
        """Return the graphs of the server, with the schemas of their inputs and signals."""
        return objects_of(await self._connection.call("graphs"), "graphs")

    async def workers(self) -> list[dict[str, Any]]:
        """Return the workers that are alive: how much each one holds, and how far it lags."""
        return objects_of(await self._connection.call("workers"), "workers")

    async def stuck(self) -> list[dict[str, Any]]:
        """Return the runs that are due and that no worker has taken for too long."""
        return objects_of(await self._connection.call("stuck"), "runs")

    async def unserved(self) -> list[dict[str, Any]]:
        """Return the graphs and pools with runs that no living worker serves."""
        return objects_of(await self._connection.call("unserved"), "unserved")

    async def overview(self) -> dict[str, Any]:
        """Return the numbers of runs by status, and of workers."""
        return await self._connection.call("overview")

    async def cost(self) -> dict[str, Any]:
        """Return what the store and the models cost, by purpose."""
        return await self._connection.call("cost")

    async def quotas(self) -> list[dict[str, Any]]:
        """Return the quotas: their limits, and how much of each is used now."""
        return objects_of(await self._connection.call("quotas"), "quotas")
