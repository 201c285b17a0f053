#include "common/files/place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <filesystem>
#include <system_error>

namespace tensorlane::files {
namespace {

namespace fs = std::filesystem;

// As in <linux/openat2.h> and <sys/syscall.h>, which old systems do not have.
struct OpenHow {
  std::uint64_t flags, mode, resolve;
};
constexpr std::uint64_t kNoMagicLinks = 0x02, kInRoot = 0x10;
constexpr long kOpenat2 = 437;

std::string own_path(const Opened& opened) {
  return "/proc/self/fd/" + std::to_string(opened.get());
}

bool is_kind(const Opened& found, mode_t kind) {
  struct stat info {};
  return found.ok() && fstat(found.get(), &info) == 0 && (info.st_mode & S_IFMT) == kind;
}

// For kernels that do not resolve paths below a folder: no link is followed, and nothing leads up.
Opened walk(Opened at, const std::string& path, Follow follow) {
  std::vector<std::string> names;
  for (const fs::path& name : fs::path(path).relative_path()) {
    if (!name.empty() && name != ".") names.push_back(name);
  }
  for (std::size_t i = 0; i < names.size() && at.ok(); ++i) {
    const bool may_be_link = follow == Follow::kNo && i + 1 == names.size();
    at = Opened(names[i] == ".." ? -1 : openat(at.get(), names[i].c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW));
    if (names[i] != ".." && (may_be_link || !is_kind(at, S_IFLNK))) continue;
    errno = ELOOP;
    return Opened(-1);
  }
  return at;
}

}  // namespace

Opened::~Opened() {
  if (fd_ < 0) return;
  const int before = errno;
  close(fd_);
  errno = before;
}

Opened find(const Place& place, Follow follow) {
  const int flags = O_PATH | O_CLOEXEC | (follow == Follow::kNo ? O_NOFOLLOW : 0);
  if (place.root.empty()) return Opened(open(place.path.c_str(), flags));
  Opened root(open(place.root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok()) return root;
  OpenHow how{static_cast<std::uint64_t>(flags), 0, kInRoot | kNoMagicLinks};
  constexpr int kTries = 100;  // EAGAIN: something was renamed meanwhile, so that ".." may lead out
  for (int i = 0; i < kTries; ++i) {
    Opened found(static_cast<int>(syscall(kOpenat2, root.get(), place.path.c_str(), &how, sizeof how)));
    if (found.ok() || (errno != EAGAIN && errno != ENOSYS && errno != EPERM)) return found;
    if (errno != EAGAIN) return walk(std::move(root), place.path, follow);  // EPERM: of old filters of system calls
  }
  return Opened(-1);
}

Opened reopen(const Opened& found) {
  return Opened(open(own_path(found).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

Opened open_regular(const Place& place) {
  const Opened found = find(place);
  if (found.ok() && is_kind(found, S_IFREG)) return reopen(found);
  if (found.ok()) errno = ENXIO;
  return Opened(-1);
}

bool exists(const Place& place) {
  return find(place).ok();
}

bool is_folder(const Place& place) {
  return is_kind(find(place), S_IFDIR);
}

std::string link_target(const Place& place) {
  const Opened found = find(place, Follow::kNo);
  std::array<char, PATH_MAX> target;
  const ssize_t size = found.ok() ? readlinkat(found.get(), "", target.data(), target.size()) : -1;
  return {target.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
}

std::vector<std::string> names_in(const Place& folder) {
  constexpr std::size_t kMost = 4096;
  std::vector<std::string> names;
  const Opened found = find(folder);
  if (!is_kind(found, S_IFDIR)) return names;
  std::error_code error;
  for (fs::directory_iterator entry(own_path(found), error), end; entry != end && !error && names.size() < kMost;
       entry.increment(error))
    names.push_back(entry->path().filename());
  std::ranges::sort(names);
  return names;
}

std::optional<std::string> read_beginning(const Place& place, Bytes most) {
  const Opened file = open_regular(place);
  if (!file.ok()) return std::nullopt;
  std::string text;
  std::array<char, 65536> part;
  while (text.size() < most.value) {
    const ssize_t count =
        ::read(file.get(), part.data(), std::min<std::uint64_t>(part.size(), most.value - text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) break;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace tensorlane::files
