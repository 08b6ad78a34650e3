#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/contract/paged_rows.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/attention.hpp"
#include "trireme/ops/cuda/elements.hpp"
#include "trireme/ops/cuda/paged_attention_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/paged_attention.hpp"

namespace trireme::ops {

/// Attention over pages in CUDA memory; see paged_attention_on<host>. The places of rows and the numbers of pages are
/// copied to the device by each call.
///
/// Shapes   as there; heads of at most 256 columns.
/// Bytes    scratch: 16 for each row, and 4 for each number of a page that rows.pages has.
/// Numerics softmax and sums in the accumulate type, in a fixed order: a row's result has the same bits regardless of
///          which rows and sequences are computed with it, but not the host's.
/// Threads  one caller per arena. Work is queued on cuda::stream() of the calling thread.
/// Errors   as there; config_error for wider heads; device_error with CUDA's message if work cannot be queued.
template <>
struct paged_attention_on<cuda> {
  template <detail::cuda_float T>
  static void attend_paged(tensor_view<T, cuda> y, tensor_view<T, cuda> kept,
                           std::type_identity_t<tensor_view<T const, cuda>> qkv, paged_rows const& rows,
                           paged_heads const& how, arena<cuda>& scratch) {
    detail::same_size("attend_paged", y.size(), rows.count() * how.channels());
    detail::same_size("attend_paged", qkv.size(), 3 * y.size());
    detail::same_size("attend_paged", kept.size(), rows.pages_in_all * how.page_size());
    detail::expect_cuda_head("attend_paged", how.width);
    if (y.empty()) return;
    auto const mark = scratch.mark();
    std::vector<std::int64_t> places;
    places.reserve(2 * rows.rows.size());
    for (auto const& each : rows.rows) {
      places.push_back(each.position);
      places.push_back(each.first_page);
    }
    auto const there = scratch.template take<std::int64_t>({2 * rows.count()});
    auto const pages = scratch.template take<std::int32_t>({static_cast<std::int64_t>(rows.pages.size())});
    cuda_elements::upload(there, std::span<std::int64_t const>(places));
    cuda_elements::upload(pages, rows.pages);
    cuda_kernels::paged_work const work{raw(there),    raw(pages), rows.count(), how.heads,
                                        how.key_heads, how.width,  how.window};
    detail::expect_cuda("attend_paged",
                        cuda_kernels::keep_pages(cuda::stream(), dtype_of<T>, raw(kept), raw(qkv), work));
    detail::expect_cuda("attend_paged",
                        cuda_kernels::attend_pages(cuda::stream(), dtype_of<T>, raw(y), raw(kept), raw(qkv), work));
    scratch.rewind(mark);
  }
};

}  // namespace trireme::ops
