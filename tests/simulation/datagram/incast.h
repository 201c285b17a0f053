// Many hosts send to one, through a port of a switch with strict priority and finite queues: the bottleneck, the
// messages, and two kinds of senders, associations and simple ones in the manner of TCP. Everything follows from a
// seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "daemon/transport/datagram/packet.h"

namespace tensorlane::datagram::test {

struct IncastOptions {
  unsigned senders = 64;
  BitsPerSecond rate{10'000'000'000};  // of every link
  Duration delay = microseconds(4);    // from a host to the switch, and from there to a host
  Bytes queue = kib(256);              // of each class at the bottleneck; what does not fit is dropped
  Bytes marks = kib(96);               // a packet that finds as much in its queue is marked
  Bytes most = mib(1);                 // of a message
  unsigned bursts = 4;                 // in which every sender has an urgent message, at about the same time
  Duration apart = milliseconds(40);   // bursts
  std::uint64_t seed = 1;
};

struct IncastMessage {
  Time at;
  unsigned sender = 0;
  std::size_t bytes = 0;
};
std::vector<IncastMessage> incast_messages(const IncastOptions& options);

struct IncastResult {
  Duration p99{};                       // of messages, from when they are given to when they are there
  double goodput = 0;                   // payload of both classes that arrived, of what the link carries in that time
  std::uint64_t dropped = 0, sent = 0;  // packets of both classes at the bottleneck
  std::uint64_t answers = 0, duplicates = 0;  // of associations: what sinks have sent, and replays that were noticed
  bool whole = false;                         // all messages have come
  std::string wrong;
};

// The bytes of the messages alone, one after the other at the rate of the link.
Duration incast_ideal(const IncastOptions& options);
// Bulk without end beside the messages. Sinks answer from inside on_frame(), and some packets come once more, long
// after.
IncastResult incast_of_associations(const IncastOptions& options);
// Slow start, half on loss, a time-out of 4 ms, selective acknowledgements that are never lost.
IncastResult incast_of_simple_senders(const IncastOptions& options);

// Events in the order of their times, and of being added.
class Events {
 public:
  void at(Time time, std::function<void()> what) { queue_.push({time, count_++, std::move(what)}); }
  Time now() const { return now_; }
  bool step(Time end) {
    if (queue_.empty() || queue_.top().time > end) return false;
    const std::function<void()> what = queue_.top().what;
    now_ = queue_.top().time;
    queue_.pop();
    what();
    return true;
  }

 private:
  struct Event {
    Time time;
    std::uint64_t count = 0;
    std::function<void()> what;
    bool operator<(const Event& other) const { return time != other.time ? time > other.time : count > other.count; }
  };
  std::priority_queue<Event> queue_;
  std::uint64_t count_ = 0;
  Time now_{1000};
};

// What a packet takes on a wire, with what stands around it.
inline Duration incast_wire(const IncastOptions& options, std::size_t bytes) {
  return Duration(static_cast<std::int64_t>(bytes + 66) * 8'000'000'000 /
                  static_cast<std::int64_t>(options.rate.value));
}

// The port of the switch to the receiver.
template <typename Packet>
class Bottleneck {
 public:
  using Arrive = std::function<void(Packet, bool marked)>;
  Bottleneck(const IncastOptions& options, Events& events, Arrive arrive)
      : options_(options), events_(events), arrive_(std::move(arrive)) {}

  void add(Slot slot, std::size_t bytes, Packet packet) {
    ++sent;
    Queue& queue = queues_[slot];
    if (queue.bytes + bytes > options_.queue.value) {
      ++dropped;
      return;
    }
    const bool marked = queue.bytes >= options_.marks.value;
    queue.bytes += bytes;
    queue.packets.push_back({std::move(packet), bytes, marked});
    if (!busy_) next();
  }
  std::uint64_t sent = 0, dropped = 0;

 private:
  struct Waiting {
    Packet packet;
    std::size_t bytes = 0;
    bool marked = false;
  };
  struct Queue {
    std::deque<Waiting> packets;
    std::uint64_t bytes = 0;
  };
  void next() {
    busy_ = false;
    for (Queue& queue : queues_) {
      if (queue.packets.empty()) continue;
      Waiting first = std::move(queue.packets.front());
      queue.packets.pop_front();
      queue.bytes -= first.bytes;
      busy_ = true;
      const Time done = events_.now() + incast_wire(options_, first.bytes);
      events_.at(done, [this] { next(); });
      events_.at(done + options_.delay, [this, first = std::move(first)] { arrive_(first.packet, first.marked); });
      return;
    }
  }

  const IncastOptions options_;
  Events& events_;
  Arrive arrive_;
  std::array<Queue, kSlots> queues_;
  bool busy_ = false;
};

}  // namespace tensorlane::datagram::test
