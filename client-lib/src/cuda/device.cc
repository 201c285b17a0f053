#include "client-lib/src/cuda/device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client-lib/src/cuda/kernels.h"
#include "client-lib/src/cuda/shares.h"
#include "client-lib/src/cuda/words.h"

namespace tensorlane::client::cuda {
namespace {

std::string uuid_text(const Uuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += two;
  }
  return text;
}

// Why streams shall not wait for words, by the environment; else empty.
std::string waits_forbidden() {
  const char* wanted = std::getenv("TENSORLANE_STREAM_WAIT");
  if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return "TENSORLANE_STREAM_WAIT is 0";
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections != nullptr && std::strcmp(connections, "1") == 0)
    return "CUDA_DEVICE_MAX_CONNECTIONS is 1, so a waiting stream could block the copies that it waits for";
  return {};
}

}  // namespace

std::string json_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c >= 0 && c < ' ' ? ' ' : c;
  }
  return escaped;
}

Result<int> device_of(const Driver& driver, DevicePointer memory, std::uint64_t bytes, const std::string& what) {
  const auto refused = [&](std::string why) {
    return Status(Code::kInvalidArgument, what + " is not in the memory of a GPU", std::move(why),
                  "pass memory of cudaMalloc or of PyTorch's allocator, or say TL_MEMORY_HOST");
  };
  unsigned type = 0;
  if (driver.pointer_attribute(&type, kPointerMemoryType, memory) != kSuccess)
    return refused("the driver does not know this address");
  if (type != kMemoryTypeDevice) return refused("it is host memory to the driver");
  DevicePointer start = 0;
  std::size_t size = 0;
  int ordinal = 0;
  Error_ error = driver.pointer_attribute(&ordinal, kPointerDeviceOrdinal, memory);
  if (error == kSuccess) error = driver.pointer_attribute(&start, kPointerRangeStart, memory);
  if (error == kSuccess) error = driver.pointer_attribute(&size, kPointerRangeSize, memory);
  if (error != kSuccess) return driver.error(error, "cuPointerGetAttribute", what);
  // Of addresses that were reserved (PyTorch's expandable segments) a range is what was reserved, not what is mapped.
  const std::uint64_t there = size - std::min<std::uint64_t>(memory - start, size);
  unsigned mapped = 0;  // of which the driver writes a byte
  if (driver.pointer_attribute(&mapped, kPointerMapped, memory + bytes - 1) != kSuccess) mapped = 1;
  if (bytes <= there && mapped != 0) return ordinal;
  return refused(std::to_string(bytes) + " bytes were asked for, and its allocation has " + std::to_string(there) +
                 (mapped != 0 ? " from there on" : " from there on, of which the last are not mapped"));
}

Current::Current(const Device& device) : driver_(device.driver()) {
  Error_ error = driver_.context_push(device.context());
  if (error != kSuccess) error = driver_.context_push(device.context());  // what is given back inside would be lost
  if (error != kSuccess) status_ = driver_.error(error, "cuCtxPushCurrent", device.where());
  (void)driver_.capture_mode(&capture_mode_);  // fails for unknown modes only
}

Current::~Current() {
  (void)driver_.capture_mode(&capture_mode_);
  Context_ ours = nullptr;
  if (status_.ok()) (void)driver_.context_pop(&ours);
}

Device::Device(const Driver& driver, int ordinal)
    : driver_(driver), ordinal_(ordinal), where_("GPU " + std::to_string(ordinal)) {}

Result<std::unique_ptr<Device>> Device::open(const Driver& driver, int ordinal) {
  std::unique_ptr<Device> device(new Device(driver, ordinal));
  TL_RETURN_IF_ERROR(device->set_up());
  return device;
}

Status Device::set_up() {
  const auto failed = [&](Error_ error, const char* call) { return driver_.error(error, call, where_); };
  if (const Error_ error = driver_.device_get(&handle_, ordinal_); error != kSuccess)
    return failed(error, "cuDeviceGet");
  char name[128] = {};
  if (const Error_ error = driver_.device_name(name, sizeof name - 1, handle_); error != kSuccess)
    return failed(error, "cuDeviceGetName");
  name_ = json_text(name);
  Uuid uuid{};
  if (const Error_ error = driver_.device_uuid(&uuid, handle_); error != kSuccess)
    return failed(error, "cuDeviceGetUuid");
  uuid_ = uuid_text(uuid);
  // The program has it, too: this makes no second one.
  if (const Error_ error = driver_.context_retain(&context_, handle_); error != kSuccess) {
    context_ = nullptr;
    return failed(error, "cuDevicePrimaryCtxRetain");
  }
  const Current current(*this);
  TL_RETURN_IF_ERROR(current.status());
  // Streams of the highest priority share no hardware queue with those of the program, behind which they could wait for
  // ever. (It does not speed up copies.)
  int least = 0, greatest = 0;
  if (const Error_ error = driver_.priority_range(&least, &greatest); error != kSuccess)
    return failed(error, "cuCtxGetStreamPriorityRange");
  TL_RETURN_IF_ERROR(make_direction(out_, greatest));
  TL_RETURN_IF_ERROR(make_direction(in_, greatest));
  TL_RETURN_IF_ERROR(make_direction(within_, greatest));
  find_out_about_waits();
  return {};
}

Status Device::make_direction(Direction& direction, int priority) {
  if (const Error_ error = driver_.stream_create(&direction.stream, kStreamNonBlocking, priority); error != kSuccess) {
    direction.stream = nullptr;
    return driver_.error(error, "cuStreamCreateWithPriority", where_);
  }
  for (Event_& event : direction.events) {
    if (const Error_ error = driver_.event_create(&event, kEventDisableTiming); error != kSuccess) {
      event = nullptr;
      return driver_.error(error, "cuEventCreate", where_);
    }
  }
  direction.copies.reserve(kInFlight);
  return {};
}

// Tries it, on a stream of ours, with a word that needs no waiting.
void Device::find_out_about_waits() {
  no_stream_wait_ = waits_forbidden();
  if (!no_stream_wait_.empty()) return;
  if (driver_.stream_wait_value == nullptr) {
    no_stream_wait_ = "the driver is older than 515 and has no cuStreamWaitValue32_v2";
    return;
  }
  const Result<Word> word = take_word(driver_);
  Status tried = word.status();
  if (tried.ok()) {
    const std::uint32_t now = std::atomic_ref(*word->value).load();
    const Error_ error = driver_.stream_wait_value(out_.stream, word->on_gpu, now, kWaitValueGreaterOrEqual);
    if (error != kSuccess) tried = driver_.error(error, "cuStreamWaitValue32", where_);
    give_word_back(*word);
  }
  if (!tried.ok()) no_stream_wait_ = json_text(tried.what());
}

Device::~Device() {
  if (context_ == nullptr) return;
  if (const Current current(*this); current.status().ok()) {
    for (const auto& transfer : all_) {
      (void)driver_.event_destroy(transfer->ready);
      give_word_back({transfer->word, 0});
    }
    if (kernels_ != nullptr) (void)driver_.module_unload(kernels_);
    for (Direction* direction : directions()) {
      for (const Event_ event : direction->events)
        if (event != nullptr) (void)driver_.event_destroy(event);
      if (direction->stream != nullptr) (void)driver_.stream_destroy(direction->stream);
    }
  }
  (void)driver_.context_release(handle_);
}

bool Device::keep_context() {
  Context_ same = nullptr;
  return driver_.context_retain(&same, handle_) == kSuccess;
}

Result<Function_> Device::kernel(const std::string& name) {
  const Current current(*this);
  TL_RETURN_IF_ERROR(current.status());
  std::lock_guard lock(kernels_mutex_);
  if (kernels_ == nullptr) {
    TL_ASSIGN_OR_RETURN(const std::string image, wanted_kernels());
    const Error_ error = driver_.module_load(&kernels_, image.c_str());
    if (error != kSuccess) {
      kernels_ = nullptr;
      return driver_.error(error, "cuModuleLoadData", where_);
    }
  }
  Function_ function = nullptr;
  const Error_ error = driver_.module_function(&function, kernels_, name.c_str());
  if (error != kSuccess) return driver_.error(error, "cuModuleGetFunction", name + ", " + where_);
  TL_RETURN_IF_ERROR(try_out(function, name));
  return function;
}

// Launches it for no elements. The driver loads a kernel at its first launch, and may wait for all of the GPU then: not
// when streams wait for us.
Status Device::try_out(Function_ function, const std::string& name) {
  alignas(16) std::array<std::byte, sizeof(KernelSources)> nothing{};
  void* parameters[] = {&nothing, &nothing, &nothing, &nothing};
  const Error_ error = launch(function, 0, parameters, within_.stream);
  return error == kSuccess ? Status() : driver_.error(error, "cuLaunchKernel", name + ", " + where_);
}

Status Device::check_not_capturing(Stream_ stream, const std::string& tensor) const {
  int capturing = kCaptureNone;
  const Error_ error = driver_.stream_is_capturing(stream, &capturing);
  if (error != kSuccess) return driver_.error(error, "cuStreamIsCapturing", "tensor '" + tensor + "', " + where_);
  if (capturing == kCaptureNone) return {};
  return {Code::kInvalidArgument, "a CUDA graph is being captured on this stream", "tensor '" + tensor + "', " + where_,
          "leave tensorlane's calls out of the captured part: a graph cannot hold what the other ranks take part in"};
}

Result<Transfer*> Device::begin(Stream_ stream, const std::string& tensor) {
  const Current current(*this);
  TL_RETURN_IF_ERROR(current.status());
  TL_RETURN_IF_ERROR(check_not_capturing(stream, tensor));
  TL_ASSIGN_OR_RETURN(Transfer * transfer, take());
  transfer->tensor = tensor;
  transfer->stream = stream;
  transfer->value = std::atomic_ref(*transfer->word).load() + 1;
  const Error_ error = driver_.event_record(transfer->ready, stream);
  if (error != kSuccess) {
    end(*transfer);
    return driver_.error(error, "cuEventRecord", "tensor '" + tensor + "', " + where_);
  }
  // After the event: what a stream gets behind its wait for this transfer has a higher number, whoever puts it there.
  transfer->number = numbers_.fetch_add(1) + 1;
  return transfer;
}

// One that nobody uses, or a new one. Calls of the driver are made without the mutex, which end() takes.
Result<Transfer*> Device::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Transfer* transfer = free_.back();
      free_.pop_back();
      return transfer;
    }
  }
  auto made = std::make_unique<Transfer>();
  TL_ASSIGN_OR_RETURN(const Word word, take_word(driver_));
  const Error_ error = driver_.event_create(&made->ready, kEventDisableTiming);
  if (error != kSuccess) {
    give_word_back(word);
    return driver_.error(error, "cuEventCreate", where_);
  }
  made->device = this;
  made->word = word.value;
  made->word_on_gpu = word.on_gpu;
  std::lock_guard lock(mutex_);
  all_.push_back(std::move(made));
  free_.reserve(all_.size());  // so that giving back never allocates
  return all_.back().get();
}

void Device::end(Transfer& transfer) {
  transfer.number = 0;
  transfer.request = nullptr;
  transfer.in = transfer.out = {};
  transfer.shares = nullptr;
  transfer.met = 0;
  transfer.gather_from = 0;
  transfer.gather_at = transfer.gathered = 0;
  transfer.hold_until = {};
  transfer.is_lent = false;
  transfer.within = Transfer::Within::kNothing;
  transfer.layout = {};
  transfer.boosted = false;
  transfer.phase = Transfer::Phase::kNew;
  transfer.is_ready = transfer.has_arrived = transfer.poison = transfer.filled = false;
  transfer.in_flight = 0;
  transfer.errors = 0;
  transfer.why = {};
  std::lock_guard lock(mutex_);
  free_.push_back(&transfer);
}

Status Device::wait_on(Stream_ stream, const Wait& wait) {
  const Current current(*this);
  TL_RETURN_IF_ERROR(current.status());
  TL_RETURN_IF_ERROR(check_not_capturing(stream, wait.tensor));
  const Error_ error = driver_.stream_wait_value(stream, wait.word, wait.value, kWaitValueGreaterOrEqual);
  if (error == kSuccess) return {};
  return driver_.error(error, "cuStreamWaitValue32", "tensor '" + wait.tensor + "', " + where_);
}

Status Device::issue(Way way, Transfer& transfer, const Pieces::Slice& slice, Time now) {
  Direction& direction = this->direction(way);
  const char* call = nullptr;
  Error_ error = put(way, transfer, slice, direction.stream, call);
  // Free since the oldest of its two users has come.
  const Event_ done = direction.events[direction.issued % kInFlight];
  if (error == kSuccess) {
    call = "cuEventRecord";
    error = driver_.event_record(done, direction.stream);
    if (error != kSuccess) error = driver_.event_record(done, direction.stream);
    if (error != kSuccess) ++transfer.in_flight;  // and nobody will hear of its end
  }
  if (error != kSuccess) return driver_.error(error, call, "tensor '" + transfer.tensor + "', " + where_);
  ++direction.issued;
  direction.copies.push_back({&transfer, way, slice, done, now});
  ++transfer.in_flight;
  count(way, slice.bytes);
  return {};
}

// `call` becomes the driver's name of what it calls.
Error_ Device::put(Way way, const Transfer& transfer, const Pieces::Slice& slice, Stream_ stream, const char*& call) {
  const Side& side = way == Way::kOut ? transfer.in : transfer.out;
  const DevicePointer on_gpu = side.on_gpu + slice.offset;
  std::byte* staging = side.staging + slice.offset;
  switch (way) {
    case Way::kOut:
      call = "cuMemcpyDtoHAsync";
      return driver_.copy_out(staging, on_gpu, slice.bytes, stream);
    case Way::kIn:
      call = "cuMemcpyHtoDAsync";
      return driver_.copy_in(on_gpu, staging, slice.bytes, stream);
    case Way::kFill: {
      call = "cuMemsetD8Async";
      const Shares* shares = transfer.shares;
      const DevicePointer whole = shares != nullptr ? shares->buffers[shares->self] : on_gpu;
      return driver_.fill_bytes(whole, 0xff, shares != nullptr ? shares->bytes : slice.bytes, stream);
    }
    case Way::kSum:
      call = "cuLaunchKernel";
      return put_sum(transfer, slice, stream);
    case Way::kFinish:
      call = "cuLaunchKernel";
      return put_finish(transfer, stream);
    case Way::kGather:
      call = "cuMemcpyDtoDAsync";
      return put_gathering(transfer, slice, stream);
  }
  return kSuccess;
}

// A slice of the sums of this rank's share.
Error_ Device::put_sum(const Transfer& transfer, const Pieces::Slice& slice, Stream_ stream) const {
  const Shares& shares = *transfer.shares;
  const std::uint64_t from = shares.mine().offset + slice.offset / shares.sum_bytes * shares.element_bytes;
  KernelSources sources{};
  for (std::size_t rank = 0; rank < shares.buffers.size(); ++rank) sources.at[rank] = shares.buffers[rank] + from;
  DevicePointer sums = shares.sums + slice.offset;
  auto count = static_cast<std::uint32_t>(shares.buffers.size());
  std::uint64_t elements = slice.bytes / shares.sum_bytes;
  void* parameters[] = {&sums, &sources, &count, &elements};
  return launch(shares.combine, slice.bytes, parameters, stream);
}

// The result of this rank's share, in its buffer.
Error_ Device::put_finish(const Transfer& transfer, Stream_ stream) const {
  const Shares& shares = *transfer.shares;
  DevicePointer result = shares.buffers[shares.self] + shares.mine().offset, sums = shares.sums;
  std::uint64_t elements = shares.mine().bytes / shares.element_bytes;
  double divisor = shares.divisor;
  void* parameters[] = {&result, &sums, &elements, &divisor};
  return launch(shares.finish, shares.mine().bytes, parameters, stream);
}

// A kernel that writes so many bytes.
Error_ Device::launch(Function_ function, std::uint64_t bytes, void** parameters, Stream_ stream) const {
  constexpr std::uint64_t kMostBlocks = 1024, kBytesOfBlock = std::uint64_t{kKernelThreads} * 16;
  const auto blocks = static_cast<unsigned>(std::min(bytes / kBytesOfBlock + 1, kMostBlocks));
  return driver_.launch(function, blocks, 1, 1, kKernelThreads, 1, 1, 0, stream, parameters, nullptr);
}

// A slice of another rank's share of the result comes into this one's buffer.
Error_ Device::put_gathering(const Transfer& transfer, const Pieces::Slice& slice, Stream_ stream) const {
  const Shares& shares = *transfer.shares;
  std::size_t rank = 0;
  while (slice.offset >= shares.ranges[rank].offset + shares.ranges[rank].bytes) ++rank;
  return driver_.copy_within(shares.buffers[shares.self] + slice.offset, shares.buffers[rank] + slice.offset,
                             slice.bytes, stream);
}

void Device::count(Way way, std::uint64_t bytes) {
  switch (way) {
    case Way::kOut:
      bytes_out_.fetch_add(bytes, std::memory_order_relaxed);
      return;
    case Way::kIn:
    case Way::kFill:
      bytes_in_.fetch_add(bytes, std::memory_order_relaxed);
      return;
    case Way::kSum:
      bytes_summed_.fetch_add(bytes, std::memory_order_relaxed);
      return;
    case Way::kGather:
      bytes_gathered_.fetch_add(bytes, std::memory_order_relaxed);
      return;
    case Way::kFinish:
      return;
  }
}

std::string Device::status() const {
  std::size_t transfers = 0;
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  {
    std::lock_guard lock(mutex_);
    transfers = all_.size() - free_.size();
  }
  return std::string(R"({"ordinal":)") + std::to_string(ordinal_) + R"(,"name":")" + name_ + R"(","uuid":")" + uuid_ +
         R"(","way":"staging","why":"the library copies through pinned shared memory; the daemon opens no GPU")" +
         R"(,"stream_wait":)" + (no_stream_wait_.empty() ? "true" : "false") + R"(,"no_stream_wait_because":")" +
         no_stream_wait_ + R"(","copied_out_bytes":)" + number(bytes_out_) + R"(,"copied_in_bytes":)" +
         number(bytes_in_) + R"(,"summed_bytes":)" + number(bytes_summed_) + R"(,"gathered_bytes":)" +
         number(bytes_gathered_) + R"(,"operations_under_way":)" + number(transfers) + "}";
}

}  // namespace tensorlane::client::cuda
