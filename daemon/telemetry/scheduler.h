// What the kernel's scheduler says of threads: how long they ran, and how long they waited for a CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tensorlane::telemetry {

struct ThreadTimes {
  std::uint64_t run_ns = 0, runnable_ns = 0;  // on a CPU; ready to run, without one
  bool known = false;                         // there is such a thread, and the kernel says

  ThreadTimes& operator+=(const ThreadTimes& more) {
    run_ns += more.run_ns;
    runnable_ns += more.runnable_ns;
    known = known || more.known;
    return *this;
  }
};

// Any thread, any process. `proc` is for tests.
ThreadTimes read_thread_times(std::uint32_t process, std::uint32_t thread, const std::string& proc = "/proc");
// Of the threads of a process whose name begins with `name`, at most `most` of them.
ThreadTimes read_process_times(std::uint32_t process, std::size_t most, const std::string& name = "",
                               const std::string& proc = "/proc");

}  // namespace tensorlane::telemetry
