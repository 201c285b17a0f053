#include "daemon/wiring/try_out.h"

#include <fmt/format.h>
#include <netdb.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "common/files/careful.h"
#include "daemon/engine_log/file_sink.h"
#include "daemon/telemetry/scrape_server.h"
#include "daemon/wiring/packet_ports.h"

namespace tensorlane::wiring {
namespace {

constexpr std::size_t kKeyText = 40;  // Z85

// Whether the address, or the name's first one, is one of this host's.
Status try_address(const config::DaemonConfig& config, const std::string& text) {
  const fabric::Host& self = config.self();
  const std::string place = fmt::format("{}:{}", config.fabric_path, self.line);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(text.c_str(), nullptr, &hints, &list); error != 0) {
    return {Code::kInvalidArgument,
            fmt::format("address '{}' of host '{}' does not resolve ({})", text, self.name, gai_strerror(error)), place,
            "write an address of this host"};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int bound = fd < 0 ? -1 : bind(fd, list->ai_addr, list->ai_addrlen);  // to any port
  const int error = errno;
  if (fd >= 0) close(fd);
  if (bound == 0) return {};
  return {Code::kInvalidArgument,
          fmt::format("this is not the host that '{}' names: it has no address {} ({})", self.name, text,
                      std::strerror(error)),
          place, "write an address of this host into the fabric file, or another 'host' into daemon.yaml"};
}

Status wrong(const config::DaemonConfig& config, const std::string& key, std::string what, std::string fix) {
  return {Code::kInvalidArgument, std::move(what), config.place(key), std::move(fix)};
}

// Whether the key is the other half of the one that the fabric file shows to everybody.
Status try_secret_key(const config::DaemonConfig& config) {
  if (config.secret_key.empty()) return {};
  char mine[kKeyText + 1] = {};
  if (zmq_curve_public(mine, config.secret_key.c_str()) == 0 && config.self().public_key == mine) return {};
  return wrong(config, "secret_key_file",
               fmt::format("the secret key in {} is not that of host '{}'", config.secret_key_path, config.host),
               fmt::format("name the file with the other half of its public_key in {}:{}", config.fabric_path,
                           config.self().line));
}

Status try_socket(const config::DaemonConfig& config) {
  constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (config.socket.empty() || config.socket.size() > kLongest) {
    return wrong(config, "socket",
                 fmt::format("the path of 'socket' has {} bytes: {}", config.socket.size(), config.socket),
                 fmt::format("expected 1 to {} bytes", kLongest));
  }
  std::error_code failure;
  const std::string folder = std::filesystem::absolute(config.socket).parent_path().string();
  const bool is_default = config.socket == config::DaemonConfig().socket;  // the service manager makes its folder
  if (is_default || std::filesystem::is_directory(folder, failure)) return {};
  return wrong(config, "socket", fmt::format("the folder of 'socket' is not there: {}", folder),
               "make it for the daemon's user, or set 'socket'");
}

Status try_cpu(const config::DaemonConfig& config) {
  const long cores = sysconf(_SC_NPROCESSORS_CONF);
  if (config.cpu < 0) return {};
  const long last = config.cpu + static_cast<long>(config.lanes) - 1;
  if (last < cores) return {};
  const long highest = cores - static_cast<long>(config.lanes);
  const std::string of_lanes =
      config.lanes == 1 ? "" : fmt::format(", so that its {} lanes would end on core {}", config.lanes, last);
  return wrong(config, "cpu", fmt::format("'cpu' is {}{}, and this host has {} cores", config.cpu, of_lanes, cores),
               highest < 0 ? fmt::format("expected no 'cpu', or at most {} 'lanes'", cores)
                           : fmt::format("expected 0 to {}", highest));
}

}  // namespace

Status try_metrics(const config::DaemonConfig& config) {
  if (config.metrics.empty()) return {};
  const Status status = telemetry::check_listen_address(config.metrics);
  return status.ok() ? status : Status(status.code(), status.what(), config.place("metrics"), status.fix());
}

std::string key_warning(const config::DaemonConfig& config, const std::string& service_user) {
  if (config.secret_key_path.empty() || geteuid() != 0) return {};
  struct stat key {};
  const passwd* user = getpwnam(service_user.c_str());
  if (user == nullptr || user->pw_uid == 0 || stat(config.secret_key_path.c_str(), &key) != 0 || key.st_uid != 0)
    return {};
  return fmt::format(
      "root alone can read the secret key, and the service runs as user '{0}': {1}: chown {0} {1}, and check as that "
      "user: runuser -u {0} -- tensorlaned --check-config --config {2}",
      service_user, config.secret_key_path, config.path);
}

Status try_out(const config::DaemonConfig& config) {
  TL_RETURN_IF_ERROR(try_secret_key(config));
  TL_RETURN_IF_ERROR(try_socket(config));
  TL_RETURN_IF_ERROR(try_cpu(config));
  for (std::uint8_t r = 0; r < config.self().rails(); ++r)
    TL_RETURN_IF_ERROR(try_address(config, config.self().tcp_address(RailIndex(r))));
  TL_RETURN_IF_ERROR(check_packet_ports(config));
  TL_RETURN_IF_ERROR(try_metrics(config));
  if (!config.timeline.empty()) TL_RETURN_IF_ERROR(files::check_creatable(config.timeline, "the timeline"));
  if (!config.record.empty()) TL_RETURN_IF_ERROR(engine_log::check_folder(config.record));
  return {};
}

}  // namespace tensorlane::wiring
