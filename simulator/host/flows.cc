// A rail's flows across their connections, as transports do it: frames are numbered, kept until the receiver has said
// that it has them, and sent again from its count when a connection was lost (law 7).
#include <algorithm>

#include "simulator/host/rail.h"

namespace tensorlane::simulator {
namespace {

constexpr std::size_t kMaxAtOnce = 8;  // operations of one pick()

}  // namespace

Rail::FlowState::FlowState(std::size_t room)
    : out(static_cast<std::uint32_t>(room + kMaxAtOnce)), kept(room + kMaxAtOnce) {}

void Rail::give(FlowState& flow, const FramePtr& frame) {
  in_flight_[level_of(frame->cls)] += frame->payload.size();
  flow.in_flight += frame->payload.size();
  around_.network.send(frame);
  flow.out.written();
}

// ---- what the receiver says ----

void Rail::tell_delivered() {
  // Where copies are kept, the sender can wait for its word; where its memory is, that is waited for.
  const std::size_t often =
      around_.scenario.lane.done_when_acknowledged ? 1 : std::max<std::size_t>(1, around_.scenario.lane.flow_room / 2);
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    FlowState& flow = flows_[i];
    if (flow.lost || flow.in.untold() < often) continue;
    around_.network.tell(self_, HostIndex(static_cast<std::uint16_t>(i / kLevels)), i % kLevels, flow.in.tell());
  }
}

void Rail::on_told(HostIndex peer, std::size_t level, ledger::Number delivered) {
  if (around_.host.dead || !around_.host.running()) return;
  take_told(flows_[flow_index(peer, level)], delivered, false);
}

void Rail::take_told(FlowState& flow, ledger::Number delivered, bool resumes) {
  const ledger::Number before = flow.out.delivered();
  const std::optional<std::uint64_t> again = resumes ? flow.out.resume(delivered) : std::nullopt;
  if (resumes ? !again : !flow.out.acknowledge(delivered)) {
    return around_.findings.fail("protocol", "host {}: a peer has {} frames of a flow, after {}, of {} that were sent",
                                 self_.value, delivered, before, flow.out.next());
  }
  resent_ += again.value_or(0);
  for (ledger::Number n = before; n < delivered; ++n) {
    if (around_.scenario.lane.done_when_acknowledged) send_done(*flow.kept[flow.out.slot(n)]);
  }
  wake();
}

// ---- connections ----

void Rail::on_reset(HostIndex peer, std::size_t level) {
  if (around_.host.dead || !around_.host.running()) return;
  around_.trace.line(self_, "the connection to host {}, level {}, is lost", peer.value, level);
  FlowState& flow = flows_[flow_index(peer, level)];
  if (!flow.lost) flow.lost = around_.events.now();
  in_flight_[level] -= flow.in_flight;
  flow.in_flight = 0;
  // What this host's kernel had received may still be read, or not.
  if (random_.chance(0.5)) forget_arrivals(peer, level);
}

void Rail::forget_arrivals(HostIndex peer, std::size_t level) {
  std::erase_if(inbox_, [&](const Packet& packet) { return packet.from == peer && packet.level == level; });
  Receiving& receiving = flows_[flow_index(peer, level)].receiving;
  if (receiving.open && !receiving.stale && receiving.place.length > 0) staging_checker_->consumed(receiving.place);
  receiving = {};
}

std::optional<ledger::Number> Rail::on_reconnect(HostIndex peer, std::size_t level) {
  if (around_.host.dead || around_.host.frozen || !around_.host.running()) return std::nullopt;
  forget_arrivals(peer, level);
  return flows_[flow_index(peer, level)].in.tell();
}

void Rail::on_resumed(HostIndex peer, std::size_t level, ledger::Number delivered) {
  FlowState& flow = flows_[flow_index(peer, level)];
  around_.trace.line(self_, "a new connection to host {}, level {}: it has {} of {} frames", peer.value, level,
                     delivered, flow.out.pushed());
  flow.lost.reset();
  take_told(flow, delivered, true);
  while (flow.out.next() < flow.out.pushed() && !around_.findings.any()) {
    FramePtr& kept = flow.kept[flow.out.slot(flow.out.next())];
    if (around_.scenario.lane.done_when_acknowledged) {
      // Nothing was copied: it goes as the memory is now.
      auto again = std::make_shared<Frame>(*kept);
      const std::span<std::byte> payload = around_.memory.resolve(kept->source);
      again->payload.assign(payload.begin(), payload.end());
      kept = std::move(again);
    }
    give(flow, kept);
  }
}

bool Rail::has_lost_flow() const {
  const Time now = around_.events.now();
  return std::ranges::any_of(
      flows_, [&](const FlowState& flow) { return flow.lost && now - *flow.lost > around_.scenario.detection; });
}

}  // namespace tensorlane::simulator
