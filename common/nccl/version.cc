#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <vector>

#include "common/nccl/preflight.h"

namespace tensorlane::nccl {
namespace {

constexpr std::string_view kText = "NCCL version 2.";  // "NCCL version 2.28.9+cuda12.9"
constexpr std::size_t kChunk = std::size_t{1} << 20, kTail = 32;

int parse(std::string_view text) {
  const std::string copy(text.substr(0, kTail));
  int minor = 0, patch = 0;
  if (std::sscanf(copy.c_str(), "NCCL version 2.%4d.%2d", &minor, &patch) != 2 || minor < 9) return 0;
  return 20000 + minor * 100 + patch;
}

// Where data begins, from `at` on: holes are passed over where the file system knows them. -1: there is no more.
off_t next_data(int file, off_t at) {
  const off_t next = lseek(file, at, SEEK_DATA);
  return next >= 0 || errno == ENXIO ? next : at;
}

int search(int file, std::uint64_t& budget) {
  std::vector<char> buffer(2 * kTail + kChunk);
  std::size_t kept = 0;
  for (off_t at = 0;;) {
    const off_t next = next_data(file, at);
    if (next > at) kept += kTail;  // the zeros of the hole
    at = std::max(at, next);
    const std::size_t most = std::min<std::uint64_t>(kChunk, budget);
    const ssize_t got = next < 0 ? 0 : pread(file, buffer.data() + kept, most, at);
    const std::string_view text(buffer.data(), kept + (got > 0 ? static_cast<std::size_t>(got) : 0));
    for (std::size_t found = text.find(kText); found != text.npos; found = text.find(kText, found + 1)) {
      if (got > 0 && text.size() - found < kTail) break;  // the rest comes with the next chunk
      if (const int version = parse(text.substr(found)); version != 0) return version;
    }
    if (got <= 0) return 0;
    at += got;
    budget -= static_cast<std::uint64_t>(got);
    kept = std::min(kTail, text.size());
    std::copy(text.end() - static_cast<std::ptrdiff_t>(kept), text.end(), buffer.begin());
    std::fill_n(buffer.begin() + static_cast<std::ptrdiff_t>(kept), kTail, '\0');
  }
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

int version_of(const files::Place& place, Budget& budget) {
  if (budget.is_spent()) return 0;
  const files::Opened file = files::open_regular(place);
  if (!file.ok()) return 0;
  --budget.files;
  return search(file.get(), budget.bytes);
}

}  // namespace tensorlane::nccl
