// Worker of `tensorlane bench` for Gloo over TCP on the loopback: gloo_worker SOCKET FOLDER, with RANK and WORLD_SIZE
// in the environment. The folder is where the ranks find one another.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/peers/bench_worker.h"

namespace {

struct Gloo {
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::vector<float> memory;
  std::string error;
};

// Gloo reports by exception; the worker's interface by status.
template <typename Function>
int guarded(Gloo& self, Function function) {
  try {
    function();
    return 0;
  } catch (const std::exception& failure) {
    self.error = failure.what();
    return 1;
  }
}

float* buffer(void* self, std::size_t bytes) {
  auto& gloo = *static_cast<Gloo*>(self);
  const int failed = guarded(gloo, [&] { gloo.memory.resize(std::max(gloo.memory.size(), bytes / sizeof(float))); });
  return failed != 0 ? nullptr : gloo.memory.data();
}

int barrier(void* self) {
  auto& gloo = *static_cast<Gloo*>(self);
  return guarded(gloo, [&] {
    gloo::BarrierOptions options(gloo.context);
    gloo::barrier(options);
  });
}

int allreduce(void* self, float* memory, std::size_t count) {
  auto& gloo = *static_cast<Gloo*>(self);
  return guarded(gloo, [&] {
    gloo::AllreduceOptions options(gloo.context);
    options.setOutput(memory, count);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  });
}

const char* error(void* self) {
  return static_cast<Gloo*>(self)->error.c_str();
}

void join(Gloo& gloo, int rank, int ranks, const char* folder) {
  gloo::transport::tcp::attr address;
  address.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(address);
  gloo::rendezvous::FileStore store(folder);
  gloo.context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo.context->connectFullMesh(store, device);
}

}  // namespace

int main(int argc, char** argv) {
  const char* rank = std::getenv("RANK");
  const char* ranks = std::getenv("WORLD_SIZE");
  if (argc != 3 || rank == nullptr || ranks == nullptr) {
    std::fprintf(stderr, "tensorlane: error: bad usage: gloo_worker: give SOCKET FOLDER, RANK and WORLD_SIZE\n");
    return 2;
  }
  Gloo gloo;
  if (guarded(gloo, [&] { join(gloo, std::atoi(rank), std::atoi(ranks), argv[2]); }) != 0) {
    std::fprintf(stderr, "tensorlane: error: Gloo cannot connect: rank %s: %s\n", rank, gloo.error.c_str());
    return 1;
  }
  const bench_operations_t operations = {&gloo, buffer, barrier, allreduce, error};
  return bench_serve(argv[1], std::atoi(rank), std::atoi(ranks), &operations);
}
