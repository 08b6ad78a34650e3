#pragma once

// Everything that a training program needs. Not included, because not every program needs them: the communicators of
// comm/mpi.hpp, comm/processes.hpp and comm/nccl.hpp, the decorators (comm/checked.hpp, ...),
// formats/tensorboard.hpp, formats/chrome_trace.hpp, observe/progress.hpp, nn/one_of.hpp (a model chosen at run time),
// nn/pretrained.hpp and train/pretrained.hpp (models in Hugging Face's files).

#include "trireme/core/dialect.hpp"  // first: it rejects settings under which later headers would give obscure errors

#include "trireme/comm/comm.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/core/cores.hpp"
#include "trireme/data/data.hpp"
#include "trireme/nn/nn.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/any_pipeline.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/parameter_server.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/instances.hpp"
#include "trireme/train/train.hpp"
#include "trireme/version.hpp"
