// Looking at files that somebody else has chosen, as whoever has another / than this process sees them.
//
// None of these waits, and none has an effect on what it looks at: a file is looked up first, and opened for reading
// only where it is a regular one. A FIFO does not notice its reader, nor a device that it was opened. They need /proc.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::files {

// A path, and whose: below a folder that stands for / ("/proc/4711/root", a copy of a host), or, where that is empty,
// this process's own. Below a folder, nothing outside is reached: symbolic links that begin with /, and "..", are
// followed as they are where the folder is /. Kernels before Linux 5.6 cannot do that: there links are refused (ELOOP).
struct Place {
  std::string root;
  std::string path;  // from / on, where there is a root
};

// Closes its descriptor when it goes; -1: there is none, and errno says why.
class Opened {
 public:
  explicit Opened(int fd) : fd_(fd) {}
  ~Opened();
  Opened(Opened&& other) noexcept : fd_(other.release()) {}
  Opened& operator=(Opened&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// What is there, for fstat() and reopen(); nothing can be read from it. kNo: a link at the end of the path is found
// itself.
enum class Follow : bool { kNo, kYes };
Opened find(const Place& place, Follow follow = Follow::kYes);

// For reading, of what find() found. Nothing but a regular file should be.
Opened reopen(const Opened& found);

// Nothing, with ENXIO, for what is no regular file.
Opened open_regular(const Place& place);

bool exists(const Place& place);
bool is_folder(const Place& place);

// What a symbolic link says; empty: it is none.
std::string link_target(const Place& place);

// The names in a folder, sorted; none where there is no folder. No more than 4096 of them are read.
std::vector<std::string> names_in(const Place& folder);

// The content of a regular file, whoever may write it, up to `most` bytes: what is longer is cut. Nothing where it
// cannot be read.
std::optional<std::string> read_beginning(const Place& place, Bytes most);

}  // namespace tensorlane::files
