"""Methods that define tasks: `task.add`, `task.set`; loaded once somebody asks.

Owns the way from a request to a revision. A change is validated whole before anything is written,
and written in one transaction: recipe first, then the revision that cites it, then its triggers.
"""

from __future__ import annotations

from qinglong_edge.app.tasks import require, revision_document
from qinglong_edge.core import cron, recipe, secret
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.limits import BINDINGS_BYTES_MAX, TRIGGERS_PER_TASK_MAX
from qinglong_edge.core.run import BOOT, CRON, EVERY
from qinglong_edge.core.task import MISFIRES, SKIP, Definition, Trigger, check_name
from qinglong_edge.core.trigger import format_duration, parse_every_ms
from qinglong_edge.system import users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    from qinglong_edge.app.params import Params
    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.app.views import Document
    from qinglong_edge.core.recipe import Recipe
    from qinglong_edge.core.secret import SecretRef
    from qinglong_edge.core.task import Task

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = "/bin/sh"
_FIELDS = (
    "overlap",
    "cwd",
    "nice",
    "timeout_ms",
    "grace_ms",
    "retry",
    "backoff_ms",
    "repeatable",
    "log",
)


def default_environment() -> dict[str, str]:
    """What every new recipe begins with; written down, never added at launch."""
    return {"PATH": DEFAULT_PATH, "HOME": users.home(), "LANG": "C.UTF-8", "SHELL": _SHELL}


class Edit:
    """One definition being put together from a request, on top of an earlier one or of nothing."""

    def __init__(self, params: Params, base: Definition | None) -> None:
        self._fields: dict[str, Any] = (
            {} if base is None else {name: getattr(base, name) for name in Definition._fields}
        )
        self._command(params)
        for name in _FIELDS:
            if params.has(name):
                self._fields[name] = self._plain(params, name)
        if params.flag("no_timeout"):
            self._fields["timeout_ms"] = None
        maximum = params.number("max_parallel")
        if maximum is not None:
            self._fields["parallel_max"] = maximum
        endings = params.texts("retry_on")
        if endings is not None:
            self._fields["retry_on"] = endings
        labels = params.texts("labels")
        if labels is not None:
            self._fields["labels"] = tuple(dict.fromkeys(labels))
        if base is None and "cwd" not in self._fields:
            self._fields["cwd"] = users.home()

    def _plain(self, params: Params, name: str) -> object:
        if name in ("repeatable", "log"):
            return params.flag(name)
        if name in ("overlap", "cwd"):
            return params.text(name)
        return params.number(name, lowest=-20)

    def _command(self, params: Params) -> None:
        shell, argv = params.maybe_text("shell"), params.texts("argv")
        if shell is not None and argv is not None:
            raise Invalid("command_twice", "Give a shell text or an argument list, not both.")
        if shell is not None:
            if not shell.strip():
                raise Invalid("command_empty", "A task needs a command.")
            self._fields.update({"argv": (_SHELL, "-c", shell), "shell": True})
        elif argv is not None:
            text = params.flag("shell_text") or False
            self._fields.update({"argv": argv, "shell": text})

    def definition(self) -> Definition:
        """The checked definition."""
        if "argv" not in self._fields:
            raise Invalid("command_missing", "A task needs --shell TEXT or -- ARGV.")
        return Definition(**self._fields)


def triggers_of(runtime: Runtime, params: Params, base: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    """The triggers a request asks for; kinds it does not name stay as they are."""
    if params.has("triggers"):
        return _exact_triggers(runtime, params)
    zone = params.maybe_text("zone")
    misfire = params.maybe_text("misfire")
    if misfire is not None and misfire not in MISFIRES:
        raise Invalid("choice_unknown", "A value is not one of skip, fire_once.", field="misfire")
    crons, everies, boot = params.texts("cron"), params.texts("every"), params.flag("boot")
    if zone is not None:
        zone = runtime.zones.open(zone).text
    kept = [
        each.replace(
            number=0,
            zone=each.zone if zone is None or each.kind != CRON else zone,
            misfire=each.misfire if misfire is None else misfire,
        )
        for each in base
        if not (
            (each.kind == CRON and crons is not None)
            or (each.kind == EVERY and everies is not None)
            or (each.kind == BOOT and boot is not None)
        )
    ]
    policy = misfire or SKIP
    for text in crons or ():
        where = zone or _zone_of(base) or runtime.zones.own()
        kept.append(
            Trigger(kind=CRON, expression=cron.parse(text).text, zone=where, misfire=policy)
        )
    for text in everies or ():
        period = format_duration(parse_every_ms(text))
        kept.append(Trigger(kind=EVERY, expression=period, zone="", misfire=policy))
    if boot:
        kept.append(Trigger(kind=BOOT, expression="", zone="", misfire=policy))
    return _checked(runtime, kept)


def _exact_triggers(runtime: Runtime, params: Params) -> tuple[Trigger, ...]:
    """Triggers as an export wrote them down, each with a zone and a policy of its own."""
    found = []
    for each in params.documents("triggers"):
        text = {name: each.get(name) for name in ("kind", "expression", "zone", "misfire")}
        if set(each) != set(text) or not all(isinstance(value, str) for value in text.values()):
            raise Invalid("param_invalid", "A trigger has not its exact fields.", param="triggers")
        kind, expression, zone, misfire = map(str, text.values())
        if misfire not in MISFIRES or kind not in (CRON, EVERY, BOOT):
            raise Invalid("choice_unknown", "A trigger's kind or policy is unknown.")
        if kind == CRON:
            expression, zone = cron.parse(expression).text, runtime.zones.open(zone).text
        elif kind == EVERY:
            expression, zone = format_duration(parse_every_ms(expression)), ""
        else:
            expression = zone = ""
        found.append(Trigger(kind=kind, expression=expression, zone=zone, misfire=misfire))
    return _checked(runtime, found)


def _checked(runtime: Runtime, triggers: list[Trigger]) -> tuple[Trigger, ...]:
    """Each once, not too many, and none that never comes."""
    found = tuple(dict.fromkeys(triggers))
    if len(found) > TRIGGERS_PER_TASK_MAX:
        raise Invalid("triggers_too_many", "A task has more than 16 triggers.", triggers=len(found))
    for each in found:
        if each.kind == CRON:
            moment = runtime.parts.clock.wall_ms()
            cron.parse(each.expression).next_after(moment, runtime.zones.open(each.zone))
    return found


def _zone_of(base: tuple[Trigger, ...]) -> str | None:
    zones = [each.zone for each in base if each.kind == CRON]
    return zones[0] if zones else None


def recipe_of(
    given: Mapping[str, str],
    base: Recipe | None,
    *,
    secrets: Mapping[str, str] = {},
    unset: tuple[str, ...] = (),
) -> Recipe:
    """A recipe: the base's variables with the given ones on top; `secrets` maps to references."""
    if base is None:
        first = [recipe.public(*pair) for pair in default_environment().items()]
    else:
        first = [each for each in base.bindings if each.name not in unset]
    for name in secrets:
        if name in given:
            raise Invalid("binding_duplicate", "A variable is given more than once.", name=name)
    bindings = {each.name: each for each in first}
    bindings.update((name, recipe.public(name, value)) for name, value in given.items())
    bindings.update((name, recipe.secret(name, ref)) for name, ref in secrets.items())
    return recipe.from_bindings(bindings.values())


def _secret_refs(
    runtime: Runtime, params: Params, arriving: Collection[str] = ()
) -> dict[str, str]:
    """Variable -> reference, for secrets and envs that are there, or come in the same commit."""
    wanted = {}
    if params.has("secrets"):
        wanted = {name: secret.make(text) for name, text in params.mapping("secrets").items()}
        _require_secrets(runtime, wanted.values())
    for name in params.texts("env_sets") or ():
        if name in wanted:
            raise Invalid("binding_duplicate", "A variable is given more than once.", name=name)
        wanted[name] = secret.make(name)
        if name not in arriving and not _is_env(runtime, name):
            raise secret.env_unknown()
    return {variable: ref.text for variable, ref in wanted.items()}


def _is_env(runtime: Runtime, name: str) -> bool:
    return runtime.store.setting(secret.ENV_SETTING + name) is not None


def _require_secrets(runtime: Runtime, refs: Iterable[SecretRef]) -> None:
    for ref in refs:
        if runtime.store.secrets.resolve((ref,)) == (None,) and not _is_env(runtime, ref.name):
            raise Refused("secret_unknown", "There is no secret of that name; `secret set` first.")


def _environment(runtime: Runtime, params: Params, arriving: Collection[str]) -> Recipe:
    """The recipe of a new task: given variables over the default ones, or exactly an export's."""
    if not params.has("bindings"):
        given = params.mapping("environment")
        return recipe_of(given, None, secrets=_secret_refs(runtime, params, arriving))
    bindings = []
    for each in params.documents("bindings"):
        name, kind, value = each.get("name"), each.get("kind"), each.get("value")
        text = each.get("secret_ref") if kind == recipe.SECRET else value
        if not isinstance(name, str) or not isinstance(text, str):
            raise Invalid("param_invalid", "A variable has not its exact fields.", param="bindings")
        make = recipe.secret if kind == recipe.SECRET else recipe.public
        bindings.append(make(name, text))
    made = recipe.from_bindings(bindings)
    _require_secrets(runtime, secret.parse_all(made.secret_refs))
    return made


class Wanted:
    """A checked definition on its way into the state; `existing` is the task that it revises."""

    __slots__ = ("definition", "environment", "existing", "name", "triggers")

    def __init__(
        self,
        existing: Task | None,
        name: str,
        definition: Definition,
        triggers: tuple[Trigger, ...],
        environment: Recipe,
    ) -> None:
        self.existing = existing
        self.name = name
        self.definition = definition
        self.triggers = triggers
        self.environment = environment


def prepare(runtime: Runtime, params: Params, *, arriving: Collection[str] = ()) -> Wanted:
    """What `task.add` asks for, checked whole; nothing is written. `arriving` are envs to come."""
    name = check_name(params.text("name"))
    replace = params.flag("replace")
    definition = Edit(params, None).definition()
    triggers = triggers_of(runtime, params, ())
    environment = _environment(runtime, params, arriving)
    params.end()
    _check_size(runtime, environment)
    existing = runtime.store.tasks.find(name)
    if existing is not None and not replace:
        raise Refused("task_exists", "There is a task of that name already.")
    return Wanted(existing, name, definition, triggers, environment)


def publish(runtime: Runtime, wanted: list[Wanted], params: Params) -> list[Task]:
    """Write definitions in one commit, all or none, and let the scheduler take them up."""
    with runtime.store.database.write():
        done = [_append(runtime, each) for each in wanted]
        for task in done:
            runtime.record(params, task.name, version=task.revision)
    if runtime.daemon and len(done) == 1:
        runtime.scheduler.refresh(done[0].number)
    elif runtime.daemon and done:
        runtime.scheduler.load()
        runtime.scheduler.look()
    return done


def publish_all(runtime: Runtime, every: Iterable[tuple[Wanted, bool]], params: Params) -> int:
    """Write many definitions in one commit, each enabled or not; how many they were.

    Only one is in memory at a time. Any error takes all of them back.
    """
    count = 0
    with runtime.store.database.write():
        for wanted, enabled in every:
            task = _append(runtime, wanted)
            if not enabled:
                runtime.store.tasks.set_enabled(task, enabled=False)
            count += 1
        if count:
            runtime.record(params, f"{count} tasks")
    if runtime.daemon and count:
        runtime.scheduler.load()
        runtime.scheduler.look()
    return count


def _check_size(runtime: Runtime, environment: Recipe) -> None:
    """Refuse now what every start would refuse: secrets that are too large for one environment.

    A sealed value is as long as what it opens to. What an env comes to only its opening tells. Each
    value is looked at only where all of them might be too large: an import may bind hundreds.
    """
    bindings = environment.bindings
    bound = sum(each.is_secret for each in bindings)
    if not bound:
        return
    secrets = runtime.store.secrets
    names = sum(len(each.name) for each in bindings)
    public = sum(len(each.content.encode()) for each in bindings if not each.is_secret)
    if names + public + bound * secrets.largest() <= BINDINGS_BYTES_MAX:
        return
    sealed = {
        ref.text: 0 if _is_env(runtime, ref.name) else secrets.size(ref)
        for ref in secret.parse_all(environment.secret_refs)
    }
    size = names + public + sum(sealed[each.content] for each in bindings if each.is_secret)
    if size > BINDINGS_BYTES_MAX:
        raise Invalid(
            "bindings_too_large",
            "The secrets and values of an environment are too large together.",
            bytes=size,
            bytes_max=BINDINGS_BYTES_MAX,
        )


def _append(runtime: Runtime, wanted: Wanted) -> Task:
    tasks, now_ms = runtime.store.tasks, runtime.parts.clock.wall_ms()
    return tasks.append(
        tasks.insert(wanted.name, now_ms) if wanted.existing is None else wanted.existing,
        wanted.definition,
        wanted.triggers,
        wanted.environment,
        at_ms=now_ms,
        boot_id=runtime.boot_id,
    )


def add(runtime: Runtime, params: Params) -> Document:
    """`task.add`: a new task, or with `replace` a new revision of an existing one."""
    (task,) = publish(runtime, [prepare(runtime, params)], params)
    return revision_document(runtime, task)


def change(runtime: Runtime, params: Params) -> Document:
    """`task.set`: a new revision that differs only in what is named; `all`: zone or envs of all."""
    if params.flag("all"):
        return _move_all(runtime, params)
    task = require(runtime, params.text("name"))
    revision = runtime.store.tasks.revision(task.number, task.revision)
    definition = Edit(params, revision.definition).definition()
    triggers = triggers_of(runtime, params, tuple(runtime.store.tasks.triggers(task.number)))
    environment = recipe_of(
        params.mapping("environment"),
        runtime.store.tasks.recipe(revision.recipe_number),
        secrets=_secret_refs(runtime, params),
        unset=params.texts("unset_environment") or (),
    )
    params.end()
    _check_size(runtime, environment)
    wanted = Wanted(task, task.name, definition, triggers, environment)
    return revision_document(runtime, publish(runtime, [wanted], params)[0])


def _move_all(runtime: Runtime, params: Params) -> Document:
    zone = params.maybe_text("zone")
    refs = _secret_refs(runtime, params)
    params.end()
    if zone is None and not refs:
        raise Invalid("param_missing", "A parameter is missing.", param="zone")
    if zone is not None:
        zone = runtime.zones.open(zone).text
    tasks, wanted = runtime.store.tasks, []
    for task in list(tasks.all()):
        revision = tasks.revision(task.number, task.revision)
        triggers = tuple(
            each.replace(number=0, zone=zone if zone and each.kind == CRON else each.zone)
            for each in tasks.triggers(task.number)
        )
        environment = recipe_of({}, tasks.recipe(revision.recipe_number), secrets=refs)
        if refs:
            _check_size(runtime, environment)
        wanted.append(Wanted(task, task.name, revision.definition, triggers, environment))
    moved = publish(runtime, wanted, params)
    return {"tasks": [revision_document(runtime, task) for task in moved]}
