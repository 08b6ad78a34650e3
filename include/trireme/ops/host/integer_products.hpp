#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/host/detail/integer_kernels.hpp"
#include "trireme/ops/host/detail/product_kernels.hpp"
#include "trireme/ops/host/products.hpp"
#include "trireme/ops/host/simd.hpp"

#define TRIREME_LEVEL baseline
#include "trireme/ops/host/detail/integer_store.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2
#include "trireme/ops/host/detail/integer_store.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512
#include "trireme/ops/host/detail/integer_store.inl"
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

/// What weights are rounded to for products of integers.
enum class weight_form {
  int8,  ///< 8 bits, a scale for each output and 128 inputs
  int4,  ///< 4 bits, a scale for each output and 64 inputs; tables of words (orientation::out_in) have int8
};
[[nodiscard]] constexpr std::string_view name_of(weight_form form) noexcept {
  return form == weight_form::int8 ? "int8" : "int4";
}
/// Errors   config_error for another name.
[[nodiscard]] inline weight_form weight_form_of(std::string_view name) {
  for (auto const form : {weight_form::int8, weight_form::int4}) {
    if (name == name_of(form)) return form;
  }
  throw config_error(text("trireme::ops::weight_form: \"", name, "\" is unknown; take int8 or int4"));
}

namespace detail {

/// The sizes of a weight (k, n) in strips of 32 columns: of each block of a strip first the scales, then the integers.
struct integer_layout {
  weight_form form = weight_form::int8;
  std::int64_t k = 0, n = 0;

  [[nodiscard]] std::int64_t chunks_in_block() const noexcept { return form == weight_form::int8 ? 2 : 1; }
  [[nodiscard]] std::int64_t block() const noexcept { return chunks_in_block() * integer_chunk; }
  [[nodiscard]] std::int64_t chunks() const noexcept { return (k + integer_chunk - 1) / integer_chunk; }
  [[nodiscard]] std::int64_t blocks() const noexcept { return (k + block() - 1) / block(); }
  [[nodiscard]] std::int64_t strips() const noexcept { return (n + integer_strip - 1) / integer_strip; }
  [[nodiscard]] std::int64_t chunk_bytes() const noexcept {
    return form == weight_form::int8 ? integer_chunk_bytes : integer_chunk_bytes / 2;
  }
  [[nodiscard]] std::int64_t strip_bytes() const noexcept {
    return chunks() * chunk_bytes() + blocks() * integer_scale_bytes;
  }
  /// Bytes of a strip as the kernels read it: with 8 bits a number.
  [[nodiscard]] std::int64_t unpacked_bytes() const noexcept {
    return chunks() * integer_chunk_bytes + blocks() * integer_scale_bytes;
  }
  [[nodiscard]] std::int64_t bytes() const noexcept { return strips() * strip_bytes(); }
};

/// A block of one column of a weight as integers from -127 to 127, or -8 to 7, and their scale.
template <std::size_t Most>
float integers_of(std::array<std::int8_t, Most>& to, std::array<float, Most> const& from, std::int64_t count,
                  weight_form form) {
  float most = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    auto const x = from[static_cast<std::size_t>(i)];
    finite = finite && std::isfinite(x);
    if (std::abs(x) > std::abs(most)) most = x;
  }
  to.fill(0);
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  if (std::abs(most) < 0x1p-120F) return 0;
  // The largest one of 4 bits becomes -8, the end that has one more.
  float const scale = form == weight_form::int8 ? std::abs(most) / 127 : most / -8;
  float const low = form == weight_form::int8 ? -127 : -8, high = form == weight_form::int8 ? 127 : 7;
  for (std::int64_t i = 0; i < count; ++i) {
    auto const x = from[static_cast<std::size_t>(i)] / scale;
    to[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(std::clamp(std::nearbyint(x), low, high));
  }
  return scale;
}

/// Writes a weight, (n, k) if `transposed` and else (k, n), as integers.
template <class T>
void pack_integers(std::uint8_t* to, T const* from, bool transposed, integer_layout const& layout) {
  std::array<float, 2 * std::size_t{integer_chunk}> column;
  std::array<std::int8_t, 2 * std::size_t{integer_chunk}> integers{};
  auto const k = layout.k, n = layout.n;
  for (std::int64_t strip = 0; strip < layout.strips(); ++strip) {
    for (std::int64_t first = 0; first < k; first += layout.block()) {
      auto const count = std::min(layout.block(), k - first);
      auto const chunks = (count + integer_chunk - 1) / integer_chunk;
      auto* const scales = elements_at<float>(to);
      to += integer_scale_bytes;
      for (std::int64_t j = 0; j < integer_strip; ++j) {
        auto const at = strip * integer_strip + j;
        scales[j] = 0;
        integers.fill(0);
        if (at < n) {
          for (std::int64_t i = 0; i < count; ++i) {
            column[static_cast<std::size_t>(i)] =
                static_cast<float>(transposed ? from[at * k + first + i] : from[(first + i) * n + at]);
          }
          scales[j] = integers_of(integers, column, count, layout.form);
        }
        for (std::int64_t i = 0; i < chunks * integer_chunk; ++i) {
          auto const place = (i / 4 * integer_strip + j) * 4 + i % 4;  // of a byte
          auto const q = integers[static_cast<std::size_t>(i)];
          if (layout.form == weight_form::int8) {
            to[place] = static_cast<std::uint8_t>(q + 128);
          } else {  // two halves of a chunk in the two halves of its bytes
            auto const half = integer_chunk_bytes / 2;
            auto const in_chunk = place % integer_chunk_bytes;
            auto& byte = to[place / integer_chunk_bytes * half + in_chunk % half];
            byte = static_cast<std::uint8_t>(in_chunk < half ? q + 8 : byte | (q + 8) << 4);
          }
        }
      }
      to += chunks * layout.chunk_bytes();
    }
  }
}

/// A strip of 4 bits a number as one of 8.
inline void unpack_strip(integer_kernels const& chosen, std::uint8_t* to, std::uint8_t const* from,
                         integer_layout const& layout) {
  for (std::int64_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    if (chunk % layout.chunks_in_block() == 0) {
      std::memcpy(to, from, static_cast<std::size_t>(integer_scale_bytes));
      to += integer_scale_bytes;
      from += integer_scale_bytes;
    }
    chosen.unpack(to, from);
    to += integer_chunk_bytes;
    from += layout.chunk_bytes();
  }
}

/// Stores sums by a rule, with the kernels of the active level.
template <class T>
void store_integer_sums(store_job<T> const& job) {
  TRIREME_DISPATCH(true, store_integer_sums(job));
}

/// y (m, n) = rule(x (m, k) w) with the kernels `chosen`.
template <class T>
void multiply_integers(integer_kernels const& chosen, store_rule<T> const& rule, T const* x, std::uint8_t const* packed,
                       std::int64_t m, integer_layout const& layout) {
  thread_local growing_buffer rows_buffer, scales_buffer, begin_buffer, strip_buffer;
  alignas(64) float sums[32 * integer_strip];
  auto const tiles = (m + chosen.rows - 1) / chosen.rows;
  auto const rows = tiles * chosen.rows;  // some are padding
  auto const row = layout.chunks() * integer_chunk, blocks = layout.blocks();
  auto* const integers = rows_buffer.take<std::int8_t>(rows * row);
  auto* const scales = scales_buffer.take<float>(rows * blocks);
  auto* const begin = begin_buffer.take<std::int32_t>(rows * blocks);
  for (std::int64_t r = 0; r < m; ++r) {
    integer_row_job<T> const job{integers + r * row, scales + r * blocks, begin + r * blocks, x + r * layout.k,
                                 layout.k,           layout.block()};
    if constexpr (std::is_same_v<T, float>)
      chosen.float_row(job);
    else
      chosen.bfloat16_row(job);
  }
  std::fill(integers + m * row, integers + rows * row, std::int8_t{0});
  std::fill(scales + m * blocks, scales + rows * blocks, 0.0F);
  std::fill(begin + m * blocks, begin + rows * blocks, 0);

  if (chosen.begin != nullptr) chosen.begin();
  for (std::int64_t strip = 0; strip < layout.strips(); ++strip, packed += layout.strip_bytes()) {
    auto const* w = packed;
    if (layout.form == weight_form::int4) {
      auto* const unpacked = strip_buffer.take<std::uint8_t>(layout.unpacked_bytes());
      unpack_strip(chosen, unpacked, packed, layout);
      w = unpacked;
    }
    for (std::int64_t r = 0; r < m;) {
      auto const left = m - r;
      integer_job const job{
          integers + r * row,       row, scales + r * blocks, begin + r * blocks, blocks, w, layout.chunks(),
          layout.chunks_in_block(), sums};
      std::int64_t count = 1;
      if (left >= chosen.rows || (chosen.pads && left > 8)) {
        chosen.tile(job);
        count = std::min(left, chosen.rows);
      } else if (left >= 4) {
        chosen.four(job);
        count = 4;
      } else {
        chosen.one(job);
      }
      auto const column = strip * integer_strip;
      store_integer_sums<T>({&rule, sums, integer_strip, r, column, count, std::min(integer_strip, layout.n - column)});
      r += count;
    }
  }
  if (chosen.end != nullptr) chosen.end();
}

/// Weights as integers, and rows of the left operand as integers when they come.
class products_of_integers final : public other_products {
 public:
  explicit products_of_integers(weight_form form) : form_(form) {}
  void multiply(store_rule<float> const& rule, float const* x, float const* values, growing_buffer& copy, bool valid,
                bool transposed, std::int64_t m, std::int64_t n, std::int64_t k) const override {
    compute(rule, x, values, copy, valid, transposed, m, n, k);
  }
  void multiply(store_rule<bfloat16> const& rule, bfloat16 const* x, bfloat16 const* values, growing_buffer& copy,
                bool valid, bool transposed, std::int64_t m, std::int64_t n, std::int64_t k) const override {
    compute(rule, x, values, copy, valid, transposed, m, n, k);
  }

 private:
  template <class T>
  void compute(store_rule<T> const& rule, T const* x, T const* values, growing_buffer& copy, bool valid,
               bool transposed, std::int64_t m, std::int64_t n, std::int64_t k) const {
    integer_layout const layout{transposed ? weight_form::int8 : form_, k, n};
    auto* const packed = copy.template take<std::uint8_t>(layout.bytes());
    if (!valid) pack_integers(packed, values, transposed, layout);
    multiply_integers(active_integer_kernels(), rule, x, packed, m, layout);
  }
  weight_form form_;
};

}  // namespace detail

/// While it lives, the models that this thread makes have products of integers: forward products with a weight matrix,
/// in fp32 and bf16. For predictions: gradients are those of the weights themselves.
///
///     ops::integer_products const int8(ops::weight_form::int8);
///     auto trainer = make_trainer(model, ...);  // in the thread that computes it first
///
/// A weight is rounded when it is first used, and again when it has changed: each output and each block of inputs has
/// a scale. A row of activations is rounded when it comes, to 8 bits with a scale for each block. Embeddings, norms,
/// attention and sums stay in floats.
///
/// Bytes    k n (int8) or k n / 2 (int4) in place of the packed copy, and 4 for each block; the values themselves stay.
/// Numerics integers of a block are summed exactly, blocks in order with one rounding each: the same bits at all CPU
///          levels (but for an activation function), and in a row regardless of the rows that are computed with it. A
///          row or a column with NaN or infinity becomes NaN.
/// Method   as Dettmers et al., "LLM.int8()", 2022, but with scales of blocks in place of columns of outliers.
/// Threads  one in a thread at a time; it ends where it began.
class integer_products {
 public:
  explicit integer_products(weight_form form) : before_(detail::products_of_new_weights()) {
    static detail::products_of_integers const int8(weight_form::int8), int4(weight_form::int4);
    detail::products_of_new_weights() = form == weight_form::int8 ? &int8 : &int4;
  }
  ~integer_products() { detail::products_of_new_weights() = before_; }
  integer_products(integer_products const&) = delete;
  integer_products& operator=(integer_products const&) = delete;

 private:
  detail::other_products const* before_;
};

/// The instructions that multiply integers here: avx512_vnni, avx_vnni, amx_int8; avx2 and baseline have none for it.
[[nodiscard]] inline std::string_view integer_instructions() { return detail::active_integer_kernels().name; }

}  // namespace trireme::ops
