#include "resuming.h"

#include <fmt/format.h>

namespace tensorlane::conformance {

Traffic::Traffic(Host& from, Host& to, const ports::FlowKey& flow, const ports::FlowKey& at_receiver,
                 std::uint64_t seed)
    : from_(from), to_(to), flow_(flow), at_receiver_(at_receiver), seed_(seed) {
  from.sink->sent_hook = [this](const ports::FlowKey&, std::uint64_t token) {
    for (std::byte& byte : buffers_[token - 1]) byte = std::byte{0xee};
  };
}

std::size_t Traffic::length(std::uint64_t i) {
  constexpr std::size_t kLengths[] = {0, 1, 100, 5000, 40000, 0, 64, 20000};
  return kLengths[i % std::size(kLengths)];
}

void Traffic::feed(std::uint64_t frames) {
  while (buffers_.size() < frames && from_.writable(flow_)) {
    const std::uint64_t i = buffers_.size();
    buffers_.push_back(pattern(length(i), seed_ + i));
    from_.send(flow_, {data_header(i), buffers_.back(), i + 1});
  }
}

bool Traffic::arrived(std::uint64_t frames) const {
  return to_.sink->frames.size() >= frames && from_.sink->sent.size() >= frames;
}

void Traffic::check(std::uint64_t frames) const {
  ASSERT_EQ(to_.sink->frames.size(), frames);
  ASSERT_EQ(from_.sink->sent.size(), frames);
  for (std::uint64_t i = 0; i < frames; ++i) {
    const RecordingSink::Frame& frame = to_.sink->frames[i];
    ASSERT_EQ(frame.flow, at_receiver_);
    ASSERT_EQ(frame.header.sequence.value, i);
    ASSERT_EQ(frame.header.flags, 0);
    ASSERT_TRUE(frame.payload == pattern(length(i), seed_ + i)) << "frame " << i;
    ASSERT_EQ(from_.sink->sent[i].second, i + 1);
  }
  EXPECT_TRUE(from_.sink->downs.empty());
  EXPECT_EQ(from_.sink->ups.size(), 1u);
}

ResumingHosts::ResumingHosts(const TransportKind& kind, ClassId cls)
    : a(kind, HostIndex(0), {.resume_within = kResumeWithin}),
      b(kind, HostIndex(1), {.resume_within = kResumeWithin}),
      to_b{kJob, HostIndex(1), cls},
      to_a{kJob, HostIndex(0), cls} {
  Host ports(kind, HostIndex(9));
  port = ports.data_port;
  ports.transport.reset();
  proxy = make_proxy();
  a.add_job();
  b.add_job();
}

std::unique_ptr<FaultProxy> ResumingHosts::make_proxy() const {
  const std::uint16_t of_class = to_b.cls == kControlClass ? 0 : static_cast<std::uint16_t>(1 + to_b.cls.value);
  return std::make_unique<FaultProxy>(static_cast<std::uint16_t>(port + of_class),
                                      static_cast<std::uint16_t>(b.data_port + of_class));
}

bool ResumingHosts::run(const std::function<bool()>& done, std::chrono::milliseconds timeout) {
  return run_until(
      clock, {&a, &b},
      [&] {
        if (proxy) proxy->pump();
        return done();
      },
      timeout);
}

void ResumingHosts::bring_up() {
  ASSERT_TRUE(a->connect(to_b, "127.0.0.1", port, clock.now() + seconds(20)).ok());
  ASSERT_TRUE(run([&] { return a.sink->up(to_b) && b.sink->up(to_a); }));
}

void ResumingHosts::exchange(std::uint64_t frames, const std::function<void()>& each_turn) {
  Traffic forth(a, b, to_b, to_a, 1000), back(b, a, to_a, to_b, 5000);
  ASSERT_TRUE(run([&] {
    forth.feed(frames);
    back.feed(frames);
    if (each_turn) each_turn();
    return forth.arrived(frames) && back.arrived(frames);
  }));
  forth.check(frames);
  back.check(frames);
  // However often the connection was lost: what was queued on it does not count twice.
  EXPECT_TRUE(run([&] { return a->in_flight(to_b.cls).value == 0 && b->in_flight(to_a.cls).value == 0; }));
  a.sink->sent_hook = b.sink->sent_hook = nullptr;
}

void ResumingHosts::tear_down() {
  a->close(to_b);
  ASSERT_TRUE(run([&] { return !a.sink->up(to_b) && !b.sink->up(to_a); }));
  proxy->to_target = proxy->from_target = {};
  a.sink->forget();
  b.sink->forget();
}

void ResumingHosts::cut() {
  proxy.reset();
  proxy = make_proxy();
}

void ResumingHosts::break_at(Fault::Kind kind, bool to_target, std::uint64_t at) {
  SCOPED_TRACE(fmt::format("{} byte {}, kind {}", to_target ? "to the server," : "from the server,", at,
                           static_cast<int>(kind)));
  const std::size_t before = proxy->connections;
  (to_target ? proxy->to_target : proxy->from_target) = {kind, at};
  ASSERT_TRUE(a->connect(to_b, "127.0.0.1", port, clock.now() + seconds(20)).ok());
  exchange(24, [&] {
    if (proxy->connections > before) proxy->to_target = proxy->from_target = {};
  });
  EXPECT_GE(proxy->connections, before + 2);
  tear_down();
}

}  // namespace tensorlane::conformance
