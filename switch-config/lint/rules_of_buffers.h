// Inside the linter: rules about the buffers of lossless classes.
#pragma once

#include "switch-config/findings/findings.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::lint {

inline constexpr std::uint64_t kRoceMtu = 4096;  // the most that RoCE puts into a packet, without headers

// Rule L3: lossless classes have a buffer where packets enter, and leave from memory that does not drop.
void check_buffers(const Device& device, findings::Report& report);
// Rule L6: headroom of each group, and what groups reserve together.
void check_headroom(const Device& device, const Port& port, findings::Report& report);
void check_pools(const Device& device, findings::Report& report);

}  // namespace tensorlane::lint
