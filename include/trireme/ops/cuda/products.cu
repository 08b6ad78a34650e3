// The bodies of the functions of ops/cuda/products_launch.hpp but multiply(), compiled by the nvcc of the user as a
// part of trireme::cuda.
#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/products.cuh"
#include "trireme/ops/cuda/products_launch.hpp"
#include "trireme/ops/cuda/types.cuh"

namespace trireme::ops::cuda_kernels {

namespace {

namespace product_kernels {

namespace device = detail::device;

/// Calls f(T{}, S{}) with a type of elements, and of sums: the same, or float for 16 bits.
template <class F>
int for_sums(dtype of, dtype sums, F&& f) {
  return device::for_floats(of, [&]<class T>(T element) {
    if (sums == of) return f(element, element);
    if constexpr (storage_float<T>) {
      if (sums == dtype::f32) return f(element, float{});
    }
    return device::launch_refused;
  });
}
/// Whether packs of Width elements can be read at the address, and at those of all rows.
template <int Width, class T>
bool takes_packs(T const* address, std::int64_t row) {
  return reinterpret_cast<std::uintptr_t>(address) % (Width * sizeof(T)) == 0 && row % Width == 0;
}

/// The width of a tile of columns in the first kernel for sums of columns, if rows are read in packs.
template <class T>
constexpr std::int64_t tile_width = device::column_lanes* device::pack_width<T>;

template <int Width, class T>
int sum_chunks(handle stream, device::real_for<T>* partial, T const* x, std::int64_t rows, std::int64_t columns,
               std::int64_t row, std::int64_t rows_each, std::int64_t chunks) {
  constexpr std::int64_t width = device::column_lanes * Width;
  auto const tiles = (columns + width - 1) / width;
  return device::run("sum_columns", &device::sum_columns<Width, T>, chunks * tiles, device::block_threads, stream,
                     partial, x, rows, columns, row, rows_each, tiles);
}

}  // namespace product_kernels

}  // namespace

int finish_product(handle stream, product_finish const& what) {
  namespace device = detail::device;
  if (what.rows == 0 || what.columns == 0) return device::launch_succeeded;
  return product_kernels::for_sums(what.of, what.sums_type, [&]<class T, class S>(T, S) {
    device::finish_tensors<T, S> const all{
        static_cast<T*>(what.to),
        static_cast<S const*>(what.sums),
        static_cast<T const*>(what.bias),
        static_cast<T*>(what.kept),
        static_cast<T const*>(what.residual),
        static_cast<T const*>(what.slope_at),
        what.row,
        what.sums_row,
        what.act,
        what.accumulate,
    };
    constexpr int width = device::pack_width<T, S>;
    auto const fits = [&](auto const* address, std::int64_t row) {
      return product_kernels::takes_packs<width>(address, row);
    };
    bool const packs = what.columns % width == 0 && fits(all.sums, all.sums_row) && fits(all.to, all.row) &&
                       fits(all.bias, 0) && fits(all.kept, all.row) && fits(all.residual, all.row) &&
                       fits(all.slope_at, all.row);
    auto const launch = [&](auto* kernel, std::int64_t packs_of_row) {
      return device::run("finish_product", kernel, device::blocks_for(what.rows * packs_of_row), device::block_threads,
                         stream, all, what.rows, packs_of_row);
    };
    if (packs) return launch(&device::finish_product<width, T, S>, what.columns / width);
    return launch(&device::finish_product<1, T, S>, what.columns);
  });
}

std::size_t column_sums_bytes(dtype of, std::int64_t rows, std::int64_t columns) {
  std::int64_t chunks = 0;
  auto const known = product_kernels::for_sums(of, of, [&]<class T, class S>(T, S) {
    auto const each = detail::device::rows_of_chunk(rows, columns, product_kernels::tile_width<T>);
    chunks = (rows + each - 1) / each;
    return detail::device::launch_succeeded;
  });
  if (known != detail::device::launch_succeeded) return 0;
  return static_cast<std::size_t>(chunks * columns) * (of == dtype::f64 ? sizeof(double) : sizeof(float));
}

int column_sums(handle stream, dtype to, void* sums, dtype of, void const* x, std::int64_t rows, std::int64_t columns,
                std::int64_t row, void* scratch) {
  namespace device = detail::device;
  if (rows == 0 || columns == 0) return device::launch_succeeded;
  return product_kernels::for_sums(of, to, [&]<class T, class G>(T, G) {
    using real = device::real_for<T>;
    constexpr int width = device::pack_width<T>;
    auto* const partial = static_cast<real*>(scratch);
    auto const* const from = static_cast<T const*>(x);
    auto const each = device::rows_of_chunk(rows, columns, product_kernels::tile_width<T>);
    auto const chunks = (rows + each - 1) / each;
    // The last pack of a row may reach behind its last column, but not behind the row, so there is memory.
    auto const code = product_kernels::takes_packs<width>(from, row)
                          ? product_kernels::sum_chunks<width>(stream, partial, from, rows, columns, row, each, chunks)
                          : product_kernels::sum_chunks<1>(stream, partial, from, rows, columns, row, each, chunks);
    if (code != device::launch_succeeded) return code;
    return device::run("add_column_sums", &device::add_column_sums<G, real>,
                       (columns + device::last_columns - 1) / device::last_columns, device::block_threads, stream,
                       static_cast<G*>(sums), static_cast<real const*>(partial), columns, chunks);
  });
}

}  // namespace trireme::ops::cuda_kernels
