// Inside the linter: what its rules could not look at.
#pragma once

#include "switch-config/findings/findings.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::lint {

// Adds which rules had nothing to look at on a device, and why, so that no finding of theirs is not taken for a good
// result. A rule that a device gives no reason to ask, such as the MTU where nothing is lossless, is not named.
void say_unchecked(const Device& device, findings::Report& report);

}  // namespace tensorlane::lint
