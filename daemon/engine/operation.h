// The engine's tables: what the plan fixes about tensors, slices, contributions and sends, and where each stands in the
// operation that runs. Built by apply_plan(), so that nothing is allocated later. Everything refers by index.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/descriptor.h"
#include "common/base/dtype.h"
#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "daemon/engine/grants.h"
#include "daemon/engine/iterations.h"
#include "daemon/engine/pattern/rails.h"
#include "daemon/engine/staging.h"

namespace tensorlane::engine {

inline constexpr std::uint32_t kNoIndex = ~0u;

// Peers are at most one operation ahead on a tensor: they cannot finish one that needs this host before this host has
// begun it. What they announce for the next one is kept beside what belongs to the current one, by the parity of the
// sequence number.
using Parity = std::uint32_t;
constexpr Parity parity_of(Sequence sequence) {
  return static_cast<Parity>(sequence.value & 1);
}

// A contiguous part of one of the tables.
struct Range {
  std::uint32_t first = 0, count = 0;
  std::uint32_t end() const { return first + count; }
};

// A peer that some slice of a tensor makes this host talk to.
struct Link {
  // plan
  HostIndex peer;
  std::uint32_t leaf_out = 0;             // slices of which I send it my own data only
  std::uint64_t leaf_out_bytes_most = 0;  // the largest of these contributions
  Range leaf_sources;      // in PlanTables::leaf_sources: contributions that kReady announces, unless in parts
  Range result_sends;      // in PlanTables::result_sends: results that it gets from me
  bool result_in = false;  // I get results from it
  // operations, by parity: what it has announced
  std::array<bool, 2> ready{};           // by kReady
  std::array<bool, 2> in_parts{};        // ... which leaves it to kRts to say of each contribution that it exists
  std::array<bool, 2> eager{};           // by sending its leaf contributions at once
  std::array<std::uint32_t, 2> grant{};  // where its results may land; 0 not known yet

  bool announced(Parity parity) const { return ready[parity] || eager[parity]; }
  // Whether all its leaf contributions that are not eager exist.
  bool leaves_exist(Parity parity) const { return ready[parity] && !in_parts[parity]; }
};

// One contribution of a peer to a slice.
struct Source {
  // plan
  HostIndex peer;
  bool leaf = false;  // announced by kReady, unless that was in parts; else by kRts
  std::uint32_t slice = 0;
  std::uint32_t link = 0;
  // operations
  std::array<bool, 2> rts{};
  std::array<std::uint8_t, 2> eager_slot{};  // slot + 1 where it lies; 0: not eager
  std::uint32_t grant = 0;                   // while granted
  std::uint32_t pages = StagingPool::kNone;  // where it lands under the grant
  Extent extent;
};

// One payload that goes to one peer, in operations of kMaxOperation (the last may have less). There may be 100,000 of
// them in a queue, so two share a cache line.
struct alignas(32) SendItem {
  enum class State : std::uint8_t {
    kIdle,       // does not exist yet
    kAnnounced,  // exists; the peer has not granted it
    kQueued,     // may be sent
    kPicked,     // handed out to the last byte
    kDone,       // and no longer read
  };
  // plan
  std::uint32_t slice = 0;
  HostIndex peer;
  bool result : 1 = false;
  // operation
  bool eager : 1 = false;
  State state = State::kIdle;
  std::uint32_t grant = 0;  // what the header says: the grant, or slot + 1
  std::uint32_t aux = 0;
  std::uint32_t picked = 0;     // operations handed out
  std::uint32_t in_flight = 0;  // of them, not yet done
  Time eligible;                // kQueued, kPicked: since when it may be sent
};
static_assert(sizeof(SendItem) == 32);

struct Slice {
  enum class Phase : std::uint8_t {
    kClosed,       // no operation
    kGathering,    // some contribution has not been announced, or mine does not exist yet
    kStaging,      // all exist; waits for staging
    kLanding,      // granted
    kReducing,     // being summed
    kContributed,  // my part is done; waits for the result
    kResult,       // the result is in the tensor
  };
  // plan
  std::uint32_t tensor = 0;
  std::uint32_t contribution = kNoIndex;  // send item
  HostIndex result_from;                  // unless owner
  bool owner = false;
  // operation
  Phase phase = Phase::kClosed;
  std::uint32_t waiting = 0;  // kGathering: contributions that may not exist; kLanding: not complete
  // plan
  std::uint64_t offset = 0, elements = 0;  // in the tensor; of an exchange, in the receiver's buffer
  std::uint64_t sent_from = 0;             // the same where a result is sent from: of an exchange, in mine
  std::uint32_t number = 0;                // what the plan, and so every frame, calls it
  Range sources;                           // in order of summation, without me
  Range results;                           // send items
  std::uint32_t self_place = 0;            // how many of the sources come before me
  // operation
  std::uint32_t units = 0, units_picked = 0, units_done = 0;  // kReducing: pieces of work
  std::uint64_t own_missing = 0;                              // elements of my contribution that do not exist yet
  Extent result;                                              // unless owner: what has landed of it, in bytes
};

struct Tensor {
  // plan
  protocol::PlanTensor plan;
  ClassId cls;  // of its flows; 0 with a single queue. Of the operation that runs, like `urgency`
  float urgency = 0;
  ClassId next_cls;  // of the next operation (set_priority)
  float next_urgency = 0;
  Dtype leaf_dtype{};     // of contributions on the wire
  Dtype partial_dtype{};  // of sums of several contributions
  double divisor = 1;
  bool sums = false;          // what reduces, barrier
  bool results = true;        // what the owners have travels to the others: not of what stays with them
  bool exchanges = false;     // each slice goes from its owner to one other host; others have no slice for it
  bool result_in = false;     // some slice's result comes from a peer
  std::uint32_t barrier = 0;  // which scratch place
  Range slices, links, sends;
  std::uint32_t results_due = 0;   // slices of which the result comes to lie here
  RailSlices rail;                 // which of the plan's slices these are
  std::uint64_t buffer_bytes = 0;  // of this host
  // operations
  bool open = false;
  bool boosted = false;
  bool in_parts = false;
  Sequence sequence;    // of the last operation begun
  Iteration iteration;  // that it belongs to
  Time since;           // it was begun
  Descriptor buffer, fp32_scratch;
  std::uint32_t result_grant = 0;
  std::uint32_t results_left = 0, sends_left = 0;
  std::uint32_t older = kNoIndex, newer = kNoIndex;  // open operations in order of submission
  // When peers first and last announced an operation, by its parity; both zero while none has.
  struct Announced {
    Time first, last;
  };
  std::array<Announced, 2> announced{};
  std::uint32_t awaited = kNoIndex;  // where it stands among those whose next operation is announced

  Parity parity() const { return parity_of(sequence); }
  Dtype dtype() const { return plan.dtype; }
};

}  // namespace tensorlane::engine
