#include "tests/simulation/datagram/incast.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "daemon/transport/datagram/association.h"
#include "tests/simulation/datagram/path.h"

namespace tensorlane::datagram::test {
namespace {

constexpr std::size_t kIncastPacket = 1400;
using Bytestring = std::shared_ptr<std::vector<std::byte>>;

// Bulk and messages to one host.
class Associations {
 public:
  explicit Associations(const IncastOptions& options)
      : options_(options),
        messages_(incast_messages(options)),
        credits_({.window = kib(96), .unasked = kib(4), .quantum = kib(8)}),
        payload_(kMaxOperation.value, std::byte{5}),
        place_(kMaxOperation.value),
        bottleneck_(options, events_, [this](const Bytestring& packet, bool marked) { at_receiver(*packet, marked); }) {
    for (unsigned i = 0; i < options.senders; ++i) {
      senders_.push_back(std::make_unique<End>(*this, i, false));
      receivers_.push_back(std::make_unique<End>(*this, i, true));
    }
    for (const auto* ends : {&senders_, &receivers_})
      for (const auto& end : *ends)
        for (const Slot slot : {kControl, kUrgent, kBulk})
          end->association->attach(events_.now(), slot, end->sinks[slot]);
    for (std::size_t i = 0; i < messages_.size(); ++i) events_.at(messages_[i].at, [this, i] { begin(i); });
    for (const auto& sender : senders_) pump(*sender);
    pump_receiver();
  }

  IncastResult run() {
    const Time end = messages_.back().at + options_.apart;
    while (events_.step(end)) {
    }
    IncastResult result;
    result.whole = times_.size() == messages_.size();
    std::ranges::sort(times_);
    if (!times_.empty()) result.p99 = times_[times_.size() * 99 / 100];
    const Duration took = end - messages_.front().at;
    result.goodput = static_cast<double>(come_) * 8 / to_seconds(took) / static_cast<double>(options_.rate.value);
    result.dropped = bottleneck_.dropped;
    result.sent = bottleneck_.sent;
    result.wrong = wrong_;
    for (const auto& sender : senders_) result.answers += sender->answers;
    for (const auto& receiver : receivers_) result.duplicates += receiver->association->counters().duplicates;
    return result;
  }

 private:
  struct End;
  struct Sink final : ports::FrameSink {
    Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
      if (header.offset != headers++) all->wrong_ = "a header came in another order";
      return std::span(all->place_).first(header.payload_bytes);
    }
    void on_frame(const protocol::FrameHeader& header) override { all->on_frame(*end, slot, header); }
    void on_sent(std::uint64_t) override {
      if (slot == kBulk) all->more_bulk(*end);
    }
    Associations* all = nullptr;
    End* end = nullptr;
    Slot slot = 0;
    std::uint64_t headers = 0;
  };
  // Of a sender, or the receiver's of one.
  struct End final : AssociationOwner {
    End(Associations& all_ends, unsigned number, bool receiving)
        : all(all_ends), index(number), receives(receiving), own({}) {
      for (Slot slot = 0; slot < sinks.size(); ++slot) {
        sinks[slot].all = &all;
        sinks[slot].end = this;
        sinks[slot].slot = slot;
      }
      AssociationConfig config;
      config.job = JobId(index % 2);
      config.local = config.remote = index;
      config.classes = 2;
      config.packet_bytes = kIncastPacket;
      config.unasked = kib(4);
      config.send_secret[0] = static_cast<std::byte>(receives);
      config.receive_secret[0] = static_cast<std::byte>(!receives);
      association = std::make_unique<Association>(config, receives ? all.credits_ : own, *this);
    }
    void on_open(Slot slot) override {
      if (slot == kBulk && !receives) all.more_bulk(*this);
    }
    void on_closed(Slot, const Status&) override { all.wrong_ = "a class is closed"; }
    void on_credit() override { all.mark(*this); }

    Associations& all;
    const unsigned index;
    const bool receives;
    Credits own;
    std::array<Sink, 3> sinks;
    std::unique_ptr<Association> association;
    std::array<std::uint64_t, 3> given{};
    std::uint64_t answers = 0;
    Time free_at;   // of the sender's link
    Time timer_at;  // the next that is set
    bool dirty = false;
  };

  void send(End& end, Slot slot, std::size_t bytes, std::size_t message) {
    ports::Outgoing operation{.header = {}, .payload = std::span(payload_).first(bytes), .token = end.given[slot] + 1};
    operation.header.type = bytes > 0 ? protocol::FrameType::kData : protocol::FrameType::kGrant;
    operation.header.offset = end.given[slot]++;
    operation.header.slice = static_cast<std::uint32_t>(message);
    end.association->send(slot, operation);
  }
  void more_bulk(End& end) {
    while (end.association->writable(kBulk) && end.association->outstanding(kBulk) < kib(512).value)
      send(end, kBulk, kMaxOperation.value, 0);
  }
  void begin(std::size_t i) {
    End& end = *senders_[messages_[i].sender];
    // `slice` names the message, from 1, in its last frame.
    for (std::size_t left = messages_[i].bytes; left > 0;) {
      const std::size_t bytes = std::min<std::size_t>(left, kMaxOperation.value);
      left -= bytes;
      send(end, kUrgent, bytes, left == 0 ? i + 1 : 0);
    }
    pump(end);
  }
  void on_frame(End& end, Slot slot, const protocol::FrameHeader& header) {
    if (events_.now() >= messages_.front().at) come_ += header.payload_bytes;
    if (!end.receives) {
      if (slot == kControl) ++end.answers;
    } else if (slot == kUrgent && header.slice > 0) {
      times_.push_back(events_.now() - messages_[header.slice - 1].at);
      send(end, kControl, 0, header.slice);  // from inside on_frame()
    }
  }

  void mark(End& end) {
    if (std::exchange(end.dirty, true)) return;
    dirty_.push_back(&end);
  }
  void take(End& end, std::vector<std::byte>& packet, bool marked) {
    const Status& status = end.association->take(events_.now(), packet, marked);
    if (!status.ok()) wrong_ = status.to_string();
  }
  void at_receiver(const std::vector<std::byte>& packet, bool marked) {
    // A few come once more, long after.
    if (++arrived_ % 500 == 0)
      events_.at(events_.now() + milliseconds(30), [this, packet] { at_receiver(packet, false); });
    std::vector<std::byte> own = packet;
    End& end = *receivers_[read_head(own)->association];
    take(end, own, marked);
    mark(end);
    pump_receiver();
  }

  // Acknowledgements and answers of all associations in turn, as the link has room.
  void pump_receiver() {
    credits_.give(events_.now());
    while (!dirty_.empty() && receiver_free_at_ <= events_.now()) {
      End& end = *dirty_.front();
      std::array<std::byte, kIncastPacket> packet;
      std::size_t bytes = 0;
      for (const Slot slot : {kAckSlot, kControl, kUrgent, kBulk})
        if (bytes == 0) bytes = end.association->make(events_.now(), slot, packet);
      dirty_.pop_front();
      end.dirty = false;
      set_timer(end);
      if (bytes == 0) continue;
      mark(end);
      receiver_free_at_ = events_.now() + incast_wire(options_, bytes);
      events_.at(receiver_free_at_, [this] { pump_receiver(); });
      const auto copy =
          std::make_shared<std::vector<std::byte>>(packet.begin(), packet.begin() + static_cast<long>(bytes));
      events_.at(receiver_free_at_ + options_.delay * 2, [this, copy, i = end.index] {
        take(*senders_[i], *copy, false);
        pump(*senders_[i]);
      });
    }
  }
  void pump(End& end) {
    if (end.free_at > events_.now()) return;
    end.own.give(events_.now());
    std::array<std::byte, kIncastPacket> packet;
    for (const Slot slot : {kAckSlot, kControl, kUrgent, kBulk}) {
      const std::size_t bytes = end.association->make(events_.now(), slot, packet);
      if (bytes == 0) continue;
      end.free_at = events_.now() + incast_wire(options_, bytes);
      events_.at(end.free_at, [this, &end] { pump(end); });
      const auto copy =
          std::make_shared<std::vector<std::byte>>(packet.begin(), packet.begin() + static_cast<long>(bytes));
      const Slot queue = slot == kAckSlot ? kControl : slot;
      events_.at(end.free_at + options_.delay, [this, queue, copy] { bottleneck_.add(queue, copy->size(), copy); });
      break;
    }
    set_timer(end);
  }
  void set_timer(End& end) {
    const auto due = end.association->deadline();
    if (!due || (end.timer_at > events_.now() && end.timer_at <= *due)) return;
    end.timer_at = std::max(*due, events_.now() + microseconds(1));
    events_.at(end.timer_at, [this, &end] {
      if (end.timer_at != events_.now()) return;
      if (const Status status = end.association->on_time(events_.now()); !status.ok()) wrong_ = status.to_string();
      mark(end);
      if (end.receives) return pump_receiver();
      dirty_.pop_back();
      end.dirty = false;
      pump(end);
      set_timer(end);
    });
  }

  const IncastOptions options_;
  const std::vector<IncastMessage> messages_;
  Events events_;
  Credits credits_;
  std::vector<std::byte> payload_, place_;
  Bottleneck<Bytestring> bottleneck_;
  std::vector<std::unique_ptr<End>> senders_, receivers_;
  std::deque<End*> dirty_;  // of the receiver
  Time receiver_free_at_;
  std::vector<Duration> times_;
  std::uint64_t come_ = 0, arrived_ = 0;
  std::string wrong_;
};

// ---- senders in the manner of TCP ----

struct Segment {
  unsigned flow = 0;
  std::uint64_t number = 0, order = 0;  // of the stream, and of sending
};

class SimpleSenders {
 public:
  explicit SimpleSenders(const IncastOptions& options)
      : options_(options),
        messages_(incast_messages(options)),
        flows_(options.senders * std::size_t{2}),
        free_at_(options.senders),
        bottleneck_(options, events_, [this](const Segment& segment, bool) { arrive(segment); }) {
    for (std::size_t i = 1; i < flows_.size(); i += 2) flows_[i].end = ~std::uint64_t{0};  // bulk
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      events_.at(messages_[i].at, [this, i] {
        Flow& flow = flows_[messages_[i].sender * std::size_t{2}];
        flow.end += (messages_[i].bytes + kPayload - 1) / kPayload;
        flow.messages.push_back({flow.end, messages_[i].at});
        pump(messages_[i].sender);
      });
    }
    for (unsigned sender = 0; sender < options.senders; ++sender) pump(sender);
  }

  IncastResult run() {
    const Time end = messages_.back().at + options_.apart;
    while (events_.step(end)) {
    }
    IncastResult result;
    result.whole = times_.size() == messages_.size();
    for (const Flow& flow : flows_)
      for (const auto& message : flow.messages) times_.push_back(end - message.at);  // at least
    std::ranges::sort(times_);
    result.p99 = times_[times_.size() * 99 / 100];
    result.goodput = static_cast<double>(come_ * kPayload) * 8 / to_seconds(end - messages_.front().at) /
                     static_cast<double>(options_.rate.value);
    result.dropped = bottleneck_.dropped;
    result.sent = bottleneck_.sent;
    return result;
  }

 private:
  static constexpr std::uint64_t kPayload = kIncastPacket - 40;
  static constexpr Duration kTimeout = milliseconds(4);
  struct Sent {
    std::uint64_t number = 0, order = 0;
    Time at;
    bool done = false;
  };
  struct Message {
    std::uint64_t end = 0;
    Time at;
  };
  struct Flow {
    std::uint64_t end = 0, next = 0, orders = 0;
    std::deque<Sent> flight;
    std::size_t in_flight = 0;
    std::deque<std::uint64_t> lost;
    double window = 10, threshold = 1e9;
    std::uint64_t halved_until = 0;
    bool timer = false;
    RangeSet come;  // at the receiver
    std::deque<Message> messages;
  };

  void arrive(const Segment& segment) {
    Flow& flow = flows_[segment.flow];
    if (!flow.come.contains(segment.number) && events_.now() >= messages_.front().at) ++come_;
    flow.come.add({segment.number, segment.number + 1});
    const std::uint64_t whole = flow.come.first_missing({0, ~std::uint64_t{0}});
    for (; !flow.messages.empty() && flow.messages.front().end <= whole; flow.messages.pop_front())
      times_.push_back(events_.now() - flow.messages.front().at);
    events_.at(events_.now() + options_.delay * 2, [this, segment] { acked(segment); });
  }
  void acked(const Segment& segment) {
    Flow& flow = flows_[segment.flow];
    for (Sent& sent : flow.flight) {
      if (sent.order > segment.order) break;
      if (sent.done) continue;
      if (sent.order == segment.order) {
        flow.window += flow.window < flow.threshold ? 1 : 1 / flow.window;
      } else if (sent.order + 3 <= segment.order) {
        flow.lost.push_back(sent.number);
        if (sent.order >= flow.halved_until) {
          flow.threshold = flow.window = std::max(flow.window / 2, 2.0);
          flow.halved_until = flow.orders;
        }
      } else {
        continue;
      }
      sent.done = true;
      --flow.in_flight;
    }
    while (!flow.flight.empty() && flow.flight.front().done) flow.flight.pop_front();
    pump(segment.flow / 2);
  }
  void time_out(unsigned number) {
    Flow& flow = flows_[number];
    flow.timer = false;
    if (flow.in_flight == 0) return;
    const auto oldest = std::ranges::find(flow.flight, false, &Sent::done);
    if (events_.now() >= oldest->at + kTimeout) {
      for (const Sent& sent : flow.flight)
        if (!sent.done) flow.lost.push_back(sent.number);
      flow.flight.clear();
      flow.in_flight = 0;
      flow.threshold = std::max(flow.window / 2, 2.0);
      flow.window = 1;
      pump(number / 2);
    }
    set_timer(number);
  }
  void set_timer(unsigned number) {
    Flow& flow = flows_[number];
    if (flow.timer || flow.in_flight == 0) return;
    flow.timer = true;
    const auto oldest = std::ranges::find(flow.flight, false, &Sent::done);
    events_.at(std::max(oldest->at + kTimeout, events_.now()), [this, number] { time_out(number); });
  }
  // The urgent flow first.
  void pump(unsigned sender) {
    if (free_at_[sender] > events_.now()) return;
    for (const unsigned number : {2 * sender, 2 * sender + 1}) {
      Flow& flow = flows_[number];
      if (static_cast<double>(flow.in_flight) >= flow.window || (flow.lost.empty() && flow.next == flow.end)) continue;
      Segment segment{number, 0, flow.orders++};
      if (flow.lost.empty()) {
        segment.number = flow.next++;
      } else {
        segment.number = flow.lost.front();
        flow.lost.pop_front();
      }
      flow.flight.push_back({segment.number, segment.order, events_.now(), false});
      ++flow.in_flight;
      set_timer(number);
      free_at_[sender] = events_.now() + incast_wire(options_, kIncastPacket);
      events_.at(free_at_[sender], [this, sender] { pump(sender); });
      const Slot slot = number % 2 == 0 ? kUrgent : kBulk;
      events_.at(free_at_[sender] + options_.delay,
                 [this, slot, segment] { bottleneck_.add(slot, kIncastPacket, segment); });
      return;
    }
  }

  const IncastOptions options_;
  const std::vector<IncastMessage> messages_;
  Events events_;
  std::vector<Flow> flows_;  // of each sender an urgent one and one of bulk
  std::vector<Time> free_at_;
  Bottleneck<Segment> bottleneck_;
  std::vector<Duration> times_;
  std::uint64_t come_ = 0;
};

}  // namespace

std::vector<IncastMessage> incast_messages(const IncastOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<IncastMessage> messages;
  for (unsigned burst = 0; burst < options.bursts; ++burst) {
    const Time at = Time{} + milliseconds(10) + options.apart * burst;
    for (unsigned sender = 0; sender < options.senders; ++sender) {
      const std::uint64_t bytes = 4096 + random() % (options.most.value - 4096);
      messages.push_back({at + microseconds(static_cast<std::int64_t>(random() % 20)), sender, bytes});
    }
  }
  std::ranges::sort(messages, {}, &IncastMessage::at);
  return messages;
}

Duration incast_ideal(const IncastOptions& options) {
  std::vector<Duration> times;
  Time free_at;
  for (const IncastMessage& message : incast_messages(options)) {
    const auto bits = static_cast<std::int64_t>(message.bytes) * 8;
    const Duration wire(bits * 1'000'000'000 / static_cast<std::int64_t>(options.rate.value));
    free_at = std::max(free_at, message.at) + wire;
    times.push_back(free_at - message.at + options.delay * 2);
  }
  std::ranges::sort(times);
  return times[times.size() * 99 / 100];
}

IncastResult incast_of_associations(const IncastOptions& options) {
  return Associations(options).run();
}

IncastResult incast_of_simple_senders(const IncastOptions& options) {
  return SimpleSenders(options).run();
}

}  // namespace tensorlane::datagram::test
