// Preloaded into a daemon: whenever it gets SIGUSR1, all its queue pairs fail.
#include <csignal>
#include <cstdio>
#include <thread>

#include "tests/conformance/queue_pair_faults.h"

namespace {

[[maybe_unused]] const bool waiting = [] {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every thread of the daemon
  std::thread([signals] {
    for (int number = 0; sigwait(&signals, &number) == 0;) {
      std::fprintf(stderr, "failing %zu queue pairs\n", tensorlane::conformance::queue_pairs());
      tensorlane::conformance::fail_all_queue_pairs();
    }
  }).detach();
  return true;
}();

}  // namespace
