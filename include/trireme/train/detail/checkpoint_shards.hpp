#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/train/detail/checkpoint_files.hpp"
#include "trireme/train/state_shard.hpp"

namespace trireme::checkpoint::detail {

/// "24,3,8 at 0,0,16 of 24,3,24": a box of a tensor; "24,3,24" if the box is the whole tensor.
[[nodiscard]] inline std::string box_text(parameter_info const& info) {
  auto const numbers = [](shape const& all) {
    std::string out;
    for (auto const each : all.extents()) out += text(out.empty() ? "" : ",", each);
    return out;
  };
  if (!info.is_shard()) return numbers(info.extents);
  return numbers(info.extents) + " at " + numbers(info.first) + " of " + numbers(info.whole);
}

/// A number in a file's header; `digits` must be nothing but the number.
[[nodiscard]] inline std::int64_t number(std::string const& path, std::string_view digits) {
  std::int64_t value = 0;
  auto const end = digits.data() + digits.size();
  auto const [at, problem] = std::from_chars(digits.data(), end, value);
  if (at != end || problem != std::errc{} || value < 0) {
    throw format_error(path, 0, text("\"", digits, "\" is not a number"));
  }
  return value;
}

/// Parses a box that box_text() has written.
[[nodiscard]] inline parameter_info box_from(std::string const& path, std::string_view box) {
  auto const next = [&](std::string_view& all) {
    auto const comma = std::min(all.find(','), all.size());
    auto const value = number(path, all.substr(0, comma));
    all.remove_prefix(std::min(comma + 1, all.size()));
    return value;
  };
  auto const extents = [&](std::string_view all) {
    shape out;
    while (!all.empty()) {
      auto const extent = next(all);
      if (!out.takes(extent))
        throw format_error(path, 0, text("\"", box, "\" has too many extents, or too large ones"));
      out.push_back(extent);
    }
    return out;
  };
  parameter_info info;
  auto const at = box.find(" at ");
  auto const of = box.find(" of ");
  info.extents = extents(box.substr(0, at));
  if (at == std::string_view::npos) return info;
  if (of == std::string_view::npos || of < at) throw format_error(path, 0, text("\"", box, "\" is not a box"));
  info.whole = extents(box.substr(of + 4));
  auto places = box.substr(at + 4, of - at - 4);
  bool fits = info.extents.rank() == info.whole.rank();
  for (int axis = 0; fits && axis < info.whole.rank(); ++axis) {
    auto const place = next(places);
    auto const extent = info.extents[axis];
    // An empty box has no position; in others every element must have a valid position.
    fits = extent <= info.whole[axis] && place <= info.whole[axis] - extent && info.first.takes(place);
    if (fits) info.first.push_back(place);
  }
  fits = fits && places.empty();
  if (!fits) throw format_error(path, 0, text("\"", box, "\" is not a box within its tensor"));
  return info;
}

/// A range of elements of a whole tensor, and its position in a piece.
struct run {
  std::int64_t whole;
  std::int64_t here;
  std::int64_t count;
};
/// In ascending order of the whole tensor; `here` counts from element `first` of the part.
[[nodiscard]] inline std::vector<run> runs_of(parameter_info const& part, std::int64_t first, std::int64_t count) {
  std::vector<run> all;
  for_each_run(part, first, count, [&](std::int64_t whole, std::int64_t here, std::int64_t n) {
    all.push_back({whole, here - first, n});
  });
  return all;
}
/// Calls f(in one, in other, n) for every range that two ascending lists share.
template <class F>
void for_each_common(std::vector<run> const& one, std::vector<run> const& other, F&& f) {
  if (other.empty()) return;
  auto const behind = [](run const& each, std::int64_t whole) { return each.whole + each.count <= whole; };
  auto const start = std::lower_bound(one.begin(), one.end(), other.front().whole, behind);
  for (std::size_t i = static_cast<std::size_t>(start - one.begin()), j = 0; i < one.size() && j < other.size();) {
    auto const& a = one[i];
    auto const& b = other[j];
    auto const begin = std::max(a.whole, b.whole);
    auto const end = std::min(a.whole + a.count, b.whole + b.count);
    if (begin < end) f(a.here + begin - a.whole, b.here + begin - b.whole, end - begin);
    a.whole + a.count < b.whole + b.count ? ++i : ++j;
  }
}

/// Where every piece of every tensor of a checkpoint is. A tensor is assembled from pieces of any files.
class shard_index {
 public:
  shard_index(formats::directory const& in, formats::json::value const& records) {
    auto const& all = records.as_array();
    for (std::size_t rank = 0; rank < all.size(); ++rank) add(in, rank_file(rank), all[rank]);
  }
  /// The number of elements in all pieces.
  [[nodiscard]] std::int64_t elements() const noexcept { return elements_; }
  /// The number of those that are summands; see state_location.
  [[nodiscard]] std::int64_t summands() const noexcept { return summands_; }

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
    for (auto& held : found->second) {
      if (held.box.whole_extents().size() != part.whole_extents().size()) {
        throw other_extents(name, held, part);
      }
      if (wanted.empty() || held.end <= wanted.front().whole) continue;
      if (held.begin >= wanted.back().whole + wanted.back().count) continue;
      std::vector<std::byte> bytes;
      for_each_common(wanted, runs_of(held.box, held.first, held.count), [&](auto to, auto from, auto n) {
        if (bytes.empty()) bytes = content_of(held, type);
        std::memcpy(out.data() + bytes_of(to), bytes.data() + bytes_of(from), bytes_of(n));
        covered.push_back({to, from, n});
      });
    }
    // Here "whole" is the requested part.
    std::sort(covered.begin(), covered.end(), [](run const& a, run const& b) { return a.whole < b.whole; });
    covered.push_back({count, 0, 0});
    std::int64_t at = 0;
    for (auto const& each : covered) {
      if (each.whole != at) {
        throw missing(text("element ", first + std::min(at, each.whole), " of this rank's part of \"", name,
                           "\" is in ", each.whole > at ? "none of its shards" : "several of its shards"));
      }
      at += each.count;
    }
    return out;
  }

  /// The same of a rank's summands that other ranks have saved: an equal part of their sum. Where several ranks hold
  /// copies of a summand (a replicated tensor of a tensor group), they count once. An element of which nothing was
  /// saved has the sum 0.
  ///
  /// @param name   with the rank.
  /// @param parts  into how many the sum is divided.
  [[nodiscard]] std::vector<std::byte> read_part_of_sum(std::string const& name, dtype type, parameter_info const& part,
                                                        std::int64_t first, std::int64_t count, std::int64_t parts) {
    auto const elements = static_cast<std::size_t>(count);
    std::vector<double> sums(elements);
    std::vector<std::int64_t> seen(elements), of(elements);
    auto const wanted = runs_of(part, first, count);
    auto const found = summed_.find(name_without_rank(name));
    if (found != summed_.end()) {
      for (auto& held : found->second) {
        if (held.box.whole_extents().size() != part.whole_extents().size()) throw other_extents(name, held, part);
        std::vector<std::byte> bytes;
        for_each_common(wanted, runs_of(held.box, held.first, held.count), [&](auto to, auto from, auto n) {
          if (bytes.empty()) bytes = content_of(held, type);
          for (std::int64_t i = 0; i < n; ++i) {
            auto const at = static_cast<std::size_t>(to + i);
            sums[at] += as_double(bytes, type, static_cast<std::size_t>(from + i));
            ++seen[at];
            of[at] = held.summands;
          }
        });
      }
    }
    for (std::size_t i = 0; i < elements; ++i) {
      if (seen[i] == 0) continue;
      if (seen[i] != of[i]) sums[i] *= static_cast<double>(of[i]) / static_cast<double>(seen[i]);
      sums[i] /= static_cast<double>(parts);
    }
    return from_double(sums, type);
  }

 private:
  struct shard {
    parameter_info box;  // the box of the tensor that the piece was cut from
    std::int64_t first;  // index in that box
    std::int64_t count;
    std::int64_t begin;  // all elements are in [begin, end) of the whole tensor
    std::int64_t end;
    formats::safetensors::reader const* reader;
    formats::safetensors::entry const* entry;
    bool verified = false;
    std::int64_t summands = 0;
  };

  template <class F>
  static auto with_type(dtype type, F&& f) {
    if (type == dtype::f64) return f(double{});
    if (type == dtype::bf16) return f(bf16{});
    if (type == dtype::f16) return f(f16{});
    if (type != dtype::f32)
      throw config_error(text("trireme::checkpoint: sums of ", name_of(type), " are not divided"));
    return f(float{});
  }
  static double as_double(std::vector<std::byte> const& bytes, dtype type, std::size_t at) {
    return with_type(type, [&](auto number) {
      std::memcpy(&number, bytes.data() + at * sizeof number, sizeof number);
      return static_cast<double>(number);
    });
  }
  static std::vector<std::byte> from_double(std::vector<double> const& numbers, dtype type) {
    return with_type(type, [&](auto kind) {
      using element = decltype(kind);
      std::vector<std::byte> out(numbers.size() * sizeof(element));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        element one{};
        if constexpr (storage_float<element>) {
          one = element(static_cast<float>(numbers[i]));
        } else {
          one = static_cast<element>(numbers[i]);
        }
        std::memcpy(out.data() + i * sizeof one, &one, sizeof one);
      }
      return out;
    });
  }

  [[nodiscard]] format_error missing(std::string const& reason) const {
    return {readers_.empty() ? std::string("checkpoint") : readers_.front()->path(), 0, reason};
  }

  [[nodiscard]] format_error other_extents(std::string const& name, shard const& held,
                                           parameter_info const& part) const {
    return missing(text("tensor \"", name, "\" has ", held.box.whole_extents().size(), " elements, but this run's has ",
                        part.whole_extents().size()));
  }

  void add(formats::directory const& in, std::string const& name, formats::json::value const& record) {
    auto const path = in.path_of(name);
    auto const actual = record_of(in, name);
    auto const expected = record.at("bytes").as_uint64();
    if (actual.bytes != expected) {
      throw format_error(path, std::min(actual.bytes, expected),
                         text("the file has ", how_many(actual.bytes, "byte"), " instead of ", expected));
    }
    if (std::string_view(actual.header_sha256.data(), 64) != record.at("header_sha256").as_string()) {
      throw format_error(path, 0, "the header's SHA-256 is not the one in the manifest: the file is damaged");
    }
    auto& reader = *readers_.emplace_back(std::make_unique<formats::safetensors::reader>(in, name));
    for (auto const& entry : reader.entries()) add(path, reader, entry);
  }
  void add(std::string const& path, formats::safetensors::reader const& reader,
           formats::safetensors::entry const& entry) {
    auto const at = entry.name.rfind('@');
    if (at == std::string::npos) throw format_error(path, 0, text("\"", entry.name, "\" is not the name of a shard"));
    auto const name = entry.name.substr(0, at);
    auto const* const box = reader.note("box:" + name);
    if (box == nullptr) throw format_error(path, 0, text("the header has no box for \"", name, "\""));
    shard each{box_from(path, *box),
               number(path, std::string_view(entry.name).substr(at + 1)),
               entry.extents.size(),
               0,
               0,
               &reader,
               &entry};
    auto const elements = each.box.extents.size();
    if (each.count > elements || each.first > elements - each.count) {
      throw format_error(path, 0, text("\"", entry.name, "\" ends beyond its box of ", *box));
    }
    if (each.count == 0) return;
    for_each_run(each.box, each.first, 1, [&](auto whole, auto, auto) { each.begin = whole; });
    for_each_run(each.box, each.first + each.count - 1, 1, [&](auto whole, auto, auto) { each.end = whole + 1; });
    if (__builtin_add_overflow(elements_, each.count, &elements_)) {
      throw format_error(path, 0, "the checkpoint has more than 2^63 - 1 numbers");
    }
    if (auto const* const summands = reader.note("summands:" + name); summands != nullptr) {
      each.summands = number(path, *summands);
      summands_ += each.count;
      summed_[name_without_rank(name)].push_back(each);
    }
    tensors_[name].push_back(std::move(each));
  }

  // A piece is always read whole, since its SHA-256 covers all of it; the hash is checked only at the first read.
  [[nodiscard]] static std::vector<std::byte> content_of(shard& from, dtype type) {
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
                         text("the SHA-256 of \"", from.entry->name, "\" is wrong"));
    }
    from.verified = true;
    return bytes;
  }

  std::vector<std::unique_ptr<formats::safetensors::reader>> readers_;
  std::map<std::string, std::vector<shard>> tensors_;
  std::map<std::string, std::vector<shard>> summed_;  // the same pieces of all ranks, by the name without the rank
  std::int64_t elements_ = 0;
  std::int64_t summands_ = 0;
};

}  // namespace trireme::checkpoint::detail
