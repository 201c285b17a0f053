// `tensorlane-switch apply`: the queues of this machine's ports, so that they can be brought back.
#include <algorithm>
#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "common/base/error_line.h"
#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "switch-config/apply/plan.h"
#include "switch-config/apply/worker.h"
#include "switch-config/cli/commands.h"
#include "switch-config/policy/policy.h"

namespace tensorlane::switches {
namespace {

using apply::Journal;
using apply::Phase;

struct ApplyArguments {
  std::string fabric, running, state = "/run/tensorlane-switch";
  std::vector<std::string> at;
  double minutes = 5;
  bool apply = false, confirm = false, revert = false, no_ecn = false, json = false;
};

constexpr int kRoundMs = 50;
constexpr Duration kPatience = seconds(60);  // with the worker of an apply

// --- what is to be configured

// "s0=tl-lab-s0", or "s0" for the namespace of this process.
Result<apply::Target> target_of(const fabric::Fabric& fabric, const std::string& at, bool no_ecn) {
  const std::size_t split = at.find('=');
  const std::string name = at.substr(0, split);
  const auto is_it = [&](const auto& device) { return device.name == name; };
  const bool host = std::any_of(fabric.hosts.begin(), fabric.hosts.end(), is_it);
  if (!host && !std::any_of(fabric.switches.begin(), fabric.switches.end(), is_it))
    return Status(Code::kNotFound, fmt::format("no switch or host '{}'", name), fabric.path, "correct --at");
  if (split != at.npos && split + 1 == at.size())
    return Status(Code::kInvalidArgument, fmt::format("'{}' names no namespace", at), "--at",
                  "expected DEVICE=NAMESPACE, or DEVICE for this one");
  const Selection selection{.hosts = host, .nos = {}, .software = true};
  TL_ASSIGN_OR_RETURN(std::vector<DeviceQos> devices, devices_of(fabric, selection));
  apply::Target target{*std::find_if(devices.begin(), devices.end(), is_it), {}};
  if (split != at.npos) target.ns = at.substr(split + 1);
  if (no_ecn) leave_out_ecn(target.device);
  return target;
}

// Those of `at` that the file has; with `all`, a missing one is an error.
Result<std::vector<apply::Target>> targets_of(const std::string& file, const ApplyArguments& args, bool all) {
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(file, fabric::Keys::kOptional));
  std::vector<apply::Target> targets;
  for (const std::string& at : args.at) {
    Result<apply::Target> target = target_of(fabric, at, args.no_ecn);
    if (!target.ok() && !all && target.status().code() == Code::kNotFound) continue;
    if (!target.ok()) return target.status();
    targets.push_back(*std::move(target));
  }
  return targets;
}

Result<apply::Record> plan(const ApplyArguments& args, const Journal& journal, apply::Namespaces& namespaces) {
  TL_ASSIGN_OR_RETURN(const std::vector<apply::Target> targets, targets_of(args.fabric, args, true));
  std::vector<apply::Target> running;
  if (!args.running.empty()) {
    TL_ASSIGN_OR_RETURN(running, targets_of(args.running, args, false));
  }
  TL_ASSIGN_OR_RETURN(const apply::Record applied, journal.read_applied());
  return apply::make_plan(namespaces, applied, targets, running);
}

// --- what is printed

std::size_t changes_of(const apply::Record& record) {
  return static_cast<std::size_t>(std::count_if(record.ports.begin(), record.ports.end(),
                                                [](const apply::PortChange& port) { return port.changes(); }));
}

void print_json(const std::string& result, const apply::Record& record, const Status& error) {
  nlohmann::ordered_json ports = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < record.ports.size(); ++i) {
    const apply::PortChange& port = record.ports[i];
    ports.push_back({{"device", port.device},
                     {"namespace", port.ns},
                     {"port", port.port},
                     {"changes", port.changes()},
                     {"first", i < record.canary},
                     {"commands", apply::commands_of(port)}});
  }
  nlohmann::ordered_json whole = {{"result", result}, {"ports", ports}, {"error", nullptr}};
  if (!error.ok()) whole["error"] = error.to_string();
  fmt::print("{}\n", whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_plan(const apply::Record& record) {
  for (std::size_t i = 0; i < record.ports.size(); ++i) {
    const apply::PortChange& port = record.ports[i];
    if (!port.changes()) continue;
    fmt::print("{}{}:\n", port.label(), i < record.canary ? ", of the pair that is first" : "");
    for (const std::string& command : apply::commands_of(port))
      fmt::print("  tc {}{}\n", port.ns.empty() ? "" : "-n " + port.ns + " ", command);
  }
  fmt::print("{} of {} ports would change; nothing does without --apply\n", changes_of(record), record.ports.size());
}

// One line of the outcome, or one object.
int report(const ApplyArguments& args, const std::string& result, const std::string& line, int exit_status) {
  if (args.json)
    print_json(result, {}, {});
  else
    fmt::print("{}\n", line);
  return exit_status;
}

// --- the four things to do

int look(const ApplyArguments& args, const Journal& journal, const apply::Record& record) {
  const bool changes = changes_of(record) != 0;
  if (args.json)
    print_json(changes ? "plan" : "unchanged", record, {});
  else
    print_plan(record);
  if (!args.json && journal.phase() != Phase::kNone)
    fmt::print("an apply is not over: `tensorlane-switch apply --confirm` keeps it, --revert takes it back\n");
  return changes ? 1 : 0;
}

Status busy(const Journal& journal) {
  const bool waits = journal.phase() == Phase::kWaiting;
  return Status(
      Code::kAlreadyExists, waits ? "an apply waits for its confirmation" : "another apply is under way",
      journal.folder(),
      waits ? "confirm it with --confirm, or take it back with --revert" : "wait for its end, or use --revert");
}

Result<int> change(const ApplyArguments& args, Journal& journal, apply::Namespaces& namespaces) {
  if (!journal.lock()) return busy(journal);
  const auto say = [&](const std::string& line) {
    if (!args.json) fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  if (journal.phase() != Phase::kNone) {
    say("an apply was cut off: bringing back what ran before it");
    TL_RETURN_IF_ERROR(apply::go_back(journal, namespaces));
  }
  TL_ASSIGN_OR_RETURN(apply::Record record, plan(args, journal, namespaces));
  const std::size_t changing = changes_of(record);
  if (changing == 0) {
    if (args.json)
      print_json("unchanged", record, {});
    else
      fmt::print("all {} ports do what {} asks for\n", record.ports.size(), args.fabric);
    return 0;
  }
  record.confirm_by = apply::now() + nanoseconds(static_cast<std::int64_t>(args.minutes * 60e9));
  const Status changed = apply::change_all(journal, namespaces, record, say);
  if (args.json) print_json(changed.ok() ? "waiting" : "reverted", record, changed);
  if (!changed.ok()) {
    if (!args.json) fmt::print(stderr, "{}\n", error_line("tensorlane-switch", changed));
    return 1;
  }
  say(
      fmt::format("{} ports changed and verified; without `tensorlane-switch apply --confirm` they go back {} minutes "
                  "after they began to change",
                  changing, args.minutes));
  return 0;
}

Result<int> confirm(const ApplyArguments& args, Journal& journal, apply::Namespaces& namespaces) {
  if (journal.lock()) {
    if (journal.phase() == Phase::kNone)
      return Status(Code::kNotFound, "no apply waits for a confirmation", journal.folder(), "it may have gone back");
    TL_RETURN_IF_ERROR(apply::go_back(journal, namespaces));
    return report(args, "reverted", "the apply had been cut off: what ran before it runs again", 1);
  }
  const Status under_way(Code::kNotFound, "no apply waits for a confirmation", journal.folder(),
                         "one is under way: wait until it has changed all ports, or gone back");
  if (journal.phase() != Phase::kWaiting) return under_way;
  // Somebody may have brought back the old queues by hand, with rollback.sh.
  TL_ASSIGN_OR_RETURN(const std::vector<std::string> changed, apply::changed_since(journal, namespaces));
  if (!changed.empty())
    return Status(
        Code::kInvalidArgument,
        fmt::format("{}{}: what was applied does not run there any more, and nothing is confirmed", changed.front(),
                    changed.size() == 1 ? "" : fmt::format(" and {} more ports", changed.size() - 1)),
        journal.folder(), "bring all ports back with --revert, then apply again");
  if (!journal.move(Phase::kWaiting, Phase::kNone)) return under_way;
  for (const Time end = apply::now() + kPatience; !journal.lock() && apply::now() < end;) ::usleep(kRoundMs * 1000);
  return report(args, "confirmed", "confirmed: the new queues stay", 0);
}

Result<int> revert(const ApplyArguments& args, Journal& journal, apply::Namespaces& namespaces) {
  bool asked = false;
  for (const Time end = apply::now() + kPatience; !journal.lock(); ::usleep(kRoundMs * 1000)) {
    asked =
        journal.move(Phase::kChanging, Phase::kReverting) || journal.move(Phase::kWaiting, Phase::kReverting) || asked;
    if (apply::now() >= end) return busy(journal);
  }
  if (journal.phase() == Phase::kNone && !asked && !journal.reopen())
    return Status(Code::kNotFound, "nothing was applied", journal.folder(), "there is nothing to bring back");
  TL_RETURN_IF_ERROR(apply::go_back(journal, namespaces));
  return report(args, "reverted", "what ran before runs again", 0);
}

Result<int> run(const ApplyArguments& args) {
  const bool changes = args.apply || args.confirm || args.revert;
  if (!args.confirm && !args.revert && (args.fabric.empty() || args.at.empty()))
    return Status(Code::kInvalidArgument, "no fabric file or no device", "--fabric, --at",
                  "name the file, and each device with its namespace");
  if (!(args.minutes > 0 && args.minutes <= 24 * 60))
    return Status(Code::kInvalidArgument, fmt::format("{} minutes", args.minutes), "--confirm-within",
                  "expected more than 0 and at most 1440");
  TL_ASSIGN_OR_RETURN(Journal journal,
                      Journal::open(args.state, changes ? Journal::Purpose::kChange : Journal::Purpose::kLook));
  apply::Namespaces namespaces;
  if (args.confirm) return confirm(args, journal, namespaces);
  if (args.revert) return revert(args, journal, namespaces);
  if (args.apply) return change(args, journal, namespaces);
  TL_ASSIGN_OR_RETURN(const apply::Record record, plan(args, journal, namespaces));
  return look(args, journal, record);
}

}  // namespace

void add_apply_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<ApplyArguments>();
  CLI::App* command = app.add_subcommand("apply", "Configure the queues of this machine's ports, or go back by itself");
  command->footer(
      "Example:\n  tensorlane-switch apply --fabric fabric.yaml --at s0=tl-lab-s0 --at h0=tl-lab-h0\n"
      "  tensorlane-switch apply --fabric fabric.yaml --at s0=tl-lab-s0 --at h0=tl-lab-h0 --apply\n"
      "  tensorlane-switch apply --confirm\n"
      "The first shows what would change, with exit status 1 where something would. The second tries the commands in "
      "an "
      "empty\nnetwork namespace, writes down what runs now, changes the ends of one link, reads them back, and goes on "
      "with "
      "the\nothers. Where something fails, a process is killed or the third does not come in time, the old queues come "
      "back.");
  command->add_option("--fabric", args->fabric, "The fabric file");
  command->add_option("--at", args->at,
                      "DEVICE=NAMESPACE, or DEVICE for ports of this network namespace; may be repeated");
  CLI::Option* apply = command->add_flag("--apply", args->apply, "Change the ports");
  command->add_option("--confirm-within", args->minutes, "Minutes after which unconfirmed ports go back")
      ->capture_default_str();
  CLI::Option* confirm = command->add_flag("--confirm", args->confirm, "Keep what was applied");
  CLI::Option* revert =
      command->add_flag("--revert", args->revert, "Bring back what ran before the last apply, confirmed or not");
  confirm->excludes(apply, revert);
  revert->excludes(apply);
  command->add_option("--running", args->running,
                      "The fabric file of queues that run now and were made by other means, as by apply.sh");
  command->add_flag("--no-ecn", args->no_ecn, "Mark no ECN: for kernels without sch_red");
  command->add_option("--state", args->state, "The folder that holds the way back")->capture_default_str();
  command->add_flag("--json", args->json, "Print one JSON object");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::switches
