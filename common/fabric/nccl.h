// The section 'nccl' of fabric.yaml: which class each group of ranks gets whose traffic NCCL carries.
//
// NCCL takes one traffic class for a communicator (ncclConfig_t.trafficClass, 2.27 and later), so that a rule can
// choose by the name of the group alone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/units.h"

namespace tensorlane::fabric {

struct ClassTable;
struct TrafficClass;

// In place of a class, in rules: NcclPolicy::mixed, and no class at all.
inline constexpr std::string_view kMixed = "mixed", kNone = "none";

// Of groups whose name fits.
struct GroupRule {
  std::string group;   // a pattern of file names (fnmatch) of the group's description in PyTorch: "mesh_tp*"
  std::string cls;     // the name of a data class, kMixed or kNone
  std::string shared;  // the class where reduce-scatters stay in the group though it was asked to separate them; empty:
                       // `cls`
  // NCCL cannot choose by these: a rule that has one is reported and chooses nothing.
  std::optional<Operation> operation;
  std::optional<Bytes> at_least, at_most;
  int line = 0;  // in the file, for messages; 0: a default

  bool is_enforceable() const { return !operation && !at_least && !at_most; }
};

struct NcclPolicy {
  int line = 0;  // in the file, for messages; 0: the file has no such section
  // The first that fits counts; after these come default_group_rules().
  std::vector<GroupRule> groups;
  std::string mixed;          // the class of groups that carry urgent traffic and bulk; empty: see mixed_class()
  std::string clear_to_send;  // of a receiver's messages that it is ready; empty: see clear_to_send_class()
  int mixed_line = 0, clear_to_send_line = 0;  // as `line`
  // FSDP's reduce-scatters get a group of their own, where PyTorch can.
  bool separate_reduce_scatter = false;
  // A group whose class NCCL would drop is an error in the program, rather than a line in the report.
  bool refuse_dropped = false;
  // What a host says in spite of its users: values of NCCL's variables; without a value: the variable is not to be set.
  std::map<std::string, std::optional<std::string>> environment;
};

// What computation waits for (tensor, pipeline, context and expert parallel groups) has the most urgent class,
// gradients and checkpoints the least urgent, groups that carry both, or of which that is not known, kMixed. The names
// are those of DeviceMesh's dimensions, FSDP2 and Megatron-core.
std::vector<GroupRule> default_group_rules(const ClassTable& classes, bool separate_reduce_scatter);

// The class that the policy names, else one called "mixed", else the least urgent.
const TrafficClass& mixed_class(const ClassTable& classes, const NcclPolicy& policy);

// The class that the policy names, else the control class if it is lossless, else the most urgent lossless class, else
// the most urgent. A lost message of this kind costs a connection's whole time-out.
const TrafficClass& clear_to_send_class(const ClassTable& classes, const NcclPolicy& policy);

}  // namespace tensorlane::fabric
