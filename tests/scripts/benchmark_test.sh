#!/usr/bin/env bash
# scripts/benchmark builds each target that there is, however long the list of targets is, says which are left out, and
# asks only for what the benchmark needs.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts" "$work/benchmarks" "$work/bin"
cp "$root/scripts/benchmark" "$root/scripts/install.bash" "$work/scripts/"
failures=0

# A cmake whose list of targets is longer than a pipe holds: who reads only its first line ends it with SIGPIPE.
cat >"$work/bin/cmake" <<'END'
#!/usr/bin/env bash
echo "cmake $*" >>"$CALLS"
case "$*" in
  *'--target help') echo 'benchmark_first: phony'; yes 'some_other_target: phony' | head -n 100000 ;;
  --build*)
    mkdir -p "$2/benchmarks"
    printf '#!/bin/sh\necho ran\n' >"$2/benchmarks/first"
    chmod +x "$2/benchmarks/first" ;;
esac
END
for tool in g++ ninja ccache apt-get sudo; do
  printf '#!/bin/sh\necho "%s $*" >>"$CALLS"\n' "$tool" >"$work/bin/$tool"
done
chmod +x "$work"/bin/*
export CALLS=$work/calls

# benchmark NAME: runs it; its output is in $output, what it called in $CALLS.
benchmark() {
  : >"$CALLS"
  output=$(PATH=$work/bin:$PATH "$work/scripts/benchmark" "$1" 2>&1) && return
  echo "scripts/benchmark $1 failed"
  failures=$((failures + 1))
}
expect() {  # expect WHAT PATTERN TEXT
  [[ $3 == $2 ]] || { printf '%s: expected "%s", got:\n%s\n' "$1" "$2" "$3"; failures=$((failures + 1)); }
}

echo 'int main() {}' >"$work/benchmarks/first.cpp"
benchmark first
expect 'the benchmark' ran "$output"
expect 'what is built' '*--target benchmark_first*' "$(<"$CALLS")"

printf '# targets: benchmark_first benchmark_fir\n# needs: dnnl\n$TRIREME_BINARY_DIR/benchmarks/first\n' \
  >"$work/benchmarks/second.sh"
benchmark second
expect 'what is left out' '*benchmark_fir is left out*ran' "$output"
if [[ ! -e /usr/include/dnnl.h ]]; then expect 'what is installed' '*libdnnl-dev*' "$(<"$CALLS")"; fi
if [[ $(<"$CALLS") == *openmpi* ]]; then echo 'it asks for MPI, which nobody needs'; failures=$((failures + 1)); fi

echo '# needs: a-peer-that-nobody-knows' >"$work/benchmarks/third.sh"
if output=$(PATH=$work/bin:$PATH "$work/scripts/benchmark" third 2>&1); then failures=$((failures + 1)); fi
expect 'an unknown need' '*needs "a-peer-that-nobody-knows"*' "$output"

exit $((failures > 0))
