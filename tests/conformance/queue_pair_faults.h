// Queue pairs that fail: a program's calls of ibv_create_qp() and ibv_destroy_qp() pass through here on their way to
// the library. Any thread.
#pragma once

#include <cstddef>

namespace tensorlane::conformance {

// How many queue pairs there are.
std::size_t queue_pairs();
// The nth of them, in the order in which they were made, goes to the error state, as after a fatal error: what is
// posted on it comes back as flushed, and its peer hears nothing any more.
void fail_queue_pair(std::size_t nth);
void fail_all_queue_pairs();

}  // namespace tensorlane::conformance
