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

// Bulk and messages to one host, of each sender a flow in each class.
class Associations {
 public:
  explicit Associations(const IncastOptions& options)
      : options_(options),
        messages_(incast_messages(options)),
        credits_({.window = kib(96), .unasked = kib(4), .quantum = kib(8)}),
        payload_(kMaxOperation.value, std::byte{5}),
        place_(kMaxOperation.value),
        bottleneck_(options, events_, [this](const Bytestring& packet, bool marked) { at_receiver(*packet, marked); }) {
    for (unsigned i = 0; i < options.senders; ++i) senders_.push_back(std::make_unique<Sender>(*this, i));
    for (std::size_t i = 0; i < messages_.size(); ++i) events_.at(messages_[i].at, [this, i] { begin(i); });
    for (const auto& sender : senders_) {
      more_bulk(sender->here[kBulk]);
      pump(*sender);
    }
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
    result.answers = answers_;
    for (const auto& sender : senders_)
      for (const Flow& flow : sender->there) result.duplicates += flow.association.counters().duplicates;
    return result;
  }

 private:
  struct Sender;
  // One end of a flow: a sender's, or the receiver's. Both have one number.
  struct Flow final : ports::FrameSink, CreditHolder {
    Flow(Sender& of_sender, Slot of_slot, bool at_receiver)
        : all(of_sender.all),
          sender(of_sender),
          slot(of_slot),
          receives(at_receiver),
          association(config(), receives ? all.credits_ : sender.credits, *this, *this) {}
    AssociationConfig config() const {
      AssociationConfig config;
      config.job = JobId(sender.index % 2);
      config.slot = slot;
      config.remote = sender.index * 3 + slot;
      config.packet_bytes = kIncastPacket;
      config.unasked = kib(4);
      config.send_secret = {static_cast<std::byte>(receives), static_cast<std::byte>(slot)};
      config.receive_secret = {static_cast<std::byte>(!receives), static_cast<std::byte>(slot)};
      return config;
    }
    Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
      if (header.offset != headers++) all.wrong_ = "a header came in another order";
      return std::span(all.place_).first(header.payload_bytes);
    }
    void on_frame(const protocol::FrameHeader& header) override { all.on_frame(*this, header); }
    void on_sent(std::uint64_t) override {
      if (slot == kBulk) all.more_bulk(*this);
    }
    void credit_raised() override {
      if (receives) all.mark(*this);
    }

    Associations& all;
    Sender& sender;
    const Slot slot;
    const bool receives;
    std::uint64_t headers = 0, given = 0;
    Time timer_at;  // the next that is set
    bool dirty = false;
    Association association;
  };
  // Its flows by slot: here, and at the receiver.
  struct Sender {
    Sender(Associations& all_senders, unsigned number)
        : all(all_senders),
          index(number),
          credits({}),
          here{{{*this, kControl, false}, {*this, kUrgent, false}, {*this, kBulk, false}}},
          there{{{*this, kControl, true}, {*this, kUrgent, true}, {*this, kBulk, true}}} {}

    Associations& all;
    const unsigned index;
    Credits credits;
    Time free_at;  // its link
    std::array<Flow, 3> here, there;
  };

  void send(Flow& flow, std::size_t bytes, std::size_t message) {
    ports::Outgoing operation{.header = {}, .payload = std::span(payload_).first(bytes), .token = flow.given + 1};
    operation.header.type = bytes > 0 ? protocol::FrameType::kData : protocol::FrameType::kGrant;
    operation.header.offset = flow.given++;
    operation.header.slice = static_cast<std::uint32_t>(message);
    flow.association.send(operation);
  }
  void more_bulk(Flow& flow) {
    while (flow.association.writable() && flow.association.outstanding() < kib(512).value)
      send(flow, kMaxOperation.value, 0);
  }
  void begin(std::size_t i) {
    Sender& sender = *senders_[messages_[i].sender];
    // `slice` names the message, from 1, in its last frame.
    for (std::size_t left = messages_[i].bytes; left > 0;) {
      const std::size_t bytes = std::min<std::size_t>(left, kMaxOperation.value);
      left -= bytes;
      send(sender.here[kUrgent], bytes, left == 0 ? i + 1 : 0);
    }
    pump(sender);
  }
  void on_frame(Flow& flow, const protocol::FrameHeader& header) {
    if (events_.now() >= messages_.front().at) come_ += header.payload_bytes;
    if (!flow.receives) {
      ++answers_;
    } else if (flow.slot == kUrgent && header.slice > 0) {
      times_.push_back(events_.now() - messages_[header.slice - 1].at);
      Flow& answers = flow.sender.there[kControl];
      send(answers, 0, header.slice);  // from inside on_frame()
      mark(answers);
    }
  }

  void mark(Flow& flow) {
    if (std::exchange(flow.dirty, true)) return;
    dirty_.push_back(&flow);
  }
  void take(Flow& flow, std::vector<std::byte>& packet, bool marked) {
    const Status& status = flow.association.take(events_.now(), packet, marked);
    if (!status.ok()) wrong_ = status.to_string();
  }
  void at_receiver(const std::vector<std::byte>& packet, bool marked) {
    // A few come once more, long after.
    if (++arrived_ % 500 == 0)
      events_.at(events_.now() + milliseconds(30), [this, packet] { at_receiver(packet, false); });
    std::vector<std::byte> own = packet;
    const std::uint32_t number = read_head(own)->association;
    Flow& flow = senders_[number / 3]->there[number % 3];
    take(flow, own, marked);
    mark(flow);
    pump_receiver();
  }

  static Bytestring copy(std::span<const std::byte> packet) {
    return std::make_shared<std::vector<std::byte>>(packet.begin(), packet.end());
  }
  // Acknowledgements and answers of all associations in turn, as the link has room.
  void pump_receiver() {
    credits_.give(events_.now());
    while (!dirty_.empty() && receiver_free_at_ <= events_.now()) {
      Flow& flow = *dirty_.front();
      std::array<std::byte, kIncastPacket> packet;
      std::size_t bytes = flow.association.make_ack(events_.now(), packet);
      if (bytes == 0) bytes = flow.association.make(events_.now(), packet);
      dirty_.pop_front();
      flow.dirty = false;
      set_timer(flow);
      if (bytes == 0) continue;
      mark(flow);
      receiver_free_at_ = events_.now() + incast_wire(options_, bytes);
      events_.at(receiver_free_at_, [this] { pump_receiver(); });
      events_.at(receiver_free_at_ + options_.delay * 2,
                 [this, &sender = flow.sender, slot = flow.slot, copy = copy(std::span(packet).first(bytes))] {
                   take(sender.here[slot], *copy, false);
                   pump(sender);
                 });
    }
  }
  // The next packet of a sender: the acknowledgements first, then the most urgent.
  void pump(Sender& sender) {
    if (sender.free_at > events_.now()) return;
    sender.credits.give(events_.now());
    std::array<std::byte, kIncastPacket> packet;
    std::size_t bytes = 0;
    Slot queue = kControl;
    for (Flow& flow : sender.here)
      if (bytes == 0) bytes = flow.association.make_ack(events_.now(), packet);
    for (Flow& flow : sender.here) {
      if (bytes > 0) break;
      queue = flow.slot;
      bytes = flow.association.make(events_.now(), packet);
    }
    if (bytes > 0) {
      sender.free_at = events_.now() + incast_wire(options_, bytes);
      events_.at(sender.free_at, [this, &sender] { pump(sender); });
      events_.at(sender.free_at + options_.delay, [this, queue, copy = copy(std::span(packet).first(bytes))] {
        bottleneck_.add(queue, copy->size(), copy);
      });
    }
    for (Flow& flow : sender.here) set_timer(flow);
  }
  void set_timer(Flow& flow) {
    const auto due = flow.association.deadline();
    if (!due || (flow.timer_at > events_.now() && flow.timer_at <= *due)) return;
    flow.timer_at = std::max(*due, events_.now() + microseconds(1));
    events_.at(flow.timer_at, [this, &flow] {
      if (flow.timer_at != events_.now()) return;
      if (const Status status = flow.association.on_time(events_.now()); !status.ok()) wrong_ = status.to_string();
      if (flow.receives) {
        mark(flow);
        pump_receiver();
      } else {
        pump(flow.sender);
        set_timer(flow);
      }
    });
  }

  const IncastOptions options_;
  const std::vector<IncastMessage> messages_;
  Events events_;
  Credits credits_;
  std::vector<std::byte> payload_, place_;
  Bottleneck<Bytestring> bottleneck_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::deque<Flow*> dirty_;  // of the receiver
  Time receiver_free_at_;
  std::vector<Duration> times_;
  std::uint64_t come_ = 0, arrived_ = 0, answers_ = 0;
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
