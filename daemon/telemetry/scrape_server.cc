#include "daemon/telemetry/scrape_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

namespace tensorlane::telemetry {
namespace {

struct AddrinfoDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddrinfoDeleter>;

Status no_address(const std::string& listen, const std::string& why) {
  return {Code::kInvalidArgument, fmt::format("'{}' is no address to serve metrics on{}", listen, why), "metrics",
          "write ADDRESS:PORT, e.g. 127.0.0.1:9400"};
}

Result<Addresses> resolve(const std::string& listen) {
  const std::size_t colon = listen.rfind(':');
  if (colon == std::string::npos || colon == 0) return no_address(listen, "");
  std::string host = listen.substr(0, colon);
  const std::string port = listen.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size()) return no_address(listen, ": its port is no number");
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
    return no_address(listen, ": nobody knows that name");
  return Addresses(found);
}

int tcp_socket(const addrinfo& address, int flags) {
  return socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
}

class Server final : public ScrapeServer {
 public:
  Server(const std::string& listen, std::shared_ptr<prometheus::Collectable> page) : page_(std::move(page)) {
    exposer_.emplace(std::vector<std::string>{"listening_ports", listen, "num_threads", std::to_string(kThreads),
                                              "request_timeout_ms", std::to_string(kPatienceMs), "connection_queue",
                                              std::to_string(kWaiting), "listen_backlog", std::to_string(kWaiting),
                                              "enable_keep_alive", "no"});
    exposer_->RegisterCollectable(page_);
    const auto ports = exposer_->GetListeningPorts();
    address_ = listen.substr(0, listen.rfind(':') + 1) + std::to_string(ports.empty() ? 0 : ports.front());
  }

  // The library's listening thread looks every two seconds whether it shall end, and whenever somebody connects.
  ~Server() override {
    std::atomic<bool> ended{false};
    std::thread caller([&] {
      for (; !ended; std::this_thread::sleep_for(std::chrono::milliseconds(10))) call();
    });
    exposer_.reset();
    ended = true;
    caller.join();
  }
  std::string address() const override { return address_; }

 private:
  void call() const {
    const Result<Addresses> self = resolve(address_);
    if (!self.ok()) return;
    const int fd = tcp_socket(**self, SOCK_NONBLOCK);
    if (fd < 0) return;
    (void)connect(fd, (*self)->ai_addr, (*self)->ai_addrlen);
    close(fd);
  }

  const std::shared_ptr<prometheus::Collectable> page_;
  std::optional<prometheus::Exposer> exposer_;
  std::string address_;
};

}  // namespace

Status check_listen_address(const std::string& listen) {
  TL_ASSIGN_OR_RETURN(const Addresses address, resolve(listen));
  const int fd = tcp_socket(*address, 0);
  if (fd < 0) return no_address(listen, fmt::format(": {}", std::strerror(errno)));
  const int bound = bind(fd, address->ai_addr, address->ai_addrlen);
  const int error = errno;
  close(fd);
  if (bound == 0 || error == EADDRINUSE) return {};
  return {Code::kInvalidArgument, fmt::format("cannot serve metrics on {}: {}", listen, std::strerror(error)),
          "metrics", "write an address of this host and a port that the daemon may use"};
}

Result<std::unique_ptr<ScrapeServer>> ScrapeServer::start(const std::string& listen,
                                                          std::shared_ptr<prometheus::Collectable> page) {
  TL_RETURN_IF_ERROR(check_listen_address(listen));
  try {
    return std::unique_ptr<ScrapeServer>(std::make_unique<Server>(listen, std::move(page)));
  } catch (const std::exception& e) {  // the library reports a port in use by an exception
    return Status(Code::kUnavailable, fmt::format("cannot serve metrics on {}", listen), e.what(),
                  "stop what uses the port or set another one under 'metrics'");
  }
}

}  // namespace tensorlane::telemetry
