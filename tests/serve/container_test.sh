#!/usr/bin/env bash
# test-timeout: 1800
# test-takes: 150
# test-after: bare.newcomer_sh
# The image of Containerfile, made by buildah without a registry, from Debian's packages: it answers as nobody, from a
# folder that it cannot write to, its health check asks it, and it ends with 0 after SIGTERM.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
skip() { echo "skipped: $1"; exit 77; }
for tool in buildah mmdebstrap apt-get python3; do
  command -v $tool >/dev/null || skip "$tool is not installed"
done
((EUID == 0)) || skip "making a Debian needs root"
work=$(mktemp -d)
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$work/storage" --runroot "$work/run" "$@"; }
running='' port=''
end_server() {  # buildah, which started it, then ends too
  local id found=1
  for id in $(pgrep -f -- "--port $port"); do
    if [[ $(readlink "/proc/$id/exe") == */serve ]]; then kill -TERM "$id" && found=0; fi
  done
  return $found
}
leave() {
  if [[ -n $running ]]; then end_server && wait "$running" || true; fi
  timeout 30 buildah --root "$work/storage" --runroot "$work/run" rm --all >/dev/null 2>&1 || true
  umount "$work"/storage/* 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap leave EXIT

# A Debian as scripts/bare-machine makes it, with this machine's way to its packages.
tar=${BARE_CACHE:-/var/tmp/bare}/bookworm.minbase.tar
if [[ ! -s $tar ]]; then
  tar=$work/bookworm.tar
  from=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
  mmdebstrap --quiet --format=tar --variant=minbase bookworm "$tar" "$from" >"$work/log" 2>&1 ||
    skip "mmdebstrap could not fetch Debian"
fi
container=$(buildah from scratch)
buildah add --quiet "$container" "$tar" / >/dev/null
mkdir "$work/apt"
cp /etc/apt/apt.conf.d/* "$work/apt/" 2>/dev/null || true
buildah add --quiet "$container" "$work/apt" /etc/apt/apt.conf.d/ >/dev/null
if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then
  buildah add --quiet "$container" /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ >/dev/null
fi
buildah commit --quiet --rm "$container" localhost/debian >/dev/null
cache=()
# What the tests on a bare machine have compiled with these flags, it need not compile once more.
if [[ -z ${CCACHE_DIR:-} ]] && command -v ccache >/dev/null; then CCACHE_DIR=$(ccache --get-config cache_dir); fi
if [[ -n ${CCACHE_DIR:-} ]]; then
  mkdir -p "$CCACHE_DIR"
  cache=(--volume "$CCACHE_DIR:/root/.cache/ccache")
fi
buildah build "${cache[@]}" --quiet --format docker --pull-never --build-arg BASE=localhost/debian --tag serve \
  --file "$root/Containerfile" "$root" >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }

told() { buildah inspect --type image --format "$1" serve; }
read -r user stop <<<"$(told '{{.Docker.Config.User}} {{.Docker.Config.StopSignal}}')"
[[ $user == 65534:65534 && $stop == SIGTERM ]] || { echo "the user is $user, the signal $stop"; exit 1; }
mapfile -t entry < <(told '{{range .Docker.Config.Entrypoint}}{{println .}}{{end}}')
mapfile -t health < <(told '{{range .Docker.Config.Healthcheck.Test}}{{println .}}{{end}}')
[[ ${entry[0]} == serve && ${health[0]} == CMD ]] || { echo "${entry[*]}: ${health[*]}"; exit 1; }

(cd "$root/tests/serve" && TRIREME_BINARY_DIR=${TRIREME_BINARY_DIR:-} python3 - "$work/model" <<'PYTHON'
import sys
import serving
serving.write_model(sys.argv[1], 256)
PYTHON
)
chmod -R a+rX "$work/model"
chmod a+x "$work"
container=$(buildah from --pull-never serve)
inside() { buildah run --volume "$work/model:/model:ro" "$container" -- "$@"; }
inside test -r /model/config.json
if inside touch /model/file 2>/dev/null || inside touch /usr/local/bin/file 2>/dev/null; then
  echo "the server could write a file"
  exit 1
fi
if inside g++ --version >/dev/null 2>&1; then echo "the image has a compiler"; exit 1; fi
# The port is free on a machine of our own, but perhaps not on this one, whose network the container shares here.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
inside "${entry[@]:0:4}" --port "$port" >"$work/said" 2>&1 &
running=$!
for ((i = 0; i < 100; ++i)); do
  grep -q "model at http" "$work/said" && break
  sleep 0.2
done
inside "${health[@]:1:2}" "${health[3]//8000/$port}" || { echo "the health check fails"; cat "$work/said"; exit 1; }
python3 - "$port" <<'PYTHON'
import json, sys, urllib.request
asked = urllib.request.Request("http://127.0.0.1:%s/v1/completions" % sys.argv[1],
                               json.dumps({"prompt": "The ", "max_tokens": 5}).encode(),
                               {"Content-Type": "application/json"})
told = json.load(urllib.request.urlopen(asked))
assert told["usage"]["completion_tokens"] == 5, told
PYTHON
end_server || { echo "no server runs"; exit 1; }
status=0
wait "$running" || status=$?
running=''
[[ $status == 0 ]] || { echo "the server ended with $status"; cat "$work/said"; exit 1; }
echo ok
