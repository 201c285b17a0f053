// Ports over shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "ports.h"

namespace tensorlane::dpdk::testing {
namespace {

PortConfig memif(int host, const std::string& role, const std::string& socket) {
  PortConfig port = config(host == 1 ? 1 : 2);
  port.device = "net_memif" + std::to_string(host) + ",role=" + role + ",id=0,socket=" + socket + ",socket-abstract=no";
  return port;
}

TEST_F(PortTest, BringsPayloadsOverSharedMemory) {
  const std::string socket = ::testing::TempDir() + "tl-memif-" + std::to_string(getpid()) + ".sock";
  auto server = open(memif(1, "server", socket)), client = open(memif(2, "client", socket));
  ASSERT_TRUE(server && client);
  const PeerId peer = client->add_peer(ip("fd09::1")).value();
  ASSERT_TRUE(becomes_reachable(*client, peer, server.get()));
  ASSERT_EQ(send(*client, 1, {peer, 50001}, std::array{bytes("shared")}), 1U);
  const auto arrived = receive(*server, 1);
  ASSERT_EQ(arrived.size(), 1U);
  EXPECT_EQ(arrived[0].payload, "shared");
  EXPECT_EQ(arrived[0].packet.dscp, 34);
  EXPECT_TRUE(client->link().up);
  const Status second = open_port(memif(3, "server", socket)).status();
  EXPECT_EQ(second.code(), Code::kAlreadyExists) << second.to_string();
  EXPECT_THAT(second.what(), ::testing::HasSubstr("serves the socket"));
}

TEST_F(PortTest, AServerThatIsNotThereIsNamed) {
  const Status status = open_port(memif(2, "client", "/tmp/tl-memif-nobody")).status();
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.to_string();
  EXPECT_THAT(status.to_string(), ::testing::HasSubstr("role is server"));
}

TEST_F(PortTest, ASocketThatWasLeftBehindHasAName) {
  const std::string socket = ::testing::TempDir() + "tl-memif-" + std::to_string(getpid()) + ".left";
  std::ofstream(socket) << "in the way";
  const Status status = open_port(memif(1, "server", socket)).status();
  EXPECT_EQ(status.code(), Code::kAlreadyExists) << status.to_string();
  unlink(socket.c_str());
}

}  // namespace
}  // namespace tensorlane::dpdk::testing
