#!/usr/bin/env bash
# test-timeout: 900
# test-waits: 90
# scripts/bare-machine: what is in the machine and what is not, what it keeps, and that nothing is left of it otherwise,
# whatever ends it.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
failures=0
expect() {  # expect WHAT WANTED GOT
  [[ $3 == $2 ]] || { printf '%s: expected "%s", got "%s"\n' "$1" "$2" "$3"; failures=$((failures + 1)); }
}

cp "$root/scripts/bare-machine" "$work/"
run=$work/bare-machine  # which says what is wrong before it asks where it is
expect 'help' '*--suite NAME*' "$("$run" --help)"
said=$("$run" --suite trixie 2>&1)
expect 'no command' '2 bare-machine: which command?*' "$? $said"
said=$("$run" --colour red true 2>&1)
expect 'an option that is none' '2 bare-machine: unknown option --colour*' "$? $said"
said=$("$run" --keep ../x true 2>&1)
expect 'a name that is a path' '2 bare-machine: --keep needs a name*' "$? $said"
user=()
((EUID)) || user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
said=$("${user[@]}" "$run" true 2>&1)
expect 'without root' '77 bare-machine: *needs root*' "$? $said"

run=$root/scripts/bare-machine
"$run" true || { status=$?; ((status == 77)) && exit 77; exit 1; }
mkdir "$work/cache"
ln -s "${BARE_CACHE:-/var/tmp/bare}/bookworm.minbase.tar" "$work/cache/"
export BARE_CACHE=$work/cache CCACHE_DIR=$work/ccache SOME_VARIABLE=1
left() { find "$work/cache" -mindepth 1 -maxdepth 1 ! -name '*.tar*' -printf '%f '; }

said=$("$run" bash -c 'grep -o ^12 /etc/debian_version; git rev-parse HEAD; git status --short; echo "${SOME_VARIABLE-}"
  command -v g++ cmake ninja python3 mpirun; touch /root/.cache/ccache/cached; ls /proc | grep -c "^[0-9]"
  mount -t tmpfs tmpfs /mnt && unshare --mount --propagation private true && echo a machine; exit 7' 2>/dev/null)
expect 'exit code' 7 $?
expect 'what is there' "12
$(git -C "$root" rev-parse HEAD)

[1-9]
a machine" "$said"
expect 'the cache of compilers' cached "$(ls "$work/ccache")"
expect 'what is left' '' "$(left)"

"$run" --keep one touch /root/kept /tmp/left 2>/dev/null
expect 'in a kept machine' /root/kept "$("$run" --keep one ls /root/kept 2>/dev/null)"
expect 'temporary files in a kept machine' '' "$("$run" --keep one ls /tmp 2>/dev/null)"
"$run" --keep one sleep 60 2>/dev/null &
machine=$!
sleep 2
said=$("$run" --keep one true 2>&1)
expect 'a machine in use' '1 *the machine one of bookworm is in use*' "$? $said"
kill $machine
wait $machine
expect 'in the machine after kill' /root/kept "$("$run" --keep one ls /root/kept 2>/dev/null)"
"$run" --forget one
expect 'what is left when it is forgotten' '' "$(left)"

# Ctrl-C reaches all that a terminal started; the number makes the command line this test's own.
inside() { pgrep -fc "^sleep 98765.$$"; }
for signal in INT TERM KILL; do
  setsid env --default-signal=INT "$run" bash -c "sleep 98765.$$ & sleep 98765.$$" >/dev/null 2>&1 &
  for ((i = 0; i < 900; ++i)); do
    (($(inside) < 2)) || break
    sleep 0.1
  done
  started=$(pgrep -fo "bare-machine bash -c sleep 98765.$$")
  expect 'processes inside' 2 "$(inside)"
  if [[ $signal == INT ]]; then kill -INT -- "-$started"; else kill -$signal "$started"; fi
  wait $! 2>/dev/null
  expect "processes after kill -$signal" 0 "$(sleep 0.5; inside)"
  [[ $signal == KILL ]] || expect "what is left after kill -$signal" '' "$(left)"
done
"$run" true 2>/dev/null
expect 'what a killed script has left, after the next' '' "$(left)"
exit $((failures > 0))
