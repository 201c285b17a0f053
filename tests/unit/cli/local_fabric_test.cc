#include "monitor/cli/local_fabric.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

namespace tensorlane::cli {
namespace {

// A name of this process, removed before and after: /run is everybody's.
class Runtime : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(remove_runtime(name_).ok()); }
  void TearDown() override { EXPECT_TRUE(remove_runtime(name_).ok()); }
  const std::string name_ = "unit-" + std::to_string(::getpid());
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(LocalFabric, HostsOnLoopbackHaveAddressesOfTheirOwnAndNoLinks) {
  const fabric::Fabric fabric = make_local_fabric({.hosts = 3}).value();
  ASSERT_EQ(fabric.hosts.size(), 3u);
  EXPECT_EQ(fabric.hosts[0].name, "h0");
  EXPECT_EQ(fabric.hosts[2].tcp_address(), "127.0.0.12");
  EXPECT_TRUE(fabric.links.empty());
  EXPECT_TRUE(fabric.switches.empty());
}

TEST(LocalFabric, HostsOfALabHangOnOneSwitch) {
  const fabric::Fabric fabric =
      make_local_fabric({.hosts = 2, .place = Place::kLab, .speed = BitsPerSecond(1'000'000'000), .buffer = kib(300)})
          .value();
  EXPECT_EQ(fabric.hosts[1].tcp_address(), "10.77.0.2");
  ASSERT_EQ(fabric.links.size(), 2u);
  EXPECT_EQ(fabric.links[1].from, "h1");
  EXPECT_EQ(fabric.links[1].to, fabric.switches.at(0).name);
  EXPECT_EQ(fabric.link_speed(fabric.hosts[1]), BitsPerSecond(1'000'000'000));
  EXPECT_EQ(fabric.links[1].buffer, kib(300));
}

TEST(LocalFabric, EveryRailHasAddressesAndASwitchOfItsOwn) {
  const fabric::Fabric lab = make_local_fabric({.hosts = 2, .rails = 2, .place = Place::kLab}).value();
  EXPECT_EQ(lab.hosts[1].addresses.at("tcp"), (std::vector<std::string>{"10.77.0.2", "10.77.1.2"}));
  ASSERT_EQ(lab.switches.size(), 2u);
  ASSERT_EQ(lab.links.size(), 4u);
  EXPECT_EQ(lab.links[3].from, "h1");
  EXPECT_EQ(lab.links[3].to, "s1");
  const fabric::Fabric local = make_local_fabric({.hosts = 2, .rails = 2}).value();
  EXPECT_EQ(local.hosts[1].addresses.at("tcp"), (std::vector<std::string>{"127.0.0.11", "127.0.1.11"}));
  const auto many = make_local_fabric({.hosts = 2, .rails = 9});
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.status().to_string(), "9 rails: --rails: expected 1 to 8");
}

TEST(LocalFabric, RefusesNoneAndTooMany) {
  for (int hosts : {-1, 0, 201}) {
    const auto fabric = make_local_fabric({.hosts = hosts});
    ASSERT_FALSE(fabric.ok());
    EXPECT_EQ(fabric.status().to_string(), std::to_string(hosts) + " hosts: --hosts: expected 1 to 200");
  }
}

TEST(KeyPair, IsZ85AndNeverTheSame) {
  const KeyPair one = make_key_pair().value(), other = make_key_pair().value();
  EXPECT_EQ(one.public_key.size(), 40u);
  EXPECT_EQ(one.secret_key.size(), 40u);
  EXPECT_NE(one.public_key, other.public_key);
  EXPECT_NE(one.secret_key, one.public_key);
}

// Of 50 random pairs one has such characters.
TEST(KeyPair, CanStandInATemplate) {
  for (int i = 0; i < 1000; ++i) {
    const KeyPair pair = make_key_pair().value();
    for (const char* opening : {"{{", "{%", "{#"})
      ASSERT_EQ((pair.public_key + " " + pair.secret_key).find(opening), std::string::npos) << pair.public_key;
  }
}

TEST_F(Runtime, HoldsAFabricFileThatDaemonsAcceptAndSecretKeys) {
  const auto made = make_runtime(name_, make_local_fabric({.hosts = 2}).value());
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const auto fabric = fabric::load(made->fabric_file());  // with Keys::kRequired
  ASSERT_TRUE(fabric.ok()) << fabric.status().to_string();
  for (const fabric::Host& host : fabric->hosts) {
    struct stat info {};
    ASSERT_EQ(::stat(made->secret_key_file(host.name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    const std::string secret = contents(made->secret_key_file(host.name));
    EXPECT_EQ(secret.size(), 41u);
    EXPECT_EQ(secret.back(), '\n');
  }
  EXPECT_NE(fabric->hosts[0].public_key, fabric->hosts[1].public_key);
  EXPECT_EQ(made->socket("h1"), made->path + "/h1.sock");
}

TEST_F(Runtime, IsMadeOnceAndOpenedAfterwards) {
  EXPECT_EQ(open_runtime(name_).status().code(), Code::kNotFound);
  const auto made = make_runtime(name_, make_local_fabric({.hosts = 2}).value());
  ASSERT_TRUE(made.ok());
  const auto again = make_runtime(name_, make_local_fabric({.hosts = 2}).value());
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), Code::kAlreadyExists);
  EXPECT_EQ(again.status().to_string(),
            "'" + name_ + "' exists: " + made->path + ": choose another name or remove it first");
  const auto opened = open_runtime(name_);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->fabric.hosts[1].public_key, made->fabric.hosts[1].public_key);
  EXPECT_TRUE(remove_runtime(name_).ok());
  EXPECT_FALSE(std::filesystem::exists(made->path));
  EXPECT_TRUE(remove_runtime(name_).ok());
}

TEST(RunName, StaysInsideTheRuntimeFolder) {
  for (const char* name : {"", ".", "..", "a/b", "-x", "a b", "a.b", "a-name-of-twenty-five-char"}) {
    EXPECT_EQ(check_run_name(name).code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(make_runtime(name, {}).status().code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(remove_runtime(name).code(), Code::kInvalidArgument) << name;
  }
  EXPECT_TRUE(check_run_name("run-1_A").ok());
}

}  // namespace
}  // namespace tensorlane::cli
