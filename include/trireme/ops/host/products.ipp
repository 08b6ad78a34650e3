#pragma once

#include <utility>

#include "trireme/ops/host/detail/product_eigen.hpp"
#include "trireme/ops/host/detail/product_own.hpp"
#include "trireme/ops/host/detail/product_tiles.hpp"
#include "trireme/ops/host/products.hpp"

namespace trireme::ops {

namespace detail {

/// A thread's single packed copy for weights whose values are temporary.
struct passing_copy {
  growing_buffer buffer;
  void const* owner = nullptr;
};
[[nodiscard]] inline passing_copy& passing() {
  thread_local passing_copy it;
  return it;
}

/// Element types of this library's kernels; Eigen multiplies the others.
template <class T>
inline constexpr bool has_own_kernels = std::is_same_v<T, float> || std::is_same_v<T, bfloat16>;

template <class T>
product_kernels const* kernels() noexcept {
  return product_provider() == provider::own ? own_kernels<T>() : nullptr;
}

template <class Word, class T>
void multiply_own(product_kernels const& chosen, store_rule<T> const& rule, T const* x, T const* values,
                  growing_buffer& buffer, bool valid, bool transposed, std::int64_t m, std::int64_t n, std::int64_t k) {
  if constexpr (std::is_same_v<Word, float> || std::is_same_v<T, bfloat16>) {
    Word* const packed = buffer.template take<Word>(packed_words<Word>(chosen, k, n));
    if (!valid) pack_right(chosen, packed, values, transposed, k, n);
    own_multiply(chosen, rule, x, static_cast<Word const*>(packed), m, n, k);
  }
}

}  // namespace detail

template <class T>
void host_products::multiply(detail::store_rule<T> const& rule, T const* x, weights<T, host>& w,
                             typename weights<T, host>::packed_copy& copy, bool transposed, std::int64_t m,
                             std::int64_t n, std::int64_t k) {
  detail::product_kernels const* chosen = nullptr;
  if constexpr (detail::has_own_kernels<T>) {
    if (w.others_ != nullptr && &copy == &w.forward_) {
      bool const valid = std::exchange(copy.valid, true) && !w.passes_;
      return w.others_->multiply(rule, x, raw(w.view_), copy.buffer, valid, transposed, m, n, k);
    }
    chosen = detail::kernels<T>();
  }
  bool valid = copy.valid && copy.kernels == chosen;
  copy.kernels = chosen;
  copy.valid = true;
  auto* buffer = &copy.buffer;
  if (w.passes_) {
    auto& shared = detail::passing();
    valid = valid && shared.owner == &copy;
    shared.owner = &copy;
    buffer = &shared.buffer;
  }
  T const* const values = raw(w.view_);
  if constexpr (detail::has_own_kernels<T>) {
    if (chosen != nullptr) {
      if (chosen->pairs) {
        detail::multiply_own<std::uint32_t>(*chosen, rule, x, values, *buffer, valid, transposed, m, n, k);
      } else {
        detail::multiply_own<float>(*chosen, rule, x, values, *buffer, valid, transposed, m, n, k);
      }
      return;
    }
  }
  using A = accumulate_t<T>;
  A const* right = nullptr;
  if constexpr (std::is_same_v<T, A>) {
    if (!transposed) right = values;
  }
  if (right == nullptr) {
    A* const to = buffer->template take<A>(k * n);
    if (!valid) detail::eigen_operand(to, values, transposed, k, n);
    right = to;
  }
  detail::eigen_product(rule, x, right, m, n, k);
}

template <class T, class G>
void host_products::multiply_transposed(G* c, T const* u, T const* v, std::int64_t m, std::int64_t r, std::int64_t s,
                                        G* u_sums, G* v_sums) {
  if constexpr (detail::has_own_kernels<T>) {
    if (auto const* const chosen = detail::kernels<T>(); chosen != nullptr) {
      if constexpr (std::is_same_v<T, bfloat16>) {
        if (chosen->turn != nullptr) {
          detail::tiles_multiply_transposed(*chosen, c, u, v, m, r, s, u_sums, v_sums);
          return;
        }
        if (chosen->pairs) {
          detail::own_multiply_transposed<std::uint32_t>(*chosen, c, u, v, m, r, s, u_sums, v_sums);
          return;
        }
      }
      detail::own_multiply_transposed<float>(*chosen, c, u, v, m, r, s, u_sums, v_sums);
      return;
    }
  }
  detail::eigen_product_transposed(c, u, v, m, r, s, u_sums, v_sums);
}

}  // namespace trireme::ops
