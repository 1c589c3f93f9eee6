"""Whether a server should get requests: a load balancer asks, and a shutdown says no first."""

from __future__ import annotations

import asyncio

from holdfast.app import Holdfast
from holdfast.engine.worker.worker import Worker
from holdfast.errors import HoldfastError, NotReady

__all__ = ["Readiness"]

_PROBE_SECONDS_MAX = 2.0
# For how long the answer of a probe counts.
_AGE_SECONDS_MAX = 1.0


class Readiness:
    """Asks the store at most once a second, however many requests ask for the readiness."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._worker: Worker | None = None
        self.stopping = asyncio.Event()
        """Set when the shutdown begins: requests that wait should answer soon."""
        self._probe: asyncio.Task[str] | None = None
        self._probed_at = 0.0

    def watch(self, worker: Worker) -> None:
        """Make the health of a worker part of the readiness."""
        self._worker = worker

    def shut_down(self) -> None:
        """Refuse from now on. The first step of a shutdown: balancers then send no more requests.

        The server itself still answers requests until it stops.
        """
        self.stopping.set()

    async def check(self) -> None:
        """Return if the server is ready.

        Raises:
            NotReady: it shuts down, its worker cannot work, or its store does not answer. The
                message names the kind of the error and no address.
        """
        if self.stopping.is_set():
            raise NotReady("the server shuts down")
        if self._worker is not None and not self._worker.health.ok:
            health = self._worker.health
            kind = "" if health.error is None else f" ({health.error.code})"
            raise NotReady(f"the worker cannot {health.what}{kind}")
        if self._worker is not None and self._worker.draining:
            raise NotReady("the worker drains")
        error = await self._probe_store()
        if error:
            raise NotReady(error)

    async def _probe_store(self) -> str:
        """Return what is wrong with the store; empty if it answers. Callers share one probe."""
        now = asyncio.get_running_loop().time()
        probe = self._probe
        if probe is None or (probe.done() and now - self._probed_at >= _AGE_SECONDS_MAX):
            probe = self._probe = asyncio.create_task(self._ask(), name="holdfast readiness")
        # Shielded: a request that is cut off must not end the probe of the others.
        return await asyncio.shield(probe)

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(_PROBE_SECONDS_MAX):
                await self._hf.fleet.ping()
            return ""
        except TimeoutError:
            return f"the store did not answer within {_PROBE_SECONDS_MAX:g} seconds"
        except HoldfastError as error:
            return f"the store cannot be used ({error.code})"
        finally:
            self._probed_at = asyncio.get_running_loop().time()
