// test-sanitize: none
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/ops/kernels.hpp>
#include <trireme/trireme.hpp>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../watchdog.hpp"

// A memory space as a user writes it, with public headers only: memory that this process may touch through its kernels
// only. It has those of an exchange and of one optimizer, and a plain model trains in it.

using namespace trireme;

namespace {

/// A memory space whose addresses the host cannot read: reading one faults.
struct shelf {
  [[maybe_unused]] static constexpr std::string_view name = "shelf";
  [[maybe_unused]] static constexpr std::size_t alignment = host::alignment;
  template <class T>
  static T* moved(T* address) {
    constexpr auto mark = std::uintptr_t{1} << 62;
    return address == nullptr ? nullptr : reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(address) ^ mark);
  }
  static void* allocate(std::size_t bytes) { return moved(host::allocate(bytes)); }
  static void deallocate(void* block, std::size_t bytes) noexcept { host::deallocate(moved(block), bytes); }
};

template <class T>
tensor_view<T> within(tensor_view<T, shelf> view) {
  return {shelf::moved(view.address()), view.extents()};
}
template <class T>
std::vector<tensor_view<T>> all_within(std::span<tensor_view<T, shelf> const> views) {
  std::vector<tensor_view<T>> all;
  for (auto const& each : views) all.push_back(within(each));
  return all;
}

}  // namespace

template <>
struct trireme::ops::on<shelf> {
  using kernels = on<host>;
  template <class T>
  using view = tensor_view<T, shelf>;
  template <class T>
  using input = std::type_identity_t<view<T const>>;

  // what every exchange needs
  template <class T>
  static void fill(view<T> y, double value) {
    kernels::fill(within(y), value);
  }
  template <class T, class U>
  static void copy(view<T> y, view<U> x) {
    kernels::copy(within(y), within(x));
  }
  template <class T>
  static void add(view<T> y, input<T> x) {
    kernels::add(within(y), within(x));
  }
  template <class T>
  static void scale(view<T> y, double factor) {
    kernels::scale(within(y), factor);
  }
  template <class T, class U>
  static void accumulate(view<T> y, view<U> x, double weight) {
    kernels::accumulate(within(y), within(x), weight);
  }
  template <class T>
  static void initialise(view<T> y, initial const& how, std::uint64_t seed, std::uint64_t name,
                         std::int64_t first = 0) {
    kernels::initialise(within(y), how, seed, name, first);
  }
  template <class T>
  static void upload(view<T> y, std::type_identity_t<std::span<T const>> x) {
    kernels::upload(within(y), x);
  }
  template <class T>
  static void download(std::span<T> y, input<T> x) {
    kernels::download(y, within(x));
  }
  template <class T>
  static std::uint64_t hash(view<T> x, std::uint64_t name, std::int64_t first) {
    return kernels::hash(within(x), name, first);
  }
  template <class T>
  static bool finite(view<T> x) {
    return kernels::finite(within(x));
  }
  template <class T>
  static void sum_of_squares(view<T> x, exact_sum& squares) {
    kernels::sum_of_squares(within(x), squares);
  }
  template <class T, class Op>
  static void reduce(std::span<view<T> const> outputs, std::type_identity_t<std::span<view<T const> const>> terms,
                     Op op, int divisor = 1) {
    auto const to = all_within(outputs);
    auto const from = all_within(terms);
    kernels::reduce(std::span<tensor_view<T> const>(to), from, op, divisor);
  }

  // what this optimizer needs
  template <class M, class G, class P>
  static void sgd(view<M> value, std::type_identity_t<view<M>> velocity, gradient_terms<G, shelf> const& gradient,
                  std::span<view<P> const> outputs, sgd_numbers const& numbers) {
    auto const terms = all_within(gradient.terms);
    auto const copies = all_within(outputs);
    kernels::sgd(within(value), within(velocity), gradient_terms<G, host>{terms, gradient.scale}, std::span(copies),
                 numbers);
  }
};

namespace {

/// y = a x + b, with numbers on the shelf.
struct line {
  using policy_category = slot::model;
  tensor<float, shelf> values{shape{2}};
  tensor<float, shelf> gradients{shape{2}};
  float slopes[2]{};

  line() { ops::on<shelf>::fill(values.view(), 0.25); }
  void visit_parameters(auto&& visit) { visit("line", values.view(), gradients.view()); }
  float forward(samples const& batch) {
    float now[2];
    ops::on<shelf>::download(std::span<float>(now), values.view());
    auto const x = batch.inputs.as<float>();
    auto const y = batch.targets.as<float>();
    auto const n = static_cast<float>(batch.count());
    float loss = 0;
    slopes[0] = slopes[1] = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      float const error = now[0] * x[i] + now[1] - y[i];
      loss += error * error / n;
      slopes[0] += 2 * error * x[i] / n;
      slopes[1] += 2 * error / n;
    }
    return loss;
  }
  void backward(auto&& ready) {
    ops::on<shelf>::upload(gradients.view(), std::span<float const>(slopes));
    ready("line");
  }
};

using env = environment<precision::fp32, shelf>;
static_assert(ops::exchange_kernels<shelf, env> && ops::sgd_kernels<shelf, env> && !ops::dense_kernels<shelf, env>);

auto const data_on_a_line = data::function([](float x) { return 3 * x - 1; }, {.samples = 64});

template <class Parallel>
std::uint64_t run(int ranks, Parallel const& how, std::int64_t stop_after, std::string const& load = "",
                  std::string const& save = "") {
  watchdog const guard("a space of a user's own");
  std::uint64_t hash = 0;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto there = comm::in_space<shelf>(world);
    auto trainer = make_trainer(line{}, optim::sgd{.learning_rate = 0.2, .momentum = 0.5}, there, how);
    if (!load.empty()) trainer.load(load);
    auto const report = trainer.fit(data_on_a_line, {.steps = 40, .batch = 16, .stop_after = stop_after});
    if (stop_after == 40 && report.last_loss > 1e-4) throw error("it does not learn");
    if (!save.empty()) trainer.save(save);
    auto const mine = trainer.state_hash();
    if (world.rank() == 0) hash = mine;
  });
  return hash;
}

}  // namespace

TEST_CASE("a plain model trains in a user's memory space that has only the kernels of an exchange", "[policies]") {
  for (int const ranks : {1, 2, 3, 4}) {
    scratch folder;
    auto const whole = run(ranks, parallel::data{}, 40);
    CHECK(run(ranks, parallel::zero<1>{}, 40) == whole);
    run(ranks, parallel::zero<1>{}, 9, "", folder.path());
    CHECK(run(ranks, parallel::zero<1>{}, 40, folder.path()) == whole);
  }
}
