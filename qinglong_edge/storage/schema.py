"""The text of every migration: tables, and why they look so.

Owns the schema. Loaded when a file is made or moved to a newer schema, and not again: an owner that
finds its file up to date needs the checksums only (`migrations.CHECKSUMS`).

    setting          name -> value: profile, storage mode, pause, highest trusted wall time
    recipe           a task's environment, by content address; append-only (ADR-0024)
    task             a name, its newest revision, enabled or not; removal marks
    revision         an immutable definition of a task, pinned to its recipe
    task_trigger     when a task is due; a dropped row's number is not given again
    cursor           the next due moment of a trigger, narrow: it changes with every admission
    run              number, the UUID beside it: both ascend together, so the UUID has no index
    attempt          key = run number * 16 + attempt - 1
    event            key = run number * 65536 + first sequence; one row a commit, an array of events
    receipt_journal  by the attempt's key: what a process may still publish (ADR-0069 section 3)
    secret           a secret's name and its newest version ever; removal marks
    secret_envelope  a version as ciphertext under one key; a re-encryption is another row of it
    audit            who changed what, refusals too; never a value
    log_tombstone    by the attempt's key: what is known of a log whose file is gone

The tables that every run writes have one integer as their key: a new row then goes to the end of
its tree and touches one small page; a tree by two columns, or a row beyond 231 bytes in one, moves
its neighbours. `run_number`, `attempt` and `sequence` are computed, not stored. As foreign keys to
`run` they would need an index or a scan of the history for each pruned Run; instead the one writer
stores a Run before its rows and deletes them before it, in the same transaction.
"""

from __future__ import annotations

_CORE = """
CREATE TABLE setting (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE recipe (
  number        INTEGER PRIMARY KEY,
  context_ref   TEXT NOT NULL UNIQUE
                CHECK (length(context_ref) = 80 AND context_ref GLOB 'localctx:sha256:*'),
  body          TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL CHECK (created_at_ms >= 0)
) STRICT;

CREATE TABLE task (
  number        INTEGER PRIMARY KEY,
  name          TEXT NOT NULL,
  revision      INTEGER NOT NULL CHECK (revision >= 1),
  enabled       INTEGER NOT NULL CHECK (enabled IN (0, 1)),
  created_at_ms INTEGER NOT NULL CHECK (created_at_ms >= 0),
  removed_at_ms INTEGER CHECK (removed_at_ms >= 0)
) STRICT;

CREATE UNIQUE INDEX task_name ON task (name) WHERE removed_at_ms IS NULL;

CREATE TABLE revision (
  task_number   INTEGER NOT NULL REFERENCES task (number),
  revision      INTEGER NOT NULL CHECK (revision >= 1),
  recipe_number INTEGER NOT NULL REFERENCES recipe (number),
  definition    TEXT NOT NULL,
  digest        TEXT NOT NULL CHECK (length(digest) = 64),
  created_at_ms INTEGER NOT NULL CHECK (created_at_ms >= 0),
  PRIMARY KEY (task_number, revision)
) STRICT, WITHOUT ROWID;

CREATE TABLE task_trigger (
  number      INTEGER PRIMARY KEY AUTOINCREMENT,
  task_number INTEGER NOT NULL REFERENCES task (number),
  kind        TEXT NOT NULL CHECK (kind IN ('cron', 'every', 'boot')),
  expression  TEXT NOT NULL,
  zone        TEXT NOT NULL,
  misfire     TEXT NOT NULL CHECK (misfire IN ('skip', 'fire_once'))
) STRICT;

CREATE INDEX task_trigger_task ON task_trigger (task_number);

CREATE TABLE cursor (
  trigger_number    INTEGER PRIMARY KEY REFERENCES task_trigger (number) ON DELETE CASCADE,
  next_at_ms        INTEGER CHECK (next_at_ms >= 0),
  boot_id           TEXT,
  last_scheduled_ms INTEGER CHECK (last_scheduled_ms >= 0),
  skipped           INTEGER NOT NULL DEFAULT 0 CHECK (skipped >= 0),
  parked            TEXT
) STRICT;

CREATE TABLE run (
  number                 INTEGER PRIMARY KEY,
  id                     BLOB NOT NULL CHECK (length(id) = 16),
  task_number            INTEGER NOT NULL REFERENCES task (number),
  revision               INTEGER NOT NULL,
  recipe_number          INTEGER NOT NULL REFERENCES recipe (number),
  status                 TEXT NOT NULL CHECK (status IN (
                           'queued', 'dispatching', 'running', 'retry_wait',
                           'succeeded', 'failed', 'cancelled', 'timed_out', 'lost')),
  version                INTEGER NOT NULL CHECK (version >= 1),
  trigger_kind           TEXT NOT NULL CHECK (trigger_kind IN ('manual', 'cron', 'every', 'boot')),
  trigger_number         INTEGER,
  scheduled_for_ms       INTEGER CHECK (scheduled_for_ms >= 0),
  created_at_ms          INTEGER NOT NULL CHECK (created_at_ms >= 0),
  started_at_ms          INTEGER CHECK (started_at_ms >= created_at_ms),
  finished_at_ms         INTEGER CHECK (finished_at_ms >= created_at_ms),
  cancel_requested_at_ms INTEGER CHECK (cancel_requested_at_ms >= 0),
  cancel_reason          TEXT CHECK (cancel_reason IN ('user', 'timeout', 'shutdown', 'replaced')),
  retry_at_ms            INTEGER CHECK (retry_at_ms >= 0),
  error_code             TEXT,
  CHECK ((finished_at_ms IS NOT NULL) =
         (status IN ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))),
  CHECK ((cancel_requested_at_ms IS NULL) = (cancel_reason IS NULL)),
  CHECK ((retry_at_ms IS NOT NULL) = (status = 'retry_wait'))
) STRICT;

CREATE INDEX run_waiting ON run (number) WHERE status IN ('queued', 'retry_wait');

CREATE TABLE attempt (
  key               INTEGER PRIMARY KEY CHECK (key >= 16),
  run_number        INTEGER AS (key >> 4),
  attempt           INTEGER AS ((key & 15) + 1),
  id                BLOB NOT NULL CHECK (length(id) = 16),
  status            TEXT NOT NULL CHECK (status IN (
                      'claimed', 'starting', 'running',
                      'succeeded', 'failed', 'cancelled', 'timed_out', 'lost')),
  callback_sequence INTEGER NOT NULL DEFAULT 0 CHECK (callback_sequence >= 0),
  token_hash        BLOB CHECK (length(token_hash) = 32),
  handle            TEXT CHECK (length(handle) <= 512),
  pid               INTEGER CHECK (pid > 0),
  pid_namespace     INTEGER,
  log_quota_bytes   INTEGER NOT NULL CHECK (log_quota_bytes >= 0),
  deadline_boot_ms  INTEGER,
  deadline_at_ms    INTEGER,
  created_at_ms     INTEGER NOT NULL CHECK (created_at_ms >= 0),
  started_at_ms     INTEGER CHECK (started_at_ms >= created_at_ms),
  finished_at_ms    INTEGER CHECK (finished_at_ms >= created_at_ms),
  exit_code         INTEGER CHECK (exit_code BETWEEN 0 AND 255),
  signal            INTEGER CHECK (signal BETWEEN 1 AND 127),
  evidence          TEXT NOT NULL CHECK (evidence IN (
                      'receipt', 'wait_status', 'identity', 'operator', 'none')),
  error_code        TEXT,
  log_bytes         INTEGER CHECK (log_bytes >= 0),
  log_truncated     INTEGER CHECK (log_truncated IN (0, 1)),
  CHECK (status != 'running' OR
         (handle IS NOT NULL AND pid IS NOT NULL AND token_hash IS NOT NULL)),
  CHECK ((finished_at_ms IS NOT NULL) =
         (status IN ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost')))
) STRICT;

CREATE TABLE event (
  key        INTEGER PRIMARY KEY CHECK (key > 65536),
  run_number INTEGER AS (key >> 16),
  sequence   INTEGER AS (key & 65535) CHECK (sequence >= 1),
  at_ms      INTEGER NOT NULL CHECK (at_ms >= 0),
  actor      TEXT NOT NULL,
  body       TEXT NOT NULL CHECK (length(body) <= 16384)
) STRICT;

CREATE TABLE receipt_journal (
  key              INTEGER PRIMARY KEY REFERENCES attempt (key),
  run_number       INTEGER AS (key >> 4),
  attempt          INTEGER AS ((key & 15) + 1),
  state            TEXT NOT NULL CHECK (state IN ('pending', 'quarantined')),
  quarantine_ref   TEXT CHECK (length(quarantine_ref) BETWEEN 1 AND 255),
  purge_after_ms   INTEGER,
  registered_at_ms INTEGER NOT NULL CHECK (registered_at_ms >= 0),
  updated_at_ms    INTEGER NOT NULL CHECK (updated_at_ms >= registered_at_ms),
  CHECK ((state = 'quarantined') = (quarantine_ref IS NOT NULL)),
  CHECK ((state = 'quarantined') = (purge_after_ms IS NOT NULL)),
  CHECK (purge_after_ms IS NULL OR purge_after_ms >= updated_at_ms)
) STRICT;
"""

# The digests are those of `Recipe.record_digest` and `task.record_digest`; `sha256` is ours.
_SECRETS = f"""
ALTER TABLE recipe ADD COLUMN record_digest TEXT NOT NULL DEFAULT '{"0" * 64}'
  CHECK (length(record_digest) = 64);

UPDATE recipe SET record_digest = sha256(CAST(
  '{{"contextRef":"' || context_ref || '","environment":' || body || '}}' AS BLOB));

ALTER TABLE revision ADD COLUMN record_digest TEXT NOT NULL DEFAULT '{"0" * 64}'
  CHECK (length(record_digest) = 64);

UPDATE revision SET record_digest = sha256(CAST(
  'qinglong_edge.revision_record.v1' || char(10) || task_number || char(10) || revision || char(10)
  || (SELECT context_ref FROM recipe WHERE number = recipe_number) || char(10) || digest
  || char(10) || definition AS BLOB));

CREATE TABLE secret (
  number        INTEGER PRIMARY KEY,
  project       TEXT NOT NULL CHECK (length(project) BETWEEN 1 AND 128),
  name          TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 128),
  version       INTEGER NOT NULL CHECK (version BETWEEN 1 AND 2147483647),
  removed_at_ms INTEGER CHECK (removed_at_ms >= 0),
  UNIQUE (project, name)
) STRICT;

CREATE TABLE secret_envelope (
  number        INTEGER PRIMARY KEY,
  secret_number INTEGER NOT NULL REFERENCES secret (number),
  version       INTEGER NOT NULL CHECK (version BETWEEN 1 AND 2147483647),
  key_id        TEXT NOT NULL CHECK (length(key_id) BETWEEN 1 AND 128),
  mutation_id   TEXT NOT NULL CHECK (length(mutation_id) BETWEEN 1 AND 64),
  nonce         BLOB NOT NULL CHECK (length(nonce) = 12),
  ciphertext    BLOB NOT NULL CHECK (length(ciphertext) <= 65536),
  auth_tag      BLOB NOT NULL CHECK (length(auth_tag) = 16),
  created_at_ms INTEGER NOT NULL CHECK (created_at_ms >= 0),
  UNIQUE (secret_number, version, key_id),
  UNIQUE (secret_number, mutation_id, key_id)
) STRICT;

CREATE INDEX secret_envelope_key ON secret_envelope (key_id);

CREATE TABLE audit (
  number      INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms       INTEGER NOT NULL CHECK (at_ms >= 0),
  uid         INTEGER NOT NULL,
  front_end   TEXT NOT NULL,
  mutation_id TEXT NOT NULL,
  action      TEXT NOT NULL,
  target      TEXT NOT NULL,
  version     INTEGER,
  outcome     TEXT NOT NULL CHECK (outcome IN ('done', 'refused', 'intended')),
  code        TEXT
) STRICT;

CREATE TABLE log_tombstone (
  key            INTEGER PRIMARY KEY REFERENCES attempt (key) ON DELETE CASCADE,
  eligible_at_ms INTEGER NOT NULL CHECK (eligible_at_ms >= 0),
  retired_at_ms  INTEGER NOT NULL CHECK (retired_at_ms >= eligible_at_ms),
  disposition    TEXT NOT NULL CHECK (disposition IN ('deleted', 'already_absent')),
  bytes          INTEGER NOT NULL CHECK (bytes >= 0),
  truncated      INTEGER CHECK (truncated IN (0, 1)),
  maximum_bytes  INTEGER CHECK (maximum_bytes >= 1),
  observed_at_ms INTEGER CHECK (observed_at_ms >= 0),
  digest         BLOB NOT NULL CHECK (length(digest) = 32),
  CHECK (bytes = 0 OR disposition = 'deleted')
) STRICT;
"""

MIGRATIONS: tuple[tuple[int, str, str], ...] = ((1, "core", _CORE), (2, "secrets", _SECRETS))
