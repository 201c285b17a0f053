// A host's policy for NCCL's variables: the object "process" of what `tensorlane classes --for nccl --json` prints.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::nccl {

// A host's policy: where it is there, it holds. Else the one that the variable names.
inline constexpr char kPolicyPath[] = "/etc/tensorlane/nccl-policy.json";
inline constexpr char kPolicyVariable[] = "TENSORLANE_NCCL_POLICY";

inline constexpr Bytes kMostBytes = mib(1);
// Levels of objects and arrays: those of a policy are 3.
inline constexpr int kDeepest = 16;
// NCCL knows some hundred.
inline constexpr std::size_t kMostVariables = 1024;

// What each variable has whatever the environment says; nothing: it is not set.
using Variables = std::map<std::string, std::optional<std::string>, std::less<>>;

// Reads a file, whoever wrote it: it waits for nothing, takes at most kMostBytes, and throws only where memory ends.
// `root` is a folder that stands for / (common/files/place.h).
// Errors: kInvalidArgument and kResourceExhausted, with what is wrong, the path, and what to do.
Result<Variables> read_policy(const std::string& path, const std::string& root = "");

}  // namespace tensorlane::nccl
