// What probes have seen: the input of the analysis. Plain facts, of whatever source.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tensorlane::verify {

// A class of the fabric file, the control class among them.
struct ProbedClass {
  std::string name;
  int dscp = 0, pcp = 0;
  bool lossless = false;
  std::uint16_t port_offset = 0;  // of its port behind data_port
};

struct HostFacts {
  std::string name;
  std::string error;        // why nothing is known of it; empty: it has answered
  bool sees_hops = true;    // it may read what hops quote (CAP_NET_RAW)
  bool sees_frames = true;  // it may see its own packets, with 802.1Q tags
  struct Override {
    std::string where;
    int dscp = 0;
  };
  std::vector<Override> overrides;  // device-wide traffic classes
  // What its daemon marks flows with, most urgent first; unset: no daemon was asked, or it has not said.
  std::optional<std::vector<ProbedClass>> in_force;
  // What its daemon's flows may go over, by rail: "tcp", "dpdk". Empty: it has not said.
  std::vector<std::set<std::string>> transports;
  std::map<std::string, std::string> environment;  // by which other libraries mark their traffic
};

struct HopFact {
  int distance = 0;         // 1: next to the sender
  std::string address;      // empty: did not answer
  std::optional<int> dscp;  // as the packet arrived there
};

// One connection from host to host in a class.
struct FlowFact {
  std::size_t from = 0, to = 0;  // positions in Observations::hosts
  std::size_t rail = 0;
  bool ipv6 = false;
  std::size_t cls = 0;  // position in Observations::classes
  std::uint16_t source_port = 0;
  std::string outcome;              // "arrived", or why it did not: the names of common/probe/prober.h
  std::string error;                // the kernel's text, where there is one
  std::optional<int> own_dscp;      // what the socket carries
  std::optional<int> own_priority;  // its priority, which becomes the PCP
  std::optional<int> left_dscp;     // as it left the kernel
  std::optional<int> left_pcp;
  std::optional<int> dscp, pcp;  // as it arrived
  std::optional<int> hop_count;  // routers on the way
  std::vector<HopFact> hops;     // by distance; empty: its way was not looked at

  bool arrived() const { return outcome == "arrived"; }
  // It was sent, and nothing came back that says why it did not arrive. The class is lost on the way if another one of
  // this pair, rail and family arrives. All else that did not arrive (what hosts refuse or do not answer) says nothing
  // of the network.
  bool vanished() const { return outcome == "timed_out" || outcome == "unreachable"; }
};

// A median with an interval.
struct Estimate {
  double value = 0, low = 0, high = 0;
};

// Two senders, one receiver: whether one class overtakes the other one where they meet.
struct LoadFact {
  std::size_t high = 0, low = 0;                    // classes
  std::size_t high_from = 0, low_from = 0, to = 0;  // hosts
  std::size_t rail = 0;
  std::string node, peer;  // where they meet: a switch and what its port leads to; empty: not known
  bool ipv6 = false;
  std::string error;                     // why there is no measurement
  bool left_out = false;                 // of any classes at this port: `high`, `low` and `ipv6` say nothing
  double high_alone = 0, low_alone = 0;  // bits per second
  Estimate share;                        // of its rate alone that the high class keeps beside the low one
  double low_beside = 0;                 // bits per second of the low class meanwhile
  // Of messages from the sender of the high class: in that class, and at the same time in the low one, which wait for
  // all that the low class has queued.
  Estimate delay_alone_us, delay_beside_us, delay_low_us;
  std::uint64_t high_retransmitted = 0, low_retransmitted = 0;  // packets
};

struct Observations {
  std::vector<ProbedClass> classes;  // most urgent first
  std::vector<HostFacts> hosts;
  std::vector<FlowFact> flows;
  std::vector<LoadFact> loads;
  bool asked_for_load = false;
  bool asked_daemons = false;  // who must say which classes are in force
  bool all_classes = true;     // of the fabric file, not only those that were asked for
  // Hosts, sender and receiver, between which the same flow has taken different ways: what hops said was left out.
  std::set<std::pair<std::size_t, std::size_t>> changing_ways;
  double seconds = 0;             // that it took
  std::uint64_t probe_bytes = 0;  // an estimate of what the probes without load have sent
};

}  // namespace tensorlane::verify
