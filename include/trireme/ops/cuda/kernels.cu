// The bodies of the functions of ops/cuda/launch.hpp, compiled by the nvcc of the user as a part of trireme::cuda.
#include "trireme/ops/cuda/launch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trireme/ops/cuda/combine.cuh"
#include "trireme/ops/cuda/elements.cuh"
#include "trireme/ops/cuda/reductions.cuh"
#include "trireme/ops/cuda/types.cuh"
#include "trireme/ops/cuda/updates.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

namespace {

/// Calls f(Bits{}) with the unsigned integer of so many bytes.
template <class F>
int for_bits(std::size_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    case 8:
      return f(std::uint64_t{});
    default:
      return device::launch_refused;
  }
}
/// Calls f(M{}, G{}, P{}) with the types of an update: values of float with terms and outputs of float or of 16 bits,
/// or all of double.
template <class F>
int for_update(update_call const& call, F&& f) {
  if (call.value_type == dtype::f64) {
    if (call.gradient_type != dtype::f64 || call.output_type != dtype::f64) return device::launch_refused;
    return f(double{}, double{}, double{});
  }
  if (call.value_type != dtype::f32) return device::launch_refused;
  return device::for_floats(call.gradient_type, [&]<class G>(G g) {
    return device::for_floats(call.output_type, [&]<class P>(P p) {
      if constexpr (std::is_same_v<G, double> || std::is_same_v<P, double>)
        return device::launch_refused;
      else
        return f(float{}, g, p);
    });
  });
}

template <int Width, class... T>
device::pack_start start_of(T const*... tensors) {
  device::pack_start start;
  (start.of<Width>(tensors), ...);
  return start;
}
template <class T>
T* as(void* address) {
  return static_cast<T*>(address);
}
template <class T>
T const* as(void const* address) {
  return static_cast<T const*>(address);
}

template <class T>
device::dropout_rule<T> rule_of(dropout_call const& call) {
  device::dropout_rule<T> rule;
  rule.key = call.key;
  rule.site = call.site;
  rule.threshold = static_cast<std::uint32_t>(std::lround(call.probability * 0x1p24));
  rule.kept = static_cast<device::real_for<T>>(1 / (1 - call.probability));
  rule.samples = call.samples;
  return rule;
}

int tensors_of(update_call const& call, device::update_tensors& all) {
  if (call.term_count < 0 || call.term_count > most_gradient_terms || call.output_count < 0 ||
      call.output_count > most_update_outputs)
    return device::launch_refused;
  for (int t = 0; t < call.term_count; ++t) all.terms[t] = call.terms[t];
  for (int o = 0; o < call.output_count; ++o) all.outputs[o] = call.outputs[o];
  all.term_count = call.term_count;
  all.output_count = call.output_count;
  all.scale = call.scale;
  return device::launch_succeeded;
}

}  // namespace

int fill(handle stream, void* y, std::size_t bytes_of_element, std::uint64_t bits, std::int64_t n) {
  return for_bits(bytes_of_element, [&]<class Bits>(Bits) {
    device::filling<Bits> const work{as<Bits>(y), static_cast<Bits>(bits)};
    return device::launch_elements("fill", work, start_of<work.width>(work.y), n, stream);
  });
}
int copy(handle stream, dtype to, void* y, dtype from, void const* x, std::int64_t n) {
  return device::for_floats(to, [&]<class T>(T) {
    return device::for_floats(from, [&]<class U>(U) {
      device::copying<T, U> const work{as<T>(y), as<U>(x)};
      return device::launch_elements("copy", work, start_of<work.width>(work.y, work.x), n, stream);
    });
  });
}
int copy_columns(handle stream, dtype to, void* y, std::int64_t y_row, dtype from, void const* x, std::int64_t x_row,
                 std::int64_t rows, std::int64_t columns) {
  return copy_blocks(stream, to, y, {0, 0, y_row}, from, x, {0, 0, x_row}, {1, rows, columns});
}
int copy_blocks(handle stream, dtype to_type, void* y, block_places const& to, dtype from_type, void const* x,
                block_places const& from, block_extents const& extents) {
  if (extents.blocks == 0 || extents.rows == 0 || extents.columns == 0) return device::launch_succeeded;
  auto const copy_as = [&]<class T, class U>(T, U) {
    constexpr int wide = device::pack_width<T, U>;
    auto const in_packs = [](auto const* address, block_places const& at) {
      auto const* const first = address + at.first;
      using element = std::remove_cvref_t<decltype(*address)>;
      return reinterpret_cast<std::uintptr_t>(first) % sizeof(device::pack<element, wide>) == 0 &&
             at.block % wide == 0 && at.row % wide == 0;
    };
    auto const launch = [&]<int Together>(std::integral_constant<int, Together>) {
      device::copying_blocks<T, U, Together> const work{as<T>(y), as<U>(x),     to,
                                                        from,     extents.rows, extents.columns / Together};
      return device::launch_elements("copy_blocks", work, {}, extents.blocks * extents.rows * work.packs, stream);
    };
    if (extents.columns % wide == 0 && in_packs(as<T const>(y), to) && in_packs(as<U>(x), from))
      return launch(std::integral_constant<int, wide>{});
    return launch(std::integral_constant<int, 1>{});
  };
  if (to_type == from_type)
    return for_bits(size_of(to_type), [&]<class Bits>(Bits bits) { return copy_as(bits, bits); });
  return device::for_floats(to_type, [&]<class T>(T to_number) {
    return device::for_floats(from_type, [&]<class U>(U from_number) { return copy_as(to_number, from_number); });
  });
}
int accumulate(handle stream, dtype to, void* y, dtype from, void const* x, std::int64_t n, double weight) {
  return device::for_floats(to, [&]<class T>(T) {
    return device::for_floats(from, [&]<class U>(U) {
      using work_type = device::accumulating<T, U>;
      work_type const work{as<T>(y), as<U>(x), static_cast<typename work_type::real>(weight)};
      return device::launch_elements("accumulate", work, start_of<work.width>(work.y, work.x), n, stream);
    });
  });
}
int scale(handle stream, dtype of, void* y, std::int64_t n, double factor) {
  return device::for_floats(of, [&]<class T>(T) {
    using work_type = device::scaling<T>;
    work_type const work{as<T>(y), static_cast<typename work_type::real>(factor)};
    return device::launch_elements("scale", work, start_of<work.width>(work.y), n, stream);
  });
}
int elementwise_product(handle stream, dtype of, void* y, void const* a, void const* b, std::int64_t n) {
  return device::for_floats(of, [&]<class T>(T) {
    device::multiplying<T> const work{as<T>(y), as<T>(a), as<T>(b)};
    return device::launch_elements("elementwise_product", work, start_of<work.width>(work.y, work.a, work.b), n,
                                   stream);
  });
}
int activate(handle stream, dtype of, void* y, void const* x, std::int64_t n, activation act) {
  return device::for_floats(of, [&]<class T>(T) {
    device::activating<T> const work{as<T>(y), as<T>(x), act};
    return device::launch_elements("activate", work, start_of<work.width>(work.y, work.x), n, stream);
  });
}
int activate_backward(handle stream, dtype of, void* dx, void const* dy, void const* x, std::int64_t n,
                      activation act) {
  return device::for_floats(of, [&]<class T>(T) {
    device::activating_backward<T> const work{as<T>(dx), as<T>(dy), as<T>(x), act};
    return device::launch_elements("activate_backward", work, start_of<work.width>(work.dx, work.dy, work.x), n,
                                   stream);
  });
}
int dropout(handle stream, dropout_call const& call, void* y, std::int64_t begin, std::int64_t n, std::int64_t each) {
  if (n == 0) return device::launch_succeeded;
  return device::for_floats(call.of, [&]<class T>(T) {
    auto const launch = [&]<bool Packed>(std::bool_constant<Packed>) {
      using work_type = device::dropping<T, Packed>;
      constexpr std::int64_t together = work_type::together;
      auto const tasks_of_sample = (each + together - 1) / together;
      auto const task_of = [&](std::int64_t at) { return at / each * tasks_of_sample + at % each / together; };
      work_type const work{as<T>(y), begin, begin + n, each, tasks_of_sample, task_of(begin), rule_of<T>(call)};
      return device::launch_elements("dropout", work, {}, task_of(begin + n - 1) + 1 - work.first_task_here, stream);
    };
    constexpr int together = device::dropping<T, true>::together;
    bool const packed = each % together == 0 && begin % together == 0 && n % together == 0 &&
                        reinterpret_cast<std::uintptr_t>(y) % sizeof(device::pack<T, together>) == 0;
    return packed ? launch(std::true_type{}) : launch(std::false_type{});
  });
}
int dropout_part(handle stream, dropout_call const& call, void* y, std::int64_t rows, dropout_cut const& cut) {
  if (rows == 0 || cut.columns == 0) return device::launch_succeeded;
  return device::for_floats(call.of, [&]<class T>(T) {
    auto const tasks_of_matrix = (cut.columns + 3) / 4 + 1;
    device::dropping_part<T> const work{as<T>(y), cut, tasks_of_matrix, rule_of<T>(call)};
    return device::launch_elements("dropout_part", work, {}, rows * cut.fused * tasks_of_matrix, stream);
  });
}

int hash(handle stream, std::size_t bytes_of_element, void const* x, std::int64_t n, std::uint64_t name,
         std::uint64_t first, unsigned long long* total) {
  if (n == 0) return device::launch_succeeded;
  return for_bits(bytes_of_element, [&]<class Bits>(Bits) {
    return device::run("hash", &device::hash_elements<Bits>, device::blocks_for(n), device::block_threads, stream,
                       as<Bits>(x), n, name, first, total);
  });
}
int find_non_finite(handle stream, dtype of, void const* x, std::int64_t n, unsigned* flag) {
  if (n == 0) return device::launch_succeeded;
  auto const look = [&]<class Bits>(Bits exponent) {
    return device::run("finite", &device::find_non_finite<Bits>, device::blocks_for(n), device::block_threads, stream,
                       as<Bits>(x), n, exponent, flag);
  };
  switch (of) {
    case dtype::f64:
      return look(std::uint64_t{0x7ff0'0000'0000'0000ULL});
    case dtype::f32:
      return look(std::uint32_t{0x7f80'0000U});
    case dtype::bf16:
      return look(std::uint16_t{0x7f80U});
    case dtype::f16:
      return look(std::uint16_t{0x7c00U});
    default:
      return device::launch_refused;
  }
}
int sum_of_squares(handle stream, dtype of, void const* x, std::int64_t n, std::int64_t* state) {
  squared_tensor const one{x, n};
  return squares_together(stream, of, &one, 1, state);
}
int squares_together(handle stream, dtype of, squared_tensor const* all, std::size_t count, std::int64_t* state) {
  auto const launch = [&]<class T>(T) {
    device::squared_tensors<T> some;  // unset entries are not read
    int code = device::launch_succeeded;
    some.count = 0;
    auto const queue_some = [&] {
      if (some.count == 0 || code != device::launch_succeeded) return;
      auto const blocks = some.end[some.count - 1];
      code = device::run("sum_of_squares", &device::sum_squares<T>, device::blocks_for(blocks * 16),
                         device::block_threads, stream, some, reinterpret_cast<unsigned long long*>(state));
      some.count = 0;
    };
    for (std::size_t i = 0; i < count; ++i) {
      if (all[i].n == 0) continue;
      auto const t = some.count++;
      some.x[t] = as<T>(all[i].x);
      some.n[t] = all[i].n;
      some.end[t] = (t == 0 ? 0 : some.end[t - 1]) + (all[i].n + 1023) / 1024;
      if (some.count == some.most) queue_some();
    }
    queue_some();
    return code;
  };
  if (of == dtype::f32) return launch(float{});
  if (of == dtype::f64) return launch(double{});
  return device::launch_refused;
}

int combine(handle stream, dtype of, combination op, void* const* outputs, int output_count, void const* const* terms,
            int term_count, std::int64_t n, int divisor) {
  return device::launch_combination(of, op, outputs, output_count, terms, term_count, n, divisor, stream);
}

int adamw(handle stream, update_call const& call, void* first, void* second, adamw_numbers const& how) {
  if (call.n == 0) return device::launch_succeeded;
  device::update_tensors all;  // unset entries are not read
  if (auto const code = tensors_of(call, all); code != device::launch_succeeded) return code;
  return for_update(call, [&]<class M, class G, class P>(M, G, P) {
    return device::run("adamw", &device::adamw<M, G, P>, device::blocks_for(call.n), device::block_threads, stream,
                       as<M>(call.value), as<M>(first), as<M>(second), call.n, all,
                       detail::adamw_constants<M>::of(how));
  });
}
int sgd(handle stream, update_call const& call, void* velocity, sgd_numbers const& how) {
  if (call.n == 0) return device::launch_succeeded;
  device::update_tensors all;  // unset entries are not read
  if (auto const code = tensors_of(call, all); code != device::launch_succeeded) return code;
  return for_update(call, [&]<class M, class G, class P>(M, G, P) {
    return device::run("sgd", &device::sgd<M, G, P>, device::blocks_for(call.n), device::block_threads, stream,
                       as<M>(call.value), as<M>(velocity), call.n, all, detail::sgd_constants<M>::of(how));
  });
}

int adamw_together(handle stream, dtype value_type, dtype gradient_type, dtype output_type, adamw_tensor const* all,
                   std::size_t count) {
  update_call types;
  types.value_type = value_type;
  types.gradient_type = gradient_type;
  types.output_type = output_type;
  return for_update(types, [&]<class M, class G, class P>(M, G, P) {
    device::adamw_tensors<M, G, P> some;  // unset entries are not read
    static_assert(sizeof some <= 4000, "the arguments of a kernel");
    int code = device::launch_succeeded;
    bool has[2] = {false, false};  // without and with decay
    auto const begin = [&] {
      some.count = 0;
      some.decays = some.aligned = 0;
      has[0] = has[1] = false;
    };
    auto const queue_some = [&] {
      if (some.count == 0 || code != device::launch_succeeded) return;
      auto const pieces = some.end[some.count - 1];
      for (int k = 0; k < 2; ++k)
        if (!has[k]) some.constants[k] = some.constants[1 - k];
      code = device::run("adamw", &device::adamw_of_tensors<M, G, P>, std::min(pieces, 4 * device::most_blocks()),
                         device::block_threads, stream, some);
      begin();
    };
    begin();
    for (std::size_t i = 0; i < count; ++i) {
      auto const& each = all[i];
      if (each.n == 0) continue;
      auto const constants = detail::adamw_constants<M>::of(each.how);
      auto const scale = static_cast<M>(each.scale);
      int const which = each.how.weight_decay > 0 ? 1 : 0;
      bool const fits = (!has[which] || std::memcmp(&some.constants[which], &constants, sizeof constants) == 0) &&
                        (some.count == 0 || std::memcmp(&some.scale, &scale, sizeof scale) == 0);
      if (!fits || some.count == some.most) queue_some();
      auto const t = some.count++;
      some.value[t] = as<M>(each.value);
      some.first[t] = as<M>(each.first);
      some.second[t] = as<M>(each.second);
      some.gradient[t] = as<G>(each.gradient);
      some.output[t] = as<P>(each.output);
      some.n[t] = each.n;
      some.end[t] = (t == 0 ? 0 : some.end[t - 1]) + (each.n + some.piece - 1) / some.piece;
      some.constants[which] = constants;
      has[which] = true;
      some.scale = scale;
      auto const bit = std::uint64_t{1} << t;
      if (which == 1) some.decays |= bit;
      auto const off = [](auto const* address) {
        return reinterpret_cast<std::uintptr_t>(address) % (4 * sizeof *address);
      };
      if ((off(some.value[t]) | off(some.first[t]) | off(some.second[t]) | off(some.gradient[t]) |
           off(some.output[t])) == 0)
        some.aligned |= bit;
    }
    queue_some();
    return code;
  });
}
int step_against_sign(handle stream, dtype of, void* value, dtype of_measured, void const* measured, std::int64_t n,
                      double by) {
  auto const launch = [&]<class M>(M) {
    return device::for_floats(of_measured, [&]<class G>(G) {
      device::stepping_against_sign<M, G> const work{as<M>(value), as<G>(measured), by};
      return device::launch_elements("step_against_sign", work, {}, n, stream);
    });
  };
  if (of == dtype::f32) return launch(float{});
  return of == dtype::f64 ? launch(double{}) : device::launch_refused;
}

}  // namespace trireme::ops::cuda_kernels
