"""The web page in a headless Chromium, with the router's rpc played on loopback."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from tests.luci import browser, sample
from tests.support import ROOT

pytestmark = pytest.mark.skipif(browser.chromium() is None, reason="Chromium is not installed")
PICTURES = Path(ROOT, "dist", "screenshots")


@pytest.mark.parametrize("lang", ["en", "zh-cn"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("device", "size"), [("phone", (390, 1500)), ("desktop", (1280, 1100))])
def test_a_picture_of_the_page(
    tmp_path: Path, lang: str, dark: bool, device: str, size: tuple[int, int]
) -> None:
    """In both languages, light and dark, at both widths; for people to look at."""
    file = PICTURES / f"{lang}-{'dark' if dark else 'light'}-{device}.png"
    if file.exists():
        file.unlink()
    with browser.router(sample.answers()) as address:
        browser.shot(tmp_path, address, file, lang=lang, dark=dark, size=size, steps="[]")
    content = file.read_bytes()
    assert struct.unpack(">2I", content[16:24]) == size
    assert len(content) > 20_000  # not an empty page


@pytest.mark.parametrize("lang", ["en", "zh-cn"])
def test_a_picture_of_a_log(tmp_path: Path, lang: str) -> None:
    steps = json.dumps([["click", "日志" if lang == "zh-cn" else "Log"]])
    with browser.router(sample.answers()) as address:
        file = PICTURES / f"{lang}-light-log.png"
        browser.shot(tmp_path, address, file, lang=lang, dark=False, size=(1280, 900), steps=steps)
    assert os.path.getsize(file) > 20_000


def test_the_page_shows_tasks_runs_and_the_scheduler(tmp_path: Path) -> None:
    steps: browser.Steps = [
        ["text", ".qle-name"],
        ["text", ".qle-state"],
        ["text", ".qle-bar"],
        ["poll", ""],
    ]
    with browser.router(sample.answers()) as address:
        told = browser.told(tmp_path, address, steps)
    names, states, (bar,) = told["texts"]
    assert names[:3] == ["jd_sign", "阿里云盘签到", "adblock-update"]
    assert names[3] == "old-backupdisabled"
    assert names[6] == "jd_sign #1041"
    assert "timed out" in states
    assert bar.startswith("The scheduler is running")
    assert "46.0 MiB free" in bar
    assert [method for method, _ in told["calls"]] == ["overview", "overview"]


def test_every_word_of_the_page_is_chinese_in_chinese(tmp_path: Path) -> None:
    steps = [["text", "h3, th, button, .qle-state, option, .cbi-map-descr"], ["text", ".qle-bar"]]
    with browser.router(sample.answers()) as address:
        told = browser.told(tmp_path, address, steps, lang="zh-cn")
    words = [word for word in told["texts"][0] if word]
    tasks = {each["task"] for each in sample.overview()["tasks"]}
    assert [word for word in words if word.isascii() and word not in tasks] == []
    assert told["texts"][1][0].startswith("调度器运行中6 个任务下次: ")


def test_buttons_ask_for_what_they_say(tmp_path: Path) -> None:
    """Start, disable, enable, pause; a stop asks first; a filter and a further page."""
    steps: browser.Steps = [
        ["click", "Start", 5],
        ["click", "Disable", 4],
        ["click", "Enable"],
        ["click", "Pause schedules"],
        ["click", "Stop"],
        ["click", "Stop"],
        ["choose", "Task", "jd_sign"],
        ["choose", "Status", "failed"],
        ["click", "Show more"],
        ["text", ".qle-name"],
    ]
    with browser.router(sample.answers()) as address:
        told = browser.told(tmp_path, address, steps)
    changes = [call for call in told["calls"] if call[0] not in ("overview", "log")]
    assert changes == [
        ["start", {"task": "jd_sign"}],
        ["disable", {"task": "jd_sign"}],
        ["enable", {"task": "old-backup"}],
        ["pause", {}],
        ["stop", {"run": "1041"}],
    ]
    last = [given for method, given in told["calls"] if method == "overview"][-2:]
    chosen = {"task": "jd_sign", "status": "failed"}
    assert last == [{**chosen, "after": ""}, {**chosen, "after": "760"}]
    assert told["texts"][0][-1] == "jd_sign #12"


def test_a_log_is_shown_as_text_and_never_as_markup(tmp_path: Path) -> None:
    hostile = {**sample.LOG, "text": "<img src=x onerror=\"document.title='bad'\">\n"}
    steps = [["click", "Log"], ["text", ".qle-log"], ["text", "h4"], ["click", "Close"]]
    with browser.router(sample.answers(log=hostile)) as address:
        told = browser.told(tmp_path, address, [*steps, ["text", ".modal"]])
    assert told["texts"] == [[hostile["text"]], ["old-backup #760"], []]
    assert ["log", {"run": "760", "attempt": "", "bytes": "65536"}] in told["calls"]


def test_a_task_named_as_markup_is_a_name(tmp_path: Path) -> None:
    page = sample.overview()
    page["tasks"][0]["task"] = page["runs"][0]["task"] = "<b onclick=x>\"'&"
    with browser.router(sample.answers(overview=page)) as address:
        told = browser.told(tmp_path, address, [["text", ".qle-name"], ["click", "Start", 5]])
    assert told["texts"][0][0] == page["tasks"][0]["task"]
    assert ["start", {"task": page["tasks"][0]["task"]}] in told["calls"]


def test_what_the_scheduler_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    error = {"code": "overlap_skip", "message": "A run of the task is active.", "facts": {}}
    steps = [["click", "Start"], ["text", ".alert-message"]]
    with browser.router(sample.answers(start={"error": error})) as address:
        told = browser.told(tmp_path, address, steps)
    assert told["texts"] == [["A run of the task is active. overlap_skip"]]


def test_a_scheduler_that_is_down_and_a_router_without_tasks_say_what_to_type(
    tmp_path: Path,
) -> None:
    with browser.router(sample.down()) as address:
        told = browser.told(tmp_path, address, [["text", ".qle-bar"]])
        picture = PICTURES / "en-light-down.png"
        browser.shot(
            tmp_path, address, picture, lang="en", dark=False, size=(1280, 500), steps="[]"
        )
    assert told["texts"][0] == [
        "The scheduler is not runningStart it with: /etc/init.d/qinglong-edge start"
    ]
    empty = sample.overview(tasks=[], runs=[], runs_next=None)
    with browser.router(sample.answers(overview=empty)) as address:
        told = browser.told(tmp_path, address, [["text", ".qle-none"]])
    assert "qinglong-edge task add" in told["texts"][0][0]
    assert told["texts"][0][1] == "No runs yet."


def test_troubles_stand_in_the_bar(tmp_path: Path) -> None:
    page = sample.overview()
    page["status"].update(degraded=["log_capacity"], clock="clock_not_set", paused=True)
    steps = [["text", ".qle-bar.qle-warn"], ["click", "Resume schedules"]]
    with browser.router(sample.answers(overview=page)) as address:
        told = browser.told(tmp_path, address, steps)
    (bar,) = told["texts"][0]
    assert bar.startswith("Schedules are paused")
    assert "clock_not_set" in bar
    assert "log_capacity" in bar
    assert ["resume", {}] in told["calls"]
