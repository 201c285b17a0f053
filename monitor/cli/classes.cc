#include "monitor/cli/classes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "common/base/text.h"
#include "common/json/json.h"

namespace tensorlane::cli {
namespace {

using fabric::Fabric;
using fabric::GroupRule;
using fabric::TrafficClass;
using Json = nlohmann::ordered_json;

constexpr unsigned kEct0 = 2;

// A library that has variables of its own for its traffic class and service level; null where it has none.
struct Stack {
  const char* name;
  const char* traffic_class;
  const char* service_level;
  std::vector<const char*> notes;
};

const std::vector<Stack>& stacks() {
  static const std::vector<Stack> kStacks{
      {"nccl",
       "NCCL_IB_TC",
       "NCCL_IB_SL",
       {"The TOS byte is also what NCCL calls traffic class.",
        "The settings of a class put all communicators of a process into it.",
        "Several classes in one process, NCCL 2.27 and later: ncclConfig_t.trafficClass of a communicator, in PyTorch "
        "ProcessGroupNCCL.Options().config.traffic_class, which tensorlane.torch.nccl.enable() sets by the rules; "
        "NCCL_IB_TC must not be set then.",
        "Over TCP (NET/Socket) NCCL sets no class."}},
      {"ucx",
       "UCX_IB_TRAFFIC_CLASS",
       "UCX_IB_SL",
       {"One class for all traffic of a process. Unset, UCX sends RoCE v2 with 106 (DSCP 26)."}},
      {"ucc",
       "UCX_IB_TRAFFIC_CLASS",
       "UCX_IB_SL",
       {"UCC has no class of its own: TL/UCP is UCX, with these variables, and TL/NCCL is NCCL: see --for nccl."}},
      {"gloo",
       nullptr,
       nullptr,
       {"Gloo sets no class on its connections and takes none: its packets have what the host gives them.",
        "A class for Gloo's CPU tensors: init_process_group(\"tensorlane\") in place of \"gloo\", by 'urgencies' of "
        "the "
        "fabric file."}},
      {"mooncake", "MC_IB_TC", "MC_IB_SL", {"One class for all traffic of a process. Unset, Mooncake sends with 0."}},
      {"nvshmem",
       "NVSHMEM_IB_TRAFFIC_CLASS",
       "NVSHMEM_IB_SL",
       {"One class for all traffic of a process. Unset, NVSHMEM sends with 0."}},
      {"env", nullptr, nullptr, {"For shell scripts: eval \"$(tensorlane classes --for env --fabric fabric.yaml)\""}},
  };
  return kStacks;
}

const Stack& stack_of(const std::string& name) {
  return *std::ranges::find(stacks(), name, &Stack::name);
}

std::string level_text(const TrafficClass& cls) {
  return std::to_string(cls.service_level);
}

// {variable, value}: what puts a whole process into a class.
std::vector<std::pair<std::string, std::string>> settings(const Stack& stack, const TrafficClass& cls) {
  if (stack.traffic_class == nullptr) return {};
  return {{stack.traffic_class, std::to_string(traffic_class(cls))}, {stack.service_level, level_text(cls)}};
}

std::string shell_name(const std::string& class_name) {
  std::string text = "TENSORLANE_";
  for (const char c : class_name)
    text += std::isalnum(static_cast<unsigned char>(c)) != 0
                ? static_cast<char>(std::toupper(static_cast<unsigned char>(c)))
                : '_';
  return text;
}

std::vector<const TrafficClass*> all_classes(const Fabric& fabric) {
  std::vector<const TrafficClass*> all;
  for (const TrafficClass& cls : fabric.classes.data) all.push_back(&cls);
  all.push_back(&fabric.classes.control);
  return all;
}

Result<std::vector<std::pair<std::string, std::string>>> shell_variables(const Fabric& fabric) {
  std::map<std::string, std::string> owners;
  std::vector<std::pair<std::string, std::string>> variables;
  for (const TrafficClass* cls : all_classes(fabric)) {
    const std::string name = shell_name(cls->name);
    const auto [other, is_new] = owners.emplace(name, cls->name);
    if (!is_new)
      return Status(
          Code::kInvalidArgument,
          fmt::format("classes '{}' and '{}' make the same shell variable {}_TOS", other->second, cls->name, name),
          fabric.path, "rename one of them, or use --json");
    variables.emplace_back(name + "_DSCP", std::to_string(cls->dscp));
    variables.emplace_back(name + "_TOS", std::to_string(traffic_class(*cls)));
    variables.emplace_back(name + "_PCP", std::to_string(cls->pcp));
    variables.emplace_back(name + "_SL", level_text(*cls));
  }
  return variables;
}

// The file's, then the defaults for groups that none of them fits.
std::vector<GroupRule> rules_of(const Fabric& fabric) {
  std::vector<GroupRule> rules = fabric.nccl.groups;
  std::vector<GroupRule> defaults = fabric::default_group_rules(fabric.classes, fabric.nccl.separate_reduce_scatter);
  rules.insert(rules.end(), std::make_move_iterator(defaults.begin()), std::make_move_iterator(defaults.end()));
  return rules;
}

std::string where(const Fabric& fabric, const GroupRule& rule) {
  return rule.line == 0 ? "default" : fmt::format("{}:{}", fabric.path, rule.line);
}

std::string why_not(const GroupRule& rule) {
  return fmt::format("NCCL's hint is one class for a whole communicator: a rule by {} is not enforceable here",
                     rule.operation ? "operation" : "size");
}

Json class_json(const Stack& stack, const TrafficClass& cls) {
  Json json{{"name", cls.name},
            {"rank", cls.rank},
            {"dscp", cls.dscp},
            {"tos", traffic_class(cls)},
            {"traffic_class", traffic_class(cls)},
            {"pcp", cls.pcp},
            {"service_level", cls.service_level},
            {"lossless", cls.lossless},
            {"settings", Json::object()}};
  for (const auto& [name, value] : settings(stack, cls)) json["settings"][name] = value;
  return json;
}

void add_nccl(const Fabric& fabric, Json& json) {
  const TrafficClass& cts = fabric::clear_to_send_class(fabric.classes, fabric.nccl);
  json["clear_to_send"] = {{"class", cts.name}, {"traffic_class", traffic_class(cts)}};
  json["mixed"] = fabric::mixed_class(fabric.classes, fabric.nccl).name;
  json["separate_reduce_scatter"] = fabric.nccl.separate_reduce_scatter;
  json["dropped"] = fabric.nccl.refuse_dropped ? "refuse" : "report";
  json["process"] = Json::object();
  for (const auto& [name, value] : nccl_variables(fabric)) json["process"][name] = value ? Json(*value) : Json();
  json["rules"] = json["not_enforceable"] = Json::array();
  for (const GroupRule& rule : rules_of(fabric)) {
    Json each{{"group", rule.group}, {"class", rule.cls}, {"where", where(fabric, rule)}};
    if (!rule.shared.empty()) each["shared"] = rule.shared;
    if (!rule.is_enforceable()) each["why"] = why_not(rule);
    json[rule.is_enforceable() ? "rules" : "not_enforceable"].push_back(each);
  }
}

std::string nccl_text(const Fabric& fabric) {
  std::string text = "\nIn every process whose communicators have classes of their own:\n";
  for (const auto& [name, value] : nccl_variables(fabric))
    text += value ? fmt::format("  {}={}\n", name, *value) : fmt::format("  unset {}\n", name);
  const TrafficClass& cts = fabric::clear_to_send_class(fabric.classes, fabric.nccl);
  text += fmt::format(
      "Clear-to-send messages (NCCL_IB_FIFO_TC) have class '{}'.\n\nGroups, the first rule that fits:\n", cts.name);
  for (const GroupRule& rule : rules_of(fabric)) {
    const std::string cls =
        rule.cls == fabric::kNone ? "none: NCCL's default, 0"
        : rule.cls == fabric::kMixed
            ? fmt::format("mixed, which is {}", fabric::mixed_class(fabric.classes, fabric.nccl).name)
            : rule.cls;
    text += fmt::format("  {:<36} {:<24} {}{}\n", rule.group, cls, where(fabric, rule),
                        rule.is_enforceable() ? "" : ": " + why_not(rule));
  }
  return text;
}

}  // namespace

const std::vector<std::string>& class_stacks() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const Stack& stack : stacks()) names.emplace_back(stack.name);
    return names;
  }();
  return kNames;
}

unsigned traffic_class(const TrafficClass& cls) {
  return static_cast<unsigned>(cls.dscp) << 2 | kEct0;
}

std::map<std::string, std::optional<std::string>> nccl_variables(const Fabric& fabric) {
  std::map<std::string, std::optional<std::string>> variables = fabric.nccl.environment;
  const auto add = [&](const char* name, std::optional<std::string> value) {
    variables.emplace(name, std::move(value));
  };
  add("NCCL_IB_TC", std::nullopt);
  add("NCCL_IB_SL", level_text(fabric::mixed_class(fabric.classes, fabric.nccl)));
  add("NCCL_IB_FIFO_TC", std::to_string(traffic_class(fabric::clear_to_send_class(fabric.classes, fabric.nccl))));
  // Each would beat what communicators ask for: for what GPUs send by themselves, by another version of RoCE, or by the
  // parent's connections, which a program may ask for, too.
  add("NCCL_GIN_IB_TC", std::nullopt);
  add("NCCL_IB_ROCE_VERSION_NUM", std::nullopt);
  add("NCCL_COMM_SPLIT_SHARE_RESOURCES", "0");
  add("NCCL_COMM_SHRINK_SHARE_RESOURCES", "0");
  return variables;
}

std::vector<nccl::Class> nccl_classes(const Fabric& fabric) {
  std::vector<nccl::Class> classes;
  for (const TrafficClass* cls : all_classes(fabric))
    classes.push_back({cls->name, traffic_class(*cls), cls->service_level});
  return classes;
}

Result<std::string> classes_text(const Fabric& fabric, const std::string& stack_name) {
  const Stack& stack = stack_of(stack_name);
  if (stack_name == "env") {
    TL_ASSIGN_OR_RETURN(const auto variables, shell_variables(fabric));
    std::string text = fmt::format("# Classes of {}. {}\n", printable(fabric.path), stack.notes.front());
    for (const auto& [name, value] : variables) text += fmt::format("export {}={}\n", name, value);
    return text;
  }
  std::string text = fmt::format("{:<16} {:>4} {:>5} {:>3} {:>13}{}\n", "class", "DSCP", "TOS", "PCP", "service level",
                                 stack.traffic_class == nullptr ? "" : "  a process that is all in this class");
  for (const TrafficClass* cls : all_classes(fabric)) {
    std::string line = fmt::format("{:<16} {:>4} {:>5} {:>3} {:>13} ", cls->name, cls->dscp, traffic_class(*cls),
                                   cls->pcp, cls->service_level);
    for (const auto& [name, value] : settings(stack, *cls)) line += fmt::format(" {}={}", name, value);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  if (stack_name == "nccl") text += nccl_text(fabric);
  text += "\n";
  for (const char* note : stack.notes) text += fmt::format("{}\n", note);
  return text;
}

Result<std::string> classes_json(const Fabric& fabric, const std::string& stack_name) {
  const Stack& stack = stack_of(stack_name);
  Json json{{"version", 1}, {"for", stack.name}, {"fabric", fabric.path}, {"classes", Json::array()}};
  for (const TrafficClass& cls : fabric.classes.data) json["classes"].push_back(class_json(stack, cls));
  json["control"] = class_json(stack, fabric.classes.control);
  if (stack_name == "nccl") add_nccl(fabric, json);
  if (stack_name == "env") {
    TL_ASSIGN_OR_RETURN(const auto variables, shell_variables(fabric));
    json["variables"] = Json::object();
    for (const auto& [name, value] : variables) json["variables"][name] = value;
  }
  json["notes"] = stack.notes;
  // A path need not be UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tensorlane::cli
