#!/usr/bin/env bash
# scripts/test-gpu without CUDA says what is missing, skips, and is no failure.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
output=$(PATH=/usr/bin:/bin CUDA_HOME=/nowhere "$root/scripts/test-gpu" --build "$(mktemp -d)")
status=$?
if command -v /usr/bin/nvcc >/dev/null; then
  echo "nvcc is where it cannot be hidden"
  exit 77
fi
if ((status != 0)) || [[ $output != *"skipped: no nvcc on the PATH nor in /nowhere/bin"* ]] ||
  [[ ${output##*$'\n'} != "0 passed, 0 failed, 1 skipped" ]]; then
  printf 'exit code %s:\n%s\n' "$status" "$output"
  exit 1
fi
