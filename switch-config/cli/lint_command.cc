// `tensorlane-switch lint`: what is wrong with configurations, whoever wrote them.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/fabric/fabric.h"
#include "switch-config/cli/commands.h"
#include "switch-config/cli/configurations.h"
#include "switch-config/deadlock/check.h"
#include "switch-config/deadlock/fabric_network.h"
#include "switch-config/findings/findings.h"
#include "switch-config/intent/intent.h"
#include "switch-config/lint/rules.h"
#include "switch-config/lint/sonic.h"
#include "switch-config/policy/policy.h"

namespace tensorlane::switches {
namespace {

namespace fs = std::filesystem;

struct LintArguments {
  std::vector<std::string> paths;
  std::string sarif, kind, fabric, device;
  bool json = false;
};

// What `render` calls the files that hold a whole configuration, and any JSON.
bool is_configuration(const fs::path& path) {
  const std::string name = path.filename().string();
  return path.extension() == ".json" ? name != "openconfig.json"
                                     : name == "config.txt" || name == "junos.set" || name == "nvue.sh";
}

// The files of a path: itself, or in a folder of folders those of is_configuration().
Status collect(const std::string& path, std::vector<std::string>& files) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    files.push_back(path);
    return {};
  }
  std::vector<std::string> found;
  for (const auto& entry :
       fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied, error)) {
    if (is_configuration(entry.path()) && entry.is_regular_file(error)) found.push_back(entry.path().string());
    if (found.size() > kMaxFiles)
      return Status(Code::kInvalidArgument, fmt::format("more than {} files", kMaxFiles), path, "name fewer");
  }
  if (error) return Status(Code::kInvalidArgument, error.message(), path, "name a folder that you may read");
  if (found.empty())
    return Status(Code::kInvalidArgument, "no file that lint understands", path,
                  "name a config_db.json or a folder with some");
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
  return {};
}

// A device that does not say its name has that of its folder, for what `render` writes, or of its file.
std::string name_of(const fs::path& path) {
  const std::string folder = fs::absolute(path).parent_path().filename().string();
  return is_configuration(path) && (path.extension() != ".json" || path.filename() == "config_db.json") &&
                 !folder.empty()
             ? folder
             : path.stem().string();
}

Status write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc | std::ios::binary);
  file << text;
  file.close();
  if (!file)
    return Status(Code::kUnavailable, "the findings cannot be written", path, "name a file that you may write");
  return {};
}

// What a fabric file says itself: rule L11 on the routes that it describes.
Status lint_fabric(const std::string& path, findings::Report& report) {
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(path, fabric::Keys::kOptional));
  TL_ASSIGN_OR_RETURN(const deadlock::Network network, deadlock::network_of(fabric, std::nullopt));
  findings::Report found = deadlock::findings_of(deadlock::check(network, false), fabric.classes);
  report.findings.insert(report.findings.end(), found.findings.begin(), found.findings.end());
  return {};
}

// YAML of a switch is in a language that lint reads.
Result<bool> is_fabric(const std::string& path) {
  const fs::path extension = fs::path(path).extension();
  if (extension != ".yaml" && extension != ".yml") return false;
  TL_ASSIGN_OR_RETURN(const std::string text, lint::read_configuration(path));
  return !lint::recognise(text);
}

// What the fabric file asks and devices do not do: those that it names, or all as --device.
Status lint_against(const LintArguments& args, const std::vector<lint::Device>& devices, findings::Report& report) {
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  TL_ASSIGN_OR_RETURN(const std::vector<DeviceQos> wanted, devices_of(fabric, Selection{}));
  for (const lint::Device& device : devices) {
    if (device.is_host) continue;
    const std::string& name = args.device.empty() ? device.name : args.device;
    const auto found = std::find_if(wanted.begin(), wanted.end(), [&](const DeviceQos& d) { return d.name == name; });
    if (found == wanted.end())
      return Status(Code::kInvalidArgument, fmt::format("no switch '{}'", name), args.fabric,
                    "say with --device which one it is");
    check_intent(device, *found, report);
  }
  return {};
}

Result<int> run(const LintArguments& args) {
  std::vector<std::string> files;
  for (const std::string& path : args.paths) TL_RETURN_IF_ERROR(collect(path, files));
  findings::Report report;
  std::vector<lint::Device> devices;
  for (const std::string& path : files) {
    TL_ASSIGN_OR_RETURN(const bool fabric, is_fabric(path));
    if (fabric && args.kind.empty()) {
      TL_RETURN_IF_ERROR(lint_fabric(path, report));
      continue;
    }
    TL_ASSIGN_OR_RETURN(const Configuration file, load_configuration(path, args.kind));
    TL_ASSIGN_OR_RETURN(lint::Device device,
                        lint::parse_configuration(file.language, file.text, path, name_of(path), report));
    lint::check_device(device, report);
    devices.push_back(std::move(device));
  }
  lint::check_fabric(devices, report);
  if (!args.fabric.empty()) TL_RETURN_IF_ERROR(lint_against(args, devices, report));
  findings::sort(report);
  if (!args.sarif.empty()) TL_RETURN_IF_ERROR(write(args.sarif, findings::to_sarif(report)));
  fmt::print("{}", args.json ? findings::to_json(report) : findings::to_text(report));
  return findings::exit_status(report);
}

}  // namespace

void add_lint_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<LintArguments>();
  CLI::App* command = app.add_subcommand("lint", "What is wrong with configurations, whoever wrote them");
  command->footer(
      "Example:\n  tensorlane-switch lint leaf1/config_db.json leaf2/config_db.json\n"
      "Reads config_db.json of SONiC, configurations of EOS, NX-OS, Junos (set commands or braces) and Cumulus (NVUE "
      "commands or\nqos_features.conf), what mlnx_qos or dcb printed on a host, and of fabric.yaml whether its routes "
      "can deadlock.\nExit status 1 with an error or a warning; a note informs.");
  command->add_option("paths", args->paths, "Files, or folders with configurations")->required()->type_name("PATH");
  CLI::Option* fabric =
      command->add_option("--fabric", args->fabric, "Look for what this fabric file asks and switches do not do, too")
          ->type_name("FILE");
  command->add_option("--device", args->device, "The switch of the file that this is; else each says its name")
      ->type_name("NAME")
      ->needs(fabric);
  command->add_option("--sarif", args->sarif, "Write the findings to this file, too, as SARIF")->type_name("FILE");
  command
      ->add_option("--kind", args->kind,
                   "What the files are: sonic, eos, nxos, junos, cumulus, mlnx_qos or dcb; else each says itself")
      ->type_name("KIND");
  command->add_flag("--json", args->json, "Print one JSON object");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::switches
