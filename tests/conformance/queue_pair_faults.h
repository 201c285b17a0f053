// Queue pairs that fail, and addresses of peers that are found late or never: a program's calls of ibv_create_qp(),
// ibv_modify_qp() and ibv_destroy_qp() pass through here on their way to the library. Any thread.
#pragma once

#include <chrono>
#include <cstddef>

namespace tensorlane::conformance {

// How many queue pairs there are.
std::size_t queue_pairs();
// The nth of them, in the order in which they were made, goes to the error state, as after a fatal error: what is
// posted on it comes back as flushed, and its peer hears nothing any more.
void fail_queue_pair(std::size_t nth);
void fail_all_queue_pairs();

// What becomes of calls that make a queue pair ready to receive, for which the kernel looks for the peer's address:
// all but the first `after` take `time` more, or, `held`, until set_address() is called again; `times` of those then
// say `error`.
struct SlowAddress {
  std::chrono::milliseconds time{};
  int error = 0;
  std::size_t times = 0, after = 0;
  bool held = false;
};
void set_address(const SlowAddress& slow);
// Calls since then that have begun; calls that are under way.
std::size_t address_calls();
std::size_t address_calls_under_way();

}  // namespace tensorlane::conformance
