// session-client SOCKET JOB RANK WORLD: joins, makes one allreduce, says "ready", then posts another one and waits for
// it; says what came of it. When the first steps fail, says the error and exits with 1.
#include <cstdio>
#include <cstdlib>

#include "tensorlane/tensorlane.h"

namespace {

int failed(const char* step) {
  std::printf("%s: %s\n", step, tl_last_error());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tl_config_t config = TL_CONFIG_INIT;
  config.socket = argv[1];
  config.job = argv[2];
  config.rank = config.local_rank = std::atoi(argv[3]);
  config.world_size = config.local_world_size = std::atoi(argv[4]);
  config.timeout_seconds = 10;
  tl_context_t* context = nullptr;
  if (tl_init(&config, &context) != TL_OK) return failed("tl_init");
  float* x = nullptr;
  if (tl_alloc(context, 4096, reinterpret_cast<void**>(&x)) != TL_OK) return failed("tl_alloc");
  tl_request_t* request = nullptr;
  if (tl_allreduce(context, "x", x, x, 1024, TL_FLOAT32, TL_SUM, nullptr, &request) != TL_OK)
    return failed("tl_allreduce");
  if (tl_wait(request, 10) != TL_OK) return failed("tl_wait");
  std::printf("ready\n");
  if (tl_allreduce(context, "x", x, x, 1024, TL_FLOAT32, TL_SUM, nullptr, &request) != TL_OK)
    return failed("tl_allreduce");
  if (tl_wait(request, -1) != TL_OK) return failed("tl_wait");
  std::printf("done\n");
  return tl_finalize(context) == TL_OK ? 0 : failed("tl_finalize");
}
