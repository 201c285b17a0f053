// Contributions that come to exist in parts, as those that are copied from a GPU, and results that are in place in
// parts.
#include <algorithm>
#include <bit>

#include "simulator/host/client.h"

namespace tensorlane::simulator {

using protocol::PartRun;

namespace {

// What is where nothing exists yet.
std::byte rubbish(std::uint64_t offset) {
  return static_cast<std::byte>(0x5a ^ (offset * 11));
}

}  // namespace

// What a host tells of a result that stays with its owners is its own.
void Results::check_parts(Rank rank, TensorId tensor, Sequence sequence, const PartRun& parts,
                          std::span<const std::byte> got) {
  const protocol::PlanTensor& planned = scenario_.plan.tensors[tensor.value];
  const std::vector<std::byte>& right = expected(tensor, sequence);
  const std::uint64_t from = parts.first * protocol::part_bytes(got.size()),
                      to = std::min<std::uint64_t>(from + parts.count * protocol::part_bytes(got.size()), got.size());
  const std::size_t size = dtype_size(planned.dtype);
  for (std::uint64_t i = from / size; i < to / size; ++i) {
    const bool owned = !stays_with_owners(planned.operation) || values_.owner(planned, i) == rank;
    if (owned && std::ranges::equal(got.subspan(i * size, size), std::span(right).subspan(i * size, size))) continue;
    return findings_.fail("parts", "rank {}: {} '{}' of {} elements, sequence {}: element {} is not in place",
                          rank.value, operation_name(planned.operation), planned.name, planned.elements, sequence.value,
                          i);
  }
}

bool Client::begins_in_parts(const protocol::PlanTensor& planned) {
  const double chance = context_.scenario.client.in_parts;
  if (exchanges(planned.operation)) return false;
  return chance > 0 && planned.operation != Operation::kBarrier && of_parts_.chance(chance);
}

// The bytes of these parts that come from this rank: visit(offset).
template <typename Visit>
void Client::each_byte(std::size_t index, const PartRun& parts, Visit&& visit) const {
  const protocol::PlanTensor& planned = context_.scenario.plan.tensors[index];
  const std::uint64_t bytes = tensors_[index].buffer.length, size = dtype_size(planned.dtype),
                      part = protocol::part_bytes(bytes), from = parts.first * part,
                      to = std::min(from + parts.count * part, bytes);
  for (std::uint64_t i = from / size; i < to / size; ++i) {
    if (!context_.values.brings(rank_, planned, i)) continue;
    for (std::uint64_t at = i * size; at < (i + 1) * size; ++at) visit(at);
  }
}

void Client::begin_in_parts(std::size_t index) {
  Tensor& t = tensors_[index];
  const std::span<std::byte> buffer = context_.memory.resolve(t.buffer);
  const PartRun all{0, protocol::part_count(buffer.size())};
  t.in_parts = InParts{.contribution = std::vector<std::byte>(buffer.size()), .missing = all.mask()};
  context_.values.contribute(rank_, context_.scenario.plan.tensors[index], Sequence(t.sequence),
                             t.in_parts->contribution);
  std::ranges::copy(t.in_parts->contribution, buffer.begin());
  each_byte(index, all, [&](std::uint64_t at) { buffer[at] = rubbish(at); });
  context_.trace.line(host_, "rank {} begins tensor {} sequence {} in {} parts", rank_.value, index, t.sequence,
                      all.count);
  ++begun_in_parts_;
  go_on(index, t.sequence);
}

void Client::go_on_later(std::size_t index) {
  context_.events.after(of_parts_.between(Duration(0), context_.scenario.client.part_takes),
                        [this, index, sequence = tensors_[index].sequence] { go_on(index, sequence); });
}

// One or a few runs of parts come to exist, or all the rest, if anything of it has been said before.
void Client::go_on(std::size_t index, std::uint64_t sequence) {
  Tensor& t = tensors_[index];
  if (dead_ || failed_ || !t.in_parts || t.sequence != sequence) return;  // it has failed meanwhile
  if (frozen_) {
    t.in_parts->stands = true;
    return;
  }
  check_placed(index);
  const bool begun = t.in_parts->missing != PartRun{0, protocol::part_count(t.buffer.length)}.mask();
  if (begun && (t.in_parts->missing == 0 || of_parts_.chance(0.15))) return say_whole(index);
  do {
    // From any of the missing ones on.
    const std::uint64_t missing = t.in_parts->missing;
    const int from = static_cast<int>(of_parts_.below(protocol::kMaxParts));
    PartRun run = protocol::first_run(std::rotr(missing, from));
    run.first = (run.first + static_cast<std::uint32_t>(from)) % protocol::kMaxParts;
    run.count = std::min(run.count, protocol::kMaxParts - run.first);
    run.count = static_cast<std::uint32_t>(of_parts_.between(1, std::min(run.count, of_parts_.chance(0.2) ? 64U : 6U)));
    write_parts(index, run);
    context_.submit(
        {static_cast<std::uint32_t>(index), protocol::kFlagParts, protocol::with_parts(t.sequence - t.base, run)});
    if (!t.in_parts) return;  // the job is over
  } while (t.in_parts->missing != 0 && of_parts_.chance(0.3));
  if (t.in_parts->missing == 0 && of_parts_.chance(0.5)) return say_whole(index);
  go_on_later(index);
}

void Client::say_whole(std::size_t index) {
  Tensor& t = tensors_[index];
  while (t.in_parts->missing != 0) write_parts(index, protocol::first_run(t.in_parts->missing));
  t.in_parts->whole = true;
  context_.submit({static_cast<std::uint32_t>(index), 0, t.sequence - t.base});
}

// Nothing has touched what does not exist.
void Client::write_parts(std::size_t index, const PartRun& parts) {
  Tensor& t = tensors_[index];
  const std::span<std::byte> buffer = context_.memory.resolve(t.buffer);
  std::optional<std::uint64_t> touched;
  each_byte(index, parts, [&](std::uint64_t at) {
    if (buffer[at] != rubbish(at) && !touched) touched = at;
    buffer[at] = t.in_parts->contribution[at];
  });
  t.in_parts->missing &= ~parts.mask();
  if (!touched) return;
  context_.findings.fail("parts", "rank {}: tensor {}, sequence {}: byte {} was written before it existed", rank_.value,
                         index, t.sequence, *touched);
}

void Client::placed(TensorId tensor, Sequence sequence, const PartRun& parts) {
  const bool known = tensor.value < tensors_.size() && tensors_[tensor.value].in_parts &&
                     tensors_[tensor.value].sequence == tensors_[tensor.value].base + sequence.value;
  if (!known || !parts.is_in(protocol::part_count(tensors_[tensor.value].buffer.length)) ||
      (tensors_[tensor.value].in_parts->placed & parts.mask()) != 0) {
    return context_.findings.fail(
        "parts", "rank {}: tensor {}, sequence {}: parts [{}, {}) are in place, which were not awaited", rank_.value,
        tensor.value, sequence.value, parts.first, parts.first + parts.count);
  }
  Tensor& t = tensors_[tensor.value];
  t.in_parts->placed |= parts.mask();
  parts_placed_ += parts.count;
  context_.results.check_parts(rank_, tensor, Sequence(t.sequence), parts, context_.memory.resolve(t.buffer));
}

// What is in place does not change any more.
void Client::check_placed(std::size_t index) const {
  const Tensor& t = tensors_[index];
  for (std::uint64_t left = t.in_parts->placed; left != 0;) {
    const PartRun run = protocol::first_run(left);
    left &= ~run.mask();
    context_.results.check_parts(rank_, TensorId(static_cast<std::uint32_t>(index)), Sequence(t.sequence), run,
                                 context_.memory.resolve(t.buffer));
  }
}

void Client::end_in_parts(std::size_t index, bool ok) {
  Tensor& t = tensors_[index];
  if (ok && !t.in_parts->whole) {
    context_.findings.fail("parts", "rank {}: tensor {}, sequence {} completes before all of it exists", rank_.value,
                           index, t.sequence);
  }
  if (ok) check_placed(index);
  t.in_parts.reset();
}

}  // namespace tensorlane::simulator
