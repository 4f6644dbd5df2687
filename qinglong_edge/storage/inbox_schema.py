"""The text of every migration of the worker's journal: tables, and why they look so.

Owns the schema. Loaded when a file is made or moved to a newer schema, and not again.

    setting  name -> value: profile, storage mode, the session that a restart goes on with
    offer    number -> the offer's document: written once, the large part
    inbox    number -> what became of it: narrow, since it changes with every step
    lease    number -> the lease's numbers: what a renewal rewrites, and nothing else
    claim    one row: the id and token of the next request for an offer
"""

from __future__ import annotations

_WORKER = """
CREATE TABLE setting (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE claim (
  number        INTEGER PRIMARY KEY CHECK (number = 1),
  offer_id      TEXT NOT NULL,
  lease_token   TEXT NOT NULL CHECK (length(lease_token) BETWEEN 32 AND 128),
  worker_id     TEXT NOT NULL,
  session_id    TEXT NOT NULL,
  generation    INTEGER NOT NULL CHECK (generation >= 1),
  created_at_ms INTEGER NOT NULL CHECK (created_at_ms >= 0)
) STRICT;

CREATE TABLE offer (
  number   INTEGER PRIMARY KEY,
  offer_id TEXT NOT NULL UNIQUE CHECK (length(offer_id) BETWEEN 1 AND 128),
  body     TEXT NOT NULL
) STRICT;

CREATE TABLE lease (
  number         INTEGER PRIMARY KEY REFERENCES offer (number) ON DELETE CASCADE,
  version        INTEGER NOT NULL CHECK (version >= 0),
  generation     INTEGER NOT NULL CHECK (generation >= 1),
  acquired_at_ms INTEGER NOT NULL,
  renewed_at_ms  INTEGER NOT NULL CHECK (renewed_at_ms >= acquired_at_ms),
  expires_at_ms  INTEGER NOT NULL CHECK (expires_at_ms > renewed_at_ms),
  updated_at_ms  INTEGER NOT NULL CHECK (updated_at_ms >= acquired_at_ms)
) STRICT;

CREATE TABLE inbox (
  number            INTEGER PRIMARY KEY REFERENCES offer (number) ON DELETE CASCADE,
  revision          INTEGER NOT NULL CHECK (revision >= 0),
  state             TEXT NOT NULL CHECK (state IN (
                      'accepted', 'starting_acknowledged', 'launching', 'started',
                      'running_acknowledged', 'start_failed', 'start_failure_acknowledged',
                      'completion_acknowledged', 'recovery_required')),
  accepted_at_ms    INTEGER NOT NULL CHECK (accepted_at_ms >= 0),
  updated_at_ms     INTEGER NOT NULL CHECK (updated_at_ms >= accepted_at_ms),
  handle            TEXT CHECK (length(handle) BETWEEN 1 AND 512),
  pid               INTEGER CHECK (pid >= 1),
  pid_namespace     INTEGER,
  started_at_ms     INTEGER,
  log_id            TEXT CHECK (length(log_id) BETWEEN 1 AND 36),
  callback_sequence INTEGER CHECK (callback_sequence BETWEEN 1 AND 2147483647),
  token_digest      TEXT CHECK (length(token_digest) = 64),
  completed_at_ms   INTEGER,
  recovery_reason   TEXT,
  exit_code         INTEGER CHECK (exit_code BETWEEN 0 AND 255),
  finished_at_ms    INTEGER,
  evidence          TEXT CHECK (evidence IN ('receipt', 'wait_status', 'stopped')),
  truncated         INTEGER CHECK (truncated IN (0, 1)),
  log_bytes         INTEGER CHECK (log_bytes >= 0),
  settled_at_ms     INTEGER,
  settled_by        TEXT CHECK (settled_by IN ('evidence', 'operator')),
  settled_reason    TEXT,
  CHECK ((handle IS NULL) = (pid IS NULL)),
  CHECK (handle IS NULL OR started_at_ms IS NOT NULL),
  CHECK ((callback_sequence IS NULL) = (token_digest IS NULL)),
  CHECK (handle IS NOT NULL OR state NOT IN ('started', 'running_acknowledged')),
  CHECK ((state = 'completion_acknowledged') = (completed_at_ms IS NOT NULL)),
  CHECK ((state = 'recovery_required') = (recovery_reason IS NOT NULL)),
  CHECK (state NOT IN ('launching', 'started', 'running_acknowledged', 'completion_acknowledged')
         OR (started_at_ms IS NOT NULL AND log_id IS NOT NULL AND token_digest IS NOT NULL)),
  CHECK (state NOT IN ('accepted', 'starting_acknowledged')
         OR (started_at_ms IS NULL AND log_id IS NULL AND token_digest IS NULL)),
  CHECK ((evidence IS NULL) = (exit_code IS NULL) AND (evidence IS NULL) = (log_bytes IS NULL)),
  CHECK ((settled_by IS NULL) = (settled_at_ms IS NULL)),
  CHECK (settled_by IS NULL OR state = 'recovery_required')
) STRICT;

CREATE INDEX inbox_open ON inbox (number)
  WHERE settled_by IS NULL
    AND state NOT IN ('start_failure_acknowledged', 'completion_acknowledged');
"""

MIGRATIONS: tuple[tuple[int, str, str], ...] = ((1, "worker", _WORKER),)
