// `tensorlane timeline`: what the hosts of a job did, as a trace on one clock.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>

#include "common/base/text.h"
#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/daemon_call.h"
#include "monitor/cli/timeline_save.h"
#include "monitor/timeline/merge.h"

namespace tensorlane::cli {
namespace {

struct TimelineArguments {
  std::vector<std::string> files;
  std::string out, since, until, last, socket, job;
  bool json = false, all_hosts = false;
};

constexpr const char* kWhere = "tensorlane timeline";

// Seconds since 1970, or a time of UTC: 2026-11-27T04:30:05.250
Result<std::int64_t> parse_time(const std::string& option, const std::string& text) {
  const Status wrong(Code::kInvalidArgument, fmt::format("{}: '{}' is no time", option, printable(text)), kWhere,
                     "write seconds since 1970, or a time of UTC like 2026-11-27T04:30:05.250");
  constexpr double kNanoseconds = 1e9, kLatest = 9e9;
  double seconds = 0;
  const char* const end = text.data() + text.size();
  if (const auto [rest, error] = std::from_chars(text.data(), end, seconds); error == std::errc() && rest == end) {
    if (!(seconds >= 0 && seconds < kLatest)) return wrong;
    return static_cast<std::int64_t>(seconds * kNanoseconds);
  }
  std::tm parts{};
  const char* at = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (at == nullptr) return wrong;
  double fraction = 0;
  if (*at == '.') {
    const auto [rest, error] = std::from_chars(at, end, fraction);
    if (error != std::errc()) return wrong;
    at = rest;
  }
  if (*at == 'Z') ++at;
  if (at != end) return wrong;
  return timegm(&parts) * std::int64_t{1'000'000'000} + static_cast<std::int64_t>(fraction * kNanoseconds);
}

Result<Duration> parse_last(const std::string& text) {
  Result<Duration> last = fabric::parse_duration(text);
  if (last.ok()) return last;
  return Status(Code::kInvalidArgument, "--last: " + last.status().what(), kWhere,
                "write a number with a unit: \"30 s\"");
}

// Says on a terminal, or wherever errors go, how far long work is.
class Progress {
 public:
  void operator()(std::uint64_t done, std::uint64_t all) {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ < std::chrono::seconds(2)) return;
    told_ = now;
    std::fprintf(stderr, "tensorlane: merged %.0f %% of %.1f GB to read\n",
                 100.0 * static_cast<double>(done) / static_cast<double>(all), static_cast<double>(all) * 1e-9);
  }

 private:
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
};

nlohmann::json as_json(const timeline::MergeSummary& summary, const std::string& out) {
  nlohmann::json hosts = nlohmann::json::array();
  for (const auto& host : summary.hosts) {
    hosts.push_back({{"host", host.name},
                     {"clock", host.clock.matched ? "matched operations" : "wall clock"},
                     {"reference", summary.hosts[host.clock.reference].name},
                     {"offset_ns", host.clock.offset},
                     {"error_ns", host.clock.matched ? nlohmann::json(host.clock.error) : nlohmann::json()},
                     {"matched_operations", host.clock.operations},
                     {"spans", host.spans}});
  }
  return {{"out", out},
          {"hosts", hosts},
          {"spans", summary.spans},
          {"arrows", summary.arrows},
          {"backward_arrows", summary.backward},
          {"ends_without_other", summary.alone},
          {"crowded_spans", summary.crowded},
          {"compared_one_in", summary.one_in},
          {"clocks_moved_ns", summary.clocks_moved},
          {"begin_unix_ns", summary.begin},
          {"truncated", summary.truncated}};
}

std::string clock_text(const timeline::MergeSummary& summary, std::size_t place) {
  const timeline::Offset& clock = summary.hosts[place].clock;
  if (!clock.matched) return "its wall clock as it is: no operations both ways join it to another host";
  if (clock.reference == place) return "the clock of the trace";
  return fmt::format("its clock is {:+.3f} ms from that of {}, give or take {:.3f} ms, by {} operations",
                     static_cast<double>(clock.offset) * 1e-6, printable(summary.hosts[clock.reference].name),
                     static_cast<double>(clock.error) * 1e-6, clock.operations);
}

void print(const timeline::MergeSummary& summary, const std::string& out) {
  for (std::size_t place = 0; place < summary.hosts.size(); ++place) {
    const auto& host = summary.hosts[place];
    fmt::print("host {:<12} {} spans; {}\n", printable(host.name), host.spans, clock_text(summary, place));
  }
  for (const std::string& path : summary.truncated)
    fmt::print("{} lacks its end: its daemon writes it still, or was killed\n", path);
  if (summary.one_in > 1) fmt::print("the clocks were compared by one operation in {}\n", summary.one_in);
  if (summary.clocks_moved > 0)
    fmt::print("the clocks have moved against each other by {:.3f} ms: shorten the time with --last or --since\n",
               static_cast<double>(summary.clocks_moved) * 1e-6);
  if (summary.backward > 0) fmt::print("{} arrows seem to arrive before they left\n", summary.backward);
  if (summary.crowded > 0) fmt::print("{} spans lie over others: there are too many at once\n", summary.crowded);
  fmt::print(
      "{}: {} spans, {} arrows from sends to arrivals, {} ends without the other one; open it in "
      "https://ui.perfetto.dev\n",
      out, summary.spans, summary.arrows, summary.alone);
}

Result<int> merge(const TimelineArguments& args) {
  timeline::MergeOptions options;
  options.files = args.files;
  options.out = args.out;
  options.progress = Progress();
  if (!args.since.empty()) {
    TL_ASSIGN_OR_RETURN(options.since, parse_time("--since", args.since));
  }
  if (!args.until.empty()) {
    TL_ASSIGN_OR_RETURN(options.until, parse_time("--until", args.until));
  }
  if (!args.last.empty()) {
    TL_ASSIGN_OR_RETURN(options.last, parse_last(args.last));
  }
  TL_ASSIGN_OR_RETURN(const timeline::MergeSummary summary, timeline::merge(options));
  if (args.json) {
    fmt::print("{}\n", as_json(summary, args.out).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print(summary, args.out);
  }
  return 0;
}

nlohmann::json as_json(const Saved& saved, const std::string& out) {
  nlohmann::json hosts = nlohmann::json::array();
  for (const Saved::Host& host : saved.hosts) {
    hosts.push_back({{"host", host.name},
                     {"file", host.file},
                     {"spans", host.spans},
                     {"left_out", host.left_out},
                     {"error", host.error.ok() ? nlohmann::json() : nlohmann::json(host.error.to_string())}});
  }
  return {{"out", out}, {"hosts", hosts}, {"merged", saved.merged ? as_json(*saved.merged, out) : nlohmann::json()}};
}

void print(const Saved& saved, const std::string& out) {
  for (const Saved::Host& host : saved.hosts) {
    if (!host.error.ok()) continue;
    fmt::print("host {:<12} {} spans{}{}\n", host.name, host.spans, host.file.empty() ? "" : " in " + host.file,
               host.left_out == 0 ? "" : fmt::format(", {} older ones left out", host.left_out));
  }
  if (saved.merged) print(*saved.merged, out);
}

Result<int> save(const TimelineArguments& args) {
  SaveOptions options{args.socket.empty() ? daemon_socket() : args.socket, args.out, args.job};
  options.all_hosts = args.all_hosts;
  if (!args.last.empty()) {
    TL_ASSIGN_OR_RETURN(options.last, parse_last(args.last));
  }
  TL_ASSIGN_OR_RETURN(const Saved saved, save_spans(options));
  for (const Saved::Host& host : saved.hosts) {
    if (!host.error.ok())
      std::fprintf(stderr, "tensorlane: nothing of host %s: %s\n", host.name.c_str(), host.error.to_string().c_str());
  }
  if (args.json) {
    fmt::print("{}\n", as_json(saved, args.out).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print(saved, args.out);
  }
  return 0;
}

void add_save(CLI::App& all, const std::shared_ptr<TimelineArguments>& args, Invocation& chosen) {
  CLI::App* command = all.add_subcommand("save", "The last spans that daemons have in memory");
  command->footer("Example:\n  tensorlane timeline save --all-hosts --job train train.json");
  command->add_option("file", args->out, "What is written; with --all-hosts a folder gets HOST.json of each")
      ->required();
  command->add_option("--job", args->job, "Of this job alone");
  command->add_flag("--all-hosts", args->all_hosts,
                    "Of all hosts of the job, or of the fabric file: merged, or into a folder that is there");
  command->add_option("--last", args->last, "At most so long ago [30 s]");
  command->add_option("--socket", args->socket,
                      "Of the daemon; default: TENSORLANE_SOCKET, else /run/tensorlane/tensorlaned.sock");
  command->add_flag("--json", args->json, "The summary, for machines");
  command->callback([args, &chosen] { chosen.run = [args] { return save(*args); }; });
}

}  // namespace

void add_timeline_command(CLI::App& app, Invocation& chosen) {
  const auto args = std::make_shared<TimelineArguments>();
  CLI::App* all = app.add_subcommand("timeline", "What the hosts of a job did, as a trace for Perfetto");
  all->require_subcommand(1);
  all->footer("Example:\n  tensorlane timeline merge gpu01.json gpu02.json -o all.json");
  add_save(*all, args, chosen);
  CLI::App* command = all->add_subcommand("merge", "Several hosts on one clock, with arrows from sends to arrivals");
  command->footer("Example:\n  tensorlane timeline merge gpu*.json -o all.json --last \"30 s\"");
  command->add_option("files", args->files, "Timelines and dumps of daemons; FILE.1, too")->required();
  command->add_option("-o,--out", args->out, "The trace that is made")->required();
  command->add_option("--since", args->since, "Leave out what ended before: seconds since 1970, or a time of UTC");
  command->add_option("--until", args->until, "Leave out what began later");
  command->add_option("--last", args->last, "Leave out what ended so long before the last span: \"30 s\"");
  command->add_flag("--json", args->json, "The summary, for machines");
  command->callback([args, &chosen] { chosen.run = [args] { return merge(*args); }; });
}

}  // namespace tensorlane::cli
