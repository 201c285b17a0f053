#include "common/fabric/nccl.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <tuple>

#include <fmt/format.h>

#include "common/fabric/sections.h"

namespace tensorlane::fabric {

namespace {

constexpr std::array<std::string_view, 6> kNcclKeys{"groups",  "mixed",      "clear_to_send", "separate_reduce_scatter",
                                                    "dropped", "environment"};
constexpr std::array<std::string_view, 5> kGroupRuleKeys{"group", "class", "operation", "at_least", "at_most"};
constexpr std::array<std::string_view, 2> kDropped{"report", "refuse"};
constexpr std::size_t kMostVariables = 256, kLongestValue = 4096;

enum class Kind { kUrgent, kBulk, kMixed, kSharded };  // kSharded: both, unless reduce-scatters are separated

struct Default {
  const char* group;
  Kind kind;
};

// The first that fits counts.
constexpr Default kDefaults[] = {
    {"fsdp_reduce_scatter", Kind::kBulk},
    {"*checkpoint*", Kind::kBulk},
    {"*ckpt*", Kind::kBulk},
    // Dimensions of a DeviceMesh, by the names of PyTorch's documentation and TorchTitan.
    {"mesh_tp*", Kind::kUrgent},
    {"mesh_etp*", Kind::kUrgent},
    {"mesh_pp*", Kind::kUrgent},
    {"mesh_cp*", Kind::kUrgent},
    {"mesh_sp*", Kind::kUrgent},
    {"mesh_ep*", Kind::kUrgent},
    {"mesh_tensor*", Kind::kUrgent},
    {"mesh_pipe*", Kind::kUrgent},
    {"mesh_context*", Kind::kUrgent},
    {"mesh_sequence*", Kind::kUrgent},  // sequence_parallel is DeepSpeed's
    {"mesh_expert*", Kind::kUrgent},
    {"pp_p2p_*", Kind::kUrgent},  // of torch.distributed.pipelining
    {"mesh_dp_replicate*", Kind::kBulk},
    {"mesh_replicate*", Kind::kBulk},
    {"mesh_ddp*", Kind::kBulk},
    {"mesh_dp*", Kind::kSharded},
    {"mesh_fsdp*", Kind::kSharded},
    {"mesh_efsdp*", Kind::kSharded},  // of experts
    {"mesh_shard*", Kind::kSharded},
    {"mesh_data_parallel*", Kind::kMixed},  // DeepSpeed
    // Megatron-core, parallel_state.py. The groups for data carry gradients, and with its distributed optimizer the
    // parameters, too, unless these have a group of their own (_AG).
    {"*DATA_PARALLEL_GROUP*_AG", Kind::kUrgent},
    {"TENSOR_AND_DATA_PARALLEL_GROUP*", Kind::kUrgent},
    {"HYBRID_DP_CP_GROUP*", Kind::kUrgent},
    {"*DATA_PARALLEL_GROUP*", Kind::kMixed},
    {"*EMBEDDING_GROUP", Kind::kBulk},
    {"*MODEL_PARALLEL_GROUP", Kind::kUrgent},
    {"*CONTEXT_PARALLEL_GROUP*", Kind::kUrgent},
    {"EXPERT_TENSOR*", Kind::kUrgent},
    {"*", Kind::kMixed},
};

Result<std::vector<GroupRule>> read_group_rule(const std::string& path, const YAML::Node& node) {
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, node, "a rule of 'groups'", kGroupRuleKeys));
  GroupRule rule;
  rule.line = map.line();
  TL_ASSIGN_OR_RETURN(rule.group, map.text("group"));
  if (!is_plain(rule.group)) return map.wrong("group", "expected printable characters of ASCII but '\"' and '\\'");
  TL_ASSIGN_OR_RETURN(rule.cls, map.name("class"));
  if (map.has("operation")) {
    TL_ASSIGN_OR_RETURN(const std::size_t operation, map.one_of("operation", operation_names()));
    rule.operation = static_cast<Operation>(operation);
  }
  for (const auto& [key, bytes] : {std::pair("at_least", &rule.at_least), std::pair("at_most", &rule.at_most)}) {
    if (!map.has(key)) continue;
    TL_ASSIGN_OR_RETURN(*bytes, map.bytes(key));
  }
  if (rule.at_least && rule.at_most && *rule.at_most < *rule.at_least)
    return map.wrong("at_most", fmt::format("expected at least 'at_least', {}", format_bytes(*rule.at_least)));
  return std::vector{rule};
}

bool is_variable(std::string_view name) {
  return name.starts_with("NCCL_") && name.size() > 5 && name.size() <= 128 && std::ranges::all_of(name, [](char c) {
           return std::isupper(static_cast<unsigned char>(c)) != 0 ||
                  std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_';
         });
}

Status read_environment(const Mapping& nccl, NcclPolicy& policy) {
  const YAML::Node node = nccl.get("environment");
  if (!node.IsMap() || node.size() > kMostVariables)
    return nccl.wrong("environment",
                      fmt::format("expected a mapping from at most {} variables to values", kMostVariables));
  for (const auto& pair : node) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : std::string();
    const std::string where = place(nccl.path(), pair.first);
    if (!is_variable(name))
      return error(fmt::format("variable '{}' in 'environment'", name), where,
                   "expected a name like NCCL_SOCKET_IFNAME");
    std::optional<std::string> value;
    if (!pair.second.IsNull()) {
      value = pair.second.IsScalar() ? pair.second.Scalar() : std::string();
      if (value->empty() || value->size() > kLongestValue || !is_plain(*value))
        return error(
            fmt::format("the value of {}", name), where,
            "expected printable characters of ASCII but '\"' and '\\', or null for a variable that is not to be set");
    }
    if (name == "NCCL_IB_TC" && value)
      return error("NCCL_IB_TC has a value in 'environment'", where,
                   "it would put all groups into one class; give it null, or leave it out, which is the same");
    if (name == "NCCL_ENV_PLUGIN" || name == "NCCL_CONF_FILE")
      return error(
          fmt::format("{} in 'environment'", name), where,
          "NCCL reads it before it has the plugin that would see to it; set it in /etc/nccl.conf or for all users");
    if (!policy.environment.emplace(name, value).second)
      return error(fmt::format("doubled variable '{}'", name), where, "keep one of them");
  }
  return Status::ok_status();
}

const TrafficClass* find(const ClassTable& classes, std::string_view name) {
  const auto found = std::ranges::find(classes.data, name, &TrafficClass::name);
  return found == classes.data.end() ? nullptr : &*found;
}

// A data class of the file, or `other`.
Status check_class(const Fabric& fabric, const std::string& name, int line, const std::string& subject,
                   std::initializer_list<std::string_view> others = {}) {
  if (name.empty() || std::ranges::find(others, name) != others.end() || find(fabric.classes, name) != nullptr)
    return Status::ok_status();
  std::vector<std::string_view> known;
  for (const TrafficClass& cls : fabric.classes.data) known.push_back(cls.name);
  known.insert(known.end(), others);
  return error(fmt::format("unknown class '{}' {}", name, subject), at_line(fabric, line),
               suggestion(name, known) + "expected one of " + join(known));
}

}  // namespace

std::vector<GroupRule> default_group_rules(const ClassTable& classes, bool separate_reduce_scatter) {
  const std::string &urgent = classes.data.front().name, &bulk = classes.data.back().name;
  const std::string mixed(kMixed);
  std::vector<GroupRule> rules;
  for (const Default& each : kDefaults) {
    GroupRule rule;
    rule.group = each.group;
    rule.cls = each.kind == Kind::kUrgent ? urgent : each.kind == Kind::kBulk ? bulk : mixed;
    if (each.kind == Kind::kSharded && separate_reduce_scatter) {
      rule.cls = urgent;
      rule.shared = mixed;
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

const TrafficClass& mixed_class(const ClassTable& classes, const NcclPolicy& policy) {
  const TrafficClass* found = find(classes, policy.mixed.empty() ? kMixed : std::string_view(policy.mixed));
  return found == nullptr ? classes.data.back() : *found;
}

const TrafficClass& clear_to_send_class(const ClassTable& classes, const NcclPolicy& policy) {
  if (policy.clear_to_send == classes.control.name) return classes.control;
  if (const TrafficClass* named = find(classes, policy.clear_to_send); named != nullptr) return *named;
  if (classes.control.lossless) return classes.control;
  const auto lossless = std::ranges::find(classes.data, true, &TrafficClass::lossless);
  return lossless == classes.data.end() ? classes.data.front() : *lossless;
}

Result<NcclPolicy> read_nccl(const Mapping& file) {
  NcclPolicy policy;
  if (!file.has("nccl")) return policy;
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(file.path(), file.get("nccl"), "'nccl'", kNcclKeys));
  policy.line = map.line();
  TL_ASSIGN_OR_RETURN(policy.groups, read_list(map, "groups", read_group_rule));
  for (const auto& [key, name, line] :
       {std::tuple("mixed", &policy.mixed, &policy.mixed_line),
        std::tuple("clear_to_send", &policy.clear_to_send, &policy.clear_to_send_line)}) {
    if (!map.has(key)) continue;
    TL_ASSIGN_OR_RETURN(*name, map.name(key));
    *line = line_of(map.get(key));
  }
  if (map.has("separate_reduce_scatter")) {
    TL_ASSIGN_OR_RETURN(policy.separate_reduce_scatter, map.flag("separate_reduce_scatter"));
  }
  if (map.has("dropped")) {
    TL_ASSIGN_OR_RETURN(const std::size_t action, map.one_of("dropped", kDropped));
    policy.refuse_dropped = action == 1;
  }
  if (map.has("environment")) TL_RETURN_IF_ERROR(read_environment(map, policy));
  return policy;
}

Status check_nccl(const Fabric& fabric) {
  const NcclPolicy& policy = fabric.nccl;
  for (const GroupRule& rule : policy.groups)
    TL_RETURN_IF_ERROR(check_class(fabric, rule.cls, rule.line, fmt::format("of the groups '{}' in 'nccl'", rule.group),
                                   {kMixed, kNone}));
  TL_RETURN_IF_ERROR(check_class(fabric, policy.mixed, policy.mixed_line, "of 'mixed' in 'nccl'"));
  return check_class(fabric, policy.clear_to_send, policy.clear_to_send_line, "of 'clear_to_send' in 'nccl'",
                     {fabric.classes.control.name});
}

}  // namespace tensorlane::fabric
