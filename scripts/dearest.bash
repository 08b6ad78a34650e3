# What a run of scripts/test has spent its time on.

# report_dearest LOG NINJA_LOG: the ten dearest tests of ctest's output LOG and the ten dearest builds in NINJA_LOG,
# with their seconds on the clock, and the sums of both. Of a target that was built several times the last time counts.
report_dearest() {
  local builds tests
  # start, end (milliseconds), time of the file, output, hash
  local sums
  builds=$(awk -F'\t' 'NF == 5 && $3 > 0 { seconds[$4] = ($2 - $1) / 1000; last[$4] = $1 "-" $2 }
    END { for (output in seconds)  # outputs of one command have the same times: one of them stands for all
            if (!(last[output] in seen)) { seen[last[output]]; printf "%.1f s  %s\n", seconds[output], output } }' \
    "$2" 2>/dev/null | LC_ALL=C sort -k1,1nr -k3,3)
  tests=$(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\2 s  \1/p' "$1" |
    LC_ALL=C sort -k1,1nr -k3,3)
  sums=$(awk 'NF { sum += $1; ++n } END { printf "%.0f s in %d\n", sum, n }' <<<"$builds")
  sums+=", tests $(awk 'NF { sum += $1; ++n } END { printf "%.0f s in %d\n", sum, n }' <<<"$tests")"
  echo "seconds, one after another: builds $sums"
  echo "the dearest builds:"
  sed -n '1,10s/^/  /p' <<<"$builds"
  echo "the dearest tests:"
  sed -n '1,10s/^/  /p' <<<"$tests"
}
