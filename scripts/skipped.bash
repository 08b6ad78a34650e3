# What tests have not run, and why.

# report_skipped LOG INSTALLED: prints what tests say is missing (lines "skipped: REASON" of ctest's LastTest.log; also
# of tests that ran in part). Fails if INSTALLED is 1 and something is missing that scripts/test installs itself.
report_skipped() {
  local reasons
  # Of each test: its name, and the lines in which it says what is missing.
  reasons=$(sed -nE 's/^[0-9]+\/[0-9]+ Test: (.*)/\1/; t name; s/^skipped: (.*)/\1/; t reason; b
    :name; h; b
    :reason; G; s/(.*)\n(.*)/  \2: \1/p' "$1")
  reasons=$(awk "!seen[\$0]++" <<<"$reasons")  # a test may say it of each of its cases
  [[ -n $reasons ]] || return 0
  echo "skipped, because:"
  echo "$reasons"
  local ours='TRIREME_PYTHON is not set|TRIREME_TEST_DATA is not set|a package|the package'
  if (($2)) && grep -qE "$ours" <<<"$reasons"; then
    echo "test: something that scripts/test installs is missing, so this is a failure"
    return 1
  fi
}
