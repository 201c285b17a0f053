// Registered tensors in GPU memory, and random programs of many streams: each operation begins on a stream that was
// slow, and its result is read on another one that only tl_stream_wait() has told to wait.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "gpu_check.h"

namespace tensorlane::gpu_check {
namespace {

// The four operations in one group, on `memory`, in place.
struct Group {
  static constexpr int kTensors = 4;
  static constexpr tl_operation_t kOperations[kTensors] = {TL_ALLREDUCE, TL_BROADCAST, TL_ALLGATHER, TL_REDUCESCATTER};
  tl_tensor_t* tensors[kTensors] = {};

  Group(Rank& rank, const char* name, tl_dtype_t dtype, std::uint64_t count, tl_memory_t memory, void* const* buffers) {
    tl_tensor_desc_t descs[kTensors];
    std::string names[kTensors];
    for (int i = 0; i < kTensors; ++i) {
      names[i] = std::string(name) + std::to_string(i);
      descs[i] = TL_TENSOR_INIT;
      descs[i].name = names[i].c_str();
      descs[i].buffer = buffers[i];
      descs[i].count = count;
      descs[i].dtype = dtype;
      descs[i].operation = kOperations[i];
      descs[i].memory = memory;
    }
    must(tl_register(rank.context, name, descs, kTensors, tensors), "registering " + std::string(name));
  }
};

// What of the buffer has a meaning after the operation.
std::pair<std::size_t, std::size_t> meaningful(const Rank& rank, int tensor, std::size_t bytes) {
  if (Group::kOperations[tensor] != TL_REDUCESCATTER) return {0, bytes};
  const std::size_t share = bytes / rank.size;
  return {rank.rank * share, share};
}

void check_group(Rank& rank, tl_dtype_t dtype, std::uint64_t count) {
  const std::size_t bytes = count * size_of(dtype);
  const Stream stream(rank.gpu);
  std::vector<std::unique_ptr<GpuMemory>> memories;
  std::vector<std::unique_ptr<Pinned>> inputs, results;
  void* on_gpu[Group::kTensors];
  void* on_host[Group::kTensors];
  for (int i = 0; i < Group::kTensors; ++i) {
    memories.push_back(std::make_unique<GpuMemory>(rank.gpu, bytes));
    inputs.push_back(std::make_unique<Pinned>(rank.gpu, bytes));
    results.push_back(std::make_unique<Pinned>(rank.gpu, bytes));
    make_values(inputs[i]->bytes(), dtype, rank.rank, 100 + i);
    on_gpu[i] = memories[i]->data();
    must(tl_alloc(rank.context, bytes, &on_host[i]), "shared memory");
    std::memcpy(on_host[i], inputs[i]->data(), bytes);
  }
  Group gpu(rank, "of_gpu", dtype, count, TL_MEMORY_CUDA, on_gpu);
  Group host(rank, "of_host", dtype, count, TL_MEMORY_HOST, on_host);
  tl_request_t* requests[Group::kTensors];
  must(tl_post_many(host.tensors, Group::kTensors, requests), "posting");
  must(tl_wait_many(requests, Group::kTensors, -1), "waiting");
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < Group::kTensors; ++i) rank.gpu.to_gpu(on_gpu[i], inputs[i]->data(), bytes, stream);
    must(tl_post_on(gpu.tensors, Group::kTensors, stream, requests), "posting on a stream");
    must(tl_stream_wait(requests, Group::kTensors, stream), "letting a stream wait");
    for (int i = 0; i < Group::kTensors; ++i) rank.gpu.to_host(results[i]->data(), on_gpu[i], bytes, stream);
    rank.gpu.synchronize(stream);
    for (int i = 0; i < Group::kTensors; ++i) {
      const auto [first, size] = meaningful(rank, i, bytes);
      rank.expect(
          std::memcmp(results[i]->data() + first, static_cast<std::byte*>(on_host[i]) + first, size) == 0,
          "registered tensor " + std::to_string(i) + " of " + name_of(dtype) + ", round " + std::to_string(round));
    }
  }
  must(tl_unregister(rank.context, "of_gpu"), "unregistering");
  must(tl_unregister(rank.context, "of_host"), "unregistering");
  for (void* memory : on_host) must(tl_free(rank.context, memory), "freeing");
}

// One tensor of a random program. It moves from stream to stream by tl_stream_wait() alone.
struct Walker {
  tl_tensor_t* tensor = nullptr;
  std::unique_ptr<GpuMemory> buffer, inputs, results;  // `rounds` values each, but for the buffer
  std::unique_ptr<Pinned> host;
  std::size_t bytes = 0;
  int round = 0, stream = 0;
};

class RandomStreams {
 public:
  RandomStreams(Rank& rank, std::uint64_t seed, int tensors, int rounds, int streams)
      : rank_(rank), seed_(seed), rounds_(rounds), common_(seed), own_(seed * 100 + rank.rank) {
    streams_.reserve(streams);
    for (int i = 0; i < streams; ++i) streams_.push_back(std::make_unique<Stream>(rank.gpu));
    for (int i = 0; i < tensors; ++i) add(i);
  }

  void run() {
    // All ranks go through the operations in one order; the streams are each rank's own. So nothing waits in a circle.
    std::vector<std::size_t> order(walkers_.size() * rounds_);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i % walkers_.size();
    std::shuffle(order.begin(), order.end(), common_);
    for (const std::size_t i : order) step(walkers_[i]);
    for (const auto& stream : streams_) rank_.gpu.synchronize(*stream);
    for (std::size_t i = 0; i < walkers_.size(); ++i) check(walkers_[i], static_cast<int>(i));
    for (std::size_t i = 0; i < walkers_.size(); ++i)
      must(tl_unregister(rank_.context, name(static_cast<int>(i)).c_str()), "unregistering");
  }

 private:
  std::string name(int i) const { return "walker" + std::to_string(i); }
  std::uint64_t seed_of(int walker, int round) const { return seed_ * 10'000 + walker * std::uint64_t{100} + round; }
  int some_stream() { return static_cast<int>(own_() % streams_.size()); }

  void add(int i) {
    Walker walker;
    const std::uint64_t count = 1 + common_() % (i % 3 == 0 ? 500'000 : 5'000);
    walker.bytes = count * sizeof(std::uint32_t);
    walker.buffer = std::make_unique<GpuMemory>(rank_.gpu, walker.bytes);
    walker.inputs = std::make_unique<GpuMemory>(rank_.gpu, walker.bytes * rounds_);
    walker.results = std::make_unique<GpuMemory>(rank_.gpu, walker.bytes * rounds_);
    walker.host = std::make_unique<Pinned>(rank_.gpu, walker.bytes * rounds_);
    for (int round = 0; round < rounds_; ++round)
      make_values(walker.host->bytes().subspan(round * walker.bytes, walker.bytes), TL_INT32, rank_.rank,
                  seed_of(i, round));
    rank_.gpu.to_gpu(walker.inputs->data(), walker.host->data(), walker.host->size(), *streams_[0]);
    rank_.gpu.synchronize(*streams_[0]);
    tl_tensor_desc_t desc = TL_TENSOR_INIT;
    const std::string called = name(i);
    desc.name = called.c_str();
    desc.buffer = walker.buffer->data();
    desc.count = count;
    desc.dtype = TL_INT32;
    desc.memory = TL_MEMORY_CUDA;
    desc.urgency = static_cast<float>(common_() % 100) / 100;
    must(tl_register(rank_.context, called.c_str(), &desc, 1, &walker.tensor), "registering");
    walker.stream = some_stream();
    walkers_.push_back(std::move(walker));
  }

  void step(Walker& walker) {
    const std::size_t at = walker.bytes * walker.round++;
    const Stream& before = *streams_[walker.stream];
    if (own_() % 3 == 0) rank_.gpu.pause(before, own_() % 300);
    rank_.gpu.copy(walker.buffer->data(), walker.inputs->at(at), walker.bytes, before);
    tl_request_t* request = nullptr;
    must(tl_post_on(&walker.tensor, 1, before, &request), "posting on a stream");
    walker.stream = some_stream();
    const Stream& after = *streams_[walker.stream];
    must(tl_stream_wait(&request, 1, after), "letting another stream wait");
    rank_.gpu.copy(walker.results->at(at), walker.buffer->data(), walker.bytes, after);
  }

  void check(Walker& walker, int i) {
    rank_.gpu.to_host(walker.host->data(), walker.results->data(), walker.host->size(), *streams_[0]);
    rank_.gpu.synchronize(*streams_[0]);
    std::vector<std::uint32_t> sum(walker.bytes / 4), each(walker.bytes / 4);
    for (int round = 0; round < rounds_; ++round) {
      std::fill(sum.begin(), sum.end(), 0);
      for (int r = 0; r < rank_.size; ++r) {
        make_values(std::as_writable_bytes(std::span(each)), TL_INT32, r, seed_of(i, round));
        for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += each[k];
      }
      rank_.expect(std::memcmp(sum.data(), walker.host->data() + round * walker.bytes, walker.bytes) == 0,
                   "random streams, seed " + std::to_string(seed_) + ", tensor " + std::to_string(i) + ", round " +
                       std::to_string(round));
    }
  }

  Rank& rank_;
  const std::uint64_t seed_;
  const int rounds_;
  std::mt19937_64 common_, own_;  // alike on all ranks; this rank's
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Walker> walkers_;
};

}  // namespace

void check_registered(Rank& rank) {
  for (const tl_dtype_t dtype : {TL_FLOAT32, TL_BFLOAT16, TL_INT64})
    for (const std::uint64_t count : {64, rank.settings.brief ? 4096 : 1 << 20})
      check_group(rank, dtype, count * rank.size);
}

void check_streams(Rank& rank) {
  const int programs = rank.settings.brief ? 3 : 20;
  const double start = now_seconds();
  for (int i = 0; i < programs; ++i)
    RandomStreams(rank, rank.settings.seed + i, 6, rank.settings.brief ? 5 : 20, 1 + i % 5).run();
  rank.figures["random_streams"] = {{"programs", programs}, {"seconds", now_seconds() - start}};
}

}  // namespace tensorlane::gpu_check
