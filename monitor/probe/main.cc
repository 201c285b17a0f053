// `tensorlane-probe`: the hands of `tensorlane verify` on one host. Reads commands as lines of JSON from its standard
// input and writes answers to its standard output (common/probe/README.md); ends with its input, or after its lifetime.
//
// It is linked statically, so that it runs where nothing of ours is installed, and it is the only program of ours that
// has a use for CAP_NET_RAW. It opens what needs the capability first, and then gives up all that it has.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/probe/answerer.h"
#include "common/probe/session.h"

namespace {

constexpr unsigned kLifetimeSeconds = 60;  // until `describe` says another
constexpr const char* kHelp =
    "Usage: tensorlane-probe < COMMANDS\n\n"
    "Probes data ports of tensorlane's fabrics, and answers such probes, for `tensorlane verify`. Each line of the\n"
    "input is a JSON object with a command; answers are lines of JSON. It ends with its input.\n"
    "With --with-channel, which tensorlaned says, descriptor 3 brings connections that its data ports got.\n\n"
    "Example:\n  echo '{\"do\": \"describe\"}' | tensorlane-probe\n";

void give_up_capabilities() {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> own{};
  // A service may forbid the second call, where there is nothing to give up.
  if (::syscall(SYS_capget, &header, own.data()) != 0 || (own[0].permitted | own[1].permitted) == 0) return;
  own = {};
  ::syscall(SYS_capset, &header, own.data());
}

void write_line(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (written <= 0) _exit(1);  // nobody reads
    at += static_cast<std::size_t>(written);
  }
}

// `channel`: where a daemon hands connections over that its data ports got; -1: nobody does.
int run(int channel) {
  std::signal(SIGPIPE, SIG_IGN);
  ::alarm(kLifetimeSeconds);
  tensorlane::probe::Session session(write_line);
  session.take_connections_from(channel);
  session.open_raw();
  give_up_capabilities();
  std::string pending;
  std::array<char, 65536> chunk{};
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, chunk.data(), chunk.size());
    if (got <= 0) return 0;
    pending.append(chunk.data(), static_cast<std::size_t>(got));
    for (std::size_t end = 0; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1))
      if (!session.handle(pending.substr(0, end))) return 2;
    if (pending.size() > tensorlane::probe::kMaxLine) return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return run(-1);
  if (argc == 2 && std::strcmp(argv[1], "--with-channel") == 0) return run(tensorlane::probe::kChannel);
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::puts("tensorlane-probe " TENSORLANE_VERSION);
    return 0;
  }
  const bool asked = argc == 2 && std::strcmp(argv[1], "--help") == 0;
  std::fputs(kHelp, asked ? stdout : stderr);
  return asked ? 0 : 2;
}
