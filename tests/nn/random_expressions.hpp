#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/hash.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/batch_norm.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/elementwise.hpp"
#include "trireme/nn/images.hpp"
#include "trireme/nn/latent_attention.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/multi_token.hpp"
#include "trireme/nn/sum.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/precision/precision.hpp"

/// Expressions that nobody has thought of: a seed gives the nodes of one, and the source that a user would write.
namespace random_expressions {

using namespace trireme;

template <class Env, class T>
typename Env::accumulate real(T x) {
  return static_cast<typename Env::accumulate>(x);
}

/// Written by hand, with weights: y = x * gain, column by column, or with one gain for all, on rows or columns.
template <nn::flow Flow>
struct scaled_by {
  static constexpr nn::flow flow = Flow;
  friend bool operator==(scaled_by const&, scaled_by const&) = default;

  template <class Env>
  class instance {
    using kernels = ops::on<typename Env::space>;
    using view = nn::detail::view_of<Env>;

   public:
    struct saved {};
    instance(scaled_by const&, nn::placing<Env>& at) {
      gain_.info = {
          at.name + ".gain", {Flow == nn::flow::rows ? at.width : 1}, {initial::distribution::ones, 0}, false};
    }
    void visit(auto&& each) { each(gain_); }
    view forward(pass<Env>& pass, saved&, view x) { return times(pass.take(x.extents()), x); }
    view backward_input(pass<Env>& pass, saved&, view, view dy) {
      return times(pass.scratch.template take<typename Env::compute>(dy.extents()), dy);
    }
    void backward_weight(pass<Env>&, saved&, view x, view dy) {
      kernels::with_values(
          [](auto to, auto left, auto right) {
            for (std::size_t i = 0; i < left.size(); ++i) {
              to[i % to.size()] +=
                  static_cast<typename Env::gradient>(left[i]) * static_cast<typename Env::gradient>(right[i]);
            }
          },
          gain_.gradient, x, dy);
    }

   private:
    view times(view y, view x) const {
      kernels::with_values(
          [](auto out, auto from, auto gain) {
            for (std::size_t i = 0; i < out.size(); ++i) {
              out[i] = static_cast<typename Env::compute>(real<Env>(from[i]) * real<Env>(gain[i % gain.size()]));
            }
          },
          y, x, gain_.value);
      return y;
    }
    parameter<Env> gain_{};
  };
};
using scaled = scaled_by<nn::flow::rows>;
using steered = scaled_by<nn::flow::any>;

/// Written by hand, without weights: y = tanh(x / 2), which it keeps for its backward pass; or, for `same`, y = x, in
/// the memory of x.
struct wave {
  static constexpr nn::flow flow = nn::flow::any;
  bool same = false;
  friend bool operator==(wave const&, wave const&) = default;

  template <class Env>
  class instance {
    using kernels = ops::on<typename Env::space>;
    using view = nn::detail::view_of<Env>;

   public:
    struct saved {
      view y;
    };
    instance(wave const& what, nn::placing<Env>&) : same_(what.same) {}
    view forward(pass<Env>& pass, saved& kept, view x) {
      if (same_) return x;
      kept.y = pass.take(x.extents());
      kernels::with_values(
          [](auto y, auto from) {
            for (std::size_t i = 0; i < y.size(); ++i) {
              y[i] = static_cast<typename Env::compute>(std::tanh(real<Env>(from[i]) / 2));
            }
          },
          kept.y, x);
      return kept.y;
    }
    view backward_input(pass<Env>& pass, saved& kept, view, view dy) {
      if (same_) return dy;
      auto const dx = pass.take(dy.extents());
      kernels::with_values(
          [](auto out, auto y, auto d) {
            for (std::size_t i = 0; i < out.size(); ++i) {
              auto const of = real<Env>(y[i]);
              out[i] = static_cast<typename Env::compute>(real<Env>(d[i]) * (1 - of * of) / 2);
            }
          },
          dx, kept.y, dy);
      return dx;
    }
    void backward_weight(pass<Env>&, saved&, view, view) {}

   private:
    bool same_;
  };
};

/// Draws an expression that takes and gives rows of `width` numbers.
template <class Env>
class generator {
 public:
  using nodes = std::vector<nn::node_pointer<Env>>;

  explicit generator(std::uint64_t seed) : random_(seed * 7919 + 1) {}

  static constexpr std::int64_t width = 6;
  std::string source;

  nodes draw() {
    source = "chain";
    return chain(width, width, 3);
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  std::int64_t some_width() { return 4 + below(5); }

  template <class L>
  void leaf(nodes& out, L const& layer, std::string const& text) {
    nn::append_nodes<Env>(out, layer);
    out.back()->prefix("l" + std::to_string(count_++));
    source += text + ", ";
  }
  std::int64_t linear_of_some_width(nodes& out) {
    auto const outputs = some_width();
    linear(out, outputs);
    return outputs;
  }
  void linear(nodes& out, std::int64_t outputs) { linear(out, outputs, below(4) > 0); }
  void linear(nodes& out, std::int64_t outputs, bool bias) {
    leaf(out, nn::linear{.outputs = outputs, .bias = bias},
         text("linear{.outputs = ", outputs, bias ? "}" : ", .bias = false}"));
  }
  void small(nodes& out) {  // number by number, in place and not
    switch (below(9)) {
      case 7:
        return leaf(out,
                    nn::elementwise{[](auto x) { return std::sin(x) + x / 2; },
                                    [](auto x) { return std::cos(x) + decltype(x)(0.5); }},
                    "elementwise{sin(x) + x / 2, of x}");
      case 8:
        return leaf(out,
                    nn::elementwise{[](double x) { return 1 / (1 + std::exp(-x)); },
                                    [](double, double y) { return y * (1 - y); }},
                    "elementwise{sigmoid(x), of y}");
      case 0:
        return leaf(out, nn::dropout{0.25}, "dropout{0.25}");
      case 1:
        return leaf(out, nn::dropout{0}, "dropout{0}");
      case 2:
        return leaf(out, nn::gelu(), "gelu()");
      case 3:
        return leaf(out, nn::tanh(), "tanh()");
      case 4:
        return leaf(out, nn::silu(), "silu()");
      default: {
        bool const same = below(2) == 0;
        leaf(out, wave{same}, same ? "wave{true}" : "wave{}");
      }
    }
  }
  void some_small(nodes& out) {
    for (auto n = below(3); n-- > 0;) small(out);
  }
  std::int64_t attention(nodes& out) {
    auto const keys = 3 + below(2);
    auto const heads = keys * (1 + below(2));
    double const rotary = below(2) == 0 ? 10 : 0;
    auto const each = rotary > 0 ? 2 + 2 * below(2) : 1 + below(2);
    linear(out, (heads + 2 * keys) * each);
    if (below(3) == 0) some_small(out);
    if (below(3) == 0) leaf(out, steered{}, "steered{}");
    nn::attend what{.heads = heads, .dropout = below(2) == 0 ? 0.25 : 0, .key_heads = keys, .rotary = rotary};
    if (below(2) == 0) what.scaling = {.factor = 2, .original = below(2) == 0 ? 40 : 0};
    what.causal = below(3) > 0;
    if (below(3) == 0) what.window = 1 + below(4);
    if (below(3) == 0) what.norm = 0.1;
    if (below(3) == 0) what.tokens = {.padding = 7, .separator = below(2) == 0 ? 3 : -1};
    leaf(out, what,
         text("attend{.heads = ", heads, ", .dropout = ", what.dropout, ", .key_heads = ", keys, ", .rotary = ", rotary,
              ", .scaling = {", what.scaling.factor, ", ", what.scaling.original, "}, .causal = ", what.causal,
              ", .window = ", what.window, ", .norm = ", what.norm, ", .tokens = {", what.tokens.padding, ", ",
              what.tokens.separator, "}}"));
    if (below(3) == 0) some_small(out);
    return linear_of_some_width(out);
  }
  std::int64_t latent_attention(nodes& out) {
    nn::latent_attention what{.heads = 3 + below(2),
                              .query_rank = below(2) == 0 ? 0 : some_width(),
                              .rank = some_width(),
                              .plain = 1 + below(3),
                              .rotary_width = 2 + 2 * below(2),
                              .values = 1 + below(7),
                              .rotary = 10,
                              .epsilon = 0.1,
                              .dropout = below(2) == 0 ? 0.25 : 0};
    if (below(3) == 0) what.scaling = {.factor = 2};
    leaf(
        out, what,
        text("latent_attention{.heads = ", what.heads, ", .query_rank = ", what.query_rank, ", .rank = ", what.rank,
             ", .plain = ", what.plain, ", .rotary_width = ", what.rotary_width, ", .values = ", what.values,
             ", .rotary = 10, .scaling = {", what.scaling.factor, "}, .epsilon = 0.1, .dropout = ", what.dropout, "}"));
    if (below(3) == 0) some_small(out);
    return linear_of_some_width(out);
  }
  std::int64_t swiglu(nodes& out) {
    auto const inner = some_width();
    source += "product(chain(";
    nodes gate, up;
    linear(gate, inner, false);
    leaf(gate, nn::silu(), "silu()");
    source += "), chain(";
    linear(up, inner, false);
    source += ")), ";
    composite<nn::product_kind>(out, std::move(gate), std::move(up));
    auto const after = some_width();
    linear(out, after, false);
    return after;
  }
  std::int64_t concat(nodes& out, std::int64_t from, int depth) {
    source += "beside(";
    std::vector<nn::detail::chain_node<Env>> branches;
    std::int64_t after = 0;
    for (auto n = 1 + below(3); n-- > 0;) {
      source += "chain";
      auto const each = below(2) == 0 ? from : some_width();
      branches.emplace_back(chain(from, each, depth));
      after += each;
      source += ", ";
    }
    source += "), ";
    composite<nn::concat_kind>(out, std::move(branches));
    return after;
  }
  template <class Kind>
  static void composite(nodes& out, std::vector<nn::detail::chain_node<Env>> branches) {
    out.push_back(std::make_unique<nn::detail::layer_node<Env, Kind>>(Kind{}, std::move(branches)));
  }
  template <class Kind, class... Branches>
  static void composite(nodes& out, nodes first, Branches... others) {
    std::vector<nn::detail::chain_node<Env>> branches;
    branches.emplace_back(std::move(first));
    (branches.emplace_back(std::move(others)), ...);
    composite<Kind>(out, std::move(branches));
  }
  // Takes rows of `at` numbers as images.
  std::int64_t images(nodes& out, std::int64_t at) {
    bool const two = at % 2 == 0;
    nn::image const what{two ? 2 : 1, two ? at / 2 : at, 1};
    leaf(out, what, text("image{", what.height, ", ", what.width, ", 1}"));
    auto const outputs = 1 + below(3);
    bool const wide = below(3) > 0, biased = below(2) == 0;
    leaf(
        out, nn::conv2d{.outputs = outputs, .kernel = wide ? 3 : 1, .padding = wide ? 1 : 0, .bias = biased},
        text("conv2d{.outputs = ", outputs, ", .kernel = ", wide ? "3, .padding = 1" : "1", ", .bias = ", biased, "}"));
    if (below(3) == 0) some_small(out);
    if (below(3) == 0) leaf(out, nn::batch_norm{.epsilon = 0.5}, "batch_norm{.epsilon = 0.5}");
    if (two && below(2) == 0)
      leaf(out, nn::average_pool2d{.kernel = 2, .stride = 1}, "average_pool2d{.kernel = 2, .stride = 1}");
    return linear_of_some_width(out);
  }
  nodes chain(std::int64_t from, std::int64_t to, int depth) {
    source += "(";
    nodes out;
    auto at = from;
    if (below(4) == 0) small(out);
    for (auto n = 1 + below(4); n-- > 0;) {
      auto const kind = below(depth > 0 ? 17 : 5);
      if (kind < 2) {
        small(out);
      } else if (kind == 2) {
        if (below(2) == 0) at = some_width();
        linear(out, at);
      } else if (kind == 3) {
        if (below(2) == 0) {
          leaf(out, nn::layer_norm{.epsilon = 0.1}, "layer_norm{.epsilon = 0.1}");
        } else {
          leaf(out, nn::rms_norm{.epsilon = 0.1}, "rms_norm{.epsilon = 0.1}");
        }
      } else if (kind == 4) {
        leaf(out, scaled{}, "scaled{}");
      } else if (kind < 7) {
        source += "residual";
        auto branch = chain(at, at, depth - 1);
        composite<nn::residual_kind>(out, std::move(branch));
        source += ", ";
      } else if (kind == 7) {
        auto const inner = below(3) == 0 ? at : some_width();
        source += "product(chain";
        auto a = chain(at, inner, depth - 1);
        source += ", chain";
        auto b = chain(at, inner, depth - 1);
        source += "), ";
        composite<nn::product_kind>(out, std::move(a), std::move(b));
        at = inner;
      } else if (kind == 8) {
        at = swiglu(out);
      } else if (kind == 9) {
        at = concat(out, at, depth - 1);
      } else if (kind == 10) {
        at = attention(out);
      } else if (kind == 11) {
        source += "sum(chain";
        auto a = chain(at, at, depth - 1);
        source += ", chain";
        auto b = chain(at, at, depth - 1);
        source += "), ";
        composite<nn::sum_kind>(out, std::move(a), std::move(b));
      } else if (kind == 15) {
        source += "checkpointed";
        auto const after = below(2) == 0 ? at : some_width();
        auto layers = chain(at, after, depth - 1);
        composite<nn::checkpointed_kind>(out, std::move(layers));
        source += ", ";
        at = after;
      } else if (kind == 16) {
        source += "in_training";
        auto layers = chain(at, at, depth - 1);
        composite<nn::in_training_kind>(out, std::move(layers));
        source += ", ";
      } else if (kind == 12) {
        leaf(out, nn::batch_norm{.epsilon = 0.5}, "batch_norm{.epsilon = 0.5}");
      } else if (kind == 13) {
        at = latent_attention(out);
      } else {
        at = images(out, at);
      }
    }
    if (at != to) linear(out, to);
    if (at != to && below(2) == 0) some_small(out);
    source += ")";
    return out;
  }

  std::mt19937_64 random_;
  int count_ = 0;
};

/// Reference numbers between -1 and 1, functions of a name and an index.
inline double number(std::uint64_t name, std::int64_t index) {
  auto const bits = mix(name + 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(index + 1));
  return static_cast<double>(bits >> 11) * 0x1p-52 - 1;
}

inline constexpr int micro_batches = 2;

struct outcome {
  std::vector<std::vector<double>> y, dx;                // of each micro-batch, the rows that lie here
  std::map<std::string, std::vector<double>> gradients;  // of what lies here
  bool operator==(outcome const&) const = default;
};

/// A unit of one expression, run by hand.
template <class Env>
class trial {
 public:
  using value = typename Env::compute;
  using view = nn::detail::view_of<Env>;

  trial(std::uint64_t seed, std::int64_t samples_each, std::int64_t context, rank_groups<Env> groups = {})
      : groups_(groups),
        rows_(samples_each * context),
        draws_(seed),
        unit_("unit", generator<Env>::width, draws_.draw(), groups) {
    unit_.visit([&](parameter<Env>& each) {
      auto const& info = each.info;
      auto& values = values_.emplace_back(static_cast<std::size_t>(info.extents.size()));
      auto& gradients = gradients_.emplace_back(values.size());
      for_each_run(info, 0, info.extents.size(), [&](std::int64_t whole, std::int64_t part, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
          auto const start = 0.5 * number(hash_name(info.name), whole + i);
          values[static_cast<std::size_t>(part + i)] =
              static_cast<typename Env::param>(info.start.kind == initial::distribution::ones ? 1 + start : start);
        }
      });
      each.value = tensor_view<typename Env::param>(values.data(), info.extents);
      each.gradient = tensor_view<typename Env::gradient>(gradients.data(), info.extents);
      parameters_.push_back(&each);
    });
    tokens_.resize(static_cast<std::size_t>(rows_ * micro_batches));
    for (std::size_t i = 0; i < tokens_.size(); ++i) {  // below 6; the last ones of some samples are padding, 7
      auto const each = static_cast<std::size_t>(context);
      tokens_[i] = i % each + i / each % 3 >= each ? 7 : static_cast<std::int32_t>(i * i % 6);
    }
    for (int m = 0; m < micro_batches; ++m) {
      tensor_view<std::int32_t const> const some(tokens_.data() + m * rows_, {samples_each, context});
      batches_.push_back(make_samples(some, some));
      ids_.push_back({});
      for (std::int64_t s = 0; s < samples_each; ++s) ids_.back().push_back(m * samples_each + s);
      batches_.back().ids = ids_.back();
    }
  }

  [[nodiscard]] std::string const& source() const { return draws_.source; }
  [[nodiscard]] std::vector<parameter<Env>*> const& parameters() const { return parameters_; }

  /// Both micro-batches forward, then backward, whole or by halves.
  outcome run(bool halves) {
    for (auto& each : gradients_) std::fill(each.begin(), each.end(), typename Env::gradient{});
    outcome out;
    std::vector<view> y(micro_batches), dx(micro_batches);
    for (auto& each : activations_) poison(each);
    for (int m = 0; m < micro_batches; ++m) {
      auto const m_ = static_cast<std::size_t>(m);
      x_[m_] = reference("x", m);
      auto const x = as_view(x_[m_]);
      within(m, [&](auto& pass) { y[m_] = unit_.forward(pass, saved_[m], x); });
      out.y.push_back(numbers(y[m_]));
    }
    for (int m = 0; m < micro_batches; ++m) {
      auto const m_ = static_cast<std::size_t>(m);
      auto dy = reference("dy", m);
      within(m, [&](auto& pass) {
        auto const d = as_view(dy);
        dx[m_] = halves ? unit_.backward_input(pass, saved_[m], d) : unit_.backward(pass, saved_[m], d);
      });
      out.dx.push_back(numbers(dx[m_]));
      std::fill(dy.begin(), dy.end(), static_cast<value>(NAN));  // it changes once the unit has returned
    }
    for (int m = 0; m < micro_batches && halves; ++m)
      within(m, [&](auto& pass) { unit_.backward_weight(pass, saved_[m]); });
    for (std::size_t m = 0; m < micro_batches; ++m) {
      untouched_ = untouched_ && numbers(y[m]) == out.y[m] && x_[m] == reference("x", static_cast<int>(m));
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      out.gradients[parameters_[i]->info.name] = {gradients_[i].begin(), gradients_[i].end()};
    }
    return out;
  }
  /// Whether no input and no result of the unit has been written to.
  [[nodiscard]] bool untouched() const { return untouched_; }

  /// The loss whose gradient run() forms: the sum of y * dy over all micro-batches.
  double loss() {
    double sum = 0;
    for (int m = 0; m < micro_batches; ++m) {
      activations_[m].reset();
      auto x = x_[static_cast<std::size_t>(m)];
      auto const weights = reference("dy", m);
      within(
          m,
          [&](auto& pass) {
            auto const y = unit_.forward(pass, saved_[m], as_view(x)).span();
            for (std::size_t i = 0; i < y.size(); ++i)
              sum += static_cast<double>(y[i]) * static_cast<double>(weights[i]);
          },
          false);
    }
    return sum;
  }
  std::vector<std::vector<typename Env::param>>& values() { return values_; }
  std::vector<value>& x(int m) { return x_[static_cast<std::size_t>(m)]; }

  /// Rows of this rank.
  [[nodiscard]] interval rows_here() const { return tensor_group<Env>::of(groups_).rows_here(rows_); }

 private:
  std::vector<value> reference(char const* what, int m) const {
    auto const here = rows_here();
    std::vector<value> out;
    for (std::int64_t i = here.first * generator<Env>::width; i < (here.first + here.count) * generator<Env>::width;
         ++i) {
      out.push_back(static_cast<value>(number(hash_name(what) + static_cast<std::uint64_t>(m), i)));
    }
    return out;
  }
  view as_view(std::vector<value>& numbers) const {
    return {numbers.data(), {rows_here().count, generator<Env>::width}};
  }
  static std::vector<double> numbers(view v) {
    std::vector<double> out;
    for (auto const each : v.span()) out.push_back(static_cast<double>(each));
    return out;
  }
  static void poison(arena<host>& memory) {
    memory.reset();
    auto const all = memory.take<float>({static_cast<std::int64_t>(memory.peak_bytes() / 4)});
    ops::on<host>::fill(all, std::numeric_limits<double>::quiet_NaN());
    memory.reset();
  }
  template <class Body>
  void within(int m, Body const& body, bool poisons = true) {
    auto const m_ = static_cast<std::size_t>(m);
    pass<Env> pass{.activations = activations_[m],
                   .scratch = scratch_,
                   .batch = batches_[m_],
                   .key = {1, 2},
                   .version = ++version_,
                   .weight = 0.25,
                   .groups = groups_,
                   .saved_index = m_};
    body(pass);
    if (poisons) {
      poison(scratch_);
    } else {
      scratch_.reset();
    }
  }

  rank_groups<Env> groups_;
  std::int64_t rows_;
  generator<Env> draws_;
  nn::expression<Env> unit_;
  typename nn::expression<Env>::saved saved_[micro_batches];
  std::vector<parameter<Env>*> parameters_;
  std::vector<std::vector<typename Env::param>> values_;
  std::vector<std::vector<typename Env::gradient>> gradients_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::vector<std::int64_t>> ids_;
  std::vector<samples> batches_;
  std::vector<value> x_[micro_batches];
  arena<host> activations_[micro_batches];
  arena<host> scratch_;
  std::uint64_t version_ = 0;
  bool untouched_ = true;
};

/// Seeds from `first` on whose expressions can stand: not all that are drawn do.
template <class Env>
bool stands(std::uint64_t seed) {
  try {
    trial<Env> one(seed, 1, 1);
    return true;
  } catch (config_error const&) {
    return false;
  }
}

}  // namespace random_expressions
