"""The control plane as the worker sees it: one method for each operation of the contract.

Owns the routes with their bounds, and the way from a foreign document to a value. After a request
that did not get through, the rest of a tick asks nothing more: a silent plane costs one time-out a
tick and never the stop of a task whose lease is over.
"""

from __future__ import annotations

from qinglong_edge.core import delivery, exchange, offer, session
from qinglong_edge.core.errors import Invalid, Unavailable
from qinglong_edge.worker.transport import Route, invalid_response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from qinglong_edge.core.exchange import Activation, Control, Stored
    from qinglong_edge.core.inbox import Ended, Entry
    from qinglong_edge.core.offer import Claim, Offer
    from qinglong_edge.core.session import Accepted
    from qinglong_edge.worker.transport import Transport

    T = TypeVar("T")

_REGISTER = Route(name="register", request_bytes_max=20_480)
_HEARTBEAT = Route(name="heartbeat")
_TRANSITION = Route(name="transition")
_OFFERS = Route(name="offers", reply_bytes_max=131_072)
_STARTING = Route(name="starting", reply_bytes_max=16_384)
_RUNNING = Route(name="running", reply_bytes_max=16_384)
_START_FAILURE = Route(name="start-failure", reply_bytes_max=16_384)
_SECRETS = Route(name="secrets", request_bytes_max=65_536, reply_bytes_max=262_144)
_ARTIFACTS = Route(name="artifacts")
_COMPLETION = Route(name="completion", request_bytes_max=16_384)
_CONTROL = Route(name="lease-control", request_bytes_max=8_192)


class Plane:
    """Asks; every answer is a checked value."""

    def __init__(self, transport: Transport, worker_id: str) -> None:
        self._transport = transport
        self._worker_id = worker_id
        self._down = ""

    def new_tick(self) -> None:
        """Try again what did not get through."""
        self._down = ""

    @property
    def down(self) -> bool:
        """True once a request of this tick did not get through."""
        return bool(self._down)

    def _ask(self, session_id: str, route: Route, body: dict[str, Any]) -> object:
        return self._guarded(lambda: self._transport.post(session_id, route, body))

    def _guarded(self, send: Callable[[], object]) -> object:
        if self._down:
            raise Unavailable(self._down, "The control plane could not be reached just now.")
        try:
            return send()
        except Unavailable as error:
            if error.code in ("transport_unavailable", "credentials_unavailable"):
                self._down = error.code
            raise

    # -- the session ---------------------------------------------------------------------------

    def register(self, session_id: str, body: dict[str, Any]) -> Accepted:
        """Register, or learn how the same registration stands."""
        found = self._ask(session_id, _REGISTER, body)
        return _read(lambda: session.registered(found, self._worker_id, session_id))

    def heartbeat(self, session_id: str, body: dict[str, Any]) -> Accepted:
        """Keep the session."""
        found = self._ask(session_id, _HEARTBEAT, body)
        return _read(lambda: session.beaten(found, self._worker_id, session_id))

    def transition(self, session_id: str, body: dict[str, Any]) -> Accepted:
        """Move the session to `draining` or `offline`."""
        found = self._ask(session_id, _TRANSITION, body)
        status = body["status"]
        return _read(lambda: session.moved(found, self._worker_id, session_id, status))

    # -- offers --------------------------------------------------------------------------------

    def offers(self, claim: Claim) -> Offer | None:
        """Ask for an offer under a claim, or for the one that it already has."""
        body = {
            "workerGeneration": claim.worker.generation,
            "offerId": claim.offer_id,
            "leaseToken": claim.lease_token,
        }
        found = self._ask(claim.worker.session_id, _OFFERS, body)
        return _read(lambda: offer.decode_reply(found, claim))

    def starting(self, entry: Entry) -> Activation:
        """Say that the attempt is about to start."""
        return self._activate(entry, _STARTING, exchange.fence(entry), "starting")

    def running(self, entry: Entry) -> Activation:
        """Say that it runs, as whom."""
        return self._activate(entry, _RUNNING, exchange.running(entry), "running")

    def start_failure(self, entry: Entry) -> Activation:
        """Say that it never ran and will not."""
        return self._activate(entry, _START_FAILURE, exchange.fence(entry), "terminal")

    def _activate(self, entry: Entry, route: Route, body: dict[str, Any], asked: str) -> Activation:
        found = self._ask(entry.offer.worker.session_id, route, body)
        return _read(lambda: exchange.activated(found, entry, asked))

    def control(self, entry: Entry) -> Control:
        """Renew the lease; hear whether to stop."""
        found = self._ask(entry.offer.worker.session_id, _CONTROL, exchange.control(entry))
        return _read(lambda: exchange.controlled(found, entry))

    def upload(
        self, entry: Entry, sent: Callable[[], Stored], length: int, pieces: Iterable[bytes]
    ) -> Stored:
        """Send a log as a stream; what the plane has, once that is what was sent.

        `sent` tells length, digest and truncation once `pieces` are exhausted.
        """
        found = self._guarded(
            lambda: self._transport.upload(
                entry.offer.worker.session_id, _ARTIFACTS, length, pieces
            )
        )
        stored = sent()
        _read(lambda: exchange.uploaded(found, entry, stored))
        return stored

    def complete(self, entry: Entry, ended: Ended, stored: Stored) -> str:
        """Say how it ended; only once its log is stored."""
        body = exchange.completion(entry, ended, stored)
        found = self._ask(entry.offer.worker.session_id, _COMPLETION, body)
        return _read(lambda: exchange.completed(found, entry))

    # -- secrets: in a launch child only -------------------------------------------------------

    def resolver(self, entry: Entry, timeout_ms: int) -> Callable[[], dict[str, str]]:
        """What a launch child runs to get the attempt's secrets, on a connection of its own."""
        if not delivery.wanted(entry.offer.revision):
            return dict
        body = delivery.request(entry)

        def resolve() -> dict[str, str]:
            transport = self._transport.fresh(timeout_ms)
            try:
                found = transport.post(entry.offer.worker.session_id, _SECRETS, body)
            finally:
                transport.close()
            return delivery.environment(found, body, entry.offer.revision)

        return resolve


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except Invalid as error:
        raise invalid_response(str(error.facts.get("field"))) from None
