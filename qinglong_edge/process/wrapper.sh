# Runs one command in the foreground, bounds its log, leaves one receipt (ADR-0069 section 2).
# POSIX sh: dash, busybox ash, bash. Builtins where there are any: a fork is dear on a router.
#
#   0 /dev/null   1 start mark (memfd)   2 /dev/null   3 this script
#   4 output pipe, read   5 output pipe, write (without capture: /dev/null)   6 log (O_APPEND)
#   7 the capture's last word, read   8 the same, write   9 receipt channel to the daemon
#
# Exit status: the command's, whatever becomes of log and receipt; 125 if something that should be
# handed in is not, and then nothing ran. All names start with QL3_, which no user's may.
umask 077
set -C

# An imported name stays exported until it is unset; the values take the way round by "$@".
set -- "${QL3_HEAD-}" "${QL3_START_MS-}" "${QL3_START_CS-}" "${QL3_TOOLS-}" "${QL3_UMASK-}" \
  "${QL3_FSIZE-}" "${QL3_CAPTURE-}" "${QL3_QUOTA-}" "${QL3_FACT-}" "${QL3_FACT_TEMPORARY-}" \
  "${QL3_FACT_TARGET-}" "${QL3_SYNC-}" "${QL3_TEMPORARY-}" "${QL3_TARGET-}" "${QL3_SECRETS-}" "$@"
unset QL3_HEAD QL3_START_MS QL3_START_CS QL3_TOOLS QL3_UMASK QL3_FSIZE QL3_CAPTURE QL3_QUOTA \
  QL3_FACT QL3_FACT_TEMPORARY QL3_FACT_TARGET QL3_SYNC QL3_TEMPORARY QL3_TARGET QL3_SECRETS
QL3_HEAD=$1 QL3_START_MS=$2 QL3_START_CS=$3 QL3_TOOLS=$4 QL3_UMASK=$5 QL3_FSIZE=$6 QL3_CAPTURE=$7
QL3_QUOTA=$8 QL3_FACT=$9 QL3_FACT_TEMPORARY=${10} QL3_FACT_TARGET=${11} QL3_SYNC=${12}
QL3_TEMPORARY=${13} QL3_TARGET=${14} QL3_SECRETS=${15}
shift 15

ql3_numbers() { # without leading zeros (octal), within 64 bits
  for QL3_WORD; do
    case $QL3_WORD in '' | *[!0-9]* | 0?* | ?????????????????*) exit 125 ;; esac
  done
}

ql3_paths() {
  for QL3_WORD; do
    case $QL3_WORD in /*) ;; *) exit 125 ;; esac
  done
}

ql3_now() { # QL3_NOW = started + elapsed, ms: monotonic, without a fork
  read -r QL3_NOW QL3_REST </proc/uptime
  QL3_NOW=${QL3_NOW%.*}${QL3_NOW#*.}
  QL3_NOW=${QL3_NOW#"${QL3_NOW%%[!0]*}"}
  QL3_NOW=$((${QL3_NOW:-0} - QL3_START_CS))
  QL3_NOW=$((QL3_START_MS + (QL3_NOW > 0 ? QL3_NOW : 0) * 10))
}

ql3_hear() { # one whole line within 2 s; dash has no `read -t`, there the socket gives up
  read -r -t 2 QL3_WORD
  case $? in 0) ;; 2) read -r QL3_WORD ;; *) false ;; esac
}

ql3_publish() { # text temporary target: seen only when on the device, never over another file
  printf %s "$1" >"$2" && "$QL3_SYNC" "$2" && ln -T "$2" "$3"
  rm -f "$2"
  "$QL3_SYNC" "${3%/*}"
}

case $QL3_HEAD in '{'*'"finishedAtMs":') ;; *) exit 125 ;; esac
case $QL3_UMASK in '' | *[!0-7]* | ?????*) exit 125 ;; esac
ql3_numbers "$QL3_START_MS" "$QL3_START_CS"
[ "$QL3_FSIZE" = unlimited ] || ql3_numbers "$QL3_FSIZE"
ql3_paths "$QL3_TOOLS" "$QL3_TEMPORARY" "$QL3_TARGET"
case ${1-} in '' | -*) exit 125 ;; esac # exec would read the dash as an option
case $QL3_CAPTURE:$QL3_FACT in
  1:'{'*'"observedAtMs":')
    ql3_numbers "$QL3_QUOTA"
    ql3_paths "$QL3_FACT_TEMPORARY" "$QL3_FACT_TARGET"
    ;;
  :*) ;;
  *) exit 125 ;;
esac

# A secret is the command's alone, not the wrapper's tools'. (bash keeps UID EUID BASH_*)
case $QL3_SECRETS in *[!A-Za-z0-9_\ ]*) exit 125 ;; esac
for QL3_WORD in $QL3_SECRETS; do
  case $QL3_WORD in UID | EUID | BASH*) continue ;; esac
  eval "QL3_REST=\$$QL3_WORD; unset $QL3_WORD; $QL3_WORD=\$QL3_REST"
done
QL3_REST=

QL3_HAS_PATH=${PATH+yes} QL3_PATH=${PATH-}
PATH=$QL3_TOOLS
type cat find grep ln rm tr "$QL3_SYNC" >&2 || exit 125
# An older ash exports its default PATH as if it had been given; only /proc tells the difference.
[ "$QL3_PATH" != /sbin:/usr/sbin:/bin:/usr/bin ] ||
  tr '\n\0' '\1\n' <"/proc/$$/environ" | grep -q '^PATH=' || QL3_HAS_PATH=

# Ignored before the capture is forked, so no signal for the group ever finds it mortal: the last
# words of a command that handles its TERM are kept.
trap '' TERM INT HUP QUIT PIPE ALRM USR1 USR2
if [ -n "$QL3_CAPTURE" ]; then
  # The soft RLIMIT_FSIZE that the wrapper was born with is the quota: the kernel ends the log at
  # the byte. What cannot be stored is read all the same, so that the command never notices.
  (
    trap '' XFSZ
    exec 3<&- 4<&- 5>&- 7<&- 9>&-
    QL3_WORD=whole
    if ! LC_ALL=C cat; then # a locale is a dozen files
      QL3_WORD=late
      cat >/dev/null || while read -r QL3_REST; do :; done
      # Cut only if the quota did it: a full or broken device proves nothing.
      if [ -n "$(find -L /proc/self/fd/6 -type f -size "${QL3_QUOTA}c")" ]; then
        QL3_WORD=cut
        ql3_now
        rm -f "$QL3_FACT_TEMPORARY"
        ql3_publish "$QL3_FACT$QL3_NOW}" "$QL3_FACT_TEMPORARY" "$QL3_FACT_TARGET"
      fi
    fi
    echo "$QL3_WORD" >&8
  ) <&4 >&6 &
  exec 4<&- 6>&- 8>&-
fi
ulimit -S -f "$QL3_FSIZE" || exit 125

# The kernel hands a signal for the group to the command, once; the wrapper only outlives it. With
# `:` and not '', because a command gets back the default of what is caught, not of what is ignored.
trap : TERM INT HUP QUIT PIPE ALRM USR1 USR2

# In the foreground: dash and ash leave INT and QUIT ignored in a background child for ever. From
# the mark on no signal is lost. What is unset here the shells have added, not the user.
(
  umask "$QL3_UMASK"
  if [ -n "$QL3_HAS_PATH" ]; then PATH=$QL3_PATH; else unset PATH; fi
  [ -z "$QL3_SECRETS" ] || export $QL3_SECRETS
  unset PWD OLDPWD SHLVL _
  echo
  exec "$@" >&5 2>&5 5>&-
) 3<&- 7<&- 9>&-
QL3_CODE=$?

# Nobody is left to tell; a signal must not cut a `read` short nor end `ln` half way.
trap '' TERM INT HUP QUIT PIPE ALRM USR1 USR2
exec 5>&-
ql3_now
QL3_TEXT="$QL3_HEAD$QL3_NOW,\"exitCode\":$QL3_CODE}"

# A grandchild with the pipe still open delays the receipt by 2 s; the capture then goes on alone.
QL3_WORD=whole
[ -z "$QL3_CAPTURE" ] || ql3_hear <&7 || QL3_WORD=late

# `ok` = the daemon has committed it. Without one (end-of-file at once), or a silent one: a file.
printf '%s %s\n' "$QL3_WORD" "$QL3_TEXT" >&9 && ql3_hear <&9 && [ "$QL3_WORD" = ok ] ||
  ql3_publish "$QL3_TEXT" "$QL3_TEMPORARY" "$QL3_TARGET"
exit "$QL3_CODE"
