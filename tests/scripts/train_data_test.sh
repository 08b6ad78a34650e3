#!/usr/bin/env bash
# scripts/train --data FILE.jsonl makes tokens of the file once, and trains on them; the programs are stand-ins.
set -euo pipefail
source_dir=${TRIREME_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
for header in utf8proc.h pcre2.h zlib.h; do
  [[ -e /usr/include/$header ]] || { echo "skipped: scripts/train would install $header"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/build/release/examples" "$work/bin"
cp -r "$source_dir/scripts" "$root/"
cat >"$root/build/release/examples/train_gpt" <<'END'
#!/bin/sh
echo "train_gpt $*"
END
cat >"$root/build/release/examples/tokenize" <<'END'
#!/bin/sh
echo "tokenize $*" >>"$(dirname "$0")/calls"
while [ "$1" != --out ]; do shift; done
case $* in *fails*) exit 1 ;; esac
mkdir "$2"
END
printf '#!/bin/sh\necho "$*" >>"%s/cmake"\n' "$work" >"$work/bin/cmake"
chmod +x "$root"/build/release/examples/* "$work/bin/cmake"
export PATH=$work/bin:$PATH
cd "$work"
calls=$root/build/release/examples/calls
echo '{"text": "a"}' >a.jsonl
echo '{}' >tokenizer.json
failed=0
expect() {  # expect TEXT PART...: each part is in the text
  local all=$1 part
  shift
  for part; do
    [[ $all == *"$part"* ]] || { echo "FAILED: \"$all\" is without \"$part\""; failed=1; }
  done
}

said=$("$root/scripts/train" --data a.jsonl --tokenizer tokenizer.json --key body --steps 3 2>&1)
expect "$said" "--tokenizer $work/tokenizer.json" "--steps 3" "--data $root/runs/data/tokens-"
expect "$(cat "$calls")" "--key body $work/a.jsonl" "--tokenizer $work/tokenizer.json --out $root/runs/data/tokens-"
expect "$(cat "$work/cmake")" "--target train_gpt tokenize"
"$root/scripts/train" --tokenizer=tokenizer.json --key=body --data=a.jsonl >/dev/null 2>&1
expect "$(wc -l <"$calls") calls" "1 calls"  # the same tokens
"$root/scripts/train" --data a.jsonl --tokenizer tokenizer.json >/dev/null 2>&1
echo '{"text": "b"}' >>a.jsonl
"$root/scripts/train" --data "$work/*.jsonl" --tokenizer tokenizer.json >/dev/null 2>&1
expect "$(wc -l <"$calls") calls" "3 calls"  # other options, then another text
expect "$(tail -n 1 "$calls")" "$work/*.jsonl"
gzip -k a.jsonl
"$root/scripts/train" --data a.jsonl.gz --tokenizer tokenizer.json >/dev/null 2>&1
expect "$(tail -n 1 "$calls")" "$work/a.jsonl.gz"
expect "$(wc -l <"$calls") calls" "4 calls"
said=$("$root/scripts/train" --data shards --vocabulary 9 2>&1)
expect "$said" "--data $work/shards"
expect "$(wc -l <"$calls") calls" "4 calls"

# Conversations are trained on as they are.
printf '\n{"prompt": "a", "completion": "b"}\n' >chats.jsonl
said=$("$root/scripts/train" --data chats.jsonl --tokenizer tokenizer.json --chat chatml 2>&1)
expect "$said" "--chat chatml" "--data $work/chats.jsonl"
gzip -k chats.jsonl
expect "$("$root/scripts/train" --data chats.jsonl.gz --tokenizer tokenizer.json 2>&1)" "--data $work/chats.jsonl.gz"
expect "$("$root/scripts/train" --data 'chat*.jsonl' --tokenizer tokenizer.json 2>&1)" "--data $work/chat*.jsonl"
expect "$(wc -l <"$calls") calls" "4 calls"
echo '{"text": "\"messages\": no"}' >quoted.jsonl
"$root/scripts/train" --data quoted.jsonl --tokenizer tokenizer.json >/dev/null 2>&1
expect "$(wc -l <"$calls") calls" "5 calls"

refused() {  # refused PART ARGUMENTS...
  local part=$1 said
  shift
  if said=$("$root/scripts/train" "$@" 2>&1); then
    echo "FAILED: $* was not refused"
    failed=1
  fi
  expect "$said" "$part"
}
refused "is text; give the --tokenizer" --data a.jsonl
refused "holds conversations; give the --tokenizer" --data chats.jsonl
refused "is text; give the --tokenizer" --data a.txt --tokenizer a.model
refused "--key goes with --data FILE.txt or FILE.jsonl" --data shards --vocabulary 9 --key body
refused "no file matches --data $work/no.txt" --data no.txt --tokenizer tokenizer.json
refused "--data needs files" --data
refused "--separator needs a value" --data a.jsonl --separator
echo >fails.txt
refused "" --data fails.txt --tokenizer tokenizer.json
exit "$failed"
