#include "daemon/telemetry/span_files.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/base/text.h"
#include "common/files/careful.h"

namespace tensorlane::telemetry {
namespace {

constexpr const char* kFileOfSpans = "the spans of a job that has failed";
constexpr std::string_view kPrefix = "spans-", kSuffix = ".json";

// A job's name as part of a file's.
std::string for_file(const std::string& name) {
  constexpr std::size_t kMost = 40;
  std::string word = name.substr(0, kMost);
  for (char& c : word) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '.') c = '_';
  }
  return word;
}

struct Kept {
  std::int64_t milliseconds;
  std::uint32_t user;
  std::string path;
};

// The files of this class in a folder, oldest first.
std::vector<Kept> kept_files(const std::string& folder) {
  std::vector<Kept> kept;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    unsigned user = 0;
    const std::size_t dash = name.rfind('-');
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || dash == std::string::npos ||
        std::sscanf(name.c_str(), "spans-%u-", &user) != 1)
      continue;
    kept.push_back({std::atoll(name.c_str() + dash + 1), user, entry.path().string()});
  }
  std::ranges::sort(kept, {}, [](const Kept& k) { return std::pair(k.milliseconds, k.path); });
  return kept;
}

Status not_written(const std::string& path, int error) {
  return {Code::kUnavailable, fmt::format("cannot write {}: {}", kFileOfSpans, std::strerror(error)), path,
          "free space on the disk or choose another folder (spans_on_failure of daemon.yaml)"};
}

}  // namespace

std::string default_span_folder() {
  const char* const state = std::getenv("STATE_DIRECTORY");  // of systemd.exec(5): paths between colons
  if (state == nullptr || *state == '\0') return {};
  return std::string(state, std::strcspn(state, ":")) + "/spans";
}

SpanFiles::SpanFiles(const SpanStore& store, std::string folder, Duration between)
    : store_(store), folder_(store.remembers() ? std::move(folder) : std::string()), between_(between) {
  if (!folder_.empty()) writer_ = std::thread([this] { run(); });
}

SpanFiles::~SpanFiles() {
  stop();
}

void SpanFiles::stop() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

void SpanFiles::failed(JobId job, Epoch epoch, const std::string& name) {
  if (folder_.empty()) return;
  const std::optional<std::uint32_t> user = store_.names().user_of(job, epoch);
  if (!user) return;
  const std::lock_guard lock(mutex_);
  const Time now = SpanStore::now();
  const auto before = last_.find(*user);
  if (quit_ || wanted_.size() >= kMostWanted || (before != last_.end() && now - before->second < between_)) return;
  std::erase_if(last_, [&](const auto& one) { return now - one.second >= between_; });
  last_.insert_or_assign(*user, now);
  wanted_.push_back({job, epoch, name, *user});
  changed_.notify_all();
}

std::vector<SpanFiles::Saved> SpanFiles::saved() const {
  const std::lock_guard lock(mutex_);
  return saved_;
}

void SpanFiles::run() {
  pthread_setname_np(pthread_self(), "span files");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return quit_ || !wanted_.empty(); });
    if (wanted_.empty()) return;
    const Wanted wanted = std::move(wanted_.front());
    wanted_.pop_front();
    lock.unlock();
    save(wanted);
    lock.lock();
  }
}

void SpanFiles::save(const Wanted& wanted) {
  const Result<std::string> path = write(wanted);
  if (!path.ok()) return spdlog::error("job '{}': {}", printable(wanted.name), path.status().to_string());
  spdlog::warn("job '{}' of user {}: its last spans on this host are in {}", printable(wanted.name), wanted.user,
               *path);
  {
    const std::lock_guard lock(mutex_);
    saved_.push_back({wanted.name, *path, wanted.user});
  }
  make_room(wanted.user);
}

// Removes the oldest files until there are not too many: after one was written, because one that could not be must cost
// no other.
void SpanFiles::make_room(std::uint32_t user) {
  std::vector<Kept> kept = kept_files(folder_);
  auto of_user = static_cast<std::size_t>(std::ranges::count(kept, user, &Kept::user));
  std::size_t all = kept.size();
  for (const Kept& file : kept) {
    const bool much = of_user > kMostFilesOfUser ? file.user == user : all > kMostFiles;
    if (!much) continue;
    std::error_code error;
    std::filesystem::remove(file.path, error);
    --all;
    if (file.user == user) --of_user;
    const std::lock_guard lock(mutex_);
    std::erase_if(saved_, [&](const Saved& saved) { return saved.path == file.path; });
  }
}

Result<std::string> SpanFiles::write(const Wanted& wanted) const {
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return not_written(folder_, errno);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string path = fmt::format("{}/{}{}-{}-{}{}", folder_, kPrefix, wanted.user, for_file(wanted.name),
                                       std::chrono::duration_cast<std::chrono::milliseconds>(now).count(), kSuffix);
  TL_ASSIGN_OR_RETURN(const int file, files::create(path, kFileOfSpans));
  int error = 0;
  SpanStore::Filter filter;
  filter.only = {wanted.job, wanted.epoch};
  store_.events(filter, [&](const std::string& text) {
    for (std::size_t at = 0; at < text.size() && error == 0;) {
      const ssize_t count = ::write(file, text.data() + at, text.size() - at);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        error = count == 0 ? ENOSPC : errno;
      } else {
        at += static_cast<std::size_t>(count);
      }
    }
    return error == 0;
  });
  close(file);
  if (error != 0) {
    unlink(path.c_str());
    return not_written(path, error);
  }
  return path;
}

}  // namespace tensorlane::telemetry
