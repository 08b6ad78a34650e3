#include "trireme/formats/tensorboard.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "scratch.hpp"

namespace {

namespace tb = trireme::formats::tensorboard;
using trireme::format_error;

auto bytes_of(std::string const& text) { return std::as_bytes(std::span(text)); }

tb::writer_options at_time(double seconds) {
  tb::writer_options options;
  options.clock = [seconds] { return seconds; };
  return options;
}

/// Three events after their file version, as one file.
std::string small_file(scratch const& dir) {
  auto const path = dir / "small";
  tb::writer out(path, at_time(1.5));
  out.add(1, "loss", 2.5);
  out.add(2, {{"loss", 2.25F}, {"rate", 0.001F}});
  out.add(300, "a long tag \xc3\xa9", -1);
  return trireme::formats::read_text(path);
}

class full_device : public trireme::formats::file_system {
 public:
  std::size_t left = 0;
  ::ssize_t write(int descriptor, void const* from, std::size_t bytes) override {
    if (left == 0) {
      errno = ENOSPC;
      return -1;
    }
    auto const part = std::min(left, bytes);
    left -= part;
    return file_system::write(descriptor, from, part);
  }
};

}  // namespace

TEST_CASE("tensorboard events read back as written", "[formats][tensorboard]") {
  scratch dir;
  static_cast<void>(small_file(dir));
  auto const events = tb::read_events(dir / "small");
  REQUIRE(events.size() == 4);
  CHECK(events[0] == tb::event{1.5, 0, "brain.Event:2", {}, false});
  CHECK(events[1] == tb::event{1.5, 1, "", {{"loss", 2.5F}}, false});
  CHECK(events[2] == tb::event{1.5, 2, "", {{"loss", 2.25F}, {"rate", 0.001F}}, false});
  CHECK(events[3].step == 300);
}

TEST_CASE("a tensorboard event keeps every step and value", "[formats][tensorboard]") {
  for (std::int64_t const step : {std::int64_t{0}, std::int64_t{127}, std::int64_t{128}, std::int64_t{1} << 40,
                                  std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    tb::event const what{0.25, step, "", {{"", std::numeric_limits<float>::infinity()}, {"b", 0}}, true};
    CHECK(tb::decode(bytes_of(tb::encode(what)), "x") == what);
  }
}

TEST_CASE("tensorboard records have the framing of TFRecord", "[formats][tensorboard]") {
  auto const record = tb::frame("abc");
  REQUIRE(record.size() == 19);
  CHECK(record.substr(0, 8) == std::string("\x03\0\0\0\0\0\0\0", 8));
  CHECK(record.substr(12, 3) == "abc");
  CHECK(tb::split_records(bytes_of(record)).records.size() == 1);
}

TEST_CASE("tensorboard events are flushed when asked for", "[formats][tensorboard]") {
  scratch dir;
  auto options = at_time(1);
  options.flush_every = 2;
  tb::writer out(dir / "a", options);
  out.add(1, "x", 1);
  CHECK(tb::read_events(dir / "a").size() == 1);
  out.add(2, "x", 1);
  CHECK(tb::read_events(dir / "a").size() == 3);
  out.add(3, "x", 1);
  out.flush();
  CHECK(tb::read_events(dir / "a").size() == 4);
}

TEST_CASE("an impossible number of events is refused before a file is made", "[formats][tensorboard]") {
  scratch dir;
  auto options = at_time(1);
  options.flush_every = -1;
  CHECK_THROWS_WITH(tb::writer(dir / "a", options),
                    "trireme::formats::tensorboard: .flush_every is -1; it must be at least 0");
  CHECK(dir.entries() == 0);
}

TEST_CASE("a tensorboard file cut at any byte is read up to there and can be continued", "[formats][tensorboard]") {
  scratch dir;
  auto const whole = small_file(dir);
  auto const ends = [&] {
    std::vector<std::size_t> out;
    for (auto const record : tb::split_records(bytes_of(whole)).records) {
      out.push_back(static_cast<std::size_t>(record.data() - bytes_of(whole).data()) + record.size() + 4);
    }
    return out;
  }();
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    auto const before =
        static_cast<std::size_t>(std::count_if(ends.begin(), ends.end(), [&](auto e) { return e <= length; }));
    // Truncated there, or with the rest not written although the length of the file has already changed.
    for (auto const& torn : {whole.substr(0, length), whole.substr(0, length) + std::string(100, '\0')}) {
      auto const list = tb::split_records(bytes_of(torn));
      REQUIRE(list.records.size() == before);
      REQUIRE(list.tail != tb::tail::corrupt);
      trireme::formats::atomic_write(dir / "a", torn);
      { tb::writer(dir / "a", at_time(9)).add(7, "x", 1); }
      auto const events = tb::read_events(dir / "a");
      REQUIRE(events.size() == std::max<std::size_t>(before, 1) + 1);
      REQUIRE(events.front().file_version == "brain.Event:2");
      REQUIRE(events.back().step == 7);
    }
  }
}

TEST_CASE("a tensorboard file with any byte changed gives no wrong event", "[formats][tensorboard]") {
  scratch dir;
  auto const whole = small_file(dir);
  auto const original = tb::parse_events(bytes_of(whole), "x");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      auto changed = whole;
      changed[at] = static_cast<char>(byte);
      if (changed == whole) continue;
      auto const list = tb::split_records(bytes_of(changed));
      REQUIRE(list.tail != tb::tail::whole);
      REQUIRE(list.records.size() < original.size());
      try {
        auto const events = tb::parse_events(bytes_of(changed), "x");
        for (std::size_t i = 0; i < events.size(); ++i) REQUIRE(events[i] == original[i]);
      } catch (format_error const& error) {
        REQUIRE(error.offset() <= at);
      }
    }
  }
}

TEST_CASE("a tensorboard message with any byte changed never crashes the reader", "[formats][tensorboard]") {
  auto const whole = tb::encode({1, 2, "v", {{"loss", 1.0F}, {"x", 2.0F}}, true});
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      auto changed = whole;
      changed[at] = static_cast<char>(byte);
      for (auto const& content : {changed, changed.substr(0, at)}) {
        try {
          static_cast<void>(tb::decode(bytes_of(content), "x"));
        } catch (format_error const& error) {
          REQUIRE(error.offset() <= content.size());
        }
      }
    }
  }
}

TEST_CASE("impossible tensorboard lengths are refused without allocating memory for them", "[formats][tensorboard]") {
  std::string huge(8, '\xff');
  auto const crc = tb::frame(huge).substr(20, 4);  // the checksum of these eight bytes
  auto const list = tb::split_records(bytes_of(huge + crc + "abc"));
  CHECK(list.records.empty());
  CHECK(list.tail == tb::tail::torn);
  CHECK_THROWS_AS(tb::decode(bytes_of("\x2a\xff\xff\xff\xff\x0f"), "x"), format_error);
  CHECK_THROWS_AS(tb::decode(bytes_of(std::string(11, '\xff')), "x"), format_error);
}

TEST_CASE("a tensorboard file that is corrupt in the middle is not continued", "[formats][tensorboard]") {
  scratch dir;
  auto changed = small_file(dir);
  changed[12] ^= 1;
  trireme::formats::atomic_write(dir / "a", changed);
  CHECK_THROWS_AS(tb::writer(dir / "a"), format_error);
  CHECK_THROWS_AS(tb::read_events(dir / "a"), format_error);
  CHECK(trireme::formats::read_text(dir / "a") == changed);
}

TEST_CASE("a tensorboard file stays whole when the device is full", "[formats][tensorboard]") {
  for (std::size_t room = 0; room < 120; ++room) {
    scratch dir;
    full_device device;
    device.left = 10'000;
    auto options = at_time(1);
    options.files = &device;
    tb::writer out(dir / "a", options);
    device.left = room;
    bool failed = false;
    for (int step = 1; step < 6; ++step) {
      try {
        out.add(step, "loss", 1);
      } catch (trireme::io_error const&) {
        failed = true;
        device.left = 10'000;
      }
    }
    REQUIRE(failed);
    REQUIRE(tb::read_events(dir / "a").size() == 5);
  }
}

TEST_CASE("tensorboard event file names differ", "[formats][tensorboard]") {
  auto const name = tb::event_file_name();
  CHECK(name.find("events.out.tfevents.") == 0);
  CHECK(name != tb::event_file_name());
}
