#!/usr/bin/env bash
# test-timeout: 240
# test-takes: 10
# The program trireme, installed: each verb's help, its exit codes, a run from training to what export and inspect say,
# the man page, and completion.
set -euo pipefail
root=${TRIREME_SOURCE_DIR:?} build=${TRIREME_BINARY_DIR:?}
if [[ ! -e $build/program/trireme.1 ]]; then
  echo "skipped: this build has no trireme_program (TRIREME_PROGRAM)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component program --prefix "$work/usr" >/dev/null
trireme=$work/usr/bin/trireme
cd "$work"
failed=0
fail() { echo "$*"; failed=1; }
gives() {  # gives CODE WORDS COMMAND...: the exit code, and words of what is said
  local code=$1 words=$2 status=0
  shift 2
  "$@" >said 2>&1 </dev/null || status=$?
  ((status == code)) && grep -qF -- "$words" said || fail "$* gives $status and not $code with \"$words\":
$(head -n 20 said)"
}

gives 0 "trireme VERB" "$trireme" --help
version=$(sed -n 's/^#define TRIREME_VERSION "\(.*\)"/\1/p' "$root/include/trireme/version.hpp")
gives 0 "trireme $version" "$trireme" --version
gives 2 "name a verb" "$trireme"
gives 2 "is not a verb" "$trireme" trian
TRIREME_LIBEXEC=$work gives 3 "is missing" "$trireme" train
# A package without MPI, or tokenizers, says so.
mkdir -p few
ln -s "$work/usr/libexec/trireme/trireme-train" few/
TRIREME_LIBEXEC=$work/few RANK=0 WORLD_SIZE=1 gives 3 "built without MPI" "$trireme" train
TRIREME_LIBEXEC=$work/few gives 3 "without utf8proc" "$trireme" tokenize

verbs=$("$trireme" --help | sed -nE 's/^  ([a-z]+) .*/\1/p')
for verb in $verbs; do
  grep -qE "^\| \`$verb\` \|" "$root/docs/commands.md" || fail "docs/commands.md has no row for $verb"
  code=2
  case $verb in
    train | serve) code=1 ;;
    tokenize) [[ -e $work/usr/libexec/trireme/trireme-tokenize ]] || continue ;;
  esac
  [[ $verb == serve && ! -e $work/usr/libexec/trireme/trireme-serve ]] && continue
  gives 0 "  --" "$trireme" "$verb" --help
  gives $code "" "$trireme" "$verb" --no-such-option
done

head -c 20000 "$root/LICENSE" >text.txt
gives 0 "done after 2 of 2 steps" "$trireme" train --text text.txt --steps 2 --layers 1 --channels 32 --heads 2 \
  --context 32 --batch 4 --ranks 1
gives 0 "checkpoint of step 2, epoch 0: nn::gpt{" "$trireme" inspect runs/gpt
for words in "summary of a run: " "model of Hugging Face's format: gpt2" "/model.safetensors: safetensors: "; do
  grep -qF -- "$words" said || fail "inspect runs/gpt does not say \"$words\""
done
gives 0 "wrote runs/gpt/model/model-q8_0.gguf" "$trireme" export runs/gpt/model --to gguf --type q8_0
gives 0 "gguf of gpt2: " "$trireme" inspect --tensors runs/gpt/model/model-q8_0.gguf
grep -qE "^  Q8_0 \(96, 32\) blk.0.attn_qkv.weight" said || fail "inspect --tensors does not list a tensor: $(cat said)"
truncate -s -1 runs/gpt/model/model-q8_0.gguf
gives 1 "inspect: " "$trireme" inspect runs/gpt/model/model-q8_0.gguf
gives 1 "none of the files that inspect knows" "$trireme" inspect text.txt
gives 0 "zero1=2" "$trireme" plan --ranks 2 --samples 8
gives 0 "zero1=2,pipeline=2:1f1b,tensor=2" "$trireme" plan --ranks 8 --parallel zero1,pipeline=2:1f1b,tensor=2
gives 2 "do not make 8 ranks" "$trireme" plan --ranks 8 --parallel zero1=8,tensor=2

if command -v man >/dev/null; then
  MANWIDTH=200 man --warnings -l usr/share/man/man1/trireme.1 2>warnings | col -b >page ||
    fail "man cannot read the page"
  [[ ! -s warnings ]] || fail "man warns: $(cat warnings)"
  for words in "--parallel" "--dialect" "--drain-seconds" "--network" "EXIT STATUS"; do
    grep -qF -- "$words" page || fail "the man page has no $words"
  done
fi

completes() {  # completes WANTED WORDS...
  local wanted=$1 got
  shift
  got=$(PATH=$work/usr/bin:$PATH bash -c '
    source "$1"; shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _trireme; echo "${COMPREPLY[*]}"' _ \
    "$work/usr/share/bash-completion/completions/trireme" "$@")
  [[ $got == "$wanted" ]] || fail "completion of \"$*\" gives \"$got\" and not \"$wanted\""
}
completes "train" trireme tr
completes "tokenize" trireme to
completes "--resume --resume=auto" trireme train --resu
completes "--dialect" trireme export --di
completes "f32 f16" trireme export --type f
completes "text.txt" trireme inspect te
exit $failed
