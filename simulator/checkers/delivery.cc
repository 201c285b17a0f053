#include "simulator/checkers/delivery.h"

#include <algorithm>

#include "simulator/workload/values.h"

namespace tensorlane::simulator {

void DeliveryChecker::landed(const Frame& frame, bool contribution) {
  const protocol::FrameHeader& h = frame.header;
  const TensorWorld& world = worlds_[h.tensor.value];
  if (!world.place_of(frame.from) || !world.place_of(frame.to)) {
    findings_.fail("delivery", "host {} got slice {} of tensor {} from host {}, and one of them has no part in it",
                   frame.to.value, h.slice, h.tensor.value, frame.from.value);
  }
  Operation& operation = open_[{h.tensor.value, h.sequence.value}];
  const Piece piece{frame.from.value, frame.to.value, contribution, h.slice, h.offset};
  // A barrier's contributions and results both land in scratch of the engine and cannot be told apart; completing at
  // all is what it is for.
  const bool barrier = scenario_.plan.tensors[h.tensor.value].operation == tensorlane::Operation::kBarrier;
  if (!barrier && !operation.pieces.insert(piece).second) {
    findings_.fail("delivery", "host {} got offset {} of slice {} of tensor {}, sequence {} from host {} twice",
                   frame.to.value, h.offset, h.slice, h.tensor.value, h.sequence.value, frame.from.value);
  }
  (contribution ? operation.contributed : operation.results) += h.payload_bytes;
  bytes_ += h.payload_bytes;
  ++operations_;
}

void DeliveryChecker::completed(TensorId tensor, Sequence sequence) {
  const protocol::PlanTensor& planned = scenario_.plan.tensors[tensor.value];
  Operation& operation = open_[{tensor.value, sequence.value}];
  if (++operation.completed < worlds_[tensor.value].hosts()) return;
  if (planned.operation != tensorlane::Operation::kBarrier) check_counts(planned, sequence, operation);
  open_.erase({tensor.value, sequence.value});
}

void DeliveryChecker::check_counts(const protocol::PlanTensor& planned, Sequence sequence, const Operation& operation) {
  // Whatever the pattern: each element crosses to every other host once as a result, unless it stays where it is, or is
  // for one rank only.
  const TensorWorld& world = worlds_[planned.id.value];
  std::uint64_t results = (world.hosts() - 1) * planned.bytes();
  if (stays_with_owners(planned.operation)) results = 0;
  if (exchanges(planned.operation)) results = exchanged_bytes(planned, world.rank_hosts());
  const std::uint64_t contributed = contributed_bytes(planned, world.rank_hosts(), world.hosts());
  if (operation.results != results || operation.contributed != contributed) {
    findings_.fail("delivery",
                   "tensor {}, sequence {} is complete on all hosts after {} bytes of contributions and {} of results "
                   "instead of {} and {}",
                   planned.id.value, sequence.value, operation.contributed, operation.results, contributed, results);
  }
}

void StagingChecker::landing(std::span<const std::byte> place) {
  if (!inside(place)) return;
  const auto begin = static_cast<std::uint64_t>(place.data() - staging_.data()), end = begin + place.size();
  auto next = live_.lower_bound(begin);
  const bool hits_next = next != live_.end() && next->first < end;
  const bool hits_previous = next != live_.begin() && std::prev(next)->second > begin;
  if (judges_ && (hits_next || hits_previous)) {
    findings_.fail("staging", "host {}: [{}, {}) of the staging is landed on before what lies there is summed",
                   host_.value, begin, end);
  }
  live_[begin] = end;
  held_ += place.size();
}

void StagingChecker::consumed(std::span<const std::byte> source) {
  if (!inside(source)) return;
  const auto begin = static_cast<std::uint64_t>(source.data() - staging_.data()), end = begin + source.size();
  auto it = live_.lower_bound(begin);
  if (it != live_.begin() && std::prev(it)->second > begin) --it;
  while (it != live_.end() && it->first < end) {
    const auto [from, to] = *it;
    it = live_.erase(it);
    held_ -= std::min(to, end) - std::max(from, begin);
    if (from < begin) live_.emplace(from, begin);
    if (to > end) it = live_.emplace(end, to).first;
  }
}

}  // namespace tensorlane::simulator
