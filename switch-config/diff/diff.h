// What a running configuration does otherwise than the fabric file asks for, in terms of classes and traffic.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "switch-config/lint/observed.h"

namespace tensorlane::diff {

// The names of the classes by their number; empty where no traffic is.
using ClassNames = std::array<std::string, lint::kPriorities>;

// One difference, of all ports where it is the same.
struct Change {
  std::string device;
  std::vector<std::string> ports;  // empty: the device as a whole
  std::string traffic_class;       // by name; empty where it is no class's
  std::string what;                // "DSCP 27"
  std::string running, wanted;     // "queue 3"; "not configured" where there is none
  std::string impact;              // on traffic, of going from running to wanted
};

// What goes from `running` to `wanted` would change, in the order of the device, its ports and what they do. Equal
// devices have no change; one entry of a map that many ports share is one change.
std::vector<Change> changes(const lint::Device& running, const lint::Device& wanted, const ClassNames& names);

}  // namespace tensorlane::diff
