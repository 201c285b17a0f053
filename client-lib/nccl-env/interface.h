// NCCL's interface for env plugins, written from its description: v1 is that of NCCL 2.28.7 and later, v2 that
// of 2.30.7 and later (plugins/env/example/nccl/env_v1.h and env_v2.h of NCCL's sources). tests/nccl compares it with
// theirs.
#pragma once

#include <cstdint>

extern "C" {

// ncclResult_t, of which a plugin needs but one value: where init fails, no communicator of the process can be made.
using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;

// NCCL's logger. It asks the plugin for variables, so that a plugin that calls it may wait for itself: never called
// here.
using NcclLogger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

struct NcclEnvPluginV1 {
  const char* name;
  NcclResult (*init)(std::uint8_t major, std::uint8_t minor, std::uint8_t patch, const char* suffix);
  NcclResult (*finalize)();
  // NULL: the variable is not set. The text stays valid until finalize.
  const char* (*get_env)(const char* name);
};

struct NcclEnvPluginV2 {
  const char* name;
  NcclResult (*init)(std::uint8_t major, std::uint8_t minor, std::uint8_t patch, const char* suffix, NcclLogger logger);
  NcclResult (*finalize)();
  const char* (*get_env)(const char* name);
};

// What NCCL looks for in the shared object, v2 first.
extern const NcclEnvPluginV1 ncclEnvPlugin_v1;
extern const NcclEnvPluginV2 ncclEnvPlugin_v2;

}  // extern "C"
