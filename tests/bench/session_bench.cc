// session_bench [--quick]: how long an operation takes from tl_post to the end of tl_wait, with a lane that answers at
// once. What is measured is the session alone: two ring entries and two wake-ups. Prints median and p99 in
// microseconds; exit status 1 when a result was wrong.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/session/context_guard.h"
#include "tests/session/fake_daemon.h"

namespace {

using Clock = std::chrono::steady_clock;

double percentile(std::vector<double>& sorted, double p) {
  return sorted[static_cast<std::size_t>(p * static_cast<double>(sorted.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  const int rounds = quick ? 2000 : 50000;
  tensorlane::test::FakeDaemon daemon;
  tensorlane::test::ClientContext context(daemon.socket());
  float* x = nullptr;
  const bool ready = context.status() == TL_OK && tl_alloc(context, 64, reinterpret_cast<void**>(&x)) == TL_OK;
  const tl_tensor_desc_t desc = tensorlane::test::tensor_desc("x", x, 16);
  tl_tensor_t* tensor = nullptr;
  if (!ready || tl_register(context, "x", &desc, 1, &tensor) != TL_OK) {
    std::fprintf(stderr, "tensorlane: error: %s\n", tl_last_error());
    return 1;
  }
  for (const int pause_us : {0, 200}) {  // 200: both sides have gone to sleep
    std::vector<double> microseconds;
    for (int i = 0; i < (pause_us == 0 ? rounds : rounds / 10); ++i) {
      if (pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      x[0] = static_cast<float>(i);
      const auto start = Clock::now();
      tl_request_t* request = nullptr;
      if (tl_post(tensor, &request) != TL_OK || tl_wait(request, 10) != TL_OK || x[0] != static_cast<float>(2 * i)) {
        std::fprintf(stderr, "tensorlane: error: operation %d went wrong: %s\n", i, tl_last_error());
        return 1;
      }
      microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(microseconds.begin(), microseconds.end());
    std::printf("session round trip, %3d us apart: median %.1f us, p99 %.1f us, %zu operations\n", pause_us,
                percentile(microseconds, 0.5), percentile(microseconds, 0.99), microseconds.size());
  }
  return 0;
}
