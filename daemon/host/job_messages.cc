// Sends and receives of the ranks here: from their sessions to the desk, and back.
#include <algorithm>

#include "daemon/engine/classify/thresholds.h"
#include "daemon/host/context.h"
#include "daemon/host/job.h"

namespace tensorlane::host {
namespace {

constexpr std::size_t kMessageScan = 4096;  // places for messages that report_waiting_messages() looks at in one call
constexpr std::size_t kMostTold = 64;       // messages that it tells of

}  // namespace

// A rank here exchanges it with one of another host, or may.
bool Job::goes_abroad(const engine::Message& message) const {
  for (const Rank rank : {message.source, message.destination}) {
    if (std::ranges::find(local_ranks_, rank) == local_ranks_.end()) return true;
  }
  return false;
}

// Null, or what the client has done that no client does.
const char* Job::submit_message(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now) {
  protocol::MessageSlot slot;
  if (messages_.empty() || entry.sequence != 0 || !sessions_[local]->message(entry.tensor, &slot))
    return "an unknown message";
  const std::uint64_t request = MessageDesk::request_of(local, entry.tensor);
  if (messages_[request].open) return "a message that is under way";
  const bool sends = slot.sends != 0, any = !sends && slot.peer == protocol::kAnyRank;
  if (slot.peer >= spec_.world_size && !any) return "a message with a rank that the job does not have";
  if (static_cast<std::size_t>(slot.dtype) >= kDtypeCount || slot.set > protocol::kMaxSetNumber ||
      slot.count > protocol::kMaxElements || !(slot.urgency >= 0 && slot.urgency <= 1))
    return "a message that cannot be";
  const ports::BufferPlace place{slot.segment, slot.offset, slot.count * dtype_size(slot.dtype)};
  MessagePost post{.sends = sends};
  if (place.bytes > 0) {
    post.buffer = sessions_[local]->map(place);
    if (post.buffer.size() != place.bytes) return "a message outside of its arenas";
    if (!sessions_[local]->is_sealed(place.segment)) return "a message in memory that is not sealed";
    post.segment = sessions_[local]->segment(place);
  }
  const Rank self = local_ranks_[local], peer = any ? engine::kAnySource : Rank(slot.peer);
  post.message = {.source = sends ? self : peer,
                  .destination = sends ? peer : self,
                  .set = slot.set,
                  .tag = slot.tag,
                  .count = slot.count,
                  .dtype = slot.dtype,
                  .urgency = slot.urgency,
                  .request = request};
  if (!context_.config->single_queue) {
    const std::span<const double> thresholds = thresholds_ ? *thresholds_ : context_.config->thresholds;
    const ClassId cls = engine::class_by_thresholds(thresholds, slot.urgency);
    post.message.cls = ClassId(cls.value + (context_.config->classes - 1 - thresholds.size()));
  }
  open_message(request, {true, sends, goes_abroad(post.message), peer, now, now});
  if (messages_[request].abroad && departed_ && !lost_) lost_ = {departed_->first, now};
  if (desk_ == nullptr) {
    sets_.front().rails->post(post, now);
  } else {
    desk_->post(post, now);
    tell_messages(now);
  }
  return nullptr;
}

// It is the newest of those that are open.
void Job::open_message(std::uint64_t request, const OpenMessage& message) {
  const auto index = static_cast<std::uint32_t>(request);
  OpenMessage& opened = messages_[request] = message;
  opened.before = newest_message_;
  (newest_message_ == OpenMessage::kNone ? oldest_message_ : messages_[newest_message_].next) = index;
  newest_message_ = index;
  ++messages_open_;
  if (opened.abroad) ++messages_abroad_;
}

void Job::close_message(std::uint64_t request) {
  OpenMessage& message = messages_[request];
  (message.before == OpenMessage::kNone ? oldest_message_ : messages_[message.before].next) = message.next;
  (message.next == OpenMessage::kNone ? newest_message_ : messages_[message.next].before) = message.before;
  --messages_open_;
  if (message.abroad) --messages_abroad_;
  message = {};
}

Duration Job::oldest_message(Time now) const {
  return messages_open_ == 0 ? Duration() : now - messages_[oldest_message_].since;
}

void Job::tell_messages(Time now) {
  for (engine::MessageDone done; desk_->messages().next_done(&done);) rails_message_done(done, now);
}

void Job::rails_message_done(const engine::MessageDone& done, Time /*now*/) {
  const OpenMessage& message = messages_[done.request];
  TL_ASSERT(message.open);
  const std::uint32_t local = MessageDesk::local_of(done.request);
  protocol::MessageSlot outcome;
  outcome.other_rank = message.sends ? done.destination.value : done.source.value;
  outcome.other_count = done.other_count;
  outcome.other_dtype = done.other_dtype;
  close_message(done.request);
  sessions_[local]->complete_message(MessageDesk::slot_of(done.request), outcome, done.code);
}

// Whoever could be its other end has left the job.
bool Job::has_gone(const OpenMessage& message) const {
  return message.peer == engine::kAnySource ? left_.size() + 1 >= spec_.world_size : left_.contains(message.peer);
}

// Of those that wait for long, some in each call. One of a rank that has left will not be over by itself, but for what
// is still on its way.
void Job::report_waiting_messages(Time now) {
  const Duration late = context_.config->late_after;
  const Duration gone = std::min(late, Duration(spec_.detection.value / kSymptomShare));
  waiting_messages_.clear();
  for (std::size_t n = 0; n < std::min(messages_.size(), kMessageScan) && waiting_messages_.size() < kMostTold; ++n) {
    message_scan_ = message_scan_ + 1 < messages_.size() ? message_scan_ + 1 : 0;
    OpenMessage& message = messages_[message_scan_];
    if (!message.open || now - message.told < (has_gone(message) ? gone : late)) continue;
    message.told = now;
    waiting_messages_.push_back(message_scan_);
  }
  if (waiting_messages_.empty()) return;
  if (desk_ == nullptr) return sets_.front().rails->look_at_messages(waiting_messages_, now);
  MessagesWait waiting;
  for (const std::uint64_t request : waiting_messages_) waiting.emplace_back(request, desk_->stage_of(request));
  rails_messages_wait(waiting, now);
}

void Job::rails_messages_wait(const MessagesWait& waiting, Time now) {
  using engine::MessageStage;
  if (state_ != State::kRunning) return;
  for (const auto& [request, stage] : waiting) {
    const OpenMessage& message = messages_[request];
    if (!message.open || stage == MessageStage::kOver) continue;
    const Rank rank = local_ranks_[MessageDesk::local_of(request)];
    const auto peer = message.peer == engine::kAnySource ? std::nullopt : std::optional(message.peer);
    const ports::MessageWait why = stage == MessageStage::kHeld      ? ports::MessageWait::kCredit
                                   : stage == MessageStage::kMatched ? ports::MessageWait::kTransfer
                                                                     : ports::MessageWait::kOtherEnd;
    context_.listener->on_message_waits(id(), rank, peer, why, now - message.since);
  }
}

void Job::rails_want_flows(HostIndex peer) {
  context_.listener->on_flows_wanted(id(), peer);
}

void Job::open_flows_to(HostIndex peer, Time now) {
  if (state_ != State::kRunning || failed_ || sets_.empty() || peer.value >= spec_.hosts.size()) return;
  if (peer == spec_.credentials.self) return;
  sets_.front().rails->open_flows_to(peer, now);
}

}  // namespace tensorlane::host
