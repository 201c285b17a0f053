// What scheduling costs: 100,000 slices queued in 8 classes, and the price of one more and of the next pick, through
// the engine's public face.
//
//   engine_bench [--slices N] [--rounds N] [--limits] [--check]
//
// One host of two gets grants for its contributions, one event each, until everything is queued, and then picks
// everything, the most urgent class first. The order of what comes out is checked before a time is printed. Prints
// median and p99 in nanoseconds. --limits: with limits on all classes but the last, too large to be used up, so that
// only their cost shows. --check: exit status 1 when a p99 is above one microsecond (use an optimised build).
// Exit status 2 for a wrong result.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/pattern/shards.h"

namespace tensorlane::engine {
namespace {

constexpr std::uint32_t kClasses = 8;
constexpr std::uint32_t kSliceElements = 16;
constexpr std::uint32_t kTensorsPerClass = 10;
constexpr HostIndex kPeer{1};

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Samples {
  std::vector<std::int64_t> ns;
  std::int64_t at(double quantile) {
    const auto i = static_cast<std::ptrdiff_t>(quantile * static_cast<double>(ns.size() - 1));
    std::nth_element(ns.begin(), ns.begin() + i, ns.end());
    return ns[static_cast<std::size_t>(i)];
  }
};

[[noreturn]] void wrong(const char* what) {
  fmt::print(stderr, "tensorlane: error: {}: engine_bench: the engine is broken, run its tests\n", what);
  std::exit(2);
}

struct Bench {
  std::uint32_t slices;
  EngineConfig config;
  Plan plan;
  Samples enqueue, pick;

  Bench(std::uint32_t total, bool limits) : slices(total) {
    for (std::uint32_t c = 0; limits && c + 1 < kClasses; ++c)
      config.limits[c] = {BitsPerSecond(1'000'000'000), kMaxBurst};
    config.hosts = 2;
    config.world_size = 2;
    config.classes = kClasses;
    config.eager_credits = 0;
    config.max_queued_slices = total * 2;
    for (std::uint32_t i = 0; i < kClasses * kTensorsPerClass; ++i) {
      PlanTensor t{.id = TensorId(i), .pattern = Pattern::kParameterServer};
      t.cls = ClassId(static_cast<std::uint8_t>(i % kClasses));
      t.urgency = static_cast<float>(i % 7) / 7;
      // Half of the slices are this host's own; the other half are what it sends.
      t.elements = 2ull * kSliceElements * (total / (kClasses * kTensorsPerClass));
      t.slice_elements = kSliceElements;
      plan.tensors.push_back(t);
    }
  }

  // The grants of the peer, one for every slice of the shards that it owns: as a peer gives them, in order within a
  // tensor, the tensors interleaved.
  std::vector<Event> grants(std::uint64_t seed) const {
    std::vector<Event> events;
    for (const PlanTensor& t : plan.tensors) {
      std::uint32_t slice = 0;
      for (const Shard& shard : shards(t, config.hosts, {})) {
        const auto end = slice + static_cast<std::uint32_t>(shard.elements / kSliceElements);
        for (; slice < end; ++slice) {
          if (shard.owner != kPeer) continue;
          Event e{.kind = Event::Kind::kFrameArrived};
          e.frame = {kPeer,
                     {.type = protocol::FrameType::kGrant,
                      .grant = slice + 1,
                      .tensor = t.id,
                      .sequence = Sequence(1),
                      .slice = slice}};
          events.push_back(e);
        }
      }
    }
    // Deal them out again, tensor by tensor at random, each tensor's in order.
    std::vector<std::size_t> deck(events.size()), next(plan.tensors.size(), events.size());
    for (std::size_t i = events.size(); i-- > 0;) {
      deck[i] = events[i].frame.header.tensor.value;
      next[deck[i]] = i;
    }
    std::ranges::shuffle(deck, std::mt19937_64(seed));
    std::vector<Event> dealt;
    for (const std::size_t tensor : deck) dealt.push_back(events[next[tensor]++]);
    return dealt;
  }

  void round(std::uint64_t seed) {
    Engine engine(config, Descriptor{0, 0, 0, Engine::staging_bytes(config).value});
    if (Status s = engine.apply_plan(plan); !s.ok()) wrong(s.to_string().c_str());
    ActionRing actions(16);
    for (const PlanTensor& t : plan.tensors) {
      Event ready{.kind = Event::Kind::kTensorReady};
      ready.tensor_ready = {t.id, Sequence(1), Descriptor{1 + t.id.value, 0, 0, t.elements * 4}, {}};
      if (engine.step(Time(0), {&ready, 1}, actions) != 1) wrong("a tensor was not taken");
    }
    const std::vector<Event> events = grants(seed);
    for (const Event& event : events) {
      const std::int64_t begin = nanoseconds_now();
      const std::size_t taken = engine.step(Time(0), {&event, 1}, actions);
      enqueue.ns.push_back(nanoseconds_now() - begin);
      if (taken != 1 || !actions.empty()) wrong("a grant was not taken");
    }
    if (engine.counters().queued_slices != events.size()) wrong("a slice is missing in the queue");
    pick_all(engine, events.size());
  }

  void pick_all(Engine& engine, std::size_t expected) {
    std::size_t picked = 0;
    for (std::uint8_t c = 0; c < kClasses; ++c) {
      std::tuple<float, std::uint32_t, std::uint32_t> before{-2, 0, 0};
      for (;;) {
        Send send;
        const std::int64_t begin = nanoseconds_now();
        const std::size_t n = engine.pick(Time(0), {kPeer, ClassId(c)}, kMaxOperation, {&send, 1});
        const std::int64_t end = nanoseconds_now();
        if (n == 0) break;
        pick.ns.push_back(end - begin);
        const PlanTensor& t = plan.tensors[send.header.tensor.value];
        const std::tuple now{-t.urgency, t.id.value, send.header.slice};
        if (t.cls != ClassId(c) || !(before < now)) wrong("slices came in the wrong order");
        before = now;
        ++picked;
      }
    }
    if (picked != expected) wrong("a slice was lost or came twice");
  }
};

int run(int argc, char** argv) {
  std::uint32_t slices = 100'000, rounds = 5;
  bool limits = false, check = false;
  CLI::App app{"What one enqueue and one pick cost with many slices queued in 8 classes"};
  app.add_option("--slices", slices, "slices queued at a time")->check(CLI::Range(25'600u, 1'000'000u));
  app.add_option("--rounds", rounds, "how often")->check(CLI::Range(1u, 1000u));
  app.add_flag("--limits", limits, "limit what each class may send");
  app.add_flag("--check", check, "fail when a p99 is above one microsecond");
  CLI11_PARSE(app, argc, argv);

  Bench bench(slices, limits);
  for (std::uint32_t r = 0; r < rounds; ++r) bench.round(r + 1);
  const std::int64_t enqueue_p99 = bench.enqueue.at(0.99), pick_p99 = bench.pick.at(0.99);
  fmt::print("{} slices in {} classes, {} rounds\n", slices, kClasses, rounds);
  fmt::print("enqueue  median {:5} ns  p99 {:5} ns\n", bench.enqueue.at(0.5), enqueue_p99);
  fmt::print("pick     median {:5} ns  p99 {:5} ns\n", bench.pick.at(0.5), pick_p99);
  return check && std::max(enqueue_p99, pick_p99) > 1000 ? 1 : 0;
}

}  // namespace
}  // namespace tensorlane::engine

int main(int argc, char** argv) {
  return tensorlane::engine::run(argc, argv);
}
