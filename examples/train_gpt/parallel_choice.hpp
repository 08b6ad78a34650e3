#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/parallel/any_pipeline.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/rule_table.hpp"

/// The value of --parallel: axes, outermost first, with their degrees (0: the rest of the world).
///
/// The text is a list of axes: `data`, `zero3`, `pipeline:zbv`, `data=2,tensor=2,pipeline=2:1f1b`, `context=2:ulysses`,
/// `diloco:50` (steps between exchanges), `parameter_server:2` (steps by which gradients are late). `sequence` is added
/// to tensor and has its degree; alone it means both. Other axes beside diloco are within its learners:
/// `diloco=2,zero1=2,tensor=2`.
class parallel_choice {
 public:
  enum class splits_samples { data, zero1, zero2, zero3, diloco, parameter_server };

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
      order_.push_back({axis::tensor, 0});
    }
    if (has(axis::pipeline) && (samples_ == splits_samples::zero2 || samples_ == splits_samples::zero3))
      fail_by("pipeline-keeps-gradients");
    if (has(axis::learners)) {
      if (samples_ == splits_samples::parameter_server) fail_by("learners-share-plain-steps");
      if (has(axis::data) && samples_ != splits_samples::zero1)
        fail(
            "within the learners of diloco this program has zero1; use it, or write the mesh in a program of your own");
      samples_ = splits_samples::diloco;
    }
    if (reproducible && samples_ == splits_samples::parameter_server) {
      fail("--reproducible works with data, zero1, zero2, zero3 and diloco only; leave one of them out");
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
  /// Throws config_error if ranks cannot have unequal shares of a batch.
  void expect_shares() const {
    if (!cuts_nothing() || samples_ > splits_samples::zero2) fail_by("shares-need-replicas");
    if (reproducible_) fail("--reproducible needs equal shares; leave out --shares or --reproducible");
  }

  /// The number of parts into which the samples of a step are split; the mesh must fit the world.
  [[nodiscard]] int replicas(int world) const noexcept {
    return degree(axis::learners, world) * degree(axis::data, world) * degree(axis::expert, world);
  }
  /// Micro-batches per step that keep a pipeline busy (four per stage); 0 without one.
  [[nodiscard]] std::int64_t micro_batches(int world) const noexcept {
    return has(axis::pipeline) ? 4 * replicas(world) * degree(axis::pipeline, world) : 0;
  }

  /// The axis that splits samples.
  template <class Axis>
  [[nodiscard]] Axis data_axis() const {
    Axis out;
    out.ways = ways(trireme::kind_of_axis<Axis>);
    if constexpr (requires { out.reproducible; }) out.reproducible = reproducible_;
    if constexpr (requires { out.period; }) out.period = number_ == unset ? out.period : number_;
    if constexpr (requires { out.staleness; }) out.staleness = number_ == unset ? 1 : number_;
    return out;
  }
  /// The mesh of that axis and all others; axes that were not named have degree 1.
  template <class Axis>
  [[nodiscard]] auto mesh() const {
    using namespace trireme::parallel;
    tensor const cut{.ways = ways(axis::tensor)};
    sequence const rows{.ways = sequence_ ? 0 : 1};
    context const positions{.ways = ways(axis::context), .method = method_};
    expert const mixture{.ways = ways(axis::expert)};
    if constexpr (std::is_same_v<Axis, diloco>) {
      return ordered(trireme::parallel::mesh(data_axis<diloco>(), data_axis<zero<1>>(),
                                             any_pipeline{.schedule = schedule_, .stages = ways(axis::pipeline)},
                                             mixture, positions, cut, rows));
    } else if constexpr (Axis::gradients == trireme::distribution::replicate) {
      return ordered(trireme::parallel::mesh(data_axis<Axis>(),
                                             any_pipeline{.schedule = schedule_, .stages = ways(axis::pipeline)},
                                             mixture, positions, cut, rows));
    } else {
      return ordered(trireme::parallel::mesh(data_axis<Axis>(), mixture, positions, cut, rows));
    }
  }

 private:
  using kind_of_axis = std::string_view;
  /// The kinds of axes.
  struct axis {
    static constexpr kind_of_axis learners = trireme::kind_of_axis<trireme::parallel::diloco>;
    static constexpr kind_of_axis data = "data";
    static constexpr kind_of_axis tensor = trireme::parallel::tensor::kind;
    static constexpr kind_of_axis sequence = trireme::parallel::sequence::kind;
    static constexpr kind_of_axis context = trireme::parallel::context::kind;
    static constexpr kind_of_axis pipeline = trireme::parallel::any_pipeline::kind;
    static constexpr kind_of_axis expert = trireme::parallel::expert::kind;
  };
  struct degree_of_axis {
    kind_of_axis kind;
    int ways;
  };

  [[noreturn]] void fail(std::string const& sentence) const {
    throw trireme::config_error(trireme::text("--parallel is \"", text_, "\"; ", sentence));
  }
  [[noreturn]] void fail_by(std::string_view id) const {
    for (auto const& rule : trireme::compatibility_rules) {
      if (rule.id == id) fail(trireme::text(rule.sentence, "; ", rule.remedy));
    }
    fail(std::string(id));
  }
  [[nodiscard]] auto find(kind_of_axis kind) const noexcept {
    return std::ranges::find(order_, kind, &degree_of_axis::kind);
  }
  [[nodiscard]] bool has(kind_of_axis kind) const noexcept { return find(kind) != order_.end(); }
  [[nodiscard]] int ways(kind_of_axis kind) const noexcept { return has(kind) ? find(kind)->ways : 1; }

  [[nodiscard]] int degree(kind_of_axis kind, int world) const noexcept {
    int others = 1;
    for (auto const& each : order_) others *= each.kind == kind || each.ways == 0 ? 1 : each.ways;
    return ways(kind) > 0 ? ways(kind) : world / others;
  }

  template <class Mesh>
  [[nodiscard]] Mesh ordered(Mesh mesh) const {
    std::ranges::stable_sort(mesh.order, {}, [&](kind_of_axis kind) { return find(kind); });
    return mesh;
  }

  // NAME[=DEGREE][:SCHEDULE, METHOD or NUMBER]
  void add(std::string_view item) {
    auto const colon = item.find(':');
    auto const equals = item.substr(0, colon).find('=');
    auto const name = item.substr(0, std::min(colon, equals));
    auto const kind = axis_of(name);
    if (colon != item.npos) {
      if (kind == axis::context) {
        take_method(item.substr(colon + 1));
      } else if (name == "diloco" || name == "parameter_server") {
        take_number(item.substr(colon + 1), name == "diloco" ? 1 : 0);
      } else {
        if (kind != axis::pipeline) fail(trireme::text(name, " has no schedule; only pipeline has one"));
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
        fail(trireme::text("\"", number, "\" is not a degree of ", name, ": it must be a whole number of at least 1"));
      }
    }
    if (kind == axis::sequence) {
      if (equals != item.npos) fail("sequence has the degree of tensor; write it without one");
      sequence_ = true;
      return;
    }
    if (has(kind)) fail(trireme::text("two axes of it split ", split_by(kind), "; leave one of them out"));
    order_.push_back({kind, degree});
  }

  kind_of_axis axis_of(std::string_view name) {
    for (auto const kind : {axis::tensor, axis::sequence, axis::context, axis::pipeline, axis::expert}) {
      if (name == kind) return kind;
    }
    constexpr std::string_view all[] = {"data", "zero1", "zero2", "zero3", "diloco", "parameter_server"};
    auto const index = std::ranges::find(all, name) - std::begin(all);
    if (index == std::ssize(all)) {
      fail(trireme::text(
          "unknown axis \"", name,
          "\": the axes are data, zero1, zero2, zero3, diloco, parameter_server, tensor, sequence, context, "
          "pipeline and expert"));
    }
    if (name == "diloco") return axis::learners;
    samples_ = static_cast<splits_samples>(index);
    return axis::data;
  }
  void take_number(std::string_view number, int least) {
    auto const* const end = number.data() + number.size();
    auto const [stopped, problem] = std::from_chars(number.data(), end, number_);
    if (problem == std::errc{} && stopped == end && number_ >= least) return;
    fail(trireme::text("\"", number, "\" is not a number of steps: it must be a whole number of at least ", least));
  }
  void take_method(std::string_view name) {
    if (name != "ring" && name != "ulysses")
      fail(trireme::text("unknown context \"", name, "\": there are ring and ulysses"));
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
    if (!found) fail(trireme::text("unknown schedule \"", schedule_, "\": there are ", names));
  }
  static std::string_view split_by(kind_of_axis kind) {
    if (kind == axis::data || kind == axis::learners) return "samples";
    if (kind == axis::context) return "positions";
    if (kind == axis::expert) return "experts";
    return kind == axis::pipeline ? "the list of layers" : "layers";
  }

  std::string text_;
  bool reproducible_;
  static constexpr int unset = -1;
  splits_samples samples_ = splits_samples::data;
  int number_ = unset;  // diloco's period, parameter_server's staleness
  bool sequence_ = false;
  std::string schedule_ = "1f1b";
  trireme::parallel::context_method method_ = trireme::parallel::context_method::ring;
  std::vector<degree_of_axis> order_;
};
