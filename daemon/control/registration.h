// Groups of tensors: whether ranks register the same, and how a group travels to the leader. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/json/json.h"
#include "common/protocol/plan.h"
#include "common/protocol/session.h"

namespace tensorlane::control {

inline constexpr std::size_t kMaxGroupBytes = 512 * 1024;  // encoded: some 8,000 tensors with names of 40 characters
inline constexpr std::size_t kMaxPlanTensors = 1 << 17;    // of one job
inline constexpr std::size_t kMaxPendingGroups = 1024;     // of one job

// The name in a registration, valid as long as it.
std::string_view name_of(const protocol::TensorBody& tensor);

// The group as a rank knows it.
struct RankGroup {
  std::uint32_t rank = 0;
  std::vector<protocol::TensorBody> tensors;
};

// Whether a group can be registered at all, apart from what others say. Errors: kInvalidArgument (no tensors; a name
// that is empty or comes twice; elements or root out of range; allgather elements that the world size does not divide;
// unknown dtype, operation or reduction).
Status check_group(const std::string& job, const std::string& group, const RankGroup& of, std::uint32_t world_size);

// Compares two ranks' lists name by name, in the order of `reference`; the order itself may differ. The first
// difference is the error, kMismatch:
//   tensor 'fc1.weight' differs: rank 0 registers float32[1000], rank 3 float64[1000]
//   rank 2 leaves out tensor 'x' that rank 0 registers
// What an operation does not use (the reduction of a broadcast, the root of an allreduce) may differ.
Status compare_groups(const std::string& job, const std::string& group, const RankGroup& reference,
                      const RankGroup& other);

// Without the place of the buffer, which differs between ranks.
nlohmann::json tensors_to_json(const std::vector<protocol::TensorBody>& tensors);
std::optional<std::vector<protocol::TensorBody>> tensors_from_json(const nlohmann::json& array);

nlohmann::json plan_tensors_to_json(const std::vector<protocol::PlanTensor>& tensors);
std::optional<std::vector<protocol::PlanTensor>> plan_tensors_from_json(const nlohmann::json& array);

// "group 'g' of job 'j'": where registration errors happen.
std::string group_where(const std::string& job, const std::string& group);

}  // namespace tensorlane::control
