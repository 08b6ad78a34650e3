// solver_heat: a burning plate, cut into strips over the ranks of MPI, that learns its own chemistry.
//
//   scripts/example --mpirun 4 solver_heat
//
// The solver is an ordinary one: MPI_Init, doubles, ghost rows, one exchange of them a step. Its chemistry is the
// costly part. A network sees (temperature, fuel) and what the chemistry has burnt, in every step, on all ranks. In the
// last quarter of the run it is asked before the chemistry is, and the two are compared. Lines that are Trireme's have
// a "+".
//
// test-ranks: 1 3 7
// test:
#include <mpi.h>

#include <cmath>
#include <vector>

#include <fmt/core.h>

#include "trireme/comm/mpi.hpp"  // +
#include "trireme/trireme.hpp"   // +

namespace {

constexpr int width = 48, height = 42, steps = 120;
constexpr double dt = 0.2;

/// Which share of the fuel burns in a step: dc/dt = -c k(T), in many small implicit steps.
double burnt(double temperature) {
  double left = 1;
  for (int i = 0; i < 50; ++i) left /= 1 + dt / 50 * std::exp(4 - 4 / (temperature + 0.1));
  return 1 - left;
}

struct plate {
  int rank = 0, ranks = 1, rows = 0;
  static constexpr int row = width + 2;  // with a ghost column on each side
  std::vector<double> temperature, fuel, share, before;

  plate() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int const first = height * rank / ranks;
    rows = height * (rank + 1) / ranks - first;
    for (auto* const field : {&temperature, &fuel, &share})
      field->assign(static_cast<std::size_t>((rows + 2) * row), 0);
    for (int y = 1; y <= rows; ++y) {
      for (int x = 1; x <= width; ++x) {
        double const dx = x - width / 3.0, dy = first + y - height / 2.0;
        temperature[at(x, y)] = 0.2 + 1.5 * std::exp(-(dx * dx + dy * dy) / 30);
        fuel[at(x, y)] = 1;
      }
    }
  }
  static std::size_t at(int x, int y) { return static_cast<std::size_t>(y * row + x); }

  void exchange_ghosts() {
    int const up = rank == 0 ? MPI_PROC_NULL : rank - 1, down = rank + 1 == ranks ? MPI_PROC_NULL : rank + 1;
    double* const t = temperature.data();
    MPI_Sendrecv(t + at(0, 1), row, MPI_DOUBLE, up, 0, t + at(0, rows + 1), row, MPI_DOUBLE, down, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(t + at(0, rows), row, MPI_DOUBLE, down, 1, t + at(0, 0), row, MPI_DOUBLE, up, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
  }
  void burn() {
    for (int y = 1; y <= rows; ++y)
      for (int x = 1; x <= width; ++x) share[at(x, y)] = burnt(temperature[at(x, y)]);
  }
  void advance() {
    exchange_ghosts();
    before = temperature;
    for (int y = 1; y <= rows; ++y) {
      for (int x = 1; x <= width; ++x) {
        auto const i = at(x, y);
        double const around = before[i - 1] + before[i + 1] + before[i - row] + before[i + row] - 4 * before[i];
        temperature[i] += 0.5 * dt * around + share[i] * fuel[i];
        fuel[i] -= share[i] * fuel[i];
      }
    }
  }
  double everywhere(double own) const {
    double sum = 0;
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum;
  }
  trireme::strided_view<double> inner(std::vector<double> const& field) const {  // +
    return {field.data() + at(1, 1), {std::int64_t{rows}, width}, {row, 1}};     // +
  }                                                                              // +
};

int run() {
  plate plate;
  auto world = trireme::comm::mpi::borrow(MPI_COMM_WORLD);                                    // +
  auto trainer = trireme::make_trainer(trireme::nn::mlp{.inputs = 2, .hidden = {24, 24}},     // +
                                       trireme::optim::adamw{.learning_rate = 5e-3}, world);  // +
  double loss = 0, exact = 0, wrong = 0;
  for (int step = 0; step < steps; ++step) {
    plate.burn();
    auto const state = trireme::stack_cells<float>(plate.inner(plate.temperature), plate.inner(plate.fuel));  // +
    if (step < steps * 3 / 4) {
      auto const share = trireme::stack_cells<float>(plate.inner(plate.share));        // +
      for (int again = 0; again < 5; ++again) loss = trainer.step(state, share).loss;  // +
    } else {
      auto const predicted = trainer.predict(state);  // +
      for (int y = 1; y <= plate.rows; ++y) {
        for (int x = 1; x <= width; ++x) {
          auto const i = plate::at(x, y);
          double const error = predicted[(y - 1) * width + x - 1] - plate.share[i];
          exact += plate.share[i] * plate.share[i];
          wrong += error * error;
        }
      }
    }
    plate.advance();
  }
  double const off = std::sqrt(plate.everywhere(wrong) / plate.everywhere(exact));
  if (plate.rank == 0)
    fmt::print("{} ranks: loss {:.3e}; predictions are off by {:.1f} %\n", plate.ranks, loss, 100 * off);
  return off < 0.1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int const code = run();
  MPI_Finalize();
  return code;
}
