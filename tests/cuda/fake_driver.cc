// The controls of the fake driver.
#include "fake_driver.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "fake_state.h"

using namespace tensorlane::fake_cuda;

// --- The whole driver
// -------------------------------------------------------------------------------------------------

void fake_cuda_reset(uint64_t seed, uint64_t max_delay_ns, int devices) {
  state().reset(seed, max_delay_ns, devices);
}

void fake_cuda_share_channels(int n) {
  State& all = state();
  Lock lock(all.mutex);
  all.shared_channels = n;
}

void fake_cuda_break_device(int device, int error) {
  State& all = state();
  Lock lock(all.mutex);
  if (device >= 0 && device < static_cast<int>(all.devices.size())) all.devices[device].error = error;
}

// --- Memory of the GPU
// ------------------------------------------------------------------------------------------------

namespace {

bool exists(const State& all, int device) {
  return device >= 0 && device < static_cast<int>(all.devices.size());
}

// Null: none of this kind begins there, which is a violation.
std::shared_ptr<Range> device_memory(State& all, MemoryKind kind, const void* pointer, const char* what) {
  auto range = all.memory.starting_at(pointer);
  if (range != nullptr && range->kind == kind) return range;
  all.journal.violate(what, ": ", pointer, " is not the beginning of such memory");
  return nullptr;
}

}  // namespace

void* fake_cuda_malloc(int device, size_t bytes) {
  State& all = state();
  Lock lock(all.mutex);
  if (!exists(all, device)) return nullptr;
  void* memory = Memory::allocate(bytes, 256);
  if (memory != nullptr) all.memory.add(MemoryKind::kAllocated, memory, std::max<size_t>(bytes, 1), device);
  return memory;
}

int fake_cuda_free(void* pointer) {
  if (pointer == nullptr) return 0;
  State& all = state();
  Lock lock(all.mutex);
  const auto range = device_memory(all, MemoryKind::kAllocated, pointer, "fake_cuda_free");
  if (range == nullptr) return kInvalidValue;
  all.retire(range, "fake_cuda_free", lock);
  all.memory.bury(pointer, range->bytes);
  return 0;
}

int fake_cuda_adopt(void* pointer, size_t bytes, int device) {
  State& all = state();
  Lock lock(all.mutex);
  if (!exists(all, device)) return kInvalidDevice;
  if (all.memory.add(MemoryKind::kAdopted, pointer, bytes, device) != nullptr) return 0;
  all.journal.violate("fake_cuda_adopt: ", bytes, " bytes at ", pointer, " overlap memory that the driver knows");
  return kInvalidValue;
}

int fake_cuda_release(void* pointer) {
  State& all = state();
  Lock lock(all.mutex);
  const auto range = device_memory(all, MemoryKind::kAdopted, pointer, "fake_cuda_release");
  if (range == nullptr) return kInvalidValue;
  all.retire(range, "fake_cuda_release", lock);
  return 0;
}

// --- Streams
// ----------------------------------------------------------------------------------------------------------

void* fake_cuda_stream_create(int device) {
  State& all = state();
  all.join_finished();
  Lock lock(all.mutex);
  return exists(all, device) ? all.create_stream(device, 0, true)->handle : nullptr;
}

int fake_cuda_stream_destroy(void* stream) {
  State& all = state();
  Lock lock(all.mutex);
  const auto found = all.streams.find(stream);
  if (found == all.streams.end() || !found->second->of_framework) return kInvalidHandle;
  all.destroy_stream(found->second);
  return 0;
}

int fake_cuda_launch(void* stream, void (*function)(void*), void* argument) {
  auto operation = Operation::make(Operation::Kind::kFunction, Call::kCount);
  State& all = state();
  Lock lock(all.mutex);
  const auto found = all.find_stream(stream, -1);
  if (found == nullptr) return kInvalidHandle;
  if (all.devices[found->device].error != 0) return all.devices[found->device].error;
  operation->function = function;
  operation->argument = argument;
  all.put(found, std::move(operation));
  return 0;
}

int fake_cuda_stream_synchronize(void* stream) {
  auto operation = Operation::make(Operation::Kind::kRecord, Call::kCount);
  State& all = state();
  std::shared_ptr<Record> record;
  int error = 0;
  {
    Lock lock(all.mutex);
    const auto found = all.find_stream(stream, -1);
    if (found == nullptr) return kInvalidHandle;
    record = std::make_shared<Record>();
    operation->record = record;
    all.put(found, std::move(operation));
    all.changed.wait(lock.held(), [&] { return record->discarded || record->done.load(std::memory_order_relaxed); });
    error = all.devices[found->device].error;
  }
  record->done.load(std::memory_order_acquire);
  const Hidden hidden;  // the reference is dropped
  record.reset();
  return error;
}

namespace {

template <typename Change>
int change_stream(void* stream, const Change& change) {
  State& all = state();
  Lock lock(all.mutex);
  const auto found = all.find_stream(stream, -1);
  if (found == nullptr) return kInvalidHandle;
  change(all, *found);
  found->channel->look_again();
  return 0;
}

}  // namespace

int fake_cuda_hold_stream(void* stream) {
  return change_stream(stream, [](State&, Stream& its) {
    its.held = true;
    its.steps = 0;
  });
}

int fake_cuda_resume_stream(void* stream) {
  return change_stream(stream, [](State&, Stream& its) { its.held = false; });
}

int fake_cuda_step_stream(void* stream, uint64_t operations) {
  return change_stream(stream, [&](State&, Stream& its) { its.steps += operations; });
}

void fake_cuda_hold_all_streams() {
  State& all = state();
  Lock lock(all.mutex);
  all.hold_all(true);
}

void fake_cuda_resume_all_streams() {
  State& all = state();
  Lock lock(all.mutex);
  all.hold_all(false);
}

size_t fake_cuda_streams(FakeCudaStream* streams, size_t capacity) {
  State& all = state();
  Lock lock(all.mutex);
  size_t place = 0;
  for (const auto& [handle, stream] : all.streams) {
    if (place >= capacity) break;
    streams[place++] = {handle, stream->device, stream->priority, stream->of_framework, stream->held, stream->queued};
  }
  return all.streams.size();
}

int fake_cuda_begin_capture(void* stream, int global) {
  return change_stream(stream, [&](State& all, Stream& its) {
    if (its.capturing) return;
    its.capturing = true;
    its.captures_globally = global != 0;
    if (its.captures_globally) ++all.global_captures;
  });
}

int fake_cuda_end_capture(void* stream) {
  return change_stream(stream, [](State& all, Stream& its) {
    if (its.captures_globally) --all.global_captures;
    its.capturing = its.captures_globally = false;
  });
}

// --- Faults
// -----------------------------------------------------------------------------------------------------------

int fake_cuda_fail(const char* symbol, uint64_t n, int error) {
  State& all = state();
  Lock lock(all.mutex);
  const auto call = call_named(symbol);
  if (!call) return kInvalidValue;
  all.journal.fail(*call, n, error);
  return 0;
}

int fake_cuda_fail_async(const char* symbol, uint64_t n, int error) {
  State& all = state();
  Lock lock(all.mutex);
  const auto call = call_named(symbol);
  if (!call) return kInvalidValue;
  all.journal.fail_async(*call, n, error);
  return 0;
}

int64_t fake_cuda_calls(const char* symbol) {
  State& all = state();
  Lock lock(all.mutex);
  const auto call = call_named(symbol);
  return call ? static_cast<int64_t>(all.journal.calls(*call)) : -1;
}

size_t fake_cuda_call_names(char* names, size_t size) {
  const Hidden hidden;
  std::string text;
  for (int call = 0; call < static_cast<int>(Call::kCount); ++call) {
    text += name_of(static_cast<Call>(call));
    text += '\n';
  }
  if (size > 0) {
    const size_t kept = std::min(text.size(), size - 1);
    std::memcpy(names, text.data(), kept);
    names[kept] = '\0';
  }
  return text.size() + 1;
}

// --- What happened
// ----------------------------------------------------------------------------------------------------

size_t fake_cuda_violations() {
  State& all = state();
  Lock lock(all.mutex);
  return all.journal.violations();
}

const char* fake_cuda_violation(size_t index) {
  State& all = state();
  Lock lock(all.mutex);
  return all.journal.violation(index);
}

int64_t fake_cuda_alive(const char* what) {
  State& all = state();
  Lock lock(all.mutex);
  const std::string_view word(what);
  const auto ranges = [&](MemoryKind kind) { return static_cast<int64_t>(all.memory.count(kind)); };
  if (word == "events") return static_cast<int64_t>(all.events.size());
  if (word == "registered_ranges") return ranges(MemoryKind::kRegistered);
  if (word == "host_allocations") return ranges(MemoryKind::kHostAllocated);
  if (word == "device_allocations") return ranges(MemoryKind::kAllocated) + ranges(MemoryKind::kAdopted);
  if (word == "modules") return static_cast<int64_t>(all.modules.size());
  if (word == "driver_allocations") return ranges(MemoryKind::kDriverAllocated);
  if (word == "imports") return ranges(MemoryKind::kImported);
  if (word == "pushed_contexts") return all.pushed_contexts;
  if (word == "threads") return all.threads();
  int64_t count = 0;
  if (word == "streams") {
    for (const auto& [handle, stream] : all.streams) count += stream->of_framework ? 0 : 1;
  } else if (word == "retained_contexts") {
    for (const auto& device : all.devices) count += device.references;
  } else if (word == "queued") {
    for (const auto& [handle, stream] : all.streams) count += static_cast<int64_t>(stream->queued);
    for (const auto& stream : all.ending) count += static_cast<int64_t>(stream->queued);
  } else {
    count = -1;
  }
  return count;
}

size_t fake_cuda_copies(FakeCudaCopy* copies, size_t capacity) {
  State& all = state();
  Lock lock(all.mutex);
  const auto& log = all.journal.copies();
  std::copy_n(log.begin(), std::min(capacity, log.size()), copies);
  return log.size();
}

uint64_t fake_cuda_most_in_flight(int direction) {
  State& all = state();
  Lock lock(all.mutex);
  return direction >= 0 && direction <= kFakeCudaKernel ? all.journal.most_in_flight(direction) : 0;
}
