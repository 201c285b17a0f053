#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "common/nccl/preflight.h"

namespace tensorlane::nccl {
namespace {

constexpr std::string_view kText = "NCCL version 2.";  // "NCCL version 2.28.9+cuda12.9"
constexpr std::size_t kChunk = std::size_t{1} << 20, kTail = 32;
constexpr off_t kLargest = off_t{8} << 30;

int parse(std::string_view text) {
  const std::string copy(text.substr(0, kTail));
  int minor = 0, patch = 0;
  if (std::sscanf(copy.c_str(), "NCCL version 2.%4d.%2d", &minor, &patch) != 2 || minor < 9) return 0;
  return 20000 + minor * 100 + patch;
}

int search(int file) {
  std::vector<char> buffer(kTail + kChunk);
  std::size_t kept = 0;
  for (;;) {
    const ssize_t got = read(file, buffer.data() + kept, kChunk);
    const std::string_view text(buffer.data(), kept + (got > 0 ? static_cast<std::size_t>(got) : 0));
    for (std::size_t at = text.find(kText); at != text.npos; at = text.find(kText, at + 1)) {
      if (got > 0 && text.size() - at < kTail) break;  // the rest comes with the next chunk
      if (const int version = parse(text.substr(at)); version != 0) return version;
    }
    if (got <= 0) return 0;
    kept = std::min(kTail, text.size());
    std::copy(text.end() - static_cast<std::ptrdiff_t>(kept), text.end(), buffer.begin());
  }
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

int version_of(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return 0;
  struct stat info {};
  const bool regular = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= kLargest;
  const int version = regular ? search(file) : 0;
  close(file);
  return version;
}

}  // namespace tensorlane::nccl
