// Trireme 0.1.0, everything in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: e2c222f746965b4683958abd40ce2d346ccbe037da173b0d88c05deb3fffdbb6
// SPDX-License-Identifier: Apache-2.0
#pragma once

// ---- trireme/trireme.hpp
// All that a training program needs. Apart, because not every program wants them: the communicators of comm/mpi.hpp,
// comm/processes.hpp, comm/hierarchical.hpp and comm/nccl.hpp, the decorators (comm/checked.hpp, ...),
// formats/tensorboard.hpp, formats/chrome_trace.hpp and observe/progress.hpp.

// ---- trireme/comm/comm.hpp
// The communicators that need nothing but this process. comm/mpi.hpp is separate, because it needs MPI.

// ---- trireme/comm/in_space.hpp
#include <utility>

// ---- trireme/contract/communicator.hpp
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

// ---- trireme/core/tensor.hpp
#include <memory>

// ---- trireme/core/dtype.hpp
#include <bit>
#include <cstddef>

namespace trireme {

/// A bfloat16 number: the upper half of a float. Storage only; arithmetic happens in float.
///
/// Numerics  converts from float by rounding to nearest, ties to even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  constexpr explicit bfloat16(float value) noexcept {
    auto const raw = std::bit_cast<std::uint32_t>(value);
    bool const nan = (raw & 0x7fff'ffffU) > 0x7f80'0000U;
    bits = static_cast<std::uint16_t>(nan ? (raw >> 16) | 0x40U : (raw + 0x7fffU + ((raw >> 16) & 1U)) >> 16);
  }
  constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  constexpr explicit operator double() const noexcept { return static_cast<float>(*this); }
  friend constexpr bool operator==(bfloat16 a, bfloat16 b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
};

/// An IEEE binary16 number: 11 bits of precision up to 65504. Storage only; arithmetic happens in float.
///
/// Numerics  converts from float by rounding to nearest, ties to even; subnormals are kept, NaN stays NaN. The same
/// bits
///           as the instructions of CPUs (F16C) and GPUs give.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  constexpr explicit float16(float value) noexcept {
    auto const raw = std::bit_cast<std::uint32_t>(value);
    auto const size = raw & 0x7fff'ffffU;
    std::uint32_t half = 0;
    if (size > 0x7f80'0000U) {  // NaN, made quiet
      half = 0x7e00U | (size >> 13 & 0x3ffU);
    } else if (size >= 0x4780'0000U) {  // 65536 and above; what is a little less grows to infinity below
      half = 0x7c00U;
    } else if (size >= 0x3880'0000U) {  // 2^-14: normal
      half = (size - 0x3800'0000U + 0xfffU + (size >> 13 & 1U)) >> 13;
    } else {  // beside 0.5, the last place of a float is that of the subnormals
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3f00'0000U;
    }
    bits = static_cast<std::uint16_t>((raw >> 16 & 0x8000U) | half);
  }
  constexpr explicit operator float() const noexcept {
    std::uint32_t const size = bits & 0x7fffU;
    std::uint32_t raw = 0;
    if (size > 0x7c00U) {  // NaN, made quiet
      raw = 0x7fc0'0000U | size << 13;
    } else if (size == 0x7c00U) {
      raw = 0x7f80'0000U;
    } else if (size >= 0x400U) {
      raw = (size << 13) + 0x3800'0000U;
    } else {
      raw = std::bit_cast<std::uint32_t>(static_cast<float>(size) * 0x1p-24F);
    }
    return std::bit_cast<float>((bits & 0x8000U) << 16 | raw);
  }
  constexpr explicit operator double() const noexcept { return static_cast<float>(*this); }
  friend constexpr bool operator==(float16 a, float16 b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
};

/// A floating-point number that is only stored, and computed with in float.
template <class T>
concept storage_float = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

/// The element types that tensors, files and messages know.
enum class dtype : std::uint8_t { f64, f32, bf16, f16, i64, i32, u64, u32, i8, u8 };

/// The names used in template arguments: `compression::cast<bf16>`.
using bf16 = bfloat16;
using f16 = float16;

template <class T>
struct dtype_traits;  // specialised for exactly the element types below

template <>
struct dtype_traits<double> {
  static constexpr dtype value = dtype::f64;
};
template <>
struct dtype_traits<float> {
  static constexpr dtype value = dtype::f32;
};
template <>
struct dtype_traits<bfloat16> {
  static constexpr dtype value = dtype::bf16;
};
template <>
struct dtype_traits<float16> {
  static constexpr dtype value = dtype::f16;
};
template <>
struct dtype_traits<std::int64_t> {
  static constexpr dtype value = dtype::i64;
};
template <>
struct dtype_traits<std::int32_t> {
  static constexpr dtype value = dtype::i32;
};
template <>
struct dtype_traits<std::uint64_t> {
  static constexpr dtype value = dtype::u64;
};
template <>
struct dtype_traits<std::uint32_t> {
  static constexpr dtype value = dtype::u32;
};
template <>
struct dtype_traits<std::int8_t> {
  static constexpr dtype value = dtype::i8;
};
template <>
struct dtype_traits<std::uint8_t> {
  static constexpr dtype value = dtype::u8;
};
template <>
struct dtype_traits<std::byte> {
  static constexpr dtype value = dtype::u8;
};

template <class T>
inline constexpr dtype dtype_of = dtype_traits<T>::value;

template <class T>
concept element = requires {
  dtype_traits<T>::value;
};

/// An element that arithmetic makes sense on.
template <class T>
concept arithmetic_element = element<T> && !std::is_same_v<T, std::byte>;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(dtype type) noexcept {
  switch (type) {
    case dtype::f64:
    case dtype::i64:
    case dtype::u64:
      return 8;
    case dtype::f32:
    case dtype::i32:
    case dtype::u32:
      return 4;
    case dtype::bf16:
    case dtype::f16:
      return 2;
    case dtype::i8:
    case dtype::u8:
      return 1;
  }
  return 0;
}

/// The name that safetensors files use, which is also ours in messages.
[[nodiscard]] constexpr std::string_view name_of(dtype type) noexcept {
  switch (type) {
    case dtype::f64:
      return "F64";
    case dtype::f32:
      return "F32";
    case dtype::bf16:
      return "BF16";
    case dtype::f16:
      return "F16";
    case dtype::i64:
      return "I64";
    case dtype::i32:
      return "I32";
    case dtype::u64:
      return "U64";
    case dtype::u32:
      return "U32";
    case dtype::i8:
      return "I8";
    case dtype::u8:
      return "U8";
  }
  return "?";
}

}  // namespace trireme

// ---- trireme/core/shape.hpp
#include <array>
#include <initializer_list>
#include <string>

// ---- trireme/core/error.hpp
#include <stdexcept>

// ---- trireme/core/text.hpp
#include <charconv>

namespace trireme {

namespace detail {

/// One argument of text(): a few kinds, so that what joins them is compiled once and not for every call.
class text_part {
 public:
  constexpr text_part(std::string_view part) : kind_(kind::letters), letters_(part) {}  // NOLINT
  constexpr text_part(char const* part) : text_part(std::string_view(part)) {}          // NOLINT
  text_part(std::string const& part) : text_part(std::string_view(part)) {}             // NOLINT
  constexpr text_part(char part) : kind_(kind::letter), letter_(part) {}                // NOLINT
  constexpr text_part(float part) : kind_(kind::single), single_(part) {}               // NOLINT
  constexpr text_part(double part) : kind_(kind::real), real_(part) {}                  // NOLINT
  template <std::same_as<bool> Truth>  // a plain bool would take every pointer first
  constexpr text_part(Truth part) : text_part(std::string_view(part ? "true" : "false")) {}  // NOLINT
  template <std::integral Number>
  requires(!std::same_as<Number, bool> && !std::same_as<Number, char>) constexpr text_part(Number part)  // NOLINT
      : kind_(std::is_signed_v<Number> ? kind::whole : kind::natural), whole_(static_cast<std::int64_t>(part)) {}

  void append_to(std::string& out) const {
    char digits[64];
    auto* const end = digits + sizeof digits;
    switch (kind_) {
      case kind::letters:
        out.append(letters_);
        return;
      case kind::letter:
        out.push_back(letter_);
        return;
      case kind::whole:
        out.append(digits, std::to_chars(digits, end, whole_).ptr);
        return;
      case kind::natural:
        out.append(digits, std::to_chars(digits, end, static_cast<std::uint64_t>(whole_)).ptr);
        return;
      case kind::single:
        out.append(digits, std::to_chars(digits, end, single_).ptr);
        return;
      case kind::real:
        out.append(digits, std::to_chars(digits, end, real_).ptr);
        return;
    }
  }

 private:
  enum class kind { letters, letter, whole, natural, single, real } kind_;
  union {
    std::string_view letters_;
    char letter_;
    std::int64_t whole_;
    float single_;
    double real_;
  };
};

[[nodiscard]] inline std::string join(std::initializer_list<text_part> parts) {
  std::string out;
  for (auto const& part : parts) part.append_to(out);
  return out;
}

}  // namespace detail

/// Joins its arguments into one string: `text("rank ", 3, " is late")`.
///
/// Error messages are made with this, so that core needs no formatting library and a number always
/// prints in its shortest exact form.
template <class... Parts>
[[nodiscard]] std::string text(Parts const&... parts) {
  return detail::join({detail::text_part(parts)...});
}

}  // namespace trireme

// ---- trireme/core/error.hpp (goes on)
namespace trireme {

/// Where an error happened: which rank, and in which operation. A rank of -1 means "not in a group".
struct origin {
  int rank = -1;
  std::string operation;
  friend bool operator==(origin const&, origin const&) = default;
};

/// The root of every exception that trireme throws.
///
/// `what()` is one sentence that starts with the public name, says what is wrong, where, and what to do.
/// Library code throws; it never ends the program.
class error : public std::runtime_error {
 public:
  explicit error(std::string const& message, origin where = {})
      : std::runtime_error(where.rank < 0 ? message : text("rank ", where.rank, ": ", message)),
        where_(std::move(where)) {}
  [[nodiscard]] int rank() const noexcept { return where_.rank; }
  [[nodiscard]] std::string const& operation() const noexcept { return where_.operation; }

 private:
  origin where_;
};

/// What the caller asked for cannot be: a shape, an option or a combination is wrong.
struct config_error : error {
  using error::error;
};

/// A communicator failed: a peer died, was late past the deadline, or the transport reported an error.
struct comm_error : error {
  using error::error;
};

/// An assertion of the active level failed (see assertion.hpp).
struct assertion_error : error {
  using error::error;
};

/// Numbers went wrong in a way that more steps will not mend (non-finite gradients again and again).
struct numeric_error : error {
  using error::error;
};

/// A file could not be opened, read or written.
struct io_error : error {
  io_error(std::string path, std::string_view reason) : error(text(path, ": ", reason)), path_(std::move(path)) {}
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

 private:
  std::string path_;
};

/// A file was read but is not what it should be. Carries the byte offset at which that was noticed.
struct format_error : error {
  format_error(std::string path, std::uint64_t offset, std::string_view reason)
      : error(text(path, ": byte ", offset, ": ", reason)), path_(std::move(path)), offset_(offset) {}
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::string path_;
  std::uint64_t offset_;
};

}  // namespace trireme

// ---- trireme/core/shape.hpp (goes on)
namespace trireme {

/// The extents of a dense row-major tensor, outermost first; at most `shape::max_rank` of them.
class shape {
 public:
  static constexpr int max_rank = 6;

  constexpr shape() = default;
  constexpr shape(std::initializer_list<std::int64_t> extents) {
    for (auto const extent : extents) push_back(extent);
  }
  constexpr explicit shape(std::span<std::int64_t const> extents) {
    for (auto const extent : extents) push_back(extent);
  }

  [[nodiscard]] constexpr int rank() const noexcept { return rank_; }
  [[nodiscard]] constexpr std::int64_t operator[](int axis) const noexcept {
    return extents_[static_cast<std::size_t>(axis)];
  }
  /// Number of elements; 1 for a scalar (rank 0).
  [[nodiscard]] constexpr std::int64_t size() const noexcept {
    std::int64_t product = 1;
    for (int axis = 0; axis < rank_; ++axis) product *= (*this)[axis];
    return product;
  }
  constexpr void push_back(std::int64_t extent) {
    if (rank_ == max_rank) throw config_error(text("trireme::shape: more than ", max_rank, " extents"));
    if (extent < 0) throw config_error(text("trireme::shape: extent ", extent, " is negative"));
    extents_[static_cast<std::size_t>(rank_++)] = extent;
  }
  [[nodiscard]] constexpr std::span<std::int64_t const> extents() const noexcept {
    return {extents_.data(), static_cast<std::size_t>(rank_)};
  }
  friend constexpr bool operator==(shape const&, shape const&) = default;

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
};

/// "(8, 256, 384)"
[[nodiscard]] inline std::string to_string(shape const& extents) {
  std::string out = "(";
  for (int axis = 0; axis < extents.rank(); ++axis) out += text(axis == 0 ? "" : ", ", extents[axis]);
  return out + ")";
}

}  // namespace trireme

// ---- trireme/core/space.hpp
#include <sys/mman.h>

#include <new>

namespace trireme {

/// Memory of this process that the CPU reads and writes. Large blocks are page-aligned and ask for huge pages, which
/// is worth 6 % of a whole training step.
struct host {
  static constexpr std::string_view name = "host";
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

  /// @returns `bytes` of uninitialised memory; throws std::bad_alloc.
  [[nodiscard]] static void* allocate(std::size_t bytes) {
    if (bytes < huge_page_bytes) return ::operator new (bytes == 0 ? 1 : bytes, std::align_val_t{alignment});
    void* block = ::operator new (bytes, std::align_val_t{huge_page_bytes});
#ifdef MADV_HUGEPAGE
    ::madvise(block, bytes, MADV_HUGEPAGE);
#endif
    return block;
  }
  static void deallocate(void* block, std::size_t bytes) noexcept {
    ::operator delete (block, std::align_val_t{bytes < huge_page_bytes ? alignment : huge_page_bytes});
  }
};

/// Address space without memory: whoever touches an address of it faults at once.
///
/// A whole training runs in this space in the tests. It proves that nothing above `ops` and `comm` reads a tensor, so
/// that another kind of memory needs only those two rooms.
struct phantom {
  static constexpr std::string_view name = "phantom";
  static constexpr std::size_t alignment = 64;

  [[nodiscard]] static void* allocate(std::size_t bytes) {
    void* block =
        ::mmap(nullptr, bytes == 0 ? 1 : bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    return block;
  }
  static void deallocate(void* block, std::size_t bytes) noexcept { ::munmap(block, bytes == 0 ? 1 : bytes); }
};

}  // namespace trireme

// ---- trireme/core/tensor.hpp (goes on)
namespace trireme {

/// A dense row-major block of elements that somebody else owns, in the memory space that its type names.
///
/// Copying a view copies no element. Only `ops` and `comm` (through `raw`) look at the elements; everything above
/// passes views on. In host memory users may, through `span()` and `operator[]`.
template <class T, class Space = host>
class tensor_view {
 public:
  using value_type = std::remove_const_t<T>;
  using space = Space;

  constexpr tensor_view() = default;
  constexpr tensor_view(T* address, shape extents) noexcept : address_(address), shape_(extents) {}
  /// A view that may write is a view that may read.
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
  /// Where the elements are, as a number to pass on, not to dereference: see raw().
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

/// The elements themselves. Called by kernels and communicators only (checked by scripts/lint); there is none for
/// phantom memory, so a forgotten call does not compile.
template <class T>
[[nodiscard]] constexpr T* raw(tensor_view<T, host> view) noexcept {
  return view.address();
}

/// A block of elements with an owner. Uninitialised when made.
template <class T, class Space = host>
class tensor {
 public:
  using value_type = T;
  using space = Space;

  tensor() = default;
  explicit tensor(shape extents)
      : bytes_(static_cast<std::size_t>(extents.size()) * sizeof(T)),
        view_(static_cast<T*>(Space::allocate(bytes_)), extents) {}
  /// Elements that `owner` keeps: a communicator's memory, say.
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
  std::shared_ptr<void> owner_;  // null: the space
};

}  // namespace trireme

// ---- trireme/contract/communicator.hpp (goes on)
namespace trireme {

/// What a reduction computes. Ranks are combined in rank order, 0 first (but for pairwise), so the result never depends
/// on timing.
namespace reduction {
struct sum {};
struct pairwise {};  ///< the sum, formed in a fixed binary tree over the ranks (core/summation_tree.hpp)
struct max {};
struct min {};
struct mean {};  ///< the sum, divided by the number of ranks before it is rounded; floating-point elements only
}  // namespace reduction

/// Bytes and messages that one rank has sent to others through a communicator since it was made (or split off).
///
/// Every communicator counts by one formula, so that a plan can be exact; n are the bytes of the whole view, p =
/// size():
///   all_reduce                               n - own + own (p - 1), own = bytes of the rank's slice; ~ 2 n (p - 1) / p
///   reduce_scatter, all_gather, all_to_all   n (p - 1) / p; ragged all_gather own (p - 1), ragged all_to_all n - own
///   broadcast                                n (p - 1) at the root, otherwise 0
///   scatter                                  n (p - 1) / p at the root, otherwise 0
///   reduce, gather                           n, but 0 at the root
///   exchange                                 what it sends to other ranks
///   barrier, split, duplicate, peers         0
/// The slices of all_reduce are cut at cache lines: comm::slice_of and comm::bytes_sent (comm/traffic.hpp) compute
/// them.
struct traffic_counters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t collectives = 0;
  friend bool operator==(traffic_counters const&, traffic_counters const&) = default;
};

/// A pending collective. `wait()` returns when it is done or throws comm_error; `test()` gives it a chance to make
/// progress and says whether it is done. The destructor waits, so a buffer can never be left half exchanged.
template <class R>
concept communication_request = std::movable<R> && requires(R& request) {
  { request.test() } -> std::same_as<bool>;
  { request.wait() } -> std::same_as<void>;
};

// The small core. Each requirement is a concept of its own, so that a compiler can name the missing one.
template <class C>
concept has_rank = requires(C const& world) {
  { world.rank() } -> std::same_as<int>;
};
template <class C>
concept has_size = requires(C const& world) {
  { world.size() } -> std::same_as<int>;
};
template <class C>
concept has_split = requires(C& world, int color, int key) {
  { world.split(color, key) } -> std::same_as<C>;
};
template <class C>
concept has_duplicate = requires(C& world) {
  { world.duplicate() } -> std::same_as<C>;
};
template <class C>
concept has_barrier = requires(C& world) {
  world.barrier();
};
template <class C>
concept has_traffic = requires(C const& world) {
  { world.traffic() } -> std::convertible_to<traffic_counters>;
};
template <class C>
concept has_communicator_name = requires {
  { C::name } -> std::convertible_to<std::string_view>;
};

/// A group of ranks that work together. Capabilities (below) are asked for one by one: a strategy requires only what
/// it uses.
///
/// Requires  rank() and size(); split(color, key), collective, gives the group of equal colours ordered by key;
///           duplicate(), collective, the same ranks with calls of their own, whose order among the original's may
///           differ from rank to rank (but not where a static `one_order` is true); barrier(); traffic(); a static
///           `name`.
/// Not asked copying, default construction, thread safety: one caller a rank.
template <class C>
concept communicator = has_rank<C> && has_size<C> && has_split<C> && has_duplicate<C> && has_barrier<C> &&
    has_traffic<C> && has_communicator_name<C>;

/// Whether requests travel while their rank computes (a communicator says so with a static `progresses`); else they
/// proceed when they are tested or waited for.
template <class C>
concept progresses_alone = requires {
  requires C::progresses;
};

/// The memory space that a communicator's trainer computes in: its `space`, host where it names none.
template <class C>
struct space_of {
  using type = host;
};
template <class C>
requires requires { typename C::space; }
struct space_of<C> {
  using type = typename C::space;
};

/// all_reduce(values, op): in place; afterwards every rank has the same bits. Shapes: values (n), equal n everywhere.
template <class C, class T, class Op = reduction::sum, class Space = host>
concept has_all_reduce = requires(C& world, tensor_view<T, Space> values, Op op) {
  world.all_reduce(values, op);
  { world.all_reduce_async(values, op) } -> communication_request;
};

/// reduce_scatter(values, op): in place on size() equal slices; afterwards slice rank() is reduced, and the other
/// slices are unspecified. Shapes: values (size() * n).
template <class C, class T, class Op = reduction::sum, class Space = host>
concept has_reduce_scatter = requires(C& world, tensor_view<T, Space> values, Op op) {
  world.reduce_scatter(values, op);
  { world.reduce_scatter_async(values, op) } -> communication_request;
};

/// all_gather(values): in place on size() equal slices; every rank gives slice rank() and gets the others.
template <class C, class T, class Space = host>
concept has_all_gather = requires(C& world, tensor_view<T, Space> values) {
  world.all_gather(values);
  { world.all_gather_async(values) } -> communication_request;
};

/// all_gather(values, counts): the ragged form. Rank r gives counts[r] elements, which begin after those of the ranks
/// below it; every rank passes the same counts. Shapes: values (sum of counts).
template <class C, class T, class Space = host>
concept has_ragged_all_gather = requires(C& world, tensor_view<T, Space> values, std::span<std::int64_t const> counts) {
  world.all_gather(values, counts);
  { world.all_gather_async(values, counts) } -> communication_request;
};

/// reduce(values, root, op): in place at the root; the other ranks' values stay as they are. Shapes: values (n).
template <class C, class T, class Op = reduction::sum, class Space = host>
concept has_reduce = requires(C& world, tensor_view<T, Space> values, int root, Op op) {
  world.reduce(values, root, op);
  { world.reduce_async(values, root, op) } -> communication_request;
};

/// gather(from, to, root): slice r of the root's `to` comes from rank r. Shapes: from (n); to (size() * n) at the root,
/// anything elsewhere.
template <class C, class T, class Space = host>
concept has_gather = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to, int root) {
  world.gather(from, to, root);
  { world.gather_async(from, to, root) } -> communication_request;
};

/// scatter(from, to, root): slice r of the root's `from` goes to rank r. Shapes: from (size() * n) at the root,
/// anything elsewhere; to (n).
template <class C, class T, class Space = host>
concept has_scatter = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to, int root) {
  world.scatter(from, to, root);
  { world.scatter_async(from, to, root) } -> communication_request;
};

/// all_to_all(from, to): slice r of `from` goes to rank r; slice r of `to` comes from rank r. Shapes: both (size() *
/// n).
template <class C, class T, class Space = host>
concept has_all_to_all = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to) {
  world.all_to_all(from, to);
  { world.all_to_all_async(from, to) } -> communication_request;
};

/// all_to_all(from, sent, to, received): the ragged form. sent[r] elements go to rank r and received[r] come from it,
/// in rank order without gaps; sent[r] here is received[rank()] there. Shapes: from (sum of sent), to (sum of
/// received).
template <class C, class T, class Space = host>
concept has_ragged_all_to_all = requires(C& world, tensor_view<T const, Space> from, tensor_view<T, Space> to,
                                         std::span<std::int64_t const> counts) {
  world.all_to_all(from, counts, to, counts);
  { world.all_to_all_async(from, counts, to, counts) } -> communication_request;
};

/// One message of an exchange: `values` go to rank `peer`, or come from it. Made by send_to and receive_from.
///
/// The elements are named by address and type, so that one exchange may carry several types.
template <class Space = host>
struct transfer {
  using space = Space;
  enum class direction : std::uint8_t { send, receive };
  direction way = direction::send;
  dtype type = dtype::u8;
  int peer = 0;
  std::int64_t count = 0;
  void* address = nullptr;
};
template <class T, class Space>
[[nodiscard]] constexpr transfer<Space> send_to(int peer, tensor_view<T, Space> values) noexcept {
  return {transfer<Space>::direction::send, dtype_of<std::remove_const_t<T>>, peer, values.size(),
          const_cast<std::remove_const_t<T>*>(values.address())};
}
template <class T, class Space>
[[nodiscard]] constexpr transfer<Space> receive_from(int peer, tensor_view<T, Space> values) noexcept {
  return {transfer<Space>::direction::receive, dtype_of<T>, peer, values.size(), values.address()};
}

/// exchange(transfers): a group of sends and receives that proceed together, in any order, so that they cannot block
/// each other. Only the ranks that take part call it. The k-th send from a rank to another meets the k-th receive
/// there, over all exchanges of a communicator; both must name one type and count.
template <class C, class Space = host>
concept has_exchange = requires(C& world, std::span<transfer<Space> const> transfers) {
  world.exchange(transfers);
  { world.exchange_async(transfers) } -> communication_request;
};

/// broadcast(values, root): every rank gets root's values.
template <class C, class T, class Space = host>
concept has_broadcast = requires(C& world, tensor_view<T, Space> values, int root) {
  world.broadcast(values, root);
  { world.broadcast_async(values, root) } -> communication_request;
};

/// allocate<T>(extents): memory that the other ranks reach without a copy, for buckets and other large messages.
template <class C, class T, class Space = host>
concept has_allocate = requires(C& world, shape extents) {
  { world.template allocate<T>(extents) } -> std::same_as<tensor<T, Space>>;
};

/// A tensor for the messages of `world`: in memory of the communicator's, where it has some.
template <class T, class Space, class C>
[[nodiscard]] tensor<T, Space> message_tensor(C& world, shape extents) {
  if constexpr (has_allocate<C, T, Space>)
    return world.template allocate<T>(extents);
  else
    return tensor<T, Space>(extents);
}

/// peers(view): collective; the views that all ranks passed, in rank order, each readable and writable from here.
/// Only ranks of one address space have it. Whoever uses such a view puts barriers around it.
template <class C, class T, class Space = host>
concept has_peers = requires(C& world, tensor_view<T, Space> view) {
  { world.peers(view) } -> std::same_as<std::vector<tensor_view<T, Space>>>;
};

}  // namespace trireme

// ---- trireme/comm/in_space.hpp (goes on)
namespace trireme::comm {

/// A communicator whose trainer computes in Space; otherwise Comm.
template <class Space, communicator Comm>
class world_in : public Comm {
 public:
  using space = Space;

  explicit world_in(Comm&& base) noexcept : Comm(std::move(base)) {}
  [[nodiscard]] world_in split(int color, int key) { return world_in(Comm::split(color, key)); }
  [[nodiscard]] world_in duplicate() { return world_in(Comm::duplicate()); }
};

/// The same ranks, computing in another memory space: parameters, gradients and activations of a trainer made with
/// this world lie in Space.
///
/// Ranks    collective, as split() is.
/// @example auto dry = comm::in_space<phantom>(world);   // a whole training without touching a tensor
template <class Space, communicator Comm>
[[nodiscard]] world_in<Space, Comm> in_space(Comm& world) {
  return world_in<Space, Comm>(world.duplicate());
}

}  // namespace trireme::comm

// ---- trireme/comm/launch.hpp
#include <functional>

// ---- trireme/comm/detail/thread_ranks.hpp
#include <exception>
#include <numeric>
#include <optional>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

// ---- trireme/comm/threads.hpp
#include <algorithm>
#include <chrono>
#include <compare>
#include <cstring>

// ---- trireme/core/assertion.hpp
#include <atomic>
#include <cstdlib>

namespace trireme {

/// How much is checked at run time; each level contains those before it.
enum class assertion_level {
  none,           ///< nothing
  light,          ///< arguments of public functions, at constant cost
  normal,         ///< anything that costs less than the work it guards (the default)
  communication,  ///< agreements between ranks, at the price of one tiny collective each
};

namespace detail {

inline assertion_level assertion_level_from_environment() noexcept {
  char const* value = std::getenv("TRIREME_ASSERTIONS");
  std::string_view const name = value == nullptr ? "" : value;
  if (name == "none") return assertion_level::none;
  if (name == "light") return assertion_level::light;
  if (name == "communication") return assertion_level::communication;
  return assertion_level::normal;
}

inline std::atomic<assertion_level> active_assertion_level{assertion_level_from_environment()};

}  // namespace detail

/// The active level. It is a run-time value (environment variable TRIREME_ASSERTIONS, or the setter below), not a
/// macro: two translation units can then never disagree about what an inline function does.
[[nodiscard]] inline assertion_level assertions() noexcept {
  return detail::active_assertion_level.load(std::memory_order_relaxed);
}
inline void assertions(assertion_level level) noexcept {
  detail::active_assertion_level.store(level, std::memory_order_relaxed);
}
[[nodiscard]] inline bool asserts(assertion_level level) noexcept { return assertions() >= level; }

/// Throws assertion_error with `message()` if the level is active and the condition is false. The message is a
/// callable, so that it costs nothing while all is well.
template <class Message>
void expects(assertion_level level, bool condition, Message&& message) {
  if (!condition && asserts(level)) throw assertion_error(message());
}

}  // namespace trireme

// ---- trireme/comm/command.hpp (goes on)
namespace trireme::comm {

enum class collective : std::uint8_t {
  barrier,
  all_reduce,
  reduce_scatter,
  reduce,
  all_gather,
  gather,
  scatter,
  broadcast,
  all_to_all,
  exchange,
  peers,
  split,
  duplicate
};
inline constexpr int collective_kinds = 13;

[[nodiscard]] constexpr std::string_view name_of(collective kind) noexcept {
  constexpr std::string_view names[collective_kinds] = {
      "barrier",   "all_reduce", "reduce_scatter", "reduce", "all_gather", "gather",   "scatter",
      "broadcast", "all_to_all", "exchange",       "peers",  "split",      "duplicate"};
  return names[static_cast<std::size_t>(kind)];
}

enum class reduction_kind : std::uint8_t { none, sum, max, min, mean, pairwise };

[[nodiscard]] constexpr std::string_view name_of(reduction_kind kind) noexcept {
  constexpr std::string_view names[] = {"none", "sum", "max", "min", "mean", "pairwise"};
  return names[static_cast<std::size_t>(kind)];
}

template <class Op>
inline constexpr reduction_kind reduction_of = reduction_kind::none;
template <>
inline constexpr reduction_kind reduction_of<reduction::sum> = reduction_kind::sum;
template <>
inline constexpr reduction_kind reduction_of<reduction::max> = reduction_kind::max;
template <>
inline constexpr reduction_kind reduction_of<reduction::min> = reduction_kind::min;
template <>
inline constexpr reduction_kind reduction_of<reduction::mean> = reduction_kind::mean;
template <>
inline constexpr reduction_kind reduction_of<reduction::pairwise> = reduction_kind::pairwise;

/// The part of a command that every rank must ask for alike. Plain bytes: ranks send it to each other.
struct call {
  collective kind = collective::barrier;
  dtype type = dtype::u8;
  reduction_kind op = reduction_kind::none;
  bool by_value = false;  ///< for the engine: so small that the values travel with the announcement
  std::int32_t root = -1;
  /// Elements: of the whole view; in gather and scatter of one rank's part; in ragged all_to_all and exchange 0,
  /// because it differs between ranks.
  std::int64_t count = 0;
  /// Of a ragged all_gather a fingerprint of its counts, of a ragged all_to_all 1; otherwise 0.
  std::uint64_t shape = 0;
  friend bool operator==(call const&, call const&) = default;
};

/// "all_reduce(F32, 1024 elements, sum)"
[[nodiscard]] inline std::string to_string(call const& what) {
  std::string out{name_of(what.kind)};
  using enum collective;
  if (what.kind == barrier || what.kind == split || what.kind == duplicate || what.kind == exchange) return out;
  out += text("(", trireme::name_of(what.type));
  if (what.shape != 0) out += ", ragged";
  if (what.kind != peers && (what.shape == 0 || what.count > 0))
    out += text(", ", what.count, what.count == 1 ? " element" : " elements");
  if (what.op != reduction_kind::none) out += text(", ", name_of(what.op));
  if (what.root >= 0) out += text(", root ", what.root);
  return out + ")";
}

/// What an engine does with elements, in the memory space that holds them.
struct element_kernels {
  /// Copies bytes; both in this space.
  void (*copy)(void* to, void const* from, std::size_t bytes) = nullptr;
  /// outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this order (pairwise: in the tree over
  /// them); mean divides by `divisor`. Null: no reduction.
  void (*combine)(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count,
                  int divisor) = nullptr;
  /// Returns when what this thread has asked for above is done. Null: it is done when they return.
  void (*complete)() = nullptr;
  /// Whether the CPU may read and write the elements.
  bool touchable = true;
};

/// One message of an exchange, or one part of a ragged all_to_all.
struct part {
  int peer = 0;
  bool sent = true;
  dtype type = dtype::u8;
  std::int64_t count = 0;
  std::byte* address = nullptr;
};

/// One rank's part in one collective, as data: what the typed face of a communicator (collectives.hpp) asks its engine
/// to do, and what a decorator sees. In place where `from` and `to` are the same.
///
///                  from                       to                        count
///   all_reduce     values                     values                    of values
///   reduce_scatter values                     values, slice rank()      of values, size() equal slices
///   reduce         values                     values at the root        of values
///   all_gather     values, slice rank()       values                    of values, equal slices; or `counts`
///   gather         part                       whole, at the root        of a part
///   scatter        whole, at the root         part                      of a part
///   broadcast      values, at the root        values                    of values
///   all_to_all     whole                      whole                     of a whole, equal slices; ragged: `parts`
///   exchange       (parts)                    (parts)                   0
/// Spans and memory belong to the caller: the spans need only live until start() returns, the memory until the request
/// is done.
struct command {
  call what;
  void const* from = nullptr;
  void* to = nullptr;
  std::size_t element_bytes = 1;
  element_kernels const* elements = nullptr;  ///< null in barrier, split, duplicate
  std::span<std::int64_t const> counts{};     ///< ragged all_gather: elements of each rank
  std::span<part const> parts{};              ///< exchange; ragged all_to_all: to and from each rank, in rank order
  std::uint64_t bytes = 0;                    ///< what it counts as sent
  std::uint32_t messages = 0;
  int divisor = 0;  ///< what a mean divides by; 0: the number of ranks. Others than that only within compositions.
};

/// "60s", "1500ms": a duration as the source that makes it.
[[nodiscard]] inline std::string to_string(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? text(time.count() / 1000, "s") : text(time.count(), "ms");
}

}  // namespace trireme::comm

// ---- trireme/core/hash.hpp
namespace trireme {

/// A 64-bit finaliser with good avalanche (splitmix64).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// The hash of a name (FNV-1a, then mixed).
[[nodiscard]] constexpr std::uint64_t hash_name(std::string_view name) noexcept {
  std::uint64_t h = 0xCBF29CE484222325ULL;
  for (char const c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return mix(h);
}

/// What one element adds to a state hash. The state hash is the wrapping sum of this over all elements, so it is the
/// same however the state is cut and in whatever order the pieces are visited.
[[nodiscard]] constexpr std::uint64_t hash_element(std::uint64_t name, std::uint64_t index,
                                                   std::uint64_t bits) noexcept {
  return mix(name ^ mix(index ^ mix(bits)));
}

/// 16 hexadecimal digits.
[[nodiscard]] inline std::string hexadecimal(std::uint64_t value) {
  std::string out(16, '0');
  for (int digit = 15; digit >= 0; --digit, value >>= 4)
    out[static_cast<std::size_t>(digit)] = "0123456789abcdef"[value & 15];
  return out;
}

}  // namespace trireme

// ---- trireme/comm/detail/expectations.hpp (goes on)
namespace trireme::comm::detail {

[[nodiscard]] inline std::string differing_calls(std::string_view who, std::uint64_t number, int a, call const& of_a,
                                                 int b, call const& of_b) {
  return text(who, ": call number ", number, " differs between ranks: rank ", a, " called ", to_string(of_a), ", rank ",
              b, " called ", to_string(of_b), "; make every rank call the same collectives in the same order");
}

/// "8 elements of F32"
[[nodiscard]] inline std::string describe(part const& it) {
  return text(it.count, it.count == 1 ? " element of " : " elements of ", trireme::name_of(it.type));
}
[[nodiscard]] inline std::string differing_transfers(std::string_view who, int from, part const& sent, int to,
                                                     part const& received) {
  return text(who, ": a message differs between its ends: rank ", from, " sends ", describe(sent), " to rank ", to,
              ", which expects ", describe(received), "; make both sides of an exchange name one type and count");
}

/// Throws config_error unless equal slices are equal and the root is a rank (level light).
inline void expect_right(std::string_view who, call const& what, int size) {
  if (!asserts(assertion_level::light)) return;
  using enum collective;
  bool const sliced =
      what.kind == reduce_scatter || what.kind == all_to_all || (what.kind == all_gather && what.shape == 0);
  if (sliced && what.count % size != 0)
    throw config_error(text(who, "::", name_of(what.kind), ": ", what.count, " elements do not divide into ", size,
                            " equal slices; pad the view to a multiple of the number of ranks"));
  bool const rooted = what.kind == broadcast || what.kind == reduce || what.kind == gather || what.kind == scatter;
  if (rooted && (what.root < 0 || what.root >= size))
    throw config_error(
        text(who, "::", name_of(what.kind), ": root ", what.root, " is not one of the ", size, " ranks"));
}

/// Throws config_error unless the two views of a collective fit each other (level light).
inline void expect_sizes(std::string_view who, call const& what, std::int64_t from, std::int64_t to, int rank,
                         int size) {
  if (!asserts(assertion_level::light)) return;
  if (what.kind == collective::all_to_all && from != to)
    throw config_error(
        text(who, "::all_to_all: ", from, " elements go out but ", to, " come in; give both views one size"));
  if (rank != what.root) return;
  bool const gathers = what.kind == collective::gather;
  if ((gathers || what.kind == collective::scatter) && (gathers ? to : from) != what.count * size)
    throw config_error(text(who, "::", name_of(what.kind), ": the root's whole view has ", gathers ? to : from,
                            " elements, but ", size, " ranks with ", what.count, " each need ", what.count * size));
}

/// Throws config_error unless there is one count a rank and they add up to the view (level light).
inline void expect_counts(std::string_view who, collective kind, std::span<std::int64_t const> counts,
                          std::int64_t elements, int size) {
  if (!asserts(assertion_level::light)) return;
  if (counts.size() != static_cast<std::size_t>(size))
    throw config_error(
        text(who, "::", name_of(kind), ": ", counts.size(), " counts for ", size, " ranks; give one count a rank"));
  std::int64_t sum = 0;
  for (auto const each : counts) {
    if (each < 0) throw config_error(text(who, "::", name_of(kind), ": a count is ", each, "; counts begin at 0"));
    sum += each;
  }
  if (sum != elements)
    throw config_error(text(who, "::", name_of(kind), ": the counts add up to ", sum, " but the view has ", elements,
                            " elements; make them equal"));
}

inline void expect_peer(std::string_view who, int peer, int size) {
  if (asserts(assertion_level::light) && (peer < 0 || peer >= size))
    throw config_error(text(who, "::exchange: peer ", peer, " is not one of the ", size, " ranks"));
}

inline void expect_color(std::string_view who, int color) {
  if (asserts(assertion_level::light) && color < 0)
    throw config_error(text(who, "::split: color ", color, " is negative; number the groups from 0"));
}

/// What tells one list of counts from another; never 0.
[[nodiscard]] inline std::uint64_t fingerprint(std::span<std::int64_t const> counts) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    sum += mix(static_cast<std::uint64_t>(counts[i]) * 0x9e37'79b9'7f4a'7c15ULL + i);
  return sum | 1U;
}

/// An empty list, the same memory each time: commands are made without allocating.
[[nodiscard]] inline std::vector<part>& parts_of_this_thread() {
  thread_local std::vector<part> parts;
  parts.clear();
  return parts;
}

/// The parts of a ragged view, one a rank, in rank order.
template <class T>
void append_parts(std::vector<part>& parts, bool sent, dtype type, std::size_t element_bytes, T const* address,
                  std::span<std::int64_t const> counts) {
  auto* at = const_cast<std::byte*>(reinterpret_cast<std::byte const*>(address));
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back({static_cast<int>(rank), sent, type, counts[rank], at});
    if (counts[rank] > 0) at += static_cast<std::size_t>(counts[rank]) * element_bytes;
  }
}

[[nodiscard]] inline std::uint32_t messages_of(command const& it, int size) noexcept {
  if (it.bytes == 0) return 0;
  bool const to_root = it.what.kind == collective::gather || it.what.kind == collective::reduce;
  return to_root ? 1U : static_cast<std::uint32_t>(size - 1);
}

}  // namespace trireme::comm::detail

// ---- trireme/core/summation_tree.hpp
namespace trireme {

/// Where the fixed binary tree over [0, n) is cut: in halves while n is even, else at the largest power of two.
///
/// Sums in this order do not depend on how many ranks form them: for any power of two p that divides n, each of p equal
/// runs of leaves is a subtree, and the p runs are the leaves of the tree over [0, p).
/// @param n  at least 2.
[[nodiscard]] constexpr std::int64_t tree_split(std::int64_t n) noexcept {
  if (n % 2 == 0) return n / 2;
  std::int64_t power = 1;
  while (power * 2 < n) power *= 2;
  return power;
}

/// How often the last two partial sums become one when leaf i of [0, n) has been added behind them: the number of inner
/// nodes of the tree that end with leaf i. After the last leaf one sum is left.
[[nodiscard]] constexpr int tree_merges(std::int64_t n, std::int64_t i) noexcept {
  int merges = 0;
  std::int64_t first = 0;
  std::int64_t last = n;
  while (last - first > 1) {
    if (i == last - 1) ++merges;
    auto const middle = first + tree_split(last - first);
    (i < middle ? last : first) = middle;
  }
  return merges;
}

}  // namespace trireme

// ---- trireme/ops/host/reductions.hpp
#include <cmath>
#include <limits>

// ---- trireme/core/exact_sum.hpp
namespace trireme {

/// A sum of doubles without rounding: the same state, bit for bit, in whatever order and on whichever rank the terms
/// were added.
///
/// Why: a norm over shards must not depend on how many ranks there are. The state is a row of integers; ranks add
/// theirs with an int64 all-reduce over `state()`, and `value()` rounds once, to nearest even.
/// Numerics exact for every finite double. Up to 2^31 terms may be added to one state (each limb holds 32 bits of the
///          sum and 31 of carries). A term that is not finite makes the value NaN.
/// Bytes    544. About 5 ns a term: add sums of blocks, not single numbers.
class exact_sum {
 public:
  /// Limb i counts units of 2^(32 i - 1074); the last number counts the terms that were not finite.
  static constexpr std::size_t limbs = 67;

  constexpr void add(double term) noexcept {
    auto const bits = std::bit_cast<std::uint64_t>(term);
    auto const exponent = static_cast<unsigned>(bits >> 52) & 0x7ffU;
    if (exponent == 0x7ffU) {
      ++state_[limbs];
      return;
    }
    std::uint64_t const fraction = bits & 0xf'ffff'ffff'ffffULL;
    std::uint64_t const mantissa = exponent == 0 ? fraction : fraction | 1ULL << 52;
    unsigned const shift = exponent == 0 ? 0 : exponent - 1;
    auto const limb = static_cast<std::size_t>(shift / 32);
    // 53 bits, moved up by at most 31, lie in three limbs.
    std::uint64_t const low = (mantissa & 0xffff'ffffU) << (shift % 32);
    std::uint64_t const high = (mantissa >> 32) << (shift % 32);
    std::int64_t const sign = (bits >> 63) != 0 ? -1 : 1;
    state_[limb] += sign * static_cast<std::int64_t>(low & 0xffff'ffffU);
    state_[limb + 1] += sign * static_cast<std::int64_t>((low >> 32) + (high & 0xffff'ffffU));
    state_[limb + 2] += sign * static_cast<std::int64_t>(high >> 32);
  }

  constexpr void add(exact_sum const& other) noexcept {
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += other.state_[i];
  }

  /// The integers to be summed over ranks.
  [[nodiscard]] constexpr std::span<std::int64_t, limbs + 1> state() noexcept { return state_; }
  [[nodiscard]] constexpr std::span<std::int64_t const, limbs + 1> state() const noexcept { return state_; }

  /// How many terms were not finite.
  [[nodiscard]] constexpr std::int64_t non_finite() const noexcept { return state_[limbs]; }

  /// The sum, rounded once; infinity beyond the largest double, NaN if a term was not finite.
  [[nodiscard]] double value() const noexcept {
    if (non_finite() != 0) return std::numeric_limits<double>::quiet_NaN();
    auto digits = state_;
    bool const negative = carry(digits) < 0;
    if (negative) {
      digits = state_;
      for (auto& digit : digits) digit = -digit;
      carry(digits);
    }
    std::size_t top = limbs;
    while (top > 0 && digits[top] == 0) --top;
    int const width = 64 - std::countl_zero(static_cast<std::uint64_t>(digits[top]));
    auto const bit_length = static_cast<std::int64_t>(top) * 32 + width;
    // 53 bits from the top; what lies below decides the rounding.
    auto const lowest = bit_length > 53 ? bit_length - 53 : 0;
    std::uint64_t mantissa = 0;
    for (auto position = bit_length - 1; position >= lowest; --position)
      mantissa = mantissa << 1 | bit(digits, position);
    if (lowest > 0 && bit(digits, lowest - 1) != 0) {
      bool sticky = false;
      for (auto position = lowest - 2; position >= 0 && !sticky; --position) sticky = bit(digits, position) != 0;
      if (sticky || (mantissa & 1U) != 0) ++mantissa;
    }
    double const magnitude = std::ldexp(static_cast<double>(mantissa), static_cast<int>(lowest - 1074));
    return negative ? -magnitude : magnitude;
  }

  friend constexpr bool operator==(exact_sum const&, exact_sum const&) = default;

 private:
  using digits_type = std::array<std::int64_t, limbs + 1>;

  // Moves what exceeds 32 bits upwards (the last number takes the end of it); negative if the whole is.
  static constexpr std::int64_t carry(digits_type& digits) noexcept {
    std::int64_t over = 0;
    for (std::size_t i = 0; i < limbs; ++i) {
      over += digits[i];
      digits[i] = over & 0xffff'ffff;
      over >>= 32;
    }
    return digits[limbs] = over;
  }
  static constexpr std::uint64_t bit(digits_type const& digits, std::int64_t position) noexcept {
    // The last number may exceed 32 bits, so it is not cut.
    auto const limb = std::min<std::size_t>(static_cast<std::size_t>(position / 32), limbs);
    return static_cast<std::uint64_t>(digits[limb]) >> (position - static_cast<std::int64_t>(limb) * 32) & 1U;
  }

  digits_type state_{};
};

}  // namespace trireme

// ---- trireme/ops/host/detail/select.hpp
namespace trireme::ops::detail {

/// The magnitude of a floating-point number as an integer of the same order; NaN is largest.
template <class G>
auto magnitude_bits(G x) {
  using bits = std::conditional_t<sizeof(G) == 8, std::uint64_t, std::uint32_t>;
  return static_cast<bits>(std::bit_cast<bits>(x) & (static_cast<bits>(~bits{0}) >> 1));
}

/// Indices of the k largest magnitudes, ascending. A histogram of the leading bits finds the bin in which the k-th
/// lies; only that bin's elements are ordered.
template <class G>
void select_largest(G const* x, std::int64_t n, std::int32_t* indices, std::int64_t k) {
  if (k <= 0) return;
  if (k >= n) {
    for (std::int64_t i = 0; i < n; ++i) indices[i] = static_cast<std::int32_t>(i);
    return;
  }
  constexpr int shift = static_cast<int>(sizeof(G)) * 8 - 1 - 12;
  constexpr std::size_t bins = std::size_t{1} << 12;
  // Four histograms, because neighbours tend to hit the same bin.
  thread_local std::array<std::array<std::int32_t, bins>, 4> histograms;
  for (auto& histogram : histograms) histogram.fill(0);
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) ++histograms[j][magnitude_bits(x[i + static_cast<std::int64_t>(j)]) >> shift];
  }
  for (; i < n; ++i) ++histograms[0][magnitude_bits(x[i]) >> shift];

  std::int64_t above = 0;  // elements in the bins above `bin`
  std::size_t bin = bins - 1;
  for (;; --bin) {
    std::int64_t const here =
        std::int64_t{histograms[0][bin]} + histograms[1][bin] + histograms[2][bin] + histograms[3][bin];
    if (above + here >= k) break;
    above += here;
  }

  thread_local std::vector<std::int32_t> edge;
  edge.clear();
  std::int64_t found = 0;
  for (i = 0; i < n; ++i) {
    auto const at = static_cast<std::size_t>(magnitude_bits(x[i]) >> shift);
    if (at < bin) continue;
    if (at > bin) {
      indices[found++] = static_cast<std::int32_t>(i);
    } else {
      edge.push_back(static_cast<std::int32_t>(i));
    }
  }
  auto const wanted = edge.begin() + (k - above);
  if (wanted != edge.end()) {
    std::nth_element(edge.begin(), wanted, edge.end(), [x](std::int32_t a, std::int32_t b) {
      auto const left = magnitude_bits(x[a]);
      auto const right = magnitude_bits(x[b]);
      return left != right ? left > right : a < b;
    });
    std::sort(edge.begin(), wanted);
  }
  // Two ascending lists become one, from the back, in place.
  auto* to = indices + k;
  auto* first = indices + above;
  auto second = wanted;
  while (second != edge.begin()) {
    if (first != indices && *(first - 1) > *(second - 1)) {
      *--to = *--first;
    } else {
      *--to = *--second;
    }
  }
}

}  // namespace trireme::ops::detail

// ---- trireme/ops/host/elementwise.hpp
#include <numbers>

// ---- trireme/contract/parameter.hpp
namespace trireme {

/// How a parameter starts. Element i of a parameter depends on (seed, name, i) alone, so that every rank and every
/// sharding starts from the same values.
struct initial {
  enum class distribution { zeros, ones, normal, uniform };
  distribution kind = distribution::zeros;
  double scale = 0;  ///< standard deviation, or the half width of the uniform distribution
  friend bool operator==(initial const&, initial const&) = default;
};

/// Which of `ways` consecutive parts of something is meant. Parts are uneven where they have to be: the first
/// n % ways of them get one more.
struct share {
  int place = 0;
  int ways = 1;
  struct range {
    std::int64_t first = 0;
    std::int64_t count = 0;
    friend bool operator==(range const&, range const&) = default;
  };
  [[nodiscard]] constexpr range of(std::int64_t n) const noexcept {
    auto const each = n / ways;
    auto const more = n % ways;
    return {place * each + std::min<std::int64_t>(place, more), each + (place < more ? 1 : 0)};
  }
  friend bool operator==(share const&, share const&) = default;
};

/// What is known of a parameter without its numbers. Two parameters of one name are two uses of one tied tensor.
///
/// What lies here may be a part of the tensor, a box of it: `extents` elements from `first` on, of `whole`.
struct parameter_info {
  std::string name;
  shape extents;  ///< of what lies here
  initial start{};
  bool decays = true;   ///< whether weight decay applies
  shape whole{};        ///< extents of the whole tensor; without any, all of it lies here
  shape first{};        ///< where the part begins in it, one number a dimension
  bool answers = true;  ///< false: another rank of this model replica answers for it in norm, hash and checkpoint
  bool tied = false;    ///< true: other ranks of this model replica use it too, and gradients are summed with theirs
  bool dealt = false;   ///< true: the ranks of an expert group hold different parts of it; see expert_group

  [[nodiscard]] bool is_part() const noexcept { return whole.rank() > 0; }
  [[nodiscard]] shape const& whole_extents() const noexcept { return is_part() ? whole : extents; }
  friend bool operator==(parameter_info const&, parameter_info const&) = default;
};

/// The part of a whole tensor that has the range [first, first + count) of one axis.
[[nodiscard]] inline parameter_info part_of(parameter_info info, int axis, share::range range) {
  shape extents;
  shape first;
  for (int each = 0; each < info.extents.rank(); ++each) {
    extents.push_back(each == axis ? range.count : info.extents[each]);
    first.push_back(each == axis ? range.first : 0);
  }
  info.whole = info.extents;
  info.extents = extents;
  info.first = first;
  return info;
}

/// Calls f(in_whole, in_part, n) for the stretches of the whole tensor (row-major) that elements [first, first + count)
/// of a part are: one stretch, in constant time, unless something else lies between.
template <class F>
void for_each_run(parameter_info const& part, std::int64_t first, std::int64_t count, F&& f) {
  if (count == 0) return;
  if (!part.is_part()) return f(first, first, count);
  int axis = part.extents.rank() - 1;  // the innermost one that is cut: what is inside lies together
  while (axis > 0 && part.extents[axis] == part.whole[axis]) --axis;
  std::int64_t inner = 1;
  for (int each = axis + 1; each < part.whole.rank(); ++each) inner *= part.whole[each];
  auto const run = part.extents[axis] * inner;
  while (count > 0) {
    auto const row = first / run;
    auto const n = std::min(count, (row + 1) * run - first);
    std::int64_t at = part.first[axis] * inner + first % run;
    std::int64_t stride = part.whole[axis] * inner;
    auto rest = row;
    for (int each = axis - 1; each >= 0; --each) {
      at += (part.first[each] + rest % part.extents[each]) * stride;
      stride *= part.whole[each];
      rest /= part.extents[each];
    }
    f(at, first, n);
    first += n;
    count -= n;
  }
}

/// A parameter as a layer sees it: the layer does not own the memory; the exchange binds and rebinds it.
///
/// Each *use* of a tied parameter has a gradient of its own; the exchange adds the uses in order.
template <class Env>
struct parameter {
  parameter_info info;
  tensor_view<typename Env::param, typename Env::space> value;
  tensor_view<typename Env::gradient, typename Env::space> gradient;
};

/// A parameter whose value and gradient lie in memory of the caller.
template <class T, class Space = host>
struct foreign_parameter {
  std::string name;
  tensor_view<T, Space> value;
  tensor_view<T, Space> gradient;
};

}  // namespace trireme

// ---- trireme/core/rng.hpp
namespace trireme {

/// Philox 4x32-10: a random function of (counter, key) without state.
///
/// Why: a number drawn for (seed, step, sample, site) is the same on whichever rank, in whichever order it is drawn;
/// nothing has to be saved in a checkpoint but the seed. Method: [Salmon et al., SC 2011], "Parallel random numbers:
/// as easy as 1, 2, 3"; the known answers of its authors are in the tests.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                            std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const a = std::uint64_t{0xD2511F53U} * counter[0];
    std::uint64_t const b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

/// The key of all random numbers of one run: a seed, and the step it stands in.
struct random_key {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  friend bool operator==(random_key const&, random_key const&) = default;
};

/// Four words for block `block` of sample `sample` at site `site` (a number that tells uses apart).
[[nodiscard]] constexpr std::array<std::uint32_t, 4> random_block(random_key key, std::uint32_t site,
                                                                  std::uint64_t sample, std::uint32_t block) noexcept {
  auto const mixed = key.seed ^ (key.step * 0x9E3779B97F4A7C15ULL);
  return philox({block, site, static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)},
                {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)});
}

/// A word as a number in [0, 1), with 24 bits.
[[nodiscard]] constexpr float unit_float(std::uint32_t word) noexcept {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

}  // namespace trireme

// ---- trireme/ops/host/target.hpp
// Intrinsics and standard headers are included before a region begins: what a region declares is compiled for its CPU.
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TRIREME_X86 1
#include <immintrin.h>
#else
#define TRIREME_X86 0
#endif

// Regions of code for one CPU level, so that a program built with plain -O2 has the fast kernels too and picks them at
// run time. Inside a region: free functions and function templates only (g++ compiles a lambda or a template declared
// elsewhere for the baseline), in a namespace named for the level, so that no baseline program ever calls them by
// overload resolution.
//
//     TRIREME_TARGET_AVX2_BEGIN
//     namespace trireme::ops::detail::avx2 { inline __m256 half(__m256 x) { ... } }
//     TRIREME_TARGET_END
#if defined(__clang__)
#define TRIREME_TARGET_BEGIN_(features) \
  TRIREME_PRAGMA_(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TRIREME_TARGET_END TRIREME_PRAGMA_(clang attribute pop)
#else
// g++ 12 calls the deliberately undefined operands inside its own intrinsics uninitialised; hence the silence.
#define TRIREME_TARGET_BEGIN_(features)                           \
  TRIREME_PRAGMA_(GCC diagnostic push)                            \
  TRIREME_PRAGMA_(GCC diagnostic ignored "-Wuninitialized")       \
  TRIREME_PRAGMA_(GCC diagnostic ignored "-Wmaybe-uninitialized") \
  TRIREME_PRAGMA_(GCC push_options) TRIREME_PRAGMA_(GCC target(features))
#define TRIREME_TARGET_END TRIREME_PRAGMA_(GCC pop_options) TRIREME_PRAGMA_(GCC diagnostic pop)
#endif
#define TRIREME_PRAGMA_(text) _Pragma(#text)

#define TRIREME_TARGET_AVX2_BEGIN TRIREME_TARGET_BEGIN_("avx2,fma,f16c,bmi,bmi2")
#define TRIREME_TARGET_AVX512_BEGIN \
  TRIREME_TARGET_BEGIN_("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512cd")
#define TRIREME_TARGET_AVX512_BF16_BEGIN \
  TRIREME_TARGET_BEGIN_("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512bf16")

namespace trireme::ops {

/// What kernels may ask of the CPU; each level contains those before it.
enum class cpu_level {
  baseline,     ///< whatever the program was compiled for
  avx2,         ///< AVX2 and FMA
  avx512,       ///< AVX-512 F, BW, VL, DQ, CD
  avx512_bf16,  ///< and the bfloat16 dot product
};

/// The name of a level, as TRIREME_CPU takes it.
[[nodiscard]] constexpr std::string_view name_of(cpu_level level) noexcept {
  switch (level) {
    case cpu_level::avx2:
      return "avx2";
    case cpu_level::avx512:
      return "avx512";
    case cpu_level::avx512_bf16:
      return "avx512_bf16";
    case cpu_level::baseline:
      break;
  }
  return "baseline";
}

/// The highest level that this CPU and its operating system have.
[[nodiscard]] inline cpu_level available() noexcept {
#if TRIREME_X86
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return cpu_level::baseline;
  bool const avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd");
  if (!avx512) return cpu_level::avx2;
  return __builtin_cpu_supports("avx512bf16") ? cpu_level::avx512_bf16 : cpu_level::avx512;
#else
  return cpu_level::baseline;
#endif
}

namespace detail {

inline cpu_level level_from_environment() noexcept {
  char const* value = std::getenv("TRIREME_CPU");
  std::string_view const name = value == nullptr ? "" : value;
  for (auto const level : {cpu_level::baseline, cpu_level::avx2, cpu_level::avx512}) {
    if (name == name_of(level)) return std::min(level, available());
  }
  return available();
}

inline std::atomic<cpu_level>& active_level() noexcept {
  static std::atomic<cpu_level> level{level_from_environment()};
  return level;
}

}  // namespace detail

/// The level that kernels use: the CPU's, unless the environment variable TRIREME_CPU (baseline, avx2, avx512) or the
/// setter below lowered it.
[[nodiscard]] inline cpu_level detected() noexcept { return detail::active_level().load(std::memory_order_relaxed); }

/// Uses `level`, or what the CPU has if that is less. For tests and benchmarks, between steps.
inline void detected(cpu_level level) noexcept {
  detail::active_level().store(std::min(level, available()), std::memory_order_relaxed);
}

}  // namespace trireme::ops

// ---- trireme/contract/numerics.hpp
namespace trireme {

/// A gradient that is still a sum: g = scale * (terms[0] + terms[1] + ...), added in order. Ranks that share an
/// address space hand their gradients to the optimizer like this, so the reduced gradient is never written.
template <class G, class Space>
struct gradient_terms {
  std::span<tensor_view<G const, Space> const> terms;
  double scale = 1;
};

/// A sum of losses and how many of them were summed.
struct loss_sum {
  double sum = 0;
  std::int64_t count = 0;
  [[nodiscard]] double mean() const noexcept { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
  loss_sum& operator+=(loss_sum const& other) noexcept {
    sum += other.sum;
    count += other.count;
    return *this;
  }
};

}  // namespace trireme

// ---- trireme/ops/types.hpp (goes on)
namespace trireme::ops {

/// The numeric kernels of one memory space: a struct of static function templates (docs/design.md lists them).
template <class Space>
struct on;

/// A weight matrix as products see it: the view, its orientation, and copies packed for the kernels.
template <class T, class Space>
class weights;

/// In the version of values: they do not stay where they are (parameters that are gathered for their unit and dropped
/// after it), so nothing packed of them is worth keeping.
inline constexpr std::uint64_t passing_values = std::uint64_t{1} << 63;

/// What sums of T are kept in.
template <class T>
using accumulate_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

enum class activation { none, gelu, tanh, relu };

/// How a weight is stored: (inputs, outputs) as GPT-2 does, or (outputs, inputs) as an embedding table does.
enum class orientation { in_out, out_in };

struct attention_shape {
  std::int64_t batch = 0;
  std::int64_t context = 0;
  std::int64_t heads = 0;
  std::int64_t channels = 0;
  std::int64_t first_head = 0;  ///< the number of the first of these heads among all of its layer, for dropout
  [[nodiscard]] constexpr std::int64_t head_channels() const noexcept { return channels / heads; }
};

/// Which rows of a table lie here, or which classes of a row: those from `first` on, of `whole`; 0 = all of them.
struct table_part {
  std::int64_t first = 0;
  std::int64_t whole = 0;
};

using trireme::gradient_terms;
using trireme::loss_sum;

/// Which numbers to drop: a function of (key, site, sample, position in the sample), the same on any rank.
/// Off if the probability is 0 or there are no samples.
struct dropout_site {
  double probability = 0;
  random_key key;
  std::uint32_t site = 0;
  std::span<std::int64_t const> samples;
  std::int64_t first = 0;  ///< what is dropped out begins with this element of all samples' elements,
  std::int64_t whole = 0;  ///< which are so many; 0 = as many as it has itself
  [[nodiscard]] bool active() const noexcept { return probability > 0 && !samples.empty(); }
};

/// What a product does to its result on the way out: y = residual + act(x w + bias).
template <class T, class Space>
struct linear_epilogue {
  tensor_view<T const, Space> bias{};  ///< (N), or empty
  activation act = activation::none;
  tensor_view<T, Space> before_activation{};  ///< (M, N) keeps x w + bias for the backward pass, or empty
  tensor_view<T const, Space> residual{};     ///< (M, N), or empty
};

/// What an input gradient does on the way out: dx (+)= (dy w^T) * act'(before_activation).
template <class T, class Space>
struct input_epilogue {
  activation act = activation::none;
  tensor_view<T const, Space> before_activation{};  ///< (M, K), or empty
  bool accumulate = false;
};

/// One step of AdamW [Loshchilov, Hutter, 2019], with the bias corrections already computed.
struct adamw_numbers {
  double rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0;        ///< value -= rate * decay * value
  double correction1 = 1;  ///< 1 - beta1^t
  double correction2 = 1;  ///< 1 - beta2^t
};

/// One step of SGD with momentum: velocity = momentum * velocity + g; value -= rate * (velocity or, Nesterov's,
/// g + momentum * velocity).
struct sgd_numbers {
  double rate = 0;
  double momentum = 0;
  bool nesterov = false;
  double decay = 0;  ///< g += decay * value
};

}  // namespace trireme::ops

// ---- trireme/ops/host/simd.hpp (goes on)
// Vectors of float lanes, one kind for each CPU level, so that a kernel is written once: a `.inl` file is a set of
// function templates over the lanes of the namespace TRIREME_LEVEL, and is included once for each level inside that
// level's region. Kernels contain no lambda (g++ compiles those for the baseline). double runs on the baseline.
//
// Multiplications that meet an addition are written as fma(): what a compiler may contract would otherwise differ
// between the body of a loop and its tail, and an element's result would depend on where a slice begins.
#define TRIREME_INLINE inline __attribute__((always_inline))

#if TRIREME_X86
#define TRIREME_LEVEL_AVX2_BEGIN TRIREME_TARGET_AVX2_BEGIN
#define TRIREME_LEVEL_AVX512_BEGIN TRIREME_TARGET_AVX512_BEGIN
#define TRIREME_LEVEL_AVX512_BF16_BEGIN TRIREME_TARGET_AVX512_BF16_BEGIN
#define TRIREME_LEVEL_END TRIREME_TARGET_END
#else
#define TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL_AVX512_BF16_BEGIN
#define TRIREME_LEVEL_END
#endif

/// Unrolls the next loop, whose bounds are constants, so that arrays of lanes live in registers at -O2 too.
#if defined(__clang__)
#define TRIREME_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TRIREME_UNROLL _Pragma("GCC unroll 32")
#endif

/// Runs the body for i = 0, width, 2 width, ... < n. `count` is how many lanes are meant: a constant but for the last.
#define TRIREME_FOR_LANES(F, n, i, count, ...)                            \
  {                                                                       \
    std::int64_t i = 0;                                                   \
    for (constexpr int count = F::width; i + count <= n; i += count) {    \
      __VA_ARGS__                                                         \
    }                                                                     \
    if (int const count = static_cast<int>(n - i); count > 0) __VA_ARGS__ \
  }

/// Returns `call` from the namespace of the active CPU level; `Fast` is false where only the baseline has the types.
#define TRIREME_DISPATCH(Fast, ...)                                                                       \
  do {                                                                                                    \
    if constexpr (Fast) {                                                                                 \
      auto const level = ::trireme::ops::detected();                                                      \
      if (level >= ::trireme::ops::cpu_level::avx512) return ::trireme::ops::detail::avx512::__VA_ARGS__; \
      if (level >= ::trireme::ops::cpu_level::avx2) return ::trireme::ops::detail::avx2::__VA_ARGS__;     \
    }                                                                                                     \
    return ::trireme::ops::detail::baseline::__VA_ARGS__;                                                 \
  } while (false)

namespace trireme::ops::detail {

/// Whether float lanes can hold elements of these types.
template <class... T>
inline constexpr bool fits_float = ((std::is_same_v<T, float> || storage_float<T>)&&...);

/// Whether some kind of lanes holds T: integers are left to plain loops.
template <class T>
inline constexpr bool arithmetic_lanes = std::is_floating_point_v<T> || storage_float<T>;

/// Vectors of the compiler's own, of 64 bytes and of 8 elements, which it splits as a level demands: for integers.
template <class T>
struct vectors_of {
  typedef T wide __attribute__((vector_size(64)));
  typedef T eight __attribute__((vector_size(8 * sizeof(T))));
};
template <class T>
using wide = typename vectors_of<T>::wide;
template <class T>
using eight = typename vectors_of<T>::eight;

/// One lane of Real.
template <class Real>
struct lane {
  using real = Real;
  static constexpr int width = 1;
  Real v;

  static lane all(Real x) { return {x}; }
  template <class T>
  static lane load(T const* p) {
    return {static_cast<Real>(*p)};
  }
  template <class T>
  static lane load(T const* p, int) {
    return load(p);
  }
  template <class T>
  void store(T* p) const {
    if constexpr (storage_float<T>) {
      *p = T(static_cast<float>(v));
    } else {
      *p = static_cast<T>(v);
    }
  }
  template <class T>
  void store(T* p, int) const {
    store(p);
  }
  friend lane operator+(lane a, lane b) { return {a.v + b.v}; }
  friend lane operator-(lane a, lane b) { return {a.v - b.v}; }
  friend lane operator*(lane a, lane b) { return {a.v * b.v}; }
  friend lane operator/(lane a, lane b) { return {a.v / b.v}; }
  friend lane fma(lane a, lane b, lane c) {
#if defined(__FMA__)
    return {std::fma(a.v, b.v, c.v)};
#else
    return {a.v * b.v + c.v};
#endif
  }
  friend lane max(lane a, lane b) { return {a.v > b.v ? a.v : b.v}; }
  friend lane min(lane a, lane b) { return {a.v < b.v ? a.v : b.v}; }
  friend lane sqrt(lane a) { return {std::sqrt(a.v)}; }
  friend lane magnitude(lane a) { return {std::fabs(a.v)}; }
  friend lane round(lane a) { return {std::nearbyint(a.v)}; }
  friend lane power_of_two(lane a) {
    if (!(a.v >= -127)) return a;  // NaN
    return {std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<std::int32_t>(a.v) + 127) << 23)};
  }
  friend lane where_less(lane a, lane b, lane yes, lane no) { return {a.v < b.v ? yes.v : no.v}; }
  friend lane first(int count, lane yes, lane no) { return count > 0 ? yes : no; }
  friend Real sum(lane a) { return a.v; }
  friend Real largest(lane a) { return a.v; }
};

namespace baseline {
template <class... T>
using lanes_for = lane<std::conditional_t<(std::is_same_v<T, double> || ...), double, float>>;
}  // namespace baseline
}  // namespace trireme::ops::detail

#if TRIREME_X86
TRIREME_TARGET_AVX2_BEGIN
namespace trireme::ops::detail::avx2 {

struct lanes {
  using real = float;
  static constexpr int width = 8;
  __m256 v;

  static TRIREME_INLINE __m256i mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  template <storage_float T>
  static TRIREME_INLINE __m256 widen(__m128i bits) {
    if constexpr (std::is_same_v<T, float16>) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // The same rounding as bfloat16's constructor, denormals included (which the instruction for it would flush).
  template <storage_float T>
  static TRIREME_INLINE __m128i narrow(__m256 x) {
    if constexpr (std::is_same_v<T, float16>) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    __m256i const bits = _mm256_castps_si256(x);
    __m256i const odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i const near = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i const nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i const is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i const high = _mm256_srli_epi32(_mm256_blendv_epi8(near, nan, is_nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
  static TRIREME_INLINE lanes all(float x) { return {_mm256_set1_ps(x)}; }
  static TRIREME_INLINE lanes load(float const* p) { return {_mm256_loadu_ps(p)}; }
  template <storage_float T>
  static TRIREME_INLINE lanes load(T const* p) {
    return {widen<T>(_mm_loadu_si128(reinterpret_cast<__m128i const*>(p)))};
  }
  static TRIREME_INLINE lanes load(float const* p, int count) {
    return count == width ? load(p) : lanes{_mm256_maskload_ps(p, mask(count))};
  }
  template <storage_float T>
  static TRIREME_INLINE lanes load(T const* p, int count) {
    if (count == width) return load(p);
    T part[width] = {};
    std::memcpy(part, p, static_cast<std::size_t>(count) * sizeof(T));
    return load(part);
  }
  TRIREME_INLINE void store(float* p) const { _mm256_storeu_ps(p, v); }
  template <storage_float T>
  TRIREME_INLINE void store(T* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow<T>(v));
  }
  TRIREME_INLINE void store(float* p, int count) const {
    count == width ? store(p) : _mm256_maskstore_ps(p, mask(count), v);
  }
  template <storage_float T>
  TRIREME_INLINE void store(T* p, int count) const {
    if (count == width) return store(p);
    T part[width];
    store(part);
    std::memcpy(static_cast<void*>(p), part, static_cast<std::size_t>(count) * sizeof(T));
  }
};

TRIREME_INLINE lanes operator+(lanes a, lanes b) { return {_mm256_add_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator-(lanes a, lanes b) { return {_mm256_sub_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator*(lanes a, lanes b) { return {_mm256_mul_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator/(lanes a, lanes b) { return {_mm256_div_ps(a.v, b.v)}; }
TRIREME_INLINE lanes fma(lanes a, lanes b, lanes c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand is returned if one is NaN, as a > b ? a : b does.
TRIREME_INLINE lanes max(lanes a, lanes b) { return {_mm256_max_ps(a.v, b.v)}; }
TRIREME_INLINE lanes min(lanes a, lanes b) { return {_mm256_min_ps(a.v, b.v)}; }
TRIREME_INLINE lanes sqrt(lanes a) { return {_mm256_sqrt_ps(a.v)}; }
TRIREME_INLINE lanes magnitude(lanes a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a.v)}; }
TRIREME_INLINE lanes round(lanes a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
TRIREME_INLINE lanes power_of_two(lanes a) {
  __m256i const biased = _mm256_add_epi32(_mm256_cvtps_epi32(a.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}
TRIREME_INLINE lanes where_less(lanes a, lanes b, lanes yes, lanes no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
TRIREME_INLINE lanes first(int count, lanes yes, lanes no) {
  if (count >= lanes::width) return yes;
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_castsi256_ps(lanes::mask(count)))};
}
TRIREME_INLINE float sum(lanes a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
TRIREME_INLINE float largest(lanes a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

template <class... T>
using lanes_for = lanes;

}  // namespace trireme::ops::detail::avx2
TRIREME_TARGET_END

TRIREME_TARGET_AVX512_BEGIN
namespace trireme::ops::detail::avx512 {

struct lanes {
  using real = float;
  static constexpr int width = 16;
  __m512 v;

  static TRIREME_INLINE __mmask16 mask(int count) {
    return static_cast<__mmask16>(count <= 0 ? 0U : count >= width ? 0xffffU : (1U << count) - 1U);
  }
  template <storage_float T>
  static TRIREME_INLINE __m512 widen(__m256i bits) {
    if constexpr (std::is_same_v<T, float16>) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  // The same rounding as bfloat16's constructor, denormals included (which the instruction for it would flush).
  template <storage_float T>
  static TRIREME_INLINE __m256i narrow(__m512 x) {
    if constexpr (std::is_same_v<T, float16>) return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    __m512i const bits = _mm512_castps_si512(x);
    __m512i const odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i const near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 const is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i const kept = _mm512_mask_or_epi32(near, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
  }
  static TRIREME_INLINE lanes all(float x) { return {_mm512_set1_ps(x)}; }
  static TRIREME_INLINE lanes load(float const* p) { return {_mm512_loadu_ps(p)}; }
  template <storage_float T>
  static TRIREME_INLINE lanes load(T const* p) {
    return {widen<T>(_mm256_loadu_si256(reinterpret_cast<__m256i const*>(p)))};
  }
  static TRIREME_INLINE lanes load(float const* p, int count) {
    return count == width ? load(p) : lanes{_mm512_maskz_loadu_ps(mask(count), p)};
  }
  template <storage_float T>
  static TRIREME_INLINE lanes load(T const* p, int count) {
    return count == width ? load(p) : lanes{widen<T>(_mm256_maskz_loadu_epi16(mask(count), p))};
  }
  TRIREME_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  template <storage_float T>
  TRIREME_INLINE void store(T* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow<T>(v));
  }
  TRIREME_INLINE void store(float* p, int count) const {
    count == width ? store(p) : _mm512_mask_storeu_ps(p, mask(count), v);
  }
  template <storage_float T>
  TRIREME_INLINE void store(T* p, int count) const {
    count == width ? store(p) : _mm256_mask_storeu_epi16(p, mask(count), narrow<T>(v));
  }
};

TRIREME_INLINE lanes operator+(lanes a, lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator-(lanes a, lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator*(lanes a, lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
TRIREME_INLINE lanes operator/(lanes a, lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
TRIREME_INLINE lanes fma(lanes a, lanes b, lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand is returned if one is NaN, as a > b ? a : b does.
TRIREME_INLINE lanes max(lanes a, lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
TRIREME_INLINE lanes min(lanes a, lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
TRIREME_INLINE lanes sqrt(lanes a) { return {_mm512_sqrt_ps(a.v)}; }
TRIREME_INLINE lanes magnitude(lanes a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0F), a.v)}; }
TRIREME_INLINE lanes round(lanes a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TRIREME_INLINE lanes power_of_two(lanes a) {
  __m512i const biased = _mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
TRIREME_INLINE lanes where_less(lanes a, lanes b, lanes yes, lanes no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
TRIREME_INLINE lanes first(int count, lanes yes, lanes no) {
  if (count >= lanes::width) return yes;
  return {_mm512_mask_blend_ps(lanes::mask(count), no.v, yes.v)};
}
// Folded in halves, as the AVX2 lanes are.
TRIREME_INLINE float sum(lanes a) {
  __m256 const half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
TRIREME_INLINE float largest(lanes a) {
  __m256 const half = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

template <class... T>
using lanes_for = lanes;

}  // namespace trireme::ops::detail::avx512
TRIREME_TARGET_END

#else  // Another architecture: the levels exist by name, and are never picked.
namespace trireme::ops::detail::avx2 {
using baseline::lanes_for;
}
namespace trireme::ops::detail::avx512 {
using baseline::lanes_for;
}
#endif

#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/simd_math.inl
// Elementary functions on lanes; included once for each CPU level (see simd.hpp). In double they are libm's.
namespace trireme::ops::detail::TRIREME_LEVEL {

/// exp(x) to 2 ulp: x = n ln 2 + r, a polynomial in r, times 2^n. 0 below -87.3, infinity above 88.3; NaN stays NaN.
template <class F>
TRIREME_INLINE F exp(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::exp(x.v)};
  } else {
    x = max(F::all(-88.0F), min(F::all(89.0F), x));
    F const n = round(x * F::all(1.44269504F));
    F const r = fma(n, F::all(2.12194440e-4F), fma(n, F::all(-0.693359375F), x));
    F p = F::all(1.9875691500e-4F);
    p = fma(p, r, F::all(1.3981999507e-3F));
    p = fma(p, r, F::all(8.3334519073e-3F));
    p = fma(p, r, F::all(4.1665795894e-2F));
    p = fma(p, r, F::all(1.6666665459e-1F));
    p = fma(p, r, F::all(5.0000001201e-1F));
    p = fma(p * r, r, r) + F::all(1.0F);
    return p * power_of_two(n);
  }
}

/// tanh(x) to 4 ulp: a polynomial near 0, where 1 - 2 / (exp(2x) + 1) cancels.
template <class F>
TRIREME_INLINE F tanh(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::tanh(x.v)};
  } else {
    F const a = magnitude(x);
    F const far = F::all(1.0F) - F::all(2.0F) / (exp(a + a) + F::all(1.0F));
    F const signed_far = where_less(x, F::all(0.0F), F::all(0.0F) - far, far);
    F const z = x * x;
    F p = F::all(-5.70498872745e-3F);
    p = fma(p, z, F::all(2.06390887954e-2F));
    p = fma(p, z, F::all(-5.37397155531e-2F));
    p = fma(p, z, F::all(1.33314422036e-1F));
    p = fma(p, z, F::all(-3.33332819422e-1F));
    return where_less(a, F::all(0.625F), fma(p * z, x, x), signed_far);
  }
}

/// 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): (1 + tanh u) / 2 without its cancellation.
template <class F>
TRIREME_INLINE F gelu_gate(F x) {
  using real = typename F::real;
  constexpr real twice = static_cast<real>(-2 * 0.79788456080286535588);
  F const u = x * fma(x * x, F::all(static_cast<real>(0.044715) * twice), F::all(twice));
  return F::all(1) / (F::all(1) + exp(u));
}

/// GPT-2's GELU: x (1 + tanh u) / 2.
template <class F>
TRIREME_INLINE F gelu(F x) {
  return x * gelu_gate(x);
}

/// Its derivative: g + x g (1 - g) 2 u'(x), which is 0 or 1 to the last bit beyond +-10.
template <class F>
TRIREME_INLINE F gelu_derivative(F x) {
  using real = typename F::real;
  x = max(F::all(-10), min(F::all(10), x));
  constexpr real twice = static_cast<real>(2 * 0.79788456080286535588);
  F const g = gelu_gate(x);
  F const slope = fma(x * x, F::all(static_cast<real>(3 * 0.044715) * twice), F::all(twice));
  return fma(x * slope, g * (F::all(1) - g), g);
}

/// act(x), and act'(x) from x.
template <class F>
TRIREME_INLINE F activated(F x, activation act) {
  switch (act) {
    case activation::gelu:
      return gelu(x);
    case activation::tanh:
      return tanh(x);
    case activation::relu:
      return max(F::all(0), x);
    case activation::none:
      break;
  }
  return x;
}
template <class F>
TRIREME_INLINE F activation_slope(F x, activation act) {
  switch (act) {
    case activation::gelu:
      return gelu_derivative(x);
    case activation::tanh: {
      F const y = tanh(x);
      return F::all(1) - y * y;
    }
    case activation::relu:
      return where_less(F::all(0), x, F::all(1), F::all(0));
    case activation::none:
      break;
  }
  return F::all(1);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/simd.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/simd_math.inl
// Elementary functions on lanes; included once for each CPU level (see simd.hpp). In double they are libm's.
namespace trireme::ops::detail::TRIREME_LEVEL {

/// exp(x) to 2 ulp: x = n ln 2 + r, a polynomial in r, times 2^n. 0 below -87.3, infinity above 88.3; NaN stays NaN.
template <class F>
TRIREME_INLINE F exp(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::exp(x.v)};
  } else {
    x = max(F::all(-88.0F), min(F::all(89.0F), x));
    F const n = round(x * F::all(1.44269504F));
    F const r = fma(n, F::all(2.12194440e-4F), fma(n, F::all(-0.693359375F), x));
    F p = F::all(1.9875691500e-4F);
    p = fma(p, r, F::all(1.3981999507e-3F));
    p = fma(p, r, F::all(8.3334519073e-3F));
    p = fma(p, r, F::all(4.1665795894e-2F));
    p = fma(p, r, F::all(1.6666665459e-1F));
    p = fma(p, r, F::all(5.0000001201e-1F));
    p = fma(p * r, r, r) + F::all(1.0F);
    return p * power_of_two(n);
  }
}

/// tanh(x) to 4 ulp: a polynomial near 0, where 1 - 2 / (exp(2x) + 1) cancels.
template <class F>
TRIREME_INLINE F tanh(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::tanh(x.v)};
  } else {
    F const a = magnitude(x);
    F const far = F::all(1.0F) - F::all(2.0F) / (exp(a + a) + F::all(1.0F));
    F const signed_far = where_less(x, F::all(0.0F), F::all(0.0F) - far, far);
    F const z = x * x;
    F p = F::all(-5.70498872745e-3F);
    p = fma(p, z, F::all(2.06390887954e-2F));
    p = fma(p, z, F::all(-5.37397155531e-2F));
    p = fma(p, z, F::all(1.33314422036e-1F));
    p = fma(p, z, F::all(-3.33332819422e-1F));
    return where_less(a, F::all(0.625F), fma(p * z, x, x), signed_far);
  }
}

/// 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): (1 + tanh u) / 2 without its cancellation.
template <class F>
TRIREME_INLINE F gelu_gate(F x) {
  using real = typename F::real;
  constexpr real twice = static_cast<real>(-2 * 0.79788456080286535588);
  F const u = x * fma(x * x, F::all(static_cast<real>(0.044715) * twice), F::all(twice));
  return F::all(1) / (F::all(1) + exp(u));
}

/// GPT-2's GELU: x (1 + tanh u) / 2.
template <class F>
TRIREME_INLINE F gelu(F x) {
  return x * gelu_gate(x);
}

/// Its derivative: g + x g (1 - g) 2 u'(x), which is 0 or 1 to the last bit beyond +-10.
template <class F>
TRIREME_INLINE F gelu_derivative(F x) {
  using real = typename F::real;
  x = max(F::all(-10), min(F::all(10), x));
  constexpr real twice = static_cast<real>(2 * 0.79788456080286535588);
  F const g = gelu_gate(x);
  F const slope = fma(x * x, F::all(static_cast<real>(3 * 0.044715) * twice), F::all(twice));
  return fma(x * slope, g * (F::all(1) - g), g);
}

/// act(x), and act'(x) from x.
template <class F>
TRIREME_INLINE F activated(F x, activation act) {
  switch (act) {
    case activation::gelu:
      return gelu(x);
    case activation::tanh:
      return tanh(x);
    case activation::relu:
      return max(F::all(0), x);
    case activation::none:
      break;
  }
  return x;
}
template <class F>
TRIREME_INLINE F activation_slope(F x, activation act) {
  switch (act) {
    case activation::gelu:
      return gelu_derivative(x);
    case activation::tanh: {
      F const y = tanh(x);
      return F::all(1) - y * y;
    }
    case activation::relu:
      return where_less(F::all(0), x, F::all(1), F::all(0));
    case activation::none:
      break;
  }
  return F::all(1);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/simd.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/simd_math.inl
// Elementary functions on lanes; included once for each CPU level (see simd.hpp). In double they are libm's.
namespace trireme::ops::detail::TRIREME_LEVEL {

/// exp(x) to 2 ulp: x = n ln 2 + r, a polynomial in r, times 2^n. 0 below -87.3, infinity above 88.3; NaN stays NaN.
template <class F>
TRIREME_INLINE F exp(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::exp(x.v)};
  } else {
    x = max(F::all(-88.0F), min(F::all(89.0F), x));
    F const n = round(x * F::all(1.44269504F));
    F const r = fma(n, F::all(2.12194440e-4F), fma(n, F::all(-0.693359375F), x));
    F p = F::all(1.9875691500e-4F);
    p = fma(p, r, F::all(1.3981999507e-3F));
    p = fma(p, r, F::all(8.3334519073e-3F));
    p = fma(p, r, F::all(4.1665795894e-2F));
    p = fma(p, r, F::all(1.6666665459e-1F));
    p = fma(p, r, F::all(5.0000001201e-1F));
    p = fma(p * r, r, r) + F::all(1.0F);
    return p * power_of_two(n);
  }
}

/// tanh(x) to 4 ulp: a polynomial near 0, where 1 - 2 / (exp(2x) + 1) cancels.
template <class F>
TRIREME_INLINE F tanh(F x) {
  if constexpr (sizeof(typename F::real) == 8) {
    return {std::tanh(x.v)};
  } else {
    F const a = magnitude(x);
    F const far = F::all(1.0F) - F::all(2.0F) / (exp(a + a) + F::all(1.0F));
    F const signed_far = where_less(x, F::all(0.0F), F::all(0.0F) - far, far);
    F const z = x * x;
    F p = F::all(-5.70498872745e-3F);
    p = fma(p, z, F::all(2.06390887954e-2F));
    p = fma(p, z, F::all(-5.37397155531e-2F));
    p = fma(p, z, F::all(1.33314422036e-1F));
    p = fma(p, z, F::all(-3.33332819422e-1F));
    return where_less(a, F::all(0.625F), fma(p * z, x, x), signed_far);
  }
}

/// 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): (1 + tanh u) / 2 without its cancellation.
template <class F>
TRIREME_INLINE F gelu_gate(F x) {
  using real = typename F::real;
  constexpr real twice = static_cast<real>(-2 * 0.79788456080286535588);
  F const u = x * fma(x * x, F::all(static_cast<real>(0.044715) * twice), F::all(twice));
  return F::all(1) / (F::all(1) + exp(u));
}

/// GPT-2's GELU: x (1 + tanh u) / 2.
template <class F>
TRIREME_INLINE F gelu(F x) {
  return x * gelu_gate(x);
}

/// Its derivative: g + x g (1 - g) 2 u'(x), which is 0 or 1 to the last bit beyond +-10.
template <class F>
TRIREME_INLINE F gelu_derivative(F x) {
  using real = typename F::real;
  x = max(F::all(-10), min(F::all(10), x));
  constexpr real twice = static_cast<real>(2 * 0.79788456080286535588);
  F const g = gelu_gate(x);
  F const slope = fma(x * x, F::all(static_cast<real>(3 * 0.044715) * twice), F::all(twice));
  return fma(x * slope, g * (F::all(1) - g), g);
}

/// act(x), and act'(x) from x.
template <class F>
TRIREME_INLINE F activated(F x, activation act) {
  switch (act) {
    case activation::gelu:
      return gelu(x);
    case activation::tanh:
      return tanh(x);
    case activation::relu:
      return max(F::all(0), x);
    case activation::none:
      break;
  }
  return x;
}
template <class F>
TRIREME_INLINE F activation_slope(F x, activation act) {
  switch (act) {
    case activation::gelu:
      return gelu_derivative(x);
    case activation::tanh: {
      F const y = tanh(x);
      return F::all(1) - y * y;
    }
    case activation::relu:
      return where_less(F::all(0), x, F::all(1), F::all(0));
    case activation::none:
      break;
  }
  return F::all(1);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/simd.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

// ---- trireme/ops/host/elementwise.hpp (goes on)
namespace trireme::ops::detail {

/// What a number that is kept is multiplied with, and below which 24-bit word a number is dropped.
struct dropout_scale {
  std::uint32_t threshold;
  double kept;
  explicit dropout_scale(double probability)
      : threshold(static_cast<std::uint32_t>(std::lround(probability * 0x1p24))), kept(1 / (1 - probability)) {}
};

}  // namespace trireme::ops::detail

#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/elementwise.inl
// Elementwise kernels; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T, class U>
inline void convert(T* y, U const* x, std::int64_t n) {
  using F = lanes_for<T, U>;
  TRIREME_FOR_LANES(F, n, i, count, { F::load(x + i, count).store(y + i, count); })
}

template <class T, class U>
inline void accumulate(T* y, U const* x, std::int64_t n, double weight) {
  using F = lanes_for<T, U>;
  F const w = F::all(static_cast<typename F::real>(weight));
  TRIREME_FOR_LANES(F, n, i, count, { fma(w, F::load(x + i, count), F::load(y + i, count)).store(y + i, count); })
}

template <class T>
inline void scale(T* y, std::int64_t n, double factor) {
  using F = lanes_for<T>;
  F const w = F::all(static_cast<typename F::real>(factor));
  TRIREME_FOR_LANES(F, n, i, count, { (w * F::load(y + i, count)).store(y + i, count); })
}

template <class T>
inline void activate(T* y, T const* x, std::int64_t n, activation act) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count, { activated(F::load(x + i, count), act).store(y + i, count); })
}

template <class T>
inline void activate_backward(T* dx, T const* dy, T const* x, std::int64_t n, activation act) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count,
                    { (F::load(dy + i, count) * activation_slope(F::load(x + i, count), act)).store(dx + i, count); })
}

// numbers[4 * i + j] = random_block(key, site, sample, block + i)[j] >> 8, for i < 8: one block a lane (core/rng.hpp).
inline void random_numbers(float* numbers, random_key key, std::uint32_t site, std::uint64_t sample,
                           std::uint32_t block) {
  constexpr std::uint64_t low = 0xffff'ffffU;
  auto const mixed = key.seed ^ (key.step * 0x9E3779B97F4A7C15ULL);
  auto key0 = static_cast<std::uint32_t>(mixed);
  auto key1 = static_cast<std::uint32_t>(mixed >> 32);
  wide<std::uint64_t> c0 = (wide<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7} + block) & low;
  wide<std::uint64_t> c1 = wide<std::uint64_t>{} + site;
  wide<std::uint64_t> c2 = wide<std::uint64_t>{} + (sample & low);
  wide<std::uint64_t> c3 = wide<std::uint64_t>{} + (sample >> 32);
  for (int round = 0; round < 10; ++round) {
    wide<std::uint64_t> const a = c0 * std::uint64_t{0xD2511F53U};
    wide<std::uint64_t> const b = c2 * std::uint64_t{0xCD9E8D57U};
    c0 = (b >> 32) ^ c1 ^ std::uint64_t{key0};
    c1 = b & low;
    c2 = (a >> 32) ^ c3 ^ std::uint64_t{key1};
    c3 = a & low;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  // Word j of every block lies in vector j. 24 bits are exact in a float.
  eight<float> const w0 = __builtin_convertvector(__builtin_convertvector(c0 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w1 = __builtin_convertvector(__builtin_convertvector(c1 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w2 = __builtin_convertvector(__builtin_convertvector(c2 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w3 = __builtin_convertvector(__builtin_convertvector(c3 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const front_low = __builtin_shufflevector(w0, w1, 0, 8, 1, 9, 2, 10, 3, 11);
  eight<float> const front_high = __builtin_shufflevector(w0, w1, 4, 12, 5, 13, 6, 14, 7, 15);
  eight<float> const back_low = __builtin_shufflevector(w2, w3, 0, 8, 1, 9, 2, 10, 3, 11);
  eight<float> const back_high = __builtin_shufflevector(w2, w3, 4, 12, 5, 13, 6, 14, 7, 15);
  eight<float> const rows[4] = {__builtin_shufflevector(front_low, back_low, 0, 1, 8, 9, 2, 3, 10, 11),
                                __builtin_shufflevector(front_low, back_low, 4, 5, 12, 13, 6, 7, 14, 15),
                                __builtin_shufflevector(front_high, back_high, 0, 1, 8, 9, 2, 3, 10, 11),
                                __builtin_shufflevector(front_high, back_high, 4, 5, 12, 13, 6, 7, 14, 15)};
  std::memcpy(numbers, rows, sizeof rows);
}

// Drops among the n numbers of one sample.
template <class T>
inline void dropout(T* y, std::int64_t n, std::int64_t position, dropout_site const& site, std::uint64_t sample) {
  using F = lanes_for<T>;
  using real = typename F::real;
  dropout_scale const how(site.probability);
  F const threshold = F::all(static_cast<real>(how.threshold));
  F const kept = F::all(static_cast<real>(how.kept));
  alignas(64) float numbers[32];
  for (std::int64_t at = 0; at < n;) {
    auto const skipped = (position + at) % 32;  // only where a sample's values are cut
    random_numbers(numbers, site.key, site.site, sample, static_cast<std::uint32_t>((position + at - skipped) / 4));
    std::int64_t const here = n - at < 32 - skipped ? n - at : 32 - skipped;
    T* const part = y + at;
    float const* const from = numbers + skipped;
    TRIREME_FOR_LANES(F, here, i, count, {
      F const number = F::load(from + i, count);
      where_less(number, threshold, F::all(0), kept * F::load(part + i, count)).store(part + i, count);
    })
    at += here;
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/elementwise.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/elementwise.inl
// Elementwise kernels; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T, class U>
inline void convert(T* y, U const* x, std::int64_t n) {
  using F = lanes_for<T, U>;
  TRIREME_FOR_LANES(F, n, i, count, { F::load(x + i, count).store(y + i, count); })
}

template <class T, class U>
inline void accumulate(T* y, U const* x, std::int64_t n, double weight) {
  using F = lanes_for<T, U>;
  F const w = F::all(static_cast<typename F::real>(weight));
  TRIREME_FOR_LANES(F, n, i, count, { fma(w, F::load(x + i, count), F::load(y + i, count)).store(y + i, count); })
}

template <class T>
inline void scale(T* y, std::int64_t n, double factor) {
  using F = lanes_for<T>;
  F const w = F::all(static_cast<typename F::real>(factor));
  TRIREME_FOR_LANES(F, n, i, count, { (w * F::load(y + i, count)).store(y + i, count); })
}

template <class T>
inline void activate(T* y, T const* x, std::int64_t n, activation act) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count, { activated(F::load(x + i, count), act).store(y + i, count); })
}

template <class T>
inline void activate_backward(T* dx, T const* dy, T const* x, std::int64_t n, activation act) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count,
                    { (F::load(dy + i, count) * activation_slope(F::load(x + i, count), act)).store(dx + i, count); })
}

// numbers[4 * i + j] = random_block(key, site, sample, block + i)[j] >> 8, for i < 8: one block a lane (core/rng.hpp).
inline void random_numbers(float* numbers, random_key key, std::uint32_t site, std::uint64_t sample,
                           std::uint32_t block) {
  constexpr std::uint64_t low = 0xffff'ffffU;
  auto const mixed = key.seed ^ (key.step * 0x9E3779B97F4A7C15ULL);
  auto key0 = static_cast<std::uint32_t>(mixed);
  auto key1 = static_cast<std::uint32_t>(mixed >> 32);
  wide<std::uint64_t> c0 = (wide<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7} + block) & low;
  wide<std::uint64_t> c1 = wide<std::uint64_t>{} + site;
  wide<std::uint64_t> c2 = wide<std::uint64_t>{} + (sample & low);
  wide<std::uint64_t> c3 = wide<std::uint64_t>{} + (sample >> 32);
  for (int round = 0; round < 10; ++round) {
    wide<std::uint64_t> const a = c0 * std::uint64_t{0xD2511F53U};
    wide<std::uint64_t> const b = c2 * std::uint64_t{0xCD9E8D57U};
    c0 = (b >> 32) ^ c1 ^ std::uint64_t{key0};
    c1 = b & low;
    c2 = (a >> 32) ^ c3 ^ std::uint64_t{key1};
    c3 = a & low;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  // Word j of every block lies in vector j. 24 bits are exact in a float.
  eight<float> const w0 = __builtin_convertvector(__builtin_convertvector(c0 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w1 = __builtin_convertvector(__builtin_convertvector(c1 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w2 = __builtin_convertvector(__builtin_convertvector(c2 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w3 = __builtin_convertvector(__builtin_convertvector(c3 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const front_low = __builtin_shufflevector(w0, w1, 0, 8, 1, 9, 2, 10, 3, 11);
  eight<float> const front_high = __builtin_shufflevector(w0, w1, 4, 12, 5, 13, 6, 14, 7, 15);
  eight<float> const back_low = __builtin_shufflevector(w2, w3, 0, 8, 1, 9, 2, 10, 3, 11);
  eight<float> const back_high = __builtin_shufflevector(w2, w3, 4, 12, 5, 13, 6, 14, 7, 15);
  eight<float> const rows[4] = {__builtin_shufflevector(front_low, back_low, 0, 1, 8, 9, 2, 3, 10, 11),
                                __builtin_shufflevector(front_low, back_low, 4, 5, 12, 13, 6, 7, 14, 15),
                                __builtin_shufflevector(front_high, back_high, 0, 1, 8, 9, 2, 3, 10, 11),
                                __builtin_shufflevector(front_high, back_high, 4, 5, 12, 13, 6, 7, 14, 15)};
  std::memcpy(numbers, rows, sizeof rows);
}

// Drops among the n numbers of one sample.
template <class T>
inline void dropout(T* y, std::int64_t n, std::int64_t position, dropout_site const& site, std::uint64_t sample) {
  using F = lanes_for<T>;
  using real = typename F::real;
  dropout_scale const how(site.probability);
  F const threshold = F::all(static_cast<real>(how.threshold));
  F const kept = F::all(static_cast<real>(how.kept));
  alignas(64) float numbers[32];
  for (std::int64_t at = 0; at < n;) {
    auto const skipped = (position + at) % 32;  // only where a sample's values are cut
    random_numbers(numbers, site.key, site.site, sample, static_cast<std::uint32_t>((position + at - skipped) / 4));
    std::int64_t const here = n - at < 32 - skipped ? n - at : 32 - skipped;
    T* const part = y + at;
    float const* const from = numbers + skipped;
    TRIREME_FOR_LANES(F, here, i, count, {
      F const number = F::load(from + i, count);
      where_less(number, threshold, F::all(0), kept * F::load(part + i, count)).store(part + i, count);
    })
    at += here;
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/elementwise.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/elementwise.inl
// Elementwise kernels; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T, class U>
inline void convert(T* y, U const* x, std::int64_t n) {
  using F = lanes_for<T, U>;
  TRIREME_FOR_LANES(F, n, i, count, { F::load(x + i, count).store(y + i, count); })
}

template <class T, class U>
inline void accumulate(T* y, U const* x, std::int64_t n, double weight) {
  using F = lanes_for<T, U>;
  F const w = F::all(static_cast<typename F::real>(weight));
  TRIREME_FOR_LANES(F, n, i, count, { fma(w, F::load(x + i, count), F::load(y + i, count)).store(y + i, count); })
}

template <class T>
inline void scale(T* y, std::int64_t n, double factor) {
  using F = lanes_for<T>;
  F const w = F::all(static_cast<typename F::real>(factor));
  TRIREME_FOR_LANES(F, n, i, count, { (w * F::load(y + i, count)).store(y + i, count); })
}

template <class T>
inline void activate(T* y, T const* x, std::int64_t n, activation act) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count, { activated(F::load(x + i, count), act).store(y + i, count); })
}

template <class T>
inline void activate_backward(T* dx, T const* dy, T const* x, std::int64_t n, activation act) {
  using F = lanes_for<T>;
  TRIREME_FOR_LANES(F, n, i, count,
                    { (F::load(dy + i, count) * activation_slope(F::load(x + i, count), act)).store(dx + i, count); })
}

// numbers[4 * i + j] = random_block(key, site, sample, block + i)[j] >> 8, for i < 8: one block a lane (core/rng.hpp).
inline void random_numbers(float* numbers, random_key key, std::uint32_t site, std::uint64_t sample,
                           std::uint32_t block) {
  constexpr std::uint64_t low = 0xffff'ffffU;
  auto const mixed = key.seed ^ (key.step * 0x9E3779B97F4A7C15ULL);
  auto key0 = static_cast<std::uint32_t>(mixed);
  auto key1 = static_cast<std::uint32_t>(mixed >> 32);
  wide<std::uint64_t> c0 = (wide<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7} + block) & low;
  wide<std::uint64_t> c1 = wide<std::uint64_t>{} + site;
  wide<std::uint64_t> c2 = wide<std::uint64_t>{} + (sample & low);
  wide<std::uint64_t> c3 = wide<std::uint64_t>{} + (sample >> 32);
  for (int round = 0; round < 10; ++round) {
    wide<std::uint64_t> const a = c0 * std::uint64_t{0xD2511F53U};
    wide<std::uint64_t> const b = c2 * std::uint64_t{0xCD9E8D57U};
    c0 = (b >> 32) ^ c1 ^ std::uint64_t{key0};
    c1 = b & low;
    c2 = (a >> 32) ^ c3 ^ std::uint64_t{key1};
    c3 = a & low;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  // Word j of every block lies in vector j. 24 bits are exact in a float.
  eight<float> const w0 = __builtin_convertvector(__builtin_convertvector(c0 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w1 = __builtin_convertvector(__builtin_convertvector(c1 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w2 = __builtin_convertvector(__builtin_convertvector(c2 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const w3 = __builtin_convertvector(__builtin_convertvector(c3 >> 8, eight<std::int32_t>), eight<float>);
  eight<float> const front_low = __builtin_shufflevector(w0, w1, 0, 8, 1, 9, 2, 10, 3, 11);
  eight<float> const front_high = __builtin_shufflevector(w0, w1, 4, 12, 5, 13, 6, 14, 7, 15);
  eight<float> const back_low = __builtin_shufflevector(w2, w3, 0, 8, 1, 9, 2, 10, 3, 11);
  eight<float> const back_high = __builtin_shufflevector(w2, w3, 4, 12, 5, 13, 6, 14, 7, 15);
  eight<float> const rows[4] = {__builtin_shufflevector(front_low, back_low, 0, 1, 8, 9, 2, 3, 10, 11),
                                __builtin_shufflevector(front_low, back_low, 4, 5, 12, 13, 6, 7, 14, 15),
                                __builtin_shufflevector(front_high, back_high, 0, 1, 8, 9, 2, 3, 10, 11),
                                __builtin_shufflevector(front_high, back_high, 4, 5, 12, 13, 6, 7, 14, 15)};
  std::memcpy(numbers, rows, sizeof rows);
}

// Drops among the n numbers of one sample.
template <class T>
inline void dropout(T* y, std::int64_t n, std::int64_t position, dropout_site const& site, std::uint64_t sample) {
  using F = lanes_for<T>;
  using real = typename F::real;
  dropout_scale const how(site.probability);
  F const threshold = F::all(static_cast<real>(how.threshold));
  F const kept = F::all(static_cast<real>(how.kept));
  alignas(64) float numbers[32];
  for (std::int64_t at = 0; at < n;) {
    auto const skipped = (position + at) % 32;  // only where a sample's values are cut
    random_numbers(numbers, site.key, site.site, sample, static_cast<std::uint32_t>((position + at - skipped) / 4));
    std::int64_t const here = n - at < 32 - skipped ? n - at : 32 - skipped;
    T* const part = y + at;
    float const* const from = numbers + skipped;
    TRIREME_FOR_LANES(F, here, i, count, {
      F const number = F::load(from + i, count);
      where_less(number, threshold, F::all(0), kept * F::load(part + i, count)).store(part + i, count);
    })
    at += here;
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/elementwise.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

/// A view that is only read, and that does not take part in deduction: a tensor or a mutable view will do.
template <class T>
using input = std::type_identity_t<tensor_view<T const, host>>;
/// A view that is written, and that does not take part in deduction.
template <class T>
using output = std::type_identity_t<tensor_view<T, host>>;

/// Throws assertion_error at level light unless the two sizes are equal.
inline void same_size(char const* who, std::int64_t a, std::int64_t b) {
  expects(assertion_level::light, a == b,
          [&] { return text("trireme::ops::", who, ": sizes ", a, " and ", b, " differ"); });
}

template <class T, class U>
void copy_elements(T* y, U const* x, std::int64_t n) {
  if constexpr (std::is_same_v<T, U>) {
    if (n > 0) std::memmove(static_cast<void*>(y), x, static_cast<std::size_t>(n) * sizeof(T));
  } else if constexpr (arithmetic_lanes<T> && arithmetic_lanes<U>) {
    TRIREME_DISPATCH((fits_float<T, U>), convert(y, x, n));
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(x[i]);
  }
}
template <class T, class U>
void accumulate_elements(T* y, U const* x, std::int64_t n, double weight) {
  TRIREME_DISPATCH((fits_float<T, U>), accumulate(y, x, n, weight));
}
template <class T>
void scale_elements(T* y, std::int64_t n, double factor) {
  TRIREME_DISPATCH(fits_float<T>, scale(y, n, factor));
}
template <class T>
void activate_elements(T* y, T const* x, std::int64_t n, activation act) {
  TRIREME_DISPATCH(fits_float<T>, activate(y, x, n, act));
}
template <class T>
void activate_backward_elements(T* dx, T const* dy, T const* x, std::int64_t n, activation act) {
  TRIREME_DISPATCH(fits_float<T>, activate_backward(dx, dy, x, n, act));
}

template <class T>
void dropout_elements(T* y, std::int64_t n, std::int64_t position, dropout_site const& site, std::uint64_t sample) {
  TRIREME_DISPATCH(fits_float<T>, dropout(y, n, position, site, sample));
}

/// Elements i and i + 1 of a normal distribution from two words [Box, Muller, 1958].
inline std::array<double, 2> normal_pair(std::uint32_t a, std::uint32_t b) {
  double const radius = std::sqrt(-2 * std::log((a + 1.0) * 0x1p-32));
  double const angle = 2 * std::numbers::pi * 0x1p-32 * b;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace detail

/// Kernels that treat every element alike. An element's result depends on that element only, not on where it lies in
/// the view, and bfloat16 and float16 are computed in float and rounded once.
/// Shapes   all views of one call have the same number of elements.
/// Threads  thread-safe on different outputs.
/// Errors   assertion_error (light) if the sizes differ.
struct host_elementwise {
  template <class T>
  using view = tensor_view<T, host>;

  /// y[i] = value
  template <class T>
  static void fill(view<T> y, double value) {
    if constexpr (storage_float<T>) {
      std::fill_n(raw(y), y.size(), T(static_cast<float>(value)));
    } else if (value == 0 && !std::signbit(value)) {
      if (!y.empty()) std::memset(static_cast<void*>(raw(y)), 0, y.bytes());
    } else {
      std::fill_n(raw(y), y.size(), static_cast<T>(value));
    }
  }

  /// y[i] = x[i], converted. The views may be the same, or of one type and overlap.
  template <class T, class U>
  static void copy(view<T> y, view<U> x) {
    detail::same_size("copy", y.size(), x.size());
    detail::copy_elements(raw(y), static_cast<std::remove_const_t<U> const*>(raw(x)), y.size());
  }

  /// y[i] += x[i]
  template <class T>
  static void add(view<T> y, detail::input<T> x) {
    detail::same_size("add", y.size(), x.size());
    detail::accumulate_elements(raw(y), raw(x), y.size(), 1.0);
  }

  /// y[i] *= factor
  template <class T>
  static void scale(view<T> y, double factor) {
    detail::scale_elements(raw(y), y.size(), factor);
  }

  /// y[i] += weight * x[i]
  template <class T, class U>
  static void accumulate(view<T> y, view<U> x, double weight) {
    detail::same_size("accumulate", y.size(), x.size());
    detail::accumulate_elements(raw(y), static_cast<std::remove_const_t<U> const*>(raw(x)), y.size(), weight);
  }

  /// y[i] = act(x[i]); y may be x.
  template <class T>
  static void activate(view<T> y, detail::input<T> x, activation act) {
    detail::same_size("activate", y.size(), x.size());
    detail::activate_elements(raw(y), raw(x), y.size(), act);
  }

  /// dx[i] = dy[i] * act'(x[i]); dx may be dy.
  template <class T>
  static void activate_backward(view<T> dx, detail::input<T> dy, detail::input<T> x, activation act) {
    detail::same_size("activate_backward", dx.size(), x.size());
    detail::same_size("activate_backward", dx.size(), dy.size());
    detail::activate_backward_elements(raw(dx), raw(dy), raw(x), dx.size(), act);
  }

  /// Drops numbers in place: y[i] = 0 or y[i] / (1 - p). The same call on dy is the backward pass.
  /// Shapes   the rows of y, or of all that y is a stretch of, are split evenly over the samples of the site.
  template <class T>
  static void dropout(view<T> y, dropout_site const& site) {
    if (!site.active() || y.empty()) return;
    auto const samples = static_cast<std::int64_t>(site.samples.size());
    auto const whole = site.whole > 0 ? site.whole : y.size();
    expects(assertion_level::light, whole % samples == 0 && site.first + y.size() <= whole, [&] {
      return text("trireme::ops::dropout: ", y.size(), " elements from ", site.first, " on, of ", whole,
                  ", do not divide into ", samples, " samples");
    });
    auto const each = whole / samples;
    for (std::int64_t at = 0; at < y.size();) {
      auto const sample = (site.first + at) / each;
      auto const position = (site.first + at) % each;
      auto const n = std::min(each - position, y.size() - at);
      auto const id = static_cast<std::uint64_t>(site.samples[static_cast<std::size_t>(sample)]);
      detail::dropout_elements(raw(y) + at, n, position, site, id);
      at += n;
    }
  }

  /// The start values of a stretch of a parameter, which begins with its element `first`. Element i of the parameter
  /// depends on (seed, name, i) only.
  /// Numerics computed in double; normal by Box and Muller on Philox words.
  template <class T>
  static void initialise(view<T> y, initial how, std::uint64_t seed, std::uint64_t name, std::int64_t first = 0) {
    if (how.kind == initial::distribution::zeros) return fill(y, 0.0);
    if (how.kind == initial::distribution::ones) return fill(y, 1.0);
    for (std::int64_t i = 0; i < y.size();) {
      auto const block = static_cast<std::uint64_t>((first + i) / 4);
      auto const words = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                 static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
      std::array<double, 4> numbers;
      if (how.kind == initial::distribution::normal) {
        auto const low = detail::normal_pair(words[0], words[1]);
        auto const high = detail::normal_pair(words[2], words[3]);
        numbers = {low[0], low[1], high[0], high[1]};
      } else {
        for (std::size_t j = 0; j < 4; ++j) numbers[j] = 2 * 0x1p-32 * words[j] - 1;
      }
      for (auto j = static_cast<std::size_t>((first + i) % 4); j < 4 && i < y.size(); ++j, ++i) {
        raw(y)[i] = static_cast<T>(static_cast<accumulate_t<T>>(how.scale * numbers[j]));
      }
    }
  }

  /// Elements from and to memory of this process, whatever the space.
  template <class T>
  static void upload(view<T> y, std::type_identity_t<std::span<T const>> x) {
    detail::same_size("upload", y.size(), static_cast<std::int64_t>(x.size()));
    detail::copy_elements(raw(y), x.data(), y.size());
  }
  template <class T>
  static void download(std::span<T> y, detail::input<T> x) {
    detail::same_size("download", static_cast<std::int64_t>(y.size()), x.size());
    detail::copy_elements(y.data(), raw(x), x.size());
  }
  /// One element, as a number of this process.
  template <class T>
  [[nodiscard]] static std::remove_const_t<T> read(view<T> x, std::int64_t index) {
    return raw(x)[index];
  }
};

}  // namespace trireme::ops

// ---- trireme/ops/host/reductions.hpp (goes on)
#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/reductions.inl
// Reductions; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class Op, class F>
TRIREME_INLINE F combined(F a, F b) {
  if constexpr (std::is_same_v<Op, reduction::max>) {
    return max(b, a);
  } else if constexpr (std::is_same_v<Op, reduction::min>) {
    return min(b, a);
  } else {
    return a + b;
  }
}

// The terms from x + at on, summed in the fixed tree.
template <class F, class T, class... Count>
inline F tree_sum(std::span<void const* const> terms, std::int64_t at, Count... count) {
  if (terms.size() == 1) return F::load(static_cast<T const*>(terms[0]) + at, count...);
  auto const left = static_cast<std::size_t>(tree_split(static_cast<std::int64_t>(terms.size())));
  return tree_sum<F, T>(terms.first(left), at, count...) + tree_sum<F, T>(terms.subspan(left), at, count...);
}
template <class T>
inline void reduce_in_a_tree(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n) {
  using F = lanes_for<T>;
  std::int64_t at = 0;
  for (; at + F::width <= n; at += F::width) {
    F const total = tree_sum<F, T>(terms, at);
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at);
  }
  std::int64_t const left = n - at;
  TRIREME_FOR_LANES(F, left, i, count, {
    F const total = tree_sum<F, T>(terms, at + i, count);
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at + i, count);
  })
}

template <class Op, class T>
inline void reduce(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n, int divisor) {
  if constexpr (std::is_same_v<Op, reduction::pairwise>) return reduce_in_a_tree<T>(outputs, terms, n);
  using F = lanes_for<T>;
  constexpr int several = 4;
  [[maybe_unused]] F const terms_of_mean = F::all(static_cast<typename F::real>(divisor));
  std::int64_t at = 0;
  for (; at + several * F::width <= n; at += several * F::width) {
    F total[several];
    T const* x = static_cast<T const*>(terms[0]) + at;
    TRIREME_UNROLL
    for (int v = 0; v < several; ++v) total[v] = F::load(x + v * F::width);
    for (auto const* term : terms.subspan(1)) {
      x = static_cast<T const*>(term) + at;
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v] = combined<Op>(total[v], F::load(x + v * F::width));
    }
    if constexpr (std::is_same_v<Op, reduction::mean>) {
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v] = total[v] / terms_of_mean;
    }
    for (auto* output : outputs) {
      T* const y = static_cast<T*>(output) + at;
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v].store(y + v * F::width);
    }
  }
  std::int64_t const left = n - at;
  TRIREME_FOR_LANES(F, left, i, count, {
    F total = F::load(static_cast<T const*>(terms[0]) + at + i, count);
    for (auto const* term : terms.subspan(1))
      total = combined<Op>(total, F::load(static_cast<T const*>(term) + at + i, count));
    if constexpr (std::is_same_v<Op, reduction::mean>) total = total / terms_of_mean;
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at + i, count);
  })
}

// The squares of floats are exact in double, so only the order of the sums matters: element i goes to sum i % 16.
template <class G>
inline double block_of_squares(G const* x, std::int64_t n) {
  eight<double> low = {};
  eight<double> high = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    eight<G> a;
    eight<G> b;
    std::memcpy(&a, x + i, sizeof a);
    std::memcpy(&b, x + i + 8, sizeof b);
    eight<double> const c = __builtin_convertvector(a, eight<double>);
    eight<double> const d = __builtin_convertvector(b, eight<double>);
    low += c * c;
    high += d * d;
  }
  for (int k = 0; i < n; ++i, ++k) {
    double const square = static_cast<double>(x[i]) * static_cast<double>(x[i]);
    if (k < 8) {
      low[k] += square;
    } else {
      high[k - 8] += square;
    }
  }
  low += high;
  return ((low[0] + low[4]) + (low[2] + low[6])) + ((low[1] + low[5]) + (low[3] + low[7]));
}

template <class Bits>
inline bool all_finite(Bits const* x, std::int64_t n, Bits exponent) {
  constexpr std::int64_t width = 64 / sizeof(Bits);
  std::int64_t i = 0;
  while (i + width <= n) {
    // Looks at the answer now and then only.
    std::int64_t const end = std::min(n - width, i + 64 * width);
    auto bad = wide<Bits>{} != wide<Bits>{};
    for (; i <= end; i += width) {
      wide<Bits> bits;
      std::memcpy(&bits, reinterpret_cast<char const*>(x) + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
      bad |= (bits & exponent) == exponent;
    }
    std::uint64_t parts[8];
    std::memcpy(parts, &bad, sizeof parts);
    for (auto const part : parts) {
      if (part != 0) return false;
    }
  }
  for (; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, reinterpret_cast<char const*>(x) + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

// mix() of core/hash.hpp, in place.
TRIREME_INLINE void mix_lanes(wide<std::uint64_t>& x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
}

template <class Bits>
inline std::uint64_t hash_bits(Bits const* x, std::int64_t n, std::uint64_t name, std::uint64_t first_index) {
  wide<std::uint64_t> total = {};
  wide<std::uint64_t> index = wide<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7} + first_index;
  auto const* const bytes = reinterpret_cast<char const*>(x);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8, index += 8) {
    eight<Bits> bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    wide<std::uint64_t> h = __builtin_convertvector(bits, wide<std::uint64_t>);
    mix_lanes(h);
    h ^= index;
    mix_lanes(h);
    h ^= name;
    mix_lanes(h);
    total += h;
  }
  std::uint64_t result = 0;
  for (int k = 0; k < 8; ++k) result += total[k];
  for (; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    result += hash_element(name, first_index + static_cast<std::uint64_t>(i), bits);
  }
  return result;
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/reductions.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/reductions.inl
// Reductions; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class Op, class F>
TRIREME_INLINE F combined(F a, F b) {
  if constexpr (std::is_same_v<Op, reduction::max>) {
    return max(b, a);
  } else if constexpr (std::is_same_v<Op, reduction::min>) {
    return min(b, a);
  } else {
    return a + b;
  }
}

// The terms from x + at on, summed in the fixed tree.
template <class F, class T, class... Count>
inline F tree_sum(std::span<void const* const> terms, std::int64_t at, Count... count) {
  if (terms.size() == 1) return F::load(static_cast<T const*>(terms[0]) + at, count...);
  auto const left = static_cast<std::size_t>(tree_split(static_cast<std::int64_t>(terms.size())));
  return tree_sum<F, T>(terms.first(left), at, count...) + tree_sum<F, T>(terms.subspan(left), at, count...);
}
template <class T>
inline void reduce_in_a_tree(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n) {
  using F = lanes_for<T>;
  std::int64_t at = 0;
  for (; at + F::width <= n; at += F::width) {
    F const total = tree_sum<F, T>(terms, at);
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at);
  }
  std::int64_t const left = n - at;
  TRIREME_FOR_LANES(F, left, i, count, {
    F const total = tree_sum<F, T>(terms, at + i, count);
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at + i, count);
  })
}

template <class Op, class T>
inline void reduce(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n, int divisor) {
  if constexpr (std::is_same_v<Op, reduction::pairwise>) return reduce_in_a_tree<T>(outputs, terms, n);
  using F = lanes_for<T>;
  constexpr int several = 4;
  [[maybe_unused]] F const terms_of_mean = F::all(static_cast<typename F::real>(divisor));
  std::int64_t at = 0;
  for (; at + several * F::width <= n; at += several * F::width) {
    F total[several];
    T const* x = static_cast<T const*>(terms[0]) + at;
    TRIREME_UNROLL
    for (int v = 0; v < several; ++v) total[v] = F::load(x + v * F::width);
    for (auto const* term : terms.subspan(1)) {
      x = static_cast<T const*>(term) + at;
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v] = combined<Op>(total[v], F::load(x + v * F::width));
    }
    if constexpr (std::is_same_v<Op, reduction::mean>) {
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v] = total[v] / terms_of_mean;
    }
    for (auto* output : outputs) {
      T* const y = static_cast<T*>(output) + at;
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v].store(y + v * F::width);
    }
  }
  std::int64_t const left = n - at;
  TRIREME_FOR_LANES(F, left, i, count, {
    F total = F::load(static_cast<T const*>(terms[0]) + at + i, count);
    for (auto const* term : terms.subspan(1))
      total = combined<Op>(total, F::load(static_cast<T const*>(term) + at + i, count));
    if constexpr (std::is_same_v<Op, reduction::mean>) total = total / terms_of_mean;
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at + i, count);
  })
}

// The squares of floats are exact in double, so only the order of the sums matters: element i goes to sum i % 16.
template <class G>
inline double block_of_squares(G const* x, std::int64_t n) {
  eight<double> low = {};
  eight<double> high = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    eight<G> a;
    eight<G> b;
    std::memcpy(&a, x + i, sizeof a);
    std::memcpy(&b, x + i + 8, sizeof b);
    eight<double> const c = __builtin_convertvector(a, eight<double>);
    eight<double> const d = __builtin_convertvector(b, eight<double>);
    low += c * c;
    high += d * d;
  }
  for (int k = 0; i < n; ++i, ++k) {
    double const square = static_cast<double>(x[i]) * static_cast<double>(x[i]);
    if (k < 8) {
      low[k] += square;
    } else {
      high[k - 8] += square;
    }
  }
  low += high;
  return ((low[0] + low[4]) + (low[2] + low[6])) + ((low[1] + low[5]) + (low[3] + low[7]));
}

template <class Bits>
inline bool all_finite(Bits const* x, std::int64_t n, Bits exponent) {
  constexpr std::int64_t width = 64 / sizeof(Bits);
  std::int64_t i = 0;
  while (i + width <= n) {
    // Looks at the answer now and then only.
    std::int64_t const end = std::min(n - width, i + 64 * width);
    auto bad = wide<Bits>{} != wide<Bits>{};
    for (; i <= end; i += width) {
      wide<Bits> bits;
      std::memcpy(&bits, reinterpret_cast<char const*>(x) + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
      bad |= (bits & exponent) == exponent;
    }
    std::uint64_t parts[8];
    std::memcpy(parts, &bad, sizeof parts);
    for (auto const part : parts) {
      if (part != 0) return false;
    }
  }
  for (; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, reinterpret_cast<char const*>(x) + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

// mix() of core/hash.hpp, in place.
TRIREME_INLINE void mix_lanes(wide<std::uint64_t>& x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
}

template <class Bits>
inline std::uint64_t hash_bits(Bits const* x, std::int64_t n, std::uint64_t name, std::uint64_t first_index) {
  wide<std::uint64_t> total = {};
  wide<std::uint64_t> index = wide<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7} + first_index;
  auto const* const bytes = reinterpret_cast<char const*>(x);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8, index += 8) {
    eight<Bits> bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    wide<std::uint64_t> h = __builtin_convertvector(bits, wide<std::uint64_t>);
    mix_lanes(h);
    h ^= index;
    mix_lanes(h);
    h ^= name;
    mix_lanes(h);
    total += h;
  }
  std::uint64_t result = 0;
  for (int k = 0; k < 8; ++k) result += total[k];
  for (; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    result += hash_element(name, first_index + static_cast<std::uint64_t>(i), bits);
  }
  return result;
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/reductions.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/reductions.inl
// Reductions; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class Op, class F>
TRIREME_INLINE F combined(F a, F b) {
  if constexpr (std::is_same_v<Op, reduction::max>) {
    return max(b, a);
  } else if constexpr (std::is_same_v<Op, reduction::min>) {
    return min(b, a);
  } else {
    return a + b;
  }
}

// The terms from x + at on, summed in the fixed tree.
template <class F, class T, class... Count>
inline F tree_sum(std::span<void const* const> terms, std::int64_t at, Count... count) {
  if (terms.size() == 1) return F::load(static_cast<T const*>(terms[0]) + at, count...);
  auto const left = static_cast<std::size_t>(tree_split(static_cast<std::int64_t>(terms.size())));
  return tree_sum<F, T>(terms.first(left), at, count...) + tree_sum<F, T>(terms.subspan(left), at, count...);
}
template <class T>
inline void reduce_in_a_tree(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n) {
  using F = lanes_for<T>;
  std::int64_t at = 0;
  for (; at + F::width <= n; at += F::width) {
    F const total = tree_sum<F, T>(terms, at);
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at);
  }
  std::int64_t const left = n - at;
  TRIREME_FOR_LANES(F, left, i, count, {
    F const total = tree_sum<F, T>(terms, at + i, count);
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at + i, count);
  })
}

template <class Op, class T>
inline void reduce(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n, int divisor) {
  if constexpr (std::is_same_v<Op, reduction::pairwise>) return reduce_in_a_tree<T>(outputs, terms, n);
  using F = lanes_for<T>;
  constexpr int several = 4;
  [[maybe_unused]] F const terms_of_mean = F::all(static_cast<typename F::real>(divisor));
  std::int64_t at = 0;
  for (; at + several * F::width <= n; at += several * F::width) {
    F total[several];
    T const* x = static_cast<T const*>(terms[0]) + at;
    TRIREME_UNROLL
    for (int v = 0; v < several; ++v) total[v] = F::load(x + v * F::width);
    for (auto const* term : terms.subspan(1)) {
      x = static_cast<T const*>(term) + at;
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v] = combined<Op>(total[v], F::load(x + v * F::width));
    }
    if constexpr (std::is_same_v<Op, reduction::mean>) {
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v] = total[v] / terms_of_mean;
    }
    for (auto* output : outputs) {
      T* const y = static_cast<T*>(output) + at;
      TRIREME_UNROLL
      for (int v = 0; v < several; ++v) total[v].store(y + v * F::width);
    }
  }
  std::int64_t const left = n - at;
  TRIREME_FOR_LANES(F, left, i, count, {
    F total = F::load(static_cast<T const*>(terms[0]) + at + i, count);
    for (auto const* term : terms.subspan(1))
      total = combined<Op>(total, F::load(static_cast<T const*>(term) + at + i, count));
    if constexpr (std::is_same_v<Op, reduction::mean>) total = total / terms_of_mean;
    for (auto* output : outputs) total.store(static_cast<T*>(output) + at + i, count);
  })
}

// The squares of floats are exact in double, so only the order of the sums matters: element i goes to sum i % 16.
template <class G>
inline double block_of_squares(G const* x, std::int64_t n) {
  eight<double> low = {};
  eight<double> high = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    eight<G> a;
    eight<G> b;
    std::memcpy(&a, x + i, sizeof a);
    std::memcpy(&b, x + i + 8, sizeof b);
    eight<double> const c = __builtin_convertvector(a, eight<double>);
    eight<double> const d = __builtin_convertvector(b, eight<double>);
    low += c * c;
    high += d * d;
  }
  for (int k = 0; i < n; ++i, ++k) {
    double const square = static_cast<double>(x[i]) * static_cast<double>(x[i]);
    if (k < 8) {
      low[k] += square;
    } else {
      high[k - 8] += square;
    }
  }
  low += high;
  return ((low[0] + low[4]) + (low[2] + low[6])) + ((low[1] + low[5]) + (low[3] + low[7]));
}

template <class Bits>
inline bool all_finite(Bits const* x, std::int64_t n, Bits exponent) {
  constexpr std::int64_t width = 64 / sizeof(Bits);
  std::int64_t i = 0;
  while (i + width <= n) {
    // Looks at the answer now and then only.
    std::int64_t const end = std::min(n - width, i + 64 * width);
    auto bad = wide<Bits>{} != wide<Bits>{};
    for (; i <= end; i += width) {
      wide<Bits> bits;
      std::memcpy(&bits, reinterpret_cast<char const*>(x) + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
      bad |= (bits & exponent) == exponent;
    }
    std::uint64_t parts[8];
    std::memcpy(parts, &bad, sizeof parts);
    for (auto const part : parts) {
      if (part != 0) return false;
    }
  }
  for (; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, reinterpret_cast<char const*>(x) + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

// mix() of core/hash.hpp, in place.
TRIREME_INLINE void mix_lanes(wide<std::uint64_t>& x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
}

template <class Bits>
inline std::uint64_t hash_bits(Bits const* x, std::int64_t n, std::uint64_t name, std::uint64_t first_index) {
  wide<std::uint64_t> total = {};
  wide<std::uint64_t> index = wide<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7} + first_index;
  auto const* const bytes = reinterpret_cast<char const*>(x);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8, index += 8) {
    eight<Bits> bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    wide<std::uint64_t> h = __builtin_convertvector(bits, wide<std::uint64_t>);
    mix_lanes(h);
    h ^= index;
    mix_lanes(h);
    h ^= name;
    mix_lanes(h);
    total += h;
  }
  std::uint64_t result = 0;
  for (int k = 0; k < 8; ++k) result += total[k];
  for (; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + static_cast<std::size_t>(i) * sizeof(Bits), sizeof bits);
    result += hash_element(name, first_index + static_cast<std::uint64_t>(i), bits);
  }
  return result;
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/reductions.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

// Integers: no lanes, a plain loop over pieces that stay in the first-level cache.
template <class Op, class T>
void reduce_integers(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n) {
  constexpr std::int64_t piece = 256;
  std::array<T, piece> total;
  for (std::int64_t at = 0; at < n; at += piece) {
    auto const count = static_cast<std::size_t>(std::min(piece, n - at));
    std::copy_n(static_cast<T const*>(terms[0]) + at, count, total.data());
    for (auto const* term : terms.subspan(1)) {
      T const* const x = static_cast<T const*>(term) + at;
      for (std::size_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<Op, reduction::max>) {
          total[i] = std::max(total[i], x[i]);
        } else if constexpr (std::is_same_v<Op, reduction::min>) {
          total[i] = std::min(total[i], x[i]);
        } else {
          using wide = std::make_unsigned_t<T>;  // sums wrap
          total[i] = static_cast<T>(static_cast<wide>(total[i]) + static_cast<wide>(x[i]));
        }
      }
    }
    for (auto* output : outputs) std::copy_n(total.data(), count, static_cast<T*>(output) + at);
  }
}

template <class Op, class T>
void reduce_elements(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n,
                     [[maybe_unused]] int divisor) {
  if constexpr (arithmetic_lanes<T>) {
    TRIREME_DISPATCH(fits_float<T>, template reduce<Op, T>(outputs, terms, n, divisor));
  } else {
    static_assert(!std::is_same_v<Op, reduction::mean>, "trireme::ops::reduce: a mean is of floating-point numbers");
    reduce_integers<Op, T>(outputs, terms, n);
  }
}
template <class G>
double block_of_squares(G const* x, std::int64_t n) {
  TRIREME_DISPATCH(fits_float<G>, block_of_squares(x, n));
}
template <class Bits>
bool all_finite(Bits const* x, std::int64_t n, Bits exponent) {
  TRIREME_DISPATCH(true, all_finite(x, n, exponent));
}
template <class Bits>
std::uint64_t hash_bits(Bits const* x, std::int64_t n, std::uint64_t name, std::uint64_t first_index) {
  TRIREME_DISPATCH(true, hash_bits(x, n, name, first_index));
}

}  // namespace detail

/// Kernels that bring many numbers together, each in an order that is fixed.
/// Threads  thread-safe on different outputs.   Errors   assertion_error (light) if the sizes differ.
struct host_reductions {
  template <class T>
  using view = tensor_view<T, host>;

  /// outputs[...][i] = terms[0][i] op terms[1][i] op ..., in this order (reduction::pairwise: in the fixed tree over
  /// the terms), each output written in the same pass.
  ///
  /// Shapes   all views (n). An output may be one of the terms, at the same elements.
  /// Numerics bfloat16 and float16 are summed in float and rounded once; integers wrap. A mean is the sum, divided by
  ///          `divisor` before it is rounded.
  template <class T, class Op = reduction::sum>
  static void reduce(std::span<view<T> const> outputs, std::type_identity_t<std::span<view<T const> const>> terms,
                     Op = {}, int divisor = 1) {
    if (outputs.empty() || terms.empty()) return;
    for (auto const& output : outputs) detail::same_size("reduce", output.size(), outputs[0].size());
    for (auto const& term : terms) detail::same_size("reduce", term.size(), outputs[0].size());
    thread_local std::vector<void*> to;
    thread_local std::vector<void const*> from;
    to.clear();
    from.clear();
    for (auto const& output : outputs) to.push_back(raw(output));
    for (auto const& term : terms) from.push_back(raw(term));
    detail::reduce_elements<Op, T>(to, from, outputs[0].size(), divisor);
  }
  /// The same on bare addresses of n elements of T each: what communicators have.
  template <class T, class Op>
  static void reduce(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t n, Op = {},
                     int divisor = 1) {
    detail::reduce_elements<Op, T>(outputs, terms, n, divisor);
  }

  /// Adds the sum of squares of each block of 1024 elements to `total`. The blocks begin with the view.
  /// Numerics squares and their sum in double, in an order that is the same at every CPU level.
  template <class G>
  static void sum_of_squares(view<G> x, exact_sum& total) {
    constexpr std::int64_t block = 1024;
    for (std::int64_t at = 0; at < x.size(); at += block) {
      std::remove_const_t<G> const* const part = raw(x) + at;
      total.add(detail::block_of_squares(part, std::min(block, x.size() - at)));
    }
  }

  /// Whether no element is infinite or NaN.
  template <class T>
  [[nodiscard]] static bool finite(view<T> x) {
    using element = std::remove_const_t<T>;
    using bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
    static_assert(detail::arithmetic_lanes<element>,
                  "trireme::ops::finite: the elements are not floating-point numbers");
    // All bits of the exponent are set in infinity and NaN only.
    auto const exponent = std::bit_cast<bits>(static_cast<element>(std::numeric_limits<float>::infinity()));
    return detail::all_finite(reinterpret_cast<bits const*>(raw(x)), x.size(), exponent);
  }

  /// The wrapping sum of hash_element(name, first_index + i, bits of element i), zero-extended to 64.
  template <class T>
  [[nodiscard]] static std::uint64_t hash(view<T> x, std::uint64_t name, std::int64_t first_index) {
    using bits =
        std::conditional_t<sizeof(T) == 8, std::uint64_t,
                           std::conditional_t<sizeof(T) == 4, std::uint32_t,
                                              std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;
    return detail::hash_bits(reinterpret_cast<bits const*>(raw(x)), x.size(), name,
                             static_cast<std::uint64_t>(first_index));
  }

  /// The k elements of largest magnitude, k = indices.size(): ties go to the smaller index, indices ascend.
  /// Allocates scratch memory of a thread once.
  template <class G>
  static void select_largest(view<G> x, view<std::int32_t> indices, detail::output<std::remove_const_t<G>> values) {
    detail::same_size("select_largest", indices.size(), values.size());
    expects(assertion_level::light, indices.size() <= x.size(), [&] {
      return text("trireme::ops::select_largest: ", indices.size(), " of ", x.size(), " elements asked for");
    });
    std::remove_const_t<G> const* const from = raw(x);
    detail::select_largest(from, x.size(), raw(indices), indices.size());
    for (std::int64_t i = 0; i < indices.size(); ++i) raw(values)[i] = from[raw(indices)[i]];
  }

  /// y[indices[i]] = or += values[i], in order.
  template <class G>
  static void scatter(view<G> y, view<std::int32_t const> indices, detail::input<G> values, bool add) {
    detail::same_size("scatter", indices.size(), values.size());
    G* const to = raw(y);
    for (std::int64_t i = 0; i < indices.size(); ++i) {
      auto const at = indices[i];
      expects(assertion_level::normal, at >= 0 && at < y.size(),
              [&] { return text("trireme::ops::scatter: index ", at, " is outside of ", y.size(), " elements"); });
      to[at] = add ? static_cast<G>(to[at] + values[i]) : values[i];
    }
  }
};

}  // namespace trireme::ops

// ---- trireme/comm/detail/combine.hpp (goes on)
namespace trireme::comm::detail {

/// What values of T are combined in: float for bfloat16 and float16, which are rounded once at the end.
template <class T>
using combine_t = std::conditional_t<storage_float<T>, float, T>;

template <class T>
[[nodiscard]] constexpr T combined(reduction::sum, T a, T b) noexcept {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));  // wraps
  else
    return a + b;
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::pairwise, T a, T b) noexcept {
  return combined(reduction::sum{}, a, b);
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::mean, T a, T b) noexcept {
  return a + b;
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::max, T a, T b) noexcept {
  return a < b ? b : a;
}
template <class T>
[[nodiscard]] constexpr T combined(reduction::min, T a, T b) noexcept {
  return b < a ? b : a;
}

/// Place i of all terms, combined.
template <class Op, class T>
[[nodiscard]] combine_t<T> combined_at(std::span<void const* const> terms, std::int64_t i) noexcept {
  if (terms.size() == 1) return static_cast<combine_t<T>>(static_cast<T const*>(terms[0])[i]);
  auto left = terms.size() - 1;
  if constexpr (std::is_same_v<Op, reduction::pairwise>)
    left = static_cast<std::size_t>(tree_split(static_cast<std::int64_t>(terms.size())));
  return combined(Op{}, combined_at<Op, T>(terms.first(left), i), combined_at<Op, T>(terms.subspan(left), i));
}

/// outputs[.][i] = terms[0][i] op terms[1][i] op ..., in this order (pairwise: in the tree over them); a mean is then
/// divided by `divisor`. An output may be a term, but not overlap one partly.
template <class Op, class T>
void combine(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count, int divisor) {
  constexpr bool mean = std::is_same_v<Op, reduction::mean>;
  if (count * static_cast<std::int64_t>(sizeof(T)) <= 64) {  // not worth a kernel
    for (std::int64_t i = 0; i < count; ++i) {
      auto total = combined_at<Op, T>(terms, i);
      if constexpr (mean) total /= static_cast<combine_t<T>>(divisor);
      for (auto* output : outputs) static_cast<T*>(output)[i] = static_cast<T>(total);
    }
    return;
  }
  ops::host_reductions::reduce<T, Op>(outputs, terms, count, Op{}, divisor);
}

}  // namespace trireme::comm::detail

// ---- trireme/comm/detail/kernels.hpp (goes on)
namespace trireme::comm::detail {

/// What communicators do with elements in a memory space; specialised where a space is made known to `comm`.
template <class Space>
struct space_kernels;

template <>
struct space_kernels<host> {
  static constexpr bool touchable = true;
  static constexpr void (*complete)() = nullptr;
  static void copy(void* to, void const* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
  }
  template <class T, class Op>
  static void combine(std::span<void* const> outputs, std::span<void const* const> terms, std::int64_t count,
                      int divisor) {
    detail::combine<Op, T>(outputs, terms, count, divisor);
  }
};

/// In phantom memory a collective is its synchronisation.
template <>
struct space_kernels<phantom> {
  static constexpr bool touchable = false;
  static constexpr void (*complete)() = nullptr;
  static void copy(void*, void const*, std::size_t) {}
  template <class T, class Op>
  static void combine(std::span<void* const>, std::span<void const* const>, std::int64_t, int) {}
};

template <class Space>
inline constexpr element_kernels moving_kernels{&space_kernels<Space>::copy, nullptr, space_kernels<Space>::complete,
                                                space_kernels<Space>::touchable};
template <class T, class Space, class Op>
inline constexpr element_kernels reducing_kernels{&space_kernels<Space>::copy,
                                                  &space_kernels<Space>::template combine<T, Op>,
                                                  space_kernels<Space>::complete, space_kernels<Space>::touchable};

}  // namespace trireme::comm::detail

// ---- trireme/comm/traffic.hpp
namespace trireme::comm {

/// Elements [first, first + count) of a message.
struct slice {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(slice const&, slice const&) = default;
};

/// The part of `count` elements that rank `rank` of `size` works on in all_reduce and broadcast. Cut at multiples of a
/// cache line, the first ranks taking one line more, so that no two ranks write to one line.
[[nodiscard]] constexpr slice slice_of(std::int64_t count, std::size_t element_bytes, int rank, int size) noexcept {
  auto const line = static_cast<std::int64_t>(64 / element_bytes);
  auto const lines = (count + line - 1) / line;
  auto const each = lines / size;
  auto const larger = lines % size;
  auto const first = std::min(count, (rank * each + std::min<std::int64_t>(rank, larger)) * line);
  auto const last = std::min(count, first + (each + (rank < larger ? 1 : 0)) * line);
  return {first, last - first};
}

/// What a rank sends to other ranks in one collective, in bytes: what `traffic()` counts on every communicator, and
/// what a plan adds up before anything runs. `count` is the number of elements of the whole view.
///
/// Bytes  the bandwidth-optimal volume. A communicator may send more in messages so small that latency decides (MPI
///        gathers those whole), and threads read instead of sending; both count the same bytes nevertheless.
namespace bytes_sent {

[[nodiscard]] constexpr std::uint64_t all_reduce(std::int64_t count, std::size_t element_bytes, int rank, int size) {
  auto const own = slice_of(count, element_bytes, rank, size).count;
  return static_cast<std::uint64_t>(count - own + own * (size - 1)) * element_bytes;
}
[[nodiscard]] constexpr std::uint64_t reduce_scatter(std::int64_t count, std::size_t element_bytes, int size) {
  return static_cast<std::uint64_t>(count / size * (size - 1)) * element_bytes;
}
[[nodiscard]] constexpr std::uint64_t all_gather(std::int64_t count, std::size_t element_bytes, int size) {
  return reduce_scatter(count, element_bytes, size);
}
[[nodiscard]] constexpr std::uint64_t all_to_all(std::int64_t count, std::size_t element_bytes, int size) {
  return reduce_scatter(count, element_bytes, size);
}
[[nodiscard]] constexpr std::uint64_t broadcast(std::int64_t count, std::size_t element_bytes, int rank, int root,
                                                int size) {
  return rank == root ? static_cast<std::uint64_t>(count * (size - 1)) * element_bytes : 0;
}

/// Ragged: `counts` are the elements of each rank.
[[nodiscard]] constexpr std::uint64_t all_gather(std::span<std::int64_t const> counts, std::size_t element_bytes,
                                                 int rank) {
  return static_cast<std::uint64_t>(counts[static_cast<std::size_t>(rank)]) * element_bytes * (counts.size() - 1);
}
/// `count` is of one part.
[[nodiscard]] constexpr std::uint64_t gather(std::int64_t count, std::size_t element_bytes, int rank, int root) {
  return rank == root ? 0 : static_cast<std::uint64_t>(count) * element_bytes;
}
[[nodiscard]] constexpr std::uint64_t reduce(std::int64_t count, std::size_t element_bytes, int rank, int root) {
  return gather(count, element_bytes, rank, root);
}
[[nodiscard]] constexpr std::uint64_t scatter(std::int64_t count, std::size_t element_bytes, int rank, int root,
                                              int size) {
  return broadcast(count, element_bytes, rank, root, size);
}

/// Of any collective that is not ragged.
[[nodiscard]] constexpr std::uint64_t of(call const& what, std::size_t element_bytes, int rank, int size) {
  switch (what.kind) {
    case collective::all_reduce:
      return all_reduce(what.count, element_bytes, rank, size);
    case collective::reduce_scatter:
    case collective::all_gather:
    case collective::all_to_all:
      return reduce_scatter(what.count, element_bytes, size);
    case collective::broadcast:
      return broadcast(what.count, element_bytes, rank, what.root, size);
    case collective::reduce:
    case collective::gather:
      return gather(what.count, element_bytes, rank, what.root);
    case collective::scatter:
      return scatter(what.count, element_bytes, rank, what.root, size);
    default:
      return 0;
  }
}

}  // namespace bytes_sent

}  // namespace trireme::comm

// ---- trireme/contract/slot.hpp
namespace trireme {

/// The categories that policies fall into. make_trainer takes its policies in any order and sorts them by these tags;
/// a policy says what it is with `using policy_category = slot::optimizer;`.
namespace slot {
struct communicator;
struct model;
struct optimizer;
struct parallel;
struct precision;
struct compression;
}  // namespace slot

/// The category of a policy: what its `policy_category` says, or nothing. Specialise it for a type of somebody else's
/// that cannot be given the member: `template <> struct trireme::category_of<their::net> { using type = slot::model;
/// };`
template <class T>
struct category_of {};

template <class T>
requires requires { typename T::policy_category; }
struct category_of<T> {
  using type = typename T::policy_category;
};

template <class T>
using category_of_t = typename category_of<T>::type;

/// A type that make_trainer can sort into a slot.
template <class T>
concept policy = requires {
  typename category_of<T>::type;
};

}  // namespace trireme

// ---- trireme/comm/collectives.hpp (goes on)
namespace trireme::comm {

/// sum, max, min, and for floating-point elements mean.
template <class Op, class T>
concept reduction_for = arithmetic_element<T> && reduction_of<Op>
!= reduction_kind::none && (!std::same_as<Op, reduction::mean> || !std::is_integral_v<T>);

namespace detail {
template <class World, class T, class Space, class Op, collective Kind>
concept can_reduce = reduction_for<Op, T> && World::template supports<Space>(Kind, dtype_of<T>, reduction_of<Op>);
template <class World, class T, class Space, collective Kind>
concept can_move = element<T> && World::template supports<Space>(Kind, dtype_of<T>, reduction_kind::none);
template <class World, class From, class T, class Space, collective Kind>
concept can_move_from = std::same_as<std::remove_const_t<From>, T> && can_move<World, T, Space, Kind>;
}  // namespace detail

/// The typed face of a communicator: every collective, blocking and `_async`, checked and turned into a command.
///
/// An engine derives from collectives<itself> and has
///   name, rank(), size()
///   run(command), which returns when this rank's part is done, and start(command), which returns a request
///   supports<Space>(kind, type, op): whether it can; what it cannot is not there to be called
///   split(color, key), duplicate()
/// A decorator derives from it too, and passes on commands to the execute() and submit() of the world below.
///
/// Shapes   see contract/communicator.hpp, which has one concept a collective.
/// Bytes    counted as comm::bytes_sent says, whatever the engine does.
/// Ranks    every rank calls the same collectives in the same order; exchange is called by those that take part.
/// Errors   config_error before anything is sent if an argument cannot be right: uneven slices, a root or a peer out of
///          range, counts that do not fit the views.
template <class Derived>
class collectives {
 public:
  using policy_category = slot::communicator;

  [[nodiscard]] traffic_counters traffic() const noexcept { return traffic_; }

  /// Runs a command and counts it. For decorators.
  void execute(command const& it) {
    self().run(it);
    count(it);
  }
  /// Starts a command and counts it. For decorators.
  [[nodiscard]] auto submit(command const& it) {
    auto pending = self().start(it);
    count(it);
    return pending;
  }

  void barrier() { execute(command{}); }
  [[nodiscard]] auto barrier_async() { return submit(command{}); }

  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::all_reduce>
  void all_reduce(tensor_view<T, Space> values, Op = {}) {
    execute(reducing<T, Space, Op>(collective::all_reduce, values));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::all_reduce>
  [[nodiscard]] auto all_reduce_async(tensor_view<T, Space> values, Op = {}) {
    return submit(reducing<T, Space, Op>(collective::all_reduce, values));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::reduce_scatter>
  void reduce_scatter(tensor_view<T, Space> values, Op = {}) {
    execute(reducing<T, Space, Op>(collective::reduce_scatter, values));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::reduce_scatter>
  [[nodiscard]] auto reduce_scatter_async(tensor_view<T, Space> values, Op = {}) {
    return submit(reducing<T, Space, Op>(collective::reduce_scatter, values));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::reduce>
  void reduce(tensor_view<T, Space> values, int root, Op = {}) {
    execute(reducing<T, Space, Op>(collective::reduce, values, root));
  }
  template <class T, class Space, class Op = reduction::sum>
  requires detail::can_reduce<Derived, T, Space, Op, collective::reduce>
  [[nodiscard]] auto reduce_async(tensor_view<T, Space> values, int root, Op = {}) {
    return submit(reducing<T, Space, Op>(collective::reduce, values, root));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::all_gather>
  void all_gather(tensor_view<T, Space> values) {
    execute(moving<T, Space>(collective::all_gather, values, values, values.size()));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::all_gather>
  [[nodiscard]] auto all_gather_async(tensor_view<T, Space> values) {
    return submit(moving<T, Space>(collective::all_gather, values, values, values.size()));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::all_gather>
  void all_gather(tensor_view<T, Space> values, std::span<std::int64_t const> counts) {
    execute(ragged_all_gather<T, Space>(values, counts));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::all_gather>
  [[nodiscard]] auto all_gather_async(tensor_view<T, Space> values, std::span<std::int64_t const> counts) {
    return submit(ragged_all_gather<T, Space>(values, counts));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::broadcast>
  void broadcast(tensor_view<T, Space> values, int root) {
    execute(moving<T, Space>(collective::broadcast, values, values, values.size(), root));
  }
  template <class T, class Space>
  requires detail::can_move<Derived, T, Space, collective::broadcast>
  [[nodiscard]] auto broadcast_async(tensor_view<T, Space> values, int root) {
    return submit(moving<T, Space>(collective::broadcast, values, values, values.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::gather>
  void gather(tensor_view<From, Space> from, tensor_view<T, Space> to, int root) {
    execute(moving<T, Space>(collective::gather, from, to, from.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::gather>
  [[nodiscard]] auto gather_async(tensor_view<From, Space> from, tensor_view<T, Space> to, int root) {
    return submit(moving<T, Space>(collective::gather, from, to, from.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::scatter>
  void scatter(tensor_view<From, Space> from, tensor_view<T, Space> to, int root) {
    execute(moving<T, Space>(collective::scatter, from, to, to.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::scatter>
  [[nodiscard]] auto scatter_async(tensor_view<From, Space> from, tensor_view<T, Space> to, int root) {
    return submit(moving<T, Space>(collective::scatter, from, to, to.size(), root));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::all_to_all>
  void all_to_all(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    execute(moving<T, Space>(collective::all_to_all, from, to, from.size()));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::all_to_all>
  [[nodiscard]] auto all_to_all_async(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    return submit(moving<T, Space>(collective::all_to_all, from, to, from.size()));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::all_to_all>
  void all_to_all(tensor_view<From, Space> from, std::span<std::int64_t const> sent, tensor_view<T, Space> to,
                  std::span<std::int64_t const> received) {
    execute(ragged_all_to_all<T, Space>(from, sent, to, received));
  }
  template <class From, class T, class Space>
  requires detail::can_move_from<Derived, From, T, Space, collective::all_to_all>
  [[nodiscard]] auto all_to_all_async(tensor_view<From, Space> from, std::span<std::int64_t const> sent,
                                      tensor_view<T, Space> to, std::span<std::int64_t const> received) {
    return submit(ragged_all_to_all<T, Space>(from, sent, to, received));
  }
  /// `transfers` is a list in one piece: a vector, array or span of transfer<Space>.
  template <class Transfers, class Space = typename Transfers::value_type::space>
  requires detail::can_move<Derived, std::byte, Space, collective::exchange>
  void exchange(Transfers const& transfers) { execute(exchanging<Space>(transfers)); }
  template <class Transfers, class Space = typename Transfers::value_type::space>
  requires detail::can_move<Derived, std::byte, Space, collective::exchange>
  [[nodiscard]] auto exchange_async(Transfers const& transfers) { return submit(exchanging<Space>(transfers)); }
  template <class Space>
  requires detail::can_move<Derived, std::byte, Space, collective::exchange>
  void exchange(std::initializer_list<transfer<Space>> transfers) {
    execute(exchanging<Space>(std::span<transfer<Space> const>(transfers.begin(), transfers.size())));
  }

 protected:
  collectives() = default;
  collectives(collectives&&) = default;
  collectives& operator=(collectives&&) = default;
  ~collectives() = default;

  static inline std::string const who{text("trireme::comm::", Derived::name)};

 private:
  [[nodiscard]] Derived& self() noexcept { return static_cast<Derived&>(*this); }
  [[nodiscard]] Derived const& self() const noexcept { return static_cast<Derived const&>(*this); }

  void count(command const& it) noexcept {
    traffic_.bytes_sent += it.bytes;
    traffic_.messages_sent += it.messages;
    ++traffic_.collectives;
  }

  template <class T, class Space, class Op>
  [[nodiscard]] command reducing(collective kind, tensor_view<T, Space> values, int root = -1) const {
    command it{.what = {kind, dtype_of<T>, reduction_of<Op>, false, root, values.size()},
               .from = values.address(),
               .to = values.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::reducing_kernels<T, Space, Op>};
    complete(it);
    return it;
  }
  template <class T, class Space>
  [[nodiscard]] command moving(collective kind, tensor_view<T const, Space> from, tensor_view<T, Space> to,
                               std::int64_t count, int root = -1) const {
    command it{.what = {kind, dtype_of<T>, reduction_kind::none, false, root, count},
               .from = from.address(),
               .to = to.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::moving_kernels<Space>};
    detail::expect_sizes(who, it.what, from.size(), to.size(), self().rank(), self().size());
    complete(it);
    return it;
  }
  template <class T, class Space>
  [[nodiscard]] command ragged_all_gather(tensor_view<T, Space> values, std::span<std::int64_t const> counts) const {
    detail::expect_counts(who, collective::all_gather, counts, values.size(), self().size());
    command it{.what = {collective::all_gather, dtype_of<T>, reduction_kind::none, false, -1, values.size(),
                        detail::fingerprint(counts)},
               .from = values.address(),
               .to = values.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::moving_kernels<Space>,
               .counts = counts};
    it.bytes = bytes_sent::all_gather(counts, sizeof(T), self().rank());
    it.messages = detail::messages_of(it, self().size());
    return it;
  }
  template <class T, class Space>
  [[nodiscard]] command ragged_all_to_all(tensor_view<T const, Space> from, std::span<std::int64_t const> sent,
                                          tensor_view<T, Space> to, std::span<std::int64_t const> received) const {
    detail::expect_counts(who, collective::all_to_all, sent, from.size(), self().size());
    detail::expect_counts(who, collective::all_to_all, received, to.size(), self().size());
    auto& parts = detail::parts_of_this_thread();
    detail::append_parts(parts, true, dtype_of<T>, sizeof(T), from.address(), sent);
    detail::append_parts(parts, false, dtype_of<T>, sizeof(T), to.address(), received);
    command it{.what = {collective::all_to_all, dtype_of<T>, reduction_kind::none, false, -1, 0, 1},
               .from = from.address(),
               .to = to.address(),
               .element_bytes = sizeof(T),
               .elements = &detail::moving_kernels<Space>,
               .parts = parts};
    count_parts(it);
    return it;
  }
  template <class Space>
  [[nodiscard]] command exchanging(std::span<transfer<Space> const> transfers) const {
    auto& parts = detail::parts_of_this_thread();
    for (auto const& each : transfers) {
      detail::expect_peer(who, each.peer, self().size());
      parts.push_back({each.peer, each.way == transfer<Space>::direction::send, each.type, each.count,
                       static_cast<std::byte*>(each.address)});
    }
    command it{.what = {collective::exchange}, .elements = &detail::moving_kernels<Space>, .parts = parts};
    count_parts(it);
    return it;
  }
  void count_parts(command& it) const noexcept {
    for (auto const& each : it.parts) {
      if (!each.sent || each.peer == self().rank() || each.count == 0) continue;
      it.bytes += static_cast<std::uint64_t>(each.count) * size_of(each.type);
      ++it.messages;
    }
  }
  /// Checks what can be checked of equal slices and roots, and counts.
  void complete(command& it) const {
    detail::expect_right(who, it.what, self().size());
    it.bytes = bytes_sent::of(it.what, it.element_bytes, self().rank(), self().size());
    it.messages = detail::messages_of(it, self().size());
  }

  traffic_counters traffic_;
};

}  // namespace trireme::comm

// ---- trireme/comm/detail/channel.hpp
#include <mutex>

namespace trireme::comm::detail {

/// The sends of exchanges from one rank to another, in the order in which they were started. The receiver copies
/// straight from the sender's memory, and then counts the send as taken.
class alignas(64) channel {
 public:
  /// Sender: appends a send and returns its number.
  [[nodiscard]] std::uint64_t post(part const& send) {
    std::lock_guard const lock(mutex_);
    if (posted_ - first_ == ring_.size()) grow();
    ring_[posted_ % ring_.size()] = {send, false};
    return posted_++;
  }
  /// Receiver: the number of the next receive.
  [[nodiscard]] std::uint64_t expect() noexcept { return expected_++; }

  /// Receiver: send `number`, if it is there.
  [[nodiscard]] bool find(std::uint64_t number, part& send) {
    std::lock_guard const lock(mutex_);
    if (number >= posted_) return false;
    send = ring_[number % ring_.size()].send;
    return true;
  }
  /// Receiver: its elements have been copied.
  void take(std::uint64_t number) {
    std::lock_guard const lock(mutex_);
    ring_[number % ring_.size()].taken = true;
    while (first_ < posted_ && ring_[first_ % ring_.size()].taken) ++first_;
    taken_.store(first_, std::memory_order_release);
  }
  /// Sender: whether send `number`, and all before it, have been taken.
  [[nodiscard]] bool taken(std::uint64_t number) const noexcept {
    return taken_.load(std::memory_order_acquire) > number;
  }

 private:
  struct entry {
    part send;
    bool taken = false;
  };
  void grow() {
    std::vector<entry> larger(ring_.empty() ? 8 : 2 * ring_.size());
    for (auto i = first_; i < posted_; ++i) larger[i % larger.size()] = ring_[i % ring_.size()];
    ring_.swap(larger);
  }

  std::mutex mutex_;
  std::vector<entry> ring_;
  std::uint64_t first_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t expected_ = 0;  // the receiver's own
  std::atomic<std::uint64_t> taken_{0};
};

}  // namespace trireme::comm::detail

// ---- trireme/comm/detail/mailbox.hpp
namespace trireme::comm::detail {

/// One rank's announcement of one collective: one cache line, written by that rank alone.
struct alignas(64) posting {
  static constexpr std::size_t value_bytes = 32;
  struct buffers {
    void const* from;
    void* to;
    part const* parts;
  };

  /// number * 4 + (1: arrived, 2: this rank's share is done)
  std::atomic<std::uint64_t> word{0};
  call what;
  union {
    buffers memory;
    std::byte values[value_bytes];
  };
  posting() noexcept : memory{} {}

  void copy_from(posting const& other) noexcept {
    what = other.what;
    std::memcpy(values, other.values, value_bytes);
    word.store(other.word.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
};

[[nodiscard]] constexpr std::uint64_t arrived_word(std::uint64_t number) noexcept { return number * 4 + 1; }
[[nodiscard]] constexpr std::uint64_t done_word(std::uint64_t number) noexcept { return number * 4 + 2; }

/// The announcements of one rank of one group, in a ring that doubles when more are in flight than it holds.
///
/// One writer, many readers. A ring that has been replaced stays readable until the group ends, so readers need no
/// lock: they load the address of the ring each time they look.
class alignas(64) mailbox {
 public:
  mailbox() { replace_ring(64); }

  /// The announcement of collective `number`, or an older one that used its place.
  [[nodiscard]] posting& at(std::uint64_t number) const noexcept {
    auto const* const now = current_.load(std::memory_order_acquire);
    return now->postings[number & now->mask];
  }
  /// The lowest number that this rank has not finished.
  [[nodiscard]] std::uint64_t unfinished() const noexcept { return unfinished_.load(std::memory_order_acquire); }

  /// Owner: the number of the next collective, whose place is free once this returns. `lowest()` gives the lowest
  /// number that any rank of the group has not finished.
  template <class Lowest>
  [[nodiscard]] std::uint64_t claim(Lowest&& lowest) {
    auto const number = next_++;
    auto const capacity = rings_.back()->mask + 1;
    if (number >= reusable_ + capacity) {
      reusable_ = lowest();
      if (number >= reusable_ + capacity) replace_ring(2 * capacity);
    }
    return number;
  }
  /// Owner: `number` is finished, here.
  void finish(std::uint64_t number) noexcept {
    auto& now = *rings_.back();
    now.finished[number & now.mask] = number;
    auto low = unfinished_.load(std::memory_order_relaxed);
    if (number != low) return;
    while (now.finished[low & now.mask] == low) ++low;
    unfinished_.store(low, std::memory_order_release);
  }

 private:
  struct ring {
    explicit ring(std::uint64_t capacity)
        : mask(capacity - 1), postings(new posting[capacity]), finished(new std::uint64_t[capacity]()) {}
    std::uint64_t const mask;
    std::unique_ptr<posting[]> const postings;
    std::unique_ptr<std::uint64_t[]> const finished;
  };

  void replace_ring(std::uint64_t capacity) {
    auto grown = std::make_unique<ring>(capacity);
    if (!rings_.empty()) {
      auto const& old = *rings_.back();
      for (std::uint64_t i = 0; i <= old.mask; ++i) {
        auto const number = old.postings[i].word.load(std::memory_order_relaxed) / 4;
        grown->postings[number & grown->mask].copy_from(old.postings[i]);
        grown->finished[old.finished[i] & grown->mask] = old.finished[i];
      }
    }
    current_.store(grown.get(), std::memory_order_release);
    rings_.push_back(std::move(grown));
  }

  std::atomic<ring*> current_{nullptr};
  alignas(64) std::atomic<std::uint64_t> unfinished_{1};
  alignas(64) std::uint64_t next_ = 1;
  std::uint64_t reusable_ = 1;
  std::vector<std::unique_ptr<ring>> rings_;
};

}  // namespace trireme::comm::detail

// ---- trireme/comm/detail/waiting.hpp
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

namespace trireme::comm::detail {

using clock = std::chrono::steady_clock;

/// Tells the core that this is a spinning loop.
inline void pause_core() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Sleeps while `word` holds `value`, for at most `limit`; may return early. (std::atomic::wait knows no time limit.)
inline void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value,
                        std::chrono::nanoseconds limit) noexcept {
#if defined(__linux__)
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
  if (limit.count() <= 0) return;
  timespec const time{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
#else
  if (word.load() == value)
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(limit, std::chrono::microseconds(50)));
#endif
}

/// Wakes everyone who sleeps on `word`.
inline void wake_all([[maybe_unused]] std::atomic<std::uint32_t>& word) noexcept {
#if defined(__linux__)
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, 0x7fff'ffff, nullptr, nullptr, 0);
#endif
}

}  // namespace trireme::comm::detail

// ---- trireme/comm/detail/team.hpp (goes on)
namespace trireme::comm::detail {

struct operation;

/// What one rank of a team keeps for all of its communicators. Others read the two flags only.
struct alignas(64) rank_state {
  std::atomic<bool> inside{false};           ///< it reads or writes memory of other ranks at this moment
  std::atomic<bool> left{false};             ///< its body has returned
  alignas(64) operation* pending = nullptr;  ///< its asynchronous operations, oldest first
  operation* newest = nullptr;
  operation* unused = nullptr;                    ///< operations to use again
  std::vector<std::shared_ptr<operation>> owned;  // shared, because an operation is not complete here
};

/// The threads of one launch: their failure, and the bell that wakes sleepers.
class team {
 public:
  team(int ranks, bool core_each)
      : spins(core_each ? 200 : 20),
        patience(core_each ? std::chrono::microseconds(1000) : std::chrono::microseconds(200)),
        ranks(static_cast<std::size_t>(ranks)) {}

  int const spins;                           ///< pauses before the first yield
  std::chrono::microseconds const patience;  ///< how long to yield before sleeping
  std::vector<rank_state> ranks;

  [[nodiscard]] bool failed() const noexcept { return failed_.load(); }

  /// Ends all waits with `message`; `rank` is who noticed. Only the first call counts.
  void fail(int rank, std::string message) {
    {
      std::lock_guard const lock(mutex_);
      if (failed_.load()) return;
      message_ = std::move(message);
      culprit_ = rank;
      failed_.store(true);
    }
    bell_.fetch_add(1);
    wake_all(bell_);
  }
  [[nodiscard]] std::string message() const {
    std::lock_guard const lock(mutex_);
    return message_;
  }
  [[nodiscard]] int culprit() const {
    std::lock_guard const lock(mutex_);
    return culprit_;
  }

  /// After a failure: returns once no rank touches memory of others any more.
  void settle() const noexcept {
    for (auto const& each : ranks)
      while (each.inside.load()) std::this_thread::yield();
  }

  /// Called after every change that somebody may wait for.
  void ring() noexcept {
    if (sleepers_.load() == 0) return;
    bell_.fetch_add(1);
    wake_all(bell_);
  }
  /// Sleeps until the next ring, unless `done()`, which is asked after the bell has been armed.
  template <class Done>
  bool sleep(std::chrono::nanoseconds limit, Done&& done) {
    sleepers_.fetch_add(1);
    auto const value = bell_.load();
    bool const ready = done() || failed();
    if (!ready) sleep_while(bell_, value, limit);
    sleepers_.fetch_sub(1);
    return ready;
  }

 private:
  alignas(64) std::atomic<bool> failed_{false};
  alignas(64) std::atomic<std::uint32_t> sleepers_{0};
  alignas(64) std::atomic<std::uint32_t> bell_{0};
  mutable std::mutex mutex_;
  std::string message_;
  int culprit_ = -1;
};

}  // namespace trireme::comm::detail

// ---- trireme/comm/detail/group.hpp (goes on)
namespace trireme::comm::detail {

/// The ranks of one communicator, all threads of one team.
struct group {
  group(std::shared_ptr<team> whole, std::vector<int> ranks, std::chrono::milliseconds longest)
      : crew(std::move(whole)),
        members(std::move(ranks)),
        deadline(longest),
        boxes(new mailbox[members.size()]),
        channels(members.size() * members.size()) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members.size()); }
  [[nodiscard]] posting& at(int rank, std::uint64_t number) const noexcept {
    return boxes[static_cast<std::size_t>(rank)].at(number);
  }
  [[nodiscard]] std::uint64_t lowest_unfinished() const noexcept {
    auto low = boxes[0].unfinished();
    for (std::size_t rank = 1; rank < members.size(); ++rank) low = std::min(low, boxes[rank].unfinished());
    return low;
  }
  /// What goes from one rank to another in exchanges; made when first asked for.
  [[nodiscard]] channel& between(int from, int to) {
    auto& place = channels[static_cast<std::size_t>(from * size() + to)];
    if (auto* known = place.load(std::memory_order_acquire)) return *known;
    auto made = std::make_unique<channel>();
    channel* none = nullptr;
    if (place.compare_exchange_strong(none, made.get())) return *made.release();
    return *none;
  }
  ~group() {
    for (auto& each : channels) delete each.load();
  }
  group(group const&) = delete;
  group& operator=(group const&) = delete;

  std::shared_ptr<team> const crew;
  std::vector<int> const members;  ///< their ranks in the team, by rank in the group
  std::chrono::milliseconds const deadline;
  std::unique_ptr<mailbox[]> const boxes;
  std::vector<std::atomic<channel*>> channels;
};

/// A part of an exchange, and its number in its channel.
struct numbered_part {
  part what;
  std::uint64_t number = 0;
  bool done = false;
};

/// One rank's part in one collective. It advances when its owner asks, never by itself:
/// waiting for all to arrive -> this rank's share of the work -> waiting for the shares of all.
struct operation {
  enum class stage : std::uint8_t { arriving, sharing, finished };

  group* where = nullptr;
  std::uint64_t number = 0;
  call what;
  int rank = 0;
  int cursor = 0;  ///< ranks below it have been seen at the present stage
  stage at = stage::arriving;
  std::uint32_t polls = 0;
  element_kernels const* elements = nullptr;
  std::size_t element_bytes = 1;
  int divisor = 0;
  void const* from_ = nullptr;
  void* own = nullptr;                          ///< where this rank's results go
  void (*collect)(operation const&) = nullptr;  ///< peers and split: instead of a share
  std::span<std::int64_t const> counts;
  std::vector<numbered_part> transfers;  ///< of an exchange
  clock::time_point since{};

  // Asynchronous operations only:
  std::shared_ptr<group> keep;
  std::vector<std::int64_t> kept_counts;
  std::vector<part> kept_parts;
  operation* previous = nullptr;
  operation* next = nullptr;

  [[nodiscard]] team& crew() const noexcept { return *where->crew; }
  [[nodiscard]] rank_state& mine() const noexcept { return crew().ranks[static_cast<std::size_t>(world_rank(rank))]; }
  [[nodiscard]] int world_rank(int of) const noexcept { return where->members[static_cast<std::size_t>(of)]; }

  /// What `of` passed in: its own memory, or the copy that travelled with the announcement.
  [[nodiscard]] std::byte const* from(int of) const noexcept {
    auto const& theirs = where->at(of, number);
    return static_cast<std::byte const*>(what.by_value ? static_cast<void const*>(theirs.values) : theirs.memory.from);
  }
  [[nodiscard]] std::byte* to(int of) const noexcept {
    return static_cast<std::byte*>(where->at(of, number).memory.to);
  }
  [[nodiscard]] part const* parts(int of) const noexcept { return where->at(of, number).memory.parts; }
  [[nodiscard]] std::byte* result() const noexcept { return static_cast<std::byte*>(own); }

  /// As new, but with the memory of its lists.
  void reset() noexcept {
    auto a = std::move(transfers);
    auto b = std::move(kept_counts);
    auto c = std::move(kept_parts);
    a.clear();
    *this = operation{};
    transfers = std::move(a);
    kept_counts = std::move(b);
    kept_parts = std::move(c);
  }
};

/// "all_reduce(F32, 4 elements, sum) number 12"
[[nodiscard]] inline std::string describe(operation const& op) {
  if (op.what.kind == collective::exchange) return "exchange";
  return text(to_string(op.what), " number ", op.number);
}

/// Whether each rank sends what this one expects; if not, the team fails.
[[nodiscard]] inline bool parts_agree(operation const& op) {
  for (int rank = 0; rank < op.where->size(); ++rank) {
    auto const& sent = op.parts(rank)[op.rank];
    auto const& expected = op.parts(op.rank)[op.where->size() + rank];
    if (sent.count == expected.count) continue;
    op.crew().fail(op.world_rank(op.rank), differing_transfers("trireme::comm::threads", op.world_rank(rank), sent,
                                                               op.world_rank(op.rank), expected));
    return false;
  }
  return true;
}

/// Whether all ranks called the same; if not, the team fails.
[[nodiscard]] inline bool agreed(operation const& op) {
  for (int rank = 0; rank < op.where->size(); ++rank) {
    auto const& theirs = op.where->at(rank, op.number).what;
    if (theirs == op.what || !asserts(assertion_level::normal)) continue;
    auto const other = op.world_rank(rank);
    auto const self = op.world_rank(op.rank);
    op.crew().fail(self, other < self
                             ? differing_calls("trireme::comm::threads", op.number, other, theirs, self, op.what)
                             : differing_calls("trireme::comm::threads", op.number, self, op.what, other, theirs));
    return false;
  }
  return op.what.kind != collective::all_to_all || op.what.shape == 0 || parts_agree(op);
}

/// Runs `work`, which touches the memory of others. False if the team has failed, since somebody may be taking its
/// memory back then; and if the work throws, as that of a device may, which fails the team.
template <class Work>
bool work_inside(operation const& op, Work&& work) {
  auto& inside = op.mine().inside;
  inside.store(true);
  bool done = false;
  if (!op.crew().failed()) {
    try {
      work();
      done = true;
    } catch (std::exception const& problem) {
      op.crew().fail(op.world_rank(op.rank), text("trireme::comm::threads: rank ", op.world_rank(op.rank),
                                                  " could not do its share of ", describe(op), ": ", problem.what()));
    }
  }
  inside.store(false);
  return done;
}

/// Copies what has come, unless a send and its receive differ; then the team fails.
inline bool advance_exchange(operation& op) {
  bool all = true;
  for (auto& each : op.transfers) {
    if (each.done) continue;
    auto const peer = each.what.peer;
    auto& way = each.what.sent ? op.where->between(op.rank, peer) : op.where->between(peer, op.rank);
    if (each.what.sent) {
      each.done = way.taken(each.number);
    } else if (part send; way.find(each.number, send)) {
      if (send.type != each.what.type || send.count != each.what.count) {
        op.crew().fail(op.world_rank(op.rank), differing_transfers("trireme::comm::threads", op.world_rank(peer), send,
                                                                   op.world_rank(op.rank), each.what));
        return false;
      }
      auto const copied = work_inside(op, [&] {
        op.elements->copy(each.what.address, send.address, static_cast<std::size_t>(send.count) * size_of(send.type));
        if (op.elements->complete != nullptr) op.elements->complete();
      });
      if (!copied) return false;
      way.take(each.number);
      op.crew().ring();
      each.done = true;
    }
    all = all && each.done;
  }
  if (all) op.at = operation::stage::finished;
  return all;
}

}  // namespace trireme::comm::detail

// ---- trireme/comm/detail/shares.hpp (goes on)
namespace trireme::comm::detail {

/// So that the addresses of all ranks fit on the stack.
inline constexpr int most_ranks = 256;

/// Combines elements [first, first + count) of what all ranks gave, into the memory of `into`, or everyone's if -1.
inline void combine_slice(operation const& op, slice where, int into) {
  if (where.count == 0) return;
  void const* terms[most_ranks];
  void* outputs[most_ranks];
  auto const size = static_cast<std::size_t>(op.where->size());
  auto const offset = static_cast<std::size_t>(where.first) * op.element_bytes;
  for (std::size_t rank = 0; rank < size; ++rank) terms[rank] = op.from(static_cast<int>(rank)) + offset;
  if (into == op.rank)
    outputs[0] = op.result() + offset;
  else if (into >= 0)
    outputs[0] = op.to(into) + offset;
  else
    for (std::size_t rank = 0; rank < size; ++rank) outputs[rank] = op.to(static_cast<int>(rank)) + offset;
  op.elements->combine({outputs, into < 0 ? size : 1}, {terms, size}, where.count,
                       op.divisor != 0 ? op.divisor : op.where->size());
}

/// One rank's share of each collective. Where the work is one rank's (reduce, broadcast), each does a slice of it.
inline void share_of(operation const& op) {
  int const size = op.where->size();
  auto const bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * op.element_bytes; };
  auto const count = op.what.count;
  auto const copy = op.elements == nullptr ? nullptr : op.elements->copy;
  auto const mine = [&] { return slice_of(count, op.element_bytes, op.rank, size); };
  auto const each = count / size;
  switch (op.what.kind) {
    case collective::all_reduce:
      if (op.what.by_value)
        combine_slice(op, {0, count}, op.rank);
      else
        combine_slice(op, mine(), -1);
      break;
    case collective::reduce_scatter:
      combine_slice(op, {op.rank * each, each}, op.rank);
      break;
    case collective::reduce:
      if (!op.what.by_value)
        combine_slice(op, mine(), op.what.root);
      else if (op.rank == op.what.root)
        combine_slice(op, {0, count}, op.rank);
      break;
    case collective::all_gather: {
      std::int64_t first = 0;
      for (int rank = 0; rank < size; ++rank) {
        auto const part = op.what.shape == 0 ? each : op.counts[static_cast<std::size_t>(rank)];
        if (rank != op.rank) copy(op.result() + bytes(first), op.from(rank) + bytes(first), bytes(part));
        first += part;
      }
      break;
    }
    case collective::gather:
      if (!op.what.by_value)
        copy(op.to(op.what.root) + op.rank * static_cast<std::ptrdiff_t>(bytes(count)), op.from_, bytes(count));
      else if (op.rank == op.what.root)
        for (int rank = 0; rank < size; ++rank) copy(op.result() + bytes(rank * count), op.from(rank), bytes(count));
      break;
    case collective::scatter:
      copy(op.own, op.from(op.what.root) + bytes(op.rank * count), bytes(count));
      break;
    case collective::broadcast:
      if (op.what.by_value) {
        if (op.rank != op.what.root) copy(op.own, op.from(op.what.root), bytes(count));
        break;
      }
      for (int rank = 0; rank < size; ++rank)
        if (rank != op.what.root)
          copy(op.to(rank) + bytes(mine().first), op.from(op.what.root) + bytes(mine().first), bytes(mine().count));
      break;
    case collective::all_to_all:
      if (op.what.shape == 0)
        for (int rank = 0; rank < size; ++rank)
          copy(op.result() + bytes(rank * each), op.from(rank) + bytes(op.rank * each), bytes(each));
      else
        for (int rank = 0; rank < size; ++rank) {
          auto const& to = op.parts(op.rank)[size + rank];
          copy(to.address, op.parts(rank)[op.rank].address, bytes(to.count));
        }
      break;
    default:
      break;
  }
}
inline void share(operation const& op) {
  if (op.collect != nullptr) {
    op.collect(op);
  } else if (op.elements != nullptr) {
    share_of(op);
    if (op.elements->complete != nullptr) op.elements->complete();
  }
}

/// Copies the X that every rank passed into a vector<X>.
template <class X>
void collect_share(operation const& op) {
  auto& all = *static_cast<std::vector<X>*>(op.own);
  for (int rank = 0; rank < op.where->size(); ++rank)
    all[static_cast<std::size_t>(rank)] = *reinterpret_cast<X const*>(op.from(rank));
}

}  // namespace trireme::comm::detail

// ---- trireme/comm/detail/advance.hpp
namespace trireme::comm::detail {

/// Makes the progress that is possible now; true once the operation is finished.
inline bool advance(operation& op) {
  if (op.what.kind == collective::exchange) return advance_exchange(op);
  auto& where = *op.where;
  if (op.at == operation::stage::arriving) {
    for (; op.cursor < where.size(); ++op.cursor)
      if (where.at(op.cursor, op.number).word.load() < arrived_word(op.number)) return false;
    if (!agreed(op)) {
      op.cursor = 0;
      return false;
    }
    if (op.what.by_value) {
      share(op);
      op.at = operation::stage::finished;
      where.boxes[static_cast<std::size_t>(op.rank)].finish(op.number);
      return true;
    }
    if (!work_inside(op, [&] { share(op); })) return false;
    op.at = operation::stage::sharing;
    op.cursor = 0;
    where.at(op.rank, op.number).word.store(done_word(op.number));
    op.crew().ring();
  }
  if (op.at == operation::stage::sharing) {
    for (; op.cursor < where.size(); ++op.cursor)
      if (where.at(op.cursor, op.number).word.load() < done_word(op.number)) return false;
    op.at = operation::stage::finished;
    where.boxes[static_cast<std::size_t>(op.rank)].finish(op.number);
  }
  return true;
}

/// Ranks that keep `op` waiting, as "rank 1" or "ranks 1, 3"; only those whose body has returned if `left`.
[[nodiscard]] inline std::string missing_ranks(operation const& op, bool left) {
  auto const wanted = op.at == operation::stage::arriving ? arrived_word(op.number) : done_word(op.number);
  auto const waits_for = [&](int rank) {
    if (op.what.kind != collective::exchange) return op.where->at(rank, op.number).word.load() < wanted;
    return std::ranges::any_of(op.transfers, [&](auto const& each) { return !each.done && each.what.peer == rank; });
  };
  std::string out;
  int count = 0;
  for (int rank = 0; rank < op.where->size(); ++rank) {
    auto const world_rank = op.world_rank(rank);
    // The flag first: a rank that has left has announced everything it ever will.
    if (left && !op.crew().ranks[static_cast<std::size_t>(world_rank)].left.load()) continue;
    if (!waits_for(rank)) continue;
    out += text(count++ == 0 ? "" : ", ", world_rank);
  }
  return count == 0 ? out : text(count == 1 ? "rank " : "ranks ", out);
}

/// Fails the team if `op` can never finish, or has waited too long.
inline void check_patience(operation const& op, clock::time_point since) {
  auto& crew = op.crew();
  if (crew.failed()) return;
  if (auto const gone = missing_ranks(op, true); !gone.empty()) {
    crew.fail(op.world_rank(op.rank),
              text("trireme::comm::threads: ", describe(op), " cannot finish, because the body of ", gone,
                   " has returned without calling it; make every rank call the same collectives"));
  } else if (clock::now() - since > op.where->deadline) {
    auto const missing = missing_ranks(op, false);
    if (missing.empty()) return;
    crew.fail(
        op.world_rank(op.rank),
        text("trireme::comm::threads: ", describe(op), " waited ", to_string(op.where->deadline), " for ", missing,
             op.at == operation::stage::arriving ? ", which did not call it" : ", which did not finish its share",
             "; look at what is keeping it, or raise comm::threads{.deadline}"));
  }
}

/// Leaves an operation of a failed team: from here on nobody touches this rank's memory.
[[noreturn]] inline void throw_failure(operation const& op) {
  op.crew().settle();
  throw comm_error(op.crew().message(), {op.world_rank(op.rank), std::string(name_of(op.what.kind))});
}

/// Advances what this rank has in flight: a rank that waits for one operation must not hold up the others.
inline void advance_pending(rank_state& mine) {
  for (auto* each = mine.pending; each != nullptr; each = each->next)
    if (each->at != operation::stage::finished) advance(*each);
}

/// Spins, then yields, then sleeps until the operation is finished.
inline void wait_for(operation& op) {
  auto& crew = op.crew();
  for (int spin = 0; spin < crew.spins; ++spin) {
    if (advance(op)) return;
    pause_core();
  }
  auto& mine = op.mine();
  auto const since = clock::now();
  bool yielding = true;
  for (std::uint32_t round = 1;; ++round) {
    if (advance(op)) return;
    if (crew.failed()) throw_failure(op);
    advance_pending(mine);
    if (yielding) {
      std::this_thread::yield();
      if (round % 16 != 0) continue;
      yielding = clock::now() - since < crew.patience;
    } else {
      auto const left = op.where->deadline - (clock::now() - since);
      auto const longest = std::chrono::milliseconds(20);
      crew.sleep(std::clamp<std::chrono::nanoseconds>(left, std::chrono::microseconds(100), longest), [&] {
        advance_pending(mine);
        return advance(op);
      });
    }
    check_patience(op, since);
  }
}

}  // namespace trireme::comm::detail

// ---- trireme/comm/detail/threads_request.hpp (goes on)
namespace trireme::comm::detail {

/// An operation from the rank's store, appended to its pending ones. Allocates only while more are in flight than ever.
[[nodiscard]] inline operation& enlist(rank_state& mine) {
  if (mine.unused == nullptr) {
    mine.owned.push_back(std::make_unique<operation>());
    mine.unused = mine.owned.back().get();
  }
  auto& op = *mine.unused;
  mine.unused = op.next;
  op.reset();
  op.previous = mine.newest;
  (mine.newest == nullptr ? mine.pending : mine.newest->next) = &op;
  mine.newest = &op;
  return op;
}

inline void dismiss(rank_state& mine, operation& op) noexcept {
  (op.previous == nullptr ? mine.pending : op.previous->next) = op.next;
  (op.next == nullptr ? mine.newest : op.next->previous) = op.previous;
  op.next = mine.unused;
  mine.unused = &op;
}

}  // namespace trireme::comm::detail

namespace trireme::comm {

/// A pending collective of comm::threads.
///
/// Ranks  local. Progress is made in `test()` and `wait()`, and in any blocking collective of the same rank.
/// Threads  the rank that started it.   Errors  comm_error as threads_world; the destructor waits and swallows it.
class threads_request {
 public:
  threads_request() = default;
  explicit threads_request(detail::operation& op) noexcept : op_(&op) {}
  threads_request(threads_request&& other) noexcept : op_(std::exchange(other.op_, nullptr)) {}
  threads_request& operator=(threads_request&& other) noexcept {
    if (this != &other) {
      finish();
      op_ = std::exchange(other.op_, nullptr);
    }
    return *this;
  }
  ~threads_request() { finish(); }

  /// Makes what progress is possible without waiting; true once the collective is done.
  [[nodiscard]] bool test() {
    if (op_ == nullptr) return true;
    releaser const guard{*this};
    if (detail::advance(*op_)) return true;
    // Now and then, because a test is otherwise a few nanoseconds: what else this rank has in flight, and the clock.
    if (op_->polls % 4 == 0) detail::advance_pending(op_->mine());
    if (++op_->polls % 256 == 0) {
      if (op_->since == detail::clock::time_point{}) op_->since = detail::clock::now();
      detail::check_patience(*op_, op_->since);
    }
    if (op_->crew().failed()) {
      op_->at = detail::operation::stage::finished;
      detail::throw_failure(*op_);
    }
    return false;
  }
  void wait() {
    if (op_ == nullptr) return;
    releaser const guard{*this};
    try {
      detail::wait_for(*op_);
    } catch (...) {
      op_->at = detail::operation::stage::finished;
      throw;
    }
  }

 private:
  /// Gives the operation back if it is finished, whether it succeeded or not.
  struct releaser {
    threads_request& request;
    ~releaser() {
      if (request.op_->at == detail::operation::stage::finished) request.release();
    }
  };
  void release() noexcept {
    auto const keep = std::move(op_->keep);  // what it belongs to may have ended, and end with it
    detail::dismiss(op_->mine(), *op_);
    op_ = nullptr;
  }
  void finish() noexcept {
    try {
      wait();
    } catch (...) {  // the error has ended the whole launch, which reports it
    }
  }

  detail::operation* op_ = nullptr;
};

}  // namespace trireme::comm

// ---- trireme/comm/threads.hpp (goes on)
namespace trireme::comm {

/// Ranks are threads of this process, which work directly in each other's memory.
///
/// Ranks    `ranks` of them, at most 256; with `pin`, and if there are no more ranks than cores, each runs on a core of
///          its own among those that the process may use.
/// Errors   launch throws config_error if there is no rank or no time.
struct threads {
  using policy_category = slot::communicator;

  int ranks = 2;
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  bool pin = true;

  friend bool operator==(threads const&, threads const&) = default;
};

[[nodiscard]] inline std::string to_string(threads const& it) {
  return text("comm::threads{.ranks = ", it.ranks, ", .deadline = ", to_string(it.deadline),
              it.pin ? "}" : ", .pin = false}");
}

/// One rank of comm::threads.
///
/// Each rank works on its slice of all buffers, in rank order, and writes the result to all: every element is read and
/// written once a rank, and all ranks hold the same bits, on every run. Messages of up to 32 bytes travel with their
/// announcement. Memory of any space will do if its kernels are known (detail/kernels.hpp).
///
/// Bytes    counted as comm::bytes_sent says. Memory traffic of a large all_reduce is 2 * size * n bytes in all.
/// Ranks    every rank calls the same collectives in the same order; what differs in kind, type, count, reduction or
///          root is an error on every rank (level normal).
/// Numerics in rank order; bfloat16 is summed in float and rounded once. The same bits as comm::mpi.
/// Threads  one caller a rank. A view must outlive its request. Progress is made by the ranks that test or wait.
/// Errors   comm_error if a rank fails, is late past the deadline, or has returned; it names that rank by its rank in
/// the
///          launch. After an error every communicator of the launch only throws. config_error for sizes that cannot be
///          cut.
class threads_world : public collectives<threads_world> {
 public:
  using request = threads_request;
  static constexpr std::string_view name = "threads";

  threads_world(std::shared_ptr<detail::group> members, int rank) noexcept : group_(std::move(members)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return group_->deadline; }

  template <class Space>
  static constexpr bool supports(collective, dtype, reduction_kind) noexcept {
    return requires { &detail::space_kernels<Space>::copy; };
  }

  void run(command const& it) {
    if (it.what.kind == collective::exchange) {  // its list of transfers has memory of its own
      start(it).wait();
      return;
    }
    detail::operation op;
    op.counts = it.counts;
    post(op, it, it.parts.data());
    detail::wait_for(op);
  }
  [[nodiscard]] request start(command const& it) {
    auto& mine = group_->crew->ranks[static_cast<std::size_t>(group_->members[static_cast<std::size_t>(rank_)])];
    auto& op = detail::enlist(mine);
    try {
      op.kept_counts.assign(it.counts.begin(), it.counts.end());
      op.counts = op.kept_counts;
      op.kept_parts.assign(it.parts.begin(), it.parts.end());
      if (it.what.kind == collective::exchange)
        post_exchange(op, it);
      else
        post(op, it, op.kept_parts.data());
    } catch (...) {
      detail::dismiss(mine, op);
      throw;
    }
    op.keep = group_;
    return request(op);
  }

  /// The views that all ranks passed, in rank order. They may differ in shape. Allocates the vector.
  template <class T, class Space>
  [[nodiscard]] std::vector<tensor_view<T, Space>> peers(tensor_view<T, Space> view) {
    return collect(collective::peers, dtype_of<std::remove_const_t<T>>, view);
  }
  /// All memory is within reach of all ranks.
  template <element T>
  [[nodiscard]] tensor<T> allocate(shape extents) const {
    return tensor<T>(extents);
  }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] threads_world split(int color, int key) {
    detail::expect_color(who, color);
    return regroup(collective::split, color, key, deadline());
  }
  /// The same ranks again, whose calls are counted and ordered apart from this one's.
  [[nodiscard]] threads_world duplicate() { return duplicate(deadline()); }
  [[nodiscard]] threads_world duplicate(std::chrono::milliseconds deadline) {
    return regroup(collective::duplicate, 0, 0, deadline);
  }

  /// Tells the other ranks that this one ends with an error, which ends their waits.
  void abandon(std::string const& sentence) noexcept {
    try {
      auto const launched_as = group_->members[static_cast<std::size_t>(rank_)];
      group_->crew->fail(launched_as, text(who, ": rank ", launched_as, " ended with an error: ", sentence));
    } catch (...) {  // without memory for a sentence their deadlines end the waits
    }
  }

 private:
  [[nodiscard]] threads_world regroup(collective kind, int color, int key, std::chrono::milliseconds deadline) {
    struct wish {
      int color, key;
    };
    auto const wishes = collect(kind, dtype::i32, wish{color, key});
    std::vector<int> chosen;
    for (int rank = 0; rank < size(); ++rank)
      if (wishes[static_cast<std::size_t>(rank)].color == color) chosen.push_back(rank);
    std::ranges::stable_sort(chosen, {}, [&](int rank) { return wishes[static_cast<std::size_t>(rank)].key; });

    std::shared_ptr<detail::group> made;
    if (chosen.front() == rank_) {
      std::vector<int> members;
      for (int const rank : chosen) members.push_back(group_->members[static_cast<std::size_t>(rank)]);
      made = std::make_shared<detail::group>(group_->crew, std::move(members), deadline);
    }
    auto const groups = collect(kind, dtype::u64, made);
    auto const place = std::ranges::find(chosen, rank_) - chosen.begin();
    return {groups[static_cast<std::size_t>(chosen.front())], static_cast<int>(place)};
  }

  /// Bytes that travel with the announcement, if they are so few.
  [[nodiscard]] bool fits_in_posting(command const& it) const noexcept {
    if (it.elements == nullptr || !it.elements->touchable || it.what.shape != 0) return it.elements == nullptr;
    auto const whole = it.what.kind == collective::scatter ? it.what.count * size() : it.what.count;
    return static_cast<std::size_t>(whole) * it.element_bytes <= detail::posting::value_bytes;
  }

  void prepare(detail::operation& op, command const& it) {
    op.where = group_.get();
    op.what = it.what;
    op.rank = rank_;
    op.elements = it.elements;
    op.element_bytes = it.element_bytes;
    op.divisor = it.divisor;
    op.from_ = it.from;
    op.own = it.to;
    if (group_->crew->failed()) detail::throw_failure(op);
    if (it.elements != nullptr && it.elements->complete != nullptr) it.elements->complete();  // others read it now
  }
  void post(detail::operation& op, command const& it, part const* parts) {
    prepare(op, it);
    op.what.by_value = op.collect == nullptr && fits_in_posting(it);
    op.number = group_->boxes[static_cast<std::size_t>(rank_)].claim([this] { return group_->lowest_unfinished(); });
    auto& posting = group_->at(rank_, op.number);
    posting.what = op.what;
    if (!op.what.by_value) {
      posting.memory = {it.from, it.to, parts};
    } else if (it.what.kind == collective::scatter) {
      if (rank_ == it.what.root)
        std::memcpy(posting.values, it.from, static_cast<std::size_t>(it.what.count * size()) * it.element_bytes);
    } else if (it.what.count > 0) {
      std::memcpy(posting.values, it.from, static_cast<std::size_t>(it.what.count) * it.element_bytes);
    }
    posting.word.store(detail::arrived_word(op.number));
    group_->crew->ring();
  }
  void post_exchange(detail::operation& op, command const& it) {
    prepare(op, it);
    for (auto const& each : it.parts) {
      auto& way = each.sent ? group_->between(rank_, each.peer) : group_->between(each.peer, rank_);
      op.transfers.push_back({each, each.sent ? way.post(each) : way.expect()});
    }
    group_->crew->ring();
  }

  /// What all ranks passed, in rank order.
  template <class X>
  std::vector<X> collect(collective kind, dtype type, X const& mine) {
    std::vector<X> all(static_cast<std::size_t>(size()));
    detail::operation op;
    op.collect = &detail::collect_share<X>;
    post(op, {.what = {kind, type}, .from = &mine, .to = &all}, nullptr);
    detail::wait_for(op);
    return all;
  }

  std::shared_ptr<detail::group> group_;
  int rank_;
};

}  // namespace trireme::comm

// ---- trireme/comm/detail/thread_ranks.hpp (goes on)
namespace trireme::comm::detail {

/// The cores that this thread may use.
[[nodiscard]] inline std::vector<int> usable_cores() {
  std::vector<int> cores;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
#endif
  if (cores.empty()) {
    cores.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

/// Keeps the calling thread on one core. Without effect where that is not allowed: it is an optimisation.
inline void stay_on([[maybe_unused]] int core) noexcept {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
#endif
}

/// The sentence of an exception of any type.
[[nodiscard]] inline std::string sentence_of(std::exception_ptr const& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (std::exception const& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

inline void check(threads const& description) {
  if (description.ranks < 1 || description.ranks > most_ranks)
    throw config_error(text("trireme::comm::threads: .ranks is ", description.ranks, "; choose 1 to ", most_ranks));
  if (description.deadline.count() < 1)
    throw config_error(text("trireme::comm::threads: .deadline is ", to_string(description.deadline),
                            "; give the ranks at least 1ms"));
}

/// Runs `body(rank, world)` in a thread a rank, joins all, and rethrows what first went wrong.
template <class RankBody>
void run_ranks(threads const& description, RankBody const& body) {
  check(description);
  auto const ranks = static_cast<std::size_t>(description.ranks);
  auto const cores = usable_cores();
  bool const core_each = ranks <= cores.size();
  auto const crew = std::make_shared<team>(description.ranks, core_each);
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  auto const members = std::make_shared<group>(crew, std::move(everyone), description.deadline);

  std::vector<std::exception_ptr> failures(ranks + 1);
  auto const run = [&](int rank) noexcept {
    auto& failure = failures[static_cast<std::size_t>(rank)];
    try {
      if (core_each && description.pin) stay_on(cores[static_cast<std::size_t>(rank)]);
      threads_world world(members, rank);
      body(rank, world);
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure != nullptr)
      crew->fail(rank, text("trireme::comm::threads: rank ", rank, " ended with an error: ", sentence_of(failure)));
    crew->ranks[static_cast<std::size_t>(rank)].left.store(true);
    crew->ring();
  };

  std::vector<std::thread> workers;
  workers.reserve(ranks);
  try {
    for (int rank = 0; rank < description.ranks; ++rank) workers.emplace_back(run, rank);
  } catch (...) {
    failures[ranks] = std::current_exception();
    crew->fail(description.ranks, text("trireme::comm::threads: rank ", workers.size(),
                                       " could not be started: ", sentence_of(failures[ranks])));
  }
  for (auto& each : workers) each.join();

  // The first in time; or, where that rank has dealt with it, the first in rank order.
  auto const first = crew->culprit();
  if (first >= 0 && failures[static_cast<std::size_t>(first)] != nullptr)
    std::rethrow_exception(failures[static_cast<std::size_t>(first)]);
  for (auto const& failure : failures)
    if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace trireme::comm::detail

namespace trireme::comm {

/// How trireme::launch runs a body on comm::threads: what rank 0's body returns is returned.
template <class Body>
auto launch_ranks(threads const& description, Body& body) {
  using result = std::decay_t<std::invoke_result_t<Body&, threads_world&>>;
  if constexpr (std::is_void_v<result>) {
    detail::run_ranks(description, [&](int, threads_world& world) { std::invoke(body, world); });
  } else {
    std::optional<result> answer;
    detail::run_ranks(description, [&](int rank, threads_world& world) {
      if (rank == 0)
        answer.emplace(std::invoke(body, world));
      else
        std::invoke(body, world);
    });
    return std::move(*answer);
  }
}

}  // namespace trireme::comm

// ---- trireme/comm/self.hpp
namespace trireme::comm {

/// One rank, alone: every collective is the identity. Serial training is training with this communicator.
struct self {
  using policy_category = slot::communicator;
  friend bool operator==(self const&, self const&) = default;
};

[[nodiscard]] inline std::string to_string(self const&) { return "comm::self{}"; }

/// A collective that was done before it was asked for.
struct self_request {
  self_request() = default;
  self_request(self_request&&) = default;
  self_request& operator=(self_request&&) = default;
  [[nodiscard]] bool test() const noexcept { return true; }
  void wait() const noexcept {}
};

/// The rank of comm::self. May be made anywhere, without launch.
///
/// Bytes   sends none; collectives are counted.
/// Errors  config_error for a root or peer other than 0, a negative color, views that do not fit each other, or an
///         exchange whose sends and receives do not.
class self_world : public collectives<self_world> {
 public:
  using request = self_request;
  static constexpr std::string_view name = "self";

  self_world() = default;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  template <class Space>
  static constexpr bool supports(collective, dtype, reduction_kind) noexcept {
    return requires { &detail::space_kernels<Space>::copy; };
  }
  void run(command const& it) const {
    if (it.elements == nullptr) return;
    if (it.what.kind == collective::exchange)
      match(it);
    else if (it.what.shape == 0)
      it.elements->copy(it.to, it.from, static_cast<std::size_t>(it.what.count) * it.element_bytes);
    else if (!it.parts.empty())
      copy(it, it.parts[0], it.parts[1]);
    if (it.elements->complete != nullptr) it.elements->complete();
  }
  [[nodiscard]] request start(command const& it) const {
    run(it);
    return {};
  }

  [[nodiscard]] self_world split(int color, int /*key*/) const {
    detail::expect_color(who, color);
    return {};
  }
  [[nodiscard]] self_world duplicate() const { return {}; }
  [[nodiscard]] self_world duplicate(std::chrono::milliseconds) const { return {}; }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return std::chrono::seconds(60); }
  template <class T, class Space>
  [[nodiscard]] std::vector<tensor_view<T, Space>> peers(tensor_view<T, Space> view) const {
    return {view};
  }
  template <element T>
  [[nodiscard]] tensor<T> allocate(shape extents) const {
    return tensor<T>(extents);
  }

 private:
  static void copy(command const& it, part const& from, part const& to) {
    if (from.type != to.type || from.count != to.count)
      throw config_error(detail::differing_transfers(who, 0, from, 0, to));
    it.elements->copy(to.address, from.address, static_cast<std::size_t>(to.count) * size_of(to.type));
  }
  /// The k-th send goes to the k-th receive.
  static void match(command const& it) {
    std::vector<part const*> sends, receives;
    for (auto const& each : it.parts) (each.sent ? sends : receives).push_back(&each);
    if (sends.size() != receives.size())
      throw config_error(text(who, "::exchange: a rank alone sends ", sends.size(), " messages to itself but receives ",
                              receives.size(), "; name both ends in one exchange"));
    for (std::size_t k = 0; k < sends.size(); ++k) copy(it, *sends[k], *receives[k]);
  }
};

}  // namespace trireme::comm

// ---- trireme/comm/launch.hpp (goes on)
namespace trireme::comm {

/// How trireme::launch runs a body on comm::self: here and now.
template <class Body>
auto launch_ranks(self const&, Body& body) {
  self_world world;
  return std::invoke(body, world);
}

}  // namespace trireme::comm

namespace trireme {

/// The description of a communicator: something with a `launch_ranks(description, body)` beside it.
template <class Description, class Body>
concept launchable = requires(Description const& description, Body& body) {
  launch_ranks(description, body);
};

/// Runs `body(world)` on every rank that `description` asks for.
///
/// Ranks    comm::self runs it here; comm::threads in a thread a rank, at the same time and on one copy of the body;
///          comm::mpi here, in each process that mpirun has started. `world` lives as long as the call.
/// Threads  returns when the body has returned everywhere in this process.
/// Errors   an exception on one rank ends the waits of the others with a comm_error that names it; once all have ended,
///          the first one is thrown again here. config_error if the description makes no sense.
///
/// @returns what the body returns on the first rank of this process.
/// @example trireme::launch(comm::threads{.ranks = 2}, [](auto& world) { world.barrier(); });
template <class Description, class Body>
decltype(auto) launch(Description const& description, Body&& body) {
  static_assert(
      launchable<Description, Body>,
      "trireme::launch: needs a communicator's description, comm::self{}, comm::threads{...} or comm::mpi{...} "
      "(trireme/comm/mpi.hpp), and then a body that takes a world.");
  if constexpr (launchable<Description, Body>) return launch_ranks(description, body);
}

}  // namespace trireme

// ---- trireme/contract/environment.hpp
namespace trireme {

// What a precision policy names, requirement by requirement.
template <class P>
concept has_param_type = requires {
  typename P::param;
};
template <class P>
concept has_compute_type = requires {
  typename P::compute;
};
template <class P>
concept has_accumulate_type = requires {
  typename P::accumulate;
};
template <class P>
concept has_reduce_type = requires {
  typename P::reduce;
};
template <class P>
concept has_master_type = requires {
  typename P::master;
};
template <class P>
concept has_tolerance = requires {
  { P::tolerance } -> std::convertible_to<double>;
};

/// Which numbers a run uses.
///
/// Requires  types `param` (the working copy that layers read), `compute` (activations), `accumulate` (sums inside
///           kernels, and gradients), `reduce` (gradients on the wire), `master` (what the optimizer keeps), and a
///           static `tolerance`: how far a distributed run may be from a serial one, relative.
template <class P>
concept precision_policy = has_param_type<P> && has_compute_type<P> && has_accumulate_type<P> && has_reduce_type<P> &&
    has_master_type<P> && has_tolerance<P>;

/// Precision and memory space: all that ever reaches a layer's type.
template <precision_policy Precision, class Space = host>
struct environment {
  using precision = Precision;
  using space = Space;
  using param = typename Precision::param;
  using compute = typename Precision::compute;
  using accumulate = typename Precision::accumulate;
  using gradient = typename Precision::accumulate;
  using reduce = typename Precision::reduce;
  using master = typename Precision::master;
};

}  // namespace trireme

// ---- trireme/contract/compressor.hpp (goes on)
namespace trireme {

/// The run state of a compressor for one bucket of `elements` gradients.
template <class C, class Env>
using compressor_state = typename C::template instance<Env>;

template <class C, class Env>
concept has_compressor_state = requires {
  typename C::template instance<Env>;
  requires std::constructible_from<typename C::template instance<Env>, C const&, std::int64_t>;
};

/// A payload that a sum may be formed of: encode, reduce the payload, decode the sum.
///
/// `wire` is the element type of the payload; encode(gradient, payload, first) and decode(payload, gradient) work on
/// equal numbers of elements. `first` says where in the bucket the piece begins (error feedback needs it).
template <class C, class Env>
concept summable_compressor = has_compressor_state<C, Env> && requires {
  typename compressor_state<C, Env>::wire;
} && requires(compressor_state<C, Env>& state, tensor_view<typename Env::gradient, typename Env::space> gradient,
              tensor_view<typename compressor_state<C, Env>::wire, typename Env::space> payload, std::int64_t first) {
  state.encode(gradient, payload, first);
  state.decode(payload, gradient);
};

/// A payload that can only be collected: every rank's payload is decoded and added, in rank order.
///
/// payload_bytes(n) is the fixed size for a piece of n elements; decode(payload, gradient, add) writes or adds.
template <class C, class Env>
concept gatherable_compressor = has_compressor_state<C, Env> && !requires {
  typename compressor_state<C, Env>::wire;
}
&&requires(compressor_state<C, Env>& state, tensor_view<typename Env::gradient, typename Env::space> gradient,
           tensor_view<std::byte, typename Env::space> payload, std::int64_t n, bool add) {
  { state.payload_bytes(n) } -> std::convertible_to<std::int64_t>;
  state.encode(gradient, payload, n);
  state.decode(payload, gradient, add);
};

/// Gradient -> payload -> gradient. Which of the two kinds it is decides the exchange.
template <class C, class Env>
concept compressor = summable_compressor<C, Env> || gatherable_compressor<C, Env>;

/// A compressor that changes nothing; the exchange then skips encode and decode.
template <class C>
concept lossless_identity = requires {
  requires C::identity;
};

/// A compressor that keeps what it left out (error feedback): run state that checkpoints save. encode() only prepares
/// it; commit() makes it the state once every rank has found the step's gradients finite.
template <class S>
concept has_residual = requires(S& state) {
  state.residual();
  state.commit();
};

}  // namespace trireme

// ---- trireme/core/type_name.hpp
namespace trireme {

/// The name of a type as the compiler prints it, for messages.
template <class T>
[[nodiscard]] constexpr std::string_view type_name() noexcept {
  std::string_view const full = __PRETTY_FUNCTION__;  // "... [with T = x; ...]" or "... [T = x]"
  auto const first = full.find("T = ") + 4;
  return full.substr(first, full.find_first_of(";]", first) - first);
}

/// What a description says of itself: its to_string, else the name of its type.
template <class T>
[[nodiscard]] std::string describe(T const& description) {
  if constexpr (requires { to_string(description); }) {
    return to_string(description);
  } else {
    return std::string(type_name<T>());
  }
}

}  // namespace trireme

// ---- trireme/compression/cast.hpp (goes on)
namespace trireme::compression {

/// Gradients travel as Wire (bf16, say): half the bytes of float.
///
/// Bytes    sizeof(Wire) an element, on every hop.
/// Numerics each rank's gradient is rounded to Wire, the sum is formed in rank order in float and rounded once more.
/// @models summable_compressor
template <element Wire>
struct cast {
  using policy_category = slot::compression;
  friend bool operator==(cast const&, cast const&) = default;

  template <class Env>
  class instance {
   public:
    using wire = Wire;
    instance(cast const&, std::int64_t) {}
    template <class Gradient, class Payload>
    void encode(Gradient gradient, Payload payload, std::int64_t) {
      ops::on<typename Env::space>::copy(payload, gradient);
    }
    template <class Payload, class Gradient>
    void decode(Payload payload, Gradient gradient) {
      ops::on<typename Env::space>::copy(gradient, payload);
    }
  };
};

template <element Wire>
[[nodiscard]] std::string to_string(cast<Wire> const&) {
  return text("compression::cast<",
              std::is_same_v<Wire, bfloat16>  ? "bf16"
              : std::is_same_v<Wire, float16> ? "f16"
                                              : type_name<Wire>(),
              ">{}");
}

}  // namespace trireme::compression

// ---- trireme/compression/error_feedback.hpp
namespace trireme::compression {

namespace detail {

// The wire type of the inner compressor, where it has one: its absence says "gatherable".
template <class State>
struct same_wire {};
template <class State>
requires requires { typename State::wire; }
struct same_wire<State> {
  using wire = typename State::wire;
};

}  // namespace detail

/// What a lossy compressor left out of this step's gradient is added to the next step's.
///
/// Method   [Karimireddy et al., "Error feedback fixes SignSGD", 2019]; any contraction converges with it.
/// Bytes    as Inner on the wire; one gradient-sized residual a rank in memory, saved in checkpoints.
/// Ranks    the residual belongs to the rank: it is what *this* rank has not told the others yet.
/// @models summable_compressor where Inner does, gatherable_compressor where Inner does.
template <class Inner>
struct error_feedback {
  using policy_category = slot::compression;
  Inner inner{};
  friend bool operator==(error_feedback const&, error_feedback const&) = default;

  template <class Env>
  class instance : public detail::same_wire<typename Inner::template instance<Env>> {
    using inner_state = typename Inner::template instance<Env>;
    using space = typename Env::space;
    using gradient = typename Env::gradient;
    static constexpr bool summable = requires { typename inner_state::wire; };

   public:
    instance(error_feedback const& description, std::int64_t elements)
        : inner_(description.inner, elements), residual_(shape{elements}), next_(shape{elements}) {
      ops::on<space>::fill(residual_.view(), 0.0);
    }
    /// What this rank has not told the others yet: one number for each element of the bucket.
    [[nodiscard]] tensor_view<gradient, space> residual() const { return residual_.view(); }

    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const requires(!summable) {
      return inner_.payload_bytes(n);
    }
    template <class Payload>
    void encode(tensor_view<gradient, space> piece, Payload payload, std::int64_t first) {
      auto const left = residual_.view().flat(first, piece.size());
      auto const next = next_.view().flat(first, piece.size());
      ops::on<space>::add(piece, left);
      inner_.encode(piece, payload, first);
      if constexpr (summable) {
        inner_.decode(payload, next);
      } else {
        inner_.decode(payload, next, false);
      }
      ops::on<space>::scale(next, -1.0);
      ops::on<space>::add(next, piece);  // what was not told
    }
    /// The step was taken: what it left out is the residual now. Without this call the step never was.
    void commit() noexcept { std::swap(residual_, next_); }
    template <class Payload, class... Add>
    void decode(Payload payload, tensor_view<gradient, space> piece, Add... add) {
      inner_.decode(payload, piece, add...);
    }

   private:
    inner_state inner_;
    tensor<gradient, space> residual_;
    tensor<gradient, space> next_;  // the residual if the step is taken
  };
};

template <class Inner>
[[nodiscard]] std::string to_string(error_feedback<Inner> const& c) {
  auto const inner = describe(c.inner);  // "compression::top_k{.ratio = 0.01f}"
  return text("compression::error_feedback<", inner.substr(0, inner.find('{')), ">{.inner = ", inner, "}");
}

}  // namespace trireme::compression

// ---- trireme/compression/none.hpp
namespace trireme::compression {

/// Gradients travel as they are: the default.
struct none {
  using policy_category = slot::compression;
  static constexpr bool identity = true;
  friend bool operator==(none const&, none const&) = default;

  template <class Env>
  class instance {
   public:
    using wire = typename Env::reduce;
    instance(none const&, std::int64_t) {}
    template <class Gradient, class Payload>
    void encode(Gradient gradient, Payload payload, std::int64_t) {
      ops::on<typename Env::space>::copy(payload, gradient);
    }
    template <class Payload, class Gradient>
    void decode(Payload payload, Gradient gradient) {
      ops::on<typename Env::space>::copy(gradient, payload);
    }
  };
};

[[nodiscard]] inline std::string to_string(none const&) { return "compression::none{}"; }

}  // namespace trireme::compression

// ---- trireme/compression/top_k.hpp
namespace trireme::compression {

/// Only the largest elements of each piece travel, as (index, value) pairs. Wrap it in error_feedback, or what stays
/// behind is lost.
///
/// Shapes   a piece of n gradients keeps k = ceil(ratio * n), at least 1.
/// Bytes    k * (4 + sizeof(gradient)) a piece and rank.
/// Ranks    payloads are decoded and added in rank order; equal bits everywhere.
/// Numerics lossy and biased; top_k{.ratio = 1} equals none bit for bit (a test).
/// Errors   config_error unless 0 < ratio <= 1.
/// @models gatherable_compressor          @see compression::error_feedback
struct top_k {
  using policy_category = slot::compression;
  float ratio = 0.01F;
  friend bool operator==(top_k const&, top_k const&) = default;

  template <class Env>
  class instance {
   public:
    using space = typename Env::space;
    using gradient = typename Env::gradient;

    instance(top_k const& description, std::int64_t) : ratio_(description.ratio) {
      if (!(ratio_ > 0 && ratio_ <= 1)) {
        throw config_error(text("trireme::compression::top_k: ratio ", ratio_, " is not in (0, 1]"));
      }
    }
    [[nodiscard]] std::int64_t payload_bytes(std::int64_t n) const {
      auto const k = kept(n);
      return round_up(values_offset(k) + k * static_cast<std::int64_t>(sizeof(gradient)));
    }
    void encode(tensor_view<gradient, space> piece, tensor_view<std::byte, space> payload, std::int64_t) {
      auto const k = kept(piece.size());
      ops::on<space>::select_largest(piece, indices(payload, k), values(payload, k));
    }
    void decode(tensor_view<std::byte, space> payload, tensor_view<gradient, space> piece, bool add) {
      auto const k = kept(piece.size());
      if (!add) ops::on<space>::fill(piece, 0.0);
      ops::on<space>::scatter(piece, indices(payload, k), values(payload, k), add);
    }

   private:
    [[nodiscard]] std::int64_t kept(std::int64_t n) const {
      auto const wanted = static_cast<std::int64_t>(std::ceil(static_cast<double>(ratio_) * static_cast<double>(n)));
      return std::clamp<std::int64_t>(wanted, std::min<std::int64_t>(n, 1), n);
    }
    // Values start, and the next payload starts, on a multiple of 8 bytes, whatever k is.
    static std::int64_t round_up(std::int64_t bytes) { return (bytes + 7) / 8 * 8; }
    static std::int64_t values_offset(std::int64_t k) { return round_up(k * 4); }
    static tensor_view<std::int32_t, space> indices(tensor_view<std::byte, space> payload, std::int64_t k) {
      return {reinterpret_cast<std::int32_t*>(payload.address()), shape{k}};
    }
    static tensor_view<gradient, space> values(tensor_view<std::byte, space> payload, std::int64_t k) {
      return {reinterpret_cast<gradient*>(payload.address() + values_offset(k)), shape{k}};
    }
    float ratio_;
  };
};

[[nodiscard]] inline std::string to_string(top_k const& c) {
  return text("compression::top_k{.ratio = ", c.ratio, "f}");
}

}  // namespace trireme::compression

// ---- trireme/data/data.hpp
// The room: where samples come from, in which order, and in which batches.

// ---- trireme/contract/dataset.hpp
namespace trireme {

/// A tensor_view whose element type is known at run time only: what a dataset hands to a model.
///
/// Errors  as<T>() throws config_error if the elements are of another type; an empty view is every type's.
template <class Space = host>
struct any_view {
  void const* address = nullptr;
  dtype type = dtype::f32;
  shape extents;

  template <element T>
  [[nodiscard]] tensor_view<T const, Space> as() const {
    if (type != dtype_of<T>) {
      if (empty()) return {};
      throw config_error(text("trireme::any_view: the elements are ", name_of(type), ", but ", name_of(dtype_of<T>),
                              " was asked for: check that the dataset has the types that the model takes"));
    }
    return {static_cast<T const*>(address), extents};
  }

  [[nodiscard]] std::int64_t size() const noexcept { return address == nullptr ? 0 : extents.size(); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(size()) * size_of(type); }

  /// Rows [first, first + count) along the outermost axis.
  [[nodiscard]] any_view rows(std::int64_t first, std::int64_t count) const {
    shape part{count};
    for (int axis = 1; axis < extents.rank(); ++axis) part.push_back(extents[axis]);
    auto const row = extents[0] == 0 ? 0 : extents.size() / extents[0] * static_cast<std::int64_t>(size_of(type));
    return {static_cast<std::byte const*>(address) + first * row, type, part};
  }
};

/// A typed view with its type put away.
template <class T, class Space>
[[nodiscard]] any_view<Space> erase_type(tensor_view<T, Space> view) noexcept {
  return {view.address(), dtype_of<std::remove_const_t<T>>, view.extents()};
}

/// Some samples: their inputs, their targets, and their numbers. Owns nothing.
///
/// Shapes  inputs (n, ...), targets (n, ...): the outermost axis is the sample; ids (n), or empty where nothing
///         depends on them. An id is the number of the sample in the whole dataset, the same on every rank: it is
///         what random numbers (dropout) are drawn for, so that they do not depend on who computes the sample.
template <class Space = host>
struct samples_in {
  any_view<Space> inputs;
  any_view<Space> targets;
  std::span<std::int64_t const> ids;

  [[nodiscard]] std::int64_t count() const noexcept { return inputs.extents.rank() == 0 ? 0 : inputs.extents[0]; }
  /// Samples [first, first + n).
  [[nodiscard]] samples_in part(std::int64_t first, std::int64_t n) const {
    return {inputs.rows(first, n), targets.extents.rank() == 0 ? targets : targets.rows(first, n),
            ids.empty() ? ids : ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n))};
  }
};

using samples = samples_in<host>;

/// Samples from one's own arrays, e.g. the fields of a running solver.
///
/// Shapes  features (n, ...), targets (n, ...) or empty (to predict), ids (n) or empty.
/// Errors  throws config_error if the numbers of samples differ.
template <class X, class Y, class Space>
[[nodiscard]] samples_in<Space> make_samples(tensor_view<X, Space> features, tensor_view<Y, Space> targets,
                                             std::span<std::int64_t const> ids = {}) {
  if (features.rank() == 0) throw config_error("trireme::make_samples: the features have no axis of samples");
  auto const count = features.extent(0);
  auto const wrong = [count](char const* what, std::int64_t found) {
    return config_error(text("trireme::make_samples: there are ", count, " rows of features but ", found, what));
  };
  if (!targets.empty() && targets.extent(0) != count) throw wrong(" rows of targets", targets.extent(0));
  if (!ids.empty() && static_cast<std::int64_t>(ids.size()) != count) {
    throw wrong(" sample numbers", static_cast<std::int64_t>(ids.size()));
  }
  return {erase_type(features), erase_type(targets), ids};
}

// The parts of a dataset. Each requirement is a concept of its own, so that a compiler can name the missing one.
template <class D>
concept has_sample_count = requires(D const& data) {
  { data.size() } -> std::same_as<std::int64_t>;
};
template <class D>
concept has_sample_types = requires(D const& data) {
  { data.input_type() } -> std::same_as<dtype>;
  { data.target_type() } -> std::same_as<dtype>;
};
template <class D>
concept has_sample_shapes = requires(D const& data) {
  { data.input_shape() } -> std::convertible_to<shape>;
  { data.target_shape() } -> std::convertible_to<shape>;
};
template <class D>
concept has_sample_read = requires(D const& data, std::span<std::int64_t const> ids, void* inputs, void* targets) {
  { data.read(ids, inputs, targets) } -> std::same_as<void>;
};

/// A numbered collection of samples, all of one shape.
///
/// Requires  size(): the number of samples, int64; input_type(), target_type(): their element types; input_shape(),
///           target_shape(): the shape of one sample; read(ids, inputs, targets) const: writes samples ids[0],
///           ids[1], ... one after another, dense and row-major, to two buffers of the caller.
/// Threads   read() is called from several threads at once.
/// Not asked copying, an order, randomness: which sample comes when is the sampler's business.
/// Models    data::function, data::in_memory, data::token_windows, data::held_out_windows.
template <class D>
concept dataset = has_sample_count<D> && has_sample_types<D> && has_sample_shapes<D> && has_sample_read<D>;

}  // namespace trireme

// ---- trireme/data/any_dataset.hpp (goes on)
namespace trireme::data {

/// Any dataset behind one type, for code that must not be a template of it.
///
/// Bytes   three pointers; borrows the dataset, which must outlive it. One indirect call a batch.
/// @models trireme::dataset
class any_dataset {
 public:
  template <dataset Dataset>
  requires(!std::same_as<Dataset, any_dataset>)
      any_dataset(Dataset const& data)  // NOLINT(google-explicit-constructor): a dataset is any dataset
      : data_(&data), table_(&table_of<Dataset>) {}

  [[nodiscard]] std::int64_t size() const { return table_->size(data_); }
  [[nodiscard]] dtype input_type() const { return table_->input_type(data_); }
  [[nodiscard]] dtype target_type() const { return table_->target_type(data_); }
  [[nodiscard]] shape input_shape() const { return table_->input_shape(data_); }
  [[nodiscard]] shape target_shape() const { return table_->target_shape(data_); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    table_->read(data_, ids, inputs, targets);
  }

 private:
  struct table {
    std::int64_t (*size)(void const*);
    dtype (*input_type)(void const*);
    dtype (*target_type)(void const*);
    shape (*input_shape)(void const*);
    shape (*target_shape)(void const*);
    void (*read)(void const*, std::span<std::int64_t const>, void*, void*);
  };
  template <class Dataset>
  static Dataset const& as(void const* data) {
    return *static_cast<Dataset const*>(data);
  }
  template <class Dataset>
  static constexpr table table_of{[](void const* data) { return as<Dataset>(data).size(); },
                                  [](void const* data) { return as<Dataset>(data).input_type(); },
                                  [](void const* data) { return as<Dataset>(data).target_type(); },
                                  [](void const* data) -> shape { return as<Dataset>(data).input_shape(); },
                                  [](void const* data) -> shape { return as<Dataset>(data).target_shape(); },
                                  [](void const* data, std::span<std::int64_t const> ids, void* inputs, void* targets) {
                                    as<Dataset>(data).read(ids, inputs, targets);
                                  }};

  void const* data_;
  table const* table_;
};

}  // namespace trireme::data

// ---- trireme/data/batch.hpp
namespace trireme::data {

/// A range [first, last) of whole numbers.
struct range {
  std::int64_t first = 0;
  std::int64_t last = 0;
  [[nodiscard]] constexpr std::int64_t count() const noexcept { return last - first; }
  friend constexpr bool operator==(range const&, range const&) = default;
};

/// Share `index` of `count` things cut into `shares` as evenly as possible: [index*count/shares,
/// (index+1)*count/shares).
[[nodiscard]] constexpr range share(std::int64_t count, std::int64_t shares, std::int64_t index) noexcept {
  return {index * count / shares, (index + 1) * count / shares};
}

/// A place in the endless sequence of samples: how many of an epoch have been used. Two numbers, saved in a checkpoint;
/// they say nothing of ranks or batches, so another world size goes on from them.
struct loader_position {
  std::uint64_t epoch = 0;
  std::int64_t position = 0;
  friend bool operator==(loader_position const&, loader_position const&) = default;
};

/// "trireme::data::loader_position{.epoch = 1, .position = 64}"
[[nodiscard]] inline std::string to_string(loader_position const& at) {
  return text("trireme::data::loader_position{.epoch = ", at.epoch, ", .position = ", at.position, "}");
}

/// One rank's part of one batch. Owned by the loader.
///
/// A batch of n samples is cut into M logical micro-batches, part m = share(n, M, m); rank r runs the parts
/// share(M, ranks, r). What a part holds does not depend on the number of ranks, so sums over parts can be formed in
/// one order on any number of ranks.
struct batch {
  std::span<trireme::samples const> micro_batches;  ///< this rank's parts that are not empty; maybe none
  std::span<std::int64_t const> parts;              ///< the logical number m of each of them, ascending
  std::int64_t samples = 0;                         ///< of the whole batch, over all ranks
  std::uint64_t epoch = 0;
  std::int64_t position = 0;  ///< of the first sample of the whole batch in its epoch
};

namespace detail {

/// The memory of one rank's part of a batch, made once for the largest batch.
class batch_buffer {
 public:
  template <dataset Dataset>
  batch_buffer(Dataset const& data, std::int64_t samples, std::int64_t parts)
      : inputs_({samples * bytes_of(data.input_type(), data.input_shape())}),
        targets_({samples * bytes_of(data.target_type(), data.target_shape())}),
        ids_(static_cast<std::size_t>(samples)) {
    views_.reserve(static_cast<std::size_t>(parts));
    parts_.reserve(static_cast<std::size_t>(parts));
  }

  [[nodiscard]] std::span<std::int64_t> ids(std::int64_t count) {
    return std::span(ids_).first(static_cast<std::size_t>(count));
  }

  /// Reads the samples whose numbers are in ids(count), as one whole.
  template <dataset Dataset>
  [[nodiscard]] samples read(Dataset const& data, std::int64_t count) {
    if (count > 0) data.read(ids(count), inputs_.span().data(), targets_.span().data());
    return {{inputs_.span().data(), data.input_type(), batched(count, data.input_shape())},
            {targets_.span().data(), data.target_type(), batched(count, data.target_shape())},
            ids(count)};
  }

  void clear() noexcept {
    views_.clear();
    parts_.clear();
  }
  void add_part(std::int64_t number, samples const& part) {
    parts_.push_back(number);
    views_.push_back(part);
  }
  [[nodiscard]] std::span<samples const> views() const noexcept { return views_; }
  [[nodiscard]] std::span<std::int64_t const> parts() const noexcept { return parts_; }

 private:
  static std::int64_t bytes_of(dtype type, shape const& one) {
    return one.size() * static_cast<std::int64_t>(size_of(type));
  }
  static shape batched(std::int64_t count, shape const& one) {
    shape whole{count};
    for (auto const extent : one.extents()) whole.push_back(extent);
    return whole;
  }

  tensor<std::byte> inputs_;
  tensor<std::byte> targets_;
  std::vector<std::int64_t> ids_;
  std::vector<samples> views_;
  std::vector<std::int64_t> parts_;
};

}  // namespace detail

}  // namespace trireme::data

// ---- trireme/data/evaluation.hpp
#include <iterator>

namespace trireme::data {

/// All samples once, in order, in batches, as a range to loop over: `for (auto const& part : evaluation_batches(...))`.
///
/// Whole batches are split over the ranks, contiguously: what a batch holds does not depend on the number of ranks.
/// A rank may get none. Only the last batch of all may be short.
///
/// Ranks   no communication.
/// Bytes   one buffer of `batch` samples, made at construction; an element is valid until the iterator advances.
/// Threads one caller; reading happens in it, when the iterator advances.
/// Errors  throws config_error if `batch` < 1, if there are no samples, or if there is no such rank; passes on what
///         Dataset::read() throws.
///
/// @param data  borrowed: must outlive the range.
template <dataset Dataset>
class evaluation_batches {
 public:
  evaluation_batches(Dataset const& data, std::int64_t batch, int rank = 0, int size = 1)
      : data_(&data), batch_(checked(data, batch, rank, size)), buffer_(data, batch_, 0) {
    mine_ = share((data.size() + batch_ - 1) / batch_, size, rank);
  }
  evaluation_batches(Dataset const&& data, std::int64_t batch, int rank = 0, int size = 1) = delete;  // would dangle

  /// A single-pass iterator; two of one range share its buffer.
  class iterator {
   public:
    using value_type = samples;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    [[nodiscard]] samples const& operator*() const noexcept { return owner_->current_; }
    iterator& operator++() {
      owner_->read(++index_);
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(iterator const& at, std::default_sentinel_t) noexcept { return at.finished(); }

   private:
    friend evaluation_batches;
    iterator(evaluation_batches* owner, std::int64_t index) : owner_(owner), index_(index) { owner_->read(index_); }
    [[nodiscard]] bool finished() const noexcept { return index_ >= owner_->mine_.last; }
    evaluation_batches* owner_;
    std::int64_t index_;
  };

  [[nodiscard]] iterator begin() { return {this, mine_.first}; }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }
  /// The batches of this rank, as numbers of all batches.
  [[nodiscard]] range batches() const noexcept { return mine_; }

 private:
  static std::int64_t checked(Dataset const& data, std::int64_t batch, int rank, int size) {
    auto const refuse = [](auto const&... parts) {
      return config_error(text("trireme::data::evaluation_batches: ", parts...));
    };
    if (data.size() < 1) throw refuse("the dataset has no samples");
    if (batch < 1) throw refuse("a batch of ", batch, " samples: at least one is needed");
    if (size < 1 || rank < 0 || rank >= size) throw refuse("there is no rank ", rank, " of ", size);
    return std::min(batch, data.size());
  }

  void read(std::int64_t index) {
    if (index >= mine_.last) return;
    auto const first = index * batch_;
    auto const count = std::min(batch_, data_->size() - first);
    auto const ids = buffer_.ids(count);
    for (std::int64_t i = 0; i < count; ++i) ids[static_cast<std::size_t>(i)] = first + i;
    current_ = buffer_.read(*data_, count);
  }

  Dataset const* data_;
  std::int64_t batch_;
  detail::batch_buffer buffer_;
  range mine_;
  samples current_;
};

}  // namespace trireme::data

// ---- trireme/data/function.hpp
namespace trireme::data {

/// How many samples of a function, where, and which.
struct function_options {
  std::int64_t samples = 4096;
  float low = -3.14F;
  float high = 3.14F;
  std::uint64_t seed = 0;
  friend bool operator==(function_options const&, function_options const&) = default;
};

/// "trireme::data::function_options{.samples = 4096, ...}"
[[nodiscard]] inline std::string to_string(function_options const& options) {
  return text("trireme::data::function_options{.samples = ", options.samples, ", .low = ", options.low,
              "F, .high = ", options.high, "F, .seed = ", options.seed, "}");
}

/// Samples (x, f(x)) of a function float -> float, with x uniform in [low, high).
///
/// Shapes   inputs (n, 1) float, targets (n, 1) float.
/// Numerics input i depends on (seed, i) alone, so the data set is the same on every rank without being stored.
/// Threads  read() calls f from several threads at once.
/// Errors   throws config_error if there are no samples or if low < high does not hold for finite bounds.
/// @models  trireme::dataset
template <class Function>
requires std::invocable<Function const&, float> && std::convertible_to < std::invoke_result_t<Function const&, float>,
float > class function {
 public:
  explicit function(Function f, function_options options = {}) : f_(std::move(f)), options_(options) {
    if (options.samples < 1) {
      throw config_error(text("trireme::data::function: .samples = ", options.samples, ", but at least one is needed"));
    }
    if (!std::isfinite(options.low) || !std::isfinite(options.high) || !(options.low < options.high)) {
      throw config_error(text("trireme::data::function: inputs cannot be drawn from [", options.low, ", ", options.high,
                              "): .low must be less than .high, and both finite"));
    }
  }

  [[nodiscard]] function_options const& options() const noexcept { return options_; }
  [[nodiscard]] std::int64_t size() const noexcept { return options_.samples; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::f32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::f32; }
  [[nodiscard]] shape input_shape() const { return {1}; }
  [[nodiscard]] shape target_shape() const { return {1}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* const x = static_cast<float*>(inputs);
    auto* const y = static_cast<float*>(targets);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      x[row] = input(ids[row]);
      y[row] = static_cast<float>(f_(x[row]));
    }
  }

  /// The input of sample `id`.
  [[nodiscard]] float input(std::int64_t id) const noexcept {
    auto const unit = unit_float(random_block({options_.seed, 0}, site, static_cast<std::uint64_t>(id), 0)[0]);
    // An explicit fma: whether a compiler fuses a product and a sum by itself depends on its flags. Rounding to float
    // may reach `high` itself; the largest number below it is taken then.
    auto const x = std::fma(double{options_.high} - double{options_.low}, double{unit}, double{options_.low});
    auto const rounded = static_cast<float>(x);
    return rounded < options_.high ? rounded : std::nextafter(options_.high, options_.low);
  }

 private:
  static constexpr std::uint32_t site = 0x66756e63U;  // "func"
  Function f_;
  function_options options_;
};

}  // namespace trireme::data

// ---- trireme/data/in_memory.hpp
namespace trireme::data {

/// How many columns a row of a flat vector has.
struct columns {
  std::int64_t inputs = 1;
  std::int64_t targets = 1;
  friend bool operator==(columns const&, columns const&) = default;
};

/// Samples that lie in memory as two arrays: row s of each is sample s.
///
/// Shapes  features (n, ...), targets (n, ...), any element types; the shape of one sample is what follows n, so
///         features (n, 3) give inputs (3), and targets (n) give a number.
/// Threads read() copies rows and changes nothing.
/// Errors  throws config_error if there are no rows, if the numbers of rows differ, or if a vector does not divide
///         into rows.
/// @models trireme::dataset
template <arithmetic_element X, arithmetic_element Y>
class in_memory {
 public:
  /// Takes the arrays over.
  in_memory(tensor<X> features, tensor<Y> targets) : features_(std::move(features)), targets_(std::move(targets)) {
    check_rows(features_.extents(), "features");
    check_rows(targets_.extents(), "targets");
    if (features_.extents()[0] != targets_.extents()[0]) {
      throw config_error(text("trireme::data::in_memory: features ", to_string(features_.extents()), " and targets ",
                              to_string(targets_.extents()), " differ in their number of rows"));
    }
  }
  /// Copies the arrays.
  template <class U, class W>
  in_memory(tensor_view<U, host> features, tensor_view<W, host> targets)
      : in_memory(copy<X>(features.span(), features.extents()), copy<Y>(targets.span(), targets.extents())) {}
  /// Copies the vectors, cut into rows.
  in_memory(std::vector<X> const& features, std::vector<Y> const& targets, columns width = {})
      : in_memory(copy<X>(features, rows_of(features.size(), width.inputs, "features")),
                  copy<Y>(targets, rows_of(targets.size(), width.targets, "targets"))) {}

  [[nodiscard]] std::int64_t size() const noexcept { return features_.extents()[0]; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype_of<X>; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype_of<Y>; }
  [[nodiscard]] shape input_shape() const { return row_shape(features_.extents()); }
  [[nodiscard]] shape target_shape() const { return row_shape(targets_.extents()); }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    gather(features_, ids, inputs);
    gather(targets_, ids, targets);
  }

 private:
  static void check_rows(shape const& extents, char const* what) {
    if (extents.rank() == 0 || extents.size() == 0) {
      throw config_error(text("trireme::data::in_memory: the ", what, " have shape ", to_string(extents),
                              ", but at least one row and one column are needed"));
    }
  }
  static shape rows_of(std::size_t size, std::int64_t width, char const* what) {
    auto const count = static_cast<std::int64_t>(size);
    if (width < 1 || count % width != 0) {
      throw config_error(
          text("trireme::data::in_memory: ", count, " numbers of ", what, " do not divide into rows of ", width));
    }
    return {count / width, width};
  }
  template <class T>
  static tensor<T> copy(std::span<T const> from, shape extents) {
    if (from.empty()) return {};
    tensor<T> to(extents);
    std::copy(from.begin(), from.end(), to.span().begin());
    return to;
  }
  static shape row_shape(shape const& extents) { return shape(extents.extents().subspan(1)); }
  template <class T>
  static void gather(tensor<T> const& from, std::span<std::int64_t const> ids, void* to) {
    auto const row = static_cast<std::size_t>(from.size() / from.extents()[0]);
    auto* out = static_cast<T*>(to);
    for (auto const id : ids) {
      std::memcpy(out, from.span().data() + static_cast<std::size_t>(id) * row, row * sizeof(T));
      out += row;
    }
  }

  tensor<X> features_;
  tensor<Y> targets_;
};

template <class U, class W>
in_memory(tensor_view<U, host>, tensor_view<W, host>) -> in_memory<std::remove_const_t<U>, std::remove_const_t<W>>;

}  // namespace trireme::data

// ---- trireme/data/loader.hpp
#include <condition_variable>

// ---- trireme/data/sampler.hpp
namespace trireme::data {

/// The order in which samples are visited: another permutation in each epoch, as a function without memory.
///
/// Why: the order is f(seed, epoch, position) and nothing else, so a run that was killed goes on with the very next
/// sample, on any number of ranks, from two saved numbers; and no list of indices has to be shuffled or stored.
/// Method: a Feistel network on pairs (left, right) of a grid barely larger than the number of samples, with Philox
/// as the round function; positions that land outside walk on until they land inside [Black, Rogaway, 2002].
///
/// Numerics every id of [0, samples) comes exactly once an epoch (tested exhaustively).
/// Threads  const and stateless: any number of callers.
/// Errors   validate() throws config_error if there are no samples; id() expects 0 <= position < samples.
struct sampler {
  std::int64_t samples = 0;
  std::uint64_t seed = 0;

  void validate() const {
    if (samples < 1) throw config_error(text("trireme::data::sampler: ", samples, " samples give no order"));
  }

  /// The number of the sample at `position` of epoch `epoch`. About 0.1 us.
  [[nodiscard]] std::int64_t id(std::uint64_t epoch, std::int64_t position) const noexcept {
    auto const count = static_cast<std::uint64_t>(samples);
    auto const columns = width(count);
    auto const rows = (count + columns - 1) / columns;
    auto at = static_cast<std::uint64_t>(position);
    do {
      auto left = at / columns;
      auto right = at % columns;
      for (std::uint32_t round = 0; round < rounds; round += 2) {
        left = (left + word(epoch, round, right)) % rows;
        right = (right + word(epoch, round + 1, left)) % columns;
      }
      at = left * columns + right;
    } while (at >= count);
    return static_cast<std::int64_t>(at);
  }

  friend bool operator==(sampler const&, sampler const&) = default;

 private:
  static constexpr std::uint32_t rounds = 6;
  static constexpr std::uint32_t site = 0x73616d70U;  // "samp": tells these numbers from other uses of the seed

  // The smallest width whose square holds `count`: the grid then has fewer than `width` cells too many.
  static std::uint64_t width(std::uint64_t count) noexcept {
    auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(count)));
    while (root * root < count) ++root;
    while (root > 1 && (root - 1) * (root - 1) >= count) --root;
    return root;
  }
  [[nodiscard]] std::uint64_t word(std::uint64_t epoch, std::uint32_t round, std::uint64_t half) const noexcept {
    auto const block = random_block({seed, epoch}, site, half, round);
    return (std::uint64_t{block[1]} << 32 | block[0]) >> 1;  // one bit less, so that adding a half cannot overflow
  }
};

/// "trireme::data::sampler{.samples = 10, .seed = 0}"
[[nodiscard]] inline std::string to_string(sampler const& order) {
  return text("trireme::data::sampler{.samples = ", order.samples, ", .seed = ", order.seed, "}");
}

}  // namespace trireme::data

// ---- trireme/data/loader.hpp (goes on)
namespace trireme::data {

/// How samples become batches.
struct loader_options {
  std::int64_t batch = 64;         ///< samples of a step, over all ranks
  std::int64_t micro_batches = 1;  ///< logical parts of the whole batch, over all ranks
  std::uint64_t seed = 0;          ///< of the order of samples
  std::int64_t prefetch = 2;       ///< batches read ahead by a thread; 0 reads them in next()
  bool drop_last = false;          ///< leave out the last batch of an epoch if it is short
  friend bool operator==(loader_options const&, loader_options const&) = default;
};

/// "trireme::data::loader_options{.batch = 64, ...}"
[[nodiscard]] inline std::string to_string(loader_options const& options) {
  return text("trireme::data::loader_options{.batch = ", options.batch, ", .micro_batches = ", options.micro_batches,
              ", .seed = ", options.seed, ", .prefetch = ", options.prefetch, ", .drop_last = ", options.drop_last,
              "}");
}

/// One rank's share of an endless sequence of shuffled batches, read ahead by a thread of its own.
///
/// The sequence of samples depends on the seed alone, and its cut into batches and micro-batches on the options, never
/// on the number of ranks. A batch does not cross an epoch: the last one of an epoch may be short.
///
/// Ranks    no communication: each rank makes its own, with equal options (and the same data).
/// Bytes    (prefetch + 1) buffers for this rank's part of a batch, made at construction; next() allocates nothing.
/// Threads  one caller. The reader thread calls Dataset::read(), and waits on a condition variable while it is ahead.
/// Errors   throws config_error for options that cannot be. What Dataset::read() throws comes out of the next() that
///          would have returned that batch; calling next() again reads the same batch again.
///
/// @tparam Dataset  models trireme::dataset.
/// @param  data     borrowed: must outlive the loader.
template <dataset Dataset>
class loader {
 public:
  loader(Dataset const& data, loader_options options, int rank = 0, int size = 1)
      : data_(&data), options_(options), order_{.samples = data.size(), .seed = options.seed} {
    check(rank, size);
    parts_ = share(options.micro_batches, size, rank);
    auto const largest = std::min(options.batch, order_.samples);
    // Rounded up: a shorter batch can have one more sample in these parts than the longest one.
    auto const most = (largest * parts_.count() + options.micro_batches - 1) / options.micro_batches;
    auto const slots = static_cast<std::size_t>(options.prefetch) + 1;
    slots_.reserve(slots);
    for (std::size_t i = 0; i < slots; ++i) {
      slots_.push_back({detail::batch_buffer(data, most, std::min(parts_.count(), largest)), {}, {}});
    }
    if (options.prefetch > 0) reader_ = std::thread([this] { read_ahead(); });
  }
  loader(Dataset const&& data, loader_options options, int rank = 0, int size = 1) = delete;  // would dangle
  loader(loader const&) = delete;
  loader& operator=(loader const&) = delete;
  ~loader() {
    if (!reader_.joinable()) return;
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    room_.notify_one();
    reader_.join();
  }

  [[nodiscard]] loader_options const& options() const noexcept { return options_; }
  /// The logical micro-batches that this rank runs.
  [[nodiscard]] range parts() const noexcept { return parts_; }
  [[nodiscard]] std::int64_t batches_per_epoch() const noexcept {
    return (order_.samples + (options_.drop_last ? 0 : options_.batch - 1)) / options_.batch;
  }

  /// The next batch; valid until the next call of next() or seek().
  [[nodiscard]] batch const& next() {
    auto const& ready = reader_.joinable() ? wait_for_slot() : read_now();
    position_ = ready.after;
    return ready.view;
  }

  /// Where the batch begins that next() returns next: what a checkpoint saves.
  [[nodiscard]] loader_position position() const noexcept { return position_; }

  /// Goes on from a place that position() told, perhaps on another number of ranks or with another batch size.
  void seek(loader_position to) {
    if (to.position < 0 || to.position > order_.samples) {
      throw config_error(text("trireme::data::loader: cannot seek to ", to_string(to), " of ", order_.samples,
                              " samples: the place was saved for other data"));
    }
    {
      std::lock_guard const lock(mutex_);
      position_ = cursor_ = normalised(to);
      ++generation_;  // a batch that is being read now belongs to the past
      read_ = taken_ = 0;
      in_use_ = false;
      failure_ = nullptr;
      halted_ = false;
    }
    room_.notify_one();
  }

 private:
  struct slot {
    detail::batch_buffer buffer;
    batch view;
    loader_position after;
  };

  void check(int rank, int size) const {
    auto const refuse = [](auto const&... parts) { return config_error(text("trireme::data::loader: ", parts...)); };
    auto const limit = std::int64_t{1} << 31;  // so that products of two counts fit
    if (order_.samples < 1) throw refuse("the dataset has no samples");
    if (options_.batch < 1 || options_.batch > limit) {
      throw refuse(".batch = ", options_.batch, ", but it must be from 1 to ", limit);
    }
    if (options_.micro_batches < 1 || options_.micro_batches > limit) {
      throw refuse(".micro_batches = ", options_.micro_batches, ", but it must be from 1 to ", limit);
    }
    if (options_.prefetch < 0 || options_.prefetch > 1024) {
      throw refuse(".prefetch = ", options_.prefetch, ", but it must be from 0 to 1024");
    }
    if (size < 1 || rank < 0 || rank >= size) throw refuse("there is no rank ", rank, " of ", size);
    if (options_.drop_last && order_.samples < options_.batch) {
      throw refuse("with .drop_last, ", order_.samples, " samples never fill a batch of ", options_.batch,
                   ": choose a smaller batch");
    }
  }

  /// The same place, written as the begin of a batch: the end of an epoch is the begin of the next.
  [[nodiscard]] loader_position normalised(loader_position at) const noexcept {
    auto const left = order_.samples - at.position;
    bool const over = left == 0 || (options_.drop_last && left < options_.batch);
    return over ? loader_position{at.epoch + 1, 0} : at;
  }

  void fill(slot& into, loader_position at) const {
    auto const count = std::min(options_.batch, order_.samples - at.position);
    auto const first = parts_.first * count / options_.micro_batches;
    auto const last = parts_.last * count / options_.micro_batches;
    auto const ids = into.buffer.ids(last - first);
    for (auto i = first; i < last; ++i) {
      ids[static_cast<std::size_t>(i - first)] = order_.id(at.epoch, at.position + i);
    }
    auto const all = into.buffer.read(*data_, last - first);
    into.buffer.clear();
    for (auto m = parts_.first; m < parts_.last; ++m) {
      auto const part = share(count, options_.micro_batches, m);
      if (part.count() > 0) into.buffer.add_part(m, all.part(part.first - first, part.count()));
    }
    into.view = {into.buffer.views(), into.buffer.parts(), count, at.epoch, at.position};
    into.after = normalised({at.epoch, at.position + count});
  }

  slot& read_now() {
    fill(slots_.front(), cursor_);
    cursor_ = slots_.front().after;
    return slots_.front();
  }

  slot& wait_for_slot() {
    std::unique_lock lock(mutex_);
    in_use_ = false;
    if (failure_ == nullptr) halted_ = false;  // it was told by the last call: this one tries again
    room_.notify_one();
    filled_.wait(lock, [this] { return read_ > taken_ || failure_ != nullptr; });
    if (read_ == taken_) {  // what was read before the failure comes first
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
    in_use_ = true;
    return slots_[taken_++ % slots_.size()];
  }

  void read_ahead() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock,
                 [this] { return stopping_ || (!halted_ && read_ + (in_use_ ? 1 : 0) < taken_ + slots_.size()); });
      if (stopping_) return;
      auto const generation = generation_;
      auto const at = cursor_;
      auto& into = slots_[read_ % slots_.size()];
      std::exception_ptr failure;
      lock.unlock();
      try {
        fill(into, at);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (generation != generation_) continue;
      if (failure == nullptr) {
        cursor_ = into.after;
        ++read_;
      } else {
        failure_ = std::move(failure);
        halted_ = true;
      }
      filled_.notify_one();
    }
  }

  Dataset const* data_;
  loader_options options_;
  sampler order_;
  range parts_;
  loader_position position_;  // of the caller
  std::vector<slot> slots_;   // slot i % slots is the reader's until read_ > i, then the caller's

  std::mutex mutex_;  // guards what follows
  std::condition_variable room_;
  std::condition_variable filled_;
  loader_position cursor_;  // of the reader
  std::exception_ptr failure_;
  std::size_t read_ = 0;
  std::size_t taken_ = 0;
  std::uint64_t generation_ = 0;
  bool in_use_ = false;  // whether the caller still looks at slot taken_ - 1
  bool halted_ = false;  // since a failure, until the caller wants to try again
  bool stopping_ = false;
  std::thread reader_;
};

}  // namespace trireme::data

// ---- trireme/data/detail/mapped_file.hpp
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace trireme::data::detail {

/// The bytes of a file, read-only, in memory when they are touched. `who` is the public name that messages start with.
class mapped_file {
 public:
  mapped_file(std::string const& path, std::string const& who) {
    // O_NONBLOCK: a named pipe is then opened, and refused below, instead of waiting for a writer.
    int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) throw io_error(path, text(who, ": cannot open the file: ", reason()));
    struct stat about {};
    bool const known = ::fstat(file, &about) == 0;
    auto const why = known ? std::string() : reason();
    if (known && S_ISREG(about.st_mode) && about.st_size > 0) {
      size_ = static_cast<std::size_t>(about.st_size);
      address_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    }
    auto const map_reason = address_ == MAP_FAILED ? reason() : std::string();
    ::close(file);
    if (!known) throw io_error(path, text(who, ": cannot examine the file: ", why));
    if (S_ISDIR(about.st_mode)) throw io_error(path, text(who, ": this is a directory, but a file is needed"));
    if (!S_ISREG(about.st_mode))
      throw io_error(path, text(who, ": this is not a regular file, so it cannot be mapped"));
    if (about.st_size == 0) throw io_error(path, text(who, ": the file is empty"));
    if (address_ == MAP_FAILED) throw io_error(path, text(who, ": cannot map the file: ", map_reason));
  }
  mapped_file(mapped_file const&) = delete;
  mapped_file& operator=(mapped_file const&) = delete;
  ~mapped_file() {
    if (address_ != nullptr && address_ != MAP_FAILED) ::munmap(address_, size_);
  }

  [[nodiscard]] std::span<unsigned char const> bytes() const noexcept {
    return {static_cast<unsigned char const*>(address_), size_};
  }
  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(size_); }

 private:
  // strerror is not thread-safe; the standard library's text is.
  static std::string reason() { return std::generic_category().message(errno); }

  void* address_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace trireme::data::detail

// ---- trireme/data/token_file.hpp (goes on)
namespace trireme::data {

class token_windows;
class held_out_windows;

/// A text file whose bytes are the tokens (a vocabulary of 256), or the part of it from one byte to another.
///
/// open() gives windows to train on, open_held_out() windows to evaluate on; split() gives both, disjoint. Each ends
/// with the last whole window: fewer than `context` bytes at the end of the range may stay unused.
///
/// Errors  open() and open_held_out() throw io_error if the file is missing, empty, not readable or not a regular
///         file, config_error if the range does not lie in the file or is too short for one window.
struct token_file {
  std::string path;
  std::int64_t context = 256;   ///< tokens of a window
  std::int64_t first_byte = 0;  ///< where the range begins
  std::int64_t last_byte = -1;  ///< the last byte that belongs to the range; -1 is the last one of the file
  [[nodiscard]] token_windows open() const;
  [[nodiscard]] held_out_windows open_held_out() const;
  friend bool operator==(token_file const&, token_file const&) = default;
};

/// "trireme::data::token_file{.path = "text", .context = 256, .first_byte = 0, .last_byte = -1}"
[[nodiscard]] inline std::string to_string(token_file const& file) {
  return text("trireme::data::token_file{.path = \"", file.path, "\", .context = ", file.context,
              ", .first_byte = ", file.first_byte, ", .last_byte = ", file.last_byte, "}");
}

namespace detail {

/// What both kinds of windows share: a range of a mapped file, checked, and the arithmetic on it.
class byte_windows {
 public:
  /// A window needs `context + more` bytes.
  byte_windows(token_file file, std::int64_t more) : file_(std::move(file)) {
    if (file_.context < 1) throw refusal(text(".context = ", file_.context, ", but at least 1 is needed"));
    map_ = std::make_shared<mapped_file const>(file_.path, who);
    auto const last = file_.last_byte == -1 ? map_->size() - 1 : file_.last_byte;
    if (file_.first_byte < 0 || last >= map_->size() || last < file_.first_byte) {
      throw refusal(text("bytes ", file_.first_byte, " to ", last, " are not a range of the file, which has ",
                         map_->size(), " bytes"));
    }
    length_ = last - file_.first_byte + 1;
    if (length_ - more < file_.context) {
      throw refusal(text("the range has ", length_, " bytes, but one window of .context = ", file_.context, " needs ",
                         more == 0 ? "" : "one more than ", "that many: choose a shorter context or a longer text"));
    }
  }

  [[nodiscard]] token_file const& description() const noexcept { return file_; }
  [[nodiscard]] std::int64_t context() const noexcept { return file_.context; }
  [[nodiscard]] std::int64_t length() const noexcept { return length_; }
  [[nodiscard]] std::int64_t file_bytes() const noexcept { return map_->size(); }
  [[nodiscard]] unsigned char const* window(std::int64_t index) const noexcept {
    return map_->bytes().data() + file_.first_byte + index * file_.context;
  }

 private:
  static constexpr char const* who = "trireme::data::token_file";
  [[nodiscard]] config_error refusal(std::string const& reason) const {
    return config_error(text(who, ": ", file_.path, ": ", reason));
  }
  token_file file_;
  std::shared_ptr<mapped_file const> map_;
  std::int64_t length_ = 0;
};

}  // namespace detail

/// Windows of a text to train on: window s begins at byte first_byte + s * context, and each token's target is the
/// byte after it.
///
/// Shapes  inputs (T) int32: bytes [b, b + T) as numbers 0 to 255; targets (T) int32: bytes [b + 1, b + T + 1).
/// Bytes   the file is mapped, not loaded: memory holds the pages in use, shared by all ranks of a machine. It must
///         not shrink meanwhile (the kernel would end the program with SIGBUS).
/// Threads read() changes nothing. A copy shares the mapping.
/// @models trireme::dataset
class token_windows {
 public:
  explicit token_windows(token_file file) : text_(std::move(file), 1) {}

  [[nodiscard]] token_file const& description() const noexcept { return text_.description(); }
  [[nodiscard]] std::int64_t size() const noexcept { return (text_.length() - 1) / text_.context(); }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {text_.context()}; }
  [[nodiscard]] shape target_shape() const { return {text_.context()}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      auto const* const from = text_.window(id);
      in = std::copy(from, from + text_.context(), in);
      out = std::copy(from + 1, from + 1 + text_.context(), out);
    }
  }

 private:
  detail::byte_windows text_;
};

/// Windows of a text to evaluate on: consecutive, none overlaps another, and nothing outside a window is looked at.
///
/// Shapes  inputs (T) int32: the bytes of the window; targets (T) int32: target t is byte t + 1 of the window, and
///         the last target is -1, which losses leave out. So a window has T - 1 predictions.
/// Threads read() changes nothing. A copy shares the mapping.
/// @models trireme::dataset          @see token_windows, split
class held_out_windows {
 public:
  explicit held_out_windows(token_file file) : text_(std::move(file), 0) {}

  [[nodiscard]] token_file const& description() const noexcept { return text_.description(); }
  [[nodiscard]] std::int64_t size() const noexcept { return text_.length() / text_.context(); }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {text_.context()}; }
  [[nodiscard]] shape target_shape() const { return {text_.context()}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      auto const* const from = text_.window(id);
      in = std::copy(from, from + text_.context(), in);
      out = std::copy(from + 1, from + text_.context(), out);
      *out++ = -1;
    }
  }

 private:
  detail::byte_windows text_;
};

inline token_windows token_file::open() const { return token_windows(*this); }
inline held_out_windows token_file::open_held_out() const { return held_out_windows(*this); }

/// A text cut in two, and the numbers that a summary of the run should state.
struct token_split {
  token_windows training;
  held_out_windows held_out;
  std::int64_t bytes = 0;           ///< of the file
  std::int64_t held_out_begin = 0;  ///< the first byte that is not trained on
};

/// Cuts a text: its first part to train on, the rest held out to evaluate on.
///
/// The cut is at floor(bytes * (1 - held_out_fraction)), with the fraction taken in millionths, so that 0.1 of a file
/// cuts at floor(bytes * 9 / 10) exactly. No byte is in both parts, and the last training target lies before the cut.
///
/// Errors  throws config_error if the fraction is not in (0, 1) or a part is too short; io_error as token_file.
[[nodiscard]] inline token_split split(std::string const& path, std::int64_t context, double held_out_fraction = 0.1) {
  constexpr std::int64_t whole = 1'000'000;
  auto const millionths = held_out_fraction > 0 && held_out_fraction < 1
                              ? static_cast<std::int64_t>(std::llround(held_out_fraction * double{whole}))
                              : 0;
  if (millionths < 1 || millionths >= whole) {
    throw config_error(text("trireme::data::split: a held-out fraction of ", held_out_fraction,
                            " leaves nothing on one side: choose one between 0.000001 and 0.999999"));
  }
  auto const bytes = detail::mapped_file(path, "trireme::data::split").size();
  auto const kept = whole - millionths;
  auto const begin = bytes / whole * kept + bytes % whole * kept / whole;  // floor(bytes * kept / whole), no overflow
  if (begin < 1) throw config_error(text("trireme::data::split: ", path, ": ", bytes, " bytes leave none to train on"));
  return {token_windows({.path = path, .context = context, .first_byte = 0, .last_byte = begin - 1}),
          held_out_windows({.path = path, .context = context, .first_byte = begin, .last_byte = bytes - 1}), bytes,
          begin};
}

}  // namespace trireme::data

// ---- trireme/contract/expert_group.hpp
namespace trireme {

/// The ranks that share out the experts of each layer, as layers see them. They see different samples, and hold all
/// parameters alike but those of experts: each has the range share().of(experts) of these (parameter_info::dealt). A
/// group of one does nothing.
///
/// Ranks    collective: all members call the same in the same order. One that has no micro-batch while others do takes
///          part without rows.
/// Numerics rows travel as they are: what a row gets does not depend on who computes it.
template <class Env>
class expert_group {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;

  virtual ~expert_group() = default;
  expert_group(expert_group const&) = delete;
  expert_group& operator=(expert_group const&) = delete;

  /// The group of a rank that has all experts.
  [[nodiscard]] static expert_group& one();

  [[nodiscard]] int ways() const noexcept { return own_.ways; }
  [[nodiscard]] int place() const noexcept { return own_.place; }
  [[nodiscard]] trireme::share share() const noexcept { return own_; }

  /// Everybody's numbers: `table` has one part a member, of which the own one is filled in.
  void gather(std::span<std::int64_t> table) {
    if (own_.ways > 1) do_gather(table);
  }
  /// The first sent[0] rows of `from` go to member 0, the next sent[1] to member 1; received[r] rows of `to` come from
  /// member r. Members name numbers of rows that fit.
  void trade(view to, std::span<std::int64_t const> received, view from, std::span<std::int64_t const> sent) {
    if (own_.ways > 1) do_trade(to, received, from, sent);
  }

 protected:
  explicit expert_group(trireme::share own) noexcept : own_(own) {}

 private:
  virtual void do_gather(std::span<std::int64_t> table) = 0;
  virtual void do_trade(view to, std::span<std::int64_t const> received, view from,
                        std::span<std::int64_t const> sent) = 0;

  trireme::share own_;
};

namespace detail {

/// Shares with nobody: none of its collectives is ever called.
template <class Env>
class experts_of_one final : public expert_group<Env> {
  using typename expert_group<Env>::view;

 public:
  experts_of_one() noexcept : expert_group<Env>({}) {}

 private:
  void do_gather(std::span<std::int64_t>) override {}
  void do_trade(view, std::span<std::int64_t const>, view, std::span<std::int64_t const>) override {}
};

}  // namespace detail

template <class Env>
expert_group<Env>& expert_group<Env>::one() {
  static detail::experts_of_one<Env> group;
  return group;
}

}  // namespace trireme

// ---- trireme/core/arena.hpp
namespace trireme {

/// Memory for the activations of one micro-batch: taken piece by piece, given back all at once.
///
/// The first round may allocate several blocks; `reset()` then replaces them by one that is large enough for
/// everything seen so far. So a step after the first allocates nothing (a test counts).
///
/// Threads  one owner. Make it in the thread that uses it, so that its pages lie near that thread's core.
template <class Space = host>
class arena {
 public:
  /// A place to come back to: `rewind(mark())` gives back what was taken in between.
  struct position {
    std::size_t block = 0;
    std::size_t used = 0;
    std::size_t taken = 0;
  };

  arena() = default;
  arena(arena const&) = delete;
  arena& operator=(arena const&) = delete;
  arena(arena&& other) noexcept { *this = std::move(other); }
  arena& operator=(arena&& other) noexcept {
    std::swap(blocks_, other.blocks_);
    std::swap(at_, other.at_);
    std::swap(peak_, other.peak_);
    return *this;
  }
  ~arena() { release(); }

  /// An uninitialised tensor that lives until the next reset() or the rewind() to a mark made before it.
  template <class T>
  [[nodiscard]] tensor_view<T, Space> take(shape extents) {
    auto const bytes = round_up(static_cast<std::size_t>(extents.size()) * sizeof(T));
    while (at_.block < blocks_.size() && at_.used + bytes > blocks_[at_.block].bytes) {
      ++at_.block;
      at_.used = 0;
    }
    if (at_.block == blocks_.size()) {
      auto const size = std::max(bytes, first_block_bytes);
      blocks_.push_back({static_cast<std::byte*>(Space::allocate(size)), size});
    }
    auto* const address = blocks_[at_.block].address + at_.used;
    at_.used += bytes;
    at_.taken += bytes;
    peak_ = std::max(peak_, at_.taken);
    return {reinterpret_cast<T*>(address), extents};
  }

  [[nodiscard]] position mark() const noexcept { return at_; }
  void rewind(position to) noexcept { at_ = to; }

  /// Gives everything back, and joins the blocks into one if there are several.
  void reset() {
    at_ = {};
    if (blocks_.size() < 2) return;
    release();
    auto const size = std::max(peak_ + peak_ / 16, first_block_bytes);
    blocks_.push_back({static_cast<std::byte*>(Space::allocate(size)), size});
  }

  /// The most bytes in use at any time so far.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }

 private:
  struct block {
    std::byte* address;
    std::size_t bytes;
  };
  static constexpr std::size_t first_block_bytes = std::size_t{1} << 16;
  // One cache line of slack against two streams that start on the same cache set.
  static constexpr std::size_t round_up(std::size_t bytes) noexcept { return (bytes + 127) / 64 * 64; }
  void release() noexcept {
    for (auto const& each : blocks_) Space::deallocate(each.address, each.bytes);
    blocks_.clear();
  }

  std::vector<block> blocks_;
  position at_;
  std::size_t peak_ = 0;
};

}  // namespace trireme

// ---- trireme/contract/tensor_group.hpp (goes on)
namespace trireme {

template <class Env>
class tensor_group;

/// One rank's term of a sum over its tensor group: what a row-cut product gives. It is no view, so that it cannot be
/// taken for the sum; tensor_group::reduce makes the sum of it, on one rank as on many.
template <class View>
class partial_sum {
 public:
  explicit partial_sum(View term) noexcept : term_(term) {}

  template <class T, class Space>
  operator tensor_view<T, Space>() const {  // NOLINT(google-explicit-constructor): only to say what is wrong
    static_assert(!std::is_same_v<Space, Space>,
                  "trireme::partial_sum: this is one rank's term of a sum; pass.group.reduce(term) gives the sum");
    return {};
  }

 private:
  template <class Env>
  friend class tensor_group;
  View term_;
};

/// The ranks that share the matrices of each layer, as layers see them: who they are, and the few collectives that
/// layers need. A group of one does nothing.
///
/// Under sequence parallelism (`cuts_rows()`) what lies between the products (the residual stream, norms, dropout) has
/// only this rank's rows: gather() makes all of them of these, and reduce() leaves each rank its own.
///
/// Ranks    collective: all members call the same in the same order.
/// Numerics sums in rank order, with the same bits on all members; bfloat16 is added in float and rounded once, after
///          each term has been rounded by the product that made it.
template <class Env>
class tensor_group {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;
  using sums = tensor_view<typename Env::accumulate, space>;

  virtual ~tensor_group() = default;
  tensor_group(tensor_group const&) = delete;
  tensor_group& operator=(tensor_group const&) = delete;

  /// The group of a rank that shares its layers with nobody.
  [[nodiscard]] static tensor_group& one();

  [[nodiscard]] int ways() const noexcept { return own_.ways; }
  [[nodiscard]] int place() const noexcept { return own_.place; }
  [[nodiscard]] trireme::share share() const noexcept { return own_; }
  [[nodiscard]] bool cuts_rows() const noexcept { return cuts_rows_; }
  /// The rows of `rows` that lie here between the products.
  [[nodiscard]] trireme::share::range rows_here(std::int64_t rows) const noexcept {
    return cuts_rows_ ? own_.of(rows) : trireme::share::range{0, rows};
  }

  /// The sum of the members' terms, in the memory of the term: all rows of it, or those that lie here.
  [[nodiscard]] view reduce(partial_sum<view> part) {
    if (own_.ways == 1) return part.term_;
    if (!cuts_rows_) {
      do_sum(part.term_);
      return part.term_;
    }
    do_reduce_rows(part.term_);
    auto const here = own_.of(part.term_.extent(0));
    return part.term_.rows(here.first, here.count);
  }
  /// All rows of x (rows here, columns): x itself unless rows are cut, else in memory of `from`.
  [[nodiscard]] view gather(view x, std::int64_t rows, arena<space>& from) {
    if (!cuts_rows_) return x;
    auto const all = from.template take<typename Env::compute>({rows, x.extent(1)});
    auto const here = own_.of(rows);
    do_gather_rows(all, x, here);
    return all;
  }
  /// Sums, or largest numbers, over the members, in place.
  void sum(sums values) {
    if (own_.ways > 1) do_sum_of_sums(values);
  }
  void max(sums values) {
    if (own_.ways > 1) do_max(values);
  }

 protected:
  tensor_group(trireme::share own, bool cuts_rows) noexcept : own_(own), cuts_rows_(cuts_rows && own.ways > 1) {}

 private:
  virtual void do_sum(view values) = 0;
  virtual void do_reduce_rows(view all) = 0;  // afterwards this rank's rows of it are the sum
  virtual void do_gather_rows(view all, view here, trireme::share::range range) = 0;
  virtual void do_sum_of_sums(sums values) = 0;
  virtual void do_max(sums values) = 0;

  trireme::share own_;
  bool cuts_rows_;
};

namespace detail {

/// Shares with nobody: none of its collectives is ever called.
template <class Env>
class group_of_one final : public tensor_group<Env> {
  using typename tensor_group<Env>::view;
  using typename tensor_group<Env>::sums;

 public:
  group_of_one() noexcept : tensor_group<Env>({}, false) {}

 private:
  void do_sum(view) override {}
  void do_reduce_rows(view) override {}
  void do_gather_rows(view, view, share::range) override {}
  void do_sum_of_sums(sums) override {}
  void do_max(sums) override {}
};

}  // namespace detail

template <class Env>
tensor_group<Env>& tensor_group<Env>::one() {
  static detail::group_of_one<Env> group;
  return group;
}

}  // namespace trireme

// ---- trireme/contract/model.hpp (goes on)
namespace trireme {

/// Why the model is run: `train` keeps what backward needs and drops out; `evaluate` only sums losses; `predict`
/// returns outputs and reads no targets.
enum class purpose { train, evaluate, predict };

/// What one micro-batch's way through the model needs to know, and where its memory comes from.
template <class Env>
struct pass {
  using space = typename Env::space;
  using activation_view = tensor_view<typename Env::compute, space>;

  arena<space>& activations;  ///< given back when the micro-batch is done
  arena<space>& scratch;      ///< given back when the unit returns
  samples_in<space> const& batch;
  random_key key;             ///< for dropout; the samples' ids tell them apart
  std::uint64_t version = 0;  ///< changes whenever parameter values do
  double weight = 1;          ///< of one sample's mean loss in the loss that backward differentiates
  trireme::purpose purpose = trireme::purpose::train;
  loss_sum loss{};  ///< out: the sum of losses of this micro-batch; the same on all ranks of the group
  tensor_group<Env>& group = tensor_group<Env>::one();  ///< the ranks that share this unit's matrices
  std::size_t slot = 0;  ///< of what units save: micro-batches in flight have different ones
  expert_group<Env>& experts = expert_group<Env>::one();  ///< the ranks that share out this unit's experts

  [[nodiscard]] bool training() const noexcept { return purpose == trireme::purpose::train; }
  /// Activations that live until backward has passed (or, outside training, until the pass ends).
  [[nodiscard]] activation_view take(shape extents) {
    return activations.template take<typename Env::compute>(extents);
  }
};

/// A unit of a staged model: the grain of cutting, gathering and checkpointing, and the one virtual edge of a step.
///
/// Shapes   forward maps x (rows, ...) to y; the first unit gets an empty x and reads the batch, the last one adds to
///          pass.loss. backward maps dy to dx, and adds to its parameters' gradients.
/// Threads  one owner.
template <class Env>
class unit {
 public:
  using view = tensor_view<typename Env::compute, typename Env::space>;

  virtual ~unit() = default;
  /// The parameters, in a fixed order. Their value and gradient are bound by the exchange.
  [[nodiscard]] virtual std::vector<parameter<Env>*> parameters() = 0;
  virtual view forward(pass<Env>& pass, view x) = 0;
  virtual view backward(pass<Env>& pass, view dy) = 0;
  /// backward in two halves: first dx; later, with the same slot, what the parameters' gradients still lack. A unit
  /// that cannot does all of it in the first.
  virtual view backward_input(pass<Env>& pass, view dy) = 0;
  virtual void backward_weight(pass<Env>& pass) = 0;
  /// What a unit does for a micro-batch of others of its expert group while this rank has none.
  virtual void serve_forward(pass<Env>& pass) = 0;
  virtual void serve_backward(pass<Env>& pass) = 0;
};

/// The run state of a unit description: `description::instance<Env>` with typed `saved` state.
template <class U, class Env>
concept unit_state = requires(U& state, pass<Env>& pass, typename U::saved& saved,
                              tensor_view<typename Env::compute, typename Env::space> x) {
  { state.forward(pass, saved, x) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
  { state.backward(pass, saved, x) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
};

/// A unit whose backward comes apart, for schedules that fill idle time with weight gradients: backward_input(pass,
/// saved, dy) -> dx keeps in `saved` what backward_weight(pass, saved) needs.
template <class U, class Env>
concept has_backward_halves = requires(U& state, pass<Env>& pass, typename U::saved& saved,
                                       tensor_view<typename Env::compute, typename Env::space> dy) {
  { state.backward_input(pass, saved, dy) } -> std::same_as<tensor_view<typename Env::compute, typename Env::space>>;
  state.backward_weight(pass, saved);
};

/// A unit that has experts: serve_forward(pass, saved) and serve_backward(pass, saved) do for others' rows what forward
/// and backward do, without rows of one's own.
template <class U, class Env>
concept serves_experts = requires(U& state, pass<Env>& pass, typename U::saved& saved) {
  state.serve_forward(pass, saved);
  state.serve_backward(pass, saved);
};

/// A typed unit behind the virtual edge; inside, everything is known to the compiler.
template <class Env, class Description>
class boxed_unit final : public unit<Env> {
  using state = typename Description::template instance<Env>;
  static_assert(
      unit_state<state, Env>,
      "trireme::model: a unit's instance<Env> needs saved, forward(pass, saved, x) and backward(pass, saved, dy)");

 public:
  using typename unit<Env>::view;

  /// A unit that knows of shares (`instance(description, share)`) makes its own part; another one is the same on all
  /// ranks of its group, and the first of them answers for its parameters. A unit with experts also gets its share of
  /// them: `instance(description, share, share of the experts)`.
  explicit boxed_unit(Description const& description, share own = {}, share experts = {})
      : state_(make(description, own, experts)) {
    if constexpr (!knows_shares && !knows_experts) {
      state_.visit([&](parameter<Env>& each) { each.info.answers = own.place == 0; });
    }
  }
  [[nodiscard]] std::vector<parameter<Env>*> parameters() override {
    std::vector<parameter<Env>*> all;
    state_.visit([&](parameter<Env>& each) { all.push_back(&each); });
    return all;
  }
  view forward(pass<Env>& pass, view x) override { return state_.forward(pass, saved_of(pass), x); }
  view backward(pass<Env>& pass, view dy) override { return state_.backward(pass, saved_of(pass), dy); }
  view backward_input(pass<Env>& pass, view dy) override {
    if constexpr (has_backward_halves<state, Env>) {
      return state_.backward_input(pass, saved_of(pass), dy);
    } else {
      return state_.backward(pass, saved_of(pass), dy);
    }
  }
  void backward_weight([[maybe_unused]] pass<Env>& pass) override {
    if constexpr (has_backward_halves<state, Env>) state_.backward_weight(pass, saved_of(pass));
  }
  void serve_forward([[maybe_unused]] pass<Env>& pass) override {
    if constexpr (serves_experts<state, Env>) state_.serve_forward(pass, saved_of(pass));
  }
  void serve_backward([[maybe_unused]] pass<Env>& pass) override {
    if constexpr (serves_experts<state, Env>) state_.serve_backward(pass, saved_of(pass));
  }

 private:
  static constexpr bool knows_shares = std::constructible_from<state, Description const&, share>;
  static constexpr bool knows_experts = std::constructible_from<state, Description const&, share, share>;
  static state make(Description const& description, [[maybe_unused]] share own, [[maybe_unused]] share experts) {
    if constexpr (knows_experts) {
      return state(description, own, experts);
    } else if constexpr (knows_shares) {
      return state(description, own);
    } else {
      return state(description);
    }
  }

  [[nodiscard]] typename state::saved& saved_of(pass<Env> const& pass) {
    if (pass.slot >= saved_.size()) saved_.resize(pass.slot + 1);
    return saved_[pass.slot];
  }

  state state_;
  std::vector<typename state::saved> saved_ = std::vector<typename state::saved>(1);
};

namespace detail {

struct counts_units {
  std::int64_t count = 0;
  template <class Unit>
  void operator()(Unit const&) {
    ++count;
  }
};

struct visits_nothing {
  template <class Value, class Gradient>
  void operator()(char const*, Value, Gradient) const {}
};
struct ready_nothing {
  void operator()(char const*) const {}
};

}  // namespace detail

/// A model that lists its units: `units(emit)` calls `emit(description)` for each, in order, the same list each time.
template <class M>
concept staged_model = requires(M const& model, detail::counts_units& emit) {
  model.units(emit);
};

template <class M>
concept has_visit_parameters = requires(M& model, detail::visits_nothing visit) {
  model.visit_parameters(visit);
};
template <class M>
concept has_model_forward = requires(M& model, samples const& batch) {
  { model.forward(batch) } -> std::convertible_to<double>;
};
template <class M>
concept has_model_backward = requires(M& model, detail::ready_nothing ready) {
  model.backward(ready);
};

/// A model with kernels and storage of its own.
///
/// Requires  visit_parameters(visit): visit(name, value, gradient) for each, in a stable order;
///           forward(samples) -> mean loss over the batch it is given; backward(ready): fills the gradients of that
///           mean and calls ready(name) as each becomes final.
template <class M>
concept plain_model = has_visit_parameters<M> && has_model_forward<M> && has_model_backward<M>;

}  // namespace trireme

// ---- trireme/nn/linear.hpp
namespace trireme::nn {

/// The part of a linear layer that one rank of a tensor group has: some columns of the weight, which gives some
/// outputs, or some rows of it, which gives a term of all outputs.
struct linear_part {
  enum class axis { none, outputs, inputs };
  axis cut = axis::none;
  share::range range{};  ///< of the inputs, or of the outputs of each fused matrix
  int place = 0;         ///< of the rank in its group
};

/// y = act(x w + b) (+ residual), with the weight stored (inputs, outputs) as GPT-2 does.
///
/// Shapes   x (rows, inputs), y (rows, outputs), w (inputs, outputs), b (outputs).
/// Ranks    a layer of which this rank has some inputs gives partial sums (forward_term), one of which it has some
///          outputs gives them backward (input_gradient_term). The bias of the former is everybody's, added by place 0.
/// Bytes    saves a reference to x, and x w + b where an activation follows.
struct linear {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  ops::activation act = ops::activation::none;
  initial start{initial::distribution::normal, 0.02};
  initial bias_start{};
  std::int64_t fused = 1;  ///< matrices that lie side by side in the outputs, each of which is cut alike
  friend bool operator==(linear const&, linear const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class linear::instance {
  using space = typename Env::space;
  using value = typename Env::compute;
  using kernels = ops::on<space>;

 public:
  using view = tensor_view<value, space>;
  struct saved {
    view x;                  // (rows, inputs)
    view before_activation;  // (rows, outputs), or empty
  };

  instance(linear const& description, std::string const& name, linear_part const& part = {})
      : what_(description),
        weight_{{name + ".weight", {what_.inputs, what_.outputs}, what_.start, true}, {}, {}},
        bias_{{name + ".bias", {what_.outputs}, what_.bias_start, false}, {}, {}},
        adds_bias_(part.cut != linear_part::axis::inputs || part.place == 0) {
    cut(part);
  }

  void visit(auto&& each) {
    each(weight_);
    each(bias_);
  }

  view forward(pass<Env>& pass, saved& saved, view x, view residual = {}) {
    auto const y = pass.take({x.extent(0), what_.outputs});
    saved.x = x;
    bool const keep = what_.act != ops::activation::none && pass.training();
    saved.before_activation = keep ? pass.take(y.extents()) : view{};
    kernels::linear(y, x, packed(pass), {bias_.value, what_.act, saved.before_activation, residual});
    return y;
  }
  /// This rank's term of x w + b, where it has some of the inputs.
  partial_sum<view> forward_term(pass<Env>& pass, saved& saved, view x) {
    auto const y = pass.take({x.extent(0), what_.outputs});
    saved.x = x;
    kernels::linear(y, x, packed(pass), {.bias = adds_bias_ ? bias_.value : decltype(bias_.value){}});
    return partial_sum<view>(y);
  }
  /// residual + dropout(x w + b), summed over the group: the end of a branch of a residual stream.
  view end_branch(pass<Env>& pass, saved& saved, view x, view residual, ops::dropout_site drop) {
    auto const rows = x.extent(0);
    if (pass.group.ways() == 1 && !drop.active()) return forward(pass, saved, x, residual);
    auto const y = pass.group.reduce(forward_term(pass, saved, x));
    kernels::dropout(y, stretch_of(drop, pass, rows));
    kernels::add(y, residual);
    return y;
  }
  /// The gradient of x w + b in all rows, from that of end_branch()'s result: dy itself, or in scratch memory.
  view branch_gradient(pass<Env>& pass, saved const& saved, view dy, ops::dropout_site drop) {
    auto const rows = saved.x.extent(0);
    if (drop.active()) {
      auto const dropped = pass.scratch.template take<value>(dy.extents());
      kernels::copy(dropped, dy);
      kernels::dropout(dropped, stretch_of(drop, pass, rows));
      dy = dropped;
    }
    return pass.group.gather(dy, rows, pass.scratch);
  }

  /// @param dy  gradient of x w + b: the caller has taken it through this layer's activation (see input_gradient's
  ///            epilogue of the layer above, or activation_backward()).
  void weight_gradient(view x, view dy) {
    kernels::linear_backward_weight(weight_.gradient.reshaped(matrix()), bias_.gradient, x, dy,
                                    ops::orientation::in_out);
  }
  /// dx (+)= dy w^T, then through the activation of the layer below, if it is given.
  void input_gradient(pass<Env>& pass, view dx, view dy, ops::input_epilogue<value, space> epilogue = {}) {
    kernels::linear_backward_input(dx, dy, packed(pass), epilogue);
  }
  /// This rank's term of dy w^T, where it has some of the outputs; in the memory of dx.
  partial_sum<view> input_gradient_term(pass<Env>& pass, view dx, view dy) {
    input_gradient(pass, dx, dy);
    return partial_sum<view>(dx);
  }

  view backward(pass<Env>& pass, saved const& saved, view dy) {
    auto const before = through_activation(pass, saved, dy);
    weight_gradient(saved.x, before);
    auto const dx = pass.take(saved.x.extents());
    input_gradient(pass, dx, before);
    return dx;
  }
  /// Like backward, for the first layer of a model: nobody wants dx.
  void backward_without_input(pass<Env>& pass, saved const& saved, view dy) {
    weight_gradient(saved.x, through_activation(pass, saved, dy));
  }

 private:
  // Fused matrices get the dimension along which they are cut.
  void cut(linear_part const& part) {
    if (part.cut == linear_part::axis::none) return;
    if (part.cut == linear_part::axis::inputs) {
      weight_.info = part_of(weight_.info, 0, part.range);
      bias_.info.answers = part.place == 0;
      what_.inputs = part.range.count;
      return;
    }
    if (what_.fused > 1) {
      weight_.info.extents = {what_.inputs, what_.fused, what_.outputs / what_.fused};
      bias_.info.extents = {what_.fused, what_.outputs / what_.fused};
    }
    weight_.info = part_of(weight_.info, weight_.info.extents.rank() - 1, part.range);
    bias_.info = part_of(bias_.info, bias_.info.extents.rank() - 1, part.range);
    what_.outputs = what_.fused * part.range.count;
  }
  [[nodiscard]] shape matrix() const { return {what_.inputs, what_.outputs}; }

  // Of what the rows that lie here drop, if not all of them do.
  ops::dropout_site stretch_of(ops::dropout_site drop, pass<Env> const& pass, std::int64_t rows) const {
    drop.first = pass.group.rows_here(rows).first * what_.outputs;
    drop.whole = rows * what_.outputs;
    return drop;
  }
  view through_activation(pass<Env>& pass, saved const& saved, view dy) {
    if (what_.act == ops::activation::none) return dy;
    auto const before = pass.take(dy.extents());
    kernels::activate_backward(before, dy, saved.before_activation, what_.act);
    return before;
  }
  auto& packed(pass<Env> const& pass) {
    packed_.bind(weight_.value.reshaped(matrix()), ops::orientation::in_out);
    packed_.refresh(pass.version);
    return packed_;
  }

  linear what_;
  parameter<Env> weight_;
  parameter<Env> bias_;
  bool adds_bias_;
  ops::weights<value, space> packed_;
};

}  // namespace trireme::nn

// ---- trireme/nn/attention.hpp (goes on)
namespace trireme::nn {

/// Causal self-attention with its two projections: residual + proj(attention(x w_qkv + b)).
///
/// Shapes   x, y, residual (batch * context, channels); queries, keys and values lie side by side in one product of
///          3 * channels columns; head h has columns [h * channels/heads, (h+1) * channels/heads) of each third.
/// Bytes    saves queries, keys, values, the output of the heads, and one number a head and row: no context x context
///          matrix is kept.
/// Ranks    cut by heads: a rank has the columns of its heads in c_attn, and their rows in c_proj.
/// Errors   config_error if a group has more ranks than there are heads.
/// Method   [Vaswani et al., 2017], blockwise with recomputation [Dao et al., 2022].
struct attention {
  std::int64_t channels = 0;
  std::int64_t heads = 1;
  double dropout = 0;      ///< of the attention weights, and of the projection's result
  std::uint32_t site = 0;  ///< tells this layer's random numbers from other layers'; uses site and site + 1
  double projection_scale = 0.02;
  friend bool operator==(attention const&, attention const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class attention::instance {
  using space = typename Env::space;
  using accumulate = typename Env::accumulate;
  using kernels = ops::on<space>;
  using projection = linear::instance<Env>;

 public:
  using view = tensor_view<typename Env::compute, space>;
  struct saved {
    typename projection::saved qkv;      // its x is this layer's input, the rows that lie here
    typename projection::saved out;      // its x is the output of the heads here (rows, channels here)
    view packed;                         // (rows, 3 channels here)
    tensor_view<accumulate, space> lse;  // (batch, heads, context): log of the softmax's denominators
  };

  instance(attention const& description, std::string const& name, share own = {})
      : what_(description),
        heads_(heads_of(description, own)),
        qkv_({.inputs = what_.channels, .outputs = 3 * what_.channels, .fused = 3}, name + ".c_attn",
             part(own, linear_part::axis::outputs)),
        out_({.inputs = what_.channels,
              .outputs = what_.channels,
              .start = {initial::distribution::normal, what_.projection_scale}},
             name + ".c_proj", part(own, linear_part::axis::inputs)) {}

  void visit(auto&& each) {
    qkv_.visit(each);
    out_.visit(each);
  }

  /// @param x        the rows that lie here, as is residual.
  /// @param rows     of all samples together.
  /// @param context  rows of one sample.
  view forward(pass<Env>& pass, saved& saved, view x, view residual, std::int64_t rows, std::int64_t context) {
    auto const shape = of(rows, context);
    saved.packed = qkv_.forward(pass, saved.qkv, pass.group.gather(x, rows, pass.scratch));
    saved.qkv.x = x;
    saved.lse = pass.activations.template take<accumulate>({shape.batch, shape.heads, shape.context});
    auto const heads = pass.take({rows, shape.channels});
    kernels::causal_attention(heads, saved.lse, saved.packed, shape, pass.scratch, site(pass, 0));
    return out_.end_branch(pass, saved.out, heads, residual, site(pass, 1));
  }

  /// Returns the gradient of x, in the memory of dx (all rows, channels); the residual's is dy itself.
  view backward(pass<Env>& pass, saved const& saved, view dx, view dy, std::int64_t context) {
    auto const rows = dx.extent(0);
    auto const shape = of(rows, context);
    auto const here = pass.scratch.mark();
    auto const take = [&](trireme::shape extents) {
      return pass.scratch.template take<typename Env::compute>(extents);
    };
    auto const dprojected = out_.branch_gradient(pass, saved.out, dy, site(pass, 1));
    auto const dheads = take({rows, shape.channels});
    out_.weight_gradient(saved.out.x, dprojected);
    out_.input_gradient(pass, dheads, dprojected);
    auto const dqkv = take({rows, 3 * shape.channels});
    kernels::causal_attention_backward(dqkv, dheads, saved.out.x, saved.lse, saved.packed, shape, pass.scratch,
                                       site(pass, 0));
    qkv_.weight_gradient(pass.group.gather(saved.qkv.x, rows, pass.scratch), dqkv);
    auto const sum = pass.group.reduce(qkv_.input_gradient_term(pass, dx, dqkv));
    pass.scratch.rewind(here);
    return sum;
  }

 private:
  static share::range heads_of(attention const& description, share own) {
    if (own.ways > description.heads) {
      throw config_error(text("trireme::nn::attention: ", description.heads, " heads cannot be cut into ", own.ways,
                              " ways; a tensor group has at most as many ranks as a layer has heads"));
    }
    return own.of(description.heads);
  }
  [[nodiscard]] linear_part part(share own, linear_part::axis axis) const {
    if (own.ways == 1) return {};
    auto const width = what_.channels / what_.heads;
    return {axis, {heads_.first * width, heads_.count * width}, own.place};
  }
  [[nodiscard]] ops::attention_shape of(std::int64_t rows, std::int64_t context) const {
    return {rows / context, context, heads_.count, what_.channels / what_.heads * heads_.count, heads_.first};
  }
  [[nodiscard]] ops::dropout_site site(pass<Env> const& pass, std::uint32_t which) const {
    return {pass.training() ? what_.dropout : 0, pass.key, what_.site + which, pass.batch.ids};
  }

  attention what_;
  share::range heads_;  // that lie here
  projection qkv_;
  projection out_;
};

}  // namespace trireme::nn

// ---- trireme/nn/checkpointed.hpp
namespace trireme::nn {

/// A unit that saves nothing but its input: the backward pass runs it forward once more. So a model's activations are
/// one input a unit and those of a single unit, for a third more arithmetic.
///
/// For units whose forward only computes: not the first or the last one of a model, which read the batch, sum losses
/// and may form gradients as they go.
/// Numerics the second time is the first one again, bit for bit: dropout is a function of sample and place.
/// Method   [Chen et al., "Training deep nets with sublinear memory cost", 2016].
template <class Unit>
struct checkpointed {
  Unit unit;
  friend bool operator==(checkpointed const&, checkpointed const&) = default;

  template <class Env>
  class instance {
    using inner = typename Unit::template instance<Env>;
    using space = typename Env::space;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<typename Env::compute, space>;
    struct saved {
      view x;
    };

    explicit instance(checkpointed const& description) requires std::constructible_from<inner, Unit const&>
        : unit_(description.unit) {}
    instance(checkpointed const& description, share own) requires std::constructible_from<inner, Unit const&, share>
        : unit_(description.unit, own) {}
    instance(checkpointed const& description, share own,
             share experts) requires std::constructible_from<inner, Unit const&, share, share>
        : unit_(description.unit, own, experts) {}

    void visit(auto&& each) { unit_.visit(each); }

    view forward(pass<Env>& pass, saved& saved, view x) {
      saved.x = x;
      if (!pass.training()) return unit_.forward(pass, within_, x);
      auto const here = pass.activations.mark();
      return kept(pass, here, unit_.forward(pass, within_, x));
    }
    view backward(pass<Env>& pass, saved const& saved, view dy) {
      auto const here = pass.activations.mark();
      auto const scratch = pass.scratch.mark();
      static_cast<void>(unit_.forward(pass, within_, saved.x));
      pass.scratch.rewind(scratch);
      auto const dx = unit_.backward(pass, within_, dy);
      if (dx.address() != dy.address()) return kept(pass, here, dx);
      pass.activations.rewind(here);
      return dx;
    }

    void serve_forward(pass<Env>& pass, saved&) requires serves_experts<inner, Env> {
      auto const here = pass.activations.mark();
      unit_.serve_forward(pass, within_);
      pass.activations.rewind(here);
    }
    void serve_backward(pass<Env>& pass, saved&) requires serves_experts<inner, Env> {
      auto const here = pass.activations.mark();
      unit_.serve_forward(pass, within_);
      unit_.serve_backward(pass, within_);
      pass.activations.rewind(here);
    }

   private:
    // Gives back all activations since `here` but for one.
    static view kept(pass<Env>& pass, typename arena<space>::position here, view result) {
      auto const copy = pass.scratch.template take<typename Env::compute>(result.extents());
      kernels::copy(copy, result);
      pass.activations.rewind(here);
      auto const out = pass.take(result.extents());
      kernels::copy(out, copy);
      return out;
    }

    inner unit_;
    typename inner::saved within_{};  // of the one micro-batch that is in it
  };
};
template <class Unit>
checkpointed(Unit) -> checkpointed<Unit>;

}  // namespace trireme::nn

// ---- trireme/nn/experts.hpp
namespace trireme::nn {

/// A mixture of experts: each row chooses `chosen` of `count` mlps, and gets the sum of what they make of it, weighted
/// by the router's probabilities over those that it chose (with one choice by the probability itself, or the router
/// would learn nothing). No row is dropped, however many choose one expert.
///
/// Shapes   x, y (rows, channels); the router's weight (channels, count); experts' weights lie in one tensor each:
///          (count, channels, hidden), (count, hidden, channels), and their biases (count, hidden), (count, channels).
/// Ranks    an expert group deals the experts out (pass.experts): a rank has share().of(count) of them. Rows travel.
/// Bytes    saves x, the router's probabilities, and for each choice of a row two rows of channels, two of hidden. How
///          many rows come is known in each pass only, so memory may still grow after the first steps.
/// Numerics a row's sum over its experts is in the order of its choices, the most probable first; of equally probable
///          experts that of the lower number is chosen. Gradients of experts are sums over rows in the order of ranks.
/// Method   [Shazeer et al., 2017]; the balance loss is that of [Fedus et al., 2021], for each sample by itself.
/// Errors   config_error if a group has more ranks than there are experts.
struct experts {
  std::int64_t channels = 0;
  std::int64_t hidden = 0;
  std::int64_t count = 1;
  std::int64_t chosen = 1;
  double balance = 0;  ///< weight of the balance loss in the loss of a sample
  double projection_scale = 0.02;
  friend bool operator==(experts const&, experts const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class experts::instance {
  using space = typename Env::space;
  using value = typename Env::compute;
  using accumulate = typename Env::accumulate;
  using kernels = ops::on<space>;
  using sums = tensor_view<accumulate, space>;
  using numbers = tensor_view<std::int32_t, space>;
  using arena_type = arena<space>;

 public:
  using view = tensor_view<value, space>;
  struct saved {
    view x;                           // (rows, channels)
    sums probabilities;               // (rows, count)
    numbers chosen, places;           // (rows, chosen): the experts, and where their rows lie, sorted by expert
    sums weights;                     // (rows, chosen)
    view answers;                     // (rows * chosen, channels): the experts', sorted by expert
    view gathered;                    // (rows here, channels): what has come for the experts here, expert by expert
    view before, inner;               // (rows here, hidden): on both sides of the activation
    std::vector<std::int64_t> table;  // (ranks, count): how many rows of each rank choose each expert
  };

  instance(experts const& description, std::string const& name, share own = {})
      : what_(description),
        own_(own),
        here_(own.of(what_.count)),
        router_(matrix(name + ".router.weight", {what_.channels, what_.count}, 0.02)),
        up_(dealt(matrix(name + ".experts.c_fc.weight", {what_.count, what_.channels, what_.hidden}, 0.02))),
        up_bias_(dealt(bias(name + ".experts.c_fc.bias", {what_.count, what_.hidden}))),
        down_(dealt(matrix(name + ".experts.c_proj.weight", {what_.count, what_.hidden, what_.channels},
                           what_.projection_scale))),
        down_bias_(dealt(bias(name + ".experts.c_proj.bias", {what_.count, what_.channels}))),
        packed_up_(static_cast<std::size_t>(here_.count)),
        packed_down_(static_cast<std::size_t>(here_.count)) {
    if (own.ways > what_.count) {
      throw config_error(text("trireme::nn::experts: ", what_.count, " experts cannot be dealt out to ", own.ways,
                              " ranks; an expert group has at most as many ranks as a layer has experts"));
    }
  }

  void visit(auto&& each) {
    each(router_);
    each(up_);
    each(up_bias_);
    each(down_);
    each(down_bias_);
  }

  /// @param context  rows of one sample.
  view forward(pass<Env>& pass, saved& saved, view x, std::int64_t context) {
    auto const rows = x.extent(0);
    saved.x = x;
    saved.probabilities = pass.activations.template take<accumulate>({rows, what_.count});
    saved.weights = pass.activations.template take<accumulate>({rows, what_.chosen});
    saved.chosen = pass.activations.template take<std::int32_t>({rows, what_.chosen});
    saved.places = pass.activations.template take<std::int32_t>({rows, what_.chosen});
    saved.answers = pass.take({rows * what_.chosen, what_.channels});
    auto const y = pass.take(x.extents());
    auto const here = pass.scratch.mark();
    auto const logits = pass.scratch.template take<value>({rows, what_.count});
    kernels::linear(logits, x, packed(packed_router_, pass, router_.value), {});
    kernels::route(saved.probabilities, saved.chosen, saved.weights, logits);
    kernels::deal(saved.places, own_row(saved, pass), saved.chosen);
    auto const questions = pass.scratch.template take<value>({rows * what_.chosen, what_.channels});
    kernels::spread(questions, x, saved.places);
    ask(pass, saved, questions);
    kernels::collect(y, saved.answers, saved.places, saved.weights);
    if (pass.training() && what_.balance != 0) {
      pass.loss.sum += what_.balance * static_cast<double>(context) *
                       kernels::imbalance(sums{}, saved.probabilities, saved.chosen, context, 0);
    }
    pass.scratch.rewind(here);
    return y;
  }

  /// dx = the gradient of x.
  void backward(pass<Env>& pass, saved& saved, view dx, view dy, std::int64_t context) {
    auto const here = pass.scratch.mark();
    auto const danswers = pass.scratch.template take<value>(saved.answers.extents());
    auto const dquestions = pass.scratch.template take<value>(saved.answers.extents());
    auto const dweights = pass.scratch.template take<accumulate>(saved.weights.extents());
    kernels::collect_backward(danswers, dweights, dy, saved.answers, saved.places, saved.weights);
    ask_backward(pass, saved, dquestions, danswers);
    kernels::collect(dx, dquestions, saved.places, sums{});
    sums slopes;
    if (what_.balance != 0) {
      slopes = pass.scratch.template take<accumulate>(saved.probabilities.extents());
      kernels::imbalance(slopes, saved.probabilities, saved.chosen, context, what_.balance * pass.weight);
    }
    auto const dlogits = pass.scratch.template take<value>(saved.probabilities.extents());
    kernels::route_backward(dlogits, dweights, saved.probabilities, saved.chosen, saved.weights, slopes);
    kernels::linear_backward_weight(router_.gradient, {}, saved.x, dlogits, ops::orientation::in_out);
    kernels::linear_backward_input(dx, dlogits, packed(packed_router_, pass, router_.value), {.accumulate = true});
    pass.scratch.rewind(here);
  }

  /// The same for other ranks' rows alone.
  void serve_forward(pass<Env>& pass, saved& saved) {
    for (auto& each : own_row(saved, pass)) each = 0;
    saved.answers = pass.take({0, what_.channels});
    ask(pass, saved, saved.answers);
  }
  void serve_backward(pass<Env>& pass, saved& saved) { ask_backward(pass, saved, saved.answers, saved.answers); }

 private:
  static parameter<Env> matrix(std::string name, shape extents, double scale) {
    return {{std::move(name), extents, {initial::distribution::normal, scale}, true}, {}, {}};
  }
  static parameter<Env> bias(std::string name, shape extents) {
    return {{std::move(name), extents, {}, false}, {}, {}};
  }
  [[nodiscard]] parameter<Env> dealt(parameter<Env> whole) const {
    if (own_.ways > 1) whole.info = part_of(whole.info, 0, here_);
    whole.info.dealt = own_.ways > 1;
    return whole;
  }
  template <class View>
  static auto& packed(ops::weights<value, space>& into, pass<Env> const& pass, View values) {
    into.bind(values, ops::orientation::in_out);
    into.refresh(pass.version);
    return into;
  }
  // Of expert e of those here.
  template <class View>
  static View matrix_of(View all, std::int64_t e) {
    auto const n = all.extent(1) * all.extent(2);
    return all.flat(e * n, n).reshaped({all.extent(1), all.extent(2)});
  }
  template <class View>
  static View bias_of(View all, std::int64_t e) {
    return all.flat(e * all.extent(1), all.extent(1));
  }
  auto& packed_up(pass<Env> const& pass, std::int64_t e) {
    return packed(packed_up_[static_cast<std::size_t>(e)], pass, matrix_of(up_.value, e));
  }
  auto& packed_down(pass<Env> const& pass, std::int64_t e) {
    return packed(packed_down_[static_cast<std::size_t>(e)], pass, matrix_of(down_.value, e));
  }

  std::span<std::int64_t> own_row(saved& saved, pass<Env> const& pass) const {
    saved.table.resize(static_cast<std::size_t>(pass.experts.ways() * what_.count));
    return std::span(saved.table)
        .subspan(static_cast<std::size_t>(own_.place * what_.count), static_cast<std::size_t>(what_.count));
  }
  [[nodiscard]] std::int64_t rows_of(saved const& saved, int rank, std::int64_t expert) const {
    return saved.table[static_cast<std::size_t>(rank * what_.count + expert)];
  }
  [[nodiscard]] std::int64_t rows_of(saved const& saved, int rank, share::range experts) const {
    std::int64_t sum = 0;
    for (auto e = experts.first; e < experts.first + experts.count; ++e) sum += rows_of(saved, rank, e);
    return sum;
  }
  // Rows that come from each rank, and that go to each.
  void count(saved const& saved) {
    come_.clear();
    go_.clear();
    for (int rank = 0; rank < own_.ways; ++rank) {
      come_.push_back(rows_of(saved, rank, here_));
      go_.push_back(rows_of(saved, own_.place, share{rank, own_.ways}.of(what_.count)));
    }
  }
  // Calls f(e, first, n) for each expert here that somebody has chosen: its rows of `gathered`.
  template <class F>
  void for_each_here(saved const& saved, F&& f) const {
    std::int64_t first = 0;
    for (std::int64_t e = 0; e < here_.count; ++e) {
      std::int64_t n = 0;
      for (int rank = 0; rank < own_.ways; ++rank) n += rows_of(saved, rank, here_.first + e);
      if (n > 0) f(e, first, n);
      first += n;
    }
  }
  // What has come lies rank by rank, and within a rank expert by expert; experts want theirs together.
  void sort(saved const& saved, view by_expert, view by_rank, bool back) const {
    std::int64_t to = 0;
    for (std::int64_t e = 0; e < here_.count; ++e) {
      std::int64_t before = 0;  // rows of the ranks before
      for (int rank = 0; rank < own_.ways; ++rank) {
        auto const n = rows_of(saved, rank, here_.first + e);
        auto const from = before + rows_of(saved, rank, {here_.first, e});
        if (n > 0) {
          auto const a = by_expert.rows(to, n);
          auto const b = by_rank.rows(from, n);
          kernels::copy(back ? b : a, back ? a : b);
        }
        before += rows_of(saved, rank, here_);
        to += n;
      }
    }
  }
  // Rows sorted by expert, each rank's own, to where the experts are; and the other way.
  void to_experts(pass<Env>& pass, saved const& saved, view gathered, view own) {
    if (own_.ways == 1) return kernels::copy(gathered, own);
    auto const here = pass.scratch.mark();
    auto const come = pass.scratch.template take<value>(gathered.extents());
    pass.experts.trade(come, come_, own, go_);
    sort(saved, gathered, come, false);
    pass.scratch.rewind(here);
  }
  void from_experts(pass<Env>& pass, saved const& saved, view own, view gathered) {
    if (own_.ways == 1) return kernels::copy(own, gathered);
    auto const here = pass.scratch.mark();
    auto const come = pass.scratch.template take<value>(gathered.extents());
    sort(saved, gathered, come, true);
    pass.experts.trade(own, go_, come, come_);
    pass.scratch.rewind(here);
  }

  void ask(pass<Env>& pass, saved& saved, view questions) {
    pass.experts.gather(saved.table);
    count(saved);
    std::int64_t rows = 0;
    for (auto const each : come_) rows += each;
    saved.gathered = pass.take({rows, what_.channels});
    saved.before = pass.take({rows, what_.hidden});
    saved.inner = pass.take({rows, what_.hidden});
    to_experts(pass, saved, saved.gathered, questions);
    auto const here = pass.scratch.mark();
    auto const answers = pass.scratch.template take<value>(saved.gathered.extents());
    for_each_here(saved, [&](std::int64_t e, std::int64_t first, std::int64_t n) {
      kernels::linear(saved.inner.rows(first, n), saved.gathered.rows(first, n), packed_up(pass, e),
                      {.bias = bias_of(up_bias_.value, e),
                       .act = ops::activation::gelu,
                       .before_activation = saved.before.rows(first, n)});
      kernels::linear(answers.rows(first, n), saved.inner.rows(first, n), packed_down(pass, e),
                      {.bias = bias_of(down_bias_.value, e)});
    });
    from_experts(pass, saved, saved.answers, answers);
    pass.scratch.rewind(here);
  }

  void ask_backward(pass<Env>& pass, saved& saved, view dquestions, view danswers) {
    count(saved);
    auto const here = pass.scratch.mark();
    auto const dgathered = pass.scratch.template take<value>(saved.gathered.extents());
    auto const dinner = pass.scratch.template take<value>(saved.inner.extents());
    to_experts(pass, saved, dgathered, danswers);
    for_each_here(saved, [&](std::int64_t e, std::int64_t first, std::int64_t n) {
      auto const dy = dgathered.rows(first, n);
      auto const inner = dinner.rows(first, n);
      kernels::linear_backward_weight(matrix_of(down_.gradient, e), bias_of(down_bias_.gradient, e),
                                      saved.inner.rows(first, n), dy, ops::orientation::in_out);
      kernels::linear_backward_input(inner, dy, packed_down(pass, e),
                                     {ops::activation::gelu, saved.before.rows(first, n), false});
      kernels::linear_backward_weight(matrix_of(up_.gradient, e), bias_of(up_bias_.gradient, e),
                                      saved.gathered.rows(first, n), inner, ops::orientation::in_out);
      kernels::linear_backward_input(dy, inner, packed_up(pass, e), {});
    });
    from_experts(pass, saved, dquestions, dgathered);
    pass.scratch.rewind(here);
  }

  experts what_;
  share own_;
  share::range here_;  // experts that lie here
  parameter<Env> router_;
  parameter<Env> up_, up_bias_;
  parameter<Env> down_, down_bias_;
  ops::weights<value, space> packed_router_;
  std::vector<ops::weights<value, space>> packed_up_, packed_down_;
  std::vector<std::int64_t> come_, go_;  // rows from and to each rank, in the pass under way
};

}  // namespace trireme::nn

// ---- trireme/nn/layer_norm.hpp
namespace trireme::nn {

/// y = (x - mean(x)) / sqrt(var(x) + epsilon) * gain + bias, row by row.
///
/// Shapes   x, y (rows, channels); gain, bias (channels).
/// Bytes    saves a reference to x, and the mean and 1/deviation of each row.
/// Method   [Ba, Kiros, Hinton, "Layer normalization", 2016].
struct layer_norm {
  std::int64_t channels = 0;
  double epsilon = 1e-5;
  friend bool operator==(layer_norm const&, layer_norm const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class layer_norm::instance {
  using space = typename Env::space;
  using accumulate = typename Env::accumulate;
  using kernels = ops::on<space>;

 public:
  using view = tensor_view<typename Env::compute, space>;
  struct saved {
    view x;                               // (rows, channels)
    tensor_view<accumulate, space> mean;  // (rows)
    tensor_view<accumulate, space> rstd;  // (rows)
  };

  /// Everybody in a tensor group has it; the first answers for it.
  instance(layer_norm const& description, std::string const& name, share own = {})
      : what_(description),
        gain_{{name + ".weight", {what_.channels}, {initial::distribution::ones, 0}, false}, {}, {}},
        bias_{{name + ".bias", {what_.channels}, {}, false}, {}, {}} {
    gain_.info.answers = bias_.info.answers = own.place == 0;
  }

  void visit(auto&& each) {
    each(gain_);
    each(bias_);
  }

  view forward(pass<Env>& pass, saved& saved, view x) {
    auto const rows = x.extent(0);
    saved = {x, pass.activations.template take<accumulate>({rows}), pass.activations.template take<accumulate>({rows})};
    auto const y = pass.take(x.extents());
    kernels::layer_norm(y, saved.mean, saved.rstd, x, gain_.value, bias_.value, what_.epsilon);
    return y;
  }
  /// dx = or += the gradient of x. Where rows are cut, gain and bias get the sum of all ranks' rows.
  void backward(pass<Env>& pass, saved const& saved, view dx, view dy, bool accumulate_dx) {
    auto dgain = gain_.gradient;
    auto dbias = bias_.gradient;
    auto const here = pass.scratch.mark();
    auto const n = what_.channels;
    tensor_view<accumulate, space> terms;
    if (pass.group.cuts_rows()) {
      terms = pass.scratch.template take<accumulate>({2 * n});
      kernels::fill(terms, 0.0);
      dgain = terms.flat(0, n);
      dbias = terms.flat(n, n);
    }
    kernels::layer_norm_backward(dx, dgain, dbias, dy, saved.x, saved.mean, saved.rstd, gain_.value, accumulate_dx);
    if (pass.group.cuts_rows()) {
      pass.group.sum(terms);
      kernels::add(gain_.gradient, dgain);
      kernels::add(bias_.gradient, dbias);
    }
    pass.scratch.rewind(here);
  }

 private:
  layer_norm what_;
  parameter<Env> gain_;
  parameter<Env> bias_;
};

}  // namespace trireme::nn

// ---- trireme/nn/gpt_units.hpp (goes on)
namespace trireme::nn {

/// The numbers that all units of a GPT share.
struct gpt_shape {
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t channels = 0;
  double dropout = 0;
  friend bool operator==(gpt_shape const&, gpt_shape const&) = default;
};

namespace detail {

/// The token table, used by the first and the last unit: one tied tensor, of which each rank of a group has some rows.
template <class Env>
[[nodiscard]] parameter<Env> token_table(gpt_shape const& shape, share own) {
  if (own.ways > shape.vocabulary) {
    throw config_error(text("trireme::nn::gpt: a vocabulary of ", shape.vocabulary, " cannot be cut into ", own.ways,
                            " ways; a tensor group has at most as many ranks as there are tokens"));
  }
  parameter_info info{
      "transformer.wte.weight", {shape.vocabulary, shape.channels}, {initial::distribution::normal, 0.02}, true};
  if (own.ways > 1) info = part_of(info, 0, own.of(shape.vocabulary));
  return {info, {}, {}};
}
/// GPT-2 scales what is added to the residual stream down with depth.
[[nodiscard]] inline double residual_scale(gpt_shape const& shape) {
  return 0.02 / std::sqrt(2.0 * static_cast<double>(shape.layers));
}
[[nodiscard]] inline ops::table_part tokens_here(gpt_shape const& shape, share own) {
  return {own.of(shape.vocabulary).first, shape.vocabulary};
}

}  // namespace detail

/// Tokens to vectors: y[b,t] = wte[token[b,t]] + wpe[t], then dropout.
///
/// Shapes   tokens (B, T) int32 from the batch, y (B*T, C): the rows of it that lie here.
/// Ranks    each of a tensor group has some tokens; a token that lies elsewhere counts as 0 in the sum over the group.
struct gpt_embedding {
  gpt_shape shape;
  friend bool operator==(gpt_embedding const&, gpt_embedding const&) = default;

  template <class Env>
  class instance {
    using space = typename Env::space;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<typename Env::compute, space>;
    struct saved {};

    explicit instance(gpt_embedding const& description, share own = {})
        : shape_(description.shape),
          part_(detail::tokens_here(shape_, own)),
          tokens_(detail::token_table<Env>(shape_, own)),
          positions_{{"transformer.wpe.weight",
                      {shape_.context, shape_.channels},
                      {initial::distribution::normal, 0.02},
                      true},
                     {},
                     {}} {
      positions_.info.answers = own.place == 0;
    }

    void visit(auto&& each) {
      each(tokens_);
      each(positions_);
    }
    view forward(pass<Env>& pass, saved&, view) {
      auto const tokens = pass.batch.inputs.template as<std::int32_t>();  // (B,T)
      if (tokens.rank() != 2 || tokens.extent(1) > shape_.context) {
        throw config_error(text("trireme::nn::gpt: tokens of shape ", to_string(tokens.extents()),
                                " do not fit a context of ", shape_.context));
      }
      auto const all = pass.take({tokens.size(), shape_.channels});  // (B*T,C)
      bool const adds_positions = pass.group.place() == 0;
      kernels::embed(all, tokens, tokens_.value, adds_positions ? positions_.value : decltype(positions_.value){},
                     part_);
      auto const y = pass.group.reduce(partial_sum<view>(all));  // the rows that lie here
      kernels::dropout(y, site(pass));
      return y;
    }
    view backward(pass<Env>& pass, saved&, view dy) {
      kernels::dropout(dy, site(pass));
      auto const tokens = pass.batch.inputs.template as<std::int32_t>();
      auto const all = pass.group.gather(dy, tokens.size(), pass.scratch);
      kernels::embed_backward(tokens_.gradient, positions_.gradient, all, tokens, part_);
      return {};
    }

   private:
    [[nodiscard]] ops::dropout_site site(pass<Env> const& pass) const {
      auto const rows = pass.batch.inputs.extents.size();
      return {pass.training() ? shape_.dropout : 0,
              pass.key,
              0,
              pass.batch.ids,
              pass.group.rows_here(rows).first * shape_.channels,
              rows * shape_.channels};
    }
    gpt_shape shape_;
    ops::table_part part_;
    parameter<Env> tokens_;
    parameter<Env> positions_;
  };
};

/// One transformer block of GPT-2: x + attention(norm(x)), then x + mlp(norm(x)).
///
/// Shapes   x, y (B*T, C): the rows of them that lie here.
/// Ranks    each of a tensor group has some heads, and some of the numbers between the products of the mlp; a sum over
///          the group ends either branch, and begins it in the backward pass.
/// Bytes    saves 2 norms' results, queries/keys/values, the heads' output, and the two sides of the GELU.
struct gpt_block {
  gpt_shape shape;
  std::int64_t index = 0;
  friend bool operator==(gpt_block const&, gpt_block const&) = default;

  template <class Env>
  class instance {
    using space = typename Env::space;
    using value = typename Env::compute;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<value, space>;
    struct saved {
      typename layer_norm::instance<Env>::saved norm1;
      typename attention::instance<Env>::saved attended;
      typename layer_norm::instance<Env>::saved norm2;
      typename linear::instance<Env>::saved up;
      typename linear::instance<Env>::saved down;
    };

    explicit instance(gpt_block const& description, share own = {})
        : shape_(description.shape),
          site_(static_cast<std::uint32_t>(1 + 3 * description.index)),
          norm1_({shape_.channels}, name(description, "ln_1"), own),
          attention_({.channels = shape_.channels,
                      .heads = shape_.heads,
                      .dropout = shape_.dropout,
                      .site = site_,
                      .projection_scale = detail::residual_scale(shape_)},
                     name(description, "attn"), own),
          norm2_({shape_.channels}, name(description, "ln_2"), own),
          hidden_(own.of(4 * shape_.channels)),
          up_({.inputs = shape_.channels, .outputs = 4 * shape_.channels, .act = ops::activation::gelu},
              name(description, "mlp.c_fc"), part(own, linear_part::axis::outputs)),
          down_({.inputs = 4 * shape_.channels,
                 .outputs = shape_.channels,
                 .start = {initial::distribution::normal, detail::residual_scale(shape_)}},
                name(description, "mlp.c_proj"), part(own, linear_part::axis::inputs)) {}

    void visit(auto&& each) {
      norm1_.visit(each);
      attention_.visit(each);
      norm2_.visit(each);
      up_.visit(each);
      down_.visit(each);
    }

    view forward(pass<Env>& pass, saved& saved, view x) {
      auto const rows = pass.batch.inputs.extents.size();
      auto const attended = attention_.forward(pass, saved.attended, norm1_.forward(pass, saved.norm1, x), x, rows,
                                               pass.batch.inputs.extents[1]);
      auto const normed = norm2_.forward(pass, saved.norm2, attended);
      auto const hidden = up_.forward(pass, saved.up, pass.group.gather(normed, rows, pass.scratch));
      saved.up.x = normed;
      return down_.end_branch(pass, saved.down, hidden, attended, site(pass));
    }

    // dy becomes dx in place: the residual stream's gradient passes through unchanged, the branches add to it.
    view backward(pass<Env>& pass, saved& saved, view dy) {
      auto const rows = pass.batch.inputs.extents.size();
      auto const here = pass.scratch.mark();
      auto const take = [&](trireme::shape extents) { return pass.scratch.template take<value>(extents); };
      auto const dbranch = take({rows, shape_.channels});  // all rows of a branch's input
      auto const inner = pass.scratch.mark();
      auto const ddown = down_.branch_gradient(pass, saved.down, dy, site(pass));
      auto const dup = take({rows, hidden_.count});
      down_.weight_gradient(saved.down.x, ddown);
      down_.input_gradient(pass, dup, ddown, {ops::activation::gelu, saved.up.before_activation, false});
      up_.weight_gradient(pass.group.gather(saved.up.x, rows, pass.scratch), dup);
      auto const dnormed = pass.group.reduce(up_.input_gradient_term(pass, dbranch, dup));
      pass.scratch.rewind(inner);
      norm2_.backward(pass, saved.norm2, dy, dnormed, true);
      auto const dattention = attention_.backward(pass, saved.attended, dbranch, dy, pass.batch.inputs.extents[1]);
      norm1_.backward(pass, saved.norm1, dy, dattention, true);
      pass.scratch.rewind(here);
      return dy;
    }

   private:
    static std::string name(gpt_block const& description, char const* part) {
      return text("transformer.h.", description.index, ".", part);
    }
    [[nodiscard]] linear_part part(share own, linear_part::axis axis) const {
      return own.ways == 1 ? linear_part{} : linear_part{axis, hidden_, own.place};
    }
    [[nodiscard]] ops::dropout_site site(pass<Env> const& pass) const {
      return {pass.training() ? shape_.dropout : 0, pass.key, site_ + 2, pass.batch.ids};
    }

    gpt_shape shape_;
    std::uint32_t site_;
    layer_norm::instance<Env> norm1_;
    attention::instance<Env> attention_;
    layer_norm::instance<Env> norm2_;
    share::range hidden_;  // numbers between the two products, those that lie here
    linear::instance<Env> up_;
    linear::instance<Env> down_;
  };
};

}  // namespace trireme::nn

// ---- trireme/nn/gpt_experts.hpp (goes on)
namespace trireme::nn {

/// A transformer block with a mixture of experts in the place of its mlp: x + attention(norm(x)), then
/// x + dropout(experts(norm(x))).
///
/// Shapes   x, y (B*T, C): the rows of them that lie here.
/// Ranks    experts are dealt out over an expert group. A tensor group shares the heads; each of its ranks runs the
///          router and the experts on all rows, with the same bits.
struct gpt_expert_block {
  gpt_shape shape;
  std::int64_t index = 0;
  std::int64_t experts = 1;
  std::int64_t experts_a_token = 1;
  double balance = 0;
  friend bool operator==(gpt_expert_block const&, gpt_expert_block const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class gpt_expert_block::instance {
  using space = typename Env::space;
  using value = typename Env::compute;
  using kernels = ops::on<space>;

 public:
  using view = tensor_view<value, space>;
  struct saved {
    typename layer_norm::instance<Env>::saved norm1;
    typename attention::instance<Env>::saved attended;
    typename layer_norm::instance<Env>::saved norm2;
    typename nn::experts::instance<Env>::saved mixed;
  };

  explicit instance(gpt_expert_block const& description, share own = {}, share experts = {})
      : shape_(description.shape),
        site_(static_cast<std::uint32_t>(1 + 3 * description.index)),
        norm1_({shape_.channels}, name(description, "ln_1"), own),
        attention_({.channels = shape_.channels,
                    .heads = shape_.heads,
                    .dropout = shape_.dropout,
                    .site = site_,
                    .projection_scale = detail::residual_scale(shape_)},
                   name(description, "attn"), own),
        norm2_({shape_.channels}, name(description, "ln_2"), own),
        experts_({.channels = shape_.channels,
                  .hidden = 4 * shape_.channels,
                  .count = description.experts,
                  .chosen = description.experts_a_token,
                  .balance = description.balance,
                  .projection_scale = detail::residual_scale(shape_)},
                 name(description, "mlp"), experts) {
    experts_.visit([&](parameter<Env>& each) { each.info.answers = own.place == 0; });
  }

  void visit(auto&& each) {
    norm1_.visit(each);
    attention_.visit(each);
    norm2_.visit(each);
    experts_.visit(each);
  }

  view forward(pass<Env>& pass, saved& saved, view x) {
    auto const rows = pass.batch.inputs.extents.size();
    auto const context = pass.batch.inputs.extents[1];
    auto const attended =
        attention_.forward(pass, saved.attended, norm1_.forward(pass, saved.norm1, x), x, rows, context);
    auto const normed = norm2_.forward(pass, saved.norm2, attended);
    auto const all = experts_.forward(pass, saved.mixed, pass.group.gather(normed, rows, pass.scratch), context);
    saved.mixed.x = normed;
    auto const y = rows_here(pass, all);
    kernels::dropout(y, site(pass));
    kernels::add(y, attended);
    return y;
  }

  // dy becomes dx in place, as in gpt_block.
  view backward(pass<Env>& pass, saved& saved, view dy) {
    auto const rows = pass.batch.inputs.extents.size();
    auto const context = pass.batch.inputs.extents[1];
    auto const here = pass.scratch.mark();
    auto const dbranch = pass.scratch.template take<value>({rows, shape_.channels});
    auto const dmixed = pass.scratch.template take<value>(dy.extents());
    kernels::copy(dmixed, dy);
    kernels::dropout(dmixed, site(pass));
    saved.mixed.x = pass.group.gather(saved.mixed.x, rows, pass.scratch);
    experts_.backward(pass, saved.mixed, dbranch, pass.group.gather(dmixed, rows, pass.scratch), context);
    norm2_.backward(pass, saved.norm2, dy, rows_here(pass, dbranch), true);
    auto const dattention = attention_.backward(pass, saved.attended, dbranch, dy, context);
    norm1_.backward(pass, saved.norm1, dy, dattention, true);
    pass.scratch.rewind(here);
    return dy;
  }

  void serve_forward(pass<Env>& pass, saved& saved) { experts_.serve_forward(pass, saved.mixed); }
  void serve_backward(pass<Env>& pass, saved& saved) { experts_.serve_backward(pass, saved.mixed); }

 private:
  static std::string name(gpt_expert_block const& description, char const* part) {
    return text("transformer.h.", description.index, ".", part);
  }
  [[nodiscard]] ops::dropout_site site(pass<Env> const& pass) const {
    auto const rows = pass.batch.inputs.extents.size();
    return {pass.training() ? shape_.dropout : 0,
            pass.key,
            site_ + 2,
            pass.batch.ids,
            pass.group.rows_here(rows).first * shape_.channels,
            rows * shape_.channels};
  }
  static view rows_here(pass<Env> const& pass, view all) {
    auto const here = pass.group.rows_here(all.extent(0));
    return all.rows(here.first, here.count);
  }

  gpt_shape shape_;
  std::uint32_t site_;
  layer_norm::instance<Env> norm1_;
  attention::instance<Env> attention_;
  layer_norm::instance<Env> norm2_;
  nn::experts::instance<Env> experts_;
};

}  // namespace trireme::nn

// ---- trireme/nn/gpt_head.hpp
namespace trireme::nn {

/// The last norm, the tied head and the cross-entropy, a chunk of rows at a time: the logits of a large vocabulary
/// are never all in memory.
///
/// Shapes   x (B*T, C), targets (B, T) int32 from the batch; targets < 0 are left out of the loss.
/// Bytes    chunk * vocabulary logits of scratch; saves the gradient of the norm's result (B*T, C).
/// Ranks    each of a tensor group has the logits of some tokens: the largest one and the sum of exponentials are the
///          group's, the target's logit comes from whoever has it. All have the loss.
/// Numerics the loss is a sum in double over rows in order. In training forward also forms the head's gradients, while
///          the logits are there: three products instead of four.
struct gpt_head {
  gpt_shape shape;
  friend bool operator==(gpt_head const&, gpt_head const&) = default;

  template <class Env>
  class instance {
    using space = typename Env::space;
    using value = typename Env::compute;
    using kernels = ops::on<space>;

   public:
    using view = tensor_view<value, space>;
    struct saved {
      typename layer_norm::instance<Env>::saved norm;
      view dnorm;  // (B*T, C), the rows that lie here
    };

    explicit instance(gpt_head const& description, share own = {})
        : shape_(description.shape),
          part_(detail::tokens_here(shape_, own)),
          norm_({shape_.channels}, "transformer.ln_f", own),
          tokens_(detail::token_table<Env>(shape_, own)) {}

    void visit(auto&& each) {
      norm_.visit(each);
      each(tokens_);
    }

    view forward(pass<Env>& pass, saved& saved, view x) {
      auto const rows = pass.batch.inputs.extents.size();
      auto const normed = pass.group.gather(norm_.forward(pass, saved.norm, x), rows, pass.scratch);  // (B*T,C)
      table_.bind(tokens_.value, ops::orientation::out_in);
      table_.refresh(pass.version);
      if (pass.purpose == purpose::predict) return last_logits(pass, normed);
      auto const targets = pass.batch.targets.template as<std::int32_t>().flat();  // (B*T)
      if (targets.size() != rows) {
        throw config_error(text("trireme::nn::gpt: ", targets.size(), " targets for ", rows, " tokens"));
      }
      double const weight = pass.weight / static_cast<double>(pass.batch.inputs.extents[1]);
      view dnormed;
      if (pass.training()) dnormed = pass.take(normed.extents());
      auto const here = pass.scratch.mark();
      auto const logits = pass.scratch.template take<value>({std::min(chunk(), rows), words()});
      for (std::int64_t first = 0; first < rows; first += chunk()) {
        auto const n = std::min(chunk(), rows - first);
        auto const part = logits.rows(0, n);
        kernels::linear(part, normed.rows(first, n), table_, {});
        pass.loss += cross_entropy(pass, part, targets.flat(first, n), weight);
        if (!pass.training()) continue;
        kernels::linear_backward_input(dnormed.rows(first, n), part, table_, {});
        kernels::linear_backward_weight(tokens_.gradient, {}, normed.rows(first, n), part, ops::orientation::out_in);
      }
      pass.scratch.rewind(here);
      if (pass.training()) saved.dnorm = pass.group.reduce(partial_sum<view>(dnormed));
      return {};
    }

    view backward(pass<Env>& pass, saved& saved, view) {
      auto const dx = pass.take(saved.dnorm.extents());
      norm_.backward(pass, saved.norm, dx, saved.dnorm, false);
      return dx;
    }

   private:
    // Of the tokens that lie here.
    [[nodiscard]] std::int64_t words() const { return tokens_.info.extents[0]; }
    // About 4 MiB of float logits, but enough rows to keep the products busy.
    [[nodiscard]] std::int64_t chunk() const {
      return std::clamp<std::int64_t>((std::int64_t{1} << 20) / shape_.vocabulary / 64 * 64, 256, 4096);
    }
    loss_sum cross_entropy(pass<Env>& pass, view logits, tensor_view<std::int32_t const, space> targets,
                           double weight) {
      if (pass.group.ways() == 1) return kernels::cross_entropy(logits, targets, weight, pass.training());
      auto const n = targets.size();
      auto const here = pass.scratch.mark();
      auto const peaks = pass.scratch.template take<typename Env::accumulate>({n});
      auto const both = pass.scratch.template take<typename Env::accumulate>({2 * n});
      auto const masses = both.flat(0, n);
      auto const chosen = both.flat(n, n);
      kernels::row_peaks(logits, peaks);
      pass.group.max(peaks);
      kernels::row_masses(logits, targets, part_, peaks, masses, chosen);
      pass.group.sum(both);
      auto const loss =
          kernels::cross_entropy_part(logits, targets, part_, peaks, masses, chosen, weight, pass.training());
      pass.scratch.rewind(here);
      return loss;
    }
    // What follows each sample: (B, vocabulary).
    view last_logits(pass<Env>& pass, view normed) {
      auto const batch = pass.batch.inputs.extents[0];
      auto const context = pass.batch.inputs.extents[1];
      auto const last = pass.take({batch, shape_.channels});
      for (std::int64_t b = 0; b < batch; ++b) {
        kernels::copy(last.rows(b, 1), normed.rows(b * context + context - 1, 1));
      }
      auto const here = pass.take({batch, words()});
      kernels::linear(here, last, table_, {});
      if (pass.group.ways() == 1) return here;
      auto const sums = pass.activations.template take<typename Env::accumulate>({batch, shape_.vocabulary});
      kernels::fill(sums, 0.0);
      for (std::int64_t b = 0; b < batch; ++b) {
        kernels::copy(sums.flat(b * shape_.vocabulary + part_.first, words()), here.flat(b * words(), words()));
      }
      pass.group.sum(sums);
      auto const logits = pass.take({batch, shape_.vocabulary});
      kernels::copy(logits, sums);
      return logits;
    }

    gpt_shape shape_;
    ops::table_part part_;
    layer_norm::instance<Env> norm_;
    parameter<Env> tokens_;
    ops::weights<value, space> table_;
  };
};

}  // namespace trireme::nn

// ---- trireme/nn/gpt.hpp (goes on)
namespace trireme::nn {

/// GPT-2: learned positions, norms before each part, tanh GELU, biases everywhere, the head tied to the token table.
///
/// Shapes   inputs and targets (B, T) int32, T <= context. Parameters have Hugging Face's names and layouts.
/// Method   [Radford et al., "Language models are unsupervised multitask learners", 2019].
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, channels are not
///          divisible by heads, or dropout is not in [0, 1).
/// @models  staged_model: one unit for the embeddings, one a block, one for norm, head and loss.
struct gpt {
  using policy_category = slot::model;

  std::int64_t vocabulary = 256;
  std::int64_t context = 256;
  std::int64_t layers = 6;
  std::int64_t heads = 6;
  std::int64_t channels = 384;
  double dropout = 0;
  bool checkpointed = false;         ///< blocks save their input only, and are run once more in the backward pass
  std::int64_t experts = 0;          ///< mlps a block, of which each token chooses some; 0: one mlp, for all tokens
  std::int64_t experts_a_token = 2;  ///< how many it chooses
  double balance = 0;                ///< weight of the loss that asks tokens to choose all experts alike
  friend bool operator==(gpt const&, gpt const&) = default;

  void validate() const {
    auto const positive = [](char const* what, std::int64_t number) {
      if (number < 1) throw config_error(text("trireme::nn::gpt: ", what, " is ", number, "; it must be at least 1"));
    };
    positive("vocabulary", vocabulary);
    positive("context", context);
    positive("layers", layers);
    positive("heads", heads);
    positive("channels", channels);
    if (channels % heads != 0) {
      throw config_error(text("trireme::nn::gpt: ", channels, " channels are not divisible by ", heads, " heads"));
    }
    if (!(dropout >= 0 && dropout < 1)) {
      throw config_error(text("trireme::nn::gpt: dropout ", dropout, " is not in [0, 1)"));
    }
    if (experts < 0 || (experts > 0 && (experts_a_token < 1 || experts_a_token > experts))) {
      throw config_error(text("trireme::nn::gpt: ", experts_a_token, " experts a token of ", experts,
                              "; a token chooses at least one, and at most all of them"));
    }
    if (!(balance >= 0)) throw config_error(text("trireme::nn::gpt: balance ", balance, " is below 0"));
  }

  template <class Emit>
  void units(Emit&& emit) const {
    gpt_shape const shape{vocabulary, context, layers, heads, channels, dropout};
    emit(gpt_embedding{shape});
    for (std::int64_t index = 0; index < layers; ++index) {
      if (experts > 0) {
        block(emit, gpt_expert_block{shape, index, experts, experts_a_token, balance});
      } else {
        block(emit, gpt_block{shape, index});
      }
    }
    emit(gpt_head{shape});
  }

  /// One block, as a unit of its own or checkpointed.
  template <class Emit, class Block>
  void block(Emit& emit, Block const& one) const {
    if (checkpointed) {
      emit(nn::checkpointed<Block>{one});  // nvcc does not deduce it
    } else {
      emit(one);
    }
  }
};

[[nodiscard]] inline std::string to_string(gpt const& m) {
  return text("nn::gpt{.vocabulary = ", m.vocabulary, ", .context = ", m.context, ", .layers = ", m.layers,
              ", .heads = ", m.heads, ", .channels = ", m.channels, ", .dropout = ", m.dropout,
              m.checkpointed ? ", .checkpointed = true" : "",
              m.experts == 0 ? std::string()
                             : text(", .experts = ", m.experts, ", .experts_a_token = ", m.experts_a_token,
                                    m.balance > 0 ? text(", .balance = ", m.balance) : ""),
              "}");
}

}  // namespace trireme::nn

// ---- trireme/nn/mlp.hpp
namespace trireme::nn {

/// One layer of a multi-layer perceptron; the first one reads the batch, the last one is compared with its targets.
///
/// Shapes   x (B, inputs), y (B, outputs). The loss of a sample is the mean of its squared errors.
struct mlp_layer {
  linear layer;
  std::int64_t index = 0;
  bool first = false;
  bool last = false;
  friend bool operator==(mlp_layer const&, mlp_layer const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class mlp_layer::instance {
  using space = typename Env::space;
  using kernels = ops::on<space>;

 public:
  using view = tensor_view<typename Env::compute, space>;
  struct saved {
    typename linear::instance<Env>::saved layer;
    view dy;  // (B, outputs), of the last layer
  };

  explicit instance(mlp_layer const& description)
      : what_(description), layer_(what_.layer, text("layers.", what_.index)) {}

  void visit(auto&& each) { layer_.visit(each); }

  view forward(pass<Env>& pass, saved& saved, view x) {
    if (what_.first) x = read_inputs(pass);
    auto const y = layer_.forward(pass, saved.layer, x);
    if (!what_.last || pass.purpose == purpose::predict) return y;
    saved.dy = pass.training() ? pass.take(y.extents()) : view{};
    pass.loss += kernels::squared_error(saved.dy, y, pass.batch.targets.template as<float>(), pass.weight);
    return {};
  }
  view backward(pass<Env>& pass, saved& saved, view dy) {
    auto const from = what_.last ? saved.dy : dy;
    if (!what_.first) return layer_.backward(pass, saved.layer, from);
    layer_.backward_without_input(pass, saved.layer, from);
    return {};
  }

 private:
  view read_inputs(pass<Env>& pass) const {
    auto const inputs = pass.batch.inputs.template as<float>();
    auto const count = pass.batch.count();
    if (inputs.size() != count * what_.layer.inputs) {
      throw config_error(text("trireme::nn::mlp: inputs of shape ", to_string(inputs.extents()), " for a model with ",
                              what_.layer.inputs, " inputs a sample"));
    }
    auto const x = pass.take({count, what_.layer.inputs});  // (B,inputs)
    kernels::copy(x.flat(), inputs.flat());
    return x;
  }

  mlp_layer what_;
  linear::instance<Env> layer_;
};

/// A multi-layer perceptron for regression: hidden layers with an activation, a linear last layer, squared error.
///
/// Shapes   inputs (B, inputs) float, targets (B, outputs) float.
/// Errors   config_error from validate() if a size is not positive.
/// @models  staged_model, one unit a layer.
struct mlp {
  using policy_category = slot::model;

  std::int64_t inputs = 1;
  std::vector<std::int64_t> hidden{};
  std::int64_t outputs = 1;
  ops::activation act = ops::activation::tanh;
  friend bool operator==(mlp const&, mlp const&) = default;

  void validate() const {
    auto const positive = [](char const* what, std::int64_t number) {
      if (number < 1) throw config_error(text("trireme::nn::mlp: ", what, " is ", number, "; it must be at least 1"));
    };
    positive("inputs", inputs);
    positive("outputs", outputs);
    for (auto const width : hidden) positive("a hidden layer", width);
  }

  template <class Emit>
  void units(Emit&& emit) const {
    std::int64_t width = inputs;
    std::int64_t index = 0;
    auto const layer = [&](std::int64_t next, ops::activation with, bool last) {
      initial const start{initial::distribution::uniform, 1 / std::sqrt(static_cast<double>(width))};
      emit(mlp_layer{{.inputs = width, .outputs = next, .act = with, .start = start, .bias_start = start},
                     index,
                     index == 0,
                     last});
      width = next;
      ++index;
    };
    for (auto const next : hidden) layer(next, act, false);
    layer(outputs, ops::activation::none, true);
  }
};

[[nodiscard]] inline std::string to_string(mlp const& m) {
  std::string hidden;
  for (auto const width : m.hidden) hidden += text(hidden.empty() ? "" : ", ", width);
  char const* const names[] = {"none", "gelu", "tanh", "relu"};
  return text("nn::mlp{.inputs = ", m.inputs, ", .hidden = {", hidden, "}, .outputs = ", m.outputs,
              ", .act = ops::activation::", names[static_cast<int>(m.act)], "}");
}

}  // namespace trireme::nn

// ---- trireme/ops/host/detail/attention_scratch.hpp
namespace trireme::ops::detail {

/// Query rows that are worked on together: one lane each, so that softmax needs no sum across lanes.
inline constexpr std::int64_t attention_rows = 32;
/// Key rows after which the products turn round, so that what they share stays in the first-level cache.
inline constexpr std::int64_t attention_keys = 64;

/// The rows of a head, in whole blocks of query rows.
[[nodiscard]] constexpr std::int64_t padded_rows(std::int64_t context) noexcept {
  return (context + attention_rows - 1) / attention_rows * attention_rows;
}
/// The columns of a head, in whole vectors.
[[nodiscard]] constexpr std::int64_t padded_width(std::int64_t width) noexcept { return (width + 15) / 16 * 16; }

/// Elements of scratch memory that one head of `width` columns needs.
[[nodiscard]] constexpr std::int64_t attention_scratch(std::int64_t context, std::int64_t width,
                                                       bool backward) noexcept {
  auto const rows = padded_rows(context);
  auto const matrix = rows * padded_width(width);
  auto const block = attention_rows * padded_width(width);
  auto const chunk = attention_keys * attention_rows;
  if (backward) return 4 * matrix + 5 * block + 5 * chunk + 2 * attention_rows;
  return 2 * matrix + 3 * block + rows * attention_rows + chunk + 2 * attention_rows;
}

}  // namespace trireme::ops::detail

// ---- trireme/ops/host/detail/product_types.hpp
namespace trireme::ops::detail {

/// Memory that only grows, so that the second step of a training finds it large enough.
class growing_buffer {
 public:
  growing_buffer() = default;
  growing_buffer(growing_buffer&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  growing_buffer& operator=(growing_buffer&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~growing_buffer() { release(); }

  /// At least `count` elements; what was there before may be lost.
  template <class T>
  [[nodiscard]] T* take(std::int64_t count) {
    auto const bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > bytes_) {
      release();
      address_ = host::allocate(bytes);
      bytes_ = bytes;
    }
    return static_cast<T*>(address_);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void release() noexcept {
    if (address_ != nullptr) host::deallocate(address_, bytes_);
    address_ = nullptr;
    bytes_ = 0;
  }
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

/// One inner kernel call: c (rows of a kernel, columns of a kernel) = or += a b, all of it, without edges.
struct tile_job {
  char const* a;         // element (row, step) is at a + row * a_row + step * a_step
  std::ptrdiff_t a_row;  // bytes
  std::ptrdiff_t a_step;
  char const* b;       // packed: `columns` elements a step
  std::int64_t steps;  // of one element, or of a pair of bfloat16
  float* c;
  std::int64_t c_row;  // elements
  bool accumulate;
  char const* ahead[2];  // tiles that the epilogue will touch: fetched during the k loop
  std::ptrdiff_t ahead_row[2];
};

/// What happens to a tile of sums on its way out. Matrices are those of the whole product; `ld` is their row length.
template <class T>
struct store_rule {
  T* y = nullptr;
  std::int64_t ld = 0;
  T const* bias = nullptr;
  activation act = activation::none;
  T* keep = nullptr;            // gets the value before the activation
  T const* residual = nullptr;  // added last
  T const* slope_at = nullptr;  // multiplies by act' there (then act is not applied)
  bool accumulate = false;
  [[nodiscard]] bool plain() const noexcept {
    return bias == nullptr && act == activation::none && keep == nullptr && residual == nullptr && !accumulate;
  }
};

/// Sums (rows, columns) that belong at (row, column) of the product.
template <class T>
struct store_job {
  store_rule<T> const* rule;
  accumulate_t<T> const* sums;
  std::int64_t sums_row;
  std::int64_t row;
  std::int64_t column;
  std::int64_t rows;
  std::int64_t columns;
};

/// The kernels of one CPU level, as the loops around them see them.
struct product_kernels {
  cpu_level level;
  int rows;
  int columns;
  int small_rows;  // of a second kernel, for what is left of a matrix
  int panel;       // elements a step of packed left operands: `rows` rounded up to whole cache lines or halves
  bool pairs;      // operands are pairs of bfloat16 along k, not floats
  void (*tile)(tile_job const&);
  void (*small_tile)(tile_job const&);
  void (*store_float)(store_job<float> const&);
  void (*store_bfloat16)(store_job<bfloat16> const&);
};

}  // namespace trireme::ops::detail

// ---- trireme/ops/host/detail/product_packing.hpp (goes on)
// Packing for the vector kernels: a panel holds `width` columns of a matrix, step after step, so that a kernel reads it
// front to back. A step is one float a column, or (for bfloat16 products) a pair of neighbours along k in one word.
// SSE2, which every x86-64 has, is enough: packing is bound by memory.
namespace trireme::ops::detail {

#if TRIREME_X86
/// A panel without edges.
template <int Width>
TRIREME_INLINE void copy_rows(float* panel, float const* source, std::int64_t ld, std::int64_t k) {
  for (std::int64_t step = 0; step < k; ++step, panel += Width, source += ld) {
    TRIREME_UNROLL
    for (int j = 0; j < Width; j += 4) _mm_storeu_ps(panel + j, _mm_loadu_ps(source + j));
  }
}
#endif

/// Columns of a row-major matrix, its rows being the steps: panel (k, width) from source (k, ld), `columns` wide.
inline void pack_across(float* panel, float const* source, std::int64_t ld, std::int64_t k, int width, int columns) {
#if TRIREME_X86
  if (columns == width && width == 32) return copy_rows<32>(panel, source, ld, k);
  if (columns == width && width == 16) return copy_rows<16>(panel, source, ld, k);
  if (columns == width && width == 8) return copy_rows<8>(panel, source, ld, k);
#endif
  auto const bytes = static_cast<std::size_t>(columns) * sizeof(float);
  for (std::int64_t step = 0; step < k; ++step, panel += width, source += ld) {
    std::memcpy(panel, source, bytes);
    for (int j = columns; j < width; ++j) panel[j] = 0;
  }
}
inline void pack_across(float* panel, bfloat16 const* source, std::int64_t ld, std::int64_t k, int width, int columns) {
  for (std::int64_t step = 0; step < k; ++step, panel += width, source += ld) {
    int j = 0;
#if TRIREME_X86
    for (; j + 8 <= columns; j += 8) {
      __m128i const bits = _mm_loadu_si128(reinterpret_cast<__m128i const*>(source + j));
      __m128i const zero = _mm_setzero_si128();
      _mm_storeu_si128(reinterpret_cast<__m128i*>(panel + j), _mm_unpacklo_epi16(zero, bits));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(panel + j + 4), _mm_unpackhi_epi16(zero, bits));
    }
#endif
    for (; j < columns; ++j) panel[j] = static_cast<float>(source[j]);
    for (; j < width; ++j) panel[j] = 0;
  }
}

[[nodiscard]] inline std::uint32_t bfloat16_pair(bfloat16 low, bfloat16 high) noexcept {
  return static_cast<std::uint32_t>(low.bits) | (static_cast<std::uint32_t>(high.bits) << 16);
}

/// The same in pairs: step s of the panel holds rows 2 s and 2 s + 1; an odd last row is paired with zeros.
inline void pack_across(std::uint32_t* panel, bfloat16 const* source, std::int64_t ld, std::int64_t k, int width,
                        int columns) {
  for (std::int64_t row = 0; row < k; row += 2, panel += width) {
    bfloat16 const* const low = source + row * ld;
    bfloat16 const* const high = low + ld;
    bool const both = row + 1 < k;
    int j = 0;
#if TRIREME_X86
    for (; j + 8 <= columns; j += 8) {
      __m128i const a = _mm_loadu_si128(reinterpret_cast<__m128i const*>(low + j));
      __m128i const b = both ? _mm_loadu_si128(reinterpret_cast<__m128i const*>(high + j)) : _mm_setzero_si128();
      _mm_storeu_si128(reinterpret_cast<__m128i*>(panel + j), _mm_unpacklo_epi16(a, b));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(panel + j + 4), _mm_unpackhi_epi16(a, b));
    }
#endif
    for (; j < columns; ++j) panel[j] = bfloat16_pair(low[j], both ? high[j] : bfloat16{});
    for (; j < width; ++j) panel[j] = 0;
  }
}

/// One word of a panel from row-major data whose rows are the columns of the panel.
inline float word_along(float const* row, std::int64_t step, std::int64_t, float*) { return row[step]; }
inline float word_along(bfloat16 const* row, std::int64_t step, std::int64_t, float*) {
  return static_cast<float>(row[step]);
}
inline std::uint32_t word_along(bfloat16 const* row, std::int64_t step, std::int64_t k, std::uint32_t*) {
  return bfloat16_pair(row[2 * step], 2 * step + 1 < k ? row[2 * step + 1] : bfloat16{});
}

#if TRIREME_X86
/// Four steps of one row as floats or words.
inline __m128 words_along(float const* row, std::int64_t step, float*) { return _mm_loadu_ps(row + step); }
inline __m128 words_along(bfloat16 const* row, std::int64_t step, float*) {
  __m128i const bits = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(row + step));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
}
inline __m128 words_along(bfloat16 const* row, std::int64_t step, std::uint32_t*) {
  return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(row + 2 * step)));
}
#endif

/// Columns of a transposed matrix: panel (k, width) from source (columns, ld), whose rows are the panel's columns.
template <class Word, class T>
void pack_along(Word* panel, T const* source, std::int64_t ld, std::int64_t k, int width, int columns) {
  constexpr std::int64_t elements = sizeof(Word) / sizeof(T) == 2 && !std::is_same_v<Word, float> ? 2 : 1;
  auto const steps = (k + elements - 1) / elements;
  auto const whole = k / elements / 4 * 4;
  Word* const type = nullptr;
  for (int j = 0; j < width; j += j + 4 <= columns ? 4 : 1) {
    std::int64_t step = 0;
    if (j >= columns) {
      for (; step < steps; ++step) panel[step * width + j] = 0;
      continue;
    }
    T const* const row = source + j * ld;
    if (j + 4 > columns) {
      for (; step < steps; ++step) panel[step * width + j] = word_along(row, step, k, type);
      continue;
    }
#if TRIREME_X86
    for (; step < whole; step += 4) {
      __m128 a = words_along(row, step, type);
      __m128 b = words_along(row + ld, step, type);
      __m128 c = words_along(row + 2 * ld, step, type);
      __m128 d = words_along(row + 3 * ld, step, type);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      auto* const to = reinterpret_cast<float*>(panel + step * width + j);
      _mm_storeu_ps(to, a);
      _mm_storeu_ps(to + width, b);
      _mm_storeu_ps(to + 2 * width, c);
      _mm_storeu_ps(to + 3 * width, d);
    }
#endif
    for (; step < steps; ++step) {
      for (int i = 0; i < 4; ++i) panel[step * width + j + i] = word_along(row + i * ld, step, k, type);
    }
  }
}

/// sums[j] += the sum of column j of a panel, whose width is 8, 16 or 32.
template <class Word>
void add_panel_columns(float* sums, Word const* panel, std::int64_t steps, int width, int columns) {
  alignas(16) float total[32] = {};
#if TRIREME_X86
  for (int j = 0; j < width; j += 8) {
    __m128 low = _mm_setzero_ps();
    __m128 high = _mm_setzero_ps();
    for (std::int64_t step = 0; step < steps; ++step) {
      auto const* const from = reinterpret_cast<__m128i const*>(panel + step * width + j);
      __m128i const a = _mm_loadu_si128(from);
      __m128i const b = _mm_loadu_si128(from + 1);
      if constexpr (std::is_same_v<Word, float>) {
        low = _mm_add_ps(low, _mm_castsi128_ps(a));
        high = _mm_add_ps(high, _mm_castsi128_ps(b));
      } else {  // a pair of bfloat16: the first in the lower half
        __m128i const upper = _mm_set1_epi32(static_cast<int>(0xffff0000U));
        low = _mm_add_ps(
            low, _mm_add_ps(_mm_castsi128_ps(_mm_slli_epi32(a, 16)), _mm_castsi128_ps(_mm_and_si128(a, upper))));
        high = _mm_add_ps(
            high, _mm_add_ps(_mm_castsi128_ps(_mm_slli_epi32(b, 16)), _mm_castsi128_ps(_mm_and_si128(b, upper))));
      }
    }
    _mm_store_ps(total + j, low);
    _mm_store_ps(total + j + 4, high);
  }
#endif
  for (int j = 0; j < columns; ++j) sums[j] += total[j];
}

}  // namespace trireme::ops::detail

// ---- trireme/ops/host/attention.hpp (goes on)
namespace trireme::ops::detail {

/// Keys that are worked on together, among those that a block of query rows sees.
struct attention_part {
  std::int64_t key;
  std::int64_t keys;
  std::int64_t skipped;  ///< rows of the block, the first ones, that see none of these keys
  [[nodiscard]] constexpr attention_part next(std::int64_t row) const noexcept;
};

/// How many keys the lanes at `lane` see of a block that begins at `row`: up to the diagonal, in halves of a block.
[[nodiscard]] constexpr std::int64_t keys_seen(std::int64_t row, std::int64_t lane) noexcept {
  constexpr auto half = attention_rows / 2;
  return row + (lane / half + 1) * half;
}

/// The part that begins with `key`; without keys after the last.
[[nodiscard]] constexpr attention_part attention_keys_from(std::int64_t row, std::int64_t key) noexcept {
  constexpr auto half = attention_rows / 2;
  auto const skipped = key < keys_seen(row, 0) ? 0 : half;
  return {key, std::min(attention_keys, keys_seen(row, skipped) - key), skipped};
}
constexpr attention_part attention_part::next(std::int64_t row) const noexcept {
  return attention_keys_from(row, key + keys);
}

/// One head of one sample: where its columns begin in the rows of qkv and y, and what is dropped in it.
struct attention_head {
  std::int64_t context;
  std::int64_t width;         ///< D, columns of this head
  std::int64_t padded_rows;   ///< context, rounded up to attention_rows
  std::int64_t padded_width;  ///< D, rounded up to 16
  std::int64_t qkv_stride;    ///< 3 C
  std::int64_t y_stride;      ///< C
  std::int64_t channels;      ///< C: keys begin C, values 2 C columns after the queries
  std::int64_t head;
  std::int64_t first_head;  ///< number of head 0 among all heads of the layer
  std::uint64_t sample;
  std::int64_t next_row;        ///< where the next head begins, from here: rows, or -1 if there is none,
  std::int64_t next_column;     ///< and columns
  dropout_site const* dropout;  ///< nullptr if nothing is dropped
};

}  // namespace trireme::ops::detail

#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/attention.inl
// Causal attention of one head of one sample; included once for each CPU level (see simd.hpp).
//
// Scores are kept transposed, one lane a query row: (keys, 32). Softmax then works along memory, without sums across
// lanes, and every operand of every product is contiguous.

// ---- trireme/ops/host/detail/attention_products.inl
// The products of attention; included once for each CPU level (see simd.hpp). F are lanes of sums, Factor what is
// multiplied: the same lanes, or words of two bfloat16, neighbours along the depth.
namespace trireme::ops::detail::TRIREME_LEVEL {

// c (Rows, Vectors * width) = or += a b, with a[m * a_row + k * a_depth] and b[k * b_row + n].
template <class F, class Factor, int Rows, int Vectors, class Real, class Word>
inline void tile_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                         Word const* b, std::int64_t b_row, std::int64_t depth, bool accumulate) {
  F sums[Rows][Vectors];
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v] = accumulate ? F::load(c + m * c_row + v * F::width) : F::all(0);
  }
  for (std::int64_t k = 0; k < depth; ++k, a += a_depth, b += b_row) {
    Factor right[Vectors];
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) right[v] = Factor::load(b + v * F::width);
    TRIREME_UNROLL
    for (int m = 0; m < Rows; ++m) {
      Factor const left = Factor::all(a[m * a_row]);
      TRIREME_UNROLL
      for (int v = 0; v < Vectors; ++v) sums[m][v] = fma(left, right[v], sums[m][v]);
    }
  }
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v].store(c + m * c_row + v * F::width);
  }
}

// The same for any number of columns, in multiples of the lanes, and rows, in multiples of 16.
template <class F, class Factor = F, class Real, class Word>
inline void block_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                          Word const* b, std::int64_t b_row, std::int64_t rows, std::int64_t columns,
                          std::int64_t depth, bool accumulate) {
  constexpr int pair = F::width == 16 ? 8 : 4;  // rows of a tile of two vectors: half the registers, or a quarter
  std::int64_t n = 0;
  for (; n + 2 * F::width <= columns; n += 2 * F::width) {
    for (std::int64_t m = 0; m < rows; m += pair) {
      tile_product<F, Factor, pair, 2>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                       accumulate);
    }
  }
  for (; n < columns; n += F::width) {
    for (std::int64_t m = 0; m < rows; m += 2 * pair) {
      tile_product<F, Factor, 2 * pair, 1>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                           accumulate);
    }
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/detail/attention.inl (goes on)
namespace trireme::ops::detail::TRIREME_LEVEL {

// to (padded_rows, padded_width) = factor * from (rows, width), zeros around it.
template <class F, class Real, class T>
inline void pack_rows(Real* to, T const* from, std::int64_t stride, std::int64_t rows, std::int64_t padded_rows,
                      std::int64_t width, std::int64_t padded_width, Real factor) {
  F const by = F::all(factor);
  for (std::int64_t row = 0; row < padded_rows; ++row, to += padded_width) {
    if (row >= rows) {
      for (std::int64_t i = 0; i < padded_width; ++i) to[i] = 0;
      continue;
    }
    T const* const x = from + row * stride;
    TRIREME_FOR_LANES(F, width, i, count, { (by * F::load(x + i, count)).store(to + i); })
    for (std::int64_t i = (width + F::width - 1) / F::width * F::width; i < padded_width; ++i) to[i] = 0;
  }
}

// Asks for `rows` rows of `width` elements, to be in the second-level cache when they are packed.
template <int Write = 0, class T>
TRIREME_INLINE void prefetch_rows(T const* from, std::int64_t stride, std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t row = 0; row < rows; ++row, from += stride) {
    for (std::int64_t i = 0; i < width; i += line) __builtin_prefetch(from + i, Write, 2);
  }
}

// The rows that the next head will need of what this one has just used: a head's rows are short and far apart, which
// no prefetcher of a CPU follows. Part 0 is the queries, 1 the keys, 2 the values: at one time they would wait for each
// other, and the products for them.
template <class T>
TRIREME_INLINE void prefetch_next(T const* qkv, attention_head const& shape, std::int64_t row, std::int64_t rows,
                                  int part) {
  if (shape.next_row < 0) return;
  T const* const next = qkv + (shape.next_row + row) * shape.qkv_stride + shape.next_column;
  prefetch_rows(next + part * shape.channels, shape.qkv_stride, rows, shape.width);
}

template <class T>
TRIREME_INLINE void prefetch_next_result(T const* y_rows, attention_head const& shape, std::int64_t rows) {
  if (shape.next_row < 0) return;
  prefetch_rows(y_rows + shape.next_row * shape.y_stride + shape.next_column, shape.y_stride, rows, shape.width);
}

// sums[r] = the sum of a[r] b[r], for each of a block's rows; 0 where there is none.
template <class F, class Real, class T>
inline void row_products(Real* sums, T const* a, T const* b, std::int64_t stride, std::int64_t rows,
                         std::int64_t width) {
  for (std::int64_t r = 0; r < attention_rows; ++r, a += stride, b += stride) {
    F total = F::all(0);
    if (r < rows) {
      TRIREME_FOR_LANES(F, width, i, count, { total = fma(F::load(a + i, count), F::load(b + i, count), total); })
    }
    sums[r] = sum(total);
  }
}

template <class F, class T, class Real>
inline void unpack_rows(T* to, std::int64_t stride, Real const* from, std::int64_t rows, std::int64_t width,
                        std::int64_t padded_width, Real factor) {
  F const by = F::all(factor);
  for (std::int64_t row = 0; row < rows; ++row, from += padded_width, to += stride) {
    TRIREME_FOR_LANES(F, width, i, count, { (by * F::load(from + i, count)).store(to + i, count); })
  }
}

// to (width, 32) = from (32, width) transposed; width is a multiple of 16.
template <class Real>
inline void transpose_block(Real* to, Real const* from, std::int64_t width) {
#if TRIREME_X86
  if constexpr (sizeof(Real) == 4) {
    for (std::int64_t row = 0; row < attention_rows; row += 4) {
      for (std::int64_t i = 0; i < width; i += 4) {
        Real const* const x = from + row * width + i;
        __m128 a = _mm_loadu_ps(x);
        __m128 b = _mm_loadu_ps(x + width);
        __m128 c = _mm_loadu_ps(x + 2 * width);
        __m128 d = _mm_loadu_ps(x + 3 * width);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        Real* const y = to + i * attention_rows + row;
        _mm_storeu_ps(y, a);
        _mm_storeu_ps(y + attention_rows, b);
        _mm_storeu_ps(y + 2 * attention_rows, c);
        _mm_storeu_ps(y + 3 * attention_rows, d);
      }
    }
    return;
  }
#endif
  for (std::int64_t row = 0; row < attention_rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) to[i * attention_rows + row] = from[row * width + i];
  }
}

// factors[(key - part.key) * 32 + row - first_row] = 0 or 1 / (1 - p), for the probabilities at (row, key).
template <class Real>
inline void attention_dropout(Real* factors, attention_head const& shape, std::int64_t first_row,
                              attention_part const& part) {
  dropout_scale const how(shape.dropout->probability);
  auto const threshold = static_cast<float>(how.threshold);
  Real const choice[2] = {Real(0), static_cast<Real>(how.kept)};
  alignas(64) float numbers[32];
  for (std::int64_t r = 0; r < attention_rows; ++r) {
    auto const start = ((shape.first_head + shape.head) * shape.context + first_row + r) * shape.context + part.key;
    for (std::int64_t k = 0; k < part.keys;) {
      // The position of a number decides its block; rows need not begin with one.
      auto const position = start + k;
      random_numbers(numbers, shape.dropout->key, shape.dropout->site, shape.sample,
                     static_cast<std::uint32_t>(position / 4));
      for (auto word = position % 4; word < 32 && k < part.keys; ++word, ++k) {
        factors[k * attention_rows + r] = choice[numbers[word] >= threshold ? 1 : 0];
      }
    }
  }
}

// The largest scores of the lanes at v, after those are hidden whose key comes after the query.
template <class F, class Real>
inline F masked_peak(Real* column, std::int64_t row, std::int64_t v) {
  auto const seen = keys_seen(row, v);
  for (std::int64_t key = row; key < seen; ++key) {  // query row r sees keys up to r
    Real* const at = column + key * attention_rows;
    first(static_cast<int>(key - row - v), F::all(-std::numeric_limits<Real>::infinity()), F::load(at)).store(at);
  }
  F tops[4] = {F::load(column), F::load(column), F::load(column), F::load(column)};
  for (std::int64_t key = 0; key < seen; key += 4) {
    TRIREME_UNROLL
    for (int k = 0; k < 4; ++k) tops[k] = max(F::load(column + (key + k) * attention_rows), tops[k]);
  }
  return max(max(tops[0], tops[1]), max(tops[2], tops[3]));
}

template <class T, class A>
inline void attention_forward(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  A* const keys = scratch;                                        // (T, D)
  A* const values = keys + matrix;                                // (T, D)
  A* const queries = values + matrix;                             // (32, D)
  A* const queries_across = queries + lanes_of_rows * width;      // (D, 32)
  A* const result = queries_across + lanes_of_rows * width;       // (32, D)
  A* const scores = result + lanes_of_rows * width;               // (T, 32)
  A* const factors = scores + shape.padded_rows * lanes_of_rows;  // (64, 32)
  A* const peaks = factors + attention_keys * lanes_of_rows;      // (32)
  A* const masses = peaks + lanes_of_rows;                        // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  pack_rows<F>(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  pack_rows<F>(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    prefetch_next(qkv, shape, row, rows, 0);
    prefetch_rows<1>(y + row * shape.y_stride, shape.y_stride, rows, shape.width);
    pack_rows<F>(queries, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width, width,
                 scale);
    transpose_block(queries_across, queries, width);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      block_product<F>(scores + part.key * lanes_of_rows + part.skipped, lanes_of_rows, keys + part.key * width, width,
                       std::int64_t{1}, queries_across + part.skipped, lanes_of_rows, part.keys,
                       lanes_of_rows - part.skipped, width, false);
    }
    prefetch_next(qkv, shape, row, rows, 1);
    for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
      A* const column = scores + v;
      auto const seen = keys_seen(row, v);
      F const top = masked_peak<F>(column, row, v);
      F totals[2] = {F::all(0), F::all(0)};
      for (std::int64_t key = 0; key < seen; key += 2) {
        TRIREME_UNROLL
        for (int k = 0; k < 2; ++k) {
          A* const at = column + (key + k) * lanes_of_rows;
          F const p = exp(F::load(at) - top);
          totals[k] = totals[k] + p;
          p.store(at);
        }
      }
      top.store(peaks + v);
      (totals[0] + totals[1]).store(masses + v);
    }
    prefetch_next(qkv, shape, row, rows, 2);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      A* const shares = scores + part.key * lanes_of_rows;
      if (shape.dropout != nullptr) {
        attention_dropout(factors, shape, row, part);
        for (std::int64_t i = 0; i < part.keys * lanes_of_rows; i += F::width) {
          (F::load(shares + i) * F::load(factors + i)).store(shares + i);
        }
      }
      block_product<F>(result + part.skipped * width, width, shares + part.skipped, std::int64_t{1}, lanes_of_rows,
                       values + part.key * width, width, lanes_of_rows - part.skipped, width, part.keys, part.key > 0);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      lse[row + r] = peaks[r] + std::log(masses[r]);
      unpack_rows<F>(y + (row + r) * shape.y_stride, shape.y_stride, result + r * width, 1, shape.width, width,
                     A(1) / masses[r]);
    }
  }
}

// With P the probabilities, made again from lse, and delta = sum(dy y) of a row: dv = P^T dy, dP = dy v^T,
// dS = P (dP - delta), dq = dS k, dk = dS^T q.
template <class T, class A>
inline void attention_backward(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv,
                               attention_head const& shape, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  auto const block = lanes_of_rows * width;
  A* const keys = scratch;                                      // (T, D)
  A* const values = keys + matrix;                              // (T, D)
  A* const dkeys = values + matrix;                             // (T, D)
  A* const dvalues = dkeys + matrix;                            // (T, D)
  A* const queries = dvalues + matrix;                          // (32, D)
  A* const queries_across = queries + block;                    // (D, 32)
  A* const slopes = queries_across + block;                     // (32, D)
  A* const slopes_across = slopes + block;                      // (D, 32)
  A* const dqueries = slopes_across + block;                    // (32, D)
  A* const scores = dqueries + block;                           // (64, 32)
  A* const dscores = scores + attention_keys * lanes_of_rows;   // (64, 32)
  A* const factors = dscores + attention_keys * lanes_of_rows;  // (64, 32)
  A* const logs = factors + attention_keys * lanes_of_rows;     // (32)
  A* const deltas = logs + lanes_of_rows;                       // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  pack_rows<F>(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  pack_rows<F>(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  for (std::int64_t i = 0; i < 2 * matrix; i += F::width) F::all(0).store(dkeys + i);

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    T const* const dy_rows = dy + row * shape.y_stride;
    T const* const y_rows = y + row * shape.y_stride;
    for (int part = 0; part < 3; ++part) prefetch_next(qkv, shape, row, rows, part);
    prefetch_next_result(dy_rows, shape, rows);
    prefetch_next_result(y_rows, shape, rows);
    pack_rows<F>(queries, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width, width,
                 scale);
    pack_rows<F>(slopes, dy_rows, shape.y_stride, rows, lanes_of_rows, shape.width, width, A(1));
    transpose_block(queries_across, queries, width);
    transpose_block(slopes_across, slopes, width);
    row_products<F>(deltas, dy_rows, y_rows, shape.y_stride, rows, shape.width);
    for (std::int64_t r = 0; r < lanes_of_rows; ++r) logs[r] = r < rows ? lse[row + r] : A(0);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      auto const at_keys = part.key * width;
      auto const skipped = part.skipped;
      auto const unskipped = lanes_of_rows - skipped;
      block_product<F>(scores + skipped, lanes_of_rows, keys + at_keys, width, std::int64_t{1},
                       queries_across + skipped, lanes_of_rows, part.keys, unskipped, width, false);
      block_product<F>(dscores + skipped, lanes_of_rows, values + at_keys, width, std::int64_t{1},
                       slopes_across + skipped, lanes_of_rows, part.keys, unskipped, width, false);
      bool const drops = shape.dropout != nullptr;
      if (drops) attention_dropout(factors, shape, row, part);
      bool const diagonal = part.key + part.keys > row;
      for (std::int64_t v = skipped; v < lanes_of_rows; v += F::width) {
        F const log_mass = F::load(logs + v);
        F const delta = F::load(deltas + v);
        for (std::int64_t k = 0; k < part.keys; ++k) {
          auto const at = k * lanes_of_rows + v;
          F p = exp(F::load(scores + at) - log_mass);
          if (diagonal) p = first(static_cast<int>(part.key + k - row - v), F::all(0), p);
          F const dp = F::load(dscores + at);
          if (drops) {
            F const factor = F::load(factors + at);
            (p * factor).store(scores + at);
            (p * fma(dp, factor, F::all(0) - delta)).store(dscores + at);
          } else {
            p.store(scores + at);
            (p * (dp - delta)).store(dscores + at);
          }
        }
      }
      block_product<F>(dvalues + at_keys, width, scores + skipped, lanes_of_rows, std::int64_t{1},
                       slopes + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dkeys + at_keys, width, dscores + skipped, lanes_of_rows, std::int64_t{1},
                       queries + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dqueries + skipped * width, width, dscores + skipped, std::int64_t{1}, lanes_of_rows,
                       keys + at_keys, width, unskipped, width, part.keys, part.key > 0);
    }
    unpack_rows<F>(dqkv + row * shape.qkv_stride, shape.qkv_stride, dqueries, rows, shape.width, width, scale);
  }
  unpack_rows<F>(dqkv + shape.channels, shape.qkv_stride, dkeys, shape.context, shape.width, width, A(1));
  unpack_rows<F>(dqkv + 2 * shape.channels, shape.qkv_stride, dvalues, shape.context, shape.width, width, A(1));
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/attention.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/attention.inl
// Causal attention of one head of one sample; included once for each CPU level (see simd.hpp).
//
// Scores are kept transposed, one lane a query row: (keys, 32). Softmax then works along memory, without sums across
// lanes, and every operand of every product is contiguous.

// ---- trireme/ops/host/detail/attention_products.inl
// The products of attention; included once for each CPU level (see simd.hpp). F are lanes of sums, Factor what is
// multiplied: the same lanes, or words of two bfloat16, neighbours along the depth.
namespace trireme::ops::detail::TRIREME_LEVEL {

// c (Rows, Vectors * width) = or += a b, with a[m * a_row + k * a_depth] and b[k * b_row + n].
template <class F, class Factor, int Rows, int Vectors, class Real, class Word>
inline void tile_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                         Word const* b, std::int64_t b_row, std::int64_t depth, bool accumulate) {
  F sums[Rows][Vectors];
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v] = accumulate ? F::load(c + m * c_row + v * F::width) : F::all(0);
  }
  for (std::int64_t k = 0; k < depth; ++k, a += a_depth, b += b_row) {
    Factor right[Vectors];
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) right[v] = Factor::load(b + v * F::width);
    TRIREME_UNROLL
    for (int m = 0; m < Rows; ++m) {
      Factor const left = Factor::all(a[m * a_row]);
      TRIREME_UNROLL
      for (int v = 0; v < Vectors; ++v) sums[m][v] = fma(left, right[v], sums[m][v]);
    }
  }
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v].store(c + m * c_row + v * F::width);
  }
}

// The same for any number of columns, in multiples of the lanes, and rows, in multiples of 16.
template <class F, class Factor = F, class Real, class Word>
inline void block_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                          Word const* b, std::int64_t b_row, std::int64_t rows, std::int64_t columns,
                          std::int64_t depth, bool accumulate) {
  constexpr int pair = F::width == 16 ? 8 : 4;  // rows of a tile of two vectors: half the registers, or a quarter
  std::int64_t n = 0;
  for (; n + 2 * F::width <= columns; n += 2 * F::width) {
    for (std::int64_t m = 0; m < rows; m += pair) {
      tile_product<F, Factor, pair, 2>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                       accumulate);
    }
  }
  for (; n < columns; n += F::width) {
    for (std::int64_t m = 0; m < rows; m += 2 * pair) {
      tile_product<F, Factor, 2 * pair, 1>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                           accumulate);
    }
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/detail/attention.inl (goes on)
namespace trireme::ops::detail::TRIREME_LEVEL {

// to (padded_rows, padded_width) = factor * from (rows, width), zeros around it.
template <class F, class Real, class T>
inline void pack_rows(Real* to, T const* from, std::int64_t stride, std::int64_t rows, std::int64_t padded_rows,
                      std::int64_t width, std::int64_t padded_width, Real factor) {
  F const by = F::all(factor);
  for (std::int64_t row = 0; row < padded_rows; ++row, to += padded_width) {
    if (row >= rows) {
      for (std::int64_t i = 0; i < padded_width; ++i) to[i] = 0;
      continue;
    }
    T const* const x = from + row * stride;
    TRIREME_FOR_LANES(F, width, i, count, { (by * F::load(x + i, count)).store(to + i); })
    for (std::int64_t i = (width + F::width - 1) / F::width * F::width; i < padded_width; ++i) to[i] = 0;
  }
}

// Asks for `rows` rows of `width` elements, to be in the second-level cache when they are packed.
template <int Write = 0, class T>
TRIREME_INLINE void prefetch_rows(T const* from, std::int64_t stride, std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t row = 0; row < rows; ++row, from += stride) {
    for (std::int64_t i = 0; i < width; i += line) __builtin_prefetch(from + i, Write, 2);
  }
}

// The rows that the next head will need of what this one has just used: a head's rows are short and far apart, which
// no prefetcher of a CPU follows. Part 0 is the queries, 1 the keys, 2 the values: at one time they would wait for each
// other, and the products for them.
template <class T>
TRIREME_INLINE void prefetch_next(T const* qkv, attention_head const& shape, std::int64_t row, std::int64_t rows,
                                  int part) {
  if (shape.next_row < 0) return;
  T const* const next = qkv + (shape.next_row + row) * shape.qkv_stride + shape.next_column;
  prefetch_rows(next + part * shape.channels, shape.qkv_stride, rows, shape.width);
}

template <class T>
TRIREME_INLINE void prefetch_next_result(T const* y_rows, attention_head const& shape, std::int64_t rows) {
  if (shape.next_row < 0) return;
  prefetch_rows(y_rows + shape.next_row * shape.y_stride + shape.next_column, shape.y_stride, rows, shape.width);
}

// sums[r] = the sum of a[r] b[r], for each of a block's rows; 0 where there is none.
template <class F, class Real, class T>
inline void row_products(Real* sums, T const* a, T const* b, std::int64_t stride, std::int64_t rows,
                         std::int64_t width) {
  for (std::int64_t r = 0; r < attention_rows; ++r, a += stride, b += stride) {
    F total = F::all(0);
    if (r < rows) {
      TRIREME_FOR_LANES(F, width, i, count, { total = fma(F::load(a + i, count), F::load(b + i, count), total); })
    }
    sums[r] = sum(total);
  }
}

template <class F, class T, class Real>
inline void unpack_rows(T* to, std::int64_t stride, Real const* from, std::int64_t rows, std::int64_t width,
                        std::int64_t padded_width, Real factor) {
  F const by = F::all(factor);
  for (std::int64_t row = 0; row < rows; ++row, from += padded_width, to += stride) {
    TRIREME_FOR_LANES(F, width, i, count, { (by * F::load(from + i, count)).store(to + i, count); })
  }
}

// to (width, 32) = from (32, width) transposed; width is a multiple of 16.
template <class Real>
inline void transpose_block(Real* to, Real const* from, std::int64_t width) {
#if TRIREME_X86
  if constexpr (sizeof(Real) == 4) {
    for (std::int64_t row = 0; row < attention_rows; row += 4) {
      for (std::int64_t i = 0; i < width; i += 4) {
        Real const* const x = from + row * width + i;
        __m128 a = _mm_loadu_ps(x);
        __m128 b = _mm_loadu_ps(x + width);
        __m128 c = _mm_loadu_ps(x + 2 * width);
        __m128 d = _mm_loadu_ps(x + 3 * width);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        Real* const y = to + i * attention_rows + row;
        _mm_storeu_ps(y, a);
        _mm_storeu_ps(y + attention_rows, b);
        _mm_storeu_ps(y + 2 * attention_rows, c);
        _mm_storeu_ps(y + 3 * attention_rows, d);
      }
    }
    return;
  }
#endif
  for (std::int64_t row = 0; row < attention_rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) to[i * attention_rows + row] = from[row * width + i];
  }
}

// factors[(key - part.key) * 32 + row - first_row] = 0 or 1 / (1 - p), for the probabilities at (row, key).
template <class Real>
inline void attention_dropout(Real* factors, attention_head const& shape, std::int64_t first_row,
                              attention_part const& part) {
  dropout_scale const how(shape.dropout->probability);
  auto const threshold = static_cast<float>(how.threshold);
  Real const choice[2] = {Real(0), static_cast<Real>(how.kept)};
  alignas(64) float numbers[32];
  for (std::int64_t r = 0; r < attention_rows; ++r) {
    auto const start = ((shape.first_head + shape.head) * shape.context + first_row + r) * shape.context + part.key;
    for (std::int64_t k = 0; k < part.keys;) {
      // The position of a number decides its block; rows need not begin with one.
      auto const position = start + k;
      random_numbers(numbers, shape.dropout->key, shape.dropout->site, shape.sample,
                     static_cast<std::uint32_t>(position / 4));
      for (auto word = position % 4; word < 32 && k < part.keys; ++word, ++k) {
        factors[k * attention_rows + r] = choice[numbers[word] >= threshold ? 1 : 0];
      }
    }
  }
}

// The largest scores of the lanes at v, after those are hidden whose key comes after the query.
template <class F, class Real>
inline F masked_peak(Real* column, std::int64_t row, std::int64_t v) {
  auto const seen = keys_seen(row, v);
  for (std::int64_t key = row; key < seen; ++key) {  // query row r sees keys up to r
    Real* const at = column + key * attention_rows;
    first(static_cast<int>(key - row - v), F::all(-std::numeric_limits<Real>::infinity()), F::load(at)).store(at);
  }
  F tops[4] = {F::load(column), F::load(column), F::load(column), F::load(column)};
  for (std::int64_t key = 0; key < seen; key += 4) {
    TRIREME_UNROLL
    for (int k = 0; k < 4; ++k) tops[k] = max(F::load(column + (key + k) * attention_rows), tops[k]);
  }
  return max(max(tops[0], tops[1]), max(tops[2], tops[3]));
}

template <class T, class A>
inline void attention_forward(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  A* const keys = scratch;                                        // (T, D)
  A* const values = keys + matrix;                                // (T, D)
  A* const queries = values + matrix;                             // (32, D)
  A* const queries_across = queries + lanes_of_rows * width;      // (D, 32)
  A* const result = queries_across + lanes_of_rows * width;       // (32, D)
  A* const scores = result + lanes_of_rows * width;               // (T, 32)
  A* const factors = scores + shape.padded_rows * lanes_of_rows;  // (64, 32)
  A* const peaks = factors + attention_keys * lanes_of_rows;      // (32)
  A* const masses = peaks + lanes_of_rows;                        // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  pack_rows<F>(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  pack_rows<F>(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    prefetch_next(qkv, shape, row, rows, 0);
    prefetch_rows<1>(y + row * shape.y_stride, shape.y_stride, rows, shape.width);
    pack_rows<F>(queries, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width, width,
                 scale);
    transpose_block(queries_across, queries, width);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      block_product<F>(scores + part.key * lanes_of_rows + part.skipped, lanes_of_rows, keys + part.key * width, width,
                       std::int64_t{1}, queries_across + part.skipped, lanes_of_rows, part.keys,
                       lanes_of_rows - part.skipped, width, false);
    }
    prefetch_next(qkv, shape, row, rows, 1);
    for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
      A* const column = scores + v;
      auto const seen = keys_seen(row, v);
      F const top = masked_peak<F>(column, row, v);
      F totals[2] = {F::all(0), F::all(0)};
      for (std::int64_t key = 0; key < seen; key += 2) {
        TRIREME_UNROLL
        for (int k = 0; k < 2; ++k) {
          A* const at = column + (key + k) * lanes_of_rows;
          F const p = exp(F::load(at) - top);
          totals[k] = totals[k] + p;
          p.store(at);
        }
      }
      top.store(peaks + v);
      (totals[0] + totals[1]).store(masses + v);
    }
    prefetch_next(qkv, shape, row, rows, 2);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      A* const shares = scores + part.key * lanes_of_rows;
      if (shape.dropout != nullptr) {
        attention_dropout(factors, shape, row, part);
        for (std::int64_t i = 0; i < part.keys * lanes_of_rows; i += F::width) {
          (F::load(shares + i) * F::load(factors + i)).store(shares + i);
        }
      }
      block_product<F>(result + part.skipped * width, width, shares + part.skipped, std::int64_t{1}, lanes_of_rows,
                       values + part.key * width, width, lanes_of_rows - part.skipped, width, part.keys, part.key > 0);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      lse[row + r] = peaks[r] + std::log(masses[r]);
      unpack_rows<F>(y + (row + r) * shape.y_stride, shape.y_stride, result + r * width, 1, shape.width, width,
                     A(1) / masses[r]);
    }
  }
}

// With P the probabilities, made again from lse, and delta = sum(dy y) of a row: dv = P^T dy, dP = dy v^T,
// dS = P (dP - delta), dq = dS k, dk = dS^T q.
template <class T, class A>
inline void attention_backward(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv,
                               attention_head const& shape, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  auto const block = lanes_of_rows * width;
  A* const keys = scratch;                                      // (T, D)
  A* const values = keys + matrix;                              // (T, D)
  A* const dkeys = values + matrix;                             // (T, D)
  A* const dvalues = dkeys + matrix;                            // (T, D)
  A* const queries = dvalues + matrix;                          // (32, D)
  A* const queries_across = queries + block;                    // (D, 32)
  A* const slopes = queries_across + block;                     // (32, D)
  A* const slopes_across = slopes + block;                      // (D, 32)
  A* const dqueries = slopes_across + block;                    // (32, D)
  A* const scores = dqueries + block;                           // (64, 32)
  A* const dscores = scores + attention_keys * lanes_of_rows;   // (64, 32)
  A* const factors = dscores + attention_keys * lanes_of_rows;  // (64, 32)
  A* const logs = factors + attention_keys * lanes_of_rows;     // (32)
  A* const deltas = logs + lanes_of_rows;                       // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  pack_rows<F>(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  pack_rows<F>(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  for (std::int64_t i = 0; i < 2 * matrix; i += F::width) F::all(0).store(dkeys + i);

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    T const* const dy_rows = dy + row * shape.y_stride;
    T const* const y_rows = y + row * shape.y_stride;
    for (int part = 0; part < 3; ++part) prefetch_next(qkv, shape, row, rows, part);
    prefetch_next_result(dy_rows, shape, rows);
    prefetch_next_result(y_rows, shape, rows);
    pack_rows<F>(queries, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width, width,
                 scale);
    pack_rows<F>(slopes, dy_rows, shape.y_stride, rows, lanes_of_rows, shape.width, width, A(1));
    transpose_block(queries_across, queries, width);
    transpose_block(slopes_across, slopes, width);
    row_products<F>(deltas, dy_rows, y_rows, shape.y_stride, rows, shape.width);
    for (std::int64_t r = 0; r < lanes_of_rows; ++r) logs[r] = r < rows ? lse[row + r] : A(0);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      auto const at_keys = part.key * width;
      auto const skipped = part.skipped;
      auto const unskipped = lanes_of_rows - skipped;
      block_product<F>(scores + skipped, lanes_of_rows, keys + at_keys, width, std::int64_t{1},
                       queries_across + skipped, lanes_of_rows, part.keys, unskipped, width, false);
      block_product<F>(dscores + skipped, lanes_of_rows, values + at_keys, width, std::int64_t{1},
                       slopes_across + skipped, lanes_of_rows, part.keys, unskipped, width, false);
      bool const drops = shape.dropout != nullptr;
      if (drops) attention_dropout(factors, shape, row, part);
      bool const diagonal = part.key + part.keys > row;
      for (std::int64_t v = skipped; v < lanes_of_rows; v += F::width) {
        F const log_mass = F::load(logs + v);
        F const delta = F::load(deltas + v);
        for (std::int64_t k = 0; k < part.keys; ++k) {
          auto const at = k * lanes_of_rows + v;
          F p = exp(F::load(scores + at) - log_mass);
          if (diagonal) p = first(static_cast<int>(part.key + k - row - v), F::all(0), p);
          F const dp = F::load(dscores + at);
          if (drops) {
            F const factor = F::load(factors + at);
            (p * factor).store(scores + at);
            (p * fma(dp, factor, F::all(0) - delta)).store(dscores + at);
          } else {
            p.store(scores + at);
            (p * (dp - delta)).store(dscores + at);
          }
        }
      }
      block_product<F>(dvalues + at_keys, width, scores + skipped, lanes_of_rows, std::int64_t{1},
                       slopes + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dkeys + at_keys, width, dscores + skipped, lanes_of_rows, std::int64_t{1},
                       queries + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dqueries + skipped * width, width, dscores + skipped, std::int64_t{1}, lanes_of_rows,
                       keys + at_keys, width, unskipped, width, part.keys, part.key > 0);
    }
    unpack_rows<F>(dqkv + row * shape.qkv_stride, shape.qkv_stride, dqueries, rows, shape.width, width, scale);
  }
  unpack_rows<F>(dqkv + shape.channels, shape.qkv_stride, dkeys, shape.context, shape.width, width, A(1));
  unpack_rows<F>(dqkv + 2 * shape.channels, shape.qkv_stride, dvalues, shape.context, shape.width, width, A(1));
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/attention.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/attention.inl
// Causal attention of one head of one sample; included once for each CPU level (see simd.hpp).
//
// Scores are kept transposed, one lane a query row: (keys, 32). Softmax then works along memory, without sums across
// lanes, and every operand of every product is contiguous.

// ---- trireme/ops/host/detail/attention_products.inl
// The products of attention; included once for each CPU level (see simd.hpp). F are lanes of sums, Factor what is
// multiplied: the same lanes, or words of two bfloat16, neighbours along the depth.
namespace trireme::ops::detail::TRIREME_LEVEL {

// c (Rows, Vectors * width) = or += a b, with a[m * a_row + k * a_depth] and b[k * b_row + n].
template <class F, class Factor, int Rows, int Vectors, class Real, class Word>
inline void tile_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                         Word const* b, std::int64_t b_row, std::int64_t depth, bool accumulate) {
  F sums[Rows][Vectors];
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v] = accumulate ? F::load(c + m * c_row + v * F::width) : F::all(0);
  }
  for (std::int64_t k = 0; k < depth; ++k, a += a_depth, b += b_row) {
    Factor right[Vectors];
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) right[v] = Factor::load(b + v * F::width);
    TRIREME_UNROLL
    for (int m = 0; m < Rows; ++m) {
      Factor const left = Factor::all(a[m * a_row]);
      TRIREME_UNROLL
      for (int v = 0; v < Vectors; ++v) sums[m][v] = fma(left, right[v], sums[m][v]);
    }
  }
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v].store(c + m * c_row + v * F::width);
  }
}

// The same for any number of columns, in multiples of the lanes, and rows, in multiples of 16.
template <class F, class Factor = F, class Real, class Word>
inline void block_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                          Word const* b, std::int64_t b_row, std::int64_t rows, std::int64_t columns,
                          std::int64_t depth, bool accumulate) {
  constexpr int pair = F::width == 16 ? 8 : 4;  // rows of a tile of two vectors: half the registers, or a quarter
  std::int64_t n = 0;
  for (; n + 2 * F::width <= columns; n += 2 * F::width) {
    for (std::int64_t m = 0; m < rows; m += pair) {
      tile_product<F, Factor, pair, 2>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                       accumulate);
    }
  }
  for (; n < columns; n += F::width) {
    for (std::int64_t m = 0; m < rows; m += 2 * pair) {
      tile_product<F, Factor, 2 * pair, 1>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                           accumulate);
    }
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/detail/attention.inl (goes on)
namespace trireme::ops::detail::TRIREME_LEVEL {

// to (padded_rows, padded_width) = factor * from (rows, width), zeros around it.
template <class F, class Real, class T>
inline void pack_rows(Real* to, T const* from, std::int64_t stride, std::int64_t rows, std::int64_t padded_rows,
                      std::int64_t width, std::int64_t padded_width, Real factor) {
  F const by = F::all(factor);
  for (std::int64_t row = 0; row < padded_rows; ++row, to += padded_width) {
    if (row >= rows) {
      for (std::int64_t i = 0; i < padded_width; ++i) to[i] = 0;
      continue;
    }
    T const* const x = from + row * stride;
    TRIREME_FOR_LANES(F, width, i, count, { (by * F::load(x + i, count)).store(to + i); })
    for (std::int64_t i = (width + F::width - 1) / F::width * F::width; i < padded_width; ++i) to[i] = 0;
  }
}

// Asks for `rows` rows of `width` elements, to be in the second-level cache when they are packed.
template <int Write = 0, class T>
TRIREME_INLINE void prefetch_rows(T const* from, std::int64_t stride, std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t row = 0; row < rows; ++row, from += stride) {
    for (std::int64_t i = 0; i < width; i += line) __builtin_prefetch(from + i, Write, 2);
  }
}

// The rows that the next head will need of what this one has just used: a head's rows are short and far apart, which
// no prefetcher of a CPU follows. Part 0 is the queries, 1 the keys, 2 the values: at one time they would wait for each
// other, and the products for them.
template <class T>
TRIREME_INLINE void prefetch_next(T const* qkv, attention_head const& shape, std::int64_t row, std::int64_t rows,
                                  int part) {
  if (shape.next_row < 0) return;
  T const* const next = qkv + (shape.next_row + row) * shape.qkv_stride + shape.next_column;
  prefetch_rows(next + part * shape.channels, shape.qkv_stride, rows, shape.width);
}

template <class T>
TRIREME_INLINE void prefetch_next_result(T const* y_rows, attention_head const& shape, std::int64_t rows) {
  if (shape.next_row < 0) return;
  prefetch_rows(y_rows + shape.next_row * shape.y_stride + shape.next_column, shape.y_stride, rows, shape.width);
}

// sums[r] = the sum of a[r] b[r], for each of a block's rows; 0 where there is none.
template <class F, class Real, class T>
inline void row_products(Real* sums, T const* a, T const* b, std::int64_t stride, std::int64_t rows,
                         std::int64_t width) {
  for (std::int64_t r = 0; r < attention_rows; ++r, a += stride, b += stride) {
    F total = F::all(0);
    if (r < rows) {
      TRIREME_FOR_LANES(F, width, i, count, { total = fma(F::load(a + i, count), F::load(b + i, count), total); })
    }
    sums[r] = sum(total);
  }
}

template <class F, class T, class Real>
inline void unpack_rows(T* to, std::int64_t stride, Real const* from, std::int64_t rows, std::int64_t width,
                        std::int64_t padded_width, Real factor) {
  F const by = F::all(factor);
  for (std::int64_t row = 0; row < rows; ++row, from += padded_width, to += stride) {
    TRIREME_FOR_LANES(F, width, i, count, { (by * F::load(from + i, count)).store(to + i, count); })
  }
}

// to (width, 32) = from (32, width) transposed; width is a multiple of 16.
template <class Real>
inline void transpose_block(Real* to, Real const* from, std::int64_t width) {
#if TRIREME_X86
  if constexpr (sizeof(Real) == 4) {
    for (std::int64_t row = 0; row < attention_rows; row += 4) {
      for (std::int64_t i = 0; i < width; i += 4) {
        Real const* const x = from + row * width + i;
        __m128 a = _mm_loadu_ps(x);
        __m128 b = _mm_loadu_ps(x + width);
        __m128 c = _mm_loadu_ps(x + 2 * width);
        __m128 d = _mm_loadu_ps(x + 3 * width);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        Real* const y = to + i * attention_rows + row;
        _mm_storeu_ps(y, a);
        _mm_storeu_ps(y + attention_rows, b);
        _mm_storeu_ps(y + 2 * attention_rows, c);
        _mm_storeu_ps(y + 3 * attention_rows, d);
      }
    }
    return;
  }
#endif
  for (std::int64_t row = 0; row < attention_rows; ++row) {
    for (std::int64_t i = 0; i < width; ++i) to[i * attention_rows + row] = from[row * width + i];
  }
}

// factors[(key - part.key) * 32 + row - first_row] = 0 or 1 / (1 - p), for the probabilities at (row, key).
template <class Real>
inline void attention_dropout(Real* factors, attention_head const& shape, std::int64_t first_row,
                              attention_part const& part) {
  dropout_scale const how(shape.dropout->probability);
  auto const threshold = static_cast<float>(how.threshold);
  Real const choice[2] = {Real(0), static_cast<Real>(how.kept)};
  alignas(64) float numbers[32];
  for (std::int64_t r = 0; r < attention_rows; ++r) {
    auto const start = ((shape.first_head + shape.head) * shape.context + first_row + r) * shape.context + part.key;
    for (std::int64_t k = 0; k < part.keys;) {
      // The position of a number decides its block; rows need not begin with one.
      auto const position = start + k;
      random_numbers(numbers, shape.dropout->key, shape.dropout->site, shape.sample,
                     static_cast<std::uint32_t>(position / 4));
      for (auto word = position % 4; word < 32 && k < part.keys; ++word, ++k) {
        factors[k * attention_rows + r] = choice[numbers[word] >= threshold ? 1 : 0];
      }
    }
  }
}

// The largest scores of the lanes at v, after those are hidden whose key comes after the query.
template <class F, class Real>
inline F masked_peak(Real* column, std::int64_t row, std::int64_t v) {
  auto const seen = keys_seen(row, v);
  for (std::int64_t key = row; key < seen; ++key) {  // query row r sees keys up to r
    Real* const at = column + key * attention_rows;
    first(static_cast<int>(key - row - v), F::all(-std::numeric_limits<Real>::infinity()), F::load(at)).store(at);
  }
  F tops[4] = {F::load(column), F::load(column), F::load(column), F::load(column)};
  for (std::int64_t key = 0; key < seen; key += 4) {
    TRIREME_UNROLL
    for (int k = 0; k < 4; ++k) tops[k] = max(F::load(column + (key + k) * attention_rows), tops[k]);
  }
  return max(max(tops[0], tops[1]), max(tops[2], tops[3]));
}

template <class T, class A>
inline void attention_forward(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  A* const keys = scratch;                                        // (T, D)
  A* const values = keys + matrix;                                // (T, D)
  A* const queries = values + matrix;                             // (32, D)
  A* const queries_across = queries + lanes_of_rows * width;      // (D, 32)
  A* const result = queries_across + lanes_of_rows * width;       // (32, D)
  A* const scores = result + lanes_of_rows * width;               // (T, 32)
  A* const factors = scores + shape.padded_rows * lanes_of_rows;  // (64, 32)
  A* const peaks = factors + attention_keys * lanes_of_rows;      // (32)
  A* const masses = peaks + lanes_of_rows;                        // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  pack_rows<F>(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  pack_rows<F>(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    prefetch_next(qkv, shape, row, rows, 0);
    prefetch_rows<1>(y + row * shape.y_stride, shape.y_stride, rows, shape.width);
    pack_rows<F>(queries, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width, width,
                 scale);
    transpose_block(queries_across, queries, width);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      block_product<F>(scores + part.key * lanes_of_rows + part.skipped, lanes_of_rows, keys + part.key * width, width,
                       std::int64_t{1}, queries_across + part.skipped, lanes_of_rows, part.keys,
                       lanes_of_rows - part.skipped, width, false);
    }
    prefetch_next(qkv, shape, row, rows, 1);
    for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
      A* const column = scores + v;
      auto const seen = keys_seen(row, v);
      F const top = masked_peak<F>(column, row, v);
      F totals[2] = {F::all(0), F::all(0)};
      for (std::int64_t key = 0; key < seen; key += 2) {
        TRIREME_UNROLL
        for (int k = 0; k < 2; ++k) {
          A* const at = column + (key + k) * lanes_of_rows;
          F const p = exp(F::load(at) - top);
          totals[k] = totals[k] + p;
          p.store(at);
        }
      }
      top.store(peaks + v);
      (totals[0] + totals[1]).store(masses + v);
    }
    prefetch_next(qkv, shape, row, rows, 2);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      A* const shares = scores + part.key * lanes_of_rows;
      if (shape.dropout != nullptr) {
        attention_dropout(factors, shape, row, part);
        for (std::int64_t i = 0; i < part.keys * lanes_of_rows; i += F::width) {
          (F::load(shares + i) * F::load(factors + i)).store(shares + i);
        }
      }
      block_product<F>(result + part.skipped * width, width, shares + part.skipped, std::int64_t{1}, lanes_of_rows,
                       values + part.key * width, width, lanes_of_rows - part.skipped, width, part.keys, part.key > 0);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      lse[row + r] = peaks[r] + std::log(masses[r]);
      unpack_rows<F>(y + (row + r) * shape.y_stride, shape.y_stride, result + r * width, 1, shape.width, width,
                     A(1) / masses[r]);
    }
  }
}

// With P the probabilities, made again from lse, and delta = sum(dy y) of a row: dv = P^T dy, dP = dy v^T,
// dS = P (dP - delta), dq = dS k, dk = dS^T q.
template <class T, class A>
inline void attention_backward(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv,
                               attention_head const& shape, A* scratch) {
  using F = lanes_for<T>;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const matrix = shape.padded_rows * width;
  auto const block = lanes_of_rows * width;
  A* const keys = scratch;                                      // (T, D)
  A* const values = keys + matrix;                              // (T, D)
  A* const dkeys = values + matrix;                             // (T, D)
  A* const dvalues = dkeys + matrix;                            // (T, D)
  A* const queries = dvalues + matrix;                          // (32, D)
  A* const queries_across = queries + block;                    // (D, 32)
  A* const slopes = queries_across + block;                     // (32, D)
  A* const slopes_across = slopes + block;                      // (D, 32)
  A* const dqueries = slopes_across + block;                    // (32, D)
  A* const scores = dqueries + block;                           // (64, 32)
  A* const dscores = scores + attention_keys * lanes_of_rows;   // (64, 32)
  A* const factors = dscores + attention_keys * lanes_of_rows;  // (64, 32)
  A* const logs = factors + attention_keys * lanes_of_rows;     // (32)
  A* const deltas = logs + lanes_of_rows;                       // (32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  pack_rows<F>(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  pack_rows<F>(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width,
               A(1));
  for (std::int64_t i = 0; i < 2 * matrix; i += F::width) F::all(0).store(dkeys + i);

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    T const* const dy_rows = dy + row * shape.y_stride;
    T const* const y_rows = y + row * shape.y_stride;
    for (int part = 0; part < 3; ++part) prefetch_next(qkv, shape, row, rows, part);
    prefetch_next_result(dy_rows, shape, rows);
    prefetch_next_result(y_rows, shape, rows);
    pack_rows<F>(queries, qkv + row * shape.qkv_stride, shape.qkv_stride, rows, lanes_of_rows, shape.width, width,
                 scale);
    pack_rows<F>(slopes, dy_rows, shape.y_stride, rows, lanes_of_rows, shape.width, width, A(1));
    transpose_block(queries_across, queries, width);
    transpose_block(slopes_across, slopes, width);
    row_products<F>(deltas, dy_rows, y_rows, shape.y_stride, rows, shape.width);
    for (std::int64_t r = 0; r < lanes_of_rows; ++r) logs[r] = r < rows ? lse[row + r] : A(0);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      auto const at_keys = part.key * width;
      auto const skipped = part.skipped;
      auto const unskipped = lanes_of_rows - skipped;
      block_product<F>(scores + skipped, lanes_of_rows, keys + at_keys, width, std::int64_t{1},
                       queries_across + skipped, lanes_of_rows, part.keys, unskipped, width, false);
      block_product<F>(dscores + skipped, lanes_of_rows, values + at_keys, width, std::int64_t{1},
                       slopes_across + skipped, lanes_of_rows, part.keys, unskipped, width, false);
      bool const drops = shape.dropout != nullptr;
      if (drops) attention_dropout(factors, shape, row, part);
      bool const diagonal = part.key + part.keys > row;
      for (std::int64_t v = skipped; v < lanes_of_rows; v += F::width) {
        F const log_mass = F::load(logs + v);
        F const delta = F::load(deltas + v);
        for (std::int64_t k = 0; k < part.keys; ++k) {
          auto const at = k * lanes_of_rows + v;
          F p = exp(F::load(scores + at) - log_mass);
          if (diagonal) p = first(static_cast<int>(part.key + k - row - v), F::all(0), p);
          F const dp = F::load(dscores + at);
          if (drops) {
            F const factor = F::load(factors + at);
            (p * factor).store(scores + at);
            (p * fma(dp, factor, F::all(0) - delta)).store(dscores + at);
          } else {
            p.store(scores + at);
            (p * (dp - delta)).store(dscores + at);
          }
        }
      }
      block_product<F>(dvalues + at_keys, width, scores + skipped, lanes_of_rows, std::int64_t{1},
                       slopes + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dkeys + at_keys, width, dscores + skipped, lanes_of_rows, std::int64_t{1},
                       queries + skipped * width, width, part.keys, width, unskipped, true);
      block_product<F>(dqueries + skipped * width, width, dscores + skipped, std::int64_t{1}, lanes_of_rows,
                       keys + at_keys, width, unskipped, width, part.keys, part.key > 0);
    }
    unpack_rows<F>(dqkv + row * shape.qkv_stride, shape.qkv_stride, dqueries, rows, shape.width, width, scale);
  }
  unpack_rows<F>(dqkv + shape.channels, shape.qkv_stride, dkeys, shape.context, shape.width, width, A(1));
  unpack_rows<F>(dqkv + 2 * shape.channels, shape.qkv_stride, dvalues, shape.context, shape.width, width, A(1));
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/attention.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BF16_BEGIN
#define TRIREME_LEVEL avx512_bf16

// ---- trireme/ops/host/detail/attention_pairs.inl
// Causal attention of one head of one sample in bfloat16, with the instruction that multiplies pairs of them; included
// for the CPU level that has it (see simd.hpp). The method is that of attention.inl.
//
// The instruction takes two neighbours along the depth of a product at once, so every operand is stored in words of
// two: along its rows where these are the depth, and two rows in one where the depth runs across them. Probabilities
// and their gradients are rounded to bfloat16 for the products; sums, softmax and lse stay in float.

// ---- trireme/ops/host/detail/attention_products.inl
// The products of attention; included once for each CPU level (see simd.hpp). F are lanes of sums, Factor what is
// multiplied: the same lanes, or words of two bfloat16, neighbours along the depth.
namespace trireme::ops::detail::TRIREME_LEVEL {

// c (Rows, Vectors * width) = or += a b, with a[m * a_row + k * a_depth] and b[k * b_row + n].
template <class F, class Factor, int Rows, int Vectors, class Real, class Word>
inline void tile_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                         Word const* b, std::int64_t b_row, std::int64_t depth, bool accumulate) {
  F sums[Rows][Vectors];
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v] = accumulate ? F::load(c + m * c_row + v * F::width) : F::all(0);
  }
  for (std::int64_t k = 0; k < depth; ++k, a += a_depth, b += b_row) {
    Factor right[Vectors];
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) right[v] = Factor::load(b + v * F::width);
    TRIREME_UNROLL
    for (int m = 0; m < Rows; ++m) {
      Factor const left = Factor::all(a[m * a_row]);
      TRIREME_UNROLL
      for (int v = 0; v < Vectors; ++v) sums[m][v] = fma(left, right[v], sums[m][v]);
    }
  }
  TRIREME_UNROLL
  for (int m = 0; m < Rows; ++m) {
    TRIREME_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[m][v].store(c + m * c_row + v * F::width);
  }
}

// The same for any number of columns, in multiples of the lanes, and rows, in multiples of 16.
template <class F, class Factor = F, class Real, class Word>
inline void block_product(Real* c, std::int64_t c_row, Word const* a, std::int64_t a_row, std::int64_t a_depth,
                          Word const* b, std::int64_t b_row, std::int64_t rows, std::int64_t columns,
                          std::int64_t depth, bool accumulate) {
  constexpr int pair = F::width == 16 ? 8 : 4;  // rows of a tile of two vectors: half the registers, or a quarter
  std::int64_t n = 0;
  for (; n + 2 * F::width <= columns; n += 2 * F::width) {
    for (std::int64_t m = 0; m < rows; m += pair) {
      tile_product<F, Factor, pair, 2>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                       accumulate);
    }
  }
  for (; n < columns; n += F::width) {
    for (std::int64_t m = 0; m < rows; m += 2 * pair) {
      tile_product<F, Factor, 2 * pair, 1>(c + m * c_row + n, c_row, a + m * a_row, a_row, a_depth, b + n, b_row, depth,
                                           accumulate);
    }
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/detail/attention_pairs.inl (goes on)
namespace trireme::ops::detail::TRIREME_LEVEL {
#if TRIREME_X86

/// 16 words of two bfloat16: what meets the float lanes of a sum.
struct word_lanes {
  __m512i v;
  static TRIREME_INLINE word_lanes all(std::uint32_t word) { return {_mm512_set1_epi32(static_cast<int>(word))}; }
  static TRIREME_INLINE word_lanes load(std::uint32_t const* p) { return {_mm512_loadu_si512(p)}; }
};
TRIREME_INLINE avx512::lanes fma(word_lanes a, word_lanes b, avx512::lanes c) {
  return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
}

/// 2^x to 2e-7 for x below 128; 0 far below, NaN stays NaN. Rounding to bfloat16 leaves nothing of that error.
TRIREME_INLINE avx512::lanes exponential_of_two(avx512::lanes x) {
  using F = avx512::lanes;
  x = max(F::all(-200.0F), x);
  F const n = round(x);
  F const r = x - n;
  F p = F::all(1.339086336e-3F);
  p = fma(p, r, F::all(9.676031918e-3F));
  p = fma(p, r, F::all(5.550357114e-2F));
  p = fma(p, r, F::all(2.402210749e-1F));
  p = fma(p, r, F::all(6.931471880e-1F));
  p = fma(p, r, F::all(1.0F));
  return {_mm512_scalef_ps(p.v, n.v)};
}

/// The lanes of two rows in bfloat16: all of the first, then all of the second.
TRIREME_INLINE __m512i rounded_rows(avx512::lanes first, avx512::lanes second) {
  return (__m512i)_mm512_cvtne2ps_pbh(second.v, first.v);
}
TRIREME_INLINE void store_rows(std::uint32_t* to, std::int64_t stride, __m512i rows) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(rows));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + stride), _mm512_extracti64x4_epi64(rows, 1));
}
/// The words of two that such rows make together.
TRIREME_INLINE __m512i paired_rows(__m512i rows) {
  __m512i const order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i const second = _mm512_slli_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(16)), 16);
  return _mm512_permutexvar_epi16(_mm512_or_si512(order, second), rows);
}

/// Rows as words along them: to (padded_rows, padded_width / 2) from (rows, width), zeros around it.
inline void pack_words(std::uint32_t* to, bfloat16 const* from, std::int64_t stride, std::int64_t rows,
                       std::int64_t padded_rows, std::int64_t width, std::int64_t padded_width) {
  auto const bytes = static_cast<std::size_t>(width) * sizeof(bfloat16);
  for (std::int64_t row = 0; row < padded_rows; ++row, to += padded_width / 2) {
    for (std::int64_t i = row < rows ? width / 2 : 0; i < padded_width / 2; ++i) to[i] = 0;
    if (row < rows) std::memcpy(to, from + row * stride, bytes);
  }
}

/// Rows as words of two rows: to (padded_rows / 2, padded_width) from (rows, width), zeros around it.
inline void pack_pairs(std::uint32_t* to, bfloat16 const* from, std::int64_t stride, std::int64_t rows,
                       std::int64_t padded_rows, std::int64_t width, std::int64_t padded_width) {
  pack_across(to, from, stride, rows, static_cast<int>(padded_width), static_cast<int>(width));
  for (std::int64_t i = (rows + 1) / 2 * padded_width; i < padded_rows / 2 * padded_width; ++i) to[i] = 0;
}

template <class T, class A>
inline void attention_forward(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
  using F = avx512::lanes;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  auto const width = shape.padded_width;
  auto const words = width / 2;
  A* const scores = scratch;                                                    // (T, 32)
  A* const result = scores + shape.padded_rows * lanes_of_rows;                 // (32, D)
  A* const factors = result + lanes_of_rows * width;                            // (64, 32)
  A* const offsets = factors + attention_keys * lanes_of_rows;                  // (32)
  A* const masses = offsets + lanes_of_rows;                                    // (32)
  auto* const keys = reinterpret_cast<std::uint32_t*>(masses + lanes_of_rows);  // (T, D / 2)
  auto* const values = keys + shape.padded_rows * words;                        // (T / 2, D)
  auto* const queries_across = values + shape.padded_rows * words;              // (D / 2, 32)
  auto* const shares = queries_across + words * lanes_of_rows;                  // (32, 32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  F const slope = F::all(scale * A(1.44269504));  // of a score in the exponent of 2
  pack_words(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);
  pack_pairs(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    avx512::prefetch_next(qkv, shape, row, rows, 0);
    avx512::prefetch_rows<1>(y + row * shape.y_stride, shape.y_stride, rows, shape.width);
    pack_along(queries_across, qkv + row * shape.qkv_stride, shape.qkv_stride, shape.width, lanes_of_rows,
               static_cast<int>(rows));
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      block_product<F, word_lanes>(scores + part.key * lanes_of_rows + part.skipped, lanes_of_rows,
                                   keys + part.key * words, words, std::int64_t{1}, queries_across + part.skipped,
                                   lanes_of_rows, part.keys, lanes_of_rows - part.skipped, (shape.width + 1) / 2,
                                   false);
    }
    avx512::prefetch_next(qkv, shape, row, rows, 1);
    for (std::int64_t v = 0; v < lanes_of_rows; v += F::width) {
      (F::all(0) - slope * avx512::masked_peak<F>(scores + v, row, v)).store(offsets + v);
      F::all(0).store(masses + v);
    }
    avx512::prefetch_next(qkv, shape, row, rows, 2);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      bool const drops = shape.dropout != nullptr;
      if (drops) avx512::attention_dropout(factors, shape, row, part);
      for (std::int64_t v = part.skipped; v < lanes_of_rows; v += F::width) {
        F const offset = F::load(offsets + v);
        F totals[2] = {F::load(masses + v), F::all(0)};
        for (std::int64_t k = 0; k < part.keys; k += 2) {
          F p[2];
          TRIREME_UNROLL
          for (int i = 0; i < 2; ++i) {
            auto const at = (k + i) * lanes_of_rows + v;
            p[i] = exponential_of_two(fma(F::load(scores + part.key * lanes_of_rows + at), slope, offset));
            totals[i] = totals[i] + p[i];
            if (drops) p[i] = p[i] * F::load(factors + at);
          }
          _mm512_storeu_si512(shares + k / 2 * lanes_of_rows + v, paired_rows(rounded_rows(p[0], p[1])));
        }
        (totals[0] + totals[1]).store(masses + v);
      }
      block_product<F, word_lanes>(result + part.skipped * width, width, shares + part.skipped, std::int64_t{1},
                                   lanes_of_rows, values + part.key * words, width, lanes_of_rows - part.skipped, width,
                                   part.keys / 2, part.key > 0);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      lse[row + r] = std::log(masses[r]) - offsets[r] * A(0.69314718);
      avx512::unpack_rows<F>(y + (row + r) * shape.y_stride, shape.y_stride, result + r * width, 1, shape.width, width,
                             A(1) / masses[r]);
    }
  }
}

template <class T, class A>
inline void attention_backward(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv,
                               attention_head const& shape, A* scratch) {
  using F = avx512::lanes;
  constexpr std::int64_t lanes_of_rows = attention_rows;
  constexpr std::int64_t words_of_rows = lanes_of_rows / 2;
  auto const width = shape.padded_width;
  auto const words = width / 2;
  auto const depth = (shape.width + 1) / 2;
  auto const matrix = shape.padded_rows * width;
  auto const block = lanes_of_rows * words;
  auto const chunk = attention_keys * lanes_of_rows;
  A* const dkeys = scratch;                                                     // (T, D)
  A* const dvalues = dkeys + matrix;                                            // (T, D)
  A* const dqueries = dvalues + matrix;                                         // (32, D)
  A* const scores = dqueries + lanes_of_rows * width;                           // (64, 32)
  A* const dscores = scores + chunk;                                            // (64, 32)
  A* const factors = dscores + chunk;                                           // (64, 32)
  A* const offsets = factors + chunk;                                           // (32)
  A* const deltas = offsets + lanes_of_rows;                                    // (32)
  auto* const keys = reinterpret_cast<std::uint32_t*>(deltas + lanes_of_rows);  // (T, D / 2)
  auto* const key_pairs = keys + matrix / 2;                                    // (T / 2, D)
  auto* const values = key_pairs + matrix / 2;                                  // (T, D / 2)
  auto* const queries = values + matrix / 2;                                    // (16, D)
  auto* const queries_across = queries + block;                                 // (D / 2, 32)
  auto* const slopes = queries_across + block;                                  // (16, D)
  auto* const slopes_across = slopes + block;                                   // (D / 2, 32)
  auto* const shares = slopes_across + block;                                   // (64, 16)
  auto* const dshares = shares + chunk / 2;                                     // (64, 16)
  auto* const dshare_pairs = dshares + chunk / 2;                               // (32, 32)
  A const scale = A(1) / std::sqrt(static_cast<A>(shape.width));
  F const slope = F::all(scale * A(1.44269504));
  pack_words(keys, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);
  pack_pairs(key_pairs, qkv + shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);
  pack_words(values, qkv + 2 * shape.channels, shape.qkv_stride, shape.context, shape.padded_rows, shape.width, width);
  for (std::int64_t i = 0; i < 2 * matrix; i += F::width) F::all(0).store(dkeys + i);

  for (std::int64_t row = 0; row < shape.context; row += lanes_of_rows) {
    auto const rows = shape.context - row < lanes_of_rows ? shape.context - row : lanes_of_rows;
    T const* const query_rows = qkv + row * shape.qkv_stride;
    T const* const dy_rows = dy + row * shape.y_stride;
    T const* const y_rows = y + row * shape.y_stride;
    for (int part = 0; part < 3; ++part) avx512::prefetch_next(qkv, shape, row, rows, part);
    avx512::prefetch_next_result(dy_rows, shape, rows);
    avx512::prefetch_next_result(y_rows, shape, rows);
    pack_pairs(queries, query_rows, shape.qkv_stride, rows, lanes_of_rows, shape.width, width);
    pack_pairs(slopes, dy_rows, shape.y_stride, rows, lanes_of_rows, shape.width, width);
    pack_along(queries_across, query_rows, shape.qkv_stride, shape.width, lanes_of_rows, static_cast<int>(rows));
    pack_along(slopes_across, dy_rows, shape.y_stride, shape.width, lanes_of_rows, static_cast<int>(rows));
    avx512::row_products<F>(deltas, dy_rows, y_rows, shape.y_stride, rows, shape.width);
    for (std::int64_t r = 0; r < lanes_of_rows; ++r) offsets[r] = r < rows ? lse[row + r] * A(-1.44269504) : A(0);
    for (auto part = attention_keys_from(row, 0); part.keys > 0; part = part.next(row)) {
      auto const at_keys = part.key * width;
      auto const skipped = part.skipped;
      auto const unskipped = lanes_of_rows - skipped;
      block_product<F, word_lanes>(scores + skipped, lanes_of_rows, keys + at_keys / 2, words, std::int64_t{1},
                                   queries_across + skipped, lanes_of_rows, part.keys, unskipped, depth, false);
      block_product<F, word_lanes>(dscores + skipped, lanes_of_rows, values + at_keys / 2, words, std::int64_t{1},
                                   slopes_across + skipped, lanes_of_rows, part.keys, unskipped, depth, false);
      bool const drops = shape.dropout != nullptr;
      if (drops) avx512::attention_dropout(factors, shape, row, part);
      bool const diagonal = part.key + part.keys > row;
      for (std::int64_t v = skipped; v < lanes_of_rows; v += F::width) {
        F const offset = F::load(offsets + v);
        F const delta = F::load(deltas + v);
        for (std::int64_t k = 0; k < part.keys; k += 2) {
          F p[2];
          F ds[2];
          TRIREME_UNROLL
          for (int i = 0; i < 2; ++i) {
            auto const at = (k + i) * lanes_of_rows + v;
            p[i] = exponential_of_two(fma(F::load(scores + at), slope, offset));
            if (diagonal) p[i] = first(static_cast<int>(part.key + k + i - row - v), F::all(0), p[i]);
            F dp = F::load(dscores + at);
            if (drops) dp = dp * F::load(factors + at);
            ds[i] = p[i] * (dp - delta);
            if (drops) p[i] = p[i] * F::load(factors + at);
          }
          auto const at = k * words_of_rows + v / 2;
          store_rows(shares + at, words_of_rows, rounded_rows(p[0], p[1]));
          __m512i const dshare_rows = rounded_rows(ds[0], ds[1]);
          store_rows(dshares + at, words_of_rows, dshare_rows);
          _mm512_storeu_si512(dshare_pairs + k / 2 * lanes_of_rows + v, paired_rows(dshare_rows));
        }
      }
      block_product<F, word_lanes>(dvalues + at_keys, width, shares + skipped / 2, words_of_rows, std::int64_t{1},
                                   slopes + skipped / 2 * width, width, part.keys, width, unskipped / 2, true);
      block_product<F, word_lanes>(dkeys + at_keys, width, dshares + skipped / 2, words_of_rows, std::int64_t{1},
                                   queries + skipped / 2 * width, width, part.keys, width, unskipped / 2, true);
      block_product<F, word_lanes>(dqueries + skipped * width, width, dshare_pairs + skipped, std::int64_t{1},
                                   lanes_of_rows, key_pairs + at_keys / 2, width, unskipped, width, part.keys / 2,
                                   part.key > 0);
    }
    avx512::unpack_rows<F>(dqkv + row * shape.qkv_stride, shape.qkv_stride, dqueries, rows, shape.width, width, scale);
  }
  avx512::unpack_rows<F>(dqkv + shape.channels, shape.qkv_stride, dkeys, shape.context, shape.width, width, scale);
  avx512::unpack_rows<F>(dqkv + 2 * shape.channels, shape.qkv_stride, dvalues, shape.context, shape.width, width, A(1));
}

#endif
}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/attention.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

template <class T, class A>
void attention_forward_head(T* y, A* lse, T const* qkv, attention_head const& shape, A* scratch) {
#if TRIREME_X86
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (detected() >= cpu_level::avx512_bf16) return avx512_bf16::attention_forward(y, lse, qkv, shape, scratch);
  }
#endif
  TRIREME_DISPATCH(fits_float<T>, attention_forward(y, lse, qkv, shape, scratch));
}
template <class T, class A>
void attention_backward_head(T* dqkv, T const* dy, T const* y, A const* lse, T const* qkv, attention_head const& shape,
                             A* scratch) {
#if TRIREME_X86
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (detected() >= cpu_level::avx512_bf16) {
      return avx512_bf16::attention_backward(dqkv, dy, y, lse, qkv, shape, scratch);
    }
  }
#endif
  TRIREME_DISPATCH(fits_float<T>, attention_backward(dqkv, dy, y, lse, qkv, shape, scratch));
}

}  // namespace detail

/// Causal self-attention of several heads.
///
/// No (T, T) matrix is kept: the forward pass works on 32 query rows at a time and saves the log of each row's sum of
/// exponentials, from which the backward pass makes the probabilities again. The masked half is skipped.
/// Method: [Dao et al., 2022], without its rescaling, as one block's scores fit the second-level cache.
/// Shapes   qkv, dqkv (B*T, 3C): queries, keys, values, each of H heads of C/H columns; y, dy (B*T, C); lse (B, H, T).
/// Bytes    scratch: 2 (forward) or 4 (backward) matrices (T, C/H) of the accumulate type, and 128 T in the forward
/// pass.
/// Numerics softmax and sums in the accumulate type, and products too; but with AVX512-BF16 those of bfloat16 take
/// probabilities and their gradients rounded to it. A sample's result does not depend on the others.
/// Threads  one caller an arena.
/// Errors   assertion_error (light) if the sizes do not fit.
struct host_attention {
  template <class T>
  using view = tensor_view<T, host>;

  /// y = softmax(mask(q k^T / sqrt(D))) v; dropout, if any, applies to the probabilities, a number at (head, row, col)
  /// of a sample having the position (head * T + row) * T + col.
  template <class T>
  static void causal_attention(view<T> y, detail::output<accumulate_t<T>> lse, detail::input<T> qkv,
                               attention_shape shape, arena<host>& scratch, dropout_site const& dropout) {
    check("causal_attention", shape, qkv.size(), y.size(), lse.size(), dropout);
    each_head<accumulate_t<T>>(shape, scratch, dropout, false,
                               [&](detail::attention_head const& head, std::int64_t sample, accumulate_t<T>* memory) {
                                 auto const row = sample * shape.context;
                                 auto const column = head.head * head.width;
                                 detail::attention_forward_head(
                                     raw(y) + row * shape.channels + column,
                                     raw(lse) + (sample * shape.heads + head.head) * shape.context,
                                     raw(qkv) + row * 3 * shape.channels + column, head, memory);
                               });
  }

  /// The gradient of causal_attention: dqkv is written. y and lse are what the forward pass gave.
  template <class T>
  static void causal_attention_backward(view<T> dqkv, detail::input<T> dy, detail::input<T> y,
                                        detail::input<accumulate_t<T>> lse, detail::input<T> qkv, attention_shape shape,
                                        arena<host>& scratch, dropout_site const& dropout) {
    check("causal_attention_backward", shape, qkv.size(), y.size(), lse.size(), dropout);
    detail::same_size("causal_attention_backward", dqkv.size(), qkv.size());
    detail::same_size("causal_attention_backward", dy.size(), y.size());
    each_head<accumulate_t<T>>(shape, scratch, dropout, true,
                               [&](detail::attention_head const& head, std::int64_t sample, accumulate_t<T>* memory) {
                                 auto const row = sample * shape.context;
                                 auto const column = head.head * head.width;
                                 auto const wide = row * 3 * shape.channels + column;
                                 auto const narrow = row * shape.channels + column;
                                 detail::attention_backward_head(
                                     raw(dqkv) + wide, raw(dy) + narrow, raw(y) + narrow,
                                     raw(lse) + (sample * shape.heads + head.head) * shape.context, raw(qkv) + wide,
                                     head, memory);
                               });
  }

 private:
  static void check(char const* who, attention_shape const& shape, std::int64_t qkv, std::int64_t y, std::int64_t lse,
                    dropout_site const& dropout) {
    auto const rows = shape.batch * shape.context;
    detail::same_size(who, qkv, rows * 3 * shape.channels);
    detail::same_size(who, y, rows * shape.channels);
    detail::same_size(who, lse, rows * shape.heads);
    expects(assertion_level::light, shape.heads > 0 && shape.channels % shape.heads == 0, [&] {
      return text("trireme::ops::", who, ": ", shape.channels, " channels do not divide into ", shape.heads, " heads");
    });
    if (dropout.active()) {
      detail::same_size(who, static_cast<std::int64_t>(dropout.samples.size()), shape.batch);
    }
  }

  template <class Real, class Body>
  static void each_head(attention_shape const& shape, arena<host>& scratch, dropout_site const& dropout, bool backward,
                        Body const& body) {
    if (shape.batch == 0 || shape.context == 0) return;
    auto const width = shape.head_channels();
    detail::attention_head head{.context = shape.context,
                                .width = width,
                                .padded_rows = detail::padded_rows(shape.context),
                                .padded_width = detail::padded_width(width),
                                .qkv_stride = 3 * shape.channels,
                                .y_stride = shape.channels,
                                .channels = shape.channels,
                                .head = 0,
                                .first_head = shape.first_head,
                                .sample = 0,
                                .next_row = 0,
                                .next_column = 0,
                                .dropout = dropout.active() ? &dropout : nullptr};
    auto const mark = scratch.mark();
    auto const memory = scratch.template take<Real>({detail::attention_scratch(shape.context, width, backward)});
    for (std::int64_t sample = 0; sample < shape.batch; ++sample) {
      if (dropout.active()) {
        head.sample = static_cast<std::uint64_t>(dropout.samples[static_cast<std::size_t>(sample)]);
      }
      for (head.head = 0; head.head < shape.heads; ++head.head) {
        bool const turns = head.head + 1 == shape.heads;
        head.next_row = !turns ? 0 : sample + 1 < shape.batch ? shape.context : -1;
        head.next_column = turns ? width - shape.channels : width;
        body(head, sample, raw(memory));
      }
    }
    scratch.rewind(mark);
  }
};

}  // namespace trireme::ops

// ---- trireme/ops/host/embedding.hpp
#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/embedding.inl
// Embedding; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline void embed(T* y, std::int32_t const* tokens, T const* table, T const* positions, std::int64_t rows,
                  std::int64_t context, std::int64_t channels, std::int64_t first, std::int64_t words) {
  using F = lanes_for<T>;
  for (std::int64_t row = 0; row < rows; ++row, y += channels) {
    auto const number = tokens[row] - first;
    T const* const word = number >= 0 && number < words ? table + number * channels : nullptr;
    T const* const place = positions == nullptr ? nullptr : positions + row % context * channels;
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const x = word == nullptr ? F::all(0) : F::load(word + i, count);
      (place == nullptr ? x : x + F::load(place + i, count)).store(y + i, count);
    })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/embedding.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/embedding.inl
// Embedding; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline void embed(T* y, std::int32_t const* tokens, T const* table, T const* positions, std::int64_t rows,
                  std::int64_t context, std::int64_t channels, std::int64_t first, std::int64_t words) {
  using F = lanes_for<T>;
  for (std::int64_t row = 0; row < rows; ++row, y += channels) {
    auto const number = tokens[row] - first;
    T const* const word = number >= 0 && number < words ? table + number * channels : nullptr;
    T const* const place = positions == nullptr ? nullptr : positions + row % context * channels;
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const x = word == nullptr ? F::all(0) : F::load(word + i, count);
      (place == nullptr ? x : x + F::load(place + i, count)).store(y + i, count);
    })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/embedding.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/embedding.inl
// Embedding; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline void embed(T* y, std::int32_t const* tokens, T const* table, T const* positions, std::int64_t rows,
                  std::int64_t context, std::int64_t channels, std::int64_t first, std::int64_t words) {
  using F = lanes_for<T>;
  for (std::int64_t row = 0; row < rows; ++row, y += channels) {
    auto const number = tokens[row] - first;
    T const* const word = number >= 0 && number < words ? table + number * channels : nullptr;
    T const* const place = positions == nullptr ? nullptr : positions + row % context * channels;
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const x = word == nullptr ? F::all(0) : F::load(word + i, count);
      (place == nullptr ? x : x + F::load(place + i, count)).store(y + i, count);
    })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/embedding.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

template <class T>
void embed_rows(T* y, std::int32_t const* tokens, T const* table, T const* positions, std::int64_t rows,
                std::int64_t context, std::int64_t channels, std::int64_t first, std::int64_t words) {
  TRIREME_DISPATCH(fits_float<T>, embed(y, tokens, table, positions, rows, context, channels, first, words));
}

inline void tokens_within(char const* who, tensor_view<std::int32_t const, host> tokens, std::int64_t vocabulary) {
  if (!asserts(assertion_level::normal)) return;
  for (auto const token : tokens.span()) {
    if (token < 0 || token >= vocabulary) {
      throw config_error(text("trireme::ops::", who, ": token ", token, " is outside a vocabulary of ", vocabulary));
    }
  }
}

}  // namespace detail

/// Rows of a table, picked by tokens.
/// Errors   assertion_error (light) if the sizes do not fit; config_error (normal) for a token outside the table.
struct host_embedding {
  template <class T>
  using view = tensor_view<T, host>;

  /// y[b, t] = table[tokens[b, t]] + positions[t]; a row of the table that lies elsewhere counts as 0.
  /// Shapes   y (B, T, C) or (B*T, C); tokens (B, T); table (V, C); positions (P, C) with P >= T, or empty.
  template <class T>
  static void embed(view<T> y, view<std::int32_t const> tokens, detail::input<T> table, detail::input<T> positions,
                    table_part part = {}) {
    auto const channels = table.extent(1);
    auto const context = tokens.extent(tokens.rank() - 1);
    detail::same_size("embed", y.size(), tokens.size() * channels);
    expects(assertion_level::light, positions.empty() || positions.size() >= context * channels, [&] {
      return text("trireme::ops::embed: ", context, " positions asked for, and ", positions.extent(0), " known");
    });
    detail::tokens_within("embed", tokens, part.whole > 0 ? part.whole : table.extent(0));
    detail::embed_rows(raw(y), raw(tokens), raw(table), positions.empty() ? nullptr : raw(positions), tokens.size(),
                       context, channels, part.first, table.extent(0));
  }

  /// dtable[tokens[b, t]] += dy[b, t]; dpositions[t] += dy[b, t]: in the order of rows.
  /// Shapes   as embed's; dpositions may be empty.
  template <class G, class T>
  static void embed_backward(view<G> dtable, detail::output<G> dpositions, view<T> dy, view<std::int32_t const> tokens,
                             table_part part = {}) {
    auto const channels = dtable.extent(1);
    auto const context = tokens.extent(tokens.rank() - 1);
    detail::same_size("embed_backward", dy.size(), tokens.size() * channels);
    expects(assertion_level::light, dpositions.empty() || dpositions.size() >= context * channels, [&] {
      return text("trireme::ops::embed_backward: ", context, " positions asked for, and ", dpositions.extent(0),
                  " known");
    });
    detail::tokens_within("embed_backward", tokens, part.whole > 0 ? part.whole : dtable.extent(0));
    for (std::int64_t row = 0; row < tokens.size(); ++row) {
      std::remove_const_t<T> const* const slope = raw(dy) + row * channels;
      auto const word = tokens[row] - part.first;
      if (word >= 0 && word < dtable.extent(0)) {
        detail::accumulate_elements(raw(dtable) + word * channels, slope, channels, 1.0);
      }
      if (dpositions.empty()) continue;
      detail::accumulate_elements(raw(dpositions) + row % context * channels, slope, channels, 1.0);
    }
  }
};

}  // namespace trireme::ops

// ---- trireme/ops/host/losses.hpp
#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/losses.inl
// Losses of one row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F top = F::all(-std::numeric_limits<real>::infinity());
  // max() gives its second operand if one is NaN, so a NaN among the logits ends in the loss through the sum below.
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  real const peak = largest(top);
  F const shift = F::all(peak);
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  real const mass = sum(total);
  double const loss =
      std::log(static_cast<double>(mass)) + static_cast<double>(peak) - static_cast<double>(logits[target]);
  if (!gradient) return loss;
  real const chosen = static_cast<real>(logits[target]);
  F const factor = F::all(static_cast<real>(weight / static_cast<double>(mass)));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  F::all(static_cast<real>(weight) * (std::exp(chosen - peak) / mass - real(1))).store(logits + target, 1);
  return loss;
}

// The parts of cross_entropy_row for a row whose classes lie on several ranks.
template <class T>
inline double row_peak(T const* logits, std::int64_t classes) {
  using F = lanes_for<T>;
  F top = F::all(-std::numeric_limits<typename F::real>::infinity());
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  return static_cast<double>(largest(top));
}
template <class T>
inline double row_mass(T const* logits, std::int64_t classes, double peak) {
  using F = lanes_for<T>;
  F const shift = F::all(static_cast<typename F::real>(peak));
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  return static_cast<double>(sum(total));
}
// target is outside of [0, classes) if it lies elsewhere.
template <class T>
inline void cross_entropy_slope(T* logits, std::int64_t classes, std::int64_t target, double weight, double peak,
                                double mass) {
  using F = lanes_for<T>;
  using real = typename F::real;
  real const chosen = target >= 0 && target < classes ? static_cast<real>(logits[target]) : real(0);
  F const shift = F::all(static_cast<real>(peak));
  F const factor = F::all(static_cast<real>(weight / mass));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  if (target < 0 || target >= classes) return;
  F::all(static_cast<real>(weight * (std::exp(static_cast<double>(chosen) - peak) / mass - 1)))
      .store(logits + target, 1);
}

template <class T>
inline double squared_error_row(T* dy, T const* y, float const* target, std::int64_t columns, double weight) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F const slope = F::all(static_cast<real>(2 * weight / static_cast<double>(columns)));
  F total = F::all(0);
  TRIREME_FOR_LANES(F, columns, i, count, {
    F const distance = F::load(y + i, count) - F::load(target + i, count);  // 0 beyond count
    total = fma(distance, distance, total);
    if (dy != nullptr) (slope * distance).store(dy + i, count);
  })
  return static_cast<double>(sum(total)) / static_cast<double>(columns);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/losses.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/losses.inl
// Losses of one row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F top = F::all(-std::numeric_limits<real>::infinity());
  // max() gives its second operand if one is NaN, so a NaN among the logits ends in the loss through the sum below.
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  real const peak = largest(top);
  F const shift = F::all(peak);
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  real const mass = sum(total);
  double const loss =
      std::log(static_cast<double>(mass)) + static_cast<double>(peak) - static_cast<double>(logits[target]);
  if (!gradient) return loss;
  real const chosen = static_cast<real>(logits[target]);
  F const factor = F::all(static_cast<real>(weight / static_cast<double>(mass)));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  F::all(static_cast<real>(weight) * (std::exp(chosen - peak) / mass - real(1))).store(logits + target, 1);
  return loss;
}

// The parts of cross_entropy_row for a row whose classes lie on several ranks.
template <class T>
inline double row_peak(T const* logits, std::int64_t classes) {
  using F = lanes_for<T>;
  F top = F::all(-std::numeric_limits<typename F::real>::infinity());
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  return static_cast<double>(largest(top));
}
template <class T>
inline double row_mass(T const* logits, std::int64_t classes, double peak) {
  using F = lanes_for<T>;
  F const shift = F::all(static_cast<typename F::real>(peak));
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  return static_cast<double>(sum(total));
}
// target is outside of [0, classes) if it lies elsewhere.
template <class T>
inline void cross_entropy_slope(T* logits, std::int64_t classes, std::int64_t target, double weight, double peak,
                                double mass) {
  using F = lanes_for<T>;
  using real = typename F::real;
  real const chosen = target >= 0 && target < classes ? static_cast<real>(logits[target]) : real(0);
  F const shift = F::all(static_cast<real>(peak));
  F const factor = F::all(static_cast<real>(weight / mass));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  if (target < 0 || target >= classes) return;
  F::all(static_cast<real>(weight * (std::exp(static_cast<double>(chosen) - peak) / mass - 1)))
      .store(logits + target, 1);
}

template <class T>
inline double squared_error_row(T* dy, T const* y, float const* target, std::int64_t columns, double weight) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F const slope = F::all(static_cast<real>(2 * weight / static_cast<double>(columns)));
  F total = F::all(0);
  TRIREME_FOR_LANES(F, columns, i, count, {
    F const distance = F::load(y + i, count) - F::load(target + i, count);  // 0 beyond count
    total = fma(distance, distance, total);
    if (dy != nullptr) (slope * distance).store(dy + i, count);
  })
  return static_cast<double>(sum(total)) / static_cast<double>(columns);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/losses.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/losses.inl
// Losses of one row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T>
inline double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F top = F::all(-std::numeric_limits<real>::infinity());
  // max() gives its second operand if one is NaN, so a NaN among the logits ends in the loss through the sum below.
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  real const peak = largest(top);
  F const shift = F::all(peak);
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  real const mass = sum(total);
  double const loss =
      std::log(static_cast<double>(mass)) + static_cast<double>(peak) - static_cast<double>(logits[target]);
  if (!gradient) return loss;
  real const chosen = static_cast<real>(logits[target]);
  F const factor = F::all(static_cast<real>(weight / static_cast<double>(mass)));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  F::all(static_cast<real>(weight) * (std::exp(chosen - peak) / mass - real(1))).store(logits + target, 1);
  return loss;
}

// The parts of cross_entropy_row for a row whose classes lie on several ranks.
template <class T>
inline double row_peak(T const* logits, std::int64_t classes) {
  using F = lanes_for<T>;
  F top = F::all(-std::numeric_limits<typename F::real>::infinity());
  TRIREME_FOR_LANES(F, classes, i, count, { top = max(top, first(count, F::load(logits + i, count), top)); })
  return static_cast<double>(largest(top));
}
template <class T>
inline double row_mass(T const* logits, std::int64_t classes, double peak) {
  using F = lanes_for<T>;
  F const shift = F::all(static_cast<typename F::real>(peak));
  F total = F::all(0);
  TRIREME_FOR_LANES(F, classes, i, count,
                    { total = total + first(count, exp(F::load(logits + i, count) - shift), F::all(0)); })
  return static_cast<double>(sum(total));
}
// target is outside of [0, classes) if it lies elsewhere.
template <class T>
inline void cross_entropy_slope(T* logits, std::int64_t classes, std::int64_t target, double weight, double peak,
                                double mass) {
  using F = lanes_for<T>;
  using real = typename F::real;
  real const chosen = target >= 0 && target < classes ? static_cast<real>(logits[target]) : real(0);
  F const shift = F::all(static_cast<real>(peak));
  F const factor = F::all(static_cast<real>(weight / mass));
  TRIREME_FOR_LANES(F, classes, i, count,
                    { (exp(F::load(logits + i, count) - shift) * factor).store(logits + i, count); })
  if (target < 0 || target >= classes) return;
  F::all(static_cast<real>(weight * (std::exp(static_cast<double>(chosen) - peak) / mass - 1)))
      .store(logits + target, 1);
}

template <class T>
inline double squared_error_row(T* dy, T const* y, float const* target, std::int64_t columns, double weight) {
  using F = lanes_for<T>;
  using real = typename F::real;
  F const slope = F::all(static_cast<real>(2 * weight / static_cast<double>(columns)));
  F total = F::all(0);
  TRIREME_FOR_LANES(F, columns, i, count, {
    F const distance = F::load(y + i, count) - F::load(target + i, count);  // 0 beyond count
    total = fma(distance, distance, total);
    if (dy != nullptr) (slope * distance).store(dy + i, count);
  })
  return static_cast<double>(sum(total)) / static_cast<double>(columns);
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/losses.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

template <class T>
double cross_entropy_row(T* logits, std::int64_t classes, std::int64_t target, double weight, bool gradient) {
  TRIREME_DISPATCH(fits_float<T>, cross_entropy_row(logits, classes, target, weight, gradient));
}
template <class T>
double row_peak(T const* logits, std::int64_t classes) {
  TRIREME_DISPATCH(fits_float<T>, row_peak(logits, classes));
}
template <class T>
double row_mass(T const* logits, std::int64_t classes, double peak) {
  TRIREME_DISPATCH(fits_float<T>, row_mass(logits, classes, peak));
}
template <class T>
void cross_entropy_slope(T* logits, std::int64_t classes, std::int64_t target, double weight, double peak,
                         double mass) {
  TRIREME_DISPATCH(fits_float<T>, cross_entropy_slope(logits, classes, target, weight, peak, mass));
}
template <class T>
double squared_error_row(T* dy, T const* y, float const* target, std::int64_t columns, double weight) {
  TRIREME_DISPATCH(fits_float<T>, squared_error_row(dy, y, target, columns, weight));
}

}  // namespace detail

/// Losses, summed over rows in double in the order of rows.
/// Errors   assertion_error (light) if the sizes do not fit; config_error (normal) for a target outside the classes.
struct host_losses {
  template <class T>
  using view = tensor_view<T, host>;

  /// The sum of -log softmax(logits)[target] over rows; a row whose target is negative is left out.
  ///
  /// Works on a chunk of rows in place, so that the logits of a whole batch need not exist at once.
  /// Shapes   logits (n, V), overwritten by weight * d(sum)/d(logits) if `gradient`; targets (n).
  /// Numerics in float with the row's maximum taken out; stable for any finite logits.
  template <class T>
  static loss_sum cross_entropy(view<T> logits, view<std::int32_t const> targets, double weight, bool gradient) {
    if (targets.empty()) return {};
    auto const classes = logits.size() / targets.size();
    detail::same_size("cross_entropy", logits.size(), targets.size() * classes);
    loss_sum loss;
    for (std::int64_t row = 0; row < targets.size(); ++row) {
      auto const target = targets[row];
      if (target >= classes && asserts(assertion_level::normal)) {
        throw config_error(
            text("trireme::ops::cross_entropy: target ", target, " is outside of ", classes, " classes"));
      }
      T* const values = raw(logits) + row * classes;
      if (target < 0) {
        if (gradient) host_elementwise::fill(logits.flat(row * classes, classes), 0.0);
        continue;
      }
      loss.sum += detail::cross_entropy_row(values, classes, target, weight, gradient);
      ++loss.count;
    }
    return loss;
  }

  /// The same where each of several ranks has some of the classes, in three calls with a collective after each of the
  /// first two: peaks (n) become the largest of all ranks, masses and chosen (n) their sums.
  /// Shapes   logits (n, classes here), peaks, masses, chosen (n); masses[i] = sum of exp(logit - peaks[i]) over the
  ///          classes here; chosen[i] = the target's logit where it lies here, else 0.
  template <class T>
  static void row_peaks(view<T> logits, detail::output<accumulate_t<std::remove_const_t<T>>> peaks) {
    auto const classes = peaks.empty() ? 0 : logits.size() / peaks.size();
    detail::same_size("row_peaks", logits.size(), peaks.size() * classes);
    for (std::int64_t row = 0; row < peaks.size(); ++row) {
      peaks[row] = static_cast<accumulate_t<std::remove_const_t<T>>>(
          detail::row_peak(static_cast<std::remove_const_t<T> const*>(raw(logits)) + row * classes, classes));
    }
  }
  template <class T>
  static void row_masses(view<T> logits, view<std::int32_t const> targets, table_part part,
                         detail::input<accumulate_t<std::remove_const_t<T>>> peaks,
                         detail::output<accumulate_t<std::remove_const_t<T>>> masses,
                         detail::output<accumulate_t<std::remove_const_t<T>>> chosen) {
    using A = accumulate_t<std::remove_const_t<T>>;
    if (targets.empty()) return;
    auto const classes = logits.size() / targets.size();
    detail::same_size("row_masses", masses.size(), targets.size());
    for (std::int64_t row = 0; row < targets.size(); ++row) {
      std::remove_const_t<T> const* const values = raw(logits) + row * classes;
      masses[row] = static_cast<A>(detail::row_mass(values, classes, static_cast<double>(peaks[row])));
      auto const target = targets[row] - part.first;
      chosen[row] = target >= 0 && target < classes ? static_cast<A>(values[target]) : A(0);
    }
  }
  template <class T>
  static loss_sum cross_entropy_part(view<T> logits, view<std::int32_t const> targets, table_part part,
                                     detail::input<accumulate_t<T>> peaks, detail::input<accumulate_t<T>> masses,
                                     detail::input<accumulate_t<T>> chosen, double weight, bool gradient) {
    if (targets.empty()) return {};
    auto const classes = logits.size() / targets.size();
    detail::same_size("cross_entropy_part", masses.size(), targets.size());
    loss_sum loss;
    for (std::int64_t row = 0; row < targets.size(); ++row) {
      auto const target = targets[row];
      if (target >= part.whole && asserts(assertion_level::normal)) {
        throw config_error(
            text("trireme::ops::cross_entropy: target ", target, " is outside of ", part.whole, " classes"));
      }
      if (target < 0) {
        if (gradient) host_elementwise::fill(logits.flat(row * classes, classes), 0.0);
        continue;
      }
      auto const mass = static_cast<double>(masses[row]);
      auto const peak = static_cast<double>(peaks[row]);
      loss.sum += std::log(mass) + peak - static_cast<double>(chosen[row]);
      ++loss.count;
      if (!gradient) continue;
      detail::cross_entropy_slope(raw(logits) + row * classes, classes, target - part.first, weight, peak, mass);
    }
    return loss;
  }

  /// The sum over rows of the mean over columns of (y - target)^2; dy = weight * d(sum)/dy, unless dy is empty.
  /// Shapes   y, dy, targets (n, C) or (n). dy may be y.
  template <class T>
  static loss_sum squared_error(view<T> dy, detail::input<T> y, view<float const> targets, double weight) {
    if (y.empty()) return {};
    detail::same_size("squared_error", y.size(), targets.size());
    if (!dy.empty()) detail::same_size("squared_error", dy.size(), y.size());
    loss_sum loss{0, y.rank() == 0 ? 1 : y.extent(0)};
    auto const columns = y.size() / loss.count;
    for (std::int64_t row = 0; row < loss.count; ++row) {
      auto const at = row * columns;
      loss.sum += detail::squared_error_row(dy.empty() ? static_cast<T*>(nullptr) : raw(dy) + at, raw(y) + at,
                                            raw(targets) + at, columns, weight);
    }
    return loss;
  }
};

}  // namespace trireme::ops

// ---- trireme/ops/host/normalisation.hpp
#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/normalisation.inl
// Layer normalisation, row by row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T, class A>
inline void layer_norm(T* y, A* mean, A* rstd, T const* x, T const* gain, T const* bias, std::int64_t rows,
                       std::int64_t channels, double epsilon) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    F total = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, { total = total + F::load(x + i, count); })
    A const middle = sum(total) * share;
    F const centre = F::all(middle);
    F squares = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const distance = first(count, F::load(x + i, count) - centre, F::all(0));
      squares = fma(distance, distance, squares);
    })
    A const inverse = A(1) / std::sqrt(sum(squares) * share + static_cast<A>(epsilon));
    F const factor = F::all(inverse);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = (F::load(x + i, count) - centre) * factor;
      fma(normal, F::load(gain + i, count), F::load(bias + i, count)).store(y + i, count);
    })
    mean[row] = middle;
    rstd[row] = inverse;
  }
}

// With n = (x - mean) rstd and g = dy gain: dx = rstd (g - average(g) - n average(g n)).
template <class T, class A>
inline void layer_norm_backward(T* dx, A* dgain, A* dbias, T const* dy, T const* x, A const* mean, A const* rstd,
                                T const* gain, std::int64_t rows, std::int64_t channels, bool accumulate) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels) {
    F const centre = F::all(mean[row]);
    F const factor = F::all(rstd[row]);
    F total = F::all(0);
    F along = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const slope = F::load(dy + i, count);
      F const normal = (F::load(x + i, count) - centre) * factor;
      F const g = slope * F::load(gain + i, count);  // 0 beyond count, because slope is
      total = total + g;
      along = fma(g, normal, along);
      fma(slope, normal, F::load(dgain + i, count)).store(dgain + i, count);
      (F::load(dbias + i, count) + slope).store(dbias + i, count);
    })
    F const average = F::all(-sum(total) * share);
    F const tilt = F::all(-sum(along) * share);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = (F::load(x + i, count) - centre) * factor;
      F const g = F::load(dy + i, count) * F::load(gain + i, count);
      F const inner = fma(tilt, normal, g + average);
      F const before = accumulate ? F::load(dx + i, count) : F::all(0);
      fma(factor, inner, before).store(dx + i, count);
    })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/normalisation.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/normalisation.inl
// Layer normalisation, row by row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T, class A>
inline void layer_norm(T* y, A* mean, A* rstd, T const* x, T const* gain, T const* bias, std::int64_t rows,
                       std::int64_t channels, double epsilon) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    F total = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, { total = total + F::load(x + i, count); })
    A const middle = sum(total) * share;
    F const centre = F::all(middle);
    F squares = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const distance = first(count, F::load(x + i, count) - centre, F::all(0));
      squares = fma(distance, distance, squares);
    })
    A const inverse = A(1) / std::sqrt(sum(squares) * share + static_cast<A>(epsilon));
    F const factor = F::all(inverse);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = (F::load(x + i, count) - centre) * factor;
      fma(normal, F::load(gain + i, count), F::load(bias + i, count)).store(y + i, count);
    })
    mean[row] = middle;
    rstd[row] = inverse;
  }
}

// With n = (x - mean) rstd and g = dy gain: dx = rstd (g - average(g) - n average(g n)).
template <class T, class A>
inline void layer_norm_backward(T* dx, A* dgain, A* dbias, T const* dy, T const* x, A const* mean, A const* rstd,
                                T const* gain, std::int64_t rows, std::int64_t channels, bool accumulate) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels) {
    F const centre = F::all(mean[row]);
    F const factor = F::all(rstd[row]);
    F total = F::all(0);
    F along = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const slope = F::load(dy + i, count);
      F const normal = (F::load(x + i, count) - centre) * factor;
      F const g = slope * F::load(gain + i, count);  // 0 beyond count, because slope is
      total = total + g;
      along = fma(g, normal, along);
      fma(slope, normal, F::load(dgain + i, count)).store(dgain + i, count);
      (F::load(dbias + i, count) + slope).store(dbias + i, count);
    })
    F const average = F::all(-sum(total) * share);
    F const tilt = F::all(-sum(along) * share);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = (F::load(x + i, count) - centre) * factor;
      F const g = F::load(dy + i, count) * F::load(gain + i, count);
      F const inner = fma(tilt, normal, g + average);
      F const before = accumulate ? F::load(dx + i, count) : F::all(0);
      fma(factor, inner, before).store(dx + i, count);
    })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/normalisation.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/normalisation.inl
// Layer normalisation, row by row; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class T, class A>
inline void layer_norm(T* y, A* mean, A* rstd, T const* x, T const* gain, T const* bias, std::int64_t rows,
                       std::int64_t channels, double epsilon) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    F total = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, { total = total + F::load(x + i, count); })
    A const middle = sum(total) * share;
    F const centre = F::all(middle);
    F squares = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const distance = first(count, F::load(x + i, count) - centre, F::all(0));
      squares = fma(distance, distance, squares);
    })
    A const inverse = A(1) / std::sqrt(sum(squares) * share + static_cast<A>(epsilon));
    F const factor = F::all(inverse);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = (F::load(x + i, count) - centre) * factor;
      fma(normal, F::load(gain + i, count), F::load(bias + i, count)).store(y + i, count);
    })
    mean[row] = middle;
    rstd[row] = inverse;
  }
}

// With n = (x - mean) rstd and g = dy gain: dx = rstd (g - average(g) - n average(g n)).
template <class T, class A>
inline void layer_norm_backward(T* dx, A* dgain, A* dbias, T const* dy, T const* x, A const* mean, A const* rstd,
                                T const* gain, std::int64_t rows, std::int64_t channels, bool accumulate) {
  using F = lanes_for<T>;
  A const share = A(1) / static_cast<A>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, dy += channels, dx += channels) {
    F const centre = F::all(mean[row]);
    F const factor = F::all(rstd[row]);
    F total = F::all(0);
    F along = F::all(0);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const slope = F::load(dy + i, count);
      F const normal = (F::load(x + i, count) - centre) * factor;
      F const g = slope * F::load(gain + i, count);  // 0 beyond count, because slope is
      total = total + g;
      along = fma(g, normal, along);
      fma(slope, normal, F::load(dgain + i, count)).store(dgain + i, count);
      (F::load(dbias + i, count) + slope).store(dbias + i, count);
    })
    F const average = F::all(-sum(total) * share);
    F const tilt = F::all(-sum(along) * share);
    TRIREME_FOR_LANES(F, channels, i, count, {
      F const normal = (F::load(x + i, count) - centre) * factor;
      F const g = F::load(dy + i, count) * F::load(gain + i, count);
      F const inner = fma(tilt, normal, g + average);
      F const before = accumulate ? F::load(dx + i, count) : F::all(0);
      fma(factor, inner, before).store(dx + i, count);
    })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/normalisation.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

template <class T, class A>
void layer_norm_rows(T* y, A* mean, A* rstd, T const* x, T const* gain, T const* bias, std::int64_t rows,
                     std::int64_t channels, double epsilon) {
  TRIREME_DISPATCH(fits_float<T>, layer_norm(y, mean, rstd, x, gain, bias, rows, channels, epsilon));
}
template <class T, class A>
void layer_norm_backward_rows(T* dx, A* dgain, A* dbias, T const* dy, T const* x, A const* mean, A const* rstd,
                              T const* gain, std::int64_t rows, std::int64_t channels, bool accumulate) {
  TRIREME_DISPATCH(fits_float<T>,
                   layer_norm_backward(dx, dgain, dbias, dy, x, mean, rstd, gain, rows, channels, accumulate));
}

}  // namespace detail

/// Layer normalisation of the rows of a matrix.
/// Numerics sums in the accumulate type, the variance about the mean (two passes over a row that lies in L1); a row's
///          result does not depend on the other rows, and dgain and dbias are summed in the order of rows.
/// Errors   assertion_error (light) if the sizes do not fit.
struct host_normalisation {
  template <class T>
  using view = tensor_view<T, host>;

  /// y = (x - mean) * rstd * gain + bias, rstd = 1 / sqrt(variance + epsilon).
  /// Shapes   x, y (M, C); mean, rstd (M); gain, bias (C). y may be x.
  template <class T>
  static void layer_norm(view<T> y, detail::output<accumulate_t<T>> mean, detail::output<accumulate_t<T>> rstd,
                         detail::input<T> x, detail::input<T> gain, detail::input<T> bias, double epsilon) {
    auto const channels = gain.size();
    detail::same_size("layer_norm", y.size(), x.size());
    detail::same_size("layer_norm", x.size(), mean.size() * channels);
    detail::same_size("layer_norm", mean.size(), rstd.size());
    detail::same_size("layer_norm", bias.size(), channels);
    detail::layer_norm_rows(raw(y), raw(mean), raw(rstd), raw(x), raw(gain), raw(bias), mean.size(), channels, epsilon);
  }

  /// The gradients of layer_norm: dx is written, or added to if `accumulate`; dgain and dbias are added to.
  /// Shapes   dx, dy, x (M, C); mean, rstd (M); gain, dgain, dbias (C). dx may be dy unless it accumulates.
  template <class T>
  static void layer_norm_backward(view<T> dx, detail::output<accumulate_t<T>> dgain,
                                  detail::output<accumulate_t<T>> dbias, detail::input<T> dy, detail::input<T> x,
                                  detail::input<accumulate_t<T>> mean, detail::input<accumulate_t<T>> rstd,
                                  detail::input<T> gain, bool accumulate) {
    auto const channels = gain.size();
    detail::same_size("layer_norm_backward", dx.size(), x.size());
    detail::same_size("layer_norm_backward", dy.size(), x.size());
    detail::same_size("layer_norm_backward", x.size(), mean.size() * channels);
    detail::same_size("layer_norm_backward", mean.size(), rstd.size());
    detail::same_size("layer_norm_backward", dgain.size(), channels);
    detail::same_size("layer_norm_backward", dbias.size(), channels);
    detail::layer_norm_backward_rows(raw(dx), raw(dgain), raw(dbias), raw(dy), raw(x), raw(mean), raw(rstd), raw(gain),
                                     mean.size(), channels, accumulate);
  }
};

}  // namespace trireme::ops

// ---- trireme/ops/host/detail/product_eigen.hpp
#include <Eigen/Core>

// ---- trireme/ops/host/detail/product_kernels.hpp
#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/product_store.inl
// Sums on their way out of a product; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

/// Applies the rule to `count` sums from `value`, for column `column` on, at element `at`.
template <class T, class F>
TRIREME_INLINE void store_lanes(store_rule<T> const& rule, F value, std::int64_t at, std::int64_t column, int count) {
  if (rule.bias != nullptr) value = value + F::load(rule.bias + column, count);
  if (rule.keep != nullptr) value.store(rule.keep + at, count);
  if (rule.slope_at != nullptr) {
    value = value * activation_slope(F::load(rule.slope_at + at, count), rule.act);
  } else {
    value = activated(value, rule.act);
  }
  if (rule.residual != nullptr) value = value + F::load(rule.residual + at, count);
  if (rule.accumulate) value = value + F::load(rule.y + at, count);
  value.store(rule.y + at, count);
}

template <class T>
inline void store_sums(store_job<T> const& job) {
  using F = lanes_for<T>;
  store_rule<T> const& rule = *job.rule;
  for (std::int64_t i = 0; i < job.rows; ++i) {
    auto const* const sums = job.sums + i * job.sums_row;
    auto const at = (job.row + i) * rule.ld + job.column;
    TRIREME_FOR_LANES(F, job.columns, j, count,
                      { store_lanes(rule, F::load(sums + j, count), at + j, job.column + j, count); })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/detail/product_kernels.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/product_store.inl
// Sums on their way out of a product; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

/// Applies the rule to `count` sums from `value`, for column `column` on, at element `at`.
template <class T, class F>
TRIREME_INLINE void store_lanes(store_rule<T> const& rule, F value, std::int64_t at, std::int64_t column, int count) {
  if (rule.bias != nullptr) value = value + F::load(rule.bias + column, count);
  if (rule.keep != nullptr) value.store(rule.keep + at, count);
  if (rule.slope_at != nullptr) {
    value = value * activation_slope(F::load(rule.slope_at + at, count), rule.act);
  } else {
    value = activated(value, rule.act);
  }
  if (rule.residual != nullptr) value = value + F::load(rule.residual + at, count);
  if (rule.accumulate) value = value + F::load(rule.y + at, count);
  value.store(rule.y + at, count);
}

template <class T>
inline void store_sums(store_job<T> const& job) {
  using F = lanes_for<T>;
  store_rule<T> const& rule = *job.rule;
  for (std::int64_t i = 0; i < job.rows; ++i) {
    auto const* const sums = job.sums + i * job.sums_row;
    auto const at = (job.row + i) * rule.ld + job.column;
    TRIREME_FOR_LANES(F, job.columns, j, count,
                      { store_lanes(rule, F::load(sums + j, count), at + j, job.column + j, count); })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/detail/product_kernels.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/product_store.inl
// Sums on their way out of a product; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

/// Applies the rule to `count` sums from `value`, for column `column` on, at element `at`.
template <class T, class F>
TRIREME_INLINE void store_lanes(store_rule<T> const& rule, F value, std::int64_t at, std::int64_t column, int count) {
  if (rule.bias != nullptr) value = value + F::load(rule.bias + column, count);
  if (rule.keep != nullptr) value.store(rule.keep + at, count);
  if (rule.slope_at != nullptr) {
    value = value * activation_slope(F::load(rule.slope_at + at, count), rule.act);
  } else {
    value = activated(value, rule.act);
  }
  if (rule.residual != nullptr) value = value + F::load(rule.residual + at, count);
  if (rule.accumulate) value = value + F::load(rule.y + at, count);
  value.store(rule.y + at, count);
}

template <class T>
inline void store_sums(store_job<T> const& job) {
  using F = lanes_for<T>;
  store_rule<T> const& rule = *job.rule;
  for (std::int64_t i = 0; i < job.rows; ++i) {
    auto const* const sums = job.sums + i * job.sums_row;
    auto const at = (job.row + i) * rule.ld + job.column;
    TRIREME_FOR_LANES(F, job.columns, j, count,
                      { store_lanes(rule, F::load(sums + j, count), at + j, job.column + j, count); })
  }
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/detail/product_kernels.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

// The inner kernels: all sums of a tile stay in registers for the whole k loop. An element's sum is formed in the order
// of k whatever the tile, so a row's bits do not depend on which rows are computed with it.
#if TRIREME_X86
namespace trireme::ops::detail {
/// A float or a pair of bfloat16; the latter may lie at any even address.
TRIREME_INLINE std::int32_t word_at(char const* address) {
  std::int32_t word;
  std::memcpy(&word, address, sizeof word);
  return word;
}
}  // namespace trireme::ops::detail

TRIREME_TARGET_AVX2_BEGIN
namespace trireme::ops::detail::avx2 {

template <int Rows>
inline void product_tile(tile_job const& job) {
  __m256 sum[Rows][2];
  TRIREME_UNROLL
  for (int r = 0; r < Rows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
  char const* a = job.a;
  auto const* b = reinterpret_cast<float const*>(job.b);
  std::ptrdiff_t const a_row = job.a_row;
  std::ptrdiff_t const a_step = job.a_step;
  char const* ahead0 = job.ahead[0];
  char const* ahead1 = job.ahead[1];
  int ahead_rows = Rows;
  for (std::int64_t left = job.steps; left > 0;) {
    std::int64_t const part = left < 8 ? left : 8;
    for (std::int64_t step = 0; step < part; ++step, a += a_step, b += 16) {
      __m256 const b0 = _mm256_load_ps(b);
      __m256 const b1 = _mm256_load_ps(b + 8);
      TRIREME_UNROLL
      for (int r = 0; r < Rows; ++r) {
        __m256 const x = _mm256_broadcast_ss(reinterpret_cast<float const*>(a + r * a_row));
        sum[r][0] = _mm256_fmadd_ps(x, b0, sum[r][0]);
        sum[r][1] = _mm256_fmadd_ps(x, b1, sum[r][1]);
      }
    }
    left -= part;
    if (ahead_rows-- > 0) {
      _mm_prefetch(ahead0, _MM_HINT_T0);
      _mm_prefetch(ahead1, _MM_HINT_T0);
      ahead0 += job.ahead_row[0];
      ahead1 += job.ahead_row[1];
    }
  }
  float* c = job.c;
  TRIREME_UNROLL
  for (int r = 0; r < Rows; ++r, c += job.c_row) {
    if (job.accumulate) {
      sum[r][0] = _mm256_add_ps(sum[r][0], _mm256_loadu_ps(c));
      sum[r][1] = _mm256_add_ps(sum[r][1], _mm256_loadu_ps(c + 8));
    }
    _mm256_storeu_ps(c, sum[r][0]);
    _mm256_storeu_ps(c + 8, sum[r][1]);
  }
}

}  // namespace trireme::ops::detail::avx2
TRIREME_TARGET_END

// The k loop of the two AVX-512 kernels, which differ in one instruction.
#define TRIREME_PRODUCT_TILE_512(Rows, multiply_add)                          \
  __m512 sum[Rows][2];                                                        \
  TRIREME_UNROLL                                                              \
  for (int r = 0; r < Rows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps(); \
  char const* a = job.a;                                                      \
  char const* b = job.b;                                                      \
  std::ptrdiff_t const a_row = job.a_row;                                     \
  std::ptrdiff_t const a_step = job.a_step;                                   \
  char const* ahead0 = job.ahead[0];                                          \
  char const* ahead1 = job.ahead[1];                                          \
  int ahead_rows = Rows;                                                      \
  for (std::int64_t left = job.steps; left > 0;) {                            \
    std::int64_t const part = left < 8 ? left : 8;                            \
    for (std::int64_t step = 0; step < part; ++step, a += a_step, b += 128) { \
      __m512i const b0 = _mm512_load_si512(b);                                \
      __m512i const b1 = _mm512_load_si512(b + 64);                           \
      char const* row = a;                                                    \
      TRIREME_UNROLL                                                          \
      for (int r = 0; r < Rows; ++r, row += a_row) {                          \
        __m512i const x = _mm512_set1_epi32(word_at(row));                    \
        sum[r][0] = multiply_add(sum[r][0], x, b0);                           \
        sum[r][1] = multiply_add(sum[r][1], x, b1);                           \
      }                                                                       \
    }                                                                         \
    left -= part;                                                             \
    if (ahead_rows-- > 0) {                                                   \
      _mm_prefetch(ahead0, _MM_HINT_T0);                                      \
      _mm_prefetch(ahead0 + 64, _MM_HINT_T0);                                 \
      _mm_prefetch(ahead1, _MM_HINT_T0);                                      \
      _mm_prefetch(ahead1 + 64, _MM_HINT_T0);                                 \
      ahead0 += job.ahead_row[0];                                             \
      ahead1 += job.ahead_row[1];                                             \
    }                                                                         \
  }                                                                           \
  float* c = job.c;                                                           \
  TRIREME_UNROLL                                                              \
  for (int r = 0; r < Rows; ++r, c += job.c_row) {                            \
    if (job.accumulate) {                                                     \
      sum[r][0] = _mm512_add_ps(sum[r][0], _mm512_loadu_ps(c));               \
      sum[r][1] = _mm512_add_ps(sum[r][1], _mm512_loadu_ps(c + 16));          \
    }                                                                         \
    _mm512_storeu_ps(c, sum[r][0]);                                           \
    _mm512_storeu_ps(c + 16, sum[r][1]);                                      \
  }

TRIREME_TARGET_AVX512_BEGIN
namespace trireme::ops::detail::avx512 {
TRIREME_INLINE __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}
template <int Rows>
inline void product_tile(tile_job const& job) {
  TRIREME_PRODUCT_TILE_512(Rows, multiply_add)
}
}  // namespace trireme::ops::detail::avx512
TRIREME_TARGET_END

TRIREME_TARGET_AVX512_BF16_BEGIN
namespace trireme::ops::detail::avx512_bf16 {
TRIREME_INLINE __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
template <int Rows>
inline void product_tile(tile_job const& job) {
  TRIREME_PRODUCT_TILE_512(Rows, multiply_add)
}
}  // namespace trireme::ops::detail::avx512_bf16
TRIREME_TARGET_END
#undef TRIREME_PRODUCT_TILE_512
#endif

namespace trireme::ops::detail {

/// What `kernel` gives for bfloat16 if T is bfloat16: a program that has only floats does not compile it.
template <class T, class Kernel>
[[nodiscard]] constexpr auto if_bfloat16(Kernel kernel) -> void (*)(store_job<bfloat16> const&) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return kernel.template operator()<bfloat16>();
  } else {
    return nullptr;
  }
}

/// The own kernels for elements of type T on this CPU, or nullptr if there are none (double; CPUs without AVX2).
template <class T>
[[nodiscard]] product_kernels const* own_kernels() noexcept {
#if TRIREME_X86
  if constexpr (!std::is_same_v<T, double>) {
    static constexpr product_kernels avx2_kernels{cpu_level::avx2,
                                                  6,
                                                  16,
                                                  2,
                                                  8,
                                                  false,
                                                  avx2::product_tile<6>,
                                                  avx2::product_tile<2>,
                                                  avx2::store_sums<float>,
                                                  if_bfloat16<T>([]<class U>() { return &avx2::store_sums<U>; })};
    static constexpr product_kernels avx512_kernels{cpu_level::avx512,
                                                    14,
                                                    32,
                                                    4,
                                                    16,
                                                    false,
                                                    avx512::product_tile<14>,
                                                    avx512::product_tile<4>,
                                                    avx512::store_sums<float>,
                                                    if_bfloat16<T>([]<class U>() { return &avx512::store_sums<U>; })};
    auto const level = detected();
    if constexpr (std::is_same_v<T, bfloat16>) {
      static constexpr product_kernels bf16_kernels{cpu_level::avx512_bf16,
                                                    14,
                                                    32,
                                                    4,
                                                    16,
                                                    true,
                                                    avx512_bf16::product_tile<14>,
                                                    avx512_bf16::product_tile<4>,
                                                    avx512::store_sums<float>,
                                                    if_bfloat16<T>([]<class U>() { return &avx512::store_sums<U>; })};
      if (level >= cpu_level::avx512_bf16) return &bf16_kernels;
    }
    if (level >= cpu_level::avx512) return &avx512_kernels;
    if (level >= cpu_level::avx2) return &avx2_kernels;
  }
#endif
  return nullptr;
}

}  // namespace trireme::ops::detail

// ---- trireme/ops/host/detail/product_eigen.hpp (goes on)
namespace trireme::ops::detail {

/// c (m, n) = a (m, k) b (k, n), all row-major and dense.
///
/// Calls Eigen's blocked product itself: the expression `c.noalias() = a * b` also instantiates three other algorithms
/// for small and thin matrices, which costs four times the compile time and makes a row's bits depend on m.
template <class A>
void eigen_multiply(A* c, A const* a, A const* b, std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr int any = Eigen::Dynamic;
  constexpr int by_row = Eigen::RowMajor;
  std::fill(c, c + m * n, A{0});
  Eigen::internal::gemm_blocking_space<by_row, A, A, any, any, any> blocking(m, n, k, 1, true);
  Eigen::internal::general_matrix_matrix_product<Eigen::Index, A, by_row, false, A, by_row, false, by_row, 1>::run(
      m, n, k, a, k, b, n, c, 1, n, A{1}, blocking, nullptr);
}

/// The same with every row's bits independent of m: Eigen works on four rows at a time, and otherwise on one.
template <class A>
void eigen_multiply_rows(A* c, A const* a, A const* b, std::int64_t m, std::int64_t n, std::int64_t k) {
  thread_local growing_buffer padding;
  auto const whole = m / 4 * 4;
  if (whole > 0) eigen_multiply(c, a, b, whole, n, k);
  if (whole == m) return;
  A* const left = padding.take<A>(4 * (n + k));  // (4,k), then the result (4,n)
  std::copy(a + whole * k, a + m * k, left);
  std::fill(left + (m - whole) * k, left + 4 * k, A{0});
  eigen_multiply(left + 4 * k, left, b, std::int64_t{4}, n, k);
  std::copy(left + 4 * k, left + 4 * k + (m - whole) * n, c + whole * n);
}

/// to (k, n) = w, which is (k, n) or, transposed, (n, k); converted.
template <class A, class T>
void eigen_operand(A* to, T const* w, bool transposed, std::int64_t k, std::int64_t n) {
  if (!transposed) {
    for (std::int64_t i = 0; i < k * n; ++i) to[i] = static_cast<A>(w[i]);
    return;
  }
  constexpr std::int64_t block = 16;
  for (std::int64_t row = 0; row < k; row += block) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = row; i < std::min(k, row + block); ++i) to[i * n + j] = static_cast<A>(w[j * k + i]);
    }
  }
}

/// y (m, n) = rule(x (m, k) right (k, n)), in blocks of rows.
template <class T, class A>
void eigen_product(store_rule<T> const& rule, T const* x, A const* right, std::int64_t m, std::int64_t n,
                   std::int64_t k) {
  thread_local growing_buffer sums_buffer;
  thread_local growing_buffer left_buffer;
  constexpr std::int64_t most = 512;
  for (std::int64_t row = 0; row < m; row += most) {
    auto const rows = std::min(most, m - row);
    A const* left = nullptr;
    if constexpr (std::is_same_v<T, A>) {
      left = x + row * k;
    } else {
      A* const to = left_buffer.take<A>(rows * k);
      eigen_operand(to, x + row * k, false, rows, k);
      left = to;
    }
    A* const sums = sums_buffer.take<A>(rows * n);
    eigen_multiply_rows(sums, left, right, rows, n, k);
    baseline::store_sums<T>({&rule, sums, n, row, 0, rows, n});
  }
}

/// c (r, s) += u (m, r)^T v (m, s), with column sums where given.
template <class T, class A>
void eigen_product_transposed(A* c, T const* u, T const* v, std::int64_t m, std::int64_t r, std::int64_t s, A* u_sums,
                              A* v_sums) {
  thread_local growing_buffer left_buffer;
  thread_local growing_buffer right_buffer;
  thread_local growing_buffer sums_buffer;
  A const* right = nullptr;
  if constexpr (std::is_same_v<T, A>) {
    right = v;
  } else {
    A* const to = right_buffer.take<A>(m * s);
    eigen_operand(to, v, false, m, s);
    right = to;
  }
  A* const left = left_buffer.take<A>(m * r);  // u^T (r, m)
  eigen_operand(left, u, true, r, m);
  constexpr std::int64_t most = 512;
  for (std::int64_t row = 0; row < r; row += most) {
    auto const rows = std::min(most, r - row);
    A* const sums = sums_buffer.take<A>(rows * s);
    eigen_multiply(sums, left + row * m, right, rows, s, m);
    for (std::int64_t i = 0; i < rows * s; ++i) c[row * s + i] += sums[i];
  }
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; u_sums != nullptr && j < r; ++j) u_sums[j] += static_cast<A>(u[i * r + j]);
    for (std::int64_t j = 0; v_sums != nullptr && j < s; ++j) v_sums[j] += static_cast<A>(v[i * s + j]);
  }
}

}  // namespace trireme::ops::detail

// ---- trireme/ops/host/detail/product_own.hpp
// The loops around the own kernels. Word is what a kernel reads: float, or a pair of bfloat16 in a std::uint32_t.
namespace trireme::ops::detail {

/// Half of a core's L2: what a block that is used again and again may fill.
inline constexpr std::int64_t cache_bytes = std::int64_t{512} << 10;

template <class Word>
inline constexpr std::int64_t elements_of = std::is_same_v<Word, float> ? 1 : 2;

[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

/// Words of a packed right operand (k, n).
template <class Word>
[[nodiscard]] std::int64_t packed_words(product_kernels const& kernels, std::int64_t k, std::int64_t n) noexcept {
  return divide_up(n, kernels.columns) * kernels.columns * divide_up(k, elements_of<Word>);
}

/// Packs the right operand (k, n) from row-major w, which is (k, n) itself or its transpose (n, k).
template <class Word, class T>
void pack_right(product_kernels const& kernels, Word* to, T const* w, bool transposed, std::int64_t k, std::int64_t n) {
  int const width = kernels.columns;
  auto const panel = divide_up(k, elements_of<Word>) * width;
  // Strips of at most 128 columns and 64 rows: whole rows would walk all panels at once, which share a cache set.
  std::int64_t const strip = 128 / width * width;
  std::int64_t const part = 64;
  for (std::int64_t first = 0; first < n; first += strip) {
    auto const end = std::min(n, first + strip);
    for (std::int64_t row = 0; row < k; row += transposed ? k : part) {
      for (std::int64_t j = first; j < end; j += width) {
        Word* const target = to + j / width * panel + row / elements_of<Word> * width;
        int const columns = static_cast<int>(std::min<std::int64_t>(width, n - j));
        if (transposed) {
          pack_along(target, w + j * k, k, k, width, columns);
        } else {
          pack_across(target, w + row * n + j, n, std::min(part, k - row), width, columns);
        }
      }
    }
  }
}

/// Copies rows of a left operand to words, `rows` of which exist, into a tile of `all` rows of `to_ld` words.
template <class Word, class T>
void copy_left(Word* to, std::int64_t to_ld, T const* x, std::int64_t ld, int rows, int all, std::int64_t k) {
  auto const words = divide_up(k, elements_of<Word>);
  for (int r = 0; r < all; ++r, to += to_ld, x += ld) {
    if (r >= rows) {
      std::fill(to, to + words, Word{0});
    } else if constexpr (std::is_same_v<Word, T> || !std::is_same_v<Word, float>) {
      to[words - 1] = 0;
      std::memcpy(to, x, static_cast<std::size_t>(k) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < k; ++i) to[i] = static_cast<float>(x[i]);
    }
  }
}

template <class T>
void store_tile(product_kernels const& kernels, store_job<T> const& job) {
  if constexpr (std::is_same_v<T, float>) {
    kernels.store_float(job);
  } else {
    kernels.store_bfloat16(job);
  }
}

/// y (m, n) = rule(x (m, k) w), w packed. Blocks of columns whose panels stay in L2 under all rows; long sums in
/// parts, so that both a panel's part and a tile's rows stay in cache. How a row is summed depends on k alone.
template <class Word, class T>
void own_multiply(product_kernels const& kernels, store_rule<T> const& rule, T const* x, Word const* packed,
                  std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr auto per_word = elements_of<Word>;
  thread_local growing_buffer left_buffer;
  thread_local growing_buffer partial_buffer;
  alignas(64) float tile[16 * 32];

  int const width = kernels.columns;
  auto const steps = divide_up(k, per_word);
  bool const convert = sizeof(T) * per_word != sizeof(Word);
  // A row length of whole pages puts all rows of a tile into one set of the L1 cache.
  bool const copy_all = convert || k * static_cast<std::int64_t>(sizeof(T)) % 4096 == 0;
  // Copies serve one block of columns, so where there are copies short parts make that block wide.
  auto const parts = divide_up(steps, copy_all ? 512 : 1152);
  auto const part = divide_up(divide_up(steps, parts), 8) * 8;
  auto const block = std::max<std::int64_t>(1, cache_bytes / (part * width * 4)) * width;
  auto const partial_ld = block;
  auto const rows_at_once = parts == 1 ? m : std::min<std::int64_t>(m, kernels.rows * 36);
  float* const partial = parts == 1 ? nullptr : partial_buffer.take<float>((rows_at_once + kernels.rows) * partial_ld);
  auto const left_ld = part + 16;
  Word* const left = left_buffer.take<Word>(left_ld * kernels.rows);

  for (std::int64_t column = 0; column < n; column += block) {
    auto const column_end = std::min(n, column + block);
    for (std::int64_t top = 0; top < m; top += rows_at_once) {
      auto const bottom = std::min(m, top + rows_at_once);
      for (std::int64_t step = 0; step < steps; step += part) {
        auto const count = std::min(part, steps - step);
        bool const last = step + count == steps;
        bool const copy = copy_all || (last && k % per_word != 0);
        for (std::int64_t row = top; row < bottom;) {
          int const rows = static_cast<int>(std::min<std::int64_t>(kernels.rows, bottom - row));
          bool const small = rows <= kernels.small_rows;
          int const all = small ? kernels.small_rows : kernels.rows;
          tile_job job{};
          if (copy || rows < all) {
            auto const first = step * per_word;
            copy_left(left, left_ld, x + row * k + first, k, rows, all, std::min(k - first, count * per_word));
            job.a = reinterpret_cast<char const*>(left);
            job.a_row = left_ld * 4;
          } else {
            job.a = reinterpret_cast<char const*>(x + row * k + step * per_word);
            job.a_row = k * static_cast<std::int64_t>(sizeof(T));
          }
          job.a_step = sizeof(Word);
          job.steps = count;
          job.accumulate = step > 0;
          job.ahead_row[0] = job.ahead_row[1] = rule.ld * static_cast<std::int64_t>(sizeof(T));
          for (std::int64_t j = column; j < column_end; j += width) {
            job.b = reinterpret_cast<char const*>(packed + j * steps + step * width);
            bool direct = false;
            if (parts > 1) {
              job.c = partial + (row - top) * partial_ld + (j - column);
              job.c_row = partial_ld;
            } else {
              job.c = tile;
              job.c_row = width;
              if constexpr (std::is_same_v<T, float>) {
                direct = rule.plain() && rows == all && n - j >= width;
                if (direct) {
                  job.c = rule.y + row * rule.ld + j;
                  job.c_row = rule.ld;
                }
              }
            }
            auto const at = row * rule.ld + j;
            T const* const also = rule.slope_at != nullptr   ? rule.slope_at
                                  : rule.residual != nullptr ? rule.residual
                                                             : rule.keep;
            job.ahead[0] = reinterpret_cast<char const*>(rule.y + at);
            job.ahead[1] = also == nullptr ? job.ahead[0] : reinterpret_cast<char const*>(also + at);
            small ? kernels.small_tile(job) : kernels.tile(job);
            if (last && !direct) {
              store_tile<T>(kernels, {&rule, job.c, job.c_row, row, j, rows, std::min<std::int64_t>(width, n - j)});
            }
          }
          row += rows;
        }
      }
    }
  }
}

/// c (r, s) += u (m, r)^T v (m, s); u_sums += column sums of u, v_sums of v, where given.
///
/// Both operands are packed as they are used: a block of u into L2, then one panel of v at a time, which serves all of
/// the block and so costs next to nothing. The tiles of c are fetched while their sums are formed.
template <class Word, class T>
void own_multiply_transposed(product_kernels const& kernels, float* c, T const* u, T const* v, std::int64_t m,
                             std::int64_t r, std::int64_t s, float* u_sums, float* v_sums) {
  constexpr auto per_word = elements_of<Word>;
  thread_local growing_buffer left_buffer;
  thread_local growing_buffer right_buffer;
  alignas(64) float tile[16 * 32];

  int const width = kernels.columns;
  auto const all_steps = divide_up(m, per_word);
  auto const parts = divide_up(all_steps, 320);
  auto const part = divide_up(divide_up(all_steps, parts), 8) * 8;
  auto const most_tiles = std::max<std::int64_t>(1, cache_bytes / (part * kernels.panel * 4));
  auto const all_tiles = divide_up(r, kernels.rows);
  auto const tiles = divide_up(all_tiles, divide_up(all_tiles, most_tiles));
  Word* const left = left_buffer.take<Word>(tiles * part * kernels.panel);
  Word* const right = right_buffer.take<Word>(part * width);
  store_rule<float> rule;
  rule.y = c;
  rule.ld = s;
  rule.accumulate = true;

  for (std::int64_t step = 0; step < all_steps; step += part) {
    auto const steps = std::min(part, all_steps - step);
    auto const first = step * per_word;
    auto const count = std::min(m - first, steps * per_word);
    for (std::int64_t top = 0; top < r; top += tiles * kernels.rows) {
      auto const bottom = std::min(r, top + tiles * kernels.rows);
      // A few rows of all panels at a time: memory is read along rows. A panel's spare columns take what follows.
      constexpr std::int64_t few = 16;
      for (std::int64_t at = 0; at < count; at += few) {
        for (std::int64_t row = top; row < bottom; row += kernels.rows) {
          Word* const panel = left + ((row - top) / kernels.rows * steps + at / per_word) * kernels.panel;
          int const columns = static_cast<int>(std::min<std::int64_t>(kernels.panel, r - row));
          pack_across(panel, u + (first + at) * r + row, r, std::min(few, count - at), kernels.panel, columns);
        }
      }
      for (std::int64_t row = top; row < bottom && u_sums != nullptr; row += kernels.rows) {
        Word const* const panel = left + (row - top) / kernels.rows * steps * kernels.panel;
        int const columns = static_cast<int>(std::min<std::int64_t>(kernels.rows, bottom - row));
        add_panel_columns(u_sums + row, panel, steps, kernels.panel, columns);
      }
      for (std::int64_t j = 0; j < s; j += width) {
        int const columns = static_cast<int>(std::min<std::int64_t>(width, s - j));
        pack_across(right, v + first * s + j, s, count, width, columns);
        if (v_sums != nullptr && top == 0) add_panel_columns(v_sums + j, right, steps, width, columns);
        for (std::int64_t row = top; row < bottom; row += kernels.rows) {
          int const rows = static_cast<int>(std::min<std::int64_t>(kernels.rows, bottom - row));
          bool const small = rows <= kernels.small_rows;
          bool const direct = columns == width && rows == (small ? kernels.small_rows : kernels.rows);
          tile_job job{};
          job.a = reinterpret_cast<char const*>(left + (row - top) / kernels.rows * steps * kernels.panel);
          job.a_row = sizeof(Word);
          job.a_step = kernels.panel * static_cast<std::ptrdiff_t>(sizeof(Word));
          job.b = reinterpret_cast<char const*>(right);
          job.steps = steps;
          job.c = direct ? c + row * s + j : tile;
          job.c_row = direct ? s : width;
          job.accumulate = direct;
          job.ahead[0] = reinterpret_cast<char const*>(c + row * s + j);
          job.ahead_row[0] = s * 4;
          // Each tile also fetches some rows of the next panel of v.
          auto const next = std::min(j + width, s - 1);
          job.ahead[1] = reinterpret_cast<char const*>(v + std::min(first + row - top, m - 1) * s + next);
          job.ahead_row[1] = s * static_cast<std::int64_t>(sizeof(T));
          small ? kernels.small_tile(job) : kernels.tile(job);
          if (!direct) kernels.store_float({&rule, tile, width, row, j, rows, columns});
        }
      }
    }
  }
}

}  // namespace trireme::ops::detail

// ---- trireme/ops/host/products.hpp (goes on)
namespace trireme::ops {

/// Who multiplies matrices: the kernels of this library where the CPU has vectors for them (never for double), or
/// Eigen, which is also the reference of the tests.
enum class provider { eigen, own };

namespace detail {
inline std::atomic<provider> active_provider{provider::own};

/// The one packed copy that a thread has of weights whose values do not stay.
struct passing_copy {
  growing_buffer buffer;
  void const* owner = nullptr;
};
[[nodiscard]] inline passing_copy& passing() {
  thread_local passing_copy it;
  return it;
}
}  // namespace detail

/// The provider in use; the setter is for tests and benchmarks, between steps.
[[nodiscard]] inline provider product_provider() noexcept {
  return detail::active_provider.load(std::memory_order_relaxed);
}
inline void product_provider(provider choice) noexcept {
  detail::active_provider.store(choice, std::memory_order_relaxed);
}

struct host_products;

/// A weight matrix as products see it, with copies of it packed for the kernels: one for each of the two directions,
/// made when first needed and again after refresh() has told of other values.
///
/// Bytes    the packed copies take what the matrix takes each (twice that for bfloat16 without its instructions); they
///          are allocated once and used again.
/// Threads  one owner; ranks that are threads have a copy each.
template <class T>
class weights<T, host> {
 public:
  weights() = default;
  weights(tensor_view<T const, host> values, orientation way) { bind(values, way); }

  /// Uses another matrix: (inputs, outputs) for orientation::in_out, (outputs, inputs) for orientation::out_in.
  /// Binding the same memory again keeps the packed copies: refresh() says when values have changed.
  void bind(tensor_view<T const, host> values, orientation way) {
    expects(assertion_level::light, values.rank() == 2 && !values.empty(), [&] {
      return text("trireme::ops::weights: a weight has two extents, both positive; got ", to_string(values.extents()));
    });
    if (values.address() == view_.address() && values.extents() == view_.extents() && way == way_) return;
    view_ = values;
    way_ = way;
    forward_.valid = backward_.valid = false;
  }
  /// Drops the packed copies if `version` is not the one they were made for. With passing_values in it they are not
  /// kept at all: all such weights of a thread share the memory of one.
  void refresh(std::uint64_t version) noexcept {
    if (version == version_) return;
    version_ = version;
    passes_ = (version & passing_values) != 0;
    if (passes_) {
      forward_.buffer = {};
      backward_.buffer = {};
    }
    forward_.valid = backward_.valid = false;
  }

  [[nodiscard]] tensor_view<T const, host> view() const noexcept { return view_; }
  [[nodiscard]] orientation way() const noexcept { return way_; }
  [[nodiscard]] std::int64_t inputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 0 : 1); }
  [[nodiscard]] std::int64_t outputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 1 : 0); }
  [[nodiscard]] std::size_t packed_bytes() const noexcept { return forward_.buffer.bytes() + backward_.buffer.bytes(); }

 private:
  friend struct host_products;
  struct packed_copy {
    detail::growing_buffer buffer;
    detail::product_kernels const* kernels = nullptr;
    bool valid = false;
  };
  tensor_view<T const, host> view_;
  orientation way_ = orientation::in_out;
  std::uint64_t version_ = std::numeric_limits<std::uint64_t>::max();
  bool passes_ = false;
  packed_copy forward_;
  packed_copy backward_;
};

/// Matrix products with what surrounds them (bias, activation, residual, gradients of both) done on the way out.
///
/// Numerics float and bfloat16 are summed in float, double in double. A row of linear() and linear_backward_input()
///          has the same bits whichever rows are computed with it; equal inputs give equal bits.
/// Threads  callable from any number of threads, each with its own weights.
/// Errors   config_error if shapes do not fit (asserts, light).
struct host_products {
  /// y = residual + act(x w + bias); before_activation, if given, keeps x w + bias.
  ///
  /// Shapes   y (M,N), x (M,K), w (K,N) or (N,K); the rows M may be several leading extents. y may be the residual.
  template <class T>
  static void linear(tensor_view<T, host> y, std::type_identity_t<tensor_view<T const, host>> x, weights<T, host>& w,
                     std::type_identity_t<linear_epilogue<T, host>> const& epilogue = {}) {
    auto const m = rows_of("linear", x, w.inputs());
    if (m == 0) return;
    check("linear", "y", y.size(), m * w.outputs());
    if (!epilogue.bias.empty()) check("linear", "bias", epilogue.bias.size(), w.outputs());
    if (!epilogue.residual.empty()) check("linear", "residual", epilogue.residual.size(), y.size());
    if (!epilogue.before_activation.empty()) {
      check("linear", "before_activation", epilogue.before_activation.size(), y.size());
    }
    detail::store_rule<T> rule;
    rule.y = raw(y);
    rule.ld = w.outputs();
    rule.act = epilogue.act;
    if (!epilogue.bias.empty()) rule.bias = raw(epilogue.bias);
    if (!epilogue.before_activation.empty()) rule.keep = raw(epilogue.before_activation);
    if (!epilogue.residual.empty()) rule.residual = raw(epilogue.residual);
    multiply(rule, raw(x), w, w.forward_, w.way() == orientation::out_in, m, w.outputs(), w.inputs());
  }

  /// dx = (dy w^T) * act'(before_activation), the factor only if before_activation is given; added to dx if accumulate.
  ///
  /// Shapes   dx (M,K), dy (M,N), before_activation (M,K).
  template <class T>
  static void linear_backward_input(tensor_view<T, host> dx, std::type_identity_t<tensor_view<T const, host>> dy,
                                    weights<T, host>& w,
                                    std::type_identity_t<input_epilogue<T, host>> const& epilogue = {}) {
    auto const m = rows_of("linear_backward_input", dy, w.outputs());
    if (m == 0) return;
    check("linear_backward_input", "dx", dx.size(), m * w.inputs());
    detail::store_rule<T> rule;
    rule.y = raw(dx);
    rule.ld = w.inputs();
    rule.accumulate = epilogue.accumulate;
    if (!epilogue.before_activation.empty()) {
      check("linear_backward_input", "before_activation", epilogue.before_activation.size(), dx.size());
      rule.act = epilogue.act;
      rule.slope_at = raw(epilogue.before_activation);
    }
    multiply(rule, raw(dy), w, w.backward_, w.way() == orientation::in_out, m, w.inputs(), w.outputs());
  }

  /// dw += x^T dy for orientation::in_out, dy^T x for out_in; db += column sums of dy, unless db is empty.
  ///
  /// Shapes   dw (K,N) or (N,K), db (N), x (M,K), dy (M,N).
  template <class T, class G>
  static void linear_backward_weight(tensor_view<G, host> dw, std::type_identity_t<tensor_view<G, host>> db,
                                     tensor_view<T, host> x,
                                     std::type_identity_t<tensor_view<std::remove_const_t<T> const, host>> dy,
                                     orientation way) {
    using Element = std::remove_const_t<T>;
    static_assert(std::is_same_v<G, accumulate_t<Element>>,
                  "trireme::ops::linear_backward_weight: gradients are kept in the accumulate type of the operands");
    auto const k = dw.extent(way == orientation::in_out ? 0 : 1);
    auto const n = dw.extent(way == orientation::in_out ? 1 : 0);
    auto const m = rows_of("linear_backward_weight", tensor_view<Element const, host>(x), k);
    if (m == 0) return;
    check("linear_backward_weight", "dy", dy.size(), m * n);
    if (!db.empty()) check("linear_backward_weight", "db", db.size(), n);
    G* const sums = db.empty() ? nullptr : raw(db);
    if (way == orientation::in_out) {
      multiply_transposed<Element, G>(raw(dw), raw(x), raw(dy), m, k, n, nullptr, sums);
    } else {
      multiply_transposed<Element, G>(raw(dw), raw(dy), raw(x), m, n, k, sums, nullptr);
    }
  }

 private:
  static void check(std::string_view who, std::string_view what, std::int64_t size, std::int64_t expected) {
    if (size != expected && asserts(assertion_level::light)) {
      throw config_error(text("trireme::ops::", who, ": ", what, " has ", size, " elements, expected ", expected));
    }
  }
  template <class T>
  static std::int64_t rows_of(std::string_view who, tensor_view<T const, host> x, std::int64_t row) {
    auto const rows = x.size() / row;
    check(who, "the left operand", x.size(), rows * row);
    return rows;
  }
  template <class T>
  static detail::product_kernels const* kernels() noexcept {
    return product_provider() == provider::own ? detail::own_kernels<T>() : nullptr;
  }

  /// y (m, n) = rule(x (m, k) w), where the weight's memory is (n, k) if `transposed`, else (k, n).
  template <class T>
  static void multiply(detail::store_rule<T> const& rule, T const* x, weights<T, host>& w,
                       typename weights<T, host>::packed_copy& copy, bool transposed, std::int64_t m, std::int64_t n,
                       std::int64_t k) {
    auto const* const chosen = kernels<T>();
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
    if constexpr (!std::is_same_v<T, double>) {
      if (chosen != nullptr) {
        if (chosen->pairs) {
          multiply_own<std::uint32_t>(*chosen, rule, x, values, *buffer, valid, transposed, m, n, k);
        } else {
          multiply_own<float>(*chosen, rule, x, values, *buffer, valid, transposed, m, n, k);
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

  template <class Word, class T>
  static void multiply_own(detail::product_kernels const& chosen, detail::store_rule<T> const& rule, T const* x,
                           T const* values, detail::growing_buffer& buffer, bool valid, bool transposed, std::int64_t m,
                           std::int64_t n, std::int64_t k) {
    if constexpr (std::is_same_v<Word, float> || std::is_same_v<T, bfloat16>) {
      Word* const packed = buffer.template take<Word>(detail::packed_words<Word>(chosen, k, n));
      if (!valid) detail::pack_right(chosen, packed, values, transposed, k, n);
      detail::own_multiply(chosen, rule, x, static_cast<Word const*>(packed), m, n, k);
    }
  }

  /// c (r, s) += u (m, r)^T v (m, s), with column sums.
  template <class T, class G>
  static void multiply_transposed(G* c, T const* u, T const* v, std::int64_t m, std::int64_t r, std::int64_t s,
                                  G* u_sums, G* v_sums) {
    if constexpr (!std::is_same_v<T, double>) {
      if (auto const* const chosen = kernels<T>(); chosen != nullptr) {
        if constexpr (std::is_same_v<T, bfloat16>) {
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
};

}  // namespace trireme::ops

// ---- trireme/ops/host/routing.hpp
namespace trireme::ops {

/// Rows that choose experts: who gets which row, and how the experts' answers become one row again.
///
/// Numerics in the accumulate type; a row's result does not depend on the other rows. Sums over a row's experts are in
///          the order of its choices, the most probable first.
/// Errors   assertion_error (light) if the sizes do not fit.
struct host_routing {
  template <class T>
  using view = tensor_view<T, host>;
  template <class T>
  using sums = tensor_view<accumulate_t<std::remove_const_t<T>>, host>;

  /// Each row chooses the most probable of the experts; of equal ones, those of lower numbers. The weights of a row's
  /// choices are their probabilities over the sum of these; with a single choice its probability.
  /// Shapes   logits, probabilities (M, E); chosen, weights (M, K), K <= E.
  template <class T>
  static void route(sums<T> probabilities, view<std::int32_t> chosen, sums<T> weights, view<T> logits) {
    using A = accumulate_t<std::remove_const_t<T>>;
    auto const experts = logits.extent(1);
    auto const choices = chosen.extent(1);
    detail::same_size("route", probabilities.size(), logits.size());
    detail::same_size("route", chosen.size(), weights.size());
    detail::same_size("route", chosen.size() * experts, logits.size() * choices);
    expects(assertion_level::light, choices <= experts,
            [&] { return text("trireme::ops::route: ", choices, " choices of ", experts, " experts"); });
    for (std::int64_t row = 0; row < logits.extent(0); ++row) {
      auto const* const from = raw(logits) + row * experts;
      auto* const p = raw(probabilities) + row * experts;
      A peak = static_cast<A>(from[0]);
      for (std::int64_t e = 1; e < experts; ++e) peak = std::max(peak, static_cast<A>(from[e]));
      A mass = 0;
      for (std::int64_t e = 0; e < experts; ++e) mass += p[e] = std::exp(static_cast<A>(from[e]) - peak);
      for (std::int64_t e = 0; e < experts; ++e) p[e] /= mass;
      choose(p, experts, raw(chosen) + row * choices, raw(weights) + row * choices, choices);
    }
  }

  /// The gradient of route's logits, from those of the weights and (`slopes`, or empty) of the probabilities.
  template <class T>
  static void route_backward(view<T> dlogits, sums<T> dweights, sums<T> probabilities, view<std::int32_t const> chosen,
                             sums<T> weights, sums<T> slopes) {
    using A = accumulate_t<T>;
    auto const experts = dlogits.extent(1);
    auto const choices = chosen.extent(1);
    detail::same_size("route_backward", probabilities.size(), dlogits.size());
    detail::same_size("route_backward", chosen.size(), weights.size());
    detail::same_size("route_backward", chosen.size(), dweights.size());
    thread_local std::vector<A> slope;
    slope.resize(static_cast<std::size_t>(experts));
    for (std::int64_t row = 0; row < dlogits.extent(0); ++row) {
      auto const* const p = raw(probabilities) + row * experts;
      auto const* const which = raw(chosen) + row * choices;
      auto const* const w = raw(weights) + row * choices;
      auto const* const dw = raw(dweights) + row * choices;
      for (std::int64_t e = 0; e < experts; ++e)
        slope[static_cast<std::size_t>(e)] = slopes.empty() ? A{0} : raw(slopes)[row * experts + e];
      if (choices == 1) {
        slope[static_cast<std::size_t>(which[0])] += dw[0];
      } else {
        A mean = 0;
        A mass = 0;
        for (std::int64_t j = 0; j < choices; ++j) {
          mean += w[j] * dw[j];
          mass += p[which[j]];
        }
        for (std::int64_t j = 0; j < choices; ++j) slope[static_cast<std::size_t>(which[j])] += (dw[j] - mean) / mass;
      }
      A mean = 0;
      for (std::int64_t e = 0; e < experts; ++e) mean += p[e] * slope[static_cast<std::size_t>(e)];
      for (std::int64_t e = 0; e < experts; ++e)
        raw(dlogits)[row * experts + e] = static_cast<T>(p[e] * (slope[static_cast<std::size_t>(e)] - mean));
    }
  }

  /// How unevenly the rows of a sample choose: the sum over samples of E sum_e f_e P_e, where f_e is the share of
  /// choices that expert e gets, and P_e its mean probability; 1 a sample if all get as much. `slopes` (or empty) gets
  /// `scale` times its gradient by the probabilities, f being taken as constant.
  /// Shapes   probabilities, slopes (M, E); chosen (M, K); a sample has `rows` of them.
  template <class A>
  static double imbalance(view<A> slopes, detail::input<A> probabilities, view<std::int32_t const> chosen,
                          std::int64_t rows, double scale) {
    auto const experts = probabilities.extent(1);
    auto const choices = chosen.extent(1);
    thread_local std::vector<double> load;
    load.resize(static_cast<std::size_t>(experts));
    double sum = 0;
    for (std::int64_t first = 0; first < probabilities.extent(0); first += rows) {
      for (auto& each : load) each = 0;
      auto const* const which = raw(chosen) + first * choices;
      for (std::int64_t i = 0; i < rows * choices; ++i) load[static_cast<std::size_t>(which[i])] += 1;
      for (auto& each : load) each *= static_cast<double>(experts) / static_cast<double>(rows * rows * choices);
      for (std::int64_t i = first * experts; i < (first + rows) * experts; ++i) {
        auto const slope = load[static_cast<std::size_t>(i % experts)];
        sum += slope * static_cast<double>(raw(probabilities)[i]);
        if (!slopes.empty()) raw(slopes)[i] = static_cast<A>(scale * slope);
      }
    }
    return sum;
  }

  /// Sorts all choices by expert, those of one expert in the order of rows: places[i] is where choice i comes, counts
  /// how many each expert gets.
  static void deal(view<std::int32_t> places, std::span<std::int64_t> counts, view<std::int32_t const> chosen) {
    detail::same_size("deal", places.size(), chosen.size());
    for (auto& each : counts) each = 0;
    for (auto const expert : chosen.span()) ++counts[static_cast<std::size_t>(expert)];
    thread_local std::vector<std::int64_t> next;
    next.assign(counts.size(), 0);
    for (std::size_t e = 1; e < counts.size(); ++e) next[e] = next[e - 1] + counts[e - 1];
    for (std::int64_t i = 0; i < chosen.size(); ++i)
      raw(places)[i] = static_cast<std::int32_t>(next[static_cast<std::size_t>(raw(chosen)[i])]++);
  }

  /// to[places[m, k]] = from[m]: each row goes where its choices come.
  /// Shapes   from (M, C); places (M, K); to (M * K, C).
  template <class T>
  static void spread(view<T> to, detail::input<T> from, view<std::int32_t const> places) {
    detail::same_size("spread", to.extent(0), places.size());
    auto const channels = to.extent(1);
    auto const choices = places.extent(1);
    for (std::int64_t i = 0; i < places.size(); ++i) {
      auto const* const x = raw(from) + i / choices * channels;
      auto* const y = raw(to) + raw(places)[i] * channels;
      for (std::int64_t c = 0; c < channels; ++c) y[c] = x[c];
    }
  }
  /// to[m] = sum_k weights[m, k] from[places[m, k]]; without weights they are 1.
  /// Shapes   as spread's, the other way round; weights (M, K), or empty.
  template <class T>
  static void collect(view<T> to, detail::input<T> from, view<std::int32_t const> places, sums<T> weights) {
    using A = accumulate_t<T>;
    detail::same_size("collect", from.extent(0), places.size());
    auto const channels = to.extent(1);
    auto const choices = places.extent(1);
    thread_local std::vector<A> sum;
    sum.resize(static_cast<std::size_t>(channels));
    for (std::int64_t row = 0; row < to.extent(0); ++row) {
      for (auto& each : sum) each = 0;
      for (auto i = row * choices; i < (row + 1) * choices; ++i) {
        auto const weight = weights.empty() ? A{1} : raw(weights)[i];
        auto const* const x = raw(from) + raw(places)[i] * channels;
        for (std::int64_t c = 0; c < channels; ++c) sum[static_cast<std::size_t>(c)] += weight * static_cast<A>(x[c]);
      }
      auto* const y = raw(to) + row * channels;
      for (std::int64_t c = 0; c < channels; ++c) y[c] = static_cast<T>(sum[static_cast<std::size_t>(c)]);
    }
  }
  /// The gradients of collect: dfrom[places[m, k]] = weights[m, k] dto[m]; dweights[m, k] = dto[m] . from[places[m,
  /// k]].
  template <class T>
  static void collect_backward(view<T> dfrom, sums<T> dweights, detail::input<T> dto, detail::input<T> from,
                               view<std::int32_t const> places, sums<T> weights) {
    using A = accumulate_t<T>;
    detail::same_size("collect_backward", from.size(), dfrom.size());
    detail::same_size("collect_backward", weights.size(), places.size());
    detail::same_size("collect_backward", dweights.size(), places.size());
    auto const channels = dfrom.extent(1);
    auto const choices = places.extent(1);
    for (std::int64_t i = 0; i < places.size(); ++i) {
      auto const* const dy = raw(dto) + i / choices * channels;
      auto const* const x = raw(from) + raw(places)[i] * channels;
      auto* const dx = raw(dfrom) + raw(places)[i] * channels;
      A dot = 0;
      for (std::int64_t c = 0; c < channels; ++c) {
        dot += static_cast<A>(dy[c]) * static_cast<A>(x[c]);
        dx[c] = static_cast<T>(raw(weights)[i] * static_cast<A>(dy[c]));
      }
      raw(dweights)[i] = dot;
    }
  }

 private:
  // Probabilities that are not numbers are taken as they come: the loss is not finite then, and the step is skipped.
  template <class A>
  static void choose(A const* p, std::int64_t experts, std::int32_t* chosen, A* weights, std::int64_t choices) {
    A mass = 0;
    for (std::int64_t j = 0; j < choices; ++j) {
      std::int64_t best = -1;
      for (std::int64_t e = 0; e < experts; ++e) {
        bool free = true;
        for (std::int64_t before = 0; before < j; ++before) free = free && chosen[before] != e;
        if (free && (best < 0 || p[e] > p[best])) best = e;
      }
      chosen[j] = static_cast<std::int32_t>(best);
      weights[j] = p[best];
      mass += p[best];
    }
    if (choices == 1) return;
    for (std::int64_t j = 0; j < choices; ++j) weights[j] /= mass;
  }
};

}  // namespace trireme::ops

// ---- trireme/ops/host/updates.hpp
#define TRIREME_LEVEL baseline

// ---- trireme/ops/host/detail/updates.inl
// Optimizer steps; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class F, class G>
TRIREME_INLINE F summed_gradient(gradient_terms<G, host> const& gradient, std::int64_t i, int count) {
  F g = F::all(0);
  bool first_term = true;
  for (auto const& term : gradient.terms) {
    F const next = F::load(raw(term) + i, count);
    g = first_term ? next : g + next;
    first_term = false;
  }
  return g * F::all(static_cast<typename F::real>(gradient.scale));
}

template <class M, class G, class P>
inline void adamw(M* value, M* first_moment, M* second_moment, std::int64_t n, gradient_terms<G, host> const& gradient,
                  std::span<tensor_view<P, host> const> outputs, adamw_numbers const& numbers) {
  using F = lanes_for<M, G, P>;
  using real = typename F::real;
  F const beta1 = F::all(static_cast<real>(numbers.beta1));
  F const beta2 = F::all(static_cast<real>(numbers.beta2));
  F const rest1 = F::all(static_cast<real>(1 - numbers.beta1));
  F const rest2 = F::all(static_cast<real>(1 - numbers.beta2));
  F const step = F::all(static_cast<real>(-numbers.rate / numbers.correction1));
  F const correction = F::all(static_cast<real>(1 / std::sqrt(numbers.correction2)));
  F const epsilon = F::all(static_cast<real>(numbers.epsilon));
  F const keep = F::all(static_cast<real>(1 - numbers.rate * numbers.decay));
  TRIREME_FOR_LANES(F, n, i, count, {
    F const g = summed_gradient<F>(gradient, i, count);
    F const m = fma(beta1, F::load(first_moment + i, count), rest1 * g);
    F const v = fma(beta2, F::load(second_moment + i, count), rest2 * (g * g));
    F const direction = m / fma(sqrt(v), correction, epsilon);
    F const next = fma(step, direction, keep * F::load(value + i, count));
    m.store(first_moment + i, count);
    v.store(second_moment + i, count);
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

template <class M, class G, class P>
inline void sgd(M* value, M* velocity, std::int64_t n, gradient_terms<G, host> const& gradient,
                std::span<tensor_view<P, host> const> outputs, sgd_numbers const& numbers) {
  using F = lanes_for<M, G, P>;
  using real = typename F::real;
  F const rate = F::all(static_cast<real>(-numbers.rate));
  F const momentum = F::all(static_cast<real>(numbers.momentum));
  F const decay = F::all(static_cast<real>(numbers.decay));
  bool const moving = numbers.momentum != 0;
  bool const nesterov = numbers.nesterov;
  TRIREME_FOR_LANES(F, n, i, count, {
    F const before = F::load(value + i, count);
    F g = fma(decay, before, summed_gradient<F>(gradient, i, count));
    if (moving) {
      F const v = fma(momentum, F::load(velocity + i, count), g);
      v.store(velocity + i, count);
      g = nesterov ? fma(momentum, v, g) : v;
    }
    F const next = fma(rate, g, before);
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/updates.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_AVX2_BEGIN
#define TRIREME_LEVEL avx2

// ---- trireme/ops/host/detail/updates.inl
// Optimizer steps; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class F, class G>
TRIREME_INLINE F summed_gradient(gradient_terms<G, host> const& gradient, std::int64_t i, int count) {
  F g = F::all(0);
  bool first_term = true;
  for (auto const& term : gradient.terms) {
    F const next = F::load(raw(term) + i, count);
    g = first_term ? next : g + next;
    first_term = false;
  }
  return g * F::all(static_cast<typename F::real>(gradient.scale));
}

template <class M, class G, class P>
inline void adamw(M* value, M* first_moment, M* second_moment, std::int64_t n, gradient_terms<G, host> const& gradient,
                  std::span<tensor_view<P, host> const> outputs, adamw_numbers const& numbers) {
  using F = lanes_for<M, G, P>;
  using real = typename F::real;
  F const beta1 = F::all(static_cast<real>(numbers.beta1));
  F const beta2 = F::all(static_cast<real>(numbers.beta2));
  F const rest1 = F::all(static_cast<real>(1 - numbers.beta1));
  F const rest2 = F::all(static_cast<real>(1 - numbers.beta2));
  F const step = F::all(static_cast<real>(-numbers.rate / numbers.correction1));
  F const correction = F::all(static_cast<real>(1 / std::sqrt(numbers.correction2)));
  F const epsilon = F::all(static_cast<real>(numbers.epsilon));
  F const keep = F::all(static_cast<real>(1 - numbers.rate * numbers.decay));
  TRIREME_FOR_LANES(F, n, i, count, {
    F const g = summed_gradient<F>(gradient, i, count);
    F const m = fma(beta1, F::load(first_moment + i, count), rest1 * g);
    F const v = fma(beta2, F::load(second_moment + i, count), rest2 * (g * g));
    F const direction = m / fma(sqrt(v), correction, epsilon);
    F const next = fma(step, direction, keep * F::load(value + i, count));
    m.store(first_moment + i, count);
    v.store(second_moment + i, count);
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

template <class M, class G, class P>
inline void sgd(M* value, M* velocity, std::int64_t n, gradient_terms<G, host> const& gradient,
                std::span<tensor_view<P, host> const> outputs, sgd_numbers const& numbers) {
  using F = lanes_for<M, G, P>;
  using real = typename F::real;
  F const rate = F::all(static_cast<real>(-numbers.rate));
  F const momentum = F::all(static_cast<real>(numbers.momentum));
  F const decay = F::all(static_cast<real>(numbers.decay));
  bool const moving = numbers.momentum != 0;
  bool const nesterov = numbers.nesterov;
  TRIREME_FOR_LANES(F, n, i, count, {
    F const before = F::load(value + i, count);
    F g = fma(decay, before, summed_gradient<F>(gradient, i, count));
    if (moving) {
      F const v = fma(momentum, F::load(velocity + i, count), g);
      v.store(velocity + i, count);
      g = nesterov ? fma(momentum, v, g) : v;
    }
    F const next = fma(rate, g, before);
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/updates.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END
TRIREME_LEVEL_AVX512_BEGIN
#define TRIREME_LEVEL avx512

// ---- trireme/ops/host/detail/updates.inl
// Optimizer steps; included once for each CPU level (see simd.hpp).
namespace trireme::ops::detail::TRIREME_LEVEL {

template <class F, class G>
TRIREME_INLINE F summed_gradient(gradient_terms<G, host> const& gradient, std::int64_t i, int count) {
  F g = F::all(0);
  bool first_term = true;
  for (auto const& term : gradient.terms) {
    F const next = F::load(raw(term) + i, count);
    g = first_term ? next : g + next;
    first_term = false;
  }
  return g * F::all(static_cast<typename F::real>(gradient.scale));
}

template <class M, class G, class P>
inline void adamw(M* value, M* first_moment, M* second_moment, std::int64_t n, gradient_terms<G, host> const& gradient,
                  std::span<tensor_view<P, host> const> outputs, adamw_numbers const& numbers) {
  using F = lanes_for<M, G, P>;
  using real = typename F::real;
  F const beta1 = F::all(static_cast<real>(numbers.beta1));
  F const beta2 = F::all(static_cast<real>(numbers.beta2));
  F const rest1 = F::all(static_cast<real>(1 - numbers.beta1));
  F const rest2 = F::all(static_cast<real>(1 - numbers.beta2));
  F const step = F::all(static_cast<real>(-numbers.rate / numbers.correction1));
  F const correction = F::all(static_cast<real>(1 / std::sqrt(numbers.correction2)));
  F const epsilon = F::all(static_cast<real>(numbers.epsilon));
  F const keep = F::all(static_cast<real>(1 - numbers.rate * numbers.decay));
  TRIREME_FOR_LANES(F, n, i, count, {
    F const g = summed_gradient<F>(gradient, i, count);
    F const m = fma(beta1, F::load(first_moment + i, count), rest1 * g);
    F const v = fma(beta2, F::load(second_moment + i, count), rest2 * (g * g));
    F const direction = m / fma(sqrt(v), correction, epsilon);
    F const next = fma(step, direction, keep * F::load(value + i, count));
    m.store(first_moment + i, count);
    v.store(second_moment + i, count);
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

template <class M, class G, class P>
inline void sgd(M* value, M* velocity, std::int64_t n, gradient_terms<G, host> const& gradient,
                std::span<tensor_view<P, host> const> outputs, sgd_numbers const& numbers) {
  using F = lanes_for<M, G, P>;
  using real = typename F::real;
  F const rate = F::all(static_cast<real>(-numbers.rate));
  F const momentum = F::all(static_cast<real>(numbers.momentum));
  F const decay = F::all(static_cast<real>(numbers.decay));
  bool const moving = numbers.momentum != 0;
  bool const nesterov = numbers.nesterov;
  TRIREME_FOR_LANES(F, n, i, count, {
    F const before = F::load(value + i, count);
    F g = fma(decay, before, summed_gradient<F>(gradient, i, count));
    if (moving) {
      F const v = fma(momentum, F::load(velocity + i, count), g);
      v.store(velocity + i, count);
      g = nesterov ? fma(momentum, v, g) : v;
    }
    F const next = fma(rate, g, before);
    next.store(value + i, count);
    for (auto const& output : outputs) next.store(raw(output) + i, count);
  })
}

}  // namespace trireme::ops::detail::TRIREME_LEVEL

// ---- trireme/ops/host/updates.hpp (goes on)
#undef TRIREME_LEVEL
TRIREME_LEVEL_END

namespace trireme::ops {

namespace detail {

template <class M, class G, class P>
void adamw_elements(M* value, M* first, M* second, std::int64_t n, gradient_terms<G, host> const& gradient,
                    std::span<tensor_view<P, host> const> outputs, adamw_numbers const& numbers) {
  TRIREME_DISPATCH((fits_float<M, G, P>), adamw(value, first, second, n, gradient, outputs, numbers));
}
template <class M, class G, class P>
void sgd_elements(M* value, M* velocity, std::int64_t n, gradient_terms<G, host> const& gradient,
                  std::span<tensor_view<P, host> const> outputs, sgd_numbers const& numbers) {
  TRIREME_DISPATCH((fits_float<M, G, P>), sgd(value, velocity, n, gradient, outputs, numbers));
}

}  // namespace detail

/// Optimizer steps, each one pass over memory: the gradient is summed on the way in, and the new value is written,
/// converted, to every output on the way out.
/// Shapes   all views of one call (n).
/// Bytes    adamw with one term and no other output: reads 16, writes 12 a parameter.
/// Numerics in the accumulate type of the master values; an element's result does not depend on where a slice begins.
/// Threads  thread-safe on different slices. A value may be one of the outputs.
/// Errors   assertion_error (light) if the sizes differ.
struct host_updates {
  template <class T>
  using view = tensor_view<T, host>;

  /// One step of AdamW [Loshchilov, Hutter, 2019].
  template <class M, class G, class P>
  static void adamw(view<M> value, detail::output<M> first, detail::output<M> second,
                    gradient_terms<G, host> const& gradient, std::span<view<P> const> outputs,
                    adamw_numbers const& numbers) {
    detail::same_size("adamw", value.size(), first.size());
    detail::same_size("adamw", value.size(), second.size());
    check("adamw", value.size(), gradient, outputs);
    detail::adamw_elements(raw(value), raw(first), raw(second), value.size(), gradient, outputs, numbers);
  }

  /// One step of SGD. Without momentum the velocity is not touched and may be empty.
  template <class M, class G, class P>
  static void sgd(view<M> value, detail::output<M> velocity, gradient_terms<G, host> const& gradient,
                  std::span<view<P> const> outputs, sgd_numbers const& numbers) {
    if (numbers.momentum != 0) detail::same_size("sgd", value.size(), velocity.size());
    check("sgd", value.size(), gradient, outputs);
    detail::sgd_elements(raw(value), raw(velocity), value.size(), gradient, outputs, numbers);
  }

 private:
  template <class G, class P>
  static void check(char const* who, std::int64_t n, gradient_terms<G, host> const& gradient,
                    std::span<view<P> const> outputs) {
    for (auto const& term : gradient.terms) detail::same_size(who, n, term.size());
    for (auto const& output : outputs) detail::same_size(who, n, output.size());
  }
};

}  // namespace trireme::ops

// ---- trireme/ops/host.hpp (goes on)
namespace trireme::ops {

/// The kernels of host memory: see the parts for what each does.
/// Threads  each function uses the calling thread only; thread-safe on different outputs.
template <>
struct on<host> : host_elementwise,
                  host_products,
                  host_embedding,
                  host_normalisation,
                  host_attention,
                  host_losses,
                  host_updates,
                  host_reductions,
                  host_routing {};

}  // namespace trireme::ops

// ---- trireme/ops/phantom.hpp
namespace trireme::ops {

/// A weight matrix in memory that does not exist: its shape.
template <class T>
class weights<T, phantom> {
 public:
  weights() = default;
  weights(tensor_view<T const, phantom> values, orientation way) { bind(values, way); }
  void bind(tensor_view<T const, phantom> values, orientation way) noexcept {
    view_ = values;
    way_ = way;
  }
  void refresh(std::uint64_t) noexcept {}
  [[nodiscard]] tensor_view<T const, phantom> view() const noexcept { return view_; }
  [[nodiscard]] orientation way() const noexcept { return way_; }
  [[nodiscard]] std::int64_t inputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 0 : 1); }
  [[nodiscard]] std::int64_t outputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 1 : 0); }
  [[nodiscard]] std::size_t packed_bytes() const noexcept { return 0; }

 private:
  tensor_view<T const, phantom> view_;
  orientation way_ = orientation::in_out;
};

/// The kernels of phantom memory: the functions of on<host> under the same names, which check sizes and touch nothing.
///
/// A training in this space costs no time in kernels, and faults if anything above ops reads a tensor. Losses are 0 a
/// row, numbers are finite, the largest elements are the first ones. Products count what they would compute (flops()),
/// and attention takes the scratch memory that on<host> takes.
/// Errors   assertion_error (light) if sizes do not fit.
template <>
struct on<phantom> {
  template <class T>
  using view = tensor_view<T, phantom>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, phantom>>;
  template <class T>
  using output = std::type_identity_t<tensor_view<T, phantom>>;
  using tokens_view = tensor_view<std::int32_t const, phantom>;

  /// Additions and multiplications of the products and the attention that this thread has asked for: 2 m n k of a
  /// product, and those of the unmasked half of attention.
  [[nodiscard]] static double& flops() noexcept {
    static thread_local double sum = 0;
    return sum;
  }

  // elementwise
  template <class T>
  static void fill(view<T>, double) noexcept {}
  template <class T, class U>
  static void copy(view<T> y, view<U> x) {
    same("copy", y.size(), x.size());
  }
  template <class T>
  static void add(view<T> y, input<T> x) {
    same("add", y.size(), x.size());
  }
  template <class T>
  static void scale(view<T>, double) noexcept {}
  template <class T, class U>
  static void accumulate(view<T> y, view<U> x, double) {
    same("accumulate", y.size(), x.size());
  }
  template <class T>
  static void activate(view<T> y, input<T> x, activation) {
    same("activate", y.size(), x.size());
  }
  template <class T>
  static void activate_backward(view<T> dx, input<T> dy, input<T> x, activation) {
    same("activate_backward", dx.size(), dy.size());
    same("activate_backward", dx.size(), x.size());
  }
  template <class T>
  static void dropout(view<T> y, dropout_site const& site) {
    auto const whole = site.whole > 0 ? site.whole : y.size();
    if (site.active()) same("dropout", whole % static_cast<std::int64_t>(site.samples.size()), 0);
  }
  template <class T>
  static void initialise(view<T>, initial const&, std::uint64_t, std::uint64_t, std::int64_t = 0) noexcept {}
  template <class T>
  static void upload(view<T> y, std::type_identity_t<std::span<T const>> x) {
    same("upload", y.size(), static_cast<std::int64_t>(x.size()));
  }
  template <class T>
  static void download(std::span<T> y, input<T> x) {
    same("download", static_cast<std::int64_t>(y.size()), x.size());
    for (auto& element : y) element = T{};
  }
  template <class T>
  [[nodiscard]] static std::remove_const_t<T> read(view<T>, std::int64_t) noexcept {
    return {};
  }

  // products
  template <class T>
  static void linear(view<T> y, input<T> x, weights<T, phantom>& w,
                     std::type_identity_t<linear_epilogue<T, phantom>> const& epilogue = {}) {
    same("linear", x.size() * w.outputs(), y.size() * w.inputs());
    flops() += 2.0 * static_cast<double>(x.size()) * static_cast<double>(w.outputs());
    if (!epilogue.bias.empty()) same("linear", epilogue.bias.size(), w.outputs());
    if (!epilogue.before_activation.empty()) same("linear", epilogue.before_activation.size(), y.size());
    if (!epilogue.residual.empty()) same("linear", epilogue.residual.size(), y.size());
  }
  template <class T>
  static void linear_backward_input(view<T> dx, input<T> dy, weights<T, phantom>& w,
                                    std::type_identity_t<input_epilogue<T, phantom>> const& epilogue = {}) {
    same("linear_backward_input", dy.size() * w.inputs(), dx.size() * w.outputs());
    flops() += 2.0 * static_cast<double>(dy.size()) * static_cast<double>(w.inputs());
    if (!epilogue.before_activation.empty()) {
      same("linear_backward_input", epilogue.before_activation.size(), dx.size());
    }
  }
  template <class T, class G>
  static void linear_backward_weight(view<G> dw, output<G> db, view<T> x, input<std::remove_const_t<T>> dy,
                                     orientation way) {
    auto const k = dw.extent(way == orientation::in_out ? 0 : 1);
    auto const n = dw.extent(way == orientation::in_out ? 1 : 0);
    same("linear_backward_weight", x.size() * n, dy.size() * k);
    flops() += 2.0 * static_cast<double>(x.size()) * static_cast<double>(n);
    if (!db.empty()) same("linear_backward_weight", db.size(), n);
  }

  // layers
  template <class T>
  static void embed(view<T> y, tokens_view tokens, input<T> table, input<T>, table_part = {}) {
    same("embed", y.size(), tokens.size() * table.extent(1));
  }
  template <class G, class T>
  static void embed_backward(view<G> dtable, output<G>, view<T> dy, tokens_view tokens, table_part = {}) {
    same("embed_backward", dy.size(), tokens.size() * dtable.extent(1));
  }
  template <class T>
  static void layer_norm(view<T> y, output<accumulate_t<T>> mean, output<accumulate_t<T>> rstd, input<T> x,
                         input<T> gain, input<T> bias, double) {
    same("layer_norm", y.size(), x.size());
    same("layer_norm", x.size(), mean.size() * gain.size());
    same("layer_norm", mean.size(), rstd.size());
    same("layer_norm", gain.size(), bias.size());
  }
  template <class T>
  static void layer_norm_backward(view<T> dx, output<accumulate_t<T>> dgain, output<accumulate_t<T>> dbias, input<T> dy,
                                  input<T> x, input<accumulate_t<T>> mean, input<accumulate_t<T>> rstd, input<T> gain,
                                  bool) {
    same("layer_norm_backward", dx.size(), x.size());
    same("layer_norm_backward", dy.size(), x.size());
    same("layer_norm_backward", x.size(), mean.size() * gain.size());
    same("layer_norm_backward", mean.size(), rstd.size());
    same("layer_norm_backward", dgain.size(), gain.size());
    same("layer_norm_backward", dbias.size(), gain.size());
  }
  template <class T>
  static void causal_attention(view<T> y, output<accumulate_t<T>> lse, input<T> qkv, attention_shape shape,
                               arena<phantom>& scratch, dropout_site const&) {
    check_attention("causal_attention", shape, qkv.size(), y.size(), lse.size());
    attend<accumulate_t<T>>(shape, scratch, false);
  }
  template <class T>
  static void causal_attention_backward(view<T> dqkv, input<T> dy, input<T> y, input<accumulate_t<T>> lse, input<T> qkv,
                                        attention_shape shape, arena<phantom>& scratch, dropout_site const&) {
    check_attention("causal_attention_backward", shape, qkv.size(), y.size(), lse.size());
    same("causal_attention_backward", dqkv.size(), qkv.size());
    same("causal_attention_backward", dy.size(), y.size());
    attend<accumulate_t<T>>(shape, scratch, true);
  }
  template <class T>
  static loss_sum cross_entropy(view<T> logits, tokens_view targets, double, bool) {
    if (!targets.empty()) same("cross_entropy", logits.size() % targets.size(), 0);
    return {0, targets.size()};
  }
  template <class T>
  static void row_peaks(view<T> logits, output<accumulate_t<std::remove_const_t<T>>> peaks) {
    if (!peaks.empty()) same("row_peaks", logits.size() % peaks.size(), 0);
  }
  template <class T>
  static void row_masses(view<T>, tokens_view targets, table_part, input<accumulate_t<std::remove_const_t<T>>> peaks,
                         output<accumulate_t<std::remove_const_t<T>>> masses,
                         output<accumulate_t<std::remove_const_t<T>>> chosen) {
    same("row_masses", peaks.size(), targets.size());
    same("row_masses", masses.size(), targets.size());
    same("row_masses", chosen.size(), targets.size());
  }
  template <class T>
  static loss_sum cross_entropy_part(view<T> logits, tokens_view targets, table_part, input<accumulate_t<T>>,
                                     input<accumulate_t<T>>, input<accumulate_t<T>>, double, bool gradient) {
    return cross_entropy(logits, targets, 0, gradient);
  }
  template <class T>
  static loss_sum squared_error(view<T> dy, input<T> y, view<float const> targets, double) {
    same("squared_error", y.size(), targets.size());
    if (!dy.empty()) same("squared_error", dy.size(), y.size());
    return {0, y.empty() ? 0 : y.extent(0)};
  }

  // routing: every expert gets as many rows as every other one
  template <class T>
  static void route(output<accumulate_t<T>> probabilities, view<std::int32_t> chosen, output<accumulate_t<T>> weights,
                    view<T> logits) {
    same("route", probabilities.size(), logits.size());
    same("route", chosen.size(), weights.size());
  }
  template <class T>
  static void route_backward(view<T> dlogits, output<accumulate_t<T>> dweights, output<accumulate_t<T>> probabilities,
                             tokens_view chosen, output<accumulate_t<T>> weights, output<accumulate_t<T>>) {
    same("route_backward", probabilities.size(), dlogits.size());
    same("route_backward", chosen.size(), weights.size());
    same("route_backward", chosen.size(), dweights.size());
  }
  template <class A>
  static double imbalance(view<A>, input<A>, tokens_view, std::int64_t, double) noexcept {
    return 0;
  }
  static void deal(view<std::int32_t> places, std::span<std::int64_t> counts, tokens_view chosen) {
    same("deal", places.size(), chosen.size());
    auto const experts = static_cast<int>(counts.size());
    for (int e = 0; e < experts; ++e) counts[static_cast<std::size_t>(e)] = share{e, experts}.of(chosen.size()).count;
  }
  template <class T>
  static void spread(view<T> to, input<T>, tokens_view places) {
    same("spread", to.extent(0), places.size());
  }
  template <class T>
  static void collect(view<T>, input<T> from, tokens_view places, output<accumulate_t<T>>) {
    same("collect", from.extent(0), places.size());
  }
  template <class T>
  static void collect_backward(view<T> dfrom, output<accumulate_t<T>> dweights, input<T>, input<T> from,
                               tokens_view places, output<accumulate_t<T>> weights) {
    same("collect_backward", from.size(), dfrom.size());
    same("collect_backward", weights.size(), places.size());
    same("collect_backward", dweights.size(), places.size());
  }

  // updates
  template <class M, class G, class P>
  static void adamw(view<M> value, output<M> first, output<M> second, gradient_terms<G, phantom> const& gradient,
                    std::span<view<P> const> outputs, adamw_numbers const&) {
    same("adamw", value.size(), first.size());
    same("adamw", value.size(), second.size());
    all_same("adamw", value.size(), gradient.terms);
    all_same("adamw", value.size(), outputs);
  }
  template <class M, class G, class P>
  static void sgd(view<M> value, output<M> velocity, gradient_terms<G, phantom> const& gradient,
                  std::span<view<P> const> outputs, sgd_numbers const& numbers) {
    if (numbers.momentum != 0) same("sgd", value.size(), velocity.size());
    all_same("sgd", value.size(), gradient.terms);
    all_same("sgd", value.size(), outputs);
  }

  // reductions
  template <class T, class Op = reduction::sum>
  static void reduce(std::span<view<T> const> outputs, std::type_identity_t<std::span<view<T const> const>> terms,
                     Op = {}, int = 1) {
    if (outputs.empty()) return;
    all_same("reduce", outputs[0].size(), outputs);
    all_same("reduce", outputs[0].size(), terms);
  }
  template <class G>
  static void sum_of_squares(view<G>, exact_sum&) noexcept {}
  template <class T>
  [[nodiscard]] static bool finite(view<T>) noexcept {
    return true;
  }
  template <class T>
  [[nodiscard]] static std::uint64_t hash(view<T>, std::uint64_t name, std::int64_t) noexcept {
    return name;
  }
  template <class G>
  static void select_largest(view<G> x, view<std::int32_t> indices, output<std::remove_const_t<G>> values) {
    same("select_largest", indices.size(), values.size());
    expects(assertion_level::light, indices.size() <= x.size(),
            [] { return std::string("trireme::ops::select_largest: more elements asked for than there are"); });
  }
  template <class G>
  static void scatter(view<G>, tokens_view indices, input<G> values, bool) {
    same("scatter", indices.size(), values.size());
  }

 private:
  static void same(std::string_view who, std::int64_t a, std::int64_t b) {
    expects(assertion_level::light, a == b,
            [&] { return text("trireme::ops::", who, ": sizes ", a, " and ", b, " differ"); });
  }
  template <class Views>
  static void all_same(std::string_view who, std::int64_t n, Views const& views) {
    for (auto const& each : views) same(who, n, each.size());
  }
  // Two products forward, five backward, each of half the pairs of rows.
  template <class Real>
  static void attend(attention_shape const& shape, arena<phantom>& scratch, bool backward) {
    if (shape.batch == 0 || shape.context == 0) return;
    auto const mark = scratch.mark();
    static_cast<void>(
        scratch.template take<Real>({detail::attention_scratch(shape.context, shape.head_channels(), backward)}));
    scratch.rewind(mark);
    auto const rows = static_cast<double>(shape.batch) * static_cast<double>(shape.context);
    flops() += (backward ? 5 : 2) * rows * static_cast<double>(shape.context) * static_cast<double>(shape.channels);
  }
  static void check_attention(std::string_view who, attention_shape const& shape, std::int64_t qkv, std::int64_t y,
                              std::int64_t lse) {
    auto const rows = shape.batch * shape.context;
    same(who, qkv, rows * 3 * shape.channels);
    same(who, y, rows * shape.channels);
    same(who, lse, rows * shape.heads);
  }
};

}  // namespace trireme::ops

// ---- trireme/contract/optimizer.hpp
namespace trireme {

/// One stretch of one parameter that this rank updates.
///
/// Shapes   value, each of `moments` and each of `outputs` (n). The gradient is a sum of terms of (n) each.
/// Numerics the new value is rounded once when it is converted into `outputs`.
template <class Env>
struct update_segment {
  using space = typename Env::space;
  tensor_view<typename Env::master, space> value;
  std::span<tensor_view<typename Env::master, space> const> moments;  ///< as many as the optimizer names
  gradient_terms<typename Env::gradient, space> gradient;             ///< scale holds the clipping factor
  std::span<tensor_view<typename Env::param, space> const> outputs;   ///< where layers read the value
  bool decays = true;
};

template <class O>
concept has_moment_names = requires {
  { O::moment_names.size() } -> std::convertible_to<std::size_t>;
};
template <class O>
concept has_rate_at = requires(O const& optimizer, std::int64_t step) {
  { optimizer.rate_at(step) } -> std::convertible_to<double>;
};
template <class O>
concept has_clip = requires(O const& optimizer) {
  { optimizer.clip } -> std::convertible_to<double>;
};
template <class O, class Env>
concept has_update = requires(O const& optimizer, update_segment<Env> const& segment, std::int64_t step) {
  optimizer.update(segment, step);
};

/// Turns gradients into new values, element by element, so that it works on any shard.
///
/// Requires  `moment_names` (one name a state tensor), `rate_at(step)` with step counted from 0, `clip` (the largest
///           global norm, 0 = no clipping; the trainer applies it), `update(segment, step)`.
/// Not asked  state of its own: the moments belong to the trainer, which shards, saves and restores them.
template <class O, class Env>
concept optimizer = has_moment_names<O> && has_rate_at<O> && has_clip<O> && has_update<O, Env>;

}  // namespace trireme

// ---- trireme/optim/schedule.hpp
#include <variant>

namespace trireme::optim {

/// The same rate at every step, after `warmup` steps of linear growth.
struct constant {
  double peak = 0;
  std::int64_t warmup = 0;
  friend bool operator==(constant const&, constant const&) = default;
};

/// Linear growth over `warmup` steps, then a straight line from `peak` to `floor` at step `total`.
struct linear {
  double peak = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 0;
  double floor = 0;
  friend bool operator==(linear const&, linear const&) = default;
};

/// Linear growth over `warmup` steps, then half a cosine from `peak` to `floor` at step `total`.
struct cosine {
  double peak = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 0;
  double floor = 0;
  friend bool operator==(cosine const&, cosine const&) = default;
};

/// Which learning rate a step has. An empty schedule means: the optimizer's own `rate`, always.
using schedule = std::variant<std::monostate, constant, linear, cosine>;

namespace detail {

inline double warm(double peak, std::int64_t warmup, std::int64_t step) {
  return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
}
/// How much of the way from the end of warm-up to `total` is done, in [0, 1].
inline double way(std::int64_t warmup, std::int64_t total, std::int64_t step) {
  if (total <= warmup) return 1;
  return std::clamp(static_cast<double>(step - warmup) / static_cast<double>(total - warmup), 0.0, 1.0);
}

}  // namespace detail

/// The rate of step `step` (counted from 0); `base` where the schedule is empty.
[[nodiscard]] inline double rate_at(schedule const& plan, double base, std::int64_t step) {
  struct {
    double base;
    std::int64_t step;
    double operator()(std::monostate) const { return base; }
    double operator()(constant const& s) const {
      return step < s.warmup ? detail::warm(s.peak, s.warmup, step) : s.peak;
    }
    double operator()(linear const& s) const {
      if (step < s.warmup) return detail::warm(s.peak, s.warmup, step);
      return s.peak + (s.floor - s.peak) * detail::way(s.warmup, s.total, step);
    }
    double operator()(cosine const& s) const {
      if (step < s.warmup) return detail::warm(s.peak, s.warmup, step);
      double const falling = 0.5 * (1 + std::cos(std::numbers::pi * detail::way(s.warmup, s.total, step)));
      return s.floor + (s.peak - s.floor) * falling;
    }
  } const at{base, step};
  return std::visit(at, plan);
}

/// The source that makes the schedule.
[[nodiscard]] inline std::string to_string(schedule const& plan) {
  struct {
    std::string operator()(std::monostate) const { return "{}"; }
    std::string operator()(constant const& s) const {
      return text("optim::constant{.peak = ", s.peak, ", .warmup = ", s.warmup, "}");
    }
    std::string operator()(linear const& s) const { return full("linear", s.peak, s.warmup, s.total, s.floor); }
    std::string operator()(cosine const& s) const { return full("cosine", s.peak, s.warmup, s.total, s.floor); }
    static std::string full(std::string_view name, double peak, std::int64_t warmup, std::int64_t total, double floor) {
      return text("optim::", name, "{.peak = ", peak, ", .warmup = ", warmup, ", .total = ", total,
                  ", .floor = ", floor, "}");
    }
  } const print;
  return std::visit(print, plan);
}

}  // namespace trireme::optim

// ---- trireme/optim/adamw.hpp (goes on)
namespace trireme::optim {

/// AdamW: Adam with decoupled weight decay.
///
/// Method   [Loshchilov, Hutter, "Decoupled weight decay regularization", 2019]; bias corrections as in Adam.
/// Bytes    per parameter: two moments of the master type.
/// Numerics decay applies to parameters that ask for it (matrices, not biases and gains).
struct adamw {
  using policy_category = slot::optimizer;

  double rate = 1e-3;  ///< used where `schedule` is empty
  optim::schedule schedule{};
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0.01;
  double clip = 0;  ///< largest global gradient norm; 0 = no clipping
  friend bool operator==(adamw const&, adamw const&) = default;

  static constexpr std::array<std::string_view, 2> moment_names{"first_moment", "second_moment"};
  [[nodiscard]] double rate_at(std::int64_t step) const { return optim::rate_at(schedule, rate, step); }

  template <class Env>
  void update(update_segment<Env> const& segment, std::int64_t step) const {
    auto const count = static_cast<double>(step + 1);
    ops::on<typename Env::space>::adamw(segment.value, segment.moments[0], segment.moments[1], segment.gradient,
                                        segment.outputs,
                                        ops::adamw_numbers{.rate = rate_at(step),
                                                           .beta1 = beta1,
                                                           .beta2 = beta2,
                                                           .epsilon = epsilon,
                                                           .decay = segment.decays ? decay : 0,
                                                           .correction1 = 1 - std::pow(beta1, count),
                                                           .correction2 = 1 - std::pow(beta2, count)});
  }
};

[[nodiscard]] inline std::string to_string(adamw const& o) {
  return text("optim::adamw{.rate = ", o.rate, ", .schedule = ", to_string(o.schedule), ", .beta1 = ", o.beta1,
              ", .beta2 = ", o.beta2, ", .epsilon = ", o.epsilon, ", .decay = ", o.decay, ", .clip = ", o.clip, "}");
}

}  // namespace trireme::optim

// ---- trireme/optim/sgd.hpp
namespace trireme::optim {

/// Stochastic gradient descent with momentum, as PyTorch defines it (no dampening).
///
/// Bytes    per parameter: one velocity of the master type.
struct sgd {
  using policy_category = slot::optimizer;

  double rate = 1e-2;  ///< used where `schedule` is empty
  optim::schedule schedule{};
  double momentum = 0.9;
  bool nesterov = false;
  double decay = 0;
  double clip = 0;  ///< largest global gradient norm; 0 = no clipping
  friend bool operator==(sgd const&, sgd const&) = default;

  static constexpr std::array<std::string_view, 1> moment_names{"velocity"};
  [[nodiscard]] double rate_at(std::int64_t step) const { return optim::rate_at(schedule, rate, step); }

  template <class Env>
  void update(update_segment<Env> const& segment, std::int64_t step) const {
    ops::on<typename Env::space>::sgd(
        segment.value, segment.moments[0], segment.gradient, segment.outputs,
        ops::sgd_numbers{
            .rate = rate_at(step), .momentum = momentum, .nesterov = nesterov, .decay = segment.decays ? decay : 0});
  }
};

[[nodiscard]] inline std::string to_string(sgd const& o) {
  return text("optim::sgd{.rate = ", o.rate, ", .schedule = ", to_string(o.schedule), ", .momentum = ", o.momentum,
              ", .nesterov = ", o.nesterov, ", .decay = ", o.decay, ", .clip = ", o.clip, "}");
}

}  // namespace trireme::optim

// ---- trireme/parallel/mesh.hpp
#include <tuple>

// ---- trireme/contract/strategy.hpp
namespace trireme {

/// What a strategy axis does with one kind of state.
enum class distribution { replicate, shard };

template <class S>
concept says_optimizer_state = requires {
  { S::optimizer_state } -> std::convertible_to<distribution>;
};
template <class S>
concept says_gradients = requires {
  { S::gradients } -> std::convertible_to<distribution>;
};
template <class S>
concept says_parameters = requires {
  { S::parameters } -> std::convertible_to<distribution>;
};
template <class S>
concept has_bucket_bytes = requires(S const& strategy) {
  { strategy.bucket_bytes } -> std::convertible_to<std::int64_t>;
};

/// One axis of parallelism that splits samples over ranks: what it does with optimizer state, gradients and
/// parameters, and how large its buckets are.
template <class S>
concept strategy = says_optimizer_state<S> && says_gradients<S> && says_parameters<S> && has_bucket_bytes<S>;

/// Whether this strategy is asked to sum in one fixed tree over the logical micro-batches, whatever the number of
/// ranks.
template <class S>
[[nodiscard]] constexpr bool sums_in_a_tree(S const& strategy) noexcept {
  if constexpr (requires { strategy.reproducible; }) {
    return strategy.reproducible;
  } else {
    return false;
  }
}

}  // namespace trireme

// ---- trireme/contract/stage_link.hpp
namespace trireme {

/// The way from one stage of a pipeline to the others, as an engine sees it: messages that travel while it computes.
///
/// Ranks    the k-th message to a stage meets the k-th one that is expected there from this stage.
template <class Space>
class stage_link {
 public:
  virtual ~stage_link() = default;
  /// Starts messages that proceed together; peers are stages. @returns a ticket for one call of wait().
  [[nodiscard]] virtual int start(std::span<transfer<Space> const> messages) = 0;
  /// Returns when all messages of a ticket are done.
  virtual void wait(int ticket) = 0;
};

}  // namespace trireme

// ---- trireme/parallel/schedules/step.hpp
namespace trireme::schedule {

/// What a stage does in one step. A zero-bubble schedule does a backward in two halves: `backward_input` makes the
/// gradient that the stage before waits for, `backward_weight` the parameters' gradients, at leisure.
enum class work : std::uint8_t { forward, backward, backward_input, backward_weight };

/// No stage: a step without such a peer.
inline constexpr int nobody = -1;

/// One entry of a stage's list. A schedule says what is done; `basic_lists` adds the value that the step works on (an
/// activation, or backward a gradient) and the one that it makes, numbered over all stages, and which other stage it
/// comes from or goes to.
struct step {
  work kind = work::forward;
  bool with_next = false;  ///< this step and the next one may overlap; each begins when both have what they receive
  int chunk = 0;
  int micro_batch = 0;
  int from = nobody;
  int to = nobody;
  int input = -1;   ///< -1: none
  int output = -1;  ///< -1: none
  friend constexpr bool operator==(step const&, step const&) = default;
};

/// How the parts of a model lie on the stages.
///   straight   chunk c of stage s is part c * stages + s
///   vee        two chunks: down the stages and back, so that the first and the last part lie on stage 0
///   both_ways  two chunks: every part lies on two stages, s and stages - 1 - s; the first half of the micro-batches
///              enters at stage 0 and takes chunks 0, the other half enters at the last stage and takes chunks 1
enum class placement : std::uint8_t { straight, vee, both_ways };

/// How many stages, micro-batches a step, and chunks of the model a stage.
struct size {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;
  friend constexpr bool operator==(size const&, size const&) = default;
};

/// Which stage runs which part of the model.
struct layout : size {
  placement where = placement::straight;

  /// Parts of the model, in the order of forward.
  [[nodiscard]] constexpr int parts() const noexcept {
    return where == placement::both_ways ? stages : stages * chunks;
  }
  [[nodiscard]] constexpr int part(int stage, int chunk) const noexcept {
    if (where == placement::straight) return chunk * stages + stage;
    return chunk == 0 ? stage : parts() - 1 - stage;
  }
  [[nodiscard]] constexpr int stage_of(int part, int micro_batch) const noexcept {
    if (where == placement::straight) return part % stages;
    if (where == placement::vee) return part < stages ? part : 2 * stages - 1 - part;
    return goes_up(micro_batch) ? stages - 1 - part : part;
  }
  /// Whether a stage's chunk runs a micro-batch at all.
  [[nodiscard]] constexpr bool takes(int chunk, int micro_batch) const noexcept {
    return where != placement::both_ways || (chunk == 1) == goes_up(micro_batch);
  }
  /// Activations and gradients between parts, of all micro-batches.
  [[nodiscard]] constexpr int values() const noexcept { return 2 * (parts() - 1) * micro_batches; }
  /// Chunks that one stage takes forward in a step of training, over all micro-batches.
  [[nodiscard]] constexpr int passes() const noexcept {
    return where == placement::both_ways ? micro_batches : micro_batches * chunks;
  }

 private:
  [[nodiscard]] constexpr bool goes_up(int micro_batch) const noexcept { return micro_batch >= micro_batches / 2; }
};

// Storage of lists and simulations: vectors at run time; at compile time raw arrays, because std::array and
// std::vector exceed the default limits of constant evaluation.
struct on_heap {
  template <class T>
  using array = std::vector<T>;
};
template <int Capacity>
struct within {
  template <class T>
  struct array {
    T values[Capacity]{};
    constexpr void resize(int) noexcept {}
    constexpr T* data() noexcept { return values; }
    constexpr T const* data() const noexcept { return values; }
  };
};

/// The steps of every stage, in order.
template <class Storage>
class basic_lists {
 public:
  constexpr explicit basic_lists(layout const& where) : where_(where) {
    steps_.resize(where.stages * longest());
    counts_.resize(where.stages);
  }

  [[nodiscard]] constexpr layout const& where() const noexcept { return where_; }
  [[nodiscard]] constexpr int stages() const noexcept { return where_.stages; }
  [[nodiscard]] constexpr int micro_batches() const noexcept { return where_.micro_batches; }
  [[nodiscard]] constexpr int count(int stage) const noexcept { return counts_.data()[stage]; }
  /// The first step of a stage; count(stage) lie there.
  [[nodiscard]] constexpr step const* of(int stage) const noexcept { return steps_.data() + stage * longest(); }
  /// No stage has more steps than this.
  [[nodiscard]] constexpr int longest() const noexcept { return 3 * where_.passes(); }
  /// Whether a stage had more steps than can be right; they were left out.
  [[nodiscard]] constexpr bool overflowed() const noexcept { return overflowed_; }

  constexpr void add(int stage, step each) {
    auto& count = counts_.data()[stage];
    if (count == longest()) {
      overflowed_ = true;
      return;
    }
    if (each.kind != work::backward_weight) connect(stage, each);
    steps_.data()[stage * longest() + count++] = each;
  }

 private:
  // Value b * micro_batches + m is the activation of micro-batch m between parts b and b + 1; the gradients come after
  // all activations.
  constexpr void connect(int stage, step& each) const {
    int const part = where_.part(stage, each.chunk);
    bool const forward = each.kind == work::forward;
    int const next = forward ? part + 1 : part - 1;
    int const last = forward ? part - 1 : part + 1;
    int const first = (forward ? 0 : where_.parts() - 1) * where_.micro_batches + each.micro_batch;
    if (last >= 0 && last < where_.parts()) {
      each.input = first + (forward ? last : part) * where_.micro_batches;
      each.from = where_.stage_of(last, each.micro_batch);
      if (each.from == stage) each.from = nobody;
    }
    if (next >= 0 && next < where_.parts()) {
      each.output = first + (forward ? part : next) * where_.micro_batches;
      each.to = where_.stage_of(next, each.micro_batch);
      if (each.to == stage) each.to = nobody;
    }
  }

  layout where_;
  typename Storage::template array<step> steps_;
  typename Storage::template array<int> counts_;
  bool overflowed_ = false;
};
using step_lists = basic_lists<on_heap>;

}  // namespace trireme::schedule

// ---- trireme/parallel/schedules/simulate.hpp (goes on)
namespace trireme::schedule {

/// What a send means to the stage that sends.
///   rendezvous   one message at a time; a stage waits until the other side takes it
///   grouped      what a step sends and what the next one receives proceed together, and the stage waits for all of it
///   buffered     messages travel while stages go on; only a receive waits
enum class sends : std::uint8_t { rendezvous, grouped, buffered };

/// What the steps of one chunk take, in any unit; a full backward takes backward_input + backward_weight.
struct costs {
  std::int64_t forward = 1;
  std::int64_t backward_input = 1;
  std::int64_t backward_weight = 1;
  std::int64_t hop = 0;          ///< from one stage to another
  std::int64_t overlapped = -1;  ///< a forward and a full backward that overlap (F&B); -1: their sum

  [[nodiscard]] constexpr std::int64_t of(work kind) const noexcept {
    if (kind == work::forward) return forward;
    if (kind == work::backward_input) return backward_input;
    return kind == work::backward_weight ? backward_weight : backward_input + backward_weight;
  }
  [[nodiscard]] constexpr std::int64_t of_pair() const noexcept {
    return overlapped >= 0 ? overlapped : of(work::forward) + of(work::backward);
  }
};

/// The times of one step of training.
struct step_time {
  std::int64_t start = 0;
  std::int64_t end = 0;
};

/// What became of one stage.
struct stage_time {
  std::int64_t start = 0;  ///< of its first step
  std::int64_t end = 0;    ///< of its last step
  std::int64_t busy = 0;
  int peak = 0;  ///< most activations held at a time, in micro-batches of one chunk
  int done = 0;  ///< steps that it could take; fewer than it has if the schedule is stuck

  /// Waiting between its first and its last step.
  [[nodiscard]] constexpr std::int64_t idle() const noexcept { return end - start - busy; }
};

/// The run of a schedule on paper.
template <class Storage>
struct basic_timing {
  typename Storage::template array<step_time> steps;  ///< stage s, step i: at s * longest() + i
  typename Storage::template array<stage_time> stages;
  int stage_count = 0;
  bool finished = false;  ///< false: deadlock

  [[nodiscard]] constexpr stage_time const& stage(int which) const noexcept { return stages.data()[which]; }
  /// The idle time of the stage that idles most: what the step of training takes longer than its work.
  [[nodiscard]] constexpr std::int64_t bubble() const noexcept {
    std::int64_t most = 0;
    for (int s = 0; s < stage_count; ++s) most = stage(s).idle() > most ? stage(s).idle() : most;
    return most;
  }
  /// The most activations that any stage holds, in micro-batches of one chunk.
  [[nodiscard]] constexpr int peak() const noexcept {
    int most = 0;
    for (int s = 0; s < stage_count; ++s) most = stage(s).peak > most ? stage(s).peak : most;
    return most;
  }
  /// From the first step of any stage to the end.
  [[nodiscard]] constexpr std::int64_t span() const noexcept {
    std::int64_t last = 0;
    for (int s = 0; s < stage_count; ++s) last = stage(s).end > last ? stage(s).end : last;
    return last;
  }
};
using timing = basic_timing<on_heap>;

namespace detail {

/// Replays lists: each stage goes on until it has to wait, in turns, until none can go on. Written with few statements:
/// compilers limit their number in a constant expression.
template <class Storage>
class simulator {
  static constexpr std::int64_t never = -1;

 public:
  constexpr simulator(basic_lists<Storage> const& steps, costs const& cost, sends semantics)
      : lists_(steps), cost_(cost), semantics_(semantics) {
    int const values = lists_.where().values();
    made_.resize(values);
    offered_.resize(values);
    asked_.resize(values);
    for (int v = 0; v < values; ++v) made_.data()[v] = offered_.data()[v] = asked_.data()[v] = never;
    stages_.resize(lists_.stages());
    out_.steps.resize(lists_.stages() * lists_.longest());
    out_.stages.resize(lists_.stages());
    out_.stage_count = lists_.stages();
  }

  constexpr basic_timing<Storage> run() {
    int running = lists_.stages();
    for (bool moved = true; moved && running > 0;) {
      moved = false;
      for (int s = 0; s < lists_.stages(); ++s) {
        auto& stage = stages_.data()[s];
        if (stage.over) continue;
        while (advance(s, stage)) moved = true;
        if (stage.over) --running;
      }
    }
    out_.finished = running == 0;
    return out_;
  }

 private:
  struct state {
    std::int64_t clock = 0;
    int next = 0;     // step
    int sending = 0;  // how many steps before `next` have results to send
    int phase = 0;    // rendezvous: how many messages between two steps are done
    int held = 0;
    bool over = false;
  };

  // The messages between two steps, then the step (or the two of a pair). False if the stage must wait or is done.
  constexpr bool advance(int s, state& stage) {
    int const left = lists_.count(s) - stage.next;
    auto const* const steps = lists_.of(s) + stage.next;
    int const group = left > 1 && steps->with_next ? 2 : left > 0 ? 1 : 0;
    if (semantics_ != sends::buffered && !exchanged(stage, steps, group)) return false;
    auto clock = stage.clock;
    for (auto const* each = steps; each != steps + group; ++each) {
      if (each->input < 0) continue;
      auto const made = made_.data()[each->input];
      if (made == never) return false;
      auto const here = made + (each->from == nobody || semantics_ != sends::buffered ? 0 : cost_.hop);
      clock = here > clock ? here : clock;
    }
    stage.over = group == 0;
    if (!stage.over) take(s, stage, steps, group, clock);
    return !stage.over;
  }

  constexpr void take(int s, state& stage, step const* steps, int group, std::int64_t begin) {
    auto& sum = out_.stages.data()[s];
    auto const length = group == 2 ? cost_.of_pair() : cost_.of(steps->kind);
    sum.start = stage.next == 0 ? begin : sum.start;
    sum.end = stage.clock = begin + length;
    sum.busy += length;
    for (int i = 0; i < group; ++i) {
      out_.steps.data()[s * lists_.longest() + stage.next + i] = {begin, sum.end};
      stage.held += steps[i].kind == work::forward;
      if (steps[i].output >= 0) made_.data()[steps[i].output] = sum.end;
    }
    sum.peak = stage.held > sum.peak ? stage.held : sum.peak;
    for (int i = 0; i < group; ++i) {
      stage.held -= steps[i].kind == work::backward || steps[i].kind == work::backward_weight;
    }
    sum.done = stage.next += group;
    stage.sending = group;
  }

  // Rendezvous and grouped: whether all that the last step sends and the next one receives has met its other side.
  constexpr bool exchanged(state& stage, step const* steps, int group) {
    struct {
      int value;
      bool sent;
    } messages[4]{};
    int many = 0;
    for (int i = -stage.sending; i < 0; ++i) {
      if (steps[i].to != nobody) messages[many++] = {steps[i].output, true};
    }
    for (int i = 0; i < group; ++i) {
      if (steps[i].from != nobody) messages[many++] = {steps[i].input, false};
    }
    bool const one_by_one = semantics_ == sends::rendezvous;
    for (int m = stage.phase; m < many; ++m) {
      auto& asked = asked_.data()[messages[m].value];
      auto& offered = offered_.data()[messages[m].value];
      auto& here = messages[m].sent ? offered : asked;
      if (here == never) here = stage.clock;
      if (!one_by_one) continue;
      if (!meet(stage, offered, asked)) return false;
      stage.phase = m + 1;
    }
    if (!one_by_one) {
      for (int m = 0; m < many; ++m) {
        if (offered_.data()[messages[m].value] == never || asked_.data()[messages[m].value] == never) return false;
      }
      for (int m = 0; m < many; ++m) {
        static_cast<void>(meet(stage, offered_.data()[messages[m].value], asked_.data()[messages[m].value]));
      }
    }
    stage.phase = 0;
    stage.sending = 0;
    return true;
  }
  // Both sides go on when the later of them has come and the message has travelled.
  constexpr bool meet(state& stage, std::int64_t offered, std::int64_t asked) const {
    if (offered == never || asked == never) return false;
    auto const done = (offered > asked ? offered : asked) + cost_.hop;
    stage.clock = done > stage.clock ? done : stage.clock;
    return true;
  }

  basic_lists<Storage> const& lists_;
  costs cost_;
  sends semantics_;
  typename Storage::template array<std::int64_t> made_;     // when a value was there
  typename Storage::template array<std::int64_t> offered_;  // when its sender began to wait, if it waits
  typename Storage::template array<std::int64_t> asked_;    // when its receiver did
  typename Storage::template array<state> stages_;
  basic_timing<Storage> out_;
};

}  // namespace detail

/// Replays a schedule on paper: when each step starts and ends, what each stage idles and holds, and whether all of
/// them come to the end. A pure function; whole numbers only, so that a formula can be met exactly.
template <class Storage>
[[nodiscard]] constexpr basic_timing<Storage> simulate(basic_lists<Storage> const& steps, costs const& cost = {},
                                                       sends semantics = sends::buffered) {
  return detail::simulator<Storage>(steps, cost, semantics).run();
}

}  // namespace trireme::schedule

// ---- trireme/parallel/schedules/check.hpp (goes on)
namespace trireme::schedule {

/// A pipeline schedule: its name, how parts lie on stages, how many chunks a stage has (0: as many as one likes), what
/// it needs of a size (nullptr: nothing is wrong), and each stage's steps.
template <class S>
concept schedule = requires(size const& of, void (*emit)(step)) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::where } -> std::convertible_to<placement>;
  { S::chunks } -> std::convertible_to<int>;
  { S::refuses(of) } -> std::convertible_to<char const*>;
  S::steps(of, 0, emit);
};

// The rules of a schedule: name, sentence. In the order in which they are checked: each relies on those before it.
#define TRIREME_SCHEDULE_RULES(rule)                                                                                  \
  rule(in_range,                                                                                                      \
       "every step must name a chunk of its stage and a micro-batch that there is, and that this chunk takes")        \
      rule(not_too_many, "a stage has more steps than its chunks and micro-batches ask for")                          \
          rule(forward_once, "each chunk must take each of its micro-batches forward exactly once")                   \
              rule(backward_once,                                                                                     \
                   "each chunk must take each of its micro-batches backward exactly once: a full backward, or "       \
                   "backward_input and "                                                                              \
                   "backward_weight")                                                                                 \
                  rule(backward_after_forward, "a backward must come after the forward of its chunk and micro-batch") \
                      rule(weight_after_input,                                                                        \
                           "a backward_weight must come after the backward_input of its chunk and micro-batch")       \
                          rule(no_deadlock, "stages wait for each other for ever, even if sends are buffered")

/// A rule of schedules; `none` is broken by a right one.
enum class rule {
#define TRIREME_SCHEDULE_NAME(name, sentence) name,
  TRIREME_SCHEDULE_RULES(TRIREME_SCHEDULE_NAME)
#undef TRIREME_SCHEDULE_NAME
      none
};

[[nodiscard]] constexpr std::string_view sentence_of(rule which) noexcept {
#define TRIREME_SCHEDULE_SENTENCE(name, sentence) \
  if (which == rule::name) return sentence;
  TRIREME_SCHEDULE_RULES(TRIREME_SCHEDULE_SENTENCE)
#undef TRIREME_SCHEDULE_SENTENCE
  return {};
}

/// The first rule that lists break, and where.
struct verdict {
  rule broken = rule::none;
  int stage = 0;
  int index = 0;  ///< of the step in the stage's list
  [[nodiscard]] constexpr bool ok() const noexcept { return broken == rule::none; }
};

namespace detail {

/// What a chunk has done with a micro-batch, as bits.
struct pass_record {
  int done = 0;
  static constexpr int forward = 1, input = 2, weight = 4, all = 7;
};

/// What a step must find done and what it must not, and what it breaks if it does not.
constexpr rule apply(pass_record& record, work kind) {
  int const adds = kind == work::forward          ? pass_record::forward
                   : kind == work::backward       ? pass_record::input | pass_record::weight
                   : kind == work::backward_input ? pass_record::input
                                                  : pass_record::weight;
  if ((record.done & adds) != 0) return kind == work::forward ? rule::forward_once : rule::backward_once;
  if (kind != work::forward && (record.done & pass_record::forward) == 0) return rule::backward_after_forward;
  if (kind == work::backward_weight && (record.done & pass_record::input) == 0) return rule::weight_after_input;
  record.done |= adds;
  return rule::none;
}

}  // namespace detail

/// Whether lists are a schedule: every micro-batch once each way through every chunk, in an order that can be run.
template <class Storage>
[[nodiscard]] constexpr verdict find_broken_rule(basic_lists<Storage> const& given) {
  auto const& where = given.where();
  typename Storage::template array<detail::pass_record> records;
  int const cells = where.chunks * where.micro_batches;
  records.resize(where.stages * cells);
  if (given.overflowed()) return {rule::not_too_many, 0, given.longest()};
  for (int s = 0; s < where.stages; ++s) {
    auto* const own = records.data() + s * cells;
    auto const* const steps = given.of(s);
    for (int i = 0; i < given.count(s); ++i) {
      auto const broken =
          detail::apply(own[steps[i].chunk * where.micro_batches + steps[i].micro_batch], steps[i].kind);
      if (broken != rule::none) return {broken, s, i};
    }
    for (int chunk = 0; chunk < where.chunks; ++chunk) {
      for (int m = 0; m < where.micro_batches; ++m) {
        int const done = own[chunk * where.micro_batches + m].done;
        if (done == detail::pass_record::all || !where.takes(chunk, m)) continue;
        return {(done & detail::pass_record::forward) == 0 ? rule::forward_once : rule::backward_once, s,
                given.count(s)};
      }
    }
  }
  auto const run = simulate(given);
  for (int s = 0; s < where.stages && !run.finished; ++s) {
    if (run.stage(s).done < given.count(s)) return {rule::no_deadlock, s, run.stage(s).done};
  }
  return {};
}

/// The steps of `Schedule`, whose size must be one that it does not refuse; broken says if a step names what is not
/// there (such a step is left out).
template <schedule Schedule, class Storage>
[[nodiscard]] constexpr basic_lists<Storage> list(size const& of, verdict& broken) {
  layout const where{of, Schedule::where};
  basic_lists<Storage> out(where);
  for (int s = 0; s < of.stages; ++s) {
    Schedule::steps(of, s, [&](step const& each) {
      bool const there = each.chunk >= 0 && each.chunk < of.chunks && each.micro_batch >= 0 &&
                         each.micro_batch < of.micro_batches && where.takes(each.chunk, each.micro_batch);
      if (there)
        out.add(s, each);
      else if (broken.ok())
        broken = {rule::in_range, s, out.count(s)};
    });
  }
  return out;
}

/// The steps of `Schedule` for a size that is known at run time, checked.
///
/// Errors  config_error: it refuses the size, or its lists break a rule.
template <schedule Schedule>
[[nodiscard]] step_lists make_lists(size of) {
  if (Schedule::chunks != 0) of.chunks = Schedule::chunks;
  auto const given = [&] {
    return text(of.stages, " stages, ", of.micro_batches, " micro-batches and ", of.chunks, " chunks a stage");
  };
  if (of.stages < 1 || of.micro_batches < 1 || of.chunks < 1) {
    throw config_error(
        text("trireme::schedule: ", Schedule::name, " was given ", given(), "; each must be at least 1"));
  }
  if (char const* const need = Schedule::refuses(of); need != nullptr) {
    throw config_error(text("trireme::schedule: ", Schedule::name, " ", need, ", but was given ", given()));
  }
  verdict found;
  auto out = list<Schedule, on_heap>(of, found);
  if (found.ok()) found = find_broken_rule(out);
  if (!found.ok()) {
    throw config_error(text("trireme::schedule: ", Schedule::name, " with ", given(), ": ", sentence_of(found.broken),
                            " (stage ", found.stage, ", step ", found.index, ")"));
  }
  return out;
}

namespace detail {

template <class Schedule, int Stages, int MicroBatches, int Chunks>
struct at_compile_time {
  static constexpr size of{Stages, MicroBatches, Chunks};
  static constexpr int most = 3 * Stages * MicroBatches * Chunks;  // of steps, and of messages
  static constexpr bool fits = Schedule::refuses(of) == nullptr;

  static constexpr verdict found = [] {
    verdict out;
    if constexpr (fits) {
      auto const steps = list<Schedule, within<most>>(of, out);
      if (out.ok()) out = find_broken_rule(steps);
    }
    return out;
  }();
};

// As in the trainer's slots: a class a sentence, and what is right is computed apart from it.
template <class Schedule, int Stages, int MicroBatches, int Chunks, class Facts>
struct check_schedule {
  static_assert(Facts::fits,
                "trireme::schedule: this schedule refuses these numbers of stages, micro-batches or chunks");
#define TRIREME_SCHEDULE_ASSERT(name, sentence) \
  static_assert(Facts::found.broken != rule::name, "trireme::schedule: " sentence " [" #name "]");
  TRIREME_SCHEDULE_RULES(TRIREME_SCHEDULE_ASSERT)
#undef TRIREME_SCHEDULE_ASSERT
};

}  // namespace detail

/// Checks a schedule at compile time: a broken rule is an error of one sentence. Write
/// `static_assert(schedule::check<my_schedule, 4, 8>())`.
template <class Schedule, int Stages, int MicroBatches, int Chunks = Schedule::chunks>
constexpr bool check() {
  static_assert(Chunks > 0, "trireme::schedule: say how many chunks a stage has: check<schedule, stages, 8, chunks>");
  using facts = detail::at_compile_time<Schedule, Stages, MicroBatches, Chunks>;
  // In a type only: if an assertion fails there, the value of this function is a constant all the same.
  using said = decltype(sizeof(detail::check_schedule<Schedule, Stages, MicroBatches, Chunks, facts>));
  return said{1} == 1;
}

/// What the simulator says of a schedule.
struct summary {
  bool finished = false;
  std::int64_t bubble = 0;
  std::int64_t span = 0;
  int peak = 0;  ///< in micro-batches of one chunk
  friend constexpr bool operator==(summary const&, summary const&) = default;
};

/// The summary of a schedule at compile time.
template <schedule Schedule, int Stages, int MicroBatches, int Chunks = Schedule::chunks>
[[nodiscard]] consteval summary measure(costs const& cost = {}, sends semantics = sends::buffered) {
  verdict broken;
  auto const steps = list<Schedule, within<3 * Stages * MicroBatches * Chunks>>({Stages, MicroBatches, Chunks}, broken);
  auto const run = simulate(steps, cost, semantics);
  return {run.finished, run.bubble(), run.span(), run.peak()};
}

}  // namespace trireme::schedule

// ---- trireme/parallel/schedules/cut_units.hpp
namespace trireme::schedule {

/// Where a model's units are cut: part q has units [cuts[q], cuts[q + 1]).
using unit_cuts = std::vector<std::int64_t>;

namespace detail {

inline void expect_enough_units(std::int64_t units, int stages, int chunks) {
  if (stages >= 1 && chunks >= 1 && units >= std::int64_t{stages} * chunks) return;
  throw config_error(text("trireme::schedule::cut_units: ", stages, " stages of ", chunks, " chunks need at least ",
                          std::int64_t{stages} * chunks, " units, but the model has ", units,
                          "; use fewer stages, or a model of more layers"));
}

/// The cheapest way to cut units into parts: of the largest part, or, if `limit` is given, of the sum of squares of
/// parts none of which is larger than that. Exact, by dynamic programming.
[[nodiscard]] inline unit_cuts best_cuts(std::vector<double> const& sums, std::size_t parts, double const* limit,
                                         double& price) {
  auto const units = sums.size() - 1;
  auto const none = std::numeric_limits<double>::infinity();
  std::vector<double> prices(units + 1, none);  // of the first u units in as many parts as seen so far
  std::vector<std::vector<std::int64_t>> from(parts, std::vector<std::int64_t>(units + 1, 0));
  prices[0] = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    std::vector<double> longer(units + 1, none);
    for (std::size_t end = part + 1; end <= units; ++end) {
      for (std::size_t begin = part; begin < end; ++begin) {
        double const cost = sums[end] - sums[begin];
        if (limit != nullptr && cost > *limit) continue;
        double const whole = limit != nullptr       ? prices[begin] + cost * cost
                             : cost > prices[begin] ? cost
                                                    : prices[begin];
        if (whole >= longer[end]) continue;
        longer[end] = whole;
        from[part][end] = static_cast<std::int64_t>(begin);
      }
    }
    prices = longer;
  }
  price = prices[units];
  unit_cuts cuts(parts + 1, static_cast<std::int64_t>(units));
  for (auto part = parts; part-- > 0;) cuts[part] = from[part][static_cast<std::size_t>(cuts[part + 1])];
  return cuts;
}

}  // namespace detail

/// Cuts a model into stages * chunks parts of consecutive units: the most costly part is as cheap as can be, and among
/// such cuts the parts are as even as can be. A part has at least one unit.
///
/// Errors  config_error if there are fewer units than parts, or a cost is not a number >= 0.
[[nodiscard]] inline unit_cuts cut_units(std::span<double const> costs, int stages, int chunks = 1) {
  auto const parts = static_cast<std::size_t>(stages) * static_cast<std::size_t>(chunks);
  detail::expect_enough_units(static_cast<std::int64_t>(costs.size()), stages, chunks);
  std::vector<double> sums{0};
  for (std::size_t u = 0; u < costs.size(); ++u) {
    if (!(costs[u] >= 0)) {
      throw config_error(text("trireme::schedule::cut_units: unit ", u, " costs ", costs[u], "; costs are at least 0"));
    }
    sums.push_back(sums.back() + costs[u]);
  }
  double largest = 0;
  static_cast<void>(detail::best_cuts(sums, parts, nullptr, largest));
  double squares = 0;
  return detail::best_cuts(sums, parts, &largest, squares);
}

/// Cuts that are given: the first unit of each part but the first.
///
/// Errors  config_error if there are not stages * chunks - 1 of them, or they do not increase within the model.
[[nodiscard]] inline unit_cuts cut_units(std::int64_t units, std::span<std::int64_t const> given, int stages,
                                         int chunks = 1) {
  detail::expect_enough_units(units, stages, chunks);
  auto const parts = std::int64_t{stages} * chunks;
  if (static_cast<std::int64_t>(given.size()) != parts - 1) {
    throw config_error(text("trireme::schedule::cut_units: ", stages, " stages of ", chunks, " chunks need ", parts - 1,
                            " cuts, but ", given.size(), " are given"));
  }
  unit_cuts cuts{0};
  for (auto const cut : given) {
    if (cut <= cuts.back() || cut >= units) {
      throw config_error(text("trireme::schedule::cut_units: a cut at unit ", cut, " after one at unit ", cuts.back(),
                              "; cuts must increase, and lie inside a model of ", units, " units"));
    }
    cuts.push_back(cut);
  }
  cuts.push_back(units);
  return cuts;
}

}  // namespace trireme::schedule

// ---- trireme/parallel/schedules/one_way.hpp
namespace trireme::schedule {

// A schedule is a type with a `name`, a placement `where`, the `chunks` that a stage has (0: as many as one likes),
// `refuses(size)`, which says what it needs (or nullptr), and `steps(size, stage, emit)`, which calls emit(step) for
// each step of a stage in order. They are pure functions: the same code makes lists at compile time and at run time.

/// All forwards, then all backwards.
///
/// Bubble   (p-1)(F+B) for p stages.   Holds    all m micro-batches.
/// Method   [Huang et al., "GPipe", 2019], backwards in the order of the forwards.
struct gpipe {
  static constexpr std::string_view name = "gpipe";
  static constexpr placement where = placement::straight;
  static constexpr int chunks = 1;
  static constexpr char const* refuses(size const&) { return nullptr; }
  static constexpr void steps(size const& of, int /*stage*/, auto&& emit) {
    for (int m = 0; m < of.micro_batches; ++m) emit(step{.kind = work::forward, .micro_batch = m});
    for (int m = 0; m < of.micro_batches; ++m) emit(step{.kind = work::backward, .micro_batch = m});
  }
};

/// One forward, one backward, once the pipeline is full.
///
/// Bubble   (p-1)(F+B).   Holds    min(p, m) micro-batches.
/// Method   [Narayanan et al., "PipeDream", 2019; flushed each step as in "Memory-Efficient Pipeline-Parallel DNN
///          Training", 2021].
struct one_f_one_b {
  static constexpr std::string_view name = "1f1b";
  static constexpr placement where = placement::straight;
  static constexpr int chunks = 1;
  static constexpr char const* refuses(size const&) { return nullptr; }
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    int const ahead = of.stages - 1 - stage;
    for (int k = 0; k < of.micro_batches + ahead; ++k) {
      if (k < of.micro_batches) emit(step{.kind = work::forward, .micro_batch = k});
      if (k >= ahead) emit(step{.kind = work::backward, .micro_batch = k - ahead});
    }
  }
};

/// One forward, one backward, over several chunks a stage: the pipeline is full sooner.
///
/// Bubble   (p-1)(F+B)/v for v chunks, F and B of a whole stage.   Holds    p + (p-1)/v micro-batches, or all m.
/// Method   [Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021].
struct interleaved {
  static constexpr std::string_view name = "interleaved";
  static constexpr placement where = placement::straight;
  static constexpr int chunks = 0;
  static constexpr char const* refuses(size const& of) {
    return of.micro_batches % of.stages == 0 ? nullptr : "needs micro-batches that are a multiple of the stages";
  }
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    int const group = of.stages * of.chunks;  // a chunk is taken by as many micro-batches as there are stages in turn
    int const total = of.micro_batches * of.chunks;
    int const ahead = (of.stages - 1 - stage) * 2 + (of.chunks - 1) * of.stages;
    for (int k = 0; k < total + ahead; ++k) {
      if (k < total) {
        emit(step{.kind = work::forward,
                  .chunk = k % group / of.stages,
                  .micro_batch = k / group * of.stages + k % of.stages});
      }
      if (int const b = k - ahead; b >= 0) {
        emit(step{.kind = work::backward,
                  .chunk = of.chunks - 1 - b % group / of.stages,
                  .micro_batch = b / group * of.stages + b % of.stages});
      }
    }
  }
};

/// 1F1B whose weight gradients fill the gaps: a stage puts off as many of them as it may keep activations for.
///
/// Bubble   (p-1)(F+B-2W) if m >= p and B-W >= W (less of it is filled otherwise).   Holds    min(p, m) micro-batches.
/// Method   ZB-H1 of [Qi et al., "Zero Bubble Pipeline Parallelism", 2023].
struct zb_h1 {
  static constexpr std::string_view name = "zbh1";
  static constexpr placement where = placement::straight;
  static constexpr int chunks = 1;
  static constexpr char const* refuses(size const&) { return nullptr; }
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    int const ahead = of.stages - 1 - stage;
    int const behind = stage;
    for (int k = 0; k < of.micro_batches + ahead + behind; ++k) {
      int const b = k - ahead;
      if (k < of.micro_batches) emit(step{.kind = work::forward, .micro_batch = k});
      if (b >= 0 && b < of.micro_batches) emit(step{.kind = work::backward_input, .micro_batch = b});
      if (b >= behind) emit(step{.kind = work::backward_weight, .micro_batch = b - behind});
    }
  }
};

}  // namespace trireme::schedule

// ---- trireme/parallel/pipeline.hpp (goes on)
namespace trireme::parallel {

/// Pipeline parallelism: each stage has some consecutive units of the model, and micro-batches go through all stages.
///
/// Bytes    each activation and each gradient between two stages, once a micro-batch (schedule::step).
/// Needs    has_exchange.
/// Errors   config_error if the model has fewer units than there are parts, or `cuts` do not increase within it.
template <class Schedule = schedule::one_f_one_b>
struct pipeline {
  using policy_category = slot::parallel;
  using schedule_type = Schedule;

  int stages = 0;                    ///< 0: what is left of the world
  int chunks = Schedule::chunks;     ///< of the model, a stage; given for schedule::interleaved (0: two)
  std::vector<std::int64_t> cuts{};  ///< the first unit of each part but the first; empty: balanced by cost
  friend bool operator==(pipeline const&, pipeline const&) = default;

  static constexpr std::string_view name = "pipeline";
};

template <class Schedule>
[[nodiscard]] std::string to_string(pipeline<Schedule> const& p) {
  std::string cuts;
  for (auto const cut : p.cuts) cuts += text(cuts.empty() ? "" : ", ", cut);
  return text("parallel::pipeline<schedule::", Schedule::name, ">{.stages = ", p.stages, ", .chunks = ", p.chunks,
              ", .cuts = {", cuts, "}}");
}

/// The seat of one engine in a pipeline: which units are its own, and what it does with how many micro-batches.
struct pipeline_seat {
  int stage = 0;
  schedule::layout where;                                              ///< without micro-batches
  schedule::unit_cuts cuts;                                            ///< part q has units [cuts[q], cuts[q + 1])
  std::function<schedule::step_lists(int micro_batches)> lists;        ///< of all stages
  std::function<std::vector<int>(schedule::step_lists const&)> peaks;  ///< micro-batches in flight, by stage
};

namespace detail {

/// What the units of a model cost: `unit_costs()` of the model, or all the same.
template <staged_model Model>
[[nodiscard]] std::vector<double> costs_of_units(Model const& model) {
  if constexpr (requires { model.unit_costs(); }) {
    auto const costs = model.unit_costs();
    return {costs.begin(), costs.end()};
  } else {
    trireme::detail::counts_units count;
    model.units(count);
    return std::vector<double>(static_cast<std::size_t>(count.count), 1.0);
  }
}

/// The lists of a schedule for any number of micro-batches: if it refuses that number (a short batch at the end of the
/// data), those of the next larger one that it takes, without the micro-batches that are not there.
template <class Schedule>
[[nodiscard]] schedule::step_lists lists_for(schedule::size of) {
  constexpr int most_tries = 1 << 16;
  int const there = of.micro_batches;
  for (int more = 0; more < most_tries && Schedule::refuses(of) != nullptr; ++more) ++of.micro_batches;
  if (Schedule::refuses(of) != nullptr) of.micro_batches = there;
  auto full = schedule::make_lists<Schedule>(of);
  if (of.micro_batches == there) return full;
  schedule::step_lists some(full.where());
  for (int s = 0; s < of.stages; ++s) {
    for (auto const* each = full.of(s); each != full.of(s) + full.count(s); ++each) {
      if (each->micro_batch < there) some.add(s, *each);
    }
  }
  return some;
}

/// The most micro-batches that each stage holds at a time.
[[nodiscard]] inline std::vector<int> peaks_of(schedule::step_lists const& lists) {
  auto const run = schedule::simulate(lists);
  std::vector<int> peaks;
  for (int stage = 0; stage < lists.stages(); ++stage) peaks.push_back(run.stage(stage).peak);
  return peaks;
}

}  // namespace detail

/// The only seat of an engine that has all units: each micro-batch forward, then backward.
template <staged_model Model>
[[nodiscard]] pipeline_seat seat_of_all(Model const& model) {
  trireme::detail::counts_units units;
  model.units(units);
  return {.where = {{1, 0, 1}, schedule::placement::straight},
          .cuts = {0, units.count},
          .lists =
              [](int micro_batches) {
                schedule::step_lists lists({{1, micro_batches, 1}, schedule::placement::straight});
                for (int m = 0; m < micro_batches; ++m) {
                  lists.add(0, {.kind = schedule::work::forward, .micro_batch = m});
                  lists.add(0, {.kind = schedule::work::backward, .micro_batch = m});
                }
                return lists;
              },
          .peaks = [](schedule::step_lists const&) { return std::vector<int>{1}; }};
}

/// The seat of `stage` in a pipeline of `stages` of a model's units.
template <class Schedule, staged_model Model>
[[nodiscard]] pipeline_seat seat_of(pipeline<Schedule> const& axis, Model const& model, int stage, int stages) {
  int const chunks = Schedule::chunks != 0 ? Schedule::chunks : axis.chunks != 0 ? axis.chunks : 2;
  schedule::layout const where{{stages, 0, chunks}, Schedule::where};
  auto const costs = detail::costs_of_units(model);
  int const parts_a_stage = where.parts() / stages;
  return {.stage = stage,
          .where = where,
          .cuts = axis.cuts.empty()
                      ? schedule::cut_units(costs, stages, parts_a_stage)
                      : schedule::cut_units(static_cast<std::int64_t>(costs.size()), axis.cuts, stages, parts_a_stage),
          .lists =
              [=](int micro_batches) {
                return detail::lists_for<Schedule>({stages, micro_batches, chunks});
              },
          .peaks = [](schedule::step_lists const& lists) { return detail::peaks_of(lists); }};
}

/// Whether each chunk adds to its gradients one micro-batch after the other, in their order, which sums in a fixed tree
/// take for granted. The last part of a model adds to them in its forward already.
[[nodiscard]] inline bool adds_in_order(pipeline_seat const& seat) {
  if (seat.where.where == schedule::placement::both_ways) return false;
  auto const lists = seat.lists(2 * seat.where.stages);
  for (int s = 0; s < lists.stages(); ++s) {
    std::vector<int> next(static_cast<std::size_t>(seat.where.chunks), 0);
    for (auto const* each = lists.of(s); each != lists.of(s) + lists.count(s); ++each) {
      auto& expected = next[static_cast<std::size_t>(each->chunk)];
      bool const is_last = seat.where.part(s, each->chunk) + 1 == seat.where.parts();
      if (each->kind == schedule::work::forward && !is_last) continue;
      if (each->micro_batch != expected) return false;
      if (each->kind == schedule::work::forward) continue;
      if (each->kind != schedule::work::backward) return false;  // its halves are apart
      ++expected;
    }
  }
  return true;
}

/// Stages that are the ranks of a communicator.
///
/// Threads  one owner; the communicator is used by nobody else, and must outlive the link.
template <class Comm, class Space = typename space_of<Comm>::type>
requires has_exchange<Comm, Space>
class communicator_link final : public stage_link<Space> {
  using request = decltype(std::declval<Comm&>().exchange_async(std::span<transfer<Space> const>{}));

 public:
  explicit communicator_link(Comm& stages) : stages_(stages) {}

  [[nodiscard]] int start(std::span<transfer<Space> const> messages) override {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(pending_.size()));
      pending_.emplace_back();
    }
    int const ticket = free_.back();
    pending_[static_cast<std::size_t>(ticket)].emplace(stages_.exchange_async(messages));
    free_.pop_back();
    return ticket;
  }
  void wait(int ticket) override {
    auto& it = pending_[static_cast<std::size_t>(ticket)];
    it->wait();
    it.reset();
    free_.push_back(ticket);
  }

 private:
  Comm& stages_;
  std::vector<std::optional<request>> pending_;
  std::vector<int> free_;
};

}  // namespace trireme::parallel

// ---- trireme/parallel/schedules/two_chunks.hpp
namespace trireme::schedule {

namespace detail {

/// Emits steps of two chunks, and knows which micro-batch is the next of each kind.
template <class Emit>
class two_chunk_writer {
 public:
  /// Chunk c takes the micro-batches from first_of_second * c on. Steps of micro-batches past the last are left out.
  constexpr two_chunk_writer(Emit& emit, int micro_batches, int first_of_second = 0)
      : emit_(emit), micro_batches_(micro_batches), first_of_second_(first_of_second) {}

  constexpr void forward(int chunk) { put(work::forward, chunk, forwards[chunk]++); }
  constexpr void backward(int chunk) {
    put(work::backward, chunk, backwards[chunk]++);
    ++weights[chunk];
  }
  constexpr void backward_input(int chunk) { put(work::backward_input, chunk, backwards[chunk]++); }
  constexpr void backward_weight(int chunk) { put(work::backward_weight, chunk, weights[chunk]++); }
  /// A forward and a backward that may overlap.
  constexpr void both(int forward_chunk, int backward_chunk) {
    put(work::forward, forward_chunk, forwards[forward_chunk]++, true);
    backward(backward_chunk);
  }

  int forwards[2] = {0, 0};
  int backwards[2] = {0, 0};
  int weights[2] = {0, 0};

 private:
  constexpr void put(work kind, int chunk, int nth, bool with_next = false) {
    int const micro_batch = first_of_second_ * chunk + nth;
    if (micro_batch >= micro_batches_) return;
    emit_(step{.kind = kind, .with_next = with_next, .chunk = chunk, .micro_batch = micro_batch});
  }

  Emit& emit_;
  int micro_batches_;
  int first_of_second_;
};

/// The phases that DualPipe and its V form share.
///
/// @param half    stages from the end to the turn (or the meeting)    @param place   of this stage among them
/// @param each    micro-batches that each chunk takes                 @param near    the chunk that this end fills
/// first
template <class Emit>
constexpr void dual_pipe_steps(two_chunk_writer<Emit>& out, int half, int place, int each, int near) {
  int const far = 1 - near;
  int const to_turn = half - place - 1;
  for (int i = 0; i < 2 * to_turn; ++i) out.forward(near);
  for (int i = 0; i <= place; ++i) {
    out.forward(near);
    out.forward(far);
  }
  for (int i = 0; i < to_turn; ++i) {
    out.backward_input(far);
    out.backward_weight(far);
    out.forward(far);
  }
  for (int i = 0; i < each - 2 * half + place + 1; ++i) {
    if (i == 0 && to_turn == 0) {  // at the turn the first pair apart leaves less idle
      out.forward(near);
      out.backward(far);
    } else {
      out.both(near, far);
    }
    out.both(far, near);
  }
  for (int i = 0; i < to_turn; ++i) {
    out.backward(far);
    out.both(far, near);
  }
  // The last backwards of both chunks in turn; the second half of them puts its weight gradients off.
  for (int i = 0; i < 2 * (place + 1); ++i) {
    int const chunk = i % 2 == 0 ? far : near;
    i <= place ? out.backward(chunk) : out.backward_input(chunk);
  }
  auto const postponed = [&](int nth) { out.backward_weight(nth <= place && (place + 1 + nth) % 2 == 0 ? far : near); };
  for (int i = 0; i < to_turn; ++i) {
    postponed(i);
    out.backward_input(near);
  }
  for (int i = to_turn; i < half; ++i) postponed(i);
}

}  // namespace detail

/// Two chunks a stage, down and back, and backwards in halves: no stage ever waits if F = B-W = W.
///
/// Bubble   0 if F = B-W = W and m >= 2p-1; before and after its own steps a stage has nothing to do, so that the end
///          of one step of training and the begin of the next one have to overlap, too.   Holds    min(p, m)
///          micro-batches; the first and the last part lie on stage 0.
/// Method   ZB-V of [Qi et al., "Pipeline Parallelism with Controllable Memory", 2024].
struct zb_v {
  static constexpr std::string_view name = "zbv";
  static constexpr placement where = placement::vee;
  static constexpr int chunks = 2;
  static constexpr char const* refuses(size const&) { return nullptr; }
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    int const to_turn = of.stages - stage;
    // The pattern is that of a full pipeline; micro-batches that are not there are left out of it.
    int const full = of.micro_batches < 2 * of.stages - 1 ? 2 * of.stages - 1 : of.micro_batches;
    detail::two_chunk_writer out(emit, of.micro_batches);
    auto const backward = [&](int chunk) {
      out.backward_input(chunk);
      out.backward_weight(chunk);
    };
    for (int i = 0; i < 2 * to_turn - 1; ++i) out.forward(0);
    for (int i = 0; i < stage; ++i) {
      out.forward(1);
      out.forward(0);
    }
    for (int i = 0; i < to_turn; ++i) {
      out.forward(1);
      backward(1);
    }
    while (out.forwards[1] < full) {
      if (out.forwards[0] < full) out.forward(0);
      backward(0);
      out.forward(1);
      backward(1);
    }
    for (int i = 0; i < stage; ++i) {
      out.backward_input(0);
      out.backward_input(1);
    }
    for (int i = 0; i < to_turn; ++i) {
      out.backward_input(0);
      out.backward_weight(0);
    }
    while (out.weights[1] < full) out.backward_weight(1);
    while (out.weights[0] < full) out.backward_weight(0);
  }
};

/// Micro-batches enter at both ends: each stage has two parts of the model, and each part lies on two stages, so that
/// forwards of one direction overlap with backwards of the other.
///
/// Bubble   (p/2-1)(F&B+B-3W), F&B a forward and a backward that may overlap, if F = B-W >= W and F&B = F+B; no more
///          than that if B-W > F or F&B < F+B.   Holds    p+1 micro-batches.   Bytes    parameters twice.
/// Method   [DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024].
struct dual_pipe {
  static constexpr std::string_view name = "dualpipe";
  static constexpr placement where = placement::both_ways;
  static constexpr int chunks = 2;
  static constexpr char const* refuses(size const& of) {
    if (of.stages % 2 != 0) return "needs an even number of stages";
    if (of.micro_batches % 2 != 0) return "needs an even number of micro-batches";
    return of.micro_batches < 2 * of.stages ? "needs at least two micro-batches a stage" : nullptr;
  }
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    bool const second = stage >= of.stages / 2;
    detail::two_chunk_writer out(emit, of.micro_batches, of.micro_batches / 2);
    detail::dual_pipe_steps(out, of.stages / 2, second ? of.stages - 1 - stage : stage, of.micro_batches / 2,
                            second ? 1 : 0);
  }
};

/// DualPipe folded in the middle: half the stages, each part on one of them.
///
/// Bubble   (p-1)(F&B+B-3W) for p stages, F and B of a chunk, under the conditions of dual_pipe.
///          Holds    2p+1 chunks of micro-batches, each half a stage; the first and the last part lie on stage 0.
/// Method   [Qi et al., "DualPipe could be better without the Dual", 2025].
struct dual_pipe_v {
  static constexpr std::string_view name = "dualpipev";
  static constexpr placement where = placement::vee;
  static constexpr int chunks = 2;
  static constexpr char const* refuses(size const& of) {
    return of.micro_batches < 2 * of.stages ? "needs at least two micro-batches a stage" : nullptr;
  }
  static constexpr void steps(size const& of, int stage, auto&& emit) {
    detail::two_chunk_writer out(emit, of.micro_batches);
    detail::dual_pipe_steps(out, of.stages, stage, of.micro_batches, 0);
  }
};

}  // namespace trireme::schedule

// ---- trireme/parallel/schedules/schedules.hpp (goes on)
namespace trireme::schedule {

/// Calls f(schedule{}) for each schedule that comes with trireme.
template <class F>
constexpr void for_each_schedule(F&& f) {
  f(gpipe{});
  f(one_f_one_b{});
  f(interleaved{});
  f(zb_h1{});
  f(zb_v{});
  f(dual_pipe{});
  f(dual_pipe_v{});
}

/// Calls f(schedule{}) for the one of that name, as it stands on a command line; false if there is none.
template <class F>
constexpr bool with_named(std::string_view name, F&& f) {
  bool found = false;
  for_each_schedule([&]<class Schedule>(Schedule const& each) {
    if (Schedule::name != name) return;
    found = true;
    f(each);
  });
  return found;
}

}  // namespace trireme::schedule

// ---- trireme/parallel/any_pipeline.hpp (goes on)
namespace trireme::parallel {

/// A pipeline whose schedule is chosen at run time, by its name: gpipe, 1f1b, interleaved, zbh1, zbv, dualpipe,
/// dualpipev.
///
/// Errors  config_error when a trainer is made, if no schedule has that name; else as pipeline.
struct any_pipeline {
  using policy_category = slot::parallel;

  std::string schedule = "1f1b";
  int stages = 0;                    ///< 0: what is left of the world
  int chunks = 0;                    ///< of the model, a stage; for interleaved (0: two)
  std::vector<std::int64_t> cuts{};  ///< the first unit of each part but the first; empty: balanced by cost
  friend bool operator==(any_pipeline const&, any_pipeline const&) = default;

  static constexpr std::string_view name = "pipeline";
};

[[nodiscard]] inline std::string to_string(any_pipeline const& p) {
  return text("parallel::any_pipeline{.schedule = \"", p.schedule, "\", .stages = ", p.stages, ", .chunks = ", p.chunks,
              "}");
}

template <staged_model Model>
[[nodiscard]] pipeline_seat seat_of(any_pipeline const& axis, Model const& model, int stage, int stages) {
  pipeline_seat seat;
  bool const found = schedule::with_named(axis.schedule, [&]<class Schedule>(Schedule const&) {
    auto const chunks = Schedule::chunks != 0 ? Schedule::chunks : axis.chunks;
    seat = seat_of(pipeline<Schedule>{.stages = stages, .chunks = chunks, .cuts = axis.cuts}, model, stage, stages);
  });
  if (found) return seat;
  std::string names;
  schedule::for_each_schedule(
      [&](auto const& each) { names += text(names.empty() ? "" : ", ", std::string_view(each.name)); });
  throw config_error(
      text("trireme::parallel::pipeline: there is no schedule \"", axis.schedule, "\"; the schedules are ", names));
}

}  // namespace trireme::parallel

// ---- trireme/parallel/expert.hpp
namespace trireme::parallel {

/// Expert parallelism: the ranks of a group see different samples, as under data, and deal the experts of each layer
/// out among them; all other parameters they share. Rows travel to the experts that they choose, and back.
///
/// Bytes    of a layer with experts, per micro-batch and rank: four ragged all_to_alls of rows * choices * channels of
///          the compute type (two of them backward; a rank's own rows stay), and an all_gather of 8 bytes an expert.
///          Once a step, an all_reduce of the gradients of everything but experts, after the exchange among replicas:
///          it is not hidden behind backward.
/// Ranks    a group's ranks run as many micro-batches each: one that has fewer samples serves the others' without rows.
/// Needs    has_ragged_all_to_all of the compute type, has_all_gather of int64, has_all_reduce of gradients.
/// Method   [Lepikhin et al., "GShard", 2020], without a capacity: no row is dropped.
/// Errors   config_error if there are more ways than experts.
struct expert {
  using policy_category = slot::parallel;
  std::int64_t ways = 0;  ///< ranks that share out the experts; 0 = what is left of the world
  friend bool operator==(expert const&, expert const&) = default;

  static constexpr std::string_view name = "expert";
};

[[nodiscard]] inline std::string to_string(expert const& e) { return text("parallel::expert{.ways = ", e.ways, "}"); }

/// An expert group on a communicator: all of its ranks are the group.
///
/// Ranks    collective, as the calls of expert_group are.
/// Threads  one owner; the communicator must outlive it, and nobody else may use it meanwhile.
/// Errors   comm_error from its calls.
template <class Env, class Comm>
class communicator_experts final : public expert_group<Env> {
 public:
  using typename expert_group<Env>::view;

  explicit communicator_experts(Comm& world) : expert_group<Env>({world.rank(), world.size()}), world_(world) {}

 private:
  void do_gather(std::span<std::int64_t> table) override { world_.all_gather(tensor_view<std::int64_t>(table)); }
  void do_trade(view to, std::span<std::int64_t const> received, view from,
                std::span<std::int64_t const> sent) override {
    in_elements(received_, received, to.extent(1));
    in_elements(sent_, sent, from.extent(1));
    world_.all_to_all(tensor_view<typename view::value_type const, typename view::space>(from), sent_, to, received_);
  }
  static void in_elements(std::vector<std::int64_t>& elements, std::span<std::int64_t const> rows,
                          std::int64_t columns) {
    elements.clear();
    for (auto const count : rows) elements.push_back(count * columns);
  }

  Comm& world_;
  std::vector<std::int64_t> sent_, received_;
};

}  // namespace trireme::parallel

// ---- trireme/parallel/strategies.hpp
namespace trireme::parallel {

/// Data parallelism: every rank has the whole model and a part of each batch; gradients are summed, bucket by bucket,
/// while backward still runs. The default.
///
/// Bytes    per rank and step: 2 n (p-1)/p elements of the wire type, n gradients, p ranks.
/// Ranks    reproducible: a power of two, each with as many logical micro-batches.
/// Numerics reproducible: gradients of logical micro-batches are summed in one fixed tree, so that weights have the
/// same
///          bits for any number of ranks. It keeps log2(m) + 1 more gradients, m micro-batches a rank.
/// Needs    has_all_reduce; has_all_gather for compressors whose payloads cannot be summed.
struct data {
  using policy_category = slot::parallel;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< gradients exchanged together, in bytes
  bool reproducible = false;  ///< the same bits for any number of ranks; every rank's share is whole micro-batches
  int ways = 0;               ///< ranks that split samples; 0 = what is left of the world
  friend bool operator==(data const&, data const&) = default;

  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr std::string_view name = "data";
};

/// ZeRO: data parallelism whose state is cut into one shard a rank. Stage 1 shards the optimizer's state: gradients
/// are reduce-scattered, each rank updates its shard, and the new parameters are gathered. Stage 2 also keeps only the
/// own shard of gradients: a unit's gradients exist whole from its backward until they are reduced. Stage 3 also keeps
/// only the own shard of parameters: a unit's are gathered before it runs and dropped afterwards.
///
/// Bytes    per rank and step, m micro-batches a rank: stage 1 n (p-1)/p of the wire type and n (p-1)/p of the
/// parameter
///          type; stage 2 m times the first; stage 3 m times the first and about 2 m times the second (the last unit is
///          not gathered twice). From stage 2 on each use of a tied tensor is reduced by itself.
/// Numerics equals data bit for bit at stage 1. From stage 2 on each micro-batch is summed over the ranks first, then
///          the micro-batches: equal to data where a rank has one micro-batch and no tensor is tied, else up to
///          rounding. reproducible: as for data; from stage 2 on it then keeps whole gradients where a rank has several
///          micro-batches.
/// Needs    has_reduce_scatter and has_all_gather; has_all_to_all for compressors whose payloads cannot be summed.
///          Where ranks share an address space, stage 1 reads all ranks' gradients, and stages 1 and 2 write all ranks'
///          parameters.
/// Method   [Rajbhandari et al., "ZeRO", 2020].
template <int Stage>
struct zero {
  static_assert(Stage >= 1 && Stage <= 3, "trireme::parallel::zero: there are stages 1, 2 and 3");
  using policy_category = slot::parallel;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< gradients exchanged together, in bytes
  bool reproducible = false;  ///< the same bits for any number of ranks; every rank's share is whole micro-batches
  int ways = 0;               ///< ranks that split samples; 0 = what is left of the world
  friend bool operator==(zero const&, zero const&) = default;

  static constexpr distribution optimizer_state = distribution::shard;
  static constexpr distribution gradients = Stage >= 2 ? distribution::shard : distribution::replicate;
  static constexpr distribution parameters = Stage >= 3 ? distribution::shard : distribution::replicate;
  static constexpr std::string_view name = Stage == 1 ? "zero1" : Stage == 2 ? "zero2" : "zero3";
};

namespace detail {

template <class S>
[[nodiscard]] std::string options_of(S const& s) {
  return text("{.bucket_bytes = ", s.bucket_bytes, s.reproducible ? ", .reproducible = true" : "",
              s.ways != 0 ? text(", .ways = ", s.ways) : "", "}");
}

}  // namespace detail

[[nodiscard]] inline std::string to_string(data const& d) { return "parallel::data" + detail::options_of(d); }
template <int Stage>
[[nodiscard]] std::string to_string(zero<Stage> const& z) {
  return text("parallel::zero<", Stage, ">", detail::options_of(z));
}

}  // namespace trireme::parallel

// ---- trireme/parallel/tensor.hpp
namespace trireme::parallel {

/// Tensor parallelism: the ranks of a group share the matrices of each layer. Attention is cut by heads, an mlp by its
/// inner numbers, the tied table by tokens; parts may be uneven. Norms and positions are the same on all of them.
///
/// Bytes    of a GPT, per micro-batch and rank: 4 all_reduces of rows * channels of the compute type a layer, half of
///          them backward, one more for the embeddings and one for the head's backward; in the head, for each chunk of
///          rows, one of a number a row (the largest logit) and one of two, of the accumulate type.
/// Needs    has_all_reduce of the compute type, and of the accumulate type with sum and max.
/// Method   [Shoeybi et al., "Megatron-LM", 2019].
/// Errors   config_error if there are more ways than heads, or than tokens.
struct tensor {
  using policy_category = slot::parallel;
  std::int64_t ways = 0;  ///< ranks that share a layer; 0 = what is left of the world
  friend bool operator==(tensor const&, tensor const&) = default;

  static constexpr std::string_view name = "tensor";
};

/// Sequence parallelism, beside tensor and in its group: the rows between the products (the residual stream, norms,
/// dropout) are cut as well, so that what a layer saves of them falls as 1 / ways.
///
/// Bytes    as tensor's, each all_reduce as a reduce_scatter and an all_gather (as it is, where rows do not divide);
///          two more all_gathers a layer backward, since the gathered inputs of its products are not kept; and an
///          all_reduce of 2 * channels sums a norm.
/// Needs    has_reduce_scatter and has_ragged_all_gather of the compute type besides.
/// Method   [Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022].
struct sequence {
  using policy_category = slot::parallel;
  std::int64_t ways = 0;  ///< 0: as many as tensor; 1: rows are not cut
  friend bool operator==(sequence const&, sequence const&) = default;

  static constexpr std::string_view name = "sequence";
};

[[nodiscard]] inline std::string to_string(tensor const& t) { return text("parallel::tensor{.ways = ", t.ways, "}"); }
[[nodiscard]] inline std::string to_string(sequence const& s) {
  return s.ways == 0 ? "parallel::sequence{}" : text("parallel::sequence{.ways = ", s.ways, "}");
}

/// A tensor group on a communicator: all of its ranks are the group.
///
/// Ranks    collective, as the calls of tensor_group are.
/// Threads  one owner; the communicator must outlive it, and nobody else may use it meanwhile.
/// Errors   config_error if rows are to be cut and the communicator lacks what that needs; comm_error from its calls.
template <class Env, class Comm>
class communicator_group final : public tensor_group<Env> {
  using value = typename Env::compute;
  using accumulate = typename Env::accumulate;

 public:
  using typename tensor_group<Env>::space;
  using typename tensor_group<Env>::view;
  using typename tensor_group<Env>::sums;

  static constexpr bool can_cut_rows =
      has_reduce_scatter<Comm, value, reduction::sum, space> && has_ragged_all_gather<Comm, value, space>;

  explicit communicator_group(Comm& world, bool cuts_rows = false)
      : tensor_group<Env>({world.rank(), world.size()}, cuts_rows), world_(world) {
    if (cuts_rows && !can_cut_rows) {
      throw config_error(
          "trireme::parallel::sequence: this communicator has no reduce_scatter or no ragged all_gather; leave "
          "sequence out, or use another communicator");
    }
  }

 private:
  void do_sum(view values) override { world_.all_reduce(values, reduction::sum{}); }
  void do_sum_of_sums(sums values) override { world_.all_reduce(values, reduction::sum{}); }
  void do_max(sums values) override { world_.all_reduce(values, reduction::max{}); }

  void do_reduce_rows([[maybe_unused]] view all) override {
    if constexpr (can_cut_rows) {
      if (all.extent(0) % world_.size() == 0) {
        world_.reduce_scatter(all, reduction::sum{});
      } else {  // uneven rows
        world_.all_reduce(all, reduction::sum{});
      }
    }
  }
  void do_gather_rows([[maybe_unused]] view all, [[maybe_unused]] view own,
                      [[maybe_unused]] share::range here) override {
    if constexpr (can_cut_rows) {
      ops::on<space>::copy(all.rows(here.first, here.count), own);
      counts_.clear();
      for (int place = 0; place < world_.size(); ++place) {
        counts_.push_back(share{place, world_.size()}.of(all.extent(0)).count * all.extent(1));
      }
      world_.all_gather(all, counts_);
    }
  }

  Comm& world_;
  std::vector<std::int64_t> counts_;
};

}  // namespace trireme::parallel

// ---- trireme/parallel/mesh.hpp (goes on)
namespace trireme::parallel {

/// What an axis splits.
enum class axis : std::uint8_t { data, tensor, sequence, pipeline, expert };
inline constexpr int axis_count = 5;

[[nodiscard]] constexpr std::string_view name_of(axis it) noexcept {
  constexpr std::string_view names[axis_count] = {"data", "tensor", "sequence", "pipeline", "expert"};
  return names[static_cast<int>(it)];
}

namespace detail {

template <class T>
struct axis_of {};
template <strategy T>
struct axis_of<T> {
  static constexpr axis value = axis::data;
};
template <>
struct axis_of<tensor> {
  static constexpr axis value = axis::tensor;
};
template <>
struct axis_of<sequence> {
  static constexpr axis value = axis::sequence;
};
template <>
struct axis_of<expert> {
  static constexpr axis value = axis::expert;
};
template <class Schedule>
struct axis_of<pipeline<Schedule>> {
  static constexpr axis value = axis::pipeline;
};
template <>
struct axis_of<any_pipeline> {
  static constexpr axis value = axis::pipeline;
};

/// How many parts an axis asks for; 0: what is left of the world.
template <class Axis>
[[nodiscard]] int ways_of(Axis const& it) {
  if constexpr (requires { it.stages; }) {
    return it.stages;
  } else if constexpr (requires { it.ways; }) {
    return static_cast<int>(it.ways);
  } else {
    return 0;
  }
}

}  // namespace detail

/// What one axis of a mesh may be: a strategy that splits samples (data, zero, one's own), or one of the other axes.
template <class T>
concept mesh_axis = requires {
  detail::axis_of<T>::value;
};

/// Several axes of parallelism, outermost first: neighbouring ranks share the last one. Each axis has a degree, and one
/// of them may leave it out: it gets what is left of the world. Without an axis that splits samples, each rank gets all
/// of them. The order is a value: one type of mesh serves all orders of its axes.
///
/// Ranks    the product of the degrees is the size of the world. The degree of sequence is that of tensor, or 1.
/// Errors   config_error when a trainer is made, if the degrees do not fit the world.
/// @example parallel::mesh{parallel::zero<1>{}, parallel::pipeline<>{.stages = 2}, parallel::tensor{.ways = 2}}
template <mesh_axis... Axes>
struct mesh {
  using policy_category = slot::parallel;

  std::tuple<Axes...> axes;
  std::array<axis, sizeof...(Axes)> order{detail::axis_of<Axes>::value...};  ///< outermost first
  constexpr explicit mesh(Axes... all) : axes(std::move(all)...) {}
  friend bool operator==(mesh const&, mesh const&) = default;

  static constexpr std::string_view name = "mesh";
};

template <mesh_axis... Axes>
[[nodiscard]] std::string to_string(mesh<Axes...> const& m) {
  std::string all;
  for (auto const kind : m.order) {
    auto const add = [&]<class Axis>(Axis const& each) {
      if (detail::axis_of<Axis>::value == kind) all += text(all.empty() ? "" : ", ", to_string(each));
    };
    std::apply([&](auto const&... each) { (add(each), ...); }, m.axes);
  }
  return text("parallel::mesh{", all, "}");
}

namespace detail {

template <class T>
inline constexpr bool is_mesh = false;
template <mesh_axis... Axes>
inline constexpr bool is_mesh<mesh<Axes...>> = true;

template <class Mesh>
struct mesh_traits;
template <mesh_axis... Axes>
struct mesh_traits<mesh<Axes...>> {
  static constexpr bool once = [] {
    int seen[axis_count]{};
    (++seen[static_cast<int>(axis_of<Axes>::value)], ...);
    for (int const times : seen)
      if (times > 1) return false;
    return true;
  }();
  template <axis Kind>
  static constexpr int count = (0 + ... + int{axis_of<Axes>::value == Kind});

  template <class... Rest>
  struct first_data {
    using type = data;
  };
  template <class First, class... Rest>
  struct first_data<First, Rest...>
      : std::conditional_t<axis_of<First>::value == axis::data, std::type_identity<First>, first_data<Rest...>> {};
  using data_axis = typename first_data<Axes...>::type;
};

}  // namespace detail

/// A parallel policy is a mesh, or one axis, which is a mesh of one.
template <class P>
concept parallel_policy = mesh_axis<P> || detail::is_mesh<P>;

namespace detail {

template <class P>
struct mesh_of {
  using type = P;
};
template <mesh_axis P>
struct mesh_of<P> {
  using type = mesh<P>;
};

}  // namespace detail

template <parallel_policy P>
using mesh_of_t = typename detail::mesh_of<P>::type;

/// Whether a policy has an axis of this kind, at whatever degree.
template <parallel_policy P, axis Kind>
inline constexpr bool has_axis = detail::mesh_traits<mesh_of_t<P>>::template count<Kind> > 0;

/// Whether no two axes are of one kind.
template <parallel_policy P>
inline constexpr bool no_axis_twice = detail::mesh_traits<mesh_of_t<P>>::once;

/// The axis that splits samples, `parallel::data` if there is none.
template <parallel_policy P>
using data_axis_t = typename detail::mesh_traits<mesh_of_t<P>>::data_axis;

namespace detail {

/// Calls f(axis) for each axis of a policy.
template <class P, class F>
void for_each_axis(P const& policy, F&& f) {
  if constexpr (is_mesh<P>) {
    std::apply([&](auto const&... each) { (f(each), ...); }, policy.axes);
  } else {
    f(policy);
  }
}

}  // namespace detail

template <parallel_policy P>
[[nodiscard]] data_axis_t<P> data_axis_of(P const& policy) {
  data_axis_t<P> found{};
  detail::for_each_axis(policy, [&]<class Axis>(Axis const& each) {
    if constexpr (std::is_same_v<Axis, data_axis_t<P>>) found = each;
  });
  return found;
}

/// The degrees of a mesh in a world of some size, and where its ranks stand.
class mesh_shape {
 public:
  /// Errors  config_error that names the numbers if they do not fit.
  template <parallel_policy P>
  mesh_shape(P const& policy, int world) : world_(world) {
    int sequence_ways = 1;
    detail::for_each_axis(policy, [&]<class Axis>(Axis const& each) {
      constexpr auto kind = detail::axis_of<Axis>::value;
      if constexpr (kind == axis::sequence) {
        sequence_ways = static_cast<int>(each.ways);
      } else {
        axes_.push_back({kind, detail::ways_of(each)});
      }
    });
    if constexpr (detail::is_mesh<P>) sort_by(policy.order);
    fit();
    auto const tensor_ways = ways(axis::tensor);
    if (sequence_ways != 1 && sequence_ways != 0 && sequence_ways != tensor_ways)
      throw config_error(text("trireme::parallel::sequence: ", sequence_ways, " ways beside tensor's ", tensor_ways,
                              "; sequence is cut as tensor is: leave .ways out, or give 1 to switch it off"));
    cuts_rows_ = sequence_ways != 1 && tensor_ways > 1;
  }

  [[nodiscard]] int world() const noexcept { return world_; }
  /// Whether tensor groups also cut rows.
  [[nodiscard]] bool cuts_rows() const noexcept { return cuts_rows_; }
  [[nodiscard]] int ways(axis kind) const noexcept { return share_of(0, kind).ways; }
  /// Where a rank stands on an axis; {0, 1} if the mesh has no such axis.
  [[nodiscard]] share share_of(int rank, axis kind) const noexcept {
    for (auto it = axes_.rbegin(); it != axes_.rend(); ++it) {
      if (it->kind == kind) return {rank % it->ways, it->ways};
      rank /= it->ways;
    }
    return {};
  }
  /// A number that is the same for ranks which differ on this axis only.
  [[nodiscard]] int group_along(axis kind, int rank) const noexcept {
    int number = 0;
    for (auto const& each : axes_)
      if (each.kind != kind) number = number * each.ways + share_of(rank, each.kind).place;
    return number;
  }
  /// "data=2, tensor=2"
  [[nodiscard]] std::string to_string() const {
    std::string all;
    for (auto const& each : axes_) all += text(all.empty() ? "" : ", ", name_of(each.kind), "=", each.ways);
    return all;
  }

 private:
  struct degree {
    axis kind;
    int ways;
  };

  void sort_by(std::span<axis const> order) {
    std::ranges::sort(axes_, {}, [&](degree const& each) { return std::ranges::find(order, each.kind); });
  }

  void fit() {
    degree* open = nullptr;
    int product = 1;
    for (auto& each : axes_) {
      if (each.ways < 0)
        throw config_error(text("trireme::parallel::mesh: ", name_of(each.kind), " has ", each.ways,
                                " ways; give at least 1, or 0 for what is left of the world"));
      if (each.ways == 0) {
        if (open != nullptr)
          throw config_error(text("trireme::parallel::mesh: ", name_of(open->kind), " and ", name_of(each.kind),
                                  " both ask for what is left of the world; give one of them a degree"));
        open = &each;
      } else {
        product *= each.ways;
      }
    }
    if (open != nullptr && world_ % product == 0) {
      open->ways = world_ / product;
      return;
    }
    if (open == nullptr && product == world_) return;
    auto const given = product == 1 && axes_.empty() ? std::string("no axes") : to_string();
    throw config_error(text("trireme::parallel::mesh: ", given, open != nullptr ? " (0: what is left) takes" : " takes",
                            open != nullptr ? " a multiple of " : " ", product, " ranks, but the world has ", world_,
                            "; change a degree or the number of ranks"));
  }

  int world_;
  bool cuts_rows_ = false;
  std::vector<degree> axes_;
};

}  // namespace trireme::parallel

// ---- trireme/precision/precision.hpp
namespace trireme::precision {

/// Double throughout. For checks: gradients against central differences, golden tensors.
struct fp64 {
  using policy_category = slot::precision;
  using param = double;
  using compute = double;
  using accumulate = double;
  using reduce = double;
  using master = double;
  static constexpr double tolerance = 1e-11;
  static constexpr std::string_view name = "fp64";
  friend bool operator==(fp64 const&, fp64 const&) = default;
};

/// Float throughout: the default.
struct fp32 {
  using policy_category = slot::precision;
  using param = float;
  using compute = float;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 1e-5;
  static constexpr std::string_view name = "fp32";
  friend bool operator==(fp32 const&, fp32 const&) = default;
};

/// Activations and products in bfloat16, sums in float, master weights and moments in float.
///
/// Numerics  products by vdpbf16ps where the CPU has it, else by conversion to float; the two differ by rounding only.
struct bf16 {
  using policy_category = slot::precision;
  using param = bfloat16;
  using compute = bfloat16;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 2e-2;
  static constexpr std::string_view name = "bf16";
  friend bool operator==(bf16 const&, bf16 const&) = default;
};

template <class Policy>
requires requires { Policy::tolerance; }
[[nodiscard]] std::string to_string(Policy const&) { return "precision::" + std::string(Policy::name) + "{}"; }

}  // namespace trireme::precision

// ---- trireme/train/detail/whole_tensors.hpp
#include <map>

// ---- trireme/parallel/layout.hpp
#include <unordered_map>

namespace trireme::parallel {

/// Squares are summed in blocks of this many elements, counted from the start of their tensor. Slices are multiples of
/// it, and a tensor lies within one block of its bucket or begins with one, so that no slice cuts a block: the norm
/// does not depend on how many ranks there are, nor on what shares a bucket.
inline constexpr std::int64_t block_elements = 1024;

/// Where parameters lie in buckets. No numbers, no ranks' memory: a pure function of the parameters, the bucket size,
/// the number of ranks and, where they are given, the units of the model.
class layout {
 public:
  /// One tensor of the model, however many uses it has.
  struct entry {
    parameter_info info;
    std::vector<int> uses;  ///< indices into the list of uses, in their order
    int bucket = 0;
    std::int64_t offset = 0;  ///< of its first element, in the bucket
    [[nodiscard]] std::int64_t size() const noexcept { return info.extents.size(); }
  };
  struct bucket {
    std::vector<int> entries;   ///< in the order of their offsets
    std::int64_t elements = 0;  ///< with padding: a multiple of ranks * block_elements
  };
  /// Uses [first, last) belong together: they are read, and their gradients become final, at one time.
  struct unit {
    int first = 0;
    int last = 0;
    std::vector<int> buckets;  ///< that hold a tensor of it, ascending
  };
  /// A part of an entry that lies in a slice of its bucket.
  struct piece {
    int entry = 0;
    std::int64_t in_bucket = 0;  ///< first element, counted in the bucket
    std::int64_t in_entry = 0;   ///< the same element, counted in the tensor
    std::int64_t count = 0;
  };

  /// @param uses            the parameters in forward order; equal names are uses of one tied tensor.
  /// @param bucket_elements how many elements a bucket should hold; a larger tensor has a bucket of its own.
  /// @param unit_ends       where each unit's uses end, ascending to the number of uses: then no bucket holds tensors
  /// of
  ///                        two units. Empty: buckets are filled regardless of units.
  layout(std::span<parameter_info const> uses, std::int64_t bucket_elements, int ranks,
         std::span<int const> unit_ends = {})
      : ranks_(ranks) {
    collect(uses);
    set_units(unit_ends, static_cast<int>(uses.size()));
    fill(bucket_elements);
    list_buckets();
  }

  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return entries_; }
  [[nodiscard]] std::vector<bucket> const& buckets() const noexcept { return buckets_; }
  /// The units in their order; none if their ends were not given.
  [[nodiscard]] std::vector<unit> const& units() const noexcept { return units_; }
  [[nodiscard]] int entry_of_use(int use) const noexcept { return entry_of_use_[static_cast<std::size_t>(use)]; }
  [[nodiscard]] int bucket_of_use(int use) const noexcept { return at(entry_of_use(use)).bucket; }
  [[nodiscard]] entry const& at(int index) const noexcept { return entries_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] std::int64_t slice_elements(int index) const noexcept {
    return buckets_[static_cast<std::size_t>(index)].elements / ranks_;
  }
  /// Calls f(piece) for every part of a tensor within elements [first, first + count) of a bucket.
  template <class F>
  void for_each_piece(int index, std::int64_t first, std::int64_t count, F&& f) const {
    for (int const e : buckets_[static_cast<std::size_t>(index)].entries) {
      auto const begin = std::max(first, at(e).offset);
      auto const end = std::min(first + count, at(e).offset + at(e).size());
      if (begin < end) f(piece{e, begin, begin - at(e).offset, end - begin});
    }
  }

 private:
  void collect(std::span<parameter_info const> uses) {
    std::unordered_map<std::string, int> index;
    for (int use = 0; use < static_cast<int>(uses.size()); ++use) {
      auto const& info = uses[static_cast<std::size_t>(use)];
      auto const [at, is_new] = index.try_emplace(info.name, static_cast<int>(entries_.size()));
      if (is_new) entries_.push_back({info, {}, 0, 0});
      auto& tensor = entries_[static_cast<std::size_t>(at->second)];
      if (!(tensor.info.extents == info.extents && tensor.info.first == info.first)) {
        throw config_error(text("trireme::exchange: parameter \"", info.name, "\" is used with shapes ",
                                to_string(tensor.info.extents), " and ", to_string(info.extents),
                                "; the uses of a tied tensor have one shape"));
      }
      tensor.uses.push_back(use);
      entry_of_use_.push_back(at->second);
    }
    if (entries_.empty()) throw config_error("trireme::exchange: the model has no parameters");
  }

  void set_units(std::span<int const> ends, int uses) {
    int first = 0;
    for (int const end : ends) {
      if (end < first || end > uses) {
        throw config_error(text("trireme::exchange: a unit's uses end at ", end, " after the one before it ended at ",
                                first, ", of ", uses, " uses; ends ascend to the number of uses"));
      }
      units_.push_back({first, end, {}});
      first = end;
    }
    if (!ends.empty() && first != uses) {
      throw config_error(text("trireme::exchange: the units have ", first, " uses of parameters, but there are ", uses,
                              "; pass the end of every unit"));
    }
  }
  [[nodiscard]] int unit_of(entry const& tensor) const {
    int unit = 0;
    while (unit < static_cast<int>(units_.size()) && units_[static_cast<std::size_t>(unit)].last <= tensor.uses.front())
      ++unit;
    return unit;
  }
  void list_buckets() {
    for (auto& unit : units_) {
      for (int use = unit.first; use < unit.last; ++use) unit.buckets.push_back(bucket_of_use(use));
      std::sort(unit.buckets.begin(), unit.buckets.end());
      unit.buckets.erase(std::unique(unit.buckets.begin(), unit.buckets.end()), unit.buckets.end());
    }
  }

  // Backward finishes the last unit first, so the last parameter opens the first bucket. A tied tensor becomes final
  // late, and its shards must align wherever its uses live: it has a bucket of its own.
  void fill(std::int64_t bucket_elements) {
    bool open = false;
    int open_unit = 0;
    bool open_dealt = false;  // what is dealt out is exchanged over other ranks than the rest
    auto const close = [&] {
      if (open) buckets_.back().elements = rounded(buckets_.back().elements, ranks_ * block_elements);
      open = false;
    };
    // By the first use of a tied tensor: it is final when backward has reached that one.
    for (int e = static_cast<int>(entries_.size()) - 1; e >= 0; --e) {
      auto& tensor = entries_[static_cast<std::size_t>(e)];
      bool const alone = tensor.uses.size() > 1 || tensor.info.tied;
      int const unit = unit_of(tensor);
      if (alone || !open || unit != open_unit || tensor.info.dealt != open_dealt ||
          place(buckets_.back().elements, tensor.size()) + tensor.size() > bucket_elements) {
        close();
        buckets_.emplace_back();
        open = true;
        open_unit = unit;
        open_dealt = tensor.info.dealt;
      }
      auto& target = buckets_.back();
      tensor.bucket = static_cast<int>(buckets_.size()) - 1;
      tensor.offset = place(target.elements, tensor.size());
      target.entries.push_back(e);
      target.elements = tensor.offset + tensor.size();
      if (alone) close();
    }
    close();
  }

  static constexpr std::int64_t alignment = 16;  // elements: a cache line of floats
  [[nodiscard]] static constexpr std::int64_t rounded(std::int64_t elements, std::int64_t to) noexcept {
    return (elements + to - 1) / to * to;
  }
  // Where a tensor may begin: at a cache line, and at a block if it would cross the end of one.
  [[nodiscard]] static constexpr std::int64_t place(std::int64_t after, std::int64_t size) noexcept {
    auto const at = rounded(after, alignment);
    bool const crosses = at / block_elements != (at + size - 1) / block_elements;
    return crosses ? rounded(at, block_elements) : at;
  }

  int ranks_;
  std::vector<entry> entries_;
  std::vector<bucket> buckets_;
  std::vector<unit> units_;
  std::vector<int> entry_of_use_;
};

}  // namespace trireme::parallel

// ---- trireme/train/detail/whole_tensors.hpp (goes on)
namespace trireme::detail {

struct named_shape {
  std::string name;
  shape extents;
};

/// Collective. The tensors that any rank has a part of, each once, with their whole extents, in the order of the ranks.
template <class Comm>
[[nodiscard]] std::vector<named_shape> tensors_of_everyone(Comm& world, parallel::layout const& own) {
  std::string names;
  std::vector<std::int64_t> numbers;  // of each tensor: the letters of its name, its rank, its extents
  for (auto const& entry : own.entries()) {
    auto const& whole = entry.info.whole_extents();
    names += entry.info.name;
    numbers.push_back(static_cast<std::int64_t>(entry.info.name.size()));
    numbers.push_back(whole.rank());
    numbers.insert(numbers.end(), whole.extents().begin(), whole.extents().end());
  }
  std::vector<named_shape> all;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::int64_t sizes[2] = {static_cast<std::int64_t>(names.size()), static_cast<std::int64_t>(numbers.size())};
    world.broadcast(tensor_view<std::int64_t>(sizes, shape{2}), rank);
    std::vector<std::uint8_t> letters(static_cast<std::size_t>(sizes[0]));
    std::vector<std::int64_t> theirs(static_cast<std::size_t>(sizes[1]));
    if (rank == world.rank()) {
      std::copy(names.begin(), names.end(), letters.begin());
      theirs = numbers;
    }
    world.broadcast(tensor_view<std::uint8_t>(letters), rank);
    world.broadcast(tensor_view<std::int64_t>(theirs), rank);
    auto letter = letters.begin();
    for (auto number = theirs.begin(); number != theirs.end();) {
      named_shape each{{letter, letter + *number}, {}};
      letter += *number++;
      for (auto left = *number++; left > 0; --left) each.extents.push_back(*number++);
      bool const known = std::ranges::any_of(all, [&](auto const& other) { return other.name == each.name; });
      if (!known) all.push_back(std::move(each));
    }
  }
  return all;
}

/// Collective over everyone. Calls f(name, extents, values) with the whole master value of each tensor of the model, on
/// every rank in the same order, whatever part of it lies here.
template <class Exchange, class F>
void for_each_whole_tensor(Exchange const& exchange, F&& f) {
  using space = typename Exchange::space;
  auto& world = exchange.everyone();
  auto const& plan = exchange.plan();
  std::map<std::string, std::vector<std::pair<int, parallel::layout::piece>>> here;  // what this rank answers for
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    auto const [first, count] = exchange.accounted_range(bucket);
    plan.for_each_piece(bucket, first, count, [&](parallel::layout::piece const& piece) {
      auto const& info = plan.at(piece.entry).info;
      if (info.answers) here[info.name].emplace_back(bucket, piece);
    });
  }
  for (auto const& tensor : tensors_of_everyone(world, plan)) {
    std::vector<double> sum(static_cast<std::size_t>(tensor.extents.size()));  // zero where others answer
    for (auto const& [bucket, piece] : here[tensor.name]) {
      std::vector<typename Exchange::master_element> values(static_cast<std::size_t>(piece.count));
      ops::on<space>::download(std::span(values), exchange.master_of(bucket, piece));
      for_each_run(plan.at(piece.entry).info, piece.in_entry, piece.count,
                   [&, begin = piece.in_entry](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
                     std::copy_n(values.begin() + (in_part - begin), n, sum.begin() + in_whole);
                   });
    }
    world.all_reduce(tensor_view<double>(sum), reduction::sum{});
    std::vector<float> const values(sum.begin(), sum.end());
    f(tensor.name, tensor.extents, std::span<float const>(values));
  }
}

}  // namespace trireme::detail

// ---- trireme/observe/timeline.hpp
#include <deque>

// ---- trireme/core/trace_event.hpp
namespace trireme {

/// Something that took time on one rank. The names belong to somebody who outlives it.
struct trace_event {
  std::string_view name;
  std::string_view category;
  std::uint64_t begin_ns = 0;  ///< of the steady clock, which all processes of a machine share
  std::uint64_t end_ns = 0;
  std::uint32_t lane = 0;  ///< which row of the rank it is drawn in
};

/// The events of one rank, and how to label its rows.
struct trace_process {
  int rank = 0;
  std::string name;                ///< "rank 0"
  std::vector<std::string> lanes;  ///< "compute", "exchange"
  std::span<trace_event const> events;
};

}  // namespace trireme

// ---- trireme/observe/timeline.hpp (goes on)
namespace trireme::observe {

/// What one rank did when: spans of time with a name, in lanes.
///
/// Recording takes a place in a block of fixed size and allocates nothing; when the block is full, further events are
/// counted and left out. A timeline of capacity 0 is off: its spans do not even read the clock.
///
/// Bytes    48 per event of capacity.
/// Threads  record(), span and now() from any number of threads; everything else while none of them records.
class timeline {
 public:
  /// Records from its construction to its destruction.
  class [[nodiscard]] span {
   public:
    span(timeline& to, std::string_view name, std::string_view category = {}, std::uint32_t lane = 0) noexcept
        : to_(to.capacity() == 0 ? nullptr : &to), event_{name, category, to_ == nullptr ? 0 : now(), 0, lane} {}
    span(span const&) = delete;
    span& operator=(span const&) = delete;
    ~span() {
      if (to_ == nullptr) return;
      event_.end_ns = now();
      to_->record(event_);
    }

   private:
    timeline* to_;
    trace_event event_;
  };

  timeline() = default;
  explicit timeline(int rank, std::size_t capacity = std::size_t{1} << 16,
                    std::vector<std::string> lanes = {"compute", "exchange"})
      : rank_(rank), lanes_(std::move(lanes)), events_(capacity) {}
  timeline(timeline const&) = delete;
  timeline& operator=(timeline const&) = delete;

  /// Nanoseconds of the steady clock.
  [[nodiscard]] static std::uint64_t now() noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }

  /// Adds an event. Its names must outlive the timeline: literals, or what intern() returned.
  void record(trace_event const& what) noexcept {
    auto const place = next_.fetch_add(1, std::memory_order_relaxed);
    if (place < events_.size()) events_[place] = what;
  }

  /// A copy of a name that lives as long as the timeline; the same copy for the same name. Allocates: call it before
  /// the steps begin.
  [[nodiscard]] std::string_view intern(std::string_view name) {
    auto const known = std::find(names_.begin(), names_.end(), name);
    return known != names_.end() ? *known : names_.emplace_back(name);
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return events_.size(); }
  /// How many events found no place.
  [[nodiscard]] std::size_t dropped() const noexcept { return next_.load() - events().size(); }
  /// In the order in which they ended.
  [[nodiscard]] std::span<trace_event const> events() const noexcept {
    return {events_.data(), std::min(next_.load(), events_.size())};
  }
  /// Forgets all events and keeps the memory.
  void clear() noexcept { next_ = 0; }

  /// What a trace file is written from; borrows the events.
  [[nodiscard]] trace_process process() const { return {rank_, text("rank ", rank_), lanes_, events()}; }

 private:
  int rank_ = 0;
  std::vector<std::string> lanes_;
  std::vector<trace_event> events_;
  std::deque<std::string> names_;  // a deque, because growing it moves no name
  std::atomic<std::size_t> next_{0};
};

/// The timelines of several ranks side by side, for formats::chrome_trace::write.
[[nodiscard]] inline std::vector<trace_process> merge(std::span<timeline const* const> ranks) {
  std::vector<trace_process> out;
  for (auto const* each : ranks) out.push_back(each->process());
  std::sort(out.begin(), out.end(), [](auto const& a, auto const& b) { return a.rank < b.rank; });
  return out;
}

}  // namespace trireme::observe

// ---- trireme/observe/detail/timeline_pack.hpp
namespace trireme::observe {

namespace detail {

inline void put_number(std::vector<std::byte>& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<std::byte>(value >> shift & 0xff));
}
inline void put_text(std::vector<std::byte>& out, std::string_view content) {
  put_number(out, content.size());
  auto const bytes = std::as_bytes(std::span(content));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// Takes numbers and texts from the front; every length is checked against what is left.
class unpacker {
 public:
  explicit unpacker(std::span<std::byte const> bytes) : left_(bytes) {}

  [[nodiscard]] std::uint64_t number() {
    std::uint64_t out = 0;
    auto const bytes = take(8);
    for (std::size_t i = 0; i < 8; ++i) out |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return out;
  }
  [[nodiscard]] std::string_view words() {
    auto const bytes = take(number());
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
  }
  /// A number of things that take at least `each` bytes.
  [[nodiscard]] std::size_t count(std::size_t each) {
    auto const out = number();
    if (out > left_.size() / each) fail();
    return static_cast<std::size_t>(out);
  }
  [[noreturn]] static void fail() { throw config_error("trireme::observe::unpack: these bytes are no timeline"); }

 private:
  [[nodiscard]] std::span<std::byte const> take(std::uint64_t size) {
    if (size > left_.size()) fail();
    auto const out = left_.first(static_cast<std::size_t>(size));
    left_ = left_.subspan(out.size());
    return out;
  }
  std::span<std::byte const> left_;
};

}  // namespace detail

/// A timeline as bytes, to send to the rank that writes the trace. Times are only comparable on one machine.
[[nodiscard]] inline std::vector<std::byte> pack(timeline const& from) {
  auto const process = from.process();
  std::vector<std::string_view> names;
  auto const index = [&](std::string_view name) {
    auto const place = static_cast<std::uint64_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (place == names.size()) names.push_back(name);
    return place;
  };
  std::vector<std::byte> events;
  for (auto const& each : process.events) {
    for (auto const value :
         {index(each.name), index(each.category), each.begin_ns, each.end_ns, std::uint64_t{each.lane}}) {
      detail::put_number(events, value);
    }
  }
  std::vector<std::byte> out;
  detail::put_number(out, static_cast<std::uint64_t>(process.rank));
  detail::put_number(out, process.lanes.size());
  for (auto const& lane : process.lanes) detail::put_text(out, lane);
  detail::put_number(out, names.size());
  for (auto const name : names) detail::put_text(out, name);
  detail::put_number(out, process.events.size());
  out.insert(out.end(), events.begin(), events.end());
  return out;
}

/// A rank's timeline that arrived as bytes; owns what the process() it gives out points to.
class unpacked_timeline {
 public:
  explicit unpacked_timeline(std::span<std::byte const> bytes) {
    detail::unpacker from(bytes);
    process_.rank = static_cast<int>(from.number());
    process_.name = text("rank ", process_.rank);
    for (auto lanes = from.count(8); lanes > 0; --lanes) process_.lanes.emplace_back(from.words());
    for (auto names = from.count(8); names > 0; --names) names_.emplace_back(from.words());
    for (auto events = from.count(40); events > 0; --events) {
      auto const name = from.number();
      auto const category = from.number();
      auto const begin = from.number();
      auto const end = from.number();
      auto const lane = from.number();
      if (name >= names_.size() || category >= names_.size()) detail::unpacker::fail();
      events_.push_back({names_[static_cast<std::size_t>(name)], names_[static_cast<std::size_t>(category)], begin, end,
                         static_cast<std::uint32_t>(lane)});
    }
  }
  unpacked_timeline(unpacked_timeline&&) noexcept = default;  // neither names nor events move in memory

  [[nodiscard]] trace_process process() const {
    auto out = process_;
    out.events = events_;
    return out;
  }

 private:
  trace_process process_;
  std::deque<std::string> names_;
  std::vector<trace_event> events_;
};

/// Reads what pack() made. Throws config_error if it is something else.
[[nodiscard]] inline unpacked_timeline unpack(std::span<std::byte const> bytes) { return unpacked_timeline(bytes); }

}  // namespace trireme::observe

// ---- trireme/parallel/detail/buffer_pool.hpp
namespace trireme::parallel::detail {

/// Buffers that buckets borrow. One serves every bucket of its size class (up to a power of two), so that there are no
/// more of them than are borrowed at one time.
template <class Buffer>
class buffer_pool {
 public:
  explicit buffer_pool(layout const& plan) {
    for (auto const& bucket : plan.buckets()) {
      auto& largest = elements_[class_of(bucket.elements)];
      largest = std::max(largest, bucket.elements);
    }
  }
  /// A buffer for so many elements: one that was given back, or make(elements of its class).
  template <class Make>
  [[nodiscard]] std::unique_ptr<Buffer> take(std::int64_t elements, Make&& make) {
    auto const which = class_of(elements);
    auto& free = free_[which];
    if (free.empty()) {
      ++made_[which];
      return make(elements_[which]);
    }
    auto buffer = std::move(free.back());
    free.pop_back();
    return buffer;
  }
  void give(std::int64_t elements, std::unique_ptr<Buffer> buffer) {
    free_[class_of(elements)].push_back(std::move(buffer));
  }
  /// Elements of all buffers made so far.
  [[nodiscard]] std::int64_t elements() const noexcept {
    std::int64_t sum = 0;
    for (std::size_t which = 0; which < classes; ++which) sum += made_[which] * elements_[which];
    return sum;
  }

 private:
  static constexpr std::size_t classes = 65;
  static std::size_t class_of(std::int64_t elements) noexcept {
    return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(elements) - 1));
  }
  std::array<std::int64_t, classes> elements_{};  // of the largest bucket in each class
  std::array<std::int64_t, classes> made_{};
  std::array<std::vector<std::unique_ptr<Buffer>>, classes> free_;
};

}  // namespace trireme::parallel::detail

// ---- trireme/parallel/detail/partial_sums.hpp
namespace trireme::parallel::detail {

/// Terms summed in the fixed tree over [0, leaves), one after the other: at most log2(leaves) + 1 buffers at a time.
/// Null is the sum of nothing.
template <class Buffer>
class partial_sums {
  using term = std::unique_ptr<Buffer>;

 public:
  /// Calls give(buffer) for what an unfinished sum holds.
  template <class Give>
  void clear(Give&& give) {
    for (auto& sum : sums_) {
      if (sum != nullptr) give(std::move(sum));
    }
    sums_.clear();
    next_ = 0;
  }
  /// Leaf `place` of so many; the leaves before it that were not added are nothing.
  /// @param merge  merge(left, right): left += right, which is not needed any more.
  template <class Merge>
  void add(std::int64_t leaves, std::int64_t place, term leaf, Merge&& merge) {
    while (next_ < place) add_next(leaves, nullptr, merge);
    add_next(leaves, std::move(leaf), merge);
  }
  /// The sum; null if no leaf was added.
  template <class Merge>
  [[nodiscard]] term take(std::int64_t leaves, Merge&& merge) {
    while (next_ < leaves) add_next(leaves, nullptr, merge);
    auto sum = std::move(sums_.back());
    sums_.clear();
    next_ = 0;
    return sum;
  }

 private:
  template <class Merge>
  void add_next(std::int64_t leaves, term leaf, Merge& merge) {
    sums_.push_back(std::move(leaf));
    for (int merges = tree_merges(leaves, next_++); merges > 0; --merges) {
      auto right = std::move(sums_.back());
      sums_.pop_back();
      if (sums_.back() == nullptr) {
        sums_.back() = std::move(right);
      } else if (right != nullptr) {
        merge(*sums_.back(), std::move(right));
      }
    }
  }

  std::vector<term> sums_;
  std::int64_t next_ = 0;
};

}  // namespace trireme::parallel::detail

// ---- trireme/parallel/detail/transport.hpp
namespace trireme::parallel::detail {

/// What all_gather_async of T gives; nothing where it is not used, for a communicator may lack it.
template <class Comm, class T, class Space, bool Used>
struct gather_request {
  struct type {};
};
template <class Comm, class T, class Space>
struct gather_request<Comm, T, Space, true> {
  using type = decltype(std::declval<Comm&>().all_gather_async(tensor_view<T, Space>{}));
};
template <class Comm, class T, class Space, bool Used>
using gather_request_t = typename gather_request<Comm, T, Space, Used>::type;

/// How a bucket's gradient becomes the sum over all ranks: begin() after the last backward, then test() or wait().
///
/// After wait() the bucket holds the sum: all of it where gradients are replicated afterwards, this rank's slice where
/// the optimizer's state is sharded. A compressor codes slice by slice, so that both give the same numbers. One
/// transport may serve buckets of several sizes, one after the other, unless its compressor keeps a residual.
template <class Env, class Comm, class Strategy, class Compressor>
class transport {
  using space = typename Env::space;
  using gradient = typename Env::gradient;
  using state = compressor_state<Compressor, Env>;
  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool summable = summable_compressor<Compressor, Env>;
  static constexpr bool identity = lossless_identity<Compressor> && std::is_same_v<gradient, typename Env::reduce>;

  template <bool Summable, class State>
  struct payload_of {
    using type = std::byte;
  };
  template <class State>
  struct payload_of<true, State> {
    using type = typename State::wire;
  };
  using payload_element = typename payload_of<summable, state>::type;
  using request = decltype(std::declval<Comm&>().all_gather_async(tensor_view<std::uint8_t, space>{}));

 public:
  /// Whether sums can be formed in a tree over the ranks.
  static constexpr bool has_tree = identity && [] {
    if constexpr (sharded) {
      return has_reduce_scatter<Comm, gradient, reduction::pairwise, space>;
    } else {
      return has_all_reduce<Comm, gradient, reduction::pairwise, space>;
    }
  }();

  /// @param elements  of the largest bucket.
  transport(Compressor const& compressor, std::int64_t elements, Comm& world)
      : ranks_(world.size()), rank_(world.rank()), compressor_(compressor, elements) {
    if constexpr (identity) return;
    if constexpr (summable) {
      if constexpr (!identity) sent_ = message_tensor<payload_element, space>(world, shape{elements});
    } else {
      auto const bytes = compressor_.payload_bytes(elements / ranks_);
      sent_ = message_tensor<payload_element, space>(world, shape{ranks_ * bytes});
      received_ = message_tensor<payload_element, space>(world, shape{ranks_ * bytes * (sharded ? 1 : ranks_)});
    }
  }

  void begin(Comm& world, tensor_view<gradient, space> bucket, [[maybe_unused]] bool in_a_tree) {
    bucket_ = bucket;
    slice_ = bucket.size() / ranks_;
    if constexpr (has_tree) {
      if (in_a_tree) {
        pending_.emplace(reduce(world, bucket_, reduction::pairwise{}));
        return;
      }
    }
    if constexpr (identity) {
      pending_.emplace(reduce(world, bucket_, reduction::sum{}));
    } else if constexpr (summable) {
      for_each_slice([&](int, auto piece, std::int64_t first) {
        compressor_.encode(piece, sent_.view().flat(first, slice_), first);
      });
      pending_.emplace(reduce(world, sent_.view().flat(0, bucket.size()), reduction::sum{}));
    } else {
      begin_gather(world);
    }
  }

  /// Makes progress without waiting. @returns whether the bucket is done but for decoding.
  [[nodiscard]] bool test() { return !pending_ || pending_->test(); }

  void wait() {
    if (!pending_) return;
    pending_->wait();
    pending_.reset();
    if constexpr (!identity) decode();
  }

  [[nodiscard]] state& compressor() noexcept { return compressor_; }
  /// Bytes of payloads.
  [[nodiscard]] std::size_t bytes() const noexcept { return sent_.view().bytes() + received_.view().bytes(); }

 private:
  template <class F>
  void for_each_slice(F&& f) {
    for (int owner = 0; owner < ranks_; ++owner) f(owner, bucket_.flat(owner * slice_, slice_), owner * slice_);
  }
  template <class T, class Op>
  request reduce(Comm& world, tensor_view<T, space> values, Op op) {
    if constexpr (sharded) {
      return world.reduce_scatter_async(values, op);
    } else {
      return world.all_reduce_async(values, op);
    }
  }
  // Sharded: slice by slice to its owner. Replicated: everybody's payload to everybody.
  void begin_gather(Comm& world) {
    auto const bytes = compressor_.payload_bytes(slice_);
    auto const to_all = sent_.view().flat(0, sharded ? ranks_ * bytes : 0);
    auto const from_all = received_.view().flat(0, ranks_ * bytes * (sharded ? 1 : ranks_));
    auto const own = sharded ? to_all : from_all.flat(rank_ * ranks_ * bytes, ranks_ * bytes);
    for_each_slice([&](int owner, auto piece, std::int64_t first) {
      compressor_.encode(piece, own.flat(owner * bytes, bytes), first);
    });
    if constexpr (sharded) {
      pending_.emplace(world.all_to_all_async(as_bytes<std::uint8_t const>(to_all), as_bytes<std::uint8_t>(from_all)));
    } else {
      pending_.emplace(world.all_gather_async(as_bytes<std::uint8_t>(from_all)));
    }
  }
  void decode() {
    if constexpr (summable) {
      if constexpr (sharded) {
        compressor_.decode(sent_.view().flat(rank_ * slice_, slice_), bucket_.flat(rank_ * slice_, slice_));
      } else {
        compressor_.decode(sent_.view().flat(0, bucket_.size()), bucket_);
      }
    } else {
      auto const bytes = compressor_.payload_bytes(slice_);
      for_each_slice([&](int owner, auto piece, std::int64_t) {
        if (sharded && owner != rank_) return;
        for (int from = 0; from < ranks_; ++from) {  // in rank order: equal bits everywhere
          auto const at = sharded ? from * bytes : (from * ranks_ + owner) * bytes;
          compressor_.decode(received_.view().flat(at, bytes), piece, from > 0);
        }
      });
    }
  }
  template <class Byte, class T>
  static tensor_view<Byte, space> as_bytes(tensor_view<T, space> view) {
    return {reinterpret_cast<Byte*>(view.address()), shape{static_cast<std::int64_t>(view.bytes())}};
  }

  tensor_view<gradient, space> bucket_;
  std::int64_t slice_ = 0;
  int ranks_;
  int rank_;
  state compressor_;
  trireme::tensor<payload_element, space> sent_;
  trireme::tensor<payload_element, space> received_;
  std::optional<request> pending_;
};

}  // namespace trireme::parallel::detail

// ---- trireme/parallel/exchange_report.hpp
namespace trireme {

/// What is known once all gradients are exchanged; equal on every rank.
struct exchange_result {
  double norm = 0;         ///< global norm of the reduced gradient (NaN if it was not asked for)
  bool finite = true;      ///< whether every gradient of every rank is finite
  std::int64_t votes = 0;  ///< sum of what the ranks passed to finish()
};

/// How much of the exchange happened while backward was still running, in seconds since the exchange was made.
struct exchange_times {
  double covered = 0;
  double exposed = 0;
  [[nodiscard]] double hidden() const noexcept { return covered + exposed > 0 ? covered / (covered + exposed) : 0; }
};

/// Bytes of tensors that an exchange has allocated on this rank.
struct exchange_memory {
  std::int64_t parameters = 0;  ///< values that layers read: all, or this rank's slices
  std::int64_t masters = 0;     ///< where the optimizer keeps other numbers than layers read
  std::int64_t gradients = 0;   ///< that are always here: all, or this rank's slices
  std::int64_t buffers = 0;     ///< gathered values, gradients on their way, payloads of compressors
  [[nodiscard]] std::int64_t total() const noexcept { return parameters + masters + gradients + buffers; }
  friend bool operator==(exchange_memory const&, exchange_memory const&) = default;
};

}  // namespace trireme

// ---- trireme/parallel/detail/gradient_store.hpp (goes on)
namespace trireme::parallel::detail {

/// The gradients of all buckets, from zero to the sum over all ranks.
///
/// Resident gradients have their memory for good, and a bucket is reduced once a step. Pooled ones (sharded, or summed
/// in a tree) borrow it for each micro-batch, from open() until they are reduced or have become a term of the tree.
/// Each use of a tied tensor has a lane, a gradient the size of its bucket. Resident lanes are added and then reduced;
/// pooled ones are reduced by themselves and then added.
template <class Env, class Comm, strategy Strategy, class Compressor>
class gradient_store {
 public:
  using space = typename Env::space;
  using element = typename Env::gradient;
  using view = tensor_view<element, space>;
  using kernels = ops::on<space>;
  using bucket_transport = transport<Env, Comm, Strategy, Compressor>;
  static constexpr bool sharded = Strategy::gradients == distribution::shard;

  /// @param direct  sums are formed by who reads them: nothing is sent.
  gradient_store(layout const& plan, std::vector<parameter<Env>*> const& uses, Comm& world,
                 Compressor const& compressor, bool in_a_tree, bool direct)
      : plan_(plan),
        uses_(uses),
        world_(world),
        compressor_(compressor),
        pool_(plan),
        in_a_tree_(in_a_tree),
        direct_(direct),
        in_order_(plan.units().empty()) {
    first_lane_.reserve(plan.buckets().size());
    for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
      first_lane_.push_back(static_cast<int>(lanes_.size()));
      auto const& entries = plan.buckets()[static_cast<std::size_t>(b)].entries;
      auto const ways = plan.at(entries.front()).uses.size();  // several only where the tensor is alone
      for (std::size_t which = 0; which < ways; ++which) {
        auto& it = lanes_.emplace_back();
        it.bucket = b;
        it.sent = pooled() || which == 0;
        for (int const e : entries) it.uses.push_back(plan.at(e).uses[which]);
        it.reports = static_cast<int>(it.uses.size()) * (pooled() || which > 0 ? 1 : static_cast<int>(ways));
        if (!pooled()) open(it);
        if constexpr (sharded) {
          it.shard = trireme::tensor<element, space>(shape{plan.slice_elements(b)});
          kernels::fill(it.shard.view(), 0.0);
        }
      }
    }
    lane_of_use_.resize(uses_count());
    for (int l = 0; l < static_cast<int>(lanes_.size()); ++l) {
      for (int const use : lanes_[static_cast<std::size_t>(l)].uses) {
        auto const& it = lanes_[static_cast<std::size_t>(l)];
        lane_of_use_[static_cast<std::size_t>(use)] = it.sent ? l : first_lane_[static_cast<std::size_t>(it.bucket)];
      }
    }
  }
  gradient_store(gradient_store const&) = delete;
  gradient_store& operator=(gradient_store const&) = delete;

  [[nodiscard]] bool pooled() const noexcept { return sharded || in_a_tree_; }
  [[nodiscard]] exchange_times& times() noexcept { return times_; }
  [[nodiscard]] exchange_times const& times() const noexcept { return times_; }
  [[nodiscard]] bool lost_finiteness() const noexcept { return lost_finiteness_; }
  void record(observe::timeline& timeline) {
    timeline_ = &timeline;
    for (auto& it : lanes_) it.label = timeline.intern(text("bucket ", it.bucket));
  }
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  /// Starts a step.
  /// @param leaves  logical micro-batches of this rank, the terms of its part of the tree.
  /// @param places  which of them it runs, ascending; the others add nothing. Its first one is at `first`.
  /// @param rounds  the most micro-batches that any rank runs: lanes are reported so often.
  void begin(std::int64_t leaves, std::span<std::int64_t const> places, std::int64_t first, std::int64_t rounds) {
    leaves_ = leaves;
    rounds_ = rounds;
    places_.clear();
    for (auto const place : places) places_.push_back(place - first);
    for (auto& it : lanes_) {
      it.missing = it.reports;
      it.rounds = 0;
      if (!pooled()) {
        kernels::fill(whole(it), 0.0);
        continue;
      }
      if (it.flying) it.open->wire->wait();
      it.flying = false;
      close(it);
      it.sums.clear([&](std::unique_ptr<buffer> sum) { pool_.give(elements(it), std::move(sum)); });
    }
    in_flight_.clear();
    next_ = 0;
    lost_finiteness_ = false;
  }

  /// Gives the gradients of a unit memory, zero, for one micro-batch. Meanwhile only the unit before it is reduced.
  void open_unit(int unit) {
    if (!pooled()) return;
    make_room();
    auto const& [first, last, buckets] = plan_.units()[static_cast<std::size_t>(unit)];
    for (int use = first; use < last; ++use) open(lane_of(use));
  }
  /// The gradient of one use, where the caller writes it himself (parameters in his memory).
  [[nodiscard]] view open_use(int use) {
    auto& it = lane_of(use);
    if (it.open == nullptr) {
      make_room();
      open(it);
    }
    auto const& entry = plan_.at(plan_.entry_of_use(use));
    return whole(it).flat(entry.offset, entry.size());
  }

  /// The gradient of one use is final for this micro-batch.
  void ready(int use) {
    auto const start = now();
    auto& it = lane_of(use);
    --it.missing;
    if (in_order_) {
      start_in_order();
    } else if (pooled()) {
      if (it.missing == 0) complete(it);
    } else {
      start_in_order();
    }
    progress();
    if constexpr (!progresses_alone<Comm>) times_.covered += now() - start;
  }

  /// Starts what has not been reported (a rank without samples has reported nothing) and waits for everything.
  void finish(double start) {
    if (!pooled() || in_order_) {
      for (auto& it : lanes_) it.missing = 0;
      start_in_order();
    }
    while (!in_flight_.empty()) collect(*in_flight_.front(), start);
    if (!pooled()) return;
    for (std::size_t l = 1; l < lanes_.size(); ++l) {  // the uses of a tied tensor, in their order
      auto& it = lanes_[l];
      auto& first = first_lane(it.bucket);
      if (&first == &it) continue;
      auto const sum = sharded ? first.shard.view() : whole(first);
      kernels::add(sum, tensor_view<element const, space>(sharded ? it.shard.view() : whole(it)));
    }
  }

  /// After finish(): the sum over all ranks of elements [first, first + count) of a bucket, of the owned slice where
  /// the optimizer's state is sharded.
  [[nodiscard]] view reduced(int bucket, std::int64_t first, std::int64_t count) const {
    auto const& it = first_lane(bucket);
    if constexpr (sharded) {
      return it.shard.view().flat(first - world_.rank() * plan_.slice_elements(bucket), count);
    } else {
      return whole(it).flat(first, count);
    }
  }
  /// All of a bucket's resident gradient.
  [[nodiscard]] view resident(int bucket) const { return whole(first_lane(bucket)); }
  /// The compressor's state of a bucket whose gradient is resident; null where it is pooled.
  [[nodiscard]] compressor_state<Compressor, Env>* compressor(int bucket) const {
    if (pooled()) return nullptr;
    return &first_lane(bucket).open->wire->compressor();
  }
  void record_bucket(int bucket) { record_lane(first_lane(bucket)); }

  /// Bytes of gradients that are always here, and of what is borrowed: buffers, and payloads of compressors.
  [[nodiscard]] std::int64_t kept_bytes() const {
    std::int64_t sum = 0;
    for (auto const& it : lanes_) {
      sum += static_cast<std::int64_t>(it.shard.view().bytes());
      if (!pooled()) sum += static_cast<std::int64_t>(it.open->values.view().bytes());
    }
    return sum;
  }
  [[nodiscard]] std::int64_t buffer_bytes() const noexcept {
    return (pooled() ? pool_.elements() * static_cast<std::int64_t>(sizeof(element)) : 0) + payload_bytes_;
  }

 private:
  struct buffer {
    trireme::tensor<element, space> values;
    std::optional<bucket_transport> wire;
  };
  struct lane {
    int bucket = 0;
    bool sent = true;       // reduced by itself
    std::vector<int> uses;  // whose gradients lie here
    int reports = 0;        // calls of ready() that complete it
    int missing = 0;
    std::unique_ptr<buffer> open;
    partial_sums<buffer> sums;              // of the tree over this rank's micro-batches
    trireme::tensor<element, space> shard;  // the own slice of what has been reduced in this step
    std::int64_t rounds = 0;                // micro-batches reported, or (sharded) reduced, in this step
    bool flying = false;
    std::int64_t epoch = 0;  // open_unit() calls before it was sent
    double start_time = 0;
    double done_time = 0;
    std::uint64_t start_ns = 0;
    std::string_view label;
  };

  [[nodiscard]] std::size_t uses_count() const {
    std::size_t count = 0;
    for (auto const& entry : plan_.entries()) count += entry.uses.size();
    return count;
  }
  [[nodiscard]] lane& first_lane(int bucket) {
    return lanes_[static_cast<std::size_t>(first_lane_[static_cast<std::size_t>(bucket)])];
  }
  [[nodiscard]] lane const& first_lane(int bucket) const {
    return lanes_[static_cast<std::size_t>(first_lane_[static_cast<std::size_t>(bucket)])];
  }
  [[nodiscard]] lane& lane_of(int use) {
    return lanes_[static_cast<std::size_t>(lane_of_use_[static_cast<std::size_t>(use)])];
  }
  [[nodiscard]] std::int64_t elements(lane const& it) const {
    return plan_.buckets()[static_cast<std::size_t>(it.bucket)].elements;
  }
  [[nodiscard]] view whole(lane const& it) const { return it.open->values.view().flat(0, elements(it)); }

  void open(lane& it) {
    if (it.flying) collect(it, now());
    if (it.open != nullptr) return;
    it.open = pool_.take(elements(it), [&](std::int64_t n) {
      auto made = std::make_unique<buffer>();
      made->values = message_tensor<element, space>(world_, shape{pooled() ? n : elements(it)});
      if (it.sent) {
        made->wire.emplace(compressor_, made->values.view().size(), world_);
        payload_bytes_ += static_cast<std::int64_t>(made->wire->bytes());
      }
      return made;
    });
    kernels::fill(whole(it), 0.0);
    bind(it, whole(it));
  }
  void close(lane& it) {
    if (it.open == nullptr) return;
    bind(it, {});
    pool_.give(elements(it), std::move(it.open));
  }
  void bind(lane const& it, view values) {
    if (uses_.empty()) return;
    for (int const use : it.uses) {
      auto const& entry = plan_.at(plan_.entry_of_use(use));
      uses_[static_cast<std::size_t>(use)]->gradient =
          values.empty() ? view{} : values.flat(entry.offset, entry.size()).reshaped(entry.info.extents);
    }
  }

  // Waits for what was sent before the last unit was opened.
  void make_room() {
    while (!in_flight_.empty() && in_flight_.front()->epoch < epoch_) {
      auto const start = now();
      collect(*in_flight_.front(), start);
      times_.exposed += now() - start;
    }
    ++epoch_;
  }

  // In the order of buckets, so that every rank starts the same collectives in the same order.
  void start_in_order() {
    for (; next_ < lanes_.size() && (lanes_[next_].missing == 0 || !lanes_[next_].sent); ++next_) {
      auto& it = lanes_[next_];
      if (!it.sent) continue;
      if (it.open == nullptr) open(it);
      add_uses(next_);
      send(it);
    }
  }
  void add_uses(std::size_t first) {
    for (auto l = first + 1; l < lanes_.size() && !lanes_[l].sent; ++l) {
      kernels::add(whole(lanes_[first]), tensor_view<element const, space>(whole(lanes_[l])));
    }
  }
  // One micro-batch of a pooled lane, or nothing where it was not opened.
  void complete(lane& it) {
    it.missing = it.reports;
    if (in_a_tree_) {
      auto const n = elements(it);
      auto const merge = [&](buffer& left, std::unique_ptr<buffer> right) {
        kernels::add(left.values.view().flat(0, n), tensor_view<element const, space>(right->values.view().flat(0, n)));
        pool_.give(n, std::move(right));
      };
      auto const round = static_cast<std::size_t>(it.rounds++);
      if (it.open != nullptr) it.sums.add(leaves_, places_[round], std::move(it.open), merge);
      if (it.rounds < rounds_) return bind(it, {});
      it.open = it.sums.take(leaves_, merge);
      open(it);  // if it has nothing
      it.rounds = 0;
    }
    send(it);
  }
  void send(lane& it) {
    it.start_time = now();
    it.done_time = not_done;
    if (timeline_ != nullptr) it.start_ns = observe::timeline::now();
    // A lossy payload may leave out the very number that is not finite: look before it is coded.
    if constexpr (!lossless_identity<Compressor>) {
      if (!kernels::finite(tensor_view<element const, space>(whole(it)))) lost_finiteness_ = true;
    }
    if (direct_) return;
    it.open->wire->begin(world_, whole(it), in_a_tree_);
    it.flying = true;
    it.epoch = epoch_;
    in_flight_.push_back(&it);
  }
  void progress() {
    for (auto* const it : in_flight_) {
      if (it->open->wire->test() && it->done_time == not_done) it->done_time = now();
    }
  }
  // Waits for a lane; what it did before `asked` was covered by backward.
  void collect(lane& it, double asked) {
    it.open->wire->wait();
    it.flying = false;
    in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &it));
    if constexpr (progresses_alone<Comm>) {
      times_.covered += std::max(0.0, std::min(asked, it.done_time) - it.start_time);
    }
    record_lane(it);
    if constexpr (sharded) {
      auto const n = plan_.slice_elements(it.bucket);
      auto const slice = tensor_view<element const, space>(whole(it).flat(world_.rank() * n, n));
      if (it.rounds++ == 0) {
        kernels::copy(it.shard.view(), slice);
      } else {
        kernels::add(it.shard.view(), slice);
      }
      close(it);
    }
  }
  void record_lane(lane const& it) {
    if (timeline_ == nullptr) return;
    timeline_->record({it.label, "exchange", it.start_ns, observe::timeline::now(), 1});
  }

  static constexpr double not_done = std::numeric_limits<double>::infinity();
  layout const& plan_;
  std::vector<parameter<Env>*> const& uses_;
  Comm& world_;
  Compressor compressor_;
  buffer_pool<buffer> pool_;
  bool in_a_tree_;
  bool direct_;
  bool in_order_;  // no units: ready() may come in any order
  std::vector<lane> lanes_;
  std::vector<int> first_lane_;   // by bucket
  std::vector<int> lane_of_use_;  // whose missing reports it counts in
  std::vector<lane*> in_flight_;  // in the order in which they were sent
  std::int64_t leaves_ = 1;
  std::int64_t rounds_ = 1;
  std::vector<std::int64_t> places_;
  std::int64_t epoch_ = 0;
  std::size_t next_ = 0;
  std::int64_t payload_bytes_ = 0;
  bool lost_finiteness_ = false;
  exchange_times times_;
  observe::timeline* timeline_ = nullptr;
};

}  // namespace trireme::parallel::detail

// ---- trireme/parallel/detail/value_store.hpp
namespace trireme::parallel::detail {

/// The values that layers read, in buckets: all of them, or (where parameters are sharded) this rank's slices, of which
/// a unit's buckets are made whole while it runs.
template <class Env, class Comm, strategy Strategy>
class value_store {
 public:
  using space = typename Env::space;
  using element = typename Env::param;
  using view = tensor_view<element, space>;
  using kernels = ops::on<space>;
  static constexpr bool sharded = Strategy::parameters == distribution::shard;

  /// @param wanted  false: the values are the caller's, and no rank needs a copy.
  value_store(layout const& plan, std::vector<parameter<Env>*> const& uses, Comm& world, bool wanted)
      : plan_(plan), uses_(uses), world_(world), pool_(plan), buckets_(plan.buckets().size()) {
    held_.assign(plan.units().size(), false);
    for (int b = 0; wanted && b < static_cast<int>(buckets_.size()); ++b) {
      auto const n = sharded ? plan.slice_elements(b) : elements(b);
      if constexpr (sharded) {
        at(b).kept = trireme::tensor<element, space>(shape{n});
      } else {
        at(b).kept = message_tensor<element, space>(world, shape{n});
      }
      kernels::fill(at(b).kept.view(), 0.0);
      if (!sharded && !uses.empty()) bind(b, at(b).kept.view());
    }
  }
  value_store(value_store const&) = delete;
  value_store& operator=(value_store const&) = delete;

  /// A bucket's values as far as this rank keeps them: all, or its slice.
  [[nodiscard]] view kept(int bucket) const { return at(bucket).kept.view(); }
  /// The kept values of a piece; of one that lies in this rank's slice, where values are sharded.
  [[nodiscard]] view kept(int bucket, layout::piece const& piece) const {
    auto const first = sharded ? world_.rank() * plan_.slice_elements(bucket) : 0;
    return kept(bucket).flat(piece.in_bucket - first, piece.count);
  }
  /// All values of a bucket; empty while they are not gathered.
  [[nodiscard]] view whole(int bucket) const {
    if constexpr (sharded) {
      auto const& gathered = at(bucket).gathered;
      return gathered == nullptr ? view{} : gathered->view().flat(0, elements(bucket));
    } else {
      return kept(bucket);
    }
  }

  /// Begins to gather the values of a unit. Collective, like release: in one order on all ranks.
  void prefetch(int unit) {
    if constexpr (sharded) {
      if (held(unit)) return;
      held(unit) = true;
      for (int const b : buckets_of(unit)) {
        if (at(b).users++ == 0) gather(b);
      }
    }
  }
  /// The values of a unit are there when this returns.
  void ensure(int unit) {
    if constexpr (sharded) {
      prefetch(unit);
      for (int const b : buckets_of(unit)) wait(b);
    }
  }
  void release(int unit) {
    if constexpr (sharded) {
      if (!held(unit)) return;
      held(unit) = false;
      for (int const b : buckets_of(unit)) {
        if (--at(b).users == 0) drop(b);
      }
    }
  }
  void release_all() {
    for (int unit = 0; unit < static_cast<int>(held_.size()); ++unit) release(unit);
  }

  /// Bytes of values that are always here, and of buffers for those that are gathered.
  [[nodiscard]] std::int64_t kept_bytes() const {
    std::int64_t sum = 0;
    for (auto const& each : buckets_) sum += static_cast<std::int64_t>(each.kept.view().bytes());
    return sum;
  }
  [[nodiscard]] std::int64_t buffer_bytes() const noexcept {
    return pool_.elements() * static_cast<std::int64_t>(sizeof(element));
  }

 private:
  using buffer = trireme::tensor<element, space>;
  struct bucket_values {
    trireme::tensor<element, space> kept;
    std::unique_ptr<buffer> gathered;
    std::optional<gather_request_t<Comm, element, space, sharded>> pending;
    int users = 0;  // units that hold it
  };

  [[nodiscard]] bucket_values& at(int bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] bucket_values const& at(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] std::vector<bool>::reference held(int unit) { return held_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] std::vector<int> const& buckets_of(int unit) const {
    return plan_.units()[static_cast<std::size_t>(unit)].buckets;
  }
  [[nodiscard]] std::int64_t elements(int bucket) const {
    return plan_.buckets()[static_cast<std::size_t>(bucket)].elements;
  }

  void bind(int bucket, view values) {
    for (int const e : plan_.buckets()[static_cast<std::size_t>(bucket)].entries) {
      auto const& entry = plan_.at(e);
      for (int const use : entry.uses) {
        uses_[static_cast<std::size_t>(use)]->value =
            values.empty() ? view{} : values.flat(entry.offset, entry.size()).reshaped(entry.info.extents);
      }
    }
  }
  void gather(int b) {
    auto& it = at(b);
    it.gathered = pool_.take(elements(b), [&](std::int64_t n) {
      return std::make_unique<buffer>(message_tensor<element, space>(world_, shape{n}));
    });
    auto const all = whole(b);
    auto const n = plan_.slice_elements(b);
    kernels::copy(all.flat(world_.rank() * n, n), tensor_view<element const, space>(it.kept.view()));
    it.pending.emplace(world_.all_gather_async(all));
    bind(b, all);
  }
  void wait(int b) {
    if (!at(b).pending) return;
    at(b).pending->wait();
    at(b).pending.reset();
  }
  void drop(int b) {
    wait(b);
    bind(b, {});
    pool_.give(elements(b), std::move(at(b).gathered));
  }

  layout const& plan_;
  std::vector<parameter<Env>*> const& uses_;
  Comm& world_;
  buffer_pool<buffer> pool_;
  std::vector<bucket_values> buckets_;
  std::vector<bool> held_;  // by unit
};

}  // namespace trireme::parallel::detail

// ---- trireme/parallel/detail/parameter_store.hpp (goes on)
namespace trireme {

namespace parallel::detail {

/// The memory of parameters and gradients, in buckets, and what can be said of it between steps. The exchange (its only
/// heir) adds the steps.
template <class Env, class Comm, strategy Strategy, class Compressor>
class parameter_store {
 public:
  using space = typename Env::space;
  using param_element = typename Env::param;
  using gradient_element = typename Env::gradient;
  using master_element = typename Env::master;
  using kernels = ops::on<space>;

  static constexpr bool sharded = Strategy::optimizer_state == distribution::shard;
  static constexpr bool shards_parameters = Strategy::parameters == distribution::shard;
  static constexpr bool keeps_master = !std::is_same_v<param_element, master_element>;
  /// Ranks of one address space publish by writing each other's buckets, and reduce by reading them.
  static constexpr bool can_write_peers = sharded && !shards_parameters && has_peers<Comm, param_element, space>;
  static constexpr bool can_be_direct =
      can_write_peers && Strategy::gradients == distribution::replicate && lossless_identity<Compressor> &&
      std::is_same_v<gradient_element, typename Env::reduce> && has_peers<Comm, gradient_element, space>;

  parameter_store(parameter_store const&) = delete;
  parameter_store& operator=(parameter_store const&) = delete;

  [[nodiscard]] parallel::layout const& plan() const noexcept { return layout_; }
  /// The ranks that gradients are summed over.
  [[nodiscard]] Comm& world() const noexcept { return world_; }
  /// The ranks that vote.
  [[nodiscard]] Comm& everyone() const noexcept { return everyone_; }
  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return uses_; }
  [[nodiscard]] int use_count() const noexcept {
    return static_cast<int>(uses_.empty() ? foreign_.size() : uses_.size());
  }

  /// Fills every parameter with its start, a function of (seed, name, index): equal on every rank.
  void initialise(std::uint64_t seed) {
    for (auto const& entry : layout_.entries()) {
      trireme::tensor<master_element, space> whole(shape{entry.size()});
      for_each_run(entry.info, 0, entry.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        kernels::initialise(whole.view().flat(here, n), entry.info.start, seed, hash_name(entry.info.name), first);
      });
      load(entry, tensor_view<master_element const, space>(whole));
    }
  }

  /// Collective. Throws config_error on every rank if one rank's parameters differ from rank 0's. (No rank has a copy
  /// of another's where parameters are sharded.)
  void verify_replicas() {
    if constexpr (shards_parameters) return;
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(world_.size()));
    hashes[static_cast<std::size_t>(world_.rank())] = hash_of_parameters();
    world_.all_gather(tensor_view<std::uint64_t>(hashes));
    for (int rank = 1; rank < world_.size(); ++rank) {
      if (hashes[static_cast<std::size_t>(rank)] == hashes[0]) continue;
      throw config_error(
          text("trireme::exchange: the parameters of rank ", rank,
               " differ from those of rank 0; start every rank from the same seed, or call broadcast()"));
    }
  }

  /// Collective. Gives every rank the parameters of `root` (nothing to do where each has its own slices).
  void broadcast(int root = 0) {
    if constexpr (shards_parameters) return;
    for (auto const& entry : layout_.entries()) {
      world_.broadcast(parameter_values(entry), root);
      if constexpr (keeps_master) {
        trireme::tensor<master_element, space> whole(shape{entry.size()});
        kernels::copy(whole.view(), tensor_view<param_element const, space>(parameter_values(entry)));
        load(entry, tensor_view<master_element const, space>(whole));
      }
    }
  }

  /// The elements of a bucket that this rank updates: (first, count).
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> owned_range(int bucket) const noexcept {
    return sharded ? accounted_range(bucket)
                   : std::pair{std::int64_t{0}, layout_.buckets()[static_cast<std::size_t>(bucket)].elements};
  }
  /// The elements of a bucket that this rank answers for in hashes and checkpoints, unless another rank of its replica
  /// answers for the tensor (info.answers): each element is answered for once.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> accounted_range(int bucket) const noexcept {
    auto const n = layout_.slice_elements(bucket);
    return {world_.rank() * n, n};
  }

  /// Calls f(piece) for every piece that this rank answers for.
  template <class F>
  void for_each_accounted(int bucket, F&& f) const {
    auto const [first, count] = accounted_range(bucket);
    layout_.for_each_piece(bucket, first, count, [&](parallel::layout::piece const& piece) {
      if (layout_.at(piece.entry).info.answers) f(piece);
    });
  }

  /// The master value of a piece, wherever it lives.
  [[nodiscard]] tensor_view<master_element, space> master_of(int bucket, parallel::layout::piece const& piece) const {
    if constexpr (keeps_master) {
      auto const& master = masters_[static_cast<std::size_t>(bucket)];
      return master.view().flat(piece.in_bucket - owned_range(bucket).first, piece.count);
    } else {
      if (!foreign_.empty()) return foreign_of(piece.entry).value.flat(piece.in_entry, piece.count);
      return values_.kept(bucket, piece);
    }
  }
  /// As before the first step: nothing is left to tell.
  void forget_residuals() {
    for (int bucket = 0; bucket < bucket_count(); ++bucket) {
      if (auto const residual = residual_of(bucket); !residual.empty()) kernels::fill(residual, 0.0);
    }
  }
  /// What error feedback keeps for one bucket, or an empty view.
  [[nodiscard]] tensor_view<gradient_element, space> residual_of(int bucket) {
    if constexpr (has_residual<compressor_state<Compressor, Env>>) {
      auto* const state = gradients_.compressor(bucket);
      return state == nullptr ? tensor_view<gradient_element, space>{} : state->residual();
    } else {
      return {};
    }
  }
  /// Collective. Calls f(entry, values) with the whole master value of each tensor; the view is valid during the call.
  template <class F>
  void for_each_master(F&& f) {
    for (int b = 0; b < bucket_count(); ++b) {
      trireme::tensor<master_element, space> whole(shape{layout_.buckets()[static_cast<std::size_t>(b)].elements});
      auto const [first, count] = accounted_range(b);
      layout_.for_each_piece(b, first, count, [&](parallel::layout::piece const& piece) {
        kernels::copy(whole.view().flat(piece.in_bucket, piece.count),
                      tensor_view<master_element const, space>(master_of(b, piece)));
      });
      world_.all_gather(whole.view());
      for (int const e : layout_.buckets()[static_cast<std::size_t>(b)].entries) {
        auto const& entry = layout_.at(e);
        f(entry, tensor_view<master_element const, space>(whole.view().flat(entry.offset, entry.size())));
      }
    }
  }
  /// The global hash of this rank's copy of all parameters. Collective where parameters are sharded: of all slices.
  [[nodiscard]] std::uint64_t hash_of_parameters() const {
    std::uint64_t sum = 0;
    auto const add = [&](parallel::layout::entry const& entry, std::int64_t from, auto values) {
      for_each_run(entry.info, from, values.size(), [&](std::int64_t first, std::int64_t here, std::int64_t n) {
        sum += kernels::hash(tensor_view<param_element const, space>(values.flat(here - from, n)),
                             hash_name(entry.info.name), first);
      });
    };
    if constexpr (shards_parameters) {
      for (int b = 0; b < bucket_count(); ++b) {
        auto const [first, count] = accounted_range(b);
        layout_.for_each_piece(b, first, count, [&](parallel::layout::piece const& piece) {
          add(layout_.at(piece.entry), piece.in_entry, values_.kept(b, piece));
        });
      }
      world_.all_reduce(tensor_view<std::uint64_t>(&sum, shape{1}), reduction::sum{});
    } else {
      for (auto const& entry : layout_.entries()) add(entry, 0, parameter_values(entry));
    }
    return sum;
  }
  /// After finish(): whether this rank's gradient of a tensor is finite (of the part of it that it updates).
  [[nodiscard]] bool has_finite_gradient(parallel::layout::entry const& entry) const {
    auto const [first, count] = shards_gradients ? owned_range(entry.bucket) : std::pair{entry.offset, entry.size()};
    bool finite = true;
    layout_.for_each_piece(entry.bucket, first, count, [&](parallel::layout::piece const& piece) {
      if (&layout_.at(piece.entry) != &entry) return;
      finite = finite && kernels::finite(tensor_view<gradient_element const, space>(
                             gradients_.reduced(entry.bucket, piece.in_bucket, piece.count)));
    });
    return finite;
  }
  /// What has been allocated for this rank so far.
  [[nodiscard]] exchange_memory memory() const {
    exchange_memory sum{.parameters = values_.kept_bytes(),
                        .gradients = gradients_.kept_bytes(),
                        .buffers = values_.buffer_bytes() + gradients_.buffer_bytes()};
    for (auto const& master : masters_) sum.masters += static_cast<std::int64_t>(master.view().bytes());
    return sum;
  }
  /// A tensor as this rank's layers see it; empty where parameters are sharded, but while its unit holds them.
  [[nodiscard]] tensor_view<param_element, space> parameter_values(parallel::layout::entry const& entry) const {
    if (!foreign_.empty()) return foreign_[static_cast<std::size_t>(entry.uses.front())].value.flat();
    auto const whole = values_.whole(entry.bucket);
    return whole.empty() ? whole : whole.flat(entry.offset, entry.size());
  }

 protected:
  using bucket_transport = parallel::detail::transport<Env, Comm, Strategy, Compressor>;
  static constexpr bool shards_gradients = Strategy::gradients == distribution::shard;

  parameter_store(std::vector<parameter<Env>*> uses, Comm& world, Comm& everyone, Strategy const& strategy,
                  Compressor const& compressor, std::span<int const> unit_ends, Comm* experts)
      : world_(world),
        everyone_(everyone),
        layout_(infos(uses), elements(strategy), world.size(), needs_units(strategy) ? unit_ends : no_units()),
        uses_(std::move(uses)),
        values_(layout_, uses_, world_, true),
        gradients_(layout_, uses_, world_, compressor, sums_in_a_tree(strategy),
                   experts == nullptr && may_be_direct(strategy)),
        direct_(experts == nullptr && may_be_direct(strategy)),
        writes_peers_(can_write_peers) {
    if (needs_units(strategy) && unit_ends.empty()) {
      throw config_error(text("trireme::exchange: ", describe(strategy),
                              " gives gradients memory unit by unit; pass where each unit's uses end"));
    }
    check_tree(strategy);
    allocate();
  }
  parameter_store(std::vector<foreign_parameter<param_element, space>> parameters, Comm& world, Comm& everyone,
                  Strategy const& strategy, Compressor const& compressor)
      : world_(world),
        everyone_(everyone),
        layout_(infos(parameters), elements(strategy), world.size()),
        foreign_(std::move(parameters)),
        values_(layout_, uses_, world_, sharded),
        gradients_(layout_, uses_, world_, compressor, sums_in_a_tree(strategy), false) {
    static_assert(!keeps_master, "trireme::exchange: parameters in the caller's memory are their own master copy");
    static_assert(!shards_parameters,
                  "trireme::exchange: parameters in the caller's memory cannot be dropped between uses; use "
                  "parallel::zero<2>");
    if (sums_in_a_tree(strategy)) {
      throw config_error(
          text("trireme::exchange: ", describe(strategy),
               " needs to know the micro-batches, and a model with memory of its own does not tell them; "
               "leave .reproducible out, or describe the model in units"));
    }
    allocate();
  }
  ~parameter_store() = default;

  static std::span<int const> no_units() { return {}; }
  // Whether gradients have memory only while they are used.
  static bool needs_units(Strategy const& strategy) { return shards_gradients || sums_in_a_tree(strategy); }
  void check_tree(Strategy const& strategy) const {
    if (!sums_in_a_tree(strategy)) return;
    if (!bucket_transport::has_tree) {
      throw config_error(text("trireme::exchange: ", describe(strategy),
                              " sums whole gradients in a fixed tree, which ",
                              lossless_identity<Compressor> ? "this communicator cannot; use another one"
                                                            : "a compressor changes; leave one of them out"));
    }
    auto const ranks = static_cast<unsigned>(world_.size());
    if (!std::has_single_bit(ranks)) {
      throw config_error(text("trireme::exchange: ", describe(strategy), " on ", ranks,
                              " ranks: only a power of two of them form the sums of one rank; use another number"));
    }
  }
  static std::vector<parameter_info> infos(std::vector<parameter<Env>*> const& uses) {
    std::vector<parameter_info> all;
    for (auto const* use : uses) all.push_back(use->info);
    return all;
  }
  static std::vector<parameter_info> infos(std::vector<foreign_parameter<param_element, space>> const& parameters) {
    std::vector<parameter_info> all;
    for (auto const& each : parameters) {
      if (each.value.size() != each.gradient.size()) {
        throw config_error(text("trireme::exchange: parameter \"", each.name, "\" has ", each.value.size(),
                                " values but ", each.gradient.size(), " gradients"));
      }
      for (auto const& other : all) {
        if (other.name == each.name) {
          throw config_error(text("trireme::exchange: two parameters are named \"", each.name, "\""));
        }
      }
      all.push_back({each.name, each.value.extents(), {}, each.value.rank() > 1});
    }
    return all;
  }
  static std::int64_t elements(Strategy const& strategy) {
    auto const count =
        static_cast<std::int64_t>(strategy.bucket_bytes) / static_cast<std::int64_t>(sizeof(gradient_element));
    if (count < 1) {
      throw config_error(
          text("trireme::exchange: bucket_bytes is ", strategy.bucket_bytes, "; it must hold a gradient"));
    }
    return count;
  }
  [[nodiscard]] int bucket_count() const noexcept { return static_cast<int>(layout_.buckets().size()); }
  // Where the sum is all that is wanted, and no other rank adds to it later.
  [[nodiscard]] bool may_be_direct(Strategy const& strategy) const {
    auto const& all = layout_.entries();
    return can_be_direct && !sums_in_a_tree(strategy) &&
           std::none_of(all.begin(), all.end(), [](auto const& each) { return each.info.tied; });
  }
  [[nodiscard]] foreign_parameter<param_element, space> const& foreign_of(int entry) const {
    return foreign_[static_cast<std::size_t>(layout_.at(entry).uses.front())];
  }

  void allocate() {
    for (int b = 0; b < bucket_count(); ++b) {
      if constexpr (keeps_master) {
        masters_.emplace_back(shape{owned_range(b).second});
        kernels::fill(masters_.back().view(), 0.0);
      }
      if constexpr (can_write_peers) {
        if (writes_peers_) peer_values_.push_back(world_.peers(values_.kept(b)));
      }
      if constexpr (can_be_direct) {
        if (direct_) peer_gradients_.push_back(world_.peers(gradients_.resident(b)));
      }
    }
    outputs_.reserve(static_cast<std::size_t>(world_.size()));
  }

  std::span<tensor_view<param_element, space> const> outputs_of(int bucket, parallel::layout::piece const& piece) {
    outputs_.clear();
    if (writes_peers_) {
      auto const& peers = peer_values_[static_cast<std::size_t>(bucket)];
      for (int rank = 0; rank < world_.size(); ++rank) {
        if (!keeps_master && rank == world_.rank()) continue;  // the value itself
        outputs_.push_back(peers[static_cast<std::size_t>(rank)].flat(piece.in_bucket, piece.count));
      }
    } else if (keeps_master) {
      outputs_.push_back(values_.kept(bucket, piece));
    }
    return outputs_;
  }

  void gather_values() {
    pending_.clear();
    for (int b = 0; b < bucket_count(); ++b) {
      if (!foreign_.empty()) copy_foreign(b, true);
      pending_.push_back(world_.all_gather_async(values_.kept(b)));
    }
    for (int b = 0; b < bucket_count(); ++b) {
      pending_[static_cast<std::size_t>(b)].wait();
      if (!foreign_.empty()) copy_foreign(b, false);
    }
  }
  // Between the caller's values and the bucket they are gathered in: own pieces in, all pieces out.
  void copy_foreign(int bucket, bool in) {
    auto const whole = values_.kept(bucket);
    auto const [first, count] = in ? accounted_range(bucket) : std::pair{std::int64_t{0}, whole.size()};
    layout_.for_each_piece(bucket, first, count, [&](parallel::layout::piece const& piece) {
      auto const theirs = foreign_of(piece.entry).value.flat(piece.in_entry, piece.count);
      auto const ours = whole.flat(piece.in_bucket, piece.count);
      kernels::copy(in ? ours : theirs, tensor_view<param_element const, space>(in ? theirs : ours));
    });
  }

  // Gives a whole tensor of master values to this rank: its part of the masters, and what its layers read.
  void load(parallel::layout::entry const& entry, tensor_view<master_element const, space> whole) {
    if constexpr (!shards_parameters) kernels::copy(parameter_values(entry), whole);
    if constexpr (!keeps_master && !shards_parameters) return;
    auto const [first, count] = owned_range(entry.bucket);
    layout_.for_each_piece(entry.bucket, first, count, [&](parallel::layout::piece const& piece) {
      if (&layout_.at(piece.entry) != &entry) return;
      auto const part = whole.flat(piece.in_entry, piece.count);
      if constexpr (keeps_master) kernels::copy(master_of(entry.bucket, piece), part);
      if constexpr (shards_parameters) kernels::copy(values_.kept(entry.bucket, piece), part);
    });
  }

  Comm& world_;
  Comm& everyone_;
  parallel::layout layout_;
  std::vector<parameter<Env>*> uses_;
  std::vector<foreign_parameter<param_element, space>> foreign_;
  value_store<Env, Comm, Strategy> values_;
  gradient_store<Env, Comm, Strategy, Compressor> gradients_;
  std::vector<trireme::tensor<master_element, space>>
      masters_;                // by bucket: the owned range, where parameters are not masters
  bool direct_ = false;        // sums are formed from all ranks' buckets, in their memory
  bool writes_peers_ = false;  // the update writes all ranks' values
  std::vector<std::vector<tensor_view<gradient_element, space>>> peer_gradients_;
  std::vector<std::vector<tensor_view<param_element, space>>> peer_values_;
  std::vector<tensor_view<param_element, space>> outputs_;
  std::vector<parallel::detail::gather_request_t<Comm, param_element, space, sharded>> pending_;  // kept: no allocation
};

}  // namespace parallel::detail

}  // namespace trireme

// ---- trireme/parallel/exchange.hpp (goes on)
namespace trireme {

/// Owns the memory of parameters and gradients, and makes the gradients of all ranks one.
///
/// A step:  begin(micro-batches); backward calls ready(use) as each gradient becomes final; finish();
///          for_each_segment(update); publish(). Where reports_every_micro_batch() every micro-batch reports its
///          gradients, else only the last one: gradients accumulate without an exchange before.
///          Where there are units, the engine also calls, for each: ensure(first, last) before and release(first, last)
///          after its forward and its backward, prefetch() for the next one, and open(first, last) before its backward.
/// Shapes   buckets of about Strategy::bucket_bytes, filled in the order in which backward finishes; a tied tensor has
///          a bucket of its own, and each of its uses a gradient of its own, added in the order of the uses.
/// Ranks    collective: the same calls in the same order on every rank. Below stage 2 ready() may come at any time;
/// from
///          there on, and with .reproducible, ready(), ensure() and prefetch() too come in one order; ranks that run
///          fewer micro-batches than others take part in the rest in finish().
/// Numerics gradients are summed in rank order (with .reproducible in one tree over all micro-batches); the norm is
///          exact but for the rounding of blocks of 1024 squares of each tensor, so it does not depend on the number of
///          shards.
/// Threads  one owner; not copied, not moved.
/// Errors   comm_error from the communicator; config_error if the ranks' parameters differ at the start.
template <class Env, class Comm, strategy Strategy, class Compressor>
class basic_exchange : public parallel::detail::parameter_store<Env, Comm, Strategy, Compressor> {
  using store = parallel::detail::parameter_store<Env, Comm, Strategy, Compressor>;
  static_assert(
      !store::shards_gradients || !has_residual<compressor_state<Compressor, Env>>,
      "trireme::exchange: error feedback tells once a step what it left out, but from stage 2 on parallel::zero "
      "sends every micro-batch; use parallel::zero<1>");

 public:
  using store::accounted_range;
  using store::everyone;
  using store::keeps_master;
  using store::master_of;
  using store::owned_range;
  using store::sharded;
  using typename store::gradient_element;
  using typename store::kernels;
  using typename store::master_element;
  using typename store::param_element;
  using typename store::space;

  /// Takes over the parameters of a model: gives them memory, and binds them to it.
  ///
  /// @param unit_ends  where each unit's uses end, ascending; asked for from stage 2 on and with .reproducible.
  /// @param everyone   the ranks that vote, `world` among them; null: `world`.
  /// @param experts    the ranks that share out experts, if there are any: gradients of what is not dealt out to them
  ///                   are summed over these ranks too, after the sum over `world`.
  basic_exchange(std::vector<parameter<Env>*> uses, Comm& world, Strategy const& strategy, Compressor const& compressor,
                 std::span<int const> unit_ends = {}, std::type_identity_t<Comm>* everyone = nullptr,
                 std::type_identity_t<Comm>* experts = nullptr)
      : store(std::move(uses), world, everyone == nullptr ? world : *everyone, strategy, compressor, unit_ends,
              experts),
        in_a_tree_(sums_in_a_tree(strategy)) {
    for (int b = 0; experts != nullptr && b < this->bucket_count(); ++b) {
      auto const& entries = layout_.buckets()[static_cast<std::size_t>(b)].entries;
      if (!layout_.at(entries.front()).info.dealt) also_.push_back({b, experts});
    }
  }

  /// Works for parameters that live in the caller's memory: gradients are copied into buckets when they are ready, the
  /// reduced ones are copied back by finish().
  basic_exchange(std::vector<foreign_parameter<param_element, space>> parameters, Comm& world, Strategy const& strategy,
                 Compressor const& compressor, std::type_identity_t<Comm>* everyone = nullptr)
      : store(std::move(parameters), world, everyone == nullptr ? world : *everyone, strategy, compressor) {}

  /// The gradient of a tensor whose info says `tied` is summed over `group` too, after the sum over the exchange's own
  /// ranks: over the ranks of other stages that use it. The group must outlive the exchange, and all of its ranks name
  /// the same tensors in the same order.
  void sum_also(std::string_view name, Comm& group) {
    for (auto const& entry : layout_.entries()) {
      if (entry.info.name == name && entry.info.tied) return also_.push_back({entry.bucket, &group});
    }
    throw config_error(text("trireme::exchange: there is no tied parameter \"", name, "\""));
  }

  [[nodiscard]] exchange_times const& times() const noexcept { return gradients_.times(); }
  /// From now on every bucket's exchange is recorded in lane 1 of a timeline, which must outlive the exchange.
  void record(observe::timeline& timeline) { gradients_.record(timeline); }

  /// Whether ready() is called in every micro-batch, not only in the last one.
  [[nodiscard]] bool reports_every_micro_batch() const noexcept { return gradients_.pooled() && foreign_.empty(); }

  /// Starts a step: gradients are zero again. Collective where reports_every_micro_batch().
  /// @param micro_batches  of this rank, all of which it runs.
  void begin(std::int64_t micro_batches = 1) {
    places_.resize(static_cast<std::size_t>(micro_batches));
    for (std::int64_t m = 0; m < micro_batches; ++m) places_[static_cast<std::size_t>(m)] = m;
    begin(micro_batches, places_);
  }
  /// The same where some of this rank's logical micro-batches have no samples: it runs those at `places` only,
  /// ascending. Its first one is at `first`.
  void begin(std::int64_t micro_batches, std::span<std::int64_t const> places, std::int64_t first = 0) {
    if constexpr (store::shards_parameters) values_.release_all();
    rounds_left_ = static_cast<std::int64_t>(places.size());
    if (reports_every_micro_batch()) rounds_left_ = agree(micro_batches, rounds_left_);
    gradients_.begin(micro_batches, places, first, rounds_left_);
    reports_left_ = this->use_count();
    weight_ = 1.0 / world_.size();
  }

  /// With parameters in the caller's memory: how much this rank's gradients weigh in the sum (default: 1 / ranks, the
  /// mean). A rank with n of N samples says n / N.
  void weight(double share) noexcept { weight_ = share; }

  /// Uses [first, last) of one unit are about to be read: their values are there when this returns. Below stage 3
  /// nothing happens.
  void ensure(int first, int last) {
    if (store::shards_parameters && first < last) values_.ensure(unit_at(first));
  }
  /// The same uses will be needed next: their values begin to travel.
  void prefetch(int first, int last) {
    if (store::shards_parameters && first < last) values_.prefetch(unit_at(first));
  }
  /// They are not read any more before the next ensure(): their memory serves others.
  void release(int first, int last) {
    if (store::shards_parameters && first < last) values_.release(unit_at(first));
  }
  /// Backward of one unit is about to add to the gradients of its uses [first, last): they have memory, and are zero.
  /// Nothing happens where gradients have memory all the time.
  void open(int first, int last) {
    if (reports_every_micro_batch() && first < last) gradients_.open_unit(unit_at(first));
  }

  /// Says that the gradient of one use is final. The bucket's exchange starts as soon as all of its gradients are, and
  /// (below stage 2) the buckets before it have started.
  void ready(int use) {
    if (!foreign_.empty()) take_in(use);
    gradients_.ready(use);
    if (--reports_left_ > 0) return;
    reports_left_ = this->use_count();
    --rounds_left_;
  }
  void ready(std::string_view name) {
    for (int use = 0; use < this->use_count(); ++use) {
      if (layout_.at(layout_.entry_of_use(use)).info.name == name) return ready(use);
    }
    throw config_error(text("trireme::exchange: there is no parameter \"", name, "\""));
  }
  /// Does for one micro-batch what ranks that have it do together: this one has none. Its gradients are zero.
  void sit_out() {
    pass_through(true);
    auto const& units = layout_.units();
    for (auto u = units.size(); u-- > 0;) {
      ensure(units[u].first, units[u].last);
      if (!in_a_tree_) open(units[u].first, units[u].last);  // a tree does without a term
      if (u > 0) prefetch(units[u - 1].first, units[u - 1].last);
      for (int use = units[u].first; use < units[u].last; ++use) ready(use);
      release(units[u].first, units[u].last);
    }
  }
  /// The same for a micro-batch that is only run forward.
  void sit_out_forward() { pass_through(false); }

  /// Adds the caller's gradients to the buckets without saying that they are final: one more micro-batch.
  void accumulate() requires(!keeps_master) {
    for (int use = 0; use < static_cast<int>(foreign_.size()); ++use) take_in(use);
  }

  /// Collective. Completes the exchange: afterwards the segments' gradients are the sums over all ranks.
  ///
  /// @param votes  a number of one's own that is summed over the ranks (a wish to stop, say).
  /// @param want_norm  the norm costs nothing where gradients are reduced before the update anyway; without it, ranks
  ///                   that share memory fuse the reduction into the update.
  exchange_result finish(std::int64_t votes = 0, bool want_norm = true) {
    if (reports_every_micro_batch()) {
      while (rounds_left_ > 0) sit_out();
    }
    auto const start = gradients_.now();
    gradients_.finish(start);
    for (auto const& [bucket, group] : also_) {
      auto const [first, count] = owned_range(bucket);
      group->all_reduce(gradients_.reduced(bucket, first, count), reduction::sum{});
    }
    exact_sum squares;
    fused_ = direct_ && !want_norm;
    if (fused_) {
      check_own_gradients(squares);
    } else if (direct_) {
      finish_direct(squares);
    } else {
      for_each_accounted([&](int bucket, parallel::layout::piece const& piece) {
        kernels::sum_of_squares(gradients_.reduced(bucket, piece.in_bucket, piece.count), squares);
      });
    }
    if (gradients_.lost_finiteness()) squares.add(std::numeric_limits<double>::infinity());
    auto const result = vote(squares, votes, !fused_);
    if (result.finite) commit_residuals();
    if (!foreign_.empty()) give_back_gradients();
    gradients_.times().exposed += gradients_.now() - start;
    return result;
  }

  /// Calls f(bucket, first, update_segment) for every stretch of a parameter that this rank updates; `first` counts
  /// elements in the bucket. The segment's moments are for the caller to fill in, its scale to multiply.
  template <class F>
  void for_each_segment(F&& f) {
    for (int b = 0; b < this->bucket_count(); ++b) {
      auto const [first, count] = owned_range(b);
      layout_.for_each_piece(b, first, count, [&](parallel::layout::piece const& piece) {
        update_segment<Env> segment;
        segment.value = master_of(b, piece);
        segment.gradient = {gradient_terms_of(b, piece), 1.0};
        segment.outputs = outputs_of(b, piece);
        segment.decays = layout_.at(piece.entry).info.decays;
        f(b, piece, segment);
      });
    }
  }

  /// Collective. Makes the updated values the parameters of every rank (where parameters are sharded, each has its own
  /// already).
  void publish() {
    auto const start = gradients_.now();
    if constexpr (store::shards_parameters) {
      values_.release_all();
    } else if constexpr (sharded) {
      if (writes_peers_) {
        world_.barrier();
      } else {
        gather_values();
      }
    }
    gradients_.times().exposed += gradients_.now() - start;
  }

  /// Makes the parameters that layers read follow master values that were written from outside (a checkpoint).
  /// Collective.
  void refresh_parameters() {
    for_each_segment([](int, parallel::layout::piece const&, update_segment<Env> const& segment) {
      for (auto const& output : segment.outputs)
        kernels::copy(output, tensor_view<master_element const, space>(segment.value));
    });
    publish();
  }

 private:
  using store::direct_;
  using store::foreign_;
  using store::foreign_of;
  using store::gather_values;
  using store::gradients_;
  using store::layout_;
  using store::outputs_of;
  using store::peer_gradients_;
  using store::values_;
  using store::world_;
  using store::writes_peers_;

  // What an engine asks for in a forward pass; backward begins with the last unit.
  void pass_through(bool keep_last) {
    auto const& units = layout_.units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      bool const last = u + 1 == units.size();
      ensure(units[u].first, units[u].last);
      if (!last) prefetch(units[u + 1].first, units[u + 1].last);
      if (!last || !keep_last) release(units[u].first, units[u].last);
    }
  }

  [[nodiscard]] int unit_at(int first_use) const {
    auto const& units = layout_.units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (first_use >= units[u].first && first_use < units[u].last) return static_cast<int>(u);
    }
    throw config_error(text("trireme::exchange: no unit has use ", first_use, " of ", this->use_count()));
  }
  // The most micro-batches that a rank runs; the tree wants as many logical ones everywhere, and a round to be sent in.
  [[nodiscard]] std::int64_t agree(std::int64_t micro_batches, std::int64_t run) {
    std::int64_t most[] = {run, micro_batches, -micro_batches};
    world_.all_reduce(tensor_view<std::int64_t>(most, shape{3}), reduction::max{});
    if (!in_a_tree_) return most[0];
    if (most[1] != -most[2] || most[1] < 1) {
      throw config_error(text("trireme::exchange: .reproducible with from ", -most[2], " to ", most[1],
                              " micro-batches a rank; every rank has as many, at least one, those without samples "
                              "included"));
    }
    return std::max<std::int64_t>(most[0], 1);
  }

  void take_in(int use) {
    auto const& theirs = foreign_[static_cast<std::size_t>(use)].gradient;
    kernels::accumulate(gradients_.open_use(use), tensor_view<param_element const, space>(theirs.flat()), weight_);
  }

  void commit_residuals() {
    if constexpr (has_residual<compressor_state<Compressor, Env>>) {
      for (int b = 0; b < this->bucket_count(); ++b) gradients_.compressor(b)->commit();
    }
  }

  template <class F>
  void for_each_accounted(F&& f) const {
    for (int b = 0; b < this->bucket_count(); ++b) {
      store::for_each_accounted(b, [&](parallel::layout::piece const& piece) { f(b, piece); });
    }
  }

  // No rank sees the sum before the update: each checks all of its own gradients, and the vote is the barrier.
  void check_own_gradients(exact_sum& squares) {
    for (int b = 0; b < this->bucket_count(); ++b) {
      if (kernels::finite(tensor_view<gradient_element const, space>(gradients_.resident(b)))) continue;
      squares.add(std::numeric_limits<double>::infinity());
    }
  }
  void finish_direct(exact_sum& squares) {
    world_.barrier();                                              // everybody's gradients are final
    constexpr std::int64_t chunk = 32 * parallel::block_elements;  // stays in the second-level cache
    for (int b = 0; b < this->bucket_count(); ++b) {
      auto const [first, count] = accounted_range(b);
      layout_.for_each_piece(b, first, count, [&](parallel::layout::piece const& piece) {
        bool const answers = layout_.at(piece.entry).info.answers;
        for (std::int64_t at = 0; at < piece.count; at += chunk) {
          auto const n = std::min(chunk, piece.count - at);
          auto const own = gradients_.reduced(b, piece.in_bucket + at, n);
          terms_.clear();
          for (auto const& peer : peer_gradients_[static_cast<std::size_t>(b)])
            terms_.push_back(peer.flat(piece.in_bucket + at, n));
          kernels::reduce(std::span<tensor_view<gradient_element, space> const>(&own, 1),
                          std::span<tensor_view<gradient_element const, space> const>(terms_), reduction::sum{});
          if (answers) kernels::sum_of_squares(tensor_view<gradient_element const, space>(own), squares);
        }
      });
      gradients_.record_bucket(b);
    }
  }

  // One collective for everything that must be decided together before any state changes.
  exchange_result vote(exact_sum& squares, std::int64_t votes, bool norm_known) {
    auto const limbs = squares.state();
    ballot_.assign(limbs.begin(), limbs.end());
    ballot_.push_back(votes);
    everyone().all_reduce(tensor_view<std::int64_t>(ballot_), reduction::sum{});
    std::copy(ballot_.begin(), ballot_.end() - 1, limbs.begin());
    bool const finite = squares.non_finite() == 0;
    double const norm = norm_known ? std::sqrt(squares.value()) : std::numeric_limits<double>::quiet_NaN();
    return {norm, finite, ballot_.back()};
  }

  void give_back_gradients() {
    for (int b = 0; b < this->bucket_count(); ++b) {
      auto const [first, count] = owned_range(b);
      layout_.for_each_piece(b, first, count, [&](parallel::layout::piece const& piece) {
        kernels::copy(foreign_of(piece.entry).gradient.flat(piece.in_entry, piece.count),
                      tensor_view<gradient_element const, space>(gradients_.reduced(b, piece.in_bucket, piece.count)));
      });
    }
  }

  std::span<tensor_view<gradient_element const, space> const> gradient_terms_of(int bucket,
                                                                                parallel::layout::piece const& piece) {
    terms_.clear();
    if (fused_) {
      for (auto const& peer : peer_gradients_[static_cast<std::size_t>(bucket)])
        terms_.push_back(peer.flat(piece.in_bucket, piece.count));
    } else {
      terms_.push_back(gradients_.reduced(bucket, piece.in_bucket, piece.count));
    }
    return terms_;
  }

  std::vector<tensor_view<gradient_element const, space>> terms_;
  std::vector<std::int64_t> ballot_;
  std::vector<std::pair<int, Comm*>> also_;
  bool in_a_tree_ = false;
  std::vector<std::int64_t> places_;
  std::int64_t rounds_left_ = 1;  // micro-batches of the rank that runs most
  int reports_left_ = 0;
  double weight_ = 1;
  bool fused_ = false;
};

}  // namespace trireme

// ---- trireme/train/compatibility.hpp
namespace trireme {

/// One rule on policies of different slots: what is refused, and what to do instead.
struct compatibility_rule {
  std::string_view id;
  std::string_view sentence;
  std::string_view remedy;
};

namespace detail {

/// The element type that a compressor's sums are formed in; Default where its payloads are collected.
template <class State, class Default>
struct wire_of {
  using type = Default;
};
template <class State, class Default>
requires requires { typename State::wire; }
struct wire_of<State, Default> {
  using type = typename State::wire;
};

/// The policies of one trainer, as the rules see them.
template <class Model, class Comm, class Parallel, class Precision, class Compression>
struct combination {
  using env = environment<Precision, typename space_of<Comm>::type>;
  using space = typename env::space;
  using wire = typename wire_of<compressor_state<Compression, env>, typename Precision::reduce>::type;
  using data_axis = parallel::data_axis_t<Parallel>;
  using axis = parallel::axis;

  static constexpr bool plain = !staged_model<Model>;
  static constexpr bool once = parallel::no_axis_twice<Parallel>;
  static constexpr bool tensor = parallel::has_axis<Parallel, axis::tensor>;
  static constexpr bool sequence = parallel::has_axis<Parallel, axis::sequence>;
  static constexpr bool pipeline = parallel::has_axis<Parallel, axis::pipeline>;
  static constexpr bool expert = parallel::has_axis<Parallel, axis::expert>;
  static constexpr bool sharded = data_axis::optimizer_state == distribution::shard;
  static constexpr bool shards_gradients = data_axis::gradients == distribution::shard;
  static constexpr bool shards_parameters = data_axis::parameters == distribution::shard;
  static constexpr bool shares_layers = has_all_reduce<Comm, typename env::compute, reduction::sum, space> &&
                                        has_all_reduce<Comm, typename env::accumulate, reduction::sum, space> &&
                                        has_all_reduce<Comm, typename env::accumulate, reduction::max, space>;
  static constexpr bool hands_on = has_exchange<Comm, space>;
  static constexpr bool deals = has_ragged_all_to_all<Comm, typename env::compute, space> &&
                                has_all_gather<Comm, std::int64_t> &&
                                has_all_reduce<Comm, typename env::gradient, reduction::sum, space>;
  static constexpr bool residual = has_residual<compressor_state<Compression, env>>;
  static constexpr bool gatherable = gatherable_compressor<Compression, env>;
  static constexpr bool one_number = std::is_same_v<typename Precision::param, typename Precision::master>;
  static constexpr bool decides =
      has_all_reduce<Comm, std::int64_t> && has_all_reduce<Comm, double> && has_all_gather<Comm, std::uint64_t>;
  static constexpr bool gathers = has_all_gather<Comm, std::uint8_t, space>;
  static constexpr bool reduces = has_all_reduce<Comm, wire, reduction::sum, space>;
  static constexpr bool scatters = has_reduce_scatter<Comm, wire, reduction::sum, space>;
  static constexpr bool publishes = has_all_gather<Comm, typename Precision::param, space>;
  static constexpr bool trades = has_all_to_all<Comm, std::uint8_t, space>;
};

}  // namespace detail

/// All rules on combinations, in one place: X(id, sentence, remedy, condition that must hold of a `combination` C). The
/// trainer asserts the first that is broken at compile time, the table below lists them for documentation and tools.
#define TRIREME_COMPATIBILITY_RULES(X)                                                                                 \
  X("plain-model-precision", "a plain model stores its own numbers, which a mixed precision cannot change",            \
    "use precision::fp32 (or fp64), or describe the model in units", !C::plain || C::one_number)                       \
  X("mesh-axis-once", "a mesh has two axes of one kind",                                                               \
    "leave one of them out, and multiply its degree into the other", C::once)                                          \
  X("plain-model-whole", "a plain model cannot be cut by tensor, sequence, pipeline or expert",                        \
    "use parallel::data or parallel::zero, or describe the model in units",                                            \
    !C::plain || !(C::tensor || C::sequence || C::pipeline || C::expert))                                              \
  X("sequence-needs-tensor", "parallel::sequence cuts rows over the ranks of parallel::tensor, which the mesh lacks",  \
    "add parallel::tensor to the mesh, or leave sequence out", !C::sequence || C::tensor)                              \
  X("pipeline-keeps-gradients",                                                                                        \
    "parallel::zero<2> and zero<3> exchange every micro-batch, which a pipeline's schedule has no place for",          \
    "use parallel::zero<1> beside parallel::pipeline", !C::pipeline || !C::shards_gradients)                           \
  X("tensor-needs-all-reduce",                                                                                         \
    "parallel::tensor needs all_reduce of activations with sum and max, which this communicator lacks",                \
    "use another communicator", !C::tensor || C::shares_layers)                                                        \
  X("pipeline-needs-exchange", "parallel::pipeline needs exchange, which this communicator lacks",                     \
    "use another communicator", !C::pipeline || C::hands_on)                                                           \
  X("expert-needs-all-to-all",                                                                                         \
    "parallel::expert needs ragged all_to_all, all_gather and all_reduce, and this communicator lacks one of them",    \
    "use another communicator", !C::expert || C::deals)                                                                \
  X("zero-3-needs-units", "parallel::zero<3> drops parameters between their uses, but a plain model keeps its own",    \
    "use parallel::zero<2>, or describe the model in units", !C::plain || !C::shards_parameters)                       \
  X("error-feedback-needs-one-exchange",                                                                               \
    "error feedback tells once a step what it left out, but parallel::zero<2> and zero<3> send every micro-batch",     \
    "use parallel::zero<1>", !C::residual || !C::shards_gradients)                                                     \
  X("trainer-needs-votes",                                                                                             \
    "every trainer votes with all_reduce and compares ranks with all_gather, and this communicator lacks one of them", \
    "use another communicator", C::decides)                                                                            \
  X("data-needs-all-reduce", "parallel::data sums gradients with all_reduce, which this communicator lacks for them",  \
    "use another communicator, or compression::top_k, which gathers", C::sharded || C::gatherable || C::reduces)       \
  X("zero-needs-reduce-scatter", "parallel::zero needs reduce_scatter and all_gather, which this communicator lacks",  \
    "use parallel::data or another communicator", !C::sharded || (C::publishes && (C::gatherable || C::scatters)))     \
  X("gathered-needs-all-gather",                                                                                       \
    "this compressor's payloads are collected with all_gather, which this communicator lacks",                         \
    "use a summable compressor such as compression::cast", !C::gatherable || C::sharded || C::gathers)                 \
  X("gathered-zero-needs-all-to-all",                                                                                  \
    "under parallel::zero this compressor's payloads travel by all_to_all, which this communicator lacks",             \
    "use a summable compressor such as compression::cast, or parallel::data",                                          \
    !C::gatherable || !C::sharded || C::trades)

#define TRIREME_RULE_ROW(id, sentence, remedy, condition) compatibility_rule{id, sentence, remedy},
inline constexpr std::array compatibility_rules{TRIREME_COMPATIBILITY_RULES(TRIREME_RULE_ROW)};
#undef TRIREME_RULE_ROW

}  // namespace trireme

// ---- trireme/train/slots.hpp (goes on)
namespace trireme {

namespace detail {

/// What P is: its tag; a model if it lets its parameters be visited (a plain model needs no tag); else nothing.
template <class P>
consteval auto kind_of() {
  if constexpr (policy<P>) {
    return std::type_identity<category_of_t<P>>{};
  } else if constexpr (has_visit_parameters<P>) {
    return std::type_identity<slot::model>{};
  } else {
    return std::type_identity<void>{};
  }
}
template <class P>
using kind_of_t = typename decltype(kind_of<P>())::type;

template <class Kind, class... Policies>
inline constexpr int count_of = (0 + ... + int{std::is_same_v<kind_of_t<Policies>, Kind>});

/// The first policy of a kind, or the default.
template <class Kind, class Default, class... Policies>
struct find {
  using type = Default;
};
template <class Kind, class Default, class First, class... Rest>
struct find<Kind, Default, First, Rest...>
    : std::conditional_t<std::is_same_v<kind_of_t<First>, Kind>, std::type_identity<First>,
                         find<Kind, Default, Rest...>> {};

struct nothing {};

// Each check is a class of its own: its static_assert is the one sentence that a user sees, and the compiler's
// "in instantiation of" line names the culprit. Whether all is well is computed apart from it (`ok` of resolve): a
// class whose assertion failed must not take part in a constant expression, or a second error follows.
template <class P>
struct check_is_policy {
  static_assert(
      !std::is_same_v<kind_of_t<P>, void>,
      "trireme::trainer: not a policy: each argument must be a model, an optimizer, a communicator or a policy "
      "for parallelism, precision or compression; say which with policy_category");
};

template <class... P>
struct check_counts {
  static_assert(count_of<slot::communicator, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the communicators");
  static_assert(count_of<slot::model, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the models");
  static_assert(count_of<slot::optimizer, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the optimizers");
  static_assert(count_of<slot::parallel, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the parallel strategies");
  static_assert(count_of<slot::precision, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the precisions");
  static_assert(count_of<slot::compression, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the compressors");
};

template <class... P>
struct check_required {
  static constexpr bool ok =
      count_of<slot::communicator, P...> > 0 && count_of<slot::model, P...> > 0 && count_of<slot::optimizer, P...> > 0;
  static_assert(
      count_of<slot::communicator, P...> > 0,
      "trireme::trainer: no communicator: pass the world that launch() gives, or comm::self_world if one rank "
      "is what you mean");
  static_assert(count_of<slot::model, P...> > 0, "trireme::trainer: no model: pass a description such as nn::gpt{}");
  static_assert(count_of<slot::optimizer, P...> > 0,
                "trireme::trainer: no optimizer: pass a description such as optim::adamw{}");
};

template <class C>
struct check_communicator {
  static_assert(has_rank<C>, "trireme::trainer: communicator lacks rank() -> int");
  static_assert(has_size<C>, "trireme::trainer: communicator lacks size() -> int");
  static_assert(has_split<C>, "trireme::trainer: communicator lacks split(color, key) -> communicator");
  static_assert(has_duplicate<C>, "trireme::trainer: communicator lacks duplicate() -> communicator");
  static_assert(has_barrier<C>, "trireme::trainer: communicator lacks barrier()");
  static_assert(has_traffic<C>, "trireme::trainer: communicator lacks traffic() -> traffic_counters");
  static_assert(has_communicator_name<C>, "trireme::trainer: communicator lacks a static name");
};
template <class M>
struct check_model {
  static_assert(staged_model<M> || has_visit_parameters<M>,
                "trireme::trainer: model lacks units(emit), and visit_parameters(visit) to be a plain one");
  static_assert(staged_model<M> || !has_visit_parameters<M> || has_model_forward<M>,
                "trireme::trainer: model lacks forward(samples const&) -> mean loss");
  static_assert(staged_model<M> || !has_visit_parameters<M> || has_model_backward<M>,
                "trireme::trainer: model lacks backward(ready)");
};
template <class P>
struct check_precision {
  static_assert(has_param_type<P>, "trireme::trainer: precision policy lacks the type param");
  static_assert(has_compute_type<P>, "trireme::trainer: precision policy lacks the type compute");
  static_assert(has_accumulate_type<P>, "trireme::trainer: precision policy lacks the type accumulate");
  static_assert(has_reduce_type<P>, "trireme::trainer: precision policy lacks the type reduce");
  static_assert(has_master_type<P>, "trireme::trainer: precision policy lacks the type master");
  static_assert(has_tolerance<P>, "trireme::trainer: precision policy lacks a static tolerance");
};
template <class S>
struct check_parallel {
  static_assert(trireme::parallel::mesh_axis<S> || trireme::parallel::detail::is_mesh<S> || says_optimizer_state<S>,
                "trireme::trainer: parallel strategy lacks a static optimizer_state");
  static_assert(trireme::parallel::mesh_axis<S> || trireme::parallel::detail::is_mesh<S> || says_gradients<S>,
                "trireme::trainer: parallel strategy lacks a static gradients");
  static_assert(trireme::parallel::mesh_axis<S> || trireme::parallel::detail::is_mesh<S> || says_parameters<S>,
                "trireme::trainer: parallel strategy lacks a static parameters");
  static_assert(trireme::parallel::mesh_axis<S> || trireme::parallel::detail::is_mesh<S> || has_bucket_bytes<S>,
                "trireme::trainer: parallel strategy lacks bucket_bytes");
};
template <class O, class Env>
struct check_optimizer {
  static_assert(has_moment_names<O>, "trireme::trainer: optimizer lacks static moment_names");
  static_assert(has_rate_at<O>, "trireme::trainer: optimizer lacks rate_at(step) -> double");
  static_assert(has_clip<O>, "trireme::trainer: optimizer lacks clip");
  static_assert(has_update<O, Env>, "trireme::trainer: optimizer lacks update(segment, step)");
};
template <class C, class Env>
struct check_compression {
  static_assert(has_compressor_state<C, Env>,
                "trireme::trainer: compression policy lacks instance<Env>(description, elements)");
  static_assert(!has_compressor_state<C, Env> || compressor<C, Env>,
                "trireme::trainer: compression policy lacks encode and decode of a summable or a gatherable payload");
};

/// The id of the first rule that a combination breaks; empty if it breaks none.
template <class C>
inline constexpr std::string_view broken_rule = [] {
#define TRIREME_RULE_BROKEN(id, sentence, remedy, condition) \
  if (!(condition)) return std::string_view(id);
  TRIREME_COMPATIBILITY_RULES(TRIREME_RULE_BROKEN)
#undef TRIREME_RULE_BROKEN
  return std::string_view();
}();
template <class C>
struct check_combination {
#define TRIREME_RULE_ASSERT(id, sentence, remedy, condition) \
  static_assert(broken_rule<C> != id, "trireme::trainer: illegal combination: " sentence "; " remedy " [" id "]");
  TRIREME_COMPATIBILITY_RULES(TRIREME_RULE_ASSERT)
#undef TRIREME_RULE_ASSERT
};

/// Policies in any order, sorted into slots and checked. One wrong thing gives one sentence: each check runs only if
/// those before it passed.
template <class... P>
struct resolve {
  template <class Kind, class Default>
  using pick = typename find<Kind, Default, P...>::type;
  using model = pick<slot::model, nothing>;
  using optimizer = pick<slot::optimizer, nothing>;
  using comm = pick<slot::communicator, nothing>;
  using parallel = pick<slot::parallel, parallel::data>;
  using precision = pick<slot::precision, precision::fp32>;
  using compression = pick<slot::compression, compression::none>;

  static constexpr bool policies = (!std::is_same_v<kind_of_t<P>, void> && ...);
  static constexpr bool at_most_one = count_of<slot::communicator, P...> <= 1 && count_of<slot::model, P...> <= 1 &&
                                      count_of<slot::optimizer, P...> <= 1 && count_of<slot::parallel, P...> <= 1 &&
                                      count_of<slot::precision, P...> <= 1 && count_of<slot::compression, P...> <= 1;
  static constexpr bool complete =
      count_of<slot::communicator, P...> > 0 && count_of<slot::model, P...> > 0 && count_of<slot::optimizer, P...> > 0;
  static constexpr bool independent = communicator<comm> &&
                                      (staged_model<model> || plain_model<model>)&&precision_policy<precision> &&
                                      trireme::parallel::parallel_policy<parallel>;

  // The first stage that fails: 0 policies, 1 counts, 2 required, 3 each alone, 4 with the environment, 5 together.
  static constexpr int failed() {
    if constexpr (!policies) {
      return 0;
    } else if constexpr (!at_most_one) {
      return 1;
    } else if constexpr (!complete) {
      return 2;
    } else if constexpr (!independent) {
      return 3;
    } else {
      using env = environment<precision, typename space_of<comm>::type>;
      if constexpr (!trireme::optimizer<optimizer, env> || !trireme::compressor<compression, env>) {
        return 4;
      } else {
        return broken_rule<combination<model, comm, parallel, precision, compression>>.empty() ? none_failed : 5;
      }
    }
  }
  static constexpr int none_failed = 6;
  static constexpr bool ok = failed() == none_failed;

  template <int Stage>
  static constexpr void say() {
    if constexpr (Stage == 0) {
      (static_cast<void>(sizeof(check_is_policy<P>)), ...);
    } else if constexpr (Stage == 1) {
      static_cast<void>(sizeof(check_counts<P...>));
    } else if constexpr (Stage == 2) {
      static_cast<void>(sizeof(check_required<P...>));
    } else if constexpr (Stage == 3) {
      static_cast<void>(sizeof(check_communicator<comm>) + sizeof(check_model<model>) +
                        sizeof(check_precision<precision>) + sizeof(check_parallel<parallel>));
    } else if constexpr (Stage == 4) {
      using env = environment<precision, typename space_of<comm>::type>;
      static_cast<void>(sizeof(check_optimizer<optimizer, env>) + sizeof(check_compression<compression, env>));
    } else if constexpr (Stage == 5) {
      static_cast<void>(sizeof(check_combination<combination<model, comm, parallel, precision, compression>>));
    }
  }
};

}  // namespace detail

/// Whether these policies make a trainer; if not, one sentence at compile time says why.
template <class... Policies>
constexpr bool check_policies() {
  using resolved = detail::resolve<std::remove_cvref_t<Policies>...>;
  resolved::template say<resolved::failed()>();
  return resolved::ok;
}

}  // namespace trireme

// ---- trireme/train/checkpoint.hpp
#include <set>

// ---- trireme/core/detail/sha256_blocks.hpp
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace trireme::detail {

using sha256_state = std::array<std::uint32_t, 8>;

inline constexpr sha256_state sha256_start{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

alignas(16) inline constexpr std::array<std::uint32_t, 64> sha256_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/// The compression function over `count` blocks of 64 bytes, on any machine.
inline void sha256_blocks_plain(sha256_state& state, std::byte const* data, std::size_t count) noexcept {
  for (; count > 0; --count, data += 64) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) {
      std::uint32_t word = 0;
      for (std::size_t b = 0; b < 4; ++b) word = word << 8 | static_cast<std::uint32_t>(data[4 * i + b]);
      w[i] = word;
    }
    for (std::size_t i = 16; i < 64; ++i) {
      auto const s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      auto const s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
      auto const s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      auto const t1 = h + s1 + ((e & f) ^ (~e & g)) + sha256_constants[i] + w[i];
      auto const s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      auto const t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    sha256_state const add{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += add[i];
  }
}

#if defined(__x86_64__)

// Compiler builtins and vector types instead of <immintrin.h>: that header costs half a second of compile time.
using sha256_words = int __attribute__((vector_size(16)));

__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_words sha256_load(void const* from) noexcept {
  sha256_words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_words sha256_load_swapped(
    std::byte const* from) noexcept {
  char __attribute__((vector_size(16))) bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return reinterpret_cast<sha256_words>(
      __builtin_shufflevector(bytes, bytes, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12));
}

/// A sum that wraps: lanes of the builtins' signed type would overflow.
__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_words sha256_add(sha256_words a,
                                                                                    sha256_words b) noexcept {
  using wrapping = unsigned __attribute__((vector_size(16)));
  return reinterpret_cast<sha256_words>(reinterpret_cast<wrapping>(a) + reinterpret_cast<wrapping>(b));
}

/// Four rounds.
__attribute__((target("sha,sse4.1"), always_inline)) inline void sha256_rounds(sha256_words& abef, sha256_words& cdgh,
                                                                               sha256_words message,
                                                                               std::uint32_t const* k) noexcept {
  auto const keyed = sha256_add(message, sha256_load(k));
  cdgh = __builtin_ia32_sha256rnds2(cdgh, abef, keyed);
  abef = __builtin_ia32_sha256rnds2(abef, cdgh, __builtin_shufflevector(keyed, keyed, 2, 3, 0, 1));
}

/// The four message words that replace m0, from all sixteen before.
__attribute__((target("sha,sse4.1"), always_inline)) inline sha256_words sha256_schedule(sha256_words m0,
                                                                                         sha256_words m1,
                                                                                         sha256_words m2,
                                                                                         sha256_words m3) noexcept {
  auto const sum = sha256_add(__builtin_ia32_sha256msg1(m0, m1), __builtin_shufflevector(m2, m3, 1, 2, 3, 4));
  return __builtin_ia32_sha256msg2(sum, m3);
}

/// The same with the SHA instructions.
__attribute__((target("sha,sse4.1"))) inline void sha256_blocks_hardware(sha256_state& state, std::byte const* data,
                                                                         std::size_t count) noexcept {
  auto const abcd = sha256_load(state.data());
  auto const efgh = sha256_load(state.data() + 4);
  auto abef = __builtin_shufflevector(abcd, efgh, 5, 4, 1, 0);
  auto cdgh = __builtin_shufflevector(abcd, efgh, 7, 6, 3, 2);
  for (; count > 0; --count, data += 64) {
    auto const abef_before = abef;
    auto const cdgh_before = cdgh;
    auto m0 = sha256_load_swapped(data);
    auto m1 = sha256_load_swapped(data + 16);
    auto m2 = sha256_load_swapped(data + 32);
    auto m3 = sha256_load_swapped(data + 48);
    auto const* k = sha256_constants.data();
    for (int sixteen = 0; sixteen < 3; ++sixteen, k += 16) {
      sha256_rounds(abef, cdgh, m0, k);
      m0 = sha256_schedule(m0, m1, m2, m3);
      sha256_rounds(abef, cdgh, m1, k + 4);
      m1 = sha256_schedule(m1, m2, m3, m0);
      sha256_rounds(abef, cdgh, m2, k + 8);
      m2 = sha256_schedule(m2, m3, m0, m1);
      sha256_rounds(abef, cdgh, m3, k + 12);
      m3 = sha256_schedule(m3, m0, m1, m2);
    }
    sha256_rounds(abef, cdgh, m0, k);
    sha256_rounds(abef, cdgh, m1, k + 4);
    sha256_rounds(abef, cdgh, m2, k + 8);
    sha256_rounds(abef, cdgh, m3, k + 12);
    abef = sha256_add(abef, abef_before);
    cdgh = sha256_add(cdgh, cdgh_before);
  }
  auto const first = __builtin_shufflevector(abef, cdgh, 3, 2, 7, 6);
  auto const second = __builtin_shufflevector(abef, cdgh, 1, 0, 5, 4);
  std::memcpy(state.data(), &first, 16);
  std::memcpy(state.data() + 4, &second, 16);
}

/// Whether this machine has them. (`__builtin_cpu_supports` of GCC 12 does not know "sha".)
inline bool sha256_has_hardware() noexcept {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  bool const vectors = (c & (1U << 9)) != 0 && (c & (1U << 19)) != 0;  // SSSE3 and SSE4.1
  return vectors && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1U << 29)) != 0;
}

#else

inline bool sha256_has_hardware() noexcept { return false; }
inline void sha256_blocks_hardware(sha256_state& state, std::byte const* data, std::size_t count) noexcept {
  sha256_blocks_plain(state, data, count);
}

#endif

/// The fastest of the two that this machine has.
inline void sha256_blocks(sha256_state& state, std::byte const* data, std::size_t count) noexcept {
  static bool const hardware = sha256_has_hardware();
  hardware ? sha256_blocks_hardware(state, data, count) : sha256_blocks_plain(state, data, count);
}

}  // namespace trireme::detail

// ---- trireme/core/sha256.hpp (goes on)
namespace trireme {

/// SHA-256 of bytes that arrive piece by piece.
///
/// Why: a checkpoint names the digest of each of its files, so that a file that was changed, cut or mixed up is
/// noticed before it is loaded. Uses the SHA instructions of the processor where there are any.
/// Method: [FIPS 180-4].
///
/// Threads  one owner.
class sha256 {
 public:
  using digest = std::array<std::byte, 32>;

  sha256& update(std::span<std::byte const> bytes) noexcept {
    if (bytes.empty()) return *this;
    total_ += bytes.size();
    if (filled_ > 0) {
      auto const take = std::min(bytes.size(), block_.size() - filled_);
      std::memcpy(block_.data() + filled_, bytes.data(), take);
      filled_ += take;
      bytes = bytes.subspan(take);
      if (filled_ < block_.size()) return *this;
      detail::sha256_blocks(state_, block_.data(), 1);
      filled_ = 0;
    }
    auto const blocks = bytes.size() / block_.size();
    if (blocks > 0) detail::sha256_blocks(state_, bytes.data(), blocks);
    bytes = bytes.subspan(blocks * block_.size());
    if (!bytes.empty()) std::memcpy(block_.data(), bytes.data(), bytes.size());
    filled_ = bytes.size();
    return *this;
  }
  sha256& update(std::string_view text) noexcept { return update(std::as_bytes(std::span(text))); }

  /// The digest of everything so far; more may follow.
  [[nodiscard]] digest finish() const noexcept {
    auto state = state_;
    std::array<std::byte, 128> tail{};
    std::memcpy(tail.data(), block_.data(), filled_);
    tail[filled_] = std::byte{0x80};
    std::size_t const blocks = filled_ < 56 ? 1 : 2;
    auto const bits = total_ * 8;
    for (std::size_t i = 0; i < 8; ++i) tail[blocks * 64 - 1 - i] = static_cast<std::byte>(bits >> (8 * i) & 0xff);
    detail::sha256_blocks(state, tail.data(), blocks);
    digest out;
    for (std::size_t i = 0; i < 32; ++i) out[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)) & 0xff);
    return out;
  }

  /// The same as 64 hexadecimal digits.
  [[nodiscard]] std::string hexadecimal() const {
    std::string out;
    for (auto const byte : finish()) {
      out += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
      out += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
    }
    return out;
  }

 private:
  detail::sha256_state state_ = detail::sha256_start;
  std::array<std::byte, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace trireme

// ---- trireme/formats/file.hpp
#include <sys/types.h>

#include <cstdio>

namespace trireme::formats {

/// The file operations that this room uses, each as in POSIX: -1 and errno on failure.
///
/// Why a class: a test derives one that fails or stops at operation n, for every n. It has to outlive what uses it.
///
/// Threads  stateless; any number of callers.
class file_system {
 public:
  file_system() = default;
  file_system(file_system const&) = delete;
  file_system& operator=(file_system const&) = delete;
  virtual ~file_system() = default;

  virtual int open(char const* path, int flags, ::mode_t mode) { return ::open(path, flags, mode); }
  virtual int close(int descriptor) { return ::close(descriptor); }
  virtual int status(int descriptor, struct ::stat& out) { return ::fstat(descriptor, &out); }
  virtual ::ssize_t read(int descriptor, void* to, std::size_t bytes, ::off_t at) {
    return ::pread(descriptor, to, bytes, at);
  }
  virtual ::ssize_t write(int descriptor, void const* from, std::size_t bytes) {
    return ::write(descriptor, from, bytes);
  }
  virtual int truncate(int descriptor, ::off_t bytes) { return ::ftruncate(descriptor, bytes); }
  virtual int synchronise(int descriptor) { return ::fsync(descriptor); }
  virtual int rename(char const* from, char const* to) { return ::rename(from, to); }
  virtual int unlink(char const* path) { return ::unlink(path); }
  virtual int make_directory(char const* path, ::mode_t mode) { return ::mkdir(path, mode); }
  virtual int remove_directory(char const* path) { return ::rmdir(path); }
};

/// The real one.
[[nodiscard]] inline file_system& real_files() noexcept {
  static file_system files;
  return files;
}

namespace detail {

/// "cannot write: no space left on device"
[[nodiscard]] inline io_error io_failure(std::string const& path, std::string_view action, int number) {
  auto reason = std::generic_category().message(number);
  if (!reason.empty() && reason[0] >= 'A' && reason[0] <= 'Z' && reason[1] >= 'a') reason[0] += 'a' - 'A';
  return {path, text("cannot ", action, ": ", reason)};
}

/// Calls a POSIX operation until it is not interrupted by a signal, and throws if it failed.
template <class Call>
auto checked(std::string const& path, std::string_view action, Call&& call) {
  for (;;) {
    auto const result = call();
    if (result >= 0) return result;
    if (errno != EINTR) throw io_failure(path, action, errno);
  }
}

}  // namespace detail

/// The directory that a path lies in: "a/b" -> "a", "b" -> ".", "/b" -> "/".
[[nodiscard]] inline std::string directory_of(std::string_view path) {
  auto const slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, slash == 0 ? 1 : slash));
}

/// An open file.
///
/// Threads  one owner; read() may be called from several threads at once.
/// Errors   everything throws io_error(path, reason), "no space left on device" and all the others in words; the
///          destructor closes and says nothing, so whoever wrote calls synchronise() or close().
class file {
 public:
  enum class access {
    read,    ///< an existing file
    create,  ///< a new or emptied file, written from its beginning
    extend,  ///< a new or existing file, read and written at its end
  };

  file(std::string path, access how, file_system& files = real_files()) : path_(std::move(path)), files_(&files) {
    int const flags = how == access::read     ? O_RDONLY
                      : how == access::create ? O_RDWR | O_CREAT | O_TRUNC
                                              : O_RDWR | O_CREAT | O_APPEND;
    descriptor_ = detail::checked(path_, how == access::read ? "open" : "open for writing",
                                  [&] { return files_->open(path_.c_str(), flags | O_CLOEXEC, 0666); });
  }
  file(file&& other) noexcept
      : path_(std::move(other.path_)), files_(other.files_), descriptor_(std::exchange(other.descriptor_, -1)) {}
  file& operator=(file&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(files_, other.files_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~file() {
    if (descriptor_ >= 0) files_->close(descriptor_);
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] file_system& files() const noexcept { return *files_; }

  /// The length in bytes. A directory, a pipe or a device has none: throws.
  [[nodiscard]] std::uint64_t size() const {
    struct ::stat status {};
    detail::checked(path_, "ask for the size", [&] { return files_->status(descriptor_, status); });
    if (!S_ISREG(status.st_mode)) throw io_error(path_, "is not a regular file");
    return static_cast<std::uint64_t>(status.st_size);
  }

  /// Fills `to` with the bytes from `offset` on. Throws if the file ends before that.
  void read(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      auto const part = std::min(to.size(), most_at_once);
      auto const got = static_cast<std::size_t>(detail::checked(
          path_, "read", [&] { return files_->read(descriptor_, to.data(), part, static_cast<::off_t>(offset)); }));
      if (got == 0) throw io_error(path_, text("cannot read: the file ends at byte ", offset));
      offset += got;
      to = to.subspan(got);
    }
  }

  /// Writes all of `from` behind what was written before.
  void write(std::span<std::byte const> from) {
    while (!from.empty()) {
      auto const part = std::min(from.size(), most_at_once);
      auto const put = static_cast<std::size_t>(
          detail::checked(path_, "write", [&] { return files_->write(descriptor_, from.data(), part); }));
      if (put == 0) throw io_error(path_, "cannot write: the device takes nothing more");
      from = from.subspan(put);
    }
  }
  void write(std::string_view characters) { write(std::as_bytes(std::span(characters))); }

  /// Cuts the file to `bytes`.
  void truncate(std::uint64_t bytes) {
    detail::checked(path_, "truncate", [&] { return files_->truncate(descriptor_, static_cast<::off_t>(bytes)); });
  }
  /// Returns when the content has reached the device.
  void synchronise() {
    detail::checked(path_, "synchronise", [&] { return files_->synchronise(descriptor_); });
  }
  void close() {
    // Not repeated after a signal: the descriptor is gone by then, and may belong to somebody else.
    auto const descriptor = std::exchange(descriptor_, -1);
    if (descriptor >= 0 && files_->close(descriptor) < 0 && errno != EINTR) {
      throw detail::io_failure(path_, "close", errno);
    }
  }

 private:
  static constexpr std::size_t most_at_once = std::size_t{1} << 30;  // the kernel takes less than 2 GiB a call

  std::string path_;
  file_system* files_;
  int descriptor_ = -1;
};

/// The whole content of a file. Throws io_error if it has more than `most` bytes, before it takes memory for them.
[[nodiscard]] inline std::vector<std::byte> read_file(std::string const& path,
                                                      std::uint64_t most = std::uint64_t{1} << 30,
                                                      file_system& files = real_files()) {
  file const from(path, file::access::read, files);
  auto const size = from.size();
  if (size > most) throw io_error(path, text("has ", size, " bytes, more than the ", most, " expected"));
  std::vector<std::byte> out(static_cast<std::size_t>(size));
  from.read(0, out);
  return out;
}

/// The same as text.
[[nodiscard]] inline std::string read_text(std::string const& path, std::uint64_t most = std::uint64_t{1} << 30,
                                           file_system& files = real_files()) {
  auto const bytes = read_file(path, most, files);
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

/// Returns when the names in a directory (files made, renamed, removed) have reached the device.
inline void synchronise_directory(std::string const& path, file_system& files = real_files()) {
  auto const descriptor = detail::checked(
      path, "open the directory", [&] { return files.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  auto const failed = files.synchronise(descriptor) < 0 ? errno : 0;
  files.close(descriptor);
  // Some file systems have nothing to synchronise for a directory, and say so.
  if (failed != 0 && failed != EINVAL) throw detail::io_failure(path, "synchronise the directory", failed);
}

/// Renames a file or directory; what had the new name is replaced.
inline void rename(std::string const& from, std::string const& to, file_system& files = real_files()) {
  detail::checked(from, text("rename to ", to), [&] { return files.rename(from.c_str(), to.c_str()); });
}

/// A file that appears under its name only when it is complete, or not at all.
///
/// Written under a temporary name in the same directory; publish() brings the content to the device, renames, and
/// brings the new name to the device, in this order: after a crash or power loss either the old or the new file is
/// there, whole. Destroyed before publish(), it removes the temporary.
///
/// Threads  one owner. Two processes must not write the same path at once.
class atomic_file {
 public:
  explicit atomic_file(std::string path, file_system& files = real_files())
      : path_(std::move(path)), content_(path_ + ".partial", file::access::create, files) {}
  atomic_file(atomic_file&& other) noexcept
      : path_(std::move(other.path_)),
        content_(std::move(other.content_)),
        pending_(std::exchange(other.pending_, false)) {}
  ~atomic_file() {
    if (!pending_) return;
    // Nobody is left to tell if this fails; a later attempt empties the same temporary.
    content_.files().unlink(content_.path().c_str());
  }

  void write(std::span<std::byte const> bytes) { content_.write(bytes); }

  /// Makes the file visible. After a failure before the rename the old file is untouched.
  void publish() {
    content_.synchronise();
    content_.close();
    rename(content_.path(), path_, content_.files());
    pending_ = false;
    synchronise_directory(directory_of(path_), content_.files());
  }

 private:
  std::string path_;
  file content_;
  bool pending_ = true;
};

/// Replaces the content of a file, as atomic_file does.
inline void atomic_write(std::string const& path, std::span<std::byte const> bytes, file_system& files = real_files()) {
  atomic_file to(path, files);
  to.write(bytes);
  to.publish();
}
inline void atomic_write(std::string const& path, std::string_view characters, file_system& files = real_files()) {
  atomic_write(path, std::as_bytes(std::span(characters)), files);
}

}  // namespace trireme::formats

// ---- trireme/formats/json.hpp
namespace trireme::formats::json {

class value;

/// How large a text may be for parse() to read it.
struct limits {
  std::size_t depth = 32;  ///< nested arrays and objects
  std::size_t values = std::size_t{1} << 20;
  std::size_t string_bytes = std::size_t{1} << 24;
};

/// A named value of an object. (A template only because a value holds members, and a member a value.)
template <class Value>
struct basic_member {
  std::string key;
  Value content;
  friend bool operator==(basic_member const&, basic_member const&) = default;
};
using member = basic_member<value>;

using array = std::vector<value>;
using object = std::vector<member>;  ///< in the order of the text

/// A JSON value: what parse() makes and what to_string() prints.
///
/// Integers stay integers (int64, or uint64 above that range) and do not pass through double; an object keeps its
/// order. A value that came from a file knows where it stood there, so that whoever expects something else can say so:
/// the accessors throw format_error with path and byte.
///
/// Threads  as a std::vector.
class value {
 public:
  value() = default;
  value(std::nullptr_t) {}              // NOLINT(google-explicit-constructor)
  template <std::same_as<bool> Truth>   // a pointer is not a truth value
  value(Truth truth) : data_(truth) {}  // NOLINT(google-explicit-constructor)
  template <std::signed_integral Integer>
  value(Integer number) : data_(std::int64_t{number}) {}  // NOLINT(google-explicit-constructor)
  template <std::unsigned_integral Integer>
  requires(!std::same_as<Integer, bool>) value(Integer number) {  // NOLINT(google-explicit-constructor)
    if (std::uint64_t{number} > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      data_ = std::uint64_t{number};
    } else {
      data_ = static_cast<std::int64_t>(number);
    }
  }
  template <std::floating_point Float>
  value(Float number) : data_(static_cast<double>(number)) {}  // NOLINT(google-explicit-constructor)
  value(std::string text) : data_(std::move(text)) {}          // NOLINT(google-explicit-constructor)
  value(std::string_view text) : data_(std::string(text)) {}   // NOLINT(google-explicit-constructor)
  value(char const* text) : data_(std::string(text)) {}        // NOLINT(google-explicit-constructor)
  value(json::array elements) : data_(std::move(elements)) {}  // NOLINT(google-explicit-constructor)
  value(json::object members);                                 // NOLINT(google-explicit-constructor)

  /// An object from members: `json::value::make({{"step", 7}, {"loss", 0.5}})`.
  static value make(std::initializer_list<member> members);

  [[nodiscard]] bool is_null() const noexcept { return holds<std::monostate>(); }
  [[nodiscard]] bool is_bool() const noexcept { return holds<bool>(); }
  [[nodiscard]] bool is_integer() const noexcept { return holds<std::int64_t>() || holds<std::uint64_t>(); }
  [[nodiscard]] bool is_negative() const noexcept {
    auto const* number = std::get_if<std::int64_t>(&data_);
    return number != nullptr && *number < 0;
  }
  [[nodiscard]] bool is_number() const noexcept { return is_integer() || holds<double>(); }
  [[nodiscard]] bool is_string() const noexcept { return holds<std::string>(); }
  [[nodiscard]] bool is_array() const noexcept { return holds<json::array>(); }
  [[nodiscard]] bool is_object() const noexcept { return holds<json::object>(); }

  // Each throws format_error if the value is something else.
  [[nodiscard]] bool as_bool() const { return get<bool>("true or false"); }
  [[nodiscard]] std::int64_t as_int64() const { return get<std::int64_t>("an integer of 64 bits"); }
  [[nodiscard]] std::uint64_t as_uint64() const {
    if (auto const* small = std::get_if<std::int64_t>(&data_); small != nullptr && *small >= 0) {
      return static_cast<std::uint64_t>(*small);
    }
    return get<std::uint64_t>("an integer that is not negative");
  }
  [[nodiscard]] double as_double() const {
    if (auto const* number = std::get_if<std::int64_t>(&data_)) return static_cast<double>(*number);
    if (auto const* number = std::get_if<std::uint64_t>(&data_)) return static_cast<double>(*number);
    return get<double>("a number");
  }
  [[nodiscard]] std::string const& as_string() const { return get<std::string>("a string"); }
  [[nodiscard]] json::array const& as_array() const { return get<json::array>("an array"); }
  [[nodiscard]] json::object const& as_object() const { return get<json::object>("an object"); }

  /// The member of that name, or nullptr; linear in the number of members.
  [[nodiscard]] value const* find(std::string_view key) const;
  /// The member of that name; throws format_error if there is none.
  [[nodiscard]] value const& at(std::string_view key) const;
  /// Sets a member, new or not, of an object (null becomes an empty object first).
  value& set(std::string key, value to);
  /// Adds an element to an array (null becomes an empty array first).
  value& push_back(value element);

  /// The byte of the file at which the value began, 0 for a value made in the program.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  /// Throws format_error that points at this value: for what only the caller can check.
  [[noreturn]] void fail(std::string_view reason) const {
    throw format_error(source_ == nullptr ? "trireme::formats::json" : *source_, offset_, reason);
  }
  /// Remembers where the value came from.
  void locate(std::shared_ptr<std::string const> source, std::uint64_t offset) noexcept {
    source_ = std::move(source);
    offset_ = offset;
  }

  /// Equal content; where it came from does not count.
  friend bool operator==(value const& a, value const& b) { return a.data_ == b.data_; }

 private:
  template <class T>
  [[nodiscard]] bool holds() const noexcept {
    return std::holds_alternative<T>(data_);
  }
  template <class T>
  [[nodiscard]] T const& get(std::string_view wanted) const {
    if (auto const* content = std::get_if<T>(&data_)) return *content;
    fail(text("expected ", wanted));
  }

  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, json::array, json::object> data_;
  std::shared_ptr<std::string const> source_;
  std::uint64_t offset_ = 0;
};

inline value::value(json::object members) : data_(std::move(members)) {}
inline value value::make(std::initializer_list<member> members) { return json::object(members); }
inline value const* value::find(std::string_view key) const {
  auto const& members = as_object();
  auto const found = std::find_if(members.begin(), members.end(), [&](member const& m) { return m.key == key; });
  return found == members.end() ? nullptr : &found->content;
}
inline value const& value::at(std::string_view key) const {
  auto const* found = find(key);
  if (found == nullptr) fail(text("the object has no \"", key, "\""));
  return *found;
}
inline value& value::set(std::string key, value to) {
  if (is_null()) data_ = json::object{};
  if (auto const* old = find(key)) return const_cast<value&>(*old) = std::move(to);  // ours, and we are not const
  return std::get<json::object>(data_).emplace_back(member{std::move(key), std::move(to)}).content;
}
inline value& value::push_back(value element) {
  if (is_null()) data_ = json::array{};
  static_cast<void>(as_array());
  return std::get<json::array>(data_).emplace_back(std::move(element));
}

}  // namespace trireme::formats::json

// ---- trireme/formats/detail/json_scanner.hpp
namespace trireme::formats::detail {

/// Reads the tokens of a JSON text one by one, keeps nothing, and throws format_error with the byte at fault.
/// `base` is where the text begins in its file.
class json_scanner {
 public:
  json_scanner(std::string_view text, std::string_view path, std::uint64_t base = 0)
      : text_(text), path_(path), base_(base) {}

  [[noreturn]] void fail(std::size_t at, std::string_view reason) const {
    throw format_error(std::string(path_), base_ + at, reason);
  }
  [[nodiscard]] std::size_t position() const noexcept { return at_; }
  [[nodiscard]] bool at_end() const noexcept { return at_ == text_.size(); }

  void skip_space() noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  /// The next character that is not white space, or NUL at the end; does not consume it.
  [[nodiscard]] char peek() noexcept {
    skip_space();
    return at_end() ? '\0' : text_[at_];
  }
  [[nodiscard]] bool accept(char wanted) noexcept {
    if (at_end() || peek() != wanted || at_end()) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(at_, text("expected '", wanted, "'", at_end() ? ", found the end" : ""));
  }
  void expect_end() {
    skip_space();
    if (!at_end()) fail(at_, "something follows the JSON text");
  }
  void literal(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail(at_, "expected a value");
    at_ += word.size();
  }

  /// A string without its quotes and escapes, of at most `most` bytes.
  [[nodiscard]] std::string string(std::size_t most) {
    expect('"');
    auto const start = at_;
    std::string out;
    for (;;) {
      auto const run = at_;
      while (at_ < text_.size() && plain(text_[at_])) ++at_;
      out.append(text_, run, at_ - run);
      if (at_end()) fail(at_, "a string does not end");
      auto const c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') break;
      if (c < 0x20) fail(at_, "a control character inside a string");
      c == '\\' ? escape(out) : utf8(out);
      if (out.size() > most) break;
    }
    if (out.size() > most) fail(start, text("a string of more than ", most, " bytes"));
    ++at_;
    return out;
  }

  /// An integer without sign, fraction or exponent.
  [[nodiscard]] std::uint64_t unsigned_integer() {
    skip_space();
    auto const start = at_;
    auto const digits = number();
    if (digits.find_first_not_of("0123456789") != std::string_view::npos) {
      fail(start, "expected an integer without sign, fraction or exponent");
    }
    std::uint64_t out = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), out).ec != std::errc{}) {
      fail(start, "an integer that does not fit into 64 bits");
    }
    return out;
  }

  /// The characters of a number, checked against the grammar.
  [[nodiscard]] std::string_view number() {
    skip_space();
    auto const start = at_;
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    if (at_ < text_.size() && text_[at_] == '0') {
      ++at_;
      if (at_ < text_.size() && digit(text_[at_])) fail(start, "a number with a leading zero");
    } else {
      digits(start);
    }
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      digits(start);
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      digits(start);
    }
    return text_.substr(start, at_ - start);
  }

 private:
  static bool digit(char c) noexcept { return c >= '0' && c <= '9'; }
  static bool plain(char c) noexcept {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x80 && c != '"' && c != '\\';
  }
  void digits(std::size_t start) {
    auto const first = at_;
    while (at_ < text_.size() && digit(text_[at_])) ++at_;
    if (at_ == first) fail(start, "expected a value");
  }

  [[nodiscard]] std::uint32_t hexadecimal_escape(std::size_t start) {
    std::uint32_t code = 0;
    if (text_.size() - at_ < 4) fail(start, "an escape is cut short");
    auto const result = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
    if (result.ec != std::errc{} || result.ptr != text_.data() + at_ + 4) fail(start, "\\u without four digits");
    at_ += 4;
    return code;
  }
  void escape(std::string& out) {
    auto const start = at_;
    if (text_.size() - at_ < 2) fail(start, "an escape is cut short");
    char const kind = text_[at_ + 1];
    at_ += 2;
    constexpr std::string_view names = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    if (auto const known = names.find(kind); known != std::string_view::npos) {
      out += meanings[known];
      return;
    }
    if (kind != 'u') fail(start, "an unknown escape");
    auto code = hexadecimal_escape(start);
    if (code >= 0xd800 && code < 0xdc00) {
      if (text_.substr(at_, 2) != "\\u") fail(start, "half a surrogate pair");
      at_ += 2;
      auto const low = hexadecimal_escape(start);
      if (low < 0xdc00 || low > 0xdfff) fail(start, "half a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
      fail(start, "half a surrogate pair");
    }
    append_utf8(out, code);
  }
  static void append_utf8(std::string& out, std::uint32_t code) {
    auto const tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3f)); };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xc0 | code >> 6);
      tail(0);
    } else if (code < 0x10000) {
      out += static_cast<char>(0xe0 | code >> 12);
      tail(6), tail(0);
    } else {
      out += static_cast<char>(0xf0 | code >> 18);
      tail(12), tail(6), tail(0);
    }
  }
  /// One character of two to four bytes: shortest form only, no surrogates, at most U+10FFFF.
  void utf8(std::string& out) {
    auto const start = at_;
    auto const lead = static_cast<unsigned char>(text_[at_]);
    std::size_t const length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text_.size() - at_ < length) fail(start, "not UTF-8");
    for (std::size_t i = 1; i < length; ++i) {
      auto const next = static_cast<unsigned char>(text_[at_ + i]);
      auto const low = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
      auto const high = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
      if (next < low || next > high) fail(start, "not UTF-8");
    }
    out.append(text_, at_, length);
    at_ += length;
  }

  std::string_view text_;
  std::string_view path_;
  std::uint64_t base_;
  std::size_t at_ = 0;
};

}  // namespace trireme::formats::detail

// ---- trireme/formats/detail/json_parse.hpp (goes on)
namespace trireme::formats::json {

namespace detail {

using trireme::formats::detail::json_scanner;

/// Fails at the second of two members of one name.
inline void refuse_duplicates(json_scanner const& scan, object const& members) {
  std::vector<member const*> sorted;
  for (auto const& each : members) sorted.push_back(&each);
  std::stable_sort(sorted.begin(), sorted.end(), [](auto const* a, auto const* b) { return a->key < b->key; });
  auto const twice =
      std::adjacent_find(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->key == b->key; });
  if (twice == sorted.end()) return;
  scan.fail(twice[1]->content.offset(), text("a second member named \"", twice[1]->key.substr(0, 80), "\""));
}

/// Builds the tree with a stack of its own, so that no input can exhaust the stack of the thread.
class tree_builder {
 public:
  tree_builder(std::string_view text, std::string_view path, limits const& most)
      : scan_(text, path), source_(std::make_shared<std::string const>(path)), most_(most) {}

  [[nodiscard]] value build() {
    value root;
    read(root);
    while (!open_.empty()) step();
    scan_.expect_end();
    return root;
  }

 private:
  /// A container whose end has not been read. It is moved to its place only then, so growing it moves no open child.
  struct level {
    value* place;
    bool is_object;
    array elements;
    object members;
  };

  /// Reads a value, or the bracket that opens one.
  void read(value& into) {
    char const first = scan_.peek();
    auto const start = scan_.position();
    if (++count_ > most_.values) scan_.fail(start, text("more than ", most_.values, " values"));
    switch (first) {
      case '{':
      case '[':
        if (open_.size() == most_.depth) scan_.fail(start, text("nested more than ", most_.depth, " deep"));
        scan_.expect(first);
        open_.push_back({&into, first == '{', {}, {}});
        fresh_ = true;
        break;
      case '"':
        into = scan_.string(most_.string_bytes);
        break;
      case 't':
        scan_.literal("true"), into = true;
        break;
      case 'f':
        scan_.literal("false"), into = false;
        break;
      case 'n':
        scan_.literal("null"), into = nullptr;
        break;
      default:
        into = number(start);
        break;
    }
    into.locate(source_, start);
  }

  /// Reads one more element of the innermost container, or its end.
  void step() {
    auto& top = open_.back();
    bool const first = std::exchange(fresh_, false);
    if (scan_.accept(top.is_object ? '}' : ']')) return close();
    if (!first) scan_.expect(',');
    if (top.is_object) {
      top.members.push_back({scan_.string(most_.string_bytes), {}});
      scan_.expect(':');
      read(top.members.back().content);
    } else {
      read(top.elements.emplace_back());
    }
  }

  void close() {
    auto top = std::move(open_.back());
    open_.pop_back();
    auto const start = top.place->offset();
    if (top.is_object) {
      refuse_duplicates(scan_, top.members);
      *top.place = std::move(top.members);
    } else {
      *top.place = std::move(top.elements);
    }
    top.place->locate(source_, start);
  }

  [[nodiscard]] value number(std::size_t start) {
    auto const digits = scan_.number();
    auto const* const first = digits.data();
    auto const* const last = first + digits.size();
    if (digits.find_first_of(".eE") == std::string_view::npos && digits != "-0") {
      std::int64_t small = 0;
      if (std::from_chars(first, last, small).ec == std::errc{}) return small;
      std::uint64_t large = 0;
      if (std::from_chars(first, last, large).ec == std::errc{}) return large;
    }
    double real = 0;
    if (std::from_chars(first, last, real).ec != std::errc{}) scan_.fail(start, "a number outside the range of double");
    return real;
  }

  json_scanner scan_;
  std::shared_ptr<std::string const> source_;
  limits most_;
  std::vector<level> open_;
  std::size_t count_ = 0;
  bool fresh_ = false;
};

}  // namespace detail

/// Reads a JSON text (RFC 8259).
///
/// Strict: UTF-8 in shortest form, no member twice, no trailing comma, nothing after the value. An integer beyond 64
/// bits becomes a double; a number outside the range of double is refused. Memory: at most 100 bytes a value, and a
/// value takes at least two bytes of text.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param path  what errors call the text.
[[nodiscard]] inline value parse(std::string_view text, std::string_view path, limits const& most = {}) {
  return detail::tree_builder(text, path, most).build();
}

}  // namespace trireme::formats::json

// ---- trireme/formats/detail/json_print.hpp
namespace trireme::formats::json {

namespace detail {

/// A string in quotes; only what must be escaped is.
inline void print_string(std::string& out, std::string_view content) {
  out += '"';
  for (char const c : content) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += "0123456789abcdef"[c >> 4 & 15];
          out += "0123456789abcdef"[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

/// The shortest text that reads back as the same double, and as a double.
inline void print_double(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  char digits[32];
  std::string_view const shortest(digits,
                                  static_cast<std::size_t>(std::to_chars(digits, digits + 32, number).ptr - digits));
  out += shortest;
  if (shortest.find_first_of(".e") == std::string_view::npos) out += ".0";
}

class printer {
 public:
  printer(std::string& out, int indent) : out_(out), indent_(indent) {}

  void print(value const& content, std::size_t depth) {
    if (depth > limits{}.depth) throw config_error("trireme::formats::json: a value nested more than 32 deep");
    if (content.is_object()) return print_all(content.as_object(), '{', '}', depth);
    if (content.is_array()) return print_all(content.as_array(), '[', ']', depth);
    if (content.is_string()) return print_string(out_, content.as_string());
    if (content.is_null()) return out_.append("null"), void();
    if (content.is_bool()) return out_.append(content.as_bool() ? "true" : "false"), void();
    if (!content.is_integer()) return print_double(out_, content.as_double());
    out_ += content.is_negative() ? text(content.as_int64()) : text(content.as_uint64());
  }

 private:
  template <class Items>
  void print_all(Items const& items, char open, char close, std::size_t depth) {
    out_ += open;
    bool first = true;
    for (auto const& item : items) {
      if (!first) out_ += ',';
      first = false;
      line(depth + 1);
      print_item(item, depth + 1);
    }
    if (!items.empty()) line(depth);
    out_ += close;
  }
  void print_item(value const& item, std::size_t depth) { print(item, depth); }
  void print_item(member const& item, std::size_t depth) {
    print_string(out_, item.key);
    out_ += indent_ < 0 ? ":" : ": ";
    print(item.content, depth);
  }
  void line(std::size_t depth) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(depth * static_cast<std::size_t>(indent_), ' ');
  }

  std::string& out_;
  int indent_;
};

}  // namespace detail

/// The text of a value; parse() gives an equal value back.
///
/// Numerics  doubles in their shortest exact form, and with a point so that they stay doubles; a double that is not
///           finite becomes null, because JSON has no word for it.
/// Errors    throws config_error if nested more than 32 deep. Strings are written as they are and should be UTF-8.
///
/// @param indent  spaces a level, or -1 for one line without spaces.
[[nodiscard]] inline std::string to_string(value const& content, int indent = -1) {
  std::string out;
  detail::printer(out, indent).print(content, 0);
  return out;
}

}  // namespace trireme::formats::json

// ---- trireme/formats/safetensors.hpp
namespace trireme::formats::safetensors {

/// A type of elements as the format names it, "F32" for one. There are more of them than trireme computes with.
class stored_type {
 public:
  constexpr stored_type() = default;
  constexpr stored_type(dtype type)  // NOLINT(google-explicit-constructor)
      : name_(name_of(type)), bits_(static_cast<int>(size_of(type)) * 8) {}
  /// The type of that name, if the format has it.
  [[nodiscard]] static std::optional<stored_type> named(std::string_view name) noexcept;

  [[nodiscard]] constexpr std::string_view name() const noexcept { return name_; }
  [[nodiscard]] constexpr int bits() const noexcept { return bits_; }
  friend constexpr bool operator==(stored_type a, stored_type b) noexcept { return a.name_ == b.name_; }

 private:
  constexpr stored_type(std::string_view name, int bits) noexcept : name_(name), bits_(bits) {}
  std::string_view name_ = "U8";
  int bits_ = 8;
};

/// A tensor of a file. A writer is told name, type and shape; `begin` and `bytes`, counted from the start of the file's
/// data, follow from them.
struct entry {
  std::string name;
  stored_type type;
  shape extents;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(entry const&, entry const&) = default;
};

using metadata = std::vector<std::pair<std::string, std::string>>;

/// What the first part of a file says.
struct header {
  std::vector<entry> entries;     ///< in the order of their data
  safetensors::metadata notes;    ///< `__metadata__`, in the order of the text
  std::uint64_t data_offset = 0;  ///< where the data begins in the file
};

// What is refused beyond the rules of the format.
inline constexpr std::uint64_t most_header_bytes = 100'000'000;
inline constexpr std::size_t most_tensors = 1'000'000;
inline constexpr std::size_t most_name_bytes = 4096;

/// The length of the whole header (8 + n), from the first eight bytes. Throws format_error if the file cannot have it.
[[nodiscard]] std::uint64_t header_bytes(std::span<std::byte const> start, std::uint64_t file_size,
                                         std::string const& path);

/// Reads and checks a header; touches nothing but its arguments, so that it can be fuzzed.
///
/// Enforced: a header of at most 100 MB that lies within the file; strict JSON of the fixed schema, no name twice; at
/// most a million tensors, rank at most 6, names of at most 4096 bytes; sizes that agree with type and shape, by
/// checked arithmetic; data without overlap, without holes, and to the exact end of the file.
/// Stricter than the reference reader in this only: bounds on tensors, rank and names; members of a tensor that the
/// format does not have; equal keys in `__metadata__`.
///
/// Errors   throws format_error(path, byte, reason).
///
/// @param start  the first header_bytes() bytes of the file, or more.
[[nodiscard]] header parse_header(std::span<std::byte const> start, std::uint64_t file_size, std::string const& path);

/// Reads tensors, or parts of them, from a file in the format of Hugging Face.
///
/// Only what is asked for is read (pread, no memory map: a file that shrinks meanwhile is an error, not a signal).
///
/// Threads  read() may be called from several threads at once.
/// Errors   format_error if the file is not what it should be (see parse_header), io_error if it cannot be read,
///          config_error if a tensor or range is asked for that it does not have.
class reader {
 public:
  explicit reader(std::string path, file_system& files = real_files());

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return header_.entries; }
  [[nodiscard]] safetensors::metadata const& metadata() const noexcept { return header_.notes; }
  /// The value of a `__metadata__` key, or nullptr.
  [[nodiscard]] std::string const* note(std::string_view key) const noexcept;
  /// The tensor of that name, or nullptr.
  [[nodiscard]] entry const* find(std::string_view name) const noexcept;
  [[nodiscard]] entry const& at(std::string_view name) const;

  /// Fills `to` with the bytes of a tensor from element `first` on.
  void read(std::string_view name, std::uint64_t first, std::span<std::byte> to) const { read(at(name), first, to); }
  void read(entry const& from, std::uint64_t first, std::span<std::byte> to) const;

  /// The same with the type checked. T may not differ from the stored type.
  template <element T>
  void read(std::string_view name, std::uint64_t first, std::span<T> to) const requires(!std::is_same_v<T, std::byte>) {
    require_type(at(name), dtype_of<T>);
    read(at(name), first, std::as_writable_bytes(to));
  }

 private:
  void require_type(entry const& which, dtype wanted) const;

  file file_;
  header header_;
  std::vector<std::uint32_t> by_name_;  // indices of entries, sorted by name
};

/// What a writer does besides writing.
struct writer_options {
  sha256* digest = nullptr;  ///< is updated with every byte of the file
  file_system* files = nullptr;
};

/// Writes a file: the tensors are declared first, then their bytes come in the same order, in pieces of any size.
///
/// The file appears under its name at finish(), complete and on the device (atomic_file); a writer that is destroyed
/// earlier leaves nothing. Tensors lie as declared, without gaps: declare those of wide types first, so that every
/// tensor is aligned. The data begins at a multiple of 8.
///
/// Errors   io_error; config_error for entries that the reader would refuse, for bytes beyond the declared ones, and
///          for finish() before all are there.
class writer {
 public:
  writer(std::string path, std::vector<entry> entries, safetensors::metadata notes = {}, writer_options options = {});

  /// With begin and bytes filled in.
  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return entries_; }
  /// The length of the finished file.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  void write(std::span<std::byte const> bytes);
  void finish();

 private:
  void put(std::span<std::byte const> bytes);

  std::string path_;
  std::vector<entry> entries_;
  writer_options options_;
  std::uint64_t left_;  // bytes of data that are still to come
  std::string header_;
  std::uint64_t file_bytes_;
  atomic_file file_;
};

}  // namespace trireme::formats::safetensors

// ---- trireme/formats/detail/safetensors_header.inl
namespace trireme::formats::safetensors {

inline std::optional<stored_type> stored_type::named(std::string_view name) noexcept {
  static constexpr std::array known{
      stored_type("BOOL", 8),        stored_type("U8", 8),      stored_type("I8", 8),
      stored_type("U16", 16),        stored_type("I16", 16),    stored_type("U32", 32),
      stored_type("I32", 32),        stored_type("U64", 64),    stored_type("I64", 64),
      stored_type("F16", 16),        stored_type("BF16", 16),   stored_type("F32", 32),
      stored_type("F64", 64),        stored_type("C64", 64),    stored_type("F8_E5M2", 8),
      stored_type("F8_E4M3", 8),     stored_type("F8_E8M0", 8), stored_type("F8_E5M2FNUZ", 8),
      stored_type("F8_E4M3FNUZ", 8), stored_type("F6_E2M3", 6), stored_type("F6_E3M2", 6),
      stored_type("F4", 4)};
  for (auto const type : known) {
    if (type.name() == name) return type;
  }
  return std::nullopt;
}

namespace detail {

using trireme::formats::detail::json_scanner;

/// The bytes of a tensor, or nothing if they cannot be counted in 64 bits or are not whole.
inline std::optional<std::uint64_t> tensor_bytes(stored_type type, std::span<std::int64_t const> extents) noexcept {
  std::uint64_t bits = static_cast<std::uint64_t>(type.bits());
  for (auto const extent : extents) {
    if (extent < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

/// Two entries of one name, or nothing.
inline entry const* duplicate(std::vector<entry> const& entries, std::vector<std::uint32_t>& by_name) {
  by_name.resize(entries.size());
  for (std::size_t i = 0; i < by_name.size(); ++i) by_name[i] = static_cast<std::uint32_t>(i);
  std::sort(by_name.begin(), by_name.end(), [&](auto a, auto b) { return entries[a].name < entries[b].name; });
  auto const twice = std::adjacent_find(by_name.begin(), by_name.end(),
                                        [&](auto a, auto b) { return entries[a].name == entries[b].name; });
  return twice == by_name.end() ? nullptr : &entries[twice[1]];
}

/// Reads the JSON of a header: a fixed schema, so no tree is built and nothing is nested.
class header_parser {
 public:
  header_parser(std::string_view json, std::string const& path) : scan_(json, path, 8) {}

  [[nodiscard]] header parse() {
    for_each_member([&](std::string name, std::size_t at) {
      if (name == "__metadata__") {
        read_metadata(at);
      } else {
        read_entry(std::move(name), at);
      }
    });
    scan_.expect_end();
    if (auto const* twice = duplicate(out_.entries, by_name_)) {
      scan_.fail(0, text("two tensors are named \"", twice->name.substr(0, 80), "\""));
    }
    return std::move(out_);
  }

 private:
  /// Calls body(name, where the name stands) at the value of each member of the object that comes next.
  template <class Body>
  void for_each_member(Body&& body) {
    scan_.expect('{');
    if (scan_.accept('}')) return;
    do {
      static_cast<void>(scan_.peek());
      auto const at = scan_.position();
      auto name = scan_.string(most_name_bytes);
      scan_.expect(':');
      body(std::move(name), at);
    } while (scan_.accept(','));
    scan_.expect('}');
  }

  void read_metadata(std::size_t at) {
    if (std::exchange(has_metadata_, true)) scan_.fail(at, "a second __metadata__");
    for_each_member([&](std::string name, std::size_t) {
      // A value is bounded by the header itself: it is text for people, of any length.
      out_.notes.emplace_back(std::move(name), scan_.string(most_header_bytes));
    });
    std::vector<std::string_view> names;
    for (auto const& note : out_.notes) names.push_back(note.first);
    std::sort(names.begin(), names.end());
    if (std::adjacent_find(names.begin(), names.end()) != names.end()) scan_.fail(at, "two metadata keys are equal");
  }

  void read_entry(std::string name, std::size_t at) {
    if (out_.entries.size() == most_tensors) scan_.fail(at, text("more than ", most_tensors, " tensors"));
    entry tensor{std::move(name), {}, {}, 0, 0};
    std::uint64_t end = 0;
    std::array<bool, 3> seen{};
    for_each_member([&](std::string const& key, std::size_t key_at) {
      auto const which = key == "dtype" ? 0U : key == "shape" ? 1U : key == "data_offsets" ? 2U : 3U;
      if (which == 3) scan_.fail(key_at, text("a tensor has no member \"", key.substr(0, 80), "\""));
      if (std::exchange(seen[which], true)) scan_.fail(key_at, text("a second member \"", key, "\""));
      if (which == 0) tensor.type = read_type();
      if (which == 1) tensor.extents = read_shape();
      if (which == 2) end = read_offsets(tensor);
    });
    for (std::size_t i = 0; i < 3; ++i) {
      constexpr std::array<std::string_view, 3> names{"dtype", "shape", "data_offsets"};
      if (!seen[i]) scan_.fail(at, text("a tensor without \"", names[i], "\""));
    }
    if (end < tensor.begin) scan_.fail(at, "data_offsets end before they begin");
    auto const bytes = tensor_bytes(tensor.type, tensor.extents.extents());
    if (!bytes) scan_.fail(at, "dtype times shape is too large, or not whole bytes");
    if (end - tensor.begin != *bytes) {
      scan_.fail(at, text("data_offsets span ", end - tensor.begin, " bytes, dtype and shape need ", *bytes));
    }
    tensor.bytes = *bytes;
    out_.entries.push_back(std::move(tensor));
  }

  [[nodiscard]] stored_type read_type() {
    static_cast<void>(scan_.peek());
    auto const at = scan_.position();
    auto const type = stored_type::named(scan_.string(64));
    if (!type) scan_.fail(at, "an unknown dtype");
    return *type;
  }
  [[nodiscard]] shape read_shape() {
    shape out;
    scan_.expect('[');
    if (scan_.accept(']')) return out;
    do {
      static_cast<void>(scan_.peek());
      auto const at = scan_.position();
      auto const extent = scan_.unsigned_integer();
      if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        scan_.fail(at, "an extent of more than 63 bits");
      }
      if (out.rank() == shape::max_rank) scan_.fail(at, text("a shape of more than ", shape::max_rank, " extents"));
      out.push_back(static_cast<std::int64_t>(extent));
    } while (scan_.accept(','));
    scan_.expect(']');
    return out;
  }
  [[nodiscard]] std::uint64_t read_offsets(entry& tensor) {
    scan_.expect('[');
    tensor.begin = scan_.unsigned_integer();
    scan_.expect(',');
    auto const end = scan_.unsigned_integer();
    scan_.expect(']');
    return end;
  }

  json_scanner scan_;
  header out_;
  std::vector<std::uint32_t> by_name_;
  bool has_metadata_ = false;
};

/// The data must be covered exactly once, in order, up to the end of the file.
inline void check_cover(header& head, std::uint64_t file_size, std::string const& path) {
  // Empty tensors share their begin with the next one and so come first.
  std::stable_sort(head.entries.begin(), head.entries.end(), [](entry const& a, entry const& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  });
  std::uint64_t covered = 0;
  for (auto const& each : head.entries) {
    if (each.begin != covered) {
      throw format_error(path, head.data_offset,
                         text("tensor \"", each.name.substr(0, 80), "\" begins at ", each.begin,
                              each.begin < covered ? " and overlaps the one before, which ends at "
                                                   : " and leaves a hole behind the one before, which ends at ",
                              covered));
    }
    covered += each.bytes;  // cannot wrap: begin + bytes was read as one 64-bit number
  }
  auto const data = file_size - head.data_offset;
  if (covered > data) {
    throw format_error(path, file_size, text("the file ends, its tensors need ", covered - data, " bytes more"));
  }
  if (covered < data) {
    throw format_error(path, head.data_offset + covered, text(data - covered, " bytes follow the last tensor"));
  }
}

}  // namespace detail

inline std::uint64_t header_bytes(std::span<std::byte const> start, std::uint64_t file_size, std::string const& path) {
  if (file_size < 8 || start.size() < 8) throw format_error(path, file_size, "shorter than the 8 bytes of a length");
  std::uint64_t json = 0;
  for (std::size_t i = 0; i < 8; ++i) json |= std::to_integer<std::uint64_t>(start[i]) << (8 * i);
  if (json > most_header_bytes) throw format_error(path, 0, text("a header of ", json, " bytes, more than 100 MB"));
  if (json > file_size - 8) {
    throw format_error(path, 0, text("a header of ", json, " bytes in a file of ", file_size));
  }
  return 8 + json;
}

inline header parse_header(std::span<std::byte const> start, std::uint64_t file_size, std::string const& path) {
  auto const size = header_bytes(start, file_size, path);
  if (start.size() < size) throw format_error(path, start.size(), "the header is cut short");
  std::string_view const json(reinterpret_cast<char const*>(start.data()) + 8, static_cast<std::size_t>(size - 8));
  auto out = detail::header_parser(json, path).parse();
  out.data_offset = size;
  detail::check_cover(out, file_size, path);
  return out;
}

}  // namespace trireme::formats::safetensors

// ---- trireme/formats/detail/safetensors_io.inl
namespace trireme::formats::safetensors {

namespace detail {

inline header read_header(file const& from) {
  auto const size = from.size();
  std::vector<std::byte> start(static_cast<std::size_t>(std::min<std::uint64_t>(8, size)));
  from.read(0, start);
  start.resize(static_cast<std::size_t>(header_bytes(start, size, from.path())));
  from.read(8, std::span(start).subspan(8));
  return parse_header(start, size, from.path());
}

/// Fills in where the data of each entry lies, and returns where the last one ends.
inline std::uint64_t place(std::vector<entry>& entries, std::string const& path) {
  if (entries.size() > most_tensors) throw config_error(text(path, ": more than ", most_tensors, " tensors"));
  std::uint64_t end = 0;
  for (auto& each : entries) {
    auto const bytes = tensor_bytes(each.type, each.extents.extents());
    auto const fits = bytes && *bytes < std::uint64_t{1} << 62 && end < std::uint64_t{1} << 62;
    if (!fits || each.name.size() > most_name_bytes || each.name == "__metadata__") {
      throw config_error(text("trireme::formats::safetensors: ", path, ": no tensor can be named \"",
                              each.name.substr(0, 80), "\" with dtype ", each.type.name(), " and shape ",
                              to_string(each.extents)));
    }
    each.begin = end;
    each.bytes = *bytes;
    end += *bytes;
  }
  std::vector<std::uint32_t> scratch;
  if (auto const* twice = duplicate(entries, scratch)) {
    throw config_error(text("trireme::formats::safetensors: ", path, ": two tensors are named \"", twice->name, "\""));
  }
  return end;
}

/// The first part of a file, length and all, padded with spaces to a multiple of eight.
inline std::string print_header(std::vector<entry> const& entries, metadata const& notes, std::string const& path) {
  using json::detail::print_string;
  std::string out(8, '\0');
  out += '{';
  auto const next = [&] {
    if (out.back() != '{') out += ',';
  };
  if (!notes.empty()) {
    out += "\"__metadata__\":{";
    for (auto const& [key, content] : notes) {
      next();
      print_string(out, key);
      out += ':';
      print_string(out, content);
    }
    out += '}';
  }
  for (auto const& each : entries) {
    next();
    print_string(out, each.name);
    out += text(":{\"dtype\":\"", each.type.name(), "\",\"shape\":[");
    for (int axis = 0; axis < each.extents.rank(); ++axis) out += text(axis == 0 ? "" : ",", each.extents[axis]);
    out += text("],\"data_offsets\":[", each.begin, ",", each.begin + each.bytes, "]}");
  }
  out += '}';
  out.append((8 - out.size() % 8) % 8, ' ');
  auto const json = out.size() - 8;
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(json >> (8 * i) & 0xff);
  // What the writer wrote the reader must take: equal keys, text that is not UTF-8, and the size are found here.
  auto const end = entries.empty() ? 0 : entries.back().begin + entries.back().bytes;
  try {
    static_cast<void>(parse_header(std::as_bytes(std::span(out)), out.size() + end, path));
  } catch (format_error const& error) {
    throw config_error(text("trireme::formats::safetensors: cannot write this header: ", error.what()));
  }
  return out;
}

}  // namespace detail

inline reader::reader(std::string path, file_system& files)
    : file_(std::move(path), file::access::read, files), header_(detail::read_header(file_)) {
  static_cast<void>(detail::duplicate(header_.entries, by_name_));
}

inline std::string const* reader::note(std::string_view key) const noexcept {
  for (auto const& [name, content] : header_.notes) {
    if (name == key) return &content;
  }
  return nullptr;
}

inline entry const* reader::find(std::string_view name) const noexcept {
  auto const found = std::lower_bound(by_name_.begin(), by_name_.end(), name, [&](auto index, std::string_view wanted) {
    return header_.entries[index].name < wanted;
  });
  if (found == by_name_.end() || header_.entries[*found].name != name) return nullptr;
  return &header_.entries[*found];
}

inline entry const& reader::at(std::string_view name) const {
  auto const* found = find(name);
  if (found == nullptr) {
    throw config_error(text("trireme::formats::safetensors: ", path(), " has no tensor named \"", name, "\""));
  }
  return *found;
}

inline void reader::read(entry const& from, std::uint64_t first, std::span<std::byte> to) const {
  std::uint64_t bits = 0;
  bool const fits = !__builtin_mul_overflow(first, static_cast<std::uint64_t>(from.type.bits()), &bits) &&
                    bits % 8 == 0 && bits / 8 <= from.bytes && to.size() <= from.bytes - bits / 8;
  if (!fits) {
    throw config_error(text("trireme::formats::safetensors: ", path(), ": tensor \"", from.name, "\" has ", from.bytes,
                            " bytes; asked for ", to.size(), " from element ", first, " on"));
  }
  file_.read(header_.data_offset + from.begin + bits / 8, to);
}

inline void reader::require_type(entry const& which, dtype wanted) const {
  if (which.type == stored_type(wanted)) return;
  throw config_error(text("trireme::formats::safetensors: ", path(), ": tensor \"", which.name, "\" is ",
                          which.type.name(), ", not ", name_of(wanted)));
}

inline writer::writer(std::string path, std::vector<entry> entries, safetensors::metadata notes, writer_options options)
    : path_(std::move(path)),
      entries_(std::move(entries)),
      options_(options),
      left_(detail::place(entries_, path_)),
      header_(detail::print_header(entries_, notes, path_)),
      file_bytes_(header_.size() + left_),
      file_(path_, options_.files == nullptr ? real_files() : *options_.files) {
  put(std::as_bytes(std::span(header_)));
  header_ = {};
}

inline void writer::put(std::span<std::byte const> bytes) {
  file_.write(bytes);
  if (options_.digest != nullptr) options_.digest->update(bytes);
}

inline void writer::write(std::span<std::byte const> bytes) {
  if (bytes.size() > left_) {
    throw config_error(text("trireme::formats::safetensors: ", path_, ": ", bytes.size() - left_,
                            " bytes more than its tensors have"));
  }
  put(bytes);
  left_ -= bytes.size();
}

inline void writer::finish() {
  if (left_ != 0) {
    throw config_error(text("trireme::formats::safetensors: ", path_, ": ", left_, " bytes have not been written"));
  }
  file_.publish();
}

}  // namespace trireme::formats::safetensors

// ---- trireme/train/detail/checkpoint_files.hpp
#include <dirent.h>

namespace trireme::checkpoint::detail {

inline constexpr std::int64_t format_version = 2;
inline constexpr char const* temporary_name = ".saving";
inline constexpr std::string_view step_prefix = "step-";

/// "step-0000000500": names sort as steps do.
[[nodiscard]] inline std::string step_name(std::int64_t step) {
  auto digits = text(step);
  return std::string(step_prefix) + std::string(10 - std::min<std::size_t>(10, digits.size()), '0') + digits;
}
[[nodiscard]] inline std::string rank_file(std::string const& directory, int rank) {
  return text(directory, "/rank-", rank, ".safetensors");
}

/// The names in a directory, without "." and ".."; none if it cannot be read.
[[nodiscard]] inline std::vector<std::string> names_in(std::string const& directory) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> const open(::opendir(directory.c_str()), ::closedir);
  if (!open) return names;
  while (auto const* const entry = ::readdir(open.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}
/// The checkpoints of a directory, oldest first.
[[nodiscard]] inline std::vector<std::string> steps_in(std::string const& directory) {
  auto names = names_in(directory);
  std::erase_if(names, [](std::string const& name) { return !name.starts_with(step_prefix); });
  return names;
}
[[nodiscard]] inline std::string newest(std::string const& directory) {
  auto const steps = steps_in(directory);
  if (steps.empty())
    throw io_error(directory, "there is no checkpoint here; start without --resume, or name the run that has one");
  return directory + "/" + steps.back();
}

/// Removes a directory and the files in it; what cannot be removed stays.
inline void remove_tree(std::string const& path, formats::file_system& files) {
  for (auto const& name : names_in(path)) files.unlink((path + "/" + name).c_str());
  files.remove_directory(path.c_str());
}

inline void make_directory(std::string const& path, formats::file_system& files) {
  if (files.make_directory(path.c_str(), 0777) == 0) return;
  struct ::stat status {};
  if (errno == EEXIST && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
  throw formats::detail::io_failure(path, "make the directory", errno);
}
/// Makes `directory` (with its parents) and an empty `temporary` in it.
inline void make_empty(std::string const& directory, std::string const& temporary, formats::file_system& files) {
  for (std::size_t at = directory.find('/', 1); at != std::string::npos; at = directory.find('/', at + 1)) {
    make_directory(directory.substr(0, at), files);
  }
  make_directory(directory, files);
  remove_tree(temporary, files);
  make_directory(temporary, files);
}

[[nodiscard]] inline std::string sha256_text(std::span<std::byte const> bytes) {
  return sha256().update(bytes).hexadecimal();
}

/// What the manifest knows of a rank's file.
struct file_record {
  std::array<char, 64> header_sha256{};
  std::uint64_t bytes = 0;
};
static_assert(sizeof(file_record) == 72);

[[nodiscard]] inline file_record record_of(std::string const& path, formats::file_system& files) {
  formats::file const from(path, formats::file::access::read, files);
  file_record record{.bytes = from.size()};
  std::array<std::byte, 8> start{};
  if (record.bytes < start.size()) throw format_error(path, record.bytes, "the file ends within its first 8 bytes");
  from.read(0, start);
  std::vector<std::byte> header(formats::safetensors::header_bytes(start, record.bytes, path));
  from.read(0, header);
  std::ranges::copy(sha256_text(header), record.header_sha256.begin());
  return record;
}

/// Collective. Every rank's record, in rank order.
template <class Comm>
std::vector<file_record> gather(Comm& world, file_record const& own) {
  std::vector<file_record> records(static_cast<std::size_t>(world.size()));
  records[static_cast<std::size_t>(world.rank())] = own;
  world.all_gather(tensor_view<std::uint8_t>(reinterpret_cast<std::uint8_t*>(records.data()),
                                             shape{static_cast<std::int64_t>(records.size() * sizeof(file_record))}));
  return records;
}
[[nodiscard]] inline formats::json::value to_json(std::vector<file_record> const& records) {
  formats::json::array all;
  for (auto const& each : records) {
    all.push_back(formats::json::value::make(
        {{"bytes", each.bytes},
         {"header_sha256", std::string_view(each.header_sha256.data(), each.header_sha256.size())}}));
  }
  return all;
}

/// Two directories change their names in one step.
inline void exchange_names(std::string const& one, std::string const& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return;
  throw formats::detail::io_failure(other, "put the new checkpoint in its place", errno);
}

/// Completes a temporary directory with its manifest, gives it its name, and removes all but the one before it.
inline void publish(std::string const& directory, std::string const& temporary, std::string const& name,
                    formats::json::value const& manifest, formats::file_system& files) {
  auto const content = formats::json::to_string(manifest) + "\n";
  formats::atomic_write(temporary + "/manifest.json", content, files);
  auto const digest = sha256_text(std::as_bytes(std::span(content)));
  formats::atomic_write(temporary + "/manifest.sha256", digest + "  manifest.json\n", files);
  formats::synchronise_directory(temporary, files);
  auto const target = directory + "/" + name;
  // A run that went back and came to the same step again: the two change places, so that one of them is always there.
  bool const again = std::ranges::binary_search(steps_in(directory), name);
  if (again) {
    exchange_names(temporary, target);
  } else {
    formats::rename(temporary, target, files);
  }
  formats::synchronise_directory(directory, files);
  if (again) remove_tree(temporary, files);
  auto const steps = steps_in(directory);
  for (std::size_t index = 0; index + 2 < steps.size(); ++index) remove_tree(directory + "/" + steps[index], files);
}

/// The manifest of a checkpoint, once its own hash is right.
[[nodiscard]] inline formats::json::value read_manifest(std::string const& path, formats::file_system& files) {
  auto const manifest_path = path + "/manifest.json";
  auto const content = formats::read_text(manifest_path, std::uint64_t{16} << 20, files);
  auto const expected = formats::read_text(path + "/manifest.sha256", 4096, files);
  auto const digest = sha256_text(std::as_bytes(std::span(content)));
  if (expected != digest + "  manifest.json\n") {
    throw format_error(manifest_path, 0,
                       "its SHA-256 is not the one in manifest.sha256: the checkpoint is damaged; remove "
                       "its directory to go on from the one before it");
  }
  auto manifest = formats::json::parse(content, manifest_path);
  auto const version = manifest.at("format").as_int64();
  if (version != format_version) {
    throw format_error(manifest_path, 0, text("format ", version, "; this version reads format ", format_version));
  }
  return manifest;
}

}  // namespace trireme::checkpoint::detail

// ---- trireme/train/detail/checkpoint_pieces.hpp
namespace trireme::checkpoint::detail {

/// "24,3,8 at 0,0,16 of 24,3,24": a box of a tensor; "24,3,24" if it is all of it.
[[nodiscard]] inline std::string box_text(parameter_info const& info) {
  auto const numbers = [](shape const& all) {
    std::string out;
    for (auto const each : all.extents()) out += text(out.empty() ? "" : ",", each);
    return out;
  };
  if (!info.is_part()) return numbers(info.extents);
  return numbers(info.extents) + " at " + numbers(info.first) + " of " + numbers(info.whole);
}

/// A number of a file's header, which is the whole of `digits`.
[[nodiscard]] inline std::int64_t number(std::string const& path, std::string_view digits) {
  std::int64_t value = 0;
  auto const end = digits.data() + digits.size();
  auto const [at, problem] = std::from_chars(digits.data(), end, value);
  if (at != end || problem != std::errc{} || value < 0) {
    throw format_error(path, 0, text("\"", digits, "\" is not a number"));
  }
  return value;
}

/// The box that box_text() has written.
[[nodiscard]] inline parameter_info box_from(std::string const& path, std::string_view box) {
  auto const numbers = [&](std::string_view all) {
    shape out;
    while (!all.empty()) {
      auto const comma = std::min(all.find(','), all.size());
      if (out.rank() == shape::max_rank) throw format_error(path, 0, text("\"", box, "\" has too many extents"));
      out.push_back(number(path, all.substr(0, comma)));
      all.remove_prefix(std::min(comma + 1, all.size()));
    }
    return out;
  };
  parameter_info info;
  auto const at = box.find(" at ");
  auto const of = box.find(" of ");
  info.extents = numbers(box.substr(0, at));
  if (at == std::string_view::npos) return info;
  if (of == std::string_view::npos || of < at) throw format_error(path, 0, text("\"", box, "\" is not a box"));
  info.first = numbers(box.substr(at + 4, of - at - 4));
  info.whole = numbers(box.substr(of + 4));
  bool fits = info.first.rank() == info.whole.rank() && info.extents.rank() == info.whole.rank();
  for (int axis = 0; fits && axis < info.whole.rank(); ++axis) {
    fits = info.first[axis] + info.extents[axis] <= info.whole[axis];
  }
  if (!fits) throw format_error(path, 0, text("\"", box, "\" is not a box within its tensor"));
  return info;
}

/// Elements of a whole tensor, and where they lie in a piece of it.
struct run {
  std::int64_t whole;
  std::int64_t here;
  std::int64_t count;
};
/// Ascending in the whole tensor; `here` counts from element `first` of the part.
[[nodiscard]] inline std::vector<run> runs_of(parameter_info const& part, std::int64_t first, std::int64_t count) {
  std::vector<run> all;
  for_each_run(part, first, count, [&](std::int64_t whole, std::int64_t here, std::int64_t n) {
    all.push_back({whole, here - first, n});
  });
  return all;
}
/// Calls f(in one, in other, n) for all that two ascending lists share.
template <class F>
void for_each_common(std::vector<run> const& one, std::vector<run> const& other, F&& f) {
  for (std::size_t i = 0, j = 0; i < one.size() && j < other.size();) {
    auto const& a = one[i];
    auto const& b = other[j];
    auto const begin = std::max(a.whole, b.whole);
    auto const end = std::min(a.whole + a.count, b.whole + b.count);
    if (begin < end) f(a.here + begin - a.whole, b.here + begin - b.whole, end - begin);
    a.whole + a.count < b.whole + b.count ? ++i : ++j;
  }
}

/// Where every piece of every tensor of a checkpoint is: a tensor is put together from any of them.
class piece_index {
 public:
  piece_index(std::string const& path, formats::json::value const& records, formats::file_system& files) {
    auto const& all = records.as_array();
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      add(rank_file(path, static_cast<int>(rank)), all[rank], files);
  }
  /// All numbers of all pieces.
  [[nodiscard]] std::int64_t elements() const noexcept { return elements_; }

  /// Elements [first, first + count) of a part of a tensor.
  [[nodiscard]] std::vector<std::byte> read(std::string const& name, dtype type, parameter_info const& part,
                                            std::int64_t first, std::int64_t count) {
    auto const found = tensors_.find(name);
    if (found == tensors_.end()) throw missing(text("it has no tensor \"", name, "\""));
    auto const width = size_of(type);
    auto const bytes_of = [&](std::int64_t elements) { return static_cast<std::size_t>(elements) * width; };
    std::vector<std::byte> out(bytes_of(count));
    auto const wanted = runs_of(part, first, count);
    std::vector<run> covered;
    for (auto& piece : found->second) {
      if (piece.box.whole_extents().size() != part.whole_extents().size()) {
        throw missing(text("tensor \"", name, "\" has ", piece.box.whole_extents().size(),
                           " elements, but this run's has ", part.whole_extents().size()));
      }
      if (wanted.empty() || piece.end <= wanted.front().whole) continue;
      if (piece.begin >= wanted.back().whole + wanted.back().count) continue;
      std::vector<std::byte> bytes;
      for_each_common(wanted, runs_of(piece.box, piece.first, piece.count), [&](auto to, auto from, auto n) {
        if (bytes.empty()) bytes = content_of(piece, type);
        std::memcpy(out.data() + bytes_of(to), bytes.data() + bytes_of(from), bytes_of(n));
        covered.push_back({to, from, n});
      });
    }
    std::ranges::sort(covered, {}, &run::whole);  // here "whole" is the part that is asked for
    covered.push_back({count, 0, 0});
    std::int64_t at = 0;
    for (auto const& each : covered) {
      if (each.whole != at) {
        throw missing(text("element ", first + std::min(at, each.whole), " of this rank's part of \"", name,
                           "\" is in ", each.whole > at ? "none of its pieces" : "several of its pieces"));
      }
      at += each.count;
    }
    return out;
  }

 private:
  struct piece {
    parameter_info box;  // of which the tensor's part is that the piece was cut from
    std::int64_t first;  // elements of that part
    std::int64_t count;
    std::int64_t begin;  // in the whole tensor, everything lies in [begin, end)
    std::int64_t end;
    formats::safetensors::reader const* reader;
    formats::safetensors::entry const* entry;
    bool verified = false;
  };

  [[nodiscard]] format_error missing(std::string const& reason) const {
    return {readers_.empty() ? std::string("checkpoint") : readers_.front()->path(), 0, reason};
  }

  void add(std::string const& path, formats::json::value const& record, formats::file_system& files) {
    auto const actual = record_of(path, files);
    if (actual.bytes != record.at("bytes").as_uint64()) {
      throw format_error(path, std::min(actual.bytes, record.at("bytes").as_uint64()),
                         text("the file has ", actual.bytes, " bytes instead of ", record.at("bytes").as_uint64()));
    }
    if (std::string_view(actual.header_sha256.data(), 64) != record.at("header_sha256").as_string()) {
      throw format_error(path, 0, "the header's SHA-256 is not the one in the manifest: the file is damaged");
    }
    auto& reader = *readers_.emplace_back(std::make_unique<formats::safetensors::reader>(path, files));
    for (auto const& entry : reader.entries()) add(path, reader, entry);
  }
  void add(std::string const& path, formats::safetensors::reader const& reader,
           formats::safetensors::entry const& entry) {
    auto const at = entry.name.rfind('@');
    if (at == std::string::npos) throw format_error(path, 0, text("\"", entry.name, "\" is not the name of a piece"));
    auto const name = entry.name.substr(0, at);
    auto const* const box = reader.note("box:" + name);
    if (box == nullptr) throw format_error(path, 0, text("it does not say where \"", name, "\" lies"));
    piece each{box_from(path, *box),
               number(path, std::string_view(entry.name).substr(at + 1)),
               entry.extents.size(),
               0,
               0,
               &reader,
               &entry};
    if (each.first + each.count > each.box.extents.size()) {
      throw format_error(path, 0, text("\"", entry.name, "\" ends beyond its box of ", *box));
    }
    if (each.count == 0) return;
    for_each_run(each.box, each.first, 1, [&](auto whole, auto, auto) { each.begin = whole; });
    for_each_run(each.box, each.first + each.count - 1, 1, [&](auto whole, auto, auto) { each.end = whole + 1; });
    elements_ += each.count;
    tensors_[name].push_back(std::move(each));
  }

  // A piece is read whole, since its SHA-256 is that of all of it; once that is known to be right it is not asked
  // again.
  [[nodiscard]] static std::vector<std::byte> content_of(piece& from, dtype type) {
    if (!(from.entry->type == formats::safetensors::stored_type(type))) {
      throw format_error(from.reader->path(), 0,
                         text("\"", from.entry->name, "\" is of type ", from.entry->type.name(), ", but this run's is ",
                              name_of(type)));
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(from.count) * size_of(type));
    from.reader->read(*from.entry, 0, bytes);
    if (from.verified) return bytes;
    auto const* const expected = from.reader->note("sha256:" + from.entry->name);
    if (expected == nullptr || *expected != sha256_text(bytes)) {
      throw format_error(from.reader->path(), from.entry->begin,
                         text("the SHA-256 of \"", from.entry->name,
                              "\" is wrong: the file is damaged; remove this "
                              "checkpoint's directory to go on from the one before it"));
    }
    from.verified = true;
    return bytes;
  }

  std::vector<std::unique_ptr<formats::safetensors::reader>> readers_;
  std::map<std::string, std::vector<piece>> tensors_;
  std::int64_t elements_ = 0;
};

}  // namespace trireme::checkpoint::detail

// ---- trireme/train/detail/together.hpp
namespace trireme::detail {

/// Runs f on every rank and makes its failure everybody's: the ranks that failed throw what f threw, the others an
/// error with the first failed rank's sentence. So no rank goes on into a collective that another one never reaches.
template <class Comm, class F>
void together(Comm& world, F&& f) {
  std::exception_ptr failure;
  std::string sentence;
  try {
    f();
  } catch (std::exception const& problem) {
    failure = std::current_exception();
    sentence = problem.what();
  }
  std::int32_t first = failure ? world.rank() : world.size();
  world.all_reduce(tensor_view<std::int32_t>(&first, shape{1}), reduction::min{});
  if (first == world.size()) return;
  std::array<std::uint8_t, 1024> letters{};
  if (world.rank() == first) {
    std::copy_n(sentence.begin(), std::min(sentence.size(), letters.size() - 1), letters.begin());
  }
  world.broadcast(tensor_view<std::uint8_t>(letters.data(), shape{static_cast<std::int64_t>(letters.size())}), first);
  if (failure) std::rethrow_exception(failure);
  throw error(text("rank ", first, " failed: ", std::string_view(reinterpret_cast<char const*>(letters.data()))));
}

}  // namespace trireme::detail

// ---- trireme/train/checkpoint.hpp (goes on)
/// Checkpoints: all state of a run in one directory, whole or not at all.
///
/// DIRECTORY/step-0000000500/ holds manifest.json (what run it is, how far it is, which files), manifest.sha256 (in
/// sha256sum's format) and one rank-N.safetensors a rank: pieces named "tensor@first element", with a SHA-256 each,
/// and for each tensor the box of it that the rank holds: pieces are stretches of that box.
/// A piece says where it lies in its tensor, not who owned it, so that any number of ranks and any strategy or mesh
/// reads it. This is format 2; format 1, which knew no boxes, is refused.
/// A checkpoint is written under a temporary name, brought to the device, renamed, and the directory brought to the
/// device; the one before it is kept.
namespace trireme::checkpoint {

/// What a checkpoint was made by; a run with another description refuses it and names both.
struct run_description {
  std::string model;
  std::string optimizer;
  std::string precision;
  std::string compression;
  int residual_ranks = 0;  ///< error feedback keeps one residual a rank; 0 = it is not used
};

/// How far a run is.
struct progress {
  std::int64_t step = 0;
  std::int64_t updates = 0;  ///< steps that were not skipped
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::int64_t position = 0;  ///< samples of the epoch that are used
};

namespace detail {

inline formats::json::value to_json(run_description const& run) {
  return formats::json::value::make({{"model", run.model},
                                     {"optimizer", run.optimizer},
                                     {"precision", run.precision},
                                     {"compression", run.compression},
                                     {"residual_ranks", run.residual_ranks}});
}
inline formats::json::value to_json(progress const& at) {
  return formats::json::value::make(
      {{"step", at.step}, {"updates", at.updates}, {"seed", at.seed}, {"epoch", at.epoch}, {"position", at.position}});
}
inline progress progress_from(formats::json::value const& from) {
  return {from.at("step").as_int64(), from.at("updates").as_int64(), from.at("seed").as_uint64(),
          from.at("epoch").as_uint64(), from.at("position").as_int64()};
}

/// Refuses a checkpoint of another run, naming both.
inline void expect_same_run(std::string const& path, formats::json::value const& saved, run_description const& run) {
  auto const expect = [&](char const* what, std::string const& theirs, std::string const& ours) {
    if (theirs == ours) return;
    throw config_error(text("trireme::checkpoint: ", path, " was made with the ", what, " ", theirs,
                            ", but this run has the ", what, " ", ours,
                            "; give the options that it was made with, or start another run"));
  };
  expect("model", saved.at("model").as_string(), run.model);
  expect("optimizer", saved.at("optimizer").as_string(), run.optimizer);
  expect("precision", saved.at("precision").as_string(), run.precision);
  expect("compression", saved.at("compression").as_string(), run.compression);
  auto const ranks = saved.at("residual_ranks").as_int64();
  if (ranks != run.residual_ranks) {
    throw config_error(text("trireme::checkpoint: ", path, " holds the residuals of ", ranks,
                            " ranks, and this run has ", run.residual_ranks,
                            "; with error feedback a run goes on with as many ranks as it had"));
  }
}

template <class T, class Space>
std::vector<std::byte> bytes_of(tensor_view<T, Space> view) {
  std::vector<std::byte> bytes(view.bytes());
  ops::on<Space>::download(std::span<T>(reinterpret_cast<T*>(bytes.data()), static_cast<std::size_t>(view.size())),
                           view);
  return bytes;
}

/// Writes this rank's pieces. @returns the SHA-256 of the file's header, and its size.
template <class ForEach>
file_record write_pieces(std::string const& path, ForEach&& for_each, formats::file_system& files) {
  std::vector<formats::safetensors::entry> entries;
  formats::safetensors::metadata notes;
  std::set<std::string> boxes;
  for_each([&](std::string const& name, parameter_info const& part, std::int64_t first, auto view) {
    using element = typename decltype(view)::value_type;
    auto const piece = text(name, "@", first);
    entries.push_back(formats::safetensors::entry{piece, dtype_of<element>, shape{view.size()}});
    auto const bytes = bytes_of(view);
    notes.emplace_back("sha256:" + piece, sha256_text(bytes));
    if (boxes.insert(name).second) notes.emplace_back("box:" + name, box_text(part));
  });
  formats::safetensors::writer writer(path, std::move(entries), std::move(notes), {.files = &files});
  for_each([&](std::string const&, parameter_info const&, std::int64_t, auto view) { writer.write(bytes_of(view)); });
  writer.finish();
  return record_of(path, files);
}

}  // namespace detail

/// Collective. Writes a checkpoint and makes it the newest one.
///
/// @param for_each  calls its argument with (name, info, first, view) for each piece of this rank: elements from
///                  `first` on of the part of a tensor that the parameter_info says; called twice, in the same order.
/// Errors   on every rank, with the failing rank's sentence; then the checkpoints that were there still are, and no
///          temporary file is left.
template <class Comm, class ForEach>
void save(Comm& world, std::string const& directory, run_description const& run, progress const& at, ForEach&& for_each,
          formats::file_system& files = formats::real_files()) {
  using trireme::detail::together;
  auto const temporary = directory + "/" + detail::temporary_name;
  auto const name = detail::step_name(at.step);
  try {
    together(world, [&] {
      if (world.rank() == 0) detail::make_empty(directory, temporary, files);
    });
    detail::file_record own;
    together(world, [&] { own = detail::write_pieces(detail::rank_file(temporary, world.rank()), for_each, files); });
    auto const records = detail::gather(world, own);
    together(world, [&] {
      if (world.rank() != 0) return;
      auto const manifest = formats::json::value::make({{"format", detail::format_version},
                                                        {"run", detail::to_json(run)},
                                                        {"progress", detail::to_json(at)},
                                                        {"files", detail::to_json(records)}});
      detail::publish(directory, temporary, name, manifest, files);
    });
  } catch (...) {
    if (world.rank() == 0) detail::remove_tree(temporary, files);
    throw;
  }
}

/// Collective. Reads the newest checkpoint of a directory into the views that for_each hands out.
///
/// @param for_each  as for save(), but with every piece that this rank needs: ranks may take the same one.
/// @param elements  how many numbers this rank would write to a checkpoint; over all ranks it must hold as many.
/// Ranks    any number, whatever number wrote it.
/// Errors   io_error or format_error that names the file if there is none or if it is damaged; config_error that names
///          both if it was made by another run. Nothing on the device is changed. The views' contents are unspecified
///          after an error.
template <class Comm, class ForEach>
progress load(Comm& world, std::string const& directory, run_description const& run, ForEach&& for_each,
              std::int64_t elements, formats::file_system& files = formats::real_files()) {
  progress result;
  std::int64_t counts[2] = {elements, 0};  // asked for by the ranks, held by the checkpoint
  std::string path;
  trireme::detail::together(world, [&] {
    path = detail::newest(directory);
    auto const manifest = detail::read_manifest(path, files);
    detail::expect_same_run(path, manifest.at("run"), run);
    result = detail::progress_from(manifest.at("progress"));
    detail::piece_index index(path, manifest.at("files"), files);
    for_each([&](std::string const& name, parameter_info const& part, std::int64_t first, auto view) {
      using element = typename decltype(view)::value_type;
      using space = typename decltype(view)::space;
      auto const bytes = index.read(name, dtype_of<element>, part, first, view.size());
      ops::on<space>::upload(view, std::span<element const>(reinterpret_cast<element const*>(bytes.data()),
                                                            static_cast<std::size_t>(view.size())));
    });
    counts[1] = world.rank() == 0 ? index.elements() : 0;
  });
  world.all_reduce(tensor_view<std::int64_t>(counts, shape{2}), reduction::sum{});
  if (counts[0] != counts[1]) {
    throw format_error(path + "/manifest.json", 0,
                       text("the checkpoint holds ", counts[1], " numbers, but this run takes ", counts[0]));
  }
  return result;
}

/// Whether a directory holds a checkpoint (whole or damaged).
[[nodiscard]] inline bool exists(std::string const& directory) { return !detail::steps_in(directory).empty(); }

}  // namespace trireme::checkpoint

// ---- trireme/train/optimizer_state.hpp
namespace trireme {

/// The moments of what this rank updates: as many tensors a bucket as the optimizer names, of the owned range.
template <class Env, class Optimizer>
class optimizer_state {
 public:
  using space = typename Env::space;
  using master = typename Env::master;
  static constexpr std::size_t count = Optimizer::moment_names.size();

  template <class Exchange>
  explicit optimizer_state(Exchange const& exchange) {
    for (int bucket = 0; bucket < static_cast<int>(exchange.plan().buckets().size()); ++bucket) {
      auto const [first, elements] = exchange.owned_range(bucket);
      auto& all = buckets_.emplace_back();
      all.first = first;
      for (auto& moment : all.moments) {
        moment = tensor<master, space>(shape{elements});
      }
    }
    clear();
  }

  /// As before the first step.
  void clear() {
    for (auto const& bucket : buckets_) {
      for (auto const& moment : bucket.moments) ops::on<space>::fill(moment.view(), 0.0);
    }
  }

  /// Bytes of the moments of this rank.
  [[nodiscard]] std::int64_t bytes() const noexcept {
    std::int64_t sum = 0;
    for (auto const& bucket : buckets_) {
      for (auto const& moment : bucket.moments) sum += static_cast<std::int64_t>(moment.view().bytes());
    }
    return sum;
  }

  /// Updates everything that this rank owns. `scale` is the clipping factor.
  template <class Exchange>
  void update(Exchange& exchange, Optimizer const& optimizer, std::int64_t step, double scale) {
    exchange.for_each_segment([&](int bucket, parallel::layout::piece const& piece, update_segment<Env>& segment) {
      std::array<tensor_view<master, space>, count> moments;
      for (std::size_t m = 0; m < count; ++m) moments[m] = moment_of(m, bucket, piece);
      segment.moments = moments;
      segment.gradient.scale *= scale;
      optimizer.update(segment, step);
    });
  }

  [[nodiscard]] tensor_view<master, space> moment_of(std::size_t which, int bucket,
                                                     parallel::layout::piece const& piece) const {
    auto const& all = buckets_[static_cast<std::size_t>(bucket)];
    return all.moments[which].view().flat(piece.in_bucket - all.first, piece.count);
  }

 private:
  struct bucket_moments {
    std::int64_t first = 0;
    std::array<tensor<master, space>, count> moments;
  };
  std::vector<bucket_moments> buckets_;
};

}  // namespace trireme

// ---- trireme/parallel/grid.hpp
namespace trireme::parallel {

/// What a mesh means for one rank: its place on each axis, and the groups that it belongs to. An axis that takes the
/// whole world uses it as it is.
///
/// Ranks    made collectively: the world is split once for each axis of more than one way.
/// Threads  one owner. The world must outlive it.
/// Errors   as mesh_shape.
template <class Comm>
class grid {
 public:
  template <parallel_policy P>
  grid(P const& policy, Comm& world) : shape_(policy, world.size()), world_(world), rank_(world.rank()) {
    if (shape_.ways(axis::data) != world.size()) replicas_.emplace(along(axis::data));
    if constexpr (has_axis<P, axis::tensor>) {
      if (shape_.ways(axis::tensor) > 1) tensor_.emplace(along(axis::tensor));
    }
    if constexpr (has_axis<P, axis::pipeline>) {
      if (shape_.ways(axis::pipeline) > 1) stages_.emplace(along(axis::pipeline));
    }
    if constexpr (has_axis<P, axis::expert>) {
      if (shape_.ways(axis::expert) > 1) experts_.emplace(along(axis::expert));
    }
  }
  grid(grid const&) = delete;
  grid& operator=(grid const&) = delete;

  [[nodiscard]] mesh_shape const& shape() const noexcept { return shape_; }
  [[nodiscard]] share place(axis kind) const noexcept { return shape_.share_of(rank_, kind); }
  [[nodiscard]] Comm& everyone() const noexcept { return world_; }
  /// Which part of the samples this rank sees: ranks that differ in their data or their experts see different ones.
  [[nodiscard]] share samples() const noexcept {
    auto const data = place(axis::data);
    auto const experts = place(axis::expert);
    return {data.place * experts.ways + experts.place, data.ways * experts.ways};
  }
  /// The ranks that hold the same part of the model: what gradients are summed over.
  [[nodiscard]] Comm& replicas() noexcept { return replicas_ ? *replicas_ : world_; }
  /// The ranks that share each layer's matrices; null if this rank does so with nobody.
  [[nodiscard]] Comm* tensor() noexcept { return tensor_ ? &*tensor_ : nullptr; }
  /// The ranks that hold consecutive units; null if this rank holds all of them.
  [[nodiscard]] Comm* stages() noexcept { return stages_ ? &*stages_ : nullptr; }
  /// The ranks that share out the experts of each layer; null if this rank has all of them.
  [[nodiscard]] Comm* experts() noexcept { return experts_ ? &*experts_ : nullptr; }

  /// What this rank has sent so far, in the world and in its groups.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept {
    auto sum = world_.traffic().bytes_sent;
    for (auto const* const group : {&replicas_, &tensor_, &stages_, &experts_}) {
      if (*group) sum += (*group)->traffic().bytes_sent;
    }
    for (auto const& group : joined_) sum += group->traffic().bytes_sent;
    return sum;
  }

  /// Collective. The ranks of some stages of this rank's pipeline, in their order. All ranks of the pipeline call it;
  /// null on the stages that do not belong to it.
  [[nodiscard]] Comm* join(std::vector<int> const& some_stages) {
    bool member = false;
    share own{0, 1};
    for (int s = 0; s < static_cast<int>(some_stages.size()); ++s) {
      if (some_stages[static_cast<std::size_t>(s)] != stages_->rank()) continue;
      member = true;
      own = {s, static_cast<int>(some_stages.size())};
    }
    joined_.push_back(std::make_unique<Comm>(group_of(*stages_, own, member ? 0 : 1)));
    return member ? joined_.back().get() : nullptr;
  }

 private:
  [[nodiscard]] Comm along(axis kind) { return group_of(world_, place(kind), shape_.group_along(kind, rank_)); }
  // A world on paper, where nobody else says to which group he belongs, is told what this rank's group is like.
  [[nodiscard]] static Comm group_of(Comm& whole, [[maybe_unused]] share own, [[maybe_unused]] int color) {
    if constexpr (requires { whole.split(own); }) {
      return whole.split(own);
    } else {
      return whole.split(color, whole.rank());
    }
  }

  mesh_shape shape_;
  Comm& world_;
  int rank_;
  std::optional<Comm> replicas_, tensor_, stages_, experts_;
  std::vector<std::unique_ptr<Comm>> joined_;
};

}  // namespace trireme::parallel

// ---- trireme/train/detail/tied_stages.hpp
namespace trireme::detail {

/// A tensor that several stages of a pipeline use.
struct tied_tensor {
  std::string name;
  std::vector<int> stages;  ///< ascending
};

/// The tensors that several stages use: a token table at both ends, and, where each part of the model lies on two
/// stages, all of them. In the order in which the model lists them.
template <class Env, staged_model Model>
[[nodiscard]] std::vector<tied_tensor> tied_tensors(Model const& model, parallel::pipeline_seat const& seat) {
  std::map<std::string, std::vector<int>> users;
  std::vector<std::string> order;
  std::int64_t unit = 0;
  auto where = seat.where;
  where.micro_batches = 2;  // of which one enters at each end, where they enter at both
  auto const note = [&]<class Description>(Description const& description) {
    int part = 0;
    while (unit >= seat.cuts[static_cast<std::size_t>(part) + 1]) ++part;
    ++unit;
    boxed_unit<Env, Description> box(description);
    for (auto const* const use : box.parameters()) {
      auto& stages = users[use->info.name];
      if (stages.empty()) order.push_back(use->info.name);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) stages.push_back(where.stage_of(part, micro_batch));
    }
  };
  model.units(note);
  std::vector<tied_tensor> tied;
  for (auto const& name : order) {
    auto& stages = users[name];
    std::ranges::sort(stages);
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
    if (stages.size() > 1) tied.push_back({name, stages});
  }
  return tied;
}

}  // namespace trireme::detail

// ---- trireme/train/plain_engine.hpp
namespace trireme {

/// Runs a plain model: its own storage, its own kernels. Knows nothing of ranks.
template <class Env, plain_model Model>
class plain_engine {
 public:
  using space = typename Env::space;
  using value = typename Env::param;

  /// A model given by name stays the caller's; a temporary is kept here.
  explicit plain_engine(Model& model) : model_(std::shared_ptr<Model>{}, &model) {}
  explicit plain_engine(Model&& model) : model_(std::make_shared<Model>(std::move(model))) {}

  [[nodiscard]] std::vector<foreign_parameter<value, space>> parameters() {
    std::vector<foreign_parameter<value, space>> all;
    model_->visit_parameters(
        [&](std::string const& name, tensor_view<value, space> values, tensor_view<value, space> gradient) {
          all.push_back({name, values, gradient});
        });
    if (reported_.empty()) {
      for (auto const& each : all) names_.push_back(each.name);
      reported_.assign(all.size(), false);
    }
    return all;
  }

  void invalidate() noexcept {}

  /// Forward and backward; ready(index) as each gradient is filled.
  template <class Ready>
  loss_sum train(samples const& batch, Ready&& ready) {
    auto const loss = evaluate(batch);
    reported_.assign(reported_.size(), false);
    model_->backward([&](std::string_view name) {
      auto const index = index_of(name);
      reported_[index] = true;
      ready(static_cast<int>(index));
    });
    for (std::size_t index = 0; index < reported_.size(); ++index) {
      if (reported_[index]) continue;
      throw config_error(text("trireme::trainer: the model's backward did not call ready(\"", names_[index], "\")"));
    }
    return loss;
  }

  [[nodiscard]] loss_sum evaluate(samples const& batch) {
    auto const mean = static_cast<double>(model_->forward(batch));
    return {mean * static_cast<double>(batch.count()), batch.count()};
  }

  [[nodiscard]] Model& model() noexcept { return *model_; }

 private:
  [[nodiscard]] std::size_t index_of(std::string_view name) const {
    for (std::size_t index = 0; index < names_.size(); ++index) {
      if (names_[index] == name) return index;
    }
    throw config_error(text("trireme::trainer: the model's backward called ready(\"", name,
                            "\"), but visit_parameters names no such parameter"));
  }

  std::shared_ptr<Model> model_;
  std::vector<std::string> names_;
  std::vector<bool> reported_;
};

}  // namespace trireme

// ---- trireme/train/detail/stage_program.hpp
namespace trireme::detail {

/// What one stage receives in a step of training, and how much can be on its way.
struct mail_plan {
  schedule::layout where;
  std::vector<std::vector<int>> values;  ///< from each stage, in the order in which it sends them
  std::vector<int> room;                 ///< values on their way between this stage and each other one, each way

  // An activation is on its way while its sender holds the micro-batch, a gradient while its receiver does.
  mail_plan(schedule::step_lists const& lists, int stage, std::vector<int> const& peaks)
      : where(lists.where()), values(peaks.size()), room(peaks.size()) {
    for (int s = 0; s < lists.stages(); ++s) {
      auto const peer = static_cast<std::size_t>(s);
      room[peer] = peaks[peer] + peaks[static_cast<std::size_t>(stage)];
      for (auto const* each = lists.of(s); each != lists.of(s) + lists.count(s); ++each) {
        if (each->to == stage) values[peer].push_back(each->output);
      }
    }
  }
};

/// The lists of all stages for one number of micro-batches, and what they mean for one of them.
struct stage_program {
  int micro_batches;
  schedule::step_lists lists;
  mail_plan mail;
  std::vector<int> passes;  ///< micro-batches that each chunk takes
  int stage;

  stage_program(int number, schedule::step_lists all, int own_stage, std::vector<int> const& peaks)
      : micro_batches(number),
        lists(std::move(all)),
        mail(lists, own_stage, peaks),
        passes(static_cast<std::size_t>(lists.where().chunks)),
        stage(own_stage) {
    for (int i = 0; i < count(); ++i) {
      if (steps()[i].kind == schedule::work::forward) ++passes[static_cast<std::size_t>(steps()[i].chunk)];
    }
  }
  [[nodiscard]] schedule::step const* steps() const noexcept { return lists.of(stage); }
  [[nodiscard]] int count() const noexcept { return lists.count(stage); }
};

/// The programs of one seat, each made when it is first asked for.
class stage_programs {
 public:
  explicit stage_programs(parallel::pipeline_seat seat) : seat_(std::move(seat)) {}
  [[nodiscard]] parallel::pipeline_seat const& seat() const noexcept { return seat_; }

  [[nodiscard]] stage_program const& for_training(int micro_batches) {
    for (auto const& each : made_) {
      if (each->micro_batches == micro_batches) return *each;
    }
    auto lists = seat_.lists(micro_batches);
    auto const peaks = seat_.peaks(lists);
    made_.push_back(std::make_unique<stage_program>(micro_batches, std::move(lists), seat_.stage, peaks));
    return *made_.back();
  }

  /// One micro-batch through all parts, forward only.
  [[nodiscard]] stage_program const& for_looking() {
    if (looking_ != nullptr) return *looking_;
    auto where = seat_.where;
    where.micro_batches = 2;  // of which the first enters at stage 0, also where the other enters at the last one
    schedule::step_lists lists(where);
    for (int part = 0; part < where.parts(); ++part) {
      int const stage = where.stage_of(part, 0);
      for (int c = 0; c < where.chunks; ++c) {
        if (where.part(stage, c) == part && where.takes(c, 0)) lists.add(stage, {.chunk = c});
      }
    }
    std::vector<int> const peaks(static_cast<std::size_t>(where.stages), where.chunks);
    looking_ = std::make_unique<stage_program>(1, std::move(lists), seat_.stage, peaks);
    return *looking_;
  }

 private:
  parallel::pipeline_seat seat_;
  std::vector<std::unique_ptr<stage_program>> made_;
  std::unique_ptr<stage_program> looking_;
};

}  // namespace trireme::detail

// ---- trireme/train/detail/stage_mail.hpp (goes on)
namespace trireme::detail {

/// Activations and gradients to and from other stages, as an engine sees them: an engine of all units has none, and its
/// program nothing of what follows.
template <class Env>
class stage_mail {
 public:
  using view = tensor_view<typename Env::compute, typename Env::space>;

  virtual ~stage_mail() = default;
  /// A step begins. `key(micro_batch)`: the extents of its inputs, on which all shapes depend.
  virtual void begin(mail_plan const& plan, std::vector<shape> const& keys) = 0;
  /// The extents of what crosses a boundary, of a micro-batch whose inputs have those of `key`: no message tells them.
  virtual void foretell(int boundary, shape const& key, shape const& extents) = 0;
  /// Bytes of the buffers of what is on its way.
  [[nodiscard]] virtual std::int64_t bytes() const noexcept = 0;
  virtual void send(int to, int number, view values) = 0;
  /// The value of that number, in memory of `arena`.
  [[nodiscard]] virtual view receive(int from, int number, arena<typename Env::space>& arena) = 0;
  /// The step has ended: all that was sent has arrived.
  virtual void end() = 0;
};

/// Mail through a link. A send never waits while the schedule is followed: it is copied
/// to a buffer, of which there are as many as values can be on their way. Receives are posted ahead in the sender's
/// order. The first message of a shape is preceded by its extents; after it both sides know them.
template <class Env>
class linked_mail final : public stage_mail<Env> {
 public:
  using space = typename Env::space;
  using value = typename Env::compute;
  using typename stage_mail<Env>::view;

  explicit linked_mail(stage_link<space>* link) : link_(link) {}
  linked_mail(linked_mail const&) = delete;
  linked_mail& operator=(linked_mail const&) = delete;
  ~linked_mail() override {
    try {
      end();
      for (auto& peer : peers_) {
        for (auto& each : peer.in) {
          if (each.number != none) link_->wait(each.ticket);
        }
      }
    } catch (...) {  // the error has ended the training, and is reported elsewhere
    }
  }

  void begin(mail_plan const& plan, std::vector<shape> const& keys) override {
    plan_ = &plan;
    keys_ = &keys;
    if (peers_.size() < plan.room.size()) peers_.resize(plan.room.size());
    for (std::size_t p = 0; p < plan.room.size(); ++p) {
      auto& peer = peers_[p];
      peer.posted = peer.sends = 0;
      auto const room = static_cast<std::size_t>(plan.room[p]);
      if (peer.out.size() < room) peer.out.resize(room);
      if (!plan.values[p].empty() && peer.in.size() < room) peer.in.resize(room);
      post_ahead(p);
    }
  }

  void foretell(int boundary, shape const& key, shape const& extents) override {
    foretold_.push_back({boundary, key, extents});
  }

  [[nodiscard]] std::int64_t bytes() const noexcept override {
    std::int64_t sum = 0;
    for (auto const& peer : peers_) {
      for (auto const& each : peer.in) sum += static_cast<std::int64_t>(each.buffer.view().bytes());
      for (auto const& each : peer.out) sum += static_cast<std::int64_t>(each.buffer.view().bytes());
    }
    return sum;
  }

  void send(int to, int number, view values) override {
    auto& peer = peers_[static_cast<std::size_t>(to)];
    auto& out = peer.out[peer.sends++ % peer.out.size()];
    finish(out);
    auto const copy = out.room_for(values.extents());
    ops::on<space>::copy(copy, values);
    transfer<space> messages[2]{};
    std::size_t many = 0;
    if (is_activation(number) && find(peer.told, number) == nullptr) {
      peer.told.push_back({boundary(number), key_of(number), values.extents()});
      if (find(foretold_, number) == nullptr) {
        write(out.header, values.extents());
        messages[many++] = send_to(to, out.header.view());
      }
    }
    messages[many++] = send_to(to, copy);
    out.ticket = link_->start(std::span<transfer<space> const>(messages, many));
  }

  [[nodiscard]] view receive(int from, int number, arena<space>& arena) override {
    auto const p = static_cast<std::size_t>(from);
    auto& peer = peers_[p];
    auto found = posted(peer, number);
    while (found == nullptr) {
      if (!post(p, true)) peer.in.emplace_back();  // values of evaluations, which no backward holds back
      found = posted(peer, number);
    }
    link_->wait(found->ticket);
    auto const here = arena.template take<value>(found->extents);
    ops::on<space>::copy(here, found->room_for(found->extents));
    found->number = none;
    post_ahead(p);
    return here;
  }

  void end() override {
    for (auto& peer : peers_) {
      for (auto& out : peer.out) finish(out);
    }
  }

 private:
  static constexpr int none = -1;
  using numbers = tensor<std::int32_t, space>;

  struct letter {
    int number = none;  // of what is being received
    int ticket = none;  // of what is being sent, or received
    shape extents;
    tensor<value, space> buffer;
    numbers header;

    view room_for(shape const& wanted) {
      if (buffer.size() < wanted.size()) buffer = tensor<value, space>(shape{wanted.size()});
      return buffer.view().flat(0, wanted.size()).reshaped(wanted);
    }
  };
  struct known_shape {
    int boundary;
    shape key;
    shape extents;
  };
  struct peer_state {
    std::vector<letter> in;
    std::vector<letter> out;
    std::vector<known_shape> told;   // of activations that were sent there, and so of gradients that come back
    std::vector<known_shape> heard;  // of activations that came from there
    std::size_t posted = 0;
    std::size_t sends = 0;
  };

  [[nodiscard]] int boundaries() const noexcept { return plan_->where.parts() - 1; }
  [[nodiscard]] bool is_activation(int number) const noexcept {
    return number < boundaries() * plan_->where.micro_batches;
  }
  [[nodiscard]] int boundary(int number) const noexcept { return number / plan_->where.micro_batches % boundaries(); }
  [[nodiscard]] shape const& key_of(int number) const noexcept {
    return (*keys_)[static_cast<std::size_t>(number % plan_->where.micro_batches)];
  }
  [[nodiscard]] shape const* find(std::vector<known_shape> const& shapes, int number) const noexcept {
    for (auto const& each : shapes) {
      if (each.boundary == boundary(number) && each.key == key_of(number)) return &each.extents;
    }
    return nullptr;
  }

  [[nodiscard]] letter* posted(peer_state& peer, int number) noexcept {
    for (auto& each : peer.in) {
      if (each.number == number) return &each;
    }
    return nullptr;
  }
  void post_ahead(std::size_t p) {
    while (post(p, false)) continue;
  }
  // Posts the next receive of a peer; false if there is none, or no room, or its shape is not known yet and must not be
  // waited for.
  bool post(std::size_t p, bool wait) {
    auto& peer = peers_[p];
    if (peer.posted == plan_->values[p].size()) return false;
    auto* const room = posted(peer, none);
    if (room == nullptr) return false;
    int const number = plan_->values[p][peer.posted];
    auto const* extents = find(is_activation(number) ? peer.heard : peer.told, number);
    if (extents == nullptr && !wait) return false;
    int const from = static_cast<int>(p);
    if (extents == nullptr) {
      auto const* const foretold = find(foretold_, number);
      peer.heard.push_back(
          {boundary(number), key_of(number), foretold != nullptr ? *foretold : receive_extents(from, *room)});
      extents = &peer.heard.back().extents;
    }
    room->number = number;
    room->extents = *extents;
    room->ticket = link_->start(one(receive_from(from, room->room_for(*extents))));
    ++peer.posted;
    return true;
  }
  [[nodiscard]] shape receive_extents(int from, letter& into) {
    if (into.header.size() == 0) into.header = numbers(shape{1 + shape::max_rank});
    link_->wait(link_->start(one(receive_from(from, into.header.view()))));
    return read(into.header);
  }
  [[nodiscard]] std::span<transfer<space> const> one(transfer<space> const& message) noexcept {
    message_ = message;
    return {&message_, 1};
  }
  void finish(letter& out) {
    if (out.ticket != none) link_->wait(out.ticket);
    out.ticket = none;
  }

  static void write(numbers& to, shape const& extents) {
    std::int32_t list[1 + shape::max_rank]{extents.rank()};
    for (int axis = 0; axis < extents.rank(); ++axis) list[1 + axis] = static_cast<std::int32_t>(extents[axis]);
    if (to.size() == 0) to = numbers(shape{1 + shape::max_rank});
    ops::on<space>::upload(to.view(), std::span<std::int32_t const>(list));
  }
  static shape read(numbers const& from) {
    std::int32_t list[1 + shape::max_rank]{};
    ops::on<space>::download(std::span<std::int32_t>(list), from.view());
    shape extents;
    for (int axis = 0; axis < list[0]; ++axis) extents.push_back(list[1 + axis]);
    return extents;
  }

  stage_link<space>* link_;
  mail_plan const* plan_ = nullptr;
  std::vector<shape> const* keys_ = nullptr;
  std::vector<peer_state> peers_;
  std::vector<known_shape> foretold_;  // known without messages
  transfer<space> message_;
};

}  // namespace trireme::detail

// ---- trireme/train/staged_engine.hpp (goes on)
namespace trireme {

/// Hooks at the boundaries of units for an engine whose parameters have memory all the time: nothing happens. An
/// exchange has the same functions. Uses [first, last) are those of one unit.
struct resident_parameters {
  void ensure(int, int) {}    ///< the values are about to be read
  void prefetch(int, int) {}  ///< the values will be needed by the next unit
  void open(int, int) {}      ///< backward (or the last unit's forward) is about to add to the gradients
  void release(int, int) {}   ///< the values are not read any more
};

/// Runs a staged model, or one stage of it: boxes the units, and takes micro-batches through them as its list of steps
/// says. Knows nothing of ranks: other stages are at the end of a link.
///
/// Bytes    activations of the micro-batches in flight; after the first step (with other stages, the first two)
///          nothing is allocated any more.
/// Threads  one owner. Make it in the thread that runs it.
template <class Env>
class staged_engine {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::compute, space>;

  /// All units.
  /// @param group    the ranks that share the matrices of each unit; it must outlive the engine, as must
  /// @param experts  the ranks that share out the experts of each unit.
  template <staged_model Model>
  explicit staged_engine(Model const& model, tensor_group<Env>& group = tensor_group<Env>::one(),
                         expert_group<Env>& experts = expert_group<Env>::one())
      : group_(group), experts_(experts), programs_(parallel::seat_of_all(model)) {
    box_units(model);
  }

  /// The units of one stage.
  /// @param link  to the other stages; it must outlive the engine.
  template <staged_model Model>
  staged_engine(Model const& model, tensor_group<Env>& group, parallel::pipeline_seat at, stage_link<space>* link,
                expert_group<Env>& experts = expert_group<Env>::one())
      : group_(group),
        experts_(experts),
        programs_(std::move(at)),
        mail_(std::make_unique<detail::linked_mail<Env>>(link)) {
    box_units(model);
  }

  /// All uses of parameters, in the order of the units here.
  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return uses_; }

  /// Where each unit's uses end.
  [[nodiscard]] std::vector<int> const& unit_ends() const noexcept { return last_use_; }

  [[nodiscard]] parallel::pipeline_seat const& seat() const noexcept { return programs_.seat(); }

  /// Parameter values have changed: packed copies of them are stale.
  void invalidate() noexcept { ++version_; }
  /// Values are where they are only while their unit runs: no packed copies of them are kept.
  void values_pass() noexcept { version_ |= ops::passing_values; }

  /// One step: all micro-batches forward and backward. Adds to the gradients, and calls ready(use, last) as each has
  /// got what a micro-batch adds to it; `last` if that was the last one.
  /// @param weight  of one sample's mean loss in the loss that is differentiated: 1 / samples in the step.
  /// @param hooks   called at the boundaries of units; see resident_parameters.
  /// @returns the losses, on the stage that has the last unit; nothing on the others.
  template <class Ready, class Hooks = resident_parameters>
  loss_sum train_step(std::span<samples const> micro_batches, double weight, random_key key, Ready&& ready,
                      Hooks&& hooks = {}) {
    if (micro_batches.empty()) return {};
    auto const& list = programs_.for_training(static_cast<int>(micro_batches.size()));
    start(list, micro_batches, {key, weight, purpose::train});
    auto const* const steps = list.steps();
    int const count = list.count();
    for (int i = 0; i < count; ++i) {
      auto const& step = steps[i];
      if (step.kind == schedule::work::forward) {
        bool const turns = i + 1 < count && steps[i + 1].kind != schedule::work::forward &&
                           steps[i + 1].chunk == step.chunk && steps[i + 1].micro_batch == step.micro_batch;
        forward(step, turns, hooks);
      } else {
        backward(step, ready, hooks);
      }
    }
    if (mail_ != nullptr) mail_->end();
    for (auto& each : slots_) each->activations.reset();  // joined to one block: the next step allocates nothing
    scratch_.reset();
    return now_.loss;
  }

  /// One micro-batch, and no other, as a step: calls ready(use).
  template <class Ready, class Hooks = resident_parameters>
  loss_sum train(samples const& batch, double weight, random_key key, Ready&& ready, Hooks&& hooks = {}) {
    return train_step(
        std::span(&batch, 1), weight, key, [&](int use, bool) { ready(use); }, hooks);
  }

  /// The losses of some samples, without dropout and without gradients, on the stage that has the last unit.
  template <class Hooks = resident_parameters>
  [[nodiscard]] loss_sum evaluate(samples const& batch, Hooks&& hooks = {}) {
    static_cast<void>(look(batch, purpose::evaluate, hooks));
    return now_.loss;
  }

  /// The outputs for some inputs (n, outputs), on the stage that has the last unit (nothing on the others); valid until
  /// the next call.
  template <class Hooks = resident_parameters>
  [[nodiscard]] view predict(samples const& batch, Hooks&& hooks = {}) {
    return look(batch, purpose::predict, hooks);
  }

  /// Takes part in a micro-batch that other ranks of the expert group run, without one of its own: forward, and, if
  /// they train, backward.
  template <class Hooks = resident_parameters>
  void serve(purpose why, Hooks&& hooks = {}) {
    if (slots_.empty()) slots_.push_back(std::make_unique<slot>());
    now_ = {{}, 0, why, {}};
    auto pass = make_pass(0);
    auto const each = [&](std::size_t u, bool backward) {
      hooks.ensure(first_use(u), last_use_[u]);
      auto const mark = scratch_.mark();
      backward ? units_[u]->serve_backward(pass) : units_[u]->serve_forward(pass);
      scratch_.rewind(mark);
      hooks.release(first_use(u), last_use_[u]);
    };
    for (std::size_t u = 0; u < units_.size(); ++u) each(u, false);
    for (auto u = units_.size(); u-- > 0 && why == purpose::train;) each(u, true);
    slots_[0]->activations.reset();
    scratch_.reset();
  }

  /// Calls f(step, true) when a step has what it receives and begins, f(step, false) when it has ended: for timelines.
  void watch(std::function<void(schedule::step const&, bool)> f) { watch_ = std::move(f); }

  /// Most bytes of activations and scratch in use at any time so far.
  [[nodiscard]] std::size_t peak_bytes() const noexcept {
    auto sum = scratch_.peak_bytes();
    for (auto const& each : slots_) sum += each->activations.peak_bytes();
    return sum;
  }
  /// Bytes of buffers for what travels between stages, so far.
  [[nodiscard]] std::int64_t mail_bytes() const noexcept { return mail_ == nullptr ? 0 : mail_->bytes(); }

  /// For a training on paper, where no message says how large the next one is: the extents of what each unit of the
  /// whole model makes of inputs of extents `key`.
  void foretell(shape const& key, std::span<shape const> outputs) {
    auto const& cuts = seat().cuts;
    for (int boundary = 0; boundary + 1 < seat().where.parts(); ++boundary) {
      auto const first_after = static_cast<std::size_t>(cuts.data()[boundary + 1]);
      mail_->foretell(boundary, key, outputs[first_after - 1]);
    }
  }
  /// For a training on paper that stands for one whose kernels find batches where they are: they are not copied.
  void leave_batches() noexcept { copies_batches_ = false; }

 private:
  // A micro-batch in flight in one chunk.
  struct slot {
    arena<space> activations;
    samples_in<space> batch;
    view out;       // of the chunk, forward
    view returned;  // the gradient of that, if the next part lies here
  };
  // Units [first, last) of this engine are part `part` of the model.
  struct chunk {
    std::size_t first = 0;
    std::size_t last = 0;
    int part = 0;
    int left = 0;  // micro-batches of the step that have not been backward
  };
  struct mode {
    random_key key;
    double weight = 0;
    trireme::purpose purpose = purpose::evaluate;
    loss_sum loss{};
  };

  struct boxes {
    staged_engine& engine;
    share own;
    share experts;
    std::int64_t index = 0;
    template <class Description>
    void operator()(Description const& description) {
      if (auto* const home = engine.chunk_of_unit(index++); home != nullptr) {
        engine.units_.push_back(std::make_unique<boxed_unit<Env, Description>>(description, own, experts));
        home->last = engine.units_.size();
      }
    }
  };
  template <class Model>
  void box_units(Model const& model) {
    if constexpr (requires { model.validate(); }) model.validate();
    chunks_.resize(static_cast<std::size_t>(seat().where.chunks));
    boxes emit{*this, group_.share(), experts_.share()};
    model.units(emit);
    for (auto const& unit : units_) {
      for (auto* const use : unit->parameters()) uses_.push_back(use);
      last_use_.push_back(static_cast<int>(uses_.size()));
    }
  }
  // The chunk here that a unit of the model belongs to, if any; a first unit opens it.
  chunk* chunk_of_unit(std::int64_t unit) {
    for (int c = 0; c < seat().where.chunks; ++c) {
      auto const part = seat().where.part(seat().stage, c);
      auto const* const cut = seat().cuts.data() + part;
      if (unit < cut[0] || unit >= cut[1]) continue;
      auto& found = chunks_[static_cast<std::size_t>(c)];
      if (unit == cut[0]) found = {units_.size(), units_.size(), part, 0};
      return &found;
    }
    return nullptr;
  }

  void start(detail::stage_program const& what, std::span<samples const> batches, mode how) {
    now_ = how;
    layout_ = what.lists.where();
    batches_ = batches;
    scratch_.reset();
    free_.clear();
    for (auto s = slots_.size(); s-- > 0;) {
      slots_[s]->activations.reset();
      free_.push_back(s);
    }
    slot_of_.assign(chunks_.size() * static_cast<std::size_t>(layout_.micro_batches), nowhere);
    for (std::size_t c = 0; c < chunks_.size(); ++c) chunks_[c].left = what.passes[c];
    keys_.clear();
    for (auto const& each : batches) keys_.push_back(each.inputs.extents);
    if (mail_ != nullptr) mail_->begin(what.mail, keys_);
  }

  template <class Hooks>
  view look(samples const& batch, purpose why, Hooks& hooks) {
    auto const& list = programs_.for_looking();
    start(list, std::span(&batch, 1), {{}, 0, why});
    view out;
    for (int i = 0; i < list.count(); ++i) {
      auto const& step = list.steps()[i];
      auto const made = forward(step, false, hooks);
      if (step.output < 0) out = made;
    }
    if (mail_ != nullptr) mail_->end();
    return out;
  }

  template <class Hooks>
  view forward(schedule::step const& step, bool turns, Hooks& hooks) {
    auto const& here = chunks_[static_cast<std::size_t>(step.chunk)];
    auto const index = take_slot(step);
    auto& own = *slots_[index];
    own.batch = place(batches_[static_cast<std::size_t>(step.micro_batch)], own.activations);
    auto pass = make_pass(index);
    view x;
    if (step.from != schedule::nobody)
      x = mail_->receive(step.from, step.input, own.activations);
    else if (step.input >= 0)
      x = neighbour(here.part - 1, step.micro_batch).out;
    if (watch_) watch_(step, true);
    for (auto u = here.first; u < here.last; ++u) {
      bool const last = u + 1 == here.last;
      hooks.ensure(first_use(u), last_use_[u]);
      if (!last) hooks.prefetch(first_use(u + 1), last_use_[u + 1]);
      if (last && step.output < 0 && pass.training()) {
        hooks.open(first_use(u), last_use_[u]);  // losses may add to gradients already
      }
      x = run(pass, [&] { return units_[u]->forward(pass, x); });
      if (!last || !turns) hooks.release(first_use(u), last_use_[u]);
    }
    own.out = x;
    now_.loss += pass.loss;
    if (watch_) watch_(step, false);
    if (step.to != schedule::nobody) mail_->send(step.to, step.output, x);
    return x;
  }

  template <class Ready, class Hooks>
  void backward(schedule::step const& step, Ready& ready, Hooks& hooks) {
    auto& here = chunks_[static_cast<std::size_t>(step.chunk)];
    auto const index = slot_of(step.chunk, step.micro_batch);
    auto& own = *slots_[index];
    auto pass = make_pass(index);
    bool const weights_only = step.kind == schedule::work::backward_weight;
    bool const input_only = step.kind == schedule::work::backward_input;
    bool const last_time = here.left == 1;
    view dy = own.returned;
    if (step.from != schedule::nobody) dy = mail_->receive(step.from, step.input, own.activations);
    if (watch_) watch_(step, true);
    for (auto u = here.last; u-- > here.first;) {
      hooks.ensure(first_use(u), last_use_[u]);
      hooks.open(first_use(u), last_use_[u]);
      if (u > here.first) hooks.prefetch(first_use(u - 1), last_use_[u - 1]);
      dy = run(pass, [&] {
        auto& unit = *units_[u];
        if (input_only) return unit.backward_input(pass, dy);
        if (!weights_only) return unit.backward(pass, dy);
        unit.backward_weight(pass);
        return view{};
      });
      for (int use = first_use(u); use < last_use_[u] && !input_only; ++use) ready(use, last_time);
      hooks.release(first_use(u), last_use_[u]);
    }
    if (watch_) watch_(step, false);
    if (step.to != schedule::nobody) {
      mail_->send(step.to, step.output, dy);
    } else if (step.output >= 0) {
      auto& before = neighbour(here.part - 1, step.micro_batch);
      before.returned = before.activations.template take<typename Env::compute>(dy.extents());
      ops::on<space>::copy(before.returned, dy);
    }
    if (!input_only) {
      --here.left;
      give_back(index);
    }
  }

  [[nodiscard]] std::size_t& slot_of(int chunk, int micro_batch) {
    return slot_of_[static_cast<std::size_t>(chunk * layout_.micro_batches + micro_batch)];
  }
  std::size_t take_slot(schedule::step const& step) {
    if (free_.empty()) {
      free_.push_back(slots_.size());
      slots_.push_back(std::make_unique<slot>());
    }
    auto const index = free_.back();
    free_.pop_back();
    slot_of(step.chunk, step.micro_batch) = index;
    slots_[index]->returned = {};
    return index;
  }
  void give_back(std::size_t index) {
    slots_[index]->activations.reset();
    free_.push_back(index);
  }
  // The same micro-batch in another part that lies here.
  [[nodiscard]] slot& neighbour(int part, int micro_batch) {
    std::size_t c = 0;
    while (chunks_[c].part != part) ++c;
    return *slots_[slot_of(static_cast<int>(c), micro_batch)];
  }

  pass<Env> make_pass(std::size_t index) {
    auto& own = *slots_[index];
    return {own.activations, scratch_, own.batch, now_.key, version_, now_.weight,
            now_.purpose,    {},       group_,    index,    experts_};
  }
  // Activations go where kernels find them: the batch is copied unless it is there already.
  samples_in<space> place(samples const& batch, [[maybe_unused]] arena<space>& to) {
    if constexpr (std::is_same_v<space, host>) {
      return batch;
    } else {
      if (!copies_batches_) return {left(batch.inputs), left(batch.targets), batch.ids};
      return {place(batch.inputs, to), place(batch.targets, to), batch.ids};
    }
  }
  static any_view<space> left(any_view<host> const& where) { return {where.address, where.type, where.extents}; }
  any_view<space> place(any_view<host> const& from, arena<space>& to) {
    if (from.empty()) return {nullptr, from.type, from.extents};
    if (from.type == dtype::i32) return place_as<std::int32_t>(from, to);
    return place_as<float>(from, to);
  }
  template <class T>
  any_view<space> place_as(any_view<host> const& from, arena<space>& memory) {
    auto const to = memory.template take<T>(from.extents);
    ops::on<space>::upload(to, from.template as<T>().span());
    return erase_type(to);
  }
  [[nodiscard]] int first_use(std::size_t unit) const noexcept { return unit == 0 ? 0 : last_use_[unit - 1]; }
  template <class Body>
  view run(pass<Env>& pass, Body&& body) {
    auto const mark = pass.scratch.mark();
    auto const out = body();
    pass.scratch.rewind(mark);
    return out;
  }

  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

  tensor_group<Env>& group_;
  expert_group<Env>& experts_;
  detail::stage_programs programs_;
  std::vector<chunk> chunks_;
  std::vector<std::unique_ptr<unit<Env>>> units_;
  std::vector<parameter<Env>*> uses_;
  std::vector<int> last_use_;

  // Of the step under way.
  mode now_;
  schedule::layout layout_;
  std::span<samples const> batches_;
  std::vector<shape> keys_;
  std::vector<std::size_t> slot_of_;  // chunk * micro-batches + micro-batch -> slot
  std::vector<std::size_t> free_;
  std::vector<std::unique_ptr<slot>> slots_;
  arena<space> scratch_;
  std::unique_ptr<detail::stage_mail<Env>> mail_;  // to other stages, if there are any
  std::function<void(schedule::step const&, bool)> watch_;
  std::uint64_t version_ = 1;
  bool copies_batches_ = true;
};

}  // namespace trireme

// ---- trireme/train/placed_model.hpp (goes on)
namespace trireme {

namespace detail {

template <class Env, class Model>
struct engine_of {
  using type = plain_engine<Env, Model>;
};
template <class Env, staged_model Model>
struct engine_of<Env, Model> {
  using type = staged_engine<Env>;
};

}  // namespace detail

/// What one rank holds of a model, as the mesh says: its place, its groups, the engine that runs its units, and the
/// exchange of its parameters. All that a trainer does with samples goes through it.
///
/// Ranks    collective, as the trainer's calls are.
/// Threads  one owner; the world, and a plain model that was passed by name, must outlive it.
/// Errors   config_error for sizes that do not fit; comm_error from the communicator.
template <class Env, class Model, class Comm, class Parallel, class Compression>
class placed_model {
 public:
  using space = typename Env::space;
  using data_axis = parallel::data_axis_t<Parallel>;
  using engine_type = typename detail::engine_of<Env, Model>::type;
  using exchange_type = basic_exchange<Env, Comm, data_axis, Compression>;
  static constexpr bool staged = staged_model<Model>;

  template <class GivenModel>
  placed_model(GivenModel&& model, Comm& world, Parallel const& parallel, Compression const& compression)
      : world_(world),
        grid_(parallel, world),
        group_(make_group()),
        experts_(make_experts()),
        link_(make_link()),
        engine_(make_engine(std::forward<GivenModel>(model), parallel)),
        exchange_(make_exchange(parallel, compression)) {
    if constexpr (staged && gathers) engine_.values_pass();
    for (auto const& each : tied_) {
      auto* const others = grid_.join(each.stages);
      if (others != nullptr) exchange_.sum_also(each.name, *others);
    }
  }
  placed_model(placed_model const&) = delete;
  placed_model& operator=(placed_model const&) = delete;

  [[nodiscard]] parallel::grid<Comm>& grid() noexcept { return grid_; }
  [[nodiscard]] parallel::grid<Comm> const& grid() const noexcept { return grid_; }
  [[nodiscard]] engine_type& engine() noexcept { return engine_; }
  [[nodiscard]] exchange_type& exchange() noexcept { return exchange_; }
  [[nodiscard]] exchange_type const& exchange() const noexcept { return exchange_; }

  /// Ranks that differ on this share see different samples.
  [[nodiscard]] share samples_share() const noexcept { return grid_.samples(); }

  /// Forward and backward of a step's micro-batches; gradients are on their way when it returns.
  /// @param micro_batches  of the logical ones in `range`, those in `parts`: the others have no samples.
  /// @param total          samples of the step, over all ranks.
  loss_sum train(std::span<samples const> micro_batches, data::range range, std::span<std::int64_t const> parts,
                 std::int64_t total, random_key key) {
    exchange_.begin(range.count(), parts, range.first);
    if constexpr (staged) {
      bool const always = exchange_.reports_every_micro_batch();
      auto served = to_serve(static_cast<std::int64_t>(micro_batches.size()));
      auto const ready = [&](int use, bool last) {
        if ((last && served == 0) || always) exchange_.ready(use);  // what serving adds to is final in finish()
      };
      auto const sum = engine_.train_step(micro_batches, 1.0 / static_cast<double>(total), key, ready, exchange_);
      for (; served > 0; --served) engine_.serve(purpose::train);
      return sum;
    } else {
      loss_sum sum;
      for (std::size_t m = 0; m < micro_batches.size(); ++m) {
        auto const& batch = micro_batches[m];
        bool const last = m + 1 == micro_batches.size();
        exchange_.weight(static_cast<double>(batch.count()) / static_cast<double>(total));
        sum += engine_.train(batch, [&](int use) {
          if (last) exchange_.ready(use);
        });
        if (!last) exchange_.accumulate();
      }
      return sum;
    }
  }

  /// The losses of this rank's share of a dataset.
  template <dataset Data>
  [[nodiscard]] loss_sum evaluate(Data const& data, std::int64_t batch) {
    auto const own = samples_share();
    data::evaluation_batches parts(data, batch, own.place, own.ways);
    loss_sum sum;
    if constexpr (!staged) {
      for (auto const& part : parts) sum += engine_.evaluate(part);
    } else {
      auto missing = parts.batches().first - parts.batches().last;
      bool const serves = grid_.experts() != nullptr;
      if (gathers || serves) {  // which takes all ranks, also those that have fewer batches
        auto most = -missing;
        (serves ? world_ : grid_.replicas()).all_reduce(tensor_view<std::int64_t>(&most, shape{1}), reduction::max{});
        missing += most;
      }
      for (auto const& part : parts) sum += engine_.evaluate(part, exchange_);
      for (; gathers && !serves && missing > 0; --missing) exchange_.sit_out_forward();
      for (; serves && missing > 0; --missing) engine_.serve(purpose::evaluate, exchange_);
    }
    return sum;
  }

  /// The outputs for some inputs (n, outputs), in host memory.
  [[nodiscard]] tensor<float> predict(samples const& batch) requires staged {
    auto const out = engine_.predict(batch, exchange_);
    return grid_.stages() == nullptr ? on_host(out) : from_last_stage(out);
  }

  /// The mean over all ranks. Those of a tensor group have the same losses: one of them counts. Of a pipeline only one
  /// stage has any.
  [[nodiscard]] double mean(loss_sum const& sum) {
    bool const counts = grid_.place(parallel::axis::tensor).place == 0;
    double both[2] = {counts ? sum.sum : 0, counts ? static_cast<double>(sum.count) : 0};
    world_.all_reduce(tensor_view<double>(both, shape{2}), reduction::sum{});
    return both[1] == 0 ? 0 : both[0] / both[1];
  }

 private:
  static constexpr bool gathers = data_axis::parameters == distribution::shard;

  std::unique_ptr<tensor_group<Env>> make_group() {
    if constexpr (parallel::has_axis<Parallel, parallel::axis::tensor>) {
      if (grid_.tensor() != nullptr) {
        return std::make_unique<parallel::communicator_group<Env, Comm>>(*grid_.tensor(), grid_.shape().cuts_rows());
      }
    }
    return nullptr;
  }
  std::unique_ptr<expert_group<Env>> make_experts() {
    if constexpr (parallel::has_axis<Parallel, parallel::axis::expert>) {
      if (grid_.experts() != nullptr)
        return std::make_unique<parallel::communicator_experts<Env, Comm>>(*grid_.experts());
    }
    return nullptr;
  }
  // How many micro-batches other ranks run that this one has not: it serves them with its experts.
  [[nodiscard]] std::int64_t to_serve(std::int64_t own) {
    if (grid_.experts() == nullptr) return 0;
    std::int64_t most[] = {own, -own};
    world_.all_reduce(tensor_view<std::int64_t>(most, shape{2}), reduction::max{});
    if (most[0] != -most[1] && (exchange_.reports_every_micro_batch() || grid_.stages() != nullptr)) {
      throw config_error(text("trireme::parallel::expert: from ", -most[1], " to ", most[0],
                              " micro-batches a rank; beside a pipeline, zero<2> or zero<3> every rank runs as many: "
                              "give a batch and a number of micro-batches that divide"));
    }
    return most[0] - own;
  }
  std::unique_ptr<stage_link<space>> make_link() {
    if constexpr (parallel::has_axis<Parallel, parallel::axis::pipeline>) {
      if (grid_.stages() != nullptr) return std::make_unique<parallel::communicator_link<Comm>>(*grid_.stages());
    }
    return nullptr;
  }
  template <class GivenModel>
  engine_type make_engine(GivenModel&& model, [[maybe_unused]] Parallel const& parallel) {
    if constexpr (!staged) {
      return engine_type(std::forward<GivenModel>(model));
    } else {
      if constexpr (requires { model.validate(); }) model.validate();
      auto& group = group_ != nullptr ? *group_ : tensor_group<Env>::one();
      auto& experts = experts_ != nullptr ? *experts_ : expert_group<Env>::one();
      if constexpr (parallel::has_axis<Parallel, parallel::axis::pipeline>) {
        if (link_ != nullptr) {
          auto const at = grid_.place(parallel::axis::pipeline);
          parallel::pipeline_seat seat;
          parallel::detail::for_each_axis(parallel, [&](auto const& each) {
            if constexpr (requires { seat_of(each, model, at.place, at.ways); }) {
              seat = seat_of(each, model, at.place, at.ways);
              expect_order(parallel, each, seat);
            }
          });
          tied_ = detail::tied_tensors<Env>(model, seat);
          return engine_type(model, group, std::move(seat), link_.get(), experts);
        }
      }
      return engine_type(model, group, experts);
    }
  }
  template <class Axis>
  static void expect_order(Parallel const& parallel, Axis const& axis, parallel::pipeline_seat const& seat) {
    auto const samples = parallel::data_axis_of(parallel);
    if constexpr (requires { samples.reproducible; }) {
      if (!samples.reproducible || parallel::adds_in_order(seat)) return;
      throw config_error(text("trireme::parallel::", samples.name,
                              ": .reproducible adds the gradients of one micro-batch after the other, which ",
                              to_string(axis), " does not; use the schedule 1f1b or interleaved"));
    }
  }
  exchange_type make_exchange(Parallel const& parallel, Compression const& compression) {
    auto const axis = parallel::data_axis_of(parallel);
    if constexpr (staged) {
      auto const& uses = engine_.uses();
      auto const stage = grid_.place(parallel::axis::pipeline).place;
      for (auto const& each : tied_) {
        for (auto* const use : uses) {
          if (use->info.name != each.name) continue;
          use->info.tied = true;
          use->info.answers = use->info.answers && stage == each.stages.front();
        }
      }
      if (grid_.experts() != nullptr) deal(axis);
      return exchange_type(uses, grid_.replicas(), axis, compression, engine_.unit_ends(), &world_, grid_.experts());
    } else {
      return exchange_type(engine_.parameters(), grid_.replicas(), axis, compression, &world_);
    }
  }

  // What all ranks of an expert group hold alike the first answers for.
  void deal(data_axis const& axis) {
    if (sums_in_a_tree(axis)) {
      throw config_error(text("trireme::parallel::", axis.name,
                              ": .reproducible keeps micro-batches apart, whose rows meet in the experts of "
                              "parallel::expert; leave one of them out"));
    }
    for (auto* const use : engine_.uses()) {
      auto& info = use->info;
      info.answers = info.answers && (info.dealt || grid_.experts()->rank() == 0);
    }
  }
  template <class View>
  static tensor<float> on_host(View const& out) {
    tensor<float> result(out.extents());
    if constexpr (std::is_same_v<typename Env::compute, float>) {
      ops::on<space>::download(result.span(), out);
    } else {
      tensor<float, space> converted(out.extents());
      ops::on<space>::copy(converted.view(), out);
      ops::on<space>::download(result.span(), converted.view());
    }
    return result;
  }
  // The stage that has the last unit gives the others its outputs.
  template <class View>
  tensor<float> from_last_stage(View const& out) {
    auto& stages = *grid_.stages();
    std::int64_t what[3] = {-1, 0, 0};  // who has them, and their extents
    if (!out.empty()) {
      what[0] = stages.rank();
      what[1] = out.extent(0);
      what[2] = out.extent(1);
    }
    stages.all_reduce(tensor_view<std::int64_t>(what, shape{3}), reduction::max{});
    auto const root = static_cast<int>(what[0]);
    auto result = stages.rank() == root ? on_host(out) : tensor<float>({what[1], what[2]});
    stages.broadcast(result.view(), root);
    return result;
  }

  Comm& world_;
  parallel::grid<Comm> grid_;
  std::unique_ptr<tensor_group<Env>> group_;
  std::unique_ptr<expert_group<Env>> experts_;
  std::unique_ptr<stage_link<space>> link_;
  std::vector<detail::tied_tensor> tied_;
  engine_type engine_;
  exchange_type exchange_;
};

}  // namespace trireme

// ---- trireme/train/report.hpp
namespace trireme {

/// What one step was; the same on every rank but for `seconds`.
struct step_report {
  std::int64_t step = 0;     ///< counted from 0
  double loss = 0;           ///< mean over the step's samples on all ranks
  double norm = 0;           ///< global gradient norm before clipping
  double rate = 0;           ///< learning rate
  std::int64_t samples = 0;  ///< over all ranks
  double seconds = 0;
  bool skipped = false;  ///< a gradient was not finite on some rank: nothing was changed
};

/// What one call of fit() was.
struct fit_report {
  std::int64_t first_step = 0;
  std::int64_t steps = 0;    ///< taken in this call
  std::int64_t samples = 0;  ///< over all ranks
  std::int64_t skipped = 0;
  double first_loss = 0;
  double last_loss = 0;
  double last_norm = 0;
  double seconds = 0;
  bool stopped = false;  ///< some rank asked for it

  void add(step_report const& done) noexcept {
    if (steps == 0) first_loss = done.loss;
    last_loss = done.loss;
    last_norm = done.norm;
    samples += done.samples;
    skipped += done.skipped ? 1 : 0;
    ++steps;
  }
};

}  // namespace trireme

// ---- trireme/train/trainer.hpp (goes on)
namespace trireme {

/// How long to train, and with what. Numbers only; whatever changes types is a policy.
struct fit_options {
  std::int64_t steps = 0;          ///< of the whole schedule, counted from the first step ever taken
  std::int64_t batch = 32;         ///< samples a step, over all ranks
  std::int64_t micro_batches = 0;  ///< logical micro-batches of a batch; 0 = one a rank
  std::int64_t stop_after = -1;    ///< leave after this many steps of the schedule; -1 = at its end
  friend bool operator==(fit_options const&, fit_options const&) = default;
};

/// The whole loop: micro-batches, exchange, vote, clipping, update, evaluation, checkpoints. Made by make_trainer.
///
/// One canonical type whatever the order of the policies. It is written on the public face of the exchange, as any
/// loop of one's own may be.
///
/// Ranks    collective: every rank makes the same calls in the same order.
/// Numerics a step's loss is the mean over its samples on all ranks, whatever their share; so are its gradients.
/// Threads  one owner; communicator and model (if it was passed by name) must outlive it.
/// Errors   config_error for sizes that do not fit; comm_error from the communicator; numeric_error after ten steps in
///          a row without finite gradients. A step that throws has not changed the state.
template <class Model, class Optimizer, class Comm, class Parallel, class Precision, class Compression>
class basic_trainer {
 public:
  using env = environment<Precision, typename space_of<Comm>::type>;
  using space = typename env::space;
  using master = typename env::master;
  static constexpr bool staged = staged_model<Model>;
  static constexpr std::int64_t most_skips = 10;

  template <class GivenModel>
  basic_trainer(GivenModel&& model, Optimizer optimizer, Comm& world, Parallel const& parallel, Precision,
                Compression const& compression)
      : described_(kept(model)),
        parallel_(parallel),
        compression_(compression),
        optimizer_(std::move(optimizer)),
        model_text_(describe(model)),
        compression_text_(describe(compression)),
        world_(world),
        model_(std::forward<GivenModel>(model), world, parallel, compression),
        moments_(model_.exchange()) {
    initialise(0);
  }

  basic_trainer(basic_trainer const&) = delete;
  basic_trainer& operator=(basic_trainer const&) = delete;

  /// Trains on a dataset, from where the trainer stands (0, or a loaded checkpoint) to the end of the schedule.
  template <dataset Data>
  fit_report fit(Data const& data, fit_options const& options) {
    auto const own = model_.samples_share();
    data::loader loader(data, loader_options(options), own.place, own.ways);
    loader.seek(position_);
    fit_report report{.first_step = step_};
    auto const last = options.stop_after < 0 ? options.steps : std::min(options.steps, options.stop_after);
    auto const start = clock::now();
    stopped_ = false;
    while (step_ < last && !stopped_) {
      auto const& batch = loader.next();
      auto const done = run_step(batch.micro_batches, loader.parts(), batch.parts, batch.samples);
      position_ = loader.position();
      report.add(done);
      for (auto const& call : step_calls_) call(done);
    }
    wants_stop_ = false;
    report.stopped = stopped_;
    report.seconds = seconds_since(start);
    return report;
  }

  /// One step on samples of one's own: each rank brings its own share, of any size; ranks of one replica of the model
  /// bring the same.
  step_report step(samples const& batch) {
    std::int64_t total = batch.count();
    model_.grid().replicas().all_reduce(tensor_view<std::int64_t>(&total, shape{1}), reduction::sum{});
    if (auto* const experts = model_.grid().experts(); experts != nullptr)
      experts->all_reduce(tensor_view<std::int64_t>(&total, shape{1}), reduction::sum{});
    if (total == 0) throw config_error("trireme::trainer: step() was called without samples on any rank");
    auto const count = batch.count() > 0 ? std::size_t{1} : 0;
    std::int64_t const part = 0;
    auto const done = run_step(std::span(&batch, count), {0, 1}, std::span(&part, count), total);
    for (auto const& call : step_calls_) call(done);
    return done;
  }
  template <class Features, class Targets>
  step_report step(Features const& features, Targets const& targets) {
    return step(make_samples(tensor_view(features), tensor_view(targets)));
  }

  /// The mean loss over a whole dataset, the same on every rank; nothing is changed.
  template <dataset Data>
  [[nodiscard]] double evaluate(Data const& data, std::int64_t batch = 8) {
    return model_.mean(model_.evaluate(data, batch));
  }

  /// The model's outputs for some inputs (n, outputs). A GPT gives the logits of what follows each sample. Computed by
  /// this rank alone, unless it lacks a part of the model: then the ranks that have the others call it too, with the
  /// same inputs (where parameters are sharded, all ranks).
  template <class Features>
  [[nodiscard]] tensor<float> predict(Features const& features) requires(staged && !std::is_same_v<Features, samples>) {
    return predict(make_samples(tensor_view(features), tensor_view<float const>{}));
  }
  [[nodiscard]] tensor<float> predict(samples const& batch) requires staged { return model_.predict(batch); }

  /// Collective. Starts over from the parameters and the random numbers of another seed (a plain model keeps its own
  /// parameters). Without this call the seed is 0.
  void initialise(std::uint64_t seed) {
    seed_ = seed;
    step_ = updates_ = skips_ = 0;
    position_ = {};
    moments_.clear();
    exchange().forget_residuals();
    if constexpr (staged) {
      exchange().initialise(seed);
      engine().invalidate();
    }
    exchange().verify_replicas();
  }

  /// Calls f(step_report const&) on every rank after each step.
  void on_step(std::function<void(step_report const&)> f) { step_calls_.push_back(std::move(f)); }
  /// Ends fit() after the step in which any rank has asked for it: all ranks leave together. Safe in a signal handler
  /// through a flag that on_step reads, not directly.
  void request_stop() noexcept { wants_stop_ = true; }

  /// From now on phases and exchanges are recorded in a timeline, which must outlive the trainer.
  void record(observe::timeline& timeline) {
    timeline_ = &timeline;
    exchange().record(timeline);
  }

  /// Steps taken, skipped ones included.
  [[nodiscard]] std::int64_t steps() const noexcept { return step_; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  [[nodiscard]] Comm& world() const noexcept { return world_; }
  [[nodiscard]] parallel::grid<Comm> const& grid() const noexcept { return model_.grid(); }
  [[nodiscard]] auto& exchange() noexcept { return model_.exchange(); }
  [[nodiscard]] auto const& exchange() const noexcept { return model_.exchange(); }
  [[nodiscard]] auto& engine() noexcept { return model_.engine(); }
  [[nodiscard]] Optimizer const& optimizer() const noexcept { return optimizer_; }
  /// Bytes of what the optimizer keeps for this rank's parameters, master values aside.
  [[nodiscard]] std::int64_t moment_bytes() const noexcept { return moments_.bytes(); }
  /// The descriptions that it was made of (a plain model has none).
  [[nodiscard]] Model const& described_model() const noexcept requires staged { return described_; }
  [[nodiscard]] Parallel const& parallel_policy() const noexcept { return parallel_; }
  [[nodiscard]] Compression const& compression_policy() const noexcept { return compression_; }

  /// Collective. One number for all state: master values, moments, residuals, step, place in the data. Each element
  /// counts once, so it does not depend on who owns what.
  [[nodiscard]] std::uint64_t state_hash() {
    std::uint64_t sum = 0;
    for_each_state([&](std::string const& name, parameter_info const& part, std::int64_t first, auto view) {
      for_each_run(part, first, view.size(), [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
        sum += ops::on<space>::hash(view.flat(in_part - first, n), hash_name(name), in_whole);
      });
    });
    world_.all_reduce(tensor_view<std::uint64_t>(&sum, shape{1}), reduction::sum{});
    auto const progress = progress_of_run();
    for (auto const number : {static_cast<std::uint64_t>(progress.step), static_cast<std::uint64_t>(progress.updates),
                              progress.seed, progress.epoch, static_cast<std::uint64_t>(progress.position)}) {
      sum = mix(sum ^ mix(number));
    }
    return sum;
  }

  /// Collective. Publishes a checkpoint in `directory` and keeps the one before it; see checkpoint.hpp.
  void save(std::string const& directory, formats::file_system& files = formats::real_files()) {
    checkpoint::save(
        world_, directory, description(), progress_of_run(), [&](auto&& piece) { for_each_state(piece); }, files);
  }

  /// Collective. Takes all state from the newest checkpoint in `directory`, whatever number of ranks or strategy wrote
  /// it (error feedback asks for the same number of ranks).
  void load(std::string const& directory, formats::file_system& files = formats::real_files()) {
    std::int64_t elements = 0;
    for_each_state(
        [&](std::string const&, parameter_info const&, std::int64_t, auto view) { elements += view.size(); });
    auto const progress = checkpoint::load(
        world_, directory, description(), [&](auto&& piece) { for_each_state(piece, true); }, elements, files);
    step_ = progress.step;
    updates_ = progress.updates;
    seed_ = progress.seed;
    position_ = {progress.epoch, progress.position};
    exchange().refresh_parameters();
    engine().invalidate();
  }

  /// Calls f(name, info, first, view) for every piece of state that this rank answers for, or, if `replicas`, for every
  /// piece that it keeps: where state is replicated, each rank keeps all of it. A piece is elements from `first` on of
  /// the part of a tensor that the parameter_info says.
  template <class F>
  void for_each_state(F&& f, bool replicas = false) {
    auto const& plan = exchange().plan();
    for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
      auto const [first, count] = replicas ? exchange().owned_range(bucket) : exchange().accounted_range(bucket);
      plan.for_each_piece(bucket, first, count, [&](parallel::layout::piece const& piece) {
        auto const& tensor = plan.at(piece.entry);
        if (!replicas && !tensor.info.answers) return;
        f("value/" + tensor.info.name, tensor.info, piece.in_entry, exchange().master_of(bucket, piece));
        for (std::size_t m = 0; m < Optimizer::moment_names.size(); ++m) {
          f(text(Optimizer::moment_names[m], "/", tensor.info.name), tensor.info, piece.in_entry,
            moments_.moment_of(m, bucket, piece));
        }
      });
      if (auto const residual = exchange().residual_of(bucket); !residual.empty()) {
        plan.for_each_piece(bucket, 0, residual.size(), [&](parallel::layout::piece const& piece) {
          auto const& tensor = plan.at(piece.entry);
          f(text("residual.", world_.rank(), "/", tensor.info.name), tensor.info, piece.in_entry,
            residual.flat(piece.in_bucket, piece.count));
        });
      }
    }
  }

 private:
  using clock = std::chrono::steady_clock;

  static double seconds_since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  }

  data::loader_options loader_options(fit_options const& options) const {
    auto const micro = options.micro_batches == 0 ? model_.samples_share().ways : options.micro_batches;
    return {.batch = options.batch, .micro_batches = micro, .seed = seed_};
  }

  step_report run_step(std::span<samples const> micro_batches, data::range range, std::span<std::int64_t const> parts,
                       std::int64_t total) {
    auto const start = clock::now();
    auto const sum = timed("forward, backward", [&] {
      return model_.train(micro_batches, range, parts, total, {seed_, static_cast<std::uint64_t>(step_)});
    });
    auto const result = timed("finish", [&] { return exchange().finish(wants_stop_ ? 1 : 0, true); });
    step_report done{.step = step_, .rate = optimizer_.rate_at(step_), .samples = total};
    done.loss = model_.mean(sum);
    done.norm = result.norm;
    done.skipped = !result.finite;
    stopped_ = result.votes > 0;
    if (result.finite) {
      double const limit = optimizer_.clip;
      double const scale = limit > 0 && result.norm > limit ? limit / (result.norm + 1e-6) : 1.0;
      timed("update", [&] { moments_.update(exchange(), optimizer_, updates_, scale); });
      timed("publish", [&] { exchange().publish(); });
      engine().invalidate();
      ++updates_;
      skips_ = 0;
    } else if (++skips_ == most_skips) {
      throw numeric_error(text("trireme::trainer: no finite gradients in ", most_skips, " steps, up to step ", step_,
                               first_bad_gradient(), "; lower the learning rate or look at the data"),
                          {world_.rank(), "step"});
    }
    ++step_;
    done.seconds = seconds_since(start);
    return done;
  }

  template <class Body>
  auto timed(std::string_view phase, Body&& body) {
    if (timeline_ == nullptr) return body();
    observe::timeline::span const span(*timeline_, phase, "step");
    return body();
  }

  // Of what this rank holds after the exchange: sums with the other ranks' gradients, and its own ones.
  std::string first_bad_gradient() {
    for (auto const& entry : exchange().plan().entries()) {
      if (!exchange().has_finite_gradient(entry)) return text(" (here first in \"", entry.info.name, "\")");
    }
    return {};
  }

  checkpoint::run_description description() const {
    return {.model = model_text_,
            .optimizer = optimizer_name(),
            .precision = describe(Precision{}),
            .compression = compression_text_,
            .residual_ranks = has_residual<compressor_state<Compression, env>> ? world_.size() : 0};
  }
  // The name without the numbers: a resumed run may change rates and schedules.
  [[nodiscard]] std::string optimizer_name() const {
    auto const full = describe(optimizer_);
    return full.substr(0, full.find('{'));
  }
  checkpoint::progress progress_of_run() const { return {step_, updates_, seed_, position_.epoch, position_.position}; }

  using kept_model = std::conditional_t<staged, std::remove_cvref_t<Model>, std::nullptr_t>;
  template <class GivenModel>
  static kept_model kept([[maybe_unused]] GivenModel const& model) {
    if constexpr (staged) {
      return model;
    } else {
      return nullptr;
    }
  }

  kept_model described_;
  Parallel parallel_;
  Compression compression_;
  Optimizer optimizer_;
  std::string model_text_;
  std::string compression_text_;
  std::uint64_t seed_ = 0;
  Comm& world_;
  placed_model<env, Model, Comm, Parallel, Compression> model_;
  optimizer_state<env, Optimizer> moments_;
  std::vector<std::function<void(step_report const&)>> step_calls_;
  data::loader_position position_;
  std::int64_t step_ = 0;
  std::int64_t updates_ = 0;
  std::int64_t skips_ = 0;
  observe::timeline* timeline_ = nullptr;
  bool wants_stop_ = false;
  bool stopped_ = false;
};

}  // namespace trireme

// ---- trireme/train/make.hpp (goes on)
namespace trireme {

namespace detail {

/// The argument of a kind, or a default made on the spot.
template <class Kind, class Default>
[[nodiscard]] Default pick() {
  return {};
}
template <class Kind, class Default, class First, class... Rest>
[[nodiscard]] decltype(auto) pick(First&& first, Rest&&... rest) {
  if constexpr (std::is_same_v<kind_of_t<std::remove_cvref_t<First>>, Kind>) {
    return static_cast<First&&>(first);
  } else {
    return pick<Kind, Default>(std::forward<Rest>(rest)...);
  }
}

/// What make_trainer returns after its one sentence, so that no line that uses the trainer adds another error.
struct refused {
  template <class Data>
  fit_report fit(Data const&, fit_options const&) {
    return {};
  }
  template <class... Samples>
  step_report step(Samples const&...) {
    return {};
  }
  template <class Data>
  double evaluate(Data const&, std::int64_t = 8) {
    return {};
  }
  template <class Features>
  tensor<float> predict(Features const&) {
    return {};
  }
  void initialise(std::uint64_t) {}
  template <class F>
  void on_step(F&&) {}
  void request_stop() noexcept {}
  template <class Timeline>
  void record(Timeline&) {}
  template <class... Files>
  void save(std::string const&, Files&...) {}
  template <class... Files>
  void load(std::string const&, Files&...) {}
  std::uint64_t state_hash() { return {}; }
  std::int64_t steps() const noexcept { return {}; }
};

}  // namespace detail

/// A trainer from policies in any order: a model, an optimizer, a communicator's world, and, if they are not to be
/// parallel::data, precision::fp32 and compression::none, how work is split, what numbers are used, and what goes on
/// the wire.
///
/// Ranks    collective: makes the same parameters on every rank, and checks that they are the same.
/// Errors   a wrong argument or combination is one sentence at compile time; sizes that do not fit are a config_error.
///
/// @returns basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>, one type for any order. It borrows
///          the world, and a plain model that is passed by name.
/// @example auto trainer = trireme::make_trainer(nn::gpt{}, optim::adamw{}, world, precision::bf16{});
template <class... Policies>
[[nodiscard]] auto make_trainer(Policies&&... policies) {
  using slots = detail::resolve<std::remove_cvref_t<Policies>...>;
  static_cast<void>(check_policies<Policies...>());  // apart from the condition, or clang adds an error to the sentence
  if constexpr (slots::ok) {
    return basic_trainer<typename slots::model, typename slots::optimizer, typename slots::comm,
                         typename slots::parallel, typename slots::precision, typename slots::compression>(
        detail::pick<slot::model, void>(std::forward<Policies>(policies)...),
        detail::pick<slot::optimizer, void>(std::forward<Policies>(policies)...),
        detail::pick<slot::communicator, void>(policies...),
        detail::pick<slot::parallel, parallel::data>(std::forward<Policies>(policies)...),
        detail::pick<slot::precision, precision::fp32>(std::forward<Policies>(policies)...),
        detail::pick<slot::compression, compression::none>(std::forward<Policies>(policies)...));
  } else {
    return detail::refused{};
  }
}

namespace detail {

template <class T, class Space>
[[nodiscard]] std::vector<foreign_parameter<T, Space>> as_foreign(
    std::vector<foreign_parameter<T, Space>> const& list) {
  return list;
}
/// The element type of what a model lets be visited: its value_type, float where it names none.
template <class Model>
struct element_of {
  using type = float;
};
template <class Model>
requires requires { typename Model::value_type; }
struct element_of<Model> {
  using type = typename Model::value_type;
};
template <has_visit_parameters Model>
[[nodiscard]] auto as_foreign(Model& model) {
  using value = typename element_of<Model>::type;
  std::vector<foreign_parameter<value>> list;
  model.visit_parameters([&](std::string const& name, tensor_view<value> values, tensor_view<value> gradient) {
    list.push_back({name, values, gradient});
  });
  return list;
}

/// What make_exchange may be given, and nothing else: one sentence for each other thing.
template <class... P>
struct check_exchange_policies {
  static constexpr bool fits =
      count_of<slot::parallel, P...> + count_of<slot::compression, P...> == static_cast<int>(sizeof...(P));
  static constexpr bool ok = fits && count_of<slot::parallel, P...> <= 1 && count_of<slot::compression, P...> <= 1;
};
template <bool Ok>
struct assert_exchange_policies {
  static_assert(
      Ok, "trireme::make_exchange: takes parameters, a world, and at most one parallel strategy and one compressor");
};

}  // namespace detail

/// Only the exchange, for a training loop of one's own.
///
/// @param parameters  a std::vector<foreign_parameter<float>> (or double), or anything with visit_parameters.
/// @param policies    a parallel strategy and a compressor, in any order; parallel::data and compression::none if
/// absent. Ranks    collective.
/// @returns basic_exchange on the caller's memory: gradients are read when they are ready, the mean over ranks is
/// written
///          back by finish(), updated values are gathered by publish().
template <class Parameters, class Comm, class... Policies>
[[nodiscard]] auto make_exchange(Parameters&& parameters, Comm& world, Policies&&... policies) {
  using checks = detail::check_exchange_policies<std::remove_cvref_t<Policies>...>;
  static_cast<void>(sizeof(detail::assert_exchange_policies<checks::ok>));
  using strategy = typename detail::find<slot::parallel, parallel::data, std::remove_cvref_t<Policies>...>::type;
  using compressor =
      typename detail::find<slot::compression, compression::none, std::remove_cvref_t<Policies>...>::type;
  auto list = detail::as_foreign(parameters);
  using value = typename decltype(list.front().value)::value_type;
  using space = typename decltype(list.front().value)::space;
  using precision = std::conditional_t<std::is_same_v<value, double>, precision::fp64, precision::fp32>;
  return basic_exchange<environment<precision, space>, Comm, strategy, compressor>(
      std::move(list), world, detail::pick<slot::parallel, parallel::data>(policies...),
      detail::pick<slot::compression, compression::none>(policies...));
}

}  // namespace trireme

// ---- trireme/train/any_trainer.hpp (goes on)
namespace trireme {

/// A trainer whose policies were chosen at run time: the one virtual edge of such a program. One call a phase, none in
/// a step's loops.
class any_trainer {
 public:
  virtual ~any_trainer() = default;
  virtual void initialise(std::uint64_t seed) = 0;
  virtual fit_report fit(data::any_dataset const& data, fit_options const& options) = 0;
  [[nodiscard]] virtual double evaluate(data::any_dataset const& data, std::int64_t batch) = 0;
  [[nodiscard]] virtual tensor<float> predict(samples const& batch) = 0;
  virtual void on_step(std::function<void(step_report const&)> f) = 0;
  virtual void request_stop() noexcept = 0;
  virtual void record(observe::timeline& timeline) = 0;
  virtual void save(std::string const& directory) = 0;
  virtual void load(std::string const& directory) = 0;
  [[nodiscard]] virtual std::uint64_t state_hash() = 0;
  [[nodiscard]] virtual std::int64_t steps() const noexcept = 0;
  [[nodiscard]] virtual exchange_times times() const noexcept = 0;
  /// What this rank has sent so far, in the world and in its groups.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const noexcept = 0;
  /// Collective. Calls f(name, extents, master values) for every tensor of the model, whole on every rank, under any
  /// mesh.
  virtual void for_each_parameter(
      std::function<void(std::string const&, shape const&, std::span<float const>)> const& f) = 0;
};

namespace detail {

template <class Trainer>
class typed_trainer final : public any_trainer {
 public:
  template <class... Policies>
  explicit typed_trainer(Policies&&... policies) : trainer_(make_trainer(std::forward<Policies>(policies)...)) {}

  void initialise(std::uint64_t seed) override { trainer_.initialise(seed); }
  fit_report fit(data::any_dataset const& data, fit_options const& options) override {
    return trainer_.fit(data, options);
  }
  double evaluate(data::any_dataset const& data, std::int64_t batch) override { return trainer_.evaluate(data, batch); }
  tensor<float> predict(samples const& batch) override { return trainer_.predict(batch); }
  void on_step(std::function<void(step_report const&)> f) override { trainer_.on_step(std::move(f)); }
  void request_stop() noexcept override { trainer_.request_stop(); }
  void record(observe::timeline& timeline) override { trainer_.record(timeline); }
  void save(std::string const& directory) override { trainer_.save(directory); }
  void load(std::string const& directory) override { trainer_.load(directory); }
  std::uint64_t state_hash() override { return trainer_.state_hash(); }
  std::int64_t steps() const noexcept override { return trainer_.steps(); }
  exchange_times times() const noexcept override { return trainer_.exchange().times(); }
  std::uint64_t bytes_sent() const noexcept override { return trainer_.grid().bytes_sent(); }
  void for_each_parameter(
      std::function<void(std::string const&, shape const&, std::span<float const>)> const& f) override {
    for_each_whole_tensor(trainer_.exchange(), f);
  }

 private:
  Trainer trainer_;
};

}  // namespace detail

/// A trainer for policies in any order, behind any_trainer.
template <class... Policies>
[[nodiscard]] std::unique_ptr<any_trainer> make_any_trainer(Policies&&... policies) {
  using trainer = decltype(make_trainer(std::forward<Policies>(policies)...));
  return std::make_unique<detail::typed_trainer<trainer>>(std::forward<Policies>(policies)...);
}

}  // namespace trireme

// ---- trireme/version.hpp
/// The only place that states the version; CMake, Conan and vcpkg read it from here.
#define TRIREME_VERSION_MAJOR 0
#define TRIREME_VERSION_MINOR 1
#define TRIREME_VERSION_PATCH 0
#define TRIREME_VERSION "0.1.0"
