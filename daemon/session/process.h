// What became of a client's process.
#pragma once

#include <cstdint>
#include <string>

namespace tensorlane::session {

// A clause for a message: "was killed by signal 9 (Killed)", "exited with status 1 without goodbye", "was killed or
// exited without goodbye", "closed its session without goodbye". To be asked right after the socket was closed. Never
// fails: what cannot be read is left open.
std::string describe_end(std::uint32_t pid);

}  // namespace tensorlane::session
