"""Every bound of the program in one place, unit in the name, reason beside it.

Profile-dependent numbers (cadences, counts, reserves) live in ``profiles/*.toml``; what stands here
is a property of a format or a promise and is the same on every box.
"""

from __future__ import annotations

SAFE_INTEGER_MAX = 2**53 - 1  # the largest integer every JSON reader keeps exactly

# Names and definitions -----------------------------------------------------------------------
NAME_CHARACTERS_MAX = 128  # a task's name stays readable in a table and in a URL
NAME_BYTES_MAX = 512
ARGUMENTS_MAX = 256  # ADR-0069 section 2: argv and environment have one budget each
ARGUMENT_BYTES_MAX = 16_384
COMMAND_BYTES_MAX = 65_536  # file and arguments together, or the shell text
PATH_BYTES_MAX = 4_096  # PATH_MAX of Linux
BINDINGS_MAX = 256  # ADR-0024 section 1
BINDING_NAME_CHARACTERS_MAX = 128
BINDING_VALUE_BYTES_MAX = 65_536
BINDINGS_BYTES_MAX = 262_144
SECRET_REF_BYTES_MAX = 512  # project and name of 128 bytes each, in base64url
NOTIFY_SETTING = "notify:"  # before the name of a channel, in its setting and its secret
TRIGGERS_PER_TASK_MAX = 16
TIMEOUT_MS_MAX = 31_536_000_000  # 365 days
GRACE_MS_MAX = 300_000
RETRY_MAX = 15  # further attempts, so at most 16 in all
BACKOFF_MS_MAX = 86_400_000
EVERY_MS_MIN = 1_000
EVERY_MS_MAX = 31_536_000_000
PARALLEL_MAX = 64
QUEUED_PER_TASK_MAX = 16
REASON_CHARACTERS_MAX = 256
LABELS_MAX = 16  # a task's labels stand in one line
LABEL_CHARACTERS_MAX = 64
ENV_ITEMS_MAX = 256  # values under one name: more cookies than one router signs in
ENV_SETTING_BYTES_MAX = 4_194_304  # items with remarks and labels, escaped

# Cron ------------------------------------------------------------------------------------------
CRON_TEXT_CHARACTERS_MAX = 1_024
ZONE_TEXT_CHARACTERS_MAX = 128
TZIF_BYTES_MAX = 65_536  # the largest file of the zone database is under 4 KiB
CRON_NEXT_COUNT_MAX = 1_000

# Secrets (ADR-0024 section 3) --------------------------------------------------------------------
SECRET_PROJECT_BYTES_MAX = 128
SECRET_NAME_BYTES_MAX = 128
SECRET_MUTATION_BYTES_MAX = 64
SECRET_VERSION_MAX = 2**31 - 1
SECRET_VALUE_BYTES_MAX = BINDING_VALUE_BYTES_MAX  # joined cookies fill one; it becomes a variable
SECRET_PAGE_MAX = 16  # sealed rows in one request: 64 KiB each in base64 stay under 2 MiB
KEYRING_KEYS_MAX = 16  # rotations between two retirements
KEYRING_BYTES_MAX = 16_384  # 16 keys under the longest ids take 3 KiB

# Receipt, handle, truncation fact (ADR-0069 section 2) -----------------------------------------
RECEIPT_BYTES_MAX = 4_096
HANDLE_BYTES_MAX = 512
FACT_BYTES_MAX = 1_024
WRAPPER_BYTES_MAX = 65_536
JOURNAL_PAGE_MAX = 64
EVENT_PAYLOAD_BYTES_MAX = 16_384

# Log artifact (ADR-0024 section 4) ---------------------------------------------------------------
LOG_QUOTA_BYTES_MIN = 65_536
LOG_QUOTA_BYTES_MAX = 1_073_741_824
LOG_RANGE_BYTES_MAX = 262_144
LOG_WRITE_BYTES_MAX = 1_048_576  # ADR-0115 section 2: one piece of output that is copied

# Control socket ----------------------------------------------------------------------------------
REQUEST_BYTES_MAX = 2_097_152  # a legal recipe is 1.6 MB of JSON
JSON_DEPTH_MAX = 32  # deep nesting kills the process on the small stacks of musl
REQUESTS_WAITING_MAX = 256
PAGE_MAX = 500
IMPORT_BYTES_MAX = 1_048_576
EXPORT_BYTES_MAX = 67_108_864  # of one file of exported tasks
IMPORT_ROWS_MAX = 100_000
IMPORT_PAGE_MAX = 500  # tasks of a page: checked at once, while the daemon waits

# Time --------------------------------------------------------------------------------------------
CLOCK_FLOOR_MS = 1_767_225_600_000  # 2026-01-01: a clock before the product's birth is not set
CLOCK_STEP_TOLERANCE_MS = 2_000  # slewing moves less than this between two wake-ups
CLOCK_BACKWARD_TOLERANCE_MS = 60_000  # a correction this small is believed at once
CLOCK_RESET_STEP_MS = 10_800_000  # 3 h: a larger backward step re-computes cursors
CLOCK_STEADY_MS = 900_000  # 15 minutes of steady boottime make a new clock believable
WAKE_CAP_MS = 30_000  # so that a wall-clock step is noticed; two wake-ups a minute
START_MARK_WAIT_MS = 1_000  # a command that has not begun by then gets its TERM all the same
WRAPPER_SILENCE_MS = 2_000  # the wrapper waits this long for an answer, then publishes the file
LAUNCH_READY_MS = 10_000  # fork to `ready`, secrets included, on the slowest router measured
OWNER_LOCK_RETRY_MS = 2_000  # flock survives fork: a dying launch child may hold it for a moment
LAUNCH_BACKOFF_MS_MIN = 1_000
LAUNCH_BACKOFF_MS_MAX = 300_000
ESCAPED_POLL_MS = 30_000
