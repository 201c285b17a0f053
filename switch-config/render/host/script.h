// What apply.sh, verify.sh and rollback.sh of a host have in common.
#pragma once

#include <string_view>

namespace tensorlane::switches {

// POSIX shell that follows the variables and the function `ports` of a host; `mode` says what it is to do: apply,
// verify or rollback. Every setting has a get_NAME and a set_NAME whose values are alike, so that what verify compares
// is what apply sets and what rollback restores.
extern const std::string_view kHostScript;

}  // namespace tensorlane::switches
