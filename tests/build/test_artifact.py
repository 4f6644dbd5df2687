"""The zipapp: reproducible, within its budget, and whole after its file is gone."""

from __future__ import annotations

import bz2
import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge import __main__ as first
from tests.support import ROOT
from tests.tools import bench_idle, builder, gates, measure, pythons, sample

FLAGS = ("-I", "-S")
# Says how it came to be, and how an exception looks in it.
LATE = '''"""Documented."""
import traceback


class Divider:
    def divide(self, by):
        def inner():
            return [1 // n for n in by]
        return inner()


try:
    Divider().divide([1, 0])
except ZeroDivisionError:
    told = traceback.format_exc()
__doc__ = told
'''
# Lets go, waits for a line, then imports late; all without the garbage collector.
RELEASING = """
import gc
gc.disable()

def held():
    return [kind for kind in map(type, gc.get_objects()) if kind.__name__ == "Contents"]

def main():
    import json
    import sys
    from qinglong_edge.app import program
    before = len(held())
    program.release()
    program.release()
    between = len(held())
    print("ready", flush=True)
    sys.stdin.readline()
    from qinglong_edge import in_child, late
    again = len(held())
    program.release()
    counts = [before, between, again, len(held())]
    print(json.dumps({"held": counts, "file": late.__file__}))
    return 0
"""


def built(root: str, output: Path) -> builder.Artifact:
    """The artifact of a tree with the byte code of the running Python."""
    return builder.build(root, str(output), python=sys.executable)


def answered(
    command: list[str], between: Callable[[], object], **options: str
) -> dict[str, object]:
    """The sample's document, with something done between its start and its late imports."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=options.get("cwd"),
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        between()
        output, _ = started.communicate("go\n", timeout=30)
    assert started.returncode == 0
    document: dict[str, object] = json.loads(output)
    return document


def changed(zipapp: Path, output: Path, members: dict[str, bytes | None]) -> Path:
    """A copy of a zipapp with other members, or without those that are None."""
    with zipfile.ZipFile(zipapp) as archive, zipfile.ZipFile(output, "w") as written:
        for name in archive.namelist():
            content = members.get(name, archive.read(name))
            if content is not None:
                written.writestr(name, content)
    return output


def damaged(content: bytes, place: int) -> bytes:
    """The same number of bytes, one of them wrong."""
    wrong = bytearray(content)
    wrong[place] ^= 0x10
    return bytes(wrong)


def every_python() -> list[str]:
    """Every supported Python that this machine has, the running one first; one a minor version."""
    others = (minor for minor in pythons.MINORS if minor != sys.version_info.minor)
    found = (pythons.on_this_machine(minor) for minor in others)
    return [sys.executable, *filter(None, found)]


def test_this_tree_keeps_its_budget_of_bytes_and_files(tmp_path: Path) -> None:
    """ADR-0069 verification 9: bytes and files of the artifact."""
    artifact = built(ROOT, tmp_path / "a.pyz")
    checked = gates.artifact_gates(artifact, gates.budget(ROOT))
    assert all(gate.held for gate in checked), gates.report(artifact, checked)
    assert artifact.size == (tmp_path / "a.pyz").stat().st_size


def test_the_largest_modules_are_named_with_their_share(tmp_path: Path) -> None:
    artifact = built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    streams = sum(artifact.entries[name] for name in (first.CODE, first.MORE, first.SOURCE))
    assert abs(sum(artifact.modules.values()) - streams) < len(artifact.modules)
    (name, size), *_ = gates.largest(artifact)
    told = gates.report(artifact, [gates.Gate("bytes", artifact.size, artifact.size - 1)])
    assert f"{size:7,}  {name}" in told
    assert f"  {first.SOURCE}" in told
    assert f"{len(artifact.modules)} modules" in told


def test_this_tree_built_twice_is_the_same_to_the_byte(tmp_path: Path) -> None:
    built(ROOT, tmp_path / "a.pyz")
    built(ROOT, tmp_path / "b.pyz")
    assert (tmp_path / "a.pyz").read_bytes() == (tmp_path / "b.pyz").read_bytes()


def test_the_carried_sources_are_the_trees_to_the_byte(tmp_path: Path) -> None:
    built(ROOT, tmp_path / "a.pyz")
    names = builder.unpack_sources(str(tmp_path / "a.pyz"), str(tmp_path / "sources"))
    chosen = builder.carried(ROOT, builder.RUNTIME)
    assert set(names) == {name for name in chosen if name.endswith(".py")}
    for name in names:
        assert (tmp_path / "sources" / name).read_bytes() == Path(ROOT, name).read_bytes()


def test_the_same_sources_give_the_same_bytes_whatever_is_around_them(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.tools import builder\n"
        "builder.build(*sys.argv[1:3], python=sys.executable)"
    )
    around: list[tuple[str, int, dict[str, str]]] = [
        ("a", 0o022, {}),
        ("b/much/deeper", 0o077, {"LC_ALL": "C", "PYTHONHASHSEED": "1"}),
        ("c d", 0o000, {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2", "TZ": "CST-8"}),
        ("e", 0o027, {"PYTHONUTF8": "1", "PYTHONOPTIMIZE": "1", "SOURCE_DATE_EPOCH": "1"}),
    ]
    results = set()
    for folder, umask, environment in around:
        root = sample.tree(str(tmp_path / folder))
        output = tmp_path / folder / "out.pyz"
        subprocess.run(
            [sys.executable, "-c", code, root, str(output)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ROOT, **environment},
            umask=umask,
            cwd=root,
            check=True,
        )
        assert stat.S_IMODE(output.stat().st_mode) == 0o755
        results.add(output.read_bytes())
    assert len(results) == 1


def test_the_file_says_how_it_is_run_and_of_what_it_was_made(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    artifact = built(root, tmp_path / "a.pyz")
    assert (tmp_path / "a.pyz").read_bytes().startswith(b"#!/usr/bin/python3 -IS\n")
    with zipfile.ZipFile(tmp_path / "a.pyz") as archive:
        data = first.Contents(first.DATA, archive.read(first.DATA))
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    made = json.loads(bytes(data.piece("qinglong_edge/build.json")))
    carried = json.loads(bytes(data.piece("qinglong_edge/profiles.json")))
    names = builder.unpack_sources(str(tmp_path / "a.pyz"), str(tmp_path / "sources"))
    assert not [name for name in names if "worker" in name]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert made == {"digest": artifact.digest, "python": version}
    assert carried.keys() == {"edge", "standalone"}
    assert carried["edge"].keys() == {"runtime"}
    sample.write(root, "qinglong_edge/late.py", "x = 1\n")
    assert built(root, tmp_path / "b.pyz").digest != artifact.digest


@pytest.mark.parametrize("fate", ["kept", "deleted", "replaced", "garbage"])
def test_a_started_zipapp_imports_from_itself_whatever_becomes_of_its_file(
    tmp_path: Path, fate: str
) -> None:
    artifact = built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    file = tmp_path / "a.pyz"

    said = answered([sys.executable, *FLAGS, str(file)], lambda: become(file, fate))
    held = said["descriptor"]
    assert isinstance(held, int)
    assert held >= 64
    assert said["file"] == f"/proc/self/fd/{held}/qinglong_edge/late.py"
    assert (said["child"], said["inheritable"]) == (42, False)
    assert (said["digest"], said["doc"]) == (artifact.digest, None)
    assert (said["profiles"], said["active"]) == (["edge", "standalone"], 4)
    assert "tomllib" not in str(said["modules"])


def become(file: Path, fate: str) -> None:
    """What an upgrade does to the file of a running zipapp."""
    if fate == "kept":
        return
    file.unlink()
    if fate == "replaced":
        root = sample.tree(str(file.parent / "upgrade"))
        sample.write(root, "qinglong_edge/late.py", "raise SystemExit(9)\n")
        built(root, file)
    if fate == "garbage":
        file.write_bytes(b"\xff" * 100_000)


@pytest.mark.parametrize("fate", ["kept", "deleted", "replaced", "garbage"])
@pytest.mark.parametrize("kind", ["code", "source"])
def test_after_a_release_no_module_is_held_and_late_imports_still_work(
    tmp_path: Path, fate: str, kind: str
) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    sample.write(root, "qinglong_edge/cli/main.py", RELEASING)
    file = tmp_path / "a.pyz"
    built(root, file)
    if kind == "source":
        file = changed(file, tmp_path / "b.pyz", {first.CODE: None, first.MORE: None})
    said = answered([sys.executable, *FLAGS, str(file)], lambda: become(file, fate))
    # The data files' stream is small and stays; the sources are one stream, the code is two.
    assert said["held"] == [3 if kind == "code" else 2, 1, 2, 1]
    assert str(said["file"]).startswith("/proc/self/fd/")


def test_a_relative_path_and_a_changed_directory_do_not_matter(tmp_path: Path) -> None:
    built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    said = answered([sys.executable, *FLAGS, "a.pyz"], lambda: None, cwd=str(tmp_path))
    assert isinstance(said["descriptor"], int)


def test_without_room_for_the_descriptor_the_plain_path_serves(tmp_path: Path) -> None:
    built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    limited = f'ulimit -n 32; exec "{sys.executable}" -I -S "{tmp_path}/a.pyz"'
    said = answered(["/bin/sh", "-c", limited], lambda: None)
    assert said["descriptor"] is None
    assert said["file"] == f"{tmp_path}/a.pyz/qinglong_edge/late.py"


def test_one_file_runs_under_every_python_with_its_own_code_or_the_sources(tmp_path: Path) -> None:
    """Each Python's own zipapp and every other's; an exception names its functions in all."""
    root = sample.tree(str(tmp_path / "tree"))
    sample.write(root, "qinglong_edge/late.py", LATE)
    for maker in every_python():
        builder.build(root, str(tmp_path / "a.pyz"), python=maker)
        for runner in every_python():
            said = answered([runner, *FLAGS, str(tmp_path / "a.pyz")], lambda: None)
            told = str(said["doc"])
            assert said["child"] == 42
            assert told.startswith("Traceback (most recent call last):")
            file = "qinglong_edge/late.py" if runner == maker else said["file"]
            assert f'File "{file}", line ' in told
            assert ", in divide\n" in told
            assert ", in inner\n" in told
            assert told.endswith("ZeroDivisionError: integer division or modulo by zero\n")


def test_an_uncaught_exception_is_printed_by_every_python(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    failing = "def main():\n    def inner():\n        raise OSError(5, 'told')\n    inner()\n"
    sample.write(root, "qinglong_edge/cli/main.py", failing)
    for python in every_python():
        builder.build(root, str(tmp_path / "a.pyz"), python=python)
        done = subprocess.run(
            [python, *FLAGS, str(tmp_path / "a.pyz")], capture_output=True, text=True
        )
        assert done.returncode == 1
        assert ", in inner\n" in done.stderr
        assert done.stderr.endswith("OSError: [Errno 5] told\n")


@pytest.mark.parametrize("version", [(3, 8, 18), (3, 10, 14)])
def test_an_older_python_is_named_as_what_is_wrong(zipapp: str, version: tuple[int, ...]) -> None:
    """Routers and boards of some years ago have one; a \"bug\" would send people the wrong way."""
    older = (
        f"import runpy, sys; sys.version_info = {(*version, 'final', 0)}; "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = [sys.executable, *FLAGS, "-c", older, zipapp, "status"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "qinglong-edge: python_too_old: Python 3.11 or later is needed.\n"
    done = subprocess.run([*words, "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (4, "")
    assert json.loads(done.stdout)["error"]["code"] == "python_too_old"


def test_the_loader_brings_no_module_but_its_own_few(tmp_path: Path) -> None:
    listing = "import sys\ndef main():\n    print(*sys.modules)\n    return 0\n"
    root = sample.tree(str(tmp_path / "tree"))
    sample.write(root, "qinglong_edge/cli/main.py", listing)
    built(root, tmp_path / "a.pyz")
    with zipfile.ZipFile(tmp_path / "bare.pyz", "w") as bare:
        bare.writestr("__main__.py", "import sys\nprint(*sys.modules)\n")
    loaded, without = (
        set(subprocess.check_output([sys.executable, *FLAGS, str(file)], text=True).split())
        for file in (tmp_path / "a.pyz", tmp_path / "bare.pyz")
    )
    ours = {"qinglong_edge", "qinglong_edge.cli", "qinglong_edge.cli.main"}
    few = {"__future__", "_bz2", "_struct", "errno", "fcntl", "marshal", "struct", "zipimport"}
    assert loaded - without <= ours | few
    assert ours <= loaded


@pytest.mark.parametrize(
    "how", ["byte", "begin", "end", "short", "empty", "none", "huge", "gone", "header"]
)
@pytest.mark.parametrize("member", [first.CODE, first.MORE, first.SOURCE, first.DATA])
def test_a_damaged_stream_is_one_line_and_status_5(tmp_path: Path, member: str, how: str) -> None:
    built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    with zipfile.ZipFile(tmp_path / "a.pyz") as archive:
        good = archive.read(member)
    code: dict[str, bytes | None] = {first.CODE: None, first.MORE: None}
    members = code if member == first.SOURCE else {}
    members[member] = {
        "byte": damaged(good, len(good) // 2),
        "begin": damaged(good, 0),
        "end": damaged(good, -4),
        "short": good[:-3],
        "empty": bz2.compress(b""),
        "none": b"",
        "huge": bz2.compress(first.SIZE.pack(0xFFFFFFFF) + b"{"),
        "gone": None,
        "header": good,
    }[how]
    if member in code and how == "gone":
        members[first.SOURCE] = None
    file = changed(tmp_path / "a.pyz", tmp_path / "b.pyz", members)
    if how == "header":
        content = file.read_bytes()
        with zipfile.ZipFile(file) as archive:
            mark = archive.getinfo(member).header_offset
        file.write_bytes(damaged(content, mark))
    done = subprocess.run([sys.executable, *FLAGS, str(file), "run"], capture_output=True)
    assert (done.returncode, done.stdout) == (5, b"")
    assert done.stderr.startswith(b"qinglong-edge: program_damaged: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("kind", builder.KINDS, ids=lambda kind: kind.profile)
def test_what_a_daemon_starts_with_is_what_its_imports_say(
    tmp_path: Path, kind: builder.Kind
) -> None:
    """The walk over the sources finds what Python itself loads by importing both beginnings."""
    artifact = builder.build(ROOT, str(tmp_path / "a.pyz"), python=sys.executable, kind=kind)
    with zipfile.ZipFile(artifact.path) as archive:
        code, more = (first.Contents(n, archive.read(n)).index for n in (first.CODE, first.MORE))
    listing = f"import sys, {kind.entry}, {kind.daemon}; print(*sys.modules)"
    said = subprocess.check_output(
        [sys.executable, "-S", "-B", "-c", listing], cwd=ROOT, text=True
    ).split()
    loaded = {name.replace(".", "/") for name in said if name.startswith("qinglong_edge")}
    assert {file.removesuffix(".py").removesuffix("/__init__") for file in code} == loaded
    assert more


def test_a_daemon_starts_and_serves_without_the_other_stream(tmp_path: Path, zipapp: str) -> None:
    """A run with a log, the common questions: not a byte of it is read. Other commands need it."""
    state = str(tmp_path / "state")
    measure.Product(zipapp).init(state)
    with measure.Product(zipapp).daemon(state) as daemon:
        bench_idle.define(daemon)
    with zipfile.ZipFile(zipapp) as archive:
        spoilt = damaged(archive.read(first.MORE), 0)
    file = str(changed(Path(zipapp), tmp_path / "b.pyz", {first.MORE: spoilt}))
    with measure.Product(file).daemon(state) as daemon:
        bench_idle.use(daemon)
    done = subprocess.run(
        [sys.executable, *FLAGS, file, "--state", state, "status"], capture_output=True
    )
    assert (done.returncode, done.stdout) == (5, b"")
    assert done.stderr == (
        b"qinglong-edge: program_damaged: The program's file is damaged; install it again.\n"
    )
    as_json = subprocess.run(
        [sys.executable, *FLAGS, file, "--state", state, "--json", "status"], capture_output=True
    )
    assert as_json.returncode == 5
    assert json.loads(as_json.stdout)["error"]["code"] == "program_damaged"


def test_a_checkout_runs_the_same_program_without_a_descriptor(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    sample.write(root, "qinglong_edge/late.py", '"""Documented."""\n')
    said = answered([sys.executable, "-B", "-m", "qinglong_edge"], lambda: None, cwd=root)
    assert (said["descriptor"], said["digest"], said["child"]) == (None, None, 42)
    assert (said["profiles"], said["active"]) == (["edge", "standalone"], 4)
    assert (said["file"], said["doc"]) == (f"{root}/qinglong_edge/late.py", "Documented.")


def test_in_a_checkout_there_is_nothing_to_release() -> None:
    from qinglong_edge.app import program

    program.release()
    assert (program.descriptor(), program.build()) == (None, None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("qinglong_edge/notes.txt", "", "notes.txt is neither a module"),
        ("qinglong_edge/broken.py", "def\n", "could not compile the sources"),
    ],
)
def test_a_tree_that_cannot_be_built_whole_is_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    sample.write(root, name, text)
    with pytest.raises(builder.BuildError, match=said):
        built(root, tmp_path / "a.pyz")
    assert not (tmp_path / "a.pyz").exists()


def test_a_missing_wrapper_or_interpreter_is_refused(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    with pytest.raises(builder.BuildError, match="cannot be started"):
        builder.build(root, str(tmp_path / "a.pyz"), python=str(tmp_path / "none"))
    (tmp_path / "tree" / "qinglong_edge" / "process" / "wrapper.sh").unlink()
    with pytest.raises(builder.BuildError, match=r"wrapper\.sh is missing"):
        built(root, tmp_path / "a.pyz")
