"""Sealed secrets as rows of SQLite: who binds them, bounds, failures in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.core import secret
from qinglong_edge.core.audit import Audit
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.recipe import Recipe, from_bindings, public
from qinglong_edge.core.recipe import secret as bound
from qinglong_edge.core.secret import Envelope
from qinglong_edge.core.task import Task
from qinglong_edge.storage.store import Store
from tests.storage.building import add_task, append
from tests.storage.failing import every_statement_fails

VERSION_MAX = 2**31 - 1


def envelope(
    name: str = "TOKEN", version: int = 1, *, key: str = "key-1", mutation: str | None = None
) -> Envelope:
    return Envelope(
        project=secret.PROJECT,
        name=name,
        version=version,
        mutation_id=mutation or f"{name}-{version}",
        key_id=key,
        nonce=b"n" * 12,
        ciphertext=b"sealed",
        auth_tag=b"t" * 16,
        created_at_ms=version,
    )


def line(action: str = "secret.append") -> Audit:
    return Audit(
        at_ms=1, uid=0, front_end="cli", mutation_id="m", action=action, target="TOKEN", version=1
    )


def put(store: Store, *envelopes: Envelope) -> None:
    with store.database.write():
        for each in envelopes:
            store.secrets.append(each, each.version - 1)


def binding(*names: str) -> Recipe:
    return from_bindings(
        [
            public("A", "1"),
            *(bound(f"V{n}", secret.make(each).text) for n, each in enumerate(names)),
        ]
    )


def test_a_list_names_newest_version_its_newest_key_and_who_binds_it(store: Store) -> None:
    put(store, envelope(), envelope(version=2), envelope("OTHER"), envelope("GONE"))
    with store.database.write():
        store.secrets.add_copy(envelope(version=2, key="key-2"))
        store.secrets.remove("GONE", 5)
    add_task(store, "b", recipe=binding("TOKEN"))
    add_task(store, "a", recipe=binding("OTHER", "TOKEN"))
    old = add_task(store, "c", recipe=binding("OTHER"))
    with store.database.write():
        append(store, old)
    with store.database.write():
        store.tasks.remove(add_task_inside(store, "d"), 9)
    assert store.secrets.listing() == [
        {
            "secret": "OTHER",
            "version": 1,
            "key": "key-1",
            "created_at_ms": 1,
            "bound_by": ["a"],
        },
        {
            "secret": "TOKEN",
            "version": 2,
            "key": "key-2",
            "created_at_ms": 2,
            "bound_by": ["a", "b"],
        },
    ]


def add_task_inside(store: Store, name: str) -> Task:
    return append(store, store.tasks.insert(name, 1), recipe=binding("TOKEN"))


def test_a_secret_that_a_task_binds_is_not_removed(store: Store) -> None:
    put(store, envelope())
    task = add_task(store, recipe=binding("TOKEN"))
    for _time in range(2):
        with pytest.raises(Refused) as error, store.database.write():
            store.secrets.remove("TOKEN", 5)
        assert error.value.code == "secret_bound"
    assert store.secrets.version("TOKEN") == 1
    with store.database.write():
        append(store, task)
        store.secrets.remove("TOKEN", 5)
    assert store.secrets.listing() == []


def test_a_damaged_recipe_hides_no_secret(store: Store) -> None:
    put(store, envelope())
    add_task(store, recipe=binding("TOKEN"))
    with store.database.write():
        store.database.execute("UPDATE recipe SET body = body || ' '")
    (found,) = store.secrets.listing()
    assert (found["secret"], found["bound_by"]) == ("TOKEN", [])


def test_the_newest_version_that_can_be_is_the_last(store: Store) -> None:
    put(store, envelope())
    with store.database.write():
        store.database.execute("UPDATE secret SET version = ?", (VERSION_MAX - 1,))
    put(store, envelope(version=VERSION_MAX))
    assert store.secrets.version("TOKEN") == VERSION_MAX


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("secret", "version", 0),
        ("secret", "version", VERSION_MAX + 1),
        ("secret", "name", ""),
        ("secret_envelope", "nonce", b"x" * 11),
        ("secret_envelope", "auth_tag", b"x" * 17),
        ("secret_envelope", "ciphertext", b"x" * 65_537),
        ("secret_envelope", "ciphertext", "text"),
        ("secret_envelope", "mutation_id", "x" * 65),
        ("secret_envelope", "key_id", ""),
        ("secret_envelope", "secret_number", 9),
    ],
)
def test_the_schema_refuses_what_no_envelope_is(
    store: Store, table: str, column: str, value: object
) -> None:
    put(store, envelope())
    with pytest.raises(EdgeError), store.database.write():
        store.database.execute(f"UPDATE {table} SET {column} = ?", (value,))


def test_one_version_has_one_envelope_for_a_key(store: Store) -> None:
    put(store, envelope(), envelope(version=2))
    with pytest.raises(EdgeError), store.database.write():
        store.database.execute("UPDATE secret_envelope SET version = 1")
    with pytest.raises(EdgeError), store.database.write():
        store.database.execute("UPDATE secret_envelope SET mutation_id = 'm'")


def _append(store: Store) -> None:
    store.secrets.append(envelope("NEW"), 0)


def _follow(store: Store) -> None:
    store.secrets.append(envelope("A", 2), 1)


def _copy(store: Store) -> None:
    store.secrets.add_copy(envelope("A", key="key-2"))


def _retire(store: Store) -> None:
    store.secrets.add_copy(envelope("A", key="key-2"))
    assert store.secrets.retire("key-1", ("key-1", "key-2")) == 1


def _remove(store: Store) -> None:
    store.secrets.remove("A", 9)


@pytest.mark.parametrize("deed", [_append, _follow, _copy, _retire, _remove])
def test_a_change_that_fails_anywhere_leaves_nothing_of_it_nor_of_its_audit(
    folder: Path, store: Store, deed: Callable[[Store], None]
) -> None:
    """ADR-0024 verification 6: envelope and audit line are one transaction."""
    put(store, envelope("A"))

    def change() -> None:
        with store.database.write():
            deed(store)
            store.audit.record(line())

    assert every_statement_fails(folder, store, change) >= 4  # BEGIN, change, audit, COMMIT
    (entries, _next) = store.audit.page(None, 9)
    assert [entry.action for entry in entries] == ["secret.append"]


def test_a_page_of_the_oldest_key_needs_no_scan_of_ciphertexts(store: Store) -> None:
    for statement in (
        "SELECT key_id, count(*) FROM secret_envelope GROUP BY key_id",
        "DELETE FROM secret_envelope WHERE key_id = 'x'",
    ):
        (step,) = [str(row[3]) for row in store.database.rows(f"EXPLAIN QUERY PLAN {statement}")]
        assert "INDEX secret_envelope_key" in step


def test_after_close_every_call_says_that_the_storage_is_closed(store: Store) -> None:
    put(store, envelope())
    store.close()
    secrets = store.secrets
    calls: list[Callable[[], object]] = [
        lambda: secrets.append(envelope(), 0),
        lambda: secrets.add_copy(envelope()),
        lambda: secrets.resolve((secret.make("TOKEN"),)),
        lambda: secrets.find_mutation("TOKEN", "m"),
        lambda: secrets.version("TOKEN"),
        lambda: secrets.page(None, 1, missing_key=None),
        secrets.usage,
        store.has_secrets,
        secrets.listing,
        lambda: secrets.retire("a", ()),
        lambda: secrets.remove("TOKEN", 1),
        lambda: store.audit.record(line()),
        lambda: store.audit.page(None, 1),
        lambda: store.sweep(before_ms=9, limit=1, keep_audit=1),
        lambda: store.bury([]),
    ]
    for call in calls:
        with pytest.raises(Unavailable) as error:
            call()
        assert error.value.code == "storage_closed"
