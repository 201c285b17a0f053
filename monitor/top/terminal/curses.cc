#include <curses.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "monitor/top/terminal/terminal.h"

namespace tensorlane::top {
namespace {

constexpr int kTickMilliseconds = 100;
constexpr int kTicksOfAge = 10;
constexpr int kEscapeMilliseconds = 25;
constexpr int kEscape = 27, kDelete = 127;

enum Pair : short { kBadPair = 1, kWarnPair };

int attributes_of(Tone tone) {
  const bool colours = has_colors();
  const auto pair = [colours](short number) { return colours ? static_cast<int>(COLOR_PAIR(number)) : 0; };
  switch (tone) {
    case Tone::kPlain:
      return A_NORMAL;
    case Tone::kTitle:
      return static_cast<int>(A_BOLD);
    case Tone::kHead:
      return static_cast<int>(A_UNDERLINE);
    case Tone::kSelected:
      return static_cast<int>(A_REVERSE);
    case Tone::kDim:
      return static_cast<int>(A_DIM);
    case Tone::kWarn:
      return static_cast<int>(A_BOLD) | pair(kWarnPair);
    case Tone::kBad:
      return static_cast<int>(A_BOLD) | pair(kBadPair);
  }
  return A_NORMAL;
}

std::optional<Press> press_of(int key) {
  switch (key) {
    case KEY_UP:
      return Press{Key::kUp};
    case KEY_DOWN:
      return Press{Key::kDown};
    case KEY_PPAGE:
      return Press{Key::kPageUp};
    case KEY_NPAGE:
      return Press{Key::kPageDown};
    case KEY_HOME:
      return Press{Key::kHome};
    case KEY_END:
      return Press{Key::kEnd};
    case KEY_BTAB:
      return Press{Key::kBackTab};
    case '\t':
      return Press{Key::kTab};
    case '\r':
    case '\n':
    case KEY_ENTER:
    case KEY_RIGHT:
      return Press{Key::kEnter};
    case '\b':
    case kDelete:
    case kEscape:
    case KEY_BACKSPACE:
    case KEY_LEFT:
      return Press{Key::kBackspace};
    default:
      break;
  }
  if (key >= ' ' && key < kDelete) return Press{Key::kCharacter, static_cast<char>(key)};
  return std::nullopt;
}

void draw(Screen& screen, double age) {
  const Size size{static_cast<std::size_t>(std::max(COLS, 1)), static_cast<std::size_t>(std::max(LINES, 1))};
  erase();
  int y = 0;
  for (const Line& line : screen.lines(size, age)) {
    ::move(y++, 0);
    for (const Span& span : line) {
      attrset(attributes_of(span.tone));
      addstr(span.text.c_str());
    }
  }
  attrset(A_NORMAL);
  refresh();
}

// While it lives, Ctrl-C sets `seen`, and ends the screen as q does; curses would end the process with status 1.
class Interrupt {
 public:
  Interrupt() : before_(std::signal(SIGINT, [](int) { seen = 1; })) { seen = 0; }
  ~Interrupt() { std::signal(SIGINT, before_); }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static inline volatile std::sig_atomic_t seen = 0;

 private:
  void (*before_)(int);
};

}  // namespace

bool has_terminal() {
  return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
}

Status run_in_terminal(Screen& screen, const Show& show) {
  std::setlocale(LC_CTYPE, "");
  const Interrupt interrupt;
  SCREEN* terminal = newterm(nullptr, stdout, stdin);
  if (terminal == nullptr) {
    const char* name = std::getenv("TERM");
    return {Code::kUnavailable, "this terminal is not known", name == nullptr ? "TERM is not set" : name,
            "set TERM to the terminal's name, or use --once"};
  }
  cbreak();
  noecho();
  curs_set(0);
  keypad(stdscr, TRUE);
  set_escdelay(kEscapeMilliseconds);
  timeout(kTickMilliseconds);
  if (has_colors()) {
    start_color();
    use_default_colors();
    init_pair(kBadPair, COLOR_RED, -1);
    // Legible on black and on white.
    init_pair(kWarnPair, COLOR_MAGENTA, -1);
  }
  int ticks = 0, key = 0;
  for (bool stays = true; stays && Interrupt::seen == 0; ++ticks) {
    // Without news once a second, for the age of what is shown.
    if (show.refresh(screen) || key != ERR || ticks % kTicksOfAge == 0) draw(screen, show.age());
    key = getch();
    // A terminal that has gone says so without waiting.
    if (key == ERR && isatty(STDIN_FILENO) != 1) break;
    if (const auto press = press_of(key)) stays = screen.press(*press);
  }
  endwin();
  delscreen(terminal);
  return {};
}

}  // namespace tensorlane::top
