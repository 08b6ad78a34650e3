// Trireme 0.1.0: trireme/interop/torch_data_parallel_steps.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b512cc4be00a0e8e1a540c953c3e346cff174a55c720f12638e2e7554406ea5b
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/core/random_bits.hpp"
#include "trireme/interop/torch_broadcast.hpp"
#include "trireme/interop/torch_data_parallel_options.hpp"
#include "trireme/interop/torch_step_counts.hpp"

// ---- trireme/interop/torch_data_parallel_steps.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef TRIREME_INTEROP_DETAIL_TORCH_ANY_MODULE_INCLUDED
#define TRIREME_INTEROP_DETAIL_TORCH_ANY_MODULE_INCLUDED

// ---- trireme/interop/detail/torch_any_module.hpp
#include <torch/torch.h>

#include <variant>

namespace trireme::interop::detail {

/// A reference to a module of any kind: derived from torch::nn::Module, an AnyModule or a TorchScript module. The
/// module must outlive it.
class any_module {
 public:
  any_module(torch::nn::Module const& module) : module_(&module) {}
  any_module(torch::nn::AnyModule const& module) : module_(&module) {}
  any_module(torch::jit::Module const& module) : module_(&module) {}

  [[nodiscard]] named_tensors named_parameters() const {
    return std::visit([](auto const* module) { return named_parameters_of(*module); }, module_);
  }
  [[nodiscard]] named_tensors named_buffers() const {
    return std::visit([](auto const* module) { return named_buffers_of(*module); }, module_);
  }
  /// The parameters without names, which takes less time.
  [[nodiscard]] std::vector<torch::Tensor> parameters() const {
    return std::visit([](auto const* module) { return plain_parameters_of(*module); }, module_);
  }
  /// An address that is equal for all handles of one module.
  [[nodiscard]] void const* identity() const {
    return std::visit([](auto const* module) { return identity_of(*module); }, module_);
  }
  /// The tables of embeddings whose gradients are sparse.
  [[nodiscard]] std::vector<torch::Tensor> tables_of_rows() const {
    return std::visit([](auto const* module) { return detail::tables_of_rows(*module); }, module_);
  }

 private:
  std::variant<torch::nn::Module const*, torch::nn::AnyModule const*, torch::jit::Module const*> module_;
};

}  // namespace trireme::interop::detail

#endif  // TRIREME_INTEROP_DETAIL_TORCH_ANY_MODULE_INCLUDED

// ---- trireme/interop/torch_data_parallel_steps.hpp (goes on)
#ifndef TRIREME_INTEROP_DETAIL_TORCH_OWN_MESSAGES_INCLUDED
#define TRIREME_INTEROP_DETAIL_TORCH_OWN_MESSAGES_INCLUDED

// ---- trireme/interop/detail/torch_own_messages.hpp
namespace trireme::interop::detail {

/// A gradient that the exchange cannot send; it is replaced by the mean over the ranks.
struct own_gradient {
  torch::Tensor parameter;
  torch::Tensor* gradient;  // an undefined one counts as zeros
};

/// Averages, in separate messages, the gradients that an exchange of one element type cannot send: doubles beside
/// floats, and sparse gradients of embedding tables.
///
/// Bytes    all doubles in one message. For a table the rows that have a gradient, and their indices, if all ranks
///          together have fewer of these rows than the table; otherwise the whole table.
/// Ranks    collective; the same parameters in the same order on all ranks.
/// Numerics sums in double, in rank order. The squares of each mean are added to the vote, on rank 0.
template <class Comm>
class own_messages {
  using space = torch_memory_of<Comm>;

 public:
  /// @param weight  the factor on each rank's gradient: 1 / (ranks * loss scale).
  own_messages(Comm& world, double weight, parallel::vote& vote) : world_(world), weight_(weight), vote_(vote) {}

  void average_doubles(std::vector<own_gradient> const& gradients) const {
    torch::NoGradGuard const guard;
    std::vector<torch::Tensor> rows;
    for (auto const& each : gradients)
      if (each.gradient->numel() > 0) rows.push_back(row_of(*each.gradient));
    if (rows.empty()) return;
    auto const all = torch::cat(rows).mul_(weight_);
    world_.all_reduce(numbers_of<double, space>(all));
    add_squares(all);
    std::int64_t from = 0;
    for (auto& row : rows) {
      row.copy_(all.slice(0, from, from + row.numel()));
      from += row.numel();
    }
  }
  void average_tables(std::vector<own_gradient> const& tables) const {
    if (tables.empty()) return;
    torch::NoGradGuard const guard;
    constexpr std::int64_t dense = -1;
    auto const ranks = static_cast<std::size_t>(world_.size());
    std::vector<std::int64_t> counts(ranks * tables.size(), 0);  // of rows, by rank and table
    for (std::size_t i = 0; i < tables.size(); ++i) {
      auto& own = *tables[i].gradient;
      auto& mine = counts[static_cast<std::size_t>(world_.rank()) * tables.size() + i];
      if (own.defined() && own.is_sparse())
        own = own.coalesce(), mine = own._nnz();
      else if (own.defined())
        mine = dense;
    }
    world_.all_gather(tensor_view<std::int64_t>(counts));
    for (std::size_t i = 0; i < tables.size(); ++i) {
      auto const& it = tables[i];
      std::int64_t most = 0;
      bool any_dense = false;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        auto const count = counts[rank * tables.size() + i];
        any_dense = any_dense || count == dense;
        most = std::max(most, count);
      }
      // Every rank sends as many rows as the rank with the most, padded with zeros.
      if (any_dense || most * world_.size() > it.parameter.size(0)) {
        auto const whole =
            it.gradient->defined()
                ? it.gradient->to_dense().to(at::kDouble).mul_(weight_)
                : torch::zeros(it.parameter.sizes(), it.parameter.options().dtype(at::kDouble).requires_grad(false));
        if (whole.numel() > 0) world_.all_reduce(numbers_of<double, space>(whole));
        add_squares(whole);
        *it.gradient = whole.to(it.parameter.scalar_type());
        if (!any_dense) *it.gradient = it.gradient->to_sparse(1);
      } else {
        *it.gradient = rows_of_all(it, counts, i, tables.size(), most);
        add_squares(it.gradient->_values().to(at::kDouble));
      }
    }
  }

 private:
  torch::Tensor rows_of_all(own_gradient const& it, std::vector<std::int64_t> const& counts, std::size_t table,
                            std::size_t tables, std::int64_t most) const {
    auto const options = it.parameter.options().requires_grad(false);
    auto extents = it.parameter.sizes().vec();
    extents[0] = most;
    extents.insert(extents.begin(), world_.size());
    auto places = torch::zeros({world_.size(), most}, options.dtype(at::kLong));
    auto values = torch::zeros(extents, options);
    if (most > 0) {
      if (it.gradient->defined()) {
        auto const here = it.gradient->_nnz();
        places[world_.rank()].slice(0, 0, here).copy_(it.gradient->_indices()[0]);
        values[world_.rank()].slice(0, 0, here).copy_(it.gradient->_values());
      }
      world_.all_gather(bytes_of<space>(places));
      world_.all_gather(bytes_of<space>(values));
    }
    std::vector<torch::Tensor> all_places, all_values;
    for (int rank = 0; rank < world_.size(); ++rank) {
      auto const here = counts[static_cast<std::size_t>(rank) * tables + table];
      all_places.push_back(places[rank].slice(0, 0, here));
      all_values.push_back(values[rank].slice(0, 0, here));
    }
    return torch::sparse_coo_tensor(torch::cat(all_places).unsqueeze(0), torch::cat(all_values).mul_(weight_),
                                    it.parameter.sizes(), options.layout(at::kSparse))
        .coalesce();
  }
  // All ranks have the same sum; only rank 0 counts its squares.
  void add_squares(torch::Tensor const& sum) const {
    if (world_.rank() != 0 || sum.numel() == 0) return;
    auto const row = row_of(sum.contiguous());
    ops::on<space>::sum_of_squares(
        tensor_view<double const, space>(static_cast<double const*>(row.data_ptr()), shape{row.numel()}),
        vote_.squares());
  }

  Comm& world_;
  double weight_;
  parallel::vote& vote_;
};

}  // namespace trireme::interop::detail

#endif  // TRIREME_INTEROP_DETAIL_TORCH_OWN_MESSAGES_INCLUDED

// ---- trireme/interop/torch_data_parallel_steps.hpp (goes on)
namespace trireme::interop {

namespace detail {

/// The patterns of .left_alone in the form that parallel::expect_patterns reads.
struct left_alone_patterns {
  std::string const& patterns;
  template <class F>
  void for_each_pattern(F&& f) const {
    f(name_pattern{.what = "interop::data_parallel: .left_alone",
                   .patterns = patterns,
                   .before = "nothing in the module matches "});
  }
};

}  // namespace detail

/// The steps of a data-parallel loop: the base of data_parallel_module, which does not depend on the module's type. So
/// trireme::compiled_torch has these steps for parallel::data in float, and a program need not compile them.
///
/// @tparam Exchange  the type that make_exchange returns for the loop's policies.
/// @see data_parallel_module
template <class Element, class Comm, class Exchange>
class data_parallel_steps {
  using space = typename Exchange::space;
  using order = typename detail::torch_space<space>::in_order;
  // Autograd runs the hooks of a device in a thread that all ranks of a process share, so hooks must not exchange
  // there.
  static constexpr bool hooks_exchange = std::is_same_v<space, host>;

 public:
  /// Makes an exchange of the given parameters, with the caller's policies.
  struct maker {
    Exchange (*make)(void const* policies, std::vector<foreign_parameter<Element, space>> parameters, Comm& world);
    void const* policies;
  };
  /// The exchange of a loop without policies: parallel::data, without a compressor.
  static Exchange default_exchange(void const* policies, std::vector<foreign_parameter<Element, space>> parameters,
                                   Comm& world);

  data_parallel_steps(detail::any_module const& module, Comm& world, data_parallel_options const& options,
                      maker const& exchange);
  data_parallel_steps(data_parallel_steps const&) = delete;
  data_parallel_steps& operator=(data_parallel_steps const&) = delete;
  ~data_parallel_steps();

  /// The exchange of gradients, for its times(), record(timeline) and memory().
  [[nodiscard]] Exchange& exchange() noexcept { return exchange_; }

  /// Starts autograd's backward pass: loss.backward(), of the scaled loss if .loss_scale is set.
  void backward(torch::Tensor const& loss);
  /// The factor on losses: 1 without .loss_scale.
  [[nodiscard]] double loss_scale() const noexcept { return scale_ ? scale_->scale() : 1; }

  /// Collective. Ends the step: afterwards .grad() of every parameter is the mean over the ranks, and buffers are
  /// synchronised as .buffers says.
  /// @returns the norm of that mean, and whether all gradients of all ranks are finite: if not, the caller should skip
  ///          the update. .votes is the number of ranks that had a batch.
  exchange_result finish();
  /// Collective. Ends the step with an update by one of Trireme's optimizers, whose state is kept by the exchange
  /// (sharded with parallel::zero). If a gradient was not finite on some rank, parameters and state do not change.
  template <class Optimizer>
  exchange_result step(Optimizer const& optimizer) {
    static_assert(hooks_exchange,
                  "trireme::interop::data_parallel: in a device's memory steps end by finish() and an optimizer of "
                  "torch's");
    for (auto const& each : trained_) {
      detail::expect_at(each.parameter, each.memory, each.name);
      if (each.how != gradient_form::as_it_is) {
        throw config_error(text("trireme::interop::data_parallel: step(optimizer) updates parameters of ",
                                name_of(dtype_of<Element>), " with dense gradients, and \"", each.name, "\" is ",
                                each.how == gradient_form::rows ? "a table of .sparse(true)" : "of another type",
                                "; end steps by finish() and an optimizer of torch's"));
      }
    }
    complete();
    return settle(exchange_.step(optimizer, counts_of_batch().number()));
  }

  /// Collective. For a rank without further batches while others may still have some: takes part in one of their steps
  /// with gradients of zero. Afterwards .grad() is equal on all ranks (the mean over all of them, this one included),
  /// so `while (auto const done = ddp.join()) if (done->finite) optimizer.step();` keeps parameters and optimizer
  /// states equal. Every rank calls it after its last batch, until it returns nullopt: then no rank had a batch.
  ///
  /// @param end  early_end::raise: if another rank has a batch, join() and the others' finish() throw config_error.
  std::optional<exchange_result> join(early_end end = early_end::follow);

  /// A guard: while it exists, gradients add up on this rank and are not exchanged. For all micro-batches of a step but
  /// the last.
  class quiet {
   public:
    explicit quiet(data_parallel_steps& of) : of_(of), before_(std::exchange(of.quiet_, true)) {}
    quiet(quiet const&) = delete;
    quiet& operator=(quiet const&) = delete;
    ~quiet() { of_.quiet_ = before_; }

   private:
    data_parallel_steps& of_;
    bool before_;
  };
  [[nodiscard]] quiet no_sync() { return quiet(*this); }

  /// Gives up the current step, after an exception that all ranks have survived; call it on all of them. It does not
  /// clear .grad().
  void abandon() noexcept;

 private:
  // What a rank with a batch has in .grad() of a parameter: nothing, an older gradient, or a gradient of this step.
  struct use {
    static constexpr std::uint8_t no_gradient = 0, none = 1, some = 2;
  };
  // How a gradient is sent. In the exchange: as_it_is, in the memory of .grad(), or converted, as a copy in another
  // type. In a message of its own: wide, as doubles, or rows, the rows of a sparse gradient.
  enum class gradient_form : std::uint8_t { as_it_is, converted, wide, rows };
  struct trained {
    std::string name;
    torch::Tensor parameter;
    void const* memory;   // the address of the parameter that the exchange knows
    at::ScalarType type;  // with numel: of the parameter when it was wrapped
    std::int64_t numel = 0;
    gradient_form how = gradient_form::as_it_is;
    int nth = -1;                     // index in the exchange; -1: it has messages of its own
    torch::Tensor values{};           // if converted: the copy that the exchange gets
    torch::Tensor bucket{};           // with .gradients_in_buckets: the memory of .grad() in its bucket
    torch::Tensor gradient{};         // the tensor that is read and written in this step
    bool used = false;                // backward has added to it since the last step
    int events = 0;                   // how often, not counting no_sync()
    bool static_used = true;          // with .static_graph: whether this rank uses it in each step
    int static_events = 0;            // with .static_graph: events in each step; the last one reports the gradient
    std::uint8_t of_any = use::some;  // the maximum of `use` over the ranks; with .static_graph for all steps
    std::int64_t version = 0;         // of `gradient` when it was taken
    std::uint64_t probe = 0;          // some of its numbers then
    void const* ended = nullptr;      // with .loss_scale: what .grad() was after the last step, with this version
    bool reported = false;
    bool stands_in = false;  // `gradient` is not .grad()
  };
  // Whether every rank gets the whole mean of all gradients in a step.
  static constexpr bool gives_back_everything = !Exchange::sharded && !Exchange::replicas_differ;

  static constexpr auto layouts = detail::memory_format::dense;

  static std::vector<detail::named_tensor> buffers_of(detail::any_module const& module,
                                                      data_parallel_options const& options) {
    return detail::listed<space>(module.named_buffers(), "buffer", layouts, options.left_alone);
  }
  // Collective. Options decide which messages a step has, so ranks compare them before any other.
  // (.gradients_in_buckets concerns only the memory of one rank.)
  static data_parallel_options const& agreed(data_parallel_options const& options, Comm& world) {
    auto const flag = [](bool set) { return std::string(set ? "true" : "false"); };
    constexpr std::string_view buffers[] = {"first_rank", "mean", "own"};
    parallel::rank_value const items[] = {
        {".unused_parameters", flag(options.unused_parameters)},
        {".static_graph", flag(options.static_graph)},
        {".buffers", text("interop::step_buffers::", buffers[static_cast<std::size_t>(options.buffers)])},
        {".loss_scale", options.loss_scale ? to_string(*options.loss_scale) : "not set"},
        {".check_every", text(options.check_every)},
        {".backwards", text("interop::step_backwards::", options.backwards == step_backwards::any ? "any" : "one")},
        {".left_alone", text('"', options.left_alone, '"')}};
    parallel::expect_same_on_all_ranks(world, "trireme::interop::data_parallel", world.rank(), items,
                                       "give the same options on every rank");
    return options;
  }
  static std::vector<detail::named_tensor> expected_buffers(detail::any_module const& module,
                                                            data_parallel_options const& options, Comm& world) {
    if (!options.left_alone.empty()) {
      std::vector<std::string> names;
      for (auto const& each : module.named_parameters()) names.push_back(each.key());
      for (auto const& each : module.named_buffers()) names.push_back(each.key());
      parallel::expect_patterns(world, detail::left_alone_patterns{options.left_alone}, names);
    }
    return buffers_of(module, options);
  }
  static std::vector<trained> equal_at_the_start(detail::any_module const& module, data_parallel_options const& options,
                                                 Comm& world) {
    auto const parameters = detail::listed<space>(module.named_parameters(), "parameter", layouts, options.left_alone);
    auto const tables = module.tables_of_rows();
    std::vector<trained> all;
    int uses = 0;
    for (auto const& each : parameters) {
      if (!each.tensor.requires_grad()) continue;
      auto it = trained{.name = each.name,
                        .parameter = each.tensor,
                        .memory = each.tensor.data_ptr(),
                        .type = each.tensor.scalar_type(),
                        .numel = each.tensor.numel()};
      it.how = form_of(each);
      if (gives_back_everything &&
          std::any_of(tables.begin(), tables.end(), [&](auto const& table) { return table.is_same(each.tensor); }))
        it.how = gradient_form::rows;
      if (it.how != gradient_form::as_it_is && !gives_back_everything) {
        throw config_error(text("trireme::interop::data_parallel: parameter \"", each.name, "\" has elements of ",
                                c10::toString(each.tensor.scalar_type()), ", but this strategy updates those of ",
                                name_of(dtype_of<Element>),
                                "; use parallel::data, data_parallel<double> for Double, or module->to(type)"));
      }
      if (it.how == gradient_form::as_it_is || it.how == gradient_form::converted) it.nth = uses++;
      all.push_back(std::move(it));
    }
    if (all.empty()) {
      throw config_error(
          "trireme::interop::data_parallel: the module has no parameter that requires a gradient; register them before "
          "ranks share it");
    }
    expect_own_module(module, world);
    detail::broadcast_equal(parameters, buffers_of(module, options), world, 0);
    for (auto& each : all)
      if (each.how == gradient_form::converted) each.values = each.parameter.detach().to(type_of_copy(each.parameter));
    return all;
  }
  static gradient_form form_of(detail::named_tensor const& each) {
    constexpr bool in_double = std::is_same_v<Element, double>;
    switch (each.tensor.scalar_type()) {
      case at::kFloat:
      case at::kComplexFloat:
        return in_double ? gradient_form::converted : gradient_form::as_it_is;
      case at::kDouble:
      case at::kComplexDouble:
        return in_double ? gradient_form::as_it_is : gradient_form::wide;
      case at::kBFloat16:
      case at::kHalf:
        return gradient_form::converted;
      default:
        throw config_error(text("trireme::interop::data_parallel: parameter \"", each.name, "\" has elements of ",
                                c10::toString(each.tensor.scalar_type()),
                                "; supported are Float, Double, BFloat16, Half, ComplexFloat and ComplexDouble"));
    }
  }
  static at::ScalarType type_of_copy(torch::Tensor const& parameter) {
    if (parameter.is_complex()) return std::is_same_v<Element, double> ? at::kComplexDouble : at::kComplexFloat;
    return detail::torch_type(dtype_of<Element>);
  }
  // Ranks that are threads may share one module by mistake.
  static void expect_own_module(detail::any_module const& module, Comm& world) {
    static std::uint64_t const process = trireme::detail::random_bits();
    auto const size = static_cast<std::size_t>(world.size());
    std::vector<std::uint64_t> all(size);
    auto const mine = process ^ reinterpret_cast<std::uintptr_t>(module.identity());
    all[static_cast<std::size_t>(world.rank())] = mine;
    world.all_gather(tensor_view<std::uint64_t>(all));
    for (std::size_t rank = 0; rank < size; ++rank) {
      auto const other = std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rank), all[rank]);
      if (other == all.begin() + static_cast<std::ptrdiff_t>(rank)) continue;
      throw config_error(text("trireme::interop::data_parallel: ranks ", other - all.begin(), " and ", rank,
                              " share one module; make a module in each rank, within launch()"));
    }
  }
  // @param nothing  a placeholder for an exchange that would otherwise have no parameter.
  static std::vector<foreign_parameter<Element, space>> as_foreign(std::vector<trained> const& all,
                                                                   torch::Tensor& nothing) {
    std::vector<foreign_parameter<Element, space>> list;
    for (auto const& each : all) {
      if (each.nth < 0) continue;
      auto const values = view_of(each.values.defined() ? each.values : each.parameter);
      list.push_back({each.name, values, values});  // no gradients yet: gradient_at() sets their addresses in each step
    }
    if (!list.empty()) return list;
    auto const type = detail::torch_type(dtype_of<Element>);
    nothing = torch::zeros({1}, at::TensorOptions().dtype(type).device(detail::torch_space<space>::here()));
    list.push_back({"nothing", view_of(nothing), view_of(nothing)});
    return list;
  }
  [[nodiscard]] static tensor_view<Element, space> view_of(torch::Tensor const& tensor) {
    return detail::numbers_of<Element, space>(tensor);
  }
  static std::vector<torch::Tensor> tensors_of(std::vector<trained> const& all) {
    std::vector<torch::Tensor> list;
    for (auto const& each : all) list.push_back(each.parameter);
    return list;
  }

  [[nodiscard]] bool adds_up() const noexcept { return options_.backwards == step_backwards::any; }
  void on_gradient(std::size_t index) {
    auto& it = trained_[index];
    if (adds_up()) {  // complete() reads it
      // Before the first scaled loss, it was one of another module, which zero_grad() clears.
      if (is_scaled_) expect_scaled(scaling_);
      it.used = true;
      ++it.events;
      return;
    }
    bool const now = hooks_exchange && hooks_.are_alone(index);  // otherwise complete() reads it
    if (it.reported || (!now && !options_.static_graph && it.events > 0)) {
      throw config_error(text("trireme::interop::data_parallel: parameter \"", it.name,
                              "\" got a second gradient in one step, of another backward() than the first; finish() is "
                              "missing between two steps, or no_sync() around all backward() of a step but the last; "
                              "where several losses add up, or one goes through this module to another as in a GAN, "
                              "say {.backwards = interop::step_backwards::any}"));
    }
    expect_scaled(scaling_);
    if (is_counted_ && !it.static_used) {
      if (!std::as_const(it.parameter).grad().defined()) return;
      expect_as_first(index, "got a gradient");
    }
    it.used = true;
    if (quiet_) return;
    ++it.events;
    if (!now) return;
    if (!options_.static_graph || (is_counted_ && it.events == it.static_events)) take(index);
  }
  void expect_scaled(bool is_scaled) const {
    if (!scale_ || is_scaled) return;
    throw config_error(
        "trireme::interop::data_parallel: loss.backward() with .loss_scale: the loss was not scaled; call "
        "ddp.backward(loss) in its place");
  }
  // A scaled gradient cannot be added to one without the scale.
  static void expect_cleared(trained const& it) {
    auto const& own = std::as_const(it.parameter).grad();
    if (it.ended == nullptr || !own.defined() || !it.parameter.requires_grad()) return;
    if (own.unsafeGetTensorImpl() != it.ended || own._version() != it.version) return;
    throw config_error(text("trireme::interop::data_parallel: the .grad() of parameter \"", it.name,
                            "\" is still that of the last step, without the loss scale; with .loss_scale call "
                            "zero_grad() before each step"));
  }
  // For .static_graph.
  [[noreturn]] void expect_as_first(std::size_t index, char const* what) const {
    throw config_error(text("trireme::interop::data_parallel: parameter \"", trained_[index].name, "\" ", what,
                            " in this step, unlike in the first one; .static_graph promises equal steps, so leave it "
                            "out, and say {.unused_parameters = true} if some are not used"));
  }
  // Reads .grad() as this rank's gradient, and reports it.
  void take(std::size_t index) {
    auto& it = trained_[index];
    expect_type_and_size(it);
    auto& gradient = it.parameter.mutable_grad();
    if (!gradient.defined()) {  // autograd has produced an undefined gradient
      it.used = false;
      some_undefined_ = true;
      stand_in(index);
      return report(index);
    }
    torch::NoGradGuard const guard;
    if (it.how != gradient_form::rows) {
      if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();
      if (gradient.is_conj() || gradient.is_neg()) gradient = gradient.resolve_conj().resolve_neg();  // lazy views
      if (!detail::lie_alike(gradient, it.parameter)) gradient = torch::empty_like(it.parameter).copy_(gradient);
    }
    it.gradient = it.how == gradient_form::converted ? gradient.detach().to(type_of_copy(it.parameter)) : gradient;
    report(index);
    if (it.bucket.defined()) {
      gradient = it.gradient = it.bucket;  // ready() has copied it there
      exchange_.gradient_at(it.nth, view_of(it.bucket));
    }
    it.version = it.gradient._version();
    it.probe = probe_of(it);
  }
  // Some numbers of a gradient that only this rank's loop can change: functions of torch that write to .data(), as
  // clip_grad_norm_ does, leave its version as it is.
  [[nodiscard]] std::uint64_t probe_of(trained const& it) const {
    auto const size = static_cast<std::size_t>(it.gradient.numel());
    if (!hooks_exchange || it.how != gradient_form::as_it_is || it.bucket.defined() || scale_ || size == 0) return 0;
    std::uint64_t bits = 0;
    auto const* const numbers = static_cast<Element const*>(it.gradient.data_ptr());
    for (auto const place : {std::size_t{0}, size / 2, size - 1}) {
      std::uint64_t number = 0;
      std::memcpy(&number, numbers + place, sizeof(Element));
      bits = bits * 31 + number;
    }
    return bits;
  }
  // A parameter may get other memory, but its exchange depends on its type and size.
  static void expect_type_and_size(trained const& it) {
    bool const converts = it.how == gradient_form::converted &&
                          c10::isComplexType(it.parameter.scalar_type()) == c10::isComplexType(it.type);
    if ((it.parameter.scalar_type() == it.type || converts) && it.parameter.numel() == it.numel) return;
    throw config_error(text("trireme::interop::data_parallel: parameter \"", it.name, "\" is now of ",
                            c10::toString(it.parameter.scalar_type()), " with ", it.parameter.numel(),
                            " elements, but was of ", c10::toString(it.type), " with ", it.numel,
                            " when the module was wrapped; wrap the module again after such a change, on all ranks"));
  }
  // finish() would overwrite a change that was made to .grad() after backward().
  void expect_untouched(trained const& it) const {
    if (it.how != gradient_form::as_it_is || !it.reported || it.stands_in || !it.gradient.defined()) return;
    if (!std::as_const(it.parameter).grad().is_same(it.gradient)) return;
    if (it.gradient._version() == it.version && probe_of(it) == it.probe) return;
    throw config_error(text("trireme::interop::data_parallel: the .grad() of parameter \"", it.name,
                            "\" was changed between backward() and finish(), which makes it the mean over the ranks; "
                            "clip gradients, or clear them, after finish()"));
  }
  void report(std::size_t index) {
    auto& it = trained_[index];
    if (!begun_) {
      static constexpr std::int64_t only[] = {0};
      exchange_.begin({.places = only});
      if (scale_) exchange_.weight(1 / (scale_->scale() * world_.size()));
      begun_ = true;
      if (nothing_.defined()) exchange_.ready(0);
      if (is_counted_) report_never_used(index);
    }
    it.reported = true;
    if (it.nth < 0) return;  // sum_apart() sends it
    exchange_.gradient_at(it.nth, view_of(it.gradient));
    exchange_.ready(it.nth);
  }
  // Reports the parameters that no step of a static graph uses, so that buckets do not wait for them.
  void report_never_used(std::size_t but) {
    for (std::size_t index = trained_.size(); index-- > 0;) {
      if (trained_[index].static_used || index == but) continue;
      stand_in(index);
      report(index);
    }
  }
  void use_buckets() {
    if constexpr (!Exchange::has_gradient_memory) {
      throw config_error(
          "trireme::interop::data_parallel: .gradients_in_buckets needs the whole mean of all gradients on each rank; "
          "use parallel::data and no compressor, or leave it out");
    }
    if (world_.size() == 1) return;
    for (std::size_t index = 0; index < trained_.size(); ++index) {
      auto& it = trained_[index];
      if (it.how != gradient_form::as_it_is) continue;
      auto const memory = exchange_.gradient_memory(it.nth);
      if (memory.empty()) continue;  // a tensor without elements
      it.bucket = torch::from_blob(memory.address(), it.parameter.sizes(), it.parameter.strides(),
                                   it.parameter.options().requires_grad(false));
    }
  }
  // Gives .grad() memory of its own again.
  static void leave_bucket(trained& it) {
    if (!it.bucket.defined()) return;
    auto& own = it.parameter.mutable_grad();
    if (own.defined() && own.is_alias_of(it.bucket)) own = own.detach().clone();
  }
  // For a parameter that this rank has not used: makes a gradient separate from .grad(), with a copy of its values, or
  // zeros.
  void stand_in(std::size_t index) {
    auto& it = trained_[index];
    expect_type_and_size(it);
    leave_bucket(it);
    torch::NoGradGuard const guard;
    auto const& own = std::as_const(it.parameter).grad();
    it.stands_in = true;
    if (it.how == gradient_form::rows) {
      it.gradient = own.defined() ? own.detach() : torch::Tensor();
      return;
    }
    auto const type = it.how == gradient_form::converted ? type_of_copy(it.parameter) : it.parameter.scalar_type();
    it.gradient = torch::zeros_like(it.parameter, it.parameter.options().dtype(type).requires_grad(false));
    if (own.defined()) it.gradient.copy_(own.layout() == at::kStrided ? own : own.to_dense());
    if (it.nth >= 0) exchange_.gradient_at(it.nth, view_of(it.gradient));
  }
  [[nodiscard]] bool has_batch() const {
    return std::any_of(trained_.begin(), trained_.end(), [](auto const& each) { return each.used || each.reported; });
  }
  // Reports the gradients that were not reported during backward.
  void complete();

  // Follows changes of the module since it was wrapped, or since the last step. A parameter that has got another
  // accumulator was not reported by its hook: its gradient is in .grad() alone.
  void follow() {
    for (std::size_t index = 0; index < trained_.size(); ++index) {
      auto& it = trained_[index];
      if (!it.parameter.requires_grad()) continue;
      if (hooks_.renew(it.parameter, index) && std::as_const(it.parameter).grad().defined()) it.used = true;
    }
    std::size_t index = 0;
    for (auto const& each : module_.parameters()) {
      if (!each.requires_grad()) continue;
      if (index < trained_.size() && trained_[index].parameter.is_same(each)) {
        ++index;
      } else if (std::none_of(trained_.begin(), trained_.end(),
                              [&](auto const& known) { return known.parameter.is_same(each); })) {
        bool left = false;
        std::string name;
        for (auto const& named : module_.named_parameters()) {
          if (!named.value().is_same(each)) continue;
          left = left || matches_any(options_.left_alone, named.key());
          if (name.empty()) name = named.key();
        }
        if (!left) not_known(name);
      }
    }
  }
  [[noreturn]] static void not_known(std::string const& name) {
    throw config_error(text("trireme::interop::data_parallel: parameter \"", name,
                            "\" requires a gradient, but was frozen or missing when the module was wrapped, so its "
                            "gradient is not exchanged; wrap the module again after such a change, on all ranks"));
  }

  // This rank's counts in a step for which it had a batch.
  [[nodiscard]] torch_step_counts counts_of_batch() const noexcept {
    return {.batches = 1, .undefined = some_undefined_ ? 1 : 0};
  }
  // Collective. Completes the exchange of all gradients. The result's .votes are the sums of `counts` over the ranks.
  exchange_result exchanged(torch_step_counts const& counts) {
    vote_.clear();
    vote_.wish(counts.number());
    exchange_.finish(vote_);
    if constexpr (gives_back_everything) sum_apart();
    return exchange_.count(vote_);
  }

  // Collective. Averages the gradients that are not in the exchange: rows of sparse gradients, and doubles beside
  // floats.
  void sum_apart() {
    std::vector<detail::own_gradient> tables, wide;
    for (auto& each : trained_) {
      if (each.how == gradient_form::rows) tables.push_back({each.parameter, &each.gradient});
      if (each.how == gradient_form::wide) wide.push_back({each.parameter, &each.gradient});
    }
    detail::own_messages<Comm> const messages(world_, 1 / ((scale_ ? scale_->scale() : 1) * world_.size()), vote_);
    messages.average_doubles(wide);
    messages.average_tables(tables);
  }

  exchange_result settle(exchange_result result);
  // Collective.
  [[noreturn]] void refuse_early_end(bool joined) {
    std::int64_t first = joined ? world_.rank() : world_.size();
    world_.all_reduce(tensor_view<std::int64_t>(&first, shape{1}), reduction::min{});
    throw config_error(text("trireme::interop::data_parallel: rank ", first,
                            " has no batch left while others have, and has called join(early_end::raise); give every "
                            "rank equally many batches, or let it follow the others by join()"));
  }
  // Collective. Compares the current memory of the parameters: a module may have been converted and back.
  void compare() {
    if constexpr (!Exchange::replicas_differ) {
      if (world_.size() == 1) return;
      std::vector<state_shard> now;
      for (auto const& each : trained_) now.push_back(piece_of(each));
      exchange_.expect_equal_copies(
          {"trireme::interop::data_parallel",
           "call optimizer.step() after finish(): optimizer.step() before finish() uses gradients of one rank alone; "
           "where ranks have changed parameters otherwise, interop::broadcast(module, world) makes them equal"},
          now);
    }
  }
  static state_shard piece_of(trained const& each) {
    auto const piece = [&]<class T>(std::type_identity<T>) {
      auto const values = detail::numbers_of<T, space>(each.parameter);
      return state_shard(each.name, parameter_info{.name = each.name, .extents = values.extents()}, 0, values);
    };
    switch (each.parameter.scalar_type()) {
      case at::kDouble:
      case at::kComplexDouble:
        return piece(std::type_identity<double>{});
      case at::kBFloat16:
        return piece(std::type_identity<bfloat16>{});
      case at::kHalf:
        return piece(std::type_identity<float16>{});
      default:
        return piece(std::type_identity<float>{});
    }
  }
  // Records the first step of a static graph, which all others must equal.
  void count() {
    if (std::exchange(is_counted_, true)) return;
    for (auto& it : trained_) it.static_used = it.used, it.static_events = it.events;
  }
  // Makes .grad() the mean, also if another tensor stood in for it. If no rank has used the parameter, ranks with a
  // batch keep their .grad(), and a rank without a batch gets the same, so that optimizers do the same on all ranks.
  void give_back(bool all_had_one, bool some_undefined) {
    if ((!is_counted_ && (options_.unused_parameters || options_.static_graph)) || some_undefined) {
      std::vector<std::uint8_t> uses(trained_.size(), 0);
      bool const own = has_batch();
      std::transform(trained_.begin(), trained_.end(), uses.begin(), [&](auto const& each) {
        if (each.used) return use::some;
        return own && std::as_const(each.parameter).grad().defined() ? use::none : use::no_gradient;
      });
      world_.all_reduce(tensor_view<std::uint8_t>(uses), reduction::max{});
      for (std::size_t index = 0; index < uses.size(); ++index) trained_[index].of_any = uses[index];
    } else if (!options_.static_graph) {
      for (auto& each : trained_) each.of_any = use::some;
    }
    torch::NoGradGuard const guard;
    for (auto& it : trained_) {
      auto& own = it.parameter.mutable_grad();
      if (it.stands_in && it.of_any != use::some) {
        if (!all_had_one && it.of_any == use::no_gradient) own.reset();
        if (!all_had_one && it.of_any == use::none) put(it, own);
      } else if (it.stands_in || it.how == gradient_form::converted) {
        put(it, own);
      } else {
        own = it.gradient;  // the same tensor, unless the caller has put another one there
        if (scale_) it.ended = own.unsafeGetTensorImpl(), it.version = own._version();
      }
    }
  }
  static void put(trained const& it, torch::Tensor& own) {
    if (it.how == gradient_form::rows || (!own.defined() && it.how != gradient_form::converted)) {
      own = it.gradient;
    } else if (!own.defined()) {
      own = it.gradient.to(it.parameter.scalar_type());
    } else {
      own.copy_(it.gradient);
    }
  }
  void synchronise_buffers(bool had_batch, bool all_had_one) {
    if (options_.buffers == step_buffers::own || buffers_.empty()) return;
    std::int64_t root = had_batch ? world_.rank() : world_.size();
    if (all_had_one) {
      root = 0;
    } else {  // the first rank that had a batch
      world_.all_reduce(tensor_view<std::int64_t>(&root, shape{1}), reduction::min{});
    }
    if (options_.buffers == step_buffers::mean) {
      buffers_.mean(world_, static_cast<int>(root));
    } else {
      buffers_.broadcast(world_, static_cast<int>(root));
    }
  }
  void forget() noexcept {
    for (auto& each : trained_) {
      each.gradient = torch::Tensor();
      each.used = each.reported = each.stands_in = false;
      each.events = 0;
    }
    begun_ = is_scaled_ = some_undefined_ = false;
  }

  detail::any_module module_;
  Comm world_;  // a duplicate: ranks may reach several modules' gradients in different orders
  data_parallel_options options_;
  detail::shared_tensors<space> buffers_;
  std::vector<trained> trained_;
  torch::Tensor nothing_{};
  Exchange exchange_;
  std::optional<precision::fp16::instance> scale_{};
  parallel::vote vote_;
  std::int64_t ends_ = 0;        // number of steps that have ended
  bool some_undefined_ = false;  // whether a gradient of this step was undefined
  bool begun_ = false;
  bool is_scaled_ = false;  // with .loss_scale: whether a loss of this step was scaled
  bool scaling_ = false;    // with .loss_scale: whether backward(loss) runs
  bool quiet_ = false;
  bool is_counted_ = false;       // with .static_graph: whether the first step has been recorded
  detail::gradient_hooks hooks_;  // last, so that hooks are removed before the members that they use
};

// Defined outside the class: inside it they would be inline, and so compiled in every program.

template <class Element, class Comm, class Exchange>
Exchange data_parallel_steps<Element, Comm, Exchange>::default_exchange(
    void const*, std::vector<foreign_parameter<Element, space>> parameters, Comm& world) {
  return make_exchange(std::move(parameters), world);
}

template <class Element, class Comm, class Exchange>
data_parallel_steps<Element, Comm, Exchange>::data_parallel_steps(detail::any_module const& module, Comm& world,
                                                                  data_parallel_options const& options,
                                                                  maker const& exchange)
    : module_(module),
      world_(world.duplicate()),
      options_(agreed(options, world_)),
      buffers_(expected_buffers(module_, options_, world_)),
      trained_(equal_at_the_start(module_, options_, world_)),
      exchange_(exchange.make(exchange.policies, as_foreign(trained_, nothing_), world_)),
      hooks_(tensors_of(trained_), [this](std::size_t index) { on_gradient(index); }) {
  if (options_.static_graph && adds_up()) {
    throw config_error(
        "trireme::interop::data_parallel: .static_graph expects equally many backward() in each step, and .backwards = "
        "any allows any number; leave one of them out");
  }
  if (options_.loss_scale) scale_.emplace(*options_.loss_scale);
  if (options_.gradients_in_buckets) use_buckets();
}

template <class Element, class Comm, class Exchange>
data_parallel_steps<Element, Comm, Exchange>::~data_parallel_steps() {
  for (auto& each : trained_) leave_bucket(each);
}

template <class Element, class Comm, class Exchange>
void data_parallel_steps<Element, Comm, Exchange>::backward(torch::Tensor const& loss) {
  if (!scale_) return loss.backward();
  struct until_the_end {
    bool& flag;
    ~until_the_end() { flag = false; }
  };
  if (!is_scaled_) {
    for (auto const& each : trained_) expect_cleared(each);
  }
  is_scaled_ = scaling_ = true;
  until_the_end const ends{scaling_};
  (loss * scale_->scale()).backward();
}

template <class Element, class Comm, class Exchange>
exchange_result data_parallel_steps<Element, Comm, Exchange>::finish() {
  [[maybe_unused]] order const in_order;
  static_assert(
      gives_back_everything,
      "trireme::interop::data_parallel: with a sharded optimizer's state, or parameters that are averaged now and "
      "then, finish() would not leave each rank the mean of all gradients; call step(optimizer) in its place");
  complete();
  auto const result = exchanged(counts_of_batch());
  static_cast<void>(exchange_.settle(result.finite, {result.norm, 1}));
  return settle(result);
}

template <class Element, class Comm, class Exchange>
std::optional<exchange_result> data_parallel_steps<Element, Comm, Exchange>::join(early_end end) {
  static_assert(
      gives_back_everything,
      "trireme::interop::data_parallel: join() is for parallel::data; with other strategies give every rank equally "
      "many batches");
  if (begun_ || (has_batch() && !adds_up()))
    throw config_error(
        "trireme::interop::data_parallel: join() in a step that finish() has not ended; call finish() first");
  [[maybe_unused]] order const in_order;
  if (options_.static_graph) {
    throw config_error(
        "trireme::interop::data_parallel: join() with .static_graph: a rank without a batch has no graph; leave "
        ".static_graph out, or give every rank equally many batches");
  }
  if (exchange_.keeps_moments()) {
    throw config_error(
        "trireme::interop::data_parallel: join() after step(optimizer): this rank would not make the updates of its "
        "optimizer; end steps by finish() and an optimizer of torch's, or give every rank equally many batches");
  }
  forget();
  for (std::size_t index = 0; index < trained_.size(); ++index) {
    stand_in(index);
    auto& it = trained_[index];
    if (it.how == gradient_form::rows) it.gradient.reset();  // an undefined one counts as zeros
    if (it.how == gradient_form::wide) it.gradient.zero_();
  }
  exchange_.begin({.micro_batches = 0});
  begun_ = true;
  auto const result = exchanged({.raises = end == early_end::raise ? 1 : 0});
  // If no rank had a batch it was not a step, so compressors must not commit.
  bool const some_had_batch = torch_step_counts::from_sum(result.votes).batches > 0;
  static_cast<void>(exchange_.settle(result.finite && some_had_batch, {result.norm, 1}));
  auto const step = settle(result);
  return step.votes > 0 ? std::optional(step) : std::nullopt;
}

template <class Element, class Comm, class Exchange>
void data_parallel_steps<Element, Comm, Exchange>::abandon() noexcept {
  exchange_.abandon();
  forget();
}

template <class Element, class Comm, class Exchange>
void data_parallel_steps<Element, Comm, Exchange>::complete() {
  follow();
  if (!has_batch()) {
    throw config_error(
        "trireme::interop::data_parallel: finish() without a backward() since the last one; a rank without a batch "
        "calls join()");
  }
  expect_scaled(is_scaled_);
  for (auto const& each : trained_) expect_untouched(each);
  std::size_t missing = 0;
  std::string first;
  for (std::size_t index = trained_.size(); index-- > 0;) {
    auto const& it = trained_[index];
    if (it.reported) continue;
    if (is_counted_ && (it.used != it.static_used || it.events != it.static_events))
      expect_as_first(index, "got too few gradients");
    if (it.used) {  // only under no_sync(), or in the first step of a static graph, or in device memory
      take(index);
    } else if (options_.unused_parameters || options_.static_graph) {
      stand_in(index);
      report(index);
    } else {
      ++missing;
      first = it.name;
    }
  }
  if (missing == 0) return;
  throw config_error(text("trireme::interop::data_parallel: parameter \"", first, "\"",
                          missing > 1 ? text(" and ", missing - 1, " more") : std::string(),
                          " got no gradient in this step; if a step need not use all parameters, say "
                          "{.unused_parameters = true}, and requires_grad_(false) of what is never trained"));
}

template <class Element, class Comm, class Exchange>
exchange_result data_parallel_steps<Element, Comm, Exchange>::settle(exchange_result result) {
  auto const counts = torch_step_counts::from_sum(result.votes);
  result.votes = counts.batches;
  if (result.votes > 0) {
    if (scale_) static_cast<void>(scale_->decide(result.finite));
    give_back(result.votes == world_.size(), counts.undefined > 0);
    if (options_.static_graph) count();
    synchronise_buffers(has_batch(), result.votes == world_.size());
  }
  bool const joined = !has_batch();
  forget();
  if (counts.raises > 0 && result.votes > 0) refuse_early_end(joined);
  if (options_.check_every > 0 && ends_++ % options_.check_every == 0) compare();
  return result;
}

}  // namespace trireme::interop
