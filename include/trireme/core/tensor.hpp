#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/core/dtype.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/core/space.hpp"

namespace trireme {

/// A view of a dense row-major block of elements, in the memory space of its type. It does not own them.
///
/// Copying a view copies no element. Only `ops` and `comm` (through `raw`) access the elements; all other code passes
/// views on. In host memory users may access them, through `span()` and `operator[]`.
template <class T, class Space = host>
class tensor_view {
 public:
  using value_type = std::remove_const_t<T>;
  using space = Space;

  constexpr tensor_view() = default;
  constexpr tensor_view(T* address, shape extents) noexcept : address_(address), shape_(extents) {}
  /// A view of mutable elements converts to a view of const ones.
  template <class U>
  requires(std::is_const_v<T>&& std::same_as<U, std::remove_const_t<T>>) constexpr tensor_view(
      tensor_view<U, Space> other) noexcept  // NOLINT(google-explicit-constructor)
      : address_(other.address()), shape_(other.extents()) {}
  /// A whole vector or span of host memory as a tensor of rank 1.
  template <class Container>
  requires(
      std::same_as<Space, host>&& requires(Container& c) { std::span<T>(c); } &&
      !requires {
        typename std::remove_cvref_t<Container>::space;
      }) constexpr tensor_view(Container& elements) noexcept  // NOLINT(google-explicit-constructor): a vector is a view
      : address_(std::span<T>(elements).data()), shape_({static_cast<std::int64_t>(std::span<T>(elements).size())}) {}

  [[nodiscard]] constexpr shape const& extents() const noexcept { return shape_; }
  [[nodiscard]] constexpr std::int64_t extent(int axis) const noexcept { return shape_[axis]; }
  [[nodiscard]] constexpr int rank() const noexcept { return shape_.rank(); }
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return address_ == nullptr ? 0 : shape_.size(); }
  [[nodiscard]] constexpr std::size_t bytes() const noexcept { return static_cast<std::size_t>(size()) * sizeof(T); }
  [[nodiscard]] constexpr bool empty() const noexcept { return size() == 0; }
  /// The address of the elements, to pass on, not to dereference: see raw().
  [[nodiscard]] constexpr T* address() const noexcept { return address_; }

  /// The same elements under another shape of equal size.
  [[nodiscard]] constexpr tensor_view reshaped(shape extents) const noexcept { return {address_, extents}; }
  /// Elements [first, first + count) in row-major order, as rank 1.
  [[nodiscard]] constexpr tensor_view flat(std::int64_t first, std::int64_t count) const noexcept {
    return {address_ + first, shape{count}};
  }
  [[nodiscard]] constexpr tensor_view flat() const noexcept { return {address_, shape{size()}}; }
  /// Rows [first, first + count) along the outermost axis.
  [[nodiscard]] constexpr tensor_view rows(std::int64_t first, std::int64_t count) const {
    shape part{count};
    std::int64_t row = 1;
    for (int axis = 1; axis < rank(); ++axis) {
      part.push_back(extent(axis));
      row *= extent(axis);
    }
    return {address_ + first * row, part};
  }
  [[nodiscard]] constexpr std::span<T> span() const noexcept requires std::same_as<Space, host> {
    return {address_, static_cast<std::size_t>(size())};
  }
  [[nodiscard]] constexpr T& operator[](std::int64_t index) const noexcept requires std::same_as<Space, host> {
    return address_[index];
  }

 private:
  T* address_ = nullptr;
  shape shape_;
};

template <class Container>
tensor_view(Container&) -> tensor_view<typename Container::value_type, host>;
template <class T, class Allocator>
tensor_view(std::vector<T, Allocator> const&) -> tensor_view<T const, host>;
template <class T, std::size_t Extent>
tensor_view(std::span<T, Extent> const&) -> tensor_view<T, host>;
template <class T, std::size_t Extent>
tensor_view(std::span<T, Extent>&) -> tensor_view<T, host>;

/// The elements themselves. Only kernels and communicators may call it (checked by scripts/lint); it does not exist for
/// phantom memory, so a forgotten call does not compile.
template <class T>
[[nodiscard]] constexpr T* raw(tensor_view<T, host> view) noexcept {
  return view.address();
}

/// A block of elements with an owner. Uninitialised at first.
template <class T, class Space = host>
class tensor {
 public:
  using value_type = T;
  using space = Space;

  tensor() = default;
  explicit tensor(shape extents)
      : bytes_(static_cast<std::size_t>(extents.size()) * sizeof(T)),
        view_(static_cast<T*>(Space::allocate(bytes_)), extents) {}
  /// Elements in memory that `owner` keeps alive, such as a communicator's.
  tensor(tensor_view<T, Space> elements, std::shared_ptr<void> owner) noexcept
      : view_(elements), owner_(std::move(owner)) {}
  tensor(tensor&& other) noexcept
      : bytes_(std::exchange(other.bytes_, 0)),
        view_(std::exchange(other.view_, {})),
        owner_(std::move(other.owner_)) {}
  tensor& operator=(tensor&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(view_, other.view_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~tensor() {
    if (view_.address() != nullptr && owner_ == nullptr) Space::deallocate(view_.address(), bytes_);
  }

  [[nodiscard]] tensor_view<T, Space> view() const noexcept { return view_; }
  operator tensor_view<T, Space>() const noexcept { return view_; }        // NOLINT(google-explicit-constructor)
  operator tensor_view<T const, Space>() const noexcept { return view_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] shape const& extents() const noexcept { return view_.extents(); }
  [[nodiscard]] std::int64_t size() const noexcept { return view_.size(); }
  [[nodiscard]] std::span<T> span() const noexcept requires std::same_as<Space, host> { return view_.span(); }
  [[nodiscard]] T& operator[](std::int64_t index) const noexcept requires std::same_as<Space, host> {
    return view_[index];
  }

 private:
  std::size_t bytes_ = 0;
  tensor_view<T, Space> view_;
  std::shared_ptr<void> owner_;  // null: allocated from the space
};

}  // namespace trireme
