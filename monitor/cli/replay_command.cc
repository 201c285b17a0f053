// `tensorlane replay`: runs the engine over logs of daemons' engines, and says whether it does the same again.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/json/json.h"
#include "daemon/engine_log/replay.h"
#include "monitor/cli/commands.h"

namespace tensorlane::cli {
namespace {

using engine_log::Replay;

constexpr int kExitDifferent = 1;

struct ReplayArguments {
  std::vector<std::string> files;
  bool json = false;
};

Result<Replay> replay_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Status(Code::kInvalidArgument, fmt::format("cannot read the log: {}", std::strerror(errno)), path,
                  "name a file that a daemon wrote with `record` in its daemon.yaml");
  }
  return engine_log::replay(file, path);
}

double span_seconds(const Replay& replay) {
  return replay.first ? to_seconds(*replay.last - *replay.first) : 0;
}

std::string ending(const Replay& replay) {
  if (replay.parting) return "the rest was not replayed";
  if (replay.cut_off > 0)
    return fmt::format("cut off: {} bytes behind the last checkpoint are no whole block", replay.cut_off);
  return replay.end ? engine_log::end_reason_text(*replay.end) : "the log has no end: its daemon died, or still writes";
}

// JSON has no integers of 64 bits: readers make them doubles.
std::string hex(std::uint64_t digest) {
  return fmt::format("{:016x}", digest);
}

nlohmann::json to_json(const std::string& path, const Replay& replay) {
  const engine_log::LogHeader& header = replay.header;
  nlohmann::json json = {{"file", path},
                         {"job", header.job},
                         {"host", header.host},
                         {"rail", header.config.rail.value},
                         {"hosts", header.config.hosts},
                         {"events", replay.events},
                         {"picks", replay.picks},
                         {"work", replay.work},
                         {"plans", replay.plans},
                         {"seconds", span_seconds(replay)},
                         {"checkpoints", replay.checkpoints},
                         {"digest", hex(replay.digest)},
                         {"equal", replay.equal()},
                         {"complete", replay.end == engine_log::EndReason::kClosed},
                         {"cut_off_bytes", replay.cut_off},
                         {"ending", ending(replay)}};
  if (!replay.parting) return json;
  const engine_log::Parting& parting = *replay.parting;
  json["parting"] = {{"checkpoint", parting.checkpoint}, {"record", parting.record}, {"why", parting.why}};
  if (parting.recorded) json["parting"]["recorded_digest"] = hex(*parting.recorded);
  return json;
}

void print(const std::string& path, const Replay& replay) {
  const engine_log::LogHeader& header = replay.header;
  fmt::print("{}: job '{}', host {}, rail {} of {}\n", path, header.job, header.host, header.config.rail.value,
             header.config.rails);
  fmt::print("  {} events, {} picks, {} blocks of work, {} plans in {:.3f} s; {}\n", replay.events, replay.picks,
             replay.work, replay.plans, span_seconds(replay), ending(replay));
  if (!replay.parting) {
    fmt::print("  digest {} after {} checkpoints: equal\n", hex(replay.digest), replay.checkpoints);
    return;
  }
  const engine_log::Parting& parting = *replay.parting;
  fmt::print("  digest {}{}: different by checkpoint {}, record {}: {}\n", hex(replay.digest),
             parting.recorded ? ", recorded " + hex(*parting.recorded) : "", parting.checkpoint, parting.record,
             parting.why);
}

Result<int> run(const ReplayArguments& args) {
  bool equal = true;
  nlohmann::json logs = nlohmann::json::array();
  for (const std::string& path : args.files) {
    TL_ASSIGN_OR_RETURN(const Replay replay, replay_file(path));
    equal = equal && replay.equal();
    if (args.json) {
      logs.push_back(to_json(path, replay));
    } else {
      print(path, replay);
    }
  }
  if (args.json) {
    const nlohmann::json all = {{"equal", equal}, {"logs", std::move(logs)}};
    fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return equal ? 0 : kExitDifferent;
}

}  // namespace

void add_replay_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<ReplayArguments>();
  CLI::App* command = app.add_subcommand(
      "replay", "Run the engine over the logs of daemons, and compare what it does with what it did");
  command->footer(
      "Example:\n  tensorlane replay /var/lib/tensorlane/logs/*.tllog --json\n"
      "A daemon writes such logs with `record: FOLDER` in its daemon.yaml, one for each job and rail: all that went "
      "into "
      "the\nengine, and its digest on the way. Exit status 1 if the digests of a log differ; then the first checkpoint "
      "that does is\nnamed. A log that was cut off (its daemon died) is replayed as far as it goes.");
  command->add_option("files", args->files, "Logs")->required()->type_name("FILE");
  command->add_flag("--json", args->json, "For machines");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::cli
