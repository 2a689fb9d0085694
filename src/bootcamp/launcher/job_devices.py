"""The devices and cores of one run: waited for before its start, given back after its end."""

import asyncio

from bootcamp import machine
from bootcamp.launcher import device_locks

CORE_ASKS, CORE_ASK_SECONDS = 20, 0.01  # for free cores, before some are shared


class JobDevices:
    """What a run has claimed (device_locks.py).

    request: of the run, see job.Job. stopped: a future, done when the run has to end. tell: tells
    the kernel.
    """

    def __init__(self, request: dict, stopped: asyncio.Future, tell):
        self.request, self.stopped, self.tell = request, stopped, tell
        self.claims: list[device_locks.Claim] = []

    async def take(self) -> None:
        """Wait for the run's turn and its devices, unless it is stopped; take cores that are free.

        Raises device_locks.LeaseError.
        """
        if wish := self.request.get("lease"):
            await self._wait_for(device_locks.Request(**wish["request"]), wish["variable"])
        if (wish := self.request.get("cores")) and not self.stopped.done():
            await self._take_cores(**wish)

    async def _wait_for(self, request: device_locks.Request, variable: str) -> None:
        """Ask until the devices are granted or the run is stopped; tell the reader who has them."""
        told = before = ""
        try:
            while (granted := request.ask()) is None:
                stays, before = request.why == before, request.why
                if stays and before != told:  # not what is true for a moment, between two runs
                    told = before
                    self.tell({"run": self.request["run"], "event": "waiting", "message": told})
                if (await asyncio.wait({self.stopped}, timeout=device_locks.POLL_SECONDS))[0]:
                    return
        finally:
            request.withdraw()
        self.claims.append(granted.claim)
        self._set(variable, ",".join(device["value"] for device in granted.devices))

    async def _take_cores(self, folder: str, each: int) -> None:
        cores, ranks = machine.cores(), len(self.request["ranks"])
        for _ in range(CORE_ASKS):
            if claim := device_locks.take_cores(folder, cores, ranks, each):
                self.claims.append(claim)
                if claim.place:
                    self._set("BOOTCAMP_FIRST_CORE", str(claim.place))
                return
            await asyncio.sleep(CORE_ASK_SECONDS)

    def _set(self, variable: str, value: str) -> None:
        """Set a variable in the environment of all ranks, and of the launcher that starts them."""
        agents = self.request.get("agents", ())
        for settings in (self.request, *agents, *self.request["ranks"]):
            settings.setdefault("env", {})[variable] = value

    def note(self, pids: list[int]) -> None:
        """Say which processes use the devices."""
        for claim in self.claims:
            claim.note(pids)

    def look_for_sharing(self) -> None:
        """Notice other runs that compute on the same cores at this moment."""
        for claim in self.claims:
            claim.look_for_sharing()

    @property
    def shared_with(self) -> int:
        """How many other runs computed on the same cores at any time."""
        return len({name for claim in self.claims for name in claim.shared_with})

    def release(self) -> None:
        for claim in self.claims:
            claim.release()
