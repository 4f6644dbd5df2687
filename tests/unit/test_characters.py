"""The grammars of the resident modules, each against the regular expression that says the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core import canonical, cron, fact, handle, ids, recipe, secret, trigger, zone
from qinglong_edge.core.characters import (
    ALPHANUMERIC,
    DIGITS,
    HEX,
    LETTERS,
    consists_of,
    has_control,
    is_number,
)
from qinglong_edge.core.errors import EdgeError, Invalid
from qinglong_edge.core.limits import ZONE_TEXT_CHARACTERS_MAX
from qinglong_edge.core.recipe import CONTEXT_REF_PREFIX
from qinglong_edge.system import zonefile

FUZZ = settings(max_examples=150, deadline=None, derandomize=True, database=None)
ODD = (
    "\0\n\r\t \x1f\x7f\x80\u0665\uff15\u00aa\u0130\u212a\ufffd\ud800"  # what classes may differ on
)

_ANY = "[A-Za-z0-9_-]"
BASE64URL = rf"(?:{_ANY}{{4}})*(?:{_ANY}[AQgw]|{_ANY}{{2}}[AEIMQUYcgkosw048])?"
KEY = r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*"
_NAME = r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)"
_CLOCK = r"(?::[0-5][0-9]){0,2}"
_OFFSET = rf"[+-]?(?:2[0-3]|[01]?[0-9]){_CLOCK}"
_DAY = r"(?:M(?:1[0-2]|0?[1-9])\.[1-5]\.[0-6]|J[0-9]{1,3})"
_DATE = rf"{_DAY}(?:/[+-]?[0-9]{{1,2}}{_CLOCK})?"
POSIX = (
    rf"(?!{_NAME}-23[0-9:]*{_NAME}(?:,|$))"
    rf"{_NAME}{_OFFSET}(?:(?P<daylight>{_NAME})(?:{_OFFSET})?(?P<dates>,{_DATE},{_DATE})?)?"
)


def accepted(call: Callable[[str], object]) -> Callable[[str], bool]:
    """Whether a call takes a text, or answers it with a typed error."""

    def asked(text: str) -> bool:
        try:
            call(text)
        except EdgeError:
            return False
        return True

    return asked


def stat_number(text: str) -> bool:
    """Whether a number of a stat line may read so."""
    try:
        word = text.encode("ascii")
    except UnicodeEncodeError:
        return False
    if word.split() != [word]:
        return False
    line = b"7 (x) S 1 %s 1 " % word + b"0 " * 15 + b"9"
    return accepted(lambda _text: handle.parse_stat(line, 7))(text)


def zone_key(text: str) -> bool:
    """Whether a zone key may read so; its length is bounded besides, a blank is an underscore."""
    if len(text) > ZONE_TEXT_CHARACTERS_MAX or " " in text:
        return re.fullmatch(KEY, text) is not None
    return zone.zone_key(text) == text


def handle_of(*, handle_id: str = "h", boot_id: str = "b") -> handle.Handle:
    return handle.Handle(handle_id=handle_id, boot_id=boot_id, pid=1, pgid=1, start_ticks=1)


def start_ticks(text: str) -> bool:
    """Whether a handle may carry its start time so."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    document = {"v": 1, "h": "h", "b": "b", "p": 1, "g": 1, "s": text}
    encoded = "ql3lp1." + canonical.base64url(canonical.encode(document))
    return handle.decode(encoded) is not None


GRAMMARS: dict[str, tuple[str, str, Callable[[str], bool]]] = {
    "number": (r"[0-9]+", DIGITS, is_number),
    "letters": (r"[A-Za-z]*", LETTERS, lambda text: consists_of(text, LETTERS)),
    "alphanumeric": (r"[A-Za-z0-9]*", ALPHANUMERIC, lambda text: consists_of(text, ALPHANUMERIC)),
    "control": (r"[^\x00-\x1f\x7f]*", "ab \u4e2d", lambda text: not has_control(text)),
    "base64url": (BASE64URL, "AQgw_-+/=", accepted(canonical.from_base64url)),
    "portable": (r"[A-Za-z0-9][A-Za-z0-9._:-]{0,35}", "aZ09._:-/", ids.is_portable_id),
    "portable_field": (
        r"[A-Za-z0-9][A-Za-z0-9._:-]{0,35}",
        "aZ09._:-/",
        accepted(lambda text: ids.portable_id(text)),
    ),
    "token": (r"[A-Za-z0-9_-]{32,128}", "aZ09_-.", ids.is_callback_token),
    "uuid7": (
        r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
        "0789abcfgA-",
        accepted(lambda text: ids.uuid7(text)),
    ),
    "log_id": (r"(?:local|wlog)-[0-9a-f]{30}", HEX + "-low", fact.is_log_artifact_id),
    "log_shard": (r"(?:local|wlog)-[0-9a-f]{30}", HEX + "-low", accepted(fact.log_shard)),
    "context_ref": (
        re.escape(CONTEXT_REF_PREFIX) + r"[0-9a-f]{64}",
        HEX + ":",
        recipe.is_context_ref,
    ),
    "binding": (
        r"(?!(?:_|IFS|PWD)$|QL3_)[A-Za-z_][A-Za-z0-9_]{0,127}",
        "aZ09_-",
        accepted(recipe.check_name),
    ),
    "key_id": (r"[A-Za-z0-9._-]{1,128}", "aZ09._-/", secret.is_key_id),
    "boot_id": (
        r"[A-Za-z0-9-]{1,64}",
        "aZ09-_",
        accepted(lambda text: handle_of(boot_id=text)),
    ),
    "handle_id": (
        r"[^\0\ud800-\udfff]{1,64}",  # longer ones meet the bound of 512 bytes
        "a\u00e9",
        accepted(lambda text: handle_of(handle_id=text[:65])),
    ),
    "start_ticks": (r"[1-9][0-9]{0,31}", DIGITS, start_ticks),
    "stat_number": (r"-?[0-9]{1,20}", DIGITS + "-+", stat_number),
    "duration": (
        "0|(?=.)" + "".join(f"(?:[0-9]{{1,16}}{unit})?" for unit in ("d", "h", "m", "s", "ms")),
        "059dhms",
        accepted(lambda text: trigger.parse_duration_ms(text, maximum=10**30)),
    ),
    "zone_key": (KEY, "aZ09_+-/.", zone_key),
    "zone_start": (
        r"(?:<|[A-Za-z]{3,}[+-]?[0-9])[\s\S]*",
        "ab<>+-09",
        zone._starts_like_posix,
    ),
}


def near(pattern: str, alphabet: str) -> st.SearchStrategy[str]:
    """Texts that a pattern takes, those with a character changed, and others of its alphabet."""
    taken = st.from_regex(re.compile(pattern), fullmatch=True)
    odd = st.sampled_from(alphabet + ODD)
    changed = st.builds(
        lambda text, at, put, cut: (
            text[: at % (len(text) + 1)] + put + text[at % (len(text) + 1) + cut :]
        ),
        taken,
        st.integers(0, 200),
        st.just("") | odd,
        st.integers(0, 2),
    )
    return taken | changed | st.text(odd, max_size=12)


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_takes_what_its_regular_expression_takes(name: str) -> None:
    pattern, alphabet, takes = GRAMMARS[name]

    @FUZZ
    @given(near(pattern, alphabet))
    def compare(text: str) -> None:
        assert takes(text) == (re.fullmatch(pattern, text) is not None), repr(text)

    compare()


@FUZZ
@given(near(POSIX, "Aaz<>+-:,/.0123569MJ"))
def test_a_posix_zone_has_the_grammar_of_its_regular_expression(text: str) -> None:
    """What the expression takes is still refused for dates too near to New Year or each other."""
    taken, match = zone._posix(text) is not None, re.fullmatch(POSIX, text)
    if taken:
        assert match is not None
        assert (match["daylight"] is None) == (match["dates"] is None)
    elif match is not None and (match["daylight"] is None or match["dates"] is not None):
        assert len(text) > ZONE_TEXT_CHARACTERS_MAX or match["dates"] is not None


@FUZZ
@given(st.from_regex(re.compile(_DATE), fullmatch=True) | near(_DATE, "MJ0123569./:+-"))
def test_a_date_of_a_zone_has_the_grammar_of_its_regular_expression(text: str) -> None:
    expected = re.fullmatch(_DATE, text) is not None and "," not in text
    assert zone._is_date(text) == expected


UCI = r"""\s*(config|option)\s+(\S+)(?:\s+(?:'([^']*)'|"([^"]*)"|(\S+)))?\s*"""


@FUZZ
@given(
    near(UCI, "config'\" ")
    | st.lists(st.sampled_from(["config", "option", "a", "'", '"', " ", "\t"])).map("".join)
)
def test_a_line_of_uci_has_the_grammar_of_its_regular_expression(text: str) -> None:
    match = re.fullmatch(UCI, text)
    word, name, *quoted = match.groups() if match else ("", "")
    expected = word, name, next((value for value in quoted if value is not None), "")
    found = zonefile._uci_line(text)
    assert (found if found[0] in ("config", "option") else ("", "", "")) == expected


ITEM = r"(?:(\*)|([0-9]+|[A-Z]{3})(?:-([0-9]+|[A-Z]{3}))?)(?:/([0-9]+))?"
NTH = r"([0-9]+|[A-Z]{3})(?:#([0-9]+)|L)"
FOREIGN = {
    "W": r"[0-9]*W|[0-9]+LW|LW",
    "H": r"H(?:\([0-9-]*\))?(?:/[0-9]+)?",
    "L-n": r"L-[0-9]+",
    "L": r"L",
    "~": r"[0-9]*~[0-9]*(?:/[0-9]+)?",
}


@FUZZ
@given(
    near("|".join((ITEM, NTH, *FOREIGN.values())), "*0157SUNLWH#~()/-").filter(str.isascii),
    st.sampled_from(cron._FIELDS),
)
def test_an_item_of_cron_has_the_grammar_of_its_regular_expression(
    text: str, field: cron._Field
) -> None:
    item = text.upper()
    try:
        cron._parse_item(field, item)
        told, what = "taken", None
    except Invalid as error:
        told, what = error.code, error.facts.get("what")
    weekday = field is cron._WEEKDAY
    if re.fullmatch(ITEM, item) or (weekday and re.fullmatch(NTH, item)):
        assert told in {"taken", "cron_range", "cron_step", "cron_field"}
    elif field is cron._DAY and item == "L":
        assert told == "taken"
    else:
        foreign = [mark for mark, pattern in FOREIGN.items() if re.fullmatch(pattern, item)]
        assert (told, what) == (
            ("cron_unsupported", foreign[0]) if foreign else ("cron_field", None)
        )
