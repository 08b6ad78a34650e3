#pragma once

#include <cmath>
#include <cstdint>

#include "trireme/ops/cuda/attention.cuh"
#include "trireme/ops/cuda/attention_launch.hpp"
#include "trireme/ops/cuda/types.cuh"

// What the files share that launch kernels of attention. There are four, because nvcc needs the most time for these.

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

/// Whether packs of so many elements of all rows are aligned.
template <class T, std::int64_t Packed>
class aligned_rows {
 public:
  explicit aligned_rows(attention_work const& work) : whole_(work.width % packed == 0) {}
  template <class Address>
  aligned_rows& operator<<(attention_rows<Address> const& rows) {
    whole_ = whole_ && reinterpret_cast<std::uintptr_t>(rows.address) % (packed * sizeof(T)) == 0 &&
             rows.next_row % packed == 0 && rows.next_sample % packed == 0;
    return *this;
  }
  [[nodiscard]] bool whole() const { return whole_; }

 private:
  static constexpr std::int64_t packed = Packed;
  bool whole_;
};

inline device::attention_dropout dropout_of(attention_work const& work) {
  if (work.dropout <= 0 || work.samples == nullptr) return {};
  return {true, static_cast<float>(std::lround(work.dropout * 0x1p24)), 1 / (1 - work.dropout), work.samples};
}

/// Calls f.operator()<T, D, Merges>() for the element type, the padded width of a head, and whether it merges.
template <class F>
int for_attention(attention_work const& work, F const& f) {
  return device::for_floats(work.of, [&]<class T>(T) {
    auto const with_width = [&]<int D>() {
      return work.merges ? f.template operator()<T, D, true>() : f.template operator()<T, D, false>();
    };
    if (work.width <= 64) return with_width.template operator()<64>();
    if (work.width <= 128) return with_width.template operator()<128>();
    if (work.width <= widest_head) return with_width.template operator()<256>();
    return device::launch_refused;
  });
}

/// Elements that the kernels without tensor cores read at once: 4 floats' or 2 doubles' worth.
template <class T>
inline constexpr std::int64_t read_at_once = 16 / sizeof(device::real_for<T>);

template <int Rows>
std::int64_t tiles(std::int64_t rows) {
  return (rows + Rows - 1) / Rows;
}

/// Calls f.operator()<D, Drops>() for the kernels that multiply tiles.
template <class F>
int for_tiles(attention_work const& work, F const& f) {
  bool const drops = work.dropout > 0 && work.samples != nullptr;
  auto const with_width = [&]<int D>() {
    return drops ? f.template operator()<D, true>() : f.template operator()<D, false>();
  };
  return work.width <= 64 ? with_width.template operator()<64>() : with_width.template operator()<128>();
}
/// Whether the kernels that multiply tiles take these rows, on this device.
template <class T>
bool takes_tiles(attention_work const& work, bool backward, bool there) {
  if (!there || work.width > 128) return false;
  aligned_rows<T, 8> rows(work);
  rows << work.queries << work.key << work.value;
  if (backward) rows << work.dy;
  if (backward || !work.merges) rows << work.y;
  if (backward && !work.merges) rows << work.dqueries << work.dkey << work.dvalue;
  return rows.whole();
}

/// The kernels that multiply tiles, for elements of 16 bits; false if they do not take these rows, or not on this
/// device. Otherwise `code` is a cudaError_t.
[[nodiscard]] bool attention_of_tiles(attention_work const& work, int& code);
[[nodiscard]] bool attention_backward_of_tiles(attention_work const& work, int& code);

}  // namespace trireme::ops::cuda_kernels
