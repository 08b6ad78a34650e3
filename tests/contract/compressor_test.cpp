#include "trireme/contract/compressor.hpp"

#include "../catch.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;
using gradients = tensor_view<float>;
using bytes = tensor_view<std::byte>;

// The smallest summable and gatherable compressors, and models that each lack one requirement.
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

// The smallest collective compressor, and models that each lack one requirement.
struct collective {
  template <class, class Comm>
  struct instance {
    instance(collective const&, bucket_form const&, Comm&) {}
    void begin(gradients, double) {}
    bool test() { return true; }
    bool turn() { return true; }
    void commit() {}
    std::int64_t bytes() const { return 0; }
    instance(instance const&) = delete;
  };
};
struct does_not_see_tensors {
  template <class Env, class Comm>
  struct instance : collective::instance<Env, Comm> {
    instance(does_not_see_tensors const&, std::int64_t, Comm& comm)
        : collective::instance<Env, Comm>({}, bucket_form{}, comm) {}
  };
};
struct begins_without_scale {
  template <class, class Comm>
  struct instance {
    instance(begins_without_scale const&, bucket_form const&, Comm&);
    void begin(gradients);
    bool test();
    bool turn();
    void commit();
    std::int64_t bytes() const;
  };
};
struct does_not_turn {
  template <class, class Comm>
  struct instance {
    instance(does_not_turn const&, bucket_form const&, Comm&);
    void begin(gradients, double);
    bool test();
    void commit();
    std::int64_t bytes() const;
  };
};
struct does_not_commit {
  template <class, class Comm>
  struct instance {
    instance(does_not_commit const&, bucket_form const&, Comm&);
    void begin(gradients, double);
    bool test();
    bool turn();
    std::int64_t bytes() const;
  };
};
struct sees_tensors {
  template <class Env>
  struct instance : summed::instance<Env> {
    instance(sees_tensors const&, bucket_form const&) : summed::instance<Env>({}, 0) {}
  };
};
using world = comm::self_world;

static_assert(summable_compressor<summed, env> && !gatherable_compressor<summed, env>);
static_assert(gatherable_compressor<collected, env> && !summable_compressor<collected, env>);
static_assert(!has_compressor_state<without_instance, env> && !compressor<without_instance, env, world>);
static_assert(!has_compressor_state<without_elements, env> && !compressor<without_elements, env, world>);
static_assert(has_compressor_state<sums_but_cannot_encode, env> && !compressor<sums_but_cannot_encode, env, world>);
static_assert(!compressor<sums_but_cannot_decode, env, world>);
static_assert(!compressor<does_not_say_how_long, env, world>);
static_assert(!compressor<collects_but_cannot_encode, env, world>);
static_assert(!compressor<collects_but_cannot_add, env, world>);

using compression::cast;
using compression::error_feedback;
using compression::none;
using compression::top_k;
static_assert(summable_compressor<none, env> && lossless_identity<none>);
static_assert(summable_compressor<cast<bf16>, env> && !lossless_identity<cast<bf16>>);
static_assert(gatherable_compressor<top_k, env>);
static_assert(summable_compressor<error_feedback<cast<bf16>>, env>);
static_assert(gatherable_compressor<error_feedback<top_k>, environment<precision::bf16, phantom>>);
static_assert(has_commit<compressor_state<error_feedback<top_k>, env>> && !has_commit<compressor_state<top_k, env>>);
static_assert(summable_compressor<sees_tensors, env> && compressor<sees_tensors, env, world>);
static_assert(compressor<collective, env, world> && !has_compressor_state<collective, env>);
static_assert(!has_collective_state<summed, env, world> && !has_collective_state<without_instance, env, world>);
static_assert(!compressor<does_not_see_tensors, env, world>);
static_assert(!compressor<begins_without_scale, env, world>);
static_assert(!compressor<does_not_turn, env, world>);
static_assert(!compressor<does_not_commit, env, world>);

}  // namespace

TEST_CASE("the compressor concepts accept their archetypes and refuse one broken model a requirement", "[contract]") {
  SUCCEED("checked by the compiler");
}
