"""The streams of the zipapp: what is written into them is what the first lines read back."""

from __future__ import annotations

import gc
import marshal
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from qinglong_edge import __main__ as first
from tests.support import ROOT
from tests.tools import builder, bytecode, sample

DATA = {f"qinglong_edge/{name}" for name in ("build.json", "process/wrapper.sh", "profiles.json")}
STREAMS = {first.CODE, first.MORE, first.SOURCE, first.DATA}


def built(root: str, output: Path) -> builder.Artifact:
    """The artifact of a tree with the byte code of the running Python."""
    return builder.build(root, str(output), python=sys.executable)


def within(code: CodeType) -> Iterator[CodeType]:
    """A code object and all inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from within(constant)


def test_every_module_is_there_as_source_and_as_byte_code(tmp_path: Path) -> None:
    built(ROOT, tmp_path / "a.pyz")
    with zipfile.ZipFile(tmp_path / "a.pyz") as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        made = archive.read("__main__.pyc")
        streams = {name: first.Contents(name, archive.read(name)) for name in STREAMS}
    source = streams[first.SOURCE]
    assert names == sorted({"__main__.py", "__main__.pyc", builder.KIT_STREAM, *STREAMS})
    assert streams[first.DATA].index.keys() == DATA
    carried: dict[str, CodeType] = {}
    for code in (streams[first.CODE], streams[first.MORE]):
        assert not carried.keys() & code.index.keys()
        carried.update((file, code.code(file, "unused")) for file in code.index)
    assert carried.keys() == source.index.keys() - builder.SELDOM
    assert source.index.keys() >= builder.SELDOM
    assert len(carried) > 80
    for file in carried:
        assert source.piece(file) == Path(ROOT, file).read_bytes()
    carried["qinglong_edge/__main__.py"] = marshal.loads(made[16:])  # noqa: S302
    for file, module in carried.items():
        assert module == bytecode.compiled(file, Path(ROOT, file).read_bytes())
        for inner in within(module):
            assert inner.co_filename == file
            assert {line for _, _, line in inner.co_lines()} == {inner.co_firstlineno}
            assert len(list(inner.co_positions())) >= len(inner.co_code) // 2
            assert inner.co_linetable is module.co_linetable


def test_byte_code_lacks_what_only_people_and_type_checkers_read() -> None:
    source = b'''"""Said of the module."""
from __future__ import annotations
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
else:
    kept = 1
class A:
    """Said of the class."""
    x: SomeType = 2
    if TYPE_CHECKING:
        from typing import Never
def f(a: SomeType, *, b: SomeType) -> SomeType:
    """Said of the function."""
    assert a, "never"
    c: SomeType = a
    return c
'''
    code = bytecode.compiled("file", source)
    told = " ".join(repr((inner.co_consts, inner.co_names)) for inner in within(code))
    for absent in ("Said", "SomeType", "never", "Any", "Never"):
        assert absent not in told
    module: dict[str, object] = {"__name__": "m"}
    exec(code, module)  # noqa: S102
    assert module["kept"] == 1
    made = module["A"]
    assert isinstance(made, type)
    assert list(made.__annotations__) == ["x"]


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return [[(a, b) for a in x] for b in {c for c in y}]\n",
        "class A:\n    class B:\n        def f(self):\n            return lambda: self.__class__\n",
        "def f(a, /, b, *c, d=1, **e):\n    def g():\n        nonlocal b\n        b = a, c, d, e\n",
        "def f():\n    global g\n    def g():\n        def h(): pass\n",
        "x = (1, 1.0, True, None, ..., b'', 'a', (2, ()), 1j)\ny = x in {1, 'b'}\n",
        "async def f():\n    async with a: yield [b async for b in c]\n",
        "def f():\n    try:\n        g()\n    except* OSError: pass\n",
        "\n".join(f"name_{number} = {number * 1000}" for number in range(400)),
    ],
)
def test_code_of_every_shape_is_read_back_and_has_the_same_bytes_whoever_shares_its_names(
    source: str,
) -> None:
    code = bytecode.compiled("a.py", source.encode())
    data = bytecode.dumped(code)
    assert marshal.loads(data) == code  # noqa: S302
    elsewhere = [compile(source, "a.py", "exec"), marshal.loads(data), source.split()]  # noqa: S302
    assert bytecode.dumped(bytecode.compiled("a.py", source.encode())) == data
    assert elsewhere


def test_code_that_is_not_read_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    code, other = (bytecode.compiled("a.py", text) for text in (b"x = 1\n", b"x = 1.0\n"))
    loads = marshal.loads
    monkeypatch.setattr(marshal, "loads", lambda data: loads(data) and other)
    with pytest.raises(ValueError, match=r"a\.py cannot be read back"):
        bytecode.dumped(code)


def test_the_release_gives_the_memory_back_at_once(tmp_path: Path) -> None:
    built(ROOT, tmp_path / "a.pyz")
    bundle = first.Bundle(str(tmp_path / "a.pyz"))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        assert bundle.find_spec("qinglong_edge.core") is not None
        held = tracemalloc.get_traced_memory()[0]
        assert bundle.release()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held > 250_000
    assert left < 10_000
    assert not bundle.release()


def test_a_carried_module_knows_what_and_where_it_is(tmp_path: Path) -> None:
    built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    archive = str(tmp_path / "a.pyz")
    bundle = first.Bundle(archive)
    for name, package in [("qinglong_edge", True), ("qinglong_edge.app.program", False)]:
        stem = f"{archive}/{name.replace('.', '/')}"
        spec = bundle.find_spec(name)
        assert spec is not None
        assert spec.name == name
        assert id(spec.loader) == id(bundle)
        assert spec.origin == (f"{stem}/__init__.py" if package else f"{stem}.py")
        assert spec.submodule_search_locations == ([stem] if package else None)
        assert spec.parent == (name if package else "qinglong_edge.app")
        module = ModuleType(name)
        module.__spec__ = spec
        bundle.exec_module(module)
        assert module.__file__ == spec.origin
    assert vars(module)["_PACKAGE"] == f"{archive}/qinglong_edge"


def test_what_is_not_carried_is_left_to_others(tmp_path: Path) -> None:
    built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    bundle = first.Bundle(str(tmp_path / "a.pyz"))
    for name in ("json", "qinglong_edge.none", "qinglong_edge.app.none", "qinglong_edges"):
        assert bundle.find_spec(name) is None
    assert bundle.get_data(f"{tmp_path}/a.pyz/qinglong_edge/process/wrapper.sh") == b"exit 0\n"
    for path in (f"{tmp_path}/a.pyz/qinglong_edge/none", f"{tmp_path}/none", "none"):
        with pytest.raises(OSError):
            bundle.get_data(path)
