"""JSON-RPC 2.0, one object a line: the one way to the state.

Owns the envelope. A method answers at once or with a `Pending` that is settled later; every failure
becomes an error object whose `data` carries the stable code, the facts and the exit status. An
unexpected exception is a `bug`: its kind is told, its text is not.
"""

from __future__ import annotations

from qinglong_edge.core.canonical import decode, plain_text
from qinglong_edge.core.errors import EXIT_BUG, EdgeError, Invalid
from qinglong_edge.core.limits import REQUEST_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_INVALID_REQUEST = -32600
_METHOD_NOT_FOUND = -32601
_INVALID_PARAMS = -32602
_FAILED = -32000
_BUG = -32603


class Peer:
    """Who asks: the uid the kernel saw, and through which front end."""

    __slots__ = ("front_end", "uid")

    def __init__(self, uid: int, front_end: str) -> None:
        self.uid = uid
        self.front_end = front_end

    @property
    def actor(self) -> str:
        """The name under which a change is recorded."""
        return f"user:{self.uid}"


def _nothing() -> None:
    return None


class Pending:
    """An answer that comes later; settled once, told to one listener."""

    def __init__(self) -> None:
        self._outcome: tuple[object, BaseException | None] | None = None
        self._listener: Callable[[object, BaseException | None], None] | None = None
        self.on_abandoned: Callable[[], None] = _nothing

    def settle(self, result: object = None, error: BaseException | None = None) -> None:
        """Give the answer; later ones are ignored."""
        if self._outcome is None:
            self._outcome = (result, error)
            listener, self._listener = self._listener, None
            # Whoever was to be told holds this answer: a circle would stay until a collector comes.
            self.on_abandoned = _nothing
            if listener is not None:
                listener(result, error)

    def listen(self, listener: Callable[[object, BaseException | None], None]) -> None:
        """Be told, now if it is settled already."""
        if self._outcome is not None:
            listener(*self._outcome)
        else:
            self._listener = listener

    @property
    def settled(self) -> bool:
        """True once there is an answer."""
        return self._outcome is not None


class Call:
    """One decoded request."""

    __slots__ = ("id", "method", "params", "state")

    def __init__(
        self, call_id: object, method: str, params: dict[str, object], state: object
    ) -> None:
        self.id = call_id
        self.method = method
        self.params = params
        self.state = state


def read_call(line: bytes) -> Call:
    """Decode a request line; `Invalid` (`request_invalid` or a JSON code) otherwise."""
    document = decode(line, bytes_max=REQUEST_BYTES_MAX)
    if not isinstance(document, dict) or document.get("jsonrpc") != "2.0":
        raise Invalid("request_invalid", "A request is not a JSON-RPC 2.0 object.")
    method, params = document.get("method"), document.get("params", {})
    if not isinstance(method, str) or not isinstance(params, dict):
        raise Invalid("request_invalid", "A request needs a method and named parameters.")
    call_id = document.get("id")
    if call_id is not None and not isinstance(call_id, (int, str)):
        raise Invalid("request_invalid", "A request's id is not a number or a text.")
    return Call(call_id, method, params, document.get("state"))


def _line(document: dict[str, object]) -> bytes:
    return plain_text(document).encode("utf-8", "replace") + b"\n"


def call_line(
    call_id: int, method: str, params: dict[str, object], *, state: str | None = None
) -> bytes:
    """A request line; `state` names the state that is meant, where that is known."""
    named = {} if state is None else {"state": state}
    return _line({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params, **named})


def result_line(call_id: object, result: object) -> bytes:
    """An answer line."""
    return _line({"jsonrpc": "2.0", "id": call_id, "result": result})


def error_line(call_id: object, error: BaseException) -> bytes:
    """An error line; a `bug` names the exception's kind only."""
    if isinstance(error, EdgeError):
        data = {**error.document(), "exit": error.exit_status}
        number = {
            "method_unknown": _METHOD_NOT_FOUND,
            "request_invalid": _INVALID_REQUEST,
            "param_invalid": _INVALID_PARAMS,
        }.get(error.code, _FAILED)
        message = error.message
    else:
        message = "An unexpected error; this is a bug."
        data = {
            "code": "bug",
            "message": message,
            "facts": {"kind": type(error).__name__},
            "exit": EXIT_BUG,
        }
        number = _BUG
    return _line(
        {
            "jsonrpc": "2.0",
            "id": call_id,
            "error": {"code": number, "message": message, "data": data},
        }
    )
