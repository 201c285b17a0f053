// Bytes that nobody else may know. They are wiped from memory wherever they are freed, copies included.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
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

// Wipes an object that lives longer than this.
class Wipe {
 public:
  template <typename T>
  explicit Wipe(T& object) : place_(&object), size_(sizeof object) {
    static_assert(std::is_trivially_copyable_v<T>);
  }
  ~Wipe() { ::explicit_bzero(place_, size_); }
  Wipe(const Wipe&) = delete;
  Wipe& operator=(const Wipe&) = delete;

 private:
  void* place_;
  std::size_t size_;
};

using Secret = std::vector<std::byte, WipingAllocator<std::byte>>;

}  // namespace tensorlane
