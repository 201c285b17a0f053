// What the fake driver exports of libcuda's interface; each function is defined where its subject is.
#pragma once

#include "fake_calls.h"
#include "fake_driver.h"

namespace tensorlane::fake_cuda {

#define TL_FAKE_CUDA_DECLARE(symbol, parameters) FAKE_CUDA_EXPORT int symbol parameters;
extern "C" {
TL_FAKE_CUDA_ENTRY_POINTS(TL_FAKE_CUDA_DECLARE)
}
#undef TL_FAKE_CUDA_DECLARE

}  // namespace tensorlane::fake_cuda

// The library declares them in the same way: what differs does not compile.
namespace tensorlane::client::cuda {

#define TL_FAKE_CUDA_COMPARE(member, symbol, parameters) extern "C" int symbol parameters;
TL_CUDA_ENTRY_POINTS(TL_FAKE_CUDA_COMPARE)
TL_CUDA_OPTIONAL_ENTRY_POINTS(TL_FAKE_CUDA_COMPARE)
#undef TL_FAKE_CUDA_COMPARE

}  // namespace tensorlane::client::cuda
