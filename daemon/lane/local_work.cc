#include "daemon/lane/local_work.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::lane {
namespace {

// Sums elements [from, from + count) of all ranks into `out`.
void reduce_block(const LocalTask& task, Buffer out, Dtype out_dtype, double divisor, std::uint64_t from,
                  std::uint64_t count, ports::Reducer& reducer) {
  TL_ASSERT(task.buffers.size() <= ports::kMaxReduceSources);
  std::array<ports::ReduceSource, ports::kMaxReduceSources> sources;
  const Dtype dtype = task.tensor->dtype;
  for (std::size_t i = 0; i < task.buffers.size(); ++i)
    sources[i] = {task.buffers[i].data() + from * dtype_size(dtype), dtype};
  reducer.reduce(out.data() + from * dtype_size(out_dtype), out_dtype, std::span(sources).first(task.buffers.size()),
                 count, divisor);
}

// Copies elements [from, from + count) of the leader to everybody else. Returns the bytes written.
std::uint64_t spread_block(const LocalTask& task, std::uint64_t from, std::uint64_t count) {
  const std::size_t size = dtype_size(task.tensor->dtype);
  const std::byte* source = task.buffers[task.leader].data() + from * size;
  std::uint64_t copied = 0;
  for (std::size_t i = 0; i < task.buffers.size(); ++i) {
    if (i == task.leader) continue;
    std::memcpy(task.buffers[i].data() + from * size, source, count * size);
    copied += count * size;
  }
  return copied;
}

// Copies what ranks other than the leader own of elements [from, from + count) of a gathered buffer into the leader's.
std::uint64_t collect_block(const LocalTask& task, std::uint64_t from, std::uint64_t count) {
  const std::size_t size = dtype_size(task.tensor->dtype);
  const std::uint64_t per_rank = task.tensor->elements / task.world_size;
  std::uint64_t copied = 0;
  for (std::size_t i = 0; i < task.buffers.size(); ++i) {
    if (i == task.leader) continue;
    const std::uint64_t begin = std::max(from, task.ranks[i] * per_rank);
    const std::uint64_t end = std::min(from + count, (task.ranks[i] + 1) * per_rank);
    if (begin >= end) continue;
    std::memcpy(task.buffers[task.leader].data() + begin * size, task.buffers[i].data() + begin * size,
                (end - begin) * size);
    copied += (end - begin) * size;
  }
  return copied;
}

}  // namespace

bool advance(LocalTask& task, ports::Reducer& reducer, std::uint64_t* reduced_bytes, std::uint64_t* copied_bytes) {
  const protocol::PlanTensor& tensor = *task.tensor;
  const Buffer leader = task.buffers[task.leader];
  // A block is bounded by its widest form, so that float32 sums of 16-bit tensors stay within one operation, too.
  const std::uint64_t per_block = kMaxOperation.value / (task.wide.empty() ? dtype_size(tensor.dtype) : 4);
  const std::uint64_t count = std::min(per_block, tensor.elements - task.next);
  const std::uint64_t bytes = count * dtype_size(tensor.dtype);
  const double divisor = tensor.reduce == ReduceOp::kAverage ? static_cast<double>(task.world_size) : 1.0;
  switch (task.step) {
    case LocalStep::kNone:
      return true;
    case LocalStep::kReduce:
      reduce_block(task, task.wide.empty() ? leader : task.wide, task.wide.empty() ? tensor.dtype : Dtype::kFloat32,
                   1.0, task.next, count, reducer);
      *reduced_bytes += bytes * task.buffers.size();
      break;
    case LocalStep::kFinish:
      reduce_block(task, leader, tensor.dtype, divisor, task.next, count, reducer);
      *reduced_bytes += bytes * task.buffers.size();
      *copied_bytes += spread_block(task, task.next, count);
      break;
    case LocalStep::kCollect:
      *copied_bytes += collect_block(task, task.next, count);
      break;
    case LocalStep::kSpread:
      *copied_bytes += spread_block(task, task.next, count);
      break;
  }
  task.next += count;
  return task.next >= tensor.elements;
}

}  // namespace tensorlane::lane
