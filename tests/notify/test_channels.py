"""Every channel's request as its maker documents it, against a peer on loopback."""

from __future__ import annotations

import base64
import email
import email.policy
import errno
import hashlib
import hmac
import json
import socket
import time
import urllib.parse
from pathlib import Path

import pytest

from qinglong_edge.core import notice
from qinglong_edge.core.errors import Invalid, Unavailable
from qinglong_edge.system import post
from tests.notify import peers

NOW_MS = 1_800_000_000_123
FACTS = ({"task": "签到", "run": 7, "status": "failed"},)
MESSAGE = notice.Message(title="签到 failed", text="run 7: exit code 1\n第二行", facts=FACTS)
BOTH = f"{MESSAGE.title}\n{MESSAGE.text}"


def sent(kind: str, key: str, answer: bytes) -> peers.Seen:
    """What a peer sees of one message; the peer's answer is understood as taken."""
    with peers.web(answer) as peer:
        whole = f"{peer.url}/hook?a=1" if kind == notice.WEBHOOK else key
        request = notice.request(kind, whole, MESSAGE, url=peer.url, now_ms=NOW_MS)
        status, body = post.post(request, 5)
        assert notice.accepted(kind, status, body)
        assert key not in repr(request)
    (seen,) = peer.seen
    return seen


@pytest.mark.parametrize(
    ("kind", "key", "answer", "path", "document"),
    [
        (
            "webhook",
            "-",
            b"thanks",
            "/hook?a=1",
            {"title": MESSAGE.title, "text": MESSAGE.text, "runs": list(FACTS)},
        ),
        (
            "ntfy",
            "topic tk_1",
            b"{}",
            "/",
            {"topic": "topic", "title": MESSAGE.title, "message": MESSAGE.text},
        ),
        (
            "bark",
            "device",
            b'{"code":200}',
            "/push",
            {
                "device_key": "device",
                "title": MESSAGE.title,
                "body": MESSAGE.text,
                "group": "QingLong",
            },
        ),
        (
            "telegram",
            "12:AbC -100",
            b'{"ok":true}',
            "/bot12%3AAbC/sendMessage",
            {"chat_id": "-100", "text": BOTH},
        ),
        (
            "pushplus",
            "token",
            b'{"code":200}',
            "/send",
            {"token": "token", "title": MESSAGE.title, "content": MESSAGE.text, "template": "txt"},
        ),
        (
            "wecom",
            "key-1",
            b'{"errcode":0}',
            "/cgi-bin/webhook/send?key=key-1",
            {"msgtype": "text", "text": {"content": BOTH}},
        ),
        (
            "dingtalk",
            "token",
            b'{"errcode":0}',
            "/robot/send?access_token=token",
            {"msgtype": "text", "text": {"content": BOTH}},
        ),
        (
            "feishu",
            "hook",
            b'{"StatusCode":0}',
            "/open-apis/bot/v2/hook/hook",
            {"msg_type": "text", "content": {"text": BOTH}},
        ),
    ],
)
def test_a_channel_gets_its_own_json(
    kind: str, key: str, answer: bytes, path: str, document: dict[str, object]
) -> None:
    seen = sent(kind, key, answer)
    assert seen.path == path
    assert json.loads(seen.body) == document
    assert seen.headers["Content-Type"] == "application/json; charset=utf-8"
    if kind == "ntfy":
        assert seen.headers["Authorization"] == "Bearer tk_1"


def test_serverchan_gets_a_form_and_newer_keys_their_own_host() -> None:
    seen = sent("serverchan", "SCTkey", b'{"code":0}')
    assert seen.path == "/SCTkey.send"
    form = urllib.parse.parse_qs(seen.body.decode("ascii"))
    assert form == {"title": [MESSAGE.title], "desp": [MESSAGE.text]}
    request = notice.request("serverchan", "sctp12tXYZ", MESSAGE, url=None, now_ms=NOW_MS)
    assert (request.address.host, request.address.path) == (
        "12.push.ft07.com",
        "/send/sctp12tXYZ.send",
    )


def test_dingtalk_and_feishu_are_signed_where_the_key_has_a_secret() -> None:
    """Checked with the standard library's own HMAC."""
    query = urllib.parse.parse_qs(
        sent("dingtalk", "token SECx", b'{"errcode":0}').path.partition("?")[2]
    )
    expected = hmac.new(b"SECx", f"{NOW_MS}\nSECx".encode(), hashlib.sha256).digest()
    assert query["timestamp"] == [str(NOW_MS)]
    assert base64.b64decode(query["sign"][0]) == expected
    document = json.loads(sent("feishu", "hook SECx", b'{"code":0}').body)
    seconds = NOW_MS // 1000
    expected = hmac.new(f"{seconds}\nSECx".encode(), b"", hashlib.sha256).digest()
    assert document["timestamp"] == str(seconds)
    assert base64.b64decode(document["sign"]) == expected
    for key in (b"", b"k" * 64, b"k" * 65, b"k" * 200):
        assert notice.hmac_sha256(key, b"data") == hmac.new(key, b"data", hashlib.sha256).digest()


@pytest.mark.parametrize(
    ("kind", "key", "answer"),
    [
        ("telegram", "a b", b'{"ok":false}'),
        ("dingtalk", "a", b'{"errcode":310000}'),
        ("wecom", "a", b'{"errcode":93000}'),
        ("feishu", "a", b'{"code":9499}'),
        ("pushplus", "a", b'{"code":903}'),
        ("bark", "a", b'{"code":400}'),
        ("serverchan", "a", b'{"code":40001}'),
        ("wecom", "a", b"<html>"),
        ("wecom", "a", b"[" * 100_000),
    ],
)
def test_a_no_with_status_200_is_a_no(kind: str, key: str, answer: bytes) -> None:
    assert not notice.accepted(kind, 200, answer)
    assert not notice.accepted(kind, 500, b'{"ok":true,"errcode":0,"code":0}')


def test_an_answer_in_chunks_is_read_and_a_redirect_is_not_followed() -> None:
    with peers.web(b'{"errcode":0,"errmsg":"ok"}', chunked=True) as peer:
        request = notice.request("wecom", "k", MESSAGE, url=peer.url, now_ms=NOW_MS)
        assert post.post(request, 5) == (200, b'{"errcode":0,"errmsg":"ok"}')
    with peers.web(status=302) as peer:
        request = notice.request("webhook", peer.url, MESSAGE, url=None, now_ms=NOW_MS)
        status, body = post.post(request, 5)
        assert not notice.accepted("webhook", status, body)
    assert len(peer.seen) == 1


def test_long_texts_are_cut_at_a_character() -> None:
    long = MESSAGE.replace(text="长" * 5_000)
    request = notice.request("wecom", "k", long, url="http://x", now_ms=0)
    content = json.loads(request.body)["text"]["content"]
    assert len(content.encode()) <= 2_048
    assert content.startswith(f"{MESSAGE.title}\n长")


def test_a_dead_peer_costs_its_time_out_and_no_more() -> None:
    with peers.dead() as place:
        for kind, key in (("webhook", f"http://{place}/"), ("webhook", f"https://{place}/")):
            begun = time.monotonic()
            request = notice.request(kind, key, MESSAGE, url=None, now_ms=0)
            with pytest.raises(Unavailable) as caught:
                post.post(request, 0.5)
            assert caught.value.code in ("notify_broken", "notify_timeout", "notify_tls")
            assert time.monotonic() - begun < 10
    request = notice.request("webhook", f"http://{place}/", MESSAGE, url=None, now_ms=0)
    with pytest.raises(Unavailable) as caught:
        post.post(request, 2)
    assert caught.value.code == "notify_unreachable"


def test_a_certificate_is_always_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = peers.certificate(tmp_path / "pem")
    with peers.web(tls=file) as peer:
        request = notice.request("webhook", peer.url, MESSAGE, url=None, now_ms=0)
        with pytest.raises(Unavailable) as caught:
            post.post(request, 5)
        assert caught.value.code == "notify_certificate"
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert post.post(request, 5)[0] == 200


def mail(url: str, data: bytes = b"x\r\n", *login: str) -> None:
    """Hand a mail over."""
    target, words = notice.address(url), list(login)
    post.send_mail(target, data, sender="a@x.org", to="b@x.org", login=words, timeout_s=5)


def test_a_mail_is_one_that_a_reader_understands() -> None:
    date = "Sun, 29 Nov 2026 20:00:00 +0800"
    with peers.mail() as peer:
        mail(peer.url, notice.mail(MESSAGE, sender="a@x.org", to="b@x.org", date=date))
    ((said, got),) = peer.mails
    assert said[:4] == ["EHLO qinglong-edge", "MAIL FROM:<a@x.org>", "RCPT TO:<b@x.org>", "DATA"]
    read = email.message_from_bytes(got, policy=email.policy.default)
    assert read["Subject"] == MESSAGE.title
    assert (read["To"], read["Date"]) == ("b@x.org", date)
    assert read.get_content() == MESSAGE.text


def test_a_login_goes_over_tls_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = peers.certificate(tmp_path / "pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with peers.mail(tls=file) as peer:
        mail(peer.url, b"x\r\n", "user", "pass")
    said = peer.mails[0][0]
    assert said[1] == "STARTTLS"
    assert base64.b64decode(said[3].split()[2]) == b"\0user\0pass"
    with peers.mail() as peer, pytest.raises(Unavailable) as caught:
        mail(peer.url, b"x\r\n", "user", "pass")
    assert caught.value.code == "notify_tls"


@pytest.mark.parametrize("command", [b"EHLO", b"MAIL", b"RCPT", b"DATA"])
def test_a_mail_server_that_refuses_is_told(command: bytes) -> None:
    with peers.mail(refuse=command) as peer, pytest.raises(Unavailable) as caught:
        mail(peer.url)
    assert (caught.value.code, caught.value.facts) == ("notify_refused", {"status": 550})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://x",
        "http://",
        "http://x:0",
        "http://x:99999",
        "http://a b",
        "http://x/\r\ny",
        "http://ü",
    ],
)
def test_an_address_that_is_none_is_invalid(text: str) -> None:
    with pytest.raises(Invalid):
        notice.address(text)


def test_an_address_has_its_parts() -> None:
    assert notice.address("https://[::1]:8/a?b") == notice.Address(
        scheme="https", host="::1", port=8, path="/a?b"
    )
    assert notice.address("smtps://mail.x.org").port == 465
    for kind, key in (("telegram", "a"), ("wecom", "a b"), ("smtp", "user"), ("bark", "")):
        with pytest.raises(Invalid):
            notice.words(kind, key)
    for mailbox in ("a", "a@", "a b@c", "a@b\r\nX: y", "ü@b"):
        with pytest.raises(Invalid):
            notice.check_mailbox(mailbox)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (socket.gaierror(socket.EAI_NONAME, "none"), "notify_host_unknown"),
        (OSError(errno.EAFNOSUPPORT, "none"), "notify_unreachable"),
    ],
)
def test_a_host_that_cannot_be_reached_is_said_with_why(
    monkeypatch: pytest.MonkeyPatch, found: OSError, said: str
) -> None:
    request = notice.request("webhook", "http://x.org", MESSAGE, url=None, now_ms=NOW_MS)

    def refuse(*_given: object) -> None:
        raise found

    monkeypatch.setattr(post, "dial", refuse)
    with pytest.raises(Unavailable) as caught:
        post.post(request, 2)
    assert caught.value.code == said
