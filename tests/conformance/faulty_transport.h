// A fault-injecting wrapper around any transport: the host that owns it dies or freezes at a chosen moment, cuts a
// flow, or is slow. It does nothing that the real world cannot: no frame is duplicated, changed or overtaken inside its
// flow.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "daemon/ports/transport.h"
#include "harness.h"

namespace tensorlane::conformance {

class FaultyTransport final : public ports::Transport, private ports::FlowOwner {
 public:
  // When something happens, counted from when it is asked for.
  struct Moment {
    enum class Of { kPoll, kSent, kReceived } of = Of::kPoll;
    std::uint64_t count = 0;  // 0: at once
  };

  explicit FaultyTransport(ports::FlowOwner& owner) : owner_(owner) {}
  Status open(const TransportKind& kind, const HostOptions& options, std::uint16_t data_port);

  // The process is killed: nothing is said any more, and the kernel closes what it had. At the end of the poll in which
  // the moment comes.
  void die(Moment at) { ask(Fault::kDie, at); }
  bool dead() const { return !inner_; }
  // The process is stopped: it holds everything and does nothing, until thaw().
  void freeze(Moment at) { ask(Fault::kFreeze, at); }
  bool frozen() const { return frozen_; }
  void thaw() { frozen_ = false; }
  // The flow of the moment's frame is closed, from inside its callback.
  void cut(Moment at) { ask(Fault::kCut, at); }
  // Operations wait for up to `polls` polls before the transport gets them.
  void be_slow(std::uint64_t seed, std::uint64_t polls) {
    random_.seed(seed);
    slow_ = polls;
  }

  void add_job(const ports::JobCredentials& credentials) override;
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  Status map(JobId job, std::span<std::byte> bytes) override;
  void unmap(JobId job) override;
  void unmap(JobId job, std::span<std::byte> bytes) override;
  Bytes in_flight(ClassId cls) override;
  void flush() override;
  std::size_t poll(Time now) override;
  int wake_fd() const override { return inner_ ? inner_->wake_fd() : -1; }
  bool arm() override;
  ports::TransportCounters counters() const override;

 private:
  enum class Fault { kDie, kFreeze, kCut };
  struct Asked {
    Fault fault;
    Moment at;
  };
  struct Held {
    ports::Outgoing operation;
    std::uint64_t due = 0;  // poll
  };

  // A flow of the wrapped transport, between that and the owner.
  struct Line final : ports::Flow, ports::FrameSink {
    Line(FaultyTransport& o, const ports::FlowKey& k, ports::Flow& i) : of(o), key(k), inner(i) {}
    bool writable() const override;
    void send(const ports::Outgoing& operation) override;
    ports::FlowStats stats() const override { return of.inner_ ? inner.stats() : ports::FlowStats(); }
    Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override;
    void on_frame(const protocol::FrameHeader& header) override;
    void on_sent(std::uint64_t token) override;
    std::span<const std::span<std::byte>> granted(const protocol::FrameHeader& header) override {
      return sink->granted(header);
    }

    FaultyTransport& of;
    const ports::FlowKey key;
    ports::Flow& inner;
    ports::FrameSink* sink = nullptr;
    std::deque<Held> held;
  };
  ports::FrameSink& on_flow_up(const ports::FlowKey& key, ports::Flow& flow) override;
  void on_flow_resumed(const ports::FlowKey& key, const ports::Flow& flow) override;
  void on_flow_down(const ports::FlowKey& key, const Status& cause) override;

  void ask(Fault fault, Moment at);
  void count(Moment::Of of, const ports::FlowKey* flow);
  void strike(Fault fault, const ports::FlowKey* flow);
  void release_held();

  ports::FlowOwner& owner_;
  std::map<ports::FlowKey, std::unique_ptr<Line>> lines_;
  std::unique_ptr<ports::Transport> inner_;
  std::optional<Asked> asked_;
  bool dying_ = false, frozen_ = false, polling_ = false;
  std::uint64_t polls_ = 0, slow_ = 0;
  std::mt19937_64 random_;
};

// The kind with the wrapper around it.
TransportKind faulty(const TransportKind& kind);
// The wrapper of a host of such a kind.
FaultyTransport& faults(Host& host);

}  // namespace tensorlane::conformance
