#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/interop/detail/torch_module.hpp"
#include "trireme/ops/host.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/train/make.hpp"

namespace trireme::interop {

/// Which buffers (running statistics of a batch normalisation, say) ranks have after a step: those of the first rank,
/// their mean over the ranks (integers: those of the first rank), or each rank its own.
enum class step_buffers { first_rank, mean, own };

struct data_parallel_options {
  /// A step need not use every parameter. The .grad() of one that no rank has used stays as it was. This takes one more
  /// message a step, of one byte a parameter. If it is false, a parameter without a gradient is an error.
  bool unused_parameters = false;
  /// Every step of a rank uses the same parameters, equally often, as the first one has. So a parameter may get its
  /// gradient in several parts of a step (several backward(), or a checkpointed part that runs backward within
  /// backward), and its exchange starts after the last of them; which parameters are used is told once, not in every
  /// step; and a step that differs is an error. In the first step, which counts, nothing overlaps. Not with join().
  bool static_graph = false;
  step_buffers buffers = step_buffers::first_rank;
  /// .grad() of each parameter lies in the exchange's memory, so nothing is copied back, and where the loop clears
  /// gradients without releasing their memory, nothing is copied at all. While data_parallel lives, .grad() is then to
  /// be read through the parameter: another tensor that shares its memory is invalid afterwards. With parallel::data,
  /// without a compressor. On one rank, where nothing is copied anyway, .grad() stays where torch has put it.
  bool gradients_in_buckets = false;
  /// If set: backward is begun by backward(loss), with the loss times a scale that follows the steps (for autocast with
  /// float16; bfloat16 needs none). finish() divides by it, and the caller skips the update where it is not finite.
  /// Gradients are cleared in every step.
  std::optional<precision::fp16> loss_scale{};
};

/// Collective. Gives every rank the parameters and buffers of `root`.
/// Errors  config_error on every rank if the modules differ in names, shapes, types, or what is trained.
template <class Module, class Comm>
void broadcast(Module const& module, Comm& world, int root = 0) {
  using space = typename space_of<Comm>::type;
  auto const held = detail::module_of(module);
  detail::expect_equal_modules(*held, world);
  [[maybe_unused]] typename detail::torch_space<space>::in_order const order;
  for (auto const& each : detail::parameters_of<space>(*held)) {
    if (each.tensor.nbytes() > 0) world.broadcast(detail::bytes_of<space>(each.tensor), root);
  }
  detail::shared_tensors<space>(detail::buffers_of<space>(*held)).broadcast(world, root);
}

/// What data_parallel returns: a module whose gradients are averaged over the ranks of a world while backward runs.
///
/// A step   `loss = f(ddp->forward(x)); loss.backward(); ddp.finish(); optimizer.step();` Between two calls of finish()
///          there is one backward() (with .static_graph as many as in the first step); those of further micro-batches
///          come before it, under no_sync().
/// Shapes   what torch::nn::Module::named_parameters() lists and requires a gradient, each tensor once.
/// Bytes    the buckets of the exchange, as large as the gradients; gradients are copied into them as they become
///          final, and back by finish(). The memory of .grad() stays torch's, unless .gradients_in_buckets is set.
/// Ranks    collective: construction, finish() (or join() in its place) and step(). Its calls travel in a duplicate of
///          the world, so backward passes of several such objects, and the caller's own calls in the world, may come in
///          another order on each rank; ends of steps come in one order.
/// Numerics sums in rank order (docs/communicators.md): the same bits on every rank, communicator and in every run.
/// Devices  of a world in CUDA memory (comm::nccl, comm::in_space<cuda>) the module is on this thread's device, and
///          torch_cuda.hpp is included: buckets are there, too, and finish() begins the exchange.
/// Threads  one owner; cannot be moved. Ranks that are threads have a module each.
/// Errors   config_error for a parameter without a gradient, a sparse gradient, a second gradient in one step, one that
///          was frozen or not there when the object was made; and for a module that several ranks share;
///          comm_error from the world. After an exception call abandon() on all ranks, or destroy the object.
template <class Element, class Module, class Comm, class Exchange>
class data_parallel_module {
  using space = typename Exchange::space;
  using order = typename detail::torch_space<space>::in_order;
  // Autograd runs hooks for a device in a thread of the device, which all ranks of a process share: no exchange there.
  static constexpr bool hooks_exchange = std::is_same_v<space, host>;

 public:
  template <class... Policies>
  data_parallel_module(std::shared_ptr<Module> module, Comm& world, data_parallel_options const& options,
                       Policies const&... policies)
      : module_(std::move(module)),
        world_(world.duplicate()),
        options_(options),
        buffers_(detail::buffers_of<space>(*module_)),
        trained_(equal_at_the_start(*module_, world_)),
        exchange_(make_exchange(as_foreign(trained_), world_, policies...)),
        hooks_(tensors_of(trained_), [this](std::size_t place) { on_gradient(place); }) {
    if (options_.loss_scale) scale_.emplace(*options_.loss_scale);
    if (options_.gradients_in_buckets) use_buckets();
  }
  data_parallel_module(data_parallel_module const&) = delete;
  data_parallel_module& operator=(data_parallel_module const&) = delete;
  ~data_parallel_module() {
    for (auto& each : trained_) leave_bucket(each);
  }

  [[nodiscard]] Module* operator->() const noexcept { return module_.get(); }
  [[nodiscard]] Module& operator*() const noexcept { return *module_; }
  [[nodiscard]] std::shared_ptr<Module> const& module() const noexcept { return module_; }
  /// The exchange of gradients: its times(), record(timeline), memory().
  [[nodiscard]] Exchange& exchange() noexcept { return exchange_; }

  /// Starts autograd's backward pass. The same as loss.backward(), but with .loss_scale.
  void backward(torch::Tensor const& loss) {
    if (scale_) {
      is_scaled_ = true;
      (loss * scale_->scale()).backward();
    } else {
      loss.backward();
    }
  }
  /// What losses are multiplied by: 1 without .loss_scale.
  [[nodiscard]] double loss_scale() const noexcept { return scale_ ? scale_->scale() : 1; }

  /// Collective. Ends the step: afterwards .grad() of every parameter is the mean over the ranks, and buffers are
  /// shared.
  /// @returns the norm of that mean, and whether all gradients of all ranks are finite: if not, the caller decides to
  ///          skip the update. .votes is the number of ranks that had a batch.
  exchange_result finish() {
    [[maybe_unused]] order const in_order;
    static_assert(
        gives_back_everything,
        "trireme::interop::data_parallel: with a sharded optimizer's state, or parameters that are averaged now and "
        "then, finish() would not leave each rank the mean of all gradients; call step(optimizer) in its place");
    complete();
    return settle(exchange_.finish(1));
  }
  /// Collective. Ends the step with an update by one of Trireme's optimizers. The exchange keeps its state (sharded
  /// with parallel::zero). Parameters and state stay as they are if a gradient was not finite on some rank.
  template <class Optimizer>
  exchange_result step(Optimizer const& optimizer) {
    static_assert(hooks_exchange,
                  "trireme::interop::data_parallel: in a device's memory steps end by finish() and an optimizer of "
                  "torch's");
    for (auto const& each : trained_) detail::expect_at(each.parameter, each.memory, each.name);
    complete();
    return settle(exchange_.step(optimizer, 1));
  }

  /// Collective. For a rank that has no batch left while others may have some: takes part in one of their steps, with
  /// gradients of zero. Afterwards .grad() is the same on all ranks (a mean over all of them, this one included), so
  /// `while (auto const done = ddp.join()) if (done->finite) optimizer.step();` keeps parameters and optimizer states
  /// equal. Every rank calls it when its batches are over, until it returns nullopt: no rank had a batch.
  std::optional<exchange_result> join() {
    static_assert(
        gives_back_everything,
        "trireme::interop::data_parallel: join() is for parallel::data; with other strategies give every rank as many "
        "batches");
    if (begun_ || has_batch())
      throw config_error("trireme::interop::data_parallel: join() in a step that finish() has not ended");
    [[maybe_unused]] order const in_order;
    if (options_.static_graph) {
      throw config_error(
          "trireme::interop::data_parallel: join() with .static_graph, which a rank without a batch has not; leave it "
          "out, or give every rank as many batches");
    }
    if (exchange_.keeps_moments()) {
      throw config_error(
          "trireme::interop::data_parallel: join() after step(optimizer), whose updates this rank would not make; end "
          "steps by finish() and an optimizer of torch's, or give every rank as many batches");
    }
    for (std::size_t place = 0; place < trained_.size(); ++place) stand_in(place);
    exchange_.begin({.micro_batches = 0});
    begun_ = true;
    parallel::vote vote;
    vote.clear();
    exchange_.finish(vote);
    auto const result = exchange_.count(vote);
    // Where no rank had a batch compressors must not commit: it was not a step.
    static_cast<void>(exchange_.settle(result.finite && result.votes > 0, {result.norm, 1}));
    static_cast<void>(settle(result));
    return result.votes > 0 ? std::optional(result) : std::nullopt;
  }

  /// While it lives, gradients add up on this rank and are not exchanged: for all micro-batches of a step but the last.
  class quiet {
   public:
    explicit quiet(data_parallel_module& of) : of_(of), before_(std::exchange(of.quiet_, true)) {}
    quiet(quiet const&) = delete;
    quiet& operator=(quiet const&) = delete;
    ~quiet() { of_.quiet_ = before_; }

   private:
    data_parallel_module& of_;
    bool before_;
  };
  [[nodiscard]] quiet no_sync() { return quiet(*this); }

  /// Gives up the step that has begun, after an exception that all ranks have survived; call it on all of them. It does
  /// not clear .grad().
  void abandon() noexcept {
    exchange_.abandon();
    forget();
  }

 private:
  // What ranks with a batch have of a parameter in a step: nothing, a gradient of before, one of this step.
  struct use {
    static constexpr std::uint8_t no_gradient = 0, none = 1, some = 2;
  };
  struct trained {
    std::string name;
    torch::Tensor parameter;
    void const* memory;               // of the parameter, as the exchange knows it
    torch::Tensor bucket{};           // with .gradients_in_buckets: where .grad() is to lie
    torch::Tensor gradient{};         // what the exchange reads and writes in this step
    bool used = false;                // backward has added to it since the last step
    int events = 0;                   // how often, without no_sync()
    bool static_used = true;          // with .static_graph: by this rank, in each step
    int static_events = 0;            // with .static_graph: in each step; the last of them reports
    std::uint8_t of_any = use::some;  // the most that a rank has of it; with .static_graph in each step
    bool reported = false;
    bool stands_in = false;  // `gradient` is not .grad()
  };
  // Whether every rank has the whole mean after a step.
  static constexpr bool gives_back_everything = !Exchange::sharded && !Exchange::replicas_differ;

  static std::vector<trained> equal_at_the_start(Module const& module, Comm& world) {
    static_cast<void>(detail::buffers_of<space>(module));  // throws what it refuses before ranks wait for each other
    std::vector<trained> all;
    for (auto const& each : detail::parameters_of<space>(module)) {
      if (!each.tensor.requires_grad()) continue;
      if (each.tensor.scalar_type() != detail::torch_type(dtype_of<Element>)) {
        throw config_error(text("trireme::interop::data_parallel: parameter \"", each.name, "\" has elements of ",
                                c10::toString(each.tensor.scalar_type()), ", but gradients are exchanged as ",
                                name_of(dtype_of<Element>), "; use data_parallel<float> or data_parallel<double>, and ",
                                "module->to(type) where types are mixed"));
      }
      all.push_back({each.name, each.tensor, each.tensor.data_ptr()});
    }
    expect_own_module(module, world);
    interop::broadcast(std::shared_ptr<Module const>(std::shared_ptr<void>(), &module), world);
    return all;
  }
  // Ranks that are threads may have been given one object.
  static void expect_own_module(Module const& module, Comm& world) {
    static std::uint64_t const process = (std::uint64_t{std::random_device{}()} << 32) ^ std::random_device{}();
    auto const size = static_cast<std::size_t>(world.size());
    std::vector<std::uint64_t> all(size);
    auto const mine = process ^ reinterpret_cast<std::uintptr_t>(&module);
    all[static_cast<std::size_t>(world.rank())] = mine;
    world.all_gather(tensor_view<std::uint64_t>(all));
    for (std::size_t rank = 0; rank < size; ++rank) {
      auto const other = std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rank), all[rank]);
      if (other == all.begin() + static_cast<std::ptrdiff_t>(rank)) continue;
      throw config_error(text("trireme::interop::data_parallel: ranks ", other - all.begin(), " and ", rank,
                              " have one module between them; make a module in each rank, within launch()"));
    }
  }
  static std::vector<foreign_parameter<Element, space>> as_foreign(std::vector<trained> const& all) {
    std::vector<foreign_parameter<Element, space>> list;
    for (auto const& each : all) {
      auto const values = view_of(each.parameter);
      list.push_back({each.name, values, values});  // no gradients yet: gradient_at() says in each step where they are
    }
    return list;
  }
  [[nodiscard]] static tensor_view<Element, space> view_of(torch::Tensor const& tensor) {
    return detail::view_of<Element, space>(tensor);
  }
  static std::vector<torch::Tensor> tensors_of(std::vector<trained> const& all) {
    std::vector<torch::Tensor> list;
    for (auto const& each : all) list.push_back(each.parameter);
    return list;
  }

  void on_gradient(std::size_t place) {
    auto& it = trained_[place];
    if (it.reported || (!hooks_exchange && !options_.static_graph && it.events > 0)) {
      throw config_error(text("trireme::interop::data_parallel: parameter \"", it.name,
                              "\" got a second gradient in one step; finish() is missing, or no_sync() around all "
                              "backward() of a step but the last"));
    }
    if (scale_ && !is_scaled_) {
      throw config_error(
          "trireme::interop::data_parallel: loss.backward() with .loss_scale, of which nobody has scaled the loss; "
          "call "
          "ddp.backward(loss), which does");
    }
    if (is_counted_ && !it.static_used) expect_as_first(place, "got a gradient");
    it.used = true;
    if (quiet_) return;
    ++it.events;
    if (!hooks_exchange) return;  // complete() takes it
    if (!options_.static_graph || (is_counted_ && it.events == it.static_events)) take(place);
  }
  // With .static_graph.
  [[noreturn]] void expect_as_first(std::size_t place, char const* what) const {
    throw config_error(text("trireme::interop::data_parallel: parameter \"", trained_[place].name, "\" ", what,
                            " in this step, unlike in the first one; .static_graph promises equal steps, so leave it "
                            "out, and say {.unused_parameters = true} if some are not used"));
  }
  // This rank's gradient is .grad().
  void take(std::size_t place) {
    auto& it = trained_[place];
    auto& gradient = it.parameter.mutable_grad();
    if (!gradient.defined()) gradient = torch::zeros_like(it.parameter);  // autograd has reported an undefined one
    if (gradient.layout() != at::kStrided) {
      throw config_error(text("trireme::interop::data_parallel: the gradient of \"", it.name,
                              "\" is sparse, which is not supported; make its layer without .sparse(true)"));
    }
    if (!gradient.is_contiguous()) gradient = gradient.contiguous();
    it.gradient = gradient;
    report(place);
    if (!it.bucket.defined()) return;
    gradient = it.gradient = it.bucket;  // ready() has copied it there
    exchange_.gradient_at(static_cast<int>(place), view_of(it.bucket));
  }
  void report(std::size_t place) {
    auto& it = trained_[place];
    if (!begun_) {
      static constexpr std::int64_t only[] = {0};
      exchange_.begin({.places = only, .all_reported = true});
      if (scale_) exchange_.weight(1 / (scale_->scale() * world_.size()));
      begun_ = true;
      if (is_counted_) report_never_used(place);
    }
    exchange_.gradient_at(static_cast<int>(place), view_of(it.gradient));
    exchange_.ready(static_cast<int>(place));
    it.reported = true;
  }
  // Buckets need not wait for them.
  void report_never_used(std::size_t but) {
    for (std::size_t place = trained_.size(); place-- > 0;) {
      if (trained_[place].static_used || place == but) continue;
      stand_in(place);
      report(place);
    }
  }
  void use_buckets() {
    if constexpr (!Exchange::has_gradient_memory) {
      throw config_error(
          "trireme::interop::data_parallel: .gradients_in_buckets needs the whole mean of all gradients on each rank; "
          "use parallel::data and no compressor, or leave it out");
    }
    if (world_.size() == 1) return;
    for (std::size_t place = 0; place < trained_.size(); ++place) {
      auto& it = trained_[place];
      auto const memory = exchange_.gradient_memory(static_cast<int>(place));
      if (memory.empty()) continue;  // a tensor without elements
      it.bucket = torch::from_blob(memory.address(), it.parameter.sizes(), it.parameter.options().requires_grad(false));
    }
  }
  // .grad() gets memory of its own again.
  static void leave_bucket(trained& it) {
    if (!it.bucket.defined()) return;
    auto& own = it.parameter.mutable_grad();
    if (own.defined() && own.is_alias_of(it.bucket)) own = own.detach().clone();
  }
  // For a parameter that this rank has not used: a gradient apart from .grad(), with a copy of its values, or zeros.
  void stand_in(std::size_t place) {
    auto& it = trained_[place];
    leave_bucket(it);
    auto const& own = std::as_const(it.parameter).grad();
    it.gradient = own.defined() ? own.detach().clone(at::MemoryFormat::Contiguous) : torch::zeros_like(it.parameter);
    it.stands_in = true;
    exchange_.gradient_at(static_cast<int>(place), view_of(it.gradient));
  }
  [[nodiscard]] bool has_batch() const {
    return std::any_of(trained_.begin(), trained_.end(), [](auto const& each) { return each.used; });
  }
  // Reports the gradients that backward has not reported.
  void complete() {
    follow();
    if (!has_batch()) {
      throw config_error(
          "trireme::interop::data_parallel: finish() without a backward() since the last one; a rank without a batch "
          "calls join()");
    }
    std::size_t missing = 0;
    std::string first;
    for (std::size_t place = trained_.size(); place-- > 0;) {
      auto const& it = trained_[place];
      if (it.reported) continue;
      if (is_counted_ && (it.used != it.static_used || it.events != it.static_events))
        expect_as_first(place, "got too few gradients");
      if (it.used) {  // under no_sync() only, in the first step of a static graph, or in a device's memory
        take(place);
      } else if (options_.unused_parameters || options_.static_graph) {
        stand_in(place);
        report(place);
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

  // What has become of the module since it was wrapped, or since the last step. Gradients of a parameter that has got
  // another accumulator were not told, and are in .grad() alone.
  void follow() {
    for (std::size_t place = 0; place < trained_.size(); ++place) {
      auto& it = trained_[place];
      if (!it.parameter.requires_grad()) continue;
      if (hooks_.renew(it.parameter, place) && std::as_const(it.parameter).grad().defined()) it.used = true;
    }
    std::size_t place = 0;
    for (auto const& each : module_->parameters()) {
      if (!each.requires_grad()) continue;
      if (place < trained_.size() && trained_[place].parameter.is_same(each)) {
        ++place;
      } else if (std::none_of(trained_.begin(), trained_.end(),
                              [&](auto const& known) { return known.parameter.is_same(each); })) {
        for (auto const& named : module_->named_parameters())
          if (named.value().is_same(each)) not_known(named.key());
      }
    }
  }
  [[noreturn]] static void not_known(std::string const& name) {
    throw config_error(text("trireme::interop::data_parallel: parameter \"", name,
                            "\" requires a gradient, and did not when ranks began to share the module, or has come "
                            "since: no rank would see the others' gradients of it; wrap the module anew after such a "
                            "change, on all ranks"));
  }

  exchange_result settle(exchange_result const& result) {
    if (result.votes > 0) {
      if (scale_) static_cast<void>(scale_->decide(result.finite));
      give_back(result.votes == world_.size());
      if (options_.static_graph) count();
      share_buffers(has_batch(), result.votes == world_.size());
    }
    forget();
    return result;
  }
  // The first step of a static graph says what the others are.
  void count() {
    if (std::exchange(is_counted_, true)) return;
    for (auto& it : trained_) it.static_used = it.used, it.static_events = it.events;
  }
  // Makes .grad() the mean, also where something stood in for a gradient, unless no rank has used that parameter: then
  // ranks with a batch keep what they have, and one without takes that over, so that optimizers do the same everywhere.
  void give_back(bool all_had_one) {
    if (!is_counted_ && (options_.unused_parameters || options_.static_graph)) {
      std::vector<std::uint8_t> uses(trained_.size(), 0);
      bool const own = has_batch();
      std::transform(trained_.begin(), trained_.end(), uses.begin(), [&](auto const& each) {
        if (each.used) return use::some;
        return own && std::as_const(each.parameter).grad().defined() ? use::none : use::no_gradient;
      });
      world_.all_reduce(tensor_view<std::uint8_t>(uses), reduction::max{});
      for (std::size_t place = 0; place < uses.size(); ++place) trained_[place].of_any = uses[place];
    }
    torch::NoGradGuard const guard;
    for (std::size_t place = 0; place < trained_.size(); ++place) {
      auto& it = trained_[place];
      auto& own = it.parameter.mutable_grad();
      if (!it.stands_in) {
        own = it.gradient;  // the same tensor, unless the caller has put another one there
      } else if (it.of_any != use::some && all_had_one) {
        continue;
      } else if (it.of_any == use::no_gradient) {
        own.reset();
      } else if (own.defined()) {
        own.copy_(it.gradient);
      } else {
        own = it.gradient;
      }
    }
  }
  void share_buffers(bool had_batch, bool all_had_one) {
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
    begun_ = is_scaled_ = false;
  }

  std::shared_ptr<Module> module_;
  Comm world_;  // of its own: ranks may reach several modules' gradients in different orders
  data_parallel_options options_;
  detail::shared_tensors<space> buffers_;
  std::vector<trained> trained_;
  Exchange exchange_;
  std::optional<precision::fp16::instance> scale_{};
  bool begun_ = false;
  bool is_scaled_ = false;  // with .loss_scale: this step's losses are
  bool quiet_ = false;
  bool is_counted_ = false;       // with .static_graph: the first step has been
  detail::gradient_hooks hooks_;  // last, so that hooks end before what they use
};

/// Makes an existing single-process loop of LibTorch data-parallel: three lines.
///
/// Ranks    collective. Parameters and buffers of all ranks become those of rank 0.
/// Errors   config_error on every rank if their modules differ.
///
/// @tparam Element  of all trained parameters: float or double.
/// @param module    a torch::nn::ModuleHolder (what TORCH_MODULE makes) or a std::shared_ptr of a module.
/// @param policies  as of make_exchange: a strategy, a compressor.
/// @example auto ddp = interop::data_parallel(net, world);
///          torch::nn::mse_loss(ddp->forward(x), y).backward();
///          ddp.finish();
template <class Element = float, class Module, class Comm, class... Policies>
[[nodiscard]] auto data_parallel(Module const& module, Comm& world, data_parallel_options const& options,
                                 Policies const&... policies) {
  using inner = typename decltype(detail::module_of(module))::element_type;
  using space = typename space_of<Comm>::type;
  static_assert(std::is_same_v<space, host> || (std::is_same_v<Policies, parallel::data> && ...),
                "trireme::interop::data_parallel: a device's memory goes with parallel::data and without a compressor");
  using exchange = decltype(make_exchange(std::vector<foreign_parameter<Element, space>>(), world, policies...));
  return data_parallel_module<Element, inner, Comm, exchange>(detail::module_of(module), world, options, policies...);
}
template <class Element = float, class Module, class Comm, class... Policies>
requires(!(std::is_same_v<Policies, data_parallel_options> || ...))
    [[nodiscard]] auto data_parallel(Module const& module, Comm& world, Policies const&... policies) {
  return data_parallel<Element>(module, world, data_parallel_options{}, policies...);
}

}  // namespace trireme::interop
