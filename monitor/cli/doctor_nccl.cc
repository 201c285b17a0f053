#include "monitor/cli/doctor_nccl.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/files/careful.h"
#include "common/nccl/policy.h"
#include "common/nccl/preflight.h"
#include "monitor/cli/classes.h"
#include "monitor/cli/doctor_process.h"

namespace tensorlane::cli {
namespace {

namespace fs = std::filesystem;
using findings::Severity;

constexpr Bytes kLongestPolicy = mib(4);
constexpr unsigned kHighestTrafficClass = 255, kHighestServiceLevel = 15;
constexpr const char* kLibraryFolders[] = {"/usr/lib/x86_64-linux-gnu",
                                           "/usr/lib/aarch64-linux-gnu",
                                           "/usr/lib64",
                                           "/usr/local/lib",
                                           "/usr/local/lib64",
                                           "/usr/lib"};

class NcclDoctor {
 public:
  explicit NcclDoctor(const NcclDoctorOptions& options) : options_(options) {
    subject_.sources.root = options.root;
    if (options.root.empty() && options.pid != 0) subject_.sources.root = fmt::format("/proc/{}/root", options.pid);
  }

  Result<findings::Report> examine() {
    TL_ASSIGN_OR_RETURN(subject_.sources.environment, process_environment(options_.root, options_.pid));
    subject_.sources.home = home();
    TL_RETURN_IF_ERROR(find_version());
    if (options_.fabric != nullptr) take_fabric(*options_.fabric);
    check_policy();
    if (has_plugin())
      take_overridden();
    else if (options_.fabric != nullptr)
      check_environment();
    for (const nccl::Finding& finding : nccl::preflight(subject_)) add(finding);
    if (subject_.version == 0)
      report_.unchecked.push_back({"", "N8", "no libnccl.so.2 was found: name it with --nccl-library"});
    if (subject_.classes.empty())
      report_.unchecked.push_back({"", "N5 and N6", "without --fabric or a policy no class is known"});
    std::error_code error;
    if (nccl::rdma_devices(subject_.sources.root).empty() &&
        fs::exists(subject_.sources.root + "/sys/class/net", error))
      report_.unchecked.push_back({"", "N4", nccl::no_rdma_device()});
    findings::sort(report_);
    return std::move(report_);
  }

 private:
  void add(const nccl::Finding& finding) {
    const Severity severity = finding.severity == nccl::Severity::kError     ? Severity::kError
                              : finding.severity == nccl::Severity::kWarning ? Severity::kWarning
                                                                             : Severity::kNote;
    report_.findings.push_back({finding.rule, severity, "", finding.place, finding.message, finding.fix});
  }

  // NCCL asks the user database, not HOME.
  std::string home() const {
    uid_t user = geteuid();
    struct stat info {};
    if (options_.pid != 0 && options_.root.empty() && stat(fmt::format("/proc/{}", options_.pid).c_str(), &info) == 0)
      user = info.st_uid;
    const passwd* entry = getpwuid(user);
    return entry == nullptr || entry->pw_dir == nullptr ? "" : entry->pw_dir;
  }

  Status find_version() {
    if (!options_.library.empty()) {
      subject_.version = nccl::version_of(options_.library);
      if (subject_.version != 0) return {};
      return Status(Code::kInvalidArgument, "no version of NCCL is found in it", options_.library,
                    "name a libnccl.so.2");
    }
    for (const std::string& path : candidates()) {
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      subject_.version = nccl::version_of(path);
      if (subject_.version != 0) break;
    }
    return {};
  }

  std::vector<std::string> candidates() const {
    std::vector<std::string> paths;
    const std::string& root = subject_.sources.root;
    if (options_.pid != 0) {
      std::ifstream maps(fs::path(options_.root.empty() ? "/" : options_.root) / "proc" / std::to_string(options_.pid) /
                         "maps");
      for (std::string line; std::getline(maps, line);) {
        const std::size_t slash = line.find('/');
        if (slash != line.npos && fs::path(line.substr(slash)).filename().string().starts_with("libnccl.so"))
          return {root + line.substr(slash)};
      }
    }
    if (const auto found = subject_.sources.environment.find("LD_LIBRARY_PATH");
        found != subject_.sources.environment.end()) {
      for (std::size_t from = 0; from <= found->second.size();) {
        const std::size_t end = std::min(found->second.find(':', from), found->second.size());
        if (end > from && found->second[from] == '/')
          paths.push_back(root + found->second.substr(from, end - from) + "/libnccl.so.2");
        from = end + 1;
      }
    }
    for (const char* folder : kLibraryFolders) paths.push_back(root + folder + "/libnccl.so.2");
    return paths;
  }

  // The file that the process is told to go by: it is there, can be read, and is what the fabric file says now.
  void check_policy() {
    const std::string path = variable(nccl::kPolicyVariable);
    if (path.empty()) return;
    const std::string place = fmt::format("{}: {}", nccl::kPolicyVariable, path);
    if (variable("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0")
      add({"N7", nccl::Severity::kWarning, "TORCH_DEVICE_BACKEND_AUTOLOAD",
           "PyTorch asks no package at its import, so that the policy is not looked at",
           "take it out, or call tensorlane.torch.nccl.enable() in the program"});
    const auto useless = [&](const std::string& why, const std::string& fix) {
      add({"N7", nccl::Severity::kError, place, "groups get no classes: " + why, fix});
    };
    if (!path.starts_with('/'))
      return add({"N7", nccl::Severity::kWarning, place,
                  "it was not looked at: each process looks for it in its own working folder",
                  "give the path from / on"});
    const Result<std::string> text =
        files::read(subject_.sources.root + path, "the policy", files::Care::kConfiguration, kLongestPolicy);
    if (!text.ok()) return useless(text.status().what(), text.status().fix());
    const auto json = shallow_json(text.value());
    if (json.is_object() && !json.contains("hosts")) return check_rendered(json, place, path, useless);
    const auto fabric = fabric::parse(text.value(), path, fabric::Keys::kOptional);
    if (!fabric.ok())
      return useless(fmt::format("{} ({})", fabric.status().what(), fabric.status().where()), fabric.status().fix());
    if (options_.fabric == nullptr) return take_fabric(fabric.value());
    if (const auto rendered = classes_json(fabric.value(), "nccl"); rendered.ok())
      compare(shallow_json(rendered.value()), place, fmt::format("cp {} {}", options_.fabric->path, path));
  }

  bool has_plugin() const {
    if (subject_.version != 0 && subject_.version < nccl::kFirstWithEnvPlugin) return false;
    std::vector<nccl::Finding> reported_elsewhere;
    return nccl::loads_own_plugin(nccl::Settings(subject_.sources, subject_.version, reported_elsewhere),
                                  subject_.sources.root);
  }

  // What the env plugin takes out of its users' hands.
  void take_overridden() {
    const std::string named = variable(nccl::kPolicyVariable);
    const bool is_own = fs::exists(subject_.sources.root + nccl::kPolicyPath) || named.empty();
    const std::string path = is_own ? nccl::kPolicyPath : named;
    Result<nccl::Variables> variables = nccl::read_policy(subject_.sources.root + path);
    if (!variables.ok())
      return add({"N7", nccl::Severity::kWarning, is_own ? path : fmt::format("{}: {}", nccl::kPolicyVariable, path),
                  "the env plugin holds users to nothing: " + variables.status().what(), variables.status().fix()});
    for (auto& [name, value] : *variables) subject_.overridden.emplace(name, std::move(value));
  }

  // What the operator wants of variables, where no plugin sees to it.
  void check_environment() {
    std::vector<nccl::Finding> reported_elsewhere;
    const nccl::Settings settings(subject_.sources, subject_.version, reported_elsewhere);
    for (const auto& [name, value] : options_.fabric->nccl.environment) {
      const nccl::Setting* is = settings.find(name);
      if ((is == nullptr && !value) || (is != nullptr && value && is->value == *value)) continue;
      add({"N7", nccl::Severity::kWarning, name,
           fmt::format("it is {}, and the fabric file says {}", is == nullptr ? "not set" : "'" + is->value + "'",
                       value ? "'" + *value + "'" : "that it is not to be set"),
           value ? fmt::format("{}={}, or let the env plugin see to it", name, *value)
                 : "unset it, or let the env plugin see to it"});
    }
  }

  std::string variable(const std::string& name) const {
    const auto found = subject_.sources.environment.find(name);
    return found == subject_.sources.environment.end() ? "" : found->second;
  }

  // What `tensorlane classes` printed, or what is meant to be that.
  template <typename Useless>
  void check_rendered(const nlohmann::ordered_json& policy, const std::string& place, const std::string& path,
                      const Useless& useless) {
    const std::string fix = fmt::format("tensorlane classes --for nccl --fabric {} --json --out {}",
                                        options_.fabric == nullptr ? "fabric.yaml" : options_.fabric->path, path);
    if (options_.fabric != nullptr) return compare(policy, place, fix);
    take_classes(policy);
    if (subject_.classes.empty()) useless("the policy has no class", fix);
  }

  void compare(const nlohmann::ordered_json& policy, const std::string& place, const std::string& fix) {
    const auto wanted = classes_json(*options_.fabric, "nccl");
    // Where rules stand in which file says nothing of what they do.
    if (wanted.ok() && meaning(policy) != meaning(shallow_json(wanted.value())))
      add({"N7", nccl::Severity::kWarning, place, "it is not what the fabric file says now", fix});
  }

  // Without what is deeper than any policy is: whoever compares or writes values does so by recursion. Discarded, where
  // it is no JSON.
  static nlohmann::ordered_json shallow_json(const std::string& text) {
    constexpr int kDeepest = 16;
    return nlohmann::ordered_json::parse(
        text,
        [](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) { return depth < kDeepest; },
        false);
  }

  static nlohmann::json meaning(nlohmann::ordered_json policy) {
    for (const char* key : {"fabric", "notes"}) policy.erase(key);
    for (const char* key : {"rules", "not_enforceable"}) {
      if (!policy.contains(key) || !policy[key].is_array()) continue;
      for (auto& rule : policy[key]) {
        if (rule.is_object()) rule.erase("where");
      }
    }
    return nlohmann::json::parse(policy.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  void take_fabric(const fabric::Fabric& fabric) {
    subject_.classes = nccl_classes(fabric);
    for (const auto& [name, value] : nccl_variables(fabric)) take_level(name, value.value_or(""));
  }

  void take_level(const std::string& name, const std::string& value) {
    unsigned level = 0;
    const char* end = value.data() + value.size();
    if (name == "NCCL_IB_SL" && std::from_chars(value.data(), end, level) == std::from_chars_result{end, std::errc()} &&
        level <= kHighestServiceLevel)
      subject_.service_level = level;
  }

  void take_classes(const nlohmann::ordered_json& policy) {
    const auto number = [](const nlohmann::ordered_json& cls, const char* key, std::uint64_t highest) {
      const auto found = cls.find(key);
      const bool fits = found != cls.end() && found->is_number_unsigned() && found->get<std::uint64_t>() <= highest;
      return fits ? std::optional(found->get<unsigned>()) : std::nullopt;
    };
    const auto add_class = [&](const nlohmann::ordered_json& cls) {
      if (!cls.is_object() || !cls.contains("name") || !cls["name"].is_string()) return;
      const auto mark = number(cls, "traffic_class", kHighestTrafficClass);
      const auto level = number(cls, "service_level", kHighestServiceLevel);
      if (mark && level) subject_.classes.push_back({cls["name"].get<std::string>(), *mark, *level});
    };
    if (policy.contains("classes") && policy["classes"].is_array()) {
      for (const auto& cls : policy["classes"]) add_class(cls);
    }
    if (policy.contains("control")) add_class(policy["control"]);
    if (policy.contains("process") && policy["process"].is_object()) {
      for (const auto& [name, value] : policy["process"].items())
        take_level(name, value.is_string() ? value.get<std::string>() : "");
    }
  }

  const NcclDoctorOptions& options_;
  nccl::Subject subject_;
  findings::Report report_;
};

}  // namespace

Result<findings::Report> examine_nccl(const NcclDoctorOptions& options) {
  return NcclDoctor(options).examine();
}

}  // namespace tensorlane::cli
