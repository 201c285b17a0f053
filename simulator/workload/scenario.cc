#include "simulator/workload/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "daemon/engine/batching/plan_batches.h"
#include "daemon/engine/pattern/selector.h"
#include "simulator/clock/random.h"
#include "simulator/workload/neighbour.h"
#include "simulator/workload/process_sets.h"
#include "simulator/workload/values.h"

namespace tensorlane::simulator {

using protocol::Pattern;
using protocol::PlanTensor;

namespace {

constexpr std::uint64_t kMaxRunBytes =
    mib(6).value;  // of all buffers of all hosts, times iterations: keeps a run short
constexpr std::uint64_t kMaxRunSlices = 6000;
constexpr std::size_t kSilencingFaults = 6;  // kinds before kResetFlow
constexpr std::uint64_t kRecordEvery = 4;    // seeds
constexpr std::uint64_t kOfExchanges = 0x6578'6368'0000'0000;

// What sets some seeds apart.
enum class Kind : std::uint8_t {
  kUsual,
  kCrowded,  // many small tensors of few classes between few hosts with slow cores: everything queues up
  kVast,     // up to 200 hosts, and small tensors
};

Kind kind_of(std::uint64_t seed) {
  Random random = Random(seed).fork(4);
  if (random.chance(0.02)) return Kind::kVast;
  return random.chance(0.1) ? Kind::kCrowded : Kind::kUsual;
}

template <typename T, std::size_t N>
T one_of(Random& random, const T (&choices)[N]) {
  return choices[random.below(N)];
}

std::uint64_t random_elements(Random& random) {
  const std::uint64_t kind = random.below(100);
  if (kind < 30) return random.between(1, 64);
  if (kind < 65) return random.between(64, 4096);
  if (kind < 97) return random.between(4096, 32768);
  return random.between(32768, 300'000);
}

Operation random_operation(Random& random) {
  const std::uint64_t kind = random.below(100);
  if (kind < 60) return Operation::kAllreduce;
  if (kind < 66) return Operation::kReduceScatter;
  if (kind < 70) return Operation::kPush;
  if (kind < 74) return Operation::kPull;
  if (kind < 82) return Operation::kBroadcast;
  if (kind < 94) return Operation::kAllgather;
  return Operation::kBarrier;
}

ReduceOp random_reduction(Dtype dtype, Random& random) {
  const auto any = static_cast<ReduceOp>(random.below(kReduceOpCount));
  const ReduceOp op = random.chance(0.4) ? ReduceOp::kSum : any;
  return can_reduce(op, dtype) ? op : ReduceOp::kSum;
}

void make_small(PlanTensor* t, Random& random) {
  t->operation = Operation::kAllreduce;
  t->row = 1;
  t->elements = random.between(1, 256);
}

// Some of what is shared out or brought together goes from rank to rank instead, or is summed for one rank alone.
void make_exchange(PlanTensor* t, const Scenario& s) {
  const bool may = t->operation == Operation::kBroadcast || t->operation == Operation::kAllgather ||
                   t->operation == Operation::kReduceScatter;
  Random random(mix(s.seed) ^ mix(kOfExchanges + t->id.value));
  if (!may || !random.chance(0.5)) return;
  t->operation = one_of(random, {Operation::kReduce, Operation::kGather, Operation::kScatter, Operation::kAlltoall});
  t->row = 1;
  t->root_rank = Rank(static_cast<std::uint32_t>(random.below(s.engine.world_size)));
  t->root = s.plan.rank_hosts[t->root_rank.value];
  if (t->operation == Operation::kReduce) return;
  const std::uint64_t parts = (t->operation == Operation::kAlltoall ? 2 : 1) * std::uint64_t{s.engine.world_size};
  t->elements = (1 + t->elements / parts) * parts;
}

PlanTensor random_tensor(std::uint32_t id, const Scenario& s, Random& random) {
  const engine::EngineConfig& engine = s.engine;
  PlanTensor t;
  t.id = TensorId(id);
  t.name = fmt::format("t{}", id);
  t.operation = random_operation(random);
  t.dtype = static_cast<Dtype>(random.below(kDtypeCount));
  t.reduce = random_reduction(t.dtype, random);
  t.pattern = static_cast<Pattern>(random.below(static_cast<std::uint64_t>(Pattern::kTree) + 1));
  t.urgency = static_cast<float>(random.below(1000)) / 1000.0f;
  // Classes by thresholds, so that a more urgent tensor is never in a less urgent class.
  t.cls = ClassId(static_cast<std::uint8_t>((1.0f - t.urgency) * static_cast<float>(engine.classes)));
  t.cls = std::min(t.cls, ClassId(static_cast<std::uint8_t>(engine.classes - 1)));
  t.elements = random_elements(random);
  t.root = HostIndex(static_cast<std::uint16_t>(random.below(engine.hosts)));
  if (t.operation == Operation::kAllgather) t.elements = (1 + t.elements / engine.world_size) * engine.world_size;
  if (t.operation == Operation::kBarrier) t.elements = 0;
  for (std::uint32_t rank = engine.world_size; rank-- > 0;) {
    if (s.plan.rank_hosts[rank] == t.root) t.root_rank = Rank(rank);
  }
  if (t.operation == Operation::kReduceScatter) {
    t.row = random.chance(0.5) ? 1 : random.between(1, t.elements);
    t.elements = std::max<std::uint64_t>(t.elements / t.row, 1) * t.row;
  }
  if (kind_of(s.seed) == Kind::kUsual) make_exchange(&t, s);
  if (kind_of(s.seed) != Kind::kUsual) make_small(&t, random);
  t.fp32_contributions = reduces(t.operation) && dtype_size(t.dtype) == 2 && engine.world_size > engine.hosts;
  return t;
}

std::uint64_t slices(const PlanTensor& t) {
  return 1 + t.elements / std::max(t.slice_elements, 1u);
}

void random_plan(Scenario& s, Random& random) {
  const Kind kind = kind_of(s.seed);
  std::uint64_t count = random.between(1, random.chance(0.3) ? 40 : 12);
  if (kind == Kind::kCrowded) count += 40;
  if (kind == Kind::kVast) count = 1 + count % 3;
  const std::uint32_t slice_bytes = one_of(random, {256u, 2048u, 8192u, 32768u, 131072u, 1u << 20});
  std::uint64_t bytes = 0, pieces = 0;
  s.plan.version = 1;
  for (std::uint32_t id = 0; id < count; ++id) {
    PlanTensor t = random_tensor(id, s, random);
    const auto size = static_cast<std::uint32_t>(dtype_size(t.dtype));
    t.slice_elements = std::max(16u, static_cast<std::uint32_t>(slice_bytes / size / random.between(1, 3) / 16 * 16));
    bytes += t.elements * size * s.hosts();
    pieces += slices(t) * s.hosts();
    if (id > 0 && (bytes > kMaxRunBytes || pieces > kMaxRunSlices)) break;
    while (t.elements / t.slice_elements > kMaxRunSlices / 8) t.slice_elements *= 2;
    s.plan.tensors.push_back(std::move(t));
  }
  const std::uint64_t most =
      std::min(kMaxRunBytes / std::max<std::uint64_t>(bytes, 1), kMaxRunSlices / std::max<std::uint64_t>(pieces, 1));
  s.iterations = std::clamp<std::uint64_t>(random.between(1, 5), 1, std::max<std::uint64_t>(most, 1));
}

void random_engine(Scenario& s, Random& random) {
  engine::EngineConfig& e = s.engine;
  e.job = JobId(mix(s.seed));
  e.epoch = Epoch(static_cast<std::uint32_t>(random.between(1, 100)));
  e.hosts = static_cast<std::uint16_t>(random.chance(0.2) ? random.between(1, 8) : random.between(2, 5));
  const Kind kind = kind_of(s.seed);
  Random size = Random(s.seed).fork(5);
  if (kind == Kind::kCrowded) e.hosts = static_cast<std::uint16_t>(size.between(2, 3));
  if (kind == Kind::kVast) e.hosts = static_cast<std::uint16_t>(size.between(65, 200));
  for (std::uint16_t h = 0; h < e.hosts; ++h) {
    const std::uint64_t local = kind == Kind::kVast || random.chance(0.7) ? 1 : random.between(1, 3);
    for (std::uint64_t i = 0; i < local; ++i) s.plan.rank_hosts.push_back(HostIndex(h));
  }
  e.world_size = static_cast<std::uint32_t>(s.plan.rank_hosts.size());
  e.classes = static_cast<std::uint8_t>(random.between(1, 7));
  e.eager_limit = Bytes(one_of(random, {0u, 256u, 4096u, 32768u}));
  e.eager_credits = one_of(random, {1u, 2u, 3u, 16u});
  e.eager_slots = one_of(random, {256u, 256u, 8u, 3u});
  e.single_queue = random.chance(0.05);
  e.reclassifies = !e.single_queue && random.chance(0.3);
  e.rails = s.plan.rails = static_cast<std::uint8_t>(random.chance(0.5) ? 1 : random.between(2, 4));
  if (kind == Kind::kUsual) return;
  e.rails = s.plan.rails = 1;
  e.classes = static_cast<std::uint8_t>(kind == Kind::kVast ? 1 : size.between(1, 2));
  e.single_queue = false;
  e.eager_limit = Bytes(one_of(size, {256u, 4096u}));
  e.eager_credits = kind == Kind::kVast ? 3 : 16;
  if (kind == Kind::kCrowded) return;
  s.heartbeat = s.heartbeat * 10;
  s.detection = s.detection * 10;
}

// `pattern: auto`: a plan has what the selector chooses for each of its tensors, whatever its leader's model of the
// network is like. A push and its pull are cut in one way, as a leader does, by no choice.
void select_patterns(Scenario& s, Random random) {
  if (!random.chance(0.3)) return;
  engine::PatternCosts costs;
  costs.network = engine::NetworkModel::of(random.between(microseconds(1), microseconds(100)),
                                           BitsPerSecond(one_of(random, {500'000'000ull, 10'000'000'000ull})));
  costs.message = random.between(Duration(0), microseconds(20));
  costs.incast = one_of(random, {0.0, 0.5, 2.0});
  costs.eager_limit = s.engine.eager_limit;
  costs.classes = s.engine.classes;
  for (PlanTensor& t : s.plan.tensors) {
    if (!is_keyed(t.operation)) t.pattern = engine::compare_patterns(costs, t, s.hosts()).front().pattern;
  }
}

// Staging that is only just enough in every second seed, and else a little more: then grants must wait for each other's
// memory.
void random_staging(Scenario& s, Random& random) {
  std::array<std::uint64_t, kMaxDataClasses> pages{};
  for (const PlanTensor& t : s.plan.tensors) {
    const std::uint64_t sources = most_sources(t.pattern, s.hosts());
    const std::uint64_t slice =
        std::min<std::uint64_t>(t.slice_elements, t.elements) * std::max<std::uint64_t>(dtype_size(t.dtype), 4);
    std::uint64_t& most = pages[s.engine.single_queue ? 0 : t.cls.value];
    most =
        std::max(most, sources * std::max<std::uint64_t>(1, (slice + kMaxOperation.value - 1) / kMaxOperation.value));
  }
  if (s.engine.reclassifies) std::fill_n(pages.begin(), s.engine.classes, *std::ranges::max_element(pages));
  const std::uint64_t needed = std::accumulate(pages.begin(), pages.end(), std::uint64_t{0});
  const std::uint64_t more = random.below(2 + 2 * needed);
  s.engine.staging = Bytes((needed + (more <= needed ? more : 0)) * kMaxOperation.value);
}

// Rails differ in speed, delay and loss; the tags are honoured on all of them or on none.
void random_network(Scenario& s, Random& random) {
  const bool fifo = random.chance(0.3);
  s.networks.clear();
  for (std::uint8_t r = 0; r < s.rails(); ++r) {
    NetworkConfig n;
    const std::uint64_t rate = one_of(random, {1'000'000'000ull, 4'000'000'000ull, 10'000'000'000ull});
    const Bytes buffer = random.chance(0.2) ? kib(96) : mib(1);
    for (std::uint16_t h = 0; h < s.hosts(); ++h) {
      HostPorts ports;
      ports.uplink.rate = ports.downlink.rate = BitsPerSecond(rate);
      ports.uplink.delay = ports.downlink.delay = random.between(microseconds(1), microseconds(50));
      ports.downlink.policy = fifo ? Policy::kFifo : Policy::kStrict;
      ports.downlink.buffer = buffer;
      n.hosts.push_back(ports);
    }
    n.packet = one_of(random, {kib(4), kib(16), kib(64)});
    n.loss = random.chance(0.4) ? one_of(random, {0.001, 0.01, 0.05}) : 0;
    n.jitter = random.chance(0.4) ? random.between(microseconds(5), milliseconds(1)) : Duration(0);
    s.networks.push_back(std::move(n));
  }
  const Bytes window = one_of(random, {kib(256), kib(512), mib(2)});
  s.windows.fill(window);
  s.windows[0] = mib(1);
}

void random_lane(Scenario& s, Random& random) {
  s.lane.poll_delay = random.between(microseconds(1), microseconds(50));
  s.lane.action_ring = one_of(random, {1ul, 2ul, 64ul});
  s.lane.block_time = random.between(microseconds(1), microseconds(20));
  s.lane.observes = random.chance(0.6);
  // An order is learned in one iteration, and used in the next.
  if (s.engine.reclassifies && s.lane.observes) s.iterations = std::max<std::uint64_t>(s.iterations, 3);
  s.lane.done_when_acknowledged = random.chance(0.5);
  s.lane.flow_room = one_of(random, {1ul, 4ul, 32ul});
  s.client.think = random.between(microseconds(1), microseconds(500));
  s.client.ahead = random.chance(0.7);
  s.client.raise = one_of(random, {0.0, 0.1, 0.5});
  // Arithmetic beside the lane: it ends later, and in another order.
  Random beside = Random(s.seed).fork(4);
  if (beside.chance(0.4)) s.lane.workers = beside.between(1, 3);
  // Several lanes: a job's rails are on others than the job, or on several.
  Random parts = Random(s.seed).fork(8);
  if (parts.chance(0.5)) s.lane.lanes = parts.between(2, 3);
  s.lane.first_rail = parts.below(s.lane.lanes);
  // Slow cores: work queues up, and waits overtake in it.
  Random slow = Random(s.seed).fork(3);
  if (kind_of(s.seed) != Kind::kCrowded && !slow.chance(0.2)) return;
  s.lane.block_time = slow.between(microseconds(50), milliseconds(2));
  if (slow.chance(0.7)) s.client.raise = 0.6;
}

// What a host's policy lets a job send in its urgent classes: often far less than it has.
void random_limits(Scenario& s, Random& random) {
  Random more = Random(s.seed).fork(9);
  if (s.engine.single_queue || (!random.chance(0.4) && !more.chance(0.25))) return;
  for (std::size_t c = 0; c + 1 < s.engine.classes; ++c) {
    if (random.chance(0.3)) continue;
    s.engine.limits[c].rate = BitsPerSecond(one_of(random, {1'000'000ull, 100'000'000ull, 999'999'999ull}));
    s.engine.limits[c].burst = Bytes(one_of(random, {1u, 1000u, 65'536u, 1u << 20}));
  }
}

// A cable or a switch of one rail fails, or something that all rails have in common.
std::optional<RailIndex> random_rail(const Scenario& s, Random& random) {
  if (s.rails() == 1 || random.chance(0.4)) return std::nullopt;
  return RailIndex(static_cast<std::uint8_t>(random.below(s.rails())));
}

void add_partition(Scenario& s, HostIndex host, HostIndex peer, Time at, Time until, Random& random) {
  const bool forth = random.chance(0.7), back = !forth || random.chance(0.5);
  const std::optional<RailIndex> rail = random_rail(s, random);
  if (forth) s.faults.push_back({FaultKind::kPartition, host, peer, at, until, 1, rail});
  if (back) s.faults.push_back({FaultKind::kPartition, peer, host, at, until, 1, rail});
}

void random_fault(Scenario& s, bool heals, Random& random) {
  const auto any_host = [&] { return HostIndex(static_cast<std::uint16_t>(random.below(s.hosts()))); };
  // Most faults fall into the first milliseconds, where the work is.
  const Time at(static_cast<std::int64_t>(random.below(random.chance(0.7) ? 5'000'000 : 50'000'000)));
  const Duration lasts = random.chance(0.85) ? random.between(microseconds(100), s.detection * 1 - s.heartbeat * 14)
                                             : random.between(s.detection * 1 - s.heartbeat * 14, s.detection * 2);
  const Time until = heals ? at + lasts : kNever;
  const HostIndex host = any_host();
  HostIndex peer = any_host();
  if (peer == host) peer = HostIndex(static_cast<std::uint16_t>((peer.value + 1u) % s.hosts()));
  switch (static_cast<FaultKind>(random.below(kSilencingFaults))) {
    case FaultKind::kPartition: {
      if (s.hosts() < 2) return;
      if (random.chance(0.6)) return add_partition(s, host, peer, at, until, random);
      for (std::uint16_t h = 0; h < s.hosts(); ++h) {
        if (h != host.value) add_partition(s, host, HostIndex(h), at, until, random);
      }
      return;
    }
    case FaultKind::kSlowPort:
      s.faults.push_back({FaultKind::kSlowPort,
                          host,
                          {},
                          at,
                          until,
                          1.0 / static_cast<double>(random.between(2, 16)),
                          random_rail(s, random)});
      return;
    case FaultKind::kFreezeDaemon:
      s.faults.push_back({FaultKind::kFreezeDaemon, host, {}, at, until});
      return;
    case FaultKind::kFreezeClient:
      s.faults.push_back({FaultKind::kFreezeClient, host, {}, at, until});
      return;
    case FaultKind::kKillDaemon:
      if (!heals) s.faults.push_back({FaultKind::kKillDaemon, host, {}, at});
      return;
    case FaultKind::kKillClient:
      if (!heals) s.faults.push_back({FaultKind::kKillClient, host, {}, at});
      return;
    case FaultKind::kResetFlow:
      return;
  }
}

// Connections that are lost: a few anywhere, or one again and again.
void random_resets(Scenario& s, Random& random) {
  if (s.hosts() < 2 || !random.chance(0.4)) return;
  const bool storm = random.chance(0.3);
  Fault fault{.kind = FaultKind::kResetFlow};
  for (std::uint64_t left = random.between(1, storm ? 24 : 6); left > 0; --left) {
    if (!storm || fault.host == fault.peer) {
      fault.host = HostIndex(static_cast<std::uint16_t>(random.below(s.hosts())));
      fault.peer =
          HostIndex(static_cast<std::uint16_t>((fault.host.value + random.between(1, s.hosts() - 1u)) % s.hosts()));
      fault.level = random.below(1 + s.engine.classes);
      fault.rail = random_rail(s, random);
    }
    const std::uint64_t within = storm ? 3'000'000 : random.chance(0.7) ? 5'000'000 : 50'000'000;
    fault.at = fault.until = Time(static_cast<std::int64_t>(random.below(within)));
    s.faults.push_back(fault);
  }
}

// Tensors that are registered while others are on their way.
void random_growth(Scenario& s, Random& random) {
  std::size_t known = random.below(s.plan.tensors.size() + 1);
  s.tensors_at_start = known;
  Time at;
  while (known < s.plan.tensors.size()) {
    at = at + random.between(microseconds(1), milliseconds(3));
    known += random.between(1, s.plan.tensors.size() - known);
    s.growths.push_back({at, random.between(microseconds(1), milliseconds(2)), known});
  }
}

// What begins when, and what that needs of a program: one order for all hosts or none, and groups.
void random_ordering(Scenario& s, Random& random) {
  if (random.chance(0.6)) s.plan.ordering = static_cast<protocol::Ordering>(random.below(protocol::kOrderingCount));
  s.plan.concurrent = static_cast<std::uint32_t>(random.between(1, 4));
  std::uint32_t group = 0;
  for (std::size_t i = 0; i < s.plan.tensors.size(); ++i) {
    const bool grows = i == s.tensors_at_start ||
                       std::ranges::any_of(s.growths, [i](const Growth& growth) { return growth.tensors == i; });
    if (grows || random.chance(0.1)) ++group;
    s.plan.tensors[i].group = group;
  }
  if (!s.growths.empty() || !random.chance(0.4)) return;
  s.client.in_step = true;
  s.client.ahead = false;
  s.client.raise = random.chance(0.5) ? 0.3 : 0;
}

// Others on the links, and what the switch and the NICs do when it is crowded: any of it, on any rail. Thresholds of a
// few packets, so that they are passed.
void random_congestion(Scenario& s, Random& random) {
  for (NetworkConfig& n : s.networks) {
    if (!random.chance(0.5)) continue;
    CongestionConfig& c = n.congestion;
    const std::uint64_t some = n.packet.value * random.between(2, 8);
    if (random.chance(0.5)) c.pauses = PauseThresholds{Bytes(2 * some), Bytes(some), ~1u};
    if (random.chance(0.5)) {
      // Any packet passes an empty switch, or its flow would never end.
      c.buffer = SharedBuffer{.size = Bytes(4 * some), .alpha = one_of(random, {0.5, 1.0, 8.0})};
      c.buffer->headroom = Bytes(one_of(random, {4 * some, some}));
    }
    if (random.chance(0.5)) c.marking = Marking{Bytes(some / 2), Bytes(2 * some), one_of(random, {0.01, 0.5})};
    if (random.chance(0.5)) {
      c.foreign_burst = one_of(random, {kib(4), kib(32), kib(128)});
      c.foreign_gap = random.between(microseconds(50), milliseconds(1));
      c.foreign_level = 1 + random.below(kLevels - 1);
    }
  }
}

// Batches need tensors that are small and of few kinds.
void make_batchable(Scenario& s, Random& random) {
  const Dtype dtypes[] = {static_cast<Dtype>(random.below(kDtypeCount)), static_cast<Dtype>(random.below(kDtypeCount))};
  const ReduceOp reduce = random_reduction(dtypes[0], random);
  for (PlanTensor& t : s.plan.tensors) {
    if (random.chance(0.25)) continue;
    t.operation = Operation::kAllreduce;
    t.dtype = one_of(random, dtypes);
    t.reduce = can_reduce(reduce, t.dtype) ? reduce : ReduceOp::kSum;
    t.row = 1;
    t.elements = random.between(1, std::clamp<std::uint64_t>(t.elements, 2, 2048));
    t.fp32_contributions = dtype_size(t.dtype) == 2 && s.engine.world_size > s.hosts();
  }
}

// What a leader's plan says when it makes batches of each registration. Clients wait for nothing before they have
// submitted all.
void random_batches(Scenario& s, Random& random) {
  const Bytes most = one_of(random, {kib(1), kib(8), kib(64)});
  const std::vector<PlanTensor> registered = std::exchange(s.plan.tensors, {});
  std::vector<std::size_t> planned(registered.size() + 1);  // by how many of `registered` there were
  for (std::size_t begin = 0, end = 0; begin < registered.size(); begin = end) {
    while (end < registered.size() && registered[end].group == registered[begin].group) ++end;
    std::vector<PlanTensor> group(registered.begin() + static_cast<std::ptrdiff_t>(begin),
                                  registered.begin() + static_cast<std::ptrdiff_t>(end));
    const std::vector<std::uint8_t> asked(group.size());
    const bool travels = s.world_of(group.front()).hosts() > 1;
    engine::append_batches(&group, asked, travels ? most : Bytes(), [&](PlanTensor& batch, std::size_t) {
      batch.pattern = static_cast<Pattern>(random.below(static_cast<std::uint64_t>(Pattern::kTree) + 1));
      while (batch.elements / batch.slice_elements > kMaxRunSlices / 32) batch.slice_elements *= 2;
    });
    const auto first = static_cast<std::uint32_t>(s.plan.tensors.size());
    for (PlanTensor& t : group) {
      t.id = TensorId(static_cast<std::uint32_t>(s.plan.tensors.size()));
      if (t.in_batch()) t.batch += first;
      s.plan.tensors.push_back(std::move(t));
    }
    planned[end] = s.plan.tensors.size();
  }
  if (s.tensors_at_start <= registered.size()) s.tensors_at_start = planned[s.tensors_at_start];
  for (Growth& growth : s.growths) growth.tensors = planned[growth.tensors];
  s.client.in_step = false;
}

// Whether there can be an occasion for the lie.
bool suits(const Scenario& s, Lie lie) {
  if (s.hosts() < 2 || kind_of(s.seed) == Kind::kVast || s.engine.single_queue) return false;
  const bool eager = lie >= Lie::kEagerShort && lie <= Lie::kEagerWrongGrant;
  const bool partial = lie == Lie::kRtsTwice || lie == Lie::kRtsOfNobody || lie == Lie::kGrantElsewhere;
  const bool third = lie == Lie::kReadyUnneeded || lie == Lie::kGrantOfOthers || lie == Lie::kResultElsewhere;
  if (eager && (s.engine.eager_limit.value == 0 || (lie == Lie::kEagerTwice && s.engine.eager_credits == 1)))
    return false;
  if ((partial || third) && s.hosts() < 3) return false;
  if (lie == Lie::kOtherRail && s.rails() == 1) return false;
  if ((lie == Lie::kEagerAboveLimit || lie == Lie::kRtsOfLeaf) && s.rails() > 1) return false;
  if (lie == Lie::kRtsOfLeafTwice && s.client.in_parts == 0) return false;
  const bool negotiates = s.plan.ordering == protocol::Ordering::kNegotiated;
  return negotiates || (lie != Lie::kWordUnknown && lie != Lie::kWordTwice);
}

}  // namespace

Scenario lying_scenario(std::uint64_t seed, Lie lie) {
  Random random = Random(seed).fork(6);
  Scenario s;
  do {
    s = random_scenario(random.next());
  } while (!suits(s, lie));
  s.liar = HostIndex(static_cast<std::uint16_t>(random.below(s.hosts())));
  s.lie = lie;
  s.engine.eager_slots = 256;  // more than all peers together may use
  s.faults.clear();
  s.growths.clear();
  s.shrink.reset();
  s.tensors_at_start = s.plan.tensors.size();
  s.messages = {};
  if (lie >= Lie::kMessageOfOthers) add_messages(s, random.next());
  s.replay = 0;
  s.record = false;
  s.lane.flow_room = 32;
  for (NetworkConfig& network : s.networks) {
    network.loss = 0;
    network.jitter = Duration(0);
    network.congestion = {};
  }
  s.neighbours.clear();
  add_neighbour(s);
  return s;
}

bool Scenario::must_complete() const {
  if (liar || refusal) return false;
  return std::ranges::all_of(faults, [this](const Fault& f) {
    if (f.kind == FaultKind::kSlowPort || f.kind == FaultKind::kResetFlow) return true;
    if (f.until == kNever) return false;
    // Faults one after the other may add up to a longer silence.
    const auto count = static_cast<std::int64_t>(faults.size());
    return (f.until - f.at) * count < detection - heartbeat * 12;
  });
}

Time Scenario::last_fault() const {
  Time last{0};
  for (const Fault& f : faults) last = std::max(last, f.until == kNever ? f.at : f.until);
  return last;
}

std::uint64_t Scenario::uses_at_first(std::size_t tensor) const {
  return shrink && shrink->range.contains(TensorId(static_cast<std::uint32_t>(tensor))) ? shrink->iterations
                                                                                        : iterations;
}

std::uint64_t Scenario::uses(std::size_t tensor) const {
  return shrink && shrink->returns ? iterations : uses_at_first(tensor);
}

// What its ranks have must be added first, or be converted, or gathered; and a batch is copied together.
bool Scenario::begins_in_parts(const PlanTensor& tensor, std::uint16_t hosts, std::size_t ranks) {
  const bool moves = tensor.operation != Operation::kBarrier && !tensor.is_batch() && !tensor.in_batch();
  return moves && hosts > 1 && ranks == 1 && !tensor.fp32_contributions;
}

std::vector<TensorWorld> Scenario::worlds() const {
  std::vector<TensorWorld> all;
  for (const PlanTensor& tensor : plan.tensors) all.push_back(world_of(tensor));
  return all;
}

protocol::Plan Scenario::plan_of(std::size_t tensors) const {
  protocol::Plan part = plan;
  part.tensors.resize(std::min(tensors, plan.tensors.size()));
  part.version = static_cast<std::uint32_t>(part.tensors.size());
  return part;
}

void random_parts(Scenario& s) {
  Random random = Random(s.seed).fork(10);
  if (!random.chance(0.4)) return;
  s.client.in_parts = one_of(random, {0.3, 1.0});
  s.client.part_takes = random.between(microseconds(1), microseconds(300));
  s.client.places_lost = one_of(random, {0.0, 0.3});
}

Scenario random_scenario(std::uint64_t seed) {
  Scenario s;
  s.seed = seed;
  Random random(seed);
  random_engine(s, random);
  random_plan(s, random);
  Random batches = Random(seed).fork(2);
  const bool batched = batches.chance(0.25) && s.hosts() > 1;  // as a leader plans
  if (batched) make_batchable(s, batches);
  select_patterns(s, Random(seed).fork(1));
  random_staging(s, random);
  random_network(s, random);
  random_lane(s, random);
  s.record = seed % kRecordEvery == 0;
  s.replay = random.chance(0.5) ? 0.05 : 0;
  s.whole_numbers = random.chance(0.2);
  const std::uint64_t kind = random.below(100);
  if (kind >= 50) {
    const bool fatal = kind >= 75;
    const std::uint64_t healing = random.below(fatal ? 2 : 4);
    for (std::uint64_t i = 0; i < healing; ++i) random_fault(s, true, random);
    if (fatal) random_fault(s, false, random);
  }
  if (random.chance(0.4)) random_growth(s, random);
  random_limits(s, random);
  random_resets(s, random);
  random_ordering(s, random);
  random_congestion(s, random);
  random_sets(s);
  if (batched) {
    random_batches(s, batches);
    random_staging(s, batches);
  }
  Random shrinks = Random(seed).fork(7);
  random_shrink(s, shrinks);
  random_parts(s);
  random_messages(s);
  add_neighbour(s);
  return s;
}

}  // namespace tensorlane::simulator
