#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/text.hpp"
#include "trireme/formats/npy.hpp"

namespace trireme::data {

/// What every call of HDF5 here is made under, because the library is rarely built for several threads. A program that
/// calls HDF5 itself while samples are read takes it, too.
[[nodiscard]] inline std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex one;
  return one;
}

}  // namespace trireme::data

namespace trireme::data::detail {

/// While it lives, this thread may call HDF5, which prints no errors.
class hdf5_section {
 public:
  hdf5_section() : lock_(hdf5_mutex()) {
    ::H5Eget_auto2(H5E_DEFAULT, &print_, &to_);
    ::H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  hdf5_section(hdf5_section const&) = delete;
  hdf5_section& operator=(hdf5_section const&) = delete;
  ~hdf5_section() { ::H5Eset_auto2(H5E_DEFAULT, print_, to_); }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  ::H5E_auto2_t print_ = nullptr;
  void* to_ = nullptr;
};

/// The innermost reason of the last call that failed.
[[nodiscard]] inline std::string hdf5_reason() {
  std::string out;
  auto const take = [](unsigned, ::H5E_error2_t const* each, void* to) -> ::herr_t {
    auto& reason = *static_cast<std::string*>(to);
    if (reason.empty() && each->desc != nullptr) reason = each->desc;
    return 0;
  };
  ::H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take, &out);
  return text("HDF5 says: ", out.empty() ? "no reason" : out);
}

/// Something that HDF5 opened, and how it is closed.
class hdf5_id {
 public:
  hdf5_id(::hid_t id, ::herr_t (*close)(::hid_t)) noexcept : id_(id), close_(close) {}
  hdf5_id(hdf5_id&& from) noexcept : id_(std::exchange(from.id_, -1)), close_(from.close_) {}
  hdf5_id& operator=(hdf5_id&& from) noexcept {
    std::swap(id_, from.id_);
    std::swap(close_, from.close_);
    return *this;
  }
  ~hdf5_id() {
    if (id_ < 0) return;
    hdf5_section const here;
    close_(id_);
  }
  [[nodiscard]] ::hid_t get() const noexcept { return id_; }
  [[nodiscard]] explicit operator bool() const noexcept { return id_ >= 0; }

 private:
  ::hid_t id_;
  ::herr_t (*close_)(::hid_t);
};

/// The numbers of a type in a file, of either byte order; none if it is another type than samples have.
[[nodiscard]] inline std::optional<formats::npy::number> hdf5_number(::hid_t type) {
  using enum formats::npy::number;
  auto const kind = ::H5Tget_class(type);
  auto const bytes = ::H5Tget_size(type);
  if (kind == H5T_ENUM) {  // booleans of h5py
    hdf5_id const base(::H5Tget_super(type), ::H5Tclose);
    return base ? hdf5_number(base.get()) : std::nullopt;
  }
  if (kind == H5T_INTEGER) {
    bool const with_sign = ::H5Tget_sign(type) != H5T_SGN_NONE;
    if (bytes == 1) return with_sign ? i8 : u8;
    if (bytes == 2) return with_sign ? i16 : u16;
    if (bytes == 4) return with_sign ? i32 : u32;
    if (bytes == 8) return with_sign ? i64 : u64;
  }
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (kind == H5T_FLOAT && ::H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0) {
    if (bytes == 2 && exponent_bits == 5 && mantissa_bits == 10) return f16;
    if (bytes == 4 && exponent_bits == 8 && mantissa_bits == 23) return f32;
    if (bytes == 8 && exponent_bits == 11 && mantissa_bits == 52) return f64;
  }
  return std::nullopt;
}

/// What a type that is refused is called.
[[nodiscard]] inline std::string hdf5_words(::hid_t type) {
  switch (::H5Tget_class(type)) {
    case H5T_STRING:
      return "strings";
    case H5T_COMPOUND:
      return "records";
    case H5T_ARRAY:
      return "arrays as elements";
    case H5T_VLEN:
      return "sequences of different lengths";
    case H5T_REFERENCE:
      return "references";
    case H5T_OPAQUE:
    case H5T_BITFIELD:
      return "bytes without a meaning";
    case H5T_FLOAT:
      return text("floating-point numbers of ", 8 * ::H5Tget_size(type), " bits of an unusual kind");
    case H5T_INTEGER:
      return text("integers of ", 8 * ::H5Tget_size(type), " bits");
    default:
      return "elements of an unknown type";
  }
}

/// The type of such numbers in memory.
[[nodiscard]] inline hdf5_id hdf5_memory_type(formats::npy::number type) {
  using enum formats::npy::number;
  auto const copy = [](::hid_t of) { return hdf5_id(::H5Tcopy(of), ::H5Tclose); };
  switch (type) {
    case f16: {
      auto half = copy(H5T_NATIVE_FLOAT);
      ::H5Tset_fields(half.get(), 15, 10, 5, 0, 10);
      ::H5Tset_size(half.get(), 2);
      ::H5Tset_ebias(half.get(), 15);
      return half;
    }
    case f32:
      return copy(H5T_NATIVE_FLOAT);
    case f64:
      return copy(H5T_NATIVE_DOUBLE);
    case i8:
      return copy(H5T_NATIVE_INT8);
    case i16:
      return copy(H5T_NATIVE_INT16);
    case i32:
      return copy(H5T_NATIVE_INT32);
    case i64:
      return copy(H5T_NATIVE_INT64);
    case u16:
      return copy(H5T_NATIVE_UINT16);
    case u32:
      return copy(H5T_NATIVE_UINT32);
    case u64:
      return copy(H5T_NATIVE_UINT64);
    case u8:
    case boolean:
      break;
  }
  return copy(H5T_NATIVE_UINT8);
}

/// Adds the paths of the datasets below a group; no more than `most`, and not through more than eight groups, because
/// groups may hold each other.
inline void hdf5_list(::hid_t group, std::string const& prefix, std::size_t most, int depth,
                      std::vector<std::string>& out) {
  ::H5G_info_t about{};
  if (depth > 8 || ::H5Gget_info(group, &about) < 0) return;
  for (::hsize_t i = 0; i < about.nlinks && out.size() < most; ++i) {
    char name[256] = {};
    if (::H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT) < 0) continue;
    hdf5_id const each(::H5Oopen(group, name, H5P_DEFAULT), [](::hid_t id) { return ::H5Oclose(id); });
    if (!each) continue;  // a link to nothing
    auto const kind = ::H5Iget_type(each.get());
    if (kind == H5I_DATASET) out.push_back(prefix + name);
    if (kind == H5I_GROUP) hdf5_list(each.get(), text(prefix, name, "/"), most, depth + 1, out);
  }
}

}  // namespace trireme::data::detail
