// The RDMA transport between two hosts, to be put beside perftest (tests/rdma-vm/test_rdma_bench.py does): operations
// of one size with a window of bytes in flight, or round trips. One end of two:
//
//   rdma_bench --address A                   host 1: grants memory, checks what lands in it
//   rdma_bench --address B --peer A [...]    host 0: sends, and prints a line of JSON when host 1 has checked all
//
// Payload travels as between daemons: host 1 grants slices, one ahead of the one that fills, and host 0 writes
// operations under the grants. Grants, frame headers and credits are part of the time. As a lane does, an end polls for
// a while and then blocks; --spin says for how long. Each operation carries its number at both ends, which host 1
// compares when it has landed; what the last slices hold is compared in full.
//
// In the line: "bytes_per_second" (of payload, from the first send to the last acknowledgement) or, with --round-trips,
// "latency_us": half of each round trip.
#include <fmt/format.h>
#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "common/json/json.h"
#include "daemon/transport/rdma/rdma_transport.h"

namespace tensorlane {
namespace {

constexpr JobId kJob{1};
constexpr ClassId kData{0};
constexpr std::uint64_t kSlice = mib(4).value;
constexpr std::uint32_t kSlices = 2;  // granted at once
constexpr Duration kPatience = seconds(30);

struct Options {
  std::string address, peer;
  std::uint16_t port = 23000;
  std::uint64_t operation = kMaxOperation.value, window = mib(1).value, count = 200;
  bool round_trips = false;
  std::int64_t spin_us = 20;
};

[[noreturn]] void fail(const std::string& what, const std::string& fix) {
  fmt::print(stderr, "tensorlane: error: {}: rdma_bench: {}\n", what, fix);
  std::exit(1);
}

Time now() {
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                  .count());
}

std::byte filler(std::size_t i) {
  return static_cast<std::byte>(i * 2654435761u >> 13);
}

// Operations fill slices from the start; one that does not fit any more begins the next slice.
struct Layout {
  explicit Layout(std::uint64_t operation) : bytes(operation), per_slice(kSlice / operation) {}
  std::uint64_t bytes, per_slice;
  std::uint64_t slice(std::uint64_t n) const { return n / per_slice; }
  std::uint64_t offset(std::uint64_t n) const { return n % per_slice * bytes; }
};

// What is the same at both ends: a transport, a flow of control and one of data, and memory for the slices granted.
class End : public ports::FlowOwner, public ports::FrameSink {
 public:
  End(const Options& options, HostIndex self)
      : options_(options), layout_(options.operation), peer_(self.value == 0 ? 1 : 0), landing_(kSlices * kSlice) {
    rdma::RdmaConfig config;
    config.listen_address = options.address;
    config.address = options.address;
    config.data_port = options.port;
    config.classes = {{{kControlClass, 51, 6, 6}, kib(256)}, {{kData, 27, 3, 3}, Bytes(options.window)}};
    auto made = rdma::make_rdma_transport(config, *this);
    if (!made.ok()) fail(made.status().to_string(), "give the address of an RDMA device");
    transport_ = std::move(*made);
    transport_->add_job({kJob, Epoch(1), self, ports::PairKeys(2)});
    map(landing_);
  }

  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    if (header.payload_bytes == 0) return std::span<std::byte>();
    if (header.grant == 0 || header.grant > granted_ || header.offset + header.payload_bytes > kSlice)
      fail("a payload came to no granted place", "the transport is broken, run its tests");
    return slice(header.grant - 1).subspan(header.offset, header.payload_bytes);
  }
  void on_frame(const protocol::FrameHeader& header) override {
    switch (header.type) {
      case protocol::FrameType::kGrant:
        grants_ = header.grant;
        break;
      case protocol::FrameType::kCredit:
        checked_ = true;
        break;
      default:
        check(header);
        if (received_ % layout_.per_slice == 0) grant();
    }
  }
  void on_sent(std::uint64_t) override { ++acknowledged_; }
  std::span<const std::span<std::byte>> granted(const protocol::FrameHeader&) override { return {&granting_, 1}; }
  ports::FrameSink& on_flow_up(const ports::FlowKey& key, ports::Flow& flow) override {
    (key.cls == kData ? data_ : control_) = &flow;
    ++up_;
    return *this;
  }
  void on_flow_down(const ports::FlowKey&, const Status& cause) override {
    down_ = true;
    cause_ = cause;
  }

 protected:
  void map(std::span<std::byte> bytes) {
    const Status mapped = transport_->map(kJob, bytes);
    if (!mapped.ok()) fail(mapped.to_string(), "see there");
  }
  std::span<std::byte> slice(std::uint64_t n) { return std::span(landing_).subspan(n % kSlices * kSlice, kSlice); }
  ports::FlowKey flow(ClassId cls) const { return {kJob, HostIndex(peer_), cls}; }

  // Polls until `done`, and blocks when there has been nothing for as long as --spin says.
  template <typename Done>
  void run_until(Done done, const char* what) {
    const Time begin = now();
    Time idle = begin;
    while (!done()) {
      const Time at = now();
      if (at - begin > kPatience) fail(fmt::format("waited for {} in vain", what), "look at the other end");
      if (down_ && !cause_.ok()) fail(cause_.to_string(), "look at the other end");
      if (transport_->poll(at) > 0) {
        idle = at;
      } else if (at - idle > microseconds(options_.spin_us) && transport_->arm()) {
        pollfd wait{transport_->wake_fd(), POLLIN, 0};
        ::poll(&wait, 1, 100);
        idle = now();
      }
    }
  }
  void grant() {
    granting_ = slice(granted_);
    ++granted_;
    say(protocol::FrameType::kGrant, static_cast<std::uint32_t>(granted_));
  }
  void say(protocol::FrameType type, std::uint32_t grant) {
    protocol::FrameHeader header;
    header.type = type;
    header.grant = grant;
    if (!control_->writable()) fail("the control flow is full", "the transport is broken");
    control_->send({header, {}, 0});
  }

  // ---- operations ----
  // A place for each operation in flight, so that no number is written into one that may still be read.
  void prepare_sending() {
    slots_ = std::max<std::uint64_t>(options_.window / layout_.bytes, 1);
    source_.resize(slots_ * layout_.bytes);
    for (std::uint64_t n = 0; n < slots_; ++n) {
      for (std::uint64_t i = 0; i < layout_.bytes; ++i) source_[n * layout_.bytes + i] = filler(i);
    }
    map(source_);
  }
  bool may_send() const {
    return sent_ - acknowledged_ < slots_ && layout_.slice(sent_) < grants_ && data_->writable();
  }
  void send() {
    const auto payload = std::span(source_).subspan(sent_ % slots_ * layout_.bytes, layout_.bytes);
    std::memcpy(payload.data(), &sent_, sizeof sent_);
    std::memcpy(payload.last(sizeof sent_).data(), &sent_, sizeof sent_);
    protocol::FrameHeader header;
    header.grant = static_cast<std::uint32_t>(layout_.slice(sent_) + 1);
    header.offset = layout_.offset(sent_);
    data_->send({header, payload, ++sent_});
  }
  void check(const protocol::FrameHeader& header) {
    const auto got = slice(layout_.slice(received_)).subspan(layout_.offset(received_), layout_.bytes);
    const bool numbered = std::memcmp(got.data(), &received_, sizeof received_) == 0 &&
                          std::memcmp(got.last(sizeof received_).data(), &received_, sizeof received_) == 0;
    if (!numbered || header.payload_bytes != layout_.bytes || header.offset != layout_.offset(received_) ||
        header.grant != layout_.slice(received_) + 1)
      fail(fmt::format("operation {} did not land", received_), "the transport is broken, run its tests");
    ++received_;
  }
  void check_everything() const {
    for (std::uint64_t n = 0; n < std::min(received_, kSlices * layout_.per_slice); ++n) {
      const std::byte* at = landing_.data() + n / layout_.per_slice * kSlice + layout_.offset(n);
      for (std::uint64_t i = sizeof n; i + sizeof n < layout_.bytes; ++i) {
        if (at[i] != filler(i))
          fail("the bytes that arrived are not those that were sent", "the transport is broken, run its tests");
      }
    }
  }

  const Options& options_;
  const Layout layout_;
  const std::uint16_t peer_;
  std::vector<std::byte> landing_, source_;
  std::unique_ptr<ports::Transport> transport_;
  ports::Flow *control_ = nullptr, *data_ = nullptr;
  std::span<std::byte> granting_;           // what the grant on its way stands for
  std::uint64_t granted_ = 0, grants_ = 0;  // slices: by this end, by the other one
  std::uint64_t slots_ = 0, sent_ = 0, acknowledged_ = 0, received_ = 0;
  int up_ = 0;
  bool checked_ = false, down_ = false;
  Status cause_;
};

class Receiver final : public End {
 public:
  explicit Receiver(const Options& options) : End(options, HostIndex(1)) {}

  void run() {
    if (options_.round_trips) prepare_sending();
    run_until([&] { return up_ == 2; }, "the other end");
    for (std::uint32_t i = 0; i < kSlices; ++i) grant();
    if (options_.round_trips) {
      while (sent_ < options_.count) {
        run_until([&] { return received_ > sent_ && may_send(); }, "a ping");
        send();
      }
    }
    run_until([&] { return received_ == options_.count; }, "operations");
    check_everything();
    if (transport_->counters().payloads_copied > 0) fail("payloads were copied", "the transport is broken");
    say(protocol::FrameType::kCredit, 0);
    // The other end goes first.
    while (!down_) transport_->poll(now());
  }
};

class Sender final : public End {
 public:
  explicit Sender(const Options& options) : End(options, HostIndex(0)) {}

  nlohmann::json run() {
    prepare_sending();
    for (const ClassId cls : {kControlClass, kData}) {
      const Status status = transport_->connect(flow(cls), options_.peer, options_.port, now() + kPatience);
      if (!status.ok()) fail(status.to_string(), "correct --peer");
    }
    run_until([&] { return up_ == 2; }, "the other end");
    if (options_.round_trips) {
      for (std::uint32_t i = 0; i < kSlices; ++i) grant();
    }
    run_until([&] { return grants_ == kSlices; }, "a grant");
    nlohmann::json line = {{"operation_bytes", options_.operation}, {"operations", options_.count}};
    if (options_.round_trips) {
      line["latency_us"] = ping();
    } else {
      line["window_bytes"] = options_.window;
      line["bytes_per_second"] = stream();
    }
    run_until([&] { return checked_; }, "the other end's check");
    if (options_.round_trips) check_everything();
    for (const ClassId cls : {kControlClass, kData}) transport_->close(flow(cls));
    run_until([&] { return down_; }, "the end");
    return line;
  }

 private:
  double stream() {
    const Time begin = now();
    const auto fill = [&] {
      while (sent_ < options_.count && may_send()) send();
      return acknowledged_ == options_.count;
    };
    run_until(fill, "acknowledgements");
    return static_cast<double>(options_.count * options_.operation) / to_seconds(now() - begin);
  }
  std::vector<double> ping() {
    std::vector<double> halves;
    halves.reserve(options_.count);
    while (sent_ < options_.count) {
      run_until([&] { return may_send(); }, "a grant");
      const Time begin = now();
      send();
      run_until([&] { return received_ == sent_; }, "a pong");
      halves.push_back(to_seconds(now() - begin) * 1e6 / 2);
    }
    return halves;
  }
};

}  // namespace
}  // namespace tensorlane

int main(int argc, char** argv) {
  using namespace tensorlane;
  Options options;
  CLI::App app("One end of the RDMA transport's benchmark");
  app.add_option("--address", options.address, "this host's rdma address")->required();
  app.add_option("--peer", options.peer, "the other end's; this one sends");
  app.add_option("--port", options.port, "of the handshakes, and the two behind it");
  app.add_option("--operation", options.operation, "bytes")->check(CLI::Range(std::uint64_t{16}, kMaxOperation.value));
  app.add_option("--window", options.window, "bytes in flight at most");
  app.add_option("--count", options.count, "operations, the same at both ends")->check(CLI::Range(1, 10'000'000));
  app.add_flag("--round-trips", options.round_trips, "one operation at a time, to and fro");
  app.add_option("--spin", options.spin_us, "microseconds of polling in vain before blocking");
  CLI11_PARSE(app, argc, argv);
  if (options.peer.empty()) {
    Receiver(options).run();
  } else {
    fmt::print("{}\n", Sender(options).run().dump());
  }
}
