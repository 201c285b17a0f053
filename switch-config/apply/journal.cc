#include "switch-config/apply/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "common/json/json.h"

namespace tensorlane::switches::apply {

namespace {

using Json = nlohmann::json;

// The file that is there in each phase; of kNone it is that of what was applied.
constexpr std::array<const char*, 4> kFiles{"applied.json", "changing.json", "waiting.json", "reverting.json"};

Status failed(const std::string& what, const std::string& path) {
  return Status(Code::kPermissionDenied, fmt::format("{} ({})", what, std::strerror(errno)), path,
                "run as root, or name another folder by --state");
}

Json to_json(const Queues& queues) {
  return {{"lines", queues.lines}, {"state", queues.state}};
}

Json to_json(const Record& record) {
  Json ports = Json::array();
  for (const PortChange& port : record.ports)
    ports.push_back({{"device", port.device},
                     {"port", port.port},
                     {"namespace", port.ns},
                     {"inode", port.ns_inode},
                     {"before", to_json(port.before)},
                     {"after", to_json(port.after)}});
  return {{"canary", record.canary}, {"confirm_by_ns", record.confirm_by.value}, {"ports", ports}};
}

std::string text_of(const Record& record) {
  return to_json(record).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Queues queues_of(const Json& json) {
  return {json.at("lines").get<std::string>(), json.at("state").get<std::string>()};
}

Record record_of(const Json& json) {
  Record record;
  record.canary = json.at("canary").get<std::size_t>();
  record.confirm_by = Time(json.at("confirm_by_ns").get<std::int64_t>());
  for (const Json& port : json.at("ports"))
    record.ports.push_back({.device = port.at("device").get<std::string>(),
                            .port = port.at("port").get<std::string>(),
                            .ns = port.at("namespace").get<std::string>(),
                            .ns_inode = port.at("inode").get<ino_t>(),
                            .before = queues_of(port.at("before")),
                            .after = queues_of(port.at("after"))});
  return record;
}

std::string rollback_script(const Record& record) {
  std::string text =
      "#!/bin/sh\n# What ran before `tensorlane-switch apply`, by hand: `tensorlane-switch apply --revert` does the "
      "same.\n";
  for (const PortChange& port : record.ports) {
    if (!port.changes()) continue;
    const std::string tc = port.ns.empty() ? "tc" : "tc -n " + port.ns;
    for (const char* qdisc : {"root", "clsact"})
      text += fmt::format("{} qdisc del dev {} {} 2>/dev/null || true\n", tc, port.port, qdisc);
    if (!port.before.lines.empty()) text += fmt::format("{} -batch - <<'END'\n{}END\n", tc, port.before.lines);
  }
  return text;
}

}  // namespace

Result<Journal> Journal::open(const std::string& given, Purpose purpose) {
  // The worker and its guardian leave the folder that they are started in.
  std::error_code wrong;
  const std::string folder = std::filesystem::absolute(given, wrong).lexically_normal();
  if (wrong || given.empty())
    return Status(Code::kInvalidArgument, "the folder has no name", "--state", "name one, best from / on");
  struct stat info {};
  if (purpose == Purpose::kChange && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return failed("the folder cannot be made", folder);
  if (::lstat(folder.c_str(), &info) != 0) {
    if (purpose == Purpose::kLook && errno == ENOENT) return Journal(folder);
    return failed("the folder cannot be read", folder);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 0077) != 0)
    return Status(Code::kPermissionDenied, "others may write here, or it is no folder", folder,
                  "expected a folder of this user with mode 0700");
  Journal journal(folder);
  const std::string path = folder + "/lock";
  journal.lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (journal.lock_ < 0) return failed("the lock cannot be opened", path);
  return journal;
}

Journal::~Journal() {
  if (lock_ >= 0) ::close(lock_);
}

Journal::Journal(Journal&& other) noexcept : folder_(std::move(other.folder_)), lock_(std::exchange(other.lock_, -1)) {}

bool Journal::lock() {
  return ::flock(lock_, LOCK_EX | LOCK_NB) == 0;
}

std::string Journal::path(Phase phase) const {
  return fmt::format("{}/{}", folder_, kFiles[static_cast<std::size_t>(phase)]);
}

Phase Journal::phase() const {
  // In the order in which steps are taken, so that one taken between two looks is seen by the second.
  for (const Phase phase : {Phase::kChanging, Phase::kWaiting, Phase::kReverting}) {
    if (::access(path(phase).c_str(), F_OK) == 0) return phase;
  }
  return Phase::kNone;
}

Result<Record> Journal::read_file(const std::string& path) const {
  std::ifstream file(path);
  const Json json = Json::parse(file, nullptr, false);
  try {
    return record_of(json);
  } catch (const Json::exception&) {
    return Status(Code::kCorrupt, "this is no record of an apply", path,
                  fmt::format("`sh {}/rollback.sh` brings back the old state; then remove the file", folder_));
  }
}

Result<Record> Journal::read() const {
  for (int attempt = 0; attempt < 3; ++attempt) {  // another process may take a step meanwhile
    const std::string now = path(phase());
    Result<Record> record = read_file(now);
    if (record.ok() || path(phase()) == now) return record;
  }
  return read_file(path(phase()));
}

Result<Record> Journal::read_applied() const {
  if (::access(path(Phase::kNone).c_str(), F_OK) != 0) return Record{};
  return read_file(path(Phase::kNone));
}

// At once or not at all.
Status Journal::write(const std::string& path, const std::string& text, mode_t mode) const {
  const std::string fresh = path + ".new";
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
  bool good = fd >= 0;
  for (std::size_t put = 0; good && put < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + put, text.size() - put);
    good = wrote > 0 || (wrote < 0 && errno == EINTR);
    if (wrote > 0) put += static_cast<std::size_t>(wrote);
  }
  good = good && ::fsync(fd) == 0;
  Status status;
  if (!good || ::rename(fresh.c_str(), path.c_str()) != 0) status = failed("the file cannot be written", path);
  if (fd >= 0) ::close(fd);
  return status;
}

Status Journal::begin(const Record& record) const {
  TL_RETURN_IF_ERROR(write(folder_ + "/rollback.sh", rollback_script(record), 0700));
  return write(path(Phase::kChanging), text_of(record), 0600);
}

bool Journal::move(Phase from, Phase to) const {
  return ::rename(path(from).c_str(), path(to).c_str()) == 0;
}

Status Journal::reverted() const {
  TL_ASSIGN_OR_RETURN(Record record, read_file(path(Phase::kReverting)));
  for (PortChange& port : record.ports) port.after = port.before;
  TL_RETURN_IF_ERROR(write(path(Phase::kNone), text_of(record), 0600));
  if (::unlink(path(Phase::kReverting).c_str()) != 0)
    return failed("the file cannot be removed", path(Phase::kReverting));
  return Status::ok_status();
}

bool Journal::reopen() const {
  return move(Phase::kNone, Phase::kReverting);
}

}  // namespace tensorlane::switches::apply
