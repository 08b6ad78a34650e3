#pragma once

// The umbrella of this room: where samples come from, in which order, and in which batches.
#include "trireme/data/any_dataset.hpp"
#include "trireme/data/batch.hpp"
#include "trireme/data/evaluation.hpp"
#include "trireme/data/function.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/model_files.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/shares.hpp"
#include "trireme/data/token_file.hpp"
