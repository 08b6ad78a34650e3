#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "trireme/compression/one_of.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/parallel/detail/transport.hpp"

namespace trireme::parallel::detail {

/// The transport of a compressor that is chosen at run time, with one virtual call for each function.
template <class Env, class Comm, class Strategy, class OneOf>
class chosen_transport {
  using view = tensor_view<typename Env::gradient, typename Env::space>;
  using visitor = std::function<void(std::string const&, state_location const&, view)>;

 public:
  chosen_transport(OneOf const& description, bucket_form const& form, Comm& world)
      : chosen_(std::visit([&](auto const& chosen) { return made(chosen, form, world); }, description.chosen)) {}

  void at_gradient(encoded_gradient const& which) { chosen_->at_gradient(which); }
  void begin(view bucket, double scale) { chosen_->begin(bucket, scale); }
  [[nodiscard]] bool test() { return chosen_->test(); }
  bool turn() { return chosen_->turn(); }
  void commit() { chosen_->commit(); }
  void visit_state(state_scope scope, visitor const& f) { chosen_->visit_state(scope, f); }
  [[nodiscard]] std::int64_t bytes() const { return chosen_->bytes(); }
  [[nodiscard]] bool takes_rounds() const { return chosen_->takes_rounds(); }

 private:
  struct face {
    face() = default;
    face(face const&) = delete;
    face& operator=(face const&) = delete;
    virtual ~face() = default;
    virtual void at_gradient(encoded_gradient const& which) = 0;
    virtual void begin(view bucket, double scale) = 0;
    virtual bool test() = 0;
    virtual bool turn() = 0;
    virtual void commit() = 0;
    virtual void visit_state(state_scope scope, visitor const& f) = 0;
    [[nodiscard]] virtual std::int64_t bytes() const = 0;
    [[nodiscard]] virtual bool takes_rounds() const = 0;
  };
  template <class Transport>
  struct holder final : face {
    template <class Compressor>
    holder(Compressor const& compressor, bucket_form const& form, Comm& world) : held(compressor, form, world) {}
    void at_gradient(encoded_gradient const& which) override {
      if constexpr (has_at_gradient<Transport>) held.at_gradient(which);
    }
    void begin(view bucket, double scale) override { held.begin(bucket, scale); }
    bool test() override { return held.test(); }
    bool turn() override { return held.turn(); }
    void commit() override { held.commit(); }
    void visit_state(state_scope scope, visitor const& f) override {
      if constexpr (keeps_state<Transport>) held.visit_state(scope, f);
    }
    [[nodiscard]] std::int64_t bytes() const override { return held.bytes(); }
    [[nodiscard]] bool takes_rounds() const override { return detail::takes_rounds(held); }
    Transport held;
  };
  template <class Compressor>
  static std::unique_ptr<face> made(Compressor const& compressor, bucket_form const& form, Comm& world) {
    return std::unique_ptr<face>(new holder<transport<Env, Comm, Strategy, Compressor>>(compressor, form, world));
  }

  std::unique_ptr<face> chosen_;
};

template <class Env, class Comm, class Strategy, class... Compressors>
struct transport_of<Env, Comm, Strategy, compression::one_of<Compressors...>> {
  using type = chosen_transport<Env, Comm, Strategy, compression::one_of<Compressors...>>;
};

template <class... Compressors, class Env, class Comm>
inline constexpr bool is_given_once<compression::one_of<Compressors...>, Env, Comm> =
    (is_given_once<Compressors, Env, Comm> || ...);
template <class... Compressors, class Env, class Comm>
inline constexpr bool takes_whole_tensors<compression::one_of<Compressors...>, Env, Comm> =
    (takes_whole_tensors<Compressors, Env, Comm> || ...);

}  // namespace trireme::parallel::detail
