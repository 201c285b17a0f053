#include "daemon/wiring/try_out.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/files/careful.h"
#include "daemon/engine_log/file_sink.h"
#include "daemon/telemetry/scrape_server.h"

namespace tensorlane::wiring {
namespace {

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

}  // namespace

Status try_out(const config::DaemonConfig& config) {
  for (std::uint8_t r = 0; r < config.self().rails(); ++r)
    TL_RETURN_IF_ERROR(try_address(config, config.self().tcp_address(RailIndex(r))));
  if (!config.metrics.empty()) TL_RETURN_IF_ERROR(telemetry::check_listen_address(config.metrics));
  if (!config.timeline.empty()) TL_RETURN_IF_ERROR(files::check_creatable(config.timeline, "the timeline"));
  if (!config.record.empty()) TL_RETURN_IF_ERROR(engine_log::check_folder(config.record));
  return {};
}

}  // namespace tensorlane::wiring
