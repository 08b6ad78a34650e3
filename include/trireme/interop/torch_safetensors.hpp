#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/formats/safetensors.hpp"
#include "trireme/interop/detail/torch_module.hpp"

namespace trireme::interop {

namespace detail {

/// The entries of PyTorch's state_dict(): parameters and buffers under all of their names, so a tied tensor more than
/// once.
[[nodiscard]] inline std::vector<named_tensor> state_of(torch::nn::Module const& module) {
  std::vector<named_tensor> list;
  for (auto const& all : {module.named_parameters(), module.named_buffers()}) {
    for (auto const& item : all) {
      if (item.value().defined()) list.push_back({item.key(), item.value()});
    }
  }
  return list;
}

/// The name of a torch type in safetensors; empty if it has none.
[[nodiscard]] constexpr std::string_view stored_name(at::ScalarType type) noexcept {
  switch (type) {
    case at::kDouble:
      return "F64";
    case at::kFloat:
      return "F32";
    case at::kBFloat16:
      return "BF16";
    case at::kHalf:
      return "F16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      return {};
  }
}

/// The entry of a tensor in a file.
/// Errors  config_error if safetensors cannot store it.
[[nodiscard]] inline formats::safetensors::entry stored_as(named_tensor const& of) {
  auto const& [name, tensor] = of;
  auto const type = formats::safetensors::stored_type::named(stored_name(tensor.scalar_type()));
  if (!type || tensor.layout() != at::kStrided || tensor.dim() > shape::max_rank) {
    throw config_error(text("trireme::interop: \"", name, "\" is a ", tensor.layout() == at::kStrided ? "" : "sparse ",
                            "tensor of ", c10::toString(tensor.scalar_type()), " with ", tensor.dim(),
                            " dimensions; a file holds dense ones of up to ", shape::max_rank,
                            " dimensions, of signed integers, bytes, bool, Half, BFloat16, Float and Double"));
  }
  return {name, *type, shape_of(tensor)};
}

/// The memory of a dense CPU tensor.
[[nodiscard]] inline std::span<std::byte> span_of(torch::Tensor const& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

/// The layout of files of one rank: each tensor is stored as it is in the module.
struct same_in_file {
  [[nodiscard]] formats::safetensors::entry stored(named_tensor const& of) const { return stored_as(of); }
  [[nodiscard]] torch::Tensor shard_of(torch::Tensor const&, torch::Tensor const& in_file) const { return in_file; }
};

/// A tensor of a module, and its entries in a file: `from` under one of its names, and `again` under further names.
struct found_tensor {
  torch::Tensor tensor;
  formats::safetensors::entry const* from;
  std::vector<formats::safetensors::entry const*> again{};
};

/// Errors  config_error if file and module differ in names, types or shapes.
template <class InFile>
[[nodiscard]] std::vector<found_tensor> found_tensors(std::vector<named_tensor> const& names,
                                                      formats::safetensors::reader const& in, InFile const& in_file) {
  auto const refuse = [&](auto const&... why) {
    throw config_error(text("trireme::interop::load_safetensors: ", in.path(), ": ", why...));
  };
  std::vector<found_tensor> all;
  auto const of = [&](torch::Tensor const& tensor) {
    return std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.tensor.is_same(tensor); });
  };
  std::size_t used = 0;
  for (auto const& each : names) {
    auto const wanted = in_file.stored(each);
    auto const* from = in.find(each.name);
    if (from == nullptr) continue;
    ++used;
    if (from->type != wanted.type || from->extents != wanted.extents) {
      refuse("\"", each.name, "\" is ", from->type.name(), to_string(from->extents), " in the file, but ",
             wanted.type.name(), to_string(wanted.extents), " in the module");
    }
    auto const before = of(each.tensor);
    if (before == all.end()) {
      all.push_back({each.tensor, from});
    } else {
      before->again.push_back(from);
    }
  }
  for (auto const& each : names) {
    if (of(each.tensor) == all.end()) refuse("it has no \"", each.name, "\", which the module has");
  }
  if (used == in.entries().size()) return all;
  for (auto const& entry : in.entries()) {
    if (std::none_of(names.begin(), names.end(), [&](auto const& each) { return each.name == entry.name; }))
      refuse("the module has no \"", entry.name, "\"");
  }
  return all;
}

/// Writes tensors under their names.
inline void write_tensors(std::vector<named_tensor> all, std::string const& path) {
  // Tensors of wide types come first, so that every tensor is aligned.
  std::stable_sort(all.begin(), all.end(),
                   [](auto const& a, auto const& b) { return a.tensor.element_size() > b.tensor.element_size(); });
  std::vector<formats::safetensors::entry> entries;
  for (auto const& each : all) entries.push_back(stored_as(each));
  formats::safetensors::writer out(path, std::move(entries), {{"format", "pt"}});
  for (auto const& each : all) out.write(span_of(each.tensor.cpu().contiguous()));
  out.finish();
}

/// Reads tensors from a file whose layout `in_file` describes.
template <class InFile>
void read_tensors(std::vector<named_tensor> const& names, std::string const& path, InFile const& in_file) {
  formats::safetensors::reader const in(path);
  auto const read = [&](formats::safetensors::entry const& from, torch::Tensor const& like) {
    // A bool is read as a byte, which copy_() converts: every byte but 0 is true.
    auto const type = like.scalar_type() == at::kBool ? at::kByte : like.scalar_type();
    auto const sizes = from.extents.extents();
    auto const values =
        torch::empty(std::vector<std::int64_t>(sizes.begin(), sizes.end()), at::TensorOptions().dtype(type));
    in.read(from, 0, span_of(values));
    return values;
  };
  auto const found = found_tensors(names, in, in_file);
  for (auto const& [tensor, from, again] : found) {
    for (auto const* other : again) {
      auto const first = read(*from, tensor), second = read(*other, tensor);
      if (std::memcmp(first.data_ptr(), second.data_ptr(), first.nbytes()) == 0) continue;
      throw config_error(text("trireme::interop::load_safetensors: ", path, ": \"", from->name, "\" and \"",
                              other->name, "\" are one tensor in the module, but two in the file"));
    }
  }
  torch::NoGradGuard const guard;
  for (auto const& each : found) each.tensor.copy_(in_file.shard_of(each.tensor, read(*each.from, each.tensor)));
}

}  // namespace detail

/// Writes a module's parameters and buffers under PyTorch's names.
///
/// Python reads the file by `module.load_state_dict(safetensors.torch.load_file(path))`. It is written under another
/// name and then renamed, so a file of this name is always complete.
///
/// Shapes   a scalar has no dimensions. A tensor with several names (tied weights) is written under each of them,
///          because Python expects each.
/// Bytes    those of the tensors. A tensor that is not dense CPU memory is copied while it is written.
/// Ranks    not collective: one rank writes (`if (world.rank() == 0)`); after finish() or step() all ranks have the
///          same values.
/// Errors   config_error for a type or layout that safetensors cannot store; io_error.
///
/// @param module  a module, a torch::nn::ModuleHolder (what TORCH_MODULE makes) or a std::shared_ptr of one.
template <class Module>
void save_safetensors(Module const& module, std::string const& path) {
  torch::NoGradGuard const guard;
  detail::write_tensors(detail::state_of(*detail::lent_module(module)), path);
}

/// Reads a file of save_safetensors() or Python's safetensors.torch into a module's tensors, whose memory stays where
/// it is.
///
/// The file must have exactly the names, types and shapes of the module; a file that is refused changes nothing. Of the
/// names of a tied tensor one is enough (Python's save_model() writes only one).
///
/// Ranks    not collective. Before data_parallel() or broadcast() it is enough that rank 0 reads; otherwise every rank
///          does. A trainer keeps master values of parameters narrower than float: read before make_trainer().
/// Errors   format_error if it is not a safetensors file; config_error that names the first tensor that does not fit;
///          io_error (if the device fails in the middle, the tensors before have been read already).
template <class Module>
void load_safetensors(Module const& module, std::string const& path) {
  detail::read_tensors(detail::state_of(*detail::lent_module(module)), path, detail::same_in_file());
}

}  // namespace trireme::interop
