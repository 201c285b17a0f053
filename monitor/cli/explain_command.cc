// `tensorlane explain JOB`: what bounds it now, and who is the slow one.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>

#include "common/base/text.h"
#include "common/json/json.h"
#include "monitor/answers/read.h"
#include "monitor/answers/times.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/daemon_call.h"
#include "monitor/cli/json_file.h"
#include "monitor/cli/output_file.h"
#include "monitor/explain/explain.h"
#include "monitor/remedies/predict.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;

// What the text shows: ranks, and hosts without a report.
constexpr std::size_t kShownRanks = 5, kMostSilent = 5;

struct ExplainArguments {
  std::string job, socket, save;
  std::vector<std::string> load;
  double seconds = 5;
  bool json_output = false;
};

Result<HostReports> ask(const ExplainArguments& args) {
  const DaemonQuestion question{.kind = "job", .job = args.job};
  TL_ASSIGN_OR_RETURN(const DaemonAnswers all,
                      ask_daemons(args.socket.empty() ? daemon_socket() : args.socket, question));
  return sort_out(all);
}

struct Watched {
  json reports = json::array();  // [{"before": ..., "after": ...}], by host
  std::map<std::string, Status> silent;
};

Result<Watched> watch(const ExplainArguments& args) {
  TL_ASSIGN_OR_RETURN(const HostReports before, ask(args));
  if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "watching job '{}' for {} s ...\n", args.job, args.seconds);
  std::this_thread::sleep_for(std::chrono::duration<double>(args.seconds));
  const Result<HostReports> second = ask(args);
  if (!second.ok() && second.status().code() == Code::kNotFound) {
    return Status(Code::kUnavailable, "the job ended while it was watched", fmt::format("job '{}'", args.job),
                  "watch one that goes on, or for less time (--seconds)");
  }
  TL_RETURN_IF_ERROR(second.status());
  const HostReports& after = *second;
  Watched watched;
  watched.silent = after.silent;
  for (const auto& [host, report] : after.reports) {
    const auto old = before.reports.find(host);
    if (old == before.reports.end()) continue;
    watched.reports.push_back({{"host", host}, {"before", old->second}, {"after", report}});
  }
  for (const auto& [host, why] : before.silent) watched.silent.emplace(host, why);
  return watched;
}

Result<Watched> read(const std::string& path) {
  constexpr const char* kFix = "name a file of `tensorlane explain --save`";
  Watched watched;
  TL_ASSIGN_OR_RETURN(watched.reports, read_json_file(path, kFix));
  if (watched.reports.is_array() && !watched.reports.empty()) return watched;
  return Status(Code::kInvalidArgument, "there are no reports in it", path, kFix);
}

json known(const std::optional<double>& value) {
  return value ? json(*value) : json();
}

json to_json(const explain::Explanation& all, const remedies::Predictions& predictions,
             const std::map<std::string, Status>& silent) {
  json findings = json::array(), ranks = json::array(), hosts = json::array();
  for (std::size_t i = 0; i < all.findings.size(); ++i) {
    const explain::Finding& f = all.findings[i];
    const auto& would = predictions.findings[i];
    findings.push_back({{"cause", explain::cause_name(f.cause)},
                        {"confidence", explain::confidence_name(f.confidence)},
                        {"seconds", f.seconds},
                        {"share", std::min(f.seconds / all.iteration, 1.0)},
                        {"where", f.where},
                        {"places", f.places},
                        {"evidence", f.evidence},
                        {"help", f.help},
                        {"with", would ? json(would->change) : json()},
                        {"iteration_with_it_s", would ? json(would->iteration) : json()}});
  }
  for (const explain::RankLag& rank : all.ranks)
    ranks.push_back(
        {{"rank", rank.rank}, {"host", rank.host}, {"lag_s", rank.lag}, {"computing_s", known(rank.computing)}});
  for (const auto& [host, why] : silent) hosts.push_back({{"host", host}, {"error", why.to_string()}});
  return {{"iteration_s", all.iteration},
          {"iterations", all.iterations},
          {"exposed_s", known(all.exposed)},
          {"efficiency", known(all.efficiency)},
          {"findings", findings},
          {"ranks", ranks},
          {"hosts_without_answer", hosts},
          {"connections_left_out", all.connections_left_out},
          {"simulated_iteration_s", known(predictions.simulated)}};
}

void print(const explain::Explanation& all, const remedies::Predictions& predictions,
           const std::map<std::string, Status>& silent) {
  fmt::print("an iteration takes {:.1f} ms ({:.0f} seen); ", all.iteration * 1e3, all.iterations);
  if (all.exposed)
    fmt::print("in {:.1f} ms of it even the rank that waits least waits for tensors; {:.0f} % of it is computation\n",
               *all.exposed * 1e3, 100 * all.efficiency.value_or(0));
  else
    fmt::print("exposed: not known ({})\n", explain::kStreamsWait);
  for (std::size_t i = 0; i < all.findings.size(); ++i) {
    const explain::Finding& f = all.findings[i];
    const std::string cost = f.seconds > 0
                                 ? fmt::format(": up to {:.1f} ms of an iteration ({:.0f} %)", f.seconds * 1e3,
                                               100 * std::min(f.seconds / all.iteration, 1.0))
                                 : "";
    fmt::print("{} ({}): {}{}\n  {}\n  what helps: {}\n", explain::cause_name(f.cause),
               explain::confidence_name(f.confidence), printable(f.where), cost, printable(f.evidence), f.help);
    if (const auto& would = predictions.findings[i])
      fmt::print("  by how much: with {} an iteration takes about {:.1f} ms (simulated)\n", would->change,
                 would->iteration * 1e3);
  }
  if (all.ranks.size() > 1)
    fmt::print("ranks, the latest first (how much later than the first one they submit an operation):\n");
  for (std::size_t i = 0; all.ranks.size() > 1 && i < std::min(all.ranks.size(), kShownRanks); ++i) {
    const explain::RankLag& rank = all.ranks[i];
    fmt::print("  rank {} on host {}: {:.1f} ms later", rank.rank, printable(rank.host), rank.lag * 1e3);
    fmt::print("{}\n",
               rank.computing ? fmt::format(", computes {:.1f} ms of an iteration", *rank.computing * 1e3) : "");
  }
  if (all.connections_left_out > 0)
    fmt::print("{:.0f} connections are not looked at: each host describes 64, the most urgent ones first\n",
               all.connections_left_out);
  std::size_t said = 0;
  for (const auto& [host, why] : silent) {
    if (++said > kMostSilent) break;
    fmt::print("nothing is known of host {}: {}\n", printable(host), printable(why.to_string()));
  }
  if (silent.size() > kMostSilent) {
    fmt::print("nothing is known of {} hosts more: --json says why\n", silent.size() - kMostSilent);
  }
}

Result<int> show(const ExplainArguments& args) {
  if (args.job.empty() && args.load.empty())
    return Status(Code::kInvalidArgument, "no job is named", "tensorlane explain",
                  "name one that `tensorlane status` shows, or a file with --load");
  if (!args.job.empty() && !args.load.empty())
    return Status(Code::kInvalidArgument, "both a job and a file are named", "tensorlane explain",
                  "leave out the job, or --load");
  TL_RETURN_IF_ERROR(can_write_output(args.save));
  TL_ASSIGN_OR_RETURN(const Watched watched, args.load.empty() ? watch(args) : read(args.load.front()));
  if (!args.save.empty())
    TL_RETURN_IF_ERROR(
        write_output(args.save, watched.reports.dump(1, ' ', false, json::error_handler_t::replace) + "\n"));
  std::vector<explain::HostTimes> hosts;
  std::map<std::string, Status> silent = watched.silent;
  for (const json& pair : watched.reports) {
    const json &before = answers::member(pair, "before"), &after = answers::member(pair, "after");
    const std::string asked = answers::text(pair, "host"), own = answers::text(after, "host");
    const std::string& host = asked.empty() ? own : asked;
    const auto times = answers::times_between(host, before, after);
    if (times.ok())
      hosts.push_back(*times);
    else
      silent.emplace(host.empty() ? "?" : host, times.status());
  }
  if (hosts.empty() && !silent.empty()) return silent.begin()->second;
  const Result<explain::Explanation> explained = explain::explain(hosts);
  if (!explained.ok()) {
    // A host that is silent may be why nothing goes on.
    return silent.empty() ? explained.status()
                          : explain::beside_silence(explained.status(), printable(silent.begin()->first),
                                                    printable(silent.begin()->second.to_string()));
  }
  const explain::Explanation& all = *explained;
  const remedies::Predictions predictions = remedies::predict(hosts, all);
  if (args.json_output)
    fmt::print("{}\n", to_json(all, predictions, silent).dump(2));
  else
    print(all, predictions, silent);
  return 0;
}

}  // namespace

void add_explain_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<ExplainArguments>();
  CLI::App* explain = app.add_subcommand("explain", "What bounds a job now, who is the slow one, and what would help");
  explain->footer("Examples:\n  tensorlane explain train\n  tensorlane explain train --seconds 20 --json");
  explain->add_option("job", args->job,
                      "Name or id of a job that has ranks on this host: `tensorlane status` shows them");
  explain->add_option("--seconds", args->seconds, "How long it is watched")
      ->capture_default_str()
      ->check(command_line::between(0.5, 3600));
  explain->add_option("--socket", args->socket,
                      "Of the daemon; default: TENSORLANE_SOCKET, else /run/tensorlane/tensorlaned.sock");
  explain->add_option("--save", args->save, "Keep what the hosts say in this file");
  explain->add_option("--load", args->load, "Explain what such a file says, instead of a job")->expected(1);
  explain->add_flag("--json", args->json_output, "Everything, for machines");
  explain->callback([args, &chosen] { chosen.run = [args] { return show(*args); }; });
}

}  // namespace tensorlane::cli
