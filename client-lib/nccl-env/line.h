// What the plugin says: lines on the standard error of a program that knows nothing of it.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace tensorlane::nccl_env {

// Neither building nor writing a line allocates, throws, raises a signal or waits for long, whatever has become of the
// process.
class Line {
 public:
  Line& operator<<(std::string_view text);  // bytes that are not printable become '?'

  // Writes "tensorlane: TEXT\n" in one call, so that lines of other threads and processes do not come between. A line
  // that cannot be written is lost.
  void write();

 private:
  // A pipe takes as many bytes (PIPE_BUF) at once.
  static constexpr std::size_t kMostBytes = 4096;
  static constexpr std::string_view kStart = "tensorlane: ", kCut = "...", kEnd = "\n";

  void put(std::string_view text);

  std::array<char, kMostBytes> bytes_{};  // the first size_ of them
  std::size_t size_ = 0;
  bool is_cut_ = false;
};

// While it is there, the thread cannot be cancelled: opening, reading and writing would else end it in the middle,
// which ends the process. NCCL does not expect either that asking for a variable changes errno.
class Undisturbed {
 public:
  Undisturbed();
  ~Undisturbed();
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;

 private:
  int errno_before_;
  int cancel_before_ = 0;
};

}  // namespace tensorlane::nccl_env
