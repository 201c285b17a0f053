// Which frames of a flow its receiver has, across the connections that carry the flow (law 7: "A reconnect resumes from
// the receiver's ledger of delivered sequences").
//
// Both ends number the frames of each direction: the first is 0. The receiver counts those that it has delivered to its
// sink, whole and in order, and tells the sender the count; so what is delivered is always a prefix of what was sent.
// The sender keeps a frame, and the bytes behind it, until a count covers it. When the connection breaks, both ends
// forget what was half written or half read. On the next one each first learns the other's count, and goes on with the
// frame of that number: what was on its way is sent again, what was delivered is not.
//
// Pure: numbers only. Who owns a ledger keeps the frames, in as many slots as the ledger's capacity. The transports and
// the simulator use the same code. One thread.
#pragma once

#include <cstdint>
#include <optional>

namespace tensorlane::ledger {

// Number of a frame in one direction of a flow, or how many there are before it.
using Number = std::uint64_t;

class SendLedger {
 public:
  // At most `capacity` frames are kept at a time.
  explicit SendLedger(std::uint32_t capacity) : capacity_(capacity) {}

  bool full() const { return pushed_ - delivered_ >= capacity_; }
  // A new frame, unless full(): its number. It is in slot(number) until delivered() passes it.
  Number push();
  std::uint32_t slot(Number number) const { return static_cast<std::uint32_t>(number % capacity_); }

  // The next to write on this connection is next(), unless that is pushed().
  Number next() const { return next_; }
  Number pushed() const { return pushed_; }
  // next() has been written, whole.
  void written();

  // Frames before this one are with the receiver: their slots are free.
  Number delivered() const { return delivered_; }
  // The receiver says that it has `count`. False, and nothing changes, where it cannot have as many, or had more.
  bool acknowledge(Number count);
  // A new connection, on which the receiver has said that it has `count`: delivered() and next() are then that. How
  // many frames will be written again; none where it cannot have as many, or had more: nothing changes.
  std::optional<std::uint64_t> resume(Number count);

 private:
  std::uint32_t capacity_;
  Number delivered_ = 0, next_ = 0, pushed_ = 0;  // never one above a later one
};

class ReceiveLedger {
 public:
  // The next frame has been delivered.
  void deliver() { ++delivered_; }
  Number delivered() const { return delivered_; }
  // Delivered, and not acknowledged.
  std::uint64_t unacked() const { return delivered_ - acked_; }
  // The count that acknowledges all that is delivered; it is on its way to the sender now.
  Number ack() { return acked_ = delivered_; }

 private:
  Number delivered_ = 0, acked_ = 0;
};

}  // namespace tensorlane::ledger
