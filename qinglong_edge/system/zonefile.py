"""Zone data of this machine, and the zone the machine itself is set to.

Owns the look into the zone database and the five places a router or a distribution may name its
zone in. Reads only, whole and bounded; zone files are symbolic links on many systems, so it is the
opened file that must be regular. Nothing here is remembered: a zone is captured when a trigger is
made and stored with it.
"""

from __future__ import annotations

import errno
import os
import stat

from qinglong_edge.core.errors import Invalid, Unavailable
from qinglong_edge.core.limits import TZIF_BYTES_MAX
from qinglong_edge.core.zone import open_zone, zone_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_ROOTS = (
    "/usr/share/zoneinfo",
    "/usr/lib/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/etc/zoneinfo",
)
_NAME_BYTES_MAX = 4_096  # /etc/TZ and /etc/timezone hold one line
_CONFIG_BYTES_MAX = 65_536
_LINKS_MAX = 8  # /etc/localtime -> /tmp/localtime -> the zone file, and room for more
_AMBIENT = ("localtime", "posixrules")  # names of whatever the machine is set to, not of a zone
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)


def read_tzif(key: str, roots: tuple[str, ...] = DEFAULT_ROOTS) -> bytes | None:
    """The zone data of a key from the first root that has it, or None.

    A key is letters, digits, `_`, `+`, `-` and single slashes, so it never leaves a root. Files
    over TZIF_BYTES_MAX or without the mark of zone data do not count. Unavailable zone_unreadable
    when the device fails.
    """
    name = zone_key(key)
    if name is None or name in _AMBIENT:
        return None
    for root in roots:
        data = _read(os.path.join(root, name), TZIF_BYTES_MAX)
        if data is not None and data.startswith(b"TZif"):
            return data
    return None


def router_zone(*, environment_tz: str | None, root: str = "/") -> str:
    """The zone this machine runs in, as a text that `open_zone` takes.

    The first usable one of: TZ as the caller found it, /etc/TZ (OpenWrt), the system section of
    UCI, /etc/timezone (Debian), the target of /etc/localtime, UTC. What is malformed, or names a
    zone without data, is passed over.
    """
    roots = tuple(os.path.join(root, each.lstrip("/")) for each in DEFAULT_ROOTS)
    for text in candidates(environment_tz, root):
        try:
            return open_zone(text, read_tzif(text, roots)).text
        except Invalid:
            continue
    return "UTC"


def candidates(environment_tz: str | None, root: str = "/") -> Iterator[str]:
    """What the machine says its zone is, best first; empty where a place says nothing."""
    if environment_tz:
        yield _below_zoneinfo(environment_tz) or environment_tz.removeprefix(":")
    yield _line(os.path.join(root, "etc/TZ"))
    yield from _uci_zones(os.path.join(root, "etc/config/system"))
    yield _line(os.path.join(root, "etc/timezone"))
    yield _localtime(root)


def _line(path: str) -> str:
    """The first line of a small text file, without blanks around it; empty if there is none."""
    data = _read(path, _NAME_BYTES_MAX) or b""
    return data.decode("ascii", "replace").partition("\n")[0].strip()


def _uci_zones(path: str) -> Iterator[str]:
    """The zone name, then the POSIX string, of the first system section."""
    data = _read(path, _CONFIG_BYTES_MAX) or b""
    found: dict[str, str] = {}
    sections = 0
    inside = False
    for line in data.decode("ascii", "replace").splitlines():
        word, name, value = _uci_line(line)
        if word == "config":
            inside = name == "system" and sections == 0
            sections += name == "system"
        elif word == "option" and inside:
            found[name] = value
    yield found.get("zonename", "")
    yield found.get("timezone", "")


def _uci_line(line: str) -> tuple[str, str, str]:
    """Word, name and value (empty if there is none) of a line; empty texts if it is no such line.

    The value is one word, or anything between a pair of quotes of the same kind.
    """
    word, name, value = (*line.strip().split(None, 2), "", "", "")[:3]
    quote = value[:1]
    if quote in ("'", '"') and value.find(quote, 1) == len(value) - 1 > 0:
        value = value[1:-1]
    elif not name or len(value.split()) > 1:
        return "", "", ""
    return word, name, value


def _localtime(root: str) -> str:
    """The key below a zone database that /etc/localtime leads to; empty if it leads elsewhere."""
    path = os.path.join(root, "etc/localtime")
    for _hop in range(_LINKS_MAX):
        try:
            target = os.readlink(path)
        except OSError:  # not a link, or not there: nothing names the zone
            break
        key = _below_zoneinfo(target)
        if key:
            return key
        path = os.path.join(os.path.dirname(path), target)
        if target.startswith("/"):
            path = os.path.join(root, target.lstrip("/"))
    return ""


def _below_zoneinfo(path: str) -> str:
    return path.partition("/zoneinfo/")[2]


def _read(path: str, bytes_max: int) -> bytes | None:
    """The bytes of a regular file of at most `bytes_max`, or None if there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise _unreadable(error) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = bytearray()
        while len(data) <= bytes_max:
            piece = os.read(fd, bytes_max + 1 - len(data))
            if not piece:
                return bytes(data)
            data += piece
    except OSError as error:
        raise _unreadable(error) from None
    finally:
        os.close(fd)
    return None


def _unreadable(error: OSError) -> Unavailable:
    name = errno.errorcode.get(error.errno or 0, "EIO")
    return Unavailable("zone_unreadable", "The zone data cannot be read.", errno=name)
