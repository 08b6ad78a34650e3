#include "trireme/contract/compressor.hpp"

#include "../catch.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;
using gradients = tensor_view<float>;
using bytes = tensor_view<std::byte>;

// The least that may be summed, the least that may be collected, and models that each lack one thing.
struct summed {
  template <class>
  struct instance {
    using wire = float;
    instance(summed const&, std::int64_t) {}
    void encode(gradients, tensor_view<wire>, std::int64_t) {}
    void decode(tensor_view<wire>, gradients) {}
    instance(instance const&) = delete;
  };
};
struct collected {
  template <class>
  struct instance {
    instance(collected const&, std::int64_t) {}
    std::int64_t payload_bytes(std::int64_t n) { return n; }
    void encode(gradients, bytes, std::int64_t) {}
    void decode(bytes, gradients, bool) {}
    instance(instance const&) = delete;
  };
};
struct without_instance {};
struct without_elements {
  template <class>
  struct instance : summed::instance<env> {
    explicit instance(without_elements const&) : summed::instance<env>({}, 0) {}
  };
};
struct sums_but_cannot_encode {
  template <class>
  struct instance {
    using wire = float;
    instance(sums_but_cannot_encode const&, std::int64_t);
    void decode(tensor_view<wire>, gradients);
  };
};
struct sums_but_cannot_decode {
  template <class>
  struct instance {
    using wire = float;
    instance(sums_but_cannot_decode const&, std::int64_t);
    void encode(gradients, tensor_view<wire>, std::int64_t);
  };
};
struct does_not_say_how_long {
  template <class>
  struct instance {
    instance(does_not_say_how_long const&, std::int64_t);
    void encode(gradients, bytes, std::int64_t);
    void decode(bytes, gradients, bool);
  };
};
struct collects_but_cannot_encode {
  template <class>
  struct instance {
    instance(collects_but_cannot_encode const&, std::int64_t);
    std::int64_t payload_bytes(std::int64_t);
    void decode(bytes, gradients, bool);
  };
};
struct collects_but_cannot_add {
  template <class>
  struct instance {
    instance(collects_but_cannot_add const&, std::int64_t);
    std::int64_t payload_bytes(std::int64_t);
    void encode(gradients, bytes, std::int64_t);
    void decode(bytes, gradients);
  };
};

static_assert(summable_compressor<summed, env> && !gatherable_compressor<summed, env>);
static_assert(gatherable_compressor<collected, env> && !summable_compressor<collected, env>);
static_assert(!has_compressor_state<without_instance, env> && !compressor<without_instance, env>);
static_assert(!has_compressor_state<without_elements, env> && !compressor<without_elements, env>);
static_assert(has_compressor_state<sums_but_cannot_encode, env> && !compressor<sums_but_cannot_encode, env>);
static_assert(!compressor<sums_but_cannot_decode, env>);
static_assert(!compressor<does_not_say_how_long, env>);
static_assert(!compressor<collects_but_cannot_encode, env>);
static_assert(!compressor<collects_but_cannot_add, env>);

using compression::cast;
using compression::error_feedback;
using compression::none;
using compression::top_k;
static_assert(summable_compressor<none, env> && lossless_identity<none>);
static_assert(summable_compressor<cast<bf16>, env> && !lossless_identity<cast<bf16>>);
static_assert(gatherable_compressor<top_k, env>);
static_assert(summable_compressor<error_feedback<cast<bf16>>, env>);
static_assert(gatherable_compressor<error_feedback<top_k>, environment<precision::bf16, phantom>>);
static_assert(has_residual<compressor_state<error_feedback<top_k>, env>> &&
              !has_residual<compressor_state<top_k, env>>);

}  // namespace

TEST_CASE("the compressor concepts accept their archetypes and refuse one broken model a requirement", "[contract]") {
  SUCCEED("checked by the compiler");
}
