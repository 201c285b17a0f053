// Words for people: where a place is, what is likely wrong there, and the command that shows it.
#pragma once

#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/fabric/network.h"
#include "monitor/verify/blame.h"
#include "monitor/verify/topology.h"

namespace tensorlane::verify {

// "leaf1's port swp3 towards spine1, or spine1's port swp1".
std::string describe(const Place& place, const Topology& topology);

// Which device to look at, and at which of its ports: of a leg the switch that sends, unless that end is a host.
struct Device {
  std::string name, port;  // empty: all ports, or not known
  bool is_switch = false;
};
Device device_of(const Place& place, const Topology& topology);

enum class Topic { kMarking, kQueueing, kLoss };
// A read-only command of the device's operating system; for a host `tensorlane doctor`. Empty where the fabric file
// does not say which system the switch has.
std::string show_command(const Device& device, Topic topic, const Topology& topology);

// "IPv6" or "IPv4".
const char* family_name(bool ipv6);

// "a; b; c".
template <typename Texts>
std::string joined(const Texts& texts, std::string_view between = "; ") {
  std::string all;
  for (auto text = std::begin(texts); text != std::end(texts); ++text) {
    if (text != std::begin(texts)) all += between;
    all += *text;
  }
  return all;
}

// What is said of several alike is said once: names with their texts, in the order of the first ones, as "a, b" and the
// text of both.
std::vector<std::pair<std::string, std::string>> by_text(const std::vector<std::pair<std::string, std::string>>& said);

}  // namespace tensorlane::verify
