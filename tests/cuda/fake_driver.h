// The controls of a driver of NVIDIA GPUs that has no GPU. It is a shared object with the soname libcuda.so.1 and the
// entry points of client-lib/src/cuda/driver.h; GPU memory is ordinary memory of the process. Tests of everything that
// the library does with a GPU run on it, under the sanitizers too.
//
// What it promises, and what differs from a GPU:
// - A stream is a queue with one thread. Its operations run in the order in which they were put. Each waits for a
//   random time first, which the seed decides. Streams run at the same time. The null stream (0), CU_STREAM_LEGACY (1:
//   the same stream) and CU_STREAM_PER_THREAD (2) are such queues too; unlike NVIDIA's, the null stream does not wait
//   for other streams, nor they for it. In the controls these three handles mean those of the current context's device,
//   or of device 0 without one.
// - Threads are ordered ("happens before") only by what orders them on a GPU: putting an operation before it runs, an
//   operation before the next one of its stream, and the operations before an event's record before the cuEventQuery
//   that returns success. The driver's own lock orders nothing that the thread sanitizer sees, so that a race of the
//   program under test shows; TENSORLANE_FAKE_CUDA=watch_self=1 shows the lock, to look for races of this driver.
// - Entry points that need a current context want one even where NVIDIA's happen to work without. These work without:
//   cuEventQuery, cuStreamIsCapturing of a stream that was created, and cuPointerGetAttribute.
// - An error of an operation that runs, and fake_cuda_break_device, is sticky: all calls that touch the context of the
//   device return it from then on, and what its streams hold is discarded. Calls that give something back (destroy,
//   release, unregister, free, close, pop) still do so, and return the error.
// - Memory of cuMemAlloc is a file without a name, which other processes with this driver map (cuIpcOpenMemHandle).
//   Memory that is freed while they have it open is filled with a pattern. One allocation has 1 GiB at most.
// - The image of a module may be anything but null. Its kernels are those of the library, both those that combine and
//   those that finish (client-lib/src/cuda/kernels.h), which the stream's thread computes. All memory of devices that
//   this process knows is in reach of each device. Each operand of a kernel has to be a multiple of 16, to lie wholly
//   in an allocation, and to be the result's very memory or none of it. What is wrong with that is a violation when
//   the kernel is launched, and a sticky error when it runs, as on a GPU.
// - Contexts outlive their last release, as they do under a framework that holds a reference; using one that the
//   program does not retain is a violation.
//
// A *violation* is a use that the interface forbids or that is a mistake for a library that copies asynchronously. It
// is recorded as a text; the call returns what NVIDIA's driver returns. Copies between device memory and host memory
// that is not pinned at all are carried out, as NVIDIA's driver does.
//
// A program that cannot call the controls sets TENSORLANE_FAKE_CUDA, which is read at the first call:
// "seed=1,delay_us=50,devices=1,channels=2,watch_self=0,print=1,fail=SYMBOL:N:ERROR,fail_async=SYMBOL:N:ERROR"; each is
// optional. With print=1 every violation is printed to stderr when it happens. At start there is one device and no
// delay.
//
// Any thread may call the controls unless a comment says otherwise. Handles of streams are those of the driver
// interface (CUstream). `symbol` is the name of an entry point, as in driver.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_EXPORT __attribute__((visibility("default")))

extern "C" {

enum FakeCudaDirection {
  kFakeCudaOut = 0,
  kFakeCudaIn = 1,
  kFakeCudaFill = 2,
  kFakeCudaWithin = 3,
  kFakeCudaKernel = 4
};

// A copy, fill or kernel that was put on a stream. The moments count what happens to those of all streams: of two, the
// lower one was earlier. 0: it has not happened.
struct FakeCudaCopy {
  int direction;  // FakeCudaDirection; kFakeCudaOut is device to host, kFakeCudaWithin device to device
  int device;
  void* stream;
  uint64_t device_address;     // of a copy within device memory and of a kernel: where the result goes
  uint64_t host_address;       // of a copy between the two
  uint64_t source_address;     // of a copy within device memory
  uint64_t bytes;              // of a kernel: of the result
  uint64_t put, began, ended;  // moments
  int failed;                  // 1: discarded, or it failed when it ran
};

// A stream that exists.
struct FakeCudaStream {
  void* handle;
  int device, priority;
  int of_framework;  // 1: made by fake_cuda_stream_create, or a null stream
  int held;
  uint64_t queued;  // operations that were put and have not ended
};

// --- The whole driver
// -------------------------------------------------------------------------------------------------

// Everything anew: no streams, events, contexts, memory, violations, faults or log. Waits for the streams' threads to
// end (a function of fake_cuda_launch that runs has to return), and discards what they hold. Each operation waits for
// 0..max_delay_ns before it runs. Memory of fake_cuda_malloc, cuMemAlloc and cuMemHostAlloc that is left is freed, and
// what is imported is given back. No other thread may be in a call.
FAKE_CUDA_EXPORT void fake_cuda_reset(uint64_t seed, uint64_t max_delay_ns, int devices);
// Of streams created from now on, those of one device and priority share n queues, in turns, as with
// CUDA_DEVICE_MAX_CONNECTIONS: operations of all streams of a queue run in the order in which they were put, so that
// one that waits blocks the others. 0 (the default): each stream has a queue of its own.
FAKE_CUDA_EXPORT void fake_cuda_share_channels(int n);
// All calls that touch the context of `device` return `error` from now on.
FAKE_CUDA_EXPORT void fake_cuda_break_device(int device, int error);

// --- Memory of the GPU
// ------------------------------------------------------------------------------------------------

// Device memory, filled with a pattern. Null: no such device, or no memory.
FAKE_CUDA_EXPORT void* fake_cuda_malloc(int device, size_t bytes);
// Fills the memory with another pattern, hides it from the address sanitizer, and keeps it for a while, so that its
// addresses are not used again soon. Violation: operations that use it have not ended, or it is not of
// fake_cuda_malloc. Operations that begin afterwards are a violation each, and fail with CUDA_ERROR_ILLEGAL_ADDRESS
// (700), which is sticky. Null is ignored. Returns an error of the driver, or 0.
FAKE_CUDA_EXPORT int fake_cuda_free(void* pointer);
// Declares memory of the caller to be device memory until fake_cuda_release of the same pointer. Violations: it
// overlaps memory that the driver knows; operations that use it have not ended at its release. Returns an error, or 0.
FAKE_CUDA_EXPORT int fake_cuda_adopt(void* pointer, size_t bytes, int device);
FAKE_CUDA_EXPORT int fake_cuda_release(void* pointer);

// --- Streams
// ----------------------------------------------------------------------------------------------------------

// A stream of the program around the library, like one of PyTorch (priority 0). Null: no such device.
FAKE_CUDA_EXPORT void* fake_cuda_stream_create(int device);
// What is queued on it still runs. Returns an error, or 0.
FAKE_CUDA_EXPORT int fake_cuda_stream_destroy(void* stream);
// A kernel: function(argument) runs on the stream's thread. It may call no entry point. Returns an error, or 0.
FAKE_CUDA_EXPORT int fake_cuda_launch(void* stream, void (*function)(void*), void* argument);
// Waits until everything that was put on the stream before has ended. Returns the device's sticky error, or 0. Do not
// call it for a stream that is held.
FAKE_CUDA_EXPORT int fake_cuda_stream_synchronize(void* stream);
// Lets no further operation of the stream begin (one that has begun goes on), until it is resumed.
FAKE_CUDA_EXPORT int fake_cuda_hold_stream(void* stream);
FAKE_CUDA_EXPORT int fake_cuda_resume_stream(void* stream);
// Lets this number of further operations of a held stream begin; a later call adds to it.
FAKE_CUDA_EXPORT int fake_cuda_step_stream(void* stream, uint64_t operations);
// The same for all streams, those that are created later included.
FAKE_CUDA_EXPORT void fake_cuda_hold_all_streams(void);
FAKE_CUDA_EXPORT void fake_cuda_resume_all_streams(void);
// Copies at most `capacity` of the streams that exist, in the order of their creation. Returns how many there are.
FAKE_CUDA_EXPORT size_t fake_cuda_streams(struct FakeCudaStream* streams, size_t capacity);

// Between the two cuStreamIsCapturing says 1 for the stream. Putting anything on it is a violation and returns
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900); so is querying an event that was last recorded on it, which returns
// CUDA_ERROR_CAPTURED_EVENT (907). With `global` != 0 (the mode that PyTorch uses unless asked for another) the
// following are forbidden too, to every thread that has not called cuThreadExchangeStreamCaptureMode for another mode
// than global: cuEventQuery, cuMemHostRegister, cuMemHostUnregister, cuMemHostAlloc, cuMemFreeHost, cuMemAlloc,
// cuMemFree, cuIpcOpenMemHandle, cuIpcCloseMemHandle, cuModuleLoadData and cuModuleUnload.
FAKE_CUDA_EXPORT int fake_cuda_begin_capture(void* stream, int global);
FAKE_CUDA_EXPORT int fake_cuda_end_capture(void* stream);

// --- Faults
// -----------------------------------------------------------------------------------------------------------

// The n-th call of the entry point from now on (1: the next) has no effect and returns `error`. Returns 0, or
// CUDA_ERROR_INVALID_VALUE when there is no such entry point. All may be used several times.
FAKE_CUDA_EXPORT int fake_cuda_fail(const char* symbol, uint64_t n, int error);
// The n-th copy, fill or kernel that this entry point puts on a stream from now on fails when it runs: `error` becomes
// sticky.
FAKE_CUDA_EXPORT int fake_cuda_fail_async(const char* symbol, uint64_t n, int error);
// How often the entry point was called since the reset; -1: there is no such entry point.
FAKE_CUDA_EXPORT int64_t fake_cuda_calls(const char* symbol);
// The names of all entry points, each followed by a newline, as a string that is cut off at size - 1 characters.
// Returns the size that it needs.
FAKE_CUDA_EXPORT size_t fake_cuda_call_names(char* names, size_t size);

// --- What happened
// ----------------------------------------------------------------------------------------------------

FAKE_CUDA_EXPORT size_t fake_cuda_violations(void);
// Valid until the reset. Null: there is no such one, or it is not among the first 1000.
FAKE_CUDA_EXPORT const char* fake_cuda_violation(size_t index);
// How many there are of "streams" and "events" (created by the library and not destroyed), "registered_ranges",
// "host_allocations", "retained_contexts" (retains less releases), "pushed_contexts" (pushes less pops, of all
// threads), "device_allocations" (of fake_cuda_malloc and fake_cuda_adopt), "driver_allocations" (of cuMemAlloc),
// "imports" (memory of other processes that is open here), "modules", "queued" (operations that have not ended) and
// "threads" (of streams). -1: another word.
FAKE_CUDA_EXPORT int64_t fake_cuda_alive(const char* what);
// Copies at most `capacity` of the log of copies, fills and kernels, in the order in which they were put. Returns how
// many there are; the first 2^20 are kept.
FAKE_CUDA_EXPORT size_t fake_cuda_copies(struct FakeCudaCopy* copies, size_t capacity);
// The largest number of copies, fills or kernels of this direction (FakeCudaDirection) that were put and had not ended
// at the same time.
FAKE_CUDA_EXPORT uint64_t fake_cuda_most_in_flight(int direction);

}  // extern "C"
