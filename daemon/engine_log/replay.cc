#include "daemon/engine_log/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "daemon/engine_log/reader.h"

namespace tensorlane::engine_log {
namespace {

using engine::Event;

constexpr std::size_t kActions = 1024;
constexpr std::uint32_t kMaxRoom = 1 << 16;  // of a pick that a log can ask for

// What the host of an engine must keep to, lest it breaks an invariant there: operations in sequence, and only tokens
// that were given out. A log keeps to it as long as this engine answers as the recorded one did.
class Promises {
 public:
  explicit Promises(const engine::EngineConfig& config) : config_(config) {}

  void grow(const protocol::Plan& plan, protocol::TensorRange added, std::span<const HostIndex> neighbours) {
    plan_ = &plan;
    tensors_.resize(plan.tensors.size());
    for (std::uint32_t i = added.first; i < added.end(); ++i) tensors_[i] = {.sequence = plan.tensors[i].base};
    waits_for_flows_.insert(neighbours.begin() + static_cast<std::ptrdiff_t>(neighbours_), neighbours.end());
    neighbours_ = neighbours.size();
  }
  // Null, or what the event breaks.
  const char* broken_by(const Event& event) {
    if (over_) return nullptr;  // an aborted engine takes everything
    switch (event.kind) {
      case Event::Kind::kTensorReady:
        return broken_by(event.tensor_ready);
      case Event::Kind::kPartReady:
        return broken_by(event.part_ready);
      case Event::Kind::kOffer:
        return broken_by(event.offer);
      case Event::Kind::kSendDone:
        return use(sends_, event.token) ? nullptr : "a payload was sent that this engine did not send";
      case Event::Kind::kWorkDone:
        return use(work_, event.token) ? nullptr : "work was done that this engine did not give";
      case Event::Kind::kPeerUp:
        return broken_by(event.up);
      case Event::Kind::kAbort:
      case Event::Kind::kDrained:
        over_ = true;
        return nullptr;
      case Event::Kind::kFrameArrived:
      case Event::Kind::kBoost:
        return nullptr;
    }
    return nullptr;
  }
  const char* broken_by(const Priority& priority) const {
    const bool known = config_.reclassifies && priority.tensor.value < tensors_.size();
    const bool inside = priority.cls.value < config_.classes && priority.urgency >= 0 && priority.urgency <= 1;
    return known && inside ? nullptr : "a priority that this engine cannot take";
  }
  const char* broken_by(const Pick& pick) const {
    const bool flow = pick.flow.peer.value < config_.hosts &&
                      (pick.flow.cls == kControlClass || pick.flow.cls.value < config_.classes);
    return flow && pick.room <= kMaxRoom ? nullptr : "a pick for a flow that the job does not have";
  }

  void answered(const engine::Action& action) {
    // An aborted engine completes what it is given, in the plan or not.
    const std::uint32_t completed = action.complete.tensor.value;
    if (action.kind == engine::Action::Kind::kComplete && completed < tensors_.size()) tensors_[completed].open = false;
    if (action.kind != engine::Action::Kind::kAgreed) return;
    for (std::size_t i = 0; i < 64 && action.agreed.word * std::size_t{64} + i < tensors_.size(); ++i) {
      if ((action.agreed.bits >> i & 1) != 0) tensors_[action.agreed.word * std::size_t{64} + i].offered = false;
    }
  }
  void picked(const engine::Send& send) {
    if (send.token != 0) ++sends_[send.token];
  }
  void picked(const engine::Work& work) { ++work_[work.token]; }

 private:
  struct Tensor {
    std::uint64_t sequence = 0;
    bool open = false, offered = false;
    bool in_parts = false;
    std::map<std::uint64_t, std::uint64_t> parts;  // of the operation that runs: where each ends, by where it begins
  };
  using Tokens = std::unordered_map<std::uint64_t, std::uint32_t>;

  const char* broken_by(const engine::TensorReady& ready) {
    if (ready.tensor.value >= tensors_.size()) return "an operation on a tensor that is not in the plan";
    Tensor& t = tensors_[ready.tensor.value];
    const protocol::PlanTensor& planned = plan_->tensors[ready.tensor.value];
    if (planned.vacant) return "an operation on a tensor that is not in the plan";
    if (planned.in_batch()) return "an operation on a tensor that travels in a batch";
    if (t.open || ready.sequence.value != t.sequence + 1) return "an operation begins before the one before is over";
    const bool barrier = planned.operation == Operation::kBarrier;
    const bool scratch = reduces(planned.operation) && engine::needs_fp32_scratch(planned, config_.hosts);
    if (ready.in_parts && exchanges(planned.operation)) return "an operation in parts that cannot be in parts";
    if (!barrier && (ready.buffer.length != engine::buffer_bytes(*plan_, planned, config_.self) ||
                     (scratch && ready.fp32_scratch.length != planned.elements * sizeof(float))))
      return "an operation on a buffer that is not the tensor's";
    t = {ready.sequence.value, true, t.offered, ready.in_parts, {}};
    return nullptr;
  }
  const char* broken_by(const engine::PartReady& part) {
    if (part.tensor.value >= tensors_.size()) return "a part of a tensor that is not in the plan";
    Tensor& t = tensors_[part.tensor.value];
    if (!t.in_parts || part.sequence.value != t.sequence)  // it may be over: nobody needed all of it
      return "a part of an operation that was not begun in parts";
    const std::uint64_t all = plan_->tensors[part.tensor.value].elements;
    if (part.elements == 0 || part.offset > all || part.elements > all - part.offset)
      return "a part that is not inside its tensor";
    const auto after = t.parts.lower_bound(part.offset);
    const bool overlaps = (after != t.parts.end() && after->first < part.offset + part.elements) ||
                          (after != t.parts.begin() && std::prev(after)->second > part.offset);
    if (overlaps) return "a part that was there before";
    t.parts.emplace(part.offset, part.offset + part.elements);
    return nullptr;
  }
  const char* broken_by(const engine::Offer& offer) {
    const bool negotiates = plan_ != nullptr && plan_->ordering == protocol::Ordering::kNegotiated;
    if (!negotiates || offer.tensor.value >= tensors_.size() || tensors_[offer.tensor.value].offered)
      return "an offer that nobody asked for";
    tensors_[offer.tensor.value].offered = true;
    return nullptr;
  }
  const char* broken_by(const engine::PeerUp& up) {
    return waits_for_flows_.erase(up.peer) > 0 ? nullptr : "flows are up to a host that is no neighbour, or again";
  }
  static bool use(Tokens& tokens, std::uint64_t token) {
    const auto found = tokens.find(token);
    if (found == tokens.end()) return false;
    if (--found->second == 0) tokens.erase(found);
    return true;
  }

  const engine::EngineConfig config_;
  const protocol::Plan* plan_ = nullptr;
  std::vector<Tensor> tensors_;
  Tokens sends_, work_;  // given out, and not back yet
  std::size_t neighbours_ = 0;
  std::set<HostIndex> waits_for_flows_;  // of them
  bool over_ = false;
};

class Replayer {
 public:
  explicit Replayer(Reader& reader)
      : reader_(reader),
        engine_(reader.header().config, reader.header().staging),
        promises_(reader.header().config),
        actions_(kActions) {
    replay_.header = reader.header();
    replay_.checkpoints = 1;  // the header's
  }

  Result<Replay> run() {
    Record record;
    while (!replay_.parting) {
      TL_ASSIGN_OR_RETURN(const bool there, reader_.next(&record));
      if (!there) break;
      ++replay_.records;
      if (const std::string why = carry_out(record); !why.empty()) {
        part(record, replay_.checkpoints + 1, why, {});
      } else if (reader_.checkpoint()) {
        compare(record, *reader_.checkpoint());
      }
    }
    replay_.cut_off = reader_.cut_off();
    replay_.digest = engine_.digest();
    return replay_;
  }

 private:
  // Empty, or why this engine cannot follow.
  std::string carry_out(const Record& record) {
    if (record.is_event) return feed(record);
    switch (record.kind) {
      case RecordKind::kPlan:
        return extend_plan(record.tensors);
      case RecordKind::kVacate:
        return vacate(record.tensors);
      case RecordKind::kPriority:
        return set_priority(record.priority);
      case RecordKind::kPick:
        return pick(record);
      case RecordKind::kWork:
        return pick_work(record);
      case RecordKind::kEnd:
        replay_.end = record.end;
        return {};
      case RecordKind::kHeader:
        return {};
    }
    return {};
  }

  std::string vacate(protocol::TensorRange range) {
    const Status status = engine_.vacate(range);
    return status.ok() ? "" : fmt::format("this engine does not let tensors go: {}", status.to_string());
  }

  std::string extend_plan(protocol::TensorRange added) {
    ++replay_.plans;
    const Status status = engine_.extend_plan(reader_.plan(), added);
    if (!status.ok()) return fmt::format("this engine refuses the plan: {}", status.to_string());
    promises_.grow(reader_.plan(), added, engine_.neighbours());
    return {};
  }

  std::string set_priority(const Priority& priority) {
    if (const char* broken = promises_.broken_by(priority)) return broken;
    engine_.set_priority(priority.tensor, priority.urgency, priority.cls);
    return {};
  }

  std::string feed(const Record& record) {
    if (const char* broken = promises_.broken_by(record.event)) return broken;
    at(record.now);
    ++replay_.events;
    for (bool taken = false; !taken;) {
      taken = engine_.step(record.now, std::span(&record.event, 1), actions_) == 1;
      for (; !actions_.empty(); actions_.pop()) promises_.answered(actions_.front());
    }
    return {};
  }

  std::string pick(const Record& record) {
    const Pick& wanted = record.pick;
    if (const char* broken = promises_.broken_by(wanted)) return broken;
    at(record.now);
    ++replay_.picks;
    sends_.resize(std::max<std::size_t>(sends_.size(), wanted.room));
    const std::size_t picked =
        engine_.pick(record.now, wanted.flow, wanted.credit, std::span(sends_).first(wanted.room));
    for (std::size_t i = 0; i < picked; ++i) promises_.picked(sends_[i]);
    if (picked == wanted.picked) return {};
    return fmt::format("a pick for host {}, class {} returned {} operations, here it returns {}",
                       wanted.flow.peer.value, wanted.flow.cls.value, wanted.picked, picked);
  }

  std::string pick_work(const Record& record) {
    at(record.now);
    ++replay_.work;
    if (!engine_.pick_work(record.now, &work_)) return "there was work to do, here there is none";
    promises_.picked(work_);
    return {};
  }

  void at(Time now) {
    if (!replay_.first) replay_.first = now;
    replay_.last = now;
  }

  void compare(const Record& record, const Checkpoint& checkpoint) {
    if (checkpoint.digest != engine_.digest()) {
      return part(record, checkpoint.number, "the digests differ", checkpoint.digest);
    }
    replay_.checkpoints = checkpoint.number;
  }

  void part(const Record& record, std::uint64_t checkpoint, std::string why, std::optional<std::uint64_t> recorded) {
    replay_.parting = Parting{checkpoint, record.number, replay_.last.value_or(Time()), recorded, std::move(why)};
  }

  Reader& reader_;
  engine::Engine engine_;
  Promises promises_;
  engine::ActionRing actions_;
  std::vector<engine::Send> sends_;
  engine::Work work_;
  Replay replay_;
};

}  // namespace

Result<Replay> replay(std::istream& in, const std::string& name) {
  TL_ASSIGN_OR_RETURN(Reader reader, Reader::open(in, name));
  return Replayer(reader).run();
}

}  // namespace tensorlane::engine_log
