"""The way to the plane: TLS 1.3 with a certificate, one connection, bounds, nothing sent twice."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from http import client
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app import worker_config
from qinglong_edge.app.worker_credentials import Credentials
from qinglong_edge.core import session
from qinglong_edge.core.errors import EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.dial import dial
from qinglong_edge.system.files import Files
from qinglong_edge.worker.plane import _HEARTBEAT, _REGISTER
from qinglong_edge.worker.transport import Route, Transport
from tests.support import until
from tests.worker.kit import WORKER_ID, Plane, WorkerHome

ID = "019f70e0-0000-7000-8000-000000000101"
CAPABILITIES = session.capabilities(
    {
        "architecture": "arm64",
        "executors": ["remote-worker"],
        "protocolVersion": "1.0.0",
        "supportTier": "tier1",
    }
)
BODY = session.register(CAPABILITIES, runs_max=1, slots=1, lease_ms=45_000)


def transport(home: WorkerHome, **given: Any) -> Transport:
    config = worker_config.read(home.config)
    options = {"timeout_ms": 5_000, "clock": Clock(), "dial": dial, **given}
    credentials = Credentials(config, Files())
    return Transport(config.origin, WORKER_ID, material=credentials.load, **options)


class Turned(Clock):
    """The machine's clock, and as much more as a test says."""

    ahead_ms = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.ahead_ms


@pytest.fixture
def wire(home: WorkerHome) -> Iterator[Transport]:
    made = transport(home)
    yield made
    made.close()


def beat(wire: Transport, version: int) -> Any:
    body = session.heartbeat(1, version, slots=0, lease_ms=45_000)
    return wire.post(ID, _HEARTBEAT, body)


def test_many_requests_share_one_connection_and_a_stale_one_is_made_anew(
    plane: Plane, home: WorkerHome
) -> None:
    clock = Turned()
    wire = transport(home, clock=clock)
    wire.post(ID, _REGISTER, BODY)
    for version in range(5):
        assert beat(wire, version)["version"] == version + 1
    assert plane.look()["connections"] == 1
    clock.ahead_ms = 4_500  # a plane closes what is idle for five seconds
    beat(wire, 5)
    assert plane.look()["connections"] == 2
    for version in range(6, 100):
        beat(wire, version)
    assert plane.look()["connections"] == 3  # before the plane would end it after its hundredth
    wire.close()


def test_a_reply_that_is_lost_is_not_asked_for_again(plane: Plane, wire: Transport) -> None:
    wire.post(ID, _REGISTER, BODY)
    plane.fault("heartbeat", "cut_after")
    with pytest.raises(Unavailable) as caught:
        beat(wire, 0)
    assert caught.value.code == "transport_unavailable"
    looked = plane.look()
    assert (looked["calls"]["heartbeat"], looked["session"]["version"]) == (1, 1)


def test_a_plane_that_drips_or_hangs_costs_the_time_of_one_request(
    plane: Plane, home: WorkerHome
) -> None:
    with contextlib.closing(transport(home)) as patient:
        patient.post(ID, _REGISTER, BODY)
    wire = transport(home, timeout_ms=700)
    plane.fault("heartbeat", "hang", ms=60_000)
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        beat(wire, 0)
    assert time.monotonic() - begun < 20
    wire.close()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"kind": "status", "status": 401}, "credential_rejected"),
        ({"kind": "status", "status": 403}, "credential_rejected"),
        ({"kind": "status", "status": 409}, "fenced"),
        ({"kind": "status", "status": 413}, "request_rejected"),
        ({"kind": "status", "status": 503}, "plane_unavailable"),
        ({"kind": "status", "status": 302}, "plane_unavailable"),
        ({"kind": "garbage"}, "response_invalid"),
    ],
)
def test_a_refusal_is_told_by_its_status_alone(
    plane: Plane, wire: Transport, fault: dict[str, Any], code: str
) -> None:
    plane.order("fault", fault={"op": "register", **fault})
    with pytest.raises(EdgeError) as caught:
        wire.post(ID, _REGISTER, BODY)
    assert caught.value.code == code
    assert isinstance(wire.post(ID, _REGISTER, BODY), dict)


@pytest.mark.parametrize(
    "fault", [{"kind": "cut_after"}, {"kind": "status", "status": 503}, {"kind": "garbage"}]
)
def test_a_reply_that_is_no_good_is_closed_and_not_left_to_the_collector(
    plane: Plane, wire: Transport, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    """Python 3.13 prints what its collector cannot close: a router's log would fill with that."""
    made: list[client.HTTPResponse] = []

    class Watched(client.HTTPResponse):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr(client, "HTTPResponse", Watched)
    plane.order("fault", fault={"op": "register", **fault})
    with pytest.raises(EdgeError):
        wire.post(ID, _REGISTER, BODY)
    wire.post(ID, _REGISTER, BODY)
    assert [(each.isclosed(), each.closed) for each in made] == [(True, True)] * 2


def test_a_second_reply_nobody_asked_for_is_not_taken_for_the_next(
    plane: Plane, wire: Transport
) -> None:
    plane.fault("register", "twice")
    wire.post(ID, _REGISTER, BODY)
    until(lambda: plane.look()["fired"].get("twice") == 1)
    time.sleep(0.1)
    assert beat(wire, 0)["schema"] == "qinglong/worker-session-heartbeat@v1"


def test_what_is_too_large_is_refused_on_either_side(plane: Plane, wire: Transport) -> None:
    small = Route(name="register", request_bytes_max=20_480, reply_bytes_max=100)
    with pytest.raises(Unavailable) as caught:
        wire.post(ID, small, BODY)
    assert caught.value.code == "response_invalid"
    with pytest.raises(Invalid):
        wire.post(ID, Route(name="register", request_bytes_max=10), BODY)
    assert plane.look()["calls"]["register"] == 1


def test_a_stream_that_is_shorter_or_longer_than_it_said_is_never_whole(
    plane: Plane, wire: Transport
) -> None:
    route = Route(name="artifacts")
    for pieces in ((b"ab",), (b"abcd", b"ef")):
        with pytest.raises(Unavailable) as caught:
            wire.upload(ID, route, 5, iter(pieces))
        assert caught.value.code == "upload_changed"
    until(lambda: plane.look()["attempts"] == [])


def test_a_plane_without_the_right_name_or_trust_is_none(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    from tests.worker.pki import Authority

    other = Authority(str(tmp_path / "other"))
    home.configure(trust=other.trust)
    with pytest.raises(Unavailable) as caught:
        transport(home).post(ID, _REGISTER, BODY)
    assert caught.value.code == "transport_unavailable"
    pair = other.client("stranger")
    home.configure(trust=plane.authority.trust, certificate=pair.certificate, key=pair.key)
    with pytest.raises(Unavailable):
        transport(home).post(ID, _REGISTER, BODY)
    assert plane.look()["calls"] == {}


def test_a_renewed_certificate_and_token_serve_the_next_request(
    plane: Plane, home: WorkerHome, wire: Transport
) -> None:
    wire.post(ID, _REGISTER, BODY)
    plane.authority.client()  # issued again, in place of the files
    beat(wire, 0)
    assert plane.look()["connections"] == 2
    home.write_token(plane.token[:-1] + ("A" if plane.token[-1] != "A" else "B"))
    with pytest.raises(Refused) as caught:
        beat(wire, 1)
    assert caught.value.code == "credential_rejected"
    home.write_token(plane.token)
    beat(wire, 1)


@pytest.mark.parametrize("name", ["token", "key"])
def test_a_secret_file_that_others_can_read_is_not_used(home: WorkerHome, name: str) -> None:
    path = home.settings[name]
    for mode in (0o640, 0o604):
        os.chmod(path, mode)
        with pytest.raises(Unavailable) as caught:
            transport(home).post(ID, _REGISTER, BODY)
        assert caught.value.facts == {"field": name}
    os.chmod(path, 0o600)
    os.chmod(os.path.dirname(path), 0o755)
    with pytest.raises(Unavailable):
        transport(home).post(ID, _REGISTER, BODY)
    os.chmod(os.path.dirname(path), 0o700)
    os.rename(path, f"{path}.real")
    os.symlink(f"{path}.real", path)
    with pytest.raises(Unavailable):
        transport(home).post(ID, _REGISTER, BODY)


@pytest.mark.parametrize(
    "text",
    ["", "Bearer x", "ql3w__" + "A" * 43, "ql3w_a_" + "A" * 42, "ql3w_a_" + "A" * 43 + "\n\n", "é"],
)
def test_a_token_of_another_form_is_not_sent(home: WorkerHome, text: str) -> None:
    with open(home.token, "w", encoding="utf-8") as opened:
        opened.write(text)
    with pytest.raises(Unavailable) as caught:
        transport(home).post(ID, _REGISTER, BODY)
    assert caught.value.code == "credentials_unavailable"


def test_a_token_of_another_credential_is_not_sent(home: WorkerHome) -> None:
    home.configure(credentialId="worker_other")
    with pytest.raises(Unavailable) as caught:
        transport(home).post(ID, _REGISTER, BODY)
    assert caught.value.facts == {"field": "credentialId"}
