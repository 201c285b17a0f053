// `tensorlane top`: what jobs, classes, hosts, peers, rails and ranks do now.
#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "monitor/cli/commands.h"
#include "monitor/cli/daemon_call.h"
#include "monitor/cli/top_feed.h"
#include "monitor/top/screen.h"
#include "monitor/top/terminal/terminal.h"

namespace tensorlane::cli {
namespace {

constexpr std::size_t kPlainColumns = 120, kMostColumns = 1000;  // of text that goes to no terminal
constexpr std::size_t kPlainRows = 40;

struct TopArguments {
  std::string job;
  TopQuestions questions;
  double patience = 1;
  bool once = false, json = false;
};

bool shows_utf8() {
  std::setlocale(LC_CTYPE, "");
  return std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

// Of the terminal, else what COLUMNS says.
std::size_t plain_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* variable = std::getenv("COLUMNS");
  const long columns = variable == nullptr ? 0 : std::strtol(variable, nullptr, 10);
  return columns > 0 ? std::min(static_cast<std::size_t>(columns), kMostColumns) : kPlainColumns;
}

// Two rounds, because rates need two.
Result<int> show_once(const TopArguments& args) {
  top::History history;
  const auto began = std::chrono::steady_clock::now();
  history.add(ask_round(args.questions, args.job));
  if (history.last().error.empty() && history.last().no_job.empty()) {
    std::this_thread::sleep_until(began + std::chrono::duration<double>(args.questions.interval));
    history.add(ask_round(args.questions, args.job));
  }
  const top::Answers& last = history.last();
  if (const std::string& why = last.error.empty() ? last.no_job : last.error; !why.empty())
    return Status(Code::kUnavailable, why);
  const top::Picture picture = top::make_picture(history);
  if (args.json) {
    fmt::print("{}\n", to_json(picture).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  for (const std::string& line : top::plain_lines(picture, plain_columns(), kPlainRows, shows_utf8()))
    fmt::print("{}\n", line);
  return 0;
}

Result<int> show(TopArguments args) {
  if (args.questions.socket.empty()) args.questions.socket = daemon_socket();
  args.questions.patience = Duration(static_cast<std::int64_t>(args.patience * 1e9));
  if (args.once || args.json || !top::has_terminal()) return show_once(args);
  top::Screen screen(args.job, shows_utf8());
  TopFeed feed(args.questions, args.job);
  top::Picture picture;
  TL_RETURN_IF_ERROR(top::run_in_terminal(screen, {.refresh =
                                                       [&](top::Screen& shown) {
                                                         feed.want(shown.job());
                                                         if (shown.paused() || !feed.take(&picture)) return false;
                                                         shown.show(std::move(picture));
                                                         return true;
                                                       },
                                                   .age = [&] { return feed.age(); }}));
  return 0;
}

}  // namespace

void add_top_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<TopArguments>();
  CLI::App* top = app.add_subcommand("top", "What jobs, classes, hosts, peers, rails and ranks do now");
  top->footer(
      "In a terminal it goes on until q is pressed; ? shows the keys. Elsewhere it prints its tables once.\n"
      "Examples:\n  tensorlane top\n  tensorlane top train --interval 2\n  tensorlane top train --json");
  top->add_option("job", args->job, "Name or id of a job that has ranks on this host: its hosts are shown at once");
  top->add_option("--socket", args->questions.socket,
                  "Of the daemon; default: TENSORLANE_SOCKET, else /run/tensorlane/tensorlaned.sock");
  top->add_flag("--all-hosts", args->questions.all_hosts,
                "All hosts of the fabric file, where no job is looked at, instead of this one");
  top->add_option("--interval", args->questions.interval, "Seconds from one look to the next")
      ->capture_default_str()
      ->check(command_line::between(0.2, 60));
  top->add_option("--patience", args->patience, "Seconds that a host has for its answer")
      ->capture_default_str()
      ->check(command_line::between(0.1, 60));
  top->add_flag("--once", args->once, "Print the tables once, after two looks");
  top->add_flag("--json", args->json, "The same, everything, for machines");
  top->callback([args, &chosen] { chosen.run = [args] { return show(*args); }; });
}

}  // namespace tensorlane::cli
