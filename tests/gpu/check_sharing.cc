// Tensors in GPU memory of the library's own, whose sums the ranks of a host form on their GPUs: bitwise equal to the
// same operations on host memory, and how long they take beside tensors that each rank copies to the host as a whole.
#include <cstring>

#include "gpu_check.h"

namespace tensorlane::gpu_check {
namespace {

struct Tensor {
  std::string name;
  tl_dtype_t dtype;
  tl_op_t op;
  std::uint64_t count;
  std::uint64_t bytes() const { return count * size_of(dtype); }
};

// Null buffers: the library allocates them.
std::vector<tl_tensor_t*> register_all(Rank& rank, const std::string& group, const std::vector<Tensor>& tensors,
                                       tl_memory_t memory, void* buffer = nullptr) {
  std::vector<std::string> names;
  std::vector<tl_tensor_desc_t> descs;
  for (const Tensor& tensor : tensors) names.push_back(group + "/" + tensor.name);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tl_tensor_desc_t& desc = descs.emplace_back(tl_tensor_desc_t TL_TENSOR_INIT);
    desc.name = names[i].c_str();
    desc.count = tensors[i].count;
    desc.dtype = tensors[i].dtype;
    desc.op = tensors[i].op;
    desc.memory = memory;
    desc.buffer = buffer;
  }
  std::vector<tl_tensor_t*> registered(descs.size());
  must(tl_register(rank.context, group.c_str(), descs.data(), descs.size(), registered.data()), "registering " + group);
  return registered;
}

// Ends the process unless the ranks of the host share the group.
void require_shared(const Rank& rank, const std::string& group) {
  const char* text = nullptr;
  must(tl_gpu_status(rank.context, &text), "the library's status of GPUs");
  for (const auto& each : nlohmann::json::parse(text).at("groups")) {
    if (each.at("name") != group || each.at("shared")) continue;
    std::fprintf(stderr, "gpu_check: the host's ranks do not share: %s\n",
                 each.at("not_shared_because").get<std::string>().c_str());
    std::exit(1);
  }
}

std::vector<Tensor> tensors_of(tl_dtype_t dtype, std::uint64_t bytes) {
  std::vector<Tensor> tensors;
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
  const std::vector<Tensor> tensors = tensors_of(dtype, bytes);
  const std::vector<tl_tensor_t*> on_gpu = register_all(rank, "shared", tensors, TL_MEMORY_CUDA);
  const std::vector<tl_tensor_t*> on_host = register_all(rank, "host", tensors, TL_MEMORY_HOST);
  require_shared(rank, "shared");
  const Stream stream(rank.gpu);
  for (std::uint64_t round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
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
  must(tl_unregister(rank.context, "shared"), "unregistering");
  must(tl_unregister(rank.context, "host"), "unregistering");
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
}

// Of a tensor that the host's ranks share, and of one that each copies, in turns.
void measure_sharing(Rank& rank) {
  const int turns = rank.settings.brief ? 3 : 15;
  for (std::uint64_t bytes = 1 << 20; bytes <= std::min<std::uint64_t>(rank.settings.largest, 256 << 20); bytes *= 4) {
    const Stream stream(rank.gpu);
    const GpuMemory memory(rank.gpu, bytes);
    const std::vector<Tensor> one = {{"x", TL_FLOAT32, TL_SUM, bytes / 4}};
    tl_tensor_t* shared = register_all(rank, "shared", one, TL_MEMORY_CUDA)[0];
    tl_tensor_t* copied = register_all(rank, "copied", one, TL_MEMORY_CUDA, memory.data())[0];
    rank.gpu.fill(tl_tensor_buffer(shared), 0, bytes, stream);
    rank.gpu.fill(memory.data(), 0, bytes, stream);
    rank.gpu.synchronize(stream);
    Samples by_sharing, by_copying, ratio;
    for (int i = -2; i < turns; ++i) {
      const double sharing = seconds_of(shared, rank, stream), copying = seconds_of(copied, rank, stream);
      if (i < 0) continue;
      by_sharing.add(sharing);
      by_copying.add(copying);
      ratio.add(sharing / copying);
    }
    rank.figures["sharing"][std::to_string(bytes)] = {
        {"shared_us", by_sharing.json(1e6)}, {"copied_us", by_copying.json(1e6)}, {"ratio", ratio.median()}};
    must(tl_unregister(rank.context, "shared"), "unregistering");
    must(tl_unregister(rank.context, "copied"), "unregistering");
  }
}

}  // namespace tensorlane::gpu_check
