"""Pass C: the power goes between two fsyncs, and the disk is any of those that it may leave.

A scenario is played once with every file effect recorded, the wrapper's own through tools on its
PATH that write down what they do. From each prefix of the record the disks are built that a cut at
that moment allows: bytes that were not synced are gone, torn, zeros, or there; names of a directory
that was not synced are there or not, each by itself. SQLite's files are taken as they were at the
last COMMIT (it syncs them itself). The next owner finds another boot id.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.crash import cases
from tests.crash.cases import Case, Outcome
from tests.crash.invariants import ALWAYS, SETTLED
from tests.crash.scenarios import Scenario
from tests.crash.seam import Op, Plan, guard
from tests.crash.stage import Slot, Stage

_SUBSETS_MAX = 4  # so many unsynced names are tried in every combination, more as prefixes
_TOOLS = ("cat", "find", "grep", "tr")
_TRACED = {
    "sync": 'if [ -f "$1" ]; then printf "data %s %s\\n" "$1" "$(cat "$1")" >>TRACE; fi; '
    'printf "sync %s\\n" "$1" >>TRACE; exec TOOL "$@"',
    "ln": 'TOOL "$@" && printf "ln %s %s\\n" "$2" "$3" >>TRACE',
    "rm": 'TOOL "$@" && printf "rm %s\\n" "$2" >>TRACE',
}


@dataclass
class _File:
    synced: bytes = b""
    data: bytes = b""

    def versions(self) -> list[bytes]:
        """What a cut may leave of its bytes."""
        if self.data == self.synced:
            return [self.data]
        torn = self.synced + self.data[len(self.synced) :][: (len(self.data) + 1) // 2]
        zeros = self.synced + bytes(len(self.data) - len(self.synced))
        return list(dict.fromkeys((self.synced, torn, zeros, self.data)))


_Step = tuple[tuple[str, "_File | None", bool], ...]  # (path, what, there); one is one whole step


@dataclass
class Disk:
    """Names and bytes, those that are durable and those that are on their way."""

    root: str
    names: dict[str, _File | None] = field(default_factory=dict)
    durable: dict[str, _File | None] = field(default_factory=dict)
    pending: dict[str, list[_Step]] = field(default_factory=dict)

    def begin(self) -> None:
        """Everything that stands there now is durable."""
        for folder, folders, files in os.walk(self.root):
            for name in folders:
                self.durable[os.path.join(folder, name)] = None
            for name in files:
                path = os.path.join(folder, name)
                if not name.startswith("edge.db"):
                    with open(path, "rb") as opened:
                        data = opened.read()
                    self.durable[path] = _File(data, data)
        self.names = dict(self.durable)

    def apply(self, op: Op) -> None:
        """One recorded effect."""
        kind, path = op[0], str(op[1]) if len(op) > 1 else ""
        if not path.startswith(self.root) or (path == self.root and kind != "fsync"):
            return
        if kind in ("mkdir", "makedirs"):
            self._step((path, None, True))
        elif kind == "given":  # a stranger's, whole and durable
            self.names[path] = self.durable[path] = _File(op[2], op[2])
        elif kind == "create":
            self._step((path, _File(), True))
        elif kind in ("write", "data"):
            file = self.names.get(path)
            if file is not None:
                file.data = op[2] if kind == "data" else file.data + op[2]
        elif kind == "fsync":
            self._sync(path)
        elif kind == "link":
            self._step((str(op[2]), self.names[path], True))
        elif kind == "rename":
            self._step((path, self.names[path], False), (str(op[2]), self.names[path], True))
        elif kind == "unlink" and path in self.names:
            self._step((path, self.names[path], False))

    def _step(self, *changes: tuple[str, _File | None, bool]) -> None:
        for path, what, there in changes:
            if there:
                self.names[path] = what
            else:
                self.names.pop(path, None)
        self.pending.setdefault(os.path.dirname(changes[-1][0]), []).append(changes)

    def _sync(self, path: str) -> None:
        file = self.names.get(path)
        if file is not None:
            file.synced = file.data
            return
        for step in self.pending.pop(path, []):
            _change(self.durable, step)

    def states(self) -> Iterator[dict[str, bytes | None]]:
        """Every disk that a cut at this moment allows: path -> bytes, None for a directory."""
        choices = [list(_subsets(steps)) for steps in self.pending.values()]
        for chosen in itertools.product(*choices):
            names = dict(self.durable)
            for steps in chosen:
                for step in steps:
                    _change(names, step)
            files = {id(file): file for file in names.values() if file is not None}
            for versions in itertools.product(*(file.versions() for file in files.values())):
                data = dict(zip(files, versions, strict=True))
                found = {
                    path: None if file is None else data[id(file)] for path, file in names.items()
                }
                yield {path: what for path, what in found.items() if self._reached(path, found)}

    def _reached(self, path: str, found: dict[str, bytes | None]) -> bool:
        while (path := os.path.dirname(path)) != self.root:
            if path not in found:
                return False
        return True


def _change(names: dict[str, _File | None], step: _Step) -> None:
    for path, what, there in step:
        if there:
            names[path] = what
        else:
            names.pop(path, None)


def _subsets(steps: list[_Step]) -> Iterator[list[_Step]]:
    if len(steps) <= _SUBSETS_MAX:
        for count in range(len(steps) + 1):
            yield from (list(each) for each in itertools.combinations(steps, count))
        return
    yield from (steps[:count] for count in range(len(steps) + 1))
    yield from (steps[:number] + steps[number + 1 :] for number in range(len(steps) - 1))


# -- recording ------------------------------------------------------------------------------------


def make_tools(slot: Slot) -> None:
    """The wrapper's tools; those that touch the disk write it down."""
    os.makedirs(slot.tools)
    for name in _TOOLS:
        os.symlink(shutil.which(name) or name, os.path.join(slot.tools, name))
    for name, text in _TRACED.items():
        path = os.path.join(slot.tools, name)
        tool = shutil.which(name) or name
        cat = shutil.which("cat") or "cat"
        body = text.replace("TRACE", slot.trace).replace("TOOL", tool)
        body = body.replace("$(cat", f"$({cat}")
        with open(path, "w", encoding="ascii") as opened:
            opened.write(f"#!/bin/sh\n{body}\n")
        os.chmod(path, 0o755)


class _Recorder:
    """Collects the effects of owner and wrapper in one order, and the database at each COMMIT."""

    def __init__(self, slot: Slot, plan: Plan) -> None:
        self._slot = slot
        self._read = 0
        self.ops: list[Op] = []
        self.commits = 0
        self._known: set[str] = set()
        plan.ops = self.ops
        plan.before_op = self.drain
        plan.on_commit = self.snapshot

    def drain(self) -> None:
        """Take over what the wrapper's tools have written down by now."""
        if not os.path.exists(self._slot.trace):
            return
        with open(self._slot.trace, encoding="utf-8") as opened:
            lines = opened.readlines()
        fresh, self._read = lines[self._read :], len(lines)
        for line in fresh:
            word, _, rest = line.rstrip("\n").partition(" ")
            path, _, more = rest.partition(" ")
            if word == "data":
                self.ops += [("create", path), ("data", path, more.encode())]
            elif word == "sync":
                self.ops.append(("fsync", path, b""))
            elif word == "ln":
                self.ops.append(("link", path, more))
            else:
                self.ops.append(("unlink", path))

    def snapshot(self) -> None:
        """The database as a power cut would find it; copied by a child, for closing the file in
        this process would drop SQLite's locks."""
        self.commits += 1
        pid = os.fork()
        if pid == 0:
            try:
                _copy_database(self._slot.state, self.folder(self.commits))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    def folder(self, number: int) -> str:
        """Where a snapshot stands."""
        return f"{self._slot.folder}.commit{number}"


def _copy_database(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    for suffix in ("", "-wal", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(target, f"edge.db{suffix}"))
        path = os.path.join(source, f"edge.db{suffix}")
        if os.path.exists(path):
            shutil.copy(path, target)


def record(slot: Slot, scenario: Scenario) -> tuple[_Recorder, Disk]:
    """Play a scenario whole; its record, and the disk it began with."""
    cases.reset(slot, scenario)
    make_tools(slot)
    disk = Disk(slot.state)
    disk.begin()
    plan = Plan()
    recorder = _Recorder(slot, plan)
    if scenario.founded:
        recorder.snapshot()
    case = Case(slot, scenario)
    with guard(plan):
        stage = case.stage(plan)
        stage.tools_path = slot.tools
        case.play(stage)
    recorder.drain()
    case.proofs += _overwritten(recorder.ops)
    if case.proofs:
        raise AssertionError("\n".join(case.proofs))
    _write_logs(slot, recorder)
    return recorder, disk


def _overwritten(ops: list[Op]) -> list[str]:
    """A receipt gets its name by a link alone, which takes no name that is there."""
    return [
        f"a receipt's name is taken otherwise than by a link: {op[0]}"
        for op in ops
        if (op[0] == "create" and _receipt(op[1])) or (op[0] == "rename" and _receipt(op[2]))
    ]


def _receipt(path: str) -> bool:
    return "/receipts/" in path and path.endswith(".json")


def _write_logs(slot: Slot, recorder: _Recorder) -> None:
    """A log's bytes come from its process: on their way from the open gate on."""
    for number, op in enumerate(list(recorder.ops)):
        if op[0] == "create" and op[1].endswith(".log") and os.path.exists(op[1]):
            with open(op[1], "rb") as opened:
                data = opened.read()
            go = next(n for n, each in enumerate(recorder.ops) if each[0] == "go" and n > number)
            recorder.ops.insert(go + 1, ("write", op[1], data))


# -- the cuts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """One disk after a cut."""

    after: int  # so many recorded effects had happened
    commit: int  # the newest snapshot of the database, 0 = none
    tree: tuple[tuple[str, bytes | None], ...]
    promised: frozenset[str]


def cuts(recorder: _Recorder, disk: Disk) -> list[Cut]:
    """Every different disk."""
    found: dict[object, Cut] = {}
    commit = int(recorder.commits > 0 and disk.names != {})
    promised: set[str] = set()
    for number, op in enumerate([("begin",), *recorder.ops]):
        if op[0] == "commit":
            commit += 1
        elif op[0] == "promise":
            promised.add(os.path.basename(op[1]).removesuffix(".json"))
        disk.apply(op)
        for state in disk.states():
            tree = tuple(sorted(state.items()))
            cut = Cut(number, commit, tree, frozenset(promised))
            found.setdefault((commit, tree, cut.promised), cut)
    return list(found.values())


def cut(scenario: Scenario, sample: int | None, seed: float, slot: Slot) -> Outcome:
    """Pass C over one scenario."""
    recorder, disk = record(slot, scenario)
    every = cuts(recorder, disk)
    if sample is not None and len(every) > sample:
        every = random.Random(seed).sample(every, sample)
    outcome = Outcome(states=len(every))
    for each in every:
        broken = _recover(slot, scenario, recorder, each)
        if broken:
            outcome.broken += [f"cut after {each.after}: {said}" for said in broken]
            outcome.report += _report(slot, recorder, each)
    return outcome


def _recover(slot: Slot, scenario: Scenario, recorder: _Recorder, found: Cut) -> list[str]:
    _build(slot, scenario, recorder, found)
    case = Case(slot, scenario, other_boot=True)
    plan = Plan()
    broken = case.look(ALWAYS, cut=True)
    with guard(plan):
        case.settle(Stage(slot, plan, case.shift, other_boot=True))
        case.twice()
    return broken + case.look(SETTLED, cut=True, promised=found.promised)


def _build(slot: Slot, scenario: Scenario, recorder: _Recorder, found: Cut) -> None:
    """The slot as the cut leaves it."""
    cases.reset(slot, scenario)
    shutil.rmtree(slot.state, ignore_errors=True)
    os.makedirs(slot.state, 0o700)
    for path, data in found.tree:
        if data is None:
            os.makedirs(path, 0o700, exist_ok=True)
    for path, data in found.tree:
        if data is not None:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(path, "wb") as opened:
                opened.write(data)
            os.chmod(path, 0o500 if path.endswith("wrapper.sh") else 0o600)
    if found.commit:
        _copy_database(recorder.folder(found.commit), slot.state)


def _report(slot: Slot, recorder: _Recorder, found: Cut) -> str:
    lines = []
    for number, op in enumerate(recorder.ops, 1):
        names = [str(part).replace(slot.folder, "") for part in op if not isinstance(part, bytes)]
        lines.append(f"{'-->' if number == found.after else '   '} {number:3d} {' '.join(names)}")
    tree = [
        f"        {path.replace(slot.folder, '')}: {'directory' if data is None else len(data)}"
        for path, data in found.tree
    ]
    return "\n".join([*lines, "    the disk:", *tree, ""])
