// `tensorlane report JOB`: one HTML file that says how a job does.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <thread>

#include "common/base/text.h"
#include "common/json/json.h"
#include "monitor/answers/read.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/daemon_call.h"
#include "monitor/cli/json_file.h"
#include "monitor/cli/output_file.h"
#include "monitor/report/page.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

constexpr double kLookSeconds = 1;  // from one look at the job to the next

struct ReportArguments {
  std::string job, output, socket, load, verify;
  double seconds = 30;
  bool json_output = false;
};

// The JSON objects that hosts have answered; `silent` gets why others have none.
Result<report::Reports> ask(const ReportArguments& args, const char* kind, std::map<std::string, std::string>* silent) {
  const DaemonQuestion question{.kind = kind, .job = args.job, .patience = seconds(1)};
  TL_ASSIGN_OR_RETURN(const DaemonAnswers all,
                      ask_daemons(args.socket.empty() ? daemon_socket() : args.socket, question));
  HostReports sorted = sort_out(all);
  for (const auto& [host, why] : sorted.silent) (*silent)[host] = why.to_string();
  return std::move(sorted.reports);
}

// The id of the job among those that a daemon tells of.
std::optional<std::uint64_t> id_of(const report::Reports& statuses, const std::string& named) {
  std::optional<std::uint64_t> found;
  for (const auto& [host, status] : statuses) {
    answers::each(status, "jobs", [&](const json& job) {
      const json& id = answers::member(job, "id");
      if (!id.is_number_unsigned()) return;
      if (answers::text(job, "name") == named || std::to_string(id.get<std::uint64_t>()) == named)
        found = id.get<std::uint64_t>();
    });
  }
  return found;
}

Result<report::Figures> watch(const ReportArguments& args) {
  report::Watch watch;
  report::Reports statuses;
  std::map<std::string, std::string> silent;
  if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "watching job '{}' for {} s ...\n", args.job, args.seconds);
  const auto began = SteadyClock::now();
  for (int look = 0;; ++look) {
    const double wanted = std::min(look * kLookSeconds, args.seconds);
    std::this_thread::sleep_until(began + std::chrono::duration<double>(wanted));
    auto reports = ask(args, "job", &silent);
    // A job that ends meanwhile is shown as far as it was seen.
    if (!reports.ok() && look >= 2) {
      if (reports.status().code() != Code::kNotFound) watch.add_silent("this one", reports.status().to_string());
      break;
    }
    if (!reports.ok()) return reports.status();
    watch.add(std::chrono::duration<double>(SteadyClock::now() - began).count(), std::move(*reports));
    if (look == 0) {
      TL_ASSIGN_OR_RETURN(statuses, ask(args, "status", &silent));
    }
    for (const auto& [host, why] : silent) watch.add_silent(host, why);
    silent.clear();
    if (wanted >= args.seconds) break;
  }
  TL_ASSIGN_OR_RETURN(report::Figures figures, watch.figures());
  figures.job = args.job;
  if (const auto id = id_of(statuses, args.job)) report::add_tags(statuses, *id, &figures);
  return figures;
}

// What `explain --save` has kept: of each host two reports.
Result<report::Figures> load(const ReportArguments& args) {
  constexpr const char* kFix = "name a file of `tensorlane explain --save`";
  TL_ASSIGN_OR_RETURN(const json kept, read_json_file(args.load, kFix));
  report::Reports before, after;
  double seconds = 0;
  std::string job;
  for (const json& pair : kept.is_array() ? kept : json::array()) {
    const json &old = answers::member(pair, "before"), &last = answers::member(pair, "after");
    const std::string host = answers::text(last, "host");
    if (host.empty()) continue;
    before[host] = old;
    after[host] = last;
    job = answers::text(last, "job");
    seconds = std::max(seconds,
                       (answers::number(last, "at_ns").value_or(0) - answers::number(old, "at_ns").value_or(0)) * 1e-9);
  }
  if (after.empty() || seconds <= 0)
    return Status(Code::kInvalidArgument, "there are no reports in it", args.load, kFix);
  report::Watch watch;
  watch.add(0, std::move(before));
  watch.add(seconds, std::move(after));
  TL_ASSIGN_OR_RETURN(report::Figures figures, watch.figures());
  figures.job = job;
  return figures;
}

Result<int> make(const ReportArguments& args) {
  if (args.job.empty() && args.load.empty())
    return Status(Code::kInvalidArgument, "no job is named", "tensorlane report",
                  "name one that `tensorlane status` shows, or a file with --load");
  if (!args.job.empty() && !args.load.empty())
    return Status(Code::kInvalidArgument, "both a job and a file are named", "tensorlane report",
                  "leave out the job, or --load");
  TL_RETURN_IF_ERROR(can_write_output(args.output));
  std::optional<report::VerifyFigures> verify;
  if (!args.verify.empty()) {
    TL_ASSIGN_OR_RETURN(const json printed, read_json_file(args.verify, "name a file of `tensorlane verify --json`"));
    TL_ASSIGN_OR_RETURN(verify, report::read_verify(printed));
  }
  TL_ASSIGN_OR_RETURN(report::Figures figures, args.load.empty() ? watch(args) : load(args));
  figures.verify = std::move(verify);
  const std::string made = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)));
  TL_RETURN_IF_ERROR(write_output(args.output, report::page_html(figures, made)));
  for (const auto& [host, why] : figures.silent)
    fmt::print(stderr, "tensorlane: nothing is known of host {}: {}\n", printable(host), printable(why));
  if (args.json_output)
    fmt::print("{}\n", to_json(figures).dump(2, ' ', false, json::error_handler_t::replace));
  else
    fmt::print("wrote {}\n", args.output);
  return 0;
}

}  // namespace

void add_report_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<ReportArguments>();
  CLI::App* report = app.add_subcommand("report", "Write one HTML file that shows how a job does");
  report->footer(
      "Examples:\n  tensorlane report train -o train.html\n"
      "  tensorlane report train -o train.html --seconds 60 --verify verify.json");
  report->add_option("job", args->job,
                     "Name or id of a job that has ranks on this host: `tensorlane status` shows them");
  report->add_option("-o,--output", args->output, "The file that is written")->required();
  report->add_option("--seconds", args->seconds, "How long the job is watched")
      ->capture_default_str()
      ->check(command_line::between(2, 3600));
  report->add_option("--load", args->load, "Report what a file of `tensorlane explain --save` says, instead of a job");
  report->add_option("--verify", args->verify, "Show what `tensorlane verify --json` has printed into this file, too");
  report->add_option("--socket", args->socket,
                     "Of the daemon; default: TENSORLANE_SOCKET, else /run/tensorlane/tensorlaned.sock");
  report->add_flag("--json", args->json_output, "Print the figures, too, for machines");
  report->callback([args, &chosen] { chosen.run = [args] { return make(*args); }; });
}

}  // namespace tensorlane::cli
