"""What any store of sealed secrets promises (ADR-0024 section 3)."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.core import secret
from qinglong_edge.core.errors import Corrupt, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import BINDINGS_BYTES_MAX, SECRET_VALUE_BYTES_MAX
from qinglong_edge.core.secret import Envelope
from qinglong_edge.secret import seal
from qinglong_edge.secret.keyring import Keyring
from tests.storage.subject import CONNECTIONS, Connect, Subject, at_once, damage

OLD, NEW = "key-1", "key-2"
UNOPENED = ("absent", "row_corrupt", "secret_unavailable")
KEYS = {OLD: b"\x11" * 32, NEW: b"\x22" * 32}


def keyring(active: str = OLD) -> Keyring:
    return Keyring(active=active, keys=tuple(KEYS.items()))


def sealed(
    name: str = "TOKEN",
    version: int = 1,
    *,
    value: bytes = b"fixed-secret",
    mutation: str | None = None,
    key: str = OLD,
) -> Envelope:
    return seal.seal_secret(
        keyring(key),
        name=name,
        version=version,
        mutation_id=mutation or f"{name}-{version}",
        plaintext=value,
        created_at_ms=7,
    )


def append(subject: Subject, envelope: Envelope, expected: int | None = None) -> str:
    with subject.write():
        before = envelope.version - 1 if expected is None else expected
        return subject.secrets.append(envelope, before)


def copy(subject: Subject, envelope: Envelope) -> str:
    with subject.write():
        return subject.secrets.add_copy(envelope)


def retire(subject: Subject, key: str, known: tuple[str, ...] = (OLD, NEW)) -> int:
    with subject.write():
        return subject.secrets.retire(key, known)


def code(deed: Any, kind: type[Refused | Unavailable | Invalid] = Refused) -> str:
    with pytest.raises(kind) as error:
        deed()
    return error.value.code


def opened(subject: Subject) -> str:
    """What a launch would be given for the newest version, or why nothing."""
    try:
        (copies,) = subject.secrets.resolve((secret.make("TOKEN"),))
        return "absent" if copies is None else seal.open_envelope(keyring(), copies[0]).decode()
    except (Corrupt, Unavailable) as error:
        return error.code


class SecretContract:
    """To be inherited beside a fixture `connect`."""

    def test_newest_and_exact_versions_stand_where_they_were_asked(self, connect: Connect) -> None:
        """ADR-0024 verification 6: nothing stands for what is missing."""
        subject = connect()
        first, second, other = sealed(), sealed(version=2), sealed("OTHER")
        for envelope in (first, second, other):
            assert append(subject, envelope) == "inserted"
        asked = [("GONE", None), ("TOKEN", 1), ("OTHER", None), ("TOKEN", None), ("TOKEN", 3)]
        refs = [secret.make(name, version) for name, version in (*asked, ("TOKEN", 1))]
        assert connect().secrets.resolve(refs) == (
            None,
            (first,),
            (other,),
            (second,),
            None,
            (first,),
        )
        assert subject.secrets.resolve(()) == ()

    def test_a_version_follows_the_one_that_was_expected_only(self, connect: Connect) -> None:
        """ADR-0024 verification 6: compare-and-set."""
        subject = connect()
        assert subject.secrets.version("TOKEN") is None
        late = sealed(version=2, mutation="late")
        assert code(lambda: append(subject, late)) == "secret_version_conflict"
        append(subject, sealed())
        again = sealed(mutation="again")
        assert code(lambda: append(subject, again)) == "secret_version_conflict"
        assert code(lambda: append(subject, late, 0)) == "secret_version_conflict"
        assert code(lambda: append(subject, late, 2)) == "secret_version_conflict"
        assert append(subject, late) == "inserted"
        assert (subject.count("envelope"), subject.secrets.version("TOKEN")) == (2, 2)

    def test_a_repeated_mutation_keeps_what_it_made_first(self, connect: Connect) -> None:
        """ADR-0024 verification 6: idempotent, whatever nonce or time it is sealed with."""
        subject = connect()
        first = sealed(mutation="m")
        append(subject, first)
        again = sealed(mutation="m").replace(created_at_ms=99)
        assert again.nonce != first.nonce
        assert append(subject, again) == "idempotent"
        assert subject.secrets.find_mutation("TOKEN", "m") == (first,)
        assert subject.secrets.find_mutation("TOKEN", "n") == ()
        assert subject.secrets.find_mutation("OTHER", "m") == ()
        append(subject, sealed(version=2))
        assert append(subject, again) == "idempotent"
        other = sealed(version=3, mutation="m")
        assert code(lambda: append(subject, other)) == "secret_mutation_conflict"
        assert code(lambda: append(subject, again, 2)) == "secret_mutation_conflict"
        assert append(subject, sealed("OTHER", mutation="m")) == "inserted"
        assert subject.count("envelope") == 3

    def test_of_twelve_equal_mutations_one_inserts_and_eleven_find_it(
        self, connect: Connect
    ) -> None:
        """ADR-0024 verification 6."""
        answers = at_once(connect, lambda subject, _number: append(subject, sealed(mutation="m")))
        assert sorted(answers) == [*["idempotent"] * (CONNECTIONS - 1), "inserted"]
        assert connect().count("envelope") == 1

    def test_of_twelve_writers_of_one_version_one_wins(self, connect: Connect) -> None:
        """ADR-0024 verification 6: nobody's value is lost unseen."""

        def put(subject: Subject, number: int) -> str:
            try:
                return append(subject, sealed(mutation=f"m{number}"))
            except Refused as error:
                return error.code

        answers = sorted(at_once(connect, put))
        assert answers == ["inserted", *["secret_version_conflict"] * (CONNECTIONS - 1)]
        assert connect().count("envelope") == 1

    def test_a_foreign_project_is_refused_before_anything_is_read(self, connect: Connect) -> None:
        """ADR-0024 verification 6: a closed store could not even be asked."""
        subject = connect()
        append(subject, sealed())
        own = secret.make("TOKEN")
        foreign = own.replace(project="other")
        assert code(lambda: append(subject, sealed().replace(project="other")), Unavailable)
        assert subject.count("envelope") == 1
        subject.close()
        for refs in ((foreign,), (own, foreign)):
            assert code(lambda refs=refs: subject.secrets.resolve(refs), Unavailable) == (
                "secret_unavailable"
            )
        assert code(lambda: subject.secrets.resolve((own,)), Unavailable) == "storage_closed"

    @pytest.mark.parametrize(
        "field", [each for each in Envelope._fields if each != "created_at_ms"]
    )
    def test_one_changed_byte_of_any_column_opens_nothing(
        self, connect: Connect, field: str
    ) -> None:
        """ADR-0024 verification 6: absent, damaged, or it does not open; never another value."""
        subject = connect()
        append(subject, sealed(key=NEW))
        for place in range(17):
            damage(subject, f"envelope.{field}", place)
            assert opened(subject) in UNOPENED
            damage(subject, f"envelope.{field}", place)
        assert opened(subject) == "fixed-secret"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("nonce", b"x" * 11),
            ("auth_tag", b""),
            ("ciphertext", b"x" * (SECRET_VALUE_BYTES_MAX + 1)),
            ("key_id", "k/1"),
            ("mutation_id", "a\nb"),
            ("created_at_ms", -1),
        ],
    )
    def test_a_row_outside_its_form_is_damaged(
        self, connect: Connect, field: str, value: object
    ) -> None:
        subject = connect()
        append(subject, sealed())
        subject.alter(f"envelope.{field}", lambda _value: value)
        with pytest.raises(Corrupt) as error:
            subject.secrets.resolve((secret.make("TOKEN"),))
        assert error.value.code == "row_corrupt"

    def test_a_copy_under_another_key_is_the_same_version_and_comes_first(
        self, connect: Connect
    ) -> None:
        subject = connect()
        old = sealed()
        append(subject, old)
        new = seal.reseal(keyring(NEW), old)
        assert (copy(subject, new), copy(subject, new)) == ("inserted", "idempotent")
        assert subject.secrets.resolve((secret.make("TOKEN"),)) == ((new, old),)
        assert subject.secrets.find_mutation("TOKEN", old.mutation_id) == (new, old)
        assert append(subject, old) == "idempotent"
        assert (subject.secrets.usage(), subject.secrets.version("TOKEN")) == ({NEW: 1, OLD: 1}, 1)

    @pytest.mark.parametrize("change", [{"version": 2}, {"mutation_id": "x"}, {"name": "OTHER"}])
    def test_a_copy_of_what_is_not_there_is_refused(
        self, connect: Connect, change: dict[str, object]
    ) -> None:
        subject = connect()
        append(subject, sealed())
        strange = sealed(key=NEW).replace(**change)
        assert code(lambda: copy(subject, strange)) == "secret_unknown"
        assert subject.count("envelope") == 1

    @pytest.mark.parametrize("limit", [1, 2, 100])
    def test_re_encryption_goes_page_by_page_and_can_be_taken_up_again(
        self, connect: Connect, limit: int
    ) -> None:
        subject = connect()
        for name in ("A", "B", "C"):
            append(subject, sealed(name))
        append(subject, sealed("A", 2))
        append(subject, sealed("D", key=NEW))
        moved: list[tuple[str, int]] = []
        after, rounds = None, 0
        while rounds == 0 or after is not None:
            page, after = subject.secrets.page(after, limit, missing_key=NEW)
            assert len(page) <= limit
            for envelope in page:
                copy(subject, seal.reseal(keyring(NEW), envelope))
                moved.append((envelope.name, envelope.version))
            rounds += 1
            append(subject, sealed(f"E{rounds}", key=NEW))
        assert moved == [("A", 1), ("B", 1), ("C", 1), ("A", 2)]
        assert subject.secrets.page(None, limit, missing_key=NEW) == ([], None)
        whole, _next = subject.secrets.page(None, 100, missing_key=None)
        assert {envelope.key_id for envelope in whole} == {NEW}
        assert len(whole) == 5 + rounds

    def test_a_page_ends_once_it_is_large(self, connect: Connect) -> None:
        subject = connect()
        value = b"x" * SECRET_VALUE_BYTES_MAX
        for number in range(6):
            append(subject, sealed(f"S{number}", value=value))
        page, after = subject.secrets.page(None, 100, missing_key=NEW)
        assert len(page) == BINDINGS_BYTES_MAX // SECRET_VALUE_BYTES_MAX
        rest, end = subject.secrets.page(after, 100, missing_key=NEW)
        assert (len(rest), end) == (2, None)

    @pytest.mark.parametrize("after", ["", "x", "-1", "1.5", "9" * 19])
    def test_a_page_goes_on_only_from_where_one_ended(self, connect: Connect, after: str) -> None:
        subject = connect()
        deed = lambda: subject.secrets.page(after, 1, missing_key=None)  # noqa: E731
        assert code(deed, Invalid) == "cursor_invalid"

    def test_more_than_a_task_may_be_given_is_not_read_into_memory(self, connect: Connect) -> None:
        subject = connect()
        value = b"x" * SECRET_VALUE_BYTES_MAX
        append(subject, sealed("BIG", value=value))
        refs = [secret.make("BIG")] * 4
        assert len(subject.secrets.resolve(refs)) == 4
        assert code(lambda: subject.secrets.resolve([*refs, *refs]), Unavailable) == (
            "secret_unavailable"
        )

    def test_a_key_goes_only_once_every_version_has_another(self, connect: Connect) -> None:
        subject = connect()
        first, second = sealed(), sealed(version=2)
        append(subject, first)
        append(subject, second)
        copy(subject, seal.reseal(keyring(NEW), first))
        for known in ((OLD, NEW), (OLD,), (), ("other",)):
            assert code(lambda known=known: retire(subject, OLD, known)) == "keyring_key_needed"
        assert subject.count("envelope") == 3
        copy(subject, seal.reseal(keyring(NEW), second))
        assert code(lambda: retire(subject, OLD, (OLD,))) == "keyring_key_needed"
        assert (retire(subject, OLD), retire(subject, OLD)) == (2, 0)
        assert subject.secrets.usage() == {NEW: 2}
        assert code(lambda: retire(subject, NEW)) == "keyring_key_needed"

    def test_a_retired_key_seals_nothing_more(self, connect: Connect) -> None:
        """Who read the keyring before it changed cannot leave a value that nobody can open."""
        subject = connect()
        append(subject, sealed(key=NEW))
        retire(subject, OLD)
        late = sealed("LATE")
        assert code(lambda: append(subject, late)) == "keyring_key_retired"
        assert code(lambda: copy(subject, sealed())) == "keyring_key_retired"
        assert subject.secrets.version("LATE") is None
        assert append(subject, sealed("LATE", key=NEW)) == "inserted"

    def test_a_removed_secret_is_gone_and_its_versions_are_not_given_again(
        self, connect: Connect
    ) -> None:
        subject = connect()
        append(subject, sealed())
        append(subject, sealed(version=2))
        append(subject, sealed("OTHER"))

        def remove() -> None:
            with subject.write():
                subject.secrets.remove("TOKEN", 9)

        remove()
        assert code(remove) == "secret_unknown"
        refs = [secret.make("TOKEN"), secret.make("TOKEN", 1), secret.make("OTHER")]
        assert [each is None for each in subject.secrets.resolve(refs)] == [True, True, False]
        assert (subject.count("envelope"), subject.secrets.version("TOKEN")) == (1, 2)
        assert code(lambda: append(subject, sealed(mutation="new"))) == "secret_version_conflict"
        third = sealed(version=3)
        assert append(subject, third) == "inserted"
        assert subject.secrets.resolve(refs[:2]) == ((third,), None)

    def test_whether_there_is_a_ciphertext_is_known(self, connect: Connect) -> None:
        subject = connect()
        assert subject.secrets.usage() == {}
        append(subject, sealed())
        assert subject.secrets.usage() == {OLD: 1}
