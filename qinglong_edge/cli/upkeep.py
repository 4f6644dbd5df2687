"""The commands that look after a box: `audit`, `backup`, `restore`, `doctor`.

Owns their text form.
"""

from __future__ import annotations

from qinglong_edge.cli import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from qinglong_edge.cli.context import Context

_FAILED = 1
_MARK = 8  # columns of `fail` or `warn`, and of the gaps


def _audit(context: Context) -> int:
    options = context.options
    answer = context.call("audit.list", limit=options.limit, after=options.after)
    heads = ("AT", "UID", "BY", "ACTION", "TARGET", "VERSION", "OUTCOME", "MUTATION")

    def row(each: Mapping[str, Any]) -> tuple[object, ...]:
        outcome = f"{each['outcome']} {each['code'] or ''}".rstrip()
        version = "-" if each["version"] is None else each["version"]
        return (
            render.moment(each["at_ms"]),
            each["uid"],
            each["front_end"],
            each["action"],
            each["target"] or "-",
            version,
            outcome,
            each["mutation_id"],
        )

    def text() -> str:
        more = "" if answer["next"] is None else f"older ones: --after {answer['next']}\n"
        return render.table(heads, map(row, answer["audit"])) + more

    return context.show(answer, text)


def _backup(context: Context) -> int:
    from qinglong_edge.app import backup

    options = context.options
    answer = backup.write(context.where, options.file, with_keyring=options.with_keyring)
    alone = answer["envelopes"] and not answer["keyring"]
    hint = "the keyring is not in it; --with-keyring copies it too\n" if alone else ""
    return context.show(answer, lambda: _fields(answer) + hint)


def _restore(context: Context) -> int:
    from qinglong_edge.app import backup

    options = context.options
    answer = backup.restore(context.where, options.file, keyring_file=options.keyring)
    return context.show(answer, lambda: _fields(answer))


def _fields(answer: Mapping[str, Any]) -> str:
    return render.fields((name, "-" if each is None else each) for name, each in answer.items())


def _doctor(context: Context) -> int:
    from qinglong_edge.app import doctor

    checks = doctor.examine(context.where, environment_tz=context.environment_tz)

    def text() -> str:
        room = render.WIDTH - _MARK - max(len(str(each["check"])) for each in checks)
        rows: list[tuple[object, ...]] = []
        for each in checks:
            first, *more = render.wrapped(render.inline(each["message"]), room)
            rows += [(each["status"], each["check"], first), *(("", "", line) for line in more)]
        fixes = (f"{each['check']}: {each['fix']}" for each in checks if each["fix"])
        return render.table(("", "CHECK", "FOUND"), rows) + render.advice(fixes)

    context.show({"checks": checks}, text)
    return _FAILED if any(each["status"] == doctor.FAIL for each in checks) else 0


COMMANDS: Mapping[str, Callable[[Context], int]] = {
    "audit": _audit,
    "backup": _backup,
    "restore": _restore,
    "doctor": _doctor,
}
