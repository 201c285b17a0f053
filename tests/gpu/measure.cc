// What the way through the library costs, each figure beside what it stands on in the same run: plain copies between
// pinned memory and the GPU, and operations on host memory.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <memory>

#include "gpu_check.h"

namespace tensorlane::gpu_check {
namespace {

double timed(const std::function<void()>& body) {
  const double start = now_seconds();
  body();
  return now_seconds() - start;
}

tl_tensor_t* register_one(Rank& rank, const std::string& name, void* buffer, std::uint64_t bytes, tl_memory_t memory,
                          float urgency) {
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  desc.name = name.c_str();
  desc.buffer = buffer;
  desc.count = bytes / sizeof(float);
  desc.memory = memory;
  desc.urgency = urgency;
  tl_tensor_t* tensor = nullptr;
  must(tl_register(rank.context, name.c_str(), &desc, 1, &tensor), "registering " + name);
  return tensor;
}

void post_and_wait(tl_tensor_t* tensor, void* stream) {
  tl_request_t* request = nullptr;
  must(stream != nullptr ? tl_post_on(&tensor, 1, stream, &request) : tl_post(tensor, &request), "posting");
  must(tl_wait(request, -1), "waiting");
}

// Plain copies of both directions at once, on streams of their own.
class Plain {
 public:
  Plain(const Gpu& gpu, std::size_t bytes)
      : gpu_(gpu),
        out_gpu_(gpu, bytes),
        in_gpu_(gpu, bytes),
        out_(gpu, bytes),
        in_(gpu, bytes),
        one_(gpu),
        other_(gpu) {
    gpu.fill(out_gpu_.data(), 1, bytes, one_);
    gpu.synchronize(one_);
    std::fill(in_.bytes().begin(), in_.bytes().end(), std::byte{2});
  }
  void out() const {
    gpu_.to_host(out_.data(), out_gpu_.data(), out_.size(), one_);
    gpu_.synchronize(one_);
  }
  void in() const {
    gpu_.to_gpu(in_gpu_.data(), in_.data(), in_.size(), other_);
    gpu_.synchronize(other_);
  }
  void both() const {
    gpu_.to_host(out_.data(), out_gpu_.data(), out_.size(), one_);
    gpu_.to_gpu(in_gpu_.data(), in_.data(), in_.size(), other_);
    gpu_.synchronize(one_);
    gpu_.synchronize(other_);
  }

 private:
  const Gpu& gpu_;
  const GpuMemory out_gpu_, in_gpu_;
  const Pinned out_, in_;
  const Stream one_, other_;
};

// Tensors that follow one another, so that one is copied out while the one before is copied in.
class Chain {
 public:
  static constexpr int kTensors = 8, kRounds = 4;
  Chain(Rank& rank, std::size_t bytes) : rank_(rank) {
    for (int i = 0; i < kTensors; ++i) {
      memories_.push_back(std::make_unique<GpuMemory>(rank.gpu, bytes / kTensors));
      streams_.push_back(std::make_unique<Stream>(rank.gpu));
      rank.gpu.fill(memories_[i]->data(), 0, bytes / kTensors, *streams_[i]);
      tensors_.push_back(register_one(rank, "chain" + std::to_string(i), memories_[i]->data(), bytes / kTensors,
                                      TL_MEMORY_CUDA, 0.5F));
    }
  }
  ~Chain() {
    for (int i = 0; i < kTensors; ++i)
      must(tl_unregister(rank_.context, ("chain" + std::to_string(i)).c_str()), "unregistering");
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;
  void run() const {
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kTensors; ++i) {
        tl_request_t* request = nullptr;
        must(tl_post_on(&tensors_[i], 1, *streams_[i], &request), "posting");
        must(tl_stream_wait(&request, 1, *streams_[i]), "letting a stream wait");
      }
    }
    for (const auto& stream : streams_) rank_.gpu.synchronize(*stream);
  }

 private:
  Rank& rank_;
  std::vector<std::unique_ptr<GpuMemory>> memories_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<tl_tensor_t*> tensors_;
};

// Seconds of both, and the plain copy's share of ours: of each turn, whose median counts.
struct Pair {
  Samples plain, ours, ratio;
  void turn(double plain_seconds, double our_seconds) {
    plain.add(plain_seconds);
    ours.add(our_seconds);
    ratio.add(plain_seconds / our_seconds);
  }
  nlohmann::json json(double gigabytes) const {
    return {{"plain_gb_per_s", gigabytes / plain.median()},
            {"ours_gb_per_s", gigabytes / ours.median()},
            {"plain_ms", plain.json(1e3)},
            {"ours_ms", ours.json(1e3)},
            {"ratio", ratio.median()}};
  }
};

double thread_seconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Of n calls: microseconds each of the calling thread, of the process's other threads, and of the clock.
nlohmann::json cpu_of(int n, const std::function<void()>& call, const std::function<void()>& finish) {
  const double caller = thread_seconds(RUSAGE_THREAD), all = thread_seconds(RUSAGE_SELF), start = now_seconds();
  for (int i = 0; i < n; ++i) call();
  const double called = thread_seconds(RUSAGE_THREAD);
  finish();
  const double caller_us = (called - caller) / n * 1e6;
  const double finishing = thread_seconds(RUSAGE_THREAD) - called;
  const double others_us = (thread_seconds(RUSAGE_SELF) - all - finishing) / n * 1e6 - caller_us;
  return {{"caller_us", caller_us},
          {"library_and_driver_threads_us", std::max(0.0, others_us)},
          {"wall_us", (now_seconds() - start) / n * 1e6},
          {"calls", n}};
}

}  // namespace

void measure_staging(Rank& rank) {
  const std::size_t bytes = std::min<std::uint64_t>(rank.settings.largest, 256 << 20);
  const int turns = rank.settings.brief ? 3 : 15;
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  const Stream stream(rank.gpu);
  const tl_options_t options = on_gpu(stream);
  const Plain plain(rank.gpu, bytes);
  const GpuMemory key(rank.gpu, bytes);
  rank.gpu.fill(key.data(), 0, bytes, stream);
  const auto push = [&] {
    tl_request_t* request = nullptr;
    must(tl_push(rank.context, "key", key.data(), bytes / 4, TL_FLOAT32, TL_SUM, &options, &request), "a push");
    must(tl_wait(request, -1), "a push");
  };
  const auto pull = [&] {
    tl_request_t* request = nullptr;
    must(tl_pull(rank.context, "key", key.data(), bytes / 4, TL_FLOAT32, &options, &request), "a pull");
    must(tl_wait(request, -1), "a pull");
  };
  Pair out, in, both;
  {
    const Chain chain(rank, bytes);
    push();
    pull();
    chain.run();
    for (int i = 0; i < turns; ++i) {
      out.turn(timed([&] { plain.out(); }), timed(push));
      in.turn(timed([&] { plain.in(); }), timed(pull));
      const double plainly = timed([&] {
        for (int round = 0; round < Chain::kRounds; ++round) plain.both();
      });
      both.turn(plainly, timed([&] { chain.run(); }));
    }
  }
  rank.figures["staging"] = {{"bytes", bytes},
                             {"device_to_host", out.json(gigabytes)},
                             {"host_to_device", in.json(gigabytes)},
                             {"both_at_once", both.json(2 * gigabytes * Chain::kRounds)}};
}

void measure_latency(Rank& rank) {
  const int turns = rank.settings.brief ? 30 : 500;
  for (const std::uint64_t bytes : {std::uint64_t{4}, std::uint64_t{1} << 20}) {
    const Stream stream(rank.gpu);
    const GpuMemory memory(rank.gpu, bytes);
    const Plain plain(rank.gpu, bytes);
    void* shared = nullptr;
    must(tl_alloc(rank.context, bytes, &shared), "shared memory");
    rank.gpu.fill(memory.data(), 0, bytes, stream);
    rank.gpu.synchronize(stream);
    tl_tensor_t* gpu = register_one(rank, "small_gpu", memory.data(), bytes, TL_MEMORY_CUDA, 1);
    tl_tensor_t* host = register_one(rank, "small_host", shared, bytes, TL_MEMORY_HOST, 1);
    Samples waited, stream_waited, on_host, copies, added;
    for (int i = -10; i < turns; ++i) {
      const double of_gpu = timed([&] { post_and_wait(gpu, stream); });
      const double of_stream = timed([&] {
        tl_request_t* request = nullptr;
        must(tl_post_on(&gpu, 1, stream, &request), "posting");
        must(tl_stream_wait(&request, 1, stream), "letting a stream wait");
        rank.gpu.synchronize(stream);
      });
      const double of_host = timed([&] { post_and_wait(host, nullptr); });
      const double of_copies = timed([&] {
        plain.out();
        plain.in();
      });
      if (i < 0) continue;
      waited.add(of_gpu);
      stream_waited.add(of_stream);
      on_host.add(of_host);
      copies.add(of_copies);
      added.add(of_gpu - of_host - of_copies);
    }
    rank.figures["latency"][std::to_string(bytes)] = {
        {"tl_wait_us", waited.json(1e6)},      {"stream_wait_us", stream_waited.json(1e6)},
        {"host_memory_us", on_host.json(1e6)}, {"plain_copies_us", copies.json(1e6)},
        {"added_us", added.json(1e6)},         {"ratio", waited.median() / (on_host.median() + copies.median())}};
    must(tl_unregister(rank.context, "small_gpu"), "unregistering");
    must(tl_unregister(rank.context, "small_host"), "unregistering");
    must(tl_free(rank.context, shared), "freeing");
  }
}

// Between two daemons: a sum of GPU memory beside one of host memory and plain copies of the same size, which it would
// take if each of the three waited for the one before.
void measure_overlap(Rank& rank) {
  const int turns = rank.settings.brief ? 5 : 25;
  for (std::uint64_t bytes = 4 << 20; bytes <= std::min<std::uint64_t>(rank.settings.largest, 256 << 20); bytes *= 8) {
    const Stream stream(rank.gpu);
    const GpuMemory memory(rank.gpu, bytes);
    const Plain plain(rank.gpu, bytes);
    void* shared = nullptr;
    must(tl_alloc(rank.context, bytes, &shared), "shared memory");
    rank.gpu.fill(memory.data(), 0, bytes, stream);
    rank.gpu.synchronize(stream);
    tl_tensor_t* gpu = register_one(rank, "overlap_gpu", memory.data(), bytes, TL_MEMORY_CUDA, 0.5F);
    tl_tensor_t* host = register_one(rank, "overlap_host", shared, bytes, TL_MEMORY_HOST, 0.5F);
    Samples of_gpu, of_host, of_copies, ratio;
    for (int i = -2; i < turns; ++i) {
      must(tl_barrier(rank.context, 60), "a barrier");
      const double ours = timed([&] { post_and_wait(gpu, stream); });
      must(tl_barrier(rank.context, 60), "a barrier");
      const double on_host = timed([&] { post_and_wait(host, nullptr); });
      const double copies = timed([&] {
        plain.out();
        plain.in();
      });
      if (i < 0) continue;
      of_gpu.add(ours);
      of_host.add(on_host);
      of_copies.add(copies);
      ratio.add(ours / (on_host + copies));
    }
    rank.figures["overlap"][std::to_string(bytes)] = {{"gpu_memory_us", of_gpu.json(1e6)},
                                                      {"host_memory_us", of_host.json(1e6)},
                                                      {"plain_copies_us", of_copies.json(1e6)},
                                                      {"ratio", ratio.median()}};
    must(tl_unregister(rank.context, "overlap_gpu"), "unregistering");
    must(tl_unregister(rank.context, "overlap_host"), "unregistering");
    must(tl_free(rank.context, shared), "freeing");
  }
}

void measure_urgent(Rank& rank) {
  const std::uint64_t small = 1 << 20, large = std::min<std::uint64_t>(rank.settings.largest, 256 << 20);
  const int turns = rank.settings.brief ? 5 : 40;
  const Stream stream(rank.gpu), other(rank.gpu);
  const GpuMemory bulk_memory(rank.gpu, large), urgent_memory(rank.gpu, small);
  rank.gpu.fill(bulk_memory.data(), 0, large, stream);
  rank.gpu.fill(urgent_memory.data(), 0, small, stream);
  rank.gpu.synchronize(stream);
  tl_tensor_t* bulk = register_one(rank, "bulk", bulk_memory.data(), large, TL_MEMORY_CUDA, 0);
  tl_tensor_t* urgent = register_one(rank, "urgent", urgent_memory.data(), small, TL_MEMORY_CUDA, 1);
  Samples alone, behind, whole;
  for (int i = -2; i < turns; ++i) {
    const double by_itself = timed([&] { post_and_wait(urgent, other); });
    tl_request_t* request = nullptr;
    const double start = now_seconds();
    must(tl_post_on(&bulk, 1, stream, &request), "posting");
    rank.gpu.pause(other, 500);  // until bulk is on its way
    rank.gpu.synchronize(other);
    const double while_bulk = timed([&] { post_and_wait(urgent, other); });
    must(tl_wait(request, -1), "waiting");
    if (i < 0) continue;
    alone.add(by_itself);
    behind.add(while_bulk);
    whole.add(now_seconds() - start);
  }
  rank.figures["urgent"] = {{"urgent_bytes", small},       {"bulk_bytes", large},
                            {"alone_us", alone.json(1e6)}, {"behind_bulk_us", behind.json(1e6)},
                            {"bulk_us", whole.json(1e6)},  {"ratio", behind.median() / alone.median()}};
  must(tl_unregister(rank.context, "bulk"), "unregistering");
  must(tl_unregister(rank.context, "urgent"), "unregistering");
}

void measure_cpu(Rank& rank) {
  const std::uint64_t large = std::min<std::uint64_t>(rank.settings.largest, 16 << 20);
  for (const std::uint64_t bytes : {std::uint64_t{4096}, large}) {
    const int n = rank.settings.brief ? 20 : bytes == 4096 ? 2000 : 200;
    const Stream stream(rank.gpu);
    const GpuMemory memory(rank.gpu, bytes);
    void* shared = nullptr;
    must(tl_alloc(rank.context, bytes, &shared), "shared memory");
    rank.gpu.fill(memory.data(), 0, bytes, stream);
    rank.gpu.synchronize(stream);
    tl_tensor_t* gpu = register_one(rank, "cpu_gpu", memory.data(), bytes, TL_MEMORY_CUDA, 0.5F);
    tl_tensor_t* host = register_one(rank, "cpu_host", shared, bytes, TL_MEMORY_HOST, 0.5F);
    const auto by_stream = [&] {
      tl_request_t* request = nullptr;
      must(tl_post_on(&gpu, 1, stream, &request), "posting");
      must(tl_stream_wait(&request, 1, stream), "letting a stream wait");
    };
    by_stream();
    rank.gpu.synchronize(stream);
    // A stream's queue is bounded, and a full one would hold the caller up: it is emptied every 64 calls.
    nlohmann::json of_streams = nlohmann::json::array();
    double caller = 0, others = 0, wall = 0;
    const int batches = std::max(1, n / 64);
    for (int i = 0; i < batches; ++i) {
      const nlohmann::json each = cpu_of(std::min(n, 64), by_stream, [&] { rank.gpu.synchronize(stream); });
      caller += each["caller_us"].get<double>() / batches;
      others += each["library_and_driver_threads_us"].get<double>() / batches;
      wall += each["wall_us"].get<double>() / batches;
    }
    rank.figures["cpu"][std::to_string(bytes)] = {
        {"stream_wait",
         {{"caller_us", caller},
          {"library_and_driver_threads_us", others},
          {"wall_us", wall},
          {"calls", batches * std::min(n, 64)}}},
        {"tl_wait", cpu_of(
                        n, [&] { post_and_wait(gpu, stream); }, [] {})},
        {"host_memory", cpu_of(
                            n, [&] { post_and_wait(host, nullptr); }, [] {})}};
    must(tl_unregister(rank.context, "cpu_gpu"), "unregistering");
    must(tl_unregister(rank.context, "cpu_host"), "unregistering");
    must(tl_free(rank.context, shared), "freeing");
  }
}

}  // namespace tensorlane::gpu_check
