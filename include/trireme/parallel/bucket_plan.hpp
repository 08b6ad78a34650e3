#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::parallel {

/// Squares are summed in blocks of this many elements, counted from the start of their tensor. Slices are multiples of
/// it, and a tensor is within one block of its bucket or begins with one, so that no slice splits a block: the norm
/// depends neither on the number of ranks nor on the other tensors of a bucket.
inline constexpr std::int64_t block_elements = 1024;

/// The placement of parameters in buckets. A pure function of the parameters, the bucket size, the number of ranks and,
/// if given, the units of the model and the optimizer's requirements; it has no values and no memory.
///
/// Frozen parameters have buckets of their own after all others: these are neither summed nor published.
class bucket_plan {
 public:
  /// One tensor of the model, however many uses it has.
  struct entry {
    parameter_info info;
    std::vector<int> uses;  ///< indices into the list of uses, in their order
    int bucket = 0;
    std::int64_t offset = 0;  ///< of its first element, in the bucket
    bool frozen = false;
    int fragment = 0;  ///< of bucket_requirements::fragments
    [[nodiscard]] std::int64_t size() const noexcept { return info.extents.size(); }
  };
  struct bucket {
    std::vector<int> entries;   ///< in the order of their offsets
    std::int64_t elements = 0;  ///< with padding: a multiple of ranks * block_elements
  };
  /// Uses [first, last) belong together: they are read, and their gradients become final, at the same time.
  struct unit {
    int first = 0;
    int last = 0;
    std::vector<int> buckets;  ///< that hold a tensor of it, ascending
  };
  /// The part of an entry in a slice of its bucket.
  struct tensor_range {
    int entry = 0;
    std::int64_t in_bucket = 0;  ///< first element, counted in the bucket
    std::int64_t in_entry = 0;   ///< the same element, counted in the tensor
    std::int64_t count = 0;
  };

  /// @param uses            the parameters in forward order; equal names are uses of one tied tensor.
  /// @param bucket_elements how many elements a bucket should hold; a larger tensor has a bucket of its own.
  /// @param unit_ends       end of each unit's uses, ascending to the number of uses: then no bucket holds tensors of
  ///                        two units. Empty: buckets are filled regardless of units.
  /// @param requirements    with whole_tensors no slice splits a tensor: all slices are padded to the largest, the
  ///                        tensors of all buckets are distributed evenly, and a bucket is filled until each rank's
  ///                        slice is at least as long as its longest tensor.
  bucket_plan(std::span<parameter_info const> uses, std::int64_t bucket_elements, int ranks,
              std::span<int const> unit_ends = {}, bucket_requirements const& requirements = {})
      : ranks_(ranks) {
    collect(uses, requirements);
    if (requirements.fragments > 1) choose_fragments(requirements.fragments);
    set_units(unit_ends, static_cast<int>(uses.size()));
    copies_apart_ = requirements.copies_apart;
    fill(bucket_elements, false, requirements.whole_tensors);
    trained_buckets_ = static_cast<int>(buckets_.size());
    fill(bucket_elements, true, false);
    if (requirements.whole_tensors) distribute();
    list_buckets();
  }

  [[nodiscard]] std::vector<entry> const& entries() const noexcept { return entries_; }
  [[nodiscard]] std::vector<bucket> const& buckets() const noexcept { return buckets_; }
  /// The number of buckets that are updated: the first ones. The others are frozen.
  [[nodiscard]] int trained_buckets() const noexcept { return trained_buckets_; }
  [[nodiscard]] bool trains(int use) const noexcept { return bucket_of_use(use) < trained_buckets_; }
  /// The units in their order; none if their ends were not given.
  [[nodiscard]] std::vector<unit> const& units() const noexcept { return units_; }
  [[nodiscard]] int entry_of_use(int use) const noexcept { return entry_of_use_[static_cast<std::size_t>(use)]; }
  [[nodiscard]] unit const& unit_at(int index) const {
    if (static_cast<std::size_t>(index) < units_.size()) return units_[static_cast<std::size_t>(index)];
    throw config_error(text("trireme::exchange: there is no unit ", index, "; the model has ", units_.size()));
  }
  [[nodiscard]] int bucket_of_use(int use) const noexcept { return at(entry_of_use(use)).bucket; }
  [[nodiscard]] entry const& at(int index) const noexcept { return entries_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] std::int64_t slice_elements(int index) const noexcept {
    return buckets_[static_cast<std::size_t>(index)].elements / ranks_;
  }
  /// The parts of tensors within elements [first, first + count) of a bucket, in the order of their offsets: `for (auto
  /// const piece : plan.pieces(bucket, first, count))`.
  class tensor_range_list {
   public:
    struct end_of_list {};
    class iterator {
     public:
      explicit iterator(tensor_range_list const& of) : of_(of) { skip_empty(); }
      [[nodiscard]] tensor_range operator*() const noexcept { return of_.range_of(entry_); }
      iterator& operator++() {
        ++entry_;
        skip_empty();
        return *this;
      }
      [[nodiscard]] bool operator!=(end_of_list) const noexcept { return entry_ < of_.entries_.size(); }

     private:
      void skip_empty() {
        while (entry_ < of_.entries_.size() && of_.range_of(entry_).count <= 0) ++entry_;
      }
      tensor_range_list const& of_;
      std::size_t entry_ = 0;
    };

    tensor_range_list(bucket_plan const& plan, int index, std::int64_t first, std::int64_t count) noexcept
        : plan_(plan),
          entries_(plan.buckets_[static_cast<std::size_t>(index)].entries),
          first_(first),
          end_(first + count) {}
    [[nodiscard]] iterator begin() const { return iterator(*this); }
    [[nodiscard]] end_of_list end() const noexcept { return {}; }

   private:
    [[nodiscard]] tensor_range range_of(std::size_t which) const noexcept {
      auto const& tensor = plan_.at(entries_[which]);
      auto const begin = std::max(first_, tensor.offset);
      auto const end = std::min(end_, tensor.offset + tensor.size());
      return {entries_[which], begin, begin - tensor.offset, end - begin};
    }
    bucket_plan const& plan_;
    std::vector<int> const& entries_;
    std::int64_t first_;
    std::int64_t end_;
  };
  [[nodiscard]] tensor_range_list tensor_ranges(int index, std::int64_t first, std::int64_t count) const noexcept {
    return {*this, index, first, count};
  }

 private:
  void collect(std::span<parameter_info const> uses, bucket_requirements const& requirements) {
    std::unordered_map<std::string, int> index;
    for (int use = 0; use < static_cast<int>(uses.size()); ++use) {
      auto const& info = uses[static_cast<std::size_t>(use)];
      auto const [at, is_new] = index.try_emplace(info.name, static_cast<int>(entries_.size()));
      if (is_new) entries_.push_back({info, {}, 0, 0, info.frozen || requirements.freezes(info)});
      auto& tensor = entries_[static_cast<std::size_t>(at->second)];
      if (!(tensor.info.extents == info.extents && tensor.info.first == info.first)) {
        throw config_error(text("trireme::exchange: parameter \"", info.name, "\" is used with shapes ",
                                to_string(tensor.info.extents), " and ", to_string(info.extents),
                                "; all uses of a tied tensor need one shape"));
      }
      tensor.uses.push_back(use);
      entry_of_use_.push_back(at->second);
    }
    if (entries_.empty())
      throw config_error("trireme::exchange: the model has no parameters; an exchange needs at least one");
  }

  // Fragments are stretches of the model of about equal sizes, the last tensors first. All ranks that have a tensor
  // must agree on its fragment, whatever else they have: that of a tied one follows from its name, and sizes are those
  // of whole tensors.
  void choose_fragments(int fragments) {
    auto const size = [](entry const& of) { return static_cast<double>(of.info.whole_extents().size()); };
    std::vector<double> free(static_cast<std::size_t>(fragments));
    double all = 0, others = 0;
    for (auto const& each : entries_) all += each.frozen ? 0 : size(each);
    for (auto& each : free) each = all / fragments;
    for (auto& each : entries_) {
      if (each.frozen) continue;
      if (each.info.tied) {
        each.fragment = static_cast<int>(hash_name(each.info.name) % static_cast<std::uint64_t>(fragments));
        auto& left = free[static_cast<std::size_t>(each.fragment)];
        left = std::max(0.0, left - size(each));
      } else {
        others += size(each);
      }
    }
    double room = 0;
    for (auto const each : free) room += each;
    std::size_t fragment = 0;
    double before = 0, end = free[0];  // of the fragment
    for (auto each = entries_.rbegin(); each != entries_.rend(); ++each) {
      if (each->frozen || each->info.tied) continue;
      auto const middle = (before + size(*each) / 2) / others * room;
      while (middle > end && fragment + 1 < free.size()) end += free[++fragment];
      each->fragment = static_cast<int>(fragment);
      before += size(*each);
    }
  }
  void set_units(std::span<int const> ends, int uses) {
    int first = 0;
    for (int const end : ends) {
      if (end < first || end > uses) {
        throw config_error(text("trireme::exchange: a unit's uses end at ", end, " after the one before it ended at ",
                                first, ", of ", how_many(uses, "use"), "; ends must ascend to the number of uses"));
      }
      units_.push_back({first, end, {}});
      first = end;
    }
    if (!ends.empty() && first != uses) {
      throw config_error(text("trireme::exchange: the units have ", how_many(first, "use"),
                              " of parameters, but there are ", uses, "; pass the end of every unit"));
    }
  }
  [[nodiscard]] int unit_of(entry const& tensor) const {
    auto const at =
        std::find_if(units_.begin(), units_.end(), [&](auto const& each) { return each.last > tensor.uses.front(); });
    return static_cast<int>(at - units_.begin());
  }
  void list_buckets() {
    for (auto& [first, last, buckets] : units_) {
      for (int use = first; use < last; ++use) {
        int const own = bucket_of_use(use);
        auto const at = std::lower_bound(buckets.begin(), buckets.end(), own);
        if (at == buckets.end() || *at != own) buckets.insert(at, own);
      }
    }
  }

  // Backward finishes the last unit first, so the last parameter is the first of the first bucket. A tied tensor
  // becomes final late, and its shards must align for all of its uses: it has a bucket of its own.
  void fill(std::int64_t bucket_elements, bool frozen, bool whole) {
    bool open = false;
    std::int64_t longest = 0;  // longest tensor of the open bucket
    int open_unit = 0, open_fragment = 0;
    bool open_part = false;
    std::string_view open_dealt;  // distributed tensors are exchanged over other ranks
    auto const close = [&] {
      if (open) buckets_.back().elements = rounded(buckets_.back().elements, ranks_ * block_elements);
      open = false;
    };
    // Ordered by the first use of a tied tensor: its gradient is final when backward has reached it.
    for (int e = static_cast<int>(entries_.size()) - 1; e >= 0; --e) {
      auto& tensor = entries_[static_cast<std::size_t>(e)];
      if (tensor.frozen != frozen) continue;
      bool const alone = tensor.uses.size() > 1 || tensor.info.tied;
      int const own_unit = unit_of(tensor);
      if (alone || !open || own_unit != open_unit || tensor.info.distributed != open_dealt ||
          tensor.fragment != open_fragment || (copies_apart_ && tensor.info.is_shard() != open_part) ||
          (place(buckets_.back().elements, tensor.size()) + tensor.size() > bucket_elements &&
           (!whole || buckets_.back().elements >= ranks_ * longest))) {
        close();
        buckets_.emplace_back();
        open = true;
        longest = 0;
        open_unit = own_unit;
        open_dealt = tensor.info.distributed;
        open_fragment = tensor.fragment;
        open_part = tensor.info.is_shard();
      }
      auto& target = buckets_.back();
      tensor.bucket = static_cast<int>(buckets_.size()) - 1;
      tensor.offset = place(target.elements, tensor.size());
      target.entries.push_back(e);
      target.elements = tensor.offset + tensor.size();
      longest = std::max(longest, tensor.size());
      if (alone) close();
    }
    close();
  }

  // Gives each tensor of a bucket to one slice: the longest first, each to the slice with the fewest elements, to keep
  // padding small; then the largest slice of a bucket to the rank with the fewest elements in earlier buckets.
  void distribute() {
    std::vector<std::int64_t> load(static_cast<std::size_t>(ranks_));
    for (auto& target : std::span(buckets_).first(static_cast<std::size_t>(trained_buckets_))) {
      std::vector<std::int64_t> lengths;
      for (int const e : target.entries) lengths.push_back(at(e).size());
      std::vector<std::vector<int>> parts(load.size());
      std::vector<std::int64_t> sizes(load.size());
      for (auto const i : ordered(lengths, true)) {
        auto const least = static_cast<std::size_t>(std::min_element(sizes.begin(), sizes.end()) - sizes.begin());
        parts[least].push_back(target.entries[i]);
        sizes[least] += lengths[i];
      }
      auto const fullest = ordered(sizes, true);
      auto const idlest = ordered(load, false);
      std::vector<std::vector<int>> slices(load.size());
      for (std::size_t i = 0; i < load.size(); ++i) {
        slices[idlest[i]] = std::move(parts[fullest[i]]);
        load[idlest[i]] += sizes[fullest[i]];
      }
      lay_out(target, slices);
    }
  }
  // Indices that sort some numbers; equal ones keep their order.
  [[nodiscard]] static std::vector<std::size_t> ordered(std::vector<std::int64_t> const& numbers, bool descending) {
    std::vector<std::size_t> all(numbers.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    std::sort(all.begin(), all.end(), [&](std::size_t a, std::size_t b) {
      return numbers[a] == numbers[b] ? a < b : (numbers[a] > numbers[b]) == descending;
    });
    return all;
  }
  void lay_out(bucket& target, std::vector<std::vector<int>> const& slices) {
    std::int64_t longest = 0;
    for (auto const& slice : slices) {
      std::int64_t end = 0;
      for (int const e : slice) {
        auto& tensor = entries_[static_cast<std::size_t>(e)];
        tensor.offset = place(end, tensor.size());
        end = tensor.offset + tensor.size();
      }
      longest = std::max(longest, end);
    }
    auto const length = rounded(longest, block_elements);
    target.entries.clear();
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
      for (int const e : slices[rank]) {
        entries_[static_cast<std::size_t>(e)].offset += static_cast<std::int64_t>(rank) * length;
        target.entries.push_back(e);
      }
    }
    target.elements = static_cast<std::int64_t>(slices.size()) * length;
  }

  static constexpr std::int64_t alignment = 16;  // elements: a cache line of floats
  [[nodiscard]] static constexpr std::int64_t rounded(std::int64_t elements, std::int64_t to) noexcept {
    return (elements + to - 1) / to * to;
  }
  // Where a tensor may begin: at a cache line, and at a block if it would cross a block's end.
  [[nodiscard]] static constexpr std::int64_t place(std::int64_t after, std::int64_t size) noexcept {
    auto const at = rounded(after, alignment);
    bool const crosses = at / block_elements != (at + size - 1) / block_elements;
    return crosses ? rounded(at, block_elements) : at;
  }

  int ranks_;
  bool copies_apart_ = false;
  int trained_buckets_ = 0;
  std::vector<entry> entries_;
  std::vector<bucket> buckets_;
  std::vector<unit> units_;
  std::vector<int> entry_of_use_;
};

}  // namespace trireme::parallel
