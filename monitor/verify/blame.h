// Which places explain what has happened to marks on the way: tomography over the flows that came through and those
// that did not.
//
// A place is to blame for a change of a mark if every flow that shows this change may have suffered it there, and no
// flow of the same family and mark came through it unchanged. Of all sets of such places one of the smallest is chosen,
// greedily: the place that explains most first.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "monitor/verify/observations.h"
#include "monitor/verify/trace.h"

namespace tensorlane::verify {

struct Place {
  // In the order of preference, where several explain the same flows.
  enum class Kind {
    kSender,    // everything of the host `node` before its cable
    kLeg,       // out of `node` to `peer`, or into `peer` from there
    kWay,       // the same, of the one of several parallel links that ends at `address`
    kEntry,     // into `node` from `peer`
    kNode,      // all of the switch `node`
    kReceiver,  // the host `node` behind its cable
    kGap,       // somewhere between `node` and `peer`, which are as near as is known
  };
  Kind kind = Kind::kGap;
  std::string node, peer, address;
  std::string pair;  // of kGap, where it explains the flows of these two hosts alone

  auto operator<=>(const Place&) const = default;
};

inline constexpr int kLost = -1;  // in place of a mark: the packets did not arrive

struct Change {
  bool ipv6 = false;
  int from = 0, to = 0;  // DSCPs; `to` may be kLost
  auto operator<=>(const Change&) const = default;
};

struct Blame {
  Place place;
  std::vector<Place> others;  // that explain the same flows as well
  Change change;
  std::vector<std::size_t> flows;  // positions in Observations::flows
};

// `traces` are those of trace_all(). Flows that vanished count as lost if another one of their pair, rail and family
// arrived.
std::vector<Blame> find_blame(const Observations& seen, const std::vector<Trace>& traces, const Topology& topology);

}  // namespace tensorlane::verify
