// The live view of `tensorlane top`: a screen in a terminal.
#pragma once

#include <functional>
#include <string>

#include "common/base/status.h"
#include "monitor/top/screen.h"

namespace tensorlane::top {

// What a terminal shows, and who is told what the user does. Called on the thread that runs it.
struct Show {
  std::function<bool(Screen& screen)> refresh;  // gives the screen the latest figures; false where it has them
  std::function<double()> age;                  // seconds since these came
};

// Whether standard input and output are a terminal that can show it.
bool has_terminal();

// Runs until the user leaves; the terminal then is as before, also after SIGINT and SIGTERM. Errors: kUnavailable,
// where the terminal is unknown or this build has no ncurses.
Status run_in_terminal(Screen& screen, const Show& show);

}  // namespace tensorlane::top
