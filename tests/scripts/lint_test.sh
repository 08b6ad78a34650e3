#!/usr/bin/env bash
# Each rule of scripts/lint refuses what it is there for, and leaves alone what only looks like it.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# put FILE TEXT: a file of the trial tree. Headers get their #pragma once.
put() {
  mkdir -p "$tree/$(dirname "$1")"
  { [[ $1 == *.hpp ]] && printf '#pragma once\n'; printf '%b\n' "$2"; } >"$tree/$1"
}
# refuses RULE 'what the finding says': exactly one finding of that rule, and it says so. Empties the tree.
refuses() {
  local output
  if output=$("$root/scripts/lint" --root "$tree" --only "$1") || [[ $output != *": $1: "*"$2"* ]] ||
    [[ $output != *"lint: 1 findings" ]]; then
    printf 'lint does not refuse as %s: %s\n%s\n' "$1" "$2" "$output"
    failures=$((failures + 1))
  fi
  rm -rf "${tree:?}"/*
}
accepts() {
  local output
  if ! output=$("$root/scripts/lint" --root "$tree" --only "$1"); then
    printf 'lint refuses what %s allows:\n%s\n' "$1" "$output"
    failures=$((failures + 1))
  fi
  rm -rf "${tree:?}"/*
}

h=include/trireme
put $h/core/a.hpp '#include "trireme/contract/b.hpp"';          refuses arrows 'core must not include contract'
put $h/comm/a.hpp '#include "trireme/optim/b.hpp"';             refuses arrows 'comm must not include optim'
put $h/ops/host/a.hpp '#include "trireme/nn/b.hpp"';            refuses arrows 'ops must not include nn'
put $h/nn/a.inl '#include "trireme/parallel/b.hpp"';            refuses arrows 'nn must not include parallel'
put $h/ops.hpp '#include "trireme/train/b.hpp"';                refuses arrows 'ops must not include train'
put $h/sails/a.hpp '#include "trireme/core/b.hpp"';             refuses arrows 'sails is not a room'
put $h/train/a.hpp '#include "trireme/core/b.hpp"\n#include "trireme/parallel/c.hpp"'
put $h/trireme.hpp '#include "trireme/train/a.hpp"'
put $h/formats/a.hpp '#include "trireme/version.hpp"\n// #include "trireme/train/a.hpp"'
accepts arrows

put $h/train/a.hpp '#include "trireme/comm/detail/b.hpp"';      refuses detail 'only comm may include'
put tests/nn/a_test.cpp '#include "trireme/comm/detail/b.hpp"'; refuses detail 'only comm may include'
put examples/a.cpp '#include "trireme/comm/detail/b.hpp"';      refuses detail 'only comm may include'
put tests/nn/a_test.cpp '#include "trireme/comm/node/b.hpp"';   refuses detail 'only comm may include'
put $h/comm/a.hpp '#include "trireme/comm/detail/b.hpp"\n#include "trireme/comm/node/b.hpp"'
put $h/ops/host/a.hpp '#include "trireme/ops/host/detail/b.hpp"'
put tests/comm/a_test.cpp '#include "trireme/comm/detail/b.hpp"'
accepts detail

put $h/comm/threads.hpp '#include <mpi.h>';                     refuses mpi 'mpi.h belongs to'
put $h/trireme.hpp '#include "trireme/comm/mpi.hpp"';           refuses mpi 'needs MPI'
put $h/comm/node/a.hpp '#include "trireme/comm/mpi/request.hpp"'; refuses mpi 'needs MPI'
put $h/comm/mpi.hpp '#include <mpi.h>\n#include "trireme/comm/mpi/request.hpp"'
put $h/comm/mpi/request.hpp '#include <mpi.h>'
put examples/a.cpp '#include "trireme/comm/mpi.hpp"'
accepts mpi

put $h/comm/threads.hpp '#include <cuda_runtime.h>';            refuses cuda 'headers of CUDA belong to'
put $h/comm/cuda.hpp '#include <nccl.h>';                       refuses cuda 'nccl.h belongs to'
put $h/comm/comm.hpp '#include "trireme/comm/cuda.hpp"';        refuses cuda 'needs CUDA'
put $h/trireme.hpp '#include "trireme/comm/nccl.hpp"';          refuses cuda 'needs CUDA'
put $h/comm/cuda.hpp '#include "trireme/comm/nccl.hpp"';        refuses cuda 'needs NCCL'
put $h/comm/node/a.hpp '#include "trireme/comm/nccl/launch.hpp"'; refuses cuda 'needs CUDA'
put $h/ops/cuda/a.cuh 'asm("mov.u32 %0, %laneid;" : "=r"(lane));'; refuses cuda 'only ops/cuda/device.hpp has PTX'
put $h/ops/cuda/a.cuh 'auto const other = __shfl_sync(mask, x, 0);'; refuses cuda 'only ops/cuda/device.hpp has PTX'
put $h/ops/cuda/a.hpp 'kernel<<<1, 32>>>(x);';                  refuses cuda 'only ops/cuda/device.hpp has PTX'
put $h/ops/cuda/a.cu 'return ::cudaStreamSynchronize(stream);'; refuses cuda "does not call CUDA's runtime"
put $h/ops/cuda/device.hpp 'asm("" : "+r"(word));\n__syncthreads();\nkernel<<<1, 32>>>(x);'
put $h/ops/cuda/a.cuh '__global__ void __launch_bounds__(256) f();  // as __shfl_sync(x)'
put $h/ops/cuda/a.hpp '#if __has_include(<cudnn.h>)\n#endif\nqueued(::cudaMemsetAsync(x, 0, 4, stream));'
put $h/ops/cuda/cublas.cu '::cudaFree(x);'
put $h/core/cuda_space.hpp '#include <cuda_runtime.h>'
put $h/comm/cuda.hpp '#include "trireme/core/cuda_space.hpp"'
put $h/comm/cuda_kernels.cu '#include <cuda_runtime.h>\n#include "trireme/comm/detail/cuda_kernels.hpp"'
put $h/comm/nccl.hpp '#include <nccl.h>\n#include "trireme/comm/cuda.hpp"'
put $h/comm/nccl/launch.hpp '#include <nccl.h>\n#include "trireme/core/cuda_space.hpp"'
put examples/a.cpp '#include "trireme/comm/nccl.hpp"'
accepts cuda

put $h/nn/a.hpp 'auto* p = raw(view);';                         refuses raw 'only in ops and comm'
put $h/core/arena.hpp 'auto* p = trireme::raw(view);';          refuses raw 'only in ops and comm'
put $h/ops/a.hpp 'auto* p = raw(view);'
put $h/comm/a.hpp 'auto* p = raw(view);'
put $h/core/tensor.hpp 'T* raw(view);'
put $h/nn/a.hpp 'draw(view); /* raw(view) */ // raw(view)\nauto s = "raw(view)";'
accepts raw

put $h/nn/a.hpp '  std::abort();';                              refuses exit 'never ends the program'
put $h/nn/a.hpp 'if (bad) exit(1);';                            refuses exit 'never ends the program'
put $h/nn/a.hpp '  assert(x == 1);';                            refuses exit 'never ends the program'
put $h/nn/a.hpp 'f(); std::terminate();';                       refuses exit 'never ends the program'
put $h/nn/a.hpp 'static_assert(true);\nvoid abort(int code);\nworld.abort(3);\n/*\nabort();\n*/ int x;'
accepts exit

put $h/nn/a.hpp 'std::istringstream in(line);';                 refuses locale 'the locale of the program decides'
put $h/nn/a.hpp 'std::snprintf(line, 8, "%g", x);';             refuses locale 'the locale of the program decides'
put $h/nn/a.hpp 'auto x = strtod(word, nullptr);';              refuses locale 'the locale of the program decides'
put $h/nn/a.hpp 'if (std::isspace(letter)) return;';            refuses locale 'the locale of the program decides'
put $h/nn/a.hpp 'std::to_chars(a, b, x); log.printf(3); is_digit(c); // std::stoi(x)\nstd::fputs(text(x).c_str(), to);'
accepts locale

mkdir -p "$tree/$h/nn"
echo 'int x;' >"$tree/$h/nn/a.hpp";                             refuses guard '#pragma once is missing'
put $h/nn/a.hpp '#if X\n#include "trireme/core/b.hpp"\n#endif'; refuses guard 'inside #if'
put $h/nn/a.hpp '#if X\n#include <vector>\n#include "trireme/core/b.inl"\n#endif\n#include "trireme/core/b.hpp"'
accepts guard

put $h/nn/a.hpp "// $(printf 'x%.0s' {1..118})";                refuses length 'over 120 columns'
put $h/nn/a.hpp "// $(printf 'é%.0s' {1..117})";                accepts length

put $h/nn/a.hpp '/// What it holds for two\n/// ranks\n/// and why.';    refuses comment 'a word alone on its line'
put $h/nn/a.hpp '/// What it is for.\n/// first\n// What\n// it\nint x;'; accepts comment

marker=$(printf '<%.0s' {1..7})
put docs/a.md "one\n$marker main\ntwo";                        refuses conflict 'nobody chose'
put $h/nn/a.hpp "int x;\n${marker//</>} 1a2b3c";               refuses conflict 'nobody chose'
put docs/a.md "Title\n=======\n$marker> ends\n  $marker main"; accepts conflict

put docs/a.md "A partial sum is no tensor.";                    refuses words 'say what it is'
put README.md "Bytes are sent to who wants them.";             refuses words 'name the rank'
put docs/adr/a.md "A NaN is then everybody's.";                refuses words 'name the ranks'
put docs/a.md "There is no GPU, and the loop is no longer than ten lines.\n\n    it is no tensor\n\n\`is no x\`\n"
put CONTRIBUTING.md "\`\`\`cpp\n// what it is for\n\`\`\`"
put $h/nn/a.hpp 'int is_no_tensor;  // There is no other.'
put packaging/a.cpp '// This is no tensor.';                     accepts words
put $h/nn/a.hpp 'int x;  // This is no tensor.';                 refuses words 'say what it is'
put src/a.cpp '// This is no tensor.';                           refuses words 'say what it is'

put docs/a.md "## One\n### Use\n## Two\n### Use\n\`\`\`\n# a\n# a\n\`\`\`"; accepts headings
put docs/a.md "## One\n### Use\ntext\n### Use";                 refuses headings 'stands twice; keep one'

if command -v clang-format-14 >/dev/null || [[ -x $root/build/venv/bin/clang-format ]]; then
  cp "$root/.clang-format" "$tree/"
  put $h/nn/a.hpp 'int   x ;';                                  refuses format 'run scripts/lint --fix'
fi

((failures == 0)) && echo "every rule refuses and accepts what it should"
exit $((failures > 0))
