#include "daemon/transport/datagram/association.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

#include "common/base/assert.h"

namespace tensorlane::datagram {
namespace {

// Numbers that a packet may be ahead of, or behind, the highest that has come, so that it is of one of two keys, which
// are kept. What is farther behind is not looked at. For what is farther ahead, as after an outage in which very much
// was lost, a key is derived: not more often than this, since it takes a microsecond and anybody can ask for it.
constexpr std::uint64_t kFar = Seal::kPacketsOfAKey / 2;
constexpr Duration kFarEvery = microseconds(50);
constexpr std::size_t kKeptRanges = 64;
// RFC 9000, section 13.2: every few packets, soon after one that came alone, and at once where one is missing.
constexpr unsigned kAckEvery = 8, kMostBackoff = 6;
constexpr std::size_t kLeastPacket = 192;
static_assert(kLeastPacket >= sizeof(Head) + sizeof(Counts) + kSlots * sizeof(State) + protect::kTagBytes,
              "all states have room in one packet");
// Of acknowledgements. A longer packet of them is none, and not worth a hash.
constexpr std::size_t kMostAckBytes =
    sizeof(Head) + kSlots * (sizeof(State) + sizeof(Ack) + kMaxAckRanges * sizeof(AckRange)) + 64;
constexpr Duration kAckDelay = microseconds(100);

// The slots whose bits are set, in order.
class SlotsOf {
 public:
  explicit SlotsOf(std::uint32_t bits) : bits_(bits) {}
  struct Iterator {
    std::uint32_t rest;
    Slot operator*() const { return static_cast<Slot>(std::countr_zero(rest)); }
    Iterator& operator++() {
      rest &= rest - 1;
      return *this;
    }
    bool operator==(const Iterator&) const = default;
  };
  Iterator begin() const { return {bits_}; }
  Iterator end() const { return {0}; }

 private:
  std::uint32_t bits_;
};

}  // namespace

Association::Channel::Channel(const AssociationConfig& config)
    : sends(config.frames), recovery(config.packets), window(config.window, config.packet_bytes) {}

Association::Association(const AssociationConfig& config, Credits& credits, AssociationOwner& owner)
    : config_(config),
      credits_(credits),
      owner_(owner),
      seals_(config.level, config.cipher, config.send_secret),
      opens_(config.level, config.cipher, config.receive_secret) {
  TL_ASSERT(config.classes >= 1 && config.classes <= kMaxDataClasses && config.packet_bytes >= kLeastPacket);
  sodium_memzero(config_.send_secret.data(), config_.send_secret.size());
  sodium_memzero(config_.receive_secret.data(), config_.receive_secret.size());
  outcome_.acked.reserve(256);
  outcome_.lost.reserve(256);
  channels_.reserve(config.classes + std::size_t{1});
  for (Slot slot = 0; slot <= config.classes; ++slot) channels_.emplace_back(config);
}

Association::~Association() {
  for (const Channel& channel : channels_)
    if (is_open(channel.phase)) credits_.remove(channel.credit);
}

bool Association::nonsense(const std::string& what) {
  status_ = {Code::kCorrupt, "the peer's datagrams make no sense: " + what};
  return false;
}

void Association::send(Slot slot, const ports::Outgoing& operation) {
  Channel& channel = channels_[slot];
  TL_ASSERT(channel.up);
  channel.sends.push(operation.header, operation.payload, operation.token);
  ++channel.given;
  waiting_ |= 1u << slot;
}

ports::FlowProgress Association::progress(Slot slot) const {
  const Channel& channel = channels_[slot];
  return {.given = channel.given,
          .received = channel.receives.frames(),
          .outstanding_bytes = outstanding(slot),
          .retransmissions = channel.sent_again};
}

// ---- opening and closing ----

void Association::attach(Time now, Slot slot, ports::FrameSink& sink) {
  Channel& channel = channels_[slot];
  TL_ASSERT(!is_open(channel.phase) && channel.phase <= kMostPhase + 1);
  used_ |= 1u << slot;
  channel.sink = &sink;
  channel.sends.prepare();
  channel.recovery.prepare();
  channel.credit = credits_.add(config_.job, slot, *this);
  channel.limit = config_.unasked.value;
  channel.given = channel.sent_again = 0;
  // The peer may have opened and closed it more often.
  say(channel, std::max(channel.phase + 1, channel.phase_there | 1));
  waiting_ |= 1u << slot;
  note_waiting(now);
  if (channel.phase == channel.phase_there) come_up(slot);
}

void Association::attach_both(Slot slot, ports::FrameSink& sink) {
  Channel& channel = channels_[slot];
  TL_ASSERT(channel.phase == 0);
  channel.phase_there = channel.heard_there = 1;
  attach(Time(), slot, sink);
  channel.say_due = false;
  waits_since_.reset();
}

void Association::close(Time now, Slot slot) {
  Channel& channel = channels_[slot];
  TL_ASSERT(is_open(channel.phase));
  end_stream(channel);
  say(channel, channel.phase + 1);
  waiting_ |= 1u << slot;
  note_waiting(now);
}

void Association::end_stream(Channel& channel) {
  credits_.remove(channel.credit);
  channel.sink = nullptr;
  channel.up = false;
  channel.sends.reset();
  channel.recovery.forget();
  channel.receives.reset();
  channel.probes = channel.ack_due = false;
  channel.told = 0;
  channel.asks = channel.unacked = 0;
  channel.ask_again.reset();
  channel.ack_by.reset();
}

void Association::say(Channel& channel, Phase phase) {
  channel.phase = phase;
  channel.say_due = true;
  channel.says = 0;
  channel.say_again.reset();
}

void Association::come_up(Slot slot) {
  Channel& channel = channels_[slot];
  channel.up = true;
  if (!wants_answer(channel)) channel.say_again.reset(), waiting_ &= ~(1u << slot);
  owner_.on_open(slot);
}

// Whether the peer knows, and where the class is being opened, whether it has attached it, too.
bool Association::wants_answer(const Channel& channel) const {
  return channel.heard_there < channel.phase || (is_open(channel.phase) && !channel.up);
}

bool Association::take_state(const State& state) {
  if (state.slot >= channels_.size()) return nonsense(fmt::format("the state of class {}", state.slot));
  Channel& channel = channels_[state.slot];
  used_ |= 1u << state.slot;
  if (state.heard > channel.phase)
    return nonsense(fmt::format("it has heard what was not said of class {}", state.slot));
  if (state.asks != 0) channel.say_due = true;
  channel.heard_there = std::max(channel.heard_there, state.heard);
  channel.phase_there = std::max(channel.phase_there, state.phase);
  if (is_open(channel.phase) && channel.phase_there > channel.phase) {
    if (channel.up) {
      end_stream(channel);
      say(channel, channel.phase + 1);
      owner_.on_closed(state.slot, {Code::kUnavailable, fmt::format("the peer has closed class {}", state.slot)});
    } else {
      say(channel, channel.phase_there | 1);  // it was never up here: there is nothing to be closed
    }
  }
  if (is_open(channel.phase) && !channel.up && channel.phase == channel.phase_there) come_up(state.slot);
  if (!wants_answer(channel)) channel.say_again.reset();
  return true;
}

State Association::state_of(Time now, Slot slot) {
  Channel& channel = channels_[slot];
  const bool asks = wants_answer(channel);
  channel.say_due = false;
  channel.say_again.reset();
  if (asks) {
    // Often enough for a peer that answers not to be given up.
    const Duration after = times(channel).timeout() * (std::int64_t{1} << std::min(channel.says++, kMostBackoff));
    channel.say_again = now + (config_.give_up ? std::min(after, Duration(config_.give_up->value / 8)) : after);
  }
  return {.phase = channel.phase, .heard = channel.phase_there, .slot = slot, .asks = asks};
}

// Whether a packet is of the stream that is open here. One of the peer's that is not open yet on this end's side proves
// that the peer has heard and has attached.
bool Association::of_open_stream(const Head& head) {
  Channel& channel = channels_[head.slot];
  if (!is_open(channel.phase) || head.generation != generation_of(channel.phase)) return false;
  if (!channel.up) {
    channel.phase_there = channel.heard_there = channel.phase;
    come_up(head.slot);
  }
  return channel.up;
}

// ---- what comes ----

bool Association::plausible(const Head& head) const {
  if (head.slot != kAckSlot && head.slot >= channels_.size()) return false;
  const std::uint64_t next = (head.slot == kAckSlot ? ack_numbers_ : channels_[head.slot].numbers).next();
  return head.number + kFar >= next;
}

// Whether it opens is found out with a key of its own, where its number is far from all that have come.
std::size_t Association::open(Time now, const Head& head, std::span<std::byte> packet) {
  const std::uint64_t next = (head.slot == kAckSlot ? ack_numbers_ : channels_[head.slot].numbers).next();
  if (head.number <= next + kFar) return opens_.open(head, packet);
  if (now < next_far_) return 0;
  next_far_ = now + kFarEvery;
  return opens_.open_far(head, packet);
}

bool Association::is_new(const Head& head, Numbers* numbers) {
  if (head.number < numbers->floor || numbers->come.contains(head.number)) {
    ++counters_.duplicates;
    return false;
  }
  numbers->come.add({head.number, head.number + 1});
  if (numbers->come.ranges().size() > kKeptRanges) {
    numbers->come.keep_last(kKeptRanges);
    numbers->floor = numbers->come.ranges().front().begin;
  }
  return true;
}

const Status& Association::take(Time now, std::span<std::byte> packet, bool marked) {
  const std::optional<Head> head = read_head(packet);
  const bool possible = head && plausible(*head) && (head->slot != kAckSlot || packet.size() <= kMostAckBytes);
  const std::size_t bytes = possible ? open(now, *head, packet) : 0;
  if (bytes == 0 || !read_packet(packet.first(bytes), opens_.tag_before(), &read_)) {
    ++counters_.forged;
    return status_;
  }
  ++counters_.packets_received;
  const bool sound = head->slot == kAckSlot ? take_records(now, read_) : take_data(now, read_, marked);
  TL_ASSERT(sound != !status_.ok());
  note_waiting(now);
  return status_;
}

bool Association::take_records(Time now, const ReadPacket& packet) {
  if (!is_new(packet.head, &ack_numbers_)) return true;
  waits_since_ = now;
  for (std::size_t i = 0; i < packet.counts.states; ++i)
    if (!take_state(packet.states[i])) return false;
  for (std::size_t i = 0; i < packet.counts.acks; ++i)
    if (!take_ack(now, packet.acks[i])) return false;
  return true;
}

bool Association::take_data(Time now, const ReadPacket& packet, bool marked) {
  Channel& channel = channels_[packet.head.slot];
  if (!of_open_stream(packet.head)) {
    ++counters_.stale;
    return true;
  }
  const std::uint64_t expected = channel.numbers.next();
  if (!is_new(packet.head, &channel.numbers)) {
    channel.ack_due = true;  // it may be that the acknowledgement was lost
    return true;
  }
  waits_since_ = now;
  if (packet.head.number >= expected) channel.largest_at = now;
  if (marked) ++channel.marked_here, ++counters_.marked;
  if (packet.head.number != expected || packet.bytes.empty() || ++channel.unacked >= kAckEvery) {
    channel.ack_due = true;
  } else if (!channel.ack_by) {
    channel.ack_by = now + kAckDelay;
  }
  const std::uint64_t limit = credits_.credit(channel.credit);
  if (!channel.receives.take(packet.data.offset, packet.bytes, limit, *channel.sink)) {
    status_ = channel.receives.failure();
    return false;
  }
  credits_.come(now, channel.credit, channel.receives.come());
  credits_.wants(channel.credit, packet.data.wanted);
  return true;
}

bool Association::take_ack(Time now, const ReadAck& read) {
  const Ack& ack = read.ack;
  if (ack.slot >= channels_.size()) return nonsense(fmt::format("an acknowledgement in class {}", ack.slot));
  Channel& channel = channels_[ack.slot];
  const std::span<const Range> come = std::span(read.ranges).first(ack.ranges);
  if (!channel.recovery.acknowledge(now, come, microseconds(ack.delay_us), &channel.round_trips, &outcome_))
    return nonsense(fmt::format("packet {} is acknowledged, which was not sent", ack.largest));
  // Of an earlier stream of the class. Packet numbers go on, but credit does not.
  if (!channel.up || ack.generation != generation_of(channel.phase)) return true;
  if (ack.credit > channel.limit) {
    channel.limit = ack.credit;
    channel.asks = 0;
  }
  channel.ask_again.reset();
  apply(now, channel, ack.marked);
  arm_ask(now, channel);
  return true;
}

// A class that has not been heard of goes by another one.
const RoundTrips& Association::times(const Channel& channel) const {
  if (channel.round_trips.known()) return channel.round_trips;
  const auto known = std::ranges::find_if(channels_, [](const Channel& other) { return other.round_trips.known(); });
  return known == channels_.end() ? channel.round_trips : known->round_trips;
}

// The credit may have been in an acknowledgement that was lost.
void Association::arm_ask(Time now, Channel& channel) {
  if (!is_blocked(channel) || !channel.recovery.idle() || channel.ask_again) return;
  channel.ask_again = now + times(channel).timeout() * (std::int64_t{1} << std::min(channel.asks, kMostBackoff));
}

// What recovery has found out of packets of a channel.
void Association::apply(Time now, Channel& channel, std::uint64_t marked) {
  const std::uint64_t new_marks = marked - std::min(marked, channel.marked_there);
  channel.marked_there = std::max(channel.marked_there, marked);
  counters_.packets_lost += outcome_.packets_lost;
  counters_.spurious += outcome_.spurious;
  if (outcome_.packets_lost > 0) channel.told = 0;  // what it said of the stream's end may be lost
  channel.window.note(now, outcome_.packets_acked, new_marks, outcome_.packets_lost, outcome_.spurious,
                      times(channel).smoothed());
  for (const Range& piece : outcome_.lost) channel.sends.lost(piece);
  for (const Range& piece : outcome_.acked)
    channel.sends.arrived(piece, [&](std::uint64_t token) { channel.sink->on_sent(token); });
}

// ---- what goes ----

void Association::credit_raised(Slot slot) {
  channels_[slot].ack_due = true;
  owner_.on_credit();
}

// There is more than the peer lets it send, and nothing else to be sent.
bool Association::is_blocked(const Channel& channel) const {
  return channel.sends.end() > channel.limit && !channel.sends.next(channel.limit, 1);
}

std::size_t Association::make(Time now, Slot slot, std::span<std::byte> out) {
  note_waiting(now);
  out = out.first(std::min(out.size(), config_.packet_bytes));
  const std::size_t bytes = slot == kAckSlot ? make_acks(now, out) : make_data(now, slot, out);
  if (bytes > 0) ++counters_.packets_sent;
  return bytes;
}

bool Association::make(Time now, Slot slot, std::span<std::byte> own, Gathered* packet) {
  packet->count = 0;
  packet->borrows = false;
  if (slot == kAckSlot || config_.level != DataProtection::kNone) {
    packet->number = slot == kAckSlot ? next_ack_number_ : channels_[slot].recovery.next_number();
    packet->bytes = make(now, slot, own);
    if (packet->bytes > 0) packet->parts[packet->count++] = own.first(packet->bytes);
    return packet->bytes > 0;
  }
  note_waiting(now);
  Channel& channel = channels_[slot];
  own = own.first(std::min(own.size(), config_.packet_bytes));
  const std::size_t before = sizeof(Head) + sizeof(Data) + seals_.tag_before();
  std::optional<Range> piece = next_piece(now, channel, own.size() - before);
  if (!piece) return false;
  const std::uint64_t unsent = channel.sends.unsent();
  packet->number = channel.recovery.next_number();
  packet->bytes = before;
  packet->parts[packet->count++] = own.first(before);
  if (piece->length() > 0) *piece = channel.sends.gather(*piece, packet->number, own.subspan(before), packet);
  const Head head = begin_data(channel, slot, *piece, own.data());
  seals_.close(head, own.data(), before);
  end_data(now, channel, *piece, unsent);
  ++counters_.packets_sent;
  return true;
}

void Association::released(Slot slot, std::uint64_t number) {
  Channel& channel = channels_[slot];
  channel.sends.released(number + 1, [&](std::uint64_t token) { channel.sink->on_sent(token); });
}

// What the next packet of a class carries, which may be nothing but how much there is.
std::optional<Range> Association::next_piece(Time now, Channel& channel, std::size_t most) {
  if (!channel.up || channel.recovery.full()) return std::nullopt;
  const std::uint64_t window = channel.window.size(), in_flight = channel.recovery.bytes_in_flight();
  if (in_flight < window || channel.probes) {
    if (const auto piece = channel.sends.next(channel.limit, most)) return piece;
  }
  // A probe goes even if nothing is left of what it should carry.
  if (channel.probes && !is_blocked(channel)) return Range{channel.sends.unsent(), channel.sends.unsent()};
  if (!is_blocked(channel)) return std::nullopt;
  const bool due = channel.told < channel.sends.end() || (channel.ask_again && now >= *channel.ask_again);
  if (!channel.probes && !(due && channel.recovery.idle())) return std::nullopt;
  channel.ask_again.reset();
  ++channel.asks;
  return Range{channel.limit, channel.limit};
}

Head Association::begin_data(Channel& channel, Slot slot, Range piece, std::byte* out) {
  const Head head{.association = config_.remote,
                  .slot = slot,
                  .generation = generation_of(channel.phase),
                  .number = channel.recovery.next_number()};
  channel.told = channel.sends.end();
  write_data(head, {piece.begin, channel.told}, out);
  return head;
}

void Association::end_data(Time now, Channel& channel, Range piece, std::uint64_t unsent) {
  channel.probes = false;
  if (piece.begin < unsent && piece.length() > 0) {
    ++channel.sent_again;
    ++counters_.packets_resent;
  }
  channel.recovery.sent(now, piece);
}

std::size_t Association::make_data(Time now, Slot slot, std::span<std::byte> out) {
  Channel& channel = channels_[slot];
  const std::size_t before = sizeof(Head) + sizeof(Data) + seals_.tag_before();
  const std::size_t around = sizeof(Head) + sizeof(Data) + seals_.tag_bytes();
  const std::optional<Range> piece = next_piece(now, channel, out.size() - around);
  if (!piece) return 0;
  const std::uint64_t unsent = channel.sends.unsent();
  const Head head = begin_data(channel, slot, *piece, out.data());
  const std::size_t length = piece->length();
  if (length > 0) channel.sends.take(*piece, out.subspan(before, length));
  end_data(now, channel, *piece, unsent);
  seals_.close(head, out.data(), around + length);
  return around + length;
}

std::size_t Association::make_acks(Time now, std::span<std::byte> out) {
  AckWriter writer(out.first(out.size() - seals_.tag_bytes()),
                   {.association = config_.remote, .slot = kAckSlot, .number = next_ack_number_});
  for (const Slot slot : SlotsOf(used_)) {
    const Channel& channel = channels_[slot];
    const bool due = channel.say_due || (channel.say_again && now >= *channel.say_again);
    if (due) TL_ASSERT(writer.add(state_of(now, slot)));
  }
  for (const Slot slot : SlotsOf(used_)) {
    Channel& channel = channels_[slot];
    const bool due = channel.ack_due || (channel.ack_by && now >= *channel.ack_by);
    if (!due || !channel.up || channel.numbers.come.empty()) continue;
    const auto delay = std::clamp<std::int64_t>((now - channel.largest_at).value / 1000, 0, 1'000'000);
    const Ack ack{.credit = credits_.credit(channel.credit),
                  .marked = channel.marked_here,
                  .delay_us = static_cast<std::uint32_t>(delay),
                  .slot = slot,
                  .generation = generation_of(channel.phase)};
    if (!writer.add(ack, channel.numbers.come.ranges())) break;  // the next packet has room
    channel.ack_due = false;
    channel.ack_by.reset();
    channel.unacked = 0;
  }
  if (writer.empty()) return 0;
  const std::size_t bytes = writer.finish() + seals_.tag_bytes();
  seals_.close(writer.head(), out.data(), bytes);
  ++next_ack_number_;
  ++counters_.acks_sent;
  return bytes;
}

// ---- time ----

// Keeps when what waits for the peer has begun to. A class in which nothing waits any more is forgotten here.
void Association::note_waiting(Time now) {
  for (const Slot slot : SlotsOf(waiting_)) {
    if (outstanding(slot) == 0 && !wants_answer(channels_[slot])) waiting_ &= ~(1u << slot);
  }
  if (waiting_ == 0)
    waits_since_.reset();
  else if (!waits_since_)
    waits_since_ = now;
}

std::optional<Time> Association::deadline() const {
  std::optional<Time> first;
  const auto at = [&](const std::optional<Time>& time) {
    if (time && (!first || *time < *first)) first = time;
  };
  for (const Slot slot : SlotsOf(used_)) {
    const Channel& channel = channels_[slot];
    if (!channel.recovery.idle()) at(channel.recovery.deadline(times(channel)));
    at(channel.ack_by);
    at(channel.ask_again);
    at(channel.say_again);
  }
  if (waits_since_ && config_.give_up && !given_up_) at(*waits_since_ + *config_.give_up);
  return first;
}

Status Association::on_time(Time now) {
  for (const Slot slot : SlotsOf(used_)) {
    Channel& channel = channels_[slot];
    channel.recovery.on_time(now, times(channel), &outcome_);
    if (outcome_.probe) {
      ++counters_.timeouts;
      channel.probes = true;
      channel.told = 0;
      channel.sends.lost(*outcome_.probe);
    }
    if (outcome_.packets_lost > 0) apply(now, channel, channel.marked_there);
    arm_ask(now, channel);
  }
  note_waiting(now);
  if (given_up_ || !config_.give_up || !waits_since_ || now < *waits_since_ + *config_.give_up) return {};
  given_up_ = true;
  const auto slot = static_cast<Slot>(std::countr_zero(waiting_));
  const Channel& channel = channels_[slot];
  return {Code::kTimedOut,
          fmt::format("no packet of the peer has come for {} ms, while class {} waits to {}",
                      config_.give_up->value / 1'000'000, slot,
                      !wants_answer(channel)   ? fmt::format("have {} bytes acknowledged", outstanding(slot))
                      : is_open(channel.phase) ? "be opened"
                                               : "be closed"),
          {},
          "see whether the host runs, and whether the path carries packets of this size"};
}

}  // namespace tensorlane::datagram
