#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/compatibility.hpp"

/// What --parallel says: axes, outermost first, with their degrees (0: what is left of the world).
///
/// The text is a list of axes: `data`, `zero3`, `pipeline:zbv`, `data=2,tensor=2,pipeline=2:1f1b`, `context=2:ulysses`.
/// `sequence` stands beside tensor and has its degree; alone it means both.
class parallel_choice {
 public:
  enum class splits_samples { data, zero1, zero2, zero3 };

  /// Throws config_error.
  parallel_choice(std::string_view text, bool reproducible) : text_(text), reproducible_(reproducible) {
    for (std::string_view left = text;;) {
      auto const comma = left.find(',');
      add(left.substr(0, comma));
      if (comma == left.npos) break;
      left.remove_prefix(comma + 1);
    }
    if (sequence_ && !has(axis::tensor)) {
      if (!order_.empty()) fail("sequence cuts rows over the ranks of tensor; add tensor to the mesh");
      order_.push_back(axis::tensor);
    }
    if (has(axis::pipeline) && samples_ >= splits_samples::zero2) {
      for (auto const& rule : trireme::compatibility_rules) {
        if (rule.id == "pipeline-keeps-gradients") fail(trireme::text(rule.sentence, "; ", rule.remedy));
      }
    }
    if (reproducible && has(axis::context)) {
      fail("--reproducible adds whole micro-batches, whose positions context shares by several ranks; leave one out");
    }
    if (reproducible && has(axis::expert)) {
      fail("--reproducible keeps micro-batches apart, whose tokens meet in the experts; leave one of them out");
    }
    if (reproducible && has(axis::pipeline) && schedule_ != "1f1b" && schedule_ != "interleaved") {
      fail(trireme::text("--reproducible sums micro-batches in their order, in which ", schedule_,
                         " does not finish them; use pipeline:1f1b or pipeline:interleaved"));
    }
  }

  [[nodiscard]] splits_samples samples() const noexcept { return samples_; }
  /// Whether every rank has the whole of each layer, all layers, and whole samples.
  [[nodiscard]] bool cuts_nothing() const noexcept {
    return !has(axis::tensor) && !has(axis::pipeline) && !has(axis::context) && !has(axis::expert);
  }
  [[nodiscard]] bool reproducible() const noexcept { return reproducible_; }

  /// How many parts the samples of a step are split into; the mesh must fit the world.
  [[nodiscard]] int replicas(int world) const noexcept {
    return degree(axis::data, world) * degree(axis::expert, world);
  }
  /// Micro-batches of a step that keep a pipeline busy (four a stage); 0 without one.
  [[nodiscard]] std::int64_t micro_batches(int world) const noexcept {
    return has(axis::pipeline) ? 4 * replicas(world) * degree(axis::pipeline, world) : 0;
  }

  /// The axis that splits samples.
  template <class Axis>
  [[nodiscard]] Axis data_axis() const {
    Axis out;
    out.ways = ways(axis::data);
    out.reproducible = reproducible_;
    return out;
  }
  /// The mesh of that axis and all others; those that were not named have one way.
  template <class Axis>
  [[nodiscard]] auto mesh() const {
    using namespace trireme::parallel;
    tensor const cut{.ways = ways(axis::tensor)};
    sequence const rows{.ways = sequence_ ? 0 : 1};
    context const positions{.ways = ways(axis::context), .method = method_};
    expert const mixture{.ways = ways(axis::expert)};
    if constexpr (Axis::gradients == trireme::distribution::replicate) {
      return ordered(trireme::parallel::mesh(data_axis<Axis>(),
                                             any_pipeline{.schedule = schedule_, .stages = ways(axis::pipeline)},
                                             mixture, positions, cut, rows));
    } else {
      return ordered(trireme::parallel::mesh(data_axis<Axis>(), mixture, positions, cut, rows));
    }
  }

 private:
  using axis = trireme::parallel::axis;

  [[noreturn]] void fail(std::string const& sentence) const {
    throw trireme::config_error(trireme::text("--parallel is \"", text_, "\"; ", sentence));
  }
  [[nodiscard]] bool has(axis kind) const noexcept { return std::ranges::find(order_, kind) != order_.end(); }
  [[nodiscard]] int ways(axis kind) const noexcept { return has(kind) ? degrees_[static_cast<int>(kind)] : 1; }

  [[nodiscard]] int degree(axis kind, int world) const noexcept {
    int others = 1;
    for (auto const each : order_) others *= each == kind || ways(each) == 0 ? 1 : ways(each);
    return ways(kind) > 0 ? ways(kind) : world / others;
  }

  template <class Mesh>
  [[nodiscard]] Mesh ordered(Mesh mesh) const {
    std::ranges::stable_sort(mesh.order, {}, [&](axis kind) { return std::ranges::find(order_, kind); });
    return mesh;
  }

  // NAME[=DEGREE][:SCHEDULE or METHOD]
  void add(std::string_view item) {
    auto const colon = item.find(':');
    auto const equals = item.substr(0, colon).find('=');
    auto const name = item.substr(0, std::min(colon, equals));
    auto const kind = axis_of(name);
    if (colon != item.npos) {
      if (kind == axis::context) {
        take_method(item.substr(colon + 1));
      } else {
        if (kind != axis::pipeline) fail(trireme::text(name, " has no schedule; pipeline has"));
        schedule_ = item.substr(colon + 1);
        check_schedule();
      }
    }
    int degree = 0;
    if (equals != item.npos) {
      auto const number = item.substr(equals + 1, colon == item.npos ? colon : colon - equals - 1);
      auto const* const end = number.data() + number.size();
      auto const [stopped, problem] = std::from_chars(number.data(), end, degree);
      if (problem != std::errc{} || stopped != end || degree < 1) {
        fail(trireme::text("\"", number, "\" is no degree of ", name, ": it is a whole number of at least 1"));
      }
    }
    if (kind == axis::sequence) {
      if (equals != item.npos) fail("sequence has the degree of tensor; write it without one");
      sequence_ = true;
      return;
    }
    if (has(kind)) fail(trireme::text("two axes of it split ", split_by(kind), "; leave one of them out"));
    order_.push_back(kind);
    degrees_[static_cast<int>(kind)] = degree;
  }

  axis axis_of(std::string_view name) {
    constexpr std::string_view all[] = {"data",     "zero1",   "zero2",    "zero3", "tensor",
                                        "sequence", "context", "pipeline", "expert"};
    auto const index = std::ranges::find(all, name) - std::begin(all);
    switch (index) {
      case 4:
        return axis::tensor;
      case 5:
        return axis::sequence;
      case 6:
        return axis::context;
      case 7:
        return axis::pipeline;
      case 8:
        return axis::expert;
      case 9:
        fail(trireme::text("there is no axis \"", name,
                           "\": there are data, zero1, zero2, zero3, tensor, sequence, context, pipeline and expert"));
      default:
        samples_ = static_cast<splits_samples>(index);
        return axis::data;
    }
  }
  void take_method(std::string_view name) {
    if (name != "ring" && name != "ulysses")
      fail(trireme::text("there is no context \"", name, "\": there are ring and ulysses"));
    using trireme::parallel::context_method;
    method_ = name == "ring" ? context_method::ring : context_method::all_to_all;
  }
  void check_schedule() const {
    std::string names;
    bool found = false;
    trireme::schedule::for_each_schedule([&](auto const& each) {
      names += trireme::text(names.empty() ? "" : ", ", std::string_view(each.name));
      found = found || each.name == schedule_;
    });
    if (!found) fail(trireme::text("there is no schedule \"", schedule_, "\": there are ", names));
  }
  static std::string_view split_by(axis kind) {
    switch (kind) {
      case axis::data:
        return "samples";
      case axis::context:
        return "positions";
      case axis::expert:
        return "experts";
      case axis::pipeline:
        return "the list of layers";
      default:
        return "layers";
    }
  }

  std::string text_;
  bool reproducible_;
  splits_samples samples_ = splits_samples::data;
  bool sequence_ = false;
  std::string schedule_ = "1f1b";
  trireme::parallel::context_method method_ = trireme::parallel::context_method::ring;
  std::vector<axis> order_;
  int degrees_[trireme::parallel::axis_count]{};
};
