// Everything that defines one run. A scenario is a function of its seed, or written by hand for a directed test.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "common/protocol/plan.h"
#include "daemon/engine/engine.h"
#include "simulator/network/network.h"
#include "simulator/workload/messages.h"
#include "simulator/workload/world.h"

namespace tensorlane::simulator {

// How a host's lane behaves, within what the real lane may do.
struct LaneConfig {
  Duration poll_delay = microseconds(10);  // from something to do until it is looked at, at most
  std::size_t action_ring = 64;
  Duration block_time = microseconds(5);  // of each block of arithmetic, at most
  std::size_t workers = 0;                // that do it beside the lane; 0: the lane does it
  std::size_t lanes = 1;                  // of each host
  std::size_t first_rail = 0;             // which one has rail 0; jobs live on lanes in turn, from 0 on
  bool observes = false;                  // where classes change: by the order in which ranks wait, not by thresholds
  bool done_when_acknowledged =
      false;  // SendDone when the receiver says that it has the payload, not when it was copied
  std::size_t flow_room =
      16;  // operations of one flow that the transport keeps before the receiver says that it has them
};

struct ClientConfig {
  Duration think = microseconds(200);  // at most, between submissions
  bool ahead = true;                   // a tensor's next iteration may start while other tensors are in the last one
  double raise = 0.1;                  // probability that a wait blocks on an operation
  // All clients run one program: they submit in the same order, wait at the same places before they go on, and leave
  // the same tensors out of an iteration. Else each has an order of its own, and goes on while it waits. Not with
  // `ahead`.
  bool in_step = false;
  // Operations whose contribution comes to exist in parts (common/protocol/parts.h): how many of all, how long it takes
  // from one part to the next at most, and how many of the daemon's words about results in place find no room.
  double in_parts = 0;
  Duration part_takes = microseconds(100);
  double places_lost = 0;
};

enum class FaultKind : std::uint8_t {
  kPartition,     // from host to peer, one direction
  kSlowPort,      // both ports of host run at `factor` of their rate
  kFreezeDaemon,  // SIGSTOP
  kKillDaemon,    // power loss: nobody is told
  kFreezeClient,  // of the first job, as those that follow
  kKillClient,    // the daemon notices at once
  kResetFlow,     // the connection that carries `level` between host and peer is lost; no silence
};
inline constexpr std::size_t kFaultKinds = 7;
inline constexpr std::array<const char*, kFaultKinds> kFaultNames = {
    "partition", "slow_port", "freeze_daemon", "kill_daemon", "freeze_client", "kill_client", "reset_flow"};
inline constexpr Time kNever{std::numeric_limits<std::int64_t>::max()};

struct Fault {
  FaultKind kind{};
  HostIndex host, peer;
  Time at;
  Time until = kNever;  // heals
  double factor = 1;
  std::optional<RailIndex> rail = {};  // of the ports or connection that it strikes; none: all of them
  std::size_t level = 0;
  std::size_t job = 0;  // whose connection
};

// The plan grows while operations run: every host learns of `tensors` (of Scenario::plan, from the front) at some time
// in [at, at + spread]; clients may use them once all hosts know them.
struct Growth {
  Time at;
  Duration spread;
  std::size_t tensors = 0;
};

// A registration whose tensors are used for so many iterations. Once every rank has completed them all hosts let go of
// it (Scenario::growths is empty then), and it may be registered again: the same tensors in the same places.
struct Shrink {
  protocol::TensorRange range;
  std::uint64_t iterations = 0;
  bool returns = false;
};

// What a host that lies says, beside what its engine does: simulator/host/liar.cc has the words.
enum class Lie : std::uint8_t {
  kOtherJob,
  kOtherEpoch,
  kUnknownTensor,
  kFarSequence,
  kOtherRail,
  kBigSlice,
  kPayloadOnControl,
  kTransportsOwn,
  kUnknownType,
  kReadyTwice,
  kReadyWrongGrant,
  kReadyUnneeded,
  kRtsTwice,
  kRtsOfNobody,
  kGrantTwice,
  kGrantWithoutId,
  kGrantEarly,
  kGrantElsewhere,
  kEagerShort,
  kEagerOffset,
  kEagerWithoutCredit,
  kEagerTwice,
  kEagerWrongGrant,
  kEagerAboveLimit,
  kEagerOfNobody,
  kDataOtherOperation,
  kDataOtherSlice,
  kDataOutside,
  kDataCut,
  kDataEmpty,
  kDataTwice,
  kGrantOfOthers,
  kResultEarly,
  kResultElsewhere,
  kResultInFront,
  kCreditUnspent,
  kCreditMiscounted,
  kWordAstray,
  kWordUnknown,
  kWordTwice,
  kRtsOfLeaf,
  kRtsOfLeafTwice,
  kReadyInPartsOfNothing,
  // Of messages:
  kMessageOfOthers,
  kMessageElsewhere,
  kMessageImpossible,
  kMessageWithoutId,
  kMessageGrantTwice,
  kMessageGrantWithoutId,
  kMessageRefusedAlike,
  kMessageDataTwice,
  kMessageDataOutside,
  kMessageDataUngranted,
};
inline constexpr std::size_t kOperationLies = static_cast<std::size_t>(Lie::kReadyInPartsOfNothing) + 1;  // the first
inline constexpr std::size_t kLies = static_cast<std::size_t>(Lie::kMessageDataUngranted) + 1;

// A host that has no memory, or no room in its table of tensors, for more of a job than so many pieces.
struct Refusal {
  HostIndex host;
  std::uint64_t after = 0;
};

struct Scenario {
  std::uint64_t seed = 0;
  std::uint32_t user = 1000;  // whose job it is
  Time begins;                // every host begins it at some time in [begins, begins + spread]
  Duration spread{0};
  engine::EngineConfig engine;  // `self` and `rail` are set per host and rail
  protocol::Plan plan;
  std::uint64_t iterations = 1;
  std::vector<NetworkConfig> networks = {{}};  // by rail
  std::array<Bytes, kLevels> windows{};        // by level, control first
  LaneConfig lane;
  ClientConfig client;
  MessageProgram messages;
  std::vector<Fault> faults;
  std::size_t tensors_at_start = std::numeric_limits<std::size_t>::max();  // of the plan; the rest comes with growths
  bool leaves = false;          // its ranks detach when all of them are done, and the job closes on every host
  std::vector<Growth> growths;  // in order of time and size; the last one makes the plan complete
  std::optional<Shrink> shrink;
  std::optional<Refusal> refusal;
  Duration heartbeat = milliseconds(20), detection = milliseconds(400);
  std::optional<HostIndex> liar;  // a host that says `lie` now and then
  std::optional<Lie> lie;
  double replay = 0;           // probability that a granted operation comes once more, after it has completed
  bool record = false;         // every engine keeps its log, which is replayed at the end
  bool whole_numbers = false;  // contributions are small integers, so that sums are exact in any order
  Time deadline = Time(120'000'000'000);  // of virtual time, for the whole run

  std::uint16_t hosts() const { return engine.hosts; }
  std::uint8_t rails() const { return engine.rails; }
  // A job of somebody else on the same machines, on the first `engine.hosts` of them, which must not notice what
  // happens to this one. At most one, and it has none. What is the machines' is as here; `faults` are those of them
  // that strike its hosts.
  std::vector<Scenario> neighbours = {};

  // No fault lasts long enough to be taken for a death: every operation must complete.
  bool must_complete() const;
  // When the last fault begins or heals.
  Time last_fault() const;
  // How often a client uses a tensor: before it leaves the plan, and in all.
  std::uint64_t uses_at_first(std::size_t tensor) const;
  std::uint64_t uses(std::size_t tensor) const;
  // Whether the daemon of a host that has `ranks` ranks of the tensor begins with the first part of it that exists;
  // else it waits for all of it. `hosts`: that have ranks of it.
  static bool begins_in_parts(const protocol::PlanTensor& tensor, std::uint16_t hosts, std::size_t ranks);
  TensorWorld world_of(const protocol::PlanTensor& tensor) const { return {plan, tensor}; }
  std::vector<TensorWorld> worlds() const;  // by tensor
  // The first `tensors` of the plan, as a version of their own.
  protocol::Plan plan_of(std::size_t tensors) const;
};

// In part of the seeds clients have contributions in parts.
void random_parts(Scenario& scenario);
// The scenario of a seed.
Scenario random_scenario(std::uint64_t seed);
// One with a liar, and no other faults.
Scenario lying_scenario(std::uint64_t seed, Lie lie);

}  // namespace tensorlane::simulator
