// The course of `tensorlane verify`: asks hosts for their addresses, lets them listen, probes, sweeps, loads; and
// gathers what they have seen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "monitor/cli/verify_hands.h"
#include "monitor/verify/observations.h"
#include "monitor/verify/topology.h"

namespace tensorlane::cli {

enum class Pairs { kAll, kRing, kSample };

struct VerifyHost {
  std::string name;
  std::vector<std::string> addresses;  // of each rail, numeric; empty: whatever the host has
  std::uint16_t data_port = 7110;
};

// Connections of one run at most. What is known of so many takes about a gigabyte.
inline constexpr std::size_t kMaxVerifyFlows = 500'000;

struct VerifyOptions {
  std::vector<VerifyHost> hosts;             // in the order of the hands
  std::vector<verify::ProbedClass> classes;  // most urgent first
  bool ipv4 = true, ipv6 = true;             // which families are probed
  Pairs pairs = Pairs::kAll;
  std::size_t sample = 0;  // pairs, in both directions each
  std::uint64_t seed = 0;
  std::size_t source_ports = 8;  // of each pair, direction, family and class
  std::size_t max_flows = kMaxVerifyFlows;
  std::size_t ways = 8;             // of them, for each pair, direction and family, whose way is looked at
  Duration patience = seconds(20);  // with a host's first answer
  Duration budget = seconds(50);    // without load
  bool load = false;
  std::size_t max_loaded_ports = 256;  // of the ports where two senders meet
  bool all_classes = true;             // `classes` are all of the fabric file
  bool listens = true;                 // the programs must listen themselves; else daemons answer where they cannot
};

// Where probes of a host leave from, and arrive.
struct Endpoints {
  std::string address[2];  // IPv4, IPv6; empty: the host has none there
};

// How long programs on hosts go on after they were last asked to describe themselves.
inline constexpr int kProbeLifetimeSeconds = 900;

// What has been learned of the hosts, for the steps after.
struct VerifyState {
  const VerifyOptions& options;
  ProbeHands& hands;
  const verify::Topology& topology;
  std::string token;
  std::vector<std::vector<Endpoints>> endpoints;  // by host and rail
  verify::Observations seen;
};

// Traffic stays within the bounds of the options. What goes wrong with a host is in the observations. Errors:
// kUnavailable (no two hosts have answered), kInvalidArgument (the pairs make more connections than max_flows).
Result<verify::Observations> run_verify(const VerifyOptions& options, ProbeHands& hands,
                                        const verify::Topology& topology);

// Of the classes of a fabric: control first.
std::vector<verify::ProbedClass> probed_classes(const fabric::ClassTable& classes);

// Who is probed from whom: positions of hosts, by sender and receiver.
std::vector<std::pair<std::size_t, std::size_t>> choose_pairs(std::size_t hosts, Pairs pairs, std::size_t sample,
                                                              std::uint64_t seed);

// A command's flow from rail to rail; empty where one end has no such address.
nlohmann::json flow_between(const VerifyState& state, std::size_t from, std::size_t to, std::size_t rail, bool ipv6,
                            std::size_t cls);

}  // namespace tensorlane::cli
