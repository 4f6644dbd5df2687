"""What a plane knows: sessions, runs, attempts, leases, artifacts; its rules, strictly.

Every method takes a checked request and returns its reply, or raises `StrictError`. Times are epoch
milliseconds. Nothing is ever forgotten, so that a test can ask what has really happened.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from tests.worker import strict
from tests.worker.ledger import Attempt, Run, Session, Sessions, digest, new_id, now_ms
from tests.worker.strict import StrictError

PROJECT = "project-1"


class Books(Sessions):
    """The plane's state."""

    def __init__(self, *, worker: str, lease_ms: int, requeue: bool) -> None:
        super().__init__(worker)
        self.lease_ms = lease_ms
        self.requeue = requeue
        self.runs: list[Run] = []
        self.offers: dict[str, Attempt] = {}
        self.secrets: dict[str, str] = {}
        self.secret_requests = 0

    # -- what a test does ----------------------------------------------------------------------

    def add(self, spec: dict[str, Any]) -> str:
        """Queue a run: `command`, and maybe environment, timeoutMs, workingDirectory."""
        run = Run(new_id(), spec, now_ms())
        self.runs.append(run)
        return run.run_id

    def find(self, run_id: str) -> Run:
        """A run by its id."""
        return next(run for run in self.runs if run.run_id == run_id)

    def expire(self) -> None:
        """Attempts whose lease is over are lost."""
        for attempt in self.offers.values():
            if attempt.end is None and attempt.expires_ms <= now_ms():
                self._finish(attempt, "lost")

    def _finish(self, attempt: Attempt, end: str) -> None:
        attempt.end, attempt.finished_ms = end, now_ms()
        run = attempt.run
        if self.requeue and end in ("lost", "start_failed"):
            run.status = "queued"
        else:
            run.status = end

    # -- offers --------------------------------------------------------------------------------

    def offer(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """The same offer again, a new one, or nothing."""
        known = self.live(session_id, found["workerGeneration"], "worker_offer_fenced")
        attempt = self.offers.get(found["offerId"])
        kind = "lease_recovery"
        if attempt is not None:
            if (
                attempt.session is not known
                or attempt.token != found["leaseToken"]
                or attempt.end is not None
            ):
                raise StrictError(409, "worker_offer_fenced", "offer")
        else:
            attempt, kind = self._claim(known, found), "new_claim"
            if attempt is None:
                return self._idle()
        attempt.deliveries += 1
        return {
            "schema": strict.OFFER,
            "status": "offered",
            "offer": self._offered(attempt, kind),
            "stats": self._stats(1),
            "truncated": False,
        }

    def _claim(self, known: Session, found: dict[str, Any]) -> Attempt | None:
        most = known.content["maxConcurrentRuns"]
        open_now = [each for each in self.offers.values() if each.end is None]
        waiting = [run for run in self.runs if run.status == "queued"]
        if known.status != "online" or len(open_now) >= most or not waiting:
            return None
        run = waiting[0]
        attempt = Attempt(
            run,
            new_id(),
            len(run.attempts) + 1,
            found["offerId"],
            found["leaseToken"],
            known,
            {},
        )
        attempt.revision = self._revision(run, attempt)
        attempt.acquired_ms = attempt.renewed_ms = now_ms()
        attempt.expires_ms = attempt.acquired_ms + self.lease_ms
        run.attempts.append(attempt)
        run.status = "dispatching"
        self.offers[attempt.offer_id] = attempt
        return attempt

    def _revision(self, run: Run, attempt: Attempt) -> dict[str, Any]:
        spec = copy.deepcopy(run.spec)
        text = json.dumps(spec["command"]).replace("@ATTEMPT@", attempt.attempt_id)
        made = {
            "projectId": PROJECT,
            "taskId": "task-1",
            "taskRevision": "qltd:v1:1:" + "a" * 64,
            "sourceRevision": 1,
            "sourceContentDigest": "a" * 64,
            "executorType": "remote_worker",
            "planSchema": "qinglong/command-execution@v1",
            "command": json.loads(text),
            "environment": spec.get("environment", []),
        }
        for key in ("environmentBundleRef", "workingDirectory", "timeoutMs", "placement"):
            if key in spec:
                made[key] = spec[key]
        return {**made, "createdAtMs": run.queued_ms, "contentDigest": digest(made)}

    def _offered(self, attempt: Attempt, kind: str) -> dict[str, Any]:
        run = attempt.run
        return {
            "offerId": attempt.offer_id,
            "deliveryKind": kind,
            "executionDigest": attempt.revision["contentDigest"],
            "candidate": {
                "runId": run.run_id,
                "attemptId": attempt.attempt_id,
                "projectId": PROJECT,
                "taskId": "task-1",
                "taskRevision": attempt.revision["taskRevision"],
                "priority": 0,
                "queuedAtMs": run.queued_ms,
                "attemptCreatedAtMs": run.queued_ms,
                "attemptNumber": attempt.number,
                "executorType": "remote_worker",
            },
            "worker": {
                "workerId": attempt.session.worker,
                "sessionId": attempt.session.session,
                "generation": attempt.session.generation,
            },
            "lease": {
                "version": attempt.version,
                "leaseGeneration": 1,
                "acquiredAtMs": attempt.acquired_ms,
                "renewedAtMs": attempt.renewed_ms,
                "expiresAtMs": attempt.expires_ms,
                "updatedAtMs": attempt.renewed_ms,
            },
            "executionRevision": attempt.revision,
            "placementScore": 1,
        }

    def _stats(self, candidates: int) -> dict[str, Any]:
        names = ("plansUnavailable", "placementMismatches", "claimAttempts", "claimRaces")
        return {"pages": 1, "candidates": candidates, **dict.fromkeys(names, 0)}

    def _idle(self) -> dict[str, Any]:
        return {
            "schema": strict.OFFER,
            "status": "idle",
            "reason": "no_candidates",
            "stats": self._stats(0),
            "truncated": False,
        }

    # -- attempts ------------------------------------------------------------------------------

    def fenced(
        self, session_id: str, found: dict[str, Any], code: str, *, ended: bool = False
    ) -> Attempt:
        """The attempt of a request, if everything that fences it is right."""
        known = self.live(session_id, found["workerGeneration"], code)
        attempt = self.offers.get(found["offerId"])
        if (
            attempt is None
            or attempt.session is not known
            or attempt.attempt_id != found["attemptId"]
            or attempt.run.run_id != found["runId"]
            or attempt.token != found["leaseToken"]
            or found["leaseGeneration"] != 1
            or found.get("projectId", PROJECT) != PROJECT
        ):
            raise StrictError(409, code, "attempt")
        if attempt.end is None or not ended:
            if attempt.version != found["expectedLeaseVersion"]:
                raise StrictError(409, code, "lease version")
            if attempt.end == "lost" or (attempt.end is None and attempt.expires_ms <= now_ms()):
                raise StrictError(409, code, "lease")
        return attempt

    def starting(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """The attempt is about to start."""
        strict.keys(found, *strict.FENCE)
        strict.check_fence(found)
        attempt = self.fenced(session_id, found, "worker_activation_fenced")
        if attempt.end is not None:
            return self._activation(attempt, "already_terminal")
        if attempt.status == "running":
            return self._activation(attempt, "already_running")
        status = "already_starting" if attempt.status == "starting" else "applied"
        if attempt.status == "leased":
            timeout = attempt.revision.get("timeoutMs")
            attempt.deadline_ms = None if timeout is None else now_ms() + timeout
        attempt.status = "starting"
        return self._activation(attempt, status)

    def running(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """The attempt runs."""
        strict.check_running(found)
        attempt = self.fenced(session_id, found, "worker_activation_fenced")
        if attempt.end is not None:
            return self._activation(attempt, "already_terminal")
        told = (found["executorHandle"], found["logArtifactId"], found["callbackSequence"])
        if attempt.status == "running":
            if told != (attempt.handle, attempt.log_id, attempt.sequence):
                raise StrictError(409, "worker_activation_fenced", "another process")
            return self._activation(attempt, "already_running")
        if attempt.status != "starting" or found["callbackSequence"] != attempt.sequence + 1:
            raise StrictError(409, "worker_activation_fenced", "state")
        attempt.handle, attempt.log_id, attempt.sequence = told
        attempt.token_digest = found["callbackTokenDigest"]
        attempt.started_ms = now_ms()
        attempt.status = "running"
        return self._activation(attempt, "applied")

    def start_failure(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """The attempt never ran."""
        strict.keys(found, *strict.FENCE)
        strict.check_fence(found)
        known = self.offers.get(found["offerId"])
        if known is not None and known.end == "start_failed":
            found = {**found, "expectedLeaseVersion": known.version}
        attempt = self.fenced(session_id, found, "worker_activation_fenced", ended=True)
        if attempt.end is not None:
            return self._activation(attempt, "already_terminal")
        if attempt.status == "running":
            return self._activation(attempt, "already_running")
        attempt.version += 1
        self._finish(attempt, "start_failed")
        return self._activation(attempt, "applied")

    def _activation(self, attempt: Attempt, status: str) -> dict[str, Any]:
        snapshot: dict[str, Any] = {
            "runId": attempt.run.run_id,
            "attemptId": attempt.attempt_id,
            "runStatus": "dispatching",
            "attemptStatus": "starting",
            "leaseVersion": attempt.version,
            "leaseGeneration": 1,
            "callbackSequence": attempt.sequence,
        }
        if attempt.end is not None:
            end = "failed" if attempt.end in ("start_failed", "succeeded", "lost") else attempt.end
            snapshot["runStatus"] = snapshot["attemptStatus"] = end
            snapshot["finishedAtMs"] = attempt.finished_ms
            snapshot["errorCode"] = "EXECUTOR_START_FAILED"
        elif attempt.status == "running":
            snapshot["runStatus"] = snapshot["attemptStatus"] = "running"
            snapshot["executorHandle"] = attempt.handle
            snapshot["startedAtMs"] = attempt.started_ms
            snapshot["logArtifactId"] = attempt.log_id
        if "timeoutMs" in attempt.revision:
            snapshot["deadlineAtMs"] = attempt.deadline_ms
        return {"schema": strict.ACTIVATION, "status": status, "snapshot": snapshot}

    def control(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """Renew a lease, ask for a stop, or tell the end."""
        strict.keys(found, *strict.FENCE, "schema", "projectId")
        strict.check_fence(found)
        if found["schema"] != strict.CONTROL:
            raise strict.bad("schema")
        attempt = self.fenced(session_id, found, "worker_lease_control_fenced", ended=True)
        reply: dict[str, Any] = {
            "schema": strict.CONTROL,
            "status": "renewed",
            "projectId": PROJECT,
            "runId": attempt.run.run_id,
            "attemptId": attempt.attempt_id,
            "offerId": attempt.offer_id,
            "leaseGeneration": 1,
            **dict.fromkeys(("leaseVersion", "renewedAtMs", "expiresAtMs", "stop"), None),
            "terminalStatus": None,
        }
        if attempt.end is not None:
            end = "failed" if attempt.end == "start_failed" else attempt.end
            return {**reply, "status": "terminal", "terminalStatus": end}
        attempt.version += 1
        attempt.renewed_ms = now_ms()
        attempt.expires_ms = attempt.renewed_ms + self.lease_ms
        reply["leaseVersion"] = attempt.version
        reply["renewedAtMs"] = attempt.renewed_ms
        reply["expiresAtMs"] = attempt.expires_ms
        if attempt.deadline_ms is not None and now_ms() >= attempt.deadline_ms:
            attempt.stop = attempt.stop or "timeout"
        if attempt.stop is not None:
            reply["status"] = "stop_requested"
            reply["stop"] = {"reason": attempt.stop, "requestedAtMs": now_ms()}
        return reply

    # -- secrets, artifacts, completions -------------------------------------------------------

    def deliver(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """The secrets of an attempt that is starting."""
        strict.check_secrets(found)
        attempt = self.fenced(session_id, found, "worker_secret_delivery_fenced")
        wanted = attempt.revision["contentDigest"]
        refs = [*found["secretRefs"], *found["environmentBundleRefs"]]
        if attempt.status != "starting" or found["executionDigest"] != wanted:
            raise StrictError(409, "worker_secret_delivery_fenced", "state")
        if not set(refs) <= set(self.secrets):
            raise StrictError(503, "worker_secret_delivery_unavailable")
        self.secret_requests += 1
        values = [{"secretRef": ref, "value": self.secrets[ref]} for ref in refs]
        cut = len(found["secretRefs"])
        same = ("schema", "runId", "attemptId", "offerId", "executionDigest")
        return {
            **{key: found[key] for key in same},
            "values": values[:cut],
            "environmentBundles": values[cut:],
        }

    def store(self, session_id: str, header: dict[str, Any], content: bytes) -> dict[str, Any]:
        """Keep a log."""
        attempt = self.fenced(session_id, header, "worker_completion_fenced", ended=True)
        kept = {
            "logArtifactId": header["logArtifactId"],
            "byteLength": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "truncated": header["truncated"],
        }
        status = "stored"
        if attempt.artifact is not None:
            if attempt.artifact != kept:
                raise StrictError(409, "worker_completion_fenced", "another artifact")
            status = "already_stored"
        elif attempt.end is not None:
            raise StrictError(409, "worker_completion_fenced", "ended")
        attempt.artifact, attempt.content = kept, content
        same = ("projectId", "runId", "attemptId")
        told = {key: header[key] for key in same}
        return {"schema": strict.UPLOAD, "status": status, **told, **kept}

    def complete(self, session_id: str, found: dict[str, Any]) -> dict[str, Any]:
        """End an attempt, once."""
        strict.check_completion(found)
        attempt = self.fenced(session_id, found, "worker_completion_fenced", ended=True)
        reply = {
            "schema": strict.COMPLETION,
            "status": "applied",
            "runId": found["runId"],
            "attemptId": found["attemptId"],
            "callbackSequence": found["callbackSequence"],
        }
        content = {key: value for key, value in found.items() if key != "expectedLeaseVersion"}
        if attempt.completion is not None:
            if attempt.completion != content:
                raise StrictError(409, "worker_completion_fenced", "another completion")
            return {**reply, "status": "already_completed"}
        if attempt.end is not None:
            return {**reply, "status": "already_terminal"}
        if attempt.artifact != found["artifact"]:
            raise StrictError(409, "worker_completion_fenced", "artifact")
        wanted = attempt.sequence if attempt.status == "running" else attempt.sequence + 1
        if attempt.status == "leased" or found["callbackSequence"] != wanted:
            raise StrictError(409, "worker_completion_fenced", "sequence")
        if attempt.token_digest not in (None, found["callbackTokenDigest"]):
            raise StrictError(409, "worker_completion_fenced", "token")
        attempt.completion = content
        attempt.completions += 1
        end = {"timeout": "timed_out", "user": "cancelled"}.get(attempt.stop or "")
        self._finish(attempt, end or found["result"]["outcome"])
        return reply
