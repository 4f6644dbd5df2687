"""The main job by the artifact of the running Python: whatever that is, it does all of it."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support import until
from tests.tools.measure import Product


def test_a_run_outlives_its_killed_scheduler_and_comes_to_its_true_end(
    zipapp: str, tmp_path: Path
) -> None:
    """ADR-0024 verification 12: as this room, so this job under each Python that is supported."""
    product, state = Product(zipapp), str(tmp_path / "s")
    said, go = tmp_path / "said", tmp_path / "go"
    text = f'echo "$WHO"; : >{said}; while ! test -e {go}; do sleep 0.05; done; exit 7'
    product.init(state)
    with product.daemon(state) as owner:
        plan = {"shell": text, "environment": {"WHO": "任务"}, "cron": ["0 3 * * *"]}
        owner.call("task.add", name="t", zone="CST-8", **plan)
        number = owner.call("run.start", name="t")["number"]
        until(said.exists, what="the command runs")
        owner.kill()
    go.touch()
    with product.daemon(state) as owner:
        ended = owner.call("run.wait", run=str(number))
        log = owner.call("log.read", run=str(number), offset=0, length=100)
        assert owner.call("task.list")["tasks"][0]["triggers"][0]["zone"] == "CST-8"
    told = (ended["status"], ended["exit_code"], ended["evidence"], ended["attempts"])
    assert told == ("failed", 7, "receipt", 1)
    assert base64.b64decode(log["data"]).decode() == "任务\n"
