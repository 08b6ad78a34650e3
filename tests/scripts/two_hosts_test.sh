#!/usr/bin/env bash
# test-timeout: 180
# Hosts on one machine: their names, the line between them, their end; and the ladder of MPI across the line, where sums
# are carried from host to host.
set -u
run=$TRIREME_SOURCE_DIR/scripts/two-hosts
"$run" true 2>/tmp/two-hosts.$$ || { echo "skipped: $(cat /tmp/two-hosts.$$)"; rm -f /tmp/two-hosts.$$; exit 77; }
rm -f /tmp/two-hosts.$$
failed=0
expect() {  # expect WHAT WANTED GOT
  [[ $3 == $2 ]] || { echo "$1: expected \"$2\", got \"$3\""; failed=1; }
}
expect 'host names' 'host-0 host-1' "$("$run" sh -c 'echo $(hostname) $(on-host 1 hostname)')"
expect 'four host names' 'host-0 host-1 host-2 host-3' \
  "$("$run" --hosts 4 sh -c 'for host in 0 1 2 3; do on-host $host hostname; done' | xargs)"
"$run" --hosts 1 true 2>/dev/null
expect 'exit code of a wrong number of hosts' 2 $?
expect 'the rate' '*rate 50Mbit*' "$("$run" --rate 50mbit tc qdisc show dev eth0)"
answer='import socket, subprocess, sys, time
listening = socket.create_server(("10.0.0.1", 5000))
code = "import socket; c = socket.create_connection((\"10.0.0.1\", 5000)); c.recv(1); c.sendall(b\"b\"); c.recv(1)"
other = subprocess.Popen(["on-host", "1", sys.executable, "-c", code])
there, _ = listening.accept()
start = time.monotonic()
there.sendall(b"a")
there.recv(1)
print("as long as twice the delay" if 0.06 <= time.monotonic() - start < 0.2 else time.monotonic() - start)'
expect 'an answer over a line with a delay' 'as long as twice the delay' "$("$run" --delay 30ms python3 -c "$answer")"
expect 'an answer over a switch' 'as long as twice the delay' "$("$run" --hosts 3 --delay 30ms python3 -c "$answer")"
"$run" --delay 30 true 2>/dev/null
expect 'exit code of a wrong delay' 2 $?
"$run" sh -c 'exit 7'
expect 'exit code' 7 $?
"$run" --colour red true 2>/dev/null
expect 'exit code of a wrong option' 2 $?

# Nothing is left, whatever ends it. The number makes the command line this test's own.
for signal in TERM KILL; do
  "$run" sh -c "on-host 1 sleep 98765.$$ & sleep 98765.$$" >/dev/null 2>&1 &
  started=$!
  for ((i = 0; i < 100; ++i)); do
    (($(pgrep -fc "^sleep 98765.$$") < 2)) || break
    sleep 0.1
  done
  expect 'processes on both hosts' 2 "$(pgrep -fc "^sleep 98765.$$")"
  kill -$signal $started
  wait $started 2>/dev/null
  for ((i = 0; i < 50; ++i)); do
    pgrep -f "^sleep 98765.$$" >/dev/null || break
    sleep 0.1
  done
  expect "processes after kill -$signal" 0 "$(pgrep -fc "^sleep 98765.$$")"
done

ladder=$TRIREME_BINARY_DIR/tests/ladder.mpi
if command -v mpirun >/dev/null && [[ -x $ladder ]]; then
  expect 'where mpirun puts two processes' $'host-0\nhost-1' "$(timeout 60 "$run" mpirun -n 2 hostname 2>&1 | sort)"
  rung='every rung holds on the processes of mpirun in shared memory'  # which two hosts do not have: messages
  said=$(timeout 150 "$run" mpirun -n 2 "$ladder" "$rung" 2>&1)
  expect 'exit code of the ladder' 0 $?
  expect 'what the ladder says' '*All tests passed*' "$said"
  rung='sums between the hosts of mpirun have the bits of flat sums'
  for shape in '2 4' '3 3'; do
    read -r hosts ranks <<<"$shape"
    said=$(timeout 100 "$run" --hosts $hosts \
      mpirun -n $((hosts * ranks)) --map-by ppr:$ranks:node "$ladder" "$rung" 2>&1)
    expect "exit code of $hosts hosts of $ranks ranks" 0 $?
    expect "what $hosts hosts of $ranks ranks say" '*All tests passed*' "$said"
  done
else
  echo "the ladder was left out: $ladder was not built"
fi
exit $failed
