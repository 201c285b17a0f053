// The engine's parts by themselves: routes, shards, slices, urgency, classes, queues, grants, staging, credit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <ctime>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "daemon/engine/batching/slicing.h"
#include "daemon/engine/classify/thresholds.h"
#include "daemon/engine/eager.h"
#include "daemon/engine/egress/control_queue.h"
#include "daemon/engine/egress/send_queue.h"
#include "daemon/engine/grants.h"
#include "daemon/engine/pattern/route.h"
#include "daemon/engine/pattern/shards.h"
#include "daemon/engine/staging.h"
#include "daemon/engine/tables.h"
#include "daemon/engine/urgency/layer_order.h"

namespace tensorlane::engine {
namespace {

using protocol::Pattern;
using protocol::PlanTensor;

HostIndex host(std::size_t h) {
  return HostIndex(static_cast<std::uint16_t>(h));
}

// ---- routes ----

// For every pattern, group size and owner: both trees hold every host once, and the ends of every edge agree about it.
TEST(Route, BothTreesHoldEveryHostOnce) {
  for (std::size_t p = 0; p < protocol::kPatternCount; ++p) {
    const auto pattern = static_cast<Pattern>(p);
    for (std::uint16_t hosts = 1; hosts <= 17; ++hosts) {
      std::size_t most = 0;
      for (std::uint16_t o = 0; o < hosts; ++o) {
        std::size_t contributions = 0, results = 0;
        std::multiset<std::uint16_t> summed, reached{o};
        for (std::uint16_t me = 0; me < hosts; ++me) {
          const Route r = route(pattern, hosts, host(o), host(me));
          EXPECT_EQ(r.contribution_to.has_value(), me != o);
          EXPECT_EQ(r.result_from.has_value(), me != o);
          EXPECT_EQ(std::ranges::count(r.sum_order, host(me)), 1);
          EXPECT_EQ(is_leaf(pattern, hosts, host(o), host(me)), me != o && r.sum_order.size() == 1);
          most = std::max(most, r.sum_order.size() - 1);
          EXPECT_TRUE(me == o || is_leaf(pattern, hosts, host(o), host(me)) || passes_partial_sums(pattern, hosts));
          for (HostIndex from : r.sum_order) {
            if (from == host(me)) continue;
            summed.insert(from.value);
            EXPECT_EQ(route(pattern, hosts, host(o), from).contribution_to, host(me));
            ++contributions;
          }
          for (HostIndex to : r.result_to) {
            reached.insert(to.value);
            EXPECT_EQ(route(pattern, hosts, host(o), to).result_from, host(me));
            ++results;
          }
        }
        EXPECT_EQ(contributions, hosts - 1u);
        EXPECT_EQ(results, hosts - 1u);
        EXPECT_EQ(std::set(summed.begin(), summed.end()).size(), hosts - 1u);
        EXPECT_EQ(std::set(reached.begin(), reached.end()).size(), hosts);
        // No cycles: from everywhere the contributions arrive at the owner.
        for (std::uint16_t me = 0; me < hosts; ++me) {
          HostIndex at = host(me);
          for (std::uint16_t step = 0; step < hosts && at != host(o); ++step)
            at = *route(pattern, hosts, host(o), at).contribution_to;
          EXPECT_EQ(at, host(o));
        }
      }
      EXPECT_EQ(most_sources(pattern, hosts), most) << protocol::pattern_name(pattern) << " of " << hosts;
    }
  }
}

TEST(Route, ParameterServerSumsInHostOrderAndRingFromItsPredecessor) {
  EXPECT_EQ(route(Pattern::kParameterServer, 4, host(2), host(2)).sum_order,
            (std::vector{host(0), host(1), host(2), host(3)}));
  EXPECT_EQ(route(Pattern::kRing, 4, host(2), host(0)).sum_order, (std::vector{host(3), host(0)}));
  EXPECT_EQ(route(Pattern::kRing, 4, host(2), host(3)).sum_order, (std::vector{host(3)}));
}

// Thakur, Rabenseifner and Gropp, section 4: eight hosts, distances 4, 2 and 1; then the same with two that join.
TEST(Route, HalvingDoublingGivesToThePartnerAcrossTheHighestDifferingBit) {
  const Route owner = route(Pattern::kHalvingDoubling, 8, host(5), host(5));
  EXPECT_EQ(owner.sum_order, (std::vector{host(5), host(1), host(7), host(4)}));
  EXPECT_EQ(owner.result_to, (std::vector{host(4), host(7), host(1)}));
  EXPECT_EQ(route(Pattern::kHalvingDoubling, 8, host(5), host(0)).contribution_to, host(4));
  EXPECT_EQ(route(Pattern::kHalvingDoubling, 8, host(5), host(6)).contribution_to, host(4));
  EXPECT_EQ(route(Pattern::kHalvingDoubling, 8, host(5), host(6)).sum_order, (std::vector{host(6), host(2)}));
  EXPECT_EQ(route(Pattern::kHalvingDoubling, 6, host(0), host(1)).sum_order, (std::vector{host(1), host(5), host(3)}));
  EXPECT_EQ(route(Pattern::kHalvingDoubling, 6, host(5), host(5)).sum_order, (std::vector{host(5), host(1)}));
  EXPECT_EQ(route(Pattern::kHalvingDoubling, 6, host(5), host(1)).contribution_to, host(5));
}

TEST(Route, TreeDoublesTheHostsThatPassOn) {
  EXPECT_EQ(route(Pattern::kTree, 6, host(1), host(1)).sum_order, (std::vector{host(1), host(2), host(3), host(5)}));
  EXPECT_EQ(route(Pattern::kTree, 6, host(1), host(1)).result_to, (std::vector{host(2), host(3), host(5)}));
  EXPECT_EQ(route(Pattern::kTree, 6, host(1), host(2)).result_to, (std::vector{host(4), host(0)}));
  EXPECT_EQ(route(Pattern::kTree, 6, host(1), host(4)).contribution_to, host(2));
  EXPECT_EQ(route(Pattern::kTree, 6, host(1), host(0)).contribution_to, host(2));
}

TEST(PatternNames, ReadBackAndShuffleIsAServerOnEveryHost) {
  for (std::size_t p = 0; p < protocol::kPatternCount; ++p)
    EXPECT_EQ(protocol::pattern_from_name(protocol::pattern_name(static_cast<Pattern>(p))), static_cast<Pattern>(p));
  EXPECT_EQ(protocol::pattern_from_name("shuffle"), Pattern::kParameterServer);
  EXPECT_EQ(protocol::pattern_from_name("star"), std::nullopt);
}

// ---- shards ----

PlanTensor tensor(std::uint32_t id, std::uint64_t elements, Dtype dtype = Dtype::kFloat32) {
  return {.id = TensorId(id), .dtype = dtype, .elements = elements, .slice_elements = 1024};
}

TEST(Shards, CoverTheTensorAndDifferByAtMostOneUnit) {
  for (std::uint16_t hosts = 1; hosts <= 17; ++hosts) {
    for (std::uint64_t elements : {8193u, 8200u, 8207u, 8208u, 100'000u, 1'048'576u, 1'048'577u}) {
      const auto cut = shards(tensor(3, elements), hosts, {});
      std::uint64_t at = 0, least = ~0ull, most = 0;
      std::set<std::uint16_t> owners;
      for (const Shard& s : cut) {
        EXPECT_EQ(s.offset, at);
        EXPECT_EQ(s.offset % kShardAlignment, 0u);
        at += s.elements;
        least = std::min(least, s.elements);
        most = std::max(most, s.elements);
        owners.insert(s.owner.value);
      }
      EXPECT_EQ(at, elements);
      EXPECT_EQ(owners.size(), cut.size());
      EXPECT_EQ(cut.size(), std::min<std::uint64_t>(hosts, (elements * 4 + 4095) / 4096));
      EXPECT_LE(most - least, kShardAlignment);
    }
  }
}

// Many hosts and shards for some of them only: the trees of a pattern still load all hosts alike.
TEST(Shards, FewerThanHostsLoadThemAlike) {
  for (Pattern pattern : {Pattern::kHalvingDoubling, Pattern::kTree, Pattern::kRing}) {
    for (std::uint16_t hosts : {64, 256, 1000, 1024}) {
      PlanTensor t = tensor(3, hosts / 2 * kWholeTensor.value / 4);
      t.pattern = pattern;
      const auto cut = shards(t, hosts, {});
      if (pattern != Pattern::kRing) {
        ASSERT_EQ(cut.size(), hosts / 2);
      }
      std::vector<std::uint64_t> received(hosts, 0);
      for (const Shard& s : cut) {
        for (std::uint16_t me = 0; me < hosts; ++me)
          received[me] += s.elements * (route(pattern, hosts, s.owner, host(me)).sum_order.size() - 1);
      }
      const std::uint64_t most = *std::ranges::max_element(received);
      // Halving-doubling of no power of two gives the hosts that others join through one contribution more of each.
      const double even = std::has_single_bit(hosts) || pattern != Pattern::kHalvingDoubling ? 1.35 : 2.2;
      EXPECT_LE(static_cast<double>(most), even * static_cast<double>(t.elements))
          << hosts << " hosts, " << protocol::pattern_name(pattern);
    }
  }
}

// Horovod, section 3: every node of a ring sends, and receives, 2 (N - 1) / N * D bytes.
TEST(Shards, ARingMovesTheSameBytesAtEveryHost) {
  for (std::uint16_t hosts = 1; hosts <= 17; ++hosts) {
    // Divides evenly among the hosts, in units of shards.
    const std::uint64_t elements = std::uint64_t{hosts} * 1024 * kShardAlignment;
    const PlanTensor whole = tensor(3, elements);
    std::vector<std::uint64_t> sent(hosts, 0), received(hosts, 0);
    for (const Shard& s : shards(whole, hosts, {})) {
      const std::uint64_t bytes = s.elements * dtype_size(whole.dtype);
      for (std::uint16_t me = 0; me < hosts; ++me) {
        const Route r = route(Pattern::kRing, hosts, s.owner, host(me));
        sent[me] += bytes * ((r.contribution_to ? 1 : 0) + r.result_to.size());
        received[me] += bytes * ((r.result_from ? 1 : 0) + (r.sum_order.size() - 1));
      }
    }
    const double expected = 2.0 * (hosts - 1) / hosts * static_cast<double>(elements * dtype_size(whole.dtype));
    for (std::uint16_t me = 0; me < hosts; ++me) {
      EXPECT_DOUBLE_EQ(static_cast<double>(sent[me]), expected) << hosts << " hosts";
      EXPECT_DOUBLE_EQ(static_cast<double>(received[me]), expected) << hosts << " hosts";
    }
  }
}

TEST(Shards, SmallTensorsStayWholeAndSpreadOverTheHosts) {
  for (std::uint16_t hosts : {2, 3, 4, 8}) {
    std::map<std::uint16_t, int> all, odd;
    for (std::uint32_t id = 0; id < 32u * hosts; ++id) {
      const auto cut = shards(tensor(id, kWholeTensor.value / 4), hosts, {});
      ASSERT_EQ(cut.size(), 1u);
      ++all[cut[0].owner.value];
      if (id % 2 == 1) ++odd[cut[0].owner.value];  // every second tensor: the biases of a network
    }
    for (std::uint16_t h = 0; h < hosts; ++h) {
      EXPECT_EQ(all[h], 32);
      EXPECT_NEAR(odd[h], 16, 1);
    }
  }
}

TEST(Shards, Fp32ContributionsCountAsTheyTravel) {
  PlanTensor t = tensor(0, kWholeTensor.value / 2, Dtype::kBfloat16);
  EXPECT_EQ(shards(t, 4, {}).size(), 1u);
  t.fp32_contributions = true;
  EXPECT_EQ(shards(t, 4, {}).size(), 4u);
}

TEST(Shards, BroadcastBelongsToTheRootAndAllgatherToTheHostsOfTheRanks) {
  PlanTensor t = tensor(5, 1000);
  t.operation = Operation::kBroadcast;
  t.root = host(2);
  EXPECT_EQ(shards(t, 4, {}), (std::vector<Shard>{{0, 1000, host(2)}}));
  t.operation = Operation::kAllgather;
  const std::vector<HostIndex> ranks{host(0), host(0), host(1), host(0)};
  EXPECT_EQ(shards(t, 2, ranks), (std::vector<Shard>{{0, 500, host(0)}, {500, 250, host(1)}, {750, 250, host(0)}}));
}

// ---- slices, urgency, classes ----

TEST(Slicing, DefaultIsBoundedByElementsBytesAndTheLink) {
  EXPECT_EQ(default_slice_elements(Dtype::kFloat32, std::nullopt), 1'048'576u);  // Geryon's 1,024K = 4 MiB
  EXPECT_EQ(default_slice_elements(Dtype::kBfloat16, std::nullopt), 1'048'576u);
  EXPECT_EQ(default_slice_elements(Dtype::kFloat64, std::nullopt), 524'288u);  // 4 MiB
  EXPECT_EQ(default_slice_elements(Dtype::kFloat32, BitsPerSecond(100'000'000'000)), 1'048'576u);
  EXPECT_EQ(default_slice_elements(Dtype::kFloat32, BitsPerSecond(500'000'000)), 31'248u);  // 2 ms = 125,000 bytes
  EXPECT_EQ(default_slice_elements(Dtype::kFloat32, BitsPerSecond(1'000'000)), 4096u);      // 16 KiB
}

TEST(Slicing, FitHalvesUntilEveryClassHasRoom) {
  PlanTensor t = tensor(0, 1 << 24);
  t.pattern = Pattern::kParameterServer;
  EXPECT_EQ(fit_slice_elements(1'048'576, t, 4, 2, mib(64)), 1'048'576u);  // 3 x 4 MiB x 2
  EXPECT_EQ(fit_slice_elements(1'048'576, t, 4, 7, mib(64)), 524'288u);
  EXPECT_EQ(fit_slice_elements(1'048'576, t, 2, 2, mib(64)), 1'048'576u);
  t.pattern = Pattern::kRing;
  EXPECT_EQ(fit_slice_elements(1'048'576, t, 64, 7, mib(64)), 1'048'576u);
  EXPECT_EQ(fit_slice_elements(1'048'576, t, 64, 7, mib(1)), 4096u);  // cannot fit: as small as slices get
}

TEST(LayerOrder, IsOneAtTheFirstLayerAndFallsEvenly) {
  EXPECT_EQ(layer_order(0, 10), 1.0F);
  EXPECT_EQ(layer_order(5, 10), 0.5F);
  EXPECT_FLOAT_EQ(layer_order(9, 10), 0.1F);
  EXPECT_EQ(layer_order(99, 10), layer_order(9, 10));
  EXPECT_EQ(layer_order(3, 0), 1.0F);
}

TEST(Thresholds, ClassesTakeWhatReachesThem) {
  const double thresholds[] = {0.8, 0.5};
  EXPECT_EQ(class_by_thresholds(thresholds, 1.0), ClassId(0));
  EXPECT_EQ(class_by_thresholds(thresholds, 0.8), ClassId(0));
  EXPECT_EQ(class_by_thresholds(thresholds, 0.79), ClassId(1));
  EXPECT_EQ(class_by_thresholds(thresholds, 0.5), ClassId(1));
  EXPECT_EQ(class_by_thresholds(thresholds, 0.0), ClassId(2));
  EXPECT_EQ(class_by_thresholds({}, 0.3), ClassId(0));
}

// ---- queues ----

TEST(SendKey, OrdersByBoostIterationKindUrgency) {
  const auto key = send_key;
  EXPECT_LT(key(true, Iteration(9), false, 0.0F), key(false, Iteration(1), true, 1.0F));
  EXPECT_LT(key(false, Iteration(1), false, 0.0F), key(false, Iteration(2), true, 1.0F));
  EXPECT_LT(key(false, Iteration(2), true, 0.0F), key(false, Iteration(2), false, 1.0F));
  EXPECT_LT(key(false, Iteration(2), true, 0.9F), key(false, Iteration(2), true, 0.8F));
  EXPECT_LT(key(false, Iteration(kMaxSequence - 1), false, 0.0F), key(false, Iteration(kMaxSequence), true, 1.0F));
}

TEST(SendQueue, GivesBackInOrderWhateverGoesInAndWhoeverIsBoosted) {
  std::mt19937 random(3);
  constexpr std::uint32_t kItems = 5000;
  const Flow flow{host(1), ClassId(1)};
  SendQueue queue(2, 3);
  queue.grow(kItems);
  queue.allow(flow, kItems);
  std::vector<std::uint32_t> items(kItems);
  std::vector<std::uint64_t> keys(kItems);
  for (std::uint32_t i = 0; i < kItems; ++i) {
    items[i] = i;
    keys[i] = 100 + random() % 50;
  }
  std::ranges::shuffle(items, random);
  for (std::uint32_t i : items) queue.push(flow, keys[i], i);
  for (std::uint32_t i = 0; i < kItems; i += 7) queue.move_up(flow, keys[i] -= random() % 100, i);
  EXPECT_EQ(queue.size(), kItems);
  std::ranges::sort(items, [&](auto a, auto b) { return std::pair(keys[a], a) < std::pair(keys[b], b); });
  for (std::uint32_t i : items) {
    ASSERT_EQ(queue.top(flow), i);
    queue.pop(flow);
  }
  EXPECT_TRUE(queue.empty(flow));
  EXPECT_TRUE(queue.empty(ClassId(1)));
}

TEST(SendQueue, GoesRoundThePeersThatHaveSomething) {
  SendQueue queue(1, 130);
  queue.grow(130);
  for (std::size_t h : {0, 63, 64, 129}) {
    queue.allow({host(h), ClassId(0)}, 1);
    queue.push({host(h), ClassId(0)}, 1, static_cast<std::uint32_t>(h));
  }
  HostIndex at = host(0);
  std::vector<std::uint16_t> seen;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(queue.next_peer(ClassId(0), at, &at));
    seen.push_back(at.value);
  }
  EXPECT_EQ(seen, (std::vector<std::uint16_t>{63, 64, 129, 0, 63}));
  for (std::size_t h : {0, 64, 129}) queue.pop({host(h), ClassId(0)});
  ASSERT_TRUE(queue.next_peer(ClassId(0), host(63), &at));
  EXPECT_EQ(at, host(63));  // itself comes last, but it comes
  queue.pop({host(63), ClassId(0)});
  EXPECT_FALSE(queue.next_peer(ClassId(0), host(63), &at));
}

TEST(ControlQueue, UrgentClassesFirstThenArrival) {
  ControlQueue queue(2, 2);
  queue.grow(3);
  const auto message = [](std::uint32_t slice) {
    return ControlMessage{protocol::FrameType::kRts, TensorId(0), Sequence(1), slice, 0, Time(slice)};
  };
  queue.push(host(1), ClassId(1), message(1));
  queue.push(host(1), ClassId(0), message(2));
  queue.push(host(1), ClassId(0), message(3));
  std::vector<std::uint32_t> order;
  ControlMessage got;
  while (queue.pop(host(1), &got)) order.push_back(got.slice);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{2, 3, 1}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(got.since, Time(1));
}

TEST(ControlQueue, CreditsAreDueSinceTheFirstOfThem) {
  ControlQueue queue(2, 2);
  queue.due(ControlQueue::Due::kCredits, host(1), Time(5));
  queue.due(ControlQueue::Due::kCredits, host(1), Time(9));
  EXPECT_FALSE(queue.empty(host(1)));
  Time since;
  EXPECT_TRUE(queue.is_due(ControlQueue::Due::kCredits, host(1), &since));
  queue.settle(ControlQueue::Due::kCredits, host(1));
  EXPECT_EQ(since, Time(5));
  EXPECT_FALSE(queue.is_due(ControlQueue::Due::kCredits, host(1), &since));
  EXPECT_TRUE(queue.empty(host(1)));
}

// ---- grants ----

TEST(Grants, IdsAreNeverZeroAndStaleOnesAreNotFound) {
  GrantTable table;
  table.grow(2);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 5000; ++i) {
    const std::uint32_t id = table.give({.tensor = TensorId(static_cast<std::uint32_t>(i))});
    EXPECT_NE(id, 0u);
    ASSERT_NE(table.find(id), nullptr);
    EXPECT_EQ(table.find(id)->tensor.value, static_cast<std::uint32_t>(i));
    EXPECT_TRUE(seen.insert(id).second) << "id used twice within 5000 grants";
    table.retire(id);
    EXPECT_EQ(table.find(id), nullptr);
  }
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(~0u), nullptr);
  EXPECT_EQ(table.in_use(), 0u);
}

TEST(Grants, GrowingKeepsWhatIsGiven) {
  GrantTable table;
  table.grow(1);
  const std::uint32_t id = table.give({.tensor = TensorId(7)});
  table.grow(3);
  const std::uint32_t other = table.give({.tensor = TensorId(8)});
  EXPECT_EQ(table.find(id)->tensor, TensorId(7));
  EXPECT_EQ(table.find(other)->tensor, TensorId(8));
}

TEST(Extent, TakesWholeOperationsOnceInAnyOrder) {
  constexpr std::uint64_t kWhole = kMaxOperation.value;
  Extent e{.length = 2 * kWhole + 100};
  EXPECT_STREQ(e.take(2 * kWhole, 101), "payload outside its grant");
  EXPECT_STREQ(e.take(~0ull, 2), "payload outside its grant");
  EXPECT_STREQ(e.take(0, 0), "payload of no bytes");
  EXPECT_STREQ(e.take(0, kWhole - 1), "payload that is not cut at 256 KiB");
  EXPECT_STREQ(e.take(kWhole / 2, kWhole), "payload that is not cut at 256 KiB");
  EXPECT_STREQ(e.take(2 * kWhole, 99), "payload that is not cut at 256 KiB");
  EXPECT_EQ(e.check(2 * kWhole, 100), nullptr);
  EXPECT_EQ(e.take(2 * kWhole, 100), nullptr);
  EXPECT_STREQ(e.take(2 * kWhole, 100), "payload that has already arrived");
  EXPECT_EQ(e.take(0, kWhole), nullptr);
  EXPECT_FALSE(e.complete());
  EXPECT_EQ(e.take(kWhole, kWhole), nullptr);
  EXPECT_TRUE(e.complete());
}

TEST(Extent, HoldsTheLongestSlice) {
  Extent e{.length = Extent::kMaxLength};
  for (std::uint64_t at = e.length; at > 0; at -= kMaxOperation.value) {
    EXPECT_FALSE(e.complete());
    EXPECT_EQ(e.take(at - kMaxOperation.value, kMaxOperation.value), nullptr);
  }
  EXPECT_TRUE(e.complete());
}

// ---- staging ----

TEST(Staging, NeverOverrunAndEveryClassKeepsItsReserve) {
  StagingPool pool(10);
  pool.reserve(ClassId(0), 3);
  pool.reserve(ClassId(1), 4);
  EXPECT_TRUE(pool.fits(ClassId(1), 7));
  EXPECT_FALSE(pool.fits(ClassId(1), 8));  // 3 are kept for class 0
  const std::uint32_t bulk = pool.take(ClassId(1), 7);
  EXPECT_FALSE(pool.fits(ClassId(1), 1));
  EXPECT_TRUE(pool.fits(ClassId(0), 3));
  EXPECT_FALSE(pool.fits(ClassId(0), 4));
  const std::uint32_t urgent = pool.take(ClassId(0), 3);
  EXPECT_EQ(pool.used(), 10u);
  std::set<std::uint32_t> pages;
  for (std::uint64_t i = 0; i < 7; ++i) pages.insert(pool.page(bulk, i));
  for (std::uint64_t i = 0; i < 3; ++i) pages.insert(pool.page(urgent, i));
  EXPECT_EQ(pages.size(), 10u);
  pool.release(ClassId(1), bulk);
  EXPECT_FALSE(pool.fits(ClassId(0), 4));  // now class 1's reserve is kept
  pool.release(ClassId(0), urgent);
  EXPECT_EQ(pool.used(), 0u);
  EXPECT_EQ(pool.most_used(), 10u);
}

TEST(Staging, RandomUseKeepsTheInvariant) {
  std::mt19937 random(5);
  StagingPool pool(64);
  for (std::uint8_t c = 0; c < 4; ++c) pool.reserve(ClassId(c), 4u + c);
  std::vector<std::pair<ClassId, std::uint32_t>> held;
  std::map<std::uint8_t, std::uint32_t> used;
  std::vector<std::uint32_t> sizes;
  for (int i = 0; i < 20'000; ++i) {
    const ClassId cls(static_cast<std::uint8_t>(random() % 4));
    const std::uint32_t pages = 1 + random() % 6;
    if (used[cls.value] + pages <= pool.reserved(cls)) {
      ASSERT_TRUE(pool.fits(cls, pages));
    }
    if (pool.fits(cls, pages)) {
      held.emplace_back(cls, pool.take(cls, pages));
      sizes.push_back(pages);
      used[cls.value] += pages;
    } else if (!held.empty()) {
      const std::size_t at = random() % held.size();
      pool.release(held[at].first, held[at].second);
      used[held[at].first.value] -= sizes[at];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ASSERT_LE(pool.used(), pool.pages());
  }
}

// ---- credit ----

TEST(Credits, AreSpentOnceAndComeBackInHalves) {
  EagerCredits sender(2, 4, 0), receiver(2, 4, 4);
  const HostIndex to = host(1), from = host(0);
  EXPECT_EQ(sender.left(to), 0u);
  EXPECT_TRUE(receiver.lend(from, 1));
  EXPECT_FALSE(receiver.may_fill(from, 0));  // the sender does not know of it yet
  EXPECT_EQ(receiver.owed(from), 0b1111u);
  EXPECT_EQ(sender.out(to), 0u);
  EXPECT_TRUE(sender.refund(to, receiver.give_back(from)));
  EXPECT_EQ(sender.left(to), 4u);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t slot = sender.spend(to);
    ASSERT_TRUE(receiver.may_fill(from, slot));
    receiver.fill(from, slot);
    EXPECT_FALSE(receiver.may_fill(from, slot));
  }
  EXPECT_EQ(sender.left(to), 0u);
  EXPECT_FALSE(receiver.may_fill(from, 4));  // no such slot
  EXPECT_TRUE(receiver.free(from, 2));       // the sender has none left: at once
  EXPECT_FALSE(receiver.may_fill(from, 2));  // the sender does not know yet
  const std::uint64_t back = receiver.give_back(from);
  EXPECT_EQ(back, 0b100u);
  EXPECT_TRUE(receiver.may_fill(from, 2));
  EXPECT_TRUE(sender.refund(to, back));
  EXPECT_FALSE(sender.refund(to, back));  // not spent
  EXPECT_FALSE(sender.refund(to, 0));
  EXPECT_FALSE(sender.refund(to, 0b10000));
  EXPECT_FALSE(receiver.free(from, 0));  // one of four, and the sender has one: wait for more
  EXPECT_TRUE(receiver.free(from, 1));
}

TEST(Credits, NoneAndTheMost) {
  EagerCredits none(2, 0, 100), most(2, kMaxEagerCredits, 100);
  EXPECT_FALSE(none.lend(host(1), 1));
  EXPECT_FALSE(none.may_fill(host(1), 0));
  EXPECT_TRUE(most.lend(host(1), 1));
  EXPECT_EQ(most.lent(host(1)), 64u);
  EXPECT_TRUE(most.refund(host(1), most.give_back(host(1))));
  EXPECT_EQ(most.left(host(1)), 64u);
  EXPECT_TRUE(most.may_fill(host(1), 63));
  EXPECT_FALSE(most.may_fill(host(1), 64));
  EXPECT_FALSE(most.may_fill(host(1), ~0u));
}

// Who comes gets a fair share of what is left, nobody more than the most, and no slot is lent twice.
TEST(Credits, AreLentFromOneBudget) {
  EagerCredits credits(8, 4, 14);
  std::set<std::uint32_t> places;
  const std::array<std::uint32_t, 6> shares{3, 3, 2, 2, 2, 2};
  for (std::uint16_t h = 0; h < 6; ++h) {
    EXPECT_TRUE(credits.lend(host(h), 6u - h));
    EXPECT_EQ(credits.lent(host(h)), shares[h]) << h;
    credits.give_back(host(h));
    EXPECT_FALSE(credits.may_fill(host(h), shares[h])) << "more than were lent";
    for (std::uint32_t slot = 0; slot < shares[h]; ++slot) {
      EXPECT_TRUE(credits.may_fill(host(h), slot));
      EXPECT_TRUE(places.insert(credits.place(host(h), slot)).second) << h << " " << slot;
    }
  }
  EXPECT_EQ(*places.rbegin(), 13u);
  EXPECT_FALSE(credits.lend(host(6), 1));  // none are left: it waits for grants
  EXPECT_EQ(credits.owed(host(6)), 0u);
}

// ---- holes in tables ----

TEST(Holes, AreGivenOutAgainAndNothingIsGivenTwice) {
  std::mt19937_64 random(11);
  Holes holes;
  std::vector<bool> used;
  std::vector<Range> taken;
  const auto room_for = [&](std::uint32_t count) {  // in a row, between what is used
    std::uint32_t free = 0;
    for (const bool entry : used) {
      free = entry ? 0 : free + 1;
      if (free == count) return true;
    }
    return false;
  };
  for (int turn = 0; turn < 3000; ++turn) {
    if (!taken.empty() && random() % 2 == 0) {
      std::swap(taken[random() % taken.size()], taken.back());
      std::fill_n(used.begin() + taken.back().first, taken.back().count, false);
      holes.give(taken.back());
      taken.pop_back();
    } else {
      const auto count = static_cast<std::uint32_t>(1 + random() % 9);
      const bool room = room_for(count);
      const std::uint32_t first = holes.take(count, used.size());
      ASSERT_LE(first, used.size());
      ASSERT_TRUE(!room || first + count <= used.size()) << "the table grows though there is room";
      used.resize(std::max<std::size_t>(used.size(), first + count));
      for (std::uint32_t i = first; i < first + count; ++i) {
        ASSERT_FALSE(used[i]) << "given twice";
        used[i] = true;
      }
      taken.push_back({first, count});
    }
    ASSERT_EQ(holes.entries(), std::ranges::count(used, false));
  }
}

// What a plan has lost in many places is no reason to search them all for what joins it.
TEST(Holes, ManyThatAreTooSmallTakeNoTime) {
  Holes holes;
  constexpr std::uint32_t kHoles = 200'000;
  for (std::uint32_t i = 0; i < kHoles; ++i) holes.give({2 * i, 1});
  const std::clock_t begin = std::clock();
  for (std::uint32_t i = 0; i < 20'000; ++i) ASSERT_EQ(holes.take(2, 2 * kHoles + 2 * i), 2 * kHoles + 2 * i);
  EXPECT_LT(std::clock() - begin, 2 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace tensorlane::engine
