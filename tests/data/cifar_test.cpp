#include "trireme/data/cifar.hpp"

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;
using data::cifar;
using data::cifar_labels;

namespace {

void write(std::string const& path, std::string const& content) { std::ofstream(path, std::ios::binary) << content; }

/// A record: labels, then byte (start + colour + 3 pixel) mod 256 at each place.
std::string record(std::string labels, int start) {
  for (int colour = 0; colour < 3; ++colour) {
    for (int pixel = 0; pixel < 1024; ++pixel) labels += static_cast<char>((start + colour + 3 * pixel) % 256);
  }
  return labels;
}

}  // namespace

TEST_CASE("pictures of CIFAR are read with the colours of a pixel together", "[data][cifar]") {
  static_assert(dataset<data::cifar_samples>);
  scratch const here;
  write(here / "data_batch_1.bin", record("\x03", 0) + record("\x09", 1));
  write(here / "data_batch_2.bin", record(std::string(1, '\0'), 2));
  write(here / "train.bin", record("\x13\x63", 7));
  auto const samples = cifar{.files = here / "data_batch_*.bin"}.open();
  REQUIRE(samples.size() == 3);
  CHECK(samples.classes() == 10);
  CHECK(samples.input_shape() == shape{32, 32, 3});
  std::vector<float> in(2 * 3072);
  std::vector<std::int32_t> out(2);
  samples.read(std::vector<std::int64_t>{2, 1}, in.data(), out.data());
  CHECK(out == std::vector<std::int32_t>{0, 9});
  int wrong = 0;
  for (int i = 0; i < 2 * 3072; ++i) {
    auto const byte = ((i < 3072 ? 2 : 1) + i % 3072) % 256;
    wrong += in[static_cast<std::size_t>(i)] == static_cast<float>(byte / 255.0) ? 0 : 1;
  }
  CHECK(wrong == 0);

  cifar hundred{.files = here / "train.bin",
                .labels = cifar_labels::hundred,
                .mean = {0.5, 0.25, 0},
                .deviation = {0.25, 0.5, 1}};
  hundred.open().read(std::vector<std::int64_t>{0}, in.data(), out.data());
  CHECK(out[0] == 99);
  CHECK(in[0] == static_cast<float>((7 / 255.0 - 0.5) / 0.25));
  CHECK(in[1] == static_cast<float>((8 / 255.0 - 0.25) / 0.5));
  CHECK(in[2] == static_cast<float>(9 / 255.0));
  CHECK(to_string(hundred).ends_with(
      ".labels = trireme::data::cifar_labels::hundred, .mean = {0.5, 0.25, 0}, .deviation = {0.25, 0.5, 1}}"));
  hundred.labels = cifar_labels::hundred_coarse;
  hundred.open().read(std::vector<std::int64_t>{0}, in.data(), out.data());
  CHECK(out[0] == 19);
  hundred.deviation[1] = 0;
  CHECK(contains(sentence_of([&] { static_cast<void>(hundred.open()); }), "deviation 0 of colour 1"));
  hundred.deviation[1] = 1e-50;
  CHECK(
      contains(sentence_of([&] { static_cast<void>(hundred.open()); }),
               "trireme::data::cifar: the mean 0.25 and deviation 1e-50 of colour 1 give numbers that float32 cannot"));
}

TEST_CASE("files that are not CIFAR's are refused by byte and sample", "[data][cifar]") {
  scratch const here;
  auto const refusal = [&](std::string const& content, cifar_labels labels) {
    write(here / "a.bin", content);
    cifar const from{.files = here / "a.bin", .labels = labels};
    return sentence_of([&] { static_cast<void>(from.open()); });
  };
  auto const one = record("\x03", 0);
  CHECK(refusal(one, cifar_labels::ten) == "");
  CHECK(contains(refusal(one, cifar_labels::hundred), "has 3073 bytes, but records of 3074 are needed"));
  CHECK(contains(refusal(one + one.substr(1), cifar_labels::ten),
                 "a.bin: byte 3073: trireme::data::cifar: the file has"));
  CHECK(contains(refusal(one + record("\x0a", 0), cifar_labels::ten),
                 "byte 3073: trireme::data::cifar: sample 1 has the label 10, but there are 10 classes"));
  CHECK(contains(refusal(record("\x14\x01", 0), cifar_labels::hundred_coarse), "sample 0 has the label 20"));
  CHECK(refusal(record("\x14\x01", 0), cifar_labels::hundred) == "");
  CHECK(contains(refusal("", cifar_labels::ten), "the file is empty"));
}
