// Which traffic a network's routes carry from which port to which.
#pragma once

#include "switch-config/deadlock/network.h"
#include "switch-config/deadlock/ports.h"
#include "switch-config/deadlock/waits.h"

namespace tensorlane::deadlock {

// Adds to `waits` what the routes of `network` need: between all pairs of switches with hosts by its routing, by the
// routes that it names and by flooding. `ports` are those that work; routes are computed over them, and named ones that
// cross others are left out. Returns how many pairs of switches with hosts have no route (of kGiven: 0).
// Time: the number of switches with hosts times the links.
std::size_t add_routes(const Network& network, const Ports& ports, Waits& waits);

}  // namespace tensorlane::deadlock
