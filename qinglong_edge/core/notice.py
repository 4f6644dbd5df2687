"""What is told to whom when runs end badly: channels, messages, and each channel's own request.

Owns the channels' formats as their makers publish them. A channel's key is a secret and comes in
only here, in the child that sends; everything else about a channel is public.

| kind       | key (the secret's text)           | server, unless `url` names another       |
|------------|-----------------------------------|------------------------------------------|
| webhook    | the whole address                 | -                                        |
| ntfy       | TOPIC, or TOPIC and TOKEN         | https://ntfy.sh                          |
| bark       | device key                        | https://api.day.app                      |
| telegram   | bot token and chat id             | https://api.telegram.org                 |
| serverchan | SendKey                           | https://sctapi.ftqq.com, or the key's own|
| pushplus   | token                             | https://www.pushplus.plus                |
| dingtalk   | access token, or it and SECRET    | https://oapi.dingtalk.com                |
| wecom      | key of the group's bot            | https://qyapi.weixin.qq.com              |
| feishu     | token, or it and SECRET           | https://open.feishu.cn                   |
| smtp       | user and password, or nothing     | `url`: smtp://HOST:587, smtps://HOST:465 |

Words of a key are separated by blanks.
"""

from __future__ import annotations

import binascii
import json
import re

from qinglong_edge.core.canonical import sha256_bytes
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

WEBHOOK, NTFY, BARK, TELEGRAM, SERVERCHAN = "webhook", "ntfy", "bark", "telegram", "serverchan"
PUSHPLUS, DINGTALK, WECOM, FEISHU, SMTP = "pushplus", "dingtalk", "wecom", "feishu", "smtp"
_SERVERS = {
    WEBHOOK: "",
    NTFY: "https://ntfy.sh",
    BARK: "https://api.day.app",
    TELEGRAM: "https://api.telegram.org",
    SERVERCHAN: "https://sctapi.ftqq.com",
    PUSHPLUS: "https://www.pushplus.plus",
    DINGTALK: "https://oapi.dingtalk.com",
    WECOM: "https://qyapi.weixin.qq.com",
    FEISHU: "https://open.feishu.cn",
    SMTP: "",
}
_WORDS = {  # how many words a key may have
    **dict.fromkeys((WEBHOOK, BARK, SERVERCHAN, PUSHPLUS, WECOM), (1, 1)),
    **dict.fromkeys((NTFY, DINGTALK, FEISHU), (1, 2)),
    TELEGRAM: (2, 2),
    SMTP: (0, 2),
}
_ADDRESS = re.compile(
    r"(https?|smtps?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(/\S*)?"
)
_PORTS = {"http": 80, "https": 443, "smtp": 587, "smtps": 465}
_MAILBOX = re.compile(r"[!-?A-~]+@[!-?A-~]+")
_TEXT_BYTES = 2_000  # WeCom takes 2048 bytes; what is longer is cut at a character
_BLOCK = 64  # SHA-256's
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_WELL: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    BARK: lambda told: told.get("code") == 200,
    TELEGRAM: lambda told: told.get("ok") is True,
    SERVERCHAN: lambda told: told.get("code", told.get("errno")) == 0,
    PUSHPLUS: lambda told: told.get("code") == 200,
    DINGTALK: lambda told: told.get("errcode") == 0,
    WECOM: lambda told: told.get("errcode") == 0,
    FEISHU: lambda told: told.get("code", told.get("StatusCode")) == 0,
}


class Address(Record):
    """Where a request goes."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def secure(self) -> bool:
        """True if everything is encrypted from the first byte."""
        return self.scheme in ("https", "smtps")


class Message(Record):
    """What is told; `facts` are for programs."""

    title: str
    text: str
    facts: tuple[dict[str, Any], ...] = ()


class Request(Record):
    """One POST."""

    address: Address
    headers: dict[str, str]
    body: bytes

    def __repr__(self) -> str:
        return "Request()"  # its path or body holds a key


def address(text: str) -> Address:
    """An address of at most ASCII letters; Invalid `notify_address`."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise Invalid("notify_address", "An address is not one of http, https, smtp or smtps.")
    scheme, host, port, path = found.groups()
    number = int(port or _PORTS[scheme])
    if not 1 <= number <= 65_535:
        raise Invalid("notify_address", "An address has no such port.")
    return Address(scheme=scheme, host=host.strip("[]"), port=number, path=path or "/")


def check_mailbox(text: str) -> str:
    """A mail address that cannot break a line; Invalid `notify_mailbox`."""
    if len(text) > 254 or not _MAILBOX.fullmatch(text):
        raise Invalid("notify_mailbox", "A mail address is not one.")
    return text


def words(kind: str, key: str) -> list[str]:
    """The words of a key; Invalid `notify_key` if it has not so many as its kind needs."""
    found = key.split()
    lowest, highest = _WORDS[kind]
    if not lowest <= len(found) <= highest or (kind == SMTP and len(found) == 1):
        raise Invalid("notify_key", "The channel's key has not the words that its kind needs.")
    return found


def request(kind: str, key: str, message: Message, *, url: str | None, now_ms: int) -> Request:
    """The POST of every kind but smtp, as its maker documents it."""
    given = words(kind, key)
    server = (url or _SERVERS[kind]).rstrip("/")
    text = cut(message.text)
    both = f"{message.title}\n{text}"
    if kind == WEBHOOK:
        document = {"title": message.title, "text": text, "runs": list(message.facts)}
        return _json(given[0], document)
    if kind == NTFY:
        document = {"topic": given[0], "title": message.title, "message": text}
        bearer = {"Authorization": f"Bearer {given[1]}"} if len(given) > 1 else {}
        return _json(f"{server}/", document, **bearer)
    if kind == BARK:
        body = {"device_key": given[0], "title": message.title, "body": text, "group": "QingLong"}
        return _json(f"{server}/push", body)
    if kind == TELEGRAM:
        token, chat = given
        return _json(f"{server}/bot{_percent(token)}/sendMessage", {"chat_id": chat, "text": both})
    if kind == SERVERCHAN:
        return _serverchan(server, given[0], message, text, own=url is None)
    if kind == PUSHPLUS:
        body = {"token": given[0], "title": message.title, "content": text, "template": "txt"}
        return _json(f"{server}/send", body)
    if kind == WECOM:
        path = f"/cgi-bin/webhook/send?key={_percent(given[0])}"
        return _json(server + path, {"msgtype": "text", "text": {"content": cut(both)}})
    if kind == DINGTALK:
        return _dingtalk(server, given, both, now_ms)
    return _feishu(server, given, both, now_ms // 1000)


def _serverchan(server: str, key: str, message: Message, text: str, *, own: bool) -> Request:
    """A form; keys of the newer service name their own host."""
    found = re.fullmatch(r"sctp(\d+)t.*", key)
    if found is not None and own:
        target = f"https://{found[1]}.push.ft07.com/send/{_percent(key)}.send"
    else:
        target = f"{server}/{_percent(key)}.send"
    form = f"title={_percent(message.title)}&desp={_percent(text)}".encode("ascii")
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return Request(address=address(target), headers=headers, body=form)


def _dingtalk(server: str, given: list[str], text: str, now_ms: int) -> Request:
    query = f"access_token={_percent(given[0])}"
    if len(given) > 1:
        signed = hmac_sha256(given[1].encode(), f"{now_ms}\n{given[1]}".encode())
        query += f"&timestamp={now_ms}&sign={_percent(_base64(signed))}"
    document = {"msgtype": "text", "text": {"content": text}}
    return _json(f"{server}/robot/send?{query}", document)


def _feishu(server: str, given: list[str], text: str, now_s: int) -> Request:
    document: dict[str, Any] = {"msg_type": "text", "content": {"text": text}}
    if len(given) > 1:
        signed = hmac_sha256(f"{now_s}\n{given[1]}".encode(), b"")
        document = {"timestamp": str(now_s), "sign": _base64(signed), **document}
    return _json(f"{server}/open-apis/bot/v2/hook/{_percent(given[0])}", document)


def accepted(kind: str, status: int, body: bytes) -> bool:
    """True if the server took the message; some say no with status 200."""
    if not 200 <= status < 300:
        return False
    if kind not in _WELL:
        return True
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and _WELL[kind](told)


def mail(message: Message, *, sender: str, to: str, date: str) -> bytes:
    """A mail of one text in UTF-8; every line is short, and none begins with a dot."""
    subject = binascii.b2a_base64(message.title.encode()[:300], newline=False).decode()
    body = binascii.b2a_base64(message.text.encode(), newline=False)
    lines = [
        b"From: " + sender.encode("ascii"),
        b"To: " + to.encode("ascii"),
        f"Subject: =?UTF-8?B?{subject}?=".encode("ascii"),
        b"Date: " + date.encode("ascii"),
        b"MIME-Version: 1.0",
        b'Content-Type: text/plain; charset="utf-8"',
        b"Content-Transfer-Encoding: base64",
        b"",
        *(body[place : place + 76] for place in range(0, len(body), 76)),
    ]
    return b"\r\n".join(lines) + b"\r\n"


def cut(text: str, limit: int = _TEXT_BYTES) -> str:
    """A text of at most so many bytes, cut at a character."""
    data = text.encode("utf-8", "replace")
    return data[:limit].decode("utf-8", "ignore") if len(data) > limit else data.decode("utf-8")


def hmac_sha256(key: bytes, data: bytes) -> bytes:
    """RFC 2104; the standard one loads libcrypto where a box has it."""
    block = (sha256_bytes(key) if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    inner = sha256_bytes(bytes(byte ^ 0x36 for byte in block) + data)
    return sha256_bytes(bytes(byte ^ 0x5C for byte in block) + inner)


def _json(target: str, document: dict[str, Any], **headers: str) -> Request:
    return Request(
        address=address(target),
        headers={"Content-Type": "application/json; charset=utf-8", **headers},
        body=json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"),
    )


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _percent(text: str) -> str:
    return "".join(
        chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "replace")
    )
