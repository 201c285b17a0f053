#include "common/files/careful.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/base/text.h"

namespace tensorlane::files {
namespace {

// Without fmt: the client library, which reads a secret by this, needs nothing but the C++ run time.

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Whoever may write a folder may put another file into any file's place there.
Status check_folder(const Place& place, const std::string& what) {
  struct stat folder {};
  const Opened found = find({place.root, folder_of(place.path)});
  if (!found.ok() || fstat(found.get(), &folder) != 0 || (folder.st_mode & S_IWOTH) == 0 ||
      (folder.st_mode & S_ISVTX) != 0)
    return {};
  return {Code::kInvalidArgument, "everybody can replace " + what + ", because everybody may write its folder",
          place.path, "chmod o-w " + for_shell(folder_of(place.path))};
}

Status check_owner(const struct stat& file, const std::string& path, const std::string& what) {
  if (file.st_uid == geteuid() || file.st_uid == 0) return {};
  return {Code::kInvalidArgument,
          what + " belongs to user " + std::to_string(file.st_uid) +
              ", who can change it, and this process runs as user " + std::to_string(geteuid()),
          path, "run this process as that user, or chown " + std::to_string(geteuid()) + " " + for_shell(path)};
}

Status check(const struct stat& file, const Place& place, const std::string& what, Care care) {
  const std::string& path = place.path;
  if (!S_ISREG(file.st_mode)) {
    return {Code::kInvalidArgument, what + " is no regular file", path,
            "expected a file, neither a folder nor a FIFO nor a device"};
  }
  TL_RETURN_IF_ERROR(check_folder(place, what));
  if (care == Care::kKey && (file.st_mode & 077) != 0) {
    return {Code::kInvalidArgument, what + " can be read by other users", path, "chmod 600 " + for_shell(path)};
  }
  if (care == Care::kSharedSecret && (file.st_mode & S_IROTH) != 0)
    return {Code::kInvalidArgument, what + " can be read by everybody", path, "chmod o-rwx " + for_shell(path)};
  if ((file.st_mode & S_IWOTH) != 0)
    return {Code::kInvalidArgument, what + " can be changed by everybody", path, "chmod o-w " + for_shell(path)};
  return care == Care::kConfiguration ? Status() : check_owner(file, path, what);
}

Status unreadable(const std::string& path, const std::string& what, int error) {
  return {Code::kInvalidArgument, "cannot read " + what + ": " + std::strerror(error), path,
          "check the path and its permissions"};
}

Status unwritable(const std::string& path, const std::string& what, const std::string& why) {
  return {Code::kUnavailable, "cannot write " + what + ": " + why, path, "choose a path that this process may write"};
}

std::string reason(int error) {
  return error == ELOOP ? "it is a symbolic link" : error == ENXIO ? "it is no regular file" : std::strerror(error);
}

// What create() asks of a file that was there before.
Status check_own(const struct stat& file, const std::string& path, const std::string& what) {
  if (S_ISLNK(file.st_mode)) return unwritable(path, what, reason(ELOOP));
  if (!S_ISREG(file.st_mode)) return unwritable(path, what, "it is no regular file");
  if (file.st_uid != geteuid())
    return unwritable(path, what,
                      "it belongs to user " + std::to_string(file.st_uid) + ", not to " + std::to_string(geteuid()));
  if (file.st_nlink > 1) return unwritable(path, what, "the file has another name, too (a hard link)");
  return {};
}

}  // namespace

Result<std::string> read(const std::string& path, const std::string& what, Care care, Bytes most) {
  return read(Place{"", path}, what, care, most);
}

Result<std::string> read(const Place& place, const std::string& what, Care care, Bytes most) {
  const std::string& path = place.path;
  const Opened found = find(place, care == Care::kKey ? Follow::kNo : Follow::kYes);
  struct stat info {};
  if (!found.ok() || fstat(found.get(), &info) != 0) return unreadable(path, what, errno);
  if (S_ISLNK(info.st_mode)) {
    return Status(Code::kInvalidArgument, what + " is a symbolic link, whose target others may choose", path,
                  "name the file itself");
  }
  TL_RETURN_IF_ERROR(check(info, place, what, care));
  const Opened file = reopen(found);
  if (!file.ok()) return unreadable(path, what, errno);
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t count = ::read(file.get(), part, sizeof part);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return unreadable(path, what, errno);
    if (count == 0) break;
    text.append(part, static_cast<std::size_t>(count));
    if (text.size() > most.value) {
      return Status(Code::kResourceExhausted, what + " has more than " + std::to_string(most.value) + " bytes", path,
                    "expected a shorter file");
    }
  }
  if (care != Care::kConfiguration) explicit_bzero(part, sizeof part);
  return text;
}

Result<int> create(const std::string& path, const std::string& what, Readers readers) {
  constexpr mode_t kOwners = S_IRUSR | S_IWUSR, kEverybodys = kOwners | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH;
  const bool for_owner = readers == Readers::kOwner;
  // Not O_TRUNC: what is there is looked at before it is emptied.
  Opened file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW,
                   for_owner ? kOwners : kEverybodys));
  struct stat info {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) return unwritable(path, what, reason(errno));
  TL_RETURN_IF_ERROR(check_own(info, path, what));
  if ((for_owner && fchmod(file.get(), kOwners) != 0) || ftruncate(file.get(), 0) != 0)
    return unwritable(path, what, reason(errno));
  return file.release();
}

Status write_all(int file, std::string_view text, const std::string& path, const std::string& what) {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      return {Code::kUnavailable, "cannot write " + what + ": " + std::strerror(errno), path,
              "free space on the disk or choose another path"};
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Status check_creatable(const std::string& path, const std::string& what) {
  struct stat info {};
  const bool there = lstat(path.c_str(), &info) == 0;
  if (there) TL_RETURN_IF_ERROR(check_own(info, path, what));
  const int allowed = there ? access(path.c_str(), W_OK) : access(folder_of(path).c_str(), W_OK | X_OK);
  return allowed == 0 ? Status() : unwritable(path, what, reason(errno));
}

}  // namespace tensorlane::files
