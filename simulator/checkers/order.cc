#include "simulator/checkers/order.h"

#include <utility>

namespace tensorlane::simulator {

using engine::Event;
using protocol::FrameHeader;
using protocol::FrameType;

OrderChecker::Key OrderChecker::key(const FrameHeader& h, bool contribution) const {
  return {running_[h.tensor.value].iteration.value, contribution,
          -static_cast<double>(priorities_[h.tensor.value].urgency), h.tensor.value};
}

void OrderChecker::stepped(Time now, const Event& event) {
  last_.clear();
  if (event.kind == Event::Kind::kTensorReady) {
    const std::size_t tensor = event.tensor_ready.tensor.value;
    priorities_[tensor] = next_[tensor];
    running_[tensor] = {event.tensor_ready.sequence.value, iterations_.begin(running_[tensor].iteration)};
    return;
  }
  if (event.kind == Event::Kind::kBoost) {
    raised_.insert({event.boost.tensor.value, event.boost.sequence.value});
    return;
  }
  if (event.kind != Event::Kind::kFrameArrived || event.frame.header.type != FrameType::kGrant) return;
  const FrameHeader& h = event.frame.header;
  granted_[{event.frame.peer.value, h.grant}] = {h, now, false};
  const ClassId cls = priorities_[h.tensor.value].cls;
  if (!raised(h)) ++waiting_[{event.frame.peer, cls}][key(h, true)];
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
    const ClassId of = priorities_[h.tensor.value].cls;
    const auto grant = granted_.find({flow.peer.value, h.grant});
    const bool eager = (h.flags & protocol::kFlagEager) != 0;
    const bool granted = !eager && grant != granted_.end() && grant->second.header.tensor == h.tensor &&
                         grant->second.header.sequence == h.sequence;
    if (granted && send.eligible != grant->second.at) {
      findings_.fail("order",
                     "host {}: tensor {}, slice {} was granted at {} ns, but says that it waited from {} ns on",
                     host_.value, h.tensor.value, h.slice, grant->second.at.value, send.eligible.value);
    }
    const Key mine = key(h, eager || granted);
    if (granted && !std::exchange(grant->second.picked, true)) {
      auto& waiting = waiting_[{flow.peer, of}];
      const auto it = waiting.find(mine);
      if (it != waiting.end() && --it->second == 0) waiting.erase(it);
    }
    if (!raised(h)) check_order(now, flow, of, h, mine);
    limits_.sent(now, of, flow.cls, h.payload_bytes);
  }
}

void OrderChecker::check_order(Time now, engine::Flow flow, ClassId of, const FrameHeader& h, const Key& mine) {
  // Against everything that might have gone in its place: of its own class, and of those that travel with it.
  for (ClassId cls{0}; cls <= flow.cls; ++cls.value) {
    if (cls == of || limits_.travels(now, cls) == flow.cls) check_against_waiting({flow.peer, cls}, h, mine);
  }
  const auto last = last_.find({flow, of});
  if (last != last_.end() && mine < last->second) {
    findings_.fail("order",
                   "host {} to host {}, class {}: tensor {}, sequence {} waited behind a less urgent one: tensor {}, "
                   "iteration {}",
                   host_.value, flow.peer.value, flow.cls.value, h.tensor.value, h.sequence.value,
                   std::get<3>(last->second), std::get<0>(last->second));
  }
  last_.insert_or_assign({flow, of}, mine);
}

void OrderChecker::check_against_waiting(engine::Flow flow, const FrameHeader& sent, const Key& mine) {
  const auto it = waiting_.find(flow);
  if (it == waiting_.end() || it->second.empty()) return;
  const Key& best = it->second.begin()->first;
  if (!(best < mine)) return;
  if (raised_.contains({std::get<3>(best), running_[std::get<3>(best)].sequence})) return;
  findings_.fail(
      "order",
      "host {} to host {}, class {}: sent tensor {}, sequence {} while a grant for tensor {}, iteration {} waited",
      host_.value, flow.peer.value, flow.cls.value, sent.tensor.value, sent.sequence.value, std::get<3>(best),
      std::get<0>(best));
}

}  // namespace tensorlane::simulator
