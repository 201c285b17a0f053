// Memory that several processes map, as cuMemAlloc's is where it is exported: each allocation is a file without a name,
// and a handle says where another process finds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fake_calls.h"

namespace tensorlane::fake_cuda {

// Such a file, mapped whole.
struct SharedFile {
  void* memory = nullptr;  // null: there is none
  int descriptor = -1;     // -1: the file belongs to another process
  std::uint64_t inode = 0;

  // A new one. Its memory is null where there is none left.
  static SharedFile make(std::size_t bytes);
};

// What a handle of cuIpcGetMemHandle says.
struct Ticket {
  std::uint64_t magic = kMagic;
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;  // of that process
  std::uint64_t bytes = 0;
  std::uint64_t inode = 0;

  static Ticket of(const SharedFile& file, std::size_t bytes);
  // Nothing: the handle is none of cuIpcGetMemHandle.
  static std::optional<Ticket> read(const IpcHandle& handle);
  IpcHandle write() const;

  bool is_of_this_process() const;
  // Its memory is null where the file is no more, or cannot be mapped.
  SharedFile open() const;

  static constexpr std::uint64_t kMagic = 0x6570696b6e616d67;
};

// Ends a mapping, but keeps its addresses: every access to them is a fault.
void forbid(void* memory, std::size_t bytes);
void unmap(void* memory, std::size_t bytes);
// Ignores -1.
void close_file(int descriptor);

}  // namespace tensorlane::fake_cuda
