// How fast every host's rails are, looked up without a pass over the links.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/fabric/fabric.h"

namespace tensorlane::fabric {

class LinkSpeeds {
 public:
  LinkSpeeds() = default;
  explicit LinkSpeeds(const Fabric& fabric);
  // As Fabric::link_speed. Zero where no link is described, or the fabric has no such host or rail.
  BitsPerSecond find(std::string_view host, RailIndex rail) const;

 private:
  std::map<std::string, std::vector<BitsPerSecond>, std::less<>> by_host_;  // by rail; empty: no link is described
};

}  // namespace tensorlane::fabric
