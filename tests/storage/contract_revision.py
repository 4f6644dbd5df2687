"""What any store of execution revisions promises (ADR-0024 section 2)."""

from __future__ import annotations

import pytest

from qinglong_edge.core.errors import Corrupt, EdgeError, Refused
from qinglong_edge.core.recipe import Recipe, from_bindings, public
from qinglong_edge.core.task import Definition, Task
from tests.storage.subject import CONNECTIONS, Connect, Subject, at_once, damage

RECIPE = from_bindings([public("MODE", "one")])
DEFINITION = Definition(argv=("/bin/echo", "hello é"), timeout_ms=1000)


def publish(
    subject: Subject, task: Task, definition: Definition = DEFINITION, recipe: Recipe = RECIPE
) -> tuple[Task, str]:
    with subject.write():
        return subject.definitions.publish(task, definition, (), recipe, at_ms=1, boot_id=None)


def new_task(subject: Subject) -> Task:
    with subject.write():
        return subject.definitions.insert("one", 1)


class RevisionContract:
    """To be inherited beside a fixture `connect`."""

    def test_a_revision_is_inserted_then_idempotent_then_followed(self, connect: Connect) -> None:
        subject = connect()
        blank = new_task(subject)
        task, outcome = publish(subject, blank)
        assert (task.revision, outcome) == (1, "inserted")
        assert publish(subject, task) == (task, "idempotent")
        assert publish(connect(), blank) == (task, "idempotent")
        edited, outcome = publish(subject, task, DEFINITION.replace(nice=1))
        assert (edited.revision, outcome) == (2, "inserted")
        assert subject.definitions.find("one") == edited
        first = connect().definitions.revision(task.number, 1)
        assert (first.definition, first.context_ref) == (DEFINITION, RECIPE.context_ref)
        assert subject.definitions.recipe(first.recipe_number) == RECIPE

    def test_of_twelve_equal_edits_one_inserts_and_eleven_find_it(self, connect: Connect) -> None:
        """ADR-0024 verification 2: recipe and revision converge, each on its own."""
        task = new_task(connect())
        answers = at_once(connect, lambda subject, _number: publish(subject, task))
        assert sorted(outcome for _task, outcome in answers) == [
            *["idempotent"] * (CONNECTIONS - 1),
            "inserted",
        ]
        assert {done.revision for done, _outcome in answers} == {1}
        assert (connect().count("revision"), connect().count("recipe")) == (1, 1)

    def test_of_twelve_different_edits_one_wins_and_eleven_conflict(self, connect: Connect) -> None:
        task = new_task(connect())

        def edit(subject: Subject, number: int) -> str:
            try:
                return publish(subject, task, DEFINITION.replace(nice=number))[1]
            except Refused as error:
                return error.code

        answers = sorted(at_once(connect, edit))
        assert answers == ["inserted", *["revision_conflict"] * (CONNECTIONS - 1)]
        assert (connect().count("revision"), connect().count("recipe")) == (1, 1)

    def test_an_edit_of_what_was_edited_meanwhile_changes_nothing(self, connect: Connect) -> None:
        subject = connect()
        task, _outcome = publish(subject, new_task(subject))
        newest, _outcome = publish(subject, task, DEFINITION.replace(nice=1))
        newest, _outcome = publish(subject, newest, DEFINITION.replace(nice=2))
        with pytest.raises(Refused) as error:
            publish(subject, task, DEFINITION.replace(nice=3), from_bindings([]))
        assert error.value.code == "revision_conflict"
        assert subject.definitions.find("one") == newest
        assert (subject.count("revision"), subject.count("recipe")) == (3, 1)

    def test_after_a_failed_recipe_its_revision_is_never_written(self, connect: Connect) -> None:
        """ADR-0024 verification 4: a damaged recipe is not confirmed, so nothing may cite it."""
        subject = connect()
        with subject.write():
            subject.definitions.insert_recipe(RECIPE, 1)
        task = new_task(subject)
        damage(subject, "recipe.digest")
        with pytest.raises(Corrupt):
            publish(subject, task)
        assert subject.count("revision") == 0
        with pytest.raises(Refused):
            subject.definitions.revision(task.number, 1)

    def test_before_its_recipe_stands_nothing_of_a_revision_is_written(
        self, connect: Connect
    ) -> None:
        """ADR-0024 verification 4: not even in a transaction that goes on after the refusal."""
        subject = connect()
        task, _outcome = publish(subject, new_task(subject))
        damage(subject, "recipe.digest")
        with subject.write(), pytest.raises(Corrupt):
            subject.definitions.publish(
                task, DEFINITION.replace(nice=1), (), RECIPE, at_ms=2, boot_id=None
            )
        assert subject.definitions.find("one") == task
        assert subject.count("revision") == 1

    @pytest.mark.parametrize(
        "field",
        ["revision.definition", "revision.content", "revision.digest", "recipe.address"],
    )
    def test_one_changed_byte_fails_closed(self, connect: Connect, field: str) -> None:
        """ADR-0024 verification 3: neither run nor confirmed."""
        subject = connect()
        task, _outcome = publish(subject, new_task(subject))
        for place in (0, 9, 30, -1):
            damage(subject, field, place)
            with pytest.raises(Corrupt):
                subject.definitions.revision(task.number, 1)
            if field != "revision.content":
                with pytest.raises(EdgeError):
                    publish(subject, task)
            damage(subject, field, place)
        assert subject.definitions.revision(task.number, 1).definition == DEFINITION

    def test_a_digest_of_zeros_fails_closed(self, connect: Connect) -> None:
        subject = connect()
        task, _outcome = publish(subject, new_task(subject))
        subject.alter("revision.digest", lambda text: "0" * 64)
        with pytest.raises(Corrupt):
            subject.definitions.revision(task.number, 1)
