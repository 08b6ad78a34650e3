#!/usr/bin/env bash
# instead.sh COMMAND... instead-of COMPILER ARGUMENTS...: runs COMMAND with the arguments of the compiler. A launcher
# for CMake, which has one compiler for a language: a target whose launcher this is gets another one.
command=()
while [[ $1 != instead-of ]]; do
  command+=("$1")
  shift
done
shift 2
exec "${command[@]}" "$@"
