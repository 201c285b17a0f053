// Which pattern an operation should take, by a cost model: "a selector by cost model per (operation, size, group,
// class)". Pure arithmetic on the routes that the engine uses, so that a new pattern needs no formula of its own.
//
// The model is LogGP (Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages into the LogP
// model", 1995) on the trees of route.h. An operation takes the longer of
//   one slice, alone, up its owner's tree and down again: a hop takes latency + bytes / rate, and two latencies more
//   where a contribution has to be announced and granted; of messages that meet at a host each waits for the one before
//   all slices: the latencies of that way, and what the busiest host sends or receives in all, on its link or in
//   messages, and adds; of several slices one is added while another is on its way
// For one shard of n bytes that is what Thakur, Rabenseifner and Gropp ("Optimization of Collective Communication
// Operations in MPICH", 2005) write out for the binomial tree, 2 log2(N) (a + n b) + log2(N) n c, and for N shards
// theirs of recursive halving and doubling, 2 log2(N) a + 2 (N-1)/N n b + (N-1)/N n c, and of the ring, 2 (N-1) a and
// the same; for servers it is their incast, 2 a + 2 (N-1) n b on one and 2 a + 2 (N-1)/N n b on N.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "daemon/engine/batching/network_model.h"

namespace tensorlane::engine {

// What is chosen from. Not kWholeServer: its place is in a plan that spreads tensors over servers.
inline constexpr std::array kSelectable = {protocol::Pattern::kRing, protocol::Pattern::kParameterServer,
                                           protocol::Pattern::kHalvingDoubling, protocol::Pattern::kTree};

struct PatternCosts {
  // One transfer from host to host while nothing else moves: its overhead is the latency from engine to engine, which
  // includes what both hosts do.
  NetworkModel network = NetworkModel::of(microseconds(50), BitsPerSecond(10'000'000'000));
  // What a host's thread spends on each message that it sends or receives: the least time between two of them.
  Duration message = microseconds(3);
  // The share of a link's rate that is lost where many hosts send to one at a time (TCP's incast, and turns that do not
  // mesh): a host that hears from n others gets 1 / (1 + incast (1 - 1/n)) of it.
  double incast = 0;
  double sum_bytes_per_second = 5e9;  // of what is read to be added
  // Of the engine and of the tensor's class on this fabric.
  Bytes eager_limit = kib(32);
  Bytes window = mib(4);    // that the class may have in flight; what it lets through in a round trip bounds the rate
  Bytes staging = mib(64);  // and what it is divided by: see fit_slice_elements()
  std::uint8_t classes = 2;
};

struct Prediction {
  protocol::Pattern pattern{};
  Duration time;
};

// How long one operation on `tensor` takes, with the tensor's pattern and slices, from when all hosts have submitted it
// until all have its result, on `hosts` hosts that do nothing else.
Duration predict(const PatternCosts& costs, const protocol::PlanTensor& tensor, std::uint16_t hosts);

// All of kSelectable, the fastest first; of equals the one that kSelectable has first. The tensor's own pattern does
// not matter, and its slices are fitted to each pattern.
std::array<Prediction, kSelectable.size()> compare_patterns(const PatternCosts& costs, protocol::PlanTensor tensor,
                                                            std::uint16_t hosts);

}  // namespace tensorlane::engine
