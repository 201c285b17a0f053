// Flows that are up: how they begin, their packets both ways, their timers, and how they end.
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "daemon/transport/dpdk/transport_impl.h"

namespace tensorlane::dpdk {
namespace {

constexpr std::uint8_t kStranger = 0xff;   // a packet of no flow
constexpr std::size_t kPacketsInTurn = 8;  // sent of a flow, before others of its class have their turn
constexpr std::size_t kPacketsPerClass = 64;
constexpr Duration kLeastTimer = microseconds(50);
// At most so many entries.
constexpr std::size_t kTimersOfFlow = 4, kMoreTimers = 64;
constexpr Duration kNotReachable = milliseconds(10);  // then a flow looks again whether its peer is

}  // namespace

// ---- beginning ----

void DpdkTransport::on_connected(handshake::Connection& connection) {
  const ports::FlowKey key = connection.key();
  settling_.erase(key);
  const std::unique_ptr<handshake::Exchange> exchanged = connection.take_exchange();
  // The peer has lost its end of the old one before we have, or has started again. It has proved itself, so the new one
  // counts.
  if (Flow* old = flows_.find(key)) end_flow(*old, old->broken(Code::kUnavailable, connection.replaces()));
  auto flow = std::make_unique<Flow>(key, connection.job(), connection.take_socket(),
                                     static_cast<WayExchange&>(*exchanged).take_way(), connection.secrets(),
                                     Flow::Context{*classes_.find(key.cls), numbers_, credits_, acks_, detection_});
  if (key.cls == kControlClass) handshake::expect_life(flow->fd(), detection_);
  connector_.watch(*flow, flow->fd(), EPOLLIN, true);
  flows_.add(std::move(flow));
}

void DpdkTransport::on_given_up(const ports::FlowKey& key, Status cause) {
  settling_.erase(key);
  flows_.end(key, std::move(cause));
}

// Either end waits until the link says who has the other one's address.
void DpdkTransport::settle_exchanges() {
  std::erase_if(settling_, [&](const auto& entry) { return now_ > entry.second; });
  settling_now_.clear();
  for (const auto& [key, until] : settling_) settling_now_.push_back(key);
  for (const ports::FlowKey& key : settling_now_) connector_.settle(key);  // a flow may come up in the call
}

// ---- packets ----

// Of what has come at once, the packets of the most urgent class first.
void DpdkTransport::receive(std::size_t& handled) {
  const std::size_t count = port_->receive(now_, received_);
  // Those of strangers keep nobody from resting, unless there may be more than are taken at once.
  if (count == received_.size()) ++packets_;
  std::uint32_t left = 0;  // a bit for each slot of which packets have come
  for (std::size_t i = 0; i < count; ++i) {
    const std::optional<datagram::Head> head = datagram::read_head(received_[i].payload);
    const Flow* const flow = head ? numbers_.find(head->association) : nullptr;
    const bool known = flow != nullptr && flow->peer() == received_[i].from;
    slots_[i] = known ? head->slot : kStranger;
    if (!known) ++strangers_.packets, strangers_.bytes += received_[i].payload.size();
    if (known) left |= 1u << (head->slot == datagram::kAckSlot ? 0u : head->slot + 1u);
  }
  // Acknowledgements, which make room, before all.
  for (std::size_t turn = 0; left != 0; ++turn, left >>= 1) {
    if ((left & 1) == 0) continue;
    const auto slot = static_cast<std::uint8_t>(turn == 0 ? datagram::kAckSlot : turn - 1);
    for (std::size_t i = 0; i < count; ++i) {
      if (slots_[i] == slot) take(received_[i], handled);
    }
  }
}

void DpdkTransport::take(const Received& packet, std::size_t& handled) {
  const std::optional<datagram::Head> head = datagram::read_head(packet.payload);
  Flow* flow = numbers_.find(head->association);
  if (flow == nullptr) return;  // it has gone meanwhile
  const std::uint64_t before = flow->packets_received();
  const bool good = flow->take(now_, packet.payload, packet.congestion, handled);
  packets_ += flow->packets_received() - before;
  if (flow->gone) return;
  if (good)
    touched(*flow);
  else
    end_flow(*flow, flow->failure());
}

// Something of the flow has changed: it may have something to say, now or at another time.
void DpdkTransport::touched(Flow& flow) {
  flow.mark_dirty();
  flow.mark_ack();
  set_timer(flow);
}

void DpdkTransport::set_timer(Flow& flow) {
  const std::optional<Time> due = flow.deadline();
  if (!due) return;
  // What is due and cannot go, because the device is full or the peer not reachable, is tried again.
  const Time at = std::max(*due, now_ + kLeastTimer);
  if (flow.timer && *flow.timer <= at) return;
  add_timer(flow, at);
}

// Those that no longer count are sorted out when there are many.
void DpdkTransport::add_timer(Flow& flow, Time at) {
  flow.timer = at;
  if (timers_.size() > kTimersOfFlow * flows_.size() + kMoreTimers) {
    while (!timers_.empty()) timers_.pop();
    flows_.each([&](const Flow& one) {
      if (one.timer && &one != &flow) timers_.push({*one.timer, one.number()});
    });
  }
  timers_.push({at, flow.number()});
}

// Those of flows that have gone, or that have become due later: nobody is to be woken for them.
void DpdkTransport::drop_old_timers() {
  while (!timers_.empty()) {
    const Timer timer = timers_.top();
    Flow* flow = numbers_.find(timer.number);
    const bool counts = flow != nullptr && flow->timer == timer.at;
    const std::optional<Time> due = counts ? flow->deadline() : std::nullopt;
    if (due && *due <= timer.at) return;
    timers_.pop();
    if (!counts) continue;
    flow->timer.reset();
    set_timer(*flow);
  }
}

void DpdkTransport::run_timers() {
  while (!timers_.empty() && timers_.top().at <= now_) {
    const Timer timer = timers_.top();
    timers_.pop();
    Flow* flow = numbers_.find(timer.number);
    if (flow == nullptr || flow->timer != timer.at) continue;  // it has gone, or has an earlier one
    flow->timer.reset();
    Status status = flow->on_time(now_, linked_);
    if (!status.ok()) {
      end_flow(*flow, std::move(status));
      continue;
    }
    touched(*flow);
    if (flow->waits_for(now_, Duration(detection_.value / 4))) ask_host_of(*flow);
  }
}

// Silence in a class may be starvation; who is dead the control class says, which may have nothing to say by itself.
void DpdkTransport::ask_host_of(const Flow& flow) {
  ports::FlowKey key = flow.key();
  key.cls = kControlClass;
  Flow* control = flows_.find(key);
  if (control == nullptr || control == &flow) return;
  control->ask(now_);
  touched(*control);
}

void DpdkTransport::write() {
  write_acks();
  classes_.each([&](ClassShare& share) { packets_ += write_class(share); });
  port_->flush();
}

// In the control class, so that nobody's data waits for them.
void DpdkTransport::write_acks() {
  std::size_t done = 0;
  for (bool room = true; room && done < acks_.size();) {
    Flow& flow = *acks_[done];
    for (;;) {
      const std::span<std::byte> out = port_->room(0);
      room = !out.empty();
      const std::size_t bytes = room && flow.reachable() ? flow.make_ack(now_, out) : 0;
      if (bytes == 0) break;
      port_->commit(0, flow.path(), bytes);
      ++packets_;
    }
    if (!room) break;
    flow.has_ack = false;
    set_timer(flow);
    ++done;
  }
  acks_.erase(acks_.begin(), acks_.begin() + static_cast<std::ptrdiff_t>(done));
}

// The next packet of a flow, in the room of its class. How long its payload is; 0: there is none.
std::size_t DpdkTransport::make_packet(Flow& flow, std::span<std::byte> room) {
  ClassShare& share = flow.share();
  if (!port_->gathers()) {
    const std::size_t bytes = flow.make(now_, room);
    if (bytes > 0) port_->commit(share.queue, flow.path(), bytes);
    return bytes;
  }
  static_assert(datagram::Gathered::kMostParts <= kMostParts);
  datagram::Gathered packet;
  if (!flow.make(now_, room, &packet)) return 0;
  port_->commit(share.queue, flow.path(), Parts(packet.parts).first(packet.count));
  if (packet.borrows) share.borrowed.push_back({flow.number(), packet.number, port_->borrowed(share.queue)});
  return packet.bytes;
}

// What the device has read belongs to the callers of send() again.
void DpdkTransport::release(std::size_t& handled) {
  classes_.each([&](ClassShare& share) {
    while (!share.borrowed.empty() && share.borrowed.front().after <= port_->released(share.queue)) {
      const ClassShare::Borrowed one = share.borrowed.front();
      share.borrowed.pop_front();
      if (Flow* flow = numbers_.find(one.flow)) flow->released(one.packet, handled);
    }
  });
}

// Flows in turn, as many packets as the device takes. How many.
std::size_t DpdkTransport::write_class(ClassShare& share) {
  std::size_t sent = 0, done = 0;
  for (bool full = false; done < share.dirty.size() && sent < kPacketsPerClass;) {
    Flow& flow = *share.dirty[done];
    std::size_t bytes = 1;
    if (!flow.reachable()) {
      bytes = 0;
      add_timer(flow, now_ + kNotReachable);
    }
    for (std::size_t turn = 0; bytes > 0 && turn < kPacketsInTurn; ++turn) {
      const std::span<std::byte> out = port_->room(share.queue);
      full = out.empty();
      if (full) break;
      bytes = make_packet(flow, out);
      if (bytes == 0) break;
      ++sent;
    }
    if (full) break;  // its turn is still its own
    ++done;
    if (bytes > 0) {
      share.dirty.push_back(&flow);
    } else {
      flow.dirty = false;
    }
    set_timer(flow);
  }
  share.dirty.erase(share.dirty.begin(), share.dirty.begin() + static_cast<std::ptrdiff_t>(done));
  return sent;
}

// ---- descriptors and ends ----

void DpdkTransport::look_at_descriptors() {
  if (std::exchange(interrupts_, false)) port_->arm(false);
  for (const epoll_event& event : connector_.ready()) {
    auto* object = static_cast<handshake::Watched*>(event.data.ptr);
    if (object->gone || object->kind == handshake::Watched::Kind::kDevice) continue;
    if (object->kind == handshake::Watched::Kind::kFlow) {
      auto& flow = static_cast<Flow&>(*object);
      Status status = flow.look_at_connection();
      if (!status.ok()) end_flow(flow, std::move(status));
    } else {
      connector_.serve(event);
    }
  }
}

void DpdkTransport::end_flow(Flow& flow, Status cause) {
  std::unique_ptr<Flow> owned = flows_.take(flow);
  if (owned->borrows()) port_->keep(owned->share().queue);
  owned->stop();
  payloads_dropped_ += owned->payloads_dropped();
  packets_ended_ += owned->packets();
  handshake::Fd socket = owned->take_socket();
  if (cause.ok()) connector_.linger(std::move(socket), true);
  flows_.end(std::move(owned), std::move(cause));
}

}  // namespace tensorlane::dpdk
