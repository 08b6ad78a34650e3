// Runs Gloo over TCP; ranks find each other through files.
//   collectives_gloo FOLDER RANK SIZE [INTERFACE]
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "player.hpp"

namespace {

using namespace player;

struct gloo_calls {
  std::shared_ptr<gloo::Context> context;
  pages blocks[2];

  std::byte* allocate(int index, std::size_t bytes) {
    blocks[index] = pages(bytes);
    return blocks[index].data();
  }
  void release() {
    for (auto& block : blocks) block = pages();
  }
  void barrier() {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  }

  prepared prepare(task const& it, std::byte* from, std::byte* to) {
    bool const reduces = it.what == operation::all_reduce || it.what == operation::reduce_scatter;
    if (reduces && it.type != element::f32) return {};  // it cannot add bfloat16
    return it.type == element::f32 ? typed<float>(it, from, to) : typed<std::uint16_t>(it, from, to);
  }

  template <class T>
  prepared typed(task const& it, std::byte* from, std::byte* to) {
    auto* const values = reinterpret_cast<T*>(from);
    auto* const results = reinterpret_cast<T*>(to);
    auto const count = it.count();
    auto const size = static_cast<std::size_t>(context->size);
    auto const part = count / size;
    auto const rank = static_cast<std::size_t>(context->rank);
    switch (it.what) {
      case operation::all_reduce:
        return {[this, values, count] {
                  gloo::AllreduceOptions options(context);
                  options.setOutput(values, count);
                  options.setReduceFunction(
                      static_cast<void (*)(void*, void const*, void const*, std::size_t)>(&gloo::sum<T>));
                  gloo::allreduce(options);
                },
                to};
      case operation::reduce_scatter: {
        auto algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<T>>(
            context, std::vector<T*>{values}, static_cast<int>(count), std::vector<int>(size, static_cast<int>(part)));
        return {[algorithm] { algorithm->run(); }, to};
      }
      case operation::all_gather:
        return {[=, this] {
                  gloo::AllgatherOptions options(context);
                  options.setInput(values + rank * part, part);
                  options.setOutput(values, count);
                  gloo::allgather(options);
                },
                to};
      case operation::all_to_all:
        return {[this, values, results, count] {
                  gloo::AlltoallOptions options(context);
                  options.setInput(values, count);
                  options.setOutput(results, count);
                  gloo::alltoall(options);
                },
                to};
      case operation::broadcast:
        return {[this, values, count] {
                  gloo::BroadcastOptions options(context);
                  options.setOutput(values, count);
                  options.setRoot(0);
                  gloo::broadcast(options);
                },
                to};
    }
    return {};
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::string const folder = argv[1];
  int const rank = std::atoi(argv[2]);
  int const size = std::atoi(argv[3]);
  try {
    pin(rank);  // before Gloo starts its thread
    gloo::transport::tcp::attr where;
    where.iface = argc > 4 ? argv[4] : "lo";
    where.ai_family = AF_INET;
    auto device = gloo::transport::tcp::CreateDevice(where);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(std::chrono::seconds(60));
    context->connectFullMesh(store, device);
    gloo_calls calls{context, {}};
    play(folder, rank, size, calls);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gloo: %s\n", error.what());
    return 1;
  }
}
