#include "monitor/cli/local_fabric.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

namespace tensorlane::cli {

namespace {

constexpr int kMaxHosts = 200;
constexpr std::size_t kMaxRunName = 24;
constexpr std::size_t kZ85Key = 40;
constexpr int kFirstLocalAddress = 10;

// Makes the file, which must not exist. `mode` holds from the first byte on.
Status write_file(const std::string& path, const std::string& text, mode_t mode) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0) return cannot_write(path);
  const bool whole = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool closed = ::close(fd) == 0;
  return whole && closed ? Status::ok_status() : cannot_write(path);
}

Status fill(RuntimeDir& runtime) {
  const std::string keys = runtime.path + "/keys";
  if (::mkdir(keys.c_str(), 0700) != 0) return cannot_write(keys);
  for (fabric::Host& host : runtime.fabric.hosts) {
    TL_ASSIGN_OR_RETURN(const KeyPair pair, make_key_pair());
    host.public_key = pair.public_key;
    TL_RETURN_IF_ERROR(write_secret_key(pair, runtime.secret_key_file(host.name)));
  }
  TL_RETURN_IF_ERROR(write_file(runtime.fabric_file(), fabric::to_yaml(runtime.fabric), 0644));
  TL_ASSIGN_OR_RETURN(runtime.fabric, fabric::load(runtime.fabric_file()));
  return Status::ok_status();
}

Status check_socket_length(const RuntimeDir& runtime) {
  for (const fabric::Host& host : runtime.fabric.hosts) {
    if (runtime.socket(host.name).size() < sizeof(sockaddr_un::sun_path)) continue;
    return Status(Code::kInvalidArgument, "path too long for a socket", runtime.socket(host.name),
                  "use a shorter name, or a shorter TMPDIR");
  }
  return Status::ok_status();
}

}  // namespace

Status cannot_write(const std::string& path) {
  const int cause = errno;
  const std::string what = fmt::format("cannot write: {}", std::strerror(cause));
  if (cause == EEXIST) return {Code::kAlreadyExists, what, path, "name another file, or remove this one first"};
  if (cause == ENOENT) return {Code::kInvalidArgument, what, path, "make its folder first"};
  if (cause == EACCES || cause == EPERM || cause == EROFS)
    return {Code::kPermissionDenied, what, path, "use a folder that you may write to"};
  return {Code::kResourceExhausted, what, path, "free some space there"};
}

Status write_secret_key(const KeyPair& pair, const std::string& path) {
  return write_file(path, pair.secret_key + "\n", 0600);
}

Result<fabric::Fabric> make_local_fabric(const LocalFabric& what) {
  if (what.hosts < 1 || what.hosts > kMaxHosts) {
    return Status(Code::kInvalidArgument, fmt::format("{} hosts", what.hosts), "--hosts",
                  fmt::format("expected 1 to {}", kMaxHosts));
  }
  if (what.rails < 1 || what.rails > static_cast<int>(kMaxRails)) {
    return Status(Code::kInvalidArgument, fmt::format("{} rails", what.rails), "--rails",
                  fmt::format("expected 1 to {}", kMaxRails));
  }
  fabric::Fabric made;
  made.classes = what.classes;
  for (int i = 0; i < what.hosts; ++i) {
    fabric::Host host;
    host.name = fmt::format("h{}", i);
    for (int r = 0; r < what.rails; ++r) {
      host.addresses["tcp"].push_back(what.place == Place::kLab
                                          ? fmt::format("10.77.{}.{}", r, i + 1)
                                          : fmt::format("127.0.{}.{}", r, kFirstLocalAddress + i));
    }
    host.control_port = what.first_port;
    host.data_port = static_cast<std::uint16_t>(what.first_port + 10);
    if (what.place == Place::kLab && what.rdma != LocalFabric::Rdma::kNone) {
      for (int r = 0; r < what.rails; ++r) {
        host.addresses["rdma"].push_back(
            fmt::format("10.{}.{}.{}", what.rdma == LocalFabric::Rdma::kVlan ? 78 : 77, r, i + 1));
      }
    }
    made.hosts.push_back(host);
    if (what.place == Place::kLocal) continue;
    for (int r = 0; r < what.rails; ++r) {
      fabric::Link link;
      link.from = host.name;
      link.to = fmt::format("s{}", r);
      link.speed = what.speed;
      link.cable_metres = 3;
      link.buffer = what.buffer;
      link.mtu = what.mtu;
      made.links.push_back(link);
    }
  }
  for (int r = 0; what.place == Place::kLab && r < what.rails; ++r) made.switches.push_back({fmt::format("s{}", r)});
  return made;
}

namespace {

// Z85 has characters that templates of configuration management (Jinja) read as their own.
bool breaks_templates(std::string_view key) {
  return key.find("{{") != key.npos || key.find("{%") != key.npos || key.find("{#") != key.npos;
}

}  // namespace

Result<KeyPair> make_key_pair() {
  std::array<char, kZ85Key + 1> public_key{};
  std::array<char, kZ85Key + 1> secret_key{};
  do {
    if (zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
      return Status(Code::kInternal, "cannot make a CURVE key pair", zmq_strerror(zmq_errno()),
                    "install a libzmq built with CURVE");
    }
  } while (breaks_templates(public_key.data()) || breaks_templates(secret_key.data()));  // of 50 pairs one
  return KeyPair{public_key.data(), secret_key.data()};
}

Result<std::string> runtime_root() {
  const char* tmp = std::getenv("TMPDIR");
  const std::string fallback =
      fmt::format("{}/tensorlane-{}", tmp != nullptr && *tmp != '\0' ? tmp : "/tmp", ::getuid());
  for (const std::string& root : {std::string("/run/tensorlane"), fallback}) {
    if (::mkdir(root.c_str(), root == fallback ? 0700 : 0755) != 0 && errno != EEXIST) continue;
    struct stat info {};
    // Only a folder of ours: in /tmp anybody may have made one of that name.
    if (::lstat(root.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::getuid()) return root;
  }
  return Status(Code::kPermissionDenied, "cannot make a runtime folder", fallback,
                "set TMPDIR to a folder that you may write to");
}

Status check_run_name(const std::string& name) {
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
  const bool good =
      !name.empty() && name.size() <= kMaxRunName && name[0] != '-' && std::all_of(name.begin(), name.end(), fits);
  if (good) return Status::ok_status();
  return Status(Code::kInvalidArgument, fmt::format("name '{}'", name), "--name",
                fmt::format("expected 1 to {} letters, digits, '_' or '-'", kMaxRunName));
}

Result<RuntimeDir> make_runtime(const std::string& name, fabric::Fabric fabric) {
  TL_RETURN_IF_ERROR(check_run_name(name));
  TL_ASSIGN_OR_RETURN(const std::string root, runtime_root());
  RuntimeDir runtime{root + "/" + name, std::move(fabric)};
  TL_RETURN_IF_ERROR(check_socket_length(runtime));
  if (::mkdir(runtime.path.c_str(), 0755) != 0) {
    if (errno != EEXIST) return cannot_write(runtime.path);
    return Status(Code::kAlreadyExists, fmt::format("'{}' exists", name), runtime.path,
                  "choose another name or remove it first");
  }
  const Status filled = fill(runtime);
  if (filled.ok()) return runtime;
  const Status removed = remove_runtime(name);
  return removed.ok() ? filled : removed;
}

Result<RuntimeDir> open_runtime(const std::string& name) {
  TL_RETURN_IF_ERROR(check_run_name(name));
  TL_ASSIGN_OR_RETURN(const std::string root, runtime_root());
  RuntimeDir runtime{root + "/" + name, {}};
  if (::access(runtime.path.c_str(), F_OK) != 0) {
    return Status(Code::kNotFound, fmt::format("no '{}'", name), runtime.path, "make it first");
  }
  TL_ASSIGN_OR_RETURN(runtime.fabric, fabric::load(runtime.fabric_file()));
  return runtime;
}

Status remove_runtime(const std::string& name) {
  TL_RETURN_IF_ERROR(check_run_name(name));
  TL_ASSIGN_OR_RETURN(const std::string root, runtime_root());
  std::error_code failure;
  std::filesystem::remove_all(root + "/" + name, failure);
  if (!failure) return Status::ok_status();
  return Status(Code::kPermissionDenied, "cannot remove the runtime folder", root + "/" + name, failure.message());
}

}  // namespace tensorlane::cli
