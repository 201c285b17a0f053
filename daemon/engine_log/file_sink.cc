#include "daemon/engine_log/file_sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>

namespace tensorlane::engine_log {
namespace {

constexpr std::size_t kLongestName = 80;

std::string as_file_name(const std::string& name) {
  std::string safe = name.substr(0, kLongestName);
  for (char& c : safe) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_' && c != '-') c = '_';
  }
  return safe;
}

Status unwritable(const std::string& path, int error) {
  return {
      Code::kUnavailable, fmt::format("cannot write an engine's log: {}", std::strerror(error)), path,
      "training goes on without; make `record` of daemon.yaml a folder that the daemon may write, with space in it"};
}

class FileSink final : public Sink {
 public:
  FileSink(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~FileSink() override { close(fd_); }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  Status write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return unwritable(path_, written < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return {};
  }
  void stopped(const Status& why) override { spdlog::warn("recording of {} stops: {}", path_, why.to_string()); }

 private:
  const std::string path_;
  const int fd_;
};

}  // namespace

Result<std::unique_ptr<Sink>> open_file_sink(const std::string& folder, const std::string& job, Epoch epoch,
                                             const std::string& host, RailIndex rail) {
  const std::string path =
      fmt::format("{}/{}-{}-{}-rail{}.tllog", folder, as_file_name(job), epoch.value, as_file_name(host), rail.value);
  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return unwritable(path, errno);
  return std::unique_ptr<Sink>(std::make_unique<FileSink>(path, fd));
}

Status check_folder(const std::string& folder) {
  struct stat about {};
  if (stat(folder.c_str(), &about) != 0) return unwritable(folder, errno);
  if (!S_ISDIR(about.st_mode)) return unwritable(folder, ENOTDIR);
  if ((about.st_mode & S_IWOTH) != 0 && (about.st_mode & S_ISVTX) == 0) {
    return {Code::kUnavailable, "cannot write an engine's log: everybody can replace what is in the folder", folder,
            "chmod o-w " + folder};
  }
  return access(folder.c_str(), W_OK | X_OK) == 0 ? Status() : unwritable(folder, errno);
}

}  // namespace tensorlane::engine_log
