// Which ports the probes of `tensorlane verify` may be about: those of the fabric's flows. Whoever asks for probes is
// an operator of some host of the fabric, and has no business with other ports of this one or of its neighbours.
#pragma once

#include <cstdint>
#include <set>
#include <string_view>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "common/json/json.h"

namespace tensorlane::wiring {

// Any thread.
class ProbePorts {
 public:
  // Of a fabric of which this host is one; it is not used afterwards.
  ProbePorts(const fabric::Fabric& fabric, std::string_view host);

  // Of one command of common/probe/README.md: it listens on data ports of this host, and connects to those of any
  // host. What is no such command is left to tensorlane-probe. kInvalidArgument: a port that is none.
  Status check(const nlohmann::json& command) const;

 private:
  std::uint16_t own_ = 0;        // first data port of this host
  std::set<std::uint16_t> all_;  // and of each host
};

}  // namespace tensorlane::wiring
