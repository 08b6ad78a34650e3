// schedule_pictures [FOLDER]
//
// Draws how each pipeline schedule runs: 4 stages as threads, 8 micro-batches, and a model of 8 units that sleep 8 ms
// for a forward and for each half of a backward. It draws what the engine did, not what the schedule says. Writes
// FOLDER/NAME.svg for each, and prints the idle time next to the simulator's.
// test: .
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "trireme/formats/file.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

constexpr int stages = 4;
constexpr int micro_batches = 8;
constexpr int units = 8;
constexpr std::chrono::microseconds length{8000};
using ms = std::chrono::duration<double, std::milli>;
using env = environment<precision::fp32>;

/// A unit that sleeps instead of computing. Its backward has two halves.
struct sleeping {
  bool last = false;

  template <class Env>
  class instance {
   public:
    using view = tensor_view<float>;
    struct saved {};
    explicit instance(sleeping const& description) : last_(description.last) {}
    void visit(auto&&) {}
    view forward(pass<Env>& pass, saved&, view) {
      std::this_thread::sleep_for(length);
      return last_ ? view{} : something(pass);
    }
    view backward_input(pass<Env>& pass, saved&, view) {
      std::this_thread::sleep_for(length);
      return something(pass);
    }
    void backward_weight(pass<Env>&, saved&) { std::this_thread::sleep_for(length); }
    view backward(pass<Env>& pass, saved& kept, view dy) {
      auto const dx = backward_input(pass, kept, dy);
      backward_weight(pass, kept);
      return dx;
    }

   private:
    static view something(pass<Env>& pass) {
      auto const it = pass.take(shape{1});
      it[0] = 0;
      return it;
    }
    bool last_;
  };
};
struct sleepers {
  void units(auto&& emit) const {
    for (int u = 1; u <= ::units; ++u) emit(sleeping{.last = u == ::units});
  }
};

/// A step that a stage has taken.
struct event {
  schedule::step step;
  ms begin{}, end{};
};
using trace = std::vector<std::vector<event>>;  // of each stage

/// One step of training, after one for warm-up.
template <class Schedule>
trace run() {
  trace out(stages);
  float const input = 0;
  auto const batch = make_samples(tensor_view<float const>(&input, {1, 1}), tensor_view<float const>{});
  std::vector<samples> const batches(micro_batches, batch);
  trireme::launch(comm::threads{.ranks = stages}, [&](auto& world) {
    auto channel = world.duplicate();
    parallel::communicator_link link(channel);
    auto const assignment = parallel::assignment_of(parallel::pipeline<Schedule>{}, sleepers{}, world.rank(), stages);
    staged_engine<env> engine(sleepers{}, tensor_group<env>::one(), assignment, &link);
    auto& events = out[static_cast<std::size_t>(world.rank())];
    std::chrono::steady_clock::time_point start;
    engine.watch([&](schedule::step const& step, bool begins) {
      auto const now = ms(std::chrono::steady_clock::now() - start);
      if (begins)
        events.push_back({step, now, now});
      else
        events.back().end = now;
    });
    for (int round = 0; round < 2; ++round) {
      events.clear();
      world.barrier();
      start = std::chrono::steady_clock::now();
      engine.train_step(batches, 1, {}, [](int, bool) {});
    }
  });
  return out;
}

/// The longest idle time of a stage between its first and its last step.
ms bubble(trace const& all) {
  ms most{};
  for (auto const& events : all) {
    auto idle = events.back().end - events.front().begin;
    for (auto const& each : events) idle -= each.end - each.begin;
    most = std::max(most, idle);
  }
  return most;
}
template <class Schedule>
ms bubble_on_paper() {
  int const chunks = std::max(1, Schedule::chunks == 0 ? 2 : Schedule::chunks);
  auto const lists = schedule::make_lists<Schedule>({stages, micro_batches, chunks});
  auto const each = units / lists.where().virtual_stages() * length.count();
  schedule::costs const cost{.forward = each, .backward_input = each, .backward_weight = each};
  return std::chrono::microseconds(schedule::simulate(lists, cost).bubble());
}

std::string draw(std::string_view name, trace const& all, ms idle) {
  constexpr double left = 60, top = 34, row = 30, scale = 1.6;     // scale: per millisecond
  constexpr char const* colours[4][2] = {{"#a9c8ea", "#5d94cf"},   // forward: of the first chunk, of the second
                                         {"#b5dfb0", "#66b060"},   // backward
                                         {"#d3ecce", "#93cf8c"},   // the input's half
                                         {"#f3dfa2", "#dcb64a"}};  // the weights' half
  ms last{};
  for (auto const& events : all) last = std::max(last, events.back().end);
  std::string body;
  for (std::size_t s = 0; s < all.size(); ++s) {
    double const y = top + row * static_cast<double>(s);
    body += fmt::format("<text x='4' y='{:.0f}'>stage {}</text>\n", y + 19, s);
    for (auto const& each : all[s]) {
      double const x = left + scale * each.begin.count();
      double const width = scale * (each.end - each.begin).count();
      body += fmt::format("<rect x='{:.1f}' y='{:.0f}' width='{:.1f}' height='26' fill='{}' stroke='#fff'/>\n", x, y,
                          width, colours[static_cast<int>(each.step.kind)][each.step.chunk]);
      body += fmt::format("<text x='{:.1f}' y='{:.0f}' text-anchor='middle'>{}</text>\n", x + width / 2, y + 18,
                          each.step.micro_batch);
    }
  }
  return fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 1000 {0:.0f}' font-family='sans-serif' font-size='12'>\n"
      "<rect width='100%' height='100%' fill='#fff'/>\n"
      "<text x='4' y='20' font-size='15'>{1}: {2:.0f} ms; between its first and its last step no stage idles longer "
      "than {3:.1f} ms</text>\n{4}</svg>\n",
      top + row * static_cast<double>(all.size()) + 4, name, last.count(), idle.count(), body);
}

}  // namespace

int main(int count, char** arguments) try {
  std::filesystem::path const folder = count > 1 ? arguments[1] : ".";
  schedule::for_each_schedule([&]<class Schedule>(Schedule const&) {
    auto const all = run<Schedule>();
    auto const idle = bubble(all);
    formats::atomic_write((folder / fmt::format("{}.svg", Schedule::name)).string(), draw(Schedule::name, all, idle));
    fmt::print("{:12} idles {:6.1f} ms, simulated {:6.1f} ms\n", Schedule::name, idle.count(),
               bubble_on_paper<Schedule>().count());
  });
  return 0;
} catch (std::exception const& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
