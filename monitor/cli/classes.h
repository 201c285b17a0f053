// What each communication library is to be told so that its traffic has the classes of the fabric.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/fabric/fabric.h"
#include "common/nccl/preflight.h"

namespace tensorlane::cli {

// The libraries, by the names that `tensorlane classes --for` takes; `env` stands for shell variables.
const std::vector<std::string>& class_stacks();

// The IPv4 TOS byte and IPv6 and RoCE traffic class of a class: DSCP * 4, and ECT(0), so that switches mark rather than
// drop.
unsigned traffic_class(const fabric::TrafficClass& cls);

// What a host's policy says of NCCL's variables: a value, or that a variable is not to be set. The section's
// 'environment', and what follows from the classes.
std::map<std::string, std::optional<std::string>> nccl_variables(const fabric::Fabric& fabric);

// The classes of data and of control, as the preflight compares with them.
std::vector<nccl::Class> nccl_classes(const fabric::Fabric& fabric);

// For people: a table, and what to write where. Shell commands for `env`. InvalidArgument, where the names of two
// classes make the same shell variable.
Result<std::string> classes_text(const fabric::Fabric& fabric, const std::string& stack);

// One JSON object. That of `nccl` is the policy that tensorlane.torch.nccl and the env plugin read:
// {"version": 1, "for", "fabric", "classes": [{"name", "rank", "dscp", "tos", "traffic_class", "pcp", "service_level",
// "lossless", "settings": {VARIABLE: VALUE}}], "control": as of a class, "notes": [TEXT]}, and of nccl also
// {"clear_to_send": {"class", "traffic_class"}, "mixed": CLASS, "separate_reduce_scatter", "dropped", "process":
// {VARIABLE: VALUE or null}, "rules": [{"group", "class", "shared", "where"}], "not_enforceable": [{"group", "class",
// "where", "why"}]}.
Result<std::string> classes_json(const fabric::Fabric& fabric, const std::string& stack);

}  // namespace tensorlane::cli
