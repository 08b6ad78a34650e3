#pragma once

#include "trireme/ops/host/attention.hpp"
#include "trireme/ops/host/attention_block.hpp"
#include "trireme/ops/host/codes.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/embedding.hpp"
#include "trireme/ops/host/heads.hpp"
#include "trireme/ops/host/losses.hpp"
#include "trireme/ops/host/low_rank.hpp"
#include "trireme/ops/host/normalisation.hpp"
#include "trireme/ops/host/products.hpp"
#include "trireme/ops/host/reductions.hpp"
#include "trireme/ops/host/routing.hpp"
#include "trireme/ops/host/updates.hpp"
#include "trireme/ops/host/values.hpp"
#include "trireme/ops/host/visible_keys.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// The kernels of host memory; each base class documents its own.
/// Threads  each function uses only the calling thread; thread-safe on different outputs.
template <>
struct on<host> : host_elementwise,
                  host_products,
                  host_embedding,
                  host_normalisation,
                  host_attention,
                  host_attention_block,
                  host_codes,
                  host_heads,
                  host_losses,
                  host_low_rank,
                  host_updates,
                  host_reductions,
                  host_routing,
                  host_values,
                  host_visible_keys {};

}  // namespace trireme::ops
