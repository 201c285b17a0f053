#include "simulator/checkers/order.h"

#include <utility>

namespace tensorlane::simulator {

using engine::Event;
using protocol::FrameHeader;
using protocol::FrameType;

void OrderChecker::stepped(Time now, const Event& event, std::optional<TensorId> boosted) {
  last_.clear();
  if (boosted) boost(*boosted);
  if (event.kind != Event::Kind::kFrameArrived || event.frame.header.type != FrameType::kGrant) return;
  const FrameHeader& h = event.frame.header;
  if (h.tensor.value >= scenario_.plan.tensors.size()) return;  // a lie
  granted_[{event.frame.peer.value, h.grant}] = {h, now, false};
  ++waiting_[{event.frame.peer, urgencies_.cls(h.tensor)}][urgencies_.of(h.tensor, true)];
}

// What waits for the tensor goes to the front of its class.
void OrderChecker::boost(TensorId tensor) {
  const Urgency now = urgencies_.of(tensor, true);
  Urgency before = now;
  before.unboosted = true;
  for (auto& [flow, waiting] : waiting_) {
    const auto found = waiting.find(before);
    if (found == waiting.end()) continue;
    waiting[now] += found->second;
    waiting.erase(found);
  }
}

void OrderChecker::picked(Time now, engine::Flow flow, std::span<const engine::Send> sends) {
  for (const engine::Send& send : sends) {
    const FrameHeader& h = send.header;
    if (h.cls != flow.cls) {
      findings_.fail("order", "host {} sends a frame of class {} on a flow of class {}", host_.value, h.cls.value,
                     flow.cls.value);
    }
    if (send.eligible > now) {
      findings_.fail("order", "host {} sends a frame to host {} at {} ns that may go from {} ns on", host_.value,
                     flow.peer.value, now.value, send.eligible.value);
    }
    if (h.type != FrameType::kData || scenario_.engine.single_queue) continue;
    if (h.tensor.value >= scenario_.plan.tensors.size()) {
      return findings_.fail("order", "host {} sends tensor {}, which is not in the plan", host_.value, h.tensor.value);
    }
    const ClassId of = urgencies_.cls(h.tensor);
    const auto grant = granted_.find({flow.peer.value, h.grant});
    const bool eager = (h.flags & protocol::kFlagEager) != 0;
    const bool granted = !eager && grant != granted_.end() && grant->second.header.tensor == h.tensor &&
                         grant->second.header.sequence == h.sequence;
    if (granted && send.eligible != grant->second.at) {
      findings_.fail("order",
                     "host {}: tensor {}, slice {} was granted at {} ns, but says that it waited from {} ns on",
                     host_.value, h.tensor.value, h.slice, grant->second.at.value, send.eligible.value);
    }
    const Urgency mine = urgencies_.of(h.tensor, eager || granted);
    if (granted && !std::exchange(grant->second.picked, true)) {
      auto& waiting = waiting_[{flow.peer, of}];
      const auto it = waiting.find(mine);
      if (it != waiting.end() && --it->second == 0) waiting.erase(it);
    }
    check_order(now, flow, of, h, mine);
    limits_.sent(now, of, flow.cls, h.payload_bytes);
  }
}

void OrderChecker::check_order(Time now, engine::Flow flow, ClassId of, const FrameHeader& h, const Urgency& mine) {
  // Against everything that might have gone in its place: of its own class, and of those that travel with it.
  for (ClassId cls{0}; cls <= flow.cls; ++cls.value) {
    if (cls == of || limits_.travels(now, cls) == flow.cls) check_against_waiting({flow.peer, cls}, h, mine);
  }
  const auto last = last_.find({flow, of});
  if (last != last_.end() && mine < last->second) {
    findings_.fail("order",
                   "host {} to host {}, class {}: tensor {}, sequence {} waited behind a less urgent one: tensor {}, "
                   "iteration {}",
                   host_.value, flow.peer.value, flow.cls.value, h.tensor.value, h.sequence.value, last->second.tensor,
                   last->second.iteration);
  }
  last_.insert_or_assign({flow, of}, mine);
}

void OrderChecker::check_against_waiting(engine::Flow flow, const FrameHeader& sent, const Urgency& mine) {
  const auto it = waiting_.find(flow);
  if (it == waiting_.end() || it->second.empty()) return;
  const Urgency& best = it->second.begin()->first;
  if (!(best < mine)) return;
  findings_.fail(
      "order",
      "host {} to host {}, class {}: sent tensor {}, sequence {} while a grant for tensor {}, iteration {} waited",
      host_.value, flow.peer.value, flow.cls.value, sent.tensor.value, sent.sequence.value, best.tensor,
      best.iteration);
}

}  // namespace tensorlane::simulator
