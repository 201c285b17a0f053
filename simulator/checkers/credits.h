// Checker "credits": all that is lent comes home. When nothing moves, what a sender lacks of its prepaid slots is what
// the receiver has read and gathers to give back together, and no grant is left.
#pragma once

#include <optional>
#include <string>

#include "daemon/engine/engine.h"
#include "simulator/checkers/findings.h"

namespace tensorlane::simulator {

// Of what `a` sends to `b`, both of one rail. None when all is home, else what is not.
std::optional<std::string> credits_away(HostIndex a, const engine::Engine& from, HostIndex b, const engine::Engine& to);

}  // namespace tensorlane::simulator
