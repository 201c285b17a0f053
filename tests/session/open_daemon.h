// A session server with any memory behind it, and a control that answers no questions.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "daemon/ports/session.h"
#include "daemon/ports/shared_memory.h"
#include "daemon/session/server.h"
#include "fake_daemon.h"

namespace tensorlane::test {

// Lets everybody in, and out once `lets_go`.
class OpenControl final : public ports::JobControl {
 public:
  void join(ports::JoinRequest request) override {
    server->joined(request.session, ports::JoinInfo{.detection = seconds(30)});
  }
  void register_group(ports::SessionId, std::uint32_t, std::string, std::vector<protocol::TensorBody>,
                      std::vector<std::uint32_t>) override {
    ++questions;
  }
  void overdue(ports::SessionId, std::uint32_t) override {}
  void unregister_group(ports::SessionId, std::uint32_t, std::string, std::uint64_t, Duration) override {}
  void leave(ports::SessionId session, Status why) override {
    if (!why.ok()) return;
    ++goodbyes;
    while (!lets_go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    server->left(session);
  }
  void status(ports::SessionId, std::uint32_t, std::uint32_t) override { ++questions; }
  void ask(ports::SessionId session, std::uint32_t, std::uint32_t, std::string) override {
    asked = session;
    ++questions;
  }

  session::SessionServer* server = nullptr;
  ports::SessionId asked;  // whose last question it was
  std::atomic<int> questions{0}, goodbyes{0};
  std::atomic<bool> lets_go{true};
};

struct OpenDaemon {
  explicit OpenDaemon(ports::SharedMemoryPool& pool) : server(session::SessionConfig{.socket_path = socket}, pool) {
    control.server = &server;
    EXPECT_TRUE(server.start(control).ok());
  }
  const std::string socket = fresh_socket();
  OpenControl control;
  session::SessionServer server;
};

}  // namespace tensorlane::test
