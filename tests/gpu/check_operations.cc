// All operations on GPU memory: bitwise equal to the same operation on host memory, to what the values say where that
// is simple, and to themselves when repeated.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "gpu_check.h"

namespace tensorlane::gpu_check {
namespace {

enum class Call { kAllreduce, kReducescatter, kBroadcast, kAllgather, kPushPull };

struct Case {
  Call call;
  tl_dtype_t dtype;
  tl_op_t op;
  std::uint64_t count;  // elements of the whole tensor
  bool in_place;
  bool stream_waits;

  std::string text() const {
    constexpr const char* kCalls[] = {"allreduce", "reducescatter", "broadcast", "allgather", "push_pull"};
    const std::string reduces =
        call == Call::kBroadcast || call == Call::kAllgather ? "" : std::string(name_of(op)) + " ";
    return std::string(kCalls[static_cast<int>(call)]) + " " + reduces + name_of(dtype) + " " + std::to_string(count);
  }
};

constexpr int kRoot = 0;

// Rank r's part of `count` elements that are cut between rows of one element.
std::pair<std::uint64_t, std::uint64_t> part_of(std::uint64_t count, int size, int rank) {
  const std::uint64_t share = count / size, left = count % size, r = rank;
  return {r * share + std::min<std::uint64_t>(r, left), share + (r < left ? 1 : 0)};
}

class Operations {
 public:
  explicit Operations(Rank& rank) : rank_(rank), stream_(rank.gpu) {}

  void check(const Case& c) {
    const std::uint64_t bytes = c.count * size_of(c.dtype);
    const std::uint64_t in_count = c.call == Call::kAllgather ? c.count / rank_.size : c.count;
    const std::uint64_t out_count =
        c.call == Call::kReducescatter ? part_of(c.count, rank_.size, rank_.rank).second : c.count;
    in_bytes_ = in_count * size_of(c.dtype);
    out_bytes_ = out_count * size_of(c.dtype);
    const Pinned input(rank_.gpu, in_bytes_), first(rank_.gpu, out_bytes_), second(rank_.gpu, out_bytes_);
    make_values(input.bytes(), c.dtype, rank_.rank, seed_);
    Bytes expected(out_bytes_);
    if (c.call == Call::kBroadcast) std::memcpy(expected.data(), input.data(), in_bytes_);
    on_host(c, input.data(), expected.data());
    {
      const GpuMemory in(rank_.gpu, std::max(bytes, in_bytes_)), out(rank_.gpu, bytes);
      on_gpu_memory(c, c.stream_waits, input, in, out, first);
      on_gpu_memory(c, !c.stream_waits, input, in, out, second);
      forget(c, "gpu");
    }
    rank_.expect(same(first, expected), c.text() + ": not as on host memory" + where(c, first, expected));
    rank_.expect(same(second, expected),
                 c.text() + ": the second time it is another result" + where(c, second, expected));
    check_against_values(c, input, first);
    ++seed_;
    ++cases_;
  }
  std::uint64_t cases() const { return cases_; }

 private:
  static bool same(const Pinned& found, const Bytes& expected) {
    return std::memcmp(found.data(), expected.data(), expected.size()) == 0;
  }

  static std::string where(const Case& c, const Pinned& found, const Bytes& expected) {
    const auto differ = std::mismatch(expected.begin(), expected.end(), found.data());
    if (differ.first == expected.end()) return "";
    return " (element " + std::to_string((differ.first - expected.begin()) / size_of(c.dtype)) + ")";
  }

  // `stream_waits`: by tl_stream_wait, else by tl_wait.
  void on_gpu_memory(const Case& c, bool stream_waits, const Pinned& input, const GpuMemory& in, const GpuMemory& out,
                     const Pinned& result) {
    const bool in_place = c.in_place && c.call == Call::kAllreduce;
    const GpuMemory& target = in_place || c.call == Call::kBroadcast ? in : out;
    const tl_options_t options = gpu_check::on_gpu(stream_);
    rank_.gpu.fill(out.data(), 0xee, out.size(), stream_);
    rank_.gpu.to_gpu(in.data(), input.data(), in_bytes_, stream_);
    tl_request_t* request = start(c, "gpu", in.data(), target.data(), &options);
    if (stream_waits && c.call != Call::kPushPull) {
      must(tl_stream_wait(&request, 1, stream_), c.text());
    } else {
      must(tl_wait(request, -1), c.text());
    }
    rank_.gpu.to_host(result.data(), target.data(), out_bytes_, stream_);
    rank_.gpu.synchronize(stream_);
  }

  void on_host(const Case& c, const void* in, void* out) {
    must(tl_wait(start(c, "host", in, out, nullptr), -1), c.text());
    forget(c, "host");
  }

  tl_request_t* start(const Case& c, const char* name, const void* in, void* out, const tl_options_t* options) {
    tl_request_t* request = nullptr;
    tl_context_t* context = rank_.context;
    tl_status_t status = TL_OK;
    switch (c.call) {
      case Call::kAllreduce:
        status = tl_allreduce(context, name, in, out, c.count, c.dtype, c.op, options, &request);
        break;
      case Call::kReducescatter:
        status = tl_reducescatter(context, name, in, out_bytes_ == 0 ? nullptr : out, c.count, 1, c.dtype, c.op,
                                  options, &request);
        break;
      case Call::kBroadcast:
        status = tl_broadcast(context, name, out, c.count, c.dtype, kRoot, options, &request);
        break;
      case Call::kAllgather:
        status = tl_allgather(context, name, in, out, c.count / rank_.size, c.dtype, options, &request);
        break;
      case Call::kPushPull:
        must(tl_push(context, name, in, c.count, c.dtype, c.op, options, &request), c.text());
        must(tl_wait(request, -1), c.text());
        status = tl_pull(context, name, out, c.count, c.dtype, options, &request);
        break;
    }
    must(status, c.text());
    return request;
  }

  void forget(const Case& c, const std::string& name) {
    constexpr const char* kGroups[] = {"allreduce.", "reducescatter.", "broadcast.", "allgather.", "pull."};
    must(tl_unregister(rank_.context, (kGroups[static_cast<int>(c.call)] + name).c_str()), "giving back " + c.text());
    if (c.call == Call::kPushPull)
      must(tl_unregister(rank_.context, ("push." + name).c_str()), "giving back " + c.text());
  }

  // What needs no arithmetic, and the sum of integers.
  void check_against_values(const Case& c, const Pinned& input, const Pinned& result) {
    if (c.call == Call::kBroadcast) {
      Bytes root(out_bytes_);
      make_values(root, c.dtype, kRoot, seed_);
      rank_.expect(same(result, root), c.text() + ": not the root's values");
    } else if (c.call == Call::kAllgather) {
      Bytes all(out_bytes_);
      for (int r = 0; r < rank_.size; ++r)
        make_values(std::span(all).subspan(r * in_bytes_, in_bytes_), c.dtype, r, seed_);
      rank_.expect(same(result, all), c.text() + ": not the ranks' values");
    } else if (c.dtype == TL_INT32 && c.op == TL_SUM) {
      check_sum(c, input, result);
    }
  }

  void check_sum(const Case& c, const Pinned& input, const Pinned& result) {
    std::vector<std::uint32_t> sum(c.count, 0), each(c.count);
    for (int r = 0; r < rank_.size; ++r) {
      make_values(std::as_writable_bytes(std::span(each)), c.dtype, r, seed_);
      if (r == rank_.rank)
        rank_.expect(std::memcmp(each.data(), input.data(), in_bytes_) == 0, c.text() + ": its input has changed");
      for (std::uint64_t i = 0; i < c.count; ++i) sum[i] += each[i];
    }
    const std::uint64_t first = c.call == Call::kReducescatter ? part_of(c.count, rank_.size, rank_.rank).first : 0;
    rank_.expect(std::memcmp(sum.data() + first, result.data(), out_bytes_) == 0, c.text() + ": not the sum");
  }

  Rank& rank_;
  const Stream stream_;
  std::uint64_t in_bytes_ = 0, out_bytes_ = 0, cases_ = 0;
  std::uint64_t seed_ = 1;
};

bool is_integer(tl_dtype_t dtype) {
  return dtype >= TL_INT8;
}

std::vector<std::uint64_t> small_counts(const Rank& rank) {
  if (rank.settings.brief) return {1, 1003};
  return {1, 7, 1024, 65'539, 300'001};
}

void check_every_kind(Operations& operations, const Rank& rank) {
  int turn = 0;
  for (const std::uint64_t count : small_counts(rank)) {
    for (int type = TL_FLOAT32; type <= TL_UINT8; ++type) {
      const auto dtype = static_cast<tl_dtype_t>(type);
      for (int reduction = TL_SUM; reduction <= TL_PRODUCT; ++reduction) {
        const auto op = static_cast<tl_op_t>(reduction);
        if (op == TL_AVERAGE && is_integer(dtype)) continue;
        for (const Call call : {Call::kAllreduce, Call::kReducescatter, Call::kPushPull})
          operations.check({call, dtype, op, count, turn % 2 == 0, ++turn % 3 != 0});
      }
      operations.check({Call::kBroadcast, dtype, TL_SUM, count, true, ++turn % 2 == 0});
      operations.check({Call::kAllgather, dtype, TL_SUM, count * rank.size, false, ++turn % 2 == 0});
    }
  }
}

void check_large(Operations& operations, const Rank& rank) {
  for (std::uint64_t bytes = 4 << 20; bytes <= rank.settings.largest; bytes *= 8) {
    const std::uint64_t floats = bytes / 4 + (bytes < rank.settings.largest ? 1 : 0);
    operations.check({Call::kAllreduce, TL_FLOAT32, TL_SUM, floats, true, true});
    if (bytes > 64 << 20) continue;
    operations.check({Call::kAllreduce, TL_BFLOAT16, TL_AVERAGE, floats * 2, false, true});
    operations.check({Call::kReducescatter, TL_INT32, TL_SUM, floats, false, true});
    operations.check({Call::kBroadcast, TL_FLOAT16, TL_SUM, floats * 2, true, true});
    operations.check({Call::kAllgather, TL_FLOAT64, TL_SUM, floats / 2 / rank.size * rank.size, false, true});
    operations.check({Call::kPushPull, TL_FLOAT32, TL_SUM, floats, false, true});
  }
  const std::uint64_t largest = rank.settings.largest / 4;
  if (largest > 1 << 20) operations.check({Call::kAllreduce, TL_FLOAT32, TL_SUM, largest, true, true});
}

}  // namespace

void check_operations(Rank& rank) {
  Operations operations(rank);
  const double start = now_seconds();
  check_every_kind(operations, rank);
  check_large(operations, rank);
  rank.figures["operations"] = {
      {"cases", operations.cases()}, {"largest_bytes", rank.settings.largest}, {"seconds", now_seconds() - start}};
}

}  // namespace tensorlane::gpu_check
