#include "client-lib/src/cuda/words.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

namespace tensorlane::client::cuda {
namespace {

// Each on a cache line of its own: one is written while streams look at another.
constexpr std::size_t kPage = 64 << 10, kStride = 64;
constexpr const char* kWhere = "words that streams wait for";

struct Pool {
  std::mutex mutex;
  std::vector<Word> free;
};

Pool& pool() {
  static Pool* const only = new Pool;  // outlives every static object of the program
  return *only;
}

Status no_words(const char* why) {
  return {Code::kResourceExhausted, "no memory for words that GPUs see", why, "raise the limits of memory"};
}

Status make_page(const Driver& driver, std::vector<Word>& free) {
  free.reserve(kPage / kStride);
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (page == MAP_FAILED) return no_words(std::strerror(errno));
  const Error_ error = driver.host_register(page, kPage, kHostRegisterPortable | kHostRegisterDeviceMap);
  if (error != kSuccess) {
    munmap(page, kPage);
    return driver.error(error, "cuMemHostRegister", kWhere);
  }
  madvise(page, kPage, MADV_DONTFORK);  // a child's copies would give this process other pages than the GPU's
  for (std::size_t i = kPage / kStride; i > 0; --i)
    free.push_back({reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(page) + (i - 1) * kStride), 0});
  return {};
}

}  // namespace

Result<Word> take_word(const Driver& driver) {
  std::lock_guard lock(pool().mutex);
  std::vector<Word>& free = pool().free;
  if (!free.empty()) {
    const Word word = free.back();
    Word found{word.value, 0};
    if (driver.host_device_pointer(&found.on_gpu, found.value, 0) == kSuccess) {
      free.pop_back();
      return found;
    }
    free.clear();  // the program has reset the GPU, which has forgotten all pages
  }
  TL_RETURN_IF_ERROR(make_page(driver, free));
  Word word = free.back();
  const Error_ error = driver.host_device_pointer(&word.on_gpu, word.value, 0);
  if (error != kSuccess) return driver.error(error, "cuMemHostGetDevicePointer", kWhere);
  free.pop_back();
  return word;
}

void give_word_back(Word word) {
  if (word.value == nullptr) return;
  std::lock_guard lock(pool().mutex);
  pool().free.push_back(word);
}

}  // namespace tensorlane::client::cuda
