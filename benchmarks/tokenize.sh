#!/usr/bin/env bash
# benchmarks/tokenize.sh [options]: tokenize/shards.py, which says more. A tokenize.py in this folder would hide
# Python's module of that name from the programs beside it that import torch.
# targets: benchmark_tokenize
# needs: utf8proc
set -euo pipefail
python=${TRIREME_PYTHON:-$TRIREME_SOURCE_DIR/build/venv/bin/python}
[[ -x $python ]] || python=python3
exec "$python" "$TRIREME_SOURCE_DIR/benchmarks/tokenize/shards.py" "$@"
