// Entry points of libcuda, with the meaning that cuda.h gives them: devices, contexts, streams, pinned memory and
// copies.
#include <cstdio>
#include <cstring>

#include "fake_entry.h"
#include "fake_exports.h"

namespace tensorlane::fake_cuda {
namespace {

constexpr int kVersion = 12040;

struct ErrorName {
  int code;
  const char* name;
};
constexpr ErrorName kErrorNames[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {4, "CUDA_ERROR_DEINITIALIZED"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM"},
    {400, "CUDA_ERROR_INVALID_HANDLE"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {800, "CUDA_ERROR_NOT_PERMITTED"},
    {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {907, "CUDA_ERROR_CAPTURED_EVENT"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

// A context is the number of its device, made to look like a pointer.
constexpr std::uintptr_t kContexts = 0x7e5600000000;
Context_ context_of(int device) {
  return reinterpret_cast<Context_>(kContexts + 16 * static_cast<unsigned>(device));
}
int device_of(Context_ context) {
  const auto number = reinterpret_cast<std::uintptr_t>(context);
  return number < kContexts ? -1 : static_cast<int>((number - kContexts) / 16);
}

}  // namespace

// --- The driver and its devices
// ---------------------------------------------------------------------------------------

int cuInit(unsigned flags) {
  Entry entry(Call::cuInit, false);
  if (!entry.ok()) return entry.error();
  if (flags != 0) return entry.fail(kInvalidValue);
  if (entry.state().devices.empty()) return entry.fail(kNoDevice);
  entry.state().initialized = true;
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  Entry entry(Call::cuDriverGetVersion, false);
  if (!entry.ok()) return entry.error();
  if (version == nullptr) return entry.fail(kInvalidValue);
  *version = kVersion;
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) {
  Entry entry(Call::cuGetErrorName, false);
  if (!entry.ok()) return entry.error();
  *name = nullptr;
  for (const auto& known : kErrorNames) {
    if (known.code == error) *name = known.name;
  }
  return *name == nullptr ? kInvalidValue : kSuccess;
}

int cuDeviceGet(Device_* device, int ordinal) {
  Entry entry(Call::cuDeviceGet);
  if (!entry.ok()) return entry.error();
  if (ordinal < 0 || ordinal >= static_cast<int>(entry.state().devices.size())) return entry.fail(kInvalidDevice);
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetName(char* name, int bytes, Device_ device) {
  Entry entry(Call::cuDeviceGetName);
  if (!entry.device_exists(device)) return entry.error();
  if (name == nullptr || bytes <= 0) return entry.fail(kInvalidValue);
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU %d", device);
  return kSuccess;
}

int cuDeviceGetUuid_v2(Uuid* uuid, Device_ device) {
  Entry entry(Call::cuDeviceGetUuid_v2);
  if (!entry.device_exists(device)) return entry.error();
  if (uuid == nullptr) return entry.fail(kInvalidValue);
  std::memcpy(uuid->bytes, "fake-GPU-uuid-", 14);
  uuid->bytes[14] = static_cast<char>(device >> 8);
  uuid->bytes[15] = static_cast<char>(device);
  return kSuccess;
}

// --- Contexts
// ---------------------------------------------------------------------------------------------------------

int cuDevicePrimaryCtxRetain(Context_* context, Device_ device) {
  Entry entry(Call::cuDevicePrimaryCtxRetain);
  if (!entry.device_exists(device)) return entry.error();
  if (context == nullptr) return entry.fail(kInvalidValue);
  if (entry.result(device) != 0) return entry.error();
  ++entry.state().devices[device].references;
  *context = context_of(device);
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(Device_ device) {
  Entry entry(Call::cuDevicePrimaryCtxRelease_v2);
  if (!entry.device_exists(device)) return entry.error();
  int& references = entry.state().devices[device].references;
  if (references == 0) return entry.violate(kInvalidContext, "the context of device ", device, " is not retained");
  --references;
  return entry.result(device);
}

int cuCtxPushCurrent_v2(Context_ context) {
  Entry entry(Call::cuCtxPushCurrent_v2);
  if (!entry.ok()) return entry.error();
  const int device = device_of(context);
  State& all = entry.state();
  if (device < 0 || device >= static_cast<int>(all.devices.size()) || all.devices[device].references == 0) {
    return entry.violate(kInvalidContext, "the context ", static_cast<void*>(context), " is not retained");
  }
  all.thread().contexts.push_back(device);  // also a broken one: the calls inside say so
  ++all.pushed_contexts;
  return kSuccess;
}

int cuCtxPopCurrent_v2(Context_* context) {
  Entry entry(Call::cuCtxPopCurrent_v2);
  if (!entry.ok()) return entry.error();
  auto& contexts = entry.state().thread().contexts;
  if (contexts.empty()) return entry.violate(kInvalidContext, "the thread has no current context");
  const int device = contexts.back();
  contexts.pop_back();
  --entry.state().pushed_contexts;
  if (context != nullptr) *context = context_of(device);
  return entry.result(device);
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Entry entry(Call::cuCtxGetStreamPriorityRange);
  if (!entry.in_working_context()) return entry.error();
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return kSuccess;
}

int cuPointerGetAttribute(void* data, int attribute, DevicePointer pointer) {
  Entry entry(Call::cuPointerGetAttribute);
  if (!entry.ok()) return entry.error();
  const auto range = entry.state().memory.at(pointer);
  if (data == nullptr || range == nullptr) return entry.fail(kInvalidValue);
  if (entry.result(range->device) != 0) return entry.error();
  const unsigned type = range->on_device() ? kDeviceMemory : kHostMemory;
  switch (attribute) {
    case kAttributeMemoryType:
      std::memcpy(data, &type, sizeof(type));
      return kSuccess;
    case kAttributeBufferId:
      std::memcpy(data, &range->id, sizeof(range->id));
      return kSuccess;
    case kAttributeDeviceOrdinal:
      std::memcpy(data, &range->device, sizeof(range->device));
      return kSuccess;
    case kAttributeRangeStart:
      std::memcpy(data, &range->start, sizeof(range->start));
      return kSuccess;
    case kAttributeRangeSize:
      std::memcpy(data, &range->bytes, sizeof(range->bytes));
      return kSuccess;
    case kAttributeMapped:
      *static_cast<bool*>(data) = true;
      return kSuccess;
    default:
      return entry.violate(kInvalidValue, "the fake driver does not know the attribute ", attribute);
  }
}

// --- Streams and events
// -----------------------------------------------------------------------------------------------

int cuStreamCreateWithPriority(Stream_* stream, unsigned flags, int priority) {
  state().join_finished();
  Entry entry(Call::cuStreamCreateWithPriority);
  if (!entry.in_working_context()) return entry.error();
  if (stream == nullptr || flags > 1) return entry.fail(kInvalidValue);
  *stream = static_cast<Stream_>(entry.state().create_stream(entry.device(), priority, false)->handle);
  return kSuccess;
}

int cuStreamDestroy_v2(Stream_ stream) {
  Entry entry(Call::cuStreamDestroy_v2);
  if (!entry.in_context()) return entry.error();
  const auto found = entry.state().streams.find(stream);
  if (found == entry.state().streams.end() || found->second->of_framework) {
    return entry.violate(kInvalidHandle, "the stream ", static_cast<void*>(stream), " is ",
                         found == entry.state().streams.end() ? entry.state().describe(stream) : "not the library's");
  }
  const int device = found->second->device;
  entry.state().destroy_stream(found->second);
  return entry.result(device);
}

int cuStreamIsCapturing(Stream_ stream, int* status) {
  Entry entry(Call::cuStreamIsCapturing);
  const bool is_null = reinterpret_cast<std::uintptr_t>(stream) <= 2;
  if (is_null ? !entry.in_working_context() : !entry.ok()) return entry.error();
  const auto found = entry.stream(stream);
  if (found == nullptr) return entry.error();
  if (status == nullptr) return entry.fail(kInvalidValue);
  *status = found->capturing ? 1 : 0;
  return entry.result(found->device);
}

int cuStreamWaitValue32_v2(Stream_ stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  auto operation = Operation::make(Operation::Kind::kWaitValue, Call::cuStreamWaitValue32_v2);
  Entry entry(Call::cuStreamWaitValue32_v2);
  if (!entry.in_working_context()) return entry.error();
  if (flags != 0) return entry.violate(kNotSupported, "the fake driver does not know the flags");
  const auto range = entry.state().memory.at(address);
  if (range == nullptr || range->on_device() || address % 4 != 0 || range->start + range->bytes - address < 4) {
    return entry.violate(kInvalidValue, "the word at ", pointer_to(address), " is not aligned, pinned host memory");
  }
  operation->use(range);
  operation->word = static_cast<const std::uint32_t*>(pointer_to(address));
  operation->value = value;
  return entry.put(stream, std::move(operation));
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  Entry entry(Call::cuThreadExchangeStreamCaptureMode);
  if (!entry.ok()) return entry.error();
  if (mode == nullptr || *mode < 0 || *mode > 2) return entry.fail(kInvalidValue);
  std::swap(*mode, entry.state().thread().capture_mode);
  return kSuccess;
}

int cuEventCreate(Event_* event, unsigned flags) {
  Entry entry(Call::cuEventCreate);
  if (!entry.in_working_context()) return entry.error();
  if (event == nullptr || (flags & ~7u) != 0) return entry.fail(kInvalidValue);
  *event = static_cast<Event_>(entry.state().create_event(entry.device()));
  return kSuccess;
}

int cuEventDestroy_v2(Event_ event) {
  Entry entry(Call::cuEventDestroy_v2);
  if (!entry.in_context()) return entry.error();
  const auto found = entry.event(event);
  if (found == nullptr) return entry.error();
  entry.state().events.erase(event);
  return entry.result(found->device);
}

int cuEventRecord(Event_ event, Stream_ stream) {
  auto operation = Operation::make(Operation::Kind::kRecord, Call::cuEventRecord);
  Entry entry(Call::cuEventRecord);
  if (!entry.in_working_context()) return entry.error();
  const auto found = entry.event(event);
  if (found == nullptr) return entry.error();
  if (found->device != entry.device()) return entry.violate(kInvalidHandle, "the event is of another device");
  auto record = std::make_shared<Record>();
  operation->record = record;
  const int error = entry.put(stream, std::move(operation));
  if (error == kCaptureUnsupported) found->captured = true;
  if (error != 0) return error;
  found->captured = false;
  found->record = std::move(record);
  return kSuccess;
}

int cuEventQuery(Event_ event) {
  std::shared_ptr<Record> record;
  {
    Entry entry(Call::cuEventQuery);
    if (!entry.is_safe()) return entry.error();
    const auto found = entry.event(event);
    if (found == nullptr) return entry.error();
    if (found->captured) return entry.violate(kCapturedEvent, "the event was last recorded in a capture");
    if (entry.result(found->device) != 0) return entry.error();
    record = found->record;
  }
  if (record == nullptr) return kSuccess;
  const bool done = record->done.load(std::memory_order_acquire);
  const Hidden hidden;  // the reference is dropped
  record.reset();
  return done ? kSuccess : kNotReady;
}

// --- Pinned memory
// ----------------------------------------------------------------------------------------------------

int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  Entry entry(Call::cuMemHostRegister_v2);
  if (!entry.in_working_context() || !entry.is_safe()) return entry.error();
  if (memory == nullptr || bytes == 0 || (flags & ~15u) != 0) return entry.fail(kInvalidValue);
  const auto range = entry.state().memory.add(MemoryKind::kRegistered, memory, bytes, entry.device());
  if (range == nullptr)
    return entry.violate(kAlreadyRegistered, bytes, " bytes at ", memory, " overlap memory that the driver knows");
  range->portable = (flags & client::cuda::kHostRegisterPortable) != 0;
  return kSuccess;
}

int cuMemHostUnregister(void* memory) {
  Entry entry(Call::cuMemHostUnregister);
  if (!entry.in_context() || !entry.is_safe()) return entry.error();
  const auto range = entry.range(MemoryKind::kRegistered, memory, kNotRegistered);
  if (range == nullptr) return entry.error();
  entry.state().retire(range, "cuMemHostUnregister", entry.lock());
  return entry.result(range->device);
}

int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  Entry entry(Call::cuMemHostAlloc);
  if (!entry.in_working_context() || !entry.is_safe()) return entry.error();
  if (memory == nullptr || bytes == 0 || (flags & ~7u) != 0) return entry.fail(kInvalidValue);
  void* allocated = Memory::allocate(bytes, 4096);
  if (allocated == nullptr) return entry.fail(kOutOfMemory);
  entry.state().memory.add(MemoryKind::kHostAllocated, allocated, bytes, entry.device());
  *memory = allocated;
  return kSuccess;
}

int cuMemFreeHost(void* memory) {
  Entry entry(Call::cuMemFreeHost);
  if (!entry.in_context() || !entry.is_safe()) return entry.error();
  const auto range = entry.range(MemoryKind::kHostAllocated, memory, kInvalidValue);
  if (range == nullptr) return entry.error();
  entry.state().retire(range, "cuMemFreeHost", entry.lock());
  entry.state().memory.bury(memory, range->bytes);
  return entry.result(range->device);
}

int cuMemHostGetDevicePointer_v2(DevicePointer* pointer, void* memory, unsigned flags) {
  Entry entry(Call::cuMemHostGetDevicePointer_v2);
  if (!entry.in_working_context()) return entry.error();
  const auto range = entry.state().memory.at(reinterpret_cast<std::uintptr_t>(memory));
  if (pointer == nullptr || flags != 0) return entry.fail(kInvalidValue);
  if (range == nullptr || range->on_device()) return entry.violate(kInvalidValue, memory, " is not pinned host memory");
  *pointer = reinterpret_cast<std::uintptr_t>(memory);
  return kSuccess;
}

// --- Copies
// -----------------------------------------------------------------------------------------------------------

int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, Stream_ stream) {
  auto operation = Operation::make(Operation::Kind::kCopy, Call::cuMemcpyDtoHAsync_v2);
  Entry entry(Call::cuMemcpyDtoHAsync_v2);
  if (!entry.in_working_context()) return entry.error();
  operation->direction = kFakeCudaOut;
  operation->to = to;
  operation->from = pointer_to(from);
  operation->bytes = bytes;
  return entry.put(stream, std::move(operation));
}

int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes, Stream_ stream) {
  auto operation = Operation::make(Operation::Kind::kCopy, Call::cuMemcpyHtoDAsync_v2);
  Entry entry(Call::cuMemcpyHtoDAsync_v2);
  if (!entry.in_working_context()) return entry.error();
  operation->direction = kFakeCudaIn;
  operation->to = pointer_to(to);
  operation->from = from;
  operation->bytes = bytes;
  return entry.put(stream, std::move(operation));
}

int cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, std::size_t bytes, Stream_ stream) {
  auto operation = Operation::make(Operation::Kind::kCopy, Call::cuMemcpyDtoDAsync_v2);
  Entry entry(Call::cuMemcpyDtoDAsync_v2);
  if (!entry.in_working_context()) return entry.error();
  operation->direction = kFakeCudaWithin;
  operation->to = pointer_to(to);
  operation->from = pointer_to(from);
  operation->bytes = bytes;
  return entry.put(stream, std::move(operation));
}

int cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t count, Stream_ stream) {
  auto operation = Operation::make(Operation::Kind::kFill, Call::cuMemsetD8Async);
  Entry entry(Call::cuMemsetD8Async);
  if (!entry.in_working_context()) return entry.error();
  operation->direction = kFakeCudaFill;
  operation->to = pointer_to(to);
  operation->fill = value;
  operation->bytes = count;
  return entry.put(stream, std::move(operation));
}

}  // namespace tensorlane::fake_cuda
