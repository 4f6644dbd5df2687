"""What a router's plugin answers in the tests of the page: the shapes of `cli/rpcd.py`."""

from __future__ import annotations

import time
from typing import Any

from tests.luci.browser import Answer

_DOWN = {"code": "daemon_down", "message": "The scheduler is not running.", "facts": {}}


def _task(
    name: str, kind: str, text: str, next_s: int | None, last: tuple[int, str] | None
) -> dict[str, Any]:
    now_ms = int(time.time() * 1000)
    zone = "CST-8" if kind == "cron" else None
    return {
        "task": name,
        "enabled": name != "old-backup",
        "triggers": [{"kind": kind, "text": text, "zone": zone, "parked": None}] if kind else [],
        "next_ms": None if next_s is None else str(now_ms + next_s * 1000),
        "last": last and {"run": str(last[0]), "status": last[1]},
    }


def _run(
    number: int, task: str, status: str, ago_s: int, took_ms: int | None, exit_code: int | None
) -> dict[str, Any]:
    began = str(int(time.time() * 1000) - ago_s * 1000)
    return {
        "run": str(number),
        "task": task,
        "status": status,
        "created_ms": began,
        "started_ms": None if status == "queued" else began,
        "duration_ms": None if took_ms is None else str(took_ms),
        "exit": None if exit_code is None else str(exit_code),
        "error": {"timed_out": "TIMED_OUT", "failed": "PROCESS_FAILED"}.get(status),
        "log_bytes": "512",
    }


def overview(**changed: object) -> dict[str, Any]:
    """A router with a few tasks and runs."""
    now_ms = int(time.time() * 1000)
    return {
        "now_ms": str(now_ms),
        "status": {
            "tasks": "6",
            "paused": False,
            "next": {"at_ms": str(now_ms + 75_000), "task": "jd_sign"},
            "clock": None,
            "rss_bytes": "11534336",
            "free_bytes": "48234496",
            "degraded": [],
        },
        "tasks": [
            _task("jd_sign", "cron", "30 8 * * *", 75, (1041, "running")),
            _task("阿里云盘签到", "cron", "5 0 9 * * *", 12_000, (1040, "succeeded")),
            _task("adblock-update", "every", "6h", 4_000, (1038, "failed")),
            _task("old-backup", "cron", "0 3 * * 0", None, (760, "lost")),
            _task("wan-watch", "boot", "", None, (1039, "timed_out")),
            _task("by-hand", "", "", None, None),
        ],
        "tasks_next": None,
        "runs": [
            _run(1041, "jd_sign", "running", 42, None, None),
            _run(1040, "阿里云盘签到", "succeeded", 900, 3_250, 0),
            _run(1039, "wan-watch", "timed_out", 7_200, 1_800_000, 124),
            _run(1038, "adblock-update", "failed", 17_000, 640, 7),
            _run(1037, "jd_sign", "succeeded", 86_400, 61_000, 0),
            _run(760, "old-backup", "lost", 5_000_000, None, None),
        ],
        "runs_next": "760",
        **changed,
    }


LOG = {
    "status": "succeeded",
    "text": "Start of jd_sign\n"
    + "".join(f"[{n:02}] 账号 {n}: signed in, +{n} 豆\n" for n in range(60)),
    "total": "2214",
    "truncated": False,
    "ended": True,
    "retired_ms": None,
}


def answers(**special: dict[str, Any]) -> Answer:
    """An rpc that answers as the sample, or as told for a method."""

    def answer(method: str, given: dict[str, str]) -> dict[str, Any]:
        if method in special:
            return special[method]
        if method == "overview":
            page = overview()
            if given.get("after"):
                page.update(runs=[_run(12, "jd_sign", "succeeded", 9_000_000, 900, 0)])
                page.update(runs_next=None)
            return page
        if method == "log":
            return LOG
        return {"run": "1042", "status": "running"}

    return answer


def down() -> Answer:
    """The plugin of a router whose scheduler does not run."""
    return answers(overview={"error": _DOWN})
