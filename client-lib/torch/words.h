// What the C interface says of jobs and tensors, for programs of torch.distributed, which have neither.
#pragma once

#include <string>

#include "client-lib/torch/work.h"

namespace tensorlane::torch_backend {

// How the text of an error names the group: "process group 'x' of 4 ranks".
struct GroupWords {
  std::string job;    // of the C interface
  std::string name;   // of the group
  std::string ranks;  // "4 ranks", "ranks [1, 3]"
};

// Of an error during `what`: who has left, who has called what, who has not come, in place of what was registered by
// whom. Other texts stay as they are, but for the name of the job.
std::string in_words_of_torch(std::string said, const Description& what, const GroupWords& group);

}  // namespace tensorlane::torch_backend
