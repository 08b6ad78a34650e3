// How fast compressors encode and decode: one JSON object per row, medians.
//   codecs [rounds] [substring of the codecs to run]
// GB/s of fp32 gradient on one core, of a bucket of 25 MiB, beside a copy of the same memory in the same round (4 bytes
// read for each 4 that are counted). Decoding adds to a sum where payloads are gathered. PowerSGD is its two products,
// orthonormalisation and the residual, of a matrix of 2560 x 2560 at rank 4, without messages.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "trireme/comm/self.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using env = environment<precision::fp32>;
using kernels = ops::on<host>;

namespace {

int rounds = 15;
std::string_view only;
constexpr std::int64_t n = std::int64_t{2560} * 2560;

tensor<float> gradient_numbers_of(std::uint64_t seed) {
  tensor<float> out(shape{n});
  kernels::initialise(out.view(), initial{initial::distribution::normal, 1e-3}, seed, 2);
  return out;
}
template <class Body>
double seconds_of(Body&& body) {
  using clock = std::chrono::steady_clock;
  auto const from = clock::now();
  body();
  return std::chrono::duration<double>(clock::now() - from).count();
}
double rate(std::vector<double>& seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return 4e-9 * static_cast<double>(n) / seconds[static_cast<std::size_t>(rounds) / 2];
}

template <class Encode, class Decode>
void report(std::string_view codec, tensor<float>& gradient, tensor<float>& sum, Encode&& encode, Decode&& decode) {
  if (codec.find(only) == std::string_view::npos) return;
  std::vector<double> encoding, decoding, copying;
  encode(0);
  decode();
  for (int round = 0; round < rounds; ++round) {
    copying.push_back(
        seconds_of([&] { std::memcpy(sum.span().data(), gradient.span().data(), gradient.view().bytes()); }));
    encoding.push_back(seconds_of([&] { encode(round); }));
    decoding.push_back(seconds_of([&] { decode(); }));
  }
  std::printf("{\"codec\": \"%.*s\", \"encode_gbps\": %.2f, \"decode_gbps\": %.2f, \"copy_gbps\": %.2f}\n",
              static_cast<int>(codec.size()), codec.data(), rate(encoding), rate(decoding), rate(copying));
  std::fflush(stdout);
}

template <class Codec>
void measure(std::string_view name, Codec const& codec) {
  auto gradient = gradient_numbers_of(1);
  auto sum = gradient_numbers_of(2);
  auto state = make_compressor_state<Codec, env>(codec, {n, {}});
  auto const at = [&](int round) {
    if constexpr (has_at_gradient<decltype(state)>) state.at_gradient({.step = round});
  };
  if constexpr (summable_compressor<Codec, env>) {
    std::int64_t elements = n;
    if constexpr (has_payload_elements<decltype(state)>) elements = state.payload_elements(n);
    tensor<typename decltype(state)::wire> payload(shape{elements});
    report(
        name, gradient, sum, [&](int round) { at(round), state.encode(gradient.view(), payload.view(), 0); },
        [&] { state.decode(payload.view(), sum.view()); });
  } else {
    tensor<std::byte> payload(shape{state.payload_bytes(n)});
    report(
        name, gradient, sum, [&](int round) { at(round), state.encode(gradient.view(), payload.view(), 0); },
        [&] { state.decode(payload.view(), sum.view(), true); });
  }
}

void measure_power_sgd() {
  auto gradient = gradient_numbers_of(1);
  auto sum = gradient_numbers_of(2);
  parameter_info const info{.name = "w", .extents = {2560, 2560}};
  comm::self_world world;
  compression::power_sgd::instance<env, comm::self_world> state({.rank = 4}, {n, {{&info, 0}}}, world);
  report(
      "power_sgd", gradient, sum,
      [&](int) {
        state.begin(gradient.view(), 1);
        state.turn();
      },
      [&] {
        state.turn();
        state.commit();
      });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) rounds = std::max(1, std::atoi(argv[1]));
  if (argc > 2) only = argv[2];
  namespace c = compression;
  measure("bf16", c::cast<bf16>{});
  measure("int8", c::quantise<8>{});
  measure("int4", c::quantise<4>{});
  measure("int2", c::quantise<2>{});
  measure("int2 nearest", c::quantise<2>{.rounding = c::code_rounding::nearest});
  measure("sign", c::sign{});
  measure("random_k", c::random_k{});
  measure("top_k", c::top_k{});
  measure("top_k_sampled", c::top_k_sampled{});
  measure("dgc", c::dgc{});
  measure_power_sgd();
}
