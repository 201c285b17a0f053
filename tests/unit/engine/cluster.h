// Several engines around an ideal network: nothing is lost, flows are in order, and everything else (which flow moves,
// how much is picked, when work and sends finish, how many frames one step sees) is drawn from a seed.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/protocol/plan.h"
#include "daemon/engine/engine.h"

namespace tensorlane::engine::testing {

// Memory of a host. Not touched before it is used: staging for many hosts costs only what they use of it.
struct Region {
  explicit Region(std::size_t n) : bytes(std::make_unique_for_overwrite<std::byte[]>(n)), size(n) {}
  std::span<std::byte> all() { return {bytes.get(), size}; }
  std::unique_ptr<std::byte[]> bytes;
  std::size_t size;
};

// One host: an engine, its memory, and what it is in the middle of.
struct Host {
  std::vector<Region> regions;
  std::unique_ptr<Engine> engine;
  ActionRing actions{64};
  std::vector<Event> events;                      // not yet taken
  std::vector<Work> work;                         // picked, not done
  std::vector<TensorId> to_submit;                // in this order, front first
  std::map<std::uint32_t, Sequence> running;      // tensor -> sequence
  std::map<std::uint32_t, std::uint64_t> done;    // tensor -> operations completed
  std::map<std::uint32_t, std::uint64_t> failed;  // tensor -> operations that completed as failed
  std::vector<std::string> errors;
  std::size_t neighbours = 0;  // that it has flows to
  // Of an operation that was begun in parts. Memory of parts that are missing holds rubbish.
  struct InParts {
    Sequence sequence;
    std::vector<std::byte> buffer, fp32_scratch;                          // as filled
    std::vector<std::pair<std::uint64_t, std::uint64_t>> missing;         // parts that do not exist yet: begin and end
    std::vector<std::pair<Descriptor, std::vector<std::byte>>> in_place;  // what the engine has said of the result
  };
  std::map<std::uint32_t, InParts> in_parts;  // by tensor

  std::span<std::byte> at(const Descriptor& d);
};

struct ClusterOptions {
  std::uint16_t hosts = 2;
  std::uint32_t ranks_per_host = 1;
  std::uint32_t world_size = 0;  // where hosts differ in that: the ranks of all of them
  EngineConfig config;           // hosts, self and world_size are filled in
  std::uint64_t seed = 1;
  int in_parts = 0;  // so many of 4 operations on a host begin in parts
};

class Cluster {
 public:
  Cluster(const ClusterOptions& options, const Plan& plan);

  std::uint16_t hosts() const { return static_cast<std::uint16_t>(hosts_.size()); }
  Host& host(std::size_t i) { return hosts_[i]; }
  // The tensor's buffer at a host, and its float32 scratch (empty where there is none).
  std::span<std::byte> buffer(std::size_t host, TensorId tensor);
  std::span<std::byte> fp32_scratch(std::size_t host, TensorId tensor);

  // What is in the range is unregistered, on every host.
  Status vacate(protocol::TensorRange range);
  // Other tensors come to be there, or behind the last one, with buffers of their own.
  Status place(protocol::TensorRange range, std::vector<PlanTensor> tensors);
  const Plan& plan() const { return plan_; }

  // Every host submits these tensors once, each in an order of its own, as soon as the operation before on the same
  // tensor is complete.
  void submit_all(int times = 1);
  void submit(std::size_t host, TensorId tensor) { hosts_[host].to_submit.push_back(tensor); }
  // Called before a host submits: fills its buffer. (host, tensor, sequence)
  std::function<void(std::size_t, TensorId, Sequence)> fill;
  // Called when an operation completes at a host. (host, tensor, sequence)
  std::function<void(std::size_t, TensorId, Sequence)> check;
  // Every frame that is picked, before it travels: tests may look at it or spoil it. (from, to, send)
  std::function<void(HostIndex, HostIndex, Send&)> on_send;

  // One random thing; false when there was nothing to do.
  bool tick();
  // Until nothing moves. False when it takes more than `most` ticks.
  bool run(std::size_t most = 2'000'000);
  bool all_done() const;
  std::uint64_t digest() const;
  // Parts of results of which engines have said that they are in place.
  std::size_t parts_told() const { return parts_told_; }
  std::uint64_t bytes_sent(std::size_t host) const { return bytes_sent_[host]; }
  void feed(std::size_t host, const Event& event) { hosts_[host].events.push_back(event); }
  void step(std::size_t host);

 private:
  struct Packet {
    Send send;
    HostIndex from;
  };

  void connect();
  void add_buffers(Host& host, const PlanTensor& tensor, std::size_t region);
  bool submit_next(std::size_t h);
  void begin_in_parts(std::size_t h, const TensorReady& ready);
  bool part_something(std::size_t h);
  void check_in_place(std::size_t h, const Complete& complete);
  bool pick_something(std::size_t h);
  bool deliver_something(std::size_t h);
  bool work_something(std::size_t h);
  void land(std::size_t to, const Packet& packet);
  void handle(std::size_t h, const Action& action);
  std::size_t draw(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_); }

  Plan plan_;
  const int in_parts_;
  std::vector<Host> hosts_;
  std::map<std::pair<std::uint16_t, Flow>, std::deque<Packet>> wires_;  // (from, flow)
  std::vector<std::uint64_t> bytes_sent_;
  std::size_t parts_told_ = 0;
  std::mt19937_64 random_;
  std::int64_t now_ = 0;
};

// A plan with one tensor; add more with add().
Plan plan_of(const PlanTensor& tensor);
void add(Plan* plan, PlanTensor tensor);
PlanTensor allreduce(Pattern pattern, Dtype dtype, std::uint64_t elements, std::uint32_t slice_elements);

}  // namespace tensorlane::engine::testing
