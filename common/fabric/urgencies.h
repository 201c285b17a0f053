// The section 'urgencies' of fabric.yaml: how urgent operations are whose programs do not say it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/units.h"

namespace tensorlane::fabric {

// Of operations that fit all it says.
struct UrgencyRule {
  std::string job = "*", tensor = "*";  // patterns of file names (fnmatch): of the job's name, of the tensor's
  std::optional<Operation> operation;   // unset: any
  Bytes at_least{0};                    // of the tensor's buffer
  std::optional<Bytes> at_most;
  float urgency = 0;  // [0, 1]
  int line = 0;       // in the file, for messages; 0: a default

  bool fits(const std::string& of_job, const std::string& of_tensor, Operation of, Bytes bytes) const;
};

struct Urgencies {
  int line = 0;  // in the file, for messages; 0: the file has no such section
  std::vector<UrgencyRule> rules;

  // The first rule of the file that fits, or null. Without the section those of default_urgencies() are asked. Valid as
  // long as this is unchanged.
  const UrgencyRule* find(const std::string& job, const std::string& tensor, Operation operation, Bytes bytes) const;
};

// What the sharded training of FSDP waits for, the gathered parameters, comes before everything, and its sums of
// gradients, which nothing waits for before the step, come after it.
const std::vector<UrgencyRule>& default_urgencies();

}  // namespace tensorlane::fabric
