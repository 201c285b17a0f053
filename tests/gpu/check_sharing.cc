// Tensors in GPU memory of the library's own, whose sums the ranks of a host form on their GPUs: bitwise equal to the
// same operations on host memory, and how long they take beside tensors that each rank copies to the host as a whole.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "gpu_check.h"

namespace tensorlane::gpu_check {
namespace {

struct Described {
  std::string name;
  tl_dtype_t dtype;
  tl_op_t op;
  std::uint64_t count;
  std::uint64_t bytes() const { return count * size_of(dtype); }
};

// A group in memory of its own; at its end it is unregistered, and the memory is freed.
class TensorGroup {
 public:
  enum class Memory { kHost, kLibrarys, kElsewhere };

  TensorGroup(Rank& rank, std::string name, const std::vector<Described>& tensors, Memory memory)
      : rank_(rank), name_(std::move(name)) {
    std::vector<std::string> names;
    std::vector<tl_tensor_desc_t> descs;
    for (const Described& tensor : tensors) names.push_back(name_ + "/" + tensor.name);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tl_tensor_desc_t& desc = descs.emplace_back(tl_tensor_desc_t TL_TENSOR_INIT);
      desc.name = names[i].c_str();
      desc.count = tensors[i].count;
      desc.dtype = tensors[i].dtype;
      desc.op = tensors[i].op;
      desc.memory = memory == Memory::kHost ? TL_MEMORY_HOST : TL_MEMORY_CUDA;
      if (memory == Memory::kLibrarys) {  // at another place in it on each rank
        const std::uint64_t offset = 64 * static_cast<std::uint64_t>(rank.rank + 1);
        void*& start = librarys_.emplace_back();
        must(tl_gpu_alloc(rank.context, 0, offset + tensors[i].bytes(), &start), "memory of a GPU");
        desc.buffer = static_cast<std::byte*>(start) + offset;
      }
      if (memory == Memory::kElsewhere)
        desc.buffer = elsewhere_.emplace_back(std::make_unique<GpuMemory>(rank.gpu, tensors[i].bytes()))->data();
    }
    tensors_.resize(descs.size());
    must(tl_register(rank.context, name_.c_str(), descs.data(), descs.size(), tensors_.data()), "registering " + name_);
  }
  ~TensorGroup() {
    must(tl_unregister(rank_.context, name_.c_str()), "unregistering " + name_);
    for (void* start : librarys_) must(tl_gpu_free(rank_.context, start), "freeing memory of a GPU");
  }
  TensorGroup(const TensorGroup&) = delete;
  TensorGroup& operator=(const TensorGroup&) = delete;

  tl_tensor_t* const& operator[](std::size_t i) const { return tensors_[i]; }

 private:
  Rank& rank_;
  const std::string name_;
  std::vector<std::unique_ptr<GpuMemory>> elsewhere_;
  std::vector<void*> librarys_;
  std::vector<tl_tensor_t*> tensors_;
};

// Ends the process unless the ranks of the host share the group.
void require_shared(const Rank& rank, const std::string& group) {
  const char* text = nullptr;
  must(tl_gpu_status(rank.context, &text), "the library's status of GPUs");
  std::string why = "nobody asked them to: set TENSORLANE_GPU_SUMS=1";
  const nlohmann::json status = nlohmann::json::parse(text);
  for (const auto& each : status.at("groups")) {
    if (each.at("name") == group && each.at("shared")) return;
    if (each.at("name") == group) why = each.at("not_shared_because").get<std::string>();
  }
  std::fprintf(stderr, "gpu_check: the host's ranks do not share: %s\n", why.c_str());
  std::exit(1);
}

std::vector<Described> tensors_of(tl_dtype_t dtype, std::uint64_t bytes) {
  std::vector<Described> tensors;
  for (const tl_op_t op : {TL_SUM, TL_AVERAGE, TL_MIN, TL_MAX, TL_PRODUCT}) {
    const bool integer = dtype == TL_INT8 || dtype == TL_INT32 || dtype == TL_INT64 || dtype == TL_UINT8;
    if (op == TL_AVERAGE && integer) continue;
    tensors.push_back({name_of(op), dtype, op, bytes / size_of(dtype)});
    tensors.push_back({std::string("odd_") + name_of(op), dtype, op, (512 << 10) / size_of(dtype) + 3});
  }
  tensors.push_back({"small", dtype, TL_SUM, 1000});  // not shared
  return tensors;
}

void check_type(Rank& rank, tl_dtype_t dtype, std::uint64_t bytes) {
  const std::vector<Described> tensors = tensors_of(dtype, bytes);
  const TensorGroup on_gpu(rank, "shared", tensors, TensorGroup::Memory::kLibrarys);
  const TensorGroup on_host(rank, "host", tensors, TensorGroup::Memory::kHost);
  require_shared(rank, "shared");
  const Stream stream(rank.gpu);
  for (std::uint64_t round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Described& tensor = tensors[i];
      const Pinned input(rank.gpu, tensor.bytes()), result(rank.gpu, tensor.bytes());
      make_values(input.bytes(), dtype, rank.rank, rank.settings.seed + 100 * i + round);
      std::memcpy(tl_tensor_buffer(on_host[i]), input.data(), tensor.bytes());
      rank.gpu.to_gpu(tl_tensor_buffer(on_gpu[i]), input.data(), tensor.bytes(), stream);
      tl_request_t* requests[2] = {};
      must(tl_post_on(&on_gpu[i], 1, stream, &requests[0]), tensor.name);
      must(tl_post(on_host[i], &requests[1]), tensor.name);
      must(tl_wait(requests[1], -1), tensor.name);
      must(tl_stream_wait(requests, 1, stream), tensor.name);
      rank.gpu.to_host(result.data(), tl_tensor_buffer(on_gpu[i]), tensor.bytes(), stream);
      rank.gpu.synchronize(stream);
      rank.expect(std::memcmp(result.data(), tl_tensor_buffer(on_host[i]), tensor.bytes()) == 0,
                  std::string(name_of(dtype)) + " " + tensor.name + ": not as on host memory");
    }
  }
}

// A group that is unregistered while its last operation is under way: what others have is mapped until that is over.
void check_leaving(Rank& rank) {
  constexpr std::uint64_t kBytes = 4 << 20;
  const Stream stream(rank.gpu);
  for (int i = 0; i < 3; ++i) {
    const TensorGroup group(rank, "leaving", {{"x", TL_BFLOAT16, TL_SUM, kBytes / 2}}, TensorGroup::Memory::kLibrarys);
    require_shared(rank, "leaving");
    rank.gpu.fill(tl_tensor_buffer(group[0]), 0, kBytes, stream);
    tl_request_t* request = nullptr;
    must(tl_post_on(&group[0], 1, stream, &request), "posting");
    must(tl_stream_wait(&request, 1, stream), "waiting");
  }
  rank.gpu.synchronize(stream);
}

double seconds_of(tl_tensor_t* tensor, const Rank& rank, void* stream) {
  must(tl_barrier(rank.context, 60), "a barrier");
  const double start = now_seconds();
  tl_request_t* request = nullptr;
  must(tl_post_on(&tensor, 1, stream, &request), "posting");
  must(tl_wait(request, -1), "waiting");
  return now_seconds() - start;
}

}  // namespace

void check_sharing(Rank& rank) {
  const std::uint64_t bytes = std::min<std::uint64_t>(rank.settings.largest, 32 << 20);
  for (const tl_dtype_t dtype :
       {TL_FLOAT32, TL_FLOAT64, TL_FLOAT16, TL_BFLOAT16, TL_INT8, TL_INT32, TL_INT64, TL_UINT8})
    check_type(rank, dtype, bytes);
  check_leaving(rank);
}

// Of a tensor that the host's ranks share, and of one that each copies, in turns.
void measure_sharing(Rank& rank) {
  const int turns = rank.settings.brief ? 3 : 15;
  for (std::uint64_t bytes = 1 << 20; bytes <= std::min<std::uint64_t>(rank.settings.largest, 256 << 20); bytes *= 4) {
    const Stream stream(rank.gpu);
    const std::vector<Described> one = {{"x", TL_FLOAT32, TL_SUM, bytes / 4}};
    const TensorGroup shared(rank, "shared", one, TensorGroup::Memory::kLibrarys);
    const TensorGroup copied(rank, "copied", one, TensorGroup::Memory::kElsewhere);
    require_shared(rank, "shared");
    for (const TensorGroup* group : {&shared, &copied}) rank.gpu.fill(tl_tensor_buffer((*group)[0]), 0, bytes, stream);
    rank.gpu.synchronize(stream);
    Samples by_sharing, by_copying, ratio;
    for (int i = -2; i < turns; ++i) {
      const double sharing = seconds_of(shared[0], rank, stream), copying = seconds_of(copied[0], rank, stream);
      if (i < 0) continue;
      by_sharing.add(sharing);
      by_copying.add(copying);
      ratio.add(sharing / copying);
    }
    rank.figures["sharing"][std::to_string(bytes)] = {
        {"shared_us", by_sharing.json(1e6)}, {"copied_us", by_copying.json(1e6)}, {"ratio", ratio.median()}};
  }
}

}  // namespace tensorlane::gpu_check
