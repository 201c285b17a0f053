// A question to the daemons of many hosts, through one of them: real control planes in one process, each of which
// answers with the report of a host of a job. TENSORLANE_MANY_HOSTS=1024 for more of them than by default.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cluster.h"
#include "monitor/explain/explain.h"
#include "monitor/explain/report.h"
#include "tests/unit/explain/job.h"

namespace tensorlane::control::testing {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

std::size_t count_of_hosts() {
  const char* text = std::getenv("TENSORLANE_MANY_HOSTS");
  return text == nullptr ? 64 : static_cast<std::size_t>(std::atoi(text));
}

class ManyHosts : public ::testing::Test {
 protected:
  explicit ManyHosts(std::size_t count = count_of_hosts()) : count_(count), job_(count) {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    job_.hosts[count - 1].rank.input = 0.050;
    reports_ = job_.reports();
    describe_fabric();
    for (std::size_t i = 0; i < count; ++i) start(i);
  }
  ~ManyHosts() override {
    for (auto& control : controls_) control->stop();
  }

  void describe_fabric() {
    fabric_.path = "fabric.yaml";
    fabric_.classes = fabric::preset(fabric::Preset::kGreenfield);
    const std::uint16_t port = free_port();
    for (std::size_t i = 0; i < count_; ++i) {
      keys_.push_back(make_keys());
      fabric::Host host;
      host.name = Cluster::name(i);
      host.addresses["tcp"] = {fmt::format("127.1.{}.{}", i / 200, i % 200 + 1)};
      host.control_port = port;
      host.public_key = keys_.back().public_key;
      fabric_.hosts.push_back(std::move(host));
    }
  }

  void start(std::size_t i) {
    ControlConfig config;
    config.fabric = &fabric_;
    config.host = fabric_.hosts[i].name;
    config.secret_key = keys_[i].secret_key;
    config.planner = [](const protocol::TensorBody&, const ports::JobSpec&) { return protocol::PlanTensor(); };
    config.answerers["before"] = [this, i](const ports::Question&, const ports::Answered& done) {
      done(reports_[i].first.dump());
    };
    config.answerers["after"] = [this, i](const ports::Question&, const ports::Answered& done) {
      done(reports_[i].second.dump());
    };
    controls_.push_back(std::make_unique<Control>(std::move(config)));
    const Status started = controls_.back()->start(lane_, sessions_);
    ASSERT_TRUE(started.ok()) << started.to_string();
  }

  // What all hosts say, through the first.
  json ask(std::uint32_t request, const std::string& kind) {
    const json question{{"kind", kind}, {"hosts", "all"}, {"timeout_s", 60}};
    const auto begin = Clock::now();
    controls_[0]->ask(ports::SessionId(1), 0, request, question.dump());
    json answers = sessions_.wait_status(1, request, 70).value_or(json());
    fmt::print("{} hosts, '{}': {:.3f} s\n", count_, kind, std::chrono::duration<double>(Clock::now() - begin).count());
    return answers["answers"];
  }

  const std::size_t count_;
  explain::test::MadeUpJob job_;
  std::vector<std::pair<json, json>> reports_;
  fabric::Fabric fabric_;
  std::vector<KeyPair> keys_;
  Lane lane_;
  Sessions sessions_;
  std::vector<std::unique_ptr<Control>> controls_;
};

TEST_F(ManyHosts, AnswerOneQuestionThroughOneOfThem) {
  const json before = ask(1, "before");
  const auto begin = Clock::now();
  const json after = ask(2, "after");
  ASSERT_EQ(before.size(), count_);
  ASSERT_EQ(after.size(), count_);
  std::vector<explain::HostTimes> hosts;
  for (std::size_t i = 0; i < count_; ++i) {
    ASSERT_TRUE(before[i].contains("text")) << before[i];
    ASSERT_TRUE(after[i].contains("text")) << after[i];
    const auto times = explain::difference(json::parse(before[i]["text"].get<std::string>()),
                                           json::parse(after[i]["text"].get<std::string>()));
    ASSERT_TRUE(times.ok()) << times.status().to_string();
    hosts.push_back(*times);
  }
  const auto all = explain::explain(hosts);
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  fmt::print("{} hosts, from the question to the explanation: {:.3f} s\n", count_, took);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  EXPECT_EQ(all->findings.front().where, fmt::format("rank {} on host {}", count_ - 1, Cluster::name(count_ - 1)));
  EXPECT_LT(took, 3);
}

}  // namespace
}  // namespace tensorlane::control::testing
