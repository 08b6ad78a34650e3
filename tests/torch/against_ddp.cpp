// Built with the LibTorch of the Python that runs against_ddp_test.py, which starts it: FOLDER holds the numbers.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "like_ddp.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
using like_ddp::Tensor;

namespace {

Tensor read(std::filesystem::path const& file, at::ScalarType type) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  auto const n = static_cast<std::int64_t>(bytes.size() / at::elementSize(type));
  return torch::from_blob(bytes.data(), {n}, at::TensorOptions().dtype(type)).clone();
}

template <class Module>
void train(std::filesystem::path const& folder, Tensor const& inputs) {
  auto const targets = read(folder / "targets", at::kLong);
  auto const start = read(folder / "start", at::kFloat);
  trireme::launch(comm::threads{.ranks = 2}, [&](auto& world) {
    interop::divide_threads(world);
    auto const own = std::make_shared<Module>();
    if (world.rank() == 0) {
      torch::NoGradGuard const guard;
      std::int64_t from = 0;
      for (auto& each : like_ddp::state_of(*own)) {
        each.copy_(start.slice(0, from, from + each.numel()).reshape(each.sizes()));
        from += each.numel();
      }
    }
    auto ddp = interop::data_parallel(own, world);
    like_ddp::train(*own, ddp, inputs, targets, world.rank());
    if (world.rank() != 0) return;
    std::ofstream out(folder / "found", std::ios::binary);
    for (auto const& each : like_ddp::state_of(*own)) {
      auto const dense = each.detach().contiguous();
      out.write(static_cast<char const*>(dense.data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::filesystem::path const folder = argc > 1 ? argv[1] : ".";
  if (folder.filename() == "cnn") {
    train<like_ddp::cnn>(folder, read(folder / "inputs", at::kFloat).reshape({50, 16, 1, 28, 28}));
  } else {
    train<like_ddp::transformer>(folder, read(folder / "inputs", at::kLong).reshape({50, 8, 12}));
  }
}
