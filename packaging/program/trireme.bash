# Completion of trireme for bash: verbs, the options that --help of a verb lists, the values that it names, and files.
_trireme() {
  local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]-} before=${COMP_WORDS[COMP_CWORD-1]} help values=''
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    help=$(trireme --help 2>/dev/null)
    mapfile -t COMPREPLY < <(compgen -W "$(sed -nE 's/^  (-*[a-z]+) .*/\1/p' <<<"$help")" -- "$word")
    return
  fi
  help=$(trireme "$verb" --help 2>/dev/null)
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(sed -nE 's/^  (--[a-z-]+=?[a-z]*).*/\1/p' <<<"$help")" -- "$word")
    return
  fi
  # What a line of --help names between bars: "--type TYPE    f32 | f16 | ..."
  if [[ $before == --* ]]; then
    values=$(sed -nE "s/^  $before [^ ]* +//p" <<<"$help" | grep -oE '^[a-z0-9_]+( \| [a-z0-9_]+)+' |
      tr -s '| ' '\n' | awk '!seen[$0]++')
  fi
  mapfile -t COMPREPLY < <(if [[ -n $values ]]; then compgen -W "$values" -- "$word"; else compgen -f -- "$word"; fi)
}
complete -o filenames -F _trireme trireme
