// The bodies of the functions of ops/cuda/attention_launch.hpp, compiled by the nvcc of the user as a part of
// trireme::cuda.
#include "trireme/ops/cuda/attention_launch.hpp"

#include <cmath>
#include <cstdint>

#include "trireme/ops/cuda/attention.cuh"
#include "trireme/ops/cuda/attention_tiles.cuh"
#include "trireme/ops/cuda/types.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

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

device::attention_dropout dropout_of(attention_work const& work) {
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
bool takes_tiles(attention_work const& work, bool backward) {
  if constexpr (!storage_float<T>) {
    return false;
  } else {
    static bool const there = device::products_of_tiles(&device::attend_tiles<T, 64, false>);
    if (!there || work.width > 128) return false;
    aligned_rows<T, 8> rows(work);
    rows << work.queries << work.key << work.value;
    if (backward) rows << work.dy;
    if (backward || !work.merges) rows << work.y;
    if (backward && !work.merges) rows << work.dqueries << work.dkey << work.dvalue;
    return rows.whole();
  }
}

template <int Rows>
std::int64_t tiles(std::int64_t rows) {
  return (rows + Rows - 1) / Rows;
}

template <class T>
int attention_of_tiles(attention_work const& work) {
  return for_tiles(work, [&]<int D, bool Drops>() {
    using tiled = device::tiled_attention<D>;
    auto const dropout = dropout_of(work);
    return device::run("attention_tiles", &device::attend_tiles<T, D, Drops>,
                       tiles<tiled::query_rows>(work.rows) * work.heads * work.batch, tiled::threads, work.stream, work,
                       dropout);
  });
}
template <class T>
int attention_backward_of_tiles(attention_work const& work) {
  return for_tiles(work, [&]<int D, bool Drops>() {
    using tiled = device::tiled_attention<D>;
    auto const dropout = dropout_of(work);
    auto const code = device::run("attention_tiles_queries", &device::attend_tiles_backward_queries<T, D, Drops>,
                                  tiles<tiled::query_rows>(work.rows) * work.heads * work.batch, tiled::threads,
                                  work.stream, work, dropout);
    if (code != device::launch_succeeded) return code;
    return device::run("attention_tiles_keys", &device::attend_tiles_backward_keys<T, D, Drops>,
                       tiles<tiled::key_rows>(work.keys) * work.heads * work.batch, tiled::threads, work.stream, work,
                       dropout);
  });
}

}  // namespace

int attention(attention_work const& work) {
  if (work.batch == 0 || work.rows == 0) return device::launch_succeeded;
  return for_attention(work, [&]<class T, int D, bool Merges>() {
    if (work.rows == 1 && work.lse == nullptr && !work.merges && work.samples == nullptr) {
      bool const whole = (aligned_rows<T, read_at_once<T>>(work) << work.queries << work.key << work.value).whole();
      return device::run("attention_one_query", &device::attend_one_query<T, D>, work.heads * work.batch,
                         device::attention_tiling<device::real_for<T>, D>::threads, work.stream, work, whole);
    }
    if constexpr (storage_float<T>) {
      if (takes_tiles<T>(work, false)) return attention_of_tiles<T>(work);
    }
    using tiling = device::attention_tiling<device::real_for<T>, D>;
    bool const whole = (aligned_rows<T, read_at_once<T>>(work) << work.queries << work.key << work.value).whole();
    auto const dropout = dropout_of(work);
    return device::run("attention", &device::attend<T, D, Merges>,
                       tiles<tiling::rows>(work.rows) * work.heads * work.batch, tiling::threads, work.stream, work,
                       dropout, whole);
  });
}
int attention_backward(attention_work const& work) {
  if (work.batch == 0 || work.rows == 0) return device::launch_succeeded;
  return for_attention(work, [&]<class T, int D, bool Merges>() {
    if constexpr (storage_float<T>) {
      if (takes_tiles<T>(work, true)) return attention_backward_of_tiles<T>(work);
    }
    using tiling = device::attention_tiling<device::real_for<T>, D>;
    bool const whole =
        (aligned_rows<T, read_at_once<T>>(work) << work.queries << work.key << work.value << work.dy << work.y).whole();
    auto const dropout = dropout_of(work);
    auto const code = device::run("attention_backward_queries", &device::attend_backward_queries<T, D, Merges>,
                                  tiles<tiling::rows>(work.rows) * work.heads * work.batch, tiling::threads,
                                  work.stream, work, dropout, whole);
    if (code != device::launch_succeeded) return code;
    return device::run("attention_backward_keys", &device::attend_backward_keys<T, D, Merges>,
                       tiles<tiling::rows>(work.keys) * work.heads * work.batch, tiling::threads, work.stream, work,
                       dropout, whole);
  });
}

}  // namespace trireme::ops::cuda_kernels
