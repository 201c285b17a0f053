// session-daemon SOCKET DETECTION_MS: a daemon that completes the first operation of a job and holds all others; says
// "ready"; lives until it is killed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "fake_daemon.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  using namespace tensorlane;
  session::SessionConfig config;
  config.socket_path = argv[1];
  test::FakeDaemon daemon(config, {mib(512), mib(64)}, milliseconds(std::atoi(argv[2])));
  daemon.hold_after(1);
  std::puts("ready");
  std::fflush(stdout);
  while (true) pause();
}
