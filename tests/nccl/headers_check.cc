// Compiled only: what the env plugin declares of NCCL's interface is what NCCL's own headers say.
#include <cstddef>
#include <cstdint>
#include <type_traits>

// NOLINTBEGIN(llvm-include-order): v2 needs what v1 includes
#include <env_v1.h>
#include <env_v2.h>
// NOLINTEND(llvm-include-order)

#include "client-lib/nccl-env/interface.h"

namespace {

static_assert(kNcclSuccess == ncclSuccess && std::is_same_v<NcclResult, ncclResult_t>);
static_assert(sizeof(ncclDebugLogLevel) == sizeof(int), "the logger's first argument");

#define SAME_LAYOUT(ours, theirs)                                                      \
  static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs));   \
  static_assert(offsetof(ours, name) == offsetof(theirs, name));                       \
  static_assert(offsetof(ours, init) == offsetof(theirs, init));                       \
  static_assert(offsetof(ours, finalize) == offsetof(theirs, finalize));               \
  static_assert(offsetof(ours, get_env) == offsetof(theirs, getEnv));                  \
  static_assert(std::is_same_v<decltype(ours::name), decltype(theirs::name)>);         \
  static_assert(std::is_same_v<decltype(ours::finalize), decltype(theirs::finalize)>); \
  static_assert(std::is_same_v<decltype(ours::get_env), decltype(theirs::getEnv)>)

SAME_LAYOUT(NcclEnvPluginV1, ncclEnv_v1_t);
SAME_LAYOUT(NcclEnvPluginV2, ncclEnv_v2_t);
static_assert(std::is_same_v<decltype(NcclEnvPluginV1::init), decltype(ncclEnv_v1_t::init)>);
// The logger's level is an enumeration of theirs: ours has the same arguments beside it.
static_assert(std::is_invocable_r_v<ncclResult_t, decltype(NcclEnvPluginV2::init), std::uint8_t, std::uint8_t,
                                    std::uint8_t, const char*, NcclLogger>);
static_assert(std::is_same_v<decltype(ncclEnv_v2_t::init), ncclResult_t (*)(std::uint8_t, std::uint8_t, std::uint8_t,
                                                                            const char*, ncclDebugLogger_t)>);

}  // namespace
