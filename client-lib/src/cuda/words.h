// Words that streams wait for.
#pragma once

#include <cstdint>

#include "client-lib/src/cuda/driver.h"
#include "common/base/status.h"

namespace tensorlane::client::cuda {

// A word of host memory that GPUs see. They are the process's, for good, and their values only grow: a stream may come
// to its wait for one long after whoever put the wait there has gone.
struct Word {
  std::uint32_t* value = nullptr;  // written by take_word()'s caller alone
  DevicePointer on_gpu = 0;        // its address for the GPU that was current when it was taken
};

// Any thread. Needs a Current (device.h). Errors: ResourceExhausted, what the driver says.
Result<Word> take_word(const Driver& driver);
// Any thread.
void give_word_back(Word word);

}  // namespace tensorlane::client::cuda
