"""One message to one channel, in a child or a command of its own.

Owns the words: names of tasks, numbers, codes and times; never a line of a log, which may hold
anything. The key is opened here and goes no further than the channel's own server.
"""

from __future__ import annotations

import os
import time

from qinglong_edge.app import preview
from qinglong_edge.core import notice
from qinglong_edge.core.errors import Invalid, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from qinglong_edge.core.channel import Channel

TIMEOUT_S = 20
_WORDS = {
    "failed": "failed",
    "recovered": "works again",
    "lost": "was lost",
    "exhausted": "failed after its last try",
}


def check(channel: Channel, key: str) -> None:
    """Refuse a channel that could never send; Invalid `notify_*`."""
    notice.words(channel.kind, key)
    if channel.url is not None or channel.kind == notice.SMTP:
        scheme = notice.address(channel.url or "").scheme
        if scheme.startswith("smtp") != (channel.kind == notice.SMTP):
            raise Invalid("notify_address", "The address is not one of the channel's kind.")
    if channel.kind == notice.WEBHOOK:
        notice.address(key)
    if channel.kind == notice.SMTP:
        notice.check_mailbox(channel.sender or "")
        notice.check_mailbox(channel.to or "")


def send(channel: Channel, key: str, message: notice.Message) -> None:
    """Hand a message over within 20 s; Unavailable `notify_*` if the channel did not take it."""
    from qinglong_edge.system import post

    check(channel, key)
    if channel.kind == notice.SMTP:
        sender, to = channel.sender or "", channel.to or ""
        date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime())
        post.send_mail(
            notice.address(channel.url or ""),
            notice.mail(message, sender=sender, to=to, date=date),
            sender=sender,
            to=to,
            login=notice.words(channel.kind, key),
            timeout_s=TIMEOUT_S,
        )
        return
    now_ms = time.time_ns() // 1_000_000
    request = notice.request(channel.kind, key, message, url=channel.url, now_ms=now_ms)
    status, body = post.post(request, TIMEOUT_S)
    if not notice.accepted(channel.kind, status, body):
        raise Unavailable("notify_refused", "The channel did not take the message.", status=status)


def message(facts: Sequence[dict[str, Any]], more: int, zone: str) -> notice.Message:
    """One event, or a digest of many; `more` were too many to be listed."""
    count = len(facts) + more
    lines = [_line(each, zone) for each in facts]
    if more:
        lines.append(f"and {more} more")
    title = f"{facts[0]['task']} {_WORDS[facts[0]['event']]}" if count == 1 else f"{count} events"
    return notice.Message(
        title=f"[{os.uname().nodename}] {title}", text="\n".join(lines), facts=tuple(facts)
    )


def _line(fact: dict[str, Any], zone: str) -> str:
    when = preview.local_text(fact["at_ms"], zone)
    told = f"{when} {fact['task']} {_WORDS[fact['event']]}"
    code = "" if fact["exit_code"] is None else f", exit code {fact['exit_code']}"
    why = f", {fact['error_code']}" if fact["error_code"] else ""
    return f"{told} (run {fact['run']}{code}{why})"


def trial() -> notice.Message:
    """What `notify test` sends."""
    text = "This is a test of the channel; nothing has happened."
    return notice.Message(title=f"[{os.uname().nodename}] qinglong-edge", text=text)
