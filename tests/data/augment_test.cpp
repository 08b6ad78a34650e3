// test-sanitize: address
#include "trireme/data/augment.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/any_dataset.hpp"
#include "trireme/data/blend.hpp"
#include "trireme/data/evaluation.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/map.hpp"

using namespace trireme;

namespace {

/// Sample i has the pixels 100 i + 1, 100 i + 2, ..., and the label i.
struct pictures {
  std::int64_t count = 20, height = 4, width = 6;
  [[nodiscard]] std::int64_t size() const noexcept { return count; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::f32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {height, width, 1}; }
  [[nodiscard]] shape target_shape() const { return {}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<float*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      for (std::int64_t i = 0; i < height * width; ++i) *in++ = static_cast<float>(100 * id + 1 + i);
      *out++ = static_cast<std::int32_t>(id);
    }
  }
};
static_assert(!has_placed_read<pictures>);

struct sample {
  std::vector<float> inputs;
  std::int32_t target = 0;
  friend bool operator==(sample const&, sample const&) = default;
};

template <class Data>
sample one(Data const& data, std::int64_t id) {
  sample out{std::vector<float>(static_cast<std::size_t>(data.input_shape().size())), 0};
  data.read(std::span(&id, 1), out.inputs.data(), &out.target);
  return out;
}
template <class Data>
sample one(Data const& data, read_place at, std::int64_t id) {
  sample out{std::vector<float>(static_cast<std::size_t>(data.input_shape().size())), 0};
  data.read(at, std::span(&id, 1), out.inputs.data(), &out.target);
  return out;
}

/// The samples of some batches of one rank.
template <class Loader>
std::vector<sample> taken(Loader& loader, int batches) {
  std::vector<sample> out;
  for (int i = 0; i < batches; ++i) {
    for (auto const& part : loader.next().micro_batches) {
      auto const in = part.inputs.template as<float>();
      auto const targets = part.targets.template as<std::int32_t>();
      auto const each = in.size() / part.count();
      for (std::int64_t s = 0; s < part.count(); ++s) {
        auto const first = in.span().begin() + s * each;
        out.push_back({{first, first + each}, targets[s]});
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("random numbers of a step depend on seed, epoch, sample and step alone", "[data]") {
  data::draws a(1, 2, 3, 0), again(1, 2, 3, 0);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 9; ++i) {
    auto const word = a.word();
    CHECK(word == again.word());
    seen.insert(word);
  }
  CHECK(seen.size() == 9);
  for (auto other :
       {data::draws(2, 2, 3, 0), data::draws(1, 3, 3, 0), data::draws(1, 2, 4, 0), data::draws(1, 2, 3, 1)})
    CHECK(seen.count(other.word()) == 0);

  data::draws random(5, 0, 0, 0);
  double mean = 0, square = 0, betas = 0, beta_squares = 0, whole = 0;
  constexpr int n = 20000;
  for (int i = 0; i < n; ++i) {
    auto const x = random.normal(), b = random.beta(0.4);
    REQUIRE((b >= 0 && b <= 1));
    mean += x / n;
    square += x * x / n;
    betas += b / n;
    beta_squares += b * b / n;
    auto const k = random.below(7);
    REQUIRE((k >= 0 && k < 7));
    whole += static_cast<double>(k) / n;
  }
  CHECK(std::abs(mean) < 0.03);
  CHECK(square == Approx(1).margin(0.04));
  CHECK(betas == Approx(0.5).margin(0.01));
  CHECK(beta_squares - betas * betas == Approx(1 / (4 * (2 * 0.4 + 1))).margin(0.005));
  CHECK(whole == Approx(3).margin(0.05));
}

TEST_CASE("augmented samples are the same on any number of ranks and after a resume, and others in each epoch",
          "[data]") {
  auto const made = data::augment(pictures{}, data::crop{.height = 3, .width = 3, .padding = 1}, data::flip{},
                                  data::mixup{}, data::erase{.chance = 0.3});
  static_assert(dataset<decltype(made)> && has_placed_read<decltype(made)> && !has_sample_order<decltype(made)>);
  CHECK(made.input_shape() == shape{3, 3, 1});
  data::loader_options const options{.batch = 8, .micro_batches = 4, .seed = 11};
  data::loader whole(made, options);
  auto const all = taken(whole, 6);  // two epochs of 20
  REQUIRE(all.size() == 40);

  data::loader first(made, options, 0, 2), second(made, options, 1, 2);
  std::vector<sample> both;
  for (int i = 0; i < 6; ++i) {
    for (auto* rank : {&first, &second}) {
      for (auto const& each : taken(*rank, 1)) both.push_back(each);
    }
  }
  CHECK(both == all);

  data::loader part(made, options);
  static_cast<void>(taken(part, 4));
  data::loader again(made, {.batch = 4, .micro_batches = 2, .seed = 11, .prefetch = 0});
  again.seek(part.position());
  CHECK(taken(again, 3) == std::vector(all.begin() + 28, all.end()));

  data::any_dataset const any(made);  // and so are those of datasets made of it
  data::loader erased(any, options);
  CHECK(taken(erased, 6) == all);
  auto const mapped = data::map(made, [](std::int64_t, std::span<float>, std::span<std::int32_t>) {});
  data::loader through(mapped, options);
  CHECK(taken(through, 6) == all);
  data::blend const alone{{made, 1}};
  data::loader blended(alone, options);
  CHECK(taken(blended, 6) == all);
  std::vector<std::int64_t> same(20);
  for (std::int64_t i = 0; i < 20; ++i) same[static_cast<std::size_t>(i)] = i;
  data::subset const chosen(made, same);
  data::loader listed(chosen, options);
  CHECK(taken(listed, 6) == all);
  data::concat const joined{made};
  data::loader concatenated(joined, options);
  CHECK(taken(concatenated, 6) == all);

  int changed = 0;
  for (std::int64_t id = 0; id < 20; ++id) changed += one(made, {1, 0, 0}, id) != one(made, {1, 1, 0}, id) ? 1 : 0;
  CHECK(changed > 15);
  CHECK(one(made, {1, 0, 0}, 3) == one(made, {1, 0, 7}, 3));  // the position does not matter
  CHECK(one(made, {1, 0, 0}, 3) != one(made, {2, 0, 0}, 3));
}

TEST_CASE("a sample that a blend repeats within an epoch is changed in another way each time", "[data]") {
  auto const few =
      data::augment(pictures{.count = 2}, [](data::draws& random, std::span<float> in, std::span<std::int32_t>) {
        in[0] = static_cast<float>(random.uniform());
      });
  data::blend const mixed{{few, 0.5}, {pictures{.count = 18}, 0.5}};
  data::loader loader(mixed, {.batch = 20});
  std::set<float> seen;
  for (auto const& each : taken(loader, 1)) {
    if (each.inputs[0] < 1) seen.insert(each.inputs[0]);
  }
  CHECK(seen.size() == 10);
}

TEST_CASE("evaluation sees samples without chance", "[data]") {
  auto const made =
      data::augment(pictures{}, data::crop{.height = 2, .width = 4, .padding = 3}, data::flip{.chance = 1},
                    data::mixup{}, data::cutmix{}, data::colour{.brightness = 1}, data::erase{.chance = 1});
  CHECK(one(made, 1) == sample{{108, 109, 110, 111, 114, 115, 116, 117}, 1});
  data::evaluation_batches batches(made, 20);
  for (auto const& part : batches) CHECK(part.inputs.as<float>()[8] == 108);
  auto const resized = data::augment(pictures{}, data::resize_crop{.height = 4, .width = 4});
  CHECK(one(resized, 0) == sample{{2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 16, 17, 20, 21, 22, 23}, 0});
}

TEST_CASE("a crop takes every place, and pads", "[data]") {
  auto const made = data::augment(pictures{.count = 1}, data::crop{.padding = 1, .fill = -5});
  CHECK(made.input_shape() == shape{4, 6, 1});
  std::map<float, int> middles;
  bool filled = false;
  for (std::uint64_t epoch = 0; epoch < 900; ++epoch) {
    auto const got = one(made, {3, epoch, 0}, 0);
    ++middles[got.inputs[2 * 6 + 3]];
    auto const edges = std::count(got.inputs.begin(), got.inputs.end(), -5.0F);
    CHECK((edges == 0 || edges == 4 || edges == 6 || edges == 9));
    filled = filled || edges == 9;
  }
  CHECK(filled);
  REQUIRE(middles.size() == 9);
  for (auto const& [pixel, times] : middles) CHECK((times > 60 && times < 150));  // 100 are expected
}

TEST_CASE("flip exchanges left and right by chance, of all colours of a pixel", "[data]") {
  struct coloured : pictures {
    [[nodiscard]] shape input_shape() const { return {2, 3, 4}; }
  };
  auto const always = data::augment(coloured{}, data::flip{.chance = 1});
  CHECK(one(always, {}, 0).inputs ==
        std::vector<float>{9, 10, 11, 12, 5, 6, 7, 8, 1, 2, 3, 4, 21, 22, 23, 24, 17, 18, 19, 20, 13, 14, 15, 16});
  auto const half = data::augment(coloured{}, data::flip{});
  int flipped = 0;
  for (std::uint64_t epoch = 0; epoch < 1000; ++epoch) flipped += one(half, {0, epoch, 0}, 0).inputs[0] > 1 ? 1 : 0;
  CHECK((flipped > 430 && flipped < 570));
}

TEST_CASE("a resized part keeps a slope, and has the area and ratio that were asked for", "[data]") {
  // Of a picture that is a slope, each resized part is a slope too, and shows where it was cut.
  struct slope : pictures {
    [[nodiscard]] shape input_shape() const { return {40, 50, 1}; }
    void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
      for (std::size_t i = 0; i < ids.size() * 2000; ++i)
        static_cast<float*>(inputs)[i] = static_cast<float>(i % 50) + 1000 * static_cast<float>(i / 50 % 40);
      std::fill_n(static_cast<std::int32_t*>(targets), ids.size(), 0);
    }
  };
  auto const made = data::augment(slope{}, data::resize_crop{.height = 80, .width = 100});  // larger: no edge is cut
  double smallest = 1, largest = 0;
  for (std::uint64_t epoch = 0; epoch < 300; ++epoch) {
    auto const got = one(made, {1, epoch, 0}, 0).inputs;
    auto const at = [&](std::size_t row, std::size_t column) { return static_cast<double>(got[row * 100 + column]); };
    auto const width = (at(40, 60) - at(40, 40)) * 5, height = (at(50, 50) - at(30, 50)) / 1000 * 4;
    CHECK(at(40, 50) - at(40, 49) == Approx(at(40, 51) - at(40, 50)).margin(0.02));
    auto const area = width * height / 2000, ratio = width / height;
    CHECK((area > 0.07 && area < 1.01 && ratio > 0.65 && ratio < 1.5));  // sides are whole numbers
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
  }
  CHECK(smallest < 0.15);
  CHECK(largest > 0.8);

  auto const small = data::augment(slope{}, data::resize_crop{.height = 4, .width = 5});  // the mean of what it covers
  auto const got = one(small, 0).inputs;
  CHECK(got[6] == Approx(14.5F + 14500).margin(0.6));
}

TEST_CASE("steps that make pictures and steps that change them follow each other in any number", "[data]") {
  pictures const source{.count = 5, .height = 5, .width = 7};
  std::vector<std::int64_t> const ids{3, 0, 4};
  auto const check = [&](auto const& data) {
    auto const each = static_cast<std::size_t>(shape(data.input_shape()).size());
    std::vector<float> together(3 * each, -1);
    std::vector<std::int32_t> labels(3);
    for (auto const epoch : {std::uint64_t{0}, std::uint64_t{1}}) {
      data.read({7, epoch, 10}, ids, together.data(), labels.data());
      for (std::size_t row = 0; row < 3; ++row) {
        auto const alone = one(data, {7, epoch, 10 + static_cast<std::int64_t>(row)}, ids[row]);
        CHECK(alone.target == labels[row]);
        CHECK(std::equal(alone.inputs.begin(), alone.inputs.end(),
                         together.begin() + static_cast<std::ptrdiff_t>(row * each)));
      }
    }
    return together;
  };
  data::crop const large{.height = 4, .width = 5}, small{.height = 2, .width = 3};
  check(data::augment(source, data::flip{}));
  check(data::augment(source, data::flip{}, large));
  check(data::augment(source, large, data::flip{}, small, data::erase{}));
  check(data::augment(source, data::resize_crop{}, large, data::mixup{}, small));
  auto const flipped = data::augment(source, data::flip{.chance = 1});
  auto const twice = check(data::augment(flipped, large, small, data::flip{.chance = 1}));
  CHECK(twice[1] == twice[0] + 1);  // flipped twice
  CHECK(twice[3] == twice[0] + 7);
}

TEST_CASE("colour changes brightness, contrast and saturation of the source's colours", "[data]") {
  struct flat : pictures {
    [[nodiscard]] shape input_shape() const { return {1, 2, 3}; }
    void read(std::span<std::int64_t const>, void* inputs, void* targets) const {
      std::vector<float> const numbers{0.2F, 0.4F, 0.6F, 0.3F, 0.3F, 0.3F};
      for (std::size_t i = 0; i < 6; ++i) static_cast<float*>(inputs)[i] = (numbers[i] - 0.5F) / 0.25F;
      *static_cast<std::int32_t*>(targets) = 0;
    }
  };
  std::array<double, 3> const mean{0.5, 0.5, 0.5}, deviation{0.25, 0.25, 0.25};
  auto const colours = [&](data::colour step, std::uint64_t epoch) {
    step.mean = mean, step.deviation = deviation;
    auto out = one(data::augment(flat{}, step), {0, epoch, 0}, 0).inputs;
    for (auto& each : out) each = each * 0.25F + 0.5F;
    return out;
  };
  float least = 2, most = 0;
  for (std::uint64_t epoch = 0; epoch < 100; ++epoch) {
    auto const same = colours({}, epoch);
    for (std::size_t i = 0; i < 3; ++i) CHECK(same[i] == Approx(0.2 + 0.2 * static_cast<double>(i)).margin(1e-6));
    auto const bright = colours({.brightness = 0.5}, epoch);
    auto const factor = bright[0] / 0.2F;
    CHECK(bright[2] == Approx(0.6F * factor).margin(1e-5));
    least = std::min(least, factor), most = std::max(most, factor);
    auto const contrast = colours({.contrast = 0.5}, epoch);
    auto const grey = (0.299F * 0.2F + 0.587F * 0.4F + 0.114F * 0.6F + 0.3F) / 2;
    CHECK((contrast[2] - grey) / (0.6F - grey) == Approx((contrast[0] - grey) / (0.2F - grey)).margin(1e-4));
    auto const saturated = colours({.saturation = 0.5}, epoch);
    CHECK(saturated[3] == Approx(0.3).margin(1e-6));  // grey stays
    CHECK(0.299F * saturated[0] + 0.587F * saturated[1] + 0.114F * saturated[2] ==
          Approx(0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6).margin(1e-5));
  }
  CHECK((least > 0.5F && least < 0.55F && most > 1.45F && most < 1.5F));
}

TEST_CASE("erase writes over one part by chance", "[data]") {
  auto const made =
      data::augment(pictures{.count = 1, .height = 20, .width = 20}, data::erase{.chance = 0.5, .value = -1});
  int erased = 0;
  for (std::uint64_t epoch = 0; epoch < 400; ++epoch) {
    auto const got = one(made, {9, epoch, 0}, 0).inputs;
    auto const gone = std::count(got.begin(), got.end(), -1.0F);
    erased += gone > 0 ? 1 : 0;
    CHECK(gone < 160);
  }
  CHECK((erased > 150 && erased < 250));
}

TEST_CASE("mixup and cutmix mix samples that went through the steps before, and their targets in proportion",
          "[data]") {
  struct constant : pictures {
    void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
      for (std::size_t i = 0; i < ids.size() * 24; ++i)
        static_cast<float*>(inputs)[i] = static_cast<float>(ids[i / 24]);
      for (std::size_t i = 0; i < ids.size(); ++i)
        static_cast<std::int32_t*>(targets)[i] = static_cast<std::int32_t>(ids[i]);
    }
  };
  constant const two{{.count = 2}};
  auto const add = [](data::draws&, std::span<float> in, std::span<std::int32_t>) {
    for (auto& each : in) each += 10;
  };
  auto const mixed = data::augment(two, add, data::mixup{.alpha = 1});
  auto const cut = data::augment(two, add, data::cutmix{});
  double labels = 0, parts = 0, cut_labels = 0, cut_parts = 0;
  for (std::uint64_t epoch = 0; epoch < 2000; ++epoch) {
    auto const got = one(mixed, {4, epoch, 0}, 0);
    CHECK((got.inputs[0] > 9.999F && got.inputs[0] < 11.001F && got.inputs[0] == got.inputs[23]));
    parts += static_cast<double>(got.inputs[0] - 10) / 2000;
    labels += got.target / 2000.0;
    auto const other = one(cut, {4, epoch, 0}, 0);
    for (auto const each : other.inputs) {
      CHECK((each == 10 || each == 11));
      cut_parts += static_cast<double>(each - 10) / 24 / 2000;
    }
    cut_labels += other.target / 2000.0;
  }
  CHECK(parts == Approx(0.25).margin(0.02));  // half of the partners are the sample itself
  CHECK(labels == Approx(parts).margin(0.03));
  CHECK(cut_labels == Approx(cut_parts).margin(0.03));
  CHECK(cut_parts > 0.1);

  struct numbers : constant {
    [[nodiscard]] dtype target_type() const noexcept { return dtype::f32; }
    void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
      constant::read(ids, inputs, targets);
      for (std::size_t i = 0; i < ids.size(); ++i) static_cast<float*>(targets)[i] = static_cast<float>(ids[i]);
    }
  };
  auto const floats = data::augment(numbers{two}, data::mixup{.alpha = 1});
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<float> in(24);
    float target = 0;
    std::int64_t const id = 1;
    floats.read({4, epoch, 0}, std::span(&id, 1), in.data(), &target);
    CHECK(target == Approx(in[0]).margin(1e-6));
  }
}

TEST_CASE("tokens are masked anew in each epoch, and in one way in evaluation", "[data]") {
  struct sentences {
    [[nodiscard]] std::int64_t size() const noexcept { return 4; }
    [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
    [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
    [[nodiscard]] shape input_shape() const { return {1000}; }
    [[nodiscard]] shape target_shape() const { return {1000}; }
    void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
      for (std::size_t i = 0; i < ids.size() * 1000; ++i) {
        static_cast<std::int32_t*>(inputs)[i] = i % 1000 == 0 ? 1 : 10 + static_cast<std::int32_t>(i % 40);
        static_cast<std::int32_t*>(targets)[i] = 7;
      }
    }
  };
  auto const made = data::augment(sentences{}, data::mask_tokens{.mask = 3, .vocabulary = 50, .kept = {0, 1, 2}});
  std::vector<std::int32_t> in(1000), out(1000), again(1000), before(1000);
  std::int64_t const id = 2;
  std::vector<std::int32_t> original(1000), unused(1000);
  sentences{}.read(std::span(&id, 1), original.data(), unused.data());
  int chosen = 0, masked = 0, other = 0;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    made.read({1, epoch, 0}, std::span(&id, 1), in.data(), out.data());
    CHECK(in != before);
    before = in;
    CHECK((in[0] == 1 && out[0] == -1));
    for (std::size_t i = 1; i < 1000; ++i) {
      if (out[i] == -1) {
        REQUIRE(in[i] == original[i]);
        continue;
      }
      REQUIRE((out[i] == original[i] && in[i] >= 3 && in[i] < 50));
      ++chosen;
      masked += in[i] == 3 ? 1 : 0;
      other += in[i] != 3 && in[i] != original[i] ? 1 : 0;
    }
  }
  CHECK(chosen / 19980.0 == Approx(0.15).margin(0.01));
  CHECK(masked / static_cast<double>(chosen) == Approx(0.8).margin(0.03));
  CHECK(other / static_cast<double>(chosen) == Approx(0.1).margin(0.02));
  made.read(std::span(&id, 1), in.data(), out.data());
  made.read(std::span(&id, 1), again.data(), unused.data());
  CHECK((in == again && out == unused && in != original));
  auto const said = [](data::mask_tokens const& step) {
    return sentence_of<config_error>([&] { static_cast<void>(data::augment(sentences{}, step)); });
  };
  CHECK(contains(said({.mask = 3, .vocabulary = 3}), "trireme::data::mask_tokens: .mask = 3 is no token below"));
  CHECK(contains(said({.mask = 0, .vocabulary = 3, .rate = 0}), ".rate = 0"));
  CHECK(contains(said({.mask = 0, .vocabulary = 2, .kept = {0, 1, 1}}), "all tokens are in .kept"));
}

TEST_CASE("what cannot be augmented is refused in a sentence", "[data]") {
  auto const said = [](auto const& source, auto... steps) {
    return sentence_of<config_error>([&] { static_cast<void>(data::augment(source, steps...)); });
  };
  pictures const some;
  CHECK(contains(said(some, data::crop{.height = 5}), "cannot cut 5 x 6 out of pictures of 4 x 6"));
  CHECK(contains(said(some, data::crop{.padding = -1}), "with .padding = -1"));
  CHECK(contains(said(some, data::flip{.chance = 2}), "trireme::data::flip: .chance = 2"));
  CHECK(contains(said(some, data::resize_crop{.area = {0, 1}}), "trireme::data::resize_crop: .area = {0, 1}"));
  CHECK(contains(said(some, data::erase{.ratio = {2, 1}}), "trireme::data::erase: .ratio = {2, 1}"));
  CHECK(contains(said(some, data::colour{.contrast = -1}), "trireme::data::colour: a change by -1"));
  CHECK(contains(said(some, data::mixup{.alpha = 0}), "trireme::data::mixup: .alpha = 0"));
  CHECK(contains(said(some, data::cutmix{.alpha = -1}), "trireme::data::cutmix: .alpha = -1"));
  CHECK(contains(said(some, [](data::draws&, std::span<std::uint8_t>, std::span<std::int32_t>) {}),
                 "trireme::data::augment: a step takes inputs of U8, but the inputs of the source are F32"));
  struct bytes : pictures {
    [[nodiscard]] dtype input_type() const noexcept { return dtype::u8; }
  };
  CHECK(contains(said(bytes{}, data::flip{}), "a step takes pictures of F32, but the inputs of the source are U8"));
  struct flat : pictures {
    [[nodiscard]] shape input_shape() const { return {24}; }
  };
  CHECK(contains(said(flat{}, data::flip{}), "samples of shape (24) are not pictures"));
  struct boxes : pictures {
    [[nodiscard]] shape target_shape() const { return {4}; }
  };
  CHECK(contains(said(boxes{}, data::mixup{}), "targets of I32 (4) cannot be mixed"));
}
