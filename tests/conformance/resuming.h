// Two hosts whose flow loses its connection, and what they send over it: for the tests of all transports that resume.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "fault_proxy.h"
#include "harness.h"

namespace tensorlane::conformance {

inline constexpr Duration kResumeWithin = seconds(5);

// What one end sends: frames of all kinds of lengths, each of which is overwritten as soon as the transport allows it.
class Traffic {
 public:
  Traffic(Host& from, Host& to, const ports::FlowKey& flow, const ports::FlowKey& at_receiver, std::uint64_t seed);
  static std::size_t length(std::uint64_t i);
  // Queues what the flow takes, up to `frames` in all.
  void feed(std::uint64_t frames);
  bool arrived(std::uint64_t frames) const;
  // Each frame once, in order, as it was; each completion once, in order.
  void check(std::uint64_t frames) const;

 private:
  Host& from_;
  Host& to_;
  const ports::FlowKey flow_, at_receiver_;
  const std::uint64_t seed_;
  std::deque<std::vector<std::byte>> buffers_;
};

// Host 0 reaches one class of host 1 through a proxy on 127.0.0.1.
class ResumingHosts {
 public:
  ResumingHosts(const TransportKind& kind, ClassId cls);
  std::unique_ptr<FaultProxy> make_proxy() const;
  bool run(const std::function<bool()>& done, std::chrono::milliseconds timeout = std::chrono::seconds(20));
  void bring_up();
  // Sends `frames` each way; `each_turn` may break what it likes.
  void exchange(std::uint64_t frames, const std::function<void()>& each_turn = {});
  void tear_down();
  // The connection that there is ends with a reset at both ends; the next one is let through.
  void cut();
  // Brings the flow up, sends, and breaks the first connection at this byte.
  void break_at(Fault::Kind kind, bool to_target, std::uint64_t at);

  TestClock clock;
  Host a, b;
  const ports::FlowKey to_b, to_a;
  std::uint16_t port = 0;
  std::unique_ptr<FaultProxy> proxy;
};

}  // namespace tensorlane::conformance
