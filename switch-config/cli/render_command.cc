// `tensorlane-switch render`: configuration files of all devices.
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "switch-config/cli/commands.h"
#include "switch-config/policy/policy.h"
#include "switch-config/render/release.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {
namespace {

struct RenderArguments {
  std::string fabric, target, out, buffer_model = "platform";
  bool hosts = false, json = false;
};

constexpr std::string_view kHostTarget = "host";
constexpr std::array<std::string_view, 3> kBufferModels{"platform", "dynamic", "traditional"};

template <std::size_t N>
Result<std::size_t> one_of(const std::array<std::string_view, N>& words, const std::string& word, const char* option) {
  std::string known;
  for (std::size_t i = 0; i < N; ++i) {
    if (words[i] == word) return i;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", words[i]);
  }
  return Status(Code::kInvalidArgument, fmt::format("'{}' is not known", word), option, "expected one of " + known);
}

// Hosts' scripts, beside those of switches or alone.
Status add_hosts(const RenderArguments& args, const fabric::Fabric& fabric, std::vector<DeviceQos>& devices,
                 std::vector<RenderedDevice>& rendered) {
  if (args.target != kHostTarget && !args.hosts) return Status::ok_status();
  TL_ASSIGN_OR_RETURN(const std::vector<DeviceQos> hosts,
                      devices_of(fabric, {.hosts = true, .nos = {}, .software = args.target == "linux"}));
  for (const DeviceQos& host : hosts) {
    TL_ASSIGN_OR_RETURN(std::vector<RenderedFile> files, render_host(host));
    rendered.push_back({host.name, std::move(files)});
  }
  devices.insert(devices.end(), hosts.begin(), hosts.end());
  return Status::ok_status();
}

// Equal ones once: not every format that is written has comments.
void print_warnings(const std::vector<DeviceQos>& devices) {
  std::map<std::string, std::vector<std::string>> of;
  for (const DeviceQos& device : devices)
    for (const std::string& warning : device.warnings) of[warning].push_back(device.name);
  for (const auto& [warning, names] : of)
    fmt::print(stderr, "tensorlane-switch: warning: {}: {}\n",
               names.size() == 1 ? names.front() : fmt::format("{} and {} more", names.front(), names.size() - 1),
               warning);
}

Result<int> run(const RenderArguments& args) {
  std::array<std::string_view, fabric::kNosNames.size() + 1> targets;
  std::copy(fabric::kNosNames.begin(), fabric::kNosNames.end(), targets.begin());
  targets.back() = kHostTarget;
  TL_ASSIGN_OR_RETURN(const std::size_t chosen, one_of(targets, args.target, "--target"));
  std::optional<fabric::Nos> target;  // unset: only hosts
  if (chosen < fabric::kNosNames.size()) target = static_cast<fabric::Nos>(chosen);
  TL_ASSIGN_OR_RETURN(const std::size_t model, one_of(kBufferModels, args.buffer_model, "--buffer-model"));
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  // A switch of any kind can be played by Linux, in the lab, and several kinds take OpenConfig.
  Selection selection;
  selection.software = args.target == "linux";
  if (target && !selection.software && *target != fabric::Nos::kOpenConfig) selection.nos = target;
  std::vector<DeviceQos> devices;
  if (target) {
    TL_ASSIGN_OR_RETURN(devices, devices_of(fabric, selection));
  }
  std::vector<RenderedDevice> rendered;
  for (DeviceQos& device : devices) {
    warn_of_release(device, *target);
    RenderedDevice& files = rendered.emplace_back(RenderedDevice{device.name, {}});
    TL_ASSIGN_OR_RETURN(files.files, render(device, *target, static_cast<BufferModel>(model)));
  }
  TL_RETURN_IF_ERROR(add_hosts(args, fabric, devices, rendered));
  TL_RETURN_IF_ERROR(write_folder(args.out, rendered));
  nlohmann::ordered_json report = {{"out", args.out}, {"target", args.target}, {"devices", nlohmann::json::array()}};
  std::size_t ports = 0;
  for (const DeviceQos& device : devices) {
    report["devices"].push_back({{"name", device.name},
                                 {"ports", device.ports.size()},
                                 {"notes", device.notes},
                                 {"warnings", device.warnings}});
    ports += device.ports.size();
  }
  if (args.json) {
    fmt::print("{}\n", report.dump());
    return 0;
  }
  print_warnings(devices);
  fmt::print("{}: {} devices, {} ports\n", args.out, devices.size(), ports);
  return 0;
}

}  // namespace

void add_render_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<RenderArguments>();
  CLI::App* command = app.add_subcommand("render", "Configuration files of all switches and hosts of a fabric");
  command->footer(
      "Example:\n  tensorlane-switch example clos --spines 2 --leaves 4 --hosts 32 --nos sonic > fabric.yaml\n"
      "  tensorlane-switch render --fabric fabric.yaml --target sonic --out configs\n"
      "writes configs/DEVICE/config_db.json for every switch with that 'nos' or with none, or nothing at all.\n"
      "Other targets have other files (eos: config.txt): switch-config/README.md of the installed documents lists\n"
      "them, and deploy/ansible there brings them to the devices.\n"
      "--target host writes apply.sh, verify.sh and rollback.sh for every host.");
  command->add_option("--fabric", args->fabric, "The fabric file")->required();
  command
      ->add_option("--target", args->target,
                   "sonic, cumulus, eos, nxos, junos, onyx, openconfig, linux for queues in software, or host")
      ->required();
  command->add_option("--out", args->out, "A folder: new, empty, or written by this command before")->required();
  command
      ->add_option("--buffer-model", args->buffer_model,
                   "Of sonic: dynamic, traditional, or platform: dynamic on NVIDIA's ASICs")
      ->capture_default_str();
  command->add_flag("--hosts", args->hosts, "Write the scripts of hosts, too");
  command->add_flag("--json", args->json, "Print what was written as one JSON object");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::switches
