// The brain of one (job, rail) on one host. Pure: time and events come in, actions and choices come out (law 6). It
// owns no clock, socket, thread, random device or file, allocates nothing after apply_plan(), and gives the same
// outputs for the same inputs.
//
// The engines of a host's rails are given the same plan, operations and buffers, and know nothing of each other: each
// carries its own slices (pattern/rails.h), and says that an operation is complete when those are. An operation is
// complete when all of them have said so; one without a slice on a rail is complete there at once. How a tensor is cut
// and summed does not depend on the number of rails, so neither do the bits of a result.
//
// How an operation moves, for every pattern alike: the elements are cut into shards (one owner host each) and shards
// into slices. For a slice the pattern gives each host its place in two trees (pattern/route.h): contributions flow up
// to the owner and are summed on the way; the result flows down. A contribution moves in three steps: the sender says
// that its bytes exist (kReady for the whole tensor, kRts for a partial sum), the receiver grants a place in staging
// once *everything* it must sum for that slice exists (so no grant ever waits for another, law 2), the sender sends.
// Small contributions skip the first two steps on prepaid credit; towards one peer an operation does either (begin.cc).
// Results need no grant of their own: kReady, or the eager contribution, carried one. In an exchange (gather, scatter,
// all-to-all) every block is a result, which goes straight from its owner to the one host that gets it; only these two
// have slices of it (common/protocol/exchange.h).
//
// What waits holds nothing that others wait for: staging is taken only for bytes that exist and given back as soon as
// they are summed; a partial sum lies in the tensor itself, or, where its elements have 16 bits, in the tensor's
// float32 scratch (`fp32_scratch`), never in staging. 16-bit dtypes: one rank's data travels in 16 bits, sums travel as
// float32, and the owner rounds once, into the tensor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/token_bucket.h"
#include "daemon/engine/types.h"

namespace tensorlane::engine {

// Fixed for the life of a job. Local to the host except where it says so.
struct EngineConfig {
  JobId job;  // these four: decided by the leader
  Epoch epoch;
  std::uint16_t hosts = 1;
  HostIndex self;
  std::uint32_t world_size = 1;  // divisor of an average
  std::uint8_t rails = 1;        // of every host of the job, 1 to kMaxRails
  RailIndex rail;                // of this engine: it carries the slices of pattern/rails.h
  std::uint8_t classes = 2;      // data classes
  Bytes eager_limit =
      kib(32);  // contributions of at most this travel on credit; the same on all hosts, at most kMaxOperation
  std::uint32_t eager_credits = 16;  // slots that a peer gets at most, which it may use unasked; the same on all hosts,
                                     // at most 64
  std::uint32_t eager_slots = 256;   // here, for all peers together: who comes when they are lent out waits for grants
  Bytes staging = mib(64);           // for contributions under grants, on top of the eager slots
  std::size_t max_queued_slices = 1 << 17;
  // Host policy, by class, not the same on all hosts: what the job sends beyond it travels in the next class (law 11).
  // None for the last class, and none with a single queue.
  std::array<RateLimit, kMaxDataClasses> limits{};
  bool reclassifies = false;  // set_priority() may move tensors: staging and queues of every class have room for all
  bool single_queue = false;  // no priority at all: order of arrival, one class (the quickstart's "no priority" arm)
};

struct EngineCounters {
  std::uint64_t slices_sent = 0, slices_reduced = 0, grants_given = 0, stale_grants = 0, eager_sent = 0,
                eager_refused = 0;
  std::uint64_t staging_bytes = 0, staging_peak_bytes = 0;  // in use now; most ever
  std::uint64_t queued_slices = 0, operations_pending = 0;
  std::array<std::uint64_t, kMaxDataClasses> demoted_bytes{};  // of this class, sent in a lower one
};

// Whether TensorReady must bring float32 scratch for this tensor (see types.h). True for 16-bit allreduces with float32
// contributions, and for those whose sums travel or are made in several passes: in a ring of more than two hosts, and
// with more sources than one Work holds.
bool needs_fp32_scratch(const PlanTensor& tensor, std::uint16_t job_hosts);

// How long the buffer is that TensorReady brings on `host` for a tensor of the plan, barriers aside. 0 on a host that
// has no part in it.
std::uint64_t buffer_bytes(const Plan& plan, const PlanTensor& tensor, HostIndex host);

class Engine {
 public:
  // `staging` is the region that contributions land in: staging_bytes(config) long, owned by the caller, valid as long
  // as the engine. A config that breaks its stated bounds is a broken invariant.
  Engine(const EngineConfig& config, const Descriptor& staging);
  ~Engine();
  Engine(Engine&&) noexcept;

  static Bytes staging_bytes(const EngineConfig& config);

  // The plan in force from now on. Old tensors must be unchanged; new ones are appended. May allocate. Errors:
  // kInvalidArgument (what and where), kResourceExhausted (more slices than max_queued_slices; staging that cannot hold
  // the largest slice of every class at once, see fit_slice_elements() in batching/slicing.h). Nothing changes on an
  // error. Call between steps; the caller makes sure that all hosts have a plan before any host submits under it.
  Status apply_plan(const Plan& plan);
  // As apply_plan(), of a plan that the caller has only added to, in one place: its work is bounded by what is new, and
  // old tensors are not looked at. `added` lies behind the last tensor or where tensors were vacated. check_batches()
  // has approved of all that is to be added: a member may come in a part before its batch.
  Status extend_plan(const Plan& plan, protocol::TensorRange added);
  // Nothing is registered there any more: its tables are given back, and another tensor may come there. Operations
  // of what comes go on from its base, which is beyond the last one here; so no frame of before is taken for one of it.
  // Call between steps. Errors, which change nothing: kInvalidArgument; kCorrupt, when this host or a peer has begun an
  // operation.
  Status vacate(protocol::TensorRange range);

  // The hosts that this one exchanges anything with under the plan, on this rail, in the order in which the plan came
  // to need them, none ever leaving. Two hosts are each other's neighbours, or neither is. The caller opens the flows
  // to them and feeds PeerUp; nothing is sent to a host before it is one.
  std::span<const HostIndex> neighbours() const;

  // From the tensor's next operation on, it has this urgency, in [0, 1], and its slices travel in this class. This
  // host's own affair: classes and queue order shape no sums (law 1), and a frame is taken from whatever class it comes
  // in. Only with config.reclassifies, and `cls` below config.classes; with a single queue it changes nothing.
  void set_priority(TensorId tensor, float urgency, ClassId cls);

  // Takes events in order, appends actions, and returns how many events it took: fewer than given means that `out` is
  // full (backpressure): drain it and come again. An event makes at most one action, except kDrained, which fails every
  // pending operation. Work per event is bounded by the slices of one tensor. TensorReady out of sequence, and tokens
  // that were not given out, are broken invariants.
  std::size_t step(Time now, std::span<const Event> events, ActionRing& out);

  // Where the payload of a kData frame from `peer` lands: a lookup that changes nothing. A Descriptor of length zero
  // means stale: read, drop, and still feed FrameArrived (it is counted there). An error means the frame breaks the
  // protocol.
  Result<Descriptor> landing(HostIndex peer, const protocol::FrameHeader& header) const;

  // The memory behind the grant that a frame which pick() has returned for `peer` gives (protocol::given_grant), in
  // order: one piece, or pages of kMaxOperation of which the last may be shorter. For transports that let the peer
  // write there. Returns how many; 0 when the frame gives none, or they are more than out.size().
  std::size_t granted(HostIndex peer, const protocol::FrameHeader& header, std::span<Descriptor> out) const;

  // The most urgent operations for this flow, at most out.size() and at most `credit` payload bytes (an operation
  // larger than the credit left is not started). Returns how many. Order inside a class: older iteration (as
  // iterations.h counts them), results before contributions, urgency, tensor id (law 9). Where the limit of a class is
  // used up, what waits in it is demoted: it goes in the flow of the next class instead, operation by operation and
  // only while that lasts.
  std::size_t pick(Time now, Flow flow, Bytes credit, std::span<Send> out);
  // The next host, after `after` in round-robin order, for which pick() on this class would return something now; false
  // when there is none.
  bool next_flow(Time now, ClassId cls, HostIndex after, HostIndex* peer) const;
  // Whether pick() would, for this flow or for any of this class.
  bool has_sends(Time now, Flow flow) const;
  bool has_sends(Time now, ClassId cls) const;
  // When something that is demoted now may go in its own class again, or in one less far below it, if anything is.
  std::optional<Time> promotion(Time now) const;

  // The class of the block that pick_work() would give now, if there is one.
  std::optional<ClassId> next_work() const;
  // The most urgent block of arithmetic; false when there is none. The caller does it, on whatever thread, and feeds
  // WorkDone(token) when it is done: blocks may be under way at the same time, and end in any order. Until then the
  // engine neither frees nor reuses the memory of its sources and of its output. After kAbort WorkDone changes nothing.
  // Blocks that need one another's results are not given out together.
  bool pick_work(Time now, Work* out);

  // For reports: the neighbours in the pattern that have not yet announced the operation on `tensor` that runs here, or
  // have begun it in parts of which some do not exist yet, although this host needs them to.
  std::vector<HostIndex> missing(TensorId tensor) const;
  struct Pending {
    TensorId tensor;
    Sequence sequence;
    Time since;
  };
  // The oldest operation that is not complete, if any.
  std::optional<Pending> oldest() const;
  // True when peers have announced an operation on `tensor` that this host has not submitted; `since` = when the first
  // announcement came.
  bool awaited(TensorId tensor, Time* since, Sequence* sequence = nullptr) const;
  // The tensors whose next operation peers have announced, in no order; the last one may still run here. Until the next
  // call that changes anything.
  std::span<const TensorId> awaited() const;
  // Of tensors that are gone: what the tables have room for without growing.
  std::uint64_t vacant_slices() const;

  const EngineCounters& counters() const;
  // What is lent out of what comes back (law 2): slots at `peer` that this host has filled and not got back, and slots
  // of `peer` that are read here, or lent, and that it does not know of yet, by the bits of a word; how many slots
  // `peer` has here. And grants that are not retired.
  struct Lent {
    std::uint64_t slots_out = 0, slots_owed = 0;
    std::uint32_t slots = 0;
    std::uint32_t grants = 0;
  };
  Lent lent(HostIndex peer) const;
  // FNV-1a over every event taken and every action and choice returned: two runs are the same when this is (law 6).
  std::uint64_t digest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tensorlane::engine
