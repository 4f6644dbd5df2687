"""What a plane writes down: sessions, runs, attempts; and how a session is kept, strictly."""

from __future__ import annotations

import copy
import hashlib
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.worker import strict
from tests.worker.strict import StrictError


def now_ms() -> int:
    """The plane's clock."""
    return time.time_ns() // 1_000_000


def digest(document: dict[str, Any]) -> str:
    """The content digest of an execution revision, keys in the contract's order."""
    order = (
        *("projectId", "taskId", "taskRevision", "sourceRevision", "sourceContentDigest"),
        *("executorType", "planSchema", "command", "environment", "environmentBundleRef"),
        *("workingDirectory", "timeoutMs", "placement"),
    )
    ordered = {key: document[key] for key in order if key in document}
    text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
    domain = "qinglong.cluster-task-execution-revision.v1\0"
    return hashlib.sha256((domain + text).encode()).hexdigest()


@dataclass
class Session:
    """One worker session."""

    worker: str
    session: str
    content: dict[str, Any]
    generation: int
    version: int = 0
    status: str = "online"
    until_ms: int = 0
    slots: int = 0


@dataclass
class Attempt:
    """One attempt of a run, under one offer."""

    run: Run
    attempt_id: str
    number: int
    offer_id: str
    token: str
    session: Session
    revision: dict[str, Any]
    version: int = 0
    acquired_ms: int = 0
    renewed_ms: int = 0
    expires_ms: int = 0
    status: str = "leased"
    handle: str | None = None
    started_ms: int | None = None
    sequence: int = 0
    token_digest: str | None = None
    log_id: str | None = None
    artifact: dict[str, Any] | None = None
    content: bytes = b""
    completion: dict[str, Any] | None = None
    end: str | None = None
    finished_ms: int | None = None
    stop: str | None = None
    deadline_ms: int | None = None
    completions: int = 0  # how many were applied: more than one is a fault of the worker
    deliveries: int = 0


@dataclass
class Run:
    """What is to be run once."""

    run_id: str
    spec: dict[str, Any]
    queued_ms: int
    status: str = "queued"
    attempts: list[Attempt] = field(default_factory=list)


class Sessions:
    """The sessions of one worker."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.sessions: dict[str, Session] = {}
        self.current: Session | None = None

    # -- sessions ------------------------------------------------------------------------------

    def register(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """First, again the same, or in place of another."""
        known = self.sessions.get(session_id)
        replaced = False
        if known is not None:
            if known is not self.current or known.content != found or known.status == "offline":
                raise StrictError(409, "worker_session_fenced", "not the current session")
            if known.until_ms <= now_ms():
                raise StrictError(409, "worker_session_fenced", "expired")
        else:
            generation = 1 if self.current is None else self.current.generation + 1
            replaced = self.current is not None and self.current.status != "offline"
            known = Session(self.worker, session_id, copy.deepcopy(found), generation)
            known.until_ms = now_ms() + found["leaseDurationMs"]
            known.slots = found["availableSlots"]
            self.sessions[session_id] = self.current = known
        return {**self._session(known, strict.REGISTER), "replacedSession": replaced}

    def _session(self, known: Session, schema: str) -> dict[str, Any]:
        return {
            "schema": schema,
            "workerId": known.worker,
            "sessionId": known.session,
            "generation": known.generation,
            "version": known.version,
            "status": known.status,
            "leaseExpiresAtMs": known.until_ms,
        }

    def live(self, session_id: str, generation: int, code: str) -> Session:
        """The current session, or 409."""
        known = self.current
        if (
            known is None
            or known.session != session_id
            or known.generation != generation
            or known.status == "offline"
            or known.until_ms <= now_ms()
        ):
            raise StrictError(409, code, "session")
        return known

    def heartbeat(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """Keep a session."""
        strict.keys(
            found, "schema", "generation", "expectedVersion", "availableSlots", "leaseDurationMs"
        )
        if found["schema"] != strict.HEARTBEAT:
            raise strict.bad("schema")
        known = self.live(session_id, found["generation"], "worker_session_fenced")
        self._step(known, found["expectedVersion"])
        slots = strict.whole(found["availableSlots"], 0, 1024, "availableSlots")
        known.slots = slots if known.status == "online" else 0
        known.until_ms = now_ms() + strict.whole(found["leaseDurationMs"], 5_000, 600_000, "lease")
        return self._session(known, strict.HEARTBEAT)

    def transition(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """Drain a session, or end it."""
        strict.keys(found, "schema", "generation", "expectedVersion", "status")
        if found["schema"] != strict.TRANSITION or found["status"] not in ("draining", "offline"):
            raise strict.bad("transition")
        known = self.live(session_id, found["generation"], "worker_session_fenced")
        if found["status"] == "offline" and known.status != "draining":
            raise StrictError(409, "worker_session_fenced", "offline before draining")
        self._step(known, found["expectedVersion"])
        known.status, known.slots = found["status"], 0
        return self._session(known, strict.TRANSITION)

    def _step(self, known: Session, expected: object) -> None:
        if strict.whole(expected, 0, 2**53 - 1, "expectedVersion") != known.version:
            raise StrictError(409, "worker_session_fenced", "version")
        known.version += 1


def new_id() -> str:
    """A UUIDv7."""
    number = uuid.uuid4().int & ((1 << 80) - 1) | now_ms() << 80
    number = number & ~(0xF << 76) & ~(0x3 << 62) | 7 << 76 | 2 << 62
    return str(uuid.UUID(int=number))
