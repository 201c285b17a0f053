#include "daemon/engine/messages/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/assert.h"
#include "daemon/engine/grants.h"

namespace tensorlane::engine {
namespace {

constexpr std::uint32_t kIndexMask = GrantTable::kMaxCapacity - 1;
constexpr std::uint32_t kLastGeneration = (1u << (32 - GrantTable::kIndexBits)) - 1;

std::uint32_t room_for_requests(const MessagesConfig& config) {
  return config.open_per_rank * static_cast<std::uint32_t>(std::ranges::count(config.host_of, config.self));
}

}  // namespace

// ---- tables ----

Messages::Messages(MessagesConfig config)
    : config_(std::move(config)),
      items_(room_for_requests(config_)),
      announcements_(items_.size() + std::size_t{config_.announcements} * (config_.hosts - 1u)),
      buckets_(std::bit_ceil(items_.size() + 1)),
      peers_(config_.hosts),
      open_of_(config_.host_of.size()),
      heaps_(std::size_t{config_.classes} * config_.hosts, items_.size()),
      control_(config_.hosts),
      data_(config_.classes, PeerSet(config_.hosts)) {
  TL_ASSERT(config_.classes >= 1 && config_.classes <= kMaxDataClasses && config_.self.value < config_.hosts);
  TL_ASSERT(!items_.empty() && items_.size() < GrantTable::kMaxCapacity);
  for (std::uint32_t i = 0; i < items_.size(); ++i) append(items_, free_items_, i);
  for (std::uint32_t i = 0; i < announcements_.size(); ++i) append(announcements_, free_announcements_, i);
}

Bytes Messages::table_bytes(const MessagesConfig& config) {
  const std::size_t requests = room_for_requests(config);
  const std::size_t announcements = requests + std::size_t{config.announcements} * (config.hosts - 1u);
  return Bytes(requests * sizeof(Item) + announcements * sizeof(Announcement) +
               std::bit_ceil(requests + 1) * sizeof(Bucket) + config.hosts * sizeof(Peer) +
               MessageHeaps::bytes(std::size_t{config.classes} * config.hosts, requests));
}

// As a grant's: index | generation << kIndexBits, never 0.
std::uint32_t Messages::id_of(std::uint32_t index) const {
  return index | items_[index].generation << GrantTable::kIndexBits;
}

std::uint32_t Messages::find(std::uint32_t id) const {
  const std::uint32_t index = id & kIndexMask;
  if (index >= items_.size() || items_[index].state == State::kFree || id_of(index) != id) return kNone;
  return index;
}

Messages::Bucket& Messages::bucket(Rank source, Rank destination, std::uint32_t set, std::uint64_t tag) {
  std::uint64_t hash = (tag ^ std::uint64_t{set} << 40) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ hash >> 32 ^ destination.value) * 0xc2b2ae3d27d4eb4fu;
  hash = (hash ^ hash >> 32 ^ source.value) * 0x9e3779b97f4a7c15u;
  return buckets_[(hash ^ hash >> 32) & (buckets_.size() - 1)];
}

Status Messages::check(const Message& message, Rank self) const {
  TL_ASSERT(self.value < config_.host_of.size() && config_.host_of[self.value] == config_.self);
  TL_ASSERT(message.cls.value < config_.classes && message.buffer.length >= bytes_of(message));
  if (aborted_) return {Code::kAborted, "the job has ended"};
  const Rank other = message.source == self ? message.destination : message.source;
  if (other != kAnySource && other.value >= config_.host_of.size()) {
    return {Code::kInvalidArgument, fmt::format("rank {} is not in the job", other.value),
            fmt::format("the job has {} ranks", config_.host_of.size()), "name a rank of the job"};
  }
  if (open_of_[self.value] == config_.open_per_rank) {
    return {Code::kResourceExhausted, fmt::format("rank {} has too many messages under way", self.value),
            fmt::format("the limit is {}", config_.open_per_rank), "wait for some of them first"};
  }
  return {};
}

std::uint32_t Messages::add_request(Time now, const Message& message, bool sends) {
  const std::uint32_t index = take_first(items_, free_items_);
  TL_ASSERT(index != kNone);
  Item& item = items_[index];
  const std::uint32_t generation = item.generation;
  item = Item{.message = message, .state = State::kWaits, .sends = sends, .since = now};
  item.generation = generation;
  item.order = ++posted_;
  item.done = {.request = message.request, .source = message.source, .destination = message.destination};
  item.done.tag = message.tag;
  last_posted_ = id_of(index);
  ++open_of_[(sends ? message.source : message.destination).value];
  ++open_;
  return index;
}

void Messages::finish(std::uint32_t index, Code code) {
  Item& item = items_[index];
  item.state = State::kOver;
  item.done.code = code;
  append(items_, over_, index);
}

bool Messages::next_done(MessageDone* out) {
  const std::uint32_t index = take_first(items_, over_);
  if (index == kNone) return false;
  Item& item = items_[index];
  *out = item.done;
  item.told = true;
  free_if_gone(index);
  return true;
}

// Its outcome was told, and nothing of it is under way.
void Messages::free_if_gone(std::uint32_t index) {
  Item& item = items_[index];
  if (item.state != State::kOver || !item.told || item.in_flight > 0) return;
  item.state = State::kFree;
  item.generation = item.generation == kLastGeneration ? 1 : item.generation + 1;
  --open_of_[(item.sends ? item.message.source : item.message.destination).value];
  --open_;
  append(items_, free_items_, index);
}

// ---- posting and matching ----

Status Messages::send(Time now, const Message& message) {
  TL_RETURN_IF_ERROR(check(message, message.source));
  const std::uint32_t index = add_request(now, message, true);
  Item& item = items_[index];
  item.peer = config_.host_of[message.destination.value];
  if (item.peer == config_.self) {
    item.state = State::kAnnounced;
    announced(now, {message.source, message.destination, message.set, message.tag, message.count, message.dtype,
                    item.peer, index});
  } else {
    append(items_, peers_[item.peer.value].sends, index);
    look_at_control(item.peer);
  }
  return {};
}

Status Messages::receive(Time now, const Message& message) {
  TL_RETURN_IF_ERROR(check(message, message.destination));
  const std::uint32_t index = add_request(now, message, false);
  const std::uint32_t found = take_announcement_for(message);
  if (found == kNone) {
    append(items_, bucket(message.source, message).receives, index);
    return {};
  }
  const Announcement announcement = announcements_[found];
  append(announcements_, free_announcements_, found);
  match(now, index, announcement);
  return {};
}

// The first that this receive may get, which leaves the tables; or kNone.
std::uint32_t Messages::take_announcement_for(const Message& message) {
  Bucket& in = bucket(message.source, message);
  const auto is_for = [&](const Announcement& a) {
    return a.destination == message.destination && a.set == message.set && a.tag == message.tag;
  };
  std::uint32_t found = kNone;
  if (message.source != kAnySource) {
    const auto fits = [&](const Announcement& a) { return a.source == message.source && is_for(a); };
    found = take_fitting(announcements_, in.announcements, fits);
  } else {
    found = in.of_any.first;
    while (found != kNone && !is_for(announcements_[found])) found = announcements_[found].next_of_any;
    if (found == kNone) return found;
    const Announcement& a = announcements_[found];
    take_fitting(announcements_, bucket(a.source, a).announcements,
                 [&a](const Announcement& other) { return &other == &a; });
  }
  if (found != kNone) unlink_of_any(found);
  return found;
}

void Messages::unlink_of_any(std::uint32_t index) {
  const Announcement& a = announcements_[index];
  List& list = bucket(kAnySource, a).of_any;
  (a.last_of_any == kNone ? list.first : announcements_[a.last_of_any].next_of_any) = a.next_of_any;
  (a.next_of_any == kNone ? list.last : announcements_[a.next_of_any].last_of_any) = a.last_of_any;
}

// The receive that was posted first of those that may get it, which leaves the tables; or kNone.
std::uint32_t Messages::take_receive_for(const Announcement& a) {
  List& from_it = bucket(a.source, a).receives;
  List& from_any = bucket(kAnySource, a).receives;
  const auto fits = [&](const Item& item, Rank source) {
    const Message& m = item.message;
    return m.source == source && m.destination == a.destination && m.set == a.set && m.tag == a.tag;
  };
  const std::uint32_t one = find_fitting(items_, from_it, [&](const Item& item) { return fits(item, a.source); });
  const std::uint32_t other = find_fitting(items_, from_any, [&](const Item& item) { return fits(item, kAnySource); });
  if (one == kNone && other == kNone) return kNone;
  const bool any = one == kNone || (other != kNone && items_[other].order < items_[one].order);
  const Item* const first = &items_[any ? other : one];
  return take_fitting(items_, any ? from_any : from_it, [first](const Item& item) { return &item == first; });
}

void Messages::announced(Time now, const Announcement& a) {
  const std::uint32_t receive = take_receive_for(a);
  if (receive != kNone) return match(now, receive, a);
  const std::uint32_t index = take_first(announcements_, free_announcements_);
  TL_ASSERT(index != kNone);  // credit has counted it
  announcements_[index] = a;
  append(announcements_, bucket(a.source, a).announcements, index);
  List& of_any = bucket(kAnySource, a).of_any;
  announcements_[index].last_of_any = of_any.last;
  (of_any.empty() ? of_any.first : announcements_[of_any.last].next_of_any) = index;
  of_any.last = index;
}

void Messages::match(Time now, std::uint32_t receive, const Announcement& a) {
  Item& item = items_[receive];
  item.peer = a.peer;
  item.other = a.id;
  item.since = now;
  item.done.source = a.source;
  item.done.other_count = a.count;
  item.done.other_dtype = a.dtype;
  if (a.peer == config_.self) return match_local(receive, a.id);
  item.state = State::kTravels;
  item.answers = true;
  item.refuses = item.message.count != a.count || item.message.dtype != a.dtype;
  append(items_, peers_[a.peer.value].answers, receive);
  look_at_control(a.peer);
}

void Messages::match_local(std::uint32_t receive, std::uint32_t send) {
  Item &to = items_[receive], &from = items_[send];
  from.done.other_count = to.message.count;
  from.done.other_dtype = to.message.dtype;
  const bool differ = to.message.count != from.message.count || to.message.dtype != from.message.dtype;
  if (differ || to.message.count == 0) {
    finish(receive, differ ? Code::kMismatch : Code::kOk);
    return finish(send, differ ? Code::kMismatch : Code::kOk);
  }
  to.state = from.state = State::kTravels;
  heaps_.push(std::size_t{from.message.cls.value} * config_.hosts + config_.self.value, -from.message.urgency,
              ++grants_, receive);
}

void Messages::drained() {
  aborted_ = true;
  for (std::uint32_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (item.state == State::kFree) continue;
    item.answers = false;
    item.in_flight = 0;
    if (item.state != State::kOver) finish(i, Code::kAborted);
    free_if_gone(i);
  }
}

MessageStage Messages::stage_of(std::uint32_t id) const {
  const std::uint32_t index = find(id);
  if (index == kNone || items_[index].state == State::kOver) return MessageStage::kOver;
  const Item& item = items_[index];
  if (item.state == State::kTravels) return MessageStage::kMatched;
  const bool unannounced = item.sends && item.state == State::kWaits;
  return unannounced && peers_[item.peer.value].announced == config_.announcements ? MessageStage::kHeld
                                                                                   : MessageStage::kUnmatched;
}

Messages::Lent Messages::lent(HostIndex peer) const {
  return {peers_[peer.value].announced, peers_[peer.value].unanswered, open_};
}

}  // namespace tensorlane::engine
