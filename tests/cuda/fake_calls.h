// The entry points of libcuda that the fake driver has: those that the library uses (client-lib/src/cuda/driver.h), and
// what belongs to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "client-lib/src/cuda/driver.h"

namespace tensorlane::fake_cuda {

using client::cuda::Context_;
using client::cuda::Device_;
using client::cuda::DevicePointer;
using client::cuda::Event_;
using client::cuda::Function_;
using client::cuda::IpcHandle;
using client::cuda::Module_;
using client::cuda::Stream_;
using client::cuda::Uuid;

// X(symbol, parameters); each returns a CUresult, which is an int.
#define TL_FAKE_CUDA_ENTRY_POINTS(X)                                                                            \
  X(cuInit, (unsigned flags))                                                                                   \
  X(cuDriverGetVersion, (int* version))                                                                         \
  X(cuGetErrorName, (int error, const char** name))                                                             \
  X(cuDeviceGet, (Device_ * device, int ordinal))                                                               \
  X(cuDeviceGetName, (char* name, int bytes, Device_ device))                                                   \
  X(cuDeviceGetUuid_v2, (Uuid * uuid, Device_ device))                                                          \
  X(cuDevicePrimaryCtxRetain, (Context_ * context, Device_ device))                                             \
  X(cuDevicePrimaryCtxRelease_v2, (Device_ device))                                                             \
  X(cuCtxPushCurrent_v2, (Context_ context))                                                                    \
  X(cuCtxPopCurrent_v2, (Context_ * context))                                                                   \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                             \
  X(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                                   \
  X(cuPointerGetAttribute, (void* data, int attribute, DevicePointer pointer))                                  \
  X(cuStreamCreateWithPriority, (Stream_ * stream, unsigned flags, int priority))                               \
  X(cuStreamDestroy_v2, (Stream_ stream))                                                                       \
  X(cuStreamIsCapturing, (Stream_ stream, int* status))                                                         \
  X(cuStreamWaitValue32_v2, (Stream_ stream, DevicePointer at, std::uint32_t value, unsigned flags))            \
  X(cuEventCreate, (Event_ * event, unsigned flags))                                                            \
  X(cuEventDestroy_v2, (Event_ event))                                                                          \
  X(cuEventRecord, (Event_ event, Stream_ stream))                                                              \
  X(cuEventQuery, (Event_ event))                                                                               \
  X(cuMemAlloc_v2, (DevicePointer * pointer, std::size_t bytes))                                                \
  X(cuMemFree_v2, (DevicePointer pointer))                                                                      \
  X(cuIpcGetMemHandle, (IpcHandle * handle, DevicePointer pointer))                                             \
  X(cuIpcOpenMemHandle_v2, (DevicePointer * pointer, IpcHandle handle, unsigned flags))                         \
  X(cuIpcCloseMemHandle, (DevicePointer pointer))                                                               \
  X(cuMemHostRegister_v2, (void* memory, std::size_t bytes, unsigned flags))                                    \
  X(cuMemHostUnregister, (void* memory))                                                                        \
  X(cuMemHostAlloc, (void** memory, std::size_t bytes, unsigned flags))                                         \
  X(cuMemFreeHost, (void* memory))                                                                              \
  X(cuMemHostGetDevicePointer_v2, (DevicePointer * pointer, void* memory, unsigned flags))                      \
  X(cuMemcpyDtoHAsync_v2, (void* to, DevicePointer from, std::size_t bytes, Stream_ stream))                    \
  X(cuMemcpyHtoDAsync_v2, (DevicePointer to, const void* from, std::size_t bytes, Stream_ stream))              \
  X(cuMemcpyDtoDAsync_v2, (DevicePointer to, DevicePointer from, std::size_t bytes, Stream_ stream))            \
  X(cuModuleLoadData, (Module_ * module, const void* image))                                                    \
  X(cuModuleUnload, (Module_ module))                                                                           \
  X(cuModuleGetFunction, (Function_ * function, Module_ module, const char* name))                              \
  X(cuLaunchKernel,                                                                                             \
    (Function_ function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, Stream_ stream, void** parameters, void** extra))                 \
  X(cuMemsetD8Async, (DevicePointer to, unsigned char value, std::size_t count, Stream_ stream))

#define TL_FAKE_CUDA_CALL(symbol, parameters) symbol,
enum class Call { TL_FAKE_CUDA_ENTRY_POINTS(TL_FAKE_CUDA_CALL) kCount };
#undef TL_FAKE_CUDA_CALL

const char* name_of(Call call);
std::optional<Call> call_named(std::string_view symbol);

// Results and constants of cuda.h that the driver uses.
inline constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100,
                     kInvalidDevice = 101, kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500,
                     kNotReady = 600, kIllegalAddress = 700, kContextIsDestroyed = 709, kAlreadyRegistered = 712,
                     kNotRegistered = 713, kMisalignedAddress = 716, kNotSupported = 801, kCaptureUnsupported = 900,
                     kCapturedEvent = 907;
inline constexpr int kAttributeMemoryType = 2, kAttributeBufferId = 7, kAttributeDeviceOrdinal = 9,
                     kAttributeRangeStart = 11, kAttributeRangeSize = 12, kAttributeMapped = 13;
inline constexpr unsigned kHostMemory = 1, kDeviceMemory = 2;

}  // namespace tensorlane::fake_cuda
