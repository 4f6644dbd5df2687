"""Files: private directories, durable publication, checked opens.

Owns the checked opens and the durable changes that the runtime's own files go through. Promises:

* `publish` makes a file visible only when its bytes are on the device, never overwrites one, and
  returns only when its name is there too: temporary, fsync, hard link, fsync of the directory.
* `replace` swaps a small file whole: after a cut there is the old one or the new one.
* Opens refuse symbolic links; a directory of ours is a real one, of our own uid, mode 0700.
* What is open to others is closed to them only where all that it holds is ours.
* Nothing here lists a directory, but for that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from qinglong_edge.core.errors import Corrupt, Unavailable
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Names = Callable[[str], bool]

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
VOLATILE = frozenset({"tmpfs", "ramfs"})  # gone with a reboot
_NOT_REGULAR = (errno.ELOOP, errno.EISDIR, errno.ENXIO)  # a link, a directory, a socket or FIFO


class Space(Record):
    """Free room of a file system; `inodes` is None where it does not count them (jffs2, ubifs)."""

    bytes: int
    inodes: int | None
    size: int = 0  # all of it, free or not


def storage_error(error: OSError, what: str) -> Unavailable:
    """The typed error of a failed file effect; the path stays out of it."""
    name = errno.errorcode.get(error.errno or 0, "EIO")
    if error.errno in _NO_SPACE:
        return Unavailable("no_space", f"There is no room to write the {what}.", errno=name)
    if error.errno == errno.EROFS:
        return Unavailable("state_read_only", f"The file system of the {what} is read-only.")
    return Unavailable("storage_unavailable", f"The {what} cannot be reached.", errno=name)


class Files:
    """The file effects of the machine; tests replace or count its methods."""

    def make_private_directory(self, path: str, ours: Names | None = None) -> tuple[int, int]:
        """Make a directory 0700 if it is missing, and check it in any case; device and inode."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        else:
            os.chmod(path, 0o700)  # whatever the umask said
            self.sync_directory(os.path.dirname(path))
        return self.check_private_directory(path, ours)

    def check_private_directory(
        self, path: str, ours: Names | None = None, *, repair: bool = True
    ) -> tuple[int, int]:
        """Refuse anything but a real directory of our own uid that only we can enter.

        Another mode than 0700 is set to it, or refused without `repair`. With `ours` it is refused
        as well (Corrupt `directory_shared`) where it holds any other name: /tmp, a disk's root, or
        /run closed to all others would be the end of what they do there. Device and inode.
        """
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise Corrupt("directory_unsafe", "A private directory is not a directory.")
        if found.st_uid != os.geteuid():
            raise Corrupt("directory_foreign", "A private directory belongs to another user.")
        identity = found.st_dev, found.st_ino
        if found.st_mode & 0o777 != 0o700:
            if repair:
                if ours is not None and not all(map(ours, os.listdir(path))):
                    raise Corrupt(
                        "directory_shared",
                        "A directory that others may enter holds what is not ours; name another.",
                    )
                os.chmod(path, 0o700)
            if not repair or self.check_private_directory(path, repair=False) != identity:
                raise Corrupt("directory_unsafe", "A private directory is open to others.")
        return identity

    def sync_directory(self, path: str) -> None:
        """Make the names of a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_private(self, path: str, bytes_max: int) -> bytes | None:
        """The bytes of a regular file, or None if it is missing.

        One byte more than `bytes_max` is read, so that a caller sees an oversize file as such.
        A symbolic link or another kind of file is `Corrupt`.
        """
        fd = self._open_regular(path)
        if fd is None:
            return None
        try:
            return self._read_up_to(fd, bytes_max + 1)
        finally:
            os.close(fd)

    def read_own(self, path: str, bytes_max: int, *, twin: str = "") -> bytes | None:
        """As `read_private`, of a file that nobody else can reach (`open_own`), whole."""
        fd = self.open_own(path, twin=twin)
        if fd is None:
            return None
        try:
            size = os.fstat(fd).st_size
            data = self._read_up_to(fd, bytes_max + 1)
        finally:
            os.close(fd)
        if len(data) != min(size, bytes_max + 1):
            raise Corrupt("file_unsafe", "A private file changed while it was read.")
        return data

    def same_file(self, path: str, other: str) -> bool:
        """True if both are names of one file."""
        try:
            return os.path.samestat(os.lstat(path), os.lstat(other))
        except FileNotFoundError:
            return False

    def read_range(self, path: str, offset: int, length: int) -> tuple[bytes, int, int] | None:
        """(bytes, start, size) of a file that nobody else can reach; None if it is missing.

        Up to `length` bytes from `offset`, which counts from the end if it is negative. The size
        is taken once: what is appended meanwhile stays out, a file that shrinks is `Corrupt`.
        """
        fd = self.open_own(path)
        if fd is None:
            return None
        try:
            size = os.fstat(fd).st_size
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            data = b""
            left = min(length, size - start)
            while len(data) < left and (part := os.pread(fd, left - len(data), start + len(data))):
                data += part
            if len(data) < left or os.fstat(fd).st_size < size:
                raise Corrupt("file_unsafe", "A private file changed while it was read.")
        finally:
            os.close(fd)
        return data, start, size

    def size(self, path: str) -> int | None:
        """A file's size in bytes, or None if it is missing."""
        try:
            return os.lstat(path).st_size
        except FileNotFoundError:
            return None

    def sync(self, path: str) -> int | None:
        """Make a file's bytes durable; how many there are, or None if it is missing."""
        fd = self._open_regular(path)
        if fd is None:
            return None
        try:
            os.fdatasync(fd)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        """True if the name is there, whatever it is."""
        return self.size(path) is not None

    def publish(self, temporary: str, target: str, data: bytes) -> bool:
        """Make `data` visible as `target`; False if the name is taken (its bytes are kept)."""
        try:
            self._write_new(temporary, data)
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            self.sync_directory(os.path.dirname(target))
            return True
        finally:
            self.remove(temporary)

    def replace(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Swap a small file whole."""
        temporary = f"{path}.new"
        self.remove(temporary)
        try:
            self._write_new(temporary, data, mode=mode)
            os.rename(temporary, path)
        except BaseException:
            self.remove(temporary)  # a full disk does not keep half a file
            raise
        self.sync_directory(os.path.dirname(path))

    def link(self, source: str, target: str) -> bool:
        """Give a file a second name; False if the source is missing, an existing target is kept."""
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            return True
        except FileNotFoundError:
            return False
        return True

    def rename(self, source: str, target: str) -> None:
        """Give a file its name; the caller knows that there is none of it yet."""
        os.rename(source, target)

    def remove(self, path: str) -> bool:
        """Remove a name; False if it was not there."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def open_append(self, path: str) -> int:
        """Open or create a private file for appending, checked after the open.

        Regular, own uid, one link, mode 0600, and the name still leads to this very file; the
        directory is checked by the caller. `Corrupt` otherwise, and nothing is changed.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path, flags | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno in _NOT_REGULAR:
                raise Corrupt("file_unsafe", "A private file is not a regular file.") from None
            raise
        try:
            self._check_own(path, fd)
            os.fchmod(fd, 0o600)
            os.set_blocking(fd, True)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_own(self, path: str, *, twin: str = "") -> int | None:
        """Open for reading what nobody else can reach; None if it is missing, `Corrupt` if unsafe.

        Own uid, no bit for others, one link, and the name still leads to this very file. A second
        link may be `twin`: the temporary name that a publication leaves when it is cut short.
        """
        fd = self._open_regular(path)
        if fd is not None:
            try:
                if self._check_own(path, fd, twin).st_mode & 0o077:
                    raise Corrupt("file_exposed", "A private file is open to others.")
            except BaseException:
                os.close(fd)
                raise
        return fd

    def descriptor_size(self, fd: int) -> int:
        """The size of an open file in bytes."""
        return os.fstat(fd).st_size

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        os.close(fd)

    def space(self, path: str) -> Space:
        """Free room for an ordinary user on the file system of `path`."""
        found = os.statvfs(path)
        return Space(
            bytes=found.f_bavail * found.f_frsize,
            inodes=None if found.f_files == 0 else found.f_favail,
            size=found.f_blocks * found.f_frsize,
        )

    def lock_owner(self, path: str) -> int | None:
        """Take the owner lock for life; None while another process holds it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def filesystem(self, path: str) -> str | None:
        """The kind of file system under a path as the mount table names it, or None.

        Of an overlay whose upper layer is in memory (a router's before its first boot is over, or
        in failsafe mode) the kind of that layer.
        """
        kind, options = self._mounted(path)
        upper = next((each[9:] for each in options.split(",") if each.startswith("upperdir=")), "")
        if kind == "overlay" and os.path.isdir(upper):
            below, _options = self._mounted(upper)
            return below if below in VOLATILE else kind
        return kind

    def _mounted(self, path: str) -> tuple[str | None, str]:
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
                for line in table:
                    fields = line.split()
                    if fields[2] == wanted:
                        kind = fields.index("-") + 1
                        return fields[kind], fields[kind + 2]
        except (OSError, ValueError, IndexError):
            return None, ""
        return None, ""

    def _check_own(self, path: str, fd: int, twin: str = "") -> os.stat_result:
        found = os.fstat(fd)
        twins = int(bool(twin) and self.same_file(path, twin))
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 + twins:
            raise Corrupt("file_unsafe", "A private file has another name or kind.")
        if found.st_uid != os.geteuid():
            raise Corrupt("file_foreign", "A private file belongs to another user.")
        if not os.path.samestat(os.lstat(path), found):
            raise Corrupt("file_unsafe", "A private file was replaced while it was opened.")
        return found

    def _open_regular(self, path: str) -> int | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NOT_REGULAR:
                raise Corrupt("file_unsafe", "A private file is not a regular file.") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Corrupt("file_unsafe", "A private file is not a regular file.")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _write_new(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, mode)
        try:
            os.fchmod(fd, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def _read_up_to(self, fd: int, bytes_max: int) -> bytes:
        parts = []
        left = bytes_max
        while left > 0:
            part = os.read(fd, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
