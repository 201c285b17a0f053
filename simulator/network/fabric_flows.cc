// FabricNetwork's flows: at the sender one train of each waits for the host's port, as a NIC fetches what it sends, and
// leaves no faster than DCQCN lets it; at the receiver messages are handed over in order, though trains may have come
// again: those that were lost, or with go_back_n all from the lost one on.
#include <algorithm>

#include "common/base/assert.h"
#include "simulator/network/fabric_network.h"

namespace tensorlane::simulator {

std::uint32_t FabricNetwork::flow_of(const Message& m) {
  const std::uint64_t key = std::uint64_t{m.from.value} << 32 | std::uint64_t{m.to.value} << 16 | m.level;
  const auto [found, is_new] = flow_numbers_.try_emplace(key, static_cast<std::uint32_t>(flows_.size()));
  if (is_new) {
    const std::uint32_t port = route(m.from.value, m);
    flows_.push_back({.rate = DcqcnRate(ports_[port].rate), .port = port});
  }
  return found->second;
}

void FabricNetwork::send_by_flow(std::uint32_t index) {
  const std::uint32_t number = flow_of(messages_[index]);
  outstanding_[index] = {.flow = number};
  Flow& flow = flows_[number];
  (flow.newest == kNone ? flow.oldest : outstanding_[flow.newest].newer) = index;
  flow.newest = index;
  std::uint64_t left = messages_[index].header.payload_bytes + options_.header_bytes;
  do {
    const std::uint32_t train = new_train();
    const std::uint64_t bytes = std::min(left, options_.train.value);
    left -= bytes;
    trains_[train] = {
        .message = index, .bytes = static_cast<std::uint32_t>(bytes), .order = flow.next_order++, .round = flow.round};
    (flow.last == kNone ? flow.first : trains_[flow.last].next) = train;
    flow.last = train;
    ++outstanding_[index].left;
  } while (left > 0);
  pump(number);
}

void FabricNetwork::pump(std::uint32_t number) {
  Flow& flow = flows_[number];
  if (flow.first == kNone || flow.at_port || flow.scheduled) return;
  if (events_.now() < flow.next) {
    flow.scheduled = true;
    return events_.at(flow.next, [this, number] {
      flows_[number].scheduled = false;
      pump(number);
    });
  }
  const std::uint32_t train = flow.first;
  Train& t = trains_[train];
  flow.first = t.next;
  if (flow.first == kNone) flow.last = kNone;
  flow.at_port = true;
  t.whole = events_.now();
  t.round = flow.round;
  if (options_.go_back_n) flow.sent.push_back({t.message, t.bytes});
  if (options_.marking && flow.rate.limited()) {
    const DcqcnParameters& reaction = options_.marking->reaction;
    const double rate = flow.rate.rate(events_.now(), reaction);
    flow.next = events_.now() + Duration(static_cast<std::int64_t>(t.bytes * 8e9 / rate));
    flow.rate.sent(events_.now(), Bytes(t.bytes), reaction);
  }
  enqueue(flow.port, train);
}

void FabricNetwork::train_left(std::uint32_t number) {
  flows_[number].at_port = false;
  pump(number);
}

void FabricNetwork::train_refused(std::uint32_t train) {
  ++refused_;
  if (options_.go_back_n) {
    const Train t = trains_[train];
    free_trains_.push_back(train);
    return time_out(outstanding_[t.message].flow, t.order, t.round);
  }
  ++sent_again_;
  events_.after(options_.resend, [this, train] {
    const std::uint32_t number = outstanding_[trains_[train].message].flow;
    Flow& flow = flows_[number];
    trains_[train].ingress = kNone;
    trains_[train].marked = false;
    trains_[train].next = flow.first;
    flow.first = train;
    if (flow.last == kNone) flow.last = train;
    pump(number);
  });
}

void FabricNetwork::train_arrived(const Train& train) {
  const std::uint32_t number = outstanding_[train.message].flow;
  if (train.marked) notify(number, messages_[train.message]);
  if (options_.go_back_n && !is_next(number, train)) return;
  --outstanding_[train.message].left;
  // Not by reference: what is handed over may be answered by a flow that did not exist.
  while (flows_[number].oldest != kNone && outstanding_[flows_[number].oldest].left == 0) {
    const std::uint32_t message = flows_[number].oldest;
    flows_[number].oldest = outstanding_[message].newer;
    if (flows_[number].oldest == kNone) flows_[number].newest = kNone;
    outstanding_[message] = {};
    hand_over(message);
  }
}

// ---- a reliable connection that begins again ----

// The receiver takes it. Trains of a flow stay in order on their way, so that one before it is lost otherwise.
bool FabricNetwork::is_next(std::uint32_t number, const Train& train) {
  Flow& flow = flows_[number];
  if (train.order == flow.expected) {
    ++flow.expected;
    TL_ASSERT(!flow.sent.empty());
    flow.sent.pop_front();
    flow.answered = false;
    return true;
  }
  ++discarded_;
  // Of a round before: the sender's time-out was quicker, and what is missing is on its way.
  if (flow.answered || train.round != flow.round) return false;
  flow.answered = true;
  events_.after(way_back(messages_[train.message]), [this, number, round = flow.round] {
    if (flows_[number].round == round) go_back(number);
  });
  return false;
}

// The sender's, from the loss on. A round that has begun since has sent it again, and then that counts.
void FabricNetwork::time_out(std::uint32_t number, std::uint32_t order, std::uint32_t round) {
  if (flows_[number].round != round) return;
  events_.after(options_.resend, [this, number, order, round] {
    if (flows_[number].round != round) return;
    // What left before it is on its way yet: acknowledgements still come.
    if (flows_[number].expected != order) return time_out(number, order, round);
    go_back(number);
  });
}

// What is on its way of the round before reaches the receiver before any of this, and is thrown away there.
void FabricNetwork::go_back(std::uint32_t number) {
  Flow& flow = flows_[number];
  ++flow.round;
  sent_again_ += flow.sent.size();
  std::uint32_t order = flow.expected + static_cast<std::uint32_t>(flow.sent.size());
  for (auto sent = flow.sent.rbegin(); sent != flow.sent.rend(); ++sent) {
    const std::uint32_t train = new_train();
    trains_[train] = {.message = sent->message, .bytes = sent->bytes, .next = flow.first, .order = --order};
    flow.first = train;
    if (flow.last == kNone) flow.last = train;
  }
  flow.sent.clear();
  pump(number);
}

// ---- congestion ----

void FabricNetwork::mark(std::uint32_t index, std::uint32_t train) {
  const Marking& m = *options_.marking;
  Train& t = trains_[train];
  const std::uint8_t level = messages_[t.message].level;
  if ((m.levels >> level & 1) == 0 || t.marked) return;
  const Port& port = ports_[index];
  const std::size_t queue = options_.discipline == Discipline::kFifo ? 0 : level;
  const bool from_it = port.sending && (options_.discipline == Discipline::kFifo || port.sending_level == level);
  const std::uint64_t waits = port.queues[queue].bytes - (from_it ? port.sending_bytes : 0);
  const double probability = mark_probability(m, waits, t.bytes);
  if (probability == 0 || (probability < 1 && !random_.chance(probability))) return;
  t.marked = true;
  ++marked_;
}

// By the receiver, in a packet that is small and goes first everywhere.
void FabricNetwork::notify(std::uint32_t number, const Message& message) {
  Flow& flow = flows_[number];
  const Time now = events_.now();
  if (flow.notified && now - *flow.notified < options_.marking->reaction.notification) return;
  flow.notified = now;
  ++notified_;
  events_.after(way_back(message),
                [this, number] { flows_[number].rate.notified(events_.now(), options_.marking->reaction); });
}

}  // namespace tensorlane::simulator
