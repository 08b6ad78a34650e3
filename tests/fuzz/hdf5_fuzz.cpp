// HDF5 files, which the HDF5 library parses. Besides not crashing: what opens has rows, each of which is read or
// refused in a sentence. test-mutations: 3000
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "trireme/data/hdf5.hpp"

// The library does not free all that it had read of a damaged file.
extern "C" char const* __lsan_default_suppressions() { return "leak:libhdf5"; }  // NOLINT(bugprone-reserved-identifier)
// A damaged file may say that a part of it has terabytes. The library reports that there is no memory for them.
extern "C" char const* __asan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "allocator_may_return_null=1";
}

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace trireme;
  auto const file = ::memfd_create("input.h5", 0);
  if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    auto const samples =
        data::hdf5{.files = "/proc/self/fd/" + std::to_string(file), .features = "x", .targets = "y"}.open();
    auto const bytes = [](dtype type, shape const& one) {
      return static_cast<std::size_t>(one.size()) * size_of(type);
    };
    auto const input = bytes(samples.input_type(), samples.input_shape());
    auto const target = bytes(samples.target_type(), samples.target_shape());
    if (samples.size() < 1) std::abort();
    if (input <= 1 << 20 && target <= 1 << 20) {
      std::vector<std::byte> in(input), out(target);
      for (std::int64_t id = 0; id < samples.size() && id < 20; ++id) {
        try {
          samples.read(std::vector<std::int64_t>{id}, in.data(), out.data());
        } catch (error const&) {
        }
      }
    }
  } catch (error const&) {
  }
  ::close(file);
  return 0;
}
