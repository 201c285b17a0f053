// One end of a flow between two transports, for benchmarks: it polls as a lane does, and checks what has arrived.
#pragma once

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/ports/transport.h"

namespace tensorlane::bench {

using Clock = std::chrono::steady_clock;
inline constexpr ClassId kData{0};
inline constexpr JobId kJob{1};
inline constexpr Duration kSpin = microseconds(100);  // before an end blocks
inline constexpr ports::ClassTag kControlTag{kControlClass, 51, 6}, kDataTag{kData, 27, 3};
inline constexpr Bytes kControlWindow = kib(256), kDataWindow = mib(4);

[[noreturn]] inline void fail(const std::string& what) {
  fmt::print(stderr, "tensorlane: error: {}: the benchmark: run it again, alone\n", what);
  std::exit(1);
}

inline Time now() {
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}
inline double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

inline std::vector<std::byte> payload_of(std::size_t bytes) {
  std::vector<std::byte> payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  return payload;
}

inline void check(const std::vector<std::byte>& sent, std::span<const std::byte> got) {
  if (std::memcmp(sent.data(), got.data(), sent.size()) != 0)
    fail("the bytes that arrived are not those that were sent");
}

// Its thread owns the transport. Payloads land in one of several places in turn, since several may land at once.
class TransportEnd final : public ports::FlowOwner, public ports::FrameSink {
 public:
  using Make = std::function<Result<std::unique_ptr<ports::Transport>>(std::uint16_t port, ports::FlowOwner&)>;
  // On the first of the data ports from `first` on that is free; `only`: or on none.
  TransportEnd(HostIndex self, const Make& make, std::uint16_t first = 23000, bool only = false)
      : landing_(kPlaces * kMaxOperation.value) {
    Status last;
    for (std::uint16_t port = first; port < 32000 && !transport; port = static_cast<std::uint16_t>(port + 16)) {
      auto made = make(port, *this);
      if (made.ok()) transport = std::move(made).value();
      last = made.status();
      data_port = port;
      if (only || last.code() != Code::kUnavailable) break;
    }
    if (!transport) fail(last.to_string());
    transport->add_job({kJob, Epoch(1), self, ports::PairKeys(2)});
  }

  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    last_ = std::span(landing_).subspan(begun_++ % kPlaces * kMaxOperation.value, header.payload_bytes);
    return last_;
  }
  void on_frame(const protocol::FrameHeader&) override { ++frames; }
  void on_sent(std::uint64_t) override {}
  ports::FrameSink& on_flow_up(const ports::FlowKey&, ports::Flow& up) override {
    flow = &up;
    return *this;
  }
  void on_flow_down(const ports::FlowKey&, const Status& cause) override {
    if (!cause.ok() && !finished) fail(cause.to_string());
  }
  // Polls, and sleeps when there has been nothing for a while, unless `spins`.
  void step() {
    const Time begin = now();
    if (transport->poll(begin) > 0) busy_ = begin;
    if (spins || begin - busy_ < kSpin || !transport->arm()) return;
    pollfd wait{transport->wake_fd(), POLLIN, 0};
    ::poll(&wait, 1, 1);
    busy_ = now();
  }
  // What came last.
  std::span<const std::byte> landing() const { return last_; }
  ports::FlowKey to(HostIndex peer) const { return {kJob, peer, kData}; }
  // As a lane does: never more in flight than the class's window.
  bool may_send() const { return flow->writable() && transport->in_flight(kData) + kMaxOperation < kDataWindow; }

  std::unique_ptr<ports::Transport> transport;
  std::uint16_t data_port = 0;
  std::uint64_t frames = 0;
  bool spins = false;
  ports::Flow* flow = nullptr;  // once it is up
  std::atomic<bool> finished{false};

 private:
  static constexpr std::size_t kPlaces = 64;
  std::vector<std::byte> landing_;
  std::span<std::byte> last_;
  std::size_t begun_ = 0;
  Time busy_;
};

}  // namespace tensorlane::bench
