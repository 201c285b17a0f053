// The part of NVIDIA's driver interface that the library uses, and libcuda, which is loaded at run time: nothing of
// CUDA is needed to build or to run without a GPU. tests/cuda/declarations_check.cc compares what is declared here with
// NVIDIA's cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace tensorlane::client::cuda {

// Of cuda.h: the types are its, by another name; the names of the entry points are those that a program compiled with
// CUDA 12 asks libcuda for.
using Error_ = int;   // CUresult
using Device_ = int;  // CUdevice
using DevicePointer = unsigned long long;
using Context_ = struct CUctx_st*;
using Stream_ = struct CUstream_st*;
using Event_ = struct CUevent_st*;
using Module_ = struct CUmod_st*;
using Function_ = struct CUfunc_st*;
inline const Stream_ kStreamPerThread = reinterpret_cast<Stream_>(2);
struct Uuid {
  char bytes[16];
};
struct IpcHandle {  // CUipcMemHandle
  char bytes[64];
};

inline constexpr Error_ kSuccess = 0, kOutOfMemory = 2, kNotReady = 600, kNotSupported = 801, kInvalidHandle = 400,
                        kCaptureImplicit = 906;
inline constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1, kHostRegisterDeviceMap = 2;
inline constexpr unsigned kWaitValueGreaterOrEqual = 0;
inline constexpr int kPointerMemoryType = 2, kPointerBufferId = 7, kPointerDeviceOrdinal = 9, kPointerRangeStart = 11,
                     kPointerRangeSize = 12, kPointerMapped = 13;
inline constexpr unsigned kMemoryTypeDevice = 2;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kCaptureNone = 0, kCaptureModeRelaxed = 2;

// X(name of the member, symbol, parameters)
#define TL_CUDA_ENTRY_POINTS(X)                                                                                 \
  X(init, cuInit, (unsigned flags))                                                                             \
  X(driver_version, cuDriverGetVersion, (int* version))                                                         \
  X(error_name, cuGetErrorName, (Error_ error, const char** name))                                              \
  X(device_get, cuDeviceGet, (Device_ * device, int ordinal))                                                   \
  X(device_name, cuDeviceGetName, (char* name, int bytes, Device_ device))                                      \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid * uuid, Device_ device))                                             \
  X(context_retain, cuDevicePrimaryCtxRetain, (Context_ * context, Device_ device))                             \
  X(context_release, cuDevicePrimaryCtxRelease_v2, (Device_ device))                                            \
  X(context_push, cuCtxPushCurrent_v2, (Context_ context))                                                      \
  X(context_pop, cuCtxPopCurrent_v2, (Context_ * context))                                                      \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))                                               \
  X(priority_range, cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                   \
  X(pointer_attribute, cuPointerGetAttribute, (void* data, int attribute, DevicePointer pointer))               \
  X(stream_create, cuStreamCreateWithPriority, (Stream_ * stream, unsigned flags, int priority))                \
  X(stream_destroy, cuStreamDestroy_v2, (Stream_ stream))                                                       \
  X(stream_is_capturing, cuStreamIsCapturing, (Stream_ stream, int* status))                                    \
  X(event_create, cuEventCreate, (Event_ * event, unsigned flags))                                              \
  X(event_destroy, cuEventDestroy_v2, (Event_ event))                                                           \
  X(event_record, cuEventRecord, (Event_ event, Stream_ stream))                                                \
  X(event_query, cuEventQuery, (Event_ event))                                                                  \
  X(host_register, cuMemHostRegister_v2, (void* memory, std::size_t bytes, unsigned flags))                     \
  X(host_unregister, cuMemHostUnregister, (void* memory))                                                       \
  X(host_device_pointer, cuMemHostGetDevicePointer_v2, (DevicePointer * pointer, void* memory, unsigned flags)) \
  X(copy_out, cuMemcpyDtoHAsync_v2, (void* to, DevicePointer from, std::size_t bytes, Stream_ stream))          \
  X(copy_in, cuMemcpyHtoDAsync_v2, (DevicePointer to, const void* from, std::size_t bytes, Stream_ stream))     \
  X(fill_bytes, cuMemsetD8Async, (DevicePointer to, unsigned char value, std::size_t count, Stream_ stream))

// Those that a driver may lack: the member is null then, and what needs it is not done.
#define TL_CUDA_OPTIONAL_ENTRY_POINTS(X)                                                                        \
  X(stream_wait_value, cuStreamWaitValue32_v2,                                                                  \
    (Stream_ stream, DevicePointer address, std::uint32_t value, unsigned flags))                               \
  X(memory_allocate, cuMemAlloc_v2, (DevicePointer * pointer, std::size_t bytes))                               \
  X(memory_free, cuMemFree_v2, (DevicePointer pointer))                                                         \
  X(ipc_export, cuIpcGetMemHandle, (IpcHandle * handle, DevicePointer pointer))                                 \
  X(ipc_open, cuIpcOpenMemHandle_v2, (DevicePointer * pointer, IpcHandle handle, unsigned flags))               \
  X(ipc_close, cuIpcCloseMemHandle, (DevicePointer pointer))                                                    \
  X(module_load, cuModuleLoadData, (Module_ * module, const void* image))                                       \
  X(module_unload, cuModuleUnload, (Module_ module))                                                            \
  X(module_function, cuModuleGetFunction, (Function_ * function, Module_ module, const char* name))             \
  X(launch, cuLaunchKernel,                                                                                     \
    (Function_ function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, Stream_ stream, void** parameters, void** extra))                 \
  X(copy_within, cuMemcpyDtoDAsync_v2, (DevicePointer to, DevicePointer from, std::size_t bytes, Stream_ stream))

// libcuda's entry points. Any thread; what needs a current context says so in NVIDIA's documentation, and has it inside
// of a Current (device.h).
struct Driver {
#define TL_CUDA_MEMBER(member, symbol, parameters) Error_(*member) parameters = nullptr;
  TL_CUDA_ENTRY_POINTS(TL_CUDA_MEMBER)
  TL_CUDA_OPTIONAL_ENTRY_POINTS(TL_CUDA_MEMBER)
#undef TL_CUDA_MEMBER

  // Loaded and initialised once in a process, and kept as long as that lives. Errors: Unavailable (no libcuda.so.1, one
  // that is too old, which names the symbol, or what cuInit says: no device, for example). An error is not kept: the
  // next call tries again.
  static Result<const Driver*> load();

  // Whether memory that is allocated by it can be mapped by other processes, and worked on there.
  bool shares_memory() const {
    return memory_allocate != nullptr && memory_free != nullptr && ipc_export != nullptr && ipc_open != nullptr &&
           ipc_close != nullptr && module_load != nullptr && module_unload != nullptr && module_function != nullptr &&
           launch != nullptr && copy_within != nullptr;
  }

  // An error of `call`: `where` ("tensor 'x', GPU 0"), and what NVIDIA calls the error. ResourceExhausted for want of
  // memory; InvalidArgument where the stream is no stream of this GPU, or the default stream while another one captures
  // a graph; else Unavailable.
  Status error(Error_ code, const char* call, const std::string& where) const;
};

}  // namespace tensorlane::client::cuda
