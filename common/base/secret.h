// Bytes that nobody else may know. They are wiped from memory wherever they are freed, copies included.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace tensorlane {

template <typename T>
struct WipingAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = WipingAllocator<U>;
  };
  void deallocate(T* place, std::size_t count) {
    ::explicit_bzero(place, count * sizeof(T));
    std::allocator<T>::deallocate(place, count);
  }
};

using Secret = std::vector<std::byte, WipingAllocator<std::byte>>;

}  // namespace tensorlane
