// Streams and memory of the fake GPUs: those of the fake CUDA driver (tests/cuda/fake_driver.h) where the process has
// loaded it, else streams on which everything has been done already.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fake_gpu {

int device_count();

// A stream's number is the driver's handle of it (a pointer); 0 is the default stream of device 0.
using Stream = std::int64_t;

Stream default_stream(int device);
Stream new_stream(int device);
Stream current_stream(int device);                  // of this thread
Stream exchange_stream(int device, Stream stream);  // returns what was current
// Returns when everything that the stream was given has been done.
void synchronize(Stream stream);
void synchronize_device(int device);

// As an operation of the stream.
void copy(void* to, const void* from, std::size_t bytes, Stream stream);

// What a stream was given so far.
void* record(void* event, Stream stream);  // `event`: an earlier one to be used again, or null
void destroy(void* event);
bool is_done(void* event);
void synchronize_event(void* event);
// The stream waits, and the caller does not.
void wait(void* event, Stream stream);

// Memory as PyTorch's CUDA allocator gives it: what is freed is given out again at once to the stream that it was
// allocated for.
void* allocate(int device, std::size_t bytes);
void free(void* memory);
// The memory is not given out again before this stream has come so far.
void record_use(void* memory, Stream stream);
// From now on (or no longer) freed memory is filled with 0xa5 when the stream that it was allocated for comes to it.
void poison(bool on);
// Gives back to the driver what is free.
void empty_cache();

}  // namespace fake_gpu
