"""The auditor: replays a run while it goes on, and keeps all its payloads.

    relay with an archive --commits, payloads--> follower --differences--> log, status, metrics
         '--------- the same payloads, for everybody who audits the run later

It trains nothing, but looks for copies (`lockstep.audit.copies`), computes a few payloads again
(`lockstep.audit.work`) and adds a few ranges again (`lockstep.audit.sums`). It tells the
coordinator every state that it has replayed to, every payload that it holds, whose work was not
done and who signed a wrong sum; where the operator has named it (`lockstep run auditor add KEY`),
its word on a state (`coordinator.machine.rules.auditing`) and its evidence are final.
Its two halves live side by side: the archive goes on when the replay is slow, waits, or has found a
difference.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep import __version__
from lockstep.audit.follower import Follower
from lockstep.audit.metrics import AuditCollector
from lockstep.audit.records import Named
from lockstep.audit.settings import AuditorSettings
from lockstep.audit.words import REPEAT_S, Words
from lockstep.audit.work.start import begin
from lockstep.console import messages
from lockstep.service.home import Home, entered
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import ServeOptions, log_versions, serve
from lockstep.service.signals import run_event_loop
from node.relay.archive import Archive
from node.relay.process import RelayProcess
from node.settings import NodeSettings
from node.system.device import use_threads
from node.system.malloc import keep_freed_memory
from protocol import wire_pb2 as wire
from protocol.codec.evidence import Evidence, sign_evidence
from protocol.codec.payload_header import Blob, Header
from protocol.errors import DivergedError, UnavailableError
from protocol.limits import CONNECTIONS_MAX
from protocol.run_info import RunInfo
from protocol.traffic import Overhead, unknown_overhead

log = logging.getLogger("lockstep.auditor")

COMMITS_S = 30.0
"""Longest wait for a page of the log; then the audit says that it waits, and asks again."""

LAST_COMMIT_S = 30.0
"""Longest wait for the commit in hand when the auditor is told to stop."""


class RelayRecord:
    """The record of a live run, as its relay with an archive sees it."""

    def __init__(self, info: RunInfo, relay: RelayProcess, archive: Archive) -> None:
        self.info = info
        self._relay, self._archive = relay, archive
        self._head_round = -1

    @property
    def newest_round(self) -> int:
        return self._head_round

    async def commits(self, after_round: int) -> wire.Commits:
        client = self._relay.client
        try:
            async with asyncio.timeout(COMMITS_S):
                reply = await client.calls.fetch_commits(after_round, for_audit=True)
        except TimeoutError:
            reason = client.offline or f"no commits within {COMMITS_S:.0f} s"
            raise UnavailableError(f"expected the log from {client.address}: {reason}") from None
        self._head_round = max(self._head_round, reply.head_round)
        return reply

    async def payload(self, round: int, needed: Named) -> bytes:
        return await self._archive.payload(round, needed.digest)

    async def close(self) -> None:
        pass  # the relay is stopped by its owner


class AuditorProcess:
    """One auditor of one run. `key` is its identity; `overhead` tells the traffic that no part of
    it counts.
    """

    def __init__(
        self,
        settings: AuditorSettings,
        key: Ed25519PrivateKey,
        software: str,
        overhead: Overhead = unknown_overhead,
    ) -> None:
        self._settings = settings
        relaying = replace(settings.relay, archive=True, name="auditor")
        self._relay = RelayProcess(relaying, key, software, overhead, judge=self._header_of)
        self._words, self._key = Words(self._relay.client.send), key
        self._unaudited = ""
        """Why work is not audited; empty when it is."""
        self._follower: Follower | None = None
        self.registry = self._relay.registry
        self.registry.register(AuditCollector(self._audit))

    async def start(self, connections_max: int = CONNECTIONS_MAX) -> None:
        """Listen, build the model, and be ready to replay. Raises what `RelayProcess.start` raises,
        and `SettingsError` for a run that this machine cannot replay.
        """
        await self._relay.start(connections_max)
        parts = self._relay.started
        assert parts.archive is not None, "an auditor's relay has an archive"
        record = RelayRecord(parts.info, self._relay, parts.archive)
        settings, directory = self._settings, self._settings.relay.directory
        node = NodeSettings(settings.relay.coordinator, directory, data=settings.data)
        authors, self._unaudited = await asyncio.to_thread(
            begin, parts.info, node, settings.work_share / 100, self._accuse, self._key
        )
        if self._unaudited:
            log.warning("no audit of work", extra={"reason": self._unaudited})
        self._follower = await asyncio.to_thread(
            lambda: Follower(
                record,
                directory,
                settings.save_every,
                settings.snapshot,
                self._words,
                authors=authors,
                sums_share=settings.sums_share / 100,
            )
        )
        order = f"lockstep run auditor add {self._relay.peer}"
        log.info("auditor", extra={"peer": self._relay.peer, "final_word_by": order})

    async def run(self) -> str:
        """Audit until `leave` is called; returns how it ended, in words."""
        assert self._follower is not None, "start() comes first"
        follower = self._follower
        following = asyncio.create_task(follower.run())
        relaying = asyncio.create_task(self._relay.run())
        repeating = asyncio.create_task(self._repeat())
        try:
            await asyncio.wait({following, relaying}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()  # halted: the archive goes on
            reason = await relaying
            follower.leave()
            await asyncio.wait({following}, timeout=LAST_COMMIT_S)
            if following.done():
                following.result()
            return f"{reason}; audited up to round {follower.audited_round}"
        finally:
            for task in (following, relaying, repeating):
                task.cancel()
            await asyncio.gather(following, relaying, repeating, return_exceptions=True)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(REPEAT_S)
            self._words.repeat()

    def _accuse(self, evidence: Evidence) -> None:
        self._words.accuse(sign_evidence(evidence, self._key))

    def _header_of(self, round: int, payload: Blob) -> Header:
        assert self._follower is not None, "rounds come after start()"
        return self._follower.header_of(round, payload)

    def leave(self) -> None:
        """Drain, save, and end `run`."""
        self._relay.leave()

    async def stop(self) -> None:
        """Close everything that `start` and `run` have opened. Safe to call twice."""
        await self._relay.stop()

    # ---- for people

    @property
    def alarm(self) -> str:
        """The first difference in words; empty when there is none."""
        return self._follower.alarm if self._follower else ""

    def _audit(self) -> dict[str, Any]:
        if self._follower is None:
            return {}
        document = self._follower.document()
        return document | ({"work": {"words": self._unaudited}} if self._unaudited else {})

    def status(self) -> dict[str, Any]:
        """The document of /status.json."""
        return {**self._relay.status(), "audit": self._audit()}

    def unready(self) -> str:
        """Why an operator should look; empty while all is well."""
        return self.alarm or self._relay.unready()


def audit(settings: AuditorSettings, options: ServeOptions, home: Home) -> None:
    """Runs an auditor until a signal asks it to leave; `DivergedError` when it found a
    difference.
    """
    keep_freed_memory()
    use_threads(settings.threads)
    log_versions(settings)
    with entered(settings.relay.coordinator, "auditor", home, options) as (place, key, serving):
        settings = replace(settings, relay=replace(settings.relay, directory=place))
        alarm, words = run_event_loop(_audit(settings, serving, key))
    messages.print(words, soft_wrap=True, markup=False)
    if alarm:
        raise DivergedError(alarm)


async def _audit(
    settings: AuditorSettings, options: ServeOptions, key: Ed25519PrivateKey
) -> tuple[str, str]:
    """Returns the first difference, and how it ended, in words."""
    meter = OverheadMeter()
    process = AuditorProcess(settings, key, f"lockstep {__version__}", meter.measure_overhead)
    words = await serve(
        process,
        process.run,
        process.leave,
        lambda: settings.relay.coordinator,
        options,
        meter=meter,
    )
    return process.alarm, words
