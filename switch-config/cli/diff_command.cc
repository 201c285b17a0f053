// `tensorlane-switch diff`: what a running configuration does otherwise than the fabric file asks for.
#include <filesystem>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/fabric/fabric.h"
#include "switch-config/cli/commands.h"
#include "switch-config/diff/diff.h"
#include "switch-config/lint/sonic.h"
#include "switch-config/policy/policy.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "config_db.json";

struct Arguments {
  std::string fabric, running;
  bool json = false;
};

// Running configurations by the device's name: PATH/DEVICE/config_db.json, or the one that PATH is.
Result<std::map<std::string, lint::Device>> read_running(const std::string& path, findings::Report& report) {
  std::map<std::string, std::string> files;  // by the name that a device has where its file says none
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (fs::is_regular_file(entry.path() / kFile, error))
        files[entry.path().filename()] = (entry.path() / kFile).string();
    }
    if (files.empty())
      return Status(Code::kInvalidArgument, "no running configuration in this folder", path,
                    fmt::format("expected DEVICE/{} or the name of such a file", kFile));
  } else {
    files[fs::absolute(path).parent_path().filename()] = path;
  }
  std::map<std::string, lint::Device> devices;
  for (const auto& [name, file] : files) {
    TL_ASSIGN_OR_RETURN(const std::string text, lint::read_configuration(file));
    TL_ASSIGN_OR_RETURN(lint::Device device, lint::parse_sonic(text, file, name, report));
    const std::string own = device.name;
    if (!devices.emplace(own, std::move(device)).second)
      return Status(Code::kInvalidArgument, fmt::format("two configurations of device '{}'", own), file, "give one");
  }
  return devices;
}

// What the fabric file asks of a device, in the buffer model that it runs, as our rendering says it: read by the parser
// that reads the running one.
Result<lint::Device> read_wanted(const DeviceQos& device, const lint::Device& running) {
  BufferModel model = BufferModel::kByPlatform;
  if (running.computes_headroom) model = *running.computes_headroom ? BufferModel::kDynamic : BufferModel::kTraditional;
  TL_ASSIGN_OR_RETURN(const std::vector<RenderedFile> files, render_sonic(device, model));
  findings::Report ignored;
  return lint::parse_sonic(files.front().text, device.name, device.name, ignored);
}

std::string ports_text(const std::vector<std::string>& ports) {
  if (ports.empty()) return "";
  return ports.size() == 1 ? " " + ports.front()
                           : fmt::format(" {} and {} more ports", ports.front(), ports.size() - 1);
}

void print(const std::vector<diff::Change>& all, const findings::Report& report, bool json) {
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array(), unparsed = list;
    for (const diff::Change& change : all)
      list.push_back({{"device", change.device},
                      {"ports", change.ports},
                      {"class", change.traffic_class},
                      {"what", change.what},
                      {"running", change.running},
                      {"wanted", change.wanted},
                      {"impact", change.impact}});
    for (const findings::Unparsed& line : report.unparsed)
      unparsed.push_back({{"device", line.device}, {"place", line.place}, {"text", line.text}});
    const nlohmann::ordered_json whole = {{"changes", list}, {"unparsed", unparsed}};
    fmt::print("{}\n", whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  for (const diff::Change& change : all)
    fmt::print("{}{}: {}{}: {} -> {}: {}\n", change.device, ports_text(change.ports), change.what,
               change.traffic_class.empty() ? "" : fmt::format(" ('{}')", change.traffic_class), change.running,
               change.wanted, change.impact);
  fmt::print("{} differences, {} lines not understood\n", all.size(), report.unparsed.size());
}

Result<int> run(const Arguments& args) {
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  TL_ASSIGN_OR_RETURN(const std::vector<DeviceQos> devices,
                      devices_of(fabric, {.hosts = false, .nos = fabric::Nos::kSonic}));
  findings::Report report;
  const bool whole = fs::is_directory(args.running);
  using Running = std::map<std::string, lint::Device>;
  TL_ASSIGN_OR_RETURN(Running running, read_running(args.running, report));
  std::vector<diff::Change> all;
  for (const DeviceQos& device : devices) {
    const auto found = running.find(device.name);
    if (found == running.end()) {
      if (whole)
        all.push_back({device.name, {}, "", "configuration", "none", "as rendered", "nothing is known of the device"});
      continue;
    }
    TL_ASSIGN_OR_RETURN(const lint::Device wanted, read_wanted(device, found->second));
    diff::ClassNames names;
    for (std::size_t q = 0; q < names.size(); ++q) names[q] = device.queues[q].name;
    const std::vector<diff::Change> own = diff::changes(found->second, wanted, names);
    all.insert(all.end(), own.begin(), own.end());
    running.erase(found);
  }
  if (!running.empty())
    return Status(Code::kInvalidArgument, fmt::format("the fabric has no SONiC switch '{}'", running.begin()->first),
                  args.fabric, "correct its name, or leave its configuration out");
  print(all, report, args.json);
  return all.empty() && report.unparsed.empty() ? 0 : 1;
}

}  // namespace

void add_diff_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("diff", "What running configurations do otherwise than the fabric file asks for");
  command->footer(
      "Example:\n  tensorlane-switch diff --fabric fabric.yaml --running configs\n"
      "Compares what a config_db.json of SONiC does with each class, not its text: one line for each difference, with "
      "what\nchanging it does to traffic. Exit status 1 with differences.");
  command->add_option("--fabric", args->fabric, "The fabric file")->required();
  command->add_option("--running", args->running, "A config_db.json, or a folder with DEVICE/config_db.json")
      ->required();
  command->add_flag("--json", args->json, "Print one JSON object");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::switches
