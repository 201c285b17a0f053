#include "monitor/explain/links.h"

#include <algorithm>

namespace tensorlane::explain {

std::vector<LinkTimes> links_of(const HostTimes& host, bool sends) {
  struct Known {
    LinkTimes link;
    std::optional<double> nic;
    double on_wire = 0;  // payload
  };
  std::vector<Known> all;
  for (std::size_t r = 0; r < host.rails.size(); ++r) {
    const RailTimes& rail = host.rails[r];
    const auto same = [&](const Known& known) { return !rail.nic.empty() && known.link.nic == rail.nic; };
    auto at = std::ranges::find_if(all, same);
    if (at == all.end()) at = all.insert(all.end(), Known{{rail.nic}, {}});
    const double payload = sends ? rail.sent : rail.received;
    const std::optional<double>& nic = sends ? rail.nic_sent : rail.nic_received;
    at->link.speed = std::max(at->link.speed, rail.speed.value_or(0));
    at->link.rails.push_back(r);
    at->link.payload += payload;
    if (!rail.over_memory) at->on_wire += payload;
    if (nic) at->nic = std::max(at->nic.value_or(0), *nic);  // the rails of a NIC have the same count
  }
  std::vector<LinkTimes> links;
  for (Known& known : all) {
    if (known.link.speed <= 0 || (!known.nic && known.on_wire == 0)) continue;
    known.link.bypassed = known.nic.value_or(0) < known.on_wire;
    known.link.bytes = known.link.bypassed ? kWire * known.on_wire : *known.nic;
    links.push_back(std::move(known.link));
  }
  return links;
}

double use_of(const LinkTimes& link, const HostTimes& host) {
  return link.bytes * 8 / host.seconds / link.speed;
}

const LinkTimes* find_link(const std::vector<LinkTimes>& links, std::size_t rail) {
  const auto found = std::ranges::find_if(
      links, [rail](const LinkTimes& link) { return std::ranges::find(link.rails, rail) != link.rails.end(); });
  return found == links.end() ? nullptr : &*found;
}

}  // namespace tensorlane::explain
