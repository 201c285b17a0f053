// The analysis of a large fabric: what it takes is counted in allocations, which no busy machine changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "monitor/verify/verdict.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane::verify {
namespace {

constexpr std::size_t kLeaves = 4, kSpines = 4, kPorts = 8;

fabric::Fabric leaf_and_spine(std::size_t hosts) {
  std::string nodes = "hosts:\n", switches = "switches:\n", links = "links:\n";
  for (std::size_t i = 0; i < hosts; ++i) {
    nodes += fmt::format("  - {{name: h{}, addresses: {{tcp: 10.0.{}.{}}}}}\n", i, i / 200, i % 200 + 1);
    links += fmt::format("  - {{from: h{}, to: leaf{}, speed: 100G}}\n", i, i % kLeaves);
  }
  for (std::size_t i = 0; i < kLeaves; ++i)
    switches += fmt::format("  - {{name: leaf{}, addresses: [198.19.0.{}]}}\n", i, i + 1);
  for (std::size_t i = 0; i < kSpines; ++i) {
    switches += fmt::format("  - {{name: spine{}, addresses: [198.19.1.{}]}}\n", i, i + 1);
    for (std::size_t leaf = 0; leaf < kLeaves; ++leaf)
      links += fmt::format("  - {{from: leaf{}, to: spine{}, speed: 100G}}\n", leaf, i);
  }
  return fabric::parse(nodes + switches + links, "fabric.yaml", fabric::Keys::kOptional).value();
}

// What happens to the first class: each spine writes 0, or drops it, or each port to a host writes 0.
enum class Harm { kChanged, kDropped, kChangedAtEachPort };

// Every host to every other one in two classes.
Observations probed(std::size_t hosts, Harm harm) {
  Observations seen{.classes = {{"urgent", 43, 5, true}, {"bulk", 27, 3, true}}};
  for (std::size_t i = 0; i < hosts; ++i) seen.hosts.push_back({fmt::format("h{}", i), {}});
  for (std::size_t from = 0; from < hosts; ++from)
    for (std::size_t to = 0; to < hosts; ++to)
      for (std::size_t cls = 0; cls < 2 && from != to; ++cls)
        for (std::size_t port = 0; port < kPorts; ++port) {
          FlowFact& flow = seen.flows.emplace_back(FlowFact{.from = from, .to = to, .cls = cls, .outcome = "arrived"});
          const bool far = from % kLeaves != to % kLeaves, at_ports = harm == Harm::kChangedAtEachPort;
          const bool bad = cls == 0 && (far || at_ports);
          const int sent = seen.classes[cls].dscp;
          flow.source_port = static_cast<std::uint16_t>(40000 + port), flow.own_dscp = sent;
          flow.dscp = bad ? 0 : sent, flow.hop_count = far ? 3 : 1;
          if (port < 3) {
            flow.hops.push_back({1, fmt::format("198.19.0.{}", from % kLeaves + 1), sent});
            if (far) flow.hops.push_back({2, fmt::format("198.19.1.{}", (from + to + port) % kSpines + 1), sent});
            if (far)
              flow.hops.push_back({3, fmt::format("198.19.0.{}", to % kLeaves + 1), at_ports ? sent : *flow.dscp});
          }
          if (!bad || harm != Harm::kDropped) continue;
          flow.outcome = "timed_out";
          flow.dscp.reset(), flow.hop_count.reset();
          if (port < 3) flow.hops[2] = {3, "", {}};
        }
  return seen;
}

// Each flow allocates what is said of it, and those of which the same was seen are looked at once.
TEST(Scale, WhatAFlowTakesDoesNotGrowWithTheFabric) {
  for (const Harm harm : {Harm::kChanged, Harm::kDropped, Harm::kChangedAtEachPort})
    for (const std::size_t hosts : {16, 32, 48}) {
      const Topology topology(leaf_and_spine(hosts));
      const Observations seen = probed(hosts, harm);
      const std::uint64_t before = counting::allocations();
      counting::count_allocations(counting::CountedThreads::kAll);
      const Report report = analyse(seen, topology);
      counting::count_allocations(counting::CountedThreads::kNone);
      const double of_each =
          static_cast<double>(counting::allocations() - before) / static_cast<double>(seen.flows.size());
      EXPECT_LT(of_each, 45) << static_cast<int>(harm) << ": " << hosts << " hosts, " << seen.flows.size() << " flows";
      EXPECT_GE(report.findings.size(), harm == Harm::kChangedAtEachPort ? hosts : 1);
      for (const Finding& finding : report.findings) EXPECT_EQ(finding.classes, std::vector<std::string>{"urgent"});
    }
}

}  // namespace
}  // namespace tensorlane::verify
