#include "daemon/transport/datagram/association.h"

#include <fmt/format.h>

#include <algorithm>

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
constexpr Duration kAckDelay = microseconds(100);
// A longer packet is none of acknowledgements, and not worth a hash.
constexpr std::size_t kMostAckBytes =
    sizeof(Head) + sizeof(Ack) + kMaxAckRanges * sizeof(AckRange) + protect::kTagBytes;

}  // namespace

Association::Association(const AssociationConfig& config, Credits& credits, ports::FrameSink& sink,
                         CreditHolder& holder)
    : config_(config),
      credits_(credits),
      sink_(sink),
      seals_(config.level, config.cipher, config.send_secret),
      opens_(config.level, config.cipher, config.receive_secret),
      sends_(config.frames),
      recovery_(config.packets),
      window_(config.window, config.packet_bytes),
      limit_(config.unasked.value),
      credit_(credits.add(config.job, config.slot, holder)),
      said_credit_(credits.credit(credit_)) {
  TL_ASSERT(config.slot < kSlots && config.packet_bytes >= kMostAckBytes);
  sodium_memzero(config_.send_secret.data(), config_.send_secret.size());
  sodium_memzero(config_.receive_secret.data(), config_.receive_secret.size());
  outcome_.acked.reserve(256);
  outcome_.lost.reserve(256);
}

Association::~Association() {
  credits_.remove(credit_);
}

void Association::send(const ports::Outgoing& operation) {
  sends_.push(operation.header, operation.payload, operation.token);
  ++given_;
}

ports::FlowProgress Association::progress() const {
  return {.given = given_,
          .received = receives_.frames(),
          .outstanding_bytes = outstanding(),
          .retransmissions = sent_again_};
}

// ---- what comes ----

bool Association::Numbers::add(std::uint64_t number) {
  if (number < floor_ || come_.contains(number)) return false;
  come_.add({number, number + 1});
  if (come_.ranges().size() > kKeptRanges) {
    come_.keep_last(kKeptRanges);
    floor_ = come_.ranges().front().begin;
  }
  return true;
}

bool Association::plausible(const Head& head, std::size_t bytes) const {
  if (head.slot == kAckSlot ? bytes > kMostAckBytes : head.slot != config_.slot) return false;
  return head.number + kFar >= numbers(head.slot).next();
}

// Whether it opens is found out with a key of its own, where its number is far from all that have come.
std::size_t Association::open(Time now, const Head& head, std::span<std::byte> packet) {
  if (head.number <= numbers(head.slot).next() + kFar) return opens_.open(head, packet);
  if (now < next_far_) return 0;
  next_far_ = now + kFarEvery;
  return opens_.open_far(head, packet);
}

const Status& Association::take(Time now, std::span<std::byte> packet, bool marked) {
  const std::optional<Head> head = read_head(packet);
  const bool possible = head && plausible(*head, packet.size());
  const std::size_t bytes = possible ? open(now, *head, packet) : 0;
  if (bytes == 0 || !read_packet(packet.first(bytes), opens_.tag_before(), &read_)) {
    ++counters_.forged;
    return status_;
  }
  ++counters_.packets_received;
  const bool sound = head->slot == kAckSlot ? take_ack(now, read_) : take_data(now, read_, marked);
  TL_ASSERT(sound != !status_.ok());
  note_waiting(now);
  return status_;
}

bool Association::take_data(Time now, const ReadPacket& packet, bool marked) {
  const std::uint64_t expected = numbers_.next();
  if (!numbers_.add(packet.head.number)) {
    ++counters_.duplicates;
    ack_due_ = true;  // it may be that the acknowledgement was lost
    return true;
  }
  waits_since_ = now;
  asked_ = false;
  if (packet.head.number >= expected) largest_at_ = now;
  if (marked) ++marked_here_, ++counters_.marked;
  if (packet.head.number != expected || packet.bytes.empty() || ++unacked_ >= kAckEvery) {
    ack_due_ = true;
  } else if (!ack_by_) {
    ack_by_ = now + kAckDelay;
  }
  if (!receives_.take(packet.data.offset, packet.bytes, credits_.credit(credit_), sink_)) {
    status_ = receives_.failure();
    return false;
  }
  credits_.come(now, credit_, receives_.come());
  credits_.wants(credit_, packet.data.wanted);
  return true;
}

bool Association::take_ack(Time now, const ReadPacket& packet) {
  if (!ack_numbers_.add(packet.head.number)) {
    ++counters_.duplicates;
    return true;
  }
  waits_since_ = now;
  asked_ = false;
  const Ack& ack = packet.ack;
  const std::span<const Range> come = std::span(packet.ranges).first(ack.ranges);
  if (!recovery_.acknowledge(now, come, microseconds(ack.delay_us), &round_trips_, &outcome_)) {
    status_ = {
        Code::kCorrupt,
        fmt::format("the peer's datagrams make no sense: packet {} is acknowledged, which was not sent", ack.largest)};
    return false;
  }
  if (ack.credit > limit_) {
    limit_ = ack.credit;
    asks_ = 0;
  }
  ask_again_.reset();
  apply(now, ack.marked);
  arm_ask(now);
  return true;
}

// The credit may have been in an acknowledgement that was lost.
void Association::arm_ask(Time now) {
  if (!is_blocked() || !recovery_.idle() || ask_again_) return;
  ask_again_ = now + round_trips_.timeout() * (std::int64_t{1} << std::min(asks_, kMostBackoff));
}

// What recovery has found out of packets.
void Association::apply(Time now, std::uint64_t marked) {
  const std::uint64_t new_marks = marked - std::min(marked, marked_there_);
  marked_there_ = std::max(marked_there_, marked);
  counters_.packets_lost += outcome_.packets_lost;
  counters_.spurious += outcome_.spurious;
  if (outcome_.packets_lost > 0) announced_ = 0;  // what they said of the stream's end is lost, too
  window_.note(now, outcome_.packets_acked, new_marks, outcome_.packets_lost, outcome_.spurious,
               round_trips_.smoothed());
  for (const Range& piece : outcome_.lost) sends_.lost(piece);
  for (const Range& piece : outcome_.acked)
    sends_.arrived(piece, [this](std::uint64_t token) { sink_.on_sent(token); });
}

// ---- what goes ----

// There is more than the peer lets it send, and nothing else to be sent.
bool Association::is_blocked() const {
  return sends_.end() > limit_ && !sends_.next(limit_, 1);
}

// What the next packet carries, which may be nothing but how much there is.
std::optional<Range> Association::next_piece(Time now, std::size_t most) {
  if (recovery_.full()) return std::nullopt;
  if (recovery_.bytes_in_flight() < window_.size() || probes_) {
    if (const auto piece = sends_.next(limit_, most)) return piece;
  }
  // A probe goes even if nothing is left of what it should carry.
  if (probes_ && !is_blocked()) return Range{sends_.unsent(), sends_.unsent()};
  if (!is_blocked()) return std::nullopt;
  const bool due = announced_ < sends_.end() || (ask_again_ && now >= *ask_again_);
  if (!probes_ && !(due && recovery_.idle())) return std::nullopt;
  ask_again_.reset();
  ++asks_;
  return Range{limit_, limit_};
}

Head Association::begin_data(Range piece, std::byte* out) {
  const Head head{.association = config_.remote, .slot = config_.slot, .number = recovery_.next_number()};
  announced_ = sends_.end();
  write_data(head, {piece.begin, announced_}, out);
  return head;
}

void Association::end_data(Time now, Range piece, std::uint64_t unsent) {
  probes_ = false;
  if (piece.begin < unsent && piece.length() > 0) {
    ++sent_again_;
    ++counters_.packets_resent;
  }
  recovery_.sent(now, piece);
  ++counters_.packets_sent;
}

std::size_t Association::make(Time now, std::span<std::byte> out) {
  note_waiting(now);
  out = out.first(std::min(out.size(), config_.packet_bytes));
  const std::size_t before = sizeof(Head) + sizeof(Data) + seals_.tag_before();
  const std::size_t around = sizeof(Head) + sizeof(Data) + seals_.tag_bytes();
  const std::optional<Range> piece = next_piece(now, out.size() - around);
  if (!piece) return 0;
  const std::uint64_t unsent = sends_.unsent();
  const Head head = begin_data(*piece, out.data());
  const std::size_t length = piece->length();
  if (length > 0) sends_.take(*piece, out.subspan(before, length));
  end_data(now, *piece, unsent);
  seals_.close(head, out.data(), around + length);
  return around + length;
}

bool Association::make(Time now, std::span<std::byte> own, Gathered* packet) {
  packet->count = 0;
  packet->borrows = false;
  packet->number = recovery_.next_number();
  if (config_.level != DataProtection::kNone) {
    packet->bytes = make(now, own);
    if (packet->bytes > 0) packet->parts[packet->count++] = own.first(packet->bytes);
    return packet->bytes > 0;
  }
  note_waiting(now);
  own = own.first(std::min(own.size(), config_.packet_bytes));
  const std::size_t before = sizeof(Head) + sizeof(Data) + seals_.tag_before();
  std::optional<Range> piece = next_piece(now, own.size() - before);
  if (!piece) return false;
  const std::uint64_t unsent = sends_.unsent();
  packet->bytes = before;
  packet->parts[packet->count++] = own.first(before);
  if (piece->length() > 0) *piece = sends_.gather(*piece, packet->number, own.subspan(before), packet);
  const Head head = begin_data(*piece, own.data());
  seals_.close(head, own.data(), before);
  end_data(now, *piece, unsent);
  return true;
}

void Association::released(std::uint64_t number) {
  sends_.released(number + 1, [this](std::uint64_t token) { sink_.on_sent(token); });
}

std::size_t Association::make_ack(Time now, std::span<std::byte> out) {
  const std::uint64_t credit = credits_.credit(credit_);
  const bool due = ack_due_ || credit > said_credit_ || (ack_by_ && now >= *ack_by_);
  if (!due || numbers_.ranges().empty()) return 0;
  const auto delay = std::clamp<std::int64_t>((now - largest_at_).value / 1000, 0, 1'000'000);
  const Head head{.association = config_.remote, .slot = kAckSlot, .number = next_ack_number_};
  const Ack ack{.credit = credit, .marked = marked_here_, .delay_us = static_cast<std::uint32_t>(delay)};
  const std::size_t room = std::min(out.size(), config_.packet_bytes) - seals_.tag_bytes();
  const std::size_t bytes = write_ack(head, ack, numbers_.ranges(), out.first(room)) + seals_.tag_bytes();
  seals_.close(head, out.data(), bytes);
  ++next_ack_number_;
  ++counters_.acks_sent;
  ++counters_.packets_sent;
  said_credit_ = credit;
  ack_due_ = false;
  ack_by_.reset();
  unacked_ = 0;
  return bytes;
}

// ---- time ----

void Association::ask(Time now) {
  if (asked_) return;
  asked_ = probes_ = true;
  note_waiting(now);
}

// Keeps when what waits for the peer has begun to.
void Association::note_waiting(Time now) {
  if (outstanding() == 0 && !asked_)
    waits_since_.reset();
  else if (!waits_since_)
    waits_since_ = now;
}

std::optional<Time> Association::deadline() const {
  std::optional<Time> first = recovery_.deadline(round_trips_);
  const auto at = [&](const std::optional<Time>& time) {
    if (time && (!first || *time < *first)) first = time;
  };
  at(ack_by_);
  at(ask_again_);
  if (waits_since_ && config_.give_up && !given_up_) at(*waits_since_ + *config_.give_up);
  return first;
}

Status Association::on_time(Time now) {
  recovery_.on_time(now, round_trips_, &outcome_);
  if (outcome_.probe) {
    ++counters_.timeouts;
    probes_ = true;
    announced_ = 0;
    sends_.lost(*outcome_.probe);
  }
  if (outcome_.packets_lost > 0) apply(now, marked_there_);
  arm_ask(now);
  note_waiting(now);
  if (given_up_ || !config_.give_up || !waits_since_ || now < *waits_since_ + *config_.give_up) return {};
  given_up_ = true;
  return {Code::kTimedOut,
          fmt::format("no packet of the peer has come for {} ms, while {} bytes wait to be acknowledged",
                      config_.give_up->value / 1'000'000, outstanding()),
          {},
          "see whether the host runs, and whether the path carries packets of this size"};
}

}  // namespace tensorlane::datagram
