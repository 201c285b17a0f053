#include "daemon/host/local_work.h"

#include <algorithm>

#include "common/base/assert.h"
#include "common/protocol/rank_block.h"

namespace tensorlane::host {
namespace {

// Elements of `size` bytes that one block has of each rank's buffer: all ranks' together are at most kMaxOperation, so
// that a block takes as long however many ranks a job has.
std::uint64_t block_elements(std::size_t size, std::size_t ranks) {
  return kMaxOperation.value / (size * std::max<std::size_t>(ranks, 1));
}

// Combines elements [from, from + count) of all ranks in `out`.
void reduce_block(const LocalRanks& local, const protocol::PlanTensor& tensor, Buffer out, Dtype out_dtype,
                  double divisor, std::uint64_t from, std::uint64_t count, ports::Block& block) {
  const std::span<ports::ReduceSource> sources =
      block.add_sum(out.data() + from * dtype_size(out_dtype), out_dtype, local.buffers.size(), count,
                    combining(tensor.reduce), divisor);
  for (std::size_t i = 0; i < local.buffers.size(); ++i)
    sources[i] = {local.buffers[i].data() + from * dtype_size(tensor.dtype), tensor.dtype};
}

// Copies `bytes` at `offset` of the leader to everybody else. Returns the bytes written.
std::uint64_t spread_block(const LocalRanks& local, std::uint32_t leader, std::uint64_t offset, std::uint64_t bytes,
                           ports::Block& block) {
  const std::byte* source = local.buffers[leader].data() + offset;
  std::uint64_t copied = 0;
  for (std::size_t i = 0; i < local.buffers.size(); ++i) {
    if (i == leader) continue;
    block.add_copy(local.buffers[i].data() + offset, source, bytes);
    copied += bytes;
  }
  return copied;
}

// Copies what ranks other than the leader own of elements [from, from + count) of a gathered buffer into the leader's.
std::uint64_t collect_block(const LocalRanks& local, std::uint32_t leader, const protocol::PlanTensor& tensor,
                            std::uint64_t from, std::uint64_t count, ports::Block& block) {
  const std::size_t size = dtype_size(tensor.dtype);
  const std::uint64_t per_rank = tensor.elements / local.world_size;
  std::uint64_t copied = 0;
  for (std::size_t i = 0; i < local.buffers.size(); ++i) {
    if (i == leader) continue;
    const std::uint64_t begin = std::max(from, local.ranks[i] * per_rank);
    const std::uint64_t end = std::min(from + count, (local.ranks[i] + 1) * per_rank);
    if (begin >= end) continue;
    block.add_copy(local.buffers[leader].data() + begin * size, local.buffers[i].data() + begin * size,
                   (end - begin) * size);
    copied += (end - begin) * size;
  }
  return copied;
}

// Copies of elements [from, from + count) of the leader what each rank gets of a reduce-scatter.
std::uint64_t scatter_block(const LocalRanks& local, std::uint32_t leader, const protocol::PlanTensor& tensor,
                            std::uint64_t from, std::uint64_t count, ports::Block& block) {
  const std::size_t size = dtype_size(tensor.dtype);
  std::uint64_t copied = 0;
  for (std::size_t i = 0; i < local.buffers.size(); ++i) {
    if (i == leader) continue;
    const auto part = protocol::rank_block(tensor.elements, tensor.row, local.world_size, local.ranks[i]);
    const std::uint64_t begin = std::max(from, part.offset);
    const std::uint64_t end = std::min(from + count, part.offset + part.elements);
    if (begin >= end) continue;
    block.add_copy(local.buffers[i].data() + begin * size, local.buffers[leader].data() + begin * size,
                   (end - begin) * size);
    copied += (end - begin) * size;
  }
  return copied;
}

// The leader's result to all who get it: of a reduce nobody, the leader being the root where it lives here.
std::uint64_t give_block(const LocalRanks& local, std::uint32_t leader, const protocol::PlanTensor& tensor,
                         std::uint64_t from, std::uint64_t count, ports::Block& block) {
  if (tensor.operation == Operation::kReduce) return 0;
  if (tensor.operation == Operation::kReduceScatter) return scatter_block(local, leader, tensor, from, count, block);
  const std::size_t size = dtype_size(tensor.dtype);
  return spread_block(local, leader, from * size, count * size, block);
}

}  // namespace

Moved add_block(LocalTask& task, const protocol::PlanTensor& tensor, const LocalRanks& local, ports::Block& block) {
  const Buffer leader = local.buffers[task.leader];
  // A block is bounded by its widest form, so that float32 sums of 16-bit tensors stay within one operation, too.
  const std::size_t size = dtype_size(tensor.dtype);
  const std::uint64_t per_block = block_elements(task.wide.empty() ? size : sizeof(float), local.buffers.size());
  const std::uint64_t count = std::min(per_block, tensor.elements - task.next);
  const std::uint64_t bytes = count * size;
  const double divisor = tensor.reduce == ReduceOp::kAverage ? static_cast<double>(local.world_size) : 1.0;
  Moved moved;
  switch (task.step) {
    case LocalStep::kNone:
      TL_ASSERT(false);
      break;
    case LocalStep::kReduce:
      if (task.wide.empty()) {
        reduce_block(local, tensor, leader, tensor.dtype, 1.0, task.next, count, block);
      } else {
        reduce_block(local, tensor, task.wide, Dtype::kFloat32, 1.0, task.next, count, block);
      }
      moved.reduced += bytes * local.buffers.size();
      break;
    case LocalStep::kFinish:
      reduce_block(local, tensor, leader, tensor.dtype, divisor, task.next, count, block);
      moved.reduced += bytes * local.buffers.size();
      moved.copied += give_block(local, task.leader, tensor, task.next, count, block);
      break;
    case LocalStep::kCollect:
      moved.copied += collect_block(local, task.leader, tensor, task.next, count, block);
      break;
    case LocalStep::kSpread:
      moved.copied += give_block(local, task.leader, tensor, task.next, count, block);
      break;
  }
  task.next += count;
  ++task.blocks;
  return moved;
}

Moved add_exchange_block(LocalTask& task, const protocol::HostExchange& exchange, std::size_t element_bytes,
                         std::span<const Buffer> buffers, Buffer own, ports::Block& block) {
  const std::uint64_t of_copy = exchange.block();
  const auto buffer = [&](std::uint32_t whose) { return whose == protocol::LocalCopy::kHost ? own : buffers[whose]; };
  std::uint64_t room = kMaxOperation.value / element_bytes;
  Moved moved;
  while (!task.all_given() && room > 0 && block.has_room(1, 1)) {
    const std::uint64_t index = task.next / of_copy, done = task.next % of_copy;
    const auto copy = task.step == LocalStep::kCollect ? exchange.collect(index) : exchange.spread(index);
    if (!copy) {
      task.next += of_copy;
      continue;
    }
    const std::uint64_t count = std::min(of_copy - done, room), bytes = count * element_bytes;
    block.add_copy(buffer(copy->to).subspan((copy->to_place + done) * element_bytes, bytes).data(),
                   buffer(copy->from).subspan((copy->from_place + done) * element_bytes, bytes).data(), bytes);
    task.next += count;
    room -= count;
    moved.copied += bytes;
  }
  ++task.blocks;
  return moved;
}

Moved add_batch_block(LocalTask& task, const protocol::PlanTensor& batch, Buffer own,
                      std::span<const engine::BatchGate::Member> members, const BuffersOf& buffers_of,
                      ports::Block& block) {
  const std::size_t size = dtype_size(batch.dtype);
  const std::size_t ranks = buffers_of(members[task.member].tensor).size();
  const std::uint64_t end =
      std::min(batch.elements, task.next + block_elements(task.wide.empty() ? size : sizeof(float), ranks));
  Moved moved;
  const std::size_t steps = task.step == LocalStep::kSpread ? ranks : 1;
  while (task.next < end && block.has_room(steps, ranks)) {
    const engine::BatchGate::Member& member = members[task.member];
    const std::uint64_t from = task.next - member.offset, count = std::min(end - task.next, member.elements - from);
    const std::span<const Buffer> buffers = buffers_of(member.tensor);
    const Buffer inside = own.subspan(task.next * size, count * size);
    const std::uint64_t bytes = count * size * buffers.size();
    if (task.step == LocalStep::kSpread) {
      for (const Buffer& buffer : buffers) block.add_copy(buffer.data() + from * size, inside.data(), inside.size());
      moved.copied += bytes;
    } else if (buffers.size() == 1 && task.wide.empty()) {
      block.add_copy(inside.data(), buffers[0].data() + from * size, inside.size());
      moved.copied += bytes;
    } else {
      // As reduce_block(), from one place into another.
      const bool wide = !task.wide.empty();
      const std::span<ports::ReduceSource> sources =
          block.add_sum(wide ? task.wide.data() + task.next * sizeof(float) : inside.data(),
                        wide ? Dtype::kFloat32 : batch.dtype, buffers.size(), count, combining(batch.reduce), 1.0);
      for (std::size_t i = 0; i < buffers.size(); ++i) sources[i] = {buffers[i].data() + from * size, batch.dtype};
      moved.reduced += bytes;
    }
    task.next += count;
    if (task.next == member.offset + member.elements) ++task.member;
  }
  ++task.blocks;
  return moved;
}

}  // namespace tensorlane::host
