// The sending end of probes: real TCP connections to data ports, marked as the TCP transport marks its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/probe/capture.h"
#include "common/probe/exchange.h"
#include "common/probe/socket.h"

namespace tensorlane::probe {

struct FlowSpec {
  std::uint32_t id = 0;  // the caller's
  std::string address;   // numeric
  std::uint16_t port = 0;
  std::string source;             // numeric, of the same family
  std::uint16_t source_port = 0;  // 0: the kernel chooses
  Tag tag;
  std::uint8_t hops = 0;  // sweep() alone: how many there are before the destination
};

enum class Outcome : std::uint8_t {
  kArrived,      // with an answer
  kRefused,      // nothing listens at the port
  kUnreachable,  // no route, or an ICMP error
  kSilent,       // connected, and closed without an answer: whoever listens does not know the token
  kHangs,        // connected, and nothing came
  kTimedOut,     // did not connect
  kNotSent,      // the deadline left no time to send it, or to wait for it
  kRubbish,      // something else answered
  kLocal,        // this host could not send: no such address, no descriptors
};
const char* outcome_name(Outcome outcome);

struct Arrival {
  std::uint32_t id = 0;
  Outcome outcome = Outcome::kNotSent;  // until something else is known
  int error = 0;                        // errno of kLocal and kUnreachable
  std::uint16_t source_port = 0;
  EffectiveTag own;  // what the socket carries
  Marks left;        // how the first packet left, where that can be seen
  Answer answer;     // of kArrived
};

struct ProbeOptions {
  Token token{};
  int timeout_ms = 2000;  // of one connection
  std::size_t at_once = 64;
  int deadline_ms = 20000;  // of all
};

// Initial time to live of probes: what has arrived says how many hops there were.
inline constexpr int kHopLimit = 64;

// Connects once for each flow and calls `tell` for each, from this thread. Flows that the deadline leaves out, or
// cuts short before their own time is over, count as kNotSent: nothing is known of them. `capture` may be null.
void probe(const std::vector<FlowSpec>& flows, const ProbeOptions& options, Capture* capture,
           const std::function<void(const Arrival&)>& tell);

}  // namespace tensorlane::probe
