// Operations whose contribution comes to exist in parts (common/protocol/parts.h). Where the buffer of the host's only
// rank goes to the network as it is, the engines begin with the first part; else the parts are awaited here. Results
// come back in parts from the operations that the engines began in parts.
#include <bit>

#include "common/protocol/parts.h"
#include "daemon/host/context.h"
#include "daemon/host/job.h"

namespace tensorlane::host {
namespace {

std::uint64_t all_parts(const protocol::PlanTensor& tensor) {
  return protocol::PartRun{0, protocol::part_count(tensor.bytes())}.mask();
}

}  // namespace

// Whether the engines can begin with a part of the tensor.
bool Job::goes_in_parts(const protocol::PlanTensor& tensor) const {
  if (exchanges(tensor.operation)) return false;
  return members_of(tensor).between_hosts() && members_of(tensor).here() == 1 && !tensor.in_batch() &&
         first_step(tensor) == LocalStep::kNone;
}

// Null, or what the entry breaks.
const char* Job::submit_parts(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now) {
  LocalTensor& t = tensors_[entry.tensor];
  const protocol::PlanTensor& planned = plan_.tensors[entry.tensor];
  const std::uint64_t sequence = protocol::sequence_in(entry.sequence);
  const protocol::PartRun run = protocol::parts_in(entry.sequence);
  if (planned.operation == Operation::kBarrier) return "a part of a barrier";
  if (exchanges(planned.operation)) return "a part of what goes from rank to rank";
  if (!run.is_in(protocol::part_count(planned.bytes()))) return "a part that is not in its tensor";
  const bool goes_on = t.in_parts && sequence == t.sequence[local];
  if (sequence != t.completed + 1 || (!goes_on && sequence != t.sequence[local] + 1))
    return "a part of an operation out of sequence";
  if (!goes_in_parts(planned)) return nullptr;  // it begins when all is there
  if ((t.parts & run.mask()) != 0) return "a part twice";
  t.parts |= run.mask();
  if (!goes_on) {
    t.in_parts = true;
    t.parts_over = false;
    t.sequence[local] = sequence;
    t.placed->fill(0);
    arrived(local, t, planned, now);
  } else if (t.sets_left > 0) {
    tell_parts(t, planned, run.mask(), now);
  }
  return nullptr;
}

// Of an operation that has begun in parts: the rest of it exists. Where nobody needed that (a broadcast's receiver), or
// all had been told part by part, the operation may be over between the hosts; it completes here, so that a client is
// told of it when it has said all that it says of it.
void Job::submit_rest(LocalTensor& t, const protocol::PlanTensor& tensor, Time now) {
  const std::uint64_t rest = all_parts(tensor) & ~t.parts;
  t.parts |= rest;
  t.parts_over = true;
  if (t.awaits_rest) return complete(t, tensor, true, now);
  if (t.sets_left > 0) tell_parts(t, tensor, rest, now);
}

void Job::tell_parts(const LocalTensor& t, const protocol::PlanTensor& tensor, std::uint64_t parts, Time now) {
  const std::uint64_t size = protocol::part_bytes(tensor.bytes()) / dtype_size(tensor.dtype);
  while (parts != 0) {
    const protocol::PartRun run = protocol::first_run(parts);
    parts &= ~run.mask();
    const std::uint64_t offset = run.first * size, end = std::min(offset + run.count * size, tensor.elements);
    const engine::PartReady part{tensor.id, t.next_sequence(), offset, end - offset};
    for (const Set& set : sets_) set.rails->part_ready(part, now);
  }
}

// Parts of which every element is in place are told to the rank, the only one here that the tensor is of, while its
// ring has room.
void Job::rails_placed(const engine::PartInPlace& part, Time /*now*/) {
  LocalTensor& t = tensors_[part.tensor.value];
  const protocol::PlanTensor& tensor = plan_.tensors[part.tensor.value];
  if (state_ != State::kRunning || !t.in_parts || part.sequence != t.next_sequence()) return;
  const std::uint64_t size = protocol::part_bytes(tensor.bytes()) / dtype_size(tensor.dtype);
  std::uint64_t whole = 0;
  for (std::uint64_t at = part.offset; at < part.offset + part.elements;) {
    const std::uint64_t index = at / size, begin = index * size, end = std::min(begin + size, tensor.elements);
    const std::uint64_t to = std::min(end, part.offset + part.elements);
    std::uint32_t& placed = (*t.placed)[index];
    placed += static_cast<std::uint32_t>(to - at);
    if (placed == end - begin) whole |= std::uint64_t{1} << index;
    at = to;
  }
  const auto& session = sessions_[t.members->locals().front()];
  while (whole != 0 && session) {
    const protocol::PartRun run = protocol::first_run(whole);
    whole &= ~run.mask();
    session->parts_in_place({tensor.id.value, Code::kInProgress, protocol::with_parts(t.completed + 1, run)});
  }
}

}  // namespace tensorlane::host
