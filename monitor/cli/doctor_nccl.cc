#include "monitor/cli/doctor_nccl.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/files/careful.h"
#include "common/files/place.h"
#include "common/json/json.h"
#include "common/nccl/policy.h"
#include "common/nccl/preflight.h"
#include "monitor/cli/classes.h"
#include "monitor/cli/doctor_process.h"

namespace tensorlane::cli {
namespace {

namespace fs = std::filesystem;
using findings::Severity;

constexpr Bytes kLongestMaps = mib(64);
constexpr unsigned kHighestTrafficClass = 255, kHighestServiceLevel = 15;

class NcclDoctor {
 public:
  explicit NcclDoctor(const NcclDoctorOptions& options) : options_(options) {
    subject_.sources.root = options.root;
    if (options.root.empty() && options.pid != 0) subject_.sources.root = fmt::format("/proc/{}/root", options.pid);
  }

  Result<findings::Report> examine() {
    if (!files::is_folder({"", root().empty() ? "/" : root()}))
      return Status(Code::kInvalidArgument, "there is no folder that could stand for /", root(),
                    "give the root of a host, or of a copy of one");
    TL_ASSIGN_OR_RETURN(ProcessEnvironment environment, process_environment(options_.root, options_.pid));
    subject_.sources.environment = std::move(environment.variables);
    if (!environment.cut.empty()) report_.unchecked.push_back({"", "N1 to N7", environment.cut});
    subject_.sources.home = home();
    TL_RETURN_IF_ERROR(find_version());
    if (options_.fabric != nullptr) take_fabric(*options_.fabric);
    check_policy();
    if (const nccl::Settings found = settings(); nccl::loads_own_plugin(found, subject_))
      take_overridden();
    else if (options_.fabric != nullptr)
      check_environment(found);
    for (const nccl::Finding& finding : nccl::preflight(subject_)) add(finding);
    if (subject_.version == 0)
      report_.unchecked.push_back(
          {"", "N8",
           budget_.is_spent() ? "no version of NCCL is found in what was read, and the rest was not looked at: name "
                                "libnccl.so.2 with --nccl-library"
                              : "no libnccl.so.2 was found: name it with --nccl-library"});
    if (subject_.classes.empty())
      report_.unchecked.push_back({"", "N5 and N6", "without --fabric or a policy no class is known"});
    if (nccl::rdma_devices(root()).empty() && files::exists({root(), "/sys/class/net"}))
      report_.unchecked.push_back({"", "N4", nccl::no_rdma_device()});
    findings::sort(report_);
    return std::move(report_);
  }

 private:
  // What the process has for /; empty: this process's own.
  const std::string& root() const { return subject_.sources.root; }

  void add(const nccl::Finding& finding) {
    const Severity severity = finding.severity == nccl::Severity::kError     ? Severity::kError
                              : finding.severity == nccl::Severity::kWarning ? Severity::kWarning
                                                                             : Severity::kNote;
    report_.findings.push_back({finding.rule, severity, "", finding.place, finding.message, finding.fix});
  }

  // As the user database says.
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
      subject_.version = nccl::version_of({"", options_.library}, budget_);
      if (subject_.version != 0) return {};
      return Status(Code::kInvalidArgument, "no version of NCCL is found in it", options_.library,
                    "name a libnccl.so.2");
    }
    for (const std::string& path : candidates()) {
      subject_.version = nccl::version_of({root(), path}, budget_);
      if (subject_.version != 0) break;
    }
    return {};
  }

  // From / on, as the process sees it.
  std::vector<std::string> candidates() const {
    if (options_.pid != 0) {
      const files::Place place{options_.root, fmt::format("/proc/{}/maps", options_.pid)};
      std::istringstream maps(files::read_beginning(place, kLongestMaps).value_or(""));
      for (std::string line; std::getline(maps, line);) {
        const std::size_t slash = line.find('/');
        if (slash != line.npos && fs::path(line.substr(slash)).filename().string().starts_with("libnccl.so"))
          return {line.substr(slash)};
      }
    }
    std::vector<std::string> paths = nccl::loader_folders(subject_.sources.environment);
    for (std::string& path : paths) path += "/libnccl.so.2";
    return paths;
  }

  // The file that the process is told to go by. It may be any, also one that only we may read: messages do not quote
  // it. It is there, can be read, and is what the fabric file says now.
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
        files::read({root(), path}, "the policy", files::Care::kConfiguration, nccl::kMostBytes);
    if (!text.ok()) return useless(text.status().what(), text.status().fix());
    const auto json = shallow_json(text.value());
    if (json.is_object() && !json.contains("hosts")) return check_rendered(json, place, path, useless);
    const auto fabric = fabric::parse(text.value(), path, fabric::Keys::kOptional);
    if (!fabric.ok())
      return useless(fmt::format("it is neither a policy nor a fabric file ({})", line_of(fabric.status(), path)),
                     "as the user of the process: tensorlane classes --for nccl --fabric " + for_shell(path));
    if (options_.fabric == nullptr) return take_fabric(fabric.value());
    if (const auto rendered = classes_json(fabric.value(), "nccl"); rendered.ok())
      compare(shallow_json(rendered.value()), place,
              fmt::format("cp {} {}", for_shell(options_.fabric->path), for_shell(path)));
  }

  // "PATH:LINE", of an error in a file: a place of which nothing else is taken.
  static std::string line_of(const Status& error, const std::string& path) {
    const std::string& where = error.where();
    const bool has_line = where.starts_with(path + ":") && where.size() > path.size() + 1 &&
                          where.find_first_not_of("0123456789", path.size() + 1) == where.npos;
    return has_line ? where : path;
  }

  // As NCCL finds them. What is wrong with their files is told by the preflight.
  nccl::Settings settings() const {
    std::vector<nccl::Finding> told_elsewhere;
    return {subject_.sources, subject_.version, told_elsewhere};
  }

  // What the env plugin takes out of its users' hands.
  void take_overridden() {
    const std::string named = variable(nccl::kPolicyVariable);
    const bool is_own = files::exists({root(), nccl::kPolicyPath}) || named.empty();
    const std::string path = is_own ? nccl::kPolicyPath : named;
    Result<nccl::Variables> variables = nccl::read_policy(path, root());
    if (!variables.ok())
      return add({"N7", nccl::Severity::kWarning, is_own ? path : fmt::format("{}: {}", nccl::kPolicyVariable, path),
                  "the env plugin holds users to nothing: " + variables.status().what(), variables.status().fix()});
    for (auto& [name, value] : *variables) subject_.overridden.emplace(name, std::move(value));
  }

  // What the operator wants of variables, where no plugin sees to it.
  void check_environment(const nccl::Settings& settings) {
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
  void check_rendered(const nlohmann::json& policy, const std::string& place, const std::string& path,
                      const Useless& useless) {
    const std::string fix =
        fmt::format("tensorlane classes --for nccl --fabric {} --json --out {}",
                    options_.fabric == nullptr ? "fabric.yaml" : for_shell(options_.fabric->path), for_shell(path));
    if (options_.fabric != nullptr) return compare(policy, place, fix);
    take_classes(policy);
    if (subject_.classes.empty()) useless("the policy has no class", fix);
  }

  void compare(const nlohmann::json& policy, const std::string& place, const std::string& fix) {
    const auto wanted = classes_json(*options_.fabric, "nccl");
    // Where rules stand in which file says nothing of what they do.
    if (wanted.ok() && meaning(policy) != meaning(shallow_json(wanted.value())))
      add({"N7", nccl::Severity::kWarning, place, "it is not what the fabric file says now", fix});
  }

  // Without what is deeper than any policy is: whoever compares or writes values does so by recursion. Discarded, where
  // it is no JSON.
  static nlohmann::json shallow_json(const std::string& text) {
    return nlohmann::json::parse(
        text, [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) { return depth < nccl::kDeepest; }, false);
  }

  static nlohmann::json meaning(nlohmann::json policy) {
    for (const char* key : {"fabric", "notes"}) policy.erase(key);
    for (const char* key : {"rules", "not_enforceable"}) {
      if (!policy.contains(key) || !policy[key].is_array()) continue;
      for (auto& rule : policy[key]) {
        if (rule.is_object()) rule.erase("where");
      }
    }
    return policy;
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

  void take_classes(const nlohmann::json& policy) {
    const auto number = [](const nlohmann::json& cls, const char* key, std::uint64_t highest) {
      const auto found = cls.find(key);
      const bool fits = found != cls.end() && found->is_number_unsigned() && found->get<std::uint64_t>() <= highest;
      return fits ? std::optional(found->get<unsigned>()) : std::nullopt;
    };
    const auto add_class = [&](const nlohmann::json& cls) {
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
  nccl::Budget budget_;
  nccl::Subject subject_;
  findings::Report report_;
};

}  // namespace

Result<findings::Report> examine_nccl(const NcclDoctorOptions& options) {
  return NcclDoctor(options).examine();
}

}  // namespace tensorlane::cli
