// Sums of tensors on the CPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/ports/reducer.h"

namespace tensorlane::reduce {

// The fastest kernels that this machine can run; all give the same bits. Any thread may call the reducer.
std::unique_ptr<ports::Reducer> make_cpu_reducer();

// The instruction sets that this machine can run: "baseline", "avx2", "avx512"; the last is what make_cpu_reducer()
// takes.
std::vector<std::string> available_kernels();
// For tests and benchmarks; `name` is one of the above.
std::unique_ptr<ports::Reducer> make_cpu_reducer(const std::string& name);

}  // namespace tensorlane::reduce
