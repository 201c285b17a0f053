#include "daemon/transport/datagram/association.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "common/base/assert.h"

namespace tensorlane::datagram {
namespace {

// Numbers that a packet may be ahead of, or behind, the highest that has come. What is farther away is not looked at,
// so that nobody can make this end derive keys for it.
constexpr std::uint64_t kFar = 1 << 16;
constexpr std::size_t kKeptRanges = 64;
// RFC 9000, section 13.2: every few packets, soon after one that came alone, and at once where one is missing.
constexpr unsigned kAckEvery = 8, kMostBackoff = 6;
constexpr std::size_t kLeastPacket = 128;
// Of acknowledgements. A longer packet of them is none, and not worth a hash.
constexpr std::size_t kMostAckBytes = sizeof(Head) + kSlots * (sizeof(Ack) + kMaxAckRanges * sizeof(AckRange)) + 64;
constexpr Duration kAckDelay = microseconds(100);

}  // namespace

Association::Channel::Channel(const AssociationConfig& config)
    : sends(config.frames), recovery(config.packets), window(config.window, config.packet_bytes) {}

Association::Association(const AssociationConfig& config, Credits& credits)
    : config_(config),
      credits_(credits),
      seals_(config.level, config.cipher, config.send_secret),
      opens_(config.level, config.cipher, config.receive_secret) {
  TL_ASSERT(config.classes >= 1 && config.classes <= kMaxDataClasses && config.packet_bytes >= kLeastPacket);
  sodium_memzero(config_.send_secret.data(), config_.send_secret.size());
  sodium_memzero(config_.receive_secret.data(), config_.receive_secret.size());
  channels_.reserve(config.classes + std::size_t{1});
  for (Slot slot = 0; slot <= config.classes; ++slot) {
    Channel& channel = channels_.emplace_back(config);
    channel.credit = credits.add(config.job, slot);
    channel.limit = config.unasked.value;
  }
}

Association::~Association() {
  for (const Channel& channel : channels_) credits_.remove(channel.credit);
}

Status Association::nonsense(const std::string& what) {
  return {Code::kCorrupt, "the peer's datagrams make no sense: " + what};
}

void Association::send(Slot slot, const ports::Outgoing& operation) {
  TL_ASSERT(channels_[slot].sink != nullptr);
  channels_[slot].sends.push(operation.header, operation.payload, operation.token);
}

// ---- what comes ----

bool Association::plausible(const Head& head) const {
  if (head.slot != kAckSlot && head.slot >= channels_.size()) return false;
  const std::uint64_t next = (head.slot == kAckSlot ? ack_numbers_ : channels_[head.slot].numbers).next();
  return head.number <= next + kFar && head.number + kFar >= next;
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

Status Association::take(Time now, std::span<std::byte> packet, bool marked) {
  const std::optional<Head> head = read_head(packet);
  const bool possible = head && plausible(*head) && (head->slot != kAckSlot || packet.size() <= kMostAckBytes);
  const std::size_t bytes = possible ? opens_.open(*head, packet) : 0;
  if (bytes == 0 || !read_packet(packet.first(bytes), &read_)) {
    ++counters_.forged;
    return {};
  }
  ++counters_.packets_received;
  if (head->slot != kAckSlot) return take_data(now, read_, marked);
  if (!is_new(*head, &ack_numbers_)) return {};
  for (std::size_t i = 0; i < read_.head.acks; ++i) TL_RETURN_IF_ERROR(take_ack(now, read_.acks[i]));
  return {};
}

Status Association::take_data(Time now, const ReadPacket& packet, bool marked) {
  Channel& channel = channels_[packet.head.slot];
  if (channel.sink == nullptr) return {};
  const std::uint64_t expected = channel.numbers.next();
  if (!is_new(packet.head, &channel.numbers)) {
    channel.ack_due = true;  // it may be that the acknowledgement was lost
    return {};
  }
  if (packet.head.number >= expected) channel.largest_at = now;
  if (marked) ++channel.marked_here, ++counters_.marked;
  if (packet.head.number != expected || packet.bytes.empty() || ++channel.unacked >= kAckEvery) {
    channel.ack_due = true;
  } else if (!channel.ack_by) {
    channel.ack_by = now + kAckDelay;
  }
  const std::uint64_t limit = credits_.credit(channel.credit);
  TL_RETURN_IF_ERROR(channel.receives.take(packet.data.offset, packet.bytes, limit, *channel.sink));
  credits_.come(now, channel.credit, channel.receives.come());
  credits_.wants(channel.credit, packet.data.wanted);
  return {};
}

Status Association::take_ack(Time now, const ReadAck& read) {
  const Ack& ack = read.ack;
  if (ack.slot >= channels_.size()) return nonsense(fmt::format("an acknowledgement in class {}", ack.slot));
  Channel& channel = channels_[ack.slot];
  const std::span<const Range> come = std::span(read.ranges).first(ack.ranges);
  if (!channel.recovery.acknowledge(now, come, microseconds(ack.delay_us), &channel.round_trips, &outcome_))
    return nonsense(fmt::format("packet {} is acknowledged, which was not sent", ack.largest));
  if (ack.credit > channel.limit) {
    channel.limit = ack.credit;
    channel.asks = 0;
  }
  channel.ask_again.reset();
  apply(now, channel, ack.marked);
  arm_ask(now, channel);
  return {};
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
  if (outcome_.packets_lost > 0) channel.told = 0;  // what it said of the stream's end may be lost
  channel.window.note(now, outcome_.packets_acked, new_marks, outcome_.packets_lost, times(channel).smoothed());
  for (const Range& piece : outcome_.lost) channel.sends.lost(piece);
  for (const Range& piece : outcome_.acked)
    channel.sends.arrived(piece, [&](std::uint64_t token) { channel.sink->on_sent(token); });
}

// ---- what goes ----

// There is more than the peer lets it send, and nothing else to be sent.
bool Association::is_blocked(const Channel& channel) const {
  return channel.sends.end() > channel.limit && !channel.sends.next(channel.limit, 1);
}

std::size_t Association::make(Time now, Slot slot, std::span<std::byte> out) {
  const std::size_t room = std::min(out.size(), config_.packet_bytes) - seals_.tag_bytes();
  const std::size_t bytes = slot == kAckSlot ? make_acks(now, out.first(room)) : make_data(now, slot, out.first(room));
  if (bytes == 0) return 0;
  ++counters_.packets_sent;
  return bytes + seals_.tag_bytes();
}

std::size_t Association::make_data(Time now, Slot slot, std::span<std::byte> out) {
  Channel& channel = channels_[slot];
  if (channel.recovery.full()) return 0;
  constexpr std::size_t kBefore = sizeof(Head) + sizeof(Data);
  const std::uint64_t window = channel.window.size(), in_flight = channel.recovery.bytes_in_flight();
  std::optional<Range> piece;
  if (in_flight < window || channel.probes) piece = channel.sends.next(channel.limit, out.size() - kBefore);
  if (!piece) {
    if (!is_blocked(channel)) return 0;
    const bool due = channel.told < channel.sends.end() || (channel.ask_again && now >= *channel.ask_again);
    if (!channel.probes && !(due && channel.recovery.idle())) return 0;
    piece = Range{channel.limit, channel.limit};  // nothing, but how much there is
    channel.ask_again.reset();
    ++channel.asks;
  }
  const Head head{.association = config_.remote, .slot = slot, .number = channel.recovery.next_number()};
  channel.told = channel.sends.end();
  channel.probes = false;
  write_data(head, {piece->begin, channel.told}, out.data());
  const std::size_t length = piece->length();
  if (length > 0) channel.sends.take(*piece, out.subspan(kBefore, length));
  channel.recovery.sent(now, *piece);
  seals_.close(head, out.data(), kBefore + length);
  return kBefore + length;
}

std::size_t Association::make_acks(Time now, std::span<std::byte> out) {
  AckWriter writer(out, {.association = config_.remote, .slot = kAckSlot, .number = next_ack_number_});
  for (Slot slot = 0; slot < channels_.size(); ++slot) {
    Channel& channel = channels_[slot];
    const bool due = channel.ack_due || (channel.ack_by && now >= *channel.ack_by);
    if (!due || channel.numbers.come.empty()) continue;
    const auto delay = std::clamp<std::int64_t>((now - channel.largest_at).value / 1000, 0, 1'000'000);
    const Ack ack{.credit = credits_.credit(channel.credit),
                  .marked = channel.marked_here,
                  .delay_us = static_cast<std::uint32_t>(delay),
                  .slot = slot};
    if (!writer.add(ack, channel.numbers.come.ranges())) break;  // the next packet has room
    channel.ack_due = false;
    channel.ack_by.reset();
    channel.unacked = 0;
  }
  if (writer.empty()) return 0;
  const std::size_t bytes = writer.finish();
  seals_.close(writer.head(), out.data(), bytes);
  ++next_ack_number_;
  ++counters_.acks_sent;
  return bytes;
}

// ---- time ----

std::optional<Time> Association::deadline() const {
  std::optional<Time> first;
  const auto at = [&](const std::optional<Time>& time) {
    if (time && (!first || *time < *first)) first = time;
  };
  for (const Channel& channel : channels_) {
    at(channel.recovery.deadline(times(channel)));
    at(channel.ack_by);
    at(channel.ask_again);
  }
  return first;
}

void Association::on_time(Time now) {
  for (Channel& channel : channels_) {
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
}

}  // namespace tensorlane::datagram
