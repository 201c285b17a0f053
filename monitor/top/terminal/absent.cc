// In place of curses.cc where ncurses is not installed.
#include "monitor/top/terminal/terminal.h"

namespace tensorlane::top {

bool has_terminal() {
  return false;
}

Status run_in_terminal(Screen&, const Show&) {
  return {Code::kUnavailable, "this build has no live view", "tensorlane top",
          "use --once, or install libncurses-dev and build again"};
}

}  // namespace tensorlane::top
