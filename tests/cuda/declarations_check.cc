// Compiled, not linked, against NVIDIA's cuda.h: what client-lib/src/cuda/driver.h declares is what that says.
#include <cuda.h>

#include <type_traits>

#include "client-lib/src/cuda/driver.h"

namespace ours = tensorlane::client::cuda;

static_assert(std::is_same_v<ours::DevicePointer, CUdeviceptr> && std::is_same_v<ours::Stream_, CUstream> &&
              std::is_same_v<ours::Event_, CUevent> && std::is_same_v<ours::Context_, CUcontext> &&
              std::is_same_v<ours::Device_, CUdevice> && std::is_same_v<ours::Module_, CUmodule> &&
              std::is_same_v<ours::Function_, CUfunction>);
static_assert(sizeof(ours::Uuid) == sizeof(CUuuid) && sizeof(ours::IpcHandle) == sizeof(CUipcMemHandle) &&
              alignof(ours::IpcHandle) == alignof(CUipcMemHandle) && sizeof(ours::Error_) == sizeof(CUresult));
static_assert(ours::kSuccess == CUDA_SUCCESS && ours::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY &&
              ours::kNotReady == CUDA_ERROR_NOT_READY && ours::kNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(ours::kStreamNonBlocking == CU_STREAM_NON_BLOCKING &&
              ours::kEventDisableTiming == CU_EVENT_DISABLE_TIMING &&
              ours::kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE &&
              ours::kHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP &&
              ours::kWaitValueGreaterOrEqual == CU_STREAM_WAIT_VALUE_GEQ &&
              ours::kIpcLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(ours::kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
              ours::kPointerBufferId == CU_POINTER_ATTRIBUTE_BUFFER_ID &&
              ours::kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL &&
              ours::kPointerRangeStart == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR &&
              ours::kPointerRangeSize == CU_POINTER_ATTRIBUTE_RANGE_SIZE &&
              ours::kPointerMapped == CU_POINTER_ATTRIBUTE_MAPPED &&
              ours::kInvalidHandle == CUDA_ERROR_INVALID_HANDLE &&
              ours::kCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT &&
              ours::kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(ours::kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE &&
              ours::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

// Types that cuda.h has an enum or a struct of its own for, as they are passed.
template <typename T>
struct Passed {
  using Type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <>
struct Passed<CUuuid> {
  using Type = ours::Uuid;
};
template <>
struct Passed<CUipcMemHandle> {
  using Type = ours::IpcHandle;
};
template <typename T>
struct Passed<T*> {
  using Type = typename Passed<T>::Type*;
};
template <typename T>
struct Passed<const T> {
  using Type = const typename Passed<T>::Type;
};
template <typename T>
struct Signature;
template <typename R, typename... Arguments>
struct Signature<R (*)(Arguments...)> {
  using Type = int (*)(typename Passed<Arguments>::Type...);
};

// cuda.h defines a name without its version as the newest one; both spellings name what libcuda is asked for.
#define TL_CUDA_SAME(member, symbol, parameters)                                                                     \
  static_assert(std::is_same_v<Signature<decltype(&symbol)>::Type, Signature<decltype(ours::Driver::member)>::Type>, \
                #symbol);
TL_CUDA_ENTRY_POINTS(TL_CUDA_SAME)
TL_CUDA_OPTIONAL_ENTRY_POINTS(TL_CUDA_SAME)
