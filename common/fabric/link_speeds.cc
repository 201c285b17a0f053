#include "common/fabric/link_speeds.h"

#include <algorithm>

namespace tensorlane::fabric {

LinkSpeeds::LinkSpeeds(const Fabric& fabric) {
  for (const Host& host : fabric.hosts) by_host_[host.name];
  for (const Link& link : fabric.links) {
    for (const std::string& end : {link.from, link.to}) {
      if (const auto host = by_host_.find(end); host != by_host_.end()) host->second.push_back(link.speed);
    }
  }
  for (const Host& host : fabric.hosts) {
    std::vector<BitsPerSecond>& speeds = by_host_[host.name];
    if (!speeds.empty() && speeds.size() != host.rails())
      speeds.assign(host.rails(), *std::ranges::min_element(speeds));
  }
}

BitsPerSecond LinkSpeeds::find(std::string_view host, RailIndex rail) const {
  const auto found = by_host_.find(host);
  if (found == by_host_.end() || rail.value >= found->second.size()) return BitsPerSecond();
  return found->second[rail.value];
}

}  // namespace tensorlane::fabric
