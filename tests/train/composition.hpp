#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/spline.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/parameter_server.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/fp8.hpp"
#include "trireme/train/rule_table.hpp"
#include "trireme/train/slots.hpp"

// Which policies can be combined, according to the rules at compile time; docs/composition.md is made from the results.
namespace composition {

using namespace trireme;

template <class... T>
struct types {};
using axes = types<parallel::data, parallel::zero<1>, parallel::zero<2>, parallel::zero<3>, parallel::diloco,
                   parallel::parameter_server, parallel::tensor, parallel::sequence, parallel::context,
                   parallel::pipeline<>, parallel::expert>;
using precisions = types<precision::fp32, precision::fp64, precision::bf16, precision::fp16, precision::fp8>;
using compressions = types<compression::none, compression::cast<bf16>, compression::quantise<8>, compression::random_k,
                           compression::top_k, compression::error_feedback<compression::top_k>, compression::power_sgd>;

/// Calls f(std::type_identity<T>{}) for each type of a list.
template <class... T, class F>
void for_each(types<T...>, F&& f) {
  (f(std::type_identity<T>{}), ...);
}

/// Calls f(std::type_identity<Parallel>{}, name) for each axis alone, and for each pair of axes, in this order.
template <class F>
void for_each_axis(F&& f) {
  for_each(axes{}, [&]<class A>(std::type_identity<A> axis) { f(axis, std::string(A::name)); });
}
template <class F>
void for_each_pair(F&& f) {
  int row = 0;
  for_each(axes{}, [&]<class A>(std::type_identity<A>) {
    int column = 0;
    for_each(axes{}, [&]<class B>(std::type_identity<B>) {
      if (column++ >= row) f(std::type_identity<parallel::mesh<A, B>>{}, text(A::name, ", ", B::name));
    });
    ++row;
  });
}

/// The id of the rule that a combination breaks on a communicator that can do everything; empty if it works.
template <class Model, class Parallel, class Precision, class Compression>
inline constexpr std::string_view broken = trireme::detail::broken_rule<
    trireme::detail::combination<Model, comm::threads_world, Parallel, Precision, Compression>>;

/// The result for a combination: "works" or the rule that it breaks.
template <class Model, class Parallel, class Precision, class Compression>
std::string answer() {
  constexpr auto id = broken<Model, Parallel, Precision, Compression>;
  return id.empty() ? std::string("works") : text("`", id, "`");
}

/// Results with the names that have them, in the order of their first occurrence.
class groups {
 public:
  void add(std::string const& answer, std::string_view name) {
    for (auto& [known, names] : all_) {
      if (known != answer) continue;
      names += text(", ", name);
      return;
    }
    all_.emplace_back(answer, name);
  }
  /// "result" if all have the same, else "name, name: result", and so on.
  [[nodiscard]] std::string to_string(std::string_view separator) const {
    if (all_.size() == 1) return all_[0].first;
    std::string out;
    for (auto const& [answer, names] : all_) out += text(out.empty() ? "" : separator, names, ": ", answer);
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

/// `top_k`, say.
template <class Compression>
std::string name_of_compressor() {
  constexpr std::string_view room = "compression::";
  auto const source = describe(Compression{});
  return text("`", source.substr(room.size(), source.find('{') - room.size()), "`");
}

/// The result for each precision and each compressor.
template <class Model, class Parallel>
std::string cell() {
  groups by_precision;
  for_each(precisions{}, [&]<class Precision>(std::type_identity<Precision>) {
    groups by_compressor;
    for_each(compressions{}, [&]<class Compression>(std::type_identity<Compression>) {
      by_compressor.add(answer<Model, Parallel, Precision, Compression>(), name_of_compressor<Compression>());
    });
    by_precision.add(by_compressor.to_string("; "), Precision::name);
  });
  return by_precision.to_string("<br>");
}

inline std::string table() {
  std::string out = "| axes | model in units | plain model |\n|---|---|---|\n";
  auto const row = [&]<class Parallel>(std::type_identity<Parallel>, std::string const& name) {
    out += text("| ", name, " | ", cell<nn::gpt, Parallel>(), " | ", cell<toy::spline, Parallel>(), " |\n");
  };
  for_each_axis(row);
  for_each_pair(row);
  return out;
}

inline std::string page() {
  auto out = text(
      "# Which policies can be combined\n\n"
      "The table has each axis alone and each pair of axes, with each precision (fp32, fp64, bf16, fp16, fp8) and "
      "each\n"
      "compressor (`none`, `cast`, `quantise`, `random_k`, `top_k`, `error_feedback`, `power_sgd`). A cell is the\n"
      "compiler's result: the combination *works*, or it breaks the named rule; the rules are below. A cell that "
      "names\n"
      "no precision or compressor is the same for all of them. The rules treat `mxfp8`, `nvfp4` and `bf16_only` like\n"
      "`fp8`, `sign` and `top_k_sampled` like `top_k`, and `error_feedback` of every compressor like that of `top_k`,\n"
      "`dgc` too; `by_size` and `by_name` like `power_sgd`.\n\n"
      "`scripts/composition-table` writes this page from `train/rule_table.hpp`. The test `train.compatibility`\n"
      "compares the two, and trains each axis and each pair that works (in fp32, without a compressor) against serial\n"
      "training; `diloco` and `parameter_server`, which define a step differently, are tested by `train.local_steps` "
      "and,\n"
      "with other axes within the learners of `diloco`, by `train.learners`.\n"
      "The page assumes a communicator with all collectives. Sizes that do not fit are refused when the trainer is\n"
      "made; [strategies.md](strategies.md) lists these errors.\n\n",
      table(), "\n## Rules\n\n| rule | what is refused | what to do |\n|---|---|---|\n");
  for (auto const& rule : compatibility_rules) {
    out += text("| `", rule.id, "` | ", rule.sentence, " | ", rule.remedy, " |\n");
  }
  return out;
}

}  // namespace composition
